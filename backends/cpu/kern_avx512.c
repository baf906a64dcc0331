/* kern_avx512.c: the table for AVX-512 F, BW, VL, DQ and VNNI: the vector operations that kern_float.h and kern_packed.h are written in.
 *
 * A vector of integers is a byte quadruple of each of 16 rows.  vpdpbusd multiplies unsigned weights by signed activations without saturating,
 * so 8-bit weights are made unsigned by adding 128.
 */
#include <immintrin.h>
#include <stdint.h>

enum { VW = 16, TILE_TOK = 4, G = 16, BIAS = 128, ATT_R = 6, LANES = 8 };

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
static inline vf pk_u8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p))); }
static inline vf pk_i8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }

/* 16 bytes of rows k, k + 4, k + 8, k + 12 */
static inline vi four_rows(const uint8_t *const *rows, size_t at, int k)
{
    vi v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)(rows[k] + at)));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(const void *)(rows[k + 4] + at)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(const void *)(rows[k + 8] + at)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(const void *)(rows[k + 12] + at)), 3);
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

/* vpdpbusd does not saturate */
static inline vi pk_dot(vi sum, vi w, vi x) { return _mm512_dpbusd_epi32(sum, w, x); }

#include "kern_dots.h"

#include "kern_packed.h"
#include "kern_x86.h"

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

const hl_cpu_kernels hl_kern_avx512 = {
    .isa = "avx512", .supported = hl_cpu_has_avx512, .group = G, .pack = pack, .quantize = quantize, .side_by_side = side_by_side, .matmul_q8 = matmul_q8, .matmul_f32 = matmul_f32,
    .matmul_scratch = matmul_scratch, .rms_norm = rms_norm, .layer_norm = layer_norm, .ffn_act = ffn_act, .rope = rope,
    .softcap = softcap, .kv_store = kv_store, .attention = attention, .attention_scratch = attention_scratch,
    .probe_int8 = probe_int8, .probe_read = probe_read,
};
