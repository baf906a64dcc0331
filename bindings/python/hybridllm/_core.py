"""Runtime, Model, Engine, Session, Generation and Steps: the C handles as classes.

Threads: Model and Engine may be used by many threads at once.  A Session runs one thing at a time: calls of other threads wait for
their turn, also for the end of a generation that another thread is reading.  A thread that starts a new generation ends its own
unfinished one first.  cancel() may be called from anywhere.  Nothing is printed: warnings about files go to the logger "hybridllm".
"""
from __future__ import annotations

import ctypes
import logging
import threading
import weakref
from array import array
from collections import deque
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_void_p
from typing import Any, Deque, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar, Union

from . import _ffi
from ._ffi import lib
from ._handles import (Handle, Owner, PathLike, Progress, as_bytes, c_path, c_string, check, create, error_text, read_bytes,
                       read_tokens, run_slow, token_array, unsigned)
from .errors import StateError, error_of

POLL_MS = 20   # Ctrl-C waits for one poll at most
_log = logging.getLogger("hybridllm")
_log.addHandler(logging.NullHandler())
_T = TypeVar("_T", bound=Any)
Prompt = Union[str, bytes, Sequence[int]]
KV = {"f16": _ffi.KV_F16, "f32": _ffi.KV_F32, "q8_0": _ffi.KV_Q8_0}
LOAD = {"auto": _ffi.LOAD_AUTO, "mmap": _ffi.LOAD_MMAP, "read": _ffi.LOAD_READ}
ACT = {"q8": _ffi.ACT_Q8, "f32": _ffi.ACT_F32}


def _choice(name: str, value: str, known: Mapping[str, int]) -> int:
    if value not in known:
        raise error_of(_ffi.E_ARG, f"{name} is {value!r}, expected one of {', '.join(known)}")
    return known[value]


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


class MachineSpeed(NamedTuple):
    read_bytes_per_s: float
    int8_ops_per_s: float


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


class SessionInfo(NamedTuple):
    n_ctx: int
    n_tokens: int
    micro_batch: int
    kv: int
    n_tokens_min: int
    kv_bytes: int
    scratch_bytes: int


class RunStats(NamedTuple):
    n_prompt: int
    n_generated: int
    n_reused: int
    prompt_ns: int
    first_token_ns: int
    decode_ns: int
    decode_bytes_per_token: int
    memory_peak_bytes: int
    active_share: float
    mode: str


class TokenRecord(NamedTuple):
    """A generated token.  text_end: bytes of generated text when this token's text is complete."""
    token: int
    logprob: float
    text_end: int
    top: List[Tuple[int, float]]


def _copy(cls: Type[_T], raw: Any) -> _T:
    """A struct as its NamedTuple: same names, bytes as str, arrays as lists."""
    values: List[Any] = []
    for name in cls._fields:
        value = getattr(raw, name)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif isinstance(value, ctypes.Array):
            value = list(value)
        values.append(value)
    made: _T = cls(*values)
    return made


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
            return _copy(MachineInfo, raw)

    def measure(self) -> MachineSpeed:
        """Memory and arithmetic speed of this machine; takes about half a second."""
        raw = _ffi.MachineSpeed()
        with self._handle as h:
            check(lib.hllm_runtime_measure(h, byref(raw)), lib.hllm_runtime_last_error, h)
        return _copy(MachineSpeed, raw)

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
                 progress: Optional[Progress] = None) -> None:
        name = c_path(path)
        own = runtime is None
        self.runtime = runtime if runtime is not None else Runtime()
        options = _ffi.ModelOptions(flags=_ffi.MODEL_VOCAB_ONLY if vocab_only else 0)

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
            return _copy(ModelInfo, raw)

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
                found.append(_copy(TensorInfo, raw))
        return found

    def read_tensor(self, name: str, first: int = 0, n: Optional[int] = None) -> "array[float]":
        """Elements as floats: n of them from first on (whole blocks of the tensor's type), or all that follow."""
        index, raw = c_uint32(), _ffi.TensorInfo()
        with self._handle as h:
            self._check(lib.hllm_model_find_tensor(h, c_string("tensor", name), byref(index)), h)
            self._check(lib.hllm_model_tensor(h, index.value, byref(raw)), h)
            if n is None:
                n = max(0, raw.dims[0] * raw.dims[1] * raw.dims[2] * raw.dims[3] - first)
            values = _floats(unsigned("n", n, 48))
            self._check(lib.hllm_model_tensor_read(h, index.value, unsigned("first", first, 64), _float_pointer(values), n), h)
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

    # -- memory --

    def memory_need(self, *, n_ctx: int = 0, kv: str = "f16", micro_batch: int = 0, load: str = "auto", act: str = "q8",
                    ram_bytes: int = 0) -> MemoryNeed:
        """What an engine and one session would need, before anything is loaded."""
        engine = _engine_options(load, act, ram_bytes)
        session, raw = _session_options(n_ctx, kv, micro_batch), _ffi.MemoryNeed()
        with self._handle as h:
            self._check(lib.hllm_model_memory(h, byref(engine), byref(session), byref(raw)), h)
        return _copy(MemoryNeed, raw)


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


def _floats(n: int) -> "array[float]":
    return array("f", bytes(4 * n))


def _float_pointer(values: "array[float]") -> Any:
    return (c_float * len(values)).from_buffer(values) if len(values) else (c_float * 0)()


# ---- engine ----

def _engine_options(load: str, act: str, ram_bytes: int) -> Any:
    return _ffi.EngineOptions(load=_choice("load", load, LOAD), act=_choice("act", act, ACT),
                              ram_bytes=unsigned("ram_bytes", ram_bytes, 64))


class Engine(Owner):
    """A model's weights in memory.  load: auto, mmap, read; act: q8 (fast), f32 (reference)."""

    def __init__(self, model: Model, *, load: str = "auto", act: str = "q8", ram_bytes: int = 0,
                 progress: Optional[Progress] = None) -> None:
        self.model = model
        options = _engine_options(load, act, ram_bytes)

        def call(watch: Any, out: Any) -> int:
            options.progress = watch
            return int(lib.hllm_engine_create(m, byref(options), out))
        with model._handle as m:
            out = create(model.runtime._handle, call, lib.hllm_engine_free, lib.hllm_model_last_error, m, progress)
        self._own(Handle(out.value, lib.hllm_engine_free, "engine"))
        model.runtime._drain_log()


# ---- session ----

def _session_options(n_ctx: int, kv: str, micro_batch: int) -> Any:
    return _ffi.SessionOptions(n_ctx=unsigned("n_ctx", n_ctx), kv=_choice("kv", kv, KV),
                               micro_batch=unsigned("micro_batch", micro_batch))


class Session(Owner):
    """One conversation: KV cache and position.  n_ctx 0: the smaller of the model's and 4,096; kv: f16, f32, q8_0."""

    def __init__(self, engine: Engine, *, n_ctx: int = 0, kv: str = "f16", micro_batch: int = 0) -> None:
        options, out = _session_options(n_ctx, kv, micro_batch), c_void_p()
        with engine._handle as e:
            check(lib.hllm_session_create(e, byref(options), byref(out)), lib.hllm_engine_last_error, e)
        self._adopt(engine, out)

    def _adopt(self, engine: Engine, out: c_void_p) -> None:
        self.engine, self.model = engine, engine.model
        handle = Handle(out.value, lib.hllm_session_free, "session")
        self._turn = threading.Condition(threading.RLock())   # held during every call that is not const in C
        self._serial = 0                                       # of the latest generation
        self._reader: Optional[int] = None                     # the thread that reads it, while it is unfinished

        def close() -> None:   # no reference to self here
            _cancel(handle)
            handle.close()
        self._own(handle, close)

    def close(self) -> None:
        super().close()
        with self._turn:
            self._reader = None
            self._turn.notify_all()

    def _check(self, rc: int, h: Optional[int]) -> None:
        check(rc, lib.hllm_session_last_error, h)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Several calls in one turn: other threads wait until the with block ends."""
        with self._alone():
            yield

    @contextmanager
    def _alone(self) -> Iterator[Optional[int]]:
        """Waits until no other thread is inside or reads a generation.  Yields the pointer."""
        with self._turn:
            while self._reader is not None and self._reader != threading.get_ident():
                self._turn.wait()
            with self._handle as h:
                yield h

    # -- const: any thread, at any time --

    def info(self) -> SessionInfo:
        raw = _ffi.SessionInfo()
        with self._handle as h:
            self._check(lib.hllm_session_get_info(h, byref(raw)), h)
        return _copy(SessionInfo, raw)

    def stats(self) -> RunStats:
        """Of the last generation."""
        raw = _ffi.RunStats()
        with self._handle as h:
            self._check(lib.hllm_session_stats(h, byref(raw)), h)
            return _copy(RunStats, raw)

    def tokens(self) -> List[int]:
        """The tokens in the KV cache."""
        with self._handle as h:
            rc, tokens = read_tokens(lambda out, cap, n: lib.hllm_session_tokens(h, out, cap, n), 4096)
            self._check(rc, h)
        return tokens

    def cancel(self) -> None:
        """From any thread: ends what runs within one layer's work; its reader gets CancelledError."""
        _cancel(self._handle)

    # -- one at a time --

    def eval(self, tokens: Sequence[int]) -> None:
        """Computes tokens at the next positions."""
        ids = token_array(tokens)
        with self._alone() as h:
            self._check(run_slow(lambda: int(lib.hllm_session_eval(h, ids, len(ids))), self.cancel), h)

    def logits(self, position: Optional[int] = None) -> "array[float]":
        """After a position of the last micro-batch; None: the last position."""
        return self._row(lib.hllm_session_logits, position, self.model.info.n_vocab)

    def embedding(self, position: Optional[int] = None) -> "array[float]":
        """The hidden state after the last norm, likewise."""
        return self._row(lib.hllm_session_embedding, position, self.model.info.n_embd)

    def _row(self, call: Any, position: Optional[int], n: int) -> "array[float]":
        values = _floats(n)
        with self._alone() as h:
            at = self.info().n_tokens - 1 if position is None else position
            if at < 0:
                raise error_of(_ffi.E_STATE, f"position {at}: nothing was computed yet")
            self._check(call(h, unsigned("position", at), _float_pointer(values), n), h)
        return values

    def rewind(self, n_tokens: int = 0) -> None:
        """Forgets everything from position n_tokens on."""
        with self._alone() as h:
            self._check(lib.hllm_session_rewind(h, unsigned("n_tokens", n_tokens)), h)

    def fork(self) -> "Session":
        """A new session on the same engine with the same contents."""
        out = c_void_p()
        with self._alone() as h:
            self._check(lib.hllm_session_fork(h, byref(out)), h)
        twin = Session.__new__(Session)
        twin._adopt(self.engine, out)
        return twin

    def save(self, path: PathLike) -> None:
        """Writes tokens and KV cache to a file."""
        with self._alone() as h:
            self._check(lib.hllm_session_save(h, c_path(path)), h)

    def load(self, path: PathLike) -> None:
        """Restores a saved file of the same model; on an error the session is as it was."""
        with self._alone() as h:
            self._check(lib.hllm_session_load(h, c_path(path)), h)

    def generate(self, prompt: Prompt, **options: Any) -> "Generation":
        """Starts answering and returns an iterator of text.  prompt: text, or tokens taken as they are.

        Options, where 0 means the file's default: max_tokens (0: until the end), seed, temperature (0: the file's or else greedy),
        top_k (-1: off), top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty, penalty_last_n, stop (texts), logit_bias
        ({token: bias}), n_logprobs; and switches: greedy, ignore_eos, parse_special, add_special (True), append (the prompt follows
        what the session holds), special (control tokens appear in the text), records (keep .records: one TokenRecord per token).
        """
        return Generation(self, prompt, options)

    def steps(self, prompt: Prompt, **options: Any) -> "Steps":
        """Generates step by step: see Steps.  Options as in generate()."""
        return Steps(self, prompt, options)


def _cancel(handle: Handle) -> None:
    if not handle.closed:
        try:
            with handle as h:
                lib.hllm_generate_cancel(h)
        except Exception:   # closed meanwhile, or a forked child: nothing runs
            pass


# ---- generate ----

_SWITCHES = {"greedy": _ffi.GENERATE_GREEDY, "ignore_eos": _ffi.GENERATE_IGNORE_EOS, "parse_special": _ffi.GENERATE_PARSE_SPECIAL,
             "append": _ffi.GENERATE_APPEND, "special": _ffi.GENERATE_SPECIAL, "records": _ffi.GENERATE_TOKENS}
_NUMBERS = ("temperature", "top_p", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty")
_FINISH: Dict[int, str] = {_ffi.FINISH_END_TOKEN: "stop", _ffi.FINISH_STOP_TEXT: "stop", _ffi.FINISH_LENGTH: "length",
                           _ffi.FINISH_CONTEXT_FULL: "length"}


def _generate_options(given: Mapping[str, Any], flags: int) -> Any:
    """The C struct; it keeps alive what it points to."""
    options, left = _ffi.GenerateOptions(), dict(given)
    for name, flag in _SWITCHES.items():
        flags |= flag if left.pop(name, False) else 0
    if not left.pop("add_special", True):
        flags |= _ffi.GENERATE_NO_SPECIAL
    for name in _NUMBERS:
        setattr(options, name, left.pop(name, 0.0))
    for name in ("max_tokens", "penalty_last_n", "n_logprobs"):
        setattr(options, name, unsigned(name, left.pop(name, 0)))
    options.seed = unsigned("seed", left.pop("seed", 0), 64)
    top_k = left.pop("top_k", 0)
    if not -1 <= top_k < 1 << 31:
        raise error_of(_ffi.E_ARG, f"top_k is {top_k}, expected -1 to {(1 << 31) - 1}")
    options.top_k = top_k
    stop = left.pop("stop", None) or []
    texts = [c_string("stop text", text) for text in ([stop] if isinstance(stop, (str, bytes)) else stop)]
    bias: Mapping[Any, float] = left.pop("logit_bias", None) or {}
    if left:
        raise TypeError(f"generate() got an unexpected keyword argument {sorted(left)[0]!r}")
    options.flags = flags
    options.n_stop, options.n_bias = len(texts), len(bias)
    if texts:
        options.stop = (c_char_p * len(texts))(*texts)
    if bias:
        pairs = [_ffi.LogitBias(unsigned("logit_bias token", int(token), 31), value) for token, value in bias.items()]
        options.bias = (_ffi.LogitBias * len(pairs))(*pairs)
    return options


class Generation:
    """A running answer: iterate for its text, in whole code points.  Ending the iteration early, close(), an exception and Ctrl-C
    cancel it; when close() returns nothing runs any more.  A failed generation raises its error from next().

    finish_reason "stop" or "length" and finish (the C value) when it has ended; n_prompt, n_prompt_done, n_reused, n_generated as
    they grow; records: the TokenRecords of tokens so far that nobody has taken out, if asked for.
    """

    def __init__(self, session: Session, prompt: Prompt, options: Mapping[str, Any], flags: int = 0) -> None:
        self._session = session
        raw = _generate_options(options, flags)
        self._keeps_records = bool(raw.flags & _ffi.GENERATE_TOKENS)
        self._n_top = raw.n_logprobs
        self._buf, self._cap = ctypes.create_string_buffer(4096), 4096
        self._poll_result = _ffi.PollResult()
        self.records: Deque[TokenRecord] = deque()
        self.finish_reason: Optional[str] = None
        self.finish = self.n_prompt = self.n_prompt_done = self.n_reused = self.n_generated = 0
        self.run = _ffi.RUN_PROMPT
        with session._alone() as h:
            if session._reader is not None:   # this thread's own, unfinished
                _stop(session, session._serial)
            if isinstance(prompt, (str, bytes)):
                data = as_bytes(prompt)
                session._check(lib.hllm_generate_start(h, data, len(data), byref(raw)), h)
            else:
                ids = token_array(prompt)
                session._check(lib.hllm_generate_start_tokens(h, ids, len(ids), byref(raw)), h)
            session._serial += 1
            session._reader = threading.get_ident()
            self._serial = session._serial
            self._finalizer = weakref.finalize(self, _stop, session, self._serial)

    def poll(self, timeout_ms: int = POLL_MS) -> str:
        """Text that is there, or "" after the time given.  For loops of one's own: until run is RUN_DONE."""
        session, result = self._session, self._poll_result
        if self.run == _ffi.RUN_DONE:
            return ""
        with session._turn, session._handle as h:
            if session._serial != self._serial or session._reader is None:
                raise error_of(_ffi.E_CANCELLED, "this generation was cancelled")
            session._check(lib.hllm_generate_poll(h, timeout_ms, self._buf, self._cap, byref(result)), h)
            text = ctypes.string_at(self._buf, result.text_bytes).decode("utf-8", "replace") if result.text_bytes else ""
            if self._keeps_records:
                self._take_records(h)
            self.run, self.finish = result.run, result.finish
            self.n_prompt, self.n_prompt_done = result.n_prompt, result.n_prompt_done
            self.n_reused, self.n_generated = result.n_reused, result.n_generated
            if self.run == _ffi.RUN_DONE:
                _release(session)
                if self.finish == _ffi.FINISH_ERROR:
                    raise error_of(result.error, error_text(lib.hllm_session_last_error, h))
                if self.finish == _ffi.FINISH_CANCELLED:
                    raise error_of(_ffi.E_CANCELLED, f"cancelled after {self.n_generated} tokens")
                self.finish_reason = _FINISH[self.finish]
        return text

    def _take_records(self, h: Optional[int]) -> None:
        cap, k, n = 64, self._n_top, c_size_t(64)
        while n.value == cap:
            records = (_ffi.TokenRecord * cap)()
            top = (_ffi.LogitBias * (cap * k))()
            self._session._check(lib.hllm_generate_poll_tokens(h, records, top if k else None, cap, byref(n)), h)
            for i in range(n.value):
                r = records[i]
                best = [(top[i * k + j].token, top[i * k + j].bias) for j in range(r.n_top)]
                self.records.append(TokenRecord(r.token, r.logprob, r.text_end, best))

    def close(self) -> None:
        """Cancels and waits.  Any number of times."""
        self._finalizer()

    def __iter__(self) -> "Generation":
        return self

    def __next__(self) -> str:
        try:
            while self.run != _ffi.RUN_DONE:
                text = self.poll()
                if text:
                    return text
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    def __enter__(self) -> "Generation":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _release(session: Session) -> None:
    """Lets other threads in.  _turn held."""
    session._reader = None
    session._turn.notify_all()


def _stop(session: Session, serial: int) -> None:
    """Cancels the generation of that number, if it is still the session's, and waits for its end."""
    if session._serial == serial and session._reader is not None:
        _cancel(session._handle)
    with session._turn:
        if session._serial != serial or session._reader is None:
            return
        buf, result = ctypes.create_string_buffer(4096), _ffi.PollResult()
        interrupt: Optional[KeyboardInterrupt] = None
        while not session.closed:
            try:
                with session._handle as h:
                    rc = lib.hllm_generate_poll(h, 1000, buf, len(buf), byref(result))
                    if rc != _ffi.OK or result.run == _ffi.RUN_DONE:
                        break
                    lib.hllm_generate_cancel(h)
            except StateError:                   # closed meanwhile: that ended it
                break
            except KeyboardInterrupt as error:   # first the end, then the interrupt
                interrupt = error
        _release(session)
        if interrupt is not None:
            raise interrupt


class Steps:
    """A generation that stops before each token: iterate for the logits, choose what is allowed, go on.

        with session.steps("In the beginning", max_tokens=8) as steps:
            for logits in steps:                      # memoryview of n_vocab floats, valid until the next step
                steps.allow([max(range(len(logits)), key=logits.__getitem__)])
        print(steps.text)

    text: all text so far; finish_reason at the end; tokens: what was generated.
    """

    def __init__(self, session: Session, prompt: Prompt, options: Mapping[str, Any]) -> None:
        self._n_vocab = session.model.info.n_vocab
        self._logits = _floats(self._n_vocab)
        self._mask: Optional[Any] = None
        self._waiting = False
        self._session = session
        self._generation = Generation(session, prompt, options, _ffi.GENERATE_STEP | _ffi.GENERATE_TOKENS)
        self.text = ""
        self.records: List[TokenRecord] = []

    @property
    def tokens(self) -> List[int]:
        return [record.token for record in self.records]

    @property
    def finish_reason(self) -> Optional[str]:
        return self._generation.finish_reason

    def allow(self, tokens: Union[bytes, bytearray, Iterable[int]]) -> None:
        """For the waiting token only: ids, or a mask with one bit per token, lowest bit first."""
        size = (self._n_vocab + 7) // 8
        if isinstance(tokens, (bytes, bytearray)):
            if len(tokens) < size:
                raise error_of(_ffi.E_ARG, f"the mask has {len(tokens)} bytes, {self._n_vocab} tokens need {size}")
            self._mask = (c_uint8 * size).from_buffer_copy(tokens)
            return
        mask = (c_uint8 * size)()
        for token in tokens:
            if not 0 <= token < self._n_vocab:
                raise error_of(_ffi.E_ARG, f"token {token}: the vocabulary has {self._n_vocab}")
            mask[token >> 3] |= 1 << (token & 7)
        self._mask = mask

    def __iter__(self) -> "Steps":
        return self

    def __next__(self) -> "memoryview":
        generation, session = self._generation, self._session
        try:
            if self._waiting:
                mask, self._mask, self._waiting = self._mask, None, False
                with session._turn, session._handle as h:
                    session._check(lib.hllm_generate_continue(h, mask, len(mask) if mask is not None else 0), h)
            while True:
                self.text += generation.poll()
                self.records += generation.records
                generation.records.clear()
                if generation.run == _ffi.RUN_DONE:
                    raise StopIteration
                if generation.run == _ffi.RUN_WAITING:
                    break
            with session._turn, session._handle as h:
                session._check(lib.hllm_generate_logits(h, _float_pointer(self._logits), self._n_vocab), h)
            self._waiting = True
        except BaseException:
            self.close()
            raise
        return memoryview(self._logits)

    def close(self) -> None:
        """Cancels and waits."""
        self._generation.close()

    def __enter__(self) -> "Steps":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
