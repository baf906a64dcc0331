"""Exceptions: one class for every status code that a program may want to catch alone, all of them HybridLLMError."""
from __future__ import annotations

from typing import Dict, Type

from ._ffi import STATUS

_NAMES = {code: "HLLM_" + name for name, code in STATUS.items()}


class HybridLLMError(Exception):
    """code: the negative hllm_status; name: such as "HLLM_E_FORMAT"; message: what, where, value and limit."""

    code: int
    name: str
    message: str

    def __init__(self, message: str, code: int = STATUS["E_INTERNAL"]) -> None:
        super().__init__(message, code)
        self.code = code
        self.name = _NAMES.get(code, "HLLM_E_?")
        self.message = message

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


class ArgumentError(HybridLLMError, ValueError):
    """HLLM_E_ARG, HLLM_E_LIMIT: out of range."""


class OutOfMemoryError(HybridLLMError, MemoryError):
    """HLLM_E_NOMEM: does not fit; the message has both numbers."""


class FileError(HybridLLMError):
    """HLLM_E_IO: the operating system refused."""


class FormatError(HybridLLMError):
    """HLLM_E_FORMAT, _TRUNCATED, _VERSION, _ENDIAN, _CORRUPT: the file is not what it should be."""


class UnsupportedError(HybridLLMError):
    """HLLM_E_UNSUPPORTED: well-formed, but nothing here can do it."""


class MismatchError(HybridLLMError):
    """HLLM_E_MISMATCH: two things that must fit do not."""


class StateError(HybridLLMError):
    """HLLM_E_STATE, HLLM_E_BUSY: not now; closed already."""


class CancelledError(HybridLLMError):
    """HLLM_E_CANCELLED: cancelled, as asked."""


class ContextFullError(HybridLLMError, ValueError):
    """HLLM_E_CONTEXT_FULL: the context has no room."""


class NumericError(HybridLLMError):
    """HLLM_E_NUMERIC: NaN or infinity in the logits."""


class NotFoundError(HybridLLMError, LookupError):
    """HLLM_E_NOT_FOUND: no such key, tensor, token or file."""


_CLASSES: Dict[str, Type[HybridLLMError]] = {
    "E_ARG": ArgumentError, "E_LIMIT": ArgumentError, "E_NOMEM": OutOfMemoryError, "E_IO": FileError, "E_FORMAT": FormatError,
    "E_TRUNCATED": FormatError, "E_VERSION": FormatError, "E_ENDIAN": FormatError, "E_CORRUPT": FormatError,
    "E_UNSUPPORTED": UnsupportedError, "E_MISMATCH": MismatchError, "E_STATE": StateError, "E_BUSY": StateError,
    "E_CANCELLED": CancelledError, "E_CONTEXT_FULL": ContextFullError, "E_NUMERIC": NumericError, "E_NOT_FOUND": NotFoundError,
}
_BY_CODE = {STATUS[name]: cls for name, cls in _CLASSES.items()}


def error_of(code: int, message: str) -> HybridLLMError:
    """The exception for a status code."""
    return _BY_CODE.get(code, HybridLLMError)(message, code)
