/* run_cancel.c: cancel from any thread at any moment; the session stays usable and answers as a fresh one; how long it takes. */
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
            OK_S(hllm_generate_start_tokens(s, text + round % 7, 150, &o), s);
            do {
                OK_S(hllm_generate_poll(s, (int)(rnd(&seed) % 3) - 1, buf, sizeof buf, &r), s);
                if (r.run == HLLM_RUN_WAITING) {
                    hllm_status rc = hllm_generate_continue(s, NULL, 0);
                    CHECK(rc == HLLM_OK || rc == HLLM_E_STATE);
                }
            } while (r.run != HLLM_RUN_DONE);
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

/* From the call of cancel to the end of the job, in seconds: the worst of `rounds`, with `others` sessions busy on the same engine. */
typedef struct late { hllm_session *s; double asked; long wait_us; } late;
static void *cancel_late(void *v)
{
    late *l = v;
    sleep_us(l->wait_us);
    l->asked = now_s();
    hllm_generate_cancel(l->s);
    return NULL;
}

static double worst_latency(const setup *m, int32_t *tokens, size_t n, int others, int rounds)
{
    hllm_session *s = session_of(m, (uint32_t)n, 0, 0), *busy[4] = { 0 };
    hllm_generate_options o = { .struct_size = sizeof o, .flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS };
    double worst = 0;
    for (int i = 0; i < others; i++) busy[i] = session_of(m, (uint32_t)n, 0, 0);
    for (int k = 0; k < rounds; k++) {
        for (int i = 0; i < others; i++) {
            hllm_poll_result r = { .struct_size = sizeof r };
            char buf[4096];
            OK_S(hllm_generate_poll(busy[i], 0, buf, sizeof buf, &r), busy[i]);
            if (r.run != HLLM_RUN_DONE && r.run != HLLM_RUN_IDLE) continue;
            OK_S(hllm_session_rewind(busy[i], 0), busy[i]);
            OK_S(hllm_generate_start_tokens(busy[i], tokens, n, &o), busy[i]);
        }
        late l = { s, 0, 500 + k * 1700 };
        pthread_t t;
        OK_S(hllm_session_rewind(s, 0), s);
        if (pthread_create(&t, NULL, cancel_late, &l) != 0) exit(1);
        hllm_status rc = hllm_session_eval(s, tokens, n);
        double end = now_s();
        pthread_join(t, NULL);
        if (rc == HLLM_E_CANCELLED && end - l.asked > worst) worst = end - l.asked;
    }
    for (int i = 0; i < others; i++) hllm_session_free(busy[i]);
    hllm_session_free(s);
    return worst;
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
    double alone = worst_latency(&u, text, 512, 0, 30), crowded = worst_latency(&u, text, 512, 3, 30);
    fprintf(stderr, "cancel, shipped model: %.1f ms alone, %.1f ms beside 3 sessions\n", alone * 1e3, crowded * 1e3);
    CHECK_MSG(alone < (SANITIZED ? 2 : 0.2) && crowded < (SANITIZED ? 2 : 0.2), "%.3f s, %.3f s", alone, crowded);     /* 50 ms on a quiet machine */
    setup_free(&u);
    const char *path = test_path("build/models/smollm2-135m-instruct-q4_1.gguf");
    if (!SANITIZED && access(path, R_OK) == 0) {
        static int32_t long_text[2048];
        setup m = setup_file(path, 2, NULL, NULL);
        text_tokens(&m, long_text, 2048);
        alone = worst_latency(&m, long_text, 2048, 0, 8);
        crowded = worst_latency(&m, long_text, 2048, 2, 8);
        fprintf(stderr, "cancel, SmolLM2 135M: %.1f ms alone, %.1f ms beside 2 sessions\n", alone * 1e3, crowded * 1e3);
        setup_free(&m);
    }
    return check_done();
}
