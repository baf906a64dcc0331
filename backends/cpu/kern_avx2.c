/* kern_avx2.c: the table for AVX2 with FMA and F16C: the vector operations that kern_float.h and kern_packed.h are written in.
 *
 * Without VNNI a product of bytes is vpmaddubsw, whose 16-bit sums saturate: how many of them may be added before they are widened
 * follows from the largest weight byte.  8-bit weights keep their sign and are multiplied as |w| * sign(w) a.
 */
#include <immintrin.h>
#include <stdint.h>

enum { VW = 8, TILE_TOK = 3, G = 8, BIAS = 0, ATT_R = 2, LANES = 4, HALF_T = 3 };

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
static inline vi pk_wide(vi v) { return v; }
static inline vi pk_table_16(const int8_t t[16]) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)t)); }
static inline vi pk_shuffle(vi t, vi i) { return _mm256_shuffle_epi8(t, i); }
static inline vf pk_f(vi v) { return _mm256_cvtepi32_ps(v); }
static inline vf pk_setf(float f) { return _mm256_set1_ps(f); }
static inline vf pk_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline vf pk_u8(const void *p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
static inline vf pk_i8(const void *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))); }

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

static inline vi pairs(vi u, vi a, int wide)           /* 16-bit sums of 2 products */
{
    return wide ? _mm256_maddubs_epi16(_mm256_abs_epi8(u), _mm256_sign_epi8(a, u)) : _mm256_maddubs_epi16(u, a);
}

/* 16-bit sums hold 8 products of largest weight 15 by 127 (twice each), 4 of 31, 2 of 63, 1 of 128 */
static inline __attribute__((always_inline)) void pk_dots(vi *to, const vi *w, const int32_t *x, const uint32_t x_step, const uint32_t n_t, const uint32_t n, const int largest)
{
    const uint32_t most = largest == 15 ? 8 : largest == 31 ? 4 : largest == 63 ? 2 : 1, run = HL_MIN(most, n);
    UNROLL for (uint32_t j = 0; j < n; j += run) {
        vi sum[LANES];
        UNROLL for (uint32_t i = 0; i < run; i++)
            UNROLL for (uint32_t t = 0; t < n_t; t++) {
                vi p = pairs(w[j + i], pk_set(x[(j + i) * x_step + t]), largest == 255);
                sum[t] = i ? _mm256_add_epi16(sum[t], p) : p;
            }
        UNROLL for (uint32_t t = 0; t < n_t; t++) to[t] = pk_add32(to[t], _mm256_madd_epi16(sum[t], _mm256_set1_epi16(1)));
    }
}

#include "kern_packed.h"

static inline void pk_halves(uint8_t *a, uint8_t *b, vi v)
{
    const vi within = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    v = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, within), 0xD8);
    _mm_store_si128((__m128i *)(void *)a, _mm256_castsi256_si128(v));
    _mm_store_si128((__m128i *)(void *)b, _mm256_extracti128_si256(v, 1));
}

#define HALF_TILES(TARGET, name, ...) HALF_TILE(TARGET, name, 1, __VA_ARGS__) HALF_TILE(TARGET, name, 2, __VA_ARGS__) HALF_TILE(TARGET, name, 3, __VA_ARGS__)
#define HALF_TILE_NAMES(name) half_##name##_1, half_##name##_2, half_##name##_3

#include "kern_half.h"
#include "kern_x86.h"

static double probe_int8(uint64_t rounds)
{
    vi acc[12], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(1), one = _mm256_set1_epi16(1), t;
    UNROLL for (int k = 0; k < 12; k++) acc[k] = zero();
    for (uint64_t r = 0; r < rounds; r++)
        UNROLL for (int k = 0; k < 12; k++)
            __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0" : "+x"(acc[k]), "=&x"(t) : "x"(a), "x"(b), "x"(one));
    return (double)rounds * 12 * 64;
}

static inline __attribute__((always_inline)) uint64_t read_streams(const uint8_t *p, size_t each, const size_t n)
{
    __m256i acc[8][2], sum = zero();
    UNROLL for (size_t s = 0; s < n; s++) acc[s][0] = acc[s][1] = zero();
    for (size_t i = 0; i + 64 <= each; i += 64)
        UNROLL for (size_t s = 0; s < n; s++) {
            acc[s][0] = _mm256_add_epi64(acc[s][0], _mm256_loadu_si256((const __m256i *)(const void *)(p + s * each + i)));
            acc[s][1] = _mm256_add_epi64(acc[s][1], _mm256_loadu_si256((const __m256i *)(const void *)(p + s * each + i + 32)));
        }
    UNROLL for (size_t s = 0; s < n; s++) sum = _mm256_add_epi64(sum, _mm256_add_epi64(acc[s][0], acc[s][1]));
    uint64_t part[4];
    memcpy(part, &sum, sizeof part);
    return part[0] + part[1] + part[2] + part[3];
}

static uint64_t probe_read(const void *data, size_t bytes, uint32_t streams)
{
    size_t n = streams >= 8 ? 8 : streams >= 4 ? 4 : streams >= 2 ? 2 : 1, each = bytes / n / 64 * 64;
    if (n == 8) return read_streams(data, each, 8);
    if (n == 4) return read_streams(data, each, 4);
    return n == 2 ? read_streams(data, each, 2) : read_streams(data, each, 1);
}

const hl_cpu_kernels hl_kern_avx2 = {
    .isa = "avx2", .supported = hl_cpu_has_avx2, .group = G, .pack = pack_any, .quantize = quantize, .side_by_side = side_by_side, .matmul_q8 = matmul_q8, .matmul_f32 = matmul_f32,
    .matmul_half = matmul_half, .matmul_scratch = scratch_floats, .rms_norm = rms_norm, .layer_norm = layer_norm, .ffn_act = ffn_act, .rope = rope,
    .softcap = softcap, .kv_store = kv_store, .attention = attention, .attention_scratch = attention_scratch,
    .probe_int8 = probe_int8, .probe_read = probe_read,
};
