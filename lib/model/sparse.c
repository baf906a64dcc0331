/* sparse.c: what a file says that was made for skipping neurons: one prepared here, or PowerInfer's own.
 *
 * Both keep the down matrix transposed, a row for each neuron ("ffn_down_t"), and may have a predictor in each layer ("fc1", "fc2").  A
 * prepared file is an ordinary GGUF with keys hybrid_llm.* (lib/sparse/README.md); PowerInfer's begins with PWRI, says nothing of its
 * activation, which is always ReLU, and keeps one threshold for all scores.
 */
#include "model/model.h"

#include <stdio.h>
#include <string.h>

#include "base/kinds.h"

enum { FILE_VERSION = 1, MAX_PREDICTOR = 1 << 16 };

static const char *const act_names[] = { "silu", "gelu", "relu", "relu2" };

const char *hl_act_name(uint32_t act) { return act < HL_COUNT(act_names) ? act_names[act] : "?"; }
bool hl_act_is_relu(uint32_t act) { return act == HL_FFN_RELU || act == HL_FFN_RELU2; }

/* A string key that is one of n words: its index; absent: *out stays. */
static hl_status word_key(const hl_model *m, hl_error *err, const char *key, const char *const *words, uint32_t n, uint32_t *out, bool *there)
{
    const hl_gguf_key *k = hl_gguf_find_key(m->gguf, key);
    const char *text;
    size_t bytes;
    *there = k != NULL;
    if (!k) return HLLM_OK;
    if (k->type == HLLM_VALUE_ARRAY || hl_gguf_string(k, 0, &text, &bytes) != HLLM_OK) return hl_fail(err, HLLM_E_FORMAT, "%s: key %s is no string", hl_gguf_path(m->gguf), key);
    for (uint32_t i = 0; i < n; i++)
        if (strlen(words[i]) == bytes && memcmp(words[i], text, bytes) == 0) { *out = i; return HLLM_OK; }
    return hl_fail(err, HLLM_E_UNSUPPORTED, "%s: key %s is \"%.*s\", which is not known here", hl_gguf_path(m->gguf), key, (int)HL_MIN(bytes, (size_t)64), text);
}

static hl_status prepared_keys(hl_model *m, hl_error *err)
{
    static const char *const inputs[] = { "ffn", "residual", "layer" };
    hl_status rc = HLLM_OK;
    hl_sparse *s = &m->sparse;
    const char *path = hl_gguf_path(m->gguf);
    int64_t v = 0;
    bool there;
    const hl_gguf_key *k = hl_gguf_find_key(m->gguf, "hybrid_llm.version");
    if (!k) goto done;
    if (k->type == HLLM_VALUE_ARRAY || hl_gguf_int(k, 0, &v) != HLLM_OK || v < 1 || v > FILE_VERSION) {
        rc = hl_fail(err, HLLM_E_VERSION, "%s: hybrid_llm.version is %lld, known is %d", path, (long long)v, FILE_VERSION);
        goto done;
    }
    s->prepared = true;
    HL_TRY(word_key(m, err, "hybrid_llm.ffn_act", act_names, HL_COUNT(act_names), &m->config.act, &s->named_act));
    HL_TRY(word_key(m, err, "hybrid_llm.predictor.input", inputs, HL_COUNT(inputs), &s->input, &there));
    if ((k = hl_gguf_find_key(m->gguf, "hybrid_llm.text.tokens"))) {
        if (k->type == HLLM_VALUE_ARRAY || hl_gguf_int(k, 0, &v) != HLLM_OK || v < 0) { rc = hl_fail(err, HLLM_E_FORMAT, "%s: key %s is no count", path, k->name); goto done; }
        s->n_tokens = (uint64_t)v;
    }
done:
    return rc;
}

hl_status hl_sparse_keys(hl_model *m, hl_error *err, uint32_t flags)
{
    hl_status rc = HLLM_OK;
    hl_sparse *s = &m->sparse;
    const uint32_t asked = flags & HLLM_MODEL_FFN_RELU ? HL_FFN_RELU : HL_FFN_RELU2;
    m->config.act = m->family->act;
    if (m->gguf->powerinfer) {
        const hl_gguf_key *k = hl_gguf_find_key(m->gguf, "powerinfer.sparse_threshold");
        double v = 0;
        if (k && (k->type == HLLM_VALUE_ARRAY || hl_gguf_float(k, 0, &v) != HLLM_OK || !(v > -1e30 && v < 1e30))) {
            rc = hl_fail(err, HLLM_E_FORMAT, "%s: key %s is no finite float", hl_gguf_path(m->gguf), k->name);
            goto done;
        }
        *s = (hl_sparse){ .powerinfer = true, .named_act = true, .threshold = (float)v, .input = m->family->parallel ? HL_PRED_OF_LAYER : HL_PRED_OF_RESIDUAL };
        m->config.act = HL_FFN_RELU;
    } else HL_TRY(prepared_keys(m, err));
    if (flags & (HLLM_MODEL_FFN_RELU | HLLM_MODEL_FFN_RELU2)) {
        if (s->named_act && m->config.act != asked)
            rc = hl_fail(err, HLLM_E_MISMATCH, "%s: the file's FFN activation is %s, asked for was %s", hl_gguf_path(m->gguf), hl_act_name(m->config.act), hl_act_name(asked));
        m->config.act = asked;
    }
done:
    return rc;
}

static const hl_gguf_tensor *find(const hl_model *m, uint32_t il, const char *name)
{
    char full[96];
    snprintf(full, sizeof full, "blk.%u.%s", il, name);
    return hl_gguf_find_tensor(m->gguf, full);
}

static hl_status take(hl_model *m, hl_error *err, uint32_t il, hl_role role)
{
    hl_layer *l = &m->layers[il];
    const hl_gguf_tensor *t = find(m, il, hl_roles[role].name);
    const hl_status rc = t ? hl_model_check_shape(m, err, l, role, t) : HLLM_OK;
    if (rc == HLLM_OK) l->t[role] = t;
    return rc;
}

/* Which kind of predictor each layer has: a number for all, or one per layer. */
static hl_status predictor_kind(hl_model *m, hl_error *err, uint32_t il)
{
    const hl_gguf_key *k = hl_gguf_find_key(m->gguf, "hybrid_llm.predictor.kind");
    int64_t v = HL_PRED_RELU;
    if (m->sparse.powerinfer) { m->layers[il].pred = HL_PRED_RELU; return HLLM_OK; }
    if (!k || (k->type == HLLM_VALUE_ARRAY && k->n != m->config.n_layers) || hl_gguf_int(k, k->type == HLLM_VALUE_ARRAY ? il : 0, &v) != HLLM_OK || v < HL_PRED_LINEAR || v > HL_PRED_RELU)
        return hl_fail(err, HLLM_E_FORMAT, "%s: layer %u has a predictor, and key hybrid_llm.predictor.kind does not say of which kind (%d or %d)", hl_gguf_path(m->gguf), il, HL_PRED_LINEAR, HL_PRED_RELU);
    m->layers[il].pred = (uint32_t)v;
    return HLLM_OK;
}

hl_status hl_sparse_layer(hl_model *m, hl_error *err, uint32_t il)
{
    hl_status rc = HLLM_OK;
    hl_layer *l = &m->layers[il];
    const char *path = hl_gguf_path(m->gguf);
    const bool sparse = m->sparse.powerinfer || m->sparse.prepared;
    const hl_gguf_tensor *fc1 = sparse ? find(m, il, hl_roles[HL_PRED_1].name) : NULL;
    if (sparse) HL_TRY(take(m, err, il, HL_FFN_DOWN_T));
    if (!l->t[HL_FFN_DOWN] == !l->t[HL_FFN_DOWN_T]) {
        rc = l->t[HL_FFN_DOWN] ? hl_fail(err, HLLM_E_MISMATCH, "%s: tensor blk.%u.ffn_down.weight: the layer has ffn_down_t.weight too", path, il)
                               : hl_fail(err, HLLM_E_MISMATCH, "%s: tensor blk.%u.ffn_down.weight is missing", path, il);
        goto done;
    }
    if (!l->t[HL_FFN_DOWN_T]) goto done;
    m->sparse.rows = true;
    if (m->family->fused_up) { rc = hl_fail(err, HLLM_E_UNSUPPORTED, "%s: layer %u: gate and up in one tensor with ffn_down_t.weight", path, il); goto done; }
    const hl_gguf_tensor *b = find(m, il, "ffn_down_t.bias");      /* PowerInfer's name for it */
    if (b && (m->family->optional >> HL_FFN_DOWN_B & 1) && !l->t[HL_FFN_DOWN_B]) {
        HL_TRY(hl_model_check_shape(m, err, l, HL_FFN_DOWN_B, b));
        l->t[HL_FFN_DOWN_B] = b;
    }
    HL_TRY(take(m, err, il, HL_FFN_HEAT));
    HL_TRY(take(m, err, il, HL_FFN_CUT));
    m->sparse.n_cuts += l->t[HL_FFN_CUT] != NULL;
    if (!fc1) goto done;
    if (fc1->dims[1] < 1 || fc1->dims[1] > MAX_PREDICTOR) {
        rc = hl_fail(err, HLLM_E_MISMATCH, "%s: tensor %s: a predictor of width %llu, allowed are 1 to %d", path, fc1->name, (unsigned long long)fc1->dims[1], MAX_PREDICTOR);
        goto done;
    }
    l->n_pred = (uint32_t)fc1->dims[1];
    HL_TRY(predictor_kind(m, err, il));
    for (hl_role r = HL_PRED_1; r <= HL_PRED_B; r++) HL_TRY(take(m, err, il, r));
    if (!l->t[HL_PRED_2]) { rc = hl_fail(err, HLLM_E_MISMATCH, "%s: tensor blk.%u.fc2.weight is missing", path, il); goto done; }
    m->sparse.n_predictors++;
    m->config.max_pred = HL_MAX(m->config.max_pred, l->n_pred);
done:
    return rc;
}
