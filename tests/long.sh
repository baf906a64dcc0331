#!/bin/sh
# What takes too long for every change: run before a release, or overnight.  usage: long.sh [MINUTES]      (of fuzzing, a third for each target; default 60)
# After a green `sh tests/run.sh`, whose builds and models it uses.  Last line: "N passed, N failed".
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build
logs=$build/logs
venv=$build/venv/bin/python
minutes=${1:-60}
passed=0 failed=0
export HLLM_TEST_ROOT="$root"
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 TSAN_OPTIONS=halt_on_error=1

for needed in bin/hllm asan/tests/golden_scores tsan/tests/abi_flat fuzz/bin/fuzz_gguf fuzz/bin/fuzz_model fuzz/bin/fuzz_plan venv/complete models/smollm2-135m-instruct-q4_1.gguf; do
    [ -e "$build/$needed" ] || { echo "long.sh: build/$needed is missing: run tests/run.sh first" >&2; exit 1; }
done
step() {                                               # step NAME COMMAND...
    name=long-$1
    shift
    t=$(date +%s)
    if "$@" >"$logs/$name.log" 2>&1 </dev/null; then passed=$((passed + 1)) word=ok; else failed=$((failed + 1)) word=FAILED; fi
    printf '%-8s %-20s %5d s\n' $word "$name" $(($(date +%s) - t))
    [ $word = ok ] || tail -n 20 "$logs/$name.log" | sed 's/^/    | /'
}

for target in gguf model plan; do
    step fuzz-$target "$build/fuzz/bin/fuzz_$target" -max_total_time=$((minutes * 20)) -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$logs/" \
        "$build/fuzz-corpus/$target" "$root/tests/fuzz/seeds/$target"
done
step presplit "$venv" "$root/tests/presplit_differential.py" --n 200000 --seed "$(date +%Y%m%d)"
step flat "$build/tests/abi_flat" 20000
step flat-asan "$build/asan/tests/abi_flat" 1000
step flat-tsan "$build/tsan/tests/abi_flat" 500
step scores-asan "$build/asan/tests/golden_scores"
step tokens-asan "$build/asan/tests/golden_tokens"
# Timing and races show on the tenth run, if not on the first.
step again ctest --test-dir "$build" --output-on-failure --repeat until-fail:10 -E '^(golden_.*|abi_flat|install)$'
step perplexity sh -c '"$1/bin/hllm" perplexity -m "$2/models/tiny-relu2-q8_0.gguf" -f "$2/tests/data/text/eval.txt" -c 512 --act f32 --kv f32 | tee /dev/stderr |
    sed -n "s/.*\"ppl\":\([0-9.]*\).*/\1/p" | awk "{ d = \$1 / 32.6044 - 1; exit !(d < 0.001 && d > -0.001) } END { if (NR != 1) exit 1 }"' sh "$build" "$root"

echo "$passed passed, $failed failed"
[ $failed = 0 ]
