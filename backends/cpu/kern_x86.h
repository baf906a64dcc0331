/* kern_x86.h: products of quantised weights with 8-bit activations, written once for AVX2 and AVX-512.
 *
 * A unit is 256 columns, 8 groups of 32, of one row; a vector holds ROWS rows' share of it side by side, 256 bits each (ROWS is 1 with
 * AVX2, 2 with AVX-512).  A lane of the sum belongs to one row and to the groups of one number modulo 8, in both of the two ways:
 *   few tokens: weights straight from the file's blocks; the integer sums of a group are added across lanes;
 *   many tokens: 16 rows are unpacked once into a panel of bytes in tile order (byte vector i holds columns 4i..4i+3 of all 8 groups),
 *   as the activations already are, so that nothing is added across lanes until a row's end.
 * Integer sums are exact, the floating operations on them are the same and in the same order: equal bits either way.
 *
 * Weight bytes are unsigned, w = scale * (u - offset) + min; the offset is taken out by the activations' integer sums.
 *
 * The including file defines ROWS, rows (at[ROWS]: where each row is), vi (integers), vb and vh (bytes, 16-bit), vf, and
 *   load_32(r, at), load_16(r, at)     32 bytes of each row; 16 bytes of each row, twice
 *   both_32(p), both_8f(p)             the same 32 bytes, 8 floats for every row
 *   bits_32(r, at, b)                  bytes that are b where the row's bit (of 32 at byte `at`) is set, else 0
 *   f16x8(r, at, stride)               8 halves of each row
 *   u8x8(b), i8x8(b)                   8 bytes of each row (in a uint64_t) as floats
 *   rows_set(f)                        f[ir] in all 8 lanes of row ir
 *   shuffle(table, index), unpack_{lo,hi}{32,64}(a, b), lanes_even(a, b), lanes_odd(a, b): per 128-bit lane; lanes of each row
 *   dot(u, a, wide)                    int32 sums of 4 products; wide: u was made with BIAS
 *   nibbles(v), table_16(t), zero(), add, times, to_f, pick_even, pick_odd, sum_rows(a, b, c, d, sum): as they say
 *   PANEL_SHAPES                       PANEL_SHAPE(name, halves, mins, largest) for the shapes below; one may stand for others
 *   tile_dots(dots, w, row_vectors, a, n_tok, halves, largest)
 *                                      adds a unit's products: dots[TILE_VECTORS][TILE_ACTS][2] += w[k * row_vectors + i] . a[it]->tile[i]
 */
typedef struct unit_scales { vf scale[2], min[2]; } unit_scales;       /* of columns 0..15 and 16..31 of each group, if they differ */

typedef void panel_fn(float *y, size_t stride, const vb *panel, uint32_t n_rows, uint32_t cols, const void *act, uint32_t n_tok, int32_t offset);

/* What the code for one type is made from; all constant when inlined. */
typedef struct quant {
    void (*unpack)(const rows *r, vb v[8]);            /* v[i]: group i, in order */
    void (*scales)(const rows *r, unit_scales *s);
    uint32_t unit_bytes;                               /* of 8 groups in the file */
    int32_t offset;
    bool halves, mins, small;                          /* two scales per group; minimums; blocks of 32, so that the last unit may be short */
    int32_t largest;                                   /* of u; 255: made with BIAS */
    panel_fn *panel;                                   /* the product for this shape */
} quant;

static inline vb bytes_set(uint8_t b) { return (vb){ 0 } + b; }
static inline vb srl(vb v, int n) { return (vb)((vh)v >> n); }         /* of 16-bit units: mask afterwards */
static inline vb sll(vb v, int n) { return (vb)((vh)v << n); }

/* ---- blocks of 32 ---- */

static inline __attribute__((always_inline)) void unpack_nibbles(const rows *r, vb v[8], size_t at, size_t stride)
{
    UNROLL for (size_t i = 0; i < 8; i++) v[i] = nibbles(load_16(r, at + i * stride));
}

static inline __attribute__((always_inline)) void unpack_fives(const rows *r, vb v[8], size_t at, size_t bits_at, size_t stride)
{
    UNROLL for (size_t i = 0; i < 8; i++) v[i] = nibbles(load_16(r, at + i * stride)) | bits_32(r, bits_at + i * stride, 16);
}

static inline __attribute__((always_inline)) void unpack_table(const rows *r, vb v[8], size_t at, size_t stride, const int8_t table[16], int add)
{
    vb t = table_16(table) + bytes_set((uint8_t)add);
    UNROLL for (size_t i = 0; i < 8; i++) v[i] = shuffle(t, nibbles(load_16(r, at + i * stride)));
}

static inline void unpack_q4_0(const rows *r, vb v[8]) { unpack_nibbles(r, v, 2, sizeof(hl_block_q4_0)); }
static inline void unpack_q4_1(const rows *r, vb v[8]) { unpack_nibbles(r, v, 4, sizeof(hl_block_q4_1)); }
static inline void unpack_q5_0(const rows *r, vb v[8]) { unpack_fives(r, v, 6, 2, sizeof(hl_block_q5_0)); }
static inline void unpack_q5_1(const rows *r, vb v[8]) { unpack_fives(r, v, 8, 4, sizeof(hl_block_q5_1)); }
static inline void unpack_iq4_nl(const rows *r, vb v[8]) { unpack_table(r, v, 2, sizeof(hl_block_iq4_nl), hl_table_iq4_nl, BIAS); }
static inline void unpack_mxfp4(const rows *r, vb v[8]) { unpack_table(r, v, 1, sizeof(hl_block_mxfp4), hl_table_mxfp4, 12); }

static inline void unpack_q8_0(const rows *r, vb v[8])
{
    UNROLL for (size_t i = 0; i < 8; i++) v[i] = load_32(r, 2 + i * sizeof(hl_block_q8_0)) ^ bytes_set(BIAS);
}

static inline void scales_18(const rows *r, unit_scales *s) { s->scale[0] = f16x8(r, 0, 18); }
static inline void scales_q5_0(const rows *r, unit_scales *s) { s->scale[0] = f16x8(r, 0, sizeof(hl_block_q5_0)); }
static inline void scales_q8_0(const rows *r, unit_scales *s) { s->scale[0] = f16x8(r, 0, sizeof(hl_block_q8_0)); }

static inline void scales_q4_1(const rows *r, unit_scales *s)
{
    s->scale[0] = f16x8(r, 0, sizeof(hl_block_q4_1));
    s->min[0] = f16x8(r, 2, sizeof(hl_block_q4_1));
}

static inline void scales_q5_1(const rows *r, unit_scales *s)
{
    s->scale[0] = f16x8(r, 0, sizeof(hl_block_q5_1));
    s->min[0] = f16x8(r, 2, sizeof(hl_block_q5_1));
}

static inline void scales_mxfp4(const rows *r, unit_scales *s)
{
    float f[8 * ROWS];
    for (int ir = 0; ir < ROWS; ir++)
        for (int i = 0; i < 8; i++) f[8 * ir + i] = mxfp4_scale(r->at[ir][i * 17]);
    memcpy(&s->scale[0], f, sizeof f);
}

/* ---- blocks of 256 ---- */

/* a scale of each row times 8 small integers */
static inline vf scaled(const float d[ROWS], vf small) { return rows_set(d) * small; }

static inline void row_f16(const rows *r, size_t at, float sign, float d[ROWS])
{
    for (int ir = 0; ir < ROWS; ir++) d[ir] = sign * f16_f32(load_u16(r->at[ir] + at));
}

/* 16 bytes as 8 of the even places and 8 of the odd ones */
static inline void even_odd(__m128i b, uint64_t *even, uint64_t *odd)
{
    b = _mm_shuffle_epi8(b, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    *even = (uint64_t)_mm_cvtsi128_si64(b);
    *odd = (uint64_t)_mm_extract_epi64(b, 1);
}

static inline void unpack_q2_K(const rows *r, vb v[8])
{
    const vb three = bytes_set(3);
    UNROLL for (int h = 0; h < 2; h++) {
        vb x = load_32(r, (size_t)(16 + 32 * h));
        UNROLL for (int j = 0; j < 4; j++) v[4 * h + j] = srl(x, 2 * j) & three;
    }
}

static inline void scales_q2_K(const rows *r, unit_scales *s)
{
    uint64_t sc[2][ROWS], mn[2][ROWS];
    float d[ROWS], dmin[ROWS];
    row_f16(r, 80, 1, d);
    row_f16(r, 82, -1, dmin);
    for (int ir = 0; ir < ROWS; ir++) {
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)r->at[ir]), low = _mm_set1_epi8(15);
        even_odd(_mm_and_si128(b, low), &sc[0][ir], &sc[1][ir]);
        even_odd(_mm_and_si128(_mm_srli_epi16(b, 4), low), &mn[0][ir], &mn[1][ir]);
    }
    for (int h = 0; h < 2; h++) {
        s->scale[h] = scaled(d, u8x8(sc[h]));
        s->min[h] = scaled(dmin, u8x8(mn[h]));
    }
}

static inline void unpack_q3_K(const rows *r, vb v[8])
{
    const vb three = bytes_set(3), four = bytes_set(4);
    vb mask = load_32(r, 0);
    UNROLL for (int h = 0; h < 2; h++) {
        vb x = load_32(r, (size_t)(32 + 32 * h));
        UNROLL for (int j = 0; j < 4; j++) {
            int g = 4 * h + j;
            v[g] = (srl(x, 2 * j) & three) | ((g < 2 ? sll(mask, 2 - g) : srl(mask, g - 2)) & four);
        }
    }
}

static inline void scales_q3_K(const rows *r, unit_scales *s)
{
    uint64_t sc[2][ROWS];
    float d[ROWS];
    row_f16(r, 108, 1, d);
    for (int ir = 0; ir < ROWS; ir++) {
        const uint8_t *p = r->at[ir] + 96;
        uint32_t a = load_u32(p), b = load_u32(p + 4), c = load_u32(p + 8);
        __m128i u = _mm_set_epi32((int)((b >> 4 & 0x0F0F0F0F) | (c >> 2 & 0x30303030)), (int)((a >> 4 & 0x0F0F0F0F) | (c & 0x30303030)),
                                  (int)((b & 0x0F0F0F0F) | (c << 2 & 0x30303030)), (int)((a & 0x0F0F0F0F) | (c << 4 & 0x30303030)));
        even_odd(_mm_sub_epi8(u, _mm_set1_epi8(32)), &sc[0][ir], &sc[1][ir]);
    }
    for (int h = 0; h < 2; h++) s->scale[h] = scaled(d, i8x8(sc[h]));
}

static inline void unpack_q4_K(const rows *r, vb v[8])
{
    const vb low = bytes_set(15);
    UNROLL for (int c = 0; c < 4; c++) {
        vb x = load_32(r, (size_t)(16 + 32 * c));
        v[2 * c] = x & low;
        v[2 * c + 1] = srl(x, 4) & low;
    }
}

static inline void scales_q4_K(const rows *r, unit_scales *s)
{
    uint64_t sc[ROWS], mn[ROWS];
    float d[ROWS], dmin[ROWS];
    row_f16(r, 0, 1, d);
    row_f16(r, 2, -1, dmin);
    for (int ir = 0; ir < ROWS; ir++) {
        const uint8_t *p = r->at[ir] + 4;
        uint32_t a = load_u32(p), b = load_u32(p + 4), c = load_u32(p + 8);
        sc[ir] = (a & 0x3F3F3F3F) | (uint64_t)((c & 0x0F0F0F0F) | (a >> 2 & 0x30303030)) << 32;
        mn[ir] = (b & 0x3F3F3F3F) | (uint64_t)((c >> 4 & 0x0F0F0F0F) | (b >> 2 & 0x30303030)) << 32;
    }
    s->scale[0] = scaled(d, u8x8(sc));
    s->min[0] = scaled(dmin, u8x8(mn));
}

static inline void unpack_q5_K(const rows *r, vb v[8])
{
    const vb low = bytes_set(15), fifth = bytes_set(16);
    vb high = load_32(r, 16);
    UNROLL for (int c = 0; c < 4; c++) {
        vb x = load_32(r, (size_t)(48 + 32 * c));
        UNROLL for (int k = 0; k < 2; k++) {
            int g = 2 * c + k;
            v[g] = ((k ? srl(x, 4) : x) & low) | ((g < 4 ? sll(high, 4 - g) : srl(high, g - 4)) & fifth);
        }
    }
}

static inline void unpack_q6_K(const rows *r, vb v[8])
{
    const vb low = bytes_set(15), top = bytes_set(48);
    UNROLL for (int h = 0; h < 2; h++) {
        vb a = load_32(r, (size_t)(64 * h)), b = load_32(r, (size_t)(64 * h + 32)), c = load_32(r, (size_t)(128 + 32 * h));
        v[4 * h] = (a & low) | (sll(c, 4) & top);
        v[4 * h + 1] = (b & low) | (sll(c, 2) & top);
        v[4 * h + 2] = (srl(a, 4) & low) | (c & top);
        v[4 * h + 3] = (srl(b, 4) & low) | (srl(c, 2) & top);
    }
}

static inline void scales_q6_K(const rows *r, unit_scales *s)
{
    uint64_t sc[2][ROWS];
    float d[ROWS];
    row_f16(r, 208, 1, d);
    for (int ir = 0; ir < ROWS; ir++) even_odd(_mm_loadu_si128((const __m128i *)(const void *)(r->at[ir] + 192)), &sc[0][ir], &sc[1][ir]);
    for (int h = 0; h < 2; h++) s->scale[h] = scaled(d, i8x8(sc[h]));
}

static inline void unpack_iq4_xs(const rows *r, vb v[8]) { unpack_table(r, v, 8, 16, hl_table_iq4_nl, BIAS); }

static inline void scales_iq4_xs_rows(const rows *r, unit_scales *s)
{
    uint64_t sc[ROWS];
    float d[ROWS];
    row_f16(r, 0, 1, d);
    for (int ir = 0; ir < ROWS; ir++) {
        int8_t b[8];
        scales_iq4_xs(r->at[ir], b);
        memcpy(&sc[ir], b, 8);
    }
    s->scale[0] = scaled(d, i8x8(sc));
}

/* ---- the sums ---- */

/* The one place where integer sums become floats: for few tokens and for many. */
static inline __attribute__((always_inline)) vf add_unit(vf acc, const vi dots[2], const unit_scales *s, const hl_q8_unit *a, const quant t)
{
    vf d = both_8f(a->d), part;
    if (t.halves) part = vf_fma(to_f(dots[1]), s->scale[1], to_f(dots[0]) * s->scale[0]);
    else part = to_f(dots[0]) * s->scale[0];
    acc = vf_fma(part, d, acc);
    if (!t.mins) return acc;
    vf low = both_8f(a->sum[0]), high = both_8f(a->sum[1]);
    if (!t.halves) return vf_fma(s->min[0], low + high, acc);
    return vf_fma(s->min[1], high, vf_fma(s->min[0], low, acc));
}

/* -offset * the activations' integer sums: what dots begin with */
static inline __attribute__((always_inline)) void first_dots(vi dots[2], const hl_q8_unit *a, const quant t)
{
    dots[0] = dots[1] = zero();
    if (t.mins) return;                                /* these have no offset */
    vi low = both_32(a->isum[0]), high = both_32(a->isum[1]);
    if (t.halves) dots[1] = times(high, -t.offset);
    dots[0] = times(t.halves ? low : add(low, high), -t.offset);
}

static inline vi add_pairs(vi a, vi b)                 /* sums of neighbours: a's, then b's, in each 128-bit lane */
{
    vf x = (vf)a, y = (vf)b;
    return add((vi)pick_even(x, y), (vi)pick_odd(x, y));
}

static inline __attribute__((always_inline)) vf unit_direct(vf acc, const vb v[8], const unit_scales *s, const hl_q8_unit *a, const quant t)
{
    vi p[8], dots[2];
    UNROLL for (uint32_t i = 0; i < 8; i++) p[i] = dot(v[i], both_32(a->q + 32 * i), t.largest == 255);
    vi low = add_pairs(add_pairs(p[0], p[1]), add_pairs(p[2], p[3]));      /* per row: groups 0..3, first halves; second halves */
    vi high = add_pairs(add_pairs(p[4], p[5]), add_pairs(p[6], p[7]));
    vi first = (vi)lanes_even((vb)low, (vb)high), second = (vi)lanes_odd((vb)low, (vb)high);
    first_dots(dots, a, t);
    dots[0] = add(dots[0], t.halves ? first : add(first, second));
    if (t.halves) dots[1] = add(dots[1], second);
    return add_unit(acc, dots, s, a, t);
}

/* The last unit of blocks of 32 may be short: it is copied and completed with zero blocks. */
typedef struct short_unit { uint8_t bytes[ROWS][8 * sizeof(hl_block_q8_0)]; } short_unit;

static inline void complete(short_unit *to, rows *r, size_t bytes)
{
    memset(to, 0, sizeof *to);
    for (int ir = 0; ir < ROWS; ir++) {
        memcpy(to->bytes[ir], r->at[ir], bytes);
        r->at[ir] = to->bytes[ir];
    }
}

/* Rows of a vector are n_rows / ROWS apart, so that each runs through one stretch of memory. */
static inline rows rows_at(const uint8_t *w, size_t row_bytes, uint32_t ir, uint32_t step, uint32_t n_rows)
{
    rows r;
    for (uint32_t k = 0; k < ROWS; k++) r.at[k] = w + HL_MIN(ir + k * step, n_rows - 1) * row_bytes;
    return r;
}

static inline void rows_next(rows *r, uint32_t bytes)
{
    for (int k = 0; k < ROWS; k++) r->at[k] += bytes;
}

enum { PREFETCH_AHEAD = 2048 };

enum { FEW_TOKENS = 2 };                               /* up to here straight from the blocks is cheaper than a panel */

/* n_tok <= FEW_TOKENS, a constant: a unit is unpacked once for all of them. */
static inline __attribute__((always_inline)) void matmul_direct(float *y, size_t stride, const uint8_t *w, size_t row_bytes, uint32_t n_rows, uint32_t cols,
                                                                const void *act, const uint32_t n_tok, const quant t)
{
    uint32_t step = (n_rows + ROWS - 1) / ROWS, full = cols / 256, n_units = (cols + 255) / 256;
    const hl_q8_unit *a[FEW_TOKENS];
    for (uint32_t it = 0; it < n_tok; it++) a[it] = hl_q8_row_at((void *)(uintptr_t)act, cols, it);
    for (uint32_t ir = 0; ir < step; ir++) {
        rows r = rows_at(w, row_bytes, ir, step, n_rows);
        short_unit last;
        vf acc[FEW_TOKENS] = { { 0 } };
        for (uint32_t iu = 0; iu < n_units; iu++) {
            vb v[8];
            unit_scales s;
            if (t.small && iu == full) complete(&last, &r, cols % 256 / 32 * (t.unit_bytes / 8));
            for (int k = 0; k < ROWS; k++)
                for (uint32_t at = 0; at < t.unit_bytes; at += 64) _mm_prefetch((const char *)r.at[k] + PREFETCH_AHEAD + at, _MM_HINT_T0);
            t.unpack(&r, v);
            t.scales(&r, &s);
            UNROLL for (uint32_t it = 0; it < n_tok; it++) acc[it] = unit_direct(acc[it], v, &s, a[it] + iu, t);
            rows_next(&r, t.unit_bytes);
        }
        float sum[4][ROWS];
        sum_rows(acc[0], acc[n_tok - 1], acc[0], acc[0], sum);
        for (uint32_t it = 0; it < n_tok; it++)
            for (uint32_t k = 0; k < ROWS; k++) if (ir + k * step < n_rows) y[it * stride + ir + k * step] = sum[it][k];
    }
}

/* ---- many tokens ---- */

enum { PANEL_ROWS = 16, PANEL_VECTORS = PANEL_ROWS / ROWS, UNIT_VECTORS = 12 };          /* 8 of bytes, 2 of scales, 2 of minimums */

static inline vb tile_from(const vb t[4], const vb u[4], int i)        /* bytes 4i..4i+3 of each group */
{
    return i < 4 ? lanes_even(t[i], u[i]) : lanes_odd(t[i - 4], u[i - 4]);
}

static inline void transpose_4(const vb v[4], vb t[4]) /* dwords within 128-bit lanes */
{
    vb a = unpack_lo32(v[0], v[1]), b = unpack_hi32(v[0], v[1]), c = unpack_lo32(v[2], v[3]), d = unpack_hi32(v[2], v[3]);
    t[0] = unpack_lo64(a, c);
    t[1] = unpack_hi64(a, c);
    t[2] = unpack_lo64(b, d);
    t[3] = unpack_hi64(b, d);
}

static inline __attribute__((always_inline)) void pack_unit(vb *to, const rows *r, const quant t)
{
    vb v[8], a[4], b[4];
    unit_scales s;
    t.unpack(r, v);
    t.scales(r, &s);
    transpose_4(v, a);
    transpose_4(v + 4, b);
    UNROLL for (int i = 0; i < 8; i++) to[i] = tile_from(a, b, i);
    to[8] = (vb)s.scale[0];
    if (t.halves) to[9] = (vb)s.scale[1];
    if (t.mins) to[10] = (vb)s.min[0];
    if (t.mins && t.halves) to[11] = (vb)s.min[1];
}

static inline __attribute__((always_inline)) void pack_rows(vb *to, const uint8_t *w, size_t row_bytes, uint32_t ir, uint32_t n_rows, uint32_t cols,
                                                            const quant t)
{
    uint32_t full = cols / 256, n_units = (cols + 255) / 256;
    rows r = rows_at(w, row_bytes, ir, 1, n_rows);
    short_unit last;
    for (uint32_t iu = 0; iu < n_units; iu++, to += UNIT_VECTORS) {
        if (t.small && iu == full) complete(&last, &r, cols % 256 / 32 * (t.unit_bytes / 8));
        pack_unit(to, &r, t);
        rows_next(&r, t.unit_bytes);
    }
}

/* A tile of TILE_VECTORS row vectors by n_tok <= TILE_ACTS tokens, whose activations are act_bytes apart. */
static inline __attribute__((always_inline)) void tile_q8(float *y, size_t stride, const vb *panel, uint32_t n_rows, uint32_t n_units, const hl_q8_unit *act0,
                                                          size_t act_bytes, const uint32_t n_tok, const quant t)
{
    vf acc[TILE_VECTORS][TILE_ACTS];
    size_t row_vectors = (size_t)n_units * UNIT_VECTORS;
    UNROLL for (uint32_t k = 0; k < TILE_VECTORS; k++)
        UNROLL for (uint32_t it = 0; it < TILE_ACTS; it++) acc[k][it] = (vf){ 0 };
    for (uint32_t iu = 0; iu < n_units; iu++) {
        vi dots[TILE_VECTORS][TILE_ACTS][2];
        const hl_q8_unit *a[TILE_ACTS];
        const vb *w = panel + (size_t)iu * UNIT_VECTORS;
        UNROLL for (uint32_t it = 0; it < n_tok; it++) {
            a[it] = (const hl_q8_unit *)(const void *)((const uint8_t *)(act0 + iu) + it * act_bytes);
            first_dots(dots[0][it], a[it], t);
            UNROLL for (uint32_t k = 1; k < TILE_VECTORS; k++) { dots[k][it][0] = dots[0][it][0]; dots[k][it][1] = dots[0][it][1]; }
        }
        tile_dots(dots, w, row_vectors, a, n_tok, t.halves, t.largest);
        UNROLL for (uint32_t k = 0; k < TILE_VECTORS; k++) {
            const vb *ws = w + k * row_vectors;
            unit_scales s = { { (vf)ws[8], t.halves ? (vf)ws[9] : (vf){ 0 } }, { t.mins ? (vf)ws[10] : (vf){ 0 }, t.mins && t.halves ? (vf)ws[11] : (vf){ 0 } } };
            UNROLL for (uint32_t it = 0; it < n_tok; it++) acc[k][it] = add_unit(acc[k][it], dots[k][it], &s, a[it], t);
        }
    }
    UNROLL for (uint32_t k = 0; k < TILE_VECTORS; k++) {
        float sum[4][ROWS];
        sum_rows(acc[k][0], acc[k][n_tok > 1 ? 1 : 0], acc[k][n_tok > 2 ? 2 : 0], acc[k][n_tok > 3 ? 3 : 0], sum);
        for (uint32_t it = 0; it < n_tok; it++)
            for (uint32_t ir = 0; ir < ROWS; ir++) if (k * ROWS + ir < n_rows) y[it * stride + k * ROWS + ir] = sum[it][ir];
    }
}

static inline __attribute__((always_inline)) void matmul_panel(float *y, size_t stride, const vb *panel, uint32_t n_rows, uint32_t cols, const void *act,
                                                               uint32_t n_tok, const quant t)
{
    uint32_t n_units = (cols + 255) / 256;
    size_t act_bytes = hl_q8_row_bytes(cols);
    for (uint32_t it = 0; it < n_tok; it += TILE_ACTS) {
        uint32_t n = HL_MIN(n_tok - it, (uint32_t)TILE_ACTS);
        const hl_q8_unit *a = hl_q8_row_at((void *)(uintptr_t)act, cols, it);
        for (uint32_t ir = 0; ir < n_rows; ir += TILE_VECTORS * ROWS) {
            const vb *w = panel + (size_t)(ir / ROWS) * n_units * UNIT_VECTORS;
            float *to = y + it * stride + ir;
            if (n == TILE_ACTS) tile_q8(to, stride, w, n_rows - ir, n_units, a, act_bytes, TILE_ACTS, t);
            else for (uint32_t k = 0; k < n; k++) tile_q8(to + k * stride, stride, w, n_rows - ir, n_units, hl_q8_row_at((void *)(uintptr_t)act, cols, it + k), 0, 1, t);
        }
    }
}

/* The panel's product depends on a type's shape only: one copy for each shape. */
#define PANEL_SHAPE(name, two, minimums, most)                                                                                                   \
    static __attribute__((noinline)) void panel_##name(float *y, size_t stride, const vb *panel, uint32_t n_rows, uint32_t cols, const void *a,      \
                                                       uint32_t n_tok, int32_t offset)                                                           \
    {                                                                                                                                            \
        matmul_panel(y, stride, panel, n_rows, cols, a, n_tok, (const quant){ NULL, NULL, 0, offset, two, minimums, false, most, NULL });              \
    }
PANEL_SHAPES

static inline __attribute__((always_inline)) void matmul_type(float *y, size_t stride, const uint8_t *w, size_t row_bytes, uint32_t n_rows, uint32_t cols,
                                                              const void *act_base, uint32_t n_tok, float *scratch, const quant t)
{
    vb *panel = (vb *)(void *)scratch;
    if (n_tok == 1) { matmul_direct(y, stride, w, row_bytes, n_rows, cols, act_base, 1, t); return; }
    if (n_tok == 2) { matmul_direct(y, stride, w, row_bytes, n_rows, cols, act_base, 2, t); return; }
    for (uint32_t ir = 0; ir < n_rows; ir += PANEL_ROWS) {
        uint32_t n = HL_MIN(n_rows - ir, (uint32_t)PANEL_ROWS), n_vectors = (uint32_t)hl_align_up((n + ROWS - 1) / ROWS, TILE_VECTORS);
        for (uint32_t k = 0; k < n_vectors; k++)
            pack_rows(panel + (size_t)k * ((cols + 255) / 256) * UNIT_VECTORS, w + ir * row_bytes, row_bytes, k * ROWS, n, cols, t);
        t.panel(y + ir, stride, panel, n, cols, act_base, n_tok, t.offset);
    }
}

static size_t matmul_scratch(uint32_t cols)
{
    size_t panel = (size_t)PANEL_VECTORS * ((cols + 255) / 256) * UNIT_VECTORS * sizeof(vb) / sizeof(float);
    return HL_MAX(panel, (size_t)cols * 4);            /* or 4 rows as floats */
}

#define QUANT_TYPE(name, unpack_fn, scales_fn, bytes, off, two, minimums, blocks_32, most, shape)                                                       \
    static __attribute__((noinline)) void matmul_##name(float *y, size_t stride, const uint8_t *w, size_t row_bytes, uint32_t n_rows,            \
                                                        uint32_t cols, const void *a, uint32_t n_tok, float *scratch)                          \
    {                                                                                                                                            \
        matmul_type(y, stride, w, row_bytes, n_rows, cols, a, n_tok, scratch,                                                                     \
                    (const quant){ unpack_fn, scales_fn, bytes, off, two, minimums, blocks_32, most, panel_##shape });                                          \
    }

QUANT_TYPE(q4_0, unpack_q4_0, scales_18, 8 * sizeof(hl_block_q4_0), 8, false, false, true, 15, plain_15)
QUANT_TYPE(q4_1, unpack_q4_1, scales_q4_1, 8 * sizeof(hl_block_q4_1), 0, false, true, true, 15, mins_15)
QUANT_TYPE(q5_0, unpack_q5_0, scales_q5_0, 8 * sizeof(hl_block_q5_0), 16, false, false, true, 31, plain_31)
QUANT_TYPE(q5_1, unpack_q5_1, scales_q5_1, 8 * sizeof(hl_block_q5_1), 0, false, true, true, 31, mins_31)
QUANT_TYPE(q8_0, unpack_q8_0, scales_q8_0, 8 * sizeof(hl_block_q8_0), BIAS, false, false, true, 255, plain_255)
QUANT_TYPE(iq4_nl, unpack_iq4_nl, scales_18, 8 * sizeof(hl_block_iq4_nl), BIAS, false, false, true, 255, plain_255)
QUANT_TYPE(mxfp4, unpack_mxfp4, scales_mxfp4, 8 * sizeof(hl_block_mxfp4), 12, false, false, true, 31, plain_31)
QUANT_TYPE(q2_K, unpack_q2_K, scales_q2_K, sizeof(hl_block_q2_K), 0, true, true, false, 15, halves_mins_15)
QUANT_TYPE(q3_K, unpack_q3_K, scales_q3_K, sizeof(hl_block_q3_K), 4, true, false, false, 15, halves_15)
QUANT_TYPE(q4_K, unpack_q4_K, scales_q4_K, sizeof(hl_block_q4_K), 0, false, true, false, 15, mins_15)
QUANT_TYPE(q5_K, unpack_q5_K, scales_q4_K, sizeof(hl_block_q5_K), 0, false, true, false, 31, mins_31)
QUANT_TYPE(q6_K, unpack_q6_K, scales_q6_K, sizeof(hl_block_q6_K), 32, true, false, false, 63, halves_63)
QUANT_TYPE(iq4_xs, unpack_iq4_xs, scales_iq4_xs_rows, sizeof(hl_block_iq4_xs), BIAS, false, false, false, 255, plain_255)

static void matmul_q8(uint32_t dtype, float *restrict y, size_t stride, const uint8_t *restrict w, size_t row_bytes, uint32_t n_rows,
                      uint32_t cols, const void *a, uint32_t n_tok, float *restrict scratch)
{
    switch (dtype) {
    case HL_Q4_0: matmul_q4_0(y, stride, w, row_bytes, n_rows, cols, a, n_tok, scratch); break;
    case HL_Q4_1: matmul_q4_1(y, stride, w, row_bytes, n_rows, cols, a, n_tok, scratch); break;
    case HL_Q5_0: matmul_q5_0(y, stride, w, row_bytes, n_rows, cols, a, n_tok, scratch); break;
    case HL_Q5_1: matmul_q5_1(y, stride, w, row_bytes, n_rows, cols, a, n_tok, scratch); break;
    case HL_Q8_0: matmul_q8_0(y, stride, w, row_bytes, n_rows, cols, a, n_tok, scratch); break;
    case HL_Q2_K: matmul_q2_K(y, stride, w, row_bytes, n_rows, cols, a, n_tok, scratch); break;
    case HL_Q3_K: matmul_q3_K(y, stride, w, row_bytes, n_rows, cols, a, n_tok, scratch); break;
    case HL_Q4_K: matmul_q4_K(y, stride, w, row_bytes, n_rows, cols, a, n_tok, scratch); break;
    case HL_Q5_K: matmul_q5_K(y, stride, w, row_bytes, n_rows, cols, a, n_tok, scratch); break;
    case HL_Q6_K: matmul_q6_K(y, stride, w, row_bytes, n_rows, cols, a, n_tok, scratch); break;
    case HL_IQ4_NL: matmul_iq4_nl(y, stride, w, row_bytes, n_rows, cols, a, n_tok, scratch); break;
    case HL_IQ4_XS: matmul_iq4_xs(y, stride, w, row_bytes, n_rows, cols, a, n_tok, scratch); break;
    default: matmul_mxfp4(y, stride, w, row_bytes, n_rows, cols, a, n_tok, scratch); break;
    }
}

/* ---- quantize ---- */

static inline __m256i hadd_tree(const __m256i v[8])    /* sums over each v[i], in lane i */
{
    __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

static inline int32_t hsum_i32(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

/* 16 columns of x, scaled, to nearest even */
static inline __m256i scaled_i16(const float *x, __m256 inv)
{
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inv)), b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), inv));
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
}

/* Best step of the eight, and its two sums.  The first of equals wins, as in the scalar table. */
static inline int best_step(__m256i t0, __m256i t1, int32_t *xq, int32_t *qq)
{
    __m256i vx[8], vq[8];
    int32_t sx[8], sq[8];
    float score[8];
    for (int k = 0; k < 8; k++) {
        __m256i step = _mm256_set1_epi16((int16_t)(Q8_STEP_FIRST - k)), q0 = _mm256_mulhrs_epi16(t0, step), q1 = _mm256_mulhrs_epi16(t1, step);
        vx[k] = _mm256_add_epi32(_mm256_madd_epi16(t0, q0), _mm256_madd_epi16(t1, q1));
        vq[k] = _mm256_add_epi32(_mm256_madd_epi16(q0, q0), _mm256_madd_epi16(q1, q1));
    }
    __m256i x = hadd_tree(vx), q = hadd_tree(vq);
    __m256 f = _mm256_cvtepi32_ps(x), s = _mm256_div_ps(_mm256_mul_ps(f, f), _mm256_cvtepi32_ps(q)), m;
    _mm256_storeu_si256((__m256i *)(void *)sx, x);
    _mm256_storeu_si256((__m256i *)(void *)sq, q);
    _mm256_storeu_ps(score, s);
    m = _mm256_max_ps(s, _mm256_permute2f128_ps(s, s, 1));
    m = _mm256_max_ps(m, _mm256_shuffle_ps(m, m, 0x4E));
    m = _mm256_max_ps(m, _mm256_shuffle_ps(m, m, 0xB1));
    int k = __builtin_ctz((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(s, m, _CMP_EQ_OQ)));
    *xq = sx[k];
    *qq = sq[k];
    return Q8_STEP_FIRST - k;
}

static inline float quantize_32(int8_t *to, const float *x, int32_t isum[2])
{
    const __m256i no_sign = _mm256_set1_epi32(0x7FFFFFFF), ones = _mm256_set1_epi16(1);
    __m256i m = _mm256_setzero_si256();
    for (int i = 0; i < 32; i += 8) m = _mm256_max_epu32(m, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), no_sign));
    __m128i n = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    n = _mm_max_epu32(n, _mm_shuffle_epi32(n, 0x4E));
    n = _mm_max_epu32(n, _mm_shuffle_epi32(n, 0xB1));
    uint32_t largest = (uint32_t)_mm_cvtsi128_si32(n);
    float amax = bits_f32(largest);
    if (largest >= 0x7F800000 || amax < Q8_SMALLEST) {
        memset(to, 0, 32);
        isum[0] = isum[1] = 0;
        return largest >= 0x7F800000 ? f32_nan() : 0;
    }
    __m256 inv = _mm256_set1_ps((float)Q8_T_MAX / amax);
    __m256i t0 = scaled_i16(x, inv), t1 = scaled_i16(x + 16, inv);
    int32_t xq, qq;
    __m256i step = _mm256_set1_epi16((int16_t)best_step(t0, t1, &xq, &qq));
    __m256i q0 = _mm256_mulhrs_epi16(t0, step), q1 = _mm256_mulhrs_epi16(t1, step);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute4x64_epi64(_mm256_packs_epi16(q0, q1), 0xD8));
    isum[0] = hsum_i32(_mm256_madd_epi16(q0, ones));
    isum[1] = hsum_i32(_mm256_madd_epi16(q1, ones));
    return (float)xq / (float)qq * (amax * (1.0f / (float)Q8_T_MAX));
}

static void quantize(hl_q8_unit *out, const float *restrict x, uint32_t n)
{
    for (uint32_t ib = 0; ib < (n + 255) / 256 * 8; ib++) {
        hl_q8_unit *u = out + ib / 8;
        uint32_t g = ib % 8;
        int32_t isum[2] = { 0, 0 };
        int8_t *q = u->q + 32 * g;
        float d = 0;
        if (ib < n / 32) d = quantize_32(q, x + (size_t)ib * 32, isum);
        else memset(q, 0, 32);
        u->d[g] = d;
        for (int h = 0; h < 2; h++) {
            u->isum[h][g] = isum[h];
            u->sum[h][g] = d * (float)isum[h];
        }
        for (uint32_t i = 0; i < 8; i++) memcpy(u->tile + 32 * i + 4 * g, q + 4 * i, 4);
    }
}
