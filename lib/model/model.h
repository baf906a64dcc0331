/* model.h: an opened model: what its numbers are, which tensor plays which role, its vocabulary and chat template.
 *
 * Immutable after hl_model_open; any thread may read.  Knows no devices and reads no weights (one-dimensional tensors excepted: the
 * engine asks for those through hl_model_read_f32).
 */
#ifndef HL_MODEL_H
#define HL_MODEL_H

#include "model/family.h"
#include "model/reader.h"
#include "model/template.h"
#include "model/tokenizer.h"

/* What a layer is made of.  Mixture-of-experts and recurrent layers are other kinds: forward.c has one function per kind. */
enum { HL_BLOCK_ATTENTION = 0 };

enum { HL_SCALING_NONE = 0, HL_SCALING_LINEAR = 1, HL_SCALING_YARN = 2, HL_SCALING_LONGROPE = 3 };

/* A predictor tells which neurons of a layer can be left out: those whose score fc2 . act(fc1 . x) + bias is below the threshold. */
enum { HL_PRED_NONE = 0, HL_PRED_LINEAR = 1, HL_PRED_RELU = 2 };           /* act */
enum { HL_PRED_OF_FFN = 0, HL_PRED_OF_RESIDUAL = 1, HL_PRED_OF_LAYER = 2 };  /* x: the FFN's own input, the residual before its norm, the layer's input */

typedef struct hl_layer {
    uint32_t kind;                                     /* HL_BLOCK_... */
    uint32_t n_heads, n_heads_kv, n_ff;
    uint32_t window;                                   /* 0: sees everything */
    float rope_base;
    float rope_scale;                                  /* angles are multiplied by this (1 / scaling factor) */
    uint8_t *hot; uint32_t n_hot;                      /* [n_ff]: 1 for those of PowerInfer's hot set; NULL: none is known */
    uint32_t n_pred, pred;                             /* width of the predictor, HL_PRED_... */
    const hl_gguf_tensor *t[HL_LAYER_ROLES];           /* NULL: absent; t[HL_FFN_DOWN]: also where there is t[HL_FFN_DOWN_T] */
} hl_layer;

typedef struct hl_config {
    uint32_t n_layers, n_embd, n_vocab, n_ctx_train;
    uint32_t n_pos;                                    /* learned positions; 0: none */
    uint32_t act;                                      /* HL_FFN_...: the file's or the caller's word, else the family's */
    uint32_t head_dim_k, head_dim_v, n_rot;
    float norm_eps;
    float attention_scale;
    float attention_softcap, final_softcap;            /* 0: none */
    uint32_t rope_scaling;                             /* HL_SCALING_... */
    uint32_t n_ctx_original;
    float rope_attn_factor, yarn_ext_factor, yarn_beta_fast, yarn_beta_slow;
    float yarn_factor;                                 /* the scaling factor itself */
    uint32_t max_heads, max_heads_kv, max_ff, max_pred;          /* over the layers */
    bool windowed;                                     /* some layer has a window */
} hl_config;

/* general.sampling.*: the file's own wishes; 0: it does not say, or says what "off" is anyway. */
typedef struct hl_sampling_defaults {
    float temperature, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty;
    int32_t top_k;                                     /* -1: off */
    int32_t penalty_last_n;                            /* HL_LAST_N_OFF, INT32_MAX: the whole context */
} hl_sampling_defaults;
enum { HL_LAST_N_OFF = -1 };

/* What a file says that was made for skipping neurons: prepared here (lib/sparse/README.md) or PowerInfer's own. */
typedef struct hl_sparse {
    bool rows;                                         /* some layer has its down matrix by neurons */
    bool powerinfer, prepared;
    uint32_t n_predictors, n_cuts;                     /* layers that have one; that have thresholds */
    uint32_t input;                                    /* HL_PRED_OF_... */
    float threshold;                                   /* of all scores */
    bool named_act;                                    /* the file says what its activation is */
    uint64_t n_tokens;                                 /* that activations were counted over; 0: not at all */
} hl_sparse;

typedef struct hl_model {
    const hl_env *env;                                 /* borrowed; outlives the model */
    hl_gguf *gguf;
    hl_vocab *vocab;
    const hl_family *family;                           /* NULL: opened for its vocabulary only */
    char *family_name, *name;                          /* NUL-ended copies */
    hl_config config;
    hl_layer *layers;                                  /* [n_layers] */
    const hl_gguf_tensor *t[HL_ROLES];                 /* the per-model roles; t[HL_HEAD] is the embedding when tied */
    const hl_chat_template *chat;                      /* NULL: no template, or not recognised */
    bool has_template;
    hl_sampling_defaults sampling;
    hl_sparse sparse;
    uint64_t n_params, tensor_bytes;
} hl_model;

/* Takes g (also on failure). */
hl_status hl_model_new(const hl_env *env, hl_error *err, hl_gguf *g, uint32_t flags, const hl_progress *progress, hl_model **out);
void hl_model_free(hl_model *m);

/* The number that a shape's dimension stands for in a layer (NULL: HL_D_VOCAB, HL_D_EMBD and HL_D_ROT_2 only). */
uint64_t hl_model_dim(const hl_model *m, const hl_layer *layer, hl_dim d);
/* n elements from `first` on as f32; block rules as in hllm_model_tensor_read. */
hl_status hl_model_read_f32(const hl_model *m, hl_error *err, const hl_gguf_tensor *t, uint64_t first, float *out, size_t n);
/* The tensor has the shape and a type that its role asks for.  l NULL: a role of the model. */
hl_status hl_model_check_shape(const hl_model *m, hl_error *err, const hl_layer *l, hl_role role, const hl_gguf_tensor *t);
/* sparse.c, while a model is opened.  keys: before the tensors' roles are known; layer: those of one layer (t[HL_FFN_DOWN] is the family's). */
hl_status hl_sparse_keys(hl_model *m, hl_error *err, uint32_t flags);
hl_status hl_sparse_layer(hl_model *m, hl_error *err, uint32_t il);
/* gpuidx.c: the hot set beside one of PowerInfer's files, if there is one: into the layers. */
hl_status hl_gpuidx_read(hl_model *m, hl_error *err);
bool hl_act_is_relu(uint32_t act);                     /* exactly zero for what is not above zero */
const char *hl_act_name(uint32_t act);                 /* "relu2" */
/* Names this model: header, sizes and a sample of every tensor's data, so that two checkpoints of one architecture differ.  Reads the file. */
hl_status hl_model_fingerprint(const hl_model *m, hl_error *err, uint64_t *out);
/* Rope tables: for each i < n_rot / 2 the angle per position and, in *magnitude, the factor on cos and sin.  long_context: the session's
 * context exceeds the original one (long rope factors). */
hl_status hl_model_rope(const hl_model *m, hl_error *err, const hl_layer *layer, bool long_context, double *angle, float *magnitude);

#endif
