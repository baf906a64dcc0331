/* alloc.c: the host's allocator with accounting.
 *
 * Small blocks carry a 64-byte head with their size, so that hl_free needs no size; large ones (hl_alloc_pages) do not, since a head
 * would spoil their page alignment.  Any thread may call everything here.
 */
#include "base.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HEAD = 64, BIG = 2 << 20, PAGE = 4096 };

struct hl_mem {
    hllm_allocator hook;
    _Atomic uint64_t live, peak, calls;                /* written by any */
};

typedef struct head { uint64_t bytes; uint64_t magic; } head;
static const uint64_t head_magic = 0x686c6d656d21ull;
_Static_assert(sizeof(head) <= HEAD, "head");

/* The default: the C library, and anonymous memory that asks for 2 MiB pages for large blocks. */
static void *default_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    if (bytes > PTRDIFF_MAX) return NULL;
    if (align < BIG) {
        void *p = NULL;
        return posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, bytes) == 0 ? p : NULL;
    }
    size_t n = bytes + BIG;                            /* mmap aligns to 4 KiB only: map more, give the ends back */
    if (n < bytes) return NULL;
    char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    size_t front = (BIG - (uintptr_t)p % BIG) % BIG, back = BIG - front;
    if (front) munmap(p, front);
    if (back) munmap(p + front + bytes, back);
    madvise(p + front, bytes, MADV_HUGEPAGE);          /* a wish: without it everything still works */
    return p + front;
}

static void default_free(void *user, void *p, size_t bytes, size_t align)
{
    (void)user;
    if (align < BIG) free(p);
    else munmap(p, bytes);
}

static void *get(hl_mem *m, size_t bytes, size_t align)
{
    void *p = m->hook.alloc(m->hook.user, bytes, align);
    atomic_fetch_add_explicit(&m->calls, 1, memory_order_relaxed);
    if (p && (uintptr_t)p % align) {                   /* a host's defect: refuse the block rather than crash on it later */
        m->hook.free(m->hook.user, p, bytes, align);
        p = NULL;
    }
    if (!p) return NULL;
    uint64_t now = atomic_fetch_add_explicit(&m->live, bytes, memory_order_relaxed) + bytes;
    uint64_t peak = atomic_load_explicit(&m->peak, memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(&m->peak, &peak, now, memory_order_relaxed, memory_order_relaxed)) { }
    return p;
}

static void give(hl_mem *m, void *p, size_t bytes, size_t align)
{
    atomic_fetch_sub_explicit(&m->live, bytes, memory_order_relaxed);
    m->hook.free(m->hook.user, p, bytes, align);
}

hl_status hl_mem_new(const hllm_allocator *hook, hl_mem **out)
{
    hllm_allocator h = { sizeof h, 0, NULL, default_alloc, default_free };
    *out = NULL;
    if (hook) h = *hook;
    hl_mem *m = h.alloc(h.user, sizeof *m, 64);
    if (!m) return HLLM_E_NOMEM;
    if ((uintptr_t)m % 64) {
        h.free(h.user, m, sizeof *m, 64);
        return HLLM_E_ARG;
    }
    memset(m, 0, sizeof *m);
    m->hook = h;
    *out = m;
    return HLLM_OK;
}

void hl_mem_free(hl_mem *m)
{
    if (!m) return;
    HL_ASSERT(atomic_load(&m->live) == 0);
    hllm_allocator h = m->hook;
    h.free(h.user, m, sizeof *m, 64);
}

void *hl_alloc(hl_mem *m, size_t bytes)
{
    size_t n;
    if (hl_add_size(bytes ? bytes : 1, HEAD, &n) != HLLM_OK) return NULL;
    char *p = get(m, n, 64);
    if (!p) return NULL;
    *(head *)(void *)p = (head){ bytes, head_magic };
    return p + HEAD;
}

void *hl_alloc_zero(hl_mem *m, size_t bytes)
{
    void *p = hl_alloc(m, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

void *hl_alloc_array(hl_mem *m, size_t n, size_t bytes_each)
{
    size_t bytes;
    return hl_mul_size(n, bytes_each, &bytes) == HLLM_OK ? hl_alloc_zero(m, bytes) : NULL;
}

static head *head_of(void *block)
{
    head *h = (head *)(void *)((char *)block - HEAD);
    HL_ASSERT(h->magic == head_magic);
    return h;
}

void *hl_realloc(hl_mem *m, void *block, size_t bytes)
{
    void *p = hl_alloc(m, bytes);
    if (p && block) {
        size_t old = head_of(block)->bytes;
        memcpy(p, block, old < bytes ? old : bytes);
        hl_free(m, block);
    }
    return p;
}

void hl_free(hl_mem *m, void *block)
{
    if (!block) return;
    head *h = head_of(block);
    size_t n = (h->bytes ? h->bytes : 1) + HEAD;
    h->magic = 0;
    give(m, h, n, 64);
}

char *hl_strndup(hl_mem *m, const char *s, size_t n)
{
    char *p = n < SIZE_MAX ? hl_alloc(m, n + 1) : NULL;
    if (p) { memcpy(p, s, n); p[n] = 0; }
    return p;
}

static size_t pages_align(size_t bytes) { return bytes >= BIG ? BIG : PAGE; }
static size_t pages_bytes(size_t bytes) { return hl_align_up(bytes ? bytes : 1, PAGE); }

void *hl_alloc_pages(hl_mem *m, size_t bytes)
{
    if (bytes > SIZE_MAX - BIG) return NULL;
    void *p = get(m, pages_bytes(bytes), pages_align(bytes));
    /* Fresh anonymous memory is zero already and touching it would make it resident before it is needed. */
    if (p && (m->hook.alloc != default_alloc || pages_align(bytes) != BIG)) memset(p, 0, pages_bytes(bytes));
    return p;
}

void hl_free_pages(hl_mem *m, void *block, size_t bytes)
{
    if (block) give(m, block, pages_bytes(bytes), pages_align(bytes));
}

uint64_t hl_mem_live_bytes(const hl_mem *m) { return atomic_load_explicit(&((hl_mem *)(uintptr_t)m)->live, memory_order_relaxed); }
uint64_t hl_mem_peak_bytes(const hl_mem *m) { return atomic_load_explicit(&((hl_mem *)(uintptr_t)m)->peak, memory_order_relaxed); }
uint64_t hl_mem_calls(const hl_mem *m) { return atomic_load_explicit(&((hl_mem *)(uintptr_t)m)->calls, memory_order_relaxed); }
