/* hostile.h: what the hostile-input tests share: a counting allocator, a directory for files, processor time.
 *
 * The rule for every row: the right code, a message that names what is wrong, outputs cleared, every block given back, memory
 * at most 4 x file + 16 MiB, at most 2 s of the processor in an optimised build, and the same runtime works afterwards.  The 2 s are the
 * requirement itself, that a hostile file is refused quickly.  It is this process's own processor time, which waiting for a busy machine
 * does not add to, and the slowest row needs less than a fifth of it.  Other tests judge counts, states and orders. */
#ifndef HOSTILE_H
#define HOSTILE_H

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hybrid_llm.h"

#include "../unit/check.h"
#include "gguf_writer.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#  define HOSTILE_SLOW 1
#elif defined(__has_feature)
#  if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#    define HOSTILE_SLOW 1
#  endif
#endif
#ifdef HOSTILE_SLOW
static const double hostile_seconds = 20;
#else
static const double hostile_seconds = 2;
#endif

/* Unlike REQUIRE it lets a test go on that has failed before. */
#define NEED(x) do { if (!(x)) { CHECK(x); exit(1); } } while (0)

/* Of the processor; what never returns meets the runner's time limit. */
static inline double hostile_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- allocator ---- */

typedef struct counting { pthread_mutex_t lock; size_t live, peak; long blocks, calls, fail_at; } counting;

static inline void *counting_alloc(void *user, size_t bytes, size_t align)
{
    counting *c = user;
    void *p = NULL;
    pthread_mutex_lock(&c->lock);
    long call = c->calls++;
    pthread_mutex_unlock(&c->lock);
    if (c->fail_at >= 0 && call == c->fail_at) return NULL;
    if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, bytes ? bytes : 1) != 0) return NULL;
    pthread_mutex_lock(&c->lock);
    c->live += bytes;
    c->blocks++;
    if (c->live > c->peak) c->peak = c->live;
    pthread_mutex_unlock(&c->lock);
    return p;
}

static inline void counting_free(void *user, void *p, size_t bytes, size_t align)
{
    counting *c = user;
    (void)align;
    if (!p) return;
    free(p);
    pthread_mutex_lock(&c->lock);
    c->live -= bytes;
    c->blocks--;
    pthread_mutex_unlock(&c->lock);
}

#define COUNTING_INIT { PTHREAD_MUTEX_INITIALIZER, 0, 0, 0, 0, -1 }

static inline hllm_allocator counting_hook(counting *c)
{
    return (hllm_allocator){ sizeof(hllm_allocator), 0, c, counting_alloc, counting_free };
}

/* ---- files ---- */

static char hostile_dir[512];

static inline void hostile_dir_make(void)
{
    const char *where = getenv("TMPDIR");
    snprintf(hostile_dir, sizeof hostile_dir, "%s/hostile-XXXXXX", where && where[0] ? where : P_tmpdir);
    NEED(mkdtemp(hostile_dir) != NULL);
}

static inline const char *hostile_path(const char *name)
{
    static char path[4][1024];
    static int at;
    at = (at + 1) % 4;
    snprintf(path[at], sizeof path[at], "%s/%s", hostile_dir, name);
    return path[at];
}

/* Removes the files that tests name; the directory must be empty then. */
static inline void hostile_dir_remove(void)
{
    CHECK_MSG(rmdir(hostile_dir) == 0, "%s is not empty", hostile_dir);
}

/* Writes a file, zero bytes up to `size` behind it (sparse).  0: it cannot be so large here. */
static inline int hostile_write(const char *path, const void *bytes, size_t n, uint64_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    NEED(fd >= 0);
    for (size_t at = 0; at < n;) {
        ssize_t w = write(fd, (const char *)bytes + at, n - at);
        NEED(w > 0);
        at += (size_t)w;
    }
    int ok = size <= n || ftruncate(fd, (off_t)size) == 0;
    close(fd);
    return ok;
}

/* Does the text have all of these words (separated by '|')? */
static inline int hostile_says(const char *text, const char *words)
{
    char word[256];
    while (words && *words) {
        size_t n = strcspn(words, "|");
        snprintf(word, sizeof word, "%.*s", (int)n, words);
        if (!strstr(text, word)) return 0;
        words += n + (words[n] == '|');
    }
    return 1;
}

static inline int hostile_printable(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7F) return 0;
    return 1;
}

#endif
