/* spread_runs.h: what spread.c and spread_runs.c share: prices, the program over runs of layers that they imply, and plans for given runs. */
#ifndef HL_SPREAD_RUNS_H
#define HL_SPREAD_RUNS_H

#include "spread.h"

typedef struct hl_spread_trace { uint32_t parent, option; int32_t gpu; } hl_spread_trace;

enum { HL_SPREAD_PRICES = 2 * HL_MAX_GPUS };

/* Where the layers' runs may begin: GPU g's layers are those from cut[g] on, up to cut[g + 1]; cut[0] and cut[n_gpus] are given. */
typedef struct hl_spread_box {
    uint32_t lo[HL_MAX_GPUS + 1], hi[HL_MAX_GPUS + 1];
    double free_lo[HL_MAX_GPUS], free_hi[HL_MAX_GPUS];                   /* bytes of free classes on each GPU: multiples of their unit */
    uint32_t low[HL_MAX_GPUS + 1], high[HL_MAX_GPUS + 1];                /* the cuts between which its prices could not decide */
    double free_mean[HL_MAX_GPUS];                     /* what it would like to have of those bytes */
    double price[HL_SPREAD_PRICES], bound;                               /* of a byte on each GPU; of a free class's byte, on top */
} hl_spread_box;

typedef struct hl_spread_solver {
    hl_mem *mem;
    hl_spread *p;
    uint32_t n, G;
    uint32_t *hull, *hull_first;                       /* lower hulls of the options, [n * G + 1] */
    double least[HL_MAX_GPUS];                         /* bytes that each GPU holds at least, the others being full */
    hl_spread_box root;                                /* every cut; its prices are the best that were found */
    /* at the prices evaluated last */
    double price[HL_MAX_GPUS], constant;               /* of a byte on each GPU; what the budgets give back */
    double *cheapest; uint32_t *cheapest_at;           /* [n * G] */
    double *table;                                     /* [(n - n_free + 1) * G] cost of the layers from il on when GPU g was the last */
    double *free_rest;                                 /* [n_free + 1] the same of the free classes from k on */
    int32_t *path;                                     /* [n] the GPU that a class is allowed */
    uint32_t cut[HL_MAX_GPUS + 1];                     /* the path's runs */
    double free_bytes[HL_MAX_GPUS];                    /* the path's, of free classes */
    double unit;                                       /* of free classes' bytes; 0: they have no prices of their own */
    bool alike;                                        /* they are all the same, a unit each */
    double *widest_rest;                               /* [n + 1] the most weight that the classes from k on can take */
    bool *alive;
    double best, bound, put_aside, put_aside_reduced;
    uint32_t max_states;                               /* of this pass */
    uint64_t pass_deadline_ns;
    hl_spread_trace **traces;
} hl_spread_solver;

/* The bound of a box at prices; beyond: per price, what its plan has beyond what it should; s->path, s->cut: its runs. */
/* How many prices there are. */
static inline uint32_t hl_spread_n_prices(const hl_spread_solver *s) { return s->unit > 0 ? 2 * s->G : s->G; }
double hl_spread_evaluate(hl_spread_solver *s, const hl_spread_box *b, const double *price, double *beyond);
/* Class k at the prices evaluated last, when it is free to choose. */
double hl_spread_free_cost(const hl_spread_solver *s, uint32_t k, int32_t *gpu);
/* Branch and bound over where the runs begin: s->bound, s->root.price, plans in s->p. */
hl_status hl_spread_runs(hl_spread_solver *s);
bool hl_spread_late(const hl_spread_solver *s);
double hl_spread_limit(const hl_spread_solver *s);

#endif
