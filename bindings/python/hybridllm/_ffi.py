"""The C interface as ctypes sees it: one class per struct, one row per function, nothing else.

A mirror of include/hybrid_llm.h, in its order; tests/python/test_ffi.py compares every offset and every name with a C compiler's
view of the header.  The library is the one inside this package, or the one that the environment variable HYBRIDLLM_LIBRARY names.
ctypes releases the GIL for the whole of every call.
"""
from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, List, Tuple

VERSION = (0, 1, 0)   # of the header that this file mirrors

# ---- status ----
STATUS = {
    "OK": 0, "E_ARG": -1, "E_NOMEM": -2, "E_IO": -3, "E_FORMAT": -4, "E_TRUNCATED": -5, "E_VERSION": -6, "E_ENDIAN": -7,
    "E_LIMIT": -8, "E_UNSUPPORTED": -9, "E_MISMATCH": -10, "E_STATE": -11, "E_BUSY": -12, "E_CANCELLED": -13,
    "E_CONTEXT_FULL": -14, "E_NUMERIC": -15, "E_CORRUPT": -16, "E_NOT_FOUND": -17, "E_BUFFER": -18, "E_TIMEOUT": -19,
    "E_INTERNAL": -20,
}
OK, E_ARG, E_NOMEM, E_UNSUPPORTED, E_STATE, E_CANCELLED = 0, -1, -2, -9, -11, -13
E_CONTEXT_FULL, E_NOT_FOUND, E_BUFFER = -14, -17, -18

# ---- constants that the classes use; the same names as in C without HLLM_ ----
LOG_WARNING = 2
MODEL_VOCAB_ONLY, MODEL_HEADER_ONLY, MODEL_FFN_RELU, MODEL_FFN_RELU2 = 1, 2, 4, 8
MODE_EXACT, MODE_PREDICTED, MODE_THRESHOLDED, MODE_DENSE = 0, 1, 2, 3
PREPARE_NO_PREDICTORS = 1
VALUE_U8, VALUE_I8, VALUE_U16, VALUE_I16, VALUE_U32, VALUE_I32, VALUE_F32, VALUE_BOOL, VALUE_STRING, VALUE_ARRAY = range(10)
VALUE_U64, VALUE_I64, VALUE_F64 = 10, 11, 12
TOKENIZE_NO_SPECIAL, TOKENIZE_PARSE_SPECIAL = 1, 2
DETOKENIZE_SPECIAL, DETOKENIZE_CONTINUE = 1, 2
SPECIAL_BOS, SPECIAL_EOS, SPECIAL_EOT, SPECIAL_UNK, SPECIAL_PAD = 1, 2, 3, 4, 5
CHAT_NO_GENERATION_PROMPT, CHAT_NO_THINKING = 1, 2
OBJECTIVE_AUTO, OBJECTIVE_TIME, OBJECTIVE_IMPACT = 0, 1, 2
SOLVER_AUTO, SOLVER_BUILTIN, SOLVER_GLPK = 0, 1, 2
PLAN_CHECK_MACHINE, PLAN_ANSWER, PLAN_NEURON, PLAN_LAYER = 1, 1, 1, 2
PROFILE_REMEASURE = 1
LOAD_AUTO, LOAD_MMAP, LOAD_READ = 0, 1, 2
ACT_Q8, ACT_F32 = 0, 1
KV_F16, KV_F32, KV_Q8_0 = 0, 1, 2
GENERATE_GREEDY, GENERATE_IGNORE_EOS, GENERATE_PARSE_SPECIAL, GENERATE_NO_SPECIAL = 1, 2, 4, 8
GENERATE_APPEND, GENERATE_STEP, GENERATE_TOKENS, GENERATE_SPECIAL = 16, 32, 64, 128
RUN_IDLE, RUN_PROMPT, RUN_TOKENS, RUN_WAITING, RUN_DONE = 0, 1, 2, 3, 4
FINISH_NONE, FINISH_END_TOKEN, FINISH_STOP_TEXT, FINISH_LENGTH, FINISH_CONTEXT_FULL, FINISH_CANCELLED, FINISH_ERROR = range(7)


class Struct(ctypes.Structure):
    """A struct that begins with its own size."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.struct_size = ctypes.sizeof(self)


def _fields(*groups: Tuple[Any, str]) -> List[Tuple[str, Any]]:
    return [(name, ctype) for ctype, names in groups for name in names.split()]


class Allocator(Struct):
    _fields_ = _fields((c_uint32, "struct_size reserved0"), (c_void_p, "user alloc free"))


class RuntimeOptions(Struct):
    _fields_ = _fields((c_uint32, "struct_size n_threads"), (POINTER(Allocator), "allocator"), (c_char_p, "isa"),
                       (c_void_p, "error_text"), (c_size_t, "error_capacity"))


class MachineInfo(Struct):
    _fields_ = _fields((c_uint32, "struct_size n_threads n_cores n_cpus"),
                       (c_uint64, "memory_bytes memory_available_bytes l1d_bytes l2_bytes l3_bytes"),
                       (c_char_p, "cpu isa isa_known"))


class MachineSpeed(Struct):
    _fields_ = _fields((c_uint32, "struct_size reserved0"), (c_double, "read_bytes_per_s int8_ops_per_s"))


class ProfileOptions(Struct):
    _fields_ = _fields((c_uint32, "struct_size flags"), (c_char_p, "path model_path"))


class ProfileInfo(Struct):
    _fields_ = _fields((c_uint32, "struct_size n_rates from_file n_gpus"), (c_double, "sync_s disk_bytes_per_s"),
                       (c_uint64, "memory_available_bytes"))


class ProfileRate(Struct):
    _fields_ = _fields((c_uint32, "struct_size n_threads"), (c_char_p, "isa"),
                       (c_double, "read_bytes_per_s gather_bytes_per_s int8_ops_per_s"))


class ModelOptions(Struct):
    _fields_ = _fields((c_uint32, "struct_size flags"), (c_void_p, "progress"))


class ModelInfo(Struct):
    _fields_ = _fields((c_uint32, "struct_size gguf_version"), (c_char_p, "family name"),
                       (c_uint64, "file_bytes tensor_bytes n_params"),
                       (c_uint32, "n_layers n_embd n_ff n_vocab n_heads n_heads_kv head_dim_k head_dim_v n_ctx_train window"
                                  " n_keys n_tensors n_shards flags"))


class KeyInfo(Struct):
    _fields_ = _fields((c_uint32, "struct_size type element_type reserved0"), (c_uint64, "n_elements"), (c_char_p, "name"))


class TensorInfo(Struct):
    _fields_ = _fields((c_uint32, "struct_size type"), (c_char_p, "name type_name"), (c_uint32, "n_dims shard"),
                       (c_uint64 * 4, "dims"), (c_uint64, "bytes"))


class TokenInfo(Struct):
    # text is not NUL-ended: a pointer and a length
    _fields_ = _fields((c_uint32, "struct_size type ends_generation"), (c_float, "score"), (c_void_p, "text"),
                       (c_size_t, "text_bytes"))


class ChatMessage(Struct):
    _fields_ = _fields((c_uint32, "struct_size reserved0"), (c_char_p, "role content"), (c_size_t, "content_bytes"))


class ChatOptions(Struct):
    _fields_ = _fields((c_uint32, "struct_size flags"), (c_char_p, "template_name"))


class PlanShortage(Struct):
    _fields_ = _fields((c_uint32, "struct_size n_ctx_fits"), (c_uint64, "bytes_needed bytes_available"))


class PlanGpu(Struct):
    _fields_ = _fields((c_uint32, "struct_size reserved0"), (c_uint64, "budget_bytes"), (c_double, "bytes_per_s sync_s"))


class PlanOptions(Struct):
    _fields_ = _fields((c_uint32, "struct_size objective solver flags"), (c_double, "time_limit_s"),
                       (c_char_p, "module_dir"), (POINTER(PlanShortage), "shortage"), (c_uint32, "n_ctx kv"),
                       (c_uint64, "cpu_budget_bytes"), (c_double, "cpu_bytes_per_s"), (POINTER(PlanGpu), "gpus"),
                       (c_uint32, "n_gpus reserved0"))


class PlanInfo(Struct):
    _fields_ = _fields((c_uint32, "struct_size kind objective_kind n_layers n_devices k"),
                       (c_double, "objective bound gap seconds_per_token solve_s"), (c_char_p, "solver"),
                       (c_uint64, "model_hash model_bytes"), (c_uint32, "n_ctx uniform"))


class PlanDevice(Struct):
    _fields_ = _fields((c_uint32, "struct_size n_parts n_layers n_layers_gpu"), (c_uint64, "budget_bytes bytes"),
                       (c_double, "seconds"), (c_char_p, "name"))


class PlanPart(Struct):
    _fields_ = _fields((c_uint32, "struct_size reserved0"), (c_uint64, "bytes"), (c_double, "seconds"),
                       (c_char_p, "kind"))


class PlanLayer(Struct):
    _fields_ = _fields((c_uint32, "struct_size"), (c_int32, "gpu"), (c_uint64, "n_neurons n_neurons_gpu"),
                       (c_uint32, "device on_gpu"))


class EngineOptions(Struct):
    _fields_ = _fields((c_uint32, "struct_size load act flags"), (c_uint64, "ram_bytes"), (c_void_p, "progress session"),
                       (c_uint32, "mode reserved0"))


class SessionOptions(Struct):
    _fields_ = _fields((c_uint32, "struct_size n_ctx kv micro_batch"), (c_void_p, "progress"))


class PrepareOptions(Struct):
    _fields_ = _fields((c_uint32, "struct_size flags"), (c_char_p, "text"), (c_size_t, "text_bytes"), (c_void_p, "progress"),
                       (c_double, "perplexity_loss skip_share"))


class SparseInfo(Struct):
    _fields_ = _fields((c_uint32, "struct_size by_neurons powerinfer n_predictors"), (c_char_p, "act"), (c_uint64, "n_tokens n_measured"),
                       (c_double, "nll_exact nll_predicted kl_predicted"), (c_uint32, "n_thresholds reserved0"))


class SparseLayer(Struct):
    _fields_ = _fields((c_uint32, "struct_size n_neurons n_pred predictor"),
                       (c_double, "active hot80 overlap predicted recall energy_kept"),
                       (c_uint64, "bytes_dense bytes_exact bytes_predicted bytes_predictor"))


class MemoryNeed(Struct):
    _fields_ = _fields((c_uint32, "struct_size reserved0"),
                       (c_uint64, "weights_bytes kv_bytes scratch_bytes total_bytes available_bytes"))


class SessionInfo(Struct):
    _fields_ = _fields((c_uint32, "struct_size n_ctx n_tokens micro_batch kv n_tokens_min"), (c_uint64, "kv_bytes scratch_bytes"))


class LogitBias(ctypes.Structure):
    _fields_ = _fields((c_int32, "token"), (c_float, "bias"))


class GenerateOptions(Struct):
    _fields_ = _fields((c_uint32, "struct_size max_tokens"), (c_uint64, "seed"), (c_uint32, "flags"), (c_float, "temperature"),
                       (c_int32, "top_k"), (c_float, "top_p min_p repeat_penalty frequency_penalty presence_penalty"),
                       (c_uint32, "penalty_last_n n_logprobs n_bias n_stop"), (POINTER(LogitBias), "bias"),
                       (POINTER(c_char_p), "stop"))


class PollResult(Struct):
    _fields_ = _fields((c_uint32, "struct_size run finish"), (c_int32, "error"),
                       (c_uint32, "n_prompt n_prompt_done n_reused n_generated"), (c_size_t, "text_bytes"))


class TokenRecord(ctypes.Structure):
    _fields_ = _fields((c_int32, "token"), (c_float, "logprob"), (c_uint32, "n_top text_end"))


class RunStats(Struct):
    _fields_ = _fields((c_uint32, "struct_size n_prompt n_generated n_reused"),
                       (c_uint64, "prompt_ns first_token_ns decode_ns decode_bytes_per_token memory_peak_bytes"),
                       (c_double, "active_share"), (c_char_p, "mode"), (c_uint64, "decode_weight_bytes"), (c_double, "true_share"),
                       (c_uint64, "ffn_bytes_per_token"))


# Letters for the rows below.  Bytes that come back through a pointer use P; buffers that C writes use B (a ctypes array).
_P, _I, _U, _Z, _S, _L = c_void_p, c_int32, c_uint32, c_size_t, c_char_p, c_uint64
_B = c_void_p
_PP, _PI, _PU, _PZ, _PL = POINTER(c_void_p), POINTER(c_int32), POINTER(c_uint32), POINTER(c_size_t), POINTER(c_uint64)
_PF, _PS = POINTER(c_float), POINTER(c_char_p)


def _to(struct: Any) -> Any:
    return POINTER(struct)


FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "hllm_status_name": (_S, [_I]),
    "hllm_version": (_S, []),
    # runtime
    "hllm_runtime_create": (_I, [_to(RuntimeOptions), _PP]),
    "hllm_runtime_free": (None, [_P]),
    "hllm_runtime_last_error": (_Z, [_P, _B, _Z]),
    "hllm_log_poll": (_I, [_P, _PU, _B, _Z, _PZ]),
    "hllm_runtime_machine": (_I, [_P, _to(MachineInfo)]),
    "hllm_runtime_measure": (_I, [_P, _to(MachineSpeed)]),
    "hllm_profile_open": (_I, [_P, _to(ProfileOptions), _PP]),
    "hllm_profile_free": (None, [_P]),
    "hllm_profile_get_info": (_I, [_P, _to(ProfileInfo)]),
    "hllm_profile_get_rate": (_I, [_P, _U, _to(ProfileRate)]),
    "hllm_progress_create": (_I, [_P, _PP]),
    "hllm_progress_free": (None, [_P]),
    "hllm_progress_read": (_I, [_P, _PL, _PL]),
    "hllm_progress_cancel": (_I, [_P]),
    # model
    "hllm_model_open": (_I, [_P, _S, _to(ModelOptions), _PP]),
    "hllm_model_open_fd": (_I, [_P, _I, _L, _L, _to(ModelOptions), _PP]),
    "hllm_model_free": (None, [_P]),
    "hllm_model_last_error": (_Z, [_P, _B, _Z]),
    "hllm_model_get_info": (_I, [_P, _to(ModelInfo)]),
    "hllm_model_get_sparse": (_I, [_P, _to(SparseInfo)]),
    "hllm_model_get_sparse_layer": (_I, [_P, _U, _to(SparseLayer)]),
    "hllm_prepare": (_I, [_P, _S, _to(PrepareOptions)]),
    "hllm_model_key": (_I, [_P, _U, _to(KeyInfo)]),
    "hllm_model_find_key": (_I, [_P, _S, _PU]),
    "hllm_model_key_int": (_I, [_P, _U, _L, POINTER(c_int64)]),
    "hllm_model_key_float": (_I, [_P, _U, _L, POINTER(c_double)]),
    "hllm_model_key_string": (_I, [_P, _U, _L, _PP, _PZ]),
    "hllm_model_tensor": (_I, [_P, _U, _to(TensorInfo)]),
    "hllm_model_find_tensor": (_I, [_P, _S, _PU]),
    "hllm_model_tensor_read": (_I, [_P, _U, _L, _PF, _Z]),
    # tokens
    "hllm_tokenize": (_I, [_P, _S, _Z, _U, _PI, _Z, _PZ]),
    "hllm_detokenize": (_I, [_P, _PI, _Z, _U, _B, _Z, _PZ]),
    "hllm_model_token": (_I, [_P, _I, _to(TokenInfo)]),
    "hllm_model_special_token": (_I, [_P, _U, _PI]),
    # chat
    "hllm_chat_template_names": (_S, []),
    "hllm_chat_template": (_I, [_P, _PS]),
    "hllm_chat_render": (_I, [_P, _to(ChatMessage), _Z, _to(ChatOptions), _B, _Z, _PZ]),
    "hllm_chat_tokenize": (_I, [_P, _to(ChatMessage), _Z, _to(ChatOptions), _PI, _Z, _PZ]),
    # plans
    "hllm_plan_solve": (_I, [_P, _to(PlanOptions), _PP]),
    "hllm_plan_solve_problem": (_I, [_P, _S, _Z, _to(PlanOptions), _PP]),
    "hllm_plan_read": (_I, [_P, _S, _Z, _PP]),
    "hllm_plan_free": (None, [_P]),
    "hllm_plan_last_error": (_Z, [_P, _B, _Z]),
    "hllm_plan_check": (_I, [_P, _P, _U]),
    "hllm_plan_write": (_I, [_P, _U, _B, _Z, _PZ]),
    "hllm_plan_draw": (_I, [_P, _B, _Z, _PZ]),
    "hllm_plan_get_info": (_I, [_P, _to(PlanInfo)]),
    "hllm_plan_get_device": (_I, [_P, _U, _to(PlanDevice)]),
    "hllm_plan_get_part": (_I, [_P, _U, _U, _to(PlanPart)]),
    "hllm_plan_get_layer": (_I, [_P, _U, _to(PlanLayer)]),
    # engine
    "hllm_model_memory": (_I, [_P, _to(EngineOptions), _to(SessionOptions), _to(MemoryNeed)]),
    "hllm_engine_create": (_I, [_P, _to(EngineOptions), _PP]),
    "hllm_engine_free": (None, [_P]),
    "hllm_engine_last_error": (_Z, [_P, _B, _Z]),
    # session
    "hllm_session_create": (_I, [_P, _to(SessionOptions), _PP]),
    "hllm_session_free": (None, [_P]),
    "hllm_session_last_error": (_Z, [_P, _B, _Z]),
    "hllm_session_get_info": (_I, [_P, _to(SessionInfo)]),
    "hllm_session_tokens": (_I, [_P, _PI, _Z, _PZ]),
    "hllm_session_eval": (_I, [_P, _PI, _Z]),
    "hllm_session_logits": (_I, [_P, _U, _PF, _Z]),
    "hllm_session_embedding": (_I, [_P, _U, _PF, _Z]),
    "hllm_session_rewind": (_I, [_P, _U]),
    "hllm_session_fork": (_I, [_P, _PP]),
    "hllm_session_save": (_I, [_P, _S]),
    "hllm_session_load": (_I, [_P, _S]),
    # generate
    "hllm_generate_start": (_I, [_P, _S, _Z, _to(GenerateOptions)]),
    "hllm_generate_start_tokens": (_I, [_P, _PI, _Z, _to(GenerateOptions)]),
    "hllm_generate_poll": (_I, [_P, _I, _B, _Z, _to(PollResult)]),
    "hllm_generate_poll_tokens": (_I, [_P, _to(TokenRecord), _to(LogitBias), _Z, _PZ]),
    "hllm_generate_logits": (_I, [_P, _PF, _Z]),
    "hllm_generate_continue": (_I, [_P, POINTER(c_uint8), _Z]),
    "hllm_generate_cancel": (_I, [_P]),
    "hllm_session_stats": (_I, [_P, _to(RunStats)]),
}


def _load() -> ctypes.CDLL:
    path = os.environ.get("HYBRIDLLM_LIBRARY") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "libhybridllm.so")
    try:
        library = ctypes.CDLL(path)
        for name, (restype, argtypes) in FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = restype, argtypes
    except (OSError, AttributeError) as error:
        raise ImportError(f"hybridllm cannot use its library {path}: {error} (installed by: pip install ./bindings/python)") from None
    version = library.hllm_version().decode()
    if version.split(".")[:2] != [str(n) for n in VERSION[:2]]:
        raise ImportError(f"hybridllm {VERSION[0]}.{VERSION[1]} found {path} of version {version}")
    return library


lib: Any = _load()
