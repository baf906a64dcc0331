/* pool.c: compute threads.
 *
 * One job at a time: a function over n tasks, handed out one by one, so that a core that is taken away or slower simply takes fewer.
 * The caller takes part.  Idle workers spin for a few microseconds (the next job of a forward pass is near), then sleep: an idle pool
 * uses no CPU.  All signals are blocked in our threads: they belong to the host.
 */
#include "base.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPINS = 4000 };                                 /* about 20-50 us */

struct hl_pool {
    const hl_env *env;
    pthread_mutex_t job_lock;                          /* one job at a time */
    pthread_t *threads;
    uint32_t n_threads, n_started;
    hl_task *fn; void *arg; uint32_t n_tasks;          /* written by the caller before `epoch` (release), read by workers after it */
    char pad0[64];
    _Atomic uint32_t epoch;                            /* written by the caller: a new job, or the end */
    _Atomic uint32_t sleepers;
    char pad1[64];
    _Atomic uint64_t next;                             /* epoch << 32 | next task: a late worker cannot take from a newer job */
    char pad2[64];
    _Atomic uint32_t busy;                             /* workers that have not finished with this epoch */
    _Atomic uint32_t caller_sleeps;
    _Atomic uint32_t stop;
    struct worker { hl_pool *pool; uint32_t index; } *workers;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *at, uint32_t while_is)
{
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, while_is, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *at, int n)
{
    syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

uint64_t hl_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

hl_status hl_thread_start(hl_error *err, pthread_t *out, void *(*fn)(void *), void *arg)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);            /* the new thread inherits it */
    int e = pthread_create(out, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return e ? hl_fail(err, HLLM_E_LIMIT, "a thread cannot be started (errno %d): the limit on threads is reached", e) : HLLM_OK;
}

/* Takes tasks of this epoch until none is left. */
static void take_tasks(hl_pool *p, uint32_t epoch, uint32_t thread)
{
    const uint32_t n = p->n_tasks;
    hl_task *fn = p->fn;
    void *arg = p->arg;
    uint64_t at = atomic_load_explicit(&p->next, memory_order_acquire);
    for (;;) {
        if ((uint32_t)(at >> 32) != epoch || (uint32_t)at >= n) return;
        if (!atomic_compare_exchange_weak_explicit(&p->next, &at, at + 1, memory_order_acq_rel, memory_order_acquire)) continue;
        fn(arg, (uint32_t)at, thread);
        at = atomic_load_explicit(&p->next, memory_order_acquire);
    }
}

static void *worker_main(void *v)
{
    struct worker *w = v;
    hl_pool *p = w->pool;
    uint32_t seen = 0;
    for (;;) {
        uint32_t now, spins = 0;
        while ((now = atomic_load_explicit(&p->epoch, memory_order_acquire)) == seen) {
            if (++spins < SPINS) { relax(); continue; }
            atomic_fetch_add(&p->sleepers, 1);
            if (atomic_load(&p->epoch) == seen) futex_wait(&p->epoch, seen);
            atomic_fetch_sub(&p->sleepers, 1);
        }
        seen = now;
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) return NULL;
        take_tasks(p, seen, w->index);
        if (atomic_fetch_sub(&p->busy, 1) == 1 && atomic_load(&p->caller_sleeps)) futex_wake(&p->busy, 1);
    }
}

static void new_epoch(hl_pool *p)
{
    uint32_t epoch = atomic_load_explicit(&p->epoch, memory_order_relaxed) + 1;
    atomic_store_explicit(&p->next, (uint64_t)epoch << 32, memory_order_release);
    atomic_store(&p->epoch, epoch);
    if (atomic_load(&p->sleepers)) futex_wake(&p->epoch, INT_MAX);
}

void hl_pool_run(hl_pool *p, hl_task *fn, void *arg, uint32_t n_tasks)
{
    if (n_tasks == 0) return;
    pthread_mutex_lock(&p->job_lock);
    if (n_tasks == 1 || p->n_started == 0) {
        for (uint32_t i = 0; i < n_tasks; i++) fn(arg, i, 0);
        pthread_mutex_unlock(&p->job_lock);
        return;
    }
    p->fn = fn; p->arg = arg; p->n_tasks = n_tasks;
    atomic_store_explicit(&p->busy, p->n_started, memory_order_relaxed);
    new_epoch(p);
    take_tasks(p, atomic_load_explicit(&p->epoch, memory_order_relaxed), 0);
    /* Every worker has to have seen this epoch before the job's memory may change. */
    uint32_t spins = 0, left;
    while ((left = atomic_load_explicit(&p->busy, memory_order_acquire)) != 0) {
        if (++spins < SPINS) { relax(); continue; }
        atomic_store(&p->caller_sleeps, 1);
        if (atomic_load(&p->busy) == left) futex_wait(&p->busy, left);
        atomic_store(&p->caller_sleeps, 0);
    }
    pthread_mutex_unlock(&p->job_lock);
}

hl_status hl_pool_new(const hl_env *env, hl_error *err, uint32_t n_threads, hl_pool **out)
{
    hl_status rc = HLLM_OK;
    hl_pool *p = NULL;
    *out = NULL;
    HL_NEED(p = hl_alloc_zero(env->mem, sizeof *p));
    p->env = env;
    pthread_mutex_init(&p->job_lock, NULL);
    p->n_threads = n_threads;
    HL_NEED(p->threads = hl_alloc_array(env->mem, n_threads, sizeof *p->threads));
    HL_NEED(p->workers = hl_alloc_array(env->mem, n_threads, sizeof *p->workers));
    for (uint32_t i = 1; i < n_threads; i++) {
        p->workers[i] = (struct worker){ p, i };
        if (hl_thread_start(NULL, &p->threads[p->n_started], worker_main, &p->workers[i]) != HLLM_OK) {
            hl_log_write(env->log, HLLM_LOG_WARNING, "only %u of %u compute threads could be started", p->n_started + 1, n_threads);
            break;
        }
        p->n_started++;
    }
    p->n_threads = p->n_started + 1;
    *out = p; p = NULL;
done:
    (void)err;
    hl_pool_free(p);
    return rc;
}

void hl_pool_free(hl_pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, 1);
    if (p->n_started) new_epoch(p);
    for (uint32_t i = 0; i < p->n_started; i++) pthread_join(p->threads[i], NULL);
    pthread_mutex_destroy(&p->job_lock);
    hl_free(p->env->mem, p->threads);
    hl_free(p->env->mem, p->workers);
    hl_free(p->env->mem, p);
}

uint32_t hl_pool_threads(const hl_pool *p) { return p->n_threads; }
