/* run_batch.c: sessions that generate at once share passes over the weights: that they do, how many passes there are, that each gets the tokens
 * and log-probabilities that it gets alone, and that one cancelled in the middle of a shared pass ends there while the others go on. */
#include <semaphore.h>

#include "run/session.h"
#include "run_common.h"

enum { SESSIONS = 8, M = 24, CTX = 128 };

/* The engine's operators, watched: the first product of the first pass waits until all sessions are queued. */
static struct watch {
    const hl_backend_vt *real;
    hl_backend_vt vt;
    sem_t go;
    int waits;                                         /* the next product waits for `go` */
    long heads, most;                                  /* products with the head; sessions in the largest pass */
    hllm_session *victim;                              /* cancelled during a shared pass with all of them */
    long shared, cancel_at;                            /* shared attentions seen; at this one the victim is cancelled */
    long with_victim_after;                            /* shared attentions of all after it */
} w;
static const void *head_data;

static void b_matmul(hl_stream *s, const hl_act *a, const hl_product *p, uint32_t n)
{
    if (w.waits) { w.waits = 0; while (sem_wait(&w.go) != 0) { } }
    if (p->w->data == head_data) w.heads++;
    w.real->matmul(s, a, p, n);
}

static void b_attention(hl_stream *s, const hl_attention *a, uint32_t n)
{
    if ((long)n > w.most) w.most = n;
    if (n == SESSIONS) {
        w.shared++;
        if (w.victim && w.shared > w.cancel_at) w.with_victim_after++;
        if (w.victim && w.shared == w.cancel_at) hllm_generate_cancel(w.victim);
    }
    w.real->attention(s, a, n);
}

typedef struct answer { int32_t token[M]; float logprob[M]; uint32_t n, finish; } answer;

static void start(hllm_session *s, const int32_t *text, size_t n)
{
    hllm_generate_options o = { .struct_size = sizeof o, .max_tokens = M, .n_logprobs = 1, .flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS | HLLM_GENERATE_TOKENS };
    OK_S(hllm_session_rewind(s, 0), s);
    OK_S(hllm_generate_start_tokens(s, text, n, &o), s);
}

static answer finish(hllm_session *s)
{
    answer r = { .n = 0 };
    hllm_token_record rec[M];
    hllm_logit_bias top[M];
    size_t n = 0;
    r.finish = poll_all(s, NULL, 0).finish;
    OK_S(hllm_generate_poll_tokens(s, rec, top, M, &n), s);
    r.n = (uint32_t)n;
    for (size_t i = 0; i < n; i++) { r.token[i] = rec[i].token; r.logprob[i] = rec[i].logprob; }
    return r;
}

int main(void)
{
    setup u = setup_tiny(2);
    int32_t text[256];
    size_t n_text = 0;
    hllm_session *s[SESSIONS];
    answer alone[SESSIONS], got;
    char name[64];
    for (; n_text < 64; n_text++) text[n_text] = (int32_t)(300 + 37 * n_text % 3000);
    head_data = u.e->head.data;
    w.real = u.e->be;
    w.vt = *w.real;
    w.vt.matmul = b_matmul;
    w.vt.attention = b_attention;
    u.e->be = &w.vt;
    REQUIRE(sem_init(&w.go, 0, 0) == 0);
    for (int i = 0; i < SESSIONS; i++) {
        s[i] = session_of(&u, CTX, i % 3 == 2 ? HLLM_KV_Q8_0 : i % 3, i & 1 ? 16 : 0);
        start(s[i], text + i, 10 + 5 * (size_t)i);
        alone[i] = finish(s[i]);
        CHECK(alone[i].n == M && alone[i].finish == HLLM_FINISH_LENGTH);
    }
    CHECK_MSG(w.most == 1 && w.heads == SESSIONS * M, "alone: %ld in a pass, %ld heads", w.most, w.heads);

    for (int round = 0; round < 2; round++) {          /* then one of them is cancelled in the middle of a pass */
        w.heads = w.most = w.shared = w.with_victim_after = 0;
        w.waits = 1;
        w.victim = round ? s[3] : NULL;
        w.cancel_at = 7;
        for (int i = 0; i < SESSIONS; i++) start(s[i], text + i, 10 + 5 * (size_t)i);
        sem_post(&w.go);
        for (int i = 0; i < SESSIONS; i++) {
            got = finish(s[i]);
            snprintf(name, sizeof name, "round %d, session %d", round, i);
            if (round && i == 3) { CHECK_MSG(got.finish == HLLM_FINISH_CANCELLED && got.n > 0 && got.n < M, "%s: finish %u after %u", name, got.finish, got.n); }
            else CHECK_MSG(got.finish == HLLM_FINISH_LENGTH && got.n == M, "%s: finish %u after %u", name, got.finish, got.n);
            for (uint32_t k = 0; k < got.n; k++)
                CHECK_MSG(got.token[k] == alone[i].token[k] && memcmp(&got.logprob[k], &alone[i].logprob[k], 4) == 0, "%s, token %u: %d, alone %d", name, k, got.token[k], alone[i].token[k]);
        }
        CHECK_MSG(w.most == SESSIONS, "%ld sessions in the largest pass", w.most);
        /* A prompt's last micro-batch has a head of its own; the other tokens come in passes of all, but for the first few and the last few. */
        CHECK_MSG(w.heads <= SESSIONS + 2 * M, "%ld heads for %d tokens", w.heads, SESSIONS * M);
        if (round) CHECK_MSG(w.with_victim_after == 0, "%ld attentions of a session that was cancelled", w.with_victim_after);
    }
    start(s[3], text + 3, 25);                         /* the cancelled one is as good as new */
    got = finish(s[3]);
    CHECK(got.n == M && memcmp(got.token, alone[3].token, sizeof got.token) == 0);
    for (int i = 0; i < SESSIONS; i++) hllm_session_free(s[i]);
    setup_free(&u);
    return check_done();
}
