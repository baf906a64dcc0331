/* planner.c: how long the built-in solvers take.  Synthetic models of 80 layers: frequencies by a power law whose steepness differs per
 * layer, as published profiles look.  One line per case: milliseconds (median of 5), objective, gap.
 * usage: bench_planner */
#include <stdio.h>

#include "planner_random.h"

enum { L = 80, B = 448, M = 32, RUNS = 5 };
static double freq[L][B];

static int by_size(const void *a, const void *b) { const double x = *(const double *)a, y = *(const double *)b; return x < y ? -1 : x > y; }

static void neurons(const char *name, uint32_t objective, uint32_t sizes, double share, double sync_s, uint32_t n_gpus, double cpu_share, uint32_t n_dense)
{
    hl_neuron_layer layers[L];
    hl_neuron_gpu gpus[4];
    hl_dense_item dense[256];
    double ms[RUNS], total = 0, objective_is = 0, gap = 0;
    random_state = 7;
    for (uint32_t l = 0; l < L; l++) {
        const double steep = uniform(0.4, 1.2);
        for (uint32_t b = 0; b < B; b++) freq[l][b] = fmin(1, 0.8 * pow(1 + b, -steep) * uniform(0.9, 1.1));
        layers[l] = (hl_neuron_layer){ B, 64, 64, sizes == 1 ? 884736 : sizes == 2 ? (l % 8 == 0 ? 1290240 : 884736) : 700000 + pick(600000), freq[l] };
        total += B * layers[l].batch_bytes;
    }
    for (uint32_t d = 0; d < n_dense; d++) { dense[d] = (hl_dense_item){ "attention", 60000000 + pick(40000000), 1 }; total += dense[d].bytes; }
    for (uint32_t g = 0; g < n_gpus; g++) gpus[g] = (hl_neuron_gpu){ 1.008e12 / (1 + g), share * total / n_gpus, sync_s };
    hl_neuron_problem p = { .objective = objective, .n_gpus = n_gpus, .n_layers = L, .n_dense = n_dense, .gpus = gpus, .gpu_list = n_gpus > 1, .cpu_bytes_per_s = 6.72e10,
                            .cpu_budget_bytes = cpu_share * total, .launch_s = 1e-5, .layers = layers, .dense = dense };
    for (uint32_t r = 0; r < RUNS; r++) {
        hl_neuron_plan *plan;
        hl_plan_limits limits = { .deadline_ns = hl_now_ns() + 10000000000u };
        REQUIRE(hl_neuron_plan_new(mem, &p, &plan) == HLLM_OK);
        if (hl_plan_neurons(mem, &p, HL_SOLVER_BUILTIN, NULL, &limits, plan, NULL, &err) != HLLM_OK) puts(say());
        ms[r] = 1e3 * plan->solve_s; objective_is = plan->objective; gap = plan->gap;
        hl_neuron_plan_free(mem, plan);
        if (ms[r] > 3000) { ms[RUNS / 2] = ms[r]; break; }
    }
    if (ms[RUNS / 2] < 3000) qsort(ms, RUNS, sizeof *ms, by_size);
    printf("%-44s %9.2f ms  %.8g  gap %.1e\n", name, ms[RUNS / 2], objective_is, gap);
    fflush(stdout);
}

static void ring(uint32_t n_devices, uint32_t latency, bool linked)
{
    hl_ring_device d[M];
    static double links[M * M];
    double ms[RUNS];
    hl_layer_plan plan = { 0 };
    random_state = n_devices;
    for (uint32_t m = 0; m < n_devices; m++) {
        const bool gpu = pick(2);
        d[m] = (hl_ring_device){ .name = "d", .os = pick(4), .alpha_s = uniform(0.01, 0.06), .hop_s = uniform(1e-4, 7e-3), .output_s = 0.03, .disk_bytes_per_s = uniform(4e8, 3e9),
                                 .ram_bytes = uniform(1, 10) * 1e9, .vram_bytes = gpu ? uniform(4, 12) * 1e9 : 0, .cpu_buffer_bytes = 1.5e8, .gpu_buffer_bytes = gpu ? 1e9 : 0 };
        d[m].beta_s = gpu ? -0.8 * d[m].alpha_s : 0;
    }
    for (uint32_t i = 0; i < M * M; i++) links[i] = pick(8) ? uniform(1e-4, 7e-3) : -1;
    hl_layer_problem p = { .n_layers = L, .n_devices = n_devices, .n_vocab = 128256, .latency = latency, .layer_bytes = 490000000, .kv_bytes_per_layer = 4194304,
                           .input_bytes = 591003648, .output_bytes = 861880320, .devices = d, .links = linked ? links : NULL };
    for (uint32_t r = 0; r < RUNS; r++) {
        REQUIRE(hl_plan_layers(mem, &p, HL_SOLVER_BUILTIN, NULL, NULL, &plan, NULL) == HLLM_OK);
        ms[r] = 1e3 * plan.solve_s;
    }
    qsort(ms, RUNS, sizeof *ms, by_size);
    printf("ring of %2u, 80 layers, all k, %s%-9s        %9.2f ms  %.8g s, k %u\n", n_devices, latency == HL_LATENCY_SERIAL ? "serial " : "overlap", linked ? ", links" : "", ms[RUNS / 2],
           plan.objective, plan.k);
}

int main(void)
{
    REQUIRE(hl_mem_new(NULL, &mem) == HLLM_OK);
    hl_error_init(&err);
    for (uint32_t o = 0; o < 2; o++) {
        const uint32_t objective = o ? HL_OBJECTIVE_TIME : HL_OBJECTIVE_IMPACT;
        const char *const name[] = { "impact, one batch size", "impact, two batch sizes", "impact, every layer its own size", "impact, CPU and GPU only just hold it", "impact, minimum blocks of 150 batches",
                                     "impact, 80 dense items", "impact, 2 GPUs", "impact, 3 GPUs, own sizes", "impact, 2 GPUs, CPU and GPUs only just" };
        const char *const name_t[] = { "time, one batch size", "time, two batch sizes", "time, every layer its own size", "time, CPU and GPU only just hold it", "time, sync of 1 ms",
                                       "time, 80 dense items", "time, 2 GPUs", "time, 3 GPUs, own sizes", "time, 2 GPUs, CPU and GPUs only just" };
        const char *const *n = o ? name_t : name;
        neurons(n[0], objective, 1, 0.3, 3e-5, 1, 2, 0);
        neurons(n[1], objective, 2, 0.3, 3e-5, 1, 2, 0);
        neurons(n[2], objective, 3, 0.3, 3e-5, 1, 2, 0);
        neurons(n[3], objective, 3, 0.7, 3e-5, 1, 0.3001, 0);
        neurons(n[4], objective, 3, 0.1, o ? 1e-3 : 1.85e-3, 1, 2, 0);
        neurons(n[5], objective, 3, 0.4, 3e-5, 1, 2, 80);
        neurons(n[6], objective, 1, 0.4, 3e-5, 2, 2, 0);
        neurons(n[7], objective, 3, 0.4, 3e-5, 3, 2, 0);
        neurons(n[8], objective, 3, 0.7, 3e-5, 2, 0.301, 0);
    }
    const uint32_t sizes[] = { 4, 8, 16, 32 };
    for (uint32_t i = 0; i < 16; i++) ring(sizes[i % 4], i / 4 % 2, i >= 8);
    hl_mem_free(mem);
    return check_done();
}
