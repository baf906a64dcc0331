/* dtype.h: element and block formats of GGUF tensors: sizes, names, and exact dequantisation.
 *
 * The numbers are ggml's.  dtype.c is built with contraction off: hl_dequantize gives the same bits everywhere, and the same as
 * the `gguf` Python package.
 */
#ifndef HL_DTYPE_H
#define HL_DTYPE_H

#include "base.h"

enum {
    HL_F32 = 0, HL_F16 = 1, HL_Q4_0 = 2, HL_Q4_1 = 3, HL_Q5_0 = 6, HL_Q5_1 = 7, HL_Q8_0 = 8, HL_Q2_K = 10, HL_Q3_K = 11,
    HL_Q4_K = 12, HL_Q5_K = 13, HL_Q6_K = 14, HL_IQ4_NL = 20, HL_IQ4_XS = 23, HL_BF16 = 30, HL_MXFP4 = 39
};
enum { HL_DTYPE_END = 40, HL_QK = 32, HL_QK_K = 256 };

typedef uint16_t hl_f16;                               /* IEEE half, as bits */

typedef struct { hl_f16 d; uint8_t qs[16]; } hl_block_q4_0;                          /* w = d (q - 8); low nibbles are 0..15 */
typedef struct { hl_f16 d, m; uint8_t qs[16]; } hl_block_q4_1;                       /* w = d q + m */
typedef struct { hl_f16 d; uint8_t qh[4], qs[16]; } hl_block_q5_0;                   /* w = d (q - 16); bit i of qh is bit 4 of q[i] */
typedef struct { hl_f16 d, m; uint8_t qh[4], qs[16]; } hl_block_q5_1;
typedef struct { hl_f16 d; int8_t qs[32]; } hl_block_q8_0;
typedef struct { uint8_t scales[16], qs[64]; hl_f16 d, dmin; } hl_block_q2_K;        /* 16 groups of 16; scale low, min high nibble */
typedef struct { uint8_t hmask[32], qs[64], scales[12]; hl_f16 d; } hl_block_q3_K;   /* 16 groups of 16; 6-bit scales - 32 */
typedef struct { hl_f16 d, dmin; uint8_t scales[12], qs[128]; } hl_block_q4_K;       /* 8 groups of 32; 6-bit scales and mins */
typedef struct { hl_f16 d, dmin; uint8_t scales[12], qh[32], qs[128]; } hl_block_q5_K;
typedef struct { uint8_t ql[128], qh[64]; int8_t scales[16]; hl_f16 d; } hl_block_q6_K;      /* 16 groups of 16; w = d s (q - 32) */
typedef struct { hl_f16 d; uint8_t qs[16]; } hl_block_iq4_nl;                        /* w = d table[q] */
typedef struct { hl_f16 d; uint16_t scales_h; uint8_t scales_l[4], qs[128]; } hl_block_iq4_xs;
typedef struct { uint8_t e, qs[16]; } hl_block_mxfp4;                                /* w = 2^(e-128) table[q] */

_Static_assert(sizeof(hl_block_q4_0) == 18 && sizeof(hl_block_q4_1) == 20 && sizeof(hl_block_q5_0) == 22 &&
               sizeof(hl_block_q5_1) == 24 && sizeof(hl_block_q8_0) == 34, "file format");
_Static_assert(sizeof(hl_block_q2_K) == 84 && sizeof(hl_block_q3_K) == 110 && sizeof(hl_block_q4_K) == 144 &&
               sizeof(hl_block_q5_K) == 176 && sizeof(hl_block_q6_K) == 210, "file format");
_Static_assert(sizeof(hl_block_iq4_nl) == 18 && sizeof(hl_block_iq4_xs) == 136 && sizeof(hl_block_mxfp4) == 17, "file format");

extern const int8_t hl_table_iq4_nl[16];               /* also IQ4_XS */
extern const int8_t hl_table_mxfp4[16];                /* doubled: 0 1 2 3 4 6 8 12 and their negatives */

typedef struct hl_dtype_info {
    const char *name;                                  /* "Q4_K"; NULL: this number is not known here */
    uint32_t block;                                    /* elements per block */
    uint32_t bytes;                                    /* per block */
} hl_dtype_info;

/* NULL for a type that this library cannot compute with. */
const hl_dtype_info *hl_dtype(uint32_t dtype);
/* Bytes of n elements; n is a multiple of the block. */
static inline size_t hl_dtype_bytes(const hl_dtype_info *t, size_t n) { return n / t->block * t->bytes; }
/* dst[n] = the values of n elements, n a multiple of the block, src with no alignment. */
void hl_dequantize(uint32_t dtype, const void *src, float *dst, size_t n);

float hl_f16_to_f32(hl_f16 h);
hl_f16 hl_f32_to_f16(float f);                         /* round to nearest even */
float hl_bf16_to_f32(uint16_t h);

#endif
