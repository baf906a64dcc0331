"""Shared by the tests of the Python package: where things are.  Run by tests/python.sh, which sets the two variables."""
import os
import subprocess
import sys
from typing import Any, List

ROOT = os.environ.get("HLLM_TEST_ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.path.join(ROOT, "models", "tiny-relu2-q8_0.gguf")
HLLM = os.environ.get("HLLM_BIN") or os.path.join(ROOT, "build", "bin", "hllm")
TEXT = "In the beginning God created the heaven and the earth."


def python(script: str, *args: str, timeout: float = 60) -> "subprocess.CompletedProcess[str]":
    """Runs a script in a process of its own."""
    command: List[Any] = [sys.executable, "-X", "faulthandler", "-c", script, MODEL, *args]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=timeout)
