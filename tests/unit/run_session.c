/* run_session.c: sessions keep what they promise: the same bits after rewinding, reusing a prefix, forking; every KV type; independent of
 * threads and of the micro-batch; a full context is a status; states and errors as the header says. */
#include "run_common.h"

enum { N = 96, M = 24 };
static int32_t text[4096];

static float *logits_at(const setup *u, hllm_session *s, uint32_t pos)
{
    float *x = malloc(u->n_vocab * sizeof *x);
    OK_S(hllm_session_logits(s, pos, x, u->n_vocab), s);
    return x;
}

static void rewind_bitwise(const setup *u, uint32_t kv)
{
    hllm_session *s = session_of(u, 256, kv, 0);
    OK_S(hllm_session_eval(s, text, N), s);
    float *a = logits_at(u, s, N - 1);
    OK_S(hllm_session_rewind(s, 40), s);
    CHECK(n_tokens_of(s) == 40);
    OK_S(hllm_session_eval(s, text + 41, 7), s);                     /* something else in between */
    OK_S(hllm_session_rewind(s, 40), s);
    OK_S(hllm_session_eval(s, text + 40, N - 40), s);
    float *b = logits_at(u, s, N - 1);
    CHECK_MSG(memcmp(a, b, u->n_vocab * sizeof *a) == 0, "kv %u", kv);
    free(b);
    OK_S(hllm_session_rewind(s, 0), s);
    for (uint32_t i = 0; i < N; i++) OK_S(hllm_session_eval(s, text + i, 1), s);      /* one by one */
    b = logits_at(u, s, N - 1);
    CHECK_MSG(memcmp(a, b, u->n_vocab * sizeof *a) == 0, "kv %u, one by one", kv);
    float h[4096];
    CHECK(hllm_session_embedding(s, N - 1, h, u->n_embd) == HLLM_OK);
    CHECK(hllm_session_embedding(s, N - 2, h, u->n_embd) == HLLM_E_STATE);
    CHECK(hllm_session_embedding(s, N, h, u->n_embd) == HLLM_E_STATE);
    CHECK(hllm_session_logits(s, N - 1, h, u->n_vocab - 1) == HLLM_E_ARG);
    CHECK(hllm_session_rewind(s, N + 1) == HLLM_E_ARG);
    free(a); free(b);
    hllm_session_free(s);
}

static void prefix_reuse(const setup *u, uint32_t kv)
{
    hllm_session *s = session_of(u, 512, kv, 0), *fresh;
    int32_t a[M], b[M], other[N];
    hllm_poll_result r = { .struct_size = sizeof r };
    char buf[64];
    greedy(s, text, N, 0, a, M);
    memcpy(other, text, sizeof other);
    other[60] = other[61];
    OK_S(hllm_generate_start_tokens(s, other, N, &(hllm_generate_options){ .struct_size = sizeof(hllm_generate_options), .max_tokens = 3, .flags = HLLM_GENERATE_GREEDY }), s);
    r = poll_all(s, NULL, 0);
    CHECK_MSG(r.n_reused == 60 && r.n_prompt == N && r.n_prompt_done == N, "%u %u %u", r.n_reused, r.n_prompt, r.n_prompt_done);
    greedy(s, text, N, 0, b, M);                                     /* back to the first text: 60 are shared */
    CHECK_MSG(same_tokens(a, b, M), "kv %u", kv);
    OK_S(hllm_generate_poll(s, 0, buf, sizeof buf, &r), s);
    CHECK(r.n_reused == 60);
    greedy(s, text, N, 0, b, M);                                     /* all but the last token are there */
    CHECK(same_tokens(a, b, M));
    OK_S(hllm_generate_poll(s, 0, buf, sizeof buf, &r), s);
    CHECK_MSG(r.n_reused == N - 1, "%u", r.n_reused);
    fresh = session_of(u, 512, kv, 0);
    greedy(fresh, text, N, 0, b, M);
    CHECK(same_tokens(a, b, M));
    /* In two halves: the second appends. */
    int32_t c[M];
    OK_S(hllm_session_rewind(fresh, 0), fresh);
    greedy(fresh, text, N, 0, c, M / 2);
    greedy(fresh, NULL, 0, HLLM_GENERATE_APPEND, c + M / 2, M / 2);
    CHECK(same_tokens(a, c, M));
    /* And after an eval whose last token's logits are used without computing it again. */
    OK_S(hllm_session_rewind(fresh, 0), fresh);
    OK_S(hllm_session_eval(fresh, text, N), fresh);
    greedy(fresh, NULL, 0, HLLM_GENERATE_APPEND, c, M);
    CHECK(same_tokens(a, c, M));
    /* Rewound: the last token has to be computed again. */
    OK_S(hllm_session_rewind(fresh, N), fresh);
    greedy(fresh, NULL, 0, HLLM_GENERATE_APPEND, c, M);
    CHECK(same_tokens(a, c, M));
    hllm_session_free(fresh);
    hllm_session_free(s);
}

static void fork_both(const setup *u, uint32_t kv)
{
    hllm_session *s = session_of(u, 512, kv, 0), *t = NULL, *fresh = session_of(u, 512, kv, 0);
    int32_t first[8], a[M], b[M], want[M], x[M];
    greedy(s, text, N, 0, first, 8);
    OK_S(hllm_session_fork(s, &t), s);
    CHECK(n_tokens_of(t) == n_tokens_of(s));
    greedy(t, text + 200, 9, HLLM_GENERATE_APPEND, x, M);            /* the fork goes another way first */
    greedy(s, NULL, 0, HLLM_GENERATE_APPEND, a, M);
    OK_S(hllm_session_rewind(t, N + 8), t);
    greedy(t, NULL, 0, HLLM_GENERATE_APPEND, b, M);
    CHECK(same_tokens(a, b, M));
    greedy(fresh, text, N, 0, want, 8);
    CHECK(same_tokens(first, want, 8));
    greedy(fresh, NULL, 0, HLLM_GENERATE_APPEND, want, M);
    CHECK(same_tokens(a, want, M));
    hllm_session_free(s);                                            /* the fork lives on */
    greedy(t, NULL, 0, HLLM_GENERATE_APPEND, b, M);
    greedy(fresh, NULL, 0, HLLM_GENERATE_APPEND, want, M);
    CHECK(same_tokens(b, want, M));
    hllm_session_free(t);
    hllm_session_free(fresh);
}

static void context_full(const setup *u)
{
    hllm_session *s = session_of(u, 64, 0, 0);
    hllm_generate_options o = { .struct_size = sizeof o, .flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS };
    char t[256];
    CHECK(hllm_generate_start_tokens(s, text, 65, &o) == HLLM_E_CONTEXT_FULL);
    hllm_session_last_error(s, t, sizeof t);
    CHECK_MSG(strstr(t, "65") && strstr(t, "64"), "%s", t);
    CHECK(n_tokens_of(s) == 0);
    CHECK(hllm_session_eval(s, text, 65) == HLLM_E_CONTEXT_FULL && n_tokens_of(s) == 0);
    OK_S(hllm_generate_start_tokens(s, text, 50, &o), s);
    hllm_poll_result r = poll_all(s, NULL, 0);
    CHECK_MSG(r.finish == HLLM_FINISH_CONTEXT_FULL && r.n_generated == 14 && n_tokens_of(s) == 64, "%u %u", r.finish, r.n_generated);
    CHECK(hllm_session_eval(s, text, 1) == HLLM_E_CONTEXT_FULL && n_tokens_of(s) == 64);
    OK_S(hllm_generate_start_tokens(s, text, 64, &o), s);            /* exactly full */
    r = poll_all(s, NULL, 0);
    CHECK_MSG(r.finish == HLLM_FINISH_CONTEXT_FULL && r.n_generated == 0, "%u %u", r.finish, r.n_generated);
    OK_S(hllm_session_rewind(s, 0), s);
    OK_S(hllm_generate_start_tokens(s, text, 5, &o), s);
    CHECK(poll_all(s, NULL, 0).n_generated == 59);
    hllm_session_free(s);
}

static void states(const setup *u)
{
    hllm_session *s = session_of(u, 512, 0, 0), *t = (hllm_session *)1;
    char buf[64], text_of_error[256];
    hllm_poll_result r = { .struct_size = sizeof r };
    hllm_generate_options o = { .struct_size = sizeof o, .flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS };
    float x[4];
    OK_S(hllm_generate_poll(s, -1, buf, sizeof buf, &r), s);         /* nothing runs: comes back at once */
    CHECK(r.run == HLLM_RUN_IDLE && r.finish == 0);
    CHECK(hllm_generate_start_tokens(s, NULL, 0, &o) == HLLM_E_ARG);
    CHECK(hllm_generate_start_tokens(s, NULL, 0, &(hllm_generate_options){ .struct_size = sizeof o, .flags = HLLM_GENERATE_APPEND }) == HLLM_E_ARG);
    OK_S(hllm_generate_cancel(s), s);                                /* nothing to cancel */
    OK_S(hllm_generate_start_tokens(s, text, 10, &o), s);
    CHECK(hllm_generate_start_tokens(s, text, 10, &o) == HLLM_E_STATE);
    hllm_session_last_error(s, text_of_error, sizeof text_of_error);
    CHECK_MSG(strstr(text_of_error, "running"), "%s", text_of_error);
    CHECK(hllm_session_eval(s, text, 1) == HLLM_E_STATE);
    CHECK(hllm_session_rewind(s, 0) == HLLM_E_STATE);
    CHECK(hllm_session_fork(s, &t) == HLLM_E_STATE && t == NULL);
    CHECK(hllm_session_logits(s, 0, x, u->n_vocab) == HLLM_E_STATE);
    CHECK(hllm_generate_continue(s, NULL, 0) == HLLM_E_STATE);
    OK_S(hllm_generate_cancel(s), s);
    r = poll_all(s, NULL, 0);
    CHECK(r.finish == HLLM_FINISH_CANCELLED && r.error == HLLM_OK);
    int32_t bad[2] = { 1, (int32_t)u->n_vocab };
    CHECK(hllm_session_eval(s, bad, 2) == HLLM_E_ARG);
    bad[1] = -1;
    CHECK(hllm_generate_start_tokens(s, bad, 2, &o) == HLLM_E_ARG);
    hllm_session_last_error(s, text_of_error, sizeof text_of_error);
    CHECK_MSG(strstr(text_of_error, "-1") && strstr(text_of_error, "token 1"), "%s", text_of_error);
    CHECK(hllm_session_eval(s, NULL, 0) == HLLM_OK);
    hllm_session_free(s);
}

/* Bits do not depend on threads, nor on how many tokens are computed at once. */
static void threads_and_batches(void)
{
    static const uint32_t threads[] = { 1, 2, 3, 7 }, batches[] = { 0, 1, 5, 32, 33 };
    float *want = NULL;
    int32_t tokens_want[M], got[M];
    for (size_t i = 0; i < 4; i += SANITIZED ? 3 : 1) {
        setup u = setup_tiny(threads[i]);
        for (size_t j = 0; j < 5; j += SANITIZED ? 2 : 1) {
            hllm_session *s = session_of(&u, 512, 0, batches[j]);
            OK_S(hllm_session_eval(s, text, N), s);
            float *x = logits_at(&u, s, N - 1);
            if (!want) want = x;
            else {
                CHECK_MSG(memcmp(want, x, u.n_vocab * sizeof *x) == 0, "%u threads, micro-batch %u", threads[i], batches[j]);
                free(x);
            }
            greedy(s, text, N, 0, got, M);
            if (i == 0 && j == 0) memcpy(tokens_want, got, sizeof got);
            CHECK(same_tokens(tokens_want, got, M));
            hllm_session_free(s);
        }
        setup_free(&u);
    }
    free(want);
}

static void free_in_any_order(void)
{
    for (int order = 0; order < 6; order++) {
        setup u = setup_tiny(2);
        hllm_session *s = session_of(&u, 128, 0, 0), *t = NULL;
        hllm_generate_options o = { .struct_size = sizeof o, .flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS };
        OK_S(hllm_session_fork(s, &t), s);
        hllm_runtime *rt = u.rt; hllm_model *m = u.m; hllm_engine *e = u.e;
        if (order == 0) { hllm_runtime_free(rt); hllm_model_free(m); hllm_engine_free(e); }
        if (order == 1) { hllm_engine_free(e); hllm_model_free(m); hllm_runtime_free(rt); }
        if (order == 2) { hllm_model_free(m); hllm_session_free(s); s = NULL; hllm_engine_free(e); hllm_runtime_free(rt); }
        if (order == 3) { hllm_engine_free(e); hllm_session_free(s); s = NULL; hllm_model_free(m); hllm_runtime_free(rt); }
        int32_t a[4];
        greedy(t, text, 20, 0, a, 4);
        if (s) OK_S(hllm_generate_start_tokens(s, text, 100, &o), s);               /* freed while it runs or waits its turn */
        OK_S(hllm_generate_start_tokens(t, text, 100, &o), t);
        if (order >= 4) {                                            /* parked: nobody polls, the rings fill up */
            o.flags |= HLLM_GENERATE_STEP;
            poll_all(t, NULL, 0);
            OK_S(hllm_generate_start_tokens(t, text, 30, &o), t);
            hllm_poll_result r = { .struct_size = sizeof r };
            char buf[32];
            while (r.run != HLLM_RUN_WAITING) OK_S(hllm_generate_poll(t, -1, buf, sizeof buf, &r), t);
            hllm_runtime_free(rt); hllm_engine_free(e); hllm_model_free(m);
        }
        hllm_session_free(order & 1 ? t : s);
        hllm_session_free(order & 1 ? s : t);
    }
    hllm_session_free(NULL); hllm_engine_free(NULL); hllm_model_free(NULL); hllm_runtime_free(NULL); hllm_progress_free(NULL);
}

int main(void)
{
    setup u = setup_tiny(2);
    text_tokens(&u, text, sizeof text / sizeof *text);
    for (uint32_t kv = HLLM_KV_F16; kv <= HLLM_KV_Q8_0; kv++) {
        rewind_bitwise(&u, kv);
        prefix_reuse(&u, kv);
        fork_both(&u, kv);
    }
    context_full(&u);
    states(&u);
    setup_free(&u);
    threads_and_batches();
    free_in_any_order();
    return check_done();
}
