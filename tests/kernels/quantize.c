/* quantize of every table: the same bits in all of them, integer sums, error against plain max / 127, special values, padding. */
#include "oracle.h"

enum { N_GAUSS = 1024 * 1024 };                        /* so many that chance moves the ratio below by 0.001 only */

static double at(const hl_q8_unit *u, uint32_t i) { return (double)u[i / 256].d[i / 32 % 8] * u[i / 256].q[i % 256]; }

static void check_sums(const hl_cpu_kernels *k, const hl_q8_unit *u, uint32_t n)
{
    for (uint32_t ib = 0; ib < (n + 255) / 256 * 8; ib++) {
        const hl_q8_unit *b = u + ib / 8;
        for (uint32_t h = 0; h < 2; h++) {
            int32_t sum = 0;
            for (uint32_t i = 0; i < 16; i++) sum += b->q[ib % 8 * 32 + h * 16 + i];
            CHECK_MSG(-128 * sum == b->comp[h][ib % 8] && (same_bits(b->sum[h][ib % 8], b->d[ib % 8] * (float)sum) || isnan(b->d[ib % 8])), "%s block %u", k->isa, ib);
        }
        for (uint32_t i = 0; i < 32; i++) CHECK(b->q[ib % 8 * 32 + i] != -128);
        if (ib >= n / 32) {
            CHECK(b->d[ib % 8] == 0);
            for (uint32_t i = 0; i < 32; i++) CHECK(b->q[ib % 8 * 32 + i] == 0);
        }
    }
}

/* The sums again, in 16 bits: half a step from the exact one, the largest at the end of the range. */
static void check_sums16(const hl_cpu_kernels *k, const hl_q8_unit *u, uint32_t n)
{
    for (uint32_t iu = 0; iu < (n + 255) / 256; iu++) {
        double most = 0;
        int largest = 0;
        for (uint32_t g = 0; g < 8; g++) most = isfinite(u[iu].sum[2][g]) ? fmax(most, fabs((double)u[iu].sum[2][g])) : INFINITY;
        if (!isfinite(most)) { CHECK_MSG(isnan(u[iu].step16), "%s unit %u", k->isa, iu); continue; }
        for (uint32_t g = 0; g < 8; g++) {
            CHECK_MSG(near((double)u[iu].step16 * u[iu].sum16[g], u[iu].sum[2][g], (0.5 + 2 * 0x1p-24 * 32767) * u[iu].step16), "%s unit %u group %u", k->isa, iu, g);
            if (abs(u[iu].sum16[g]) > largest) largest = abs(u[iu].sum16[g]);
        }
        CHECK_MSG(most == 0 ? u[iu].step16 == 0 && largest == 0 : largest == 32767, "%s unit %u: %d", k->isa, iu, largest);
    }
}

static double plain_error(const float *x, uint32_t n)  /* of d = max / 127 */
{
    double error = 0;
    for (uint32_t ib = 0; ib < n / 32; ib++) {
        double amax = 0;
        for (uint32_t i = 0; i < 32; i++) if (fabs(x[ib * 32 + i]) > amax) amax = fabs(x[ib * 32 + i]);
        for (uint32_t i = 0; i < 32; i++) {
            double e = x[ib * 32 + i] - rint(x[ib * 32 + i] * 127 / amax) * amax / 127;
            error += e * e;
        }
    }
    return error;
}

static double own_error(const hl_q8_unit *u, const float *x, uint32_t n)
{
    double error = 0;
    for (uint32_t i = 0; i < n; i++) error += (x[i] - at(u, i)) * (x[i] - at(u, i));
    return error;
}

static bool good_enough(double own, double plain) { return own <= 0.85 * plain; }

static void check_error(const hl_cpu_kernels *k, const float *x, hl_q8_unit *u)
{
    k->quantize(u, x, N_GAUSS);
    double plain = plain_error(x, N_GAUSS), own = own_error(u, x, N_GAUSS);
    CHECK_MSG(good_enough(own, plain), "%s: %g of max/127's error", k->isa, own / plain);
    CHECK_MSG(!good_enough(plain, plain), "control");
    check_sums(k, u, N_GAUSS);
    check_sums16(k, u, N_GAUSS);
    for (uint32_t ib = 0; ib < N_GAUSS / 32; ib++) {
        double amax = 0, xq = 0, qq = 0;
        for (uint32_t i = ib * 32; i < ib * 32 + 32; i++) {
            double q = u[i / 256].q[i % 256];
            if (fabs(x[i]) > amax) amax = fabs(x[i]);
            xq += x[i] * q;
            qq += q * q;
        }
        /* the factor is the least-squares one but for x's own grid of max / 32512 */
        CHECK(near(u[ib / 8].d[ib % 8], xq / qq, xq / qq * 32 * 127 / 2 * 127 * 1.01 / 32512 / qq + xq / qq * 0x1p-22));
        /* a step is max / 120 at most, and the factor moves the largest by less than a quarter of one */
        for (uint32_t i = ib * 32; i < ib * 32 + 32; i++) CHECK(near(at(u, i), x[i], 0.75 * amax / 120));
    }
}

static void check_special(const hl_cpu_kernels *k, const hl_cpu_kernels *first)
{
    enum { N = 32 * 11 };
    float x[N];
    hl_q8_unit *u = test_alloc(hl_q8_row_bytes(N)), *v = test_alloc(hl_q8_row_bytes(N));
    for (int kind = 0; kind < INPUT_KINDS; kind++) {
        for (int round = 0; round < 50; round++) {
            fill_input(x, N, kind);
            if (kind == INPUT_HUGE && round % 2) x[round] = 0x1.fffffep127f;
            k->quantize(u, x, N);
            first->quantize(v, x, N);
            check_sums(k, u, N);
            check_sums16(k, u, N);
            for (uint32_t i = 0; i < 2; i++) {
                CHECK_MSG(memcmp(u[i].q, v[i].q, 256) == 0 && memcmp(u[i].d, v[i].d, 32) == 0 && memcmp(u[i].sum, v[i].sum, 96) == 0 &&
                          memcmp(u[i].comp, v[i].comp, 96) == 0 && memcmp(u[i].sum16, v[i].sum16, 32) == 0, "%s and %s differ, input %d", k->isa, first->isa, kind);
            }
            if (kind == INPUT_ZERO || kind == INPUT_SUBNORMAL) for (uint32_t i = 0; i < N; i++) CHECK(at(u, i) == 0);
            if (kind == INPUT_ONE_HOT) for (uint32_t i = 0; i < N; i++) CHECK(near(at(u, i), x[i], 3 * 0x1p-22));
        }
    }
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    for (int ib = 0; ib < 3; ib++) {
        fill_input(x, N, INPUT_NORMAL);
        x[32 * 9 + 5] = bad[ib];
        k->quantize(u, x, N);
        for (uint32_t b = 0; b < N / 32; b++) CHECK_MSG(isnan(u[b / 8].d[b % 8]) == (b == 9), "%s", k->isa);
        for (uint32_t i = 0; i < 32; i++) CHECK(u[1].q[32 + i] == 0);
        check_sums16(k, u, N);
    }
    free(u);
    free(v);
}

static void check_table(const hl_cpu_kernels *k)
{
    float *x = test_alloc(N_GAUSS * 4);
    hl_q8_unit *u = test_alloc(hl_q8_row_bytes(N_GAUSS));
    fill_input(x, N_GAUSS, INPUT_NORMAL);
    check_error(k, x, u);
    check_special(k, &hl_kern_scalar);
    free(x);
    free(u);
}

int main(int argc, char **argv) { return run_tables(argc, argv, check_table); }
