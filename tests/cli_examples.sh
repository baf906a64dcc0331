#!/bin/sh
# The small programs of examples/: each is short, is built, runs on the shipped model from another folder, and fails on a missing one.
# Environment: HLLM_TEST_ROOT (default: this project), HLLM_TEST_BUILD (default: its build/).  Exit: 0 passed, 1 failed, 77 not built.
set -u
root=${HLLM_TEST_ROOT:-$(cd "$(dirname "$0")/.." && pwd)}
bin=${HLLM_TEST_BUILD:-$root/build}/bin
model=$root/models/tiny-relu2-q8_0.gguf
[ -x "$bin/example_hello" ] || { echo "cli_examples.sh: no $bin/example_hello"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0
fail() { echo "FAIL $*"; failed=$((failed + 1)); }
cd "$tmp" || exit 1

for source in "$root"/examples/*.c "$root"/examples/*.cpp; do
    file=${source##*/}
    name=${file%.*}
    limit=120
    [ "$name" = hello ] && limit=60
    n=$(wc -l <"$source")
    [ "$n" -lt "$limit" ] || fail "$file: $n lines, the limit is $limit"
    if timeout 120 "$bin/example_$name" "$model" >"$name.out" 2>"$name.err" && [ -s "$name.out" ]; then echo "ok   $name"
    else fail "$name: exit $?: $(head -n 1 "$name.err")"; fi
    timeout 120 "$bin/example_$name" no-such.gguf >missing.out 2>missing.err && fail "$name: exit 0 without a model"
    grep -q 'no-such.gguf' missing.err || fail "$name: does not name the missing file: $(cat missing.err)"
done
cmp -s hello.out hello_cpp.out || fail "hello and hello_cpp differ"
grep -q 'stopped within' cancel.out || fail "cancel: $(cat cancel.out)"
for script in "$root"/examples/*.sh "$root"/tests/*.sh; do sh -n "$script" || fail "$script: syntax"; done
[ "$failed" = 0 ]
