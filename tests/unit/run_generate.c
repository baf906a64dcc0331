/* run_generate.c: what a generation gives to the host: text, token records, stop texts, step mode with masks, end tokens, the file's sampling
 * defaults, statistics; and nothing is lost when the host is slow. */
#include <math.h>

#include "../hostile/gguf_writer.h"
#include "run_common.h"

enum { N = 60, M = 40, LONG = 1000 };
static int32_t text[512];
static char dir[256], path[300];

static void write_model(gguf_file *f)
{
    gbuf b = gf_write(f, NULL);
    FILE *out = fopen(path, "wb");
    if (!out || fwrite(b.p, 1, b.n, out) != b.n || fclose(out) != 0) exit(1);
    gb_free(&b);
    gf_free(f);
}

static hllm_generate_options greedy_options(uint32_t n)
{
    return (hllm_generate_options){ .struct_size = sizeof(hllm_generate_options), .max_tokens = n, .flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS };
}

static void text_is_detokenized(const setup *u)
{
    hllm_session *s = session_of(u, 256, 0, 0);
    hllm_generate_options o = greedy_options(M);
    char got[8192], want[8192];
    int32_t all[512];
    size_t n, bytes;
    OK_S(hllm_generate_start_tokens(s, text, N, &o), s);
    hllm_poll_result r = poll_all(s, got, sizeof got);
    CHECK(r.finish == HLLM_FINISH_LENGTH && r.n_generated == M && r.n_prompt == N && r.n_prompt_done == N && r.n_reused == 0);
    OK_S(hllm_session_tokens(s, all, 512, &n), s);
    CHECK(n == N + M);
    OK_M(hllm_detokenize(u->m, all + N, M, HLLM_DETOKENIZE_CONTINUE, want, sizeof want - 1, &bytes), u->m);
    want[bytes] = 0;
    CHECK_MSG(strcmp(got, want) == 0, "\"%s\", expected \"%s\"", got, want);

    /* The same through the text prompt. */
    char prompt[8192], again[8192];
    OK_M(hllm_detokenize(u->m, text, N, 0, prompt, sizeof prompt, &bytes), u->m);
    OK_S(hllm_session_rewind(s, 0), s);
    OK_S(hllm_generate_start(s, prompt, bytes, &o), s);
    r = poll_all(s, again, sizeof again);
    CHECK_MSG(strcmp(got, again) == 0, "\"%s\"", again);

    /* Every stop text that occurs cuts there; one that does not occur changes nothing. */
    const size_t len = strlen(got);
    for (size_t at = 0; at + 1 < len; at += 7)
        for (size_t m = 1; m < 20 && at + m <= len; m += 6) {
            char stop[32], cut[8192];
            snprintf(stop, sizeof stop, "%.*s", (int)m, got + at);
            const char *stops[] = { "no such text", stop };
            o.stop = stops;
            o.n_stop = 2;
            if (rnd(&(uint64_t){ at * 31 + m }) % 3) continue;
            OK_S(hllm_generate_start_tokens(s, text, N, &o), s);
            r = poll_all(s, cut, sizeof cut);
            const char *first = strstr(got, stop);
            CHECK_MSG(r.finish == HLLM_FINISH_STOP_TEXT && strlen(cut) == (size_t)(first - got) && memcmp(cut, got, strlen(cut)) == 0, "stop \"%s\": \"%s\", finish %u", stop, cut, r.finish);
        }
    hllm_run_stats st = { .struct_size = sizeof st };
    o = greedy_options(10);
    OK_S(hllm_session_rewind(s, 0), s);
    OK_S(hllm_generate_start_tokens(s, text, N, &o), s);
    poll_all(s, NULL, 0);
    OK_S(hllm_session_stats(s, &st), s);
    CHECK(st.n_prompt == N && st.n_generated == 10 && st.n_reused == 0 && st.prompt_ns > 0 && st.first_token_ns >= st.prompt_ns && st.decode_ns > 0);
    CHECK(st.decode_bytes_per_token > 1000000 && st.memory_peak_bytes > st.decode_bytes_per_token && st.active_share == 1 && strcmp(st.mode, "exact") == 0);
    hllm_session_free(s);
}

/* Records against logits read in step mode; masks; biases. */
static void records_and_steps(const setup *u)
{
    hllm_session *s = session_of(u, 256, 0, 0);
    hllm_logit_bias bias[1] = { { 70, 2 } }, top[256 * 7];
    static hllm_token_record rec[256];
    const size_t mask_bytes = (u->n_vocab + 7) / 8;
    uint8_t *mask = malloc(mask_bytes);
    float *x = malloc(u->n_vocab * sizeof *x);
    int32_t want[M];
    double want_lp[M];
    uint32_t n_rec = 0;
    size_t n = 0, n_text = 0;
    uint64_t seed = 4;
    char buf[64], got[4096] = "";
    hllm_poll_result r = { .struct_size = sizeof r };
    hllm_generate_options o = greedy_options(M);
    o.flags |= HLLM_GENERATE_STEP | HLLM_GENERATE_TOKENS;
    o.n_bias = 1;
    o.bias = bias;
    o.n_logprobs = 7;
    CHECK(hllm_generate_logits(s, x, u->n_vocab) == HLLM_E_STATE);
    OK_S(hllm_generate_start_tokens(s, text, N, &o), s);
    uint32_t k = 0;
    while (r.run != HLLM_RUN_DONE) {
        OK_S(hllm_generate_poll(s, -1, buf, sizeof buf, &r), s);
        memcpy(got + n_text, buf, r.text_bytes + 1);
        n_text += r.text_bytes;
        if (r.run != HLLM_RUN_WAITING) continue;
        CHECK(r.n_generated == k);
        CHECK(hllm_generate_logits(s, x, u->n_vocab - 1) == HLLM_E_ARG);
        OK_S(hllm_generate_logits(s, x, u->n_vocab), s);
        CHECK(hllm_generate_continue(s, mask, mask_bytes - 1) == HLLM_E_ARG);
        const int masked = k % 2;
        for (size_t i = 0; i < mask_bytes; i++) mask[i] = (uint8_t)(rnd(&seed) & rnd(&seed));
        int id = -1;
        double top1 = -INFINITY, sum = 0;
        for (uint32_t i = 0; i < u->n_vocab; i++) {
            hllm_token_info info = { .struct_size = sizeof info };
            if (x[i] > top1) top1 = x[i];
            OK_M(hllm_model_token(u->m, (int32_t)i, &info), u->m);
            if (i == 70) x[i] += 2;
            if (info.ends_generation || (masked && !(mask[i / 8] >> i % 8 & 1))) x[i] = -INFINITY;
            if (id < 0 || x[i] > x[id]) id = (int)i;
        }
        for (uint32_t i = 0; i < u->n_vocab; i++) sum += exp(x[i] - top1);
        want[k] = id;
        want_lp[k] = x[id] - top1 - log(sum);
        k++;
        OK_S(hllm_generate_continue(s, masked ? mask : NULL, masked ? mask_bytes : 0), s);
    }
    CHECK(k == M && r.finish == HLLM_FINISH_LENGTH);
    CHECK(hllm_generate_continue(s, NULL, 0) == HLLM_E_STATE);
    size_t took;
    do {                                               /* in small portions */
        OK_S(hllm_generate_poll_tokens(s, rec + n_rec, top + n_rec * 7, 3, &took), s);
        n_rec += (uint32_t)took;
    } while (took);
    CHECK_MSG(n_rec == M, "%u", n_rec);
    int32_t all[512];
    OK_S(hllm_session_tokens(s, all, 512, &n), s);
    for (uint32_t i = 0; i < n_rec; i++) {
        CHECK_MSG(rec[i].token == want[i] && all[N + i] == want[i], "token %u: %d, expected %d", i, rec[i].token, want[i]);
        CHECK_MSG(fabs(rec[i].logprob - want_lp[i]) < 1e-4, "token %u: %g, expected %g", i, (double)rec[i].logprob, want_lp[i]);
        CHECK(rec[i].n_top == 7 && top[i * 7].token == want[i] && top[i * 7].bias == rec[i].logprob);      /* greedy: the best is the chosen one */
        for (int j = 1; j < 7; j++) CHECK(top[i * 7 + (size_t)j].bias <= top[i * 7 + (size_t)j - 1].bias);
        size_t bytes;
        char piece[4096];
        OK_M(hllm_detokenize(u->m, all + N, i + 1, HLLM_DETOKENIZE_CONTINUE, piece, sizeof piece, &bytes), u->m);
        CHECK_MSG(rec[i].text_end == bytes, "token %u: text ends at %u, expected %zu", i, rec[i].text_end, bytes);
    }
    free(mask);
    free(x);
    hllm_session_free(s);
}

/* A host that does not take its records: the generation waits at 256 of them and loses none. */
static void slow_records(const setup *u)
{
    hllm_session *s = session_of(u, 512, 0, 0);
    static hllm_token_record rec[400];
    hllm_generate_options o = greedy_options(400);
    char buf[4096];
    size_t n = 0, took;
    int32_t all[512];
    hllm_poll_result r = { .struct_size = sizeof r };
    o.flags |= HLLM_GENERATE_TOKENS;
    OK_S(hllm_generate_start_tokens(s, text, 30, &o), s);
    while (r.n_generated < 256 && r.run != HLLM_RUN_DONE) { OK_S(hllm_generate_poll(s, 10, buf, sizeof buf, &r), s); sleep_us(1000); }
    for (int i = 0; i < 30; i++) { sleep_us(2000); OK_S(hllm_generate_poll(s, 0, buf, sizeof buf, &r), s); }
    CHECK_MSG(r.n_generated == 256 && r.run == HLLM_RUN_TOKENS, "%u tokens, run %u", r.n_generated, r.run);
    while (n < 400 && r.run != HLLM_RUN_IDLE) {
        OK_S(hllm_generate_poll_tokens(s, rec + n, NULL, 100, &took), s);
        n += took;
        OK_S(hllm_generate_poll(s, took ? 0 : 5, buf, sizeof buf, &r), s);
        if (!took && r.run == HLLM_RUN_DONE) { OK_S(hllm_generate_poll_tokens(s, rec + n, NULL, 100, &took), s); n += took; if (!took) break; }
    }
    CHECK_MSG(n == 400 && r.finish == HLLM_FINISH_LENGTH, "%zu, finish %u", n, r.finish);
    OK_S(hllm_session_tokens(s, all, 512, &took), s);
    for (size_t i = 0; i < n; i++) CHECK(rec[i].token == all[30 + i]);
    hllm_session_free(s);
}

/* A host that leaves records where they are still waits in poll, and is told at once of a prompt that can never fit. */
static void waits_and_refuses(const setup *u)
{
    hllm_session *s = session_of(u, 512, 0, 0);
    hllm_generate_options o = greedy_options(100);
    hllm_poll_result r = { .struct_size = sizeof r };
    char buf[4096], *big = malloc(50 << 20);
    long polls = 0;
    o.flags |= HLLM_GENERATE_TOKENS;
    OK_S(hllm_generate_start_tokens(s, text, 30, &o), s);
    do { OK_S(hllm_generate_poll(s, 1000, buf, sizeof buf, &r), s); polls++; } while (r.run != HLLM_RUN_DONE && polls < 100000);
    CHECK_MSG(polls < 1000, "%ld polls for 100 tokens", polls);
    memset(big, 'a', 50 << 20);
    CHECK(hllm_generate_start(s, big, 50 << 20, &o) == HLLM_E_CONTEXT_FULL);
    hllm_session_last_error(s, buf, sizeof buf);
    CHECK_MSG(strstr(buf, "52428800 bytes") && strstr(buf, "at least") && strstr(buf, "512"), "%s", buf);     /* by its length, before it is split */
    free(big);
    hllm_session_free(s);
}

/* Tokens of 1,000 bytes fill the text ring. */
static void slow_text(void)
{
    gguf_file *f = gf_llama();
    static char zs[LONG];
    gf_u32(f, "llama.context_length", 1024);
    gkey *old = gf_find(f, "tokenizer.ggml.tokens");
    const size_t cut = old->value.n - 9;               /* the last token, "z", is 8 bytes of length and one of text */
    memset(zs, 'z', sizeof zs);
    old->value.n = cut;
    gb_str(&old->value, zs, LONG);
    write_model(f);
    setup u = setup_file(path, 1, NULL, NULL);
    hllm_session *s = session_of(&u, 1024, 0, 0);
    hllm_logit_bias bias = { GF_SPM_VOCAB - 1, 1000 };
    hllm_generate_options o = greedy_options(300);
    char buf[5000];
    size_t n = 0;
    hllm_poll_result r = { .struct_size = sizeof r };
    o.n_bias = 1;
    o.bias = &bias;
    OK_S(hllm_generate_start_tokens(s, (int32_t[]){ 1, 270 }, 2, &o), s);
    uint32_t last = 0;
    for (int still = 0; still < 20;) {                 /* without polling: it stops by itself */
        hllm_run_stats st = { .struct_size = sizeof st };
        OK_S(hllm_session_stats(s, &st), s);
        still = st.n_generated == last && last > 0 ? still + 1 : 0;
        last = st.n_generated;
        sleep_us(2000);
    }
    CHECK_MSG(last > 20 && last < 100, "%u tokens before it waits", last);
    do {
        OK_S(hllm_generate_poll(s, -1, buf, 5 + n % 3000, &r), s);
        for (size_t i = 0; i < r.text_bytes; i++) CHECK(buf[i] == 'z');
        n += r.text_bytes;
    } while (r.run != HLLM_RUN_DONE);
    CHECK_MSG(n == 300 * LONG && r.finish == HLLM_FINISH_LENGTH && r.n_generated == 300, "%zu bytes, %u tokens", n, r.n_generated);
    OK_S(hllm_generate_start_tokens(s, (int32_t[]){ 1, 270 }, 2, &o), s);       /* cancelled while it waits: what there is can be taken */
    sleep_us(50000);
    OK_S(hllm_generate_cancel(s), s);
    char *rest = malloc(300 * LONG + 1);
    r = poll_all(s, rest, 300 * LONG + 1);
    CHECK(r.finish == HLLM_FINISH_CANCELLED && strlen(rest) == (size_t)r.n_generated * LONG);
    free(rest);
    hllm_session_free(s);
    setup_free(&u);
}

static void end_tokens(void)
{
    gguf_file *f = gf_llama();
    write_model(f);
    setup u = setup_file(path, 1, NULL, NULL);
    hllm_session *s = session_of(&u, 64, 0, 0);
    hllm_logit_bias bias[2] = { { 2, 1000 }, { 262, 500 } };         /* </s>, then "a" */
    hllm_generate_options o = { .struct_size = sizeof o, .max_tokens = 5, .flags = HLLM_GENERATE_GREEDY, .n_bias = 2, .bias = bias };
    char got[256];
    OK_S(hllm_generate_start_tokens(s, (int32_t[]){ 1, 270 }, 2, &o), s);
    hllm_poll_result r = poll_all(s, got, sizeof got);
    CHECK_MSG(r.finish == HLLM_FINISH_END_TOKEN && r.n_generated == 1 && got[0] == 0, "finish %u, \"%s\"", r.finish, got);
    o.flags |= HLLM_GENERATE_SPECIAL;
    OK_S(hllm_generate_start_tokens(s, (int32_t[]){ 1, 270 }, 2, &o), s);
    r = poll_all(s, got, sizeof got);
    CHECK_MSG(r.finish == HLLM_FINISH_END_TOKEN && strcmp(got, "</s>") == 0, "\"%s\"", got);
    o.flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS;
    OK_S(hllm_generate_start_tokens(s, (int32_t[]){ 1, 270 }, 2, &o), s);
    r = poll_all(s, got, sizeof got);
    CHECK_MSG(r.finish == HLLM_FINISH_LENGTH && r.n_generated == 5 && strcmp(got, "aaaaa") == 0, "\"%s\"", got);
    OK_S(hllm_generate_start(s, "", 0, &o), s);        /* an empty prompt is the BOS alone */
    r = poll_all(s, NULL, 0);
    CHECK(r.n_prompt == 1 && r.finish == HLLM_FINISH_LENGTH);
    CHECK(hllm_generate_start(s, NULL, 3, &o) == HLLM_E_ARG);

    /* Nothing allowed: a numeric error, the session stays usable. */
    hllm_poll_result p = { .struct_size = sizeof p };
    char buf[64], why[256];
    uint8_t none[(GF_SPM_VOCAB + 7) / 8] = { 0 };
    o.flags |= HLLM_GENERATE_STEP;
    OK_S(hllm_generate_start_tokens(s, (int32_t[]){ 1, 270 }, 2, &o), s);
    while (p.run != HLLM_RUN_WAITING) OK_S(hllm_generate_poll(s, -1, buf, sizeof buf, &p), s);
    OK_S(hllm_generate_continue(s, none, sizeof none), s);
    r = poll_all(s, NULL, 0);
    CHECK(r.finish == HLLM_FINISH_ERROR && r.error == HLLM_E_NUMERIC && r.n_generated == 0);
    hllm_session_last_error(s, why, sizeof why);
    CHECK_MSG(strstr(why, "allowed"), "%s", why);
    o.flags = HLLM_GENERATE_GREEDY;
    OK_S(hllm_generate_start_tokens(s, (int32_t[]){ 1, 270 }, 2, &o), s);
    CHECK(poll_all(s, NULL, 0).finish == HLLM_FINISH_END_TOKEN);

    /* An end token that the file declares as user-defined text is no part of the answer either. */
    hllm_session_free(s);
    setup_free(&u);
    f = gf_llama();
    gkey *types = gf_find(f, "tokenizer.ggml.token_type");
    types->value.p[12 + 2 * 4] = 4;
    write_model(f);
    u = setup_file(path, 1, NULL, NULL);
    s = session_of(&u, 64, 0, 0);
    OK_S(hllm_generate_start_tokens(s, (int32_t[]){ 1, 270 }, 2, &o), s);
    r = poll_all(s, got, sizeof got);
    CHECK_MSG(r.finish == HLLM_FINISH_END_TOKEN && got[0] == 0, "\"%s\"", got);
    hllm_session_free(s);
    setup_free(&u);
}

/* ---- the file's own sampling ---- */

static void sample(const setup *u, const hllm_generate_options *o, int32_t *out)
{
    hllm_session *s = session_of(u, 64, 0, 0);
    int32_t all[64];
    size_t n;
    OK_S(hllm_generate_start_tokens(s, (int32_t[]){ 1, 270, 271 }, 3, o), s);
    CHECK(poll_all(s, NULL, 0).finish == HLLM_FINISH_LENGTH);
    OK_S(hllm_session_tokens(s, all, 64, &n), s);
    memcpy(out, all + 3, M * sizeof *out);
    hllm_session_free(s);
}

static void file_defaults(void)
{
    const uint32_t keep = HLLM_GENERATE_IGNORE_EOS;
    const hllm_generate_options by_file = { .struct_size = sizeof by_file, .max_tokens = M, .seed = 7, .flags = keep },
        by_hand = { .struct_size = sizeof by_file, .max_tokens = M, .seed = 7, .flags = keep, .temperature = 1.7f, .top_k = 60, .top_p = 0.97f, .min_p = 0.01f, .repeat_penalty = 1.4f,
                    .frequency_penalty = 0.3f, .presence_penalty = 0.2f, .penalty_last_n = 11 },
        off = { .struct_size = sizeof by_file, .max_tokens = M, .seed = 7, .flags = keep, .temperature = 1.7f, .top_k = -1, .top_p = 1, .min_p = 0.01f, .repeat_penalty = 1,
                .frequency_penalty = 0.3f, .presence_penalty = 0.2f, .penalty_last_n = 11 };
    hllm_generate_options greedy_file = by_file, greedy_hand = by_hand, none = by_file, seed8 = by_file;
    int32_t a[M], b[M], c[M], d[M], e[M], g[M], h[M], i[M];
    greedy_file.flags |= HLLM_GENERATE_GREEDY;
    greedy_hand.flags |= HLLM_GENERATE_GREEDY;
    seed8.seed = 8;
    gguf_file *f = gf_llama();
    gf_f32(f, "general.sampling.temp", 1.7f);
    gf_i32(f, "general.sampling.top_k", 60);
    gf_f32(f, "general.sampling.top_p", 0.97f);
    gf_f32(f, "general.sampling.min_p", 0.01f);
    gf_f32(f, "general.sampling.penalty_repeat", 1.4f);
    gf_i32(f, "general.sampling.penalty_last_n", 11);
    gf_f32(f, "general.sampling.penalty_freq", 0.3f);
    gf_f32(f, "general.sampling.penalty_present", 0.2f);
    write_model(f);
    setup u = setup_file(path, 1, NULL, NULL);
    sample(&u, &by_file, a);
    sample(&u, &greedy_file, c);
    sample(&u, &off, g);
    sample(&u, &seed8, i);
    setup_free(&u);
    write_model(gf_llama());
    u = setup_file(path, 1, NULL, NULL);
    sample(&u, &by_hand, b);
    sample(&u, &greedy_hand, d);
    sample(&u, &none, e);                              /* no defaults in the file: greedy */
    none.flags |= HLLM_GENERATE_GREEDY;
    sample(&u, &none, h);
    CHECK(same_tokens(a, b, M));
    CHECK(same_tokens(c, d, M));
    CHECK(same_tokens(e, h, M));
    sample(&u, &off, h);
    CHECK(same_tokens(g, h, M));                       /* an explicit "off" beats the file */
    CHECK(!same_tokens(a, g, M) && !same_tokens(a, c, M) && !same_tokens(c, e, M) && !same_tokens(a, i, M));
    setup_free(&u);
}

/* Values that turn an option off in the file, and values that are no numbers: nothing wrong is said of the former, and the latter are said. */
static void file_off(void)
{
    char line[512];
    uint32_t level;
    size_t needed;
    const hllm_generate_options by_file = { .struct_size = sizeof by_file, .max_tokens = M, .seed = 7, .flags = HLLM_GENERATE_IGNORE_EOS };
    for (int whole = 0; whole < 2; whole++) {
        hllm_generate_options by_hand = by_file;
        by_hand.temperature = 2;
        by_hand.top_k = -1;
        by_hand.repeat_penalty = whole ? 1.3f : 1;
        by_hand.penalty_last_n = 1 << 20;
        gguf_file *f = gf_llama();
        gf_u32(f, "general.sampling.temp", 2);         /* integers are numbers */
        gf_i32(f, "general.sampling.top_k", whole ? -3 : 0);
        gf_f32(f, "general.sampling.min_p", 0);
        gf_f32(f, "general.sampling.penalty_repeat", 1.3f);
        gf_i32(f, "general.sampling.penalty_last_n", whole ? -1 : 0);
        write_model(f);
        setup u = setup_file(path, 1, NULL, NULL);
        int32_t a[M], b[M], c[M];
        CHECK_MSG(hllm_log_poll(u.rt, &level, line, sizeof line, &needed) == HLLM_OK && needed == 0, "%s", line);
        sample(&u, &by_file, a);
        sample(&u, &by_hand, b);
        by_hand.repeat_penalty = whole ? 1 : 1.3f;     /* and the penalty would show */
        sample(&u, &by_hand, c);
        CHECK_MSG(same_tokens(a, b, M) && !same_tokens(a, c, M), "whole %d", whole);
        hllm_generate_options last = by_file;          /* the host's own number beats the file's "off" */
        last.penalty_last_n = 1 << 20;
        sample(&u, &last, b);
        if (!whole) CHECK(same_tokens(b, c, M));
        setup_free(&u);
    }
    static const char *const keys[] = { "temp", "top_k", "top_p", "min_p", "penalty_last_n" };
    for (size_t i = 0; i < 2 * sizeof keys / sizeof *keys; i++) {
        char name[64];
        gguf_file *f = gf_llama();
        snprintf(name, sizeof name, "general.sampling.%s", keys[i / 2]);
        if (i % 2) gb_f32(gf_array(f, name, GT_F32, 1), 0.5f);
        else gf_str(f, name, "0.5");
        write_model(f);
        setup u = setup_file(path, 1, NULL, NULL);
        CHECK(hllm_log_poll(u.rt, &level, line, sizeof line, &needed) == HLLM_OK && needed && level == HLLM_LOG_WARNING);
        CHECK_MSG(strstr(line, name) && strstr(line, "is no number and ignored") && strstr(line, path), "%s", line);
        setup_free(&u);
    }
}

/* What does not fit is not read. */
static void too_many(const setup *u)
{
    hllm_session *s = session_of(u, 64, 0, 0);
    char why[256];
    OK_S(hllm_session_eval(s, text, 4), s);
    const int32_t *none = text;                        /* so many tokens are nowhere */
    CHECK(hllm_session_eval(s, none, (size_t)1 << 60) == HLLM_E_CONTEXT_FULL);
    hllm_session_last_error(s, why, sizeof why);
    CHECK_MSG(strstr(why, "1152921504606846976") && strstr(why, "64") && strstr(why, "4"), "%s", why);
    const hllm_generate_options o = { .struct_size = sizeof o, .flags = HLLM_GENERATE_APPEND };
    CHECK(hllm_generate_start_tokens(s, none, (size_t)1 << 60, &o) == HLLM_E_CONTEXT_FULL);
    CHECK(hllm_generate_start_tokens(s, none, (size_t)1 << 60, NULL) == HLLM_E_CONTEXT_FULL);
    hllm_session_last_error(s, why, sizeof why);
    CHECK_MSG(strstr(why, "1152921504606846976"), "%s", why);
    CHECK(n_tokens_of(s) == 4);
    hllm_session_free(s);
}

static void bad_options(const setup *u)
{
    hllm_session *s = session_of(u, 64, 0, 0);
    char big[1100], why[256];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    const char *too_long[] = { big }, *empty[] = { "" }, *null[] = { NULL };
    hllm_logit_bias outside = { (int32_t)u->n_vocab, 1 }, nan = { 1, NAN }, inf = { 1, INFINITY };
#define BAD(words, ...) do { hllm_generate_options o = { .struct_size = sizeof o, __VA_ARGS__ }; \
        CHECK_MSG(hllm_generate_start_tokens(s, text, 5, &o) == HLLM_E_ARG, "%s", #__VA_ARGS__); \
        hllm_session_last_error(s, why, sizeof why); CHECK_MSG(strstr(why, words), "%s: %s", #__VA_ARGS__, why); } while (0)
    BAD("-1", .temperature = -1); BAD("nan", .temperature = NAN); BAD("inf", .temperature = INFINITY); BAD("1.5", .top_p = 1.5f); BAD("min_p", .min_p = NAN);
    BAD("-2", .top_k = -2); BAD("repeat_penalty", .repeat_penalty = -1); BAD("65", .n_logprobs = 65); BAD("65", .n_stop = 65, .stop = too_long);
    BAD("stop", .n_stop = 1); BAD("bias", .n_bias = 1); BAD("1024", .n_stop = 1, .stop = too_long); BAD("stop", .n_stop = 1, .stop = empty); BAD("stop", .n_stop = 1, .stop = null);
    BAD("bias 0", .n_bias = 1, .bias = &outside); BAD("bias 0", .n_bias = 1, .bias = &nan); BAD("bias 0", .n_bias = 1, .bias = &inf); BAD("0x100", .flags = 256);
    BAD("n_bias", .n_bias = 1u << 30, .bias = &nan);
    CHECK(hllm_generate_start_tokens(s, text, 5, &(hllm_generate_options){ .struct_size = 4 }) == HLLM_E_VERSION);
    CHECK(n_tokens_of(s) == 0);
    hllm_session_free(s);
}

int main(void)
{
    const char *where = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/generate-XXXXXX", where && where[0] ? where : P_tmpdir);
    if (!mkdtemp(dir)) return 1;
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    setup u = setup_tiny(2);
    text_tokens(&u, text, 512);
    text_is_detokenized(&u);
    records_and_steps(&u);
    slow_records(&u);
    waits_and_refuses(&u);
    bad_options(&u);
    too_many(&u);
    setup_free(&u);
    slow_text();
    end_tokens();
    file_defaults();
    file_off();
    unlink(path);
    CHECK(rmdir(dir) == 0);
    return check_done();
}
