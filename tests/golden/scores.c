/* Log-probabilities of whole models against values from an independent program (tests/golden/README.md).
 *
 * The shipped model is always tested.  Models that the project's scripts fetch or make are tested when they are there, and have to be there when
 * HLLM_REQUIRE_MODELS is set (tests/run.sh sets it). */
#include "check.h"
#include "golden.h"

typedef struct row { const char *model, *golden; uint32_t act, kv, n_ctx; double max_kl, min_top1, max_flip; uint32_t mode; } row;

static const row rows[] = {
    /* f32 arithmetic against the f32 truth */
    { "models/tiny-relu2-q8_0.gguf", "tiny.f32-truth.txt", HLLM_ACT_F32, HLLM_KV_F32, 0, 1e-5, 1.0, 0, HLLM_MODE_EXACT },
    { "build/models/smollm2-135m-instruct-q4_1.gguf", "smollm2.f32-truth.txt", HLLM_ACT_F32, HLLM_KV_F32, 0, 1e-5, 0, 0.01, HLLM_MODE_EXACT },
    { "build/models/gemma-3-270m-q4_k_m.gguf", "gemma3.f32-truth.txt", HLLM_ACT_F32, HLLM_KV_F32, 0, 1e-5, 0, 0.01, HLLM_MODE_EXACT },
    { "build/families/arcee.gguf", "families/arcee.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/families/falcon.gguf", "families/falcon.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 2e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/families/falcon-2norm.gguf", "families/falcon-2norm.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 2e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/families/gemma2.gguf", "families/gemma2.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/families/gemma3.gguf", "families/gemma3.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/families/llama.gguf", "families/llama.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/families/llama-linear.gguf", "families/llama-linear.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/families/llama-yarn.gguf", "families/llama-yarn.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/families/nemotron.gguf", "families/nemotron.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/families/phi3.gguf", "families/phi3.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/families/qwen2.gguf", "families/qwen2.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/families/qwen3.gguf", "families/qwen3.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_EXACT },
    /* PowerInfer's format: every neuron, and those that its predictors let through */
    { "build/powerinfer/llama.gguf", "powerinfer/llama.dense.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/powerinfer/llama.gguf", "powerinfer/llama.predicted.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_PREDICTED },
    { "build/powerinfer/bamboo.gguf", "powerinfer/bamboo.dense.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/powerinfer/bamboo.gguf", "powerinfer/bamboo.predicted.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_PREDICTED },
    { "build/powerinfer/falcon.gguf", "powerinfer/falcon.dense.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/powerinfer/falcon.gguf", "powerinfer/falcon.predicted.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_PREDICTED },
    { "build/powerinfer/falcon-7b.gguf", "powerinfer/falcon-7b.dense.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/powerinfer/falcon-7b.gguf", "powerinfer/falcon-7b.predicted.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_PREDICTED },
    { "build/powerinfer/opt.gguf", "powerinfer/opt.dense.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_EXACT },
    { "build/powerinfer/opt.gguf", "powerinfer/opt.predicted.txt", HLLM_ACT_F32, HLLM_KV_F32, 2048, 1e-6, 0, 0.01, HLLM_MODE_PREDICTED },
    /* the default arithmetic: 0.95 of what the best-known peer loses on these texts */
    { "models/tiny-relu2-q8_0.gguf", "tiny.f32-truth.txt", HLLM_ACT_Q8, HLLM_KV_F16, 0, 9.0e-5, 0.99, 1.0, HLLM_MODE_EXACT },
    { "build/models/smollm2-135m-instruct-q4_1.gguf", "smollm2.long.f32-truth.txt", HLLM_ACT_Q8, HLLM_KV_F16, 0, 0.95 * 0.003154, 0.9585 - 0.002, 1.0, HLLM_MODE_EXACT },
    { "build/models/gemma-3-270m-q4_k_m.gguf", "gemma3.long.f32-truth.txt", HLLM_ACT_Q8, HLLM_KV_F16, 0, 0.95 * 0.004888, 0.9575 - 0.002, 1.0, HLLM_MODE_EXACT },
};

static char *error_text(size_t (*get)(const void *, char *, size_t), const void *handle)
{
    static char buf[1024];
    get(handle, buf, sizeof buf);
    return buf;
}

static hllm_session *session;
static float *logits;

static void score(const row *r, const golden *g, int n_vocab, golden_sum *sum)
{
    hllm_session_info info = { .struct_size = sizeof info };
    CHECK(hllm_session_get_info(session, &info) == HLLM_OK);
    for (int i = 0; i < g->n; i++) {
        const golden_text *t = &g->t[i];
        CHECK(hllm_session_rewind(session, 0) == HLLM_OK);
        for (int at = 0; at < t->n_tokens; at += (int)info.micro_batch) {
            int n = t->n_tokens - at < (int)info.micro_batch ? t->n_tokens - at : (int)info.micro_batch;
            hllm_status rc = hllm_session_eval(session, t->tokens + at, (size_t)n);
            CHECK_MSG(rc == HLLM_OK, "%s: %s", r->model, hllm_status_name(rc));
            if (rc != HLLM_OK) return;
            for (int p = at; p < at + n; p++) {
                CHECK(hllm_session_logits(session, (uint32_t)p, logits, (size_t)n_vocab) == HLLM_OK);
                golden_compare(sum, &t->pos[p], logits, n_vocab);
            }
        }
    }
}

static double logp_of(const float *l, int n_vocab, int32_t id)
{
    double top = -INFINITY, sum = 0;
    for (int j = 0; j < n_vocab; j++) top = fmax(top, l[j]);
    for (int j = 0; j < n_vocab; j++) sum += exp(l[j] - top);
    return l[id] - top - log(sum);
}

/* Greedy continuation: the first difference is allowed where our own two log-probabilities are closer than 0.01. */
static void greedy(const row *r, const golden *g, int n_vocab)
{
    for (int i = 0; i < g->n; i++) {
        const golden_text *t = &g->t[i];
        CHECK(hllm_session_rewind(session, 0) == HLLM_OK);
        CHECK(hllm_session_eval(session, t->tokens, (size_t)t->n_tokens) == HLLM_OK);
        for (int k = 0; k < t->n_greedy; k++) {
            int best = 0;
            CHECK(hllm_session_logits(session, (uint32_t)(t->n_tokens - 1 + k), logits, (size_t)n_vocab) == HLLM_OK);
            for (int j = 1; j < n_vocab; j++) if (logits[j] > logits[best]) best = j;
            if (best != t->greedy[k]) {
                double d = logp_of(logits, n_vocab, best) - logp_of(logits, n_vocab, t->greedy[k]);
                CHECK_MSG(d < 0.01, "%s text %d greedy %d: %d instead of %d, apart by %.4f", r->model, i, k, best, t->greedy[k], d);
                break;
            }
            int32_t one = best;
            CHECK(hllm_session_eval(session, &one, 1) == HLLM_OK);
        }
    }
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : "";
    const int required = getenv("HLLM_REQUIRE_MODELS") != NULL;
    int skipped = 0, ran = 0;
    hllm_runtime *rt = NULL;
    REQUIRE(hllm_runtime_create(NULL, &rt) == HLLM_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const row *r = &rows[i];
        char path[4200];
        golden g;
        if (!strstr(r->golden, only)) continue;
        FILE *f = fopen(test_path(r->model), "rb");
        if (!f) { skipped++; CHECK_MSG(!required, "%s is missing", r->model); fprintf(stderr, "%-34s model is not there\n", r->golden); continue; }
        fclose(f);
        ran++;
        snprintf(path, sizeof path, "%s/%s", test_path("tests/golden/scores"), r->golden);
        CHECK(golden_read(path, &g) > 0);
        hllm_model *m = NULL;
        hllm_engine *e = NULL;
        hllm_model_info info = { .struct_size = sizeof info };
        hllm_engine_options eo = { .struct_size = sizeof eo, .act = r->act, .mode = r->mode };
        hllm_session_options so = { .struct_size = sizeof so, .n_ctx = r->n_ctx, .kv = r->kv };
        hllm_status rc = hllm_model_open(rt, test_path(r->model), NULL, &m);
        CHECK_MSG(rc == HLLM_OK, "%s", error_text((size_t (*)(const void *, char *, size_t))(void (*)(void))hllm_runtime_last_error, rt));
        if (rc != HLLM_OK) continue;
        CHECK(hllm_model_get_info(m, &info) == HLLM_OK);
        CHECK(hllm_engine_create(m, &eo, &e) == HLLM_OK);
        CHECK(hllm_session_create(e, &so, &session) == HLLM_OK);
        logits = malloc(info.n_vocab * sizeof *logits);
        golden_sum s = { 0 };
        score(r, &g, (int)info.n_vocab, &s);
        CHECK(s.n > 0);
        double kl = s.kl / s.n, top1 = (double)s.agree / s.n;
        fprintf(stderr, "%-34s %s kl %.3g (bar %.3g) max %.3g top1 %.4f flip %.2f\n", r->golden, r->act ? "f32" : "q8 ", kl, r->max_kl, s.kl_max, top1, s.flip);
        CHECK_MSG(kl <= r->max_kl, "%s: kl %.3g", r->golden, kl);
        CHECK_MSG(top1 >= r->min_top1, "%s: top1 %.4f", r->golden, top1);
        CHECK_MSG(s.flip <= r->max_flip, "%s: flip %.2f", r->golden, s.flip);
        if (r->act == HLLM_ACT_F32) greedy(r, &g, (int)info.n_vocab);
        /* Negative control: the comparison must object to one wrong logit. */
        golden_sum bad = { 0 };
        for (int j = 0; j < (int)info.n_vocab; j++) logits[j] = 0;
        golden_compare(&bad, &g.t[0].pos[0], logits, (int)info.n_vocab);
        CHECK(bad.kl > r->max_kl);
        free(logits);
        hllm_session_free(session);
        hllm_engine_free(e);
        hllm_model_free(m);
        golden_free(&g);
    }
    hllm_runtime_free(rt);
    if (skipped) fprintf(stderr, "%d of %d rows had no model\n", skipped, skipped + ran);
    return check_done();
}
