/* template.h: chat templates.  A model's own Jinja text is never executed: it is recognised as one of the built-in templates,
 * which are written here in C and give the same text.
 */
#ifndef HL_TEMPLATE_H
#define HL_TEMPLATE_H

#include "model/tokenizer.h"

typedef struct hl_chat_template hl_chat_template;      /* a row of the table in template.c */

const char *hl_chat_template_names(void);              /* all, separated by spaces */
const hl_chat_template *hl_chat_template_find(const char *name);                     /* NULL: unknown */
const hl_chat_template *hl_chat_template_detect(const char *jinja, size_t bytes);    /* NULL: not recognised */
const char *hl_chat_template_name(const hl_chat_template *t);

/* Writes the conversation as a list of parts: the template's own words are trusted, the messages' are not.  bos, eos: texts of
 * those tokens in the vocabulary (some templates write them), "" when absent.  flags: HLLM_CHAT_....
 * Errors name the message and the role: HLLM_E_ARG for what the template refuses (wrong order of roles, unknown role).
 * parts: owned by the caller, free with hl_chat_parts_free. */
typedef struct hl_chat_parts {
    hl_text_part *parts; size_t n;
    char *text;                                        /* what the parts point into */
    size_t bytes;
} hl_chat_parts;
hl_status hl_chat_template_render(const hl_env *env, hl_error *err, const hl_chat_template *t, const hllm_chat_message *messages,
                                  size_t n, uint32_t flags, const char *bos, const char *eos, hl_chat_parts *out);
void hl_chat_parts_free(const hl_env *env, hl_chat_parts *p);

#endif
