/* gpuidx.c: the GPU split that PowerInfer keeps beside a model ("MODEL.generated.gpuidx"): which neurons of each layer are its hot set.
 *
 * A GGUF body behind the magic PWRI with two tensors a layer, in order: gpu_idx (one int32 a neuron: 1 hot, 0 cold) and gpu_bucket (the hot ones,
 * ascending).  It names no model, so that all of it is checked: a split of another model is refused, not used by half.
 */
#include "model/model.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TEXT = 256, MAX_KEYS = 64, I32_OLD = 18, I32 = 26, ALIGN = 32 };

typedef struct cursor { const hl_env *env; hl_error *err; hl_file f; uint64_t at; } cursor;
typedef struct entry { uint64_t n, at; } entry;

static hl_status take(cursor *c, void *to, size_t n)
{
    const hl_status rc = hl_file_read(c->env, c->err, &c->f, c->at, to, n);
    c->at += n;
    return rc;
}

static hl_status take_text(cursor *c, char to[MAX_TEXT])
{
    uint64_t n;
    hl_status rc = take(c, &n, sizeof n);
    if (rc != HLLM_OK) return rc;
    if (n >= MAX_TEXT) return hl_fail(c->err, HLLM_E_FORMAT, "%s: a text of %llu bytes at byte %llu, at most %d are sensible here", c->f.path, (unsigned long long)n, (unsigned long long)c->at, MAX_TEXT - 1);
    to[n] = 0;
    return n ? take(c, to, (size_t)n) : HLLM_OK;
}

/* Keys are of no use: how much is on the GPU follows from the tensors. */
static hl_status skip_key(cursor *c)
{
    static const uint8_t sizes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    char text[MAX_TEXT];
    uint32_t type;
    hl_status rc = HLLM_OK;
    HL_TRY(take_text(c, text));
    HL_TRY(take(c, &type, sizeof type));
    if (type == HLLM_VALUE_STRING) rc = take_text(c, text);
    else if (type < sizeof sizes && sizes[type]) c->at += sizes[type];
    else rc = hl_fail(c->err, HLLM_E_FORMAT, "%s: key %s has the type %u", c->f.path, text, type);
done:
    return rc;
}

static hl_status take_entry(cursor *c, entry *e)
{
    char name[MAX_TEXT];
    uint32_t n_dims = 0, type = 0;
    hl_status rc = HLLM_OK;
    HL_TRY(take_text(c, name));
    HL_TRY(take(c, &n_dims, sizeof n_dims));
    HL_TRY(take(c, &e->n, sizeof e->n));
    HL_TRY(take(c, &type, sizeof type));
    HL_TRY(take(c, &e->at, sizeof e->at));
    if (n_dims != 1 || (type != I32 && type != I32_OLD)) rc = hl_fail(c->err, HLLM_E_FORMAT, "%s: tensor %s has %u dimensions and the type %u, expected one of 32-bit integers", c->f.path, name, n_dims, type);
done:
    return rc;
}

static hl_status read_layer(cursor *c, uint64_t data, const entry e[2], hl_layer *l, uint32_t il)
{
    hl_status rc = HLLM_OK;
    hl_mem *mem = c->env->mem;
    int32_t *hot = NULL, *list = NULL;
    uint64_t n = 0;
    const char *what = NULL;
    int64_t value = 0;
    if (e[0].n != l->n_ff || e[1].n > l->n_ff) {
        rc = hl_fail(c->err, HLLM_E_MISMATCH, "%s: layer %u has %llu neurons, %llu of them hot: the model's has %u", c->f.path, il, (unsigned long long)e[0].n, (unsigned long long)e[1].n, l->n_ff);
        goto done;
    }
    HL_NEED(hot = hl_alloc_array(mem, e[0].n, sizeof *hot));
    HL_NEED(list = hl_alloc_array(mem, e[1].n, sizeof *list));
    HL_TRY(hl_file_read(c->env, c->err, &c->f, data + e[0].at, hot, e[0].n * sizeof *hot));
    if (e[1].n) HL_TRY(hl_file_read(c->env, c->err, &c->f, data + e[1].at, list, e[1].n * sizeof *list));
    for (uint64_t i = 0; i < e[0].n && !what; i++) {
        n += hot[i] == 1;
        if (hot[i] != 0 && hot[i] != 1) { what = "gpu_idx holds"; value = hot[i]; }
    }
    for (uint64_t i = 0; i < e[1].n && !what; i++) {
        value = list[i];
        if (list[i] < 0 || (uint64_t)list[i] >= e[0].n) what = "gpu_bucket holds a neuron that there is not:";
        else if (i && list[i] <= list[i - 1]) what = "gpu_bucket is not ascending at neuron";
        else if (!hot[list[i]]) what = "gpu_bucket and gpu_idx disagree on neuron";
    }
    if (!what && n != e[1].n) { what = "gpu_bucket lacks hot neurons; gpu_idx has"; value = (int64_t)n; }
    if (what) { rc = hl_fail(c->err, HLLM_E_CORRUPT, "%s: layer %u: %s %lld", c->f.path, il, what, (long long)value); goto done; }
    HL_NEED(l->hot = hl_alloc_array(mem, e[0].n, 1));
    l->n_hot = (uint32_t)n;
    for (uint64_t i = 0; i < e[0].n; i++) l->hot[i] = (uint8_t)hot[i];
done:
    hl_free(mem, hot);
    hl_free(mem, list);
    return rc;
}

static hl_status read_all(hl_model *m, cursor *c)
{
    hl_status rc = HLLM_OK;
    struct { char magic[4]; uint32_t version; uint64_t n_tensors, n_keys; } head;
    const uint32_t L = m->config.n_layers;
    entry *e = NULL;
    _Static_assert(sizeof head == 24, "file format");
    HL_TRY(take(c, &head, sizeof head));
    if (memcmp(head.magic, "PWRI", 4) != 0 || (head.version != 2 && head.version != 3)) { rc = hl_fail(c->err, HLLM_E_FORMAT, "%s: is no GPU split of PowerInfer's (magic PWRI, version 2 or 3)", c->f.path); goto done; }
    if (head.n_tensors != 2ull * L || head.n_keys > MAX_KEYS) {
        rc = hl_fail(c->err, HLLM_E_MISMATCH, "%s: has %llu tensors, a split of this model's %u layers has %u", c->f.path, (unsigned long long)head.n_tensors, L, 2 * L);
        goto done;
    }
    HL_NEED(e = hl_alloc_array(m->env->mem, 2ull * L, sizeof *e));
    for (uint64_t i = 0; i < head.n_keys; i++) HL_TRY(skip_key(c));
    for (uint32_t i = 0; i < 2 * L; i++) HL_TRY(take_entry(c, &e[i]));
    const uint64_t data = (c->at + ALIGN - 1) / ALIGN * ALIGN;
    for (uint32_t i = 0; i < 2 * L; i++)
        if (e[i].at > c->f.bytes || e[i].n > c->f.bytes || data + e[i].at + 4 * e[i].n > c->f.bytes) {
            rc = hl_fail(c->err, HLLM_E_TRUNCATED, "%s: tensor %u ends after the file's %llu bytes", c->f.path, i, (unsigned long long)c->f.bytes);
            goto done;
        }
    for (uint32_t il = 0; il < L; il++) HL_TRY(read_layer(c, data, e + 2 * il, &m->layers[il], il));
    if (L > 10)
        hl_log_write(m->env->log, HLLM_LOG_WARNING, "%s: splits of models with more than 10 layers that PowerInfer made after 2024-01-26 have their layers mixed up (its issue 247): "
                     "results are right all the same, the hot neurons are not", c->f.path);
done:
    hl_free(m->env->mem, e);
    return rc;
}

hl_status hl_gpuidx_read(hl_model *m, hl_error *err)
{
    hl_status rc = HLLM_OK;
    const char *model = hl_gguf_path(m->gguf);
    cursor c = { .env = m->env, .err = err };
    char *path = NULL;
    const size_t n = strlen(model) + 32;
    HL_NEED(path = hl_alloc(m->env->mem, n));
    snprintf(path, n, "%s.generated.gpuidx", model);
    rc = hl_file_open(m->env, err, path, &c.f);
    if (rc == HLLM_E_NOT_FOUND) { rc = HLLM_OK; goto done; }         /* most have none */
    HL_TRY(rc);
    rc = read_all(m, &c);
    if (rc != HLLM_OK) hl_fail_prefix(err, rc, "the GPU split beside the model (delete it to go without)");
done:
    hl_file_close(m->env, &c.f);
    hl_free(m->env->mem, path);
    return rc;
}
