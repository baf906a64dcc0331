/* kinds.h: the kinds of operators that models ask for (lib/model) and backends offer (backends/): words that both must share. */
#ifndef HL_KINDS_H
#define HL_KINDS_H

enum { HL_NORM_RMS = 0, HL_NORM_LAYER = 1 };
enum { HL_FFN_SILU = 0, HL_FFN_GELU = 1, HL_FFN_RELU = 2, HL_FFN_RELU2 = 3 };         /* GELU by tanh; RELU2: max(0, x)^2 */
enum { HL_ROPE_PAIRS = 0, HL_ROPE_HALVES = 1, HL_ROPE_NONE = 2 };        /* (2i, 2i+1), as llama; (i, i + n_rot/2), as neox */

#endif
