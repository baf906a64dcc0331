#!/bin/sh
# Builds libhybridllm and lets the model that is shipped with it continue a text.
# usage: quickstart.sh [TEXT]
# Debian 12 or newer (and its relatives): as root it installs what is missing, else it says what to install.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
text=${1:-In the beginning}

missing=
need() { missing="$missing $1"; }
command -v cc >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 || command -v clang >/dev/null 2>&1 || need "gcc libc6-dev"
command -v c++ >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 || need g++
command -v cmake >/dev/null 2>&1 || need cmake
command -v make >/dev/null 2>&1 || need make
command -v pkg-config >/dev/null 2>&1 || need pkg-config
pkg-config --exists libutf8proc 2>/dev/null || need libutf8proc-dev
pkg-config --exists libzstd 2>/dev/null || need libzstd-dev
pkg-config --exists jansson 2>/dev/null || need libjansson-dev
[ -f /usr/include/glpk.h ] || need libglpk-dev            # for the planner's second solver
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing:$missing"
        apt-get update -q
        # shellcheck disable=SC2086
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
    else
        echo "quickstart: please install first (names of Debian packages):" >&2
        echo "  sudo apt-get install$missing" >&2
        exit 1
    fi
fi

if [ ! -f "$root/build/CMakeCache.txt" ]; then
    if command -v ninja >/dev/null 2>&1; then cmake -S "$root" -B "$root/build" -G Ninja
    else cmake -S "$root" -B "$root/build"; fi
fi
cmake --build "$root/build" --target hllm -j "$(getconf _NPROCESSORS_ONLN)"

printf '\n%s' "$text"
"$root/build/bin/hllm" run -m "$root/models/tiny-relu2-q8_0.gguf" -p "$text" -n 60 --temp 0.7 --top-p 0.9 --repeat-penalty 1.1 --seed 1
printf '\n'
