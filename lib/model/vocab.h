/* vocab.h: what tokenizer.c, spm.c, bpe.c, merge.c and presplit.c share.  Not for other files.
 *
 * A vocabulary holds copies of everything (the GGUF may be closed).  It is written by hl_vocab_new alone; working memory of a call
 * lives in hl_tokenize_work, on the caller's stack and heap.
 */
#ifndef HL_VOCAB_H
#define HL_VOCAB_H

#include "model/tokenizer.h"

enum {
    HL_VOCAB_MAX_TOKENS = (1 << 22) - 1,
    HL_VOCAB_MAX_TEXT = 1 << 20,                 /* of one token */
    HL_VOCAB_MAX_SPECIAL_TEXT = 256,             /* of a token that is looked for in texts: bounds the time per byte */
    HL_TOKENIZE_MAX_BYTES = 1 << 30
};

/* ---- pre-splitters (presplit.c) ---- */

/* One code point of a text with its class: bits 0-20 the code point, 21-25 its general category (utf8proc's number), then flags. */
typedef uint32_t hl_cell;
enum { HL_CELL_CAT_SHIFT = 21 };
#define HL_CELL_SPACE   (1u << 26)               /* White_Space */
#define HL_CELL_INVALID (1u << 27)               /* one byte that is no UTF-8; counts as U+FFFD */

static inline uint32_t hl_cell_cp(hl_cell c) { return c & 0x1fffff; }
static inline uint32_t hl_cell_bytes(hl_cell c)
{
    uint32_t cp = hl_cell_cp(c);
    return c & HL_CELL_INVALID || cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
}

enum { HL_SPLIT_IGNORE_MERGES = 1, HL_SPLIT_ADD_BOS = 2, HL_SPLIT_NO_BOS = 4 };
typedef struct hl_splitter hl_splitter;
const hl_splitter *hl_splitter_find(const char *name, size_t bytes, uint32_t *flags);    /* NULL: unknown; flags: HL_SPLIT_... */
size_t hl_splitter_names(char *buf, size_t cap);                     /* all, separated by spaces; returns the length needed */
/* out has room for n cells; returns how many there are. */
size_t hl_cells_from_text(const char *text, size_t n, hl_cell *out);
/* Calls word(user, cells) for each word, in order; together they are the whole text.  Stops at the first status that is not OK.
 * Time linear in n. */
typedef hl_status hl_word_fn(void *user, const hl_cell *word, size_t n);
hl_status hl_presplit(const hl_splitter *sp, const hl_cell *cells, size_t n, hl_word_fn *word, void *user);

/* ---- merging (merge.c) ---- */

/* A symbol lies at the index of its first byte in the piece of text, with its length; the entry of its last byte has the length
 * too, so that both neighbours are found. */
typedef struct hl_symbol { uint32_t n; int32_t id; } hl_symbol;     /* id: token; -1: none */

/* Lowest order first; the order's low half is the left symbol's place, so that equal ranks go from left to right. */
typedef struct hl_heap_item { uint64_t order; uint32_t size; int32_t id; } hl_heap_item;
/* A priority queue: items that come in order (one letter a million times) go to the run and cost nothing, others to the heap. */
typedef struct hl_heap {
    size_t n;                                    /* of both */
    hl_heap_item *run; size_t head, n_run, cap_run;
    hl_heap_item *heap; size_t n_heap, cap_heap;
} hl_heap;
hl_status hl_heap_push(hl_mem *mem, hl_heap *h, hl_heap_item item);
const hl_heap_item *hl_heap_top(const hl_heap *h);                   /* h->n > 0 */
hl_heap_item hl_heap_pop(hl_heap *h);            /* h->n > 0 */
void hl_heap_free(hl_mem *mem, hl_heap *h);

typedef struct hl_tokenize_work {
    const hl_env *env;
    hl_mem *mem;
    const hl_vocab *v;
    int32_t *out; size_t n_out, cap_out;         /* grows */
    hl_symbol *sym; size_t n_sym, cap_sym;
    hl_heap heap;
    char *text; size_t cap_text;                 /* escaped or encoded text */
    hl_cell *cells; size_t cap_cells;
} hl_tokenize_work;

/* Makes room for n elements; *block keeps its contents. */
hl_status hl_grow(hl_mem *mem, void *block, size_t *cap, size_t n, size_t bytes_each);
hl_status hl_work_emit(hl_tokenize_work *w, int32_t id);
hl_status hl_work_symbol(hl_tokenize_work *w, uint32_t n, int32_t id);       /* appends n > 0 bytes */
/* Does a make a token with b behind it?  text: where a begins.  Then its rank (lower merges first) and its id. */
typedef bool hl_pair_fn(const hl_vocab *v, const char *text, const hl_symbol *a, const hl_symbol *b, uint32_t *rank, int32_t *id);
/* Merges w->sym, the n_sym bytes at text, until no pair is left.  n log n. */
hl_status hl_merge(hl_tokenize_work *w, const char *text, hl_pair_fn *pair);

/* ---- the vocabulary (tokenizer.c) ---- */

enum { HL_TOKEN_ENDS = 1, HL_TOKEN_RSTRIP = 2 };
typedef struct hl_vocab_token_row {
    uint32_t text, piece;                        /* offsets into the blob */
    uint32_t text_bytes, piece_bytes;
    float score;
    uint8_t type, flags;                         /* HLLM_TOKEN_..., HL_TOKEN_... */
} hl_vocab_token_row;

typedef struct hl_slot { uint32_t tag, index; } hl_slot;             /* index + 1; 0: empty */

struct hl_vocab {
    bool spm;                                    /* else byte-level BPE */
    bool adds_bos, adds_eos, adds_space;
    bool ignore_merges;
    uint64_t seed;
    uint32_t n;
    uint32_t max_text;                           /* longest text of a token that merging may give */
    hl_vocab_token_row *row;                     /* [n] */
    char *blob; size_t blob_bytes, blob_cap;     /* texts and pieces, each NUL-ended */
    hl_slot *by_text; uint32_t text_mask;
    int32_t special[6];                          /* by HLLM_SPECIAL_... */
    int32_t byte_id[256];                        /* -1: none */

    /* tokens that are looked for in texts: control, unknown and user-defined ones */
    uint32_t n_marked;
    int32_t *marked;                             /* [n_marked] by text */
    uint32_t *marked_rank;                       /* [n_marked] place in the order of matching: longest first, then by id */
    int32_t *marked_by_rank;                     /* [n_marked] */
    uint8_t marked_first[256];                   /* bit 0: a user-defined one begins with this byte; bit 1: a control one */

    /* Bit a*256+b: merging may join a symbol that ends in byte a and one that begins with byte b.  Where no bit is set a text can
     * be cut: the parts do not influence each other, and small parts keep the heap in the caches. */
    uint8_t *joins;

    /* bpe.c */
    const hl_splitter *splitter;
    uint32_t n_merges;
    int32_t (*merge)[3];                         /* [n_merges] left, right, result; the index is the rank */
    hl_slot *by_pair; uint32_t pair_mask;
};

/* The token of exactly this text, -1: none. */
int32_t hl_vocab_find(const hl_vocab *v, const char *text, size_t bytes);
static inline const char *hl_vocab_text(const hl_vocab *v, int32_t id) { return v->blob + v->row[id].text; }
static inline unsigned hl_join_bit(const char *s, size_t at) { return (unsigned)(unsigned char)s[at - 1] * 256 + (unsigned char)s[at]; }
static inline void hl_vocab_note_join(hl_vocab *v, const char *s, size_t at) { v->joins[hl_join_bit(s, at) / 8] |= (uint8_t)(1u << hl_join_bit(s, at) % 8); }
/* Can the bytes on both sides of s[at] be joined?  at > 0 */
static inline bool hl_vocab_joined(const hl_vocab *v, const char *s, size_t at) { return v->joins[hl_join_bit(s, at) / 8] >> hl_join_bit(s, at) % 8 & 1; }
/* May merging give this token?  Text must never become a control or byte token. */
static inline bool hl_vocab_mergeable(const hl_vocab *v, int32_t id)
{
    uint8_t t = v->row[id].type;
    return t == HLLM_TOKEN_NORMAL || t == HLLM_TOKEN_USER_DEFINED || t == HLLM_TOKEN_UNUSED;
}
hl_status hl_vocab_piece(hl_mem *mem, hl_vocab *v, uint32_t id, const char *piece, size_t bytes);   /* sets a token's piece; copies */

/* After the tokens are read: bytes, pieces, what else the kind needs.  err names path. */
hl_status hl_spm_init(const hl_env *env, hl_error *err, hl_vocab *v, const hl_gguf *g);
hl_status hl_bpe_init(const hl_env *env, hl_error *err, hl_vocab *v, const hl_gguf *g);
/* Appends the tokens of a text without special tokens.  prefix: a space is put in front. */
hl_status hl_spm_tokenize(hl_tokenize_work *w, const char *text, size_t n, bool prefix);
hl_status hl_bpe_tokenize(hl_tokenize_work *w, const char *text, size_t n);

#endif
