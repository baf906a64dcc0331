#!/bin/sh
# The C program in README.md compiles as it stands there and runs.
# usage: readme.sh BUILD       CC: compiler (default cc)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${1:?usage: readme.sh BUILD}" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
sed -n '/^```c$/,/^```$/p' "$root/README.md" | sed '/^```/d' >"$tmp/first.c"
grep -q 'int main' "$tmp/first.c" || { echo "readme: no C program in README.md"; exit 1; }
"${CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic -Werror -I"$root/include" "$tmp/first.c" -L"$build/lib" -lhybridllm -o "$tmp/first"
cd "$root"
LD_LIBRARY_PATH=$build/lib "$tmp/first" >"$tmp/out"
[ "$(wc -c <"$tmp/out")" -gt 20 ] || { echo "readme: the program printed nothing"; exit 1; }
# Every file that it names is there.
for f in $(grep -o '`[A-Za-z_./-]*`' "$root/README.md" | tr -d '\140' | sort -u); do
    case $f in
    */*.sh|*/*.md|include/*|examples/*|*.md|THIRD-PARTY|LICENSE) [ -e "$root/$f" ] || { echo "readme: $f is not there"; exit 1; } ;;
    esac
done
lines=$(wc -l <"$root/README.md")
[ "$lines" -le 90 ] || { echo "readme: $lines lines: not one page"; exit 1; }
echo "readme: the program runs"
