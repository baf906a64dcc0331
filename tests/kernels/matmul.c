/* Matrix products of a table, every type: against double loops; bits of one output whatever else is in the call. */
#include "oracle.h"
#include "cpu/packed.h"

enum { F32, Q8, HALF, FINE };                          /* matmul_f32, matmul_q8, matmul_half, the same with fine */
static const char *const way_name[] = { " f32", "", " half", " fine" };

typedef struct problem {
    uint32_t dtype, rows, cols, toks;
    size_t row_bytes;
    uint8_t *w;
    void *w_base;
    float *wf, *w_min, *x, *y, *scratch;               /* weights as floats, with cleared bits */
    double *xd;                                        /* what is multiplied */
    void *act, *side;                                  /* rows of units; the tokens of a call side by side */
    bool dots, sums16;                                 /* what of the arithmetic the bound has to know */
} problem;

static void setup(problem *p, const hl_cpu_kernels *k, uint32_t dtype, uint32_t rows, uint32_t cols, uint32_t toks, int kind)
{
    *p = (problem){ .dtype = dtype, .rows = rows, .cols = cols, .toks = toks };
    p->row_bytes = hl_dtype_bytes(hl_dtype(dtype), cols);
    p->w = exact_alloc(p->row_bytes * rows, &p->w_base);
    fill_weights(dtype, p->w, (size_t)rows * cols);
    size_t n_w = (size_t)rows * cols, n_x = (size_t)toks * cols;
    p->wf = malloc(n_w * 4);
    p->w_min = malloc(n_w * 4);
    p->x = malloc(n_x * 4);
    p->xd = malloc(n_x * 8);
    p->y = malloc((size_t)toks * rows * 4);
    p->scratch = test_alloc(k->matmul_scratch(cols) * 4);
    p->act = test_alloc(hl_q8_row_bytes(cols) * toks);
    p->side = test_alloc(hl_q8_row_bytes(cols) * toks);
    REQUIRE(p->wf && p->w_min && p->x && p->xd && p->y);
    hl_dequantize(dtype, p->w, p->wf, n_w);
    uint8_t *cleared = malloc(p->row_bytes * rows);
    REQUIRE(cleared);
    memcpy(cleared, p->w, p->row_bytes * rows);
    clear_quants(dtype, cleared, n_w);
    hl_dequantize(dtype, cleared, p->w_min, n_w);
    free(cleared);
    fill_input(p->x, n_x, kind);
    for (size_t i = 0; i < n_x; i++) p->xd[i] = p->x[i];
}

static void teardown(problem *p)
{
    free(p->w_base); free(p->wf); free(p->w_min); free(p->x); free(p->xd); free(p->y); free(p->scratch); free(p->act); free(p->side);
}

static hl_q8_unit *unit_row(const problem *p, uint32_t it) { return (hl_q8_unit *)(void *)((uint8_t *)p->act + it * hl_q8_row_bytes(p->cols)); }

static void quantize_all(problem *p, const hl_cpu_kernels *k)
{
    for (uint32_t it = 0; it < p->toks; it++) {
        hl_q8_unit *a = unit_row(p, it);
        k->quantize(a, p->x + (size_t)it * p->cols, p->cols);
        for (uint32_t i = 0; i < p->cols; i++) p->xd[(size_t)it * p->cols + i] = (double)a[i / 256].d[i / 32 % 8] * a[i / 256].q[i % 256];
    }
}

/* vpdpbf16ps knows no subnormal numbers: they count as zero, in what is taken and in what is given. */
static bool by_dots(const hl_cpu_kernels *k, uint32_t dtype, int way) { return way == HALF && dtype == HL_BF16 && k->bf16_dots; }

static double round_bf16(float x)
{
    uint32_t b;
    memcpy(&b, &x, 4);
    if ((b & 0x7F800000) == 0) return 0;
    if ((b & 0x7F800000) != 0x7F800000) b = (b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000;
    memcpy(&x, &b, 4);
    return x;
}

static void take_input(problem *p, const hl_cpu_kernels *k, int way)
{
    if (way == Q8) quantize_all(p, k);
    p->dots = by_dots(k, p->dtype, way);
    p->sums16 = way == Q8 && (p->dtype == HL_Q4_K || p->dtype == HL_Q5_K);
    if (p->dots) for (size_t i = 0; i < (size_t)p->toks * p->cols; i++) p->xd[i] = round_bf16(p->x[i]);
}

/* How many of the outputs are outside the bound.  terms: roundings on the way of one product into the sum. */
static double lost(const problem *p, uint32_t ir)      /* to numbers below 2^-126: in a row's activations, weights, products and sums */
{
    double sum = 0;
    for (uint32_t i = 0; i < p->cols; i++) sum += fabs(p->wf[(size_t)ir * p->cols + i]) + 2;
    return 0x1p-126 * sum;
}

/* By half a unit of 16 bits in each group's sum, which its minimum takes; and of each unit's step, by two roundings. */
static double lost_in_sums(const problem *p, uint32_t it, uint32_t ir)
{
    double sum = 0;
    for (uint32_t i = 0; p->sums16 && i < p->cols; i += 32) {
        const hl_q8_unit *u = unit_row(p, it) + i / 256;
        sum += fabs(p->w_min[(size_t)ir * p->cols + i]) * (double)u->step16 * (0.5 + 2 * 0x1p-24 * 32767);
    }
    return sum;
}

static uint32_t n_wrong(const problem *p, double terms)
{
    uint32_t wrong = 0;
    for (uint32_t it = 0; it < p->toks; it++)
        for (uint32_t ir = 0; ir < p->rows; ir++) {
            double size, want = oracle_dot(p->wf + (size_t)ir * p->cols, has_minimum(p->dtype) ? p->w_min + (size_t)ir * p->cols : NULL,
                                           p->xd + (size_t)it * p->cols, p->cols, &size);
            if (!near(p->y[(size_t)it * p->rows + ir], want, terms * 0x1p-24 * size + 0x1p-148 * terms + (p->dots ? lost(p, ir) : 0) + lost_in_sums(p, it, ir))) wrong++;
        }
    return wrong;
}

static void multiply(problem *p, const hl_cpu_kernels *k, int way, bool packed, float *y, size_t stride, const uint8_t *w, uint32_t n_rows, uint32_t t0, uint32_t n_tok)
{
    const float *x = p->x + (size_t)t0 * p->cols;
    if (way == Q8) {
        k->side_by_side(p->side, unit_row(p, t0), p->cols, n_tok);
        k->matmul_q8(p->dtype, packed, y, stride, w, p->row_bytes, n_rows, p->cols, p->side, n_tok, p->scratch);
    } else if (way == F32) k->matmul_f32(p->dtype, y, stride, w, p->row_bytes, n_rows, p->cols, x, n_tok, p->scratch);
    else k->matmul_half(p->dtype, packed, way == FINE, y, stride, w, p->row_bytes, n_rows, p->cols, x, n_tok, p->scratch);
}

static void run(problem *p, const hl_cpu_kernels *k, int way, uint32_t r0, uint32_t n_rows, uint32_t t0, uint32_t n_tok, float *y, size_t stride)
{
    const uint8_t *w = p->w + r0 * p->row_bytes;
    memset(p->scratch, 0xA5, k->matmul_scratch(p->cols) * 4);
    multiply(p, k, way, false, y, stride, w, n_rows, t0, n_tok);
}

/* y of the whole call equals, bit by bit, y of single outputs and of odd parts. */
static void check_bits(problem *p, const hl_cpu_kernels *k, int way)
{
    for (uint32_t n = 0; n < 24; n++) {
        uint32_t r0 = random_below(p->rows), t0 = random_below(p->toks);
        uint32_t nr = n % 2 ? 1 : 1 + random_below(p->rows - r0), nt = n % 2 ? 1 : 1 + random_below(p->toks - t0);
        size_t stride = nr + n % 3;
        float *part = malloc(stride * nt * 4);
        REQUIRE(part);
        run(p, k, way, r0, nr, t0, nt, part, stride);
        for (uint32_t it = 0; it < nt; it++)
            for (uint32_t ir = 0; ir < nr; ir++)
                CHECK_MSG(same_bits(part[it * stride + ir], p->y[(size_t)(t0 + it) * p->rows + r0 + ir]), "%s %s%s: %u x %u, rows %u + %u of %u, tokens %u + %u of %u",
                          k->isa, hl_dtype(p->dtype)->name, way_name[way], p->cols, p->toks, r0, nr, p->rows, t0, nt, p->toks);
        free(part);
    }
}

/* Packed rows give the same bits, from any group on, and come back as they were. */
static void check_packed(problem *p, const hl_cpu_kernels *k, int way)
{
    const hl_form *f = hl_packed_form(p->dtype);
    const uint32_t group = hl_packed_rows(p->dtype, k->group);
    const size_t group_bytes = hl_packed_group_bytes(f, p->cols, group), n_groups = (p->rows + group - 1) / group;
    void *base;
    uint8_t *packed = exact_alloc(n_groups * group_bytes + 64, &base), *row = malloc(p->row_bytes);
    packed = (uint8_t *)(((uintptr_t)packed + 63) & ~(uintptr_t)63);
    REQUIRE(row);
    k->pack(p->dtype, packed, p->w, p->row_bytes, p->rows, p->cols);
    for (uint32_t ir = 0; ir < p->rows; ir++) {
        hl_unpack_row(p->dtype, p->cols, group, row, packed + ir / group * group_bytes, ir % group);
        CHECK_MSG(memcmp(row, p->w + ir * p->row_bytes, p->row_bytes) == 0, "%s %s: row %u of %u x %u does not come back", k->isa, hl_dtype(p->dtype)->name, ir, p->rows, p->cols);
    }
    for (uint32_t first = 0; first < p->rows; first += group) {
        const uint32_t n = p->rows - first;
        float *y = malloc((size_t)p->toks * n * 4);
        REQUIRE(y);
        memset(p->scratch, 0xA5, k->matmul_scratch(p->cols) * 4);
        multiply(p, k, way, true, y, n, packed + first / group * group_bytes, n, 0, p->toks);
        for (uint32_t it = 0; it < p->toks; it++)
            for (uint32_t ir = 0; ir < n; ir++)
                CHECK_MSG(same_bits(y[it * n + ir], p->y[(size_t)it * p->rows + first + ir]), "%s %s packed: %u x %u x %u, row %u of %u, token %u", k->isa, hl_dtype(p->dtype)->name,
                          p->rows, p->cols, p->toks, ir, n, it);
        free(y);
    }
    free(row);
    free(base);
}

static void check_case(const hl_cpu_kernels *k, uint32_t dtype, int way, uint32_t rows, uint32_t cols, uint32_t toks, int kind)
{
    problem p;
    setup(&p, k, dtype, rows, cols, toks, kind);
    take_input(&p, k, way);
    for (size_t i = 0; i < (size_t)toks * rows; i++) p.y[i] = 12345;
    run(&p, k, way, 0, rows, 0, toks, p.y, rows);
    /* 8 bits: exact within a group; then scale, product, sum over groups in 8 lanes or one.  f32: one rounding a column and lane. */
    double terms = way == Q8 ? cols / 32.0 * 2 + 12 : cols + 8;
    uint32_t wrong = n_wrong(&p, terms);
    CHECK_MSG(wrong == 0, "%s %s%s: %u of %u x %u x %u wrong, input %d", k->isa, hl_dtype(dtype)->name, way_name[way], wrong, rows, cols, toks, kind);
    if (kind == INPUT_NORMAL) check_bits(&p, k, way);
    if (way != F32 && k->group) check_packed(&p, k, way);
    teardown(&p);
}

/* One weight bit flipped must be seen by the comparison, in the output of its row and no other. */
static void check_control(const hl_cpu_kernels *k, uint32_t dtype, int way)
{
    problem p;
    uint32_t rows = 5, cols = 512, row = 3;
    setup(&p, k, dtype, rows, cols, 3, INPUT_NORMAL);
    take_input(&p, k, way);
    float *changed = malloc(cols * 4);
    double terms = way == Q8 ? cols / 32.0 * 2 + 12 : cols + 8, size;
    REQUIRE(changed);
    (void)oracle_dot(p.wf + row * cols, has_minimum(dtype) ? p.w_min + row * cols : NULL, p.xd, cols, &size);
    for (uint32_t byte = 0; ; byte++) {                /* the first flip that matters to the first token beyond the bound */
        uint8_t *at = p.w + row * p.row_bytes + byte;
        double most = 0;
        REQUIRE(byte < p.row_bytes);
        *at ^= 2;
        hl_dequantize(dtype, p.w + row * p.row_bytes, changed, cols);
        for (uint32_t i = 0; i < cols; i++) {
            double change = fabs((double)changed[i] - p.wf[row * cols + i]) * fabs(p.xd[i]);
            if (change > most) most = change;
        }
        if (most > 2 * terms * 0x1p-24 * size) break;
        *at ^= 2;
    }
    free(changed);
    run(&p, k, way, 0, rows, 0, p.toks, p.y, rows);
    uint32_t wrong = n_wrong(&p, terms);
    CHECK_MSG(wrong >= 1 && wrong <= p.toks, "%s %s%s: a flipped bit gave %u wrong outputs", k->isa, hl_dtype(dtype)->name, way_name[way], wrong);
    teardown(&p);
}

static void check_nan(const hl_cpu_kernels *k, uint32_t dtype, int way)
{
    problem p;
    int at[2];
    half_fields(dtype, at);
    setup(&p, k, dtype, 3, 512, 4, INPUT_NORMAL);
    p.x[512 + 37] = NAN;
    p.x[1024 + 37] = INFINITY;
    take_input(&p, k, way);
    run(&p, k, way, 0, 3, 0, 4, p.y, 3);
    for (uint32_t ir = 0; ir < 3; ir++) {
        CHECK_MSG(isfinite(p.y[ir]) && isfinite(p.y[9 + ir]) && isnan(p.y[3 + ir]) && !isfinite(p.y[6 + ir]), "%s %s: activation", k->isa, hl_dtype(dtype)->name);
    }
    if (at[0] >= 0 && dtype != HL_F32 && dtype != HL_BF16) {                               /* a NaN scale in row 1 */
        p.w[p.row_bytes + (size_t)at[0]] = 1;
        p.w[p.row_bytes + (size_t)at[0] + 1] = 0x7E;
        run(&p, k, way, 0, 3, 0, 4, p.y, 3);
        CHECK_MSG(isfinite(p.y[0]) && isnan(p.y[1]) && isfinite(p.y[2]), "%s %s: weight", k->isa, hl_dtype(dtype)->name);
    }
    teardown(&p);
}

/* Extreme bytes: what saturates when sums of products are kept in too few bits. */
static void check_extremes(const hl_cpu_kernels *k, uint32_t dtype)
{
    for (int fill = 0; fill < 4; fill++) {
        problem p;
        int at[2];
        half_fields(dtype, at);
        setup(&p, k, dtype, 4, 512, 5, INPUT_NORMAL);
        const hl_dtype_info *t = hl_dtype(dtype);
        for (size_t i = 0; i < p.row_bytes * p.rows; i++) p.w[i] = fill & 1 ? 0xFF : dtype == HL_Q8_0 ? 0x80 : 0;
        for (size_t ib = 0; ib < (size_t)p.rows * p.cols / t->block; ib++)
            for (int n = 0; n < 2; n++)
                if (at[n] >= 0) memcpy(p.w + ib * t->bytes + at[n], &(hl_f16){ 0x3555 }, 2);
        if (dtype == HL_MXFP4) for (size_t ib = 0; ib < (size_t)p.rows * p.cols / 32; ib++) p.w[ib * 17] = 127;
        hl_dequantize(dtype, p.w, p.wf, (size_t)p.rows * p.cols);
        memset(p.w_min, 0, (size_t)p.rows * p.cols * 4);
        for (size_t i = 0; i < (size_t)p.toks * p.cols; i++) p.x[i] = fill & 2 ? -1 : 1;
        quantize_all(&p, k);
        run(&p, k, Q8, 0, p.rows, 0, p.toks, p.y, p.rows);
        CHECK_MSG(n_wrong(&p, 200) == 0, "%s %s: fill %d", k->isa, t->name, fill);
        teardown(&p);
    }
}

static void check_type(const hl_cpu_kernels *k, uint32_t dtype, int way)
{
    static const uint32_t small_cols[] = { 32, 64, 224, 256, 288, 576, 2048 }, large_cols[] = { 256, 512, 768, 2304 }, half_cols[] = { 32, 64, 224, 512, 544, 1056 };
    static const uint32_t float_cols[] = { 1, 7, 8, 9, 15, 16, 17, 31, 33, 64, 640 };
    static const uint32_t some_rows[] = { 1, 2, 3, 5, 16, 17, 33, 70 }, some_toks[] = { 1, 2, 3, 4, 5, 9, 16, 19 };
    const uint32_t block = hl_dtype(dtype)->block, n_rows = way >= HALF ? 8 : 7;
    const uint32_t *cols = way >= HALF ? half_cols : block == 1 ? float_cols : block == 32 ? small_cols : large_cols;
    const uint32_t n_cols = way >= HALF ? HL_COUNT(half_cols) : block == 1 ? HL_COUNT(float_cols) : block == 32 ? HL_COUNT(small_cols) : HL_COUNT(large_cols);
    for (uint32_t ic = 0; ic < n_cols; ic++)
        for (uint32_t n = 0; n < 8; n++)
            check_case(k, dtype, way, some_rows[(n + ic) % n_rows], cols[ic], some_toks[n], n < 3 || n > 5 ? INPUT_NORMAL : (int)((n + ic) % INPUT_KINDS));
    for (int kind = 0; kind < INPUT_KINDS; kind++) check_case(k, dtype, way, 6, cols[n_cols - 1], 5, kind);
    if (way >= HALF) check_case(k, dtype, way, 40, 544, 197, INPUT_NORMAL);                /* more tokens than are computed at once */
    check_control(k, dtype, way);
    check_nan(k, dtype, way);
    if (way == Q8) check_extremes(k, dtype);
}

static void check_table(const hl_cpu_kernels *k)
{
    for (uint32_t id = 0; id < N_ALL_TYPES; id++) {
        const uint32_t dtype = all_types[id];
        check_type(k, dtype, F32);
        if (hl_dtype(dtype)->block > 1) check_type(k, dtype, Q8);
        else if (dtype != HL_F32) for (int way = HALF; way <= FINE; way++) check_type(k, dtype, way);
    }
}

int main(int argc, char **argv) { return run_tables(argc, argv, check_table); }
