/* backend.h: what a device has to offer: memory, weights in its own layout, and the operators of a transformer.
 *
 * A backend is a table of functions; it knows no models.  lib/run calls it from one thread per stream; everything enqueued on a stream
 * runs in order.  The CPU backend computes before it returns; a GPU backend returns at once, and hl_backend_vt.sync waits.
 * All activations are f32, row-major, [n_tok][n]; pointers are in the device's memory unless a comment says host.
 * Operators never allocate and cannot fail on valid input; a device that is lost says so at sync.
 * The result for one token does not depend on how many tokens are computed with it, nor on the number of threads.
 */
#ifndef HL_BACKEND_H
#define HL_BACKEND_H

#include "base/base.h"
#include "base/dtype.h"
#include "base/kinds.h"

enum { HL_BACKEND_ABI = 1 };

typedef struct hl_device hl_device;                    /* an opened device: the backend's own type */
typedef struct hl_stream hl_stream;                    /* likewise */

enum { HL_LAYOUT_FILE = 0 };                           /* rows one after another as in the GGUF file; others are the backend's own */

/* A weight matrix W[rows][cols]: a row is an output (for an FFN: a neuron). */
typedef struct hl_weight {
    uint32_t dtype;                                    /* HL_F32 ... */
    uint32_t layout;
    uint32_t rows, cols;
    size_t row_bytes;                                  /* in the file's layout */
    const void *data;                                  /* in device memory */
} hl_weight;

/* An activation as the matrices want it: made once per norm by `quantize`, read by every matrix that shares it. */
typedef struct hl_act {
    const float *x;                                    /* [n_tok][n]: what it was made from; must stay until the last matmul */
    void *q;                                           /* act_bytes(n) * n_tok: 8-bit blocks with scales and sums, for quantised weights (F16 and BF16
                                                          ones take x); NULL: f32 arithmetic */
    bool fine;                                         /* q holds two rows for each token: the second is what the first left over, about
                                                          16 bits in all.  Weights are still read once: for the head, where it costs least */
    uint32_t n;
    uint32_t n_tok;
} hl_act;

/* y[n_tok][stride] += nothing: y = W a + bias.  Several of these share one activation and run without a barrier between them. */
typedef struct hl_product {
    const hl_weight *w;
    const float *bias;                                 /* [rows] or NULL */
    float *y;
    size_t stride;                                     /* floats between tokens, >= rows */
} hl_product;

/* K and V of one layer of one session.  Position p lives in slot p % n_slots.  How a slot lies in memory is the backend's own; n heads and m slots
 * take n * m rows' bytes each, a head's slots follow those of the head before. */
enum { HL_KV_SLOTS = 64 };
typedef struct hl_kv_layer {
    void *k, *v;
    uint32_t dtype;                                    /* HL_F16, HL_F32 or HL_Q8_0 (rows padded to whole blocks) */
    uint32_t n_slots;                                  /* a multiple of HL_KV_SLOTS */
    uint32_t n_heads;                                  /* KV heads */
    uint32_t dim_k, dim_v;                             /* per head */
} hl_kv_layer;
size_t hl_kv_row_bytes(uint32_t dtype, uint32_t dim);  /* of one head at one position, as a row of its type */

typedef struct hl_attention {
    const float *q;                                    /* [n_tok][n_heads][dim_k], scaled by nothing */
    float *out;                                        /* [n_tok][n_heads][dim_v] */
    const hl_kv_layer *kv;                             /* holds positions up to pos0 + n_tok - 1 */
    uint32_t n_heads;
    uint32_t n_tok;
    uint32_t pos0;                                     /* position of the first token */
    uint32_t window;                                   /* a token at p sees p - window + 1 .. p; 0: all */
    float scale;                                       /* on q . k */
    float softcap;                                     /* cap * tanh(x / cap); 0: none */
} hl_attention;

/* One token's FFN, whose matrices have a row for each neuron (down transposed), of which some are left out:
 *   y = bias + sum over neurons of act(gate . x + gate_b) * (up . x + up_b) * down, without gate of act(up . x + up_b) * down.
 * A neuron whose score is below the threshold is left out wholly (a NaN is not below); of one whose act(...) is at most its cut in magnitude
 * nothing further is read: with 0, exactly what adds nothing.  The sum is taken over HL_FFN_PARTS parts of the neurons (hl_ffn_part), each in
 * order, and then over the parts in order: the same bits whatever is left out that adds zero, and for any number of threads. */
enum { HL_FFN_PARTS = 32, HL_FFN_BLOCK = 16 };
static inline uint32_t hl_ffn_parts(uint32_t n_ff) { const uint32_t n = (n_ff + 127) / 128; return n < HL_FFN_PARTS ? n : HL_FFN_PARTS; }
static inline uint32_t hl_ffn_part(uint32_t n_ff, uint32_t neuron) { return neuron / HL_FFN_BLOCK % hl_ffn_parts(n_ff); }

typedef struct hl_ffn_count { uint32_t first, second, down; } hl_ffn_count;      /* rows read of the first matrix (gate, else up), of up after gate, of down */

typedef struct hl_ffn {
    const hl_weight *gate, *up, *down;                 /* [n_ff][n_embd]; gate NULL: none; those read here are of weight_rows */
    const float *gate_b, *up_b, *down_b;               /* or NULL */
    const hl_act *a;                                   /* one token */
    const float *first;                                /* [n_ff]: the first matrix's products, bias included; NULL: computed here */
    const float *value;                                /* [n_ff]: what the neurons are, so that only down is read; NULL: not known */
    bool all;                                          /* with value: down rows also of those that are 0 */
    const float *score;                                /* [n_ff]; NULL: no neuron is left out beforehand */
    float threshold;
    const float *cuts;                                 /* [n_ff]; NULL: all 0 */
    uint32_t act;
    bool up_act;                                       /* act(gate) * act(up) */
    float *parts;                                      /* [HL_FFN_PARTS][n_embd], scratch */
    float *y;                                          /* [n_embd] */
    hl_ffn_count *count;                               /* host; what was read */
} hl_ffn;

typedef struct hl_device_options {
    hl_pool *pool;                                     /* CPU: borrowed for the device's life */
    const char *isa;                                   /* CPU: NULL: the best */
    bool act_f32;                                      /* f32 reference arithmetic */
    uint32_t dim_k, dim_v;                             /* the largest head of the model */
} hl_device_options;

typedef struct hl_backend_vt {
    uint32_t abi;                                      /* HL_BACKEND_ABI */
    const char *name;
    bool host_memory;                                  /* device memory is the host's: it may be read and written directly after sync */

    /* Devices and streams.  open: any thread.  A stream belongs to one thread at a time. */
    hl_status (*open)(const hl_env *env, hl_error *err, const hl_device_options *opt, hl_device **out);
    void      (*close)(hl_device *d);
    hl_status (*stream_new)(hl_device *d, hl_error *err, hl_stream **out);
    void      (*stream_free)(hl_stream *s);
    hl_status (*sync)(hl_stream *s, hl_error *err);    /* blocks until all that was enqueued is done */

    /* Memory.  Contents start as zero. */
    void     *(*alloc)(hl_device *d, size_t bytes);    /* NULL: none left */
    void      (*free)(hl_device *d, void *p, size_t bytes);
    hl_status (*write)(hl_stream *s, void *dst, const void *src_host, size_t bytes);
    hl_status (*read)(hl_stream *s, void *dst_host, const void *src, size_t bytes);

    /* Weights.  weight_layout: the layout that this device is fastest with, and its bytes; weight_pack: rows [row0, row0 + n_rows) from
     * the file's layout in host memory into w->data, whose memory the caller owns (rows in multiples of the layout's group, or up to
     * the end).  weight_pack may run in many threads on different rows. */
    void      (*weight_layout)(hl_device *d, uint32_t dtype, uint32_t rows, uint32_t cols, uint32_t *layout, size_t *bytes, uint32_t *row_group);
    void      (*weight_pack)(hl_device *d, hl_weight *w, uint32_t row0, uint32_t n_rows, const void *src_host);
    /* Bytes of a matrix whose rows are read one by one: in the file's layout. */
    size_t    (*weight_rows)(hl_device *d, uint32_t dtype, uint32_t rows, uint32_t cols);
    size_t    (*act_bytes)(hl_device *d, uint32_t n);  /* of one token's 8-bit activation; 0 in f32 arithmetic */

    /* Operators. */
    void (*embed)(hl_stream *s, float *y, const hl_weight *w, const int32_t *ids_host, uint32_t n_tok, float scale);   /* y = scale * row(id) */
    void (*norm)(hl_stream *s, uint32_t kind, float *y, const float *x, const float *w, const float *b, float eps, uint32_t n_rows, uint32_t n);   /* b may be NULL, y may be x */
    void (*quantize)(hl_stream *s, const hl_act *a);   /* a->x to a->q; nothing in f32 arithmetic */
    void (*matmul)(hl_stream *s, const hl_act *a, const hl_product *p, uint32_t n_products);
    void (*rope)(hl_stream *s, float *x, size_t stride, uint32_t n_tok, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, uint32_t kind,
                 const float *cos_sin);                /* x: [n_tok][stride], heads side by side; cos_sin: [n_tok][n_rot / 2][2] */
    void (*kv_put)(hl_stream *s, const hl_kv_layer *kv, const float *k, size_t k_stride, const float *v, size_t v_stride, uint32_t pos0, uint32_t n_tok);
    /* One position's K or V of one head as a row in host memory: from the cache, or to it (put).  For saved sessions. */
    void (*kv_row)(hl_stream *s, const hl_kv_layer *kv, bool is_v, uint32_t head, uint32_t slot, void *row_host, bool put);
    void (*attention)(hl_stream *s, const hl_attention *a, uint32_t n);              /* of several sessions, all of one layer's shape */
    void (*ffn_act)(hl_stream *s, uint32_t kind, float *y, size_t y_stride, const float *gate, const float *up, size_t stride, uint32_t n_tok, uint32_t n);   /* y = act(gate) * up; up NULL: y = act(gate) */
    void (*ffn)(hl_stream *s, const hl_ffn *f);
    /* y[t] = bias + sum of h[t][i] * down[i], in hl_ffn's order; those with h = 0 are not read unless `all`.  counts[t]: host, += rows. */
    void (*ffn_down)(hl_stream *s, const hl_weight *down, const float *bias, const float *h, size_t stride, bool all, float *y, uint32_t n_tok, uint32_t *counts);
    /* h = 0 where the score is below the threshold, or (cuts [n] not NULL) |v| at most its cut.  counts[t] += what was left by the score. */
    void (*ffn_mask)(hl_stream *s, float *h, const float *score, float threshold, const float *v, const float *cuts, size_t stride, uint32_t n_tok, uint32_t n, uint32_t *counts);
    void (*add)(hl_stream *s, float *y, const float *x, size_t n);                   /* y += x */
    void (*softcap)(hl_stream *s, float *y, size_t n, float cap);
} hl_backend_vt;

extern const hl_backend_vt hl_cpu_backend;

/* For `devices` and the CPU's own tests: the tables that this CPU supports, best first. */
const char *hl_cpu_isa_list(void);                     /* "avx512bf16 avx512 avx2 scalar" */
const char *hl_cpu_isa_pick(const char *isa);          /* NULL: the best; returns NULL for an unknown or unsupported one */
/* Bytes read or operations done per second by all threads of the pool; see hllm_machine_speed. */
double hl_cpu_measure_read(const hl_env *env, hl_pool *pool, size_t bytes);
double hl_cpu_measure_int8(hl_pool *pool, const char *isa);
/* The same of one kernel table, beside reads of 4 KiB rows in random order.  0: no memory for it, or no such table. */
void hl_cpu_measure_rates(const hl_env *env, hl_pool *pool, const char *isa, size_t bytes, double *read, double *gather);

#endif
