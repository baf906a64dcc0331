/* kern_avx2.h: 256-bit vectors: the operations that kern_float.h, kern_packed.h and kern_half.h are written in, and what is made of them, for the
 * tables of AVX2 with FMA and F16C.
 *
 * The including file defines BIAS; then what its dot product makes different (see kern_packed.h): pk_wide, pk_dots, probe_int8;
 * then AVX2_NAME, AVX2_SUPPORTED and AVX2_TABLE, and includes kern_avx2_table.h.
 */
#include <immintrin.h>
#include <stdint.h>

#define PAIRS 1
enum { VW = 8, TILE_TOK = 3, G = 8, ATT_R = 2, LANES = 4, HALF_T = 3 };

typedef float vf __attribute__((vector_size(32)));
typedef int32_t vs __attribute__((vector_size(32)));
typedef uint32_t vu __attribute__((vector_size(32)));
typedef float f4 __attribute__((vector_size(16)));
typedef __m256i vi;

static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }

static inline __m256i part_mask(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf vf_load_part(const void *p, uint32_t n) { return _mm256_maskload_ps((const float *)p, part_mask(n)); }
static inline void vf_store_part(void *p, vf v, uint32_t n) { _mm256_maskstore_ps((float *)p, part_mask(n), v); }
static inline vf vf_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline vf vf_load_bf16(const void *p) { return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16); }
static inline vf vf_load_i8(const void *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
static inline float f16_f32(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }

static inline vf vf_load_f16_part(const void *p, uint32_t n)
{
    uint16_t part[8] = { 0 };
    __builtin_memcpy(part, p, n * 2);
    return vf_load_f16(part);
}

static inline void vf_store_f16_part(void *p, vf v, uint32_t n)
{
    __m128i h = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
    __builtin_memcpy(p, &h, n * 2);
}

static inline vf pick_even(vf a, vf b) { return _mm256_shuffle_ps(a, b, 0x88); }
static inline vf pick_odd(vf a, vf b) { return _mm256_shuffle_ps(a, b, 0xDD); }

static inline f4 vf_sum4(vf a, vf b, vf c, vf d)
{
    vf p = pick_even(a, b) + pick_odd(a, b), q = pick_even(c, d) + pick_odd(c, d), s = pick_even(p, q) + pick_odd(p, q);
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

static inline float vf_most(vf v)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

#include "kern_float.h"

/* ---- packed weights ---- */

static inline vi zero(void) { return _mm256_setzero_si256(); }
static inline vi pk_load(const void *p) { return _mm256_load_si256((const __m256i *)p); }
static inline void pk_store(void *p, vi v) { _mm256_store_si256((__m256i *)p, v); }
static inline vi pk_zero(void) { return zero(); }
static inline vi pk_set(int32_t x) { return _mm256_set1_epi32(x); }
static inline vi pk_add32(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vi pk_sra(vi v, int n) { return _mm256_sra_epi32(v, _mm_cvtsi32_si128(n)); }
static inline vi pk_bytes(int b) { return _mm256_set1_epi8((char)b); }
static inline vi pk_and(vi a, vi b) { return _mm256_and_si256(a, b); }
static inline vi pk_or(vi a, vi b) { return _mm256_or_si256(a, b); }
static inline vi pk_srl(vi v, int n) { return _mm256_srli_epi16(v, n); }
static inline vi pk_sll(vi v, int n) { return _mm256_slli_epi16(v, n); }
static inline vi pk_table_16(const int8_t t[16]) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)t)); }
static inline vi pk_shuffle(vi t, vi i) { return _mm256_shuffle_epi8(t, i); }
static inline vf pk_f(vi v) { return _mm256_cvtepi32_ps(v); }
static inline vf pk_setf(float f) { return _mm256_set1_ps(f); }
static inline vf pk_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline vi pk_u32(const void *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
static inline vf pk_i8(const void *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))); }

static inline vi pk_u8_pairs(const void *a, const void *b)
{
    return pk_or(pk_u32(a), _mm256_slli_epi32(pk_u32(b), 16));
}
static inline vi pk_dot16(vi sum, vi w, vi x) { return _mm256_add_epi32(sum, _mm256_madd_epi16(w, x)); }

static inline vi two_rows(const uint8_t *const *rows, size_t at, int k)               /* 16 bytes of rows k, k + 4 */
{
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(rows[k] + at)), b = _mm_loadu_si128((const __m128i *)(const void *)(rows[k + 4] + at));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}

static inline void pk_rows_4(uint8_t *to, const uint8_t *const *rows, size_t at)
{
    vi a = two_rows(rows, at, 0), b = two_rows(rows, at, 1), c = two_rows(rows, at, 2), d = two_rows(rows, at, 3);
    vi ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
    pk_store(to, _mm256_unpacklo_epi64(ab, cd));
    pk_store(to + 32, _mm256_unpackhi_epi64(ab, cd));
    ab = _mm256_unpackhi_epi32(a, b), cd = _mm256_unpackhi_epi32(c, d);
    pk_store(to + 64, _mm256_unpacklo_epi64(ab, cd));
    pk_store(to + 96, _mm256_unpackhi_epi64(ab, cd));
}

static inline vi all_rows(const uint8_t *const *rows, size_t at)       /* 4 bytes of every row */
{
    uint32_t v[8];
    for (int r = 0; r < 8; r++) v[r] = load_u32(rows[r] + at);
    return _mm256_setr_epi32((int)v[0], (int)v[1], (int)v[2], (int)v[3], (int)v[4], (int)v[5], (int)v[6], (int)v[7]);
}

static inline void pk_rows_1(uint8_t *to, const uint8_t *const *rows, size_t at)
{
    const vi within = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    pk_store(to, _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(all_rows(rows, at), within), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

static inline void pk_rows_2(uint8_t *to, const uint8_t *const *rows, size_t at)
{
    const vi within = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    pk_store(to, _mm256_permute4x64_epi64(_mm256_shuffle_epi8(all_rows(rows, at), within), 0xD8));
}
