/* problem.c: are a problem's numbers numbers, and in range?  The solvers rely on it: every count is at least 1 where they divide, every
 * speed above 0, every sum of bytes below 2^53.  Messages name the field as the JSON format does (plan_io.c).
 */
#include "planner.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static hl_status bad(hl_error *err, const char *where, const char *field, double x, const char *want)
{
    char text[32];
    return hl_fail(err, HLLM_E_ARG, "%s%s%s is %s, expected %s", where, *where ? "." : "", field, hl_text_f64(x, text), want);
}

static hl_status is_bytes(hl_error *err, const char *where, const char *field, double x)
{
    return x >= 0 && x <= HL_MAX_BYTES ? HLLM_OK : bad(err, where, field, x, "0 to 2^53 bytes");
}

/* Speeds so slow or fast that times lose their meaning are refused, too: 1e-3 to 1e18 bytes a second. */
static hl_status is_speed(hl_error *err, const char *where, const char *field, double x)
{
    return x >= 1e-3 && x <= 1e18 ? HLLM_OK : bad(err, where, field, x, "a speed above 0 (0.001 to 1e18 bytes a second)");
}

static hl_status is_seconds(hl_error *err, const char *where, const char *field, double x)
{
    return x >= 0 && x <= 1e9 ? HLLM_OK : bad(err, where, field, x, "0 to 1e9 seconds");
}

static hl_status check_neuron_layer(const hl_neuron_layer *l, uint32_t il, uint64_t *batches, double *total, hl_error *err)
{
    hl_status rc = HLLM_OK;
    char where[48];
    snprintf(where, sizeof where, "layers[%u]", il);
    if (l->n_batches == 0) { rc = hl_fail(err, HLLM_E_ARG, "%s.freq is empty", where); goto done; }
    if (l->batch_neurons == 0) { rc = hl_fail(err, HLLM_E_ARG, "%s.batch_neurons is 0", where); goto done; }
    if (l->last_batch_neurons == 0 || l->last_batch_neurons > l->batch_neurons) {
        rc = hl_fail(err, HLLM_E_ARG, "%s.last_batch_neurons is %u, expected 1 to batch_neurons, %u", where, l->last_batch_neurons, l->batch_neurons);
        goto done;
    }
    if (!(l->batch_bytes >= 1 && l->batch_bytes <= HL_MAX_BYTES)) { rc = bad(err, where, "batch_bytes", l->batch_bytes, "1 to 2^53"); goto done; }
    *batches += l->n_batches;
    if (*batches > HL_MAX_BATCHES) { rc = hl_fail(err, HLLM_E_LIMIT, "%s: more than %d batches in all", where, HL_MAX_BATCHES); goto done; }
    *total += l->batch_bytes * l->n_batches;
    for (uint32_t ib = 0; ib < l->n_batches; ib++)
        if (!(l->freq[ib] >= 0 && l->freq[ib] <= 1)) {
            char text[32];
            rc = hl_fail(err, HLLM_E_ARG, "%s.freq[%u] is %s, expected 0 to 1", where, ib, hl_text_f64(l->freq[ib], text));
            goto done;
        }
done:
    return rc;
}

hl_status hl_neuron_problem_check(const hl_neuron_problem *p, hl_error *err)
{
    hl_status rc = HLLM_OK;
    char where[48];
    uint64_t batches = 0;
    double total = 0;
    if (p->n_layers == 0) { rc = hl_fail(err, HLLM_E_ARG, "layers is empty"); goto done; }
    if (p->n_layers > HL_MAX_NEURON_LAYERS) { rc = hl_fail(err, HLLM_E_LIMIT, "%u layers, the limit is %d", p->n_layers, HL_MAX_NEURON_LAYERS); goto done; }
    if (p->n_gpus == 0) { rc = hl_fail(err, HLLM_E_ARG, "gpus is empty"); goto done; }
    if (p->n_gpus > HL_MAX_GPUS) { rc = hl_fail(err, HLLM_E_LIMIT, "%u gpus, the limit is %d", p->n_gpus, HL_MAX_GPUS); goto done; }
    if (p->n_dense > HL_MAX_DENSE) { rc = hl_fail(err, HLLM_E_LIMIT, "%u dense items, the limit is %d", p->n_dense, HL_MAX_DENSE); goto done; }
    HL_TRY(is_speed(err, "cpu", "bytes_per_s", p->cpu_bytes_per_s));
    HL_TRY(is_bytes(err, "cpu", "budget_bytes", p->cpu_budget_bytes));
    HL_TRY(is_seconds(err, "", "launch_s", p->launch_s));
    for (uint32_t ig = 0; ig < p->n_gpus; ig++) {
        if (p->gpu_list) snprintf(where, sizeof where, "gpus[%u]", ig);
        else snprintf(where, sizeof where, "gpu");
        HL_TRY(is_speed(err, where, "bytes_per_s", p->gpus[ig].bytes_per_s));
        HL_TRY(is_bytes(err, where, "budget_bytes", p->gpus[ig].budget_bytes));
        HL_TRY(is_seconds(err, p->gpu_list ? where : "", "sync_s", p->gpus[ig].sync_s));
    }
    for (uint32_t il = 0; il < p->n_layers; il++) HL_TRY(check_neuron_layer(&p->layers[il], il, &batches, &total, err));
    for (uint32_t id = 0; id < p->n_dense; id++) {
        snprintf(where, sizeof where, "dense[%u]", id);
        HL_TRY(is_bytes(err, where, "bytes", p->dense[id].bytes));
        if (!(p->dense[id].touches >= 0 && p->dense[id].touches <= 1e9)) { rc = bad(err, where, "touches", p->dense[id].touches, "0 to 1e9"); goto done; }
        total += p->dense[id].bytes;
    }
    if (!(p->paper_n_embd >= 0 && p->paper_n_embd <= 1e9)) { rc = bad(err, "", "n_embd", p->paper_n_embd, "0 to 1e9"); goto done; }
    if (total > HL_MAX_BYTES) rc = bad(err, "", "the sum of all bytes", total, "at most 2^53");
done:
    return rc;
}

static hl_status check_device(const hl_ring_device *d, uint32_t im, hl_error *err)
{
    hl_status rc = HLLM_OK;
    char where[48];
    snprintf(where, sizeof where, "devices[%u]", im);
    HL_TRY(is_seconds(err, where, "alpha_s", d->alpha_s));
    if (!(d->beta_s >= -1e9 && d->beta_s <= 1e9)) { rc = bad(err, where, "beta_s", d->beta_s, "-1e9 to 1e9 seconds"); goto done; }
    HL_TRY(is_seconds(err, where, "hop_s", d->hop_s));
    HL_TRY(is_seconds(err, where, "output_s", d->output_s));
    HL_TRY(is_speed(err, where, "disk_bytes_per_s", d->disk_bytes_per_s));
    HL_TRY(is_bytes(err, where, "ram_bytes", d->ram_bytes));
    HL_TRY(is_bytes(err, where, "swap_bytes", d->swap_bytes));
    HL_TRY(is_bytes(err, where, "vram_bytes", d->vram_bytes));
    HL_TRY(is_bytes(err, where, "cpu_buffer_bytes", d->cpu_buffer_bytes));
    HL_TRY(is_bytes(err, where, "gpu_buffer_bytes", d->gpu_buffer_bytes));
    if (d->os > HL_OS_METAL) rc = hl_fail(err, HLLM_E_ARG, "%s.os is unknown", where);
done:
    return rc;
}

hl_status hl_layer_problem_check(const hl_layer_problem *p, hl_error *err)
{
    hl_status rc = HLLM_OK;
    if (p->n_layers == 0) { rc = hl_fail(err, HLLM_E_ARG, "n_layers is 0"); goto done; }
    if (p->n_layers > HL_MAX_RING_LAYERS) { rc = hl_fail(err, HLLM_E_LIMIT, "n_layers is %u, the limit is %d", p->n_layers, HL_MAX_RING_LAYERS); goto done; }
    if (p->n_devices == 0) { rc = hl_fail(err, HLLM_E_ARG, "devices is empty"); goto done; }
    if (p->n_devices > HL_MAX_RING_DEVICES) { rc = hl_fail(err, HLLM_E_LIMIT, "%u devices, the limit is %d", p->n_devices, HL_MAX_RING_DEVICES); goto done; }
    if (p->n_vocab == 0) { rc = hl_fail(err, HLLM_E_ARG, "n_vocab is 0"); goto done; }
    if (p->k && p->n_layers % p->k) { rc = hl_fail(err, HLLM_E_ARG, "k is %u: it does not divide n_layers, %u", p->k, p->n_layers); goto done; }
    if (!(p->layer_bytes >= 1 && p->layer_bytes <= HL_MAX_BYTES)) { rc = bad(err, "", "layer_bytes", p->layer_bytes, "1 to 2^53"); goto done; }
    HL_TRY(is_bytes(err, "", "kv_bytes_per_layer", p->kv_bytes_per_layer));
    HL_TRY(is_bytes(err, "", "input_bytes", p->input_bytes));
    HL_TRY(is_bytes(err, "", "output_bytes", p->output_bytes));
    if ((p->layer_bytes + p->kv_bytes_per_layer) * p->n_layers + p->input_bytes + p->output_bytes > HL_MAX_BYTES) {
        rc = hl_fail(err, HLLM_E_ARG, "layer_bytes and kv_bytes_per_layer, times n_layers, are above 2^53");
        goto done;
    }
    if (p->method == HL_METHOD_HALDA && !(p->master_priority == 0 || (p->master_priority >= 0.01 && p->master_priority <= 100))) {
        rc = bad(err, "", "master_priority", p->master_priority, "0.01 to 100");
        goto done;
    }
    for (uint32_t im = 0; im < p->n_devices; im++) HL_TRY(check_device(&p->devices[im], im, err));
    for (uint32_t i = 0; p->links && i < p->n_devices * p->n_devices; i++)
        if (!(p->links[i] <= 1e9)) {
            char text[32];
            rc = hl_fail(err, HLLM_E_ARG, "links[%u][%u] is %s, expected seconds or null", i / p->n_devices, i % p->n_devices, hl_text_f64(p->links[i], text));
            goto done;
        }
done:
    return rc;
}
