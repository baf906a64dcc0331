/* write.c: a GGUF file, version 3, written once from front to back into a new file that takes the old one's place at the end.
 *
 * Keys and tensors are named first, which fixes the header; then the data come in the same order.  One thread.
 */
#include "sparse/sparse.h"

#include <string.h>

enum { BUFFER = 1 << 20, MAX_PAD = 65536 };

struct hl_writer {
    const hl_env *env;
    hl_error *err;
    hl_newfile file;
    uint8_t *keys, *infos; size_t keys_n, keys_cap, infos_n, infos_cap;
    uint32_t n_keys, n_tensors, alignment;
    struct sized { uint64_t bytes, info_at; } *sizes; size_t sizes_cap;    /* of each tensor, and where its offset is in infos */
    uint32_t at;                                       /* tensor whose data come */
    uint64_t written;                                  /* of it */
    uint8_t *buffer; size_t n_buffer;
};

hl_status hl_writer_new(const hl_env *env, hl_error *err, const char *path, hl_writer **out)
{
    hl_status rc = HLLM_OK;
    hl_writer *w = NULL;
    *out = NULL;
    HL_NEED(w = hl_alloc_zero(env->mem, sizeof *w));
    w->env = env;
    w->err = err;
    HL_NEED(w->buffer = hl_alloc(env->mem, BUFFER));
    HL_TRY(hl_newfile_open(env, err, path, &w->file));
    *out = w; w = NULL;
done:
    hl_writer_free(w);
    return rc;
}

void hl_writer_free(hl_writer *w)
{
    if (!w) return;
    hl_mem *mem = w->env->mem;
    hl_newfile_close(&w->file);
    hl_free(mem, w->keys);
    hl_free(mem, w->infos);
    hl_free(mem, w->sizes);
    hl_free(mem, w->buffer);
    hl_free(mem, w);
}

static hl_status append(hl_writer *w, uint8_t **to, size_t *n, size_t *cap, const void *data, size_t bytes)
{
    if (*n + bytes > *cap) {
        const size_t more = (*n + bytes) * 2;
        uint8_t *p = hl_realloc(w->env->mem, *to, more);
        if (!p) return HLLM_E_NOMEM;
        *to = p;
        *cap = more;
    }
    if (bytes) memcpy(*to + *n, data, bytes);
    *n += bytes;
    return HLLM_OK;
}

static hl_status put(hl_writer *w, const void *data, size_t bytes) { return append(w, &w->keys, &w->keys_n, &w->keys_cap, data, bytes); }

static hl_status put_string(hl_writer *w, uint8_t **to, size_t *n, size_t *cap, const void *text, uint64_t bytes)
{
    hl_status rc = append(w, to, n, cap, &bytes, sizeof bytes);
    return rc == HLLM_OK ? append(w, to, n, cap, text, (size_t)bytes) : rc;
}

static size_t value_bytes(uint32_t type)
{
    switch (type) {
    case HLLM_VALUE_U8: case HLLM_VALUE_I8: case HLLM_VALUE_BOOL: return 1;
    case HLLM_VALUE_U16: case HLLM_VALUE_I16: return 2;
    case HLLM_VALUE_U32: case HLLM_VALUE_I32: case HLLM_VALUE_F32: return 4;
    default: return 8;
    }
}

static hl_status put_head(hl_writer *w, const char *name, uint32_t type)
{
    hl_status rc = put_string(w, &w->keys, &w->keys_n, &w->keys_cap, name, strlen(name));
    w->n_keys++;
    return rc == HLLM_OK ? put(w, &type, sizeof type) : rc;
}

hl_status hl_writer_key_copy(hl_writer *w, const hl_gguf_key *k)
{
    hl_status rc = HLLM_OK;
    HL_TRY(put_head(w, k->name, k->type));
    if (k->type == HLLM_VALUE_ARRAY) {
        HL_TRY(put(w, &k->elem, sizeof k->elem));
        HL_TRY(put(w, &k->n, sizeof k->n));
    }
    for (uint64_t i = 0; k->elem == HLLM_VALUE_STRING && i < k->n; i++) {
        const char *text;
        size_t bytes;
        HL_TRY(hl_gguf_string(k, i, &text, &bytes));
        HL_TRY(put_string(w, &w->keys, &w->keys_n, &w->keys_cap, text, bytes));
    }
    if (k->elem != HLLM_VALUE_STRING) rc = put(w, k->data, (size_t)k->n * value_bytes(k->elem));
done:
    return rc;
}

hl_status hl_writer_key(hl_writer *w, const char *name, uint32_t type, const void *data, uint64_t n)
{
    hl_status rc = put_head(w, name, type);
    if (rc != HLLM_OK) return rc;
    return type == HLLM_VALUE_STRING ? put_string(w, &w->keys, &w->keys_n, &w->keys_cap, data, n) : put(w, data, value_bytes(type));
}

hl_status hl_writer_key_array(hl_writer *w, const char *name, uint32_t elem, const void *data, uint64_t n)
{
    hl_status rc = HLLM_OK;
    HL_TRY(put_head(w, name, HLLM_VALUE_ARRAY));
    HL_TRY(put(w, &elem, sizeof elem));
    HL_TRY(put(w, &n, sizeof n));
    rc = put(w, data, (size_t)n * value_bytes(elem));
done:
    return rc;
}

static hl_status add_tensor(hl_writer *w, const char *name, uint32_t dtype, uint32_t n_dims, const uint64_t *dims, uint64_t bytes)
{
    hl_status rc = HLLM_OK;
    const uint64_t later = 0;
    uint8_t **to = &w->infos;
    size_t *n = &w->infos_n, *cap = &w->infos_cap, used = w->n_tensors * sizeof *w->sizes;
    HL_TRY(put_string(w, to, n, cap, name, strlen(name)));
    HL_TRY(append(w, to, n, cap, &n_dims, sizeof n_dims));
    HL_TRY(append(w, to, n, cap, dims, n_dims * sizeof *dims));
    HL_TRY(append(w, to, n, cap, &dtype, sizeof dtype));
    HL_TRY(append(w, (uint8_t **)(void *)&w->sizes, &used, &w->sizes_cap, &(struct sized){ bytes, *n }, sizeof *w->sizes));
    w->n_tensors++;
    rc = append(w, to, n, cap, &later, sizeof later);
done:
    return rc;
}

hl_status hl_writer_tensor(hl_writer *w, const char *name, uint32_t dtype, uint64_t cols, uint64_t rows)
{
    const uint64_t dims[2] = { cols, rows };
    return add_tensor(w, name, dtype, rows ? 2 : 1, dims, hl_dtype_bytes(hl_dtype(dtype), cols) * (rows ? rows : 1));
}

hl_status hl_writer_tensor_as(hl_writer *w, const char *name, const hl_gguf_tensor *t) { return add_tensor(w, name, t->dtype, t->n_dims, t->dims, t->bytes); }

static hl_status flush(hl_writer *w)
{
    const hl_status rc = w->n_buffer ? hl_newfile_write(&w->file, w->buffer, w->n_buffer) : HLLM_OK;
    w->n_buffer = 0;
    return rc;
}

static hl_status out(hl_writer *w, const void *data, size_t n)
{
    hl_status rc = HLLM_OK;
    if (w->n_buffer + n > BUFFER) HL_TRY(flush(w));
    if (n > BUFFER) return hl_newfile_write(&w->file, data, n);
    memcpy(w->buffer + w->n_buffer, data, n);
    w->n_buffer += n;
done:
    return rc;
}

static hl_status pad(hl_writer *w, uint64_t n)
{
    static const uint8_t zeros[4096];
    hl_status rc = HLLM_OK;
    for (uint64_t left = hl_align_up(n, w->alignment) - n; left && rc == HLLM_OK;) {
        const size_t some = (size_t)HL_MIN(left, (uint64_t)sizeof zeros);
        rc = out(w, zeros, some);
        left -= some;
    }
    return rc;
}

hl_status hl_writer_start(hl_writer *w, uint32_t alignment)
{
    hl_status rc = HLLM_OK;
    const uint32_t version = 3;
    const uint64_t n_tensors = w->n_tensors, n_keys = w->n_keys;
    uint64_t offset = 0;
    w->alignment = alignment;
    for (uint32_t i = 0; i < w->n_tensors; i++) {
        memcpy(w->infos + w->sizes[i].info_at, &offset, sizeof offset);
        offset += hl_align_up(w->sizes[i].bytes, alignment);
    }
    HL_TRY(out(w, "GGUF", 4));
    HL_TRY(out(w, &version, sizeof version));
    HL_TRY(out(w, &n_tensors, sizeof n_tensors));
    HL_TRY(out(w, &n_keys, sizeof n_keys));
    HL_TRY(out(w, w->keys, w->keys_n));
    HL_TRY(out(w, w->infos, w->infos_n));
    rc = pad(w, 24 + w->keys_n + w->infos_n);
done:
    return rc;
}

hl_status hl_writer_data(hl_writer *w, const void *data, size_t bytes)
{
    w->written += bytes;
    return out(w, data, bytes);
}

hl_status hl_writer_data_end(hl_writer *w)
{
    if (w->at >= w->n_tensors || w->written != w->sizes[w->at].bytes) return HLLM_E_INTERNAL;
    const hl_status rc = pad(w, w->written);
    w->written = 0;
    w->at++;
    return rc;
}

hl_status hl_writer_end(hl_writer *w)
{
    hl_status rc = HLLM_OK;
    if (w->at != w->n_tensors) return HLLM_E_INTERNAL;
    HL_TRY(flush(w));
    HL_TRY(hl_newfile_sync(&w->file));
    rc = hl_newfile_commit(&w->file);
done:
    return rc;
}
