/* base_pool.c: every task exactly once, jobs from many threads in the order of asking, more threads than CPUs, an idle pool that costs nothing,
 * late workers left out, no signal handler on our threads.
 *
 * No time is judged.  What sleeps is seen by what the kernel says of each thread: its state, and how often it has run. */
#include <dirent.h>
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/base.h"

#include "run_common.h"

static hl_env env;

typedef struct job { _Atomic uint32_t *hits; uint32_t n; _Atomic uint32_t threads_bad; uint32_t n_threads; uint64_t sum; } job;

static void hit(void *v, uint32_t task, uint32_t thread)
{
    job *j = v;
    if (task < j->n) j->hits[task]++;
    if (thread >= j->n_threads || task >= j->n) j->threads_bad++;
}

static void once_each(hl_pool *p, uint32_t n, int rounds)
{
    job j = { calloc(n + 1, sizeof *j.hits), n, 0, hl_pool_threads(p), 0 };
    for (int r = 0; r < rounds; r++) hl_pool_run(p, hit, &j, n);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < n; i++) wrong += j.hits[i] != (uint32_t)rounds;
    CHECK_MSG(wrong == 0 && j.threads_bad == 0, "%u of %u tasks, %u threads", wrong, n, hl_pool_threads(p));
    free(j.hits);
}

/* The job's memory may change right after the call: late workers must not touch it. */
typedef struct stack_job { uint64_t magic; _Atomic uint32_t left; } stack_job;
static void use_stack(void *v, uint32_t task, uint32_t thread)
{
    stack_job *j = v;
    (void)task; (void)thread;
    CHECK(j->magic == 0x1234567812345678u);
    j->left--;
}

static void *many_callers(void *v)
{
    hl_pool *p = v;
    for (int i = 0; i < (SANITIZED ? 300 : 3000); i++) {
        stack_job j = { 0x1234567812345678u, (uint32_t)(i % 40) };
        hl_pool_run(p, use_stack, &j, (uint32_t)(i % 40));
        CHECK(j.left == 0);
        j.magic = 0;
    }
    return NULL;
}

/* ---- threads, as the kernel sees them ---- */

/* The state of a thread ('S': it sleeps until it is woken); `switches`: how often it has given the CPU back or lost it. */
static char state_of(long tid, long *switches)
{
    char path[64], line[256], state = '?';
    long n = 0;
    *switches = 0;
    snprintf(path, sizeof path, "/proc/self/task/%ld/status", tid);
    FILE *f = fopen(path, "r");
    REQUIRE(f != NULL);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "State: %c", &state) == 1) continue;
        if (sscanf(line, "voluntary_ctxt_switches: %ld", &n) == 1 || sscanf(line, "nonvoluntary_ctxt_switches: %ld", &n) == 1) *switches += n;
    }
    fclose(f);
    return state;
}

enum { MAX_THREADS = 64 };
typedef struct thread_list { int n; long tid[MAX_THREADS]; } thread_list;

static thread_list threads_now(void)
{
    thread_list l = { 0 };
    DIR *d = opendir("/proc/self/task");
    REQUIRE(d != NULL);
    for (struct dirent *e; (e = readdir(d)) != NULL;) if (e->d_name[0] != '.' && l.n < MAX_THREADS) l.tid[l.n++] = atol(e->d_name);
    closedir(d);
    return l;
}

/* Those of now that are not in `before`: a sanitizer and an emulator have threads of their own. */
static thread_list threads_since(const thread_list *before)
{
    thread_list all = threads_now(), l = { 0 };
    for (int i = 0; i < all.n; i++) {
        int old = 0;
        for (int k = 0; k < before->n; k++) old |= before->tid[k] == all.tid[i];
        if (!old) l.tid[l.n++] = all.tid[i];
    }
    return l;
}

/* Waits until a thread sleeps and goes on sleeping: five looks without a run in between.  0: not within 30,000 looks, it polls or spins. */
static int falls_asleep(long tid)
{
    long before, now;
    for (int looks = 0, same = 0; looks < 30000; looks++) {
        state_of(tid, &before);
        sleep_us(1000);
        same = state_of(tid, &now) == 'S' && now == before ? same + 1 : 0;
        if (same == 5) return 1;
    }
    return 0;
}

/* Nothing to do costs nothing: every thread made since falls asleep and does not run again, not once. */
static void check_idle(const thread_list *before, int n_threads, const char *what)
{
    thread_list l = threads_since(before);
    long switches[MAX_THREADS], now;
    CHECK_MSG(l.n == n_threads, "%s has %d threads", what, l.n);
    for (int i = 0; i < l.n; i++) CHECK_MSG(falls_asleep(l.tid[i]), "%s: a thread does not fall asleep", what);
    for (int i = 0; i < l.n; i++) state_of(l.tid[i], &switches[i]);
    sleep_us(200000);
    for (int i = 0; i < l.n; i++) {
        char state = state_of(l.tid[i], &now);
        CHECK_MSG(state == 'S' && now == switches[i], "%s: an idle thread ran %ld times, state %c", what, now - switches[i], state);
    }
}

/* ---- the order of asking ---- */

/* Jobs in the order in which they ran: 'g' of the caller that has one job after the other, 'm' of the other one. */
static struct fair { hl_pool *p; sem_t begun; _Atomic long other_tid; _Atomic int n; char order[16]; } fair;

static void note(void *v, uint32_t task, uint32_t thread)
{
    (void)thread;
    if (task == 0) fair.order[fair.n++ % 16] = *(const char *)v;
}

static void *other_caller(void *v)
{
    while (sem_wait(&fair.begun) != 0) { }
    fair.other_tid = (long)syscall(SYS_gettid);
    hl_pool_run(fair.p, note, v, 4);
    return NULL;
}

/* This job does not end before the other caller sleeps, which it can only do in its wait for its turn. */
static void until_asked(void *v, uint32_t task, uint32_t thread)
{
    note(v, task, thread);
    if (task != 0) return;
    sem_post(&fair.begun);
    while (fair.other_tid == 0) sleep_us(100);
    CHECK(falls_asleep(fair.other_tid));
}

/* A caller with one job after the other does not starve another caller: one that has asked comes before what is asked later. */
static void fairness(hl_pool *p)
{
    for (int round = 0; round < 20; round++) {
        pthread_t t;
        fair.p = p;
        REQUIRE(sem_init(&fair.begun, 0, 0) == 0);
        fair.other_tid = 0;
        fair.n = 0;
        REQUIRE(pthread_create(&t, NULL, other_caller, "m") == 0);
        hl_pool_run(p, until_asked, "g", 4);
        hl_pool_run(p, note, "g", 4);
        pthread_join(t, NULL);
        hl_pool_run(p, note, "g", 4);
        sem_destroy(&fair.begun);
        CHECK_MSG(fair.n == 4 && memcmp(fair.order, "gmgg", 4) == 0, "order %.4s", fair.order);
    }
}

/* The caller waits at first for the worker to come, at most 2 ms; of the last tasks the worker's take longer. */
typedef struct slow_job { uint32_t n; int each_us, last_us, waited; _Atomic int came; } slow_job;
static void slow(void *v, uint32_t task, uint32_t thread)
{
    slow_job *j = v;
    if (thread != 0) j->came = 1;
    else while (!j->came && j->waited++ < 20) sleep_us(100);
    sleep_us(thread != 0 && task + 4 >= j->n ? j->last_us : j->each_us);
}

/* In how many of 60 jobs the worker took part. */
static int shared_jobs(hl_pool *p, uint32_t n_tasks, int each_us, int last_us)
{
    int shared = 0;
    for (int i = 0; i < 60; i++) {
        slow_job j = { n_tasks, each_us, last_us, 0, 0 };
        hl_pool_run(p, slow, &j, n_tasks);
        shared += j.came;
    }
    return shared;
}

/* A worker that holds all up is left out for a while; one for whom all wait, and who helps all the same, is not; one left out comes back. */
static void late_workers(void)
{
    hl_pool *p = NULL;
    REQUIRE(hl_pool_new(&env, NULL, 2, &p) == HLLM_OK);
    const int harm = shared_jobs(p, 4, 0, 8000), help = shared_jobs(p, 64, 200, 3000);
    CHECK_MSG(harm > 0 && harm < 30, "%d of 60 jobs with a worker that holds them up", harm);
    CHECK_MSG(help >= 40, "%d of 60 jobs with a worker that helps, in some of them it still rests", help);
    hl_pool_free(p);
}

/* A worker that the system has put on the caller's core leaves it. */
static void shared_core(void)
{
    cpu_set_t all, one, now;
    hl_pool *p = NULL;
    REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
    const int n = CPU_COUNT(&all), here = sched_getcpu();
    if (n < 2 || here < 0) { printf("one CPU: no core is shared\n"); return; }
    CPU_ZERO(&one);
    CPU_SET((size_t)here, &one);
    const thread_list before = threads_now();
    REQUIRE(hl_pool_new(&env, NULL, 2, &p) == HLLM_OK);
    const thread_list l = threads_since(&before);
    REQUIRE(l.n == 1 && sched_setaffinity(0, sizeof one, &one) == 0 && sched_setaffinity((pid_t)l.tid[0], sizeof one, &one) == 0);
    CHECK(shared_jobs(p, 4, 200, 200) > 0);
    CHECK(sched_getaffinity((pid_t)l.tid[0], sizeof now, &now) == 0);
    CHECK_MSG(!CPU_ISSET((size_t)here, &now) && CPU_COUNT(&now) == n - 1, "may run on %d of %d CPUs, the caller's too: %d", CPU_COUNT(&now), n, CPU_ISSET((size_t)here, &now));
    REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
    hl_pool_free(p);
}

enum { MANY_JOBS = SANITIZED ? 1000 : 10000 };
static void count_task(void *v, uint32_t task, uint32_t thread)
{
    uint64_t x = task;
    (void)thread;
    for (int i = 0; i < 2000; i++) x = x * 6364136223846793005u + 1;
    *(_Atomic uint64_t *)v += 1 + (x == 0);
}

static _Atomic int handled, wrong_thread;
static pid_t main_tid;
static void on_signal(int sig) { (void)sig; handled++; if ((pid_t)syscall(SYS_gettid) != main_tid) wrong_thread++; }

static void *nothing(void *v) { return v; }

/* A thread that finds no room for its stack: the system says the same as at a limit on threads, and the text must not say more. */
static void no_room(void)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        hl_error err;
        pthread_t t;
        char why[256];
        hl_error_init(&err);
        REQUIRE(setrlimit(RLIMIT_AS, &(struct rlimit){ 1 << 20, 1 << 20 }) == 0);
        if (mmap(NULL, 64 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) _exit(0);      /* an emulator does not enforce it */
        CHECK(hl_thread_start(&err, &t, nothing, NULL) == HLLM_E_LIMIT);
        hl_error_copy(&err, why, sizeof why);
        CHECK_MSG(strstr(why, "on threads or on memory") && strstr(why, "errno 11"), "%s", why);
        _exit(check_done());
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
    hl_mem *mem;
    hl_pool *p = NULL;
    hl_error err;
    hl_error_init(&err);
    REQUIRE(hl_mem_new(NULL, &mem) == HLLM_OK && hl_log_new(mem, &env.log) == HLLM_OK);
    env.mem = mem;
    if (!SANITIZED) no_room();
    static const uint32_t sizes[] = { 0, 1, 2, 3, 7, 64, 1000, 5000 };
    for (uint32_t n = 1; n <= 16; n++) {
        REQUIRE(hl_pool_new(&env, &err, n, &p) == HLLM_OK && hl_pool_threads(p) == n);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) once_each(p, sizes[i], 5);
        hl_pool_free(p);
    }
    REQUIRE(hl_pool_new(&env, &err, 4, &p) == HLLM_OK);
    pthread_t t[6];
    for (int i = 0; i < 6; i++) REQUIRE(pthread_create(&t[i], NULL, many_callers, p) == 0);
    for (int i = 0; i < 6; i++) pthread_join(t[i], NULL);

    fairness(p);
    hl_pool_free(p);
    thread_list before = threads_now();
    REQUIRE(hl_pool_new(&env, &err, 4, &p) == HLLM_OK);
    once_each(p, 100, 10);
    check_idle(&before, 3, "a pool of 4");
    hl_pool_free(p);

    late_workers();
    shared_core();

    /* Many more threads than CPUs get on; how fast is tests/bench/pool.c's.  The runner's time limit is there for those that hang. */
    _Atomic uint64_t tasks = 0;
    REQUIRE(hl_pool_new(&env, &err, 16, &p) == HLLM_OK);
    for (int i = 0; i < MANY_JOBS; i++) hl_pool_run(p, count_task, (void *)&tasks, 32);
    CHECK(tasks == 32ull * MANY_JOBS);
    hl_pool_free(p);

    REQUIRE(hl_pool_new(&env, &err, 1000, &p) == HLLM_OK);           /* many, none of them needed */
    once_each(p, 100, 3);
    hl_pool_free(p);

    /* A whole runtime with a session at work; signals to the process land on the main thread. */
    main_tid = (pid_t)syscall(SYS_gettid);
    signal(SIGUSR1, on_signal);
    before = threads_now();
    setup u = setup_tiny(4);
    hllm_session *s = session_of(&u, 256, 0, 0);
    hllm_generate_options o = { .struct_size = sizeof o, .flags = HLLM_GENERATE_IGNORE_EOS };
    hllm_poll_result r = { .struct_size = sizeof r };
    char buf[4096];
    int32_t text[50];
    text_tokens(&u, text, 50);
    OK_S(hllm_generate_start_tokens(s, text, 50, &o), s);
    for (int i = 0; i < 1000; i++) {
        kill(getpid(), SIGUSR1);
        if (i % 100 == 0) sleep_us(1000);
        OK_S(hllm_generate_poll(s, i % 10 ? 0 : 1, buf, sizeof buf, &r), s);
    }
    poll_all(s, NULL, 0);
    CHECK_MSG(handled > 900 && wrong_thread == 0, "%d handled, %d on our threads", handled, wrong_thread);
    /* With the main thread deaf they stay pending: nobody else takes them. */
    sigset_t set, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    handled = 0;
    kill(getpid(), SIGUSR1);
    sleep_us(20000);
    sigpending(&pending);
    CHECK(handled == 0 && sigismember(&pending, SIGUSR1));
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    CHECK(handled == 1);
    check_idle(&before, 4, "a runtime of 4 with an engine");         /* the engine's worker too: it has nothing to do */
    hllm_session_free(s);
    setup_free(&u);
    hl_log_free(mem, env.log);
    CHECK(hl_mem_live_bytes(mem) == 0);
    hl_mem_free(mem);
    hl_error_destroy(&err);
    return check_done();
}
