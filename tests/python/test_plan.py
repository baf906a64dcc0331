"""Plans from Python: for the shipped model, for a problem, to a file and back, refused where they do not fit."""
import json
import os
import unittest
import xml.dom.minidom

from common import ROOT
from hybridllm import Gpu, MismatchError, Model, OutOfMemoryError, Plan, FormatError

MODEL = os.path.join(ROOT, "models", "tiny-relu2-q8_0.gguf")
DATA = os.path.join(ROOT, "tests", "data", "planner")


class Plans(unittest.TestCase):
    def test_for_model(self) -> None:
        with Plan.for_model(MODEL, gpus=[Gpu(16 << 20, 1e12)], cpu_bytes=1 << 30, cpu_bytes_per_s=5e10) as plan:
            self.assertLessEqual(plan.info.bound, plan.info.objective)
            self.assertEqual(plan.info.n_layers, len(plan.layers))
            self.assertEqual([d.name for d in plan.devices], ["cpu", "gpu"])
            held = sum(p.bytes for d in plan.devices for p in d.parts if p.kind in ("attention", "head", "ffn_hot", "ffn_cold", "embedding"))
            with Model(MODEL) as model:
                self.assertEqual(held, model.info.tensor_bytes)       # every byte is somewhere, once
                plan.check(model)
                with Plan.read(plan.to_json()) as again:
                    self.assertEqual(again.layers, plan.layers)
                    again.check(model)
                    with self.assertRaises(MismatchError):
                        again.check(machine=True)                     # there is no GPU here
            xml.dom.minidom.parseString(plan.to_svg())

    def test_impossible(self) -> None:
        with self.assertRaisesRegex(OutOfMemoryError, "impossible"):
            Plan.for_model(MODEL, cpu_bytes=13 << 20, cpu_bytes_per_s=5e10)

    def test_problem(self) -> None:
        for name in ("neuron-tiny-time", "layer-b-links-overlap"):
            with open(os.path.join(DATA, name + ".problem.json")) as file:
                problem = json.load(file)
            with open(os.path.join(DATA, name + ".answer.json")) as file:
                want = json.load(file)["objective"]
            with Plan.solve(problem, solver="builtin") as plan:
                self.assertAlmostEqual(plan.answer()["objective"] / want, 1, places=6)
        with self.assertRaisesRegex(FormatError, "kind"):
            Plan.solve({"kind": "x"})


if __name__ == "__main__":
    unittest.main()
