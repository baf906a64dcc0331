/* solve.c: one call per problem: checks it, lets the built-in solver, the GLPK module or both answer, and has every answer verified by
 * check.c before it goes out.  Methods that exist for comparison get the exact method's bound, so that their gap says how far off they are.
 */
#include "planner.h"

#include <math.h>
#include <string.h>

#define AGREE 1e-9                                     /* a solver's own objective against check.c's; and what counts as better */
#define AGREE_GLPK 1e-5                                /* its simplex keeps rows to about 1e-7 */

static const char name_glpk[] = "glpk";                /* ours: the module's own text goes when it is closed */

static hl_status differs(const char *solver, double said, double is, hl_error *err)
{
    char a[32], b[32];
    return hl_fail(err, HLLM_E_INTERNAL, "the %s solver says %s of its plan, checking it gives %s", solver, hl_text_f64(said, a), hl_text_f64(is, b));
}

static bool agree(double a, double b, bool glpk) { return fabs(a - b) <= (glpk ? AGREE_GLPK : AGREE) * fmax(fabs(a), fabs(b)) + 1e-15; }

static void copy_neuron_plan(const hl_neuron_problem *p, const hl_neuron_plan *from, hl_neuron_plan *to)
{
    hl_neuron_plan x = *from;
    x.n_gpu = to->n_gpu; x.gpu_of_layer = to->gpu_of_layer; x.gpu_of_dense = to->gpu_of_dense; x.hot_active = to->hot_active;
    memcpy(x.n_gpu, from->n_gpu, p->n_layers * sizeof *x.n_gpu);
    memcpy(x.hot_active, from->hot_active, p->n_layers * sizeof *x.hot_active);
    memcpy(x.gpu_of_layer, from->gpu_of_layer, p->n_layers * sizeof *x.gpu_of_layer);
    if (p->n_dense) memcpy(x.gpu_of_dense, from->gpu_of_dense, p->n_dense * sizeof *x.gpu_of_dense);
    *to = x;
}

/* A second opinion on what is proven already may take a moment, on what is not two seconds. */
static hl_plan_limits for_second(const hl_plan_limits *limits, double gap)
{
    hl_plan_limits s = limits ? *limits : (hl_plan_limits){ 0 };
    const uint64_t until = hl_now_ns() + (gap <= 1e-6 ? 300000000u : 2000000000u);
    s.deadline_ns = s.deadline_ns ? HL_MIN(s.deadline_ns, until) : until;
    return s;
}

/* GLPK's plan beside the built-in one: the better plan and the tighter bound of both. */
static hl_status second_opinion(hl_mem *mem, const hl_neuron_problem *p, const hl_plan_limits *limits, const hl_planner_module *glpk, hl_neuron_plan *plan)
{
    hl_status rc = HLLM_OK;
    hl_neuron_plan *other = NULL;
    const double sign = p->objective == HL_OBJECTIVE_IMPACT ? -1 : 1;
    HL_TRY(hl_neuron_plan_new(mem, p, &other));
    const hl_plan_limits short_limits = for_second(limits, plan->gap);
    rc = glpk->neurons(glpk->core, mem, p, &short_limits, other, NULL);
    if (rc != HLLM_OK || hl_neuron_plan_value(mem, p, other, NULL) != HLLM_OK) { rc = rc == HLLM_E_NOMEM ? rc : HLLM_OK; goto done; }
    other->solver = name_glpk;
    const double bound = sign * fmax(sign * plan->bound, fmin(sign * other->bound, sign * plan->objective)), solve_s = plan->solve_s + other->solve_s;
    if (sign * other->objective < sign * plan->objective - AGREE * fabs(plan->objective)) copy_neuron_plan(p, other, plan);
    plan->bound = bound;
    plan->gap = hl_plan_gap(plan->objective, bound);
    plan->solve_s = solve_s;
done:
    hl_neuron_plan_free(mem, other);
    return rc;
}

static hl_status exact_bound(hl_mem *mem, const hl_neuron_problem *p, const hl_plan_limits *limits, hl_neuron_plan *plan)
{
    hl_status rc = HLLM_OK;
    hl_neuron_plan *best = NULL;
    hl_neuron_problem exact = *p;
    exact.method = HL_METHOD_EXACT;
    HL_TRY(hl_neuron_plan_new(mem, &exact, &best));
    if (hl_neuron_solve(mem, &exact, limits, best, NULL, NULL) != HLLM_OK) goto done;
    plan->bound = p->objective == HL_OBJECTIVE_IMPACT ? fmax(best->bound, plan->objective) : fmin(best->bound, plan->objective);
    plan->gap = hl_plan_gap(plan->objective, plan->bound);
done:
    hl_neuron_plan_free(mem, best);
    return rc;
}

hl_status hl_plan_neurons(hl_mem *mem, const hl_neuron_problem *p, uint32_t solver, const hl_planner_module *glpk, const hl_plan_limits *limits,
                          hl_neuron_plan *plan, hl_plan_shortage *shortage, hl_error *err)
{
    hl_status rc = HLLM_OK;
    HL_TRY(hl_neuron_problem_check(p, err));
    const bool only_glpk = solver == HL_SOLVER_GLPK && p->method == HL_METHOD_EXACT;
    if (only_glpk && !glpk) { rc = hl_fail(err, HLLM_E_NOT_FOUND, "there is no GLPK module"); goto done; }
    if (only_glpk) {
        rc = glpk->neurons(glpk->core, mem, p, limits, plan, err);
        /* Impossible, or just not found?  The built-in solver knows, and has the numbers; it gets a time of its own. */
        hl_plan_limits moment = limits ? *limits : (hl_plan_limits){ 0 };
        moment.deadline_ns = hl_now_ns() + 1000000000u;
        if (rc == HLLM_E_TIMEOUT && hl_neuron_solve(mem, p, &moment, plan, shortage, NULL) == HLLM_E_NOMEM) rc = hl_neuron_solve(mem, p, &moment, plan, shortage, err);
        if (rc != HLLM_OK) goto done;
    } else HL_TRY(hl_neuron_solve(mem, p, limits, plan, shortage, err));
    if (only_glpk) plan->solver = name_glpk;
    const double said = plan->objective;
    HL_TRY(hl_neuron_plan_value(mem, p, plan, err));
    if (!agree(said, plan->objective, only_glpk)) { rc = differs(plan->solver, said, plan->objective, err); goto done; }
    plan->gap = hl_plan_gap(plan->objective, plan->bound);
    if (p->method == HL_METHOD_PAPER) HL_TRY(exact_bound(mem, p, limits, plan));
    else if (solver == HL_SOLVER_AUTO && glpk) HL_TRY(second_opinion(mem, p, limits, glpk, plan));
done:
    return rc;
}

hl_status hl_plan_layers(hl_mem *mem, const hl_layer_problem *p, uint32_t solver, const hl_planner_module *glpk, const hl_plan_limits *limits,
                         hl_layer_plan *plan, hl_error *err)
{
    hl_status rc = HLLM_OK;
    hl_layer_plan other;
    memset(plan, 0, sizeof *plan);
    HL_TRY(hl_layer_problem_check(p, err));
    if (p->method == HL_METHOD_HALDA || p->method == HL_METHOD_MEMORY) {
        hl_layer_problem exact = *p;
        memset(&other, 0, sizeof other);
        HL_TRY(p->method == HL_METHOD_HALDA ? hl_layer_halda(mem, p, plan, err) : hl_layer_memory(p, plan, err));
        if (p->method == HL_METHOD_HALDA) exact.latency = HL_LATENCY_SERIAL;
        exact.method = HL_METHOD_EXACT;
        HL_TRY(hl_layer_solve(mem, &exact, limits, &other, err));
        plan->bound = fmin(other.bound, plan->objective);
        plan->gap = hl_plan_gap(plan->objective, plan->bound);
        goto done;
    }
    if (solver == HL_SOLVER_GLPK && !glpk) { rc = hl_fail(err, HLLM_E_NOT_FOUND, "there is no GLPK module"); goto done; }
    if (solver == HL_SOLVER_GLPK) HL_TRY(glpk->layers(glpk->core, mem, p, limits, plan, err));
    else HL_TRY(hl_layer_solve(mem, p, limits, plan, err));
    if (solver == HL_SOLVER_GLPK) plan->solver = name_glpk;
    const double said = plan->objective;
    HL_TRY(hl_layer_plan_value(p, plan, err));
    if (!agree(said, plan->objective, solver == HL_SOLVER_GLPK)) { rc = differs(plan->solver, said, plan->objective, err); goto done; }
    plan->bound = fmin(plan->bound, plan->objective);
    plan->gap = hl_plan_gap(plan->objective, plan->bound);
    if (solver != HL_SOLVER_AUTO || !glpk) goto done;
    memset(&other, 0, sizeof other);
    const hl_plan_limits short_limits = for_second(limits, plan->gap);
    if (glpk->layers(glpk->core, mem, p, &short_limits, &other, NULL) != HLLM_OK || hl_layer_plan_value(p, &other, NULL) != HLLM_OK) goto done;
    const double bound = fmax(plan->bound, fmin(other.bound, plan->objective));
    if (other.objective < plan->objective * (1 - AGREE)) { *plan = other; plan->solver = name_glpk; }
    plan->bound = fmin(bound, plan->objective);
    plan->gap = hl_plan_gap(plan->objective, plan->bound);
done:
    return rc;
}
