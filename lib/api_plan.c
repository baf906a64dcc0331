/* api_plan.c: the public functions of plans and of the machine's profile.  As api.c: check the arguments, call one internal function, store the error. */
#include "api.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "modules.h"
#include "run/machine.h"
#include "run/placement.h"
#include "run/profile.h"

enum { DEFAULT_LIMIT_S = 10, MAX_JSON = 1 << 30 };

static hllm_plan *mutable_plan(const hllm_plan *p) { return (hllm_plan *)(uintptr_t)p; }       /* its error slot is mutable */

/* ---- options ---- */

typedef struct request {
    hllm_plan_options opt;
    hllm_plan_gpu gpus[HL_MAX_GPUS];
    hllm_plan_shortage *shortage;
    hl_plan_limits limits;
    hl_module glpk;
} request;

static hl_status take_gpus(hl_error *err, request *r)
{
    if (r->opt.n_gpus > HL_MAX_GPUS) return hl_fail(err, HLLM_E_LIMIT, "options.n_gpus is %u, the limit is %d", r->opt.n_gpus, HL_MAX_GPUS);
    if (r->opt.n_gpus && !r->opt.gpus) return hl_fail(err, HLLM_E_ARG, "options.gpus is NULL but n_gpus is %u", r->opt.n_gpus);
    const char *at = (const char *)r->opt.gpus;
    for (uint32_t g = 0; g < r->opt.n_gpus; g++) {     /* the caller's own size is the step */
        uint32_t step;
        const hl_status rc = take_options(err, "options.gpus", at, &r->gpus[g], sizeof *r->gpus);
        if (rc != HLLM_OK) return rc;
        memcpy(&step, at, sizeof step);
        at += step;
    }
    r->opt.gpus = r->gpus;
    return HLLM_OK;
}

static hl_status take_request(hl_error *err, const hllm_plan_options *opt, request *r)
{
    hl_status rc = HLLM_OK;
    memset(r, 0, sizeof *r);
    HL_TRY(take_options(err, "options", opt, &r->opt, sizeof r->opt));
    HL_TRY(check_flags(err, r->opt.flags, 0));
    if (r->opt.objective > HLLM_OBJECTIVE_IMPACT) { rc = hl_fail(err, HLLM_E_ARG, "options.objective is %u, the highest known is %u", r->opt.objective, (uint32_t)HLLM_OBJECTIVE_IMPACT); goto done; }
    if (r->opt.solver > HLLM_SOLVER_GLPK) { rc = hl_fail(err, HLLM_E_ARG, "options.solver is %u, the highest known is %u", r->opt.solver, (uint32_t)HLLM_SOLVER_GLPK); goto done; }
    if (!(r->opt.time_limit_s >= 0 && r->opt.time_limit_s <= 1e6)) { rc = hl_fail(err, HLLM_E_ARG, "options.time_limit_s is not 0 to 1000000 seconds"); goto done; }
    if (!(r->opt.cpu_bytes_per_s >= 0 && r->opt.cpu_bytes_per_s <= 1e18)) { rc = hl_fail(err, HLLM_E_ARG, "options.cpu_bytes_per_s is not a speed"); goto done; }
    if (r->opt.module_dir) HL_TRY(check_name(err, "options.module_dir", r->opt.module_dir));
    HL_TRY(take_gpus(err, r));
    if (r->opt.shortage) HL_TRY(open_struct(err, "options.shortage", r->opt.shortage, sizeof *r->opt.shortage));
    r->shortage = r->opt.shortage;
    if (r->opt.solver != HLLM_SOLVER_BUILTIN) {
        const hl_status found = hl_module_open_glpk(err, r->opt.module_dir, &r->glpk);
        /* auto does without what is not there; what is there and does not fit is said. */
        if (found != HLLM_OK && (r->opt.solver == HLLM_SOLVER_GLPK || found == HLLM_E_VERSION)) { rc = found; goto done; }
    }
    const double limit_s = r->opt.time_limit_s > 0 ? r->opt.time_limit_s : DEFAULT_LIMIT_S;
    r->limits.deadline_ns = hl_now_ns() + (uint64_t)(limit_s * 1e9);
done:
    return rc;
}

/* ---- solving ---- */

static hl_status solve(request *r, hl_plan *plan, hl_plan_shortage *lack, hl_error *err)
{
    const hl_planner_module *glpk = r->glpk.handle ? &r->glpk.planner : NULL;
    hl_status rc;
    if (plan->kind == HL_PLAN_NEURON) {
        if (r->opt.objective) plan->neuron.objective = r->opt.objective == HLLM_OBJECTIVE_IMPACT ? HL_OBJECTIVE_IMPACT : HL_OBJECTIVE_TIME;
        rc = hl_plan_neurons(plan->mem, &plan->neuron, r->opt.solver, glpk, &r->limits, plan->neuron_plan, lack, err);
    } else rc = hl_plan_layers(plan->mem, &plan->ring, r->opt.solver, glpk, &r->limits, &plan->layer_plan, err);
    plan->solved = rc == HLLM_OK;
    return rc;
}

static void tell_shortage(const request *r, const hl_plan_shortage *lack, uint32_t n_ctx_fits)
{
    if (!r->shortage || lack->bytes_needed <= 0) return;
    give_struct(r->shortage, &(hllm_plan_shortage){ .n_ctx_fits = n_ctx_fits, .bytes_needed = (uint64_t)ceil(lack->bytes_needed), .bytes_available = (uint64_t)lack->bytes_available },
                sizeof *r->shortage);
}

/* The longest context for which there is a plan: less KV cache, less scratch.  By halving: a shorter context never needs more. */
static uint32_t context_that_fits(const hllm_model *m, request *r, uint32_t too_long)
{
    uint32_t fits = 0;
    while (too_long - fits > 1) {
        const uint32_t n_ctx = fits + (too_long - fits) / 2;
        hl_plan *plan = NULL;
        hl_plan_limits limits = { .deadline_ns = hl_now_ns() + 500000000 };
        hl_status rc = hl_placement_problem(m, &r->opt, n_ctx, &plan);
        if (rc == HLLM_OK && plan->scratch_missing > 0) rc = HLLM_E_NOMEM;
        if (rc == HLLM_OK) rc = hl_plan_neurons(plan->mem, &plan->neuron, HL_SOLVER_BUILTIN, NULL, &limits, plan->neuron_plan, NULL, NULL);
        hl_plan_free(plan);
        if (rc == HLLM_OK) fits = n_ctx;
        else too_long = n_ctx;
    }
    return fits;
}

/* What it would take: bytes, and a context. */
static hl_status tell_impossible(const hllm_model *m, request *r, const hl_plan *plan, hl_plan_shortage *lack, uint32_t n_ctx)
{
    const double budget = plan->neuron.cpu_budget_bytes + plan->scratch_bytes[0] - plan->scratch_missing;
    char context[64] = "; no context is short enough", gpus[64] = "";
    lack->bytes_needed += plan->scratch_missing;
    const uint32_t fits = context_that_fits(m, r, n_ctx);
    if (fits) snprintf(context, sizeof context, ", or at a context of %u", fits);
    if (r->opt.n_gpus) snprintf(gpus, sizeof gpus, ", of which GPUs take at most %" PRIu64, (uint64_t)lack->bytes_available);
    tell_shortage(r, lack, fits);
    return hl_fail(&mutable_model(m)->err, HLLM_E_NOMEM, "%s: impossible at a context of %u tokens: %" PRIu64 " bytes do not fit in the CPU's budget of %" PRIu64 "%s; it fits with a CPU budget of %" PRIu64 "%s",
                   hl_gguf_path(m->model->gguf), n_ctx, (uint64_t)ceil(lack->bytes_needed), (uint64_t)budget, gpus, (uint64_t)ceil(budget + lack->bytes_needed - lack->bytes_available), context);
}

hllm_status hllm_plan_solve(const hllm_model *m, const hllm_plan_options *opt, hllm_plan **out)
{
    hl_status rc = HLLM_OK;
    request r;
    hl_plan *plan = NULL;
    hl_plan_shortage lack = { 0 };
    if (!m) return HLLM_E_ARG;
    hl_error *err = &mutable_model(m)->err;
    NEED_ARG(err, out);
    *out = NULL;
    HL_TRY(take_request(err, opt, &r));
    const uint32_t n_ctx = hl_placement_context(m, r.opt.n_ctx);
    HL_TRY(hl_placement_problem(m, &r.opt, r.opt.n_ctx, &plan));
    r.opt.cpu_bytes_per_s = plan->neuron.cpu_bytes_per_s;                   /* measured at most once */
    for (uint32_t g = 0; g < r.opt.n_gpus; g++)
        if (plan->neuron.gpus[g].budget_bytes <= 0)
            hl_log_write(m->rt->env.log, HLLM_LOG_WARNING, "GPU %u holds nothing: its %" PRIu64 " bytes are no more than a session's scratch there, %" PRIu64, g, r.gpus[g].budget_bytes,
                         (uint64_t)ceil(plan->gpu_scratch_bytes));
    rc = solve(&r, plan, &lack, err);
    if ((rc == HLLM_OK && plan->scratch_missing > 0) || (rc == HLLM_E_NOMEM && lack.bytes_needed > 0)) rc = tell_impossible(m, &r, plan, &lack, n_ctx);
    HL_TRY(rc);
    rc = hl_plan_handle_new(m->rt, plan, out);
    plan = NULL;
done:
    hl_plan_free(plan);
    hl_module_close(&r.glpk);
    return hl_error_settle(err, rc);
}

hllm_status hllm_plan_solve_problem(hllm_runtime *rt, const char *json, size_t bytes, const hllm_plan_options *opt, hllm_plan **out)
{
    hl_status rc = HLLM_OK;
    request r;
    hl_plan *plan = NULL;
    hl_plan_shortage lack = { 0 };
    if (!rt) return HLLM_E_ARG;
    NEED_ARG(&rt->err, out);
    *out = NULL;
    memset(&r, 0, sizeof r);
    HL_TRY(check_text(&rt->err, "json", json, bytes, MAX_JSON));
    HL_TRY(take_request(&rt->err, opt, &r));
    HL_TRY(hl_plan_read_problem(rt->env.mem, json ? json : "", bytes, &plan, &rt->err));
    rc = solve(&r, plan, &lack, &rt->err);
    if (rc == HLLM_E_NOMEM) tell_shortage(&r, &lack, 0);
    HL_TRY(rc);
    rc = hl_plan_handle_new(rt, plan, out);
    plan = NULL;
done:
    hl_plan_free(plan);
    hl_module_close(&r.glpk);
    return hl_error_settle(&rt->err, rc);
}

hllm_status hllm_plan_read(hllm_runtime *rt, const char *json, size_t bytes, hllm_plan **out)
{
    hl_status rc = HLLM_OK;
    hl_plan *plan = NULL;
    if (!rt) return HLLM_E_ARG;
    NEED_ARG(&rt->err, out);
    *out = NULL;
    HL_TRY(check_text(&rt->err, "json", json, bytes, MAX_JSON));
    HL_TRY(hl_plan_read(rt->env.mem, json ? json : "", bytes, &plan, &rt->err));
    rc = hl_plan_handle_new(rt, plan, out);
done:
    return hl_error_settle(&rt->err, rc);
}

void hllm_plan_free(hllm_plan *p) { hl_plan_handle_free(p); }
size_t hllm_plan_last_error(const hllm_plan *p, char *buf, size_t cap) { return p ? hl_error_copy(&p->err, buf, cap) : 0; }

hllm_status hllm_plan_check(const hllm_plan *p, const hllm_model *m, uint32_t flags)
{
    hl_status rc = HLLM_OK;
    if (!p) return HLLM_E_ARG;
    hl_error *err = &mutable_plan(p)->err;
    HL_TRY(check_flags(err, flags, HLLM_PLAN_CHECK_MACHINE));
    if (m) HL_TRY(hl_placement_check_model(p->plan, m->model, err));
    if (flags & HLLM_PLAN_CHECK_MACHINE) rc = hl_placement_check_machine(p->plan, err);
done:
    return hl_error_settle(err, rc);
}

/* ---- reading a plan ---- */

static hl_status give_text(const hllm_plan *p, hl_status rc, hl_out *o, char *buf, size_t cap, size_t *bytes_out)
{
    hl_error *err = &mutable_plan(p)->err;
    if (rc == HLLM_OK) {
        *bytes_out = o->n;
        if (o->n > cap) rc = HLLM_E_BUFFER;
        else memcpy(buf, o->s, o->n);
    }
    hl_free(o->mem, o->s);
    return settle_buffer(err, rc, *bytes_out, cap);
}

hllm_status hllm_plan_write(const hllm_plan *p, uint32_t flags, char *buf, size_t cap, size_t *bytes_out)
{
    hl_status rc = HLLM_OK;
    if (!p) return HLLM_E_ARG;
    hl_error *err = &mutable_plan(p)->err;
    NEED_ARG(err, bytes_out);
    *bytes_out = 0;
    HL_TRY(check_text(err, "buf", buf, cap, SIZE_MAX));
    HL_TRY(check_flags(err, flags, HLLM_PLAN_ANSWER));
    hl_out o = { .mem = p->rt->env.mem };
    rc = hl_plan_write(p->plan, flags & HLLM_PLAN_ANSWER, &o, err);
    return give_text(p, rc, &o, buf, cap, bytes_out);
done:
    return hl_error_settle(err, rc);
}

hllm_status hllm_plan_draw(const hllm_plan *p, char *buf, size_t cap, size_t *bytes_out)
{
    if (!p) return HLLM_E_ARG;
    hl_error *err = &mutable_plan(p)->err;
    NEED_ARG(err, bytes_out);
    *bytes_out = 0;
    hl_status rc = check_text(err, "buf", buf, cap, SIZE_MAX);
    if (rc != HLLM_OK) return rc;
    hl_out o = { .mem = p->rt->env.mem };
    rc = hl_plan_draw(p->plan, &o, err);
    return give_text(p, rc, &o, buf, cap, bytes_out);
}

hllm_status hllm_plan_get_info(const hllm_plan *p, hllm_plan_info *out)
{
    if (!p) return HLLM_E_ARG;
    hl_status rc = open_struct(&mutable_plan(p)->err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    const hl_plan *v = p->plan;
    hllm_plan_info i = { .kind = v->kind, .n_devices = hl_plan_n_devices(v), .model_hash = v->model.hash, .model_bytes = v->model.file_bytes, .n_ctx = v->model.n_ctx,
                         .uniform = v->uniform };
    if (v->kind == HL_PLAN_NEURON) {
        const hl_neuron_plan *a = v->neuron_plan;
        i.objective_kind = v->neuron.objective == HL_OBJECTIVE_IMPACT ? HLLM_OBJECTIVE_IMPACT : HLLM_OBJECTIVE_TIME;
        i.n_layers = v->neuron.n_layers;
        i.objective = a->objective; i.bound = a->bound; i.gap = a->gap; i.seconds_per_token = a->seconds_per_token; i.solve_s = a->solve_s; i.solver = a->solver;
    } else {
        const hl_layer_plan *a = &v->layer_plan;
        i.objective_kind = HLLM_OBJECTIVE_TIME;
        i.n_layers = v->ring.n_layers; i.k = a->k;
        i.objective = a->objective; i.bound = a->bound; i.gap = a->gap; i.seconds_per_token = a->objective; i.solve_s = a->solve_s; i.solver = a->solver;
    }
    give_struct(out, &i, sizeof i);
    return HLLM_OK;
}

static const hl_plan_device *device_at(const hllm_plan *p, uint32_t index)
{
    if (index < hl_plan_n_devices(p->plan)) return &p->devices[index];
    hl_fail(&mutable_plan(p)->err, HLLM_E_ARG, "device %u: the plan has %u", index, hl_plan_n_devices(p->plan));
    return NULL;
}

hllm_status hllm_plan_get_device(const hllm_plan *p, uint32_t index, hllm_plan_device *out)
{
    if (!p) return HLLM_E_ARG;
    hl_status rc = open_struct(&mutable_plan(p)->err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    const hl_plan_device *d = device_at(p, index);
    if (!d) return HLLM_E_ARG;
    hllm_plan_device v = { .n_parts = d->n_parts, .budget_bytes = (uint64_t)d->budget_bytes, .bytes = (uint64_t)d->bytes, .seconds = d->seconds, .name = d->name };
    if (p->plan->kind == HL_PLAN_LAYER) { v.n_layers = p->plan->layer_plan.layers[index]; v.n_layers_gpu = p->plan->layer_plan.gpu_layers[index]; }
    give_struct(out, &v, sizeof v);
    return HLLM_OK;
}

hllm_status hllm_plan_get_part(const hllm_plan *p, uint32_t device, uint32_t index, hllm_plan_part *out)
{
    if (!p) return HLLM_E_ARG;
    hl_status rc = open_struct(&mutable_plan(p)->err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    const hl_plan_device *d = device_at(p, device);
    if (!d) return HLLM_E_ARG;
    if (index >= d->n_parts) return hl_fail(&mutable_plan(p)->err, HLLM_E_ARG, "part %u: the device has %u", index, d->n_parts);
    give_struct(out, &(hllm_plan_part){ .bytes = (uint64_t)d->parts[index].bytes, .seconds = d->parts[index].seconds, .kind = d->parts[index].kind }, sizeof *out);
    return HLLM_OK;
}

hllm_status hllm_plan_get_layer(const hllm_plan *p, uint32_t index, hllm_plan_layer *out)
{
    if (!p) return HLLM_E_ARG;
    hl_status rc = open_struct(&mutable_plan(p)->err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    const hl_plan *v = p->plan;
    const uint32_t n = v->kind == HL_PLAN_NEURON ? v->neuron.n_layers : v->ring.n_layers;
    if (index >= n) return hl_fail(&mutable_plan(p)->err, HLLM_E_ARG, "layer %u: the plan has %u", index, n);
    hllm_plan_layer x = { .gpu = -1 };
    if (v->kind == HL_PLAN_NEURON) {
        const hl_neuron_layer *l = &v->neuron.layers[index];
        x.gpu = v->neuron_plan->gpu_of_layer[index];
        x.n_neurons = (uint64_t)l->batch_neurons * (l->n_batches - 1) + l->last_batch_neurons;
        x.n_neurons_gpu = v->neuron_plan->n_gpu[index];
    } else {
        /* Each round goes through the devices in order; a window's last layers are the GPU's. */
        const hl_layer_plan *a = &v->layer_plan;
        uint32_t in_round = index % (n / a->k), m = 0;
        while (in_round >= a->layers[m] / a->k) { in_round -= a->layers[m] / a->k; m++; }
        x.device = m;
        x.on_gpu = in_round >= (a->layers[m] - a->gpu_layers[m]) / a->k;
    }
    give_struct(out, &x, sizeof x);
    return HLLM_OK;
}

/* ---- the machine's profile ---- */

hllm_status hllm_profile_open(hllm_runtime *rt, const hllm_profile_options *opt, hllm_profile **out)
{
    hl_status rc = HLLM_OK;
    hllm_profile_options full;
    if (!rt) return HLLM_E_ARG;
    NEED_ARG(&rt->err, out);
    *out = NULL;
    HL_TRY(take_options(&rt->err, "options", opt, &full, sizeof full));
    HL_TRY(check_flags(&rt->err, full.flags, HLLM_PROFILE_REMEASURE));
    if (full.path) HL_TRY(check_name(&rt->err, "options.path", full.path));
    if (full.model_path) HL_TRY(check_name(&rt->err, "options.model_path", full.model_path));
    rc = hl_profile_open(rt, full.path, full.model_path, full.flags & HLLM_PROFILE_REMEASURE, out);
done:
    return hl_error_settle(&rt->err, rc);
}

void hllm_profile_free(hllm_profile *p) { hl_profile_free(p); }

hllm_status hllm_profile_get_info(const hllm_profile *p, hllm_profile_info *out)
{
    if (!p) return HLLM_E_ARG;
    hl_status rc = open_struct((hl_error *)(uintptr_t)&p->err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    uint64_t total;
    hllm_profile_info i = { .n_rates = p->n_rates, .from_file = p->from_file, .sync_s = p->sync_s, .disk_bytes_per_s = p->disk_bytes_per_s };
    hl_machine_memory(&total, &i.memory_available_bytes);
    give_struct(out, &i, sizeof i);
    return HLLM_OK;
}

hllm_status hllm_profile_get_rate(const hllm_profile *p, uint32_t index, hllm_profile_rate *out)
{
    if (!p) return HLLM_E_ARG;
    hl_error *err = (hl_error *)(uintptr_t)&p->err;
    hl_status rc = open_struct(err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    if (index >= p->n_rates) return hl_fail(err, HLLM_E_ARG, "rate %u: the profile has %u", index, p->n_rates);
    const hl_profile_rate *r = &p->rates[index];
    give_struct(out, &(hllm_profile_rate){ .n_threads = r->n_threads, .isa = r->isa, .read_bytes_per_s = r->read, .gather_bytes_per_s = r->gather, .int8_ops_per_s = r->int8_ops }, sizeof *out);
    return HLLM_OK;
}
