/* planner_properties.c: what must hold whatever the numbers: more budget is never worse, order does not matter where it should not, what
 * fits goes to the GPU, a given k is kept; the published heuristic's worked vectors; plans that are not admissible are refused; a time
 * limit gives a plan with an honest gap; 1,000 solves leave memory flat. */
#include <unistd.h>

#include "plan_io.h"
#include "planner_random.h"


static double solve_neurons(const hl_neuron_problem *p, hl_neuron_plan *keep)
{
    hl_neuron_plan *plan = keep;
    if (!keep) REQUIRE(hl_neuron_plan_new(mem, p, &plan) == HLLM_OK);
    const hl_status rc = hl_plan_neurons(mem, p, HL_SOLVER_BUILTIN, NULL, NULL, plan, NULL, &err);
    const double x = rc == HLLM_OK ? plan->objective : NAN;
    CHECK_MSG(rc == HLLM_OK || rc == HLLM_E_NOMEM, "%s", say());
    if (!keep) hl_neuron_plan_free(mem, plan);
    return x;
}

static void monotone_in_budget(void)
{
    static small_neurons s;
    uint32_t tried = 0;
    for (uint32_t i = 0; i < 2000; i++) {
        random_neurons(&s, i % 2, false);
        const double a = solve_neurons(&s.p, NULL);
        s.gpus[pick(s.p.n_gpus)].budget_bytes += pick(3000000);
        s.p.cpu_budget_bytes += pick(3000000);
        const double b = solve_neurons(&s.p, NULL), slack = 1e-9 * fabs(b) + 1e-18;
        if (isnan(a)) continue;
        tried++;
        CHECK_MSG(s.p.objective == HL_OBJECTIVE_IMPACT ? b >= a - slack : b <= a + slack, "%u: %.12g with more budget, %.12g with less", i, b, a);
    }
    CHECK(tried > 800);
}

static void layers_in_any_order(void)
{
    static small_neurons s;
    for (uint32_t i = 0; i < 1000; i++) {
        random_neurons(&s, false, i % 2);
        const double a = solve_neurons(&s.p, NULL);
        for (uint32_t l = s.p.n_layers; l > 1; l--) {
            const uint32_t other = pick(l);
            const hl_neuron_layer x = s.layers[l - 1];
            s.layers[l - 1] = s.layers[other];
            s.layers[other] = x;
        }
        const double b = solve_neurons(&s.p, NULL);
        CHECK_MSG((isnan(a) && isnan(b)) || fabs(a - b) <= 1e-9 * fabs(a) + 1e-18, "%u: %.12g, permuted %.12g", i, a, b);
    }
}

static void all_on_the_gpu(void)
{
    static small_neurons s;
    for (uint32_t i = 0; i < 500; i++) {
        hl_neuron_plan *plan = NULL;
        random_neurons(&s, false, false);
        s.p.launch_s = 0;
        s.gpus[0] = (hl_neuron_gpu){ 1e12, all_bytes(&s.p), 0 };
        for (uint32_t l = 0; l < s.p.n_layers; l++) for (uint32_t b = 0; b < s.layers[l].n_batches; b++) s.freq[l][b] = fmax(s.freq[l][b], 0.01);
        REQUIRE(hl_neuron_plan_new(mem, &s.p, &plan) == HLLM_OK);
        const double got = solve_neurons(&s.p, plan);
        if (s.p.objective == HL_OBJECTIVE_TIME) {      /* without sync a CPU that takes a small share is faster still */
            double all = 0;
            for (uint32_t l = 0; l < s.p.n_layers; l++)
                for (uint32_t b = 0; b < s.layers[l].n_batches; b++)
                    all += s.freq[l][b] * (b + 1 < s.layers[l].n_batches ? 64 : s.layers[l].last_batch_neurons) * s.layers[l].batch_bytes / 64 / 1e12;
            CHECK_MSG(got <= all * (1 + 1e-9), "%u: %.12g s, all on the GPU %.12g s", i, got, all);
        } else for (uint32_t l = 0; l < s.p.n_layers; l++)
            CHECK_MSG(plan->n_gpu[l] == (uint64_t)s.layers[l].batch_neurons * (s.layers[l].n_batches - 1) + s.layers[l].last_batch_neurons, "%u: layer %u has %llu", i, l,
                      (unsigned long long)plan->n_gpu[l]);
        hl_neuron_plan_free(mem, plan);
    }
}

static void rings(void)
{
    static small_ring s;
    hl_layer_plan a, b;
    uint32_t unused = 0;
    for (uint32_t i = 0; i < 2000; i++) {
        random_ring(&s);
        s.p.links = NULL;
        REQUIRE(hl_plan_layers(mem, &s.p, HL_SOLVER_BUILTIN, NULL, NULL, &a, &err) == HLLM_OK);
        if (s.p.k) CHECK(a.k == s.p.k);
        /* A device that is not used can go. */
        for (uint32_t m = 1; m < s.p.n_devices; m++) {
            if (a.layers[m]) continue;
            small_ring t = s;
            memmove(t.d + m, t.d + m + 1, (t.p.n_devices - m - 1) * sizeof *t.d);
            t.p.n_devices--;
            t.p.devices = t.d;
            REQUIRE(hl_plan_layers(mem, &t.p, HL_SOLVER_BUILTIN, NULL, NULL, &b, &err) == HLLM_OK);
            CHECK_MSG(fabs(a.objective - b.objective) <= 1e-9 * a.objective, "%u: %.12g, without device %u %.12g", i, a.objective, m, b.objective);
            unused++;
            break;
        }
        for (uint32_t m = s.p.n_devices; m > 2; m--) {  /* any order behind the head */
            const uint32_t other = 1 + pick(m - 1);
            const hl_ring_device x = s.d[m - 1];
            s.d[m - 1] = s.d[other];
            s.d[other] = x;
        }
        REQUIRE(hl_plan_layers(mem, &s.p, HL_SOLVER_BUILTIN, NULL, NULL, &b, &err) == HLLM_OK);
        CHECK_MSG(fabs(a.objective - b.objective) <= 1e-9 * a.objective, "%u: %.12g, permuted %.12g", i, a.objective, b.objective);
    }
    CHECK(unused > 100);
}

/* ---- the published heuristic ---- */

#define GIB 1073741824.0
static hl_ring_device machine(const char *name, uint32_t os, double alpha_ms, double beta_ms, double disk, double ram, double vram, double cpu_buffer, double gpu_buffer, double output_ms)
{
    return (hl_ring_device){ name, os, alpha_ms / 1e3, beta_ms / 1e3, 0, output_ms / 1e3, disk * 1e9, ram * GIB, 0, vram * GIB, cpu_buffer * GIB, gpu_buffer * GIB };
}

typedef struct vector { uint32_t init, w[4], n[4]; double own_ms, true_ms; } vector;

static void halda(const char *name, hl_layer_problem p, const vector *v)
{
    hl_layer_plan plan, exact;
    p.method = HL_METHOD_HALDA;
    p.halda_init = v->init;
    const hl_status rc = hl_plan_layers(mem, &p, HL_SOLVER_AUTO, NULL, NULL, &plan, &err);
    CHECK_MSG(rc == HLLM_OK, "%s: %s", name, say());
    CHECK_MSG(fabs(plan.halda_objective * 1e3 - v->own_ms) < 0.01, "%s: its own objective is %.3f ms, published %.2f", name, plan.halda_objective * 1e3, v->own_ms);
    CHECK_MSG(fabs(plan.objective * 1e3 - v->true_ms) < 0.01, "%s: true %.3f ms, published %.2f", name, plan.objective * 1e3, v->true_ms);
    for (uint32_t m = 0; m < p.n_devices; m++) CHECK_MSG(plan.layers[m] == v->w[m] && plan.gpu_layers[m] == v->n[m], "%s: device %u has %u, %u", name, m, plan.layers[m], plan.gpu_layers[m]);
    p.method = HL_METHOD_EXACT;
    REQUIRE(hl_plan_layers(mem, &p, HL_SOLVER_BUILTIN, NULL, NULL, &exact, &err) == HLLM_OK);
    CHECK(exact.objective <= plan.objective * (1 + 1e-12) && fabs(plan.bound - exact.objective) < 1e-12);
}

static void halda_vectors(void)
{
    const hl_layer_problem small = { .n_layers = 32, .n_vocab = 128256, .latency = HL_LATENCY_SERIAL, .layer_bytes = 130000000, .kv_bytes_per_layer = 4194304, .input_bytes = 295501824,
                                     .output_bytes = 430940160 };
    const hl_ring_device a[] = { machine("D0", HL_OS_LINUX, 8, 0, 2, 1.5, 0, 0.1, 0, 8), machine("D1", HL_OS_LINUX, 12, 0, 1, 2, 0, 0.1, 0, 0) };
    hl_layer_problem p = small;
    p.n_devices = 2; p.devices = a;
    halda("A code", p, &(vector){ HL_HALDA_CODE, { 16, 16 }, { 0 }, 960.51, 972.41 });
    halda("A paper", p, &(vector){ HL_HALDA_PAPER, { 16, 16 }, { 0 }, 960.51, 972.41 });
    const hl_ring_device c[] = { machine("D0", HL_OS_LINUX, 8, -7, 2, 2, 6, 0.1, 0.9, 8), machine("D1", HL_OS_LINUX, 12, 0, 1, 1, 0, 0.1, 0, 0) };
    p.devices = c;
    halda("C code", p, &(vector){ HL_HALDA_CODE, { 32, 0 }, { 32, 0 }, 37.47, 40.00 });
    halda("C paper", p, &(vector){ HL_HALDA_PAPER, { 32, 0 }, { 32, 0 }, 37.47, 40.00 });
    /* C with a GPU of 2.71 GiB: the first answer is [24, 8], 12 on a GPU that has room for 14 while D1 reads from disk.  So D1 has to fit
     * (at most 7.2 layers): by hand 26 a - 14 b + 6 * 12 is the least then, and D1 with 6 layers stays. */
    const hl_ring_device d[] = { machine("D0", HL_OS_LINUX, 8, -7, 2, 2, 2.71, 0.1, 0.9, 8), machine("D1", HL_OS_LINUX, 12, 0, 1, 1, 0, 0.1, 0, 0) };
    p.devices = d;
    halda("calibrated", p, &(vector){ HL_HALDA_PAPER, { 26, 6 }, { 14, 0 }, 171.25, 190.58 });
    /* The head has one layer and none on a GPU: it is weak, so nothing is made to fit, though D1 has room for 40 layers on its GPU, 29
     * there and 2 that it reads from disk: 99.0 + 31 a - 29 b. */
    const hl_ring_device e[] = { machine("D0", HL_OS_LINUX, 100, 0, 2, 5, 0, 0.1, 0, 8), machine("D1", HL_OS_LINUX, 8, -7, 2, 0.3, 6, 0.1, 0.9, 0) };
    p.devices = e;
    halda("weak head", p, &(vector){ HL_HALDA_PAPER, { 1, 31 }, { 0, 29 }, 178.83, 179.82 });
    const hl_ring_device b[] = { machine("D1", HL_OS_MACOS, 30, 0, 0.7, 2.4, 0, 0.15, 0, 30), machine("D2", HL_OS_LINUX, 22, -18, 3, 4.1, 8, 0.15, 1, 0),
                                 machine("D3", HL_OS_LINUX, 14, -11, 3, 9.7, 11, 0.15, 1, 0), machine("D4", HL_OS_LINUX, 60, 0, 1.4, 1.9, 0, 0.1, 0, 0) };
    p = (hl_layer_problem){ .n_layers = 80, .n_vocab = 128256, .latency = HL_LATENCY_SERIAL, .layer_bytes = 490000000, .kv_bytes_per_layer = 4194304, .input_bytes = 591003648,
                            .output_bytes = 861880320, .n_devices = 4, .devices = b };
    halda("B code", p, &(vector){ HL_HALDA_CODE, { 4, 23, 41, 12 }, { 0, 15, 21, 0 }, 4879.20, 4908.34 });
    halda("B paper", p, &(vector){ HL_HALDA_PAPER, { 4, 24, 48, 4 }, { 0, 15, 21, 0 }, 2793.72, 2822.87 });
    hl_layer_plan plan;
    p.method = HL_METHOD_MEMORY;                       /* 2.4, 12.1, 20.7, 1.9 of 37.1 GiB: 5.2, 26.1, 44.6, 4.1 layers */
    REQUIRE(hl_plan_layers(mem, &p, HL_SOLVER_AUTO, NULL, NULL, &plan, &err) == HLLM_OK);
    CHECK(plan.layers[0] == 5 && plan.layers[1] == 26 && plan.layers[2] == 45 && plan.layers[3] == 4 && plan.gpu_layers[1] == 15 && plan.gpu_layers[2] == 21);
}

/* ---- the released program's order and budget ---- */

static void paper_order(void)
{
    const double freq[] = { 0.9, 0.5, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1 };
    const hl_neuron_layer layers[] = { { 8, 64, 64, 64000, freq }, { 8, 64, 64, 64000, freq } };
    const hl_dense_item dense[] = { { "attention", 100000, 1 }, { "head", 300000, 1 } };
    const hl_neuron_gpu gpu = { 1e12, 500000, 0 };
    hl_neuron_problem p = { .objective = HL_OBJECTIVE_TIME, .method = HL_METHOD_PAPER, .n_gpus = 1, .gpus = &gpu, .n_layers = 2, .layers = layers, .n_dense = 2, .dense = dense,
                            .cpu_bytes_per_s = 5e10, .cpu_budget_bytes = 1e9 };
    hl_neuron_plan *plan = NULL;
    REQUIRE(hl_neuron_plan_new(mem, &p, &plan) == HLLM_OK);
    REQUIRE(hl_plan_neurons(mem, &p, HL_SOLVER_AUTO, NULL, NULL, plan, NULL, &err) == HLLM_OK);
    CHECK(plan->gpu_of_dense[0] == 0 && plan->gpu_of_dense[1] == 0 && plan->n_gpu[0] + plan->n_gpu[1] == 64);      /* 100,000 bytes are left */
    CHECK(plan->objective == plan->seconds_per_token && plan->bound <= plan->objective);
    hl_neuron_gpu small = gpu;                         /* the head misses: no FFN is split, though there is room */
    small.budget_bytes = 399999;
    p.gpus = &small;
    REQUIRE(hl_plan_neurons(mem, &p, HL_SOLVER_AUTO, NULL, NULL, plan, NULL, &err) == HLLM_OK);
    CHECK(plan->gpu_of_dense[0] == 0 && plan->gpu_of_dense[1] == -1 && plan->n_gpu[0] + plan->n_gpu[1] == 0 && plan->gap > 0);
    /* Its budget rule: n_ff * b * 4.5 / 4 a neuron; with n_ff = 3.5 n_embd that is 1.31 times the truth, 24 % stay unused. */
    hl_neuron_gpu large = { 1e12, 400000 + 640000, 0 };
    p.gpus = &large;
    p.paper_n_embd = 512 / 3.5;
    REQUIRE(hl_plan_neurons(mem, &p, HL_SOLVER_AUTO, NULL, NULL, plan, NULL, &err) == HLLM_OK);
    CHECK_MSG(plan->n_gpu[0] + plan->n_gpu[1] == 448, "%llu of 640 neurons", (unsigned long long)(plan->n_gpu[0] + plan->n_gpu[1]));       /* floor(487.6 / 64) * 64 */
    hl_neuron_plan_free(mem, plan);
}

/* ---- check.c refuses ---- */

static void refused(const hl_neuron_problem *p, hl_neuron_plan *plan, const char *why)
{
    const hl_status rc = hl_neuron_plan_value(mem, p, plan, &err);
    CHECK_MSG(rc == HLLM_E_MISMATCH && strstr(say(), why), "%s: %s %s", why, hl_status_name(rc), rc ? say() : "");
}

/* C_l by hand: a neuron of 1,000 bytes saves 0.5 microseconds, so 32 microseconds are 64 of them; what is above that by less than 1e-9 of
 * a neuron is rounding, what is above by more is not. */
static void least_share_rounds(void)
{
    const double freq[] = { 0.5, 0.25 };
    const hl_neuron_layer layer = { 2, 64, 64, 64000, freq };
    for (uint32_t above = 0; above < 2; above++) {
        const hl_neuron_gpu gpu = { 2e9, 64000, 5e-7 * (64 + (above ? 3e-9 : 5e-10)) };
        const hl_neuron_problem p = { .objective = HL_OBJECTIVE_IMPACT, .n_gpus = 1, .gpus = &gpu, .n_layers = 1, .layers = &layer, .cpu_bytes_per_s = 1e9, .cpu_budget_bytes = 1e9 };
        hl_neuron_plan *plan = NULL;
        REQUIRE(hl_neuron_plan_new(mem, &p, &plan) == HLLM_OK);
        const double got = solve_neurons(&p, plan);
        CHECK_MSG(got == (above ? 0 : 32), "%u: impact %.9g", above, got);
        plan->n_gpu[0] = 64; plan->gpu_of_layer[0] = 0;
        CHECK(hl_neuron_plan_value(mem, &p, plan, &err) == (above ? HLLM_E_MISMATCH : HLLM_OK));
        hl_neuron_plan_free(mem, plan);
    }
}

static void wrong_plans(void)
{
    const double freq[] = { 0.2, 0.5, 0.3 };
    const hl_neuron_layer layers[] = { { 3, 64, 10, 64000, freq }, { 3, 64, 10, 64000, freq } };
    const hl_neuron_gpu gpus[] = { { 1e12, 200000, 1e-6 }, { 1e12, 130000, 1e-6 } };
    hl_neuron_problem p = { .objective = HL_OBJECTIVE_IMPACT, .n_gpus = 2, .gpu_list = true, .gpus = gpus, .n_layers = 2, .layers = layers, .cpu_bytes_per_s = 5e10, .cpu_budget_bytes = 1e9 };
    hl_neuron_plan *plan = NULL;
    REQUIRE(hl_neuron_plan_new(mem, &p, &plan) == HLLM_OK);
    plan->gpu_of_layer[0] = -1; plan->gpu_of_layer[1] = 1; plan->n_gpu[1] = 64;
    CHECK(hl_neuron_plan_value(mem, &p, plan, &err) == HLLM_OK && fabs(plan->objective - 32) < 1e-12 && fabs(plan->gpu_bytes[1] - 64000) < 1e-6);
    plan->n_gpu[1] = 65; refused(&p, plan, "hottest batches");
    plan->n_gpu[1] = 74; CHECK(hl_neuron_plan_value(mem, &p, plan, &err) == HLLM_OK);       /* the short batch is the second hottest */
    plan->n_gpu[1] = 128; refused(&p, plan, "hottest batches");
    plan->n_gpu[1] = 138; refused(&p, plan, "above its budget");
    plan->n_gpu[1] = 0; refused(&p, plan, "0 neurons");
    plan->n_gpu[1] = 64; plan->gpu_of_layer[1] = 2; refused(&p, plan, "no GPU");
    plan->gpu_of_layer[0] = 1; plan->n_gpu[0] = 64; plan->gpu_of_layer[1] = 0; refused(&p, plan, "after a layer");
    plan->gpu_of_layer[0] = -1; plan->n_gpu[0] = 0;
    p.cpu_budget_bytes = 200000; refused(&p, plan, "CPU");
    hl_neuron_gpu slow[2] = { gpus[0], gpus[1] };
    slow[0].sync_s = 1;
    p.gpus = slow; p.cpu_budget_bytes = 1e9;
    refused(&p, plan, "fewer than");
    hl_neuron_plan_free(mem, plan);

    hl_ring_device d[] = { machine("head", HL_OS_LINUX, 8, -4, 2, 1, 2, 0.1, 0.5, 0), machine("far", HL_OS_MACOS, 8, 0, 2, 1, 0, 0.1, 0, 0) };
    const double links[] = { 0, -1, 0.001, 0 };
    hl_layer_problem r = { .n_layers = 4, .n_devices = 2, .n_vocab = 1000, .layer_bytes = GIB / 2, .input_bytes = 1e6, .output_bytes = 1e6, .devices = d, .links = links };
    const struct { hl_layer_plan plan; const char *why; } cases[] = {
        { { .k = 1, .layers = { 3, 1 }, .gpu_layers = { 0, 0 } }, "no connection from device 0 (head) to device 1 (far)" },
        { { .k = 3, .layers = { 3, 1 } }, "does not divide" }, { { .k = 2, .layers = { 3, 1 } }, "multiples of k" },
        { { .k = 1, .layers = { 3, 2 } }, "the devices have 5 layers" }, { { .k = 1, .layers = { 4, 0 }, .gpu_layers = { 4, 0 } }, "do not fit on its GPU" },
        { { .k = 1, .layers = { 1, 3 }, .gpu_layers = { 2, 0 } }, "on its GPU of 1" }, { { .k = 0, .layers = { 4, 0 } }, "does not divide" },
        { { .k = 1, .layers = { 3, 1 }, .gpu_layers = { 0, 1 } }, "device 1 (far)" },
    };
    for (uint32_t i = 0; i < HL_COUNT(cases); i++) {
        hl_layer_plan x = cases[i].plan;
        const hl_status rc = hl_layer_plan_value(&r, &x, &err);
        CHECK_MSG(rc == HLLM_E_MISMATCH && strstr(say(), cases[i].why), "%s: %s %s", cases[i].why, hl_status_name(rc), rc ? say() : "");
    }
    r.method = HL_METHOD_MEMORY;                       /* this method cannot route round a cut: its error names the two */
    hl_layer_plan x;
    CHECK(hl_plan_layers(mem, &r, HL_SOLVER_AUTO, NULL, NULL, &x, &err) == HLLM_E_MISMATCH && strstr(say(), "(head) to device 1 (far)"));
}

/* ---- a time limit; many solves ---- */

enum { L = 60, B = 300 };
static hl_neuron_layer layers[L];
static double freq[L][B];

static void time_limit(void)
{
    double total = 0;
    for (uint32_t l = 0; l < L; l++) {
        for (uint32_t b = 0; b < B; b++) freq[l][b] = pow(uniform(0, 1), 3);
        layers[l] = (hl_neuron_layer){ B, 64, 64, 500000 + pick(500000), freq[l] };
        total += B * layers[l].batch_bytes;
    }
    hl_neuron_gpu gpus[] = { { 1e12, total * 0.3, 3e-5 }, { 9e11, total * 0.3, 3e-5 }, { 8e11, total * 0.1, 3e-5 } };
    for (uint32_t n = 1; n <= 3; n += 2) {
        hl_neuron_problem p = { .objective = HL_OBJECTIVE_TIME, .n_gpus = n, .n_layers = L, .gpus = gpus, .gpu_list = n > 1, .layers = layers, .cpu_bytes_per_s = 6e10, .cpu_budget_bytes = 1e12 };
        hl_neuron_plan *plan = NULL;
        double best = INFINITY, bound = -INFINITY;
        REQUIRE(hl_neuron_plan_new(mem, &p, &plan) == HLLM_OK);
        for (uint32_t ms = 1; ms <= 1000; ms *= 10) {
            const hl_plan_limits limits = { .deadline_ns = hl_now_ns() + ms * 1000000ull };
            const double start = (double)hl_now_ns();
            const hl_status rc = hl_plan_neurons(mem, &p, HL_SOLVER_BUILTIN, NULL, &limits, plan, NULL, &err);
            CHECK_MSG(rc == HLLM_OK , "%u ms: %s", ms, say());
            CHECK_MSG(plan->bound <= plan->objective && (plan->gap < 0.05 || (n > 1 && ms < 1000)), "%u GPUs, %u ms: gap %g", n, ms, plan->gap);
            best = fmin(best, plan->objective); bound = fmax(bound, plan->bound);
            CHECK_MSG(((double)hl_now_ns() - start) * 1e-6 < ms + 3000, "%u ms took longer", ms);
        }
        CHECK_MSG(bound <= best * (1 + 1e-9), "bounds contradict plans: %.12g, %.12g", bound, best);
        hl_neuron_plan_free(mem, plan);
    }
}

/* Large enough that nothing enumerates it, in the shapes that hide a gap: runs of layers on several GPUs, budgets that only just hold, whole
 * layers that save a sync, items that are all alike.  The bound that is given is near, and holds for a plan that is found otherwise. */
static void large_problems(void)
{
    static hl_dense_item dense[L];
    for (uint32_t i = 0; i < 13; i++) {
        const bool whole = i == 12, tight = i % 4 == 1 || whole, items = i % 4 == 3;
        const uint32_t n_gpus = whole ? 1 : 1 + i % 3, objective = whole || i / 3 % 2 ? HL_OBJECTIVE_TIME : HL_OBJECTIVE_IMPACT, n_layers = whole ? L : 30, n_batches = whole ? B : 80;
        double total = 0;
        random_state = 100 + i;
        for (uint32_t l = 0; l < n_layers; l++) {
            const double steep = uniform(0.4, 1.2);
            for (uint32_t b = 0; b < n_batches; b++) freq[l][b] = fmin(1, 0.8 * pow(1 + b, -steep) * uniform(0.9, 1.1));
            layers[l] = (hl_neuron_layer){ n_batches, 64, 64, i % 2 || whole ? 700000 + pick(600000) : 884736, freq[l] };
            total += n_batches * layers[l].batch_bytes;
        }
        for (uint32_t d = 0; items && d < n_layers; d++) { dense[d] = (hl_dense_item){ "attention", 16777216, 1 }; total += 16777216; }
        const double share = tight ? 0.7 : 0.4;
        hl_neuron_gpu gpus[3];
        for (uint32_t g = 0; g < n_gpus; g++) gpus[g] = (hl_neuron_gpu){ 1e12 / (1 + g), floor(share * total / n_gpus), objective == HL_OBJECTIVE_TIME && !whole ? 1e-5 : 3e-5 };
        hl_neuron_problem p = { .objective = objective, .n_gpus = n_gpus, .n_layers = n_layers, .gpus = gpus, .gpu_list = n_gpus > 1, .layers = layers, .n_dense = items ? n_layers : 0,
                                .dense = dense, .cpu_bytes_per_s = 6.72e10, .cpu_budget_bytes = tight ? floor((whole ? 0.3001 : 0.305) * total) : 2 * total };
        hl_neuron_plan *plan = NULL;
        const hl_plan_limits few = { .max_states = 2000 };
        REQUIRE(hl_neuron_plan_new(mem, &p, &plan) == HLLM_OK);
        const hl_status rc = hl_plan_neurons(mem, &p, HL_SOLVER_BUILTIN, NULL, &few, plan, NULL, &err);
        CHECK_MSG(rc == HLLM_OK, "%u: %s", i, rc ? say() : "");
        CHECK_MSG(plan->gap <= 1e-4, "%u (%s, %u GPUs%s%s): %.9g, bound %.9g, gap %.2g", i, objective == HL_OBJECTIVE_TIME ? "time" : "impact", n_gpus, tight ? ", tight" : "", items ? ", items" : "",
                  plan->objective, plan->bound, plan->gap);
        hl_neuron_plan_free(mem, plan);
    }
}

static void flat_memory(void)
{
    static small_neurons s;
    static small_ring r;
    const uint64_t before = hl_mem_live_bytes(mem);
    long early = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        hl_plan *plan = NULL, *again = NULL;
        hl_out o = { .mem = mem };
        hl_status rc;
        if (i % 2) {
            random_neurons(&s, i % 4 == 1, i % 8 == 1);
            REQUIRE(hl_plan_new(mem, HL_PLAN_NEURON, &plan) == HLLM_OK);
            plan->neuron = s.p;
            REQUIRE(hl_neuron_plan_new(mem, &plan->neuron, &plan->neuron_plan) == HLLM_OK);
            rc = hl_plan_neurons(mem, &plan->neuron, HL_SOLVER_BUILTIN, NULL, NULL, plan->neuron_plan, NULL, &err);
        } else {
            random_ring(&r);
            REQUIRE(hl_plan_new(mem, HL_PLAN_LAYER, &plan) == HLLM_OK);
            plan->ring = r.p;
            rc = hl_plan_layers(mem, &plan->ring, HL_SOLVER_BUILTIN, NULL, NULL, &plan->layer_plan, &err);
        }
        plan->solved = rc == HLLM_OK;
        if (rc == HLLM_OK) {
            REQUIRE(hl_plan_write(plan, false, &o, &err) == HLLM_OK);
            const hl_status back = hl_plan_read(mem, o.s, o.n, &again, &err);
            CHECK_MSG(back == HLLM_OK, "%u: %s", i, say());
            hl_free(mem, o.s);
            o = (hl_out){ .mem = mem };
            REQUIRE(hl_plan_draw(plan, &o, &err) == HLLM_OK && memcmp(o.s, "<svg", 4) == 0 && strstr(o.s, "</svg>\n"));
        }
        hl_free(mem, o.s);
        hl_plan_free(again);
        hl_plan_free(plan);
        if (i == 200) early = resident_pages();
        CHECK(hl_mem_live_bytes(mem) == before);
    }
    CHECK_MSG(SANITIZED || resident_pages() - early < 256, "%ld pages more after 800 solves", resident_pages() - early);
}

int main(void)
{
    REQUIRE(hl_mem_new(NULL, &mem) == HLLM_OK);
    hl_error_init(&err);
    monotone_in_budget();
    layers_in_any_order();
    all_on_the_gpu();
    rings();
    halda_vectors();
    paper_order();
    least_share_rounds();
    wrong_plans();
    time_limit();
    large_problems();
    flat_memory();
    hl_error_destroy(&err);
    CHECK(hl_mem_live_bytes(mem) == 0);
    hl_mem_free(mem);
    return check_done();
}
