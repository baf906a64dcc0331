"""hybridllm: language models that are bigger than the GPU, or bigger than the machine.

    from hybridllm import Llama
    with Llama("model.gguf") as llm:
        for chunk in llm("In the beginning", max_tokens=64, stream=True):
            print(chunk["choices"][0]["text"], end="", flush=True)

Llama is the short way.  Runtime, Model, Engine and Session are the C library's handles: one Engine serves many Sessions.
"""
from ._ffi import lib as _lib
from .errors import (ArgumentError, CancelledError, ContextFullError, FileError, FormatError, HybridLLMError, MismatchError,
                     NotFoundError, NumericError, OutOfMemoryError, StateError, UnsupportedError)
from .llama import Llama
from .model import (Engine, MachineInfo, MachineProfile, MachineRate, MachineSpeed, MemoryNeed, Model, ModelInfo, Runtime, SessionOptions,
                    TensorInfo, TokenInfo, chat_template_names)
from .plan import Gpu, Plan, PlanDevice, PlanInfo, PlanLayer, PlanPart
from .session import Generation, RunStats, Session, SessionInfo, Steps, TokenRecord

__version__: str = _lib.hllm_version().decode()

__all__ = [
    "ArgumentError", "CancelledError", "ContextFullError", "Engine", "FileError", "FormatError", "Generation", "Gpu",
    "HybridLLMError", "Llama", "MachineInfo", "MachineProfile", "MachineRate", "MachineSpeed", "MemoryNeed", "MismatchError",
    "Model", "ModelInfo", "NotFoundError", "NumericError", "OutOfMemoryError", "Plan", "PlanDevice", "PlanInfo", "PlanLayer",
    "PlanPart", "RunStats", "Runtime", "Session", "SessionInfo", "SessionOptions", "StateError", "Steps", "TensorInfo",
    "TokenInfo", "TokenRecord", "UnsupportedError", "chat_template_names",
]
