/* An outside program: knows only what was installed.  usage: outside MODEL; prints a continuation. */
#include <hybrid_llm.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    hllm_runtime *rt = NULL;
    hllm_model *model = NULL;
    hllm_engine *engine = NULL;
    hllm_session *session = NULL;
    hllm_generate_options opt = { .struct_size = sizeof opt, .max_tokens = 8, .flags = HLLM_GENERATE_GREEDY };
    hllm_poll_result r = { .struct_size = sizeof r };
    char text[256];
    size_t bytes = 0;
    int ok = argc == 2 && strcmp(hllm_version(), EXPECT_VERSION) == 0 && hllm_runtime_create(NULL, &rt) == HLLM_OK &&
             hllm_model_open(rt, argv[1], NULL, &model) == HLLM_OK && hllm_engine_create(model, NULL, &engine) == HLLM_OK &&
             hllm_session_create(engine, NULL, &session) == HLLM_OK && hllm_generate_start(session, "In the beginning", 16, &opt) == HLLM_OK;
    while (ok && r.run != HLLM_RUN_DONE) {
        ok = hllm_generate_poll(session, -1, text, sizeof text, &r) == HLLM_OK;
        if (ok) fwrite(text, 1, r.text_bytes, stdout);
        bytes += r.text_bytes;
    }
    putchar('\n');
    hllm_session_free(session);
    hllm_engine_free(engine);
    hllm_model_free(model);
    hllm_runtime_free(rt);
    return !(ok && bytes > 0 && r.n_generated == 8);
}
