/* kern_avx512.c: the tables for AVX-512 F, BW, VL, DQ and VNNI, without and with BF16: the vector operations that kern_float.h, kern_packed.h and
 * kern_half.h are written in.
 *
 * A vector of integers is a byte quadruple of each of 16 rows.  vpdpbusd multiplies unsigned weights by signed activations without saturating,
 * so 8-bit weights are made unsigned by adding 128.
 */
#include <immintrin.h>
#include <stdint.h>

#define PAIRS 1
enum { VW = 16, TILE_TOK = 4, G = 16, BIAS = 128, ATT_R = 6, LANES = 8, HALF_T = 8 };

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vs __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef float f4 __attribute__((vector_size(16)));
typedef __m512i vi;

static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline __mmask16 part_mask(uint32_t n) { return (__mmask16)((1u << n) - 1); }
static inline vf vf_load_part(const void *p, uint32_t n) { return _mm512_maskz_loadu_ps(part_mask(n), p); }
static inline void vf_store_part(void *p, vf v, uint32_t n) { _mm512_mask_storeu_ps(p, part_mask(n), v); }
static inline vf vf_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline vf vf_load_f16_part(const void *p, uint32_t n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(part_mask(n), p)); }
static inline vf vf_load_bf16(const void *p) { return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16); }
static inline vf vf_load_i8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
static inline float f16_f32(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }

static inline void vf_store_f16_part(void *p, vf v, uint32_t n)
{
    _mm256_mask_storeu_epi16(p, part_mask(n), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

static inline vf pick_even(vf a, vf b) { return _mm512_shuffle_ps(a, b, 0x88); }
static inline vf pick_odd(vf a, vf b) { return _mm512_shuffle_ps(a, b, 0xDD); }

/* sums over the low and the high 256 bits of each */
static inline void sum_halves(vf a, vf b, vf c, vf d, f4 out[2])
{
    vf p = pick_even(a, b) + pick_odd(a, b), q = pick_even(c, d) + pick_odd(c, d), s = pick_even(p, q) + pick_odd(p, q);
    out[0] = _mm_add_ps(_mm512_castps512_ps128(s), _mm512_extractf32x4_ps(s, 1));
    out[1] = _mm_add_ps(_mm512_extractf32x4_ps(s, 2), _mm512_extractf32x4_ps(s, 3));
}

static inline f4 vf_sum4(vf a, vf b, vf c, vf d)
{
    f4 s[2];
    sum_halves(a, b, c, d, s);
    return s[0] + s[1];
}

static inline float vf_most(vf v)
{
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

#include "kern_float.h"

/* ---- packed weights ---- */

static inline vi zero(void) { return _mm512_setzero_si512(); }
static inline vi pk_load(const void *p) { return _mm512_load_si512(p); }
static inline void pk_store(void *p, vi v) { _mm512_store_si512(p, v); }
static inline vi pk_zero(void) { return zero(); }
static inline vi pk_set(int32_t x) { return _mm512_set1_epi32(x); }
static inline vi pk_add32(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi pk_sra(vi v, int n) { return _mm512_sra_epi32(v, _mm_cvtsi32_si128(n)); }
static inline vi pk_bytes(int b) { return _mm512_set1_epi8((char)b); }
static inline vi pk_and(vi a, vi b) { return _mm512_and_si512(a, b); }
static inline vi pk_or(vi a, vi b) { return _mm512_or_si512(a, b); }
static inline vi pk_srl(vi v, int n) { return _mm512_srli_epi16(v, (unsigned)n); }
static inline vi pk_sll(vi v, int n) { return _mm512_slli_epi16(v, (unsigned)n); }
static inline vi pk_wide(vi v) { return _mm512_xor_si512(v, _mm512_set1_epi8((char)BIAS)); }
static inline vi pk_table_16(const int8_t t[16]) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)t)); }
static inline vi pk_shuffle(vi t, vi i) { return _mm512_shuffle_epi8(t, i); }
static inline vf pk_f(vi v) { return _mm512_cvtepi32_ps(v); }
static inline vf pk_setf(float f) { return _mm512_set1_ps(f); }
static inline vf pk_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline vi pk_u32(const void *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
static inline vf pk_i8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }

/* 16 bytes of rows k, k + 4, k + 8, k + 12 */
static inline vi four_rows(const uint8_t *const *rows, size_t at, int k)
{
    vi v = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)(rows[k] + at)));
    v = _mm512_mask_broadcast_i32x4(v, 0x00F0, _mm_loadu_si128((const __m128i *)(const void *)(rows[k + 4] + at)));
    v = _mm512_mask_broadcast_i32x4(v, 0x0F00, _mm_loadu_si128((const __m128i *)(const void *)(rows[k + 8] + at)));
    return _mm512_mask_broadcast_i32x4(v, 0xF000, _mm_loadu_si128((const __m128i *)(const void *)(rows[k + 12] + at)));
}

static inline void pk_rows_4(uint8_t *to, const uint8_t *const *rows, size_t at)
{
    vi a = four_rows(rows, at, 0), b = four_rows(rows, at, 1), c = four_rows(rows, at, 2), d = four_rows(rows, at, 3);
    vi ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    pk_store(to, _mm512_unpacklo_epi64(ab, cd));
    pk_store(to + 64, _mm512_unpackhi_epi64(ab, cd));
    ab = _mm512_unpackhi_epi32(a, b), cd = _mm512_unpackhi_epi32(c, d);
    pk_store(to + 128, _mm512_unpacklo_epi64(ab, cd));
    pk_store(to + 192, _mm512_unpackhi_epi64(ab, cd));
}

/* 4 bytes of every row */
static inline vi all_rows(const uint8_t *const *rows, size_t at)
{
    __m128i v[4];
    UNROLL for (int k = 0; k < 4; k++) {
        v[k] = _mm_cvtsi32_si128((int)load_u32(rows[4 * k] + at));
        v[k] = _mm_insert_epi32(v[k], (int)load_u32(rows[4 * k + 1] + at), 1);
        v[k] = _mm_insert_epi32(v[k], (int)load_u32(rows[4 * k + 2] + at), 2);
        v[k] = _mm_insert_epi32(v[k], (int)load_u32(rows[4 * k + 3] + at), 3);
    }
    __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(v[0]), v[1], 1), high = _mm256_inserti128_si256(_mm256_castsi128_si256(v[2]), v[3], 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

static inline void pk_rows_1(uint8_t *to, const uint8_t *const *rows, size_t at)
{
    const vi within = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    pk_store(to, _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), _mm512_shuffle_epi8(all_rows(rows, at), within)));
}

static inline void pk_rows_2(uint8_t *to, const uint8_t *const *rows, size_t at)
{
    vi v = all_rows(rows, at);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi32_epi16(v));
    _mm256_storeu_si256((__m256i *)(void *)(to + 32), _mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16)));
}

static inline vi pk_u8_pairs(const void *a, const void *b)
{
    return pk_or(pk_u32(a), _mm512_slli_epi32(pk_u32(b), 16));
}
static inline vi pk_dot16(vi sum, vi w, vi x) { return _mm512_dpwssd_epi32(sum, w, x); }

/* vpdpbusd does not saturate */
static inline vi pk_dot(vi sum, vi w, vi x) { return _mm512_dpbusd_epi32(sum, w, x); }

#include "kern_dots.h"

#include "kern_packed.h"

static inline void pk_halves(uint8_t *a, uint8_t *b, vi v)
{
    uint16_t order[32];
    for (uint16_t i = 0; i < 32; i++) order[i] = (uint16_t)(i % 16 * 2 + i / 16);
    v = _mm512_permutexvar_epi16(_mm512_loadu_si512(order), v);
    _mm256_store_si256((__m256i *)(void *)a, _mm512_castsi512_si256(v));
    _mm256_store_si256((__m256i *)(void *)b, _mm512_extracti64x4_epi64(v, 1));
}

#define HALF_TILES(TARGET, name, ...)                                                                                                            \
    HALF_TILE(TARGET, name, 1, __VA_ARGS__) HALF_TILE(TARGET, name, 2, __VA_ARGS__) HALF_TILE(TARGET, name, 3, __VA_ARGS__)                      \
    HALF_TILE(TARGET, name, 4, __VA_ARGS__) HALF_TILE(TARGET, name, 5, __VA_ARGS__) HALF_TILE(TARGET, name, 6, __VA_ARGS__)                      \
    HALF_TILE(TARGET, name, 7, __VA_ARGS__) HALF_TILE(TARGET, name, 8, __VA_ARGS__)
#define HALF_TILE_NAMES(name) half_##name##_1, half_##name##_2, half_##name##_3, half_##name##_4, half_##name##_5, half_##name##_6, half_##name##_7, half_##name##_8

#include "kern_half.h"
#include "kern_x86.h"
/* A nibble picks its number: vpermps looks at the low 4 bits of a lane only. */
#define SP_NIBBLES
static inline __attribute__((always_inline)) void sp_nibbles(vf to[2], const uint8_t *qs)
{
    const vf numbers = { -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7 };
    const __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)qs));
    to[0] = _mm512_permutexvar_ps(v, numbers);
    to[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(v, 4), numbers);
}

#include "kern_sparse.h"

static double probe_int8(uint64_t rounds)
{
    vi acc[12], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(1);
    UNROLL for (int k = 0; k < 12; k++) acc[k] = zero();
    for (uint64_t r = 0; r < rounds; r++)
        UNROLL for (int k = 0; k < 12; k++) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(acc[k]) : "v"(a), "v"(b));
    return (double)rounds * 12 * 128;
}

static inline __attribute__((always_inline)) uint64_t read_streams(const uint8_t *p, size_t each, const size_t n)
{
    __m512i acc[8][2], sum = zero();
    UNROLL for (size_t s = 0; s < n; s++) acc[s][0] = acc[s][1] = zero();
    for (size_t i = 0; i + 128 <= each; i += 128)
        UNROLL for (size_t s = 0; s < n; s++) {
            acc[s][0] = _mm512_add_epi64(acc[s][0], _mm512_loadu_si512(p + s * each + i));
            acc[s][1] = _mm512_add_epi64(acc[s][1], _mm512_loadu_si512(p + s * each + i + 64));
        }
    UNROLL for (size_t s = 0; s < n; s++) sum = _mm512_add_epi64(sum, _mm512_add_epi64(acc[s][0], acc[s][1]));
    uint64_t lane[8], total = 0;                       /* wraps: unsigned */
    _mm512_storeu_si512(lane, sum);
    for (int i = 0; i < 8; i++) total += lane[i];
    return total;
}

static uint64_t probe_read(const void *data, size_t bytes, uint32_t streams)
{
    size_t n = streams >= 8 ? 8 : streams >= 4 ? 4 : streams >= 2 ? 2 : 1, each = bytes / n / 128 * 128;
    if (n == 8) return read_streams(data, each, 8);
    if (n == 4) return read_streams(data, each, 4);
    return n == 2 ? read_streams(data, each, 2) : read_streams(data, each, 1);
}

/* ---- BF16 weights by vpdpbf16ps ---- */

/* What the weights meet is rounded to BF16: an eighth of the squared error that 8-bit activations make, at twice the rate of f32.  F16 weights
 * would have to be two BF16 numbers each for that (11 bits), which takes as long as f32 does and is less exact. */
#define BF16_TARGET __attribute__((target("avx512bf16")))

static inline __attribute__((always_inline)) BF16_TARGET void bf16_step(const uint32_t dtype, vf acc[HALF_V][HALF_T], const uint8_t *w, const uint8_t *x, size_t x_step,
                                                                        const uint32_t n_t)
{
    const vi u[HALF_V] = { pk_load(w), pk_load(w + 64) };
    (void)dtype;
    UNROLL for (uint32_t t = 0; t < n_t; t++) {
        const vi pair = pk_set((int32_t)load_u32(x + t * x_step));
        UNROLL for (uint32_t v = 0; v < HALF_V; v++) acc[v][t] = _mm512_dpbf16_ps(acc[v][t], (__m512bh)u[v], (__m512bh)pair);
    }
}

static BF16_TARGET void bf16_round(void *to, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 32) {
        const __m512bh v = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i));
        memcpy((uint8_t *)to + (size_t)i * 2, &v, sizeof v);
    }
}

HALF_WAY(BF16_TARGET, bf16_dots, HL_BF16, HL_HALF_ROWS * 4, 4, bf16_step)
static const half_kind half_kind_bf16_dots = { HL_BF16, 2, bf16_round, half_bf16_dots, NULL };

static void matmul_half_bf16(uint32_t dtype, bool packed, bool fine, float *restrict y, size_t stride, const uint8_t *restrict w, size_t row_bytes, uint32_t n_rows,
                             uint32_t cols, const float *restrict x, uint32_t n_tok, float *restrict scratch)
{
    if (dtype == HL_F16 || fine) matmul_half(dtype, packed, fine, y, stride, w, row_bytes, n_rows, cols, x, n_tok, scratch);
    else half_any(&half_kind_bf16_dots, (half_call){ y, stride, w, row_bytes, n_rows, cols, packed }, x, n_tok, (uint8_t *)scratch);
}

#define TABLE(name, is_supported, half, dots)                                                                                                   \
    { .isa = name, .supported = is_supported, .group = G, .pack = pack_any, .quantize = quantize, .side_by_side = side_by_side, .matmul_q8 = matmul_q8, .matmul_f32 = matmul_f32, \
      .matmul_half = half, .bf16_dots = dots, .matmul_scratch = scratch_floats, .axpy = axpy, .gather = gather, .rms_norm = rms_norm, .layer_norm = layer_norm, .ffn_act = ffn_act, \
      .rope = rope, .softcap = softcap, .kv_store = kv_store, .attention = attention, .attention_scratch = attention_scratch,                    \
      .probe_int8 = probe_int8, .probe_read = probe_read }
const hl_cpu_kernels hl_kern_avx512 = TABLE("avx512", hl_cpu_has_avx512, matmul_half, false);
const hl_cpu_kernels hl_kern_avx512_bf16 = TABLE("avx512bf16", hl_cpu_has_avx512_bf16, matmul_half_bf16, true);
