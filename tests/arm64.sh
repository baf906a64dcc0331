#!/bin/sh
# Cross-compiles for arm64 and runs kernel, unit and golden tests under qemu-user.
# usage: arm64.sh BUILD [CMAKE_ARG...]      Debian; needs gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user, and apt's network
# once: the arm64 packages of libutf8proc, libzstd and libjansson are downloaded (checked by apt) and unpacked into BUILD/root: nothing is
# installed and the system's own package lists stay as they are, so it works without being root.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:?usage: arm64.sh BUILD [CMAKE_ARG...]}
shift
mkdir -p "$build"
build=$(cd "$build" && pwd)
for tool in aarch64-linux-gnu-gcc qemu-aarch64 apt-get dpkg-deb cmake; do
    command -v $tool >/dev/null || { echo "arm64: no $tool"; exit 77; }
done

HLLM_ARM64_ROOT=$build/root
export HLLM_ARM64_ROOT
if [ ! -f "$HLLM_ARM64_ROOT/complete" ]; then
    rm -rf "$build/apt" "$HLLM_ARM64_ROOT"
    mkdir -p "$build/apt/lists/partial" "$build/apt/cache/archives/partial" "$HLLM_ARM64_ROOT"
    : >"$build/apt/status"
    apt() {
        apt-get -q -o Dir::State::Lists="$build/apt/lists" -o Dir::Cache="$build/apt/cache" -o Dir::State::status="$build/apt/status" \
            -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)" "$@"
    }
    apt update
    (cd "$build/apt" && apt download libutf8proc-dev:arm64 libutf8proc2:arm64 libzstd-dev:arm64 libzstd1:arm64 libjansson-dev:arm64 libjansson4:arm64)
    for deb in "$build"/apt/*.deb; do dpkg-deb -x "$deb" "$HLLM_ARM64_ROOT"; done
    touch "$HLLM_ARM64_ROOT/complete"
fi
# -O2: at -O3 this compiler (12.2) stops with an internal error in tests/golden/scores.c.
cmake -S "$root" -B "$build" -DCMAKE_TOOLCHAIN_FILE="$root/tests/arm64/toolchain.cmake" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DHLLM_BUILD_EXAMPLES=OFF -DHLLM_GLPK=OFF -DHLLM_WERROR=ON "$@"
cmake --build "$build" -j "$(getconf _NPROCESSORS_ONLN)"
