/* kern_avx512.c: the table for AVX-512 F, BW, VL, DQ and VNNI: the vector operations that kern_float.h and kern_x86.h are written in.
 *
 * Integer vectors hold two rows of 256 bits each.  vpdpbusd multiplies unsigned weights by signed activations without saturating,
 * so 8-bit weights are made unsigned by adding 128.
 */
#include <immintrin.h>
#include <stdint.h>

enum { VW = 16, ROWS = 2, BIAS = 128, TILE_TOK = 4, TILE_VECTORS = 2, TILE_ACTS = 4 };

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vs __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef float f4 __attribute__((vector_size(16)));
typedef __m512i vi;
typedef uint8_t vb __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(64)));

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

#include "kern_float.h"

typedef struct rows { const uint8_t *at[ROWS]; } rows;

static inline vi zero(void) { return _mm512_setzero_si512(); }
static inline vi add(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi times(vi a, int32_t b) { return _mm512_mullo_epi32(a, _mm512_set1_epi32(b)); }
static inline vf to_f(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vi both_32(const void *p) { return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p)); }
static inline vf both_8f(const float *p) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(p)); }
static inline vb table_16(const int8_t t[16]) { return (vb)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)t)); }
static inline vb shuffle(vb t, vb i) { return (vb)_mm512_shuffle_epi8((vi)t, (vi)i); }
static inline vb unpack_lo32(vb a, vb b) { return (vb)_mm512_unpacklo_epi32((vi)a, (vi)b); }
static inline vb unpack_hi32(vb a, vb b) { return (vb)_mm512_unpackhi_epi32((vi)a, (vi)b); }
static inline vb unpack_lo64(vb a, vb b) { return (vb)_mm512_unpacklo_epi64((vi)a, (vi)b); }
static inline vb unpack_hi64(vb a, vb b) { return (vb)_mm512_unpackhi_epi64((vi)a, (vi)b); }
static inline vb lanes_even(vb a, vb b) { return (vb)_mm512_permutex2var_epi64((vi)a, _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), (vi)b); }
static inline vb lanes_odd(vb a, vb b) { return (vb)_mm512_permutex2var_epi64((vi)a, _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15), (vi)b); }
static inline vf rows_set(const float *f) { return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_set1_ps(f[0])), _mm256_set1_ps(f[1]), 1); }
static inline __m128i two_u64(const uint64_t *b) { return _mm_set_epi64x((long long)b[1], (long long)b[0]); }
static inline vf u8x8(const uint64_t *b) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(two_u64(b))); }
static inline vf i8x8(const uint64_t *b) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(two_u64(b))); }

/* 16 bytes twice: low nibbles in the first half, high ones in the second */
static inline vb nibbles(vb twice)
{
    const vi shift = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4);
    return (vb)_mm512_and_si512(_mm512_srlv_epi32((vi)twice, shift), _mm512_set1_epi8(15));
}

static inline vi dot(vb u, vi a, int wide)
{
    (void)wide;
    return _mm512_dpbusd_epi32(zero(), (vi)u, a);
}

static inline void sum_rows(vf a, vf b, vf c, vf d, float sum[4][ROWS])
{
    f4 s[2];
    sum_halves(a, b, c, d, s);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < ROWS; k++) sum[i][k] = s[k][i];
}

static inline vb load_32(const rows *r, size_t at)
{
    return (vb)_mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)(r->at[0] + at))),
                                  _mm256_loadu_si256((const __m256i *)(const void *)(r->at[1] + at)), 1);
}

static inline vb load_16(const rows *r, size_t at)
{
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(r->at[0] + at)), b = _mm_loadu_si128((const __m128i *)(const void *)(r->at[1] + at));
    return (vb)_mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(a), 0xFF00, b);
}

static inline vb bits_32(const rows *r, size_t at, uint8_t b)
{
    uint64_t mask = load_u32(r->at[0] + at) | (uint64_t)load_u32(r->at[1] + at) << 32;
    return (vb)_mm512_maskz_set1_epi8(mask, (char)b);
}

static inline __m128i f16_column(const uint8_t *p, size_t stride)
{
    __m128i h = _mm_cvtsi32_si128(load_u16(p));
    h = _mm_insert_epi16(h, load_u16(p + stride), 1);
    h = _mm_insert_epi16(h, load_u16(p + 2 * stride), 2);
    h = _mm_insert_epi16(h, load_u16(p + 3 * stride), 3);
    h = _mm_insert_epi16(h, load_u16(p + 4 * stride), 4);
    h = _mm_insert_epi16(h, load_u16(p + 5 * stride), 5);
    h = _mm_insert_epi16(h, load_u16(p + 6 * stride), 6);
    return _mm_insert_epi16(h, load_u16(p + 7 * stride), 7);
}

static inline vf f16x8(const rows *r, size_t at, size_t stride)
{
    __m128i a = f16_column(r->at[0] + at, stride), b = f16_column(r->at[1] + at, stride);
    return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1));
}

static inline __attribute__((always_inline)) void tile_dots(vi dots[TILE_VECTORS][TILE_ACTS][2], const vb *w, size_t row_vectors, const hl_q8_unit *const a[TILE_ACTS],
                                                            uint32_t n_tok, bool halves, int32_t largest)
{
    (void)largest;
    UNROLL for (int i = 0; i < 8; i++) {
        vi u[TILE_VECTORS];
        UNROLL for (uint32_t k = 0; k < TILE_VECTORS; k++) u[k] = (vi)w[k * row_vectors + (size_t)i];
        UNROLL for (uint32_t it = 0; it < n_tok; it++) {
            vi x = both_32(a[it]->tile + 32 * i);
            UNROLL for (uint32_t k = 0; k < TILE_VECTORS; k++) {
                vi *to = &dots[k][it][halves && i >= 4];
                *to = _mm512_dpbusd_epi32(*to, u[k], x);
            }
        }
    }
}

/* vpdpbusd does not saturate: how large a byte may be is no part of the shape. */
#define panel_plain_15 panel_plain
#define panel_plain_31 panel_plain
#define panel_plain_255 panel_plain
#define panel_mins_15 panel_mins
#define panel_mins_31 panel_mins
#define panel_halves_15 panel_halves
#define panel_halves_63 panel_halves
#define panel_halves_mins_15 panel_halves_mins
#define PANEL_SHAPES                                                                                                                             \
    PANEL_SHAPE(plain, false, false, 255) PANEL_SHAPE(mins, false, true, 255)                                                                    \
    PANEL_SHAPE(halves, true, false, 255) PANEL_SHAPE(halves_mins, true, true, 255)

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
    .isa = "avx512", .supported = hl_cpu_has_avx512, .quantize = quantize, .matmul_q8 = matmul_q8, .matmul_f32 = matmul_f32,
    .matmul_scratch = matmul_scratch, .rms_norm = rms_norm, .layer_norm = layer_norm, .ffn_act = ffn_act, .rope = rope,
    .softcap = softcap, .kv_store = kv_store, .attention = attention, .attention_scratch = attention_scratch,
    .probe_int8 = probe_int8, .probe_read = probe_read,
};
