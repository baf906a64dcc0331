/* halda.c: two published ways to hand out layers, for comparison with the exact one: prima.cpp's heuristic and exo's proportion.
 *
 * Halda puts each device into one of four sets (M1 macOS overloaded, M2 Metal overloaded, M3 Linux or Android overloaded, M4 fits), lets
 * an integer program with linear costs choose windows that keep every device in its set, and repeats with the sets of the answer; forces a
 * slow disk's device into M4 when GPU memory is left over; drops devices with a window of one layer and starts anew.  Its faults are kept:
 * the ">=" rows that hold M1-M3 overloaded, a program that never prefers k > 1, W of the iteration before in the calibration.  The program
 * itself is solved exactly: with the sets fixed it is separable but for the sum of windows.
 */
#include "planner.h"

#include <math.h>
#include <string.h>

#define ROW_SLACK 1e-9
#define SLOW_DISK 1e8                                  /* below it a device must fit */

enum { M = HL_MAX_RING_DEVICES, MAX_ROUNDS = 1000 };

typedef struct windows { uint32_t k, w[M], n[M]; double objective; } windows;

typedef struct solver {
    hl_mem *mem;
    const hl_layer_problem *p;
    uint32_t m, id[M];                                 /* devices still in, by their index in the problem */
    bool forced[M];
    uint32_t set[M];                                   /* 1..4 */
    double a[M], b[M], z[M], zg[M], xi, kappa;
    double each, row;
    double *table; uint32_t *chose;                    /* [m + 1][n_layers + 1] */
} solver;

static const hl_ring_device *dev(const solver *s, uint32_t i) { return &s->p->devices[s->id[i]]; }
static bool is_mac(const hl_ring_device *d) { return d->os == HL_OS_MACOS || d->os == HL_OS_METAL; }
static bool has_gpu(const hl_ring_device *d) { return d->vram_bytes > 0 && d->os != HL_OS_MACOS; }
static double ram_of(const hl_ring_device *d) { return d->ram_bytes + (d->os == HL_OS_ANDROID ? d->swap_bytes : 0); }
static double fixed_of(const solver *s, uint32_t i)
{
    const hl_ring_device *d = dev(s, i);
    return (s->id[i] == 0 ? s->row + s->p->output_bytes : 0) + d->cpu_buffer_bytes + (d->os == HL_OS_METAL ? d->gpu_buffer_bytes : 0);
}

/* Windows in proportion to memory; every device gets a layer. */
static void first_windows(const solver *s, windows *x)
{
    const uint32_t L = s->p->n_layers;
    double total = 0;
    int64_t w[M], left = L;
    for (uint32_t i = 0; i < s->m; i++) total += ram_of(dev(s, i));
    for (uint32_t i = 0; i < s->m; i++) { w[i] = total > 0 ? (int64_t)floor(L * ram_of(dev(s, i)) / total + 0.5) : L / s->m; }
    for (uint32_t i = 0; i < s->m; i++) {
        if (w[i]) continue;
        uint32_t largest = 0;
        for (uint32_t j = 1; j < s->m; j++) if (w[j] > w[largest]) largest = j;
        w[i] = 1; w[largest]--;
    }
    uint32_t most = 0, least = 0;
    for (uint32_t i = 0; i < s->m; i++) {
        left -= w[i];
        if (ram_of(dev(s, i)) > ram_of(dev(s, most))) most = i;
        if (ram_of(dev(s, i)) < ram_of(dev(s, least))) least = i;
    }
    w[left > 0 ? most : least] += left;
    for (uint32_t i = 0; i < s->m; i++) {
        x->w[i] = (uint32_t)HL_MAX(w[i], (int64_t)1);
        x->n[i] = s->p->halda_init == HL_HALDA_CODE && has_gpu(dev(s, i)) ? x->w[i] : 0;
    }
    x->k = 1;
}

static void assign_sets(solver *s, const windows *x)
{
    for (uint32_t i = 0; i < s->m; i++) {
        const hl_ring_device *d = dev(s, i);
        const double l = (double)x->w[i] * x->k, g = (double)x->n[i] * x->k;
        const bool over = (is_mac(d) ? l : l - g) * s->each + fixed_of(s, i) > ram_of(d);
        s->set[i] = !over || d->disk_bytes_per_s < SLOW_DISK || s->forced[i] ? 4 : d->os == HL_OS_MACOS ? 1 : d->os == HL_OS_METAL ? 2 : 3;
    }
}

static void coefficients(solver *s)
{
    const hl_layer_problem *p = s->p;
    const hl_ring_device *head = &p->devices[0];
    s->kappa = head->output_s + s->row / head->disk_bytes_per_s + (s->set[0] != 4 ? p->output_bytes / head->disk_bytes_per_s : 0);
    s->xi = 0;
    for (uint32_t i = 0; i < s->m; i++) {
        const hl_ring_device *d = dev(s, i);
        const double reload = s->each / d->disk_bytes_per_s;
        s->a[i] = d->alpha_s + (s->set[i] == 1 || s->set[i] == 3 ? reload : s->set[i] == 2 ? p->layer_bytes / d->disk_bytes_per_s : 0);
        s->b[i] = has_gpu(d) ? d->beta_s - (s->set[i] == 3 ? reload : 0) : 0;
        s->z[i] = (ram_of(d) - fixed_of(s, i)) / (p->n_layers * s->each);
        s->zg[i] = has_gpu(d) ? fmax(0, (d->vram_bytes - d->gpu_buffer_bytes - (d->os == HL_OS_METAL && s->id[i] == 0 ? p->output_bytes : 0)) / (p->n_layers * s->each)) : 0;
        if (s->set[i] == 1 || s->set[i] == 3) s->kappa += (d->cpu_buffer_bytes - ram_of(d)) / d->disk_bytes_per_s;
        s->xi += s->m > 1 ? d->hop_s : 0;
    }
    s->a[0] /= p->master_priority > 0 ? p->master_priority : 1.01;
}

/* The best number of layers on the GPU for a window of w, or -1 when no number keeps the device in its set. */
static int64_t best_n(const solver *s, uint32_t i, uint32_t w, uint32_t W)
{
    const hl_ring_device *d = dev(s, i);
    double lo = 0, hi = fmin(w, floor(W * s->zg[i] + ROW_SLACK));
    const double room = W * s->z[i];
    const bool off = has_gpu(d) && !is_mac(d);         /* layers on the GPU leave RAM */
    if (s->set[i] == 4) {
        if (off) lo = fmax(lo, ceil(w - room - ROW_SLACK));
        else if (w > room + ROW_SLACK) return -1;
    } else if (off) hi = fmin(hi, floor(w - room + ROW_SLACK));
    else if (w < room - ROW_SLACK) return -1;
    if (lo > hi) return -1;
    return (int64_t)(s->b[i] < 0 ? hi : lo);
}

static bool solve_k(solver *s, uint32_t k, windows *out)
{
    const uint32_t W = s->p->n_layers / k, row = s->p->n_layers + 1;
    if (W < s->m) return false;
    for (uint32_t w = 0; w <= W; w++) s->table[w] = w ? INFINITY : 0;
    for (uint32_t i = 0; i < s->m; i++) {
        const double *from = s->table + (size_t)i * row;
        double *to = s->table + (size_t)(i + 1) * row;
        uint32_t *chose = s->chose + (size_t)(i + 1) * row;
        for (uint32_t w = 0; w <= W; w++) to[w] = INFINITY;
        for (uint32_t w = 1; w <= W; w++) {
            const int64_t n = best_n(s, i, w, W);
            if (n < 0) continue;
            const double cost = k * (s->a[i] * w + s->b[i] * (double)n);
            for (uint32_t w0 = 0; w0 + w <= W; w0++)
                if (from[w0] + cost < to[w0 + w]) { to[w0 + w] = from[w0] + cost; chose[w0 + w] = w; }
        }
    }
    const double least = s->table[(size_t)s->m * row + W];
    if (least == INFINITY) return false;
    out->k = k;
    out->objective = least + k * s->xi + s->kappa;
    for (uint32_t i = s->m, w = W; i-- > 0;) {
        out->w[i] = s->chose[(size_t)(i + 1) * row + w];
        out->n[i] = (uint32_t)best_n(s, i, out->w[i], W);
        w -= out->w[i];
    }
    return true;
}

static bool solve_sets(solver *s, windows *out)
{
    const uint32_t L = s->p->n_layers;
    bool found = false;
    for (uint32_t k = s->p->k ? s->p->k : 1; k <= (s->p->k ? s->p->k : HL_MAX(L / 2, 1u)); k++) {
        windows x;
        if (L % k || !solve_k(s, k, &x)) continue;
        if (!found || x.objective < out->objective) { *out = x; found = true; }
    }
    return found;
}

/* GPU memory is left while something is overloaded: the device outside M4 with the slowest disk has to fit from now on. */
static bool calibrate(solver *s, const windows *x, uint32_t W_old)
{
    bool weak = false, spare = false, loaded = false;
    int32_t slowest = -1;
    for (uint32_t i = 0; i < s->m; i++) {
        const bool gpu = has_gpu(dev(s, i));
        weak |= x->w[i] == 1 && x->n[i] == 0;
        spare |= gpu && x->n[i] < floor(W_old * s->zg[i]);
        loaded |= gpu ? x->w[i] > x->n[i] : s->set[i] != 4;
        if (s->set[i] != 4 && (slowest < 0 || dev(s, i)->disk_bytes_per_s < dev(s, (uint32_t)slowest)->disk_bytes_per_s)) slowest = (int32_t)i;
    }
    if (weak || !spare || !loaded || slowest < 0) return false;
    s->forced[slowest] = true;
    return true;
}

static bool iterate(solver *s, windows *last)
{
    windows x, y;
    uint32_t before[M] = { 0 };
    bool found = false;
    first_windows(s, &x);
    memset(s->forced, 0, sizeof s->forced);
    for (uint32_t round = 0; round < MAX_ROUNDS; round++) {
        uint32_t W_old = 0;
        for (uint32_t i = 0; i < s->m; i++) W_old += x.w[i];
        assign_sets(s, &x);
        if (round && memcmp(before, s->set, s->m * sizeof *before) == 0) break;
        memcpy(before, s->set, s->m * sizeof *before);
        coefficients(s);
        if (!solve_sets(s, &y)) break;
        *last = y;
        found = true;
        if (calibrate(s, &y, W_old)) continue;
        const bool same = round && y.k == x.k && memcmp(y.w, x.w, s->m * sizeof *y.w) == 0 && memcmp(y.n, x.n, s->m * sizeof *y.n) == 0;
        x = y;
        if (same) break;
    }
    return found;
}

/* Devices other than the head whose window is one layer go. */
static bool drop_weak(solver *s, const windows *x)
{
    uint32_t n = 1;
    for (uint32_t i = 1; i < s->m; i++) if (x->w[i] > 1) s->id[n++] = s->id[i];
    const bool dropped = n < s->m;
    s->m = n;
    return dropped;
}

hl_status hl_layer_halda(hl_mem *mem, const hl_layer_problem *p, hl_layer_plan *plan, hl_error *err)
{
    hl_status rc = HLLM_OK;
    const uint64_t start = hl_now_ns();
    solver *s = NULL;
    windows x;
    hl_layer_problem serial = *p;
    HL_NEED(s = hl_alloc_zero(mem, sizeof *s));
    s->mem = mem; s->p = p; s->m = p->n_devices;
    s->each = p->layer_bytes + p->kv_bytes_per_layer;
    s->row = p->input_bytes / p->n_vocab;
    const size_t cells = (size_t)(s->m + 1) * (p->n_layers + 1);
    HL_NEED(s->table = hl_alloc_array(mem, cells, sizeof *s->table));
    HL_NEED(s->chose = hl_alloc_array(mem, cells, sizeof *s->chose));
    for (uint32_t i = 0; i < s->m; i++) s->id[i] = i;
    do {
        if (!iterate(s, &x)) {
            rc = hl_fail(err, HLLM_E_UNSUPPORTED, "halda: its integer program has no solution for the sets of its first windows (it gives up here; method exact does not)");
            goto done;
        }
    } while (drop_weak(s, &x));
    memset(plan->layers, 0, sizeof plan->layers);
    memset(plan->gpu_layers, 0, sizeof plan->gpu_layers);
    plan->k = x.k;
    for (uint32_t i = 0; i < s->m; i++) { plan->layers[s->id[i]] = x.w[i] * x.k; plan->gpu_layers[s->id[i]] = x.n[i] * x.k; }
    plan->halda_objective = x.objective;
    serial.latency = HL_LATENCY_SERIAL;
    HL_TRY(hl_layer_plan_value(&serial, plan, err));
    plan->solver = "halda";
    plan->solve_s = (double)(hl_now_ns() - start) * 1e-9;
done:
    if (s) { hl_free(mem, s->table); hl_free(mem, s->chose); }
    hl_free(mem, s);
    return rc;
}

/* ---- in proportion to memory ---- */

hl_status hl_layer_memory(const hl_layer_problem *p, hl_layer_plan *plan, hl_error *err)
{
    const uint64_t start = hl_now_ns();
    const uint32_t k = p->k ? p->k : 1, W = p->n_layers / k;
    const double each = p->layer_bytes + p->kv_bytes_per_layer;
    double total = 0, part[HL_MAX_RING_DEVICES];
    uint32_t units[HL_MAX_RING_DEVICES], left = W;
    for (uint32_t i = 0; i < p->n_devices; i++) total += p->devices[i].ram_bytes + p->devices[i].vram_bytes;
    for (uint32_t i = 0; i < p->n_devices; i++) {
        const double share = total > 0 ? W * (p->devices[i].ram_bytes + p->devices[i].vram_bytes) / total : (double)W / p->n_devices;
        units[i] = (uint32_t)floor(share + 1e-9);
        part[i] = share - units[i];
        left -= HL_MIN(left, units[i]);
    }
    for (; left; left--) {                             /* largest remainder, the earlier device first */
        uint32_t most = 0;
        for (uint32_t i = 1; i < p->n_devices; i++) if (part[i] > part[most] + 1e-12) most = i;
        units[most]++;
        part[most] = -1;
    }
    memset(plan->layers, 0, sizeof plan->layers);
    memset(plan->gpu_layers, 0, sizeof plan->gpu_layers);
    plan->k = k;
    for (uint32_t i = 0; i < p->n_devices; i++) {
        const hl_ring_device *d = &p->devices[i];
        const double room = d->os == HL_OS_MACOS ? 0 : fmax(0, d->vram_bytes - d->gpu_buffer_bytes - (i == 0 && d->os == HL_OS_METAL ? p->output_bytes : 0));
        plan->layers[i] = units[i] * k;
        plan->gpu_layers[i] = (uint32_t)fmin(units[i], floor(room / (each * k) * (1 + HL_BUDGET_SLACK / 2))) * k;
    }
    const hl_status rc = hl_layer_plan_value(p, plan, err);
    plan->solver = "memory";
    plan->solve_s = (double)(hl_now_ns() - start) * 1e-9;
    return rc;
}
