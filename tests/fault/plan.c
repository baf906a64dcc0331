/* plan.c: planning while the n-th allocation fails, n = 0, 1, 2, ...: HLLM_E_NOMEM each time, nothing left behind, the same answer when it
 * succeeds.  Problems with one GPU and with three, with dense items, impossible ones, rings, both methods for comparison, GLPK where its
 * module was built; reading, writing and drawing plans. */
#include "modules.h"
#include "plan_io.h"
#include "../unit/planner_random.h"

static struct { _Atomic long calls, live; long fail_at; } hook;

static void *fail_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    if (hook.calls++ == hook.fail_at) return NULL;
    void *p = aligned_alloc(align, (bytes + align - 1) / align * align);
    hook.live += p != NULL;
    return p;
}

static void fail_free(void *user, void *block, size_t bytes, size_t align)
{
    (void)user; (void)bytes; (void)align;
    hook.live -= block != NULL;
    free(block);
}

static const hllm_allocator allocator = { sizeof(hllm_allocator), 0, NULL, fail_alloc, fail_free };
static hl_module glpk;

/* One whole life of a plan; *value: what it is worth, or the bytes that are missing. */
static hl_status life(hl_mem *mem, const hl_neuron_problem *n, const hl_layer_problem *r, uint32_t solver, double *value)
{
    hl_status rc = HLLM_OK;
    hl_plan *plan = NULL, *again = NULL;
    hl_out o = { .mem = mem };
    hl_plan_shortage lack = { 0 };
    HL_TRY(hl_plan_new(mem, n ? HL_PLAN_NEURON : HL_PLAN_LAYER, &plan));
    if (n) {
        plan->neuron = *n;
        HL_TRY(hl_neuron_plan_new(mem, &plan->neuron, &plan->neuron_plan));
        rc = hl_plan_neurons(mem, &plan->neuron, solver, glpk.handle ? &glpk.planner : NULL, NULL, plan->neuron_plan, &lack, NULL);
        *value = rc == HLLM_OK ? plan->neuron_plan->objective : lack.bytes_needed;
        if (rc == HLLM_E_NOMEM && lack.bytes_needed > 0) { rc = HLLM_OK; goto done; }      /* the impossible one: an answer, too */
    } else {
        plan->ring = *r;
        rc = hl_plan_layers(mem, &plan->ring, solver, glpk.handle ? &glpk.planner : NULL, NULL, &plan->layer_plan, NULL);
        *value = plan->layer_plan.objective;
    }
    HL_TRY(rc);
    HL_TRY(hl_plan_write(plan, false, &o, NULL));
    HL_TRY(hl_plan_read(mem, o.s, o.n, &again, NULL));
    o.n = 0;
    HL_TRY(hl_plan_draw(again, &o, NULL));
done:
    hl_plan_free(plan);
    hl_plan_free(again);
    hl_free(mem, o.s);
    return rc;
}

static void every_allocation(const char *what, const hl_neuron_problem *n, const hl_layer_problem *r, uint32_t solver)
{
    double want = 0;
    hl_mem *mem = NULL;
    hook.fail_at = -1;
    REQUIRE(hl_mem_new(&allocator, &mem) == HLLM_OK);
    CHECK_MSG(life(mem, n, r, solver, &want) == HLLM_OK, "%s", what);
    hl_mem_free(mem);
    for (long at = 1;; at++) {                         /* 0 is the hl_mem itself */
        double got = 0;
        hook.calls = 0; hook.fail_at = at;
        REQUIRE(hl_mem_new(&allocator, &mem) == HLLM_OK);
        const hl_status rc = life(mem, n, r, solver, &got);
        CHECK_MSG(hl_mem_live_bytes(mem) == 0, "%s: %llu bytes left after allocation %ld failed", what, (unsigned long long)hl_mem_live_bytes(mem), at);
        hl_mem_free(mem);
        CHECK(hook.live == 0);
        const bool fired = hook.calls > at;
        /* GLPK beside the built-in solver is an extra: without memory for it the built-in answer stands, or the error is said. */
        CHECK_MSG(rc == HLLM_E_NOMEM || (rc == HLLM_OK && (!fired || solver == HL_SOLVER_AUTO || n)), "%s: %s after allocation %ld failed", what, hl_status_name(rc), at);
        if (rc == HLLM_OK) CHECK_MSG(fabs(got - want) <= 1e-3 * fabs(want), "%s: %g, without failures %g", what, got, want);
        if (!fired) { CHECK_MSG(at > 5, "%s: only %ld allocations", what, at); return; }
        REQUIRE(at < 5000);
    }
}

int main(void)
{
    static small_neurons s;
    static small_ring r;
    const char *build = getenv("HLLM_TEST_BUILD");
    char dir[4096], what[64];
    snprintf(dir, sizeof dir, "%s/lib", build ? build : "build");
    hl_module_open_glpk(NULL, dir, &glpk);
    for (uint32_t i = 0; i < 24; i++) {
        random_neurons(&s, i % 2, i % 3 == 0);
        s.p.method = i % 8 == 7 ? HL_METHOD_PAPER : HL_METHOD_EXACT;
        snprintf(what, sizeof what, "neurons %u", i);
        every_allocation(what, &s.p, NULL, glpk.handle && i % 4 == 2 && s.p.n_gpus == 1 ? HL_SOLVER_AUTO : HL_SOLVER_BUILTIN);
        random_ring(&r);
        r.p.method = i % 8 == 7 ? HL_METHOD_HALDA : HL_METHOD_EXACT;
        if (r.p.method == HL_METHOD_HALDA) { r.p.k = 0; r.p.n_layers = 8; r.p.links = NULL; for (uint32_t m = 0; m < r.p.n_devices; m++) { r.d[m].ram_bytes = 1e10; r.d[m].os = HL_OS_LINUX; } }
        snprintf(what, sizeof what, "ring %u", i);
        every_allocation(what, NULL, &r.p, glpk.handle && i % 4 == 2 ? HL_SOLVER_AUTO : HL_SOLVER_BUILTIN);
    }
    hl_module_close(&glpk);
    return check_done();
}
