#!/bin/sh
# What skipping neurons costs and saves: one table row for each mode of one model: share of neurons computed, FFN bytes a token, perplexity, mean KL
# (as measured while preparing), decode speed.
# usage: sparse.sh MODEL.gguf PROFILE.txt CHECK.txt [SHARE...]     SHARE: also the mode thresholded, leaving out that share (0.3 0.5); a ReLU model
#        gets the mode predicted.  HLLM: the program (default build/bin/hllm).  N: tokens to decode (64)
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
hllm=${HLLM:-$root/build/bin/hllm}
[ $# -ge 3 ] || { sed -n 's/^# usage: //p' "$0" >&2; exit 2; }
model=$1 profile=$2 check=$3
shift 3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
number() { sed -n "s/.*\"$1\":\([-0-9.e]*\).*/\1/p" "$2" | head -n 1; }
row() {                                                # row NAME FILE MODE: a line of the table
    "$hllm" perplexity -m "$2" --mode "$3" -f "$check" 2>/dev/null | tail -n 1 >"$tmp/ppl"
    "$hllm" run -m "$2" --mode "$3" -p "The" -n "${N:-64}" --ignore-eos --greedy --stats >/dev/null 2>"$tmp/stats"
    printf '%-18s %8s %10s %12s %10s\n' "$1" "$(number active_share "$tmp/ppl")" "$(number ppl "$tmp/ppl")" "${kl:--}" \
        "$(sed -n 's/^decode .* \([0-9.]*\) tok\/s.*/\1/p' "$tmp/stats")"
}
printf '%-18s %8s %10s %12s %10s\n' mode share perplexity "KL (nats)" tok/s
kl=- row original "$model" exact
for share in "$@"; do
    "$hllm" prepare "$model" "$tmp/t.gguf" -f "$profile" --skip "$share" --json 2>/dev/null >"$tmp/made"
    kl=$(number kl_predicted "$tmp/made") row "thresholded $share" "$tmp/t.gguf" thresholded
done
[ $# -eq 0 ] || exit 0
"$hllm" prepare "$model" "$tmp/p.gguf" -f "$profile" --json 2>/dev/null >"$tmp/made"
kl=- row dense "$tmp/p.gguf" dense
kl=- row exact "$tmp/p.gguf" exact
kl=$(number kl_predicted "$tmp/made") row predicted "$tmp/p.gguf" predicted
