/* vocab.c: reads tokenizer.ggml.* into an hl_vocab.
 *
 * Refused (HLLM_E_FORMAT, naming file, key or token, and value): arrays of the wrong type or length, two tokens with one text,
 * special ids outside the vocabulary, bad byte tokens and merges; (HLLM_E_LIMIT) more than 4,194,303 tokens or a text of more than
 * 1 MiB; (HLLM_E_UNSUPPORTED) unknown kinds and pre-splitters.  Which tokens end a generation is a matter of ids and of texts, as
 * model files rarely name them all.
 */
#include "model/vocab.h"

#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#define KEY(name) "tokenizer.ggml." name

/* ---- tables ---- */

/* Texts of tokens that end a generation; the first ones also serve as end of turn when the file names none. */
static const char *const end_texts[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]",
    ("<\xef\xbd\x9c" "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"), "<end_of_utterance>",
    "<|eom_id|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "[EOS]", "<eos>", "<turn|>", "<|tool_response>", "[e~["
};
enum { N_TURN_TEXTS = 11 };

/* Texts of tokens for filling in the middle; those of the last three rows end a generation. */
static const char *const fill_texts[][9] = {
    { "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", ("<\xef\xbd\x9c" "fim\xe2\x96\x81" "begin\xef\xbd\x9c>"), "<PRE>", "\xe2\x96\x81<PRE>", "<|code_prefix|>", "<|prefix|>" },
    { "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", ("<\xef\xbd\x9c" "fim\xe2\x96\x81hole\xef\xbd\x9c>"), "<SUF>", "\xe2\x96\x81<SUF>", "<|code_suffix|>", "<|suffix|>" },
    { "<|fim_middle|>", "<fim-middle>", "<fim_middle>", ("<\xef\xbd\x9c" "fim\xe2\x96\x81" "end\xef\xbd\x9c>"), "<MID>", "\xe2\x96\x81<MID>", "<|code_middle|>", "<|middle|>" },
    { "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]" },
    { "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>" },
    { "<|file_sep|>" },
};
static const char *const fill_keys[] = {
    KEY("fim_pre_token_id"), KEY("fim_suf_token_id"), KEY("fim_mid_token_id"), KEY("fim_pad_token_id"), KEY("fim_rep_token_id"), KEY("fim_sep_token_id")
};
enum { FIRST_ENDING_FILL = 3 };

/* ---- lookup by text ---- */

static hl_slot *text_slot(const hl_vocab *v, const char *text, size_t bytes, uint32_t *tag)
{
    uint64_t h = hl_hash(text, bytes, v->seed);
    *tag = (uint32_t)(h >> 32);
    for (uint32_t i = (uint32_t)h & v->text_mask;; i = (i + 1) & v->text_mask) {
        hl_slot *s = &v->by_text[i];
        if (!s->index) return s;
        const hl_vocab_token_row *t = &v->row[s->index - 1];
        if (s->tag == *tag && t->text_bytes == bytes && memcmp(v->blob + t->text, text, bytes) == 0) return s;
    }
}

int32_t hl_vocab_find(const hl_vocab *v, const char *text, size_t bytes)
{
    uint32_t tag;
    return bytes ? (int32_t)text_slot(v, text, bytes, &tag)->index - 1 : -1;
}

static int32_t find_z(const hl_vocab *v, const char *text) { return hl_vocab_find(v, text, strlen(text)); }

/* ---- arrays ---- */

static hl_status blob_append(hl_mem *mem, hl_vocab *v, const char *s, size_t bytes, uint32_t *at)
{
    if (v->blob_bytes + bytes + 1 > UINT32_MAX) return HLLM_E_LIMIT;
    if (hl_grow(mem, &v->blob, &v->blob_cap, v->blob_bytes + bytes + 1, 1) != HLLM_OK) return HLLM_E_NOMEM;
    *at = (uint32_t)v->blob_bytes;
    memcpy(v->blob + v->blob_bytes, s, bytes);
    v->blob[v->blob_bytes + bytes] = 0;
    v->blob_bytes += bytes + 1;
    return HLLM_OK;
}

hl_status hl_vocab_piece(hl_mem *mem, hl_vocab *v, uint32_t id, const char *piece, size_t bytes)
{
    v->row[id].piece_bytes = (uint32_t)bytes;
    return blob_append(mem, v, piece, bytes, &v->row[id].piece);
}

static hl_status array_key(hl_error *err, const hl_gguf *g, const char *name, uint64_t n, const hl_gguf_key **out)
{
    const hl_gguf_key *k = *out = hl_gguf_find_key(g, name);
    if (!k) return HLLM_OK;
    if (k->type != HLLM_VALUE_ARRAY) return hl_fail(err, HLLM_E_FORMAT, "%s: key %s is no array", hl_gguf_path(g), name);
    if (k->n != n) return hl_fail(err, HLLM_E_FORMAT, "%s: key %s has %" PRIu64 " elements for %" PRIu64 " tokens", hl_gguf_path(g), name, k->n, n);
    return HLLM_OK;
}

static hl_status read_texts(const hl_env *env, hl_error *err, hl_vocab *v, const hl_gguf *g)
{
    hl_status rc = HLLM_OK;
    const char *path = hl_gguf_path(g), *s;
    const hl_gguf_key *k = hl_gguf_find_key(g, KEY("tokens"));
    uint32_t slots = 64, tag;
    size_t n, bytes = 0;
    if (!k) return hl_fail(err, HLLM_E_FORMAT, "%s: key " KEY("tokens") " is missing", path);
    if (k->type != HLLM_VALUE_ARRAY || k->elem != HLLM_VALUE_STRING)
        return hl_fail(err, HLLM_E_FORMAT, "%s: key " KEY("tokens") " is no array of strings", path);
    if (k->n < 2) return hl_fail(err, HLLM_E_FORMAT, "%s: key " KEY("tokens") " has %" PRIu64 " tokens, at least 2 are needed", path, k->n);
    if (k->n > HL_VOCAB_MAX_TOKENS)
        return hl_fail(err, HLLM_E_LIMIT, "%s: key " KEY("tokens") " has %" PRIu64 " tokens, the limit is %d", path, k->n, HL_VOCAB_MAX_TOKENS);
    v->n = (uint32_t)k->n;
    while (slots < v->n + v->n / 2) slots *= 2;
    v->text_mask = slots - 1;
    HL_NEED(v->row = hl_alloc_array(env->mem, v->n, sizeof *v->row));
    HL_NEED(v->by_text = hl_alloc_array(env->mem, slots, sizeof *v->by_text));
    for (uint32_t i = 0; i < v->n; i++) {
        HL_TRY(hl_gguf_string(k, i, &s, &n));
        if (n > HL_VOCAB_MAX_TEXT) {
            rc = hl_fail(err, HLLM_E_LIMIT, "%s: token %u has a text of %zu bytes, the limit is %d", path, i, n, HL_VOCAB_MAX_TEXT);
            goto done;
        }
        bytes += n + 1;
    }
    HL_TRY(hl_grow(env->mem, &v->blob, &v->blob_cap, bytes + bytes / 2, 1));
    for (uint32_t i = 0; i < v->n; i++) {
        hl_vocab_token_row *t = &v->row[i];
        HL_TRY(hl_env_go_on(env));
        HL_TRY(hl_gguf_string(k, i, &s, &n));
        HL_TRY(blob_append(env->mem, v, s, n, &t->text));
        t->text_bytes = (uint32_t)n;
        t->piece = t->text;
        t->piece_bytes = t->text_bytes;
        t->type = HLLM_TOKEN_NORMAL;
        if (n == 0) continue;                    /* never found by text */
        hl_slot *slot = text_slot(v, s, n, &tag);
        if (slot->index) {
            rc = hl_fail(err, HLLM_E_FORMAT, "%s: tokens %u and %u have the same text \"%.*s\"", path, slot->index - 1, i, (int)HL_MIN(n, 64), s);
            goto done;
        }
        *slot = (hl_slot){ tag, i + 1 };
    }
done:
    return rc;
}

static hl_status read_scores_and_types(hl_error *err, hl_vocab *v, const hl_gguf *g)
{
    hl_status rc = HLLM_OK;
    const char *path = hl_gguf_path(g);
    const hl_gguf_key *k;
    HL_TRY(array_key(err, g, KEY("scores"), v->n, &k));
    if (!k && v->spm) return hl_fail(err, HLLM_E_FORMAT, "%s: key " KEY("scores") " is missing", path);
    if (k && k->elem != HLLM_VALUE_F32 && k->elem != HLLM_VALUE_I32)
        return hl_fail(err, HLLM_E_FORMAT, "%s: key " KEY("scores") " has elements of type %s, not FLOAT32", path, hl_gguf_type_name(k->elem));
    for (uint32_t i = 0; k && i < v->n; i++) {
        double x;
        int64_t whole;
        if (k->elem == HLLM_VALUE_F32) HL_TRY(hl_gguf_float(k, i, &x));
        else { HL_TRY(hl_gguf_int(k, i, &whole)); x = (double)whole; }
        if (x != x) return hl_fail(err, HLLM_E_FORMAT, "%s: the score of token %u is no number", path, i);
        v->row[i].score = (float)x;
    }
    HL_TRY(array_key(err, g, KEY("token_type"), v->n, &k));
    if (k && k->elem != HLLM_VALUE_I32 && k->elem != HLLM_VALUE_U32)
        return hl_fail(err, HLLM_E_FORMAT, "%s: key " KEY("token_type") " has elements of type %s, not INT32", path, hl_gguf_type_name(k->elem));
    for (uint32_t i = 0; k && i < v->n; i++) {
        int64_t type;
        HL_TRY(hl_gguf_int(k, i, &type));
        if (type < 0 || type > HLLM_TOKEN_BYTE)
            return hl_fail(err, HLLM_E_FORMAT, "%s: token %u has type %" PRId64 ", 1 to %d are known", path, i, type, HLLM_TOKEN_BYTE);
        v->row[i].type = (uint8_t)(type ? type : HLLM_TOKEN_NORMAL);     /* 0: undefined, some converters write it */
    }
done:
    return rc;
}

/* ---- ids and switches ---- */

/* An absent key leaves *id as it is. */
static hl_status read_id(hl_error *err, const hl_vocab *v, const hl_gguf *g, const char *name, int32_t *id)
{
    const hl_gguf_key *k = hl_gguf_find_key(g, name);
    int64_t x;
    if (!k) return HLLM_OK;
    if (k->type == HLLM_VALUE_ARRAY || hl_gguf_int(k, 0, &x) != HLLM_OK)
        return hl_fail(err, HLLM_E_FORMAT, "%s: key %s is no integer", hl_gguf_path(g), name);
    if (x < 0 || x >= v->n) return hl_fail(err, HLLM_E_FORMAT, "%s: key %s is %" PRId64 ", the vocabulary has %u tokens", hl_gguf_path(g), name, x, v->n);
    *id = (int32_t)x;
    return HLLM_OK;
}

static hl_status read_switch(hl_error *err, const hl_gguf *g, const char *name, bool *on)
{
    const hl_gguf_key *k = hl_gguf_find_key(g, name);
    if (!k) return HLLM_OK;
    if (k->type == HLLM_VALUE_ARRAY || hl_gguf_bool(k, 0, on) != HLLM_OK)
        return hl_fail(err, HLLM_E_FORMAT, "%s: key %s is no BOOL", hl_gguf_path(g), name);
    return HLLM_OK;
}

/* *text stays NULL when the key is absent. */
static hl_status read_text(hl_error *err, const hl_gguf *g, const char *name, const char **text, size_t *bytes)
{
    const hl_gguf_key *k = hl_gguf_find_key(g, name);
    *text = NULL;
    *bytes = 0;
    if (!k) return HLLM_OK;
    if (k->type == HLLM_VALUE_ARRAY || hl_gguf_string(k, 0, text, bytes) != HLLM_OK)
        return hl_fail(err, HLLM_E_FORMAT, "%s: key %s is no string", hl_gguf_path(g), name);
    return HLLM_OK;
}

static bool text_is(const char *s, size_t n, const char *z) { return n == strlen(z) && memcmp(s, z, n) == 0; }

static hl_status read_kind(const hl_env *env, hl_error *err, hl_vocab *v, const hl_gguf *g, uint32_t *split_flags)
{
    hl_status rc = HLLM_OK;
    const char *path = hl_gguf_path(g), *s;
    size_t n;
    *split_flags = 0;
    HL_TRY(read_text(err, g, KEY("model"), &s, &n));
    if (!s) return hl_fail(err, HLLM_E_FORMAT, "%s: key " KEY("model") " is missing", path);
    if (text_is(s, n, "llama")) v->spm = v->adds_bos = v->adds_space = true;
    else if (!text_is(s, n, "gpt2"))
        return hl_fail(err, HLLM_E_UNSUPPORTED, "%s: " KEY("model") " is \"%.*s\", known are llama (SPM) and gpt2 (BPE)", path, (int)HL_MIN(n, 64), s);
    HL_TRY(read_text(err, g, KEY("pre"), &s, &n));
    if (v->spm) return HLLM_OK;
    if (!s) {
        hl_log_write(env->log, HLLM_LOG_WARNING, "%s: key " KEY("pre") " is missing: the text is split as for \"default\", the model may expect another way",
                     path);
        s = "default";
        n = strlen(s);
    }
    v->splitter = hl_splitter_find(s, n, split_flags);
    if (!v->splitter) {
        char names[900];
        hl_splitter_names(names, sizeof names);
        return hl_fail(err, HLLM_E_UNSUPPORTED, "%s: " KEY("pre") " is \"%.*s\", known are %s", path, (int)HL_MIN(n, 64), s, names);
    }
    v->ignore_merges = (*split_flags & HL_SPLIT_IGNORE_MERGES) != 0;
    v->adds_bos = (*split_flags & HL_SPLIT_ADD_BOS) != 0;
done:
    return rc;
}

static void mark_control(hl_vocab *v, int32_t id, bool ends)
{
    if (id < 0) return;
    v->row[id].type = HLLM_TOKEN_CONTROL;        /* some files call them normal: their text must not be forged either */
    if (ends) v->row[id].flags |= HL_TOKEN_ENDS;
}

static void unmark_end(hl_vocab *v, const char *text)
{
    int32_t id = find_z(v, text);
    if (id >= 0) v->row[id].flags &= (uint8_t)~HL_TOKEN_ENDS;
}

static hl_status read_specials(const hl_env *env, hl_error *err, hl_vocab *v, const hl_gguf *g, uint32_t split_flags)
{
    hl_status rc = HLLM_OK;
    int32_t *sp = v->special, eom = -1;
    for (size_t i = 0; i < HL_COUNT(v->special); i++) sp[i] = -1;
    if (v->spm) {                                /* what old files without these keys mean */
        sp[HLLM_SPECIAL_UNK] = 0;
        sp[HLLM_SPECIAL_BOS] = 1;
        if (v->n > 2) sp[HLLM_SPECIAL_EOS] = 2;
    } else if (v->n > 11 && v->row[11].type == HLLM_TOKEN_CONTROL) {
        if (!(split_flags & HL_SPLIT_NO_BOS)) sp[HLLM_SPECIAL_BOS] = 11;
        sp[HLLM_SPECIAL_EOS] = 11;
    }
    HL_TRY(read_id(err, v, g, KEY("bos_token_id"), &sp[HLLM_SPECIAL_BOS]));
    HL_TRY(read_id(err, v, g, KEY("eos_token_id"), &sp[HLLM_SPECIAL_EOS]));
    HL_TRY(read_id(err, v, g, KEY("eot_token_id"), &sp[HLLM_SPECIAL_EOT]));
    HL_TRY(read_id(err, v, g, KEY("unknown_token_id"), &sp[HLLM_SPECIAL_UNK]));
    HL_TRY(read_id(err, v, g, KEY("padding_token_id"), &sp[HLLM_SPECIAL_PAD]));
    HL_TRY(read_id(err, v, g, KEY("eom_token_id"), &eom));
    HL_TRY(read_switch(err, g, KEY("add_bos_token"), &v->adds_bos));
    HL_TRY(read_switch(err, g, KEY("add_eos_token"), &v->adds_eos));
    bool adds_space = v->adds_space;
    HL_TRY(read_switch(err, g, KEY("add_space_prefix"), &adds_space));
    if (v->spm) v->adds_space = adds_space;      /* means nothing to byte-level BPE */

    for (size_t i = 0; i < HL_COUNT(fill_keys); i++) {
        int32_t id = -1;
        HL_TRY(read_id(err, v, g, fill_keys[i], &id));
        if (id >= 0) { if (i >= FIRST_ENDING_FILL) v->row[id].flags |= HL_TOKEN_ENDS; continue; }
        for (size_t k = 0; k < HL_COUNT(fill_texts[i]) && fill_texts[i][k] && id < 0; k++) id = find_z(v, fill_texts[i][k]);
        mark_control(v, id, i >= FIRST_ENDING_FILL);
    }
    for (size_t i = 0; i < HL_COUNT(end_texts); i++) {
        int32_t id = find_z(v, end_texts[i]);
        mark_control(v, id, true);
        if (i < N_TURN_TEXTS && sp[HLLM_SPECIAL_EOT] < 0) sp[HLLM_SPECIAL_EOT] = id;
    }
    if (sp[HLLM_SPECIAL_EOS] >= 0) v->row[sp[HLLM_SPECIAL_EOS]].flags |= HL_TOKEN_ENDS;
    if (sp[HLLM_SPECIAL_EOT] >= 0) v->row[sp[HLLM_SPECIAL_EOT]].flags |= HL_TOKEN_ENDS;
    if (eom >= 0) v->row[eom].flags |= HL_TOKEN_ENDS;
    /* In these vocabularies <|end|> ends a message, not the answer, and </s> is a word. */
    if ((find_z(v, "<|return|>") >= 0 && (find_z(v, "<|call|>") >= 0 || find_z(v, "<|calls|>") >= 0)) ||
        (find_z(v, "<|flush|>") >= 0 && (find_z(v, "<|call|>") >= 0 || find_z(v, "<|calls|>") >= 0))) unmark_end(v, "<|end|>");
    if (find_z(v, "<|tool_response>") >= 0) unmark_end(v, "</s>");

    if (v->adds_bos && sp[HLLM_SPECIAL_BOS] < 0) {
        hl_log_write(env->log, HLLM_LOG_WARNING, "%s: the model asks for BOS, but its vocabulary names none", hl_gguf_path(g));
        v->adds_bos = false;
    }
    if (v->adds_eos && sp[HLLM_SPECIAL_EOS] < 0) v->adds_eos = false;
done:
    return rc;
}

/* A key of another kind of vocabulary, unused here; a damaged one is refused all the same. */
static hl_status check_charsmap(hl_error *err, const hl_gguf *g)
{
    const hl_gguf_key *k = hl_gguf_find_key(g, KEY("precompiled_charsmap"));
    if (!k) return HLLM_OK;
    if (k->type != HLLM_VALUE_ARRAY || (k->elem != HLLM_VALUE_U8 && k->elem != HLLM_VALUE_I8))
        return hl_fail(err, HLLM_E_FORMAT, "%s: key " KEY("precompiled_charsmap") " is no array of bytes", hl_gguf_path(g));
    uint64_t trie = k->n < 4 ? 0 : (uint64_t)k->data[0] | (uint64_t)k->data[1] << 8 | (uint64_t)k->data[2] << 16 | (uint64_t)k->data[3] << 24;
    if (k->n < 4 || trie % 4 || trie + 4 >= k->n || k->data[k->n - 1] != 0)
        return hl_fail(err, HLLM_E_FORMAT, "%s: key " KEY("precompiled_charsmap") " has %" PRIu64 " bytes, its trie %" PRIu64 ", and must end in NUL",
                       hl_gguf_path(g), k->n, trie);
    return HLLM_OK;
}

/* ---- tokens that are looked for in texts ---- */

static int compare_text(const hl_vocab *v, int32_t a, int32_t b)
{
    const hl_vocab_token_row *x = &v->row[a], *y = &v->row[b];
    int c = memcmp(v->blob + x->text, v->blob + y->text, HL_MIN(x->text_bytes, y->text_bytes));
    return c ? c : x->text_bytes < y->text_bytes ? -1 : x->text_bytes > y->text_bytes;
}

/* Longest first, then by id. */
static int compare_rank(const hl_vocab *v, int32_t a, int32_t b)
{
    const hl_vocab_token_row *x = &v->row[a], *y = &v->row[b];
    return x->text_bytes != y->text_bytes ? (x->text_bytes > y->text_bytes ? -1 : 1) : a < b ? -1 : a > b;
}

/* Bottom-up merge sort: no recursion, and the same time whatever the file holds. */
static void sort_ids(const hl_vocab *v, int32_t *ids, int32_t *tmp, size_t n, int (*cmp)(const hl_vocab *, int32_t, int32_t))
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = HL_MIN(lo + width, n), hi = HL_MIN(lo + 2 * width, n), a = lo, b = mid;
            for (size_t k = lo; k < hi; k++)
                tmp[k] = a < mid && (b == hi || cmp(v, ids[a], ids[b]) <= 0) ? ids[a++] : ids[b++];
        }
        memcpy(ids, tmp, n * sizeof *ids);
    }
}

static hl_status collect_marked(const hl_env *env, hl_error *err, hl_vocab *v, const char *path)
{
    hl_status rc = HLLM_OK;
    int32_t *tmp = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->n; i++) n += v->row[i].type >= HLLM_TOKEN_UNKNOWN && v->row[i].type <= HLLM_TOKEN_USER_DEFINED;
    HL_NEED(v->marked = hl_alloc_array(env->mem, n + 1, sizeof *v->marked));
    HL_NEED(v->marked_by_rank = hl_alloc_array(env->mem, n + 1, sizeof *v->marked_by_rank));
    HL_NEED(v->marked_rank = hl_alloc_array(env->mem, n + 1, sizeof *v->marked_rank));
    HL_NEED(tmp = hl_alloc_array(env->mem, n + 1, sizeof *tmp));
    for (uint32_t i = 0; i < v->n; i++) {
        const hl_vocab_token_row *t = &v->row[i];
        if (t->type < HLLM_TOKEN_UNKNOWN || t->type > HLLM_TOKEN_USER_DEFINED || t->text_bytes == 0) continue;
        if (t->text_bytes > HL_VOCAB_MAX_SPECIAL_TEXT) {
            rc = hl_fail(err, HLLM_E_LIMIT, "%s: special token %u has a text of %u bytes, the limit is %d", path, i, t->text_bytes, HL_VOCAB_MAX_SPECIAL_TEXT);
            goto done;
        }
        v->marked[v->n_marked++] = (int32_t)i;
        v->marked_first[(unsigned char)v->blob[t->text]] |= t->type == HLLM_TOKEN_USER_DEFINED ? 1 : 2;
    }
    memcpy(v->marked_by_rank, v->marked, v->n_marked * sizeof *v->marked);
    sort_ids(v, v->marked, tmp, v->n_marked, compare_text);
    sort_ids(v, v->marked_by_rank, tmp, v->n_marked, compare_rank);
    for (uint32_t r = 0; r < v->n_marked; r++) {         /* rank of the i-th by text: found by its text's place */
        uint32_t lo = 0, hi = v->n_marked;
        while (lo + 1 < hi) {
            uint32_t mid = (lo + hi) / 2;
            if (compare_text(v, v->marked[mid], v->marked_by_rank[r]) <= 0) lo = mid; else hi = mid;
        }
        v->marked_rank[lo] = r;
    }
done:
    hl_free(env->mem, tmp);
    return rc;
}

/* Phi-3's special tokens swallow the white space after them; its files do not say so, only their name does. */
static hl_status note_rstrip(hl_error *err, hl_vocab *v, const hl_gguf *g)
{
    static const char *const keep[] = { "<unk>", "<s>", "<|endoftext|>" };
    hl_status rc = HLLM_OK;
    const char *name;
    size_t n;
    bool phi3 = false;
    HL_TRY(read_text(err, g, "general.name", &name, &n));
    for (size_t i = 0; name && i + 4 <= n; i++)
        if ((name[i] | 32) == 'p' && (name[i + 1] | 32) == 'h' && (name[i + 2] | 32) == 'i')
            phi3 |= name[i + 3] == '3' || (i + 5 <= n && name[i + 3] == '-' && name[i + 4] == '3');
    if (!phi3) return HLLM_OK;
    for (uint32_t i = 0; i < v->n_marked; i++) v->row[v->marked[i]].flags |= HL_TOKEN_RSTRIP;
    for (size_t i = 0; i < HL_COUNT(keep); i++) {
        int32_t id = find_z(v, keep[i]);
        if (id >= 0) v->row[id].flags &= (uint8_t)~HL_TOKEN_RSTRIP;
    }
done:
    return rc;
}

/* ---- the whole ---- */

hl_status hl_vocab_new(const hl_env *env, hl_error *err, const hl_gguf *g, hl_vocab **out)
{
    hl_status rc = HLLM_OK;
    hl_vocab *v = NULL;
    uint32_t split_flags;
    *out = NULL;
    HL_NEED(v = hl_alloc_zero(env->mem, sizeof *v));
    HL_NEED(v->joins = hl_alloc_zero(env->mem, 65536 / 8));
    for (size_t i = 0; i < 256; i++) v->byte_id[i] = -1;
    /* A file must not be able to aim at our hash tables.  Without entropy the clock and an address have to do. */
    if (getrandom(&v->seed, sizeof v->seed, GRND_NONBLOCK) != (ssize_t)sizeof v->seed) v->seed = hl_now_ns() ^ (uintptr_t)v * 0x9e3779b97f4a7c15ull;
    HL_TRY(read_kind(env, err, v, g, &split_flags));
    HL_TRY(check_charsmap(err, g));
    HL_TRY(read_texts(env, err, v, g));
    HL_TRY(read_scores_and_types(err, v, g));
    HL_TRY(read_specials(env, err, v, g, split_flags));
    HL_TRY(v->spm ? hl_spm_init(env, err, v, g) : hl_bpe_init(env, err, v, g));
    HL_TRY(collect_marked(env, err, v, hl_gguf_path(g)));
    HL_TRY(note_rstrip(err, v, g));
    char *fits = hl_realloc(env->mem, v->blob, v->blob_bytes);
    if (fits) { v->blob = fits; v->blob_cap = v->blob_bytes; }
    *out = v;
    v = NULL;
done:
    hl_vocab_free(env, v);
    return hl_error_settle(err, rc);
}

void hl_vocab_free(const hl_env *env, hl_vocab *v)
{
    if (!v) return;
    hl_free(env->mem, v->row);
    hl_free(env->mem, v->blob);
    hl_free(env->mem, v->by_text);
    hl_free(env->mem, v->marked);
    hl_free(env->mem, v->marked_rank);
    hl_free(env->mem, v->marked_by_rank);
    hl_free(env->mem, v->joins);
    hl_free(env->mem, v->merge);
    hl_free(env->mem, v->by_pair);
    hl_free(env->mem, v);
}
