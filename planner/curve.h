/* curve.h: a layer's batches by heat, and what the first n of them are worth on a GPU.  For the built-in solver and the GLPK module, which
 * has no symbols of the core: so everything is inline.  check.c has its own.
 */
#ifndef HL_CURVE_H
#define HL_CURVE_H

#include <math.h>
#include <stdlib.h>

#include "planner.h"

/* What the first n batches hold, n from 0 on.  least: the fewest that may lie on a GPU, by the paper's count; n + 1 when none may. */
typedef struct hl_curve { double *gain, *bytes; uint64_t *count; uint32_t n, least; double neuron_bytes; } hl_curve;

typedef struct hl_heat { double freq; uint32_t index; } hl_heat;
static inline int hl_by_heat(const void *a, const void *b)
{
    const hl_heat *x = a, *y = b;
    if (x->freq != y->freq) return x->freq > y->freq ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* v->gain, bytes, count: [l->n_batches + 1]; h: scratch, [l->n_batches]. */
static inline void hl_curve_fill(const hl_neuron_layer *l, hl_heat *h, hl_curve *v)
{
    v->n = l->n_batches;
    v->least = 1;
    v->neuron_bytes = l->batch_bytes / l->batch_neurons;
    v->gain[0] = v->bytes[0] = 0;
    v->count[0] = 0;
    for (uint32_t ib = 0; ib < v->n; ib++) h[ib] = (hl_heat){ l->freq[ib], ib };
    qsort(h, v->n, sizeof *h, hl_by_heat);
    for (uint32_t ib = 0; ib < v->n; ib++) {
        const uint32_t neurons = h[ib].index == v->n - 1 ? l->last_batch_neurons : l->batch_neurons;
        v->gain[ib + 1] = v->gain[ib] + h[ib].freq * neurons;
        v->count[ib + 1] = v->count[ib] + neurons;
        v->bytes[ib + 1] = (double)v->count[ib + 1] * v->neuron_bytes;
    }
}

/* The fewest batches that may lie on GPU g; n + 1 when none may. */
static inline uint32_t hl_curve_least(const hl_neuron_problem *p, const hl_curve *v, uint32_t g)
{
    const hl_neuron_gpu *gpu = &p->gpus[g];
    uint32_t n = 1;
    if (gpu->bytes_per_s <= p->cpu_bytes_per_s) return v->n + 1;
    const double least = ceil(gpu->sync_s / (v->neuron_bytes * (1 / p->cpu_bytes_per_s - 1 / gpu->bytes_per_s)) - 1e-9);
    while (n <= v->n && (double)v->count[n] < least) n++;
    return n;
}

/* The layer's seconds with n > 0 batches on GPU g. */
static inline double hl_curve_time(const hl_neuron_problem *p, const hl_curve *v, uint32_t n, uint32_t g)
{
    const hl_neuron_gpu *gpu = &p->gpus[g];
    const double slow = v->neuron_bytes / p->cpu_bytes_per_s, fast = v->neuron_bytes / gpu->bytes_per_s, all = v->gain[v->n];
    if (n == v->n) return fast * all + p->launch_s + (p->dense_on == HL_DENSE_CPU ? gpu->sync_s : 0);
    return p->launch_s + fmax(fast * v->gain[n], slow * (all - v->gain[n]) + gpu->sync_s);
}

/* With none: it waits for its dense part where that is a GPU: the sync of the GPU that is quickest to say so, as no GPU is the layer's own. */
static inline double hl_curve_cpu_time(const hl_neuron_problem *p, const hl_curve *v)
{
    double sync_s = p->gpus[0].sync_s;
    for (uint32_t g = 1; g < p->n_gpus; g++) sync_s = fmin(sync_s, p->gpus[g].sync_s);
    return v->neuron_bytes / p->cpu_bytes_per_s * v->gain[v->n] + (p->dense_on == HL_DENSE_GPU ? sync_s : 0);
}

#endif
