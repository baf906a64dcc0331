/* threshold.c: for FFNs whose neurons are never exactly zero: below which act(gate) a neuron may be left out.
 *
 * One cut for a layer, which the wanted share of its neurons falls below over the text (CATS, arXiv:2404.08763).  Weighing each neuron by its rows'
 * lengths, as others do, was worse here (SmolLM2-135M, half left out: perplexity +48 % by |down|, +65 % by |up| |down|, +35 % without).  What is
 * lost is not bounded: it is measured afterwards.
 */
#include "sparse/sparse.h"

#include <math.h>
#include <string.h>

enum { SAMPLES = 1 << 20 };

struct hl_cutter {
    hllm_engine *e;
    hl_mem *mem;
    double share;
    float **cuts;                                      /* [n_layers][n_ff] */
    double *kept;                                      /* [n_layers] */
    float *values, *samples;                           /* of one token; of all */
    uint32_t n_samples, skip;
    uint64_t seen;
};

hl_status hl_cutter_new(hllm_engine *e, double share, hl_cutter **out)
{
    hl_status rc = HLLM_OK;
    const hl_config *c = &e->model->config;
    hl_mem *mem = e->env->mem;
    hl_cutter *k = NULL;
    *out = NULL;
    HL_NEED(k = hl_alloc_zero(mem, sizeof *k));
    k->e = e;
    k->mem = mem;
    k->share = share;
    HL_NEED(k->cuts = hl_alloc_array(mem, c->n_layers, sizeof *k->cuts));
    HL_NEED(k->kept = hl_alloc_array(mem, c->n_layers, sizeof *k->kept));
    HL_NEED(k->values = hl_alloc_array(mem, c->max_ff, sizeof *k->values));
    HL_NEED(k->samples = hl_alloc_array(mem, SAMPLES, sizeof *k->samples));
    for (uint32_t il = 0; il < c->n_layers; il++) HL_NEED(k->cuts[il] = hl_alloc_array(mem, e->model->layers[il].n_ff, sizeof(float)));
    *out = k; k = NULL;
done:
    hl_cutter_free(k);
    return rc;
}

void hl_cutter_free(hl_cutter *c)
{
    if (!c) return;
    for (uint32_t il = 0; c->cuts && il < c->e->model->config.n_layers; il++) hl_free(c->mem, c->cuts[il]);
    hl_free(c->mem, c->cuts);
    hl_free(c->mem, c->kept);
    hl_free(c->mem, c->values);
    hl_free(c->mem, c->samples);
    hl_free(c->mem, c);
}

void hl_cutter_begin(hl_cutter *c)
{
    c->n_samples = 0;
    c->seen = 0;
    c->skip = 1;
}

static void activate(const hl_cutter *c, const float *gate, uint32_t n)
{
    const hl_model *m = c->e->model;
    c->e->be->ffn_act(c->e->stream, m->config.act, c->values, n, gate, NULL, n, 1, n);
}

/* Every so manieth value is kept; when there is no room, every other one of those goes and half as many come. */
void hl_cutter_see(hl_cutter *c, uint32_t il, const float *gate, uint32_t n)
{
    const uint32_t F = c->e->model->layers[il].n_ff;
    for (uint32_t t = 0; t < n; t++) {
        activate(c, gate + (size_t)t * F, F);
        for (uint32_t i = 0; i < F; i++, c->seen++) {
            if (c->seen % c->skip) continue;
            if (c->n_samples == SAMPLES) {
                for (uint32_t k = 0; k < SAMPLES / 2; k++) c->samples[k] = c->samples[2 * k];
                c->n_samples /= 2;
                c->skip = 2 * c->skip;
                if (c->seen % c->skip) continue;
            }
            c->samples[c->n_samples++] = fabsf(c->values[i]);
        }
    }
}

/* The k-th smallest of n numbers that are not negative: their bits are in the same order, and are found one by one. */
static float select_kth(const float *a, uint32_t n, uint32_t k)
{
    uint32_t bits = 0;
    for (int b = 30; b >= 0; b--) {
        const uint32_t with = bits | 1u << b;
        uint32_t below = 0;
        float v;
        memcpy(&v, &with, sizeof v);
        if (!(v == v)) continue;
        for (uint32_t i = 0; i < n; i++) below += a[i] < v;
        if (below <= k) bits = with;
    }
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

void hl_cutter_end(hl_cutter *c, uint32_t il)
{
    const uint32_t F = c->e->model->layers[il].n_ff, n = c->n_samples;
    uint32_t finite = 0, below = 0;
    for (uint32_t i = 0; i < n; i++) if (isfinite(c->samples[i])) c->samples[finite++] = c->samples[i];
    if (!finite) { memset(c->cuts[il], 0, F * sizeof(float)); c->kept[il] = 1; return; }
    const float cut = select_kth(c->samples, finite, (uint32_t)HL_MIN(c->share * finite, finite - 1.0));
    for (uint32_t i = 0; i < finite; i++) below += c->samples[i] <= cut;
    c->kept[il] = 1 - (double)below / finite;
    for (uint32_t i = 0; i < F; i++) c->cuts[il][i] = fminf(cut, 1e30f);
}

const float *hl_cutter_cuts(const hl_cutter *c, uint32_t il) { return c->cuts[il]; }
double hl_cutter_kept(const hl_cutter *c, uint32_t il) { return c->kept[il]; }

void hl_cutter_mask(const hl_cutter *c, uint32_t il, const float *gate, float *h, uint32_t n)
{
    const uint32_t F = c->e->model->layers[il].n_ff;
    for (uint32_t t = 0; t < n; t++) {
        activate(c, gate + (size_t)t * F, F);
        for (uint32_t i = 0; i < F; i++)
            if (fabsf(c->values[i]) <= c->cuts[il][i]) h[(size_t)t * F + i] = 0;
    }
}
