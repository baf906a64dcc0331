/* hybrid_llm.h: run language models that are bigger than the GPU, or bigger than the machine.
 *
 * SPDX-License-Identifier: MIT
 *
 * Handles, in order of use; a child keeps its parent alive, so they may be freed in any order:
 *   hllm_runtime   allocator, log, threads, what the machine can do
 *   hllm_model     an opened GGUF file: metadata, tensors, tokenizer, chat template.  Immutable, shareable
 *   hllm_plan      what lies where, and how fast that will be: numbers, from a file's header alone.  Immutable, shareable
 *   hllm_engine    a model's weights in memory, ready to compute.  Immutable, shareable
 *   hllm_session   one conversation: KV cache, position, sampling
 *
 * Rules that hold everywhere
 *   Errors   Every fallible function returns hllm_status: 0 is success, negative is an error.  On an error every output is
 *            NULL or 0 and nothing needs cleanup; only HLLM_E_BUFFER gives the count that is needed (ask with cap 0, allocate,
 *            call again).  The text (what, where, value, limit) is copied out of a handle with its
 *            hllm_..._last_error function: the handle that was the first argument of the failed call.
 *   Threads  A const handle may be used by many threads at once; a non-const one by one thread at a time (a second thread inside
 *            a session gets HLLM_E_BUSY).  hllm_generate_cancel and hllm_progress_cancel: from any thread at any time.
 *   Structs  The caller sets struct_size = sizeof(the struct) and clears the rest; in options 0 always means "the default".
 *            Structs grow only at their end, at reserved fields; a larger struct whose unknown tail is not zero is refused.
 *   Text     UTF-8, with a length; a NUL is never needed, except in path and name arguments (const char * without a length).
 *   Memory   "borrows": until the call returns.  "copies": the caller's memory is free after the call.
 *            Strings inside output structs live as long as the handle that they came from.
 *   Guest    The library never prints, never ends the process, reads no environment variable, installs no signal handler,
 *            changes no locale and no floating-point mode, and blocks all signals in its own threads.
 */
#ifndef HYBRID_LLM_H
#define HYBRID_LLM_H

#include <stddef.h>
#include <stdint.h>

#define HLLM_VERSION_MAJOR 0
#define HLLM_VERSION_MINOR 1
#define HLLM_VERSION_PATCH 0

#if defined(_WIN32)
#  define HLLM_API
#elif defined(__GNUC__)
#  define HLLM_API __attribute__((visibility("default")))
#else
#  define HLLM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ------------------------------------------------------------------------------------------------------- */

typedef int32_t hllm_status;
enum {
    HLLM_OK             = 0,
    HLLM_E_ARG          = -1,    /* an argument is NULL, out of range or not UTF-8 where UTF-8 is required */
    HLLM_E_NOMEM        = -2,    /* memory cannot be had; the text has both numbers where they are known */
    HLLM_E_IO           = -3,    /* the operating system refused; the text has its reason */
    HLLM_E_FORMAT       = -4,    /* a file does not follow its format */
    HLLM_E_TRUNCATED    = -5,    /* a file ends before what it declares */
    HLLM_E_VERSION      = -6,    /* a version of a file or a struct_size that is not known here */
    HLLM_E_ENDIAN       = -7,    /* a big-endian file */
    HLLM_E_LIMIT        = -8,    /* above a documented limit */
    HLLM_E_UNSUPPORTED  = -9,    /* well-formed, but nothing here can do it; the text lists what can be done */
    HLLM_E_MISMATCH     = -10,   /* two things that must fit do not: tensor and shape, session file and model, shards */
    HLLM_E_STATE        = -11,   /* not now: the text says what has to come before */
    HLLM_E_BUSY         = -12,   /* another thread is inside this handle */
    HLLM_E_CANCELLED    = -13,   /* cancelled, as asked */
    HLLM_E_CONTEXT_FULL = -14,   /* the context has no room; the text has the counts */
    HLLM_E_NUMERIC      = -15,   /* NaN or infinity in the logits; no token was produced */
    HLLM_E_CORRUPT      = -16,   /* a checksum or an inner length is wrong */
    HLLM_E_NOT_FOUND    = -17,   /* no such key, tensor, token or file */
    HLLM_E_BUFFER       = -18,   /* the buffer is too small: the needed count was returned and nothing was written */
    HLLM_E_TIMEOUT      = -19,   /* nothing happened in the time given */
    HLLM_E_INTERNAL     = -20    /* a defect of this library: please report it */
};

/* The name of a code, such as "HLLM_E_FORMAT"; "HLLM_E_?" for an unknown one.  Never NULL. */
HLLM_API const char *hllm_status_name(hllm_status status);
/* The library's own version, such as "0.1.0". */
HLLM_API const char *hllm_version(void);

/* ---- runtime ------------------------------------------------------------------------------------------------------ */

typedef struct hllm_runtime  hllm_runtime;
typedef struct hllm_progress hllm_progress;
typedef struct hllm_model    hllm_model;
typedef struct hllm_engine   hllm_engine;
typedef struct hllm_session  hllm_session;

/* All memory of the library comes through here, from any of its threads (but what libjansson takes while plans are read and written, and
 * GLPK while it solves).  align is a power of two up to 2 MiB; a result that is
 * not so aligned is refused.  free gets what alloc returned, with the same bytes and align. */
typedef struct hllm_allocator {
    uint32_t struct_size;
    uint32_t reserved0;
    void *user;
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *block, size_t bytes, size_t align);
} hllm_allocator;

typedef struct hllm_runtime_options {
    uint32_t struct_size;
    uint32_t n_threads;               /* compute threads; 0: physical cores; at most 1,024 */
    const hllm_allocator *allocator;  /* copied; NULL: the C library's, with large pages for large blocks */
    const char *isa;                  /* force a lower CPU kernel table: "scalar", "avx2", "avx512", "neon", ... (see isa_known); NULL: the best */
    char *error_text;                 /* where hllm_runtime_create itself puts its error text, NUL-ended; may be NULL */
    size_t error_capacity;
} hllm_runtime_options;

/* opt may be NULL. */
HLLM_API hllm_status hllm_runtime_create(const hllm_runtime_options *opt, hllm_runtime **out);
HLLM_API void hllm_runtime_free(hllm_runtime *rt);
/* The text of the last failed call on this handle, NUL-ended, cut to cap.  Returns the bytes that the whole text needs with
 * its NUL.  buf may be NULL when cap is 0.  With many threads on one handle the text may be another thread's. */
HLLM_API size_t hllm_runtime_last_error(const hllm_runtime *rt, char *buf, size_t cap);

enum { HLLM_LOG_INFO = 1, HLLM_LOG_WARNING = 2 };
/* Takes the oldest line out of the log (warnings about files, mostly).  *needed = its bytes with the NUL; 0: the log is empty.
 * HLLM_E_BUFFER: cap is below *needed, the line stays.  Only the newest 256 lines are kept. */
HLLM_API hllm_status hllm_log_poll(hllm_runtime *rt, uint32_t *level, char *buf, size_t cap, size_t *needed);

typedef struct hllm_machine_info {
    uint32_t struct_size;
    uint32_t n_threads;               /* what this runtime computes with */
    uint32_t n_cores;                 /* physical cores that the process may use */
    uint32_t n_cpus;                  /* logical ones */
    uint64_t memory_bytes;            /* of the machine, the cgroup's limit or the process's own (RLIMIT_AS), the lowest */
    uint64_t memory_available_bytes;  /* now, likewise */
    uint64_t l1d_bytes, l2_bytes, l3_bytes;
    const char *cpu;                  /* the maker's name for it */
    const char *isa;                  /* the kernel table in use */
    const char *isa_known;            /* the tables in this build that this CPU supports, best first, separated by spaces */
} hllm_machine_info;
HLLM_API hllm_status hllm_runtime_machine(const hllm_runtime *rt, hllm_machine_info *out);

typedef struct hllm_machine_speed {
    uint32_t struct_size;
    uint32_t reserved0;
    double read_bytes_per_s;          /* sequential reads of memory, all threads; best of 1, 2, 4 and 8 streams a thread */
    double int8_ops_per_s;            /* dot products of bytes, all threads, one multiply-add = 2 operations */
} hllm_machine_speed;
/* Measures for about half a second (and 512 MiB of memory; less if that is not available).  Uses the compute threads. */
HLLM_API hllm_status hllm_runtime_measure(hllm_runtime *rt, hllm_machine_speed *out);

/* What this machine was measured to do, kept in a file that the caller names, so that it is measured once. */
typedef struct hllm_profile hllm_profile;
enum { HLLM_PROFILE_REMEASURE = 1 };
typedef struct hllm_profile_options {
    uint32_t struct_size;
    uint32_t flags;                   /* HLLM_PROFILE_... */
    const char *path;                 /* the file; NULL: measured now, kept nowhere */
    const char *model_path;           /* a file on the disk whose speed counts; NULL: none */
} hllm_profile_options;
/* Reads the file, or measures (some seconds; the compute threads, 128 MiB) and writes it: when there is none, when it is of another
 * machine, number of threads or version of the library, when it is damaged, when asked to.  A file that cannot be written is only a
 * line in the log.  opt may be NULL.  Errors are on rt. */
HLLM_API hllm_status hllm_profile_open(hllm_runtime *rt, const hllm_profile_options *opt, hllm_profile **out);
HLLM_API void hllm_profile_free(hllm_profile *p);

typedef struct hllm_profile_info {
    uint32_t struct_size;
    uint32_t n_rates;
    uint32_t from_file;               /* 1: the rates were read, not measured */
    uint32_t n_gpus;                  /* 0 in this version */
    double sync_s;                    /* one hand-over between compute threads, both ways, with the waiting that is really used */
    double disk_bytes_per_s;          /* sequential reads past the page cache, on model_path's disk; 0: not known */
    uint64_t memory_available_bytes;  /* now; as in hllm_machine_info */
} hllm_profile_info;
HLLM_API hllm_status hllm_profile_get_info(const hllm_profile *p, hllm_profile_info *out);

typedef struct hllm_profile_rate {
    uint32_t struct_size;
    uint32_t n_threads;
    const char *isa;                  /* the kernel table */
    double read_bytes_per_s;          /* memory, in order */
    double gather_bytes_per_s;        /* memory, rows of 4 KiB in random order */
    double int8_ops_per_s;            /* as in hllm_machine_speed */
} hllm_profile_rate;
HLLM_API hllm_status hllm_profile_get_rate(const hllm_profile *p, uint32_t index, hllm_profile_rate *out);

/* Watches one slow call from another thread: pass it in the call's options, read and cancel it from anywhere.  One call at a
 * time per progress handle. */
HLLM_API hllm_status hllm_progress_create(hllm_runtime *rt, hllm_progress **out);
HLLM_API void hllm_progress_free(hllm_progress *p);
/* Units are bytes when loading.  total 0: not known yet. */
HLLM_API hllm_status hllm_progress_read(const hllm_progress *p, uint64_t *done, uint64_t *total);
/* The call that the handle is given to ends with HLLM_E_CANCELLED, also one that begins later: a cancelled handle stays so. */
HLLM_API hllm_status hllm_progress_cancel(hllm_progress *p);

/* ---- model -------------------------------------------------------------------------------------------------------- */

enum {
    HLLM_MODEL_VOCAB_ONLY  = 1,       /* tensors may be absent; only metadata and tokenizer functions work */
    HLLM_MODEL_HEADER_ONLY = 2,       /* the tensors' data may be missing (a download that has only begun): for hllm_plan_solve and
                                         hllm_model_memory; such a model gives no engine */
    HLLM_MODEL_FFN_RELU    = 4,       /* the feed-forward activation is ReLU, which the file does not say: ReLU-Llama, ProSparse and others
                                         whose files are of family "llama" */
    HLLM_MODEL_FFN_RELU2   = 8        /* likewise: the square of ReLU */
};

typedef struct hllm_model_options {
    uint32_t struct_size;
    uint32_t flags;
    hllm_progress *progress;
} hllm_model_options;

/* Opens a GGUF file (v2 or v3, little-endian).  The first file of a split set opens the others beside it.  Checks everything;
 * reads no weights.  Errors are on rt. */
HLLM_API hllm_status hllm_model_open(hllm_runtime *rt, const char *path, const hllm_model_options *opt, hllm_model **out);
/* The same from an open file descriptor: length bytes at offset (an asset inside a bundle); length 0: to the file's end.
 * The descriptor is duplicated; the caller keeps its own. */
HLLM_API hllm_status hllm_model_open_fd(hllm_runtime *rt, int32_t fd, uint64_t offset, uint64_t length,
                                        const hllm_model_options *opt, hllm_model **out);
HLLM_API void hllm_model_free(hllm_model *m);
HLLM_API size_t hllm_model_last_error(const hllm_model *m, char *buf, size_t cap);

typedef struct hllm_model_info {
    uint32_t struct_size;
    uint32_t gguf_version;
    const char *family;               /* general.architecture */
    const char *name;                 /* general.name or "" */
    uint64_t file_bytes;              /* of all shards */
    uint64_t tensor_bytes;
    uint64_t n_params;                /* elements of all tensors */
    uint32_t n_layers, n_embd, n_ff, n_vocab;
    uint32_t n_heads, n_heads_kv, head_dim_k, head_dim_v;   /* of the first layer */
    uint32_t n_ctx_train;
    uint32_t window;                  /* sliding window in tokens; 0: none */
    uint32_t n_keys, n_tensors, n_shards;
    uint32_t flags;                   /* HLLM_MODEL_VOCAB_ONLY when opened so */
} hllm_model_info;
HLLM_API hllm_status hllm_model_get_info(const hllm_model *m, hllm_model_info *out);

/* GGUF value types, as in the file. */
enum {
    HLLM_VALUE_U8 = 0, HLLM_VALUE_I8 = 1, HLLM_VALUE_U16 = 2, HLLM_VALUE_I16 = 3, HLLM_VALUE_U32 = 4, HLLM_VALUE_I32 = 5,
    HLLM_VALUE_F32 = 6, HLLM_VALUE_BOOL = 7, HLLM_VALUE_STRING = 8, HLLM_VALUE_ARRAY = 9, HLLM_VALUE_U64 = 10,
    HLLM_VALUE_I64 = 11, HLLM_VALUE_F64 = 12
};
typedef struct hllm_key_info {
    uint32_t struct_size;
    uint32_t type;                    /* HLLM_VALUE_... */
    uint32_t element_type;            /* of an array's elements; else = type */
    uint32_t reserved0;
    uint64_t n_elements;              /* 1 for a scalar */
    const char *name;
} hllm_key_info;
HLLM_API hllm_status hllm_model_key(const hllm_model *m, uint32_t index, hllm_key_info *out);
HLLM_API hllm_status hllm_model_find_key(const hllm_model *m, const char *name, uint32_t *index);
/* One element of a key (element 0 of a scalar).  HLLM_E_MISMATCH: another kind of value, or an integer outside int64_t. */
HLLM_API hllm_status hllm_model_key_int(const hllm_model *m, uint32_t index, uint64_t element, int64_t *out);
HLLM_API hllm_status hllm_model_key_float(const hllm_model *m, uint32_t index, uint64_t element, double *out);
/* *text points into the model, bytes long, not NUL-ended. */
HLLM_API hllm_status hllm_model_key_string(const hllm_model *m, uint32_t index, uint64_t element, const char **text, size_t *bytes);

typedef struct hllm_tensor_info {
    uint32_t struct_size;
    uint32_t type;                    /* ggml's number */
    const char *name;
    const char *type_name;            /* "Q4_K" */
    uint32_t n_dims;
    uint32_t shard;
    uint64_t dims[4];                 /* innermost first, as in the file; 1 beyond n_dims */
    uint64_t bytes;
} hllm_tensor_info;
HLLM_API hllm_status hllm_model_tensor(const hllm_model *m, uint32_t index, hllm_tensor_info *out);
HLLM_API hllm_status hllm_model_find_tensor(const hllm_model *m, const char *name, uint32_t *index);
/* Dequantises n elements from element `first` on (both multiples of the type's block, or up to the end of the tensor). */
HLLM_API hllm_status hllm_model_tensor_read(const hllm_model *m, uint32_t index, uint64_t first, float *out, size_t n);

/* ---- prepared files ---- */

enum { HLLM_PREPARE_NO_PREDICTORS = 1 };      /* statistics and the new order only */
typedef struct hllm_prepare_options {
    uint32_t struct_size;
    uint32_t flags;                   /* HLLM_PREPARE_... */
    const char *text;                 /* UTF-8, borrowed: what the model will be used for; some tens of thousands of tokens */
    size_t text_bytes;
    hllm_progress *progress;          /* in tokens times layers */
    double perplexity_loss;           /* what leaving out predicted neurons may cost, on a part of the text that was not learnt from; 0: 0.001 */
    double skip_share;                /* instead of predictors: thresholds on act(gate) that leave out this share of neurons, for models whose neurons
                                         are never zero (SiLU, GELU); what it costs is measured, not promised.  0: none */
} hllm_prepare_options;
/* Writes a file in which feed-forward neurons can be skipped: the down matrices turned, so that a neuron is a row in each matrix (Q8_0 or
 * wider), neurons in the order of how often the text made them active, and predictors of which will be.  The function that the model computes is the
 * same (but for the rounding of down).  An ordinary GGUF, with keys hybrid_llm.* and what was measured; new file, fsync, rename: an old file at
 * path stays until the new one is whole.  The model is loaded (or mapped) meanwhile.  Errors are on m. */
HLLM_API hllm_status hllm_prepare(const hllm_model *m, const char *path, const hllm_prepare_options *opt);

typedef struct hllm_sparse_info {
    uint32_t struct_size;
    uint32_t by_neurons;              /* 1: the down matrices have a row for each neuron: a prepared file or one of PowerInfer's */
    uint32_t powerinfer;              /* 1: one of PowerInfer's */
    uint32_t n_predictors;            /* layers that have a predictor */
    const char *act;                  /* "relu2": the FFN's activation */
    uint64_t n_tokens;                /* that activations were counted over; 0: not counted */
    uint64_t n_measured;              /* tokens that the rest was measured on; 0: not measured */
    double nll_exact, nll_predicted;  /* mean loss in nats a token in the modes exact and predicted (or thresholded); perplexity is exp of it */
    double kl_predicted;              /* mean divergence of predicted from exact, in nats */
    uint32_t n_thresholds;            /* layers that have thresholds */
    uint32_t reserved0;
} hllm_sparse_info;
HLLM_API hllm_status hllm_model_get_sparse(const hllm_model *m, hllm_sparse_info *out);

enum { HLLM_PREDICTOR_NONE = 0, HLLM_PREDICTOR_LINEAR = 1, HLLM_PREDICTOR_RELU = 2 };
typedef struct hllm_sparse_layer {
    uint32_t struct_size;
    uint32_t n_neurons;
    uint32_t n_pred;                  /* width of the predictor; 0: none */
    uint32_t predictor;               /* HLLM_PREDICTOR_... */
    double active;                    /* mean share of neurons that are not zero for a token */
    double hot80;                     /* share of neurons that makes 80 % of all activations */
    double overlap;                   /* of the hottest fifth in the text's first half, the share that is so in the second */
    double predicted, recall;         /* share of neurons let through; of the active ones, the share let through */
    double energy_kept;               /* of the neurons' squared contributions */
    uint64_t bytes_dense, bytes_exact, bytes_predicted, bytes_predictor;     /* weights read for one token; predicted: with the predictor */
} hllm_sparse_layer;
HLLM_API hllm_status hllm_model_get_sparse_layer(const hllm_model *m, uint32_t index, hllm_sparse_layer *out);

/* ---- tokens ------------------------------------------------------------------------------------------------------- */

enum {
    HLLM_TOKENIZE_NO_SPECIAL    = 1,  /* do not add BOS and EOS, even if the model asks for them */
    HLLM_TOKENIZE_PARSE_SPECIAL = 2   /* control tokens written in the text become those tokens; never for users' text */
};
/* Borrows text; invalid UTF-8 is accepted.  User-defined tokens always match.  Never gives two BOS.  *n_out = how many tokens
 * there are; HLLM_E_BUFFER when that is above cap.  out may be NULL when cap is 0.  Text at most 1 GiB. */
HLLM_API hllm_status hllm_tokenize(const hllm_model *m, const char *text, size_t bytes, uint32_t flags,
                                   int32_t *out, size_t cap, size_t *n_out);
enum {
    HLLM_DETOKENIZE_SPECIAL  = 1,     /* write control tokens as their text; else they give nothing */
    HLLM_DETOKENIZE_CONTINUE = 2      /* the tokens continue a text: keep the space that the model puts before a text's first word */
};
/* The exact bytes of the tokens, which may end inside a character.  Same buffer rule.  Undoes hllm_tokenize, but for bytes that the
 * vocabulary has no token for: these are lost in tokenizing.  SmolLM2's, say, lacks 0x06, 0x14, 0xF1 and others: a control character
 * among them gives no token, a byte that is no UTF-8 gives U+FFFD; vocabularies without byte tokens have the unknown token for it.
 * SPM writes a space as U+2581: that character itself comes back as a space. */
HLLM_API hllm_status hllm_detokenize(const hllm_model *m, const int32_t *tokens, size_t n, uint32_t flags,
                                     char *buf, size_t cap, size_t *bytes_out);

enum {
    HLLM_TOKEN_NORMAL = 1, HLLM_TOKEN_UNKNOWN = 2, HLLM_TOKEN_CONTROL = 3, HLLM_TOKEN_USER_DEFINED = 4,
    HLLM_TOKEN_UNUSED = 5, HLLM_TOKEN_BYTE = 6
};
typedef struct hllm_token_info {
    uint32_t struct_size;
    uint32_t type;                    /* HLLM_TOKEN_... */
    uint32_t ends_generation;         /* 1: EOS, end of turn and their like */
    float score;
    const char *text;                 /* as in the file, text_bytes long */
    size_t text_bytes;
} hllm_token_info;
HLLM_API hllm_status hllm_model_token(const hllm_model *m, int32_t id, hllm_token_info *out);

enum { HLLM_SPECIAL_BOS = 1, HLLM_SPECIAL_EOS = 2, HLLM_SPECIAL_EOT = 3, HLLM_SPECIAL_UNK = 4, HLLM_SPECIAL_PAD = 5 };
/* -1 (and HLLM_OK) when the model has no such token. */
HLLM_API hllm_status hllm_model_special_token(const hllm_model *m, uint32_t kind, int32_t *id);

/* ---- chat --------------------------------------------------------------------------------------------------------- */

typedef struct hllm_chat_message {
    uint32_t struct_size;
    uint32_t reserved0;
    const char *role;                 /* "system", "user", "assistant" */
    const char *content;
    size_t content_bytes;
} hllm_chat_message;

enum {
    HLLM_CHAT_NO_GENERATION_PROMPT = 1,   /* do not open the assistant's turn */
    HLLM_CHAT_NO_THINKING          = 2    /* where the template has the choice (Qwen3): ask for an answer without thinking */
};
typedef struct hllm_chat_options {
    uint32_t struct_size;
    uint32_t flags;
    const char *template_name;        /* one of hllm_chat_template_names; NULL: recognised from the model's own template */
} hllm_chat_options;

/* The names of all built-in templates, separated by spaces. */
HLLM_API const char *hllm_chat_template_names(void);
/* *name = the built-in template that equals the model's own.  HLLM_E_UNSUPPORTED: not recognised; HLLM_E_NOT_FOUND: none. */
HLLM_API hllm_status hllm_chat_template(const hllm_model *m, const char **name);
/* The conversation as the template writes it (text with control tokens spelled out): for reading.  opt may be NULL.
 * There is no clock: templates that can do without today's date write their own default one (Llama 3.1: 26 Jul 2024), others refuse
 * what needs it (HLLM_E_ARG). */
HLLM_API hllm_status hllm_chat_render(const hllm_model *m, const hllm_chat_message *messages, size_t n,
                                      const hllm_chat_options *opt, char *buf, size_t cap, size_t *bytes_out);
/* The same as tokens, to be generated from.  Only the template's own parts become control tokens, or any other of the tokens that the
 * template may write (but for white space), whatever type the file gives them: message texts cannot forge one. */
HLLM_API hllm_status hllm_chat_tokenize(const hllm_model *m, const hllm_chat_message *messages, size_t n,
                                        const hllm_chat_options *opt, int32_t *out, size_t cap, size_t *n_out);

/* ---- plans -------------------------------------------------------------------------------------------------------- */

/* Which neurons of each layer's FFN lie on a GPU, which dense parts, and which layers on which machine of a ring; with what that makes
 * of a token's time.  Pure data: made for machines that one does not have, too, and shipped as JSON (a file's format and the problems':
 * planner/plan_io.c).  Every plan, whoever made it, is verified before it becomes a handle. */
typedef struct hllm_plan hllm_plan;

enum { HLLM_OBJECTIVE_AUTO = 0, HLLM_OBJECTIVE_TIME = 1, HLLM_OBJECTIVE_IMPACT = 2 };
/* auto: the built-in solvers, and libhybridllm-glpk.so beside them where it is found: the better plan, the tighter bound. */
enum { HLLM_SOLVER_AUTO = 0, HLLM_SOLVER_BUILTIN = 1, HLLM_SOLVER_GLPK = 2 };

/* Filled when a plan is impossible (HLLM_E_NOMEM); all 0 with any other result. */
typedef struct hllm_plan_shortage {
    uint32_t struct_size;
    uint32_t n_ctx_fits;              /* hllm_plan_solve: the longest context that would fit; 0: none */
    uint64_t bytes_needed;            /* what the CPU's budget leaves for GPUs */
    uint64_t bytes_available;         /* the most that the GPUs can take of it */
} hllm_plan_shortage;

typedef struct hllm_plan_gpu {
    uint32_t struct_size;
    uint32_t reserved0;
    uint64_t budget_bytes;
    double bytes_per_s;               /* reads of its memory */
    double sync_s;                    /* one hand-over between CPU and GPU in a layer; 0: 30 microseconds */
} hllm_plan_gpu;

typedef struct hllm_plan_options {
    uint32_t struct_size;
    uint32_t objective;               /* HLLM_OBJECTIVE_...; auto: the problem's own, else time */
    uint32_t solver;                  /* HLLM_SOLVER_... */
    uint32_t flags;                   /* 0 */
    double time_limit_s;              /* after it the best plan so far, with its gap; 0: 10 seconds */
    const char *module_dir;           /* where libhybridllm-glpk.so lies; NULL: beside this library */
    hllm_plan_shortage *shortage;     /* may be NULL */
    /* The rest is for hllm_plan_solve. */
    uint32_t n_ctx;                   /* as in hllm_session_options */
    uint32_t kv;                      /* HLLM_KV_... */
    uint64_t cpu_budget_bytes;        /* 0: what the machine has available now */
    double cpu_bytes_per_s;           /* 0: measured now (half a second) */
    const hllm_plan_gpu *gpus;        /* [n_gpus]; layers' GPU parts follow this order */
    uint32_t n_gpus;
    uint32_t reserved0;
} hllm_plan_options;

/* A plan for a model, of which only the header is read.  Without statistics of activations every neuron counts alike (dense).
 * HLLM_E_NOMEM: impossible; the text has bytes needed and available, and the longest context that would fit.  HLLM_E_TIMEOUT: no
 * admissible plan was found in the time.  opt may be NULL.  Errors are on m. */
HLLM_API hllm_status hllm_plan_solve(const hllm_model *m, const hllm_plan_options *opt, hllm_plan **out);
/* A plan for a problem given as JSON.  Errors (HLLM_E_FORMAT and others: the text names the key) are on rt. */
HLLM_API hllm_status hllm_plan_solve_problem(hllm_runtime *rt, const char *json, size_t bytes, const hllm_plan_options *opt, hllm_plan **out);
/* Reads a plan file's text.  HLLM_E_VERSION: a later format.  HLLM_E_MISMATCH: it is not admissible, or not worth what it says. */
HLLM_API hllm_status hllm_plan_read(hllm_runtime *rt, const char *json, size_t bytes, hllm_plan **out);
HLLM_API void hllm_plan_free(hllm_plan *p);
HLLM_API size_t hllm_plan_last_error(const hllm_plan *p, char *buf, size_t cap);

enum { HLLM_PLAN_CHECK_MACHINE = 1 };
/* Was it made for this model (header, tensor table and size equal)?  With HLLM_PLAN_CHECK_MACHINE also: can this machine, as it is now,
 * hold what the plan puts on it?  m may be NULL.  HLLM_E_MISMATCH: the text, on p, says what differs; HLLM_E_NOMEM: both numbers. */
HLLM_API hllm_status hllm_plan_check(const hllm_plan *p, const hllm_model *m, uint32_t flags);

enum { HLLM_PLAN_ANSWER = 1 };        /* only the answer, in the format of the problems */
/* The plan as JSON: a file's text, or the answer alone.  *bytes_out without a NUL; HLLM_E_BUFFER when it is above cap. */
HLLM_API hllm_status hllm_plan_write(const hllm_plan *p, uint32_t flags, char *buf, size_t cap, size_t *bytes_out);
/* The plan as a picture (SVG). */
HLLM_API hllm_status hllm_plan_draw(const hllm_plan *p, char *buf, size_t cap, size_t *bytes_out);

enum { HLLM_PLAN_NEURON = 1, HLLM_PLAN_LAYER = 2 };
typedef struct hllm_plan_info {
    uint32_t struct_size;
    uint32_t kind;                    /* HLLM_PLAN_... */
    uint32_t objective_kind;          /* HLLM_OBJECTIVE_TIME or _IMPACT: what objective and bound are */
    uint32_t n_layers, n_devices;     /* devices: the CPU and the GPUs, or the ring's machines */
    uint32_t k;                       /* rounds of a ring; else 0 */
    double objective, bound, gap;     /* seconds or expected activations; gap = |objective - bound| / |bound| */
    double seconds_per_token;         /* predicted */
    double solve_s;
    const char *solver;               /* "builtin", "glpk", "file", or a method's name */
    uint64_t model_hash;              /* 0: made for no file */
    uint64_t model_bytes;
    uint32_t n_ctx;                   /* that the KV cache was sized for; 0: not a model's plan */
    uint32_t uniform;                 /* 1: no statistics of activations were there */
} hllm_plan_info;
HLLM_API hllm_status hllm_plan_get_info(const hllm_plan *p, hllm_plan_info *out);

typedef struct hllm_plan_device {
    uint32_t struct_size;
    uint32_t n_parts;
    uint32_t n_layers, n_layers_gpu;  /* of a ring's machine */
    uint64_t budget_bytes, bytes;
    double seconds;                   /* per token that it is busy; devices may be so at the same time */
    const char *name;
} hllm_plan_device;
HLLM_API hllm_status hllm_plan_get_device(const hllm_plan *p, uint32_t index, hllm_plan_device *out);

typedef struct hllm_plan_part {
    uint32_t struct_size;
    uint32_t reserved0;
    uint64_t bytes;
    double seconds;
    const char *kind;                 /* "attention", "ffn_hot", "ffn_cold", "head", "embedding", "kv", "predictor", "scratch", ... */
} hllm_plan_part;
HLLM_API hllm_status hllm_plan_get_part(const hllm_plan *p, uint32_t device, uint32_t index, hllm_plan_part *out);

typedef struct hllm_plan_layer {
    uint32_t struct_size;
    int32_t  gpu;                     /* index among the GPUs of the device that holds its hot part; -1: none */
    uint64_t n_neurons, n_neurons_gpu;
    uint32_t device;                  /* of a ring: the machine; else 0 */
    uint32_t on_gpu;                  /* of a ring: 1 when that machine's GPU holds the layer */
} hllm_plan_layer;
HLLM_API hllm_status hllm_plan_get_layer(const hllm_plan *p, uint32_t index, hllm_plan_layer *out);

/* ---- engine ------------------------------------------------------------------------------------------------------- */

enum { HLLM_LOAD_AUTO = 0, HLLM_LOAD_MMAP = 1, HLLM_LOAD_READ = 2 };   /* auto: read if it fits in memory, else mmap; the same results, read
                                                                          answers faster: weights are laid out for the kernels */
enum { HLLM_ACT_Q8 = 0, HLLM_ACT_F32 = 1 };   /* activations as 8-bit blocks (fast; F16 and BF16 weights keep theirs in 16 bits or more), or f32 reference arithmetic */
/* Which feed-forward neurons are computed.  exact: all that are not exactly zero (with ReLU activations and a file by hllm_prepare those are not
 * read further); the default.  predicted: those that the file's predictors let through; hllm_model_get_sparse says what that costs.
 * thresholded: those above the file's thresholds, likewise.  dense: all, also those that are zero. */
enum { HLLM_MODE_EXACT = 0, HLLM_MODE_PREDICTED = 1, HLLM_MODE_THRESHOLDED = 2, HLLM_MODE_DENSE = 3 };
enum { HLLM_KV_F16 = 0, HLLM_KV_F32 = 1, HLLM_KV_Q8_0 = 2 };

typedef struct hllm_engine_options {
    uint32_t struct_size;
    uint32_t load;                    /* HLLM_LOAD_... */
    uint32_t act;                     /* HLLM_ACT_... */
    uint32_t flags;                   /* 0 */
    uint64_t ram_bytes;               /* a budget of one's own for weights that are read (not mapped), KV and scratch; 0: what the
                                         machine has */
    hllm_progress *progress;
    const struct hllm_session_options *session;   /* the session that is going to be made: its memory counts before anything is
                                                     loaded.  NULL: weights only */
    uint32_t mode;                    /* HLLM_MODE_...; HLLM_E_UNSUPPORTED when the file has not what it needs */
    uint32_t reserved0;
} hllm_engine_options;

typedef struct hllm_session_options {
    uint32_t struct_size;
    uint32_t n_ctx;                   /* tokens of context; 0: the smaller of the model's and 4,096 */
    uint32_t kv;                      /* HLLM_KV_... */
    uint32_t micro_batch;             /* prompt tokens computed at once; 0: the model's default (512, less for wide models) */
    hllm_progress *progress;          /* of hllm_session_create, in bytes: a long context's KV cache takes a while to become resident */
} hllm_session_options;

typedef struct hllm_memory_need {
    uint32_t struct_size;
    uint32_t reserved0;
    uint64_t weights_bytes;           /* and tables; resident when loaded by reading; by mmap they may be paged out */
    uint64_t kv_bytes;
    uint64_t scratch_bytes;
    uint64_t total_bytes;
    uint64_t available_bytes;         /* machine, cgroup, the process's limits or ram_bytes, the lowest */
} hllm_memory_need;
/* What an engine and one session would need, before anything is loaded.  Both options may be NULL. */
HLLM_API hllm_status hllm_model_memory(const hllm_model *m, const hllm_engine_options *engine_opt,
                                       const hllm_session_options *session_opt, hllm_memory_need *out);

/* Puts the weights in memory.  Refused with HLLM_E_NOMEM and both numbers, before anything is read, when they (with what loading itself
 * needs, and the named session) do not fit.
 * Errors are on the model. */
HLLM_API hllm_status hllm_engine_create(const hllm_model *m, const hllm_engine_options *opt, hllm_engine **out);
HLLM_API void hllm_engine_free(hllm_engine *e);
HLLM_API size_t hllm_engine_last_error(const hllm_engine *e, char *buf, size_t cap);

/* ---- session ------------------------------------------------------------------------------------------------------ */

/* Reserves all memory that the session will ever use, but for copies of bias and stop texts (hllm_generate_start makes them), and makes
 * it resident.  HLLM_E_CANCELLED through the options' progress handle.  Errors are on the engine. */
HLLM_API hllm_status hllm_session_create(const hllm_engine *e, const hllm_session_options *opt, hllm_session **out);
/* Cancels and waits for what runs. */
HLLM_API void hllm_session_free(hllm_session *s);
HLLM_API size_t hllm_session_last_error(const hllm_session *s, char *buf, size_t cap);

typedef struct hllm_session_info {
    uint32_t struct_size;
    uint32_t n_ctx;
    uint32_t n_tokens;                /* of the conversation: the next position.  The token sampled last may not be computed yet:
                                         hllm_session_eval(s, NULL, 0) does that */
    uint32_t micro_batch;
    uint32_t kv;                      /* HLLM_KV_... */
    uint32_t n_tokens_min;            /* the lowest position that hllm_session_rewind can still reach, besides 0 */
    uint64_t kv_bytes;
    uint64_t scratch_bytes;
} hllm_session_info;
HLLM_API hllm_status hllm_session_get_info(const hllm_session *s, hllm_session_info *out);
/* The tokens in the KV cache, in order.  Same buffer rule as hllm_tokenize. */
HLLM_API hllm_status hllm_session_tokens(const hllm_session *s, int32_t *out, size_t cap, size_t *n_out);

/* Computes tokens at the session's next positions and returns when done.  HLLM_E_CONTEXT_FULL: nothing was computed.
 * HLLM_E_CANCELLED, HLLM_E_NUMERIC: the tokens of whole micro-batches before remain, see n_tokens. */
HLLM_API hllm_status hllm_session_eval(hllm_session *s, const int32_t *tokens, size_t n);
/* The logits after position pos, which must be one of the last micro-batch computed.  n = n_vocab floats.
 * HLLM_E_NUMERIC: NaN or infinity among them. */
HLLM_API hllm_status hllm_session_logits(hllm_session *s, uint32_t pos, float *out, size_t n);
/* The hidden state after the last norm at position pos, likewise.  n = n_embd floats.  For a text's embedding: rewind to 0, evaluate
 * micro_batch tokens at a time, and take the mean over all positions (or the last one), as the model's makers say. */
HLLM_API hllm_status hllm_session_embedding(hllm_session *s, uint32_t pos, float *out, size_t n);

/* Forgets everything from position n_tokens on.  HLLM_E_STATE when a sliding window no longer holds what that position
 * needs: then only 0 or n_tokens_min and above will do; the session is unchanged. */
HLLM_API hllm_status hllm_session_rewind(hllm_session *s, uint32_t n_tokens);
/* A new session on the same engine with the same contents.  Errors are on s. */
HLLM_API hllm_status hllm_session_fork(hllm_session *s, hllm_session **out);
/* Writes tokens and KV cache to a file (new file, fsync, rename: the old file or the new one, never neither).  Of a symbolic link the
 * file that it points to is replaced, or made; what is no regular file (a device, a pipe, a directory) is refused.  A replaced file's
 * mode stays; a new one has 0666 less the umask.  Takes about 2 MiB meanwhile, refused with HLLM_E_NOMEM when they are not there.
 * A process killed meanwhile leaves nothing behind where the file system has files without names (O_TMPFILE); elsewhere, or in the
 * last instant, .hllm-*.tmp beside path, which may be deleted. */
HLLM_API hllm_status hllm_session_save(hllm_session *s, const char *path);
/* Restores a file saved with the same model and KV type; its tokens must fit in n_ctx, and n_ctx must lie on the same side of the
 * model's original context where that decides about the rope factors (Phi-3; else HLLM_E_MISMATCH).  The file is read twice, first to check all of
 * it, and no second copy of the cache is needed (about 1 MiB).  On any error the session is as it was; only when the file changes or
 * fails between the two readings it is empty, as after a rewind to 0, and the text says so. */
HLLM_API hllm_status hllm_session_load(hllm_session *s, const char *path);

/* ---- generate ----------------------------------------------------------------------------------------------------- */

enum {
    HLLM_GENERATE_GREEDY        = 1,  /* the most likely token (ties by lower id), whatever the file's defaults say; penalties, bias and mask still count */
    HLLM_GENERATE_IGNORE_EOS    = 2,  /* end tokens do not end it (their logits are masked out) */
    HLLM_GENERATE_PARSE_SPECIAL = 4,  /* of the prompt text, as in hllm_tokenize */
    HLLM_GENERATE_NO_SPECIAL    = 8,  /* of the prompt text, as in hllm_tokenize */
    HLLM_GENERATE_APPEND        = 16, /* the prompt follows what the session holds (empty: just go on); else the prompt is the whole
                                         context, and the longest common prefix is kept */
    HLLM_GENERATE_STEP          = 32, /* wait before each sample for hllm_generate_continue: read logits, set a mask */
    HLLM_GENERATE_TOKENS        = 64, /* keep token records for hllm_generate_poll_tokens; generation waits when 256 are not taken */
    HLLM_GENERATE_SPECIAL       = 128 /* control tokens appear in the text */
};

typedef struct hllm_logit_bias { int32_t token; float bias; } hllm_logit_bias;

typedef struct hllm_generate_options {
    uint32_t struct_size;
    uint32_t max_tokens;              /* 0: until end of turn or full context */
    uint64_t seed;                    /* any value is a seed; the same seed repeats the run */
    uint32_t flags;                   /* HLLM_GENERATE_... */
    float    temperature;             /* 0: the file's default, else greedy */
    int32_t  top_k;                   /* 0: the file's default, else off; -1: off */
    float    top_p;                   /* 0: the file's default, else off; 1: off */
    float    min_p;                   /* 0: the file's default, else off */
    float    repeat_penalty;          /* 0: the file's default, else off; 1: off.  Divides positive, multiplies negative logits */
    float    frequency_penalty;       /* 0: the file's default, else off.  Times the count of the token in the last penalty_last_n */
    float    presence_penalty;        /* 0: the file's default, else off */
    uint32_t penalty_last_n;          /* tokens that the penalties look at; 0: the file's default, else 64 */
    uint32_t n_logprobs;              /* alternatives per token record, at most 64; needs HLLM_GENERATE_TOKENS */
    uint32_t n_bias;
    uint32_t n_stop;                  /* at most 64 */
    const hllm_logit_bias *bias;      /* [n_bias] copied */
    const char *const *stop;          /* [n_stop] copied; text that ends the answer and is not part of it, compared byte by byte; at most 1,024 bytes each */
} hllm_generate_options;

/* Starts answering and returns at once.  Borrows prompt; opt may be NULL.  HLLM_E_STATE: a generation is already running.
 * HLLM_E_CONTEXT_FULL: the prompt does not fit; the session is unchanged. */
HLLM_API hllm_status hllm_generate_start(hllm_session *s, const char *prompt, size_t prompt_bytes, const hllm_generate_options *opt);
/* The same from tokens (from hllm_chat_tokenize, say), taken as they are. */
HLLM_API hllm_status hllm_generate_start_tokens(hllm_session *s, const int32_t *tokens, size_t n, const hllm_generate_options *opt);

enum { HLLM_RUN_IDLE = 0, HLLM_RUN_PROMPT = 1, HLLM_RUN_TOKENS = 2, HLLM_RUN_WAITING = 3, HLLM_RUN_DONE = 4 };
enum {
    HLLM_FINISH_NONE = 0, HLLM_FINISH_END_TOKEN = 1, HLLM_FINISH_STOP_TEXT = 2, HLLM_FINISH_LENGTH = 3,
    HLLM_FINISH_CONTEXT_FULL = 4, HLLM_FINISH_CANCELLED = 5, HLLM_FINISH_ERROR = 6
};
typedef struct hllm_poll_result {
    uint32_t struct_size;
    uint32_t run;                     /* HLLM_RUN_...; DONE only when all text was taken */
    uint32_t finish;                  /* HLLM_FINISH_... */
    hllm_status error;                /* with FINISH_ERROR: its code; the text is in hllm_session_last_error */
    uint32_t n_prompt;                /* prompt tokens in all, n_prompt_done of them computed, n_reused of them from the cache */
    uint32_t n_prompt_done;
    uint32_t n_reused;
    uint32_t n_generated;
    size_t   text_bytes;              /* written to buf by this call, without the NUL */
} hllm_poll_result;
/* Copies finished text: whole code points, U+FFFD for bytes that are none, always NUL-ended.  Waits up to timeout_ms for text,
 * new token records, an end or a change of state; 0: never blocks (for a frame loop); -1: without limit.  cap at least 5.
 * Returns at once when nothing can come without the caller: IDLE, WAITING for hllm_generate_continue, or 256 records not taken.
 * Returns HLLM_OK also when the generation failed: see finish and error. */
HLLM_API hllm_status hllm_generate_poll(hllm_session *s, int32_t timeout_ms, char *buf, size_t cap, hllm_poll_result *out);

typedef struct hllm_token_record {
    int32_t  token;
    float    logprob;                 /* natural log of its probability before sampling options, after bias and mask */
    uint32_t n_top;
    uint32_t text_end;                /* bytes (before stop texts are cut) that all tokens up to and with this one stand for: where its text ends */
} hllm_token_record;
/* Takes finished token records (HLLM_GENERATE_TOKENS), also after the end.  top: [cap][n_logprobs] best alternatives, pairs of token
 * and log-probability, n_top of each row filled; may be NULL.  Does not wait.  A token's text: hllm_detokenize with
 * HLLM_DETOKENIZE_CONTINUE; it may end inside a character. */
HLLM_API hllm_status hllm_generate_poll_tokens(hllm_session *s, hllm_token_record *records, hllm_logit_bias *top, size_t cap, size_t *n_out);

/* HLLM_GENERATE_STEP, while run is WAITING: the logits of the token to come, [n_vocab], before bias and mask. */
HLLM_API hllm_status hllm_generate_logits(hllm_session *s, float *out, size_t n);
/* Samples the waiting token and goes on.  allowed: one bit per token, lowest bit first, at least (n_vocab + 7) / 8 bytes; NULL: all. */
HLLM_API hllm_status hllm_generate_continue(hllm_session *s, const uint8_t *allowed, size_t bytes);

/* From any thread: stops what runs on this session within one layer's work; hllm_session_eval too.  What was generated
 * remains and the session stays usable.  While a call that starts a generation is still inside, that call ends with
 * HLLM_E_CANCELLED and nothing has begun; on an idle session it does nothing. */
HLLM_API hllm_status hllm_generate_cancel(hllm_session *s);

typedef struct hllm_run_stats {
    uint32_t struct_size;
    uint32_t n_prompt, n_generated, n_reused;       /* of the last generation */
    uint64_t prompt_ns, first_token_ns, decode_ns;  /* computing the prompt; from start to first token; all tokens after it */
    uint64_t decode_bytes_per_token;                /* weights and KV read for the last token */
    uint64_t memory_peak_bytes;                     /* of this library's allocations in this runtime */
    double   active_share;                          /* FFN neurons computed / all, over all tokens of the session: exact, those that are not zero;
                                                       predicted, those that were predicted; 1 when dense */
    const char *mode;                               /* "exact", "predicted", "thresholded" or "dense" */
    uint64_t decode_weight_bytes;                   /* the weights' part of decode_bytes_per_token: sessions that run at once share it */
    double   true_share;                            /* of all, those that were computed and not zero */
    uint64_t ffn_bytes_per_token;                   /* weights read for the FFNs, predictors included: the mean over all tokens of the session,
                                                       each counted as if it were computed alone */
} hllm_run_stats;
HLLM_API hllm_status hllm_session_stats(const hllm_session *s, hllm_run_stats *out);

#ifdef __cplusplus
}
#endif
#endif
