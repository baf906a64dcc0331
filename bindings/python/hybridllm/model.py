"""Runtime, Model and Engine: any number of threads may use one at once.

Nothing is printed: warnings about files go to the logger "hybridllm".
"""
from __future__ import annotations

import ctypes
import logging
from ctypes import byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypedDict, Union

from . import _ffi
from ._ffi import lib
from ._handles import (Handle, Owner, PathLike, Progress, as_bytes, c_path, c_string, check, choice, copy, create, float_pointer, floats,
                       read_bytes, read_tokens, token_array, unsigned)
from .errors import error_of

if TYPE_CHECKING:
    from array import array

_log = logging.getLogger("hybridllm")
_log.addHandler(logging.NullHandler())
KV = {"f16": _ffi.KV_F16, "f32": _ffi.KV_F32, "q8_0": _ffi.KV_Q8_0}
LOAD = {"auto": _ffi.LOAD_AUTO, "mmap": _ffi.LOAD_MMAP, "read": _ffi.LOAD_READ}
MODE = {"exact": _ffi.MODE_EXACT, "predicted": _ffi.MODE_PREDICTED, "thresholded": _ffi.MODE_THRESHOLDED, "dense": _ffi.MODE_DENSE}
ACT = {"q8": _ffi.ACT_Q8, "f32": _ffi.ACT_F32}


# ---- what getters return ----

class MachineInfo(NamedTuple):
    n_threads: int
    n_cores: int
    n_cpus: int
    memory_bytes: int
    memory_available_bytes: int
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    cpu: str
    isa: str
    isa_known: str


class SparseInfo(NamedTuple):
    by_neurons: bool
    powerinfer: bool
    n_predictors: int
    act: str
    n_tokens: int
    n_measured: int
    nll_exact: float
    nll_predicted: float
    kl_predicted: float


class MachineSpeed(NamedTuple):
    read_bytes_per_s: float
    int8_ops_per_s: float


class MachineRate(NamedTuple):
    isa: str
    n_threads: int
    read_bytes_per_s: float
    gather_bytes_per_s: float
    int8_ops_per_s: float


class MachineProfile(NamedTuple):
    rates: List[MachineRate]
    from_file: bool
    sync_s: float
    disk_bytes_per_s: float
    memory_available_bytes: int


class ModelInfo(NamedTuple):
    gguf_version: int
    family: str
    name: str
    file_bytes: int
    tensor_bytes: int
    n_params: int
    n_layers: int
    n_embd: int
    n_ff: int
    n_vocab: int
    n_heads: int
    n_heads_kv: int
    head_dim_k: int
    head_dim_v: int
    n_ctx_train: int
    window: int
    n_keys: int
    n_tensors: int
    n_shards: int
    flags: int


class TensorInfo(NamedTuple):
    name: str
    type_name: str
    n_dims: int
    shard: int
    dims: List[int]
    bytes: int


class TokenInfo(NamedTuple):
    type: int
    ends_generation: bool
    score: float
    text: bytes


class MemoryNeed(NamedTuple):
    weights_bytes: int
    kv_bytes: int
    scratch_bytes: int
    total_bytes: int
    available_bytes: int


# ---- runtime ----

class Runtime(Owner):
    """Threads, memory and log.  n_threads 0: the physical cores; isa: force a lower CPU kernel table."""

    def __init__(self, *, n_threads: int = 0, isa: Optional[str] = None) -> None:
        text, out = ctypes.create_string_buffer(1024), c_void_p()
        options = _ffi.RuntimeOptions(n_threads=unsigned("n_threads", n_threads), isa=c_string("isa", isa) if isa else None,
                                      error_text=ctypes.addressof(text), error_capacity=len(text))
        rc = lib.hllm_runtime_create(byref(options), byref(out))
        if rc != _ffi.OK:
            raise error_of(rc, text.value.decode("utf-8", "replace"))
        self._own(Handle(out.value, lib.hllm_runtime_free, "runtime"))

    def machine(self) -> MachineInfo:
        raw = _ffi.MachineInfo()
        with self._handle as h:
            check(lib.hllm_runtime_machine(h, byref(raw)), lib.hllm_runtime_last_error, h)
            return copy(MachineInfo, raw)

    def measure(self) -> MachineSpeed:
        """Memory and arithmetic speed of this machine; takes about half a second."""
        raw = _ffi.MachineSpeed()
        with self._handle as h:
            check(lib.hllm_runtime_measure(h, byref(raw)), lib.hllm_runtime_last_error, h)
        return copy(MachineSpeed, raw)

    def profile(self, path: Optional[PathLike] = None, *, model: Optional[PathLike] = None, remeasure: bool = False) -> MachineProfile:
        """What this machine was measured to do: read from path, or measured (some seconds) and written there.  model: a file on the
        disk whose speed counts."""
        options = _ffi.ProfileOptions(flags=_ffi.PROFILE_REMEASURE if remeasure else 0, path=c_path(path) if path is not None else None,
                                      model_path=c_path(model) if model is not None else None)
        out, info, rates = c_void_p(), _ffi.ProfileInfo(), []
        with self._handle as h:
            check(lib.hllm_profile_open(h, byref(options), byref(out)), lib.hllm_runtime_last_error, h)
            try:
                check(lib.hllm_profile_get_info(out, byref(info)), lib.hllm_runtime_last_error, h)
                for index in range(info.n_rates):
                    rate = _ffi.ProfileRate()
                    check(lib.hllm_profile_get_rate(out, index, byref(rate)), lib.hllm_runtime_last_error, h)
                    rates.append(copy(MachineRate, rate))
            finally:
                lib.hllm_profile_free(out)
        return MachineProfile(rates, bool(info.from_file), info.sync_s, info.disk_bytes_per_s, info.memory_available_bytes)

    def log_lines(self) -> List[Tuple[int, str]]:
        """Takes (level, line) pairs out of the log; level 2 is a warning."""
        lines: List[Tuple[int, str]] = []
        level, need, cap = c_uint32(), c_size_t(), 512
        with self._handle as h:
            while True:
                buf = ctypes.create_string_buffer(cap)
                rc = lib.hllm_log_poll(h, byref(level), buf, cap, byref(need))
                if rc == _ffi.E_BUFFER:
                    cap = need.value
                    continue
                check(rc, lib.hllm_runtime_last_error, h)
                if need.value == 0:
                    return lines
                lines.append((level.value, buf.value.decode("utf-8", "replace")))

    def _drain_log(self) -> None:
        for level, line in self.log_lines():
            _log.log(logging.WARNING if level == _ffi.LOG_WARNING else logging.INFO, "%s", line)


# ---- model ----

class Model(Owner):
    """An opened GGUF file: metadata, tensors, tokenizer, chat template.  progress(done, total) is called while it opens."""

    def __init__(self, path: PathLike, *, runtime: Optional[Runtime] = None, vocab_only: bool = False,
                 header_only: bool = False, progress: Optional[Progress] = None) -> None:
        name = c_path(path)
        own = runtime is None
        self.runtime = runtime if runtime is not None else Runtime()
        options = _ffi.ModelOptions(flags=(_ffi.MODEL_VOCAB_ONLY if vocab_only else 0) | (_ffi.MODEL_HEADER_ONLY if header_only else 0))

        def call(watch: Any, out: Any) -> int:
            options.progress = watch
            return int(lib.hllm_model_open(rt, name, byref(options), out))
        try:
            with self.runtime._handle as rt:
                out = create(self.runtime._handle, call, lib.hllm_model_free, lib.hllm_runtime_last_error, rt, progress)
        except BaseException:
            if own:
                self.runtime.close()
            raise
        self._own(Handle(out.value, lib.hllm_model_free, "model"))
        self.runtime._drain_log()
        self.info = self._info()
        self._metadata: Optional[Dict[str, Any]] = None

    def _check(self, rc: int, h: Optional[int]) -> None:
        check(rc, lib.hllm_model_last_error, h)

    def _info(self) -> ModelInfo:
        raw = _ffi.ModelInfo()
        with self._handle as h:
            self._check(lib.hllm_model_get_info(h, byref(raw)), h)
            return copy(ModelInfo, raw)

    # -- metadata --

    def _value(self, h: Optional[int], index: int, element: int, kind: int) -> Any:
        if kind == _ffi.VALUE_STRING:
            text, n = c_void_p(), c_size_t()
            self._check(lib.hllm_model_key_string(h, index, element, byref(text), byref(n)), h)
            return ctypes.string_at(text, n.value).decode("utf-8", "replace") if n.value else ""
        if kind in (_ffi.VALUE_F32, _ffi.VALUE_F64):
            real = c_double()
            self._check(lib.hllm_model_key_float(h, index, element, byref(real)), h)
            return real.value
        whole = c_int64()
        self._check(lib.hllm_model_key_int(h, index, element, byref(whole)), h)
        return bool(whole.value) if kind == _ffi.VALUE_BOOL else whole.value

    def _key(self, h: Optional[int], index: int) -> Any:
        raw = _ffi.KeyInfo()
        self._check(lib.hllm_model_key(h, index, byref(raw)), h)
        return raw

    def _read_key(self, h: Optional[int], index: int, raw: Any) -> Any:
        if raw.type != _ffi.VALUE_ARRAY:
            return self._value(h, index, 0, raw.type)
        return [self._value(h, index, i, raw.element_type) for i in range(raw.n_elements)]

    def value(self, key: str) -> Any:
        """One key of the file: bool, int, float, str, or a list of them.  NotFoundError when it has no such key."""
        index = c_uint32()
        with self._handle as h:
            self._check(lib.hllm_model_find_key(h, c_string("key", key), byref(index)), h)
            return self._read_key(h, index.value, self._key(h, index.value))

    @property
    def metadata(self) -> Dict[str, Any]:
        """All keys but long lists (over 64 elements: use value())."""
        if self._metadata is None:
            found: Dict[str, Any] = {}
            with self._handle as h:
                for index in range(self.info.n_keys):
                    raw = self._key(h, index)
                    if raw.n_elements <= 64:
                        found[raw.name.decode("utf-8", "replace")] = self._read_key(h, index, raw)
            self._metadata = found
        return dict(self._metadata)

    def tensors(self) -> List[TensorInfo]:
        found = []
        with self._handle as h:
            for index in range(self.info.n_tensors):
                raw = _ffi.TensorInfo()
                self._check(lib.hllm_model_tensor(h, index, byref(raw)), h)
                found.append(copy(TensorInfo, raw))
        return found

    def read_tensor(self, name: str, first: int = 0, n: Optional[int] = None) -> "array[float]":
        """Elements as floats: n of them from first on (whole blocks of the tensor's type), or all that follow."""
        index, raw = c_uint32(), _ffi.TensorInfo()
        with self._handle as h:
            self._check(lib.hllm_model_find_tensor(h, c_string("tensor", name), byref(index)), h)
            self._check(lib.hllm_model_tensor(h, index.value, byref(raw)), h)
            if n is None:
                n = max(0, raw.dims[0] * raw.dims[1] * raw.dims[2] * raw.dims[3] - first)
            values = floats(unsigned("n", n, 48))
            self._check(lib.hllm_model_tensor_read(h, index.value, unsigned("first", first, 64), float_pointer(values), n), h)
        return values

    # -- tokens --

    def tokenize(self, text: Union[str, bytes], *, add_special: bool = True, parse_special: bool = False) -> List[int]:
        """parse_special: control tokens spelled out in the text become those tokens; never for users' text."""
        data = as_bytes(text)
        flags = (0 if add_special else _ffi.TOKENIZE_NO_SPECIAL) | (_ffi.TOKENIZE_PARSE_SPECIAL if parse_special else 0)
        with self._handle as h:
            rc, tokens = read_tokens(lambda out, cap, n: lib.hllm_tokenize(h, data, len(data), flags, out, cap, n), len(data) + 8)
            self._check(rc, h)
        return tokens

    def detokenize(self, tokens: Sequence[int], *, special: bool = False, continues: bool = False) -> bytes:
        """The exact bytes, which may end inside a character.  special: control tokens as their text."""
        ids = token_array(tokens)
        flags = (_ffi.DETOKENIZE_SPECIAL if special else 0) | (_ffi.DETOKENIZE_CONTINUE if continues else 0)
        with self._handle as h:
            rc, data = read_bytes(lambda buf, cap, n: lib.hllm_detokenize(h, ids, len(ids), flags, buf, cap, n), 8 * len(ids) + 64)
            self._check(rc, h)
        return data

    def token(self, token: int) -> TokenInfo:
        raw = _ffi.TokenInfo()
        with self._handle as h:
            self._check(lib.hllm_model_token(h, token, byref(raw)), h)
            text = ctypes.string_at(raw.text, raw.text_bytes) if raw.text_bytes else b""
        return TokenInfo(raw.type, bool(raw.ends_generation), raw.score, text)

    def special_token(self, kind: int) -> int:
        """kind: SPECIAL_BOS, ...; -1 when the model has no such token."""
        token = c_int32()
        with self._handle as h:
            self._check(lib.hllm_model_special_token(h, unsigned("kind", kind), byref(token)), h)
        return token.value

    # -- chat --

    def chat_template(self) -> str:
        """The name of the built-in template that equals the model's own; UnsupportedError or NotFoundError if there is none."""
        name = c_char_p()
        with self._handle as h:
            self._check(lib.hllm_chat_template(h, byref(name)), h)
            return (name.value or b"").decode()

    @staticmethod
    def _chat_arguments(messages: Sequence[Mapping[str, Any]], template: Optional[str], generation_prompt: bool,
                        thinking: bool) -> Tuple[Any, Any]:
        items = (_ffi.ChatMessage * len(messages))()
        for item, message in zip(items, messages):
            content = as_bytes(_content(message))
            item.struct_size = ctypes.sizeof(item)
            item.role, item.content, item.content_bytes = c_string("role", message["role"]), content, len(content)
        flags = (0 if generation_prompt else _ffi.CHAT_NO_GENERATION_PROMPT) | (0 if thinking else _ffi.CHAT_NO_THINKING)
        return items, _ffi.ChatOptions(flags=flags, template_name=c_string("template", template) if template else None)

    def chat_render(self, messages: Sequence[Mapping[str, Any]], *, template: Optional[str] = None,
                    generation_prompt: bool = True, thinking: bool = True) -> str:
        """The conversation as text, for reading.  template: a built-in's name; None: the model's own."""
        items, options = self._chat_arguments(messages, template, generation_prompt, thinking)
        with self._handle as h:
            rc, data = read_bytes(lambda buf, cap, n: lib.hllm_chat_render(h, items, len(items), byref(options), buf, cap, n), 4096)
            self._check(rc, h)
        return data.decode("utf-8", "replace")

    def chat_tokenize(self, messages: Sequence[Mapping[str, Any]], *, template: Optional[str] = None,
                      generation_prompt: bool = True, thinking: bool = True) -> List[int]:
        """The conversation as tokens; message texts cannot forge a control token."""
        items, options = self._chat_arguments(messages, template, generation_prompt, thinking)
        with self._handle as h:
            rc, tokens = read_tokens(lambda out, cap, n: lib.hllm_chat_tokenize(h, items, len(items), byref(options), out, cap, n), 1024)
            self._check(rc, h)
        return tokens

    # -- prepared files --

    def prepare(self, path: PathLike, text: Union[str, bytes], *, predictors: bool = True, perplexity_loss: float = 0.0) -> None:
        """Writes a file whose feed-forward neurons can be skipped; text: what the model will be used for.  Takes its time."""
        data = as_bytes(text)
        options = _ffi.PrepareOptions(flags=0 if predictors else _ffi.PREPARE_NO_PREDICTORS, text=data, text_bytes=len(data),
                                      perplexity_loss=perplexity_loss)
        with self._handle as h:
            self._check(lib.hllm_prepare(h, c_path(path), byref(options)), h)

    def sparse(self) -> SparseInfo:
        """What the file says about skipping neurons."""
        raw = _ffi.SparseInfo()
        with self._handle as h:
            self._check(lib.hllm_model_get_sparse(h, byref(raw)), h)
            return SparseInfo(bool(raw.by_neurons), bool(raw.powerinfer), raw.n_predictors, (raw.act or b"").decode(), raw.n_tokens, raw.n_measured,
                              raw.nll_exact, raw.nll_predicted, raw.kl_predicted)

    # -- memory --

    def memory_need(self, *, n_ctx: int = 0, kv: str = "f16", micro_batch: int = 0, load: str = "auto", act: str = "q8",
                    ram_bytes: int = 0) -> MemoryNeed:
        """What an engine and one session would need, before anything is loaded."""
        engine = _engine_options(load, act, ram_bytes)
        session, raw = session_options(n_ctx, kv, micro_batch), _ffi.MemoryNeed()
        with self._handle as h:
            self._check(lib.hllm_model_memory(h, byref(engine), byref(session), byref(raw)), h)
        return copy(MemoryNeed, raw)


def chat_template_names() -> List[str]:
    names: bytes = lib.hllm_chat_template_names()
    return names.decode().split()


def _content(message: Mapping[str, Any]) -> Union[str, bytes]:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, (str, bytes)):
        return content
    for part in content:
        if part.get("type") != "text":
            raise error_of(_ffi.E_UNSUPPORTED, f"message part of type {part.get('type')!r}: only \"text\" is known")
    return "".join(part["text"] for part in content)


# ---- engine ----

class SessionOptions(TypedDict, total=False):
    """What Session takes."""
    n_ctx: int
    kv: str
    micro_batch: int


def _engine_options(load: str, act: str, ram_bytes: int, mode: str = "exact") -> Any:
    return _ffi.EngineOptions(load=choice("load", load, LOAD), act=choice("act", act, ACT),
                              ram_bytes=unsigned("ram_bytes", ram_bytes, 64), mode=choice("mode", mode, MODE))


class Engine(Owner):
    """A model's weights in memory.  load: auto, mmap, read; act: q8 (fast), f32 (reference).  mode: exact, predicted (needs a
    prepared file), dense.  session: the options of the Session that
    is going to be made, such as {"n_ctx": 4096, "kv": "f16"}: its memory counts before anything is loaded."""

    def __init__(self, model: Model, *, load: str = "auto", act: str = "q8", ram_bytes: int = 0, mode: str = "exact",
                 session: Optional[SessionOptions] = None, progress: Optional[Progress] = None) -> None:
        self.model = model
        options = _engine_options(load, act, ram_bytes, mode)
        planned = session_options(**session) if session is not None else None
        options.session = ctypes.addressof(planned) if planned is not None else None

        def call(watch: Any, out: Any) -> int:
            options.progress = watch
            return int(lib.hllm_engine_create(m, byref(options), out))
        with model._handle as m:
            out = create(model.runtime._handle, call, lib.hllm_engine_free, lib.hllm_model_last_error, m, progress)
        self._own(Handle(out.value, lib.hllm_engine_free, "engine"))
        model.runtime._drain_log()


def session_options(n_ctx: int = 0, kv: str = "f16", micro_batch: int = 0) -> Any:
    return _ffi.SessionOptions(n_ctx=unsigned("n_ctx", n_ctx), kv=choice("kv", kv, KV),
                               micro_batch=unsigned("micro_batch", micro_batch))
