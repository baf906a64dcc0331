/* api_model.c: the public functions that ask a model: metadata, tensors, tokens, chat.  As api.c: check the arguments, call one internal
 * function, store the error.
 */
#include "api.h"

/* ---- model ---- */

static hl_status start_open(hllm_runtime *rt, const hllm_model_options *opt, hllm_model_options *full, hllm_model **out)
{
    NEED_ARG(&rt->err, out);
    *out = NULL;
    hl_status rc = take_options(&rt->err, "options", opt, full, sizeof *full);
    if (rc == HLLM_OK && full->flags & ~(uint32_t)(HLLM_MODEL_VOCAB_ONLY | HLLM_MODEL_HEADER_ONLY | HLLM_MODEL_FFN_RELU | HLLM_MODEL_FFN_RELU2)) rc = hl_fail(&rt->err, HLLM_E_ARG, "options.flags is %#x: unknown bits", full->flags);
    const uint32_t both = HLLM_MODEL_FFN_RELU | HLLM_MODEL_FFN_RELU2;
    if (rc == HLLM_OK && (full->flags & both) == both) rc = hl_fail(&rt->err, HLLM_E_ARG, "options.flags is %#x: one FFN activation, not two", full->flags);
    return rc;
}

hllm_status hllm_model_open(hllm_runtime *rt, const char *path, const hllm_model_options *opt, hllm_model **out)
{
    hllm_model_options full;
    hl_gguf *g = NULL;
    hl_status rc = HLLM_OK;
    if (!rt) return HLLM_E_ARG;
    HL_TRY(start_open(rt, opt, &full, out));
    HL_TRY(check_name(&rt->err, "path", path));
    HL_TRY(hl_gguf_open(&rt->env, &rt->err, path, full.flags, full.progress ? &full.progress->p : NULL, &g));
    rc = hl_model_handle_new(rt, g, full.flags, full.progress ? &full.progress->p : NULL, out);
done:
    return hl_error_settle(&rt->err, rc);
}

hllm_status hllm_model_open_fd(hllm_runtime *rt, int32_t fd, uint64_t offset, uint64_t length, const hllm_model_options *opt, hllm_model **out)
{
    hllm_model_options full;
    hl_gguf *g = NULL;
    hl_status rc = HLLM_OK;
    if (!rt) return HLLM_E_ARG;
    HL_TRY(start_open(rt, opt, &full, out));
    HL_TRY(hl_gguf_open_fd(&rt->env, &rt->err, fd, offset, length, full.flags, full.progress ? &full.progress->p : NULL, &g));
    rc = hl_model_handle_new(rt, g, full.flags, full.progress ? &full.progress->p : NULL, out);
done:
    return hl_error_settle(&rt->err, rc);
}

void hllm_model_free(hllm_model *m) { hl_model_unref(m); }
size_t hllm_model_last_error(const hllm_model *m, char *buf, size_t cap) { return m ? hl_error_copy(&m->err, buf, cap) : 0; }

hllm_status hllm_model_get_info(const hllm_model *m, hllm_model_info *out)
{
    if (!m) return HLLM_E_ARG;
    hl_status rc = open_struct(&mutable_model(m)->err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    const hl_model *v = m->model;
    const hl_config *c = &v->config;
    hllm_model_info i = { .gguf_version = v->gguf->version, .family = v->family_name, .name = v->name, .file_bytes = v->gguf->file_bytes, .tensor_bytes = v->tensor_bytes,
                          .n_params = v->n_params, .n_layers = c->n_layers, .n_embd = c->n_embd, .n_ff = c->max_ff, .n_vocab = c->n_vocab, .head_dim_k = c->head_dim_k,
                          .head_dim_v = c->head_dim_v, .n_ctx_train = c->n_ctx_train, .n_keys = v->gguf->n_keys, .n_tensors = v->gguf->n_tensors,
                          .n_shards = v->gguf->n_shards, .flags = m->flags };
    if (c->n_layers) { i.n_heads = v->layers[0].n_heads; i.n_heads_kv = v->layers[0].n_heads_kv; }
    for (uint32_t il = 0; il < c->n_layers; il++) i.window = HL_MAX(i.window, v->layers[il].window);
    give_struct(out, &i, sizeof i);
    return HLLM_OK;
}

static const hl_gguf_key *key_at(const hllm_model *m, uint32_t index)
{
    const hl_gguf *g = m->model->gguf;
    if (index < g->n_keys) return &g->keys[index];
    hl_fail(&mutable_model(m)->err, HLLM_E_ARG, "key index %u: the file has %u keys", index, g->n_keys);
    return NULL;
}

hllm_status hllm_model_key(const hllm_model *m, uint32_t index, hllm_key_info *out)
{
    if (!m) return HLLM_E_ARG;
    hl_status rc = open_struct(&mutable_model(m)->err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    const hl_gguf_key *k = key_at(m, index);
    if (!k) return HLLM_E_ARG;
    give_struct(out, &(hllm_key_info){ .type = k->type, .element_type = k->elem, .n_elements = k->n, .name = k->name }, sizeof *out);
    return HLLM_OK;
}

hllm_status hllm_model_find_key(const hllm_model *m, const char *name, uint32_t *index)
{
    if (!m) return HLLM_E_ARG;
    hl_error *err = &mutable_model(m)->err;
    NEED_ARG(err, index);
    *index = 0;
    hl_status rc = check_name(err, "name", name);
    if (rc != HLLM_OK) return rc;
    const hl_gguf_key *k = hl_gguf_find_key(m->model->gguf, name);
    if (!k) return hl_fail(err, HLLM_E_NOT_FOUND, "%s: no key %s", hl_gguf_path(m->model->gguf), name);
    *index = (uint32_t)(k - m->model->gguf->keys);
    return HLLM_OK;
}

/* The key's element exists. */
static hl_status key_element(const hllm_model *m, uint32_t index, uint64_t element, const hl_gguf_key **k)
{
    *k = key_at(m, index);
    if (!*k) return HLLM_E_ARG;
    if (element >= (*k)->n) return hl_fail(&mutable_model(m)->err, HLLM_E_ARG, "key %s has %llu elements, %llu was asked for", (*k)->name, (unsigned long long)(*k)->n, (unsigned long long)element);
    return HLLM_OK;
}

static hl_status key_result(const hllm_model *m, const hl_gguf_key *k, hl_status rc, const char *want)
{
    if (rc == HLLM_OK) return rc;
    return hl_fail(&mutable_model(m)->err, rc, "key %s is %s%s, not %s", k->name, k->type == HLLM_VALUE_ARRAY ? "an array of " : "", hl_gguf_type_name(k->elem), want);
}

hllm_status hllm_model_key_int(const hllm_model *m, uint32_t index, uint64_t element, int64_t *out)
{
    const hl_gguf_key *k;
    bool b;
    if (!m) return HLLM_E_ARG;
    NEED_ARG(&mutable_model(m)->err, out);
    *out = 0;
    hl_status rc = key_element(m, index, element, &k);
    if (rc != HLLM_OK) return rc;
    if (hl_gguf_bool(k, element, &b) == HLLM_OK) { *out = b; return HLLM_OK; }
    return key_result(m, k, hl_gguf_int(k, element, out), "an integer in the range of int64");
}

hllm_status hllm_model_key_float(const hllm_model *m, uint32_t index, uint64_t element, double *out)
{
    const hl_gguf_key *k;
    if (!m) return HLLM_E_ARG;
    NEED_ARG(&mutable_model(m)->err, out);
    *out = 0;
    hl_status rc = key_element(m, index, element, &k);
    return rc != HLLM_OK ? rc : key_result(m, k, hl_gguf_float(k, element, out), "a float");
}

hllm_status hllm_model_key_string(const hllm_model *m, uint32_t index, uint64_t element, const char **text, size_t *bytes)
{
    const hl_gguf_key *k;
    if (!m) return HLLM_E_ARG;
    NEED_ARG(&mutable_model(m)->err, text);
    NEED_ARG(&mutable_model(m)->err, bytes);
    *text = NULL; *bytes = 0;
    hl_status rc = key_element(m, index, element, &k);
    return rc != HLLM_OK ? rc : key_result(m, k, hl_gguf_string(k, element, text, bytes), "a string");
}

static const hl_gguf_tensor *tensor_at(const hllm_model *m, uint32_t index)
{
    const hl_gguf *g = m->model->gguf;
    if (index < g->n_tensors) return &g->tensors[index];
    hl_fail(&mutable_model(m)->err, HLLM_E_ARG, "tensor index %u: the file has %u tensors", index, g->n_tensors);
    return NULL;
}

hllm_status hllm_model_tensor(const hllm_model *m, uint32_t index, hllm_tensor_info *out)
{
    if (!m) return HLLM_E_ARG;
    hl_status rc = open_struct(&mutable_model(m)->err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    const hl_gguf_tensor *t = tensor_at(m, index);
    if (!t) return HLLM_E_ARG;
    hllm_tensor_info i = { .type = t->dtype, .name = t->name, .type_name = hl_dtype(t->dtype)->name, .n_dims = t->n_dims, .shard = t->shard, .bytes = t->bytes };
    memcpy(i.dims, t->dims, sizeof i.dims);
    give_struct(out, &i, sizeof i);
    return HLLM_OK;
}

hllm_status hllm_model_find_tensor(const hllm_model *m, const char *name, uint32_t *index)
{
    if (!m) return HLLM_E_ARG;
    hl_error *err = &mutable_model(m)->err;
    NEED_ARG(err, index);
    *index = 0;
    hl_status rc = check_name(err, "name", name);
    if (rc != HLLM_OK) return rc;
    const hl_gguf_tensor *t = hl_gguf_find_tensor(m->model->gguf, name);
    if (!t) return hl_fail(err, HLLM_E_NOT_FOUND, "%s: no tensor %s", hl_gguf_path(m->model->gguf), name);
    *index = (uint32_t)(t - m->model->gguf->tensors);
    return HLLM_OK;
}

hllm_status hllm_model_tensor_read(const hllm_model *m, uint32_t index, uint64_t first, float *out, size_t n)
{
    if (!m) return HLLM_E_ARG;
    hl_error *err = &mutable_model(m)->err;
    hl_status rc = check_text(err, "out", out, n, SIZE_MAX / sizeof *out);
    const hl_gguf_tensor *t = rc == HLLM_OK ? tensor_at(m, index) : NULL;
    if (!t) return rc == HLLM_OK ? HLLM_E_ARG : rc;
    return hl_error_settle(err, hl_model_read_f32(m->model, err, t, first, out, n));
}

/* ---- tokens ---- */

hllm_status hllm_tokenize(const hllm_model *m, const char *text, size_t bytes, uint32_t flags, int32_t *out, size_t cap, size_t *n_out)
{
    hl_status rc = HLLM_OK;
    if (!m) return HLLM_E_ARG;
    hl_error *err = &mutable_model(m)->err;
    NEED_ARG(err, n_out);
    *n_out = 0;
    HL_TRY(check_text(err, "text", text, bytes, MAX_TEXT));
    HL_TRY(check_text(err, "out", out, cap, SIZE_MAX));
    HL_TRY(check_flags(err, flags, HLLM_TOKENIZE_NO_SPECIAL | HLLM_TOKENIZE_PARSE_SPECIAL));
    rc = hl_vocab_tokenize(&m->rt->env, err, m->model->vocab, &(hl_text_part){ text ? text : "", bytes, false }, 1, flags, out, cap, n_out);
done:
    return settle_buffer(err, rc, *n_out, cap);
}

hllm_status hllm_detokenize(const hllm_model *m, const int32_t *tokens, size_t n, uint32_t flags, char *buf, size_t cap, size_t *bytes_out)
{
    hl_status rc = HLLM_OK;
    if (!m) return HLLM_E_ARG;
    hl_error *err = &mutable_model(m)->err;
    NEED_ARG(err, bytes_out);
    *bytes_out = 0;
    HL_TRY(check_text(err, "tokens", tokens, n, SIZE_MAX / sizeof *tokens));
    HL_TRY(check_text(err, "buf", buf, cap, SIZE_MAX));
    HL_TRY(check_flags(err, flags, HLLM_DETOKENIZE_SPECIAL | HLLM_DETOKENIZE_CONTINUE));
    rc = hl_vocab_detokenize(err, m->model->vocab, tokens, n, flags, buf, cap, bytes_out);
done:
    return settle_buffer(err, rc, *bytes_out, cap);
}

hllm_status hllm_model_token(const hllm_model *m, int32_t id, hllm_token_info *out)
{
    if (!m) return HLLM_E_ARG;
    hl_error *err = &mutable_model(m)->err;
    hl_status rc = open_struct(err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    if (id < 0 || (uint32_t)id >= hl_vocab_size(m->model->vocab)) return hl_fail(err, HLLM_E_ARG, "token %d: the vocabulary has %u", id, hl_vocab_size(m->model->vocab));
    hl_token t = hl_vocab_token(m->model->vocab, id);
    give_struct(out, &(hllm_token_info){ .type = t.type, .ends_generation = t.ends_generation, .score = t.score, .text = t.text, .text_bytes = t.text_bytes }, sizeof *out);
    return HLLM_OK;
}

hllm_status hllm_model_special_token(const hllm_model *m, uint32_t kind, int32_t *id)
{
    if (!m) return HLLM_E_ARG;
    hl_error *err = &mutable_model(m)->err;
    NEED_ARG(err, id);
    *id = -1;
    if (kind < HLLM_SPECIAL_BOS || kind > HLLM_SPECIAL_PAD) return hl_fail(err, HLLM_E_ARG, "kind is %u, known are %u to %u", kind, (uint32_t)HLLM_SPECIAL_BOS, (uint32_t)HLLM_SPECIAL_PAD);
    *id = hl_vocab_special(m->model->vocab, kind);
    return HLLM_OK;
}

/* ---- chat ---- */

/* All names would not fit in a message. */
#define SOME_TEMPLATES "such as chatml, llama3.1, mistral-v7-tekken, gemma3, phi3, qwen3 or deepseek-r1 (chat_template_names has all)"

const char *hllm_chat_template_names(void) { return hl_chat_template_names(); }

hllm_status hllm_chat_template(const hllm_model *m, const char **name)
{
    if (!m) return HLLM_E_ARG;
    hl_error *err = &mutable_model(m)->err;
    NEED_ARG(err, name);
    *name = NULL;
    const char *path = hl_gguf_path(m->model->gguf);
    if (!m->model->has_template) return hl_fail(err, HLLM_E_NOT_FOUND, "%s: the file has no chat template; name one, " SOME_TEMPLATES, path);
    if (!m->model->chat) return hl_fail(err, HLLM_E_UNSUPPORTED, "%s: its chat template is not one of those known here; name one, " SOME_TEMPLATES, path);
    *name = hl_chat_template_name(m->model->chat);
    return HLLM_OK;
}

static const char *special_text(const hl_vocab *v, uint32_t kind)    /* token texts are NUL-ended copies */
{
    int32_t id = hl_vocab_special(v, kind);
    return id < 0 ? "" : hl_vocab_token(v, id).text;
}

static hl_status render(const hllm_model *m, const hllm_chat_message *messages, size_t n, const hllm_chat_options *opt, hl_chat_parts *out)
{
    hl_status rc = HLLM_OK;
    hl_error *err = &mutable_model(m)->err;
    hllm_chat_options full;
    hllm_chat_message *copy = NULL;
    const hl_chat_template *t = m->model->chat;
    HL_TRY(take_options(err, "options", opt, &full, sizeof full));
    HL_TRY(check_flags(err, full.flags, HLLM_CHAT_NO_GENERATION_PROMPT | HLLM_CHAT_NO_THINKING));
    HL_TRY(check_text(err, "messages", messages, n, 1 << 20));
    if (full.template_name) {
        HL_TRY(check_name(err, "template_name", full.template_name));
        t = hl_chat_template_find(full.template_name);
        if (!t) { rc = hl_fail(err, HLLM_E_UNSUPPORTED, "chat template \"%s\" is not known; name one, " SOME_TEMPLATES, full.template_name); goto done; }
    } else if (!t) { const char *name; rc = hllm_chat_template(m, &name); goto done; }
    HL_NEED(copy = hl_alloc_array(m->rt->env.mem, n, sizeof *copy));
    for (size_t i = 0; i < n; i++) {
        HL_TRY(take_options(err, "message", &messages[i], &copy[i], sizeof copy[i]));
        HL_TRY(check_name(err, "role", copy[i].role));
        HL_TRY(check_text(err, "content", copy[i].content, copy[i].content_bytes, MAX_TEXT));
        if (!copy[i].content) copy[i].content = "";
    }
    rc = hl_chat_template_render(&m->rt->env, err, t, copy, n, full.flags, special_text(m->model->vocab, HLLM_SPECIAL_BOS), special_text(m->model->vocab, HLLM_SPECIAL_EOS), out);
done:
    hl_free(m->rt->env.mem, copy);
    return rc;
}

hllm_status hllm_chat_render(const hllm_model *m, const hllm_chat_message *messages, size_t n, const hllm_chat_options *opt, char *buf, size_t cap, size_t *bytes_out)
{
    hl_status rc = HLLM_OK;
    hl_chat_parts p = { 0 };
    if (!m) return HLLM_E_ARG;
    hl_error *err = &mutable_model(m)->err;
    NEED_ARG(err, bytes_out);
    *bytes_out = 0;
    HL_TRY(check_text(err, "buf", buf, cap, SIZE_MAX));
    HL_TRY(render(m, messages, n, opt, &p));
    *bytes_out = p.bytes;
    if (p.bytes > cap) rc = HLLM_E_BUFFER;
    else if (p.bytes) memcpy(buf, p.text, p.bytes);
done:
    hl_chat_parts_free(&m->rt->env, &p);
    return settle_buffer(err, rc, *bytes_out, cap);
}

hllm_status hllm_chat_tokenize(const hllm_model *m, const hllm_chat_message *messages, size_t n, const hllm_chat_options *opt, int32_t *out, size_t cap, size_t *n_out)
{
    hl_status rc = HLLM_OK;
    hl_chat_parts p = { 0 };
    if (!m) return HLLM_E_ARG;
    hl_error *err = &mutable_model(m)->err;
    NEED_ARG(err, n_out);
    *n_out = 0;
    HL_TRY(check_text(err, "out", out, cap, SIZE_MAX));
    HL_TRY(render(m, messages, n, opt, &p));
    rc = hl_vocab_tokenize_chat(&m->rt->env, err, m->model->vocab, p.parts, p.n, p.words, p.n_words, 0, out, cap, n_out);
done:
    hl_chat_parts_free(&m->rt->env, &p);
    return settle_buffer(err, rc, *n_out, cap);
}
