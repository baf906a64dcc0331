/* sampler.c: penalties, then top-k, top-p, min-p on the untempered distribution, then temperature and one draw.
 *
 * The order and the meaning of every number are those that users of llama.cpp know.  Random numbers are xoshiro256** (Blackman and Vigna,
 * 2018) seeded by splitmix64: the same seed gives the same run.  top-p: Holtzman et al., arXiv:1904.09751.
 */
#include "run/sampler.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct cand { float logit; int32_t id; float p; } cand;

struct hl_sampler {
    hl_sampling opt;
    uint64_t rng[4];
    uint32_t n_vocab;
    cand *c;                                           /* [n_vocab] */
    float *work;                                       /* [n_vocab]: logits after the rules, then after penalties */
    uint16_t *count;                                   /* [n_vocab], zero between calls */
};

static uint64_t splitmix(uint64_t *x)
{
    uint64_t z = (*x += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t rotl(uint64_t x, int k) { return x << k | x >> (64 - k); }

static double uniform(hl_sampler *s)                   /* [0, 1), 53 bits */
{
    uint64_t *r = s->rng, v = rotl(r[1] * 5, 7) * 9, t = r[1] << 17;
    r[2] ^= r[0]; r[3] ^= r[1]; r[1] ^= r[2]; r[0] ^= r[3]; r[2] ^= t;
    r[3] = rotl(r[3], 45);
    return (double)(v >> 11) * 0x1p-53;
}

hl_status hl_sampler_new(hl_mem *mem, uint32_t n_vocab, hl_sampler **out)
{
    hl_status rc = HLLM_OK;
    hl_sampler *s = NULL;
    *out = NULL;
    HL_NEED(s = hl_alloc_zero(mem, sizeof *s));
    s->n_vocab = n_vocab;
    HL_NEED(s->c = hl_alloc_array(mem, n_vocab, sizeof *s->c));
    HL_NEED(s->work = hl_alloc_array(mem, n_vocab, sizeof *s->work));
    HL_NEED(s->count = hl_alloc_array(mem, n_vocab, sizeof *s->count));
    *out = s; s = NULL;
done:
    hl_sampler_free(mem, s);
    return rc;
}

void hl_sampler_free(hl_mem *mem, hl_sampler *s)
{
    if (!s) return;
    hl_free(mem, s->c);
    hl_free(mem, s->work);
    hl_free(mem, s->count);
    hl_free(mem, s);
}

void hl_sampler_start(hl_sampler *s, const hl_sampling *opt)
{
    uint64_t x = opt->seed;
    s->opt = *opt;
    for (int i = 0; i < 4; i++) s->rng[i] = splitmix(&x);
}

bool hl_all_finite(const float *x, size_t n)
{
    float bad[8] = { 0 };                              /* x * 0 is 0 for every finite x, else NaN */
    size_t i = 0;
    for (; i + 8 <= n; i += 8) for (int j = 0; j < 8; j++) bad[j] += x[i + j] * 0.0f;
    for (; i < n; i++) bad[0] += x[i] * 0.0f;
    for (int j = 0; j < 8; j++) if (bad[j] != 0.0f) return false;
    return true;
}

/* Bias and penalties are the caller's: whatever they are, a logit stays a number that can be compared and subtracted (or -Inf: excluded). */
static float tame(float logit) { return logit > FLT_MAX ? FLT_MAX : logit; }

static void penalise(hl_sampler *s, float *logits, const int32_t *recent, uint32_t n)
{
    const hl_sampling *o = &s->opt;
    if (o->repeat_penalty == 1.0f && o->frequency_penalty == 0.0f && o->presence_penalty == 0.0f) return;
    for (uint32_t i = 0; i < n; i++) if (s->count[recent[i]] < UINT16_MAX) s->count[recent[i]]++;
    for (uint32_t i = 0; i < n; i++) {
        uint16_t k = s->count[recent[i]];
        float *l = &logits[recent[i]];
        if (k == 0) continue;                          /* seen earlier in this list */
        s->count[recent[i]] = 0;
        *l = *l <= 0 ? *l * o->repeat_penalty : *l / o->repeat_penalty;
        *l = tame(*l - ((float)k * o->frequency_penalty + o->presence_penalty));
    }
}

/* a before b: higher logit, ties by lower id */
static bool better(cand a, cand b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

static void sift(cand *c, size_t n, size_t i)          /* heap with the worst at the root */
{
    for (;;) {
        size_t l = 2 * i + 1, m = i;
        if (l < n && better(c[m], c[l])) m = l;
        if (l + 1 < n && better(c[m], c[l + 1])) m = l + 1;
        if (m == i) return;
        cand t = c[i]; c[i] = c[m]; c[m] = t;
        i = m;
    }
}

/* Puts the best k of n candidates first, best first.  n log k. */
static void best_k(cand *c, size_t n, size_t k)
{
    if (k > n) k = n;
    for (size_t i = k / 2; i-- > 0;) sift(c, k, i);
    for (size_t i = k; i < n; i++)
        if (better(c[i], c[0])) { cand t = c[0]; c[0] = c[i]; c[i] = t; sift(c, k, 0); }
    for (size_t m = k; m > 1; m--) { cand t = c[0]; c[0] = c[m - 1]; c[m - 1] = t; sift(c, m - 1, 0); }
}

static size_t gather(hl_sampler *s, const float *logits)             /* all that is allowed */
{
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++)
        if (logits[i] > -INFINITY) s->c[n++] = (cand){ logits[i], (int32_t)i, 0 };
    return n;
}

static double log_sum_exp(const float *x, size_t n, float top)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += exp((double)x[i] - top);
    return top + log(sum);
}

/* One draw from what top-k, top-p and min-p leave. */
static int32_t draw(hl_sampler *s, const float *logits, int32_t best)
{
    const hl_sampling *o = &s->opt;
    const float top = logits[best];
    size_t n = gather(s, logits), k = n;
    double sum = 0;
    if (o->top_k > 0 && (size_t)o->top_k < n) best_k(s->c, n, k = (size_t)o->top_k);
    else if (o->top_p < 1.0f || o->min_p > 0.0f) {
        /* Sorting a large vocabulary costs more than the model's head: the far tail, e^-30 of the best, goes first. */
        k = 0;
        for (size_t i = 0; i < n; i++) if (s->c[i].logit >= top - 30.0f) s->c[k++] = s->c[i];
        best_k(s->c, k, k);
    }
    for (size_t i = 0; i < k; i++) sum += s->c[i].p = expf(s->c[i].logit - top);
    if (o->top_p < 1.0f) {
        double acc = 0;
        size_t i = 0;
        while (i < k) { acc += s->c[i++].p; if (acc >= (double)o->top_p * sum) break; }
        k = i;
    }
    if (o->min_p > 0.0f) {
        size_t i = 1;
        while (i < k && s->c[i].p >= o->min_p * s->c[0].p) i++;
        k = i;
    }
    sum = 0;
    for (size_t i = 0; i < k; i++) sum += s->c[i].p = expf((s->c[i].logit - top) / o->temperature);
    double at = uniform(s) * sum;
    for (size_t i = 0; i < k; i++) if ((at -= s->c[i].p) < 0) return s->c[i].id;
    return s->c[k - 1].id;
}

/* The index of the highest of the allowed logits, ties by lower id; -1: none is allowed. */
static int32_t argmax(const float *x, uint32_t n)
{
    int32_t best = -1;
    for (uint32_t i = 0; i < n; i++) if (x[i] > -INFINITY && (best < 0 || x[i] > x[best])) best = (int32_t)i;
    return best;
}

static void apply_rules(float *x, uint32_t n, const hl_logit_rules *r)
{
    for (uint32_t i = 0; i < r->n_bias; i++) x[r->bias[i].token] = tame(x[r->bias[i].token] + r->bias[i].bias);
    if (r->allowed) for (uint32_t i = 0; i < n; i++) if (!(r->allowed[i >> 3] >> (i & 7) & 1)) x[i] = -INFINITY;
    for (uint32_t i = 0; i < r->n_banned; i++) x[r->banned[i]] = -INFINITY;
}

hl_status hl_sampler_pick(hl_sampler *s, hl_error *err, const float *logits, const hl_logit_rules *rules, const int32_t *recent, uint32_t n_recent,
                          hllm_logit_bias *top, hl_sampled *out)
{
    const hl_sampling *o = &s->opt;
    const uint32_t n = s->n_vocab;
    double lse = 0;
    *out = (hl_sampled){ -1, 0, 0 };
    if (!hl_all_finite(logits, n)) return hl_fail(err, HLLM_E_NUMERIC, "the logits hold a value that is not a finite number");
    memcpy(s->work, logits, n * sizeof *logits);
    apply_rules(s->work, n, rules);
    int32_t best = argmax(s->work, n);
    if (best < 0) return hl_fail(err, HLLM_E_NUMERIC, "no token is allowed: mask and bias exclude all %u", n);
    float before = 0;
    if (o->want_logprob) {
        lse = log_sum_exp(s->work, n, s->work[best]);
        if (o->n_logprobs && top) {
            size_t m = gather(s, s->work);
            out->n_top = (uint32_t)HL_MIN((size_t)o->n_logprobs, m);
            best_k(s->c, m, out->n_top);
            for (uint32_t i = 0; i < out->n_top; i++) top[i] = (hllm_logit_bias){ s->c[i].id, (float)(s->c[i].logit - lse) };
        }
    }
    penalise(s, s->work, recent, n_recent);
    best = argmax(s->work, n);
    if (best < 0) return hl_fail(err, HLLM_E_NUMERIC, "penalties exclude all %u tokens", n);
    out->token = !o->greedy && o->temperature > 0.0f ? draw(s, s->work, best) : best;
    if (o->want_logprob) {
        before = logits[out->token];
        for (uint32_t i = 0; i < rules->n_bias; i++) if (rules->bias[i].token == out->token) before = tame(before + rules->bias[i].bias);
        out->logprob = (float)(before - lse);
    }
    return HLLM_OK;
}
