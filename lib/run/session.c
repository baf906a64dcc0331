/* session.c: memory and life of a session, and the jobs that are not generations: evaluating tokens, reading logits and hidden states,
 * rewinding.
 */
#include "run/session.h"

#include <string.h>

enum { DEFAULT_CTX = 4096, DEFAULT_MICRO_BATCH = 512, MAX_MICRO_BATCH = 4096, SCRATCH_AIM = 36 << 20, LOGITS_AIM = 4 << 20, ALIGN = 64 };

/* ---- sizes ---- */

/* Before a device is open: no backend's 8-bit activation is larger. */
static uint64_t act_width_bytes(uint64_t n) { return 2 * n + 768; }

uint64_t hl_scratch_thread_bytes(const hl_model *m)
{
    const hl_config *c = &m->config;
    const uint64_t widest = HL_MAX(HL_MAX((uint64_t)c->n_embd, (uint64_t)c->max_heads * c->head_dim_v), (uint64_t)c->max_ff);
    return (m->sparse.rows ? 4ull * 32 * c->n_embd + c->max_ff / 8 * 4 + 4096 : 0) + 72 * (widest + 256) + 512ull * (c->head_dim_k + c->head_dim_v + 32) + (64 << 10);
}

uint64_t hl_scratch_fixed_bytes(const hl_model *m) { return m->sparse.rows ? 4ull * HL_FFN_PARTS * m->config.n_embd + 4 * ALIGN : 0; }

uint64_t hl_scratch_token_bytes(const hl_model *m)
{
    const hl_config *c = &m->config;
    const uint64_t att = (uint64_t)c->max_heads * c->head_dim_v;
    const uint64_t widest = HL_MAX(HL_MAX((uint64_t)c->n_embd, att), (uint64_t)c->max_ff);
    const uint64_t sparse = m->sparse.rows ? 8ull + 4ull * (m->sparse.n_predictors || m->sparse.n_cuts ? c->max_ff + (uint64_t)c->max_pred : 0) : 0;
    return sparse + 4ull * (4ull * c->n_embd + (uint64_t)c->max_heads * c->head_dim_k + (uint64_t)c->max_heads_kv * (c->head_dim_k + c->head_dim_v) + att
                   + 2ull * c->max_ff + 3ull * c->n_rot) + act_width_bytes(widest);
}

static uint32_t kv_type(uint32_t option) { return option == HLLM_KV_F32 ? HL_F32 : option == HLLM_KV_Q8_0 ? HL_Q8_0 : HL_F16; }

uint64_t hl_session_kv_bytes(const hl_model *m, uint32_t il, const hl_session_sizes *z, uint32_t kv)
{
    const hl_config *c = &m->config;
    const hl_layer *l = &m->layers[il];
    const uint64_t slots = l->window ? z->n_slots_window : hl_align_up((uint64_t)z->n_ctx, HL_KV_SLOTS);
    return 2 * ALIGN + slots * l->n_heads_kv * (hl_kv_row_bytes(kv_type(kv), c->head_dim_k) + hl_kv_row_bytes(kv_type(kv), c->head_dim_v));
}

hl_status hl_session_sizes_for(const hl_model *m, const hllm_session_options *opt, hl_error *err, hl_session_sizes *out)
{
    const hl_config *c = &m->config;
    memset(out, 0, sizeof *out);
    out->n_ctx = opt->n_ctx ? opt->n_ctx : HL_MIN(c->n_ctx_train, (uint32_t)DEFAULT_CTX);
    if (out->n_ctx > c->n_ctx_train)
        return hl_fail(err, HLLM_E_ARG, "%s: context of %u tokens: the model's limit is %u", hl_gguf_path(m->gguf), out->n_ctx, c->n_ctx_train);
    if (opt->micro_batch > MAX_MICRO_BATCH)
        return hl_fail(err, HLLM_E_ARG, "micro_batch is %u, the limit is %u", opt->micro_batch, (uint32_t)MAX_MICRO_BATCH);
    if (opt->kv > HLLM_KV_Q8_0) return hl_fail(err, HLLM_E_ARG, "kv is %u, the highest known is %u", opt->kv, (uint32_t)HLLM_KV_Q8_0);
    const uint64_t each = hl_scratch_token_bytes(m);
    /* A number of the model alone: results may depend on it. */
    const uint32_t batch = (uint32_t)HL_MIN(HL_MAX(SCRATCH_AIM / each / 32 * 32, (uint64_t)32), (uint64_t)DEFAULT_MICRO_BATCH);
    out->micro_batch = HL_MIN(opt->micro_batch ? opt->micro_batch : batch, out->n_ctx);
    out->logit_rows = (uint32_t)HL_MIN(HL_MAX(LOGITS_AIM / (4ull * c->n_vocab), 1ull), (uint64_t)HL_MIN((uint32_t)HL_LOGIT_ROWS, out->micro_batch));
    for (uint32_t il = 0; il < c->n_layers; il++) {
        /* A micro-batch writes before its first token reads: the window and the micro-batch must both fit. */
        if (m->layers[il].window)
            out->n_slots_window = (uint32_t)HL_MIN(hl_align_up((uint64_t)out->n_ctx, HL_KV_SLOTS), hl_align_up((uint64_t)m->layers[il].window + out->micro_batch, HL_KV_SLOTS));
        out->kv_bytes += hl_session_kv_bytes(m, il, out, opt->kv);
    }
    out->scratch_bytes = hl_scratch_fixed_bytes(m) + HL_MAX(out->micro_batch, 2 * out->logit_rows) * each + 4ull * out->logit_rows * c->n_vocab + 32 * ALIGN;
    out->host_bytes = 4ull * out->n_ctx + c->n_vocab / 8 + HL_RECORDS * (sizeof(hllm_token_record) + HL_MAX_LOGPROBS * sizeof(hllm_logit_bias))
                      + 4ull * out->micro_batch * c->n_rot + 4ull * out->micro_batch + 8ull * c->n_rot + c->n_layers + 16 * ALIGN;
    out->scratch_bytes += out->host_bytes + 18ull * c->n_vocab;      /* the sampler's candidates */
    return HLLM_OK;
}

/* ---- life ---- */

void *hl_carve(hl_carver *c, size_t bytes)
{
    void *p = c->base ? c->base + c->at : NULL;
    c->at += hl_align_up(bytes, ALIGN);
    return p;
}

static size_t widest_act(const hllm_engine *e)
{
    const hl_model *m = e->model;
    size_t most = e->be->act_bytes(e->dev, m->config.n_embd);
    for (uint32_t il = 0; il < m->config.n_layers; il++) {
        most = HL_MAX(most, e->be->act_bytes(e->dev, m->layers[il].n_heads * m->config.head_dim_v));
        most = HL_MAX(most, e->be->act_bytes(e->dev, m->layers[il].n_ff));
        if (m->layers[il].n_pred) most = HL_MAX(most, e->be->act_bytes(e->dev, m->layers[il].n_pred));
    }
    return most;
}

void hl_scratch_lay_out(hl_scratch *z, hl_carver *b, const hllm_engine *e, uint32_t n_tokens, uint32_t logit_rows)
{
    const hl_config *c = &e->model->config;
    const size_t n = n_tokens, f = sizeof(float);
    z->x = hl_carve(b, n * c->n_embd * f);
    z->xn = hl_carve(b, n * c->n_embd * f);
    z->xn2 = hl_carve(b, n * c->n_embd * f);
    z->hidden = hl_carve(b, n * c->n_embd * f);
    z->q = hl_carve(b, n * c->max_heads * c->head_dim_k * f);
    z->k = hl_carve(b, n * c->max_heads_kv * c->head_dim_k * f);
    z->v = hl_carve(b, n * c->max_heads_kv * c->head_dim_v * f);
    z->att = hl_carve(b, n * c->max_heads * c->head_dim_v * f);
    z->gate = hl_carve(b, n * c->max_ff * f);
    z->up = hl_carve(b, n * c->max_ff * f);
    z->pred = z->score = z->parts = NULL;
    if (e->mode == HLLM_MODE_PREDICTED) z->pred = hl_carve(b, n * c->max_pred * f);
    if (e->mode == HLLM_MODE_PREDICTED || e->mode == HLLM_MODE_THRESHOLDED) z->score = hl_carve(b, n * c->max_ff * f);
    if (e->model->sparse.rows) z->parts = hl_carve(b, (size_t)HL_FFN_PARTS * c->n_embd * f);
    z->act = hl_carve(b, HL_MAX(n, 2 * (size_t)logit_rows) * widest_act(e));
    z->logits = hl_carve(b, (size_t)logit_rows * c->n_vocab * f);
    for (uint32_t r = 0; r < e->n_ropes; r++) z->cos_sin[r] = hl_carve(b, n * c->n_rot * f);
}

static void lay_out_device(hllm_session *s, hl_carver *b)
{
    const hl_model *m = s->engine->model;
    const hl_config *c = &m->config;
    for (uint32_t il = 0; il < c->n_layers; il++) {
        const hl_layer *l = &m->layers[il];
        hl_kv_layer *kv = &s->kv[il];
        *kv = (hl_kv_layer){ NULL, NULL, s->kv_dtype, l->window ? s->sizes.n_slots_window : (uint32_t)hl_align_up(s->sizes.n_ctx, HL_KV_SLOTS), l->n_heads_kv, c->head_dim_k, c->head_dim_v };
        kv->k = hl_carve(b, (size_t)kv->n_slots * l->n_heads_kv * hl_kv_row_bytes(kv->dtype, kv->dim_k));
        kv->v = hl_carve(b, (size_t)kv->n_slots * l->n_heads_kv * hl_kv_row_bytes(kv->dtype, kv->dim_v));
    }
    hl_scratch_lay_out(&s->z, b, s->engine, s->sizes.micro_batch, s->sizes.logit_rows);
}

static void lay_out_host(hllm_session *s, hl_carver *b)
{
    const hl_config *c = &s->engine->model->config;
    s->tokens = hl_carve(b, (size_t)s->sizes.n_ctx * sizeof(int32_t));
    s->mask = hl_carve(b, (c->n_vocab + 7) / 8);
    s->records = hl_carve(b, HL_RECORDS * sizeof *s->records);
    s->record_tops = hl_carve(b, (size_t)HL_RECORDS * HL_MAX_LOGPROBS * sizeof *s->record_tops);
    s->z.cos_sin_host = hl_carve(b, (size_t)s->sizes.micro_batch * c->n_rot * sizeof(float));
    s->z.counts = hl_carve(b, (size_t)s->sizes.micro_batch * sizeof(uint32_t));
    for (uint32_t r = 0; r < s->engine->n_ropes; r++) s->ropes[r].angle = hl_carve(b, c->n_rot / 2 * sizeof(double));
}

enum { TOUCH_BYTES = 4 << 20 };
typedef struct touch { volatile char *block; size_t bytes; } touch;
static void touch_pages(void *v, uint32_t task, uint32_t thread)
{
    const touch *t = v;
    (void)thread;
    const size_t end = HL_MIN(((size_t)task + 1) * TOUCH_BYTES, t->bytes);
    for (size_t at = (size_t)task * TOUCH_BYTES; at < end; at += 4096) t->block[at] = 0;
}

/* The system promises memory that it does not have: touched pages are really ours, and the next session's check sees them gone.  A
 * machine may take a second for each gigabyte: by all threads, in jobs so small that others get their turn and a cancel is seen. */
static hl_status make_resident(hllm_session *s, hl_progress *progress)
{
    hl_status rc = HLLM_OK;
    hl_pool *pool = s->engine->handle->rt->pool;
    const size_t per_job = (size_t)TOUCH_BYTES * hl_pool_threads(pool);
    if (progress) atomic_fetch_add(&progress->total, s->device_bytes);
    HL_TRY(hl_progress_step(progress, 0));
    for (size_t at = 0; at < s->device_bytes; at += per_job) {
        touch t = { (char *)s->device_block + at, HL_MIN(per_job, s->device_bytes - at) };
        hl_pool_run(pool, touch_pages, &t, (uint32_t)((t.bytes + TOUCH_BYTES - 1) / TOUCH_BYTES));
        HL_TRY(hl_progress_step(progress, t.bytes));
    }
done:
    return rc;
}

hl_status hl_session_new(hllm_engine *e, const hllm_session_options *opt, hllm_session **out)
{
    hl_status rc = HLLM_OK;
    hllm_session *s = NULL;
    hl_session_sizes sizes;
    hl_mem *mem = e->env->mem;
    const hl_model *m = e->model;
    hl_carver b = { 0 };
    *out = NULL;
    HL_TRY(hl_session_sizes_for(m, opt, &e->err, &sizes));
    HL_NEED(s = hl_alloc_zero(mem, sizeof *s));
    hl_error_init(&s->err);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
    hl_engine_ref(e);
    s->engine = e;
    s->sizes = sizes;
    s->kv_option = opt->kv;
    s->kv_dtype = kv_type(opt->kv);
    HL_TRY(hl_engine_reserve(e, &e->err, sizes.kv_bytes + sizes.scratch_bytes, "KV cache and scratch"));
    s->reserved = sizes.kv_bytes + sizes.scratch_bytes;
    HL_NEED(s->kv = hl_alloc_array(mem, m->config.n_layers, sizeof *s->kv));
    lay_out_device(s, &b);
    s->device_bytes = b.at;
    if (!(s->device_block = e->be->alloc(e->dev, s->device_bytes))) {
        rc = hl_fail(&e->err, HLLM_E_NOMEM, "%zu bytes for KV cache and scratch cannot be had", s->device_bytes);
        goto done;
    }
    b = (hl_carver){ s->device_block, 0 };
    lay_out_device(s, &b);
    if (e->be->host_memory) HL_TRY(make_resident(s, opt->progress ? &opt->progress->p : NULL));
    b = (hl_carver){ 0 };
    lay_out_host(s, &b);
    s->host_bytes = b.at;
    HL_NEED(s->host_block = hl_alloc_zero(mem, s->host_bytes));
    b = (hl_carver){ s->host_block, 0 };
    lay_out_host(s, &b);
    for (uint32_t r = 0; r < e->n_ropes; r++)
        for (uint32_t il = 0; il < m->config.n_layers; il++)
            if (e->rope_of_layer[il] == r) {
                HL_TRY(hl_model_rope(m, &e->err, &m->layers[il], hl_session_long_rope(s), s->ropes[r].angle, &s->ropes[r].magnitude));
                break;
            }
    HL_TRY(hl_sampler_new(mem, m->config.n_vocab, &s->sampler));
    HL_TRY(hl_outring_init(mem, &s->out, e->max_piece));
    *out = s; s = NULL;
done:
    hl_session_free(s);
    return rc;
}

void hl_session_free(hllm_session *s)
{
    if (!s) return;
    hllm_engine *e = s->engine;
    hl_mem *mem;
    if (!e) return;
    mem = e->env->mem;
    hl_generate_cancel(s);
    pthread_mutex_lock(&s->lock);
    while (s->job != HL_JOB_NONE || s->queued) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    if (s->device_block) e->be->free(e->dev, s->device_block, s->device_bytes);
    hl_free(mem, s->host_block);
    hl_free(mem, s->kv);
    hl_free(mem, s->bias);
    hl_sampler_free(mem, s->sampler);
    hl_outring_destroy(&s->out);
    hl_engine_release(e, s->reserved);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    hl_error_destroy(&s->err);
    hl_free(mem, s);
    hl_engine_unref(e);
}

/* ---- the worker's side ---- */

hl_part hl_session_begin(hllm_session *s)
{
    const uint32_t pos0 = s->n_kv, n = HL_MIN(s->n_tokens - pos0, s->sizes.micro_batch);
    /* From here on windowed layers lose what these positions overwrite, also when the pass is cancelled half-way. */
    pthread_mutex_lock(&s->lock);
    s->n_written = HL_MAX(s->n_written, pos0 + n);
    if (s->sizes.n_slots_window && s->n_written > s->sizes.n_slots_window) s->held_from = HL_MAX(s->held_from, s->n_written - s->sizes.n_slots_window);
    s->n_hidden = s->n_logits = 0;
    pthread_mutex_unlock(&s->lock);
    return (hl_part){ s, s->tokens + pos0, n, pos0, 0 };
}

hl_status hl_session_computed(hllm_session *s, const hl_part *part, const float *hidden)
{
    const size_t n = (size_t)part->n * s->engine->model->config.n_embd;
    if (s->engine->be->host_memory && !hl_all_finite(hidden, n))
        return hl_fail(&s->err, HLLM_E_NUMERIC, "the hidden state at positions %u to %u holds a value that is not a finite number", part->pos0, part->pos0 + part->n - 1);
    pthread_mutex_lock(&s->lock);
    s->n_kv = part->pos0 + part->n;
    s->hidden_pos = part->pos0;
    s->n_hidden = part->n;
    pthread_mutex_unlock(&s->lock);
    return HLLM_OK;
}

hl_status hl_session_compute(hllm_session *s)
{
    hl_part part = hl_session_begin(s);
    const hl_status rc = hl_forward(s->engine, &s->z, &part, 1, &s->err);
    return rc == HLLM_OK ? hl_session_computed(s, &part, s->z.hidden) : rc;
}

hl_status hl_session_logits_at(hllm_session *s, uint32_t pos)
{
    if (s->n_logits && pos >= s->logits_pos && pos - s->logits_pos < s->n_logits) return HLLM_OK;
    HL_ASSERT(pos >= s->hidden_pos && pos - s->hidden_pos < s->n_hidden);
    const uint32_t n = HL_MIN(s->sizes.logit_rows, s->hidden_pos + s->n_hidden - pos);
    const hl_status rc = hl_forward_head(s->engine, &s->z, pos - s->hidden_pos, n, &s->err);
    if (rc == HLLM_OK) { s->logits_pos = pos; s->n_logits = n; }
    return rc;
}

static void end_job(hllm_session *s, hl_status rc)
{
    pthread_mutex_lock(&s->lock);
    s->job = HL_JOB_NONE;
    s->job_status = rc;
    s->queued = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Behind the other sessions, whose turns a cancelled one does not wait for. */
static void requeue(hllm_session *s)
{
    pthread_mutex_lock(&s->lock);
    if (atomic_load(&s->cancel)) hl_session_end_cancelled(s);
    else hl_engine_queue(s->engine, s);                /* order of locks: session, then engine */
    pthread_mutex_unlock(&s->lock);
}

/* A generation says itself when it ends. */
void hl_session_stepped(hllm_session *s, hl_status rc) { if (hl_session_generate_step(s, rc)) requeue(s); }

void hl_session_step(hllm_session *s)
{
    hl_status rc = HLLM_OK;
    bool more = false;
    switch (s->job) {
    case HL_JOB_EVAL:
        rc = atomic_load(&s->cancel) ? HLLM_E_CANCELLED : hl_session_compute(s);
        more = rc == HLLM_OK && s->n_kv < s->n_tokens;
        break;
    case HL_JOB_HEAD:
        rc = hl_session_logits_at(s, s->head_pos);
        break;
    case HL_JOB_GENERATE:
        hl_session_stepped(s, HLLM_OK);
        return;
    default:
        HL_ASSERT(!"a session without a job was queued");
    }
    if (more) requeue(s);
    else end_job(s, rc);
}

/* ---- the host's side ---- */

/* Queues a job and waits.  The session has no job. */
static hl_status run_job(hllm_session *s, uint32_t job)
{
    pthread_mutex_lock(&s->lock);
    s->job = job;
    s->queued = true;
    hl_engine_queue(s->engine, s);
    while (s->job != HL_JOB_NONE) pthread_cond_wait(&s->changed, &s->lock);
    hl_status rc = s->job_status;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

hl_status hl_session_eval(hllm_session *s, const int32_t *tokens, size_t n)
{
    const uint32_t n_vocab = s->engine->model->config.n_vocab;
    if (n > s->sizes.n_ctx - s->n_tokens)
        return hl_fail(&s->err, HLLM_E_CONTEXT_FULL, "%zu tokens do not fit: the context is %u and holds %u", n, s->sizes.n_ctx, s->n_tokens);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= n_vocab)
            return hl_fail(&s->err, HLLM_E_ARG, "token %zu is %d, the vocabulary has %u", i, tokens[i], n_vocab);
    const uint32_t before = s->n_tokens;
    pthread_mutex_lock(&s->lock);
    if (n) memcpy(s->tokens + before, tokens, n * sizeof *tokens);
    s->n_tokens = before + (uint32_t)n;
    pthread_mutex_unlock(&s->lock);
    if (s->n_kv == s->n_tokens) return HLLM_OK;
    hl_status rc = run_job(s, HL_JOB_EVAL);
    if (rc != HLLM_OK) {
        pthread_mutex_lock(&s->lock);
        s->n_tokens = HL_MAX(s->n_kv, before);         /* a token sampled before and not computed yet stays */
        pthread_mutex_unlock(&s->lock);
        if (rc == HLLM_E_CANCELLED) hl_fail(&s->err, rc, "cancelled: %u of %zu tokens were computed", s->n_tokens - before, n);
    }
    return rc;
}

static hl_status check_hidden(hllm_session *s, uint32_t pos)
{
    if (s->n_hidden && pos >= s->hidden_pos && pos - s->hidden_pos < s->n_hidden) return HLLM_OK;
    if (!s->n_hidden) return hl_fail(&s->err, HLLM_E_STATE, "position %u: nothing was computed since the session was made, rewound or loaded", pos);
    return hl_fail(&s->err, HLLM_E_STATE, "position %u is not in the last micro-batch, which is %u to %u", pos, s->hidden_pos, s->hidden_pos + s->n_hidden - 1);
}

hl_status hl_session_head(hllm_session *s, uint32_t pos, const float **logits)
{
    *logits = NULL;
    hl_status rc = check_hidden(s, pos);
    if (rc != HLLM_OK) return rc;
    if (!(s->n_logits && pos >= s->logits_pos && pos - s->logits_pos < s->n_logits)) {
        s->head_pos = pos;
        rc = run_job(s, HL_JOB_HEAD);
    }
    if (rc == HLLM_OK) *logits = s->z.logits + (size_t)(pos - s->logits_pos) * s->engine->model->config.n_vocab;
    return rc;
}

hl_status hl_session_hidden(hllm_session *s, uint32_t pos, float *out)
{
    const size_t n = s->engine->model->config.n_embd;
    hl_status rc = check_hidden(s, pos);
    if (rc != HLLM_OK) return rc;
    return s->engine->be->read(s->engine->stream, out, s->z.hidden + (size_t)(pos - s->hidden_pos) * n, n * sizeof *out);
}

uint32_t hl_session_window(const hllm_session *s)
{
    uint32_t window = 0;
    const hl_model *m = s->engine->model;
    for (uint32_t il = 0; il < m->config.n_layers; il++) window = HL_MAX(window, m->layers[il].window);
    return window;
}

bool hl_session_long_rope(const hllm_session *s)
{
    const hl_model *m = s->engine->model;
    return m->t[HL_ROPE_LONG] && s->sizes.n_ctx > m->config.n_ctx_original;
}

/* A windowed layer at position p looks back to p - window + 1. */
uint32_t hl_session_rewind_min(const hllm_session *s) { return s->held_from ? s->held_from + hl_session_window(s) - 1 : 0; }

hl_status hl_session_rewind(hllm_session *s, uint32_t n_tokens)
{
    if (n_tokens > s->n_tokens) return hl_fail(&s->err, HLLM_E_ARG, "rewind to %u: the session holds %u tokens", n_tokens, s->n_tokens);
    const uint32_t least = hl_session_rewind_min(s);
    if (n_tokens && n_tokens < s->n_kv && n_tokens < least)
        return hl_fail(&s->err, HLLM_E_STATE, "rewind to %u: sliding windows hold only what position %u and above need (or 0)", n_tokens, least);
    pthread_mutex_lock(&s->lock);
    s->n_tokens = n_tokens;
    s->n_kv = HL_MIN(s->n_kv, n_tokens);
    if (n_tokens == 0) s->n_written = s->held_from = 0;
    if (s->n_hidden && s->hidden_pos + s->n_hidden > n_tokens) s->n_hidden = s->n_logits = 0;
    pthread_mutex_unlock(&s->lock);
    return HLLM_OK;
}
