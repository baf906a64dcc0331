/* cancel.c: how long a cancel takes: from the call of hllm_generate_cancel in another thread to the return of hllm_session_eval.
 * Usage: cancel [MODEL [tokens [others [rounds]]]]     (default: the shipped model, 500 tokens, 2 others, 30 rounds)
 *   ninja -C build bench_cancel && build/tests/bench_cancel build/models/smollm2-135m-instruct-q4_1.gguf 2048
 *
 * Each round evaluates a prompt of so many tokens with two threads and cancels it at a moment of its own, spread over the prompt's time (measured
 * first); first alone, then beside `others` sessions that generate on the same engine.  Prints the median and the worst.  Nothing is judged: what
 * can be counted is in tests/unit/run_cancel.c.
 */
#include "run_common.h"

enum { MAX_ROUNDS = 1000, MAX_OTHERS = 16 };

typedef struct late { hllm_session *s; double asked; long wait_us; } late;

static void *cancel_late(void *v)
{
    late *l = v;
    sleep_us(l->wait_us);
    l->asked = now_s();
    hllm_generate_cancel(l->s);
    return NULL;
}

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static double seconds_of_prompt(hllm_session *s, const int32_t *tokens, size_t n)
{
    OK_S(hllm_session_rewind(s, 0), s);
    double t = now_s();
    OK_S(hllm_session_eval(s, tokens, n), s);
    return now_s() - t;
}

static void measure(const setup *m, const int32_t *tokens, uint32_t n, int others, int rounds)
{
    static double took[MAX_ROUNDS];
    hllm_generate_options o = { .struct_size = sizeof o, .flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS };
    hllm_session *s = session_of(m, n, 0, 0), *busy[MAX_OTHERS] = { 0 };
    const double prompt_s = seconds_of_prompt(s, tokens, n);
    int cancelled = 0;
    for (int i = 0; i < others; i++) busy[i] = session_of(m, n, 0, 0);
    for (int k = 0; k < rounds; k++) {
        for (int i = 0; i < others; i++) {
            hllm_poll_result r = { .struct_size = sizeof r };
            char buf[4096];
            OK_S(hllm_generate_poll(busy[i], 0, buf, sizeof buf, &r), busy[i]);
            if (r.run != HLLM_RUN_DONE && r.run != HLLM_RUN_IDLE) continue;
            OK_S(hllm_session_rewind(busy[i], 0), busy[i]);
            OK_S(hllm_generate_start_tokens(busy[i], tokens, n / 2, &o), busy[i]);
        }
        late l = { s, 0, (long)(prompt_s * 1e6 * (k + 0.5) / rounds) };
        pthread_t t;
        OK_S(hllm_session_rewind(s, 0), s);
        if (pthread_create(&t, NULL, cancel_late, &l) != 0) exit(1);
        hllm_status rc = hllm_session_eval(s, tokens, n);
        double end = now_s();
        pthread_join(t, NULL);
        if (rc == HLLM_E_CANCELLED) took[cancelled++] = end - l.asked;
    }
    for (int i = 0; i < others; i++) hllm_session_free(busy[i]);
    hllm_session_free(s);
    if (!cancelled) { printf("beside %d: every prompt ended before its cancel\n", others); return; }
    qsort(took, (size_t)cancelled, sizeof *took, by_size);
    printf("cancel beside %d sessions: median %.2f ms, worst %.2f ms of %d (the prompt of %u tokens takes %.0f ms)\n", others, took[cancelled / 2] * 1e3,
           took[cancelled - 1] * 1e3, cancelled, n, prompt_s * 1e3);
}

int main(int argc, char **argv)
{
    static int32_t tokens[1 << 16];
    const int n = argc > 2 ? atoi(argv[2]) : 500, others = argc > 3 ? atoi(argv[3]) : 2, rounds = argc > 4 ? atoi(argv[4]) : 30;
    if (n < 2 || n > 1 << 16 || others < 0 || others > MAX_OTHERS || rounds < 1 || rounds > MAX_ROUNDS) return 2;
    setup m = argc > 1 ? setup_file(argv[1], 2, NULL, NULL) : setup_tiny(2);
    text_tokens(&m, tokens, (size_t)n);
    measure(&m, tokens, (uint32_t)n, 0, rounds);
    if (others) measure(&m, tokens, (uint32_t)n, others, rounds);
    setup_free(&m);
    return 0;
}
