/* Hostile models in good containers, rows 23 to 27 and 29 of the catalogue: keys that are missing, of another type or senseless,
 * tensors that do not fit them, unknown architectures.  Each file is a complete tiny model with one thing changed. */
#include <math.h>

#include "api_rows.h"

enum { OK = HLLM_OK, FORMAT = HLLM_E_FORMAT, MISMATCH = HLLM_E_MISMATCH, LIMIT = HLLM_E_LIMIT, UNSUPPORTED = HLLM_E_UNSUPPORTED };

/* What each required key is. */
static const struct { const char *name; char kind; } required[] = {
    { "general.architecture", 's' }, { "llama.block_count", 'i' }, { "llama.context_length", 'i' }, { "llama.embedding_length", 'i' },
    { "llama.feed_forward_length", 'p' }, { "llama.attention.head_count", 'p' }, { "llama.attention.layer_norm_rms_epsilon", 'f' },
    { "tokenizer.ggml.model", 's' }, { "tokenizer.ggml.tokens", 'S' }, { "tokenizer.ggml.scores", 'F' } };

static void row_23(void)
{
    static const char *const optional[] = { "general.name", "llama.rope.dimension_count", "llama.rope.freq_base", "tokenizer.ggml.pre",
                                            "tokenizer.ggml.token_type", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.add_bos_token" };
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        gguf_file *f = gf_llama();
        gf_remove(f, required[i].name);
        row_expect(23, required[i].name, f, FORMAT, required[i].name);
    }
    for (size_t i = 0; i < sizeof optional / sizeof optional[0]; i++) {
        gguf_file *f = gf_llama();
        gf_remove(f, optional[i]);
        row_expect(23, optional[i], f, OK, NULL);
    }
    gguf_file *f = gf_gpt2();
    gf_remove(f, "tokenizer.ggml.merges");
    row_expect(23, "merges", f, FORMAT, "tokenizer.ggml.merges");
    row_expect(23, "a whole BPE model", gf_gpt2(), OK, NULL);
}

/* A value of 1 (or "1") of a scalar type. */
static void put_one(gbuf *b, uint32_t type)
{
    static const uint8_t bytes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    const uint64_t one = 1;
    const double one_f64 = 1;
    if (type == GT_STRING) gb_str(b, "1", 1);
    else if (type == GT_F32) gb_f32(b, 1);
    else if (type == GT_F64) gb_add(b, &one_f64, 8);
    else gb_add(b, &one, bytes[type]);
}

static void row_24(void)
{
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        char kind = required[i].kind, what[128];
        for (uint32_t type = 0; type <= GT_F64; type++) {
            int is_int = type != GT_F32 && type != GT_F64 && type != GT_BOOL && type != GT_STRING && type != GT_ARRAY;
            if (type == GT_ARRAY) continue;
            snprintf(what, sizeof what, "%s as type %u", required[i].name, type);
            /* Any integer type is an integer and either float a float: those are other values, not other types. */
            if (!((kind == 's' && type == GT_STRING) || ((kind == 'i' || kind == 'p') && is_int) ||
                  (kind == 'f' && (type == GT_F32 || type == GT_F64)))) {
                gguf_file *f = gf_llama();
                put_one(&gf_key(f, required[i].name, type)->value, type);
                row_expect(24, what, f, FORMAT, required[i].name);
            }
            snprintf(what, sizeof what, "%s as an array of type %u", required[i].name, type);
            if ((kind == 'S' && type == GT_STRING) || (kind == 'F' && type == GT_F32)) continue;
            gguf_file *f = gf_llama();                 /* of one value: also where one per layer would do, as there are two */
            put_one(gf_array(f, required[i].name, type, 1), type);
            row_expect(24, what, f, FORMAT, required[i].name);
        }
    }
}

static void row_25(void)
{
    static const struct { const char *key; uint32_t value; hllm_status want, want2; } numbers[] = {
        { "llama.block_count", 0, FORMAT, FORMAT }, { "llama.block_count", 1, MISMATCH, FORMAT }, { "llama.block_count", 3, MISMATCH, FORMAT },
        { "llama.block_count", UINT32_MAX, FORMAT, LIMIT }, { "llama.block_count", INT32_MAX, FORMAT, LIMIT },
        { "llama.embedding_length", 0, FORMAT, FORMAT }, { "llama.embedding_length", 1, FORMAT, MISMATCH },
        { "llama.embedding_length", 2, FORMAT, MISMATCH }, { "llama.embedding_length", 33, FORMAT, FORMAT },
        { "llama.embedding_length", 64, FORMAT, MISMATCH }, { "llama.embedding_length", UINT32_MAX, FORMAT, LIMIT },
        { "llama.attention.head_count", 0, FORMAT, FORMAT }, { "llama.attention.head_count", 1, FORMAT, MISMATCH },
        { "llama.attention.head_count", 3, FORMAT, FORMAT }, { "llama.attention.head_count", 32, FORMAT, MISMATCH },
        { "llama.attention.head_count", 64, FORMAT, FORMAT }, { "llama.attention.head_count", UINT32_MAX, FORMAT, LIMIT },
        { "llama.attention.head_count_kv", 0, FORMAT, FORMAT }, { "llama.attention.head_count_kv", 2, MISMATCH, FORMAT },
        { "llama.attention.head_count_kv", 3, FORMAT, FORMAT }, { "llama.attention.head_count_kv", UINT32_MAX, FORMAT, LIMIT },
        { "llama.feed_forward_length", 0, FORMAT, FORMAT }, { "llama.feed_forward_length", 1, MISMATCH, FORMAT },
        { "llama.feed_forward_length", 63, MISMATCH, FORMAT }, { "llama.feed_forward_length", UINT32_MAX, FORMAT, LIMIT },
        { "llama.context_length", 0, FORMAT, FORMAT }, { "llama.context_length", 1, OK, OK },
        { "llama.context_length", UINT32_MAX, FORMAT, LIMIT },
        { "llama.rope.dimension_count", 0, FORMAT, FORMAT }, { "llama.rope.dimension_count", 15, FORMAT, FORMAT },
        { "llama.rope.dimension_count", 1, FORMAT, FORMAT }, { "llama.rope.dimension_count", 18, FORMAT, FORMAT },
        { "llama.rope.dimension_count", UINT32_MAX, FORMAT, FORMAT },
        { "llama.attention.key_length", 0, FORMAT, FORMAT }, { "llama.attention.key_length", 15, FORMAT, MISMATCH },
        { "llama.attention.key_length", UINT32_MAX, FORMAT, LIMIT }, { "llama.attention.value_length", 0, FORMAT, FORMAT },
        { "llama.attention.value_length", UINT32_MAX, FORMAT, LIMIT }, { "llama.attention.value_length", 8, MISMATCH, FORMAT } };
    char what[128];
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        gguf_file *f = gf_llama();
        gf_u32(f, numbers[i].key, numbers[i].value);
        snprintf(what, sizeof what, "%s = %" PRIu32, numbers[i].key, numbers[i].value);
        row_expect2(25, what, f, numbers[i].want, numbers[i].want2, "");
        if (numbers[i].want == OK) continue;
        f = gf_llama();                                /* the same as a negative number and as one of 64 bits */
        gf_i32(f, numbers[i].key, -1);
        row_expect(25, what, f, FORMAT, numbers[i].key + 6);
        f = gf_llama();
        gb_u64(&gf_key(f, numbers[i].key, GT_U64)->value, numbers[i].value + (1ull << 32));
        row_expect2(25, what, f, FORMAT, LIMIT, numbers[i].key + 6);
        f = gf_llama();
        gb_u64(&gf_key(f, numbers[i].key, GT_U64)->value, UINT64_MAX);
        row_expect2(25, what, f, FORMAT, LIMIT, numbers[i].key + 6);
    }
}

static void row_26(void)
{
    static const char *const floats[] = { "llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base", "llama.rope.scaling.factor" };
    static const float bad[] = { 0, -1, NAN, INFINITY, -INFINITY, -0.0f };
    static const char *const per_layer[] = { "llama.attention.head_count", "llama.attention.head_count_kv", "llama.feed_forward_length" };
    char what[128];
    for (size_t i = 0; i < 3; i++) {
        for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
            gguf_file *f = gf_llama();
            gf_f32(f, floats[i], bad[b]);
            snprintf(what, sizeof what, "%s, bad value %zu", floats[i], b);
            /* A scaling factor of 0 is how some converters write "none". */
            row_expect2(26, what, f, FORMAT, i == 2 && bad[b] == 0 ? OK : FORMAT, floats[i]);
        }
    }
    for (size_t i = 0; i < 3; i++) {
        static const uint32_t good_value[] = { GF_HEADS, GF_KV_HEADS, GF_FF };
        for (uint32_t n = 0; n <= 3; n++) {            /* one value per layer: 0, 1, 2 and 3 of them */
            gguf_file *f = gf_llama();
            gbuf *a = gf_array(f, per_layer[i], GT_U32, n);
            for (uint32_t k = 0; k < n; k++) gb_u32(a, good_value[i]);
            snprintf(what, sizeof what, "%s for %" PRIu32 " layers", per_layer[i], n);
            row_expect(26, what, f, n == GF_LAYERS ? OK : FORMAT, per_layer[i]);
        }
        gguf_file *f = gf_llama();
        gbuf *a = gf_array(f, per_layer[i], GT_U32, GF_LAYERS);
        gb_u32(a, good_value[i]);
        gb_u32(a, 0);
        row_expect(26, per_layer[i], f, FORMAT, per_layer[i]);
        f = gf_llama();
        a = gf_array(f, per_layer[i], GT_I32, GF_LAYERS);
        gb_u32(a, good_value[i]);
        gb_u32(a, (uint32_t)-1);
        row_expect(26, per_layer[i], f, FORMAT, per_layer[i]);
    }
    gguf_file *f = gf_llama();
    gf_u32(f, "llama.expert_count", 2);
    gf_u32(f, "llama.expert_used_count", 3);
    row_expect2(26, "3 of 2 experts", f, FORMAT, UNSUPPORTED, "expert");
    f = gf_llama();
    gf_str(f, "llama.rope.scaling.type", "nonsense");
    row_expect2(26, "rope scaling", f, UNSUPPORTED, FORMAT, "nonsense|yarn");
    static const char *const factors[] = { "llama.rope.scaling.factor", "llama.rope.scale_linear" };
    for (size_t i = 0; i < 2; i++) {                   /* what it divides by would not be finite any more */
        f = gf_llama();
        gf_f32(f, factors[i], 9e-7f);
        snprintf(what, sizeof what, "%s|is 8.99999975e-07|at least 1e-06", factors[i]);
        row_expect(26, "a scaling factor near 0", f, FORMAT, what);
        f = gf_llama();
        gf_f32(f, factors[i], 1.1e-6f);
        row_expect(26, "a small scaling factor", f, OK, NULL);
    }
    f = gf_llama();
    gf_bool(f, "llama.attention.causal", 0);
    row_expect(26, "an encoder", f, UNSUPPORTED, "llama.attention.causal is false|encoders");
    f = gf_llama();
    gf_bool(f, "llama.attention.causal", 1);
    row_expect(26, "said to be causal", f, OK, NULL);
    f = gf_llama();
    gf_u32(f, "llama.attention.causal", 0);
    row_expect(26, "causal as an integer", f, FORMAT, "llama.attention.causal is UINT32|a bool");
    f = gf_llama();
    gb_u8(gf_array(f, "llama.attention.causal", GT_BOOL, 1), 0);
    row_expect(26, "causal as an array", f, FORMAT, "llama.attention.causal is an array of BOOL|a bool");
}

static void row_27(void)
{
    static const char *const tensors[] = {
        "token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight",
        "blk.1.attn_v.weight", "blk.1.attn_output.weight", "blk.1.ffn_norm.weight", "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight",
        "blk.1.ffn_down.weight" };
    static const char *const extra[] = { "blk.0.extra.weight", "blk.2.attn_norm.weight", "blk.4294967295.attn_q.weight", "nonsense",
                                         "blk.0.attn_q.weight2", "blk.00.attn_norm.weight" };
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        gguf_file *f = gf_llama();
        gf_remove_tensor(f, tensors[i]);
        row_expect(27, "missing", f, MISMATCH, tensors[i]);
        f = gf_llama();                                /* transposed; a vector becomes a column */
        gtensor *t = gf_find_tensor(f, tensors[i]);
        uint64_t d0 = t->dims[0];
        t->dims[0] = t->dims[1];
        t->dims[1] = d0;
        t->n_dims = 2;
        if (t->dims[0] != d0) row_expect(27, "transposed", f, MISMATCH, tensors[i]);
        else gf_free(f);
        f = gf_llama();                                /* one row more: the data of the next tensor move */
        t = gf_find_tensor(f, tensors[i]);
        t->dims[t->n_dims - 1]++;
        for (uint64_t k = 0; k < (t->n_dims == 1 ? 1 : t->dims[0]); k++) gb_f32(&t->data, 1);
        row_expect(27, "larger", f, MISMATCH, tensors[i]);
    }
    for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++) {
        gguf_file *f = gf_llama();
        gf_f32_tensor(f, extra[i], GF_EMBD, 0, 1, 0);
        row_expect(27, "extra", f, MISMATCH, extra[i]);
    }
    gguf_file *f = gf_llama();
    gtensor *t = gf_find_tensor(f, "blk.0.attn_norm.weight");
    t->type = 8;                                       /* a norm in blocks: 32 values in 34 bytes */
    t->data.n = 34;
    row_expect(27, "a norm of Q8_0", f, MISMATCH, "blk.0.attn_norm.weight|Q8_0");
    f = gf_llama();
    gf_remove_tensor(f, "output.weight");
    row_expect(27, "a tied head", f, OK, NULL);
    f = gf_llama();
    t = gf_find_tensor(f, "blk.0.ffn_up.weight");
    t->n_dims = 3;
    t->dims[2] = 2;
    for (int i = 0; i < GF_EMBD * GF_FF; i++) gb_f32(&t->data, 0);
    row_expect(27, "a third dimension", f, MISMATCH, "blk.0.ffn_up.weight");
    f = gf_new();                                      /* one token fewer than the embedding has rows, then one more */
    gf_llama_keys(f);
    gf_spm_vocab(f);
    gf_llama_tensors(f, GF_SPM_VOCAB + 1);
    row_expect(27, "more rows than tokens", f, MISMATCH, "token_embd.weight|288|289");
    f = gf_new();
    gf_llama_keys(f);
    gf_spm_vocab(f);
    gf_llama_tensors(f, GF_SPM_VOCAB - 1);
    row_expect(27, "fewer rows than tokens", f, MISMATCH, "token_embd.weight|288|287");
}

/* Two forms of one thing in one layer, half a pair: which of them counts cannot be known. */
static void row_27_forms(void)
{
    static const char *const apart[] = { "attn_q", "attn_k", "attn_v" };
    static const uint64_t rows[] = { GF_HEADS * GF_HEAD, GF_KV_HEADS * GF_HEAD, GF_KV_HEADS * GF_HEAD };
    const uint64_t all = (GF_HEADS + 2 * GF_KV_HEADS) * GF_HEAD;
    char name[64], words[128];
    for (int k = 0; k < 4; k++) {                      /* beside the fused tensor: one of the three, then none of them */
        gguf_file *f = gf_llama();
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "blk.1.%s.weight", apart[i]);
            if (i != k) gf_remove_tensor(f, name);
        }
        gf_f32_tensor(f, "blk.1.attn_qkv.weight", GF_EMBD, all, 0, 0.3);
        snprintf(words, sizeof words, "blk.1.%s.weight|fused attn_qkv.weight", apart[k % 3]);
        row_expect(27, "fused beside separate", f, k < 3 ? MISMATCH : OK, words);
        f = gf_llama();
        if (k < 3) {
            snprintf(name, sizeof name, "blk.0.%s.bias", apart[k]);
            gf_f32_tensor(f, name, rows[k], 0, 0, 0.1);
        }
        gf_f32_tensor(f, "blk.0.attn_qkv.bias", all, 0, 0, 0.1);
        snprintf(words, sizeof words, "blk.0.%s.bias|fused attn_qkv.bias", apart[k % 3]);
        row_expect(27, "biases of both forms", f, k < 3 ? MISMATCH : OK, words);
    }
    for (int i = 1; i < 8; i++) {                      /* long, short, factors of the older kind */
        static const char *const factors[] = { "rope_factors_long.weight", "rope_factors_short.weight", "rope_freqs.weight" };
        gguf_file *f = gf_llama();
        for (int k = 0; k < 3; k++)
            if (i >> k & 1) gf_f32_tensor(f, factors[k], GF_HEAD / 2, 0, 1, 0.1);
        row_expect(27, "rope factors", f, i == 3 || i == 4 ? OK : MISMATCH, "rope_factors_long.weight and rope_factors_short.weight come together|not with rope_freqs.weight");
    }
}

static void row_29(void)
{
    static const char *const names[] = { "", "llama ", "LLAMA", "nonsense", "../llama", "%s%n" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        gguf_file *f = gf_llama();
        gf_str(f, "general.architecture", names[i]);
        row_expect(29, names[i], f, UNSUPPORTED, "llama|qwen2|gemma3");
        CHECK(strstr(row_text(), names[i]) != NULL);
    }
    gguf_file *f = gf_llama();
    gb_str(&gf_key(f, "general.architecture", GT_STRING)->value, "llama\0x", 7);
    row_expect2(29, "a NUL inside", f, UNSUPPORTED, FORMAT, "");
    f = gf_llama();
    gb_str(&gf_key(f, "general.architecture", GT_STRING)->value, "\x1b[31mllama", 10);
    row_expect2(29, "an escape sequence", f, UNSUPPORTED, FORMAT, "");
    f = gf_llama();
    gb_str(&gf_key(f, "general.architecture", GT_STRING)->value, "\xff\xfe", 2);
    row_expect2(29, "no UTF-8", f, UNSUPPORTED, FORMAT, "");
    char *long_name = malloc(10 << 20);
    NEED(long_name != NULL);
    memset(long_name, 'a', 10 << 20);
    f = gf_llama();
    gb_str(&gf_key(f, "general.architecture", GT_STRING)->value, long_name, 10 << 20);
    row_expect(29, "10 MiB", f, LIMIT, "general.architecture");
    free(long_name);
}

int main(void)
{
    static const int rows[] = { 23, 24, 25, 26, 27, 29 };
    rows_begin();
    row_23();
    row_24();
    row_25();
    row_26();
    row_27();
    row_27_forms();
    row_29();
    return rows_end(rows, sizeof rows / sizeof rows[0]);
}
