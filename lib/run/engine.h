/* engine.h: a model's weights placed in memory, and the worker thread that computes for all sessions on them.
 *
 * Weights are immutable after hl_engine_new.  Only the worker thread calls the backend's operators; sessions queue their jobs and take turns,
 * one micro-batch or one token each; those that want one more token of an answer take their turn together (batch.c).
 */
#ifndef HL_ENGINE_H
#define HL_ENGINE_H

#include "run/runtime.h"

/* Weights and vectors of one layer; data NULL: absent.  Fused tensors of the file are views here: forward.c never sees them. */
typedef struct hl_layer_weights {
    hl_weight q, k, v, out, gate, up, down;            /* down: by neurons where by_neurons */
    hl_weight pred_1, pred_2;
    bool by_neurons;
    const float *attn_norm, *attn_norm_b, *attn_norm_2, *attn_norm_2_b, *q_b, *k_b, *v_b, *q_norm, *k_norm, *out_b, *attn_post_norm;
    const float *ffn_norm, *ffn_norm_b, *gate_b, *up_b, *down_b, *ffn_post_norm, *pred_b, *cuts;
} hl_layer_weights;

enum { HL_ROPES = 2, HL_BATCH = 16 };                  /* kinds of rotation in a model; sessions in one pass */
typedef struct hl_batch hl_batch;

typedef struct hl_mapping { void *base; size_t bytes; const uint8_t *data; } hl_mapping;

/* Somebody who looks at each FFN of a pass (lib/sparse): its input [n][n_embd], its gate before the activation (NULL: it has none) and its neurons'
 * values [n][n_ff], which may be changed. */
typedef struct hl_ffn_probe { void (*fn)(void *arg, uint32_t il, const float *in, const float *gate, float *h, uint32_t n); void *arg; } hl_ffn_probe;

struct hllm_engine {
    _Atomic uint32_t refs;
    hl_error err;
    hllm_model *handle;
    const hl_model *model;
    const hl_env *env;
    const hl_backend_vt *be;
    hl_device *dev;
    hl_stream *stream;                                 /* the worker's */
    bool act_f32;
    uint32_t mode;                                     /* HLLM_MODE_... */
    uint32_t load;                                     /* HLLM_LOAD_MMAP or _READ */
    uint64_t ram_bytes;                                /* 0: the machine's */

    hl_layer_weights *layers;                          /* [n_layers] */
    uint8_t *rope_of_layer; uint32_t n_ropes;          /* [n_layers]: layers that rotate alike share a table */
    hl_weight positions;                               /* learned ones; data NULL: none */
    hl_weight embed, head;                             /* the same data when tied */
    const float *out_norm, *out_norm_b, *head_b;
    void *matrices; size_t matrices_bytes;             /* read mode: one block */
    float *vectors; size_t vectors_bytes;
    hl_mapping *maps;                                  /* mmap mode: [n_shards] */
    uint64_t decode_weight_bytes;                      /* read for one token */
    uint64_t decode_ffn_bytes;                         /* of these, the FFNs', predictors included */
    size_t max_piece;                                  /* bytes of the longest token */
    int32_t *end_ids; uint32_t n_end_ids;              /* tokens that end a generation */

    hl_ffn_probe probe;                                /* fn NULL: nobody */
    hl_batch *batch;                                   /* the worker's */
    _Atomic uint64_t reserved_bytes;                   /* weights and all sessions */
    pthread_t worker;
    bool worker_runs;
    pthread_mutex_t lock;                              /* guards the queue; a leaf */
    pthread_cond_t wake;
    struct hllm_session *first, *last;                 /* the queue */
    bool stop;
};

hl_status hl_engine_new(hllm_model *m, const hllm_engine_options *opt, hllm_engine **out);
void hl_engine_ref(hllm_engine *e);
void hl_engine_unref(hllm_engine *e);
/* Puts a session with a job at the queue's end; it must not be queued already. */
void hl_engine_queue(hllm_engine *e, struct hllm_session *s);
/* Takes a session out of the queue.  false: it is not in it (the worker has it). */
bool hl_engine_unqueue(hllm_engine *e, struct hllm_session *s);
/* Weights' bytes, before anything is loaded; and what an engine takes besides them, an upper bound. */
uint64_t hl_engine_weight_bytes(const hl_model *m);
uint64_t hl_engine_extra_bytes(const hllm_model *m);
/* Refuses with both numbers when `need` more bytes cannot be had. */
hl_status hl_engine_reserve(hllm_engine *e, hl_error *err, uint64_t need, const char *what);
void hl_engine_release(hllm_engine *e, uint64_t bytes);

#endif
