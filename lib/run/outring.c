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
done:
    if (rc != HLLM_OK) hl_outring_destroy(r);
    return rc;
}

void hl_outring_destroy(hl_outring *r)
{
    if (!r->mem) return;
    hl_free(r->mem, r->ring);
    hl_free(r->mem, r->hold);
    hl_free(r->mem, r->nodes);
    memset(r, 0, sizeof *r);
}

/* ---- stop texts ---- */

static uint32_t child_of(const hl_outring *r, uint32_t node, uint8_t byte)
{
    if (node == 0) return r->first[byte];
    uint32_t c = r->nodes[node].child;
    while (c && r->nodes[c].byte != byte) c = r->nodes[c].next;
    return c;
}

/* From the longest node that a text ends with to that of the text and one byte more. */
static uint32_t step(const hl_outring *r, uint32_t node, uint8_t byte)
{
    uint32_t c;
    while ((c = child_of(r, node, byte)) == 0 && node) node = r->nodes[node].shorter;
    return c;
}

static uint32_t add_child(hl_outring *r, uint32_t parent, uint8_t byte)
{
    const uint32_t c = (uint32_t)r->n_nodes++, shorter = parent ? step(r, r->nodes[parent].shorter, byte) : 0;
    HL_ASSERT(r->n_nodes <= r->cap_nodes);
    r->nodes[c] = (hl_stop_node){ 0, r->nodes[parent].child, shorter, (uint16_t)(r->nodes[parent].n + 1), r->nodes[shorter].stop, byte };
    r->nodes[parent].child = c;
    if (parent == 0) r->first[byte] = c;
    return c;
}

hl_status hl_outring_reserve(hl_outring *r, const char *const *stop, uint32_t n_stop)
{
    size_t n = 1;
    for (uint32_t i = 0; i < n_stop; i++) n += strlen(stop[i]);
    if (n_stop == 0 || n <= r->cap_nodes) return HLLM_OK;
    hl_stop_node *nodes = hl_alloc_array(r->mem, n, sizeof *nodes);
    if (!nodes) return HLLM_E_NOMEM;
    hl_free(r->mem, r->nodes);
    r->nodes = nodes;
    r->cap_nodes = n;
    return HLLM_OK;
}

void hl_outring_start(hl_outring *r, const char *const *stop, uint32_t n_stop)
{
    uint32_t at[HL_MAX_STOPS] = { 0 };
    bool more = n_stop > 0;
    r->head = r->n = r->n_hold = 0;
    r->n_nodes = r->at = 0;
    if (!more) return;
    memset(r->first, 0, sizeof r->first);
    r->nodes[r->n_nodes++] = (hl_stop_node){ 0 };
    /* The first bytes of all, then the second: a node's shorter one is there before it. */
    for (uint32_t k = 0; more; k++) {
        more = false;
        for (uint32_t i = 0; i < n_stop; i++) {
            if (r->nodes[at[i]].n < k || stop[i][k] == 0) continue;              /* it has ended */
            const uint32_t c = child_of(r, at[i], (uint8_t)stop[i][k]);
            at[i] = c ? c : add_child(r, at[i], (uint8_t)stop[i][k]);
            if (stop[i][k + 1] == 0) r->nodes[at[i]].stop = (uint16_t)(k + 1);
            else more = true;
        }
    }
}

/* ---- text ---- */

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
    size_t stop_at = SIZE_MAX, keep = 0;               /* keep: bytes at the end that may be the beginning of a stop text */
    for (size_t i = 0; i < n && r->n_nodes; i++) {
        r->at = step(r, r->at, (uint8_t)piece[i]);
        const hl_stop_node *node = &r->nodes[r->at];
        if (node->stop) stop_at = HL_MIN(stop_at, r->n_hold + i + 1 - node->stop);
    }
    if (r->n_nodes) keep = r->nodes[r->at].n;
    memcpy(r->hold + r->n_hold, piece, n);
    r->n_hold += n;
    if (stop_at != SIZE_MAX) {
        r->n_hold = stop_at;
        release(r, stop_at);
        return true;
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
