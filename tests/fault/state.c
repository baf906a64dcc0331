/* state.c: session files: restored sessions go on as the saved ones; damaged, foreign and crafted files are refused and change nothing; a
 * save that fails or dies at any step leaves the old file, and nothing beside it (killed: only where its last two steps meet, or where the
 * file system has no files without names).  Devices, pipes and links are not replaced, modes are kept.  Neither saving nor loading takes more
 * memory than it says, nor any when that is not there. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <zstd.h>

#include "run/runtime.h"

#include "../hostile/hostile.h"
#include "../unit/run_common.h"

enum { N = 40, M = 32, HEADER = 72 };
static int32_t text[512];
static char dir[256];
static setup u;

static const char *in_dir(const char *name)
{
    static char path[4][512];
    static int at;
    at = (at + 1) % 4;
    snprintf(path[at], sizeof path[at], "%s/%s", dir, name);
    return path[at];
}

static uint8_t *slurp(const char *path, size_t *n)
{
    struct stat st;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &st) != 0) { perror(path); exit(1); }
    uint8_t *p = malloc((size_t)st.st_size + 1);
    *n = (size_t)st.st_size;
    if (read(fd, p, *n) != (ssize_t)*n) exit(1);
    close(fd);
    return p;
}

static void spill(const char *path, const void *p, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, p, n) != (ssize_t)n) { perror(path); exit(1); }
    close(fd);
}

static int n_files(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

/* ---- round trips ---- */

static void round_trip(uint32_t kv)
{
    hllm_session *s = session_of(&u, 256, kv, 0), *t;
    int32_t a[M], b[M], first[8];
    greedy(s, text, N, 0, first, 8);                   /* the last token is not in the cache yet */
    OK_S(hllm_session_save(s, in_dir("a")), s);
    greedy(s, NULL, 0, HLLM_GENERATE_APPEND, a, M);
    static const uint32_t ctx[] = { 256, 512, 100 }, batch[] = { 0, 16, 7 };
    for (int i = 0; i < 3; i++) {
        t = session_of(&u, ctx[i], kv, batch[i]);
        OK_S(hllm_session_eval(t, text + 5, 30), t);
        OK_S(hllm_session_load(t, in_dir("a")), t);
        CHECK(n_tokens_of(t) == N + 8);
        greedy(t, NULL, 0, HLLM_GENERATE_APPEND, b, M);
        CHECK_MSG(same_tokens(a, b, M), "kv %u, context %u", kv, ctx[i]);
        OK_S(hllm_session_rewind(t, N + 8), t);        /* and what was restored can be rewound */
        greedy(t, NULL, 0, HLLM_GENERATE_APPEND, b, M);
        CHECK(same_tokens(a, b, M));
        hllm_session_free(t);
    }
    t = session_of(&u, N + 7, kv, 0);                  /* one too small */
    char why[256];
    CHECK(hllm_session_load(t, in_dir("a")) == HLLM_E_CONTEXT_FULL);
    hllm_session_last_error(t, why, sizeof why);
    CHECK_MSG(strstr(why, "48") && strstr(why, "47"), "%s", why);
    CHECK(n_tokens_of(t) == 0);
    hllm_session_free(t);
    for (uint32_t other = 0; other < 3; other++) {     /* another KV type */
        if (other == kv) continue;
        t = session_of(&u, 256, other, 0);
        CHECK(hllm_session_load(t, in_dir("a")) == HLLM_E_MISMATCH);
        hllm_session_last_error(t, why, sizeof why);
        CHECK_MSG(strstr(why, "KV"), "%s", why);
        hllm_session_free(t);
    }
    t = session_of(&u, 64, kv, 0);                     /* an empty session is a session */
    OK_S(hllm_session_save(t, in_dir("a")), t);
    OK_S(hllm_session_load(s, in_dir("a")), s);
    CHECK(n_tokens_of(s) == 0);
    hllm_session_free(t);
    hllm_session_free(s);
    unlink(in_dir("a"));
}

/* ---- files that must be refused ---- */

static int32_t before[512], after_want[M];
static hllm_session *victim;

static void refused(const char *what, size_t at, hllm_status allowed, int thorough)
{
    static int32_t now[512];
    size_t n = 0, want = N + 3;
    char why[256];
    hllm_status rc = hllm_session_load(victim, in_dir("bad"));
    if (allowed) CHECK_MSG(rc == allowed, "%s at %zu: %s", what, at, hllm_status_name(rc));
    else CHECK_MSG(rc == HLLM_E_FORMAT || rc == HLLM_E_CORRUPT || rc == HLLM_E_TRUNCATED || rc == HLLM_E_VERSION || rc == HLLM_E_MISMATCH, "%s at %zu: %s", what, at, hllm_status_name(rc));
    hllm_session_last_error(victim, why, sizeof why);
    CHECK_MSG(strstr(why, "bad: "), "%s", why);
    OK_S(hllm_session_tokens(victim, now, 512, &n), victim);
    CHECK_MSG(n == want && same_tokens(now, before, n), "%s at %zu: %zu tokens", what, at, n);
    if (!thorough) return;
    hllm_session *f = NULL;
    OK_S(hllm_session_fork(victim, &f), victim);
    greedy(f, NULL, 0, HLLM_GENERATE_APPEND, now, M);
    CHECK_MSG(same_tokens(now, after_want, M), "%s at %zu", what, at);
    hllm_session_free(f);
}

static void put32(uint8_t *p, size_t at, uint32_t x) { memcpy(p + at, &x, 4); }
static void put64(uint8_t *p, size_t at, uint64_t x) { memcpy(p + at, &x, 8); }
static void rehash(uint8_t *p) { put64(p, HEADER - 8, hl_hash(p, HEADER - 8, 0x5e55104e)); }

/* A file with this header (made right) and payload, checksums right. */
static void craft(const uint8_t *header, const void *payload, size_t bytes)
{
    size_t cap = ZSTD_compressBound(bytes);
    uint8_t *f = malloc(HEADER + cap + 8);
    memcpy(f, header, HEADER);
    rehash(f);
    size_t n = ZSTD_compress(f + HEADER, cap, payload, bytes, 1);
    if (ZSTD_isError(n) || n > 1 << 18) exit(1);
    uint64_t chain, h;
    memcpy(&h, f + HEADER - 8, 8);
    chain = hl_hash(f + HEADER, n, h ^ 0xf7a3e);
    memcpy(f + HEADER + n, &chain, 8);
    spill(in_dir("bad"), f, HEADER + n + 8);
    free(f);
}

static void crafted(const uint8_t *good, size_t n)
{
    uint8_t h[HEADER];
    size_t bytes;
    uint64_t declared;
    memcpy(&declared, good + 48, 8);
    bytes = (size_t)declared;
    uint8_t *payload = malloc(bytes + (64 << 20));
    if (ZSTD_decompress(payload, bytes, good + HEADER, n - HEADER - 8) != bytes) exit(1);
    memcpy(h, good, HEADER);

    craft(h, payload, bytes);                          /* the recipe itself is right */
    hllm_session *t = session_of(&u, 256, 0, 0);
    OK_S(hllm_session_load(t, in_dir("bad")), t);
    hllm_session_free(t);
    memset(payload + bytes, 0, 64 << 20);
    craft(h, payload, bytes + (64 << 20));             /* a bomb: unpacks to 64 MiB more than it says */
    refused("bomb", 0, HLLM_E_CORRUPT, 1);
    craft(h, payload, bytes - 1);
    refused("short payload", 0, HLLM_E_CORRUPT, 1);
    craft(h, payload, bytes + 1);
    refused("long payload", 0, HLLM_E_CORRUPT, 1);
    int32_t bad_token = (int32_t)u.n_vocab;
    memcpy(payload + 8, &bad_token, 4);
    craft(h, payload, bytes);
    refused("token", 0, HLLM_E_CORRUPT, 1);
    static const struct { int at; uint32_t value; hllm_status rc; } fields[] = {
        { 8, 3, HLLM_E_VERSION }, { 8, 1, HLLM_E_VERSION }, { 12, 65, HLLM_E_VERSION }, { 16, 1, HLLM_E_MISMATCH }, { 24, 77, HLLM_E_MISMATCH }, { 28, 1, HLLM_E_MISMATCH },
        { 32, UINT32_MAX, HLLM_E_CONTEXT_FULL }, { 32, 257, HLLM_E_CONTEXT_FULL }, { 36, UINT32_MAX, HLLM_E_CORRUPT }, { 36, 3, HLLM_E_CORRUPT },
        { 40, 1000, HLLM_E_CORRUPT }, { 44, 1, HLLM_E_MISMATCH }, { 48, 0, HLLM_E_CORRUPT }, { 52, 1, HLLM_E_CORRUPT }, { 56, 1, HLLM_E_MISMATCH } };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        memcpy(h, good, HEADER);
        put32(h, (size_t)fields[i].at, fields[i].value);
        craft(h, payload, bytes);
        refused("field", (size_t)fields[i].at, fields[i].rc, 0);
    }
    free(payload);
}

static void damaged(void)
{
    size_t n;
    victim = session_of(&u, 256, 0, 0);
    hllm_session *s = session_of(&u, 256, 0, 0);
    OK_S(hllm_session_eval(s, text + 100, 4), s);
    OK_S(hllm_session_save(s, in_dir("good")), s);
    hllm_session_free(s);
    greedy(victim, text, N, 0, before, 3);
    OK_S(hllm_session_tokens(victim, before, 512, &n), victim);
    OK_S(hllm_session_fork(victim, &s), victim);
    greedy(s, NULL, 0, HLLM_GENERATE_APPEND, after_want, M);
    hllm_session_free(s);

    uint8_t *good = slurp(in_dir("good"), &n), *bad = malloc(n + 100);
    fprintf(stderr, "session file of 4 tokens: %zu bytes\n", n);
    uint64_t seed = 1;
    for (size_t i = 0; i < n; i += i < 160 || i > n - 20 ? 1 : 37) {            /* one bit of a byte, and all of it */
        for (int how = 0; how < 2; how++) {
            memcpy(bad, good, n);
            bad[i] ^= how ? 0xff : (uint8_t)(1u << (rnd(&seed) % 8));
            spill(in_dir("bad"), bad, n);
            refused("flip", i, 0, i % 199 == 0);
        }
    }
    for (int bit = 0; bit < 8; bit++) {                /* every bit of the frame's head: zstd itself ignores some */
        for (size_t i = HEADER; i < HEADER + 14; i++) {
            memcpy(bad, good, n);
            bad[i] ^= (uint8_t)(1u << bit);
            spill(in_dir("bad"), bad, n);
            refused("bit", i * 8 + (size_t)bit, 0, 0);
        }
    }
    for (size_t i = 0; i < n; i += i < 120 || i + 30 > n ? 1 : 61) {
        spill(in_dir("bad"), good, i);
        refused("truncated", i, 0, i % 197 == 0);
    }
    memcpy(bad, good, n);
    for (size_t more = 1; more <= 100; more += 9) {
        memset(bad + n, 0, more);
        spill(in_dir("bad"), bad, n + more);
        refused("trailing", more, 0, more == 1);
    }
    memset(bad, 'x', n);
    spill(in_dir("bad"), bad, n);
    refused("foreign", 0, HLLM_E_FORMAT, 1);
    crafted(good, n);

    gguf_file *g = gf_llama();                         /* another model's session */
    gbuf b = gf_write(g, NULL);
    spill(in_dir("model"), b.p, b.n);
    gb_free(&b);
    gf_free(g);
    setup other = setup_file(in_dir("model"), 1, NULL, NULL);
    s = session_of(&other, 64, 0, 0);
    OK_S(hllm_session_eval(s, (int32_t[]){ 1, 5, 9 }, 3), s);
    OK_S(hllm_session_save(s, in_dir("bad")), s);
    hllm_session_free(s);
    setup_free(&other);
    refused("other model", 0, HLLM_E_MISMATCH, 1);
    unlink(in_dir("model"));

    unlink(in_dir("bad"));
    CHECK(hllm_session_load(victim, in_dir("bad")) == HLLM_E_NOT_FOUND);
    CHECK(hllm_session_load(victim, dir) == HLLM_E_IO);
    CHECK(hllm_session_load(victim, "") == HLLM_E_ARG);
    CHECK(hllm_session_load(victim, NULL) == HLLM_E_ARG);
    CHECK(hllm_session_save(victim, NULL) == HLLM_E_ARG);
    CHECK(hllm_session_save(victim, "") == HLLM_E_ARG);
    CHECK(hllm_session_save(victim, in_dir("no/such/folder")) == HLLM_E_IO);
    CHECK(hllm_session_save(victim, dir) == HLLM_E_IO);                         /* a directory */
    free(good);
    free(bad);
    hllm_session_free(victim);
    unlink(in_dir("good"));
    CHECK(n_files() == 0);
}

/* ---- saving with faults ---- */

static struct { int calls, fail_at, error, kill, last_kind, only_named, unnamed; } fault;
enum { K_OPEN = 1, K_WRITE, K_FSYNC, K_CLOSE, K_RENAME, K_UNLINK, K_PREAD, K_LINK };

static char order[64];                                 /* of the calls, one letter each */

static int hit(int kind)
{
    if (fault.calls < 60) order[fault.calls] = " owfcrupl"[kind];
    int now = fault.calls++ == fault.fail_at;
    if (now) { fault.last_kind = kind; if (fault.kill == 1) kill(getpid(), SIGKILL); errno = fault.error; }
    return now;
}
static int after_hit(int now) { if (now && fault.kill == 2) kill(getpid(), SIGKILL); return now && !fault.kill; }

static int f_open(void *v, const char *p, int flags, int mode)
{
    (void)v;
    int h = hit(K_OPEN);
    if (h && !fault.kill) return -1;
    if (fault.only_named && (flags & O_TMPFILE) == O_TMPFILE) { errno = EOPNOTSUPP; return -1; }
    int r = open(p, flags, mode);
    if ((flags & O_TMPFILE) == O_TMPFILE) fault.unnamed = r >= 0;
    after_hit(h);
    return r;
}
static int64_t f_pread(void *v, int fd, void *b, size_t n, uint64_t at) { (void)v; return pread(fd, b, n, (off_t)at); }
static int64_t f_write(void *v, int fd, const void *b, size_t n)
{
    (void)v;
    int h = hit(K_WRITE);
    if (h && !fault.kill) return fault.error == ENOSPC ? write(fd, b, n / 2) : -1;
    if (!h && fault.error == ENOSPC && !fault.kill && fault.fail_at >= 0 && fault.calls > fault.fail_at + 1) { errno = ENOSPC; return -1; }
    int64_t r = write(fd, b, h ? n / 2 : n);           /* killed in the middle of a write */
    after_hit(h);
    return r;
}
static int f_fsync(void *v, int fd) { (void)v; int h = hit(K_FSYNC); if (h && !fault.kill) return -1; int r = fsync(fd); after_hit(h); return r; }
static int f_close(void *v, int fd) { (void)v; int h = hit(K_CLOSE); int r = close(fd); if (h && !fault.kill) { errno = fault.error; return -1; } after_hit(h); return r; }
static int f_rename(void *v, const char *a, const char *b) { (void)v; int h = hit(K_RENAME); if (h && !fault.kill) return -1; int r = rename(a, b); after_hit(h); return r; }
static int f_unlink(void *v, const char *p) { (void)v; return unlink(p); }
static int f_link(void *v, int fd, const char *p) { (void)v; int h = hit(K_LINK); if (h && !fault.kill) return -1; int r = hl_io_posix.link(NULL, fd, p); after_hit(h); return r; }
static const hl_io faulty = { NULL, f_open, f_pread, f_write, f_fsync, f_close, f_rename, f_unlink, f_link };

static int same_file(const char *path, const uint8_t *want, size_t n)
{
    size_t m;
    uint8_t *got = slurp(path, &m);
    int same = m == n && memcmp(got, want, n) == 0;
    free(got);
    return same;
}

static void save_faults(void)
{
    static const int errors[] = { EIO, ENOSPC, EINTR };
    hllm_session *old = session_of(&u, 512, 0, 0), *s = session_of(&u, 512, 0, 0);
    size_t n_old, n_new;
    OK_S(hllm_session_eval(old, text, 11), old);
    OK_S(hllm_session_eval(s, text, 500), s);          /* several writes */
    OK_S(hllm_session_save(s, in_dir("new")), s);
    OK_S(hllm_session_save(old, in_dir("f")), old);
    uint8_t *want_old = slurp(in_dir("f"), &n_old), *want_new = slurp(in_dir("new"), &n_new);
    unlink(in_dir("new"));
    int kinds = 0, unnamed = 0;
    for (int e = 0; e < 6; e++)
        for (int i = 0;; i++) {
            spill(in_dir("f"), want_old, n_old);
            memset(&fault, 0, sizeof fault);
            fault.fail_at = i;
            fault.only_named = e >= 3;                 /* as on a file system that knows no others */
            fault.error = errors[e % 3];
            u.rt->env.io = &faulty;
            hllm_status rc = hllm_session_save(s, in_dir("f"));
            u.rt->env.io = NULL;
            kinds |= 1 << fault.last_kind;
            unnamed |= fault.unnamed;
            CHECK_MSG(n_files() == 1, "error %d at call %d: %d files", errors[e % 3], i, n_files());
            if (rc == HLLM_OK) CHECK_MSG(same_file(in_dir("f"), want_new, n_new), "error %d at call %d", errors[e % 3], i);
            else {
                char why[256];
                CHECK_MSG(rc == HLLM_E_IO && same_file(in_dir("f"), want_old, n_old), "error %d at call %d: %s", errors[e % 3], i, hllm_status_name(rc));
                hllm_session_last_error(s, why, sizeof why);
                char number[16];
                snprintf(number, sizeof number, "%d", errors[e % 3]);
                CHECK_MSG(strstr(why, "/f: ") && strstr(why, number), "%s", why);
            }
            if (fault.calls <= i) { CHECK(rc == HLLM_OK && i > 6); break; }
        }
    CHECK(kinds >> K_OPEN & kinds >> K_WRITE & kinds >> K_FSYNC & kinds >> K_CLOSE & kinds >> K_RENAME & 1);
    memset(&fault, 0, sizeof fault);                   /* all is on the disk before the name changes, and then the name */
    memset(order, 0, sizeof order);
    fault.fail_at = -1;
    u.rt->env.io = &faulty;
    CHECK(hllm_session_save(s, in_dir("f")) == HLLM_OK);
    u.rt->env.io = NULL;
    char *write_end = strrchr(order, 'w');
    CHECK_MSG(order[0] == 'o' && write_end && strcmp(write_end, unnamed ? "wflcrofc" : "wfcrofc") == 0, "%s", order);
    CHECK(!unnamed || kinds >> K_LINK & 1);
    int died = 0, left = 0;
    for (int how = 1; how <= 2; how++)                 /* killed before and after (or in the middle of) each call */
        for (int i = 0; i < 100; i++) {
            int status;
            spill(in_dir("f"), want_old, n_old);
            memset(&fault, 0, sizeof fault);
            fault.fail_at = i;
            fault.kill = how;
            u.rt->env.io = &faulty;
            pid_t child = fork();
            if (child == 0) _exit(hllm_session_save(s, in_dir("f")) == HLLM_OK ? 0 : 1);
            u.rt->env.io = NULL;
            if (waitpid(child, &status, 0) != child) exit(1);
            CHECK_MSG(same_file(in_dir("f"), want_old, n_old) || same_file(in_dir("f"), want_new, n_new), "killed at call %d", i);
            left += n_files() - 1;
            char command[400];
            snprintf(command, sizeof command, "rm -f '%s'/.hllm-*.tmp", dir);
            if (system(command) != 0) exit(1);
            if (WIFEXITED(status)) { CHECK(WEXITSTATUS(status) == 0); break; }
            died++;
        }
    CHECK_MSG(died >= 14, "%d", died);
    if (unnamed) CHECK_MSG(left == 4, "%d", left);     /* after the link, before and after the close, before the rename */
    free(want_old);
    free(want_new);
    unlink(in_dir("f"));
    hllm_session_free(old);
    hllm_session_free(s);
}

/* Two sets of rope factors: a cache turned with the one is not read with the other; within a set the bits are those of one session. */
static void rope_border(void)
{
    static const int32_t few[] = { 1, 5, 9, 200, 260, 77, 3, 19 };
    char why[512];
    gguf_file *f = gf_llama();
    gf_u32(f, "llama.rope.scaling.original_context_length", 16);
    gf_f32_tensor(f, "rope_factors_short.weight", GF_HEAD / 2, 0, 1, 0);
    gf_f32_tensor(f, "rope_factors_long.weight", GF_HEAD / 2, 0, 5, 0);
    gbuf b = gf_write(f, NULL);
    spill(in_dir("model"), b.p, b.n);
    gb_free(&b);
    gf_free(f);
    setup two = setup_file(in_dir("model"), 1, NULL, NULL);
    static const uint32_t contexts[] = { 12, 16, 17, 64 };
    for (size_t i = 0; i < 4; i++)
        for (size_t j = 0; j < 4; j++) {
            hllm_session *s = session_of(&two, contexts[i], 0, 0), *t = session_of(&two, contexts[j], 0, 0), *whole = session_of(&two, contexts[i], 0, 0);
            float *a = malloc(two.n_vocab * sizeof *a), *c = malloc(two.n_vocab * sizeof *c);
            OK_S(hllm_session_eval(s, few, 7), s);
            OK_S(hllm_session_save(s, in_dir("rope")), s);
            const hllm_status rc = hllm_session_load(t, in_dir("rope"));
            hllm_session_last_error(t, why, sizeof why);
            if (i / 2 == j / 2) {
                OK_S(rc, t);
                OK_S(hllm_session_eval(whole, few, 8), whole);
                OK_S(hllm_session_eval(t, few + 7, 1), t);
                OK_S(hllm_session_logits(whole, 7, a, two.n_vocab), whole);
                OK_S(hllm_session_logits(t, 7, c, two.n_vocab), t);
                CHECK(memcmp(a, c, two.n_vocab * sizeof *a) == 0);
            } else CHECK_MSG(rc == HLLM_E_MISMATCH && strstr(why, "rope") && strstr(why, "16") && n_tokens_of(t) == 0, "%u to %u: %s", contexts[i], contexts[j], why);
            free(a); free(c);
            hllm_session_free(s); hllm_session_free(t); hllm_session_free(whole);
        }
    setup_free(&two);
    unlink(in_dir("model"));
    unlink(in_dir("rope"));
}

/* ---- what is at the target already ---- */

static mode_t mode_of(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 ? st.st_mode : 0;
}

/* No path leads to the destruction of what is no regular file. */
static void special_targets(void)
{
    char why[1024], fifo[512], to[512], real[512];
    hllm_session *s = session_of(&u, 64, 0, 0);
    size_t n;
    OK_S(hllm_session_eval(s, text, 9), s);
    OK_S(hllm_session_save(s, in_dir("want")), s);
    uint8_t *want = slurp(in_dir("want"), &n);
    snprintf(fifo, sizeof fifo, "%s", in_dir("fifo"));
    REQUIRE(mkfifo(fifo, 0600) == 0 && mkdir(in_dir("sub"), 0700) == 0);
    const int device = mknod(in_dir("null"), S_IFCHR | 0600, (dev_t)0x103) == 0;     /* needs root */
    CHECK(symlink("fifo", in_dir("to-fifo")) == 0 && symlink("to-loop", in_dir("to-loop")) == 0 && symlink("sub", in_dir("to-sub")) == 0);
    static const char *const no[] = { "fifo", "to-fifo", "sub", "to-sub", "to-loop", "null" };
    for (size_t i = 0; i < sizeof no / sizeof *no - !device; i++) {
        const mode_t before_mode = mode_of(in_dir(no[i]));
        const int before_n = n_files();
        memset(&fault, 0, sizeof fault);
        fault.fail_at = -1;
        u.rt->env.io = &faulty;
        hllm_status rc = hllm_session_save(s, in_dir(no[i]));
        u.rt->env.io = NULL;
        hllm_session_last_error(s, why, sizeof why);
        CHECK_MSG(rc == HLLM_E_IO && mode_of(in_dir(no[i])) == before_mode && n_files() == before_n && fault.calls == 0, "%s: %d, %d calls", no[i], rc, fault.calls);
        CHECK_MSG(strstr(why, in_dir(no[i])) && strstr(why, i < 2 || i == 5 ? "not a regular file" : i == 4 ? "too many symbolic links" : "is a directory"), "%s", why);
    }
    /* Another user's link in a folder like /tmp: followed only where the system does. */
    if (geteuid() == 0 && mkdir(in_dir("tmp"), 0700) == 0 && chmod(in_dir("tmp"), 01777) == 0 && symlink("../mine", in_dir("tmp/theirs")) == 0) {
        spill(in_dir("mine"), "precious", 8);
        const int done = lchown(in_dir("tmp/theirs"), 12345, 12345) == 0, fd = open(in_dir("tmp/theirs"), O_RDONLY);
        const int protected = done && fd < 0 && errno == EACCES;
        hllm_status rc = hllm_session_save(s, in_dir("tmp/theirs"));
        hllm_session_last_error(s, why, sizeof why);
        if (protected) CHECK_MSG(rc == HLLM_E_IO && strstr(why, "permission denied") && same_file(in_dir("mine"), (const uint8_t *)"precious", 8), "%s", why);
        else fprintf(stderr, "links of others are followed here: not tested\n");
        if (fd >= 0) close(fd);
        CHECK(unlink(in_dir("tmp/theirs")) == 0 && unlink(in_dir("mine")) == 0 && rmdir(in_dir("tmp")) == 0);
    }
    CHECK(S_ISFIFO(mode_of(fifo)) && (!device || S_ISCHR(mode_of(in_dir("null")))));

    /* A link stays one: what it points to is replaced, or made. */
    snprintf(real, sizeof real, "%s", in_dir("sub/real"));
    spill(real, "old", 3);
    snprintf(to, sizeof to, "%s", in_dir("absolute"));
    CHECK(symlink("sub/real", in_dir("relative")) == 0 && symlink(real, to) == 0 && symlink("../absolute", in_dir("sub/two")) == 0 && symlink("sub/new", in_dir("dangling")) == 0);
    static const char *const links[][2] = { { "relative", "sub/real" }, { "absolute", "sub/real" }, { "sub/two", "sub/real" }, { "dangling", "sub/new" } };
    for (size_t i = 0; i < 4; i++) {
        if (i < 3) spill(real, "old", 3);
        OK_S(hllm_session_save(s, in_dir(links[i][0])), s);
        CHECK_MSG(S_ISLNK(mode_of(in_dir(links[i][0]))) && S_ISREG(mode_of(in_dir(links[i][1]))) && same_file(in_dir(links[i][1]), want, n), "%s", links[i][0]);
    }
    const int cwd = open(".", O_RDONLY | O_DIRECTORY);
    CHECK(cwd >= 0 && chdir(in_dir("sub")) == 0 && symlink("real", "here") == 0);          /* paths without a folder */
    OK_S(hllm_session_save(s, "plain"), s);
    OK_S(hllm_session_save(s, "here"), s);
    CHECK(S_ISLNK(mode_of("here")) && same_file("plain", want, n) && same_file("real", want, n));
    CHECK(unlink("here") == 0 && unlink("plain") == 0 && unlink("new") == 0 && unlink("real") == 0 && unlink("two") == 0);

    /* The mode of what is replaced; else what the umask leaves. */
    static const mode_t modes[] = { 0640, 0600, 0444, 0666, 04755 };
    const mode_t mask = umask(027);
    for (int only_named = 0; only_named < 2; only_named++) {
        memset(&fault, 0, sizeof fault);
        fault.fail_at = -1;
        fault.only_named = only_named;
        u.rt->env.io = &faulty;
        for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
            spill("m", "old", 3);
            CHECK(chmod("m", modes[i]) == 0);
            OK_S(hllm_session_save(s, "m"), s);
            CHECK_MSG(mode_of("m") == (S_IFREG | (modes[i] & 0777)) && same_file("m", want, n), "%o: %o", (unsigned)modes[i], (unsigned)mode_of("m"));
            unlink("m");
        }
        OK_S(hllm_session_save(s, "m"), s);
        CHECK_MSG(mode_of("m") == (S_IFREG | 0640), "%o", (unsigned)mode_of("m"));
        unlink("m");
        u.rt->env.io = NULL;
    }
    umask(mask);
    static const char *const all[] = { "fifo", "null", "to-fifo", "to-loop", "to-sub", "relative", "absolute", "dangling", "want" };
    CHECK(fchdir(cwd) == 0 && close(cwd) == 0);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) unlink(in_dir(all[i]));
    CHECK(rmdir(in_dir("sub")) == 0 && n_files() == 0);
    free(want);
    hllm_session_free(s);
}

/* ---- loading with faults ---- */

static struct { int calls, fail_at, error, starts, swap_at; const uint8_t *other; size_t n_other; } in;

static int64_t g_pread(void *v, int fd, void *b, size_t n, uint64_t at)
{
    (void)v;
    if (at == HEADER && n > 18 && ++in.starts == in.swap_at) {                  /* a piece of the frame's beginning, the first or the second time */
        int w = open(in_dir("a"), O_WRONLY);
        CHECK(w >= 0 && pwrite(w, in.other, in.n_other, 0) == (ssize_t)in.n_other);
        close(w);
    }
    if (in.calls++ != in.fail_at) return pread(fd, b, n, (off_t)at);
    if (in.error == 0) return 0;                       /* shorter than it was */
    errno = in.error;
    return -1;
}

/* Every read fails once: the session is as it was, or, from the second time through the file on, empty; and it works. */
static void load_faults(void)
{
    hl_io io = hl_io_posix;
    io.pread = g_pread;
    int32_t want[M], got[M], one[8];
    char why[512];
    hllm_session *s = session_of(&u, 512, 0, 0), *t = session_of(&u, 512, 0, 0);
    greedy(s, text, 480, 0, one, 8);
    OK_S(hllm_session_save(s, in_dir("a")), s);
    OK_S(hllm_session_rewind(t, 0), t);
    greedy(t, text + 3, N, 0, want, M);
    int kept = 0, emptied = 0;
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < 100000; i++) {
            if (n_tokens_of(t) != N + M) {             /* from empty: everything is computed and right */
                greedy(t, text + 3, N, 0, got, M);
                CHECK_MSG(same_tokens(want, got, M), "call %d", i);
            }
            memset(&in, 0, sizeof in);
            in.fail_at = i;
            in.error = e ? EIO : 0;
            u.rt->env.io = &io;
            hllm_status rc = hllm_session_load(t, in_dir("a"));
            u.rt->env.io = NULL;
            hllm_session_last_error(t, why, sizeof why);
            if (rc == HLLM_OK) { CHECK(in.calls <= i && n_tokens_of(t) == 488); break; }
            CHECK_MSG(rc == (e ? HLLM_E_IO : HLLM_E_TRUNCATED) && strstr(why, "/"), "call %d: %s", i, why);
            const int empty = in.starts == 2;
            CHECK_MSG(n_tokens_of(t) == (empty ? 0 : N + M) && !strstr(why, "now empty") == !empty, "call %d: %u tokens: %s", i, n_tokens_of(t), why);
            if (empty) CHECK(rewind_min_of(t) == 0);
            kept += !empty;
            emptied += empty;
        }
    CHECK_MSG(kept >= 6 && emptied >= 6, "%d, %d", kept, emptied);
    hllm_session_free(s);
    hllm_session_free(t);
    unlink(in_dir("a"));
}

/* The file becomes another session's, right in itself, between the two times. */
static void changed_meanwhile(void)
{
    hl_io io = hl_io_posix;
    io.pread = g_pread;
    size_t n, m = 0;
    uint64_t bytes;
    char why[512];
    uint8_t *a, *b = NULL;
    hllm_session *s = session_of(&u, 256, 0, 0);
    OK_S(hllm_session_eval(s, text + 100, 4), s);
    OK_S(hllm_session_save(s, in_dir("a")), s);
    a = slurp(in_dir("a"), &n);
    memcpy(&bytes, a + 48, 8);
    uint8_t *payload = malloc(bytes);
    REQUIRE(ZSTD_decompress(payload, bytes, a + HEADER, n - HEADER - 8) == bytes);
    craft(a, payload, bytes);
    free(a);
    a = slurp(in_dir("bad"), &n);
    for (int i = 1; i < 200 && m != n; i++) {          /* of the same length */
        free(b);
        payload[bytes - 7]++;
        craft(a, payload, bytes);
        b = slurp(in_dir("bad"), &m);
    }
    REQUIRE(m == n && memcmp(a, b, n) != 0);
    OK_S(hllm_session_load(s, in_dir("bad")), s);
    for (int at = 1; at <= 2; at++) {
        spill(in_dir("a"), a, n);
        OK_S(hllm_session_rewind(s, 0), s);
        OK_S(hllm_session_eval(s, text, 7), s);
        in.calls = in.starts = 0;
        in.fail_at = -1;
        in.swap_at = at;
        in.other = b;
        in.n_other = n;
        u.rt->env.io = &io;
        hllm_status rc = hllm_session_load(s, in_dir("a"));
        u.rt->env.io = NULL;
        hllm_session_last_error(s, why, sizeof why);
        if (at == 1) CHECK_MSG(rc == HLLM_OK && n_tokens_of(s) == 4, "%s", why);               /* in time: what is loaded is what was checked */
        else CHECK_MSG(rc == HLLM_E_CORRUPT && n_tokens_of(s) == 0 && strstr(why, "now empty") && strstr(why, "a moment ago"), "%d: %s", rc, why);
    }
    free(a);
    free(b);
    free(payload);
    unlink(in_dir("a"));
    unlink(in_dir("bad"));
    hllm_session_free(s);
}

/* ---- memory ---- */

static uint64_t number_behind(const char *why, const char *word)
{
    const char *at = strstr(why, word);
    return at ? strtoull(at + strlen(word), NULL, 10) : 0;
}

/* What saving and loading take from the allocator is small, and known before: the number in the refusal under a limit is not below it. */
static void memory(void)
{
    counting c = COUNTING_INIT;
    hllm_allocator hook = counting_hook(&c);
    setup v = setup_file(test_path("models/tiny-relu2-q8_0.gguf"), 1, &hook, NULL);
    hllm_session *s = session_of(&v, 512, HLLM_KV_F32, 0);
    hllm_session_info info = { .struct_size = sizeof info };
    size_t took[2], n;
    OK_S(hllm_session_eval(s, text, 500), s);
    OK_S(hllm_session_get_info(s, &info), s);
    for (int load = 0; load < 2; load++) {
        const size_t live = c.peak = c.live;
        OK_S(load ? hllm_session_load(s, in_dir("big")) : hllm_session_save(s, in_dir("big")), s);
        took[load] = c.peak - live;
        CHECK(c.live == live);
    }
    uint8_t *want = slurp(in_dir("big"), &n);
    fprintf(stderr, "KV cache of %llu bytes, file of %zu: saving took %zu, loading %zu\n", (unsigned long long)info.kv_bytes, n, took[0], took[1]);
    CHECK_MSG(took[0] < 1536 << 10 && took[1] < 1 << 20 && info.kv_bytes > 2 * took[0] && info.kv_bytes > 3 * took[1], "%zu, %zu", took[0], took[1]);
    for (int load = 0; load < 2 && !SANITIZED; load++) {
        pid_t child = fork();
        if (child == 0) {
            char why[512], buf[256] = "";
            int fd = open("/proc/self/statm", O_RDONLY);
            REQUIRE(fd >= 0 && read(fd, buf, sizeof buf - 1) > 0);
            const rlim_t limit = strtoull(buf, NULL, 10) * (rlim_t)sysconf(_SC_PAGESIZE) + took[load] - 1;
            REQUIRE(setrlimit(RLIMIT_AS, &(struct rlimit){ limit, limit }) == 0);
            hllm_status rc = load ? hllm_session_load(s, in_dir("big")) : hllm_session_save(s, in_dir("big"));
            hllm_session_last_error(s, why, sizeof why);
            const uint64_t need = number_behind(why, load ? "unpacking needs " : "saving needs "), has = number_behind(why, "ulimit) has ");
            fprintf(stderr, "%s\n", why);
            CHECK_MSG(rc == HLLM_E_NOMEM && need >= took[load] && need < took[load] + (256 << 10) && has > 0 && has < took[load] && strstr(why, "/big: "), "%d: %s", rc, why);
            CHECK(n_tokens_of(s) == 500);
            _exit(check_done());
        }
        int status = -1;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        CHECK(same_file(in_dir("big"), want, n) && n_files() == 1);
    }
    free(want);
    unlink(in_dir("big"));
    hllm_session_free(s);
    setup_free(&v);
    CHECK(c.live == 0 && c.blocks == 0);
}

/* The same architecture and size, other weights: another checkpoint's session. */
static void other_checkpoint(void)
{
    size_t n;
    hllm_session *s = session_of(&u, 256, 0, 0);
    OK_S(hllm_session_eval(s, text, 20), s);
    OK_S(hllm_session_save(s, in_dir("own")), s);
    uint8_t *model = slurp(test_path("models/tiny-relu2-q8_0.gguf"), &n);
    for (size_t i = n / 2; i < n; i += 2000) model[i] ^= 1;
    spill(in_dir("other.gguf"), model, n);
    free(model);
    setup v = setup_file(in_dir("other.gguf"), 1, NULL, NULL);
    hllm_session *t = session_of(&v, 256, 0, 0);
    char why[1024];
    CHECK(hllm_session_load(t, in_dir("own")) == HLLM_E_MISMATCH);
    hllm_session_last_error(t, why, sizeof why);
    CHECK_MSG(strstr(why, "another model"), "%s", why);
    OK_S(hllm_session_load(s, in_dir("own")), s);
    hllm_session_free(t);
    setup_free(&v);
    hllm_session_free(s);
    CHECK(unlink(in_dir("own")) == 0 && unlink(in_dir("other.gguf")) == 0);
}

int main(void)
{
    const char *where = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/state-XXXXXX", where && where[0] ? where : P_tmpdir);
    if (!mkdtemp(dir)) return 1;
    if (dir[0] != '/') { fprintf(stderr, "TMPDIR is no absolute path\n"); return 1; }
    u = setup_tiny(1);
    text_tokens(&u, text, 512);
    for (uint32_t kv = 0; kv < 3; kv++) round_trip(kv);
    damaged();
    rope_border();
    other_checkpoint();
    save_faults();
    special_targets();
    load_faults();
    changed_meanwhile();
    memory();
    setup_free(&u);
    CHECK(rmdir(dir) == 0);
    return check_done();
}
