/* spread.c: several GPUs: a price per byte of each budget, a dynamic program over the layers for what the prices imply, branch and bound.
 *
 * 1. Prices (Lagrange multipliers) by subgradient steps: for given prices the cheapest plan, the order of GPUs included, is a dynamic
 *    program over (layer, GPU), and its cost a bound.  2. Plans: the layers are cut into the runs that the program chose; with the runs
 *    given each GPU is a problem of one budget (mck.c); runs are moved while that helps.  3. Options whose reduced cost is above
 *    bound-to-plan go.  4. Breadth first over the classes, a state being (bytes on each GPU, last GPU, cost), bounded by the program's
 *    table.  Exact when nothing had to be dropped; else the bound given is the least of what was.
 */
#include "spread.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mck.h"

#define GOOD 1e-7                                      /* no further pass for less than this */

typedef struct state { double u[HL_MAX_GPUS], sum, c, bound; uint32_t parent, option; int32_t gpu, last; } state;
typedef struct trace { uint32_t parent, option; int32_t gpu; } trace;

typedef struct solver {
    hl_mem *mem;
    hl_spread *p;
    uint32_t n, G;
    uint32_t *hull, *hull_first;                       /* lower hulls of the options, [n * G + 1] */
    double lambda[HL_MAX_GPUS], mu;                    /* the best multipliers so far: of the budgets, of the floor */
    double price[HL_MAX_GPUS], constant;               /* of a byte on each GPU; what the budgets give back */
    double *cheapest; uint32_t *cheapest_at;           /* [n * G] at these prices */
    double *table;                                     /* [(n - n_free + 1) * G] cost of the layers from il on when GPU g was the last */
    double *free_rest;                                 /* [n_free + 1] the same of the free classes from k on */
    double *widest_rest;                               /* [n + 1] the most weight that the classes from k on can take */
    int32_t *path;                                     /* [n] the GPU that a class is allowed, per plan tried */
    bool *alive;
    double best, bound, cut, cut_reduced;
    uint32_t max_states;                               /* of this pass */
    trace **traces;
} solver;

static bool late(const solver *s) { return s->p->deadline_ns && hl_now_ns() > s->p->deadline_ns; }
static void put_aside(solver *s, double bound) { if (bound < s->cut) s->cut = bound; }
static double limit_of(const solver *s) { return s->p->found ? s->best - s->p->tolerance * fabs(s->best) : INFINITY; }

static void build_hulls(solver *s)
{
    const double *w = s->p->w, *c = s->p->c;
    uint32_t total = 0;
    for (uint32_t kg = 0; kg < s->n * s->G; kg++) {
        uint32_t n = 0, *h = s->hull + total;
        for (uint32_t i = s->p->first[kg]; i < s->p->first[kg + 1]; i++) {
            while (n >= 2 && (c[h[n - 1]] - c[h[n - 2]]) * (w[i] - w[h[n - 1]]) >= (c[i] - c[h[n - 1]]) * (w[h[n - 1]] - w[h[n - 2]])) n--;
            h[n++] = i;
        }
        s->hull_first[kg] = total;
        total += n;
    }
    s->hull_first[s->n * s->G] = total;
}

/* The cheapest option on a hull at a price: the first whose next slope is above -price. */
static void find_cheapest(solver *s, uint32_t kg, double price)
{
    const double *w = s->p->w, *c = s->p->c;
    uint32_t a = s->hull_first[kg], b = s->hull_first[kg + 1];
    s->cheapest[kg] = INFINITY;
    if (a == b) return;
    for (b--; a < b;) {
        const uint32_t mid = a + (b - a) / 2, i = s->hull[mid], j = s->hull[mid + 1];
        if (c[j] - c[i] + price * (w[j] - w[i]) < 0) a = mid + 1;
        else b = mid;
    }
    s->cheapest_at[kg] = s->hull[a];
    s->cheapest[kg] = c[s->hull[a]] + price * w[s->hull[a]];
}

static double free_cost(const solver *s, uint32_t k, int32_t *gpu)
{
    double best = s->p->cpu_cost[k];
    *gpu = -1;
    for (uint32_t g = 0; g < s->G; g++)
        if (s->cheapest[k * s->G + g] < best) { best = s->cheapest[k * s->G + g]; *gpu = (int32_t)g; }
    return best;
}

/* The bound at prices; used[g]: the bytes that its plan has there; s->path: its GPUs. */
static double evaluate(solver *s, const double *lambda, double mu, double *used)
{
    const uint32_t G = s->G, n_free = s->p->n_free, n_layers = s->n - n_free;
    double constant = mu * s->p->lo;
    for (uint32_t g = 0; g < G; g++) { s->price[g] = lambda[g] - mu; constant -= lambda[g] * s->p->cap[g]; used[g] = 0; }
    for (uint32_t kg = 0; kg < s->n * G; kg++) find_cheapest(s, kg, s->price[kg % G]);
    s->free_rest[n_free] = 0;
    for (uint32_t k = n_free; k-- > 0;) {
        s->free_rest[k] = s->free_rest[k + 1] + free_cost(s, k, &s->path[k]);
        if (s->path[k] >= 0) used[s->path[k]] += s->p->w[s->cheapest_at[k * G + (uint32_t)s->path[k]]];
    }
    double *t = s->table;
    for (uint32_t g = 0; g < G; g++) t[n_layers * G + g] = 0;
    for (uint32_t il = n_layers; il-- > 0;)
        for (uint32_t g = 0; g < G; g++) {
            double best = s->p->cpu_cost[n_free + il] + t[(il + 1) * G + g];
            for (uint32_t h = g; h < G; h++) best = fmin(best, s->cheapest[(n_free + il) * G + h] + t[(il + 1) * G + h]);
            t[il * G + g] = best;
        }
    uint32_t last = 0;
    for (uint32_t il = 0; il < n_layers; il++) {
        const uint32_t k = n_free + il;
        s->path[k] = -1;
        if (t[il * G + last] == s->p->cpu_cost[k] + t[(il + 1) * G + last]) continue;
        for (uint32_t h = last; h < G; h++)
            if (t[il * G + last] == s->cheapest[k * G + h] + t[(il + 1) * G + h]) { s->path[k] = (int32_t)h; last = h; break; }
        if (s->path[k] >= 0) used[last] += s->p->w[s->cheapest_at[k * G + last]];
    }
    s->constant = constant;
    return constant + s->free_rest[0] + t[0];
}

static void find_prices(solver *s)
{
    double lambda[HL_MAX_GPUS], mu = s->mu, used[HL_MAX_GPUS], scale = 0, step = 1;
    memcpy(lambda, s->lambda, sizeof lambda);
    double best = evaluate(s, lambda, mu, used);
    /* A price's order of magnitude: what all could save, over all bytes. */
    for (uint32_t k = 0; k < s->n; k++) {
        double least = s->p->cpu_cost[k];
        for (uint32_t i = s->p->first[k * s->G]; i < s->p->first[(k + 1) * s->G]; i++) least = fmin(least, s->p->c[i]);
        scale += s->p->cpu_cost[k] - least;
    }
    double target = best + fmax(scale, fabs(best) * 1e-9);
    uint32_t stale = 0;
    for (uint32_t round = 0; round < 600 && !late(s); round++) {
        const double v = evaluate(s, lambda, mu, used);
        double norm = 0, sum = 0;
        if (v > best + 1e-13 * fabs(best)) { best = v; memcpy(s->lambda, lambda, sizeof lambda); s->mu = mu; stale = 0; }
        else if (++stale > 12) {                       /* from the best point on with smaller steps */
            step /= 2; stale = 0;
            memcpy(lambda, s->lambda, sizeof lambda); mu = s->mu;
            evaluate(s, lambda, mu, used);
            if (step < 1e-7) break;
        }
        if (s->p->found) target = s->best;
        for (uint32_t g = 0; g < s->G; g++) {
            const double d = used[g] - s->p->cap[g];
            sum += used[g];
            if (d > 0 || lambda[g] > 0) norm += d * d;
        }
        const double dm = s->p->lo - sum;
        if (s->p->lo > 0 && (dm > 0 || mu > 0)) norm += dm * dm;
        if (norm <= 0) break;
        const double length = step * fmax(target - v, 1e-12 * fabs(v)) / norm;
        for (uint32_t g = 0; g < s->G; g++) lambda[g] = fmax(0, lambda[g] + length * (used[g] - s->p->cap[g]));
        if (s->p->lo > 0) mu = fmax(0, mu + length * dm);
    }
    s->bound = evaluate(s, s->lambda, s->mu, used);
}

/* ---- plans with the GPU of each class given: one budget after the other ---- */

static hl_status solve_one(solver *s, uint32_t g, double lo, uint32_t *choice, double *cost, double *bytes, bool *found)
{
    hl_status rc = HLLM_OK;
    uint32_t n = 0, n_options = 0, *first = NULL, *picked = NULL;
    double *w = NULL, *c = NULL;
    for (uint32_t k = 0; k < s->n; k++)
        if (s->path[k] == (int32_t)g) { n++; n_options += 1 + s->p->first[k * s->G + g + 1] - s->p->first[k * s->G + g]; }
    *cost = 0; *bytes = 0; *found = lo <= 0;
    if (n == 0) goto done;
    HL_NEED(first = hl_alloc_array(s->mem, n + 1, sizeof *first));
    HL_NEED(picked = hl_alloc_array(s->mem, n, sizeof *picked));
    HL_NEED(w = hl_alloc_array(s->mem, n_options, sizeof *w));
    HL_NEED(c = hl_alloc_array(s->mem, n_options, sizeof *c));
    double all = 0;
    uint32_t at = 0, j = 0;
    for (uint32_t k = 0; k < s->n; k++) {
        if (s->path[k] != (int32_t)g) continue;
        first[j++] = at;
        w[at] = 0; c[at++] = s->p->cpu_cost[k];
        for (uint32_t i = s->p->first[k * s->G + g]; i < s->p->first[k * s->G + g + 1]; i++) { w[at] = s->p->w[i]; c[at++] = s->p->c[i]; }
        all += w[at - 1];
    }
    first[n] = at;
    hl_mck m = { .n_classes = n, .first = first, .w = w, .c = c, .lo = fmax(0, lo), .hi = fmin(s->p->cap[g], all), .tolerance = s->p->tolerance,
                 .deadline_ns = s->p->deadline_ns, .max_states = 100, .choice = picked };
    HL_TRY(hl_mck_solve(s->mem, &m));
    *found = m.found; *cost = m.cost;
    for (uint32_t k = 0, i = 0; m.found && k < s->n; k++) {
        if (s->path[k] != (int32_t)g) continue;
        choice[k] = picked[i] ? s->p->first[k * s->G + g] + picked[i] - 1 : UINT32_MAX;
        *bytes += w[first[i] + picked[i]];
        i++;
    }
done:
    hl_free(s->mem, first); hl_free(s->mem, picked); hl_free(s->mem, w); hl_free(s->mem, c);
    return rc;
}

/* Offers the best plan in which every class has the CPU or the GPU of s->path. */
static hl_status try_path(solver *s, uint32_t *choice, bool *better)
{
    hl_status rc = HLLM_OK;
    double total = 0, bytes = 0, room = 0;
    *better = false;
    for (uint32_t k = 0; k < s->n; k++) choice[k] = UINT32_MAX;
    double holds[HL_MAX_GPUS] = { 0 };                 /* the most that each GPU can take */
    for (uint32_t k = 0; k < s->n; k++) {
        const uint32_t g = (uint32_t)HL_MAX(s->path[k], 0), kg = k * s->G + g;
        if (s->path[k] >= 0 && s->p->first[kg + 1] > s->p->first[kg]) holds[g] += s->p->w[s->p->first[kg + 1] - 1];
    }
    for (uint32_t g = 0; g < s->G; g++) { holds[g] = fmin(holds[g], s->p->cap[g]); room += holds[g]; }
    for (uint32_t g = 0; g < s->G; g++) {
        double cost, used;
        bool found;
        room -= holds[g];
        HL_TRY(solve_one(s, g, s->p->lo - bytes - room, choice, &cost, &used, &found));
        if (!found) goto done;
        bytes += used;
    }
    if (bytes < s->p->lo * (1 - 1e-13)) goto done;
    for (uint32_t k = 0; k < s->n; k++) total += choice[k] == UINT32_MAX ? s->p->cpu_cost[k] : s->p->c[choice[k]];
    if (s->p->found && total >= s->best) goto done;
    *better = true;
    s->best = total; s->p->found = true;
    for (uint32_t k = 0; k < s->n; k++) { s->p->gpu[k] = choice[k] == UINT32_MAX ? -1 : s->path[k]; s->p->option[k] = choice[k]; }
done:
    return rc;
}

/* Moves the borders of runs [cut[g], cut[g + 1]) while that gives better plans. */
static hl_status move_runs(solver *s, uint32_t *cut, uint32_t *choice)
{
    hl_status rc = HLLM_OK;
    const int32_t jump[] = { 0, 1, -1, 4, -4 };
    bool moved = true, first = true, better;
    for (uint32_t tries = 0; moved && tries < 60 && !late(s);) {
        moved = false;
        for (uint32_t g = 1; g < s->G; g++)
            for (uint32_t j = first ? 0 : 1; j < HL_COUNT(jump) && !late(s); j++) {
                const uint32_t was = cut[g];
                const int64_t to = (int64_t)was + jump[j];
                if (to < cut[g - 1] || to > cut[g + 1]) continue;
                cut[g] = (uint32_t)to;
                for (uint32_t h = 0; h < s->G; h++) for (uint32_t k = cut[h]; k < cut[h + 1]; k++) s->path[k] = (int32_t)h;
                tries++; first = false;
                HL_TRY(try_path(s, choice, &better));
                if (better) moved = true;
                else cut[g] = was;
                if (s->p->found && s->best - s->bound <= s->p->tolerance * fabs(s->best)) goto done;
            }
    }
done:
    return rc;
}

static hl_status find_plan(solver *s)
{
    hl_status rc = HLLM_OK;
    uint32_t *choice = NULL, cut[HL_MAX_GPUS + 1];
    const uint32_t n_free = s->p->n_free;
    HL_NEED(choice = hl_alloc_array(s->mem, s->n, sizeof *choice));
    /* Where each GPU's run begins; a layer that the program left to the CPU belongs to the run around it. */
    uint32_t last = 0;
    cut[0] = n_free;
    for (uint32_t k = n_free; k < s->n; k++)
        if (s->path[k] > (int32_t)last) for (; (int32_t)last < s->path[k];) cut[++last] = k;
    while (last + 1 < s->G) cut[++last] = s->n;
    cut[s->G] = s->n;
    for (uint32_t k = 0; k < n_free; k++)
        if (s->path[k] < 0) {                          /* where it would go if it went */
            double least = INFINITY;
            for (uint32_t g = 0; g < s->G; g++) if (s->cheapest[k * s->G + g] < least) { least = s->cheapest[k * s->G + g]; s->path[k] = (int32_t)g; }
        }
    HL_TRY(move_runs(s, cut, choice));
    /* The same from runs in proportion to the budgets: where the prices' runs hold too little. */
    double room = 0, so_far = 0;
    for (uint32_t g = 0; g < s->G; g++) room += s->p->cap[g];
    for (uint32_t g = 0; g < s->G && room > 0; g++) {
        so_far += s->p->cap[g];
        cut[g + 1] = HL_MIN(s->n, n_free + (uint32_t)floor((s->n - n_free) * (so_far / room) + 0.5));
    }
    HL_TRY(move_runs(s, cut, choice));
done:
    hl_free(s->mem, choice);
    return rc;
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
    const double limit = limit_of(s);
    for (uint32_t kg = 0; kg < s->n * s->G; kg++) {
        const uint32_t k = kg / s->G;
        int32_t gpu;
        /* What any plan pays for class k at least; coarse for layers: the order of GPUs is left out. */
        const double least = free_cost(s, k, &gpu);
        for (uint32_t i = s->p->first[kg]; i < s->p->first[kg + 1]; i++) {
            const double b = s->bound + s->p->c[i] + s->price[kg % s->G] * s->p->w[i] - fmax(least, k < s->p->n_free ? least : s->cheapest[kg]);
            s->alive[i] = !(b >= limit);
            if (!s->alive[i]) s->cut_reduced = fmin(s->cut_reduced, b);
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
    if (x.bound >= limit_of(s)) { put_aside(s, x.bound); goto done; }
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
            if ((j & 255) == 0 && late(s)) { for (uint32_t i = 0; i < n; i++) put_aside(s, a[i].bound); s->p->complete = false; goto done; }
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

hl_status hl_spread_solve(hl_mem *mem, hl_spread *p)
{
    hl_status rc = HLLM_OK;
    const uint32_t n = p->n_classes, G = p->n_gpus, n_options = p->first[n * G];
    solver s = { .mem = mem, .p = p, .n = n, .G = G, .best = INFINITY, .cut = INFINITY, .cut_reduced = INFINITY };
    p->found = false; p->complete = true; p->cost = 0; p->bound = 0;
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
    first_plan(&s);
    build_hulls(&s);
    find_prices(&s);
    HL_TRY(find_plan(&s));
    if (s.p->found) find_prices(&s);                   /* a plan's cost makes better steps */
    p->bound = s.bound;
    for (uint32_t pass = 0, states = 100; pass < 4; pass++, states *= 10) {
        if (p->found && s.bound >= limit_of(&s)) break;
        if (late(&s) && pass) break;
        s.max_states = HL_MIN(p->max_states, states);
        p->complete = true;
        reduce(&s);
        s.cut = s.cut_reduced;
        HL_TRY(search(&s));
        p->bound = fmax(p->bound, fmin(s.best, s.cut));
        if (p->complete || (p->found && s.best - p->bound <= GOOD * fabs(s.best))) break;
    }
    p->cost = p->found ? s.best : 0;
    if (p->found) p->bound = fmin(p->bound, s.best);
done:
    hl_free(mem, s.hull); hl_free(mem, s.hull_first); hl_free(mem, s.cheapest); hl_free(mem, s.cheapest_at); hl_free(mem, s.table);
    hl_free(mem, s.free_rest); hl_free(mem, s.widest_rest); hl_free(mem, s.path); hl_free(mem, s.alive);
    return rc;
}
