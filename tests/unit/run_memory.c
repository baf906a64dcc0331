/* run_memory.c: what is needed is said before it is taken and refused with both numbers: by budget, by cgroup, by the process's own limits; peak resident size; loading with
 * progress and cancel; a model inside a bundle, at an odd offset, mapped and read: the same bits. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "../hostile/hostile.h"
#include "run/session.h"
#include "run_common.h"

static int32_t text[64];
#define TINY test_path("models/tiny-relu2-q8_0.gguf")

static uint64_t status_kb(const char *key)
{
    char line[256];
    uint64_t kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) kb = strtoull(line + strlen(key) + 1, NULL, 10);
    if (f) fclose(f);
    return kb;
}

static int has_number(const char *text_of_error, uint64_t n)
{
    char digits[32];
    snprintf(digits, sizeof digits, "%" PRIu64, n);
    return strstr(text_of_error, digits) != NULL;
}

static hllm_memory_need need_of(const hllm_model *m, uint32_t n_ctx, uint32_t kv, uint64_t ram)
{
    hllm_memory_need need = { .struct_size = sizeof need };
    hllm_engine_options eo = { .struct_size = sizeof eo, .ram_bytes = ram };
    hllm_session_options so = { sizeof so, n_ctx, kv, 0, NULL };
    OK_M(hllm_model_memory(m, &eo, &so, &need), m);
    return need;
}

static void budgets(const setup *u)
{
    hllm_memory_need need = need_of(u->m, 256, 0, 0);
    const uint64_t session_bytes = need.kv_bytes + need.scratch_bytes;
    hllm_engine *e = (hllm_engine *)1;
    hllm_session *s = (hllm_session *)1, *t;
    char why[512];
    hllm_session_options so = { sizeof so, 256, 0, 0, NULL };
    hllm_engine_options eo = { .struct_size = sizeof eo, .load = HLLM_LOAD_READ };
    CHECK(need.weights_bytes > 5000000 && need.kv_bytes > 0 && need.scratch_bytes > 0 && need.total_bytes == need.weights_bytes + need.kv_bytes + need.scratch_bytes && need.available_bytes > 0);
    CHECK(need_of(u->m, 256, 0, 12345).available_bytes == 12345);
    CHECK(need_of(u->m, 256, HLLM_KV_F32, 0).kv_bytes > need.kv_bytes && need_of(u->m, 256, HLLM_KV_Q8_0, 0).kv_bytes < need.kv_bytes);
    eo.ram_bytes = need.weights_bytes - 1;
    CHECK(hllm_engine_create(u->m, &eo, &e) == HLLM_E_NOMEM && e == NULL);
    hllm_model_last_error(u->m, why, sizeof why);
    CHECK_MSG(has_number(why, need.weights_bytes) && has_number(why, need.weights_bytes - 1), "%s", why);
    eo.ram_bytes = need.total_bytes - 1;               /* the weights fit, the session does not: said before loading when it is named */
    eo.session = &so;
    e = (hllm_engine *)1;
    CHECK(hllm_engine_create(u->m, &eo, &e) == HLLM_E_NOMEM && e == NULL);
    hllm_model_last_error(u->m, why, sizeof why);
    CHECK_MSG(has_number(why, need.total_bytes) && has_number(why, need.total_bytes - 1), "%s", why);
    eo.load = HLLM_LOAD_MMAP;                          /* mapped weights do not count, the session does */
    eo.ram_bytes = session_bytes - 1;
    e = (hllm_engine *)1;
    CHECK(hllm_engine_create(u->m, &eo, &e) == HLLM_E_NOMEM && e == NULL);
    hllm_model_last_error(u->m, why, sizeof why);
    CHECK_MSG(has_number(why, session_bytes) && has_number(why, session_bytes - 1) && strstr(why, "KV cache and scratch"), "%s", why);
    eo.ram_bytes = session_bytes;                      /* counted, not taken: the session still gets it */
    OK_M(hllm_engine_create(u->m, &eo, &e), u->m);
    OK_E(hllm_session_create(e, &so, &s), e);
    hllm_session_free(s);
    hllm_engine_free(e);
    eo.load = HLLM_LOAD_AUTO;
    const hllm_session_options small = { sizeof small, 256, 0, 64, NULL };
    hllm_memory_need tight = { .struct_size = sizeof tight };
    OK_M(hllm_model_memory(u->m, NULL, &small, &tight), u->m);
    eo.ram_bytes = tight.total_bytes;                  /* weights alone would be read, the named session makes them mapped; then two sessions fit */
    REQUIRE(2 * tight.weights_bytes > eo.ram_bytes && tight.weights_bytes < eo.ram_bytes - eo.ram_bytes / 8);
    for (int named = 0; named < 2; named++) {
        eo.session = named ? &small : NULL;
        OK_M(hllm_engine_create(u->m, &eo, &e), u->m);
        OK_E(hllm_session_create(e, &small, &s), e);
        t = (hllm_session *)1;
        hllm_status rc = hllm_session_create(e, &small, &t);
        CHECK_MSG(named ? rc == HLLM_OK && t : rc == HLLM_E_NOMEM && !t, "session named %d: %d", named, rc);
        hllm_session_free(t);
        hllm_session_free(s);
        hllm_engine_free(e);
    }
    so.n_ctx = 100000;                                 /* what could not be made is said before loading, too */
    eo.session = &so;
    e = (hllm_engine *)1;
    CHECK(hllm_engine_create(u->m, &eo, &e) == HLLM_E_ARG && e == NULL);
    hllm_model_last_error(u->m, why, sizeof why);
    CHECK_MSG(has_number(why, 100000) && has_number(why, 512) && strstr(why, "tiny-relu2"), "%s", why);
    so.n_ctx = 256;
    eo.load = HLLM_LOAD_READ;
    eo.ram_bytes = need.total_bytes - 1;
    eo.session = NULL;
    OK_M(hllm_engine_create(u->m, &eo, &e), u->m);
    CHECK(hllm_session_create(e, &so, &s) == HLLM_E_NOMEM && s == NULL);
    hllm_engine_last_error(e, why, sizeof why);
    CHECK_MSG(has_number(why, session_bytes) && has_number(why, session_bytes - 1), "%s", why);
    hllm_engine_free(e);
    eo.ram_bytes = need.total_bytes;                   /* exactly one session, and another one when it is gone */
    OK_M(hllm_engine_create(u->m, &eo, &e), u->m);
    OK_E(hllm_session_create(e, &so, &s), e);
    t = (hllm_session *)1;
    CHECK(hllm_session_create(e, &so, &t) == HLLM_E_NOMEM && t == NULL);
    t = (hllm_session *)1;
    CHECK(hllm_session_fork(s, &t) == HLLM_E_NOMEM && t == NULL);
    hllm_session_last_error(s, why, sizeof why);
    CHECK_MSG(has_number(why, session_bytes), "%s", why);
    hllm_session_free(s);
    OK_E(hllm_session_create(e, &so, &s), e);
    hllm_session_free(s);
    hllm_engine_free(e);
    eo = (hllm_engine_options){ .struct_size = sizeof eo, .ram_bytes = need.weights_bytes / 2 };    /* auto: mapped instead */
    OK_M(hllm_engine_create(u->m, &eo, &e), u->m);
    hllm_engine_free(e);
}

/* The promise about memory is kept: what a session takes from the allocator is what was said. */
static void as_said(void)
{
    counting c = COUNTING_INIT;
    hllm_allocator hook = counting_hook(&c);
    setup u = setup_file(TINY, 2, &hook, NULL);
    for (uint32_t kv = 0; kv < 3; kv++)
        for (uint32_t batch = 0; batch < 300; batch += 37) {
            hllm_session *s = NULL;
            hllm_session_options so = { sizeof so, 300, kv, batch, NULL };
            hllm_memory_need need = { .struct_size = sizeof need };
            OK_M(hllm_model_memory(u.m, NULL, &so, &need), u.m);
            const size_t before = c.live;
            OK_E(hllm_session_create(u.e, &so, &s), u.e);
            const size_t took = c.live - before, said = (size_t)(need.kv_bytes + need.scratch_bytes);
            CHECK_MSG(took <= said + (256 << 10), "kv %u, micro-batch %u: %zu bytes taken, %zu said", kv, batch, took, said);     /* the ring */
            CHECK_MSG(took * 2 > said, "kv %u, micro-batch %u: %zu bytes taken, %zu said", kv, batch, took, said);
            hllm_session_free(s);
            CHECK(c.live == before);
        }
    setup_free(&u);
    CHECK(c.live == 0);
}

/* ---- touched ---- */

/* The system promises memory that it does not have: every page of a new session is really there, before its first token. */
static void touched(const setup *u)
{
    hllm_session *s = session_of(u, 512, HLLM_KV_F32, 0);
    const size_t bytes = s->device_bytes, page = (size_t)sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page;
    unsigned char *in = malloc(pages);
    size_t missing = 0;
    REQUIRE(in && bytes > 4 << 20 && mincore(s->device_block, bytes, in) == 0);      /* so large a block comes fresh from the system */
    for (size_t i = 0; i < pages; i++) missing += !(in[i] & 1);
    CHECK_MSG(missing == 0, "%zu of %zu pages are only promised", missing, pages);
    free(in);
    hllm_session_free(s);
}

/* A session larger than what the machine has now, on a model that allows it: refused at once, with both numbers. */
static void over_commit(void)
{
    char path[300], why[512];
    const char *where = getenv("TMPDIR");
    gguf_file *g = gf_llama();
    gf_u32(g, "llama.context_length", 1 << 27);
    gbuf b = gf_write(g, NULL);
    snprintf(path, sizeof path, "%s/wide-%ld.gguf", where && where[0] ? where : P_tmpdir, (long)getpid());
    hostile_write(path, b.p, b.n, 0);
    gb_free(&b);
    gf_free(g);
    setup u = setup_file(path, 1, NULL, NULL);
    hllm_session_options so = { sizeof so, 1 << 27, HLLM_KV_F32, 0, NULL };
    hllm_engine_options eo = { .struct_size = sizeof eo, .session = &so };
    hllm_memory_need need = need_of(u.m, so.n_ctx, so.kv, 0);
    const uint64_t session_bytes = need.kv_bytes + need.scratch_bytes;
    if (session_bytes < need.available_bytes + (1 << 30)) fprintf(stderr, "this machine has room for a context of 2^27: over-commit not tested\n");
    else for (int before = 0; before < 2; before++) {
        hllm_session *s = (hllm_session *)1;
        hllm_engine *e = (hllm_engine *)1;
        if (before) { CHECK(hllm_engine_create(u.m, &eo, &e) == HLLM_E_NOMEM && e == NULL); hllm_model_last_error(u.m, why, sizeof why); }
        else { CHECK(hllm_session_create(u.e, &so, &s) == HLLM_E_NOMEM && s == NULL); hllm_engine_last_error(u.e, why, sizeof why); }
        const char *has = strstr(why, "the machine (or its cgroup or ulimit) has ");
        CHECK_MSG(strstr(why, path) && strstr(why, "KV cache and scratch need") && (before || has_number(why, session_bytes)), "%s", why);
        CHECK_MSG(has && strtoull(has + 42, NULL, 10) > 0 && strtoull(has + 42, NULL, 10) < session_bytes, "%s", why);
    }
    setup_free(&u);
    unlink(path);
}

/* In a child of its own: the peak of resident memory. */
static void peak(const char *path, uint32_t load, uint32_t n_ctx)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        const uint64_t before = status_kb("VmHWM");
        struct stat st;
        hllm_engine_options eo = { .struct_size = sizeof eo, .load = load };
        if (stat(path, &st) != 0) _exit(2);
        setup u = setup_file(path, 2, NULL, &eo);
        hllm_memory_need need = need_of(u.m, n_ctx, 0, 0);
        hllm_session *s = session_of(&u, n_ctx, 0, 0);
        static int32_t t[4096], out[8];
        text_tokens(&u, t, n_ctx - 10);
        greedy(s, t, n_ctx - 10, 0, out, 8);
        const uint64_t grown = (status_kb("VmHWM") - before) << 10, limit = (uint64_t)st.st_size + need.kv_bytes + (64u << 20);
        fprintf(stderr, "%s, %s: peak %.1f MiB over the start, file %.1f, KV %.1f, limit %.1f\n", strrchr(path, '/') + 1, load == HLLM_LOAD_READ ? "read" : "mmap",
                (double)grown / 1048576, (double)st.st_size / 1048576, (double)need.kv_bytes / 1048576, (double)limit / 1048576);
        CHECK_MSG(grown <= limit, "%s, load mode %u", path, load);
        hllm_session_free(s);
        setup_free(&u);
        _exit(check_done());
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- limits of the process ---- */

static uint64_t behind(const char *s, const char *word)
{
    const char *at = strstr(s, word);
    return at ? strtoull(at + strlen(word), NULL, 10) : 0;
}

/* In a child that may map `more` bytes: an engine whose session is named is refused with both numbers, or the session comes about, too.
 * Returns 0: refused, 2: both were made, 1: a check failed. */
static int under_limit(int which, uint64_t more, uint32_t load, int quiet)
{
    hllm_runtime *rt = NULL;
    hllm_model *m = NULL;
    hllm_engine *e = NULL;
    hllm_session *s = NULL;
    char why[512];
    REQUIRE(hllm_runtime_create(&(hllm_runtime_options){ .struct_size = sizeof(hllm_runtime_options), .n_threads = 3 }, &rt) == HLLM_OK);
    OK_RT(hllm_model_open(rt, TINY, NULL, &m), rt);
    const rlim_t limit = (status_kb(which == RLIMIT_AS ? "VmSize" : "VmData") << 10) + more;
    REQUIRE(setrlimit(which, &(struct rlimit){ limit, limit }) == 0);
    hllm_machine_info mi = { .struct_size = sizeof mi };
    OK_RT(hllm_runtime_machine(rt, &mi), rt);
    CHECK_MSG(mi.memory_bytes <= limit && mi.memory_available_bytes <= more, "%" PRIu64 " of %" PRIu64 ", limit %" PRIu64, mi.memory_available_bytes, mi.memory_bytes, (uint64_t)limit);
    hllm_session_options so = { sizeof so, 512, HLLM_KV_F32, 0, NULL };
    hllm_engine_options eo = { .struct_size = sizeof eo, .load = load, .session = &so };
    hllm_status rc = hllm_engine_create(m, &eo, &e);
    if (rc == HLLM_OK) {
        rc = hllm_session_create(e, &so, &s);
        hllm_engine_last_error(e, why, sizeof why);
        CHECK_MSG(rc == HLLM_OK, "load mode %u, %" PRIu64 " more: the engine was made, its session not: %s", load, more, why);
        if (rc == HLLM_OK) OK_S(hllm_session_eval(s, text, 20), s);
        return check_failed ? 1 : 2;
    }
    hllm_model_last_error(m, why, sizeof why);
    const uint64_t need = HL_MAX(behind(why, "needs "), behind(why, "need ")), has = HL_MAX(behind(why, "has "), behind(why, "leaves "));
    CHECK_MSG(rc == HLLM_E_NOMEM && e == NULL && need > has && has <= more && strstr(why, "tiny-relu2"), "load mode %u, %" PRIu64 " more: %d: %s", load, more, rc, why);
    if (!quiet) fprintf(stderr, "load mode %u, %" PRIu64 " KiB more: %s\n", load, more >> 10, why);
    return check_failed != 0;
}

static void process_limits(void)
{
    static const struct { int which; uint32_t load; } rows[] = { { RLIMIT_AS, HLLM_LOAD_READ }, { RLIMIT_AS, HLLM_LOAD_MMAP }, { RLIMIT_AS, HLLM_LOAD_AUTO }, { RLIMIT_DATA, HLLM_LOAD_READ } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int refused = 0, made = 0, status;
        for (uint64_t more = 1 << 20; more < 48 << 20; more += 2300 << 10) {
            fflush(NULL);
            pid_t child = fork();
            if (child == 0) _exit(under_limit(rows[i].which, more, rows[i].load, refused % 12 != 0));
            REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
            CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) != 1, "limit %d, load mode %u, %" PRIu64 " more: status %x", rows[i].which, rows[i].load, more, status);
            if (!WIFEXITED(status)) continue;
            if (WEXITSTATUS(status) == 2) made++;
            else { refused++; CHECK_MSG(made == 0, "%" PRIu64 " more", more); }
        }
        fprintf(stderr, "limit %d, load mode %u: %d refused, %d made\n", rows[i].which, rows[i].load, refused, made);
        CHECK(refused > 5 && made > 5);
    }
}

/* ---- cgroup ---- */

static int write_text(const char *path, const char *s)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    int ok = fd >= 0 && write(fd, s, strlen(s)) == (ssize_t)strlen(s);
    if (fd >= 0) close(fd);
    return ok;
}

static void cgroup(void)
{
    static const char *const roots[][2] = { { "/sys/fs/cgroup/memory", "memory.limit_in_bytes" }, { "/sys/fs/cgroup", "memory.max" } };
    char mine[600] = "", group[700], path[800], line[700];
    int v;
    FILE *f = fopen("/proc/self/cgroup", "r");
    for (v = 0; v < 2; v++) {
        if (f) rewind(f);
        while (f && fgets(line, sizeof line, f)) {
            line[strcspn(line, "\n")] = 0;
            char *at = v == 0 ? strstr(line, ":memory:") : strncmp(line, "0::", 3) == 0 ? line + 2 : NULL;
            if (at) snprintf(mine, sizeof mine, "%s", strchr(at + 1, v == 0 ? ':' : '/') + (v == 0));
        }
        snprintf(group, sizeof group, "%s%s/hllm-test-%ld", roots[v][0], mine, (long)getpid());
        if (mkdir(group, 0755) == 0) break;
        snprintf(group, sizeof group, "%s/hllm-test-%ld", roots[v][0], (long)getpid());
        if (mkdir(group, 0755) == 0) break;
    }
    if (f) fclose(f);
    if (v == 2) { fprintf(stderr, "no writable memory cgroup: not tested\n"); return; }
    snprintf(path, sizeof path, "%s/%s", group, roots[v][1]);
    if (!write_text(path, "41943040")) {
        fprintf(stderr, "no limit can be set in %s: not tested\n", group);
        rmdir(group);
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        char pid[32], why[512];
        snprintf(path, sizeof path, "%s/cgroup.procs", group);
        snprintf(pid, sizeof pid, "%ld", (long)getpid());
        if (!write_text(path, pid)) _exit(77);
        hllm_runtime *rt = NULL;
        hllm_model *m = NULL;
        hllm_engine *e = NULL;
        hllm_session *s = NULL;
        hllm_machine_info mi = { .struct_size = sizeof mi };
        REQUIRE(hllm_runtime_create(&(hllm_runtime_options){ .struct_size = sizeof(hllm_runtime_options), .n_threads = 1 }, &rt) == HLLM_OK);
        OK_RT(hllm_runtime_machine(rt, &mi), rt);
        CHECK_MSG(mi.memory_bytes == 41943040 && mi.memory_available_bytes <= 41943040, "%" PRIu64 " of %" PRIu64, mi.memory_available_bytes, mi.memory_bytes);
        OK_RT(hllm_model_open(rt, TINY, NULL, &m), rt);
        OK_M(hllm_engine_create(m, NULL, &e), m);
        hllm_session_options so = { sizeof so, 512, HLLM_KV_F32, 512, NULL };
        hllm_memory_need need = { .struct_size = sizeof need };
        OK_M(hllm_model_memory(m, NULL, &so, &need), m);
        CHECK(need.available_bytes < 41943040);
        hllm_status rc = HLLM_OK;
        for (int i = 0; i < 20 && rc == HLLM_OK; i++) rc = hllm_session_create(e, &so, &s);      /* none of them computes: taken at creation */
        CHECK_MSG(rc == HLLM_E_NOMEM && s == NULL, "%d", rc);
        hllm_engine_last_error(e, why, sizeof why);
        CHECK_MSG(has_number(why, need.kv_bytes + need.scratch_bytes) && strstr(why, "cgroup"), "%s", why);
        fprintf(stderr, "under a limit of 40 MiB: %s\n", why);
        _exit(check_done());
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_MSG(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77), "status %x", status);
    sleep_us(100000);
    rmdir(group);
}

/* ---- progress ---- */

typedef struct watcher { hllm_progress *p; _Atomic int stop; int cancel; } watcher;
static void *watch(void *v)
{
    watcher *w = v;
    uint64_t done, total, last = 0;
    while (!w->stop) {
        CHECK(hllm_progress_read(w->p, &done, &total) == HLLM_OK);
        CHECK_MSG(done >= last && done <= total, "%" PRIu64 " of %" PRIu64 " after %" PRIu64, done, total, last);
        last = done;
        if (w->cancel && done > 0) { CHECK(hllm_progress_cancel(w->p) == HLLM_OK); }
    }
    return NULL;
}

static void session_progress(const setup *u, const hllm_engine *e)
{
    for (int mode = 0; mode < 3; mode++) {             /* whole, cancelled before, cancelled meanwhile */
        watcher w = { NULL, 0, mode == 2 };
        hllm_session *s = (hllm_session *)1;
        pthread_t t;
        uint64_t done, total;
        char why[256];
        OK_RT(hllm_progress_create(u->rt, &w.p), u->rt);
        if (mode == 1) hllm_progress_cancel(w.p);
        if (pthread_create(&t, NULL, watch, &w) != 0) exit(1);
        const hllm_status rc = hllm_session_create(e, &(hllm_session_options){ .struct_size = sizeof(hllm_session_options), .progress = w.p }, &s);
        w.stop = 1;
        pthread_join(t, NULL);
        CHECK(hllm_progress_read(w.p, &done, &total) == HLLM_OK);
        if (rc == HLLM_OK) {
            hllm_session_info i = { .struct_size = sizeof i };
            CHECK(mode != 1 && hllm_session_get_info(s, &i) == HLLM_OK);
            CHECK_MSG(done == total && total >= i.kv_bytes, "%" PRIu64 " of %" PRIu64 ", KV %" PRIu64, done, total, i.kv_bytes);
            hllm_session_free(s);
        } else {
            CHECK_MSG(mode != 0 && rc == HLLM_E_CANCELLED && s == NULL, "mode %d: %d", mode, rc);
            CHECK(done < total || mode == 2);
            hllm_engine_last_error(e, why, sizeof why);
            CHECK_MSG(strstr(why, "cancelled"), "%s", why);
        }
        hllm_progress_free(w.p);
    }
}

static void progress(const setup *u)
{
    for (int mode = 0; mode < 6; mode++) {
        watcher w = { NULL, 0, mode >= 4 };
        hllm_model *m = NULL;
        hllm_engine *e = (hllm_engine *)1;
        pthread_t t;
        uint64_t done = 1, total = 1;
        char why[256];
        OK_RT(hllm_progress_create(u->rt, &w.p), u->rt);
        CHECK(hllm_progress_read(w.p, &done, &total) == HLLM_OK && done == 0 && total == 0);
        OK_RT(hllm_model_open(u->rt, TINY, &(hllm_model_options){ .struct_size = sizeof(hllm_model_options), .progress = mode & 1 ? w.p : NULL }, &m), u->rt);
        if (mode == 2 || mode == 3) hllm_progress_cancel(w.p);                  /* before it starts */
        if (pthread_create(&t, NULL, watch, &w) != 0) exit(1);
        hllm_engine_options eo = { .struct_size = sizeof eo, .load = mode & 1 ? HLLM_LOAD_MMAP : HLLM_LOAD_READ, .progress = w.p };
        hllm_status rc = hllm_engine_create(m, &eo, &e);
        w.stop = 1;
        pthread_join(t, NULL);
        if (mode < 2) {
            CHECK(rc == HLLM_OK);
            hllm_progress_read(w.p, &done, &total);
            CHECK_MSG(done == total && total > 5000000, "mode %d: %" PRIu64 " of %" PRIu64, mode, done, total);
            session_progress(u, e);
            hllm_engine_free(e);
        } else {
            CHECK_MSG((rc == HLLM_E_CANCELLED && e == NULL) || (mode >= 4 && rc == HLLM_OK), "mode %d: %d", mode, rc);
            if (rc == HLLM_OK) hllm_engine_free(e);
            hllm_model_last_error(m, why, sizeof why);
            if (rc != HLLM_OK) CHECK_MSG(strstr(why, "cancelled"), "%s", why);
        }
        hllm_model_free(m);
        if (mode == 2) {                               /* opening, too */
            m = (hllm_model *)1;
            CHECK(hllm_model_open(u->rt, TINY, &(hllm_model_options){ .struct_size = sizeof(hllm_model_options), .progress = w.p }, &m) == HLLM_E_CANCELLED && m == NULL);
        }
        hllm_progress_free(w.p);
    }
    CHECK(hllm_progress_cancel(NULL) == HLLM_E_ARG && hllm_progress_read(NULL, NULL, NULL) == HLLM_E_ARG);
}

/* ---- bundles ---- */

static void bundle(const setup *u)
{
    char path[300];
    const char *where = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/bundle-XXXXXX", where && where[0] ? where : P_tmpdir);
    int fd = mkstemp(path), in = open(TINY, O_RDONLY | O_CLOEXEC);
    REQUIRE(fd >= 0 && in >= 0);
    struct stat st;
    fstat(in, &st);
    const size_t n = (size_t)st.st_size;
    char *all = malloc(n);
    REQUIRE(read(in, all, n) == (ssize_t)n);
    float *want = malloc(u->n_vocab * sizeof *want), *got = malloc(u->n_vocab * sizeof *got);
    hllm_session *s = session_of(u, 64, 0, 0);
    OK_S(hllm_session_eval(s, text, 50), s);
    OK_S(hllm_session_logits(s, 49, want, u->n_vocab), s);
    hllm_session_free(s);
    static const uint64_t offsets[] = { 0, 4096, 32, 1, 12345 };
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        for (uint32_t load = HLLM_LOAD_MMAP; load <= HLLM_LOAD_READ; load++)
            for (uint32_t act = 0; act < 2; act++) {
                hllm_model *m = NULL;
                hllm_engine *e = NULL;
                REQUIRE(ftruncate(fd, 0) == 0 && pwrite(fd, all, n, (off_t)offsets[i]) == (ssize_t)n && pwrite(fd, "behind", 6, (off_t)(offsets[i] + n)) == 6);
                CHECK(lseek(fd, 3, SEEK_SET) == 3);
                OK_RT(hllm_model_open_fd(u->rt, fd, offsets[i], n, NULL, &m), u->rt);
                OK_M(hllm_engine_create(m, &(hllm_engine_options){ .struct_size = sizeof(hllm_engine_options), .load = load, .act = act }, &e), m);
                setup v = { u->rt, m, e, u->n_vocab, u->n_embd };
                s = session_of(&v, 64, 0, 0);
                hllm_model_free(m);
                hllm_engine_free(e);
                OK_S(hllm_session_eval(s, text, 50), s);
                OK_S(hllm_session_logits(s, 49, got, u->n_vocab), s);
                if (act == HLLM_ACT_Q8) CHECK_MSG(memcmp(want, got, u->n_vocab * sizeof *want) == 0, "offset %" PRIu64 ", load mode %u", offsets[i], load);
                hllm_session_free(s);
                CHECK(lseek(fd, 0, SEEK_CUR) == 3);                  /* the caller's own position is its own */
            }
    hllm_model *m = (hllm_model *)1;
    CHECK(hllm_model_open_fd(u->rt, fd, offsets[4], n + 7, NULL, &m) == HLLM_E_TRUNCATED && m == NULL);
    m = (hllm_model *)1;
    CHECK(hllm_model_open_fd(u->rt, fd, offsets[4], n / 2, NULL, &m) == HLLM_E_TRUNCATED && m == NULL);
    CHECK(hllm_model_open_fd(u->rt, -1, 0, 0, NULL, &m) == HLLM_E_ARG);
    free(all); free(want); free(got);
    close(fd);
    close(in);
    unlink(path);
}

int main(void)
{
    if (!SANITIZED) {                                  /* first: while this process is small */
        peak(TINY, HLLM_LOAD_READ, 512);
        peak(TINY, HLLM_LOAD_MMAP, 512);
        static const char *const more[] = { "build/models/smollm2-135m-instruct-q4_1.gguf", "build/models/gemma-3-270m-q4_k_m.gguf" };
        for (int i = 0; i < 2; i++)
            if (access(test_path(more[i]), R_OK) == 0) { peak(test_path(more[i]), HLLM_LOAD_READ, 1024); peak(test_path(more[i]), HLLM_LOAD_MMAP, 1024); }
        cgroup();
    }
    setup u = setup_tiny(2);
    text_tokens(&u, text, 64);
    if (!SANITIZED) process_limits();
    budgets(&u);
    as_said();
    touched(&u);
    over_commit();
    progress(&u);
    bundle(&u);
    setup_free(&u);
    return check_done();
}
