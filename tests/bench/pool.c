/* pool.c: how many small jobs the compute threads do in a second, with one thread, two, and more than the machine has CPUs.
 * Usage: pool [threads]...     (default 1 2 16)      ninja -C build bench_pool && build/tests/bench_pool
 *
 * A job is 32 tasks of 2,000 dependent multiplications (about 2 us each): what a layer of a small model looks like to the pool.  Best of five
 * times 50 ms.  Nothing is judged; that jobs end with more threads than CPUs is in tests/unit/base_pool.c.
 */
#include "base/base.h"

#include "run_common.h"

static _Atomic uint32_t sink;

static void spin_task(void *v, uint32_t task, uint32_t thread)
{
    uint64_t x = task;
    (void)v; (void)thread;
    for (int i = 0; i < 2000; i++) x = x * 6364136223846793005u + 1;
    sink += (uint32_t)(x & 1);
}

int main(int argc, char **argv)
{
    static char *defaults[] = { "", "1", "2", "16" };
    hl_env env = { 0 };
    hl_error err;
    hl_error_init(&err);
    REQUIRE(hl_mem_new(NULL, &env.mem) == HLLM_OK && hl_log_new(env.mem, &env.log) == HLLM_OK);
    if (argc < 2) { argc = 4; argv = defaults; }
    for (int a = 1; a < argc; a++) {
        hl_pool *p = NULL;
        double best = 0;
        REQUIRE(hl_pool_new(&env, &err, (uint32_t)atoi(argv[a]), &p) == HLLM_OK);
        for (int round = 0; round < 5; round++) {
            double t = now_s();
            int n = 0;
            while (now_s() - t < 0.05) { hl_pool_run(p, spin_task, NULL, 32); n++; }
            if (n / (now_s() - t) > best) best = n / (now_s() - t);
        }
        printf("%u threads: %.0f jobs/s\n", hl_pool_threads(p), best);
        hl_pool_free(p);
    }
    hl_log_free(env.mem, env.log);
    hl_mem_free(env.mem);
    hl_error_destroy(&err);
    return 0;
}
