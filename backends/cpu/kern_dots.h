/* kern_dots.h: pk_dots (see kern_packed.h) for instruction sets whose dot products do not saturate: how large a weight byte may be does not matter.
 * The including file defines pk_dot(sum, w, x): sum of 32-bit lanes plus the four products of each.
 */
static inline __attribute__((always_inline)) void pk_dots(vi *to, const vi *w, const int32_t *x, const uint32_t x_step, const uint32_t n_t, const uint32_t n, int largest)
{
    (void)largest;
    UNROLL for (uint32_t j = 0; j < n; j++)
        UNROLL for (uint32_t t = 0; t < n_t; t++) to[t] = pk_dot(to[t], w[j], pk_set(x[j * x_step + t]));
}
