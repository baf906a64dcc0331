/* sampler.h: logits -> token.  One per session; all memory is taken at creation; one thread at a time (the worker). */
#ifndef HL_SAMPLER_H
#define HL_SAMPLER_H

#include "base/base.h"

typedef struct hl_sampler hl_sampler;

/* What one generation asks for, defaults already filled in. */
typedef struct hl_sampling {
    uint64_t seed;
    bool greedy;
    float temperature, top_p, min_p;                   /* top_p >= 1, min_p <= 0: off */
    int32_t top_k;                                     /* <= 0: off */
    float repeat_penalty, frequency_penalty, presence_penalty;       /* 1, 0, 0: off */
    uint32_t penalty_last_n;
    uint32_t n_logprobs;
    bool want_logprob;
} hl_sampling;

typedef struct hl_sampled {
    int32_t token;
    float logprob;
    uint32_t n_top;
} hl_sampled;

hl_status hl_sampler_new(hl_mem *mem, uint32_t n_vocab, hl_sampler **out);
void hl_sampler_free(hl_mem *mem, hl_sampler *s);
void hl_sampler_start(hl_sampler *s, const hl_sampling *opt);        /* seeds it */
/* What changes the logits before anything else.  All may be absent. */
typedef struct hl_logit_rules {
    const hllm_logit_bias *bias; uint32_t n_bias;
    const uint8_t *allowed;                            /* one bit per token; NULL: all */
    const int32_t *banned; uint32_t n_banned;
} hl_logit_rules;

/* Chooses a token from logits [n_vocab], which stay as they are.  recent: the tokens that penalties look at.  top: [n_logprobs] of token and
 * log-probability, best first, or NULL.  HLLM_E_NUMERIC: a logit is no finite number, or nothing is allowed. */
hl_status hl_sampler_pick(hl_sampler *s, hl_error *err, const float *logits, const hl_logit_rules *rules, const int32_t *recent, uint32_t n_recent,
                          hllm_logit_bias *top, hl_sampled *out);
bool hl_all_finite(const float *x, size_t n);          /* also false for NaN */

#endif
