/* score.c: `hllm score`: what the model thinks of every token of a text, in a format that two programs can compare.
 *
 *   text "..."
 *   tokens ID ID ...
 *   pos 0 next ID nll X top ID:LOGP ID:LOGP ...    natural log; K best, ties by lower id; next -1 and nll 0 at the last position
 *   greedy ID ID ...                               by argmax (ties by lower id), up to and with an end token
 *   greedy_text "..."
 *
 * A text is computed in the session's own micro-batches, and the logits of each are read before the next.  The file's sampling
 * defaults play no part.
 */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TOP = 10 };

typedef struct scorer {
    cli *c;
    uint32_t n_top;
    uint32_t n_greedy;
    float *logits;                                     /* [n_vocab] */
    int32_t *best;                                     /* [n_top] heap, then sorted best first */
} scorer;

/* Is a worse than b: lower logit, or the same and a higher id. */
static bool worse(const float *logits, int32_t a, int32_t b)
{
    return logits[a] < logits[b] || (logits[a] == logits[b] && a > b);
}

static void sift_down(const float *logits, int32_t *heap, uint32_t n, uint32_t at)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n) return;
        if (child + 1 < n && worse(logits, heap[child + 1], heap[child])) child++;
        if (!worse(logits, heap[child], heap[at])) return;
        const int32_t t = heap[at];
        heap[at] = heap[child];
        heap[child] = t;
        at = child;
    }
}

/* The n best ids, best first: a heap with the worst on top, taken apart at the end. */
static void select_best(const float *logits, uint32_t n_vocab, int32_t *best, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) best[i] = (int32_t)i;
    for (uint32_t i = n / 2; i-- > 0;) sift_down(logits, best, n, i);
    for (uint32_t j = n; j < n_vocab; j++)
        if (worse(logits, best[0], (int32_t)j)) {
            best[0] = (int32_t)j;
            sift_down(logits, best, n, 0);
        }
    for (uint32_t left = n; left > 1;) {
        const int32_t worst = best[0];
        best[0] = best[--left];
        best[left] = worst;
        sift_down(logits, best, left, 0);
    }
}

static void print_position(const scorer *s, size_t pos, int32_t next)
{
    const double lse = cli_log_sum_exp(s->logits, s->c->info.n_vocab);
    const double nll = next >= 0 ? lse - (double)s->logits[next] : 0.0;
    select_best(s->logits, s->c->info.n_vocab, s->best, s->n_top);
    if (s->c->o->json) {
        json_open('{');
        json_key_uint("pos", pos);
        json_key("next");
        json_int(next);
        json_key_num("nll", nll, 5);
        json_key("top");
        json_open('[');
        for (uint32_t k = 0; k < s->n_top; k++) {
            json_open('[');
            json_int(s->best[k]);
            json_num((double)s->logits[s->best[k]] - lse, 4);
            json_close();
        }
        json_close();
        json_close();
        return;
    }
    printf("pos %zu next %d nll %.5f top", pos, next, nll);
    for (uint32_t k = 0; k < s->n_top; k++) printf(" %d:%.4f", s->best[k], (double)s->logits[s->best[k]] - lse);
    putchar('\n');
}

static hllm_status score_positions(scorer *s, const int32_t *tokens, size_t n)
{
    hllm_status rc = hllm_session_rewind(s->c->session, 0);
    for (size_t at = 0; rc == HLLM_OK && at < n;) {
        const size_t some = n - at < s->c->session_info.micro_batch ? n - at : s->c->session_info.micro_batch;
        rc = hllm_session_eval(s->c->session, tokens + at, some);
        for (size_t i = at; rc == HLLM_OK && i < at + some; i++) {
            rc = hllm_session_logits(s->c->session, (uint32_t)i, s->logits, s->c->info.n_vocab);
            if (rc == HLLM_OK) print_position(s, i, i + 1 < n ? tokens[i + 1] : -1);
        }
        at += some;
    }
    return rc;
}

/* Goes on from the logits of the last position.  A full context ends it. */
static hllm_status continue_greedily(scorer *s, size_t n_tokens, int32_t *ids, uint32_t *n_ids)
{
    *n_ids = 0;
    while (*n_ids < s->n_greedy) {
        int32_t id = 0;
        select_best(s->logits, s->c->info.n_vocab, &id, 1);
        hllm_token_info info = { .struct_size = sizeof info };
        hllm_status rc = hllm_model_token(s->c->model, id, &info);
        if (rc != HLLM_OK) return rc;
        ids[(*n_ids)++] = id;
        if (info.ends_generation || *n_ids == s->n_greedy || n_tokens == s->c->session_info.n_ctx) return HLLM_OK;
        rc = hllm_session_eval(s->c->session, &id, 1);
        if (rc == HLLM_OK) rc = hllm_session_logits(s->c->session, (uint32_t)n_tokens, s->logits, s->c->info.n_vocab);
        if (rc != HLLM_OK) return rc;
        n_tokens++;
    }
    return HLLM_OK;
}

static int print_greedy(scorer *s, const int32_t *ids, uint32_t n)
{
    cli_bytes text = { 0 };
    const int code = cli_detokenize(s->c, ids, n, HLLM_DETOKENIZE_CONTINUE, &text);
    if (!code && s->c->o->json) {
        json_ids("greedy", ids, n);
        json_key("greedy_text");
        json_text(text.data, text.n);
    } else if (!code) {
        fputs("greedy", stdout);
        for (uint32_t i = 0; i < n; i++) printf(" %d", ids[i]);
        fputs("\ngreedy_text ", stdout);
        json_print_raw(text.data, text.n);
        putchar('\n');
    }
    free(text.data);
    return code;
}

static int score_text(scorer *s, const char *text, size_t bytes, size_t number)
{
    const cli_options *o = s->c->o;
    int32_t *tokens = NULL, *greedy = cli_alloc(s->n_greedy, sizeof *greedy);
    uint32_t n_greedy = 0;
    size_t n = 0;
    int code = cli_tokenize(s->c, text, bytes, 0, &tokens, &n);
    if (!code && n > s->c->session_info.n_ctx)
        code = cli_error(o, "text %zu has %zu tokens, the context %u", number, n, s->c->session_info.n_ctx);
    if (code) goto done;
    json_print_tokens(o->json, text, bytes, tokens, n);
    if (o->json) {
        json_key("positions");
        json_open('[');
    }
    hllm_status rc = score_positions(s, tokens, n);
    if (rc == HLLM_OK && n > 0) rc = continue_greedily(s, n, greedy, &n_greedy);
    if (rc != HLLM_OK) {
        code = cli_fail(s->c, AT_SESSION, rc);
        goto done;
    }
    if (o->json) json_close();                         /* positions */
    code = print_greedy(s, greedy, n_greedy);
    if (o->json) json_close();
done:
    free(tokens);
    free(greedy);
    return code;
}

int cmd_score(const cli_options *o)
{
    cli c;
    cli_bytes all;
    const char *text;
    size_t at = 0, n, number = 0;
    scorer s = { .c = &c };
    int code = cli_read_all(o, NULL, &all);
    if (code) return code;
    code = cli_open_engine(&c, o);
    if (!code) code = cli_open_session(&c, o->n_ctx);
    if (!code) {
        s.n_top = o->n_top ? o->n_top : DEFAULT_TOP;
        if (s.n_top > c.info.n_vocab) s.n_top = c.info.n_vocab;
        s.n_greedy = o->n_greedy < c.session_info.n_ctx ? o->n_greedy : c.session_info.n_ctx;
        s.logits = cli_alloc(c.info.n_vocab, sizeof *s.logits);
        s.best = cli_alloc(s.n_top, sizeof *s.best);
    }
    while (!code && cli_next_text(&all, &at, &text, &n)) code = score_text(&s, text, n, ++number);
    free(s.logits);
    free(s.best);
    cli_close(&c);
    free(all.data);
    return code;
}
