/* kern_float.h: the floating half of a kernel table, written once for every vector width: products with f32 activations, norms,
 * activation functions, rope, KV rows (and kern_attention.h).
 *
 * The including file (one per instruction set) defines VW, the floats in a vector, and before including:
 *   vf, vs, vu, f4               vectors of VW float, int32_t, uint32_t; of 4 float
 *   TILE_TOK                     tokens whose sums with 4 rows fit in registers
 *   vf_fma(a, b, c)              a * b + c, rounded once
 *   vf_load_part(p, n)           the first n floats of a vector, 0 < n <= VW, zeros after them; reads no further
 *   vf_store_part(p, v, n)
 *   vf_load_f16(p), vf_load_f16_part(p, n), vf_load_bf16(p), vf_load_i8(p), vf_store_f16_part(p, v, n)
 *   f16_f32(h)
 *   vf_sum4(a, b, c, d)          f4 of four sums over lanes, each in the same fixed order
 * Static-inline throughout, so that no code compiled with one instruction set can be called from another's file.
 *
 * A lane's arithmetic never depends on how many other lanes are in use, nor a token's on how many others are in the call.
 */
#include "kern_common.h"

static inline vf vf_load(const void *p) { vf v; memcpy(&v, p, sizeof v); return v; }
static inline void vf_store(void *p, vf v) { memcpy(p, &v, sizeof v); }
static inline vf vf_set1(float f) { return f - (vf){ 0 }; }       /* not 0 + f: that loses the sign of -0 */
static inline vf vf_select(vs mask, vf a, vf b) { return (vf)(((vs)a & mask) | ((vs)b & ~mask)); }
static inline vf vf_abs(vf a) { return (vf)((vs)a & 0x7FFFFFFF); }
static inline float vf_sum(vf a) { return vf_sum4(a, a, a, a)[0]; }

/* ---- exp and tanh ---- */

/* exp(x) = (1 + f) * 2^n for x between -120 and 100 (beyond these: as at the bound); f between -0.3 and 0.42.  NaN: f is NaN. */
static inline vf exp_parts(vf x, vs *n)
{
    const float magic = 0x1.8p23f;                     /* adding it leaves the nearest integer in the low bits */
    x = vf_select(x > 100.0f, vf_set1(100.0f), x);
    x = vf_select(x < -120.0f, vf_set1(-120.0f), x);
    vf z = vf_fma(x, vf_set1(0x1.715476p0f), vf_set1(magic));
    *n = (vs)((vu)z - f32_bits(magic));
    z -= magic;
    vf r = vf_fma(z, vf_set1(-0x1.63p-1f), x);         /* log 2 in two pieces, the first with few bits: exact */
    r = vf_fma(z, vf_set1(0x1.bd0106p-13f), r);
    vf p = vf_set1(1.0f / 5040);                       /* the series: after r^7 / 7! 2^-27 is missing at most */
    p = vf_fma(p, r, vf_set1(1.0f / 720));
    p = vf_fma(p, r, vf_set1(1.0f / 120));
    p = vf_fma(p, r, vf_set1(1.0f / 24));
    p = vf_fma(p, r, vf_set1(1.0f / 6));
    p = vf_fma(p, r, vf_set1(0.5f));
    return vf_fma(p, r * r, r);
}

/* v * 2^n, -180 < n < 180, rounded once (the first factor leaves v normal) */
static inline vf times_pow2(vf v, vs n)
{
    vs first = n >> 1;
    return v * (vf)(((vu)first + 127) << 23) * (vf)(((vu)n - (vu)first + 127) << 23);
}

static inline vf vf_exp(vf x)
{
    vs n;
    vf f = exp_parts(x, &n);
    return times_pow2(f + 1.0f, n);
}

/* x / (1 + exp(-y)), y having x's sign.  For y < 0 as x exp(y) / (1 + exp(y)), scaled last: exact to the smallest results.
 * Above and below the line there is one rounding each: 2.5 ulp at most. */
static inline vf x_sigmoid(vf x, vf y)
{
    vs n, negative = y < 0.0f;
    vf f = exp_parts(-vf_abs(y), &n);
    vs m = (vs)vf_select(n < -126, (vf)((vs){ 0 } - 126), (vf)n);
    vf power = (vf)((m + 127) << 23);                  /* 2^n; where that would be subnormal it counts for nothing */
    x = vf_select(x < -1e6f, vf_set1(-1e6f), x);       /* -Inf: the limit, -0 */
    vf above = vf_select(negative, vf_fma(x, f, x), x), below = vf_fma(f, power, 1.0f + power);
    return times_pow2(above / below, n & negative);
}

static inline vf vf_tanh(vf x)
{
    vf a = vf_abs(x), z = a * a;
    vf p = vf_set1(-0x1.830ba8p-8f);                   /* tanh a = a + a^3 P(a^2) below 0.6: least squares, 2^-28 off at most */
    p = vf_fma(p, z, vf_set1(0x1.54e006p-6f));
    p = vf_fma(p, z, vf_set1(-0x1.b89ed6p-5f));
    p = vf_fma(p, z, vf_set1(0x1.1109dcp-3f));
    p = vf_fma(p, z, vf_set1(-0x1.55553ep-2f));
    vf small = vf_fma(p * z, a, a);
    vf large = 1.0f - 2.0f / (vf_exp(a + a) + 1.0f);
    vs sign = (vs)x & (vs)vf_set1(-0.0f);
    return (vf)((vs)vf_select(a < 0.6f, small, large) | sign);
}

static inline vf vf_gelu(vf x)
{
    vf u2 = x * vf_fma(x * x, vf_set1(2 * 0.7978845608028654f * 0.044715f), vf_set1(2 * 0.7978845608028654f));
    return x_sigmoid(x, u2);                           /* x / 2 (1 + tanh u), without the cancellation */
}

static inline vf act_one(uint32_t kind, vf x)
{
    if (kind == HL_FFN_SILU) return x_sigmoid(x, x);
    if (kind == HL_FFN_GELU) return vf_gelu(x);
    vf r = vf_select(x < 0.0f, (vf){ 0 }, x);          /* a NaN is not below 0 and stays */
    return kind == HL_FFN_RELU ? r : r * r;
}

static void ffn_act(uint32_t kind, float *y, const float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += VW) {
        uint32_t m = HL_MIN(n - i, (uint32_t)VW);
        vf v = act_one(kind, m == VW ? vf_load(gate + i) : vf_load_part(gate + i, m));
        if (up) v *= m == VW ? vf_load(up + i) : vf_load_part(up + i, m);
        if (m == VW) vf_store(y + i, v);
        else vf_store_part(y + i, v, m);
    }
}

static void softcap(float *y, size_t n, float cap)
{
    for (size_t i = 0; i < n; i += VW) {
        uint32_t m = (uint32_t)HL_MIN(n - i, (size_t)VW);
        vf v = m == VW ? vf_load(y + i) : vf_load_part(y + i, m);
        v = cap * vf_tanh(v / cap);
        if (m == VW) vf_store(y + i, v);
        else vf_store_part(y + i, v, m);
    }
}

/* ---- norms and rope ---- */

enum { SUM_LANES = 16 };                               /* independent double sums: their order is fixed by n alone */

static inline double sum_up(const double s[SUM_LANES])
{
    double t[4];
    for (int i = 0; i < 4; i++) t[i] = (s[i] + s[i + 4]) + (s[i + 8] + s[i + 12]);
    return (t[0] + t[2]) + (t[1] + t[3]);
}

static void rms_norm(float *y, const float *x, const float *w, float eps, uint32_t n)
{
    double s[SUM_LANES] = { 0 };
    uint32_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (int k = 0; k < SUM_LANES; k++) s[k] += (double)x[i + k] * x[i + k];
    for (; i < n; i++) s[i % SUM_LANES] += (double)x[i] * x[i];
    double scale = 1.0 / sqrt(sum_up(s) / n + eps);
    for (i = 0; i < n; i++) y[i] = (float)(x[i] * scale * (w ? w[i] : 1.0f));
}

static void layer_norm(float *y, const float *x, const float *w, const float *b, float eps, uint32_t n)
{
    double s[SUM_LANES] = { 0 }, q[SUM_LANES] = { 0 };
    uint32_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (int k = 0; k < SUM_LANES; k++) s[k] += x[i + k];
    for (; i < n; i++) s[i % SUM_LANES] += x[i];
    double mean = sum_up(s) / n;
    for (i = 0; i + SUM_LANES <= n; i += SUM_LANES)
        for (int k = 0; k < SUM_LANES; k++) q[k] += (x[i + k] - mean) * (x[i + k] - mean);
    for (; i < n; i++) q[i % SUM_LANES] += (x[i] - mean) * (x[i] - mean);
    double scale = 1.0 / sqrt(sum_up(q) / n + eps);
    for (i = 0; i < n; i++) y[i] = (float)((x[i] - mean) * scale * (w ? w[i] : 1.0f) + (b ? b[i] : 0.0f));
}

static void rope(float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, uint32_t kind, const float *cos_sin)
{
    uint32_t half = n_rot / 2;
    for (uint32_t ih = 0; ih < n_heads; ih++, x += head_dim) {
        if (kind == HL_ROPE_PAIRS) {
            for (uint32_t i = 0; i < half; i++) {
                float c = cos_sin[2 * i], s = cos_sin[2 * i + 1], a = x[2 * i], b = x[2 * i + 1];
                x[2 * i] = a * c - b * s;
                x[2 * i + 1] = a * s + b * c;
            }
        } else {
            float *restrict xa = x, *restrict xb = x + half;
            for (uint32_t i = 0; i < half; i++) {
                float c = cos_sin[2 * i], s = cos_sin[2 * i + 1], a = xa[i], b = xb[i];
                xa[i] = a * c - b * s;
                xb[i] = a * s + b * c;
            }
        }
    }
}

/* ---- products with f32 activations ---- */

/* A vector of one row's weights at column i; n < VW: the row ends. */
static inline vf weight_at(uint32_t dtype, const uint8_t *row, uint32_t i, uint32_t n)
{
    if (dtype == HL_F32) return n == VW ? vf_load(row + (size_t)i * 4) : vf_load_part(row + (size_t)i * 4, n);
    const uint8_t *p = row + (size_t)i * 2;
    if (dtype == HL_F16) return n == VW ? vf_load_f16(p) : vf_load_f16_part(p, n);
    if (n == VW) return vf_load_bf16(p);
    uint16_t part[VW] = { 0 };
    memcpy(part, p, (size_t)n * 2);
    return vf_load_bf16(part);
}

/* One vector of columns of 4 rows by n_tok tokens. */
static inline __attribute__((always_inline)) void step_f32(vf acc[4][TILE_TOK], uint32_t dtype, const uint8_t *const row[4], const float *x, uint32_t cols,
                                                           uint32_t i, uint32_t n, const uint32_t n_tok)
{
    vf a[TILE_TOK];
    UNROLL for (uint32_t t = 0; t < n_tok; t++)
        a[t] = n == VW ? vf_load(x + (size_t)t * cols + i) : vf_load_part(x + (size_t)t * cols + i, n);
    UNROLL for (uint32_t r = 0; r < 4; r++) {
        vf v = weight_at(dtype, row[r], i, n);
        UNROLL for (uint32_t t = 0; t < n_tok; t++) acc[r][t] = vf_fma(v, a[t], acc[r][t]);
    }
}

/* 4 rows by n_tok <= TILE_TOK tokens; the caller repeats a row's pointer where there are fewer.  One vector sum per row and token. */
static inline __attribute__((always_inline)) void tile_f32(uint32_t dtype, float *y, size_t stride, const uint8_t *const row[4], uint32_t n_rows,
                                                           uint32_t cols, const float *x, const uint32_t n_tok)
{
    vf acc[4][TILE_TOK];
    uint32_t i = 0;
    UNROLL for (uint32_t r = 0; r < 4; r++)
        UNROLL for (uint32_t t = 0; t < n_tok; t++) acc[r][t] = (vf){ 0 };
    for (; i + VW <= cols; i += VW) step_f32(acc, dtype, row, x, cols, i, VW, n_tok);
    if (i < cols) step_f32(acc, dtype, row, x, cols, i, cols - i, n_tok);
    UNROLL for (uint32_t t = 0; t < n_tok; t++) {
        f4 sum = vf_sum4(acc[0][t], acc[1][t], acc[2][t], acc[3][t]);
        for (uint32_t r = 0; r < n_rows; r++) y[t * stride + r] = sum[r];
    }
}

static inline __attribute__((always_inline)) void rows_f32(uint32_t dtype, float *y, size_t stride, const uint8_t *const row[4], uint32_t n_rows,
                                                           uint32_t cols, const float *x, uint32_t n_tok)
{
    uint32_t it = 0;
    for (; it + TILE_TOK <= n_tok; it += TILE_TOK) tile_f32(dtype, y + it * stride, stride, row, n_rows, cols, x + (size_t)it * cols, TILE_TOK);
    for (; it < n_tok; it++) tile_f32(dtype, y + it * stride, stride, row, n_rows, cols, x + (size_t)it * cols, 1);
}

static void matmul_f32(uint32_t dtype, float *restrict y, size_t stride, const uint8_t *restrict w, size_t row_bytes, uint32_t n_rows,
                       uint32_t cols, const float *restrict x, uint32_t n_tok, float *restrict scratch)
{
    bool direct = dtype == HL_F32 || dtype == HL_F16 || dtype == HL_BF16;
    for (uint32_t ir = 0; ir < n_rows; ir += 4) {
        const uint8_t *row[4];
        uint32_t n = HL_MIN(n_rows - ir, 4u);
        for (uint32_t r = 0; r < 4; r++) {
            row[r] = w + (ir + HL_MIN(r, n - 1)) * row_bytes;
            if (!direct && r < n) hl_dequantize(dtype, row[r], scratch + (size_t)r * cols, cols);
            if (!direct) row[r] = (const uint8_t *)(scratch + (size_t)HL_MIN(r, n - 1) * cols);
        }
        if (dtype == HL_F16) rows_f32(HL_F16, y + ir, stride, row, n, cols, x, n_tok);
        else if (dtype == HL_BF16) rows_f32(HL_BF16, y + ir, stride, row, n, cols, x, n_tok);
        else rows_f32(HL_F32, y + ir, stride, row, n, cols, x, n_tok);
    }
}

/* ---- KV rows ---- */

static inline vf kv_part(uint32_t dtype, const uint8_t *row, uint32_t i, uint32_t n)
{
    if (dtype == HL_F32) return n == VW ? vf_load(row + (size_t)i * 4) : vf_load_part(row + (size_t)i * 4, n);
    if (dtype == HL_F16) return n == VW ? vf_load_f16(row + (size_t)i * 2) : vf_load_f16_part(row + (size_t)i * 2, n);
    const uint8_t *b = row + (size_t)(i / 32) * sizeof(hl_block_q8_0);                     /* whole blocks: never a part */
    return f16_f32(load_u16(b)) * vf_load_i8(b + 2 + i % 32);
}

/* One block of 8 bits, rounded on the grid that will be read back. */
static void kv_block(uint8_t *out, const float *src, uint32_t n)
{
    uint32_t largest = 0;
    float x[32] = { 0 };
    memcpy(x, src, (size_t)n * 4);
    for (uint32_t k = 0; k < 32; k++) largest = HL_MAX(largest, f32_bits(x[k]) & 0x7FFFFFFF);
    hl_f16 d = largest > 0x7F800000 ? 0x7E00 : hl_f32_to_f16(bits_f32(largest) * (1.0f / 127));
    float back = hl_f16_to_f32(d), inv = back > 0 && back <= 65504 ? 1 / back : 0;
    int8_t *q = (int8_t *)out + 2;
    memcpy(out, &d, 2);
    if (inv == 0) { memset(q, 0, 32); return; }
    for (uint32_t k = 0; k < 32; k++) {
        float v = x[k] * inv;
        v = v > 127 ? 127 : v < -127 ? -127 : v;
        q[k] = (int8_t)((int32_t)f32_bits(v + 0x1.8p23f) - (int32_t)f32_bits(0x1.8p23f));   /* to nearest even, as lrintf */
    }
}

static void kv_store(uint32_t dtype, void *dst, const float *src, uint32_t dim)
{
    uint8_t *out = dst;
    if (dtype == HL_F32) { memcpy(out, src, (size_t)dim * 4); return; }
    if (dtype == HL_F16) {
        for (uint32_t i = 0; i < dim; i += VW) {
            uint32_t n = HL_MIN(dim - i, (uint32_t)VW);
            vf_store_f16_part(out + (size_t)i * 2, n == VW ? vf_load(src + i) : vf_load_part(src + i, n), n);
        }
        return;
    }
    for (uint32_t i = 0; i < dim; i += 32, out += sizeof(hl_block_q8_0)) kv_block(out, src + i, HL_MIN(dim - i, 32u));
}

#include "kern_attention.h"
