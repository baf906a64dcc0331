/* Files in PowerInfer's format: made into prepared files they give the same log-probabilities, predicted ones too; changed ones are refused.
 *
 * The models are made by tests/powerinfer.sh (their values: tests/golden/scores.c); without them only what needs none is tested. */
#include <math.h>

#include "run_common.h"

static char path_made[256];

static float *logits_of(const char *path, uint32_t mode, const int32_t *tokens, uint32_t n, uint32_t *n_vocab)
{
    setup u = setup_file(path, 2, NULL, &(hllm_engine_options){ .struct_size = sizeof(hllm_engine_options), .mode = mode, .act = HLLM_ACT_F32 });
    hllm_session *s = session_of(&u, 64, HLLM_KV_F32, 0);
    float *out = malloc((size_t)n * u.n_vocab * sizeof *out);
    OK_S(hllm_session_eval(s, tokens, n), s);
    for (uint32_t i = 0; i < n; i++) OK_S(hllm_session_logits(s, i, out + (size_t)i * u.n_vocab, u.n_vocab), s);
    *n_vocab = u.n_vocab;
    hllm_session_free(s);
    setup_free(&u);
    return out;
}

static void convert(const char *from, const char *to)
{
    hllm_runtime *rt = NULL;
    hllm_model *m = NULL;
    OK_RT(hllm_runtime_create(NULL, &rt), rt);
    OK_RT(hllm_model_open(rt, from, NULL, &m), rt);
    OK_M(hllm_prepare(m, to, &(hllm_prepare_options){ .struct_size = sizeof(hllm_prepare_options), .text = story, .text_bytes = sizeof story - 1 }), m);
    hllm_model_free(m);
    hllm_runtime_free(rt);
}

static void check_kind(const char *path)
{
    enum { N = 24 };
    int32_t tokens[N];
    setup u = setup_file(path, 1, NULL, NULL);
    hllm_sparse_info s = { .struct_size = sizeof s };
    text_tokens(&u, tokens, N);
    OK_M(hllm_model_get_sparse(u.m, &s), u.m);
    CHECK(s.powerinfer && s.by_neurons && s.n_predictors == 4 && !strcmp(s.act, "relu"));
    setup_free(&u);
    convert(path, path_made);
    for (uint32_t mode = HLLM_MODE_EXACT; mode <= HLLM_MODE_PREDICTED; mode++) {
        uint32_t n_vocab = 0;
        double worst = 0, most = 0;
        float *a = logits_of(path, mode, tokens, N, &n_vocab), *b = logits_of(path_made, mode, tokens, N, &n_vocab);
        for (size_t i = 0; i < (size_t)N * n_vocab; i++) worst = fmax(worst, fabs((double)a[i] - b[i]));
        for (size_t i = 0; i < (size_t)N * n_vocab; i++) most = fmax(most, fabs((double)a[i]));    /* apart: gcc 12 for arm64 fails on both in one loop */
        CHECK_MSG(worst < 2e-4 && most > 1, "%s mode %u: logits differ by %g", path, mode, worst);
        free(a); free(b);
    }
}

/* ---- changed files ---- */

static char *bytes_of(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    REQUIRE(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *b = malloc(*n);
    REQUIRE(fread(b, 1, *n, f) == *n);
    fclose(f);
    return b;
}

static void spill(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    REQUIRE(f && fwrite(data, 1, n, f) == n);
    fclose(f);
}

static void opens_not(hllm_status code, const char *word)
{
    hllm_runtime *rt = NULL;
    hllm_model *m = NULL;
    char why[512] = "";
    OK_RT(hllm_runtime_create(NULL, &rt), rt);
    const hllm_status rc = hllm_model_open(rt, path_made, NULL, &m);
    hllm_runtime_last_error(rt, why, sizeof why);
    CHECK_MSG(rc == code && strstr(why, word), "%s: %s", hllm_status_name(rc), why);
    hllm_model_free(m);
    hllm_runtime_free(rt);
}

/* The file with `from` (somewhere in its header) replaced by `to` is refused with a text that has `word`. */
static void refused(const char *path, const void *from, const void *to, size_t n, hllm_status code, const char *word)
{
    size_t size;
    char *b = bytes_of(path, &size), *at = memmem(b, size, from, n);
    REQUIRE(at);
    memcpy(at, to, n);
    spill(path_made, b, size);
    free(b);
    opens_not(code, word);
}

/* A tensor's entry: its name, dimensions and sizes. */
static size_t entry(char *to, const char *name, uint64_t d0, uint64_t d1)
{
    const uint32_t n_dims = 2;
    const size_t n = strlen(name);
    memcpy(to, name, n);
    memcpy(to + n, &n_dims, 4);
    memcpy(to + n + 4, &d0, 8);
    memcpy(to + n + 12, &d1, 8);
    return n + 20;
}

static void check_changed(const char *path)
{
    char a[128], b[128];
    size_t n;
    refused(path, "blk.1.fc2.weight", "blk.1.fc3.weight", 16, HLLM_E_MISMATCH, "fc2.weight is missing");
    refused(path, "blk.1.fc1.weight", "blk.1.fc0.weight", 16, HLLM_E_MISMATCH, "is no part of");
    refused(path, "blk.2.ffn_down_t.weight", "blk.2.ffn_down_x.weight", 23, HLLM_E_MISMATCH, "ffn_down.weight is missing");
    n = entry(a, "blk.0.fc2.weight", 40, 1024); entry(b, "blk.0.fc2.weight", 20, 2048);      /* the same bytes in another shape */
    refused(path, a, b, n, HLLM_E_MISMATCH, "fc2.weight is 20 x 2048");
    n = entry(a, "blk.0.fc1.weight", 128, 40); entry(b, "blk.0.fc1.weight", 64, 80);
    refused(path, a, b, n, HLLM_E_MISMATCH, "fc1.weight");
    n = entry(a, "blk.0.ffn_down_t.weight", 128, 1024); entry(b, "blk.0.ffn_down_t.weight", 1024, 128);
    refused(path, a, b, n, HLLM_E_MISMATCH, "ffn_down_t.weight is 1024 x 128");
    refused(path, "PWRI", "PWRX", 4, HLLM_E_FORMAT, "not a GGUF");
    refused(path, "PWRI", "GGUF", 4, HLLM_E_MISMATCH, "missing");                        /* an ordinary file has no such tensors */
    unsigned char nan[4] = { 0, 0, 0xC0, 0x7F };
    char key[64] = "powerinfer.sparse_threshold", bad[64];
    const uint32_t f32 = 6;
    const float threshold = 0.6875f;
    memcpy(key + 27, &f32, 4); memcpy(key + 31, &threshold, 4);
    memcpy(bad, key, 35); memcpy(bad + 31, nan, 4);
    refused(path, key, bad, 35, HLLM_E_FORMAT, "no finite float");
}

/* ---- the GPU split beside a file ---- */

/* Writes the split with int32 number `at` of the data of tensor `tensor` (0: the first layer's gpu_idx, 1: its bucket) made `value`. */
static void split_refused(const char *path, uint32_t tensor, uint32_t at, int32_t value, hllm_status code, const char *word)
{
    enum { F = 1024 };
    char split[320], name[32];
    size_t size, made_size;
    snprintf(split, sizeof split, "%s.generated.gpuidx", path);
    char *b = bytes_of(split, &size), *model = bytes_of(path, &made_size);
    snprintf(name, sizeof name, "blk.0.%s", tensor ? "gpu_bucket" : "gpu_idx");
    char *e = memmem(b, size, name, strlen(name));
    REQUIRE(e);
    uint64_t offset, end = 0;
    memcpy(&offset, e + strlen(name) + 16, 8);
    /* The data end with the file: the last tensor is a bucket of half the neurons. */
    char *last = memmem(b, size, "blk.3.gpu_bucket", 16);
    REQUIRE(last);
    memcpy(&end, last + 16 + 16, 8);
    const size_t data = size - ((end + F / 2 * 4 + 31) / 32 * 32);
    memcpy(b + data + offset + 4 * at, &value, 4);
    spill(path_made, model, made_size);
    snprintf(split, sizeof split, "%s.generated.gpuidx", path_made);
    spill(split, b, size);
    opens_not(code, word);
    unlink(split);
    free(b); free(model);
}

static void check_split(const char *path)
{
    split_refused(path, 1, 3, 1024, HLLM_E_CORRUPT, "that there is not: 1024");
    split_refused(path, 1, 3, -1, HLLM_E_CORRUPT, "that there is not: -1");
    split_refused(path, 1, 3, 0, HLLM_E_CORRUPT, "not ascending");
    split_refused(path, 0, 5, 2, HLLM_E_CORRUPT, "gpu_idx holds 2");
}

int main(void)
{
    static const char *const kinds[] = { "llama", "bamboo", "falcon", "falcon-7b", "opt" };
    const char *dir = getenv("HLLM_TEST_BUILD");
    uint32_t n = 0;
    snprintf(path_made, sizeof path_made, "%s/powerinfer-%ld.gguf", dir ? dir : "/tmp", (long)getpid());
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char name[64];
        snprintf(name, sizeof name, "build/powerinfer/%s.gguf", kinds[i]);
        const char *path = test_path(name);
        if (access(path, R_OK) != 0) continue;
        n++;
        check_kind(path);
        if (i == 0) check_changed(path);
        if (i == 0) check_split(path);
    }
    unlink(path_made);
    if (n == 0 && !getenv("HLLM_REQUIRE_MODELS")) SKIP("build/powerinfer has no models (tests/powerinfer.sh makes them)");
    CHECK(n == 5);
    return check_done();
}
