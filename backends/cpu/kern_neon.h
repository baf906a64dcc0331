/* kern_neon.h: the tables for arm64, in the operations that kern_float.h and kern_packed.h are written in.
 *
 * The including file defines NEON_NAME, NEON_SUPPORTED, NEON_TABLE, NEON_SMMLA where tiles are to use that, and four_products(sum, w, x): sum += the
 * products of the bytes of each 32-bit lane.  Bytes are signed on both sides, so that 8-bit weights need no offset.
 */
#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>

#define PAIRS 0
enum { VW = 4, TILE_TOK = 4, ATT_R = 4, G = 4, BIAS = 0, LANES = 8, HALF_T = 3 };

typedef float32x4_t vf;
typedef int32x4_t vs;
typedef uint32x4_t vu;
typedef float32x4_t f4;
typedef int32x4_t vi;

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

static inline float vf_most(vf v) { return vmaxvq_f32(v); }

#include "kern_float.h"
#include "kern_plain.h"

/* ---- packed weights ---- */

static inline vi four_products(vi sum, vi w, vi x);    /* the including file's */

static inline vi pk_load(const void *p) { return vld1q_s32((const int32_t *)p); }
static inline void pk_store(void *p, vi v) { vst1q_s32((int32_t *)p, v); }
static inline vi pk_zero(void) { return vdupq_n_s32(0); }
static inline vi pk_set(int32_t x) { return vdupq_n_s32(x); }
static inline vi pk_add32(vi a, vi b) { return vaddq_s32(a, b); }
static inline vi pk_sra(vi v, int n) { return vshlq_s32(v, vdupq_n_s32(-n)); }
static inline vi pk_bytes(int b) { return (vi)vdupq_n_s8((int8_t)b); }
static inline vi pk_and(vi a, vi b) { return vandq_s32(a, b); }
static inline vi pk_or(vi a, vi b) { return vorrq_s32(a, b); }
static inline vi pk_srl(vi v, int n) { return (vi)vshlq_u8((uint8x16_t)v, vdupq_n_s8((int8_t)-n)); }
static inline vi pk_sll(vi v, int n) { return (vi)vshlq_u8((uint8x16_t)v, vdupq_n_s8((int8_t)n)); }
static inline vi pk_wide(vi v) { return v; }
static inline vi pk_table_16(const int8_t t[16]) { return (vi)vld1q_s8(t); }
static inline vi pk_shuffle(vi t, vi i) { return (vi)vqtbl1q_u8((uint8x16_t)t, (uint8x16_t)i); }
static inline vf pk_f(vi v) { return vcvtq_f32_s32(v); }
static inline vf pk_setf(float f) { return vdupq_n_f32(f); }
static inline vf pk_f16(const void *p) { return vf_load_f16(p); }
static inline vf pk_i8(const void *p) { return vf_load_i8(p); }

static inline vi pk_u32(const void *p)
{
    uint32_t four;
    __builtin_memcpy(&four, p, 4);
    return (vi)vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)))));
}

static inline void pk_rows_4(uint8_t *to, const uint8_t *const *rows, size_t at)
{
    int32x4x2_t a = vtrnq_s32((vi)vld1q_u8(rows[0] + at), (vi)vld1q_u8(rows[1] + at)), b = vtrnq_s32((vi)vld1q_u8(rows[2] + at), (vi)vld1q_u8(rows[3] + at));
    pk_store(to, vcombine_s32(vget_low_s32(a.val[0]), vget_low_s32(b.val[0])));
    pk_store(to + 16, vcombine_s32(vget_low_s32(a.val[1]), vget_low_s32(b.val[1])));
    pk_store(to + 32, vcombine_s32(vget_high_s32(a.val[0]), vget_high_s32(b.val[0])));
    pk_store(to + 48, vcombine_s32(vget_high_s32(a.val[1]), vget_high_s32(b.val[1])));
}

static inline uint8x16_t all_rows(const uint8_t *const *rows, size_t at, const uint8_t order[16])      /* 4 bytes of every row, reordered */
{
    uint8_t v[16];
    for (int r = 0; r < 4; r++) __builtin_memcpy(v + 4 * r, rows[r] + at, 4);
    return vqtbl1q_u8(vld1q_u8(v), vld1q_u8(order));
}

static inline void pk_rows_1(uint8_t *to, const uint8_t *const *rows, size_t at)
{
    static const uint8_t order[16] = { 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15 };
    vst1q_u8(to, all_rows(rows, at, order));
}

static inline void pk_rows_2(uint8_t *to, const uint8_t *const *rows, size_t at)
{
    static const uint8_t order[16] = { 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15 };
    vst1q_u8(to, all_rows(rows, at, order));
}

static inline vi pk_dot(vi sum, vi w, vi x) { return four_products(sum, w, x); }

#ifdef NEON_SMMLA
#include "kern_smmla.h"
#else
#include "kern_dots.h"
static inline vi probe_products(vi sum, vi a, vi b) { return four_products(sum, a, b); }
enum { PROBE_OPS = 32 };
#endif

#include "kern_packed.h"

static inline void pk_halves(uint8_t *a, uint8_t *b, vi v)
{
    vst1_u16((uint16_t *)(void *)a, vmovn_u32((uint32x4_t)v));
    vst1_u16((uint16_t *)(void *)b, vshrn_n_u32((uint32x4_t)v, 16));
}

#define HALF_TILES(TARGET, name, ...) HALF_TILE(TARGET, name, 1, __VA_ARGS__) HALF_TILE(TARGET, name, 2, __VA_ARGS__) HALF_TILE(TARGET, name, 3, __VA_ARGS__)
#define HALF_TILE_NAMES(name) half_##name##_1, half_##name##_2, half_##name##_3

#include "kern_half.h"
#include "kern_sparse.h"

static void quantize(hl_q8_unit *out, const float *restrict x, uint32_t n) { quantize_row(out, x, n); }
static void side_by_side(void *to, const hl_q8_unit *rows, uint32_t n, uint32_t n_tok) { side_by_side_plain(to, rows, n, n_tok); }

/* ---- probes ---- */

static double probe_int8(uint64_t rounds)
{
    vi acc[8], a = (vi)vdupq_n_s8(3), b = (vi)vdupq_n_s8(1);
    UNROLL for (int k = 0; k < 8; k++) acc[k] = vdupq_n_s32(0);
    for (uint64_t r = 0; r < rounds; r++) {
        UNROLL for (int k = 0; k < 8; k++) {
            __asm__ volatile("" : "+w"(a), "+w"(acc[k]));                                  /* not to be computed once for all */
            acc[k] = probe_products(acc[k], a, b);
        }
    }
    UNROLL for (int k = 0; k < 8; k++) __asm__ volatile("" : : "w"(acc[k]));
    return (double)rounds * 8 * PROBE_OPS;
}

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

const hl_cpu_kernels NEON_TABLE = {
    .isa = NEON_NAME, .supported = NEON_SUPPORTED, .group = G, .pack = pack_any, .quantize = quantize, .side_by_side = side_by_side, .matmul_q8 = matmul_q8, .matmul_f32 = matmul_f32,
    .matmul_half = matmul_half, .matmul_scratch = scratch_floats, .axpy = axpy, .gather = gather, .rms_norm = rms_norm, .layer_norm = layer_norm, .ffn_act = ffn_act, .rope = rope,
    .softcap = softcap, .kv_store = kv_store, .attention = attention, .attention_scratch = attention_scratch,
    .probe_int8 = probe_int8, .probe_read = probe_read,
};
