/* reader.c: opens GGUF files, whole or split into shards, and answers questions about their keys and tensors.
 *
 * Headers are read into memory, never mapped: a file that shrinks later cannot take them away.  How much is read follows what
 * the parser (gguf_parse.c) asks for, never beyond the file's end.  Shards are looked for only beside the first one, by the name
 * that the caller gave; nothing inside a file becomes part of a path.
 *
 * Opening runs on the caller's thread; the result never changes, so any thread may read it.
 */
#include "model/reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/gguf_parse.h"

enum { FIRST_READ = 64 << 10, SHARD_SUFFIX = 20, TRAILING_WARN = 1 << 20 };      /* strlen("-00001-of-00002.gguf") */

struct hl_gguf_private {
    uint8_t *header;                 /* of the first shard: keys point into it */
    hl_gguf_names names;
    hl_gguf_index key_index, tensor_index;
};

/* ---- opening ---- */

/* Reads and parses the header of one file.  *data: its bytes, owned by the caller also after an error (hl_free). */
static hl_status read_header(const hl_env *env, hl_error *err, const hl_file *f, uint32_t flags, hl_progress *progress,
                             uint8_t **data, hl_gguf_header *h)
{
    hl_status rc = HLLM_OK;
    uint64_t have = 0, next = HL_MIN(f->bytes, (uint64_t)FIRST_READ);
    uint8_t *p;
    for (;;) {
        HL_NEED(p = hl_realloc(env->mem, *data, (size_t)next));
        *data = p;
        HL_TRY(hl_file_read(env, err, f, have, p + have, (size_t)(next - have)));
        if (progress) atomic_fetch_add_explicit(&progress->total, next - have, memory_order_relaxed);
        HL_TRY(hl_progress_step(progress, next - have));
        have = next;
        rc = hl_gguf_parse(env->mem, err, f->path, p, (size_t)have, f->bytes, flags, h);
        if (rc == HLLM_OK) break;
        if (h->need <= have) goto done;
        next = HL_MIN(HL_MIN(have * 4, f->bytes), (uint64_t)HL_GGUF_MAX_HEADER);
        next = HL_MAX(next, h->need);
    }
    if (have - h->bytes > FIRST_READ) {                /* what was read too much would stay as long as the model */
        HL_NEED(p = hl_alloc(env->mem, (size_t)h->bytes));
        memcpy(p, *data, (size_t)h->bytes);
        hl_gguf_header_rebase(h, *data, p);
        hl_free(env->mem, *data);
        *data = p;
    }
    if (!(flags & HLLM_MODEL_VOCAB_ONLY) && f->bytes > h->data_end && f->bytes - h->data_end >= TRAILING_WARN)
        hl_log_write(env->log, HLLM_LOG_WARNING, "%s: %" PRIu64 " bytes after the last tensor's end (at byte %" PRIu64 ") are ignored",
                     f->path, f->bytes - h->data_end, h->data_end);
done:
    if (rc != HLLM_OK) hl_gguf_header_free(env->mem, h);
    return rc;
}

/* An optional integer key, 0..INT32_MAX. */
static hl_status split_key(hl_error *err, const char *path, const hl_gguf_header *h, const char *name, int64_t missing, int64_t *out)
{
    const hl_gguf_key *k = hl_gguf_index_find(&h->key_index, h->keys, sizeof *h->keys, name);
    *out = missing;
    if (!k) return HLLM_OK;
    if (k->type == HLLM_VALUE_ARRAY || hl_gguf_int(k, 0, out) != HLLM_OK)
        return hl_fail(err, HLLM_E_FORMAT, "%s: key %s has the type %s; an integer is needed", path, name, hl_gguf_type_name(k->type));
    if (*out < 0 || *out > INT32_MAX)
        return hl_fail(err, HLLM_E_MISMATCH, "%s: key %s is %" PRId64 ", which no split set has", path, name, *out);
    return HLLM_OK;
}

/* text[SHARD_SUFFIX + 1] = "-00003-of-00008.gguf" */
static void shard_suffix(char *text, uint32_t number, uint32_t count)
{
    snprintf(text, SHARD_SUFFIX + 1, "-%05" PRIu32 "-of-%05" PRIu32 ".gguf", number % 100000, count % 100000);
}

/* How many shards the set has, from the first one's keys; 1 for an ordinary file. */
static hl_status count_shards(hl_error *err, const hl_file *first, bool by_path, const hl_gguf_header *h, uint32_t *out)
{
    hl_status rc = HLLM_OK;
    int64_t no, count;
    char suffix[SHARD_SUFFIX + 1];
    const char *path = first->path;
    size_t n = strlen(path);
    *out = 1;
    HL_TRY(split_key(err, path, h, "split.count", 1, &count));
    HL_TRY(split_key(err, path, h, "split.no", 0, &no));
    if (no != 0)
        rc = hl_fail(err, HLLM_E_MISMATCH, "%s: is shard %" PRId64 " of %" PRId64 " (split.no is %" PRId64 "); open the first one, "
                     "whose name ends in -00001-of-%05" PRId64 ".gguf", path, no + 1, count, no, count);
    else if (count > HL_GGUF_MAX_SHARDS)
        rc = hl_fail(err, HLLM_E_MISMATCH, "%s: shard 1 says that there are %" PRId64 " (split.count); the limit is %d", path, count,
                     HL_GGUF_MAX_SHARDS);
    else if (count > 1 && !by_path)
        rc = hl_fail(err, HLLM_E_MISMATCH, "%s: is shard 1 of %" PRId64 "; a split set has to be opened by its path", path, count);
    HL_TRY(rc);
    if (count <= 1) goto done;
    shard_suffix(suffix, 1, (uint32_t)count);
    if (n < SHARD_SUFFIX || strcmp(path + n - SHARD_SUFFIX, suffix) != 0) {
        rc = hl_fail(err, HLLM_E_MISMATCH, "%s: is shard 1 of %" PRId64 " (split.count), but its name does not end in %s", path, count,
                     suffix);
        goto done;
    }
    *out = (uint32_t)count;
done:
    return rc;
}

/* Moves a shard's tensors behind those that g has. */
static hl_status add_tensors(const hl_env *env, hl_error *err, hl_gguf *g, hl_gguf_header *h, uint32_t shard)
{
    hl_status rc = HLLM_OK;
    hl_gguf_tensor *all;
    if (h->n_tensors > HL_GGUF_MAX_TENSORS - g->n_tensors) {
        rc = hl_fail(err, HLLM_E_LIMIT, "%s: %" PRIu32 " tensors up to this shard; the limit is %d", g->shards[shard].path,
                     g->n_tensors + h->n_tensors, HL_GGUF_MAX_TENSORS);
        goto done;
    }
    HL_NEED(all = hl_realloc(env->mem, g->tensors, (g->n_tensors + h->n_tensors) * sizeof *all));
    g->tensors = all;
    for (uint32_t i = 0; i < h->n_tensors; i++) {
        all[g->n_tensors] = h->tensors[i];
        all[g->n_tensors++].shard = shard;
    }
    hl_gguf_names_join(&g->own->names, &h->names);
done:
    return rc;
}

static void count_bytes(hl_gguf *g, const uint8_t *data, const hl_gguf_header *h, const hl_file *f)
{
    g->file_bytes += f->bytes;
    g->header_hash = hl_hash(data, (size_t)h->bytes, g->header_hash);
    g->header_hash = hl_hash(&f->bytes, sizeof f->bytes, g->header_hash);
    g->table_hash = hl_hash(data, (size_t)h->bytes, g->table_hash);
    g->table_hash = hl_hash(&h->data_end, sizeof h->data_end, g->table_hash);
    g->data_bytes += h->data_end;
}

/* Opens shard i (from 1 on) of g. */
static hl_status open_shard(const hl_env *env, hl_error *err, hl_gguf *g, uint32_t i, uint32_t flags, hl_progress *progress)
{
    hl_status rc = HLLM_OK;
    hl_gguf_header h = { 0 };
    uint8_t *data = NULL;
    int64_t no, count;
    char *path = NULL;
    size_t n = strlen(g->shards[0].path);
    HL_NEED(path = hl_strndup(env->mem, g->shards[0].path, n));
    shard_suffix(path + n - SHARD_SUFFIX, i + 1, g->n_shards);
    rc = hl_file_open(env, err, path, &g->shards[i]);
    if (rc == HLLM_E_NOT_FOUND)
        rc = hl_fail(err, HLLM_E_MISMATCH, "%s: shard %" PRIu32 " of %" PRIu32 " is missing", path, i + 1, g->n_shards);
    HL_TRY(rc);
    HL_TRY(read_header(env, err, &g->shards[i], flags, progress, &data, &h));
    HL_TRY(split_key(err, path, &h, "split.no", -1, &no));
    HL_TRY(split_key(err, path, &h, "split.count", -1, &count));
    if (no != (int64_t)i || count != (int64_t)g->n_shards) {
        rc = hl_fail(err, HLLM_E_MISMATCH, "%s: should be shard %" PRIu32 " of %" PRIu32 ", but its split.no is %" PRId64
                     " and its split.count %" PRId64, path, i + 1, g->n_shards, no, count);
        goto done;
    }
    count_bytes(g, data, &h, &g->shards[i]);
    HL_TRY(add_tensors(env, err, g, &h, i));
done:
    hl_gguf_header_free(env->mem, &h);
    hl_free(env->mem, data);
    hl_free(env->mem, path);
    return rc;
}

/* All `count` shards but the first, and an index over the tensors of all. */
static hl_status open_set(const hl_env *env, hl_error *err, hl_gguf *g, uint32_t count, int64_t declared, uint32_t flags,
                          hl_progress *progress)
{
    hl_status rc = HLLM_OK;
    uint32_t twin;
    hl_file *shards;
    HL_NEED(shards = hl_alloc_array(env->mem, count, sizeof *shards));
    shards[0] = g->shards[0];
    hl_free(env->mem, g->shards);
    g->shards = shards;
    g->n_shards = count;
    for (uint32_t i = 1; i < g->n_shards; i++) HL_TRY(open_shard(env, err, g, i, flags, progress));
    if (declared >= 0 && (int64_t)g->n_tensors != declared) {
        rc = hl_fail(err, HLLM_E_MISMATCH, "%s: split.tensors.count is %" PRId64 ", but the %" PRIu32 " shards have %" PRIu32 " tensors",
                     hl_gguf_path(g), declared, g->n_shards, g->n_tensors);
        goto done;
    }
    hl_gguf_index_free(env->mem, &g->own->tensor_index);
    rc = hl_gguf_index_new(env->mem, g->tensors, sizeof *g->tensors, g->n_tensors, &g->own->tensor_index, &twin);
    if (rc == HLLM_E_FORMAT)
        rc = hl_fail(err, HLLM_E_MISMATCH, "%s: tensor %s is in another shard too", g->shards[g->tensors[twin].shard].path,
                     g->tensors[twin].name);
done:
    return rc;
}

/* Takes file, also when it fails. */
static hl_status open_first(const hl_env *env, hl_error *err, hl_file *file, bool by_path, uint32_t flags, hl_progress *progress,
                            hl_gguf **out)
{
    hl_status rc = HLLM_OK;
    hl_gguf_header h = { 0 };
    hl_gguf *g = NULL;
    int64_t declared = -1;
    uint32_t n_shards = 1;
    HL_NEED(g = hl_alloc_zero(env->mem, sizeof *g));
    HL_NEED(g->own = hl_alloc_zero(env->mem, sizeof *g->own));
    HL_NEED(g->shards = hl_alloc_zero(env->mem, sizeof *g->shards));
    g->n_shards = 1;
    g->shards[0] = *file;
    memset(file, 0, sizeof *file);
    HL_TRY(read_header(env, err, &g->shards[0], flags, progress, &g->own->header, &h));
    count_bytes(g, g->own->header, &h, &g->shards[0]);
    rc = count_shards(err, &g->shards[0], by_path, &h, &n_shards);
    if (rc == HLLM_OK) rc = split_key(err, hl_gguf_path(g), &h, "split.tensors.count", -1, &declared);
    if (rc != HLLM_OK) {
        hl_gguf_header_free(env->mem, &h);
        goto done;
    }
    g->powerinfer = h.powerinfer;
    g->version = h.version;                            /* everything of h moves over, nothing is left to free */
    g->n_keys = h.n_keys;
    g->keys = h.keys;
    g->n_tensors = h.n_tensors;
    g->tensors = h.tensors;
    g->own->names = h.names;
    g->own->key_index = h.key_index;
    g->own->tensor_index = h.tensor_index;
    if (n_shards > 1 && !(flags & HLLM_MODEL_VOCAB_ONLY)) HL_TRY(open_set(env, err, g, n_shards, declared, flags, progress));
    *out = g; g = NULL;
done:
    hl_file_close(env, file);
    hl_gguf_free(env, g);
    return rc;
}

hl_status hl_gguf_open(const hl_env *env, hl_error *err, const char *path, uint32_t flags, hl_progress *progress, hl_gguf **out)
{
    hl_status rc = HLLM_OK;
    hl_file file;
    *out = NULL;
    HL_TRY(hl_file_open(env, err, path, &file));
    HL_TRY(open_first(env, err, &file, true, flags, progress, out));
done:
    return rc;
}

hl_status hl_gguf_open_fd(const hl_env *env, hl_error *err, int fd, uint64_t offset, uint64_t length, uint32_t flags,
                          hl_progress *progress, hl_gguf **out)
{
    hl_status rc = HLLM_OK;
    hl_file file;
    *out = NULL;
    HL_TRY(hl_file_open_fd(env, err, fd, offset, length, &file));
    HL_TRY(open_first(env, err, &file, false, flags, progress, out));
done:
    return rc;
}

void hl_gguf_free(const hl_env *env, hl_gguf *g)
{
    if (!g) return;
    for (uint32_t i = 0; g->shards && i < g->n_shards; i++) hl_file_close(env, &g->shards[i]);
    hl_free(env->mem, g->shards);
    for (uint32_t i = 0; g->keys && i < g->n_keys; i++) hl_free(env->mem, (void *)(uintptr_t)g->keys[i].str_at);
    hl_free(env->mem, g->keys);
    hl_free(env->mem, g->tensors);
    if (g->own) {
        hl_gguf_index_free(env->mem, &g->own->key_index);
        hl_gguf_index_free(env->mem, &g->own->tensor_index);
        hl_gguf_names_free(env->mem, &g->own->names);
        hl_free(env->mem, g->own->header);
        hl_free(env->mem, g->own);
    }
    hl_free(env->mem, g);
}

/* ---- asking ---- */

const hl_gguf_key *hl_gguf_find_key(const hl_gguf *g, const char *name)
{
    return hl_gguf_index_find(&g->own->key_index, g->keys, sizeof *g->keys, name);
}

const hl_gguf_tensor *hl_gguf_find_tensor(const hl_gguf *g, const char *name)
{
    return hl_gguf_index_find(&g->own->tensor_index, g->tensors, sizeof *g->tensors, name);
}

/* x = element i of a key, x's type having the element's size. */
#define ELEMENT(x) memcpy(&(x), k->data + i * sizeof(x), sizeof(x))

hl_status hl_gguf_int(const hl_gguf_key *k, uint64_t i, int64_t *out)
{
    *out = 0;
    if (i >= k->n) return HLLM_E_MISMATCH;
    switch (k->elem) {
    case HLLM_VALUE_U8:  { uint8_t x;  ELEMENT(x); *out = x; return HLLM_OK; }
    case HLLM_VALUE_I8:  { int8_t x;   ELEMENT(x); *out = x; return HLLM_OK; }
    case HLLM_VALUE_U16: { uint16_t x; ELEMENT(x); *out = x; return HLLM_OK; }
    case HLLM_VALUE_I16: { int16_t x;  ELEMENT(x); *out = x; return HLLM_OK; }
    case HLLM_VALUE_U32: { uint32_t x; ELEMENT(x); *out = x; return HLLM_OK; }
    case HLLM_VALUE_I32: { int32_t x;  ELEMENT(x); *out = x; return HLLM_OK; }
    case HLLM_VALUE_I64: { int64_t x;  ELEMENT(x); *out = x; return HLLM_OK; }
    case HLLM_VALUE_U64: {
        uint64_t x;
        ELEMENT(x);
        if (x > INT64_MAX) return HLLM_E_MISMATCH;
        *out = (int64_t)x;
        return HLLM_OK;
    }
    default: return HLLM_E_MISMATCH;
    }
}

hl_status hl_gguf_float(const hl_gguf_key *k, uint64_t i, double *out)
{
    *out = 0;
    if (i >= k->n) return HLLM_E_MISMATCH;
    switch (k->elem) {
    case HLLM_VALUE_F32: { float x; ELEMENT(x); *out = (double)x; return HLLM_OK; }
    case HLLM_VALUE_F64: { double x; ELEMENT(x); *out = x; return HLLM_OK; }
    default: return HLLM_E_MISMATCH;
    }
}

hl_status hl_gguf_bool(const hl_gguf_key *k, uint64_t i, bool *out)
{
    *out = false;
    if (i >= k->n || k->elem != HLLM_VALUE_BOOL) return HLLM_E_MISMATCH;
    *out = k->data[i] != 0;
    return HLLM_OK;
}

hl_status hl_gguf_string(const hl_gguf_key *k, uint64_t i, const char **text, size_t *bytes)
{
    *text = NULL;
    *bytes = 0;
    if (i >= k->n || k->elem != HLLM_VALUE_STRING) return HLLM_E_MISMATCH;
    const uint8_t *s = k->data + (k->str_at ? k->str_at[i] : 0);
    uint64_t n;
    memcpy(&n, s, sizeof n);
    *text = (const char *)s + 8;
    *bytes = (size_t)n;
    return HLLM_OK;
}

const char *hl_gguf_type_name(uint32_t value_type)
{
    static const char *const names[] = { "UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "FLOAT32", "BOOL", "STRING", "ARRAY",
                                         "UINT64", "INT64", "FLOAT64" };
    return value_type < HL_COUNT(names) ? names[value_type] : "?";
}
