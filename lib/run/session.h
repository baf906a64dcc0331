/* session.h: one conversation: its KV cache, its tokens, and the one job that may run on it.
 *
 * The host's thread prepares a job and queues it; the engine's worker runs it step by step (hl_session_step).  `lock` guards all fields under "shared";
 * while a job runs, only the worker writes them and the KV cache.  A job that only waits (for its turn, or for the host) is ended by the
 * thread that cancels it: no other session's micro-batch is waited for.  Order of locks: a session's, then the engine's.
 */
#ifndef HL_SESSION_H
#define HL_SESSION_H

#include "run/engine.h"
#include "run/outring.h"
#include "run/sampler.h"

enum { HL_RECORDS = 256, HL_MAX_LOGPROBS = 64, HL_LOGIT_ROWS = 16 };
enum { HL_JOB_NONE, HL_JOB_EVAL, HL_JOB_HEAD, HL_JOB_GENERATE };

/* Angles of one kind of layer (global or windowed); they depend on the session's context. */
typedef struct hl_rope_set {
    double *angle;                                     /* [n_rot / 2], host */
    float magnitude;
} hl_rope_set;

/* Memory of the forward pass for n tokens, on the device but for cos_sin_host. */
typedef struct hl_scratch {
    float *x, *xn, *xn2;                               /* [n][n_embd]: residual, normed, normed again (two norms) or a block's output */
    float *q, *k, *v, *att;                            /* [n][heads * dim] */
    float *gate, *up;                                  /* [n][n_ff] */
    float *pred, *score;                               /* [n][max_pred], [n][n_ff]: of predictors; NULL: none */
    float *parts;                                      /* [HL_FFN_PARTS][n_embd]; NULL: no FFN by neurons */
    uint32_t *counts;                                  /* [n], host */
    float *hidden;                                     /* [n][n_embd]: after the last norm */
    float *logits;                                     /* [logit_rows][n_vocab] */
    void *act;                                         /* 8-bit activation of the widest input */
    float *cos_sin[HL_ROPES];                          /* [n][n_rot / 2][2] */
    float *cos_sin_host;                               /* one of them */
} hl_scratch;

/* Hands out aligned pieces of one block; with base NULL it only counts. */
typedef struct hl_carver { char *base; size_t at; } hl_carver;
void *hl_carve(hl_carver *c, size_t bytes);
/* All but cos_sin_host. */
void hl_scratch_lay_out(hl_scratch *z, hl_carver *b, const hllm_engine *e, uint32_t n_tokens, uint32_t logit_rows);
/* Estimates from above, before there is a device: of a pass for each token, without logits; of what the device has for each thread. */
uint64_t hl_scratch_token_bytes(const hl_model *m);
uint64_t hl_scratch_fixed_bytes(const hl_model *m);
uint64_t hl_scratch_thread_bytes(const hl_model *m);

/* The next tokens of a session that a pass computes. */
typedef struct hl_part {
    struct hllm_session *s;                            /* NULL: cancelled meanwhile */
    const int32_t *tokens;
    uint32_t n, pos0;
    uint32_t row;                                      /* set by the pass: where its tokens are in the scratch */
} hl_part;

/* What FFNs read, summed over tokens and layers. */
typedef struct hl_ffn_stats { uint64_t neurons, computed, active, bytes, tokens; } hl_ffn_stats;

typedef struct hl_session_sizes {
    uint32_t n_ctx, micro_batch, logit_rows;
    uint32_t n_slots_window;                           /* of layers with a window */
    uint64_t kv_bytes, scratch_bytes, host_bytes;
} hl_session_sizes;

struct hllm_session {
    hl_error err;
    hllm_engine *engine;
    hl_session_sizes sizes;
    uint32_t kv_dtype;                                 /* HL_F16 ... */
    uint32_t kv_option;                                /* HLLM_KV_... */
    hl_kv_layer *kv;                                   /* [n_layers] */
    void *device_block; size_t device_bytes;           /* KV and scratch */
    void *host_block; size_t host_bytes;
    uint64_t reserved;
    hl_scratch z;
    hl_rope_set ropes[HL_ROPES];                       /* [engine's n_ropes] */
    hl_sampler *sampler;
    _Atomic uint32_t busy;                             /* an API call of a non-const handle is inside */
    _Atomic uint32_t cancel;                           /* written by any, read by the worker */

    /* shared */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct hllm_session *next;                         /* in the engine's queue (guarded by the engine's lock) */
    bool in_call;                                      /* a call that may give it a job is inside: a cancel is remembered for that */
    bool queued;                                       /* in the queue or being stepped */
    uint32_t job;
    hl_status job_status;
    int32_t *tokens; uint32_t n_tokens;                /* all that is in the conversation */
    uint32_t n_kv;                                     /* of these, how many are in the KV cache */
    uint32_t n_written;                                /* highest position ever written since the cache was empty */
    uint32_t held_from;                                /* lowest position that windowed layers still hold */
    uint32_t hidden_pos, n_hidden;                     /* positions whose hidden state is in z.hidden */
    uint32_t logits_pos, n_logits;                     /* positions whose logits are in z.logits */
    uint32_t head_pos;                                 /* HL_JOB_HEAD */
    hl_ffn_stats ffn;                                  /* of all that was computed */

    uint32_t run, finish;                              /* HLLM_RUN_..., HLLM_FINISH_... */
    uint32_t flags, max_tokens;
    bool stalled, go;                                  /* no room in the rings; hllm_generate_continue was called */
    hl_outring out;
    hllm_token_record *records; hllm_logit_bias *record_tops; uint32_t records_first, n_records, n_logprobs;
    uint32_t text_bytes;
    hllm_logit_bias *bias; uint32_t n_bias, bias_cap;
    uint8_t *mask; bool use_mask;
    uint32_t penalty_last_n;
    uint32_t n_prompt, n_reused, n_generated;
    uint64_t start_ns, prompt_done_ns, first_token_ns, last_token_ns;
};

hl_status hl_session_sizes_for(const hl_model *m, const hllm_session_options *opt, hl_error *err, hl_session_sizes *out);
/* Of one layer's part of the cache. */
uint64_t hl_session_kv_bytes(const hl_model *m, uint32_t il, const hl_session_sizes *sizes, uint32_t kv);
hl_status hl_session_new(hllm_engine *e, const hllm_session_options *opt, hllm_session **out);
void hl_session_free(hllm_session *s);

/* The worker's entry: one micro-batch or one token. */
void hl_session_step(hllm_session *s);
void hl_session_stepped(hllm_session *s, hl_status rc);              /* goes on with a generation whose next token was computed in a batch */
/* Queues a synchronous job and waits for its end. */
hl_status hl_session_eval(hllm_session *s, const int32_t *tokens, size_t n);
hl_status hl_session_head(hllm_session *s, uint32_t pos, const float **logits);        /* [n_vocab], valid until the next job */
hl_status hl_session_hidden(hllm_session *s, uint32_t pos, float *out);
hl_status hl_session_rewind(hllm_session *s, uint32_t n_tokens);
uint32_t hl_session_rewind_min(const hllm_session *s);               /* lock held or no job */
bool hl_session_long_rope(const hllm_session *s);                    /* of two sets of rope factors it takes the one for long contexts */
uint32_t hl_session_window(const hllm_session *s);                   /* the widest window; 0: none */

hl_status hl_generate_start(hllm_session *s, const int32_t *tokens, size_t n, const hllm_generate_options *opt, uint32_t flags);
hl_status hl_generate_poll(hllm_session *s, int32_t timeout_ms, char *buf, size_t cap, hllm_poll_result *out);
hl_status hl_generate_poll_tokens(hllm_session *s, hllm_token_record *rec, hllm_logit_bias *top, size_t cap, size_t *n_out);
hl_status hl_generate_continue(hllm_session *s, const uint8_t *allowed);
void hl_generate_cancel(hllm_session *s);
void hl_session_end_cancelled(hllm_session *s);        /* lock held: its job is over at once; the worker does not have the session */
bool hl_session_generate_step(hllm_session *s, hl_status rc);        /* generate.c: one step of a generation (rc: of what came before); true: more to do */
hl_part hl_session_begin(hllm_session *s);             /* session.c: the next micro-batch of what is not in the KV cache yet is going to be computed */
hl_status hl_session_computed(hllm_session *s, const hl_part *part, const float *hidden);    /* its hidden states, in s->z.hidden; NUMERIC: not finite */
hl_status hl_session_compute(hllm_session *s);         /* both, with the pass between */
hl_status hl_session_logits_at(hllm_session *s, uint32_t pos);       /* worker: makes z.logits hold pos */

/* forward.c, worker only: the parts' tokens through all layers; z->hidden holds them afterwards.  A single part that is cancelled: CANCELLED; of
 * several, those end at once (CANCELLED: all of them). */
hl_status hl_forward(hllm_engine *e, const hl_scratch *z, hl_part *parts, uint32_t n_parts, hl_error *err);
/* The same for layers [il0, il1) only: from the first one the tokens' embeddings go in, else what z->x holds; the last one's result is normed. */
hl_status hl_forward_layers(hllm_engine *e, const hl_scratch *z, hl_part *parts, uint32_t n_parts, uint32_t il0, uint32_t il1, hl_error *err);
/* hotset.c, worker only: the FFN of a layer whose matrices have a row for each neuron.  in: [n][n_embd], normed; z->x: the residual. */
void hl_ffn_by_neurons(hllm_engine *e, const hl_scratch *z, hl_part *parts, uint32_t n_parts, uint32_t n, uint32_t il, const float *in, float *out);
/* Logits of rows [row, row + n) of z->hidden into z->logits. */
hl_status hl_forward_head(hllm_engine *e, const hl_scratch *z, uint32_t row, uint32_t n, hl_error *err);

/* batch.c: one token of each of several sessions in one pass over the weights. */
hl_status hl_batch_new(hllm_engine *e, hl_batch **out);
void hl_batch_free(hllm_engine *e, hl_batch *b);
uint64_t hl_batch_bytes(const hl_model *m);            /* before there is an engine */
bool hl_batch_takes(const hllm_session *s);            /* it wants exactly one more token of an answer computed */
void hl_batch_step(hllm_engine *e, hl_batch *b, hllm_session **sessions, uint32_t n);        /* steps all of them */

/* state.c */
hl_status hl_session_save(hllm_session *s, const char *path);
hl_status hl_session_load(hllm_session *s, const char *path);
hl_status hl_session_fork(hllm_session *s, hllm_session **out);

#endif
