/* cancel.c: stops a generation from another thread, in the prompt and in the answer, and goes on with the same session.
 *
 * hllm_generate_cancel may be called from any thread at any time.  What was generated before it remains.
 */
#include "hybrid_llm.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

typedef struct canceller { hllm_session *session; long wait_ms; double cancelled_at; } canceller;

static void *cancel_later(void *arg)
{
    canceller *c = arg;
    const struct timespec wait = { c->wait_ms / 1000, c->wait_ms % 1000 * 1000000 };
    nanosleep(&wait, NULL);
    c->cancelled_at = now_ms();
    hllm_generate_cancel(c->session);
    return NULL;
}

/* Generates without end until the other thread stops it; false when something else ended it. */
static int run_cancelled(hllm_session *s, const char *prompt, long wait_ms)
{
    char text[1024];
    pthread_t thread;
    canceller c = { s, wait_ms, 0 };
    hllm_poll_result poll = { .struct_size = sizeof poll };
    hllm_generate_options opt = { .struct_size = sizeof opt, .flags = HLLM_GENERATE_IGNORE_EOS | HLLM_GENERATE_GREEDY };
    if (hllm_generate_start(s, prompt, strlen(prompt), &opt) != HLLM_OK) return 0;
    if (pthread_create(&thread, NULL, cancel_later, &c) != 0) return 0;
    while (poll.run != HLLM_RUN_DONE)
        if (hllm_generate_poll(s, -1, text, sizeof text, &poll) != HLLM_OK) break;
    const double ended_at = now_ms();
    pthread_join(thread, NULL);
    printf("cancelled after %ld ms: %u tokens, stopped within %.1f ms\n", wait_ms, poll.n_generated, ended_at - c.cancelled_at);
    return poll.finish == HLLM_FINISH_CANCELLED;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "models/tiny-relu2-q8_0.gguf";
    char text[1024] = "";
    hllm_runtime *rt = NULL;
    hllm_model *model = NULL;
    hllm_engine *engine = NULL;
    hllm_session *session = NULL;
    int ok = 0;
    if (hllm_runtime_create(NULL, &rt) != HLLM_OK) return 1;
    if (hllm_model_open(rt, path, NULL, &model) != HLLM_OK) hllm_runtime_last_error(rt, text, sizeof text);
    else if (hllm_engine_create(model, NULL, &engine) != HLLM_OK) hllm_model_last_error(model, text, sizeof text);
    else if (hllm_session_create(engine, NULL, &session) != HLLM_OK) hllm_engine_last_error(engine, text, sizeof text);
    else if (!(ok = run_cancelled(session, "In the beginning", 0) && run_cancelled(session, "And it came to pass", 50)))
        hllm_session_last_error(session, text, sizeof text);
    if (!ok) fprintf(stderr, "cancel: %s\n", text[0] ? text : "it ended before it could be cancelled");
    hllm_session_free(session);
    hllm_engine_free(engine);
    hllm_model_free(model);
    hllm_runtime_free(rt);
    return ok ? 0 : 1;
}
