/* spm.c: SentencePiece-like vocabularies ("llama"): spaces become U+2581, then the pair whose token has the highest score is
 * merged, again and again; characters that are no token become byte tokens.
 *
 * A text is first cut where no token of the vocabulary can reach across (hl_vocab_joined).
 */
#include "model/vocab.h"

#include <string.h>

static const char lower_block[] = "\xe2\x96\x81";     /* U+2581 stands for a space */

/* "<0x0A>" -> 10; -1: not of this form */
static int byte_of_text(const char *s, size_t n)
{
    int value = 0;
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    for (size_t i = 3; i < 5; i++) {
        int d = s[i] >= '0' && s[i] <= '9' ? s[i] - '0' : s[i] >= 'A' && s[i] <= 'F' ? s[i] - 'A' + 10 :
                s[i] >= 'a' && s[i] <= 'f' ? s[i] - 'a' + 10 : -1;
        if (d < 0) return -1;
        value = value * 16 + d;
    }
    return value;
}

static hl_status read_bytes(hl_error *err, hl_vocab *v, const char *path)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        const hl_vocab_token_row *t = &v->row[i];
        if (t->type != HLLM_TOKEN_BYTE) continue;
        int b = byte_of_text(v->blob + t->text, t->text_bytes);
        if (b < 0) return hl_fail(err, HLLM_E_FORMAT, "%s: token %u is a byte token, but its text is \"%.32s\" (<0x00> to <0xFF> are known)",
                                  path, i, v->blob + t->text);
        if (v->byte_id[b] >= 0) return hl_fail(err, HLLM_E_FORMAT, "%s: tokens %d and %u both stand for byte 0x%02X", path, v->byte_id[b], i, (unsigned)b);
        v->byte_id[b] = (int32_t)i;
        found++;
    }
    for (unsigned b = 0; b < 256; b++) {         /* files without token types */
        static const char hex[] = "0123456789ABCDEF";
        char name[6] = { '<', '0', 'x', hex[b >> 4], hex[b & 15], '>' }, self = (char)b;
        if (v->byte_id[b] < 0) v->byte_id[b] = hl_vocab_find(v, name, 6);
        if (v->byte_id[b] >= 0) { v->row[v->byte_id[b]].type = HLLM_TOKEN_BYTE; found++; }
        else v->byte_id[b] = hl_vocab_find(v, &self, 1);
        if (v->byte_id[b] < 0) v->byte_id[b] = v->special[HLLM_SPECIAL_UNK];
    }
    if (!found) return hl_fail(err, HLLM_E_FORMAT, "%s: none of the 256 byte tokens <0x00> to <0xFF> is there", path);
    return HLLM_OK;
}

/* The text with spaces for U+2581. */
static size_t unescape(const char *s, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        if (n - i >= 3 && memcmp(s + i, lower_block, 3) == 0) { out[k++] = ' '; i += 3; }
        else out[k++] = s[i++];
    }
    return k;
}

static void note_joins(hl_vocab *v, const char *s, size_t n)
{
    uint32_t cp;
    if (n) for (size_t at = hl_utf8_decode(s, n, &cp); at < n; at += hl_utf8_decode(s + at, n - at, &cp)) hl_vocab_note_join(v, s, at);
}

hl_status hl_spm_init(const hl_env *env, hl_error *err, hl_vocab *v, const hl_gguf *g)
{
    hl_status rc = HLLM_OK;
    char *tmp = NULL;
    HL_NEED(tmp = hl_alloc(env->mem, HL_VOCAB_MAX_TEXT));
    HL_TRY(read_bytes(err, v, hl_gguf_path(g)));
    for (uint32_t i = 0; i < v->n; i++) {
        const hl_vocab_token_row *t = &v->row[i];
        const char *text = v->blob + t->text;
        HL_TRY(hl_env_go_on(env));
        if (t->type == HLLM_TOKEN_BYTE) {
            char b = (char)byte_of_text(text, t->text_bytes);
            HL_TRY(hl_vocab_piece(env->mem, v, i, &b, 1));
            continue;
        }
        if (!hl_vocab_mergeable(v, (int32_t)i)) continue;            /* control tokens: the text itself */
        if (t->text_bytes > v->max_text) v->max_text = t->text_bytes;
        note_joins(v, text, t->text_bytes);
        size_t n = unescape(text, t->text_bytes, tmp);
        if (n != t->text_bytes) HL_TRY(hl_vocab_piece(env->mem, v, i, tmp, n));
    }
done:
    hl_free(env->mem, tmp);
    return rc;
}

static bool find_pair(const hl_vocab *v, const char *text, const hl_symbol *a, const hl_symbol *b, uint32_t *rank, int32_t *id)
{
    size_t n = (size_t)a->n + b->n;
    uint32_t bits;
    if (n > v->max_text) return false;
    int32_t t = hl_vocab_find(v, text, n);
    if (t < 0 || !hl_vocab_mergeable(v, t)) return false;
    float score = v->row[t].score + 0.0f;        /* -0 becomes 0: they are the same score */
    memcpy(&bits, &score, sizeof bits);
    *rank = ~(bits >> 31 ? ~bits : bits | 0x80000000u);              /* the order of floats, highest first */
    *id = t;
    return true;
}

static hl_status emit_symbol(hl_tokenize_work *w, const char *text, const hl_symbol *s)
{
    hl_status rc = HLLM_OK;
    int32_t id = s->id >= 0 ? s->id : hl_vocab_find(w->v, text, s->n);
    if (id >= 0 && (s->id >= 0 || hl_vocab_mergeable(w->v, id))) return hl_work_emit(w, id);
    for (uint32_t i = 0; i < s->n; i++) {
        int32_t b = w->v->byte_id[(unsigned char)text[i]];
        if (b >= 0) HL_TRY(hl_work_emit(w, b));
    }
done:
    return rc;
}

hl_status hl_spm_tokenize(hl_tokenize_work *w, const char *text, size_t n, bool prefix)
{
    hl_status rc = HLLM_OK;
    size_t k = 0, n_spaces = prefix;
    for (size_t i = 0; i < n; i++) n_spaces += text[i] == ' ';
    HL_TRY(hl_grow(w->mem, &w->text, &w->cap_text, n + 3 * n_spaces, 1));
    if (prefix) { memcpy(w->text, lower_block, 3); k = 3; }
    for (size_t i = 0; i < n; i++) {
        if (text[i] == ' ') { memcpy(w->text + k, lower_block, 3); k += 3; }
        else w->text[k++] = text[i];
    }
    for (size_t at = 0, end; at < k; at = end) {
        w->n_sym = 0;
        end = at;
        do {
            uint32_t cp;
            size_t len = hl_utf8_decode(w->text + end, k - end, &cp);
            HL_TRY(hl_work_symbol(w, (uint32_t)len, -1));
            end += len;
        } while (end < k && hl_vocab_joined(w->v, w->text, end));
        HL_TRY(hl_merge(w, w->text + at, find_pair));
        for (size_t i = 0; i < w->n_sym; i += w->sym[i].n) HL_TRY(emit_symbol(w, w->text + at + i, &w->sym[i]));
    }
done:
    return rc;
}
