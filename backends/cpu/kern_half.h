/* kern_half.h: products of F16 and BF16 weights, written once for every vector width.
 *
 * Weights lie in groups of 32 rows (packed.h) that are read as one stream: a lane belongs to a row, a group's vectors are so many independent
 * chains of additions.  A lane adds its row's products one column after the other, in f32, with the activation as it is: nothing is lost but
 * the roundings of the sum, and its bits do not depend on how a call is cut.
 *   up to HALF_T tokens   weights become floats in registers, once for all of these tokens
 *   more                  HALF_COLS columns of a group become floats once (a panel, which stays in the L2 cache) and meet tiles of HALF_T tokens
 * Tokens' columns are copied side by side first: rows that lie a power of two apart would take each other's place in the L1 cache.
 * Rows in the file's layout are packed HALF_COLS columns at a time into scratch: the same bits.
 *
 * The including file has what kern_float.h and kern_packed.h need, and defines HALF_T and
 *   pk_halves(a, b, v)             2 G bytes each: the low and the high 16 bits of each lane
 */
enum { HALF_V = HL_HALF_ROWS / VW, HALF_COLS = 512, HALF_TOK = 96, HALF_FEW = 16, HALF_PAD = 64, HALF_F32 = HL_F32 };

/* Vector v of column c of the two columns at w; HALF_F32: of a panel. */
INLINE vf half_weight(const uint32_t dtype, const uint8_t *w, const uint32_t c, const uint32_t v)
{
    vu pair;
    if (dtype == HALF_F32) return vf_load(w + (c * HL_HALF_ROWS + v * VW) * 4);
    if (dtype == HL_F16) return vf_load_f16(w + (c * HL_HALF_ROWS + v * VW) * 2);
    memcpy(&pair, w + v * VW * 4, sizeof pair);
    return (vf)(c ? pair & 0xFFFF0000 : pair << 16);
}

/* Two columns by n_t tokens, x_step bytes apart. */
INLINE void half_step(const uint32_t dtype, vf acc[HALF_V][HALF_T], const uint8_t *w, const uint8_t *x, size_t x_step, const uint32_t n_t)
{
    UNROLL for (uint32_t c = 0; c < 2; c++) {
        vf a[HALF_T];
        UNROLL for (uint32_t t = 0; t < n_t; t++) a[t] = pk_setf(bits_f32(load_u32(x + t * x_step + c * 4)));
        UNROLL for (uint32_t v = 0; v < HALF_V; v++) {
            const vf u = half_weight(dtype, w, c, v);
            UNROLL for (uint32_t t = 0; t < n_t; t++) acc[v][t] = vf_fma(u, a[t], acc[v][t]);
        }
    }
}

/* What differs between ways of computing; w_bytes, x_bytes: of two columns, of a group and of a token. */
typedef struct half_way {
    uint32_t dtype, w_bytes, x_bytes;
    void (*step)(uint32_t dtype, vf acc[HALF_V][HALF_T], const uint8_t *w, const uint8_t *x, size_t x_step, uint32_t n_t);
} half_way;

typedef void half_tile_fn(float *y, size_t stride, uint32_t n_rows, const uint8_t *w, const uint8_t *x, size_t x_step, uint32_t n, bool go_on);

INLINE void half_tile(float *y, size_t stride, uint32_t n_rows, const uint8_t *w, const uint8_t *x, size_t x_step, uint32_t n, bool go_on, const uint32_t n_t,
                      const half_way h)
{
    vf acc[HALF_V][HALF_T];
    UNROLL for (uint32_t v = 0; v < HALF_V; v++)
        UNROLL for (uint32_t t = 0; t < n_t; t++)
            acc[v][t] = go_on && v * VW < n_rows ? vf_load_part(y + t * stride + v * VW, HL_MIN(n_rows - v * VW, (uint32_t)VW)) : (vf){ 0 };
    for (uint32_t i = 0; i < n; i += 2, w += h.w_bytes, x += h.x_bytes) h.step(h.dtype, acc, w, x, x_step, n_t);
    UNROLL for (uint32_t v = 0; v < HALF_V; v++)
        UNROLL for (uint32_t t = 0; t < n_t; t++)
            if (v * VW < n_rows) vf_store_part(y + t * stride + v * VW, acc[v][t], HL_MIN(n_rows - v * VW, (uint32_t)VW));
}

/* TARGET: attributes of the function, or nothing; the way follows. */
#define HALF_TILE(TARGET, name, T, ...)                                                                                                         \
    static __attribute__((noinline)) TARGET void half_##name##_##T(float *y, size_t stride, uint32_t n_rows, const uint8_t *w, const uint8_t *x, \
                                                                   size_t x_step, uint32_t n, bool go_on)                                       \
    {                                                                                                                                           \
        const half_way h = { __VA_ARGS__ };                                                                                                     \
        half_tile(y, stride, n_rows, w, x, x_step, n, go_on, T, h);                                                                             \
    }
#define HALF_WAY(TARGET, name, ...)                                                                                                             \
    HALF_TILES(TARGET, name, __VA_ARGS__)                                                                                                       \
    static half_tile_fn *const half_##name[HALF_T] = { HALF_TILE_NAMES(name) };
#define HALF_NO_TARGET
HALF_WAY(HALF_NO_TARGET, floats, HALF_F32, HL_HALF_ROWS * 8, 8, half_step)
HALF_WAY(HALF_NO_TARGET, f16, HL_F16, HL_HALF_ROWS * 4, 8, half_step)
HALF_WAY(HALF_NO_TARGET, bf16, HL_BF16, HL_HALF_ROWS * 4, 8, half_step)

/* n columns, a multiple of 32, of the packed group at w. */
INLINE void half_panel(uint32_t dtype, uint8_t *to, const uint8_t *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 2, to += HL_HALF_ROWS * 8, w += HL_HALF_ROWS * 4)
        UNROLL for (uint32_t c = 0; c < 2; c++)
            UNROLL for (uint32_t v = 0; v < HALF_V; v++) vf_store(to + (c * HL_HALF_ROWS + v * VW) * 4, half_weight(dtype, w, c, v));
}

/* n columns from column k on, both multiples of 32, of a group of rows in the file's layout, n_rows or up to the last, which is then repeated.
 * Each line of each row is read once, to `line`: lines of rows a power of two apart cannot stay in the L1 cache together.  32 rows are more
 * streams than the hardware sees ahead of; what comes AHEAD bytes later, or then at the beginning of the next group, is fetched by hand. */
INLINE void half_pack(const uint32_t dtype, uint8_t *to, const uint8_t *w, size_t row_bytes, uint32_t n_rows, uint32_t k, uint32_t n)
{
    enum { LINE = 64, AHEAD = 512 };
    uint8_t line[HL_HALF_ROWS][LINE] __attribute__((aligned(64))), pairs[4 * LANE_BYTES] __attribute__((aligned(64)));
    const uint8_t *rows[HL_HALF_ROWS];
    for (uint32_t r = 0; r < HL_HALF_ROWS; r++) rows[r] = line[r];
    for (size_t at = (size_t)k * 2; at < (size_t)(k + n) * 2; at += LINE) {
        const size_t next = at + AHEAD < row_bytes ? at + AHEAD : at + AHEAD + (HL_HALF_ROWS - 1) * row_bytes;
        for (uint32_t r = 0; r < HL_HALF_ROWS; r++) {
            const uint8_t *row = w + HL_MIN(r, n_rows - 1) * row_bytes;
            memcpy(line[r], row + at, LINE);
            __builtin_prefetch(row + next, 0, 2);
        }
        UNROLL for (uint32_t i = 0; i < LINE; i += 16)
            UNROLL for (uint32_t r = 0; r < HL_HALF_ROWS; r += G) {
                pk_rows_4(pairs, rows + r, i);
                UNROLL for (uint32_t j = 0; j < 4; j++) {
                    uint8_t *out = to + (i / 4 + j) * HL_HALF_ROWS * 4;
                    const vi v = pk_load(pairs + j * LANE_BYTES);
                    if (dtype == HL_BF16) pk_store(out + r * 4, v);
                    else pk_halves(out + r * 2, out + HL_HALF_ROWS * 2 + r * 2, v);
                }
            }
        to += LINE * HL_HALF_ROWS;
    }
}

static void half_copy(void *to, const float *x, uint32_t n) { memcpy(to, x, (size_t)n * 4); }

/* A type's way with the columns of a token: x_size bytes each, made by `stage`; panel NULL: weights are used as they lie. */
typedef struct half_kind {
    uint32_t dtype, x_size;
    void (*stage)(void *to, const float *x, uint32_t n);
    half_tile_fn *const *direct, *const *panel;
} half_kind;

typedef struct half_call { float *y; size_t stride; const uint8_t *w; size_t row_bytes; uint32_t n_rows, cols; bool packed; } half_call;

static size_t half_x_bytes(uint32_t cols)              /* of scratch: HALF_TOK tokens' HALF_COLS columns, or all of HALF_FEW tokens */
{
    return HL_MAX((size_t)HALF_TOK * (HALF_COLS * 4 + HALF_PAD), (size_t)HALF_FEW * ((size_t)cols * 4 + HALF_PAD));
}

/* Columns [k0, k1) of all rows by n_tok tokens, whose columns begin at x. */
static void half_rows(const half_kind *h, const half_call *c, uint32_t k0, uint32_t k1, const uint8_t *x, size_t x_step, uint32_t n_tok, uint8_t *panel)
{
    uint8_t *packed = panel + HALF_COLS * HL_HALF_ROWS * 4;
    const bool by_panel = h->panel && n_tok > HALF_T;
    half_tile_fn *const *tiles = by_panel ? h->panel : h->direct;
    const uint32_t n_tiles = (n_tok + HALF_T - 1) / HALF_T;
    for (uint32_t ir = 0; ir < c->n_rows; ir += HL_HALF_ROWS) {
        const uint32_t n_rows = c->n_rows - ir;
        for (uint32_t k = k0; k < k1; k += HALF_COLS) {
            const uint32_t n = HL_MIN(k1 - k, (uint32_t)HALF_COLS);
            const uint8_t *w = c->w + (size_t)ir * c->cols * 2 + (size_t)k * HL_HALF_ROWS * 2;
            if (!c->packed) {
                w = c->w + ir * c->row_bytes;
                if (h->dtype == HL_F16) half_pack(HL_F16, packed, w, c->row_bytes, n_rows, k, n);
                else half_pack(HL_BF16, packed, w, c->row_bytes, n_rows, k, n);
                w = packed;
            }
            if (by_panel) {
                if (h->dtype == HL_F16) half_panel(HL_F16, panel, w, n);
                else half_panel(HL_BF16, panel, w, n);
                w = panel;
            }
            for (uint32_t i = 0, it = 0; i < n_tiles; i++) {            /* tiles as equal as they can be */
                const uint32_t next = (uint32_t)((uint64_t)n_tok * (i + 1) / n_tiles);
                tiles[next - it - 1](c->y + it * c->stride + ir, c->stride, n_rows, w, x + it * x_step + (size_t)(k - k0) * h->x_size, x_step, n, k != 0);
                it = next;
            }
        }
    }
}

static void half_any(const half_kind *h, half_call c, const float *x, uint32_t n_tok, uint8_t *scratch)
{
    uint8_t *panel = scratch + half_x_bytes(c.cols);
    for (uint32_t it = 0; it < n_tok; it += HALF_TOK, c.y += HALF_TOK * c.stride) {
        const uint32_t n = HL_MIN(n_tok - it, (uint32_t)HALF_TOK), span = n <= HALF_FEW ? c.cols : HALF_COLS;
        const size_t x_step = (size_t)span * h->x_size + HALF_PAD;
        for (uint32_t k = 0; k < c.cols; k += span) {
            const uint32_t end = HL_MIN(k + span, c.cols);
            for (uint32_t t = 0; t < n; t++) h->stage(scratch + t * x_step, x + (size_t)(it + t) * c.cols + k, end - k);
            half_rows(h, &c, k, end, scratch, x_step, n, panel);
        }
    }
}

static const half_kind half_kind_f16 = { HL_F16, 4, half_copy, half_f16, half_floats }, half_kind_bf16 = { HL_BF16, 4, half_copy, half_bf16, half_floats };

static void matmul_half(uint32_t dtype, bool packed, bool fine, float *restrict y, size_t stride, const uint8_t *restrict w, size_t row_bytes, uint32_t n_rows,
                        uint32_t cols, const float *restrict x, uint32_t n_tok, float *restrict scratch)
{
    (void)fine;                                        /* always is */
    half_any(dtype == HL_F16 ? &half_kind_f16 : &half_kind_bf16, (half_call){ y, stride, w, row_bytes, n_rows, cols, packed }, x, n_tok, (uint8_t *)scratch);
}

static void pack_any(uint32_t dtype, void *to, const uint8_t *rows, size_t row_bytes, uint32_t n_rows, uint32_t cols)
{
    if (dtype != HL_F16 && dtype != HL_BF16) { pack(dtype, to, rows, row_bytes, n_rows, cols); return; }
    uint8_t *out = to;
    for (uint32_t ir = 0; ir < n_rows; ir += HL_HALF_ROWS, rows += HL_HALF_ROWS * row_bytes, out += (size_t)cols * HL_HALF_ROWS * 2) {
        if (dtype == HL_F16) half_pack(HL_F16, out, rows, row_bytes, n_rows - ir, 0, cols);
        else half_pack(HL_BF16, out, rows, row_bytes, n_rows - ir, 0, cols);
    }
}

static size_t scratch_floats(uint32_t cols)            /* of every product */
{
    return HL_MAX(matmul_scratch(cols), (half_x_bytes(cols) + HALF_COLS * HL_HALF_ROWS * 6) / 4);
}
