/* run_cancel.c: cancel from any thread at any moment; the session stays usable and answers as a fresh one; how much is still computed.
 *
 * That a cancel is honoured within one layer is counted, not timed: the engine computes through a table of operators that count themselves,
 * and during each one of them in turn another thread cancels.  What begins after the call of cancel has returned is at most one matrix product or
 * attention (a layer has five).  The milliseconds are tests/bench/cancel.c's. */
#include <semaphore.h>

#include "run/session.h"

#include "run_common.h"

enum { THREADS = 8, ROUNDS = SANITIZED ? 40 : 125, M = 12, PROMPT = 60 };
static int32_t text[512], want[M];
static setup u;

typedef struct canceller { hllm_session *s; _Atomic int stop; long n; uint64_t seed; } canceller;

/* Cancels the session now and then, whatever it is doing, until told to stop. */
static void *cancel_often(void *v)
{
    canceller *c = v;
    while (!c->stop) {
        sleep_us((long)(rnd(&c->seed) % 3000));
        hllm_generate_cancel(c->s);
        c->n++;
    }
    return NULL;
}

/* One thread: rounds of starting something, cancelled at a random moment by another thread (before, during or after). */
static void *work(void *v)
{
    const uint64_t id = (uint64_t)(uintptr_t)v;
    uint64_t seed = id * 7919 + 1;
    hllm_session *s = session_of(&u, 256, 0, 16);
    hllm_generate_options o = { .struct_size = sizeof o, .flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS };
    for (int round = 0; round < ROUNDS; round++) {
        canceller c = { s, 0, 0, seed + (uint64_t)round };
        pthread_t t;
        hllm_poll_result r = { .struct_size = sizeof r };
        char buf[64];
        const int kind = round % 4;
        const int whole = round % 25 == 24;
        if (whole) {                                               /* nobody cancels: as a fresh session */
            int32_t got[M];
            greedy(s, text, PROMPT, 0, got, M);
            CHECK(same_tokens(got, want, M));
            continue;
        }
        if (pthread_create(&t, NULL, cancel_often, &c) != 0) exit(1);
        if (kind == 0) {
            hllm_status rc = HLLM_OK;
            if (n_tokens_of(s) > 100) OK_S(hllm_session_rewind(s, 0), s);
            const uint32_t before = n_tokens_of(s);
            for (int i = 0; i < 20 && rc == HLLM_OK; i++) {
                OK_S(hllm_session_rewind(s, before), s);
                rc = hllm_session_eval(s, text + before, 80);
            }
            CHECK_MSG(rc == HLLM_OK || rc == HLLM_E_CANCELLED, "%d", rc);
            CHECK(n_tokens_of(s) >= before && n_tokens_of(s) <= before + 80);
        } else {
            o.flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS | (kind == 2 ? HLLM_GENERATE_STEP : 0) | (kind == 3 ? HLLM_GENERATE_TOKENS : 0);
            o.max_tokens = kind == 3 ? 20 : 0;
            const hllm_status start = hllm_generate_start_tokens(s, text + round % 7, 150, &o);
            if (start == HLLM_E_CANCELLED) r.run = HLLM_RUN_DONE, r.finish = HLLM_FINISH_CANCELLED;     /* inside the call: nothing began */
            else OK_S(start, s);
            while (r.run != HLLM_RUN_DONE) {
                OK_S(hllm_generate_poll(s, (int)(rnd(&seed) % 3) - 1, buf, sizeof buf, &r), s);
                if (r.run == HLLM_RUN_WAITING) {
                    hllm_status rc = hllm_generate_continue(s, NULL, 0);
                    CHECK(rc == HLLM_OK || rc == HLLM_E_STATE);
                }
            }
            CHECK_MSG(r.finish == HLLM_FINISH_CANCELLED || r.finish == HLLM_FINISH_LENGTH || r.finish == HLLM_FINISH_CONTEXT_FULL, "finish %u", r.finish);
        }
        c.stop = 1;
        pthread_join(t, NULL);
    }
    int32_t got[M];
    greedy(s, text, PROMPT, 0, got, M);
    CHECK(same_tokens(got, want, M));
    if (id & 1) {                                                  /* freed while it runs */
        OK_S(hllm_generate_start_tokens(s, text, 150, &o), s);
        sleep_us((long)(rnd(&seed) % 2000));
    }
    hllm_session_free(s);
    return NULL;
}

/* ---- work after a cancel ---- */

/* Operators of one session, counted by the engine's worker.  During number `at` the worker waits until `ask` was answered by `done`. */
static struct watch {
    const hl_backend_vt *real;
    hl_backend_vt vt;
    hllm_session *s;
    long at, n, n_heavy;                               /* the worker's while a job runs */
    long after, heavy_after;                           /* begun after number `at`, that is after cancel has returned */
    long kv_puts, first_put, layer;                    /* operators from one layer's kv_put to the next one's */
    int of_s;                                          /* the pass is s's, not another session's */
    sem_t ask, done;
} w;

static void begun(int heavy)
{
    if (!w.of_s) return;
    if (w.at >= 0 && w.n > w.at) { w.after++; w.heavy_after += heavy; }
    w.n_heavy += heavy;
    if (w.n++ == w.at) { sem_post(&w.ask); while (sem_wait(&w.done) != 0) { } }
}

static void c_embed(hl_stream *s, float *y, const hl_weight *m, const int32_t *ids, uint32_t n, float scale)
{
    w.of_s = y == w.s->z.x;
    begun(0);
    w.real->embed(s, y, m, ids, n, scale);
}
static void c_norm(hl_stream *s, uint32_t kind, float *y, const float *x, const float *m, const float *b, float eps, uint32_t n_rows, uint32_t n)
{
    begun(0);
    w.real->norm(s, kind, y, x, m, b, eps, n_rows, n);
}
static void c_quantize(hl_stream *s, const hl_act *a) { begun(0); w.real->quantize(s, a); }
static void c_matmul(hl_stream *s, const hl_act *a, const hl_product *p, uint32_t n) { begun(1); w.real->matmul(s, a, p, n); }
static void c_rope(hl_stream *s, float *x, size_t stride, uint32_t n_tok, uint32_t n_heads, uint32_t dim, uint32_t n_rot, uint32_t kind, const float *cs)
{
    begun(0);
    w.real->rope(s, x, stride, n_tok, n_heads, dim, n_rot, kind, cs);
}
static void c_kv_put(hl_stream *s, const hl_kv_layer *kv, const float *k, size_t ks, const float *v, size_t vs, uint32_t pos0, uint32_t n)
{
    if (w.of_s && w.kv_puts++ == 0) w.first_put = w.n;
    else if (w.of_s && w.kv_puts == 2) w.layer = w.n - w.first_put;
    begun(0);
    w.real->kv_put(s, kv, k, ks, v, vs, pos0, n);
}
static void c_attention(hl_stream *s, const hl_attention *a, uint32_t n) { begun(1); w.real->attention(s, a, n); }
static void c_ffn_act(hl_stream *s, uint32_t kind, float *y, size_t ys, const float *gate, const float *up, size_t stride, uint32_t n_tok, uint32_t n)
{
    begun(0);
    w.real->ffn_act(s, kind, y, ys, gate, up, stride, n_tok, n);
}
static void c_add(hl_stream *s, float *y, const float *x, size_t n) { begun(0); w.real->add(s, y, x, n); }
static void c_softcap(hl_stream *s, float *y, size_t n, float cap) { begun(0); w.real->softcap(s, y, n, cap); }

/* Before the engine has a session: its worker reads the table only for a job. */
static void watch_engine(setup *m)
{
    w.real = m->e->be;
    w.vt = *w.real;
    w.vt.embed = c_embed; w.vt.norm = c_norm; w.vt.quantize = c_quantize; w.vt.matmul = c_matmul; w.vt.rope = c_rope; w.vt.kv_put = c_kv_put;
    w.vt.attention = c_attention; w.vt.ffn_act = c_ffn_act; w.vt.add = c_add; w.vt.softcap = c_softcap;
    m->e->be = &w.vt;
    REQUIRE(sem_init(&w.ask, 0, 0) == 0 && sem_init(&w.done, 0, 0) == 0);
}

static void arm(hllm_session *s, long at)
{
    w.s = s;
    w.at = at;
    w.n = w.n_heavy = w.after = w.heavy_after = w.kv_puts = 0;
    w.of_s = 0;
}

static void *cancel_when_asked(void *v)
{
    while (sem_wait(&w.ask) != 0) { }
    hllm_generate_cancel(v);
    sem_post(&w.done);
    return NULL;
}

static void endless(hllm_session *s, const int32_t *tokens, size_t n)
{
    hllm_generate_options o = { .struct_size = sizeof o, .flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS };
    OK_S(hllm_session_rewind(s, 0), s);
    OK_S(hllm_generate_start_tokens(s, tokens, n, &o), s);
}

/* One job of s that is cancelled during operator `at`: an evaluation of n tokens, or a generation without end after them; `beside`: another
 * session at work in turns with it, or NULL.  true: it was cancelled. */
static int cancelled_at(hllm_session *s, long at, const int32_t *tokens, size_t n, int generate, hllm_session *beside)
{
    pthread_t t;
    int cancelled = 0;
    OK_S(hllm_session_rewind(s, 0), s);
    arm(s, at);
    if (pthread_create(&t, NULL, cancel_when_asked, s) != 0) exit(1);
    if (beside) endless(beside, tokens, n);
    if (generate) {
        endless(s, tokens, n);
        cancelled = poll_all(s, NULL, 0).finish == HLLM_FINISH_CANCELLED;
    } else {
        hllm_status rc = hllm_session_eval(s, tokens, n);
        CHECK_MSG(rc == HLLM_OK || rc == HLLM_E_CANCELLED, "%d", rc);
        cancelled = rc == HLLM_E_CANCELLED;
    }
    if (w.n <= at) sem_post(&w.ask);                   /* it ended before: the canceller is not to wait */
    pthread_join(t, NULL);
    CHECK_MSG(w.n > at, "operator %ld of %ld", at, w.n);
    CHECK_MSG(w.heavy_after <= 1 && w.after <= w.layer, "cancelled during operator %ld: %ld began after it, %ld of them products or attentions; a layer has %ld",
              at, w.after, w.heavy_after, w.layer);
    if (beside) { hllm_generate_cancel(beside); poll_all(beside, NULL, 0); }
    return cancelled;
}

static void *eval_batch(void *v)
{
    hllm_status rc = hllm_session_eval(v, text, 32);
    CHECK_MSG(rc == HLLM_E_CANCELLED, "%d", rc);
    return NULL;
}

/* A session that waits for its turn ends without any further work of the one whose turn it is: that one stands still in the middle of a pass. */
static void cancelled_in_the_queue(hllm_session *s, hllm_session *other, long at)
{
    hllm_poll_result r = { .struct_size = sizeof r };
    char buf[64];
    pthread_t t;
    arm(other, at);
    endless(other, text, 32);
    while (sem_wait(&w.ask) != 0) { }
    endless(s, text, 32);
    OK_S(hllm_generate_cancel(s), s);
    OK_S(hllm_generate_poll(s, 0, buf, sizeof buf, &r), s);
    CHECK_MSG(r.run == HLLM_RUN_DONE && r.finish == HLLM_FINISH_CANCELLED, "run %u, finish %u", r.run, r.finish);
    OK_S(hllm_session_rewind(s, 0), s);
    if (pthread_create(&t, NULL, eval_batch, s) != 0) exit(1);
    for (int queued = 0; !queued; sleep_us(100)) {
        pthread_mutex_lock(&s->lock);
        queued = s->queued;
        pthread_mutex_unlock(&s->lock);
    }
    OK_S(hllm_generate_cancel(s), s);
    pthread_join(t, NULL);                             /* would wait for ever */
    CHECK_MSG(w.n == at + 1 && n_tokens_of(s) == 0, "%ld, %u tokens", w.n, n_tokens_of(s));
    OK_S(hllm_generate_cancel(other), other);
    sem_post(&w.done);
    CHECK(poll_all(other, NULL, 0).finish == HLLM_FINISH_CANCELLED);
}

enum { BATCH = 16, PASSES = 3, LONG = 500 };

static void work_after_cancel(void)
{
    setup m = setup_tiny(2);
    watch_engine(&m);
    hllm_session *s = session_of(&m, 512, 0, BATCH);
    arm(s, -1);
    OK_S(hllm_session_eval(s, text, BATCH * PASSES), s);
    const long whole = w.n, pass = whole / PASSES, heavy = w.n_heavy;
    REQUIRE(whole % PASSES == 0 && w.kv_puts >= 2 * PASSES && w.layer > 5 && heavy >= 5 * w.kv_puts);    /* the counting itself */
    for (long at = 0; at < whole; at++) {              /* inside the prompt's processing */
        int cancelled = cancelled_at(s, at, text, BATCH * PASSES, 0, NULL);
        const uint32_t passes = (uint32_t)(at / pass + (at % pass == pass - 1));              /* a pass's last operator completes it */
        CHECK_MSG(cancelled == (at < whole - 1), "operator %ld of %ld", at, whole);
        CHECK_MSG(n_tokens_of(s) == BATCH * passes, "operator %ld: %u tokens", at, n_tokens_of(s));
    }
    for (long at = 0; at < whole + 2 * pass; at++) CHECK(cancelled_at(s, at, text, BATCH * PASSES, 1, NULL));
    int32_t got[M];
    OK_S(hllm_session_rewind(s, 0), s);
    arm(s, -1);
    greedy(s, text, PROMPT, 0, got, M);
    CHECK(same_tokens(got, want, M));

    /* A long prompt in micro-batches as wide as they come. */
    hllm_session *wide = session_of(&m, 512, 0, 0);
    CHECK(cancelled_at(wide, pass / 2, text, LONG, 0, NULL) && n_tokens_of(wide) == 0);
    hllm_session_free(wide);

    /* Beside another session: one that is at work stops as soon, one that waits for its turn without it. */
    hllm_session *other = session_of(&m, 512, 0, BATCH);
    for (long at = 0; at < whole - 1; at += 7) CHECK(cancelled_at(s, at, text, BATCH * PASSES, 0, other));
    OK_S(hllm_session_rewind(s, 0), s);
    cancelled_in_the_queue(s, other, pass / 2);
    hllm_session_free(other);
    hllm_session_free(s);
    setup_free(&m);
}

/* ---- inside a call that has given the session no job yet ---- */

/* An allocator that cancels at the at-th block that is asked for. */
static struct trap { long at, n; hllm_session *s; hllm_progress *p; } trap;

static void *trap_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    if (trap.n++ == trap.at) {
        if (trap.s) hllm_generate_cancel(trap.s);
        if (trap.p) hllm_progress_cancel(trap.p);
    }
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}
static void trap_free(void *user, void *block, size_t bytes, size_t align) { (void)user; (void)bytes; (void)align; free(block); }

/* Opening ends wherever it is cancelled; so does the start of a generation, and nothing has begun then. */
static void inside_a_call(void)
{
    const hllm_allocator hook = { .struct_size = sizeof hook, .alloc = trap_alloc, .free = trap_free };
    const char *path = test_path("models/tiny-relu2-q8_0.gguf");
    trap = (struct trap){ .at = -1 };
    setup m = setup_file(path, 1, &hook, NULL);
    long n_open = 0, n_early = 0, n_start = 0;
    for (hllm_status rc = HLLM_E_CANCELLED; rc == HLLM_E_CANCELLED; n_open++) {
        hllm_model *again = NULL;
        OK_RT(hllm_progress_create(m.rt, &trap.p), m.rt);
        trap.n = 0;
        trap.at = n_open;
        rc = hllm_model_open(m.rt, path, &(hllm_model_options){ .struct_size = sizeof(hllm_model_options), .progress = trap.p }, &again);
        CHECK_MSG(trap.n > n_open ? rc == HLLM_E_CANCELLED && !again : rc == HLLM_OK, "opening, block %ld of %ld: %s", n_open, trap.n, hllm_status_name(rc));
        hllm_model_free(again);
        if (n_open == 10) n_early = trap.n;            /* one of the vocabulary's first */
        trap.at = -1;
        hllm_progress_free(trap.p);
        trap.p = NULL;
    }
    CHECK_MSG(n_open > 20 && n_early < n_open - 8, "%ld of %ld blocks: the vocabulary is not left", n_early, n_open);
    hllm_session *s = session_of(&m, 512, 0, 0);
    OK_S(hllm_session_eval(s, text, 5), s);
    hllm_generate_cancel(s);                           /* idle: means nothing */
    for (hllm_status rc = HLLM_E_CANCELLED; rc == HLLM_E_CANCELLED; n_start++) {
        hllm_generate_options o = { .struct_size = sizeof o, .flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS, .max_tokens = M };
        char why[256];
        trap = (struct trap){ .at = n_start, .s = s };
        rc = hllm_generate_start(s, story, sizeof story - 1, &o);
        hllm_session_last_error(s, why, sizeof why);
        if (trap.n > n_start) CHECK_MSG(rc == HLLM_E_CANCELLED && n_tokens_of(s) == 5 && strstr(why, n_start ? "cancelled before" : "bytes were tokens"), "start, block %ld: %s %s", n_start, hllm_status_name(rc), why);
        trap.at = -1;
        if (rc == HLLM_OK) CHECK(poll_all(s, NULL, 0).finish == HLLM_FINISH_LENGTH);
    }
    CHECK_MSG(n_start > 3, "%ld", n_start);
    const hllm_logit_bias bias = { 7, -1 };            /* a block after the tokens */
    char why[256];
    trap = (struct trap){ .s = s };
    CHECK(hllm_generate_start_tokens(s, text, 9, &(hllm_generate_options){ .struct_size = sizeof(hllm_generate_options), .bias = &bias, .n_bias = 1 }) == HLLM_E_CANCELLED);
    hllm_session_last_error(s, why, sizeof why);
    CHECK_MSG(trap.n > 0 && strstr(why, "before the generation"), "%s", why);
    trap.at = -1;
    int32_t got[M];
    greedy(s, text, PROMPT, 0, got, M);
    CHECK(same_tokens(got, want, M));
    hllm_session_free(s);
    setup_free(&m);
}

int main(void)
{
    u = setup_tiny(2);
    text_tokens(&u, text, 512);
    hllm_session *fresh = session_of(&u, 256, 0, 0);
    greedy(fresh, text, PROMPT, 0, want, M);
    hllm_session_free(fresh);
    pthread_t t[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) if (pthread_create(&t[i], NULL, work, (void *)i) != 0) return 1;
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    work_after_cancel();
    inside_a_call();
    setup_free(&u);
    return check_done();
}
