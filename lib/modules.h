/* modules.h: finds, checks and opens what the core can do without: libhybridllm-glpk.so. */
#ifndef HL_MODULES_H
#define HL_MODULES_H

#include "planner.h"

typedef struct hl_module { void *handle; hl_planner_module planner; } hl_module;

/* dir NULL: where this library itself lies.  HLLM_E_NOT_FOUND: there is no such file; HLLM_E_VERSION: it is for another version. */
hl_status hl_module_open_glpk(hl_error *err, const char *dir, hl_module *out);
void hl_module_close(hl_module *m);                    /* a cleared one is fine */

#endif
