/* Hostile GGUF containers, rows 1 to 21 of the catalogue and 30: the reader refuses each with the right code and a message that
 * names the thing, gives all memory back, takes little of it, and goes on working.  Every file is written here, byte by byte, by
 * gguf_writer.h; none of the reader's code is used for that. */
#include <sys/socket.h>
#include <sys/un.h>

#include "hostile.h"
#include "model/reader.h"

static counting count = COUNTING_INIT;
static hl_env env;
static hl_error err;
static gbuf good;                    /* a small valid file */
static char good_path[1024], x_path[1024];
static int n_rows_hit[41];

static const char *text_of(void)
{
    static char text[1024];
    hl_error_copy(&err, text, sizeof text);
    return text;
}

static void still_works(void)
{
    hl_gguf *g = NULL;
    hl_status rc = hl_gguf_open(&env, &err, good_path, 0, NULL, &g);
    CHECK_MSG(rc == HLLM_OK, "%s %s", hl_status_name(rc), text_of());
    CHECK(g && g->n_tensors == 2 && hl_gguf_find_tensor(g, "b") && hl_gguf_find_key(g, "name"));
    hl_gguf_free(&env, g);
}

/* The open that every row makes.  words: what the message has, '|' between them. */
static void expect_path(int row, const char *path, uint64_t file_bytes, uint32_t flags, hl_status want, const char *words)
{
    hl_gguf *g = (hl_gguf *)(uintptr_t)1;            /* poison: must be cleared on failure */
    size_t live = count.live;
    long blocks = count.blocks;
    count.peak = count.live;
    n_rows_hit[row]++;
    double t = hostile_now();
    hl_status rc = hl_gguf_open(&env, &err, path, flags, NULL, &g);
    t = hostile_now() - t;
    CHECK_MSG(rc == want, "row %d: got %s, want %s: %s", row, hl_status_name(rc), hl_status_name(want), text_of());
    if (rc != HLLM_OK) {
        CHECK_MSG(g == NULL, "row %d", row);
        CHECK_MSG(hostile_says(text_of(), words), "row %d: '%s' lacks '%s'", row, text_of(), words);
        const size_t len = strlen(path);               /* a long path is shortened in its middle */
        CHECK_MSG(strstr(text_of(), len > 300 ? path + len - 200 : path) != NULL, "row %d: '%s' does not name the file", row, text_of());
        CHECK_MSG(hostile_printable(text_of()), "row %d: control bytes in the message", row);
    }
    CHECK_MSG(count.peak - live <= 4 * file_bytes + (16u << 20), "row %d: %zu bytes of memory for a file of %" PRIu64, row,
              count.peak - live, file_bytes);
    CHECK_MSG(t <= hostile_seconds, "row %d: %d ms", row, (int)(t * 1000));
    if (rc == HLLM_OK) hl_gguf_free(&env, g);
    CHECK_MSG(count.live == live && count.blocks == blocks, "row %d: a leak of %zu bytes", row, count.live - live);
    still_works();
}

static void expect_bytes(int row, const void *bytes, size_t n, hl_status want, const char *words)
{
    hostile_write(x_path, bytes, n, 0);
    expect_path(row, x_path, n, 0, want, words);
}

/* Writes f, frees it. */
static void expect(int row, gguf_file *f, hl_status want, const char *words)
{
    gbuf b = gf_write(f, NULL);
    expect_bytes(row, b.p, b.n, want, words);
    gb_free(&b);
    gf_free(f);
}

/* A file with a few keys and two tensors; the last byte of the file is the last one of tensor "b". */
static gguf_file *small(void)
{
    gguf_file *f = gf_new();
    gf_str(f, "name", "small");
    gf_u32(f, "number", 7);
    gf_bool(f, "yes", 1);
    gbuf *a = gf_array(f, "words", GT_STRING, 3);
    gb_str(a, "one", 3);
    gb_str(a, "", 0);
    gb_str(a, "three", 5);
    a = gf_array(f, "floats", GT_F32, 2);
    gb_f32(a, 1.5f);
    gb_f32(a, -2);
    gf_f32_tensor(f, "a", 5, 0, 0, 1);
    gf_f32_tensor(f, "b", 3, 2, 0, 1);
    return f;
}

static void rows_1_to_3(void)
{
    static const struct { const char *bytes; size_t n; const char *words; } magic[] = {
        { "FUGG\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, "reversed" }, { "lmgg\1\0\0\0\0\0\0\0", 12, "GGML" },
        { "tjgg\3\0\0\0\0\0\0\0", 12, "GGJT" }, { "GGML\1\0\0\0", 8, "GGML" }, { "GGJT\1\0\0\0", 8, "GGJT" },
        { "PK\3\4\0\0\0\0\0\0", 10, "zip" }, { "\x80\2}q\0", 5, "pickle" }, { "\x80\4\x95\0", 4, "pickle" },
        { "\x40\0\0\0\0\0\0\0{\"a\":1}", 15, "safetensors" }, { "\177ELF\2\1\1\0", 8, "ELF" },
        { "<!DOCTYPE html><html>", 21, "HTML" }, { "<html><body>", 12, "HTML" },
        { "version https://git-lfs.github.com/spec/v1\noid sha256:00\n", 57, "LFS" }, { "\x1f\x8b\x08\0", 4, "gzip" },
        { "{\"a\": 1}", 8, "JSON" }, { "hello, world", 12, "GGUF" }, { "\0\0\0\0\0\0\0\0\0\0\0\0", 12, "GGUF" }, { "gguf", 4, "GGUF" } };
    static const uint32_t versions[] = { 0, 1, 4, 1u << 31, UINT32_MAX };
    for (size_t n = 0; n < good.n; n++) expect_bytes(1, good.p, n, HLLM_E_TRUNCATED, n ? "" : "empty");
    expect_bytes(1, good.p, good.n, HLLM_OK, NULL);
    for (size_t i = 0; i < HL_COUNT(magic); i++) expect_bytes(2, magic[i].bytes, magic[i].n, HLLM_E_FORMAT, magic[i].words);
    for (size_t i = 0; i < HL_COUNT(versions); i++) {
        gguf_file *f = small();
        char words[32];
        f->version = versions[i];
        snprintf(words, sizeof words, "%" PRIu32 "|2 and 3", versions[i]);
        expect(3, f, HLLM_E_VERSION, words);
    }
    for (uint32_t v = 1; v <= 3; v++) {
        gguf_file *f = small();
        f->version = v << 24;
        expect(3, f, HLLM_E_ENDIAN, "big-endian");
    }
    gguf_file *f = small();
    f->version = 2;
    expect(3, f, HLLM_OK, NULL);
}

static void rows_4_5(void)
{
    static const uint64_t counts[] = { UINT64_MAX, 1ull << 63, (1ull << 60) + 1, 65537 };
    for (size_t i = 0; i < HL_COUNT(counts); i++) {
        gguf_file *f = small();
        f->declare = 1;
        f->n_tensors_declared = counts[i];
        f->n_keys_declared = 5;
        expect(4, f, HLLM_E_LIMIT, "tensors|65536");
        f = small();
        f->declare = 1;
        f->n_tensors_declared = 2;
        f->n_keys_declared = counts[i];
        expect(5, f, HLLM_E_LIMIT, "keys|65536");
    }
    for (int which = 0; which < 2; which++) {          /* at the limit, but not in the file */
        gguf_file *f = small();
        f->declare = 1;
        f->n_tensors_declared = which ? 65536 : 0;
        f->n_keys_declared = which ? 0 : 65536;
        expect(4 + !which, f, HLLM_E_TRUNCATED, "65536");
    }
}

static void row_6(void)
{
    static const struct { uint64_t declared; hl_status want; } lengths[] = {
        { UINT64_MAX, HLLM_E_TRUNCATED }, { 1ull << 63, HLLM_E_TRUNCATED }, { UINT64_MAX - 7, HLLM_E_TRUNCATED },
        { 0, HLLM_E_FORMAT }, { 1u << 20, HLLM_E_TRUNCATED } };
    static const struct { const char *name; size_t n; } names[] = {
        { "a\0b", 3 }, { "caf\xc3\xa9", 5 }, { "\x1b[31mred", 8 }, { "a\nb", 3 }, { "\x7f", 1 }, { "a\xff", 2 } };
    for (size_t i = 0; i < HL_COUNT(lengths); i++) {
        gguf_file *f = small();
        gf_find(f, "number")->name_bytes = lengths[i].declared;
        expect(6, f, lengths[i].want, "key 1");
    }
    gguf_file *f = small();                            /* one byte more than the file has */
    gbuf b = gf_write(f, NULL);
    gf_find(f, "name")->name_bytes = b.n - (24 + 8) + 1;
    gb_free(&b);
    expect(6, f, HLLM_E_TRUNCATED, "key 0");
    char *big = malloc(65536);
    NEED(big != NULL);
    memset(big, 'k', 65536);
    for (size_t n = 65535; n <= 65536; n++) {
        f = small();
        gb_u8(&gf_append(f, big, n, GT_U8)->value, 1);
        expect(6, f, n == 65535 ? HLLM_OK : HLLM_E_FORMAT, "65536|65535");
    }
    free(big);
    for (size_t i = 0; i < HL_COUNT(names); i++) {
        f = small();
        gb_u8(&gf_append(f, names[i].name, names[i].n, GT_U8)->value, 1);
        expect(6, f, HLLM_E_FORMAT, "key 5|ASCII");
    }
}

static void row_7(void)
{
    static const uint64_t lengths[] = { UINT64_MAX, UINT64_MAX - 7, 1ull << 63, 1ull << 30, 1000, INT64_MAX };
    for (size_t i = 0; i < HL_COUNT(lengths); i++) {
        for (int in_array = 0; in_array < 2; in_array++) {
            gguf_file *f = small();
            gkey *k = gf_find(f, in_array ? "words" : "name");
            memcpy(k->value.p + (in_array ? 12 + 11 : 0), &lengths[i], 8);
            expect(7, f, HLLM_E_TRUNCATED, in_array ? "words" : "name");
            CHECK_MSG(count.peak - count.live < 1u << 20, "row 7: %zu bytes taken", count.peak - count.live);
        }
    }
}

static void row_8(void)
{
    static const uint32_t types[] = { 13, 255, UINT32_MAX, 1u << 31, 0x109 };
    for (size_t i = 0; i < HL_COUNT(types); i++) {
        gguf_file *f = small();
        char words[64];
        gf_find(f, "number")->type = types[i];
        snprintf(words, sizeof words, "number|%" PRIu32, types[i]);
        expect(8, f, HLLM_E_FORMAT, words);
        f = small();
        gb_u64(gf_array(f, "number", types[i], 1), 0);
        expect(8, f, HLLM_E_FORMAT, words);
    }
    gguf_file *f = small();
    gf_bool(f, "yes", 2);
    expect(8, f, HLLM_E_FORMAT, "yes|2");
    f = small();
    gf_bool(f, "yes", 255);
    expect(8, f, HLLM_E_FORMAT, "yes|255");
    f = small();
    gb_add(gf_array(f, "yes", GT_BOOL, 4), "\0\1\1\7", 4);
    expect(8, f, HLLM_E_FORMAT, "yes|3|7");
    f = small();
    gbuf *a = gf_array(f, "nest", GT_ARRAY, 1);
    gb_u32(a, GT_U8);
    gb_u64(a, 1);
    gb_u8(a, 0);
    expect(8, f, HLLM_E_FORMAT, "nest|array of arrays");
}

static void row_9(void)
{
    static const struct { uint32_t elem; uint64_t n; hl_status want; } arrays[] = {
        { GT_U64, 1ull << 61, HLLM_E_TRUNCATED }, { GT_U32, (1ull << 62) + 1, HLLM_E_TRUNCATED }, { GT_F64, UINT64_MAX, HLLM_E_TRUNCATED },
        { GT_U8, UINT64_MAX, HLLM_E_TRUNCATED }, { GT_STRING, UINT64_MAX, HLLM_E_TRUNCATED }, { GT_STRING, 1ull << 61, HLLM_E_TRUNCATED },
        { GT_U16, 1ull << 63, HLLM_E_TRUNCATED } };
    for (size_t i = 0; i < HL_COUNT(arrays); i++) {
        gguf_file *f = small();
        gb_u64(gf_array(f, "floats", arrays[i].elem, arrays[i].n), 0);
        expect(9, f, arrays[i].want, "floats");
    }
    gguf_file *f = gf_new();                           /* exactly what is left, and one more */
    for (int more = 0; more < 2; more++) {
        gb_u32(gf_array(f, "x", GT_U8, 4 + (uint64_t)more), 0);
        gbuf b = gf_write(f, NULL);
        expect_bytes(9, b.p, b.n, more ? HLLM_E_TRUNCATED : HLLM_OK, "x|5");
        gb_free(&b);
    }
    gf_array(f, "x", GT_STRING, 10000000);             /* 80 MB of empty strings, all there */
    gbuf b = gf_write(f, NULL);
    CHECK(hostile_write(x_path, b.p, b.n, b.n + 80000000));
    expect_path(9, x_path, b.n + 80000000, 0, HLLM_E_LIMIT, "x|10000000|4194304");
    gb_free(&b);
    gf_free(f);
}

static void row_10(void)
{
    gguf_file *f = small();
    gb_u32(&gf_append(f, "number", 6, GT_U32)->value, 7);
    expect(10, f, HLLM_E_FORMAT, "number|twice");
    f = small();
    gb_str(&gf_append(f, "number", 6, GT_STRING)->value, "x", 1);
    expect(10, f, HLLM_E_FORMAT, "number|twice");
}

static void row_11(void)
{
    static const struct { uint32_t value; int ok; } values[] = {
        { 0, 0 }, { 3, 0 }, { 13, 0 }, { 1u << 31, 0 }, { UINT32_MAX, 0 }, { 1u << 30, 0 }, { 131072, 0 }, { 48, 0 },
        { 1, 1 }, { 8, 1 }, { 32, 1 }, { 64, 1 }, { 4096, 1 }, { 65536, 1 } };
    for (size_t i = 0; i < HL_COUNT(values); i++) {
        gguf_file *f = small();
        gf_u32(f, "general.alignment", values[i].value);
        if (values[i].ok) f->align = values[i].value;
        expect(11, f, values[i].ok ? HLLM_OK : HLLM_E_FORMAT, "general.alignment|65536");
    }
    gguf_file *f = small();
    gf_i32(f, "general.alignment", 32);
    expect(11, f, HLLM_E_FORMAT, "general.alignment|INT32|UINT32");
    f = small();
    gf_str(f, "general.alignment", "32");
    expect(11, f, HLLM_E_FORMAT, "general.alignment|STRING");
    f = small();
    gb_u32(gf_array(f, "general.alignment", GT_U32, 1), 32);
    expect(11, f, HLLM_E_FORMAT, "general.alignment|ARRAY");
    f = small();
    gf_array(f, "general.alignment", GT_U32, 0);
    expect(11, f, HLLM_E_FORMAT, "general.alignment|ARRAY");
}

/* small() with a third tensor "c" of one f32 value, to be changed. */
static gguf_file *with_third(gtensor **t)
{
    gguf_file *f = small();
    *t = gf_tensor_raw(f, "c", 1, 0, 1, 1, 1);
    gb_f32(&(*t)->data, 1);
    return f;
}

static void rows_12_13(void)
{
    static const char sixty_four[65] = "0123456789012345678901234567890123456789012345678901234567890123";
    static const struct { const char *name; size_t n; hl_status want; } names[] = {
        { "", 0, HLLM_E_FORMAT }, { sixty_four, 64, HLLM_E_FORMAT }, { sixty_four, 63, HLLM_OK }, { "a\0b", 3, HLLM_E_FORMAT },
        { "\x1b[31m", 5, HLLM_E_FORMAT }, { "\n", 1, HLLM_E_FORMAT }, { "a", 1, HLLM_E_FORMAT }, { "b", 1, HLLM_E_FORMAT } };
    static const uint32_t dims[] = { 0, 5, 9, UINT32_MAX };
    gtensor *t;
    for (size_t i = 0; i < HL_COUNT(names); i++) {
        gguf_file *f = small();
        gb_f32(&gf_tensor_raw(f, names[i].name, names[i].n, 0, 1, 1, 1)->data, 1);
        expect(12, f, names[i].want, names[i].n == 1 && names[i].name[0] > 'A' ? "twice" : "tensor 2|name");
    }
    for (size_t i = 0; i < HL_COUNT(dims); i++) {
        gguf_file *f = with_third(&t);
        t->n_dims = dims[i];
        expect(13, f, HLLM_E_FORMAT, "tensor c|dimensions|4");
    }
}

static void row_14(void)
{
    static const uint64_t shapes[][4] = {
        { 0, 1, 1, 1 }, { 1ull << 63, 1, 1, 1 }, { 4, 0, 1, 1 }, { 1ull << 32, 1ull << 32, 1, 1 }, { 1ull << 33, 1ull << 31, 1, 1 },
        { 1ull << 32, 1ull << 31, 1, 1 }, { 1ull << 62, 4, 1, 1 }, { UINT64_MAX, 2, 1, 1 }, { UINT64_MAX, UINT64_MAX, 1, 1 },
        { 1ull << 22, 1ull << 22, 1ull << 22, 1ull << 22 }, { 2, 1ull << 63, 1, 1 }, { 1, 1, 1, UINT64_MAX },
        { 3, 0x5555555555555556ull, 1, 1 }, { 1ull << 20, (1ull << 42) + 1, 1, 1 },
        { 1ull << 61, 2, 1, 1 } };                     /* the last two: elements in range, bytes of f32 not */
    gtensor *t;
    for (size_t i = 0; i < HL_COUNT(shapes); i++) {
        gguf_file *f = with_third(&t);
        t->n_dims = 4;
        memcpy(t->dims, shapes[i], sizeof shapes[i]);
        expect(14, f, HLLM_E_FORMAT, "tensor c");
        if (i + 2 >= HL_COUNT(shapes)) continue;
        f = with_third(&t);                            /* in bytes: the elements themselves are too many */
        t->n_dims = 4;
        t->type = 24;
        memcpy(t->dims, shapes[i], sizeof shapes[i]);
        expect(14, f, HLLM_E_FORMAT, "tensor c|dimension");
    }
    gguf_file *f = with_third(&t);                     /* blocks: 32 elements in 34 bytes */
    t->type = 8;
    t->dims[0] = INT64_MAX - 31;
    expect(14, f, HLLM_E_LIMIT, "tensor c");
}

static void rows_15_16(void)
{
    static const struct { uint32_t type; uint64_t n; } blocks[] = {
        { 2, 31 }, { 2, 33 }, { 3, 16 }, { 6, 1 }, { 7, 63 }, { 8, 31 }, { 10, 255 }, { 11, 128 }, { 12, 255 }, { 13, 257 },
        { 14, 32 }, { 20, 31 }, { 23, 255 }, { 39, 31 } };
    static const uint32_t types[] = { 4, 5, 31, 32, 33, 36, 37, 38, 40, 41, 999, UINT32_MAX, 1u << 31, 9, 15, 16, 24, 25, 26, 27, 28, 256 };
    gtensor *t;
    for (size_t i = 0; i < HL_COUNT(blocks); i++) {
        gguf_file *f = with_third(&t);
        t->type = blocks[i].type;
        t->dims[0] = blocks[i].n;
        expect(15, f, HLLM_E_FORMAT, "tensor c|multiple");
    }
    gguf_file *f = with_third(&t);                     /* the product fits a block, the row does not */
    t->type = 2;
    t->n_dims = 2;
    t->dims[0] = 16;
    t->dims[1] = 2;
    expect(15, f, HLLM_E_FORMAT, "tensor c|multiple");
    for (size_t i = 0; i < HL_COUNT(types); i++) {
        char words[64];
        f = with_third(&t);
        t->type = types[i];
        snprintf(words, sizeof words, "tensor c|type %" PRIu32 "|Q4_K", types[i]);
        expect(16, f, HLLM_E_UNSUPPORTED, words);
    }
}

static void rows_17_to_19(void)
{
    static const struct { uint64_t offset; hl_status want; const char *words; } offsets[] = {
        { 1, HLLM_E_FORMAT, "alignment" }, { 65, HLLM_E_FORMAT, "alignment" }, { 80, HLLM_E_FORMAT, "alignment" },
        { UINT64_MAX - 31, HLLM_E_FORMAT, "offset 18446744073709551584|64 bits" }, { 1ull << 63, HLLM_E_TRUNCATED, "ends at" }, { 96, HLLM_E_TRUNCATED, "ends at" },
        { 0, HLLM_E_FORMAT, "overlap|a" }, { 32, HLLM_E_FORMAT, "overlap|b" } };
    static const uint64_t huge = 0x7FFFFFFFFFFFFFC0ull;
    gtensor *t;
    for (size_t i = 0; i < HL_COUNT(offsets); i++) {
        gguf_file *f = with_third(&t);                 /* a: 0..20, b: 32..56, c: 64..68 */
        t->offset_set = 1;
        t->offset = offsets[i].offset;
        expect(17, f, offsets[i].want, offsets[i].words);
    }
    gguf_file *f = with_third(&t);
    t->dims[0] = 2;                                    /* past the end by one element, then (I8 being unknown) by one byte */
    expect(17, f, HLLM_E_TRUNCATED, "tensor c");
    f = with_third(&t);
    gbuf b = gf_write(f, NULL);
    expect_bytes(17, b.p, b.n - 1, HLLM_E_TRUNCATED, "tensor c|bytes end at");
    gb_free(&b);
    size_t data_at;                                    /* the offset fits in 64 bits, the end does not */
    gguf_file *g = with_third(&t);
    b = gf_write(g, &data_at);
    gb_free(&b);
    t->dims[0] = 16;
    t->offset_set = 1;
    t->offset = 0 - (uint64_t)data_at - 32;
    expect(17, g, HLLM_E_FORMAT, "tensor c|64 bits");
    f->tensors[0].dims[0] = 9;                         /* a: 0..36 reaches into b */
    expect(17, f, HLLM_E_FORMAT, "tensor b|overlap|a");
    f = with_third(&t);                                /* other order in the file than in the table: fine */
    f->tensors[0].offset_set = f->tensors[1].offset_set = t->offset_set = 1;
    f->tensors[0].offset = 64;
    f->tensors[0].dims[0] = 1;
    f->tensors[1].offset = 0;
    t->offset = 32;
    expect(17, f, HLLM_OK, NULL);
    for (int type = 0; type < 2; type++) {
        f = small();
        t = gf_tensor_raw(f, "c", 1, 24, 1, huge, 1);
        t = gf_tensor_raw(f, "d", 1, 24, 1, huge, 1);
        t->offset_set = 1;
        t->offset = huge;
        if (type) for (int i = 2; i < 4; i++) f->tensors[i].type = 0, f->tensors[i].dims[0] = huge / 4;
        expect(18, f, HLLM_E_LIMIT, type ? "tensor c" : "tensor c");
    }
    f = gf_new();
    gf_tensor_raw(f, "c", 1, 24, 1, huge, 1);
    gf_tensor_raw(f, "d", 1, 24, 1, huge, 1);
    expect(18, f, HLLM_E_LIMIT, "tensor d");
    for (uint64_t less = 1; less <= 8; less++) {       /* f32: 2^64 - 4 * less bytes */
        f = with_third(&t);
        t->n_dims = 1;
        t->dims[0] = (1ull << 62) - less;
        expect(19, f, HLLM_E_LIMIT, "tensor c");
    }
    f = with_third(&t);                                /* I8 near INT64_MAX */
    t->type = 24;
    t->dims[0] = INT64_MAX;
    expect(19, f, HLLM_E_LIMIT, "tensor c");
}

static void rows_20_21(void)
{
    gguf_file *f = small();
    size_t data_at;
    gbuf b = gf_write(f, &data_at);
    const size_t cuts[] = { data_at, data_at + 1, data_at + 19, data_at + 20, data_at + 31, data_at + 32, data_at + 33, b.n - 1 };
    char text[1024];
    uint32_t level;
    size_t needed;
    for (size_t i = 0; i < HL_COUNT(cuts); i++)
        expect_bytes(20, b.p, cuts[i], HLLM_E_TRUNCATED, cuts[i] < data_at + 20 ? "tensor a|ends at" : "tensor b|ends at");
    hostile_write(x_path, b.p, data_at, 0);              /* without data it is still a vocabulary */
    expect_path(20, x_path, data_at, HLLM_MODEL_VOCAB_ONLY, HLLM_OK, NULL);
    while (hl_log_poll(env.log, &level, text, sizeof text, &needed) == HLLM_OK && needed) { }
    for (int tera = 0; tera < 2; tera++) {
        uint64_t size = tera ? 1ull << 40 : b.n + (1u << 30);
        if (!hostile_write(x_path, b.p, b.n, size)) continue;        /* a file system without such large files */
        expect_path(20 + !tera, x_path, b.n, 0, HLLM_OK, NULL);      /* memory by the header's size, not by the file's */
        CHECK(hl_log_poll(env.log, &level, text, sizeof text, &needed) == HLLM_OK && needed > 0);
        CHECK_MSG(level == HLLM_LOG_WARNING && hostile_says(text, "x.gguf|after the last tensor"), "'%s'", text);
    }
    gb_free(&b);
    memcpy(gf_find(f, "name")->value.p, &(uint64_t){ 1ull << 39 }, 8);          /* a string that such a file really has */
    b = gf_write(f, NULL);
    if (hostile_write(x_path, b.p, b.n, 1ull << 40)) expect_path(20, x_path, b.n, 0, HLLM_E_LIMIT, "name|536870912");
    gb_free(&b);
    gf_free(f);
}

static void row_30(void)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    unlink(x_path);
    expect_path(30, x_path, 0, 0, HLLM_E_NOT_FOUND, "no such file");
    NEED(mkfifo(x_path, 0600) == 0);
    expect_path(30, x_path, 0, 0, HLLM_E_IO, "not a regular file");
    unlink(x_path);
    NEED(symlink(x_path, x_path) == 0);
    expect_path(30, x_path, 0, 0, HLLM_E_IO, "symbolic links");
    unlink(x_path);
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    if (strlen(x_path) < sizeof address.sun_path) memcpy(address.sun_path, x_path, strlen(x_path) + 1);
    if (s >= 0 && address.sun_path[0] && bind(s, (struct sockaddr *)&address, sizeof address) == 0) expect_path(30, x_path, 0, 0, HLLM_E_IO, "");
    close(s);
    unlink(x_path);
    expect_path(30, hostile_dir, 0, 0, HLLM_E_IO, "directory");
    if (access("/dev/zero", R_OK) == 0) expect_path(30, "/dev/zero", 0, 0, HLLM_E_IO, "not a regular file");
    if (access("/dev/random", R_OK) == 0) expect_path(30, "/dev/random", 0, 0, HLLM_E_IO, "not a regular file");
    hostile_write(x_path, good.p, good.n, 0);
    chmod(x_path, 0);
    hl_gguf *g = (hl_gguf *)(uintptr_t)1;
    int root = geteuid() == 0;                         /* root may read everything: be somebody else for a moment */
    if (!root || seteuid(65534) == 0) {
        CHECK(hl_gguf_open(&env, &err, x_path, 0, NULL, &g) == HLLM_E_IO && !g && hostile_says(text_of(), "x.gguf|permission"));
        if (root) NEED(seteuid(0) == 0);
    }
    unlink(x_path);
    char long_name[600];
    memset(long_name, 'n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    expect_path(30, long_name, 0, 0, HLLM_E_IO, "too long");
    g = (hl_gguf *)(uintptr_t)1;
    CHECK(hl_gguf_open(&env, &err, "", 0, NULL, &g) == HLLM_E_ARG && !g);
}

int main(void)
{
    static const int rows[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 30 };
    hllm_allocator hook = counting_hook(&count);
    gguf_file *f = small();
    REQUIRE(hl_mem_new(&hook, &env.mem) == HLLM_OK);
    REQUIRE(hl_log_new(env.mem, &env.log) == HLLM_OK);
    hl_error_init(&err);
    hostile_dir_make();
    snprintf(good_path, sizeof good_path, "%s", hostile_path("good.gguf"));
    snprintf(x_path, sizeof x_path, "%s", hostile_path("x.gguf"));
    good = gf_write(f, NULL);
    gf_free(f);
    hostile_write(good_path, good.p, good.n, 0);
    rows_1_to_3();
    rows_4_5();
    row_6();
    row_7();
    row_8();
    row_9();
    row_10();
    row_11();
    rows_12_13();
    row_14();
    rows_15_16();
    rows_17_to_19();
    rows_20_21();
    row_30();
    for (size_t i = 0; i < HL_COUNT(rows); i++) CHECK_MSG(n_rows_hit[rows[i]] > 0, "row %d was not tried", rows[i]);
    unlink(good_path);
    unlink(x_path);
    hostile_dir_remove();
    gb_free(&good);
    hl_error_destroy(&err);
    hl_log_free(env.mem, env.log);
    hl_mem_free(env.mem);
    CHECK(count.live == 0 && count.blocks == 0);
    return check_done();
}
