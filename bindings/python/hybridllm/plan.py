"""Plan: what goes where, and how fast that will be.  For a model, of which only the header is read, or for a problem given as JSON.

    plan = Plan.for_model("model.gguf", gpus=[Gpu(24 << 30, 1.0e12)], cpu_bytes=64 << 30, cpu_bytes_per_s=6.7e10)
    print(plan.info.seconds_per_token, plan.devices[1].parts)
    Path("model.plan.json").write_text(plan.to_json())
"""
from __future__ import annotations

import json
from ctypes import byref, c_void_p
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from . import _ffi
from ._ffi import lib
from ._handles import Handle, Owner, PathLike, as_bytes, c_path, check, choice, copy, read_bytes, run_slow, unsigned
from .model import KV, Model, Runtime

OBJECTIVE = {"auto": _ffi.OBJECTIVE_AUTO, "time": _ffi.OBJECTIVE_TIME, "impact": _ffi.OBJECTIVE_IMPACT}
SOLVER = {"auto": _ffi.SOLVER_AUTO, "builtin": _ffi.SOLVER_BUILTIN, "glpk": _ffi.SOLVER_GLPK}


class Gpu(NamedTuple):
    """Bytes that a plan may use, bytes per second of its memory, seconds of one hand-over in a layer (0: 30 microseconds)."""
    budget_bytes: int
    bytes_per_s: float
    sync_s: float = 0.0


class PlanInfo(NamedTuple):
    kind: int
    objective_kind: int
    n_layers: int
    n_devices: int
    k: int
    objective: float
    bound: float
    gap: float
    seconds_per_token: float
    solve_s: float
    solver: str
    model_hash: int
    model_bytes: int
    n_ctx: int
    uniform: int


class PlanPart(NamedTuple):
    kind: str
    bytes: int
    seconds: float


class PlanDevice(NamedTuple):
    name: str
    budget_bytes: int
    bytes: int
    seconds: float
    n_layers: int
    n_layers_gpu: int
    parts: List[PlanPart]


class PlanLayer(NamedTuple):
    gpu: int
    n_neurons: int
    n_neurons_gpu: int
    device: int
    on_gpu: int


class Plan(Owner):
    """Made by Plan.for_model, Plan.solve or Plan.read.  Any number of threads may use one at once."""

    def __init__(self, pointer: c_void_p, runtime: Runtime) -> None:
        self.runtime = runtime
        self._own(Handle(pointer.value, lib.hllm_plan_free, "plan"))
        self.info = self._info()

    @staticmethod
    def _options(objective: str, solver: str, time_limit_s: float, module_dir: Optional[PathLike]) -> Any:
        return _ffi.PlanOptions(objective=choice("objective", objective, OBJECTIVE), solver=choice("solver", solver, SOLVER),
                                time_limit_s=time_limit_s, module_dir=c_path(module_dir) if module_dir is not None else None)

    @classmethod
    def for_model(cls, model: Union[Model, PathLike], *, gpus: Sequence[Gpu] = (), cpu_bytes: int = 0, cpu_bytes_per_s: float = 0.0,
                  n_ctx: int = 0, kv: str = "f16", objective: str = "auto", solver: str = "auto", time_limit_s: float = 0.0,
                  module_dir: Optional[PathLike] = None) -> "Plan":
        """0 everywhere: what the machine has, or the default.  Of a path only the file's header is read: it may be incomplete."""
        raw = cls._options(objective, solver, time_limit_s, module_dir)
        raw.n_ctx, raw.kv = unsigned("n_ctx", n_ctx), choice("kv", kv, KV)
        raw.cpu_budget_bytes, raw.cpu_bytes_per_s = unsigned("cpu_bytes", cpu_bytes, 64), cpu_bytes_per_s
        array = (_ffi.PlanGpu * len(gpus))()
        for i, gpu in enumerate(gpus):
            array[i] = _ffi.PlanGpu(budget_bytes=unsigned("budget_bytes", gpu.budget_bytes, 64), bytes_per_s=gpu.bytes_per_s,
                                    sync_s=gpu.sync_s)
        raw.gpus, raw.n_gpus = array, len(gpus)
        own = not isinstance(model, Model)
        opened = model if isinstance(model, Model) else Model(model, header_only=True)
        out = c_void_p()
        try:
            with opened._handle as m:
                check(run_slow(lambda: int(lib.hllm_plan_solve(m, byref(raw), byref(out))), lambda: None), lib.hllm_model_last_error, m)
            return cls(out, opened.runtime)
        finally:
            if own:
                opened.close()

    @classmethod
    def _from_json(cls, call: Any, text: Union[str, bytes], runtime: Optional[Runtime]) -> "Plan":
        data, out = as_bytes(text), c_void_p()
        rt = runtime if runtime is not None else Runtime(n_threads=1)
        with rt._handle as h:
            check(run_slow(lambda: int(call(h, data, len(data), byref(out))), lambda: None), lib.hllm_runtime_last_error, h)
        return cls(out, rt)

    @classmethod
    def solve(cls, problem: Union[str, bytes, Mapping[str, Any]], *, objective: str = "auto", solver: str = "auto",
              time_limit_s: float = 0.0, module_dir: Optional[PathLike] = None, runtime: Optional[Runtime] = None) -> "Plan":
        """A problem as JSON text, or as what json.dumps takes."""
        raw = cls._options(objective, solver, time_limit_s, module_dir)
        text = problem if isinstance(problem, (str, bytes)) else json.dumps(problem)
        return cls._from_json(lambda h, data, n, out: lib.hllm_plan_solve_problem(h, data, n, byref(raw), out), text, runtime)

    @classmethod
    def read(cls, text: Union[str, bytes], *, runtime: Optional[Runtime] = None) -> "Plan":
        """The text of a plan file; it is verified."""
        return cls._from_json(lib.hllm_plan_read, text, runtime)

    def _check(self, rc: int, h: Optional[int]) -> None:
        check(rc, lib.hllm_plan_last_error, h)

    def _info(self) -> PlanInfo:
        raw = _ffi.PlanInfo()
        with self._handle as h:
            self._check(lib.hllm_plan_get_info(h, byref(raw)), h)
            return copy(PlanInfo, raw)

    def check(self, model: Optional[Model] = None, *, machine: bool = False) -> None:
        """MismatchError when it was not made for this model, or this machine cannot hold it."""
        flags = _ffi.PLAN_CHECK_MACHINE if machine else 0
        with self._handle as h:
            if model is None:
                self._check(lib.hllm_plan_check(h, None, flags), h)
            else:
                with model._handle as m:
                    self._check(lib.hllm_plan_check(h, m, flags), h)

    def _text(self, call: Any) -> str:
        with self._handle as h:
            rc, data = read_bytes(lambda buf, cap, n: int(call(h, buf, cap, n)), 1 << 16)
            self._check(rc, h)
        return data.decode("utf-8")

    def to_json(self) -> str:
        """What a plan file holds."""
        return self._text(lambda h, buf, cap, n: lib.hllm_plan_write(h, 0, buf, cap, n))

    def answer(self) -> Dict[str, Any]:
        """The answer alone, as `hllm plan --json` prints it."""
        found: Dict[str, Any] = json.loads(self._text(lambda h, buf, cap, n: lib.hllm_plan_write(h, _ffi.PLAN_ANSWER, buf, cap, n)))
        return found

    def to_svg(self) -> str:
        return self._text(lib.hllm_plan_draw)

    @property
    def devices(self) -> List[PlanDevice]:
        found: List[PlanDevice] = []
        with self._handle as h:
            for i in range(self.info.n_devices):
                raw, parts = _ffi.PlanDevice(), []
                self._check(lib.hllm_plan_get_device(h, i, byref(raw)), h)
                for j in range(raw.n_parts):
                    part = _ffi.PlanPart()
                    self._check(lib.hllm_plan_get_part(h, i, j, byref(part)), h)
                    parts.append(copy(PlanPart, part))
                found.append(PlanDevice(raw.name.decode("utf-8", "replace"), raw.budget_bytes, raw.bytes, raw.seconds, raw.n_layers,
                                        raw.n_layers_gpu, parts))
        return found

    @property
    def layers(self) -> List[PlanLayer]:
        found: List[PlanLayer] = []
        with self._handle as h:
            for i in range(self.info.n_layers):
                raw = _ffi.PlanLayer()
                self._check(lib.hllm_plan_get_layer(h, i, byref(raw)), h)
                found.append(copy(PlanLayer, raw))
        return found
