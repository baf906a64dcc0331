#!/bin/sh
# Installs a build into a directory of its own and uses it from outside: once by the CMake package, once by pkg-config.
# usage: run.sh BUILD      BUILD: a finished build directory.  CC: compiler (default cc).  Exit 0 all right, 1 not, 77 a tool is missing.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:?usage: run.sh BUILD}" && pwd)
model=$root/models/tiny-relu2-q8_0.gguf
cc=${CC:-cc}
for tool in cmake pkg-config readelf "$cc"; do command -v "$tool" >/dev/null || { echo "install: no $tool"; exit 77; }; done
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
prefix="$tmp/a prefix"                                 # with a space
fail() { echo "install: $*"; exit 1; }

cmake --install "$build" --prefix "$prefix" >"$tmp/log" 2>&1 || { cat "$tmp/log"; fail "cmake --install"; }
version=$(sed -n 's/^project(hybridllm VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
libdir=$(dirname "$(find "$prefix" -name libhybridllm.so)")
[ -f "$libdir/libhybridllm.so" ] || fail "no libhybridllm.so"
cmp -s "$root/include/hybrid_llm.h" "$prefix/include/hybrid_llm.h" || fail "the header is not there or not the same"
# Nothing but library, header, package files.
(cd "$prefix" && find . -type f -o -type l | sed 's,^\./lib/[^/]*-linux-gnu/,./lib/,' | LC_ALL=C sort) >"$tmp/files"
cat >"$tmp/expected" <<FILES
./include/hybrid_llm.h
./lib/cmake/hybridllm/hybridllm-config-version.cmake
./lib/cmake/hybridllm/hybridllm-config.cmake
./lib/cmake/hybridllm/hybridllm-targets-release.cmake
./lib/cmake/hybridllm/hybridllm-targets.cmake
$([ ! -f "$build/lib/libhybridllm-glpk.so" ] || echo ./lib/libhybridllm-glpk.so)
./lib/libhybridllm.so
./lib/libhybridllm.so.${version%%.*}
./lib/libhybridllm.so.$version
./lib/pkgconfig/hybridllm.pc
./share/doc/hybridllm/LICENSE
./share/doc/hybridllm/THIRD-PARTY
./share/doc/hybridllm/licences/jansson.txt
./share/doc/hybridllm/licences/utf8proc.txt
./share/doc/hybridllm/licences/zstd.txt
FILES
sed -i '/^$/d' "$tmp/expected"
sed 's/-targets-[a-z]*\.cmake/-targets-release.cmake/' "$tmp/files" | diff "$tmp/expected" - || fail "other files than expected (<)"

# The name that programs are bound to: by major version.
soname=$(readelf -d "$libdir/libhybridllm.so" | sed -n 's/.*SONAME.*\[\(.*\)\].*/\1/p')
[ "$soname" = "libhybridllm.so.${version%%.*}" ] || fail "SONAME is '$soname', expected libhybridllm.so.${version%%.*}"
readelf -d "$libdir/libhybridllm.so" | grep -q 'RPATH\|RUNPATH' && fail "the installed library has a search path of its own"
readelf -lW "$libdir/libhybridllm.so" | grep -q 'GNU_STACK.*RWE' && fail "the library asks for an executable stack"

# What the library itself needs is its own affair: the exported target must not ask for it, nor name this machine's directories.
grep -H 'PkgConfig::\|utf8proc\|zstd\|jansson\|Threads::' "$libdir"/cmake/hybridllm/*.cmake && fail "private dependencies in the CMake package"
grep -rHF "$root" "$libdir/cmake" "$libdir/pkgconfig" && fail "a path of the source tree in the installed files"

cmake -S "$root/tests/install" -B "$tmp/by cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" >"$tmp/log" 2>&1 &&
    cmake --build "$tmp/by cmake" >>"$tmp/log" 2>&1 || { cat "$tmp/log"; fail "the CMake package"; }
[ -n "$("$tmp/by cmake/outside" "$model")" ] || fail "the program built with the CMake package"

# pkg-config, from a prefix without a space (its output is made for the shell's word splitting).
prefix=$tmp/plain
cmake --install "$build" --prefix "$prefix" >/dev/null
libdir=$(dirname "$(find "$prefix" -name libhybridllm.so)")
PKG_CONFIG_PATH=$libdir/pkgconfig
export PKG_CONFIG_PATH
pc() { pkg-config "$@" hybridllm; }
[ "$(pc --modversion)" = "$version" ] || fail "pkg-config says version $(pc --modversion)"
pc --libs | grep -q 'zstd\|utf8proc' && fail "private libraries in pkg-config --libs: $(pc --libs)"
# shellcheck disable=SC2046
"$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror -DEXPECT_VERSION="\"$(pc --modversion)\"" "$root/tests/install/main.c" $(pc --cflags --libs) -o "$tmp/outside"
[ -n "$(LD_LIBRARY_PATH=$libdir "$tmp/outside" "$model")" ] || fail "the program built with pkg-config"
if "$tmp/outside" "$model" >/dev/null 2>&1; then fail "the program ran without the installed library: it used another one"; fi
echo "install: SONAME $soname; CMake package and pkg-config work"
