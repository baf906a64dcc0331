/* check.h: the whole test harness.  A test is a program: exit 0 = passed, 1 = failed, 77 = skipped.
 * CHECK goes on after a failure so that one run shows all of them; at most 20 are printed. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes and times under a sanitizer say little. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#  define SANITIZED 1
#elif defined(__has_feature)
#  if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#    define SANITIZED 1
#  endif
#endif
#ifndef SANITIZED
#  define SANITIZED 0
#endif

static _Atomic int check_failed, check_count;             /* tests have threads */

#define CHECK(x) CHECK_MSG(x, "%s", "")
#define CHECK_MSG(x, ...) do { check_count++; if (!(x)) { if (check_failed++ < 20) { \
    fprintf(stderr, "%s:%d: failed: %s  ", __FILE__, __LINE__, #x); fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); } } } while (0)
/* For steps without which the rest makes no sense. */
#define REQUIRE(x) do { CHECK(x); if (check_failed) exit(1); } while (0)
#define SKIP(why) do { fprintf(stderr, "skipped: %s\n", why); exit(77); } while (0)

static inline int check_done(void)
{
    if (check_count == 0) { fprintf(stderr, "no check was made\n"); return 1; }
    if (check_failed) fprintf(stderr, "%d of %d checks failed\n", check_failed, check_count);
    return check_failed != 0;
}

/* A path inside the repository.  The result lives until the fourth next call. */
static inline const char *test_path(const char *relative)
{
    static char buf[4][4096];
    static int at;
    const char *root = getenv("HLLM_TEST_ROOT");
    at = (at + 1) % 4;
    snprintf(buf[at], sizeof buf[at], "%s/%s", root ? root : ".", relative);
    return buf[at];
}
#endif
