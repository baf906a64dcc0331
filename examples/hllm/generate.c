/* generate.c: follows a running generation: text to stdout as it comes, token records aside, Ctrl-C into a cancel.
 *
 * Polls with a timeout of 50 ms, so an interrupt is passed on within that time.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

enum { POLL_MS = 50, MAX_LOGPROBS = 64 };

void cli_generate_options(const cli_options *o, hllm_generate_options *g)
{
    *g = (hllm_generate_options){
        .struct_size = sizeof *g,
        .max_tokens = o->n_predict > 0 ? (uint32_t)o->n_predict : 0,
        .seed = o->seed,
        .temperature = o->temp, .top_k = o->top_k, .top_p = o->top_p, .min_p = o->min_p,
        .repeat_penalty = o->repeat_penalty, .frequency_penalty = o->frequency_penalty, .presence_penalty = o->presence_penalty,
        .n_logprobs = o->n_logprobs,
        .n_bias = o->n_bias, .bias = o->bias,
        .n_stop = o->n_stop, .stop = o->stop,
    };
    if (o->greedy) g->flags |= HLLM_GENERATE_GREEDY;
    if (o->ignore_eos) g->flags |= HLLM_GENERATE_IGNORE_EOS;
    if (o->n_logprobs) g->flags |= HLLM_GENERATE_TOKENS;
}

const char *cli_finish_name(uint32_t finish)
{
    static const char *const names[] = { "none", "end", "stop", "length", "context_full", "cancelled", "error" };
    return finish < sizeof names / sizeof *names ? names[finish] : "unknown";
}

static void print_record(const hllm_token_record *r, const hllm_logit_bias *top)
{
    json_open('{');
    json_key_str("type", "token");
    json_key("token");
    json_int(r->token);
    json_key_num("logprob", (double)r->logprob, 5);
    json_key("top");
    json_open('[');
    for (uint32_t k = 0; k < r->n_top; k++) {
        json_open('[');
        json_int(top[k].token);
        json_num((double)top[k].bias, 5);
        json_close();
    }
    json_close();
    json_key_uint("text_end", r->text_end);
    json_close();
}

/* Takes the records that are ready: prints them, or keeps them for the end. */
static hllm_status take_records(cli *c, int echo, cli_answer *a)
{
    enum { MANY = 32 };
    const uint32_t k = c->o->n_logprobs;
    hllm_token_record rec[MANY];
    hllm_logit_bias top[MANY * MAX_LOGPROBS];
    size_t n = MANY;
    while (n == MANY) {
        const hllm_status rc = hllm_generate_poll_tokens(c->session, rec, top, MANY, &n);
        if (rc != HLLM_OK) return rc;
        if (echo == ECHO_JSON) {
            for (size_t i = 0; i < n; i++) print_record(&rec[i], top + i * k);
        } else if (n > 0) {
            hllm_token_record *records = realloc(a->records, (a->n_records + n) * sizeof *records);
            hllm_logit_bias *tops = records ? realloc(a->top, (a->n_records + n) * k * sizeof *tops) : NULL;
            if (records) a->records = records;
            if (!tops) return HLLM_E_NOMEM;
            a->top = tops;
            memcpy(a->records + a->n_records, rec, n * sizeof *rec);
            memcpy(a->top + a->n_records * k, top, n * k * sizeof *top);
            a->n_records += n;
        }
    }
    return HLLM_OK;
}

static bool echo_text(int echo, const char *text, size_t n)
{
    if (n == 0 || echo == ECHO_NONE) return true;
    if (echo == ECHO_JSON) {
        json_open('{');
        json_key_str("type", "text");
        json_key("text");
        json_text(text, n);
        json_close();
    } else {
        fwrite(text, 1, n, stdout);
        fflush(stdout);
    }
    return !ferror(stdout);
}

int cli_follow(cli *c, int echo, cli_answer *a)
{
    char buf[4096];
    bool cancelled = false, writable = true;
    memset(a, 0, sizeof *a);
    do {
        a->last = (hllm_poll_result){ .struct_size = sizeof a->last };
        hllm_status rc = hllm_generate_poll(c->session, POLL_MS, buf, sizeof buf, &a->last);
        if (rc == HLLM_OK && c->o->n_logprobs) rc = take_records(c, echo, a);
        if (rc != HLLM_OK) return cli_fail(c, AT_SESSION, rc);
        cli_append(&a->text, buf, a->last.text_bytes);
        if (!echo_text(echo, buf, a->last.text_bytes)) writable = false;
        if ((cli_interrupted || !writable) && !cancelled) {
            hllm_generate_cancel(c->session);
            cancelled = true;
        }
    } while (a->last.run != HLLM_RUN_DONE);
    if (!writable) return cli_error(c->o, "stdout cannot be written");
    if (a->last.finish == HLLM_FINISH_ERROR) return cli_fail(c, AT_SESSION, a->last.error);
    return a->last.finish == HLLM_FINISH_CANCELLED ? EXIT_INTERRUPTED : 0;
}

void cli_answer_free(cli_answer *a)
{
    free(a->text.data);
    free(a->records);
    free(a->top);
}
