/* api_contract.c: the header's rules at its border: NULL handles and arguments, struct sizes, unknown flags, buffers that are too small, cleared
 * outputs, texts in the right handle. */
#include "run_common.h"

static setup u;
static hllm_session *s;
static char why[600];

/* A call that must fail with this code, and whose text (in the handle) has this word. */
#define FAILS(code, call, last_error, handle, word) do { hllm_status rc_ = (call); CHECK_MSG(rc_ == (code), "%s: %s", #call, hllm_status_name(rc_)); \
    why[0] = 0; last_error(handle, why, sizeof why); CHECK_MSG(strstr(why, word), "%s: \"%s\" has no \"%s\"", #call, why, word); } while (0)
#define RT(code, call, word) FAILS(code, call, hllm_runtime_last_error, u.rt, word)
#define M(code, call, word)  FAILS(code, call, hllm_model_last_error, u.m, word)
#define E(code, call, word)  FAILS(code, call, hllm_engine_last_error, u.e, word)
#define S(code, call, word)  FAILS(code, call, hllm_session_last_error, s, word)

/* An output struct of the wrong size, of the right one, of a later version. */
#define SIZES(type, last_error, handle, call) do { \
    struct { type v; unsigned char tail[64]; } x; \
    memset(&x, 0xee, sizeof x); x.v.struct_size = 0; \
    { type *out = &x.v; FAILS(HLLM_E_VERSION, call, last_error, handle, "struct_size is 0"); } \
    x.v.struct_size = sizeof(type) - 4; \
    { type *out = &x.v; FAILS(HLLM_E_VERSION, call, last_error, handle, "struct_size"); } \
    x.v.struct_size = 1u << 31; \
    { type *out = &x.v; FAILS(HLLM_E_VERSION, call, last_error, handle, "struct_size is 2147483648"); } \
    x.v.struct_size = sizeof x; \
    { type *out = &x.v; CHECK_MSG((call) == HLLM_OK, "%s", #call); CHECK(x.v.struct_size == sizeof x); } \
    for (size_t i = 0; i < sizeof x.tail; i++) CHECK_MSG(x.tail[i] == 0, "%s", #call);       /* what we do not know is 0 */ \
    { type *out = NULL; FAILS(HLLM_E_ARG, call, last_error, handle, "out is NULL"); } } while (0)

/* Options of the wrong size, with a tail that is zero, with one that is not. */
#define OPTIONS(type, last_error, handle, call, undo) do { \
    struct { type v; unsigned char tail[40]; } x; \
    memset(&x, 0, sizeof x); \
    { const type *opt = &x.v; FAILS(HLLM_E_VERSION, call, last_error, handle, "struct_size is 0"); } \
    x.v.struct_size = sizeof x; \
    { const type *opt = &x.v; CHECK_MSG((call) == HLLM_OK, "%s", #call); undo; } \
    x.tail[39] = 1; \
    { const type *opt = &x.v; FAILS(HLLM_E_VERSION, call, last_error, handle, "struct_size"); } \
    x.v.struct_size = UINT32_MAX; \
    { const type *opt = &x.v; FAILS(HLLM_E_VERSION, call, last_error, handle, "4294967295"); } \
    { const type *opt = NULL; CHECK_MSG((call) == HLLM_OK, "%s", #call); undo; } } while (0)

static void null_handles(void)
{
    void *p = &p;
    uint32_t x;
    int32_t t;
    size_t n;
    int64_t i;
    double d;
    float f;
    char b[8];
    const char *c;
    hllm_poll_result r = { .struct_size = sizeof r };
#define ARG(call) CHECK_MSG((call) == HLLM_E_ARG, "%s", #call)
    ARG(hllm_runtime_create(NULL, NULL)); ARG(hllm_log_poll(NULL, &x, b, 8, &n)); ARG(hllm_runtime_machine(NULL, NULL)); ARG(hllm_runtime_measure(NULL, NULL));
    ARG(hllm_progress_create(NULL, NULL)); ARG(hllm_progress_read(NULL, NULL, NULL)); ARG(hllm_progress_cancel(NULL)); ARG(hllm_model_open(NULL, "x", NULL, NULL));
    ARG(hllm_model_open_fd(NULL, 0, 0, 0, NULL, NULL)); ARG(hllm_model_get_info(NULL, NULL)); ARG(hllm_model_key(NULL, 0, NULL)); ARG(hllm_model_find_key(NULL, "x", &x));
    ARG(hllm_model_key_int(NULL, 0, 0, &i)); ARG(hllm_model_key_float(NULL, 0, 0, &d)); ARG(hllm_model_key_string(NULL, 0, 0, &c, &n)); ARG(hllm_model_tensor(NULL, 0, NULL));
    ARG(hllm_model_find_tensor(NULL, "x", &x)); ARG(hllm_model_tensor_read(NULL, 0, 0, &f, 1)); ARG(hllm_tokenize(NULL, "x", 1, 0, &t, 1, &n)); ARG(hllm_detokenize(NULL, &t, 1, 0, b, 8, &n));
    ARG(hllm_model_token(NULL, 0, NULL)); ARG(hllm_model_special_token(NULL, 1, &t)); ARG(hllm_chat_template(NULL, &c)); ARG(hllm_chat_render(NULL, NULL, 0, NULL, b, 8, &n));
    ARG(hllm_chat_tokenize(NULL, NULL, 0, NULL, &t, 1, &n)); ARG(hllm_model_memory(NULL, NULL, NULL, NULL)); ARG(hllm_engine_create(NULL, NULL, NULL)); ARG(hllm_session_create(NULL, NULL, NULL));
    ARG(hllm_session_get_info(NULL, NULL)); ARG(hllm_session_tokens(NULL, &t, 1, &n)); ARG(hllm_session_eval(NULL, &t, 1)); ARG(hllm_session_logits(NULL, 0, &f, 1));
    ARG(hllm_session_embedding(NULL, 0, &f, 1)); ARG(hllm_session_rewind(NULL, 0)); ARG(hllm_session_fork(NULL, NULL)); ARG(hllm_session_save(NULL, "x")); ARG(hllm_session_load(NULL, "x"));
    ARG(hllm_generate_start(NULL, "x", 1, NULL)); ARG(hllm_generate_start_tokens(NULL, &t, 1, NULL)); ARG(hllm_generate_poll(NULL, 0, b, 8, &r)); ARG(hllm_generate_poll_tokens(NULL, NULL, NULL, 0, &n));
    ARG(hllm_generate_logits(NULL, &f, 1)); ARG(hllm_generate_continue(NULL, NULL, 0)); ARG(hllm_generate_cancel(NULL)); ARG(hllm_session_stats(NULL, NULL));
    CHECK(hllm_runtime_last_error(NULL, b, 8) == 0 && hllm_model_last_error(NULL, b, 8) == 0 && hllm_engine_last_error(NULL, b, 8) == 0 && hllm_session_last_error(NULL, b, 8) == 0);
    (void)p;
}

static void null_arguments(void)
{
    uint32_t x = 7;
    int32_t t = 7;
    size_t n = 7;
    float f;
    char b[8];
    const char *c;
    int64_t i;
    double d;
    hllm_poll_result r = { .struct_size = sizeof r };
    RT(HLLM_E_ARG, hllm_log_poll(u.rt, NULL, b, 8, &n), "level"); RT(HLLM_E_ARG, hllm_log_poll(u.rt, &x, b, 8, NULL), "needed"); RT(HLLM_E_ARG, hllm_progress_create(u.rt, NULL), "out");
    RT(HLLM_E_ARG, hllm_model_open(u.rt, "x", NULL, NULL), "out");
    hllm_model *m = (hllm_model *)1;
    RT(HLLM_E_ARG, hllm_model_open(u.rt, NULL, NULL, &m), "path"); CHECK(m == NULL);
    m = (hllm_model *)1;
    RT(HLLM_E_ARG, hllm_model_open(u.rt, "\xff", NULL, &m), "UTF-8"); CHECK(m == NULL);
    m = (hllm_model *)1;
    RT(HLLM_E_ARG, hllm_model_open(u.rt, "x", &(hllm_model_options){ .struct_size = sizeof(hllm_model_options), .flags = 16 }, &m), "flags"); CHECK(m == NULL);
    M(HLLM_E_ARG, hllm_model_find_key(u.m, "x", NULL), "index"); M(HLLM_E_ARG, hllm_model_find_key(u.m, NULL, &x), "name"); M(HLLM_E_NOT_FOUND, hllm_model_find_key(u.m, "no.such.key", &x), "no.such.key");
    CHECK(x == 0);
    M(HLLM_E_ARG, hllm_model_key_int(u.m, 0, 0, NULL), "out"); M(HLLM_E_ARG, hllm_model_key_float(u.m, 0, 0, NULL), "out"); M(HLLM_E_ARG, hllm_model_key_string(u.m, 0, 0, NULL, &n), "text");
    M(HLLM_E_ARG, hllm_model_key_string(u.m, 0, 0, &c, NULL), "bytes"); M(HLLM_E_ARG, hllm_model_key_int(u.m, 100000, 0, &i), "100000"); M(HLLM_E_ARG, hllm_model_key_float(u.m, 0, 99, &d), "99");
    M(HLLM_E_NOT_FOUND, hllm_model_find_tensor(u.m, "nope", &x), "nope"); M(HLLM_E_ARG, hllm_model_tensor_read(u.m, 0, 0, NULL, 32), "out"); M(HLLM_E_ARG, hllm_model_tensor_read(u.m, 99999, 0, &f, 1), "99999");
    M(HLLM_E_ARG, hllm_tokenize(u.m, NULL, 3, 0, &t, 1, &n), "text"); CHECK(n == 0); n = 7;
    M(HLLM_E_ARG, hllm_tokenize(u.m, "abc", 3, 8, &t, 1, &n), "0x8"); CHECK(n == 0); M(HLLM_E_ARG, hllm_tokenize(u.m, "abc", 3, 0, NULL, 1, &n), "out"); M(HLLM_E_ARG, hllm_tokenize(u.m, "abc", 3, 0, &t, 1, NULL), "n_out");
    M(HLLM_E_LIMIT, hllm_tokenize(u.m, "abc", (size_t)2 << 30, 0, &t, 1, &n), "2147483648");
    M(HLLM_E_BUFFER, hllm_tokenize(u.m, story, 100, 0, &t, 1, &n), "small"); CHECK(n > 10);
    t = (int32_t)u.n_vocab;
    M(HLLM_E_ARG, hllm_detokenize(u.m, &t, 1, 0, b, 8, &n), "vocabulary"); CHECK(n == 0);
    M(HLLM_E_ARG, hllm_model_special_token(u.m, 0, &t), "kind"); CHECK(t == -1);
    hllm_engine *e = (hllm_engine *)1;
    M(HLLM_E_ARG, hllm_engine_create(u.m, NULL, NULL), "out");
    M(HLLM_E_ARG, hllm_engine_create(u.m, &(hllm_engine_options){ .struct_size = sizeof(hllm_engine_options), .load = 3 }, &e), "load is 3"); CHECK(e == NULL);
    M(HLLM_E_ARG, hllm_engine_create(u.m, &(hllm_engine_options){ .struct_size = sizeof(hllm_engine_options), .act = 2 }, &e), "act is 2");
    M(HLLM_E_ARG, hllm_engine_create(u.m, &(hllm_engine_options){ .struct_size = sizeof(hllm_engine_options), .flags = 1 }, &e), "flags");
    hllm_session *v = (hllm_session *)1;
    E(HLLM_E_ARG, hllm_session_create(u.e, NULL, NULL), "out");
    E(HLLM_E_ARG, hllm_session_create(u.e, &(hllm_session_options){ .struct_size = sizeof(hllm_session_options), .n_ctx = 513 }, &v), "512"); CHECK(v == NULL && strstr(why, "513"));
    E(HLLM_E_ARG, hllm_session_create(u.e, &(hllm_session_options){ .struct_size = sizeof(hllm_session_options), .kv = 3 }, &v), "kv is 3");
    E(HLLM_E_ARG, hllm_session_create(u.e, &(hllm_session_options){ .struct_size = sizeof(hllm_session_options), .micro_batch = 5000 }, &v), "5000"); CHECK(strstr(why, "4096"));
    S(HLLM_E_ARG, hllm_session_tokens(s, NULL, 1, &n), "out"); S(HLLM_E_ARG, hllm_session_tokens(s, &t, 1, NULL), "n_out"); S(HLLM_E_ARG, hllm_session_eval(s, NULL, 1), "tokens");
    S(HLLM_E_BUFFER, hllm_session_tokens(s, &t, 1, &n), "small"); CHECK(n == 3); CHECK(hllm_session_tokens(s, NULL, 0, &n) == HLLM_E_BUFFER && n == 3);
    S(HLLM_E_ARG, hllm_session_logits(s, 0, NULL, u.n_vocab), "out"); S(HLLM_E_ARG, hllm_session_embedding(s, 0, &f, u.n_embd + 1), "width"); S(HLLM_E_STATE, hllm_session_logits(s, 3, &f, u.n_vocab), "position 3");
    S(HLLM_E_ARG, hllm_session_fork(s, NULL), "out"); S(HLLM_E_ARG, hllm_session_save(s, NULL), "path"); S(HLLM_E_ARG, hllm_session_load(s, "\xc0"), "UTF-8");
    S(HLLM_E_ARG, hllm_generate_start(s, NULL, 1, NULL), "prompt"); S(HLLM_E_ARG, hllm_generate_start_tokens(s, NULL, 1, NULL), "tokens");
    memset(b, 'x', sizeof b);
    S(HLLM_E_ARG, hllm_generate_poll(s, 0, b, 4, &r), "cap is 4"); CHECK(b[0] == 0);
    S(HLLM_E_ARG, hllm_generate_poll(s, 0, NULL, 8, &r), "buf"); S(HLLM_E_ARG, hllm_generate_poll(s, -2, b, 8, &r), "-2"); S(HLLM_E_ARG, hllm_generate_poll(s, 0, b, 8, NULL), "out");
    CHECK(hllm_generate_poll(s, 0, b, 5, &r) == HLLM_OK);
    S(HLLM_E_ARG, hllm_generate_poll_tokens(s, NULL, NULL, 1, &n), "records"); S(HLLM_E_ARG, hllm_generate_poll_tokens(s, NULL, NULL, 0, NULL), "n_out"); CHECK(hllm_generate_poll_tokens(s, NULL, NULL, 0, &n) == HLLM_OK && n == 0);
    S(HLLM_E_ARG, hllm_generate_logits(s, NULL, u.n_vocab), "out"); S(HLLM_E_ARG, hllm_generate_continue(s, (const uint8_t *)b, 1), "allowed");
}

static void sizes(void)
{
    hllm_memory_need need = { .struct_size = sizeof need };
    char b[8];
    SIZES(hllm_machine_info, hllm_runtime_last_error, u.rt, hllm_runtime_machine(u.rt, out));
    SIZES(hllm_model_info, hllm_model_last_error, u.m, hllm_model_get_info(u.m, out));
    SIZES(hllm_key_info, hllm_model_last_error, u.m, hllm_model_key(u.m, 0, out));
    SIZES(hllm_tensor_info, hllm_model_last_error, u.m, hllm_model_tensor(u.m, 0, out));
    SIZES(hllm_token_info, hllm_model_last_error, u.m, hllm_model_token(u.m, 0, out));
    SIZES(hllm_memory_need, hllm_model_last_error, u.m, hllm_model_memory(u.m, NULL, NULL, out));
    SIZES(hllm_session_info, hllm_session_last_error, s, hllm_session_get_info(s, out));
    SIZES(hllm_run_stats, hllm_session_last_error, s, hllm_session_stats(s, out));
    SIZES(hllm_poll_result, hllm_session_last_error, s, hllm_generate_poll(s, 0, b, 8, out));
    hllm_model *m = NULL;
    hllm_engine *e = NULL;
    hllm_session *v = NULL;
    const char *path = test_path("models/tiny-relu2-q8_0.gguf");
    OPTIONS(hllm_model_options, hllm_runtime_last_error, u.rt, hllm_model_open(u.rt, path, opt, &m), hllm_model_free(m));
    OPTIONS(hllm_engine_options, hllm_model_last_error, u.m, hllm_engine_create(u.m, opt, &e), hllm_engine_free(e));
    OPTIONS(hllm_session_options, hllm_engine_last_error, u.e, hllm_session_create(u.e, opt, &v), hllm_session_free(v));
    OPTIONS(hllm_engine_options, hllm_model_last_error, u.m, hllm_model_memory(u.m, opt, NULL, &need), (void)0);
    OPTIONS(hllm_session_options, hllm_model_last_error, u.m, hllm_model_memory(u.m, NULL, opt, &need), (void)0);
    v = session_of(&u, 64, 0, 0);
    OPTIONS(hllm_generate_options, hllm_session_last_error, v, hllm_generate_start(v, "a", 1, opt), hllm_generate_cancel(v); poll_all(v, NULL, 0));
    hllm_session_free(v);
    /* The runtime has no handle yet: its text goes where the options say. */
    hllm_runtime *rt = (hllm_runtime *)1;
    hllm_runtime_options o = { .struct_size = sizeof o, .n_threads = 5000, .error_text = why, .error_capacity = sizeof why };
    CHECK(hllm_runtime_create(&o, &rt) == HLLM_E_ARG && rt == NULL && strstr(why, "5000") && strstr(why, "1024"));
    o.n_threads = 1;
    o.isa = "sse9";
    rt = (hllm_runtime *)1;
    CHECK(hllm_runtime_create(&o, &rt) == HLLM_E_UNSUPPORTED && rt == NULL && strstr(why, "sse9") && strstr(why, "scalar"));
    o.isa = "scalar";
    CHECK(hllm_runtime_create(&o, &rt) == HLLM_OK);
    hllm_runtime_free(rt);
    o.struct_size = 8;
    rt = (hllm_runtime *)1;
    CHECK(hllm_runtime_create(&o, &rt) == HLLM_E_VERSION && rt == NULL);
}

static void vocabulary_only(void)
{
    hllm_model *m = NULL;
    hllm_engine *e = (hllm_engine *)1;
    hllm_memory_need need = { .struct_size = sizeof need };
    OK_RT(hllm_model_open(u.rt, test_path("models/tiny-relu2-q8_0.gguf"), &(hllm_model_options){ .struct_size = sizeof(hllm_model_options), .flags = HLLM_MODEL_VOCAB_ONLY }, &m), u.rt);
    FAILS(HLLM_E_STATE, hllm_engine_create(m, NULL, &e), hllm_model_last_error, m, "vocabulary");
    CHECK(e == NULL);
    FAILS(HLLM_E_STATE, hllm_model_memory(m, NULL, NULL, &need), hllm_model_last_error, m, "vocabulary");
    hllm_model_free(m);
}

static void machine(void)
{
    hllm_machine_info i = { .struct_size = sizeof i };
    hllm_machine_speed v = { .struct_size = sizeof v };
    uint32_t level;
    size_t needed;
    OK_RT(hllm_runtime_machine(u.rt, &i), u.rt);
    CHECK(i.n_threads == 2 && i.n_cores >= 1 && i.n_cores <= i.n_cpus && i.n_cpus <= (uint32_t)sysconf(_SC_NPROCESSORS_CONF));
    CHECK(i.memory_available_bytes > 0 && i.memory_available_bytes <= i.memory_bytes && i.memory_bytes <= (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) + (1u << 30));
    CHECK_MSG(i.cpu[0] && strstr(i.isa_known, i.isa) == i.isa_known && strstr(i.isa_known, "scalar"), "%s: %s of %s", i.cpu, i.isa, i.isa_known);
    OK_RT(hllm_runtime_measure(u.rt, &v), u.rt);
    CHECK_MSG(v.read_bytes_per_s > 1e7 && v.read_bytes_per_s < 1e13 && v.int8_ops_per_s > 1e6 && v.int8_ops_per_s < 1e15, "%g, %g", v.read_bytes_per_s, v.int8_ops_per_s);
    CHECK(hllm_log_poll(u.rt, &level, NULL, 0, &needed) == (needed ? HLLM_E_BUFFER : HLLM_OK));
    snprintf(why, sizeof why, "%d.%d.%d", HLLM_VERSION_MAJOR, HLLM_VERSION_MINOR, HLLM_VERSION_PATCH);
    CHECK(strcmp(hllm_version(), why) == 0);
}

int main(void)
{
    null_handles();
    u = setup_tiny(2);
    s = session_of(&u, 64, 0, 0);
    int32_t three[] = { 1, 2, 3 };
    OK_S(hllm_session_eval(s, three, 3), s);
    null_arguments();
    sizes();
    vocabulary_only();
    machine();
    hllm_session_free(s);
    setup_free(&u);
    return check_done();
}
