/* header_functions.h: every public function, for header_c11.c and header_cxx17.cpp; tests/abi/symbols.sh compares the list with the
 * header's own. */
#define HEADER_FUNCTIONS(USE) \
    USE(hllm_chat_render) USE(hllm_chat_template) USE(hllm_chat_template_names) USE(hllm_chat_tokenize) USE(hllm_detokenize) \
    USE(hllm_engine_create) USE(hllm_engine_free) USE(hllm_engine_last_error) USE(hllm_generate_cancel) \
    USE(hllm_generate_continue) USE(hllm_generate_logits) USE(hllm_generate_poll) USE(hllm_generate_poll_tokens) \
    USE(hllm_generate_start) USE(hllm_generate_start_tokens) USE(hllm_log_poll) USE(hllm_model_find_key) \
    USE(hllm_model_find_tensor) USE(hllm_model_free) USE(hllm_model_get_info) USE(hllm_model_get_sparse) USE(hllm_model_get_sparse_layer) USE(hllm_model_key) USE(hllm_model_key_float) \
    USE(hllm_model_key_int) USE(hllm_model_key_string) USE(hllm_model_last_error) USE(hllm_model_memory) \
    USE(hllm_model_open) USE(hllm_model_open_fd) USE(hllm_model_special_token) USE(hllm_model_tensor) \
    USE(hllm_model_tensor_read) USE(hllm_model_token) USE(hllm_plan_check) USE(hllm_plan_draw) USE(hllm_plan_free) USE(hllm_plan_get_device) USE(hllm_plan_get_info) USE(hllm_plan_get_layer) \
    USE(hllm_plan_get_part) USE(hllm_plan_last_error) USE(hllm_plan_read) USE(hllm_plan_solve) USE(hllm_plan_solve_problem) USE(hllm_plan_write) \
    USE(hllm_prepare) USE(hllm_profile_free) USE(hllm_profile_get_info) USE(hllm_profile_get_rate) USE(hllm_profile_open) \
    USE(hllm_progress_cancel) USE(hllm_progress_create) \
    USE(hllm_progress_free) USE(hllm_progress_read) USE(hllm_runtime_create) USE(hllm_runtime_free) \
    USE(hllm_runtime_last_error) USE(hllm_runtime_machine) USE(hllm_runtime_measure) USE(hllm_session_create) \
    USE(hllm_session_embedding) USE(hllm_session_eval) USE(hllm_session_fork) USE(hllm_session_free) \
    USE(hllm_session_get_info) USE(hllm_session_last_error) USE(hllm_session_load) USE(hllm_session_logits) \
    USE(hllm_session_rewind) USE(hllm_session_save) USE(hllm_session_stats) USE(hllm_session_tokens) USE(hllm_status_name) \
    USE(hllm_tokenize) USE(hllm_version)
