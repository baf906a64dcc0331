/* run_common.h: what the tests of sessions share: opening the shipped model and other files, tokens, greedy answers. */
#ifndef RUN_COMMON_H
#define RUN_COMMON_H

#include <pthread.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hybrid_llm.h"

#include "check.h"

typedef struct setup { hllm_runtime *rt; hllm_model *m; hllm_engine *e; uint32_t n_vocab, n_embd; } setup;

/* Every call that has to succeed.  Says why not. */
#define OK(call, handle_error) do { hllm_status rc_ = (call); if (rc_ != HLLM_OK) { char t_[512] = ""; handle_error; \
    CHECK_MSG(rc_ == HLLM_OK, "%s: %s: %s", #call, hllm_status_name(rc_), t_); exit(1); } } while (0)
#define OK_RT(call, h) OK(call, hllm_runtime_last_error(h, t_, sizeof t_))
#define OK_M(call, h)  OK(call, hllm_model_last_error(h, t_, sizeof t_))
#define OK_E(call, h)  OK(call, hllm_engine_last_error(h, t_, sizeof t_))
#define OK_S(call, h)  OK(call, hllm_session_last_error(h, t_, sizeof t_))

static inline double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void sleep_us(long us) { nanosleep(&(struct timespec){ us / 1000000, us % 1000000 * 1000 }, NULL); }

static inline uint64_t rnd(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    uint64_t x = *state ^ *state >> 33;
    return x * 0xff51afd7ed558ccdull >> 11;            /* 53 bits */
}

static inline setup setup_file(const char *path, uint32_t n_threads, const hllm_allocator *hook, const hllm_engine_options *eo)
{
    setup u = { 0 };
    hllm_runtime_options ro = { .struct_size = sizeof ro, .n_threads = n_threads, .allocator = hook };
    hllm_model_info info = { .struct_size = sizeof info };
    REQUIRE(hllm_runtime_create(&ro, &u.rt) == HLLM_OK);
    OK_RT(hllm_model_open(u.rt, path, NULL, &u.m), u.rt);
    OK_M(hllm_engine_create(u.m, eo, &u.e), u.m);
    OK_M(hllm_model_get_info(u.m, &info), u.m);
    u.n_vocab = info.n_vocab;
    u.n_embd = info.n_embd;
    return u;
}

static inline setup setup_tiny(uint32_t n_threads) { return setup_file(test_path("models/tiny-relu2-q8_0.gguf"), n_threads, NULL, NULL); }

static inline void setup_free(setup *u)
{
    hllm_engine_free(u->e);
    hllm_model_free(u->m);
    hllm_runtime_free(u->rt);
}

static inline hllm_session *session_of(const setup *u, uint32_t n_ctx, uint32_t kv, uint32_t micro_batch)
{
    hllm_session *s = NULL;
    OK_E(hllm_session_create(u->e, &(hllm_session_options){ sizeof(hllm_session_options), n_ctx, kv, micro_batch, NULL }, &s), u->e);
    return s;
}

static const char story[] =
    "It was on a dreary night of November that I beheld the accomplishment of my toils. With an anxiety that almost amounted to agony, "
    "I collected the instruments of life around me, that I might infuse a spark of being into the lifeless thing that lay at my feet. "
    "It was already one in the morning; the rain pattered dismally against the panes, and my candle was nearly burnt out, when, by the "
    "glimmer of the half-extinguished light, I saw the dull yellow eye of the creature open; it breathed hard, and a convulsive motion "
    "agitated its limbs. ";

/* n tokens of text (the story over and over), beginning with BOS where the model wants it. */
static inline void text_tokens(const setup *u, int32_t *out, size_t n)
{
    static int32_t one[1024];
    size_t got = 0, at = 0;
    OK_M(hllm_tokenize(u->m, story, sizeof story - 1, 0, one, 1024, &got), u->m);
    REQUIRE(got > 20);
    for (size_t i = 0; i < n; i++) {
        out[i] = one[at++];
        if (at == got) at = 1;                         /* not the BOS again */
    }
}

static inline uint32_t n_tokens_of(const hllm_session *s)
{
    hllm_session_info i = { .struct_size = sizeof i };
    OK_S(hllm_session_get_info(s, &i), s);
    return i.n_tokens;
}

static inline uint32_t rewind_min_of(const hllm_session *s)
{
    hllm_session_info i = { .struct_size = sizeof i };
    OK_S(hllm_session_get_info(s, &i), s);
    return i.n_tokens_min;
}

/* Polls to the end; text may be NULL. */
static inline hllm_poll_result poll_all(hllm_session *s, char *text, size_t cap)
{
    hllm_poll_result r = { .struct_size = sizeof r };
    char buf[256];
    size_t n = 0;
    if (text) text[0] = 0;
    do {
        OK_S(hllm_generate_poll(s, -1, buf, sizeof buf, &r), s);
        if (text && n + r.text_bytes < cap) { memcpy(text + n, buf, r.text_bytes + 1); n += r.text_bytes; }
    } while (r.run != HLLM_RUN_DONE && r.run != HLLM_RUN_IDLE);
    return r;
}

/* Greedy tokens after prompt, n of them (the model's end tokens are masked out). */
static inline void greedy(hllm_session *s, const int32_t *prompt, size_t n_prompt, uint32_t flags, int32_t *out, uint32_t n)
{
    static _Thread_local int32_t all[1 << 17];
    size_t total = 0;
    hllm_generate_options o = { .struct_size = sizeof o, .max_tokens = n, .flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS | flags };
    OK_S(hllm_generate_start_tokens(s, prompt, n_prompt, &o), s);
    hllm_poll_result r = poll_all(s, NULL, 0);
    CHECK_MSG(r.finish == HLLM_FINISH_LENGTH && r.n_generated == n, "finish %u, %u tokens", r.finish, r.n_generated);
    OK_S(hllm_session_tokens(s, all, sizeof all / sizeof *all, &total), s);
    REQUIRE(total >= n);
    memcpy(out, all + total - n, n * sizeof *out);
}

static inline int same_tokens(const int32_t *a, const int32_t *b, size_t n) { return memcmp(a, b, n * sizeof *a) == 0; }

#endif
