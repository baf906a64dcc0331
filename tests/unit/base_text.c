/* base_text.c: errors, the log, UTF-8, numbers in messages, files: the small things every other file stands on. */
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <locale.h>
#include <math.h>

#include "base/base.h"

#include "run_common.h"

static void errors(void)
{
    hl_error e;
    char buf[2000], big[3000];
    hl_error_init(&e);
    CHECK(hl_error_copy(&e, buf, sizeof buf) == 1 && buf[0] == 0);
    CHECK(hl_fail(&e, HLLM_E_IO, "file %s: %d\n\x1b[31m", "a\tb", 5) == HLLM_E_IO);
    CHECK(hl_error_copy(&e, buf, sizeof buf) == strlen(buf) + 1);
    CHECK_MSG(strcmp(buf, "file a\\x09b: 5\\x0a\\x1b[31m") == 0, "%s", buf);
    hl_fail(&e, HLLM_E_ARG, "\xc3\xa9 \xff\xc3 \xc2\x85 \xe2\x82\xac");
    hl_error_copy(&e, buf, sizeof buf);
    CHECK_MSG(strcmp(buf, "\xc3\xa9 \\xff\\xc3 \\xc2\\x85 \xe2\x82\xac") == 0, "%s", buf);
    for (size_t cap = 0; cap < 30; cap++) {            /* cut to the buffer, never inside a character */
        memset(buf, 'x', sizeof buf);
        CHECK(hl_error_copy(&e, buf, cap) == 25);
        if (cap) CHECK_MSG(strlen(buf) < cap && hl_utf8_valid(buf, strlen(buf)), "%zu: %s", cap, buf);
        CHECK(buf[cap] == 'x');
    }
    hl_fail_prefix(&e, HLLM_E_ARG, "outer %u", 7u);
    hl_error_copy(&e, buf, sizeof buf);
    CHECK_MSG(strncmp(buf, "outer 7: \xc3\xa9 \\xff", 14) == 0, "%s", buf);
    hl_fail_prefix(&e, HLLM_E_NOMEM, "other");         /* another code: its standard sentence */
    hl_error_copy(&e, buf, sizeof buf);
    CHECK_MSG(strcmp(buf, "other: out of memory") == 0, "%s", buf);
    hl_error_settle(&e, HLLM_E_NOMEM);
    hl_error_copy(&e, buf, sizeof buf);
    CHECK(strncmp(buf, "other", 5) == 0);
    hl_error_settle(&e, HLLM_E_LIMIT);
    hl_error_copy(&e, buf, sizeof buf);
    CHECK(strstr(buf, "limit"));
    hl_error_settle(&e, HLLM_OK);
    memset(big, 0xe2, sizeof big - 1);
    big[sizeof big - 1] = 0;
    hl_fail(&e, HLLM_E_FORMAT, "%s", big);             /* far too long, and nothing but bad bytes */
    CHECK(hl_error_copy(&e, buf, sizeof buf) <= sizeof e.text && hl_utf8_valid(buf, strlen(buf)));
    for (size_t i = 0; i + 3 < sizeof big; i += 3) memcpy(big + i, "\xe2\x82\xac", 3);
    for (int i = 0; i < 20; i++) {
        hl_fail(&e, HLLM_E_FORMAT, "%.*s%s", i, "12345678901234567890", big);
        hl_fail_prefix(&e, HLLM_E_FORMAT, "%.*s", i * 60, big);
        hl_error_copy(&e, buf, sizeof buf);
        CHECK_MSG(strlen(buf) < sizeof e.text && hl_utf8_valid(buf, strlen(buf)), "%d: %zu bytes", i, strlen(buf));
    }
    CHECK(hl_fail(NULL, HLLM_E_IO, "%s", "x") == HLLM_E_IO && hl_error_settle(NULL, HLLM_E_IO) == HLLM_E_IO);
    for (int code = 0; code >= -20; code--) CHECK_MSG(strncmp(hllm_status_name(code), code ? "HLLM_E_" : "HLLM_OK", 7) == 0 && !strchr(hllm_status_name(code), '?'), "%d", code);
    CHECK(strcmp(hllm_status_name(-21), "HLLM_E_?") == 0 && strcmp(hllm_status_name(1), "HLLM_E_?") == 0);
    hl_error_destroy(&e);
}

static void log_lines(hl_mem *mem)
{
    hl_log *log = NULL;
    char buf[400], big[1000];
    uint32_t level;
    size_t needed;
    REQUIRE(hl_log_new(mem, &log) == HLLM_OK);
    CHECK(hl_log_poll(log, &level, buf, sizeof buf, &needed) == HLLM_OK && needed == 0 && level == 0);
    for (int i = 0; i < 300; i++) hl_log_write(log, i & 1 ? HLLM_LOG_WARNING : HLLM_LOG_INFO, "line %d\n", i);
    CHECK(hl_log_poll(log, &level, buf, 3, &needed) == HLLM_E_BUFFER && needed == strlen("line 44\\x0a") + 1);
    for (int i = 300 - 256; i < 300; i++) {
        char want[32];
        snprintf(want, sizeof want, "line %d\\x0a", i);
        CHECK_MSG(hl_log_poll(log, &level, buf, sizeof buf, &needed) == HLLM_OK && strcmp(buf, want) == 0 && needed == strlen(want) + 1
                  && level == (i & 1 ? HLLM_LOG_WARNING : HLLM_LOG_INFO), "\"%s\", expected \"%s\"", buf, want);
    }
    CHECK(hl_log_poll(log, &level, buf, sizeof buf, &needed) == HLLM_OK && needed == 0);
    for (size_t i = 0; i + 2 < sizeof big; i += 2) memcpy(big + i, "\xc3\xa9", 3);
    hl_log_write(log, 1, "%s", big);
    hl_log_write(log, 1, "x%s", big);
    for (int i = 0; i < 2; i++) CHECK(hl_log_poll(log, &level, buf, sizeof buf, &needed) == HLLM_OK && hl_utf8_valid(buf, strlen(buf)) && needed > 300);
    hl_log_write(NULL, 1, "nothing");
    hl_log_free(mem, log);
}

static void utf8(void)
{
    char s[4];
    uint32_t cp;
    for (uint32_t c = 0; c < 0x110000; c++) {          /* every code point: there and back */
        if (c >= 0xd800 && c < 0xe000) continue;
        size_t n = hl_utf8_encode(c, s);
        CHECK_MSG(n == (c < 0x80 ? 1u : c < 0x800 ? 2u : c < 0x10000 ? 3u : 4u) && hl_utf8_decode(s, n, &cp) == n && cp == c, "U+%04X", c);
        for (size_t cut = 1; cut < n; cut++) CHECK_MSG(hl_utf8_tail(s, cut) == cut && hl_utf8_decode(s, cut, &cp) == cut && cp == UINT32_MAX, "U+%04X cut at %zu", c, cut);
        CHECK(hl_utf8_tail(s, n) == 0 && hl_utf8_valid(s, n));
    }
    for (unsigned b = 0; b < 256; b++) {               /* a byte that begins a character, and no other, may become one */
        s[0] = (char)b;
        CHECK_MSG(hl_utf8_tail(s, 1) == (b >= 0xc2 && b <= 0xf4), "%02x", b);
        CHECK(hl_utf8_valid(s, 1) == (b < 0x80));
    }
    static const char *const bad[] = { "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\x80" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) CHECK_MSG(!hl_utf8_valid(bad[i], strlen(bad[i])) && hl_utf8_decode(bad[i], strlen(bad[i]), &cp) == 1, "%zu", i);
    CHECK(hl_utf8_valid("", 0) && hl_utf8_tail("", 0) == 0);
}

static void numbers(void)
{
    static const struct { double x; const char *text; } rows[] = { { 0, "0" }, { 1, "1" }, { -2.5, "-2.5" }, { 1e-7, "1e-07" }, { 0.1, "0.1" }, { 1.0 / 3, "0.333333333" },
        { 123456789, "123456789" }, { 1e300, "1e+300" }, { -1.5e-300, "-1.5e-300" }, { NAN, "nan" }, { INFINITY, "inf" }, { -INFINITY, "-inf" }, { DBL_MAX, "1.79769313e+308" } };
    static const char *const locales[] = { "C", "de_DE.UTF-8", "fa_IR.UTF-8", "ps_AF.UTF-8" };
    char buf[32];
    for (size_t l = 0; l < 4; l++) {
        if (!setlocale(LC_ALL, locales[l])) continue;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) CHECK_MSG(strcmp(hl_text_f64(rows[i].x, buf), rows[i].text) == 0, "%s, expected %s (%s)", buf, rows[i].text, locales[l]);
    }
    setlocale(LC_ALL, "C");
    uint64_t seen[2000];
    unsigned char data[250];
    int n = 0, same = 0;
    for (int i = 0; i < 250; i++) data[i] = (unsigned char)i;
    for (size_t len = 0; len < 250; len++) for (uint64_t seed = 0; seed < 8; seed++) seen[n++] = hl_hash(data, len, seed);
    for (int i = 0; i < n; i++) for (int j = 0; j < i; j++) same += seen[i] == seen[j];
    CHECK_MSG(same == 0, "%d equal hashes", same);
    for (int bit = 0; bit < 250 * 8; bit++) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK_MSG(hl_hash(data, 250, 1) != hl_hash((unsigned char[1]){ 0 }, 1, 1) && hl_hash(data, 250, 1) != seen[249 * 8 + 1], "bit %d", bit);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
}

/* ---- files ---- */

static struct { int kind; int calls; } trick;
static int64_t tricky_pread(void *user, int fd, void *buf, size_t n, uint64_t at)
{
    (void)user;
    trick.calls++;
    if (trick.kind == 1 && trick.calls % 2) { errno = EINTR; return -1; }
    if (trick.kind == 2) n = n > 7 ? 7 : n;            /* short reads */
    if (trick.kind == 3 && trick.calls == 3) { errno = EIO; return -1; }
    if (trick.kind == 4 && trick.calls == 2) return 0; /* it became shorter */
    if (trick.kind == 3 || trick.kind == 4) n = n > 7 ? 7 : n;
    return pread(fd, buf, n, (off_t)at);
}

static void files(hl_mem *mem)
{
    hl_io io = hl_io_posix;
    io.pread = tricky_pread;
    hl_env env = { .mem = mem, .io = &io };
    hl_error err;
    hl_file f;
    char path[300], dir[256], buf[2000], why[600];
    unsigned char data[1000];
    const uint8_t *map;
    void *base;
    size_t map_bytes;
    hl_error_init(&err);
    const char *where = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/files-XXXXXX", where && where[0] ? where : P_tmpdir);
    REQUIRE(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/f", dir);
    for (int i = 0; i < 1000; i++) data[i] = (unsigned char)(i * 7);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    REQUIRE(fd >= 0 && write(fd, data, 1000) == 1000);
    for (trick.kind = 0; trick.kind <= 4; trick.kind++) {
        trick.calls = 0;
        REQUIRE(hl_file_open(&env, &err, path, &f) == HLLM_OK && f.bytes == 1000);
        hl_status rc = hl_file_read(&env, &err, &f, 100, buf, 500), want = trick.kind == 3 ? HLLM_E_IO : trick.kind == 4 ? HLLM_E_TRUNCATED : HLLM_OK;
        CHECK_MSG(rc == want && (rc != HLLM_OK || memcmp(buf, data + 100, 500) == 0), "kind %d: %d", trick.kind, rc);
        hl_error_copy(&err, why, sizeof why);
        if (want) CHECK_MSG(strstr(why, path), "%s", why);
        CHECK(hl_file_read(&env, &err, &f, 501, buf, 500) == HLLM_E_TRUNCATED && hl_file_read(&env, &err, &f, UINT64_MAX, buf, 2) == HLLM_E_TRUNCATED);
        CHECK(hl_file_read(&env, &err, &f, 1000, buf, 0) == HLLM_OK);
        hl_file_close(&env, &f);
        hl_file_close(&env, &f);
    }
    trick.kind = 0;
    for (uint64_t off = 0; off <= 1000; off += 125) {  /* ranges of a descriptor: read and mapped */
        const uint64_t len = off == 1000 ? 0 : (1000 - off) / 2 + 1;
        if (off == 1000) {
            CHECK(hl_file_open_fd(&env, &err, fd, off, 0, &f) == HLLM_OK && f.bytes == 0);
            CHECK(hl_file_map(&env, &err, &f, &map, &base, &map_bytes) == HLLM_E_TRUNCATED);
            hl_file_close(&env, &f);
            continue;
        }
        REQUIRE(hl_file_open_fd(&env, &err, fd, off, len, &f) == HLLM_OK && f.bytes == len && f.fd != fd);
        CHECK(hl_file_read(&env, &err, &f, 0, buf, len) == HLLM_OK && memcmp(buf, data + off, len) == 0);
        CHECK(hl_file_read(&env, &err, &f, 1, buf, len) == HLLM_E_TRUNCATED);
        CHECK(hl_file_map(&env, &err, &f, &map, &base, &map_bytes) == HLLM_OK && memcmp(map, data + off, len) == 0);
        hl_file_close(&env, &f);
        CHECK(memcmp(map, data + off, len) == 0);      /* a map outlives the file */
        hl_file_unmap(base, map_bytes);
    }
    CHECK(hl_file_open_fd(&env, &err, fd, 500, 501, &f) == HLLM_E_TRUNCATED && f.path == NULL);
    CHECK(hl_file_open_fd(&env, &err, fd, 1001, 0, &f) == HLLM_E_TRUNCATED);
    CHECK(hl_file_open_fd(&env, &err, fd, 1, UINT64_MAX, &f) == HLLM_E_TRUNCATED && hl_file_open_fd(&env, &err, fd, UINT64_MAX, 1, &f) == HLLM_E_TRUNCATED);
    hl_error_copy(&err, why, sizeof why);
    CHECK_MSG(strstr(why, "18446744073709551615") && strstr(why, "1000"), "%s", why);
    CHECK(hl_file_open_fd(&env, &err, -1, 0, 0, &f) == HLLM_E_ARG);
    close(fd);
    CHECK(hl_file_open_fd(&env, &err, fd, 0, 0, &f) == HLLM_E_IO);
    CHECK(hl_file_open(&env, &err, dir, &f) == HLLM_E_IO && f.path == NULL && f.fd == -1);
    hl_error_copy(&err, why, sizeof why);
    CHECK_MSG(strstr(why, "directory"), "%s", why);
    CHECK(hl_file_open(&env, &err, "", &f) == HLLM_E_ARG);
    CHECK(hl_file_open(&env, &err, "/no/such/file", &f) == HLLM_E_NOT_FOUND);
    unlink(path);
    CHECK(mkfifo(path, 0600) == 0 && hl_file_open(&env, &err, path, &f) == HLLM_E_IO);         /* at once, not waiting for a writer */
    unlink(path);
    CHECK(hl_file_open(&env, &err, "/dev/zero", &f) == HLLM_E_IO);
    CHECK(rmdir(dir) == 0);
    hl_error_destroy(&err);
}

int main(void)
{
    hl_mem *mem = NULL;
    REQUIRE(hl_mem_new(NULL, &mem) == HLLM_OK);
    errors();
    log_lines(mem);
    utf8();
    numbers();
    files(mem);
    CHECK(hl_mem_live_bytes(mem) == 0);
    hl_mem_free(mem);
    return check_done();
}
