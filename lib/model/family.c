/* family.c: the table of families.  Sources: the models' papers and configuration files, and the GGUF key and tensor names that
 * converters write.
 */
#include "model/family.h"

#include <string.h>

#include "base/kinds.h"

#define R(role) (1u << (role))
#define G(role) (1u << ((role) - HL_LAYER_ROLES))

_Static_assert(HL_FAMILY_ROLES <= 32 && HL_ROLES - HL_LAYER_ROLES <= 32, "role masks are 32 bits");

const hl_role_info hl_roles[HL_ROLES] = {
    [HL_ATTN_NORM] = { "attn_norm.weight", HL_D_ONE, HL_D_EMBD },     [HL_ATTN_NORM_B] = { "attn_norm.bias", HL_D_ONE, HL_D_EMBD },
    [HL_ATTN_NORM_2] = { "attn_norm_2.weight", HL_D_ONE, HL_D_EMBD }, [HL_ATTN_NORM_2_B] = { "attn_norm_2.bias", HL_D_ONE, HL_D_EMBD },
    [HL_ATTN_Q] = { "attn_q.weight", HL_D_Q, HL_D_EMBD },             [HL_ATTN_Q_B] = { "attn_q.bias", HL_D_ONE, HL_D_Q },
    [HL_ATTN_K] = { "attn_k.weight", HL_D_K, HL_D_EMBD },             [HL_ATTN_K_B] = { "attn_k.bias", HL_D_ONE, HL_D_K },
    [HL_ATTN_V] = { "attn_v.weight", HL_D_V, HL_D_EMBD },             [HL_ATTN_V_B] = { "attn_v.bias", HL_D_ONE, HL_D_V },
    [HL_ATTN_QKV] = { "attn_qkv.weight", HL_D_QKV, HL_D_EMBD },       [HL_ATTN_QKV_B] = { "attn_qkv.bias", HL_D_ONE, HL_D_QKV },
    [HL_ATTN_Q_NORM] = { "attn_q_norm.weight", HL_D_ONE, HL_D_HEAD_K },
    [HL_ATTN_K_NORM] = { "attn_k_norm.weight", HL_D_ONE, HL_D_HEAD_K },
    [HL_ATTN_OUT] = { "attn_output.weight", HL_D_EMBD, HL_D_ATT },    [HL_ATTN_OUT_B] = { "attn_output.bias", HL_D_ONE, HL_D_EMBD },
    [HL_ATTN_POST_NORM] = { "post_attention_norm.weight", HL_D_ONE, HL_D_EMBD },
    [HL_FFN_NORM] = { "ffn_norm.weight", HL_D_ONE, HL_D_EMBD },       [HL_FFN_NORM_B] = { "ffn_norm.bias", HL_D_ONE, HL_D_EMBD },
    [HL_FFN_GATE] = { "ffn_gate.weight", HL_D_FF, HL_D_EMBD },        [HL_FFN_GATE_B] = { "ffn_gate.bias", HL_D_ONE, HL_D_FF },
    [HL_FFN_UP] = { "ffn_up.weight", HL_D_UP, HL_D_EMBD },            [HL_FFN_UP_B] = { "ffn_up.bias", HL_D_ONE, HL_D_UP },
    [HL_FFN_DOWN] = { "ffn_down.weight", HL_D_EMBD, HL_D_FF },        [HL_FFN_DOWN_B] = { "ffn_down.bias", HL_D_ONE, HL_D_EMBD },
    [HL_FFN_POST_NORM] = { "post_ffw_norm.weight", HL_D_ONE, HL_D_EMBD },
    [HL_FFN_DOWN_T] = { "ffn_down_t.weight", HL_D_FF, HL_D_EMBD },     [HL_FFN_HEAT] = { "ffn_heat.weight", HL_D_ONE, HL_D_FF },
    [HL_FFN_CUT] = { "ffn_cut.weight", HL_D_ONE, HL_D_FF },
    [HL_PRED_1] = { "fc1.weight", HL_D_PRED, HL_D_EMBD },             [HL_PRED_2] = { "fc2.weight", HL_D_FF, HL_D_PRED },
    [HL_PRED_B] = { "fc2.bias", HL_D_ONE, HL_D_FF },
    [HL_EMBED] = { "token_embd.weight", HL_D_VOCAB, HL_D_EMBD },
    [HL_OUT_NORM] = { "output_norm.weight", HL_D_ONE, HL_D_EMBD },    [HL_OUT_NORM_B] = { "output_norm.bias", HL_D_ONE, HL_D_EMBD },
    [HL_HEAD] = { "output.weight", HL_D_VOCAB, HL_D_EMBD },           [HL_HEAD_B] = { "output.bias", HL_D_ONE, HL_D_VOCAB },
    [HL_ROPE_FREQS] = { "rope_freqs.weight", HL_D_ONE, HL_D_ROT_2 },
    [HL_ROPE_LONG] = { "rope_factors_long.weight", HL_D_ONE, HL_D_ROT_2 },
    [HL_ROPE_SHORT] = { "rope_factors_short.weight", HL_D_ONE, HL_D_ROT_2 },
    [HL_POSITIONS] = { "position_embd.weight", HL_D_POS, HL_D_EMBD },
};

/* Q, K, V may come as three tensors or as one: model.c asks for either. */
enum {
    QKV = R(HL_ATTN_Q) | R(HL_ATTN_K) | R(HL_ATTN_V) | R(HL_ATTN_QKV),
    QKV_B = R(HL_ATTN_Q_B) | R(HL_ATTN_K_B) | R(HL_ATTN_V_B) | R(HL_ATTN_QKV_B),
    BASE = R(HL_ATTN_NORM) | R(HL_ATTN_OUT) | R(HL_FFN_UP) | R(HL_FFN_DOWN),
    GATED = BASE | R(HL_FFN_NORM) | R(HL_FFN_GATE),
    QK_NORMS = R(HL_ATTN_Q_NORM) | R(HL_ATTN_K_NORM),
    POST_NORMS = R(HL_ATTN_POST_NORM) | R(HL_FFN_POST_NORM),
    FFN_B = R(HL_FFN_GATE_B) | R(HL_FFN_UP_B) | R(HL_FFN_DOWN_B),
    MODEL = G(HL_EMBED) | G(HL_OUT_NORM),
    LONGROPE = G(HL_ROPE_LONG) | G(HL_ROPE_SHORT),
};

static const hl_family families[] = {
    { .name = "llama", .norm = HL_NORM_RMS, .act = HL_FFN_SILU, .rope = HL_ROPE_PAIRS, .gated = true, .rot_is_head = true,
      .required = GATED, .optional = QKV | QKV_B | R(HL_ATTN_OUT_B) | FFN_B,
      .required_global = MODEL, .optional_global = G(HL_HEAD) | G(HL_ROPE_FREQS) | LONGROPE },
    { .name = "qwen2", .norm = HL_NORM_RMS, .act = HL_FFN_SILU, .rope = HL_ROPE_HALVES, .gated = true,
      .required = GATED, .optional = QKV | QKV_B,
      .required_global = MODEL, .optional_global = G(HL_HEAD) | G(HL_HEAD_B) },
    { .name = "qwen3", .norm = HL_NORM_RMS, .act = HL_FFN_SILU, .rope = HL_ROPE_HALVES, .gated = true,
      .required = GATED | QK_NORMS, .optional = QKV | QKV_B,
      .required_global = MODEL, .optional_global = G(HL_HEAD) },
    /* arXiv:2408.00118: alternating windows, soft caps, norms before and after both blocks. */
    { .name = "gemma2", .norm = HL_NORM_RMS, .act = HL_FFN_GELU, .rope = HL_ROPE_HALVES, .gated = true, .embed_scaled = true, .tied = true,
      .windowed = true, .window_pattern = 2, .window_default = 4096, .layers_wide_scale = 46,
      .required = GATED | POST_NORMS, .optional = QKV | QKV_B,
      .required_global = MODEL },
    /* arXiv:2503.19786: five windowed layers to a global one, q/k norms; windowed layers rotate with base 10,000. */
    { .name = "gemma3", .norm = HL_NORM_RMS, .act = HL_FFN_GELU, .rope = HL_ROPE_HALVES, .gated = true, .embed_scaled = true,
      .windowed = true, .window_pattern = 6, .rope_base_window = 10000.0f, .layers_wide_scale = 62,
      .required = GATED | POST_NORMS | QK_NORMS, .optional = QKV | QKV_B,
      .required_global = MODEL, .optional_global = G(HL_HEAD) },
    /* Its attention.sliding_window is left aside, as peers do: published files carry values that their models were not used with. */
    { .name = "phi3", .norm = HL_NORM_RMS, .act = HL_FFN_SILU, .rope = HL_ROPE_HALVES, .gated = true, .fused_up = true,
      .required = BASE | R(HL_FFN_NORM), .optional = QKV | QKV_B,
      .required_global = MODEL, .optional_global = G(HL_HEAD) | G(HL_HEAD_B) | LONGROPE },
    { .name = "arcee", .norm = HL_NORM_RMS, .act = HL_FFN_RELU2, .rope = HL_ROPE_PAIRS,
      .required = BASE | R(HL_FFN_NORM), .optional = QKV | QKV_B,
      .required_global = MODEL, .optional_global = G(HL_HEAD) | G(HL_ROPE_FREQS) },
    { .name = "nemotron", .norm = HL_NORM_LAYER, .act = HL_FFN_RELU2, .rope = HL_ROPE_HALVES,
      .required = BASE | R(HL_ATTN_NORM_B) | R(HL_FFN_NORM) | R(HL_FFN_NORM_B),
      .optional = QKV | QKV_B | R(HL_ATTN_OUT_B) | R(HL_FFN_UP_B) | R(HL_FFN_DOWN_B),
      .required_global = MODEL | G(HL_OUT_NORM_B) | G(HL_HEAD) },
    /* One norm (7B) or two (40B): with two, attn_norm feeds the FFN and attn_norm_2 the attention. */
    { .name = "falcon", .norm = HL_NORM_LAYER, .act = HL_FFN_GELU, .rope = HL_ROPE_HALVES, .parallel = true, .rot_is_head = true,
      .required = BASE | R(HL_ATTN_NORM_B), .optional = QKV | QKV_B | R(HL_ATTN_NORM_2) | R(HL_ATTN_NORM_2_B),
      .required_global = MODEL | G(HL_OUT_NORM_B), .optional_global = G(HL_HEAD) },
    /* Mistral's shape with ReLU on gate and up both ("dReLU", arXiv:2406.05955). */
    { .name = "bamboo", .norm = HL_NORM_RMS, .act = HL_FFN_RELU, .rope = HL_ROPE_PAIRS, .gated = true, .up_act = true, .rot_is_head = true,
      .required = GATED, .optional = QKV,
      .required_global = MODEL, .optional_global = G(HL_HEAD) },
    /* arXiv:2205.01068: learned positions from row 2 on, norms before the blocks, biases everywhere.  Its files say no epsilon: it was trained
     * with 1e-5. */
    { .name = "opt", .norm = HL_NORM_LAYER, .act = HL_FFN_RELU, .rope = HL_ROPE_NONE, .tied = true, .pos_offset = 2, .eps_default = 1e-5f,
      .required = BASE | R(HL_ATTN_NORM_B) | R(HL_FFN_NORM) | R(HL_FFN_NORM_B), .optional = QKV | QKV_B | R(HL_ATTN_OUT_B) | R(HL_FFN_UP_B) | R(HL_FFN_DOWN_B),
      .required_global = MODEL | G(HL_OUT_NORM_B) | G(HL_POSITIONS) },
};

const hl_family *hl_family_find(const char *name, size_t bytes)
{
    for (size_t i = 0; i < HL_COUNT(families); i++)
        if (strlen(families[i].name) == bytes && memcmp(families[i].name, name, bytes) == 0) return &families[i];
    return NULL;
}

const char *hl_family_names(void) { return "llama qwen2 qwen3 gemma2 gemma3 phi3 arcee nemotron falcon bamboo opt"; }
