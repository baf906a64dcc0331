/* merge.c: the merging loop that SPM and BPE share: a row of symbols, a queue of pairs that make a token.
 *
 * Each merge adds at most two pairs, so n symbols cost n log n.  A pair in the heap may be stale: it is when one of its symbols was
 * merged away or the two together are longer than the token (symbols only grow, so lengths tell).
 */
#include "model/vocab.h"

#include <string.h>

hl_status hl_grow(hl_mem *mem, void *block, size_t *cap, size_t n, size_t bytes_each)
{
    void *p, *old;
    size_t bytes, want = *cap < 64 ? 64 : *cap;
    if (n <= *cap) return HLLM_OK;
    while (want < n) want *= 2;
    if (hl_mul_size(want, bytes_each, &bytes) != HLLM_OK) return HLLM_E_NOMEM;
    memcpy(&old, block, sizeof old);             /* block is the address of a pointer of any type */
    if (!(p = hl_realloc(mem, old, bytes))) return HLLM_E_NOMEM;
    memcpy(block, &p, sizeof p);
    *cap = want;
    return HLLM_OK;
}

/* Four children per item: half the levels of a binary heap, and with HEAP_SHIFT unused items in front the four lie in one cache
 * line (blocks are 64-byte aligned), which is what a heap larger than the caches is bound by. */
enum { HEAP_SHIFT = 3 };

hl_status hl_heap_push(hl_mem *mem, hl_heap *h, hl_heap_item item)
{
    if (h->head == h->n_run) h->head = h->n_run = 0;
    if (h->n_run == 0 || item.order >= h->run[h->n_run - 1].order) {
        if (h->n_run == h->cap_run && hl_grow(mem, &h->run, &h->cap_run, h->n_run + 1, sizeof *h->run) != HLLM_OK) return HLLM_E_NOMEM;
        h->run[h->n_run++] = item;
        h->n++;
        return HLLM_OK;
    }
    if (h->n_heap + HEAP_SHIFT >= h->cap_heap &&
        hl_grow(mem, &h->heap, &h->cap_heap, h->n_heap + HEAP_SHIFT + 1, sizeof *h->heap) != HLLM_OK) return HLLM_E_NOMEM;
    hl_heap_item *x = h->heap + HEAP_SHIFT;
    size_t i = h->n_heap++;
    for (; i && x[(i - 1) / 4].order > item.order; i = (i - 1) / 4) x[i] = x[(i - 1) / 4];
    x[i] = item;
    h->n++;
    return HLLM_OK;
}

static bool run_is_next(const hl_heap *h)
{
    return h->head < h->n_run && (h->n_heap == 0 || h->run[h->head].order <= h->heap[HEAP_SHIFT].order);
}

const hl_heap_item *hl_heap_top(const hl_heap *h) { return run_is_next(h) ? &h->run[h->head] : &h->heap[HEAP_SHIFT]; }

hl_heap_item hl_heap_pop(hl_heap *h)
{
    h->n--;
    if (run_is_next(h)) return h->run[h->head++];
    hl_heap_item *x = h->heap + HEAP_SHIFT, top = x[0], last = x[--h->n_heap];
    size_t i = 0;
    for (;;) {
        size_t first = 4 * i + 1, end = HL_MIN(first + 4, h->n_heap), least = first;
        if (first >= h->n_heap) break;
        for (size_t k = first + 1; k < end; k++) if (x[k].order < x[least].order) least = k;
        if (last.order <= x[least].order) break;
        x[i] = x[least];
        i = least;
    }
    if (h->n_heap) x[i] = last;
    return top;
}

void hl_heap_free(hl_mem *mem, hl_heap *h)
{
    hl_free(mem, h->run);
    hl_free(mem, h->heap);
    *h = (hl_heap){ 0 };
}

hl_status hl_work_emit(hl_tokenize_work *w, int32_t id)
{
    if (w->n_out == w->cap_out && hl_grow(w->mem, &w->out, &w->cap_out, w->n_out + 1, sizeof *w->out) != HLLM_OK) return HLLM_E_NOMEM;
    w->out[w->n_out++] = id;
    return hl_env_go_on(w->env);
}

hl_status hl_work_symbol(hl_tokenize_work *w, uint32_t n, int32_t id)
{
    if (w->n_sym + n > w->cap_sym && hl_grow(w->mem, &w->sym, &w->cap_sym, w->n_sym + n, sizeof *w->sym) != HLLM_OK) return HLLM_E_NOMEM;
    hl_symbol *s = w->sym + w->n_sym;
    s[n - 1].n = n;
    *s = (hl_symbol){ n, id };
    w->n_sym += n;
    return HLLM_OK;
}

enum { DEAD = INT32_MIN };                       /* the id of a symbol that was merged into its left neighbour */

static hl_status try_pair(hl_tokenize_work *w, const char *text, hl_pair_fn *pair, size_t left)
{
    uint32_t rank;
    int32_t id;
    const hl_symbol *a = &w->sym[left], *b = a + a->n;
    if (left + a->n == w->n_sym || !pair(w->v, text + left, a, b, &rank, &id)) return HLLM_OK;
    return hl_heap_push(w->mem, &w->heap, (hl_heap_item){ (uint64_t)rank << 32 | left, a->n + b->n, id });
}

hl_status hl_merge(hl_tokenize_work *w, const char *text, hl_pair_fn *pair)
{
    hl_status rc = HLLM_OK;
    for (size_t i = 0; i < w->n_sym; i += w->sym[i].n) HL_TRY(try_pair(w, text, pair, i));
    while (w->heap.n) {                          /* empty at the end, ready for the next word */
        HL_TRY(hl_env_go_on(w->env));
        hl_heap_item top = hl_heap_pop(&w->heap);
        size_t left = (uint32_t)top.order;
        hl_symbol *a = &w->sym[left], *b = a + a->n;
        if (a->id == DEAD || left + a->n == w->n_sym || a->n + b->n != top.size) continue;
        b->id = DEAD;
        a[top.size - 1].n = top.size;
        *a = (hl_symbol){ top.size, top.id };
        if (left) HL_TRY(try_pair(w, text, pair, left - a[-1].n));
        HL_TRY(try_pair(w, text, pair, left));
    }
done:
    return rc;
}
