/* prepare.c: the whole step from a model's file to one whose neurons can be skipped: count, sort, predict, size, turn, write.
 *
 * The text runs through the model layer by layer (profile.c); of each layer its neurons' activations are counted and, unless the caller wants
 * statistics only, a predictor is made from what some of the windows showed (predictor.c).  How much each layer may lose is decided at the end:
 * what a layer's losses do to the model's predictions is measured on windows that nothing was learnt from, and the bytes are saved where that
 * costs least, until the whole costs what it may.  Then the file is written from front to back, one matrix in memory at a time.
 */
#include "sparse/sparse.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "run/machine.h"

enum { MAX_TOKENS = 131072, MIN_TOKENS = 8192, MAX_HELD = 32, TRAIN_TOKENS = 16384, TRAIN_BYTES = 512 << 20, TRIES = 6 };
#define WORK 6e13                                      /* tokens times parameters that a text is cut to */
#define DEFAULT_BUDGET 0.001                           /* of the perplexity */

typedef struct layer_plan {
    uint32_t *counts, *halves[2], *order;              /* [n_ff]; of the text's first and last half of windows */
    float *energy;                                     /* [n_ff]: mean square of the neuron's value */
    uint32_t down;                                     /* dtype of its rows */
    hl_predictor pred;
    int level;                                         /* -1: no predictor */
    double active, sensitivity, hot80, overlap;
} layer_plan;

typedef struct job {
    hllm_model *handle;
    const hl_model *m;
    hl_mem *mem;
    hl_error *err;
    hl_progress *progress;
    hl_pool *pool;
    hl_profiler *p;
    int32_t *tokens;
    uint32_t n_windows, window, n_held;
    layer_plan *layers;
    bool predict, measure;
    double budget;                                     /* nats */
    hl_profile_cost cost;
    /* of the layer under way */
    uint32_t iw_rows, n_train, train_every;            /* rows seen; rows kept; one window in so many is learnt from */
    float *x, *h;
    /* masks */
    float *hidden, *score; void *act;
    uint32_t *mask_counts;
    int only;                                          /* -1: all layers' masks */
    hl_cutter *cutter;                                 /* thresholds are asked for; NULL: not */

} job;

/* ---- the text ---- */

/* Windows of tokens, each beginning with BOS if the model adds one. */
static hl_status cut_text(job *j, const char *text, size_t bytes)
{
    hl_status rc = HLLM_OK;
    const hl_env *env = &j->handle->rt->env;
    const char *path = hl_gguf_path(j->m->gguf);
    int32_t *all = NULL, begin[4];
    size_t n = 0, n_begin = 0;
    rc = hl_vocab_tokenize(env, j->err, j->m->vocab, &(hl_text_part){ text, bytes, false }, 1, HLLM_TOKENIZE_NO_SPECIAL, NULL, 0, &n);
    if (rc != HLLM_OK && rc != HLLM_E_BUFFER) goto done;
    rc = HLLM_OK;
    if (n < 2) { rc = hl_fail(j->err, HLLM_E_ARG, "%s: the text has %zu token%s: nothing to count (some tens of thousands are wanted)", path, n, n == 1 ? "" : "s"); goto done; }
    HL_NEED(all = hl_alloc_array(j->mem, n, sizeof *all));
    HL_TRY(hl_vocab_tokenize(env, j->err, j->m->vocab, &(hl_text_part){ text, bytes, false }, 1, HLLM_TOKENIZE_NO_SPECIAL, all, n, &n));
    if (hl_vocab_tokenize(env, j->err, j->m->vocab, &(hl_text_part){ "", 0, false }, 1, 0, begin, 4, &n_begin) != HLLM_OK || !n_begin || begin[0] != hl_vocab_special(j->m->vocab, HLLM_SPECIAL_BOS)) n_begin = 0;
    else n_begin = 1;
    const uint64_t most = (uint64_t)HL_MIN(HL_MAX(WORK / (double)HL_MAX(j->m->n_params, 1u), (double)MIN_TOKENS), (double)MAX_TOKENS);
    j->window = (uint32_t)HL_MIN(HL_MIN((uint64_t)HL_PROFILE_WINDOW, (uint64_t)j->m->config.n_ctx_train), n + n_begin);
    const uint32_t fresh = j->window - (uint32_t)n_begin;
    j->n_windows = (uint32_t)HL_MAX(HL_MIN((uint64_t)n, most) / fresh, 1u);
    j->n_held = j->measure ? HL_MIN(j->n_windows / 8, (uint32_t)MAX_HELD) : 0;
    if (j->measure && !j->n_held) {
        rc = hl_fail(j->err, HLLM_E_ARG, "%s: the text has %zu tokens: predictors and thresholds need at least %u (statistics alone do not)", path, n, 8 * fresh);
        goto done;
    }
    HL_NEED(j->tokens = hl_alloc_array(j->mem, (size_t)j->n_windows * j->window, sizeof *j->tokens));
    for (uint32_t w = 0; w < j->n_windows; w++) {
        if (n_begin) j->tokens[(size_t)w * j->window] = begin[0];
        /* Spread over the whole text when it is longer than what is taken. */
        const size_t from = (size_t)((double)w / j->n_windows * (double)(n - fresh) + 0.5);
        memcpy(j->tokens + (size_t)w * j->window + n_begin, all + HL_MIN(from, n - fresh), fresh * sizeof *all);
    }
done:
    hl_free(j->mem, all);
    return rc;
}

/* ---- one layer seen ---- */

static void see(void *v, uint32_t il, const float *in, const float *gate, float *h, uint32_t n)
{
    job *j = v;
    if (j->cutter) hl_cutter_see(j->cutter, il, gate, n);
    layer_plan *l = &j->layers[il];
    const uint32_t F = j->m->layers[il].n_ff, E = j->m->config.n_embd;
    for (uint32_t t = 0; t < n; t++) {
        const uint32_t iw = (j->iw_rows + t) / j->window;
        const float *row = h + (size_t)t * F;
        uint32_t *half = l->halves[iw >= j->n_windows / 2];
        for (uint32_t i = 0; i < F; i++) half[i] += row[i] != 0;
        for (uint32_t i = 0; i < F; i++) l->energy[i] += row[i] * row[i] * (1.0f / ((float)j->n_windows * (float)j->window));
        if (!j->predict || iw >= j->n_windows - j->n_held || iw % j->train_every) continue;
        memcpy(j->x + (size_t)j->n_train * E, in + (size_t)t * E, E * sizeof *in);
        if (j->h) memcpy(j->h + (size_t)j->n_train * F, row, F * sizeof *row);
        j->n_train++;
    }
    j->iw_rows += n;
}

/* Is neuron x to come before y (which has the higher number)?  Where the text tells no difference PowerInfer's hot set does. */
static bool hotter(const layer_plan *l, const uint8_t *hot, uint32_t x, uint32_t y)
{
    return l->counts[x] != l->counts[y] ? l->counts[x] > l->counts[y] : !hot || hot[x] >= hot[y];
}

/* Hottest first, ties by place: a merge sort, so that equals keep their order. */
static hl_status sort_by_heat(job *j, layer_plan *l, uint32_t n)
{
    const uint8_t *hot = j->m->layers[l - j->layers].hot;
    hl_status rc = HLLM_OK;
    uint32_t *a = l->order, *b = NULL;
    HL_NEED(b = hl_alloc_array(j->mem, n, sizeof *b));
    for (uint32_t i = 0; i < n; i++) a[i] = i;
    for (uint32_t width = 1; width < n; width *= 2) {
        for (uint32_t at = 0; at < n; at += 2 * width) {
            const uint32_t mid = HL_MIN(n, at + width), end = HL_MIN(n, at + 2 * width);
            for (uint32_t x = at, y = mid, k = at; k < end; k++)
                b[k] = x < mid && (y >= end || hotter(l, hot, a[x], a[y])) ? a[x++] : a[y++];
        }
        memcpy(a, b, n * sizeof *a);
    }
done:
    hl_free(j->mem, b);
    return rc;
}

/* Of the hottest fifth by one half of the text, the share that is among the hottest fifth by the other. */
static hl_status overlap_of(job *j, layer_plan *l, uint32_t n)
{
    hl_status rc = HLLM_OK;
    uint32_t *keep = l->order, *counts = l->counts, *first = NULL, both = 0;
    uint8_t *hot = NULL;
    const uint32_t fifth = HL_MAX(n / 5, 1u);
    HL_NEED(first = hl_alloc_array(j->mem, n, sizeof *first));
    HL_NEED(hot = hl_alloc_array(j->mem, n, 1));
    l->order = first;
    l->counts = l->halves[0];
    rc = sort_by_heat(j, l, n);
    for (uint32_t i = 0; i < fifth; i++) hot[first[i]] = 1;
    l->counts = l->halves[1];
    if (rc == HLLM_OK) rc = sort_by_heat(j, l, n);
    for (uint32_t i = 0; i < fifth; i++) both += hot[first[i]];
    l->overlap = (double)both / fifth;
done:
    l->order = keep;
    l->counts = counts;
    hl_free(j->mem, first);
    hl_free(j->mem, hot);
    return rc;
}

static hl_status sum_up(job *j, uint32_t il)
{
    hl_status rc = HLLM_OK;
    layer_plan *l = &j->layers[il];
    const uint32_t n = j->m->layers[il].n_ff;
    uint64_t all = 0, some = 0;
    uint32_t hot = 0;
    for (uint32_t i = 0; i < n; i++) { l->counts[i] = l->halves[0][i] + l->halves[1][i]; all += l->counts[i]; }
    HL_TRY(sort_by_heat(j, l, n));
    while (hot < n && (double)some < 0.8 * (double)all) some += l->counts[l->order[hot++]];
    l->hot80 = (double)hot / n;
    l->active = (double)all / ((double)n * j->n_windows * j->window);
    rc = overlap_of(j, l, n);
done:
    return rc;
}

/* ---- predictors ---- */

static const hl_gguf_tensor *first_of(const job *j, uint32_t il) { return j->m->layers[il].t[j->m->family->gated ? HL_FFN_GATE : HL_FFN_UP]; }

static void row_costs(const job *j, uint32_t il, double *first, double *rest)
{
    const hl_layer *l = &j->m->layers[il];
    const uint32_t E = j->m->config.n_embd;
    const uint32_t down = l->t[HL_FFN_DOWN_T] ? l->t[HL_FFN_DOWN_T]->dtype : j->layers[il].down;
    *first = (double)hl_dtype_bytes(hl_dtype(first_of(j, il)->dtype), E);
    *rest = (double)hl_dtype_bytes(hl_dtype(down), E) + (j->m->family->gated ? (double)hl_dtype_bytes(hl_dtype(l->t[HL_FFN_UP]->dtype), E) : 0);
}

/* |down row|^2 of every neuron. */
static hl_status row_norms(const job *j, uint32_t il, float *out)
{
    hl_status rc = HLLM_OK;
    const hl_layer *l = &j->m->layers[il];
    const hl_gguf_tensor *t = l->t[HL_FFN_DOWN_T] ? l->t[HL_FFN_DOWN_T] : l->t[HL_FFN_DOWN];
    const bool by_rows = t == l->t[HL_FFN_DOWN_T];
    const uint32_t cols = (uint32_t)t->dims[0];
    float *row = NULL;
    HL_NEED(row = hl_alloc_array(j->mem, cols, sizeof *row));
    for (uint64_t r = 0; r < t->dims[1]; r++) {
        HL_TRY(hl_model_read_f32(j->m, j->err, t, r * cols, row, cols));
        for (uint32_t c = 0; c < cols; c++) out[by_rows ? r : c] += row[c] * row[c];
    }
done:
    hl_free(j->mem, row);
    return rc;
}

static hl_status train(job *j, uint32_t il)
{
    hl_status rc = HLLM_OK;
    const hl_layer *l = &j->m->layers[il];
    const hl_gguf_tensor *b = l->t[j->m->family->gated ? HL_FFN_GATE_B : HL_FFN_UP_B];
    float *w = NULL, *bias = NULL, *norms = NULL;
    hl_train t = { .e = j->p->e, .err = j->err, .n_embd = j->m->config.n_embd, .n_ff = l->n_ff, .n = j->n_train, .act = j->m->config.act, .x = j->x, .h = j->h };
    HL_NEED(w = hl_alloc_array(j->mem, (size_t)l->n_ff, t.n_embd * sizeof *w));
    HL_NEED(norms = hl_alloc_array(j->mem, l->n_ff, sizeof *norms));
    HL_TRY(hl_model_read_f32(j->m, j->err, first_of(j, il), 0, w, (size_t)l->n_ff * t.n_embd));
    HL_TRY(row_norms(j, il, norms));
    if (b) {
        HL_NEED(bias = hl_alloc_array(j->mem, l->n_ff, sizeof *bias));
        HL_TRY(hl_model_read_f32(j->m, j->err, b, 0, bias, l->n_ff));
    }
    t.w = w; t.b = bias; t.out_norm = norms;
    row_costs(j, il, &t.first_bytes, &t.rest_bytes);
    rc = hl_predictor_train(&t, &j->layers[il].pred);
done:
    hl_free(j->mem, w);
    hl_free(j->mem, bias);
    hl_free(j->mem, norms);
    return rc;
}

/* What the runtime would do with these predictors. */
static void mask(void *v, uint32_t il, const float *in, const float *gate, float *h, uint32_t n)
{
    job *j = v;
    if (j->cutter) { hl_cutter_mask(j->cutter, il, gate, h, n); return; }
    const layer_plan *l = &j->layers[il];
    const hl_predictor *p = &l->pred;
    hllm_engine *e = j->p->e;
    const uint32_t E = j->m->config.n_embd, F = j->m->layers[il].n_ff;
    if (l->level < 0 || (j->only >= 0 && (uint32_t)j->only != il)) return;
    const hl_dtype_info *d = hl_dtype(p->dtype);
    const hl_weight a = { p->dtype, HL_LAYOUT_FILE, p->n_pred, E, hl_dtype_bytes(d, E), p->fc1 }, b = { p->dtype, HL_LAYOUT_FILE, F, p->n_pred, hl_dtype_bytes(d, p->n_pred), p->fc2 };
    hl_act x = { in, e->be->act_bytes(e->dev, E) ? j->act : NULL, false, E, n };
    e->be->quantize(e->stream, &x);
    e->be->matmul(e->stream, &x, &(hl_product){ &a, NULL, j->hidden, p->n_pred }, 1);
    x = (hl_act){ j->hidden, e->be->act_bytes(e->dev, p->n_pred) ? j->act : NULL, false, p->n_pred, n };
    e->be->quantize(e->stream, &x);
    e->be->matmul(e->stream, &x, &(hl_product){ &b, p->bias[l->level], j->score, F }, 1);
    e->be->ffn_mask(e->stream, h, j->score, 0, NULL, NULL, F, n, F, j->mask_counts);
}

/* Bytes read a token at a level; -1: without a predictor. */
static double bytes_at(const job *j, uint32_t il, int level)
{
    const layer_plan *l = &j->layers[il];
    const hl_predictor *p = &l->pred;
    const double F = j->m->layers[il].n_ff;
    double first, rest;
    row_costs(j, il, &first, &rest);
    if (level < 0) return F * (first + l->active * rest);
    const hl_dtype_info *d = hl_dtype(p->dtype);
    return (double)(p->n_pred * hl_dtype_bytes(d, j->m->config.n_embd)) + F * (double)hl_dtype_bytes(d, p->n_pred) + F * (p->predicted[level] * first + p->recall[level] * l->active * rest);
}

/* Each layer's level for a price of divergence in bytes; returns what is expected to be lost. */
static double choose_levels(job *j, double price)
{
    double expected = 0;
    for (uint32_t il = 0; il < j->m->config.n_layers; il++) {
        layer_plan *l = &j->layers[il];
        double best = bytes_at(j, il, -1), lost = 0;
        l->level = -1;
        for (int k = 0; k < HL_LEVELS; k++) {
            const double cost = bytes_at(j, il, k) + price * l->sensitivity * l->pred.lost[k];
            if (cost < best) { best = cost; l->level = k; lost = l->sensitivity * l->pred.lost[k]; }
        }
        expected += lost;
    }
    return expected;
}

/* The lowest price at which no more than `most` is expected to be lost. */
static void aim_at(job *j, double most)
{
    double low = 1, high = 1e16;
    for (int i = 0; i < 100; i++) {
        const double price = sqrt(low * high);
        if (choose_levels(j, price) > most) low = price;
        else high = price;
    }
    choose_levels(j, high);
}

/* What a layer's lost energy does to the predictions: divergence per share of energy. */
static hl_status measure_sensitivities(job *j)
{
    hl_status rc = HLLM_OK;
    const uint32_t L = j->m->config.n_layers, held = j->p->n_held;
    hl_profile_cost c;
    j->p->n_held = HL_MIN(held, HL_MAX(48 / L, 1u));
    for (uint32_t il = 0; il < L; il++) {
        layer_plan *l = &j->layers[il];
        l->level = HL_LEVELS / 2;
        j->only = (int)il;
        HL_TRY(hl_profiler_cost(j->p, mask, j, &c));
        l->sensitivity = HL_MAX(c.kl, 1e-9) / HL_MAX(l->pred.lost[l->level], 1e-9);
        HL_TRY(hl_progress_step(j->progress, (uint64_t)j->n_windows * j->window / 8));
    }
done:
    j->only = -1;
    j->p->n_held = held;
    return rc;
}

/* The roughest levels whose measured cost is within the budget. */
static hl_status size_predictors(job *j)
{
    hl_status rc = HLLM_OK;
    const uint32_t L = j->m->config.n_layers;
    int *good = NULL;
    hl_profile_cost c;
    double aim = 0.7 * j->budget, best = INFINITY;
    HL_NEED(good = hl_alloc_array(j->mem, L, sizeof *good));
    HL_TRY(measure_sensitivities(j));
    for (uint32_t il = 0; il < L; il++) good[il] = -1;
    for (int i = 0; i < TRIES; i++) {
        double bytes = 0;
        aim_at(j, aim);
        HL_TRY(hl_profiler_cost(j->p, mask, j, &c));
        for (uint32_t il = 0; il < L; il++) bytes += bytes_at(j, il, j->layers[il].level);
        /* Of so few tokens the losses' difference is known to sqrt(2 KL / n) only: less counts as noise. */
        const double noise = sqrt(2 * c.kl / (double)HL_MAX(c.n_tokens, 1u)), worst = HL_MAX(c.kl / 0.8, c.nll - c.nll_dense - noise);
        if (worst <= j->budget && bytes < best) {
            best = bytes;
            j->cost = c;
            for (uint32_t il = 0; il < L; il++) good[il] = j->layers[il].level;
        }
        if (worst <= j->budget && worst > 0.93 * j->budget) break;
        aim *= HL_MIN(HL_MAX(0.97 * j->budget / HL_MAX(worst, 1e-12), 0.2), 4.0);
        HL_TRY(hl_progress_step(j->progress, 0));
    }
    for (uint32_t il = 0; il < L; il++) j->layers[il].level = good[il];
done:
    hl_free(j->mem, good);
    return rc;
}

static hl_status mask_buffers(job *j)
{
    hl_status rc = HLLM_OK;
    const hl_config *c = &j->m->config;
    const size_t n = j->p->s->sizes.micro_batch;
    HL_NEED(j->hidden = hl_alloc_array(j->mem, n, c->n_embd * sizeof(float)));
    HL_NEED(j->score = hl_alloc_array(j->mem, n, c->max_ff * sizeof(float)));
    HL_NEED(j->act = hl_alloc_array(j->mem, n, j->p->e->be->act_bytes(j->p->e->dev, (uint32_t)hl_align_up(c->n_embd, 32)) + 64));
    HL_NEED(j->mask_counts = hl_alloc_array(j->mem, n, sizeof(uint32_t)));
done:
    return rc;
}

/* ---- all layers ---- */

static hl_status look(job *j)
{
    hl_status rc = HLLM_OK;
    const hl_config *c = &j->m->config;
    const uint32_t n_learn = j->n_windows - j->n_held;
    const size_t row = (c->n_embd + (j->m->family->gated ? c->max_ff : 0)) * sizeof(float);
    const size_t most = HL_MIN((size_t)TRAIN_TOKENS, TRAIN_BYTES / row);
    j->train_every = (uint32_t)HL_MAX(((size_t)n_learn * j->window + most - 1) / most, (size_t)1);
    if (j->predict) {
        const size_t n = (size_t)(n_learn / j->train_every + 1) * j->window;
        HL_NEED(j->x = hl_alloc_array(j->mem, n, c->n_embd * sizeof *j->x));
        if (j->m->family->gated) HL_NEED(j->h = hl_alloc_array(j->mem, n, c->max_ff * sizeof *j->h));
    }
    for (uint32_t il = 0; il < c->n_layers; il++) {
        j->iw_rows = j->n_train = 0;
        if (j->cutter) hl_cutter_begin(j->cutter);
        HL_TRY(hl_profiler_layer(j->p, il, see, j));
        if (j->cutter) hl_cutter_end(j->cutter, il);
        HL_TRY(sum_up(j, il));
        if (j->m->layers[il].t[HL_FFN_DOWN]) HL_TRY(hl_rows_choose(j->m, j->err, j->pool, j->m->layers[il].t[HL_FFN_DOWN], j->layers[il].energy, &j->layers[il].down));
        if (j->predict) HL_TRY(train(j, il));
        if (j->predict) HL_TRY(hl_progress_step(j->progress, (uint64_t)j->n_windows * j->window / 2));
    }
    hl_free(j->mem, j->x);
    hl_free(j->mem, j->h);
    j->x = j->h = NULL;
done:
    return rc;
}

/* ---- the file ---- */

static bool is_role(const hl_layer *l, const hl_gguf_tensor *t, hl_role role) { return l->t[role] == t; }

/* The layer that a tensor's neurons are of, if they change places or the matrix is turned. */
static bool find_ffn(const hl_model *m, const hl_gguf_tensor *t, uint32_t *il, hl_role *role)
{
    static const hl_role roles[] = { HL_FFN_GATE, HL_FFN_UP, HL_FFN_DOWN, HL_FFN_DOWN_T, HL_FFN_GATE_B, HL_FFN_UP_B, HL_PRED_2 };
    for (*il = 0; *il < m->config.n_layers; (*il)++)
        for (size_t k = 0; k < HL_COUNT(roles); k++)
            if (is_role(&m->layers[*il], t, roles[k])) { *role = roles[k]; return true; }
    return false;
}

static hl_status name_layer(job *j, hl_writer *w, uint32_t il)
{
    hl_status rc = HLLM_OK;
    const layer_plan *l = &j->layers[il];
    const uint32_t F = j->m->layers[il].n_ff;
    char name[64];
    snprintf(name, sizeof name, "blk.%u.ffn_heat.weight", il);
    HL_TRY(hl_writer_tensor(w, name, HL_F32, F, 0));
    if (j->m->sparse.powerinfer && j->m->layers[il].n_pred) {
        snprintf(name, sizeof name, "blk.%u.fc2.bias", il);
        HL_TRY(hl_writer_tensor(w, name, HL_F32, F, 0));
    }
    if (j->cutter) {
        snprintf(name, sizeof name, "blk.%u.ffn_cut.weight", il);
        HL_TRY(hl_writer_tensor(w, name, HL_F32, F, 0));
    }
    if (!l->pred.n_pred || l->level < 0) goto done;
    snprintf(name, sizeof name, "blk.%u.fc1.weight", il);
    HL_TRY(hl_writer_tensor(w, name, l->pred.dtype, j->m->config.n_embd, l->pred.n_pred));
    snprintf(name, sizeof name, "blk.%u.fc2.weight", il);
    HL_TRY(hl_writer_tensor(w, name, l->pred.dtype, l->pred.n_pred, F));
    snprintf(name, sizeof name, "blk.%u.fc2.bias", il);
    HL_TRY(hl_writer_tensor(w, name, HL_F32, F, 0));
done:
    return rc;
}

static hl_status put_floats(job *j, hl_writer *w, uint32_t n, const uint32_t *counts, const uint32_t *order, const float *from, float value)
{
    hl_status rc = HLLM_OK;
    float *row = NULL;
    HL_NEED(row = hl_alloc_array(j->mem, n, sizeof *row));
    for (uint32_t i = 0; i < n; i++) row[i] = counts ? (float)counts[order[i]] : from ? from[order[i]] : value;
    HL_TRY(hl_writer_data(w, row, n * sizeof *row));
    rc = hl_writer_data_end(w);
done:
    hl_free(j->mem, row);
    return rc;
}

static hl_status put_layer(job *j, hl_writer *w, uint32_t il)
{
    hl_status rc = HLLM_OK;
    const layer_plan *l = &j->layers[il];
    const hl_predictor *p = &l->pred;
    const uint32_t F = j->m->layers[il].n_ff;
    HL_TRY(put_floats(j, w, F, l->counts, l->order, NULL, 0));
    if (j->m->sparse.powerinfer && j->m->layers[il].n_pred) HL_TRY(put_floats(j, w, F, NULL, NULL, NULL, -j->m->sparse.threshold));
    if (j->cutter) HL_TRY(put_floats(j, w, F, NULL, l->order, hl_cutter_cuts(j->cutter, il), 0));
    if (!p->n_pred || l->level < 0) goto done;
    const hl_dtype_info *d = hl_dtype(p->dtype);
    const size_t row = hl_dtype_bytes(d, p->n_pred);
    HL_TRY(hl_writer_data(w, p->fc1, p->n_pred * hl_dtype_bytes(d, j->m->config.n_embd)));
    HL_TRY(hl_writer_data_end(w));
    for (uint32_t i = 0; i < F; i++) HL_TRY(hl_writer_data(w, p->fc2 + l->order[i] * row, row));
    HL_TRY(hl_writer_data_end(w));
    rc = put_floats(j, w, F, NULL, l->order, p->bias[l->level], 0);
done:
    return rc;
}

static hl_status put_copy(job *j, hl_writer *w, const hl_gguf_tensor *t)
{
    hl_status rc = HLLM_OK;
    enum { PIECE = 1 << 20 };
    uint8_t *some = NULL;
    HL_NEED(some = hl_alloc(j->mem, PIECE));
    for (uint64_t at = 0; at < t->bytes; at += PIECE) {
        const size_t n = (size_t)HL_MIN(t->bytes - at, (uint64_t)PIECE);
        HL_TRY(hl_file_read(j->m->env, j->err, &j->m->gguf->shards[t->shard], t->at + at, some, n));
        HL_TRY(hl_writer_data(w, some, n));
        HL_TRY(hl_progress_step(j->progress, 0));
    }
    rc = hl_writer_data_end(w);
done:
    hl_free(j->mem, some);
    return rc;
}

static hl_status put_tensor(job *j, hl_writer *w, const hl_gguf_tensor *t)
{
    hl_status rc = HLLM_OK;
    uint32_t il;
    hl_role role;
    uint8_t *rows = NULL;
    size_t bytes;
    if (!find_ffn(j->m, t, &il, &role)) return put_copy(j, w, t);
    const uint32_t *order = j->layers[il].order;
    if (role == HL_FFN_DOWN) HL_TRY(hl_rows_turned(j->m, j->err, j->pool, t, order, j->layers[il].down, &rows, &bytes));
    else HL_TRY(hl_rows_permuted(j->m, j->err, t, order, &rows, &bytes));
    HL_TRY(hl_writer_data(w, rows, bytes));
    HL_TRY(hl_writer_data_end(w));
    HL_TRY(hl_progress_step(j->progress, 0));
    if (role == HL_FFN_DOWN || role == HL_FFN_DOWN_T) rc = put_layer(j, w, il);
done:
    hl_free(j->mem, rows);
    return rc;
}

static hl_status name_tensor(job *j, hl_writer *w, const hl_gguf_tensor *t)
{
    hl_status rc = HLLM_OK;
    uint32_t il;
    hl_role role;
    char name[64];
    const size_t n = strlen(t->name), k = strlen("ffn_down_t.bias");
    if (n > k && strcmp(t->name + n - k, "ffn_down_t.bias") == 0) {  /* PowerInfer's name for what all others call ffn_down.bias */
        snprintf(name, sizeof name, "%.*sffn_down.bias", (int)(n - k), t->name);
        return hl_writer_tensor_as(w, name, t);
    }
    if (!find_ffn(j->m, t, &il, &role)) return hl_writer_tensor_as(w, t->name, t);
    if (role == HL_FFN_DOWN) {
        snprintf(name, sizeof name, "blk.%u.ffn_down_t.weight", il);
        HL_TRY(hl_writer_tensor(w, name, j->layers[il].down, t->dims[1], t->dims[0]));
    } else HL_TRY(hl_writer_tensor_as(w, t->name, t));
    if (role == HL_FFN_DOWN || role == HL_FFN_DOWN_T) rc = name_layer(j, w, il);
done:
    return rc;
}

static hl_status put_string(hl_writer *w, const char *name, const char *text) { return hl_writer_key(w, name, HLLM_VALUE_STRING, text, strlen(text)); }

static hl_status put_floats_key(job *j, hl_writer *w, const char *name, float *values) { return hl_writer_key_array(w, name, HLLM_VALUE_F32, values, j->m->config.n_layers); }

static hl_status put_layer_keys(job *j, hl_writer *w)
{
    hl_status rc = HLLM_OK;
    const uint32_t L = j->m->config.n_layers;
    float *v[6] = { NULL };
    uint32_t *kind = NULL;
    bool any = false;
    static const char *const names[] = { "active", "hot80", "overlap", "predicted", "recall", "lost" };
    for (int k = 0; k < 6; k++) HL_NEED(v[k] = hl_alloc_array(j->mem, L, sizeof **v));
    HL_NEED(kind = hl_alloc_array(j->mem, L, sizeof *kind));
    for (uint32_t il = 0; il < L; il++) {
        const layer_plan *l = &j->layers[il];
        const bool has = l->pred.n_pred && l->level >= 0;
        v[0][il] = (float)l->active; v[1][il] = (float)l->hot80; v[2][il] = (float)l->overlap;
        v[3][il] = has ? (float)l->pred.predicted[l->level] : 1;
        v[4][il] = has ? (float)l->pred.recall[l->level] : 1;
        v[5][il] = has ? (float)l->pred.lost[l->level] : 0;
        if (j->cutter) v[3][il] = (float)hl_cutter_kept(j->cutter, il);
        kind[il] = has ? l->pred.kind : j->m->layers[il].pred;
        any = any || kind[il];
    }
    for (int k = 0; k < 6; k++) {
        char name[64];
        snprintf(name, sizeof name, "hybrid_llm.layer.%s", names[k]);
        if (k < 3 || j->predict || (k == 3 && j->cutter)) HL_TRY(put_floats_key(j, w, name, v[k]));
    }
    if (!any) goto done;
    HL_TRY(hl_writer_key_array(w, "hybrid_llm.predictor.kind", HLLM_VALUE_U32, kind, L));
    static const char *const inputs[] = { "ffn", "residual", "layer" };
    rc = put_string(w, "hybrid_llm.predictor.input", j->predict ? inputs[HL_PRED_OF_FFN] : inputs[j->m->sparse.input]);
done:
    for (int k = 0; k < 6; k++) hl_free(j->mem, v[k]);
    hl_free(j->mem, kind);
    return rc;
}

static hl_status put_keys(job *j, hl_writer *w)
{
    hl_status rc = HLLM_OK;
    const hl_gguf *g = j->m->gguf;
    const uint32_t version = 1;
    const uint64_t n = (uint64_t)j->n_windows * j->window;
    for (uint32_t i = 0; i < g->n_keys; i++)
        if (strncmp(g->keys[i].name, "split.", 6) != 0 && strncmp(g->keys[i].name, "powerinfer.", 11) != 0) HL_TRY(hl_writer_key_copy(w, &g->keys[i]));
    HL_TRY(hl_writer_key(w, "hybrid_llm.version", HLLM_VALUE_U32, &version, 1));
    HL_TRY(put_string(w, "hybrid_llm.ffn_act", hl_act_name(j->m->config.act)));
    HL_TRY(hl_writer_key(w, "hybrid_llm.text.tokens", HLLM_VALUE_U64, &n, 1));
    HL_TRY(put_layer_keys(j, w));
    if (!j->cost.n_tokens) goto done;
    HL_TRY(hl_writer_key(w, "hybrid_llm.measured.tokens", HLLM_VALUE_U64, &j->cost.n_tokens, 1));
    HL_TRY(hl_writer_key(w, "hybrid_llm.measured.nll_dense", HLLM_VALUE_F64, &j->cost.nll_dense, 1));
    HL_TRY(hl_writer_key(w, "hybrid_llm.measured.nll", HLLM_VALUE_F64, &j->cost.nll, 1));
    rc = hl_writer_key(w, "hybrid_llm.measured.kl", HLLM_VALUE_F64, &j->cost.kl, 1);
done:
    return rc;
}

static hl_status write_all(job *j, hl_writer *w)
{
    hl_status rc = HLLM_OK;
    const hl_gguf *g = j->m->gguf;
    int64_t alignment = 32;
    const hl_gguf_key *k = hl_gguf_find_key(g, "general.alignment");
    if (k && k->type != HLLM_VALUE_ARRAY && hl_gguf_int(k, 0, &alignment) != HLLM_OK) alignment = 32;
    HL_TRY(put_keys(j, w));
    for (uint32_t i = 0; i < g->n_tensors; i++) HL_TRY(name_tensor(j, w, &g->tensors[i]));
    HL_TRY(hl_writer_start(w, (uint32_t)alignment));
    for (uint32_t i = 0; i < g->n_tensors; i++) HL_TRY(put_tensor(j, w, &g->tensors[i]));
    HL_TRY(hl_progress_step(j->progress, 0));          /* the last look before the old file goes */
    rc = hl_writer_end(w);
done:
    return rc;
}

/* ---- the whole ---- */

static hl_status check_model(const job *j)
{
    const hl_model *m = j->m;
    const char *path = hl_gguf_path(m->gguf);
    if (!m->family) return hl_fail(j->err, HLLM_E_STATE, "%s: the model was opened for its vocabulary only", path);
    if (j->handle->flags & HLLM_MODEL_HEADER_ONLY) return hl_fail(j->err, HLLM_E_STATE, "%s: the model was opened for its header only", path);
    if (m->sparse.prepared) return hl_fail(j->err, HLLM_E_STATE, "%s: is a prepared file already (key hybrid_llm.version): prepare the original", path);
    if (m->family->fused_up) return hl_fail(j->err, HLLM_E_UNSUPPORTED, "%s: family %s keeps gate and up in one matrix: such files cannot be prepared yet", path, m->family->name);
    if (j->predict && !hl_act_is_relu(m->config.act))
        return hl_fail(j->err, HLLM_E_UNSUPPORTED, "%s: the FFN's activation is %s, which is never exactly zero: there is nothing to predict (statistics alone can be had; if the model is really a ReLU one, say so)",
                       path, hl_act_name(m->config.act));
    return HLLM_OK;
}

static hl_status new_layers(job *j)
{
    hl_status rc = HLLM_OK;
    HL_NEED(j->layers = hl_alloc_array(j->mem, j->m->config.n_layers, sizeof *j->layers));
    for (uint32_t il = 0; il < j->m->config.n_layers; il++) {
        layer_plan *l = &j->layers[il];
        const uint32_t n = j->m->layers[il].n_ff;
        l->level = -1;
        HL_NEED(l->counts = hl_alloc_array(j->mem, n, sizeof *l->counts));
        HL_NEED(l->halves[0] = hl_alloc_array(j->mem, n, sizeof *l->counts));
        HL_NEED(l->halves[1] = hl_alloc_array(j->mem, n, sizeof *l->counts));
        HL_NEED(l->order = hl_alloc_array(j->mem, n, sizeof *l->order));
        HL_NEED(l->energy = hl_alloc_array(j->mem, n, sizeof *l->energy));
    }
done:
    return rc;
}

static void free_job(job *j)
{
    for (uint32_t il = 0; j->layers && il < j->m->config.n_layers; il++) {
        layer_plan *l = &j->layers[il];
        hl_free(j->mem, l->counts);
        hl_free(j->mem, l->halves[0]);
        hl_free(j->mem, l->halves[1]);
        hl_free(j->mem, l->order);
        hl_free(j->mem, l->energy);
        hl_predictor_free(j->mem, &l->pred);
    }
    hl_free(j->mem, j->layers);
    hl_free(j->mem, j->tokens);
    hl_free(j->mem, j->x);
    hl_free(j->mem, j->h);
    hl_free(j->mem, j->hidden);
    hl_free(j->mem, j->score);
    hl_free(j->mem, j->act);
    hl_free(j->mem, j->mask_counts);
    hl_cutter_free(j->cutter);
    hl_profiler_free(j->p);
}

hl_status hl_prepare(hllm_model *m, const char *path, const hllm_prepare_options *opt)
{
    hl_status rc = HLLM_OK;
    job j = { .handle = m, .m = m->model, .mem = m->rt->env.mem, .err = &m->err, .pool = m->rt->pool, .progress = opt->progress ? &opt->progress->p : NULL, .only = -1,
              .budget = log1p(opt->perplexity_loss > 0 ? opt->perplexity_loss : DEFAULT_BUDGET), .predict = !(opt->flags & HLLM_PREPARE_NO_PREDICTORS) };
    hl_writer *w = NULL;
    if (j.m->sparse.powerinfer && j.m->sparse.n_predictors) j.predict = false;       /* it brings its own */
    j.measure = j.predict || opt->skip_share > 0;
    if (opt->skip_share > 0) j.predict = false;
    HL_TRY(check_model(&j));
    if (opt->skip_share > 0 && !j.m->family->gated) { rc = hl_fail(j.err, HLLM_E_UNSUPPORTED, "%s: thresholds are taken on a gate, which family %s has not got", hl_gguf_path(j.m->gguf), j.m->family->name); goto done; }
    HL_TRY(cut_text(&j, opt->text ? opt->text : "", opt->text_bytes));
    HL_TRY(hl_writer_new(&m->rt->env, j.err, path, &w));             /* what cannot be written is better known before the work */
    HL_TRY(new_layers(&j));
    const uint64_t each = (uint64_t)j.n_windows * j.window, all = each * j.m->config.n_layers;
    if (j.progress) atomic_fetch_add(&j.progress->total, all + (j.predict ? all / 2 + each / 8 * j.m->config.n_layers : 0));
    HL_TRY(hl_profiler_new(m, j.tokens, j.n_windows, j.window, j.n_held, j.err, j.progress, &j.p));
    if (opt->skip_share > 0) HL_TRY(hl_cutter_new(j.p->e, opt->skip_share, &j.cutter));
    HL_TRY(look(&j));
    if (j.cutter) HL_TRY(hl_profiler_cost(j.p, mask, &j, &j.cost));
    if (j.predict) {
        HL_TRY(mask_buffers(&j));
        HL_TRY(size_predictors(&j));
    }
    rc = write_all(&j, w);
done:
    hl_writer_free(w);
    free_job(&j);
    return rc;
}
