/* two_sessions.c: one model in memory, two conversations at once, each in a thread of its own.
 *
 * The engine is shared (const); a session belongs to one thread.  A session's tokens do not depend on the other one, which is
 * checked here: the first prompt is run again alone.
 */
#include "hybrid_llm.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

typedef struct speaker {
    const hllm_engine *engine;
    const char *prompt;
    char text[4096];                                   /* the answer, or the error */
    int ok;
} speaker;

static void *speak(void *arg)
{
    speaker *p = arg;
    size_t n = 0;
    hllm_session *s = NULL;
    hllm_poll_result poll = { .struct_size = sizeof poll };
    hllm_generate_options opt = { .struct_size = sizeof opt, .max_tokens = 40, .temperature = 0.7f, .top_p = 0.9f, .repeat_penalty = 1.1f, .seed = 1 };
    p->ok = 0;
    if (hllm_session_create(p->engine, NULL, &s) != HLLM_OK) {
        hllm_engine_last_error(p->engine, p->text, sizeof p->text);
        return NULL;
    }
    hllm_status rc = hllm_generate_start(s, p->prompt, strlen(p->prompt), &opt);
    while (rc == HLLM_OK && poll.run != HLLM_RUN_DONE && sizeof p->text - n > 8) {
        rc = hllm_generate_poll(s, -1, p->text + n, sizeof p->text - n, &poll);
        n += poll.text_bytes;
    }
    p->ok = rc == HLLM_OK && poll.finish != HLLM_FINISH_ERROR;
    if (!p->ok) hllm_session_last_error(s, p->text, sizeof p->text);
    hllm_session_free(s);
    return NULL;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "models/tiny-relu2-q8_0.gguf";
    char text[1024] = "";
    hllm_runtime *rt = NULL;
    hllm_model *model = NULL;
    hllm_engine *engine = NULL;
    int ok = 0;
    if (hllm_runtime_create(NULL, &rt) != HLLM_OK) return 1;
    if (hllm_model_open(rt, path, NULL, &model) != HLLM_OK) hllm_runtime_last_error(rt, text, sizeof text);
    else if (hllm_engine_create(model, NULL, &engine) != HLLM_OK) hllm_model_last_error(model, text, sizeof text);
    else {
        speaker a = { .engine = engine, .prompt = "In the beginning" }, b = { .engine = engine, .prompt = "And the king said" }, alone = a;
        pthread_t one, two;
        if (pthread_create(&one, NULL, speak, &a) != 0) return 1;
        if (pthread_create(&two, NULL, speak, &b) != 0) return 1;
        pthread_join(one, NULL);
        pthread_join(two, NULL);
        speak(&alone);
        printf("%s%s\n\n%s%s\n", a.prompt, a.text, b.prompt, b.text);
        ok = a.ok && b.ok && alone.ok && strcmp(a.text, alone.text) == 0;
        if (!ok) snprintf(text, sizeof text, "alone the first session said: %.900s", alone.text);
    }
    if (!ok) fprintf(stderr, "two_sessions: %s\n", text);
    hllm_engine_free(engine);
    hllm_model_free(model);
    hllm_runtime_free(rt);
    return ok ? 0 : 1;
}
