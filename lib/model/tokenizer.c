/* tokenizer.c: the door to a vocabulary: finds special tokens in a text, gives what lies between them to spm.c or bpe.c, and turns
 * tokens back into bytes.
 *
 * Special tokens match as in llama.cpp: the longest first (equally long ones by id), each from left to right in what is still
 * free.  Looking for each of thousands of tokens in turn would be slow; here every place of the text that begins one waits in a
 * heap with its longest match, and falls back to a shorter one when that overlaps what was taken.  The result is the same.
 */
#include "model/vocab.h"

#include <inttypes.h>
#include <string.h>

uint32_t hl_vocab_size(const hl_vocab *v) { return v->n; }
bool hl_vocab_adds_bos(const hl_vocab *v) { return v->adds_bos; }

int32_t hl_vocab_special(const hl_vocab *v, uint32_t kind)
{
    return kind >= HLLM_SPECIAL_BOS && kind <= HLLM_SPECIAL_PAD ? v->special[kind] : -1;
}

hl_token hl_vocab_token(const hl_vocab *v, int32_t id)
{
    HL_ASSERT(id >= 0 && (uint32_t)id < v->n);
    const hl_vocab_token_row *t = &v->row[id];
    return (hl_token){ v->blob + t->text, t->text_bytes, v->blob + t->piece, t->piece_bytes, t->score, t->type, (t->flags & HL_TOKEN_ENDS) != 0 };
}

/* ---- special tokens in a text ---- */

typedef struct span { size_t begin, end; } span;

typedef struct marks {
    const hl_vocab *v;
    const char *text; size_t n;
    const span *trusted; size_t n_trusted;       /* in order, apart from each other */
    bool mixed;                                  /* some of the text is trusted, some not */
    const uint8_t *own;                          /* one bit per token: user-defined ones that match in trusted parts only; NULL: none */
    hl_heap heap;                                /* order: rank << 32 | place; then what was taken, by place */
    uint8_t *taken;                              /* [n] TAKEN, GUARDED; NULL while nothing was found */
} marks;
enum { TAKEN = 1, GUARDED = 2 };

/* May it match in texts of anybody? */
static bool is_free_for_all(const marks *m, int32_t id)
{
    return m->v->row[id].type == HLLM_TOKEN_USER_DEFINED && !(m->own && m->own[id / 8] >> id % 8 & 1);
}

/* Where the trusted part around byte `at` ends; `at` itself when it is in none. */
static size_t trusted_end(const marks *m, size_t at)
{
    size_t lo = 0, hi = m->n_trusted;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (m->trusted[mid].end <= at) lo = mid + 1; else hi = mid;
    }
    return lo < m->n_trusted && m->trusted[lo].begin <= at ? m->trusted[lo].end : at;
}

/* The longest special token at `at` of at most `limit` bytes: its place in v->marked, -1: none. */
static int64_t longest(const marks *m, size_t at, size_t limit, bool user_defined, size_t control_end)
{
    const hl_vocab *v = m->v;
    uint32_t lo = 0, hi = v->n_marked;           /* those that begin with the k bytes at `at` */
    int64_t best = -1;
    limit = HL_MIN(limit, m->n - at);
    for (size_t k = 0; k < limit && lo < hi; k++) {
        unsigned char c = (unsigned char)m->text[at + k];
#define BYTE(i) ((unsigned char)v->blob[v->row[v->marked[i]].text + k])
        if (BYTE(lo) != c) {
            uint32_t a = lo, b = hi;
            while (a < b) { uint32_t mid = (a + b) / 2; if (BYTE(mid) < c) a = mid + 1; else b = mid; }
            lo = a;
        }
        if (lo < hi && BYTE(hi - 1) != c) {
            uint32_t a = lo, b = hi;
            while (a < b) { uint32_t mid = (a + b) / 2; if (BYTE(mid) <= c) a = mid + 1; else b = mid; }
            hi = a;
        }
#undef BYTE
        if (lo == hi) break;
        const hl_vocab_token_row *t = &v->row[v->marked[lo]];
        if (t->text_bytes > k + 1) continue;
        if (is_free_for_all(m, v->marked[lo]) ? user_defined : at + k + 1 <= control_end) best = lo;
        lo++;                                    /* it ends here: only longer ones go on */
    }
    return best;
}

static hl_status push(hl_mem *mem, marks *m, size_t at, size_t limit, size_t control_end)
{
    int64_t i = longest(m, at, limit, true, control_end);
    if (i < 0) return HLLM_OK;
    return hl_heap_push(mem, &m->heap, (hl_heap_item){ (uint64_t)m->v->marked_rank[i] << 32 | at, 0, m->v->marked[i] });
}

/* May the bytes at `at` become this token?  Else *limit says how long a shorter one may be. */
static bool is_free(const marks *m, int32_t id, size_t at, size_t *limit)
{
    const hl_vocab_token_row *t = &m->v->row[id];
    bool crosses = m->mixed && is_free_for_all(m, id) && trusted_end(m, at) < at + t->text_bytes;
    for (size_t k = 0; k < t->text_bytes; k++) {
        if (m->taken[at + k] & TAKEN) { *limit = k; return false; }
        /* A user's text must not destroy a control token of the template by making a longer one with its first letters. */
        if (crosses && m->taken[at + k] & GUARDED) { *limit = t->text_bytes - 1; return false; }
    }
    return true;
}

static bool ascii_space(char c) { return c == ' ' || (c >= 9 && c <= 13); }

/* Fills m->heap with the special tokens of the text, by place. */
static hl_status find_marks(const hl_env *env, marks *m)
{
    hl_status rc = HLLM_OK;
    hl_mem *mem = env->mem;
    const hl_vocab *v = m->v;
    hl_heap found = { 0 };
    uint8_t first = m->n_trusted ? 3 : 1;
    size_t control_end = 0, next_trusted = 0;
    for (size_t at = 0; at < m->n; at++) {
        if (!(v->marked_first[(unsigned char)m->text[at]] & first)) continue;
        while (next_trusted < m->n_trusted && m->trusted[next_trusted].end <= at) next_trusted++;
        control_end = next_trusted < m->n_trusted && m->trusted[next_trusted].begin <= at ? m->trusted[next_trusted].end : at;
        HL_TRY(push(mem, m, at, SIZE_MAX, control_end));
        if (m->mixed && control_end > at) {
            int64_t i = longest(m, at, SIZE_MAX, false, control_end);
            if (i < 0) continue;
            if (!m->taken) HL_NEED(m->taken = hl_alloc_zero(mem, m->n));
            for (size_t k = 0; k < v->row[v->marked[i]].text_bytes; k++) m->taken[at + k] |= GUARDED;
        }
    }
    if (m->heap.n && !m->taken) HL_NEED(m->taken = hl_alloc_zero(mem, m->n));
    while (m->heap.n) {
        HL_TRY(hl_env_go_on(env));
        hl_heap_item top = hl_heap_pop(&m->heap);
        size_t at = (uint32_t)top.order, limit;
        const hl_vocab_token_row *t = &v->row[top.id];
        if (m->taken[at] & TAKEN) continue;
        if (!is_free(m, top.id, at, &limit)) { HL_TRY(push(mem, m, at, limit, trusted_end(m, at))); continue; }
        for (size_t k = 0; k < t->text_bytes; k++) m->taken[at + k] |= TAKEN;
        if (t->flags & HL_TOKEN_RSTRIP)
            for (size_t k = at + t->text_bytes; k < m->n && !(m->taken[k] & TAKEN) && ascii_space(m->text[k]); k++) m->taken[k] |= TAKEN;
        HL_TRY(hl_heap_push(mem, &found, (hl_heap_item){ at, t->text_bytes, top.id }));
    }
done:
    hl_heap_free(mem, &m->heap);
    m->heap = found;
    return rc;
}

static bool is_blank(const char *s, size_t n)
{
    for (size_t at = 0, k; at < n; at += k) {
        uint32_t cp;
        k = hl_utf8_decode(s + at, n - at, &cp);
        if (!(cp == 0x2581 || cp == ' ' || (cp >= 9 && cp <= 13))) return false;       /* 0x2581: a space in SPM */
    }
    return true;
}

/* The user-defined tokens anywhere in a template's words.  White space is no delimiter: it goes on matching everywhere. */
static hl_status find_own(hl_mem *mem, const hl_vocab *v, const hl_text_part *words, size_t n_words, uint8_t **own)
{
    hl_status rc = HLLM_OK;
    if (n_words == 0) return HLLM_OK;
    HL_NEED(*own = hl_alloc_zero(mem, v->n / 8 + 1));
    for (size_t i = 0; i < n_words; i++) {
        const marks m = { .v = v, .text = words[i].text, .n = words[i].bytes };
        for (size_t at = 0; at < m.n; at++) {
            size_t limit = SIZE_MAX;
            for (int64_t k; (k = longest(&m, at, limit, true, 0)) >= 0; limit = v->row[v->marked[k]].text_bytes - 1) {
                const int32_t id = v->marked[k];
                if (!is_blank(m.text + at, v->row[id].text_bytes)) (*own)[id / 8] |= (uint8_t)(1u << id % 8);
            }
        }
    }
done:
    return rc;
}

/* ---- tokenize ---- */

/* The parts as one text; *owned is to be freed. */
static hl_status join_parts(hl_mem *mem, hl_error *err, const hl_text_part *parts, size_t n_parts, uint32_t flags, marks *m,
                            char **owned, span **trusted)
{
    hl_status rc = HLLM_OK;
    size_t n = 0, untrusted = 0;
    span *t = NULL;
    for (size_t i = 0; i < n_parts; i++) {
        if (hl_add_size(n, parts[i].bytes, &n) != HLLM_OK || n > HL_TOKENIZE_MAX_BYTES)
            return hl_fail(err, HLLM_E_LIMIT, "the text has more than %d bytes", HL_TOKENIZE_MAX_BYTES);
    }
    HL_NEED(*trusted = t = hl_alloc_array(mem, n_parts + 1, sizeof *t));
    m->n = n;
    if (n_parts == 1) m->text = parts[0].text;
    else {
        HL_NEED(m->text = *owned = hl_alloc(mem, n + 1));
        n = 0;
        for (size_t i = 0; i < n_parts; n += parts[i++].bytes) if (parts[i].bytes) memcpy(*owned + n, parts[i].text, parts[i].bytes);
    }
    n = 0;
    for (size_t i = 0; i < n_parts; n += parts[i++].bytes) {
        if (parts[i].bytes == 0) continue;
        if (!parts[i].trusted && !(flags & HLLM_TOKENIZE_PARSE_SPECIAL)) { untrusted++; continue; }
        if (m->n_trusted && t[m->n_trusted - 1].end == n) t[m->n_trusted - 1].end = n + parts[i].bytes;
        else t[m->n_trusted++] = (span){ n, n + parts[i].bytes };
    }
    m->trusted = t;
    m->mixed = m->n_trusted && untrusted;
done:
    return rc;
}

static hl_status tokenize_plain(hl_tokenize_work *w, const char *text, size_t n, bool fresh)
{
    return w->v->spm ? hl_spm_tokenize(w, text, n, fresh && w->v->adds_space) : hl_bpe_tokenize(w, text, n);
}

static hl_status tokenize_all(hl_tokenize_work *w, marks *m, bool add_special)
{
    hl_status rc = HLLM_OK;
    const hl_vocab *v = w->v;
    int32_t bos = v->special[HLLM_SPECIAL_BOS], eos = v->special[HLLM_SPECIAL_EOS];
    bool bos_only = add_special && v->adds_bos, fresh = true;        /* bos_only: nothing but one BOS so far */
    if (bos_only) HL_TRY(hl_work_emit(w, bos));
    for (size_t at = 0; at < m->n;) {
        size_t next = m->heap.n ? (size_t)hl_heap_top(&m->heap)->order : m->n, end = next;
        while (at < next && m->taken && m->taken[at] & TAKEN) at++;      /* swallowed by the token in front */
        if (at < end) {
            HL_TRY(tokenize_plain(w, m->text + at, end - at, fresh));
            fresh = bos_only = false;
            at = end;
        }
        if (m->heap.n) {
            hl_heap_item mark = hl_heap_pop(&m->heap);
            if (!bos_only || mark.id != bos) {
                HL_TRY(hl_work_emit(w, mark.id));
                bos_only = false;
            }
            fresh = true;
            at = next + mark.size;
        }
    }
    if (add_special && v->adds_eos && (w->n_out == 0 || w->out[w->n_out - 1] != eos)) HL_TRY(hl_work_emit(w, eos));
done:
    return rc;
}

hl_status hl_vocab_tokenize(const hl_env *env, hl_error *err, const hl_vocab *v, const hl_text_part *parts, size_t n_parts,
                            uint32_t flags, int32_t *out, size_t cap, size_t *n_out)
{
    return hl_vocab_tokenize_chat(env, err, v, parts, n_parts, NULL, 0, flags, out, cap, n_out);
}

hl_status hl_vocab_tokenize_chat(const hl_env *env, hl_error *err, const hl_vocab *v, const hl_text_part *parts, size_t n_parts,
                                 const hl_text_part *words, size_t n_words, uint32_t flags, int32_t *out, size_t cap, size_t *n_out)
{
    hl_status rc = HLLM_OK;
    hl_tokenize_work w = { .env = env, .mem = env->mem, .v = v };
    marks m = { .v = v };
    char *owned = NULL;
    span *trusted = NULL;
    uint8_t *own = NULL;
    *n_out = 0;
    HL_TRY(join_parts(env->mem, err, parts, n_parts, flags, &m, &owned, &trusted));
    HL_TRY(find_own(env->mem, v, words, n_words, &own));
    m.own = own;
    HL_TRY(find_marks(env, &m));
    HL_TRY(tokenize_all(&w, &m, !(flags & HLLM_TOKENIZE_NO_SPECIAL)));
    *n_out = w.n_out;
    if (w.n_out > cap) rc = HLLM_E_BUFFER;
    else if (w.n_out) memcpy(out, w.out, w.n_out * sizeof *out);
done:
    hl_free(env->mem, w.out);
    hl_free(env->mem, w.sym);
    hl_heap_free(env->mem, &w.heap);
    hl_free(env->mem, w.text);
    hl_free(env->mem, w.cells);
    hl_heap_free(env->mem, &m.heap);
    hl_free(env->mem, m.taken);
    hl_free(env->mem, own);
    hl_free(env->mem, owned);
    hl_free(env->mem, trusted);
    return rc == HLLM_E_NOMEM ? hl_fail(err, rc, "out of memory while tokenizing %zu bytes", m.n) : rc;
}

/* ---- detokenize ---- */

hl_status hl_vocab_detokenize(hl_error *err, const hl_vocab *v, const int32_t *ids, size_t n, uint32_t flags,
                              char *buf, size_t cap, size_t *bytes_out)
{
    size_t total = 0;
    *bytes_out = 0;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= v->n)
            return hl_fail(err, HLLM_E_ARG, "token %zu of %zu is %" PRId32 ", the vocabulary has %u tokens", i, n, ids[i], v->n);
    for (int write = 0; write < 2; write++) {            /* sizes first: nothing is written when it does not fit */
        bool fresh = v->adds_space && !(flags & HLLM_DETOKENIZE_CONTINUE);
        size_t at = 0;
        for (size_t i = 0; i < n; i++) {
            const hl_vocab_token_row *t = &v->row[ids[i]];
            bool control = t->type == HLLM_TOKEN_CONTROL || t->type == HLLM_TOKEN_UNKNOWN;
            if (control && !(flags & HLLM_DETOKENIZE_SPECIAL)) continue;
            const char *s = v->blob + t->piece;
            size_t len = t->piece_bytes;
            bool special = control || t->type == HLLM_TOKEN_USER_DEFINED;
            if (fresh && !special && len && s[0] == ' ') { s++; len--; }     /* the space that tokenizing put there */
            if (write && len) memcpy(buf + at, s, len);
            at += len;
            fresh = special && v->adds_space;    /* after a special token tokenizing puts one too */
        }
        if (!write) {
            *bytes_out = total = at;
            if (total > cap) return HLLM_E_BUFFER;
        }
    }
    return HLLM_OK;
}
