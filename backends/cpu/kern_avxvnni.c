/* kern_avxvnni.c: the table for AVX2 with AVX-VNNI: vpdpbusd on 256 bits, for CPUs without AVX-512.
 *
 * vpdpbusd multiplies unsigned weights by signed activations without saturating, so 8-bit weights are made unsigned by adding 128.
 * The test of this table builds the file a second time for AVX512-VL and AVX512-VNNI, whose vpdpbusd is the same operation in another encoding:
 * then the including command defines AVXVNNI_EVEX.
 */
enum { BIAS = 128 };

#include "kern_avx2.h"

#ifdef AVXVNNI_EVEX
#define DPBUSD _mm256_dpbusd_epi32
#define AVX2_NAME "avxvnni-evex"
#define AVX2_SUPPORTED hl_cpu_has_avx512
#define AVX2_TABLE hl_kern_avxvnni_evex
extern const hl_cpu_kernels hl_kern_avxvnni_evex;
#else
#define DPBUSD _mm256_dpbusd_avx_epi32
#define AVX2_NAME "avxvnni"
#define AVX2_SUPPORTED hl_cpu_has_avxvnni
#define AVX2_TABLE hl_kern_avxvnni
#endif

static inline vi pk_wide(vi v) { return _mm256_xor_si256(v, _mm256_set1_epi8((char)BIAS)); }
static inline vi pk_dot(vi sum, vi w, vi x) { return DPBUSD(sum, w, x); }

#include "kern_dots.h"

static double probe_int8(uint64_t rounds)
{
    vi acc[12], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(1);
    UNROLL for (int k = 0; k < 12; k++) acc[k] = zero();
    for (uint64_t r = 0; r < rounds; r++)
        UNROLL for (int k = 0; k < 12; k++) {
            __asm__ volatile("" : "+x"(a), "+x"(acc[k]));                                  /* not to be computed once for all */
            acc[k] = DPBUSD(acc[k], a, b);
        }
    UNROLL for (int k = 0; k < 12; k++) __asm__ volatile("" : : "x"(acc[k]));
    return (double)rounds * 12 * 64;
}

#include "kern_avx2_table.h"
