#!/bin/sh
# Builds the programs that we measure ourselves against, from the sources inside two Python packages.
# usage: build_peers.sh [DIR] [llama|ik|both]      DIR: default build/peers
# Gives DIR/llama/bin and DIR/ik/bin with llama-bench and llama-quantize.  About 6 minutes (llama.cpp) and 25 minutes (ik_llama.cpp) on 2 cores.
# Needs cmake, ninja-build, g++, python3 with pip.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
dir=${1:-$root/build/peers}
which=${2:-both}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

source_of() {                                          # source_of PACKAGE VERSION FOLDER
    [ -d "$3" ] && return
    tmp=$(mktemp -d)
    python3 -m pip download -q --disable-pip-version-check --no-deps --no-build-isolation --no-binary "$1" -d "$tmp" "$1==$2"
    mkdir -p "$3.part"
    tar xf "$tmp"/*.tar.gz -C "$3.part" --strip-components=1
    mv "$3.part" "$3"
    rm -rf "$tmp"
}
common="-G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TESTS=OFF"
if [ "$which" != ik ]; then
    source_of llama-cpp-python 0.3.36 "$dir/llama-src"
    # shellcheck disable=SC2086
    cmake -S "$dir/llama-src/vendor/llama.cpp" -B "$dir/llama" $common -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF >"$dir/llama.log"
    cmake --build "$dir/llama" --target llama-bench llama-quantize
fi
if [ "$which" != llama ]; then
    source_of ik-llama-cpp-python 0.1.5 "$dir/ik-src"
    src=$dir/ik-src/vendor/ik_llama.cpp
    mkdir -p "$src/common/cmake"                       # the package leaves out one small script
    [ -f "$src/common/cmake/build-info-gen-cpp.cmake" ] || cat >"$src/common/cmake/build-info-gen-cpp.cmake" <<'CMAKE'
set(BUILD_NUMBER 0)
set(BUILD_COMMIT "package")
set(BUILD_COMPILER "cc")
set(BUILD_TARGET "local")
configure_file("${CMAKE_CURRENT_SOURCE_DIR}/common/build-info.cpp.in" "${CMAKE_CURRENT_SOURCE_DIR}/common/build-info.cpp")
CMAKE
    # shellcheck disable=SC2086
    cmake -S "$src" -B "$dir/ik" $common >"$dir/ik.log"
    cmake --build "$dir/ik" --target llama-bench llama-quantize
fi
ls "$dir"/*/bin/llama-bench
