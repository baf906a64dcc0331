/* mck.h: one budget, many classes: of each class exactly one option, the weights' sum in [lo, hi], the costs' sum least.
 *
 * Both neuron objectives with one GPU are of this kind: a class per layer (an option per number of batches) and per dense item.
 * Exact to `tolerance`, whatever the curves look like; at a deadline or too many states the best so far with an honest bound.
 */
#ifndef HL_MCK_H
#define HL_MCK_H

#include "base/base.h"

typedef struct hl_mck {
    uint32_t n_classes;
    const uint32_t *first;                             /* [n_classes + 1] of each class's options */
    const double *w, *c;                               /* [first[n_classes]] weights strictly rising inside a class, >= 0; costs */
    double lo, hi;
    double tolerance;                                  /* relative: plans this close to the best are as good */
    double enough;                                     /* relative: nearer than this no further effort is made; 0: 1e-7 */
    uint64_t deadline_ns;                              /* 0: none */
    uint32_t max_states;
    /* out */
    uint32_t *choice;                                  /* [n_classes] index inside the class */
    double cost, bound;
    bool found;
    bool complete;                                     /* nothing was dropped: when not found there is none */
} hl_mck;

hl_status hl_mck_solve(hl_mem *mem, hl_mck *p);

/* The lower hull of options from..to-1 over their weights, those alive (NULL: all); the number of indices put into out. */
uint32_t hl_mck_hull(const double *w, const double *c, uint32_t from, uint32_t to, const bool *alive, uint32_t *out);

/* The greatest common divisor of weights that are whole numbers, 0 when they are not (or all 0): budgets may shrink to its multiples. */
double hl_mck_unit(const double *w, uint32_t n);
double hl_mck_floor(double w, double unit);
double hl_mck_ceil(double w, double unit);

#endif
