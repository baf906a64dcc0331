/* profile.c: a text through a model, one layer at a time: what goes into each FFN and which of its neurons are active; and what a mask on
 * them costs.
 *
 * All windows go through a layer before the next one begins, so that of a model larger than memory one layer after the other is read, once.
 * The hidden states of all tokens stay in memory between two layers.  The session's KV cache is that of one window: each begins at position 0.
 */
#include "sparse/sparse.h"

#include <math.h>
#include <string.h>

#include "run/machine.h"

hl_status hl_profiler_new(hllm_model *m, const int32_t *tokens, uint32_t n_windows, uint32_t window, uint32_t n_held, hl_error *err, hl_progress *progress, hl_profiler **out)
{
    hl_status rc = HLLM_OK;
    hl_mem *mem = m->rt->env.mem;
    hl_profiler *p = NULL;
    const hllm_session_options so = { .struct_size = sizeof so, .n_ctx = window };
    const hllm_engine_options eo = { .struct_size = sizeof eo, .session = &so };
    *out = NULL;
    HL_NEED(p = hl_alloc_zero(mem, sizeof *p));
    *p = (hl_profiler){ .err = err, .progress = progress, .tokens = tokens, .n_windows = n_windows, .window = window, .n_held = n_held };
    HL_TRY(hl_engine_new(m, &eo, &p->e));
    HL_TRY(hl_session_new(p->e, &so, &p->s));
    HL_TRY(hl_machine_check(err, hl_gguf_path(m->model->gguf), "the text's hidden states", 4ull * n_windows * window * m->model->config.n_embd));
    HL_NEED(p->hidden = hl_alloc_array(mem, (size_t)n_windows * window, m->model->config.n_embd * sizeof(float)));
    *out = p; p = NULL;
done:
    hl_profiler_free(p);
    return rc;
}

void hl_profiler_free(hl_profiler *p)
{
    if (!p) return;
    hl_mem *mem = p->e ? p->e->env->mem : NULL;
    if (!p->e) return;
    hl_free(mem, p->hidden);
    hllm_engine *e = p->e;
    hl_session_free(p->s);
    hl_free(mem, p);
    hl_engine_unref(e);
}

/* One window through layers [il0, il1), in the session's micro-batches; x: [window][n_embd], in (il0 > 0) and out, hidden: NULL or the normed end. */
static hl_status run_window(hl_profiler *p, uint32_t iw, uint32_t il0, uint32_t il1, float *x, float *hidden)
{
    hl_status rc = HLLM_OK;
    const hl_scratch *z = &p->s->z;
    const size_t row = p->e->model->config.n_embd;
    for (uint32_t at = 0; at < p->window; at += p->s->sizes.micro_batch) {
        const uint32_t n = HL_MIN(p->window - at, p->s->sizes.micro_batch);
        hl_part part = { p->s, p->tokens + (size_t)iw * p->window + at, n, at, 0 };
        if (il0) memcpy(z->x, x + at * row, n * row * sizeof *x);
        HL_TRY(hl_forward_layers(p->e, z, &part, 1, il0, il1, p->err));
        if (x) memcpy(x + at * row, z->x, n * row * sizeof *x);
        if (hidden) memcpy(hidden + at * row, z->hidden, n * row * sizeof *x);
    }
done:
    return rc;
}

hl_status hl_profiler_layer(hl_profiler *p, uint32_t il, hl_ffn_seen *seen, void *arg)
{
    hl_status rc = HLLM_OK;
    p->e->probe = (hl_ffn_probe){ seen, arg };
    for (uint32_t iw = 0; iw < p->n_windows; iw++) {
        HL_TRY(run_window(p, iw, il, il + 1, p->hidden + (size_t)iw * p->window * p->e->model->config.n_embd, NULL));
        HL_TRY(hl_progress_step(p->progress, p->window));
    }
done:
    p->e->probe = (hl_ffn_probe){ NULL, NULL };
    return rc;
}

/* ---- what a mask costs ---- */

typedef struct compare { const float *a, *b; const int32_t *next; uint32_t n_vocab; double *nll_a, *nll_b, *kl; } compare;

static double log_sum(const float *l, uint32_t n)
{
    double sum = 0;
    float top = l[0];
    for (uint32_t i = 1; i < n; i++) top = l[i] > top ? l[i] : top;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)(l[i] - top));
    return (double)top + log(sum);
}

static void compare_row(void *v, uint32_t row, uint32_t thread)
{
    const compare *c = v;
    const float *a = c->a + (size_t)row * c->n_vocab, *b = c->b + (size_t)row * c->n_vocab;
    const double la = log_sum(a, c->n_vocab), lb = log_sum(b, c->n_vocab);
    double kl = 0;
    (void)thread;
    for (uint32_t i = 0; i < c->n_vocab; i++) {
        const double p = (double)a[i] - la;
        if (p > -30) kl += exp(p) * (p - ((double)b[i] - lb));
    }
    c->nll_a[row] = la - (double)a[c->next[row]];
    c->nll_b[row] = lb - (double)b[c->next[row]];
    c->kl[row] = kl;
}

/* All positions of a window but the last. */
static hl_status compare_window(hl_profiler *p, uint32_t iw, const float *a, const float *b, float *logits, hl_profile_cost *sum)
{
    hl_status rc = HLLM_OK;
    const hl_config *c = &p->e->model->config;
    const hl_scratch *z = &p->s->z;
    double values[3][HL_LOGIT_ROWS];
    for (uint32_t at = 0; at + 1 < p->window; at += p->s->sizes.logit_rows) {
        const uint32_t n = HL_MIN(p->window - 1 - at, p->s->sizes.logit_rows);
        compare g = { logits, z->logits, p->tokens + (size_t)iw * p->window + at + 1, c->n_vocab, values[0], values[1], values[2] };
        memcpy(z->hidden, a + (size_t)at * c->n_embd, (size_t)n * c->n_embd * sizeof *a);
        HL_TRY(hl_forward_head(p->e, z, 0, n, p->err));
        memcpy(logits, z->logits, (size_t)n * c->n_vocab * sizeof *a);
        memcpy(z->hidden, b + (size_t)at * c->n_embd, (size_t)n * c->n_embd * sizeof *a);
        HL_TRY(hl_forward_head(p->e, z, 0, n, p->err));
        hl_pool_run(p->e->handle->rt->pool, compare_row, &g, n);
        for (uint32_t i = 0; i < n; i++) {
            sum->nll_dense += values[0][i];
            sum->nll += values[1][i];
            sum->kl += values[2][i];
        }
        sum->n_tokens += n;
    }
done:
    return rc;
}

hl_status hl_profiler_cost(hl_profiler *p, hl_ffn_seen *mask, void *arg, hl_profile_cost *out)
{
    hl_status rc = HLLM_OK;
    const hl_config *c = &p->e->model->config;
    hl_mem *mem = p->e->env->mem;
    float *a = NULL, *b = NULL, *logits = NULL;
    memset(out, 0, sizeof *out);
    HL_NEED(a = hl_alloc_array(mem, p->window, c->n_embd * sizeof *a));
    HL_NEED(b = hl_alloc_array(mem, p->window, c->n_embd * sizeof *b));
    HL_NEED(logits = hl_alloc_array(mem, p->s->sizes.logit_rows, c->n_vocab * sizeof *logits));
    for (uint32_t iw = p->n_windows - p->n_held; iw < p->n_windows; iw++) {
        HL_TRY(run_window(p, iw, 0, c->n_layers, NULL, a));
        p->e->probe = (hl_ffn_probe){ mask, arg };
        rc = run_window(p, iw, 0, c->n_layers, NULL, b);
        p->e->probe = (hl_ffn_probe){ NULL, NULL };
        HL_TRY(rc);
        HL_TRY(compare_window(p, iw, a, b, logits, out));
        HL_TRY(hl_progress_step(p->progress, 0));
    }
    if (out->n_tokens) {
        out->nll_dense /= (double)out->n_tokens;
        out->nll /= (double)out->n_tokens;
        out->kl /= (double)out->n_tokens;
    }
done:
    hl_free(mem, a);
    hl_free(mem, b);
    hl_free(mem, logits);
    return rc;
}
