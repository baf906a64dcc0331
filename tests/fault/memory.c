/* memory.c: the n-th allocation fails, n = 0, 1, 2, ... until all goes well: from making a runtime to generating, saving, loading, forking.
 * Each time the right code, a text, cleared outputs, nothing left, and what existed before still works. */
#include "../hostile/hostile.h"
#include "../unit/run_common.h"

static char dir[256], path[300];
static int32_t text[64], want[4];
static counting c = COUNTING_INIT;

#define POISON(type) ((type *)(uintptr_t)1)

/* Fails on want of memory only. */
static int failed(hllm_status rc, const void *out, const char *why, const char *what, long n)
{
    if (rc == HLLM_OK) return 0;
    CHECK_MSG(rc == HLLM_E_NOMEM, "%s, allocation %ld: %s: %s", what, n, hllm_status_name(rc), why);
    CHECK_MSG(out == NULL, "%s, allocation %ld: the output is not NULL", what, n);
    CHECK_MSG(why[0], "%s, allocation %ld: no text", what, n);
    return 1;
}

static void answers_right(hllm_session *s)
{
    int32_t got[4];
    OK_S(hllm_session_rewind(s, 0), s);
    greedy(s, text, 20, 0, got, 4);
    CHECK(same_tokens(got, want, 4));
}

/* Every step may fail.  true: none did. */
static int everything(long n, uint32_t load)
{
    char why[512] = "";
    hllm_allocator hook = counting_hook(&c);
    hllm_runtime *rt = POISON(hllm_runtime);
    hllm_progress *p = POISON(hllm_progress);
    hllm_model *m = POISON(hllm_model);
    hllm_engine *e = POISON(hllm_engine);
    hllm_session *s = POISON(hllm_session), *t = POISON(hllm_session);
    hllm_runtime_options ro = { .struct_size = sizeof ro, .n_threads = 2, .allocator = &hook, .error_text = why, .error_capacity = sizeof why };
    int ok = 0;
    c.calls = 0;
    c.fail_at = n;
    hllm_status rc = hllm_runtime_create(&ro, &rt);
    if (failed(rc, rt, why, "runtime", n)) return 0;
    rc = hllm_progress_create(rt, &p);
    hllm_runtime_last_error(rt, why, sizeof why);
    if (failed(rc, p, why, "progress", n)) goto runtime;
    rc = hllm_model_open(rt, test_path("models/tiny-relu2-q8_0.gguf"), NULL, &m);
    hllm_runtime_last_error(rt, why, sizeof why);
    if (failed(rc, m, why, "model", n)) goto progress;
    rc = hllm_engine_create(m, &(hllm_engine_options){ .struct_size = sizeof(hllm_engine_options), .load = load, .progress = p }, &e);
    hllm_model_last_error(m, why, sizeof why);
    if (failed(rc, e, why, "engine", n)) goto model;
    rc = hllm_session_create(e, &(hllm_session_options){ sizeof(hllm_session_options), 128, 0, 0, NULL }, &s);
    hllm_engine_last_error(e, why, sizeof why);
    if (failed(rc, s, why, "session", n)) goto engine;
    hllm_logit_bias bias[3] = { { 1, 0 }, { 2, 0 }, { 3, 0 } };
    const char *const stop[2] = { "no such text", "nor this" };
    hllm_generate_options o = { .struct_size = sizeof o, .max_tokens = 4, .flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS, .n_bias = 3, .bias = bias, .n_stop = 2, .stop = stop };
    rc = hllm_generate_start(s, story, 60, &o);
    hllm_session_last_error(s, why, sizeof why);
    if (failed(rc, NULL, why, "generate", n)) { c.fail_at = -1; answers_right(s); goto session; }
    CHECK(poll_all(s, NULL, 0).finish == HLLM_FINISH_LENGTH);
    rc = hllm_session_save(s, path);
    hllm_session_last_error(s, why, sizeof why);
    if (failed(rc, NULL, why, "save", n)) {
        CHECK(access(path, F_OK) != 0 && rmdir(dir) == 0 && mkdir(dir, 0700) == 0);
        c.fail_at = -1;
        answers_right(s);
        goto session;
    }
    rc = hllm_session_load(s, path);
    hllm_session_last_error(s, why, sizeof why);
    if (failed(rc, NULL, why, "load", n)) { c.fail_at = -1; answers_right(s); goto session; }
    hllm_session *none = NULL;                         /* an older text of the engine is not this failure's */
    CHECK(hllm_session_create(e, &(hllm_session_options){ sizeof(hllm_session_options), 0, 9, 0, NULL }, &none) == HLLM_E_ARG);
    rc = hllm_session_fork(s, &t);
    hllm_session_last_error(s, why, sizeof why);
    CHECK_MSG(rc == HLLM_OK || !strstr(why, "kv is"), "%s", why);
    if (failed(rc, t, why, "fork", n)) { c.fail_at = -1; answers_right(s); goto session; }
    ok = 1;
    answers_right(t);
    answers_right(s);
    hllm_session_free(t);
session:
    hllm_session_free(s);
engine:
    hllm_engine_free(e);
model:
    hllm_model_free(m);
progress:
    hllm_progress_free(p);
runtime:
    hllm_runtime_free(rt);
    unlink(path);
    return ok;
}

int main(void)
{
    const char *where = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/memory-XXXXXX", where && where[0] ? where : P_tmpdir);
    if (!mkdtemp(dir)) return 1;
    snprintf(path, sizeof path, "%s/saved", dir);
    setup u = setup_tiny(2);
    text_tokens(&u, text, 64);
    hllm_session *s = session_of(&u, 128, 0, 0);
    greedy(s, text, 20, 0, want, 4);
    hllm_session_free(s);
    setup_free(&u);
    for (uint32_t load = HLLM_LOAD_MMAP; load <= HLLM_LOAD_READ; load++) {         /* each by itself: they allocate differently, and every number must be tried in both */
        int done = 0;
        long n = 0;
        for (; !done && n < 1000; n++) {
            done = everything(n, load) && c.calls <= n;              /* nothing was left to fail */
            CHECK_MSG(c.live == 0 && c.blocks == 0, "allocation %ld: %ld blocks of %zu bytes are left", n, c.blocks, c.live);
        }
        fprintf(stderr, "load mode %u: %ld allocations\n", load, n - 1);
        CHECK(done && n > 60);
    }
    CHECK(rmdir(dir) == 0);
    return check_done();
}
