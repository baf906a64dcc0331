/* kern_dotprod.c: the table for arm64 with the dot-product extension (ARMv8.2 sdot). */
#define NEON_NAME "dotprod"
#define NEON_SUPPORTED hl_cpu_has_dotprod
#define NEON_TABLE hl_kern_neon_dotprod

#include "kern_neon.h"

static inline vi four_products(vi sum, vi w, vi x) { return vdotq_s32(sum, (int8x16_t)w, (int8x16_t)x); }
