"""Llama: the names, shapes and rules that users of llama-cpp-python know."""
import math
import os
import subprocess
import tempfile
import unittest
from typing import Any, List, Tuple

import hybridllm
from common import HLLM, MODEL, TEXT
from hybridllm import Llama


class Base(unittest.TestCase):
    llm: Llama

    @classmethod
    def setUpClass(cls) -> None:
        cls.llm = Llama(MODEL, n_ctx=256, n_threads=2, seed=1)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.llm.close()


class Completion(Base):
    def text(self, prompt: Any = TEXT, **options: Any) -> str:
        options.setdefault("temperature", 0)
        return str(self.llm.create_completion(prompt, **options)["choices"][0]["text"])

    def test_shape(self) -> None:
        got = self.llm(TEXT, max_tokens=5)
        self.assertEqual(sorted(got), ["choices", "created", "id", "model", "object", "usage"])
        self.assertEqual(got["object"], "text_completion")
        self.assertTrue(got["id"].startswith("cmpl-"))
        self.assertIsInstance(got["created"], int)
        self.assertEqual(got["model"], MODEL)
        self.assertEqual(len(got["choices"]), 1)
        choice = got["choices"][0]
        self.assertEqual(sorted(choice), ["finish_reason", "index", "logprobs", "text"])
        self.assertEqual((choice["index"], choice["logprobs"], choice["finish_reason"]), (0, None, "length"))
        n = len(self.llm.tokenize(TEXT.encode()))
        self.assertEqual(got["usage"], {"prompt_tokens": n, "completion_tokens": 5, "total_tokens": n + 5})

    def test_stream_shape_and_text(self) -> None:
        chunks = list(self.llm(TEXT, max_tokens=8, temperature=0, stream=True))
        self.assertGreaterEqual(len(chunks), 2)      # on a busy machine one poll may bring all the text
        for chunk in chunks:
            self.assertEqual(sorted(chunk), ["choices", "created", "id", "model", "object"])
            self.assertEqual((chunk["id"], chunk["object"]), (chunks[0]["id"], "text_completion"))
        self.assertEqual([c["choices"][0]["finish_reason"] for c in chunks], [None] * (len(chunks) - 1) + ["length"])
        self.assertEqual("".join(c["choices"][0]["text"] for c in chunks), self.text(max_tokens=8))

    def test_greedy_equals_the_command_line(self) -> None:
        self.assertTrue(os.path.exists(HLLM), f"{HLLM} is missing: build the project first or set HLLM_BIN")
        done = subprocess.run([HLLM, "run", "-m", MODEL, "-p", TEXT, "-n", "40", "--greedy", "-c", "256"], stdout=subprocess.PIPE, check=True)
        mine = self.text(max_tokens=40)
        self.assertIn(done.stdout.decode().rstrip("\n"), (mine.rstrip("\n"), TEXT + mine.rstrip("\n")))

    def test_tokens_as_prompt_and_echo(self) -> None:
        ids = self.llm.tokenize(TEXT.encode())
        self.assertEqual(self.text(ids, max_tokens=6), self.text(max_tokens=6))
        self.assertEqual(self.text(max_tokens=6, echo=True), TEXT + self.text(max_tokens=6))
        self.assertEqual(self.text(ids, max_tokens=6, echo=True), TEXT + self.text(max_tokens=6))

    def test_stop(self) -> None:
        whole = self.text(max_tokens=40)
        stop = whole[len(whole) // 2:len(whole) // 2 + 5]                     # crosses token borders somewhere
        got = self.llm(TEXT, max_tokens=40, temperature=0, stop=["never seen", stop])["choices"][0]
        self.assertEqual((got["text"], got["finish_reason"]), (whole[:whole.index(stop)], "stop"))
        self.assertEqual(self.text(max_tokens=40, stop=stop), whole[:whole.index(stop)])
        self.assertEqual(self.text(max_tokens=40, stop=[]), whole)

    def test_logit_bias(self) -> None:
        first = self.llm.tokenize(self.text(max_tokens=1).encode(), add_bos=False)[0]
        other = 300
        self.assertNotEqual(first, other)
        self.assertEqual(self.llm.tokenize(self.text(max_tokens=3, logit_bias={str(other): 100.0}).encode(), add_bos=False), [other] * 3)
        self.assertNotEqual(self.text(max_tokens=1, logit_bias={first: -math.inf}), self.text(max_tokens=1))

    def test_seed(self) -> None:
        def sampled(**options: Any) -> str:
            return self.text(max_tokens=24, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, **options)
        self.assertEqual(sampled(seed=7), sampled(seed=7))
        self.assertNotEqual(sampled(seed=7), sampled(seed=8))
        self.assertNotEqual(sampled(), sampled())                             # the constructor's seed moves on with each call
        with Llama(MODEL, n_ctx=256, seed=5) as a, Llama(MODEL, n_ctx=256, seed=5) as b:   # two models at once
            for _ in range(3):
                self.assertEqual(a(TEXT, max_tokens=12)["choices"][0]["text"], b(TEXT, max_tokens=12)["choices"][0]["text"])
        self.assertEqual(len({sampled(seed=s, repeat_penalty=1.3) for s in range(6)}), 6)

    def test_default_sampling_is_not_greedy(self) -> None:
        texts = {self.llm(TEXT, max_tokens=16, seed=s)["choices"][0]["text"] for s in range(8)}
        self.assertGreater(len(texts), 3)

    def test_penalties_change_the_text(self) -> None:
        plain = self.text(max_tokens=40)
        for options in ({"repeat_penalty": 1.5}, {"frequency_penalty": 1.5}, {"presence_penalty": 1.5}):
            self.assertNotEqual(self.text(max_tokens=40, **options), plain, options)

    def test_logprobs(self) -> None:
        got = self.llm(TEXT, max_tokens=6, temperature=0, logprobs=3)["choices"][0]
        probs = got["logprobs"]
        assert probs is not None
        self.assertEqual(sorted(probs), ["text_offset", "token_logprobs", "tokens", "top_logprobs"])
        self.assertEqual("".join(probs["tokens"]), got["text"])
        self.assertEqual(probs["text_offset"], [len("".join(probs["tokens"][:i])) for i in range(6)])
        for token, value, top in zip(probs["tokens"], probs["token_logprobs"], probs["top_logprobs"]):
            self.assertEqual(len(top), 3)
            self.assertEqual(sorted(top.values(), reverse=True), list(top.values()))
            self.assertEqual(max(top, key=lambda t: top[t]), token)           # greedy takes the best
            self.assertAlmostEqual(top[token], value)
        # another road: the logits of the prompt's last position
        session = self.llm.session
        session.rewind(0)
        session.eval(self.llm.tokenize(TEXT.encode()))
        logits = session.logits()
        top = max(logits)
        total = top + math.log(sum(math.exp(x - top) for x in logits))
        self.assertAlmostEqual(top - total, probs["token_logprobs"][0], places=4)

    def test_logprobs_streamed(self) -> None:
        whole = self.llm(TEXT, max_tokens=12, temperature=0, logprobs=2)["choices"][0]["logprobs"]
        assert whole is not None
        parts = [c["choices"][0]["logprobs"] for c in self.llm(TEXT, max_tokens=12, temperature=0, logprobs=2, stream=True)]
        for name in whole:
            self.assertEqual(sum((p[name] for p in parts if p), []), whole[name])  # type: ignore[literal-required, misc]

    def test_logprobs_of_the_prompt(self) -> None:
        """echo: each prompt token as if it had been generated after those before it."""
        ids = self.llm.tokenize(TEXT.encode())
        whole = self.llm(TEXT, max_tokens=2, temperature=0, logprobs=2, echo=True)["choices"][0]
        probs = whole["logprobs"]
        assert probs is not None
        self.assertEqual("".join(probs["tokens"]), whole["text"])
        self.assertEqual(probs["text_offset"], [len("".join(probs["tokens"][:i])) for i in range(len(ids) + 2)])
        self.assertEqual((probs["token_logprobs"][0], probs["top_logprobs"][0]), (None, None))
        for i in (1, 2, len(ids) - 1):
            forced = self.llm(ids[:i], max_tokens=1, temperature=0, logprobs=2)["choices"][0]["logprobs"]
            assert forced is not None
            for token, value in (forced["top_logprobs"][0] or {}).items():
                self.assertAlmostEqual(value, (probs["top_logprobs"][i] or {})[token], delta=0.05)
            self.assertAlmostEqual((probs["top_logprobs"][i] or {})[probs["tokens"][i]], probs["token_logprobs"][i] or 0.0)
        chunks = list(self.llm(TEXT, max_tokens=2, temperature=0, logprobs=2, echo=True, stream=True))
        self.assertEqual(len((chunks[0]["choices"][0]["logprobs"] or probs)["tokens"]), len(ids))

    def test_logprobs_and_stop(self) -> None:
        whole = self.text(max_tokens=20)
        stop = whole[10:14]
        got = self.llm(TEXT, max_tokens=20, temperature=0, logprobs=0, stop=stop)["choices"][0]
        assert got["logprobs"] is not None
        self.assertTrue("".join(got["logprobs"]["tokens"]).startswith(got["text"]))
        self.assertLess(got["logprobs"]["text_offset"][-1], len(got["text"]))

    def test_max_tokens_none_fills_the_context(self) -> None:
        got = self.llm(TEXT, max_tokens=None, temperature=0, logit_bias={self.llm.token_eos(): -math.inf})
        self.assertEqual((got["choices"][0]["finish_reason"], got["usage"]["total_tokens"]), ("length", 256))

    def test_end_token_is_stop(self) -> None:
        got = self.llm(TEXT, max_tokens=9, logit_bias={self.llm.token_eos(): 1000.0}, logprobs=1)
        self.assertEqual((got["choices"][0]["text"], got["choices"][0]["finish_reason"]), ("", "stop"))

    def test_context_full(self) -> None:
        with self.assertRaises(hybridllm.ContextFullError) as caught:
            self.llm([300] * 300)
        self.assertEqual((caught.exception.code, caught.exception.name), (-14, "HLLM_E_CONTEXT_FULL"))
        self.assertIn("300", caught.exception.message)
        self.assertIn("256", caught.exception.message)

    def test_unsupported_and_unknown_options(self) -> None:
        self.llm(TEXT, max_tokens=1, grammar=None, tfs_z=1.0, typical_p=1.0, mirostat_mode=0, model="m")
        for options in ({"grammar": "root ::= x"}, {"suffix": "end"}, {"mirostat_mode": 2}):
            with self.assertRaises(hybridllm.UnsupportedError) as caught:
                self.llm(TEXT, **options)
            self.assertIn(next(iter(options)), str(caught.exception))
        with self.assertRaises(TypeError):
            self.llm(TEXT, tempreature=1.0)
        self.assertEqual(self.llm(TEXT, max_tokens=1, model="name")["model"], "name")

    def test_bad_values(self) -> None:
        for options in ({"temperature": math.nan}, {"top_p": 2.0}, {"logprobs": 100}, {"logprobs": -1}, {"stop": "a\0b"},
                        {"stop": ["x"] * 65}, {"logit_bias": {99999: 1.0}}, {"logit_bias": {-1: 1.0}}, {"top_k": 1 << 40}):
            with self.assertRaises(hybridllm.ArgumentError, msg=str(options)) as caught:
                self.llm(TEXT, **options)
            self.assertEqual(caught.exception.code, -1)
        for prompt in ([1 << 40], [-5], [4096]):
            with self.assertRaises(hybridllm.ArgumentError):
                self.llm(prompt)
        self.assertEqual(len(self.text(max_tokens=4)) > 0, True)              # still usable

    def test_empty_prompt(self) -> None:
        if self.llm.token_bos() < 0:
            with self.assertRaises(hybridllm.ArgumentError):
                self.llm("")
        else:
            self.llm("", max_tokens=1)

    def test_generate_tokens(self) -> None:
        ids = []
        for token in self.llm.generate(self.llm.tokenize(TEXT.encode()), temperature=0):
            ids.append(token)
            if len(ids) == 6:
                break
        self.assertEqual(self.llm.detokenize(ids, prev_tokens=[1]).decode(), self.text(max_tokens=6))


class Chat(unittest.TestCase):
    MESSAGES = [{"role": "system", "content": "Speak."}, {"role": "user", "content": [{"type": "text", "text": "In the"}, {"type": "text", "text": " beginning"}]}]

    def test_shapes(self) -> None:
        with Llama(MODEL, n_ctx=256, chat_format="chatml", seed=3) as llm:
            got = llm.create_chat_completion(self.MESSAGES, max_tokens=8, temperature=0, logprobs=True, top_logprobs=2)
            self.assertEqual(sorted(got), ["choices", "created", "id", "model", "object", "usage"])
            self.assertEqual(got["object"], "chat.completion")
            self.assertTrue(got["id"].startswith("chatcmpl-"))
            choice = got["choices"][0]
            self.assertEqual(sorted(choice), ["finish_reason", "index", "logprobs", "message"])
            self.assertEqual((choice["message"]["role"], choice["finish_reason"]), ("assistant", "length"))
            content = choice["logprobs"]["content"] if choice["logprobs"] else []
            self.assertEqual(b"".join(bytes(c["bytes"] or []) for c in content).decode(), choice["message"]["content"])
            self.assertTrue(all(len(c["top_logprobs"]) == 2 for c in content))
            self.assertEqual(got["usage"]["completion_tokens"], 8)

            chunks = list(llm.create_chat_completion(self.MESSAGES, max_tokens=8, temperature=0, stream=True))
            self.assertTrue(all(c["object"] == "chat.completion.chunk" for c in chunks))
            deltas = [c["choices"][0]["delta"] for c in chunks]
            self.assertEqual((deltas[0], deltas[-1]), ({"role": "assistant"}, {}))
            self.assertEqual("".join(d["content"] for d in deltas[1:-1]), choice["message"]["content"])
            self.assertEqual([c["choices"][0]["finish_reason"] for c in chunks], [None] * (len(chunks) - 1) + ["length"])

    def test_rendered_text_is_what_is_answered(self) -> None:
        with Llama(MODEL, n_ctx=256, chat_format="chatml") as llm:
            text = llm.model.chat_render(self.MESSAGES, template="chatml")
            self.assertEqual(text, "<|im_start|>system\nSpeak.<|im_end|>\n<|im_start|>user\nIn the beginning<|im_end|>\n<|im_start|>assistant\n")
            got = llm.create_chat_completion(self.MESSAGES, max_tokens=8, temperature=0)
            self.assertEqual(llm(text, max_tokens=8, temperature=0)["choices"][0]["text"], got["choices"][0]["message"]["content"])

    def test_long_conversations(self) -> None:
        with Llama(MODEL, n_ctx=256, chat_format="chatml") as llm:
            long = [{"role": "user", "content": "word " * 5000}]
            text = llm.model.chat_render(long, template="chatml")
            self.assertEqual(text, "<|im_start|>user\n" + "word " * 5000 + "<|im_end|>\n<|im_start|>assistant\n")
            self.assertEqual(llm.detokenize(llm.model.chat_tokenize(long, template="chatml"), special=True).decode(), text)
            with self.assertRaises(hybridllm.ContextFullError):
                llm.create_chat_completion(long)

    def test_no_template(self) -> None:
        with Llama(MODEL) as llm:
            with self.assertRaises(hybridllm.HybridLLMError) as caught:
                llm.create_chat_completion(self.MESSAGES)
            self.assertIn(caught.exception.code, (-9, -17))
        with self.assertRaises(hybridllm.UnsupportedError) as refused:           # said before the model is opened
            Llama("no-such-file.gguf", chat_format="no-such")
        for word in ("no-such'", "chatml", "llama3", "llama-3", "gemma"):
            self.assertIn(word, refused.exception.message)
        with Llama(MODEL, n_ctx=256, chat_format="llama-3") as llm:
            self.assertEqual(llm.chat_format, "llama3")
        with Llama(MODEL, chat_format="chatml") as llm, self.assertRaises(hybridllm.UnsupportedError):
            llm.create_chat_completion([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
        self.assertIn("chatml", hybridllm.chat_template_names())


class Others(Base):
    def test_tokens(self) -> None:
        ids = self.llm.tokenize(TEXT.encode())
        self.assertEqual(self.llm.detokenize(ids), TEXT.encode())
        self.assertEqual(self.llm.detokenize(self.llm.tokenize(b"a\0b \xff \xe2\x82")), b"a\0b \xff \xe2\x82")
        self.assertEqual(self.llm.tokenize(b"<|end|>", special=True), [self.llm.token_eos()])
        self.assertNotIn(self.llm.token_eos(), self.llm.tokenize(b"<|end|>"))
        self.assertEqual(self.llm.detokenize([self.llm.token_eos()], special=True), b"<|end|>")
        long = b"word " * 20000
        self.assertEqual(self.llm.detokenize(self.llm.tokenize(long)), long)

    def test_metadata(self) -> None:
        self.assertEqual(self.llm.metadata["general.architecture"], "arcee")
        self.assertEqual((self.llm.n_vocab(), self.llm.n_embd(), self.llm.n_ctx()), (4096, 256, 256))
        model = self.llm.model
        self.assertEqual(len(model.value("tokenizer.ggml.tokens")), 4096)
        self.assertIs(model.value("tokenizer.ggml.add_bos_token"), False)
        self.assertAlmostEqual(model.value("arcee.rope.freq_base"), 10000.0)
        with self.assertRaises(hybridllm.NotFoundError):
            model.value("no.such.key")
        tensors = {t.name: t for t in model.tensors()}
        self.assertEqual(tensors["token_embd.weight"].dims, [256, 4096, 1, 1])
        row = model.read_tensor("token_embd.weight", 256, 256)
        self.assertEqual((len(row), len(model.read_tensor("output_norm.weight"))), (256, 256))
        self.assertGreater(max(map(abs, row)), 0.0)
        self.assertEqual(model.token(self.llm.token_eos()).text, b"<|end|>")
        self.assertTrue(model.token(self.llm.token_eos()).ends_generation)
        need = model.memory_need(n_ctx=256)
        self.assertEqual(need.total_bytes, need.weights_bytes + need.kv_bytes + need.scratch_bytes)
        self.assertGreater(self.llm.runtime.machine().n_threads, 0)

    def test_embeddings(self) -> None:
        one = self.llm.create_embedding(TEXT)
        self.assertEqual(sorted(one), ["data", "model", "object", "usage"])
        self.assertEqual((one["object"], one["data"][0]["object"], len(one["data"][0]["embedding"])), ("list", "embedding", 256))
        self.assertEqual(one["usage"]["prompt_tokens"], len(self.llm.tokenize(TEXT.encode())))
        two = self.llm.embed([TEXT, "And the children of Israel"], normalize=True)
        self.assertAlmostEqual(sum(x * x for x in two[0]), 1.0, places=5)
        self.assertEqual(two[0], self.llm.embed(TEXT, normalize=True))
        self.assertNotEqual(two[0], two[1])
        # in micro-batches of 3: another road to nearly the same vector
        with Llama(MODEL, n_ctx=256, n_batch=3) as small:
            other = small.embed(TEXT)
        for a, b in zip(self.llm.embed(TEXT), other):
            self.assertAlmostEqual(a, b, delta=0.1)
        self.llm.session.rewind(0)
        self.llm.eval(self.llm.tokenize(TEXT.encode()))
        self.assertEqual(list(self.llm.session.embedding()), self.llm.embed(TEXT, pooling="last"))
        long = "and the Lord said " * 400
        with self.assertRaises(hybridllm.HybridLLMError) as caught:
            self.llm.embed(long)
        self.assertEqual(caught.exception.code, -14)
        self.assertRegex(caught.exception.message, rf"\b{len(self.llm.tokenize(long.encode()))} tokens.*\b{self.llm.n_ctx()}$")

    def test_state_file(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "zust\u00e4nd")
            self.llm(TEXT, max_tokens=8, temperature=0)
            tokens = self.llm.session.tokens()
            self.llm.save_state(path)
            with Llama(MODEL, n_ctx=256) as other:
                other.load_state(path)
                self.assertEqual((other.session.tokens(), other.n_tokens), (tokens, len(tokens)))
                whole = other.detokenize(tokens).decode()
                self.assertEqual(other(whole + " and", max_tokens=6, temperature=0)["choices"], self.llm(whole + " and", max_tokens=6, temperature=0)["choices"])
                self.assertGreater(other.session.stats().n_reused, 5)
                with open(path, "r+b") as file:
                    file.seek(os.path.getsize(path) // 2)
                    file.write(b"garbage")
                before = other.session.tokens()
                with self.assertRaises(hybridllm.HybridLLMError) as caught:
                    other.load_state(path)
                self.assertIn(caught.exception.name, ("HLLM_E_CORRUPT", "HLLM_E_FORMAT"))
                self.assertEqual(other.session.tokens(), before)
                with self.assertRaises(hybridllm.HybridLLMError):
                    other.load_state(os.path.join(folder, "missing"))
        self.llm.reset()
        self.assertEqual(self.llm.n_tokens, 0)

    def test_options_of_the_constructor(self) -> None:
        text = self.llm(TEXT, max_tokens=10, temperature=0)["choices"][0]["text"]
        for options in ({"use_mmap": False}, {"use_mmap": "always"}, {"type_k": 1, "type_v": "f16"}, {"verbose": True}, {"n_threads": 1}):
            with Llama(MODEL, n_ctx=256, **options) as llm:                   # type: ignore[arg-type]
                self.assertEqual(llm(TEXT, max_tokens=10, temperature=0)["choices"][0]["text"], text, options)
        for kv in ("f32", "q8_0", 8, 0):
            with Llama(MODEL, n_ctx=256, type_k=kv, act="f32") as llm:        # type: ignore[arg-type]
                self.assertEqual(llm(TEXT, max_tokens=3, temperature=0)["usage"]["completion_tokens"], 3)
        with self.assertWarns(RuntimeWarning):
            Llama(MODEL, n_ctx=64, n_gpu_layers=-1).close()
        for bad, cls in (({"type_k": "f16", "type_v": "f32"}, hybridllm.UnsupportedError), ({"type_k": "q2"}, hybridllm.ArgumentError),
                         ({"n_ctx": -1}, hybridllm.ArgumentError), ({"n_threads": 5000}, hybridllm.HybridLLMError),
                         ({"n_ctx": 100000}, hybridllm.HybridLLMError), ({"vocab_only": True}, hybridllm.UnsupportedError), ({"lora_path": "x"}, hybridllm.UnsupportedError),
                         ({"ram_bytes": 1000}, hybridllm.OutOfMemoryError), ({"nonsense": 1}, TypeError)):
            with self.assertRaises(cls, msg=str(bad)):
                Llama(MODEL, **bad).close()                                   # type: ignore[arg-type]

    def test_error_texts(self) -> None:
        """In words of this package: no name of a C function."""
        with self.assertRaisesRegex(hybridllm.NotFoundError, r"no chat template.*[( ]chat_template_names") as caught:
            self.llm.model.chat_template()
        self.assertNotIn("hllm_", str(caught.exception))
        with self.assertRaisesRegex(hybridllm.ArgumentError, "n_logprobs is 2, but no token records are asked for"):
            self.llm.session.generate(TEXT, n_logprobs=2)

    def test_memory_is_checked_before_loading(self) -> None:
        """Llama knows its session: what does not fit is refused before a weight is read, with the sum of both."""
        for options, kv in (({}, "f16"), ({"type_k": "f32"}, "f32"), ({"type_k": 8}, "q8_0"), ({"n_batch": 32}, "f16")):
            need = self.llm.model.memory_need(n_ctx=300, kv=kv, micro_batch=int(str(options.get("n_batch", 0))))
            with self.assertRaises(hybridllm.OutOfMemoryError) as caught:
                Llama(MODEL, n_ctx=300, use_mmap=False, ram_bytes=need.total_bytes - 1, **options)               # type: ignore[arg-type]
            self.assertIn(f"weights, KV cache and scratch need {need.total_bytes} bytes", caught.exception.message, str(options))
            with Llama(MODEL, n_ctx=300, use_mmap=False, ram_bytes=need.total_bytes, **options) as llm:           # type: ignore[arg-type]
                self.assertEqual(llm.n_ctx(), 300)

    def test_session_progress(self) -> None:
        seen: List[Tuple[int, int]] = []
        with hybridllm.Session(self.llm.engine, progress=lambda done, total: seen.append((done, total))) as session:
            self.assertEqual(seen[-1][0], seen[-1][1])
            self.assertGreaterEqual(seen[-1][1], session.info().kv_bytes)

        def stop(done: int, total: int) -> None:
            raise RuntimeError("enough")
        with self.assertRaisesRegex(RuntimeError, "enough"):
            hybridllm.Session(self.llm.engine, progress=stop)

    def test_load_progress(self) -> None:
        seen = []
        Llama(MODEL, use_mmap=False, progress=lambda done, total: seen.append((done, total))).close()
        self.assertTrue(seen and all(0 <= done <= total for done, total in seen), seen)
        self.assertEqual(seen[-1][0], seen[-1][1])

        def stop(done: int, total: int) -> None:
            raise RuntimeError("enough")
        with self.assertRaisesRegex(RuntimeError, "enough"):
            Llama(MODEL, progress=stop)


if __name__ == "__main__":
    unittest.main()
