#!/usr/bin/env python3
"""Whole models of every element type, against the same weights as the `gguf` package expands them.

usage: types_model.py HLLM [TYPE ...]        needs numpy and gguf==0.19.0

For each type a small model of the llama family is written twice: its matrices (token embedding and head included) as blocks of that type,
and as the f32 values that `gguf` gives those blocks.  `hllm score` must say the same of both: KL <= 1e-8 in f32 arithmetic (what the printed
digits resolve).  The default arithmetic rounds the activations to 8 bits; the bar is the loss when the weights are rounded to 8 bits too,
that is of the same values as a Q8_0 file.  "mixed" is a file with another type in every matrix.  A wrong block must show: see `control`.
"""
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

ROOT = Path(__file__).resolve().parent.parent
# Where the half-precision scales of a block are; types without are drawn otherwise.
SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2],
          T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0]}
TYPES = [T.F32, T.F16, T.BF16, *SCALES, T.MXFP4]
WIDTH, FFN, LAYERS, HEADS, KV_HEADS, HEAD, VOCAB = 256, 512, 2, 4, 2, 64, 4096
TEXT = (ROOT / "tests/data/text/eval.txt").read_bytes()[:1500]


def blocks(rng, t, rows, cols, deviation):
    """Random blocks [rows][row bytes] of values with about this deviation and mean 0."""
    block, size = GGML_QUANT_SIZES[t]
    if t not in SCALES and t != T.MXFP4:
        return gguf.quants.quantize((rng.standard_normal((rows, cols)) * deviation).astype(np.float32), t).reshape(rows, -1).view(np.uint8)
    raw = rng.integers(0, 256, (rows * cols // block, size), dtype=np.uint8)
    if t == T.MXFP4:
        raw[:, 0] = 127 + round(math.log2(deviation / 3)) + rng.integers(-1, 2, raw.shape[0])
        return raw.reshape(rows, -1)
    scale = np.full(raw.shape[0], 1.0)
    for factor in (1.0, None):                         # once to see how large the values are, once as wanted
        for i, at in enumerate(SCALES[t]):
            s = scale * rng.uniform(0.7, 1.3, raw.shape[0])
            if i == 1:                                 # the offset: so that the mean is 0 (minimum is added in _1 types, taken away in K types)
                s = scale * offset if factor is None else scale * 0
            raw[:, at:at + 2] = s.astype(np.float16).view(np.uint8).reshape(-1, 2)
        values = gguf.quants.dequantize(raw.reshape(-1), t)
        if factor is not None:
            offset = 0.0
            if len(SCALES[t]) == 2:                    # the value of offset 1 against that of scale 1
                one = raw.copy()
                one[:, SCALES[t][0]:SCALES[t][0] + 2] = 0
                one[:, SCALES[t][1]:SCALES[t][1] + 2] = np.float16(1).reshape(1).view(np.uint8)
                offset = -values.mean() / gguf.quants.dequantize(one.reshape(-1), t).mean()
            scale *= deviation / values.std()
    return raw.reshape(rows, -1)


def write(path, expand, pick, seed=1, wrong=False):
    """One model.  expand: as this type instead.  pick(i): the type of matrix i.  wrong: one block of one matrix is another."""
    rng = np.random.default_rng(seed)
    w = gguf.GGUFWriter(path, "llama")
    source = gguf.GGUFReader(str(ROOT / "models/tiny-relu2-q8_0.gguf"))
    w.add_context_length(2048)
    w.add_embedding_length(WIDTH)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(HEAD)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(source.fields["tokenizer.ggml.tokens"].contents())
    w.add_token_merges(source.fields["tokenizer.ggml.merges"].contents())
    w.add_token_types(source.fields["tokenizer.ggml.token_type"].contents())
    w.add_eos_token_id(0)
    n = 0

    def matrix(name, rows, cols, gain=1.0):
        nonlocal n
        t = pick(n)
        raw = blocks(rng, t, rows, cols, gain / math.sqrt(cols))
        if wrong and name == "blk.1.ffn_down":
            raw[7, -GGML_QUANT_SIZES[t][1]:] = raw[8, -GGML_QUANT_SIZES[t][1]:]
        if expand is not None:
            values = gguf.quants.dequantize(raw.reshape(-1), t).astype(np.float32).reshape(rows, cols)
            raw, t = gguf.quants.quantize(values, expand).reshape(rows, -1), expand
        if t in (T.F32, T.F16):
            w.add_tensor(name + ".weight", raw.view(np.float32 if t == T.F32 else np.float16))
        else:
            w.add_tensor(name + ".weight", raw, raw_dtype=t)
        n += 1

    def vector(name):
        w.add_tensor(name + ".weight", (1 + 0.2 * rng.standard_normal(WIDTH)).astype(np.float32))

    matrix("token_embd", VOCAB, WIDTH, math.sqrt(WIDTH))
    vector("output_norm")
    matrix("output", VOCAB, WIDTH, 3.0)
    for i in range(LAYERS):
        p = f"blk.{i}."
        vector(p + "attn_norm")
        matrix(p + "attn_q", HEADS * HEAD, WIDTH, 1.5)
        matrix(p + "attn_k", KV_HEADS * HEAD, WIDTH, 1.5)
        matrix(p + "attn_v", KV_HEADS * HEAD, WIDTH, 1.5)
        matrix(p + "attn_output", WIDTH, HEADS * HEAD)
        vector(p + "ffn_norm")
        matrix(p + "ffn_gate", FFN, WIDTH, 1.5)
        matrix(p + "ffn_up", FFN, WIDTH, 1.5)
        matrix(p + "ffn_down", WIDTH, FFN, 1.5)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def score(hllm, path, *options):
    """[{token: log-probability}] of each position."""
    out = subprocess.run([hllm, "score", "-m", path, "-c", "1024", "--top", "128", *options], input=TEXT, capture_output=True, check=True).stdout.decode()
    found = []
    for line in out.splitlines():
        if line.startswith("pos "):
            found.append({int(a.split(":")[0]): float(a.split(":")[1]) for a in line.split(" ")[7:] if a})
    if len(found) < 200:
        sys.exit(f"{path}: only {len(found)} positions were scored")
    return found


def kl(ref, other):
    total = 0.0
    for r, o in zip(ref, other):
        floor = min(o.values())
        pr = po = 0.0
        for token, logp in r.items():
            mine = o.get(token, floor)
            total += math.exp(logp) * (logp - mine)
            pr += math.exp(logp)
            po += math.exp(mine)
        rr, ro = max(1e-9, 1 - pr), max(1e-9, 1 - po)
        total += rr * math.log(rr / ro)
    return total / len(ref)


def main():
    hllm, wanted = sys.argv[1], sys.argv[2:]
    exact = ("--act", "f32", "--kv", "f32")
    mixed = [t for t in TYPES]
    cases = [(t.name, lambda i, t=t: t) for t in TYPES] + [("mixed", lambda i: mixed[(i * 5 + 3) % len(mixed)])]
    bad = n = 0
    with tempfile.TemporaryDirectory() as d:
        a, b = f"{d}/typed.gguf", f"{d}/f32.gguf"
        for name, pick in cases:
            if wanted and name not in wanted:
                continue
            write(a, None, pick)
            write(b, T.F32, pick)
            truth = score(hllm, b, *exact)
            same, loss = kl(truth, score(hllm, a, *exact)), kl(truth, score(hllm, a))
            write(b, T.Q8_0, pick)
            bar = kl(truth, score(hllm, b))
            write(a, None, pick, wrong=True)
            control = kl(truth, score(hllm, a, *exact))
            ok = abs(same) <= 1e-8 and loss <= bar and control > 1e-7
            print(f"{'ok ' if ok else 'BAD'} {name:7} f32 {same:9.2e}  default {loss:9.2e} (bar {bar:9.2e})  one wrong block {control:9.2e}", flush=True)
            bad += not ok
            n += 1
    if not n:
        sys.exit("types_model.py: no such type")
    print(f"{n - bad} passed, {bad} failed")
    sys.exit(bad > 0)


main()
