/* mck.c: the multiple-choice knapsack with a window for the weight, exactly.
 *
 * 1. Each class's lower convex hull; all hull edges sorted by slope: the linear relaxation is a sweep over them, its multiplier the slope
 *    where the sweep stops.  2. A first plan: the sweep rounded to options, repaired and improved one class at a time.  3. Options whose
 *    reduced cost exceeds bound-to-plan can be in no better plan: out.  4. Branch and bound, breadth first: class by class, a state is
 *    (weight, cost) of the classes decided; each child is bounded by the relaxation of the classes not decided yet at the weight that is
 *    left (a pointer walk, as states lie sorted by weight), dominated states go, and the most promising are completed to plans.
 *    It is run with few states first: a quick pass that drops most still gives a good plan, which makes the next pass cut far more.
 * 5. Where the relaxation takes a part of a large step (a layer wholly on the GPU, the least share of one), one branching on how many
 *    classes take such a step: at most n, or more; a charge per step makes either half's relaxation feel it.
 * What is cut lies above the best plan less the tolerance, so the bound that is given is the least of what was cut: honest also when the
 * deadline or max_states cuts more.
 */
#include "mck.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NEAR 1e-4                                      /* then the other passes get this long */
#define NEAR_NS 1000000000u
#define SPLIT 1e-6                                     /* worse: a branching on a number is tried */
#define GOOD 1e-7                                      /* no further pass for less than this */

enum { SPLIT_STEPS = 24 };

typedef struct edge { double slope, dw, dc; uint32_t k, from, to; } edge;      /* of class k, from hull option to the next */
typedef struct state { double w, c, bound; uint32_t parent, option; } state;
typedef struct trace { uint32_t parent, option; } trace;

typedef struct solver {
    hl_mem *mem;
    hl_mck *p;
    uint32_t n;
    double *c, offset;                                 /* costs to search by: p->c, or with a charge on how many classes take a special option */
    bool *alive, *kept;                                /* [options] not ruled out; a copy */
    edge *edges; uint32_t n_edges;                     /* of all classes, by slope */
    uint32_t *hull;                                    /* scratch for one class */
    uint32_t *order, *rank;                            /* classes in the order of branching, and its inverse */
    uint32_t *base;                                    /* [n] the lightest option left */
    uint32_t *at;                                      /* [n] scratch: options of a plan under construction */
    /* the relaxation of the classes after a depth: Phi at rest_w[j] is rest_c[j], straight between */
    double *rest_w, *rest_c; uint32_t *rest_edge; uint32_t n_rest, rest_min;
    double best, bound;
    double cut, cut_reduced;                           /* the least bound of what was put aside: in this pass; with an option, for good */
    uint32_t max_states; uint64_t deadline_ns;         /* of this pass */
    uint64_t begin; double enough;
    double eps_w;
    trace **traces; uint32_t *trace_len;
} solver;

static int by_slope(const void *a, const void *b)
{
    const edge *x = a, *y = b;
    if (x->slope != y->slope) return x->slope < y->slope ? -1 : 1;
    if (x->k != y->k) return x->k < y->k ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

static int by_weight(const void *a, const void *b)
{
    const state *x = a, *y = b;
    if (x->w != y->w) return x->w < y->w ? -1 : 1;
    return x->c < y->c ? -1 : x->c > y->c;
}

static int by_bound(const void *a, const void *b)
{
    const state *x = a, *y = b;
    return x->bound < y->bound ? -1 : x->bound > y->bound;
}

static double tolerance_of(const solver *s) { return s->p->tolerance * fabs(s->best); }
static bool late(const solver *s) { return s->deadline_ns && hl_now_ns() > s->deadline_ns; }
static void put_aside(solver *s, double bound) { if (bound < s->cut) s->cut = bound; }

uint32_t hl_mck_hull(const double *w, const double *c, uint32_t from, uint32_t to, const bool *alive, uint32_t *out)
{
    uint32_t n = 0;
    for (uint32_t i = from; i < to; i++) {
        if (alive && !alive[i]) continue;
        while (n >= 2 && (c[out[n - 1]] - c[out[n - 2]]) * (w[i] - w[out[n - 1]]) >= (c[i] - c[out[n - 1]]) * (w[out[n - 1]] - w[out[n - 2]])) n--;
        out[n++] = i;
    }
    return n;
}

/* The lower hull of the living options of class k; its edges are appended. */
static void add_hull(solver *s, uint32_t k)
{
    const double *w = s->p->w, *c = s->c;
    const uint32_t n = hl_mck_hull(w, c, s->p->first[k], s->p->first[k + 1], s->alive, s->hull);
    s->base[k] = s->hull[0];
    for (uint32_t j = 1; j < n; j++) {
        const uint32_t a = s->hull[j - 1], b = s->hull[j];
        s->edges[s->n_edges++] = (edge){ (c[b] - c[a]) / (w[b] - w[a]), w[b] - w[a], c[b] - c[a], k, a, b };
    }
}

static void build_edges(solver *s)
{
    s->n_edges = 0;
    for (uint32_t k = 0; k < s->n; k++) add_hull(s, k);
    qsort(s->edges, s->n_edges, sizeof *s->edges, by_slope);
}

/* The relaxation of the classes of rank >= depth. */
static void build_rest(solver *s, uint32_t depth)
{
    double w = 0, c = 0;
    for (uint32_t d = depth; d < s->n; d++) { w += s->p->w[s->base[s->order[d]]]; c += s->c[s->base[s->order[d]]]; }
    s->rest_w[0] = w; s->rest_c[0] = c;
    s->n_rest = 0; s->rest_min = 0;
    for (uint32_t j = 0; j < s->n_edges; j++) {
        const edge *e = &s->edges[j];
        if (s->rank[e->k] < depth) continue;
        const uint32_t i = ++s->n_rest;
        s->rest_w[i] = s->rest_w[i - 1] + e->dw;
        s->rest_c[i] = s->rest_c[i - 1] + e->dc;
        s->rest_edge[i] = j;
        if (e->slope < 0) s->rest_min = i;
    }
}

/* The least cost that the rest can have when w is spent, by the relaxation; *hint: an index near, kept by callers whose w rises. */
static double rest_bound(const solver *s, double w, uint32_t *hint)
{
    const double lo = s->p->lo - w, hi = s->p->hi - w;
    if (hi < s->rest_w[0] - s->eps_w || lo > s->rest_w[s->n_rest] + s->eps_w) return INFINITY;
    double x = s->rest_w[s->rest_min];
    if (x > hi) x = hi;
    if (x < lo) x = lo;
    if (x <= s->rest_w[0]) return s->rest_c[0];
    if (x >= s->rest_w[s->n_rest]) return s->rest_c[s->n_rest];
    uint32_t j = *hint;
    while (j > 0 && s->rest_w[j] > x) j--;
    while (s->rest_w[j + 1] < x) j++;
    *hint = j;
    const double dw = s->rest_w[j + 1] - s->rest_w[j];
    return dw > 0 ? s->rest_c[j] + (s->rest_c[j + 1] - s->rest_c[j]) * ((x - s->rest_w[j]) / dw) : s->rest_c[j];
}

/* One class at a time to its best option, until nothing gets better: s->at, w and c are changed. */
static void improve(solver *s, uint32_t depth, double *w, double *c)
{
    const double *ow = s->p->w, *oc = s->c, lo = s->p->lo - s->eps_w, hi = s->p->hi + s->eps_w;
    for (uint32_t round = 0; round < 64; round++) {
        const bool fits = *w >= lo && *w <= hi;
        double best = 0;
        uint32_t best_k = UINT32_MAX, best_i = 0;
        for (uint32_t d = depth; d < s->n; d++) {
            const uint32_t k = s->order[d];
            const double rest_w = *w - ow[s->at[k]], was = oc[s->at[k]];
            for (uint32_t i = s->p->first[k]; i < s->p->first[k + 1]; i++) {
                const double nw = rest_w + ow[i], gain = was - oc[i];
                if (nw < lo || nw > hi || !s->alive[i]) continue;
                if (best_k == UINT32_MAX ? !fits || gain > 0 : gain > best) { best = gain; best_k = k; best_i = i; }
            }
        }
        if (best_k == UINT32_MAX || (fits && best <= 1e-15 * fabs(*c))) return;
        *w += ow[best_i] - ow[s->at[best_k]];
        *c -= best;
        s->at[best_k] = best_i;
    }
}

/* Keeps s->at as the best plan when it is one. */
static void offer(solver *s)
{
    double w = 0, c = 0;
    for (uint32_t k = 0; k < s->n; k++) { w += s->p->w[s->at[k]]; c += s->p->c[s->at[k]]; }
    if (w < s->p->lo - s->eps_w || w > s->p->hi + s->eps_w || (s->p->found && c >= s->best)) return;
    for (uint32_t k = 0; k < s->n; k++) s->p->choice[k] = s->at[k] - s->p->first[k];
    s->best = c;
    s->p->found = true;
}

/* s->at holds the options of ranks below depth: the others by the sweep, skipping what does not fit. */
static void complete(solver *s, uint32_t depth, double w, double c)
{
    for (uint32_t d = depth; d < s->n; d++) {
        const uint32_t k = s->order[d];
        s->at[k] = s->base[k];
        w += s->p->w[s->at[k]]; c += s->c[s->at[k]];
    }
    for (uint32_t j = 0; j < s->n_edges; j++) {
        const edge *e = &s->edges[j];
        if (s->rank[e->k] < depth || s->at[e->k] != e->from || w + e->dw > s->p->hi + s->eps_w) continue;
        if (e->slope >= 0 && w >= s->p->lo - s->eps_w) break;
        s->at[e->k] = e->to;
        w += e->dw; c += e->dc;
    }
    improve(s, depth, &w, &c);
    offer(s);
}

/* Options that by the multiplier alone cost more than the best plan. */
static void reduce(solver *s, double slope)
{
    const double limit = s->best - tolerance_of(s);
    for (uint32_t k = 0; k < s->n; k++) {
        double least = INFINITY;
        for (uint32_t i = s->p->first[k]; i < s->p->first[k + 1]; i++)
            if (s->alive[i]) least = fmin(least, s->c[i] - slope * s->p->w[i]);
        for (uint32_t i = s->p->first[k]; i < s->p->first[k + 1]; i++) {
            const double b = s->bound + (s->c[i] - slope * s->p->w[i] - least);
            if (!s->alive[i] || b < limit) continue;
            if (s->c[i] - slope * s->p->w[i] <= least) continue;        /* one always stays */
            s->alive[i] = false;
            s->cut_reduced = fmin(s->cut_reduced, b);
        }
    }
}

/* The slope at the relaxation's optimum: any subgradient there. */
static double multiplier(const solver *s)
{
    double x = s->rest_w[s->rest_min];
    if (x <= s->p->hi && x >= s->p->lo) return 0;
    x = x > s->p->hi ? s->p->hi : s->p->lo;
    for (uint32_t j = 1; j <= s->n_rest; j++)
        if (s->rest_w[j] >= x) return s->edges[s->rest_edge[j]].slope;
    return 0;
}

/* Coarse classes first: the fine ones fill what is left. */
static void choose_order(solver *s)
{
    state *v = (state *)(void *)s->edges;              /* not needed here: edges are built again after it; room for one a class is made */
    for (uint32_t k = 0; k < s->n; k++) {
        double least = INFINITY, before = -1;
        uint32_t n = 0;
        for (uint32_t i = s->p->first[k]; i < s->p->first[k + 1]; i++) {
            if (!s->alive[i]) continue;
            if (n++) least = fmin(least, s->p->w[i] - before);
            before = s->p->w[i];
        }
        v[k] = (state){ .bound = n > 1 ? -least : -INFINITY, .option = k };       /* decided already: at once */
    }
    qsort(v, s->n, sizeof *v, by_bound);
    for (uint32_t d = 0; d < s->n; d++) { s->order[d] = v[d].option; s->rank[v[d].option] = d; }
}

/* The least cost, by the relaxation, of completions that weigh x0 to x1. */
static double rest_between(const solver *s, double x0, double x1)
{
    if (x0 > x1 || x1 < s->rest_w[0] - s->eps_w || x0 > s->rest_w[s->n_rest] + s->eps_w) return INFINITY;
    const double x = fmin(fmax(s->rest_w[s->rest_min], x0), x1);
    uint32_t a = 0, b = s->n_rest;
    while (a < b) {                                    /* the first point at or after x */
        const uint32_t mid = a + (b - a) / 2;
        if (s->rest_w[mid] < x) a = mid + 1;
        else b = mid;
    }
    if (a == 0 || s->rest_w[a] <= x) return s->rest_c[a];
    return s->rest_c[a - 1] + (s->rest_c[a] - s->rest_c[a - 1]) * ((x - s->rest_w[a - 1]) / (s->rest_w[a] - s->rest_w[a - 1]));
}

/* y costs no less than x, another weight: is every completion of y in a window edge's shadow, where x's would miss the window, too dear? */
static bool shadowed(solver *s, const state *x, const state *y, double limit)
{
    const double b = y->c + (x->w < y->w ? rest_between(s, s->p->lo - y->w, s->p->lo - x->w) : rest_between(s, s->p->hi - x->w, s->p->hi - y->w));
    if (b < limit) return false;
    if (b < INFINITY) put_aside(s, b);
    return true;
}

/* Sorts by weight and drops dominated states.  A lighter state is as good as a heavier one of no less cost but for completions that only
 * the heavier one lifts to lo; a heavier one as good but for those that it carries beyond hi. */
static uint32_t prune(solver *s, state *v, uint32_t n)
{
    const double limit = s->p->found ? s->best - tolerance_of(s) : INFINITY;
    uint32_t kept = 0, best = 0;
    qsort(v, n, sizeof *v, by_weight);
    for (uint32_t i = 0; i < n; i++) {
        if (kept && v[i].c >= v[kept - 1].c && (v[i].w - v[kept - 1].w <= 1e-14 * v[i].w || shadowed(s, &v[kept - 1], &v[i], limit))) continue;
        if (kept && v[i].c >= v[best].c && best != kept - 1 && shadowed(s, &v[best], &v[i], limit)) continue;
        if (kept == 0 || v[i].c <= v[best].c) best = kept;
        v[kept++] = v[i];
    }
    uint32_t out = kept;
    best = kept;
    for (uint32_t i = kept; i-- > 0;) {
        if (out < kept && v[i].c >= v[out].c && shadowed(s, &v[out], &v[i], limit)) continue;
        if (out < kept && v[i].c >= v[best].c && best != out && shadowed(s, &v[best], &v[i], limit)) continue;
        v[--out] = v[i];
        if (best == kept || v[out].c <= v[best].c) best = out;
    }
    memmove(v, v + out, (kept - out) * sizeof *v);
    return kept - out;
}

/* Keeps the max_states of the least bounds, sorted by weight. */
static uint32_t select_best(solver *s, state *v, uint32_t n)
{
    if (n <= s->max_states) return n;
    qsort(v, n, sizeof *v, by_bound);
    put_aside(s, v[s->max_states].bound);
    s->p->complete = false;
    qsort(v, s->max_states, sizeof *v, by_weight);
    return s->max_states;
}

static void fill_from_trace(solver *s, uint32_t depth, uint32_t index)
{
    for (uint32_t d = depth; d-- > 0;) {
        s->at[s->order[d]] = s->traces[d][index].option;
        index = s->traces[d][index].parent;
    }
}

/* The children of `from` by the class of this depth, in *to (capacity cap, raised as needed). */
static hl_status branch(solver *s, uint32_t depth, const state *from, uint32_t n_from, state **to, uint32_t *cap, uint32_t *n_to)
{
    hl_status rc = HLLM_OK;
    const uint32_t k = s->order[depth];
    uint32_t n = 0;
    for (uint32_t i = s->p->first[k]; i < s->p->first[k + 1]; i++) {
        uint32_t hint = s->rest_min < s->n_rest ? s->rest_min : s->n_rest ? s->n_rest - 1 : 0;
        if (!s->alive[i]) continue;
        if (n > 4 * s->max_states) {
            n = select_best(s, *to, prune(s, *to, n));
            if (late(s)) { for (uint32_t j = 0; j < n_from; j++) put_aside(s, from[j].bound); s->p->complete = false; break; }       /* the rest of this depth */
        }
        if (n + n_from > *cap) {
            const size_t more = HL_MAX((size_t)*cap * 2, (size_t)n + n_from);
            if (more > UINT32_MAX / 2) { rc = HLLM_E_LIMIT; goto done; }
            state *bigger = hl_realloc(s->mem, *to, more * sizeof *bigger);
            HL_NEED(bigger);
            *to = bigger; *cap = (uint32_t)more;
        }
        const double limit = s->p->found ? s->best - tolerance_of(s) : INFINITY;
        for (uint32_t j = 0; j < n_from; j++) {
            const double w = from[j].w + s->p->w[i], c = from[j].c + s->c[i];
            if (w > s->p->hi + s->eps_w) break;
            const double b = c + rest_bound(s, w, &hint);
            if (b == INFINITY) continue;
            if (b >= limit) { put_aside(s, b); continue; }
            (*to)[n++] = (state){ w, c, b, j, i };
        }
    }
    *n_to = select_best(s, *to, prune(s, *to, n));
done:
    return rc;
}

static hl_status search(solver *s)
{
    hl_status rc = HLLM_OK;
    uint32_t cap_a = 64, cap_b = 64, n = 1;
    state *a = NULL, *b = NULL;
    HL_NEED(s->traces = hl_alloc_array(s->mem, s->n, sizeof *s->traces));
    HL_NEED(a = hl_alloc(s->mem, cap_a * sizeof *a));
    HL_NEED(b = hl_alloc(s->mem, cap_b * sizeof *b));
    a[0] = (state){ 0, s->offset, s->bound, 0, 0 };
    for (uint32_t d = 0; d < s->n; d++) {
        uint32_t n_new = 0;
        if (late(s)) { for (uint32_t i = 0; i < n; i++) put_aside(s, a[i].bound); s->p->complete = n == 0; goto done; }
        build_rest(s, d + 1);
        HL_TRY(branch(s, d, a, n, &b, &cap_b, &n_new));
        if (n_new == 0) goto done;
        HL_NEED(s->traces[d] = hl_alloc(s->mem, n_new * sizeof **s->traces));
        uint32_t top[3] = { 0, 0, 0 };
        for (uint32_t i = 0; i < n_new; i++) {
            s->traces[d][i] = (trace){ b[i].parent, b[i].option };
            if (b[i].bound < b[top[0]].bound) { top[2] = top[1]; top[1] = top[0]; top[0] = i; }
        }
        for (uint32_t t = 0; t < 3 && (t == 0 || top[t] != top[t - 1]); t++) {
            fill_from_trace(s, d + 1, top[t]);
            complete(s, d + 1, b[top[t]].w, b[top[t]].c);
        }
        state *swap = a; a = b; b = swap;
        const uint32_t cap = cap_a; cap_a = cap_b; cap_b = cap;
        n = n_new;
    }
    for (uint32_t i = 0; i < n; i++) { fill_from_trace(s, s->n, i); offer(s); }
done:
    for (uint32_t d = 0; s->traces && d < s->n; d++) hl_free(s->mem, s->traces[d]);
    hl_free(s->mem, s->traces);
    hl_free(s->mem, a);
    hl_free(s->mem, b);
    return rc;
}

double hl_mck_unit(const double *w, uint32_t n)
{
    uint64_t unit = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (w[i] != floor(w[i]) || w[i] > 9007199254740992.0) return 0;
        for (uint64_t x = unit == 1 ? 0 : (uint64_t)w[i]; x;) { const uint64_t r = unit % x; unit = x; x = r; }
    }
    return (double)unit;
}
double hl_mck_floor(double w, double unit) { return w < INFINITY ? floor(w / unit * (1 + 1e-13)) * unit : w; }
double hl_mck_ceil(double w, double unit) { return ceil(w / unit * (1 - 1e-13)) * unit; }

/* The relaxation becomes exact more often. */
static void shrink_window(hl_mck *p)
{
    const double unit = hl_mck_unit(p->w, p->first[p->n_classes]);
    if (unit <= 0) return;
    p->hi = hl_mck_floor(p->hi, unit);
    if (p->lo > 0) p->lo = hl_mck_ceil(p->lo, unit);
}

/* The relaxation's bound for all classes. */
static double relax(solver *s)
{
    uint32_t hint = 0;
    build_edges(s);
    build_rest(s, 0);
    return rest_bound(s, 0, &hint) + s->offset;
}

/* Passes of the search, each with more states; s->bound comes out, and tells on the way in how near the best plan is. */
static hl_status passes(solver *s, uint32_t from, uint32_t to)
{
    hl_status rc = HLLM_OK;
    hl_mck *p = s->p;
    for (uint32_t i = 0; i < s->n; i++) s->order[i] = s->rank[i] = i;
    double near = s->best - s->bound;
    const double root = s->bound = relax(s), slope = multiplier(s);
    s->deadline_ns = p->deadline_ns;
    for (uint32_t pass = from; pass < to; pass++) {
        s->cut = s->cut_reduced;
        if (p->found && root >= s->best - tolerance_of(s)) { s->cut = root; p->complete = true; break; }
        if (pass && late(s)) break;
        if (pass && s->max_states == p->max_states) break;
        s->max_states = pass == 2 ? p->max_states : HL_MIN(p->max_states, pass ? 3000u : 200u);
        /* Near enough already: what is left may be no more than the relaxation's own gap, which no search closes quickly. */
        if (pass && p->found && near <= NEAR * fabs(s->best)) s->deadline_ns = s->begin + NEAR_NS;
        if (p->deadline_ns && s->deadline_ns > p->deadline_ns) s->deadline_ns = p->deadline_ns;
        p->complete = true;
        s->bound = root;
        if (p->found) { reduce(s, slope); s->cut = s->cut_reduced; }
        choose_order(s);
        build_edges(s);
        HL_TRY(search(s));
        s->bound = fmax(root, fmin(s->best, s->cut));
        near = s->best - s->bound;
        if (p->complete || (p->found && near <= s->enough * fabs(s->best))) break;
    }
done:
    return rc;
}

/* ---- one branching on a number ---- */

/* How many classes take their special option, in the relaxation; parts count as parts. */
static double count_special(const solver *s, bool last)
{
    double x = s->rest_w[s->rest_min], sum = 0;
    x = fmin(fmax(x, s->p->lo), s->p->hi);
    for (uint32_t k = 0; k < s->n; k++) sum += s->base[k] == (last ? s->p->first[k + 1] - 1 : s->p->first[k]);
    for (uint32_t j = 1; j <= s->n_rest && s->rest_w[j - 1] < x; j++) {
        const edge *e = &s->edges[s->rest_edge[j]];
        const double part = s->rest_w[j] <= x ? 1 : (x - s->rest_w[j - 1]) / e->dw;
        if (last && e->to == s->p->first[e->k + 1] - 1) sum += part;
        if (!last && e->from == s->p->first[e->k]) sum -= part;
    }
    return sum;
}

static void charge(solver *s, bool last, double each, double n)
{
    for (uint32_t k = 0; k < s->n; k++) {
        const uint32_t i = last ? s->p->first[k + 1] - 1 : s->p->first[k];
        s->c[i] = s->p->c[i] + each;
    }
    s->offset = -each * n;
}

/* The relaxation can hide the price of a whole step that many classes take (a layer wholly on the GPU, a least share) behind a part of
 * one: at most n classes take it, or at least n + 1; in either half a charge per step raises the bound to what whole numbers cost. */
static hl_status split(solver *s, double *bound)
{
    hl_status rc = HLLM_OK;
    double x, least = INFINITY;
    const double reduced = s->cut_reduced;
    relax(s);
    x = fmin(fmax(s->rest_w[s->rest_min], s->p->lo), s->p->hi);
    uint32_t j = 1;
    while (j <= s->n_rest && s->rest_w[j] <= x) j++;
    if (j > s->n_rest || s->rest_w[j - 1] >= x) goto done;
    const edge e = s->edges[s->rest_edge[j]];
    const bool last = e.to == s->p->first[e.k + 1] - 1;
    if (!last && e.from != s->p->first[e.k]) goto done;
    const double n = floor(count_special(s, last));
    memcpy(s->kept, s->alive, s->p->first[s->n] * sizeof *s->kept);
    for (uint32_t side = 0; side < 2; side++) {        /* at most n; at least n + 1 */
        const double want = n + side, sign = side ? -1 : 1;
        double lo = 0, hi = fabs(s->best) / s->n * 1e-3, best = -INFINITY, best_each = 0;
        bool closed = false;
        for (uint32_t step = 0; step < SPLIT_STEPS && !late(s); step++) {
            const double each = closed ? lo + (hi - lo) / 2 : hi;
            charge(s, last, sign * each, want);
            const double b = relax(s), over = sign * (count_special(s, last) - want);
            if (b > best) { best = b; best_each = each; }
            if (over <= 0) { hi = each; closed = true; }
            else if (closed) lo = each;
            else { lo = each; hi = 4 * each; }
        }
        charge(s, last, sign * best_each, want);
        s->bound = -INFINITY;
        s->max_states = 0;
        HL_TRY(passes(s, 1, 2));
        least = fmin(least, s->bound);
        memcpy(s->alive, s->kept, s->p->first[s->n] * sizeof *s->kept);
        s->cut_reduced = reduced;
    }
    *bound = fmax(*bound, fmin(least, s->best));
done:
    charge(s, true, 0, 0);
    charge(s, false, 0, 0);
    return rc;
}

hl_status hl_mck_solve(hl_mem *mem, hl_mck *p)
{
    hl_status rc = HLLM_OK;
    const uint32_t n = p->n_classes, n_options = p->first[n];
    solver s = { .mem = mem, .p = p, .n = n, .best = INFINITY, .cut = INFINITY, .cut_reduced = INFINITY, .enough = p->enough > 0 ? p->enough : GOOD };
    uint32_t widest = 1;
    double bound;
    p->found = false; p->complete = true; p->cost = 0; p->bound = 0;
    shrink_window(p);
    s.eps_w = 1e-13 * fmax(1, fabs(p->hi) < INFINITY ? p->hi : 0);
    for (uint32_t k = 0; k < n; k++) widest = HL_MAX(widest, p->first[k + 1] - p->first[k]);
    HL_NEED(s.alive = hl_alloc_array(mem, n_options, sizeof *s.alive));
    HL_NEED(s.edges = hl_alloc_array(mem, (size_t)n_options + n + 1, HL_MAX(sizeof *s.edges, sizeof(state))));
    HL_NEED(s.hull = hl_alloc_array(mem, widest, sizeof *s.hull));
    HL_NEED(s.order = hl_alloc_array(mem, n, sizeof *s.order));
    HL_NEED(s.rank = hl_alloc_array(mem, n, sizeof *s.rank));
    HL_NEED(s.base = hl_alloc_array(mem, n, sizeof *s.base));
    HL_NEED(s.at = hl_alloc_array(mem, n, sizeof *s.at));
    HL_NEED(s.rest_w = hl_alloc_array(mem, (size_t)n_options + 2, sizeof *s.rest_w));
    HL_NEED(s.rest_c = hl_alloc_array(mem, (size_t)n_options + 2, sizeof *s.rest_c));
    HL_NEED(s.rest_edge = hl_alloc_array(mem, (size_t)n_options + 2, sizeof *s.rest_edge));
    HL_NEED(s.c = hl_alloc_array(mem, n_options, sizeof *s.c));
    HL_NEED(s.kept = hl_alloc_array(mem, n_options, sizeof *s.kept));
    memcpy(s.c, p->c, n_options * sizeof *s.c);
    for (uint32_t i = 0; i < n_options; i++) s.alive[i] = true;
    if (relax(&s) == INFINITY || p->lo > p->hi + s.eps_w) goto done;       /* not even parts of options fit */
    for (uint32_t k = 0; k < n; k++) s.order[k] = s.rank[k] = k;
    complete(&s, 0, 0, 0);
    s.begin = hl_now_ns();
    HL_TRY(passes(&s, 0, 2));
    bound = s.bound;
    if (!p->complete && p->found && s.best - bound > fmax(SPLIT, s.enough) * fabs(s.best) && !late(&s)) {
        HL_TRY(split(&s, &bound));
        p->complete = false;
    }
    if (!p->complete && !(p->found && s.best - bound <= s.enough * fabs(s.best))) {
        s.bound = bound;                               /* is it near enough already? */
        HL_TRY(passes(&s, 2, 3));
        bound = fmax(bound, s.bound);
    }
    s.bound = bound;
    if (p->found) {
        p->cost = s.best;
        p->bound = fmin(s.best, s.bound);
    } else p->bound = s.bound;
done:
    hl_free(mem, s.c); hl_free(mem, s.kept); hl_free(mem, s.alive); hl_free(mem, s.edges); hl_free(mem, s.hull); hl_free(mem, s.order); hl_free(mem, s.rank);
    hl_free(mem, s.base); hl_free(mem, s.at); hl_free(mem, s.rest_w); hl_free(mem, s.rest_c); hl_free(mem, s.rest_edge);
    return rc;
}
