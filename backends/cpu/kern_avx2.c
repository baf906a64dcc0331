/* kern_avx2.c: the table for AVX2 with FMA and F16C.
 *
 * Without VNNI a product of bytes is vpmaddubsw, whose 16-bit sums saturate: how many of them may be added before they are widened
 * follows from the largest weight byte.  8-bit weights keep their sign and are multiplied as |w| * sign(w) a.
 */
enum { BIAS = 0 };

#include "kern_avx2.h"

static inline vi pk_wide(vi v) { return v; }

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

static double probe_int8(uint64_t rounds)
{
    vi acc[12], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(1), one = _mm256_set1_epi16(1), t;
    UNROLL for (int k = 0; k < 12; k++) acc[k] = zero();
    for (uint64_t r = 0; r < rounds; r++)
        UNROLL for (int k = 0; k < 12; k++)
            __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0" : "+x"(acc[k]), "=&x"(t) : "x"(a), "x"(b), "x"(one));
    return (double)rounds * 12 * 64;
}

#define AVX2_NAME "avx2"
#define AVX2_SUPPORTED hl_cpu_has_avx2
#define AVX2_TABLE hl_kern_avx2

#include "kern_avx2_table.h"
