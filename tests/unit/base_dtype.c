/* Element formats: hl_dequantize gives the bits that the `gguf` Python package gives, on stored random blocks of every type; the
 * half-precision conversions against arithmetic in double over their whole range.  HLLM_DEQUANT_DATA: a directory with larger
 * files made by tests/data/dequant/make.py. */
#include "base/dtype.h"
#include "check.h"

#include <math.h>

static uint8_t *load(const char *dir, const char *name, size_t *n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f) { fprintf(stderr, "cannot open %s\n", path); exit(1); }
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*n + 1);
    REQUIRE(data && fread(data, 1, *n, f) == *n);
    fclose(f);
    return data;
}

/* NaN equals NaN whatever its payload; all else by bits (so -0 differs from 0). */
static int same(uint32_t a, uint32_t b)
{
    int nan_a = (a & 0x7FFFFFFF) > 0x7F800000, nan_b = (b & 0x7FFFFFFF) > 0x7F800000;
    return nan_a || nan_b ? nan_a == nan_b : a == b;
}

static size_t differing(uint32_t type, const uint8_t *src, const uint8_t *want, size_t n)
{
    float *got = malloc(n * sizeof *got);
    size_t bad = 0;
    REQUIRE(got);
    hl_dequantize(type, src, got, n);
    for (size_t i = 0; i < n; i++) {
        uint32_t a, b;
        memcpy(&a, got + i, 4);
        memcpy(&b, want + 4 * i, 4);
        bad += !same(a, b);
    }
    free(got);
    return bad;
}

static void stored_blocks(void)
{
    size_t n_blocks, n_values, at = 0, value_at = 0;
    unsigned seen = 0;
    const char *dir = getenv("HLLM_DEQUANT_DATA");
    if (!dir) dir = test_path("tests/data/dequant");
    uint8_t *blocks = load(dir, "blocks.bin", &n_blocks), *values = load(dir, "values.bin", &n_values);
    while (at + 12 <= n_blocks) {
        uint32_t head[3];
        memcpy(head, blocks + at, 12);
        at += 12;
        const hl_dtype_info *t = hl_dtype(head[0]);
        REQUIRE(t && at + head[1] <= n_blocks && value_at + 4 * (size_t)head[2] <= n_values);
        CHECK_MSG(hl_dtype_bytes(t, head[2]) == head[1], "%s", t->name);
        size_t bad = differing(head[0], blocks + at, values + value_at, head[2]);
        CHECK_MSG(bad == 0, "%s: %zu of %u values differ", t->name, bad, head[2]);
        if (getenv("HLLM_DEQUANT_DATA")) printf("%s: %u values, %zu differ\n", t->name, head[2], bad);
        blocks[at + head[1] / 2] ^= 0x55;            /* negative control: the comparison must object to a changed block */
        CHECK_MSG(differing(head[0], blocks + at, values + value_at, head[2]) > 0, "%s", t->name);
        at += head[1];
        value_at += 4 * (size_t)head[2];
        seen++;
    }
    CHECK(seen == 16 && at == n_blocks && value_at == n_values);
    free(blocks);
    free(values);
}

static void names(void)
{
    static const struct { uint32_t type; const char *name; } known[] = {
        { 0, "F32" }, { 1, "F16" }, { 2, "Q4_0" }, { 3, "Q4_1" }, { 6, "Q5_0" }, { 7, "Q5_1" }, { 8, "Q8_0" }, { 10, "Q2_K" },
        { 11, "Q3_K" }, { 12, "Q4_K" }, { 13, "Q5_K" }, { 14, "Q6_K" }, { 20, "IQ4_NL" }, { 23, "IQ4_XS" }, { 30, "BF16" },
        { 39, "MXFP4" } };
    size_t n = 0;
    for (uint32_t type = 0; type < 1000; type++) {
        const hl_dtype_info *t = hl_dtype(type);
        if (n < HL_COUNT(known) && known[n].type == type) {
            CHECK_MSG(t && strcmp(t->name, known[n].name) == 0, "type %u", type);
            n++;
        } else {
            CHECK_MSG(t == NULL, "type %u", type);
        }
    }
    CHECK(n == HL_COUNT(known) && hl_dtype(UINT32_MAX) == NULL && hl_dtype(1u << 31) == NULL);
}

/* The half's value by its definition. */
static double half_value(unsigned h)
{
    int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
    double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

static void halves(void)
{
    size_t bad_up = 0, bad_back = 0, bad_middle = 0, bad_bf16 = 0;
    for (unsigned h = 0; h < 0x10000; h++) {
        float f = hl_f16_to_f32((hl_f16)h);
        uint32_t bits;
        if ((h & 0x7C00) == 0x7C00) {                /* infinity and NaN */
            if (h & 1023) bad_up += !isnan(f), bad_back += (hl_f32_to_f16(f) & 0x7C00) != 0x7C00 || !(hl_f32_to_f16(f) & 1023);
            else bad_up += !isinf(f), bad_back += hl_f32_to_f16(f) != h;
        } else {
            bad_up += (double)f != half_value(h) || !signbit(f) != !(h & 0x8000);
            bad_back += hl_f32_to_f16(f) != h;
        }
        float b = hl_bf16_to_f32((uint16_t)h);
        memcpy(&bits, &b, 4);
        bad_bf16 += bits != h << 16;
        if ((h & 0x7FFF) >= 0x7BFF) continue;
        /* Between two neighbours: the middle goes to the even one, just beside it to the nearer one. */
        float middle = (float)((half_value(h) + half_value(h + 1)) / 2);
        unsigned even = h & 1 ? h + 1 : h;
        bad_middle += hl_f32_to_f16(middle) != even;
        bad_middle += hl_f32_to_f16(nextafterf(middle, h & 0x8000 ? -INFINITY : INFINITY)) != h + 1;
        bad_middle += hl_f32_to_f16(nextafterf(middle, 0)) != h;
    }
    CHECK_MSG(!bad_up && !bad_back && !bad_middle && !bad_bf16, "%zu %zu %zu %zu", bad_up, bad_back, bad_middle, bad_bf16);
    CHECK(hl_f32_to_f16(65504) == 0x7BFF && hl_f32_to_f16(65519.996f) == 0x7BFF && hl_f32_to_f16(65520) == 0x7C00);
    CHECK(hl_f32_to_f16(-1e30f) == 0xFC00 && hl_f32_to_f16(1e-30f) == 0 && hl_f32_to_f16(-1e-30f) == 0x8000);
}

int main(void)
{
    stored_blocks();
    names();
    halves();
    hl_dequantize(HL_Q4_0, NULL, NULL, 0);           /* nothing to do is fine */
    return check_done();
}
