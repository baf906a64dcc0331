/* layers.c: how many layers each machine of a ring holds, exactly, by dynamic programming.
 *
 * For k rounds the layers are handed out in units of k.  What a device adds to a token's time depends only on its own layers (serial) or
 * also on the token's time T (overlap), and what a hop costs only on which device comes next: so the best way to have s units on the
 * devices up to m, m the last that has some, is a table over (m, s).  How many of a device's layers lie on its GPU is decided per entry.
 * overlap wants the least T with cost(T) <= T, cost falling in T: from a plan's own T on, the table is made again for that T until no
 * plan is cheaper than it; each round is strictly better, a few are enough.  All k: the smallest of equal ones.
 */
#include "planner.h"

#include <math.h>
#include <string.h>

#define TIE 1e-9                                       /* a larger k must be better by so much */

typedef struct device { double compute0, alpha, beta, speed, ram, fixed, row, late_s; uint32_t most_gpu; bool mac, metal, head; } device;

typedef struct solver {
    hl_mem *mem;
    const hl_layer_problem *p;
    uint64_t deadline_ns;
    uint32_t M, W, k;                                  /* devices; units of k layers */
    device d[HL_MAX_RING_DEVICES];
    double hop[HL_MAX_RING_DEVICES][HL_MAX_RING_DEVICES];
    double *cost; uint32_t *gpu;                       /* [M][n_layers + 1] of a number of units, and its units on the GPU */
    double *best; int32_t *from; uint32_t *units;      /* [M][n_layers + 1] the table, the device before, the units of device m */
} solver;

static void read_devices(solver *s)
{
    const hl_layer_problem *p = s->p;
    const double each = p->layer_bytes + p->kv_bytes_per_layer, row = p->input_bytes / p->n_vocab;
    for (uint32_t m = 0; m < s->M; m++) {
        const hl_ring_device *x = &p->devices[m];
        device *d = &s->d[m];
        d->head = m == 0;
        d->metal = x->os == HL_OS_METAL;
        d->mac = d->metal || x->os == HL_OS_MACOS;
        d->alpha = x->alpha_s; d->beta = x->beta_s; d->speed = x->disk_bytes_per_s;
        d->compute0 = d->head ? x->output_s : 0;
        d->late_s = d->head ? 0 : p->devices[0].output_s;
        d->ram = x->ram_bytes + (x->os == HL_OS_ANDROID ? x->swap_bytes : 0);
        d->row = d->head ? row : 0;
        d->fixed = (d->head ? row + p->output_bytes : 0) + x->cpu_buffer_bytes + (d->metal ? x->gpu_buffer_bytes : 0);
        double room = x->vram_bytes - x->gpu_buffer_bytes - (d->head && d->metal ? p->output_bytes : 0);
        if (x->os == HL_OS_MACOS) room = 0;
        d->most_gpu = room <= 0 ? 0 : (uint32_t)fmin(p->n_layers, floor(room / each * (1 + HL_BUDGET_SLACK / 2)));
    }
}

static void read_hops(solver *s)
{
    const uint32_t M = s->M;
    for (uint32_t i = 0; i < M; i++) {
        double reach[2 * HL_MAX_RING_DEVICES];         /* by position after i, round the ring */
        reach[0] = 0;
        for (uint32_t j = 1; j < M; j++) {
            const uint32_t to = (i + j) % M;
            if (!s->p->links) { s->hop[i][to] = s->p->devices[i].hop_s; continue; }
            reach[j] = INFINITY;
            for (uint32_t h = 0; h < j; h++) {
                const double link = s->p->links[(i + h) % M * M + to];
                if (link >= 0 && reach[h] + link < reach[j]) reach[j] = reach[h] + link;
            }
            s->hop[i][to] = reach[j];
        }
        s->hop[i][i] = 0;
    }
}

static double overflow_of(const solver *s, const device *d, uint32_t l, uint32_t g)
{
    return fmax(0, (d->mac ? l : l - g) * (s->p->layer_bytes + s->p->kv_bytes_per_layer) + d->fixed - d->ram);
}

static double stall(const solver *s, const device *d, double over, double compute, double T)
{
    if (over <= 0) return 0;
    if (over > d->speed * T * (1 + 1e-12)) return INFINITY;
    const double buffer = fmax(0, fmin(fmax(0, d->ram - d->fixed), d->speed * (T - d->late_s) - over));
    return fmax(0, (over - (s->k - 1) * buffer) / d->speed - compute);
}

static double device_cost(const solver *s, const device *d, uint32_t l, uint32_t g, double T)
{
    const double over = overflow_of(s, d, l, g), compute = d->alpha * l + d->beta * g + d->compute0;
    if (s->p->latency == HL_LATENCY_OVERLAP) return compute + stall(s, d, over, compute, T);
    double disk = over;
    if (d->metal) disk = over > 0 ? l * s->p->layer_bytes + (d->head ? d->row + s->p->output_bytes : 0) : 0;
    return compute + fmax(disk, d->row) / d->speed;
}

/* A GPU that gains time takes all that fits (less to compute and less to reload); one that loses is tried at every number. */
static void fill_costs(solver *s, double T)
{
    for (uint32_t m = 0; m < s->M; m++) {
        const device *d = &s->d[m];
        double *cost = s->cost + (size_t)m * (s->p->n_layers + 1);
        uint32_t *gpu = s->gpu + (size_t)m * (s->p->n_layers + 1);
        for (uint32_t u = 0; u <= s->W; u++) {
            const uint32_t most = HL_MIN(u, d->most_gpu / s->k);
            cost[u] = INFINITY; gpu[u] = 0;
            for (uint32_t g = d->beta <= 0 ? most : 0; g <= most; g++) {
                const double c = device_cost(s, d, u * s->k, g * s->k, T);
                if (c < cost[u]) { cost[u] = c; gpu[u] = g; }
            }
        }
    }
}

/* The cheapest ring for the costs in s->cost.  Without links a hop costs the same wherever it goes: then one row, the best of all devices
 * before, is enough, and the loop over the device before has one turn. */
static double fill_table(solver *s, uint32_t *layers, uint32_t *gpu_layers)
{
    const uint32_t M = s->M, W = s->W;
    const size_t row = s->p->n_layers + 1;
    double any[HL_MAX_RING_LAYERS + 1];                /* without links: best of all devices before, their own hop paid */
    int32_t any_from[HL_MAX_RING_LAYERS + 1];
    for (uint32_t w = 0; w <= W; w++) {
        s->best[w] = s->cost[w];
        s->units[w] = w; s->from[w] = -1;
        any[w] = s->best[w] + s->k * s->p->devices[0].hop_s;
        any_from[w] = 0;
    }
    for (uint32_t m = 1; m < M; m++) {
        double *best = s->best + m * row;
        const double *cost = s->cost + m * row;
        uint32_t *units = s->units + m * row;
        int32_t *from = s->from + m * row;
        for (uint32_t w = 0; w <= W; w++) best[w] = INFINITY;
        for (uint32_t a = 0; a < (s->p->links ? m : 1u); a++) {
            const double *before = s->p->links ? s->best + a * row : any;
            const double hop = s->p->links ? s->k * s->hop[a][m] : 0;
            if (hop == INFINITY) continue;
            for (uint32_t w0 = 0; w0 < W; w0++) {
                const double c0 = before[w0] + hop;
                if (c0 == INFINITY) continue;
                for (uint32_t u = 1; u <= W - w0; u++)
                    if (c0 + cost[u] < best[w0 + u]) { best[w0 + u] = c0 + cost[u]; units[w0 + u] = u; from[w0 + u] = s->p->links ? (int32_t)a : any_from[w0]; }
            }
        }
        const double own = s->p->links ? 0 : s->k * s->p->devices[m].hop_s;
        for (uint32_t w = 0; !s->p->links && w <= W; w++) if (best[w] + own < any[w]) { any[w] = best[w] + own; any_from[w] = (int32_t)m; }
    }
    double least = s->best[W];
    uint32_t last = 0;
    for (uint32_t m = 1; m < M; m++) {
        const double c = s->best[m * row + W] + s->k * s->hop[m][0];
        if (c < least) { least = c; last = m; }
    }
    if (least == INFINITY) return least;
    for (uint32_t m = 0; m < M; m++) layers[m] = gpu_layers[m] = 0;
    for (uint32_t w = W;;) {
        const uint32_t u = s->units[last * row + w];
        layers[last] = u * s->k;
        gpu_layers[last] = s->gpu[last * row + u] * s->k;
        if (s->from[last * row + w] < 0) break;
        last = (uint32_t)s->from[last * row + w];
        w -= u;
    }
    return least;
}

/* The least T at which a given ring's cost is no more than T.  The cost falls in straight pieces between the T where a term changes. */
static double own_time(const solver *s, const uint32_t *layers, const uint32_t *gpu_layers)
{
    double points[4 * HL_MAX_RING_DEVICES + 1], base = 0, lo = 0;
    uint32_t n = 0, last = 0;
    double over[HL_MAX_RING_DEVICES], compute[HL_MAX_RING_DEVICES];
    for (uint32_t m = 0; m < s->M; m++) {
        const device *d = &s->d[m];
        over[m] = compute[m] = 0;
        if (m && !layers[m]) continue;
        if (m) { base += s->k * s->hop[last][m]; last = m; }
        over[m] = overflow_of(s, d, layers[m], gpu_layers[m]);
        compute[m] = d->alpha * layers[m] + d->beta * gpu_layers[m] + d->compute0;
        base += compute[m];
        if (over[m] <= 0) continue;
        lo = fmax(lo, over[m] / d->speed);
        const double room = fmax(0, d->ram - d->fixed), need = s->k > 1 ? (over[m] - compute[m] * d->speed) / (s->k - 1) : 0;
        points[n++] = d->late_s + over[m] / d->speed;                         /* the buffer begins */
        points[n++] = d->late_s + (over[m] + room) / d->speed;                /* it is as large as it can be */
        points[n++] = d->late_s + (over[m] + fmax(0, need)) / d->speed;       /* it is as large as it need be */
    }
    if (last) base += s->k * s->hop[last][0];
    lo = fmax(lo, base);                               /* no stall is negative */
    lo = fmax(lo, 0);
    double f_lo = base, hi = INFINITY, f_hi = base;
    for (uint32_t m = 0; m < s->M; m++) f_lo += stall(s, &s->d[m], over[m], compute[m], lo);
    if (f_lo <= lo) return lo;
    for (uint32_t i = 0; i < n; i++)                   /* narrow [lo, hi] to the piece where cost and T cross */
        if (points[i] > lo && points[i] < hi) {
            double f = base;
            for (uint32_t m = 0; m < s->M; m++) f += stall(s, &s->d[m], over[m], compute[m], points[i]);
            if (f <= points[i]) { hi = points[i]; f_hi = f; }
            else { lo = points[i]; f_lo = f; }
        }
    if (hi == INFINITY) return f_lo;                   /* beyond the last point the cost is constant */
    const double gap_lo = f_lo - lo, gap_hi = hi - f_hi;
    return lo + (hi - lo) * (gap_lo / (gap_lo + gap_hi));
}

/* The best for the current k below `limit`; INFINITY when there is none. */
static double solve_k(solver *s, double limit, uint32_t *layers, uint32_t *gpu_layers)
{
    uint32_t l[HL_MAX_RING_DEVICES], g[HL_MAX_RING_DEVICES];
    if (s->p->latency == HL_LATENCY_SERIAL) {
        fill_costs(s, 0);
        const double t = fill_table(s, l, g);
        if (t >= limit) return INFINITY;
        memcpy(layers, l, sizeof l); memcpy(gpu_layers, g, sizeof g);
        return t;
    }
    double T = limit < INFINITY ? limit : 1e30, found = INFINITY;
    for (uint32_t round = 0; round < 1000; round++) {
        fill_costs(s, T);
        const double cost = fill_table(s, l, g);
        if (!(cost < T * (1 - 1e-13))) break;
        const double own = own_time(s, l, g);
        if (!(own < T)) break;
        T = found = own;
        memcpy(layers, l, sizeof l); memcpy(gpu_layers, g, sizeof g);
        if (s->deadline_ns && hl_now_ns() > s->deadline_ns) break;
    }
    return found;
}

hl_status hl_layer_solve(hl_mem *mem, const hl_layer_problem *p, const hl_plan_limits *limits, hl_layer_plan *plan, hl_error *err)
{
    hl_status rc = HLLM_OK;
    solver *s = NULL;
    const uint64_t start = hl_now_ns();
    double best = INFINITY, bound = 0;
    bool stopped = false;
    HL_NEED(s = hl_alloc_zero(mem, sizeof *s));
    s->mem = mem; s->p = p; s->M = p->n_devices;
    s->deadline_ns = limits ? limits->deadline_ns : 0;
    const size_t cells = (size_t)s->M * (p->n_layers + 1);
    HL_NEED(s->cost = hl_alloc_array(mem, cells, sizeof *s->cost));
    HL_NEED(s->gpu = hl_alloc_array(mem, cells, sizeof *s->gpu));
    HL_NEED(s->best = hl_alloc_array(mem, cells, sizeof *s->best));
    HL_NEED(s->from = hl_alloc_array(mem, cells, sizeof *s->from));
    HL_NEED(s->units = hl_alloc_array(mem, cells, sizeof *s->units));
    read_devices(s);
    read_hops(s);
    for (uint32_t k = p->k ? p->k : 1; k <= (p->k ? p->k : p->n_layers); k++) {
        if (p->n_layers % k) continue;
        if (best < INFINITY && s->deadline_ns && hl_now_ns() > s->deadline_ns) { stopped = true; break; }
        s->k = k; s->W = p->n_layers / k;
        const double t = solve_k(s, best < INFINITY ? best - TIE * fabs(best) : INFINITY, plan->layers, plan->gpu_layers);
        if (t == INFINITY) continue;
        best = t;
        plan->k = k;
    }
    if (best == INFINITY) { rc = hl_fail(err, HLLM_E_NOMEM, "no ring is admissible"); goto done; }
    /* Not all k were tried: what no plan can be faster than, all compute at its cheapest and no disk. */
    if (stopped) {
        double cheapest = INFINITY;
        for (uint32_t m = 0; m < s->M; m++) cheapest = fmin(cheapest, s->d[m].alpha + (s->d[m].most_gpu ? fmin(0, s->d[m].beta) : 0));
        bound = fmin(best, s->d[0].compute0 + cheapest * p->n_layers);
    } else bound = best;
    plan->objective = best;
    plan->bound = bound;
    plan->gap = hl_plan_gap(best, bound);
    plan->solver = "builtin";
    plan->solve_s = (double)(hl_now_ns() - start) * 1e-9;
done:
    if (s) { hl_free(mem, s->cost); hl_free(mem, s->gpu); hl_free(mem, s->best); hl_free(mem, s->from); hl_free(mem, s->units); }
    hl_free(mem, s);
    return rc;
}
