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
    if timeout 120 "$bin/example_$name" "$model" >"$name.out" 2>"$name.err"; then echo "ok   $name"
    else fail "$name: exit $?: $(head -n 1 "$name.err")"; fi
    timeout 120 "$bin/example_$name" no-such.gguf >missing.out 2>missing.err && fail "$name: exit 0 without a model"
    grep -q 'no-such.gguf' missing.err || fail "$name: does not name the missing file: $(cat missing.err)"
done
has() { grep -q "$2" "$1.out" || fail "$1: no '$2' in: $(head -n 5 "$1.out")"; }
# hello: 60 tokens of text, a newline at the end; the same in C++.
[ "$(wc -c <hello.out)" -gt 100 ] && [ -z "$(tail -c 1 hello.out)" ] || fail "hello: $(cat hello.out)"
cmp -s hello.out hello_cpp.out || fail "hello and hello_cpp differ"
# cancel: in the prompt and in the answer, each within 50 ms (a busy machine: 1 s).
[ "$(grep -c '^cancelled after [0-9]* ms: [0-9]* tokens, stopped within [0-9]\{1,3\}\.[0-9] ms$' cancel.out)" = 2 ] || fail "cancel: $(cat cancel.out)"
has cancel 'after 50 ms: [1-9]'
has two_sessions '^In the beginning[^a-z]*[a-z]'
has two_sessions '^And the king said[^a-z]*[a-z]'
[ "$(wc -c <two_sessions.out)" -gt 150 ] || fail "two_sessions: $(cat two_sessions.out)"
for script in "$root"/examples/*.sh "$root"/tests/*.sh; do sh -n "$script" || fail "$script: syntax"; done
[ "$failed" = 0 ]
