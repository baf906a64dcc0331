/* Weighted sums of rows (axpy) against double loops, for every type and table: odd numbers of rows and columns, none, and rows that hold the largest
 * numbers; and that a column's sum does not depend on how the rows or columns are cut. */
#include "oracle.h"

static void check_sum(const hl_cpu_kernels *k, uint32_t dtype, uint32_t n, uint32_t cols, int kind)
{
    const hl_dtype_info *d = hl_dtype(dtype);
    const size_t row_bytes = hl_dtype_bytes(d, cols);
    uint8_t *w = test_alloc(row_bytes * (n + 1));
    float *y = test_alloc(cols * sizeof *y), *part = test_alloc(cols * sizeof *y), *scratch = test_alloc((cols + 64) * sizeof *y), *row = test_alloc(cols * sizeof *y);
    double *want = calloc(cols, sizeof *want), *bound = calloc(cols, sizeof *bound);
    float h[64];
    const uint8_t *rows[64];
    fill_weights(dtype, w, (size_t)n * cols);
    fill_input(h, 64, kind);
    for (uint32_t c = 0; c < cols; c++) { y[c] = part[c] = random_normal(); want[c] = (double)y[c]; bound[c] = fabs(want[c]); }
    for (uint32_t r = 0; r < n; r++) {
        rows[r] = w + r * row_bytes;
        hl_dequantize(dtype, rows[r], row, cols);
        for (uint32_t c = 0; c < cols; c++) { want[c] += (double)h[r] * (double)row[c]; bound[c] += fabs((double)h[r] * (double)row[c]); }
    }
    k->axpy(dtype, y, rows, h, n, cols, scratch);
    for (uint32_t c = 0; c < cols; c++)
        if (!(fabs((double)y[c] - want[c]) <= (n + 2) * 0x1p-23 * bound[c] + 0x1p-140)) { CHECK_MSG(0, "%s %s n %u cols %u column %u: %g, want %g", k->isa, d->name, n, cols, c, (double)y[c], want[c]); break; }
    check_count++;
    /* In two goes, and the columns in two pieces: the same bits. */
    const uint32_t m = n / 3, at = cols / 2 / d->block * d->block;
    for (int piece = 0; piece < 2; piece++) {
        const uint32_t c0 = piece ? at : 0, nc = piece ? cols - at : at;
        const uint8_t *some[64];
        for (uint32_t r = 0; r < n; r++) some[r] = rows[r] + hl_dtype_bytes(d, c0);
        if (!nc) continue;
        k->axpy(dtype, part + c0, some, h, m, nc, scratch);
        k->axpy(dtype, part + c0, some + m, h + m, n - m, nc, scratch);
    }
    CHECK_MSG(memcmp(y, part, cols * sizeof *y) == 0, "%s %s n %u cols %u: cut in pieces the bits differ", k->isa, d->name, n, cols);
    free(w); free(y); free(part); free(scratch); free(row); free(want); free(bound);
}

static void check_table(const hl_cpu_kernels *k)
{
    static const uint32_t ns[] = { 0, 1, 3, 4, 5, 31, 48 };
    for (uint32_t i = 0; i < N_ALL_TYPES; i++) {
        const uint32_t block = hl_dtype(all_types[i])->block;
        for (size_t a = 0; a < sizeof ns / sizeof *ns; a++)
            for (int kind = 0; kind < INPUT_KINDS; kind++) {
                if (kind == INPUT_HUGE) continue;      /* the sums would overflow */
                check_sum(k, all_types[i], ns[a], block == 1 ? 37 : 3 * block, kind);
                check_sum(k, all_types[i], ns[a], block == 1 ? 1 : 8 * block, kind);
            }
    }
}

int main(int argc, char **argv) { return run_tables(argc, argv, check_table); }
