/* Writes the seeds of the fuzz targets gguf and model: good files of several kinds, which the fuzzer then spoils. */
#include "../../hostile/gguf_writer.h"

static void save(const char *dir, const char *name, gguf_file *f)
{
    char path[4096];
    gbuf b = gf_write(f, NULL);
    snprintf(path, sizeof path, "%s/%s.gguf", dir, name);
    FILE *out = fopen(path, "wb");
    if (!out || fwrite(b.p, 1, b.n, out) != b.n || fclose(out) != 0) { fprintf(stderr, "cannot write %s\n", path); exit(1); }
    gb_free(&b);
    gf_free(f);
}

int main(int argc, char **argv)
{
    static const struct { uint32_t type, block, bytes; } types[] = {
        { 0, 1, 4 }, { 1, 1, 2 }, { 2, 32, 18 }, { 3, 32, 20 }, { 6, 32, 22 }, { 7, 32, 24 }, { 8, 32, 34 }, { 10, 256, 84 },
        { 11, 256, 110 }, { 12, 256, 144 }, { 13, 256, 176 }, { 14, 256, 210 }, { 20, 32, 18 }, { 23, 256, 136 }, { 30, 1, 2 },
        { 39, 32, 17 } };
    if (argc != 3) { fprintf(stderr, "usage: gguf_seeds DIRECTORY-FOR-GGUF DIRECTORY-FOR-MODEL\n"); return 2; }
    save(argv[1], "empty", gf_new());

    gguf_file *f = gf_new();                           /* every value type, alone and in arrays */
    static const uint8_t size[13] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    const uint8_t zero[24] = { 0 };
    for (uint32_t t = 0; t <= GT_F64; t++) {
        char name[32];
        if (t == GT_ARRAY) continue;
        snprintf(name, sizeof name, "scalar.%u", t);
        gkey *k = gf_key(f, name, t);
        if (t == GT_STRING) gb_str(&k->value, "text", 4);
        else gb_add(&k->value, zero, size[t]);
        snprintf(name, sizeof name, "array.%u", t);
        gbuf *a = gf_array(f, name, t, 3);
        if (t == GT_STRING) for (int i = 0; i < 3; i++) gb_str(a, "word", (size_t)i);
        else gb_add(a, zero, 3u * size[t]);
    }
    save(argv[1], "values", f);

    f = gf_new();                                      /* every element type */
    gf_u32(f, "general.alignment", 64);
    f->align = 64;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        char name[32];
        snprintf(name, sizeof name, "tensor.%u", types[i].type);
        gtensor *t = gf_tensor_raw(f, name, strlen(name), types[i].type, 2, types[i].block, 2);
        for (uint32_t k = 0; k < 2 * types[i].bytes; k++) gb_u8(&t->data, (uint8_t)(k * 37));
    }
    save(argv[1], "tensors", f);

    f = gf_new();                                      /* version 2, a shard, four dimensions */
    f->version = 2;
    gf_u16(f, "split.no", 0);
    gf_u16(f, "split.count", 1);
    gtensor *t = gf_f32_tensor(f, "t", 2, 3, 0, 1);
    t->n_dims = 4;
    save(argv[1], "shard", f);

    f = gf_new();                                      /* a model without its tensors */
    gf_llama_keys(f);
    gf_bpe_vocab(f);
    save(argv[1], "vocabulary", f);

    for (int spm = 0; spm < 2; spm++) {
        f = gf_new();
        gf_llama_keys(f);
        (spm ? gf_spm_vocab : gf_bpe_vocab)(f);
        save(argv[2], spm ? "spm" : "bpe", f);
    }
    f = gf_new();                                      /* whole, with two channels */
    gf_llama_keys(f);
    gf_spm_vocab(f);
    gf_u32(f, "llama.block_count", 1);
    gf_u32(f, "llama.embedding_length", 2);
    gf_u32(f, "llama.feed_forward_length", 2);
    gf_u32(f, "llama.attention.head_count", 1);
    gf_u32(f, "llama.rope.dimension_count", 2);
    gf_str(f, "llama.rope.scaling.type", "yarn");
    gf_f32(f, "llama.rope.scaling.factor", 4);
    gf_u32(f, "llama.rope.scaling.original_context_length", 16);
    t = gf_f32_tensor(f, "token_embd.weight", 2, GF_SPM_VOCAB, 0, 1);
    for (int i = 0; i < 2; i++) ((float *)t->data.p)[2 * 259 + i] *= 16;     /* tests/cli.sh: the space, once said, is said again */
    gf_f32_tensor(f, "output_norm.weight", 2, 0, 1, 0);
    static const char *const of_layer[] = { "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down" };
    gf_f32_tensor(f, "blk.0.attn_norm.weight", 2, 0, 1, 0);
    gf_f32_tensor(f, "blk.0.ffn_norm.weight", 2, 0, 1, 0);
    for (size_t i = 0; i < sizeof of_layer / sizeof of_layer[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.0.%s.weight", of_layer[i]);
        gf_f32_tensor(f, name, 2, 2, 0, 1);
    }
    save(argv[2], "llama", f);
    return 0;
}
