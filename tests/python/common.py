"""Shared by the tests of the Python package: where things are.  Run by tests/python.sh, which sets the two variables."""
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, List, Tuple

from hybridllm import Session, _ffi

ROOT = os.environ.get("HLLM_TEST_ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.path.join(ROOT, "models", "tiny-relu2-q8_0.gguf")
HLLM = os.environ.get("HLLM_BIN") or os.path.join(ROOT, "build", "bin", "hllm")
TEXT = "In the beginning God created the heaven and the earth."


def interrupted(action: Callable[[], Any], after: float) -> float:
    """Repeats action until a SIGINT, sent after so many seconds, arrives as KeyboardInterrupt.  Returns how many seconds that took."""
    begun = threading.Event()                          # the signal must not fall into the start of its own thread
    sent: List[float] = []

    def send() -> None:
        begun.wait()
        time.sleep(after)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        begun.set()
        while True:
            action()
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]
    finally:
        thread.join()


def idle(session: Session) -> bool:
    """Does nothing run on the C session, now?  Only then it may be rewound; this waits for nothing."""
    with session._handle as h:
        return int(_ffi.lib.hllm_session_rewind(h, session.info().n_tokens)) == _ffi.OK


def ended_as(session: Session) -> Tuple[int, int]:
    """run and finish of the C session's generation, now."""
    result, buf = _ffi.PollResult(), ctypes.create_string_buffer(1 << 16)
    with session._handle as h:
        assert _ffi.lib.hllm_generate_poll(h, 0, buf, len(buf), ctypes.byref(result)) == _ffi.OK
    return int(result.run), int(result.finish)


def python(script: str, *args: str, timeout: float = 60) -> "subprocess.CompletedProcess[str]":
    """Runs a script in a process of its own."""
    command: List[Any] = [sys.executable, "-X", "faulthandler", "-c", script, MODEL, *args]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=timeout)
