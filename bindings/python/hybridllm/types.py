"""The dicts that completions return: the shapes of the OpenAI API, as llama-cpp-python's users know them."""
from __future__ import annotations

from typing import Dict, List, Literal, Optional, TypedDict, Union

FinishReason = Literal["stop", "length"]


class CompletionUsage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(TypedDict):
    text_offset: List[int]
    token_logprobs: List[Optional[float]]
    tokens: List[str]
    top_logprobs: List[Optional[Dict[str, float]]]


class CompletionChoice(TypedDict):
    text: str
    index: int
    logprobs: Optional[CompletionLogprobs]
    finish_reason: Optional[FinishReason]


class CreateCompletionStreamResponse(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: List[CompletionChoice]


class CreateCompletionResponse(CreateCompletionStreamResponse):
    usage: CompletionUsage


class ChatContentPart(TypedDict):
    type: Literal["text"]
    text: str


class ChatMessage(TypedDict):
    role: str
    content: Union[str, List[ChatContentPart], None]


class ChatTopLogprob(TypedDict):
    token: str
    bytes: Optional[List[int]]
    logprob: float


class ChatTokenLogprob(ChatTopLogprob):
    top_logprobs: List[ChatTopLogprob]


class ChatLogprobs(TypedDict):
    content: List[ChatTokenLogprob]
    refusal: None


class ChatResponseMessage(TypedDict):
    role: Literal["assistant"]
    content: str


class ChatChoice(TypedDict):
    index: int
    message: ChatResponseMessage
    logprobs: Optional[ChatLogprobs]
    finish_reason: Optional[FinishReason]


class CreateChatCompletionResponse(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: List[ChatChoice]
    usage: CompletionUsage


class ChatDelta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str


class ChatStreamChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: Optional[ChatLogprobs]
    finish_reason: Optional[FinishReason]


class CreateChatCompletionStreamResponse(TypedDict):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: List[ChatStreamChoice]


class EmbeddingData(TypedDict):
    index: int
    object: Literal["embedding"]
    embedding: List[float]


class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class CreateEmbeddingResponse(TypedDict):
    object: Literal["list"]
    model: str
    data: List[EmbeddingData]
    usage: EmbeddingUsage
