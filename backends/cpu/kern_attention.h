/* kern_attention.h: attention, written once for every vector width.
 *
 * A row is one query head of one token; rows of a call share a KV head, so that a tile of 64 positions is turned into floats once for all of them.
 * Positions are lanes for q . k and elements are lanes for the sum of V, so that nothing is added across lanes but the 64 weights of a tile:
 *   score[row][p] = q[row] . k[p]         a chain over the elements, in order
 *   out[row][i]   = sum of weight * v     a chain over the positions, in order; rescaled at a tile's begin when the maximum has grown
 * So the bits of a row depend on its own positions only, never on the rows beside it; what a position outside a row's range holds is never
 * multiplied, not even by zero.
 *
 * The including file defines, besides what kern_float.h needs, ATT_R: rows whose 4 vectors each fit in registers; vf_most(v): the largest of its
 * lanes (none is NaN).
 */
#include "cpu/kv.h"

enum { ATT_VECTORS = 4, ATT_ROWS = HL_ATTENTION_ROWS, ATT_FEW = 8 };

/* Element i of VW positions, the first of which is in this lane. */
static inline vf k_vector(uint32_t dtype, const uint8_t *lanes, uint32_t i, uint32_t lane)
{
    if (dtype == HL_F32) return vf_load(lanes + ((size_t)i * KV_LANES + lane) * 4);
    if (dtype == HL_F16) return vf_load_f16(lanes + ((size_t)i * KV_LANES + lane) * 2);
    lanes += i / 32 * KV_LANES * sizeof(hl_block_q8_0);
    return vf_load_f16(lanes + lane * 2) * vf_load_i8(lanes + KV_LANES * (2 + i % 32) + lane);
}

/* Of few rows memory is the limit, or nearly: what is at this place of the next tile is fetched, a little at a time, since many at once would have to
 * wait for each other.  The address may be nobody's. */
static inline void att_fetch(const uint8_t *at) { __builtin_prefetch(at, 0, 2); }

/* A KV head's tile: in the cache, or as floats in scratch: K [dim_k][KV_TILE], V [KV_TILE][dim_v up to whole vectors]. */
typedef struct att_source {
    const uint8_t *k[KV_TILE / KV_LANES], *v;
    size_t v_bytes, k_bytes, k_step;                   /* of a row of V; of a tile of K, and how far its elements are apart */
    const float *kf, *vf;                              /* NULL: in the cache */
    uint32_t dim_k, dim_v, v_stride;
} att_source;

static inline __attribute__((always_inline)) void att_scores(uint32_t dtype, const att_source *s, const float *const *q, float *score, const uint32_t n_r)
{
    for (uint32_t p = 0; p < KV_TILE; p += ATT_VECTORS * VW) {
        vf acc[ATT_R][ATT_VECTORS];
        UNROLL for (uint32_t r = 0; r < n_r; r++) UNROLL for (uint32_t j = 0; j < ATT_VECTORS; j++) acc[r][j] = (vf){ 0 };
        for (uint32_t i = 0; i < s->dim_k; i++) {
            vf k[ATT_VECTORS];
            if (!s->kf) UNROLL for (uint32_t j = 0; j < KV_TILE / KV_LANES; j++) att_fetch(s->k[j] + s->k_bytes + i * s->k_step);
            UNROLL for (uint32_t j = 0; j < ATT_VECTORS; j++) {
                const uint32_t at = p + j * VW;
                k[j] = s->kf ? vf_load(s->kf + (size_t)i * KV_TILE + at) : k_vector(dtype, s->k[at / KV_LANES], i, at % KV_LANES);
            }
            UNROLL for (uint32_t r = 0; r < n_r; r++) {
                vf x = vf_set1(q[r][i]);
                UNROLL for (uint32_t j = 0; j < ATT_VECTORS; j++) acc[r][j] = vf_fma(k[j], x, acc[r][j]);
            }
        }
        UNROLL for (uint32_t r = 0; r < n_r; r++) UNROLL for (uint32_t j = 0; j < ATT_VECTORS; j++) vf_store(score + (size_t)r * KV_TILE + p + j * VW, acc[r][j]);
    }
}

/* out[r] = out[r] * keep[r] + the sum over the positions [from, to): n_v vectors of elements from element i on; n_r and n_v are constants. */
static inline __attribute__((always_inline)) void att_sums(uint32_t dtype, const att_source *s, const float *weight, uint32_t from, uint32_t to, const float *keep,
                                                           float *out, uint32_t i, const uint32_t n_r, const uint32_t n_v)
{
    vf acc[ATT_R][ATT_VECTORS];
    UNROLL for (uint32_t r = 0; r < n_r; r++)
        UNROLL for (uint32_t j = 0; j < n_v; j++) acc[r][j] = vf_load(out + (size_t)r * s->v_stride + i + j * VW) * keep[r];
    const uint8_t *ahead = s->vf ? NULL : s->v + KV_TILE * s->v_bytes + (size_t)i * s->v_bytes / s->dim_v;
    for (uint32_t p = from; p < to; p++) {
        vf v[ATT_VECTORS];
        if (!s->vf) UNROLL for (uint32_t j = 0; j < n_v; j += 2) att_fetch(ahead + p * s->v_bytes + j * VW * 2);
        UNROLL for (uint32_t j = 0; j < n_v; j++) {
            const uint32_t at = i + j * VW;
            v[j] = s->vf ? vf_load(s->vf + (size_t)p * s->v_stride + at) : kv_part(dtype, s->v + p * s->v_bytes, at, n_v > 1 ? VW : HL_MIN(s->dim_v - at, (uint32_t)VW));
        }
        UNROLL for (uint32_t r = 0; r < n_r; r++) {
            vf x = vf_set1(weight[(size_t)r * KV_TILE + p]);
            UNROLL for (uint32_t j = 0; j < n_v; j++) acc[r][j] = vf_fma(v[j], x, acc[r][j]);
        }
    }
    UNROLL for (uint32_t r = 0; r < n_r; r++)
        UNROLL for (uint32_t j = 0; j < n_v; j++) vf_store(out + (size_t)r * s->v_stride + i + j * VW, acc[r][j]);
}

static inline __attribute__((always_inline)) void att_values(uint32_t dtype, const att_source *s, const float *weight, uint32_t from, uint32_t to, const float *keep,
                                                             float *out, const uint32_t n_r)
{
    uint32_t i = 0;
    for (; i + ATT_VECTORS * VW <= s->dim_v; i += ATT_VECTORS * VW) att_sums(dtype, s, weight, from, to, keep, out, i, n_r, ATT_VECTORS);
    for (; i < s->dim_v; i += VW) att_sums(dtype, s, weight, from, to, keep, out, i, n_r, 1);
}

/* A tile's dot products scaled, capped, and -Inf outside the range.  Returns the new maximum. */
static inline float att_scale(float *score, uint32_t from, uint32_t to, float scale, float cap, float best)
{
    vf most = vf_set1(best);
    for (uint32_t i = 0; i < KV_TILE; i += VW) {
        vf s = vf_load(score + i) * scale;
        if (cap > 0) s = cap * vf_tanh(s / cap);
        if (i < from || i + VW > to) {                 /* outside the range nothing may be scaled: it stays -Inf */
            for (uint32_t k = 0; k < VW; k++) if (i + k < from || i + k >= to) s[k] = -INFINITY;
        }
        vf_store(score + i, s);
        most = vf_select(s > most, s, most);           /* a NaN shows in its weight */
    }
    return vf_most(most);
}

/* Scaled scores to weights.  Returns their sum. */
static inline float att_weights(float *score, float base)
{
    vf sum = { 0 };
    for (uint32_t i = 0; i < KV_TILE; i += VW) {
        vf e = vf_exp(vf_load(score + i) - base);
        vf_store(score + i, e);
        sum += e;
    }
    return vf_sum(sum);
}

/* from, to, keep: of the running tile */
typedef struct att_row { const float *q; float *out; uint32_t p0, p1, from, to; float best, total, keep; } att_row;

/* n_r rows, a constant: what single rows see before their common range; that; what they see after it. */
static inline __attribute__((always_inline)) void att_value_block(uint32_t dtype, const att_source *s, const att_row *row, const float *score, float *out, const uint32_t n_r)
{
    float keep[ATT_R], one = 1;
    uint32_t first = 0, last = KV_TILE, most = 0;
    for (uint32_t r = 0; r < n_r; r++) {
        keep[r] = row[r].keep;
        first = HL_MAX(first, row[r].from);
        last = HL_MIN(last, row[r].to);
        most = HL_MAX(most, row[r].to);
    }
    if (first >= last) first = last = most;            /* no position that all of them see */
    for (uint32_t r = 0; r < n_r; r++)
        if (row[r].from < HL_MIN(first, row[r].to)) {
            att_values(dtype, s, score + (size_t)r * KV_TILE, row[r].from, HL_MIN(first, row[r].to), keep + r, out + (size_t)r * s->v_stride, 1);
            keep[r] = 1;
        }
    att_values(dtype, s, score, first, last, keep, out, n_r);
    for (uint32_t r = 0; r < n_r; r++)
        if (row[r].to > last) att_values(dtype, s, score + (size_t)r * KV_TILE, HL_MAX(last, row[r].from), row[r].to, &one, out + (size_t)r * s->v_stride, 1);
}

static inline __attribute__((always_inline)) void att_score_block(uint32_t dtype, const att_source *s, const att_row *row, float *score, const uint32_t n_r)
{
    const float *q[ATT_R];
    for (uint32_t r = 0; r < n_r; r++) q[r] = row[r].q;
    att_scores(dtype, s, q, score, n_r);
}

/* ATT_R rows of a tile that was made floats: most of the time of a long prompt.  Functions of their own, for the sake of the registers. */
static __attribute__((noinline)) void att_scores_many(const att_source *s, const att_row *row, float *score) { att_score_block(HL_F32, s, row, score, ATT_R); }
static __attribute__((noinline)) void att_values_many(const att_source *s, const att_row *row, const float *score, float *out) { att_value_block(HL_F32, s, row, score, out, ATT_R); }

#define ATT_ROW_BLOCKS(action)                                                                                                                  \
    for (uint32_t ir = 0; ir < n;) {                                                                                                            \
        if (n - ir >= ATT_R && (ATT_R <= 4 || n - ir != 8)) { action##_MANY; ir += ATT_R; continue; }                                                                          \
        if (ATT_R > 4 && n - ir >= 4) { action(HL_MIN(ATT_R, 4)); ir += HL_MIN(ATT_R, 4); continue; }                                           \
        if (ATT_R > 2 && n - ir >= 2) { action(2); ir += 2; continue; }                                                                         \
        action(1); ir++;                                                                                                                        \
    }
#define ATT_SCORES_MANY if (s->kf) att_scores_many(s, row + ir, score + (size_t)ir * KV_TILE); else ATT_SCORES(ATT_R)
#define ATT_VALUES_MANY if (s->vf) att_values_many(s, row + ir, score + (size_t)ir * KV_TILE, out + (size_t)ir * s->v_stride); else ATT_VALUES(ATT_R)
#define ATT_SCORES(r) att_score_block(dtype, s, row + ir, score + (size_t)ir * KV_TILE, r)
#define ATT_VALUES(r) att_value_block(dtype, s, row + ir, score + (size_t)ir * KV_TILE, out + (size_t)ir * s->v_stride, r)

/* One tile that begins at position `tile`: all rows with K, then all with V, so that only one of them has to stay in the L1 cache. */
static inline __attribute__((always_inline)) void att_tile(uint32_t dtype, const att_source *s, att_row *row, uint32_t n, uint32_t tile, float scale, float cap, float *score,
                                                           float *out)
{
    float keep[ATT_ROWS], base[ATT_ROWS];
    ATT_ROW_BLOCKS(ATT_SCORES)
    for (uint32_t r = 0; r < n; r++) {
        att_row *w = &row[r];
        const float was = w->best;
        w->from = HL_MIN(HL_MAX(w->p0, tile) - tile, (uint32_t)KV_TILE);
        w->to = HL_MAX(HL_MIN(w->p1, tile + KV_TILE), tile) - tile;
        if (w->from >= w->to) w->from = w->to = 0;     /* it sees nothing here */
        else w->best = att_scale(score + (size_t)r * KV_TILE, w->from, w->to, scale, cap, was);
        base[r] = w->best == -INFINITY ? 0 : w->best;
        keep[r] = was == w->best ? 0 : was - base[r];
    }
    for (uint32_t r = n; r % VW; r++) keep[r] = 0;
    for (uint32_t r = 0; r < n; r += VW) vf_store(keep + r, vf_exp(vf_load(keep + r)));   /* exp(0) is 1 exactly */
    for (uint32_t r = 0; r < n; r++) {
        row[r].keep = keep[r];
        if (row[r].to) row[r].total = row[r].total * keep[r] + att_weights(score + (size_t)r * KV_TILE, base[r]);
    }
    ATT_ROW_BLOCKS(ATT_VALUES)
}

/* Many rows: the tile as floats, once. */
static inline __attribute__((always_inline)) void att_expand(uint32_t dtype, att_source *s, float *kf, float *vf_to, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < s->dim_k; i++)
        for (uint32_t p = 0; p < KV_TILE; p += VW) vf_store(kf + (size_t)i * KV_TILE + p, k_vector(dtype, s->k[p / KV_LANES], i, p % KV_LANES));
    for (uint32_t p = from; p < to; p++)
        for (uint32_t i = 0; i < s->dim_v; i += VW) vf_store(vf_to + (size_t)p * s->v_stride + i, kv_part(dtype, s->v + p * s->v_bytes, i, HL_MIN(s->dim_v - i, (uint32_t)VW)));
    s->kf = kf;
    s->vf = vf_to;
}

static inline uint32_t att_stride(uint32_t dim_v) { return (uint32_t)hl_align_up(dim_v, VW); }

static size_t attention_scratch(uint32_t dim_k, uint32_t dim_v)
{
    return (size_t)KV_TILE * (dim_k + att_stride(dim_v)) + (size_t)ATT_ROWS * (KV_TILE + att_stride(dim_v)) + 64;
}

static void attention(const hl_attention *a, uint32_t kv_head, uint32_t head0, uint32_t n_heads, uint32_t tok0, uint32_t n_tok, float *scratch)
{
    const hl_kv_layer *kv = a->kv;
    const uint32_t n = n_heads * n_tok;
    att_source s = { .dim_k = kv->dim_k, .dim_v = kv->dim_v, .v_stride = att_stride(kv->dim_v), .v_bytes = kv_row_bytes(kv->dtype, kv->dim_v), .k_bytes = KV_TILE * kv_row_bytes(kv->dtype, kv->dim_k) };
    s.k_step = s.k_bytes / KV_TILE * KV_LANES / kv->dim_k;
    float *score = scratch, *out = score + (size_t)ATT_ROWS * KV_TILE, *kf = out + (size_t)ATT_ROWS * s.v_stride, *vf_to = kf + (size_t)KV_TILE * kv->dim_k;
    att_row row[ATT_ROWS];
    const bool few = n <= ATT_FEW;
    uint32_t first = UINT32_MAX, end = 0;
    for (uint32_t r = 0; r < n; r++) {
        const uint32_t t = tok0 + r / n_heads, p = a->pos0 + t;
        const size_t head = (size_t)t * a->n_heads + head0 + r % n_heads;
        row[r] = (att_row){ a->q + head * kv->dim_k, a->out + head * kv->dim_v, a->window && p + 1 > a->window ? p + 1 - a->window : 0, p + 1, 0, 0, -INFINITY, 0, 1 };
        first = HL_MIN(first, row[r].p0);
        end = HL_MAX(end, row[r].p1);
    }
    memset(out, 0, (size_t)n * s.v_stride * sizeof(float));
    for (uint32_t tile = first - first % KV_TILE; tile < end; tile += KV_TILE) {
        const uint32_t slot = tile % kv->n_slots;
        for (uint32_t j = 0; j < KV_TILE / KV_LANES; j++) s.k[j] = k_lanes(kv, kv_head, slot + j * KV_LANES);
        s.v = v_row(kv, kv_head, slot);
        s.kf = s.vf = NULL;
        const uint32_t from = HL_MAX(first, tile) - tile, to = HL_MIN(end - tile, (uint32_t)KV_TILE);
        if (!few) {
            if (kv->dtype == HL_F16) att_expand(HL_F16, &s, kf, vf_to, from, to);
            else if (kv->dtype == HL_F32) att_expand(HL_F32, &s, kf, vf_to, from, to);
            else att_expand(HL_Q8_0, &s, kf, vf_to, from, to);
            att_tile(HL_F32, &s, row, n, tile, a->scale, a->softcap, score, out);
        } else if (kv->dtype == HL_F16) att_tile(HL_F16, &s, row, n, tile, a->scale, a->softcap, score, out);
        else if (kv->dtype == HL_F32) att_tile(HL_F32, &s, row, n, tile, a->scale, a->softcap, score, out);
        else att_tile(HL_Q8_0, &s, row, n, tile, a->scale, a->softcap, score, out);
    }
    for (uint32_t r = 0; r < n; r++) {
        const float inv = row[r].total == 0 ? 0 : 1 / row[r].total;
        for (uint32_t i = 0; i < kv->dim_v; i++) row[r].out[i] = out[(size_t)r * s.v_stride + i] * inv;
    }
}
