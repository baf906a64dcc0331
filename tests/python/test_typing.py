"""What a user's type checker sees.  mypy runs over this file; the test only runs it."""
import unittest
from typing import Iterator, List, Optional

from common import MODEL
from hybridllm import Generation, Llama
from hybridllm.types import CreateChatCompletionResponse, CreateCompletionResponse, CreateCompletionStreamResponse


class Typing(unittest.TestCase):
    def test_types(self) -> None:
        with Llama(MODEL, n_ctx=64, chat_format="chatml") as llm:
            whole: CreateCompletionResponse = llm("In", max_tokens=1)
            text: str = whole["choices"][0]["text"]
            reason: Optional[str] = whole["choices"][0]["finish_reason"]
            total: int = whole["usage"]["total_tokens"]
            stream: Iterator[CreateCompletionStreamResponse] = llm.create_completion("In", max_tokens=1, stream=True)
            parts: List[str] = [chunk["choices"][0]["text"] for chunk in stream]
            chat: CreateChatCompletionResponse = llm.create_chat_completion([{"role": "user", "content": "In"}], max_tokens=1)
            content: str = chat["choices"][0]["message"]["content"]
            generation: Generation = llm.session.generate("In", max_tokens=1)
            pieces: List[str] = list(generation)
            self.assertTrue(reason == "length" and total > 1 and all(isinstance(x, str) for x in [text, content, *parts, *pieces]))


if __name__ == "__main__":
    unittest.main()
