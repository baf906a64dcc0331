/* model.c: reads what the keys of a GGUF file mean and which tensor plays which role; refuses what does not add up.
 *
 * Everything that later code divides by, indexes with or multiplies is checked here once: no layer, head or width of 0, no rotation
 * beyond the head, no tensor of another shape than the config says.
 */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/kinds.h"

enum { MAX_LAYERS = 1024, MAX_WIDTH = 1 << 20, MAX_HEADS = 4096, MAX_HEAD_DIM = 1024, MAX_CTX = 1 << 27 };

/* What reading keys needs everywhere. */
typedef struct ctx {
    hl_model *m;
    hl_error *err;
    const char *path;
    char key[96];
} ctx;

static const hl_gguf_key *find(ctx *c, const char *suffix)
{
    snprintf(c->key, sizeof c->key, "%s.%s", c->m->family_name, suffix);
    return hl_gguf_find_key(c->m->gguf, c->key);
}

static hl_status missing(ctx *c) { return hl_fail(c->err, HLLM_E_FORMAT, "%s: key %s is missing", c->path, c->key); }

static hl_status wrong_type(ctx *c, const hl_gguf_key *k, const char *want)
{
    return hl_fail(c->err, HLLM_E_FORMAT, "%s: key %s is %s%s, expected %s", c->path, c->key,
                   k->type == HLLM_VALUE_ARRAY ? "an array of " : "", hl_gguf_type_name(k->elem), want);
}

/* Integer element i of k in [lo, hi]. */
static hl_status int_in(ctx *c, const hl_gguf_key *k, uint64_t i, int64_t lo, int64_t hi, uint32_t *out)
{
    int64_t v;
    if (hl_gguf_int(k, i, &v) != HLLM_OK) return wrong_type(c, k, "an integer");
    if (v < lo || v > hi)
        return hl_fail(c->err, HLLM_E_FORMAT, "%s: key %s is %lld, expected %lld to %lld", c->path, c->key, (long long)v, (long long)lo, (long long)hi);
    *out = (uint32_t)v;
    return HLLM_OK;
}

/* required: *out must be given; else *out keeps its default when the key is absent. */
static hl_status get_u32(ctx *c, const char *suffix, bool required, int64_t lo, int64_t hi, uint32_t *out)
{
    const hl_gguf_key *k = find(c, suffix);
    if (!k) return required ? missing(c) : HLLM_OK;
    if (k->type == HLLM_VALUE_ARRAY) return wrong_type(c, k, "an integer");
    return int_in(c, k, 0, lo, hi, out);
}

static hl_status get_f32(ctx *c, const char *suffix, bool required, double lo, double hi, float *out)
{
    const hl_gguf_key *k = find(c, suffix);
    double v;
    char a[32], b[32], d[32];
    if (!k) return required ? missing(c) : HLLM_OK;
    if (k->type == HLLM_VALUE_ARRAY || hl_gguf_float(k, 0, &v) != HLLM_OK) return wrong_type(c, k, "a float");
    if (!(v >= lo && v <= hi))
        return hl_fail(c->err, HLLM_E_FORMAT, "%s: key %s is %s, expected %s to %s", c->path, c->key, hl_text_f64(v, a), hl_text_f64(lo, b), hl_text_f64(hi, d));
    *out = (float)v;
    return HLLM_OK;
}

/* A key that is one integer for all layers or an array with one per layer: into the field `out` of each hl_layer. */
static hl_status get_per_layer(ctx *c, const char *suffix, bool required, int64_t hi, size_t field)
{
    const hl_gguf_key *k = find(c, suffix);
    if (!k) return required ? missing(c) : HLLM_OK;
    uint32_t n = c->m->config.n_layers;
    if (k->type == HLLM_VALUE_ARRAY && k->n != n)
        return hl_fail(c->err, HLLM_E_FORMAT, "%s: key %s has %llu values for %u layers", c->path, c->key, (unsigned long long)k->n, n);
    for (uint32_t il = 0; il < n; il++) {
        hl_status rc = int_in(c, k, k->type == HLLM_VALUE_ARRAY ? il : 0, 1, hi, (uint32_t *)(void *)((char *)&c->m->layers[il] + field));
        if (rc != HLLM_OK) return rc;
    }
    return HLLM_OK;
}

static hl_status read_rope_scaling(ctx *c)
{
    hl_status rc = HLLM_OK;
    hl_config *g = &c->m->config;
    const char *text;
    size_t n;
    float factor = 0;
    const hl_gguf_key *k = find(c, "rope.scaling.type");
    if (k) {
        if (hl_gguf_string(k, 0, &text, &n) != HLLM_OK) return wrong_type(c, k, "a string");
        static const char *const names[] = { "none", "linear", "yarn", "longrope" };
        uint32_t i = 0;
        while (i < 4 && !(strlen(names[i]) == n && memcmp(names[i], text, n) == 0)) i++;
        if (i == 4) return hl_fail(c->err, HLLM_E_UNSUPPORTED, "%s: key %s is \"%.*s\"; known are none, linear, yarn, longrope", c->path, c->key, (int)HL_MIN(n, 64), text);
        g->rope_scaling = i;
    } else g->rope_scaling = HL_SCALING_LINEAR;
    if (find(c, "rope.scaling.factor")) HL_TRY(get_f32(c, "rope.scaling.factor", true, 0, 1e6, &factor));
    else HL_TRY(get_f32(c, "rope.scale_linear", false, 0, 1e6, &factor));
    if (factor != 0 && factor < 1e-6f) {
        char b[32];
        rc = hl_fail(c->err, HLLM_E_FORMAT, "%s: key %s is %s, expected 0 (none) or at least 1e-06", c->path, c->key, hl_text_f64(factor, b));
        goto done;
    }
    g->yarn_factor = factor == 0 ? 1.0f : factor;
    g->rope_attn_factor = 1.0f;
    HL_TRY(get_f32(c, "rope.scaling.attn_factor", false, 1e-6, 1e6, &g->rope_attn_factor));
    g->n_ctx_original = g->n_ctx_train;
    HL_TRY(get_u32(c, "rope.scaling.original_context_length", false, 1, MAX_CTX, &g->n_ctx_original));
    g->yarn_beta_fast = 32; g->yarn_beta_slow = 1; g->yarn_ext_factor = 1;
    HL_TRY(get_f32(c, "rope.scaling.yarn_ext_factor", false, 0, 1e6, &g->yarn_ext_factor));
    HL_TRY(get_f32(c, "rope.scaling.yarn_beta_fast", false, 1e-6, 1e6, &g->yarn_beta_fast));
    HL_TRY(get_f32(c, "rope.scaling.yarn_beta_slow", false, 1e-6, 1e6, &g->yarn_beta_slow));
done:
    return rc;
}

/* Which layers see only a window: a period (of which the last layer sees everything), or one flag per layer. */
static hl_status read_windows(ctx *c, float base)
{
    hl_status rc = HLLM_OK;
    const hl_family *f = c->m->family;
    hl_config *g = &c->m->config;
    uint32_t window = f->window_default, period = f->window_pattern;
    float base_window = f->rope_base_window ? f->rope_base_window : base;
    float scale = g->rope_scaling == HL_SCALING_NONE || g->rope_scaling == HL_SCALING_LONGROPE ? 1.0f : 1.0f / g->yarn_factor;
    for (uint32_t il = 0; il < g->n_layers; il++) { c->m->layers[il].rope_base = base; c->m->layers[il].rope_scale = scale; }
    if (!f->windowed) goto done;
    HL_TRY(get_u32(c, "attention.sliding_window", false, 0, MAX_CTX, &window));
    HL_TRY(get_f32(c, "rope.freq_base_swa", false, 1e-3, 1e12, &base_window));
    const hl_gguf_key *k = find(c, "attention.sliding_window_pattern");
    if (k && k->type == HLLM_VALUE_ARRAY && k->n != g->n_layers) {
        rc = hl_fail(c->err, HLLM_E_FORMAT, "%s: key %s has %llu values for %u layers", c->path, c->key, (unsigned long long)k->n, g->n_layers);
        goto done;
    }
    if (k && k->type != HLLM_VALUE_ARRAY) HL_TRY(int_in(c, k, 0, 0, MAX_LAYERS, &period));
    if (window == 0) goto done;
    for (uint32_t il = 0; il < g->n_layers; il++) {
        bool local = period == 0 ? false : il % period < period - 1;
        if (k && k->type == HLLM_VALUE_ARRAY && hl_gguf_bool(k, il, &local) != HLLM_OK) {
            uint32_t v = 0;
            HL_TRY(int_in(c, k, il, 0, 1, &v));
            local = v;
        }
        if (!local) continue;
        c->m->layers[il].window = window;
        c->m->layers[il].rope_base = base_window;
        if (f->rope_base_window) c->m->layers[il].rope_scale = 1.0f;   /* only the global layers were stretched */
        g->windowed = true;
    }
done:
    return rc;
}

static hl_status read_config(ctx *c)
{
    hl_status rc = HLLM_OK;
    hl_model *m = c->m;
    hl_config *g = &m->config;
    const hl_family *f = m->family;
    float base = 10000.0f;
    uint32_t vocab = 0;
    HL_TRY(get_u32(c, "block_count", true, 1, MAX_LAYERS, &g->n_layers));
    HL_NEED(m->layers = hl_alloc_array(m->env->mem, g->n_layers, sizeof *m->layers));
    HL_TRY(get_u32(c, "context_length", true, 1, MAX_CTX, &g->n_ctx_train));
    HL_TRY(get_u32(c, "embedding_length", true, 1, MAX_WIDTH, &g->n_embd));
    HL_TRY(get_per_layer(c, "feed_forward_length", true, MAX_WIDTH, offsetof(hl_layer, n_ff)));
    HL_TRY(get_per_layer(c, "attention.head_count", true, MAX_HEADS, offsetof(hl_layer, n_heads)));
    for (uint32_t il = 0; il < g->n_layers; il++) m->layers[il].n_heads_kv = m->layers[il].n_heads;
    HL_TRY(get_per_layer(c, "attention.head_count_kv", false, MAX_HEADS, offsetof(hl_layer, n_heads_kv)));
    for (uint32_t il = 0; il < g->n_layers; il++) {
        hl_layer *l = &m->layers[il];
        l->kind = HL_BLOCK_ATTENTION;
        if (l->n_heads % l->n_heads_kv) {
            rc = hl_fail(c->err, HLLM_E_FORMAT, "%s: layer %u: attention.head_count %u is not a multiple of head_count_kv %u", c->path, il, l->n_heads, l->n_heads_kv);
            goto done;
        }
        g->max_heads = HL_MAX(g->max_heads, l->n_heads);
        g->max_heads_kv = HL_MAX(g->max_heads_kv, l->n_heads_kv);
        g->max_ff = HL_MAX(g->max_ff, l->n_ff);
    }
    uint32_t heads = m->layers[0].n_heads;
    g->head_dim_k = g->head_dim_v = g->n_embd / heads;
    if (!find(c, "attention.key_length") && g->n_embd % heads) {
        rc = hl_fail(c->err, HLLM_E_FORMAT, "%s: embedding_length %u is not a multiple of attention.head_count %u and attention.key_length is missing", c->path, g->n_embd, heads);
        goto done;
    }
    HL_TRY(get_u32(c, "attention.key_length", false, 1, MAX_HEAD_DIM, &g->head_dim_k));
    HL_TRY(get_u32(c, "attention.value_length", false, 1, MAX_HEAD_DIM, &g->head_dim_v));
    if (g->head_dim_k > MAX_HEAD_DIM || g->head_dim_v > MAX_HEAD_DIM) {
        rc = hl_fail(c->err, HLLM_E_LIMIT, "%s: head size %u is above the limit %u", c->path, g->head_dim_k, (uint32_t)MAX_HEAD_DIM);
        goto done;
    }
    g->n_rot = g->head_dim_k;
    HL_TRY(get_u32(c, "rope.dimension_count", false, 1, g->head_dim_k, &g->n_rot));
    if (g->n_rot % 2 || (f->rot_is_head && g->n_rot != g->head_dim_k)) {
        rc = hl_fail(c->err, HLLM_E_FORMAT, "%s: rope.dimension_count %u: expected %s%u", c->path, g->n_rot,
                     f->rot_is_head ? "" : "an even number up to ", g->head_dim_k);
        goto done;
    }
    g->norm_eps = f->eps_default;
    HL_TRY(get_f32(c, f->norm == HL_NORM_RMS ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", f->eps_default == 0, 1e-30, 1.0, &g->norm_eps));
    HL_TRY(get_f32(c, "rope.freq_base", false, 1e-3, 1e12, &base));
    HL_TRY(get_f32(c, "attn_logit_softcapping", false, 0, 1e6, &g->attention_softcap));
    HL_TRY(get_f32(c, "final_logit_softcapping", false, 0, 1e6, &g->final_softcap));
    g->attention_scale = f->layers_wide_scale && g->n_layers == f->layers_wide_scale
        ? 1.0f / sqrtf((float)(g->n_embd / heads)) : 1.0f / sqrtf((float)g->head_dim_k);
    HL_TRY(get_f32(c, "attention.scale", false, 1e-9, 1e6, &g->attention_scale));
    HL_TRY(read_rope_scaling(c));
    HL_TRY(read_windows(c, base));
    const hl_gguf_key *causal = find(c, "attention.causal");
    bool is_causal = true;
    if (causal && (causal->type == HLLM_VALUE_ARRAY || hl_gguf_bool(causal, 0, &is_causal) != HLLM_OK)) { rc = wrong_type(c, causal, "a bool"); goto done; }
    if (!is_causal) { rc = hl_fail(c->err, HLLM_E_UNSUPPORTED, "%s: key %s is false: encoders cannot be run", c->path, c->key); goto done; }
    HL_TRY(get_u32(c, "expert_count", false, 0, 1 << 20, &vocab));
    if (vocab) {
        rc = hl_fail(c->err, HLLM_E_UNSUPPORTED, "%s: key %s is %u: mixture-of-experts models cannot be run yet", c->path, c->key, vocab);
        goto done;
    }
    g->n_vocab = hl_vocab_size(m->vocab);
done:
    return rc;
}

uint64_t hl_model_dim(const hl_model *m, const hl_layer *l, hl_dim d)
{
    const hl_config *g = &m->config;
    const uint64_t k = g->head_dim_k, v = g->head_dim_v;
    switch (d) {
    case HL_D_ONE: return 1;
    case HL_D_EMBD: return g->n_embd;
    case HL_D_Q: return l->n_heads * k;
    case HL_D_K: return l->n_heads_kv * k;
    case HL_D_V: return l->n_heads_kv * v;
    case HL_D_QKV: return l->n_heads * k + l->n_heads_kv * (k + v);
    case HL_D_ATT: return l->n_heads * v;
    case HL_D_FF: return l->n_ff;
    case HL_D_UP: return m->family->fused_up ? 2ull * l->n_ff : l->n_ff;
    case HL_D_HEAD_K: return k;
    case HL_D_ROT_2: return g->n_rot / 2;
    case HL_D_VOCAB: return g->n_vocab;
    case HL_D_PRED: return l->n_pred;
    case HL_D_POS: return g->n_pos;
    }
    return 0;
}

hl_status hl_model_check_shape(const hl_model *m, hl_error *err, const hl_layer *l, hl_role role, const hl_gguf_tensor *t)
{
    const char *path = hl_gguf_path(m->gguf);
    const hl_role_info *r = &hl_roles[role];
    const uint64_t rows = hl_model_dim(m, l, r->rows), cols = hl_model_dim(m, l, r->cols);
    const uint32_t want_dims = r->rows == HL_D_ONE ? 1 : 2;
    if (t->dims[0] != cols || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1 || t->n_dims > HL_MAX(want_dims, 2u))
        return hl_fail(err, HLLM_E_MISMATCH, "%s: tensor %s is %llu x %llu x %llu x %llu, expected %llu x %llu (%s)", path, t->name,
                       (unsigned long long)t->dims[0], (unsigned long long)t->dims[1], (unsigned long long)t->dims[2], (unsigned long long)t->dims[3],
                       (unsigned long long)cols, (unsigned long long)rows,
                       r->rows == HL_D_VOCAB ? "tokens in the vocabulary are the rows" : "from the file's keys");
    if (r->rows == HL_D_ONE && t->dtype != HL_F32 && t->dtype != HL_F16 && t->dtype != HL_BF16)
        return hl_fail(err, HLLM_E_MISMATCH, "%s: tensor %s is %s, expected F32, F16 or BF16", path, t->name, hl_dtype(t->dtype)->name);
    return HLLM_OK;
}

/* Finds the tensor of a role; absent ones stay NULL. */
static hl_status take_role(ctx *c, uint32_t il, hl_role role, bool required)
{
    hl_layer *l = role < HL_LAYER_ROLES ? &c->m->layers[il] : NULL;
    char name[96];
    if (l) snprintf(name, sizeof name, "blk.%u.%s", il, hl_roles[role].name);
    else snprintf(name, sizeof name, "%s", hl_roles[role].name);
    const hl_gguf_tensor *t = hl_gguf_find_tensor(c->m->gguf, name);
    if (!t) return required ? hl_fail(c->err, HLLM_E_MISMATCH, "%s: tensor %s is missing", c->path, name) : HLLM_OK;
    if (role == HL_POSITIONS) c->m->config.n_pos = (uint32_t)HL_MIN(t->dims[1], (uint64_t)MAX_CTX);
    hl_status rc = hl_model_check_shape(c->m, c->err, l, role, t);
    if (rc == HLLM_OK) *(l ? &l->t[role] : &c->m->t[role]) = t;
    return rc;
}

static hl_status take_tensors(ctx *c)
{
    hl_status rc = HLLM_OK;
    hl_model *m = c->m;
    const hl_family *f = m->family;
    for (uint32_t r = HL_LAYER_ROLES; r < HL_ROLES; r++) {
        uint32_t bit = 1u << (r - HL_LAYER_ROLES);
        if ((f->required_global | f->optional_global) & bit) HL_TRY(take_role(c, 0, (hl_role)r, f->required_global & bit));
    }
    if (!m->t[HL_HEAD]) m->t[HL_HEAD] = m->t[HL_EMBED];
    if (m->t[HL_POSITIONS] && m->config.n_pos <= f->pos_offset) {
        rc = hl_fail(c->err, HLLM_E_MISMATCH, "%s: tensor %s has %u rows, positions begin at row %u", c->path, m->t[HL_POSITIONS]->name, m->config.n_pos, f->pos_offset);
        goto done;
    }
    if (m->t[HL_POSITIONS]) m->config.n_ctx_train = HL_MIN(m->config.n_ctx_train, m->config.n_pos - f->pos_offset);
    if (!m->t[HL_ROPE_LONG] != !m->t[HL_ROPE_SHORT] || (m->t[HL_ROPE_LONG] && m->t[HL_ROPE_FREQS])) {
        rc = hl_fail(c->err, HLLM_E_MISMATCH, "%s: tensors rope_factors_long.weight and rope_factors_short.weight come together, and not with rope_freqs.weight", c->path);
        goto done;
    }
    for (uint32_t il = 0; il < m->config.n_layers; il++) {
        hl_layer *l = &m->layers[il];
        for (uint32_t r = 0; r < HL_FAMILY_ROLES; r++)
            if ((f->required | f->optional) >> r & 1) HL_TRY(take_role(c, il, (hl_role)r, (f->required >> r & 1) && r != HL_FFN_DOWN));
        HL_TRY(hl_sparse_layer(m, c->err, il));
        bool apart = l->t[HL_ATTN_Q] && l->t[HL_ATTN_K] && l->t[HL_ATTN_V];
        if (!apart && !l->t[HL_ATTN_QKV]) {
            hl_role r = !l->t[HL_ATTN_Q] ? HL_ATTN_Q : !l->t[HL_ATTN_K] ? HL_ATTN_K : HL_ATTN_V;
            rc = hl_fail(c->err, HLLM_E_MISMATCH, "%s: tensor blk.%u.%s is missing (and so is blk.%u.attn_qkv.weight)", c->path, il, hl_roles[r].name, il);
            goto done;
        }
        static const hl_role fused[][4] = { { HL_ATTN_QKV, HL_ATTN_Q, HL_ATTN_K, HL_ATTN_V }, { HL_ATTN_QKV_B, HL_ATTN_Q_B, HL_ATTN_K_B, HL_ATTN_V_B } };
        for (uint32_t i = 0; i < 2; i++)
            for (uint32_t k = 1; k < 4; k++)
                if (l->t[fused[i][0]] && l->t[fused[i][k]]) {
                    rc = hl_fail(c->err, HLLM_E_MISMATCH, "%s: tensor %s: the layer has a fused %s too", c->path, l->t[fused[i][k]]->name, hl_roles[fused[i][0]].name);
                    goto done;
                }
    }
done:
    return rc;
}

/* A tensor that nothing here computes with means that the model is not what we take it for.  These few are leftovers of old converters. */
static bool is_leftover(const char *name)
{
    static const char *const known[] = { ".attn_rot_embd", ".rotary_emb.inv_freq", ".attn.bias", ".masked_bias" };
    for (size_t i = 0; i < HL_COUNT(known); i++) {
        size_t n = strlen(name), k = strlen(known[i]);
        if (n >= k && memcmp(name + n - k, known[i], k) == 0) return true;
    }
    return strcmp(name, "rope_freqs.weight") == 0;
}

static hl_status refuse_extra(ctx *c)
{
    hl_status rc = HLLM_OK;
    const hl_model *m = c->m;
    const uint32_t n = m->gguf->n_tensors;
    uint8_t *used = NULL;
    HL_NEED(used = hl_alloc_zero(m->env->mem, n));
    for (uint32_t r = HL_LAYER_ROLES; r < HL_ROLES; r++) if (m->t[r]) used[m->t[r] - m->gguf->tensors] = 1;
    for (uint32_t il = 0; il < m->config.n_layers; il++)
        for (uint32_t r = 0; r < HL_LAYER_ROLES; r++)
            if (m->layers[il].t[r]) used[m->layers[il].t[r] - m->gguf->tensors] = 1;
    for (uint32_t i = 0; i < n; i++) {
        const char *name = m->gguf->tensors[i].name;
        if (used[i] || is_leftover(name) || (m->family->tied && strcmp(name, "output.weight") == 0)) continue;
        rc = hl_fail(c->err, HLLM_E_MISMATCH, "%s: tensor %s is no part of a %s model with %u layers", c->path, name, m->family->name, m->config.n_layers);
        goto done;
    }
done:
    hl_free(m->env->mem, used);
    return rc;
}

static hl_status copy_string(ctx *c, const char *key, size_t limit, bool required, char **out)
{
    const hl_gguf_key *k = hl_gguf_find_key(c->m->gguf, key);
    const char *text = "";
    size_t n = 0;
    snprintf(c->key, sizeof c->key, "%s", key);
    if (!k && required) return missing(c);
    if (k && (k->type == HLLM_VALUE_ARRAY || hl_gguf_string(k, 0, &text, &n) != HLLM_OK)) return required ? wrong_type(c, k, "a string") : HLLM_OK;
    if (n > limit) {
        if (required) return hl_fail(c->err, HLLM_E_LIMIT, "%s: key %s has %zu bytes, the limit is %zu", c->path, key, n, limit);
        n = limit;
    }
    if (required && memchr(text, 0, n)) return hl_fail(c->err, HLLM_E_FORMAT, "%s: key %s has a NUL inside its %zu bytes", c->path, key, n);
    *out = hl_strndup(c->m->env->mem, text, n);
    if (!*out) return HLLM_E_NOMEM;
    if (!required && !hl_utf8_valid(*out, n)) {        /* for people only: what is no UTF-8 is shown as \xNN */
        char shown[1024];
        hl_text_printable(shown, sizeof shown, *out);
        hl_free(c->m->env->mem, *out);
        *out = hl_strndup(c->m->env->mem, shown, strlen(shown));
    }
    return *out ? HLLM_OK : HLLM_E_NOMEM;
}

static void read_sampling(hl_model *m)
{
    hl_sampling_defaults *s = &m->sampling;
    /* The lower ends are values that mean "off" in files; below them nothing has a meaning. */
    const struct { const char *key; float *f; int32_t *i; double lo, hi; } rows[] = {
        { "general.sampling.temp", &s->temperature, NULL, 0, 100 },            { "general.sampling.top_k", NULL, &s->top_k, INT32_MIN, 1 << 30 },
        { "general.sampling.top_p", &s->top_p, NULL, 1e-6, 1 },                { "general.sampling.min_p", &s->min_p, NULL, 0, 1 },
        { "general.sampling.penalty_repeat", &s->repeat_penalty, NULL, 1e-3, 1e3 },
        { "general.sampling.penalty_last_n", NULL, &s->penalty_last_n, -1, 1 << 20 },
        { "general.sampling.penalty_freq", &s->frequency_penalty, NULL, -100, 100 },
        { "general.sampling.penalty_present", &s->presence_penalty, NULL, -100, 100 },
    };
    for (size_t i = 0; i < HL_COUNT(rows); i++) {
        const hl_gguf_key *k = hl_gguf_find_key(m->gguf, rows[i].key);
        double v = 0;
        int64_t n = 0;
        const char *why = NULL;
        if (!k) continue;
        if (k->type == HLLM_VALUE_ARRAY || (hl_gguf_float(k, 0, &v) != HLLM_OK && hl_gguf_int(k, 0, &n) != HLLM_OK)) why = "is no number";
        else if (k->type != HLLM_VALUE_F32 && k->type != HLLM_VALUE_F64) v = (double)n;
        if (!why && !(v >= rows[i].lo && v <= rows[i].hi)) why = "is out of range";
        if (why) hl_log_write(m->env->log, HLLM_LOG_WARNING, "%s: %s %s and ignored", hl_gguf_path(m->gguf), rows[i].key, why);
        else if (rows[i].f) *rows[i].f = (float)v;
        else if (rows[i].i == &s->top_k) s->top_k = v >= 1 ? (int32_t)v : -1;
        else s->penalty_last_n = v >= 1 ? (int32_t)v : v < 0 ? INT32_MAX : HL_LAST_N_OFF;
    }
}

static void read_chat(hl_model *m)
{
    const hl_gguf_key *k = hl_gguf_find_key(m->gguf, "tokenizer.chat_template");
    const char *text;
    size_t n;
    if (!k || k->type == HLLM_VALUE_ARRAY || hl_gguf_string(k, 0, &text, &n) != HLLM_OK) return;
    m->has_template = true;
    m->chat = hl_chat_template_detect(text, n);
}

hl_status hl_model_new(const hl_env *env, hl_error *err, hl_gguf *g, uint32_t flags, const hl_progress *progress, hl_model **out)
{
    hl_status rc = HLLM_OK;
    hl_env call = *env;
    hl_model *m = NULL;
    *out = NULL;
    if (!(m = hl_alloc_zero(env->mem, sizeof *m))) { hl_gguf_free(env, g); return HLLM_E_NOMEM; }
    m->env = env;
    m->gguf = g;
    ctx c = { .m = m, .err = err, .path = hl_gguf_path(g) };
    HL_TRY(copy_string(&c, "general.architecture", 256, true, &m->family_name));
    HL_TRY(copy_string(&c, "general.name", 512, false, &m->name));
    if (!m->name) HL_NEED(m->name = hl_strndup(env->mem, "", 0));
    for (uint32_t i = 0; i < g->n_tensors; i++) { m->n_params += g->tensors[i].n; m->tensor_bytes += g->tensors[i].bytes; }
    m->family = hl_family_find(m->family_name, strlen(m->family_name));
    if (!m->family && !(flags & HLLM_MODEL_VOCAB_ONLY)) {
        rc = hl_fail(err, HLLM_E_UNSUPPORTED, "%s: architecture \"%s\" is not known here; known are: %s", c.path, m->family_name, hl_family_names());
        goto done;
    }
    if (progress) call.stop = &progress->cancelled;
    HL_TRY(hl_vocab_new(&call, err, g, &m->vocab));
    m->config.n_vocab = hl_vocab_size(m->vocab);
    read_sampling(m);
    read_chat(m);
    if (flags & HLLM_MODEL_VOCAB_ONLY) m->family = NULL;
    else {
        HL_TRY(read_config(&c));
        HL_TRY(hl_sparse_keys(m, err, flags));
        HL_TRY(take_tensors(&c));
        HL_TRY(refuse_extra(&c));
        if (g->powerinfer) HL_TRY(hl_gpuidx_read(m, err));
    }
    *out = m; m = NULL;
done:
    hl_model_free(m);
    return rc;
}

void hl_model_free(hl_model *m)
{
    if (!m) return;
    const hl_env *env = m->env;
    for (uint32_t il = 0; m->layers && il < m->config.n_layers; il++) hl_free(env->mem, m->layers[il].hot);
    hl_free(env->mem, m->layers);
    hl_vocab_free(env, m->vocab);
    hl_gguf_free(env, m->gguf);
    hl_free(env->mem, m->family_name);
    hl_free(env->mem, m->name);
    hl_free(env->mem, m);
}

hl_status hl_model_read_f32(const hl_model *m, hl_error *err, const hl_gguf_tensor *t, uint64_t first, float *out, size_t n)
{
    hl_status rc = HLLM_OK;
    const hl_dtype_info *d = hl_dtype(t->dtype);
    const hl_file *file = &m->gguf->shards[t->shard];
    uint8_t buf[8192];
    const size_t blocks = sizeof buf / d->bytes;
    if (first > t->n || n > t->n - first || first % d->block || n % d->block)
        return hl_fail(err, HLLM_E_ARG, "%s: tensor %s: elements %llu + %zu: it has %llu, in blocks of %u", file->path, t->name,
                       (unsigned long long)first, n, (unsigned long long)t->n, d->block);
    uint64_t at = t->at + first / d->block * d->bytes;
    for (size_t done_n = 0; done_n < n;) {
        size_t now = HL_MIN(n - done_n, blocks * d->block);
        HL_TRY(hl_file_read(m->env, err, file, at, buf, hl_dtype_bytes(d, now)));
        hl_dequantize(t->dtype, buf, out + done_n, now);
        at += hl_dtype_bytes(d, now);
        done_n += now;
    }
done:
    return rc;
}

hl_status hl_model_fingerprint(const hl_model *m, hl_error *err, uint64_t *out)
{
    hl_status rc = HLLM_OK;
    uint64_t h = m->gguf->header_hash;
    uint8_t buf[1024];
    *out = 0;
    for (uint32_t i = 0; i < m->gguf->n_tensors; i++) {
        const hl_gguf_tensor *t = &m->gguf->tensors[i];
        const size_t n = (size_t)HL_MIN(t->bytes, (uint64_t)sizeof buf);
        const uint64_t at[] = { 0, (t->bytes - n) / 2, t->bytes - n };
        for (size_t k = 0; k < HL_COUNT(at); k++) {
            HL_TRY(hl_file_read(m->env, err, &m->gguf->shards[t->shard], t->at + at[k], buf, n));
            h = hl_hash(buf, n, h);
        }
    }
    *out = h;
done:
    return rc;
}

/* YaRN, arXiv:2309.00071, 3.2 "NTK-by-parts": the dimension whose wavelength makes `turns` turns over the original context. */
static double yarn_dim(const hl_config *g, double base, double turns)
{
    return g->n_rot * log(g->n_ctx_original / (turns * 2 * 3.14159265358979323846)) / (2 * log(base));
}

hl_status hl_model_rope(const hl_model *m, hl_error *err, const hl_layer *l, bool long_context, double *angle, float *magnitude)
{
    hl_status rc = HLLM_OK;
    const hl_config *g = &m->config;
    const uint32_t half = g->n_rot / 2;
    const hl_gguf_tensor *t = m->t[HL_ROPE_FREQS] ? m->t[HL_ROPE_FREQS] : m->t[long_context ? HL_ROPE_LONG : HL_ROPE_SHORT];
    float *factors = NULL;
    *magnitude = g->rope_attn_factor;
    if (t) {
        HL_NEED(factors = hl_alloc_array(m->env->mem, half, sizeof *factors));
        HL_TRY(hl_model_read_f32(m, err, t, 0, factors, half));
    }
    for (uint32_t i = 0; i < half; i++) {
        double a = pow(l->rope_base, -2.0 * i / g->n_rot);
        if (factors) {
            if (!(fabsf(factors[i]) > 1e-9f && fabsf(factors[i]) < 1e9f)) {
                char b[32];
                rc = hl_fail(err, HLLM_E_FORMAT, "%s: tensor %s: element %u is %s", hl_gguf_path(m->gguf), t->name, i, hl_text_f64(factors[i], b));
                goto done;
            }
            a /= factors[i];
        }
        double scaled = a * l->rope_scale;
        if (g->rope_scaling == HL_SCALING_YARN && g->yarn_ext_factor != 0) {
            double low = HL_MAX(0.0, floor(yarn_dim(g, l->rope_base, g->yarn_beta_fast)));
            double high = HL_MIN(g->n_rot - 1.0, ceil(yarn_dim(g, l->rope_base, g->yarn_beta_slow)));
            double ramp = (i - low) / HL_MAX(0.001, high - low);
            double mix = (1 - HL_MIN(1.0, HL_MAX(0.0, ramp))) * g->yarn_ext_factor;
            scaled = scaled * (1 - mix) + a * mix;
        }
        angle[i] = scaled;
    }
    /* The paper's 3.4 temperature, on q and k alike. */
    if (g->rope_scaling == HL_SCALING_YARN && g->yarn_ext_factor != 0 && l->rope_scale < 1.0f)
        *magnitude *= 1.0f + 0.1f * logf(1.0f / l->rope_scale);
done:
    hl_free(m->env->mem, factors);
    return rc;
}
