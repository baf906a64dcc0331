"""The ctypes mirror against a C compiler's view of the header: every struct, offset, constant and function."""
import ast
import ctypes
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import hybridllm
from common import ROOT
from hybridllm import _ffi

HEADER = os.path.join(ROOT, "include", "hybrid_llm.h")


def c_name(cls: type) -> str:
    return "hllm_" + re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


class Ffi(unittest.TestCase):
    def structs(self) -> list:
        found = [c for c in vars(_ffi).values() if isinstance(c, type) and issubclass(c, ctypes.Structure)]
        return [c for c in found if c not in (ctypes.Structure, _ffi.Struct)]

    def c_output(self, body: str) -> list:
        with tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, "a.c"), os.path.join(folder, "a")
            Path(source).write_text('#include "hybrid_llm.h"\n#include <stdio.h>\nint main(void) {\n' + body + "return 0; }\n")
            subprocess.run([os.environ.get("CC", "cc"), "-I", os.path.dirname(HEADER), source, "-o", program], check=True)
            return subprocess.run([program], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout.splitlines()

    def test_layouts(self) -> None:
        body, mine = "", []
        for cls in self.structs():
            name = c_name(cls)
            body += f'printf("{name} %zu\\n", sizeof({name}));\n'
            mine.append(f"{name} {ctypes.sizeof(cls)}")
            for field, ctype in cls._fields_:
                body += f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));\n'
                mine.append(f"{name}.{field} {getattr(cls, field).offset} {ctypes.sizeof(ctype)}")
        self.assertEqual(self.c_output(body), mine)
        self.assertGreater(len(mine), 120)

    def test_all_structs_and_fields(self) -> None:
        text = re.sub(r"/\*.*?\*/", "", Path(HEADER).read_text(), flags=re.S)
        bodies = dict((name, body) for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, flags=re.S))
        mine = {c_name(c): c for c in self.structs()}
        self.assertEqual(set(bodies), set(mine))
        for name, body in bodies.items():
            declared = re.findall(r"\(\*(\w+)\)|(\w+)(?:\[\d+\])?\s*(?:,|$)", "\n".join(
                line if "(*" not in line else re.search(r"\(\*\w+\)", line).group(0) for line in re.split(r"[;\n]", body) if line.strip()),
                flags=re.M)
            self.assertEqual([a or b for a, b in declared], [f[0] for f in mine[name]._fields_], name)

    def test_constants(self) -> None:
        names = [n for n in vars(_ffi) if re.match(r"(E|LOG|MODEL|VALUE|TOKENIZE|DETOKENIZE|SPECIAL|CHAT|OBJECTIVE|SOLVER|PLAN|PROFILE|LOAD|ACT|KV|GENERATE|RUN|FINISH)_[A-Z0-9_]+$", n)]
        pairs = [(n, getattr(_ffi, n)) for n in names] + list(_ffi.STATUS.items())
        body = "".join(f'printf("{n} %d\\n", (int)HLLM_{n});\n' for n, _ in pairs)
        self.assertEqual(self.c_output(body), [f"{n} {v}" for n, v in pairs])
        self.assertGreater(len(pairs), 80)
        codes = re.findall(r"HLLM_(OK|E_\w+)\s*=", Path(HEADER).read_text())
        self.assertEqual(sorted(codes), sorted(_ffi.STATUS))

    def test_functions(self) -> None:
        text = re.sub(r"/\*.*?\*/", "", Path(HEADER).read_text(), flags=re.S)
        declared = {name: args for name, args in re.findall(r"HLLM_API [^;]*?(hllm_\w+)\(([^;]*?)\);", text, flags=re.S)}
        self.assertEqual(set(declared), set(_ffi.FUNCTIONS))
        for name, args in declared.items():
            count = 0 if args.strip() == "void" else args.count(",") + 1
            self.assertEqual(count, len(_ffi.FUNCTIONS[name][1]), name)

    def test_names_of_codes(self) -> None:
        for name, code in _ffi.STATUS.items():
            self.assertEqual(_ffi.lib.hllm_status_name(code).decode(), "HLLM_" + name)

    def test_version(self) -> None:
        self.assertEqual(hybridllm.__version__, ".".join(map(str, _ffi.VERSION)))

    def test_syntax_of_python_3_9(self) -> None:
        for path in Path(hybridllm.__file__).parent.glob("*.py"):
            ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))

    def test_typed_and_no_dependencies(self) -> None:
        folder = Path(hybridllm.__file__).parent
        self.assertTrue((folder / "py.typed").exists())
        metadata = next(folder.parent.glob("hybridllm-*.dist-info")) / "METADATA"
        self.assertNotIn("Requires-Dist", metadata.read_text())
        self.assertIn("Requires-Python: >=3.9", metadata.read_text())

    def test_wheel_is_self_contained(self) -> None:
        """Every needed library is the platform's or inside the package; nothing but hllm_ symbols goes out; the tag is honest."""
        folder = Path(hybridllm.__file__).parent
        self.assertTrue((folder / "libhybridllm.so").exists())
        for library in folder.glob("*.so"):
            dynamic = subprocess.run(["readelf", "-d", "-V", "-W", str(library)], stdout=subprocess.PIPE, universal_newlines=True).stdout
            for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
                self.assertTrue(re.match(r"(libc|libm|libpthread|libdl|libgcc_s|ld-linux[-\w]*)\.so\.\d$", needed)
                                or (folder / needed).exists() and "hybridllm" in needed, needed)
            tag = re.search(r"Tag: py3-none-(\S+)", (next(folder.parent.glob("hybridllm-*.dist-info")) / "WHEEL").read_text())
            assert tag
            allowed = re.match(r"manylinux_2_(\d+)_", tag.group(1))
            if allowed:
                self.assertLessEqual(max(int(v) for v in re.findall(r"GLIBC_2\.(\d+)", dynamic)), int(allowed.group(1)))
        symbols = subprocess.run(["nm", "-D", "--defined-only", str(folder / "libhybridllm.so")], stdout=subprocess.PIPE, universal_newlines=True)
        names = [line.split()[-1] for line in symbols.stdout.splitlines()]
        self.assertEqual([n for n in names if not n.startswith(("hllm_", "HYBRIDLLM_"))], [])


if __name__ == "__main__":
    unittest.main()
