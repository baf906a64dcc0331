/* sparse.h: preparing a model's file so that neurons can be skipped: what its files share.  The file's format: README.md beside this.
 *
 * profile.c    a text through the model, layer by layer; activations counted; what masks cost measured
 * predictor.c  which neurons will be active: low-rank matrices and thresholds from what was seen
 * rows.c       matrices turned, sorted and quantised
 * write.c      a GGUF file, written once from front to back
 * prepare.c    the whole
 * All runs on the caller's thread and the runtime's compute threads.
 */
#ifndef HL_SPARSE_H
#define HL_SPARSE_H

#include "run/session.h"

/* ---- profile.c ---- */

enum { HL_PROFILE_WINDOW = 512 };

/* A private engine on the model and a text cut into windows. */
typedef struct hl_profiler {
    hllm_engine *e;
    hllm_session *s;
    hl_error *err;
    hl_progress *progress;
    const int32_t *tokens;                             /* [n_windows][window], borrowed */
    uint32_t n_windows, window, n_held;                /* the last n_held are for measuring only */
    float *hidden;                                     /* [n_windows][window][n_embd]: what goes into the layer */
} hl_profiler;

/* What is seen of a layer's FFN, for n tokens: its input, its gate before the activation (NULL: none), and its neurons' values (as many floats a token as the layer has neurons), which may be
 * changed before they go on. */
typedef void hl_ffn_seen(void *arg, uint32_t il, const float *in, const float *gate, float *h, uint32_t n);

hl_status hl_profiler_new(hllm_model *m, const int32_t *tokens, uint32_t n_windows, uint32_t window, uint32_t n_held, hl_error *err, hl_progress *progress, hl_profiler **out);
void hl_profiler_free(hl_profiler *p);
/* All windows through layer il (in order: 0, 1, ...). */
hl_status hl_profiler_layer(hl_profiler *p, uint32_t il, hl_ffn_seen *seen, void *arg);
/* The held-out windows through the whole model with and without `mask`: mean loss of either and mean KL(without || with), in nats. */
typedef struct hl_profile_cost { double nll_dense, nll, kl; uint64_t n_tokens; } hl_profile_cost;
hl_status hl_profiler_cost(hl_profiler *p, hl_ffn_seen *mask, void *arg, hl_profile_cost *out);

/* ---- predictor.c ---- */

enum { HL_LEVELS = 20 };                               /* thresholds for so many levels of care, from careful to rough */

typedef struct hl_predictor {
    uint32_t n_pred, kind, dtype;                      /* width (0: none), HL_PRED_..., of both matrices */
    uint8_t *fc1, *fc2;                                /* quantised, [n_pred][n_embd], [n_ff][n_pred] */
    float *bias[HL_LEVELS];                            /* [n_ff]: - threshold; NULL: no such level */
    double predicted[HL_LEVELS], recall[HL_LEVELS], lost[HL_LEVELS];   /* shares: predicted of all; of the active, predicted; of the energy, lost */
} hl_predictor;

typedef struct hl_train {
    hllm_engine *e;
    hl_error *err;
    uint32_t n_embd, n_ff, n, act;
    const float *x;                                    /* [n][n_embd]: inputs of the FFN */
    const float *w;                                    /* [n_ff][n_embd]: the matrix whose products decide (gate, else up) */
    const float *b;                                    /* [n_ff] or NULL */
    const float *h;                                    /* NULL, or [n][n_ff]: the neurons' values; else act(w x + b) */
    const float *out_norm;                             /* [n_ff]: |down row| squared */
    double first_bytes, rest_bytes;                    /* per neuron: read when predicted; when also active */
} hl_train;
hl_status hl_predictor_train(const hl_train *t, hl_predictor *out);
void hl_predictor_free(hl_mem *mem, hl_predictor *p);

/* ---- threshold.c ---- */

/* Cuts on |act(gate)| so that a share of a layer's neurons is left out: [n_ff] for each layer. */
typedef struct hl_cutter hl_cutter;
hl_status hl_cutter_new(hllm_engine *e, double share, hl_cutter **out);
void hl_cutter_free(hl_cutter *c);
void hl_cutter_begin(hl_cutter *c);
void hl_cutter_see(hl_cutter *c, uint32_t il, const float *gate, uint32_t n);
void hl_cutter_end(hl_cutter *c, uint32_t il);
const float *hl_cutter_cuts(const hl_cutter *c, uint32_t il);
double hl_cutter_kept(const hl_cutter *c, uint32_t il);                              /* share of neurons, over what was seen */
void hl_cutter_mask(const hl_cutter *c, uint32_t il, const float *gate, float *h, uint32_t n);

/* ---- rows.c ---- */

/* order[i]: which of the old neurons is the i-th new one. */
hl_status hl_rows_permuted(const hl_model *m, hl_error *err, const hl_gguf_tensor *t, const uint32_t *order, uint8_t **out, size_t *bytes);
/* A matrix [n_embd][n_ff] as [n_ff][n_embd] of dtype. */
hl_status hl_rows_turned(const hl_model *m, hl_error *err, hl_pool *pool, const hl_gguf_tensor *t, const uint32_t *order, uint32_t dtype, uint8_t **out, size_t *bytes);
/* Which dtype: F32, F16, BF16 stay, all others become Q8_0, or F16 where that would lose too much.  energy: [n_ff], mean squares of the neurons. */
hl_status hl_rows_choose(const hl_model *m, hl_error *err, hl_pool *pool, const hl_gguf_tensor *t, const float *energy, uint32_t *dtype);
uint32_t hl_rows_dtype(uint32_t dtype, uint32_t n_embd);             /* of turned rows */
void hl_quantize_rows(hl_pool *pool, uint32_t dtype, void *to, const float *from, uint32_t rows, uint32_t cols);     /* F32, F16, Q8_0 or Q4_0 */

/* ---- write.c ---- */

typedef struct hl_writer hl_writer;
hl_status hl_writer_new(const hl_env *env, hl_error *err, const char *path, hl_writer **out);
void hl_writer_free(hl_writer *w);                     /* without hl_writer_end nothing changed */
hl_status hl_writer_key_copy(hl_writer *w, const hl_gguf_key *k);
hl_status hl_writer_key(hl_writer *w, const char *name, uint32_t type, const void *data, uint64_t n);      /* n > 1 or elem array: an array; STRING: data of n bytes */
hl_status hl_writer_key_array(hl_writer *w, const char *name, uint32_t elem, const void *data, uint64_t n);
hl_status hl_writer_tensor(hl_writer *w, const char *name, uint32_t dtype, uint64_t cols, uint64_t rows);  /* rows 0: one dimension */
hl_status hl_writer_tensor_as(hl_writer *w, const char *name, const hl_gguf_tensor *t);
/* After all keys and tensors; then the tensors' data in that order. */
hl_status hl_writer_start(hl_writer *w, uint32_t alignment);
hl_status hl_writer_data(hl_writer *w, const void *data, size_t bytes);
hl_status hl_writer_data_end(hl_writer *w);            /* of one tensor */
hl_status hl_writer_end(hl_writer *w);

/* ---- prepare.c ---- */

hl_status hl_prepare(hllm_model *m, const char *path, const hllm_prepare_options *opt);

#endif
