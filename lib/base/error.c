/* error.c: one error text per handle, written where the facts are.
 *
 * The text is cut to its slot, never fails and never allocates.  Control bytes from files or callers are escaped, so that a text can be
 * printed on a terminal as it is.
 */
#include "base.h"

#include <stdio.h>
#include <string.h>

static const struct { hl_status code; const char *name; const char *sentence; } codes[] = {
    { HLLM_OK, "HLLM_OK", "" },
    { HLLM_E_ARG, "HLLM_E_ARG", "an argument is NULL or out of range" },
    { HLLM_E_NOMEM, "HLLM_E_NOMEM", "out of memory" },
    { HLLM_E_IO, "HLLM_E_IO", "input or output failed" },
    { HLLM_E_FORMAT, "HLLM_E_FORMAT", "the file does not follow its format" },
    { HLLM_E_TRUNCATED, "HLLM_E_TRUNCATED", "the file ends too early" },
    { HLLM_E_VERSION, "HLLM_E_VERSION", "an unknown version or struct size" },
    { HLLM_E_ENDIAN, "HLLM_E_ENDIAN", "a big-endian file" },
    { HLLM_E_LIMIT, "HLLM_E_LIMIT", "a size is above its limit" },
    { HLLM_E_UNSUPPORTED, "HLLM_E_UNSUPPORTED", "not supported" },
    { HLLM_E_MISMATCH, "HLLM_E_MISMATCH", "two things do not fit together" },
    { HLLM_E_STATE, "HLLM_E_STATE", "not possible in this state" },
    { HLLM_E_BUSY, "HLLM_E_BUSY", "another thread is using this handle" },
    { HLLM_E_CANCELLED, "HLLM_E_CANCELLED", "cancelled" },
    { HLLM_E_CONTEXT_FULL, "HLLM_E_CONTEXT_FULL", "the context is full" },
    { HLLM_E_NUMERIC, "HLLM_E_NUMERIC", "a result is not a finite number" },
    { HLLM_E_CORRUPT, "HLLM_E_CORRUPT", "the data is damaged" },
    { HLLM_E_NOT_FOUND, "HLLM_E_NOT_FOUND", "not found" },
    { HLLM_E_BUFFER, "HLLM_E_BUFFER", "the buffer is too small" },
    { HLLM_E_TIMEOUT, "HLLM_E_TIMEOUT", "timed out" },
    { HLLM_E_INTERNAL, "HLLM_E_INTERNAL", "a defect of the library" },
};

const char *hl_status_name(hl_status code)
{
    for (size_t i = 0; i < HL_COUNT(codes); i++)
        if (codes[i].code == code) return codes[i].name;
    return "HLLM_E_?";
}

static const char *sentence(hl_status code)
{
    for (size_t i = 0; i < HL_COUNT(codes); i++)
        if (codes[i].code == code) return codes[i].sentence;
    return "unknown status";
}

void hl_error_init(hl_error *e)
{
    memset(e, 0, sizeof *e);
    pthread_mutex_init(&e->lock, NULL);
}

void hl_error_destroy(hl_error *e) { pthread_mutex_destroy(&e->lock); }

/* How many of the first `most` bytes of well-formed s are whole characters. */
static size_t whole_chars(const char *s, size_t most)
{
    size_t n = strnlen(s, most + 1);
    if (n <= most) return n;
    for (n = most; n && ((unsigned char)s[n] & 0xc0) == 0x80;) n--;
    return n;
}

hl_status hl_fail(hl_error *e, hl_status code, const char *fmt, ...)
{
    if (!e) return code;
    char raw[8192];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(raw, sizeof raw, fmt, ap);
    va_end(ap);
    hl_text_shorten(raw, sizeof e->text / 2);
    pthread_mutex_lock(&e->lock);
    e->code = code;
    hl_text_printable(e->text, sizeof e->text, raw);
    pthread_mutex_unlock(&e->lock);
    return code;
}

hl_status hl_fail_prefix(hl_error *e, hl_status code, const char *fmt, ...)
{
    if (!e) return code;
    char raw[sizeof e->text], old[sizeof e->text], front[sizeof e->text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(raw, sizeof raw, fmt, ap);
    va_end(ap);
    hl_text_printable(front, sizeof front, raw);
    pthread_mutex_lock(&e->lock);
    memcpy(old, e->code == code ? e->text : sentence(code), e->code == code ? sizeof old : strlen(sentence(code)) + 1);
    e->code = code;
    const size_t room = sizeof e->text - 3, n = whole_chars(front, room), m = whole_chars(old, room - n);
    memcpy(e->text, front, n);
    memcpy(e->text + n, ": ", 2);
    memcpy(e->text + n + 2, old, m);
    e->text[n + 2 + m] = 0;
    pthread_mutex_unlock(&e->lock);
    return code;
}

hl_status hl_error_settle(hl_error *e, hl_status code)
{
    if (!e || code == HLLM_OK) return code;
    pthread_mutex_lock(&e->lock);
    if (e->code != code || !e->text[0]) {
        e->code = code;
        hl_text_printable(e->text, sizeof e->text, sentence(code));
    }
    pthread_mutex_unlock(&e->lock);
    return code;
}

size_t hl_error_copy(const hl_error *ce, char *buf, size_t cap)
{
    hl_error *e = (hl_error *)(uintptr_t)ce;           /* the lock is the one mutable thing of a const handle */
    pthread_mutex_lock(&e->lock);
    size_t n = strlen(e->text);
    if (buf && cap) {
        const size_t m = whole_chars(e->text, cap - 1);
        memcpy(buf, e->text, m);
        buf[m] = 0;
    }
    pthread_mutex_unlock(&e->lock);
    return n + 1;
}
