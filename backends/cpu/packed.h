/* packed.h: rows of a weight matrix interleaved, so that each lane of a vector belongs to one row.
 *
 * A group is G consecutive rows (G: the lanes of a vector of 32-bit numbers: 16, 8 or 4).  It holds the columns in units, one after the other;
 * a unit holds the bytes of some blocks of the file in planes: a plane is the same 1, 2 or 4 bytes of each of the G rows, side by side.  So a
 * 4-byte plane of 8-bit numbers is four columns of G rows: what a dot-product instruction takes; a scale's plane is one vector of scales.
 * Planes lie in the order in which the kernels read them: memory is read fast only where a prefetcher can guess what comes.
 * Bytes are moved, not changed (but for the order of Q5_0's and Q5_1's high bits), so that a row can be had back as it was.
 * Offsets within a unit are counted per row: multiply by G.  With G = 16 every 4-byte plane begins at a multiple of 64 bytes.
 *
 *   type              columns  bytes a row  planes: [offset] what
 *   Q4_0, IQ4_NL        64        36        [0] d of each block  [4] qs, 4 dwords a block
 *   Q4_1                64        40        [0] d  [4] m  [8] qs
 *   Q5_0                64        44        [0] d  [4] bit 4 of each column: bit k of byte b is column 4 k + b  [12] qs
 *   Q5_1                64        48        [0] d  [4] m  [8] bits, as Q5_0  [16] qs
 *   Q8_0                64        68        [0] d  [4] qs, 8 dwords a block
 *   MXFP4              128        68        [0] e  [4] qs
 *   Q2_K               256        84        [0] d  [2] dmin  [4] 16 bytes of scales  [20] qs, 16 dwords
 *   Q3_K               256       108        [0] 12 bytes of scales  [12] hmask, 8 dwords  [44] qs, 16 dwords; d is apart
 *   Q4_K               256       144        [0] d  [2] dmin  [4] 12 bytes of scales  [16] qs, 32 dwords
 *   Q5_K               256       176        [0] d  [2] dmin  [4] 12 bytes of scales  [16] qh, 8 dwords  [48] qs, 32 dwords
 *   Q6_K               256       208        [0] 16 bytes of scales  [16] 8 dwords of qh, 16 of ql: of the first 128 columns, then of the second; d is apart
 *   IQ4_XS             256       136        [0] d  [2] 2 bytes of scales_h  [4] 4 bytes of scales_l  [8] qs, 32 dwords
 *   F16                 32        64        [0] 32 halves
 *   BF16                32        64        [0] 16 pairs
 *
 * A group of F16 or BF16 rows is 32 rows whatever the vectors are: no table needs fewer to have enough sums under way (kern_half.h).
 *
 * Where a single scale would spoil the alignment (d "apart") the scales' planes of all units come first in the group, padded to 64 bytes.  So no
 * type takes more memory than in the file, but for padding at the end of a row.
 * packed.c: plain C, any thread; the kernel tables pack with their own vectors (kern_packed.h) by the same forms.
 */
#ifndef HL_CPU_PACKED_H
#define HL_CPU_PACKED_H

#include "cpu/kernels.h"

#include <stddef.h>

enum { HL_PACKED_RUNS = 6 };

/* n planes of `width` bytes: from within a block, to within a unit (of its first block: the next block's planes follow) */
typedef struct hl_plane_run { uint16_t from, to; uint8_t width, n; bool bits; } hl_plane_run;

typedef struct hl_form {
    uint16_t cols, bytes;                              /* of a unit; bytes per row */
    uint8_t blocks;                                    /* per unit */
    uint16_t block_bytes;                              /* in the file */
    bool apart;                                        /* run[0] is one plane of 2 bytes, apart */
    hl_plane_run run[HL_PACKED_RUNS];                  /* ends with width 0 */
} hl_form;

#define HL_AT(type, field) offsetof(hl_block_##type, field)
static const hl_form hl_form_q4_0 = { 64, 36, 2, 18, false, { { HL_AT(q4_0, d), 0, 2, 1, false }, { HL_AT(q4_0, qs), 4, 4, 4, false } } };
static const hl_form hl_form_q4_1 = { 64, 40, 2, 20, false, { { HL_AT(q4_1, d), 0, 2, 1, false }, { HL_AT(q4_1, m), 4, 2, 1, false }, { HL_AT(q4_1, qs), 8, 4, 4, false } } };
static const hl_form hl_form_q5_0 = { 64, 44, 2, 22, false, { { HL_AT(q5_0, d), 0, 2, 1, false }, { HL_AT(q5_0, qh), 4, 4, 1, true }, { HL_AT(q5_0, qs), 12, 4, 4, false } } };
static const hl_form hl_form_q5_1 = { 64, 48, 2, 24, false, { { HL_AT(q5_1, d), 0, 2, 1, false }, { HL_AT(q5_1, m), 4, 2, 1, false }, { HL_AT(q5_1, qh), 8, 4, 1, true },
                                                       { HL_AT(q5_1, qs), 16, 4, 4, false } } };
static const hl_form hl_form_q8_0 = { 64, 68, 2, 34, false, { { HL_AT(q8_0, d), 0, 2, 1, false }, { HL_AT(q8_0, qs), 4, 4, 8, false } } };
static const hl_form hl_form_mxfp4 = { 128, 68, 4, 17, false, { { HL_AT(mxfp4, e), 0, 1, 1, false }, { HL_AT(mxfp4, qs), 4, 4, 4, false } } };
static const hl_form hl_form_q2_K = { 256, 84, 1, 84, false, { { HL_AT(q2_K, d), 0, 2, 2, false }, { HL_AT(q2_K, scales), 4, 1, 16, false }, { HL_AT(q2_K, qs), 20, 4, 16, false } } };
static const hl_form hl_form_q3_K = { 256, 108, 1, 110, true, { { HL_AT(q3_K, d), 0, 2, 1, false }, { HL_AT(q3_K, scales), 0, 1, 12, false }, { HL_AT(q3_K, hmask), 12, 4, 8, false },
                                                          { HL_AT(q3_K, qs), 44, 4, 16, false } } };
static const hl_form hl_form_q4_K = { 256, 144, 1, 144, false, { { HL_AT(q4_K, d), 0, 2, 2, false }, { HL_AT(q4_K, scales), 4, 1, 12, false }, { HL_AT(q4_K, qs), 16, 4, 32, false } } };
static const hl_form hl_form_q5_K = { 256, 176, 1, 176, false, { { HL_AT(q5_K, d), 0, 2, 2, false }, { HL_AT(q5_K, scales), 4, 1, 12, false }, { HL_AT(q5_K, qh), 16, 4, 8, false },
                                                          { HL_AT(q5_K, qs), 48, 4, 32, false } } };
static const hl_form hl_form_q6_K = { 256, 208, 1, 210, true, { { HL_AT(q6_K, d), 0, 2, 1, false }, { HL_AT(q6_K, scales), 0, 1, 16, false },
                                                         { HL_AT(q6_K, qh), 16, 4, 8, false }, { HL_AT(q6_K, ql), 48, 4, 16, false },
                                                         { HL_AT(q6_K, qh) + 32, 112, 4, 8, false }, { HL_AT(q6_K, ql) + 64, 144, 4, 16, false } } };
static const hl_form hl_form_iq4_xs = { 256, 136, 1, 136, false, { { HL_AT(iq4_xs, d), 0, 2, 1, false }, { HL_AT(iq4_xs, scales_h), 2, 1, 2, false },
                                                            { HL_AT(iq4_xs, scales_l), 4, 1, 4, false }, { HL_AT(iq4_xs, qs), 8, 4, 32, false } } };

static const hl_form hl_form_f16 = { 32, 64, 1, 64, false, { { 0, 0, 2, 32, false } } };
static const hl_form hl_form_bf16 = { 32, 64, 1, 64, false, { { 0, 0, 4, 16, false } } };
enum { HL_HALF_ROWS = 32 };

static inline const hl_form *hl_packed_form(uint32_t dtype)            /* NULL: there is no packed form of this type */
{
    switch (dtype) {
    case HL_Q4_0: case HL_IQ4_NL: return &hl_form_q4_0;
    case HL_Q4_1: return &hl_form_q4_1;
    case HL_Q5_0: return &hl_form_q5_0;
    case HL_Q5_1: return &hl_form_q5_1;
    case HL_Q8_0: return &hl_form_q8_0;
    case HL_MXFP4: return &hl_form_mxfp4;
    case HL_Q2_K: return &hl_form_q2_K;
    case HL_Q3_K: return &hl_form_q3_K;
    case HL_Q4_K: return &hl_form_q4_K;
    case HL_Q5_K: return &hl_form_q5_K;
    case HL_Q6_K: return &hl_form_q6_K;
    case HL_IQ4_XS: return &hl_form_iq4_xs;
    case HL_F16: return &hl_form_f16;
    case HL_BF16: return &hl_form_bf16;
    default: return NULL;
    }
}

/* Rows in a group; group: the table's. */
static inline uint32_t hl_packed_rows(uint32_t dtype, uint32_t group) { return dtype == HL_F16 || dtype == HL_BF16 ? HL_HALF_ROWS : group; }

static inline uint32_t hl_packed_units(const hl_form *f, uint32_t cols) { return (cols + f->cols - 1) / f->cols; }
static inline size_t hl_packed_apart_bytes(const hl_form *f, uint32_t n_units, uint32_t group)         /* in front of a group's units */
{
    return f->apart ? hl_align_up((size_t)n_units * 2 * group, 64) : 0;
}

static inline size_t hl_packed_group_bytes(const hl_form *f, uint32_t cols, uint32_t group)
{
    const uint32_t n = hl_packed_units(f, cols);
    return hl_packed_apart_bytes(f, n, group) + (size_t)n * f->bytes * group;
}

/* Q5_0's and Q5_1's bits: bit i of the file becomes bit i / 4 of byte i % 4. */
static inline uint32_t hl_packed_bits(uint32_t v)
{
    uint32_t out = 0;
    for (int b = 0; b < 4; b++) {
        uint32_t x = v >> b & 0x11111111;
        x = (x | x >> 3) & 0x03030303;
        x = (x | x >> 6) & 0x000F000F;
        out |= ((x | x >> 12) & 0xFF) << 8 * b;
    }
    return out;
}

/* Row ir of a group as blocks of the file: dst has hl_dtype_bytes(cols). */
void hl_unpack_row(uint32_t dtype, uint32_t cols, uint32_t group, void *dst, const void *src, uint32_t ir);

#endif
