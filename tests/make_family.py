#!/usr/bin/env python3
"""Write small random-weight GGUF models, one per model family, to compare a runner with an independent one.

Every detail that tells one family from another is present (biases, q/k norms, soft caps, post norms, fused matrices,
rope factors, sliding windows, parallel blocks), so a wrong detail changes the logits. Weights are scaled so that the
next-token distribution is neither flat nor one-hot. Vocabulary: 4096 byte-level BPE tokens taken from --vocab-from.

usage: make_family.py --vocab-from models/tiny-relu2-q8_0.gguf [--seed N] [--type f32|f16] FAMILY OUT.gguf
families: llama llama-linear llama-yarn qwen2 qwen3 gemma2 gemma3 phi3 arcee nemotron falcon falcon-2norm
needs: numpy, gguf==0.19.0 (other versions may write other bytes)
"""
import argparse
import numpy as np, gguf

def main():
    ap = argparse.ArgumentParser(); ap.add_argument("--vocab-from", required=True); ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--type", default="f32", choices=["f32", "f16"]); ap.add_argument("family"); ap.add_argument("out")
    a = ap.parse_args(); fam = a.family
    arch = fam.split("-")[0]
    rng = np.random.default_rng(a.seed)
    L, d, heads, kv, hd, f, V = 4, 128, 4, 2, 32, 352, 4096
    if fam == "qwen3": hd = 48                       # head size not n_embd / n_head
    if fam == "falcon": kv = 1
    if fam == "gemma3": L = 7                        # five local layers to one global
    w = gguf.GGUFWriter(a.out, arch)
    src = gguf.GGUFReader(a.vocab_from)
    def field(k): return src.fields[k].contents()
    w.add_name("random-fused" if fam == "phi3" else f"random-{fam}")          # llama.cpp acts on "phi3" in the *name*
    w.add_context_length(2048); w.add_embedding_length(d); w.add_block_count(L)
    w.add_feed_forward_length(f); w.add_head_count(heads); w.add_head_count_kv(kv); w.add_vocab_size(V)
    w.add_key_length(hd); w.add_value_length(hd)
    w.add_rope_freq_base({"llama": 500000.0, "gemma3": 1e6, "qwen2": 1e6, "qwen3": 1e6}.get(fam, 10000.0))
    rot = hd // 2 if fam == "nemotron" else hd       # nemotron rotates half of the head
    w.add_rope_dimension_count(rot)
    layernorm = fam in ("nemotron", "falcon", "falcon-2norm")
    (w.add_layer_norm_eps if layernorm else w.add_layer_norm_rms_eps)(1e-2)       # large, so that a wrong epsilon shows
    if fam == "gemma2": w.add_attn_logit_softcapping(5.0); w.add_final_logit_softcapping(8.0); w.add_sliding_window(32)
    if fam == "gemma3": w.add_sliding_window(16)
    if fam == "llama-linear": w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR); w.add_rope_scaling_factor(4.0)
    if fam == "llama-yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN); w.add_rope_scaling_factor(8.0); w.add_rope_scaling_orig_ctx_len(64)
    if fam == "phi3": w.add_rope_scaling_orig_ctx_len(64)      # context 2048 > 64: the long factors
    w.add_tokenizer_model("gpt2"); w.add_tokenizer_pre("gpt-2")
    w.add_token_list(field("tokenizer.ggml.tokens")); w.add_token_merges(field("tokenizer.ggml.merges"))
    w.add_token_types(field("tokenizer.ggml.token_type")); w.add_eos_token_id(0); w.add_bos_token_id(0); w.add_add_bos_token(False)
    def put(name, arr, small=False):
        arr = np.ascontiguousarray(arr, dtype=np.float32)
        w.add_tensor(name, arr if small or a.type == "f32" else arr.astype(np.float16))
    def mat(name, rows, cols, gain=1.0): put(name, rng.standard_normal((rows, cols)) * gain / np.sqrt(cols))
    def vec(name, n, mean=1.0, dev=0.2): put(name, mean + dev * rng.standard_normal(n), small=True)
    def norm(name, n):
        vec(name + ".weight", n)
        if layernorm: vec(name + ".bias", n, 0.0)
    put("token_embd.weight", rng.standard_normal((V, d)) * ({"gemma2": 1.5, "gemma3": 1.5, "qwen2": 2.5}.get(fam, np.sqrt(d)) / np.sqrt(d)))
    norm("output_norm", d)
    if fam not in ("gemma2", "gemma3", "qwen2"): mat("output.weight", V, d, 3.5)
    if fam == "llama":                               # Llama 3 frequency factors
        put("rope_freqs.weight", np.where(np.arange(hd // 2) < hd // 6, 1.0, 8.0), small=True)
    if fam == "phi3":
        put("rope_factors_long.weight", np.linspace(1, 9, rot // 2), small=True); put("rope_factors_short.weight", np.linspace(1, 1.5, rot // 2), small=True)
    q, k = heads * hd, kv * hd
    for i in range(L):
        p = f"blk.{i}."
        norm(p + "attn_norm", d)
        if fam in ("phi3", "falcon", "falcon-2norm"): mat(p + "attn_qkv.weight", q + 2 * k, d, 1.5)
        else:
            for n, r in (("q", q), ("k", k), ("v", k)):
                mat(p + f"attn_{n}.weight", r, d, 1.5)
                if fam == "qwen2": vec(p + f"attn_{n}.bias", r, 0.0, 0.5)
        if fam in ("qwen3", "gemma3"): vec(p + "attn_q_norm.weight", hd); vec(p + "attn_k_norm.weight", hd)
        mat(p + "attn_output.weight", d, q)
        if fam == "falcon-2norm": norm(p + "attn_norm_2", d)
        if fam in ("gemma2", "gemma3"): norm(p + "post_attention_norm", d); norm(p + "post_ffw_norm", d)
        if not fam.startswith("falcon"): norm(p + "ffn_norm", d)
        if fam == "phi3": mat(p + "ffn_up.weight", 2 * f, d, 1.5); mat(p + "ffn_down.weight", d, f, 1.5)
        else:
            if fam not in ("arcee", "nemotron", "falcon", "falcon-2norm"): mat(p + "ffn_gate.weight", f, d, 1.5)
            mat(p + "ffn_up.weight", f, d, 1.5); mat(p + "ffn_down.weight", d, f, 1.5)
            if fam == "nemotron":
                vec(p + "ffn_up.bias", f, 0.0, 0.3); vec(p + "ffn_down.bias", d, 0.0, 0.3); vec(p + "attn_output.bias", d, 0.0, 0.3)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()

if __name__ == "__main__": main()
