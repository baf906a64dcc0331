/* api_sparse.c: the public functions of prepared files.  As api.c: check the arguments, call one internal function, store the error.
 */
#include "api.h"
#include "sparse/sparse.h"

hllm_status hllm_prepare(const hllm_model *m, const char *path, const hllm_prepare_options *opt)
{
    hl_status rc = HLLM_OK;
    hllm_prepare_options full;
    if (!m) return HLLM_E_ARG;
    hl_error *err = &mutable_model(m)->err;
    HL_TRY(check_name(err, "path", path));
    HL_TRY(take_options(err, "options", opt, &full, sizeof full));
    HL_TRY(check_flags(err, full.flags, HLLM_PREPARE_NO_PREDICTORS));
    HL_TRY(check_text(err, "options.text", full.text, full.text_bytes, MAX_TEXT));
    if (!(full.perplexity_loss >= 0 && full.perplexity_loss <= 1)) { rc = hl_fail(err, HLLM_E_ARG, "options.perplexity_loss is not between 0 and 1"); goto done; }
    if (!(full.skip_share >= 0 && full.skip_share < 1)) { rc = hl_fail(err, HLLM_E_ARG, "options.skip_share is not between 0 and 1"); goto done; }
    rc = hl_prepare(mutable_model(m), path, &full);
done:
    return hl_error_settle(err, rc);
}

static double key_f64(const hl_model *m, const char *name, uint64_t i, double missing)
{
    const hl_gguf_key *k = hl_gguf_find_key(m->gguf, name);
    double v = missing;
    return k && hl_gguf_float(k, i, &v) == HLLM_OK ? v : missing;
}

hllm_status hllm_model_get_sparse(const hllm_model *m, hllm_sparse_info *out)
{
    if (!m) return HLLM_E_ARG;
    hl_status rc = open_struct(&mutable_model(m)->err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    const hl_model *v = m->model;
    int64_t n = 0;
    const hl_gguf_key *k = hl_gguf_find_key(v->gguf, "hybrid_llm.measured.tokens");
    if (k) hl_gguf_int(k, 0, &n);
    hllm_sparse_info i = { .by_neurons = v->sparse.rows, .powerinfer = v->sparse.powerinfer, .n_predictors = v->sparse.n_predictors, .n_thresholds = v->sparse.n_cuts, .act = v->family ? hl_act_name(v->config.act) : "",
                           .n_tokens = v->sparse.n_tokens, .n_measured = (uint64_t)HL_MAX(n, 0), .nll_exact = key_f64(v, "hybrid_llm.measured.nll_dense", 0, 0),
                           .nll_predicted = key_f64(v, "hybrid_llm.measured.nll", 0, 0), .kl_predicted = key_f64(v, "hybrid_llm.measured.kl", 0, 0) };
    give_struct(out, &i, sizeof i);
    return HLLM_OK;
}

static uint64_t row_bytes(const hl_gguf_tensor *t) { return t ? t->bytes / t->dims[1] : 0; }

hllm_status hllm_model_get_sparse_layer(const hllm_model *m, uint32_t index, hllm_sparse_layer *out)
{
    if (!m) return HLLM_E_ARG;
    hl_error *err = &mutable_model(m)->err;
    hl_status rc = open_struct(err, "out", out, sizeof *out);
    if (rc != HLLM_OK) return rc;
    const hl_model *v = m->model;
    if (!v->family || index >= v->config.n_layers) return hl_fail(err, HLLM_E_ARG, "layer %u: the model has %u", index, v->family ? v->config.n_layers : 0);
    const hl_layer *l = &v->layers[index];
    const bool gated = v->family->gated;
    const double active = key_f64(v, "hybrid_llm.layer.active", index, 1);
    hllm_sparse_layer i = { .n_neurons = l->n_ff, .n_pred = l->n_pred, .predictor = l->pred, .active = active, .hot80 = key_f64(v, "hybrid_llm.layer.hot80", index, 1),
                            .overlap = key_f64(v, "hybrid_llm.layer.overlap", index, 1), .predicted = key_f64(v, "hybrid_llm.layer.predicted", index, 1),
                            .recall = key_f64(v, "hybrid_llm.layer.recall", index, 1), .energy_kept = 1 - key_f64(v, "hybrid_llm.layer.lost", index, 0) };
    const double first = (double)row_bytes(l->t[gated ? HL_FFN_GATE : HL_FFN_UP]), second = gated ? (double)row_bytes(l->t[HL_FFN_UP]) : 0;
    const double down = l->t[HL_FFN_DOWN_T] ? (double)row_bytes(l->t[HL_FFN_DOWN_T]) : l->t[HL_FFN_DOWN] ? (double)l->t[HL_FFN_DOWN]->bytes / l->n_ff : 0;
    i.bytes_dense = (uint64_t)((first + second + down) * l->n_ff);
    i.bytes_exact = (uint64_t)((first + active * (second + down)) * l->n_ff);
    i.bytes_predictor = l->n_pred ? l->t[HL_PRED_1]->bytes + l->t[HL_PRED_2]->bytes : 0;
    if (l->t[HL_FFN_CUT]) i.bytes_exact = i.bytes_dense;
    i.bytes_predicted = l->t[HL_FFN_CUT] ? (uint64_t)((first + i.predicted * (second + down)) * l->n_ff) : l->n_pred ? i.bytes_predictor + (uint64_t)((i.predicted * first + i.recall * active * (second + down)) * l->n_ff) : i.bytes_exact;
    give_struct(out, &i, sizeof i);
    return HLLM_OK;
}
