/* plan_parts.c: a problem with its answer as one object, and what that means for each device: bytes and seconds by kind.
 *
 * Derived from problem and placement alone, so that a plan that was read says the same as one that was just solved.  Seconds are those that
 * the device itself is busy: CPU and GPU run side by side, so they do not add up to a token's time.
 */
#include "plan_io.h"

#include <stdio.h>
#include <string.h>

/* ---- the object ---- */

hl_status hl_plan_new(hl_mem *mem, uint32_t kind, hl_plan **out)
{
    *out = hl_alloc_zero(mem, sizeof **out);
    if (!*out) return HLLM_E_NOMEM;
    (*out)->mem = mem;
    (*out)->kind = kind;
    return HLLM_OK;
}

void hl_plan_free(hl_plan *plan)
{
    if (!plan) return;
    for (uint32_t i = 0; i < plan->n_blocks; i++) hl_free(plan->mem, plan->blocks[i]);
    hl_free(plan->mem, plan->blocks);
    hl_neuron_plan_free(plan->mem, plan->neuron_plan);
    hl_free(plan->mem, plan);
}

void *hl_plan_alloc(hl_plan *plan, size_t n, size_t each)
{
    if (plan->n_blocks == plan->cap_blocks) {
        const uint32_t cap = plan->cap_blocks ? plan->cap_blocks * 2 : 16;
        void **bigger = hl_realloc(plan->mem, plan->blocks, cap * sizeof *bigger);
        if (!bigger) return NULL;
        plan->blocks = bigger;
        plan->cap_blocks = cap;
    }
    void *p = hl_alloc_array(plan->mem, HL_MAX(n, (size_t)1), each);
    if (p) plan->blocks[plan->n_blocks++] = p;
    return p;
}

char *hl_plan_strdup(hl_plan *plan, const char *s)
{
    const size_t n = strlen(s) + 1;
    char *p = hl_plan_alloc(plan, n, 1);
    if (p) memcpy(p, s, n);
    return p;
}

/* ---- what devices hold ---- */

uint32_t hl_plan_n_devices(const hl_plan *plan) { return plan->kind == HL_PLAN_NEURON ? 1 + plan->neuron.n_gpus : plan->ring.n_devices; }

/* kind: the name up to its first dot. */
static void add_part(hl_plan_device *d, const char *name, double bytes, double seconds)
{
    char kind[sizeof d->parts[0].kind];
    uint32_t i = 0;
    size_t n = strcspn(name, ".");
    if (n >= sizeof kind) n = sizeof kind - 1;
    memcpy(kind, name, n);
    kind[n] = 0;
    d->bytes += bytes;
    d->seconds += seconds;
    while (i < d->n_parts && strcmp(d->parts[i].kind, kind) != 0) i++;
    if (i == d->n_parts) {
        if (i == HL_PLAN_MAX_PARTS) { i--; memcpy(d->parts[i].kind, "other", 6); }
        else { d->n_parts++; memcpy(d->parts[i].kind, kind, sizeof kind); }
    }
    d->parts[i].bytes += bytes;
    d->parts[i].seconds += seconds;
}

/* A layer's FFN on this device: bytes, and the seconds that the device itself is busy with it (CPU and GPU run side by side). */
static void add_ffn(const hl_neuron_problem *p, const hl_neuron_plan *plan, uint32_t il, int32_t dev, hl_plan_device *d)
{
    const hl_neuron_layer *l = &p->layers[il];
    const double each = l->batch_bytes / l->batch_neurons;
    const double all = (double)l->batch_neurons * (l->n_batches - 1) + l->last_batch_neurons, hot = (double)plan->n_gpu[il];
    double active = 0;
    const double active_hot = plan->hot_active[il];
    for (uint32_t ib = 0; ib < l->n_batches; ib++) active += l->freq[ib] * (ib + 1 == l->n_batches ? l->last_batch_neurons : l->batch_neurons);
    if (dev < 0) {
        const bool sync = (hot > 0 && hot < all) || (hot <= 0 && p->dense_on == HL_DENSE_GPU);
        const double sync_s = sync ? p->gpus[HL_MAX(plan->gpu_of_layer[il], 0)].sync_s : 0;
        if (all > hot) add_part(d, "ffn_cold", (all - hot) * each, (active - active_hot) * each / p->cpu_bytes_per_s + sync_s);
    } else if (plan->gpu_of_layer[il] == dev) add_part(d, "ffn_hot", hot * each, active_hot * each / p->gpus[dev].bytes_per_s + p->launch_s);
}

static void ring_device(const hl_plan *plan, uint32_t im, hl_plan_device *d)
{
    const hl_layer_problem *p = &plan->ring;
    const hl_ring_device *x = &p->devices[im];
    const uint32_t l = plan->layer_plan.layers[im], g = plan->layer_plan.gpu_layers[im];
    snprintf(d->name, sizeof d->name, "%s", x->name);
    d->budget_bytes = x->ram_bytes + (x->os == HL_OS_ANDROID ? x->swap_bytes : 0) + x->vram_bytes;
    if (g) add_part(d, "layers_gpu", g * p->layer_bytes, g * (x->alpha_s + x->beta_s));
    if (l > g) add_part(d, "layers_cpu", (l - g) * p->layer_bytes, (l - g) * x->alpha_s);
    if (l) add_part(d, "kv", l * p->kv_bytes_per_layer, 0);
    if (im == 0) add_part(d, "head", p->input_bytes / p->n_vocab + p->output_bytes, x->output_s);
    if (l || im == 0) add_part(d, "scratch", x->cpu_buffer_bytes + (g ? x->gpu_buffer_bytes : 0), 0);
    /* Bytes that are counted above already; with overlap other devices compute meanwhile. */
    const double disk = l || im == 0 ? hl_layer_disk_bytes(p, im, l, g) : 0;
    if (disk > 0) add_part(d, "disk", 0, disk / x->disk_bytes_per_s);
}

void hl_plan_device_get(const hl_plan *plan, uint32_t i, hl_plan_device *out)
{
    const hl_neuron_problem *p = &plan->neuron;
    memset(out, 0, sizeof *out);
    if (plan->kind == HL_PLAN_LAYER) { ring_device(plan, i, out); return; }
    const int32_t dev = (int32_t)i - 1;
    if (dev < 0) snprintf(out->name, sizeof out->name, "cpu");
    else if (p->n_gpus > 1) snprintf(out->name, sizeof out->name, "gpu%d", dev);
    else snprintf(out->name, sizeof out->name, "gpu");
    out->budget_bytes = (dev < 0 ? p->cpu_budget_bytes : p->gpus[dev].budget_bytes) + plan->scratch_bytes[i];
    for (uint32_t id = 0; id < p->n_dense; id++)
        if (plan->neuron_plan->gpu_of_dense[id] == dev)
            add_part(out, p->dense[id].name, p->dense[id].bytes, p->dense[id].touches * p->dense[id].bytes / (dev < 0 ? p->cpu_bytes_per_s : p->gpus[dev].bytes_per_s));
    for (uint32_t il = 0; il < p->n_layers; il++) add_ffn(p, plan->neuron_plan, il, dev, out);
    if (plan->scratch_bytes[i] > 0) add_part(out, "scratch", plan->scratch_bytes[i], 0);
}
