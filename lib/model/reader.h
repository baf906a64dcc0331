/* reader.h: a GGUF file as a checked table of keys and tensors.  Knows the container, not what the keys mean.
 *
 * After hl_gguf_open returns HLLM_OK every length, offset, type and shape in here is inside the file and free of overflow: users
 * need no further bounds checks.  Immutable from then on; any thread may read.
 */
#ifndef HL_READER_H
#define HL_READER_H

#include "base/base.h"
#include "base/dtype.h"

enum { HL_GGUF_MAX_KEYS = 65536, HL_GGUF_MAX_TENSORS = 65536, HL_GGUF_MAX_DIMS = 4, HL_GGUF_MAX_NAME = 63, HL_GGUF_MAX_SHARDS = 1024 };

typedef struct hl_gguf_key {
    const char *name;                /* NUL-ended copy */
    uint32_t type;                   /* HLLM_VALUE_... */
    uint32_t elem;                   /* of an array; else = type */
    uint64_t n;                      /* elements; 1 for a scalar */
    const uint8_t *data;             /* numbers: n values, little-endian, unaligned; strings: see hl_gguf_string */
    const uint64_t *str_at;          /* string arrays: n + 1 offsets from data (each string is 8 bytes of length, then text) */
} hl_gguf_key;

typedef struct hl_gguf_tensor {
    const char *name;                /* NUL-ended copy, at most 63 bytes */
    uint32_t dtype;                  /* a known one */
    uint32_t n_dims;
    uint64_t dims[4];                /* innermost first; 1 beyond n_dims */
    uint64_t n;                      /* elements */
    uint64_t bytes;
    uint64_t at;                     /* absolute offset in its shard's range */
    uint32_t shard;
} hl_gguf_tensor;

typedef struct hl_gguf {
    uint32_t version;
    bool powerinfer;                 /* the first shard's magic is PWRI */
    uint32_t n_keys, n_tensors, n_shards;
    hl_gguf_key *keys;               /* of the first shard, in file order */
    hl_gguf_tensor *tensors;         /* of all shards, in file order */
    hl_file *shards;                 /* [n_shards] */
    uint64_t file_bytes;             /* of all shards */
    uint64_t header_hash;            /* over headers and sizes of all shards: names this model in session files */
    uint64_t table_hash;             /* over headers and where the tensors' data end: the same when data is still missing.  For plans */
    uint64_t data_bytes;             /* the sum of those ends: file_bytes less what follows the last tensor */
    struct hl_gguf_private *own;     /* header bytes, name indexes */
} hl_gguf;

/* Opens path (and, when it is the first of a split set, the others beside it).  flags: HLLM_MODEL_... of the public header; with
 * HLLM_MODEL_VOCAB_ONLY other shards are not opened and tensors' data may be missing from the file, with HLLM_MODEL_HEADER_ONLY only
 * the latter: do not read them then.
 * Takes nothing; returns owned (free with hl_gguf_free).  Warnings go to env->log, which may be NULL. */
hl_status hl_gguf_open(const hl_env *env, hl_error *err, const char *path, uint32_t flags, hl_progress *progress, hl_gguf **out);
hl_status hl_gguf_open_fd(const hl_env *env, hl_error *err, int fd, uint64_t offset, uint64_t length, uint32_t flags,
                          hl_progress *progress, hl_gguf **out);
void hl_gguf_free(const hl_env *env, hl_gguf *g);                    /* NULL is fine */

/* NULL: no such key or tensor.  Constant time. */
const hl_gguf_key *hl_gguf_find_key(const hl_gguf *g, const char *name);
const hl_gguf_tensor *hl_gguf_find_tensor(const hl_gguf *g, const char *name);

/* Element i (< n) of a key as the asked kind; HLLM_E_MISMATCH when it is of another kind (any integer width is an integer; F32 and
 * F64 are floats, integers are not; BOOL is only a bool).  No error text: the caller knows what the key means. */
hl_status hl_gguf_int(const hl_gguf_key *k, uint64_t i, int64_t *out);       /* also HLLM_E_MISMATCH for U64 above INT64_MAX */
hl_status hl_gguf_float(const hl_gguf_key *k, uint64_t i, double *out);
hl_status hl_gguf_bool(const hl_gguf_key *k, uint64_t i, bool *out);
hl_status hl_gguf_string(const hl_gguf_key *k, uint64_t i, const char **text, size_t *bytes);
const char *hl_gguf_type_name(uint32_t value_type);                  /* "UINT32"; "?" */

/* The file that messages name. */
static inline const char *hl_gguf_path(const hl_gguf *g) { return g->shards[0].path; }

#endif
