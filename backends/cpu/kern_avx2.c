/* kern_avx2.c: the table for AVX2 with FMA and F16C: the vector operations that kern_float.h and kern_x86.h are written in.
 *
 * Without VNNI a product of bytes is vpmaddubsw, whose 16-bit sums saturate: how many of them may be added before they are widened
 * follows from the largest weight byte.  8-bit weights keep their sign and are multiplied as |w| * sign(w) a.
 */
#include <immintrin.h>
#include <stdint.h>

enum { VW = 8, ROWS = 1, BIAS = 0, TILE_TOK = 3, TILE_VECTORS = 2, TILE_ACTS = 2 };

typedef float vf __attribute__((vector_size(32)));
typedef int32_t vs __attribute__((vector_size(32)));
typedef uint32_t vu __attribute__((vector_size(32)));
typedef float f4 __attribute__((vector_size(16)));
typedef __m256i vi;
typedef uint8_t vb __attribute__((vector_size(32)));
typedef uint16_t vh __attribute__((vector_size(32)));

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

#include "kern_float.h"

typedef struct rows { const uint8_t *at[ROWS]; } rows;

static inline vi zero(void) { return _mm256_setzero_si256(); }
static inline vi add(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vi times(vi a, int32_t b) { return _mm256_mullo_epi32(a, _mm256_set1_epi32(b)); }
static inline vf to_f(vi a) { return _mm256_cvtepi32_ps(a); }
static inline vi both_32(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline vf both_8f(const float *p) { return _mm256_loadu_ps(p); }
static inline vb table_16(const int8_t t[16]) { return (vb)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)t)); }
static inline vb shuffle(vb t, vb i) { return (vb)_mm256_shuffle_epi8((vi)t, (vi)i); }
static inline vb unpack_lo32(vb a, vb b) { return (vb)_mm256_unpacklo_epi32((vi)a, (vi)b); }
static inline vb unpack_hi32(vb a, vb b) { return (vb)_mm256_unpackhi_epi32((vi)a, (vi)b); }
static inline vb unpack_lo64(vb a, vb b) { return (vb)_mm256_unpacklo_epi64((vi)a, (vi)b); }
static inline vb unpack_hi64(vb a, vb b) { return (vb)_mm256_unpackhi_epi64((vi)a, (vi)b); }
static inline vb lanes_even(vb a, vb b) { return (vb)_mm256_permute2x128_si256((vi)a, (vi)b, 0x20); }
static inline vb lanes_odd(vb a, vb b) { return (vb)_mm256_permute2x128_si256((vi)a, (vi)b, 0x31); }
static inline vf rows_set(const float *f) { return _mm256_set1_ps(f[0]); }
static inline vf u8x8(const uint64_t *b) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)b[0]))); }
static inline vf i8x8(const uint64_t *b) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)b[0]))); }

/* 16 bytes twice: low nibbles in the first half, high ones in the second */
static inline vb nibbles(vb twice)
{
    return (vb)_mm256_and_si256(_mm256_srlv_epi32((vi)twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)), _mm256_set1_epi8(15));
}

static inline vi pairs(vi u, vi a, int wide)           /* 16-bit sums of 2 products */
{
    return wide ? _mm256_maddubs_epi16(_mm256_abs_epi8(u), _mm256_sign_epi8(a, u)) : _mm256_maddubs_epi16(u, a);
}

static inline vi widen(vi p) { return _mm256_madd_epi16(p, _mm256_set1_epi16(1)); }
static inline vi dot(vb u, vi a, int wide) { return widen(pairs((vi)u, a, wide)); }

static inline void sum_rows(vf a, vf b, vf c, vf d, float sum[4][ROWS])
{
    f4 s = vf_sum4(a, b, c, d);
    for (int i = 0; i < 4; i++) sum[i][0] = s[i];
}

static inline vb load_32(const rows *r, size_t at) { return (vb)both_32(r->at[0] + at); }
static inline vb load_16(const rows *r, size_t at) { return (vb)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(r->at[0] + at))); }

static inline vb bits_32(const rows *r, size_t at, uint8_t b)
{
    const vi spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const vi bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    vi v = _mm256_shuffle_epi8(_mm256_set1_epi32((int32_t)load_u32(r->at[0] + at)), spread);
    return (vb)_mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit), _mm256_set1_epi8((char)b));
}

static inline vf f16x8(const rows *r, size_t at, size_t stride)
{
    const uint8_t *p = r->at[0] + at;
    __m128i h = _mm_cvtsi32_si128(load_u16(p));
    h = _mm_insert_epi16(h, load_u16(p + stride), 1);
    h = _mm_insert_epi16(h, load_u16(p + 2 * stride), 2);
    h = _mm_insert_epi16(h, load_u16(p + 3 * stride), 3);
    h = _mm_insert_epi16(h, load_u16(p + 4 * stride), 4);
    h = _mm_insert_epi16(h, load_u16(p + 5 * stride), 5);
    h = _mm_insert_epi16(h, load_u16(p + 6 * stride), 6);
    h = _mm_insert_epi16(h, load_u16(p + 7 * stride), 7);
    return _mm256_cvtph_ps(h);
}

/* 16-bit sums hold 8 products of largest weight 15 by 127 (twice each), 4 of 31, 2 of 63, 1 of 127 */
static inline __attribute__((always_inline)) void tile_dots(vi dots[TILE_VECTORS][TILE_ACTS][2], const vb *w, size_t row_vectors, const hl_q8_unit *const a[TILE_ACTS],
                                                            uint32_t n_tok, bool halves, int32_t largest)
{
    const int run = largest == 15 ? (halves ? 4 : 8) : largest == 31 ? 4 : largest == 63 ? 2 : 1;
    UNROLL for (int i = 0; i < 8; i += run) {
        vi sum[TILE_VECTORS][TILE_ACTS];
        UNROLL for (int j = 0; j < run; j++) {
            UNROLL for (uint32_t it = 0; it < n_tok; it++) {
                vi x = both_32(a[it]->tile + 32 * (i + j));
                UNROLL for (uint32_t k = 0; k < TILE_VECTORS; k++) {
                    vi p = pairs((vi)w[k * row_vectors + (size_t)(i + j)], x, largest == 255);
                    sum[k][it] = j ? _mm256_add_epi16(sum[k][it], p) : p;
                }
            }
        }
        UNROLL for (uint32_t k = 0; k < TILE_VECTORS; k++)
            UNROLL for (uint32_t it = 0; it < n_tok; it++) {
                vi *to = &dots[k][it][halves && i >= 4];
                *to = add(*to, widen(sum[k][it]));
            }
    }
}

#define PANEL_SHAPES                                                                                                                             \
    PANEL_SHAPE(plain_15, false, false, 15) PANEL_SHAPE(plain_31, false, false, 31) PANEL_SHAPE(plain_255, false, false, 255)                    \
    PANEL_SHAPE(mins_15, false, true, 15) PANEL_SHAPE(mins_31, false, true, 31)                                                                  \
    PANEL_SHAPE(halves_15, true, false, 15) PANEL_SHAPE(halves_63, true, false, 63) PANEL_SHAPE(halves_mins_15, true, true, 15)

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
            acc[s][0] = _mm256_add_epi64(acc[s][0], both_32(p + s * each + i));
            acc[s][1] = _mm256_add_epi64(acc[s][1], both_32(p + s * each + i + 32));
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
    .isa = "avx2", .supported = hl_cpu_has_avx2, .quantize = quantize, .matmul_q8 = matmul_q8, .matmul_f32 = matmul_f32,
    .matmul_scratch = matmul_scratch, .rms_norm = rms_norm, .layer_norm = layer_norm, .ffn_act = ffn_act, .rope = rope,
    .softcap = softcap, .kv_store = kv_store, .attention = attention, .attention_scratch = attention_scratch,
    .probe_int8 = probe_int8, .probe_read = probe_read,
};
