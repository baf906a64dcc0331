/* kern_packed.h: products of packed weights (packed.h) with 8-bit activations, written once for every vector width.
 *
 * A vector of 32-bit numbers has one lane for each of G rows; a dot-product instruction takes four columns of G rows and four bytes of the
 * activation, the same in every lane.  Nothing is added across lanes.  Columns go in groups of 32 (as the activations' scales do):
 *   y[row] += scale[row] * d * (sum of u * q  -  offset * sum of q)  +  min[row] * d * sum of q
 * with u the unsigned weight bytes.  The integer part is exact, the floating part is the same operations in the same order for every number
 * of tokens: equal bits however a call is cut.
 *   1 or 2 tokens   straight from the packed rows: bytes moved are the weights', once
 *   more            PANEL_R groups of rows are unpacked to bytes and f32 scales (a panel) and multiplied with tiles of up to PANEL_T tokens.
 *                   Many tokens: a panel has all columns and stays in the L2 cache; few: 256 columns, which stay in L1
 * Rows in the file's layout are packed first, PANEL_R groups at a time into scratch, which stays in the L2 cache: the same bits from both.
 *
 * The including file defines G, vi (G int32 or 4 G bytes), vf (G floats), BIAS (what makes 8-bit weights unsigned; 0: they stay signed),
 * PANEL_R, PANEL_T, and
 *   pk_load(p), pk_store(p, v)     4 G bytes, aligned
 *   pk_zero(), pk_set(x), pk_add(a, b), pk_sra(v, n)      32-bit lanes
 *   pk_bytes(b), pk_and(a, b), pk_or(a, b), pk_srl(v, n), pk_sll(v, n)    bytes; shifts are of 16-bit lanes: mask afterwards
 *   pk_table_16(t), pk_shuffle(table, i)   16-entry table
 *   pk_rows_4(to, rows, at)        4 planes of 4 bytes, from 16 bytes of each row
 *   pk_rows_1(to, rows, at)        4 planes of 1 byte, from 4 bytes of each row
 *   pk_rows_2(to, rows, at)        2 planes of 2 bytes, from 4 bytes of each row
 *   pk_f(v), pk_setf(f), pk_f16(p), pk_u8(p), pk_i8(p)    floats: from int32 lanes; one for all; G halves, bytes, signed bytes in memory
 *   pk_dots(to, w, w_step, x, n_r, n_t, n, largest)    or takes it from kern_dots.h
 *       to[r][t] += sum over j < n of w[r * w_step + j] . x[t][4 j ..] for r < n_r, t < n_t; largest: of a weight byte (255: BIAS)
 */
#include "cpu/packed.h"

#define INLINE static inline __attribute__((always_inline))

enum { LANE_BYTES = 4 * G, PANEL_VECTORS_MAX = 12 };

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

INLINE vf pk_scale_mxfp4(const uint8_t *p, const pk_scales *s, uint32_t ig, uint32_t half)
{
    const uint8_t *e = PLANE(p, ig);
    uint32_t bits[G];
    (void)s; (void)half;
    for (int r = 0; r < G; r++) bits[r] = e[r] < 2 ? 0x00200000u << e[r] : (uint32_t)(e[r] - 1) << 23;      /* 2^(e - 128) */
    vf f;
    memcpy(&f, bits, sizeof f);
    return f;
}

/* ---- 256-column blocks ---- */

INLINE vf pk_scale_u(const pk_scales *s, uint32_t i) { return s->dv * pk_u8(s->sc + i * G); }
INLINE vf pk_scale_i(const pk_scales *s, const uint8_t *sc) { return s->dv * pk_i8(sc); }
INLINE vf pk_min_u(const pk_scales *s, uint32_t i) { return s->mv * pk_u8(s->mn + i * G); }

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

INLINE void pk_scales_q6_K(const uint8_t *p, pk_scales *s) { (void)p; s->dv = pk_f16(s->d); }
INLINE vf pk_scale_q6_K(const uint8_t *p, const pk_scales *s, uint32_t ig, uint32_t half) { return pk_scale_i(s, PLANE(p, 2 * ig + half)); }

INLINE void pk_unpack_q6_K(const uint8_t *p, uint32_t base, const uint32_t k, vi u[8])
{
    const vi low = pk_bytes(15), top = pk_bytes(48);
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

INLINE vi pk_first(const hl_q8_unit *a, uint32_t part, uint32_t ag, int shift)         /* -offset * sum of q */
{
    return shift < 0 ? pk_zero() : pk_sra(pk_set(a->comp[part][ag]), shift);
}

/* One group of 32 columns for one token: the only place where integers become floats. */
INLINE vf pk_add(vf acc, const vi dots[2], const vf s[2], const vf m[2], const hl_q8_unit *a, uint32_t ag, bool halves, bool mins)
{
    const vf d = pk_setf(a->d[ag]);
    if (!halves) {
        acc = vf_fma(pk_f(dots[0]), s[0] * d, acc);
        return mins ? vf_fma(m[0], pk_setf(a->sum[2][ag]), acc) : acc;
    }
    acc = vf_fma(vf_fma(pk_f(dots[1]), s[1], pk_f(dots[0]) * s[0]), d, acc);
    return mins ? vf_fma(m[1], pk_setf(a->sum[1][ag]), vf_fma(m[0], pk_setf(a->sum[0][ag]), acc)) : acc;
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

/* ---- few tokens ---- */

enum { DIRECT_TOKENS = 2, FEW_TOKENS = 16 };

/* One group of rows by n_t tokens, a constant.  No prefetching by hand and one stream of memory: two streams, or prefetches of any distance, were
 * measured to be slower (32 GB/s of one core against 21), since they hide from the hardware what comes next. */
INLINE void direct(float *y, size_t stride, const uint8_t *p, uint32_t n_rows, uint32_t n_units, const hl_q8_unit *a, size_t act_bytes, const uint32_t n_t,
                   const pk_type t)
{
    vf acc[DIRECT_TOKENS];
    pk_scales sc;
    sc.d = p;
    p += hl_packed_apart_bytes(&t.form, n_units, G);
    UNROLL for (uint32_t it = 0; it < n_t; it++) acc[it] = (vf){ 0 };
    for (uint32_t iu = 0, ic = 0; iu < n_units; iu++, p += t.form.bytes * G, sc.d += 2 * G) {
        if (t.scales) t.scales(p, &sc);
        for (uint32_t base = 0; base < t.form.cols / 32; base += t.period) {
            UNROLL for (uint32_t k = 0; k < t.period; k++, ic++) {
                vi u[8];
                vf s[2], m[2];
                t.unpack(p, base, k, u);
                s[0] = t.scale(p, &sc, base + k, 0);
                s[1] = t.halves ? t.scale(p, &sc, base + k, 1) : s[0];
                m[0] = t.mins ? t.min(p, &sc, base + k, 0) : s[0];
                m[1] = t.mins && t.halves ? t.min(p, &sc, base + k, 1) : s[0];
                UNROLL for (uint32_t it = 0; it < n_t; it++) {
                    const hl_q8_unit *x = (const hl_q8_unit *)(const void *)((const uint8_t *)(a + ic / 8) + it * act_bytes);
                    const int8_t *q = x->q + 32 * (ic % 8), *q2 = q + 16;
                    vi dots[2];                        /* two chains: the instruction's latency is several times its rate */
                    dots[0] = pk_first(x, t.halves ? 0 : 2, ic % 8, t.shift);
                    dots[1] = t.halves ? pk_first(x, 1, ic % 8, t.shift) : pk_zero();
                    pk_dots(&dots[0], u, 0, &q, 1, 1, 4, t.largest);
                    pk_dots(&dots[1], u + 4, 0, &q2, 1, 1, 4, t.largest);
                    if (!t.halves) dots[0] = pk_add32(dots[0], dots[1]);
                    acc[it] = pk_add(acc[it], dots, s, m, x, ic % 8, t.halves, t.mins);
                }
            }
        }
    }
    UNROLL for (uint32_t it = 0; it < n_t; it++) vf_store_part(y + it * stride, acc[it], HL_MIN(n_rows, (uint32_t)G));
}

/* ---- many tokens ---- */

/* Per group of columns: 8 vectors of bytes, then 1 or 2 of scales, then as many of minimums. */
INLINE uint32_t panel_vectors(bool halves, bool mins) { return 8 + (halves ? 2u : 1u) * (mins ? 2 : 1); }

/* Units [iu0, iu1) of one group of rows. */
INLINE void unpack_panel(uint8_t *to, const uint8_t *p, uint32_t n_units, uint32_t iu0, uint32_t iu1, const pk_type t)
{
    const uint32_t n = panel_vectors(t.halves, t.mins);
    pk_scales sc;
    sc.d = p + (size_t)iu0 * 2 * G;
    p += hl_packed_apart_bytes(&t.form, n_units, G) + (size_t)iu0 * t.form.bytes * G;
    for (uint32_t iu = iu0; iu < iu1; iu++, p += t.form.bytes * G, sc.d += 2 * G) {
        if (t.scales) t.scales(p, &sc);
        for (uint32_t base = 0; base < t.form.cols / 32; base += t.period) {
            UNROLL for (uint32_t k = 0; k < t.period; k++, to += n * LANE_BYTES) {
                vi u[8];
                vf *at = (vf *)(void *)(to + 8 * LANE_BYTES);
                t.unpack(p, base, k, u);
                UNROLL for (int j = 0; j < 8; j++) pk_store(to + j * LANE_BYTES, u[j]);
                *at++ = t.scale(p, &sc, base + k, 0);
                if (t.halves) *at++ = t.scale(p, &sc, base + k, 1);
                if (t.mins) *at++ = t.min(p, &sc, base + k, 0);
                if (t.mins && t.halves) *at++ = t.min(p, &sc, base + k, 1);
            }
        }
    }
}

INLINE void tile(float *y, size_t stride, const uint8_t *panel, size_t panel_bytes, uint32_t n_rows, uint32_t n_groups, const hl_q8_unit *a, size_t act_bytes,
                 const uint32_t n_t, int shift, bool go_on, int largest, const bool halves, const bool mins)
{
    const uint32_t n = panel_vectors(halves, mins);
    vf acc[PANEL_R][PANEL_T];
    UNROLL for (uint32_t r = 0; r < PANEL_R; r++)
        UNROLL for (uint32_t it = 0; it < n_t; it++)
            acc[r][it] = go_on && r * G < n_rows ? vf_load_part(y + it * stride + r * G, HL_MIN(n_rows - r * G, (uint32_t)G)) : (vf){ 0 };
    for (uint32_t ic = 0; ic < n_groups; ic++, panel += n * LANE_BYTES) {
        const uint32_t ag = ic % 8;
        const hl_q8_unit *x[PANEL_T];
        const int8_t *q[PANEL_T];
        vi dots[2][PANEL_R][PANEL_T];
        UNROLL for (uint32_t it = 0; it < n_t; it++) {
            x[it] = (const hl_q8_unit *)(const void *)((const uint8_t *)(a + ic / 8) + it * act_bytes);
            q[it] = x[it]->q + 32 * ag;
            vi first = pk_first(x[it], halves ? 0 : 2, ag, shift);
            UNROLL for (uint32_t r = 0; r < PANEL_R; r++) dots[0][r][it] = first;
            if (halves) {
                first = pk_first(x[it], 1, ag, shift);
                UNROLL for (uint32_t r = 0; r < PANEL_R; r++) dots[1][r][it] = first;
            }
        }
        pk_dots(&dots[0][0][0], (const vi *)(const void *)panel, panel_bytes, q, PANEL_R, n_t, halves ? 4 : 8, largest);
        if (halves) {
            UNROLL for (uint32_t it = 0; it < n_t; it++) q[it] += 16;
            pk_dots(&dots[1][0][0], (const vi *)(const void *)(panel + 4 * LANE_BYTES), panel_bytes, q, PANEL_R, n_t, 4, largest);
        }
        UNROLL for (uint32_t r = 0; r < PANEL_R; r++) {
            const vf *at = (const vf *)(const void *)(panel + r * panel_bytes + 8 * LANE_BYTES);
            vf s[2] = { at[0], halves ? at[1] : at[0] }, m[2] = { s[0], s[0] };
            if (mins) { m[0] = at[halves ? 2 : 1]; m[1] = at[halves ? 3 : 1]; }
            UNROLL for (uint32_t it = 0; it < n_t; it++) {
                vi both[2] = { dots[0][r][it], halves ? dots[1][r][it] : dots[0][r][it] };
                acc[r][it] = pk_add(acc[r][it], both, s, m, x[it], ag, halves, mins);
            }
        }
    }
    UNROLL for (uint32_t r = 0; r < PANEL_R; r++)
        UNROLL for (uint32_t it = 0; it < n_t; it++)
            if (r * G < n_rows) vf_store_part(y + it * stride + r * G, acc[r][it], HL_MIN(n_rows - r * G, (uint32_t)G));
}

/* The tile's code depends on a type's shape only: one copy of each size for each shape. */
typedef void tile_fn(float *y, size_t stride, const uint8_t *panel, size_t panel_bytes, uint32_t n_rows, uint32_t n_groups, const hl_q8_unit *a, size_t act_bytes, int shift,
                     bool go_on);             /* adds to what y holds */

#define TILE(shape, n, two, minimums, most)                                                                                                     \
    static __attribute__((noinline)) void tile_##shape##_##n(float *y, size_t stride, const uint8_t *panel, size_t panel_bytes, uint32_t n_rows, \
                                                             uint32_t n_groups, const hl_q8_unit *a, size_t act_bytes, int shift, bool go_on)   \
    {                                                                                                                                           \
        tile(y, stride, panel, panel_bytes, n_rows, n_groups, a, act_bytes, n, shift, go_on, most, two, minimums);                              \
    }
#define PANEL_SHAPE(shape, two, minimums, most)                                                                                                 \
    TILES(shape, two, minimums, most)                                                                                                           \
    static tile_fn *const tiles_##shape[PANEL_T] = { TILE_NAMES(shape) };
PANEL_SHAPES

INLINE void packed_any(float *y, size_t stride, const pk_weights *w, const hl_q8_unit *a, size_t act_bytes, uint32_t n_tok, uint8_t *scratch, const pk_type t,
                       tile_fn *const *tiles)
{
    const uint32_t unit_groups = t.form.cols / 32, n_tiles = (n_tok + PANEL_T - 1) / PANEL_T, step = n_tok <= FEW_TOKENS ? 8 / unit_groups : w->n_units;
    const size_t panel_bytes = (size_t)step * unit_groups * panel_vectors(t.halves, t.mins) * LANE_BYTES;
    uint8_t *packed = scratch + PANEL_R * panel_bytes;
    for (uint32_t ir = 0; ir < w->n_rows; ir += PANEL_R * G) {
        const uint8_t *p = w->packed ? w->w + ir / G * w->group_bytes : packed;
        const uint32_t n = w->n_rows - ir;
        if (n_tok <= DIRECT_TOKENS) {
            for (uint32_t r = 0; r < PANEL_R && r * G < n; r++, p += w->packed ? w->group_bytes : 0) {
                if (!w->packed) t.pack(packed, w, ir + r * G, 1);
                if (n_tok == 1) direct(y + ir + r * G, stride, p, n - r * G, w->n_units, a, act_bytes, 1, t);
                else direct(y + ir + r * G, stride, p, n - r * G, w->n_units, a, act_bytes, 2, t);
            }
            continue;
        }
        if (!w->packed) t.pack(packed, w, ir, PANEL_R);
        for (uint32_t iu = 0; iu < w->n_units; iu += step) {
            const uint32_t end = HL_MIN(iu + step, w->n_units);
            for (uint32_t r = 0; r < PANEL_R && r * G < n; r++) unpack_panel(scratch + r * panel_bytes, p + r * w->group_bytes, w->n_units, iu, end, t);
            if (step < w->n_units && w->packed) {      /* memory is read while the tiles compute */
                for (uint32_t r = 0; r < PANEL_R && r * G < n; r++)
                    for (uint32_t at = 0; at < step * t.form.bytes * G; at += 64)
                        __builtin_prefetch(p + r * w->group_bytes + (size_t)end * t.form.bytes * G + at, 0, 2);
            }
            for (uint32_t i = 0, it = 0; i < n_tiles; i++) {            /* tiles as equal as they can be */
                const uint32_t next = (uint32_t)((uint64_t)n_tok * (i + 1) / n_tiles);
                const hl_q8_unit *x = (const hl_q8_unit *)(const void *)((const uint8_t *)(a + iu * unit_groups / 8) + it * act_bytes);
                tiles[next - it - 1](y + it * stride + ir, stride, scratch, panel_bytes, n, (end - iu) * unit_groups, x, act_bytes, t.shift, iu != 0);
                it = next;
            }
        }
    }
}

/* name, form, period, shift, halves, mins, largest, scales, scale, min, shape */
#define PACKED_TYPES(X)                                                                                                                         \
    X(q4_0, q4_0, 2, 4, false, false, 15, NULL, pk_scale_d, NULL, plain_15)                                                                        \
    X(q4_1, q4_1, 2, -1, false, true, 15, NULL, pk_scale_d, pk_min_4, mins_15)                                                                     \
    X(q5_0, q5_0, 2, 3, false, false, 31, NULL, pk_scale_d, NULL, plain_31)                                                                        \
    X(q5_1, q5_1, 2, -1, false, true, 31, NULL, pk_scale_d, pk_min_4, mins_31)                                                                     \
    X(q8_0, q8_0, 2, BIAS ? 0 : -1, false, false, 255, NULL, pk_scale_d, NULL, plain_255)                                                          \
    X(iq4_nl, q4_0, 2, BIAS ? 0 : -1, false, false, 255, NULL, pk_scale_d, NULL, plain_255)                                                        \
    X(mxfp4, mxfp4, 2, 3, false, false, 31, NULL, pk_scale_mxfp4, NULL, plain_31)                                                                  \
    X(q2_K, q2_K, 4, -1, true, true, 15, pk_scales_q2_K, pk_scale_q2_K, pk_min_q2_K, halves_mins_15)                                               \
    X(q3_K, q3_K, 8, 5, true, false, 15, pk_scales_q3_K, pk_scale_q3_K, NULL, halves_15)                                                           \
    X(q4_K, q4_K, 2, -1, false, true, 15, pk_scales_q4_K, pk_scale_q4_K, pk_min_q4_K, mins_15)                                                     \
    X(q5_K, q5_K, 8, -1, false, true, 31, pk_scales_q4_K, pk_scale_q4_K, pk_min_q4_K, mins_31)                                                     \
    X(q6_K, q6_K, 4, 2, true, false, 63, pk_scales_q6_K, pk_scale_q6_K, NULL, halves_63)                                                                     \
    X(iq4_xs, iq4_xs, 2, BIAS ? 0 : -1, false, false, 255, pk_scales_iq4_xs, pk_scale_iq4_xs, NULL, plain_255)

#define PACKED_TYPE(name, form, period, shift, two, minimums, most, scales_fn, scale_fn, min_fn, shape)                                         \
    static __attribute__((noinline)) void packed_##name(float *y, size_t stride, const pk_weights *w, const hl_q8_unit *a, size_t act_bytes,    \
                                                        uint32_t n_tok, uint8_t *scratch)                                                       \
    {                                                                                                                                           \
        const pk_type t = { hl_form_##form, period, shift, two, minimums, most, pack_##form, scales_fn, scale_fn, min_fn, pk_unpack_##name };  \
        packed_any(y, stride, w, a, act_bytes, n_tok, scratch, t, tiles_##shape);                                                               \
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
    const size_t group = (cols + 255) / 256 * 256 * (size_t)G;         /* a packed group has at most 68 bytes for 64 columns of a row */
    return HL_MAX(PANEL_R * (group / 32 * PANEL_VECTORS_MAX + group * 17 / 64 + 16), (size_t)cols * 4);        /* or 4 rows as floats */
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
