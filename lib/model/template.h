/* template.h: chat templates.  A model's own Jinja text is never executed: it is recognised as one of the built-in templates,
 * which are data here (template_table.c) and give the same text.  Recognised are known texts only, apart from changes that have no
 * meaning to Jinja (template_detect.c): what merely resembles one is not.
 *
 * "The same text" is what the Jinja2 package renders as transformers calls it, with messages, add_generation_prompt, bos_token,
 * eos_token, and enable_thinking set to false for HLLM_CHAT_NO_THINKING, else not set; with no tools and no clock: a text that has a
 * date of its own for that case prints it.
 */
#ifndef HL_TEMPLATE_H
#define HL_TEMPLATE_H

#include "model/tokenizer.h"

typedef struct hl_chat_template hl_chat_template;      /* a row of the table in template_table.c */

const char *hl_chat_template_names(void);              /* all, separated by spaces */
const hl_chat_template *hl_chat_template_find(const char *name);                     /* NULL: unknown */
/* NULL: not recognised, also above 1 MiB.  Linear in the text, allocates nothing. */
const hl_chat_template *hl_chat_template_detect(const char *jinja, size_t bytes);
const char *hl_chat_template_name(const hl_chat_template *t);

/* Writes the conversation as a list of parts: the template's own words are trusted, the messages' are not.  bos, eos: texts of
 * those tokens in the vocabulary (some templates write them), "" when absent.  flags: HLLM_CHAT_....
 * Errors name the message and the role: HLLM_E_ARG for what the template refuses (wrong order of roles, unknown role).
 * parts: owned by the caller, free with hl_chat_parts_free. */
typedef struct hl_chat_parts {
    hl_text_part *parts; size_t n;
    char *text;                                        /* what the parts point into */
    size_t bytes;
    hl_text_part *words; size_t n_words;               /* all that the template may write, BOS and EOS among it (borrowed texts) */
} hl_chat_parts;
hl_status hl_chat_template_render(const hl_env *env, hl_error *err, const hl_chat_template *t, const hllm_chat_message *messages,
                                  size_t n, uint32_t flags, const char *bos, const char *eos, hl_chat_parts *out);
void hl_chat_parts_free(const hl_env *env, hl_chat_parts *p);

#endif
