/* log.c: the newest 256 lines, polled by the host.  Never blocks on the host: old lines are overwritten. */
#include "base.h"

#include <stdio.h>
#include <string.h>

enum { N_LINES = 256, LINE = 320 };

struct hl_log {
    pthread_mutex_t lock;
    uint32_t first, n;
    struct { uint32_t level; char text[LINE]; } lines[N_LINES];
};

hl_status hl_log_new(hl_mem *mem, hl_log **out)
{
    *out = hl_alloc_zero(mem, sizeof **out);
    if (!*out) return HLLM_E_NOMEM;
    pthread_mutex_init(&(*out)->lock, NULL);
    return HLLM_OK;
}

void hl_log_free(hl_mem *mem, hl_log *log)
{
    if (!log) return;
    pthread_mutex_destroy(&log->lock);
    hl_free(mem, log);
}

void hl_log_write(hl_log *log, uint32_t level, const char *fmt, ...)
{
    if (!log) return;
    char raw[8192], text[LINE];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(raw, sizeof raw, fmt, ap);
    va_end(ap);
    hl_text_shorten(raw, LINE - 20);
    hl_text_printable(text, sizeof text, raw);
    pthread_mutex_lock(&log->lock);
    uint32_t at = (log->first + log->n) % N_LINES;
    if (log->n == N_LINES) log->first = (log->first + 1) % N_LINES;
    else log->n++;
    log->lines[at].level = level;
    memcpy(log->lines[at].text, text, sizeof text);
    pthread_mutex_unlock(&log->lock);
}

hl_status hl_log_poll(hl_log *log, uint32_t *level, char *buf, size_t cap, size_t *needed)
{
    hl_status rc = HLLM_OK;
    *level = 0;
    *needed = 0;
    pthread_mutex_lock(&log->lock);
    if (log->n) {
        const char *text = log->lines[log->first].text;
        *needed = strlen(text) + 1;
        if (cap < *needed) rc = HLLM_E_BUFFER;
        else {
            *level = log->lines[log->first].level;
            memcpy(buf, text, *needed);
            log->first = (log->first + 1) % N_LINES;
            log->n--;
        }
    }
    pthread_mutex_unlock(&log->lock);
    return rc;
}
