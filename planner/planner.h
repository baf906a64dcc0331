/* planner.h: placement problems in, placement plans out: numbers with units, no files of models, no devices.
 *
 * Two problems.  Neurons: which neurons of each layer's FFN lie on a GPU and which stay with the CPU (PowerInfer's).  Layers: how many
 * layers each machine of a ring holds, how many of them on its GPU, and in how many rounds (prima.cpp's).  Both are solved exactly:
 * neurons.c (mck.c with one GPU, spread.c and spread_runs.c with several), layers.c; halda.c is the published heuristic, for comparison.  check.c values and
 * verifies any plan and shares no code with them; plan_io.c reads and writes JSON, plan_draw.c draws.  ilp_glpk.c is a module of its own.
 *
 * Bytes are doubles: whole numbers up to 2^53.  Every function may be called from any thread; problems are borrowed until return.
 */
#ifndef HL_PLANNER_H
#define HL_PLANNER_H

#include "base/base.h"

enum { HL_OBJECTIVE_TIME = 0, HL_OBJECTIVE_IMPACT = 1 };
enum { HL_METHOD_EXACT = 0, HL_METHOD_PAPER = 1, HL_METHOD_HALDA = 2, HL_METHOD_MEMORY = 3 };
enum { HL_SOLVER_AUTO = 0, HL_SOLVER_BUILTIN = 1, HL_SOLVER_GLPK = 2 };
enum { HL_DENSE_UNSTATED = 0, HL_DENSE_CPU = 1, HL_DENSE_GPU = 2 };           /* where the rest of a layer runs */
enum { HL_LATENCY_SERIAL = 0, HL_LATENCY_OVERLAP = 1 };
enum { HL_OS_LINUX = 0, HL_OS_ANDROID = 1, HL_OS_MACOS = 2, HL_OS_METAL = 3 };
enum { HL_HALDA_CODE = 0, HL_HALDA_PAPER = 1 };

enum {
    HL_MAX_GPUS = 8, HL_MAX_NEURON_LAYERS = 10000, HL_MAX_DENSE = 65536, HL_MAX_RING_LAYERS = 4096, HL_MAX_RING_DEVICES = 64,
    HL_MAX_BATCHES = 1 << 22                           /* of all layers together */
};
#define HL_MAX_BYTES 9007199254740992.0                /* 2^53: every byte count, and their sum */
/* Budgets are met to rounding: sums of fractions of a batch are not exact. */
#define HL_BUDGET_SLACK 1e-12

/* ---- neurons ---- */

typedef struct hl_neuron_gpu { double bytes_per_s, budget_bytes, sync_s; } hl_neuron_gpu;

typedef struct hl_neuron_layer {
    uint32_t n_batches;
    uint32_t batch_neurons, last_batch_neurons;        /* the last may be shorter */
    double batch_bytes;                                /* of a whole batch */
    const double *freq;                                /* [n_batches] in 0..1, any order; equal ones: the earlier is hotter */
} hl_neuron_layer;

typedef struct hl_dense_item { const char *name; double bytes, touches; } hl_dense_item;      /* name: for people */

typedef struct hl_neuron_problem {
    uint32_t objective, method, dense_on;
    uint32_t n_gpus, n_layers, n_dense;
    bool gpu_list;                                     /* written as a list, and so is the answer */
    const hl_neuron_gpu *gpus;                         /* [n_gpus] */
    double cpu_bytes_per_s, cpu_budget_bytes;
    double launch_s;
    const hl_neuron_layer *layers;                     /* [n_layers] */
    const hl_dense_item *dense;                        /* [n_dense] */
    /* Method "paper" only: its budget rule counts a neuron by n_ff where it should by n_embd.  0: the true size is taken. */
    double paper_n_embd;
    bool paper_ungated;                                /* two matrices, not three */
} hl_neuron_problem;

/* Arrays are given by the caller: see hl_neuron_plan_new. */
typedef struct hl_neuron_plan {
    uint64_t *n_gpu;                                   /* [n_layers] neurons on the GPU */
    int32_t *gpu_of_layer;                             /* [n_layers] -1: none */
    int32_t *gpu_of_dense;                             /* [n_dense] -1: CPU */
    double *hot_active;                                /* [n_layers] expected activations of the GPU part; filled by check.c */
    double objective, bound, gap, seconds_per_token;
    double gpu_bytes[HL_MAX_GPUS], cpu_bytes;
    double solve_s;
    const char *solver;                                /* "builtin", "glpk" */
} hl_neuron_plan;

/* ---- layers ---- */

typedef struct hl_ring_device {
    const char *name;                                  /* for messages */
    uint32_t os;
    double alpha_s, beta_s, hop_s, output_s;
    double disk_bytes_per_s, ram_bytes, swap_bytes, vram_bytes, cpu_buffer_bytes, gpu_buffer_bytes;
} hl_ring_device;

typedef struct hl_layer_problem {
    uint32_t n_layers, n_devices, n_vocab, k, latency, method;           /* k 0: choose */
    double layer_bytes, kv_bytes_per_layer, input_bytes, output_bytes;
    const hl_ring_device *devices;                     /* [n_devices]; 0 is the head */
    const double *links;                               /* [n_devices][n_devices] seconds, < 0: none; NULL: hop_s */
    uint32_t halda_init;
    double master_priority;                            /* 0: 1.01 */
} hl_layer_problem;

typedef struct hl_layer_plan {
    uint32_t k;
    uint32_t layers[HL_MAX_RING_DEVICES], gpu_layers[HL_MAX_RING_DEVICES];
    double objective, bound, gap;
    double halda_objective;                            /* method halda only */
    double solve_s;
    const char *solver;
} hl_layer_plan;

/* ---- solving ---- */

/* What an impossible problem lacks: filled with HLLM_E_NOMEM. */
typedef struct hl_plan_shortage { double bytes_needed, bytes_available; } hl_plan_shortage;

typedef struct hl_plan_limits {
    uint64_t deadline_ns;                              /* of hl_now_ns; 0: none.  After it the best plan so far is given, with its gap */
    uint32_t max_states;                               /* 0: the default.  More are dropped, and the bound says what that may cost */
    uint32_t glpk_memory_mb;                           /* 0: the default */
    bool per_batch;                                    /* GLPK, impact: the paper's form, a binary per batch (slow; for comparison) */
} hl_plan_limits;

/* Every number is finite and in range; err names the field.  Every solver wants a problem that was checked. */
hl_status hl_neuron_problem_check(const hl_neuron_problem *p, hl_error *err);
hl_status hl_layer_problem_check(const hl_layer_problem *p, hl_error *err);

hl_status hl_neuron_plan_new(hl_mem *mem, const hl_neuron_problem *p, hl_neuron_plan **out);
void hl_neuron_plan_free(hl_mem *mem, hl_neuron_plan *plan);

/* HLLM_E_NOMEM: impossible.  HLLM_E_TIMEOUT: no admissible plan was found in the time (there may be one). */
hl_status hl_neuron_solve(hl_mem *mem, const hl_neuron_problem *p, const hl_plan_limits *limits, hl_neuron_plan *plan,
                          hl_plan_shortage *shortage, hl_error *err);
hl_status hl_layer_solve(hl_mem *mem, const hl_layer_problem *p, const hl_plan_limits *limits, hl_layer_plan *plan, hl_error *err);
/* The two methods that are only for comparison. */
hl_status hl_layer_halda(hl_mem *mem, const hl_layer_problem *p, hl_layer_plan *plan, hl_error *err);
hl_status hl_layer_memory(const hl_layer_problem *p, hl_layer_plan *plan, hl_error *err);

/* ---- the module with GLPK (ilp_glpk.c), and one call for all (solve.c) ---- */

enum { HL_PLANNER_MODULE_ABI = 1 };

/* What a module is given instead of symbols of the core, which exports none for it. */
typedef struct hl_planner_core {
    uint32_t abi;
    void *(*alloc)(hl_mem *mem, size_t bytes);
    void (*free)(hl_mem *mem, void *block);
    hl_status (*fail)(hl_error *e, hl_status code, const char *fmt, ...) HL_PRINTF(3, 4);
    uint64_t (*now_ns)(void);
} hl_planner_core;

/* The caller names the solver in the plan.  HLLM_E_UNSUPPORTED: something that it does not model; the text names it.  HLLM_E_TIMEOUT: no plan in the time and memory given. */
typedef struct hl_planner_module {
    uint32_t abi;
    const char *name;
    const hl_planner_core *core;
    hl_status (*neurons)(const hl_planner_core *core, hl_mem *mem, const hl_neuron_problem *p, const hl_plan_limits *limits, hl_neuron_plan *plan, hl_error *err);
    hl_status (*layers)(const hl_planner_core *core, hl_mem *mem, const hl_layer_problem *p, const hl_plan_limits *limits, hl_layer_plan *plan, hl_error *err);
} hl_planner_module;

/* The module's one exported name.  False: another ABI. */
#define HL_PLANNER_MODULE_ENTRY "hllm_planner_module"
typedef bool hl_planner_module_entry(const hl_planner_core *core, hl_planner_module *out);

/* Checks the problem, solves it by its method, verifies the answer.  glpk may be NULL. */
hl_status hl_plan_neurons(hl_mem *mem, const hl_neuron_problem *p, uint32_t solver, const hl_planner_module *glpk, const hl_plan_limits *limits,
                          hl_neuron_plan *plan, hl_plan_shortage *shortage, hl_error *err);
hl_status hl_plan_layers(hl_mem *mem, const hl_layer_problem *p, uint32_t solver, const hl_planner_module *glpk, const hl_plan_limits *limits,
                         hl_layer_plan *plan, hl_error *err);

/* ---- checking (check.c) ---- */

/* Verifies the placement and fills objective, seconds_per_token and bytes; HLLM_E_MISMATCH with the reason when it is not admissible. */
hl_status hl_neuron_plan_value(hl_mem *mem, const hl_neuron_problem *p, hl_neuron_plan *plan, hl_error *err);
hl_status hl_layer_plan_value(const hl_layer_problem *p, hl_layer_plan *plan, hl_error *err);
/* What a device of a ring reads from its disk for each token (without a stream buffer's share). */
double hl_layer_disk_bytes(const hl_layer_problem *p, uint32_t im, uint32_t layers, uint32_t gpu_layers);
/* |objective - bound| / |bound|; 0 when equal, 1 when only the bound is 0. */
double hl_plan_gap(double objective, double bound);

#endif
