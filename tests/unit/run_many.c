/* run_many.c: eight threads with a session each on one engine: every one gets the tokens that it gets alone; two engines of one model and
 * const calls beside them; the token loop allocates nothing. */
#include "../hostile/hostile.h"
#include "run_common.h"

enum { THREADS = 8, ROUNDS = SANITIZED ? 1 : 5, M = 30 };
static int32_t text[512], want[THREADS][M];
static setup u;
static hllm_engine *second;

static void answer(hllm_session *s, unsigned id, int32_t *out)
{
    hllm_generate_options o = { .struct_size = sizeof o, .max_tokens = M, .seed = id, .temperature = 0.9f, .top_k = 40, .flags = HLLM_GENERATE_IGNORE_EOS };
    int32_t all[512];
    size_t n;
    OK_S(hllm_generate_start_tokens(s, text + id, 40 + 13 * id, &o), s);
    hllm_poll_result r = poll_all(s, NULL, 0);
    CHECK_MSG(r.finish == HLLM_FINISH_LENGTH, "%u", r.finish);
    OK_S(hllm_session_tokens(s, all, 512, &n), s);
    memcpy(out, all + n - M, M * sizeof *out);
}

static void *work(void *v)
{
    const unsigned id = (unsigned)(uintptr_t)v;
    for (int round = 0; round < ROUNDS; round++) {
        int32_t got[M];
        hllm_session *s = NULL, *t = NULL;
        hllm_session_options o = { .struct_size = sizeof o, .n_ctx = 256, .micro_batch = id & 1 ? 32 : 0 };
        OK_E(hllm_session_create(round & 1 ? second : u.e, &o, &s), u.e);
        answer(s, id, got);
        CHECK_MSG(same_tokens(got, want[id], M), "thread %u", id);
        OK_S(hllm_session_fork(s, &t), s);
        OK_S(hllm_session_rewind(t, 40 + 13 * id), t);
        answer(t, id, got);
        CHECK_MSG(same_tokens(got, want[id], M), "thread %u", id);
        hllm_session_free(s);
        hllm_session_free(t);
    }
    return NULL;
}

static _Atomic int stop;
static void *look(void *v)                             /* const calls from many threads, errors included */
{
    hllm_session *s = v;
    while (!stop) {
        hllm_session_info i = { .struct_size = sizeof i };
        hllm_run_stats st = { .struct_size = sizeof st };
        hllm_model_info mi = { .struct_size = sizeof mi };
        int32_t t[512], id;
        size_t n;
        char buf[128];
        CHECK(hllm_session_get_info(s, &i) == HLLM_OK);
        CHECK(hllm_session_stats(s, &st) == HLLM_OK);
        CHECK(hllm_session_tokens(s, t, 512, &n) == HLLM_OK);
        CHECK(hllm_model_get_info(u.m, &mi) == HLLM_OK && mi.n_vocab == u.n_vocab);
        CHECK(hllm_model_special_token(u.m, 99, &id) == HLLM_E_ARG);
        hllm_session_last_error(s, buf, sizeof buf);
        hllm_model_last_error(u.m, buf, sizeof buf);
        CHECK(hllm_tokenize(u.m, story, 100, 0, t, 512, &n) == HLLM_OK && n > 10);
        sleep_us(300);
    }
    return NULL;
}

/* Two threads in one session: one of them gets HLLM_E_BUSY, nothing else happens. */
static _Atomic int n_busy;
static void *disturb(void *v)
{
    while (!stop) {
        size_t n;
        hllm_status rc = hllm_generate_poll_tokens(v, NULL, NULL, 0, &n);
        CHECK_MSG(rc == HLLM_OK || rc == HLLM_E_BUSY, "%d", rc);
        n_busy += rc == HLLM_E_BUSY;
        sleep_us(100);
    }
    return NULL;
}

static void busy(void)
{
    hllm_session *s = session_of(&u, 256, 0, 0);
    hllm_poll_result r = { .struct_size = sizeof r };
    char buf[64];
    pthread_t t;
    hllm_generate_options o = { .struct_size = sizeof o, .flags = HLLM_GENERATE_STEP };
    OK_S(hllm_generate_start_tokens(s, text, 10, &o), s);
    while (r.run != HLLM_RUN_WAITING) OK_S(hllm_generate_poll(s, -1, buf, sizeof buf, &r), s);
    OK_S(hllm_generate_cancel(s), s);                                /* parked: ends at once, no worker needed */
    OK_S(hllm_generate_poll(s, 0, buf, sizeof buf, &r), s);
    CHECK(r.run == HLLM_RUN_DONE && r.finish == HLLM_FINISH_CANCELLED);
    stop = 0;
    if (pthread_create(&t, NULL, disturb, s) != 0) exit(1);
    float *a = malloc(u.n_vocab * sizeof *a), *b = malloc(u.n_vocab * sizeof *b);
    for (int i = 0; i < 100 && (i < 3 || n_busy == 0); i++) {
        hllm_status rc;
        while ((rc = hllm_session_rewind(s, 0)) == HLLM_E_BUSY) { }
        while ((rc = hllm_session_eval(s, text, 250)) == HLLM_E_BUSY) { }
        CHECK_MSG(rc == HLLM_OK, "%d", rc);
        while ((rc = hllm_session_logits(s, 249, i ? b : a, u.n_vocab)) == HLLM_E_BUSY) { }
        CHECK(rc == HLLM_OK && (i == 0 || memcmp(a, b, u.n_vocab * sizeof *a) == 0));
    }
    stop = 1;
    pthread_join(t, NULL);
    CHECK(n_busy > 0);
    free(a);
    free(b);
    hllm_session_free(s);
}

static void no_allocation(void)
{
    counting c = COUNTING_INIT;
    hllm_allocator hook = counting_hook(&c);
    setup a = setup_file(test_path("models/tiny-relu2-q8_0.gguf"), 3, &hook, NULL);
    static const char *const stops[] = { "zzzz", "\xe2\x82\xac" };
    for (uint32_t kv = 0; kv < 3; kv++) {
        hllm_session *s = session_of(&a, 300, kv, 0);
        hllm_logit_bias bias[2] = { { 5, -1 }, { 9, 1 } }, top[8 * 5];
        hllm_token_record rec[8];
        uint8_t *mask = malloc((a.n_vocab + 7) / 8);
        float *x = malloc(a.n_vocab * sizeof *x);
        memset(mask, 0xff, (a.n_vocab + 7) / 8);
        hllm_generate_options o = { .struct_size = sizeof o, .max_tokens = 40, .temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .min_p = 0.01f, .repeat_penalty = 1.1f,
                                    .frequency_penalty = 0.1f, .presence_penalty = 0.1f, .n_logprobs = 5, .n_bias = 2, .bias = bias, .n_stop = 2, .stop = stops,
                                    .flags = HLLM_GENERATE_STEP | HLLM_GENERATE_TOKENS | HLLM_GENERATE_IGNORE_EOS };
        hllm_poll_result r = { .struct_size = sizeof r };
        char buf[64];
        size_t n;
        long first = -1, last = -1;
        OK_S(hllm_generate_start_tokens(s, text, 70, &o), s);
        while (r.run != HLLM_RUN_DONE) {
            OK_S(hllm_generate_poll(s, -1, buf, sizeof buf, &r), s);
            OK_S(hllm_generate_poll_tokens(s, rec, top, 8, &n), s);
            if (r.run != HLLM_RUN_WAITING) continue;
            OK_S(hllm_generate_logits(s, x, a.n_vocab), s);
            if (r.n_generated == 4) first = c.calls;
            if (r.n_generated == 36) last = c.calls;
            OK_S(hllm_generate_continue(s, mask, (a.n_vocab + 7) / 8), s);
        }
        CHECK_MSG(first >= 0 && last == first, "%ld allocations in 32 tokens", last - first);
        free(mask);
        free(x);
        hllm_session_free(s);
    }
    CHECK(c.calls > 10);
    setup_free(&a);
    CHECK_MSG(c.live == 0 && c.blocks == 0, "%zu bytes in %ld blocks are left", c.live, c.blocks);
}

int main(void)
{
    u = setup_tiny(2);
    text_tokens(&u, text, 512);
    OK_M(hllm_engine_create(u.m, &(hllm_engine_options){ .struct_size = sizeof(hllm_engine_options), .load = HLLM_LOAD_MMAP }, &second), u.m);
    for (unsigned i = 0; i < THREADS; i++) {
        hllm_session *s = session_of(&u, 256, 0, 0);
        answer(s, i, want[i]);
        hllm_session_free(s);
    }
    CHECK(!same_tokens(want[0], want[1], M));
    hllm_session *seen = session_of(&u, 256, 0, 0);
    hllm_generate_options o = { .struct_size = sizeof o, .flags = HLLM_GENERATE_IGNORE_EOS };
    OK_S(hllm_generate_start_tokens(seen, text, 10, &o), seen);
    pthread_t t[THREADS], l[2];
    for (uintptr_t i = 0; i < 2; i++) if (pthread_create(&l[i], NULL, look, seen) != 0) return 1;
    for (uintptr_t i = 0; i < THREADS; i++) if (pthread_create(&t[i], NULL, work, (void *)i) != 0) return 1;
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(l[i], NULL);
    hllm_session_free(seen);
    hllm_engine_free(second);
    busy();
    setup_free(&u);
    no_allocation();
    return check_done();
}
