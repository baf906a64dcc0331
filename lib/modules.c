/* modules.c: modules lie beside libhybridllm.so (found by the address of a function of ours, never by the host's program), or in a
 * directory that the caller names.  A module gets a table of core functions; the core exports nothing for it, and its ABI number has to
 * be ours exactly.
 */
#include "modules.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const hl_planner_core core = { HL_PLANNER_MODULE_ABI, hl_alloc_zero, hl_free, hl_fail, hl_now_ns };

static hl_status own_directory(hl_error *err, char *out, size_t cap)
{
    Dl_info info;
    union { void (*fn)(hl_module *); void *data; } own = { .fn = hl_module_close };
    if (!dladdr(own.data, &info) || !info.dli_fname) return hl_fail(err, HLLM_E_NOT_FOUND, "the directory of this library cannot be found");
    const char *slash = strrchr(info.dli_fname, '/');
    const size_t n = slash ? (size_t)(slash - info.dli_fname) : 1;
    if (n + 1 > cap) return hl_fail(err, HLLM_E_LIMIT, "the path of this library is longer than %zu bytes", cap);
    memcpy(out, slash ? info.dli_fname : ".", n);
    out[n] = 0;
    return HLLM_OK;
}

hl_status hl_module_open_glpk(hl_error *err, const char *dir, hl_module *out)
{
    hl_status rc = HLLM_OK;
    char own[4096], path[4200];
    hl_module m = { 0 };
    memset(out, 0, sizeof *out);
    if (!dir) { HL_TRY(own_directory(err, own, sizeof own)); dir = own; }
    if ((size_t)snprintf(path, sizeof path, "%s/libhybridllm-glpk.so", dir) >= sizeof path) return hl_fail(err, HLLM_E_LIMIT, "the directory of modules is longer than 4096 bytes");
    if (access(path, F_OK) != 0) return hl_fail(err, HLLM_E_NOT_FOUND, "%s: there is no such module", path);
    m.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!m.handle) return hl_fail(err, HLLM_E_UNSUPPORTED, "%s", dlerror());
    union { void *data; hl_planner_module_entry *fn; } entry = { .data = dlsym(m.handle, HL_PLANNER_MODULE_ENTRY) };
    if (!entry.data) { rc = hl_fail(err, HLLM_E_UNSUPPORTED, "%s: not a module of this library", path); goto done; }
    if (!entry.fn(&core, &m.planner) || m.planner.abi != HL_PLANNER_MODULE_ABI) {
        rc = hl_fail(err, HLLM_E_VERSION, "%s: made for another version of this library (its ABI number is not %d)", path, HL_PLANNER_MODULE_ABI);
        goto done;
    }
    *out = m; m.handle = NULL;
done:
    hl_module_close(&m);
    return rc;
}

void hl_module_close(hl_module *m)
{
    if (m->handle) dlclose(m->handle);
    memset(m, 0, sizeof *m);
}
