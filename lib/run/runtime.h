/* runtime.h: the root handle and the ones that hang directly on it: what every other handle stands on.
 *
 * Handles are counted: each child holds one reference on its parent, the host's own reference goes with hllm_..._free, so a host may free
 * in any order.  Counts are atomic; the last one out frees, on whatever thread that is.
 */
#ifndef HL_RUNTIME_H
#define HL_RUNTIME_H

#include "backend.h"
#include "model/model.h"

struct hllm_runtime {
    _Atomic uint32_t refs;
    hl_error err;
    hl_env env;                      /* mem, log, io: what all rooms get */
    hl_pool *pool;
    const char *isa;                 /* the kernel table's own name: static */
    char cpu[128];
};

struct hllm_progress {
    hllm_runtime *rt;
    hl_progress p;
};

struct hllm_model {
    _Atomic uint32_t refs;
    hl_error err;
    hllm_runtime *rt;
    hl_model *model;
    uint32_t flags;
};

hl_status hl_runtime_new(const hllm_runtime_options *opt, hllm_runtime **out);
void hl_runtime_ref(hllm_runtime *rt);
void hl_runtime_unref(hllm_runtime *rt);               /* NULL is fine */

/* Takes g (also on failure). */
hl_status hl_model_handle_new(hllm_runtime *rt, hl_gguf *g, uint32_t flags, const hl_progress *progress, hllm_model **out);
void hl_model_ref(hllm_model *m);
void hl_model_unref(hllm_model *m);

#endif
