/* machine.h: what this machine has: cores, caches, memory, and the limits that a container puts on them. */
#ifndef HL_MACHINE_H
#define HL_MACHINE_H

#include "base/base.h"

uint32_t hl_machine_cores(void);                       /* physical cores that this process may use, at least 1 */
uint32_t hl_machine_cpus(void);                        /* logical ones */
void hl_machine_cpu_name(char *buf, size_t cap);
uint64_t hl_machine_cache_bytes(uint32_t level, bool data);          /* of cpu 0; 0: not known */
/* Memory of the machine, of the tightest cgroup above this process or of its own limits (RLIMIT_AS, RLIMIT_DATA), whichever is lowest;
 * *available: what could still be had without swapping (page cache counts as available). */
void hl_machine_memory(uint64_t *total, uint64_t *available);
/* How much more this process may map, touched or not: of data and stacks (RLIMIT_DATA), or of all (RLIMIT_AS).  UINT64_MAX: no limit. */
uint64_t hl_machine_address_bytes(bool data);
/* HLLM_E_NOMEM with both numbers when `need` bytes cannot be had now. */
hl_status hl_machine_check(hl_error *err, const char *path, const char *what, uint64_t need_bytes);

#endif
