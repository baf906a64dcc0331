/* kern_neon.c: the tables for arm64: baseline NEON, and the same with the dot-product extension (ARMv8.2 sdot).
 *
 * A row is unpacked once into signed bytes with scales and offsets, in scratch, and then multiplied by all tokens, however many there
 * are: one order of sums.  Four lanes keep four partial sums of each group; they are added at the row's end.
 */
#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>

enum { VW = 4, TILE_TOK = 4 };

typedef float32x4_t vf;
typedef int32x4_t vs;
typedef uint32x4_t vu;
typedef float32x4_t f4;

static inline vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf vf_load_f16(const void *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline vf vf_load_bf16(const void *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
static inline float f16_f32(uint16_t h) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0); }

static inline vf vf_load_part(const void *p, uint32_t n)
{
    float part[4] = { 0 };
    __builtin_memcpy(part, p, n * 4);
    return vld1q_f32(part);
}

static inline void vf_store_part(void *p, vf v, uint32_t n)
{
    float part[4];
    vst1q_f32(part, v);
    __builtin_memcpy(p, part, n * 4);
}

static inline vf vf_load_f16_part(const void *p, uint32_t n)
{
    uint16_t part[4] = { 0 };
    __builtin_memcpy(part, p, n * 2);
    return vf_load_f16(part);
}

static inline void vf_store_f16_part(void *p, vf v, uint32_t n)
{
    uint16x4_t h = vreinterpret_u16_f16(vcvt_f16_f32(v));
    __builtin_memcpy(p, &h, n * 2);
}

static inline vf vf_load_i8(const void *p)
{
    uint32_t four;
    __builtin_memcpy(&four, p, 4);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four))))));
}

static inline f4 vf_sum4(vf a, vf b, vf c, vf d) { return vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)); }

#include "kern_float.h"
#include "kern_plain.h"

/* ---- quantised weights ---- */

/* What is left of 32 weights besides their bytes. */
typedef struct group_scales { float scale[2], offset[2]; } group_scales;

static inline int32x4_t dot_16(int8x16_t a, int8x16_t b, bool sdot)
{
    if (sdot) {
        int32x4_t sum = vdupq_n_s32(0);
        __asm__(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(b));
        return sum;
    }
    /* two products of at most 128 * 127 fit in 16 bits */
    return vpaddlq_s16(vmlal_s8(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vget_high_s8(a), vget_high_s8(b)));
}

static inline __attribute__((always_inline)) float dot_row(const int8_t *w, const group_scales *s, const hl_q8_unit *a, uint32_t n_groups, bool sdot)
{
    vf acc = vdupq_n_f32(0);
    float offsets = 0;
    for (uint32_t ig = 0; ig < n_groups; ig++, w += 32, s++) {
        const hl_q8_unit *u = a + ig / 8;
        const int8_t *q = u->q + ig % 8 * 32;
        vf low = vcvtq_f32_s32(dot_16(vld1q_s8(w), vld1q_s8(q), sdot)), high = vcvtq_f32_s32(dot_16(vld1q_s8(w + 16), vld1q_s8(q + 16), sdot));
        vf part = vfmaq_n_f32(vmulq_n_f32(low, s->scale[0]), high, s->scale[1]);
        acc = vfmaq_n_f32(acc, part, u->d[ig % 8]);
        offsets += s->offset[0] * u->sum[0][ig % 8] + s->offset[1] * u->sum[1][ig % 8];
    }
    return vaddvq_f32(acc) + offsets;
}

static inline __attribute__((always_inline)) void matmul_any(uint32_t dtype, float *y, size_t stride, const uint8_t *w, size_t row_bytes, uint32_t n_rows,
                                                             uint32_t cols, const void *act, uint32_t n_tok, float *scratch, bool sdot)
{
    uint32_t n_groups = cols / 32;
    int8_t *q = (int8_t *)scratch;
    group_scales *s = (group_scales *)(void *)(q + cols);
    for (uint32_t ir = 0; ir < n_rows; ir++) {
        for (uint32_t ig = 0; ig < n_groups; ig++) {
            group g;
            unpack_group(dtype, w + ir * row_bytes, ig, &g);
            memcpy(q + (size_t)ig * 32, g.q, 32);
            s[ig] = (group_scales){ { g.scale[0], g.scale[1] }, { g.offset[0], g.offset[1] } };
        }
        for (uint32_t it = 0; it < n_tok; it++) y[it * stride + ir] = dot_row(q, s, hl_q8_row_at((void *)(uintptr_t)act, cols, it), n_groups, sdot);
    }
}

static void matmul_q8(uint32_t dtype, float *restrict y, size_t stride, const uint8_t *restrict w, size_t row_bytes, uint32_t n_rows,
                      uint32_t cols, const void *act, uint32_t n_tok, float *restrict scratch)
{
    matmul_any(dtype, y, stride, w, row_bytes, n_rows, cols, act, n_tok, scratch, false);
}

static void matmul_q8_sdot(uint32_t dtype, float *restrict y, size_t stride, const uint8_t *restrict w, size_t row_bytes, uint32_t n_rows,
                           uint32_t cols, const void *act, uint32_t n_tok, float *restrict scratch)
{
    matmul_any(dtype, y, stride, w, row_bytes, n_rows, cols, act, n_tok, scratch, true);
}

static size_t matmul_scratch(uint32_t cols) { return (size_t)cols * 4; }                 /* 4 rows as floats; bytes and scales need less */

static void quantize(hl_q8_unit *out, const float *restrict x, uint32_t n) { quantize_row(out, x, n); }

/* ---- probes ---- */

static inline __attribute__((always_inline)) double probe_any(uint64_t rounds, bool sdot)
{
    int32x4_t acc[8];
    int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(1);
    UNROLL for (int k = 0; k < 8; k++) acc[k] = vdupq_n_s32(0);
    for (uint64_t r = 0; r < rounds; r++) {
        UNROLL for (int k = 0; k < 8; k++) {
            __asm__ volatile("" : "+w"(a), "+w"(acc[k]));                                  /* not to be computed once for all */
            acc[k] = vaddq_s32(acc[k], dot_16(a, b, sdot));
        }
    }
    UNROLL for (int k = 0; k < 8; k++) __asm__ volatile("" : : "w"(acc[k]));
    return (double)rounds * 8 * 32;
}

static double probe_int8(uint64_t rounds) { return probe_any(rounds, false); }
static double probe_int8_sdot(uint64_t rounds) { return probe_any(rounds, true); }

static inline __attribute__((always_inline)) uint64_t read_streams(const uint8_t *p, size_t each, const size_t n)
{
    uint64x2_t acc[8][2], sum = vdupq_n_u64(0);
    UNROLL for (size_t s = 0; s < n; s++) acc[s][0] = acc[s][1] = vdupq_n_u64(0);
    for (size_t i = 0; i + 32 <= each; i += 32)
        UNROLL for (size_t s = 0; s < n; s++) {
            acc[s][0] = vaddq_u64(acc[s][0], vreinterpretq_u64_u8(vld1q_u8(p + s * each + i)));
            acc[s][1] = vaddq_u64(acc[s][1], vreinterpretq_u64_u8(vld1q_u8(p + s * each + i + 16)));
        }
    UNROLL for (size_t s = 0; s < n; s++) sum = vaddq_u64(sum, vaddq_u64(acc[s][0], acc[s][1]));
    return vgetq_lane_u64(sum, 0) + vgetq_lane_u64(sum, 1);
}

static uint64_t probe_read(const void *data, size_t bytes, uint32_t streams)
{
    size_t n = streams >= 8 ? 8 : streams >= 4 ? 4 : streams >= 2 ? 2 : 1, each = bytes / n / 64 * 64;
    if (n == 8) return read_streams(data, each, 8);
    if (n == 4) return read_streams(data, each, 4);
    return n == 2 ? read_streams(data, each, 2) : read_streams(data, each, 1);
}

const hl_cpu_kernels hl_kern_neon = {
    .isa = "neon", .supported = hl_cpu_has_neon, .quantize = quantize, .matmul_q8 = matmul_q8, .matmul_f32 = matmul_f32,
    .matmul_scratch = matmul_scratch, .rms_norm = rms_norm, .layer_norm = layer_norm, .ffn_act = ffn_act, .rope = rope,
    .softcap = softcap, .kv_store = kv_store, .attention = attention, .attention_scratch = attention_scratch,
    .probe_int8 = probe_int8, .probe_read = probe_read,
};

const hl_cpu_kernels hl_kern_neon_dotprod = {
    .isa = "dotprod", .supported = hl_cpu_has_dotprod, .quantize = quantize, .matmul_q8 = matmul_q8_sdot, .matmul_f32 = matmul_f32,
    .matmul_scratch = matmul_scratch, .rms_norm = rms_norm, .layer_norm = layer_norm, .ffn_act = ffn_act, .rope = rope,
    .softcap = softcap, .kv_store = kv_store, .attention = attention, .attention_scratch = attention_scratch,
    .probe_int8 = probe_int8_sdot, .probe_read = probe_read,
};
