/* kern_neon.c: the table for any arm64. */
#define NEON_NAME "neon"
#define NEON_SUPPORTED hl_cpu_has_neon
#define NEON_TABLE hl_kern_neon

#include "kern_neon.h"

/* Products of two bytes of at most 128 * 127 fit in 16 bits; pairs of them are added twice. */
static inline vi four_products(vi sum, vi w, vi x)
{
    int8x16_t a = (int8x16_t)w, b = (int8x16_t)x;
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b))), vpaddlq_s16(vmull_s8(vget_high_s8(a), vget_high_s8(b)))));
}
