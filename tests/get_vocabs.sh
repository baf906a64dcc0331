#!/bin/sh
# Fetches llama.cpp's vocabulary files and their expected tokens, from the source package llama-cpp-python, into DIR (default:
# build/vocab).  usage: get_vocabs.sh [DIR]       needs: python3 with pip
set -eu
dir=${1:-build/vocab}
names="llama-bpe qwen2 qwen35 falcon deepseek-llm deepseek-coder starcoder gpt-2 phi-3 llama-spm command-r refact"
mkdir -p "$dir"
have() {
    for n in $names; do
        for f in "$n.gguf" "$n.gguf.inp" "$n.gguf.out"; do [ -s "$dir/ggml-vocab-$f" ] || return 1; done
    done
}
if ! have; then
    tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
    python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary llama-cpp-python -d "$tmp" llama-cpp-python==0.3.36
    python3 - "$tmp" "$dir" $names <<'PY'
import glob, os, sys, tarfile
want = {f"ggml-vocab-{n}.gguf{e}" for n in sys.argv[3:] for e in ("", ".inp", ".out")}
with tarfile.open(glob.glob(sys.argv[1] + "/llama_cpp_python-*.tar.gz")[0]) as t:
    for m in t:
        name = os.path.basename(m.name)
        if m.isfile() and name in want and "/llama.cpp/models/" in m.name:
            with open(os.path.join(sys.argv[2], name + ".part"), "wb") as f: f.write(t.extractfile(m).read())
            os.replace(os.path.join(sys.argv[2], name + ".part"), os.path.join(sys.argv[2], name))
PY
fi
have || { echo "get_vocabs: files are missing in $dir" >&2; exit 1; }
echo "$dir: $(ls "$dir"/ggml-vocab-*.gguf | wc -l) vocabularies"
