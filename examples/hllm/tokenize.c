/* tokenize.c: `hllm tokenize` and `hllm detokenize`.
 *
 * tokenize: NUL-separated texts on stdin; per text a line `text "..."` and a line `tokens ID ID ...` (or one JSON object).
 * detokenize: lines of ids on stdin; the exact bytes of each, a NUL between two lines' texts.  A leading word `tokens` is skipped
 * and `text` lines are passed over, so that the output of tokenize can be fed back.  Both work on vocabulary-only files.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int cmd_tokenize(const cli_options *o)
{
    cli c;
    cli_bytes all;
    const char *text;
    size_t at = 0, n, n_tokens;
    const uint32_t flags = (o->no_special ? HLLM_TOKENIZE_NO_SPECIAL : 0u) | (o->parse_special ? HLLM_TOKENIZE_PARSE_SPECIAL : 0u);
    int code = cli_read_all(o, NULL, &all);
    if (code) return code;
    code = cli_open_model(&c, o, HLLM_MODEL_VOCAB_ONLY);
    while (!code && cli_next_text(&all, &at, &text, &n)) {
        int32_t *tokens = NULL;
        code = cli_tokenize(&c, text, n, flags, &tokens, &n_tokens);
        if (!code) {
            json_print_tokens(o->json, text, n, tokens, n_tokens);
            if (o->json) json_close();
        }
        free(tokens);
    }
    cli_close(&c);
    free(all.data);
    return code;
}

/* One line of ids up to end, where a NUL is.  Returns their number, or -1 after an error. */
static long read_ids(const cli_options *o, const char *line, const char *end_of_line, size_t number, int32_t *ids)
{
    long n = 0;
    line += strspn(line, " \t");
    if (strncmp(line, "tokens", 6) == 0) line += 6;
    for (line += strspn(line, " \t\r"); *line; line += strspn(line, " \t\r")) {
        char *end = NULL;
        const size_t word = strcspn(line, " \t\r");
        errno = 0;
        const long id = *line >= '0' && *line <= '9' ? strtol(line, &end, 10) : 0;
        if (end != line + word || errno || id > 2147483647) {
            cli_error(o, "stdin line %zu: '%.*s' is not a token id", number, (int)(word < 64 ? word : 64), line);
            return -1;
        }
        ids[n++] = (int32_t)id;
        line += word;
    }
    if (line == end_of_line) return n;
    cli_error(o, "stdin line %zu: a NUL byte is not a token id", number);
    return -1;
}

static int print_bytes(cli *c, const int32_t *ids, size_t n, bool first)
{
    cli_bytes text = { 0 };
    const int code = cli_detokenize(c, ids, n, 0, &text);
    if (!code && c->o->json) {
        json_open('{');
        json_key("text");
        json_text(text.data, text.n);
        json_close();
    } else if (!code) {
        if (!first) putchar(0);
        fwrite(text.data, 1, text.n, stdout);
    }
    free(text.data);
    return code;
}

int cmd_detokenize(const cli_options *o)
{
    cli c;
    cli_bytes all;
    int code = cli_read_all(o, NULL, &all);
    if (code) return code;
    int32_t *ids = cli_alloc(all.n / 2 + 1, sizeof *ids);                    /* an id has at least a digit and a space */
    bool first = true;
    code = cli_open_model(&c, o, HLLM_MODEL_VOCAB_ONLY);
    size_t number = 1;
    for (size_t at = 0; !code && at < all.n; number++) {
        char *line = all.data + at, *end = memchr(line, '\n', all.n - at);
        if (!end) end = all.data + all.n;
        *end = 0;
        at = (size_t)(end - all.data) + 1;
        if (strncmp(line, "text ", 5) == 0) continue;
        const long n = read_ids(o, line, end, number, ids);
        code = n < 0 ? EXIT_ERROR : print_bytes(&c, ids, (size_t)n, first);
        first = false;
    }
    cli_close(&c);
    free(ids);
    free(all.data);
    return code;
}
