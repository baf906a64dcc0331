/* family.h: model families as data.  The forward pass reads these rows; it has no code of any one family.
 *
 * To add a family: a row in family.c, and (only if it has one) a new tensor role or a new value of an existing field.
 */
#ifndef HL_FAMILY_H
#define HL_FAMILY_H

#include "base/base.h"

/* What a tensor is for.  The first part exists once per layer ("blk.%u." + name), the second once per model. */
typedef enum hl_role {
    HL_ATTN_NORM, HL_ATTN_NORM_B, HL_ATTN_NORM_2, HL_ATTN_NORM_2_B,
    HL_ATTN_Q, HL_ATTN_K, HL_ATTN_V, HL_ATTN_QKV, HL_ATTN_Q_B, HL_ATTN_K_B, HL_ATTN_V_B, HL_ATTN_QKV_B,
    HL_ATTN_Q_NORM, HL_ATTN_K_NORM, HL_ATTN_OUT, HL_ATTN_OUT_B, HL_ATTN_POST_NORM,
    HL_FFN_NORM, HL_FFN_NORM_B, HL_FFN_GATE, HL_FFN_UP, HL_FFN_DOWN, HL_FFN_GATE_B, HL_FFN_UP_B, HL_FFN_DOWN_B, HL_FFN_POST_NORM,
    HL_FAMILY_ROLES,
    /* Of files made for skipping neurons (model/sparse.c), whatever the family: down with a row for each neuron, the predictor, its thresholds,
     * how often each neuron was active, and below which value of act(gate) it may be left out. */
    HL_FFN_DOWN_T = HL_FAMILY_ROLES, HL_PRED_1, HL_PRED_2, HL_PRED_B, HL_FFN_HEAT, HL_FFN_CUT,
    HL_LAYER_ROLES,
    HL_EMBED = HL_LAYER_ROLES, HL_OUT_NORM, HL_OUT_NORM_B, HL_HEAD, HL_HEAD_B, HL_ROPE_FREQS, HL_ROPE_LONG, HL_ROPE_SHORT, HL_POSITIONS,
    HL_ROLES
} hl_role;

/* Sizes that shapes are made of; resolved per layer by hl_config_dim. */
typedef enum hl_dim { HL_D_ONE, HL_D_EMBD, HL_D_Q, HL_D_K, HL_D_V, HL_D_QKV, HL_D_ATT, HL_D_FF, HL_D_UP, HL_D_HEAD_K, HL_D_ROT_2, HL_D_VOCAB, HL_D_PRED, HL_D_POS } hl_dim;

typedef struct hl_role_info {
    const char *name;                /* as in the file, without "blk.N." */
    hl_dim rows, cols;               /* rows HL_D_ONE: a vector of cols values */
} hl_role_info;
extern const hl_role_info hl_roles[HL_ROLES];

typedef struct hl_family {
    const char *name;                /* general.architecture */
    uint8_t norm;                    /* HL_NORM_RMS or HL_NORM_LAYER (base/kinds.h) */
    uint8_t act;                     /* HL_FFN_SILU ... */
    uint8_t rope;                    /* HL_ROPE_PAIRS, _HALVES or _NONE */
    bool gated;                      /* act(gate) * up, else act(up) */
    bool up_act;                     /* gated: act(gate) * act(up) */
    bool fused_up;                   /* gate and up are one tensor, ffn_up: gate rows first */
    bool parallel;                   /* attention and FFN both read the layer's input */
    bool embed_scaled;               /* embeddings times sqrt(n_embd) */
    bool tied;                       /* the head is always the embedding */
    bool windowed;                   /* attention.sliding_window counts here */
    bool rot_is_head;                /* rope.dimension_count must be the head size */
    uint32_t pos_offset;             /* learned positions: the row of the first one */
    float eps_default;               /* the norms' when the file has none; 0: it must */
    uint32_t window_pattern;         /* of this many layers the last one sees everything; 0: no layer has a window */
    uint32_t window_default;         /* when the file names none */
    float rope_base_window;          /* of the layers with a window; 0: as the others */
    uint32_t layers_wide_scale;      /* with this many layers q is scaled by 1/sqrt(n_embd / n_heads) (Gemma 27B); 0: never */
    uint32_t required, optional;     /* bit per layer role */
    uint32_t required_global, optional_global;     /* bit (role - HL_LAYER_ROLES) */
} hl_family;

const hl_family *hl_family_find(const char *name, size_t bytes);     /* NULL: unknown */
const char *hl_family_names(void);                                   /* "llama qwen2 ..." */

#endif
