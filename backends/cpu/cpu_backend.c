/* cpu_backend.c: the CPU as a device: gives each thread of the pool its rows, heads or tokens and calls the chosen kernel table.
 *
 * Streams run at once: every operator has finished when it returns.  How work is cut never changes a result: each output is computed by
 * one kernel call whose sums are ordered by shape alone.  Memory comes from the runtime's allocator.
 */
#include "cpu/kv.h"
#include "cpu/packed.h"

#include <string.h>

_Static_assert(2 * 16 % HL_Q8_WIDEST == 0, "a fine batch is whole blocks");
enum { GATHER = 32 };                                  /* rows of neurons that are not neighbours, computed together: a whole number of every table's groups */
enum { ROW_UNIT = 32, FINE_ROWS = 32, FINE_TOKENS = 16, MIN_TASK_WORK = 1 << 14 };                         /* multiply-adds below which a second thread costs more than it saves */

struct hl_device {
    const hl_env *env;
    const hl_cpu_kernels *k;
    hl_pool *pool;
    bool act_f32;
    uint32_t max_cols;                                 /* of all weights seen: sizes the streams' scratch */
    uint32_t dim_k, dim_v;                             /* of the largest head: likewise */
    size_t row_bytes;                                  /* the longest row of those that are read one by one; 0: none */
    uint32_t n_rows;                                   /* the most of them in a matrix */
};

struct hl_stream {
    hl_device *d;
    float *scratch;                                    /* [n_threads][scratch_n] */
    size_t scratch_n;
    size_t gather_at, ids_at;                          /* from here on: GATHER rows; neurons of a part */
    uint32_t n_threads;
};

static hl_status cpu_open(const hl_env *env, hl_error *err, const hl_device_options *opt, hl_device **out)
{
    *out = NULL;
    const hl_cpu_kernels *k = hl_cpu_pick(opt->isa);
    if (!k) return hl_fail(err, HLLM_E_UNSUPPORTED, "isa \"%s\" is not supported by this CPU or build; there are: %s", opt->isa ? opt->isa : "", hl_cpu_isa_list());
    hl_device *d = hl_alloc_zero(env->mem, sizeof *d);
    if (!d) return HLLM_E_NOMEM;
    *d = (hl_device){ .env = env, .k = k, .pool = opt->pool, .act_f32 = opt->act_f32, .dim_k = opt->dim_k, .dim_v = opt->dim_v };
    *out = d;
    return HLLM_OK;
}

static void cpu_close(hl_device *d) { if (d) hl_free(d->env->mem, d); }

static hl_status cpu_stream_new(hl_device *d, hl_error *err, hl_stream **out)
{
    hl_status rc = HLLM_OK;
    hl_stream *s = NULL;
    (void)err;
    *out = NULL;
    HL_NEED(s = hl_alloc_zero(d->env->mem, sizeof *s));
    s->d = d;
    s->n_threads = hl_pool_threads(d->pool);
    s->scratch_n = HL_MAX(d->k->matmul_scratch(d->max_cols), d->k->attention_scratch(d->dim_k, d->dim_v));
    s->scratch_n = HL_MAX(s->scratch_n, HL_Q8_WIDEST * hl_q8_row_bytes(d->max_cols) / sizeof(float) + d->max_cols);       /* quant_blocks */
    s->scratch_n = hl_align_up(HL_MAX(s->scratch_n, (size_t)16384), 16);
    s->gather_at = s->scratch_n;
    s->ids_at = s->gather_at + hl_align_up(GATHER * d->row_bytes / sizeof(float), 16);
    s->scratch_n = hl_align_up(s->ids_at + (d->n_rows ? d->n_rows / hl_ffn_parts(d->n_rows) + 2 * HL_FFN_BLOCK + GATHER : 0), 16);
    HL_NEED(s->scratch = hl_alloc_array(d->env->mem, s->n_threads, s->scratch_n * sizeof(float)));
    *out = s; s = NULL;
done:
    if (s) hl_free(d->env->mem, s);
    return rc;
}

static void cpu_stream_free(hl_stream *s)
{
    if (!s) return;
    hl_free(s->d->env->mem, s->scratch);
    hl_free(s->d->env->mem, s);
}

static hl_status cpu_sync(hl_stream *s, hl_error *err) { (void)s; (void)err; return HLLM_OK; }
static void *cpu_alloc(hl_device *d, size_t bytes) { return hl_alloc_pages(d->env->mem, bytes); }
static void cpu_free(hl_device *d, void *p, size_t bytes) { hl_free_pages(d->env->mem, p, bytes); }
static hl_status cpu_write(hl_stream *s, void *dst, const void *src, size_t n) { (void)s; memcpy(dst, src, n); return HLLM_OK; }
static hl_status cpu_read(hl_stream *s, void *dst, const void *src, size_t n) { (void)s; memcpy(dst, src, n); return HLLM_OK; }

static void cpu_weight_layout(hl_device *d, uint32_t dtype, uint32_t rows, uint32_t cols, uint32_t *layout, size_t *bytes, uint32_t *row_group)
{
    const hl_form *f = hl_packed_form(dtype);
    d->max_cols = HL_MAX(d->max_cols, cols);
    *layout = HL_LAYOUT_FILE;
    *bytes = (size_t)rows * hl_dtype_bytes(hl_dtype(dtype), cols);
    *row_group = 1;
    if (!f || !d->k->group || d->act_f32 || cols % HL_QK) return;      /* f32 arithmetic takes rows as they are in the file */
    *layout = *row_group = hl_packed_rows(dtype, d->k->group);
    *bytes = hl_align_up(rows, *row_group) / *row_group * hl_packed_group_bytes(f, cols, *row_group);
}

static size_t cpu_weight_rows(hl_device *d, uint32_t dtype, uint32_t rows, uint32_t cols)
{
    const size_t bytes = hl_dtype_bytes(hl_dtype(dtype), cols);
    d->max_cols = HL_MAX(d->max_cols, cols);
    d->row_bytes = HL_MAX(d->row_bytes, bytes);
    d->n_rows = HL_MAX(d->n_rows, rows);
    return rows * bytes;
}

static const uint8_t *row_at(const hl_weight *w, uint32_t r) { return (const uint8_t *)w->data + r * w->row_bytes; }

/* Row r; of a packed matrix: the group that it is in. */
static const uint8_t *rows_at(const hl_weight *w, uint32_t r)
{
    if (w->layout == HL_LAYOUT_FILE) return (const uint8_t *)w->data + (size_t)r * w->row_bytes;
    return (const uint8_t *)w->data + r / w->layout * hl_packed_group_bytes(hl_packed_form(w->dtype), w->cols, w->layout);
}

static void cpu_weight_pack(hl_device *d, hl_weight *w, uint32_t row0, uint32_t n_rows, const void *src)
{
    void *to = (void *)(uintptr_t)rows_at(w, row0);
    if (w->layout == HL_LAYOUT_FILE) memcpy(to, src, n_rows * w->row_bytes);
    else d->k->pack(w->dtype, to, src, w->row_bytes, n_rows, w->cols);
}

static size_t cpu_act_bytes(hl_device *d, uint32_t n) { return d->act_f32 || n % HL_QK ? 0 : hl_q8_row_bytes(n); }

/* Runs fn over n items of about work_each multiply-adds: in one go when there is little to do. */
typedef struct span { void (*fn)(void *arg, uint32_t i0, uint32_t i1, uint32_t thread); void *arg; uint32_t n, first, n_first, per; } span;

static void span_task(void *v, uint32_t task, uint32_t thread)
{
    span *s = v;
    const bool first = task < s->n_first;
    const uint32_t i0 = first ? task * s->first : s->n_first * s->first + (task - s->n_first) * s->per;
    s->fn(s->arg, i0, HL_MIN(s->n, i0 + (first ? s->first : s->per)), thread);
}

/* few: one long task for each thread and a short one for what is left, since each task begins a stream of memory; else short ones all. */
static void for_each(hl_stream *st, uint32_t n, size_t work_each, uint32_t unit, bool few, void (*fn)(void *, uint32_t, uint32_t, uint32_t), void *arg)
{
    const uint32_t threads = st->n_threads;
    const uint32_t least = (uint32_t)HL_MIN((size_t)n, MIN_TASK_WORK / HL_MAX(work_each, (size_t)1) + 1);
    const uint32_t per = (HL_MAX(HL_MAX(n / (threads * 4), 1u), least) + unit - 1) / unit * unit;
    if (threads == 1 || per >= n) { fn(arg, 0, n, 0); return; }
    span s = { fn, arg, n, few ? n / (4 * threads) * 3 / unit * unit : 0, few ? threads : 0, per };
    if (s.first < per) s.n_first = 0;
    hl_pool_run(st->d->pool, span_task, &s, s.n_first + (n - s.n_first * s.first + per - 1) / per);
}

/* ---- operators ---- */

static void cpu_embed(hl_stream *s, float *y, const hl_weight *w, const int32_t *ids, uint32_t n_tok, float scale)
{
    for (uint32_t t = 0; t < n_tok; t++) {
        float *row = y + (size_t)t * w->cols;
        const void *from = rows_at(w, (uint32_t)ids[t]);
        if (w->layout != HL_LAYOUT_FILE) {
            hl_unpack_row(w->dtype, w->cols, w->layout, s->scratch, from, (uint32_t)ids[t] % w->layout);
            from = s->scratch;
        }
        hl_dequantize(w->dtype, from, row, w->cols);
        if (scale != 1.0f) for (uint32_t i = 0; i < w->cols; i++) row[i] *= scale;
    }
}

typedef struct norm_arg { const hl_cpu_kernels *k; uint32_t kind, n; float *y; const float *x, *w, *b; float eps; } norm_arg;

static void norm_rows(void *v, uint32_t r0, uint32_t r1, uint32_t thread)
{
    norm_arg *a = v;
    (void)thread;
    for (uint32_t r = r0; r < r1; r++) {
        const float *x = a->x + (size_t)r * a->n;
        float *y = a->y + (size_t)r * a->n;
        if (a->kind == HL_NORM_RMS) a->k->rms_norm(y, x, a->w, a->eps, a->n);
        else a->k->layer_norm(y, x, a->w, a->b, a->eps, a->n);
    }
}

static void cpu_norm(hl_stream *s, uint32_t kind, float *y, const float *x, const float *w, const float *b, float eps, uint32_t n_rows, uint32_t n)
{
    norm_arg a = { s->d->k, kind, n, y, x, w, b, eps };
    for_each(s, n_rows, n, 1, false, norm_rows, &a);
}

typedef struct quant_arg { hl_stream *s; const hl_act *a; } quant_arg;

/* Blocks of HL_Q8_WIDEST rows that lie side by side; a token is one row or, when it is fine, two: itself and what its bytes lose. */
static void quant_blocks(void *v, uint32_t b0, uint32_t b1, uint32_t thread)
{
    const quant_arg *g = v;
    const hl_act *a = g->a;
    const hl_cpu_kernels *k = g->s->d->k;
    const uint32_t per = a->fine ? 2 : 1;
    const size_t row_bytes = hl_q8_row_bytes(a->n);
    uint8_t *rows = (uint8_t *)(g->s->scratch + thread * g->s->scratch_n);
    float *left = (float *)(void *)(rows + HL_Q8_WIDEST * row_bytes);            /* [n] */
    for (uint32_t i = b0 * HL_Q8_WIDEST; i < HL_MIN(b1 * HL_Q8_WIDEST, a->n_tok * per); i += HL_Q8_WIDEST) {
        const uint32_t n = HL_MIN((uint32_t)HL_Q8_WIDEST, a->n_tok * per - i);
        for (uint32_t r = 0; r < n; r += per) {
            const float *x = a->x + (size_t)(i + r) / per * a->n;
            hl_q8_unit *u = (hl_q8_unit *)(void *)(rows + r * row_bytes);
            k->quantize(u, x, a->n);
            if (!a->fine) continue;
            for (uint32_t c = 0; c < a->n; c++) left[c] = x[c] - u[c / 256].d[c % 256 / 32] * (float)u[c / 256].q[c % 256];
            k->quantize((hl_q8_unit *)(void *)(rows + (r + 1) * row_bytes), left, a->n);
        }
        k->side_by_side((uint8_t *)a->q + i * row_bytes, (const hl_q8_unit *)(const void *)rows, a->n, n);
    }
}

static void cpu_quantize(hl_stream *s, const hl_act *a)
{
    if (!a->q) return;
    quant_arg q = { s, a };
    for_each(s, (a->n_tok * (a->fine ? 2 : 1) + HL_Q8_WIDEST - 1) / HL_Q8_WIDEST, (size_t)a->n * 4 * HL_Q8_WIDEST, 1, false, quant_blocks, &q);
}

typedef struct matmul_arg { hl_stream *s; const hl_act *a; const hl_product *p; uint32_t n_p; } matmul_arg;

static bool is_quantised(uint32_t dtype) { return dtype != HL_F32 && dtype != HL_F16 && dtype != HL_BF16; }

/* With a fine activation every token is two: both are computed and added. */
static void fine_rows(const matmul_arg *m, const hl_weight *w, float *y, size_t stride, const uint8_t *rows, uint32_t n_rows, float *scratch)
{
    const hl_act *a = m->a;
    float part[2 * FINE_TOKENS][FINE_ROWS];
    for (uint32_t t0 = 0; t0 < a->n_tok; t0 += FINE_TOKENS) {
        const uint32_t n = HL_MIN((uint32_t)FINE_TOKENS, a->n_tok - t0);
        m->s->d->k->matmul_q8(w->dtype, w->layout != HL_LAYOUT_FILE, part[0], FINE_ROWS, rows, w->row_bytes, n_rows, w->cols, (const uint8_t *)a->q + 2 * t0 * hl_q8_row_bytes(a->n), 2 * n, scratch);
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t r = 0; r < n_rows; r++) y[(t0 + t) * stride + r] = part[2 * t][r] + part[2 * t + 1][r];
    }
}

/* Rows [r0, r1) of one product. */
static void product_rows(const matmul_arg *m, const hl_product *p, uint32_t r0, uint32_t r1, uint32_t thread)
{
    const hl_weight *w = p->w;
    const hl_cpu_kernels *k = m->s->d->k;
    const hl_act *a = m->a;
    const bool packed = w->layout != HL_LAYOUT_FILE, q8 = a->q && is_quantised(w->dtype), half = a->q && (w->dtype == HL_F16 || w->dtype == HL_BF16);
    const uint32_t step = q8 && a->fine ? FINE_ROWS : r1 - r0;
    float *scratch = m->s->scratch + thread * m->s->scratch_n;
    for (uint32_t r = r0; r < r1; r += step) {
        const uint32_t n = HL_MIN(step, r1 - r);
        const uint8_t *rows = rows_at(w, r);
        float *y = p->y + r;
        if (half) k->matmul_half(w->dtype, packed, a->fine, y, p->stride, rows, w->row_bytes, n, w->cols, a->x, a->n_tok, scratch);
        else if (!q8) k->matmul_f32(w->dtype, y, p->stride, rows, w->row_bytes, n, w->cols, a->x, a->n_tok, scratch);
        else if (a->fine) fine_rows(m, w, y, p->stride, rows, n, scratch);
        else k->matmul_q8(w->dtype, packed, y, p->stride, rows, w->row_bytes, n, w->cols, a->q, a->n_tok, scratch);
    }
    if (p->bias)
        for (uint32_t t = 0; t < a->n_tok; t++)
            for (uint32_t r = r0; r < r1; r++) p->y[t * p->stride + r] += p->bias[r];
}

/* The products' rows laid end to end, each product's first at a multiple of ROW_UNIT. */
static void matmul_rows(void *v, uint32_t r0, uint32_t r1, uint32_t thread)
{
    const matmul_arg *m = v;
    uint32_t at = 0;
    for (uint32_t i = 0; i < m->n_p && at < r1; i++) {
        const uint32_t rows = m->p[i].w->rows;
        const uint32_t a = HL_MAX(r0, at), b = HL_MIN(r1, at + rows);
        if (a < b) product_rows(m, &m->p[i], a - at, b - at, thread);
        at += (uint32_t)hl_align_up(rows, ROW_UNIT);
    }
}

static void cpu_matmul(hl_stream *s, const hl_act *a, const hl_product *p, uint32_t n_p)
{
    matmul_arg m = { s, a, p, n_p };
    uint32_t rows = 0;
    for (uint32_t i = 0; i < n_p; i++) rows += (uint32_t)hl_align_up(p[i].w->rows, ROW_UNIT);
    for_each(s, rows, (size_t)a->n * a->n_tok, ROW_UNIT, a->n_tok <= HL_Q8_WIDEST, matmul_rows, &m);
}

typedef struct rope_arg { const hl_cpu_kernels *k; float *x; size_t stride; uint32_t n_heads, head_dim, n_rot, kind; const float *cs; } rope_arg;

static void rope_rows(void *v, uint32_t t0, uint32_t t1, uint32_t thread)
{
    rope_arg *r = v;
    (void)thread;
    for (uint32_t t = t0; t < t1; t++) r->k->rope(r->x + t * r->stride, r->n_heads, r->head_dim, r->n_rot, r->kind, r->cs + (size_t)t * r->n_rot);
}

static void cpu_rope(hl_stream *s, float *x, size_t stride, uint32_t n_tok, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, uint32_t kind, const float *cs)
{
    rope_arg r = { s->d->k, x, stride, n_heads, head_dim, n_rot, kind, cs };
    for_each(s, n_tok, (size_t)n_heads * head_dim, 1, false, rope_rows, &r);
}

size_t hl_kv_row_bytes(uint32_t dtype, uint32_t dim) { return kv_row_bytes(dtype, dim); }

typedef struct kv_arg { hl_stream *s; const hl_kv_layer *kv; const float *ks, *vs; size_t k_stride, v_stride; uint32_t pos0; } kv_arg;

static void kv_tokens(void *v, uint32_t t0, uint32_t t1, uint32_t thread)
{
    kv_arg *a = v;
    const hl_kv_layer *kv = a->kv;
    const hl_cpu_kernels *k = a->s->d->k;
    uint8_t *row = (uint8_t *)(a->s->scratch + thread * a->s->scratch_n);
    for (uint32_t t = t0; t < t1; t++)
        for (uint32_t h = 0; h < kv->n_heads; h++) {
            const uint32_t slot = (a->pos0 + t) % kv->n_slots;
            k->kv_store(kv->dtype, row, a->ks + t * a->k_stride + (size_t)h * kv->dim_k, kv->dim_k);
            k_row_move(kv, h, slot, row, true);
            k->kv_store(kv->dtype, v_row(kv, h, slot), a->vs + t * a->v_stride + (size_t)h * kv->dim_v, kv->dim_v);
        }
}

static void cpu_kv_put(hl_stream *s, const hl_kv_layer *kv, const float *k, size_t k_stride, const float *v, size_t v_stride, uint32_t pos0, uint32_t n_tok)
{
    kv_arg a = { s, kv, k, v, k_stride, v_stride, pos0 };
    for_each(s, n_tok, (size_t)kv->n_heads * (kv->dim_k + kv->dim_v), KV_LANES, false, kv_tokens, &a);      /* threads write different vectors of K, mostly */
}

static void cpu_kv_row(hl_stream *s, const hl_kv_layer *kv, bool is_v, uint32_t head, uint32_t slot, void *row, bool put)
{
    (void)s;
    if (!is_v) { k_row_move(kv, head, slot, row, put); return; }
    const size_t bytes = kv_row_bytes(kv->dtype, kv->dim_v);
    if (put) memcpy(v_row(kv, head, slot), row, bytes);
    else memcpy(row, v_row(kv, head, slot), bytes);
}

/* One item: some tokens of one KV head of one session, with the query heads that share it; heads in parts where they are too many. */
typedef struct att_arg { hl_stream *s; const hl_attention *a; uint32_t heads, n_parts; } att_arg;

static uint32_t att_tokens(const att_arg *g, const hl_attention *a) { return HL_MIN(HL_ATTENTION_ROWS / g->heads, a->n_tok); }       /* of an item */
static uint32_t att_blocks(const att_arg *g, const hl_attention *a) { return (a->n_tok + att_tokens(g, a) - 1) / att_tokens(g, a); }

static void att_items(void *v, uint32_t i0, uint32_t i1, uint32_t thread)
{
    const att_arg *g = v;
    const hl_attention *a = g->a;
    const uint32_t group = a->n_heads / a->kv->n_heads;
    float *scratch = g->s->scratch + thread * g->s->scratch_n;
    uint32_t first = 0, n_blocks = att_blocks(g, a), n = a->kv->n_heads * g->n_parts * n_blocks;     /* items of *a begin at first */
    for (uint32_t i = i0; i < i1; i++) {
        while (i - first >= n) {
            first += n;
            a++;
            n_blocks = att_blocks(g, a);
            n = a->kv->n_heads * g->n_parts * n_blocks;
        }
        const uint32_t k = i - first, h = k / n_blocks / g->n_parts, head0 = k / n_blocks % g->n_parts * g->heads;
        const uint32_t tok0 = (n_blocks - 1 - k % n_blocks) * att_tokens(g, a);            /* long ones first */
        g->s->d->k->attention(a, h, h * group + head0, HL_MIN(g->heads, group - head0), tok0, HL_MIN(att_tokens(g, a), a->n_tok - tok0), scratch);
    }
}

static void cpu_attention(hl_stream *s, const hl_attention *a, uint32_t n)
{
    if (n == 0) return;
    const uint32_t group = a->n_heads / a->kv->n_heads, heads = HL_MIN(group, (uint32_t)HL_ATTENTION_ROWS);
    att_arg g = { .s = s, .a = a, .heads = heads, .n_parts = (group + heads - 1) / heads };
    size_t items = 0, work = 0;
    for (uint32_t i = 0; i < n; i++) {
        const size_t seen = a[i].window ? HL_MIN(a[i].window, a[i].pos0 + a[i].n_tok) : a[i].pos0 + a[i].n_tok;
        items += (size_t)a[i].kv->n_heads * g.n_parts * att_blocks(&g, &a[i]);
        work += seen * a[i].n_tok * a[i].n_heads * (a[i].kv->dim_k + a[i].kv->dim_v);
    }
    for_each(s, (uint32_t)items, work / items, 1, false, att_items, &g);
}

typedef struct act_arg { const hl_cpu_kernels *k; uint32_t kind, n; float *y; size_t y_stride, stride; const float *gate, *up; } act_arg;

static void act_rows(void *v, uint32_t t0, uint32_t t1, uint32_t thread)
{
    act_arg *a = v;
    (void)thread;
    for (uint32_t t = t0; t < t1; t++)
        a->k->ffn_act(a->kind, a->y + t * a->y_stride, a->gate + t * a->stride, a->up ? a->up + t * a->stride : NULL, a->n);
}

static void cpu_ffn_act(hl_stream *s, uint32_t kind, float *y, size_t y_stride, const float *gate, const float *up, size_t stride, uint32_t n_tok, uint32_t n)
{
    act_arg a = { s->d->k, kind, n, y, y_stride, stride, gate, up };
    for_each(s, n_tok, (size_t)n * 8, 1, false, act_rows, &a);
}

/* ---- FFN by neurons ---- */

typedef struct ffn_arg { hl_stream *s; const hl_ffn *f; uint32_t n_parts; hl_ffn_count count[HL_FFN_PARTS]; } ffn_arg;

/* y[k] = row ids[k] . x + bias: as the same row of a whole product, bit by bit.  next: n_next rows that will be read after these. */
static void ffn_products(const ffn_arg *g, const hl_weight *w, const float *bias, const uint32_t *ids, uint32_t n, const uint8_t *const *next, uint32_t n_next, float *y, uint32_t thread)
{
    const hl_cpu_kernels *k = g->s->d->k;
    const hl_act *a = g->f->a;
    float *scratch = g->s->scratch + thread * g->s->scratch_n;
    if (a->q && is_quantised(w->dtype) && k->gather) {
        const uint8_t *rows[2 * GATHER];
        for (uint32_t i = 0; i < n; i++) rows[i] = row_at(w, ids[i]);
        for (uint32_t i = 0; i < n_next; i++) rows[n + i] = next[i];
        k->gather(w->dtype, y, rows, n, n_next, w->cols, a->q, scratch);
    } else {
        const uint8_t *rows = row_at(w, ids[0]);
        if (ids[n - 1] - ids[0] != n - 1) {            /* no neighbours */
            uint8_t *to = (uint8_t *)(scratch + g->s->gather_at);
            for (uint32_t i = 0; i < n; i++) memcpy(to + i * w->row_bytes, row_at(w, ids[i]), w->row_bytes);
            rows = to;
        }
        if (a->q && (w->dtype == HL_F16 || w->dtype == HL_BF16)) k->matmul_half(w->dtype, false, false, y, GATHER, rows, w->row_bytes, n, w->cols, a->x, 1, scratch);
        else if (!a->q || !is_quantised(w->dtype)) k->matmul_f32(w->dtype, y, GATHER, rows, w->row_bytes, n, w->cols, a->x, 1, scratch);
        else k->matmul_q8(w->dtype, false, y, GATHER, rows, w->row_bytes, n, w->cols, a->q, 1, scratch);
    }
    if (bias) for (uint32_t i = 0; i < n; i++) y[i] += bias[ids[i]];
}

/* The first n of ids, at most GATHER: their values times their rows of down; then come `more` others. */
static void ffn_some(ffn_arg *g, uint32_t *ids, uint32_t n, uint32_t more, float *part, hl_ffn_count *count, uint32_t thread)
{
    const hl_ffn *f = g->f;
    const hl_cpu_kernels *k = g->s->d->k;
    const hl_weight *first = f->gate ? f->gate : f->up;
    const uint8_t *rows[GATHER], *next[GATHER];
    float v[GATHER], u[GATHER];
    uint32_t m = 0;
    if (f->first) for (uint32_t i = 0; i < n; i++) v[i] = f->first[ids[i]];
    else {
        const hl_weight *then = f->gate ? f->up : f->down;           /* most of those that a predictor lets through go on */
        for (uint32_t i = 0; i < n; i++) next[i] = row_at(then, ids[i]);
        ffn_products(g, first, f->gate ? f->gate_b : f->up_b, ids, n, next, n, v, thread);
    }
    k->ffn_act(f->act, v, v, NULL, n);
    count->first += n;
    const uint32_t n_next = f->first ? 0 : HL_MIN(more, (uint32_t)GATHER);
    for (uint32_t i = 0; i < n_next; i++) next[i] = row_at(first, ids[n + i]);
    for (uint32_t i = 0; i < n; i++) {                 /* a NaN is not at most cut and stays */
        const float cut = f->cuts ? f->cuts[ids[i]] : 0;
        if (v[i] <= cut && v[i] >= -cut) continue;
        v[m] = v[i];
        ids[m++] = ids[i];
    }
    if (f->gate && m) {
        ffn_products(g, f->up, f->up_b, ids, m, next, n_next, u, thread);
        if (f->up_act) k->ffn_act(f->act, u, u, NULL, m);
        count->second += m;
        n = m;
        m = 0;
        for (uint32_t i = 0; i < n; i++) {
            v[m] = v[i] * u[i];
            ids[m] = ids[i];
            m += v[m] != 0;
        }
    }
    for (uint32_t i = 0; i < m; i++) rows[i] = row_at(f->down, ids[i]);
    k->axpy(f->down->dtype, part, rows, v, m, f->down->cols, g->s->scratch + thread * g->s->scratch_n);
    count->down += m;
}

/* Neurons of a part whose values are known: only down is read. */
static void ffn_known(const ffn_arg *g, uint32_t ip, float *part, hl_ffn_count *count, uint32_t thread)
{
    const hl_ffn *f = g->f;
    const uint8_t *rows[GATHER + HL_FFN_BLOCK];
    float v[GATHER + HL_FFN_BLOCK];
    uint32_t n = 0;
    for (uint32_t at = ip * HL_FFN_BLOCK; at < f->down->rows; at += g->n_parts * HL_FFN_BLOCK) {
        for (uint32_t i = at; i < HL_MIN(f->down->rows, at + HL_FFN_BLOCK); i++) {
            v[n] = f->value[i];
            rows[n] = row_at(f->down, i);
            n += f->all || f->value[i] != 0;
        }
        if (n < GATHER && at + g->n_parts * HL_FFN_BLOCK < f->down->rows) continue;
        g->s->d->k->axpy(f->down->dtype, part, rows, v, n, f->down->cols, g->s->scratch + thread * g->s->scratch_n);
        count->down += n;
        n = 0;
    }
}

static void ffn_part_task(void *arg, uint32_t ip, uint32_t thread)
{
    ffn_arg *g = arg;
    const hl_ffn *f = g->f;
    const uint32_t n_ff = f->down->rows;
    float *part = f->parts + (size_t)ip * f->down->cols;
    hl_ffn_count count = { 0 };
    uint32_t *ids = (uint32_t *)(void *)(g->s->scratch + thread * g->s->scratch_n + g->s->ids_at), n = 0;
    memset(part, 0, f->down->cols * sizeof *part);
    if (f->value) ffn_known(g, ip, part, &count, thread);
    else {
        for (uint32_t at = ip * HL_FFN_BLOCK; at < n_ff; at += g->n_parts * HL_FFN_BLOCK) {
            const uint32_t end = HL_MIN(n_ff, at + HL_FFN_BLOCK);
            if (f->score) for (uint32_t i = at; i < end; i++) { ids[n] = i; n += !(f->score[i] < f->threshold); }
            else if (f->first && !f->cuts && (f->act == HL_FFN_RELU || f->act == HL_FFN_RELU2)) for (uint32_t i = at; i < end; i++) { ids[n] = i; n += !(f->first[i] <= 0); }
            else for (uint32_t i = at; i < end; i++) ids[n++] = i;
        }
        for (uint32_t at = 0; at < n; at += GATHER) ffn_some(g, ids + at, HL_MIN(n - at, (uint32_t)GATHER), n - HL_MIN(n, at + GATHER), part, &count, thread);
    }
    g->count[ip] = count;
}

typedef struct sum_arg { const float *parts, *bias; float *y; uint32_t n_parts, n; } sum_arg;

/* The parts in order, and the bias last. */
static void sum_columns(void *v, uint32_t c0, uint32_t c1, uint32_t thread)
{
    const sum_arg *a = v;
    (void)thread;
    for (uint32_t c = c0; c < c1; c++) a->y[c] = a->parts[c];
    for (uint32_t p = 1; p < a->n_parts; p++)
        for (uint32_t c = c0; c < c1; c++) a->y[c] += a->parts[(size_t)p * a->n + c];
    if (a->bias) for (uint32_t c = c0; c < c1; c++) a->y[c] += a->bias[c];
}

static void cpu_ffn(hl_stream *s, const hl_ffn *f)
{
    ffn_arg g = { .s = s, .f = f, .n_parts = hl_ffn_parts(f->down->rows) };
    sum_arg sum = { f->parts, f->down_b, f->y, g.n_parts, f->down->cols };
    hl_pool_run(s->d->pool, ffn_part_task, &g, g.n_parts);
    for_each(s, f->down->cols, g.n_parts, 64, false, sum_columns, &sum);
    *f->count = (hl_ffn_count){ 0 };
    for (uint32_t i = 0; i < g.n_parts; i++) {
        f->count->first += g.count[i].first;
        f->count->second += g.count[i].second;
        f->count->down += g.count[i].down;
    }
}

/* Many tokens: a task is some columns of a few tokens, for which it takes all parts one after the other. */
enum { DOWN_COLS = 512, DOWN_TOKENS = 4 };
typedef struct down_arg { hl_stream *s; const hl_weight *w; const float *bias, *h; size_t stride; bool all; float *y; uint32_t n_tok, *counts, n_slices, n_parts; } down_arg;

static void down_slice(const down_arg *g, uint32_t t, uint32_t ip, uint32_t c0, uint32_t n_cols, float *part, float *scratch, uint32_t *count)
{
    const hl_cpu_kernels *k = g->s->d->k;
    const hl_dtype_info *d = hl_dtype(g->w->dtype);
    const float *h = g->h + t * g->stride;
    const uint8_t *rows[GATHER + HL_FFN_BLOCK];
    float v[GATHER + HL_FFN_BLOCK];
    uint32_t n = 0;
    memset(part, 0, n_cols * sizeof *part);
    for (uint32_t at = ip * HL_FFN_BLOCK; at < g->w->rows; at += g->n_parts * HL_FFN_BLOCK) {
        for (uint32_t i = at; i < HL_MIN(g->w->rows, at + HL_FFN_BLOCK); i++) {
            v[n] = h[i];
            rows[n] = (const uint8_t *)g->w->data + i * g->w->row_bytes + hl_dtype_bytes(d, c0);
            n += g->all || h[i] != 0;
        }
        if (n < GATHER) continue;
        k->axpy(g->w->dtype, part, rows, v, n, n_cols, scratch);
        *count += n;
        n = 0;
    }
    k->axpy(g->w->dtype, part, rows, v, n, n_cols, scratch);
    *count += n;
}

static void down_items(void *v, uint32_t i0, uint32_t i1, uint32_t thread)
{
    const down_arg *g = v;
    float *scratch = g->s->scratch + thread * g->s->scratch_n, *part = scratch + DOWN_COLS;
    const uint32_t cols = g->w->cols;
    for (uint32_t item = i0; item < i1; item++) {
        const uint32_t t0 = item / g->n_slices * DOWN_TOKENS, c0 = item % g->n_slices * DOWN_COLS, n_cols = HL_MIN(cols - c0, (uint32_t)DOWN_COLS);
        uint32_t count[DOWN_TOKENS] = { 0 };
        const uint32_t n = HL_MIN(g->n_tok - t0, (uint32_t)DOWN_TOKENS);
        for (uint32_t ip = 0; ip < g->n_parts; ip++)
            for (uint32_t t = 0; t < n; t++) {
                float *y = g->y + (size_t)(t0 + t) * cols + c0;
                down_slice(g, t0 + t, ip, c0, n_cols, part, scratch, &count[t]);
                if (ip == 0) memcpy(y, part, n_cols * sizeof *y);
                else for (uint32_t c = 0; c < n_cols; c++) y[c] += part[c];
            }
        for (uint32_t t = 0; t < n; t++) {
            float *y = g->y + (size_t)(t0 + t) * cols + c0;
            if (g->bias) for (uint32_t c = 0; c < n_cols; c++) y[c] += g->bias[c0 + c];
            if (c0 == 0) g->counts[t0 + t] += count[t];
        }
    }
}

static void cpu_ffn_down(hl_stream *s, const hl_weight *down, const float *bias, const float *h, size_t stride, bool all, float *y, uint32_t n_tok, uint32_t *counts)
{
    const uint32_t slices = (down->cols + DOWN_COLS - 1) / DOWN_COLS;
    down_arg g = { s, down, bias, h, stride, all, y, n_tok, counts, slices, hl_ffn_parts(down->rows) };
    for_each(s, (n_tok + DOWN_TOKENS - 1) / DOWN_TOKENS * slices, (size_t)down->rows * DOWN_COLS, 1, false, down_items, &g);
}

typedef struct mask_arg { float *h; const float *score, *v, *cuts; float threshold; size_t stride; uint32_t n, *counts; } mask_arg;

static void mask_rows(void *arg, uint32_t t0, uint32_t t1, uint32_t thread)
{
    const mask_arg *a = arg;
    (void)thread;
    for (uint32_t t = t0; t < t1; t++) {
        float *h = a->h + t * a->stride;
        const float *v = a->cuts ? a->v + t * a->stride : NULL;
        uint32_t kept = a->n;
        if (a->score)
            for (uint32_t i = 0; i < a->n; i++)
                if (a->score[t * a->stride + i] < a->threshold) { h[i] = 0; kept--; }
        if (a->cuts)
            for (uint32_t i = 0; i < a->n; i++)
                if (v[i] <= a->cuts[i] && v[i] >= -a->cuts[i]) h[i] = 0;
        a->counts[t] += kept;
    }
}

static void cpu_ffn_mask(hl_stream *s, float *h, const float *score, float threshold, const float *v, const float *cuts, size_t stride, uint32_t n_tok, uint32_t n, uint32_t *counts)
{
    mask_arg a = { h, score, v, cuts, threshold, stride, n, counts };
    for_each(s, n_tok, n, 1, false, mask_rows, &a);
}

enum { ADD_BLOCK = 4096 };

typedef struct add_arg { float *y; const float *x; size_t n; } add_arg;

static void add_blocks(void *v, uint32_t b0, uint32_t b1, uint32_t thread)
{
    const add_arg *a = v;
    float *restrict y = a->y;
    const float *restrict x = a->x;
    const size_t end = HL_MIN(a->n, (size_t)b1 * ADD_BLOCK);
    (void)thread;
    for (size_t i = (size_t)b0 * ADD_BLOCK; i < end; i++) y[i] += x[i];
}

static void cpu_add(hl_stream *s, float *y, const float *x, size_t n)
{
    add_arg a = { y, x, n };
    for_each(s, (uint32_t)((n + ADD_BLOCK - 1) / ADD_BLOCK), ADD_BLOCK / 4, 1, false, add_blocks, &a);
}

static void cpu_softcap(hl_stream *s, float *y, size_t n, float cap) { s->d->k->softcap(y, n, cap); }

const hl_backend_vt hl_cpu_backend = {
    .abi = HL_BACKEND_ABI, .name = "cpu", .host_memory = true,
    .open = cpu_open, .close = cpu_close, .stream_new = cpu_stream_new, .stream_free = cpu_stream_free, .sync = cpu_sync,
    .alloc = cpu_alloc, .free = cpu_free, .write = cpu_write, .read = cpu_read,
    .weight_layout = cpu_weight_layout, .weight_pack = cpu_weight_pack, .weight_rows = cpu_weight_rows, .act_bytes = cpu_act_bytes,
    .embed = cpu_embed, .norm = cpu_norm, .quantize = cpu_quantize, .matmul = cpu_matmul, .rope = cpu_rope, .kv_put = cpu_kv_put, .kv_row = cpu_kv_row,
    .attention = cpu_attention, .ffn_act = cpu_ffn_act, .ffn = cpu_ffn, .ffn_down = cpu_ffn_down, .ffn_mask = cpu_ffn_mask, .add = cpu_add, .softcap = cpu_softcap,
};

/* ---- what the machine can do ---- */

typedef struct probe_arg { const hl_cpu_kernels *k; const char *data; size_t per; uint32_t streams; _Atomic uint64_t sink; double ops[1024]; } probe_arg;

static void probe_read_task(void *v, uint32_t task, uint32_t thread)
{
    probe_arg *p = v;
    (void)thread;
    atomic_fetch_add(&p->sink, p->k->probe_read(p->data + task * p->per, p->per, p->streams));
}

static void probe_touch_task(void *v, uint32_t task, uint32_t thread)
{
    probe_arg *p = v;
    (void)thread;
    memset((char *)(uintptr_t)p->data + task * p->per, 1, p->per);
}

double hl_cpu_measure_read(const hl_env *env, hl_pool *pool, size_t bytes)
{
    const uint32_t n = hl_pool_threads(pool);
    double best = 0;
    char *data = hl_alloc_pages(env->mem, bytes);
    if (!data) return 0;
    probe_arg p = { .k = hl_cpu_pick(NULL), .data = data, .per = bytes / n & ~(size_t)4095 };
    hl_pool_run(pool, probe_touch_task, &p, n);
    for (int round = 0; round < 2; round++)
        for (p.streams = 1; p.streams <= 8; p.streams *= 2) {
            uint64_t t0 = hl_now_ns();
            hl_pool_run(pool, probe_read_task, &p, n);
            double rate = (double)p.per * n / ((double)(hl_now_ns() - t0) * 1e-9);
            best = HL_MAX(best, rate);
        }
    hl_free_pages(env->mem, data, bytes);
    return best;
}

enum { GATHER_ROW = 4096 };                            /* a row of one matrix of a middling model */

/* Every row of the task's share once, in an order that no prefetcher knows. */
static void probe_gather_task(void *v, uint32_t task, uint32_t thread)
{
    probe_arg *p = v;
    const size_t rows = p->per / GATHER_ROW;
    uint64_t sum = 0, at = task * 7919u;
    (void)thread;
    for (size_t i = 0; i < rows; i++) {
        at = (at * 6364136223846793005ull + 1442695040888963407ull);
        sum += p->k->probe_read(p->data + task * p->per + (size_t)((at >> 33) % rows) * GATHER_ROW, GATHER_ROW, 4);
    }
    atomic_fetch_add(&p->sink, sum);
}

void hl_cpu_measure_rates(const hl_env *env, hl_pool *pool, const char *isa, size_t bytes, double *read, double *gather)
{
    const uint32_t n = hl_pool_threads(pool);
    char *data = hl_alloc_pages(env->mem, bytes);
    *read = *gather = 0;
    if (!data) return;
    probe_arg p = { .k = hl_cpu_pick(isa), .data = data, .per = bytes / n & ~(size_t)(GATHER_ROW - 1), .streams = 4 };
    if (p.k && p.per) {
        hl_pool_run(pool, probe_touch_task, &p, n);
        for (int round = 0; round < 6; round++) {
            const uint64_t t0 = hl_now_ns();
            hl_pool_run(pool, round % 2 ? probe_gather_task : probe_read_task, &p, n);
            const double rate = (double)p.per * n / ((double)(hl_now_ns() - t0) * 1e-9);
            double *best = round % 2 ? gather : read;
            *best = HL_MAX(*best, rate);
        }
    }
    hl_free_pages(env->mem, data, bytes);
}

static void probe_int8_task(void *v, uint32_t task, uint32_t thread)
{
    probe_arg *p = v;
    (void)thread;
    p->ops[task] = p->k->probe_int8(p->per);
}

double hl_cpu_measure_int8(hl_pool *pool, const char *isa)
{
    const uint32_t n = HL_MIN(hl_pool_threads(pool), 1024u);
    double best = 0;
    probe_arg p = { .k = hl_cpu_pick(isa), .per = 1000 };
    if (!p.k) return 0;
    for (int round = 0; round < 6; round++) {
        double ops = 0;
        uint64_t t0 = hl_now_ns();
        hl_pool_run(pool, probe_int8_task, &p, n);
        double s = (double)(hl_now_ns() - t0) * 1e-9;
        for (uint32_t i = 0; i < n; i++) ops += p.ops[i];
        best = HL_MAX(best, ops / s);
        if (s < 0.02) p.per *= 4;
    }
    return best;
}
