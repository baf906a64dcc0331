"""What all classes stand on: owned handles, errors from status codes, slow calls that Ctrl-C can end, text and token buffers.

A Handle is freed exactly once, by close() or when its owner is collected, and never while another thread is inside a call that uses it:
the last one out frees it.  When the interpreter exits, all are freed, unless daemon threads still run, which may be inside: then the
end of the process does it.
"""
from __future__ import annotations

import _thread
import atexit
import ctypes
import os
import threading
import weakref
from array import array
from ctypes import byref, c_float, c_int32, c_size_t, c_uint64, c_void_p
from typing import Any, Callable, List, Mapping, Optional, Sequence, Type, TypeVar, Union

from . import _ffi
from ._ffi import lib
from .errors import ArgumentError, error_of

PathLike = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Progress = Callable[[int, int], None]
_T = TypeVar("_T", bound=Any)


class Handle:
    """A pointer of the library.  `with handle as pointer:` keeps it alive for one call."""

    __slots__ = ("_pointer", "_free", "_what", "_lock", "_users", "_closed", "_pid", "__weakref__")

    def __init__(self, pointer: Optional[int], free: Callable[[Optional[int]], None], what: str) -> None:
        self._pointer, self._free, self._what = pointer, free, what
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False
        self._pid = os.getpid()
        _live.add(self)

    def __enter__(self) -> Optional[int]:
        with self._lock:
            if self._closed:
                raise error_of(_ffi.E_STATE, f"this {self._what} is closed")
            if self._pid != os.getpid():
                raise error_of(_ffi.E_STATE, f"this {self._what} belongs to process {self._pid}: after a fork, make a new one")
            self._users += 1
        return self._pointer

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._users -= 1
            last = self._closed and self._users == 0
        if last:
            self._free(self._pointer)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            last = self._users == 0
        if last and self._pid == os.getpid():   # a forked child has no compute threads to wait for
            self._free(self._pointer)


_live: "weakref.WeakSet[Handle]" = weakref.WeakSet()


@atexit.register
def _exit() -> None:
    if threading.active_count() == 1:
        for handle in list(_live):
            handle.close()


def when_collected(owner: object, call: Callable[..., object], *arguments: object) -> "weakref.finalize[Any, Any]":
    """Calls it once: when the owner is collected or the result is called; not at exit, that is _exit's."""
    finalizer = weakref.finalize(owner, call, *arguments)
    setattr(finalizer, "atexit", False)
    return finalizer


class Owner:
    """Base of Runtime, Model, Engine and Session: a handle, close(), the with statement."""

    _handle: Handle
    _finalizer: "weakref.finalize[Any, Any]"

    def _own(self, handle: Handle, close: Optional[Callable[[], None]] = None) -> None:
        self._handle = handle
        self._finalizer = when_collected(self, close or handle.close)

    def close(self) -> None:
        """Frees it now.  Any number of times; other threads' calls end first."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


# ---- errors ----

def error_text(last_error: Any, pointer: Optional[int]) -> str:
    buf = ctypes.create_string_buffer(1024)
    need = last_error(pointer, buf, len(buf))
    if need > len(buf):
        buf = ctypes.create_string_buffer(need)
        last_error(pointer, buf, len(buf))
    return buf.value.decode("utf-8", "replace")


def check(rc: int, last_error: Any, pointer: Optional[int]) -> None:
    if rc != _ffi.OK:
        raise error_of(rc, error_text(last_error, pointer))


# ---- slow calls ----

def run_slow(call: Callable[[], int], cancel: Callable[[], object], tick: Optional[Callable[[], None]] = None) -> int:
    """Runs one long C call.  On the main thread it runs beside it, so that Ctrl-C (or an exception of tick, which is called every
    20 ms) cancels it at once; the call has always ended when this returns or raises."""
    if tick is None and threading.current_thread() is not threading.main_thread():
        return call()
    result: List[int] = []
    # Bare lock and bare thread: Ctrl-C inside Event.wait or Thread.start may release a lock that the other thread holds, or leave the
    # threading module's own list wrong, and the other thread then dies with a traceback.
    lock, wake = threading.Lock(), threading.Lock()
    wake.acquire()
    begun = given_up = ended = False

    def work() -> None:
        nonlocal begun, ended
        with lock:
            if given_up:
                return
            begun = True
        try:
            result.append(call())
        finally:
            ended = True
            wake.release()

    try:
        _thread.start_new_thread(work, ())
        while not ended:
            wake.acquire(timeout=0.02)
            if not ended and tick is not None:
                tick()
    except BaseException:
        with lock:   # the interrupt may come before the thread runs: then it never makes the call
            given_up = True
        while begun and not ended:
            try:
                cancel()
                wake.acquire(timeout=0.01)
            except KeyboardInterrupt:
                pass
        raise
    return result[0]


def create(runtime: Handle, call: Callable[[Any, Any], int], free: Any, last_error: Any, parent: Optional[int],
           progress: Optional[Progress]) -> c_void_p:
    """One of the slow constructors: call(progress handle, byref(out)).  Reports and cancels through a progress handle."""
    out, watch = c_void_p(), c_void_p()
    with runtime as rt:
        check(lib.hllm_progress_create(rt, byref(watch)), lib.hllm_runtime_last_error, rt)
        done, total = c_uint64(), c_uint64()

        def tick() -> None:
            if progress is not None and lib.hllm_progress_read(watch, byref(done), byref(total)) == _ffi.OK:
                progress(done.value, total.value)
        try:
            check(run_slow(lambda: int(call(watch, byref(out))), lambda: lib.hllm_progress_cancel(watch),
                           tick if progress is not None else None), last_error, parent)
            tick()
        except BaseException:
            if out.value is not None:
                free(out)
            raise
        finally:
            lib.hllm_progress_free(watch)
    return out


# ---- arguments ----

def unsigned(name: str, value: int, bits: int = 32) -> int:
    """ctypes would cut a number silently."""
    if not 0 <= value < 1 << bits:
        raise error_of(_ffi.E_ARG, f"{name} is {value}, expected 0 to {(1 << bits) - 1}")
    return value


def c_string(name: str, text: Union[str, bytes]) -> bytes:
    data = text.encode("utf-8") if isinstance(text, str) else text
    if b"\0" in data:
        raise error_of(_ffi.E_ARG, f"{name} contains a NUL")
    return data


def c_path(path: PathLike) -> bytes:
    return c_string("path", os.fsencode(path))


def as_bytes(text: Union[str, bytes]) -> bytes:
    return text.encode("utf-8") if isinstance(text, str) else bytes(text)


def token_array(tokens: Sequence[int]) -> Any:
    try:
        data = array("i", tokens)
    except OverflowError as error:
        raise ArgumentError(f"token: {error}", _ffi.E_ARG) from None
    return (c_int32 * len(data)).from_buffer(data) if len(data) else (c_int32 * 0)()


def choice(name: str, value: str, known: Mapping[str, int]) -> int:
    if value not in known:
        raise error_of(_ffi.E_ARG, f"{name} is {value!r}, expected one of {', '.join(known)}")
    return known[value]


def floats(n: int) -> "array[float]":
    return array("f", bytes(4 * n))


def float_pointer(values: "array[float]") -> Any:
    return (c_float * len(values)).from_buffer(values) if len(values) else (c_float * 0)()


# ---- outputs of the rule "HLLM_E_BUFFER: the needed count was returned" ----

def read_tokens(call: Callable[[Any, int, Any], int], guess: int) -> "tuple[int, List[int]]":
    """(status, tokens) of call(out, cap, n_out)."""
    n = c_size_t()
    while True:
        out = (c_int32 * guess)()
        rc = call(out, guess, byref(n))
        if rc != _ffi.E_BUFFER:
            return rc, out[:n.value]
        guess = n.value


def read_bytes(call: Callable[[Any, int, Any], int], guess: int) -> "tuple[int, bytes]":
    """(status, bytes) of call(buf, cap, n_out)."""
    n = c_size_t()
    while True:
        buf = ctypes.create_string_buffer(guess)
        rc = call(buf, guess, byref(n))
        if rc != _ffi.E_BUFFER:
            return rc, buf.raw[:n.value]
        guess = n.value


def copy(cls: Type[_T], raw: Any) -> _T:
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
