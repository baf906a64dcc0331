/* predictor.c: which neurons of a layer will be active, told from the FFN's input by two thin matrices: closed form.
 *
 * The products z = W x that decide are linear in x, so the best predictor of a given width is a low-rank one: with S = cov(x) = L L', and D the
 * weight that each neuron's error has, the rank-r matrix nearest to D W L (Eckart-Young) is (D W L) V V', V its first r right singular vectors,
 * and fc2 fc1 x with fc2 = W L V, fc1 = V' L^-1 approximates z up to a constant (the mean's), which the thresholds take up.  V is found by orthogonal
 * iteration.  Both matrices are quantised before thresholds are taken.
 *
 * A threshold weighs what is lost against what is read: a neuron left out where it is active loses h^2 |down row|^2 of the output's energy; one
 * kept costs the price lambda.  What is lost is told by a cut through half of the tokens, counted on the other half: of neurons that are seldom active
 * the cut through all loses less on them than on any other token.  For each neuron the cut through its tokens sorted by score that costs least is taken, for HL_LEVELS prices.
 */
#include "sparse/sparse.h"

#include <math.h>
#include <string.h>

enum { STRETCH = 64, CHUNK = 1024, BLOCK = 64, ROUNDS = 12, WIDTHS = 8, CHOICE_LEVEL = 9 };
#define PRICE_FIRST 0.002                              /* of the mean energy of an active neuron */
#define PRICE_LAST 2.0
#define NEVER (-1e30f)
#define ALWAYS 1e30f

typedef struct work {
    const hl_train *t;
    const hl_backend_vt *be;
    hl_pool *pool;
    hl_mem *mem;
    hl_stream *st;
    float *mean, *cov, *chol, *wl, *gram, *basis;      /* [E], [E][E], [E][E] lower, [F][E], [E][E], [R][E] */
    float *fc1, *fc2;                                  /* [R][E], [F][R] */
    uint32_t most;                                     /* R */
    double prices[HL_LEVELS], energy, active;          /* energy and active: sums over neurons and tokens */
} work;

/* y[n_tok][rows] = x [n_tok][cols] . w [rows][cols]' */
static void product(const work *k, float *y, const float *w, uint32_t rows, uint32_t cols, const float *x, uint32_t n_tok)
{
    const hl_weight m = { HL_F32, HL_LAYOUT_FILE, rows, cols, (size_t)cols * sizeof *w, w };
    const hl_act a = { x, NULL, false, cols, n_tok };
    k->be->matmul(k->st, &a, &(hl_product){ &m, NULL, y, rows }, 1);
}

static void transpose(float *to, size_t to_stride, const float *from, size_t from_stride, uint32_t rows, uint32_t cols)
{
    for (uint32_t r = 0; r < rows; r += 16)
        for (uint32_t c = 0; c < cols; c++)
            for (uint32_t i = r; i < HL_MIN(rows, r + 16); i++) to[c * to_stride + i] = from[i * from_stride + c];
}

/* s [E][E] += the sum over rows of (row - mean)(row - mean)' * weight; mean and weight may be NULL. */
static hl_status add_gram(const work *k, float *s, const float *rows, uint32_t n, const float *mean, const float *weight)
{
    hl_status rc = HLLM_OK;
    const uint32_t E = k->t->n_embd;
    float *some = NULL, *turned = NULL, *part = NULL;
    HL_NEED(some = hl_alloc_array(k->mem, CHUNK, E * sizeof *some));
    HL_NEED(turned = hl_alloc_array(k->mem, CHUNK, E * sizeof *turned));
    HL_NEED(part = hl_alloc_array(k->mem, E, E * sizeof *part));
    for (uint32_t r = 0; r < n; r += CHUNK) {
        const uint32_t m = HL_MIN(n - r, (uint32_t)CHUNK);
        for (uint32_t i = 0; i < m; i++) {
            const float f = weight ? sqrtf(weight[r + i]) : 1.0f;
            for (uint32_t c = 0; c < E; c++) some[(size_t)i * E + c] = f * (rows[(size_t)(r + i) * E + c] - (mean ? mean[c] : 0));
        }
        transpose(turned, m, some, E, m, E);
        product(k, part, turned, E, m, turned, E);
        for (size_t i = 0; i < (size_t)E * E; i++) s[i] += part[i];
    }
done:
    hl_free(k->mem, some);
    hl_free(k->mem, turned);
    hl_free(k->mem, part);
    return rc;
}

static void add_ridge(float *s, uint32_t n, double share)
{
    double trace = 0;
    for (uint32_t i = 0; i < n; i++) trace += (double)s[(size_t)i * n + i];
    for (uint32_t i = 0; i < n; i++) s[(size_t)i * n + i] += (float)(trace / n * share + 1e-20);
}

typedef struct column_arg { float *l; const float *s; uint32_t n, j; float inverse; } column_arg;

static void cholesky_rows(void *v, uint32_t task, uint32_t thread)
{
    const column_arg *a = v;
    const uint32_t n = a->n, j = a->j, end = HL_MIN(n, j + 1 + (task + 1) * BLOCK);
    (void)thread;
    for (uint32_t i = j + 1 + task * BLOCK; i < end; i++) {
        const float *li = a->l + (size_t)i * n, *lj = a->l + (size_t)j * n;
        float sum = 0;
        for (uint32_t c = 0; c < j; c++) sum += li[c] * lj[c];
        a->l[(size_t)i * n + j] = (a->s[(size_t)i * n + j] - sum) * a->inverse;
    }
}

/* l l' = s, l lower.  s has a ridge. */
static void cholesky(const work *k, float *l, const float *s, uint32_t n)
{
    memset(l, 0, (size_t)n * n * sizeof *l);
    for (uint32_t j = 0; j < n; j++) {
        double d = (double)s[(size_t)j * n + j];
        for (uint32_t c = 0; c < j; c++) d -= (double)l[(size_t)j * n + c] * (double)l[(size_t)j * n + c];
        const float root = sqrtf((float)HL_MAX(d, 1e-12 * (double)s[(size_t)j * n + j] + 1e-30));
        l[(size_t)j * n + j] = root;
        column_arg a = { l, s, n, j, 1 / root };
        if (j + 1 < n) hl_pool_run(k->pool, cholesky_rows, &a, (n - j - 1 + BLOCK - 1) / BLOCK);
    }
}

/* Rows of v orthogonal and of length 1, in order; one that has nothing of its own becomes a unit vector's rest. */
static void orthonormalise(float *v, uint32_t rows, uint32_t n)
{
    for (uint32_t r = 0; r < rows; r++) {
        float *a = v + (size_t)r * n;
        for (int twice = 0; twice < 2; twice++)
            for (uint32_t q = 0; q < r; q++) {
                const float *b = v + (size_t)q * n;
                float dot = 0;
                for (uint32_t i = 0; i < n; i++) dot += a[i] * b[i];
                for (uint32_t i = 0; i < n; i++) a[i] -= dot * b[i];
            }
        double length = 0;
        for (uint32_t i = 0; i < n; i++) length += (double)a[i] * (double)a[i];
        const float f = length > 1e-30 ? (float)(1 / sqrt(length)) : 0;
        for (uint32_t i = 0; i < n; i++) a[i] *= f;
        if (f == 0) a[r % n] = 1;
    }
}

typedef struct solve_arg { float *y; const float *v, *l; uint32_t n; } solve_arg;

/* y l = v, one row. */
static void solve_row(void *arg, uint32_t row, uint32_t thread)
{
    const solve_arg *a = arg;
    const uint32_t n = a->n;
    float *y = a->y + (size_t)row * n;
    (void)thread;
    memcpy(y, a->v + (size_t)row * n, n * sizeof *y);
    for (uint32_t j = n; j-- > 0;) {
        const float *l = a->l + (size_t)j * n;
        y[j] /= l[j];
        for (uint32_t i = 0; i < j; i++) y[i] -= y[j] * l[i];
    }
}

/* fc1 and fc2 of the largest width; narrower ones are their first rows and columns. */
static hl_status low_rank(work *k)
{
    hl_status rc = HLLM_OK;
    const hl_train *t = k->t;
    const uint32_t E = t->n_embd, F = t->n_ff, R = k->most;
    float *turned = NULL, *next = NULL;
    uint64_t seed = 1;
    HL_NEED(turned = hl_alloc_array(k->mem, E, E * sizeof *turned));
    HL_NEED(next = hl_alloc_array(k->mem, R, E * sizeof *next));
    add_ridge(k->cov, E, 1e-4);
    cholesky(k, k->chol, k->cov, E);
    transpose(turned, E, k->chol, E, E, E);
    product(k, k->wl, turned, E, E, t->w, F);
    HL_TRY(add_gram(k, k->gram, k->wl, F, NULL, t->out_norm));
    for (size_t i = 0; i < (size_t)R * E; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        k->basis[i] = (float)(int32_t)(seed >> 32) * 0x1p-31f;
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        orthonormalise(k->basis, R, E);
        product(k, next, k->gram, E, E, k->basis, R);  /* the gram matrix is symmetric */
        memcpy(k->basis, next, (size_t)R * E * sizeof *next);
    }
    orthonormalise(k->basis, R, E);
    product(k, k->fc2, k->basis, R, E, k->wl, F);
    solve_arg s = { k->fc1, k->basis, k->chol, E };
    hl_pool_run(k->pool, solve_row, &s, R);
done:
    hl_free(k->mem, turned);
    hl_free(k->mem, next);
    return rc;
}

/* ---- thresholds ---- */

typedef struct pair { float score, loss; } pair;

/* A float's bits so that their order as integers is the floats'. */
static uint32_t order_of(float f)
{
    uint32_t b;
    memcpy(&b, &f, sizeof b);
    return b >> 31 ? ~b : b | 0x80000000u;
}

/* a [n] by score, lowest first, with b [n] as room: by digits of 11 bits from the lowest. */
static void sort_pairs(pair *a, pair *b, uint32_t n)
{
    enum { DIGITS = 2048 };
    for (uint32_t shift = 0; shift < 33; shift += 11) {
        uint32_t at[DIGITS] = { 0 }, sum = 0;
        for (uint32_t i = 0; i < n; i++) at[order_of(a[i].score) >> shift & (DIGITS - 1)]++;
        for (uint32_t d = 0; d < DIGITS; d++) { const uint32_t count = at[d]; at[d] = sum; sum += count; }
        for (uint32_t i = 0; i < n; i++) b[at[order_of(a[i].score) >> shift & (DIGITS - 1)]++] = a[i];
        pair *t = a; a = b; b = t;
    }
    memcpy(b, a, n * sizeof *a);                       /* an odd number of rounds: the result lies in what was the room */
}

typedef struct block {
    const work *k;
    hl_predictor *out;
    const float *score, *value;                        /* [n][rows of this block] each; value: h, or z */
    uint32_t first, rows, n;
    bool is_z;
    pair *pairs;                                       /* [threads][2][n] */
    double (*sums)[3];                                 /* [rows][HL_LEVELS]: kept, kept active, lost */
} block;

static float value_of(const hl_train *t, float z)
{
    const float r = z > 0 ? z : 0;
    return t->act == HL_FFN_RELU2 ? r * r : r;
}

/* One neuron: for each price the best cut. */
static void cut_neuron(void *v, uint32_t row, uint32_t thread)
{
    const block *b = v;
    const hl_train *t = b->k->t;
    const uint32_t neuron = b->first + row, n = b->n;
    pair *p = b->pairs + (size_t)thread * 2 * n;
    uint32_t n_active = 0;
    for (uint32_t i = 0; i < n; i++) {
        float h = b->value[(size_t)i * b->rows + row];
        if (b->is_z) h = value_of(t, h + (t->b ? t->b[neuron] : 0));
        const float loss = h * h * t->out_norm[neuron];
        p[i] = (pair){ b->score[(size_t)i * b->rows + row], i / STRETCH % 2 ? -loss : loss };            /* the sign: which half, also of 0 */
        n_active += h != 0;
    }
    sort_pairs(p, p + n, n);
    for (uint32_t il = 0; il < HL_LEVELS; il++) {
        const double price = b->k->prices[il];
        double lost = 0, best = price * n, half = 0, other = 0, best_half = price * n / 2, other_lost = 0;
        uint32_t cut = 0, active_cut = 0, active_lost = 0, n_half = 0; /* leave out the first `cut` */
        for (uint32_t i = 0; i < n; i++) {
            const double loss = fabs((double)p[i].loss);
            lost += loss;
            active_lost += loss > 0;
            if (signbit(p[i].loss)) other += loss;
            else { half += loss; n_half++; }
            if (i + 1 < n && !(p[i + 1].score > p[i].score)) continue;
            const double cost = lost + price * (n - 1 - i), cost_half = half + price * (n / 2.0 - n_half);
            if (cost < best) { best = cost; cut = i + 1; active_cut = active_lost; }
            if (cost_half < best_half) { best_half = cost_half; other_lost = other; }
        }
        double *sum = b->sums[row * HL_LEVELS + il];
        sum[0] = n - cut;
        sum[1] = n_active - active_cut;
        sum[2] = 2 * other_lost;
        if (b->out->bias[il]) b->out->bias[il][neuron] = cut == 0 ? ALWAYS : cut == n ? NEVER : -0.5f * (p[cut - 1].score + p[cut].score);
    }
}

/* Thresholds for every `step`-th block of neurons; fills the shares of the levels, and the biases that there is room for. */
static hl_status thresholds(work *k, const float *fc1, const float *fc2, uint32_t width, uint32_t n, uint32_t step, hl_predictor *out)
{
    hl_status rc = HLLM_OK;
    const hl_train *t = k->t;
    const uint32_t threads = hl_pool_threads(k->pool);
    float *hidden = NULL, *score = NULL, *value = NULL;
    pair *pairs = NULL;
    double (*sums)[3] = NULL, total[HL_LEVELS][3] = { { 0 } }, energy = 0, active = 0, neurons = 0;
    HL_NEED(hidden = hl_alloc_array(k->mem, n, width * sizeof *hidden));
    HL_NEED(score = hl_alloc_array(k->mem, n, BLOCK * sizeof *score));
    HL_NEED(value = hl_alloc_array(k->mem, n, BLOCK * sizeof *value));
    HL_NEED(pairs = hl_alloc_array(k->mem, (size_t)threads * 2 * n, sizeof *pairs));
    HL_NEED(sums = hl_alloc_array(k->mem, BLOCK * HL_LEVELS, sizeof *sums));
    product(k, hidden, fc1, width, t->n_embd, t->x, n);
    for (uint32_t first = 0; first < t->n_ff; first += BLOCK * step) {
        const uint32_t rows = HL_MIN(t->n_ff - first, (uint32_t)BLOCK);
        block b = { k, out, score, value, first, rows, n, !t->h, pairs, sums };
        product(k, score, fc2 + (size_t)first * width, rows, width, hidden, n);
        if (t->h) for (uint32_t i = 0; i < n; i++) memcpy(value + (size_t)i * rows, t->h + (size_t)i * t->n_ff + first, rows * sizeof *value);
        else product(k, value, t->w + (size_t)first * t->n_embd, rows, t->n_embd, t->x, n);
        hl_pool_run(k->pool, cut_neuron, &b, rows);
        for (uint32_t i = 0; i < rows * HL_LEVELS; i++) for (int j = 0; j < 3; j++) total[i % HL_LEVELS][j] += sums[i][j];
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t i = 0; i < n; i++) {
                float h = value[(size_t)i * rows + r];
                if (!t->h) h = value_of(t, h + (t->b ? t->b[first + r] : 0));
                energy += (double)(h * h * t->out_norm[first + r]);
                active += h != 0;
            }
        neurons += rows;
    }
    for (uint32_t il = 0; il < HL_LEVELS; il++) {
        out->predicted[il] = total[il][0] / (neurons * n);
        out->recall[il] = active > 0 ? total[il][1] / active : 1;
        out->lost[il] = energy > 0 ? total[il][2] / energy : 0;
    }
    k->energy = energy / (neurons * n);
    k->active = active / (neurons * n);
done:
    hl_free(k->mem, hidden);
    hl_free(k->mem, score);
    hl_free(k->mem, value);
    hl_free(k->mem, pairs);
    hl_free(k->mem, sums);
    return rc;
}

/* Mean energy of an active neuron, from some of them: the unit of the prices. */
static hl_status set_prices(work *k)
{
    hl_status rc = HLLM_OK;
    const hl_train *t = k->t;
    const uint32_t n = HL_MIN(t->n, 2048u);
    float *z = NULL;
    double energy = 0, active = 0;
    HL_NEED(z = hl_alloc_array(k->mem, n, BLOCK * sizeof *z));
    for (uint32_t first = 0; first < t->n_ff; first += BLOCK) {
        const uint32_t rows = HL_MIN(t->n_ff - first, (uint32_t)BLOCK);
        if (!t->h) product(k, z, t->w + (size_t)first * t->n_embd, rows, t->n_embd, t->x, n);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t r = 0; r < rows; r++) {
                const float h = t->h ? t->h[(size_t)i * t->n_ff + first + r] : value_of(t, z[(size_t)i * rows + r] + (t->b ? t->b[first + r] : 0));
                energy += (double)(h * h * t->out_norm[first + r]);
                active += h != 0;
            }
    }
    for (uint32_t il = 0; il < HL_LEVELS; il++)
        k->prices[il] = energy / HL_MAX(active, 1.0) * PRICE_FIRST * pow(PRICE_LAST / PRICE_FIRST, (double)il / (HL_LEVELS - 1));
done:
    hl_free(k->mem, z);
    return rc;
}

/* The first `width` of both matrices as they will be stored: quantised, and read back. */
static hl_status at_width(work *k, uint32_t width, hl_predictor *out, float **fc1, float **fc2)
{
    hl_status rc = HLLM_OK;
    const hl_train *t = k->t;
    *fc1 = *fc2 = NULL;
    out->n_pred = width;
    out->kind = HL_PRED_LINEAR;
    out->dtype = t->n_embd % 32 || width % 32 ? HL_F16 : HL_Q4_0;
    const hl_dtype_info *d = hl_dtype(out->dtype);
    HL_NEED(out->fc1 = hl_alloc(k->mem, width * hl_dtype_bytes(d, t->n_embd)));
    HL_NEED(out->fc2 = hl_alloc(k->mem, t->n_ff * hl_dtype_bytes(d, width)));
    HL_NEED(*fc1 = hl_alloc_array(k->mem, width, t->n_embd * sizeof **fc1));
    HL_NEED(*fc2 = hl_alloc_array(k->mem, t->n_ff, width * sizeof **fc2));
    for (uint32_t i = 0; i < t->n_ff; i++) memcpy(*fc2 + (size_t)i * width, k->fc2 + (size_t)i * k->most, width * sizeof **fc2);
    hl_quantize_rows(k->pool, out->dtype, out->fc1, k->fc1, width, t->n_embd);
    hl_quantize_rows(k->pool, out->dtype, out->fc2, *fc2, t->n_ff, width);
    hl_dequantize(out->dtype, out->fc1, *fc1, (size_t)width * t->n_embd);
    hl_dequantize(out->dtype, out->fc2, *fc2, (size_t)t->n_ff * width);
done:
    return rc;
}

static double bytes_of(const hl_train *t, uint32_t width, uint32_t dtype)
{
    const hl_dtype_info *d = hl_dtype(dtype);
    return (double)width * (double)hl_dtype_bytes(d, t->n_embd) + (double)t->n_ff * (double)hl_dtype_bytes(d, width);
}

static uint32_t widths(const hl_train *t, uint32_t out[WIDTHS])
{
    const uint32_t unit = t->n_embd % 32 ? 8 : 32, most = HL_MAX(t->n_embd / 3 / unit * unit, unit);
    uint32_t n = 0;
    for (uint32_t w = unit * HL_MAX(most / unit / 12, 1u); w <= most && n < WIDTHS; w += HL_MAX((most / unit + WIDTHS - 2) / (WIDTHS - 1), 1u) * unit) out[n++] = w;
    return n;
}

/* The width that makes reading and losing cheapest together, at a middling price. */
static hl_status choose_width(work *k, const uint32_t *all, uint32_t n_all, uint32_t *out)
{
    hl_status rc = HLLM_OK;
    const hl_train *t = k->t;
    double best = INFINITY;
    float *fc1 = NULL, *fc2 = NULL;
    hl_predictor p = { 0 };
    *out = all[0];
    for (uint32_t i = 0; i < n_all; i++) {
        const uint32_t il = CHOICE_LEVEL;
        HL_TRY(at_width(k, all[i], &p, &fc1, &fc2));
        HL_TRY(thresholds(k, fc1, fc2, all[i], HL_MIN(t->n, 4096u), HL_MAX(t->n_ff / BLOCK / 8, 1u), &p));
        const double cost = p.predicted[il] + bytes_of(t, all[i], p.dtype) / (t->first_bytes * t->n_ff) + p.lost[il] * k->energy / k->prices[il]
                            + p.recall[il] * k->active * t->rest_bytes / t->first_bytes;
        if (cost < best) { best = cost; *out = all[i]; }
        hl_predictor_free(k->mem, &p);
        hl_free(k->mem, fc1);
        hl_free(k->mem, fc2);
        fc1 = fc2 = NULL;
    }
done:
    hl_predictor_free(k->mem, &p);
    hl_free(k->mem, fc1);
    hl_free(k->mem, fc2);
    return rc;
}

static hl_status allocate(work *k)
{
    hl_status rc = HLLM_OK;
    const size_t E = k->t->n_embd, F = k->t->n_ff, R = k->most, f = sizeof(float);
    HL_NEED(k->mean = hl_alloc_array(k->mem, E, f));
    HL_NEED(k->cov = hl_alloc_array(k->mem, E, E * f));
    HL_NEED(k->chol = hl_alloc_array(k->mem, E, E * f));
    HL_NEED(k->gram = hl_alloc_array(k->mem, E, E * f));
    HL_NEED(k->wl = hl_alloc_array(k->mem, F, E * f));
    HL_NEED(k->basis = hl_alloc_array(k->mem, R, E * f));
    HL_NEED(k->fc1 = hl_alloc_array(k->mem, R, E * f));
    HL_NEED(k->fc2 = hl_alloc_array(k->mem, F, R * f));
done:
    return rc;
}

hl_status hl_predictor_train(const hl_train *t, hl_predictor *out)
{
    hl_status rc = HLLM_OK;
    work k = { .t = t, .be = t->e->be, .pool = t->e->handle->rt->pool, .mem = t->e->env->mem };
    uint32_t all[WIDTHS], width;
    float *fc1 = NULL, *fc2 = NULL;
    const uint32_t n_all = widths(t, all);
    memset(out, 0, sizeof *out);
    k.most = all[n_all - 1];
    k.be->weight_rows(t->e->dev, HL_F32, 1, HL_MAX(HL_MAX(t->n_embd, t->n_ff), (uint32_t)CHUNK));        /* scratch for such products */
    HL_TRY(k.be->stream_new(t->e->dev, t->err, &k.st));
    HL_TRY(allocate(&k));
    for (uint32_t i = 0; i < t->n; i++) for (uint32_t c = 0; c < t->n_embd; c++) k.mean[c] += t->x[(size_t)i * t->n_embd + c] / (float)t->n;
    HL_TRY(add_gram(&k, k.cov, t->x, t->n, k.mean, NULL));
    for (size_t i = 0; i < (size_t)t->n_embd * t->n_embd; i++) k.cov[i] /= (float)t->n;
    HL_TRY(low_rank(&k));
    HL_TRY(set_prices(&k));
    HL_TRY(choose_width(&k, all, n_all, &width));
    HL_TRY(at_width(&k, width, out, &fc1, &fc2));
    for (uint32_t il = 0; il < HL_LEVELS; il++) HL_NEED(out->bias[il] = hl_alloc_array(k.mem, t->n_ff, sizeof(float)));
    HL_TRY(thresholds(&k, fc1, fc2, width, t->n, 1, out));
done:
    if (rc != HLLM_OK) hl_predictor_free(k.mem, out);
    hl_free(k.mem, fc1); hl_free(k.mem, fc2);
    hl_free(k.mem, k.mean); hl_free(k.mem, k.cov); hl_free(k.mem, k.chol); hl_free(k.mem, k.gram);
    hl_free(k.mem, k.wl); hl_free(k.mem, k.basis); hl_free(k.mem, k.fc1); hl_free(k.mem, k.fc2);
    if (k.st) k.be->stream_free(k.st);
    return rc;
}

void hl_predictor_free(hl_mem *mem, hl_predictor *p)
{
    hl_free(mem, p->fc1);
    hl_free(mem, p->fc2);
    for (uint32_t il = 0; il < HL_LEVELS; il++) hl_free(mem, p->bias[il]);
    memset(p, 0, sizeof *p);
}
