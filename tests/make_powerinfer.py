#!/usr/bin/env python3
"""Write small random-weight PowerInfer models (GGUF v3 but for the magic PWRI) with useful predictors,
and print golden values of them from a float64 forward pass written here on its own.

families: llama (ReGLU) bamboo (dReLU) falcon (40B form: attn_norm_2, grouped K and V) falcon-7b (one norm, one K/V head) opt
usage:    make_powerinfer.py --vocab-from tiny-relu2-q8_0.gguf --tokens GOLDEN [--seed N] [--type f32|f16]
              [--gpuidx FILE] [--plain FILE] [--golden dense|predicted [--top 128] [--greedy 16] [--act gelu]] FAMILY OUT.gguf
  --tokens  a file in the format of `hllm score`, of whose texts only the tokens are used. The model depends on them: each predictor row is scaled so that the threshold lies in a
            gap between its scores on these texts and the 16 tokens after them, so that rounding flips no neuron.
  --golden  prints the format of `hllm score` (tests/golden/README.md). dense: every neuron. predicted: a neuron counts only if
            score >= threshold, for each token of prompt and continuation; a skipped neuron of opt adds nothing, whatever
            its bias. No special tokens. Shares and the smallest |score - threshold| go to stderr.
  --gpuidx  the GPU split of these weights: 256, 0, all and half of the neurons of layers 0..3, those passed most often
  --plain   falcon: the dense model as ordinary GGUF; llama.cpp runs it with GELU, so compare with --golden dense --act gelu
Predictors read the residual stream: after attention (llama, bamboo, opt), or the layer input (falcon).
opt files have no epsilon: the golden values use 1e-5 (as trained); PowerInfer's own 0 moves them by less than 1e-9 in KL.
needs: numpy, gguf==0.19.0 (other versions may write other bytes)
"""
import argparse, sys
import numpy as np, gguf

L, D, HEADS, HD, F = 4, 128, 4, 32, 1024             # F > 1000: PowerInfer misreads smaller predictors (defect D3)
WIDTHS = (40, 96, 64, 54)                            # predictor widths
THRESHOLD = 0.6875
FREQ = {"bamboo": 50000.0}
relu = lambda a: np.maximum(a, 0)

def kv_heads(fam): return {"falcon-7b": 1, "opt": HEADS}.get(fam, 2)
def layernorm(fam): return fam.startswith("falcon") or fam == "opt"
def epsilon(fam): return 1e-5 if fam == "opt" else 1e-2          # large where the file says it, so that a wrong one shows
def grid(a, step): return np.round(a / step) * step              # the same bytes whatever BLAS computed a

def build(fam, rng, V, half):
    """All tensors by file name, float64 holding exactly what the file will hold; rows first, as numpy sees them."""
    t = {}
    def put(name, a): t[name] = a.astype(np.float16 if half and a.ndim == 2 else np.float32).astype(np.float64)
    def mat(name, rows, cols, gain=1.5): put(name, rng.standard_normal((rows, cols)) * gain / np.sqrt(cols))
    def vec(name, n, mean=0.0, dev=0.3): put(name, mean + dev * rng.standard_normal(n))
    def norm(name):
        vec(name + ".weight", D, 1.0, 0.2)
        if layernorm(fam): vec(name + ".bias", D, 0.0, 0.2)
    def linear(name, rows, cols, gain=1.5):
        mat(name + ".weight", rows, cols, gain)
        if fam == "opt": vec(name + ".bias", rows)
    k = kv_heads(fam) * HD
    mat("token_embd.weight", V, D, 2.5 if fam == "opt" else np.sqrt(D))          # tied head: smaller
    if fam == "opt": mat("position_embd.weight", 2050, D, 0.7 * np.sqrt(D))
    norm("output_norm")
    if fam != "opt": mat("output.weight", V, D, 3.5)
    for i, r in enumerate(WIDTHS):
        p = f"blk.{i}."
        norm(p + "attn_norm")
        if fam == "falcon": norm(p + "attn_norm_2")
        if layernorm(fam) and fam != "opt": mat(p + "attn_qkv.weight", D + 2 * k, D)
        else:
            for n, rows in (("q", D), ("k", k), ("v", k)): linear(p + f"attn_{n}", rows, D)
        linear(p + "attn_output", D, D, 1.0)
        if not fam.startswith("falcon"): norm(p + "ffn_norm")
        # The FFN is low-rank + noise, and the predictor knows the low-rank part: fc2 relu(fc1 x) = B A x, since relu(a) - relu(-a) = a.
        A = rng.standard_normal((r // 2, D)) / np.sqrt(D); B = rng.standard_normal((F, r // 2)) / np.sqrt(r // 2)
        if layernorm(fam): A -= A.mean(1, keepdims=True)         # blind to the mean, as LayerNorm is
        core = B @ A / t[p + ("attn_norm" if fam.startswith("falcon") else "ffn_norm") + ".weight"]
        def known(name, share):
            put(p + name, grid(1.5 * (share * core + np.sqrt(1 - share ** 2) * rng.standard_normal((F, D)) / np.sqrt(D)), 2.0 ** -20))
        if fam in ("llama", "bamboo"): known("ffn_gate.weight", 0.95)
        known("ffn_up.weight", {"llama": 0.0, "bamboo": 0.7}.get(fam, 0.95))
        put(p + "ffn_down_t.weight", rng.standard_normal((F, D)) * 1.5 / np.sqrt(F))
        if fam == "opt": vec(p + "ffn_up.bias", F); vec(p + "ffn_down_t.bias", D)
        put(p + "fc1.weight", np.vstack([A, -A]))
        put(p + "fc2.weight", np.hstack([B, -B]) + 0.1 * rng.standard_normal((F, 2 * (r // 2))) / np.sqrt(r // 2))
    return t

def rope(x, base, neox):
    T, H, n = x.shape
    a = np.arange(T)[:, None, None] * base ** (-np.arange(n // 2) * 2.0 / n)
    c, s = np.cos(a), np.sin(a)
    lo, hi = (x[..., :n // 2], x[..., n // 2:]) if neox else (x[..., ::2], x[..., 1::2])
    out = np.empty_like(x)
    first, second = (slice(0, n // 2), slice(n // 2, n)) if neox else (slice(0, n, 2), slice(1, n, 2))
    out[..., first], out[..., second] = lo * c - hi * s, lo * s + hi * c
    return out

def forward(fam, t, ids, pick=None, act=relu):
    """Logits of every position. pick(layer, scores, neuron outputs) -> mask of the neurons that count; None: all."""
    eps, KV, T = epsilon(fam), kv_heads(fam), len(ids)
    def norm(x, name):
        if layernorm(fam): x = x - x.mean(-1, keepdims=True)
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * t[name + ".weight"]
        return y + t[name + ".bias"] if layernorm(fam) else y
    def linear(x, name):
        y = x @ t[name + ".weight"].T
        return y + t[name + ".bias"] if name + ".bias" in t else y
    x = t["token_embd.weight"][ids]
    if fam == "opt": x = x + t["position_embd.weight"][np.arange(T) + 2]
    for i in range(L):
        p = f"blk.{i}."
        before, h = x, norm(x, p + "attn_norm")
        if fam.startswith("falcon"):
            qkv = linear(norm(x, p + "attn_norm_2") if fam == "falcon" else h, p + "attn_qkv").reshape(T, HEADS + 2 * KV, HD)
            q, k, v = qkv[:, :HEADS], qkv[:, HEADS:HEADS + KV], qkv[:, HEADS + KV:]
        else: q, k, v = (linear(h, p + f"attn_{n}").reshape(T, -1, HD) for n in "qkv")
        if fam != "opt": q, k = (rope(z, FREQ.get(fam, 10000.0), fam.startswith("falcon")) for z in (q, k))
        k, v = (np.repeat(z, HEADS // KV, axis=1) for z in (k, v))
        s = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HD) + np.where(np.tri(T, dtype=bool), 0.0, -np.inf)
        s = np.exp(s - s.max(-1, keepdims=True)); s /= s.sum(-1, keepdims=True)
        x = x + linear(np.einsum("hqk,khd->qhd", s, v).reshape(T, D), p + "attn_output")
        seen = before if fam.startswith("falcon") else x         # what the predictor sees
        if not fam.startswith("falcon"): h = norm(x, p + "ffn_norm")
        up = linear(h, p + "ffn_up")
        if fam == "llama": n = act(linear(h, p + "ffn_gate")) * up
        elif fam == "bamboo": n = act(linear(h, p + "ffn_gate")) * act(up)
        else: n = act(up)
        if pick: n = np.where(pick(i, linear(relu(linear(seen, p + "fc1")), p + "fc2"), n), n, 0.0)
        x = x + n @ t[p + "ffn_down_t.weight"] + t.get(p + "ffn_down_t.bias", 0.0)
    x = norm(x, "output_norm")
    return x @ t["token_embd.weight" if fam == "opt" else "output.weight"].T

class Clear:
    """A threshold for each neuron: the middle of the widest gap between its scores so far, inside a first window."""
    def __init__(self, rng): self.want = rng.uniform(0.1, 1, (L, F)) * [[0.9], [0.7], [0.45], [0.85]]; self.gap = [None] * L
    def __call__(self, i, s, _):
        if self.gap[i] is None:
            at = lambda share: np.take_along_axis(np.sort(s, 0), ((1 - share) * (len(s) - 1)).astype(int)[None], 0)[0]
            lo = np.maximum(at(np.minimum(self.want[i] + 0.1, 1)), 0.1 * s.std(0))        # scales must be positive
            self.gap[i] = lo, np.maximum(at(np.maximum(self.want[i] - 0.1, 0)), lo + 0.2 * s.std(0))
        lo, hi = self.gap[i]
        e = np.sort(np.vstack([lo, np.clip(s, lo, hi), hi]), 0)
        j = np.diff(e, axis=0).argmax(0)[None]
        lo, hi = self.gap[i] = np.take_along_axis(e, j, 0)[0], np.take_along_axis(e, j + 1, 0)[0]
        return s >= (lo + hi) / 2
    def middle(self, i): return (self.gap[i][0] + self.gap[i][1]) / 2

class Threshold:
    """PowerInfer's rule, and what it did."""
    def __init__(self): self.margin, self.on, self.all, self.kept, self.mass = np.inf, np.zeros(L), np.zeros(L), 0.0, 0.0
    def __call__(self, i, s, n):
        m = s >= THRESHOLD
        self.margin = min(self.margin, np.abs(s - THRESHOLD).min()); self.on[i] += m.sum(); self.all[i] += m.size
        self.kept += np.abs(n[m]).sum(); self.mass += np.abs(n).sum()
        return m

def greedy(logits, ids, n, eos):
    """The prompt's logits and n tokens by argmax after it, end token included."""
    first = l = logits(ids); out = []
    while len(out) < n:
        out.append(int(l[-1].argmax()))
        if out[-1] == eos or len(out) == n: break
        l = logits(ids + out)
    return first, out

def json_string(b):
    esc = {34: b'\\"', 92: b"\\\\", 10: b"\\n", 9: b"\\t", 13: b"\\r"}
    return b'"' + b"".join(esc.get(c, b"\\u%04x" % c if c < 32 else bytes([c])) for c in b) + b'"'

def print_golden(text, ids, first, out, top, piece):
    w = sys.stdout.buffer
    w.write(b"text " + json_string(text) + b"\ntokens" + "".join(f" {x}" for x in ids).encode() + b"\n")
    for pos, l in enumerate(first):
        lse = l.max() + np.log(np.exp(l - l.max()).sum())
        nxt = ids[pos + 1] if pos + 1 < len(ids) else -1
        best = np.argsort(-l, kind="stable")[:top]               # stable: ties by lower id
        w.write(f"pos {pos} next {nxt} nll {lse - l[nxt] if nxt >= 0 else 0.0:.5f} top".encode()
                + "".join(f" {j}:{l[j] - lse:.4f}" for j in best).encode() + b"\n")
    w.write(b"greedy" + "".join(f" {x}" for x in out).encode() + b"\ngreedy_text " + json_string(b"".join(map(piece, out))) + b"\n")

def piece_of(tokens, types):
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]                # GPT-2's printable bytes; the others follow from 256
    byte = {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in plain)}
    return lambda i: bytes(byte[c] for c in tokens[i]) if types[i] != gguf.TokenType.CONTROL else b""

def patch_magic(path):
    with open(path, "r+b") as f: f.write(b"PWRI")

def write_model(path, fam, t, half, src, plain=False):
    arch = fam.split("-")[0]
    w = gguf.GGUFWriter(path, arch)
    w.add_name(f"random-{fam}"); w.add_file_type(int(half)); w.add_context_length(2050 if fam == "opt" else 2048)
    w.add_embedding_length(D); w.add_block_count(L); w.add_feed_forward_length(F); w.add_head_count(HEADS)
    if fam != "opt":
        w.add_head_count_kv(kv_heads(fam))
        (w.add_layer_norm_eps if layernorm(fam) else w.add_layer_norm_rms_eps)(epsilon(fam))
    if arch in ("llama", "bamboo"): w.add_rope_dimension_count(HD)
    if fam in FREQ: w.add_rope_freq_base(FREQ[fam])
    if arch == "falcon": w.add_tensor_data_layout("jploski")
    if not plain: w.add_float32("powerinfer.sparse_threshold", THRESHOLD)
    w.add_tokenizer_model("gpt2"); w.add_tokenizer_pre("gpt-2")
    w.add_token_list(src["tokens"]); w.add_token_types(src["token_type"]); w.add_token_merges(src["merges"])
    w.add_bos_token_id(0); w.add_eos_token_id(0); w.add_add_bos_token(False)
    for name, a in t.items():
        if plain and (".fc1." in name or ".fc2." in name): continue
        if plain and "ffn_down_t" in name: name, a = name.replace("ffn_down_t", "ffn_down"), a.T
        w.add_tensor(name, np.ascontiguousarray(a, np.float16 if half and a.ndim == 2 else np.float32))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
    if not plain: patch_magic(path)

def write_gpuidx(path, fam, want, half):
    counts = [256, 0, F, F // 2]
    w = gguf.GGUFWriter(path, "generic.gpu_index")
    w.add_uint32("generic.gpu_index.block_count", L)
    w.add_uint64("split.vram_capacity", sum(counts) * D * (2 if half else 4) * (3 if fam in ("llama", "bamboo") else 2))
    for i, k in enumerate(counts):
        bucket = np.sort(np.argsort(-want[i], kind="stable")[:k]).astype(np.int32)
        idx = np.zeros(F, np.int32); idx[bucket] = 1
        w.add_tensor(f"blk.{i}.gpu_idx", idx); w.add_tensor(f"blk.{i}.gpu_bucket", bucket)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
    patch_magic(path)

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--vocab-from", required=True); ap.add_argument("--tokens", required=True)
    ap.add_argument("--seed", type=int, default=1); ap.add_argument("--type", default="f32", choices=["f32", "f16"])
    ap.add_argument("--gpuidx"); ap.add_argument("--plain"); ap.add_argument("--golden", choices=["dense", "predicted"])
    ap.add_argument("--top", type=int, default=128); ap.add_argument("--greedy", type=int, default=16); ap.add_argument("--act", choices=["gelu"])
    ap.add_argument("family", choices=["llama", "bamboo", "falcon", "falcon-7b", "opt"]); ap.add_argument("out")
    a = ap.parse_args(); fam, half = a.family, a.type == "f16"
    if a.plain and not fam.startswith("falcon"): ap.error("--plain: falcon only, llama.cpp has no other of these with its own activation")
    reader = gguf.GGUFReader(a.vocab_from)
    src = {k: reader.fields["tokenizer.ggml." + k].contents() for k in ("tokens", "token_type", "merges")}
    piece = piece_of(src["tokens"], src["token_type"])
    lines = open(a.tokens, "rb").read().splitlines()
    texts = [[int(x) for x in l.split()[1:]] for l in lines if l.startswith(b"tokens ")]
    rng = np.random.default_rng(a.seed)
    t = build(fam, rng, len(src["tokens"]), half)
    clear = Clear(rng)
    for ids in texts: greedy(lambda ids: forward(fam, t, ids, clear), ids, 16, 0)
    for i in range(L):
        fc2 = t[f"blk.{i}.fc2.weight"] * grid(THRESHOLD / clear.middle(i), 2.0 ** -14)[:, None]
        t[f"blk.{i}.fc2.weight"] = fc2.astype(np.float16 if half else np.float32).astype(np.float64)
    write_model(a.out, fam, t, half, src)
    if a.plain: write_model(a.plain, fam, t, half, src, True)
    if a.gpuidx: write_gpuidx(a.gpuidx, fam, clear.want, half)
    if not a.golden: return
    act = relu if not a.act else lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))
    pick = Threshold() if a.golden == "predicted" else None
    for ids in texts:
        print_golden(b"".join(map(piece, ids)), ids, *greedy(lambda ids: forward(fam, t, ids, pick, act), ids, a.greedy, 0), a.top, piece)
    if pick:
        print(f"{fam} seed {a.seed}: active {pick.on.sum() / pick.all.sum():.4f} by layer {np.round(pick.on / pick.all, 3).tolist()}"
              f"  kept |h| {pick.kept / pick.mass:.3f}  smallest |score - threshold| {pick.margin:.6f}", file=sys.stderr)

if __name__ == "__main__": main()
