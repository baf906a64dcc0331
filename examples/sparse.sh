#!/bin/sh
# Shows what skipping neurons does: prepares the shipped model (ReLU squared: most of its neurons are zero for any one token) and compares the modes
# on a text that the preparation did not see.
# usage: sparse.sh      after quickstart.sh, or with hllm built in build/
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
hllm=${HLLM:-$root/build/bin/hllm}
[ -x "$hllm" ] || { echo "sparse: $hllm is not there: run examples/quickstart.sh first" >&2; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

echo "== preparing: which neurons does a text need, and can that be told beforehand?"
"$hllm" prepare "$root/models/tiny-relu2-q8_0.gguf" "$tmp/tiny.hy.gguf" -f "$root/tests/data/text/profile.txt" --svg "${SVG:-$tmp/heat.svg}"

echo
echo "== the same words, with every neuron and with the predicted ones"
for mode in dense exact predicted; do
    printf '%-10s' "$mode"
    "$hllm" run -m "$tmp/tiny.hy.gguf" --mode "$mode" -p "And it came to pass" -n 30 --greedy 2>/dev/null | tr '\n' ' '
    echo
done

echo
echo "== how well it predicts another text (perplexity), and the share of neurons that it computed"
head -c "${BYTES:-60000}" "$root/tests/data/text/check.txt" >"$tmp/check.txt"
for mode in dense exact predicted; do
    printf '%-10s' "$mode"
    "$hllm" perplexity -m "$tmp/tiny.hy.gguf" --mode "$mode" -f "$tmp/check.txt" 2>/dev/null | tail -n 1
done
