/* locale.c: the host may have any locale: numbers in files, messages and options mean the same where the decimal point is a comma.
 *
 * Sets the locale of the environment (tests/locale.sh runs it under de_DE.UTF-8, with HLLM_TEST_LOCALE=1: then the comma must be
 * there), loads a model whose keys hold floats, tokenizes, generates, and looks at error texts with numbers.  The same model in
 * the C locale gives the same bits; nothing changes the host's locale. */
#include <float.h>
#include <locale.h>
#include <math.h>

#include "hostile.h"

typedef struct answers { int32_t tokens[64]; size_t n_tokens; float logits[GF_SPM_VOCAB]; double eps, base; char error[1024], text[256]; } answers;

static void ask(const char *path, answers *a)
{
    hllm_runtime *rt = NULL;
    hllm_model *m = NULL;
    hllm_engine *e = NULL;
    hllm_session *s = NULL;
    uint32_t key;
    hllm_runtime_options ro = { .struct_size = sizeof ro, .n_threads = 2 };
    hllm_poll_result r = { .struct_size = sizeof r };
    hllm_generate_options go = { .struct_size = sizeof go, .max_tokens = 8, .temperature = 0.7f, .top_p = 0.9f, .repeat_penalty = 1.1f, .seed = 7 };
    memset(a, 0, sizeof *a);
    REQUIRE(hllm_runtime_create(&ro, &rt) == HLLM_OK);
    REQUIRE(hllm_model_open(rt, path, NULL, &m) == HLLM_OK);
    CHECK(hllm_tokenize(m, "ab ba 1,5 1.5", 13, 0, a->tokens, 64, &a->n_tokens) == HLLM_OK);
    CHECK(hllm_model_find_key(m, "llama.rope.freq_base", &key) == HLLM_OK && hllm_model_key_float(m, key, 0, &a->base) == HLLM_OK);
    CHECK(hllm_model_find_key(m, "llama.attention.layer_norm_rms_epsilon", &key) == HLLM_OK && hllm_model_key_float(m, key, 0, &a->eps) == HLLM_OK);
    REQUIRE(hllm_engine_create(m, NULL, &e) == HLLM_OK);
    REQUIRE(hllm_session_create(e, NULL, &s) == HLLM_OK);
    CHECK(hllm_session_eval(s, a->tokens, a->n_tokens) == HLLM_OK);
    CHECK(hllm_session_logits(s, (uint32_t)a->n_tokens - 1, a->logits, GF_SPM_VOCAB) == HLLM_OK);
    CHECK(hllm_generate_start(s, "ab", 2, &go) == HLLM_OK);
    size_t at = 0;
    while (r.run != HLLM_RUN_DONE && check_failed == 0) {
        CHECK(hllm_generate_poll(s, 1000, a->text + at, sizeof a->text - at, &r) == HLLM_OK);
        at += r.text_bytes;
    }
    go.temperature = -1.5f;
    CHECK(hllm_generate_start(s, "ab", 2, &go) == HLLM_E_ARG);
    hllm_session_last_error(s, a->error, sizeof a->error);
    hllm_session_free(s);
    hllm_engine_free(e);
    hllm_model_free(m);
    hllm_runtime_free(rt);
}

/* A file whose float key is refused: the message has the value. */
static void bad_float(const char *path, char *text, size_t cap)
{
    gguf_file *f = gf_llama();
    hllm_runtime *rt = NULL;
    hllm_model *m = NULL;
    gf_f32(f, "llama.attention.layer_norm_rms_epsilon", -0.25f);
    gbuf b = gf_write(f, NULL);
    hostile_write(path, b.p, b.n, 0);
    gb_free(&b);
    gf_free(f);
    REQUIRE(hllm_runtime_create(NULL, &rt) == HLLM_OK);
    CHECK(hllm_model_open(rt, path, NULL, &m) != HLLM_OK && !m);
    hllm_runtime_last_error(rt, text, cap);
    hllm_runtime_free(rt);
}

int main(void)
{
    static answers plain, here;
    char path[1024], bad_plain[1024] = "", bad_here[1024] = "", name[256];
    gguf_file *f = gf_llama();
    gbuf b = gf_write(f, NULL);
    hostile_dir_make();
    snprintf(path, sizeof path, "%s", hostile_path("x.gguf"));
    hostile_write(path, b.p, b.n, 0);
    ask(path, &plain);                                 /* a program starts in the C locale */
    bad_float(path, bad_plain, sizeof bad_plain);
    hostile_write(path, b.p, b.n, 0);
    const char *set = setlocale(LC_ALL, "");
    const char *point = localeconv()->decimal_point;
    fprintf(stderr, "locale %s, decimal point '%s'\n", set ? set : "cannot be set", point);
    if (getenv("HLLM_TEST_LOCALE")) CHECK_MSG(set && strcmp(point, ",") == 0, "the locale does not bite");
    snprintf(name, sizeof name, "%s", setlocale(LC_ALL, NULL));
    ask(path, &here);
    bad_float(path, bad_here, sizeof bad_here);
    CHECK(strcmp(name, setlocale(LC_ALL, NULL)) == 0);
    CHECK(memcmp(&plain, &here, sizeof plain) == 0);
    CHECK_MSG(strcmp(plain.error, here.error) == 0 && hostile_says(here.error, "temperature|-1.5"), "'%s' and '%s'", plain.error, here.error);
    CHECK_MSG(strcmp(bad_plain, bad_here) == 0 && hostile_says(bad_here, "epsilon|-0.25"), "'%s' and '%s'", bad_plain, bad_here);
    CHECK(here.base == 10000 && here.eps == (double)1e-5f);
    gb_free(&b);
    gf_free(f);
    unlink(path);
    hostile_dir_remove();
    return check_done();
}
