#!/bin/sh
# Speed beside the peers, on the same files, in one run.
# usage: compare.sh [-r ROUNDS] [-p PROMPT] [-n TOKENS] [-t THREADS] MODEL.gguf...      defaults 5, 512, 64, 2
# Environment: HLLM (default build/bin/hllm), PEERS (default build/peers, made by build_peers.sh when llama-bench is missing there).
#
# Every round runs each program once on the file, one after the other; the table has medians over the rounds, and our medians divided by theirs.
# How noise is met: a shared machine's speed changes from minute to minute by a factor of two (its memory's above all), so figures of different
# runs cannot be compared.  Ratios within one run can.  `hllm bench` probes the read ceiling (the best of 1, 2, 4 and 8 streams a thread) and the
# ceiling of 8-bit dot products before and after each measurement, and the shares below are of those.  A share of the read ceiling counts when the
# ceiling is that of a quiet machine (2 threads here: 65 GB/s or more).  Peers read the file into anonymous memory with large pages (no mmap), as we do;
# ik_llama.cpp repacks its rows at load (-rtr 1), as we do.  Run it on an otherwise idle machine.
# Big models of real shapes, without a download: make_synthetic_gguf.py --shape tinyllama-1.1b (llama2-7b, llama3-8b) --type q4_0 (q8_0, q4_k);
# Q4_K_M: --type f16, then PEERS/llama/bin/llama-quantize FILE OUT Q4_K_M.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
hllm=${HLLM:-$root/build/bin/hllm}
peers=${PEERS:-$root/build/peers}
rounds=5 prompt=512 tokens=64 threads=2
while getopts r:p:n:t: o; do
    case $o in r) rounds=$OPTARG ;; p) prompt=$OPTARG ;; n) tokens=$OPTARG ;; t) threads=$OPTARG ;; *) exit 2 ;; esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
for p in llama ik; do [ -x "$peers/$p/bin/llama-bench" ] || sh "$root/tests/bench/build_peers.sh" "$peers" $p >&2; done
out=$(mktemp)
trap 'rm -f "$out"' EXIT INT TERM
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1           # for the peers' weights
for model in "$@"; do
    i=0
    while [ $i -lt "$rounds" ]; do
        i=$((i + 1))
        printf '%s\thllm\t' "$model" >>"$out"
        "$hllm" bench --json -m "$model" -p "$prompt" -n "$tokens" -r 1 -t "$threads" | tr -d '\n' >>"$out"
        for p in llama ik; do
            printf '\n%s\t%s\t' "$model" $p >>"$out"
            [ $p = ik ] && load="-mmp 0 -rtr 1" || load="-lm none"
            # shellcheck disable=SC2086
            "$peers/$p/bin/llama-bench" -m "$model" -p "$prompt" -n "$tokens" -r 1 -t "$threads" $load -o json 2>/dev/null | tr -d '\n' >>"$out"
        done
        echo >>"$out"
        echo "$model: round $i of $rounds" >&2
    done
done
python3 - "$out" <<'PYTHON'
import json, statistics, sys
runs = {}
for line in open(sys.argv[1], encoding="utf-8"):
    model, who, text = line.rstrip("\n").split("\t")
    try:
        v = json.loads(text)
    except ValueError:
        sys.exit(f"{who} failed on {model}: {text[:200]!r}")
    if who != "hllm":
        v = {("prefill_tok_s" if r["n_prompt"] else "decode_tok_s"): r["avg_ts"] for r in v}
    runs.setdefault(model, {}).setdefault(who, []).append(v)
print(f"{'model':36} {'':8} {'llama.cpp':>10} {'ik':>10} {'hllm':>10} {'/llama.cpp':>10} {'/ik':>6} {'share':>7}  ceiling, of")
for model, by in runs.items():
    def median(who, key):
        return statistics.median(v[key] for v in by[who])
    for key, name, share, ceiling, unit in (("prefill_tok_s", "prefill", "prefill_share", "compute_ceiling_gops", "Gop/s"), ("decode_tok_s", "decode", "decode_share", "read_ceiling_gb_s", "GB/s")):
        a, b, c = median("llama", key), median("ik", key), median("hllm", key)
        print(f"{model.rsplit('/', 1)[-1][:36]:36} {name:8} {a:10.1f} {b:10.1f} {c:10.1f} {c / a:10.2f} {c / b:6.2f} {100 * median('hllm', share):6.1f}%  {median('hllm', ceiling):.1f} {unit}, {len(by['hllm'])} rounds")
PYTHON
