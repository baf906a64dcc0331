/* base.h: what every file of the library stands on: status and errors, checked sizes, memory, log, threads, files, text.
 *
 * Knows nothing of models or devices.  Everything here reports failure as an hl_status; only HL_ASSERT (our own mistakes, debug
 * and test builds) stops the process.
 */
#ifndef HL_BASE_H
#define HL_BASE_H

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hybrid_llm.h"

/* ---- status and errors (error.c) ---- */

typedef hllm_status hl_status;

/* rc is a local hl_status and `done` the function's one cleanup label. */
#define HL_TRY(call)  do { rc = (call); if (rc != HLLM_OK) goto done; } while (0)
#define HL_NEED(expr) do { if (!(expr)) { rc = HLLM_E_NOMEM; goto done; } } while (0)

#ifdef HL_DEBUG_ASSERT
#  define HL_ASSERT(x) ((x) ? (void)0 : __builtin_trap())
#else
#  define HL_ASSERT(x) ((void)0)
#endif

#define HL_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define HL_COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define HL_MIN(a, b) ((a) < (b) ? (a) : (b))
#define HL_MAX(a, b) ((a) > (b) ? (a) : (b))

/* One error text per handle.  Any thread may write or read it: the lock is a leaf. */
typedef struct hl_error {
    pthread_mutex_t lock;
    hl_status code;
    char text[1024];
} hl_error;

void hl_error_init(hl_error *e);
void hl_error_destroy(hl_error *e);
/* Stores the text and returns code.  Control bytes and bad UTF-8 of the text are written as \xNN.  e may be NULL.  No %f and its kind (locale):
 * see hl_text_f64. */
hl_status hl_fail(hl_error *e, hl_status code, const char *fmt, ...) HL_PRINTF(3, 4);
/* The same in front of what e already says: "prefix: old text". */
hl_status hl_fail_prefix(hl_error *e, hl_status code, const char *fmt, ...) HL_PRINTF(3, 4);
/* Makes sure that e speaks of code: keeps the text if it does, else writes the code's standard sentence.  For the API's border. */
hl_status hl_error_settle(hl_error *e, hl_status code);
size_t hl_error_copy(const hl_error *e, char *buf, size_t cap);      /* as hllm_..._last_error */
const char *hl_status_name(hl_status code);

/* ---- checked sizes ---- */

static inline hl_status hl_mul_size(size_t a, size_t b, size_t *out)
{ return __builtin_mul_overflow(a, b, out) ? (*out = 0, HLLM_E_LIMIT) : HLLM_OK; }
static inline hl_status hl_add_size(size_t a, size_t b, size_t *out)
{ return __builtin_add_overflow(a, b, out) ? (*out = 0, HLLM_E_LIMIT) : HLLM_OK; }
static inline hl_status hl_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{ return __builtin_mul_overflow(a, b, out) ? (*out = 0, HLLM_E_LIMIT) : HLLM_OK; }
static inline hl_status hl_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{ return __builtin_add_overflow(a, b, out) ? (*out = 0, HLLM_E_LIMIT) : HLLM_OK; }
/* align: a power of two */
static inline size_t hl_align_up(size_t n, size_t align) { return (n + align - 1) & ~(align - 1); }

/* ---- memory (alloc.c) ---- */

/* The host's allocator with accounting.  Blocks below carry their size in front of them. */
typedef struct hl_mem hl_mem;

/* hook NULL: the C library, with 2 MiB pages for large blocks.  The hl_mem itself comes from the hook too. */
hl_status hl_mem_new(const hllm_allocator *hook, hl_mem **out);
void hl_mem_free(hl_mem *mem);
void *hl_alloc(hl_mem *mem, size_t bytes);             /* 64-byte aligned; NULL: out of memory (or bytes 0 gives a valid block) */
void *hl_alloc_zero(hl_mem *mem, size_t bytes);
void *hl_alloc_array(hl_mem *mem, size_t n, size_t bytes_each);      /* zeroed; NULL also on overflow */
void *hl_realloc(hl_mem *mem, void *block, size_t bytes);            /* new bytes are not zeroed; NULL: the old block stays */
void hl_free(hl_mem *mem, void *block);                /* NULL is fine */
char *hl_strndup(hl_mem *mem, const char *s, size_t n);
/* Large blocks (weights, KV): page-aligned, 2 MiB when bytes >= 2 MiB, contents zero. */
void *hl_alloc_pages(hl_mem *mem, size_t bytes);
void hl_free_pages(hl_mem *mem, void *block, size_t bytes);
uint64_t hl_mem_live_bytes(const hl_mem *mem);
uint64_t hl_mem_peak_bytes(const hl_mem *mem);
uint64_t hl_mem_calls(const hl_mem *mem);              /* how often the hook's alloc was called: the token loop must not raise it */

/* ---- log (log.c) ---- */

typedef struct hl_log hl_log;
hl_status hl_log_new(hl_mem *mem, hl_log **out);
void hl_log_free(hl_mem *mem, hl_log *log);
void hl_log_write(hl_log *log, uint32_t level, const char *fmt, ...) HL_PRINTF(3, 4);    /* HLLM_LOG_... */
hl_status hl_log_poll(hl_log *log, uint32_t *level, char *buf, size_t cap, size_t *needed);

/* ---- files (file.c) ---- */

/* The operating system's file calls that the library uses; a test puts its own in to inject faults.  All follow POSIX: -1 and
 * errno.  NULL io: the real ones. */
typedef struct hl_io {
    void *user;
    int     (*open)(void *user, const char *path, int flags, int mode);
    int64_t (*pread)(void *user, int fd, void *buf, size_t n, uint64_t offset);
    int64_t (*write)(void *user, int fd, const void *buf, size_t n);
    int     (*fsync)(void *user, int fd);
    int     (*close)(void *user, int fd);
    int     (*rename)(void *user, const char *from, const char *to);
    int     (*unlink)(void *user, const char *path);
    int     (*link)(void *user, int fd, const char *path);           /* gives a file opened with O_TMPFILE its name */
} hl_io;
extern const hl_io hl_io_posix;

/* What a piece of the library is given by its runtime. */
typedef struct hl_env {
    hl_mem *mem;
    hl_log *log;
    const hl_io *io;
    const _Atomic uint32_t *stop;              /* of one call, in a copy of the runtime's; may be NULL */
} hl_env;
/* For long loops: HLLM_E_CANCELLED when somebody asked the call to stop. */
static inline hl_status hl_env_go_on(const hl_env *env)
{
    return env->stop && atomic_load_explicit(env->stop, memory_order_relaxed) ? HLLM_E_CANCELLED : HLLM_OK;
}

/* A readable range of a regular file.  Immutable after opening; any thread may read. */
typedef struct hl_file {
    int fd;
    uint64_t base;             /* where the range starts in the file */
    uint64_t bytes;            /* of the range */
    char *path;                /* as it was given, or "fd N"; for messages */
} hl_file;

const char *hl_errno_text(int e);                      /* a few words; thread-safe, no locale */
/* Refuses what is not a regular file at once (FIFO, device, directory): HLLM_E_IO, or HLLM_E_NOT_FOUND when there is none. */
hl_status hl_file_open(const hl_env *env, hl_error *err, const char *path, hl_file *out);
hl_status hl_file_open_fd(const hl_env *env, hl_error *err, int fd, uint64_t offset, uint64_t length, hl_file *out);
void hl_file_close(const hl_env *env, hl_file *f);     /* a cleared hl_file is fine (path NULL) */
/* All n bytes or an error (short file: HLLM_E_TRUNCATED). */
hl_status hl_file_read(const hl_env *env, hl_error *err, const hl_file *f, uint64_t offset, void *buf, size_t n);
/* Maps the whole range read-only; *map_base and *map_bytes are what hl_file_unmap wants, *data the range's first byte. */
hl_status hl_file_map(const hl_env *env, hl_error *err, const hl_file *f, const uint8_t **data, void **map_base, size_t *map_bytes);
void hl_file_unmap(void *map_base, size_t map_bytes);

/* A file that is there whole or not at all (newfile.c).  open, write..., sync, commit; close always: without a commit nothing changed.
 * Of a symbolic link the file that it points to is replaced; what is no regular file is refused. */
typedef struct hl_newfile {
    const hl_env *env;
    const hl_io *io;                                   /* NULL: not open */
    hl_error *err;
    const char *path;                                  /* borrowed until close */
    char *target, *temp;
    size_t dir_bytes;                                  /* of temp: its folder */
    int fd;
    bool named;
} hl_newfile;
hl_status hl_newfile_open(const hl_env *env, hl_error *err, const char *path, hl_newfile *out);
hl_status hl_newfile_write(hl_newfile *f, const void *data, size_t n);
hl_status hl_newfile_sync(hl_newfile *f);
hl_status hl_newfile_commit(hl_newfile *f);
void hl_newfile_close(hl_newfile *f);                  /* a cleared one is fine */

/* ---- text (text.c) ---- */

/* Decodes one code point at s[0..n), n >= 1.  Returns its length 1..4 and sets *cp; for bytes that are no well-formed UTF-8 *cp =
 * UINT32_MAX and the length of the maximal subpart (1..3) that one U+FFFD replaces (Unicode 15, 3.9). */
size_t hl_utf8_decode(const char *s, size_t n, uint32_t *cp);
size_t hl_utf8_encode(uint32_t cp, char out[4]);       /* 1..4 */
bool hl_utf8_valid(const char *s, size_t n);
/* How many bytes at the end of s[0..n) are the beginning of a character that may still become complete: 0..3. */
size_t hl_utf8_tail(const char *s, size_t n);
/* Shortest of up to 9 digits, '.' whatever the locale.  For messages.  Returns buf. */
const char *hl_text_f64(double x, char buf[32]);
/* dst[cap] = src so that it can be shown: control bytes and bytes that are no UTF-8 become \xNN; cut between characters. */
void hl_text_printable(char *dst, size_t cap, const char *src);
/* Cuts the middle out of a text of more than n bytes ("..."): a long path must not push the reason out of a message. */
void hl_text_shorten(char *s, size_t n);
uint64_t hl_hash(const void *data, size_t n, uint64_t seed);          /* fast, seeded; not for secrets */

/* ---- threads (pool.c) ---- */

/* Compute threads that share one job at a time.  The caller of hl_pool_run takes part as thread 0. */
typedef struct hl_pool hl_pool;
typedef void hl_task(void *arg, uint32_t task, uint32_t thread);
hl_status hl_pool_new(const hl_env *env, hl_error *err, uint32_t n_threads, hl_pool **out);
void hl_pool_free(hl_pool *pool);
uint32_t hl_pool_threads(const hl_pool *pool);
/* Runs fn(arg, 0..n_tasks-1, thread) and returns when all are done.  Which thread gets which task is not fixed: results must not
 * depend on it.  Callers of different threads wait for each other; a task must not call it. */
void hl_pool_run(hl_pool *pool, hl_task *fn, void *arg, uint32_t n_tasks);
/* Starts a thread with all signals blocked. */
hl_status hl_thread_start(hl_error *err, pthread_t *out, void *(*fn)(void *), void *arg);
uint64_t hl_now_ns(void);                              /* monotonic */

/* ---- progress ---- */

typedef struct hl_progress {
    _Atomic uint64_t done, total;                      /* written by the working thread, read by any */
    _Atomic uint32_t cancelled;                        /* written by any */
} hl_progress;
/* p may be NULL.  HLLM_E_CANCELLED when asked to stop. */
static inline hl_status hl_progress_step(hl_progress *p, uint64_t more)
{
    if (!p) return HLLM_OK;
    atomic_fetch_add_explicit(&p->done, more, memory_order_relaxed);
    return atomic_load_explicit(&p->cancelled, memory_order_relaxed) ? HLLM_E_CANCELLED : HLLM_OK;
}

#endif
