/* run_sampler.c: the sampler against a plain double implementation: which tokens are possible, how often each comes (chi-square, fixed seeds),
 * log-probabilities, ties, penalties, bias and mask, bad logits. */
#include <float.h>
#include <math.h>

#include "run/sampler.h"

#include "run_common.h"

enum { V = 300 };
static hl_mem *mem;
static hl_error err;

/* ---- the plain one ---- */

typedef struct ref { double p[V]; int in[V]; int n; int borderline; } ref;      /* final probabilities; borderline: rounding could decide */

static void ref_logits(const hl_sampling *o, const hl_logit_rules *r, const int32_t *recent, int n_recent, const float *logits, double *x, int penalties)
{
    for (int i = 0; i < V; i++) x[i] = logits[i];
    for (uint32_t i = 0; i < r->n_bias; i++) x[r->bias[i].token] += r->bias[i].bias;
    for (int i = 0; i < V; i++) if (r->allowed && !(r->allowed[i / 8] >> i % 8 & 1)) x[i] = -INFINITY;
    for (uint32_t i = 0; i < r->n_banned; i++) x[r->banned[i]] = -INFINITY;
    if (!penalties) return;
    for (int t = 0; t < V; t++) {
        int count = 0;
        for (int i = 0; i < n_recent; i++) count += recent[i] == t;
        if (!count || x[t] == -INFINITY) continue;
        x[t] = x[t] > 0 ? x[t] / (double)o->repeat_penalty : x[t] * (double)o->repeat_penalty;
        x[t] -= count * (double)o->frequency_penalty + (double)o->presence_penalty;
    }
}

static void ref_run(const hl_sampling *o, const double *x, ref *out)
{
    int order[V], n = 0;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < V; i++) if (x[i] > -INFINITY) order[n++] = i;
    for (int i = 1; i < n; i++)                        /* insertion sort: best first, ties by lower id */
        for (int j = i; j > 0 && x[order[j]] > x[order[j - 1]]; j--) { int t = order[j]; order[j] = order[j - 1]; order[j - 1] = t; }
    int k = o->top_k > 0 && o->top_k < n ? o->top_k : n;
    if (k < n && fabs(x[order[k]] - x[order[k - 1]]) < 1e-5 * fabs(x[order[k]])) out->borderline = 1;
    double sum = 0, acc = 0;
    for (int i = 0; i < k; i++) sum += exp(x[order[i]] - x[order[0]]);
    if (o->top_p < 1) {
        int m = 0;
        do { acc += exp(x[order[m++]] - x[order[0]]) / sum; if (fabs(acc - o->top_p) < 1e-5) out->borderline = 1; } while (m < k && acc < o->top_p);
        k = m;
    }
    if (o->min_p > 0) {
        int m = 0;
        while (m < k && exp(x[order[m]] - x[order[0]]) >= o->min_p) m++;
        for (int i = 0; i < k; i++) if (fabs(exp(x[order[i]] - x[order[0]]) - o->min_p) < 1e-5 * o->min_p) out->borderline = 1;
        k = m;
    }
    sum = 0;
    for (int i = 0; i < k; i++) sum += exp((x[order[i]] - x[order[0]]) / o->temperature);
    for (int i = 0; i < k; i++) { out->p[order[i]] = exp((x[order[i]] - x[order[0]]) / o->temperature) / sum; out->in[order[i]] = 1; }
    out->n = k;
}

static double gauss(uint64_t *s)
{
    double x = 0;
    for (int i = 0; i < 12; i++) x += (double)(rnd(s) & 0xffffff) / 0x1p24;
    return x - 6;
}

/* ---- draws ---- */

static const hl_sampling plain = { .temperature = 1, .top_p = 1, .repeat_penalty = 1 };

static void distribution(hl_sampler *s, hl_sampling o, double spread, uint64_t seed, int draws)
{
    float logits[V], mine[V];
    double x[V];
    int count[V] = { 0 };
    int32_t recent[64], banned[3] = { 7, 8, 9 };
    uint8_t mask[(V + 7) / 8];
    hllm_logit_bias bias[4] = { { 3, 2.5f }, { 10, -3 }, { 3, 0.25f }, { 11, -INFINITY } };
    hl_logit_rules rules = { 0 };
    uint64_t r = seed;
    ref want;
    for (int i = 0; i < V; i++) logits[i] = (float)(spread * gauss(&r));
    for (int i = 0; i < 64; i++) recent[i] = (int32_t)(rnd(&r) % (i & 1 ? 10 : V));
    for (size_t i = 0; i < sizeof mask; i++) mask[i] = (uint8_t)(rnd(&r) | rnd(&r));
    if (seed & 1) { rules.bias = bias; rules.n_bias = 4; }
    if (seed & 2) rules.allowed = mask;
    if (seed & 4) { rules.banned = banned; rules.n_banned = 3; }
    ref_logits(&o, &rules, recent, 64, logits, x, 1);
    ref_run(&o, x, &want);
    if (want.borderline) return;
    o.seed = seed;
    hl_sampler_start(s, &o);
    memcpy(mine, logits, sizeof mine);
    for (int d = 0; d < draws; d++) {
        hl_sampled got;
        CHECK(hl_sampler_pick(s, &err, mine, &rules, recent, 64, NULL, &got) == HLLM_OK);
        REQUIRE(got.token >= 0 && got.token < V);
        count[got.token]++;
        CHECK_MSG(want.in[got.token], "seed %llu: token %d is not among the %d possible", (unsigned long long)seed, got.token, want.n);
    }
    CHECK(memcmp(mine, logits, sizeof mine) == 0);
    /* Bins with at least 5 expected; the rest together.  Wilson and Hilferty: a limit that is exceeded once in about 1e6. */
    double chi = 0, rest = 0, rest_count = 0;
    int bins = 0;
    for (int i = 0; i < V; i++) {
        double e = want.p[i] * draws;
        if (e >= 5) { chi += (count[i] - e) * (count[i] - e) / e; bins++; }
        else { rest += e; rest_count += count[i]; }
    }
    if (rest >= 5) { chi += (rest_count - rest) * (rest_count - rest) / rest; bins++; }
    double k = bins - 1, limit = k * pow(1 - 2 / (9 * k) + 4.75 * sqrt(2 / (9 * k)), 3);
    if (bins > 1) CHECK_MSG(chi < limit, "seed %llu: chi-square %g, limit %g, %d bins", (unsigned long long)seed, chi, limit, bins);
}

static void distributions(hl_sampler *s)
{
    hl_sampling o = plain;
    distribution(s, o, 2, 100, 20000);
    o.temperature = 0.7f; distribution(s, o, 2, 101, 20000);
    o.temperature = 1.8f; distribution(s, o, 2, 103, 20000);
    o = plain; o.top_k = 12; distribution(s, o, 1, 104, 20000);
    o = plain; o.top_k = 1; distribution(s, o, 1, 105, 200);
    o = plain; o.top_k = V + 5; distribution(s, o, 2, 106, 5000);
    o = plain; o.top_p = 0.8f; distribution(s, o, 2, 107, 20000);
    o = plain; o.top_p = 1e-6f; distribution(s, o, 2, 108, 200);
    o = plain; o.min_p = 0.05f; distribution(s, o, 2, 109, 20000);
    o = plain; o.repeat_penalty = 1.3f; distribution(s, o, 2, 110, 20000);
    o.frequency_penalty = 0.4f; o.presence_penalty = 0.7f; distribution(s, o, 2, 111, 20000);
    for (uint64_t seed = 200; seed < 300; seed++) {    /* everything at once, in random strengths */
        uint64_t r = seed;
        o = plain;
        o.temperature = 0.3f + (float)(rnd(&r) % 200) / 100;
        if (rnd(&r) % 2) o.top_k = (int32_t)(1 + rnd(&r) % 100);
        if (rnd(&r) % 2) o.top_p = 0.2f + (float)(rnd(&r) % 79) / 100;
        if (rnd(&r) % 2) o.min_p = (float)(1 + rnd(&r) % 20) / 100;
        if (rnd(&r) % 2) o.repeat_penalty = 0.7f + (float)(rnd(&r) % 90) / 100;
        if (rnd(&r) % 2) o.frequency_penalty = -0.5f + (float)(rnd(&r) % 150) / 100;
        if (rnd(&r) % 2) o.presence_penalty = -0.5f + (float)(rnd(&r) % 150) / 100;
        distribution(s, o, 2, seed, 4000);
    }
}

static void seeds(hl_sampler *s)
{
    float logits[V] = { 0 };
    hl_logit_rules none = { 0 };
    int32_t runs[3][64];
    for (int k = 0; k < 3; k++) {
        hl_sampling o = plain;
        o.seed = k == 2 ? 1 : 0;
        hl_sampler_start(s, &o);
        for (int i = 0; i < 64; i++) {
            hl_sampled got;
            CHECK(hl_sampler_pick(s, &err, logits, &none, NULL, 0, NULL, &got) == HLLM_OK);
            runs[k][i] = got.token;
        }
    }
    CHECK(same_tokens(runs[0], runs[1], 64) && !same_tokens(runs[0], runs[2], 64));
}

/* ---- log-probabilities and greedy ---- */

static void logprobs(hl_sampler *s)
{
    for (uint64_t seed = 1; seed < 60; seed++) {
        float logits[V];
        double x[V];
        uint64_t r = seed;
        hl_sampling o = plain;
        hllm_logit_bias top[64], bias[2] = { { 5, 1.5f }, { 6, -2 } };
        hl_logit_rules rules = { 0 };
        uint8_t mask[(V + 7) / 8];
        int32_t recent[5] = { 1, 2, 3, 4, 5 };
        hl_sampled got;
        for (int i = 0; i < V; i++) logits[i] = (float)((seed % 3 == 0 ? 30 : 3) * gauss(&r));
        for (int i = 0; i < 20; i++) logits[i * 7] = logits[0];      /* ties */
        for (size_t i = 0; i < sizeof mask; i++) mask[i] = seed % 5 == 4 ? i == 2 : (uint8_t)(rnd(&r) | 1);
        if (seed & 1) { rules.bias = bias; rules.n_bias = 2; }
        if (seed & 2) rules.allowed = mask;
        o.want_logprob = true;
        o.n_logprobs = (uint32_t)(seed % 65);
        o.greedy = seed & 4;
        o.repeat_penalty = 1.5f;                       /* penalties do not count in log-probabilities */
        hl_sampler_start(s, &o);
        CHECK(hl_sampler_pick(s, &err, logits, &rules, recent, 5, top, &got) == HLLM_OK);
        ref_logits(&o, &rules, NULL, 0, logits, x, 0);
        double best = -INFINITY, sum = 0;
        int allowed = 0;
        for (int i = 0; i < V; i++) if (x[i] > best) best = x[i];
        for (int i = 0; i < V; i++) { sum += exp(x[i] - best); allowed += x[i] > -INFINITY; }
        const double lse = best + log(sum);
        CHECK_MSG(got.n_top == (uint32_t)(allowed < (int)o.n_logprobs ? allowed : (int)o.n_logprobs), "%u of %d", got.n_top, allowed);
        /* The logit and its sum with a bias, the difference, each rounded to f32. */
        #define CLOSE(a, b) (fabs((a) - (b)) <= 0x1p-22 * (fabs(b) + fabs(lse) + 1))
        CHECK_MSG(CLOSE(got.logprob, x[got.token] - lse), "%g, expected %g", (double)got.logprob, x[got.token] - lse);
        char used[V] = { 0 };
        for (uint32_t k = 0; k < got.n_top; k++) {
            int id = -1;                               /* the best not used yet, ties by lower id */
            for (int i = 0; i < V; i++) if (!used[i] && x[i] > -INFINITY && (id < 0 || (float)x[i] > (float)x[id])) id = i;
            CHECK_MSG(top[k].token == id && CLOSE(top[k].bias, x[id] - lse), "alternative %u: %d %g, expected %d %g", k, top[k].token, (double)top[k].bias, id, x[id] - lse);
            used[id] = 1;
        }
        if (o.greedy) {
            ref_logits(&o, &rules, recent, 5, logits, x, 1);
            int id = -1;
            for (int i = 0; i < V; i++) if (x[i] > -INFINITY && (id < 0 || (float)x[i] > (float)x[id])) id = i;
            CHECK_MSG(got.token == id, "%d, expected %d", got.token, id);
        }
    }
}

static void bad_logits(hl_sampler *s)
{
    float logits[V] = { 0 };
    hl_logit_rules rules = { 0 };
    uint8_t mask[(V + 7) / 8] = { 0 };
    hl_sampled got;
    hl_sampling o = plain;
    char text[200];
    hl_sampler_start(s, &o);
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    for (int k = 0; k < 3; k++)
        for (int at = 0; at < V; at += 13) {
            logits[at] = bad[k];
            CHECK(hl_sampler_pick(s, &err, logits, &rules, NULL, 0, NULL, &got) == HLLM_E_NUMERIC && got.token == -1);
            logits[at] = 0;
        }
    rules.allowed = mask;
    CHECK(hl_sampler_pick(s, &err, logits, &rules, NULL, 0, NULL, &got) == HLLM_E_NUMERIC && got.token == -1);
    hl_error_copy(&err, text, sizeof text);
    CHECK_MSG(strstr(text, "300"), "%s", text);
    mask[V / 8] = 1u << (V - 1) % 8;                   /* only the last */
    CHECK(hl_sampler_pick(s, &err, logits, &rules, NULL, 0, NULL, &got) == HLLM_OK && got.token == V - 1);
    rules.allowed = NULL;
    logits[17] = 3e38f;                                /* the largest, and a temperature close to nothing or to infinity */
    o.temperature = 1e-30f;
    hl_sampler_start(s, &o);
    CHECK(hl_sampler_pick(s, &err, logits, &rules, NULL, 0, NULL, &got) == HLLM_OK && got.token == 17);
    logits[17] = -3e38f;
    o.temperature = 1000;
    hl_sampler_start(s, &o);
    CHECK(hl_sampler_pick(s, &err, logits, &rules, NULL, 0, NULL, &got) == HLLM_OK && got.token >= 0);
    o = plain;
    o.greedy = true;
    hl_sampler_start(s, &o);
    for (int i = 0; i < V; i++) logits[i] = i == 40 || i == 41 || i == 290 ? 2.0f : 1.0f;
    CHECK(hl_sampler_pick(s, &err, logits, &rules, NULL, 0, NULL, &got) == HLLM_OK && got.token == 40);
    for (int i = 0; i < V; i++) logits[i] = -0.0f;
    logits[3] = 0.0f;
    CHECK(hl_sampler_pick(s, &err, logits, &rules, NULL, 0, NULL, &got) == HLLM_OK && got.token == 0);
}

/* The caller's bias and penalties may be as large as floats get: the best stays the best and log-probabilities stay numbers. */
static void huge_rules(hl_sampler *s)
{
    float logits[V] = { 0 };
    const hllm_logit_bias bias[] = { { 100, FLT_MAX }, { 100, FLT_MAX }, { 101, FLT_MAX } };
    const int32_t recent[] = { 7 };
    hl_sampled got;
    hl_sampling o = plain;
    o.want_logprob = true;
    for (int k = 0; k < 2; k++, o.top_k = 5) {
        hl_sampler_start(s, &o);
        hl_logit_rules rules = { .bias = bias, .n_bias = k ? 3 : 2 };
        CHECK(hl_sampler_pick(s, &err, logits, &rules, NULL, 0, NULL, &got) == HLLM_OK && (got.token == 100 || (k && got.token == 101)));
        CHECK_MSG(got.logprob <= 0 && got.logprob > -1, "%g", (double)got.logprob);      /* log 2 is lost beside FLT_MAX */
    }
    o = plain;
    o.repeat_penalty = 1e-38f;
    for (int i = 0; i < V; i++) logits[i] = i == 7 ? 9.0f : -1.0f;
    hl_sampler_start(s, &o);
    CHECK(hl_sampler_pick(s, &err, logits, &(hl_logit_rules){ 0 }, recent, 1, NULL, &got) == HLLM_OK && got.token == 7);
}

int main(void)
{
    hl_sampler *s = NULL;
    hl_error_init(&err);
    REQUIRE(hl_mem_new(NULL, &mem) == HLLM_OK && hl_sampler_new(mem, V, &s) == HLLM_OK);
    distributions(s);
    seeds(s);
    logprobs(s);
    bad_logits(s);
    huge_rules(s);
    hl_sampler_free(mem, s);
    CHECK(hl_mem_live_bytes(mem) == 0);
    hl_mem_free(mem);
    hl_error_destroy(&err);
    return check_done();
}
