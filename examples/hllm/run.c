/* run.c: `hllm run`: continues a text, streaming.
 *
 * stdout: the new text, byte for byte (a newline is added only on a terminal); with --logprobs one line per token after it; with
 * --json records of type "text", "token" and "end".  --load-session restores a conversation and the given text follows it.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static double per_second(double n, uint64_t ns) { return n > 0 && ns > 0 ? n * 1e9 / (double)ns : 0; }
static uint32_t computed(const hllm_run_stats *s) { return s->n_prompt > s->n_reused ? s->n_prompt - s->n_reused : 0; }

static void print_logprobs(const cli_options *o, const cli_answer *a)
{
    for (size_t i = 0; i < a->n_records; i++) {
        const hllm_logit_bias *top = a->top + i * o->n_logprobs;
        printf("token %d logprob %.4f top", a->records[i].token, (double)a->records[i].logprob);
        for (uint32_t k = 0; k < a->records[i].n_top; k++) printf(" %d:%.4f", top[k].token, (double)top[k].bias);
        putchar('\n');
    }
}

static void print_stats(const cli *c, const hllm_run_stats *s)
{
    const double mib = 1024 * 1024;
    fprintf(stderr, "prompt  %u tokens, %u reused, %.1f tok/s\n", s->n_prompt, s->n_reused, per_second(computed(s), s->prompt_ns));
    fprintf(stderr, "decode  %u tokens, %.1f tok/s, %llu bytes/token, first token after %.1f ms\n", s->n_generated,
            cli_decode_tok_s(s), (unsigned long long)s->decode_bytes_per_token, (double)s->first_token_ns * 1e-6);
    fprintf(stderr, "memory  peak %.1f MiB of the library, %.1f MiB of the process; loaded in %.2f s\n", (double)s->memory_peak_bytes / mib,
            (double)cli_status_bytes("VmHWM:") / mib, c->load_s);
    fprintf(stderr, "mode    %s, active share %.3f\n", s->mode, s->active_share);
}

static void print_end(const cli *c, const cli_answer *a, const hllm_run_stats *s)
{
    json_open('{');
    json_key_str("type", "end");
    json_key_str("finish", cli_finish_name(a->last.finish));
    json_key_uint("n_prompt", s->n_prompt);
    json_key_uint("n_reused", s->n_reused);
    json_key_uint("n_generated", s->n_generated);
    json_key_num("prompt_tok_s", per_second(computed(s), s->prompt_ns), 3);
    json_key_num("decode_tok_s", cli_decode_tok_s(s), 3);
    json_key_uint("decode_bytes_per_token", s->decode_bytes_per_token);
    json_key_num("first_token_ms", (double)s->first_token_ns * 1e-6, 3);
    json_key_num("load_s", c->load_s, 4);
    json_key_uint("memory_peak_bytes", s->memory_peak_bytes);
    json_key_uint("peak_rss_bytes", cli_status_bytes("VmHWM:"));
    json_key_str("mode", s->mode);
    json_key_num("active_share", s->active_share, 4);
    json_close();
}

/* What follows a generation that ran, or was interrupted: the session file, the records, the statistics. */
static int finish(cli *c, cli_answer *a)
{
    const cli_options *o = c->o;
    hllm_run_stats stats = { .struct_size = sizeof stats };
    hllm_status rc = hllm_session_stats(c->session, &stats);
    if (rc != HLLM_OK) return cli_fail(c, AT_SESSION, rc);
    if (!o->json) {
        const bool open_line = a->text.n > 0 && a->text.data[a->text.n - 1] != '\n';
        if (open_line && (o->n_logprobs || isatty(STDOUT_FILENO))) putchar('\n');
        print_logprobs(o, a);
        fflush(stdout);
    }
    if (a->last.finish == HLLM_FINISH_CONTEXT_FULL)
        fprintf(stderr, "hllm run: stopped: the context of %u tokens is full\n", c->session_info.n_ctx);
    if (a->last.finish == HLLM_FINISH_END_TOKEN && a->text.n == 0)
        fprintf(stderr, "hllm run: the model ended at once; with a chat model use `hllm chat`\n");
    if (o->save && (rc = hllm_session_save(c->session, o->save)) != HLLM_OK) return cli_fail(c, AT_SESSION, rc);
    if (o->json) print_end(c, a, &stats);
    else if (o->stats) print_stats(c, &stats);
    return 0;
}

static int generate(cli *c, const cli_bytes *prompt)
{
    cli_answer answer = { 0 };
    hllm_generate_options g;
    cli_generate_options(c->o, &g);
    if (c->o->parse_special) g.flags |= HLLM_GENERATE_PARSE_SPECIAL;
    if (c->o->load_session) g.flags |= HLLM_GENERATE_APPEND | HLLM_GENERATE_NO_SPECIAL;
    cli_catch_interrupts(CATCH_FIRST);
    const hllm_status rc = hllm_generate_start(c->session, prompt->data, prompt->n, &g);
    if (rc != HLLM_OK) return cli_fail(c, AT_SESSION, rc);
    int code = cli_follow(c, c->o->json ? ECHO_JSON : ECHO_TEXT, &answer);
    if (code != EXIT_ERROR) {
        const int end = finish(c, &answer);
        if (end) code = end;
    }
    cli_answer_free(&answer);
    return code;
}

/* Before an answer is computed that could then not be saved; what the library finds later is told too. */
static int check_save(const cli_options *o)
{
    struct stat st;
    const char *slash = o->save ? strrchr(o->save, '/') : NULL;
    if (!slash) return 0;
    cli_bytes folder = { 0 };
    cli_append(&folder, o->save, slash == o->save ? 1 : (size_t)(slash - o->save));
    cli_append(&folder, "", 1);
    int code = 0;
    if (stat(folder.data, &st) != 0) code = cli_error(o, "--save %s: %s: %s", o->save, folder.data, strerror(errno));
    else if (!S_ISDIR(st.st_mode)) code = cli_error(o, "--save %s: %s is not a directory", o->save, folder.data);
    free(folder.data);
    return code;
}

int cmd_run(const cli_options *o)
{
    cli c;
    cli_bytes prompt = { 0 };
    int code = check_save(o);
    if (code) return code;
    if (o->prompt) cli_append(&prompt, o->prompt, strlen(o->prompt));
    else if (o->load_session && !o->file) cli_append(&prompt, "", 0);
    else {
        if (!o->file && isatty(STDIN_FILENO)) fputs("hllm run: type the text to continue, then Ctrl-D\n", stderr);
        code = cli_read_all(o, o->file, &prompt);
    }
    if (code) return code;
    code = cli_open_engine(&c, o);
    if (!code) code = cli_open_session(&c, o->n_ctx);
    if (!code && o->load_session) {
        const hllm_status rc = hllm_session_load(c.session, o->load_session);
        if (rc != HLLM_OK) code = cli_fail(&c, AT_SESSION, rc);
    }
    if (!code) code = generate(&c, &prompt);
    cli_close(&c);
    free(prompt.data);
    return code;
}
