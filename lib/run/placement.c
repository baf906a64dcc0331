/* placement.c: what a model's tensors are to the planner.  Reads the header only: sizes and roles, never data.
 *
 * Per layer: the FFN's neurons (a neuron is a row of gate, up and transposed down: their bytes over n_ff), one dense item "attention.N"
 * with all else that the layer has, one "kv.N" for its KV cache at the context, one "predictor.N" where the file has predictors.  Per model:
 * "head" (last norm and output matrix, read once a token) and, when it is not the head, "embedding" (one row a token).  Scratch lies on
 * every device that computes and is taken from its budget first.  All of them compete for one budget, by touches per token.
 */
#include "run/placement.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "run/engine.h"
#include "run/machine.h"
#include "run/session.h"

enum { BATCH_NEURONS = 64 };
#define DEFAULT_SYNC_S 3e-5

hl_status hl_plan_handle_new(hllm_runtime *rt, hl_plan *plan, hllm_plan **out)
{
    hl_status rc = HLLM_OK;
    hllm_plan *p = NULL;
    const uint32_t n = hl_plan_n_devices(plan);
    *out = NULL;
    HL_NEED(p = hl_alloc_zero(rt->env.mem, sizeof *p));
    hl_error_init(&p->err);
    hl_runtime_ref(rt);
    p->rt = rt;
    p->plan = plan; plan = NULL;
    HL_NEED(p->devices = hl_alloc_array(rt->env.mem, n, sizeof *p->devices));
    for (uint32_t i = 0; i < n; i++) hl_plan_device_get(p->plan, i, &p->devices[i]);
    *out = p; p = NULL;
done:
    hl_plan_handle_free(p);
    hl_plan_free(plan);
    return rc;
}

void hl_plan_handle_free(hllm_plan *p)
{
    if (!p) return;
    hllm_runtime *rt = p->rt;
    hl_plan_free(p->plan);
    hl_free(rt->env.mem, p->devices);
    hl_error_destroy(&p->err);
    hl_free(rt->env.mem, p);
    hl_runtime_unref(rt);
}

uint32_t hl_placement_context(const hllm_model *m, uint32_t n_ctx)
{
    return n_ctx ? n_ctx : HL_MIN(m->model->config.n_ctx_train, 4096u);
}

/* ---- bytes by part ---- */

typedef struct layer_bytes { uint64_t ffn, attention, predictor; } layer_bytes;

/* "blk.N." at the front of name: N, and the rest of the name; UINT32_MAX without one. */
static uint32_t block_of(const char *name, const char **rest)
{
    uint64_t n = 0;
    const char *s = name;
    *rest = name;
    if (strncmp(s, "blk.", 4) != 0) return UINT32_MAX;
    for (s += 4; *s >= '0' && *s <= '9' && n < UINT32_MAX; s++) n = n * 10 + (uint64_t)(*s - '0');
    if (*s != '.' || n >= UINT32_MAX) return UINT32_MAX;
    *rest = s + 1;
    return (uint32_t)n;
}

static bool is_ffn(const hl_layer *l, const hl_gguf_tensor *t) { return t == l->t[HL_FFN_GATE] || t == l->t[HL_FFN_UP] || t == l->t[HL_FFN_DOWN] || t == l->t[HL_FFN_DOWN_T]; }

static void count(const hl_model *m, layer_bytes *layers, uint64_t *head, uint64_t *embedding)
{
    *head = *embedding = 0;
    for (uint32_t i = 0; i < m->gguf->n_tensors; i++) {
        const hl_gguf_tensor *t = &m->gguf->tensors[i];
        const char *rest;
        const uint32_t il = block_of(t->name, &rest);
        if (il >= m->config.n_layers) {
            if (t == m->t[HL_EMBED] && m->t[HL_HEAD] != m->t[HL_EMBED]) *embedding += t->bytes;
            else *head += t->bytes;
        } else if (t == m->layers[il].t[HL_FFN_HEAT]) continue;       /* read while planning only */
        else if (is_ffn(&m->layers[il], t)) layers[il].ffn += t->bytes;
        else if (strncmp(rest, "fc1.", 4) == 0 || strncmp(rest, "fc2.", 4) == 0) layers[il].predictor += t->bytes;
        else layers[il].attention += t->bytes;
    }
}

/* ---- the problem ---- */

static hl_status add_item(hl_plan *plan, hl_dense_item *items, uint32_t *n, const char *kind, uint32_t il, double bytes, double touches)
{
    char name[48];
    if (bytes <= 0) return HLLM_OK;
    if (il == UINT32_MAX) snprintf(name, sizeof name, "%s", kind);
    else snprintf(name, sizeof name, "%s.%u", kind, il);
    items[*n] = (hl_dense_item){ hl_plan_strdup(plan, name), bytes, touches };
    return items[(*n)++].name ? HLLM_OK : HLLM_E_NOMEM;
}

static hl_status dense_items(const hl_model *m, const layer_bytes *bytes, uint64_t head, uint64_t embedding, const hl_session_sizes *sizes, uint32_t kv, hl_plan *plan)
{
    hl_status rc = HLLM_OK;
    hl_neuron_problem *p = &plan->neuron;
    const hl_config *c = &m->config;
    hl_dense_item *items;
    uint32_t n = 0;
    HL_NEED(items = hl_plan_alloc(plan, 3 * (size_t)c->n_layers + 2, sizeof *items));
    /* The order is the published program's (method paper): attention, predictors, head, KV. */
    for (uint32_t il = 0; il < c->n_layers; il++) HL_TRY(add_item(plan, items, &n, "attention", il, (double)bytes[il].attention, 1));
    for (uint32_t il = 0; il < c->n_layers; il++) HL_TRY(add_item(plan, items, &n, "predictor", il, (double)bytes[il].predictor, 1));
    HL_TRY(add_item(plan, items, &n, "head", UINT32_MAX, (double)head, 1));
    for (uint32_t il = 0; il < c->n_layers; il++) HL_TRY(add_item(plan, items, &n, "kv", il, (double)hl_session_kv_bytes(m, il, sizes, kv), 1));
    HL_TRY(add_item(plan, items, &n, "embedding", UINT32_MAX, (double)embedding, 1.0 / HL_MAX(c->n_vocab, 1u)));
    p->dense = items;
    p->n_dense = n;
done:
    return rc;
}

/* A prepared file's counts, as the mean share of tokens that touch a neuron of each batch: it has them from hot to cold.  Files without, and headers
 * whose data have not come yet, keep 1. */
static hl_status batch_heat(const hl_model *m, hl_error *err, uint32_t il, double *freq, uint32_t batches, hl_plan *plan)
{
    hl_status rc = HLLM_OK;
    const hl_gguf_tensor *t = m->layers[il].t[HL_FFN_HEAT];
    const uint32_t n_ff = m->layers[il].n_ff;
    float *heat = NULL;
    double before = 1;
    if (!t || !m->sparse.n_tokens || t->at + t->bytes > m->gguf->shards[t->shard].bytes) goto done;
    HL_NEED(heat = hl_alloc_array(m->env->mem, n_ff, sizeof *heat));
    HL_TRY(hl_model_read_f32(m, err, t, 0, heat, n_ff));
    for (uint32_t ib = 0; ib < batches; ib++) {
        double sum = 0;
        const uint32_t i0 = ib * BATCH_NEURONS, i1 = HL_MIN(n_ff, i0 + BATCH_NEURONS);
        for (uint32_t i = i0; i < i1; i++) sum += heat[i] > 0 ? (double)heat[i] : 0;
        freq[ib] = HL_MIN(before, sum / ((double)(i1 - i0) * (double)m->sparse.n_tokens));   /* a NaN is no count */
        before = freq[ib];
    }
    plan->uniform = false;
done:
    hl_free(m->env->mem, heat);
    return rc;
}

static hl_status neuron_layers(const hl_model *m, const layer_bytes *bytes, hl_error *err, hl_plan *plan)
{
    hl_status rc = HLLM_OK;
    hl_neuron_problem *p = &plan->neuron;
    hl_neuron_layer *layers;
    uint32_t n = 0;
    plan->uniform = true;
    HL_NEED(layers = hl_plan_alloc(plan, m->config.n_layers, sizeof *layers));
    for (uint32_t il = 0; il < m->config.n_layers; il++) {
        const uint32_t n_ff = m->layers[il].n_ff;
        if (!n_ff || !bytes[il].ffn) continue;
        const uint32_t batches = (n_ff + BATCH_NEURONS - 1) / BATCH_NEURONS;
        double *freq;
        HL_NEED(freq = hl_plan_alloc(plan, batches, sizeof *freq));
        for (uint32_t ib = 0; ib < batches; ib++) freq[ib] = 1;             /* dense: every neuron, every token */
        HL_TRY(batch_heat(m, err, il, freq, batches, plan));
        layers[n++] = (hl_neuron_layer){ batches, HL_MIN(BATCH_NEURONS, n_ff), n_ff - (batches - 1) * BATCH_NEURONS,
                                         (double)bytes[il].ffn / n_ff * HL_MIN(BATCH_NEURONS, n_ff), freq };
    }
    p->layers = layers;
    p->n_layers = n;
done:
    return rc;
}

/* Budgets less scratch.  A GPU's scratch is a session's, as the CPU's: whatever part of a layer it computes, activations lie there, too. */
static hl_status devices(const hllm_model *m, const hllm_plan_options *opt, const hl_session_sizes *sizes, hl_plan *plan)
{
    hl_status rc = HLLM_OK;
    hl_neuron_problem *p = &plan->neuron;
    hl_error *err = (hl_error *)(uintptr_t)&m->err;
    hl_neuron_gpu *gpus;
    uint64_t total, available;
    hl_machine_memory(&total, &available);
    const double cpu = opt->cpu_budget_bytes ? (double)opt->cpu_budget_bytes : (double)available;
    p->cpu_bytes_per_s = opt->cpu_bytes_per_s;
    if (p->cpu_bytes_per_s == 0)
        p->cpu_bytes_per_s = hl_cpu_measure_read(&m->rt->env, m->rt->pool, (size_t)HL_MIN(HL_MAX(available / 4, (uint64_t)16 << 20), (uint64_t)512 << 20));
    if (!(p->cpu_bytes_per_s > 0)) { rc = hl_fail(err, HLLM_E_ARG, "options.cpu_bytes_per_s: no speed is given, and none could be measured"); goto done; }
    plan->scratch_bytes[0] = (double)sizes->scratch_bytes;
    plan->scratch_missing = HL_MAX(0.0, plan->scratch_bytes[0] - cpu);
    plan->gpu_scratch_bytes = (double)(sizes->scratch_bytes - HL_MIN(sizes->host_bytes, sizes->scratch_bytes));
    p->cpu_budget_bytes = HL_MAX(0.0, cpu - plan->scratch_bytes[0]);
    p->n_gpus = HL_MAX(opt->n_gpus, 1u);
    p->gpu_list = opt->n_gpus > 1;
    HL_NEED(gpus = hl_plan_alloc(plan, p->n_gpus, sizeof *gpus));
    p->gpus = gpus;
    gpus[0] = (hl_neuron_gpu){ p->cpu_bytes_per_s, 0, 0 };                  /* none: one that holds nothing */
    for (uint32_t g = 0; g < opt->n_gpus; g++) {
        const double bytes = (double)opt->gpus[g].budget_bytes, scratch = plan->gpu_scratch_bytes;
        plan->scratch_bytes[1 + g] = bytes > scratch ? scratch : 0;
        gpus[g] = (hl_neuron_gpu){ opt->gpus[g].bytes_per_s, bytes > scratch ? bytes - scratch : 0, opt->gpus[g].sync_s > 0 ? opt->gpus[g].sync_s : DEFAULT_SYNC_S };
    }
done:
    return rc;
}

hl_status hl_placement_problem(const hllm_model *h, const hllm_plan_options *opt, uint32_t n_ctx, hl_plan **out)
{
    hl_status rc = HLLM_OK;
    const hl_model *m = h->model;
    hl_error *err = (hl_error *)(uintptr_t)&h->err;
    hl_plan *plan = NULL;
    hl_session_sizes sizes;
    layer_bytes *bytes = NULL;
    uint64_t head, embedding;
    *out = NULL;
    if (!m->family) return hl_fail(err, HLLM_E_STATE, "%s: the model was opened for its vocabulary only", hl_gguf_path(m->gguf));
    HL_TRY(hl_session_sizes_for(m, &(hllm_session_options){ sizeof(hllm_session_options), n_ctx, opt->kv, 0, NULL }, err, &sizes));
    HL_TRY(hl_plan_new(h->rt->env.mem, HL_PLAN_NEURON, &plan));
    HL_NEED(bytes = hl_plan_alloc(plan, m->config.n_layers, sizeof *bytes));
    count(m, bytes, &head, &embedding);
    plan->neuron.objective = opt->objective == HLLM_OBJECTIVE_IMPACT ? HL_OBJECTIVE_IMPACT : HL_OBJECTIVE_TIME;
    plan->neuron.paper_n_embd = m->config.n_embd;
    plan->neuron.paper_ungated = !m->family->gated;
    HL_TRY(devices(h, opt, &sizes, plan));
    HL_TRY(dense_items(m, bytes, head, embedding, &sizes, opt->kv, plan));
    HL_TRY(neuron_layers(m, bytes, err, plan));
    HL_TRY(hl_neuron_problem_check(&plan->neuron, err));
    HL_TRY(hl_neuron_plan_new(plan->mem, &plan->neuron, &plan->neuron_plan));
    plan->model = (hl_plan_model){ .known = true, .hash = m->gguf->table_hash, .file_bytes = HL_MAX(m->gguf->file_bytes, m->gguf->data_bytes), .n_ctx = sizes.n_ctx };
    hl_text_printable(plan->model.name, sizeof plan->model.name, m->name && *m->name ? m->name : m->family_name);
    *out = plan; plan = NULL;
done:
    hl_plan_free(plan);
    return rc;
}

/* ---- does it fit? ---- */

/* A plan made from a download that had only begun knows where the data end; a file may have padding after that. */
hl_status hl_placement_check_model(const hl_plan *plan, const hl_model *m, hl_error *err)
{
    const hl_gguf *g = m->gguf;
    const uint64_t bytes = HL_MAX(g->file_bytes, g->data_bytes);
    if (!plan->model.known) return hl_fail(err, HLLM_E_MISMATCH, "the plan was made for a problem, not for a model's file");
    if (plan->model.hash != g->table_hash)
        return hl_fail(err, HLLM_E_MISMATCH, "%s: header and tensor table have the hash %016" PRIx64 ", the plan was made for %016" PRIx64 " (%s)", hl_gguf_path(g), g->table_hash,
                       plan->model.hash, plan->model.name);
    if (plan->model.file_bytes != bytes && plan->model.file_bytes != g->data_bytes)
        return hl_fail(err, HLLM_E_MISMATCH, "%s: %" PRIu64 " bytes, the plan was made for %" PRIu64, hl_gguf_path(g), bytes, plan->model.file_bytes);
    return HLLM_OK;
}

hl_status hl_placement_check_machine(const hl_plan *plan, hl_error *err)
{
    uint64_t total, available;
    hl_machine_memory(&total, &available);
    if (plan->kind != HL_PLAN_NEURON) return hl_fail(err, HLLM_E_UNSUPPORTED, "a ring's plan is checked by the ring's machines");
    for (uint32_t g = 0; g < plan->neuron.n_gpus; g++)
        if (plan->neuron_plan->gpu_bytes[g] > 0) return hl_fail(err, HLLM_E_MISMATCH, "the plan puts %" PRIu64 " bytes on GPU %u: there is none here", (uint64_t)plan->neuron_plan->gpu_bytes[g], g);
    const double need = plan->neuron_plan->cpu_bytes + plan->scratch_bytes[0];
    if (need > (double)available)
        return hl_fail(err, HLLM_E_NOMEM, "the plan puts %" PRIu64 " bytes in memory, %" PRIu64 " are available", (uint64_t)need, available);
    return HLLM_OK;
}
