/* plan_io.c: problems and plans as JSON (libjansson).
 *
 * A problem: {"kind":"neuron"|"layer", ...}; an answer: {"kind":..., "objective":..., ...}: the keys are those in read_neuron, read_ring
 * and write_answer below, units in their names.  A plan file, version 1:
 *   {"hllm_plan":1, "problem":{...}, "answer":{...},
 *    "model":{"name":..., "hash":"16 hexadecimal digits", "file_bytes":..., "n_ctx":..., "uniform":true|false, "scratch_bytes":[CPU, GPU...]}}
 * ("model" only when the plan was made for one).  Numbers are JSON numbers, bytes whole up to 2^53; unknown and doubled keys, and missing
 * ones that have no default, are refused by name.  A plan file that is read is verified: its placement must be admissible for its problem
 * and worth what it says.
 */
#include "plan_io.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- text ---- */

void hl_out_add(hl_out *o, const char *s, size_t n)
{
    if (o->failed) return;
    if (o->n + n + 1 > o->cap) {
        const size_t cap = HL_MAX(o->cap * 2, o->n + n + 256);
        char *bigger = hl_realloc(o->mem, o->s, cap);
        if (!bigger) { o->failed = true; return; }
        o->s = bigger;
        o->cap = cap;
    }
    memcpy(o->s + o->n, s, n);
    o->n += n;
    o->s[o->n] = 0;
}

void hl_out_printf(hl_out *o, const char *fmt, ...)
{
    char buf[1024];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(buf, sizeof buf, fmt, args);
    va_end(args);
    if (n > 0) hl_out_add(o, buf, HL_MIN((size_t)n, sizeof buf - 1));
}

/* ---- reading ---- */

typedef struct reader { hl_plan *plan; hl_error *err; char where[64]; } reader;

static const char *dot(const reader *r) { return *r->where ? "." : ""; }

/* x: what stands there. */
static hl_status wrong(const reader *r, const char *key, const json_t *x, const char *want)
{
    char is[48];
    size_t n = json_dumpb(x, is, sizeof is, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    if (n > sizeof is - 1) { n = sizeof is - 1; memcpy(is + n - 3, "...", 3); }
    is[n] = 0;
    return hl_fail(r->err, HLLM_E_FORMAT, "%s%s%s: expected %s%s%s", r->where, dot(r), key, want, n ? ", it is " : "", is);
}

/* Only these keys, and v is an object. */
static hl_status only_keys(reader *r, const json_t *v, const char *const *known)
{
    const char *key;
    json_t *x;
    if (!json_is_object(v)) return hl_fail(r->err, HLLM_E_FORMAT, "%s: expected an object", *r->where ? r->where : "the file");
    json_object_foreach((json_t *)(uintptr_t)v, key, x) {
        uint32_t i = 0;
        while (known[i] && strcmp(known[i], key) != 0) i++;
        if (!known[i]) return hl_fail(r->err, HLLM_E_FORMAT, "%s%s%.100s: unknown key", r->where, dot(r), key);
    }
    return HLLM_OK;
}

/* fallback NULL: the key is required. */
static hl_status get_number(reader *r, const json_t *v, const char *key, const double *fallback, double *out)
{
    const json_t *x = json_object_get(v, key);
    *out = fallback ? *fallback : 0;
    if (!x) return fallback ? HLLM_OK : hl_fail(r->err, HLLM_E_FORMAT, "%s%s%s is missing", r->where, dot(r), key);
    if (!json_is_number(x)) return wrong(r, key, x, "a number");
    *out = json_number_value(x);
    return HLLM_OK;
}

static hl_status get_count(reader *r, const json_t *v, const char *key, const double *fallback, uint32_t *out)
{
    double x;
    *out = 0;
    const hl_status rc = get_number(r, v, key, fallback, &x);
    if (rc != HLLM_OK) return rc;
    if (!(x >= 0 && x <= 4294967295.0) || x != floor(x)) return wrong(r, key, json_object_get(v, key), "a whole number from 0 to 2^32 - 1");
    *out = (uint32_t)x;
    return HLLM_OK;
}

/* One of the names, separated by |; fallback < 0: required. */
static hl_status get_choice(reader *r, const json_t *v, const char *key, const char *names, int fallback, uint32_t *out)
{
    const json_t *x = json_object_get(v, key);
    *out = fallback < 0 ? 0 : (uint32_t)fallback;
    if (!x) return fallback >= 0 ? HLLM_OK : hl_fail(r->err, HLLM_E_FORMAT, "%s%s%s is missing", r->where, dot(r), key);
    const char *s = json_string_value(x), *at = names;
    for (uint32_t i = 0; s; i++) {
        const size_t n = strcspn(at, "|");
        if (strlen(s) == n && memcmp(at, s, n) == 0) { *out = i; return HLLM_OK; }
        if (!at[n]) break;
        at += n + 1;
    }
    return wrong(r, key, x, names);
}

static hl_status get_array(reader *r, const json_t *v, const char *key, uint32_t limit, const json_t **out, uint32_t *n)
{
    const json_t *x = json_object_get(v, key);
    *out = x; *n = 0;
    if (!x) return hl_fail(r->err, HLLM_E_FORMAT, "%s%s%s is missing", r->where, dot(r), key);
    if (!json_is_array(x)) return wrong(r, key, x, "a list");
    if (json_array_size(x) > limit) return hl_fail(r->err, HLLM_E_LIMIT, "%s%s%s has %zu entries, the limit is %u", r->where, dot(r), key, json_array_size(x), limit);
    *n = (uint32_t)json_array_size(x);
    return HLLM_OK;
}

static hl_status get_name(reader *r, const json_t *v, const char *fallback, const char **out)
{
    const json_t *x = json_object_get(v, "name");
    if (x && (!json_is_string(x) || json_string_length(x) > 200 || strlen(json_string_value(x)) != json_string_length(x))) return wrong(r, "name", x, "a text of up to 200 bytes");
    *out = hl_plan_strdup(r->plan, x ? json_string_value(x) : fallback);
    return *out ? HLLM_OK : HLLM_E_NOMEM;
}

static const double zero = 0;

static hl_status read_gpus(reader *r, const json_t *v, hl_neuron_problem *p)
{
    static const char *const one_keys[] = { "bytes_per_s", "budget_bytes", NULL }, *const list_keys[] = { "bytes_per_s", "budget_bytes", "sync_s", NULL };
    hl_status rc = HLLM_OK;
    const json_t *list = NULL, *one = json_object_get(v, "gpu");
    hl_neuron_gpu *gpus = NULL;
    p->gpu_list = json_object_get(v, "gpus") != NULL;
    p->n_gpus = 1;
    if (p->gpu_list && one) { rc = hl_fail(r->err, HLLM_E_FORMAT, "gpu and gpus: only one of them"); goto done; }
    if (p->gpu_list && json_object_get(v, "sync_s")) { rc = hl_fail(r->err, HLLM_E_FORMAT, "sync_s: with gpus each GPU has its own"); goto done; }
    if (p->gpu_list) HL_TRY(get_array(r, v, "gpus", HL_MAX_GPUS, &list, &p->n_gpus));
    else if (!one) { rc = hl_fail(r->err, HLLM_E_FORMAT, "gpu is missing"); goto done; }
    HL_NEED(gpus = hl_plan_alloc(r->plan, p->n_gpus, sizeof *gpus));
    p->gpus = gpus;
    for (uint32_t g = 0; g < p->n_gpus; g++) {
        const json_t *x = list ? json_array_get(list, g) : one;
        if (list) snprintf(r->where, sizeof r->where, "gpus[%u]", g);
        else snprintf(r->where, sizeof r->where, "gpu");
        HL_TRY(only_keys(r, x, list ? list_keys : one_keys));
        HL_TRY(get_number(r, x, "bytes_per_s", NULL, &gpus[g].bytes_per_s));
        HL_TRY(get_number(r, x, "budget_bytes", NULL, &gpus[g].budget_bytes));
        if (!list) r->where[0] = 0;
        HL_TRY(get_number(r, list ? x : v, "sync_s", NULL, &gpus[g].sync_s));
    }
    r->where[0] = 0;
done:
    return rc;
}

static hl_status read_neuron_layers(reader *r, const json_t *v, hl_neuron_problem *p)
{
    static const char *const keys[] = { "batch_neurons", "batch_bytes", "last_batch_neurons", "freq", NULL };
    hl_status rc = HLLM_OK;
    const json_t *list, *freq;
    hl_neuron_layer *layers;
    size_t total = 0;
    HL_TRY(get_array(r, v, "layers", HL_MAX_NEURON_LAYERS, &list, &p->n_layers));
    HL_NEED(layers = hl_plan_alloc(r->plan, p->n_layers, sizeof *layers));
    p->layers = layers;
    for (uint32_t il = 0; il < p->n_layers; il++) {
        const json_t *x = json_array_get(list, il);
        snprintf(r->where, sizeof r->where, "layers[%u]", il);
        HL_TRY(only_keys(r, x, keys));
        HL_TRY(get_count(r, x, "batch_neurons", NULL, &layers[il].batch_neurons));
        HL_TRY(get_number(r, x, "batch_bytes", NULL, &layers[il].batch_bytes));
        const double whole = layers[il].batch_neurons;
        HL_TRY(get_count(r, x, "last_batch_neurons", &whole, &layers[il].last_batch_neurons));
        HL_TRY(get_array(r, x, "freq", HL_MAX_BATCHES, &freq, &layers[il].n_batches));
        if ((total += layers[il].n_batches) > HL_MAX_BATCHES) { rc = hl_fail(r->err, HLLM_E_LIMIT, "%s: more than %d batches in all", r->where, HL_MAX_BATCHES); goto done; }
    }
    double *f;
    HL_NEED(f = hl_plan_alloc(r->plan, total, sizeof *f));
    for (uint32_t il = 0; il < p->n_layers; il++) {
        freq = json_object_get(json_array_get(list, il), "freq");
        snprintf(r->where, sizeof r->where, "layers[%u]", il);
        layers[il].freq = f;
        for (uint32_t ib = 0; ib < layers[il].n_batches; ib++) {
            const json_t *x = json_array_get(freq, ib);
            if (!json_is_number(x)) { char key[32]; snprintf(key, sizeof key, "freq[%u]", ib); rc = wrong(r, key, x, "a number"); goto done; }
            *f++ = json_number_value(x);
        }
    }
    r->where[0] = 0;
done:
    return rc;
}

static hl_status read_neuron(reader *r, const json_t *v)
{
    static const char *const keys[] = { "kind", "objective", "method", "gpu", "gpus", "cpu", "sync_s", "launch_s", "dense_on", "dense", "layers", "n_embd", "gated", NULL };
    static const char *const cpu_keys[] = { "bytes_per_s", "budget_bytes", NULL }, *const dense_keys[] = { "name", "bytes", "touches", NULL };
    hl_status rc = HLLM_OK;
    hl_neuron_problem *p = &r->plan->neuron;
    const json_t *cpu = json_object_get(v, "cpu"), *list;
    uint32_t gated;
    HL_TRY(only_keys(r, v, keys));
    HL_TRY(get_choice(r, v, "objective", "time|impact", HL_OBJECTIVE_TIME, &p->objective));
    HL_TRY(get_choice(r, v, "method", "exact|paper", HL_METHOD_EXACT, &p->method));
    HL_TRY(get_choice(r, v, "dense_on", "|cpu|gpu", HL_DENSE_UNSTATED, &p->dense_on));
    HL_TRY(get_number(r, v, "launch_s", &zero, &p->launch_s));
    HL_TRY(get_number(r, v, "n_embd", &zero, &p->paper_n_embd));
    HL_TRY(get_count(r, v, "gated", &(double){ 1 }, &gated));
    p->paper_ungated = !gated;
    HL_TRY(read_gpus(r, v, p));
    if (!cpu) { rc = hl_fail(r->err, HLLM_E_FORMAT, "cpu is missing"); goto done; }
    snprintf(r->where, sizeof r->where, "cpu");
    HL_TRY(only_keys(r, cpu, cpu_keys));
    HL_TRY(get_number(r, cpu, "bytes_per_s", NULL, &p->cpu_bytes_per_s));
    HL_TRY(get_number(r, cpu, "budget_bytes", NULL, &p->cpu_budget_bytes));
    r->where[0] = 0;
    if (json_object_get(v, "dense")) {
        HL_TRY(get_array(r, v, "dense", HL_MAX_DENSE, &list, &p->n_dense));
        hl_dense_item *d;
        HL_NEED(d = hl_plan_alloc(r->plan, p->n_dense, sizeof *d));
        p->dense = d;
        for (uint32_t id = 0; id < p->n_dense; id++) {
            const json_t *x = json_array_get(list, id);
            snprintf(r->where, sizeof r->where, "dense[%u]", id);
            HL_TRY(only_keys(r, x, dense_keys));
            HL_TRY(get_name(r, x, "dense", &d[id].name));
            HL_TRY(get_number(r, x, "bytes", NULL, &d[id].bytes));
            HL_TRY(get_number(r, x, "touches", NULL, &d[id].touches));
        }
        r->where[0] = 0;
    }
    HL_TRY(read_neuron_layers(r, v, p));
    HL_TRY(hl_neuron_problem_check(p, r->err));
done:
    return rc;
}

static hl_status read_links(reader *r, const json_t *v, hl_layer_problem *p)
{
    hl_status rc = HLLM_OK;
    const json_t *rows, *row;
    uint32_t n;
    double *links;
    char key[32];
    HL_TRY(get_array(r, v, "links", HL_MAX_RING_DEVICES, &rows, &n));
    if (n != p->n_devices) { rc = hl_fail(r->err, HLLM_E_FORMAT, "links has %u rows for %u devices", n, p->n_devices); goto done; }
    HL_NEED(links = hl_plan_alloc(r->plan, (size_t)n * n, sizeof *links));
    p->links = links;
    for (uint32_t i = 0; i < n; i++) {
        row = json_array_get(rows, i);
        if (!json_is_array(row) || json_array_size(row) != n) { rc = hl_fail(r->err, HLLM_E_FORMAT, "links[%u]: expected a list of %u", i, n); goto done; }
        for (uint32_t j = 0; j < n; j++) {
            const json_t *x = json_array_get(row, j);
            links[i * n + j] = json_is_null(x) ? -1 : json_number_value(x);
            if (json_is_null(x) || (json_is_number(x) && links[i * n + j] >= 0)) continue;
            snprintf(key, sizeof key, "links[%u][%u]", i, j);
            rc = wrong(r, key, x, "seconds, 0 or more, or null");
            goto done;
        }
    }
done:
    return rc;
}

static hl_status read_ring_device(reader *r, const json_t *x, uint32_t im, hl_ring_device *d)
{
    static const char *const keys[] = { "name", "os", "alpha_s", "beta_s", "hop_s", "output_s", "disk_bytes_per_s", "ram_bytes", "swap_bytes", "vram_bytes",
                                        "cpu_buffer_bytes", "gpu_buffer_bytes", NULL };
    hl_status rc = HLLM_OK;
    char name[16];
    snprintf(r->where, sizeof r->where, "devices[%u]", im);
    snprintf(name, sizeof name, "%u", im);
    HL_TRY(only_keys(r, x, keys));
    HL_TRY(get_name(r, x, name, &d->name));
    HL_TRY(get_choice(r, x, "os", "linux|android|macos|macos-metal", -1, &d->os));
    HL_TRY(get_number(r, x, "alpha_s", NULL, &d->alpha_s));
    HL_TRY(get_number(r, x, "beta_s", NULL, &d->beta_s));
    HL_TRY(get_number(r, x, "hop_s", &zero, &d->hop_s));
    HL_TRY(get_number(r, x, "output_s", &zero, &d->output_s));
    HL_TRY(get_number(r, x, "disk_bytes_per_s", NULL, &d->disk_bytes_per_s));
    HL_TRY(get_number(r, x, "ram_bytes", NULL, &d->ram_bytes));
    HL_TRY(get_number(r, x, "swap_bytes", &zero, &d->swap_bytes));
    HL_TRY(get_number(r, x, "vram_bytes", NULL, &d->vram_bytes));
    HL_TRY(get_number(r, x, "cpu_buffer_bytes", NULL, &d->cpu_buffer_bytes));
    HL_TRY(get_number(r, x, "gpu_buffer_bytes", NULL, &d->gpu_buffer_bytes));
    r->where[0] = 0;
done:
    return rc;
}

static hl_status read_ring(reader *r, const json_t *v)
{
    static const char *const keys[] = { "kind", "n_layers", "layer_bytes", "kv_bytes_per_layer", "input_bytes", "n_vocab", "output_bytes", "latency", "k", "devices", "links",
                                        "method", "halda_init", "master_priority", NULL };
    hl_status rc = HLLM_OK;
    hl_layer_problem *p = &r->plan->ring;
    const json_t *list;
    hl_ring_device *d;
    HL_TRY(only_keys(r, v, keys));
    HL_TRY(get_count(r, v, "n_layers", NULL, &p->n_layers));
    HL_TRY(get_number(r, v, "layer_bytes", NULL, &p->layer_bytes));
    HL_TRY(get_number(r, v, "kv_bytes_per_layer", NULL, &p->kv_bytes_per_layer));
    HL_TRY(get_number(r, v, "input_bytes", NULL, &p->input_bytes));
    HL_TRY(get_count(r, v, "n_vocab", NULL, &p->n_vocab));
    HL_TRY(get_number(r, v, "output_bytes", NULL, &p->output_bytes));
    HL_TRY(get_choice(r, v, "latency", "serial|overlap", -1, &p->latency));
    HL_TRY(get_count(r, v, "k", &zero, &p->k));
    HL_TRY(get_choice(r, v, "method", "exact||halda|memory", HL_METHOD_EXACT, &p->method));
    if (p->method == HL_METHOD_PAPER) { rc = wrong(r, "method", json_object_get(v, "method"), "exact|halda|memory"); goto done; }
    HL_TRY(get_choice(r, v, "halda_init", "code|paper", HL_HALDA_CODE, &p->halda_init));
    HL_TRY(get_number(r, v, "master_priority", &zero, &p->master_priority));
    if (json_object_get(v, "master_priority") && !(p->master_priority >= 0.01 && p->master_priority <= 100)) { rc = wrong(r, "master_priority", json_object_get(v, "master_priority"), "0.01 to 100"); goto done; }
    HL_TRY(get_array(r, v, "devices", HL_MAX_RING_DEVICES, &list, &p->n_devices));
    HL_NEED(d = hl_plan_alloc(r->plan, p->n_devices, sizeof *d));
    p->devices = d;
    for (uint32_t im = 0; im < p->n_devices; im++) HL_TRY(read_ring_device(r, json_array_get(list, im), im, &d[im]));
    if (json_object_get(v, "links")) HL_TRY(read_links(r, v, p));
    HL_TRY(hl_layer_problem_check(p, r->err));
done:
    return rc;
}

static hl_status parse(const char *text, size_t bytes, json_t **out, hl_error *err)
{
    json_error_t e;
    *out = NULL;
    if (bytes > (size_t)1 << 30) return hl_fail(err, HLLM_E_LIMIT, "%zu bytes of JSON, the limit is 2^30", bytes);
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &e);
    if (*out) return HLLM_OK;
    if (json_error_code(&e) == json_error_out_of_memory) return HLLM_E_NOMEM;
    const bool cut = json_error_code(&e) == json_error_premature_end_of_input;
    return hl_fail(err, cut ? HLLM_E_TRUNCATED : HLLM_E_FORMAT, "line %d, column %d: %s", e.line, e.column, e.text);
}

static hl_status read_problem(hl_mem *mem, const json_t *v, hl_plan **out, hl_error *err)
{
    hl_status rc = HLLM_OK;
    reader r = { .err = err };
    uint32_t kind;
    *out = NULL;
    if (!json_is_object(v)) return hl_fail(err, HLLM_E_FORMAT, "a problem is an object");
    HL_TRY(get_choice(&r, v, "kind", "neuron|layer", -1, &kind));
    HL_TRY(hl_plan_new(mem, kind == 0 ? HL_PLAN_NEURON : HL_PLAN_LAYER, &r.plan));
    if (kind == 0) {
        HL_TRY(read_neuron(&r, v));
        HL_TRY(hl_neuron_plan_new(mem, &r.plan->neuron, &r.plan->neuron_plan));
    } else HL_TRY(read_ring(&r, v));
    *out = r.plan; r.plan = NULL;
done:
    hl_plan_free(r.plan);
    return rc;
}

hl_status hl_plan_read_problem(hl_mem *mem, const char *text, size_t bytes, hl_plan **out, hl_error *err)
{
    json_t *v = NULL;
    *out = NULL;
    hl_status rc = parse(text, bytes, &v, err);
    if (rc == HLLM_OK) rc = read_problem(mem, v, out, err);
    json_decref(v);
    return rc;
}

/* ---- reading an answer ---- */

static hl_status get_list(reader *r, const json_t *v, const char *key, uint32_t n, double *out)
{
    const json_t *list;
    uint32_t got;
    const hl_status rc = get_array(r, v, key, 1u << 30, &list, &got);
    if (rc != HLLM_OK) return rc;
    if (got != n) return hl_fail(r->err, HLLM_E_MISMATCH, "%s%s%s has %u entries for %u", r->where, dot(r), key, got, n);
    for (uint32_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(list, i);
        if (!json_is_number(x)) return wrong(r, key, x, "numbers");
        out[i] = json_number_value(x);
        if (!(out[i] >= -1 && out[i] <= HL_MAX_BYTES) || out[i] != floor(out[i])) return wrong(r, key, x, "whole numbers");
    }
    return HLLM_OK;
}

/* The same, numbers below 0 being 0. */
static hl_status get_counts(reader *r, const json_t *v, const char *key, uint32_t n, double *x, uint32_t *out)
{
    const hl_status rc = get_list(r, v, key, n, x);
    for (uint32_t i = 0; rc == HLLM_OK && i < n; i++) out[i] = (uint32_t)HL_MIN(HL_MAX(x[i], 0.0), 1e9);
    return rc;
}

/* What the file says of its placement has to be what the placement is worth. */
static hl_status compare(const reader *r, double said, double is)
{
    char s[32], t[32];
    if (fabs(said - is) <= 1e-6 * fabs(is) + 1e-15) return HLLM_OK;
    return hl_fail(r->err, HLLM_E_MISMATCH, "the plan says that its objective is %s, it is %s", hl_text_f64(said, s), hl_text_f64(is, t));
}

static hl_status read_neuron_answer(reader *r, const json_t *v)
{
    static const char *const keys[] = { "kind", "n_gpu", "dense_on_gpu", "dense_gpu", "gpu_of_layer", "objective", "bound", "gap", "seconds_per_token", "gpu_bytes", "cpu_bytes",
                                        "solver", "solve_s", "devices", NULL };
    hl_status rc = HLLM_OK;
    hl_plan *plan = r->plan;
    hl_neuron_plan *a = plan->neuron_plan;
    const hl_neuron_problem *p = &plan->neuron;
    double *x = NULL, said;
    HL_TRY(only_keys(r, v, keys));
    HL_NEED(x = hl_alloc_array(plan->mem, HL_MAX(p->n_layers, p->n_dense) + 1, sizeof *x));
    HL_TRY(get_list(r, v, "n_gpu", p->n_layers, x));
    for (uint32_t il = 0; il < p->n_layers; il++) { a->n_gpu[il] = (uint64_t)HL_MAX(x[il], 0.0); a->gpu_of_layer[il] = x[il] > 0 ? 0 : -1; }
    if (p->gpu_list) {
        HL_TRY(get_list(r, v, "gpu_of_layer", p->n_layers, x));
        for (uint32_t il = 0; il < p->n_layers; il++) a->gpu_of_layer[il] = (int32_t)HL_MIN(x[il], 1000.0);
    }
    if (p->n_dense) {
        HL_TRY(get_list(r, v, p->gpu_list ? "dense_gpu" : "dense_on_gpu", p->n_dense, x));
        for (uint32_t id = 0; id < p->n_dense; id++) a->gpu_of_dense[id] = (int32_t)HL_MIN(x[id], 1000.0) - (p->gpu_list ? 0 : 1);
    }
    HL_TRY(get_number(r, v, "objective", NULL, &said));
    HL_TRY(get_number(r, v, "bound", NULL, &a->bound));
    HL_TRY(hl_neuron_plan_value(plan->mem, p, a, r->err));
    HL_TRY(compare(r, said, a->objective));
    a->gap = hl_plan_gap(a->objective, a->bound);
    a->solver = "file";
done:
    hl_free(plan->mem, x);
    return rc;
}

static hl_status read_layer_answer(reader *r, const json_t *v)
{
    static const char *const keys[] = { "kind", "k", "layers", "gpu_layers", "objective", "bound", "gap", "halda_objective", "solver", "solve_s", "devices", NULL };
    hl_status rc = HLLM_OK;
    hl_layer_plan *a = &r->plan->layer_plan;
    hl_layer_problem p = r->plan->ring;
    double x[HL_MAX_RING_DEVICES], said;
    if (p.method == HL_METHOD_HALDA) p.latency = HL_LATENCY_SERIAL;
    HL_TRY(only_keys(r, v, keys));
    HL_TRY(get_count(r, v, "k", NULL, &a->k));
    HL_TRY(get_counts(r, v, "layers", p.n_devices, x, a->layers));
    HL_TRY(get_counts(r, v, "gpu_layers", p.n_devices, x, a->gpu_layers));
    HL_TRY(get_number(r, v, "objective", NULL, &said));
    HL_TRY(get_number(r, v, "bound", NULL, &a->bound));
    HL_TRY(get_number(r, v, "halda_objective", &zero, &a->halda_objective));
    HL_TRY(hl_layer_plan_value(&p, a, r->err));
    HL_TRY(compare(r, said, a->objective));
    a->gap = hl_plan_gap(a->objective, a->bound);
    a->solver = "file";
done:
    return rc;
}

static hl_status read_model(reader *r, const json_t *v)
{
    static const char *const keys[] = { "name", "hash", "file_bytes", "n_ctx", "uniform", "scratch_bytes", NULL };
    hl_status rc = HLLM_OK;
    hl_plan_model *m = &r->plan->model;
    double x;
    snprintf(r->where, sizeof r->where, "model");
    HL_TRY(only_keys(r, v, keys));
    const char *name = json_string_value(json_object_get(v, "name")), *hash = json_string_value(json_object_get(v, "hash"));
    if (!hash || strlen(hash) != 16 || strspn(hash, "0123456789abcdef") != 16) { rc = wrong(r, "hash", json_object_get(v, "hash"), "16 hexadecimal digits"); goto done; }
    for (uint32_t i = 0; i < 16; i++) m->hash = m->hash << 4 | (uint64_t)(hash[i] <= '9' ? hash[i] - '0' : hash[i] - 'a' + 10);
    snprintf(m->name, sizeof m->name, "%s", name ? name : "");
    HL_TRY(get_number(r, v, "file_bytes", NULL, &x));
    if (!(x >= 0 && x <= HL_MAX_BYTES)) { rc = wrong(r, "file_bytes", json_object_get(v, "file_bytes"), "bytes"); goto done; }
    m->file_bytes = (uint64_t)x;
    HL_TRY(get_count(r, v, "n_ctx", &zero, &m->n_ctx));
    r->plan->uniform = json_is_true(json_object_get(v, "uniform"));
    if (json_object_get(v, "scratch_bytes")) HL_TRY(get_list(r, v, "scratch_bytes", hl_plan_n_devices(r->plan), r->plan->scratch_bytes));
    m->known = true;
done:
    return rc;
}

hl_status hl_plan_read(hl_mem *mem, const char *text, size_t bytes, hl_plan **out, hl_error *err)
{
    static const char *const keys[] = { "hllm_plan", "problem", "answer", "model", NULL };
    hl_status rc = HLLM_OK;
    json_t *v = NULL;
    reader r = { .err = err };
    uint32_t version;
    *out = NULL;
    HL_TRY(parse(text, bytes, &v, err));
    if (!json_is_object(v) || !json_object_get(v, "hllm_plan")) { rc = hl_fail(err, HLLM_E_FORMAT, "not a plan: it has no key hllm_plan"); goto done; }
    HL_TRY(get_count(&r, v, "hllm_plan", NULL, &version));
    if (version != HL_PLAN_VERSION) { rc = hl_fail(err, HLLM_E_VERSION, "version %u of plan files, known is %d", version, HL_PLAN_VERSION); goto done; }
    HL_TRY(only_keys(&r, v, keys));
    const json_t *answer = json_object_get(v, "answer"), *model = json_object_get(v, "model");
    HL_TRY(read_problem(mem, json_object_get(v, "problem"), &r.plan, err));
    snprintf(r.where, sizeof r.where, "answer");
    HL_TRY(r.plan->kind == HL_PLAN_NEURON ? read_neuron_answer(&r, answer) : read_layer_answer(&r, answer));
    if (model) HL_TRY(read_model(&r, model));
    r.plan->solved = true;
    *out = r.plan; r.plan = NULL;
done:
    hl_plan_free(r.plan);
    json_decref(v);
    return rc;
}

/* ---- writing ---- */

/* Every failed allocation leaves a NULL that the setters refuse: the result is checked once, at the end. */
typedef struct writer { bool failed; } writer;

static void put(writer *w, json_t *v, const char *key, json_t *x) { if (json_object_set_new(v, key, x) != 0) w->failed = true; }
static void push(writer *w, json_t *v, json_t *x) { if (json_array_append_new(v, x) != 0) w->failed = true; }
/* Whole numbers as such. */
static json_t *number(double x) { return fabs(x) < HL_MAX_BYTES && x == floor(x) ? json_integer((json_int_t)x) : json_real(x); }
static json_t *real(double x) { return json_real(x); }
static void put_text(writer *w, json_t *v, const char *key, const char *s)
{
    char clean[256];
    hl_text_printable(clean, sizeof clean, s);
    put(w, v, key, json_string(clean));
}

static json_t *write_neuron_problem(writer *w, const hl_neuron_problem *p)
{
    static const char *const objectives[] = { "time", "impact" }, *const places[] = { "", "cpu", "gpu" };
    json_t *v = json_object(), *list;
    put(w, v, "kind", json_string("neuron"));
    put(w, v, "objective", json_string(objectives[p->objective]));
    if (p->method == HL_METHOD_PAPER) {
        put(w, v, "method", json_string("paper"));
        if (p->paper_n_embd > 0) put(w, v, "n_embd", number(p->paper_n_embd));
        put(w, v, "gated", json_integer(!p->paper_ungated));
    }
    list = p->gpu_list ? json_array() : NULL;
    for (uint32_t g = 0; g < p->n_gpus; g++) {
        json_t *x = json_object();
        put(w, x, "bytes_per_s", number(p->gpus[g].bytes_per_s));
        put(w, x, "budget_bytes", number(p->gpus[g].budget_bytes));
        if (list) { put(w, x, "sync_s", real(p->gpus[g].sync_s)); push(w, list, x); }
        else { put(w, v, "gpu", x); put(w, v, "sync_s", real(p->gpus[g].sync_s)); }
    }
    if (list) put(w, v, "gpus", list);
    json_t *cpu = json_object();
    put(w, cpu, "bytes_per_s", number(p->cpu_bytes_per_s));
    put(w, cpu, "budget_bytes", number(p->cpu_budget_bytes));
    put(w, v, "cpu", cpu);
    put(w, v, "launch_s", real(p->launch_s));
    if (p->dense_on) put(w, v, "dense_on", json_string(places[p->dense_on]));
    if (p->n_dense) {
        list = json_array();
        for (uint32_t id = 0; id < p->n_dense; id++) {
            json_t *x = json_object();
            put_text(w, x, "name", p->dense[id].name);
            put(w, x, "bytes", number(p->dense[id].bytes));
            put(w, x, "touches", number(p->dense[id].touches));
            push(w, list, x);
        }
        put(w, v, "dense", list);
    }
    list = json_array();
    for (uint32_t il = 0; il < p->n_layers; il++) {
        json_t *x = json_object(), *freq = json_array();
        put(w, x, "batch_neurons", json_integer(p->layers[il].batch_neurons));
        put(w, x, "batch_bytes", number(p->layers[il].batch_bytes));
        if (p->layers[il].last_batch_neurons != p->layers[il].batch_neurons) put(w, x, "last_batch_neurons", json_integer(p->layers[il].last_batch_neurons));
        for (uint32_t ib = 0; ib < p->layers[il].n_batches; ib++) push(w, freq, number(p->layers[il].freq[ib]));
        put(w, x, "freq", freq);
        push(w, list, x);
    }
    put(w, v, "layers", list);
    return v;
}

static json_t *write_ring_problem(writer *w, const hl_layer_problem *p)
{
    static const char *const systems[] = { "linux", "android", "macos", "macos-metal" }, *const methods[] = { "exact", "", "halda", "memory" };
    json_t *v = json_object(), *list = json_array();
    put(w, v, "kind", json_string("layer"));
    put(w, v, "n_layers", json_integer(p->n_layers));
    put(w, v, "layer_bytes", number(p->layer_bytes));
    put(w, v, "kv_bytes_per_layer", number(p->kv_bytes_per_layer));
    put(w, v, "input_bytes", number(p->input_bytes));
    put(w, v, "n_vocab", json_integer(p->n_vocab));
    put(w, v, "output_bytes", number(p->output_bytes));
    put(w, v, "latency", json_string(p->latency == HL_LATENCY_SERIAL ? "serial" : "overlap"));
    put(w, v, "k", json_integer(p->k));
    put(w, v, "method", json_string(methods[p->method]));
    if (p->method == HL_METHOD_HALDA) {
        put(w, v, "halda_init", json_string(p->halda_init == HL_HALDA_CODE ? "code" : "paper"));
        if (p->master_priority > 0) put(w, v, "master_priority", real(p->master_priority));
    }
    for (uint32_t im = 0; im < p->n_devices; im++) {
        const hl_ring_device *d = &p->devices[im];
        json_t *x = json_object();
        put_text(w, x, "name", d->name);
        put(w, x, "os", json_string(systems[d->os]));
        put(w, x, "alpha_s", real(d->alpha_s));
        put(w, x, "beta_s", real(d->beta_s));
        put(w, x, "hop_s", real(d->hop_s));
        put(w, x, "output_s", real(d->output_s));
        put(w, x, "disk_bytes_per_s", number(d->disk_bytes_per_s));
        put(w, x, "ram_bytes", number(d->ram_bytes));
        put(w, x, "swap_bytes", number(d->swap_bytes));
        put(w, x, "vram_bytes", number(d->vram_bytes));
        put(w, x, "cpu_buffer_bytes", number(d->cpu_buffer_bytes));
        put(w, x, "gpu_buffer_bytes", number(d->gpu_buffer_bytes));
        push(w, list, x);
    }
    put(w, v, "devices", list);
    if (p->links) {
        list = json_array();
        for (uint32_t i = 0; i < p->n_devices; i++) {
            json_t *row = json_array();
            for (uint32_t j = 0; j < p->n_devices; j++) push(w, row, p->links[i * p->n_devices + j] < 0 ? json_null() : real(p->links[i * p->n_devices + j]));
            push(w, list, row);
        }
        put(w, v, "links", list);
    }
    return v;
}

static json_t *write_devices(writer *w, const hl_plan *plan)
{
    json_t *list = json_array();
    hl_plan_device d;
    for (uint32_t i = 0; i < hl_plan_n_devices(plan); i++) {
        json_t *x = json_object(), *bytes = json_object(), *seconds = json_object();
        hl_plan_device_get(plan, i, &d);
        put_text(w, x, "name", d.name);
        put(w, x, "budget_bytes", number(d.budget_bytes));
        put(w, x, "total_bytes", number(d.bytes));
        put(w, x, "total_s", real(d.seconds));
        for (uint32_t j = 0; j < d.n_parts; j++) {
            put(w, bytes, d.parts[j].kind, number(d.parts[j].bytes));
            put(w, seconds, d.parts[j].kind, real(d.parts[j].seconds));
        }
        put(w, x, "bytes", bytes);
        put(w, x, "seconds_per_token", seconds);
        push(w, list, x);
    }
    return list;
}

typedef json_int_t int_of(const void *list, uint32_t i);
static json_int_t int_of_u64(const void *list, uint32_t i) { return (json_int_t)((const uint64_t *)list)[i]; }
static json_int_t int_of_u32(const void *list, uint32_t i) { return ((const uint32_t *)list)[i]; }
static json_int_t int_of_i32(const void *list, uint32_t i) { return ((const int32_t *)list)[i]; }
static json_int_t int_of_placed(const void *list, uint32_t i) { return ((const int32_t *)list)[i] >= 0; }
static void put_ints(writer *w, json_t *v, const char *key, const void *list, uint32_t n, int_of *get)
{
    json_t *x = json_array();
    for (uint32_t i = 0; i < n; i++) push(w, x, json_integer(get(list, i)));
    put(w, v, key, x);
}

static json_t *write_neuron_answer(writer *w, const hl_plan *plan)
{
    const hl_neuron_plan *a = plan->neuron_plan;
    const hl_neuron_problem *p = &plan->neuron;
    json_t *v = json_object();
    put(w, v, "kind", json_string("neuron"));
    put_ints(w, v, "n_gpu", a->n_gpu, p->n_layers, int_of_u64);
    if (p->gpu_list) put_ints(w, v, "gpu_of_layer", a->gpu_of_layer, p->n_layers, int_of_i32);
    if (p->n_dense) put_ints(w, v, "dense_on_gpu", a->gpu_of_dense, p->n_dense, int_of_placed);
    if (p->n_dense && p->gpu_list) put_ints(w, v, "dense_gpu", a->gpu_of_dense, p->n_dense, int_of_i32);
    put(w, v, "objective", real(a->objective));
    put(w, v, "bound", real(a->bound));
    put(w, v, "gap", real(a->gap));
    put(w, v, "seconds_per_token", real(a->seconds_per_token));
    if (p->gpu_list) {
        json_t *list = json_array();
        for (uint32_t g = 0; g < p->n_gpus; g++) push(w, list, number(a->gpu_bytes[g]));
        put(w, v, "gpu_bytes", list);
    } else put(w, v, "gpu_bytes", number(a->gpu_bytes[0]));
    put(w, v, "cpu_bytes", number(a->cpu_bytes));
    put(w, v, "solver", json_string(a->solver ? a->solver : ""));
    put(w, v, "solve_s", real(a->solve_s));
    put(w, v, "devices", write_devices(w, plan));
    return v;
}

static json_t *write_layer_answer(writer *w, const hl_plan *plan)
{
    const hl_layer_plan *a = &plan->layer_plan;
    const hl_layer_problem *p = &plan->ring;
    json_t *v = json_object();
    put(w, v, "kind", json_string("layer"));
    put(w, v, "k", json_integer(a->k));
    put_ints(w, v, "layers", a->layers, p->n_devices, int_of_u32);
    put_ints(w, v, "gpu_layers", a->gpu_layers, p->n_devices, int_of_u32);
    put(w, v, "objective", real(a->objective));
    put(w, v, "bound", real(a->bound));
    put(w, v, "gap", real(a->gap));
    if (p->method == HL_METHOD_HALDA) put(w, v, "halda_objective", real(a->halda_objective));
    put(w, v, "solver", json_string(a->solver ? a->solver : ""));
    put(w, v, "solve_s", real(a->solve_s));
    put(w, v, "devices", write_devices(w, plan));
    return v;
}

static json_t *write_model(writer *w, const hl_plan *plan)
{
    json_t *v = json_object(), *list = json_array();
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, plan->model.hash);
    put_text(w, v, "name", plan->model.name);
    put(w, v, "hash", json_string(hash));
    put(w, v, "file_bytes", json_integer((json_int_t)plan->model.file_bytes));
    put(w, v, "n_ctx", json_integer(plan->model.n_ctx));
    put(w, v, "uniform", json_boolean(plan->uniform));
    for (uint32_t i = 0; i < hl_plan_n_devices(plan); i++) push(w, list, number(plan->scratch_bytes[i]));
    put(w, v, "scratch_bytes", list);
    return v;
}

static int take(const char *s, size_t n, void *data)
{
    hl_out *o = data;
    hl_out_add(o, s, n);
    return o->failed ? -1 : 0;
}

hl_status hl_plan_write(const hl_plan *plan, bool answer, hl_out *o, hl_error *err)
{
    writer w = { false };
    json_t *v = plan->kind == HL_PLAN_NEURON ? write_neuron_answer(&w, plan) : write_layer_answer(&w, plan);
    (void)err;
    if (!answer) {
        json_t *file = json_object();
        put(&w, file, "hllm_plan", json_integer(HL_PLAN_VERSION));
        put(&w, file, "problem", plan->kind == HL_PLAN_NEURON ? write_neuron_problem(&w, &plan->neuron) : write_ring_problem(&w, &plan->ring));
        put(&w, file, "answer", v);
        if (plan->model.known) put(&w, file, "model", write_model(&w, plan));
        v = file;
    }
    if (!w.failed && json_dump_callback(v, take, o, JSON_COMPACT) != 0) w.failed = true;
    json_decref(v);
    return w.failed || o->failed ? HLLM_E_NOMEM : HLLM_OK;
}
