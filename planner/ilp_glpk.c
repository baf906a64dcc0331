/* ilp_glpk.c: the planner's problems as integer programs for GLPK: a module of its own, libhybridllm-glpk.so, the only file that knows
 * GLPK or setjmp.  GLPK is GPL-3+: so is what this file is linked into; the core has no symbol of it.
 *
 * Neurons: per layer a block (the least share) and segments of the concave gain curve (impact), or three modes (time); few enough segments
 * that the curve is off by 1e-4 at most, what it is off by is taken from the bound.  The answer's real lengths are cut to whole batches and
 * then improved one layer at a time on the exact curves.  hl_plan_limits.per_batch: one binary per batch instead, as the paper has it.
 * Layers: per k one program with windows, GPU windows, overflow columns and the ring as a path; overlap has the token's time as a column.
 * Refused by name: several GPUs (a program of its own: which GPU is a layer's, in order; the built-in solver's branching on where runs of
 * layers begin has no counterpart here).  HLLM_E_TIMEOUT: nothing found in time or memory; so it is with budgets that leave a few neurons
 * of play only, which are sums of subsets to GLPK.
 *
 * GLPK ends the process when something is wrong inside it, prints, and keeps its state per thread.  So it runs on a thread of its own, with
 * the terminal off, an error hook that jumps out, a limit on memory and time, and its environment is freed in every case.  All memory of
 * ours is allocated before the thread starts: nothing leaks in a jump.
 */
#include <float.h>
#include <glpk.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "curve.h"
#include "planner.h"

#define CURVE_ERROR 1e-4                               /* of a layer's curve, relative to all gain */
#define GAP_NEURONS 1e-4                               /* equal layers make many equal plans: a smaller one costs seconds and gains nothing */
#define GAP_LAYERS 1e-6
enum { DEFAULT_MS = 2000, DEFAULT_MEMORY_MB = 512, MOST_CHOICES = 3000 };

typedef struct job {
    const hl_planner_core *core;
    hl_mem *mem;
    const hl_plan_limits *limits;
    hl_error *err;
    uint64_t deadline_ns;
    jmp_buf out;
    hl_status rc;
    const char *why;
    double bound; bool bounded;                        /* the best node's, from the last call back; at least the relaxation's is there */
    void (*build)(struct job *);                       /* runs on the thread */
    /* neurons */
    const hl_neuron_problem *np;
    hl_curve *layers;
    double *numbers, unit, cap, lo;
    uint64_t *counts;
    uint32_t *picked;                                  /* [n_layers] batches */
    int32_t *dense;                                    /* [n_dense] 0: on the GPU, -1: not */
    double *slack;                                     /* of the curve, per layer */
    uint32_t *corners;                                 /* scratch: [most batches + 1] */
    struct layer_columns *columns;                     /* [n_layers] */
    /* layers */
    const hl_layer_problem *lp;
    hl_layer_plan *plan;
    double *hops, best;                                /* of each arc; of all k, milliseconds */
    /* rows and columns under construction: room for the widest row */
    int *ind; double *val; uint32_t n_entries;
} job;

static const char out_of_time[] = "no plan in the time given";

/* ---- GLPK on its thread ---- */

static void on_error(void *info)
{
    job *j = info;
    longjmp(j->out, 1);
}

static int no_output(void *info, const char *s) { (void)info; (void)s; return 1; }

static void watch(glp_tree *tree, void *info)
{
    job *j = info;
    const int node = glp_ios_best_node(tree);
    if (node) j->bound = glp_ios_node_bound(tree, node);
    if (j->core->now_ns() > j->deadline_ns) glp_ios_terminate(tree);
}

static void *run(void *arg)
{
    job *j = arg;
    if (setjmp(j->out) == 0) {
        glp_error_hook(on_error, j);                   /* makes the environment, too */
        glp_term_hook(no_output, NULL);
        glp_term_out(GLP_OFF);
        glp_mem_limit(j->limits->glpk_memory_mb ? (int)j->limits->glpk_memory_mb : DEFAULT_MEMORY_MB);
        j->build(j);
    } else {
        j->rc = HLLM_E_TIMEOUT;
        j->why = "GLPK stopped inside (its memory limit, or numbers that it cannot take)";
    }
    glp_error_hook(NULL, NULL);
    glp_free_env();
    return NULL;
}

static hl_status on_thread(job *j)
{
    pthread_t thread;
    pthread_attr_t attr;
    sigset_t all, before;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, (size_t)8 << 20);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    const int failed = pthread_create(&thread, &attr, run, j);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (failed) return j->core->fail(j->err, HLLM_E_NOMEM, "no thread for GLPK can be started");
    pthread_join(thread, NULL);
    return j->rc == HLLM_OK ? HLLM_OK : j->core->fail(j->err, j->rc, "GLPK: %s", j->why ? j->why : out_of_time);
}

static int left_ms(const job *j)
{
    const uint64_t now = j->core->now_ns();
    if (now >= j->deadline_ns) return 1;
    const uint64_t ms = (j->deadline_ns - now) / 1000000;
    return ms < 1 ? 1 : ms > 3600000 ? 3600000 : (int)ms;
}

static void start(job *j, const hl_planner_core *core, hl_mem *mem, const hl_plan_limits *limits, hl_error *err)
{
    static const hl_plan_limits none;
    memset(j, 0, sizeof *j);
    j->core = core; j->mem = mem; j->err = err;
    j->limits = limits ? limits : &none;
    j->deadline_ns = core->now_ns() + (uint64_t)DEFAULT_MS * 1000000;
    if (j->limits->deadline_ns) j->deadline_ns = j->limits->deadline_ns;
}

/* Simplex, then branch and cut.  0: a plan (j->bound is set); else the reason. */
static const char *optimise(job *j, glp_prob *P)
{
    glp_smcp s;
    glp_iocp m;
    glp_init_smcp(&s);
    s.msg_lev = GLP_MSG_OFF; s.tm_lim = left_ms(j); s.presolve = GLP_OFF; s.meth = GLP_DUALP;
    glp_scale_prob(P, GLP_SF_GM | GLP_SF_EQ);
    glp_adv_basis(P, 0);
    const int rc = glp_simplex(P, &s);
    if (rc != 0) return rc == GLP_ETMLIM ? "the time was over during the relaxation" : "the relaxation could not be solved";
    if (glp_get_status(P) != GLP_OPT) return "no solution";
    j->bound = glp_get_obj_val(P);
    j->bounded = true;
    glp_init_iocp(&m);
    m.msg_lev = GLP_MSG_OFF; m.tm_lim = left_ms(j); m.mip_gap = j->np ? GAP_NEURONS : GAP_LAYERS; m.presolve = GLP_OFF; m.cb_func = watch; m.cb_info = j;
    m.br_tech = GLP_BR_DTH; m.bt_tech = GLP_BT_DFS; m.fp_heur = GLP_OFF; m.sr_heur = GLP_ON;
    const int mip = glp_intopt(P, &m);
    const int status = glp_mip_status(P);
    if (status != GLP_OPT && status != GLP_FEAS) return mip == 0 || status == GLP_NOFEAS ? "no solution" : out_of_time;
    const double z = glp_mip_obj_val(P);
    /* Finished, or near enough: then the bound may be older than that. */
    if ((mip == 0 || mip == GLP_EMIPGAP) && fabs(j->bound - z) > m.mip_gap * fabs(z)) j->bound = z * (1 + (glp_get_obj_dir(P) == GLP_MAX ? 1 : -1) * (z < 0 ? -1 : 1) * m.mip_gap);
    if (glp_get_obj_dir(P) == GLP_MAX ? j->bound < z : j->bound > z) j->bound = z;
    return NULL;
}

static int column(glp_prob *P, int kind, double lo, double hi, double cost)
{
    const int c = glp_add_cols(P, 1);
    glp_set_col_kind(P, c, kind);
    glp_set_col_bnds(P, c, hi == DBL_MAX ? (lo == -DBL_MAX ? GLP_FR : GLP_LO) : lo == hi ? GLP_FX : GLP_DB, lo, hi);
    glp_set_obj_coef(P, c, cost);
    return c;
}

static void entry(job *j, int c, double v) { j->n_entries++; j->ind[j->n_entries] = c; j->val[j->n_entries] = v; }

static void row(job *j, glp_prob *P, double lo, double hi)
{
    const int r = glp_add_rows(P, 1);
    glp_set_row_bnds(P, r, lo == -DBL_MAX ? (hi == DBL_MAX ? GLP_FR : GLP_UP) : hi == DBL_MAX ? GLP_LO : lo == hi ? GLP_FX : GLP_DB, lo, hi);
    glp_set_mat_row(P, r, (int)j->n_entries, j->ind, j->val);
    j->n_entries = 0;
}

/* ---- neurons ---- */

static double time_at(const hl_neuron_problem *p, const hl_curve *v, uint32_t n) { return n ? hl_curve_time(p, v, n, 0) : hl_curve_cpu_time(p, v); }

/* Whole numbers of bytes: the budgets, less what no set of batches can use. */
static void floor_budgets(job *j)
{
    const hl_neuron_problem *p = j->np;
    uint64_t unit = 0;
    for (uint32_t il = 0; il < p->n_layers; il++)
        for (uint32_t n = 1; n <= j->layers[il].n; n++) {
            if (!(j->layers[il].bytes[n] >= 0 && j->layers[il].bytes[n] <= HL_MAX_BYTES) || j->layers[il].bytes[n] != floor(j->layers[il].bytes[n])) return;
            for (uint64_t x = (uint64_t)j->layers[il].bytes[n]; x;) { const uint64_t r = unit % x; unit = x; x = r; }
        }
    for (uint32_t id = 0; p->objective != HL_OBJECTIVE_IMPACT && id < p->n_dense; id++) {
        if (!(p->dense[id].bytes >= 0 && p->dense[id].bytes <= HL_MAX_BYTES) || p->dense[id].bytes != floor(p->dense[id].bytes)) return;
        for (uint64_t x = (uint64_t)p->dense[id].bytes; x;) { const uint64_t r = unit % x; unit = x; x = r; }
    }
    if (unit < 1) return;
    j->cap = floor(j->cap / (double)unit * (1 + 1e-13)) * (double)unit;
    if (j->lo > 0) j->lo = ceil(j->lo / (double)unit * (1 - 1e-13)) * (double)unit;
}

/* Corners of a coarser curve from `from` to `to`, never further below the true one than the error: farthest point first. */
static uint32_t coarsen(const hl_curve *v, uint32_t from, uint32_t to, double error, uint32_t *out, double *worst)
{
    uint32_t n = 0, a = from;
    out[n++] = from;
    while (a < to) {
        uint32_t good = a + 1, bad = to + 1;           /* the longest chord that is near enough */
        double good_off = 0;
        for (uint32_t b = to; bad - good > 1; b = good + (bad - good) / 2) {
            double off = 0;
            for (uint32_t i = a + 1; i < b; i++) {
                const double chord = v->gain[a] + (v->gain[b] - v->gain[a]) * ((v->bytes[i] - v->bytes[a]) / (v->bytes[b] - v->bytes[a]));
                off = fmax(off, v->gain[i] - chord);
            }
            if (off <= error) { good = b; good_off = off; }
            else bad = b;
        }
        *worst = fmax(*worst, good_off);
        out[n++] = a = good;
    }
    return n;
}

/* Adds y (or the split mode's) segments from batch `from` on; their activations and bytes go through H and W. */
static void segments(job *j, glp_prob *P, const hl_curve *v, uint32_t from, int y, int *first, int *last, double error, double *worst)
{
    const uint32_t n = coarsen(v, from, v->n, error, j->corners, worst);
    *first = glp_get_num_cols(P) + 1;
    for (uint32_t i = 1; i < n; i++) {
        const double w = (v->bytes[j->corners[i]] - v->bytes[j->corners[i - 1]]) / j->unit;
        const int s = column(P, GLP_CV, 0, w, 0);
        entry(j, s, 1); entry(j, y, -w);
        row(j, P, -DBL_MAX, 0);
    }
    *last = glp_get_num_cols(P);
}

/* The slope of segment column s (first: the layer's first): activations per unit. */
static double slope(const job *j, const hl_curve *v, uint32_t i)
{
    const uint32_t a = j->corners[i], b = j->corners[i + 1];
    return (v->gain[b] - v->gain[a]) / ((v->bytes[b] - v->bytes[a]) / j->unit);
}

/* One layer or dense item at a time, on the exact curves, until nothing gets better and the window holds. */
static bool polish(job *j)
{
    const hl_neuron_problem *p = j->np;
    const bool impact = p->objective == HL_OBJECTIVE_IMPACT;
    double used = 0;
    for (uint32_t il = 0; il < p->n_layers; il++) used += j->layers[il].bytes[j->picked[il]];
    for (uint32_t id = 0; !impact && id < p->n_dense; id++) if (j->dense[id] >= 0) used += p->dense[id].bytes;
    const double hi = j->cap * (1 + 1e-13), lo = j->lo * (1 - 1e-13);
    for (uint32_t round = 0; round < 4 * (p->n_layers + p->n_dense) + 100; round++) {
        const bool fits = used >= lo && used <= hi;
        double best = 0, best_off = fits ? 0 : fmax(lo - used, used - hi);
        uint32_t best_l = UINT32_MAX, best_n = 0;
        for (uint32_t id = 0; !impact && id < p->n_dense; id++) {           /* as a layer of one batch, behind the others */
            const bool on = j->dense[id] >= 0;
            const double w = used + (on ? -1 : 1) * p->dense[id].bytes, off = fmax(0, fmax(lo - w, w - hi));
            const double saved = p->dense[id].touches * p->dense[id].bytes * (1 / p->cpu_bytes_per_s - 1 / p->gpus[0].bytes_per_s), gain = on ? -saved : saved;
            if (p->dense[id].bytes <= 0 || (off > 0 && (fits || off >= best_off))) continue;
            if (fits ? gain > best : off < best_off || (off <= best_off && (best_l == UINT32_MAX || gain > best))) {
                best = gain; best_l = p->n_layers + id;
                if (!fits) best_off = off;
            }
        }
        for (uint32_t il = 0; il < p->n_layers; il++) {
            const hl_curve *v = &j->layers[il];
            const double was = impact ? -v->gain[j->picked[il]] : time_at(p, v, j->picked[il]);
            for (uint32_t n = 0; n <= v->n; n = n == 0 ? v->least : n + 1) {
                const double w = used - v->bytes[j->picked[il]] + v->bytes[n], off = fmax(0, fmax(lo - w, w - hi)), gain = was - (impact ? -v->gain[n] : time_at(p, v, n));
                if (off > 0 && (fits || off >= best_off)) continue;
                if (fits ? gain > best + 1e-15 * fabs(was) : off < best_off || (off <= best_off && (best_l == UINT32_MAX || gain > best))) {
                    best = gain; best_l = il; best_n = n;
                    if (!fits) best_off = off;
                }
            }
        }
        if (best_l == UINT32_MAX) return fits;
        if (best_l >= p->n_layers) {
            int32_t *d = &j->dense[best_l - p->n_layers];
            used += (*d >= 0 ? -1 : 1) * p->dense[best_l - p->n_layers].bytes;
            *d = *d >= 0 ? -1 : 0;
            continue;
        }
        used += j->layers[best_l].bytes[best_n] - j->layers[best_l].bytes[j->picked[best_l]];
        j->picked[best_l] = best_n;
    }
    return used >= lo && used <= hi;
}

static uint32_t whole_batches(const hl_curve *v, double bytes)
{
    uint32_t n = 0;
    while (n < v->n && v->bytes[n + 1] <= bytes * (1 + 1e-9) + 1e-6) n++;
    return n;
}

/* Columns are remembered per layer: y or the three modes, then segments. */
typedef struct layer_columns { int y, cpu, full, first, last, t; } layer_columns;

static void build_neurons(job *j)
{
    const hl_neuron_problem *p = j->np;
    const bool impact = p->objective == HL_OBJECTIVE_IMPACT;
    glp_prob *P = glp_create_prob();
    layer_columns *const cols = j->columns;
    double total = 0, slack = 0;
    for (uint32_t il = 0; il < p->n_layers; il++) total += j->layers[il].gain[j->layers[il].n];
    glp_set_obj_dir(P, impact ? GLP_MAX : GLP_MIN);
    const double sync = p->gpus[0].sync_s;
    for (uint32_t il = 0; il < p->n_layers; il++) {
        const hl_curve *v = &j->layers[il];
        layer_columns *c = &cols[il];
        double worst = 0;
        const double error = CURVE_ERROR * total / p->n_layers;
        *c = (layer_columns){ 0 };
        if (impact) {
            if (v->least > v->n) continue;
            if (j->limits->per_batch) {
                c->first = glp_get_num_cols(P) + 1;
                for (uint32_t ib = 1; ib <= v->n; ib++) column(P, GLP_BV, 0, 1, v->gain[ib] - v->gain[ib - 1]);
                c->last = glp_get_num_cols(P);
                c->y = column(P, GLP_BV, 0, 1, 0);
                for (uint32_t ib = 1; ib <= v->n; ib++) entry(j, c->first + (int)ib - 1, 1);
                entry(j, c->y, -(double)v->least);
                row(j, P, 0, DBL_MAX);
                for (uint32_t ib = 1; ib <= v->n; ib++) entry(j, c->first + (int)ib - 1, 1);
                entry(j, c->y, -(double)v->n);
                row(j, P, -DBL_MAX, 0);
                continue;
            }
            c->y = column(P, GLP_BV, 0, 1, v->gain[v->least]);
            segments(j, P, v, v->least, c->y, &c->first, &c->last, error, &worst);
            for (int s = c->first; s <= c->last; s++) glp_set_obj_coef(P, s, slope(j, v, (uint32_t)(s - c->first)));
            slack += worst;
            continue;
        }
        const double slow = v->neuron_bytes / p->cpu_bytes_per_s, fast = v->neuron_bytes / p->gpus[0].bytes_per_s, A = v->gain[v->n];
        c->cpu = column(P, GLP_BV, 0, 1, time_at(p, v, 0) * 1e3);
        c->full = column(P, GLP_BV, 0, 1, time_at(p, v, v->n) * 1e3);
        c->y = column(P, GLP_BV, 0, 1, 0);
        c->t = column(P, GLP_CV, 0, DBL_MAX, 1);
        entry(j, c->cpu, 1); entry(j, c->full, 1); entry(j, c->y, 1);
        row(j, P, 1, 1);
        segments(j, P, v, 0, c->y, &c->first, &c->last, error, &worst);
        entry(j, c->t, 1); entry(j, c->y, -p->launch_s * 1e3);
        for (int s = c->first; s <= c->last; s++) entry(j, s, -fast * 1e3 * slope(j, v, (uint32_t)(s - c->first)));
        row(j, P, 0, DBL_MAX);
        entry(j, c->t, 1); entry(j, c->y, -(p->launch_s + slow * A + sync) * 1e3);
        for (int s = c->first; s <= c->last; s++) entry(j, s, slow * 1e3 * slope(j, v, (uint32_t)(s - c->first)));
        row(j, P, 0, DBL_MAX);
        slack += slow * worst * 1e3;
    }
    const int first_dense = glp_get_num_cols(P) + 1;
    double base = 0;
    for (uint32_t id = 0; !impact && id < p->n_dense; id++) {
        const double cpu = p->dense[id].touches * p->dense[id].bytes / p->cpu_bytes_per_s, gpu = p->dense[id].touches * p->dense[id].bytes / p->gpus[0].bytes_per_s;
        base += cpu * 1e3;
        column(P, GLP_BV, 0, p->dense[id].bytes > 0 ? 1 : 0, (gpu - cpu) * 1e3);
    }
    for (uint32_t il = 0; il < p->n_layers; il++) {
        const hl_curve *v = &j->layers[il];
        const layer_columns *c = &cols[il];
        if (!c->last && !c->y) continue;
        if (impact && !j->limits->per_batch) entry(j, c->y, v->bytes[v->least] / j->unit);
        if (!impact) entry(j, c->full, v->bytes[v->n] / j->unit);
        for (int s = c->first; s <= c->last; s++)
            entry(j, s, j->limits->per_batch ? (v->bytes[s - c->first + 1] - v->bytes[s - c->first]) / j->unit : 1);
    }
    for (uint32_t id = 0; !impact && id < p->n_dense; id++) entry(j, first_dense + (int)id, p->dense[id].bytes / j->unit);
    const bool empty = glp_get_num_cols(P) == 0;
    if (!empty) row(j, P, j->lo > 0 ? j->lo / j->unit : -DBL_MAX, j->cap / j->unit);
    glp_set_obj_coef(P, 0, base);
    j->why = empty ? NULL : optimise(j, P);
    if (empty) { j->bound = base; j->bounded = true; }
    /* What the coarser curves hide: the exact problem's best may be better by so much. */
    j->bound = impact ? j->bound + slack : (j->bound - slack) * 1e-3;
    if (j->why) { j->rc = HLLM_E_TIMEOUT; goto done; }
    for (uint32_t il = 0; il < p->n_layers; il++) {
        const hl_curve *v = &j->layers[il];
        const layer_columns *c = &cols[il];
        double bytes = 0;
        j->picked[il] = 0;
        if (c->full && glp_mip_col_val(P, c->full) > 0.5) { j->picked[il] = v->n; continue; }
        if (!c->y || glp_mip_col_val(P, c->y) < 0.5) continue;
        if (j->limits->per_batch) {
            uint32_t n = 0;
            for (int s = c->first; s <= c->last; s++) n += glp_mip_col_val(P, s) > 0.5;
            j->picked[il] = n < v->least ? v->least : n;
            continue;
        }
        for (int s = c->first; s <= c->last; s++) bytes += glp_mip_col_val(P, s) * j->unit;
        j->picked[il] = impact ? whole_batches(v, bytes + v->bytes[v->least]) : whole_batches(v, bytes);
    }
    for (uint32_t id = 0; !impact && id < p->n_dense; id++) j->dense[id] = glp_mip_col_val(P, first_dense + (int)id) > 0.5 ? 0 : -1;
done:
    glp_delete_prob(P);
}

/* The exact problem, a binary per length of every layer: for problems small enough, where cutting real lengths to whole batches costs. */
static void build_choices(job *j)
{
    const hl_neuron_problem *p = j->np;
    const bool impact = p->objective == HL_OBJECTIVE_IMPACT;
    glp_prob *P = glp_create_prob();
    glp_set_obj_dir(P, impact ? GLP_MAX : GLP_MIN);
    double scale = impact ? 1 : 1e3;
    for (uint32_t il = 0; il < p->n_layers; il++) {
        const hl_curve *v = &j->layers[il];
        j->columns[il].first = glp_get_num_cols(P) + 1;
        for (uint32_t n = 0; n <= v->n; n = n == 0 ? v->least : n + 1) column(P, GLP_BV, 0, 1, scale * (impact ? v->gain[n] : time_at(p, v, n)));
        j->columns[il].last = glp_get_num_cols(P);
        for (int c = j->columns[il].first; c <= j->columns[il].last; c++) entry(j, c, 1);
        row(j, P, 1, 1);
    }
    const int first_dense = glp_get_num_cols(P) + 1;
    double base = 0;
    for (uint32_t id = 0; !impact && id < p->n_dense; id++) {
        const double cpu = p->dense[id].touches * p->dense[id].bytes / p->cpu_bytes_per_s, gpu = p->dense[id].touches * p->dense[id].bytes / p->gpus[0].bytes_per_s;
        base += cpu * scale;
        column(P, GLP_BV, 0, p->dense[id].bytes > 0 ? 1 : 0, (gpu - cpu) * scale);
    }
    glp_set_obj_coef(P, 0, base);
    for (uint32_t il = 0; il < p->n_layers; il++) {
        const hl_curve *v = &j->layers[il];
        int c = j->columns[il].first;
        for (uint32_t n = 0; n <= v->n; n = n == 0 ? v->least : n + 1, c++) entry(j, c, v->bytes[n] / j->unit);
    }
    for (uint32_t id = 0; !impact && id < p->n_dense; id++) entry(j, first_dense + (int)id, p->dense[id].bytes / j->unit);
    row(j, P, j->lo > 0 ? j->lo / j->unit : -DBL_MAX, j->cap / j->unit);
    j->why = optimise(j, P);
    if (j->why) j->rc = HLLM_E_TIMEOUT;
    for (uint32_t il = 0; !j->why && il < p->n_layers; il++) {
        const hl_curve *v = &j->layers[il];
        int c = j->columns[il].first;
        for (uint32_t n = 0; n <= v->n; n = n == 0 ? v->least : n + 1, c++) if (glp_mip_col_val(P, c) > 0.5) j->picked[il] = n;
    }
    for (uint32_t id = 0; !j->why && !impact && id < p->n_dense; id++) j->dense[id] = glp_mip_col_val(P, first_dense + (int)id) > 0.5 ? 0 : -1;
    j->bound /= scale;
    glp_delete_prob(P);
}

static double value_of(const job *j)
{
    const hl_neuron_problem *p = j->np;
    double value = 0;
    for (uint32_t il = 0; il < p->n_layers; il++)
        value += p->objective == HL_OBJECTIVE_IMPACT ? j->layers[il].gain[j->picked[il]] : time_at(p, &j->layers[il], j->picked[il]);
    for (uint32_t id = 0; p->objective != HL_OBJECTIVE_IMPACT && id < p->n_dense; id++)
        value += p->dense[id].touches * p->dense[id].bytes / (j->dense[id] < 0 ? p->cpu_bytes_per_s : p->gpus[0].bytes_per_s);
    return value;
}

static hl_status read_layers(job *j)
{
    hl_status rc = HLLM_OK;
    const hl_neuron_problem *p = j->np;
    size_t n = 0, widest = 0;
    for (uint32_t il = 0; il < p->n_layers; il++) { n += p->layers[il].n_batches + 1; widest = HL_MAX(widest, p->layers[il].n_batches + 1); }
    const size_t entries = 2 * n + 5 * (size_t)p->n_layers + p->n_dense + 16;
    hl_heat *h = NULL;
    HL_NEED(j->layers = j->core->alloc(j->mem, p->n_layers * sizeof *j->layers));
    HL_NEED(j->numbers = j->core->alloc(j->mem, 2 * n * sizeof *j->numbers));
    HL_NEED(j->counts = j->core->alloc(j->mem, n * sizeof *j->counts));
    HL_NEED(j->picked = j->core->alloc(j->mem, p->n_layers * sizeof *j->picked));
    HL_NEED(j->dense = j->core->alloc(j->mem, (p->n_dense + 1) * sizeof *j->dense));
    HL_NEED(j->corners = j->core->alloc(j->mem, widest * sizeof *j->corners));
    HL_NEED(j->columns = j->core->alloc(j->mem, p->n_layers * sizeof *j->columns));
    HL_NEED(j->ind = j->core->alloc(j->mem, entries * sizeof *j->ind));
    HL_NEED(j->val = j->core->alloc(j->mem, entries * sizeof *j->val));
    HL_NEED(h = j->core->alloc(j->mem, widest * sizeof *h));
    double *d = j->numbers;
    uint64_t *c = j->counts;
    for (uint32_t il = 0; il < p->n_layers; il++) {
        const hl_neuron_layer *l = &p->layers[il];
        const uint32_t B = l->n_batches;
        hl_curve *v = &j->layers[il];
        *v = (hl_curve){ .gain = d, .bytes = d + B + 1, .count = c };
        d += 2 * (B + 1); c += B + 1;
        hl_curve_fill(l, h, v);
        if (p->objective == HL_OBJECTIVE_IMPACT) v->least = hl_curve_least(p, v, 0);
    }
done:
    j->core->free(j->mem, h);
    return rc;
}

static void free_job(job *j)
{
    void *const blocks[] = { j->layers, j->numbers, j->counts, j->picked, j->dense, j->corners, j->columns, j->ind, j->val, j->hops };
    for (uint32_t i = 0; i < HL_COUNT(blocks); i++) j->core->free(j->mem, blocks[i]);
}

static hl_status neurons(const hl_planner_core *core, hl_mem *mem, const hl_neuron_problem *p, const hl_plan_limits *limits, hl_neuron_plan *plan, hl_error *err)
{
    hl_status rc = HLLM_OK;
    job *j = NULL;
    const bool impact = p->objective == HL_OBJECTIVE_IMPACT;
    const uint64_t begin = core->now_ns();
    double total = 0, value = 0;
    if (p->n_gpus > 1) return core->fail(err, HLLM_E_UNSUPPORTED, "the GLPK module does not model gpus: several of them");
    if (p->method != HL_METHOD_EXACT) return core->fail(err, HLLM_E_UNSUPPORTED, "the GLPK module knows only method exact");
    HL_NEED(j = core->alloc(mem, sizeof *j));
    start(j, core, mem, limits, err);
    j->np = p;
    j->build = build_neurons;
    HL_TRY(read_layers(j));
    j->cap = p->gpus[0].budget_bytes;
    for (uint32_t il = 0; il < p->n_layers; il++) total += j->layers[il].bytes[j->layers[il].n];
    double on_gpu = 0;
    for (uint32_t id = 0; id < p->n_dense; id++) {
        total += p->dense[id].bytes;
        j->dense[id] = -1;
        if (!impact || p->gpus[0].bytes_per_s <= p->cpu_bytes_per_s || p->dense[id].bytes > j->cap) continue;
        j->dense[id] = 0;
        j->cap -= p->dense[id].bytes;
        on_gpu += p->dense[id].bytes;
    }
    j->lo = fmax(0, total - p->cpu_budget_bytes * (1 + HL_BUDGET_SLACK / 2) - on_gpu);
    floor_budgets(j);
    j->unit = p->layers[0].batch_bytes;
    rc = on_thread(j);
    if (rc == HLLM_E_TIMEOUT && j->bounded && strcmp(j->why, out_of_time) == 0) {          /* its bound, and a plan from nothing */
        for (uint32_t il = 0; il < p->n_layers; il++) j->picked[il] = 0;
        for (uint32_t id = 0; !impact && id < p->n_dense; id++) j->dense[id] = -1;
        rc = j->rc = HLLM_OK;
    }
    HL_TRY(rc);
    bool fits = polish(j);
    value = value_of(j);
    uint64_t options = 0;
    for (uint32_t il = 0; il < p->n_layers; il++) options += p->layers[il].n_batches + 1;
    if (!j->limits->per_batch && options <= MOST_CHOICES && (!fits || fabs(value - j->bound) > 3e-4 * fabs(value))) {
        const double first_bound = j->bound;
        j->build = build_choices;
        j->err = NULL;
        rc = on_thread(j);
        j->err = err;
        if (rc != HLLM_OK && (rc != HLLM_E_TIMEOUT || !fits)) { rc = core->fail(err, rc, "GLPK: %s", j->why ? j->why : out_of_time); goto done; }
        if (rc != HLLM_OK) j->bound = first_bound;     /* no time for it: the first plan stands */
        rc = HLLM_OK;
        fits = polish(j);
        value = value_of(j);
    }
    if (!fits) { rc = core->fail(err, HLLM_E_TIMEOUT, "GLPK: its plan cannot be cut to whole batches within both budgets"); goto done; }
    for (uint32_t il = 0; il < p->n_layers; il++) {
        plan->n_gpu[il] = j->layers[il].count[j->picked[il]];
        plan->gpu_of_layer[il] = j->picked[il] ? 0 : -1;
    }
    for (uint32_t id = 0; id < p->n_dense; id++) plan->gpu_of_dense[id] = j->dense[id];
    double all = 0;                                    /* what counts as nothing */
    for (uint32_t il = 0; il < p->n_layers; il++) all += impact ? j->layers[il].gain[j->layers[il].n] : time_at(p, &j->layers[il], 0);
    if (fabs(value - j->bound) <= 1e-9 * all) j->bound = value;
    plan->objective = value;
    plan->bound = impact ? fmax(value, j->bound) : fmin(value, j->bound);
    plan->gap = plan->objective == plan->bound ? 0 : plan->bound == 0 ? 1 : fabs(value - plan->bound) / fabs(plan->bound);
    plan->solve_s = (double)(core->now_ns() - begin) * 1e-9;
done:
    if (j) free_job(j);
    core->free(mem, j);
    return rc;
}

/* ---- layers ---- */

typedef struct ring_columns { int w, n, used, over, stall, buffer, small, reload; } ring_columns;

/* One k: the windows of the best ring below `limit` milliseconds, false when there is none.  In units of a layer and milliseconds. */
static bool build_ring(job *j, uint32_t k, double limit, double *found)
{
    const hl_layer_problem *p = j->lp;
    const uint32_t M = p->n_devices, W = p->n_layers / k;
    const double each = p->layer_bytes + p->kv_bytes_per_layer, table_row = p->input_bytes / p->n_vocab;
    const bool overlap = p->latency == HL_LATENCY_OVERLAP;
    ring_columns col[HL_MAX_RING_DEVICES];
    glp_prob *P = glp_create_prob();
    glp_set_obj_dir(P, GLP_MIN);
    memset(col, 0, sizeof col);
    const double cost1 = overlap ? 0 : 1;              /* in overlap T alone is the objective, and the costs are in its row */
    const int T = overlap ? column(P, GLP_CV, 0, limit < DBL_MAX ? limit : DBL_MAX, 1) : 0;
    for (uint32_t m = 0; m < M; m++) {
        const hl_ring_device *d = &p->devices[m];
        const bool mac = d->os == HL_OS_MACOS || d->os == HL_OS_METAL, metal = d->os == HL_OS_METAL;
        const double room = d->os == HL_OS_MACOS ? 0 : fmax(0, d->vram_bytes - d->gpu_buffer_bytes - (m == 0 && metal ? p->output_bytes : 0));
        const double ram = d->ram_bytes + (d->os == HL_OS_ANDROID ? d->swap_bytes : 0), io = m == 0 ? table_row + p->output_bytes : 0;
        const double fixed = (io + d->cpu_buffer_bytes + (metal ? d->gpu_buffer_bytes : 0) - ram) / each;       /* in layers; negative: room */
        const double per_layer = each / d->disk_bytes_per_s * 1e3;
        ring_columns *c = &col[m];
        c->w = column(P, GLP_IV, 0, W, cost1 * k * d->alpha_s * 1e3);
        c->n = column(P, GLP_IV, 0, fmin(W, floor(room / (each * k) * (1 + HL_BUDGET_SLACK / 2))), cost1 * k * d->beta_s * 1e3);
        c->used = m ? column(P, GLP_BV, 0, 1, 0) : 0;
        entry(j, c->n, 1); entry(j, c->w, -1);
        row(j, P, -DBL_MAX, 0);
        if (m) {
            entry(j, c->w, 1); entry(j, c->used, -(double)W);
            row(j, P, -DBL_MAX, 0);
            entry(j, c->w, 1); entry(j, c->used, -1);
            row(j, P, 0, DBL_MAX);
        }
        /* over >= k (w - n) + fixed, in layers; a device that is not used overflows by nothing */
        const double rest = m && fixed > 0 ? fixed : 0;
        c->over = column(P, GLP_CV, 0, DBL_MAX, overlap || metal ? 0 : per_layer);
        entry(j, c->over, 1); entry(j, c->w, -(double)k);
        if (!mac) entry(j, c->n, k);
        if (rest > 0) entry(j, c->used, -rest);
        row(j, P, rest > 0 ? 0 : fixed, DBL_MAX);
        if (overlap) {
            c->stall = column(P, GLP_CV, 0, DBL_MAX, 0);
            entry(j, T, 1); entry(j, c->over, -per_layer);                  /* the disk keeps up */
            row(j, P, 0, DBL_MAX);
            if (k > 1) {
                const double o = m ? p->devices[0].output_s * 1e3 : 0, R = fmax(0, -fixed);
                c->buffer = column(P, GLP_CV, 0, R, 0);
                /* B <= s (T - o) - D.  Where that is below 0 the formula has B = 0; but then T >= o + D / s by the stall's own row. */
                entry(j, c->buffer, per_layer); entry(j, T, -1); entry(j, c->over, per_layer);
                row(j, P, -DBL_MAX, -o);
            }
            entry(j, c->stall, 1); entry(j, c->over, -per_layer); entry(j, c->w, k * d->alpha_s * 1e3); entry(j, c->n, k * d->beta_s * 1e3);
            if (c->buffer) entry(j, c->buffer, (k - 1) * per_layer);
            row(j, P, m ? 0 : -p->devices[0].output_s * 1e3, DBL_MAX);
        } else if (metal) {                            /* all of it is read again as soon as anything overflows */
            const double most = fmax(0, (double)p->n_layers + fixed), all = (p->n_layers * p->layer_bytes + io) / d->disk_bytes_per_s * 1e3;
            c->small = column(P, GLP_BV, 0, 1, 0);
            c->reload = column(P, GLP_CV, 0, DBL_MAX, 1);
            entry(j, c->over, 1); entry(j, c->small, -most);
            row(j, P, -DBL_MAX, 0);
            entry(j, c->reload, 1); entry(j, c->w, -(k * p->layer_bytes / d->disk_bytes_per_s * 1e3)); entry(j, c->small, -all);
            row(j, P, io / d->disk_bytes_per_s * 1e3 - all, DBL_MAX);
            if (m == 0) glp_set_col_bnds(P, c->reload, GLP_LO, table_row / d->disk_bytes_per_s * 1e3, 0);
        } else if (m == 0) glp_set_col_bnds(P, c->over, GLP_LO, table_row / each, 0);
    }
    for (uint32_t m = 0; m < M; m++) entry(j, col[m].w, 1);
    row(j, P, W, W);
    /* The ring: a path from the head through the used devices in order, and back.  An arc's cost is its hop; the head alone has none. */
    const int first_arc = glp_get_num_cols(P) + 1;
    for (uint32_t a = 0; a < M; a++) {
        double reach[2 * HL_MAX_RING_DEVICES];
        reach[0] = 0;
        for (uint32_t b = a + 1; b <= M; b++) {
            double hop = p->devices[a].hop_s;
            if (p->links) {
                hop = DBL_MAX;
                for (uint32_t h = a; h < b; h++) {
                    const double link = p->links[h * M + b % M];
                    if (link >= 0 && reach[h - a] < DBL_MAX) hop = fmin(hop, reach[h - a] + link);
                }
                reach[b - a] = hop;
            }
            if (a == 0 && b == M) hop = 0;
            column(P, GLP_CV, 0, hop == DBL_MAX ? 0 : 1, hop == DBL_MAX ? 0 : cost1 * k * hop * 1e3);
            if (overlap) j->hops[glp_get_num_cols(P) - first_arc] = hop == DBL_MAX ? 0 : k * hop * 1e3;
        }
    }
    for (uint32_t b = 0; b <= M; b++) {                /* into b as often as it is used (once: M is the head's end), out of b likewise */
        for (int way = 0; way < 2; way++) {
            int at = first_arc;
            if ((b == 0 && way == 0) || (b == M && way == 1)) continue;
            for (uint32_t x = 0; x < M; x++)
                for (uint32_t y = x + 1; y <= M; y++, at++) if (way ? x == b : y == b) entry(j, at, 1);
            if (b && b < M) entry(j, col[b].used, -1);
            row(j, P, b && b < M ? 0 : 1, b && b < M ? 0 : 1);
        }
    }
    const double output = p->devices[0].output_s * 1e3;
    if (overlap) {
        entry(j, T, 1);
        for (uint32_t m = 0; m < M; m++) {
            entry(j, col[m].w, -(k * p->devices[m].alpha_s * 1e3)); entry(j, col[m].n, -(k * p->devices[m].beta_s * 1e3)); entry(j, col[m].stall, -1);
        }
        for (int at = first_arc; at <= glp_get_num_cols(P); at++) if (j->hops[at - first_arc] > 0) entry(j, at, -j->hops[at - first_arc]);
        row(j, P, output, DBL_MAX);
    } else {
        glp_set_obj_coef(P, 0, output);
        if (limit < DBL_MAX) {
            for (int c = 1; c <= glp_get_num_cols(P); c++) if (glp_get_obj_coef(P, c) != 0) entry(j, c, glp_get_obj_coef(P, c));
            row(j, P, -DBL_MAX, limit - output);
        }
    }
    const char *why = optimise(j, P);
    if (!why && glp_mip_obj_val(P) > limit * (1 + 5e-7)) why = "no solution";
    if (!why) {
        j->plan->k = k;
        for (uint32_t m = 0; m < M; m++) {
            j->plan->layers[m] = k * (uint32_t)floor(glp_mip_col_val(P, col[m].w) + 0.5);
            j->plan->gpu_layers[m] = k * (uint32_t)floor(glp_mip_col_val(P, col[m].n) + 0.5);
        }
        *found = glp_mip_obj_val(P);
    } else j->why = why;
    glp_delete_prob(P);
    return !why;
}

static void build_rings(job *j)
{
    const hl_layer_problem *p = j->lp;
    double best = DBL_MAX, bound = DBL_MAX, found;
    bool complete = true;
    for (uint32_t k = p->k ? p->k : 1; k <= (p->k ? p->k : p->n_layers); k++) {
        if (p->n_layers % k) continue;
        if (j->core->now_ns() > j->deadline_ns) { complete = false; break; }
        j->bound = 0;
        /* A larger k has to be better by more than GLPK keeps its rows to. */
        const double limit = best < DBL_MAX ? best * (1 - 1e-6) : DBL_MAX;
        if (build_ring(j, k, limit, &found)) { best = fmin(best, found); bound = fmin(bound, j->bound); }
        else if (best < DBL_MAX && strcmp(j->why, "no solution") == 0) bound = fmin(bound, limit);
        else if (strcmp(j->why, "no solution") != 0) { bound = fmin(bound, j->bound); complete = false; }
    }
    if (best == DBL_MAX) { j->rc = HLLM_E_TIMEOUT; return; }
    j->best = best;
    j->bound = complete ? fmin(bound, best) : fmin(bound, 0);
}

static hl_status layers(const hl_planner_core *core, hl_mem *mem, const hl_layer_problem *p, const hl_plan_limits *limits, hl_layer_plan *plan, hl_error *err)
{
    hl_status rc = HLLM_OK;
    job *j = NULL;
    const uint64_t begin = core->now_ns();
    const size_t arcs = (size_t)p->n_devices * (p->n_devices + 1) / 2, entries = arcs + 10 * (size_t)p->n_devices + 64;
    if (p->method != HL_METHOD_EXACT) return core->fail(err, HLLM_E_UNSUPPORTED, "the GLPK module knows only method exact");
    HL_NEED(j = core->alloc(mem, sizeof *j));
    start(j, core, mem, limits, err);
    j->lp = p; j->plan = plan;
    j->build = build_rings;
    HL_NEED(j->ind = core->alloc(mem, entries * sizeof *j->ind));
    HL_NEED(j->val = core->alloc(mem, entries * sizeof *j->val));
    HL_NEED(j->hops = core->alloc(mem, (arcs + 1) * sizeof *j->hops));
    HL_TRY(on_thread(j));
    plan->bound = j->bound * 1e-3;
    plan->objective = j->best * 1e-3;
    plan->solve_s = (double)(core->now_ns() - begin) * 1e-9;
done:
    if (j) free_job(j);
    core->free(mem, j);
    return rc;
}

/* ---- the module ---- */

__attribute__((visibility("default"))) bool hllm_planner_module(const hl_planner_core *core, hl_planner_module *out);
bool hllm_planner_module(const hl_planner_core *core, hl_planner_module *out)
{
    if (core->abi != HL_PLANNER_MODULE_ABI) return false;
    *out = (hl_planner_module){ HL_PLANNER_MODULE_ABI, "glpk", core, neurons, layers };
    return true;
}
