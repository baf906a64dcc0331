/* hello.c: the smallest program: load a model, continue a text, print it as it comes.
 *
 *   cc hello.c $(pkg-config --cflags --libs hybridllm) && ./a.out models/tiny-relu2-q8_0.gguf "In the beginning"
 */
#include "hybrid_llm.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "models/tiny-relu2-q8_0.gguf";
    const char *prompt = argc > 2 ? argv[2] : "In the beginning";
    char text[1024] = "out of memory";
    hllm_runtime *rt = NULL;
    hllm_model *model = NULL;
    hllm_engine *engine = NULL;
    hllm_session *session = NULL;
    hllm_poll_result poll = { .struct_size = sizeof poll };
    hllm_generate_options opt = { .struct_size = sizeof opt, .max_tokens = 60, .seed = 1, .temperature = 0.7f, .top_p = 0.9f, .repeat_penalty = 1.1f };

    if (hllm_runtime_create(NULL, &rt) != HLLM_OK) goto failed;
    if (hllm_model_open(rt, path, NULL, &model) != HLLM_OK) { hllm_runtime_last_error(rt, text, sizeof text); goto failed; }
    if (hllm_engine_create(model, NULL, &engine) != HLLM_OK) { hllm_model_last_error(model, text, sizeof text); goto failed; }
    if (hllm_session_create(engine, NULL, &session) != HLLM_OK) { hllm_engine_last_error(engine, text, sizeof text); goto failed; }
    hllm_status rc = hllm_generate_start(session, prompt, strlen(prompt), &opt);
    while (rc == HLLM_OK && poll.run != HLLM_RUN_DONE) {
        rc = hllm_generate_poll(session, -1, text, sizeof text, &poll);
        if (rc == HLLM_OK) fwrite(text, 1, poll.text_bytes, stdout);
        fflush(stdout);
    }
    if (rc != HLLM_OK || poll.finish == HLLM_FINISH_ERROR) { hllm_session_last_error(session, text, sizeof text); goto failed; }
    putchar('\n');
    hllm_session_free(session);                        /* in any order: a child keeps its parents alive */
    hllm_engine_free(engine);
    hllm_model_free(model);
    hllm_runtime_free(rt);
    return 0;
failed:
    fprintf(stderr, "hello: %s\n", text);
    hllm_session_free(session);
    hllm_engine_free(engine);
    hllm_model_free(model);
    hllm_runtime_free(rt);
    return 1;
}
