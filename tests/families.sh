#!/bin/sh
# Makes the random-weight model of each family, build/families/NAME.gguf, and checks that it is the one that the golden values
# were made from (tests/golden/scores/families/SHA256SUMS).  Those that are there and right are kept.
# usage: families.sh [DIR]      PYTHON: a python3 with numpy and gguf==0.19.0 (default: build/venv/bin/python, else python3)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-$root/build/families}
sums=$root/tests/golden/scores/families/SHA256SUMS
[ -x "$root/build/venv/bin/python" ] && default=$root/build/venv/bin/python || default=python3
python=${PYTHON:-$default}
mkdir -p "$dir"
n=0
while read -r sum file; do
    name=${file%.1.gguf}
    right() { [ -f "$1" ] && echo "$sum  $1" | sha256sum -c --status -; }
    n=$((n + 1))
    right "$dir/$name.gguf" && continue
    "$python" "$root/tests/make_family.py" --seed 1 --vocab-from "$root/models/tiny-relu2-q8_0.gguf" "$name" "$dir/$name.gguf.part"
    right "$dir/$name.gguf.part" || { echo "families: $name is not the model of the golden values: another version of gguf or numpy?" >&2; exit 1; }
    mv "$dir/$name.gguf.part" "$dir/$name.gguf"
done <"$sums"
[ "$n" -gt 0 ] || { echo "families: $sums is empty" >&2; exit 1; }
echo "$dir: $n models"
