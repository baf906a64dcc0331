/* Hostile weights, row 28 of the catalogue: NaN and infinite scales in blocks of every element format, all-zero and all-FF data.
 * Such models load; computing with them ends with HLLM_E_NUMERIC and no token, or (zeros, finite values) with tokens, never with a
 * crash; then a good model still answers in the same runtime. */
#include <math.h>

#include "api_rows.h"

enum { EMBD = 256, HEADS = 4, HEAD = 64, FF = 256 };
enum { FINITE, ZERO, NAN_SCALE, INF_SCALE, ALL_FF, N_FILLS };
static const char *const fill_names[] = { "finite", "zero", "NaN scales", "infinite scales", "all FF" };

/* Where a block's half-precision scales are; -1: none.  block 1: the value itself is the scale. */
static const struct { const char *name; uint32_t type, block, bytes; int scale[2]; } formats[] = {
    { "F32", 0, 1, 4, { 0, -1 } }, { "F16", 1, 1, 2, { 0, -1 } }, { "BF16", 30, 1, 2, { 0, -1 } }, { "Q4_0", 2, 32, 18, { 0, -1 } },
    { "Q4_1", 3, 32, 20, { 0, 2 } }, { "Q5_0", 6, 32, 22, { 0, -1 } }, { "Q5_1", 7, 32, 24, { 0, 2 } }, { "Q8_0", 8, 32, 34, { 0, -1 } },
    { "Q2_K", 10, 256, 84, { 80, 82 } }, { "Q3_K", 11, 256, 110, { 108, -1 } }, { "Q4_K", 12, 256, 144, { 0, 2 } },
    { "Q5_K", 13, 256, 176, { 0, 2 } }, { "Q6_K", 14, 256, 210, { 208, -1 } }, { "IQ4_NL", 20, 32, 18, { 0, -1 } },
    { "IQ4_XS", 23, 256, 136, { 0, -1 } }, { "MXFP4", 39, 32, 17, { -1, -1 } } };
enum { N_FORMATS = sizeof formats / sizeof formats[0] };

static void fill_block(gbuf *out, size_t format, int fill, uint64_t *state)
{
    uint8_t b[256];
    const uint32_t type = formats[format].type, n = formats[format].bytes;
    for (uint32_t i = 0; i < n; i++) b[i] = (uint8_t)(gf_random(state) * 128 + 128);
    if (type == 39) b[0] = fill == FINITE ? 120 : 255;                     /* 2^-8; 2^127 times 12 is infinite */
    for (int s = 0; s < 2 && formats[format].scale[s] >= 0; s++) {
        const uint16_t half = fill == FINITE ? 0x1C00 : fill == NAN_SCALE ? 0x7E00 : 0x7C00;       /* 2^-8 */
        const uint16_t brain = fill == FINITE ? 0x3B80 : fill == NAN_SCALE ? 0x7FC0 : 0x7F80;
        const uint32_t single = (uint32_t)brain << 16;
        if (type == 0) memcpy(b, &single, 4);
        else memcpy(b + formats[format].scale[s], type == 30 ? &brain : &half, 2);
    }
    if (fill == ZERO) memset(b, 0, n);
    if (fill == ALL_FF) memset(b, 0xFF, n);
    gb_add(out, b, n);
}

static void quantised(gguf_file *f, const char *name, uint64_t cols, uint64_t rows, size_t format, int fill)
{
    uint64_t state = cols + rows;
    gtensor *t = gf_tensor_raw(f, name, strlen(name), formats[format].type, 2, cols, rows);
    for (uint64_t i = 0; i < cols * rows / formats[format].block; i++) fill_block(&t->data, format, fill, &state);
}

/* A model of one layer; `name` has the format and fill, the other tensors are ordinary f32. */
static gguf_file *model_with(const char *name, size_t format, int fill)
{
    static const struct { const char *name; uint64_t cols, rows; } matrices[] = {
        { "token_embd.weight", EMBD, GF_SPM_VOCAB }, { "output.weight", EMBD, GF_SPM_VOCAB }, { "blk.0.attn_q.weight", EMBD, EMBD },
        { "blk.0.attn_k.weight", EMBD, HEAD }, { "blk.0.attn_v.weight", EMBD, HEAD }, { "blk.0.attn_output.weight", EMBD, EMBD },
        { "blk.0.ffn_gate.weight", EMBD, FF }, { "blk.0.ffn_up.weight", EMBD, FF }, { "blk.0.ffn_down.weight", FF, EMBD } };
    gguf_file *f = gf_new();
    gf_llama_keys(f);
    gf_u32(f, "llama.block_count", 1);
    gf_u32(f, "llama.embedding_length", EMBD);
    gf_u32(f, "llama.feed_forward_length", FF);
    gf_u32(f, "llama.attention.head_count", HEADS);
    gf_u32(f, "llama.rope.dimension_count", HEAD);
    gf_spm_vocab(f);
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
        if (strcmp(name, "all") == 0 || strcmp(name, matrices[i].name) == 0)
            quantised(f, matrices[i].name, matrices[i].cols, matrices[i].rows, format, fill);
        else
            gf_f32_tensor(f, matrices[i].name, matrices[i].cols, matrices[i].rows, 0, i < 2 ? 1 : 0.1);
    }
    gf_f32_tensor(f, "output_norm.weight", EMBD, 0, 1, 0);
    gf_f32_tensor(f, "blk.0.attn_norm.weight", EMBD, 0, 1, 0);
    gf_f32_tensor(f, "blk.0.ffn_norm.weight", EMBD, 0, 1, 0);
    return f;
}

/* Generates 3 tokens greedily.  How it ended; HLLM_E_NUMERIC or HLLM_OK, or what failed before. */
static hllm_status answer(const char *path, uint32_t act, uint32_t *n_generated)
{
    hllm_model *m = NULL;
    hllm_engine *e = NULL;
    hllm_session *s = NULL;
    hllm_engine_options engine_opt = { .struct_size = sizeof engine_opt, .act = act };
    hllm_session_options session_opt = { .struct_size = sizeof session_opt, .n_ctx = 32 };
    hllm_generate_options opt = { .struct_size = sizeof opt, .max_tokens = 3, .flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS };
    hllm_poll_result r = { .struct_size = sizeof r };
    char buf[256], text[512] = "";
    size_t bytes = 0;
    hllm_status rc;
    *n_generated = 0;
    if ((rc = row_open(path, 0, &m)) != HLLM_OK) goto done;
    if ((rc = hllm_engine_create(m, &engine_opt, &e)) != HLLM_OK) goto done;
    if ((rc = hllm_session_create(e, &session_opt, &s)) != HLLM_OK) goto done;
    if ((rc = hllm_generate_start(s, "abba", 4, &opt)) != HLLM_OK) goto done;
    do {
        r.struct_size = sizeof r;
        if ((rc = hllm_generate_poll(s, 1000, buf, sizeof buf, &r)) != HLLM_OK) goto done;
        bytes += r.text_bytes;
    } while (r.run != HLLM_RUN_DONE);
    *n_generated = r.n_generated;
    rc = r.finish == HLLM_FINISH_ERROR ? r.error : HLLM_OK;
    if (rc != HLLM_OK) {
        hllm_session_last_error(s, text, sizeof text);
        CHECK_MSG(r.n_generated == 0 && bytes == 0, "%s: %u tokens", path, r.n_generated);
        CHECK_MSG(text[0] && hostile_printable(text), "'%s'", text);
        static const int32_t tokens[] = { 1, 262 };    /* the same by the other road */
        hllm_session_rewind(s, 0);
        static float logits[GF_SPM_VOCAB];
        hllm_status again = hllm_session_eval(s, tokens, 2);
        if (again == HLLM_OK) again = hllm_session_logits(s, 1, logits, GF_SPM_VOCAB);
        CHECK_MSG(again == rc, "by eval: %s", hllm_status_name(again));
    }
done:
    hllm_session_free(s);
    hllm_engine_free(e);
    hllm_model_free(m);
    return rc;
}

static void expect_answer(const char *name, size_t format, int fill, uint32_t act)
{
    gguf_file *f = model_with(name, format, fill);
    gbuf b = gf_write(f, NULL);
    uint32_t n;
    hostile_write(row_path, b.p, b.n, 0);
    gb_free(&b);
    gf_free(f);
    size_t live = row_count.live;
    long blocks = row_count.blocks;
    double t = hostile_now();
    hllm_status rc = answer(row_path, act, &n);
    t = hostile_now() - t;
    hllm_status want = fill == FINITE || fill == ZERO ? HLLM_OK : HLLM_E_NUMERIC;
    CHECK_MSG(rc == want && n == (want == HLLM_OK ? 3u : 0u), "%s of %s, %s, act %u: %s, %u tokens", name, formats[format].name,
              fill_names[fill], act, hllm_status_name(rc), n);
    CHECK_MSG(t <= hostile_seconds, "%s of %s: %d ms", name, formats[format].name, (int)(t * 1000));
    CHECK_MSG(row_count.live == live && row_count.blocks == blocks, "%s of %s, %s: a leak of %zu bytes", name, formats[format].name,
              fill_names[fill], row_count.live - live);
    rows_hit[28]++;
}

int main(void)
{
    static const int rows[] = { 28 };
    static const char *const one_each[] = { "token_embd.weight", "output.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight",
                                            "blk.0.attn_v.weight", "blk.0.attn_output.weight", "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight" };
    uint32_t n;
    rows_begin();
    for (size_t format = 0; format < N_FORMATS; format++)
        for (int fill = 0; fill < N_FILLS; fill++)
            for (uint32_t act = 0; act < 2; act++) expect_answer("blk.0.ffn_down.weight", format, fill, act);
    for (size_t format = 0; format < N_FORMATS; format++) expect_answer("all", format, ZERO, HLLM_ACT_Q8);
    for (size_t i = 0; i < sizeof one_each / sizeof one_each[0]; i++)      /* every place that a NaN can come from */
        for (int fill = NAN_SCALE; fill < N_FILLS; fill++)
            for (uint32_t act = 0; act < 2; act++) expect_answer(one_each[i], 7, fill, act);
    CHECK(answer(row_good, 0, &n) == HLLM_OK && n == 3);
    return rows_end(rows, sizeof rows / sizeof rows[0]);
}
