/* dtype.c: what one block of each element format holds, and its exact values as f32.
 *
 * The reference for every other reader of these blocks (kernels, uploads): plain loops, one rounding per operation, in the order
 * in which ggml and the `gguf` Python package do them, so that all three agree to the bit.  That is why this file is built with
 * -ffp-contract=off: a fused d * q + m would round once instead of twice.
 *
 * Blocks are copied out before use: rows in a file have no alignment.  Numbers in them are little-endian, as is every machine
 * that this library is built for.  Any thread; no state; nothing here can fail.
 */
#include "base/dtype.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blocks are read in place");

const int8_t hl_table_iq4_nl[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
const int8_t hl_table_mxfp4[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

#define QUANT(type, elements, block_type) [HL_##type] = { #type, elements, sizeof(block_type) }
static const hl_dtype_info dtypes[HL_DTYPE_END] = {
    QUANT(F32, 1, float), QUANT(F16, 1, hl_f16), QUANT(BF16, 1, uint16_t),
    QUANT(Q4_0, HL_QK, hl_block_q4_0), QUANT(Q4_1, HL_QK, hl_block_q4_1),
    QUANT(Q5_0, HL_QK, hl_block_q5_0), QUANT(Q5_1, HL_QK, hl_block_q5_1), QUANT(Q8_0, HL_QK, hl_block_q8_0),
    QUANT(Q2_K, HL_QK_K, hl_block_q2_K), QUANT(Q3_K, HL_QK_K, hl_block_q3_K), QUANT(Q4_K, HL_QK_K, hl_block_q4_K),
    QUANT(Q5_K, HL_QK_K, hl_block_q5_K), QUANT(Q6_K, HL_QK_K, hl_block_q6_K),
    QUANT(IQ4_NL, HL_QK, hl_block_iq4_nl), QUANT(IQ4_XS, HL_QK_K, hl_block_iq4_xs), QUANT(MXFP4, HL_QK, hl_block_mxfp4),
};

const hl_dtype_info *hl_dtype(uint32_t dtype)
{
    return dtype < HL_DTYPE_END && dtypes[dtype].name ? &dtypes[dtype] : NULL;
}

static inline float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

float hl_f16_to_f32(hl_f16 h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7FFF;
    if (rest >= 0x7C00) return from_bits(sign | 0x7F800000 | rest << 13);                  /* infinity and NaN */
    if (rest >= 0x0400) return from_bits(sign | (rest + (112u << 10)) << 13);              /* bias 15 -> 127 */
    float tiny = (float)rest * 0x1p-24f;                                                   /* subnormal: exact in f32 */
    return sign ? -tiny : tiny;
}

hl_f16 hl_f32_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7FFFFFFF;
    if (rest > 0x7F800000) return (hl_f16)(sign | 0x7E00 | (rest >> 13 & 0x1FF));          /* NaN, made quiet */
    if (rest >= 0x477FF000) return (hl_f16)(sign | 0x7C00);                                /* from 65520 on: infinity */
    if (rest < 0x38800000) {                         /* below 2^-14: adding 0.5 leaves units of 2^-24, rounded as we want */
        float sum = from_bits(rest) + 0.5f;
        memcpy(&bits, &sum, sizeof bits);
        return (hl_f16)(sign | (bits - 0x3F000000));
    }
    return (hl_f16)(sign | (rest - (112u << 23) + 0x0FFF + (rest >> 13 & 1)) >> 13);
}

float hl_bf16_to_f32(uint16_t h)
{
    return from_bits((uint32_t)h << 16);
}

/* ---- blocks of 32 ---- */

/* Each of these takes one block and writes its values.  In blocks of 32, q[j] is the low nibble of qs[j] and q[j + 16] the high. */

static void q4_0(const void *src, float *dst)
{
    hl_block_q4_0 b;
    memcpy(&b, src, sizeof b);
    float d = hl_f16_to_f32(b.d);
    for (int j = 0; j < 16; j++) {
        dst[j] = d * (float)((b.qs[j] & 15) - 8);
        dst[j + 16] = d * (float)((b.qs[j] >> 4) - 8);
    }
}

static void q4_1(const void *src, float *dst)
{
    hl_block_q4_1 b;
    memcpy(&b, src, sizeof b);
    float d = hl_f16_to_f32(b.d), m = hl_f16_to_f32(b.m);
    for (int j = 0; j < 16; j++) {
        dst[j] = d * (float)(b.qs[j] & 15) + m;
        dst[j + 16] = d * (float)(b.qs[j] >> 4) + m;
    }
}

/* The 32 five-bit numbers of a Q5_0 or Q5_1 block. */
static void five_bits(const uint8_t qh[4], const uint8_t qs[16], int q[32])
{
    uint32_t high;
    memcpy(&high, qh, sizeof high);
    for (int j = 0; j < 16; j++) {
        q[j] = (qs[j] & 15) | (int)(high >> j & 1) << 4;
        q[j + 16] = qs[j] >> 4 | (int)(high >> (j + 16) & 1) << 4;
    }
}

static void q5_0(const void *src, float *dst)
{
    hl_block_q5_0 b;
    int q[32];
    memcpy(&b, src, sizeof b);
    five_bits(b.qh, b.qs, q);
    float d = hl_f16_to_f32(b.d);
    for (int j = 0; j < 32; j++) dst[j] = d * (float)(q[j] - 16);
}

static void q5_1(const void *src, float *dst)
{
    hl_block_q5_1 b;
    int q[32];
    memcpy(&b, src, sizeof b);
    five_bits(b.qh, b.qs, q);
    float d = hl_f16_to_f32(b.d), m = hl_f16_to_f32(b.m);
    for (int j = 0; j < 32; j++) dst[j] = d * (float)q[j] + m;
}

static void q8_0(const void *src, float *dst)
{
    hl_block_q8_0 b;
    memcpy(&b, src, sizeof b);
    float d = hl_f16_to_f32(b.d);
    for (int j = 0; j < 32; j++) dst[j] = d * (float)b.qs[j];
}

static void iq4_nl(const void *src, float *dst)
{
    hl_block_iq4_nl b;
    memcpy(&b, src, sizeof b);
    float d = hl_f16_to_f32(b.d);
    for (int j = 0; j < 16; j++) {
        dst[j] = d * (float)hl_table_iq4_nl[b.qs[j] & 15];
        dst[j + 16] = d * (float)hl_table_iq4_nl[b.qs[j] >> 4];
    }
}

static void mxfp4(const void *src, float *dst)
{
    hl_block_mxfp4 b;
    memcpy(&b, src, sizeof b);
    /* 2^(e - 128), halved because the table is doubled; the two lowest are subnormal.  No e is a NaN here, as in ggml. */
    float d = from_bits(b.e < 2 ? 0x00200000u << b.e : (uint32_t)(b.e - 1) << 23);
    for (int j = 0; j < 16; j++) {
        dst[j] = d * (float)hl_table_mxfp4[b.qs[j] & 15];
        dst[j + 16] = d * (float)hl_table_mxfp4[b.qs[j] >> 4];
    }
}

/* ---- blocks of 256 ---- */

static void q2_K(const void *src, float *dst)
{
    hl_block_q2_K b;
    memcpy(&b, src, sizeof b);
    float d = hl_f16_to_f32(b.d), dmin = hl_f16_to_f32(b.dmin);
    for (int g = 0; g < 16; g++) {                   /* halves of 128 share 32 bytes: group pairs take bits 0-1, 2-3, 4-5, 6-7 */
        const uint8_t *qs = b.qs + g / 8 * 32 + g % 2 * 16;
        int shift = g % 8 / 2 * 2;
        float scale = d * (float)(b.scales[g] & 15), min = dmin * (float)(b.scales[g] >> 4);
        for (int j = 0; j < 16; j++) *dst++ = scale * (float)(qs[j] >> shift & 3) - min;
    }
}

static void q3_K(const void *src, float *dst)
{
    hl_block_q3_K b;
    memcpy(&b, src, sizeof b);
    float d = hl_f16_to_f32(b.d);
    for (int g = 0; g < 16; g++) {                   /* bits as in Q2_K; bit g / 2 of hmask set: nothing to subtract */
        const uint8_t *qs = b.qs + g / 8 * 32 + g % 2 * 16, *hmask = b.hmask + g % 2 * 16;
        int shift = g % 8 / 2 * 2;
        int low = b.scales[g % 8] >> g / 8 * 4 & 15, high = b.scales[8 + g % 4] >> g / 4 * 2 & 3;
        float scale = d * (float)((low | high << 4) - 32);
        for (int j = 0; j < 16; j++)
            *dst++ = scale * (float)((qs[j] >> shift & 3) - (hmask[j] >> g / 2 & 1 ? 0 : 4));
    }
}

/* Scale and min (6 bits each) of group g of 8, as Q4_K and Q5_K pack them. */
static void scale_min(const uint8_t s[12], int g, int *scale, int *min)
{
    if (g < 4) {
        *scale = s[g] & 63;
        *min = s[g + 4] & 63;
    } else {
        *scale = (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
        *min = s[g + 4] >> 4 | s[g] >> 6 << 4;
    }
}

static void q4_K(const void *src, float *dst)
{
    hl_block_q4_K b;
    memcpy(&b, src, sizeof b);
    float d = hl_f16_to_f32(b.d), dmin = hl_f16_to_f32(b.dmin);
    for (int g = 0; g < 8; g++) {                    /* two groups share 32 bytes: low nibbles, then high */
        int s, m;
        scale_min(b.scales, g, &s, &m);
        float scale = d * (float)s, min = dmin * (float)m;
        const uint8_t *qs = b.qs + g / 2 * 32;
        for (int j = 0; j < 32; j++) *dst++ = scale * (float)(qs[j] >> g % 2 * 4 & 15) - min;
    }
}

static void q5_K(const void *src, float *dst)
{
    hl_block_q5_K b;
    memcpy(&b, src, sizeof b);
    float d = hl_f16_to_f32(b.d), dmin = hl_f16_to_f32(b.dmin);
    for (int g = 0; g < 8; g++) {                    /* as Q4_K; bit g of qh[j] is bit 4 */
        int s, m;
        scale_min(b.scales, g, &s, &m);
        float scale = d * (float)s, min = dmin * (float)m;
        const uint8_t *qs = b.qs + g / 2 * 32;
        for (int j = 0; j < 32; j++)
            *dst++ = scale * (float)((qs[j] >> g % 2 * 4 & 15) | (b.qh[j] >> g & 1) << 4) - min;
    }
}

static void q6_K(const void *src, float *dst)
{
    hl_block_q6_K b;
    memcpy(&b, src, sizeof b);
    float d = hl_f16_to_f32(b.d);
    for (int g = 0; g < 8; g++) {                    /* halves of 128: 64 bytes of low nibbles, then the same bytes' high nibbles */
        const uint8_t *ql = b.ql + g / 4 * 64 + g % 2 * 32, *qh = b.qh + g / 4 * 32;
        int low = g % 4 / 2 * 4, high = g % 4 * 2;
        for (int j = 0; j < 32; j++) {
            float scale = d * (float)b.scales[g * 2 + j / 16];
            *dst++ = scale * (float)(((ql[j] >> low & 15) | (qh[j] >> high & 3) << 4) - 32);
        }
    }
}

static void iq4_xs(const void *src, float *dst)
{
    hl_block_iq4_xs b;
    memcpy(&b, src, sizeof b);
    float d = hl_f16_to_f32(b.d);
    for (int g = 0; g < 8; g++) {
        int low = b.scales_l[g / 2] >> g % 2 * 4 & 15, high = b.scales_h >> 2 * g & 3;
        float scale = d * (float)((low | high << 4) - 32);
        const uint8_t *qs = b.qs + g * 16;
        for (int j = 0; j < 16; j++) {
            dst[j] = scale * (float)hl_table_iq4_nl[qs[j] & 15];
            dst[j + 16] = scale * (float)hl_table_iq4_nl[qs[j] >> 4];
        }
        dst += 32;
    }
}

/* ---- rows ---- */

void hl_dequantize(uint32_t dtype, const void *src, float *dst, size_t n)
{
    static void (*const of_block[HL_DTYPE_END])(const void *, float *) = {
        [HL_Q4_0] = q4_0, [HL_Q4_1] = q4_1, [HL_Q5_0] = q5_0, [HL_Q5_1] = q5_1, [HL_Q8_0] = q8_0,
        [HL_Q2_K] = q2_K, [HL_Q3_K] = q3_K, [HL_Q4_K] = q4_K, [HL_Q5_K] = q5_K, [HL_Q6_K] = q6_K,
        [HL_IQ4_NL] = iq4_nl, [HL_IQ4_XS] = iq4_xs, [HL_MXFP4] = mxfp4,
    };
    const uint8_t *from = src;
    const hl_dtype_info *t = hl_dtype(dtype);
    HL_ASSERT(t && n % t->block == 0);
    if (n == 0) return;
    if (dtype == HL_F32) {
        memcpy(dst, src, n * sizeof *dst);
    } else if (dtype == HL_F16 || dtype == HL_BF16) {
        for (size_t i = 0; i < n; i++, from += 2) {
            uint16_t h;
            memcpy(&h, from, sizeof h);
            dst[i] = dtype == HL_F16 ? hl_f16_to_f32(h) : hl_bf16_to_f32(h);
        }
    } else {
        for (size_t i = 0; i < n; i += t->block, from += t->bytes) of_block[dtype](from, dst + i);
    }
}
