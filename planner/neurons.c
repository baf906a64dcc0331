/* neurons.c: which neurons lie on a GPU: turns the problem into classes of options (mck.h, spread.h) and the answer into a plan.
 *
 * A layer's GPU part is a prefix of its batches sorted by heat: one option per length, its weight the prefix's bytes, its cost minus the
 * activations that the GPU then computes (impact) or the layer's time (time).  impact: lengths below the layer's least share are left out,
 * dense items are placed first, in their order.  time: dense items are classes of their own.  The CPU's budget is a floor under the bytes
 * on GPUs.  Method "paper": the released program's order and budget rule, then the impact problem.
 */
#include "planner.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "curve.h"
#include "mck.h"
#include "spread.h"

#define TOLERANCE 1e-9                                 /* plans this close to the best count as the best */
enum { MAX_STATES_ONE = 60000, MAX_STATES_SEVERAL = 100000 };

typedef struct solver {
    hl_mem *mem;
    const hl_neuron_problem *p;
    const hl_plan_limits *limits;
    bool impact;
    hl_curve *curves;
    double *numbers; uint64_t *counts;                 /* what the curves point into */
    double total;                                      /* bytes of everything */
    double room[HL_MAX_GPUS], fixed;                   /* budgets less what is placed already, which is `fixed` */
    /* classes: n_free dense items, then the layers */
    uint32_t n_free, n_classes, n_options;
    uint32_t *first, *length;                          /* [n_classes * n_gpus + 1]; [n_options] batches */
    double *w, *c, *cpu_cost;
    int32_t *gpu; uint32_t *option;                    /* the answer: [n_classes] */
} solver;

static hl_status build_curves(solver *s)
{
    hl_status rc = HLLM_OK;
    hl_heat *h = NULL;
    size_t n = 0, widest = 0;
    for (uint32_t il = 0; il < s->p->n_layers; il++) { n += s->p->layers[il].n_batches + 1; widest = HL_MAX(widest, s->p->layers[il].n_batches); }
    HL_NEED(s->curves = hl_alloc_array(s->mem, s->p->n_layers, sizeof *s->curves));
    HL_NEED(s->numbers = hl_alloc_array(s->mem, 2 * n, sizeof *s->numbers));
    HL_NEED(s->counts = hl_alloc_array(s->mem, n, sizeof *s->counts));
    HL_NEED(h = hl_alloc_array(s->mem, widest, sizeof *h));
    double *d = s->numbers;
    uint64_t *c = s->counts;
    for (uint32_t il = 0; il < s->p->n_layers; il++) {
        const hl_neuron_layer *l = &s->p->layers[il];
        hl_curve *v = &s->curves[il];
        *v = (hl_curve){ .gain = d, .bytes = d + l->n_batches + 1, .count = c };
        d += 2 * (l->n_batches + 1); c += l->n_batches + 1;
        hl_curve_fill(l, h, v);
        s->total += v->bytes[v->n];
    }
    for (uint32_t id = 0; id < s->p->n_dense; id++) s->total += s->p->dense[id].bytes;
done:
    hl_free(s->mem, h);
    return rc;
}

static double cost_of(const solver *s, const hl_curve *v, uint32_t n, uint32_t g)
{
    return s->impact ? -v->gain[n] : hl_curve_time(s->p, v, n, g);
}

/* Classes and options.  weigh: the costs are minus the bytes, the question being only how many the GPUs can take. */
static hl_status build_classes(solver *s, bool weigh)
{
    hl_status rc = HLLM_OK;
    const uint32_t G = s->p->n_gpus;
    size_t n = s->impact ? 0 : (size_t)s->p->n_dense * G, at = 0;
    s->n_free = s->impact ? 0 : s->p->n_dense;
    s->n_classes = s->n_free + s->p->n_layers;
    for (uint32_t il = 0; il < s->p->n_layers; il++) n += (size_t)s->p->layers[il].n_batches * G;
    if (n > UINT32_MAX / 4) { rc = HLLM_E_LIMIT; goto done; }
    HL_NEED(s->first = hl_alloc_array(s->mem, (size_t)s->n_classes * G + 1, sizeof *s->first));
    HL_NEED(s->length = hl_alloc_array(s->mem, n, sizeof *s->length));
    HL_NEED(s->w = hl_alloc_array(s->mem, n, sizeof *s->w));
    HL_NEED(s->c = hl_alloc_array(s->mem, n, sizeof *s->c));
    HL_NEED(s->cpu_cost = hl_alloc_array(s->mem, s->n_classes, sizeof *s->cpu_cost));
    HL_NEED(s->gpu = hl_alloc_array(s->mem, s->n_classes, sizeof *s->gpu));
    HL_NEED(s->option = hl_alloc_array(s->mem, s->n_classes, sizeof *s->option));
    for (uint32_t id = 0; id < s->n_free; id++) {
        const hl_dense_item *d = &s->p->dense[id];
        s->cpu_cost[id] = weigh ? 0 : d->touches * d->bytes / s->p->cpu_bytes_per_s;
        for (uint32_t g = 0; g < G; g++) {
            s->first[id * G + g] = (uint32_t)at;
            if (d->bytes <= 0 || d->bytes > s->room[g]) continue;
            s->w[at] = d->bytes;
            s->c[at++] = weigh ? -d->bytes : d->touches * d->bytes / s->p->gpus[g].bytes_per_s;
        }
    }
    for (uint32_t il = 0; il < s->p->n_layers; il++) {
        const hl_curve *v = &s->curves[il];
        const uint32_t k = s->n_free + il;
        s->cpu_cost[k] = s->impact || weigh ? 0 : hl_curve_cpu_time(s->p, v);
        for (uint32_t g = 0; g < G; g++) {
            s->first[k * G + g] = (uint32_t)at;
            for (uint32_t ib = s->impact ? hl_curve_least(s->p, v, g) : 1; ib <= v->n && v->bytes[ib] <= s->room[g]; ib++) {
                s->length[at] = ib;
                s->w[at] = v->bytes[ib];
                s->c[at++] = weigh ? -v->bytes[ib] : cost_of(s, v, ib, g);
            }
        }
    }
    s->first[s->n_classes * G] = (uint32_t)at;
    s->n_options = (uint32_t)at;
done:
    return rc;
}

static void free_classes(solver *s)
{
    hl_free(s->mem, s->first); hl_free(s->mem, s->length); hl_free(s->mem, s->w); hl_free(s->mem, s->c);
    hl_free(s->mem, s->cpu_cost); hl_free(s->mem, s->gpu); hl_free(s->mem, s->option);
    s->first = s->length = s->option = NULL; s->w = s->c = s->cpu_cost = NULL; s->gpu = NULL;
}

typedef struct result { double cost, bound; bool found, complete; } result;

static hl_status solve_one_gpu(solver *s, double lo, result *r)
{
    hl_status rc = HLLM_OK;
    const uint32_t n = s->n_classes;
    uint32_t *first = NULL, *choice = NULL;
    double *w = NULL, *c = NULL, all = 0;
    HL_NEED(first = hl_alloc_array(s->mem, (size_t)n + 1, sizeof *first));
    HL_NEED(choice = hl_alloc_array(s->mem, n, sizeof *choice));
    HL_NEED(w = hl_alloc_array(s->mem, (size_t)s->n_options + n, sizeof *w));
    HL_NEED(c = hl_alloc_array(s->mem, (size_t)s->n_options + n, sizeof *c));
    for (uint32_t k = 0; k < n; k++) {                 /* the CPU becomes an option of no weight */
        const uint32_t at = s->first[k] + k, m = s->first[k + 1] - s->first[k];
        first[k] = at;
        c[at] = s->cpu_cost[k];
        memcpy(w + at + 1, s->w + s->first[k], m * sizeof *w);
        memcpy(c + at + 1, s->c + s->first[k], m * sizeof *c);
        all += w[at + m];
    }
    first[n] = s->n_options + n;
    hl_mck m = { .n_classes = n, .first = first, .w = w, .c = c, .lo = lo, .hi = fmin(s->room[0], all), .tolerance = TOLERANCE,
                 .deadline_ns = s->limits->deadline_ns, .max_states = s->limits->max_states ? s->limits->max_states : MAX_STATES_ONE, .choice = choice };
    if (m.hi < m.lo && all >= m.lo * (1 - HL_BUDGET_SLACK)) m.hi = fmin(s->room[0], m.lo);
    HL_TRY(hl_mck_solve(s->mem, &m));
    for (uint32_t k = 0; k < n; k++) {
        s->gpu[k] = choice[k] ? 0 : -1;
        s->option[k] = choice[k] ? s->first[k] + choice[k] - 1 : UINT32_MAX;
    }
    *r = (result){ m.cost, m.bound, m.found, m.complete };
done:
    hl_free(s->mem, first); hl_free(s->mem, choice); hl_free(s->mem, w); hl_free(s->mem, c);
    return rc;
}

static hl_status solve_classes(solver *s, double lo, result *r)
{
    if (s->p->n_gpus == 1) return solve_one_gpu(s, lo, r);
    hl_spread m = { .n_gpus = s->p->n_gpus, .n_free = s->n_free, .n_classes = s->n_classes, .first = s->first, .w = s->w, .c = s->c, .cpu_cost = s->cpu_cost,
                    .lo = lo, .tolerance = TOLERANCE, .deadline_ns = s->limits->deadline_ns,
                    .max_states = s->limits->max_states ? s->limits->max_states : MAX_STATES_SEVERAL, .gpu = s->gpu, .option = s->option };
    memcpy(m.cap, s->room, sizeof m.cap);
    const hl_status rc = hl_spread_solve(s->mem, &m);
    *r = (result){ m.cost, m.bound, m.found, m.complete };
    return rc;
}

/* impact: in the given order, each to the first GPU that is faster than the CPU and has room for it.  stop: at the first that has none. */
static bool place_dense(solver *s, hl_neuron_plan *plan, bool stop)
{
    bool all = true;
    for (uint32_t id = 0; id < s->p->n_dense; id++) {
        plan->gpu_of_dense[id] = -1;
        for (uint32_t g = 0; g < s->p->n_gpus && plan->gpu_of_dense[id] < 0 && (all || !stop); g++) {
            if (s->p->gpus[g].bytes_per_s <= s->p->cpu_bytes_per_s || s->p->dense[id].bytes > s->room[g]) continue;
            plan->gpu_of_dense[id] = (int32_t)g;
            s->room[g] -= s->p->dense[id].bytes;
            s->fixed += s->p->dense[id].bytes;
        }
        all &= plan->gpu_of_dense[id] >= 0;
    }
    return all;
}

/* The released program sizes its FFN budget with n_ff where n_embd belongs: a neuron is counted as n_ff * b * k / 4 bytes, k = 4.5 with
 * a gate and 2 without.  The room shrinks to the neurons that it would allow. */
static void paper_budget(solver *s)
{
    const double matrices = s->p->paper_ungated ? 2 : 3, k = s->p->paper_ungated ? 2 : 4.5;
    if (s->p->paper_n_embd <= 0) return;
    const hl_curve *v = &s->curves[0];
    const double weight_bytes = v->neuron_bytes / (matrices * s->p->paper_n_embd);
    for (uint32_t g = 0; g < s->p->n_gpus; g++) {
        const double neurons = floor(s->room[g] / ((double)v->count[v->n] * weight_bytes * k)) * 4;
        s->room[g] = fmin(s->room[g], neurons * v->neuron_bytes);
    }
}

/* Why nothing is admissible: the bytes that must leave the CPU, and the most that the GPUs take. */
static hl_status explain(solver *s, double needed, hl_plan_shortage *shortage, hl_error *err)
{
    hl_status rc = HLLM_OK;
    result r;
    /* The last bytes of a sum of many sizes are not worth waiting for. */
    hl_plan_limits quick = *s->limits;
    quick.deadline_ns = hl_now_ns() + 1000000000;
    s->limits = &quick;
    free_classes(s);
    HL_TRY(build_classes(s, true));
    HL_TRY(solve_classes(s, 0, &r));
    const double available = s->fixed + (r.found ? -r.cost : 0);
    if (shortage) *shortage = (hl_plan_shortage){ needed, available };
    rc = hl_fail(err, HLLM_E_NOMEM, "impossible: of %" PRIu64 " bytes the CPU's budget of %" PRIu64 " leaves %" PRIu64 " for GPUs, which take at most %" PRIu64
                 "; it fits with a CPU budget of %" PRIu64, (uint64_t)s->total, (uint64_t)s->p->cpu_budget_bytes, (uint64_t)ceil(needed), (uint64_t)available,
                 (uint64_t)ceil(s->total - available));
done:
    return rc;
}

static void write_plan(const solver *s, const result *r, hl_neuron_plan *plan)
{
    for (uint32_t g = 0; g < s->p->n_gpus; g++) plan->gpu_bytes[g] = 0;
    for (uint32_t id = 0; id < s->p->n_dense; id++) {
        if (!s->impact) plan->gpu_of_dense[id] = s->gpu[id];
        if (plan->gpu_of_dense[id] >= 0) plan->gpu_bytes[plan->gpu_of_dense[id]] += s->p->dense[id].bytes;
    }
    for (uint32_t il = 0; il < s->p->n_layers; il++) {
        const uint32_t k = s->n_free + il;
        plan->gpu_of_layer[il] = s->gpu[k];
        plan->n_gpu[il] = s->gpu[k] < 0 ? 0 : s->curves[il].count[s->length[s->option[k]]];
        if (s->gpu[k] >= 0) plan->gpu_bytes[s->gpu[k]] += s->w[s->option[k]];
    }
    plan->cpu_bytes = s->total;
    for (uint32_t g = 0; g < s->p->n_gpus; g++) plan->cpu_bytes -= plan->gpu_bytes[g];
    plan->objective = s->impact ? -r->cost : r->cost;
    plan->bound = s->impact ? -r->bound : r->bound;
    if (plan->objective == 0) plan->objective = 0;     /* no minus before it */
    if (plan->bound == 0) plan->bound = 0;
    plan->gap = hl_plan_gap(plan->objective, plan->bound);
}

hl_status hl_neuron_solve(hl_mem *mem, const hl_neuron_problem *p, const hl_plan_limits *limits, hl_neuron_plan *plan, hl_plan_shortage *shortage, hl_error *err)
{
    hl_status rc = HLLM_OK;
    static const hl_plan_limits none;
    const uint64_t start = hl_now_ns();
    const bool paper = p->method == HL_METHOD_PAPER;
    solver s = { .mem = mem, .p = p, .limits = limits ? limits : &none, .impact = p->objective == HL_OBJECTIVE_IMPACT || paper };
    result r;
    HL_TRY(build_curves(&s));
    for (uint32_t g = 0; g < p->n_gpus; g++) s.room[g] = p->gpus[g].budget_bytes;
    if (s.impact) {
        const bool all = place_dense(&s, plan, paper);
        if (paper && !all) for (uint32_t g = 0; g < p->n_gpus; g++) s.room[g] = 0;        /* then it splits no FFN at all */
        if (paper) paper_budget(&s);
    }
    for (uint32_t g = 0; g < p->n_gpus; g++) s.room[g] = fmax(0, s.room[g]);
    const double must_leave = s.total - p->cpu_budget_bytes * (1 + HL_BUDGET_SLACK / 2);
    HL_TRY(build_classes(&s, false));
    HL_TRY(solve_classes(&s, fmax(0, must_leave - s.fixed), &r));
    if (!r.found && r.complete) { rc = explain(&s, s.total - p->cpu_budget_bytes, shortage, err); goto done; }
    if (!r.found) { rc = hl_fail(err, HLLM_E_TIMEOUT, "no admissible plan was found in the time and memory given; there may be one"); goto done; }
    write_plan(&s, &r, plan);
    if (paper) {                                       /* it does not know how good it is in the problem's own measure */
        HL_TRY(hl_neuron_plan_value(mem, p, plan, err));
        plan->bound = plan->objective; plan->gap = 0;
    }
    plan->solver = "builtin";
    plan->solve_s = (double)(hl_now_ns() - start) * 1e-9;
done:
    free_classes(&s);
    hl_free(mem, s.curves); hl_free(mem, s.numbers); hl_free(mem, s.counts);
    return rc;
}

/* ---- plans ---- */

hl_status hl_neuron_plan_new(hl_mem *mem, const hl_neuron_problem *p, hl_neuron_plan **out)
{
    hl_status rc = HLLM_OK;
    hl_neuron_plan *plan = NULL;
    *out = NULL;
    HL_NEED(plan = hl_alloc_zero(mem, sizeof *plan));
    HL_NEED(plan->n_gpu = hl_alloc_array(mem, p->n_layers, sizeof *plan->n_gpu));
    HL_NEED(plan->gpu_of_layer = hl_alloc_array(mem, p->n_layers, sizeof *plan->gpu_of_layer));
    HL_NEED(plan->gpu_of_dense = hl_alloc_array(mem, HL_MAX(p->n_dense, 1u), sizeof *plan->gpu_of_dense));
    HL_NEED(plan->hot_active = hl_alloc_array(mem, p->n_layers, sizeof *plan->hot_active));
    *out = plan; plan = NULL;
done:
    hl_neuron_plan_free(mem, plan);
    return rc;
}

void hl_neuron_plan_free(hl_mem *mem, hl_neuron_plan *plan)
{
    if (!plan) return;
    hl_free(mem, plan->n_gpu); hl_free(mem, plan->gpu_of_layer); hl_free(mem, plan->gpu_of_dense); hl_free(mem, plan->hot_active);
    hl_free(mem, plan);
}
