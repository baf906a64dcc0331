/* machine.c: reads /proc and /sys.  Everything here is a guess that may be absent (containers, old kernels): then the answer is the
 * cautious one.
 */
#include "run/machine.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The first cap - 1 bytes of a file, NUL-ended; empty when it cannot be read. */
static size_t slurp(const char *path, char *buf, size_t cap)
{
    size_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && n < cap - 1) {
        ssize_t got = read(fd, buf + n, cap - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
    }
    if (fd >= 0) close(fd);
    buf[n] = 0;
    return n;
}

/* Decimal digits at s; UINT64_MAX when there is none or it is too large ("max"). */
static uint64_t number(const char *s)
{
    uint64_t v = 0;
    if (*s < '0' || *s > '9') return UINT64_MAX;
    for (; *s >= '0' && *s <= '9'; s++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v)) return UINT64_MAX;
    return v;
}

static uint64_t number_after(const char *text, const char *word)
{
    const char *at = strstr(text, word);
    if (!at) return UINT64_MAX;
    at += strlen(word);
    while (*at == ' ' || *at == '\t' || *at == ':') at++;
    return number(at);
}

uint32_t hl_machine_cpus(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? (uint32_t)n : 1;
}

uint32_t hl_machine_cores(void)
{
    cpu_set_t set;
    uint32_t cores = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    for (int c = 0; c < CPU_SETSIZE; c++) {
        char path[96], buf[64];
        if (!CPU_ISSET(c, &set)) continue;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", c);
        /* The list begins with the core's lowest thread: count each core at that one. */
        if (slurp(path, buf, sizeof buf) == 0 || number(buf) == (uint64_t)c || (number(buf) < CPU_SETSIZE && !CPU_ISSET((int)number(buf), &set))) cores++;
    }
    if (cores == 0) cores = 1;
    return HL_MIN(cores, 1024u);
}

void hl_machine_cpu_name(char *out, size_t cap)
{
    char buf[4096];
    out[0] = 0;
    slurp("/proc/cpuinfo", buf, sizeof buf);
    char *at = strstr(buf, "model name");
    if (at) at = strchr(at, ':');
    if (!at) { snprintf(out, cap, "unknown"); return; }
    at += at[1] == ' ' ? 2 : 1;
    at[strcspn(at, "\n")] = 0;
    snprintf(out, cap, "%s", at);
}

uint64_t hl_machine_cache_bytes(uint32_t level, bool data)
{
    for (int i = 0; i < 8; i++) {
        char path[96], buf[64];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
        if (slurp(path, buf, sizeof buf) == 0) return 0;
        if (number(buf) != level) continue;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/type", i);
        slurp(path, buf, sizeof buf);
        if (data && strncmp(buf, "Instruction", 11) == 0) continue;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        if (slurp(path, buf, sizeof buf) == 0) return 0;
        uint64_t n = number(buf);
        return n == UINT64_MAX ? 0 : strchr(buf, 'M') ? n << 20 : n << 10;
    }
    return 0;
}

/* Lowers *total and *available to one cgroup directory's limit.  v2: memory.max, v1: memory.limit_in_bytes. */
static void apply_limit(const char *dir, bool v2, uint64_t *total, uint64_t *available)
{
    char path[1200], buf[4096];
    snprintf(path, sizeof path, "%s/%s", dir, v2 ? "memory.max" : "memory.limit_in_bytes");
    if (slurp(path, buf, sizeof buf) == 0) return;
    uint64_t limit = number(buf);
    if (limit >= 1ull << 60) return;                   /* "max", or v1's way to say so */
    snprintf(path, sizeof path, "%s/%s", dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    slurp(path, buf, sizeof buf);
    uint64_t used = number(buf);
    if (used == UINT64_MAX) used = 0;
    /* Page cache is charged to the group but given back under pressure. */
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    slurp(path, buf, sizeof buf);
    uint64_t cache = 0, n;
    if ((n = number_after(buf, "\ninactive_file ")) != UINT64_MAX) cache += n;
    if ((n = number_after(buf, "\nactive_file ")) != UINT64_MAX) cache += n;
    used = used > cache ? used - cache : 0;
    *total = HL_MIN(*total, limit);
    *available = HL_MIN(*available, limit > used ? limit - used : 0);
}

static bool exists(const char *path) { return access(path, F_OK) == 0; }

/* Walks from this process's group up to the root of the hierarchy mounted at `mount`. */
static void apply_groups(const char *mount, const char *group, bool v2, uint64_t *total, uint64_t *available)
{
    char dir[1100];
    snprintf(dir, sizeof dir, "%s%s", mount, group);
    if (!exists(dir)) snprintf(dir, sizeof dir, "%s", mount);        /* inside a container the group's path is another's */
    const size_t root = strlen(mount);
    for (;;) {
        apply_limit(dir, v2, total, available);
        char *slash = strrchr(dir, '/');
        if (strlen(dir) <= root || !slash || (size_t)(slash - dir) < root) break;
        *slash = 0;
    }
}

/* Lowers both to what one of this process's own limits leaves.  field: its place in /proc/self/statm, in pages: 0 all that is mapped, 5 data and stacks. */
static void apply_rlimit(int limit, int field, uint64_t *total, uint64_t *available)
{
    struct rlimit r;
    char buf[256], *at = buf;
    if (getrlimit(limit, &r) != 0 || r.rlim_cur == RLIM_INFINITY) return;
    slurp("/proc/self/statm", buf, sizeof buf);
    for (int i = 0; i < field && at; i++) { at = strchr(at, ' '); if (at) at++; }
    uint64_t used = at ? number(at) : UINT64_MAX;
    used = used == UINT64_MAX ? 0 : used * (uint64_t)sysconf(_SC_PAGESIZE);
    *total = HL_MIN(*total, (uint64_t)r.rlim_cur);
    *available = HL_MIN(*available, r.rlim_cur > used ? r.rlim_cur - used : 0);
}

uint64_t hl_machine_address_bytes(bool data)
{
    uint64_t total = UINT64_MAX, available = UINT64_MAX;
    if (data) apply_rlimit(RLIMIT_DATA, 5, &total, &available);
    else apply_rlimit(RLIMIT_AS, 0, &total, &available);
    return available;
}

hl_status hl_machine_check(hl_error *err, const char *path, const char *what, uint64_t need_bytes)
{
    uint64_t total, available;
    hl_machine_memory(&total, &available);
    if (need_bytes <= available) return HLLM_OK;
    return hl_fail(err, HLLM_E_NOMEM, "%s: %s needs %llu bytes, the machine (or its cgroup or ulimit) has %llu", path, what, (unsigned long long)need_bytes,
                   (unsigned long long)available);
}

static void apply_cgroups(uint64_t *total, uint64_t *available)
{
    char buf[4096];
    if (slurp("/proc/self/cgroup", buf, sizeof buf) == 0) return;
    for (char *line = buf; line && *line;) {
        char *next = strchr(line, '\n');
        if (next) *next++ = 0;
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (group) {
            *group++ = 0;
            names++;
            if (strlen(group) < 900) {
                if (!*names) {
                    apply_groups("/sys/fs/cgroup", group, true, total, available);
                    apply_groups("/sys/fs/cgroup/unified", group, true, total, available);
                } else if (strstr(names, "memory")) apply_groups("/sys/fs/cgroup/memory", group, false, total, available);
            }
        }
        line = next;
    }
}

void hl_machine_memory(uint64_t *total, uint64_t *available)
{
    char buf[4096];
    slurp("/proc/meminfo", buf, sizeof buf);
    uint64_t kb = number_after(buf, "MemTotal:"), free_kb = number_after(buf, "MemAvailable:");
    *total = kb == UINT64_MAX ? UINT64_MAX : kb << 10;
    *available = free_kb == UINT64_MAX ? *total : free_kb << 10;
    apply_rlimit(RLIMIT_AS, 0, total, available);
    apply_rlimit(RLIMIT_DATA, 5, total, available);
    apply_cgroups(total, available);
}
