/* profile.c: measures this machine and keeps the figures in a file of the caller's: reads of memory (dense, and rows in random order) and
 * 8-bit dot products per kernel table and number of threads, the cost of one hand-over between compute threads (the pool's own waiting,
 * as long as there is no GPU), sequential reads of the model's disk past the page cache.  Memory that is available is asked for each time.
 *
 * The file (JSON, version 1) names the machine and the library: figures of others are measured again, not believed.  It is a cache: a
 * file that is damaged is replaced, one that cannot be written is a line in the log, not an error.
 */
#include "run/profile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run/machine.h"

enum { VERSION = 1, MAX_FILE = 1 << 20, PROBE_BYTES = 128 << 20, DISK_CHUNK = 4 << 20, DISK_BYTES = 256 << 20, SYNC_ROUNDS = 2000 };

/* ---- measuring ---- */

typedef struct meeting { _Atomic uint32_t here; uint32_t n; _Atomic bool missed; } meeting;

/* Waits until every task of the job has begun: on a thread of its own, then.  Not for ever: the pool leaves out a thread whose core others
 * have taken. */
static void meet(void *arg, uint32_t task, uint32_t thread)
{
    meeting *m = arg;
    const uint64_t t0 = hl_now_ns();
    (void)task; (void)thread;
    atomic_fetch_add(&m->here, 1);
    for (uint32_t spin = 0; atomic_load(&m->here) < m->n && !atomic_load(&m->missed); spin++)
        if (spin % 64 == 63 && hl_now_ns() - t0 > 1000000) atomic_store(&m->missed, true);
}

static int by_time(const void *a, const void *b) { const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b; return x < y ? -1 : x > y; }

/* A hand-over: a job that all threads take part in, begun, met and waited for.  The lower quartile: others may have had the cores. */
static double measure_sync(hl_pool *pool)
{
    uint64_t ns[SYNC_ROUNDS];
    uint32_t n = 0;
    const uint64_t begin = hl_now_ns();
    for (uint32_t i = 0; i < SYNC_ROUNDS && hl_now_ns() - begin < 300000000; i++) {
        meeting m = { .n = hl_pool_threads(pool) };
        const uint64_t t0 = hl_now_ns();
        hl_pool_run(pool, meet, &m, m.n);
        if (!atomic_load(&m.missed)) ns[n++] = hl_now_ns() - t0;
    }
    qsort(ns, n, sizeof *ns, by_time);
    return n ? (double)ns[n / 4] * 1e-9 : 1e-3;        /* never met: as bad as it was waited for */
}

static hl_status measure_rates(hllm_profile *p)
{
    hl_status rc = HLLM_OK;
    const hl_env *env = &p->rt->env;
    const uint32_t most = hl_pool_threads(p->rt->pool);
    uint64_t total, available;
    hl_pool *pool = NULL;
    hl_machine_memory(&total, &available);
    const size_t bytes = (size_t)HL_MIN(HL_MAX(available / 4, (uint64_t)16 << 20), (uint64_t)PROBE_BYTES);
    for (uint32_t n = 1;; n = HL_MIN(n * 2, most)) {
        hl_pool_free(pool);
        pool = NULL;
        HL_TRY(hl_pool_new(env, &p->err, n, &pool));
        for (const char *at = hl_cpu_isa_list(); *at && p->n_rates < HL_PROFILE_MAX_RATES;) {
            hl_profile_rate *r = &p->rates[p->n_rates];
            const size_t len = strcspn(at, " ");
            snprintf(r->isa, sizeof r->isa, "%.*s", (int)HL_MIN(len, sizeof r->isa - 1), at);
            at += len + (at[len] == ' ');
            r->n_threads = n;
            hl_cpu_measure_rates(env, pool, r->isa, bytes, &r->read, &r->gather);
            r->int8_ops = hl_cpu_measure_int8(pool, r->isa);
            if (!(r->read > 0)) { rc = hl_fail(&p->err, HLLM_E_NOMEM, "%zu bytes to measure with cannot be had", bytes); goto done; }
            p->n_rates++;
        }
        if (n == most) break;
    }
    p->sync_s = measure_sync(p->rt->pool);
done:
    hl_pool_free(pool);
    return rc;
}

/* Reads the file past the page cache where the file system can; 0: it cannot be read so, or is too short to say anything. */
static double measure_disk(const hl_env *env, const char *path)
{
    double rate = 0;
    uint64_t done = 0;
    char *buf = hl_alloc_pages(env->mem, DISK_CHUNK);
    const int fd = buf ? open(path, O_RDONLY | O_CLOEXEC | O_DIRECT) : -1;
    if (fd >= 0) {
        const uint64_t t0 = hl_now_ns();
        ssize_t got = 1;
        while (done < DISK_BYTES && got > 0 && hl_now_ns() - t0 < 1000000000) {
            got = pread(fd, buf, DISK_CHUNK, (off_t)done);
            if (got > 0) done += (uint64_t)got;
            if (got < DISK_CHUNK) break;
        }
        if (done >= (1 << 20)) rate = (double)done / ((double)(hl_now_ns() - t0) * 1e-9);
        close(fd);
    }
    if (buf) hl_free_pages(env->mem, buf, DISK_CHUNK);
    return rate;
}

/* ---- the file ---- */

static void machine_key(const hllm_runtime *rt, char *buf, size_t cap)
{
    uint64_t total, available;
    hl_machine_memory(&total, &available);
    snprintf(buf, cap, "%s, %u cores, %u threads", rt->cpu, hl_machine_cores(), hl_pool_threads(rt->pool));
}

static bool positive(const json_t *v, const char *key, double *out)
{
    *out = json_number_value(json_object_get(v, key));
    return *out > 0 && *out < 1e18;
}

static bool read_figures(hllm_profile *p, const json_t *v)
{
    char key[256];
    const json_t *rates = json_object_get(v, "rates"), *disks = json_object_get(v, "disks");
    const char *machine = json_string_value(json_object_get(v, "machine")), *library = json_string_value(json_object_get(v, "library"));
    machine_key(p->rt, key, sizeof key);
    if (json_integer_value(json_object_get(v, "hllm_profile")) != VERSION || !machine || strcmp(machine, key) != 0 || !library || strcmp(library, hllm_version()) != 0) return false;
    if (json_array_size(rates) == 0 || json_array_size(rates) > HL_PROFILE_MAX_RATES || json_array_size(disks) > HL_PROFILE_MAX_DISKS) return false;
    if (!positive(v, "sync_s", &p->sync_s)) return false;
    for (size_t i = 0; i < json_array_size(rates); i++) {
        const json_t *x = json_array_get(rates, i);
        hl_profile_rate *r = &p->rates[i];
        const char *isa = json_string_value(json_object_get(x, "isa"));
        double n;
        if (!isa || strlen(isa) >= sizeof r->isa || !positive(x, "threads", &n) || n > 1024 || !positive(x, "read_bytes_per_s", &r->read) ||
            !positive(x, "gather_bytes_per_s", &r->gather) || !positive(x, "int8_ops_per_s", &r->int8_ops)) return false;
        memcpy(r->isa, isa, strlen(isa) + 1);
        r->n_threads = (uint32_t)n;
    }
    for (size_t i = 0; i < json_array_size(disks); i++) {
        double device;
        if (!positive(json_array_get(disks, i), "device", &device) || !positive(json_array_get(disks, i), "bytes_per_s", &p->disks[i].bytes_per_s)) return false;
        p->disks[i].device = (uint64_t)device;
    }
    p->n_rates = (uint32_t)json_array_size(rates);
    p->n_disks = (uint32_t)json_array_size(disks);
    return true;
}

static bool load(hllm_profile *p, const char *path)
{
    hl_file f = { 0 };
    bool good = false;
    if (hl_file_open(&p->rt->env, NULL, path, &f) != HLLM_OK) return false;
    char *text = f.bytes && f.bytes <= MAX_FILE ? hl_alloc(p->rt->env.mem, (size_t)f.bytes) : NULL;
    if (text && hl_file_read(&p->rt->env, NULL, &f, 0, text, (size_t)f.bytes) == HLLM_OK) {
        json_error_t e;
        json_t *v = json_loadb(text, (size_t)f.bytes, JSON_REJECT_DUPLICATES, &e);
        good = v && read_figures(p, v);
        if (!v) hl_log_write(p->rt->env.log, HLLM_LOG_WARNING, "%s: line %d: %s: the machine is measured again", path, e.line, e.text);
        json_decref(v);
    }
    hl_free(p->rt->env.mem, text);
    hl_file_close(&p->rt->env, &f);
    if (!good) p->n_rates = p->n_disks = 0;
    return good;
}

static json_t *figures(const hllm_profile *p)
{
    char key[256], machine[256];
    json_t *v = json_object(), *rates = json_array(), *disks = json_array();
    machine_key(p->rt, key, sizeof key);
    hl_text_printable(machine, sizeof machine, key);
    json_object_set_new(v, "hllm_profile", json_integer(VERSION));
    json_object_set_new(v, "machine", json_string(machine));
    json_object_set_new(v, "library", json_string(hllm_version()));
    for (uint32_t i = 0; i < p->n_rates; i++) {
        json_t *x = json_object();
        json_object_set_new(x, "isa", json_string(p->rates[i].isa));
        json_object_set_new(x, "threads", json_integer(p->rates[i].n_threads));
        json_object_set_new(x, "read_bytes_per_s", json_real(p->rates[i].read));
        json_object_set_new(x, "gather_bytes_per_s", json_real(p->rates[i].gather));
        json_object_set_new(x, "int8_ops_per_s", json_real(p->rates[i].int8_ops));
        json_array_append_new(rates, x);
    }
    for (uint32_t i = 0; i < p->n_disks; i++) {
        json_t *x = json_object();
        json_object_set_new(x, "device", json_integer((json_int_t)p->disks[i].device));
        json_object_set_new(x, "bytes_per_s", json_real(p->disks[i].bytes_per_s));
        json_array_append_new(disks, x);
    }
    json_object_set_new(v, "rates", rates);
    json_object_set_new(v, "sync_s", json_real(p->sync_s));
    json_object_set_new(v, "disks", disks);
    return v;
}

typedef struct sink { char buf[MAX_FILE]; size_t n; bool full; } sink;
static int take(const char *s, size_t n, void *arg)
{
    sink *o = arg;
    if (n > sizeof o->buf - o->n) { o->full = true; return -1; }
    memcpy(o->buf + o->n, s, n);
    o->n += n;
    return 0;
}

/* A new file that takes the old one's place: never half of one. */
static void save(const hllm_profile *p, const char *path)
{
    const hl_env *env = &p->rt->env;
    char name[4200];
    sink *o = hl_alloc_zero(env->mem, sizeof *o);
    json_t *v = figures(p);
    int fd = -1, failed = ENOMEM;
    const bool fits = (size_t)snprintf(name, sizeof name, "%s.%" PRIu64 ".tmp", path, hl_now_ns()) < sizeof name;
    if (o && v && fits && json_dump_callback(v, take, o, JSON_INDENT(1)) == 0) {
        fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        failed = fd < 0 ? errno : write(fd, o->buf, o->n) != (ssize_t)o->n ? EIO : 0;
        if (fd >= 0 && close(fd) != 0 && !failed) failed = errno;
        if (fd >= 0 && !failed && rename(name, path) != 0) failed = errno;
        if (fd >= 0 && failed) unlink(name);
    }
    json_decref(v);
    hl_free(env->mem, o);
    if (failed) hl_log_write(env->log, HLLM_LOG_WARNING, "%s: the machine's profile cannot be written: %s", path, hl_errno_text(failed));
}

/* ---- life ---- */

static bool find_disk(hllm_profile *p, const char *model_path, bool remeasure, bool *changed)
{
    struct stat st;
    uint32_t i = 0;
    if (stat(model_path, &st) != 0 || !S_ISREG(st.st_mode)) return false;
    const uint64_t device = (uint64_t)st.st_dev & ((1ull << 53) - 1);
    while (i < p->n_disks && p->disks[i].device != device) i++;
    if (i == p->n_disks || remeasure) {
        const double rate = measure_disk(&p->rt->env, model_path);
        if (!(rate > 0)) return true;                  /* not an error: the profile says 0 */
        if (i == p->n_disks) i = p->n_disks < HL_PROFILE_MAX_DISKS ? p->n_disks++ : 0;
        p->disks[i] = (hl_profile_disk){ device, rate };
        *changed = true;
    }
    p->disk_bytes_per_s = p->disks[i].bytes_per_s;
    return true;
}

hl_status hl_profile_open(hllm_runtime *rt, const char *path, const char *model_path, bool remeasure, hllm_profile **out)
{
    hl_status rc = HLLM_OK;
    hllm_profile *p = NULL;
    bool changed = false;
    *out = NULL;
    HL_NEED(p = hl_alloc_zero(rt->env.mem, sizeof *p));
    hl_error_init(&p->err);
    hl_runtime_ref(rt);
    p->rt = rt;
    p->from_file = path && !remeasure && load(p, path);
    if (!p->from_file) { HL_TRY(measure_rates(p)); changed = true; }
    if (model_path && !find_disk(p, model_path, remeasure, &changed)) { rc = hl_fail(&rt->err, HLLM_E_NOT_FOUND, "%s: no such file", model_path); goto done; }
    if (path && changed) save(p, path);
    *out = p; p = NULL;
done:
    if (p && rc != HLLM_OK && rc != HLLM_E_NOT_FOUND) {
        char text[512];
        hl_error_copy(&p->err, text, sizeof text);
        if (*text) hl_fail(&rt->err, rc, "%s", text);
    }
    hl_profile_free(p);
    return rc;
}

void hl_profile_free(hllm_profile *p)
{
    if (!p) return;
    hllm_runtime *rt = p->rt;
    hl_error_destroy(&p->err);
    hl_free(rt->env.mem, p);
    hl_runtime_unref(rt);
}
