/* kern_common.h: what the kernel files share in plain C: scale bytes of the 256-blocks, the rule for 8-bit scales, positions of a ring.
 *
 * Static-inline only (each kernel file is compiled with its own instruction set, and none may lend its code to another).
 * Nothing here is fast by itself; what runs per element is in the tables' own files.
 */
#ifndef HL_KERN_COMMON_H
#define HL_KERN_COMMON_H

#include "cpu/kernels.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* Steps of the grids that quantize tries: q = round(t * step / 2^15) for t = x scaled to a largest |t| of 32512 = 127 * 256. */
enum { Q8_STEP_FIRST = 128, Q8_STEP_BY = 2, Q8_STEPS = 4, Q8_T_MAX = 32512 };
#define Q8_SMALLEST 0x1p-96f                           /* below it Q8_T_MAX / amax might overflow: such a block is zero */

/* In front of a loop of few, constant rounds over vectors, which have to end up in registers.  Not in builds with a sanitizer: its
 * checks are many more instructions, which take minutes to compile when they are repeated. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define HL_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(HL_SANITIZED)
#define UNROLL
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

static inline float bits_f32(uint32_t b) { float f; memcpy(&f, &b, 4); return f; }
static inline uint32_t f32_bits(float f) { uint32_t b; memcpy(&b, &f, 4); return b; }
static inline uint16_t load_u16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline uint32_t load_u32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t load_u64(const void *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline void store_u32(void *p, uint32_t v) { memcpy(p, &v, 4); }

/* One block of `width` tokens, whose rows of units are row_bytes apart. */
static inline void q8_block_of(uint32_t *to, const uint8_t *rows, size_t row_bytes, uint32_t n_units, uint32_t width)
{
    for (uint32_t lane = 0; lane < width; lane++) {
        const hl_q8_unit *u = (const hl_q8_unit *)(const void *)(rows + lane * row_bytes);
        uint32_t *w = to + lane;
        for (uint32_t ib = 0; ib < n_units * 8; ib++, w += HL_Q8_WORDS * width) {
            const hl_q8_unit *x = u + ib / 8;
            const uint32_t g = ib % 8;
            for (uint32_t j = 0; j < 8; j++) memcpy(w + j * width, x->q + 32 * g + 4 * j, 4);
            memcpy(w + 8 * width, &x->d[g], 4);
            for (uint32_t k = 0; k < 3; k++) {
                memcpy(w + (9 + k) * width, &x->sum[k][g], 4);
                memcpy(w + (12 + k) * width, &x->comp[k][g], 4);
            }
            memcpy(w + 15 * width, (const uint8_t *)x + offsetof(hl_q8_unit, sum16) + 4 * g, 4);
        }
    }
}

static inline void q8_block_sums(hl_q8_unit *u, uint32_t ib, float d, const int32_t isum[2])
{
    const int32_t part[3] = { isum[0], isum[1], isum[0] + isum[1] };
    u->d[ib] = d;
    for (int i = 0; i < 3; i++) {
        u->sum[i][ib] = d * (float)part[i];
        u->comp[i][ib] = -128 * part[i];
    }
}

/* After the last block of a unit.  fma and the number that makes units the last place: the same bits in every table. */
static inline void q8_unit_sums(hl_q8_unit *u)
{
    const float to_units = 12582912.0f;                /* 1.5 * 2^23 */
    uint32_t most = 0;
    for (int g = 0; g < 8; g++) most = HL_MAX(most, f32_bits(u->sum[2][g]) & 0x7FFFFFFF);
    const bool finite = most < 0x7F800000;
    const float inverse = finite && most ? 32767.0f / bits_f32(most) : 0;
    for (int g = 0; g < 8; g++) u->sum16[g] = finite ? (int16_t)(f32_bits(__builtin_fmaf(u->sum[2][g], inverse, to_units)) - f32_bits(to_units)) : 0;
    u->step16 = finite ? bits_f32(most) * (1.0f / 32767) : bits_f32(0x7FC00000);
    memset(u->reserved, 0, sizeof u->reserved);
}

static inline float f32_nan(void) { return bits_f32(0x7FC00000); }

/* 2^(e - 128), MXFP4's scale for doubled table values */
static inline float mxfp4_scale(uint8_t e) { return e < 2 ? bits_f32(0x00200000u << e) : bits_f32((uint32_t)(e - 1) << 23); }

/* Q4_K and Q5_K: 8 scales and 8 minimums of 6 bits in 12 bytes. */
static inline void scales_k4(const uint8_t s[12], uint8_t sc[8], uint8_t mn[8])
{
    uint32_t a = load_u32(s), b = load_u32(s + 4), c = load_u32(s + 8);
    store_u32(sc, a & 0x3F3F3F3F);
    store_u32(mn, b & 0x3F3F3F3F);
    store_u32(sc + 4, (c & 0x0F0F0F0F) | (a >> 2 & 0x30303030));
    store_u32(mn + 4, (c >> 4 & 0x0F0F0F0F) | (b >> 2 & 0x30303030));
}

/* Q3_K: 16 scales of 6 bits in 12 bytes, 32 too high. */
static inline void scales_k3(const uint8_t s[12], int8_t sc[16])
{
    uint32_t a = load_u32(s), b = load_u32(s + 4), c = load_u32(s + 8);
    uint8_t u[16];
    store_u32(u, (a & 0x0F0F0F0F) | (c << 4 & 0x30303030));
    store_u32(u + 4, (b & 0x0F0F0F0F) | (c << 2 & 0x30303030));
    store_u32(u + 8, (a >> 4 & 0x0F0F0F0F) | (c & 0x30303030));
    store_u32(u + 12, (b >> 4 & 0x0F0F0F0F) | (c >> 2 & 0x30303030));
    for (int i = 0; i < 16; i++) sc[i] = (int8_t)(u[i] - 32);
}

/* IQ4_XS: 8 scales of 6 bits, 32 too high. */
static inline void scales_iq4_xs(const uint8_t *block, int8_t sc[8])
{
    uint32_t high = load_u16(block + 2), low = load_u32(block + 4);
    for (int g = 0; g < 8; g++) sc[g] = (int8_t)((int)((low >> 4 * g & 15) | (high >> 2 * g & 3) << 4) - 32);
}

#endif
