/* api.c: every public function (those of a model: api_model.c): check the arguments, call one internal function, store the error.
 *
 * Nothing else lives here.  A function that fails has cleared its outputs and left its text in the handle that was its first argument.
 */
#include "api.h"
#include "run/engine.h"
#include "run/machine.h"
#include "run/session.h"

#define STRINGIFY2(x) #x
#define STRINGIFY(x) STRINGIFY2(x)

/* ---- one thread at a time ---- */

/* One thread inside a session; BUSY for a second one. */
static hl_status enter(hllm_session *s)
{
    return atomic_exchange(&s->busy, 1) ? hl_fail(&s->err, HLLM_E_BUSY, "another thread is using this session") : HLLM_OK;
}

static hl_status leave(hllm_session *s, hl_status rc)
{
    hl_error_settle(&s->err, rc);
    pthread_mutex_lock(&s->lock);
    s->in_call = false;
    pthread_mutex_unlock(&s->lock);
    atomic_store(&s->busy, 0);
    return rc;
}

static hl_status need_idle(hllm_session *s)
{
    pthread_mutex_lock(&s->lock);                      /* and after it all that the worker wrote can be seen */
    const bool idle = s->job == HL_JOB_NONE;
    if (idle) {                                        /* a cancel from here on is this call's */
        atomic_store(&s->cancel, 0);
        s->in_call = true;
    }
    pthread_mutex_unlock(&s->lock);
    return idle ? HLLM_OK : hl_fail(&s->err, HLLM_E_STATE, "a generation is running: poll it to its end or cancel it first");
}

static hllm_session *mutable_session(const hllm_session *s) { return (hllm_session *)(uintptr_t)s; }    /* its lock and error slot are mutable */
static hllm_engine *mutable_engine(const hllm_engine *e) { return (hllm_engine *)(uintptr_t)e; }

/* ---- status, version ---- */

const char *hllm_status_name(hllm_status status) { return hl_status_name(status); }
const char *hllm_version(void) { return STRINGIFY(HLLM_VERSION_MAJOR) "." STRINGIFY(HLLM_VERSION_MINOR) "." STRINGIFY(HLLM_VERSION_PATCH); }

/* ---- runtime ---- */

hllm_status hllm_runtime_create(const hllm_runtime_options *opt, hllm_runtime **out)
{
    hllm_runtime_options full;
    hllm_allocator hook;
    if (!out) return HLLM_E_ARG;
    *out = NULL;
    hl_status rc = take_options(NULL, "options", opt, &full, sizeof full);
    if (rc != HLLM_OK) return rc;
    if (full.allocator) {
        hl_error err;
        hl_error_init(&err);
        rc = take_options(&err, "allocator", full.allocator, &hook, sizeof hook);
        if (rc != HLLM_OK && full.error_text && full.error_capacity) hl_error_copy(&err, full.error_text, full.error_capacity);
        hl_error_destroy(&err);
        if (rc != HLLM_OK) return rc;
        full.allocator = &hook;
    }
    return hl_runtime_new(&full, out);
}

void hllm_runtime_free(hllm_runtime *rt) { hl_runtime_unref(rt); }
size_t hllm_runtime_last_error(const hllm_runtime *rt, char *buf, size_t cap) { return rt ? hl_error_copy(&rt->err, buf, cap) : 0; }

hllm_status hllm_log_poll(hllm_runtime *rt, uint32_t *level, char *buf, size_t cap, size_t *needed)
{
    if (!rt) return HLLM_E_ARG;
    NEED_ARG(&rt->err, level);
    NEED_ARG(&rt->err, needed);
    if (!buf) cap = 0;
    return hl_error_settle(&rt->err, hl_log_poll(rt->env.log, level, buf, cap, needed));
}

hllm_status hllm_runtime_machine(const hllm_runtime *rt, hllm_machine_info *out)
{
    if (!rt) return HLLM_E_ARG;
    hl_error *err = (hl_error *)(uintptr_t)&rt->err;
    hl_status rc = open_struct(err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    hllm_machine_info i = { .n_threads = hl_pool_threads(rt->pool), .n_cores = hl_machine_cores(), .n_cpus = hl_machine_cpus(), .cpu = rt->cpu, .isa = rt->isa,
                            .isa_known = hl_cpu_isa_list(), .l1d_bytes = hl_machine_cache_bytes(1, true), .l2_bytes = hl_machine_cache_bytes(2, true),
                            .l3_bytes = hl_machine_cache_bytes(3, true) };
    hl_machine_memory(&i.memory_bytes, &i.memory_available_bytes);
    give_struct(out, &i, sizeof i);
    return HLLM_OK;
}

hllm_status hllm_runtime_measure(hllm_runtime *rt, hllm_machine_speed *out)
{
    if (!rt) return HLLM_E_ARG;
    hl_status rc = open_struct(&rt->err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    uint64_t total, available;
    hl_machine_memory(&total, &available);
    const size_t bytes = (size_t)HL_MIN(HL_MAX(available / 4, (uint64_t)16 << 20), (uint64_t)512 << 20);
    hllm_machine_speed v = { .read_bytes_per_s = hl_cpu_measure_read(&rt->env, rt->pool, bytes), .int8_ops_per_s = hl_cpu_measure_int8(rt->pool, rt->isa) };
    if (v.read_bytes_per_s <= 0) return hl_fail(&rt->err, HLLM_E_NOMEM, "%zu bytes to measure with cannot be had", bytes);
    give_struct(out, &v, sizeof v);
    return HLLM_OK;
}

hllm_status hllm_progress_create(hllm_runtime *rt, hllm_progress **out)
{
    if (!rt) return HLLM_E_ARG;
    NEED_ARG(&rt->err, out);
    *out = hl_alloc_zero(rt->env.mem, sizeof **out);
    if (!*out) return hl_error_settle(&rt->err, HLLM_E_NOMEM);
    hl_runtime_ref(rt);
    (*out)->rt = rt;
    return HLLM_OK;
}

void hllm_progress_free(hllm_progress *p)
{
    if (!p) return;
    hllm_runtime *rt = p->rt;
    hl_free(rt->env.mem, p);
    hl_runtime_unref(rt);
}

hllm_status hllm_progress_read(const hllm_progress *p, uint64_t *done, uint64_t *total)
{
    if (!p || !done || !total) return HLLM_E_ARG;
    hl_progress *v = (hl_progress *)(uintptr_t)&p->p;
    *done = atomic_load(&v->done);
    *total = atomic_load(&v->total);
    return HLLM_OK;
}

hllm_status hllm_progress_cancel(hllm_progress *p)
{
    if (!p) return HLLM_E_ARG;
    atomic_store(&p->p.cancelled, 1);
    return HLLM_OK;
}

/* ---- engine ---- */

static hl_status take_engine_options(hl_error *err, const hllm_engine_options *opt, hllm_engine_options *full)
{
    hl_status rc = HLLM_OK;
    HL_TRY(take_options(err, "options", opt, full, sizeof *full));
    HL_TRY(check_flags(err, full->flags, 0));
    if (full->load > HLLM_LOAD_READ) rc = hl_fail(err, HLLM_E_ARG, "options.load is %u, the highest known is %u", full->load, (uint32_t)HLLM_LOAD_READ);
    else if (full->act > HLLM_ACT_F32) rc = hl_fail(err, HLLM_E_ARG, "options.act is %u, the highest known is %u", full->act, (uint32_t)HLLM_ACT_F32);
    else if (full->mode > HLLM_MODE_DENSE) rc = hl_fail(err, HLLM_E_ARG, "options.mode is %u, the highest known is %u", full->mode, (uint32_t)HLLM_MODE_DENSE);
done:
    return rc;
}

hllm_status hllm_model_memory(const hllm_model *m, const hllm_engine_options *engine_opt, const hllm_session_options *session_opt, hllm_memory_need *out)
{
    hl_status rc = HLLM_OK;
    hllm_engine_options e;
    hllm_session_options s;
    hl_session_sizes sizes;
    uint64_t total;
    if (!m) return HLLM_E_ARG;
    hl_error *err = &mutable_model(m)->err;
    HL_TRY(open_struct(err, "out", out, sizeof *out));
    HL_TRY(take_engine_options(err, engine_opt, &e));
    HL_TRY(take_options(err, "session options", session_opt, &s, sizeof s));
    if (!m->model->family) { rc = hl_fail(err, HLLM_E_STATE, "the model was opened for its vocabulary only"); goto done; }
    HL_TRY(hl_session_sizes_for(m->model, &s, err, &sizes));
    hllm_memory_need need = { .weights_bytes = hl_engine_weight_bytes(m->model) + hl_engine_extra_bytes(m), .kv_bytes = sizes.kv_bytes, .scratch_bytes = sizes.scratch_bytes };
    need.total_bytes = need.weights_bytes + need.kv_bytes + need.scratch_bytes;
    hl_machine_memory(&total, &need.available_bytes);
    if (e.ram_bytes) need.available_bytes = HL_MIN(need.available_bytes, e.ram_bytes);
    give_struct(out, &need, sizeof need);
done:
    return hl_error_settle(err, rc);
}

hllm_status hllm_engine_create(const hllm_model *m, const hllm_engine_options *opt, hllm_engine **out)
{
    hl_status rc = HLLM_OK;
    hllm_engine_options full;
    hllm_session_options session;
    if (!m) return HLLM_E_ARG;
    hl_error *err = &mutable_model(m)->err;
    NEED_ARG(err, out);
    *out = NULL;
    HL_TRY(take_engine_options(err, opt, &full));
    if (full.session) {
        HL_TRY(take_options(err, "options.session", full.session, &session, sizeof session));
        full.session = &session;
    }
    rc = hl_engine_new(mutable_model(m), &full, out);
done:
    return hl_error_settle(err, rc);
}

void hllm_engine_free(hllm_engine *e) { hl_engine_unref(e); }
size_t hllm_engine_last_error(const hllm_engine *e, char *buf, size_t cap) { return e ? hl_error_copy(&e->err, buf, cap) : 0; }

/* ---- session ---- */

hllm_status hllm_session_create(const hllm_engine *e, const hllm_session_options *opt, hllm_session **out)
{
    hl_status rc = HLLM_OK;
    hllm_session_options full;
    if (!e) return HLLM_E_ARG;
    hl_error *err = &mutable_engine(e)->err;
    NEED_ARG(err, out);
    *out = NULL;
    HL_TRY(take_options(err, "options", opt, &full, sizeof full));
    rc = hl_session_new(mutable_engine(e), &full, out);
done:
    return hl_error_settle(err, rc);
}

void hllm_session_free(hllm_session *s) { hl_session_free(s); }
size_t hllm_session_last_error(const hllm_session *s, char *buf, size_t cap) { return s ? hl_error_copy(&s->err, buf, cap) : 0; }

hllm_status hllm_session_get_info(const hllm_session *cs, hllm_session_info *out)
{
    if (!cs) return HLLM_E_ARG;
    hllm_session *s = mutable_session(cs);
    hl_status rc = open_struct(&s->err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    pthread_mutex_lock(&s->lock);
    hllm_session_info i = { .n_ctx = s->sizes.n_ctx, .n_tokens = s->n_tokens, .micro_batch = s->sizes.micro_batch, .kv = s->kv_option,
                            .n_tokens_min = hl_session_rewind_min(s), .kv_bytes = s->sizes.kv_bytes, .scratch_bytes = s->sizes.scratch_bytes };
    pthread_mutex_unlock(&s->lock);
    give_struct(out, &i, sizeof i);
    return HLLM_OK;
}

hllm_status hllm_session_tokens(const hllm_session *cs, int32_t *out, size_t cap, size_t *n_out)
{
    if (!cs) return HLLM_E_ARG;
    hllm_session *s = mutable_session(cs);
    NEED_ARG(&s->err, n_out);
    *n_out = 0;
    hl_status rc = check_text(&s->err, "out", out, cap, SIZE_MAX);
    if (rc != HLLM_OK) return rc;
    pthread_mutex_lock(&s->lock);
    *n_out = s->n_tokens;
    if (s->n_tokens > cap) rc = HLLM_E_BUFFER;
    else if (s->n_tokens) memcpy(out, s->tokens, s->n_tokens * sizeof *out);
    pthread_mutex_unlock(&s->lock);
    return settle_buffer(&s->err, rc, *n_out, cap);
}

/* What every call on a session that must have no job does. */
#define SESSION_CALL(s, call) do { \
    if (!(s)) return HLLM_E_ARG; \
    hl_status rc_ = enter(s); \
    if (rc_ != HLLM_OK) return rc_; \
    if ((rc_ = need_idle(s)) == HLLM_OK) rc_ = (call); \
    return leave(s, rc_); } while (0)

hllm_status hllm_session_eval(hllm_session *s, const int32_t *tokens, size_t n)
{
    if (s && !tokens && n) return hl_fail(&s->err, HLLM_E_ARG, "tokens is NULL but n is %zu", n);
    SESSION_CALL(s, hl_session_eval(s, tokens, n));
}

static hl_status copy_logits(hllm_session *s, uint32_t pos, float *out, size_t n)
{
    const float *row;
    const uint32_t n_vocab = s->engine->model->config.n_vocab;
    if (!out || n != n_vocab) return hl_fail(&s->err, HLLM_E_ARG, "out is NULL or n is %zu: the vocabulary has %u", n, n_vocab);
    hl_status rc = hl_session_head(s, pos, &row);
    if (rc == HLLM_OK) rc = s->engine->be->read(s->engine->stream, out, row, n * sizeof *out);
    if (rc == HLLM_OK && !hl_all_finite(out, n)) {
        memset(out, 0, n * sizeof *out);
        rc = hl_fail(&s->err, HLLM_E_NUMERIC, "position %u: the logits hold a value that is not a finite number", pos);
    }
    return rc;
}

hllm_status hllm_session_logits(hllm_session *s, uint32_t pos, float *out, size_t n) { SESSION_CALL(s, copy_logits(s, pos, out, n)); }

static hl_status copy_hidden(hllm_session *s, uint32_t pos, float *out, size_t n)
{
    const uint32_t n_embd = s->engine->model->config.n_embd;
    if (!out || n != n_embd) return hl_fail(&s->err, HLLM_E_ARG, "out is NULL or n is %zu: the width is %u", n, n_embd);
    return hl_session_hidden(s, pos, out);
}

hllm_status hllm_session_embedding(hllm_session *s, uint32_t pos, float *out, size_t n) { SESSION_CALL(s, copy_hidden(s, pos, out, n)); }
hllm_status hllm_session_rewind(hllm_session *s, uint32_t n_tokens) { SESSION_CALL(s, hl_session_rewind(s, n_tokens)); }

hllm_status hllm_session_fork(hllm_session *s, hllm_session **out)
{
    if (!s) return HLLM_E_ARG;
    NEED_ARG(&s->err, out);
    *out = NULL;
    SESSION_CALL(s, hl_session_fork(s, out));
}

hllm_status hllm_session_save(hllm_session *s, const char *path)
{
    if (!s) return HLLM_E_ARG;
    hl_status rc = check_name(&s->err, "path", path);
    if (rc != HLLM_OK) return rc;
    SESSION_CALL(s, hl_session_save(s, path));
}

hllm_status hllm_session_load(hllm_session *s, const char *path)
{
    if (!s) return HLLM_E_ARG;
    hl_status rc = check_name(&s->err, "path", path);
    if (rc != HLLM_OK) return rc;
    SESSION_CALL(s, hl_session_load(s, path));
}

/* ---- generate ---- */

enum { GENERATE_FLAGS = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS | HLLM_GENERATE_PARSE_SPECIAL | HLLM_GENERATE_NO_SPECIAL | HLLM_GENERATE_APPEND |
                        HLLM_GENERATE_STEP | HLLM_GENERATE_TOKENS | HLLM_GENERATE_SPECIAL };

static hl_status start_tokens(hllm_session *s, const int32_t *tokens, size_t n, const hllm_generate_options *opt)
{
    hllm_generate_options full;
    hl_status rc = take_options(&s->err, "options", opt, &full, sizeof full);
    if (rc == HLLM_OK) rc = check_flags(&s->err, full.flags, GENERATE_FLAGS);
    return rc == HLLM_OK ? hl_generate_start(s, tokens, n, &full, full.flags) : rc;
}

static hl_status start_text(hllm_session *s, const char *prompt, size_t bytes, const hllm_generate_options *opt)
{
    hl_status rc = HLLM_OK;
    hllm_generate_options full;
    int32_t *tokens = NULL;
    size_t n = 0;
    hl_env call = *s->engine->env;
    const hl_env *env = &call;
    call.stop = &s->cancel;
    HL_TRY(take_options(&s->err, "options", opt, &full, sizeof full));
    HL_TRY(check_text(&s->err, "prompt", prompt, bytes, MAX_TEXT));
    const hl_text_part part = { prompt ? prompt : "", bytes, false };
    uint32_t flags = (full.flags & HLLM_GENERATE_PARSE_SPECIAL ? HLLM_TOKENIZE_PARSE_SPECIAL : 0u) | (full.flags & HLLM_GENERATE_NO_SPECIAL ? HLLM_TOKENIZE_NO_SPECIAL : 0u);
    if (full.flags & HLLM_GENERATE_APPEND && s->n_tokens) flags |= HLLM_TOKENIZE_NO_SPECIAL;
    /* Before the work of splitting: no token stands for more than max_piece bytes. */
    if (bytes / HL_MAX(s->engine->max_piece, (size_t)1) > s->sizes.n_ctx) {
        rc = hl_fail(&s->err, HLLM_E_CONTEXT_FULL, "the prompt's %zu bytes are at least %zu tokens: the context is %u", bytes, bytes / s->engine->max_piece, s->sizes.n_ctx);
        goto done;
    }
    /* A token rarely stands for less than a byte (a space may become three): then once more with what is needed. */
    for (size_t cap = bytes + 16;; cap = n) {
        hl_free(env->mem, tokens);
        HL_NEED(tokens = hl_alloc(env->mem, cap * sizeof *tokens));
        rc = hl_vocab_tokenize(env, &s->err, s->engine->model->vocab, &part, 1, flags, tokens, cap, &n);
        if (rc != HLLM_E_BUFFER || n <= cap) break;
    }
    if (rc == HLLM_E_CANCELLED) hl_fail(&s->err, rc, "cancelled before the prompt's %zu bytes were tokens", bytes);
    if (rc == HLLM_OK) rc = start_tokens(s, tokens, n, opt);
done:
    hl_free(env->mem, tokens);
    return rc;
}

hllm_status hllm_generate_start(hllm_session *s, const char *prompt, size_t prompt_bytes, const hllm_generate_options *opt)
{
    SESSION_CALL(s, start_text(s, prompt, prompt_bytes, opt));
}

hllm_status hllm_generate_start_tokens(hllm_session *s, const int32_t *tokens, size_t n, const hllm_generate_options *opt)
{
    if (s && !tokens && n) return hl_fail(&s->err, HLLM_E_ARG, "tokens is NULL but n is %zu", n);
    SESSION_CALL(s, start_tokens(s, tokens, n, opt));
}

hllm_status hllm_generate_poll(hllm_session *s, int32_t timeout_ms, char *buf, size_t cap, hllm_poll_result *out)
{
    hllm_poll_result v = { 0 };
    if (!s) return HLLM_E_ARG;
    if (buf && cap) buf[0] = 0;
    hl_status rc = open_struct(&s->err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    if (!buf || cap < 5) return hl_fail(&s->err, HLLM_E_ARG, "buf is NULL or cap is %zu: at least 5 bytes (one code point and a NUL)", cap);
    if (timeout_ms < -1) return hl_fail(&s->err, HLLM_E_ARG, "timeout_ms is %d: 0, -1 or a time", timeout_ms);
    if ((rc = enter(s)) != HLLM_OK) return rc;
    rc = hl_generate_poll(s, timeout_ms, buf, cap, &v);
    if (rc == HLLM_OK) give_struct(out, &v, sizeof v);
    return leave(s, rc);
}

hllm_status hllm_generate_poll_tokens(hllm_session *s, hllm_token_record *records, hllm_logit_bias *top, size_t cap, size_t *n_out)
{
    if (!s) return HLLM_E_ARG;
    NEED_ARG(&s->err, n_out);
    *n_out = 0;
    hl_status rc = check_text(&s->err, "records", records, cap, SIZE_MAX);
    if (rc != HLLM_OK || (rc = enter(s)) != HLLM_OK) return rc;
    return leave(s, hl_generate_poll_tokens(s, records, top, cap, n_out));
}

hllm_status hllm_generate_logits(hllm_session *s, float *out, size_t n)
{
    if (!s) return HLLM_E_ARG;
    const uint32_t n_vocab = s->engine->model->config.n_vocab;
    if (!out || n != n_vocab) return hl_fail(&s->err, HLLM_E_ARG, "out is NULL or n is %zu: the vocabulary has %u", n, n_vocab);
    hl_status rc = enter(s);
    if (rc != HLLM_OK) return rc;
    pthread_mutex_lock(&s->lock);
    if (s->run != HLLM_RUN_WAITING) rc = hl_fail(&s->err, HLLM_E_STATE, "no token is waiting to be sampled (was HLLM_GENERATE_STEP asked for?)");
    else rc = s->engine->be->read(s->engine->stream, out, s->z.logits + (size_t)(s->n_tokens - 1 - s->logits_pos) * n_vocab, n * sizeof *out);
    pthread_mutex_unlock(&s->lock);
    return leave(s, rc);
}

hllm_status hllm_generate_continue(hllm_session *s, const uint8_t *allowed, size_t bytes)
{
    if (!s) return HLLM_E_ARG;
    const uint32_t n_vocab = s->engine->model->config.n_vocab;
    if (allowed && bytes < (n_vocab + 7) / 8) return hl_fail(&s->err, HLLM_E_ARG, "allowed has %zu bytes, %u tokens need %u", bytes, n_vocab, (n_vocab + 7) / 8);
    hl_status rc = enter(s);
    return rc == HLLM_OK ? leave(s, hl_generate_continue(s, allowed)) : rc;
}

hllm_status hllm_generate_cancel(hllm_session *s)
{
    if (!s) return HLLM_E_ARG;
    hl_generate_cancel(s);
    return HLLM_OK;
}

hllm_status hllm_session_stats(const hllm_session *cs, hllm_run_stats *out)
{
    if (!cs) return HLLM_E_ARG;
    hllm_session *s = mutable_session(cs);
    hl_status rc = open_struct(&s->err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    static const char *const modes[] = { "exact", "predicted", "thresholded", "dense" };
    hllm_run_stats v = { .active_share = 1, .true_share = 1, .mode = modes[s->engine->mode] };
    pthread_mutex_lock(&s->lock);
    v.n_prompt = s->n_prompt; v.n_generated = s->n_generated; v.n_reused = s->n_reused;
    if (s->prompt_done_ns) v.prompt_ns = s->prompt_done_ns - s->start_ns;
    if (s->first_token_ns) { v.first_token_ns = s->first_token_ns - s->start_ns; v.decode_ns = s->last_token_ns - s->first_token_ns; }
    v.decode_weight_bytes = s->engine->decode_weight_bytes;
    v.ffn_bytes_per_token = s->engine->decode_ffn_bytes;
    if (s->ffn.tokens) {
        v.ffn_bytes_per_token = s->ffn.bytes / s->ffn.tokens;
        v.decode_weight_bytes = v.decode_weight_bytes - s->engine->decode_ffn_bytes + v.ffn_bytes_per_token;
    }
    if (s->ffn.neurons && s->engine->mode != HLLM_MODE_DENSE) {
        v.active_share = (double)s->ffn.computed / (double)s->ffn.neurons;
        v.true_share = (double)s->ffn.active / (double)s->ffn.neurons;
    }
    v.decode_bytes_per_token = v.decode_weight_bytes;
    for (uint32_t il = 0; il < s->engine->model->config.n_layers; il++) {
        const uint32_t window = s->engine->model->layers[il].window, seen = window ? HL_MIN(window, s->n_kv) : s->n_kv;
        const hl_kv_layer *kv = &s->kv[il];
        v.decode_bytes_per_token += (uint64_t)seen * kv->n_heads * (hl_kv_row_bytes(kv->dtype, kv->dim_k) + hl_kv_row_bytes(kv->dtype, kv->dim_v));
    }
    pthread_mutex_unlock(&s->lock);
    v.memory_peak_bytes = hl_mem_peak_bytes(s->engine->env->mem);
    give_struct(out, &v, sizeof v);
    return HLLM_OK;
}
