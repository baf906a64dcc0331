#!/bin/sh
# What is left of the speed when another process takes one core: tokens/s with 1 thread, with 2, with 2 beside a busy loop on the second CPU, and
# the share of v1 + (v2 - v1) / 2, which an even division of that core would leave.  All within one run, in turns; medians.
# Usage: sh tests/bench/core_taken.sh MODEL [ROUNDS] [PROMPT] [TOKENS]        (HLLM=path of hllm; default build/bin/hllm)
# Nothing is judged here.  Needs two free CPUs and taskset (util-linux).
set -eu
model=$1 rounds=${2:-5} prompt=${3:-256} tokens=${4:-32}
hllm=${HLLM:-$(cd "$(dirname "$0")/../.." && pwd)/build/bin/hllm}
log=$(mktemp)
busy=
trap 'rm -f "$log"; [ -z "$busy" ] || kill "$busy" 2>/dev/null' EXIT
measure() {   # NAME THREADS
  "$hllm" bench -m "$model" -p "$prompt" -n "$tokens" -r 1 -t "$2" 2>/dev/null |
    awk -v name="$1" '$1 == "prefill" || $1 == "decode" { print name, $1, $2 }' >> "$log"
}
for i in $(seq "$rounds"); do
  measure one 1
  measure two 2
  taskset -c 1 sh -c 'while :; do :; done' & busy=$!
  measure taken 2
  kill "$busy"; wait "$busy" 2>/dev/null || true; busy=
done
sort -k2,2 -k1,1 -k3,3n "$log" | awk '
  { key = $2 " " $1; n[key]++; v[key, n[key]] = $3 }
  function median(key) { return v[key, int((n[key] + 1) / 2)] }
  END {
    split("prefill decode", kinds)
    for (k = 1; k <= 2; k++) {
      one = median(kinds[k] " one"); two = median(kinds[k] " two"); taken = median(kinds[k] " taken")
      printf "%-8s 1 thread %.1f, 2 threads %.1f, 2 with a core taken %.1f tok/s: %.2f of %.1f\n", kinds[k], one, two, taken, taken / (one + (two - one) / 2), one + (two - one) / 2
    }
  }'
