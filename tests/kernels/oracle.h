/* oracle.h: what the kernel tests compare with: plain loops in double, and the inputs that they are run on.
 *
 * Nothing here calls a kernel.  Weights are read by hl_dequantize, which has its own test against an independent implementation and
 * which no 8-bit kernel uses.  Bounds are derived: a float operation is off by 2^-24 of its result at most.
 */
#ifndef ORACLE_H
#define ORACLE_H

#include "../unit/check.h"
#include "cpu/kernels.h"

#include <math.h>

/* ---- random numbers (splitmix64) ---- */

static uint64_t random_state = 1;

static inline uint64_t random_u64(void)
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static inline uint32_t random_below(uint32_t n) { return (uint32_t)(random_u64() % n); }
static inline double random_unit(void) { return ((double)(random_u64() >> 11) + 0.5) * 0x1p-53; }
static inline float random_normal(void) { return (float)(sqrt(-2 * log(random_unit())) * cos(6.283185307179586 * random_unit())); }

/* ---- memory: exact sizes, so that a sanitizer sees a read past the end; *base is what to free ---- */

static inline void *test_alloc(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + (bytes == 0) * 64);
    REQUIRE(p);
    memset(p, 0xA5, bytes);
    return p;
}

/* The last byte of the block is the allocation's last; the start has alignment `align` (1: odd addresses are wanted). */
static inline uint8_t *exact_alloc(size_t bytes, void **base)
{
    *base = malloc(bytes);
    REQUIRE(*base);
    return *base;
}

/* ---- tables ---- */

#ifdef TEST_TABLE                                      /* one that no CPU is given: see evex */
extern const hl_cpu_kernels TEST_TABLE;
static const hl_cpu_kernels *const test_tables[] = { &TEST_TABLE, NULL };
#else
#define test_tables hl_cpu_tables
#endif

/* The main function of a test of tables: of the one named, else of all.  One that this CPU lacks is said to be skipped, and 77 if it was named. */
static inline int run_tables(int argc, char **argv, void (*check)(const hl_cpu_kernels *k))
{
    bool known = argc < 2, any = false;
    for (int i = 0; test_tables[i]; i++) {
        const hl_cpu_kernels *k = test_tables[i];
        if (argc > 1 && strcmp(argv[1], k->isa) != 0) continue;
        known = true;
        if (!k->supported()) { printf("skipped: %s: this CPU lacks it\n", k->isa); continue; }
        any = true;
        check(k);
    }
    if (!known) fprintf(stderr, "%s: this build has no such table\n", argv[1]);
    return !known ? 1 : any ? check_done() : 77;
}

/* ---- inputs ---- */

enum { INPUT_NORMAL, INPUT_ZERO, INPUT_ONE_HOT, INPUT_HUGE, INPUT_SUBNORMAL, INPUT_WILD, INPUT_KINDS };

static inline void fill_input(float *x, size_t n, int kind)
{
    size_t hot = (size_t)random_below((uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        float g = random_normal();
        switch (kind) {
        case INPUT_NORMAL: x[i] = g; break;
        case INPUT_ZERO: x[i] = 0; break;
        case INPUT_ONE_HOT: x[i] = i == hot ? 3.0f : 0; break;
        case INPUT_HUGE: x[i] = g * 0x1p90f; break;
        case INPUT_SUBNORMAL: x[i] = g * 0x1p-130f; break;
        default: x[i] = g * ldexpf(1, (int)random_below(60) - 30); break;
        }
    }
}

/* ---- weights ---- */

static const uint32_t all_types[] = { HL_F32, HL_F16, HL_BF16, HL_Q4_0, HL_Q4_1, HL_Q5_0, HL_Q5_1, HL_Q8_0, HL_Q2_K, HL_Q3_K, HL_Q4_K, HL_Q5_K,
                                      HL_Q6_K, HL_IQ4_NL, HL_IQ4_XS, HL_MXFP4 };
enum { N_ALL_TYPES = sizeof all_types / sizeof all_types[0], N_FLOAT_TYPES = 3 };

/* Where the half-precision fields of a block lie; -1: none. */
static inline void half_fields(uint32_t dtype, int at[2])
{
    at[0] = 0;
    at[1] = -1;
    switch (dtype) {
    case HL_Q4_1: case HL_Q5_1: case HL_Q4_K: case HL_Q5_K: at[1] = 2; break;
    case HL_Q2_K: at[0] = 80; at[1] = 82; break;
    case HL_Q3_K: at[0] = 108; break;
    case HL_Q6_K: at[0] = 208; break;
    case HL_MXFP4: at[0] = -1; break;
    default: break;
    }
}

/* Random bits everywhere but in the scales, which are finite and of either sign. */
static inline void fill_weights(uint32_t dtype, uint8_t *w, size_t n)
{
    const hl_dtype_info *t = hl_dtype(dtype);
    size_t n_blocks = n / t->block;
    int at[2];
    half_fields(dtype, at);
    for (size_t ib = 0; ib < n_blocks; ib++) {
        uint8_t *b = w + ib * t->bytes;
        for (uint32_t i = 0; i < t->bytes; i++) b[i] = (uint8_t)random_u64();
        if (dtype == HL_F32) { float f = random_normal(); memcpy(b, &f, 4); continue; }
        if (dtype == HL_BF16) { float f = random_normal(); memcpy(b, (uint8_t *)&f + 2, 2); continue; }
        if (dtype == HL_MXFP4) b[0] = (uint8_t)(110 + random_below(20));
        for (int k = 0; k < 2; k++) {
            if (at[k] < 0) continue;
            hl_f16 h = hl_f32_to_f16(random_normal() * 0.02f);
            memcpy(b + at[k], &h, 2);
        }
    }
}

/* The same blocks with all quantised bits zero: what the format adds whatever the bits are (minimum or offset). */
static inline void clear_quants(uint32_t dtype, uint8_t *w, size_t n)
{
    const hl_dtype_info *t = hl_dtype(dtype);
    for (size_t ib = 0; ib < n / t->block; ib++) {
        uint8_t *b = w + ib * t->bytes;
        switch (dtype) {
        case HL_Q4_1: case HL_Q5_1: memset(b + 4, 0, t->bytes - 4); break;
        case HL_Q2_K: memset(b + 16, 0, 64); break;
        case HL_Q4_K: case HL_Q5_K: memset(b + 16, 0, t->bytes - 16); break;
        default: break;
        }
    }
}

static inline bool has_minimum(uint32_t dtype)
{
    return dtype == HL_Q4_1 || dtype == HL_Q5_1 || dtype == HL_Q2_K || dtype == HL_Q4_K || dtype == HL_Q5_K;
}

/* ---- oracles ---- */

/* sum w x and, for the bound, the sum of what the parts of w (bits and minimum) contribute in size */
static inline double oracle_dot(const float *w, const float *w_min, const double *x, size_t n, double *sum_abs)
{
    double sum = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        sum += w[i] * x[i];
        size += ((w_min ? fabs(w_min[i]) + fabs((double)w[i] - w_min[i]) : fabs(w[i]))) * fabs(x[i]);
    }
    *sum_abs = size;
    return sum;
}

/* got within bound of want; an infinite or NaN want must be met exactly (by sign, by kind) */
static inline bool near(double got, double want, double bound)
{
    if (isnan(want)) return isnan(got);
    if (isinf(want)) return got == want;
    return fabs(got - want) <= bound;                  /* false for a NaN */
}

static inline bool same_bits(float a, float b) { return memcmp(&a, &b, 4) == 0; }

/* the distance between neighbouring floats at x */
static inline double ulp(double x)
{
    int e;
    frexp(fabs(x), &e);
    return ldexp(1, (e - 24 < -149 ? -149 : e - 24));
}

#endif
