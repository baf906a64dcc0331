/* kern_sparse.h: sums of weighted rows, for FFNs whose down matrix has a row for each neuron; written once for every vector width in the
 * operations of kern_float.h.
 *
 * The including file may define SP_NIBBLES and its own sp_nibbles.  What comes next is fetched by hand.  Four rows go through the columns together, so that the sums are loaded and stored once for four of them; each column still takes its rows in
 * order, one fused product after the other.  Static-inline only.
 */

typedef uint8_t sp_bytes __attribute__((vector_size(16)));

enum { SP_ROWS = 4 };

/* 32 columns of one row of Q4_0, without their scale. */
#ifndef SP_NIBBLES
static inline __attribute__((always_inline)) void sp_nibbles(vf to[32 / VW], const uint8_t *qs)
{
    sp_bytes v;
    int8_t q[32];
    memcpy(&v, qs, sizeof v);
    const sp_bytes low = (v & 15) - 8, high = (v >> 4) - 8;
    memcpy(q, &low, sizeof low);
    memcpy(q + 16, &high, sizeof high);
    UNROLL for (uint32_t i = 0; i < 32 / VW; i++) to[i] = vf_load_i8(q + i * VW);
}
#endif

/* Blocks of 32 with one scale. */
static inline __attribute__((always_inline)) void sp_blocks(const uint32_t dtype, float *restrict y, const uint8_t *const *rows, const float *h, const uint32_t n, uint32_t cols, const uint8_t *const *ahead)
{
    const size_t bytes = dtype == HL_Q8_0 ? sizeof(hl_block_q8_0) : sizeof(hl_block_q4_0);
    for (uint32_t ib = 0; ib < cols / 32; ib++, y += 32) {
        vf acc[32 / VW];
        UNROLL for (uint32_t i = 0; i < 32 / VW; i++) acc[i] = vf_load(y + i * VW);
        UNROLL for (uint32_t r = 0; r < n; r++) {
            const uint8_t *b = rows[r] + ib * bytes;
            const vf s = vf_set1(h[r] * f16_f32(load_u16(b)));
            vf q[32 / VW];
            if (n == SP_ROWS) __builtin_prefetch(ahead[r] + ib * bytes, 0, 3);
            if (dtype == HL_Q4_0) sp_nibbles(q, b + 2);
            else UNROLL for (uint32_t i = 0; i < 32 / VW; i++) q[i] = vf_load_i8(b + 2 + i * VW);
            UNROLL for (uint32_t i = 0; i < 32 / VW; i++) acc[i] = vf_fma(s, q[i], acc[i]);
        }
        UNROLL for (uint32_t i = 0; i < 32 / VW; i++) vf_store(y + i * VW, acc[i]);
    }
}

static inline __attribute__((always_inline)) vf sp_load(const uint32_t dtype, const uint8_t *row, uint32_t c)
{
    if (dtype == HL_F16) return vf_load_f16(row + 2 * (size_t)c);
    if (dtype == HL_BF16) return vf_load_bf16(row + 2 * (size_t)c);
    return vf_load(row + 4 * (size_t)c);
}

static inline __attribute__((always_inline)) void sp_floats(const uint32_t dtype, float *restrict y, const uint8_t *const *rows, const float *h, const uint32_t n, uint32_t cols, const uint8_t *const *ahead)
{
    uint32_t c = 0;
    for (; c + VW <= cols; c += VW) {
        vf acc = vf_load(y + c);
        if (n == SP_ROWS) UNROLL for (uint32_t r = 0; r < n; r++) __builtin_prefetch(ahead[r] + c * (dtype == HL_F32 ? 4 : 2), 0, 3);
        UNROLL for (uint32_t r = 0; r < n; r++) acc = vf_fma(vf_set1(h[r]), sp_load(dtype, rows[r], c), acc);
        vf_store(y + c, acc);
    }
    for (; c < cols; c++)
        for (uint32_t r = 0; r < n; r++) {
            float w;
            hl_dequantize(dtype, rows[r] + c * (dtype == HL_F32 ? 4 : 2), &w, 1);
            y[c] = __builtin_fmaf(h[r], w, y[c]);
        }
}

#define SP_TYPE(name, kind, dtype)                                                                                                              \
    static __attribute__((noinline)) void axpy_##name(float *restrict y, const uint8_t *const *rows, const float *h, uint32_t n_rows, uint32_t cols) \
    {                                                                                                                                           \
        for (; n_rows >= SP_ROWS; n_rows -= SP_ROWS, rows += SP_ROWS, h += SP_ROWS)                                                             \
            kind(dtype, y, rows, h, SP_ROWS, cols, n_rows >= 2 * SP_ROWS ? rows + SP_ROWS : rows);                                              \
        for (; n_rows; n_rows--, rows++, h++) kind(dtype, y, rows, h, 1, cols, rows);                                                                 \
    }
SP_TYPE(q8_0, sp_blocks, HL_Q8_0) SP_TYPE(q4_0, sp_blocks, HL_Q4_0) SP_TYPE(f32, sp_floats, HL_F32) SP_TYPE(f16, sp_floats, HL_F16) SP_TYPE(bf16, sp_floats, HL_BF16)

static void axpy(uint32_t dtype, float *restrict y, const uint8_t *const *rows, const float *h, uint32_t n_rows, uint32_t cols, float *restrict scratch)
{
    switch (dtype) {
    case HL_Q8_0: axpy_q8_0(y, rows, h, n_rows, cols); return;
    case HL_Q4_0: axpy_q4_0(y, rows, h, n_rows, cols); return;
    case HL_F32: axpy_f32(y, rows, h, n_rows, cols); return;
    case HL_F16: axpy_f16(y, rows, h, n_rows, cols); return;
    case HL_BF16: axpy_bf16(y, rows, h, n_rows, cols); return;
    default:
        for (uint32_t r = 0; r < n_rows; r++) {
            const uint8_t *row = (const uint8_t *)scratch;
            hl_dequantize(dtype, rows[r], scratch, cols);
            sp_floats(HL_F32, y, &row, h + r, 1, cols, &row);
        }
    }
}

/* ---- products of rows that lie apart ---- */

/* Each group is packed as neighbours are (kern_packed.h) and gives the same bits; meanwhile the next one's rows are fetched, which no hardware sees
 * coming. */
INLINE void gather_any(float *y, const uint8_t *const *rows, uint32_t n, uint32_t n_next, uint32_t cols, const void *act, uint8_t *scratch, const pk_type t)
{
    const uint32_t n_blocks = cols / (t.form.cols / t.form.blocks), n_units = hl_packed_units(&t.form, cols), unit_bytes = t.form.blocks * t.form.block_bytes;
    uint8_t *units = scratch + hl_packed_apart_bytes(&t.form, n_units, G);
    for (uint32_t ir = 0; ir < n; ir += G) {
        const uint8_t *from[G], *next[G];
        for (uint32_t r = 0; r < G; r++) {
            from[r] = rows[HL_MIN(ir + r, n - 1)];
            next[r] = rows[HL_MIN(ir + G + r, n + n_next - 1)];
        }
        for (uint32_t iu = 0; iu < n_units; iu++) {
            for (uint32_t r = 0; r < G; r++)
                for (uint32_t at = 0; at < unit_bytes; at += 64) __builtin_prefetch(next[r] + (size_t)iu * unit_bytes + at, 0, 2);
            pack_unit(units + (size_t)iu * t.form.bytes * G, scratch + iu * 2 * G, from, iu, n_blocks, t.form);
        }
        columns(y + ir, 0, scratch, n - ir, n_units, act, 1, 1, t);
    }
}

#define SP_GATHER(name, form, period, shift, two, minimums, most, scales_fn, scale_fn, min_fn)                                                  \
    static __attribute__((noinline)) void gather_##name(float *y, const uint8_t *const *rows, uint32_t n, uint32_t n_next, uint32_t cols,       \
                                                        const void *act, uint8_t *scratch)                                                      \
    {                                                                                                                                           \
        const pk_type t = { hl_form_##form, period, shift, two, minimums, most, pack_##form, scales_fn, scale_fn, min_fn, pk_unpack_##name };   \
        gather_any(y, rows, n, n_next, cols, act, scratch, t);                                                                                  \
    }
PACKED_TYPES(SP_GATHER)

static void gather(uint32_t dtype, float *restrict y, const uint8_t *const *rows, uint32_t n, uint32_t n_next, uint32_t cols, const void *act, float *restrict scratch)
{
    if (!n) return;
#define CALL(name) gather_##name(y, rows, n, n_next, cols, act, (uint8_t *)scratch)
    PACKED_SWITCH(CALL)
#undef CALL
}
