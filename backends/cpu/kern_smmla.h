/* kern_smmla.h: pk_dots (see kern_packed.h) by smmla, which multiplies 2 rows of 8 columns by 2 tokens of 8 columns at once.
 *
 * Vectors are 4 rows of 4 columns; two neighbours are zipped to rows 0, 1 and rows 2, 3 of 8 columns, tokens likewise.  One token takes sdot.  The
 * integer sums are the same.
 */
#define pk_dots dots_by_lanes
#include "kern_dots.h"
#undef pk_dots

static inline __attribute__((always_inline)) void pk_dots(vi *to, const vi *w, const int32_t *x, const uint32_t x_step, const uint32_t n_t, const uint32_t n, int largest)
{
    if (n_t == 1) { dots_by_lanes(to, w, x, x_step, n_t, n, largest); return; }
    vi sum[LANES / 2][2];                              /* of two tokens: rows 0, 1 and 2, 3, [row][token] */
    UNROLL for (uint32_t t = 0; t < n_t / 2; t++) sum[t][0] = sum[t][1] = vdupq_n_s32(0);
    UNROLL for (uint32_t j = 0; j < n; j += 2) {
        const int8x16_t low = (int8x16_t)vzip1q_s32(w[j], w[j + 1]), high = (int8x16_t)vzip2q_s32(w[j], w[j + 1]);
        UNROLL for (uint32_t t = 0; t < n_t; t += 2) {
            const int32x2_t a = vld1_s32(x + j * x_step + t), b = vld1_s32(x + (j + 1) * x_step + t);
            const int8x16_t q = (int8x16_t)vcombine_s32(vzip1_s32(a, b), vzip2_s32(a, b));
            sum[t / 2][0] = vmmlaq_s32(sum[t / 2][0], low, q);
            sum[t / 2][1] = vmmlaq_s32(sum[t / 2][1], high, q);
        }
    }
    UNROLL for (uint32_t t = 0; t < n_t; t += 2) {
        to[t] = vaddq_s32(to[t], vuzp1q_s32(sum[t / 2][0], sum[t / 2][1]));
        to[t + 1] = vaddq_s32(to[t + 1], vuzp2q_s32(sum[t / 2][0], sum[t / 2][1]));
    }
}

_Static_assert(G == 4, "2 + 2 rows");

static inline vi probe_products(vi sum, vi a, vi b) { return vmmlaq_s32(sum, (int8x16_t)a, (int8x16_t)b); }
enum { PROBE_OPS = 64 };
