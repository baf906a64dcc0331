/* template_table.h: what template.c, template_detect.c and template_table.c share: the form of a built-in template as data.
 *
 * A template is a row of short patterns, one for each place of a conversation.  Inside a pattern these stand for texts:
 *   %b  the vocabulary's BOS text          %e  its EOS text
 *   %c  the message                        %t  the message, stripped         %r  stripped on the right
 *   %s  the system text (held back)        %S  that, stripped
 *   %a  the answer: what follows the last "</think>"; the whole message if there is none
 *   %A  the answer without newlines in front, if there is a "</think>"; else the message as it is
 *   %M  the answer without newlines around, if there is a "</think>"; else the message as it is
 *   %N  the answer without newlines in front          %T  the answer, stripped
 *   %K  the answer, stripped, if there is a "</think>"; else the message as it is
 *   %v  what follows the first "</think>"; the whole message if there is none
 *   %P  the message stripped, and if there is a "</think>" the answer in it without newlines in front
 *   %z  what is between the last "<think>" and the first "</think>", as it is
 *   %h  the thought: between the last "<think>" and the first "</think>", without newlines around; empty if there is none
 *   %H  the thought, stripped
 * and these change what lies between them (X is a letter from above or below):
 *   %(X ... %)   only if text X is not empty         %[X ... %]   only if it is empty         (they nest)
 *   %{ ... %}    stripped on the right when complete
 *   %#           what follows, up to the next %, once for every system message
 *   %!           the conversation is refused
 * with, for X, also the questions
 *   1  is this the first message?      2  the third or later?         9  the last?
 *   x  is the one before it the assistant's?
 *   u  has a user's message been written, and no assistant's since?
 *   o  has it a "<think>"?      k  a "</think>"?       w  does it end with "/nothink"?
 *   g  is the assistant's turn to be opened?                          q  without thinking?
 * "Stripped" means Python's str.strip(): Unicode white space.  Everything else in a pattern is the template's own, trusted word;
 * what came out of a message never is.
 */
#ifndef HL_TEMPLATE_TABLE_H
#define HL_TEMPLATE_TABLE_H

#include "model/template.h"

/* What happens to system messages.  "Leading": the conversation's first message is one. */
enum {
    HL_SYS_PLACE = 0,          /* each at its place: the leading one by .sys, others by .sys_later */
    HL_SYS_PLACE_ANY,          /* the same, but .nosys only when there is no system message anywhere */
    HL_SYS_FOLD_FIRST,         /* the leading one is held for .user_sys when the message after it is the user's */
    HL_SYS_FOLD_LAST,          /* the leading one is held for .user_sys when the last message is the user's */
    HL_SYS_LAST,               /* only the last one of all counts; written in front by .sys */
    HL_SYS_JOIN                /* all of them, two newlines between, written in front by .sys */
};

/* When an assistant's message is written by .asst2 instead of .asst. */
enum {
    HL_ASST2_NEVER = 0,
    HL_ASST2_LAST,             /* it is the conversation's last message */
    HL_ASST2_LAST_ASST,        /* it is the last of the assistant's */
    HL_ASST2_AFTER_USER,       /* no other assistant's message since the last user's, and there was one */
    HL_ASST2_AFTER_LAST_USER,  /* no user's message follows (also when there is none at all) */
    HL_ASST2_AFTER_QUESTION,   /* the last real question (no tool's answer) is before it */
    HL_ASST2_THOUGHT           /* the same, and it is the last message or has a thought */
};

/* When .gen is written (if asked for). */
enum {
    HL_GEN_ALWAYS = 0,
    HL_GEN_NOT_SYS_ONLY,       /* not when the conversation is a leading system message alone */
    HL_GEN_NOT_AFTER_ASST,     /* not when the last message is the assistant's */
    HL_GEN_AFTER_USER          /* only when the last message that is not the system's is the user's */
};

enum {
    HL_ORDER_ANY = 0,
    HL_ORDER_QUESTION,         /* there must be a user's message that is no tool's answer */
    HL_ORDER_ALTERNATE         /* after a leading system message every even message, and no other, is the user's */
};

struct hl_chat_template {
    const char *name;
    const char *head;          /* first of all */
    const char *nosys;         /* when there is no system message where .sys would write it */
    const char *sys;           /* NULL: a leading system message is refused */
    const char *sys_later;     /* NULL: refused; "" drops it */
    const char *user;
    const char *user_sys;      /* the user's message that the held system text goes with; NULL: like .user */
    const char *asst, *asst2;
    const char *gen;           /* opens the assistant's turn */
    const char *gen_quiet;     /* the same when no thinking is asked for; NULL: no such choice */
    const char *no_gen;        /* instead of .gen when not asked for */
    uint8_t sys_rule, asst2_rule, gen_rule, order;
};

extern const hl_chat_template hl_chat_rows[];
extern const size_t hl_chat_n_rows;

/* The models' own texts that are known to render as a row does: fingerprint -> row.  Sorted by fingerprint. */
typedef struct hl_chat_known { uint64_t fingerprint; uint32_t bytes; const char *row; } hl_chat_known;
extern const hl_chat_known hl_chat_known_texts[];
extern const size_t hl_chat_n_known;

/* The fingerprint of a Jinja text (template_detect.c).  false: not lexed (damaged, too long, or with constructs that no known text
 * has). */
bool hl_chat_fingerprint(const char *jinja, size_t bytes, uint64_t *fingerprint, uint32_t *canonical_bytes);

/* The row of a known text; NULL: hash or length is another. */
const hl_chat_template *hl_chat_known_find(uint64_t fingerprint, uint32_t canonical_bytes);

/* Python's str.isspace for one code point. */
static inline bool hl_py_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32) || cp == 0x85 || cp == 0xA0 || cp == 0x1680
        || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}
/* Length of s[0..n) without white space at its end. */
size_t hl_py_rstrip(const char *s, size_t n);
/* Bytes of white space at the start of s[0..n). */
size_t hl_py_lspaces(const char *s, size_t n);

#endif
