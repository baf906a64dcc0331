/* json.c: writes JSON to stdout, one object per line.
 *
 * Commas and nesting are kept here, so that a command only says what there is.  Strings become valid UTF-8 whatever they were;
 * numbers that JSON does not have become null.
 */
#include "cli.h"

#include <math.h>
#include <string.h>

enum { MAX_DEPTH = 16 };
static struct { char bracket; bool any; } levels[MAX_DEPTH];
static int depth;
static bool after_key;

static void before_value(void)
{
    if (after_key) after_key = false;
    else if (depth > 0) {
        if (levels[depth - 1].any) putchar(',');
        levels[depth - 1].any = true;
    }
}

void json_open(char bracket)
{
    before_value();
    putchar(bracket);
    if (depth < MAX_DEPTH) {
        levels[depth].bracket = bracket;
        levels[depth].any = false;
        depth++;
    }
}

void json_close(void)
{
    if (depth == 0) return;
    depth--;
    putchar(levels[depth].bracket == '{' ? '}' : ']');
    if (depth == 0) {
        putchar('\n');
        fflush(stdout);
    }
}

void json_close_all(void)
{
    if (after_key) json_null();
    while (depth > 0) json_close();
}

/* The bytes of the code point at s, or 0 when there is none (overlong, surrogate, above U+10FFFF, cut). */
static size_t code_point(const unsigned char *s, size_t n)
{
    const unsigned char c = s[0];
    if (c < 0x80) return 1;
    const size_t len = c >= 0xc2 && c <= 0xdf ? 2 : c >= 0xe0 && c <= 0xef ? 3 : c >= 0xf0 && c <= 0xf4 ? 4 : 0;
    if (len == 0 || n < len) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (c == 0xe0 && s[1] < 0xa0) return 0;
    if (c == 0xed && s[1] > 0x9f) return 0;
    if (c == 0xf0 && s[1] < 0x90) return 0;
    if (c == 0xf4 && s[1] > 0x8f) return 0;
    return len;
}

static void put_ascii(unsigned char c)
{
    switch (c) {
    case '"':  fputs("\\\"", stdout); break;
    case '\\': fputs("\\\\", stdout); break;
    case '\n': fputs("\\n", stdout); break;
    case '\t': fputs("\\t", stdout); break;
    case '\r': fputs("\\r", stdout); break;
    default:
        if (c < 32) printf("\\u%04x", c);
        else putchar(c);
    }
}

void json_text(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    before_value();
    putchar('"');
    for (size_t i = 0; i < n;) {
        const size_t len = code_point(p + i, n - i);
        if (len == 1) put_ascii(p[i]);
        else if (len == 0) fputs("\xef\xbf\xbd", stdout);
        else fwrite(p + i, 1, len, stdout);
        i += len ? len : 1;
    }
    putchar('"');
}

void json_print_raw(const char *s, size_t n)
{
    putchar('"');
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i];
        if (c < 0x80) put_ascii(c);
        else putchar(c);
    }
    putchar('"');
}

void json_str(const char *s) { json_text(s ? s : "", s ? strlen(s) : 0); }

void json_key(const char *name)
{
    json_str(name);
    putchar(':');
    after_key = true;
}

void json_int(int64_t v)   { before_value(); printf("%lld", (long long)v); }
void json_uint(uint64_t v) { before_value(); printf("%llu", (unsigned long long)v); }
void json_bool(bool v)     { before_value(); fputs(v ? "true" : "false", stdout); }
void json_null(void)       { before_value(); fputs("null", stdout); }

void json_num(double v, int decimals)
{
    if (!isfinite(v)) { json_null(); return; }
    before_value();
    if (decimals < 0) printf("%.9g", v);
    else printf("%.*f", decimals, v);
}

void json_key_str(const char *name, const char *s)              { json_key(name); json_str(s); }
void json_key_uint(const char *name, uint64_t v)                { json_key(name); json_uint(v); }
void json_key_num(const char *name, double v, int decimals)     { json_key(name); json_num(v, decimals); }

void json_ids(const char *name, const int32_t *ids, size_t n)
{
    json_key(name);
    json_open('[');
    for (size_t i = 0; i < n; i++) json_int(ids[i]);
    json_close();
}

void json_print_tokens(bool json, const char *text, size_t n, const int32_t *tokens, size_t n_tokens)
{
    if (json) {
        json_open('{');
        json_key("text");
        json_text(text, n);
        json_ids("tokens", tokens, n_tokens);
        return;
    }
    fputs("text ", stdout);
    json_print_raw(text, n);
    fputs("\ntokens", stdout);
    for (size_t i = 0; i < n_tokens; i++) printf(" %d", tokens[i]);
    putchar('\n');
}
