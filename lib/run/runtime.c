/* runtime.c: makes and frees the root handle and model handles. */
#include "run/runtime.h"

#include <stdio.h>
#include <string.h>

#include "run/machine.h"

enum { MAX_THREADS = 1024 };

hl_status hl_runtime_new(const hllm_runtime_options *opt, hllm_runtime **out)
{
    hl_status rc = HLLM_OK;
    hl_mem *mem = NULL;
    hllm_runtime *rt = NULL;
    hl_error err;
    *out = NULL;
    hl_error_init(&err);
    if (opt->n_threads > MAX_THREADS) {
        rc = hl_fail(&err, HLLM_E_ARG, "n_threads is %u, the limit is %u", opt->n_threads, (uint32_t)MAX_THREADS);
        goto done;
    }
    const char *isa = hl_cpu_isa_pick(opt->isa);
    if (!isa) {
        rc = hl_fail(&err, HLLM_E_UNSUPPORTED, "isa \"%s\" is not supported by this CPU or build; there are: %s", opt->isa ? opt->isa : "", hl_cpu_isa_list());
        goto done;
    }
    if (opt->allocator && (!opt->allocator->alloc || !opt->allocator->free)) {
        rc = hl_fail(&err, HLLM_E_ARG, "allocator: alloc or free is NULL");
        goto done;
    }
    HL_TRY(hl_mem_new(opt->allocator, &mem));
    HL_NEED(rt = hl_alloc_zero(mem, sizeof *rt));
    hl_error_init(&rt->err);
    atomic_store(&rt->refs, 1);
    rt->env.mem = mem;
    rt->isa = isa;
    hl_machine_cpu_name(rt->cpu, sizeof rt->cpu);
    HL_TRY(hl_log_new(mem, &rt->env.log));
    HL_TRY(hl_pool_new(&rt->env, &err, opt->n_threads ? opt->n_threads : hl_machine_cores(), &rt->pool));
    *out = rt; rt = NULL; mem = NULL;
done:
    if (rt) { mem = NULL; hl_runtime_unref(rt); }
    hl_mem_free(mem);
    if (rc != HLLM_OK) {
        hl_error_settle(&err, rc);
        if (opt->error_text && opt->error_capacity) hl_error_copy(&err, opt->error_text, opt->error_capacity);
    }
    hl_error_destroy(&err);
    return rc;
}

void hl_runtime_ref(hllm_runtime *rt) { atomic_fetch_add_explicit(&rt->refs, 1, memory_order_relaxed); }

void hl_runtime_unref(hllm_runtime *rt)
{
    if (!rt || atomic_fetch_sub_explicit(&rt->refs, 1, memory_order_acq_rel) != 1) return;
    hl_mem *mem = rt->env.mem;
    hl_pool_free(rt->pool);
    hl_log_free(mem, rt->env.log);
    hl_error_destroy(&rt->err);
    hl_free(mem, rt);
    hl_mem_free(mem);
}

hl_status hl_model_handle_new(hllm_runtime *rt, hl_gguf *g, uint32_t flags, const hl_progress *progress, hllm_model **out)
{
    hl_status rc = HLLM_OK;
    hl_model *inner = NULL;
    hllm_model *m = NULL;
    *out = NULL;
    HL_TRY(hl_model_new(&rt->env, &rt->err, g, flags, progress, &inner));
    HL_NEED(m = hl_alloc_zero(rt->env.mem, sizeof *m));
    if (progress && atomic_load(&progress->cancelled)) { rc = HLLM_E_CANCELLED; goto done; }
    hl_error_init(&m->err);
    atomic_store(&m->refs, 1);
    hl_runtime_ref(rt);
    m->rt = rt;
    m->flags = flags;
    m->model = inner; inner = NULL;
    *out = m; m = NULL;
done:
    hl_free(rt->env.mem, m);
    hl_model_free(inner);
    return rc;
}

void hl_model_ref(hllm_model *m) { atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed); }

void hl_model_unref(hllm_model *m)
{
    if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1) return;
    hllm_runtime *rt = m->rt;
    hl_model_free(m->model);
    hl_error_destroy(&m->err);
    hl_free(rt->env.mem, m);
    hl_runtime_unref(rt);
}
