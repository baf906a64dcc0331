/* KV rows and attention of every table: against double, and the same bits whatever ring, group or later position surrounds a query. */
#include "oracle.h"
#include "cpu/kv.h"

typedef struct cache {
    hl_kv_layer kv;
    double *k, *v;                                     /* [n_heads][n_pos][dim]: what is stored, as doubles */
    uint32_t n_pos;
    void *k_base, *v_base;
} cache;

static double stored(uint32_t dtype, const uint8_t *row, uint32_t i)
{
    float f, block[32];
    if (dtype == HL_F32) memcpy(&f, row + i * 4, 4);
    else if (dtype == HL_F16) { hl_f16 h; memcpy(&h, row + i * 2, 2); f = hl_f16_to_f32(h); }
    else { hl_dequantize(HL_Q8_0, row + i / 32 * sizeof(hl_block_q8_0), block, 32); f = block[i % 32]; }
    return f;
}

/* A ring of n_slots; positions 0..n_pos-1 are stored in order, so that the last n_slots of them are there.  The rest is NaN. */
static void fill(cache *c, const hl_cpu_kernels *k, const float *kf, const float *vf, uint32_t dtype, uint32_t n_heads, uint32_t n_slots, uint32_t n_pos,
                 uint32_t dim_k, uint32_t dim_v, size_t k_bytes, size_t v_bytes)
{
    size_t n = (size_t)n_heads * n_slots;
    *c = (cache){ .n_pos = n_pos };
    c->kv = (hl_kv_layer){ .dtype = dtype, .n_slots = n_slots, .n_heads = n_heads, .dim_k = dim_k, .dim_v = dim_v };
    c->kv.k = exact_alloc(n * k_bytes, &c->k_base);
    c->kv.v = exact_alloc(n * v_bytes, &c->v_base);
    memset(c->kv.k, 0xFF, n * k_bytes);                /* NaN in every type */
    memset(c->kv.v, 0xFF, n * v_bytes);
    c->k = malloc((size_t)n_heads * n_pos * dim_k * 8);
    c->v = malloc((size_t)n_heads * n_pos * dim_v * 8);
    REQUIRE(c->k && c->v);
    for (uint32_t ih = 0; ih < n_heads; ih++)
        for (uint32_t p = 0; p < n_pos; p++) {
            size_t slot = (size_t)ih * n_slots + p % n_slots, at = (size_t)ih * n_pos + p;
            uint8_t krow[4 * 256], *vrow = (uint8_t *)c->kv.v + slot * v_bytes;
            k->kv_store(dtype, krow, kf + at * dim_k, dim_k);
            k_row_move(&c->kv, ih, p % n_slots, krow, true);
            k->kv_store(dtype, vrow, vf + at * dim_v, dim_v);
            for (uint32_t i = 0; i < dim_k; i++) c->k[at * dim_k + i] = stored(dtype, krow, i);
            for (uint32_t i = 0; i < dim_v; i++) c->v[at * dim_v + i] = stored(dtype, vrow, i);
        }
}

static void empty(cache *c) { free(c->k_base); free(c->v_base); free(c->k); free(c->v); }

static size_t row_bytes(uint32_t dtype, uint32_t dim) { return dtype == HL_F32 ? dim * 4 : dtype == HL_F16 ? dim * 2 : (dim + 31) / 32 * 34; }

/* want[dim_v] and one bound for all: errors of the scores move the weights, the sums round, both times the largest value. */
static double oracle(const cache *c, uint32_t ih, const float *q, uint32_t p0, uint32_t p1, double scale, double cap, double *want)
{
    uint32_t dk = c->kv.dim_k, dv = c->kv.dim_v;
    double *s = malloc((p1 - p0) * 8), most = -INFINITY, total = 0, shift = 0, largest = 0;
    REQUIRE(s);
    for (uint32_t p = p0; p < p1; p++) {
        const double *k = c->k + ((size_t)ih * c->n_pos + p) * dk;
        double dot = 0, size = 0;
        for (uint32_t i = 0; i < dk; i++) { dot += k[i] * q[i]; size += fabs(k[i] * q[i]); }
        dot *= scale;
        shift = fmax(shift, (dk + 6) * 0x1p-24 * size * scale);
        if (cap > 0) { shift += 4 * 0x1p-23 * fmin(fabs(dot), cap); dot = cap * tanh(dot / cap); }
        s[p - p0] = dot;
        if (dot > most) most = dot;
        shift = fmax(shift, fabs(dot) * 0x1p-23);
    }
    for (uint32_t i = 0; i < dv; i++) want[i] = 0;
    for (uint32_t p = p0; p < p1; p++) {
        double e = most == -INFINITY ? 0 : exp(s[p - p0] - most);
        if (isnan(s[p - p0])) e = NAN;
        total += e;
        for (uint32_t i = 0; i < dv; i++) {
            double v = c->v[((size_t)ih * c->n_pos + p) * dv + i];
            want[i] += e * v;
            largest = fmax(largest, fabs(v));
        }
    }
    for (uint32_t i = 0; i < dv; i++) want[i] = total == 0 ? 0 : want[i] / total;
    free(s);
    return (2 * shift + (p1 - p0 + 32) * 0x1p-23) * largest;
}

static void attend(const hl_cpu_kernels *k, const cache *c, uint32_t ih, const float *q, uint32_t n_q, uint32_t p0, uint32_t p1, float scale, float cap, float *out)
{
    const hl_attention a = { .q = q, .out = out, .kv = &c->kv, .n_heads = n_q, .n_tok = 1, .pos0 = p1 - 1, .window = p1 - p0, .scale = scale, .softcap = cap };
    float *scratch = test_alloc(k->attention_scratch(c->kv.dim_k, c->kv.dim_v) * 4);
    k->attention(&a, ih, 0, n_q, 0, 1, scratch);
    free(scratch);
}

static void check_attention(const hl_cpu_kernels *k, uint32_t dtype, uint32_t dim_k, uint32_t dim_v)
{
    enum { N_HEADS = 2, N_POS = 200, N_Q = 9, SLOTS = 192 };
    static const uint32_t ranges[][2] = { { 0, 1 }, { 0, 3 }, { 0, 64 }, { 0, 65 }, { 63, 64 }, { 50, 150 }, { 51, 200 }, { 100, 131 }, { 127, 200 }, { 199, 200 } };
    static const uint32_t groups[] = { 1, 2, 3, 4, 5, 7, 8, 9 };
    size_t n_k = (size_t)N_HEADS * N_POS * dim_k, n_v = (size_t)N_HEADS * N_POS * dim_v;
    float *kf = malloc(n_k * 4), *vf = malloc(n_v * 4), q[N_Q * 256], out[N_Q * 256], other[N_Q * 256];
    double want[256];
    cache full, ring;
    REQUIRE(kf && vf);
    fill_input(kf, n_k, INPUT_NORMAL);
    fill_input(vf, n_v, INPUT_NORMAL);
    fill_input(q, (size_t)N_Q * dim_k, INPUT_NORMAL);
    fill(&full, k, kf, vf, dtype, N_HEADS, 256, N_POS, dim_k, dim_v, row_bytes(dtype, dim_k), row_bytes(dtype, dim_v));
    fill(&ring, k, kf, vf, dtype, N_HEADS, SLOTS, N_POS, dim_k, dim_v, row_bytes(dtype, dim_k), row_bytes(dtype, dim_v));
    for (uint32_t ir = 0; ir < HL_COUNT(ranges); ir++) {
        uint32_t p0 = ranges[ir][0], p1 = ranges[ir][1], n_q = groups[ir % HL_COUNT(groups)], ih = ir % N_HEADS;
        float scale = 1 / sqrtf((float)dim_k), cap = ir % 3 == 2 ? 5 : 0;
        attend(k, &full, ih, q, n_q, p0, p1, scale, cap, out);
        for (uint32_t iq = 0; iq < n_q; iq++) {
            double bound = oracle(&full, ih, q + iq * dim_k, p0, p1, scale, cap, want);
            for (uint32_t i = 0; i < dim_v; i++)
                CHECK_MSG(near(out[iq * dim_v + i], want[i], bound), "%s %s %u/%u, %u..%u, query %u of %u: %g, not %g", k->isa, hl_dtype(dtype)->name, dim_k, dim_v,
                          p0, p1, iq, n_q, (double)out[iq * dim_v + i], want[i]);
            attend(k, &full, ih, q + iq * dim_k, 1, p0, p1, scale, cap, other);
            CHECK_MSG(memcmp(other, out + iq * dim_v, dim_v * 4) == 0, "%s %s %u: query %u of %u alone", k->isa, hl_dtype(dtype)->name, dim_k, iq, n_q);
        }
        if (p0 >= N_POS - SLOTS) {                     /* the same positions in a ring that has gone round */
            attend(k, &ring, ih, q, n_q, p0, p1, scale, cap, other);
            CHECK_MSG(memcmp(other, out, (size_t)n_q * dim_v * 4) == 0, "%s %s %u, %u..%u: the ring changes bits", k->isa, hl_dtype(dtype)->name, dim_k, p0, p1);
        }
    }
    /* many tokens at once: each as alone */
    for (uint32_t ic = 0; ic < 6; ic++) {
        static const uint32_t cuts[6][4] = { { 1, 48, 0, 0 }, { 3, 16, 5, 0 }, { 2, 24, 100, 70 }, { 7, 6, 62, 3 }, { 9, 5, 190, 64 }, { 5, 9, 60, 130 } };      /* heads, tokens, first, window */
        const uint32_t heads = cuts[ic][0], toks = cuts[ic][1], pos0 = cuts[ic][2], window = cuts[ic][3];
        float *qs = malloc((size_t)heads * toks * dim_k * 4), *many = malloc((size_t)heads * toks * dim_v * 4), *scratch = test_alloc(k->attention_scratch(dim_k, dim_v) * 4);
        REQUIRE(qs && many);
        fill_input(qs, (size_t)heads * toks * dim_k, INPUT_NORMAL);
        const hl_attention a = { .q = qs, .out = many, .kv = &full.kv, .n_heads = heads, .n_tok = toks, .pos0 = pos0, .window = window, .scale = 0.2f };
        k->attention(&a, 1, 0, heads, 0, toks, scratch);
        for (uint32_t t = 0; t < toks; t++) {
            const uint32_t p1 = pos0 + t + 1, p0 = window && p1 > window ? p1 - window : 0;
            attend(k, &full, 1, qs + (size_t)t * heads * dim_k, heads, p0, p1, 0.2f, 0, out);
            CHECK_MSG(memcmp(out, many + (size_t)t * heads * dim_v, (size_t)heads * dim_v * 4) == 0, "%s %s %u/%u: token %u of %u, %u heads from %u, window %u", k->isa,
                      hl_dtype(dtype)->name, dim_k, dim_v, t, toks, heads, pos0, window);
        }
        free(qs); free(many); free(scratch);
    }
    /* control: another value at one of the positions is seen */
    uint8_t *row = (uint8_t *)full.kv.v + 20 * row_bytes(dtype, dim_v);
    attend(k, &full, 0, q, 1, 0, 40, 0.01f, 0, out);
    double bound = oracle(&full, 0, q, 0, 40, 0.01f, 0, want);
    CHECK(near(out[0], want[0], bound));
    row[dtype == HL_F32 ? 3 : dtype == HL_F16 ? 1 : 2] ^= 0x40;
    attend(k, &full, 0, q, 1, 0, 40, 0.01f, 0, out);
    CHECK_MSG(!near(out[0], want[0], bound), "control");
    empty(&full);
    empty(&ring);
    free(kf);
    free(vf);
}

static void check_special(const hl_cpu_kernels *k)
{
    enum { N = 70, DIM = 64 };
    static float kf[N * DIM], vf[N * DIM];
    float q[DIM], out[DIM], far[DIM];
    double want[DIM];
    cache c;
    for (int which = 0; which < 4; which++) {
        fill_input(kf, N * DIM, INPUT_NORMAL);
        fill_input(vf, N * DIM, INPUT_NORMAL);
        for (int i = 0; i < DIM; i++) q[i] = 1;
        if (which == 0) kf[66 * DIM] = -INFINITY;      /* one position weighs nothing */
        if (which == 1) for (int p = 0; p < N; p++) kf[p * DIM] = -INFINITY;
        if (which == 2) kf[5 * DIM + 7] = NAN;
        if (which == 3) for (int i = 0; i < DIM; i++) { kf[66 * DIM + i] = 1000; kf[3 * DIM + i] = -1000; }     /* the rest weighs nothing */
        fill(&c, k, kf, vf, HL_F32, 1, 128, N, DIM, DIM, DIM * 4, DIM * 4);
        attend(k, &c, 0, q, 1, 0, N, 1, 0, out);
        double bound = oracle(&c, 0, q, 0, N, 1, 0, want);
        for (int i = 0; i < DIM; i++) {
            if (which == 1) CHECK_MSG(out[i] == 0, "%s: all -Inf", k->isa);
            else if (which == 2) CHECK_MSG(isnan(out[i]), "%s: NaN", k->isa);
            else if (which == 3) CHECK_MSG(out[i] == vf[66 * DIM + i], "%s: one position", k->isa);
            else CHECK_MSG(near(out[i], want[i], isfinite(bound) ? bound : 1e-4), "%s: special %d: %g, not %g", k->isa, which, (double)out[i], want[i]);
        }
        attend(k, &c, 0, q, 1, 6, 60, 1, 0, far);
        if (which != 1) for (int i = 0; i < DIM; i++) CHECK(isfinite(far[i]));
        empty(&c);
    }
}

static void check_store(const hl_cpu_kernels *k)
{
    static const uint32_t dims[] = { 1, 7, 16, 31, 32, 33, 40, 48, 64, 80, 100, 128, 256 };
    for (uint32_t id = 0; id < HL_COUNT(dims); id++) {
        for (int kind = 0; kind < INPUT_KINDS; kind++) {
            uint32_t dim = dims[id];
            float x[256];
            void *base, *first_base;
            uint8_t *row = exact_alloc(row_bytes(HL_Q8_0, dim), &base), *first = exact_alloc(row_bytes(HL_Q8_0, dim), &first_base);
            fill_input(x, dim, kind);
            k->kv_store(HL_Q8_0, row, x, dim);
            hl_kern_scalar.kv_store(HL_Q8_0, first, x, dim);
            CHECK_MSG(memcmp(row, first, row_bytes(HL_Q8_0, dim)) == 0, "%s: q8_0 differs from the scalar table, dim %u input %d", k->isa, dim, kind);
            for (uint32_t i = 0; i < (dim + 31) / 32 * 32; i++) {
                hl_f16 h;
                memcpy(&h, row + i / 32 * 34, 2);
                double d = hl_f16_to_f32(h), got = d * (int8_t)row[i / 32 * 34 + 2 + i % 32];
                if (i >= dim) { CHECK(row[i / 32 * 34 + 2 + i % 32] == 0); continue; }
                if (isinf(d)) { CHECK(kind == INPUT_HUGE || kind == INPUT_WILD); continue; }
                /* half a step; the half-precision step is 2^-11 off, or 2^-25 where subnormal, up to 127 times */
                CHECK_MSG(near(got, x[i], 0.5 * d + 127 * (d * 0x1p-11 + 0x1p-25) + 0x1p-25 * 64), "%s q8_0 %u, input %d: %g, not %g", k->isa, dim, kind, got, (double)x[i]);
            }
            free(base);
            free(first_base);
            row = exact_alloc((size_t)dim * 2, &base);
            k->kv_store(HL_F16, row, x, dim);
            for (uint32_t i = 0; i < dim; i++) {
                hl_f16 h, w = hl_f32_to_f16(x[i]);
                memcpy(&h, row + 2 * i, 2);
                CHECK_MSG(h == w, "%s f16(%a) = %04x, not %04x", k->isa, (double)x[i], h, w);
            }
            free(base);
            row = exact_alloc((size_t)dim * 4, &base);
            k->kv_store(HL_F32, row, x, dim);
            CHECK(memcmp(row, x, (size_t)dim * 4) == 0);
            free(base);
        }
    }
    for (int which = 0; which < 2; which++) {
        float x[32] = { 1, 2, which ? INFINITY : NAN };
        uint8_t row[34];
        k->kv_store(HL_Q8_0, row, x, 32);
        double sum = 0;
        for (uint32_t i = 0; i < 32; i++) sum += stored(HL_Q8_0, row, i);
        CHECK_MSG(isnan(sum), "%s: a lost NaN", k->isa);
    }
}

static void check_table(const hl_cpu_kernels *k)
{
    static const uint32_t dims[][2] = { { 64, 64 }, { 48, 48 }, { 40, 40 }, { 80, 80 }, { 96, 96 }, { 128, 128 }, { 256, 256 }, { 33, 17 }, { 192, 128 } };
    static const uint32_t types[] = { HL_F32, HL_F16, HL_Q8_0 };
    check_store(k);
    for (uint32_t id = 0; id < HL_COUNT(dims); id++)
        for (uint32_t iy = 0; iy < 3; iy++) check_attention(k, types[iy], dims[id][0], dims[id][1]);
    check_special(k);
}

int main(int argc, char **argv) { return run_tables(argc, argv, check_table); }
