/* placement.h: a model and a machine become a planner's problem; a plan and a model, or a machine: do they fit? */
#ifndef HL_PLACEMENT_H
#define HL_PLACEMENT_H

#include "plan_io.h"
#include "run/runtime.h"

struct hllm_plan {
    hl_error err;
    hllm_runtime *rt;
    hl_plan *plan;
    hl_plan_device *devices;                           /* [hl_plan_n_devices], worked out once */
};

/* Takes plan (also on failure). */
hl_status hl_plan_handle_new(hllm_runtime *rt, hl_plan *plan, hllm_plan **out);
void hl_plan_handle_free(hllm_plan *p);

/* The neuron problem of m at opt's context and budgets, not solved yet.  Errors on the model. */
hl_status hl_placement_problem(const hllm_model *m, const hllm_plan_options *opt, uint32_t n_ctx, hl_plan **out);
/* The context that 0 stands for. */
uint32_t hl_placement_context(const hllm_model *m, uint32_t n_ctx);
hl_status hl_placement_check_model(const hl_plan *plan, const hl_model *m, hl_error *err);
hl_status hl_placement_check_machine(const hl_plan *plan, hl_error *err);

#endif
