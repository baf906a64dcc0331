/* bad_input.c: what a caller can get wrong, through the public interface: every row has the right code, a message that says what,
 * where, value and limit, cleared outputs, and everything still works afterwards.
 *
 * Files: missing, directory, empty, not GGUF, truncated, unknown architecture, unknown quant type, missing tensor, wrong shape, NaN
 * weights.  Arguments: context above the model's limit, prompt longer than the context, invalid UTF-8, 5,000 threads, structs of a
 * wrong size, NULL for every pointer of every function.  The models are made here (tests/hostile/gguf_writer.h). */
#include <math.h>

#include "hostile.h"

static hllm_runtime *rt;
static hllm_model *model;
static hllm_engine *engine;
static hllm_session *session;
static char bad_path[1024], good_path[1024];

typedef enum on { ON_RT, ON_MODEL, ON_ENGINE, ON_SESSION, ON_NONE } on;

static const char *text_of(on where)
{
    static char text[2048];
    text[0] = 0;
    if (where == ON_RT) hllm_runtime_last_error(rt, text, sizeof text);
    if (where == ON_MODEL) hllm_model_last_error(model, text, sizeof text);
    if (where == ON_ENGINE) hllm_engine_last_error(engine, text, sizeof text);
    if (where == ON_SESSION) hllm_session_last_error(session, text, sizeof text);
    return text;
}

/* The call fails with want, and the handle's text has all the words (separated by '|'). */
#define WANT(call, want, where, words) do { \
    hllm_status got_ = (call); \
    CHECK_MSG(got_ == (want), "%s, not %s: %s", hllm_status_name(got_), #want, text_of(where)); \
    if ((where) != ON_NONE && got_ != HLLM_OK) \
        CHECK_MSG(hostile_says(text_of(where), words) && hostile_printable(text_of(where)), "'%s' lacks '%s'", text_of(where), words); \
    } while (0)
#define OK(call) do { hllm_status got_ = (call); CHECK_MSG(got_ == HLLM_OK, "%s", hllm_status_name(got_)); } while (0)

/* ---- files ---- */

static void write_bad(gguf_file *f, size_t cut)
{
    gbuf b = gf_write(f, NULL);
    hostile_write(bad_path, b.p, b.n - cut, 0);
    gb_free(&b);
    gf_free(f);
}

static void open_is(const char *path, hllm_status want, const char *words)
{
    hllm_model *m = (hllm_model *)(uintptr_t)1;
    WANT(hllm_model_open(rt, path, NULL, &m), want, ON_RT, words);
    CHECK(m == NULL);
}

static void bad_files(void)
{
    gguf_file *f;
    open_is(hostile_path("no-such-file.gguf"), HLLM_E_NOT_FOUND, "no-such-file.gguf|no such file");
    open_is(hostile_dir, HLLM_E_IO, "is a directory");
    open_is("", HLLM_E_ARG, "path|empty");
    hostile_write(bad_path, "", 0, 0);
    open_is(bad_path, HLLM_E_TRUNCATED, "bad.gguf|is empty");
    hostile_write(bad_path, "PK\3\4 a zip file, say, and long enough for a header", 50, 0);
    open_is(bad_path, HLLM_E_FORMAT, "bad.gguf|not a GGUF file");
    write_bad(gf_llama(), 1);
    open_is(bad_path, HLLM_E_TRUNCATED, "bad.gguf|tensor blk.1.ffn_down.weight|8192 bytes|file ends at");
    f = gf_llama();
    gf_str(f, "general.architecture", "mamba");
    write_bad(f, 0);
    open_is(bad_path, HLLM_E_UNSUPPORTED, "bad.gguf|architecture \"mamba\"|known are|llama|qwen2|qwen3|gemma2|gemma3|phi3|arcee|nemotron|falcon");
    f = gf_llama();
    gf_find_tensor(f, "blk.0.ffn_up.weight")->type = 999;
    write_bad(f, 0);
    open_is(bad_path, HLLM_E_UNSUPPORTED, "bad.gguf|tensor blk.0.ffn_up.weight|type 999|Q4_K|MXFP4");
    f = gf_llama();
    gf_remove_tensor(f, "blk.1.ffn_down.weight");
    write_bad(f, 0);
    open_is(bad_path, HLLM_E_MISMATCH, "bad.gguf|tensor blk.1.ffn_down.weight|missing");
    f = gf_llama();
    gf_remove_tensor(f, "blk.0.attn_q.weight");
    gf_f32_tensor(f, "blk.0.attn_q.weight", GF_EMBD, 48, 0, 1);
    write_bad(f, 0);
    open_is(bad_path, HLLM_E_MISMATCH, "bad.gguf|tensor blk.0.attn_q.weight|32 x 48|expected 32 x 32");
    WANT(hllm_model_open_fd(rt, -1, 0, 0, NULL, &(hllm_model *){ 0 }), HLLM_E_ARG, ON_RT, "fd|-1");
}

/* One NaN among the weights: a numeric error and no token, and the position stays. */
static void nan_weights(uint32_t act)
{
    gguf_file *f = gf_llama();
    const uint32_t nan = 0x7FC00000;
    hllm_model *m = NULL;
    hllm_engine *e = NULL;
    hllm_session *s = NULL, *keep = session;
    char buf[64];
    hllm_poll_result r = { .struct_size = sizeof r };
    hllm_session_info info = { .struct_size = sizeof info };
    hllm_engine_options eo = { .struct_size = sizeof eo, .act = act };
    memcpy(gf_find_tensor(f, "blk.1.ffn_down.weight")->data.p, &nan, sizeof nan);
    write_bad(f, 0);
    OK(hllm_model_open(rt, bad_path, NULL, &m));
    OK(hllm_engine_create(m, &eo, &e));
    OK(hllm_session_create(e, NULL, &s));
    session = s;                                       /* for text_of */
    WANT(hllm_session_eval(s, (const int32_t[]){ 1, 260 }, 2), HLLM_E_NUMERIC, ON_SESSION, "not a finite number|position");
    OK(hllm_session_get_info(s, &info));
    CHECK_MSG(info.n_tokens == 0, "%u", info.n_tokens);
    OK(hllm_generate_start(s, "abc", 3, NULL));
    for (int i = 0; i < 1000 && r.run != HLLM_RUN_DONE; i++) {
        OK(hllm_generate_poll(s, 1000, buf, sizeof buf, &r));
        CHECK(r.text_bytes == 0);
    }
    CHECK_MSG(r.finish == HLLM_FINISH_ERROR && r.error == HLLM_E_NUMERIC && r.n_generated == 0, "finish %u, error %d, %u tokens", r.finish, r.error, r.n_generated);
    CHECK_MSG(hostile_says(text_of(ON_SESSION), "not a finite number"), "%s", text_of(ON_SESSION));
    hllm_session_free(s);
    hllm_engine_free(e);
    hllm_model_free(m);
    session = keep;
}

/* ---- numbers and texts ---- */

static void bad_numbers(void)
{
    char text[256] = "";
    hllm_runtime *r = (hllm_runtime *)(uintptr_t)1;
    hllm_session *s = (hllm_session *)(uintptr_t)1;
    hllm_session_options so = { .struct_size = sizeof so, .n_ctx = 100000 };
    hllm_generate_options go = { .struct_size = sizeof go };
    hllm_runtime_options ro = { .struct_size = sizeof ro, .n_threads = 5000, .error_text = text, .error_capacity = sizeof text };
    CHECK(hllm_runtime_create(&ro, &r) == HLLM_E_ARG && r == NULL);
    CHECK_MSG(hostile_says(text, "n_threads|5000|limit|1024"), "%s", text);
    ro.n_threads = 1;
    ro.isa = "pentium";
    CHECK(hllm_runtime_create(&ro, &r) != HLLM_OK && r == NULL);
    CHECK_MSG(hostile_says(text, "pentium|scalar"), "%s", text);

    WANT(hllm_session_create(engine, &so, &s), HLLM_E_ARG, ON_ENGINE, "context|100000|limit is 64");
    CHECK(s == NULL);
    so.n_ctx = 16;
    so.kv = 99;
    WANT(hllm_session_create(engine, &so, &s), HLLM_E_ARG, ON_ENGINE, "kv|99");
    WANT(hllm_engine_create(model, &(hllm_engine_options){ .struct_size = sizeof(hllm_engine_options), .act = 9 }, &(hllm_engine *){ 0 }), HLLM_E_ARG, ON_MODEL, "act|9");
    WANT(hllm_engine_create(model, &(hllm_engine_options){ .struct_size = sizeof(hllm_engine_options), .load = HLLM_LOAD_READ, .ram_bytes = 1000 }, &(hllm_engine *){ 0 }),
         HLLM_E_NOMEM, ON_MODEL, "1000|need");

    int32_t tokens[65] = { 1 };
    char prompt[100];
    memset(prompt, 'z', sizeof prompt);
    WANT(hllm_generate_start(session, prompt, sizeof prompt, NULL), HLLM_E_CONTEXT_FULL, ON_SESSION, "prompt|context is 64");
    WANT(hllm_session_eval(session, tokens, 65), HLLM_E_CONTEXT_FULL, ON_SESSION, "65 tokens|context is 64");
    tokens[1] = 100000;
    WANT(hllm_session_eval(session, tokens, 2), HLLM_E_ARG, ON_SESSION, "token|100000|vocabulary has 288");
    tokens[1] = -1;
    WANT(hllm_generate_start_tokens(session, tokens, 2, NULL), HLLM_E_ARG, ON_SESSION, "token|-1");
    WANT(hllm_generate_start_tokens(session, tokens, 0, NULL), HLLM_E_ARG, ON_SESSION, "");
    WANT(hllm_session_rewind(session, 7), HLLM_E_ARG, ON_SESSION, "7");
    go.flags = 1u << 31;
    WANT(hllm_generate_start(session, "a", 1, &go), HLLM_E_ARG, ON_SESSION, "flags|0x80000000");
    go.flags = 0;
    go.n_stop = 65;
    go.stop = (const char *const[65]){ "a" };
    WANT(hllm_generate_start(session, "a", 1, &go), HLLM_E_ARG, ON_SESSION, "stop|65|64");
    go.n_stop = 0;
    go.n_logprobs = 65;
    WANT(hllm_generate_start(session, "a", 1, &go), HLLM_E_ARG, ON_SESSION, "logprobs|65|64");
    go.n_logprobs = 0;
    go.temperature = NAN;
    WANT(hllm_generate_start(session, "a", 1, &go), HLLM_E_ARG, ON_SESSION, "temperature");
    WANT(hllm_model_key(model, 1000, &(hllm_key_info){ .struct_size = sizeof(hllm_key_info) }), HLLM_E_ARG, ON_MODEL, "1000|the file has");
    WANT(hllm_model_tensor(model, 1000, &(hllm_tensor_info){ .struct_size = sizeof(hllm_tensor_info) }), HLLM_E_ARG, ON_MODEL, "1000|the file has");
    WANT(hllm_model_token(model, 288, &(hllm_token_info){ .struct_size = sizeof(hllm_token_info) }), HLLM_E_ARG, ON_MODEL, "288");
    WANT(hllm_model_special_token(model, 99, tokens), HLLM_E_ARG, ON_MODEL, "99");
    WANT(hllm_session_load(session, hostile_path("none")), HLLM_E_NOT_FOUND, ON_SESSION, "none");
    WANT(hllm_session_load(session, good_path), HLLM_E_FORMAT, ON_SESSION, "good.gguf");
}

/* Paths and names have to be UTF-8; a prompt may be any bytes: it is tokenized, computed, and comes back exactly. */
static void bad_utf8(void)
{
    static const char *const prompts[] = { "\xff", "a\x80\x80z", "\xc3", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\xaf", "ab\xf0\x9f\x98" };
    uint32_t index;
    open_is("\xff.gguf", HLLM_E_ARG, "path|UTF-8");
    WANT(hllm_model_find_key(model, "a\xc3", &index), HLLM_E_ARG, ON_MODEL, "name|UTF-8");
    WANT(hllm_model_find_tensor(model, "\xed\xa0\x80", &index), HLLM_E_ARG, ON_MODEL, "name|UTF-8");
    WANT(hllm_session_save(session, "\x80"), HLLM_E_ARG, ON_SESSION, "path|UTF-8");
    hllm_chat_message message = { .struct_size = sizeof message, .role = "us\xff" "er", .content = "x", .content_bytes = 1 };
    hllm_chat_options chat = { .struct_size = sizeof chat, .template_name = "chatml" };
    size_t n;
    WANT(hllm_chat_render(model, &message, 1, &chat, NULL, 0, &n), HLLM_E_ARG, ON_MODEL, "role|UTF-8");
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        int32_t tokens[64];
        char back[64], text[256];
        size_t n_tokens = 0, bytes = 0;
        const size_t len = strlen(prompts[i]);
        hllm_poll_result r = { .struct_size = sizeof r };
        hllm_generate_options go = { .struct_size = sizeof go, .max_tokens = 2, .flags = HLLM_GENERATE_GREEDY };
        OK(hllm_tokenize(model, prompts[i], len, 0, tokens, 64, &n_tokens));
        OK(hllm_detokenize(model, tokens, n_tokens, 0, back, sizeof back, &bytes));
        CHECK_MSG(bytes == len && memcmp(back, prompts[i], len) == 0, "prompt %zu: %zu bytes came back", i, bytes);
        OK(hllm_generate_start(session, prompts[i], len, &go));
        for (int k = 0; k < 1000 && r.run != HLLM_RUN_DONE; k++) OK(hllm_generate_poll(session, 1000, text, sizeof text, &r));
        CHECK_MSG(r.finish == HLLM_FINISH_LENGTH || r.finish == HLLM_FINISH_END_TOKEN, "prompt %zu: finish %u", i, r.finish);
    }
}

/* ---- structs ---- */

/* An options struct: too small, or larger with something in the unknown tail, is refused; a larger one with a clear tail is taken. */
#define SIZES_IN(type, call, where, name) do { \
    union { type v; unsigned char raw[sizeof(type) + 64]; } u; \
    const uint32_t wrong[] = { 0, 1, 4, sizeof(type) - 1, sizeof(type) - 4 }; \
    memset(&u, 0, sizeof u); \
    for (size_t i_ = 0; i_ < sizeof wrong / sizeof wrong[0]; i_++) { u.v.struct_size = wrong[i_]; WANT(call, HLLM_E_VERSION, where, name "|struct_size"); } \
    u.v.struct_size = sizeof u; \
    u.raw[sizeof u - 1] = 1; \
    WANT(call, HLLM_E_VERSION, where, name "|struct_size"); \
    u.v.struct_size = 0xFFFFFFFFu; \
    WANT(call, HLLM_E_VERSION, where, name "|struct_size"); } while (0)
/* A struct that comes out: too small is refused and untouched; a larger one is filled as far as it is known, the rest cleared. */
#define SIZES_OUT(type, call, where) do { \
    union { type v; unsigned char raw[sizeof(type) + 64]; } u; \
    const uint32_t wrong[] = { 0, 4, sizeof(type) - 1, 0xFFFFFFFFu }; \
    for (size_t i_ = 0; i_ < sizeof wrong / sizeof wrong[0]; i_++) { \
        memset(&u, 0xA5, sizeof u); \
        u.v.struct_size = wrong[i_]; \
        WANT(call, HLLM_E_VERSION, where, "struct_size"); \
        CHECK(u.raw[sizeof(type) - 1] == 0xA5 && u.raw[sizeof(type)] == 0xA5); } \
    memset(&u, 0xA5, sizeof u); \
    u.v.struct_size = sizeof(type); \
    OK(call); \
    CHECK(u.v.struct_size == sizeof(type) && u.raw[sizeof(type)] == 0xA5); \
    memset(&u, 0xA5, sizeof u); \
    u.v.struct_size = sizeof u; \
    OK(call); \
    for (size_t i_ = sizeof(type); i_ < sizeof u; i_++) CHECK(u.raw[i_] == 0); } while (0)

static void struct_sizes(void)
{
    hllm_runtime *r;
    hllm_model *m;
    hllm_engine *e;
    hllm_session *s;
    size_t n;
    char buf[64];
    int32_t tokens[4] = { 1, 5, 6, 7 };
    hllm_memory_need need = { .struct_size = sizeof need };
    hllm_chat_message message = { .struct_size = sizeof message, .role = "user", .content = "x", .content_bytes = 1 };
    hllm_chat_options chat = { .struct_size = sizeof chat, .template_name = "chatml" };
    SIZES_IN(hllm_runtime_options, hllm_runtime_create(&u.v, &r), ON_NONE, "");
    SIZES_IN(hllm_allocator, hllm_runtime_create(&(hllm_runtime_options){ .struct_size = sizeof(hllm_runtime_options), .allocator = &u.v }, &r), ON_NONE, "");
    SIZES_IN(hllm_model_options, hllm_model_open(rt, good_path, &u.v, &m), ON_RT, "options");
    SIZES_IN(hllm_engine_options, hllm_engine_create(model, &u.v, &e), ON_MODEL, "options");
    SIZES_IN(hllm_engine_options, hllm_model_memory(model, &u.v, NULL, &need), ON_MODEL, "options");
    SIZES_IN(hllm_session_options, hllm_model_memory(model, NULL, &u.v, &need), ON_MODEL, "options");
    SIZES_IN(hllm_session_options, hllm_session_create(engine, &u.v, &s), ON_ENGINE, "options");
    SIZES_IN(hllm_generate_options, hllm_generate_start(session, "a", 1, &u.v), ON_SESSION, "options");
    SIZES_IN(hllm_generate_options, hllm_generate_start_tokens(session, tokens, 4, &u.v), ON_SESSION, "options");
    SIZES_IN(hllm_chat_options, hllm_chat_render(model, &message, 1, &u.v, buf, sizeof buf, &n), ON_MODEL, "options");
    SIZES_IN(hllm_chat_message, hllm_chat_render(model, &u.v, 1, &chat, buf, sizeof buf, &n), ON_MODEL, "message");
    SIZES_OUT(hllm_machine_info, hllm_runtime_machine(rt, &u.v), ON_RT);
    SIZES_OUT(hllm_machine_speed, hllm_runtime_measure(rt, &u.v), ON_RT);
    SIZES_OUT(hllm_model_info, hllm_model_get_info(model, &u.v), ON_MODEL);
    SIZES_OUT(hllm_key_info, hllm_model_key(model, 0, &u.v), ON_MODEL);
    SIZES_OUT(hllm_tensor_info, hllm_model_tensor(model, 0, &u.v), ON_MODEL);
    SIZES_OUT(hllm_token_info, hllm_model_token(model, 0, &u.v), ON_MODEL);
    SIZES_OUT(hllm_memory_need, hllm_model_memory(model, NULL, NULL, &u.v), ON_MODEL);
    SIZES_OUT(hllm_session_info, hllm_session_get_info(session, &u.v), ON_SESSION);
    SIZES_OUT(hllm_poll_result, hllm_generate_poll(session, 0, buf, sizeof buf, &u.v), ON_SESSION);
    SIZES_OUT(hllm_run_stats, hllm_session_stats(session, &u.v), ON_SESSION);

    /* A larger struct with a clear tail, as a program built against a later header has it. */
    union { hllm_session_options v; unsigned char raw[sizeof(hllm_session_options) + 64]; } later = { .v = { .struct_size = sizeof later, .n_ctx = 8 } };
    OK(hllm_session_create(engine, &later.v, &s));
    hllm_session_free(s);
}

/* ---- NULL ---- */

#define NO(call, where, words) WANT(call, HLLM_E_ARG, where, words)

static void nulls_of_runtime(void)
{
    uint32_t level;
    uint64_t x;
    size_t n;
    char buf[64];
    hllm_progress *p = NULL;
    hllm_machine_info info = { .struct_size = sizeof info };
    hllm_machine_speed speed = { .struct_size = sizeof speed };
    hllm_model *m;
    NO(hllm_runtime_create(NULL, NULL), ON_NONE, "");
    hllm_runtime_free(NULL);
    CHECK(hllm_runtime_last_error(NULL, buf, sizeof buf) == 0);
    CHECK(hllm_runtime_last_error(rt, NULL, 0) > 0);
    NO(hllm_log_poll(NULL, &level, buf, sizeof buf, &n), ON_NONE, "");
    NO(hllm_log_poll(rt, NULL, buf, sizeof buf, &n), ON_RT, "level");
    NO(hllm_log_poll(rt, &level, buf, sizeof buf, NULL), ON_RT, "needed");
    NO(hllm_runtime_machine(NULL, &info), ON_NONE, "");
    NO(hllm_runtime_machine(rt, NULL), ON_RT, "out is NULL");
    NO(hllm_runtime_measure(NULL, &speed), ON_NONE, "");
    NO(hllm_runtime_measure(rt, NULL), ON_RT, "out is NULL");
    NO(hllm_progress_create(NULL, &p), ON_NONE, "");
    NO(hllm_progress_create(rt, NULL), ON_RT, "out is NULL");
    OK(hllm_progress_create(rt, &p));
    NO(hllm_progress_read(NULL, &x, &x), ON_NONE, "");
    NO(hllm_progress_read(p, NULL, &x), ON_NONE, "");
    NO(hllm_progress_read(p, &x, NULL), ON_NONE, "");
    NO(hllm_progress_cancel(NULL), ON_NONE, "");
    hllm_progress_free(p);
    hllm_progress_free(NULL);
    NO(hllm_model_open(NULL, good_path, NULL, &m), ON_NONE, "");
    NO(hllm_model_open(rt, NULL, NULL, &m), ON_RT, "path is NULL");
    NO(hllm_model_open(rt, good_path, NULL, NULL), ON_RT, "out is NULL");
    NO(hllm_model_open_fd(NULL, 0, 0, 0, NULL, &m), ON_NONE, "");
    NO(hllm_model_open_fd(rt, 0, 0, 0, NULL, NULL), ON_RT, "out is NULL");
    hllm_allocator half = { .struct_size = sizeof half };
    hllm_runtime *r = (hllm_runtime *)(uintptr_t)1;
    NO(hllm_runtime_create(&(hllm_runtime_options){ .struct_size = sizeof(hllm_runtime_options), .allocator = &half, .error_text = buf, .error_capacity = sizeof buf }, &r), ON_NONE, "");
    CHECK_MSG(r == NULL && hostile_says(buf, "alloc"), "%s", buf);
}

static void nulls_of_model(void)
{
    uint32_t index;
    int64_t i;
    double d;
    float f[32];
    int32_t tokens[8] = { 1, 5 };
    const char *text;
    char buf[64];
    size_t n;
    hllm_chat_message message = { .struct_size = sizeof message, .role = "user", .content = "x", .content_bytes = 1 };
    hllm_chat_options chat = { .struct_size = sizeof chat, .template_name = "chatml" };
    hllm_model_free(NULL);
    CHECK(hllm_model_last_error(NULL, buf, sizeof buf) == 0);
    NO(hllm_model_get_info(NULL, &(hllm_model_info){ .struct_size = sizeof(hllm_model_info) }), ON_NONE, "");
    NO(hllm_model_get_info(model, NULL), ON_MODEL, "out is NULL");
    NO(hllm_model_key(NULL, 0, &(hllm_key_info){ .struct_size = sizeof(hllm_key_info) }), ON_NONE, "");
    NO(hllm_model_key(model, 0, NULL), ON_MODEL, "out is NULL");
    NO(hllm_model_find_key(NULL, "x", &index), ON_NONE, "");
    NO(hllm_model_find_key(model, NULL, &index), ON_MODEL, "name is NULL");
    NO(hllm_model_find_key(model, "x", NULL), ON_MODEL, "index is NULL");
    NO(hllm_model_key_int(NULL, 0, 0, &i), ON_NONE, "");
    NO(hllm_model_key_int(model, 0, 0, NULL), ON_MODEL, "out is NULL");
    NO(hllm_model_key_float(NULL, 0, 0, &d), ON_NONE, "");
    NO(hllm_model_key_float(model, 0, 0, NULL), ON_MODEL, "out is NULL");
    NO(hllm_model_key_string(NULL, 0, 0, &text, &n), ON_NONE, "");
    NO(hllm_model_key_string(model, 0, 0, NULL, &n), ON_MODEL, "text is NULL");
    NO(hllm_model_key_string(model, 0, 0, &text, NULL), ON_MODEL, "bytes is NULL");
    NO(hllm_model_tensor(NULL, 0, &(hllm_tensor_info){ .struct_size = sizeof(hllm_tensor_info) }), ON_NONE, "");
    NO(hllm_model_tensor(model, 0, NULL), ON_MODEL, "out is NULL");
    NO(hllm_model_find_tensor(NULL, "x", &index), ON_NONE, "");
    NO(hllm_model_find_tensor(model, NULL, &index), ON_MODEL, "name is NULL");
    NO(hllm_model_find_tensor(model, "x", NULL), ON_MODEL, "index is NULL");
    NO(hllm_model_tensor_read(NULL, 0, 0, f, 32), ON_NONE, "");
    NO(hllm_model_tensor_read(model, 0, 0, NULL, 32), ON_MODEL, "out is NULL");
    NO(hllm_tokenize(NULL, "a", 1, 0, tokens, 8, &n), ON_NONE, "");
    NO(hllm_tokenize(model, NULL, 1, 0, tokens, 8, &n), ON_MODEL, "text is NULL");
    NO(hllm_tokenize(model, "a", 1, 0, NULL, 8, &n), ON_MODEL, "out is NULL");
    NO(hllm_tokenize(model, "a", 1, 0, tokens, 8, NULL), ON_MODEL, "n_out is NULL");
    OK(hllm_tokenize(model, NULL, 0, 0, tokens, 8, &n));
    WANT(hllm_tokenize(model, "a", 1, 0, NULL, 0, &n), HLLM_E_BUFFER, ON_NONE, "");
    CHECK(n > 0);
    NO(hllm_detokenize(NULL, tokens, 2, 0, buf, sizeof buf, &n), ON_NONE, "");
    NO(hllm_detokenize(model, NULL, 2, 0, buf, sizeof buf, &n), ON_MODEL, "tokens is NULL");
    NO(hllm_detokenize(model, tokens, 2, 0, NULL, 8, &n), ON_MODEL, "buf is NULL");
    NO(hllm_detokenize(model, tokens, 2, 0, buf, sizeof buf, NULL), ON_MODEL, "bytes_out is NULL");
    NO(hllm_model_token(NULL, 0, &(hllm_token_info){ .struct_size = sizeof(hllm_token_info) }), ON_NONE, "");
    NO(hllm_model_token(model, 0, NULL), ON_MODEL, "out is NULL");
    NO(hllm_model_special_token(NULL, 1, tokens), ON_NONE, "");
    NO(hllm_model_special_token(model, 1, NULL), ON_MODEL, "id is NULL");
    NO(hllm_chat_template(NULL, &text), ON_NONE, "");
    NO(hllm_chat_template(model, NULL), ON_MODEL, "name is NULL");
    NO(hllm_chat_render(NULL, &message, 1, &chat, buf, sizeof buf, &n), ON_NONE, "");
    NO(hllm_chat_render(model, NULL, 1, &chat, buf, sizeof buf, &n), ON_MODEL, "messages");
    NO(hllm_chat_render(model, &message, 1, &chat, NULL, 8, &n), ON_MODEL, "buf is NULL");
    NO(hllm_chat_render(model, &message, 1, &chat, buf, sizeof buf, NULL), ON_MODEL, "bytes_out is NULL");
    NO(hllm_chat_tokenize(NULL, &message, 1, &chat, tokens, 8, &n), ON_NONE, "");
    NO(hllm_chat_tokenize(model, NULL, 1, &chat, tokens, 8, &n), ON_MODEL, "messages");
    NO(hllm_chat_tokenize(model, &message, 1, &chat, NULL, 8, &n), ON_MODEL, "out is NULL");
    NO(hllm_chat_tokenize(model, &message, 1, &chat, tokens, 8, NULL), ON_MODEL, "n_out is NULL");
    message.role = NULL;
    NO(hllm_chat_render(model, &message, 1, &chat, buf, sizeof buf, &n), ON_MODEL, "role is NULL");
    message.role = "user";
    message.content = NULL;
    NO(hllm_chat_render(model, &message, 1, &chat, buf, sizeof buf, &n), ON_MODEL, "content is NULL");
    NO(hllm_model_memory(NULL, NULL, NULL, &(hllm_memory_need){ .struct_size = sizeof(hllm_memory_need) }), ON_NONE, "");
    NO(hllm_model_memory(model, NULL, NULL, NULL), ON_MODEL, "out is NULL");
}

static void nulls_of_session(void)
{
    hllm_engine *e;
    hllm_session *s;
    char buf[64];
    float f[288];
    int32_t tokens[8] = { 1, 5 };
    size_t n;
    hllm_poll_result r = { .struct_size = sizeof r };
    hllm_generate_options go = { .struct_size = sizeof go, .n_stop = 1, .stop = (const char *const[]){ NULL } };
    NO(hllm_engine_create(NULL, NULL, &e), ON_NONE, "");
    NO(hllm_engine_create(model, NULL, NULL), ON_MODEL, "out is NULL");
    hllm_engine_free(NULL);
    CHECK(hllm_engine_last_error(NULL, buf, sizeof buf) == 0);
    NO(hllm_session_create(NULL, NULL, &s), ON_NONE, "");
    NO(hllm_session_create(engine, NULL, NULL), ON_ENGINE, "out is NULL");
    hllm_session_free(NULL);
    CHECK(hllm_session_last_error(NULL, buf, sizeof buf) == 0);
    NO(hllm_session_get_info(NULL, &(hllm_session_info){ .struct_size = sizeof(hllm_session_info) }), ON_NONE, "");
    NO(hllm_session_get_info(session, NULL), ON_SESSION, "out is NULL");
    NO(hllm_session_tokens(NULL, tokens, 8, &n), ON_NONE, "");
    NO(hllm_session_tokens(session, NULL, 8, &n), ON_SESSION, "out is NULL");
    NO(hllm_session_tokens(session, tokens, 8, NULL), ON_SESSION, "n_out is NULL");
    NO(hllm_session_eval(NULL, tokens, 2), ON_NONE, "");
    NO(hllm_session_eval(session, NULL, 2), ON_SESSION, "tokens is NULL");
    NO(hllm_session_logits(NULL, 0, f, 288), ON_NONE, "");
    NO(hllm_session_logits(session, 0, NULL, 288), ON_SESSION, "out is NULL");
    NO(hllm_session_embedding(NULL, 0, f, 32), ON_NONE, "");
    NO(hllm_session_embedding(session, 0, NULL, 32), ON_SESSION, "out is NULL");
    NO(hllm_session_rewind(NULL, 0), ON_NONE, "");
    NO(hllm_session_fork(NULL, &s), ON_NONE, "");
    NO(hllm_session_fork(session, NULL), ON_SESSION, "out is NULL");
    NO(hllm_session_save(NULL, "x"), ON_NONE, "");
    NO(hllm_session_save(session, NULL), ON_SESSION, "path is NULL");
    NO(hllm_session_load(NULL, "x"), ON_NONE, "");
    NO(hllm_session_load(session, NULL), ON_SESSION, "path is NULL");
    NO(hllm_generate_start(NULL, "a", 1, NULL), ON_NONE, "");
    NO(hllm_generate_start(session, NULL, 1, NULL), ON_SESSION, "prompt is NULL");
    NO(hllm_generate_start(session, "a", 1, &go), ON_SESSION, "stop");
    go.stop = NULL;
    NO(hllm_generate_start(session, "a", 1, &go), ON_SESSION, "stop");
    go.n_stop = 0;
    go.n_bias = 1;
    NO(hllm_generate_start(session, "a", 1, &go), ON_SESSION, "bias");
    NO(hllm_generate_start_tokens(NULL, tokens, 2, NULL), ON_NONE, "");
    NO(hllm_generate_start_tokens(session, NULL, 2, NULL), ON_SESSION, "tokens is NULL");
    NO(hllm_generate_poll(NULL, 0, buf, sizeof buf, &r), ON_NONE, "");
    NO(hllm_generate_poll(session, 0, NULL, sizeof buf, &r), ON_SESSION, "buf is NULL");
    NO(hllm_generate_poll(session, 0, buf, sizeof buf, NULL), ON_SESSION, "out is NULL");
    NO(hllm_generate_poll(session, 0, buf, 4, &r), ON_SESSION, "cap is 4|5");
    NO(hllm_generate_poll_tokens(NULL, NULL, NULL, 0, &n), ON_NONE, "");
    NO(hllm_generate_poll_tokens(session, NULL, NULL, 4, &n), ON_SESSION, "records is NULL");
    NO(hllm_generate_poll_tokens(session, NULL, NULL, 0, NULL), ON_SESSION, "n_out is NULL");
    NO(hllm_generate_logits(NULL, f, 288), ON_NONE, "");
    NO(hllm_generate_logits(session, NULL, 288), ON_SESSION, "out is NULL");
    NO(hllm_generate_continue(NULL, NULL, 0), ON_NONE, "");
    WANT(hllm_generate_continue(session, NULL, 0), HLLM_E_STATE, ON_SESSION, "");
    NO(hllm_generate_cancel(NULL), ON_NONE, "");
    NO(hllm_session_stats(NULL, &(hllm_run_stats){ .struct_size = sizeof(hllm_run_stats) }), ON_NONE, "");
    NO(hllm_session_stats(session, NULL), ON_SESSION, "out is NULL");
}

/* After everything above the same handles compute what fresh ones compute. */
static void still_works(const float *want)
{
    float f[GF_SPM_VOCAB];
    OK(hllm_session_rewind(session, 0));
    OK(hllm_session_eval(session, (const int32_t[]){ 1, 260, 263 }, 3));
    OK(hllm_session_logits(session, 2, f, GF_SPM_VOCAB));
    CHECK(memcmp(f, want, sizeof f) == 0);
}

int main(void)
{
    float want[GF_SPM_VOCAB];
    hllm_runtime_options ro = { .struct_size = sizeof ro, .n_threads = 2 };
    gguf_file *f = gf_llama();
    gbuf b = gf_write(f, NULL);
    hostile_dir_make();
    snprintf(bad_path, sizeof bad_path, "%s", hostile_path("bad.gguf"));
    snprintf(good_path, sizeof good_path, "%s", hostile_path("good.gguf"));
    hostile_write(good_path, b.p, b.n, 0);
    gb_free(&b);
    gf_free(f);
    REQUIRE(hllm_runtime_create(&ro, &rt) == HLLM_OK);
    REQUIRE(hllm_model_open(rt, good_path, NULL, &model) == HLLM_OK);
    REQUIRE(hllm_engine_create(model, NULL, &engine) == HLLM_OK);
    REQUIRE(hllm_session_create(engine, NULL, &session) == HLLM_OK);
    OK(hllm_session_eval(session, (const int32_t[]){ 1, 260, 263 }, 3));
    OK(hllm_session_logits(session, 2, want, GF_SPM_VOCAB));
    OK(hllm_session_rewind(session, 0));
    bad_files();
    nan_weights(HLLM_ACT_Q8);
    nan_weights(HLLM_ACT_F32);
    bad_numbers();
    bad_utf8();
    OK(hllm_session_rewind(session, 0));
    struct_sizes();
    nulls_of_runtime();
    nulls_of_model();
    nulls_of_session();
    still_works(want);
    hllm_session_free(session);
    hllm_engine_free(engine);
    hllm_model_free(model);
    hllm_runtime_free(rt);
    unlink(bad_path);
    unlink(good_path);
    hostile_dir_remove();
    return check_done();
}
