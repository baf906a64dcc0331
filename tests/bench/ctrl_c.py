"""How long Ctrl-C takes in Python: from SIGINT to the KeyboardInterrupt in the program's hands, with nothing running any more.

Usage: python tests/bench/ctrl_c.py [MODEL [ROUNDS]]        (default: the shipped model, 12 rounds)
with a Python that has the package: after sh tests/python.sh that is build/python/venv/bin/python, or any venv with
pip install bindings/python.  Prints the median and the worst for each situation.  Nothing is judged: that the interrupt arrives and that the
engine has stopped is tests/python/test_guest.py's.
"""
import os
import sys
from typing import Any, Callable

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python"))
from common import MODEL as SHIPPED, TEXT, interrupted
from hybridllm import Llama

MODEL = sys.argv[1] if len(sys.argv) > 1 else SHIPPED
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 12


def measure(what: str, action: Callable[[], Any]) -> None:
    late = sorted(interrupted(action, 0.03 + 0.007 * i) for i in range(ROUNDS))
    print(f"Ctrl-C {what}: median {late[ROUNDS // 2] * 1000:.1f} ms, worst {late[-1] * 1000:.1f} ms of {ROUNDS}", flush=True)


def main() -> None:
    print("load average %.1f %.1f %.1f on %d CPUs" % (*os.getloadavg(), os.cpu_count() or 0))
    with Llama(MODEL, n_ctx=512, n_threads=2) as llm:
        ids = [300 + i for i in range(500)]

        def stream() -> None:
            for _ in llm(TEXT, max_tokens=480, stream=True, temperature=0.7):
                pass

        def evaluate() -> None:
            llm.reset()
            llm.eval(ids)

        def prompt() -> None:
            llm.reset()
            llm(ids, max_tokens=1)
        measure("in a stream", stream)
        measure("in a completion", lambda: llm(TEXT, max_tokens=480))
        measure("in eval", evaluate)
        measure("in a prompt", prompt)
    measure("while loading", lambda: Llama(MODEL, use_mmap=False).close())


if __name__ == "__main__":
    main()
