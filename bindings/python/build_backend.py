"""The build backend of the Python package (PEP 517), in the standard library alone.

build_wheel configures the library's own CMakeLists.txt (two folders up, or native/ in an sdist) with wheel.cmake and packs the
shared library beside the Python files.  zstd and utf8proc are linked statically, so that no name of theirs can meet another copy in
the host's process; jansson (whose archives are not made for shared libraries), and the others where there are no static archives, are
copied in as shared libraries under names of their own, as auditwheel does
(this needs patchelf).  The tag is manylinux_2_N with the N that the library's symbols ask for, or linux_* when something else than
glibc and the compiler's own library is needed.

Config settings (pip install --config-settings NAME=VALUE): build-dir, a folder that CMake may keep; cmake-args, more arguments.
"""
from __future__ import annotations

import base64
import hashlib
import io
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Dict, List, Optional, Tuple

HERE = Path(__file__).resolve().parent
NAME = "hybridllm"
NATIVE = ("CMakeLists.txt", "LICENSE", "THIRD-PARTY", "licences", "include", "lib", "backends", "planner")          # what the library is made from
LIBRARY = "libhybridllm.so"
PLATFORM_LIBRARIES = re.compile(r"(libc|libm|libpthread|libdl|librt|libgcc_s|ld-linux[-\w]*)\.so\.\d+$")

Config = Optional[Dict[str, str]]


def source() -> Path:
    for folder in (HERE / "native", HERE.parent.parent):
        if (folder / "include" / "hybrid_llm.h").is_file():
            return folder
    raise SystemExit(f"{HERE}: the library's sources are not two folders up (pip below 21.3 copies this folder away: use a newer one)")


def version() -> str:
    found = re.search(r"project\(hybridllm VERSION ([\d.]+)", (source() / "CMakeLists.txt").read_text())
    if not found:
        raise SystemExit("CMakeLists.txt: no project version")
    return found.group(1)


def metadata() -> str:
    head = [
        "Metadata-Version: 2.1", f"Name: {NAME}", f"Version: {version()}",
        "Summary: Run language models that are bigger than the GPU, or bigger than the machine",
        "License: MIT", "Requires-Python: >=3.9", "Classifier: License :: OSI Approved :: MIT License",
        "Classifier: Operating System :: POSIX :: Linux", "Classifier: Programming Language :: Python :: 3",
        "Classifier: Typing :: Typed", "Description-Content-Type: text/markdown",
    ]
    return "\n".join(head) + "\n\n" + (HERE / "README.md").read_text(encoding="utf-8")


# ---- native part ----

def run(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, universal_newlines=True)
    if done.returncode:
        sys.stderr.write(done.stdout)
        raise SystemExit(f"failed with status {done.returncode}: {' '.join(map(shlex.quote, command))}")
    return done.stdout


def cmake_is_enough() -> bool:
    try:
        found = re.search(r"(\d+)\.(\d+)", subprocess.run(["cmake", "--version"], stdout=subprocess.PIPE, universal_newlines=True).stdout)
    except OSError:
        return False
    return found is not None and (int(found.group(1)), int(found.group(2))) >= (3, 25)


def build_library(config: Config, work: Path) -> Tuple[Dict[str, bytes], str]:
    """({file name: content}, platform tag)."""
    settings = config or {}
    build = Path(settings.get("build-dir") or work / "build").resolve()
    stage = work / "stage"
    arguments = ["cmake", "-S", str(source()), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_INSTALL_LIBDIR=lib",
                 "-DHLLM_BUILD_TESTS=OFF", "-DHLLM_BUILD_EXAMPLES=OFF", "-DHLLM_GLPK=OFF", f"-DCMAKE_PROJECT_INCLUDE={HERE / 'wheel.cmake'}"]
    if shutil.which("ninja") and not (build / "Makefile").exists():
        arguments += ["-G", "Ninja"]
    run(*arguments, *shlex.split(settings.get("cmake-args") or ""))
    run("cmake", "--build", str(build), "--parallel", str(os.cpu_count() or 1))
    run("cmake", "--install", str(build), "--prefix", str(stage), "--strip")
    library = (stage / "lib" / LIBRARY).resolve()
    files = bundle(library, work / "bundle")
    return files, platform_tag(files, work)


def needed(library: Path) -> List[str]:
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", "-W", str(library)))


def bundle(library: Path, folder: Path) -> Dict[str, bytes]:
    """The library, and copies of what it needs beyond the platform's libraries under names with a hash in them."""
    folder.mkdir()
    target = folder / LIBRARY
    shutil.copy(str(library), str(target))
    todo: List[Path] = [target]
    names: Dict[str, str] = {}                                               # name in NEEDED -> name here
    while todo:
        user = todo.pop()
        for name in needed(user):
            if PLATFORM_LIBRARIES.match(name) or name in names.values():
                continue
            if not shutil.which("patchelf"):
                raise SystemExit(f"{user.name} needs {name}: install its static archive (Debian: libzstd-dev, libutf8proc-dev, libjansson-dev) or patchelf")
            if name not in names:
                found = re.search(rf"{re.escape(name)} => (\S+)", run("ldd", str(library)))
                if not found:
                    raise SystemExit(f"{user.name} needs {name}, which cannot be found")
                digest = hashlib.sha256(Path(found.group(1)).read_bytes()).hexdigest()[:8]
                names[name] = f"lib{NAME}-{name.split('.so')[0][3:]}-{digest}.so"
                copy = folder / names[name]
                shutil.copy(os.path.realpath(found.group(1)), str(copy))
                run("patchelf", "--set-soname", names[name], str(copy))
                todo.append(copy)
            run("patchelf", "--replace-needed", name, names[name], str(user))      # one thing per run: Debian 12's forgets others
            run("patchelf", "--set-rpath", "$ORIGIN", str(user))
        left = [name for name in needed(user) if not PLATFORM_LIBRARIES.match(name) and name not in names.values()]
        if left:
            raise SystemExit(f"patchelf did not change what {user.name} needs: {' '.join(left)}")
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def platform_tag(files: Dict[str, bytes], work: Path) -> str:
    machine = platform.machine()
    minor = 17                                                               # manylinux2014, the oldest that pip of today serves
    for name, data in files.items():
        path = work / ("tag-" + name)
        path.write_bytes(data)
        versions = re.findall(r"Name: GLIBC_2\.(\d+)", run("readelf", "-V", "-W", str(path)))
        foreign = [lib for lib in needed(path) if lib not in files and not PLATFORM_LIBRARIES.match(lib)]
        if not versions or foreign:
            return f"linux_{machine}"
        minor = max([minor] + [int(v) for v in versions])
    return f"manylinux_2_{minor}_{machine}"


# ---- PEP 517 ----

def get_requires_for_build_wheel(config_settings: Config = None) -> List[str]:
    return [] if cmake_is_enough() else ["cmake>=3.25", "ninja"]


def get_requires_for_build_sdist(config_settings: Config = None) -> List[str]:
    return []


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Config = None) -> str:
    info = f"{NAME}-{version()}.dist-info"                                    # without this hook pip would build the library twice
    (Path(metadata_directory) / info).mkdir()
    (Path(metadata_directory) / info / "METADATA").write_text(metadata(), encoding="utf-8")
    return info


def package_files() -> List[Path]:
    return sorted(p for p in (HERE / NAME).iterdir() if p.suffix == ".py" or p.name == "py.typed")


def licence_files() -> List[Path]:
    """Ours, and those of what the library holds: a wheel without them would break the latter."""
    files = [source() / "LICENSE", source() / "THIRD-PARTY", *(source() / "licences" / f"{name}.txt" for name in ("jansson", "utf8proc", "zstd"))]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise SystemExit(f"licence texts are missing: {' '.join(missing)}")
    return files


def build_wheel(wheel_directory: str, config_settings: Config = None, metadata_directory: Optional[str] = None) -> str:
    with tempfile.TemporaryDirectory() as temporary:
        native, tag = build_library(config_settings, Path(temporary))
    entries: Dict[str, bytes] = {f"{NAME}/{p.name}": p.read_bytes() for p in package_files()}
    entries.update({f"{NAME}/{name}": data for name, data in native.items()})
    info = f"{NAME}-{version()}.dist-info"
    entries[f"{info}/METADATA"] = metadata().encode()
    entries[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: {NAME} build_backend\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n".encode()
    for file in licence_files():
        entries[f"{info}/licenses/{file.name}"] = file.read_bytes()
    record = "".join(f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
                     for name, data in entries.items())
    entries[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    wheel = f"{NAME}-{version()}-py3-none-{tag}.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():                                   # a fixed date: the same sources give the same wheel
            item = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            item.compress_type = zipfile.ZIP_DEFLATED
            item.external_attr = (0o755 if ".so" in name else 0o644) << 16
            archive.writestr(item, data)
    return wheel


def build_sdist(sdist_directory: str, config_settings: Config = None) -> str:
    """The package with the library's sources in native/."""
    base = f"{NAME}-{version()}"
    with tarfile.open(os.path.join(sdist_directory, base + ".tar.gz"), "w:gz") as archive:
        for path in [*package_files(), *(HERE / n for n in ("pyproject.toml", "build_backend.py", "wheel.cmake", "README.md"))]:
            archive.add(str(path), f"{base}/{path.relative_to(HERE)}")
        for name in NATIVE:
            if (source() / name).exists():
                archive.add(str(source() / name), f"{base}/native/{name}")
        item = tarfile.TarInfo(f"{base}/PKG-INFO")
        data = metadata().encode()
        item.size = len(data)
        archive.addfile(item, io.BytesIO(data))
    return base + ".tar.gz"
