"""The handles: life and death, threads, cancel, step mode, forks, errors with code and message."""
import gc
import os
import tempfile
import threading
import unittest
from typing import Any, List

import hybridllm
from common import MODEL, TEXT, ended_as, idle
from hybridllm import Engine, Llama, Model, Runtime, Session, SessionOptions, _ffi


class Base(unittest.TestCase):
    engine: Engine
    model: Model

    @classmethod
    def setUpClass(cls) -> None:
        cls.model = Model(MODEL, runtime=Runtime(n_threads=2))
        cls.engine = Engine(cls.model)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.engine.close()
        cls.model.close()

    def session(self, **options: Any) -> Session:
        session = Session(self.engine, **{"n_ctx": 256, **options})
        self.addCleanup(session.close)
        return session

    def answer(self, session: Session, n: int = 16, prompt: Any = TEXT, **options: Any) -> str:
        return "".join(session.generate(prompt, max_tokens=n, **{"greedy": True, **options}))


class Life(Base):
    def test_free_in_any_order(self) -> None:
        runtime = Runtime(n_threads=1)
        model = Model(MODEL, runtime=runtime)
        engine = Engine(model)
        session = Session(engine, n_ctx=64)
        for thing in (runtime, engine, model):
            thing.close()
        self.assertEqual(len("".join(session.generate("In the beginning", max_tokens=3))) > 0, True)
        session.close()
        session.close()
        for call in (session.info, session.tokens, session.stats, lambda: session.eval([1]), lambda: session.generate("x"),
                     lambda: model.tokenize("x"), lambda: Session(engine), lambda: Engine(model), runtime.machine):
            with self.assertRaises(hybridllm.StateError) as caught:
                call()
            self.assertIn("closed", caught.exception.message)
        session.cancel()                                                      # harmless
        self.assertTrue(session.closed)

    def test_with_statement(self) -> None:
        with Runtime() as runtime, Model(MODEL, runtime=runtime) as model, Engine(model) as engine, Session(engine) as session:
            self.assertEqual(session.info().n_ctx, 512)
        self.assertTrue(session.closed and engine.closed and model.closed and runtime.closed)

    def test_vocabulary_only(self) -> None:
        with Model(MODEL, vocab_only=True) as model:
            self.assertTrue(model.tokenize("In the beginning"))
            with self.assertRaises(hybridllm.HybridLLMError):
                Engine(model)

    def test_memory_is_flat(self) -> None:
        def resident() -> int:
            gc.collect()
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        def once() -> None:
            with Llama(MODEL, n_ctx=64, n_threads=1) as llm:
                llm("In the beginning", max_tokens=2, logprobs=1)
            try:
                Llama(MODEL + ".missing")
            except hybridllm.HybridLLMError:
                pass
            llm = Llama(MODEL, n_ctx=64, n_threads=1)                         # freed by the collector, with an open stream
            next(llm("In the beginning", stream=True))
        for _ in range(20):
            once()
        before = resident()
        for _ in range(100):                                                  # 200 models
            once()
        grown = resident() - before
        print(f"memory after 200 more models: {grown / 1024:+.0f} KiB")
        self.assertLess(grown, 2 << 20)
        self.assertLess(threading.active_count(), 3)


class Errors(unittest.TestCase):
    def refused(self, path: Any, cls: type, *words: str) -> hybridllm.HybridLLMError:
        with self.assertRaises(cls) as caught:
            Llama(path)
        error = caught.exception
        self.assertIsInstance(error, hybridllm.HybridLLMError)
        self.assertLess(error.code, 0)
        self.assertTrue(error.name.startswith("HLLM_E_"), error.name)
        self.assertEqual(str(error), f"{error.name}: {error.message}")
        for word in words:
            self.assertIn(word, error.message)
        return error

    def test_files(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            def made(name: str, data: bytes) -> str:
                path = os.path.join(folder, name)
                with open(path, "wb") as file:
                    file.write(data)
                return path
            with open(MODEL, "rb") as file:
                whole = file.read()
            self.refused(os.path.join(folder, "missing.gguf"), hybridllm.NotFoundError, "missing.gguf")
            self.refused(folder, hybridllm.FileError, folder, "directory")
            self.refused(made("empty", b""), hybridllm.FormatError, "empty")
            self.refused(made("magic", b"NOPE" + whole[4:]), hybridllm.FormatError, "GGUF")
            self.assertEqual(self.refused(made("short", whole[:len(whole) // 2]), hybridllm.FormatError, "short").name, "HLLM_E_TRUNCATED")
            self.refused(made("family", whole.replace(b"arcee", b"arcxx", 1)), hybridllm.UnsupportedError, "arcxx")
            # a path of every kind, with letters of every kind
            good = made("\u6a21\u578b \U0001f600.gguf", whole)
            for path in (good, os.fsencode(good), __import__("pathlib").Path(good)):
                with Llama(path) as llm:
                    self.assertEqual(llm.model_path, good)
            self.refused("a\0b", hybridllm.ArgumentError, "NUL")

    def test_builtin_bases(self) -> None:
        self.assertTrue(issubclass(hybridllm.OutOfMemoryError, MemoryError))
        self.assertTrue(issubclass(hybridllm.ArgumentError, ValueError))
        self.assertTrue(issubclass(hybridllm.ContextFullError, ValueError))
        self.assertTrue(issubclass(hybridllm.NotFoundError, LookupError))

    def test_options(self) -> None:
        with Model(MODEL) as model:
            for options in ({"load": "fast"}, {"act": "q4"}, {"ram_bytes": -1}, {"ram_bytes": 1 << 64}):
                with self.assertRaises(hybridllm.ArgumentError, msg=str(options)):
                    Engine(model, **options)                                  # type: ignore[arg-type]
            with self.assertRaises(hybridllm.OutOfMemoryError) as caught:
                Engine(model, ram_bytes=1 << 20, load="read")
            self.assertEqual(caught.exception.name, "HLLM_E_NOMEM")
            self.assertRegex(caught.exception.message, r"\d{6,}.*\d{6,}")     # both numbers
            # the session that is going to be made counts before anything is loaded
            need = model.memory_need(n_ctx=256, kv="f32", load="read")
            planned: SessionOptions = {"n_ctx": 256, "kv": "f32"}
            with self.assertRaises(hybridllm.OutOfMemoryError) as caught:
                Engine(model, ram_bytes=need.total_bytes - 1, load="read", session=planned)
            self.assertRegex(caught.exception.message, f"weights, KV cache and scratch need {need.total_bytes} .* {need.total_bytes - 1}$")
            Engine(model, ram_bytes=need.total_bytes - 1, load="read").close()
            with Engine(model, ram_bytes=need.total_bytes, load="read", session=planned) as engine:
                Session(engine, **planned).close()                            # counted, not taken
            with self.assertRaisesRegex(hybridllm.ArgumentError, "100000"):
                Engine(model, session={"n_ctx": 100000})
            for wrong in ({"nonsense": 1}, {"kv": "q2"}, {"n_ctx": -1}):
                with self.assertRaises((TypeError, hybridllm.ArgumentError), msg=str(wrong)):
                    Engine(model, session=wrong)                              # type: ignore[arg-type]
            with self.assertRaises(hybridllm.HybridLLMError) as caught:
                Runtime(isa="mmx")
            self.assertIn("mmx", caught.exception.message)


class Generate(Base):
    def test_poll_by_hand(self) -> None:
        session = self.session()
        generation = session.generate(TEXT, max_tokens=8, greedy=True)
        text = ""
        while generation.run != hybridllm._ffi.RUN_DONE:
            text += generation.poll(0)
        self.assertEqual(text, self.answer(session, 8))
        self.assertEqual((generation.finish_reason, generation.n_generated, generation.poll()), ("length", 8, ""))

    def test_append_and_reuse(self) -> None:
        session = self.session()
        whole = self.answer(session, 20)
        first = self.answer(session, 10)
        self.assertEqual(first + "".join(session.generate([], max_tokens=10, greedy=True, append=True)), whole)
        generation = session.generate(TEXT, max_tokens=1, greedy=True)
        list(generation)
        self.assertEqual(generation.n_reused, generation.n_prompt - 1)

    def test_special_and_ignore_eos(self) -> None:
        session, eos = self.session(), self.model.special_token(2)
        self.assertEqual(self.answer(session, 5, logit_bias={eos: 1e6}, special=True), "<|end|>")
        generation = session.generate(TEXT, max_tokens=5, greedy=True, logit_bias={eos: 1e6}, ignore_eos=True)
        list(generation)
        self.assertEqual(generation.n_generated, 5)

    def test_records_only_taken_late(self) -> None:
        """Generation waits when 256 records are not taken; the iterator takes them."""
        session = self.session(n_ctx=512)
        generation = session.generate(TEXT, max_tokens=300, greedy=True, records=True, n_logprobs=2)
        text = "".join(generation)
        self.assertEqual(len(generation.records), generation.n_generated)
        self.assertEqual(generation.records[-1].text_end, len(text.encode()))

    def test_unknown_option(self) -> None:
        with self.assertRaises(TypeError):
            self.session().generate(TEXT, max_token=3)

    def test_rewind_fork_eval(self) -> None:
        session = self.session()
        ids = self.model.tokenize(TEXT)
        session.eval(ids)
        logits = list(session.logits())
        twin = session.fork()
        self.addCleanup(twin.close)
        self.assertEqual(twin.tokens(), ids)
        session.rewind(len(ids) - 1)
        self.assertEqual(session.info().n_tokens, len(ids) - 1)
        session.eval(ids[-1:])
        for a, b in zip(logits, session.logits()):
            self.assertAlmostEqual(a, b, delta=0.3)
        self.assertEqual(self.answer(twin), self.answer(session))
        with self.assertRaises(hybridllm.HybridLLMError):
            session.logits(5000)
        with self.assertRaises(hybridllm.ArgumentError):
            session.rewind(-1)
        with self.assertRaises(hybridllm.StateError):
            self.session().logits()

    def test_second_generation_ends_the_first(self) -> None:
        session = self.session()
        first = session.generate(TEXT, max_tokens=200, greedy=True)
        next(first)
        self.assertEqual(self.answer(session, 4), self.answer(session, 4))
        with self.assertRaises(hybridllm.CancelledError):
            list(first)

    def test_closing_the_iterator_cancels(self) -> None:
        def leave(llm: Llama, how: int) -> None:
            chunks = llm(TEXT, max_tokens=480, stream=True, temperature=0)
            if how == 0:
                next(chunks)
                chunks.close()                                                # type: ignore[attr-defined]
            elif how == 1:
                for _ in chunks:
                    break
                del chunks, _
                gc.collect()
            elif how == 2:
                with self.assertRaises(RuntimeError):
                    for _ in chunks:
                        raise RuntimeError
                chunks.close()                                                # type: ignore[attr-defined]
            else:
                del chunks                                                    # never started
                gc.collect()

        with Llama(MODEL, n_ctx=512, n_threads=2) as llm:
            for how in range(4):
                for _ in range(100):
                    leave(llm, how)
                    self.assertTrue(idle(llm.session), how)                   # nothing runs any more
                    if ended_as(llm.session) == (_ffi.RUN_DONE, _ffi.FINISH_CANCELLED):
                        break                                                 # else it was done before we were: a very busy machine
                else:
                    self.fail(f"never cancelled, {how}")
                self.assertLess(llm.session.stats().n_generated, 480, how)
                self.assertEqual(len(list(llm(TEXT, max_tokens=3, stream=True))) > 1, True)


class Threads(Base):
    def parallel(self, *calls: Any) -> List[Any]:
        results: List[Any] = [None] * len(calls)

        def work(i: int) -> None:
            try:
                results[i] = calls[i]()
            except BaseException as error:
                results[i] = error
        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            self.assertFalse(thread.is_alive())
        return results

    def test_two_sessions_in_two_threads(self) -> None:
        a, b = self.session(), self.session()
        prompts = [TEXT, "And the children of Israel"]
        alone = [self.answer(a, 60, prompts[0]), self.answer(b, 60, prompts[1])]
        a.rewind(0)
        b.rewind(0)
        self.assertEqual(self.parallel(lambda: self.answer(a, 60, prompts[0]), lambda: self.answer(b, 60, prompts[1])), alone)

    def test_one_session_in_many_threads_waits(self) -> None:
        session = self.session()
        want = self.answer(session, 12)
        self.assertEqual(self.parallel(*[lambda: self.answer(session, 12)] * 6), [want] * 6)
        ids = self.model.tokenize(TEXT)

        def evaluate() -> int:
            with session.exclusive():
                session.rewind(0)
                session.eval(ids)
                return len(session.tokens())
        self.assertEqual(self.parallel(*[evaluate] * 6), [len(ids)] * 6)

    def test_reads_beside_a_running_generation(self) -> None:
        session = self.session(n_ctx=512)
        seen = []

        def watch() -> None:
            for _ in range(200):
                seen.append(session.stats().n_generated + len(session.tokens()) + session.info().n_tokens)
        answer, watched = self.parallel(lambda: self.answer(session, 200), watch)
        self.assertEqual((watched, len(seen)), (None, 200))
        self.assertGreater(len(answer), 100)

    def test_cancel_from_another_thread(self) -> None:
        session = self.session(n_ctx=512)
        for _ in range(10):
            session.rewind(0)
            timer = threading.Timer(0.05, session.cancel)
            timer.start()
            with self.assertRaises(hybridllm.CancelledError) as caught:
                while True:                                                   # it may end by itself before the cancel
                    self.answer(session, 480)
            timer.join()
            self.assertEqual(caught.exception.name, "HLLM_E_CANCELLED")
            self.assertTrue(idle(session))
            self.assertEqual(ended_as(session), (_ffi.RUN_DONE, _ffi.FINISH_CANCELLED))
        self.assertTrue(self.answer(session, 3))

    def test_close_from_another_thread(self) -> None:
        for _ in range(5):
            session = Session(self.engine, n_ctx=512)
            timer = threading.Timer(0.03, session.close)
            timer.start()
            with self.assertRaises((hybridllm.CancelledError, hybridllm.StateError)):
                while True:
                    self.answer(session, 480)
            timer.join()
            self.assertTrue(session.closed)

    def test_one_model_in_many_threads(self) -> None:
        want = self.model.tokenize(TEXT * 20)
        self.assertEqual(self.parallel(*[lambda: [self.model.tokenize(TEXT * 20) for _ in range(20)][-1]] * 4), [want] * 4)


class StepMode(Base):
    def test_argmax_by_hand_is_greedy(self) -> None:
        session = self.session()
        with session.steps(TEXT, max_tokens=10, temperature=1.0, seed=4) as steps:
            for logits in steps:
                self.assertEqual(len(logits), 4096)
                steps.allow([max(range(4096), key=logits.__getitem__)])
        self.assertEqual((steps.text, steps.finish_reason, len(steps.tokens)), (self.answer(session, 10), "length", 10))

    def test_masks(self) -> None:
        session = self.session()
        allowed = [[300, 301], [4095], [7]]
        with session.steps(TEXT, max_tokens=4, greedy=True) as steps:
            for i, logits in enumerate(steps):
                if i < 2:
                    steps.allow(allowed[i])
                elif i == 2:
                    steps.allow(bytes([1 << 7]) + bytes(511))
        self.assertIn(steps.tokens[0], allowed[0])
        self.assertEqual(steps.tokens[1:3], [4095, 7])
        self.assertEqual(len(steps.tokens), 4)                                # the fourth was free
        self.assertLess(steps.records[1].logprob, 0.1)

    def test_bad_masks_and_leaving_early(self) -> None:
        session = self.session()
        with session.steps(TEXT, max_tokens=40) as steps:
            next(steps)
            for bad in ([4096], [-1], b"short"):
                with self.assertRaises(hybridllm.ArgumentError):
                    steps.allow(bad)
        with self.assertRaises(hybridllm.CancelledError):
            next(steps)
        with session.steps(TEXT, max_tokens=40) as steps, self.assertRaises(hybridllm.HybridLLMError):
            for _ in steps:
                steps.allow([])                                               # nothing allowed: an error, not a token
        self.assertTrue(self.answer(session, 3))


if __name__ == "__main__":
    unittest.main()
