/* layout.c: the binary interface, pinned: the size of every public struct, the place and size of every field, the value of every
 * constant (LP64: x86-64 and arm64 Linux).  A line here may only be added: a program built against an older header must go on
 * working.  No struct has hidden padding: -Wpadded is an error inside the header.
 *
 * The work is done by the compiler; main only proves that the program was built and looks at what is known at run time. */
#include <stddef.h>
#include <stdint.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
#include "hybrid_llm.h"
#pragma GCC diagnostic pop

#include "check.h"

#define SIZE(s, bytes) _Static_assert(sizeof(s) == (bytes), "the size of " #s)
#define AT(s, f, at, bytes) _Static_assert(offsetof(s, f) == (at) && sizeof(((s *)0)->f) == (bytes), "the place of " #s "." #f)
#define IS(name, value) _Static_assert((name) == (value), "the value of " #name)

_Static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8 && sizeof(int) == 4 && sizeof(float) == 4 && sizeof(double) == 8, "LP64");
_Static_assert(_Generic((hllm_status)0, int32_t: 1, default: 0), "hllm_status is int32_t");

SIZE(hllm_allocator, 32);
AT(hllm_allocator, struct_size, 0, 4); AT(hllm_allocator, reserved0, 4, 4); AT(hllm_allocator, user, 8, 8);
AT(hllm_allocator, alloc, 16, 8); AT(hllm_allocator, free, 24, 8);

SIZE(hllm_runtime_options, 40);
AT(hllm_runtime_options, struct_size, 0, 4); AT(hllm_runtime_options, n_threads, 4, 4);
AT(hllm_runtime_options, allocator, 8, 8); AT(hllm_runtime_options, isa, 16, 8); AT(hllm_runtime_options, error_text, 24, 8);
AT(hllm_runtime_options, error_capacity, 32, 8);

SIZE(hllm_machine_info, 80);
AT(hllm_machine_info, struct_size, 0, 4); AT(hllm_machine_info, n_threads, 4, 4); AT(hllm_machine_info, n_cores, 8, 4);
AT(hllm_machine_info, n_cpus, 12, 4); AT(hllm_machine_info, memory_bytes, 16, 8);
AT(hllm_machine_info, memory_available_bytes, 24, 8); AT(hllm_machine_info, l1d_bytes, 32, 8);
AT(hllm_machine_info, l2_bytes, 40, 8); AT(hllm_machine_info, l3_bytes, 48, 8); AT(hllm_machine_info, cpu, 56, 8);
AT(hllm_machine_info, isa, 64, 8); AT(hllm_machine_info, isa_known, 72, 8);

SIZE(hllm_machine_speed, 24);
AT(hllm_machine_speed, struct_size, 0, 4); AT(hllm_machine_speed, reserved0, 4, 4);
AT(hllm_machine_speed, read_bytes_per_s, 8, 8); AT(hllm_machine_speed, int8_ops_per_s, 16, 8);

SIZE(hllm_profile_options, 24);
AT(hllm_profile_options, struct_size, 0, 4); AT(hllm_profile_options, flags, 4, 4); AT(hllm_profile_options, path, 8, 8);
AT(hllm_profile_options, model_path, 16, 8);

SIZE(hllm_profile_info, 40);
AT(hllm_profile_info, struct_size, 0, 4); AT(hllm_profile_info, n_rates, 4, 4); AT(hllm_profile_info, from_file, 8, 4);
AT(hllm_profile_info, n_gpus, 12, 4); AT(hllm_profile_info, sync_s, 16, 8); AT(hllm_profile_info, disk_bytes_per_s, 24, 8);
AT(hllm_profile_info, memory_available_bytes, 32, 8);

SIZE(hllm_profile_rate, 40);
AT(hllm_profile_rate, struct_size, 0, 4); AT(hllm_profile_rate, n_threads, 4, 4); AT(hllm_profile_rate, isa, 8, 8);
AT(hllm_profile_rate, read_bytes_per_s, 16, 8); AT(hllm_profile_rate, gather_bytes_per_s, 24, 8);
AT(hllm_profile_rate, int8_ops_per_s, 32, 8);

SIZE(hllm_model_options, 16);
AT(hllm_model_options, struct_size, 0, 4); AT(hllm_model_options, flags, 4, 4); AT(hllm_model_options, progress, 8, 8);

SIZE(hllm_model_info, 104);
AT(hllm_model_info, struct_size, 0, 4); AT(hllm_model_info, gguf_version, 4, 4); AT(hllm_model_info, family, 8, 8);
AT(hllm_model_info, name, 16, 8); AT(hllm_model_info, file_bytes, 24, 8); AT(hllm_model_info, tensor_bytes, 32, 8);
AT(hllm_model_info, n_params, 40, 8); AT(hllm_model_info, n_layers, 48, 4); AT(hllm_model_info, n_embd, 52, 4);
AT(hllm_model_info, n_ff, 56, 4); AT(hllm_model_info, n_vocab, 60, 4); AT(hllm_model_info, n_heads, 64, 4);
AT(hllm_model_info, n_heads_kv, 68, 4); AT(hllm_model_info, head_dim_k, 72, 4); AT(hllm_model_info, head_dim_v, 76, 4);
AT(hllm_model_info, n_ctx_train, 80, 4); AT(hllm_model_info, window, 84, 4); AT(hllm_model_info, n_keys, 88, 4);
AT(hllm_model_info, n_tensors, 92, 4); AT(hllm_model_info, n_shards, 96, 4); AT(hllm_model_info, flags, 100, 4);

SIZE(hllm_key_info, 32);
AT(hllm_key_info, struct_size, 0, 4); AT(hllm_key_info, type, 4, 4); AT(hllm_key_info, element_type, 8, 4);
AT(hllm_key_info, reserved0, 12, 4); AT(hllm_key_info, n_elements, 16, 8); AT(hllm_key_info, name, 24, 8);

SIZE(hllm_tensor_info, 72);
AT(hllm_tensor_info, struct_size, 0, 4); AT(hllm_tensor_info, type, 4, 4); AT(hllm_tensor_info, name, 8, 8);
AT(hllm_tensor_info, type_name, 16, 8); AT(hllm_tensor_info, n_dims, 24, 4); AT(hllm_tensor_info, shard, 28, 4);
AT(hllm_tensor_info, dims, 32, 32); AT(hllm_tensor_info, bytes, 64, 8);

SIZE(hllm_token_info, 32);
AT(hllm_token_info, struct_size, 0, 4); AT(hllm_token_info, type, 4, 4); AT(hllm_token_info, ends_generation, 8, 4);
AT(hllm_token_info, score, 12, 4); AT(hllm_token_info, text, 16, 8); AT(hllm_token_info, text_bytes, 24, 8);

SIZE(hllm_chat_message, 32);
AT(hllm_chat_message, struct_size, 0, 4); AT(hllm_chat_message, reserved0, 4, 4); AT(hllm_chat_message, role, 8, 8);
AT(hllm_chat_message, content, 16, 8); AT(hllm_chat_message, content_bytes, 24, 8);

SIZE(hllm_chat_options, 16);
AT(hllm_chat_options, struct_size, 0, 4); AT(hllm_chat_options, flags, 4, 4); AT(hllm_chat_options, template_name, 8, 8);

SIZE(hllm_plan_shortage, 24);
AT(hllm_plan_shortage, struct_size, 0, 4); AT(hllm_plan_shortage, n_ctx_fits, 4, 4);
AT(hllm_plan_shortage, bytes_needed, 8, 8); AT(hllm_plan_shortage, bytes_available, 16, 8);

SIZE(hllm_plan_gpu, 32);
AT(hllm_plan_gpu, struct_size, 0, 4); AT(hllm_plan_gpu, reserved0, 4, 4); AT(hllm_plan_gpu, budget_bytes, 8, 8);
AT(hllm_plan_gpu, bytes_per_s, 16, 8); AT(hllm_plan_gpu, sync_s, 24, 8);

SIZE(hllm_plan_options, 80);
AT(hllm_plan_options, struct_size, 0, 4); AT(hllm_plan_options, objective, 4, 4); AT(hllm_plan_options, solver, 8, 4);
AT(hllm_plan_options, flags, 12, 4); AT(hllm_plan_options, time_limit_s, 16, 8); AT(hllm_plan_options, module_dir, 24, 8);
AT(hllm_plan_options, shortage, 32, 8); AT(hllm_plan_options, n_ctx, 40, 4); AT(hllm_plan_options, kv, 44, 4);
AT(hllm_plan_options, cpu_budget_bytes, 48, 8); AT(hllm_plan_options, cpu_bytes_per_s, 56, 8);
AT(hllm_plan_options, gpus, 64, 8); AT(hllm_plan_options, n_gpus, 72, 4); AT(hllm_plan_options, reserved0, 76, 4);

SIZE(hllm_plan_info, 96);
AT(hllm_plan_info, struct_size, 0, 4); AT(hllm_plan_info, kind, 4, 4); AT(hllm_plan_info, objective_kind, 8, 4);
AT(hllm_plan_info, n_layers, 12, 4); AT(hllm_plan_info, n_devices, 16, 4); AT(hllm_plan_info, k, 20, 4);
AT(hllm_plan_info, objective, 24, 8); AT(hllm_plan_info, bound, 32, 8); AT(hllm_plan_info, gap, 40, 8);
AT(hllm_plan_info, seconds_per_token, 48, 8); AT(hllm_plan_info, solve_s, 56, 8); AT(hllm_plan_info, solver, 64, 8);
AT(hllm_plan_info, model_hash, 72, 8); AT(hllm_plan_info, model_bytes, 80, 8); AT(hllm_plan_info, n_ctx, 88, 4);
AT(hllm_plan_info, uniform, 92, 4);

SIZE(hllm_plan_device, 48);
AT(hllm_plan_device, struct_size, 0, 4); AT(hllm_plan_device, n_parts, 4, 4); AT(hllm_plan_device, n_layers, 8, 4);
AT(hllm_plan_device, n_layers_gpu, 12, 4); AT(hllm_plan_device, budget_bytes, 16, 8); AT(hllm_plan_device, bytes, 24, 8);
AT(hllm_plan_device, seconds, 32, 8); AT(hllm_plan_device, name, 40, 8);

SIZE(hllm_plan_part, 32);
AT(hllm_plan_part, struct_size, 0, 4); AT(hllm_plan_part, reserved0, 4, 4); AT(hllm_plan_part, bytes, 8, 8);
AT(hllm_plan_part, seconds, 16, 8); AT(hllm_plan_part, kind, 24, 8);

SIZE(hllm_plan_layer, 32);
AT(hllm_plan_layer, struct_size, 0, 4); AT(hllm_plan_layer, gpu, 4, 4); AT(hllm_plan_layer, n_neurons, 8, 8);
AT(hllm_plan_layer, n_neurons_gpu, 16, 8); AT(hllm_plan_layer, device, 24, 4); AT(hllm_plan_layer, on_gpu, 28, 4);

SIZE(hllm_prepare_options, 48);
AT(hllm_prepare_options, struct_size, 0, 4); AT(hllm_prepare_options, flags, 4, 4); AT(hllm_prepare_options, text, 8, 8);
AT(hllm_prepare_options, text_bytes, 16, 8); AT(hllm_prepare_options, progress, 24, 8); AT(hllm_prepare_options, perplexity_loss, 32, 8);
AT(hllm_prepare_options, skip_share, 40, 8);

SIZE(hllm_sparse_info, 72);
AT(hllm_sparse_info, struct_size, 0, 4); AT(hllm_sparse_info, by_neurons, 4, 4); AT(hllm_sparse_info, powerinfer, 8, 4);
AT(hllm_sparse_info, n_predictors, 12, 4); AT(hllm_sparse_info, act, 16, 8); AT(hllm_sparse_info, n_tokens, 24, 8); AT(hllm_sparse_info, n_measured, 32, 8);
AT(hllm_sparse_info, nll_exact, 40, 8); AT(hllm_sparse_info, nll_predicted, 48, 8); AT(hllm_sparse_info, kl_predicted, 56, 8);
AT(hllm_sparse_info, n_thresholds, 64, 4); AT(hllm_sparse_info, reserved0, 68, 4);

SIZE(hllm_sparse_layer, 96);
AT(hllm_sparse_layer, struct_size, 0, 4); AT(hllm_sparse_layer, n_neurons, 4, 4); AT(hllm_sparse_layer, n_pred, 8, 4); AT(hllm_sparse_layer, predictor, 12, 4);
AT(hllm_sparse_layer, active, 16, 8); AT(hllm_sparse_layer, hot80, 24, 8); AT(hllm_sparse_layer, overlap, 32, 8); AT(hllm_sparse_layer, predicted, 40, 8);
AT(hllm_sparse_layer, recall, 48, 8); AT(hllm_sparse_layer, energy_kept, 56, 8); AT(hllm_sparse_layer, bytes_dense, 64, 8);
AT(hllm_sparse_layer, bytes_exact, 72, 8); AT(hllm_sparse_layer, bytes_predicted, 80, 8); AT(hllm_sparse_layer, bytes_predictor, 88, 8);

SIZE(hllm_engine_options, 48);
AT(hllm_engine_options, struct_size, 0, 4); AT(hllm_engine_options, load, 4, 4); AT(hllm_engine_options, act, 8, 4);
AT(hllm_engine_options, flags, 12, 4); AT(hllm_engine_options, ram_bytes, 16, 8); AT(hllm_engine_options, progress, 24, 8); AT(hllm_engine_options, session, 32, 8);
AT(hllm_engine_options, mode, 40, 4); AT(hllm_engine_options, reserved0, 44, 4);

SIZE(hllm_session_options, 24);
AT(hllm_session_options, struct_size, 0, 4); AT(hllm_session_options, n_ctx, 4, 4); AT(hllm_session_options, kv, 8, 4);
AT(hllm_session_options, micro_batch, 12, 4); AT(hllm_session_options, progress, 16, 8);

SIZE(hllm_memory_need, 48);
AT(hllm_memory_need, struct_size, 0, 4); AT(hllm_memory_need, reserved0, 4, 4); AT(hllm_memory_need, weights_bytes, 8, 8);
AT(hllm_memory_need, kv_bytes, 16, 8); AT(hllm_memory_need, scratch_bytes, 24, 8); AT(hllm_memory_need, total_bytes, 32, 8);
AT(hllm_memory_need, available_bytes, 40, 8);

SIZE(hllm_session_info, 40);
AT(hllm_session_info, struct_size, 0, 4); AT(hllm_session_info, n_ctx, 4, 4); AT(hllm_session_info, n_tokens, 8, 4);
AT(hllm_session_info, micro_batch, 12, 4); AT(hllm_session_info, kv, 16, 4); AT(hllm_session_info, n_tokens_min, 20, 4);
AT(hllm_session_info, kv_bytes, 24, 8); AT(hllm_session_info, scratch_bytes, 32, 8);

SIZE(hllm_logit_bias, 8);
AT(hllm_logit_bias, token, 0, 4); AT(hllm_logit_bias, bias, 4, 4);

SIZE(hllm_generate_options, 80);
AT(hllm_generate_options, struct_size, 0, 4); AT(hllm_generate_options, max_tokens, 4, 4);
AT(hllm_generate_options, seed, 8, 8); AT(hllm_generate_options, flags, 16, 4);
AT(hllm_generate_options, temperature, 20, 4); AT(hllm_generate_options, top_k, 24, 4);
AT(hllm_generate_options, top_p, 28, 4); AT(hllm_generate_options, min_p, 32, 4);
AT(hllm_generate_options, repeat_penalty, 36, 4); AT(hllm_generate_options, frequency_penalty, 40, 4);
AT(hllm_generate_options, presence_penalty, 44, 4); AT(hllm_generate_options, penalty_last_n, 48, 4);
AT(hllm_generate_options, n_logprobs, 52, 4); AT(hllm_generate_options, n_bias, 56, 4);
AT(hllm_generate_options, n_stop, 60, 4); AT(hllm_generate_options, bias, 64, 8); AT(hllm_generate_options, stop, 72, 8);

SIZE(hllm_poll_result, 40);
AT(hllm_poll_result, struct_size, 0, 4); AT(hllm_poll_result, run, 4, 4); AT(hllm_poll_result, finish, 8, 4);
AT(hllm_poll_result, error, 12, 4); AT(hllm_poll_result, n_prompt, 16, 4); AT(hllm_poll_result, n_prompt_done, 20, 4);
AT(hllm_poll_result, n_reused, 24, 4); AT(hllm_poll_result, n_generated, 28, 4); AT(hllm_poll_result, text_bytes, 32, 8);

SIZE(hllm_token_record, 16);
AT(hllm_token_record, token, 0, 4); AT(hllm_token_record, logprob, 4, 4); AT(hllm_token_record, n_top, 8, 4);
AT(hllm_token_record, text_end, 12, 4);

SIZE(hllm_run_stats, 96);
AT(hllm_run_stats, struct_size, 0, 4); AT(hllm_run_stats, n_prompt, 4, 4); AT(hllm_run_stats, n_generated, 8, 4);
AT(hllm_run_stats, n_reused, 12, 4); AT(hllm_run_stats, prompt_ns, 16, 8); AT(hllm_run_stats, first_token_ns, 24, 8);
AT(hllm_run_stats, decode_ns, 32, 8); AT(hllm_run_stats, decode_bytes_per_token, 40, 8);
AT(hllm_run_stats, memory_peak_bytes, 48, 8); AT(hllm_run_stats, active_share, 56, 8); AT(hllm_run_stats, mode, 64, 8);
AT(hllm_run_stats, decode_weight_bytes, 72, 8);
AT(hllm_run_stats, true_share, 80, 8); AT(hllm_run_stats, ffn_bytes_per_token, 88, 8);

IS(HLLM_OK, 0); IS(HLLM_E_ARG, -1); IS(HLLM_E_NOMEM, -2); IS(HLLM_E_IO, -3); IS(HLLM_E_FORMAT, -4); IS(HLLM_E_TRUNCATED, -5);
IS(HLLM_E_VERSION, -6); IS(HLLM_E_ENDIAN, -7); IS(HLLM_E_LIMIT, -8); IS(HLLM_E_UNSUPPORTED, -9); IS(HLLM_E_MISMATCH, -10);
IS(HLLM_E_STATE, -11); IS(HLLM_E_BUSY, -12); IS(HLLM_E_CANCELLED, -13); IS(HLLM_E_CONTEXT_FULL, -14);
IS(HLLM_E_NUMERIC, -15); IS(HLLM_E_CORRUPT, -16); IS(HLLM_E_NOT_FOUND, -17); IS(HLLM_E_BUFFER, -18); IS(HLLM_E_TIMEOUT, -19);
IS(HLLM_E_INTERNAL, -20); IS(HLLM_LOG_INFO, 1); IS(HLLM_LOG_WARNING, 2); IS(HLLM_MODEL_VOCAB_ONLY, 1); IS(HLLM_VALUE_U8, 0);
IS(HLLM_VALUE_I8, 1); IS(HLLM_VALUE_U16, 2); IS(HLLM_VALUE_I16, 3); IS(HLLM_VALUE_U32, 4); IS(HLLM_VALUE_I32, 5);
IS(HLLM_VALUE_F32, 6); IS(HLLM_VALUE_BOOL, 7); IS(HLLM_VALUE_STRING, 8); IS(HLLM_VALUE_ARRAY, 9); IS(HLLM_VALUE_U64, 10);
IS(HLLM_VALUE_I64, 11); IS(HLLM_VALUE_F64, 12); IS(HLLM_TOKENIZE_NO_SPECIAL, 1); IS(HLLM_TOKENIZE_PARSE_SPECIAL, 2);
IS(HLLM_DETOKENIZE_SPECIAL, 1); IS(HLLM_DETOKENIZE_CONTINUE, 2); IS(HLLM_TOKEN_NORMAL, 1); IS(HLLM_TOKEN_UNKNOWN, 2);
IS(HLLM_TOKEN_CONTROL, 3); IS(HLLM_TOKEN_USER_DEFINED, 4); IS(HLLM_TOKEN_UNUSED, 5); IS(HLLM_TOKEN_BYTE, 6);
IS(HLLM_SPECIAL_BOS, 1); IS(HLLM_SPECIAL_EOS, 2); IS(HLLM_SPECIAL_EOT, 3); IS(HLLM_SPECIAL_UNK, 4); IS(HLLM_SPECIAL_PAD, 5);
IS(HLLM_CHAT_NO_GENERATION_PROMPT, 1); IS(HLLM_CHAT_NO_THINKING, 2); IS(HLLM_LOAD_AUTO, 0); IS(HLLM_LOAD_MMAP, 1);
IS(HLLM_LOAD_READ, 2); IS(HLLM_ACT_Q8, 0); IS(HLLM_ACT_F32, 1); IS(HLLM_KV_F16, 0); IS(HLLM_KV_F32, 1); IS(HLLM_KV_Q8_0, 2);
IS(HLLM_GENERATE_GREEDY, 1); IS(HLLM_GENERATE_IGNORE_EOS, 2); IS(HLLM_GENERATE_PARSE_SPECIAL, 4);
IS(HLLM_GENERATE_NO_SPECIAL, 8); IS(HLLM_GENERATE_APPEND, 16); IS(HLLM_GENERATE_STEP, 32); IS(HLLM_GENERATE_TOKENS, 64);
IS(HLLM_GENERATE_SPECIAL, 128); IS(HLLM_RUN_IDLE, 0); IS(HLLM_RUN_PROMPT, 1); IS(HLLM_RUN_TOKENS, 2);
IS(HLLM_RUN_WAITING, 3); IS(HLLM_RUN_DONE, 4); IS(HLLM_FINISH_NONE, 0); IS(HLLM_FINISH_END_TOKEN, 1);
IS(HLLM_FINISH_STOP_TEXT, 2); IS(HLLM_FINISH_LENGTH, 3); IS(HLLM_FINISH_CONTEXT_FULL, 4); IS(HLLM_FINISH_CANCELLED, 5);
IS(HLLM_FINISH_ERROR, 6); IS(HLLM_MODEL_HEADER_ONLY, 2); IS(HLLM_MODEL_FFN_RELU, 4); IS(HLLM_MODEL_FFN_RELU2, 8);
IS(HLLM_PREPARE_NO_PREDICTORS, 1); IS(HLLM_PREDICTOR_NONE, 0); IS(HLLM_PREDICTOR_LINEAR, 1); IS(HLLM_PREDICTOR_RELU, 2);
IS(HLLM_MODE_EXACT, 0); IS(HLLM_MODE_PREDICTED, 1); IS(HLLM_MODE_THRESHOLDED, 2); IS(HLLM_MODE_DENSE, 3); IS(HLLM_OBJECTIVE_AUTO, 0); IS(HLLM_OBJECTIVE_TIME, 1);
IS(HLLM_OBJECTIVE_IMPACT, 2); IS(HLLM_SOLVER_AUTO, 0); IS(HLLM_SOLVER_BUILTIN, 1); IS(HLLM_SOLVER_GLPK, 2);
IS(HLLM_PROFILE_REMEASURE, 1); IS(HLLM_PLAN_CHECK_MACHINE, 1); IS(HLLM_PLAN_ANSWER, 1); IS(HLLM_PLAN_NEURON, 1); IS(HLLM_PLAN_LAYER, 2);

/* struct_size comes first in every struct that has one: the library reads it before it knows anything else. */
int main(void)
{
    const size_t first[] = { offsetof(hllm_allocator, struct_size), offsetof(hllm_runtime_options, struct_size),
        offsetof(hllm_model_options, struct_size), offsetof(hllm_engine_options, struct_size), offsetof(hllm_session_options, struct_size),
        offsetof(hllm_generate_options, struct_size), offsetof(hllm_poll_result, struct_size) };
    char version[32];
    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++) CHECK(first[i] == 0);
    snprintf(version, sizeof version, "%d.%d.%d", HLLM_VERSION_MAJOR, HLLM_VERSION_MINOR, HLLM_VERSION_PATCH);
    CHECK_MSG(strcmp(version, hllm_version()) == 0, "header %s, library %s", version, hllm_version());
    return check_done();
}
