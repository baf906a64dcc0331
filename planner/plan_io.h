/* plan_io.h: a problem with its answer, as an object and as JSON.  Format: the comment in plan_io.c. */
#ifndef HL_PLAN_IO_H
#define HL_PLAN_IO_H

#include "planner.h"

enum { HL_PLAN_NEURON = 1, HL_PLAN_LAYER = 2 };
enum { HL_PLAN_VERSION = 1, HL_PLAN_MAX_PARTS = 24 };

/* The file that a plan was made for. */
typedef struct hl_plan_model {
    bool known;
    uint64_t hash, file_bytes;                         /* of everything before the tensors' data; of all shards */
    uint32_t n_ctx;
    char name[128];
} hl_plan_model;

typedef struct hl_plan {
    hl_mem *mem;
    uint32_t kind;
    hl_neuron_problem neuron; hl_neuron_plan *neuron_plan;
    hl_layer_problem ring; hl_layer_plan layer_plan;
    bool solved;
    hl_plan_model model;
    double scratch_bytes[1 + HL_MAX_GPUS];             /* CPU, GPUs: set aside before the budgets were given */
    double scratch_missing, gpu_scratch_bytes;         /* what the CPU's budget is short of its scratch; what a GPU's would be */
    bool uniform;                                      /* no activation statistics: every neuron counts alike */
    void **blocks; uint32_t n_blocks, cap_blocks;      /* what the problem's arrays and names live in */
} hl_plan;

hl_status hl_plan_new(hl_mem *mem, uint32_t kind, hl_plan **out);
void hl_plan_free(hl_plan *plan);
/* Zeroed memory that lives as long as the plan. */
void *hl_plan_alloc(hl_plan *plan, size_t n, size_t each);
char *hl_plan_strdup(hl_plan *plan, const char *s);

/* What one device holds and spends, by kind.  Devices of a neuron plan: 0 the CPU, then the GPUs; of a layer plan: the ring's. */
typedef struct hl_plan_part { char kind[32]; double bytes, seconds; } hl_plan_part;
typedef struct hl_plan_device {
    char name[64];
    double budget_bytes, bytes, seconds;
    uint32_t n_parts;
    hl_plan_part parts[HL_PLAN_MAX_PARTS];
} hl_plan_device;
uint32_t hl_plan_n_devices(const hl_plan *plan);
void hl_plan_device_get(const hl_plan *plan, uint32_t i, hl_plan_device *out);

/* Text that grows. */
typedef struct hl_out { hl_mem *mem; char *s; size_t n, cap; bool failed; } hl_out;
void hl_out_add(hl_out *o, const char *s, size_t n);
void hl_out_printf(hl_out *o, const char *fmt, ...) HL_PRINTF(2, 3);

/* Reads a problem, not yet solved. */
hl_status hl_plan_read_problem(hl_mem *mem, const char *text, size_t bytes, hl_plan **out, hl_error *err);
/* Reads a plan file and verifies it. */
hl_status hl_plan_read(hl_mem *mem, const char *text, size_t bytes, hl_plan **out, hl_error *err);
/* NUL-ended; take o->s with hl_free.  answer: what `hllm plan --json` prints; else the whole file. */
hl_status hl_plan_write(const hl_plan *plan, bool answer, hl_out *o, hl_error *err);
hl_status hl_plan_draw(const hl_plan *plan, hl_out *o, hl_error *err);

#endif
