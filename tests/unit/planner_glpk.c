/* planner_glpk.c: the GLPK module: 1,000 random neuron problems and 1,000 random rings against brute force (never better than the best,
 * within the gap that it reports, and that at most 1e-3), what it refuses, and that nothing that goes wrong inside
 * GLPK ends the process, prints, or leaks.  Skipped when the module was not built. */
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include "modules.h"
#include "planner_random.h"

static hl_module glpk;

static void one_neurons(uint32_t i)
{
    static small_neurons s;
    const hl_plan_limits minute = { .deadline_ns = hl_now_ns() + 60000000000u };     /* on a busy machine too */
    hl_neuron_plan *plan = NULL;
    random_neurons(&s, false, i % 2);
    s.p.gpu_list = false;
    const brute_neurons want = brute_force_neurons(&s.p);
    REQUIRE(hl_neuron_plan_new(mem, &s.p, &plan) == HLLM_OK);
    const hl_status rc = hl_plan_neurons(mem, &s.p, HL_SOLVER_GLPK, &glpk.planner, &minute, plan, NULL, &err);
    if (!want.found) CHECK_MSG(rc == HLLM_E_NOMEM || rc == HLLM_E_TIMEOUT, "neurons %u: %s where nothing is possible", i, hl_status_name(rc));
    else {
        CHECK_MSG(rc == HLLM_OK, "neurons %u: %s %s", i, hl_status_name(rc), say());
        const bool impact = s.p.objective == HL_OBJECTIVE_IMPACT;
        const double slack = 1e-7 * fabs(want.objective) + 1e-18;
        CHECK_MSG(impact ? plan->objective <= want.objective + slack : plan->objective >= want.objective - slack, "neurons %u: %.12g beats the best, %.12g", i, plan->objective, want.objective);
        CHECK_MSG(impact ? plan->bound >= want.objective - slack : plan->bound <= want.objective + slack, "neurons %u (%s): bound %.12g, best %.12g", i, impact ? "impact" : "time",
                  plan->bound, want.objective);
        CHECK_MSG(plan->gap <= 1e-3 && fabs(plan->objective - want.objective) <= 1e-3 * fabs(want.objective), "neurons %u: gap %g", i, plan->gap);
    }
    /* The paper's form, a binary per batch: no other best. */
    const hl_plan_limits per_batch = { .per_batch = true };
    if (want.found && s.p.objective == HL_OBJECTIVE_IMPACT && i % 8 == 0) {
        const hl_status form = hl_plan_neurons(mem, &s.p, HL_SOLVER_GLPK, &glpk.planner, &per_batch, plan, NULL, &err);
        CHECK_MSG(form == HLLM_OK ? plan->objective <= want.objective * (1 + 1e-7) + 1e-12 && plan->objective >= want.objective * 0.9 - 1e-12 : form == HLLM_E_TIMEOUT,
                  "neurons %u: per batch: %s %.9g, best %.9g", i, hl_status_name(form), plan->objective, want.objective);
    }
    /* Together with the built-in solver: the best. */
    const hl_status both = hl_plan_neurons(mem, &s.p, HL_SOLVER_AUTO, &glpk.planner, NULL, plan, NULL, &err);
    CHECK_MSG(want.found ? both == HLLM_OK && fabs(plan->objective - want.objective) <= 1e-9 * fabs(want.objective) + 1e-18 && plan->gap <= 1e-8 : both == HLLM_E_NOMEM,
              "neurons %u: auto: %s", i, hl_status_name(both));
    hl_neuron_plan_free(mem, plan);
}

static void one_ring(uint32_t i)
{
    static small_ring s;
    const hl_plan_limits minute = { .deadline_ns = hl_now_ns() + 60000000000u };
    hl_layer_plan plan;
    random_ring(&s);
    double best = 1e9;
    for (uint32_t k = 1; k <= s.p.n_layers; k++)
        if (s.p.n_layers % k == 0 && (!s.p.k || s.p.k == k)) best = fmin(best, brute_force_ring(&s.p, k));
    const hl_status rc = hl_plan_layers(mem, &s.p, HL_SOLVER_GLPK, &glpk.planner, &minute, &plan, &err);
    CHECK_MSG(rc == HLLM_OK, "ring %u: %s %s", i, hl_status_name(rc), say());
    if (rc != HLLM_OK) return;
    CHECK_MSG(fabs(plan.objective - best) <= 1e-5 * best, "ring %u (%s, %u devices, %u layers, k %u%s): %.12g with k %u, best is %.12g", i, s.p.latency ? "overlap" : "serial", s.p.n_devices,
              s.p.n_layers, s.p.k, s.p.links ? ", links" : "", plan.objective, plan.k, best);
    CHECK_MSG(plan.bound <= best * (1 + 1e-6) && plan.gap <= 1e-3, "ring %u: bound %.12g, best %.12g", i, plan.bound, best);
}

/* A problem large enough that GLPK is busy for a while. */
enum { L = 40, B = 100 };
static hl_neuron_layer big_layers[L];
static double big_freq[L][B];
static hl_neuron_gpu big_gpu;
static hl_neuron_problem big(void)
{
    for (uint32_t l = 0; l < L; l++) {
        for (uint32_t b = 0; b < B; b++) big_freq[l][b] = pow(uniform(0, 1), 3);
        big_layers[l] = (hl_neuron_layer){ B, 64, 64, 500000 + pick(500000), big_freq[l] };
    }
    big_gpu = (hl_neuron_gpu){ 1e12, 1e9, 3e-5 };
    return (hl_neuron_problem){ .objective = HL_OBJECTIVE_TIME, .n_gpus = 1, .n_layers = L, .gpus = &big_gpu, .layers = big_layers, .cpu_bytes_per_s = 6e10, .cpu_budget_bytes = 1e12 };
}

static void faults(void)
{
    hl_neuron_problem p = big();
    hl_neuron_plan *plan = NULL;
    hl_plan_limits limits = { .glpk_memory_mb = 1 };
    REQUIRE(hl_neuron_plan_new(mem, &p, &plan) == HLLM_OK);
    const uint64_t before = hl_mem_live_bytes(mem);
    /* Memory runs out inside GLPK: it calls its error hook, which by default is abort(). */
    hl_status rc = glpk.planner.neurons(glpk.planner.core, mem, &p, &limits, plan, &err);
    CHECK_MSG(rc == HLLM_E_TIMEOUT && strstr(say(), "inside"), "1 MB: %s %s", hl_status_name(rc), say());
    /* Numbers that GLPK refuses by the same hook. */
    const double bad[] = { NAN, INFINITY, -INFINITY, 1e308, -1, 0, 1e-308 };
    limits.glpk_memory_mb = 0;
    for (uint32_t i = 0; i < HL_COUNT(bad) * 5; i++) {
        hl_neuron_problem q = big();
        const double x = bad[i % HL_COUNT(bad)];
        limits.deadline_ns = hl_now_ns() + 200000000;
        switch (i / HL_COUNT(bad)) {
        case 0: big_layers[3].batch_bytes = x; break;
        case 1: big_freq[5][7] = x; break;
        case 2: big_gpu.bytes_per_s = x; break;
        case 3: big_gpu.budget_bytes = x; break;
        default: q.cpu_bytes_per_s = x;
        }
        q.objective = i % 2 ? HL_OBJECTIVE_IMPACT : HL_OBJECTIVE_TIME;
        glpk.planner.neurons(glpk.planner.core, mem, &q, &limits, plan, &err);
    }
    static small_ring s;
    for (uint32_t i = 0; i < HL_COUNT(bad) * 4; i++) {
        hl_layer_plan ring = { 0 };
        const double x = bad[i % HL_COUNT(bad)];
        random_ring(&s);
        s.p.k = 1;
        limits.deadline_ns = hl_now_ns() + 200000000;
        switch (i / HL_COUNT(bad)) {
        case 0: s.d[0].alpha_s = x; break;
        case 1: s.d[0].ram_bytes = x; break;
        case 2: s.d[0].disk_bytes_per_s = x; break;
        default: s.p.layer_bytes = x;
        }
        glpk.planner.layers(glpk.planner.core, mem, &s.p, &limits, &ring, &err);
    }
    CHECK_MSG(hl_mem_live_bytes(mem) == before, "%llu bytes are left", (unsigned long long)(hl_mem_live_bytes(mem) - before));
    /* No time at all, several GPUs, another method: refused with a reason. */
    p = big();
    limits.deadline_ns = hl_now_ns() + 1;
    rc = glpk.planner.neurons(glpk.planner.core, mem, &p, &limits, plan, &err);
    CHECK_MSG(rc == HLLM_E_TIMEOUT, "no time: %s", hl_status_name(rc));
    p.n_gpus = 2;
    rc = glpk.planner.neurons(glpk.planner.core, mem, &p, NULL, plan, &err);
    CHECK_MSG(rc == HLLM_E_UNSUPPORTED && strstr(say(), "gpus"), "%s", say());
    /* After all this it still works. */
    p = big();
    limits.deadline_ns = hl_now_ns() + 60000000000u;
    CHECK(glpk.planner.neurons(glpk.planner.core, mem, &p, &limits, plan, &err) == HLLM_OK && plan->gap < 1e-3);
    hl_neuron_plan_free(mem, plan);
}

int main(int argc, char **argv)
{
    const uint32_t n = argc > 1 ? (uint32_t)atoi(argv[1]) : 1000;
    const char *build = getenv("HLLM_TEST_BUILD");
    char dir[4096];
    hl_error_init(&err);
    snprintf(dir, sizeof dir, "%s/lib", build ? build : "build");
    const hl_status rc = hl_module_open_glpk(&err, dir, &glpk);
    if (rc == HLLM_E_NOT_FOUND) SKIP("the GLPK module was not built");
    CHECK_MSG(rc == HLLM_OK, "%s", say());
    REQUIRE(rc == HLLM_OK);
    REQUIRE(hl_mem_new(NULL, &mem) == HLLM_OK);
    CHECK(hl_module_open_glpk(&err, "/nonexistent", &(hl_module){ 0 }) == HLLM_E_NOT_FOUND);
    /* Another ABI number on either side: refused. */
    hl_planner_core other = *glpk.planner.core;
    hl_planner_module made;
    union { void *data; hl_planner_module_entry *fn; } entry = { .data = dlsym(glpk.handle, HL_PLANNER_MODULE_ENTRY) };
    other.abi++;
    CHECK(entry.data && !entry.fn(&other, &made) && entry.fn(glpk.planner.core, &made) && made.abi == HL_PLANNER_MODULE_ABI);
    /* Not a word from GLPK: what the process writes while it works goes to a file that must stay empty. */
    char name[] = "/tmp/hllm-glpk-XXXXXX";
    const int file = mkstemp(name), out = dup(1), errors = dup(2);
    REQUIRE(file >= 0);
    fflush(stdout);
    dup2(file, 1);
    long early = 0;
    for (uint32_t i = 0; i < n; i++) { one_neurons(i); if (i == n / 4) early = resident_pages(); }
    for (uint32_t i = 0; i < n; i++) one_ring(i);
    /* What GLPK keeps per thread goes with the thread. */
    const long more = resident_pages() - early;
    CHECK_MSG(SANITIZED || more < 1024, "%ld pages more after %u problems", more, n);
    faults();
    fflush(stdout);
    struct stat st;
    CHECK(fstat(file, &st) == 0 && st.st_size == 0);
    dup2(out, 1); dup2(errors, 2);
    close(file); close(out); close(errors);
    unlink(name);
    hl_module_close(&glpk);
    hl_error_destroy(&err);
    CHECK(hl_mem_live_bytes(mem) == 0);
    hl_mem_free(mem);
    return check_done();
}
