/* kernels.h: the type of a CPU kernel table.  One file per instruction set, one exported table each; cpu_dispatch.c picks.
 *
 * No kernel allocates, locks or knows of threads: cpu_backend.c gives each thread its rows, heads or tokens.
 * The sum for one output is taken in an order fixed by the shape alone: never by how many rows or tokens one call covers.
 */
#ifndef HL_CPU_KERNELS_H
#define HL_CPU_KERNELS_H

#include "backend.h"

/* A quantised activation row of n elements (n a multiple of 32) is an array of units of 256 columns, 8 blocks of 32: x ~ d[block] * q.
 * The scale of a block is searched: the best of four grids, then the least-squares factor for it: a smaller error than max / 127 at no cost for
 * the matrices. Every table gives the same bytes.
 * A block with an Inf or NaN has d = NaN and q = 0; a block whose largest element is below 2^-96 is zero; so is what lies beyond n. */
typedef struct hl_q8_unit {
    int8_t q[256];                   /* -127..127 */
    float d[8];
    float sum[3][8];                 /* d * the sum of q over the first 16 of every block, over the second 16, over all: for minimums */
    int32_t comp[3][8];              /* -128 * the sums of q: for weights with an offset of 128 / 2^k */
    int16_t sum16[8];                /* sum[2] ~ step16 * sum16, step16 = max / 32767: for minimums that are integers themselves */
    float step16, reserved[3];       /* NaN where a sum is not finite */
} hl_q8_unit;
size_t hl_q8_row_bytes(uint32_t n);                    /* multiple of 64 */

/* Tokens as products take them: side by side, in blocks of 8 and then of 4, 2 and 1 for what is left.  A block begins where its first token's
 * row would.  Of every 32 elements 16 words, each of all the block's tokens: 8 quadruples of q, d, sum[3], comp[3], and of the unit's last eight
 * words, sum16 by pairs and step16, the one with the group's number. */
enum { HL_Q8_WORDS = 16, HL_Q8_WIDEST = 8 };
static inline uint32_t hl_q8_width(uint32_t n_left) { return n_left >= HL_Q8_WIDEST ? HL_Q8_WIDEST : 1u << (31 - __builtin_clz(n_left)); }
enum { HL_ATTENTION_ROWS = 48 };

typedef struct hl_cpu_kernels {
    const char *isa;                                   /* "avx2" */
    int (*supported)(void);                            /* CPU and operating system */

    void (*quantize)(hl_q8_unit *out, const float *restrict x, uint32_t n);
    /* rows: n_tok rows of units, hl_q8_row_bytes(n) apart. */
    void (*side_by_side)(void *to, const hl_q8_unit *rows, uint32_t n, uint32_t n_tok);

    /* Rows interleaved in groups (cpu/packed.h): how many rows in a group; 0: this table takes the file's layout only.  pack: n_rows rows in the
     * file's layout, row_bytes apart, to whole groups; 64-byte aligned. */
    uint32_t group;
    void (*pack)(uint32_t dtype, void *to, const uint8_t *rows, size_t row_bytes, uint32_t n_rows, uint32_t cols);

    /* y[t * stride + r] = W[r] . x[t] for r < n_rows, t < n_tok.  w: file layout, row_bytes apart, or packed (from the first row of a group; the
     * same bits).  8-bit: quantised types only; act: tokens side by side, 64-byte aligned.  f32: any type, file layout; x: rows of cols
     * floats.  half: F16 and BF16, cols a multiple of 32; x as for f32; where bf16_dots is set BF16 weights meet x rounded to BF16, unless
     * fine.  scratch: matmul_scratch(cols) floats, 64-byte aligned. */
    void (*matmul_q8)(uint32_t dtype, bool packed, float *restrict y, size_t stride, const uint8_t *restrict w, size_t row_bytes, uint32_t n_rows,
                      uint32_t cols, const void *act, uint32_t n_tok, float *restrict scratch);
    void (*matmul_f32)(uint32_t dtype, float *restrict y, size_t stride, const uint8_t *restrict w, size_t row_bytes, uint32_t n_rows,
                       uint32_t cols, const float *restrict x, uint32_t n_tok, float *restrict scratch);
    void (*matmul_half)(uint32_t dtype, bool packed, bool fine, float *restrict y, size_t stride, const uint8_t *restrict w, size_t row_bytes, uint32_t n_rows,
                        uint32_t cols, const float *restrict x, uint32_t n_tok, float *restrict scratch);
    bool bf16_dots;
    size_t (*matmul_scratch)(uint32_t cols);                                                       /* floats, for all */

    /* y[c] += h[r] * row r [c], for r = 0, 1, ... in order, each product fused: rows in the file's layout, cols whole blocks.  The sum for a column
     * depends on nothing but its own h and weights.  scratch: cols floats. */
    void (*axpy)(uint32_t dtype, float *restrict y, const uint8_t *const *rows, const float *h, uint32_t n_rows, uint32_t cols, float *restrict scratch);

    /* y[r] = row r . x of one token, quantised types: as the same rows of matmul_q8, bit by bit.  rows: n and then n_next more, which are going to be
     * wanted next.  act: one token.  NULL: this table has none. */
    void (*gather)(uint32_t dtype, float *restrict y, const uint8_t *const *rows, uint32_t n, uint32_t n_next, uint32_t cols, const void *act, float *restrict scratch);

    void (*rms_norm)(float *y, const float *x, const float *w, float eps, uint32_t n);             /* sums in double */
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, float eps, uint32_t n);
    void (*ffn_act)(uint32_t kind, float *y, const float *gate, const float *up, uint32_t n);      /* exp and tanh to 2 ulp or better */
    void (*rope)(float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, uint32_t kind, const float *cos_sin);   /* one token */
    void (*softcap)(float *y, size_t n, float cap);
    void (*kv_store)(uint32_t dtype, void *dst, const float *src, uint32_t dim);                   /* one head's row */

    /* Attention of heads head0 .. head0 + n_heads, which share kv_head, of the call's tokens tok0 .. tok0 + n_tok: at most HL_ATTENTION_ROWS in all.
     * Online softmax over tiles of 64 positions that begin at multiples of 64, so that the sums depend on positions only. */
    void (*attention)(const hl_attention *a, uint32_t kv_head, uint32_t head0, uint32_t n_heads, uint32_t tok0, uint32_t n_tok, float *scratch);
    size_t (*attention_scratch)(uint32_t dim_k, uint32_t dim_v);                                   /* floats */

    double (*probe_int8)(uint64_t rounds);             /* operations done; the time is the caller's */
    uint64_t (*probe_read)(const void *data, size_t bytes, uint32_t streams);
} hl_cpu_kernels;

extern const hl_cpu_kernels hl_kern_scalar, hl_kern_avx2, hl_kern_avxvnni, hl_kern_avx512, hl_kern_avx512_bf16, hl_kern_neon, hl_kern_neon_dotprod, hl_kern_neon_i8mm;

/* cpu_dispatch.c: NULL-ended, best first, only what this build has (not only what this CPU supports). */
extern const hl_cpu_kernels *const hl_cpu_tables[];
int hl_cpu_has_neon(void);
int hl_cpu_has_dotprod(void);
int hl_cpu_has_i8mm(void);                             /* and dotprod */
int hl_cpu_has_avx2(void);                             /* with FMA and F16C */
int hl_cpu_has_avxvnni(void);                          /* and AVX2 */
int hl_cpu_has_avx512(void);                           /* F, BW, VL, DQ and VNNI */
int hl_cpu_has_avx512_bf16(void);
const hl_cpu_kernels *hl_cpu_pick(const char *isa);    /* NULL isa: the best supported; NULL result: unknown or unsupported */

#endif
