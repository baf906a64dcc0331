/* check.c: does this plan fit this problem, and what is it worth?  For plans of the solvers, of files and of users alike.
 *
 * Shares no code with the solvers: the formulas of the problem are written here a second time, plainly, and a layer's hottest batches are
 * found by counting instead of sorting once.  Reads only the placement (n_gpu, gpu_of_layer, gpu_of_dense; k, layers, gpu_layers), fills
 * objective, times and bytes.  A plan that is not admissible is HLLM_E_MISMATCH and the text says which rule and by how much.
 */
#include "planner.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

double hl_plan_gap(double objective, double bound)
{
    if (objective == bound) return 0;
    return bound == 0 ? 1 : fabs(objective - bound) / fabs(bound);
}

/* ---- neurons ---- */

/* Batch indices, hottest first: an insertion into runs (merge sort from the bottom up), stable. */
static void sort_hot(const double *freq, uint32_t *order, uint32_t *spare, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    for (uint32_t run = 1; run < n; run *= 2) {
        for (uint32_t from = 0; from < n; from += 2 * run) {
            const uint32_t mid = HL_MIN(from + run, n), end = HL_MIN(from + 2 * run, n);
            uint32_t a = from, b = mid;
            for (uint32_t at = from; at < end; at++)
                spare[at] = b >= end || (a < mid && freq[order[a]] >= freq[order[b]]) ? order[a++] : order[b++];
        }
        memcpy(order, spare, n * sizeof *order);
    }
}

typedef struct part { double active, active_gpu, bytes, bytes_gpu; uint64_t neurons, least; bool whole; } part;

/* Layer il with want neurons on the GPU; C neurons are the least that a split wants. */
static hl_status measure(const hl_neuron_problem *p, uint32_t il, uint64_t want, double C, uint32_t *order, uint32_t *spare, part *out, hl_error *err)
{
    const hl_neuron_layer *l = &p->layers[il];
    const double each = l->batch_bytes / l->batch_neurons;
    uint64_t on_gpu = 0;
    *out = (part){ .least = UINT64_MAX };
    sort_hot(l->freq, order, spare, l->n_batches);
    for (uint32_t i = 0; i < l->n_batches; i++) {
        const uint32_t ib = order[i], n = ib + 1 == l->n_batches ? l->last_batch_neurons : l->batch_neurons;
        out->neurons += n;
        out->active += l->freq[ib] * n;
        if (on_gpu < want) { on_gpu += n; out->active_gpu += l->freq[ib] * n; }
        if (out->least == UINT64_MAX && (double)out->neurons >= C) out->least = out->neurons;
    }
    if (on_gpu != want)
        return hl_fail(err, HLLM_E_MISMATCH, "layer %u: %" PRIu64 " neurons on the GPU are not a whole number of its hottest batches (the layer has %" PRIu64 ")", il, want,
                       out->neurons);
    out->bytes = (double)out->neurons * each;
    out->bytes_gpu = (double)want * each;
    out->whole = want == out->neurons;
    return HLLM_OK;
}

static double least_neurons(const hl_neuron_problem *p, uint32_t il, int32_t g)
{
    const double each = p->layers[il].batch_bytes / p->layers[il].batch_neurons;
    const double saved = each / p->cpu_bytes_per_s - each / p->gpus[g].bytes_per_s;
    return saved > 0 ? ceil(p->gpus[g].sync_s / (each * (1 / p->cpu_bytes_per_s - 1 / p->gpus[g].bytes_per_s)) - 1e-9) : INFINITY;
}

static double time_of(const hl_neuron_problem *p, uint32_t il, int32_t g, const part *v)
{
    const double each = p->layers[il].batch_bytes / p->layers[il].batch_neurons, slow = each / p->cpu_bytes_per_s;
    if (g < 0) {
        double sync = INFINITY;
        for (uint32_t h = 0; h < p->n_gpus; h++) sync = fmin(sync, p->gpus[h].sync_s);
        return slow * v->active + (p->dense_on == HL_DENSE_GPU ? sync : 0);
    }
    const double fast = each / p->gpus[g].bytes_per_s, sync = p->gpus[g].sync_s;
    if (v->whole) return fast * v->active + p->launch_s + (p->dense_on == HL_DENSE_CPU ? sync : 0);
    return p->launch_s + fmax(fast * v->active_gpu, slow * (v->active - v->active_gpu) + sync);
}

static hl_status check_budgets(const hl_neuron_problem *p, const hl_neuron_plan *plan, hl_error *err)
{
    for (uint32_t g = 0; g < p->n_gpus; g++)
        if (plan->gpu_bytes[g] > p->gpus[g].budget_bytes * (1 + HL_BUDGET_SLACK))
            return hl_fail(err, HLLM_E_MISMATCH, "GPU %u: %" PRIu64 " bytes are above its budget of %" PRIu64, g, (uint64_t)ceil(plan->gpu_bytes[g]),
                           (uint64_t)p->gpus[g].budget_bytes);
    if (plan->cpu_bytes > p->cpu_budget_bytes * (1 + HL_BUDGET_SLACK))
        return hl_fail(err, HLLM_E_MISMATCH, "CPU: %" PRIu64 " bytes are above its budget of %" PRIu64, (uint64_t)ceil(plan->cpu_bytes), (uint64_t)p->cpu_budget_bytes);
    return HLLM_OK;
}

hl_status hl_neuron_plan_value(hl_mem *mem, const hl_neuron_problem *p, hl_neuron_plan *plan, hl_error *err)
{
    hl_status rc = HLLM_OK;
    uint32_t *order = NULL, widest = 1;
    double seconds = 0, impact = 0, cpu_bytes = 0;
    const bool strict = p->objective == HL_OBJECTIVE_IMPACT;
    int32_t last = 0;
    for (uint32_t il = 0; il < p->n_layers; il++) widest = HL_MAX(widest, p->layers[il].n_batches);
    HL_NEED(order = hl_alloc_array(mem, widest, 2 * sizeof *order));
    for (uint32_t g = 0; g < HL_MAX_GPUS; g++) plan->gpu_bytes[g] = 0;
    for (uint32_t id = 0; id < p->n_dense; id++) {
        const int32_t g = plan->gpu_of_dense[id];
        if (g < -1 || g >= (int32_t)p->n_gpus) { rc = hl_fail(err, HLLM_E_MISMATCH, "dense item %u: there is no GPU %d", id, g); goto done; }
        seconds += p->dense[id].touches * p->dense[id].bytes / (g < 0 ? p->cpu_bytes_per_s : p->gpus[g].bytes_per_s);
        if (g < 0) cpu_bytes += p->dense[id].bytes;
        else plan->gpu_bytes[g] += p->dense[id].bytes;
    }
    for (uint32_t il = 0; il < p->n_layers; il++) {
        const int32_t g = plan->gpu_of_layer[il];
        part v;
        if (g < -1 || g >= (int32_t)p->n_gpus) { rc = hl_fail(err, HLLM_E_MISMATCH, "layer %u: there is no GPU %d", il, g); goto done; }
        if ((g < 0) != (plan->n_gpu[il] == 0)) { rc = hl_fail(err, HLLM_E_MISMATCH, "layer %u: %" PRIu64 " neurons on GPU %d", il, plan->n_gpu[il], g); goto done; }
        if (g >= 0 && g < last) { rc = hl_fail(err, HLLM_E_MISMATCH, "layer %u: on GPU %d after a layer on GPU %d", il, g, last); goto done; }
        if (g >= 0) last = g;
        HL_TRY(measure(p, il, plan->n_gpu[il], g < 0 ? 0 : least_neurons(p, il, g), order, order + widest, &v, err));
        if (strict && g >= 0 && plan->n_gpu[il] < v.least) {
            rc = hl_fail(err, HLLM_E_MISMATCH, "layer %u: %" PRIu64 " neurons on GPU %d are fewer than a split is worth there", il, plan->n_gpu[il], g);
            goto done;
        }
        impact += v.active_gpu;
        plan->hot_active[il] = v.active_gpu;
        seconds += time_of(p, il, g, &v);
        cpu_bytes += v.bytes - v.bytes_gpu;
        if (g >= 0) plan->gpu_bytes[g] += v.bytes_gpu;
    }
    plan->cpu_bytes = cpu_bytes;
    plan->seconds_per_token = seconds;
    plan->objective = p->objective == HL_OBJECTIVE_IMPACT ? impact : seconds;
    rc = check_budgets(p, plan, err);
done:
    hl_free(mem, order);
    return rc;
}

/* ---- layers ---- */

typedef struct load { double compute, over, room, disk; } load;       /* seconds; bytes: D, R, what serial reads from disk */

static load load_of(const hl_layer_problem *p, uint32_t im, uint32_t l, uint32_t g)
{
    const hl_ring_device *d = &p->devices[im];
    const bool head = im == 0, metal = d->os == HL_OS_METAL, mac = metal || d->os == HL_OS_MACOS;
    const double row = p->input_bytes / p->n_vocab, io = head ? row + p->output_bytes : 0;
    const double each = p->layer_bytes + p->kv_bytes_per_layer;
    const double ram = d->ram_bytes + (d->os == HL_OS_ANDROID ? d->swap_bytes : 0);
    const double fixed = io + d->cpu_buffer_bytes + (metal ? d->gpu_buffer_bytes : 0);
    load v = { .compute = d->alpha_s * l + d->beta_s * g + (head ? d->output_s : 0) };
    v.over = fmax(0, (mac ? l : l - g) * each + fixed - ram);
    v.room = fmax(0, ram - fixed);
    v.disk = v.over;
    if (metal) v.disk = v.over > 0 ? l * p->layer_bytes + io : 0;
    if (head) v.disk = fmax(v.disk, row);
    return v;
}

double hl_layer_disk_bytes(const hl_layer_problem *p, uint32_t im, uint32_t layers, uint32_t gpu_layers)
{
    const load v = load_of(p, im, layers, gpu_layers);
    return p->latency == HL_LATENCY_SERIAL ? v.disk : v.over;
}

/* The cheapest chain from device i on to j (round the ring, through those between): INFINITY when there is none. */
static double hop_between(const hl_layer_problem *p, uint32_t i, uint32_t j)
{
    double reach[HL_MAX_RING_DEVICES + 1];
    const uint32_t M = p->n_devices, steps = (j + M - i) % M;
    if (!p->links) return p->devices[i].hop_s;
    reach[0] = 0;
    for (uint32_t b = 1; b <= steps; b++) {
        reach[b] = INFINITY;
        for (uint32_t a = 0; a < b; a++) {
            const double s = p->links[(i + a) % M * M + (i + b) % M];
            if (s >= 0) reach[b] = fmin(reach[b], reach[a] + s);
        }
    }
    return reach[steps];
}

static double stall_of(const hl_layer_problem *p, uint32_t im, const load *v, uint32_t k, double T)
{
    const double speed = p->devices[im].disk_bytes_per_s, o = im ? p->devices[0].output_s : 0;
    if (v->over <= 0) return 0;
    if (v->over > speed * T * (1 + 1e-12)) return INFINITY;
    const double buffer = fmax(0, fmin(v->room, speed * (T - o) - v->over));
    return fmax(0, (v->over - (k - 1) * buffer) / speed - v->compute);
}

static double token_time(const hl_layer_problem *p, const load *v, const bool *used, uint32_t k, double base)
{
    double lo = fmax(0, base), hi = 0;
    for (uint32_t im = 0; im < p->n_devices; im++) if (used[im]) lo = fmax(lo, v[im].over / p->devices[im].disk_bytes_per_s);
    for (uint32_t step = 0; step < 300; step++) {
        const double T = step == 0 ? lo : hi > 0 ? lo + (hi - lo) / 2 : fmax(2 * lo, 1e-6);
        double sum = base;
        for (uint32_t im = 0; im < p->n_devices; im++) if (used[im]) sum += stall_of(p, im, &v[im], k, T);
        if (sum <= T) { if (step == 0) return T; hi = T; }
        else { if (T > 1e300 || (hi > 0 && T <= lo)) break; lo = T; }
    }
    return hi > 0 ? hi : INFINITY;
}

hl_status hl_layer_plan_value(const hl_layer_problem *p, hl_layer_plan *plan, hl_error *err)
{
    load v[HL_MAX_RING_DEVICES];
    bool used[HL_MAX_RING_DEVICES];
    uint64_t sum = 0;
    double total = 0, disk = 0, hops = 0;
    uint32_t n_used = 0, before = 0;
    if (plan->k == 0 || p->n_layers % plan->k) return hl_fail(err, HLLM_E_MISMATCH, "k is %u: it does not divide n_layers, %u", plan->k, p->n_layers);
    if (p->k && plan->k != p->k) return hl_fail(err, HLLM_E_MISMATCH, "k is %u, the problem asks for %u", plan->k, p->k);
    for (uint32_t im = 0; im < p->n_devices; im++) {
        const uint32_t l = plan->layers[im], g = plan->gpu_layers[im];
        const hl_ring_device *d = &p->devices[im];
        used[im] = im == 0 || l > 0;
        sum += l;
        if (l % plan->k || g % plan->k) return hl_fail(err, HLLM_E_MISMATCH, "device %u (%s): %u layers, %u on its GPU, are not multiples of k, %u", im, d->name, l, g, plan->k);
        if (g > l) return hl_fail(err, HLLM_E_MISMATCH, "device %u (%s): %u layers on its GPU of %u", im, d->name, g, l);
        const double room = fmax(0, d->vram_bytes - d->gpu_buffer_bytes - (im == 0 && d->os == HL_OS_METAL ? p->output_bytes : 0));
        if (g && (d->os == HL_OS_MACOS || g * (p->layer_bytes + p->kv_bytes_per_layer) > room * (1 + HL_BUDGET_SLACK)))
            return hl_fail(err, HLLM_E_MISMATCH, "device %u (%s): %u layers do not fit on its GPU, which has room for %" PRIu64 " bytes", im, d->name, g,
                           d->os == HL_OS_MACOS ? 0 : (uint64_t)room);
        if (!used[im]) continue;
        v[im] = load_of(p, im, l, g);
        total += v[im].compute;
        disk += v[im].disk / d->disk_bytes_per_s;
        n_used++;
    }
    if (sum != p->n_layers) return hl_fail(err, HLLM_E_MISMATCH, "the devices have %" PRIu64 " layers, the model %u", sum, p->n_layers);
    for (uint32_t im = 1; n_used > 1 && im <= p->n_devices; im++) {
        const uint32_t to = im % p->n_devices;
        if (!used[to]) continue;
        const double s = hop_between(p, before, to);
        if (s == INFINITY)
            return hl_fail(err, HLLM_E_MISMATCH, "no connection from device %u (%s) to device %u (%s), not even through those between", before, p->devices[before].name, to,
                           p->devices[to].name);
        hops += s;
        before = to;
    }
    total += plan->k * hops;
    plan->objective = p->latency == HL_LATENCY_SERIAL ? total + disk : token_time(p, v, used, plan->k, total);
    return HLLM_OK;
}
