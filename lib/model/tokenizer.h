/* tokenizer.h: bytes <-> tokens.  Two kinds of vocabulary behind one door: SPM (spm.c) and byte-level BPE (bpe.c, presplit.c).
 *
 * A vocabulary holds copies (the GGUF may be closed) and is immutable after hl_vocab_new; every function on a const hl_vocab may run in many threads at once.
 */
#ifndef HL_TOKENIZER_H
#define HL_TOKENIZER_H

#include "model/reader.h"

typedef struct hl_vocab hl_vocab;

typedef struct hl_token {
    const char *text; uint32_t text_bytes;     /* as in the file */
    const char *piece; uint32_t piece_bytes;   /* the bytes that it stands for in a text; a control token's: its text */
    float score;
    uint8_t type;                              /* HLLM_TOKEN_... */
    bool ends_generation;
} hl_token;

/* Reads tokenizer.ggml.*; checks every array's type, length and id.  Without tokenizer.ggml.model: HLLM_E_FORMAT. */
hl_status hl_vocab_new(const hl_env *env, hl_error *err, const hl_gguf *g, hl_vocab **out);
void hl_vocab_free(const hl_env *env, hl_vocab *v);
uint32_t hl_vocab_size(const hl_vocab *v);
hl_token hl_vocab_token(const hl_vocab *v, int32_t id);              /* id is in range (asserted) */
int32_t hl_vocab_special(const hl_vocab *v, uint32_t kind);          /* HLLM_SPECIAL_...; -1: none */
bool hl_vocab_adds_bos(const hl_vocab *v);

/* A text in parts: control tokens are recognised only inside trusted parts (a chat template's own words), while the words are
 * split and merged over the whole, as if it were one text. */
typedef struct hl_text_part { const char *text; size_t bytes; bool trusted; } hl_text_part;

/* flags: HLLM_TOKENIZE_... (PARSE_SPECIAL: all parts are trusted).  *n_out = the count; HLLM_E_BUFFER when above cap, nothing
 * written.  Time linear in the text (n log n at most).  Working memory comes from env. */
hl_status hl_vocab_tokenize(const hl_env *env, hl_error *err, const hl_vocab *v, const hl_text_part *parts, size_t n_parts,
                            uint32_t flags, int32_t *out, size_t cap, size_t *n_out);
/* The same for a conversation.  words: all that its template may write, in this conversation or another: user-defined tokens in them (but
 * for white space) match in trusted parts only, as control tokens do, so that no message can open a turn. */
hl_status hl_vocab_tokenize_chat(const hl_env *env, hl_error *err, const hl_vocab *v, const hl_text_part *parts, size_t n_parts,
                                 const hl_text_part *words, size_t n_words, uint32_t flags, int32_t *out, size_t cap, size_t *n_out);
/* As hllm_detokenize: ids checked (HLLM_E_ARG names the first bad one). */
hl_status hl_vocab_detokenize(hl_error *err, const hl_vocab *v, const int32_t *ids, size_t n, uint32_t flags,
                              char *buf, size_t cap, size_t *bytes_out);

#endif
