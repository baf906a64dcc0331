/* kern_scalar.c: the table for any CPU: plain loops, the shape of the algorithms without their speed.
 *
 * Weights are unpacked a group of 32 at a time into signed bytes with two scales and two offsets (the halves of a group may differ),
 * and used for all tokens.  Integer sums are exact within 16 elements, floating sums run over groups in order.
 * Each function here does for one row, token or head what the comment in kernels.h says; any thread, no state.
 */
#include "kern_plain.h"
#include "cpu/kv.h"

static void matmul_q8(uint32_t dtype, bool packed, float *restrict y, size_t stride, const uint8_t *restrict w, size_t row_bytes, uint32_t n_rows,
                      uint32_t cols, const void *act, uint32_t n_tok, float *restrict scratch)
{
    const size_t act_bytes = hl_q8_row_bytes(cols);
    (void)scratch;
    (void)packed;
    for (uint32_t ir = 0; ir < n_rows; ir++) {
        for (uint32_t it = 0; it < n_tok; it++) y[it * stride + ir] = 0;
        for (uint32_t ib = 0; ib < cols / 32; ib++) {
            group g;
            unpack_group(dtype, w + ir * row_bytes, ib, &g);
            for (uint32_t t0 = 0, width; t0 < n_tok; t0 += width) {
                width = hl_q8_width(n_tok - t0);
                const float *block = (const float *)(const void *)((const uint8_t *)act + t0 * act_bytes) + (size_t)ib * HL_Q8_WORDS * width;
                for (uint32_t lane = 0; lane < width; lane++) {
                    const float *a = block + lane;
                    int8_t q[32];
                    int32_t low = 0, high = 0;
                    for (int j = 0; j < 8; j++) memcpy(q + 4 * j, a + j * width, 4);
                    for (int i = 0; i < 16; i++) low += g.q[i] * q[i];
                    for (int i = 16; i < 32; i++) high += g.q[i] * q[i];
                    float part = a[8 * width] * (g.scale[0] * (float)low + g.scale[1] * (float)high);
                    y[(t0 + lane) * stride + ir] += part + (g.offset[0] * a[9 * width] + g.offset[1] * a[10 * width]);
                }
            }
        }
    }
}

static size_t matmul_scratch(uint32_t cols) { return cols; }

static void matmul_f32(uint32_t dtype, float *restrict y, size_t stride, const uint8_t *restrict w, size_t row_bytes, uint32_t n_rows,
                       uint32_t cols, const float *restrict x, uint32_t n_tok, float *restrict scratch)
{
    for (uint32_t ir = 0; ir < n_rows; ir++) {
        hl_dequantize(dtype, w + ir * row_bytes, scratch, cols);
        for (uint32_t it = 0; it < n_tok; it++) {
            float sum[8] = { 0 };
            const float *xt = x + (size_t)it * cols;
            for (uint32_t i = 0; i < cols; i++) sum[i % 8] += scratch[i] * xt[i];
            y[it * stride + ir] = ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
        }
    }
}

static void matmul_half(uint32_t dtype, bool packed, bool fine, float *restrict y, size_t stride, const uint8_t *restrict w, size_t row_bytes, uint32_t n_rows,
                        uint32_t cols, const float *restrict x, uint32_t n_tok, float *restrict scratch)
{
    (void)packed; (void)fine;
    matmul_f32(dtype, y, stride, w, row_bytes, n_rows, cols, x, n_tok, scratch);
}

static void axpy(uint32_t dtype, float *restrict y, const uint8_t *const *rows, const float *h, uint32_t n_rows, uint32_t cols, float *restrict scratch)
{
    for (uint32_t r = 0; r < n_rows; r++) {
        hl_dequantize(dtype, rows[r], scratch, cols);
        for (uint32_t c = 0; c < cols; c++) y[c] = fmaf(h[r], scratch[c], y[c]);
    }
}

static void quantize(hl_q8_unit *out, const float *restrict x, uint32_t n) { quantize_row(out, x, n); }
static void side_by_side(void *to, const hl_q8_unit *rows, uint32_t n, uint32_t n_tok) { side_by_side_plain(to, rows, n, n_tok); }

/* ---- norms and elementwise ---- */

static void rms_norm(float *y, const float *x, const float *w, float eps, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    double scale = 1.0 / sqrt(sum / n + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = (float)(x[i] * scale * (w ? w[i] : 1.0f));
}

static void layer_norm(float *y, const float *x, const float *w, const float *b, float eps, uint32_t n)
{
    double sum = 0, square = 0;
    for (uint32_t i = 0; i < n; i++) sum += x[i];
    double mean = sum / n;
    for (uint32_t i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    double scale = 1.0 / sqrt(square / n + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = (float)((x[i] - mean) * scale * (w ? w[i] : 1.0f) + (b ? b[i] : 0.0f));
}

/* In double: the scalar table is nobody's fast path, and its rounding is then beyond doubt. */
static float silu(float x) { return x < -1000 ? -0.0f : (float)(x / (1 + exp(-(double)x))); }

static float gelu(float x)
{
    double u = 0.7978845608028654 * (x + 0.044715 * (double)x * x * x);
    return x < -1000 ? -0.0f : (float)(x / (1 + exp(-2 * u)));     /* = x / 2 (1 + tanh u), without the cancellation */
}

static void ffn_act(uint32_t kind, float *y, const float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float x = gate[i], r = x < 0 ? 0 : x, v;       /* a NaN is not below 0 and stays */
        if (kind == HL_FFN_SILU) v = silu(x);
        else if (kind == HL_FFN_GELU) v = gelu(x);
        else v = kind == HL_FFN_RELU ? r : r * r;
        y[i] = up ? v * up[i] : v;
    }
}

static void rope(float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, uint32_t kind, const float *cos_sin)
{
    uint32_t half = n_rot / 2;
    for (uint32_t ih = 0; ih < n_heads; ih++, x += head_dim) {
        for (uint32_t i = 0; i < half; i++) {
            uint32_t a = kind == HL_ROPE_PAIRS ? 2 * i : i, b = kind == HL_ROPE_PAIRS ? 2 * i + 1 : i + half;
            float c = cos_sin[2 * i], s = cos_sin[2 * i + 1], xa = x[a], xb = x[b];
            x[a] = xa * c - xb * s;
            x[b] = xa * s + xb * c;
        }
    }
}

static void softcap(float *y, size_t n, float cap)
{
    for (size_t i = 0; i < n; i++) y[i] = (float)(cap * tanh((double)y[i] / cap));
}

/* ---- KV and attention ---- */

static void kv_store(uint32_t dtype, void *dst, const float *src, uint32_t dim)
{
    uint8_t *out = dst;
    if (dtype == HL_F32) { memcpy(dst, src, (size_t)dim * 4); return; }
    if (dtype == HL_F16) {
        for (uint32_t i = 0; i < dim; i++) {
            hl_f16 h = hl_f32_to_f16(src[i]);
            memcpy(out + (size_t)i * 2, &h, 2);
        }
        return;
    }
    for (uint32_t i = 0; i < dim; i += 32, out += sizeof(hl_block_q8_0)) {
        uint32_t n = HL_MIN(dim - i, 32u), largest = 0;
        for (uint32_t k = 0; k < n; k++) largest = HL_MAX(largest, f32_bits(src[i + k]) & 0x7FFFFFFF);
        hl_f16 d = largest > 0x7F800000 ? 0x7E00 : hl_f32_to_f16(bits_f32(largest) * (1.0f / 127));
        float back = hl_f16_to_f32(d), inv = back > 0 && back <= 65504 ? 1 / back : 0;   /* round on the grid that will be read back */
        memcpy(out, &d, 2);
        memset(out + 2, 0, 32);
        for (uint32_t k = 0; k < n; k++) {
            float v = src[i + k] * inv;
            v = v > 127 ? 127 : v < -127 ? -127 : v;
            ((int8_t *)out)[2 + k] = inv == 0 ? 0 : (int8_t)lrintf(v);
        }
    }
}

static float kv_at(uint32_t dtype, const uint8_t *row, uint32_t i)
{
    if (dtype == HL_F32) { float f; memcpy(&f, row + (size_t)i * 4, 4); return f; }
    if (dtype == HL_F16) return hl_f16_to_f32(load_u16(row + (size_t)i * 2));
    const uint8_t *b = row + (size_t)(i / 32) * sizeof(hl_block_q8_0);
    return hl_f16_to_f32(load_u16(b)) * (float)(int8_t)b[2 + i % 32];
}

/* q . k of one position */
static float key_dot(const hl_kv_layer *kv, uint32_t head, uint32_t slot, const float *q, uint8_t *row)
{
    float dot = 0;
    k_row_move(kv, head, slot, row, false);
    for (uint32_t i = 0; i < kv->dim_k; i++) dot += q[i] * kv_at(kv->dtype, row, i);
    return dot;
}

static void attend(const hl_attention *a, uint32_t kv_head, const float *q, uint32_t p0, uint32_t p1, float *out, float *scratch)
{
    const hl_kv_layer *kv = a->kv;
    float *score = scratch;                            /* [KV_TILE], then a row of K */
    uint8_t *row = (uint8_t *)(scratch + KV_TILE);
    float best = -INFINITY, total = 0;
    for (uint32_t i = 0; i < kv->dim_v; i++) out[i] = 0;
    for (uint32_t tile = p0 - p0 % KV_TILE; tile < p1; tile += KV_TILE) {
        uint32_t from = HL_MAX(tile, p0), to = HL_MIN(tile + KV_TILE, p1);
        float was = best;
        for (uint32_t p = from; p < to; p++) {
            float dot = key_dot(kv, kv_head, p % kv->n_slots, q, row) * a->scale;
            if (a->softcap > 0) dot = (float)(a->softcap * tanh((double)dot / a->softcap));
            score[p - tile] = dot;
            best = dot > best ? dot : best;            /* a NaN shows in its weight below */
        }
        float keep = best == -INFINITY ? 1 : (float)exp((double)was - best), base = best == -INFINITY ? 0 : best;
        total *= keep;
        for (uint32_t i = 0; i < kv->dim_v; i++) out[i] *= keep;
        for (uint32_t p = from; p < to; p++) {
            const uint8_t *v = v_row(kv, kv_head, p % kv->n_slots);
            float e = (float)exp((double)score[p - tile] - base);
            total += e;
            for (uint32_t i = 0; i < kv->dim_v; i++) out[i] += e * kv_at(kv->dtype, v, i);
        }
    }
    for (uint32_t i = 0; i < kv->dim_v; i++) out[i] = total == 0 ? 0 : out[i] / total;
}

static void attention(const hl_attention *a, uint32_t kv_head, uint32_t head0, uint32_t n_heads, uint32_t tok0, uint32_t n_tok, float *scratch)
{
    for (uint32_t t = tok0; t < tok0 + n_tok; t++)
        for (uint32_t h = head0; h < head0 + n_heads; h++) {
            const size_t at = (size_t)t * a->n_heads + h;
            const uint32_t p = a->pos0 + t;
            attend(a, kv_head, a->q + at * a->kv->dim_k, a->window && p + 1 > a->window ? p + 1 - a->window : 0, p + 1, a->out + at * a->kv->dim_v, scratch);
        }
}

static size_t attention_scratch(uint32_t dim_k, uint32_t dim_v) { (void)dim_v; return KV_TILE + dim_k + 16; }

/* ---- probes ---- */

static double probe_int8(uint64_t rounds)
{
    volatile int32_t sink;
    int32_t acc[16] = { 0 };
    int8_t a[64], b[64];
    for (int i = 0; i < 64; i++) { a[i] = (int8_t)i; b[i] = (int8_t)(64 - i); }
    for (uint64_t r = 0; r < rounds; r++) {
        for (int i = 0; i < 64; i++) acc[i % 16] = (int32_t)((uint32_t)acc[i % 16] + (uint32_t)(a[i] * b[i]));
        __asm__ volatile("" : : "r"(a), "r"(b) : "memory");
    }
    for (int i = 1; i < 16; i++) acc[0] = (int32_t)((uint32_t)acc[0] + (uint32_t)acc[i]);
    sink = acc[0];
    (void)sink;
    return 128.0 * (double)rounds;
}

static uint64_t probe_read(const void *data, size_t bytes, uint32_t streams)
{
    uint32_t n = streams ? streams : 1;
    size_t each = bytes / n / 8;
    uint64_t sum = 0;
    for (size_t i = 0; i < each; i++)
        for (uint32_t s = 0; s < n; s++) sum += load_u64((const uint8_t *)data + (s * each + i) * 8);
    return sum;
}

static int supported(void) { return 1; }

const hl_cpu_kernels hl_kern_scalar = {
    .isa = "scalar", .supported = supported, .quantize = quantize, .side_by_side = side_by_side, .matmul_q8 = matmul_q8, .matmul_f32 = matmul_f32, .matmul_half = matmul_half,
    .matmul_scratch = matmul_scratch, .axpy = axpy, .rms_norm = rms_norm, .layer_norm = layer_norm, .ffn_act = ffn_act, .rope = rope,
    .softcap = softcap, .kv_store = kv_store, .attention = attention, .attention_scratch = attention_scratch,
    .probe_int8 = probe_int8, .probe_read = probe_read,
};
