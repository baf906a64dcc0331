/* generate.c: a generation: prompt, then token by token, as a state machine of small steps on the worker; what the host polls.
 *
 * The worker never waits for the host: when the rings are full or the host wants to see the logits, the session leaves the queue and the
 * host's next call puts it back.
 */
#include "run/session.h"

#include <math.h>
#include <string.h>
#include <time.h>

/* lock held */
static void set_end(hllm_session *s, uint32_t finish, hl_status rc)
{
    hl_outring_finish(&s->out);
    s->finish = finish;
    s->job_status = rc;
    s->run = HLLM_RUN_DONE;
    s->job = HL_JOB_NONE;
    s->queued = false;
    s->stalled = s->go = false;
    pthread_cond_broadcast(&s->changed);
}

void hl_session_end_cancelled(hllm_session *s)
{
    if (s->job == HL_JOB_GENERATE) { set_end(s, HLLM_FINISH_CANCELLED, HLLM_OK); return; }
    s->job_status = HLLM_E_CANCELLED;
    s->job = HL_JOB_NONE;
    s->queued = false;
    pthread_cond_broadcast(&s->changed);
}

static bool end(hllm_session *s, uint32_t finish, hl_status rc)
{
    pthread_mutex_lock(&s->lock);
    set_end(s, finish, rc);
    pthread_mutex_unlock(&s->lock);
    return false;
}

static bool end_with(hllm_session *s, hl_status rc)
{
    if (rc == HLLM_E_CANCELLED) return end(s, HLLM_FINISH_CANCELLED, HLLM_OK);
    hl_error_settle(&s->err, rc);
    return end(s, HLLM_FINISH_ERROR, rc);
}

/* Leaves the queue until the host acts.  lock held. */
static bool park(hllm_session *s, uint32_t run)
{
    s->run = run;
    s->queued = false;
    pthread_cond_broadcast(&s->changed);
    return false;
}

/* Chooses the next token and hands it out.  Logits of the last position are in z.logits. */
static bool sample(hllm_session *s)
{
    hllm_engine *e = s->engine;
    const hl_model *m = e->model;
    hl_sampled got;
    hllm_logit_bias top[HL_MAX_LOGPROBS];
    const uint32_t last = HL_MIN(s->penalty_last_n, s->n_tokens);
    const float *logits = s->z.logits + (size_t)(s->n_tokens - 1 - s->logits_pos) * m->config.n_vocab;
    const hl_logit_rules rules = { s->bias, s->n_bias, s->use_mask ? s->mask : NULL, e->end_ids, s->flags & HLLM_GENERATE_IGNORE_EOS ? e->n_end_ids : 0 };
    hl_status rc = hl_sampler_pick(s->sampler, &s->err, logits, &rules, s->tokens + s->n_tokens - last, last, top, &got);
    if (rc != HLLM_OK) return end_with(s, rc);
    const hl_token t = hl_vocab_token(m->vocab, got.token);
    /* An end token is no part of the answer, whatever type the file gives it. */
    const bool hidden = (t.type == HLLM_TOKEN_CONTROL || t.ends_generation) && !(s->flags & HLLM_GENERATE_SPECIAL);
    bool stop_text = false;

    pthread_mutex_lock(&s->lock);
    s->tokens[s->n_tokens++] = got.token;
    s->n_generated++;
    s->use_mask = s->go = false;
    s->run = HLLM_RUN_TOKENS;
    s->last_token_ns = hl_now_ns();
    if (s->n_generated == 1) s->first_token_ns = s->last_token_ns;
    if (!hidden) {
        s->text_bytes += t.piece_bytes;
        stop_text = hl_outring_push(&s->out, t.piece, t.piece_bytes);
    }
    if (s->flags & HLLM_GENERATE_TOKENS) {
        const uint32_t at = (s->records_first + s->n_records++) % HL_RECORDS;
        s->records[at] = (hllm_token_record){ got.token, got.logprob, got.n_top, s->text_bytes };
        memcpy(s->record_tops + (size_t)at * HL_MAX_LOGPROBS, top, got.n_top * sizeof *top);
    }
    uint32_t finish = HLLM_FINISH_NONE;
    if (t.ends_generation && !(s->flags & HLLM_GENERATE_IGNORE_EOS)) finish = HLLM_FINISH_END_TOKEN;
    else if (stop_text) finish = HLLM_FINISH_STOP_TEXT;
    else if (s->max_tokens && s->n_generated == s->max_tokens) finish = HLLM_FINISH_LENGTH;
    if (finish) set_end(s, finish, HLLM_OK);
    else pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return finish == HLLM_FINISH_NONE;
}

bool hl_session_generate_step(hllm_session *s, hl_status rc)
{
    if (rc != HLLM_OK) return end_with(s, rc);
    if (atomic_load(&s->cancel)) return end(s, HLLM_FINISH_CANCELLED, HLLM_OK);
    if (s->n_kv < s->n_tokens) {
        if ((rc = hl_session_compute(s)) != HLLM_OK) return end_with(s, rc);
        if (s->n_generated == 0) {
            pthread_mutex_lock(&s->lock);
            s->prompt_done_ns = hl_now_ns();
            pthread_cond_broadcast(&s->changed);
            pthread_mutex_unlock(&s->lock);
        }
        if (s->n_kv < s->n_tokens) return true;
    }
    if (s->n_tokens == s->sizes.n_ctx) return end(s, HLLM_FINISH_CONTEXT_FULL, HLLM_OK);
    if ((rc = hl_session_logits_at(s, s->n_tokens - 1)) != HLLM_OK) return end_with(s, rc);

    pthread_mutex_lock(&s->lock);
    bool go = true;
    if ((s->flags & HLLM_GENERATE_STEP) && !s->go) go = park(s, HLLM_RUN_WAITING);
    else if (!hl_outring_has_room(&s->out, s->engine->max_piece) || (s->flags & HLLM_GENERATE_TOKENS && s->n_records == HL_RECORDS)) {
        s->stalled = true;
        go = park(s, HLLM_RUN_TOKENS);
    }
    if (!go && atomic_load(&s->cancel)) { set_end(s, HLLM_FINISH_CANCELLED, HLLM_OK); }
    pthread_mutex_unlock(&s->lock);
    return go && sample(s);
}

/* lock held: puts a parked session back. */
static void unpark(hllm_session *s)
{
    if (s->job != HL_JOB_GENERATE || s->queued) return;
    s->queued = true;
    s->stalled = false;
    hl_engine_queue(s->engine, s);                     /* order of locks: session, then engine */
}

/* ---- start ---- */

static hl_status check_float(hl_error *err, const char *name, float v, float lo, float hi)
{
    char a[32], b[32], c[32];
    if (v >= lo && v <= hi) return HLLM_OK;
    return hl_fail(err, HLLM_E_ARG, "%s is %s, expected %s to %s", name, hl_text_f64(v, a), hl_text_f64(lo, b), hl_text_f64(hi, c));
}

static hl_status check_options(hllm_session *s, const hllm_generate_options *o)
{
    hl_status rc = HLLM_OK;
    hl_error *err = &s->err;
    const uint32_t n_vocab = s->engine->model->config.n_vocab;
    HL_TRY(check_float(err, "temperature", o->temperature, 0, 1000));
    HL_TRY(check_float(err, "top_p", o->top_p, 0, 1));
    HL_TRY(check_float(err, "min_p", o->min_p, 0, 1));
    HL_TRY(check_float(err, "repeat_penalty", o->repeat_penalty, 0, 1000));
    HL_TRY(check_float(err, "frequency_penalty", o->frequency_penalty, -1000, 1000));
    HL_TRY(check_float(err, "presence_penalty", o->presence_penalty, -1000, 1000));
    rc = HLLM_E_ARG;
    if (o->top_k < -1) { hl_fail(err, rc, "top_k is %d, the lowest is -1", o->top_k); goto done; }
    if (o->n_logprobs > HL_MAX_LOGPROBS) { hl_fail(err, rc, "n_logprobs is %u, the limit is %u", o->n_logprobs, (uint32_t)HL_MAX_LOGPROBS); goto done; }
    if (o->n_logprobs && !(o->flags & HLLM_GENERATE_TOKENS)) { hl_fail(err, rc, "n_logprobs is %u, but no token records are asked for (HLLM_GENERATE_TOKENS)", o->n_logprobs); goto done; }
    if (o->n_stop > HL_MAX_STOPS) { hl_fail(err, rc, "n_stop is %u, the limit is %u", o->n_stop, (uint32_t)HL_MAX_STOPS); goto done; }
    if ((o->n_stop && !o->stop) || (o->n_bias && !o->bias)) { hl_fail(err, rc, "%s is NULL but its count is not 0", o->n_stop && !o->stop ? "stop" : "bias"); goto done; }
    for (uint32_t i = 0; i < o->n_stop; i++) {
        size_t n = o->stop[i] ? strnlen(o->stop[i], HL_MAX_STOP_BYTES + 1) : 0;
        if (n == 0 || n > HL_MAX_STOP_BYTES) { hl_fail(err, rc, "stop text %u is NULL, empty or above %u bytes", i, (uint32_t)HL_MAX_STOP_BYTES); goto done; }
    }
    if (o->n_bias > n_vocab) { hl_fail(err, rc, "n_bias is %u, the vocabulary has %u", o->n_bias, n_vocab); goto done; }
    for (uint32_t i = 0; i < o->n_bias; i++) {
        if (o->bias[i].token < 0 || (uint32_t)o->bias[i].token >= n_vocab) { hl_fail(err, rc, "bias %u: token %d, the vocabulary has %u", i, o->bias[i].token, n_vocab); goto done; }
        if (!(o->bias[i].bias < INFINITY)) { hl_fail(err, rc, "bias %u: not a number below infinity", i); goto done; }
    }
    rc = HLLM_OK;
done:
    return rc;
}

/* Fills defaults: the caller's value, else the file's, else off. */
static hl_sampling resolve_sampling(const hl_model *m, const hllm_generate_options *o, uint32_t *last_n)
{
    const hl_sampling_defaults *d = &m->sampling;
#define PICK(mine, file, off) ((mine) != 0 ? (mine) : (file) != 0 ? (file) : (off))
    hl_sampling r = {
        .seed = o->seed, .greedy = o->flags & HLLM_GENERATE_GREEDY,
        .temperature = PICK(o->temperature, d->temperature, 0.0f), .top_k = PICK(o->top_k, d->top_k, -1), .top_p = PICK(o->top_p, d->top_p, 1.0f),
        .min_p = PICK(o->min_p, d->min_p, 0.0f), .repeat_penalty = PICK(o->repeat_penalty, d->repeat_penalty, 1.0f),
        .frequency_penalty = PICK(o->frequency_penalty, d->frequency_penalty, 0.0f), .presence_penalty = PICK(o->presence_penalty, d->presence_penalty, 0.0f),
        .n_logprobs = o->n_logprobs, .want_logprob = o->flags & HLLM_GENERATE_TOKENS,
    };
    *last_n = d->penalty_last_n == HL_LAST_N_OFF ? o->penalty_last_n : PICK(o->penalty_last_n, (uint32_t)d->penalty_last_n, 64u);
#undef PICK
    r.penalty_last_n = *last_n;
    return r;
}

/* Where the prompt differs from what the session holds; the prompt's last token is always computed (its logits are needed). */
static uint32_t common_prefix(const hllm_session *s, const int32_t *tokens, size_t n)
{
    uint32_t i = 0;
    while (i < s->n_kv && i + 1 < n && s->tokens[i] == tokens[i]) i++;
    if (i < s->n_kv && i < hl_session_rewind_min(s)) i = 0;          /* a sliding window has lost what i needs: from the beginning */
    return i;
}

hl_status hl_generate_start(hllm_session *s, const int32_t *tokens, size_t n, const hllm_generate_options *o, uint32_t flags)
{
    hl_status rc = HLLM_OK;
    const hl_model *m = s->engine->model;
    const bool append = flags & HLLM_GENERATE_APPEND;
    const uint32_t held = append ? s->n_tokens : 0, room = s->sizes.n_ctx - held;
    uint32_t again = 0;                                /* tokens in the cache whose logits are needed once more */
    HL_TRY(check_options(s, o));
    if (n > room && held) return hl_fail(&s->err, HLLM_E_CONTEXT_FULL, "the prompt's %zu tokens do not fit: the context is %u and holds %u", n, s->sizes.n_ctx, held);
    if (n > room) return hl_fail(&s->err, HLLM_E_CONTEXT_FULL, "the prompt's %zu tokens do not fit: the context is %u", n, s->sizes.n_ctx);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= m->config.n_vocab)
            return hl_fail(&s->err, HLLM_E_ARG, "token %zu is %d, the vocabulary has %u", i, tokens[i], m->config.n_vocab);
    if (n == 0 && held == 0) return hl_fail(&s->err, HLLM_E_ARG, "the prompt has no tokens");
    if (o->n_bias > s->bias_cap) {
        hllm_logit_bias *b = hl_alloc_array(s->engine->env->mem, o->n_bias, sizeof *b);
        HL_NEED(b);
        hl_free(s->engine->env->mem, s->bias);
        s->bias = b;
        s->bias_cap = o->n_bias;
    }
    HL_TRY(hl_outring_reserve(&s->out, o->stop, o->n_stop));
    if (append && n == 0 && s->n_kv == s->n_tokens && !(s->n_hidden && s->hidden_pos + s->n_hidden == s->n_tokens)) {
        /* The last token's logits are gone (rewound, loaded): compute it again. */
        const uint32_t last = s->n_tokens - 1, least = hl_session_rewind_min(s);
        if (last && last < least)
            return hl_fail(&s->err, HLLM_E_STATE, "nothing to continue from: the prompt is empty and the windows hold only what position %u and above need, not %u", least, last);
        again = 1;
    }
    pthread_mutex_lock(&s->lock);
    if (atomic_load(&s->cancel)) {
        pthread_mutex_unlock(&s->lock);
        return hl_fail(&s->err, HLLM_E_CANCELLED, "cancelled before the generation began");
    }
    s->n_kv -= again;
    if (!append) {
        const uint32_t same = common_prefix(s, tokens, n);
        s->n_kv = HL_MIN(s->n_kv, same);
        if (same == 0) s->n_written = s->held_from = 0;
        s->n_hidden = s->n_logits = 0;
        s->n_reused = same;
    } else s->n_reused = s->n_kv;
    if (n) memcpy(s->tokens + held, tokens, n * sizeof *tokens);
    s->n_tokens = held + (uint32_t)n;
    s->n_prompt = s->n_tokens;
    s->n_generated = 0;
    s->flags = flags;
    s->max_tokens = o->max_tokens;
    s->n_bias = o->n_bias;
    if (o->n_bias) memcpy(s->bias, o->bias, o->n_bias * sizeof *s->bias);
    s->n_logprobs = o->n_logprobs;
    s->use_mask = s->go = s->stalled = false;
    s->n_records = s->records_first = 0;
    s->text_bytes = 0;
    s->finish = HLLM_FINISH_NONE;
    s->job_status = HLLM_OK;
    s->run = HLLM_RUN_PROMPT;
    s->start_ns = hl_now_ns();
    s->prompt_done_ns = s->first_token_ns = s->last_token_ns = 0;
    hl_outring_start(&s->out, o->stop, o->n_stop);
    const hl_sampling sampling = resolve_sampling(m, o, &s->penalty_last_n);
    hl_sampler_start(s->sampler, &sampling);
    s->job = HL_JOB_GENERATE;
    s->queued = true;
    hl_engine_queue(s->engine, s);
    pthread_mutex_unlock(&s->lock);
done:
    return rc;
}

/* ---- poll ---- */

static struct timespec deadline_after(int32_t ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) { t.tv_sec++; t.tv_nsec -= 1000000000; }
    return t;
}

hl_status hl_generate_poll(hllm_session *s, int32_t timeout_ms, char *buf, size_t cap, hllm_poll_result *out)
{
    const struct timespec until = deadline_after(timeout_ms > 0 ? timeout_ms : 0);
    pthread_mutex_lock(&s->lock);
    const uint32_t run0 = s->run, done0 = s->n_kv, records0 = s->n_records;
    while (timeout_ms != 0 && s->out.n == 0 && s->n_records == records0 && !s->stalled && s->run == run0 && s->run != HLLM_RUN_WAITING && s->run != HLLM_RUN_DONE && s->run != HLLM_RUN_IDLE
           && !(s->run == HLLM_RUN_PROMPT && s->n_kv != done0)) {
        if (timeout_ms < 0) pthread_cond_wait(&s->changed, &s->lock);
        else if (pthread_cond_timedwait(&s->changed, &s->lock, &until) != 0) break;
    }
    const size_t n = hl_outring_take(&s->out, buf, cap);
    const bool all = s->out.n == 0;
    out->run = s->run == HLLM_RUN_DONE && !all ? HLLM_RUN_TOKENS : s->run;
    out->finish = out->run == HLLM_RUN_DONE ? s->finish : HLLM_FINISH_NONE;
    out->error = out->finish == HLLM_FINISH_ERROR ? s->job_status : HLLM_OK;
    out->n_prompt = s->n_prompt;
    out->n_prompt_done = HL_MIN(s->n_kv, s->n_prompt);
    out->n_reused = s->n_reused;
    out->n_generated = s->n_generated;
    out->text_bytes = n;
    if (s->stalled) unpark(s);
    pthread_mutex_unlock(&s->lock);
    return HLLM_OK;
}

hl_status hl_generate_poll_tokens(hllm_session *s, hllm_token_record *rec, hllm_logit_bias *top, size_t cap, size_t *n_out)
{
    pthread_mutex_lock(&s->lock);
    size_t n = 0;
    for (; n < cap && s->n_records; n++) {
        const uint32_t at = s->records_first;
        rec[n] = s->records[at];
        if (top) memcpy(top + n * s->n_logprobs, s->record_tops + (size_t)at * HL_MAX_LOGPROBS, rec[n].n_top * sizeof *top);
        s->records_first = (at + 1) % HL_RECORDS;
        s->n_records--;
    }
    *n_out = n;
    if (s->stalled && n) unpark(s);
    pthread_mutex_unlock(&s->lock);
    return HLLM_OK;
}

hl_status hl_generate_continue(hllm_session *s, const uint8_t *allowed)
{
    hl_status rc = HLLM_OK;
    pthread_mutex_lock(&s->lock);
    if (s->run != HLLM_RUN_WAITING) rc = hl_fail(&s->err, HLLM_E_STATE, "no token is waiting to be sampled (was HLLM_GENERATE_STEP asked for?)");
    else {
        s->use_mask = allowed != NULL;
        if (allowed) memcpy(s->mask, allowed, (s->engine->model->config.n_vocab + 7) / 8);
        s->go = true;
        s->run = HLLM_RUN_TOKENS;
        unpark(s);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void hl_generate_cancel(hllm_session *s)
{
    pthread_mutex_lock(&s->lock);
    const bool job = s->job == HL_JOB_GENERATE || s->job == HL_JOB_EVAL;
    if (job || s->in_call) atomic_store(&s->cancel, 1);
    /* One that waits for its turn or for the host ends here; the worker ends the one that it is computing. */
    if (job && (!s->queued || hl_engine_unqueue(s->engine, s))) hl_session_end_cancelled(s);
    pthread_mutex_unlock(&s->lock);
}
