/* spread.c: several GPUs: the runs of layers by branch and bound (spread_runs.c), then the plan itself.
 *
 * 1. Prices, bounds and plans from where the runs begin.  2. Options whose reduced cost is above bound-to-plan go.  3. Breadth first over
 * the classes, a state being (bytes on each GPU, last GPU, cost), bounded by the program's table at the root's prices.  Exact when nothing
 * had to be dropped; else the bound given is the least of what was, or that of the runs.
 */
#include "spread.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mck.h"
#include "spread_runs.h"

#define GOOD 1e-7                                      /* no further pass for less than this */
#define NEAR 1e-4                                      /* then the passes get this long */
#define NEAR_NS 500000000u

typedef struct state { double u[HL_MAX_GPUS], sum, c, bound; uint32_t parent, option; int32_t gpu, last; } state;
typedef hl_spread_trace trace;
typedef hl_spread_solver solver;

static void put_aside(solver *s, double bound) { if (bound < s->put_aside) s->put_aside = bound; }

static void build_hulls(solver *s)
{
    uint32_t total = 0;
    for (uint32_t kg = 0; kg < s->n * s->G; kg++) {
        s->hull_first[kg] = total;
        total += hl_mck_hull(s->p->w, s->p->c, s->p->first[kg], s->p->first[kg + 1], NULL, s->hull + total);
    }
    s->hull_first[s->n * s->G] = total;
}

/* ---- branch and bound ---- */

/* The classes from k on, when `last` was the last GPU. */
static double rest(const solver *s, uint32_t k, int32_t last)
{
    const uint32_t n_free = s->p->n_free;
    if (k < n_free) return s->free_rest[k] + s->table[0];
    return s->table[(k - n_free) * s->G + (last < 0 ? 0 : (uint32_t)last)];
}

static void reduce(solver *s)
{
    const double limit = hl_spread_limit(s);
    for (uint32_t kg = 0; kg < s->n * s->G; kg++) {
        const uint32_t k = kg / s->G;
        int32_t gpu;
        /* What any plan pays for class k at least; coarse for layers: the order of GPUs is left out. */
        const double least = hl_spread_free_cost(s, k, &gpu);
        for (uint32_t i = s->p->first[kg]; i < s->p->first[kg + 1]; i++) {
            const double b = s->bound + s->p->c[i] + s->price[kg % s->G] * s->p->w[i] - fmax(least, k < s->p->n_free ? least : s->cheapest[kg]);
            s->alive[i] = !(b >= limit);
            if (!s->alive[i]) s->put_aside_reduced = fmin(s->put_aside_reduced, b);
        }
    }
}

static int by_cost(const void *a, const void *b)
{
    const state *x = a, *y = b;
    if (x->last != y->last) return x->last < y->last ? -1 : 1;
    return x->c < y->c ? -1 : x->c > y->c;
}

static int by_bound(const void *a, const void *b)
{
    const state *x = a, *y = b;
    return x->bound < y->bound ? -1 : x->bound > y->bound;
}

/* x no worse than y in all that can still matter: GPUs before the last one only while free classes remain. */
static bool dominates(const solver *s, const state *x, const state *y, uint32_t next)
{
    if (x->last != y->last || x->c > y->c) return false;
    if (x->sum < s->p->lo && x->sum < y->sum) return false;
    for (uint32_t g = next < s->p->n_free || x->last < 0 ? 0 : (uint32_t)x->last; g < s->G; g++) if (x->u[g] > y->u[g]) return false;
    return true;
}

static uint32_t prune(solver *s, state *v, uint32_t n, uint32_t next)
{
    uint32_t kept = 0;
    qsort(v, n, sizeof *v, by_cost);
    for (uint32_t i = 0; i < n; i++) {
        bool worse = false;
        for (uint32_t j = kept; j > 0 && kept - j < 400 && !worse; j--) worse = dominates(s, &v[j - 1], &v[i], next);
        if (!worse) v[kept++] = v[i];
    }
    if (kept <= s->max_states) return kept;
    qsort(v, kept, sizeof *v, by_bound);
    put_aside(s, v[s->max_states].bound);
    s->p->complete = false;
    return s->max_states;
}

static hl_status add_child(solver *s, uint32_t k, const state *from, uint32_t parent, int32_t gpu, uint32_t option, state **to, uint32_t *cap, uint32_t *n)
{
    hl_status rc = HLLM_OK;
    state x = *from;
    x.parent = parent; x.gpu = gpu; x.option = option;
    if (gpu < 0) x.c += s->p->cpu_cost[k];
    else {
        x.u[gpu] += s->p->w[option]; x.sum += s->p->w[option]; x.c += s->p->c[option];
        if (x.u[gpu] > s->p->cap[gpu] * (1 + 1e-13)) goto done;
        if (k >= s->p->n_free) x.last = gpu;
    }
    if (x.sum + s->widest_rest[k + 1] < s->p->lo * (1 - 1e-13)) goto done;
    x.bound = s->constant + x.c + rest(s, k + 1, x.last);
    for (uint32_t g = 0; g < s->G; g++) x.bound += s->price[g] * x.u[g];
    if (x.bound >= hl_spread_limit(s)) { put_aside(s, x.bound); goto done; }
    if (*n == *cap) {
        state *bigger = hl_realloc(s->mem, *to, (size_t)*cap * 2 * sizeof *bigger);
        HL_NEED(bigger);
        *to = bigger; *cap *= 2;
    }
    (*to)[(*n)++] = x;
done:
    return rc;
}

/* Free classes that cost and weigh the same everywhere: then their GPUs may as well rise. */
static bool twins(const solver *s, uint32_t a, uint32_t b)
{
    if (s->p->cpu_cost[a] != s->p->cpu_cost[b]) return false;
    for (uint32_t g = 0; g < s->G; g++) {
        const uint32_t i = s->p->first[a * s->G + g], j = s->p->first[b * s->G + g], n = s->p->first[a * s->G + g + 1] - i;
        if (s->p->first[b * s->G + g + 1] - j != n) return false;
        for (uint32_t x = 0; x < n; x++) if (s->p->w[i + x] != s->p->w[j + x] || s->p->c[i + x] != s->p->c[j + x]) return false;
    }
    return true;
}

static void take_final(solver *s, const state *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (v[i].sum < s->p->lo * (1 - 1e-13) || (s->p->found && v[i].c >= s->best)) continue;
        s->best = v[i].c; s->p->found = true;
        for (uint32_t d = s->n, at = i; d-- > 0;) {
            const trace t = s->traces[d][at];
            s->p->gpu[d] = t.gpu; s->p->option[d] = t.option;
            at = t.parent;
        }
    }
}

static hl_status search(solver *s)
{
    hl_status rc = HLLM_OK;
    uint32_t cap_a = 64, cap_b = 64, n = 1;
    state *a = NULL, *b = NULL;
    HL_NEED(s->traces = hl_alloc_array(s->mem, s->n, sizeof *s->traces));
    HL_NEED(a = hl_alloc_array(s->mem, cap_a, sizeof *a));
    HL_NEED(b = hl_alloc_array(s->mem, cap_b, sizeof *b));
    a[0].last = a[0].gpu = -1; a[0].bound = s->bound;
    for (uint32_t k = 0; k < s->n; k++) {
        uint32_t n_new = 0;
        const bool twin = k > 0 && k < s->p->n_free && twins(s, k - 1, k);
        for (uint32_t j = 0; j < n; j++) {
            const int32_t from = twin ? a[j].gpu : -1;
            if ((j & 255) == 0 && hl_spread_late(s)) { for (uint32_t i = 0; i < n; i++) put_aside(s, a[i].bound); s->p->complete = false; goto done; }
            if (n_new > 4 * s->max_states) n_new = prune(s, b, n_new, k + 1);
            if (from < 0) HL_TRY(add_child(s, k, &a[j], j, -1, UINT32_MAX, &b, &cap_b, &n_new));
            const int32_t first = HL_MAX(HL_MAX(from, 0), k >= s->p->n_free ? a[j].last : 0);
            for (uint32_t g = (uint32_t)first; g < s->G; g++)
                for (uint32_t i = s->p->first[k * s->G + g]; i < s->p->first[k * s->G + g + 1]; i++)
                    if (s->alive[i]) HL_TRY(add_child(s, k, &a[j], j, (int32_t)g, i, &b, &cap_b, &n_new));
        }
        n = prune(s, b, n_new, k + 1);
        if (n == 0) goto done;
        HL_NEED(s->traces[k] = hl_alloc(s->mem, n * sizeof **s->traces));
        for (uint32_t i = 0; i < n; i++) s->traces[k][i] = (trace){ b[i].parent, b[i].option, b[i].gpu };
        state *swap = a; a = b; b = swap;
        const uint32_t cap = cap_a; cap_a = cap_b; cap_b = cap;
    }
    take_final(s, a, n);
done:
    for (uint32_t d = 0; s->traces && d < s->n; d++) hl_free(s->mem, s->traces[d]);
    hl_free(s->mem, s->traces);
    hl_free(s->mem, a);
    hl_free(s->mem, b);
    return rc;
}

/* Plans that cost no time to find: everything on the CPU, or one GPU after the other filled with the longest options that fit. */
static void first_plan(solver *s)
{
    double used[HL_MAX_GPUS] = { 0 }, sum = 0, cost = 0;
    uint32_t g = 0;
    for (uint32_t k = 0; k < s->n; k++) {
        s->p->gpu[k] = -1; s->p->option[k] = UINT32_MAX;
        for (uint32_t h = k < s->p->n_free ? 0 : g; s->p->lo > 0 && h < s->G && s->p->gpu[k] < 0; h++)
            for (uint32_t i = s->p->first[k * s->G + h + 1]; i-- > s->p->first[k * s->G + h];) {
                if (used[h] + s->p->w[i] > s->p->cap[h]) continue;
                s->p->gpu[k] = (int32_t)h; s->p->option[k] = i;
                used[h] += s->p->w[i]; sum += s->p->w[i];
                if (k >= s->p->n_free) g = h;
                break;
            }
        cost += s->p->gpu[k] < 0 ? s->p->cpu_cost[k] : s->p->c[s->p->option[k]];
    }
    if (sum < s->p->lo) return;
    s->best = cost;
    s->p->found = true;
}

/* Whole numbers of bytes have a common divisor: budgets and floor shrink to its multiples. */
static void shrink_budgets(hl_spread *p)
{
    const double unit = hl_mck_unit(p->w, p->first[p->n_classes * p->n_gpus]);
    if (unit <= 0) return;
    for (uint32_t g = 0; g < p->n_gpus; g++) p->cap[g] = hl_mck_floor(p->cap[g], unit);
    if (p->lo > 0) p->lo = hl_mck_ceil(p->lo, unit);
}

static double all_caps(const hl_spread *p)
{
    double sum = 0;
    for (uint32_t g = 0; g < p->n_gpus; g++) sum += p->cap[g];
    return sum;
}

hl_status hl_spread_solve(hl_mem *mem, hl_spread *p)
{
    hl_status rc = HLLM_OK;
    const uint32_t n = p->n_classes, G = p->n_gpus, n_options = p->first[n * G];
    double beyond[HL_SPREAD_PRICES];
    solver s = { .mem = mem, .p = p, .n = n, .G = G, .best = INFINITY, .put_aside = INFINITY, .put_aside_reduced = INFINITY };
    p->found = false; p->complete = true; p->cost = 0; p->bound = 0;
    shrink_budgets(p);
    HL_NEED(s.hull = hl_alloc_array(mem, n_options, sizeof *s.hull));
    HL_NEED(s.hull_first = hl_alloc_array(mem, (size_t)n * G + 1, sizeof *s.hull_first));
    HL_NEED(s.cheapest = hl_alloc_array(mem, (size_t)n * G, sizeof *s.cheapest));
    HL_NEED(s.cheapest_at = hl_alloc_array(mem, (size_t)n * G, sizeof *s.cheapest_at));
    HL_NEED(s.table = hl_alloc_array(mem, ((size_t)n + 1) * G, sizeof *s.table));
    HL_NEED(s.free_rest = hl_alloc_array(mem, (size_t)p->n_free + 1, sizeof *s.free_rest));
    HL_NEED(s.widest_rest = hl_alloc_array(mem, (size_t)n + 1, sizeof *s.widest_rest));
    HL_NEED(s.path = hl_alloc_array(mem, n, sizeof *s.path));
    HL_NEED(s.alive = hl_alloc_array(mem, n_options, sizeof *s.alive));
    for (uint32_t k = n; k-- > 0;) {
        double widest = 0;
        for (uint32_t g = 0; g < G; g++) if (p->first[k * G + g + 1] > p->first[k * G + g]) widest = fmax(widest, p->w[p->first[k * G + g + 1] - 1]);
        s.widest_rest[k] = s.widest_rest[k + 1] + widest;
    }
    for (uint32_t g = 0; g < G; g++) {
        double others = 0;
        for (uint32_t h = 0; h < G; h++) if (h != g) others += p->cap[h];
        s.least[g] = fmin(p->cap[g], fmax(0, p->lo - others));
    }
    if (all_caps(p) < p->lo * (1 - 1e-13)) goto done;                 /* all GPUs full are not enough */
    first_plan(&s);
    build_hulls(&s);
    s.pass_deadline_ns = p->deadline_ns;
    HL_TRY(hl_spread_runs(&s));
    p->bound = s.bound;
    if (p->found && s.best - s.bound <= p->tolerance * fabs(s.best)) goto found;
    s.bound = hl_spread_evaluate(&s, &s.root, s.root.price, beyond);
    const uint64_t begin = hl_now_ns();
    for (uint32_t pass = 0, states = 100; pass < 4; pass++, states *= 10) {
        if (pass && p->found && s.best - p->bound <= NEAR * fabs(s.best)) s.pass_deadline_ns = p->deadline_ns ? HL_MIN(p->deadline_ns, begin + NEAR_NS) : begin + NEAR_NS;
        if (hl_spread_late(&s) && pass) break;
        s.max_states = HL_MIN(p->max_states, states);
        p->complete = true;
        reduce(&s);
        s.put_aside = s.put_aside_reduced;
        HL_TRY(search(&s));
        p->bound = fmax(p->bound, fmin(s.best, s.put_aside));
        if (p->complete || (p->found && s.best - p->bound <= GOOD * fabs(s.best))) break;
    }
found:
    p->cost = p->found ? s.best : 0;
    if (p->found) p->bound = fmin(p->bound, s.best);
done:
    hl_free(mem, s.hull); hl_free(mem, s.hull_first); hl_free(mem, s.cheapest); hl_free(mem, s.cheapest_at); hl_free(mem, s.table);
    hl_free(mem, s.free_rest); hl_free(mem, s.widest_rest); hl_free(mem, s.path); hl_free(mem, s.alive);
    return rc;
}
