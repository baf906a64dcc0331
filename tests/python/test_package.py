"""The build backend: what it does where there are no static archives, the sdist, clear errors."""
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

import hybridllm
from common import HLLM, MODEL, ROOT

PACKAGE = Path(ROOT) / "bindings" / "python"
sys.path.insert(0, str(PACKAGE))
import build_backend  # noqa: E402

SHARED = Path(HLLM).resolve().parent.parent / "lib" / "libhybridllm.so"   # of the ordinary build: zstd and utf8proc are shared there


class Package(unittest.TestCase):
    def test_shared_dependencies_are_bundled_under_own_names(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            files = build_backend.bundle(SHARED.resolve(), Path(folder) / "b")
            copies = [n for n in files if n != "libhybridllm.so"]
            self.assertEqual(sorted(re.sub(r"-[0-9a-f]{8}\.so$", "", n) for n in copies), ["libhybridllm-jansson", "libhybridllm-utf8proc", "libhybridllm-zstd"])
            # loads from anywhere, works (a session file needs zstd), and the system's copies stay outside
            script = ("import os, sys, hybridllm\nllm = hybridllm.Llama(sys.argv[1], n_ctx=64); llm('In the', max_tokens=2)\n"
                      "llm.save_state(sys.argv[2]); llm.load_state(sys.argv[2])\n"
                      "print(*sorted({l.split('/')[-1] for l in open('/proc/self/maps').read().split() if 'zstd' in l or 'utf8proc' in l or 'jansson' in l}))\n")
            environment = dict(os.environ, HYBRIDLLM_LIBRARY=os.path.join(folder, "b", "libhybridllm.so"))
            done = subprocess.run([sys.executable, "-c", script, MODEL, os.path.join(folder, "s")], env=environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
            self.assertEqual(done.stdout, " ".join(sorted(copies)) + "\n")

    def test_without_patchelf_the_message_says_what_to_do(self) -> None:
        which, shutil.which = shutil.which, lambda *a, **k: None              # type: ignore[assignment]
        try:
            with tempfile.TemporaryDirectory() as folder, self.assertRaises(SystemExit) as caught:
                build_backend.bundle(SHARED.resolve(), Path(folder) / "b")
        finally:
            shutil.which = which
        self.assertRegex(str(caught.exception), "needs lib(zstd|utf8proc|jansson).*Debian: libzstd-dev, libutf8proc-dev, libjansson-dev")

    def test_honest_tags(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            data = SHARED.resolve().read_bytes()
            self.assertRegex(build_backend.platform_tag({"libhybridllm.so": data}, Path(folder)), "^linux_")   # needs libzstd from outside

    def test_sdist_is_complete(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            name = build_backend.build_sdist(folder)
            self.assertEqual(name, f"hybridllm-{hybridllm.__version__}.tar.gz")
            with tarfile.open(os.path.join(folder, name)) as archive:
                archive.extractall(folder)
            tree = Path(folder) / name[:-len(".tar.gz")]
            shown = subprocess.run([sys.executable, "-c", "import build_backend as b; print(b.source()); print(b.version())"], cwd=str(tree),
                                   stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout.split()
            self.assertEqual(shown, [str((tree / "native").resolve()), hybridllm.__version__])
            done = subprocess.run(["cmake", "-S", str(tree / "native"), "-B", os.path.join(folder, "b"), "-DHLLM_BUILD_TESTS=OFF",
                                   "-DHLLM_BUILD_EXAMPLES=OFF"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
            self.assertEqual(done.returncode, 0, done.stdout)
            for file in PACKAGE.glob("hybridllm/*.py"):
                self.assertTrue((tree / "hybridllm" / file.name).exists())
            self.assertTrue((tree / "PKG-INFO").read_text().startswith("Metadata-Version: 2.1\nName: hybridllm\n"))

    def test_licence_texts(self) -> None:
        words = {"LICENSE": "MIT", "THIRD-PARTY": "licences/", "zstd.txt": "For Zstandard software.*Meta Platforms.*Redistributions in binary form must reproduce",
                 "jansson.txt": "MIT license.*Petri Lehtinen.*Permission is hereby granted",
                 "utf8proc.txt": "Public Software Group.*Permission is hereby granted.*Unicode, Inc.*COPYRIGHT AND PERMISSION NOTICE|Unicode data license.*DATA FILES"}
        distribution = importlib.metadata.distribution("hybridllm")           # as tests/python.sh installed its wheel
        shipped = {Path(f).name: distribution.locate_file(f) for f in distribution.files or [] if f.parent.name == "licenses"}
        self.assertEqual(sorted(shipped), sorted(words))
        for name, pattern in words.items():
            text = Path(str(shipped[name])).read_text(encoding="utf-8")
            self.assertRegex(text, re.compile(pattern, re.S))
            self.assertEqual(text, next(f for f in build_backend.licence_files() if f.name == name).read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:                         # and from an sdist
            name = build_backend.build_sdist(folder)
            with tarfile.open(os.path.join(folder, name)) as archive:
                names = archive.getnames()
            for file in ("jansson", "zstd", "utf8proc"):
                self.assertIn(f"{name[:-len('.tar.gz')]}/native/licences/{file}.txt", names)

    def test_away_from_the_sources(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(str(PACKAGE / "build_backend.py"), folder)
            done = subprocess.run([sys.executable, "-c", "import build_backend as b; b.source()"], cwd=folder, stderr=subprocess.PIPE,
                                  universal_newlines=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("not two folders up", done.stderr)


if __name__ == "__main__":
    unittest.main()
