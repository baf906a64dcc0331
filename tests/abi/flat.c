/* flat.c: load, generate, free, a thousand times: memory, descriptors and threads stay what they were.
 *
 * usage: flat [ROUNDS]     (default 1,000; under sanitizers 40, where only the count of live bytes, descriptors and threads is judged)
 * Each round opens a runtime of two threads, the shipped model, an engine and a session, generates, and frees them in another
 * order than the round before.  Judged from 30 % of the rounds to the last: the anonymous resident size after freeing (pages of code that
 * happen to be mapped are not ours) may move by 1 % of what it is while a model is loaded; bytes in use on the heap by 8 KiB. */
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

static long loaded_kib;

static void round_of(int i)
{
    hllm_runtime *rt = NULL;
    hllm_model *m = NULL;
    hllm_engine *e = NULL;
    hllm_session *s = NULL;
    char text[256];
    hllm_runtime_options ro = { .struct_size = sizeof ro, .n_threads = 2 };
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
}

int main(int argc, char **argv)
{
#ifdef HOSTILE_SLOW
    const int judge_resident = 0;
    int rounds = 40;
#else
    const int judge_resident = 1;
    int rounds = 1000;
#endif
    if (argc > 1) rounds = atoi(argv[1]);
    const int warm = rounds * 3 / 10;
    long before = 0;
    size_t heap = 0;
    mallopt(M_ARENA_MAX, 1);                           /* else the C library spreads threads over arenas, which looks like growth */
    int fds = 0, threads = 0;
    for (int i = 0; i < rounds && check_failed == 0; i++) {
        round_of(i);
        if (i != warm) continue;
        before = resident_kib();
        heap = mallinfo2().uordblks;
        fds = entries("/proc/self/fd");
        threads = entries("/proc/self/task");
        CHECK(before > 0 && fds > 0 && threads > 0);
    }
    const long after = resident_kib(), change = labs(after - before);
    fprintf(stderr, "%d rounds: %ld KiB with a model, %ld KiB after round %d, %ld KiB at the end\n", rounds, loaded_kib, before, warm, after);
    if (judge_resident) CHECK_MSG(mallinfo2().uordblks <= heap + 8192, "bytes in use went from %zu to %zu", heap, mallinfo2().uordblks);
    if (judge_resident) CHECK_MSG(change * 100 <= loaded_kib, "resident KiB went from %ld to %ld", before, after);
    CHECK_MSG(entries("/proc/self/fd") == fds, "%d descriptors, %d before", entries("/proc/self/fd"), fds);
    CHECK_MSG(entries("/proc/self/task") == threads, "%d threads, %d before", entries("/proc/self/task"), threads);
    /* Negative control: a leak of 256 bytes a round would have been seen. */
    if (judge_resident) {
        const size_t bytes = (size_t)rounds * 256;
        char *leak = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(leak != MAP_FAILED);
        memset(leak, 1, bytes);
        if (rounds >= 1000) CHECK((resident_kib() - before) * 100 > loaded_kib);
        munmap(leak, bytes);
    }
    return check_done();
}
