/* Fuzz target: the planner's JSON.  The input is read as a plan file and as a problem; a problem that is small enough is solved, by
 * whatever method it asks for; what came out is written, read again and drawn.
 *
 * Besides crashes it finds: solvers and checker that disagree (HLLM_E_INTERNAL), numbers that are not finite, bounds on the wrong side,
 * plans that are written and not accepted again, pictures that are not closed, blocks not given back. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "plan_io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define DEMAND(x) do { if (!(x)) __builtin_trap(); } while (0)
#define MAX_CELLS 4e5                                  /* of a dynamic program: a run is to take milliseconds */
enum { SOLVE_NS = 20000000 };

static void use_plan(hl_mem *mem, hl_error *err, const hl_plan *plan)
{
    hl_out text = { .mem = mem }, again = { .mem = mem }, picture = { .mem = mem };
    hl_plan *other = NULL;
    const bool neuron = plan->kind == HL_PLAN_NEURON;
    const double objective = neuron ? plan->neuron_plan->objective : plan->layer_plan.objective;
    for (uint32_t i = 0; i < hl_plan_n_devices(plan); i++) {
        hl_plan_device d;
        hl_plan_device_get(plan, i, &d);
        DEMAND(isfinite(d.bytes) && isfinite(d.seconds) && d.bytes >= 0 && d.n_parts <= HL_PLAN_MAX_PARTS);
    }
    DEMAND(isfinite(objective));
    DEMAND(hl_plan_write(plan, false, &text, err) == HLLM_OK);
    DEMAND(hl_plan_read(mem, text.s, text.n, &other, err) == HLLM_OK);
    DEMAND(hl_plan_write(other, true, &again, err) == HLLM_OK);
    DEMAND(hl_plan_draw(plan, &picture, err) == HLLM_OK && picture.n > 10 && strcmp(picture.s + picture.n - 7, "</svg>\n") == 0);
    hl_plan_free(other);
    hl_free(mem, text.s); hl_free(mem, again.s); hl_free(mem, picture.s);
}

static bool small(const hl_plan *plan)
{
    if (plan->kind == HL_PLAN_LAYER) return (double)plan->ring.n_layers * plan->ring.n_layers * plan->ring.n_devices <= MAX_CELLS;
    return plan->neuron.n_layers + plan->neuron.n_dense <= 500;
}

static void solve(hl_mem *mem, hl_error *err, hl_plan *plan)
{
    const hl_plan_limits limits = { .deadline_ns = hl_now_ns() + SOLVE_NS };
    hl_plan_shortage lack = { 0 };
    hl_status rc;
    if (plan->kind == HL_PLAN_NEURON) {
        const hl_neuron_plan *a = plan->neuron_plan;
        rc = hl_plan_neurons(mem, &plan->neuron, HL_SOLVER_BUILTIN, NULL, &limits, plan->neuron_plan, &lack, err);
        DEMAND(rc == HLLM_OK || rc == HLLM_E_NOMEM || rc == HLLM_E_TIMEOUT || rc == HLLM_E_MISMATCH);
        if (rc == HLLM_E_NOMEM) DEMAND(lack.bytes_needed > 0 && lack.bytes_available >= 0);
        /* The paper's order does not look at the CPU's budget: then its plan may be refused. */
        if (rc == HLLM_E_MISMATCH) DEMAND(plan->neuron.method == HL_METHOD_PAPER);
        if (rc == HLLM_OK) DEMAND(plan->neuron.objective == HL_OBJECTIVE_IMPACT ? a->bound >= a->objective - 1e-9 * fabs(a->objective)
                                                                                : a->bound <= a->objective + 1e-9 * fabs(a->objective));
    } else {
        rc = hl_plan_layers(mem, &plan->ring, HL_SOLVER_BUILTIN, NULL, &limits, &plan->layer_plan, err);
        DEMAND(rc == HLLM_OK || rc == HLLM_E_NOMEM || rc == HLLM_E_TIMEOUT || (rc == HLLM_E_MISMATCH && plan->ring.method != HL_METHOD_EXACT) ||
               (rc == HLLM_E_UNSUPPORTED && plan->ring.method == HL_METHOD_HALDA));
    }
    plan->solved = rc == HLLM_OK;
    if (plan->solved) use_plan(mem, err, plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static hl_error err;
    static bool begun;
    hl_mem *mem = NULL;
    hl_plan *plan = NULL;
    if (!begun) { hl_error_init(&err); begun = true; }
    DEMAND(hl_mem_new(NULL, &mem) == HLLM_OK);
    const char *text = n ? (const char *)data : "";
    DEMAND((hl_plan_read(mem, text, n, &plan, &err) == HLLM_OK) == (plan != NULL));
    if (plan) use_plan(mem, &err, plan);
    hl_plan_free(plan);
    DEMAND((hl_plan_read_problem(mem, text, n, &plan, &err) == HLLM_OK) == (plan != NULL));
    if (plan && small(plan)) solve(mem, &err, plan);
    hl_plan_free(plan);
    DEMAND(hl_mem_live_bytes(mem) == 0);
    hl_mem_free(mem);
    return 0;
}
