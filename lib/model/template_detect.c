/* template_detect.c: recognises a model's Jinja text without running it.
 *
 * The text is read by a lexer that follows Jinja's own rules (trim_blocks and lstrip_blocks on, as every user of chat templates
 * sets them) and is reduced to a canonical stream: white space inside tags, quotes, comments, the way in which white space is
 * trimmed, `a.role` or `a['role']`, and whether a text stands in the template or in an output expression make no difference.
 * Two texts with the same stream render alike.  The stream's 64-bit hash and length are looked up in the table of known texts;
 * each of those was compared with Jinja's own rendering when it was put in.  What is not in the table is not recognised, however
 * similar: a template rendered wrongly is worse than a clear refusal.
 *
 * Time is linear in the text, no memory is allocated, nothing recurses.
 */
#include <string.h>

#include "model/template_table.h"

enum { MAX_BYTES = 1 << 20, MAX_DEPTH = 64 };

/* Marks in the canonical stream; no well-formed UTF-8 has such bytes, and texts that do are refused. */
enum { M_OUTPUT = 0xF9, M_BLOCK, M_WORD, M_OP, M_STRING, M_END, M_TEXT };

typedef struct lexer {
    const char *s; size_t n, at;
    uint64_t hash; uint32_t bytes;
    bool in_text;                                      /* a text is open in the stream */
} lexer;

typedef struct token { enum { T_WORD, T_OP, T_STRING, T_END, T_BAD } kind; size_t from, to; } token;

/* Inside one tag. */
typedef struct tag { char end; uint32_t depth; char open[MAX_DEPTH]; } tag;

static void put(lexer *x, uint8_t byte)
{
    x->hash = (x->hash ^ byte) * 0x100000001B3u;       /* FNV-1a */
    x->bytes++;
}

static void put_text_byte(lexer *x, uint8_t byte)
{
    if (!x->in_text) { put(x, M_TEXT); x->in_text = true; }
    put(x, byte);
}

static void put_mark(lexer *x, uint8_t mark)
{
    x->in_text = false;
    put(x, mark);
}

static bool is_newline(char c) { return c == '\n' || c == '\r'; }

/* Skips one newline of any kind. */
static size_t after_newline(const lexer *x, size_t at)
{
    if (at < x->n && x->s[at] == '\r') return at + 1 + (at + 1 < x->n && x->s[at + 1] == '\n');
    return at + (at < x->n && x->s[at] == '\n');
}

size_t hl_py_rstrip(const char *s, size_t n)
{
    while (n > 0) {
        size_t from = n - 1;
        uint32_t cp;
        while (from > 0 && n - from < 4 && ((uint8_t)s[from] & 0xC0) == 0x80) from--;
        if (hl_utf8_decode(s + from, n - from, &cp) != n - from || !hl_py_space(cp)) break;
        n = from;
    }
    return n;
}

size_t hl_py_lspaces(const char *s, size_t n)
{
    size_t at = 0;
    while (at < n) {
        uint32_t cp;
        size_t len = hl_utf8_decode(s + at, n - at, &cp);
        if (!hl_py_space(cp)) break;
        at += len;
    }
    return at;
}

/* ---- inside a tag ---- */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (uint8_t)c >= 0x80;
}

/* Length of the tag's end at `at`, 0 if it is not there. */
static size_t end_length(const lexer *x, const tag *t, size_t at)
{
    size_t sign = 0;
    if (x->s[at] == '-' || (x->s[at] == '+' && t->end == '%')) sign = 1;
    return at + sign + 1 < x->n && x->s[at + sign] == t->end && x->s[at + sign + 1] == '}' ? sign + 2 : 0;
}

static token next_token(lexer *x, tag *t)
{
    token k = { T_BAD, 0, 0 };
    char c;
    x->at += hl_py_lspaces(x->s + x->at, x->n - x->at);
    k.from = x->at;
    if (x->at >= x->n) return k;
    c = x->s[x->at];
    if (t->depth == 0 && (k.to = end_length(x, t, x->at)) > 0) {
        k.kind = T_END;
        k.to = x->at += k.to;
        return k;
    }
    if (is_word(c)) {
        while (x->at < x->n && is_word(x->s[x->at])) x->at++;
        k.kind = T_WORD;
    } else if (c == '\'' || c == '"') {
        for (x->at++; x->at < x->n && x->s[x->at] != c; x->at++) if (x->s[x->at] == '\\') x->at++;
        if (x->at >= x->n) return k;
        x->at++;
        k.kind = T_STRING;
    } else {
        static const char twos[] = "//**==!=<=>=";
        size_t len = 1;
        if (!strchr("+-/*%~[](){}=!<>.:|,;", c)) return k;
        for (size_t i = 0; i + 1 < sizeof twos; i += 2)
            if (x->at + 1 < x->n && twos[i] == c && twos[i + 1] == x->s[x->at + 1]) len = 2;
        if (strchr("([{", c)) {
            if (t->depth == MAX_DEPTH) return k;
            t->open[t->depth++] = c;
        } else if (strchr(")]}", c)) {
            char open = c == ')' ? '(' : c == ']' ? '[' : '{';
            if (t->depth == 0 || t->open[--t->depth] != open) return k;
        }
        x->at += len;
        k.kind = T_OP;
    }
    k.to = x->at;
    return k;
}

static bool token_is(const lexer *x, token k, const char *text)
{
    size_t n = strlen(text);
    return (k.kind == T_WORD || k.kind == T_OP) && k.to - k.from == n && memcmp(x->s + k.from, text, n) == 0;
}

/* Writes a string literal's characters.  false: an escape that none of the known texts uses. */
static bool put_string(lexer *x, token k, bool as_text)
{
    for (size_t i = k.from + 1; i < k.to - 1; i++) {
        char c = x->s[i];
        if (c == '\r') {                               /* Jinja takes every newline for \n */
            if (i + 1 < k.to - 1 && x->s[i + 1] == '\n') continue;
            c = '\n';
        } else if (c == '\\') {
            c = x->s[++i];
            switch (c) {
            case 'n': c = '\n'; break;
            case 't': c = '\t'; break;
            case 'r': c = '\r'; break;
            case '\\': case '\'': case '"': break;
            default: return false;
            }
        }
        if (as_text) put_text_byte(x, (uint8_t)c);
        else put(x, (uint8_t)c);
    }
    return true;
}

static void put_bytes(lexer *x, uint8_t mark, const char *s, size_t n)
{
    put(x, mark);
    for (size_t i = 0; i < n; i++) put(x, (uint8_t)s[i]);
}

/* Writes token k, which is no T_END.  `.role` and `.content` become ['role'] and ['content']: the same for a message. */
static bool put_token(lexer *x, tag *t, token k)
{
    if (k.kind == T_STRING) { put(x, M_STRING); return put_string(x, k, false); }
    if (token_is(x, k, ".")) {
        size_t at = x->at;
        tag look = *t;
        token name = next_token(x, &look);
        if (token_is(x, name, "role") || token_is(x, name, "content")) {
            put_bytes(x, M_OP, "[", 1);
            put_bytes(x, M_STRING, x->s + name.from, name.to - name.from);
            put_bytes(x, M_OP, "]", 1);
            return true;
        }
        x->at = at;
    }
    put_bytes(x, k.kind == T_WORD ? M_WORD : M_OP, x->s + k.from, k.to - k.from);
    return true;
}

/* Whether an output expression is nothing but terms with + or ~ between, so that each may be written by itself. */
static bool is_concatenation(lexer *x)
{
    static const char *const no[] = { "if", "else", "or", "and", "not", "is", "in", "-", "*", "/", "//", "**", "%", "==", "!=", "<",
                                      ">", "<=", ">=", ":", ",", ";", "=", "!" };
    size_t at = x->at;
    tag t = { .end = '}' };
    for (;;) {
        uint32_t depth = t.depth;
        token k = next_token(x, &t);
        if (k.kind == T_BAD || k.kind == T_END) { x->at = at; return k.kind == T_END; }
        for (size_t i = 0; i < HL_COUNT(no) && depth == 0; i++)
            if (token_is(x, k, no[i])) { x->at = at; return false; }
    }
}

static bool output_tag(lexer *x)
{
    bool split = is_concatenation(x);
    tag t = { .end = '}' };
    token k = next_token(x, &t);
    for (;;) {
        /* One term.  A string literal by itself is text. */
        bool open = false;
        if (k.kind == T_END || (split && (token_is(x, k, "+") || token_is(x, k, "~")))) return false;     /* {{ }}, unary + */
        while (k.kind != T_END && !(split && t.depth == 0 && (token_is(x, k, "+") || token_is(x, k, "~")))) {
            token then;
            size_t at = x->at;
            tag look = t;
            if (k.kind == T_BAD) return false;
            if (split && !open && k.kind == T_STRING) {
                then = next_token(x, &look);
                x->at = at;
                if (then.kind == T_END || token_is(x, then, "+") || token_is(x, then, "~")) {
                    if (!put_string(x, k, true)) return false;
                    k = next_token(x, &t);
                    continue;
                }
            }
            if (!open) { put_mark(x, M_OUTPUT); open = true; }
            if (!put_token(x, &t, k)) return false;
            k = next_token(x, &t);
        }
        if (open) put(x, M_END);
        if (k.kind == T_END) return true;
        k = next_token(x, &t);
    }
}

static bool block_tag(lexer *x)
{
    tag t = { .end = '%' };
    token k = next_token(x, &t);
    if (token_is(x, k, "raw")) return false;
    put_mark(x, M_BLOCK);
    for (; k.kind != T_END; k = next_token(x, &t))
        if (k.kind == T_BAD || !put_token(x, &t, k)) return false;
    put(x, M_END);
    return true;
}

/* ---- between tags ---- */

static size_t find_tag(const lexer *x, size_t at)
{
    for (; at + 1 < x->n; at++)
        if (x->s[at] == '{' && (x->s[at + 1] == '%' || x->s[at + 1] == '{' || x->s[at + 1] == '#')) return at;
    return x->n;
}

/* The text between two tags, [from, to), as Jinja leaves it: kind and sign are those of the tag that follows (0: none). */
static void put_text(lexer *x, size_t from, size_t to, char kind, char sign)
{
    if (sign == '-') {
        to = from + hl_py_rstrip(x->s + from, to - from);
    } else if (sign != '+' && (kind == '%' || kind == '#')) {
        size_t line = to;
        while (line > from && !is_newline(x->s[line - 1])) line--;
        bool at_start = line > from || from == 0 || is_newline(x->s[from - 1]);
        if (at_start && line < to && hl_py_lspaces(x->s + line, to - line) == to - line) to = line;
    }
    for (size_t i = from; i < to; i++) {
        if (x->s[i] == '\r') {
            put_text_byte(x, '\n');
            if (i + 1 < to && x->s[i + 1] == '\n') i++;
        } else {
            put_text_byte(x, (uint8_t)x->s[i]);
        }
    }
}

/* *sign: the one in front of the end, which "{#-#}" has not. */
static bool comment_tag(lexer *x, char *sign)
{
    size_t from = x->at;
    for (; x->at + 1 < x->n; x->at++) {
        if (x->s[x->at] != '#' || x->s[x->at + 1] != '}') continue;
        *sign = x->at > from ? x->s[x->at - 1] : 0;
        x->at += 2;
        return true;
    }
    return false;
}

bool hl_chat_fingerprint(const char *jinja, size_t bytes, uint64_t *fingerprint, uint32_t *canonical_bytes)
{
    lexer x = { .s = jinja, .n = bytes, .hash = 0xCBF29CE484222325u };
    *fingerprint = 0;
    *canonical_bytes = 0;
    if (bytes > MAX_BYTES) return false;
    for (size_t i = 0; i < bytes; i++) if ((uint8_t)jinja[i] >= 0xF8 || jinja[i] == 0) return false;
    if (x.n >= 2 && x.s[x.n - 2] == '\r' && x.s[x.n - 1] == '\n') x.n -= 2;    /* Jinja drops one newline at the end */
    else if (x.n && is_newline(x.s[x.n - 1])) x.n--;
    while (x.at < x.n) {
        size_t from = x.at, to = find_tag(&x, from);
        char kind = 0, sign = 0;
        bool ok = true;
        if (to < x.n) {
            kind = x.s[to + 1];
            if (to + 2 < x.n && (x.s[to + 2] == '-' || x.s[to + 2] == '+')) sign = x.s[to + 2];
        }
        put_text(&x, from, to, kind, sign);
        x.at = to == x.n ? x.n : to + 2 + (sign != 0);
        if (kind == 0) break;
        if (kind == '{') ok = output_tag(&x);
        if (kind == '%') ok = block_tag(&x);
        if (kind == '#') ok = comment_tag(&x, &sign);
        else if (ok) sign = x.s[x.at - 3];
        if (!ok) return false;
        if (sign == '-') x.at += hl_py_lspaces(x.s + x.at, x.n - x.at);
        else if (kind != '{' && sign != '+') x.at = after_newline(&x, x.at);
    }
    put_mark(&x, M_END);
    *fingerprint = x.hash;
    *canonical_bytes = x.bytes;
    return true;
}

const hl_chat_template *hl_chat_known_find(uint64_t fingerprint, uint32_t canonical_bytes)
{
    size_t low = 0, high = hl_chat_n_known;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (hl_chat_known_texts[mid].fingerprint < fingerprint) low = mid + 1;
        else high = mid;
    }
    if (low == hl_chat_n_known || hl_chat_known_texts[low].fingerprint != fingerprint) return NULL;
    return hl_chat_known_texts[low].bytes == canonical_bytes ? hl_chat_template_find(hl_chat_known_texts[low].row) : NULL;
}

const hl_chat_template *hl_chat_template_detect(const char *jinja, size_t bytes)
{
    uint64_t fingerprint;
    uint32_t canonical;
    return jinja && hl_chat_fingerprint(jinja, bytes, &fingerprint, &canonical) ? hl_chat_known_find(fingerprint, canonical) : NULL;
}
