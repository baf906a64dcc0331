/* presplit.c: cuts a text into the words inside which byte-level BPE merges, as each model's regular expressions would.
 *
 * Every splitter is written by hand from its expressions (quoted above each step), with categories from utf8proc.  A splitter is a
 * list of steps: a step's matches become pieces, so does what lies between them, and the next step is run inside each piece, which
 * is a whole text to it (that is how several expressions in sequence work, in llama.cpp too).  A step looks at each code point a
 * bounded number of times, so the whole is linear.
 *
 * Contractions under (?i:) follow simple case folding: U+017F (long s) counts as s, as in the expressions that the models were
 * trained with; llama.cpp's adapted ones leave it out.  Likewise tekken and gpt-4o are the original expressions with their letter
 * cases, not llama.cpp's approximation by ASCII; and deepseek-llm's range of punctuation holds U+3000, which llama.cpp hides from
 * it because it is a space.
 */
#include "model/vocab.h"

#include <string.h>
#include <utf8proc.h>

/* Match at c[at] (at < end): where it ends; `at` itself: none.  Then the search may go on at *retry (at + 1 when the step does not
 * say otherwise). */
typedef size_t step_fn(const hl_cell *c, size_t at, size_t end, size_t *retry);

#define CAT(x) (1u << UTF8PROC_CATEGORY_##x)
enum {
    L = CAT(LU) | CAT(LL) | CAT(LT) | CAT(LM) | CAT(LO),
    M = CAT(MN) | CAT(MC) | CAT(ME),
    N = CAT(ND) | CAT(NL) | CAT(NO),
    P = CAT(PC) | CAT(PD) | CAT(PS) | CAT(PE) | CAT(PI) | CAT(PF) | CAT(PO),
    S = CAT(SM) | CAT(SC) | CAT(SK) | CAT(SO),
    UPPER = CAT(LU) | CAT(LT) | CAT(LM) | CAT(LO) | M,     /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] */
    LOWER = CAT(LL) | CAT(LM) | CAT(LO) | M                /* [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
};

static inline bool in(hl_cell c, uint32_t cats) { return cats >> (c >> HL_CELL_CAT_SHIFT & 31) & 1; }
static inline bool space(hl_cell c) { return (c & HL_CELL_SPACE) != 0; }
static inline bool newline(hl_cell c) { return hl_cell_cp(c) == '\n' || hl_cell_cp(c) == '\r'; }
/* [^\s cats] */
static inline bool other(hl_cell c, uint32_t cats) { return !space(c) && !in(c, cats); }

static inline size_t run(const hl_cell *c, size_t at, size_t end, uint32_t cats)
{
    while (at < end && in(c[at], cats)) at++;
    return at;
}

static inline size_t run_max(const hl_cell *c, size_t at, size_t end, uint32_t cats, size_t max)
{
    return run(c, at, end - at > max ? at + max : end, cats);
}

static size_t run_newlines(const hl_cell *c, size_t at, size_t end, bool slash)
{
    while (at < end && (newline(c[at]) || (slash && hl_cell_cp(c[at]) == '/'))) at++;
    return at;
}

size_t hl_cells_from_text(const char *text, size_t n, hl_cell *out)
{
    size_t k = 0;
    for (size_t at = 0; at < n;) {
        uint32_t cp;
        size_t len = hl_utf8_decode(text + at, n - at, &cp);
        if (cp == UINT32_MAX) {                  /* each of its bytes stands alone, so that cells and bytes correspond */
            for (size_t i = 0; i < len; i++)
                out[k++] = 0xfffd | (uint32_t)UTF8PROC_CATEGORY_SO << HL_CELL_CAT_SHIFT | HL_CELL_INVALID;
            at += len;
            continue;
        }
        uint32_t cat = (uint32_t)utf8proc_category((utf8proc_int32_t)cp);
        hl_cell c = cp | cat << HL_CELL_CAT_SHIFT;
        /* White_Space is the separators and these controls. */
        if ((cp >= 9 && cp <= 13) || cp == 0x85 || in(c, CAT(ZS) | CAT(ZL) | CAT(ZP))) c |= HL_CELL_SPACE;
        out[k++] = c;
        at += len;
    }
    return k;
}

/* ---- parts that several expressions have ---- */

/* Simple case folding of what contractions are made of. */
static uint32_t fold_case(uint32_t cp, bool any_case)
{
    if (!any_case) return cp;
    if (cp >= 'A' && cp <= 'Z') return cp + 32;
    return cp == 0x17f ? 's' : cp;
}

/* 's|'t|'re|'ve|'m|'ll|'d */
static size_t contraction(const hl_cell *c, size_t at, size_t end, bool any_case)
{
    if (end - at < 2 || hl_cell_cp(c[at]) != '\'') return at;
    uint32_t a = fold_case(hl_cell_cp(c[at + 1]), any_case);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    if (end - at < 3) return at;
    uint32_t b = fold_case(hl_cell_cp(c[at + 2]), any_case);
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? at + 3 : at;
}

/* \s+(?!\S)|\s+ */
static size_t spaces(const hl_cell *c, size_t at, size_t end)
{
    size_t q = at;
    while (q < end && space(c[q])) q++;
    return q < end && q - at > 1 ? q - 1 : q;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t lines_or_spaces(const hl_cell *c, size_t at, size_t end)
{
    size_t q = at, line = at;
    while (q < end && space(c[q])) if (newline(c[q++])) line = q;
    if (line > at) return line;
    return q < end && q - at > 1 ? q - 1 : q;
}

/* " ?[^\s cats]+" and then [\r\n]* or [\r\n/]* */
static size_t symbols(const hl_cell *c, size_t at, size_t end, uint32_t cats, bool slash)
{
    size_t k = at + (hl_cell_cp(c[at]) == ' ' && at + 1 < end), q = k;
    while (q < end && other(c[q], cats)) q++;
    return q > k ? run_newlines(c, q, end, slash) : at;
}

/* [^\r\n\p{L}\p{N}]?W+ */
static size_t prefixed_word(const hl_cell *c, size_t at, size_t end, uint32_t w)
{
    if (!newline(c[at]) && !in(c[at], L | N) && at + 1 < end && in(c[at + 1], w)) return run(c, at + 1, end, w);
    return run(c, at, end, w);
}

/* ---- steps ---- */

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)  -- and what is left is one space */
static size_t step_gpt2(const hl_cell *c, size_t at, size_t end, size_t *retry)
{
    (void)retry;
    size_t q = contraction(c, at, end, false);
    if (q > at) return q;
    size_t k = at + (hl_cell_cp(c[at]) == ' ' && at + 1 < end);
    if (in(c[k], L)) return run(c, k, end, L);
    if (in(c[k], N)) return run(c, k, end, N);
    if (!space(c[k])) {
        for (q = k; q < end && other(c[q], L | N);) q++;
        return q;
    }
    return spaces(c, at, end);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?W+|\p{N}{1,max}| ?[^\s W \p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static inline size_t cl100k(const hl_cell *c, size_t at, size_t end, uint32_t w, size_t max_digits)
{
    size_t q = contraction(c, at, end, true);
    if (q > at || (q = prefixed_word(c, at, end, w)) > at || (q = run_max(c, at, end, N, max_digits)) > at ||
        (q = symbols(c, at, end, w | N, false)) > at) return q;
    return lines_or_spaces(c, at, end);
}

static size_t step_llama3(const hl_cell *c, size_t at, size_t end, size_t *retry) { (void)retry; return cl100k(c, at, end, L, 3); }
static size_t step_qwen2(const hl_cell *c, size_t at, size_t end, size_t *retry) { (void)retry; return cl100k(c, at, end, L, 1); }
static size_t step_qwen35(const hl_cell *c, size_t at, size_t end, size_t *retry) { (void)retry; return cl100k(c, at, end, L | M, 1); }

/* [UPPER]*[LOWER]+|[UPPER]+[LOWER]* from c[at]; *weak: only the second alternative matched. */
static size_t cased_word(const hl_cell *c, size_t at, size_t end, bool *weak)
{
    size_t both = SIZE_MAX, q = at;
    *weak = false;
    for (; q < end && in(c[q], UPPER); q++) if (in(c[q], LOWER)) both = q;
    if (q < end && in(c[q], LOWER)) return run(c, q, end, LOWER);
    if (both != SIZE_MAX) return both + 1;       /* [UPPER]* gives back until [LOWER]+ has one; what follows is no LOWER */
    *weak = true;
    return q;
}

/* [^\r\n\p{L}\p{N}]?[UPPER]*[LOWER]+C?|[^\r\n\p{L}\p{N}]?[UPPER]+[LOWER]*C?|\p{N}{1,max}| ?[^\s\p{L}\p{N}]+[\r\n/]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+   with C = (?i:'s|'t|'re|'ve|'m|'ll|'d) in gpt-4o, nothing in tekken */
static inline size_t o200k(const hl_cell *c, size_t at, size_t end, size_t max_digits, bool contractions)
{
    bool weak_x = false, weak;
    size_t q_x = at, q;                          /* with the optional character in front, and without */
    if (!newline(c[at]) && !in(c[at], L | N) && at + 1 < end) {
        q_x = cased_word(c, at + 1, end, &weak_x);
        if (q_x == at + 1) q_x = at;
    }
    /* The first alternative is tried both ways before the second one.  Only a mark can be that character and a letter of the word,
     * and then it is a word by the first alternative. */
    if (q_x > at && !weak_x) q = q_x;
    else if ((q = cased_word(c, at, end, &weak)) == at) q = q_x;
    if (q > at) return contractions && q < end ? contraction(c, q, end, true) : q;
    if ((q = run_max(c, at, end, N, max_digits)) > at || (q = symbols(c, at, end, L | N, true)) > at) return q;
    return lines_or_spaces(c, at, end);
}

static size_t step_tekken(const hl_cell *c, size_t at, size_t end, size_t *retry) { (void)retry; return o200k(c, at, end, 1, false); }
static size_t step_gpt4o(const hl_cell *c, size_t at, size_t end, size_t *retry) { (void)retry; return o200k(c, at, end, 3, true); }

/* \p{N} */
static size_t step_digit(const hl_cell *c, size_t at, size_t end, size_t *retry)
{
    (void)end; (void)retry;
    return at + in(c[at], N);
}

/* \p{N}+ */
static size_t step_digits(const hl_cell *c, size_t at, size_t end, size_t *retry) { (void)retry; return run(c, at, end, N); }
/* \p{N}{1,3} */
static size_t step_digits3(const hl_cell *c, size_t at, size_t end, size_t *retry) { (void)retry; return run_max(c, at, end, N, 3); }

/* [0-9][0-9][0-9] */
static size_t step_ascii_triple(const hl_cell *c, size_t at, size_t end, size_t *retry)
{
    (void)retry;
    if (end - at < 3) return at;
    for (size_t i = 0; i < 3; i++) if (hl_cell_cp(c[at + i]) - '0' > 9) return at;
    return at + 3;
}

static inline size_t punctuation(const hl_cell *c, size_t at, size_t end, const char *more)
{
    for (; at < end; at++) {
        uint32_t cp = hl_cell_cp(c[at]);
        if (!in(c[at], P) && !(cp && cp < 128 && strchr(more, (int)cp))) break;
    }
    return at;
}

/* [\p{P}\$\+<=>\^~\|]+ */
static size_t step_punct_default(const hl_cell *c, size_t at, size_t end, size_t *retry) { (void)retry; return punctuation(c, at, end, "$+<=>^~|"); }
/* [\p{P}\$\+<=>\^~\|`]+ */
static size_t step_punct_falcon(const hl_cell *c, size_t at, size_t end, size_t *retry) { (void)retry; return punctuation(c, at, end, "$+<=>^~|`"); }

/* [\r\n] */
static size_t step_newline(const hl_cell *c, size_t at, size_t end, size_t *retry)
{
    (void)end; (void)retry;
    return at + newline(c[at]);
}

typedef struct range { uint32_t first, last; } range;

/* The letters that deepseek-llm's expression lists. */
static const range deepseek_letters[] = {
    { 0x41, 0x5a }, { 0x61, 0x7a }, { 0xb5, 0xb5 }, { 0xc0, 0xd6 }, { 0xd8, 0xf6 }, { 0xf8, 0x1ba }, { 0x1bc, 0x1bf },
    { 0x1c4, 0x293 }, { 0x295, 0x2af }, { 0x370, 0x373 }, { 0x376, 0x376 }, { 0x377, 0x377 }, { 0x37b, 0x37d },
    { 0x37f, 0x37f }, { 0x386, 0x386 }, { 0x388, 0x38a }, { 0x38c, 0x38c }, { 0x38e, 0x3a1 }, { 0x3a3, 0x3f5 },
    { 0x3f7, 0x481 }, { 0x48a, 0x52f }, { 0x531, 0x556 }, { 0x10a0, 0x10c5 }, { 0x13a0, 0x13f5 }, { 0x13f8, 0x13fd },
    { 0x1c90, 0x1cba }, { 0x1cbd, 0x1cbf }, { 0x1d00, 0x1d2b }, { 0x1d6b, 0x1d77 }, { 0x1d79, 0x1d9a }, { 0x1e00, 0x1f15 },
    { 0x1f18, 0x1f1d }, { 0x1f20, 0x1f45 }, { 0x1f48, 0x1f4d }, { 0x1f50, 0x1f57 }, { 0x1f59, 0x1f59 }, { 0x1f5b, 0x1f5b },
    { 0x1f5d, 0x1f5d }, { 0x1f5f, 0x1f7d }, { 0x1f80, 0x1fb4 }, { 0x1fb6, 0x1fbc }, { 0x1fbe, 0x1fbe }, { 0x1fc2, 0x1fc4 },
    { 0x1fc6, 0x1fcc }, { 0x1fd0, 0x1fd3 }, { 0x1fd6, 0x1fdb }, { 0x1fe0, 0x1fec }, { 0x1ff2, 0x1ff4 }, { 0x1ff6, 0x1ffc },
    { 0x2102, 0x2102 }, { 0x2107, 0x2107 }, { 0x210a, 0x2113 }, { 0x2115, 0x2115 }, { 0x2119, 0x211d }, { 0x2124, 0x2124 },
    { 0x2126, 0x2126 }, { 0x2128, 0x2128 }, { 0x212a, 0x212d }, { 0x212f, 0x2134 }, { 0x2139, 0x2139 }, { 0x213c, 0x213f },
    { 0x2145, 0x2149 }, { 0x214e, 0x214e }, { 0x2183, 0x2183 }, { 0x2184, 0x2184 }, { 0x2c00, 0x2c7b }, { 0x2c7e, 0x2ce4 },
    { 0x2ceb, 0x2cee }, { 0x2cf2, 0x2cf2 }, { 0x2cf3, 0x2cf3 }, { 0xa640, 0xa66d }, { 0xa680, 0xa69b }, { 0xa722, 0xa76f },
    { 0xa771, 0xa787 }, { 0xa78b, 0xa78e }, { 0xab70, 0xabbf }, { 0xfb00, 0xfb06 }, { 0xfb13, 0xfb17 }, { 0xff21, 0xff3a },
    { 0xff41, 0xff5a }, { 0x10400, 0x1044f }, { 0x104b0, 0x104d3 }, { 0x104d8, 0x104fb }, { 0x10c80, 0x10cb2 },
    { 0x10cc0, 0x10cf2 }, { 0x118a0, 0x118df }, { 0x1e900, 0x1e943 },
};
/* [!-/:-~！-／：-～‘-‟　-。] */
static const range deepseek_punct[] = {
    { '!', '/' }, { ':', '~' }, { 0x2018, 0x201f }, { 0x3000, 0x3002 }, { 0xff01, 0xff0f }, { 0xff1a, 0xff5e }
};
/* [一-龥ࠀ-一가-퟿], and [一-龥぀-ゟ゠-ヿ] of v3 */
static const range deepseek_cjk[] = { { 0x800, 0x9fa5 }, { 0xac00, 0xd7ff } };
static const range deepseek3_cjk[] = { { 0x3040, 0x30ff }, { 0x4e00, 0x9fa5 } };

static bool in_ranges(uint32_t cp, const range *r, size_t n)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > r[mid].last) lo = mid + 1; else hi = mid;
    }
    return lo < n && cp >= r[lo].first;
}

/* \s?[r]+ (leading) or [r]+ */
static size_t run_ranges(const hl_cell *c, size_t at, size_t end, const range *r, size_t n, bool leading)
{
    size_t k = at + (leading && space(c[at]) && at + 1 < end && in_ranges(hl_cell_cp(c[at + 1]), r, n)), q = k;
    while (q < end && in_ranges(hl_cell_cp(c[q]), r, n)) q++;
    return q > k ? q : at;
}

static size_t step_deepseek_letters(const hl_cell *c, size_t at, size_t end, size_t *retry)
{
    (void)retry;
    return run_ranges(c, at, end, deepseek_letters, HL_COUNT(deepseek_letters), true);
}
static size_t step_deepseek_punct(const hl_cell *c, size_t at, size_t end, size_t *retry)
{
    (void)retry;
    return run_ranges(c, at, end, deepseek_punct, HL_COUNT(deepseek_punct), true);
}
static size_t step_deepseek_cjk(const hl_cell *c, size_t at, size_t end, size_t *retry)
{
    (void)retry;
    return run_ranges(c, at, end, deepseek_cjk, HL_COUNT(deepseek_cjk), false);
}
static size_t step_deepseek3_cjk(const hl_cell *c, size_t at, size_t end, size_t *retry)
{
    (void)retry;
    return run_ranges(c, at, end, deepseek3_cjk, HL_COUNT(deepseek3_cjk), false);
}

/* \s+$ */
static size_t step_trailing_spaces(const hl_cell *c, size_t at, size_t end, size_t *retry)
{
    size_t q = at;
    while (q < end && space(c[q])) q++;
    if (q == end) return q;
    *retry = q > at ? q : at + 1;                /* none of these spaces can be the match's first */
    return at;
}

static size_t spaced_run(const hl_cell *c, size_t at, size_t end, uint32_t cats)
{
    size_t k = at + (space(c[at]) && at + 1 < end && in(c[at + 1], cats)), q = run(c, k, end, cats);
    return q > k ? q : at;
}
/* \s?\p{L}+ */
static size_t step_spaced_letters(const hl_cell *c, size_t at, size_t end, size_t *retry) { (void)retry; return spaced_run(c, at, end, L); }
/* \s?\p{P}+ */
static size_t step_spaced_punct(const hl_cell *c, size_t at, size_t end, size_t *retry) { (void)retry; return spaced_run(c, at, end, P); }

static bool ascii_punct(uint32_t cp) { return (cp >= '!' && cp <= '/') || (cp >= ':' && cp <= '@') || (cp >= '[' && cp <= '`') || (cp >= '{' && cp <= '~'); }
static bool ascii_letter(uint32_t cp) { return (cp | 32) >= 'a' && (cp | 32) <= 'z'; }

/* [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t step_deepseek3(const hl_cell *c, size_t at, size_t end, size_t *retry)
{
    (void)retry;
    size_t q = at + 1, k;
    if (ascii_punct(hl_cell_cp(c[at]))) {
        while (q < end && ascii_letter(hl_cell_cp(c[q]))) q++;
        if (q > at + 1) return q;
    }
    if (!newline(c[at]) && !in(c[at], L | P | S) && at + 1 < end && in(c[at + 1], L | M)) return run(c, at + 1, end, L | M);
    if ((q = run(c, at, end, L | M)) > at) return q;
    k = at + (hl_cell_cp(c[at]) == ' ' && at + 1 < end);
    if ((q = run(c, k, end, P | S)) > k) return run_newlines(c, q, end, false);
    return lines_or_spaces(c, at, end);
}

/* ---- the table ---- */

enum { MAX_STEPS = 6 };
struct hl_splitter { step_fn *step[MAX_STEPS + 1]; };
static const hl_splitter
    default_ = { { step_punct_default, step_gpt2, step_digits, step_ascii_triple } },
    gpt2 = { { step_gpt2 } },
    starcoder = { { step_digit, step_gpt2 } },
    falcon = { { step_punct_falcon, step_gpt2, step_ascii_triple } },
    llama3 = { { step_llama3 } },
    qwen2 = { { step_qwen2 } },
    qwen35 = { { step_qwen35 } },
    tekken = { { step_tekken } },
    gpt4o = { { step_gpt4o } },
    deepseek_llm = { { step_newline, step_deepseek_letters, step_deepseek_punct, step_trailing_spaces, step_deepseek_cjk, step_digits } },
    deepseek_coder = { { step_newline, step_spaced_letters, step_spaced_punct, step_deepseek_cjk, step_digit } },
    deepseek3 = { { step_digits3, step_deepseek3_cjk, step_deepseek3 } };

/* Names of tokenizer.ggml.pre whose expressions are the same, character for character, in llama.cpp's table. */
static const struct { const char *names; const hl_splitter *sp; uint32_t flags; } table[] = {
    { "default", &default_, 0 },
    { "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat jina-es jina-de jina-v2-es jina-v2-de a.x-4.0 mellum", &gpt2, 0 },
    { "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", &starcoder, 0 },
    { "falcon", &falcon, 0 },
    { "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", &llama3, HL_SPLIT_IGNORE_MERGES | HL_SPLIT_ADD_BOS },
    { "smaug-bpe dbrx", &llama3, 0 },
    { "chatglm-bpe", &llama3, HL_SPLIT_NO_BOS },
    { "glm4 glm5", &llama3, HL_SPLIT_NO_BOS | HL_SPLIT_IGNORE_MERGES },
    { "qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez kormo f2llmv2 solar-open grok-2", &qwen2, 0 },
    { "qwen35", &qwen35, 0 },
    { "tekken", &tekken, HL_SPLIT_IGNORE_MERGES | HL_SPLIT_ADD_BOS },
    { "gpt-4o llama4 kanana2 talkie minimax-m2", &gpt4o, 0 },
    { "deepseek-llm", &deepseek_llm, 0 },
    { "deepseek-coder", &deepseek_coder, 0 },
    { "deepseek-v3 hunyuan-dense joyai-llm hy_v4", &deepseek3, 0 },
};

const hl_splitter *hl_splitter_find(const char *name, size_t bytes, uint32_t *flags)
{
    *flags = 0;
    for (size_t i = 0; i < HL_COUNT(table); i++)
        for (const char *s = table[i].names; *s;) {
            size_t n = strcspn(s, " ");
            if (n == bytes && memcmp(s, name, n) == 0) { *flags = table[i].flags; return table[i].sp; }
            s += n + (s[n] == ' ');
        }
    return NULL;
}

size_t hl_splitter_names(char *buf, size_t cap)
{
    size_t at = 0;
    for (size_t i = 0; i < HL_COUNT(table); i++) {
        size_t n = strlen(table[i].names);
        if (at && at + 1 < cap) buf[at] = ' ';
        at += at > 0;
        for (size_t k = 0; k < n; k++, at++) if (at + 1 < cap) buf[at] = table[i].names[k];
    }
    if (cap) buf[HL_MIN(at, cap - 1)] = 0;
    return at;
}

typedef struct split_ctx { const hl_splitter *sp; const hl_cell *c; hl_word_fn *word; void *user; } split_ctx;

static hl_status split(const split_ctx *x, size_t i_step, size_t begin, size_t end)
{
    hl_status rc = HLLM_OK;
    size_t gap = begin, at = begin;
    step_fn *step = x->sp->step[i_step];
    if (!step) return x->word(x->user, x->c + begin, end - begin);
    while (at < end) {
        size_t retry = at + 1, q = step(x->c, at, end, &retry);
        if (q == at) { at = retry; continue; }
        if (gap < at) HL_TRY(split(x, i_step + 1, gap, at));
        HL_TRY(split(x, i_step + 1, at, q));
        gap = at = q;
    }
    if (gap < end) HL_TRY(split(x, i_step + 1, gap, end));
done:
    return rc;
}

hl_status hl_presplit(const hl_splitter *sp, const hl_cell *cells, size_t n, hl_word_fn *word, void *user)
{
    split_ctx x = { sp, cells, word, user };
    return split(&x, 0, 0, n);
}
