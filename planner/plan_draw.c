/* plan_draw.c: a plan as a picture (SVG 1.1, no scripts, no fonts of its own): what each device's memory holds, by kind, and one row per
 * layer.  Neurons: the row is the layer's FFN, hottest neurons left, coloured by where they lie, with the curve of their frequencies over
 * it; to its right one cell for each other thing that the layer has (attention, KV cache, predictor), coloured by where that lies.  Layers: the row is a layer in the order it is computed, coloured by its device; full height where its GPU holds it.
 * Coordinates are whole numbers of tenths: no locale, no floating-point text.
 */
#include "plan_io.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEFT = 110, WIDTH = 800, BAR = 22, MAX_POINTS = 96, CELL = 70, MAX_COLUMNS = 4 };

static const char *const device_colour[] = { "#7f8c9b", "#d1495b", "#2e86ab", "#edae49", "#3d8361", "#8e5ea2", "#c97b3f", "#4f6d7a" };
static const char *const kind_colour[] = { "#d1495b", "#7f8c9b", "#2e86ab", "#edae49", "#3d8361", "#8e5ea2", "#c97b3f", "#4f6d7a", "#b5838d", "#6d6875" };

static const char *colour_of_device(uint32_t i) { return device_colour[i % HL_COUNT(device_colour)]; }

/* The same kind, the same colour, on every device. */
static const char *colour_of_kind(const char *kind)
{
    static const char *const known[] = { "ffn_hot", "ffn_cold", "attention", "head", "kv", "predictor", "scratch", "layers_gpu", "layers_cpu" };
    for (uint32_t i = 0; i < HL_COUNT(known); i++) if (strcmp(known[i], kind) == 0) return kind_colour[i];
    return kind_colour[HL_COUNT(kind_colour) - 1];
}

static void text(hl_out *o, int x, int y, const char *anchor, const char *s)
{
    hl_out_printf(o, "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\">", x, y, anchor);
    for (; *s; s++) {
        const char *e = *s == '<' ? "&lt;" : *s == '>' ? "&gt;" : *s == '&' ? "&amp;" : *s == '"' ? "&quot;" : NULL;
        if (e) hl_out_add(o, e, strlen(e));
        else hl_out_add(o, (unsigned char)*s < 32 ? " " : s, 1);
    }
    hl_out_printf(o, "</text>\n");
}

/* x and width in tenths. */
static void box(hl_out *o, int64_t x, int y, int64_t w, int h, const char *colour)
{
    if (w <= 0) return;
    hl_out_printf(o, "<rect x=\"%" PRId64 ".%d\" y=\"%d\" width=\"%" PRId64 ".%d\" height=\"%d\" fill=\"%s\"/>\n", x / 10, (int)(x % 10), y, w / 10, (int)(w % 10), h, colour);
}

static int64_t tenths(double share) { return share > 0 ? (int64_t)(fmin(share, 1) * WIDTH * 10 + 0.5) : 0; }

static void bytes_text(char *buf, size_t cap, double bytes)
{
    char number[32];
    const bool large = bytes >= 1073741824.0;
    const double x = bytes / (large ? 1073741824.0 : 1048576.0), unit = large ? 100 : 10;
    snprintf(buf, cap, "%s %s", hl_text_f64(floor(x * unit + 0.5) / unit, number), large ? "GiB" : "MiB");
}

/* One bar per device: its budget as the frame, its parts inside. */
static int draw_devices(const hl_plan *plan, hl_out *o, int y)
{
    double most = 1;
    hl_plan_device d;
    for (uint32_t i = 0; i < hl_plan_n_devices(plan); i++) { hl_plan_device_get(plan, i, &d); most = fmax(most, fmax(d.bytes, fmin(d.budget_bytes, 4 * d.bytes))); }
    for (uint32_t i = 0; i < hl_plan_n_devices(plan); i++, y += BAR + 24) {
        char line[256], a[48], b[48];
        hl_plan_device_get(plan, i, &d);
        text(o, LEFT - 8, y + 15, "end", d.name);
        int64_t x = LEFT * 10;
        for (uint32_t j = 0; j < d.n_parts; j++) {
            const int64_t w = tenths(d.parts[j].bytes / most);
            box(o, x, y, w, BAR, colour_of_kind(d.parts[j].kind));
            x += w;
        }
        hl_out_printf(o, "<rect x=\"%d\" y=\"%d\" width=\"%" PRId64 "\" height=\"%d\" fill=\"none\" stroke=\"#333\"/>\n", LEFT, y, tenths(d.budget_bytes / most) / 10, BAR);
        bytes_text(a, sizeof a, d.bytes);
        bytes_text(b, sizeof b, d.budget_bytes);
        snprintf(line, sizeof line, "%s of %s", a, b);
        text(o, LEFT, y + BAR + 13, "start", line);
        int at = LEFT + 8 + 8 * (int)strlen(line);
        for (uint32_t j = 0; j < d.n_parts; j++) {     /* each with its colour */
            if (d.parts[j].bytes <= 0) continue;
            bytes_text(a, sizeof a, d.parts[j].bytes);
            snprintf(line, sizeof line, "%s %s", d.parts[j].kind, a);
            box(o, 10 * at, y + BAR + 4, 90, 9, colour_of_kind(d.parts[j].kind));
            text(o, at + 12, y + BAR + 13, "start", line);
            at += 24 + 7 * (int)strlen(line);
        }
    }
    return y;
}

static void draw_legend(const hl_plan *plan, hl_out *o, int y)
{
    int x = LEFT;
    hl_plan_device d;
    for (uint32_t i = 0; i < hl_plan_n_devices(plan); i++) {
        hl_plan_device_get(plan, i, &d);
        box(o, x * 10, y, 120, 12, colour_of_device(i));
        text(o, x + 16, y + 11, "start", d.name);
        x += 30 + 8 * (int)HL_MIN(strlen(d.name), (size_t)12);
        if (x > LEFT + WIDTH - 60) { x = LEFT; y += 18; }
    }
}

static int by_freq(const void *a, const void *b) { const double x = *(const double *)a, y = *(const double *)b; return x > y ? -1 : x < y; }

/* A layer's other things: the items named KIND.LAYER, a column for each kind, in the order of the problem. */
typedef struct columns { uint32_t n; char kind[MAX_COLUMNS][32]; } columns;

static uint32_t column_of(columns *c, const char *name, uint32_t *il)
{
    const size_t n = strcspn(name, ".");
    uint64_t layer = 0;
    if (!name[n] || n >= sizeof c->kind[0] || name[n + 1] < '0' || name[n + 1] > '9') return MAX_COLUMNS;
    for (const char *s = name + n + 1; *s; s++) {
        if (*s < '0' || *s > '9' || layer > HL_MAX_NEURON_LAYERS) return MAX_COLUMNS;
        layer = layer * 10 + (uint64_t)(*s - '0');
    }
    *il = (uint32_t)layer;
    for (uint32_t i = 0; i < c->n; i++) if (strlen(c->kind[i]) == n && memcmp(c->kind[i], name, n) == 0) return i;
    if (c->n == MAX_COLUMNS) return MAX_COLUMNS;
    memcpy(c->kind[c->n], name, n);
    c->kind[c->n][n] = 0;
    return c->n++;
}

static void draw_items(const hl_plan *plan, hl_out *o, int y, int row)
{
    columns c = { 0 };
    uint32_t il = 0;
    for (uint32_t id = 0; id < plan->neuron.n_dense; id++) {
        const uint32_t i = column_of(&c, plan->neuron.dense[id].name, &il);
        if (i == MAX_COLUMNS || il >= plan->neuron.n_layers) continue;
        box(o, 10 * (LEFT + WIDTH + 8 + (int)i * CELL), y + (int)il * (row + 2), 10 * (CELL - 8), row, colour_of_device((uint32_t)(1 + plan->neuron_plan->gpu_of_dense[id])));
    }
    for (uint32_t i = 0; i < c.n; i++) text(o, LEFT + WIDTH + 8 + (int)i * CELL, y - 4, "start", c.kind[i]);
}

static hl_status draw_neurons(const hl_plan *plan, hl_out *o, int y, int row)
{
    hl_status rc = HLLM_OK;
    const hl_neuron_problem *p = &plan->neuron;
    double *freq = NULL;
    uint32_t widest = 1;
    for (uint32_t il = 0; il < p->n_layers; il++) widest = HL_MAX(widest, p->layers[il].n_batches);
    HL_NEED(freq = hl_alloc_array(plan->mem, widest, sizeof *freq));
    draw_items(plan, o, y, row);
    for (uint32_t il = 0; il < p->n_layers; il++, y += row + 2) {
        const hl_neuron_layer *l = &p->layers[il];
        const double all = (double)l->batch_neurons * (l->n_batches - 1) + l->last_batch_neurons;
        const int64_t hot = tenths((double)plan->neuron_plan->n_gpu[il] / all);
        char name[32];
        snprintf(name, sizeof name, "layer %u", il);
        if (row >= 12 || il % 10 == 0) text(o, LEFT - 8, y + HL_MIN(row, 12), "end", name);
        box(o, LEFT * 10 + hot, y, WIDTH * 10 - hot, row, colour_of_device(0));
        if (hot) box(o, LEFT * 10, y, hot, row, colour_of_device(1 + (uint32_t)plan->neuron_plan->gpu_of_layer[il]));
        memcpy(freq, l->freq, l->n_batches * sizeof *freq);
        qsort(freq, l->n_batches, sizeof *freq, by_freq);
        const uint32_t n = HL_MIN(l->n_batches, (uint32_t)MAX_POINTS);
        hl_out_printf(o, "<polyline fill=\"none\" stroke=\"#fff\" points=\"");
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t ib = n > 1 ? (uint32_t)((uint64_t)i * (l->n_batches - 1) / (n - 1)) : 0;
            const int h = (int)(freq[ib] * row * 10);
            hl_out_printf(o, "%d,%d.%d ", LEFT + (int)((uint64_t)WIDTH * ib / HL_MAX(l->n_batches - 1, 1u)), y + row - (h + 9) / 10, (10 - h % 10) % 10);
        }
        hl_out_printf(o, "\"/>\n");
    }
done:
    hl_free(plan->mem, freq);
    return rc;
}

static void draw_ring(const hl_plan *plan, hl_out *o, int y, int row)
{
    const hl_layer_plan *a = &plan->layer_plan;
    uint32_t il = 0;
    for (uint32_t k = 0; k < a->k; k++)
        for (uint32_t im = 0; im < plan->ring.n_devices; im++)
            for (uint32_t i = 0; i < a->layers[im] / a->k; i++, il++, y += row + 2) {
                const bool gpu = i >= (a->layers[im] - a->gpu_layers[im]) / a->k;        /* the last of each window */
                char name[32];
                snprintf(name, sizeof name, "layer %u", il);
                if (row >= 12 || il % 10 == 0) text(o, LEFT - 8, y + HL_MIN(row, 12), "end", name);
                const int64_t at = (int64_t)WIDTH * 10 * im / plan->ring.n_devices, w = WIDTH * 10 / plan->ring.n_devices;
                box(o, LEFT * 10 + at, y + (gpu ? 0 : row / 2), w, gpu ? row : row - row / 2, colour_of_device(im));
            }
}

hl_status hl_plan_draw(const hl_plan *plan, hl_out *o, hl_error *err)
{
    const uint32_t n = plan->kind == HL_PLAN_NEURON ? plan->neuron.n_layers : plan->ring.n_layers;
    const double seconds = plan->kind == HL_PLAN_NEURON ? plan->neuron_plan->seconds_per_token : plan->layer_plan.objective;
    const int row = n <= 200 ? 14 : 4, top = 60 + (int)hl_plan_n_devices(plan) * (BAR + 24), legend = 18 * (1 + (int)hl_plan_n_devices(plan) / 6);
    char line[256], a[32], b[32];
    const bool items = plan->kind == HL_PLAN_NEURON && plan->neuron.n_dense;
    const double gap = plan->kind == HL_PLAN_NEURON ? plan->neuron_plan->gap : plan->layer_plan.gap;
    hl_status rc = HLLM_OK;
    (void)err;
    hl_out_printf(o, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n", LEFT + WIDTH + 20 + (items ? MAX_COLUMNS * CELL : 0),
                  top + legend + (int)n * (row + 2) + 20);
    hl_out_printf(o, "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n");
    snprintf(line, sizeof line, "%s%s%s s per token (predicted), gap %s", plan->model.known ? plan->model.name : "", plan->model.known && *plan->model.name ? ": " : "", hl_text_f64(seconds, a),
             hl_text_f64(floor(gap * 1e9 + 0.5) / 1e9, b));
    text(o, LEFT, 24, "start", line);
    draw_devices(plan, o, 40);
    draw_legend(plan, o, top - 6);
    if (plan->kind == HL_PLAN_NEURON) rc = draw_neurons(plan, o, top + legend, row);
    else draw_ring(plan, o, top + legend, row);
    hl_out_printf(o, "</svg>\n");
    return rc == HLLM_OK && o->failed ? HLLM_E_NOMEM : rc;
}
