/* gguf_writer.h: writes GGUF files for tests, right ones and wrong ones: every count, length, type and offset can be falsified.
 *
 * gf_llama and gf_gpt2 fill in a complete tiny model (family llama, SPM or BPE vocabulary) that a test then changes in one place.
 * Memory of a gguf_file is freed by gf_free.  Not for production: failures of malloc end the test. */
#ifndef GGUF_WRITER_H
#define GGUF_WRITER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct gbuf { uint8_t *p; size_t n, cap; } gbuf;

static inline void gb_add(gbuf *b, const void *data, size_t n)
{
    if (b->cap - b->n < n) {
        b->cap = (b->n + n) * 2 + 64;
        b->p = realloc(b->p, b->cap);
        if (!b->p) exit(1);
    }
    if (n) memcpy(b->p + b->n, data, n);
    b->n += n;
}
static inline void gb_u8(gbuf *b, uint8_t x) { gb_add(b, &x, sizeof x); }
static inline void gb_u16(gbuf *b, uint16_t x) { gb_add(b, &x, sizeof x); }
static inline void gb_u32(gbuf *b, uint32_t x) { gb_add(b, &x, sizeof x); }
static inline void gb_u64(gbuf *b, uint64_t x) { gb_add(b, &x, sizeof x); }
static inline void gb_f32(gbuf *b, float x) { gb_add(b, &x, sizeof x); }
static inline void gb_str(gbuf *b, const char *s, size_t n) { gb_u64(b, n); gb_add(b, s, n); }
static inline void gb_free(gbuf *b) { free(b->p); memset(b, 0, sizeof *b); }

enum { GT_U8, GT_I8, GT_U16, GT_I16, GT_U32, GT_I32, GT_F32, GT_BOOL, GT_STRING, GT_ARRAY, GT_U64, GT_I64, GT_F64 };

typedef struct gkey { gbuf name; uint32_t type; gbuf value; uint64_t name_bytes; /* declared */ } gkey;
typedef struct gtensor {
    gbuf name;
    uint64_t name_bytes;             /* declared */
    uint32_t n_dims;                 /* declared; dims holds as many, at most 16 */
    uint64_t dims[16];
    uint32_t type;
    uint64_t offset;                 /* used if offset_set, else placed behind the one before */
    int offset_set;
    gbuf data;
} gtensor;
typedef struct gguf_file {
    char magic[4];
    uint32_t version;
    int declare;                                       /* 1: the next two are written instead of the true counts */
    uint64_t n_keys_declared, n_tensors_declared;
    uint32_t align;                                    /* for placing; writes no key */
    int n_keys, n_tensors;
    gkey keys[96];
    gtensor tensors[64];
} gguf_file;

static inline gguf_file *gf_new(void)
{
    gguf_file *f = calloc(1, sizeof *f);
    if (!f) exit(1);
    memcpy(f->magic, "GGUF", 4);
    f->version = 3;
    f->align = 32;
    return f;
}

static inline void gf_free(gguf_file *f)
{
    for (int i = 0; i < f->n_keys; i++) { gb_free(&f->keys[i].name); gb_free(&f->keys[i].value); }
    for (int i = 0; i < f->n_tensors; i++) { gb_free(&f->tensors[i].name); gb_free(&f->tensors[i].data); }
    free(f);
}

static inline gkey *gf_find(gguf_file *f, const char *name)
{
    for (int i = 0; i < f->n_keys; i++)
        if (f->keys[i].name.n == strlen(name) && memcmp(f->keys[i].name.p, name, strlen(name)) == 0) return &f->keys[i];
    return NULL;
}

/* Adds a key without looking for one of the same name; its value is empty. */
static inline gkey *gf_append(gguf_file *f, const char *name, size_t name_bytes, uint32_t type)
{
    if (f->n_keys == (int)(sizeof f->keys / sizeof f->keys[0])) exit(1);
    gkey *k = &f->keys[f->n_keys++];
    memset(k, 0, sizeof *k);
    gb_add(&k->name, name, name_bytes);
    k->name_bytes = name_bytes;
    k->type = type;
    return k;
}

/* The key of this name, made if need be, with an empty value. */
static inline gkey *gf_key(gguf_file *f, const char *name, uint32_t type)
{
    gkey *k = gf_find(f, name);
    if (!k) return gf_append(f, name, strlen(name), type);
    k->type = type;
    k->value.n = 0;
    return k;
}

static inline void gf_remove(gguf_file *f, const char *name)
{
    gkey *k = gf_find(f, name);
    if (!k) return;
    gb_free(&k->name);
    gb_free(&k->value);
    memmove(k, k + 1, (size_t)(&f->keys[f->n_keys--] - (k + 1)) * sizeof *k);
}

static inline void gf_u32(gguf_file *f, const char *name, uint32_t x) { gb_u32(&gf_key(f, name, GT_U32)->value, x); }
static inline void gf_i32(gguf_file *f, const char *name, int32_t x) { gb_u32(&gf_key(f, name, GT_I32)->value, (uint32_t)x); }
static inline void gf_u16(gguf_file *f, const char *name, uint16_t x) { gb_u16(&gf_key(f, name, GT_U16)->value, x); }
static inline void gf_f32(gguf_file *f, const char *name, float x) { gb_f32(&gf_key(f, name, GT_F32)->value, x); }
static inline void gf_bool(gguf_file *f, const char *name, int x) { gb_u8(&gf_key(f, name, GT_BOOL)->value, (uint8_t)x); }
static inline void gf_str(gguf_file *f, const char *name, const char *s) { gb_str(&gf_key(f, name, GT_STRING)->value, s, strlen(s)); }
/* An array's head; the elements are then added to the result. */
static inline gbuf *gf_array(gguf_file *f, const char *name, uint32_t elem, uint64_t n)
{
    gkey *k = gf_key(f, name, GT_ARRAY);
    gb_u32(&k->value, elem);
    gb_u64(&k->value, n);
    return &k->value;
}

static inline gtensor *gf_find_tensor(gguf_file *f, const char *name)
{
    for (int i = 0; i < f->n_tensors; i++)
        if (f->tensors[i].name.n == strlen(name) && memcmp(f->tensors[i].name.p, name, strlen(name)) == 0) return &f->tensors[i];
    return NULL;
}

/* Adds a tensor without data. */
static inline gtensor *gf_tensor_raw(gguf_file *f, const char *name, size_t name_bytes, uint32_t type, uint32_t n_dims,
                                     uint64_t d0, uint64_t d1)
{
    if (f->n_tensors == (int)(sizeof f->tensors / sizeof f->tensors[0])) exit(1);
    gtensor *t = &f->tensors[f->n_tensors++];
    memset(t, 0, sizeof *t);
    gb_add(&t->name, name, name_bytes);
    t->name_bytes = name_bytes;
    t->type = type;
    t->n_dims = n_dims;
    for (int i = 0; i < 16; i++) t->dims[i] = 1;
    t->dims[0] = d0;
    t->dims[1] = d1;
    return t;
}

static inline void gf_remove_tensor(gguf_file *f, const char *name)
{
    gtensor *t = gf_find_tensor(f, name);
    if (!t) return;
    gb_free(&t->name);
    gb_free(&t->data);
    memmove(t, t + 1, (size_t)(&f->tensors[f->n_tensors--] - (t + 1)) * sizeof *t);
}

/* A small deterministic generator: values in [-1, 1). */
static inline double gf_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(*state >> 11) * 0x1p-52 - 1;
}

/* A f32 tensor: mean + spread * noise; d1 0: one dimension. */
static inline gtensor *gf_f32_tensor(gguf_file *f, const char *name, uint64_t d0, uint64_t d1, double mean, double spread)
{
    gtensor *t = gf_tensor_raw(f, name, strlen(name), 0, d1 ? 2 : 1, d0, d1 ? d1 : 1);
    uint64_t state = (uint64_t)f->n_tensors * 977;
    for (uint64_t i = 0; i < d0 * (d1 ? d1 : 1); i++) gb_f32(&t->data, (float)(mean + spread * gf_random(&state)));
    return t;
}

/* The file's bytes.  *data_at: where the data section begins (may be NULL). */
static inline gbuf gf_write(const gguf_file *f, size_t *data_at)
{
    gbuf b = { 0 };
    uint64_t at = 0;
    gb_add(&b, f->magic, 4);
    gb_u32(&b, f->version);
    gb_u64(&b, f->declare ? f->n_tensors_declared : (uint64_t)f->n_tensors);
    gb_u64(&b, f->declare ? f->n_keys_declared : (uint64_t)f->n_keys);
    for (int i = 0; i < f->n_keys; i++) {
        gb_u64(&b, f->keys[i].name_bytes);
        gb_add(&b, f->keys[i].name.p, f->keys[i].name.n);
        gb_u32(&b, f->keys[i].type);
        gb_add(&b, f->keys[i].value.p, f->keys[i].value.n);
    }
    for (int i = 0; i < f->n_tensors; i++) {
        const gtensor *t = &f->tensors[i];
        gb_u64(&b, t->name_bytes);
        gb_add(&b, t->name.p, t->name.n);
        gb_u32(&b, t->n_dims);
        for (uint32_t d = 0; d < t->n_dims && d < 16; d++) gb_u64(&b, t->dims[d]);
        gb_u32(&b, t->type);
        gb_u64(&b, t->offset_set ? t->offset : at);
        at = (at + t->data.n + f->align - 1) / f->align * f->align;
    }
    if (f->n_tensors) while (b.n % f->align) gb_u8(&b, 0);
    if (data_at) *data_at = b.n;
    size_t start = b.n;
    for (int i = 0; i < f->n_tensors; i++) {
        while ((b.n - start) % f->align) gb_u8(&b, 0);
        gb_add(&b, f->tensors[i].data.p, f->tensors[i].data.n);
    }
    return b;
}

/* ---- whole models ---- */

enum { GF_EMBD = 32, GF_HEADS = 2, GF_KV_HEADS = 1, GF_HEAD = 16, GF_FF = 64, GF_LAYERS = 2, GF_CTX = 64 };

static inline void gf_llama_tensors(gguf_file *f, uint64_t n_vocab)
{
    gf_f32_tensor(f, "token_embd.weight", GF_EMBD, n_vocab, 0, 1);
    gf_f32_tensor(f, "output_norm.weight", GF_EMBD, 0, 1, 0.1);
    gf_f32_tensor(f, "output.weight", GF_EMBD, n_vocab, 0, 0.5);
    for (int il = 0; il < GF_LAYERS; il++) {
        static const struct { const char *name; uint64_t d0, d1; } of_layer[] = {
            { "attn_norm", GF_EMBD, 0 }, { "attn_q", GF_EMBD, GF_HEADS * GF_HEAD }, { "attn_k", GF_EMBD, GF_KV_HEADS * GF_HEAD },
            { "attn_v", GF_EMBD, GF_KV_HEADS * GF_HEAD }, { "attn_output", GF_HEADS * GF_HEAD, GF_EMBD }, { "ffn_norm", GF_EMBD, 0 },
            { "ffn_gate", GF_EMBD, GF_FF }, { "ffn_up", GF_EMBD, GF_FF }, { "ffn_down", GF_FF, GF_EMBD } };
        for (size_t i = 0; i < sizeof of_layer / sizeof of_layer[0]; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", il, of_layer[i].name);
            gf_f32_tensor(f, name, of_layer[i].d0, of_layer[i].d1, of_layer[i].d1 ? 0 : 1, of_layer[i].d1 ? 0.3 : 0.1);
        }
    }
}

static inline void gf_llama_keys(gguf_file *f)
{
    gf_str(f, "general.architecture", "llama");
    gf_str(f, "general.name", "tiny");
    gf_u32(f, "llama.block_count", GF_LAYERS);
    gf_u32(f, "llama.context_length", GF_CTX);
    gf_u32(f, "llama.embedding_length", GF_EMBD);
    gf_u32(f, "llama.feed_forward_length", GF_FF);
    gf_u32(f, "llama.attention.head_count", GF_HEADS);
    gf_u32(f, "llama.attention.head_count_kv", GF_KV_HEADS);
    gf_u32(f, "llama.rope.dimension_count", GF_HEAD);
    gf_f32(f, "llama.rope.freq_base", 10000);
    gf_f32(f, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

enum { GF_SPM_VOCAB = 3 + 256 + 29, GF_BPE_VOCAB = 256 + 2 + 1 };

/* Tokens, scores and types of an SPM vocabulary: <unk> <s> </s>, 256 bytes, then pieces. */
static inline void gf_spm_vocab(gguf_file *f)
{
    static const char *const pieces[] = { "\xe2\x96\x81", "\xe2\x96\x81\x61", "ab" };
    gf_str(f, "tokenizer.ggml.model", "llama");
    gf_str(f, "tokenizer.ggml.pre", "default");
    gbuf *tokens = gf_array(f, "tokenizer.ggml.tokens", GT_STRING, GF_SPM_VOCAB);
    gb_str(tokens, "<unk>", 5);
    gb_str(tokens, "<s>", 3);
    gb_str(tokens, "</s>", 4);
    for (unsigned i = 0; i < 256; i++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", i);
        gb_str(tokens, text, 6);
    }
    for (int i = 0; i < 3; i++) gb_str(tokens, pieces[i], strlen(pieces[i]));
    for (char c = 'a'; c <= 'z'; c++) gb_str(tokens, &c, 1);
    gbuf *scores = gf_array(f, "tokenizer.ggml.scores", GT_F32, GF_SPM_VOCAB);
    for (int i = 0; i < GF_SPM_VOCAB; i++) gb_f32(scores, i < 259 ? 0 : (float)-(i - 258));
    gbuf *types = gf_array(f, "tokenizer.ggml.token_type", GT_I32, GF_SPM_VOCAB);
    for (int i = 0; i < GF_SPM_VOCAB; i++) gb_u32(types, i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1);
    gf_u32(f, "tokenizer.ggml.bos_token_id", 1);
    gf_u32(f, "tokenizer.ggml.eos_token_id", 2);
    gf_u32(f, "tokenizer.ggml.unknown_token_id", 0);
    gf_bool(f, "tokenizer.ggml.add_bos_token", 1);
}

/* The character that byte-level BPE writes for a byte, as UTF-8.  Returns its length. */
static inline size_t gf_byte_char(unsigned byte, char out[2])
{
    unsigned cp = byte, extra = 256;
    for (unsigned b = 0; b < 256; b++) {
        int plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte) { cp = plain ? b : extra; break; }
        extra += !plain;
    }
    if (cp < 0x80) { out[0] = (char)cp; return 1; }
    out[0] = (char)(0xC0 | cp >> 6);
    out[1] = (char)(0x80 | (cp & 63));
    return 2;
}

/* 256 bytes, "he", "ll", and <|end|>. */
static inline void gf_bpe_vocab(gguf_file *f)
{
    gf_str(f, "tokenizer.ggml.model", "gpt2");
    gf_str(f, "tokenizer.ggml.pre", "gpt-2");
    gbuf *tokens = gf_array(f, "tokenizer.ggml.tokens", GT_STRING, GF_BPE_VOCAB);
    for (unsigned i = 0; i < 256; i++) {
        char text[2];
        gb_str(tokens, text, gf_byte_char(i, text));
    }
    gb_str(tokens, "he", 2);
    gb_str(tokens, "ll", 2);
    gb_str(tokens, "<|end|>", 7);
    gbuf *types = gf_array(f, "tokenizer.ggml.token_type", GT_I32, GF_BPE_VOCAB);
    for (int i = 0; i < GF_BPE_VOCAB; i++) gb_u32(types, i == GF_BPE_VOCAB - 1 ? 3 : 1);
    gbuf *merges = gf_array(f, "tokenizer.ggml.merges", GT_STRING, 2);
    gb_str(merges, "h e", 3);
    gb_str(merges, "l l", 3);
    gf_u32(f, "tokenizer.ggml.bos_token_id", GF_BPE_VOCAB - 1);
    gf_u32(f, "tokenizer.ggml.eos_token_id", GF_BPE_VOCAB - 1);
}

static inline gguf_file *gf_llama(void)
{
    gguf_file *f = gf_new();
    gf_llama_keys(f);
    gf_spm_vocab(f);
    gf_llama_tensors(f, GF_SPM_VOCAB);
    return f;
}

static inline gguf_file *gf_gpt2(void)
{
    gguf_file *f = gf_new();
    gf_llama_keys(f);
    gf_bpe_vocab(f);
    gf_llama_tensors(f, GF_BPE_VOCAB);
    return f;
}

#endif
