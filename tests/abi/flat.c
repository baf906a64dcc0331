/* flat.c: load, generate, free, a thousand times: memory, descriptors and threads stay exactly what they were.
 *
 * usage: flat [ROUNDS]     (default 1,000; under sanitizers 40, where the heap's own figures mean nothing and are not judged)
 * Each round opens a runtime of two threads, the shipped model, an engine and a session, generates, and frees them in another
 * order than the round before.  After every round
 *   - every second pair of rounds has a counting allocator: the library has given back every block and byte that it took;
 *   - from round 100 on: the bytes in use on the C library's heap, which the library's own allocator also draws from, are the same to the byte;
 *   - descriptors and threads are as many as before.
 * From round 100 to the last the anonymous resident size, trimmed, moves by 1 MiB at most: pages are the kernel's and a thread's stack may keep
 * one more or less, while a leak of a page or of 2 KiB in each round is beyond it. */
#include <dirent.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hostile.h"

/* Anonymous memory of the process in KiB. */
static long resident_kib(void)
{
    char line[256];
    long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f)) if (sscanf(line, "RssAnon: %ld", &kib) == 1) break;
    if (f) fclose(f);
    return kib;
}

static int entries(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    if (!d) return -1;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* Bytes that the C library has handed out, small and mapped ones. */
static size_t in_use(void)
{
    const struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

enum { MOVES_KIB = 1024 };
static long loaded_kib;
static counting count = COUNTING_INIT;

static void round_of(int i)
{
    hllm_runtime *rt = NULL;
    hllm_model *m = NULL;
    hllm_engine *e = NULL;
    hllm_session *s = NULL;
    char text[256];
    const hllm_allocator hook = counting_hook(&count);
    hllm_runtime_options ro = { .struct_size = sizeof ro, .n_threads = 2, .allocator = i / 2 % 2 ? &hook : NULL };
    hllm_session_options so = { .struct_size = sizeof so, .n_ctx = 64 };
    hllm_engine_options eo = { .struct_size = sizeof eo, .load = i % 2 ? HLLM_LOAD_READ : HLLM_LOAD_MMAP };
    hllm_generate_options go = { .struct_size = sizeof go, .max_tokens = 3, .flags = HLLM_GENERATE_GREEDY, .stop = (const char *const[]){ "qqq" }, .n_stop = 1 };
    hllm_poll_result r = { .struct_size = sizeof r };
    CHECK(hllm_runtime_create(&ro, &rt) == HLLM_OK);
    CHECK(hllm_model_open(rt, "/nothing", NULL, &m) == HLLM_E_NOT_FOUND);       /* failures must not leak either */
    CHECK(hllm_model_open(rt, test_path("models/tiny-relu2-q8_0.gguf"), NULL, &m) == HLLM_OK);
    CHECK(hllm_engine_create(m, &eo, &e) == HLLM_OK);
    CHECK(hllm_session_create(e, &so, &s) == HLLM_OK);
    CHECK(hllm_generate_start(s, "In the", 6, &go) == HLLM_OK);
    if (i % 3)                                                                  /* every third is freed while it runs */
        while (r.run != HLLM_RUN_DONE && check_failed == 0) CHECK(hllm_generate_poll(s, 1000, text, sizeof text, &r) == HLLM_OK);
    if (i % 2) loaded_kib = resident_kib();
    if (i % 2) { hllm_runtime_free(rt); hllm_model_free(m); hllm_engine_free(e); hllm_session_free(s); }
    else { hllm_session_free(s); hllm_engine_free(e); hllm_model_free(m); hllm_runtime_free(rt); }
    CHECK_MSG(count.live == 0 && count.blocks == 0, "round %d: %zu bytes in %ld blocks were not given back", i, count.live, count.blocks);
}

/* Threads of this process.  One that has been joined may still be listed for a moment: waits until there are no more than `most`, 2 s at the longest. */
static int threads_at_most(int most)
{
    int n = entries("/proc/self/task");
    for (int looks = 0; n > most && looks < 2000; looks++) {
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
        n = entries("/proc/self/task");
    }
    return n;
}

int main(int argc, char **argv)
{
#ifdef HOSTILE_SLOW
    const int judge_heap = 0;
    int rounds = 40;
#else
    const int judge_heap = 1;
    int rounds = 1000;
    /* The C library keeps freed blocks of each thread as if they were in use; without that its count is exact.  It is told at a program's start. */
    if (!getenv("GLIBC_TUNABLES")) {
        setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1);
        execv("/proc/self/exe", argv);
    }
#endif
    if (argc > 1) rounds = atoi(argv[1]);
    const int warm = rounds / 10;
    long before = 0;
    size_t heap = 0;
    mallopt(M_ARENA_MAX, 1);                           /* else the C library spreads threads over arenas, which looks like growth */
    int fds = 0, threads = 0;
    for (int i = 0; i < rounds && check_failed == 0; i++) {
        round_of(i);
        if (i == warm) {
            malloc_trim(0);
            before = resident_kib();
            heap = in_use();
            fds = entries("/proc/self/fd");
            nanosleep(&(struct timespec){ 0, 100000000 }, NULL);
            threads = entries("/proc/self/task");
            CHECK(before > 0 && fds > 0 && threads > 0);
        }
        if (i <= warm) continue;
        if (judge_heap) CHECK_MSG(in_use() == heap, "round %d: bytes in use went from %zu to %zu", i, heap, in_use());
        CHECK_MSG(entries("/proc/self/fd") == fds, "round %d: %d descriptors, %d before", i, entries("/proc/self/fd"), fds);
        const int threads_now = threads_at_most(threads);
        CHECK_MSG(threads_now == threads, "round %d: %d threads, %d before", i, threads_now, threads);
    }
    CHECK(count.calls > 0);
    malloc_trim(0);
    const long after = resident_kib();
    fprintf(stderr, "%d rounds: %ld KiB with a model, %ld KiB after round %d, %ld KiB at the end\n", rounds, loaded_kib, before, warm, after);
    if (!judge_heap) return check_done();
    CHECK_MSG(labs(after - before) <= MOVES_KIB, "resident KiB went from %ld to %ld", before, after);
    /* Negative controls: one byte of the heap, and 2 KiB a round of the rest, would have been seen. */
    char *volatile byte = malloc(1);
    CHECK(byte && in_use() != heap);
    free(byte);
    if (rounds >= 1000) {
        const size_t bytes = (size_t)(rounds - warm) * 2048;
        char *leak = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(leak != MAP_FAILED);
        memset(leak, 1, bytes);
        CHECK(labs(resident_kib() - before) > MOVES_KIB);
        munmap(leak, bytes);
    }
    return check_done();
}
