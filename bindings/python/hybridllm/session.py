"""Session, Generation and Steps: one conversation and its running answer.

A Session runs one thing at a time: calls of other threads wait for their turn, also for the end of a generation that another thread is
reading.  A thread that starts a new generation ends its own unfinished one first.  cancel() may be called from anywhere.
"""
from __future__ import annotations

import ctypes
import threading
from collections import deque
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_size_t, c_uint8, c_void_p
from typing import TYPE_CHECKING, Any, Deque, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _ffi
from ._ffi import lib
from ._handles import (Handle, Owner, PathLike, Progress, as_bytes, c_path, c_string, check, copy, create, error_text, float_pointer,
                       floats, read_tokens, run_slow, token_array, unsigned, when_collected)
from .errors import StateError, error_of
from .model import Engine, session_options

if TYPE_CHECKING:
    from array import array

POLL_MS = 10   # Ctrl-C waits for one poll at most
Prompt = Union[str, bytes, Sequence[int]]


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
    decode_weight_bytes: int
    true_share: float
    ffn_bytes_per_token: int


class TokenRecord(NamedTuple):
    """A generated token.  text_end: bytes of generated text when this token's text is complete."""
    token: int
    logprob: float
    text_end: int
    top: List[Tuple[int, float]]


class Session(Owner):
    """One conversation: KV cache and position.  n_ctx 0: the smaller of the model's and 4,096; kv: f16, f32, q8_0."""

    def __init__(self, engine: Engine, *, n_ctx: int = 0, kv: str = "f16", micro_batch: int = 0,
                 progress: Optional[Progress] = None) -> None:
        options = session_options(n_ctx, kv, micro_batch)

        def call(watch: Any, out: Any) -> int:
            options.progress = watch
            return int(lib.hllm_session_create(e, byref(options), out))
        with engine._handle as e:
            out = create(engine.model.runtime._handle, call, lib.hllm_session_free, lib.hllm_engine_last_error, e, progress)
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
                self._turn.wait(0.02)   # not for ever: a signal just before it would be noticed only after it
            with self._handle as h:
                yield h

    # -- const: any thread, at any time --

    def info(self) -> SessionInfo:
        raw = _ffi.SessionInfo()
        with self._handle as h:
            self._check(lib.hllm_session_get_info(h, byref(raw)), h)
        return copy(SessionInfo, raw)

    def stats(self) -> RunStats:
        """Of the last generation."""
        raw = _ffi.RunStats()
        with self._handle as h:
            self._check(lib.hllm_session_stats(h, byref(raw)), h)
            return copy(RunStats, raw)

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
        values = floats(n)
        with self._alone() as h:
            at = self.info().n_tokens - 1 if position is None else position
            if at < 0:
                raise error_of(_ffi.E_STATE, f"position {at}: nothing was computed yet")
            self._check(call(h, unsigned("position", at), float_pointer(values), n), h)
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
        """Restores a saved file of the same model; on an error the session is as it was, or empty if the file changed while it was read."""
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
            session._serial += 1
            session._reader = threading.get_ident()
            self._serial = session._serial
            try:
                if isinstance(prompt, (str, bytes)):
                    data = as_bytes(prompt)
                    session._check(lib.hllm_generate_start(h, data, len(data), byref(raw)), h)
                else:
                    ids = token_array(prompt)
                    session._check(lib.hllm_generate_start_tokens(h, ids, len(ids), byref(raw)), h)
                self._finalizer = when_collected(self, _stop, session, self._serial)
            except BaseException:   # Ctrl-C also between the call and here
                _stop(session, self._serial)
                raise

    def poll(self, timeout_ms: int = POLL_MS) -> str:
        """Text that is there, or "" after the time given.  For loops of one's own: until run is RUN_DONE."""
        session, result = self._session, self._poll_result
        if self.run == _ffi.RUN_DONE:
            return ""
        with session._turn, session._handle as h:
            self._check_running()
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

    def _check_running(self) -> None:
        if self._session._serial != self._serial or self._session._reader is None:
            raise error_of(_ffi.E_CANCELLED, "this generation was cancelled")

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
                    if rc != _ffi.OK or result.run in (_ffi.RUN_DONE, _ffi.RUN_IDLE):
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
        self._logits = floats(self._n_vocab)
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
                    generation._check_running()
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
                session._check(lib.hllm_generate_logits(h, float_pointer(self._logits), self._n_vocab), h)
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
