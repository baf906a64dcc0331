/* gguf_parse.h: the header of one GGUF file (or shard) as tables.  Inside lib/model only; reader.h is for everyone else.
 *
 * A pure function over bytes: no files, no state, so that a fuzzer can drive it.
 */
#ifndef HL_GGUF_PARSE_H
#define HL_GGUF_PARSE_H

#include "model/reader.h"

enum { HL_GGUF_MAX_HEADER = 512 << 20, HL_GGUF_MAX_KEY_NAME = 65535, HL_GGUF_MAX_STRINGS = 1 << 22, HL_GGUF_MAX_ALIGNMENT = 65536 };

/* Names, copied with a NUL, in chunks that do not move. */
typedef struct hl_gguf_names { struct hl_gguf_chunk *chunks; } hl_gguf_names;

/* Open addressing over an array of structs whose first member is the name.  The seed keeps a file from choosing its collisions. */
typedef struct hl_gguf_index { uint32_t *slots; uint32_t mask; uint64_t seed; } hl_gguf_index;

typedef struct hl_gguf_header {
    uint32_t version, n_keys, n_tensors;
    bool powerinfer;
    hl_gguf_key *keys;
    hl_gguf_tensor *tensors;         /* shard = 0 */
    hl_gguf_index key_index, tensor_index;
    hl_gguf_names names;
    uint64_t bytes;                  /* from the file's beginning to the end of the last tensor's entry */
    uint64_t data_end;               /* where the last tensor's data end; = bytes when there are none */
    uint64_t need;                   /* after HLLM_E_TRUNCATED: above `have` when that many bytes of the file would help */
} hl_gguf_header;

/* Parses the first `have` bytes of a file of file_bytes bytes.  The result points into data.  On an error out holds nothing but
 * `need`: when need > have the caller reads so much (need <= file_bytes) and calls again; no error text is written then.
 * HLLM_MODEL_VOCAB_ONLY in flags: tensors' data may be missing (their offsets are then not checked against the file). */
hl_status hl_gguf_parse(hl_mem *mem, hl_error *err, const char *path, const uint8_t *data, size_t have, uint64_t file_bytes,
                        uint32_t flags, hl_gguf_header *out);
void hl_gguf_header_free(hl_mem *mem, hl_gguf_header *h);            /* a cleared one is fine */
/* The bytes were moved. */
void hl_gguf_header_rebase(hl_gguf_header *h, const uint8_t *from, const uint8_t *to);

void hl_gguf_names_free(hl_mem *mem, hl_gguf_names *names);
/* Takes the chunks of `from`. */
void hl_gguf_names_join(hl_gguf_names *to, hl_gguf_names *from);

/* Indexes n structs of `stride` bytes.  HLLM_E_FORMAT (no text) for two of one name: *twin = the second's place. */
hl_status hl_gguf_index_new(hl_mem *mem, const void *structs, size_t stride, uint32_t n, hl_gguf_index *out, uint32_t *twin);
void hl_gguf_index_free(hl_mem *mem, hl_gguf_index *index);
/* NULL: not there. */
const void *hl_gguf_index_find(const hl_gguf_index *index, const void *structs, size_t stride, const char *name);

#endif
