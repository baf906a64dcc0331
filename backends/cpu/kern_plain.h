/* kern_plain.h: weights unpacked and activations quantised a group of 32 at a time, in plain C.
 *
 * The scalar table is made of it; the NEON tables, whose compiler turns these short loops into vectors, unpack with it.  One signed
 * byte per weight, and a scale and an offset for each half of a group, say everything that the formats can.
 * Static-inline only: each kernel file is compiled with its own instruction set.
 */
#ifndef HL_KERN_PLAIN_H
#define HL_KERN_PLAIN_H

#include "kern_common.h"

/* w[i] = scale[i / 16] * q[i] + offset[i / 16] */
typedef struct group {
    int8_t q[32];
    float scale[2], offset[2];
} group;

static inline void set_scale(group *g, float scale, float offset)
{
    g->scale[0] = g->scale[1] = scale;
    g->offset[0] = g->offset[1] = offset;
}

static inline void nibbles(group *g, const uint8_t qs[16], int sub)
{
    for (int i = 0; i < 16; i++) {
        g->q[i] = (int8_t)((qs[i] & 15) - sub);
        g->q[i + 16] = (int8_t)((qs[i] >> 4) - sub);
    }
}

static inline void add_fifth_bit(group *g, uint32_t qh)
{
    for (int i = 0; i < 32; i++) g->q[i] = (int8_t)(g->q[i] + (int)(qh >> i & 1) * 16);
}

static inline void look_up(group *g, const uint8_t qs[16], const int8_t table[16])
{
    for (int i = 0; i < 16; i++) {
        g->q[i] = table[qs[i] & 15];
        g->q[i + 16] = table[qs[i] >> 4];
    }
}

static inline void unpack_32(uint32_t dtype, const uint8_t *row, uint32_t ib, group *g)
{
    const uint8_t *b;
    switch (dtype) {
    case HL_Q4_0:
        b = row + (size_t)ib * sizeof(hl_block_q4_0);
        nibbles(g, b + 2, 8);
        set_scale(g, hl_f16_to_f32(load_u16(b)), 0);
        break;
    case HL_Q4_1:
        b = row + (size_t)ib * sizeof(hl_block_q4_1);
        nibbles(g, b + 4, 0);
        set_scale(g, hl_f16_to_f32(load_u16(b)), hl_f16_to_f32(load_u16(b + 2)));
        break;
    case HL_Q5_0:
        b = row + (size_t)ib * sizeof(hl_block_q5_0);
        nibbles(g, b + 6, 16);
        add_fifth_bit(g, load_u32(b + 2));
        set_scale(g, hl_f16_to_f32(load_u16(b)), 0);
        break;
    case HL_Q5_1:
        b = row + (size_t)ib * sizeof(hl_block_q5_1);
        nibbles(g, b + 8, 0);
        add_fifth_bit(g, load_u32(b + 4));
        set_scale(g, hl_f16_to_f32(load_u16(b)), hl_f16_to_f32(load_u16(b + 2)));
        break;
    case HL_Q8_0:
        b = row + (size_t)ib * sizeof(hl_block_q8_0);
        memcpy(g->q, b + 2, 32);
        set_scale(g, hl_f16_to_f32(load_u16(b)), 0);
        break;
    case HL_IQ4_NL:
        b = row + (size_t)ib * sizeof(hl_block_iq4_nl);
        look_up(g, b + 2, hl_table_iq4_nl);
        set_scale(g, hl_f16_to_f32(load_u16(b)), 0);
        break;
    default:                                           /* HL_MXFP4 */
        b = row + (size_t)ib * sizeof(hl_block_mxfp4);
        look_up(g, b + 1, hl_table_mxfp4);
        set_scale(g, mxfp4_scale(b[0]), 0);
        break;
    }
}

static inline void unpack_256(uint32_t dtype, const uint8_t *row, uint32_t ib, group *g)
{
    uint32_t ig = ib % 8, half = ig / 4, shift = 2 * (ig % 4);
    size_t at = ib / 8;
    if (dtype == HL_Q2_K) {
        hl_block_q2_K b;
        memcpy(&b, row + at * sizeof b, sizeof b);
        float d = hl_f16_to_f32(b.d), dmin = hl_f16_to_f32(b.dmin);
        for (int i = 0; i < 32; i++) g->q[i] = (int8_t)(b.qs[32 * half + i] >> shift & 3);
        for (int h = 0; h < 2; h++) {
            g->scale[h] = d * (float)(b.scales[2 * ig + h] & 15);
            g->offset[h] = -dmin * (float)(b.scales[2 * ig + h] >> 4);
        }
    } else if (dtype == HL_Q3_K) {
        hl_block_q3_K b;
        memcpy(&b, row + at * sizeof b, sizeof b);
        float d = hl_f16_to_f32(b.d);
        int8_t sc[16];
        scales_k3(b.scales, sc);
        for (int i = 0; i < 32; i++)
            g->q[i] = (int8_t)((b.qs[32 * half + i] >> shift & 3) + 4 * (b.hmask[i] >> ig & 1) - 4);
        for (int h = 0; h < 2; h++) {
            g->scale[h] = d * (float)sc[2 * ig + h];
            g->offset[h] = 0;
        }
    } else if (dtype == HL_Q6_K) {
        hl_block_q6_K b;
        memcpy(&b, row + at * sizeof b, sizeof b);
        float d = hl_f16_to_f32(b.d);
        const uint8_t *ql = b.ql + 64 * half + 32 * (ig % 2), *qh = b.qh + 32 * half;
        for (int i = 0; i < 32; i++)
            g->q[i] = (int8_t)((ql[i] >> (ig % 4 >= 2 ? 4 : 0) & 15) + 16 * (qh[i] >> shift & 3) - 32);
        for (int h = 0; h < 2; h++) {
            g->scale[h] = d * (float)b.scales[2 * ig + h];
            g->offset[h] = 0;
        }
    } else if (dtype == HL_IQ4_XS) {
        const uint8_t *b = row + at * sizeof(hl_block_iq4_xs);
        int8_t sc[8];
        scales_iq4_xs(b, sc);
        look_up(g, b + 8 + 16 * ig, hl_table_iq4_nl);
        set_scale(g, hl_f16_to_f32(load_u16(b)) * (float)sc[ig], 0);
    } else {                                           /* HL_Q4_K, HL_Q5_K: 32 bytes hold a low and a high group */
        bool five = dtype == HL_Q5_K;
        const uint8_t *b = row + at * (five ? sizeof(hl_block_q5_K) : sizeof(hl_block_q4_K));
        const uint8_t *qs = b + (five ? 48 : 16) + 32 * (ig / 2), *qh = b + 16;
        uint8_t sc[8], mn[8];
        scales_k4(b + 4, sc, mn);
        for (int i = 0; i < 32; i++)
            g->q[i] = (int8_t)((qs[i] >> 4 * (ig % 2) & 15) + (five ? 16 * (qh[i] >> ig & 1) : 0));
        set_scale(g, hl_f16_to_f32(load_u16(b)) * (float)sc[ig], -hl_f16_to_f32(load_u16(b + 2)) * (float)mn[ig]);
    }
}

static inline bool is_256(uint32_t dtype)
{
    return dtype == HL_Q2_K || dtype == HL_Q3_K || dtype == HL_Q4_K || dtype == HL_Q5_K || dtype == HL_Q6_K || dtype == HL_IQ4_XS;
}

static inline void quantize_block(hl_q8_unit *out, const float *x, uint32_t ib)
{
    int8_t *q = out->q + ib * 32;
    int32_t t[32];
    uint32_t largest = 0;
    for (int i = 0; i < 32; i++) largest = HL_MAX(largest, f32_bits(x[i]) & 0x7FFFFFFF);
    float amax = bits_f32(largest), d = largest >= 0x7F800000 ? f32_nan() : 0;
    int32_t isum[2] = { 0, 0 };
    memset(q, 0, 32);
    if (largest < 0x7F800000 && amax >= Q8_SMALLEST) {
        float inv = (float)Q8_T_MAX / amax, best = 0;
        int step_best = 0, xq_best = 0, qq_best = 1;
        for (int i = 0; i < 32; i++) t[i] = (int32_t)lrintf(x[i] * inv);
        for (int k = 0; k < Q8_STEPS; k++) {
            int32_t xq = 0, qq = 0, step = Q8_STEP_FIRST - Q8_STEP_BY * k;
            for (int i = 0; i < 32; i++) {
                int32_t v = (t[i] * step + (1 << 14)) >> 15;
                xq += t[i] * v;
                qq += v * v;
            }
            float score = (float)xq * (float)xq / (float)qq;       /* the part of sum x^2 that this grid explains */
            if (score > best) { best = score; step_best = step; xq_best = xq; qq_best = qq; }
        }
        for (int i = 0; i < 32; i++) {
            q[i] = (int8_t)((t[i] * step_best + (1 << 14)) >> 15);
            isum[i / 16] += q[i];
        }
        d = (float)xq_best / (float)qq_best * (amax * (1.0f / (float)Q8_T_MAX));
    }
    q8_block_sums(out, ib, d, isum);
}

/* A group of any type by its number in the row. */
static inline void unpack_group(uint32_t dtype, const uint8_t *row, uint32_t ib, group *g)
{
    if (is_256(dtype)) unpack_256(dtype, row, ib, g);
    else unpack_32(dtype, row, ib, g);
}

static inline void quantize_row(hl_q8_unit *out, const float *restrict x, uint32_t n)
{
    memset(out, 0, hl_q8_row_bytes(n));
    for (uint32_t ib = 0; ib < n / 32; ib++) quantize_block(out + ib / 8, x + (size_t)ib * 32, ib % 8);
    for (uint32_t iu = 0; iu < (n + 255) / 256; iu++) q8_unit_sums(out + iu);
}

static inline void side_by_side_plain(void *to, const hl_q8_unit *rows, uint32_t n, uint32_t n_tok)
{
    const size_t row_bytes = hl_q8_row_bytes(n);
    for (uint32_t it = 0, width; it < n_tok; it += width) {
        width = hl_q8_width(n_tok - it);
        q8_block_of((uint32_t *)(void *)((uint8_t *)to + it * row_bytes), (const uint8_t *)rows + it * row_bytes, row_bytes, (n + 255) / 256, width);
    }
}

#endif
