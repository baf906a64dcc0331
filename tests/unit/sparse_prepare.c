/* A file prepared from the shipped model: the same model with its neurons in another order, whose modes give what they promise.
 *
 * exact against dense and against the original; predicted against exact, in perplexity and in bytes read; the same bits for any number of threads, and
 * however a text is cut into micro-batches (which takes other operators); hostile texts, full disks and cancelling, with the old file intact. */
#include <math.h>
#include <sys/resource.h>

#include "run_common.h"

static const char original[] = "models/tiny-relu2-q8_0.gguf";
static char made[256], plain[256];

static char *read_text(const char *path, size_t most, size_t *n)
{
    FILE *f = fopen(test_path(path), "rb");
    REQUIRE(f);
    char *s = malloc(most + 1);
    *n = fread(s, 1, most, f);
    fclose(f);
    return s;
}

static hllm_status prepare(hllm_model *m, const char *path, const char *text, size_t n, uint32_t flags, hllm_progress *p)
{
    return hllm_prepare(m, path, &(hllm_prepare_options){ .struct_size = sizeof(hllm_prepare_options), .flags = flags, .text = text, .text_bytes = n, .progress = p });
}

static setup open_mode(const char *path, uint32_t mode, uint32_t threads)
{
    return setup_file(path, threads, NULL, &(hllm_engine_options){ .struct_size = sizeof(hllm_engine_options), .mode = mode });
}

/* Logits of all positions of n tokens, computed `batch` at a time. */
static float *all_logits(const setup *u, const int32_t *tokens, uint32_t n, uint32_t batch)
{
    hllm_session *s = session_of(u, 512, 0, batch);
    float *out = malloc((size_t)n * u->n_vocab * sizeof *out);
    for (uint32_t at = 0; at < n; at += batch) {
        const uint32_t some = n - at < batch ? n - at : batch;
        OK_S(hllm_session_eval(s, tokens + at, some), s);
        for (uint32_t i = at; i < at + some; i++) OK_S(hllm_session_logits(s, i, out + (size_t)i * u->n_vocab, u->n_vocab), s);
    }
    hllm_session_free(s);
    return out;
}

static double log_prob(const float *l, uint32_t n, int32_t id)
{
    double top = -INFINITY, sum = 0;
    for (uint32_t j = 0; j < n; j++) top = fmax(top, l[j]);
    for (uint32_t j = 0; j < n; j++) sum += exp(l[j] - top);
    return l[id] - top - log(sum);
}

/* exact and dense: the same greedy tokens and log-probabilities to 1e-4; the original's are near. */
static void check_exact(const char *path)
{
    enum { N = 96 };
    setup d = open_mode(path, HLLM_MODE_DENSE, 2), e = open_mode(path, HLLM_MODE_EXACT, 2), o = setup_tiny(2);
    int32_t tokens[N], a[48], b[48];
    double worst = 0, off = 0;
    text_tokens(&o, tokens, N);
    float *ld = all_logits(&d, tokens, N, N), *le = all_logits(&e, tokens, N, 1), *lo = all_logits(&o, tokens, N, N);
    for (uint32_t i = 0; i + 1 < N; i++)
        for (int32_t id = 0; id < (int32_t)d.n_vocab; id += 97) {
            const size_t at = (size_t)i * d.n_vocab;
            worst = fmax(worst, fabs(log_prob(ld + at, d.n_vocab, id) - log_prob(le + at, d.n_vocab, id)));
            off += fabs(log_prob(ld + at, d.n_vocab, tokens[i + 1]) - log_prob(lo + at, d.n_vocab, tokens[i + 1])) / N / (d.n_vocab / 97 + 1);
        }
    CHECK_MSG(worst <= 1e-4, "log-probabilities differ by %g", worst);
    CHECK_MSG(off > 0 && off < 0.05, "the original's log-probabilities differ by %g on average", off);
    hllm_session *sd = session_of(&d, 256, 0, 0), *se = session_of(&e, 256, 0, 0);
    greedy(sd, tokens, 20, 0, a, 48);
    greedy(se, tokens, 20, 0, b, 48);
    CHECK(same_tokens(a, b, 48));
    hllm_run_stats s = { .struct_size = sizeof s };
    OK_S(hllm_session_stats(se, &s), se);
    CHECK_MSG(!strcmp(s.mode, "exact") && s.active_share > 0.05 && s.active_share < 0.2 && s.active_share == s.true_share, "%s %g", s.mode, s.active_share);
    const uint64_t exact_bytes = s.ffn_bytes_per_token;
    OK_S(hllm_session_stats(sd, &s), sd);
    CHECK_MSG(!strcmp(s.mode, "dense") && s.active_share == 1 && exact_bytes < 0.65 * (double)s.ffn_bytes_per_token, "%s %g", s.mode, s.active_share);
    hllm_session_free(sd); hllm_session_free(se);
    free(ld); free(le); free(lo);
    setup_free(&d); setup_free(&e); setup_free(&o);
}

/* However many threads, and however the text is cut. */
static void check_bits(const char *path, uint32_t mode)
{
    enum { N = 40 };
    int32_t tokens[N];
    float *first = NULL;
    for (uint32_t threads = 1; threads <= 4; threads++) {
        setup u = open_mode(path, mode, threads);
        text_tokens(&u, tokens, N);
        for (uint32_t batch = 1; batch <= N; batch = batch * 3 + 2) {
            float *l = all_logits(&u, tokens, N, batch);
            if (!first) { first = l; continue; }
            CHECK_MSG(memcmp(first, l, (size_t)N * u.n_vocab * sizeof *l) == 0, "mode %u: %u threads, %u tokens at a time: other bits", mode, threads, batch);
            free(l);
        }
        setup_free(&u);
    }
    free(first);
}

/* Neurons from hot to cold, and a report that adds up. */
static void check_file(const char *path, int predictors)
{
    hllm_runtime *rt = NULL;
    hllm_model *m = NULL;
    hllm_model_info info = { .struct_size = sizeof info };
    hllm_sparse_info s = { .struct_size = sizeof s };
    OK_RT(hllm_runtime_create(NULL, &rt), rt);
    OK_RT(hllm_model_open(rt, path, NULL, &m), rt);
    OK_M(hllm_model_get_info(m, &info), m);
    OK_M(hllm_model_get_sparse(m, &s), m);
    CHECK(s.by_neurons == 1 && !s.powerinfer && !strcmp(s.act, "relu2") && s.n_tokens > 1000);
    CHECK_MSG((s.n_predictors > 0) == predictors && (s.n_measured > 0) == predictors, "%u predictors", s.n_predictors);
    for (uint32_t il = 0; il < info.n_layers; il++) {
        hllm_sparse_layer l = { .struct_size = sizeof l };
        char name[64];
        uint32_t index;
        double sum = 0;
        OK_M(hllm_model_get_sparse_layer(m, il, &l), m);
        snprintf(name, sizeof name, "blk.%u.ffn_heat.weight", il);
        OK_M(hllm_model_find_tensor(m, name, &index), m);
        float *heat = malloc(l.n_neurons * sizeof *heat);
        OK_M(hllm_model_tensor_read(m, index, 0, heat, l.n_neurons), m);
        for (uint32_t i = 1; i < l.n_neurons; i++) CHECK(heat[i] <= heat[i - 1]);
        for (uint32_t i = 0; i < l.n_neurons; i++) sum += heat[i];
        CHECK_MSG(fabs(sum / l.n_neurons / (double)s.n_tokens - l.active) < 1e-4, "layer %u: active %g, by its counts %g", il, l.active, sum / l.n_neurons / (double)s.n_tokens);
        CHECK(l.hot80 > 0 && l.hot80 <= 0.8 && l.overlap > 0.2 && l.overlap <= 1 && l.bytes_exact < l.bytes_dense);
        if (l.n_pred) CHECK(l.predicted > l.active * l.recall && l.recall > 0.5 && l.energy_kept > 0.99 && l.bytes_predicted < l.bytes_exact);
        free(heat);
    }
    hllm_model_free(m);
    hllm_runtime_free(rt);
}

static double loss(const setup *u, const int32_t *tokens, uint32_t n, hllm_run_stats *stats)
{
    enum { WINDOW = 256 };
    hllm_session *s = session_of(u, WINDOW, 0, WINDOW);
    float *l = malloc(u->n_vocab * sizeof *l);
    double sum = 0;
    uint32_t count = 0;
    for (uint32_t at = 0; at + WINDOW <= n; at += WINDOW) {
        OK_S(hllm_session_rewind(s, 0), s);
        OK_S(hllm_session_eval(s, tokens + at, WINDOW), s);
        for (uint32_t i = 0; i + 1 < WINDOW; i++, count++) {
            OK_S(hllm_session_logits(s, i, l, u->n_vocab), s);
            sum -= log_prob(l, u->n_vocab, tokens[at + i + 1]);
        }
    }
    OK_S(hllm_session_stats(s, stats), s);
    hllm_session_free(s);
    free(l);
    return sum / count;
}

/* On a text that it was not made from: what is lost is small, what is not read is much. */
static void check_predicted(const char *path)
{
    enum { N = 4096 };
    size_t n = 0, n_tokens = 0;
    char *text = read_text("tests/data/text/check.txt", 24000, &n);
    static int32_t tokens[16384];
    hllm_run_stats se = { .struct_size = sizeof se }, sp = { .struct_size = sizeof sp };
    setup e = open_mode(path, HLLM_MODE_EXACT, 2), p = open_mode(path, HLLM_MODE_PREDICTED, 2);
    OK_M(hllm_tokenize(e.m, text, n, 0, tokens, 16384, &n_tokens), e.m);
    REQUIRE(n_tokens >= N);
    const double a = loss(&e, tokens, N, &se), b = loss(&p, tokens, N, &sp);
    CHECK_MSG(fabs(b - a) < 0.02, "loss %g, exact %g", b, a);
    CHECK_MSG((double)sp.ffn_bytes_per_token < 0.5 * (double)se.ffn_bytes_per_token, "%llu bytes, exact %llu", (unsigned long long)sp.ffn_bytes_per_token, (unsigned long long)se.ffn_bytes_per_token);
    CHECK_MSG(!strcmp(sp.mode, "predicted") && sp.active_share > sp.true_share && sp.true_share < se.true_share && sp.true_share > 0.7 * se.true_share, "shares %g %g, exact %g",
              sp.active_share, sp.true_share, se.true_share);
    setup_free(&e); setup_free(&p);
    free(text);
}

static int same_file(const char *path, const char *bytes, size_t n)
{
    char buf[64];
    FILE *f = fopen(path, "rb");
    const size_t got = f ? fread(buf, 1, sizeof buf, f) : 0;
    if (f) fclose(f);
    return got == n && memcmp(buf, bytes, n) == 0;
}

static void check_hostile(const char *text, size_t n)
{
    hllm_runtime *rt = NULL;
    hllm_model *m = NULL, *again = NULL;
    hllm_progress *p = NULL;
    char why[512], old[320];
    struct rlimit keep, low;
    OK_RT(hllm_runtime_create(NULL, &rt), rt);
    OK_RT(hllm_model_open(rt, test_path(original), NULL, &m), rt);
    snprintf(old, sizeof old, "%s.old", made);
    FILE *f = fopen(old, "wb");
    fputs("the old file", f);
    fclose(f);
#define REFUSED(code, word, call) do { CHECK((call) == (code)); hllm_model_last_error(m, why, sizeof why); CHECK_MSG(strstr(why, word) != NULL, "%s", why); \
    CHECK(same_file(old, "the old file", 12)); } while (0)
    REFUSED(HLLM_E_ARG, "0 tokens", prepare(m, old, "", 0, 1, NULL));
    REFUSED(HLLM_E_ARG, "1 token", prepare(m, old, "a", 1, 1, NULL));
    REFUSED(HLLM_E_ARG, "need at least", prepare(m, old, text, 2000, 0, NULL));
    REFUSED(HLLM_E_ARG, "flags", prepare(m, old, text, n, 64, NULL));
    REFUSED(HLLM_E_IO, "creating", prepare(m, "/nowhere/at/all.gguf", text, n, 1, NULL));
    /* Cancelled before, and while it works. */
    OK_RT(hllm_progress_create(rt, &p), rt);
    hllm_progress_cancel(p);
    REFUSED(HLLM_E_CANCELLED, "", prepare(m, old, text, n, 1, p));
    hllm_progress_free(p);
    /* A full disk: a limit on the size of files is the same to a writer. */
    getrlimit(RLIMIT_FSIZE, &keep);
    low = keep;
    low.rlim_cur = 3 << 20;
    setrlimit(RLIMIT_FSIZE, &low);
    REFUSED(HLLM_E_IO, "writing", prepare(m, old, text, 8000, 1, NULL));
    setrlimit(RLIMIT_FSIZE, &keep);
    /* What is prepared already, and modes that a file has not got. */
    OK_RT(hllm_model_open(rt, plain, NULL, &again), rt);
    CHECK(prepare(again, old, text, n, 1, NULL) == HLLM_E_STATE);
    hllm_engine *e = NULL;
    CHECK(hllm_engine_create(again, &(hllm_engine_options){ .struct_size = sizeof(hllm_engine_options), .mode = HLLM_MODE_PREDICTED }, &e) == HLLM_E_UNSUPPORTED && !e);
    CHECK(hllm_engine_create(m, &(hllm_engine_options){ .struct_size = sizeof(hllm_engine_options), .mode = HLLM_MODE_THRESHOLDED }, &e) == HLLM_E_UNSUPPORTED && !e);
    CHECK(hllm_engine_create(m, &(hllm_engine_options){ .struct_size = sizeof(hllm_engine_options), .mode = 9 }, &e) == HLLM_E_ARG && !e);
    hllm_model_free(again);
    hllm_model_free(m);
    hllm_runtime_free(rt);
    unlink(old);
}

typedef struct late { hllm_progress *p; } late;
static void *cancel_late(void *v)
{
    late *l = v;
    uint64_t done = 0, total = 0;
    while (done == 0 || done < total / 3) { hllm_progress_read(l->p, &done, &total); sleep_us(200); }
    hllm_progress_cancel(l->p);
    return NULL;
}

static void check_cancel(const char *text, size_t n)
{
    setup u = setup_tiny(2);
    pthread_t t;
    late l = { NULL };
    OK_RT(hllm_progress_create(u.rt, &l.p), u.rt);
    pthread_create(&t, NULL, cancel_late, &l);
    CHECK(prepare(u.m, made, text, n, 0, l.p) == HLLM_E_CANCELLED);
    pthread_join(t, NULL);
    CHECK(access(made, F_OK) != 0);
    hllm_progress_free(l.p);
    setup_free(&u);
}

int main(void)
{
    size_t n = 0;
    const char *dir = getenv("HLLM_TEST_BUILD");
    char *text = read_text("tests/data/text/profile.txt", SANITIZED ? 24000 : 60000, &n);
    snprintf(made, sizeof made, "%s/sparse-%ld.gguf", dir ? dir : "/tmp", (long)getpid());
    snprintf(plain, sizeof plain, "%s/sparse-plain-%ld.gguf", dir ? dir : "/tmp", (long)getpid());
    check_cancel(text, n);
    setup u = setup_tiny(2);
    OK_M(prepare(u.m, plain, text, n < 40000 ? n : 40000, HLLM_PREPARE_NO_PREDICTORS, NULL), u.m);
    OK_M(prepare(u.m, made, text, n, 0, NULL), u.m);
    setup_free(&u);
    check_file(plain, 0);
    check_file(made, 1);
    check_exact(plain);
    check_bits(plain, HLLM_MODE_EXACT);
    check_bits(made, HLLM_MODE_PREDICTED);
    check_bits(made, HLLM_MODE_DENSE);
    if (!SANITIZED) check_predicted(made);             /* from less text predictors are worse */
    check_hostile(text, n);
    unlink(made);
    unlink(plain);
    free(text);
    return check_done();
}
