/* chat.c: `hllm chat`: a conversation in the model's own template, one line of stdin per message.
 *
 * The whole conversation is given to the library each time; it keeps what it has computed already.  Ctrl-C stops the answer,
 * not the program; /exit or the end of input ends it.  A message that does not fit in the context is said to be left out, and the
 * conversation goes on as if it had not been; the exit code tells.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct turn { const char *role; cli_bytes text; } turn;
typedef struct talk { turn *turns; size_t n, cap; } talk;

static void say(talk *t, const char *role, const char *text, size_t n)
{
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 16;
        turn *bigger = cli_alloc(t->cap, sizeof *bigger);
        if (t->n) memcpy(bigger, t->turns, t->n * sizeof *bigger);
        free(t->turns);
        t->turns = bigger;
    }
    t->turns[t->n] = (turn){ .role = role };
    cli_append(&t->turns[t->n++].text, text, n);
}

/* Back to the first n turns. */
static void forget(talk *t, size_t n)
{
    while (t->n > n) free(t->turns[--t->n].text.data);
}

static void talk_free(talk *t)
{
    forget(t, 0);
    free(t->turns);
}

/* The conversation as tokens; free *tokens. */
static int to_tokens(cli *c, const talk *t, int32_t **tokens, size_t *n)
{
    hllm_chat_options opt = { .struct_size = sizeof opt, .template_name = c->o->chat_template };
    if (c->o->no_thinking) opt.flags |= HLLM_CHAT_NO_THINKING;
    hllm_chat_message *m = cli_alloc(t->n, sizeof *m);
    for (size_t i = 0; i < t->n; i++)
        m[i] = (hllm_chat_message){ .struct_size = sizeof *m, .role = t->turns[i].role,
                                    .content = t->turns[i].text.data, .content_bytes = t->turns[i].text.n };
    size_t cap = 4096;
    hllm_status rc = HLLM_E_BUFFER;
    *tokens = NULL;
    for (int tries = 0; tries < 2 && rc == HLLM_E_BUFFER; tries++) {
        free(*tokens);
        *tokens = cli_alloc(cap, sizeof **tokens);
        rc = hllm_chat_tokenize(c->model, m, t->n, &opt, *tokens, cap, n);
        if (rc == HLLM_E_BUFFER) cap = *n;
    }
    free(m);
    return rc == HLLM_OK ? 0 : cli_fail(c, AT_MODEL, rc);
}

static void print_answer(const cli_answer *a)
{
    json_open('{');
    json_key_str("role", "assistant");
    json_key("content");
    json_text(a->text.data, a->text.n);
    json_key_str("finish", cli_finish_name(a->last.finish));
    json_key_uint("n_prompt", a->last.n_prompt);
    json_key_uint("n_reused", a->last.n_reused);
    json_key_uint("n_generated", a->last.n_generated);
    json_close();
}

static void print_stats(cli *c)
{
    hllm_run_stats s = { .struct_size = sizeof s };
    if (hllm_session_stats(c->session, &s) != HLLM_OK) return;
    fprintf(stderr, "[%u prompt tokens, %u reused; %u generated, %.1f tok/s; %s, active share %.3f]\n", s.n_prompt, s.n_reused, s.n_generated,
            cli_decode_tok_s(&s), s.mode, s.active_share);
}

/* One answer to what was said last.  *left_out: there was no room for it, and it is no part of the conversation any more. */
static int answer(cli *c, talk *t, bool *left_out)
{
    int32_t *tokens = NULL;
    size_t n = 0;
    cli_answer a = { 0 };
    hllm_generate_options g;
    int code = to_tokens(c, t, &tokens, &n);
    if (code) goto done;
    cli_generate_options(c->o, &g);
    g.seed += t->n;                                    /* the same question twice need not have the same answer */
    const hllm_status rc = hllm_generate_start_tokens(c->session, tokens, n, &g);
    if (rc != HLLM_OK) {
        code = cli_fail(c, AT_SESSION, rc);
        if (rc != HLLM_E_CONTEXT_FULL) goto done;
        fputs("(this message is left out; /clear begins anew, -c gives a larger context)\n", stderr);
        forget(t, t->n - 1);
        *left_out = true;
        code = 0;
        goto done;
    }
    code = cli_follow(c, c->o->json ? ECHO_NONE : ECHO_TEXT, &a);
    if (code == EXIT_ERROR) goto done;
    if (code == EXIT_INTERRUPTED) code = 0;
    if (c->o->json) print_answer(&a);
    else {
        puts(a.last.finish == HLLM_FINISH_CANCELLED ? " [stopped]" : "");
        fflush(stdout);
        if (c->o->stats) print_stats(c);
    }
    say(t, "assistant", a.text.data, a.text.n);
    if (a.last.finish == HLLM_FINISH_CONTEXT_FULL)
        fprintf(stderr, "(the answer ends here: the context of %u tokens is full; /clear begins anew, -c gives a larger one)\n", c->session_info.n_ctx);
done:
    free(tokens);
    cli_answer_free(&a);
    return code;
}

/* The next line without its newline; false at the end of input. */
static bool read_line(bool terminal, char **line, size_t *cap, size_t *n)
{
    for (;;) {
        cli_interrupted = 0;
        if (terminal) {
            fputs("> ", stdout);
            fflush(stdout);
        }
        errno = 0;
        const ssize_t got = getline(line, cap, stdin);
        if (got >= 0) {
            *n = (size_t)got;
            while (*n > 0 && ((*line)[*n - 1] == '\n' || (*line)[*n - 1] == '\r')) --*n;
            return true;
        }
        if (errno != EINTR) return false;
        clearerr(stdin);
        fputs("\n(/exit or Ctrl-D ends the conversation)\n", stderr);
    }
}

static bool is(const char *line, size_t n, const char *word) { return n == strlen(word) && memcmp(line, word, n) == 0; }

static int converse(cli *c, talk *t)
{
    char *line = NULL;
    size_t cap = 0, n = 0;
    int code = 0;
    bool left_out = false;
    const bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && !c->o->json;
    cli_catch_interrupts(CATCH_ALL);
    if (terminal) puts("A line is a message.  /clear begins anew, /exit ends, Ctrl-C stops an answer.");
    while (code == 0 && read_line(terminal, &line, &cap, &n)) {
        if (is(line, n, "/exit") || is(line, n, "/quit")) break;
        if (n == 0) continue;
        if (is(line, n, "/clear")) { forget(t, c->o->system != NULL); /* but the system message */ continue; }
        if (line[0] == '/' && memchr(line + 1, '/', n - 1) == NULL && memchr(line, ' ', n) == NULL) {
            fprintf(stderr, "(there is no %.*s; there are /clear and /exit)\n", (int)n, line);
            continue;
        }
        cli_interrupted = 0;
        say(t, "user", line, n);
        code = answer(c, t, &left_out);
    }
    free(line);
    return code || !left_out ? code : EXIT_ERROR;
}

/* The names of the built-in templates, one a line. */
static int list_templates(void)
{
    for (const char *w = hllm_chat_template_names(); *w;) {
        const size_t n = strcspn(w, " ");
        printf("%.*s\n", (int)n, w);
        w += n + strspn(w + n, " ");
    }
    return 0;
}

int cmd_chat(const cli_options *o)
{
    cli c;
    talk t = { 0 };
    if (o->chat_template && strcmp(o->chat_template, "list") == 0) return list_templates();
    int code = cli_open_engine(&c, o);
    if (!code) {                                       /* say at once, not after the first question, that there is no such template */
        const hllm_chat_options opt = { .struct_size = sizeof opt, .template_name = o->chat_template };
        const hllm_chat_message hello = { .struct_size = sizeof hello, .role = "user", .content = "Hello", .content_bytes = 5 };
        size_t n;
        const hllm_status rc = hllm_chat_render(c.model, &hello, 1, &opt, NULL, 0, &n);
        if (rc != HLLM_OK && rc != HLLM_E_BUFFER) code = cli_fail(&c, AT_MODEL, rc);
    }
    if (!code) code = cli_open_session(&c, o->n_ctx);
    if (!code && o->system) say(&t, "system", o->system, strlen(o->system));
    if (!code) code = converse(&c, &t);
    talk_free(&t);
    cli_close(&c);
    return code;
}
