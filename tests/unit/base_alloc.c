/* base_alloc.c: the host's allocator: free gets what alloc got, alignments are powers of two up to 2 MiB, a misaligned block is refused, nothing
 * is left, counts are right; the default one. */
#include "base/base.h"

#include "run_common.h"

enum { MAX_BLOCKS = 65536 };
typedef struct strict {
    pthread_mutex_t lock;
    struct { void *p, *raw; size_t bytes, align; } b[MAX_BLOCKS];
    size_t live, n_live;
    long calls, wrong, misalign_at;
} strict;
static strict st = { .lock = PTHREAD_MUTEX_INITIALIZER, .misalign_at = -1 };

static void *strict_alloc(void *user, size_t bytes, size_t align)
{
    strict *s = user;
    if (bytes > (size_t)1 << 40) return NULL;
    pthread_mutex_lock(&s->lock);
    long call = s->calls++;
    size_t i = 0;
    if (align == 0 || align & (align - 1) || align > 2u << 20 || bytes == 0) s->wrong++;
    while (i < MAX_BLOCKS && s->b[i].p) i++;
    void *raw = NULL, *p;
    if (i == MAX_BLOCKS || posix_memalign(&raw, align < 16 ? 16 : align, bytes + 16) != 0) exit(1);
    p = call == s->misalign_at ? (char *)raw + 8 : raw;
    memset(p, 0xa5, bytes);
    s->b[i].p = p; s->b[i].raw = raw; s->b[i].bytes = bytes; s->b[i].align = align;
    s->live += bytes;
    s->n_live++;
    pthread_mutex_unlock(&s->lock);
    return p;
}

static void strict_free(void *user, void *p, size_t bytes, size_t align)
{
    strict *s = user;
    pthread_mutex_lock(&s->lock);
    size_t i = 0;
    while (i < MAX_BLOCKS && s->b[i].p != p) i++;
    if (i == MAX_BLOCKS || s->b[i].bytes != bytes || s->b[i].align != align) s->wrong++;
    else {
        free(s->b[i].raw);
        s->b[i].p = NULL;
        s->live -= bytes;
        s->n_live--;
    }
    pthread_mutex_unlock(&s->lock);
}

static const hllm_allocator hook = { sizeof hook, 0, &st, strict_alloc, strict_free };

static void primitives(const hllm_allocator *h)
{
    hl_mem *m = NULL;
    REQUIRE(hl_mem_new(h, &m) == HLLM_OK);
    static const size_t sizes[] = { 0, 1, 63, 64, 65, 4095, 4096, 4097, 1 << 20, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 5 << 20 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t n = sizes[i];
        unsigned char *p = hl_alloc(m, n), *q = hl_alloc_zero(m, n), *r = hl_alloc_pages(m, n);
        CHECK(p && q && r && (uintptr_t)p % 64 == 0 && (uintptr_t)q % 64 == 0 && (uintptr_t)r % (n >= 2 << 20 ? 2u << 20 : 4096u) == 0);
        size_t bad = 0;
        for (size_t k = 0; k < n; k++) bad += q[k] != 0 || r[k] != 0;
        CHECK_MSG(bad == 0, "%zu bytes", n);
        memset(p, 7, n);
        memset(r, 7, n);
        p = hl_realloc(m, p, n + 100);
        CHECK(p && (n == 0 || (p[0] == 7 && p[n - 1] == 7)));
        p = hl_realloc(m, p, n / 2);
        CHECK(p && (n < 2 || p[n / 2 - 1] == 7));
        CHECK(hl_mem_live_bytes(m) >= n * 2 && hl_mem_peak_bytes(m) >= hl_mem_live_bytes(m));
        hl_free(m, p);
        hl_free(m, q);
        hl_free_pages(m, r, n);
        CHECK(hl_mem_live_bytes(m) == 0);
    }
    hl_free(m, NULL);
    hl_free_pages(m, NULL, 5);
    CHECK(hl_alloc(m, SIZE_MAX) == NULL && hl_alloc(m, SIZE_MAX - 64) == NULL && hl_alloc_array(m, SIZE_MAX / 2, 3) == NULL);
    CHECK(hl_alloc_pages(m, SIZE_MAX) == NULL && hl_alloc_pages(m, SIZE_MAX - (2 << 20)) == NULL);
    void *z = hl_realloc(m, NULL, 10);
    CHECK(z != NULL);
    hl_free(m, z);
    char *s = hl_strndup(m, "abc\0def", 7);
    CHECK(s && memcmp(s, "abc\0def", 8) == 0 && hl_strndup(m, "x", SIZE_MAX) == NULL);
    hl_free(m, s);
    CHECK(hl_mem_live_bytes(m) == 0 && hl_mem_calls(m) > 50);
    hl_mem_free(m);
}

static int everything(void)                            /* 0: refused for want of memory; 1: all went well */
{
    hllm_runtime *rt = NULL;
    hllm_model *m = NULL;
    hllm_engine *e = NULL;
    hllm_session *s = NULL;
    int32_t text[] = { 1, 50, 60, 70, 80 }, out[3];
    hllm_runtime_options o = { .struct_size = sizeof o, .n_threads = 2, .allocator = &hook };
    hllm_status rc = hllm_runtime_create(&o, &rt);
    if (rc == HLLM_OK) rc = hllm_model_open(rt, test_path("models/tiny-relu2-q8_0.gguf"), NULL, &m);
    if (rc == HLLM_OK) rc = hllm_engine_create(m, NULL, &e);
    if (rc == HLLM_OK) rc = hllm_session_create(e, NULL, &s);
    if (rc == HLLM_OK) greedy(s, text, 5, 0, out, 3);
    CHECK_MSG(rc == HLLM_OK || rc == HLLM_E_NOMEM || rc == HLLM_E_ARG, "%d", rc);
    hllm_session_free(s);
    hllm_engine_free(e);
    hllm_model_free(m);
    hllm_runtime_free(rt);
    return rc == HLLM_OK;
}

int main(void)
{
    primitives(NULL);
    primitives(&hook);
    CHECK(st.n_live == 0 && st.wrong == 0);
    CHECK(everything());
    CHECK_MSG(st.n_live == 0 && st.live == 0 && st.wrong == 0, "%zu blocks left, %ld wrong calls", st.n_live, st.wrong);
    /* A block that is not aligned is refused as if there were none. */
    st.calls = 0;
    CHECK(everything());
    const long calls = st.calls;
    int fine = 0;
    for (long i = 0; i < calls; i += i < 50 ? 1 : 1 + calls / 60) {
        st.calls = 0;
        st.misalign_at = i;
        fine += everything();
        CHECK_MSG(st.n_live == 0 && st.wrong == 0, "call %ld: %zu blocks left, %ld wrong calls", i, st.n_live, st.wrong);
    }
    st.misalign_at = -1;
    CHECK_MSG(fine <= 1, "%d", fine);                 /* one that only wanted to give memory back may fail */
    char why[200] = "";
    hllm_runtime *rt = (hllm_runtime *)1;
    hllm_allocator half = hook;
    half.free = NULL;
    CHECK(hllm_runtime_create(&(hllm_runtime_options){ .struct_size = sizeof(hllm_runtime_options), .allocator = &half, .error_text = why, .error_capacity = sizeof why }, &rt) == HLLM_E_ARG
          && rt == NULL && strstr(why, "free"));
    half.struct_size = 3;
    CHECK(hllm_runtime_create(&(hllm_runtime_options){ .struct_size = sizeof(hllm_runtime_options), .allocator = &half, .error_text = why, .error_capacity = sizeof why }, &rt) == HLLM_E_VERSION
          && rt == NULL && strstr(why, "allocator.struct_size is 3"));
    return check_done();
}
