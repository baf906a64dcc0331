/* base_pool.c: every task exactly once, jobs from many threads, more threads than CPUs, an idle pool that costs nothing, no signal handler on
 * our threads. */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

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

/* A caller with one job after the other does not starve another caller. */
typedef struct greedy_caller { hl_pool *p; _Atomic int stop; _Atomic long jobs; } greedy_caller;
static void short_sleep(void *v, uint32_t task, uint32_t thread) { (void)v; (void)task; (void)thread; sleep_us(1000); }
static void *job_after_job(void *v)
{
    greedy_caller *g = v;
    while (!g->stop) { hl_pool_run(g->p, short_sleep, NULL, 4); g->jobs++; }
    return NULL;
}

static void fairness(hl_pool *p)
{
    greedy_caller g = { p, 0, 0 };
    pthread_t t;
    long most = 0;
    REQUIRE(pthread_create(&t, NULL, job_after_job, &g) == 0);
    while (g.jobs == 0) sleep_us(100);
    for (int i = 0; i < 20; i++) {
        const long before = g.jobs;
        hl_pool_run(p, short_sleep, NULL, 4);
        if (g.jobs - before > most) most = g.jobs - before;
    }
    g.stop = 1;
    pthread_join(t, NULL);
    CHECK_MSG(most <= 3, "a job waited for %ld others of one caller", most);
}

static double cpu_s(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}

static void spin_task(void *v, uint32_t task, uint32_t thread)
{
    job *j = v;
    uint64_t x = task;
    (void)thread;
    for (int i = 0; i < 2000; i++) x = x * 6364136223846793005u + 1;
    atomic_fetch_add(&j->hits[0], (uint32_t)(x & 1));
}

static double jobs_per_s(uint32_t n_threads)
{
    hl_pool *p = NULL;
    hl_error err;
    hl_error_init(&err);
    REQUIRE(hl_pool_new(&env, &err, n_threads, &p) == HLLM_OK && hl_pool_threads(p) == n_threads);
    job j = { calloc(1, sizeof *j.hits), 1, 0, n_threads, 0 };
    double best = 0;
    for (int round = 0; round < 5; round++) {
        double t = now_s();
        int n = 0;
        while (now_s() - t < 0.05) { hl_pool_run(p, spin_task, &j, 32); n++; }
        if (n / (now_s() - t) > best) best = n / (now_s() - t);
    }
    free(j.hits);
    hl_pool_free(p);
    hl_error_destroy(&err);
    return best;
}

static _Atomic int handled, wrong_thread;
static pid_t main_tid;
static void on_signal(int sig) { (void)sig; handled++; if ((pid_t)syscall(SYS_gettid) != main_tid) wrong_thread++; }

int main(void)
{
    hl_mem *mem;
    hl_pool *p = NULL;
    hl_error err;
    hl_error_init(&err);
    REQUIRE(hl_mem_new(NULL, &mem) == HLLM_OK && hl_log_new(mem, &env.log) == HLLM_OK);
    env.mem = mem;
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
    once_each(p, 100, 10);
    sleep_us(50000);
    double cpu = cpu_s();
    sleep_us(200000);
    cpu = cpu_s() - cpu;
    CHECK_MSG(cpu < 0.010, "an idle pool used %.1f ms in 200 ms", cpu * 1e3);
    hl_pool_free(p);

    double one = jobs_per_s(1), two = jobs_per_s(2), sixteen = jobs_per_s(16);
    fprintf(stderr, "jobs of 32 tasks of 2,000 steps: %.0f/s with 1 thread, %.0f/s with 2, %.0f/s with 16\n", one, two, sixteen);
    CHECK_MSG(sixteen > one / (SANITIZED ? 50 : 5) && two > one / (SANITIZED ? 50 : 5), "%.0f/s with 1 thread, %.0f/s with 2, %.0f/s with 16", one, two, sixteen);

    REQUIRE(hl_pool_new(&env, &err, 1000, &p) == HLLM_OK);           /* many, none of them needed */
    once_each(p, 100, 3);
    hl_pool_free(p);

    /* A whole runtime with a session at work; signals to the process land on the main thread. */
    main_tid = (pid_t)syscall(SYS_gettid);
    signal(SIGUSR1, on_signal);
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
    cpu = cpu_s();                                     /* a runtime with nothing to do costs nothing either */
    sleep_us(200000);
    cpu = cpu_s() - cpu;
    CHECK_MSG(cpu < 0.010, "an idle runtime used %.1f ms in 200 ms", cpu * 1e3);
    hllm_session_free(s);
    setup_free(&u);
    hl_log_free(mem, env.log);
    CHECK(hl_mem_live_bytes(mem) == 0);
    hl_mem_free(mem);
    hl_error_destroy(&err);
    return check_done();
}
