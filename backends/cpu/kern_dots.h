/* kern_dots.h: pk_dots (see kern_packed.h) for instruction sets whose dot products do not saturate: how large a weight byte may be is then no part
 * of a tile's shape.  The including file defines pk_dot(sum, w, x): sum of 32-bit lanes plus the four products of each.
 */
static inline __attribute__((always_inline)) void pk_dots(vi *to, const vi *w, size_t w_step, const int8_t *const *x, const uint32_t n_r, const uint32_t n_t, const uint32_t n,
                                                          int largest)
{
    (void)largest;
    UNROLL for (uint32_t j = 0; j < n; j++) {
        vi u[PANEL_R];
        UNROLL for (uint32_t r = 0; r < n_r; r++) u[r] = n_r == 1 ? w[j] : pk_load((const uint8_t *)(w + j) + r * w_step);
        UNROLL for (uint32_t t = 0; t < n_t; t++) {
            vi q = pk_set((int32_t)load_u32(x[t] + 4 * j));
            UNROLL for (uint32_t r = 0; r < n_r; r++) to[r * PANEL_T + t] = pk_dot(to[r * PANEL_T + t], u[r], q);
        }
    }
}

#define tiles_plain_15 tiles_plain
#define tiles_plain_31 tiles_plain
#define tiles_plain_255 tiles_plain
#define tiles_mins_15 tiles_mins
#define tiles_mins_31 tiles_mins
#define tiles_halves_15 tiles_halves
#define tiles_halves_63 tiles_halves
#define tiles_halves_mins_15 tiles_halves_mins
#define PANEL_SHAPES                                                                                                                             \
    PANEL_SHAPE(plain, false, false, 255) PANEL_SHAPE(mins, false, true, 255)                                                                    \
    PANEL_SHAPE(halves, true, false, 255) PANEL_SHAPE(halves_mins, true, true, 255)
