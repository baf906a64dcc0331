"""A good guest in the interpreter: Ctrl-C, silence, exit, fork."""
import contextlib
import os
import random
import signal
import threading
import time
import unittest
import unittest.mock
from typing import Any, Callable

from common import MODEL, TEXT, ended_as, idle, interrupted, python
from hybridllm import Llama, Session, _ffi


class CtrlC(unittest.TestCase):
    """The interrupt arrives, cuts short what runs, and then nothing runs any more.  How soon is measured by tests/bench/ctrl_c.py; an interrupt
    that never arrives meets the runner's time limit."""

    def check(self, llm: Llama, action: Callable[[], Any], cut_short: Callable[[], bool]) -> None:
        cuts = 0                                       # an interrupt may also fall between two actions: one cut of twelve is enough
        with Session(llm.engine, n_ctx=128) as other:
            for i in range(12):
                interrupted(action, 0.03 + 0.007 * i)
                self.assertTrue(idle(llm.session))
                cuts += cut_short()
                done = (llm.session.stats().n_generated, llm.session.tokens())
                # Sessions take turns: had this one anything left to do, it would do it while the other answers.
                self.assertTrue("".join(other.generate("In the", max_tokens=8, greedy=True, ignore_eos=True)))
                self.assertEqual((llm.session.stats().n_generated, llm.session.tokens()), done)
                self.assertEqual(llm(TEXT, max_tokens=3, temperature=0)["choices"][0]["text"], self.answer)    # still usable
        self.assertGreater(cuts, 0)

    def test_while_it_computes(self) -> None:
        with Llama(MODEL, n_ctx=512, n_threads=2, n_batch=16) as llm:
            self.answer = llm(TEXT, max_tokens=3, temperature=0)["choices"][0]["text"]
            self.assertTrue(self.answer)

            def stream() -> None:
                for _ in llm(TEXT, max_tokens=480, stream=True, temperature=0.7):
                    pass
            ids = [300 + i for i in range(500)]

            def evaluate() -> None:
                llm.reset()
                llm.eval(ids)

            def prompt() -> None:
                llm.reset()
                llm(ids, max_tokens=1)

            def cancelled() -> bool:
                return ended_as(llm.session) == (_ffi.RUN_DONE, _ffi.FINISH_CANCELLED)
            for action in (stream, lambda: llm(TEXT, max_tokens=480), prompt):
                self.check(llm, action, cancelled)
            self.check(llm, evaluate, lambda: 0 < len(llm.session.tokens()) < len(ids))
        self.assertEqual(threading.active_count(), 1)

    def test_at_random_moments(self) -> None:
        """Wherever the interrupt falls, nothing breaks and the next call works."""
        chance = random.Random(1)
        with Llama(MODEL, n_ctx=128, n_threads=2) as llm:
            def step() -> None:
                with llm.session.steps("In", max_tokens=3) as steps:
                    for _ in steps:
                        pass

            def evaluate() -> None:
                llm.reset()
                llm.eval([300] * 100)
            actions = [step, evaluate, lambda: llm("In", max_tokens=2), lambda: list(llm("In", max_tokens=3, stream=True, logprobs=1)),
                       lambda: Llama(MODEL, n_ctx=64, n_threads=1).close()]
            for _ in range(100):
                interrupted(chance.choice(actions), 0.003 + 0.02 * chance.random())
                self.assertEqual(llm("In", max_tokens=1)["usage"]["completion_tokens"], 1)
        self.assertEqual(threading.active_count(), 1)

    def test_loading(self) -> None:
        names, inside = ("hllm_model_open", "hllm_engine_create", "hllm_session_create"), []

        def watched(call: Any) -> Any:
            def run(*args: Any) -> Any:
                inside.append(call)
                try:
                    return call(*args)
                finally:
                    inside.remove(call)
            return run
        with contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(unittest.mock.patch.object(_ffi.lib, name, watched(getattr(_ffi.lib, name))))
            for i in range(20):
                interrupted(lambda: Llama(MODEL, use_mmap=False).close(), 0.03 + 0.0013 * i)
                self.assertEqual(inside, [])                                  # nothing loads any more
        with Llama(MODEL, use_mmap=False, n_ctx=64) as llm:
            self.assertTrue(llm("In the", max_tokens=3)["choices"][0]["text"])


class Silence(unittest.TestCase):
    def silent(self, body: str, code: int = 0) -> None:
        head = "import sys, threading, time\nfrom hybridllm import *\npath = sys.argv[1]\n"
        done = python(head + body)
        self.assertEqual((done.returncode, done.stderr, done.stdout), (code, "", ""), body)

    def test_exits(self) -> None:
        for body in (
            "llm = Llama(path, n_ctx=64)\n",
            "llm = Llama(path, n_ctx=64, verbose=True); llm('In the', max_tokens=2)\n",
            "llm = Llama(path, n_ctx=512); stream = llm('In the', stream=True, max_tokens=500); next(stream)\n",
            "llm = Llama(path, n_ctx=512); stream = llm('In the', stream=True, max_tokens=500)\n",
            "llm = Llama(path, n_ctx=512); steps = llm.session.steps('In the'); next(steps)\n",
            "llm = Llama(path, n_ctx=512)\ndef work():\n    while True: llm('In the', max_tokens=400)\n"
            "threading.Thread(target=work, daemon=True).start(); time.sleep(0.2)\n",
            "llm = Llama(path, n_ctx=512)\ndef work():\n    while True: llm.reset(); llm.eval([300] * 500)\n"
            "threading.Thread(target=work, daemon=True).start(); time.sleep(0.2)\n",
            "class Cycle: pass\nc = Cycle(); c.me = c; c.llm = Llama(path); c.stream = c.llm('In', stream=True); next(c.stream)\n",
            "m = Model(path); e = Engine(m); s = Session(e); sys.modules['keep'] = s\n",
            "try: Llama('/no/such/file')\nexcept HybridLLMError: pass\n",
            "try: Llama(path, n_ctx=1 << 30)\nexcept HybridLLMError: pass\n",
            "try: Llama(path, nonsense=1)\nexcept TypeError: pass\n",
        ):
            self.silent(body)

    def test_exit_beside_a_daemon_thread(self) -> None:
        """The thread still runs after our exit handler (the sleep was registered before it and so comes after it)."""
        done = python("import atexit, sys, threading, time\natexit.register(time.sleep, 0.3)\nfrom hybridllm import Llama\n"
                      "llm = Llama(sys.argv[1], n_ctx=512)\ndef work():\n    while True: llm('In the', max_tokens=50)\n"
                      "threading.Thread(target=work, daemon=True).start(); time.sleep(0.1)\n")
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", ""))

    def test_exit_status_of_an_error_is_pythons(self) -> None:
        done = python("import sys\nfrom hybridllm import Llama\nLlama('/no/such/file')\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("HLLM_E_NOT_FOUND: /no/such/file", done.stderr)
        self.assertNotIn("Exception ignored", done.stderr)

    def test_ctrl_c_at_the_prompt_of_a_program(self) -> None:
        done = python("import os, signal, sys, threading, time\nfrom hybridllm import Llama\nllm = Llama(sys.argv[1], n_ctx=512)\n"
                      "threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
                      "while True:\n    for chunk in llm('In the', stream=True, max_tokens=400): pass\n")
        self.assertEqual(done.returncode, -signal.SIGINT)
        self.assertTrue(done.stderr.rstrip().endswith("KeyboardInterrupt"), done.stderr)
        self.assertNotIn("Exception ignored", done.stderr)

    def test_fork(self) -> None:
        self.silent("import os\nllm = Llama(path, n_ctx=64)\nllm('In', max_tokens=1)\npid = os.fork()\n"
                    "if pid == 0:\n    try:\n        llm('In', max_tokens=1); sys.exit(3)\n    except StateError:\n        sys.exit(0)\n"
                    "assert os.waitpid(pid, 0)[1] == 0\nllm('In', max_tokens=1)\n")

    def test_log_goes_to_logging(self) -> None:
        done = python("import logging, sys\nlogging.basicConfig(level=logging.INFO, stream=sys.stdout)\nfrom hybridllm import Runtime\n"
                      "Runtime.log_lines = lambda self: [(2, 'a warning'), (1, 'a note')]\nRuntime()._drain_log()\n")
        self.assertEqual((done.stdout, done.stderr), ("WARNING:hybridllm:a warning\nINFO:hybridllm:a note\n", ""))

    def test_another_library_by_variable(self) -> None:
        done = python("import os, sys\nos.environ['HYBRIDLLM_LIBRARY'] = '/no/such/lib.so'\nimport hybridllm\n")
        self.assertIn("ImportError: hybridllm cannot use its library /no/such/lib.so", done.stderr)


if __name__ == "__main__":
    unittest.main()
