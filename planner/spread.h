/* spread.h: several budgets: the classes of mck.h with a choice of GPU, too.
 *
 * A class keeps everything on the CPU (its cost: cpu_cost, weight 0) or takes one option of one GPU.  The first n_free classes choose
 * freely (dense items), the others are layers in order: the GPU's index never falls from one that has a GPU part to the next.
 */
#ifndef HL_SPREAD_H
#define HL_SPREAD_H

#include "planner.h"

typedef struct hl_spread {
    uint32_t n_gpus, n_free, n_classes;
    const uint32_t *first;                             /* [n_classes * n_gpus + 1] options of class k on GPU g: first[k * n_gpus + g] on */
    const double *w, *c;                               /* weights strictly rising inside, > 0 */
    const double *cpu_cost;                            /* [n_classes] */
    double cap[HL_MAX_GPUS];
    double lo;                                         /* least weight in all */
    double tolerance;
    uint64_t deadline_ns;
    uint32_t max_states;
    /* out */
    int32_t *gpu;                                      /* [n_classes] -1: CPU */
    uint32_t *option;                                  /* [n_classes] index into w, c */
    double cost, bound;
    bool found, complete;
} hl_spread;

hl_status hl_spread_solve(hl_mem *mem, hl_spread *p);

#endif
