/* kern_packed.h: products of packed weights (packed.h) with 8-bit activations, written once for every vector width.
 *
 * A vector of 32-bit numbers has one lane for each of G rows; a dot-product instruction takes four columns of G rows and four bytes of the
 * activation, the same in every lane.  Nothing is added across lanes.  Columns go in groups of 32 (as the activations' scales do):
 *   y[row] += scale[row] * d * (sum of u * q  -  offset * sum of q)  +  min[row] * d * sum of q
 * with u the unsigned weight bytes.  The integer part is exact, the floating part is the same operations in the same order for every number
 * of tokens: equal bits however a call is cut.
 * Weights are unpacked in registers, for up to LANES tokens at a time, which lie side by side (kernels.h).  One group of rows after the other is
 * multiplied by all tokens of a block; with many tokens, some groups that stay in the L2 cache by one block after the other.
 * Rows in the file's layout are packed first, FILE_GROUPS groups at a time into scratch, which stays in the L2 cache: the same bits from both.
 *
 * The including file defines G, vi (G int32 or 4 G bytes), vf (G floats), BIAS (what makes 8-bit weights unsigned; 0: they stay signed),
 * LANES (tokens whose sums fit in registers: 4 or 8), and
 *   pk_load(p), pk_store(p, v)     4 G bytes, aligned
 *   pk_zero(), pk_set(x), pk_add(a, b), pk_sra(v, n)      32-bit lanes
 *   pk_bytes(b), pk_and(a, b), pk_or(a, b), pk_srl(v, n), pk_sll(v, n)    bytes; shifts are of 16-bit lanes: mask afterwards
 *   pk_table_16(t), pk_shuffle(table, i)   16-entry table
 *   pk_rows_4(to, rows, at)        4 planes of 4 bytes, from 16 bytes of each row
 *   pk_rows_1(to, rows, at)        4 planes of 1 byte, from 4 bytes of each row
 *   pk_rows_2(to, rows, at)        2 planes of 2 bytes, from 4 bytes of each row
 *   pk_u32(p)    32-bit lanes from G bytes in memory
 *   pk_f(v), pk_setf(f), pk_f16(p), pk_i8(p)    floats: from int32 lanes; one for all; G halves, signed bytes in memory
 *   PAIRS; if 1: pk_u8_pairs(a, b): int16 pairs, the first of a's G bytes, the second of b's; pk_dot16(sum, w, x): plus w . x of each pair
 *   pk_dots(to, w, x, x_step, n_t, n, largest)    or takes it from kern_dots.h
 *       to[t] += sum over j < n of w[j] . the quadruple x[j * x_step + t] for t < n_t; largest: of a weight byte (255: BIAS)
 */
#include "cpu/packed.h"

#define INLINE static inline __attribute__((always_inline))

enum { LANE_BYTES = 4 * G, FILE_GROUPS = 4, BLOCK_BYTES = 256 << 10, AHEAD = 4096 };

/* What a unit's scales are made from, once per unit; arrays are planes of G. */
typedef struct pk_scales {
    uint8_t sc[16 * G], mn[16 * G];
    vf dv, mv;                                         /* d, -dmin */
    const uint8_t *d;                                  /* the plane of d, when it is apart */
} __attribute__((aligned(64))) pk_scales;

/* The call's weights. */
typedef struct pk_weights { const uint8_t *w; size_t row_bytes, group_bytes; uint32_t n_rows, n_blocks, n_units; bool packed; } pk_weights;

typedef struct pk_type {
    hl_form form;
    uint32_t period;                                   /* the code that unpacks a unit repeats after so many groups of columns */
    int shift;                                         /* offset = 128 >> shift; -1: none */
    bool halves, mins;                                 /* two scales in a group; minimums */
    int largest;
    void (*pack)(uint8_t *to, const pk_weights *w, uint32_t ir, uint32_t n_groups);
    void (*scales)(const uint8_t *p, pk_scales *s);    /* NULL: nothing to prepare */
    vf (*scale)(const uint8_t *p, const pk_scales *s, uint32_t ig, uint32_t half);
    vf (*min)(const uint8_t *p, const pk_scales *s, uint32_t ig, uint32_t half);
    void (*unpack)(const uint8_t *p, uint32_t base, const uint32_t k, vi u[8]);      /* group base + k of columns, base a multiple of the period */
} pk_type;

#define PLANE(p, at) ((p) + (size_t)(at) * G)

/* ---- 32-column blocks ---- */

INLINE void pk_nibbles(const uint8_t *p, vi u[8])
{
    const vi low = pk_bytes(15);
    UNROLL for (int j = 0; j < 4; j++) {
        vi x = pk_load(p + j * LANE_BYTES);
        u[j] = pk_and(x, low);
        u[j + 4] = pk_and(pk_srl(x, 4), low);
    }
}

INLINE void pk_fifth(const uint8_t *p, vi u[8])        /* adds bit 4 */
{
    const vi fifth = pk_bytes(16);
    vi h = pk_load(p);
    UNROLL for (int j = 0; j < 8; j++) u[j] = pk_or(u[j], pk_and(j < 4 ? pk_sll(h, 4 - j) : pk_srl(h, j - 4), fifth));
}

INLINE void pk_table(vi u[8], const int8_t table[16], int offset)
{
    int8_t t[16];
    for (int i = 0; i < 16; i++) t[i] = (int8_t)(table[i] + offset);
    vi v = pk_table_16(t);
    UNROLL for (int j = 0; j < 8; j++) u[j] = pk_shuffle(v, u[j]);
}

INLINE vf pk_scale_d(const uint8_t *p, const pk_scales *s, uint32_t ig, uint32_t half) { (void)s; (void)half; return pk_f16(PLANE(p, 2 * ig)); }
INLINE vf pk_min_4(const uint8_t *p, const pk_scales *s, uint32_t ig, uint32_t half) { (void)s; (void)half; return pk_f16(PLANE(p, 4 + 2 * ig)); }

INLINE void pk_unpack_q4_0(const uint8_t *p, uint32_t base, const uint32_t k, vi u[8]) { pk_nibbles(PLANE(p, 4 + 16 * (base + k)), u); }
INLINE void pk_unpack_q4_1(const uint8_t *p, uint32_t base, const uint32_t k, vi u[8]) { pk_nibbles(PLANE(p, 8 + 16 * (base + k)), u); }
INLINE void pk_unpack_q5_0(const uint8_t *p, uint32_t base, const uint32_t k, vi u[8]) { pk_nibbles(PLANE(p, 12 + 16 * (base + k)), u); pk_fifth(PLANE(p, 4 + 4 * (base + k)), u); }
INLINE void pk_unpack_q5_1(const uint8_t *p, uint32_t base, const uint32_t k, vi u[8]) { pk_nibbles(PLANE(p, 16 + 16 * (base + k)), u); pk_fifth(PLANE(p, 8 + 4 * (base + k)), u); }
INLINE void pk_unpack_iq4_nl(const uint8_t *p, uint32_t base, const uint32_t k, vi u[8]) { pk_nibbles(PLANE(p, 4 + 16 * (base + k)), u); pk_table(u, hl_table_iq4_nl, BIAS); }
INLINE void pk_unpack_mxfp4(const uint8_t *p, uint32_t base, const uint32_t k, vi u[8]) { pk_nibbles(PLANE(p, 4 + 16 * (base + k)), u); pk_table(u, hl_table_mxfp4, 16); }

INLINE void pk_unpack_q8_0(const uint8_t *p, uint32_t base, const uint32_t k, vi u[8])
{
    UNROLL for (int j = 0; j < 8; j++) u[j] = pk_wide(pk_load(PLANE(p, 4 + 32 * (base + k) + 4 * (uint32_t)j)));
}

INLINE vf pk_scale_mxfp4(const uint8_t *p, const pk_scales *s, uint32_t ig, uint32_t half)     /* 2^(e - 128) */
{
    const vi v = pk_u32(PLANE(p, ig));
    vu e, bits;
    vf f;
    (void)s; (void)half;
    memcpy(&e, &v, sizeof e);
    bits = ((vu)(e < 2) & (e + 1) << 21) | ((vu)(e > 1) & (e - 1) << 23);
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* ---- 256-column blocks ---- */

INLINE vf pk_scale_u(const pk_scales *s, uint32_t i) { return s->dv * pk_f(pk_u32(s->sc + i * G)); }
INLINE vf pk_scale_i(const pk_scales *s, const uint8_t *sc) { return s->dv * pk_i8(sc); }
INLINE vf pk_min_u(const pk_scales *s, uint32_t i) { return s->mv * pk_f(pk_u32(s->mn + i * G)); }

INLINE void pk_two_halves(const uint8_t *p, pk_scales *s)
{
    s->dv = pk_f16(p);
    s->mv = -pk_f16(PLANE(p, 2));
}

INLINE void pk_scales_q2_K(const uint8_t *p, pk_scales *s)
{
    const uint8_t *b = PLANE(p, 4);
    pk_two_halves(p, s);
    for (int i = 0; i < 16 * G; i++) { s->sc[i] = b[i] & 15; s->mn[i] = b[i] >> 4; }
}
INLINE vf pk_scale_q2_K(const uint8_t *p, const pk_scales *s, uint32_t ig, uint32_t half) { (void)p; return pk_scale_u(s, 2 * ig + half); }
INLINE vf pk_min_q2_K(const uint8_t *p, const pk_scales *s, uint32_t ig, uint32_t half) { (void)p; return pk_min_u(s, 2 * ig + half); }

/* Q2_K and Q3_K: 16 columns have a scale of their own and a weight takes 2 or 3 bits from places far apart, so that unpacking and scaling take about
 * twice the operations a byte that Q4_K's do, and 25 GB/s a core from the cache is where arithmetic ends. */
INLINE void pk_unpack_q2_K(const uint8_t *p, uint32_t base, const uint32_t k, vi u[8])
{
    const vi three = pk_bytes(3);
    UNROLL for (uint32_t j = 0; j < 8; j++) u[j] = pk_and(pk_srl(pk_load(PLANE(p, 20 + 8 * base + 4 * j)), 2 * (int)k), three);
}

INLINE void pk_scales_q3_K(const uint8_t *p, pk_scales *s)
{
    const uint8_t *b = p, *h = PLANE(p, 8);
    s->dv = pk_f16(s->d);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 4 * G; i++) {
            s->sc[4 * G * k + i] = (uint8_t)(((b[4 * G * k + i] & 15) | (h[i] >> 2 * k & 3) << 4) - 32);
            s->sc[4 * G * (k + 2) + i] = (uint8_t)((b[4 * G * k + i] >> 4 | (h[i] >> (2 * k + 4) & 3) << 4) - 32);
        }
}
INLINE vf pk_scale_q3_K(const uint8_t *p, const pk_scales *s, uint32_t ig, uint32_t half) { (void)p; return pk_scale_i(s, s->sc + (2 * ig + half) * G); }

INLINE void pk_unpack_q3_K(const uint8_t *p, uint32_t base, const uint32_t k, vi u[8])
{
    (void)base;
    const vi three = pk_bytes(3), four = pk_bytes(4);
    UNROLL for (uint32_t j = 0; j < 8; j++) {
        vi h = pk_load(PLANE(p, 12 + 4 * j));
        u[j] = pk_or(pk_and(pk_srl(pk_load(PLANE(p, 44 + 32 * (k / 4) + 4 * j)), 2 * (int)(k % 4)), three),
                     pk_and(k < 2 ? pk_sll(h, 2 - (int)k) : pk_srl(h, (int)k - 2), four));
    }
}

INLINE void pk_scales_q4_K(const uint8_t *p, pk_scales *s)
{
    const uint8_t *b = PLANE(p, 4);
    pk_two_halves(p, s);
    for (int i = 0; i < 4 * G; i++) {
        uint8_t x = b[i], y = b[4 * G + i], z = b[8 * G + i];
        s->sc[i] = x & 63;
        s->mn[i] = y & 63;
        s->sc[4 * G + i] = (uint8_t)((z & 15) | (x >> 6) << 4);
        s->mn[4 * G + i] = (uint8_t)(z >> 4 | (y >> 6) << 4);
    }
}
INLINE vf pk_scale_q4_K(const uint8_t *p, const pk_scales *s, uint32_t ig, uint32_t half) { (void)p; (void)half; return pk_scale_u(s, ig); }
INLINE vf pk_min_q4_K(const uint8_t *p, const pk_scales *s, uint32_t ig, uint32_t half) { (void)p; (void)half; return pk_min_u(s, ig); }

INLINE void pk_unpack_q4_K(const uint8_t *p, uint32_t base, const uint32_t k, vi u[8])
{
    const vi low = pk_bytes(15);
    UNROLL for (uint32_t j = 0; j < 8; j++) {
        vi x = pk_load(PLANE(p, 16 + 16 * base + 4 * j));
        u[j] = pk_and(k % 2 ? pk_srl(x, 4) : x, low);
    }
}

INLINE void pk_unpack_q5_K(const uint8_t *p, uint32_t base, const uint32_t k, vi u[8])
{
    (void)base;
    const vi low = pk_bytes(15), fifth = pk_bytes(16);
    UNROLL for (uint32_t j = 0; j < 8; j++) {
        vi x = pk_load(PLANE(p, 48 + 32 * (k / 2) + 4 * j)), h = pk_load(PLANE(p, 16 + 4 * j));
        u[j] = pk_or(pk_and(k % 2 ? pk_srl(x, 4) : x, low), pk_and(k < 4 ? pk_sll(h, 4 - (int)k) : pk_srl(h, (int)k - 4), fifth));
    }
}

INLINE void pk_scales_q6_K(const uint8_t *p, pk_scales *s)
{
    s->dv = pk_f16(s->d);
    memcpy(s->sc, p, 16 * G);                          /* now, on the way: later would be a step back, which stops the hardware's prefetching */
}
INLINE vf pk_scale_q6_K(const uint8_t *p, const pk_scales *s, uint32_t ig, uint32_t half) { (void)p; return pk_scale_i(s, s->sc + (2 * ig + half) * G); }

INLINE void pk_unpack_q6_K(const uint8_t *p, uint32_t base, const uint32_t k, vi u[8])
{
    const vi low = pk_bytes(15), top = pk_bytes(48);
    /* In the order of their places: two streams in turn are half as fast. */
    if (k == 0) UNROLL for (uint32_t j = 0; j < 8; j++) __builtin_prefetch(PLANE(p, 16 + 24 * base + 4 * j), 0, 3);
    UNROLL for (uint32_t j = 0; j < 8; j++) {
        vi a = pk_load(PLANE(p, 48 + 24 * base + 32 * (k % 2) + 4 * j)), h = pk_load(PLANE(p, 16 + 24 * base + 4 * j));
        u[j] = pk_or(pk_and(k / 2 ? pk_srl(a, 4) : a, low), pk_and(k == 0 ? pk_sll(h, 4) : k == 1 ? pk_sll(h, 2) : k == 2 ? h : pk_srl(h, 2), top));
    }
}

INLINE void pk_scales_iq4_xs(const uint8_t *p, pk_scales *s)
{
    const uint8_t *h = PLANE(p, 2), *l = PLANE(p, 4);
    s->dv = pk_f16(p);
    for (int g = 0; g < 8; g++)
        for (int r = 0; r < G; r++) s->sc[g * G + r] = (uint8_t)(((l[g / 2 * G + r] >> 4 * (g % 2) & 15) | (h[g / 4 * G + r] >> 2 * (g % 4) & 3) << 4) - 32);
}
INLINE vf pk_scale_iq4_xs(const uint8_t *p, const pk_scales *s, uint32_t ig, uint32_t half) { (void)p; (void)half; return pk_scale_i(s, s->sc + ig * G); }
INLINE void pk_unpack_iq4_xs(const uint8_t *p, uint32_t base, const uint32_t k, vi u[8]) { pk_nibbles(PLANE(p, 8 + 16 * (base + k)), u); pk_table(u, hl_table_iq4_nl, BIAS); }

/* ---- the sums ---- */

/* What a token's group of 32 columns says besides its bytes: parts of sum and comp lie `apart`. */
typedef struct pk_group { const float *d, *sum; const int32_t *comp; uint32_t apart; } pk_group;

INLINE vi pk_first(const pk_group g, uint32_t part, int shift)      /* -offset * sum of q */
{
    return shift < 0 ? pk_zero() : pk_sra(pk_set(g.comp[part * g.apart]), shift);
}

/* One group of 32 columns for one token: the only place where integers become floats. */
INLINE vf pk_add(vf acc, const vi dots[2], const vf s[2], const vf m[2], const pk_group g, bool halves, bool mins)
{
    const vf d = pk_setf(*g.d);
    if (!halves) {
        acc = vf_fma(pk_f(dots[0]), s[0] * d, acc);
        return mins ? vf_fma(m[0], pk_setf(g.sum[2 * g.apart]), acc) : acc;
    }
    acc = vf_fma(vf_fma(pk_f(dots[1]), s[1], pk_f(dots[0]) * s[0]), d, acc);
    return mins ? vf_fma(m[1], pk_setf(g.sum[g.apart]), vf_fma(m[0], pk_setf(g.sum[0]), acc)) : acc;
}

/* A whole unit's minimums at once, where they are integers times one number: a multiply-add for a token and a unit, not one for each group.
 * c: the unit's first words. */
INLINE void pk_add_mins(vf *acc, const pk_scales *s, const float *c, const uint32_t width, const uint32_t n_t)
{
#if PAIRS
    vi mins[4], sum[LANES];
    UNROLL for (uint32_t i = 0; i < 4; i++) mins[i] = pk_u8_pairs(s->mn + 2 * i * G, s->mn + (2 * i + 1) * G);
    UNROLL for (uint32_t it = 0; it < n_t; it++) sum[it] = pk_zero();
    UNROLL for (uint32_t i = 0; i < 4; i++)
        UNROLL for (uint32_t it = 0; it < n_t; it++) sum[it] = pk_dot16(sum[it], mins[i], pk_set(((const int32_t *)(const void *)c)[(HL_Q8_WORDS * i + 15) * width + it]));
    UNROLL for (uint32_t it = 0; it < n_t; it++) acc[it] = vf_fma(pk_f(sum[it]), s->mv * pk_setf(c[(HL_Q8_WORDS * 4 + 15) * width + it]), acc[it]);
#else
    (void)acc; (void)s; (void)c; (void)width; (void)n_t;
#endif
}

/* ---- packing ---- */

INLINE void pack_run(uint8_t *to, const uint8_t *const rows[G], size_t at, const hl_plane_run run)
{
    if (run.width == 4 && run.n % 4 == 0) { UNROLL for (uint32_t i = 0; i < run.n; i += 4) pk_rows_4(to + i * LANE_BYTES, rows, at + 4 * i); }
    else if (run.width == 1 && run.n % 4 == 0) { UNROLL for (uint32_t i = 0; i < run.n; i += 4) pk_rows_1(to + i * G, rows, at + i); }
    else if (run.width == 2 && run.n == 2) pk_rows_2(to, rows, at);
    else if (run.width == 4) {                         /* bits */
        uint32_t v[G];
        for (uint32_t r = 0; r < G; r++) v[r] = load_u32(rows[r] + at);
        for (uint32_t r = 0; r < G; r++) v[r] = hl_packed_bits(v[r]);
        memcpy(to, v, sizeof v);
    } else
        UNROLL for (uint32_t i = 0; i < run.n; i++)
            UNROLL for (uint32_t r = 0; r < G; r++) memcpy(to + (i * G + r) * run.width, rows[r] + at + i * run.width, run.width);
}

/* Unit iu of G rows in the file's layout; apart: where its scales go that are apart. */
INLINE void pack_unit(uint8_t *to, uint8_t *apart, const uint8_t *const rows[G], uint32_t iu, uint32_t n_blocks, const hl_form f)
{
    UNROLL for (uint32_t ib = 0; ib < f.blocks; ib++) {
        const uint32_t at = iu * f.blocks + ib;
        UNROLL for (uint32_t k = 0; k < HL_PACKED_RUNS; k++) {
            const uint32_t bytes = (uint32_t)f.run[k].width * f.run[k].n * G;
            uint8_t *place = f.apart && k == 0 ? apart : to + f.run[k].to * G + ib * bytes;
            if (bytes && at < n_blocks) pack_run(place, rows, (size_t)at * f.block_bytes + f.run[k].from, f.run[k]);
            else if (bytes) memset(place, 0, bytes);
        }
    }
}

/* Groups of rows from row ir on, n_groups or up to the last; that one is completed by its last row.  A group's rows are 16 streams, too many for
 * the hardware to see ahead of; but together they are one piece of memory, which is fetched as such while the group before is packed. */
INLINE void pack_groups(uint8_t *to, const pk_weights *w, uint32_t ir, uint32_t n_groups, const hl_form f)
{
    for (uint32_t k = 0; k < n_groups && ir + k * G < w->n_rows; k++) {
        const uint8_t *rows[G];
        for (uint32_t r = 0; r < G; r++) rows[r] = w->w + HL_MIN(ir + k * G + r, w->n_rows - 1) * w->row_bytes;
        uint8_t *apart = to + k * w->group_bytes, *units = apart + hl_packed_apart_bytes(&f, w->n_units, G);
        const uint8_t *next = w->w + (ir + (k + 1) * G) * w->row_bytes;
        for (uint32_t iu = 0; iu < w->n_units; iu++, next += f.blocks * f.block_bytes * G) {
            UNROLL for (uint32_t at = 0; at < f.blocks * f.block_bytes * G; at += 64) __builtin_prefetch(next + at, 0, 2);
            pack_unit(units + (size_t)iu * f.bytes * G, apart + iu * 2 * G, rows, iu, w->n_blocks, f);
        }
    }
}

#define PACK(form)                                                                                                                              \
    static __attribute__((noinline)) void pack_##form(uint8_t *to, const pk_weights *w, uint32_t ir, uint32_t n_groups)                         \
    {                                                                                                                                           \
        pack_groups(to, w, ir, n_groups, hl_form_##form);                                                                                       \
    }
PACK(q4_0) PACK(q4_1) PACK(q5_0) PACK(q5_1) PACK(q8_0) PACK(mxfp4) PACK(q2_K) PACK(q3_K) PACK(q4_K) PACK(q5_K) PACK(q6_K) PACK(iq4_xs)

/* ---- the product ---- */

/* One group of rows by n_t tokens, a constant, of a block of `width`, a constant; c: their first words.  Of one token memory is the limit,
 * and its hardware sees a single stream best when nobody prefetches by hand; of more tokens arithmetic is, and memory has to be asked ahead. */
INLINE void columns(float *y, size_t stride, const uint8_t *p, uint32_t n_rows, uint32_t n_units, const float *c, const uint32_t width, const uint32_t n_t, const pk_type t)
{
    const bool paired = PAIRS && t.mins && !t.halves && t.scales, mins = t.mins && !paired;
    vf acc[LANES];
    pk_scales sc;
    sc.d = p;
    p += hl_packed_apart_bytes(&t.form, n_units, G);
    UNROLL for (uint32_t it = 0; it < n_t; it++) acc[it] = (vf){ 0 };
    for (uint32_t iu = 0; iu < n_units; iu++, p += t.form.bytes * G, sc.d += 2 * G) {
        if (t.scales) t.scales(p, &sc);
        if (paired) pk_add_mins(acc, &sc, c, width, n_t);
        if (n_t >= 4) UNROLL for (uint32_t at = 0; at < t.form.bytes * G; at += 64) __builtin_prefetch(p + AHEAD + at, 0, 3);
        for (uint32_t base = 0; base < t.form.cols / 32; base += t.period) {
            UNROLL for (uint32_t k = 0; k < t.period; k++, c += HL_Q8_WORDS * width) {
                const bool two = t.halves || n_t <= 2; /* few tokens: two chains, the instruction's latency is several times its rate */
                const int32_t *q = (const int32_t *)(const void *)c;
                vi u[8], dots[2][LANES];
                vf s[2], m[2];
                pk_group g[LANES];
                t.unpack(p, base, k, u);
                s[0] = t.scale(p, &sc, base + k, 0);
                s[1] = t.halves ? t.scale(p, &sc, base + k, 1) : s[0];
                m[0] = mins ? t.min(p, &sc, base + k, 0) : s[0];
                m[1] = mins && t.halves ? t.min(p, &sc, base + k, 1) : s[0];
                UNROLL for (uint32_t it = 0; it < n_t; it++) {
                    g[it] = (pk_group){ c + 8 * width + it, c + 9 * width + it, q + 12 * width + it, width };
                    dots[0][it] = pk_first(g[it], t.halves ? 0 : 2, t.shift);
                }
                pk_dots(dots[0], u, q, width, n_t, two ? 4 : 8, t.largest);
                if (two) {
                    UNROLL for (uint32_t it = 0; it < n_t; it++) dots[1][it] = t.halves ? pk_first(g[it], 1, t.shift) : pk_zero();
                    pk_dots(dots[1], u + 4, q + 4 * width, width, n_t, 4, t.largest);
                }
                UNROLL for (uint32_t it = 0; it < n_t; it++) {
                    vi both[2] = { dots[0][it], two ? dots[1][it] : dots[0][it] };
                    if (two && !t.halves) both[0] = pk_add32(both[0], both[1]);
                    acc[it] = pk_add(acc[it], both, s, m, g[it], t.halves, mins);
                }
            }
        }
    }
    UNROLL for (uint32_t it = 0; it < n_t; it++) vf_store_part(y + it * stride, acc[it], HL_MIN(n_rows, (uint32_t)G));
}

INLINE void packed_any(float *y, size_t stride, const pk_weights *w, const void *act, size_t act_bytes, uint32_t n_tok, uint8_t *scratch, const pk_type t)
{
    const uint32_t many = w->packed ? (uint32_t)HL_MAX(BLOCK_BYTES / w->group_bytes, (size_t)1) : n_tok <= HL_Q8_WIDEST ? 1 : FILE_GROUPS;
    for (uint32_t ir = 0; ir < w->n_rows; ir += many * G) {
        const uint8_t *from = w->packed ? w->w + ir / G * w->group_bytes : scratch;
        if (!w->packed) t.pack(scratch, w, ir, many);
        for (uint32_t it = 0, width; it < n_tok; it += width) {
            const float *c = (const float *)(const void *)((const uint8_t *)act + it * act_bytes);
            const uint8_t *p = from;
            width = hl_q8_width(n_tok - it);
            for (uint32_t at = ir; at < HL_MIN(ir + many * G, w->n_rows); at += G, p += w->group_bytes) {
                float *to = y + it * stride + at;
                const uint32_t n = w->n_rows - at;
                if (width == 8) for (uint32_t lane = 0; lane < 8; lane += LANES) columns(to + lane * stride, stride, p, n, w->n_units, c + lane, 8, LANES, t);
                else if (width == 4) columns(to, stride, p, n, w->n_units, c, 4, 4, t);
                else if (width == 2) columns(to, stride, p, n, w->n_units, c, 2, 2, t);
                else columns(to, stride, p, n, w->n_units, c, 1, 1, t);
            }
        }
    }
}

/* name, form, period, shift, halves, mins, largest, scales, scale, min */
#define PACKED_TYPES(X)                                                                                                                         \
    X(q4_0, q4_0, 2, 4, false, false, 15, NULL, pk_scale_d, NULL)                                                                               \
    X(q4_1, q4_1, 2, -1, false, true, 15, NULL, pk_scale_d, pk_min_4)                                                                           \
    X(q5_0, q5_0, 2, 3, false, false, 31, NULL, pk_scale_d, NULL)                                                                               \
    X(q5_1, q5_1, 2, -1, false, true, 31, NULL, pk_scale_d, pk_min_4)                                                                           \
    X(q8_0, q8_0, 2, BIAS ? 0 : -1, false, false, 255, NULL, pk_scale_d, NULL)                                                                  \
    X(iq4_nl, q4_0, 2, BIAS ? 0 : -1, false, false, 255, NULL, pk_scale_d, NULL)                                                                \
    X(mxfp4, mxfp4, 2, 3, false, false, 31, NULL, pk_scale_mxfp4, NULL)                                                                         \
    X(q2_K, q2_K, 4, -1, true, true, 15, pk_scales_q2_K, pk_scale_q2_K, pk_min_q2_K)                                                            \
    X(q3_K, q3_K, 8, 5, true, false, 15, pk_scales_q3_K, pk_scale_q3_K, NULL)                                                                   \
    X(q4_K, q4_K, 2, -1, false, true, 15, pk_scales_q4_K, pk_scale_q4_K, pk_min_q4_K)                                                           \
    X(q5_K, q5_K, 8, -1, false, true, 31, pk_scales_q4_K, pk_scale_q4_K, pk_min_q4_K)                                                           \
    X(q6_K, q6_K, 4, 2, true, false, 63, pk_scales_q6_K, pk_scale_q6_K, NULL)                                                                   \
    X(iq4_xs, iq4_xs, 2, BIAS ? 0 : -1, false, false, 255, pk_scales_iq4_xs, pk_scale_iq4_xs, NULL)

#define PACKED_TYPE(name, form, period, shift, two, minimums, most, scales_fn, scale_fn, min_fn)                                                \
    static __attribute__((noinline)) void packed_##name(float *y, size_t stride, const pk_weights *w, const void *act, size_t act_bytes,        \
                                                        uint32_t n_tok, uint8_t *scratch)                                                       \
    {                                                                                                                                           \
        const pk_type t = { hl_form_##form, period, shift, two, minimums, most, pack_##form, scales_fn, scale_fn, min_fn, pk_unpack_##name };   \
        packed_any(y, stride, w, act, act_bytes, n_tok, scratch, t);                                                                            \
    }
PACKED_TYPES(PACKED_TYPE)

#define pack_iq4_nl pack_q4_0
#define PACKED_SWITCH(CALL)                                                                                                                     \
    switch (dtype) {                                                                                                                            \
    case HL_Q4_0: CALL(q4_0); break;                                                                                                            \
    case HL_Q4_1: CALL(q4_1); break;                                                                                                            \
    case HL_Q5_0: CALL(q5_0); break;                                                                                                            \
    case HL_Q5_1: CALL(q5_1); break;                                                                                                            \
    case HL_Q8_0: CALL(q8_0); break;                                                                                                            \
    case HL_Q2_K: CALL(q2_K); break;                                                                                                            \
    case HL_Q3_K: CALL(q3_K); break;                                                                                                            \
    case HL_Q4_K: CALL(q4_K); break;                                                                                                            \
    case HL_Q5_K: CALL(q5_K); break;                                                                                                            \
    case HL_Q6_K: CALL(q6_K); break;                                                                                                            \
    case HL_IQ4_NL: CALL(iq4_nl); break;                                                                                                        \
    case HL_IQ4_XS: CALL(iq4_xs); break;                                                                                                        \
    default: CALL(mxfp4); break;                                                                                                                \
    }

static size_t matmul_scratch(uint32_t cols)
{
    return (size_t)(cols + 255) / 256 * 256 * G * FILE_GROUPS * 17 / 64 + 16;         /* a packed group has at most 68 bytes for 64 columns of a row */
}

static void matmul_q8(uint32_t dtype, bool packed, float *restrict y, size_t stride, const uint8_t *restrict w, size_t row_bytes, uint32_t n_rows, uint32_t cols,
                      const void *act, uint32_t n_tok, float *restrict scratch)
{
    const hl_form *f = hl_packed_form(dtype);
    const pk_weights pw = { w, row_bytes, hl_packed_group_bytes(f, cols, G), n_rows, cols / (f->cols / f->blocks), hl_packed_units(f, cols), packed };
    const size_t act_bytes = hl_q8_row_bytes(cols);
#define CALL(name) packed_##name(y, stride, &pw, act, act_bytes, n_tok, (uint8_t *)scratch)
    PACKED_SWITCH(CALL)
#undef CALL
}

static void pack(uint32_t dtype, void *to, const uint8_t *rows, size_t row_bytes, uint32_t n_rows, uint32_t cols)
{
    const hl_form *f = hl_packed_form(dtype);
    const pk_weights pw = { rows, row_bytes, hl_packed_group_bytes(f, cols, G), n_rows, cols / (f->cols / f->blocks), hl_packed_units(f, cols), false };
#define CALL(name) pack_##name(to, &pw, 0, UINT32_MAX)
    PACKED_SWITCH(CALL)
#undef CALL
}
