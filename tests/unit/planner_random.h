/* planner_random.h: random small planner problems, and brute force over every plan: formulas written anew from the definition of the
 * problems, no method, no shared code.  Used by the tests of the built-in solvers and of the GLPK module. */
#ifndef PLANNER_RANDOM_H
#define PLANNER_RANDOM_H

#include <math.h>
#include <stdio.h>

#include "check.h"
#include "planner.h"

/* ---- what these tests share ---- */

static __attribute__((unused)) hl_mem *mem;
static hl_error err;

static inline const char *say(void)
{
    static char t[512];
    hl_error_copy(&err, t, sizeof t);
    return t;
}

static inline long resident_pages(void)
{
    long all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &all, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return resident;
}

static uint64_t random_state = 1;
static inline uint32_t pick(uint32_t n)                /* 0..n-1 */
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((random_state >> 33) % n);
}
static inline double uniform(double lo, double hi) { return lo + (hi - lo) * pick(1u << 30) / (double)(1u << 30); }
static inline double one_of(double a, double b, double c) { const uint32_t i = pick(3); return i == 0 ? a : i == 1 ? b : c; }

/* ---- neurons ---- */

enum { MAX_L = 5, MAX_B = 8, MAX_G = 3, MAX_D = 3 };
typedef struct small_neurons {
    hl_neuron_problem p;
    hl_neuron_gpu gpus[MAX_G];
    hl_neuron_layer layers[MAX_L];
    hl_dense_item dense[MAX_D];
    double freq[MAX_L][MAX_B];
} small_neurons;

static inline double all_bytes(const hl_neuron_problem *p)
{
    double sum = 0;
    for (uint32_t l = 0; l < p->n_layers; l++)
        sum += p->layers[l].batch_bytes / p->layers[l].batch_neurons * (p->layers[l].batch_neurons * (p->layers[l].n_batches - 1.0) + p->layers[l].last_batch_neurons);
    for (uint32_t d = 0; d < p->n_dense; d++) sum += p->dense[d].bytes;
    return sum;
}

static inline void random_neurons(small_neurons *s, bool several, bool dense)
{
    memset(s, 0, sizeof *s);
    hl_neuron_problem *p = &s->p;
    p->objective = pick(2) ? HL_OBJECTIVE_IMPACT : HL_OBJECTIVE_TIME;
    p->n_gpus = several ? 1 + pick(MAX_G) : 1;
    p->gpu_list = several;
    p->n_layers = several || dense ? 1 + pick(3) : 1 + pick(MAX_L);
    p->n_dense = dense ? pick(MAX_D + 1) : 0;
    p->dense_on = pick(3);
    p->launch_s = pick(2) ? uniform(0, 2e-5) : 0;
    p->cpu_bytes_per_s = 6.72e10;
    p->gpus = s->gpus; p->layers = s->layers; p->dense = s->dense;
    const bool equal = pick(2), slow = pick(8) == 0, coarse = pick(4) == 0;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        hl_neuron_layer *x = &s->layers[l];
        x->n_batches = 1 + pick(several || dense ? 5 : 7);
        x->batch_neurons = 64;
        x->last_batch_neurons = pick(2) ? 64 : 1 + pick(64);
        x->batch_bytes = equal ? 884736 : pick(2) ? 500000 + pick(800000) : one_of(884736, 442368, 663552);
        for (uint32_t b = 0; b < x->n_batches; b++) s->freq[l][b] = coarse ? pick(4) / 4.0 : pow(uniform(0, 1), 3);
        x->freq = s->freq[l];
    }
    for (uint32_t d = 0; d < p->n_dense; d++)
        s->dense[d] = (hl_dense_item){ "dense", pick(8) ? 100000 + pick(3000000) : 0, pick(2) ? 1 : uniform(0, 3) };
    for (uint32_t d = 1, alike = pick(3); alike == 0 && d < p->n_dense; d++) s->dense[d] = s->dense[0];
    const double total = all_bytes(p);
    double budgets = 0;
    for (uint32_t g = 0; g < p->n_gpus; g++) {
        hl_neuron_gpu *x = &s->gpus[g];
        x->bytes_per_s = slow && pick(2) ? uniform(1e10, 7e10) : uniform(2e11, 1.5e12);
        x->sync_s = pick(4) ? uniform(0, 6e-5) : 0;
        x->budget_bytes = pick(3) ? floor(total * uniform(0, 0.9) / p->n_gpus) : 884736.0 * pick(12);
        budgets += x->budget_bytes;
    }
    /* From too small to more than enough; often only just. */
    p->cpu_budget_bytes = floor(one_of(total * 2, fmax(0, total - budgets * uniform(0.6, 1.05)), total * uniform(0.1, 1.1)));
}

typedef struct brute_neurons { bool found; double objective, most_gpu_bytes; } brute_neurons;

typedef struct brute_walk {
    const hl_neuron_problem *p;
    double used[MAX_G], total;
    brute_neurons *out;
} brute_walk;

/* Layer l with its b hottest batches somewhere: activations and neurons. */
static inline void brute_top(const hl_neuron_layer *x, uint32_t b, double *active, double *neurons)
{
    bool taken[MAX_B] = { false };
    *active = *neurons = 0;
    for (uint32_t i = 0; i < b; i++) {
        int best = -1;
        for (uint32_t j = 0; j < x->n_batches; j++) if (!taken[j] && (best < 0 || x->freq[j] > x->freq[best])) best = (int)j;
        const double n = best == (int)x->n_batches - 1 ? x->last_batch_neurons : x->batch_neurons;
        taken[best] = true;
        *active += n * x->freq[best];
        *neurons += n;
    }
}

static inline void brute_layer(brute_walk *w, uint32_t l, uint32_t first_gpu, double value)
{
    const hl_neuron_problem *p = w->p;
    if (l == p->n_layers) {
        double on = 0;
        for (uint32_t g = 0; g < p->n_gpus; g++) on += w->used[g];
        w->out->most_gpu_bytes = fmax(w->out->most_gpu_bytes, on);
        if (w->total - on > p->cpu_budget_bytes * (1 + 1e-12)) return;
        const bool better = p->objective == HL_OBJECTIVE_IMPACT ? value > w->out->objective : value < w->out->objective;
        if (!w->out->found || better) { w->out->found = true; w->out->objective = value; }
        return;
    }
    const hl_neuron_layer *x = &p->layers[l];
    const double each = x->batch_bytes / x->batch_neurons, slow = each / p->cpu_bytes_per_s;
    double A, N;
    brute_top(x, x->n_batches, &A, &N);
    double sync_least = 1e300;
    for (uint32_t g = 0; g < p->n_gpus; g++) sync_least = fmin(sync_least, p->gpus[g].sync_s);
    const bool impact = p->objective == HL_OBJECTIVE_IMPACT;
    brute_layer(w, l + 1, first_gpu, value + (impact ? 0 : slow * A + (p->dense_on == HL_DENSE_GPU ? sync_least : 0)));
    for (uint32_t g = first_gpu; g < p->n_gpus; g++)
        for (uint32_t b = 1; b <= x->n_batches; b++) {
            double a, n, add;
            brute_top(x, b, &a, &n);
            const double fast = each / p->gpus[g].bytes_per_s, sync = p->gpus[g].sync_s;
            if (impact) {
                if (p->gpus[g].bytes_per_s <= p->cpu_bytes_per_s) continue;
                if (n < ceil(sync / (each * (1 / p->cpu_bytes_per_s - 1 / p->gpus[g].bytes_per_s)) - 1e-9)) continue;
                add = a;
            } else if (b == x->n_batches) add = fast * A + p->launch_s + (p->dense_on == HL_DENSE_CPU ? sync : 0);
            else add = p->launch_s + fmax(fast * a, slow * (A - a) + sync);
            if (w->used[g] + n * each > p->gpus[g].budget_bytes * (1 + 1e-12)) continue;
            w->used[g] += n * each;
            brute_layer(w, l + 1, g, value + add);
            w->used[g] -= n * each;
        }
}

static inline void brute_dense(brute_walk *w, uint32_t d, double value)
{
    const hl_neuron_problem *p = w->p;
    if (d == p->n_dense) { brute_layer(w, 0, 0, value); return; }
    const hl_dense_item *x = &p->dense[d];
    if (p->objective == HL_OBJECTIVE_IMPACT) {
        for (uint32_t g = 0; g < p->n_gpus; g++)
            if (p->gpus[g].bytes_per_s > p->cpu_bytes_per_s && w->used[g] + x->bytes <= p->gpus[g].budget_bytes) {
                w->used[g] += x->bytes;
                brute_dense(w, d + 1, value);
                w->used[g] -= x->bytes;
                return;
            }
        brute_dense(w, d + 1, value);
        return;
    }
    brute_dense(w, d + 1, value + x->touches * x->bytes / p->cpu_bytes_per_s);
    for (uint32_t g = 0; g < p->n_gpus; g++) {
        if (w->used[g] + x->bytes > p->gpus[g].budget_bytes) continue;
        w->used[g] += x->bytes;
        brute_dense(w, d + 1, value + x->touches * x->bytes / p->gpus[g].bytes_per_s);
        w->used[g] -= x->bytes;
    }
}

static inline brute_neurons brute_force_neurons(const hl_neuron_problem *p)
{
    brute_neurons out = { false, 0, 0 };
    brute_walk w = { .p = p, .total = all_bytes(p), .out = &out };
    brute_dense(&w, 0, 0);
    return out;
}

/* ---- layers ---- */

enum { MAX_M = 5 };
typedef struct small_ring { hl_layer_problem p; hl_ring_device d[MAX_M]; double links[MAX_M * MAX_M]; } small_ring;

static inline void random_ring(small_ring *s)
{
    memset(s, 0, sizeof *s);
    hl_layer_problem *p = &s->p;
    p->n_devices = pick(8) ? 1 + pick(3) : 4 + pick(2);
    p->n_layers = p->n_devices > 3 ? 1 + pick(4) : 1 + pick(8);
    p->latency = pick(2);
    p->layer_bytes = 1e8 + pick(300000000);
    p->kv_bytes_per_layer = pick(2) ? pick(20000000) : 0;
    p->input_bytes = 3e8; p->n_vocab = 32000 + pick(90000); p->output_bytes = pick(400000000);
    p->devices = s->d;
    if (pick(4) == 0) for (p->k = 1 + pick(p->n_layers); p->n_layers % p->k; p->k = 1 + pick(p->n_layers)) { }
    for (uint32_t m = 0; m < p->n_devices; m++) {
        hl_ring_device *d = &s->d[m];
        d->name = "device";
        d->os = pick(4);
        d->alpha_s = uniform(0.004, 0.05);
        const bool gpu = d->os != HL_OS_MACOS && pick(2);
        d->beta_s = gpu ? (pick(8) ? -d->alpha_s * uniform(0.2, 0.95) : d->alpha_s * uniform(0, 1)) : 0;
        d->hop_s = pick(2) ? uniform(0, 0.01) : 0;
        d->output_s = pick(2) ? uniform(0, 0.03) : 0;
        d->disk_bytes_per_s = uniform(1e8, 4e9);
        d->ram_bytes = floor(uniform(0, 1.2) * p->layer_bytes * p->n_layers);
        d->swap_bytes = pick(2) ? pick(200000000) : 0;
        d->vram_bytes = gpu ? floor(uniform(0, 1) * p->layer_bytes * p->n_layers) : 0;
        d->cpu_buffer_bytes = pick(100000000);
        d->gpu_buffer_bytes = gpu ? pick(100000000) : 0;
    }
    if (pick(3) == 0) {
        p->links = s->links;
        for (uint32_t i = 0; i < p->n_devices * p->n_devices; i++) s->links[i] = pick(4) ? uniform(0, 0.01) : -1;
    }
}

/* Costs of all chains i .. j through devices that lie between them on the ring, in ring order, by trying every subset of those. */
static inline double brute_hop(const hl_layer_problem *p, uint32_t i, uint32_t j)
{
    const uint32_t M = p->n_devices;
    uint32_t between[MAX_M], n = 0;
    if (!p->links) return p->devices[i].hop_s;
    for (uint32_t at = (i + 1) % M; at != j; at = (at + 1) % M) between[n++] = at;
    double best = INFINITY;
    for (uint32_t set = 0; set < 1u << n; set++) {
        double sum = 0;
        uint32_t from = i;
        for (uint32_t b = 0; b <= n; b++) {
            if (b < n && !(set >> b & 1)) continue;
            const uint32_t to = b < n ? between[b] : j;
            sum += p->links[from * M + to] < 0 ? INFINITY : p->links[from * M + to];
            from = to;
        }
        best = fmin(best, sum);
    }
    return best;
}

typedef struct brute_device { double C, D, R, serial, s; bool in; } brute_device;

static inline double brute_overlap(const hl_layer_problem *p, const brute_device *v, uint32_t k, double base, double T)
{
    double sum = base;
    for (uint32_t m = 0; m < p->n_devices; m++) {
        if (!v[m].in || v[m].D <= 0) continue;
        if (v[m].D > v[m].s * T * (1 + 1e-12)) return INFINITY;
        const double o = m ? p->devices[0].output_s : 0, B = fmax(0, fmin(v[m].R, v[m].s * (T - o) - v[m].D));
        sum += fmax(0, (v[m].D - (k - 1) * B) / v[m].s - v[m].C);
    }
    return sum;
}

/* T of one plan, or `limit` when it is no better. */
static inline double brute_value(const hl_layer_problem *p, uint32_t k, const uint32_t *l, const uint32_t *g, double limit)
{
    brute_device v[MAX_M];
    double base = 0, disk = 0, lo = 0;
    uint32_t before = 0, n = 0;
    for (uint32_t m = 0; m < p->n_devices; m++) {
        const hl_ring_device *d = &p->devices[m];
        v[m].in = m == 0 || l[m];
        if (!v[m].in) continue;
        n++;
        const double b = p->layer_bytes + p->kv_bytes_per_layer, io = m ? 0 : p->input_bytes / p->n_vocab + p->output_bytes;
        double need = 0, ram = d->ram_bytes;
        switch (d->os) {
        case HL_OS_LINUX: need = (l[m] - g[m]) * b + io + d->cpu_buffer_bytes; break;
        case HL_OS_ANDROID: need = (l[m] - g[m]) * b + io + d->cpu_buffer_bytes; ram += d->swap_bytes; break;
        case HL_OS_MACOS: need = l[m] * b + io + d->cpu_buffer_bytes; break;
        default: need = l[m] * b + io + d->cpu_buffer_bytes + d->gpu_buffer_bytes;
        }
        const double layers_need = (d->os == HL_OS_LINUX || d->os == HL_OS_ANDROID ? l[m] - g[m] : l[m]) * b;
        v[m].D = need > ram ? need - ram : 0;
        v[m].R = fmax(0, ram - (need - layers_need));
        v[m].s = d->disk_bytes_per_s;
        v[m].C = d->alpha_s * l[m] + d->beta_s * g[m] + (m ? 0 : d->output_s);
        double read = v[m].D;
        if (d->os == HL_OS_METAL && v[m].D > 0) read = l[m] * p->layer_bytes + io;
        if (m == 0 && read < p->input_bytes / p->n_vocab) read = p->input_bytes / p->n_vocab;
        base += v[m].C;
        disk += read / v[m].s;
        lo = fmax(lo, v[m].D / v[m].s);
        if (m) { base += k * brute_hop(p, before, m); before = m; }
    }
    if (n > 1) base += k * brute_hop(p, before, 0);
    if (isinf(base)) return limit;
    if (p->latency == HL_LATENCY_SERIAL) return fmin(limit, base + disk);
    if (brute_overlap(p, v, k, base, limit) > limit) return limit;
    double hi = limit;
    if (brute_overlap(p, v, k, base, lo) <= lo) return lo;
    for (uint32_t i = 0; i < 200 && hi - lo > 1e-15 * hi; i++) {
        const double mid = lo + (hi - lo) / 2;
        if (brute_overlap(p, v, k, base, mid) <= mid) hi = mid;
        else lo = mid;
    }
    return hi;
}

static inline void brute_ring(const hl_layer_problem *p, uint32_t k, uint32_t m, uint32_t left, uint32_t *l, uint32_t *g, double *best)
{
    if (m == p->n_devices || m >= MAX_M) {
        if (left == 0) *best = brute_value(p, k, l, g, *best);
        return;
    }
    const hl_ring_device *d = &p->devices[m];
    double room = d->vram_bytes - d->gpu_buffer_bytes;
    if (m == 0 && d->os == HL_OS_METAL) room -= p->output_bytes;
    if (d->os == HL_OS_MACOS) room = 0;
    for (l[m] = 0; l[m] <= left; l[m] += k) {
        for (g[m] = 0; g[m] <= l[m]; g[m] += k) {
            if (g[m] && g[m] * (p->layer_bytes + p->kv_bytes_per_layer) > room) break;
            brute_ring(p, k, m + 1, left - l[m], l, g, best);
        }
        g[m] = 0;
    }
    l[m] = 0;
}

/* The least T of k rounds; 1e9: none. */
static inline double brute_force_ring(const hl_layer_problem *p, uint32_t k)
{
    uint32_t l[MAX_M] = { 0 }, g[MAX_M] = { 0 };
    double best = 1e9;
    brute_ring(p, k, 0, p->n_layers, l, g, &best);
    return best;
}

#endif
