/* pool.c: compute threads.
 *
 * One job at a time: a function over n tasks, handed out one by one, so that a core that is taken away or slower simply takes fewer.
 * The caller takes part and waits for those that have joined, not for those that never came.  Idle workers spin for a few microseconds
 * (the next job of a forward pass is near), then sleep: an idle pool uses no CPU.  All signals are blocked in our threads: they belong to the host.
 *
 * A worker whose core another process has taken stands still with a task in its hands, for milliseconds at a time, and all wait for it.  When the
 * latest jobs took longer than they would have without it, it is left out for a while, at first 8 ms, then longer each time, until it keeps up
 * again: for short jobs one thread less is better than one that comes and goes; long ones gain from it even so.  And the system puts two of our
 * threads on one core then (it finds that fair): a worker that sees it moves.
 */
#include "base.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LATE_NS = 200000, REST_NS = 8000000, REST_DOUBLINGS = 4, KEPT_UP_NS = 200000000, JUDGED_NS = 10000000 };
enum { SPINS = 4000, SPINS_CROWDED = 20 };             /* about 20-50 us; with more threads than CPUs the others need the time */

struct hl_pool {
    const hl_env *env;
    /* One job at a time, in the order of asking: a caller with many jobs (loading a model) must not starve a session.  `lock` guards both. */
    pthread_mutex_t lock;
    pthread_cond_t turn;
    uint64_t ticket, serving;
    pthread_t *threads;
    uint32_t n_threads, n_started;
    uint32_t spins;
    cpu_set_t allowed;                                 /* when the pool was made */
    uint64_t spent, without;                           /* the latest jobs' time, and what it would have been with one worker less; under the turn */
    hl_task *fn; void *arg; uint32_t n_tasks;          /* written by the caller before `open`, read by those who joined */
    char pad0[64];
    _Atomic uint32_t epoch;                            /* written by the caller: a new job, or the end; workers sleep on it */
    _Atomic uint32_t open;                             /* written by the caller: 1 while the job may be joined */
    _Atomic uint32_t sleepers;
    char pad1[64];
    _Atomic uint64_t next;                             /* next task */
    char pad2[64];
    _Atomic uint32_t active;                           /* workers that have joined, or are looking whether they can */
    _Atomic uint32_t caller_sleeps;
    _Atomic uint32_t stop;
    struct worker {
        hl_pool *pool;
        uint32_t index;
        uint32_t rests;                                /* one soon after the other; under the turn */
        bool late;                                     /* in this job; under the turn */
        _Atomic uint32_t inside;                       /* written by the worker: it may hold a task */
        _Atomic int cpu;                               /* where it runs, written by itself ([0]: the caller) when that changes */
        _Atomic uint64_t rest_until;                   /* written by the caller */
    } *workers;                                        /* [0]: the caller */
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

static void futex_wait_ns(_Atomic uint32_t *at, uint32_t while_is, uint64_t ns)
{
    const struct timespec t = { (time_t)(ns / 1000000000), (long)(ns % 1000000000) };
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, while_is, &t, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *at, int n)
{
    syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static uint32_t cpus(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? (uint32_t)n : 1;
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
    return e ? hl_fail(err, HLLM_E_LIMIT, "a thread cannot be started (errno %d): a limit on threads or on memory (its stack's) is reached", e) : HLLM_OK;
}

static uint32_t take_tasks(hl_pool *p, uint32_t thread)
{
    const uint32_t n = p->n_tasks;
    hl_task *fn = p->fn;
    void *arg = p->arg;
    uint32_t taken = 0;
    for (uint64_t at; (at = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < n; taken++) fn(arg, (uint32_t)at, thread);
    return taken;
}

static void tell_cpu(struct worker *w)
{
    const int cpu = sched_getcpu();
    if (cpu != atomic_load_explicit(&w->cpu, memory_order_relaxed)) atomic_store_explicit(&w->cpu, cpu, memory_order_relaxed);
}

/* A worker on the core of a thread before it moves to any that none of those is on. */
static void leave_shared_cpu(struct worker *w)
{
    hl_pool *p = w->pool;
    tell_cpu(w);
    if (p->spins == SPINS_CROWDED) return;
    const int mine = atomic_load_explicit(&w->cpu, memory_order_relaxed);
    cpu_set_t set = p->allowed;
    bool shared = false;
    for (uint32_t i = 0; i < w->index; i++) {
        const int cpu = atomic_load_explicit(&p->workers[i].cpu, memory_order_relaxed);
        shared |= cpu == mine;
        if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_CLR(cpu, &set);
    }
    if (!shared || mine < 0 || CPU_COUNT(&set) == 0) return;
    sched_setaffinity(0, sizeof set, &set);
    tell_cpu(w);
}

static void *worker_main(void *v)
{
    struct worker *w = v;
    hl_pool *p = w->pool;
    uint32_t seen = 0;
    for (;;) {
        uint32_t now, spins = 0;
        while ((now = atomic_load_explicit(&p->epoch, memory_order_acquire)) == seen) {
            if (++spins < p->spins) { relax(); continue; }
            atomic_fetch_add(&p->sleepers, 1);
            if (atomic_load(&p->epoch) == seen) futex_wait(&p->epoch, seen);
            atomic_fetch_sub(&p->sleepers, 1);
        }
        seen = now;
        const uint64_t until = atomic_load_explicit(&w->rest_until, memory_order_relaxed);
        for (uint64_t at; until && !atomic_load(&p->stop) && (at = hl_now_ns()) < until;) futex_wait_ns(&p->stop, 0, until - at);
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) return NULL;
        leave_shared_cpu(w);
        /* Join, then look: the caller closes, then looks.  So either we see the job closed or the caller sees us and waits. */
        atomic_fetch_add(&p->active, 1);
        atomic_store_explicit(&w->inside, 1, memory_order_relaxed);
        if (atomic_load(&p->open)) take_tasks(p, w->index);
        atomic_store_explicit(&w->inside, 0, memory_order_relaxed);
        if (atomic_fetch_sub(&p->active, 1) == 1 && atomic_load(&p->caller_sleeps)) futex_wake(&p->active, 1);
    }
}

static void note_late(hl_pool *p)                      /* those that still hold a task */
{
    for (uint32_t i = 1; i <= p->n_started; i++) p->workers[i].late = atomic_load_explicit(&p->workers[i].inside, memory_order_relaxed);
}

/* After a job that began and ended then; the caller has done so many of its tasks by `done`. */
static void judge(hl_pool *p, uint32_t taken, uint64_t begun, uint64_t done, uint64_t end, bool late)
{
    uint32_t working = 0;
    for (uint32_t i = 1; i <= p->n_started; i++) working += atomic_load_explicit(&p->workers[i].rest_until, memory_order_relaxed) <= begun;
    if (taken == 0 || working == 0) return;
    p->spent += end - begun;
    p->without += (done - begun) / taken * p->n_tasks / working;
    if (late && p->spent >= JUDGED_NS && p->spent > p->without / 8 * 7) {
        for (uint32_t i = 1; i <= p->n_started; i++) {
            struct worker *w = &p->workers[i];
            if (!w->late) continue;
            if (end > atomic_load(&w->rest_until) + KEPT_UP_NS) w->rests = 0;
            atomic_store(&w->rest_until, end + ((uint64_t)REST_NS << HL_MIN(w->rests, (uint32_t)REST_DOUBLINGS)));
            w->rests++;
        }
        p->spent = p->without = 0;
    } else if (p->spent > 2 * JUDGED_NS) {             /* forget */
        p->spent /= 2;
        p->without /= 2;
    }
}

static void new_epoch(hl_pool *p, int n_wake)
{
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->sleepers)) futex_wake(&p->epoch, n_wake);
}

static void take_turn(hl_pool *p)
{
    pthread_mutex_lock(&p->lock);
    const uint64_t mine = p->ticket++;
    while (p->serving != mine) pthread_cond_wait(&p->turn, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static void give_turn(hl_pool *p)
{
    pthread_mutex_lock(&p->lock);
    if (++p->serving != p->ticket) pthread_cond_broadcast(&p->turn);
    pthread_mutex_unlock(&p->lock);
}

void hl_pool_run(hl_pool *p, hl_task *fn, void *arg, uint32_t n_tasks)
{
    if (n_tasks == 0) return;
    take_turn(p);
    if (n_tasks == 1 || p->n_started == 0) {
        for (uint32_t i = 0; i < n_tasks; i++) fn(arg, i, 0);
        give_turn(p);
        return;
    }
    tell_cpu(&p->workers[0]);
    p->fn = fn; p->arg = arg; p->n_tasks = n_tasks;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store(&p->open, 1);
    const uint64_t begun = hl_now_ns();
    new_epoch(p, (int)HL_MIN(n_tasks - 1, p->n_started));
    const uint32_t taken = take_tasks(p, 0);
    const uint64_t done = hl_now_ns(), late = done + LATE_NS + 2 * (done - begun) / (taken + 1);
    bool told = false;
    /* No task is left: whoever has not come yet is too late, and only those inside are waited for. */
    atomic_store(&p->open, 0);
    uint32_t spins = 0, left;
    while ((left = atomic_load(&p->active)) != 0) {
        if (++spins < p->spins) { relax(); continue; }
        const uint64_t now = hl_now_ns();
        if (now >= late && !told) { note_late(p); told = true; }
        atomic_store(&p->caller_sleeps, 1);
        if (atomic_load(&p->active) == left) {
            if (told) futex_wait(&p->active, left);
            else futex_wait_ns(&p->active, left, late - now);
        }
        atomic_store(&p->caller_sleeps, 0);
    }
    judge(p, taken, begun, done, hl_now_ns(), told);
    give_turn(p);
}

hl_status hl_pool_new(const hl_env *env, hl_error *err, uint32_t n_threads, hl_pool **out)
{
    hl_status rc = HLLM_OK;
    hl_pool *p = NULL;
    *out = NULL;
    HL_NEED(p = hl_alloc_zero(env->mem, sizeof *p));
    p->env = env;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->turn, NULL);
    p->n_threads = n_threads;
    if (sched_getaffinity(0, sizeof p->allowed, &p->allowed) != 0) CPU_ZERO(&p->allowed);
    p->spins = n_threads <= cpus() ? SPINS : SPINS_CROWDED;
    HL_NEED(p->threads = hl_alloc_array(env->mem, n_threads, sizeof *p->threads));
    HL_NEED(p->workers = hl_alloc_array(env->mem, n_threads, sizeof *p->workers));
    for (uint32_t i = 1; i < n_threads; i++) {
        p->workers[i].pool = p;
        p->workers[i].index = i;
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
    futex_wake(&p->stop, INT_MAX);
    if (p->n_started) new_epoch(p, INT_MAX);
    for (uint32_t i = 0; i < p->n_started; i++) pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->turn);
    pthread_mutex_destroy(&p->lock);
    hl_free(p->env->mem, p->threads);
    hl_free(p->env->mem, p->workers);
    hl_free(p->env->mem, p);
}

uint32_t hl_pool_threads(const hl_pool *p) { return p->n_threads; }
