#!/bin/sh
# Makes the small models in PowerInfer's format, build/powerinfer/NAME.gguf with NAME.gguf.generated.gpuidx beside it, and checks that they are
# those that the golden values were made from (tests/golden/scores/powerinfer/SHA256SUMS).  Those that are there and right are kept.
# usage: powerinfer.sh [DIR]    PYTHON: a python3 with numpy and gguf==0.19.0 (default: build/venv/bin/python, else python3)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-$root/build/powerinfer}
golden=$root/tests/golden/scores/powerinfer
[ -x "$root/build/venv/bin/python" ] && default=$root/build/venv/bin/python || default=python3
python=${PYTHON:-$default}
mkdir -p "$dir"
right() { sum=$(awk -v f="$1" '$2 == f { print $1 }' "$golden/SHA256SUMS"); [ -n "$sum" ] && [ -f "$2" ] && echo "$sum  $2" | sha256sum -c --status -; }
for name in llama bamboo falcon falcon-7b opt; do
    out=$dir/$name.gguf
    right "$name.1.gguf" "$out" && right "$name.1.gguf.generated.gpuidx" "$out.generated.gpuidx" && continue
    "$python" "$root/tests/make_powerinfer.py" --seed 1 --vocab-from "$root/models/tiny-relu2-q8_0.gguf" --tokens "$golden/$name.dense.txt" \
        --gpuidx "$out.generated.gpuidx" "$name" "$out.part"
    right "$name.1.gguf" "$out.part" && right "$name.1.gguf.generated.gpuidx" "$out.generated.gpuidx" || {
        echo "powerinfer: $name is not the model of the golden values: another version of gguf or numpy?" >&2; exit 1; }
    mv "$out.part" "$out"
done
echo "$dir: 5 models"
