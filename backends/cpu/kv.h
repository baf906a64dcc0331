/* kv.h: where the elements of the CPU's KV cache are.
 *
 * V is rows: [head][slot][dim], a row in the format of its type.  K lies so that one load brings the same element of KV_LANES positions, which is
 * what q . k needs: [head][slot / KV_LANES], and in there
 *   f32, f16   [dim][KV_LANES]
 *   q8_0       [dim / 32]: the scales [KV_LANES], f16; then bytes [32][KV_LANES]
 * So K takes the bytes that rows would take; n_slots is a multiple of KV_TILE.
 */
#ifndef HL_CPU_KV_H
#define HL_CPU_KV_H

#include "backend.h"

#include <string.h>

enum { KV_TILE = HL_KV_SLOTS, KV_LANES = 16 };         /* positions per softmax step, at multiples of itself; slots side by side */

static inline size_t kv_row_bytes(uint32_t dtype, uint32_t dim)
{
    return dtype == HL_F32 ? (size_t)dim * 4 : dtype == HL_F16 ? (size_t)dim * 2 : (size_t)((dim + 31) / 32) * sizeof(hl_block_q8_0);
}

/* KV_LANES slots of K, of which slot is one. */
static inline uint8_t *k_lanes(const hl_kv_layer *kv, uint32_t head, uint32_t slot)
{
    return (uint8_t *)kv->k + ((size_t)head * kv->n_slots + slot / KV_LANES * KV_LANES) * kv_row_bytes(kv->dtype, kv->dim_k);
}

static inline uint8_t *v_row(const hl_kv_layer *kv, uint32_t head, uint32_t slot)
{
    return (uint8_t *)kv->v + ((size_t)head * kv->n_slots + slot) * kv_row_bytes(kv->dtype, kv->dim_v);
}

/* One position's K, as a row: to the cache (put) or from it. */
static inline void k_row_move(const hl_kv_layer *kv, uint32_t head, uint32_t slot, uint8_t *row, bool put)
{
    const uint32_t lane = slot % KV_LANES, n = kv->dim_k;
    uint8_t *at = k_lanes(kv, head, slot);
#define MOVE(cache, mine, bytes) do { if (put) memcpy(cache, mine, bytes); else memcpy(mine, cache, bytes); } while (0)
    if (kv->dtype == HL_F32) for (uint32_t i = 0; i < n; i++) MOVE(at + ((size_t)i * KV_LANES + lane) * 4, row + (size_t)i * 4, 4);
    else if (kv->dtype == HL_F16) for (uint32_t i = 0; i < n; i++) MOVE(at + ((size_t)i * KV_LANES + lane) * 2, row + (size_t)i * 2, 2);
    else
        for (uint32_t i = 0; i < n; i += 32, at += KV_LANES * sizeof(hl_block_q8_0), row += sizeof(hl_block_q8_0)) {
            MOVE(at + lane * 2, row, 2);
            for (uint32_t k = 0; k < 32; k++) MOVE(at + KV_LANES * (2 + k) + lane, row + 2 + k, 1);
        }
#undef MOVE
}

#endif
