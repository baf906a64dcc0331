/* packed.c: a row of a packed matrix as it was in the file (see packed.h): for embeddings, and for tests. */
#include "cpu/packed.h"

#include <string.h>

static uint32_t bits_unpack(uint32_t v)
{
    uint32_t out = 0;
    for (int i = 0; i < 32; i++) out |= (v >> (8 * (i % 4) + i / 4) & 1) << i;
    return out;
}

void hl_unpack_row(uint32_t dtype, uint32_t cols, uint32_t group, void *dst, const void *src, uint32_t ir)
{
    const hl_form *f = hl_packed_form(dtype);
    const uint32_t n_blocks = cols / (f->cols / f->blocks);
    const size_t apart = hl_packed_apart_bytes(f, hl_packed_units(f, cols), group);
    for (uint32_t ib = 0; ib < n_blocks; ib++) {
        uint8_t *out = (uint8_t *)dst + (size_t)ib * f->block_bytes;
        const uint8_t *unit = (const uint8_t *)src + apart + (size_t)(ib / f->blocks) * f->bytes * group;
        for (const hl_plane_run *r = f->run; r < f->run + HL_PACKED_RUNS && r->width; r++)
            for (uint32_t i = 0; i < r->n; i++) {
                const uint8_t *plane = unit + (r->to + (ib % f->blocks * r->n + i) * r->width) * (size_t)group;
                uint32_t v = 0;
                if (f->apart && r == f->run) plane = (const uint8_t *)src + (size_t)ib * 2 * group;
                memcpy(&v, plane + (size_t)ir * r->width, r->width);
                if (r->bits) v = bits_unpack(v);
                memcpy(out + r->from + i * r->width, &v, r->width);
            }
    }
}
