/* outring.c: see outring.h. */
#include "run/outring.h"

#include <string.h>

enum { RING_BYTES = 64 << 10 };

hl_status hl_outring_init(hl_mem *mem, hl_outring *r, size_t max_piece)
{
    hl_status rc = HLLM_OK;
    memset(r, 0, sizeof *r);
    r->mem = mem;
    r->hold_cap = max_piece + HL_MAX_STOP_BYTES + 8;
    r->cap = HL_MAX((size_t)RING_BYTES, 3 * r->hold_cap);            /* a bad byte becomes three */
    HL_NEED(r->ring = hl_alloc(mem, r->cap));
    HL_NEED(r->hold = hl_alloc(mem, r->hold_cap));
    HL_NEED(r->stops = hl_alloc(mem, (size_t)HL_MAX_STOPS * HL_MAX_STOP_BYTES));
done:
    if (rc != HLLM_OK) hl_outring_destroy(r);
    return rc;
}

void hl_outring_destroy(hl_outring *r)
{
    if (!r->mem) return;
    hl_free(r->mem, r->ring);
    hl_free(r->mem, r->hold);
    hl_free(r->mem, r->stops);
    memset(r, 0, sizeof *r);
}

void hl_outring_start(hl_outring *r, const char *const *stop, uint32_t n_stop)
{
    r->head = r->n = r->n_hold = 0;
    r->n_stops = n_stop;
    for (uint32_t i = 0; i < n_stop; i++) {
        r->stop_bytes[i] = (uint32_t)strlen(stop[i]);
        memcpy(r->stops + (size_t)i * HL_MAX_STOP_BYTES, stop[i], r->stop_bytes[i]);
    }
}

bool hl_outring_has_room(const hl_outring *r, size_t piece_bytes) { return r->cap - r->n >= 3 * (r->n_hold + piece_bytes); }

static void put(hl_outring *r, const char *s, size_t n)
{
    HL_ASSERT(r->cap - r->n >= n);
    for (size_t i = 0; i < n; i++) r->ring[(r->head + r->n++) % r->cap] = s[i];
}

/* Makes the first n held bytes final. */
static void release(hl_outring *r, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = hl_utf8_decode(r->hold + i, n - i, &cp);
        if (cp == UINT32_MAX) put(r, "\xef\xbf\xbd", 3);
        else put(r, r->hold + i, len);
        i += len;
    }
    memmove(r->hold, r->hold + n, r->n_hold - n);
    r->n_hold -= n;
}

bool hl_outring_push(hl_outring *r, const char *piece, size_t n)
{
    HL_ASSERT(r->n_hold + n <= r->hold_cap);
    memcpy(r->hold + r->n_hold, piece, n);
    r->n_hold += n;
    size_t keep = 0;                                   /* bytes at the end that may be the beginning of a stop text */
    for (size_t at = 0; at < r->n_hold && r->n_stops; at++)
        for (uint32_t i = 0; i < r->n_stops; i++) {
            const char *stop = r->stops + (size_t)i * HL_MAX_STOP_BYTES;
            const size_t left = r->n_hold - at, m = HL_MIN(left, (size_t)r->stop_bytes[i]);
            if (memcmp(r->hold + at, stop, m) != 0) continue;
            if (m == r->stop_bytes[i]) {
                r->n_hold = at;
                release(r, at);
                return true;
            }
            keep = HL_MAX(keep, left);
        }
    keep = HL_MAX(keep, hl_utf8_tail(r->hold, r->n_hold));
    size_t final = r->n_hold - keep;
    /* A stop text may begin inside a character's bytes only if it is itself no UTF-8: never cut a character here. */
    final -= hl_utf8_tail(r->hold, final);
    release(r, final);
    return false;
}

void hl_outring_finish(hl_outring *r) { release(r, r->n_hold); }

size_t hl_outring_take(hl_outring *r, char *buf, size_t cap)
{
    size_t n = 0;
    while (r->n) {
        unsigned char c = (unsigned char)r->ring[r->head];
        size_t len = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        if (n + len >= cap) break;
        for (size_t i = 0; i < len; i++) { buf[n++] = r->ring[r->head]; r->head = (r->head + 1) % r->cap; }
        r->n -= len;
    }
    buf[n] = 0;
    return n;
}
