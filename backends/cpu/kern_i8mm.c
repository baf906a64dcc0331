/* kern_i8mm.c: the table for arm64 with the dot-product and the 8-bit matrix extension (smmla): for tiles of tokens; one token takes sdot. */
#define NEON_NAME "i8mm"
#define NEON_SUPPORTED hl_cpu_has_i8mm
#define NEON_TABLE hl_kern_neon_i8mm
#define NEON_SMMLA

#include "kern_neon.h"

static inline vi four_products(vi sum, vi w, vi x) { return vdotq_s32(sum, (int8x16_t)w, (int8x16_t)x); }
