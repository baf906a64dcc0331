/* bpe.c: byte-level BPE ("gpt2"): a text is cut into words (presplit.c), each byte of a word is a symbol, and the pair with the
 * lowest merge rank is merged, again and again.
 *
 * In the file bytes are written as printable characters (the table that GPT-2 began with): bytes 33-126, 161-172, 174-255 as the
 * code point of the same number, the rest as U+0100 onwards in their order.
 */
#include "model/vocab.h"

#include <string.h>

static bool byte_is_itself(unsigned b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; }

/* The character that stands for byte b. */
static uint32_t char_of_byte(unsigned b)
{
    if (byte_is_itself(b)) return b;
    return 256 + (b <= 32 ? b : b <= 160 ? b - 127 + 33 : 33 + 34);  /* 0-32, 127-160, 173 */
}

/* -1: stands for no byte */
static int byte_of_char(uint32_t cp)
{
    if (cp < 256) return byte_is_itself(cp) ? (int)cp : -1;
    cp -= 256;
    return cp < 33 ? (int)cp : cp < 67 ? (int)(cp - 33 + 127) : cp == 67 ? 173 : -1;
}

/* The bytes that a token's text stands for; what stands for none is kept as it is. */
static size_t decode(const char *s, size_t n, char *out)
{
    size_t k = 0;
    for (size_t at = 0; at < n;) {
        uint32_t cp;
        size_t len = hl_utf8_decode(s + at, n - at, &cp);
        int b = cp == UINT32_MAX ? -1 : byte_of_char(cp);
        if (b >= 0) out[k++] = (char)b;
        else { memcpy(out + k, s + at, len); k += len; }
        at += len;
    }
    return k;
}

static size_t encode(const char *s, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) k += hl_utf8_encode(char_of_byte((unsigned char)s[i]), out + k);
    return k;
}

static inline uint64_t pair_hash(const hl_vocab *v, int32_t a, int32_t b)
{
    uint64_t x = ((uint64_t)(uint32_t)a << 32 | (uint32_t)b) ^ v->seed;
    x = (x ^ x >> 32) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 29) * (v->seed | 1);
    return x ^ x >> 32;
}

/* The slot of this pair, or the empty one where it would be. */
static hl_slot *pair_slot(const hl_vocab *v, int32_t a, int32_t b, uint32_t *tag)
{
    uint64_t h = pair_hash(v, a, b);
    *tag = (uint32_t)(h >> 32);
    for (uint32_t i = (uint32_t)h & v->pair_mask;; i = (i + 1) & v->pair_mask) {
        hl_slot *s = &v->by_pair[i];
        if (!s->index) return s;
        if (s->tag == *tag && v->merge[s->index - 1][0] == a && v->merge[s->index - 1][1] == b) return s;
    }
}

static hl_status read_merge(hl_error *err, hl_vocab *v, const char *path, const hl_gguf_key *k, uint32_t i, char *tmp)
{
    const char *s, *gap;
    size_t n;
    uint32_t tag;
    int32_t part[3];
    hl_status rc = hl_gguf_string(k, i, &s, &n);
    if (rc != HLLM_OK) return rc;
    gap = n > 1 ? memchr(s + 1, ' ', n - 1) : NULL;
    if (!gap || gap + 1 == s + n)
        return hl_fail(err, HLLM_E_FORMAT, "%s: merge %u is \"%.*s\", not two parts with a space between", path, i, (int)HL_MIN(n, 64), s);
    size_t n_left = (size_t)(gap - s), n_right = n - n_left - 1;
    part[0] = hl_vocab_find(v, s, n_left);
    part[1] = hl_vocab_find(v, gap + 1, n_right);
    if (part[0] < 0 || part[1] < 0)
        return hl_fail(err, HLLM_E_FORMAT, "%s: merge %u is \"%.*s\", its %s part is not in the vocabulary", path, i, (int)HL_MIN(n, 64), s,
                       part[0] < 0 ? "first" : "second");
    if (n - 1 > HL_VOCAB_MAX_TEXT) return hl_fail(err, HLLM_E_LIMIT, "%s: merge %u has %zu bytes, the limit is %d", path, i, n, HL_VOCAB_MAX_TEXT);
    memcpy(tmp, s, n_left);
    memcpy(tmp + n_left, gap + 1, n_right);
    part[2] = hl_vocab_find(v, tmp, n - 1);
    if (part[2] < 0) return hl_fail(err, HLLM_E_FORMAT, "%s: merge %u is \"%.*s\", its result is not in the vocabulary", path, i, (int)HL_MIN(n, 64), s);
    hl_slot *slot = pair_slot(v, part[0], part[1], &tag);
    if (slot->index) return hl_fail(err, HLLM_E_FORMAT, "%s: merges %u and %u are both \"%.*s\"", path, slot->index - 1, i, (int)HL_MIN(n, 64), s);
    memcpy(v->merge[i], part, sizeof part);
    const hl_vocab_token_row *left = &v->row[part[0]], *right = &v->row[part[1]];
    char border[2] = { v->blob[left->piece + left->piece_bytes - 1], v->blob[right->piece] };
    hl_vocab_note_join(v, border, 1);
    *slot = (hl_slot){ tag, i + 1 };
    return HLLM_OK;
}

static hl_status read_merges(const hl_env *env, hl_error *err, hl_vocab *v, const hl_gguf *g, char *tmp)
{
    hl_status rc = HLLM_OK;
    const char *path = hl_gguf_path(g);
    const hl_gguf_key *k = hl_gguf_find_key(g, "tokenizer.ggml.merges");
    uint32_t slots = 64;
    if (!k) return hl_fail(err, HLLM_E_FORMAT, "%s: key tokenizer.ggml.merges is missing", path);
    if (k->type != HLLM_VALUE_ARRAY || k->elem != HLLM_VALUE_STRING)
        return hl_fail(err, HLLM_E_FORMAT, "%s: key tokenizer.ggml.merges is no array of strings", path);
    if (k->n == 0) return hl_fail(err, HLLM_E_FORMAT, "%s: key tokenizer.ggml.merges is empty", path);
    if (k->n > HL_VOCAB_MAX_TOKENS)
        return hl_fail(err, HLLM_E_LIMIT, "%s: %llu merges, the limit is %d", path, (unsigned long long)k->n, HL_VOCAB_MAX_TOKENS);
    v->n_merges = (uint32_t)k->n;
    while (slots < v->n_merges + v->n_merges / 2) slots *= 2;
    HL_NEED(v->merge = hl_alloc_array(env->mem, v->n_merges, sizeof *v->merge));
    HL_NEED(v->by_pair = hl_alloc_array(env->mem, slots, sizeof *v->by_pair));
    v->pair_mask = slots - 1;
    for (uint32_t i = 0; i < v->n_merges; i++) {
        HL_TRY(hl_env_go_on(env));
        HL_TRY(read_merge(err, v, path, k, i, tmp));
    }
done:
    return rc;
}

hl_status hl_bpe_init(const hl_env *env, hl_error *err, hl_vocab *v, const hl_gguf *g)
{
    hl_status rc = HLLM_OK;
    char *tmp = NULL;
    uint32_t found = 0;
    HL_NEED(tmp = hl_alloc(env->mem, HL_VOCAB_MAX_TEXT + 1));
    for (unsigned b = 0; b < 256; b++) {
        char name[4];
        int32_t id = hl_vocab_find(v, name, hl_utf8_encode(char_of_byte(b), name));
        /* Not the added tokens of some files whose texts look like the bytes that UTF-8 never has. */
        if (id >= 0 && v->row[id].type != HLLM_TOKEN_NORMAL && v->row[id].type != HLLM_TOKEN_BYTE) id = -1;
        v->byte_id[b] = id;
        found += id >= 0;
    }
    if (!found) return hl_free(env->mem, tmp), hl_fail(err, HLLM_E_FORMAT, "%s: none of the 256 byte tokens is there", hl_gguf_path(g));
    for (uint32_t i = 0; i < v->n; i++) {
        const hl_vocab_token_row *t = &v->row[i];
        HL_TRY(hl_env_go_on(env));
        if (t->type != HLLM_TOKEN_NORMAL && t->type != HLLM_TOKEN_BYTE && t->type != HLLM_TOKEN_UNUSED) continue;
        if (t->text_bytes > v->max_text) v->max_text = t->text_bytes;
        size_t n = decode(v->blob + t->text, t->text_bytes, tmp);
        if (n != t->text_bytes || memcmp(tmp, v->blob + t->text, n) != 0) HL_TRY(hl_vocab_piece(env->mem, v, i, tmp, n));
    }
    HL_TRY(read_merges(env, err, v, g, tmp));
done:
    hl_free(env->mem, tmp);
    return rc;
}

static bool find_pair(const hl_vocab *v, const char *text, const hl_symbol *a, const hl_symbol *b, uint32_t *rank, int32_t *id)
{
    (void)text;
    uint32_t tag;
    if (a->id < 0 || b->id < 0) return false;
    const hl_slot *s = pair_slot(v, a->id, b->id, &tag);
    if (!s->index) return false;
    *rank = s->index - 1;
    *id = v->merge[s->index - 1][2];
    return true;
}

/* The byte at text[0..left).  Some vocabularies have no token for bytes that UTF-8 never or hardly has, and for some control
 * characters: in a text that is UTF-8 such a byte gives nothing, as in llama.cpp; else it becomes U+FFFD. */
static hl_status emit_byte(hl_tokenize_work *w, const char *text, size_t left)
{
    static const unsigned char replacement[] = { 0xef, 0xbf, 0xbd };
    hl_status rc = HLLM_OK;
    const hl_vocab *v = w->v;
    int32_t id = v->byte_id[(unsigned char)*text];
    uint32_t cp;
    if (id >= 0) return hl_work_emit(w, id);
    hl_utf8_decode(text, left, &cp);
    for (size_t i = 0; cp == UINT32_MAX && i < 3; i++)
        if (v->byte_id[replacement[i]] >= 0) HL_TRY(hl_work_emit(w, v->byte_id[replacement[i]]));
done:
    return rc;
}

static hl_status emit_symbol(hl_tokenize_work *w, const char *text, size_t left, const hl_symbol *s)
{
    hl_status rc = HLLM_OK;
    if (s->id >= 0 && hl_vocab_mergeable(w->v, s->id)) return hl_work_emit(w, s->id);
    for (uint32_t i = 0; i < s->n; i++) HL_TRY(emit_byte(w, text + i, left - i));
done:
    return rc;
}

typedef struct bpe_text { hl_tokenize_work *w; const char *text; size_t at; } bpe_text;

static hl_status tokenize_word(void *user, const hl_cell *cells, size_t n_cells)
{
    hl_status rc = HLLM_OK;
    bpe_text *x = user;
    hl_tokenize_work *w = x->w;
    const hl_vocab *v = w->v;
    const char *word = x->text + x->at;
    size_t n = 0;
    for (size_t i = 0; i < n_cells; i++) n += hl_cell_bytes(cells[i]);
    x->at += n;
    if (v->ignore_merges && n <= v->max_text) {
        HL_TRY(hl_grow(w->mem, &w->text, &w->cap_text, 2 * n, 1));
        int32_t id = hl_vocab_find(v, w->text, encode(word, n, w->text));
        if (id >= 0 && hl_vocab_mergeable(v, id)) return hl_work_emit(w, id);
    }
    for (size_t at = 0, end = 0; at < n; at = end) {
        w->n_sym = 0;
        do HL_TRY(hl_work_symbol(w, 1, v->byte_id[(unsigned char)word[end++]]));
        while (end < n && hl_vocab_joined(v, word, end));
        if (w->n_sym > 1) HL_TRY(hl_merge(w, word + at, find_pair));
        for (size_t i = 0; i < w->n_sym; i += w->sym[i].n) HL_TRY(emit_symbol(w, word + at + i, n - at - i, &w->sym[i]));
    }
done:
    return rc;
}

hl_status hl_bpe_tokenize(hl_tokenize_work *w, const char *text, size_t n)
{
    hl_status rc = HLLM_OK;
    bpe_text x = { w, text, 0 };
    HL_TRY(hl_grow(w->mem, &w->cells, &w->cap_cells, n, sizeof *w->cells));
    HL_TRY(hl_presplit(w->v->splitter, w->cells, hl_cells_from_text(text, n, w->cells), tokenize_word, &x));
done:
    return rc;
}
