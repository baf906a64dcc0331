"""Llama: one model and one conversation behind the names that users of llama-cpp-python know.

Differences that a program may notice, all on purpose: nothing is printed (warnings: logger "hybridllm"); errors are exceptions with
code and message; what is not supported raises UnsupportedError instead of being ignored; a sampling option that is not given takes
the model file's own value (general.sampling.*) before llama-cpp-python's number; two BOS tokens never happen.
"""
from __future__ import annotations

import heapq
import itertools
import math
import os
import random
import time
import uuid
import warnings
from array import array
from typing import Any, Dict, Iterator, List, Literal, Mapping, Optional, Sequence, Tuple, Union, cast, overload

from . import _ffi
from ._handles import PathLike, Progress
from .errors import error_of
from .model import Engine, Model, Runtime, SessionOptions, chat_template_names
from .session import Generation, Session, TokenRecord
from .types import (ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, CompletionUsage, CreateChatCompletionResponse,
                    CreateChatCompletionStreamResponse, CreateCompletionResponse, CreateCompletionStreamResponse,
                    CreateEmbeddingResponse, FinishReason)

Stop = Union[str, Sequence[str], None]
Bias = Optional[Mapping[Any, float]]

# llama-cpp-python's numbers where the file has none, and the file's key.
_DEFAULTS: Dict[str, Tuple[float, str]] = {
    "temperature": (0.8, "general.sampling.temp"), "top_p": (0.95, "general.sampling.top_p"),
    "min_p": (0.05, "general.sampling.min_p"), "top_k": (40, "general.sampling.top_k"),
}
_TINY = 1e-30   # an explicit 0 of a float: in C 0 would mean the file's default, and this changes no result
_ANY_SEED = (None, -1, 0xFFFFFFFF)           # as llama-cpp-python says "any"
# Options of llama-cpp-python that nothing here does: only these values, which ask for nothing, are accepted.
_NEUTRAL: Dict[str, Any] = {
    "suffix": None, "grammar": None, "logits_processor": None, "stopping_criteria": None, "tfs_z": 1.0, "typical_p": 1.0,
    "mirostat_mode": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "functions": None, "function_call": None, "tools": None,
    "tool_choice": None, "response_format": None, "draft_model": None, "lora_path": None, "tensor_split": None,
    "rope_freq_base": 0.0, "rope_freq_scale": 0.0, "chat_handler": None, "tokenizer": None, "kv_overrides": None,
    "user": None, "n": 1, "best_of": 1, "vocab_only": False, "penalize_nl": True, "last_n_tokens_size": 64,
}
_CHAT_FORMATS = {"llama-2": "llama2", "llama-3": "llama3", "mistral-instruct": "mistral-v3", "qwen": "chatml", "phi-3": "phi3"}
_KV_OF_GGML = {0: "f32", 1: "f16", 8: "q8_0"}
# Hints on how to compute, and switches for what is always on here; model: the name in the results.
_HINTS = {"n_threads_batch", "n_ubatch", "use_mlock", "offload_kqv", "flash_attn", "main_gpu", "split_mode", "embedding", "logits_all",
          "model"}


def _refuse_unsupported(given: Mapping[str, Any], where: str) -> None:
    for name, value in given.items():
        if name in _HINTS:
            continue
        if name not in _NEUTRAL:
            raise TypeError(f"{where}() got an unexpected keyword argument {name!r}")
        if value is not None and value != _NEUTRAL[name]:
            raise error_of(_ffi.E_UNSUPPORTED, f"{where}({name}={value!r}): not supported here")


def _kv_name(type_k: Union[int, str, None], type_v: Union[int, str, None]) -> str:
    names: List[str] = []
    for given in (type_k, type_v):
        name = _KV_OF_GGML.get(given, str(given)) if isinstance(given, int) else given
        names.append(name or (names[0] if names else "f16"))
    if type_k is None and type_v is not None:
        names[0] = names[1]
    if names[0] != names[1]:
        raise error_of(_ffi.E_UNSUPPORTED, f"type_k {type_k!r} and type_v {type_v!r}: K and V have one type here")
    return names[0]


class Llama:
    """Loads a GGUF file and answers.

        with Llama("model.gguf") as llm:
            print(llm("In the beginning", max_tokens=32)["choices"][0]["text"])

    n_ctx 0: the smaller of the model's and 4,096.  n_threads None: the physical cores.  seed: makes the whole sequence of calls
    repeatable; None: different every time.  use_mmap True: mapped if it does not fit in memory; "always": always mapped; False: read.
    chat_format: the name of a built-in template (chat_template_names()); None: recognised from the model's own.
    type_k, type_v: f16, f32, q8_0 or ggml's numbers.  Calls of several threads wait for each other; see Session for the rules.
    """

    def __init__(self, model_path: PathLike, *, n_ctx: int = 0, n_threads: Optional[int] = None, n_batch: int = 0,
                 seed: Optional[int] = None, use_mmap: Union[bool, Literal["always"]] = True, chat_format: Optional[str] = None,
                 type_k: Union[int, str, None] = None, type_v: Union[int, str, None] = None, act: str = "q8", ram_bytes: int = 0,
                 n_gpu_layers: int = 0, verbose: bool = False, progress: Optional[Progress] = None, **other: Any) -> None:
        _refuse_unsupported(other, "Llama")
        planned: SessionOptions = {"n_ctx": n_ctx, "kv": _kv_name(type_k, type_v), "micro_batch": n_batch}
        if n_gpu_layers:
            warnings.warn("n_gpu_layers: this version of hybridllm computes on the CPU", RuntimeWarning, stacklevel=2)
        self.model_path = os.fsdecode(model_path)
        self.verbose = verbose
        self.chat_format = _CHAT_FORMATS.get(chat_format, chat_format) if chat_format else None
        if self.chat_format is not None and self.chat_format not in chat_template_names():
            known = " ".join([*_CHAT_FORMATS, *chat_template_names()])
            raise error_of(_ffi.E_UNSUPPORTED, f"chat_format {chat_format!r} is not known; known are: {known}")
        self._random = random.Random(None if seed in _ANY_SEED else seed)
        opened: List[Any] = []
        try:
            self.runtime = Runtime(n_threads=n_threads or 0)
            opened.append(self.runtime)
            self.model = Model(model_path, runtime=self.runtime, progress=progress)
            opened.append(self.model)
            load = "auto" if use_mmap is True else "mmap" if use_mmap else "read"
            self.engine = Engine(self.model, load=load, act=act, ram_bytes=ram_bytes, session=planned, progress=progress)
            opened.append(self.engine)
            self.session = Session(self.engine, **planned)
        except BaseException:
            for thing in reversed(opened):
                thing.close()
            raise
        self._file_has = {name for name, (_, key) in _DEFAULTS.items() if key in self.model.metadata}

    # -- life --

    def close(self) -> None:
        """Cancels what runs and frees all.  Any number of times."""
        for thing in (self.session, self.engine, self.model, self.runtime):
            thing.close()

    def __enter__(self) -> "Llama":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def cancel(self) -> None:
        """From any thread: the running call raises CancelledError."""
        self.session.cancel()

    def reset(self) -> None:
        """Forgets the conversation."""
        self.session.rewind(0)

    def save_state(self, path: PathLike) -> None:
        """Writes the conversation (tokens and KV cache) to a file."""
        self.session.save(path)

    def load_state(self, path: PathLike) -> None:
        self.session.load(path)

    # -- the model --

    def n_ctx(self) -> int:
        return self.session.info().n_ctx

    def n_vocab(self) -> int:
        return self.model.info.n_vocab

    def n_embd(self) -> int:
        return self.model.info.n_embd

    @property
    def n_tokens(self) -> int:
        """In the KV cache."""
        return self.session.info().n_tokens

    @property
    def metadata(self) -> Dict[str, Any]:
        return self.model.metadata

    def token_bos(self) -> int:
        return self.model.special_token(_ffi.SPECIAL_BOS)

    def token_eos(self) -> int:
        return self.model.special_token(_ffi.SPECIAL_EOS)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> List[int]:
        return self.model.tokenize(text, add_special=add_bos, parse_special=special)

    def detokenize(self, tokens: Sequence[int], prev_tokens: Optional[Sequence[int]] = None, special: bool = False) -> bytes:
        return self.model.detokenize(tokens, special=special, continues=bool(prev_tokens))

    # -- low level --

    def eval(self, tokens: Sequence[int]) -> None:
        self.session.eval(tokens)

    def generate(self, tokens: Sequence[int], **sampling: Any) -> Iterator[int]:
        """Token ids, one by one, until the end; sampling options as in create_completion."""
        generation = self._start(tokens, dict(sampling, records=True))
        return self._ids(generation)

    @staticmethod
    def _ids(generation: Generation) -> Iterator[int]:
        with generation:
            while generation.run != _ffi.RUN_DONE:
                generation.poll()
                while generation.records:
                    yield generation.records.popleft().token

    def _start(self, tokens: Sequence[int], given: Mapping[str, Any], temperature: float = 0.8) -> Generation:
        """Sampling options of llama-cpp-python to those of Session.generate."""
        options = {name: value for name, value in given.items() if value is not None}
        for name, (number, _) in _DEFAULTS.items():
            if name not in options and name not in self._file_has:
                options[name] = temperature if name == "temperature" else number
        if options.get("temperature", 1) <= 0:
            options["greedy"] = True
            options.pop("temperature")
        if options.get("top_k", 1) <= 0:
            options["top_k"] = -1
        for name in ("top_p", "min_p", "frequency_penalty", "presence_penalty"):
            if options.get(name) == 0:
                options[name] = _TINY
        if options.get("max_tokens", 0) < 0:
            options["max_tokens"] = 0
        stop = options.pop("stop", None) or []
        options["stop"] = [text for text in ([stop] if isinstance(stop, str) else stop) if text]
        if len(options["stop"]) == 0:
            del options["stop"]
        if options.get("seed") in _ANY_SEED:
            options["seed"] = self._random.getrandbits(64)
        options["seed"] &= (1 << 64) - 1
        return self.session.generate(tokens, **options)

    def _prompt_tokens(self, prompt: Union[str, Sequence[int]]) -> List[int]:
        tokens = self.model.tokenize(prompt, parse_special=True) if isinstance(prompt, str) else list(prompt)
        if not tokens and self.token_bos() >= 0:
            tokens = [self.token_bos()]
        return tokens

    # -- completions --

    @overload
    def create_completion(self, prompt: Union[str, Sequence[int]], *, stream: Literal[False] = False,
                          **options: Any) -> CreateCompletionResponse: ...

    @overload
    def create_completion(self, prompt: Union[str, Sequence[int]], *, stream: Literal[True],
                          **options: Any) -> Iterator[CreateCompletionStreamResponse]: ...

    @overload
    def create_completion(self, prompt: Union[str, Sequence[int]], *, stream: bool, **options: Any,
                          ) -> Union[CreateCompletionResponse, Iterator[CreateCompletionStreamResponse]]: ...

    def create_completion(self, prompt: Union[str, Sequence[int]], *, max_tokens: Optional[int] = 16,
                          temperature: Optional[float] = None, top_p: Optional[float] = None, min_p: Optional[float] = None,
                          top_k: Optional[int] = None, stop: Stop = None, stream: bool = False, seed: Optional[int] = None,
                          repeat_penalty: Optional[float] = None, frequency_penalty: Optional[float] = None,
                          presence_penalty: Optional[float] = None, logprobs: Optional[int] = None, echo: bool = False,
                          logit_bias: Bias = None, **other: Any) -> Any:
        """Continues a text.  Control tokens spelled out in the prompt are parsed, so do not put users' text in it: that is what
        create_chat_completion is for.  max_tokens None or 0: until the end.  None elsewhere: the file's value, else
        llama-cpp-python's (temperature 0.8, top_p 0.95, min_p 0.05, top_k 40); temperature 0: greedy.
        logprobs: that many alternatives per token; with echo also of the prompt's tokens (worked out in Python: slow for long ones).
        stream: returns an iterator of chunks; closing it or leaving the loop cancels."""
        _refuse_unsupported(other, "create_completion")
        tokens = self._prompt_tokens(prompt)
        head, head_logprobs = "", None
        if echo:
            head = prompt if isinstance(prompt, str) else self.model.detokenize(prompt).decode("utf-8", "replace")
            head_logprobs = self._prompt_logprobs(tokens, logprobs) if logprobs is not None else None
        generation = self._start(tokens, {
            "max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "min_p": min_p, "top_k": top_k, "stop": stop,
            "seed": seed, "repeat_penalty": repeat_penalty, "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty, "logit_bias": logit_bias, "n_logprobs": logprobs,
            "records": logprobs is not None})
        common = {"id": f"cmpl-{uuid.uuid4()}", "object": "text_completion", "created": int(time.time()),
                  "model": other.get("model") or self.model_path}
        probabilities = _Logprobs(self.model, generation, len(head)) if logprobs is not None else None
        if stream:
            return self._completion_chunks(generation, common, head, head_logprobs, probabilities)
        text = "".join(generation)
        found = probabilities.completion(text, True) if probabilities else None
        if head_logprobs and found:
            both: List[Any] = [head_logprobs, found]
            found = cast(CompletionLogprobs, {name: both[0][name] + both[1][name] for name in both[0]})
        return {**common, "choices": [_choice(head + text, found, generation.finish_reason)], "usage": _usage(generation)}

    __call__ = create_completion

    @staticmethod
    def _completion_chunks(generation: Generation, common: Mapping[str, Any], head: str, head_logprobs: Optional[CompletionLogprobs],
                           probabilities: "Optional[_Logprobs]") -> Iterator[CreateCompletionStreamResponse]:
        def chunk(text: str, logprobs: Optional[CompletionLogprobs], reason: Optional[str]) -> CreateCompletionStreamResponse:
            return cast(CreateCompletionStreamResponse, {**common, "choices": [_choice(text, logprobs, reason)]})
        with generation:
            if head:
                yield chunk(head, head_logprobs, None)
            for text in generation:
                yield chunk(text, probabilities.completion(text, False) if probabilities else None, None)
            yield chunk("", probabilities.completion("", True) if probabilities else None, generation.finish_reason)

    def _prompt_logprobs(self, tokens: Sequence[int], n_top: int) -> CompletionLogprobs:
        """Of each prompt token after those before it; None for the first.  Leaves the prompt in the session."""
        session = self.session
        names = [_name(self.model, token) for token in tokens]
        names[:1] = [self.model.detokenize(tokens[:1], special=True).decode("utf-8", "replace")]
        values: List[Optional[float]] = [None]
        tops: List[Optional[Dict[str, float]]] = [None]
        with session.exclusive():
            step = session.info().micro_batch
            session.rewind(0)
            for first in range(0, len(tokens), step):
                part = tokens[first:first + step]
                session.eval(part)
                for position in range(first, min(first + len(part), len(tokens) - 1)):
                    logits = session.logits(position)
                    highest = max(logits)
                    total = highest + math.log(sum(math.exp(x - highest) for x in logits))
                    best = heapq.nlargest(n_top, range(len(logits)), key=lambda t: logits[t])
                    value = logits[tokens[position + 1]] - total
                    top = {_name(self.model, t): logits[t] - total for t in best}
                    top.setdefault(names[position + 1], value)
                    values.append(value)
                    tops.append(top)
        offsets = [0, *itertools.accumulate(map(len, names))][:-1]
        return {"text_offset": offsets, "tokens": names, "token_logprobs": values, "top_logprobs": tops}

    # -- chat --

    @overload
    def create_chat_completion(self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[False] = False,
                               **options: Any) -> CreateChatCompletionResponse: ...

    @overload
    def create_chat_completion(self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True],
                               **options: Any) -> Iterator[CreateChatCompletionStreamResponse]: ...

    @overload
    def create_chat_completion(self, messages: Sequence[Mapping[str, Any]], *, stream: bool, **options: Any,
                               ) -> Union[CreateChatCompletionResponse, Iterator[CreateChatCompletionStreamResponse]]: ...

    def create_chat_completion(self, messages: Sequence[Mapping[str, Any]], *, max_tokens: Optional[int] = None,
                               temperature: Optional[float] = None, top_p: Optional[float] = None, min_p: Optional[float] = None,
                               top_k: Optional[int] = None, stop: Stop = None, stream: bool = False, seed: Optional[int] = None,
                               repeat_penalty: Optional[float] = None, frequency_penalty: Optional[float] = None,
                               presence_penalty: Optional[float] = None, logprobs: Optional[bool] = None,
                               top_logprobs: Optional[int] = None, logit_bias: Bias = None, thinking: bool = True,
                               **other: Any) -> Any:
        """Answers a conversation in the model's own template; message texts cannot forge control tokens.  Defaults as in
        create_completion, but temperature 0.2.  thinking False: asks for an answer without it where the template has the choice."""
        _refuse_unsupported(other, "create_chat_completion")
        tokens = self.model.chat_tokenize(messages, template=self.chat_format, thinking=thinking)
        generation = self._start(tokens, {
            "max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "min_p": min_p, "top_k": top_k, "stop": stop,
            "seed": seed, "repeat_penalty": repeat_penalty, "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty, "logit_bias": logit_bias, "n_logprobs": (top_logprobs or 0) if logprobs else 0,
            "records": bool(logprobs)}, temperature=0.2)
        common = {"id": f"chatcmpl-{uuid.uuid4()}", "created": int(time.time()), "model": other.get("model") or self.model_path}
        probabilities = _Logprobs(self.model, generation, 0) if logprobs else None
        if stream:
            return self._chat_chunks(generation, common, probabilities)
        text = "".join(generation)
        return {**common, "object": "chat.completion", "usage": _usage(generation), "choices": [{
            "index": 0, "message": {"role": "assistant", "content": text},
            "logprobs": probabilities.chat(text, True) if probabilities else None, "finish_reason": generation.finish_reason}]}

    @staticmethod
    def _chat_chunks(generation: Generation, common: Mapping[str, Any],
                     probabilities: "Optional[_Logprobs]") -> Iterator[CreateChatCompletionStreamResponse]:
        def chunk(delta: Mapping[str, str], logprobs: Optional[ChatLogprobs], reason: Optional[str]) -> Any:
            return {**common, "object": "chat.completion.chunk",
                    "choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}]}
        with generation:
            yield chunk({"role": "assistant"}, None, None)
            for text in generation:
                yield chunk({"content": text}, probabilities.chat(text, False) if probabilities else None, None)
            yield chunk({}, probabilities.chat("", True) if probabilities else None, generation.finish_reason)

    # -- embeddings --

    def embed(self, input: Union[str, Sequence[str]], *, normalize: bool = False, pooling: Literal["mean", "last"] = "mean") -> Any:
        """The mean (or last) hidden state of a text: list of n_embd floats, or a list of them for a list of texts.  Uses the
        session: the conversation is forgotten."""
        one = isinstance(input, str)
        texts: Sequence[str] = [cast(str, input)] if one else input
        found = [self._embed(self._prompt_tokens_of_data(text), normalize, pooling) for text in texts]
        return found[0] if one else found

    def create_embedding(self, input: Union[str, Sequence[str]], model: Optional[str] = None, *, normalize: bool = False,
                         pooling: Literal["mean", "last"] = "mean") -> CreateEmbeddingResponse:
        texts: Sequence[str] = [input] if isinstance(input, str) else input
        data: List[Any] = []
        n = 0
        for index, text in enumerate(texts):
            tokens = self._prompt_tokens_of_data(text)
            n += len(tokens)
            data.append({"object": "embedding", "embedding": self._embed(tokens, normalize, pooling), "index": index})
        return {"object": "list", "data": data, "model": model or self.model_path, "usage": {"prompt_tokens": n, "total_tokens": n}}

    def _prompt_tokens_of_data(self, text: str) -> List[int]:
        return self.model.tokenize(text) or self._prompt_tokens("")

    def _embed(self, tokens: Sequence[int], normalize: bool, pooling: str) -> List[float]:
        if pooling not in ("mean", "last"):
            raise error_of(_ffi.E_ARG, f"pooling is {pooling!r}, expected mean or last")
        session = self.session
        info = session.info()
        if len(tokens) > info.n_ctx:
            raise error_of(_ffi.E_CONTEXT_FULL, f"the text's {len(tokens)} tokens do not fit: the context is {info.n_ctx}")
        n_embd, step = self.n_embd(), info.micro_batch
        total = array("d", bytes(8 * n_embd))
        with session.exclusive():
            session.rewind(0)
            for first in range(0, len(tokens), step):
                part = tokens[first:first + step]
                session.eval(part)
                wanted = range(first, first + len(part)) if pooling == "mean" else [first + len(part) - 1]
                for position in wanted:
                    row = session.embedding(position)
                    total = array("d", map(float.__add__, total, row)) if pooling == "mean" else array("d", row)
        size = float(len(tokens)) if pooling == "mean" else 1.0
        if normalize:
            size = sum(x * x for x in total) ** 0.5 or 1.0
        return [x / size for x in total]


def _usage(generation: Generation) -> CompletionUsage:
    n, m = generation.n_prompt, generation.n_generated
    return {"prompt_tokens": n, "completion_tokens": m, "total_tokens": n + m}


def _choice(text: str, logprobs: Optional[CompletionLogprobs], reason: Optional[str]) -> Dict[str, Any]:
    return {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": cast(Optional[FinishReason], reason)}


def _piece(model: Model, token: int) -> bytes:
    """A token's text inside a text, control tokens spelled out."""
    return model.detokenize([token], special=True, continues=True)


def _name(model: Model, token: int) -> str:
    return _piece(model, token).decode("utf-8", "replace")


class _Logprobs:
    """Pairs token records with the text that was handed out: a token belongs to the chunk that its text ends in."""

    def __init__(self, model: Model, generation: Generation, offset: int) -> None:
        self._model, self._generation = model, generation
        self._text, self._offset = b"", offset
        self._begin = 0   # byte where the next record's text begins

    def _take(self, text: str, last: bool) -> List[Tuple[int, TokenRecord]]:
        """(character offset, record) of the records that end in the text so far; at the end also of one that a stop text cut."""
        self._text += text.encode("utf-8")
        found, records = [], self._generation.records
        while records and (records[0].text_end <= len(self._text) or last):
            record, begin = records.popleft(), self._begin
            self._begin = record.text_end
            if begin < len(self._text) or record.text_end == begin and not last:
                found.append((self._offset + len(self._text[:begin].decode("utf-8", "ignore")), record))
        return found

    def completion(self, text: str, last: bool) -> CompletionLogprobs:
        taken = self._take(text, last)
        return {"text_offset": [offset for offset, _ in taken], "token_logprobs": [r.logprob for _, r in taken],
                "tokens": [_name(self._model, r.token) for _, r in taken],
                "top_logprobs": [self._top(r) for _, r in taken]}

    def _top(self, record: TokenRecord) -> Dict[str, float]:
        best = {_name(self._model, token): value for token, value in record.top}
        best.setdefault(_name(self._model, record.token), record.logprob)
        return best

    def _one(self, token: int, value: float) -> Dict[str, Any]:
        piece = _piece(self._model, token)
        return {"token": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": value}

    def chat(self, text: str, last: bool) -> ChatLogprobs:
        content = [{**self._one(r.token, r.logprob), "top_logprobs": [self._one(t, v) for t, v in r.top]}
                   for _, r in self._take(text, last)]
        return {"content": cast(List[ChatTokenLogprob], content), "refusal": None}
