/* planner_brute.c: the built-in solvers against brute force: 10,000 random neuron problems (one GPU and several, dense items, both
 * objectives, budgets that bind on both sides or cannot be met) and 10,000 random rings (four systems, links, relays, both latencies).
 * usage: planner_brute [N]: N of each instead */
#include "planner_random.h"


static void one_neurons(uint32_t i)
{
    static small_neurons s;
    hl_neuron_plan *plan = NULL;
    hl_plan_shortage lack = { 0 };
    random_neurons(&s, i % 3 == 1, i % 3 == 2 || i % 6 == 1);
    const brute_neurons want = brute_force_neurons(&s.p);
    REQUIRE(hl_neuron_plan_new(mem, &s.p, &plan) == HLLM_OK);
    const hl_status rc = hl_plan_neurons(mem, &s.p, HL_SOLVER_BUILTIN, NULL, NULL, plan, &lack, &err);
    if (!want.found) {
        const double needed = all_bytes(&s.p) - s.p.cpu_budget_bytes;
        CHECK_MSG(rc == HLLM_E_NOMEM, "neurons %u: %s %s where nothing is possible", i, hl_status_name(rc), say());
        CHECK_MSG(fabs(lack.bytes_needed - needed) <= 1e-9 * needed && fabs(lack.bytes_available - want.most_gpu_bytes) <= 1e-9 * want.most_gpu_bytes + 1e-6,
                  "neurons %u: needed %.17g (is %.17g), available %.17g (is %.17g)", i, lack.bytes_needed, needed, lack.bytes_available, want.most_gpu_bytes);
    } else {
        CHECK_MSG(rc == HLLM_OK, "neurons %u: %s %s, best is %.9g", i, hl_status_name(rc), rc == HLLM_OK ? "" : say(), want.objective);
        if (rc == HLLM_OK) {
            CHECK_MSG(fabs(plan->objective - want.objective) <= 1e-9 * fabs(want.objective) + 1e-18, "neurons %u (%s, %u GPUs, %u dense): %.12g, best is %.12g", i,
                      s.p.objective == HL_OBJECTIVE_IMPACT ? "impact" : "time", s.p.n_gpus, s.p.n_dense, plan->objective, want.objective);
            const double slack = 1e-9 * fabs(want.objective) + 1e-18;
            CHECK_MSG(s.p.objective == HL_OBJECTIVE_IMPACT ? plan->bound >= want.objective - slack : plan->bound <= want.objective + slack,
                      "neurons %u: bound %.12g, best is %.12g", i, plan->bound, want.objective);
            CHECK_MSG(plan->gap <= 1e-8, "neurons %u: gap %g", i, plan->gap);
        }
    }
    hl_neuron_plan_free(mem, plan);
}

static void one_ring(uint32_t i)
{
    static small_ring s;
    hl_layer_plan plan;
    random_ring(&s);
    double best = 1e9;
    uint32_t best_k = 0;
    for (uint32_t k = 1; k <= s.p.n_layers; k++) {
        if (s.p.n_layers % k || (s.p.k && s.p.k != k)) continue;
        const double t = brute_force_ring(&s.p, k);
        if (t < best * (1 - 1e-8)) { best = t; best_k = k; }
    }
    const hl_status rc = hl_plan_layers(mem, &s.p, HL_SOLVER_BUILTIN, NULL, NULL, &plan, &err);
    CHECK_MSG(rc == HLLM_OK, "ring %u: %s %s", i, hl_status_name(rc), rc == HLLM_OK ? "" : say());
    CHECK_MSG(fabs(plan.objective - best) <= 1e-8 * best, "ring %u (%s, %u devices, %u layers%s): %.12g with k %u, best is %.12g with k %u", i,
              s.p.latency == HL_LATENCY_SERIAL ? "serial" : "overlap", s.p.n_devices, s.p.n_layers, s.p.links ? ", links" : "", plan.objective, plan.k, best, best_k);
    CHECK_MSG(plan.k <= best_k, "ring %u: k %u, %u does it too", i, plan.k, best_k);
    CHECK(plan.gap <= 1e-9);
}

int main(int argc, char **argv)
{
    const uint32_t n = argc > 1 ? (uint32_t)atoi(argv[1]) : 10000;
    REQUIRE(hl_mem_new(NULL, &mem) == HLLM_OK);
    hl_error_init(&err);
    for (uint32_t i = 0; i < n; i++) one_neurons(i);
    for (uint32_t i = 0; i < n; i++) one_ring(i);
    hl_error_destroy(&err);
    CHECK(hl_mem_live_bytes(mem) == 0);
    hl_mem_free(mem);
    return check_done();
}
