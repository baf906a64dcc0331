/* io.c: opening a model and loading its weights while the n-th file call fails: short reads, EINTR (nothing may be noticed), EIO, a file that
 * has become shorter; in both load modes.  The right code, a text with the path, nothing left, and the same runtime works afterwards. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>

#include "run/runtime.h"

#include "../hostile/hostile.h"
#include "../unit/run_common.h"

enum { SHORT = 1, INTERRUPTED, BROKEN, ENDED };
static struct { _Atomic long calls; long fail_at; int kind; _Atomic int open_fds; } f;

static int f_open(void *v, const char *p, int flags, int mode)
{
    (void)v;
    if (f.calls++ == f.fail_at && (f.kind == BROKEN || f.kind == INTERRUPTED)) { errno = f.kind == BROKEN ? EIO : EINTR; return -1; }
    int fd = open(p, flags, mode);
    f.open_fds += fd >= 0;
    return fd;
}

static int64_t f_pread(void *v, int fd, void *buf, size_t n, uint64_t at)
{
    (void)v;
    const long call = f.calls++;
    if (f.kind == SHORT) n = n > 1000 ? n / 3 : n;     /* always */
    if (f.kind == INTERRUPTED && call % 2 == f.fail_at % 2) { errno = EINTR; return -1; }
    if (call == f.fail_at && f.kind == BROKEN) { errno = EIO; return -1; }
    if (call == f.fail_at && f.kind == ENDED) return 0;
    return pread(fd, buf, n, (off_t)at);
}

static int f_close(void *v, int fd) { (void)v; f.open_fds--; return close(fd); }
static int64_t no_write(void *v, int fd, const void *b, size_t n) { (void)v; (void)fd; (void)b; (void)n; CHECK(!"a model is not written to"); return -1; }
static int no_fsync(void *v, int fd) { (void)v; (void)fd; return -1; }
static int no_rename(void *v, const char *a, const char *b) { (void)v; (void)a; (void)b; return -1; }
static int no_unlink(void *v, const char *p) { (void)v; (void)p; return -1; }
static int no_link(void *v, int fd, const char *p) { (void)v; (void)fd; (void)p; return -1; }
static const hl_io faulty = { NULL, f_open, f_pread, no_write, no_fsync, f_close, no_rename, no_unlink, no_link };

static float *want;
static int32_t text[30];

static void check_engine(hllm_model *m, hllm_engine *e)
{
    hllm_model_info i = { .struct_size = sizeof i };
    OK_M(hllm_model_get_info(m, &i), m);
    float *x = malloc(i.n_vocab * sizeof *x);
    hllm_session *s = NULL;
    OK_E(hllm_session_create(e, NULL, &s), e);
    OK_S(hllm_session_eval(s, text, 30), s);
    OK_S(hllm_session_logits(s, 29, x, i.n_vocab), s);
    if (!want) want = x;
    else { CHECK(memcmp(x, want, i.n_vocab * sizeof *x) == 0); free(x); }
    hllm_session_free(s);
}

/* true: nothing failed. */
static int load_once(hllm_runtime *rt, uint32_t load, int kind, long n)
{
    const char *path = test_path("models/tiny-relu2-q8_0.gguf");
    char why[512] = "";
    hllm_model *m = (hllm_model *)1;
    hllm_engine *e = (hllm_engine *)1;
    f.calls = 0; f.fail_at = n; f.kind = kind;
    hllm_status rc = hllm_model_open(rt, path, NULL, &m), expect = kind == ENDED ? HLLM_E_TRUNCATED : HLLM_E_IO;
    if (rc != HLLM_OK) {
        hllm_runtime_last_error(rt, why, sizeof why);
        CHECK_MSG(rc == expect && m == NULL && strstr(why, path), "open, kind %d, call %ld: %s: %s", kind, n, hllm_status_name(rc), why);
        return 0;
    }
    rc = hllm_engine_create(m, &(hllm_engine_options){ .struct_size = sizeof(hllm_engine_options), .load = load }, &e);
    if (rc != HLLM_OK) {
        hllm_model_last_error(m, why, sizeof why);
        CHECK_MSG(rc == expect && e == NULL && strstr(why, path), "engine, kind %d, call %ld: %s: %s", kind, n, hllm_status_name(rc), why);
    } else if (kind != BROKEN) check_engine(m, e);
    hllm_engine_free(rc == HLLM_OK ? e : NULL);
    hllm_model_free(m);
    return rc == HLLM_OK;
}

int main(void)
{
    counting c = COUNTING_INIT;
    hllm_allocator hook = counting_hook(&c);
    setup u = setup_file(test_path("models/tiny-relu2-q8_0.gguf"), 3, &hook, NULL);
    text_tokens(&u, text, 30);
    check_engine(u.m, u.e);
    hllm_engine_free(u.e);
    hllm_model_free(u.m);
    u.rt->env.io = &faulty;
    for (uint32_t load = HLLM_LOAD_MMAP; load <= HLLM_LOAD_READ; load++) {
        CHECK(load_once(u.rt, load, SHORT, 0));
        CHECK(load_once(u.rt, load, INTERRUPTED, 0) && load_once(u.rt, load, INTERRUPTED, 1));
        for (int kind = BROKEN; kind <= ENDED; kind++) {
            long n = 0;
            const size_t live = c.live;
            while (!load_once(u.rt, load, kind, n) || f.calls > n) {
                CHECK_MSG(c.live == live && f.open_fds == 0, "kind %d, call %ld: %zu bytes and %d files are left", kind, n, c.live - live, f.open_fds);
                if (++n > 500) break;
            }
            fprintf(stderr, "load mode %u, fault %d: %ld calls\n", load, kind, n);
            CHECK(n > 2 && n < 500);
        }
    }
    u.rt->env.io = NULL;
    f.open_fds = 0;
    u.m = NULL;
    OK_RT(hllm_model_open(u.rt, test_path("models/tiny-relu2-q8_0.gguf"), NULL, &u.m), u.rt);
    OK_M(hllm_engine_create(u.m, NULL, &u.e), u.m);
    check_engine(u.m, u.e);
    setup_free(&u);
    free(want);
    CHECK(c.live == 0 && c.blocks == 0);
    return check_done();
}
