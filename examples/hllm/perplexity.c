/* perplexity.c: `hllm perplexity`: how well the model predicts a file.
 *
 * Consecutive windows of -c tokens (default 512), each beginning with BOS if the model adds one; every token but a window's first
 * is predicted and counted; a last short window is dropped.  The running value goes to stderr, the last line of stdout is
 * {"ppl":...,"nll":...,"tokens":...,"active_share":...}.
 */
#include "cli.h"

#include <math.h>
#include <stdlib.h>

enum { DEFAULT_WINDOW = 512 };

typedef struct meter {
    cli *c;
    float *logits;
    double nll;
    uint64_t n_tokens;
} meter;

/* The BOS that the model itself puts before a text, or -1. */
static int32_t added_bos(const cli *c)
{
    int32_t bos = -1, with[4];
    size_t n = 0;
    if (hllm_model_special_token(c->model, HLLM_SPECIAL_BOS, &bos) != HLLM_OK || bos < 0) return -1;
    return hllm_tokenize(c->model, "", 0, 0, with, 4, &n) == HLLM_OK && n > 0 && with[0] == bos ? bos : -1;
}

static hllm_status measure_window(meter *m, const int32_t *tokens, uint32_t n)
{
    const uint32_t batch = m->c->session_info.micro_batch;
    hllm_status rc = hllm_session_rewind(m->c->session, 0);
    for (uint32_t at = 0; rc == HLLM_OK && at < n; at += batch) {
        const uint32_t some = n - at < batch ? n - at : batch;
        rc = hllm_session_eval(m->c->session, tokens + at, some);
        for (uint32_t i = at; rc == HLLM_OK && i < at + some && i + 1 < n; i++) {
            rc = hllm_session_logits(m->c->session, i, m->logits, m->c->info.n_vocab);
            if (rc != HLLM_OK) break;
            m->nll += cli_log_sum_exp(m->logits, m->c->info.n_vocab) - (double)m->logits[tokens[i + 1]];
            m->n_tokens++;
        }
    }
    return rc;
}

static int measure_file(meter *m, const int32_t *text, size_t n_text, uint32_t window)
{
    const int32_t bos = added_bos(m->c);
    const uint32_t fresh = window - (bos >= 0);        /* tokens of the text in a window */
    const size_t n_windows = n_text / fresh;
    int32_t *tokens = cli_alloc(window, sizeof *tokens);
    int code = 0;
    if (n_windows == 0)
        code = cli_error(m->c->o, "%s has %zu tokens, a window needs %u", m->c->o->file, n_text, fresh);
    for (size_t w = 0; !code && w < n_windows; w++) {
        if (bos >= 0) tokens[0] = bos;
        for (uint32_t i = 0; i < fresh; i++) tokens[window - fresh + i] = text[w * fresh + i];
        const hllm_status rc = measure_window(m, tokens, window);
        if (rc != HLLM_OK) code = cli_fail(m->c, AT_SESSION, rc);
        else fprintf(stderr, "window %zu of %zu: perplexity %.4f\n", w + 1, n_windows, exp(m->nll / (double)m->n_tokens));
    }
    free(tokens);
    return code;
}

static int print_result(const meter *m)
{
    hllm_run_stats stats = { .struct_size = sizeof stats };
    const hllm_status rc = hllm_session_stats(m->c->session, &stats);
    if (rc != HLLM_OK) return cli_fail(m->c, AT_SESSION, rc);
    const double mean = m->nll / (double)m->n_tokens;
    json_open('{');
    json_key_num("ppl", exp(mean), 5);
    json_key_num("nll", mean, 6);
    json_key_uint("tokens", m->n_tokens);
    json_key_num("active_share", stats.active_share, 4);
    json_close();
    return 0;
}

int cmd_perplexity(const cli_options *o)
{
    cli c;
    cli_bytes text;
    meter m = { .c = &c };
    int32_t *tokens = NULL;
    size_t n = 0;
    const uint32_t window = o->n_ctx ? o->n_ctx : DEFAULT_WINDOW;
    if (window < 2) return cli_usage(o, "-c: a window of %u has nothing to predict", window);
    int code = cli_read_all(o, o->file, &text);
    if (code) return code;
    code = cli_open_engine(&c, o);
    if (!code) code = cli_open_session(&c, window);
    if (!code) code = cli_tokenize(&c, text.data, text.n, HLLM_TOKENIZE_NO_SPECIAL, &tokens, &n);
    if (!code) m.logits = cli_alloc(c.info.n_vocab, sizeof *m.logits);
    if (!code) code = measure_file(&m, tokens, n, window);
    if (!code) code = print_result(&m);
    free(m.logits);
    free(tokens);
    free(text.data);
    cli_close(&c);
    return code;
}
