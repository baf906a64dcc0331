/* template.c: writes a conversation as a built-in chat template does.
 *
 * The templates are data (template_table.c, form in template_table.h); this file walks over the messages, decides which of a row's
 * patterns each one is written by, and expands the pattern.  The result is one text in parts: words of the template and BOS/EOS
 * are trusted, what came out of a message is not, so that nobody's message can become a control token.
 *
 * Roles are "system", "user" and "assistant"; any other is refused, as are orders that the template itself refuses.
 * No clock, locale or environment is read.  Time is linear in the messages.
 */
#include <string.h>

#include "model/template_table.h"

typedef enum { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT } role;
typedef struct text { const char *s; size_t n; } text;

typedef struct writer {
    const hl_env *env;
    const hl_chat_template *t;
    text bos, eos, system;
    char *joined;                                      /* system texts of HL_SYS_JOIN */
    const hllm_chat_message *messages;
    size_t n, i;                                       /* i: the message that is being written */
    text message;                                      /* its content */
    size_t n_system;
    size_t last_user, last_asst, last_question;        /* n: none */
    bool user_waits;                                   /* a user's message was written and no assistant's since */
    bool has_system, wants_gen, quiet, refused;
    hl_chat_parts out;                                 /* parts[i].text is NULL until all is written */
    size_t cap_parts, cap_bytes;
} writer;

const char *hl_chat_template_name(const hl_chat_template *t) { return t->name; }

const hl_chat_template *hl_chat_template_find(const char *name)
{
    for (size_t i = 0; name && i < hl_chat_n_rows; i++) if (strcmp(hl_chat_rows[i].name, name) == 0) return &hl_chat_rows[i];
    return NULL;
}

/* ---- texts cut out of a message ---- */

static text strip(text t, bool left, bool right)
{
    if (right) t.n = hl_py_rstrip(t.s, t.n);
    if (left) {
        size_t k = hl_py_lspaces(t.s, t.n);
        t.s += k;
        t.n -= k;
    }
    return t;
}

static text strip_newlines(text t, bool right)
{
    while (t.n && t.s[0] == '\n') { t.s++; t.n--; }
    while (right && t.n && t.s[t.n - 1] == '\n') t.n--;
    return t;
}

/* The first or last place of word in t; t.n when there is none. */
static size_t find(text t, const char *word, bool last)
{
    size_t n = strlen(word), found = t.n;
    for (size_t i = 0; i + n <= t.n; i++) {
        const char *p = memchr(t.s + i, word[0], t.n - n + 1 - i);
        if (!p) break;
        i = (size_t)(p - t.s);
        if (memcmp(p, word, n) != 0) continue;
        found = i;
        if (!last) break;
    }
    return found;
}

static text behind(text t, const char *word, bool last)
{
    size_t at = find(t, word, last), n = strlen(word);
    return at == t.n ? t : (text){ t.s + at + n, t.n - at - n };
}

static text raw_thought(text t)
{
    size_t at = find(t, "</think>", false);
    return at == t.n ? (text){ t.s, 0 } : behind((text){ t.s, at }, "<think>", true);
}

static text thought(text t) { return strip_newlines(raw_thought(t), true); }

static role role_at(const writer *w, size_t i);

static bool ends_with(text t, const char *word)
{
    size_t n = strlen(word);
    return t.n >= n && memcmp(t.s + t.n - n, word, n) == 0;
}

/* A pattern's questions: a text that is empty for no. */
static text answer_to(const writer *w, char letter)
{
    bool yes = false;
    switch (letter) {
    case '1': yes = w->i == 0; break;
    case '2': yes = w->i > 1; break;
    case '9': yes = w->i + 1 == w->n; break;
    case 'x': yes = w->i > 0 && role_at(w, w->i - 1) == ROLE_ASSISTANT; break;
    case 'o': yes = find(w->message, "<think>", false) < w->message.n; break;
    case 'k': yes = find(w->message, "</think>", false) < w->message.n; break;
    case 'u': yes = w->user_waits; break;
    case 'w': yes = ends_with(w->message, "/nothink"); break;
    case 'g': yes = w->wants_gen; break;
    case 'q': yes = w->quiet; break;
    default:  HL_ASSERT(!"a letter that has a meaning");
    }
    return (text){ "1", yes };
}

static text cut(const writer *w, char letter)
{
    text m = w->message, answer;
    switch (letter) {
    case 'b': return w->bos;
    case 'e': return w->eos;
    case 'c': return m;
    case 't': return strip(m, true, true);
    case 'r': return strip(m, false, true);
    case 's': return w->system;
    case 'S': return strip(w->system, true, true);
    case 'v': return behind(m, "</think>", false);
    case 'z': return raw_thought(m);
    case 'h': return thought(m);
    case 'H': return strip(thought(m), true, true);
    default: break;
    }
    if (!strchr("aAMNPTK", letter)) return answer_to(w, letter);
    answer = behind(m, "</think>", true);
    if (letter == 'N' || (letter == 'A' && answer.n != m.n)) return strip_newlines(answer, false);
    if (letter == 'T' || (letter == 'K' && answer.n != m.n)) return strip(answer, true, true);
    if (letter == 'P') return answer.n == m.n ? strip(m, true, true) : strip(strip_newlines(answer, false), false, true);
    if (letter == 'M' && answer.n != m.n) return strip_newlines(answer, true);
    return answer;
}

/* ---- writing ---- */

static hl_status put(writer *w, text t, bool trusted)
{
    hl_status rc = HLLM_OK;
    size_t bytes;
    if (t.n == 0) return HLLM_OK;
    HL_TRY(hl_add_size(w->out.bytes, t.n, &bytes));
    if (bytes >= w->cap_bytes) {
        size_t cap;
        char *grown;
        HL_TRY(hl_mul_size(bytes, 2, &cap));
        cap = HL_MAX(cap, (size_t)256);
        HL_NEED(grown = hl_realloc(w->env->mem, w->out.text, cap));
        w->out.text = grown;
        w->cap_bytes = cap;
    }
    if (w->out.n == 0 || w->out.parts[w->out.n - 1].trusted != trusted) {
        if (w->out.n == w->cap_parts) {
            size_t cap = HL_MAX(2 * w->cap_parts, (size_t)16), need;
            hl_text_part *grown;
            HL_TRY(hl_mul_size(cap, sizeof *grown, &need));
            HL_NEED(grown = hl_realloc(w->env->mem, w->out.parts, need));
            w->out.parts = grown;
            w->cap_parts = cap;
        }
        w->out.parts[w->out.n++] = (hl_text_part){ NULL, 0, trusted };
    }
    memcpy(w->out.text + w->out.bytes, t.s, t.n);
    w->out.parts[w->out.n - 1].bytes += t.n;
    w->out.bytes = bytes;
done:
    return rc;
}

/* Takes white space off the end of what was written since `from`. */
static void strip_written(writer *w, size_t from)
{
    size_t bytes = from + hl_py_rstrip(w->out.text + from, w->out.bytes - from);
    while (w->out.bytes > bytes) {
        hl_text_part *last = &w->out.parts[w->out.n - 1];
        size_t k = HL_MIN(last->bytes, w->out.bytes - bytes);
        last->bytes -= k;
        w->out.bytes -= k;
        if (last->bytes == 0) w->out.n--;
    }
}

/* Expands a pattern; NULL writes nothing. */
static hl_status expand(writer *w, const char *pattern)
{
    hl_status rc = HLLM_OK;
    uint32_t skip = 0;                                 /* how many conditions deep we are since the first that does not hold */
    size_t mark = 0;
    for (const char *p = pattern; p && *p; p++) {
        const char *from = p;
        if (*p != '%') {
            while (p[1] && p[1] != '%') p++;
            if (!skip) HL_TRY(put(w, (text){ from, (size_t)(p - from) + 1 }, true));
            continue;
        }
        switch (*++p) {
        case '(': case '[':
            p++;
            if (skip || (cut(w, *p).n == 0) == (p[-1] == '(')) skip++;
            break;
        case ')': case ']': if (skip) skip--; break;
        case '{': mark = w->out.bytes; break;
        case '}': if (!skip) strip_written(w, mark); break;
        case '#':
            from = p + 1;
            while (p[1] && p[1] != '%') p++;
            for (size_t i = 0; i < w->n_system && !skip; i++)
                HL_TRY(put(w, (text){ from, (size_t)(p + 1 - from) }, true));
            break;
        case '!': if (!skip) w->refused = true; break;
        default:  if (!skip) HL_TRY(put(w, cut(w, *p), *p == 'b' || *p == 'e'));
        }
    }
done:
    return rc;
}

/* ---- the conversation ---- */

static hl_status refuse(hl_error *err, const writer *w, size_t i, const char *why)
{
    const char *name = w->messages[i].role ? w->messages[i].role : "NULL";
    size_t n = strnlen(name, 32);
    n -= hl_utf8_tail(name, n);
    return hl_fail(err, HLLM_E_ARG, "chat template %s: message %zu of %zu, role %.*s: %s", w->t->name, i + 1, w->n, (int)n, name, why);
}

static bool role_of(const hllm_chat_message *m, role *out)
{
    static const char *const names[] = { "system", "user", "assistant" };
    for (uint32_t i = 0; m->role && i < HL_COUNT(names); i++) {
        if (strcmp(m->role, names[i]) != 0) continue;
        *out = (role)i;
        return true;
    }
    return false;
}

static role role_at(const writer *w, size_t i)
{
    role r = ROLE_USER;
    (void)role_of(&w->messages[i], &r);                /* known to be one of the three, see check */
    return r;
}

static text content_at(const writer *w, size_t i)
{
    return (text){ w->messages[i].content ? w->messages[i].content : "", w->messages[i].content_bytes };
}

static bool is_question(text t)
{
    static const char open[] = "<tool_response>";
    return t.n < sizeof open - 1 || memcmp(t.s, open, sizeof open - 1) != 0 || !ends_with(t, "</tool_response>");
}

/* Roles and their order. */
static hl_status check(hl_error *err, const writer *w)
{
    size_t first;
    if (w->n == 0 || !w->messages) return hl_fail(err, HLLM_E_ARG, "chat template %s: no messages", w->t->name);
    for (size_t i = 0; i < w->n; i++) {
        role r;
        if (!role_of(&w->messages[i], &r)) return refuse(err, w, i, "the roles are system, user and assistant");
        if (!w->messages[i].content && w->messages[i].content_bytes) return refuse(err, w, i, "content is NULL");
        if (r != ROLE_SYSTEM) continue;
        if (i == 0 && !w->t->sys) return refuse(err, w, i, "this template has no system message");
        if (i > 0 && !w->t->sys_later) return refuse(err, w, i, "only the first message may be the system's");
    }
    if (w->t->order != HL_ORDER_ALTERNATE) return HLLM_OK;
    first = role_at(w, 0) == ROLE_SYSTEM;
    for (size_t i = first; i < w->n; i++)
        if ((role_at(w, i) == ROLE_USER) != ((i - first) % 2 == 0))
            return refuse(err, w, i, "user and assistant must alternate, the user first");
    return HLLM_OK;
}

static bool written_in_front(const hl_chat_template *t) { return t->sys_rule == HL_SYS_LAST || t->sys_rule == HL_SYS_JOIN; }

/* Finds what patterns and rules ask for about the whole conversation. */
static hl_status survey(hl_error *err, writer *w)
{
    hl_status rc = HLLM_OK;
    size_t bytes = 0, at = 0;
    bool first = true;
    w->last_user = w->last_asst = w->last_question = w->n;
    for (size_t i = 0; i < w->n; i++) {
        text content = content_at(w, i);
        role r = role_at(w, i);
        if (r == ROLE_USER) w->last_user = i;
        if (r == ROLE_USER && is_question(w->t->order == HL_ORDER_QUESTION ? strip(content, true, true) : content))
            w->last_question = i;
        if (r == ROLE_ASSISTANT) w->last_asst = i;
        if (r != ROLE_SYSTEM) continue;
        if (i == 0 || written_in_front(w->t)) w->system = content;
        HL_TRY(hl_add_size(bytes, content.n, &bytes));
        HL_TRY(hl_add_size(bytes, 2, &bytes));
        w->n_system++;
    }
    if (w->t->order == HL_ORDER_QUESTION && w->last_question == w->n)
        rc = hl_fail(err, HLLM_E_ARG, "chat template %s: none of %zu messages is the user's", w->t->name, w->n);
    w->has_system = written_in_front(w->t) || w->t->sys_rule == HL_SYS_PLACE_ANY ? w->n_system > 0 : role_at(w, 0) == ROLE_SYSTEM;
    if (rc != HLLM_OK || w->t->sys_rule != HL_SYS_JOIN || w->n_system < 2) goto done;
    HL_NEED(w->joined = hl_alloc(w->env->mem, bytes));
    for (size_t i = 0; i < w->n; i++) {
        text content = content_at(w, i);
        if (role_at(w, i) != ROLE_SYSTEM) continue;
        if (!first) { memcpy(w->joined + at, "\n\n", 2); at += 2; }
        first = false;
        memcpy(w->joined + at, content.s, content.n);
        at += content.n;
    }
    w->system = (text){ w->joined, at };
done:
    return rc;
}

static bool is_asst2(const writer *w)
{
    bool after_question = w->last_question < w->i;
    switch (w->t->asst2_rule) {
    case HL_ASST2_LAST:            return w->i + 1 == w->n;
    case HL_ASST2_LAST_ASST:       return w->i == w->last_asst;
    case HL_ASST2_AFTER_USER:      return w->user_waits;
    case HL_ASST2_AFTER_LAST_USER: return w->last_user == w->n || w->last_user < w->i;
    case HL_ASST2_AFTER_QUESTION:  return after_question;
    case HL_ASST2_THOUGHT:         return after_question && (w->i + 1 == w->n || thought(w->message).n > 0);
    default:                       return false;
    }
}

static hl_status write_messages(hl_error *err, writer *w)
{
    hl_status rc = HLLM_OK;
    const hl_chat_template *t = w->t;
    size_t folded = w->n;                              /* the message that the held system text goes with */
    if (role_at(w, 0) == ROLE_SYSTEM && t->sys_rule == HL_SYS_FOLD_FIRST) folded = 1;
    if (role_at(w, 0) == ROLE_SYSTEM && t->sys_rule == HL_SYS_FOLD_LAST) folded = w->n - 1;
    if (!w->has_system) HL_TRY(expand(w, t->nosys));
    if (w->refused) return refuse(err, w, 0, "a system message has to come first: without one this template writes today's date");
    if (w->has_system && written_in_front(t)) HL_TRY(expand(w, t->sys));
    for (w->i = 0; w->i < w->n; w->i++) {
        const char *pattern = NULL;
        role r = role_at(w, w->i);
        w->message = content_at(w, w->i);
        if (r == ROLE_SYSTEM) pattern = written_in_front(t) ? NULL : w->i == 0 ? t->sys : t->sys_later;
        if (r == ROLE_USER) pattern = w->i == folded && t->user_sys ? t->user_sys : t->user;
        if (r == ROLE_ASSISTANT) pattern = is_asst2(w) ? t->asst2 : t->asst;
        HL_TRY(expand(w, pattern));
        if (r != ROLE_SYSTEM) w->user_waits = r == ROLE_USER;
        if (w->refused) return refuse(err, w, w->i, "the template refuses this message");
    }
done:
    return rc;
}

static bool opens_turn(const writer *w)
{
    switch (w->t->gen_rule) {
    case HL_GEN_NOT_SYS_ONLY:   return w->n > 1 || role_at(w, 0) != ROLE_SYSTEM;
    case HL_GEN_NOT_AFTER_ASST: return role_at(w, w->n - 1) != ROLE_ASSISTANT;
    case HL_GEN_AFTER_USER:     return w->user_waits;
    default:                    return true;
    }
}

/* The trusted words in a pattern, into words (NULL: only counted). */
static size_t words_of(const char *pattern, hl_text_part *words)
{
    size_t n = 0;
    for (const char *p = pattern; p && *p;) {
        if (*p == '%') { p += p[1] == '(' || p[1] == '[' ? 3 : 2; continue; }
        const size_t bytes = strcspn(p, "%");
        if (words) words[n] = (hl_text_part){ p, bytes, true };
        n++;
        p += bytes;
    }
    return n;
}

static hl_status list_words(writer *w)
{
    hl_status rc = HLLM_OK;
    const hl_chat_template *t = w->t;
    const char *const patterns[] = { t->head, t->nosys, t->sys, t->sys_later, t->user, t->user_sys, t->asst, t->asst2, t->gen, t->gen_quiet, t->no_gen };
    size_t n = 2;
    for (size_t i = 0; i < HL_COUNT(patterns); i++) n += words_of(patterns[i], NULL);
    HL_NEED(w->out.words = hl_alloc_array(w->env->mem, n, sizeof *w->out.words));
    w->out.words[0] = (hl_text_part){ w->bos.s, w->bos.n, true };
    w->out.words[1] = (hl_text_part){ w->eos.s, w->eos.n, true };
    n = 2;
    for (size_t i = 0; i < HL_COUNT(patterns); i++) n += words_of(patterns[i], w->out.words + n);
    w->out.n_words = n;
done:
    return rc;
}

hl_status hl_chat_template_render(const hl_env *env, hl_error *err, const hl_chat_template *t, const hllm_chat_message *messages,
                                  size_t n, uint32_t flags, const char *bos, const char *eos, hl_chat_parts *out)
{
    hl_status rc = HLLM_OK;
    writer w = { .env = env, .t = t, .bos = { bos, strlen(bos) }, .eos = { eos, strlen(eos) }, .system = { "", 0 },
                 .message = { "", 0 }, .messages = messages, .n = n, .wants_gen = !(flags & HLLM_CHAT_NO_GENERATION_PROMPT),
                 .quiet = flags & HLLM_CHAT_NO_THINKING };
    size_t at = 0;
    memset(out, 0, sizeof *out);
    HL_TRY(check(err, &w));
    HL_TRY(survey(err, &w));
    HL_TRY(expand(&w, t->head));
    HL_TRY(write_messages(err, &w));
    if (!w.wants_gen) HL_TRY(expand(&w, t->no_gen));
    else if (opens_turn(&w)) HL_TRY(expand(&w, w.quiet && t->gen_quiet ? t->gen_quiet : t->gen));
    HL_TRY(list_words(&w));
    for (size_t i = 0; i < w.out.n; i++) {
        w.out.parts[i].text = w.out.text + at;
        at += w.out.parts[i].bytes;
    }
    *out = w.out;
    memset(&w.out, 0, sizeof w.out);
done:
    hl_free(env->mem, w.joined);
    hl_chat_parts_free(env, &w.out);
    if (rc == HLLM_E_NOMEM || rc == HLLM_E_LIMIT)
        return hl_fail(err, rc, "chat template %s: %zu messages of more than %zu bytes", t->name, n, w.cap_bytes);
    return rc;
}

void hl_chat_parts_free(const hl_env *env, hl_chat_parts *p)
{
    hl_free(env->mem, p->parts);
    hl_free(env->mem, p->words);
    hl_free(env->mem, p->text);
    memset(p, 0, sizeof *p);
}
