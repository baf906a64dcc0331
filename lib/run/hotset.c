/* hotset.c: which neurons of an FFN these tokens need, and their sum: for files whose down matrix has a row for each neuron.
 *
 * One token alone reads only what it needs (hl_backend_vt.ffn): in mode exact the first matrix whole and then the rows of neurons that are not
 * zero, in mode predicted also of the first matrix only the rows that the layer's predictor lets through; in mode thresholded neurons with a
 * small act(gate) are left out, too.  Of a few tokens each is computed so.
 * Of more, together they need nearly all: products of whole matrices are taken, and what a token's own predictor leaves out is made
 * zero.  So a token's result depends neither on who came along nor on how a prompt was cut: only the time does.
 * Runs on the engine's worker thread; allocates nothing.
 */
#include <string.h>

#include "run/session.h"

/* Beyond so many tokens the union of what they need is most of the matrices, which are faster to read in one go. */
enum { APART_MOST = 4 };

typedef struct ffn_pass {
    hllm_engine *e;
    const hl_backend_vt *be;
    const hl_scratch *z;
    const hl_layer *l;
    const hl_layer_weights *w;
    uint32_t n, il;
    const float *cuts;                                 /* mode thresholded; NULL: none */
    bool gated, predicts, all;
} ffn_pass;

static hl_act make_act(const ffn_pass *p, const float *x, uint32_t width)
{
    hl_act a = { x, p->be->act_bytes(p->e->dev, width) ? p->z->act : NULL, false, width, p->n };
    p->be->quantize(p->e->stream, &a);
    return a;
}

/* Scores of p->n tokens of which x is the predictor's input: into z->score. */
static void predict(const ffn_pass *p, const float *x)
{
    const hl_scratch *z = p->z;
    const uint32_t n_pred = p->l->n_pred, n_ff = p->l->n_ff;
    hl_stream *st = p->e->stream;
    hl_act a = make_act(p, x, p->e->model->config.n_embd);
    p->be->matmul(st, &a, &(hl_product){ &p->w->pred_1, NULL, z->pred, n_pred }, 1);
    if (p->l->pred == HL_PRED_RELU) p->be->ffn_act(st, HL_FFN_RELU, z->pred, n_pred, z->pred, NULL, n_pred, p->n, n_pred);
    a = make_act(p, z->pred, n_pred);
    p->be->matmul(st, &a, &(hl_product){ &p->w->pred_2, p->w->pred_b, z->score, n_ff }, 1);
}

static uint64_t predictor_bytes(const ffn_pass *p)
{
    return p->predicts ? p->w->pred_1.rows * p->w->pred_1.row_bytes + p->w->pred_2.rows * p->w->pred_2.row_bytes : 0;
}

static void add_stats(const ffn_pass *p, hllm_session *s, uint32_t n_tok, uint64_t computed, uint64_t second, uint64_t active)
{
    const hl_layer_weights *w = p->w;
    const hl_weight *first = p->gated ? &w->gate : &w->up;
    if (!s) return;                                    /* cancelled meanwhile */
    pthread_mutex_lock(&s->lock);
    s->ffn.neurons += (uint64_t)n_tok * p->l->n_ff;
    s->ffn.computed += p->predicts ? computed : active;
    s->ffn.active += active;
    s->ffn.bytes += computed * first->row_bytes + (p->gated ? second * w->up.row_bytes : 0) + active * w->down.row_bytes + n_tok * predictor_bytes(p);
    if (w == p->e->layers) s->ffn.tokens += n_tok;
    pthread_mutex_unlock(&s->lock);
}

/* One token: only what it needs. */
static void one_token(const ffn_pass *p, hllm_session *s, const float *x, const float *in, float *out)
{
    const hl_scratch *z = p->z;
    const hl_layer_weights *w = p->w;
    const hl_config *c = &p->e->model->config;
    hl_stream *st = p->e->stream;
    hl_ffn_count count;
    hl_ffn f = { .gate = p->gated ? &w->gate : NULL, .up = &w->up, .down = &w->down, .gate_b = w->gate_b, .up_b = w->up_b, .down_b = w->down_b, .act = c->act,
                 .up_act = p->e->model->family->up_act, .threshold = p->e->model->sparse.threshold, .cuts = p->cuts, .parts = z->parts, .y = out, .count = &count };
    if (p->predicts) { predict(p, p->e->model->sparse.input == HL_PRED_OF_FFN ? in : x); f.score = z->score; }
    const hl_act a = make_act(p, in, c->n_embd);
    f.a = &a;
    if (!p->predicts) {
        p->be->matmul(st, &a, &(hl_product){ p->gated ? &w->gate : &w->up, p->gated ? w->gate_b : w->up_b, z->up, p->l->n_ff }, 1);
        f.first = z->up;
    }
    p->be->ffn(st, &f);
    add_stats(p, s, 1, p->predicts ? count.first : p->l->n_ff, count.second, count.down);
}

/* The matrices whole but for down, of which one token reads its rows in one stream after the other. */
static void one_whole(const ffn_pass *p, hllm_session *s, const float *in, float *out)
{
    const hl_scratch *z = p->z;
    const hl_layer_weights *w = p->w;
    const hl_model *m = p->e->model;
    const uint32_t n_ff = p->l->n_ff;
    hl_stream *st = p->e->stream;
    hl_ffn_count count;
    const hl_act a = make_act(p, in, m->config.n_embd);
    const hl_product gate_up[] = { { &w->up, w->up_b, z->up, n_ff }, { &w->gate, w->gate_b, z->gate, n_ff } };
    p->be->matmul(st, &a, gate_up, p->gated ? 2 : 1);
    if (m->family->up_act) p->be->ffn_act(st, m->config.act, z->up, n_ff, z->up, NULL, n_ff, 1, n_ff);
    p->be->ffn_act(st, m->config.act, z->up, n_ff, p->gated ? z->gate : z->up, p->gated ? z->up : NULL, n_ff, 1, n_ff);
    p->be->ffn(st, &(hl_ffn){ .up = &w->up, .down = &w->down, .down_b = w->down_b, .value = z->up, .all = p->all, .parts = z->parts, .y = out, .count = &count });
    add_stats(p, s, 1, n_ff, n_ff, count.down);
}

/* Products of whole matrices, for all tokens. */
static void together(const ffn_pass *p, hl_part *parts, uint32_t n_parts, const float *in, float *out)
{
    const hl_scratch *z = p->z;
    const hl_layer_weights *w = p->w;
    const hl_model *m = p->e->model;
    const uint32_t n_ff = p->l->n_ff;
    hl_stream *st = p->e->stream;
    uint32_t *counts = z->counts;
    uint64_t computed[HL_BATCH], kept;
    if (p->predicts) predict(p, m->sparse.input == HL_PRED_OF_FFN ? in : z->x);
    const hl_act a = make_act(p, in, m->config.n_embd);
    const hl_product gate_up[] = { { &w->up, w->up_b, z->up, n_ff }, { &w->gate, w->gate_b, z->gate, n_ff } };
    p->be->matmul(st, &a, gate_up, p->gated ? 2 : 1);
    if (m->family->up_act) p->be->ffn_act(st, m->config.act, z->up, n_ff, z->up, NULL, n_ff, p->n, n_ff);
    if (p->cuts) p->be->ffn_act(st, m->config.act, z->score, n_ff, p->gated ? z->gate : z->up, NULL, n_ff, p->n, n_ff);
    p->be->ffn_act(st, m->config.act, z->up, n_ff, p->gated ? z->gate : z->up, p->gated ? z->up : NULL, n_ff, p->n, n_ff);
    if (p->e->probe.fn) p->e->probe.fn(p->e->probe.arg, p->il, in, p->gated ? z->gate : NULL, z->up, p->n);
    memset(counts, 0, p->n * sizeof *counts);
    if (p->predicts) p->be->ffn_mask(st, z->up, z->score, m->sparse.threshold, NULL, NULL, n_ff, p->n, n_ff, counts);
    if (p->cuts) p->be->ffn_mask(st, z->up, NULL, 0, z->score, p->cuts, n_ff, p->n, n_ff, counts);
    for (uint32_t k = 0; k < n_parts; k++) {
        computed[k] = p->predicts ? 0 : (uint64_t)parts[k].n * n_ff;
        if (p->predicts) for (uint32_t t = parts[k].row; t < parts[k].row + parts[k].n; t++) computed[k] += counts[t];
    }
    memset(counts, 0, p->n * sizeof *counts);
    p->be->ffn_down(st, &w->down, w->down_b, z->up, n_ff, p->all, out, p->n, counts);
    for (uint32_t k = 0; k < n_parts; k++) {
        kept = 0;
        for (uint32_t t = parts[k].row; t < parts[k].row + parts[k].n; t++) kept += counts[t];
        add_stats(p, parts[k].s, parts[k].n, computed[k], p->all ? computed[k] : kept, kept);
    }
}

void hl_ffn_by_neurons(hllm_engine *e, const hl_scratch *z, hl_part *parts, uint32_t n_parts, uint32_t n, uint32_t il, const float *in, float *out)
{
    const hl_layer *l = &e->model->layers[il];
    ffn_pass p = { .e = e, .be = e->be, .z = z, .l = l, .w = &e->layers[il], .n = n, .il = il, .gated = e->model->family->gated,
                   .predicts = e->mode == HLLM_MODE_PREDICTED && l->n_pred, .all = e->mode == HLLM_MODE_DENSE,
                   .cuts = e->mode == HLLM_MODE_THRESHOLDED ? e->layers[il].cuts : NULL };
    const size_t n_embd = e->model->config.n_embd;
    if (n > APART_MOST || e->probe.fn) { together(&p, parts, n_parts, in, out); return; }
    p.n = 1;
    for (uint32_t k = 0; k < n_parts; k++)
        for (uint32_t t = parts[k].row; t < parts[k].row + parts[k].n; t++) {
            if (p.all) one_whole(&p, parts[k].s, in + t * n_embd, out + t * n_embd);
            else one_token(&p, parts[k].s, z->x + t * n_embd, in + t * n_embd, out + t * n_embd);
        }
}
