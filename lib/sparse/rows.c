/* rows.c: an FFN's matrices with a row for each neuron, in the order of their heat.
 *
 * gate and up have such rows already: their bytes change places.  down is turned: a file quantises it along the neurons, so it is read as
 * numbers, turned, and quantised again along the rows (Q8_0, whose error is far below that of 8-bit activations, which these rows do not
 * meet; F16 where that would lose too much; wider types stay what they are).  One matrix in memory at a time.
 */
#include "sparse/sparse.h"

#include <math.h>
#include <string.h>

enum { TILE = 256 };                                   /* neurons turned at once: a multiple of every block */

static hl_status read_all(const hl_model *m, hl_error *err, const hl_gguf_tensor *t, uint8_t **out)
{
    hl_status rc = HLLM_OK;
    *out = NULL;
    HL_NEED(*out = hl_alloc(m->env->mem, (size_t)t->bytes));
    rc = hl_file_read(m->env, err, &m->gguf->shards[t->shard], t->at, *out, (size_t)t->bytes);
    if (rc != HLLM_OK) { hl_free(m->env->mem, *out); *out = NULL; }
done:
    return rc;
}

hl_status hl_rows_permuted(const hl_model *m, hl_error *err, const hl_gguf_tensor *t, const uint32_t *order, uint8_t **out, size_t *bytes)
{
    hl_status rc = HLLM_OK;
    uint8_t *from = NULL;
    const uint64_t n = t->n_dims == 1 ? t->dims[0] : t->dims[1];       /* a vector: its elements are the neurons' */
    const size_t row = (size_t)(t->bytes / n);
    *out = NULL;
    *bytes = (size_t)t->bytes;
    HL_TRY(read_all(m, err, t, &from));
    HL_NEED(*out = hl_alloc(m->env->mem, *bytes));
    for (uint64_t i = 0; i < n; i++) memcpy(*out + i * row, from + order[i] * row, row);
done:
    hl_free(m->env->mem, from);
    return rc;
}

/* ---- quantising ---- */

static void to_q8_0(uint8_t *to, const float *x, uint32_t n)
{
    for (uint32_t ib = 0; ib < n / 32; ib++, x += 32, to += sizeof(hl_block_q8_0)) {
        hl_block_q8_0 b;
        float most = 0;
        for (uint32_t i = 0; i < 32; i++) most = fmaxf(most, fabsf(x[i]));
        b.d = hl_f32_to_f16(most / 127);
        const float d = hl_f16_to_f32(b.d), inverse = d > 0 ? 1 / d : 0;               /* the grid that will be read back */
        for (uint32_t i = 0; i < 32; i++) b.qs[i] = (int8_t)fmaxf(-127, fminf(127, nearbyintf(x[i] * inverse)));
        memcpy(to, &b, sizeof b);
    }
}

/* The best of some grids around the usual one, by the squared error. */
static void to_q4_0(uint8_t *to, const float *x, uint32_t n)
{
    for (uint32_t ib = 0; ib < n / 32; ib++, x += 32, to += sizeof(hl_block_q4_0)) {
        hl_block_q4_0 best = { 0 };
        float most = 0, error_best = INFINITY;
        for (uint32_t i = 0; i < 32; i++) if (fabsf(x[i]) > fabsf(most)) most = x[i];
        for (int k = -2; k <= 3; k++) {
            hl_block_q4_0 b = { .d = hl_f32_to_f16(most / (-8.0f + 0.35f * (float)k)) };
            const float d = hl_f16_to_f32(b.d), inverse = d != 0 ? 1 / d : 0;
            float error = 0;
            for (uint32_t i = 0; i < 32; i++) {
                const float q = fmaxf(0, fminf(15, nearbyintf(x[i] * inverse) + 8)), off = x[i] - d * (q - 8);
                error += off * off;
                b.qs[i % 16] |= (uint8_t)((uint8_t)q << (i < 16 ? 0 : 4));
            }
            if (error < error_best) { error_best = error; best = b; }
        }
        memcpy(to, &best, sizeof best);
    }
}

typedef struct quantize_arg { uint32_t dtype; uint8_t *to; const float *from; uint32_t cols; size_t row_bytes; } quantize_arg;

static void quantize_row(void *v, uint32_t row, uint32_t thread)
{
    const quantize_arg *a = v;
    uint8_t *to = a->to + row * a->row_bytes;
    const float *x = a->from + (size_t)row * a->cols;
    (void)thread;
    if (a->dtype == HL_Q8_0) to_q8_0(to, x, a->cols);
    else if (a->dtype == HL_Q4_0) to_q4_0(to, x, a->cols);
    else if (a->dtype == HL_F32) memcpy(to, x, a->row_bytes);
    else if (a->dtype == HL_F16) for (uint32_t i = 0; i < a->cols; i++) { const hl_f16 h = hl_f32_to_f16(x[i]); memcpy(to + 2 * (size_t)i, &h, 2); }
    else for (uint32_t i = 0; i < a->cols; i++) {      /* BF16, from such numbers only: exact */
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        const uint16_t h = (uint16_t)(bits >> 16);
        memcpy(to + 2 * (size_t)i, &h, 2);
    }
}

void hl_quantize_rows(hl_pool *pool, uint32_t dtype, void *to, const float *from, uint32_t rows, uint32_t cols)
{
    quantize_arg a = { dtype, to, from, cols, hl_dtype_bytes(hl_dtype(dtype), cols) };
    hl_pool_run(pool, quantize_row, &a, rows);
}

/* ---- turning ---- */

uint32_t hl_rows_dtype(uint32_t dtype, uint32_t n_embd)
{
    if (dtype == HL_F32 || dtype == HL_F16 || dtype == HL_BF16) return dtype;
    return n_embd % 32 ? HL_F16 : HL_Q8_0;
}

typedef struct turn_arg {
    const hl_gguf_tensor *t;
    const uint8_t *from;
    uint8_t *to;                                       /* NULL: only the error is wanted */
    const uint32_t *place;
    const float *energy;
    uint32_t dtype, n_embd, n_ff;
    size_t row_from, row_to;
    float *tiles;                                      /* for each thread: TILE rows, TILE numbers, and a row */
    double *sums;                                      /* [threads][2][n_embd]: of the error's and the output's squares */
} turn_arg;

static void turn_tile(void *v, uint32_t tile, uint32_t thread)
{
    const turn_arg *a = v;
    const uint32_t n0 = tile * TILE, n = HL_MIN(a->n_ff - n0, (uint32_t)TILE), E = a->n_embd;
    float *rows = a->tiles + (size_t)thread * (TILE * ((size_t)E + 1) + 2 * (size_t)E), *some = rows + (size_t)TILE * E, *back = some + TILE;
    double *sums = a->sums ? a->sums + (size_t)thread * 2 * E : NULL;
    uint8_t *one = (uint8_t *)(back + E);
    for (uint32_t c = 0; c < E; c++) {
        hl_dequantize(a->t->dtype, a->from + c * a->row_from + hl_dtype_bytes(hl_dtype(a->t->dtype), n0), some, n);
        for (uint32_t i = 0; i < n; i++) rows[(size_t)i * E + c] = some[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        const float *row = rows + (size_t)i * E;
        const quantize_arg q = { a->dtype, a->to ? a->to + a->place[n0 + i] * a->row_to : one, row, E, a->row_to };
        quantize_row((void *)(uintptr_t)&q, 0, 0);
        if (!sums) continue;
        hl_dequantize(a->dtype, one, back, E);
        for (uint32_t c = 0; c < E; c++) {
            const double off = (double)back[c] - (double)row[c], energy = (double)a->energy[n0 + i];
            sums[c] += energy * off * off;
            sums[E + c] += energy * (double)row[c] * (double)row[c];
        }
    }
}

/* to and sums NULL: not wanted. */
static hl_status turn(const hl_model *m, hl_error *err, hl_pool *pool, turn_arg *a)
{
    hl_status rc = HLLM_OK;
    hl_mem *mem = m->env->mem;
    uint8_t *from = NULL;
    a->n_embd = (uint32_t)a->t->dims[1];
    a->n_ff = (uint32_t)a->t->dims[0];
    a->row_from = hl_dtype_bytes(hl_dtype(a->t->dtype), a->n_ff);
    a->row_to = hl_dtype_bytes(hl_dtype(a->dtype), a->n_embd);
    HL_TRY(read_all(m, err, a->t, &from));
    HL_NEED(a->tiles = hl_alloc_array(mem, hl_pool_threads(pool), (TILE * ((size_t)a->n_embd + 1) + 2 * (size_t)a->n_embd) * sizeof(float)));
    a->from = from;
    hl_pool_run(pool, turn_tile, a, (a->n_ff + TILE - 1) / TILE);
done:
    hl_free(mem, from);
    hl_free(mem, a->tiles);
    a->tiles = NULL;
    return rc;
}

hl_status hl_rows_turned(const hl_model *m, hl_error *err, hl_pool *pool, const hl_gguf_tensor *t, const uint32_t *order, uint32_t dtype, uint8_t **out, size_t *bytes)
{
    hl_status rc = HLLM_OK;
    hl_mem *mem = m->env->mem;
    uint32_t *place = NULL;
    turn_arg a = { .t = t, .dtype = dtype };
    const uint32_t n_ff = (uint32_t)t->dims[0];
    *bytes = n_ff * hl_dtype_bytes(hl_dtype(dtype), t->dims[1]);
    *out = NULL;
    HL_NEED(place = hl_alloc_array(mem, n_ff, sizeof *place));
    HL_NEED(*out = hl_alloc(mem, *bytes));
    for (uint32_t i = 0; i < n_ff; i++) place[order[i]] = i;
    a.to = *out;
    a.place = place;
    rc = turn(m, err, pool, &a);
done:
    hl_free(mem, place);
    return rc;
}

/* An output's noise, relative to the output, averaged over the outputs.  Q8_0 of numbers that are alike has 2.5e-5 to 3e-5, as much as 8-bit activations,
 * which these rows do not meet.  Far more it has where a neuron that is often large has one large weight among small ones: they share a scale. */
#define NOISE_MOST 6e-5

hl_status hl_rows_choose(const hl_model *m, hl_error *err, hl_pool *pool, const hl_gguf_tensor *t, const float *energy, uint32_t *dtype)
{
    hl_status rc = HLLM_OK;
    const uint32_t E = (uint32_t)t->dims[1], threads = hl_pool_threads(pool);
    turn_arg a = { .t = t, .dtype = hl_rows_dtype(t->dtype, E), .energy = energy };
    double noise = 0;
    *dtype = a.dtype;
    if (a.dtype != HL_Q8_0) return HLLM_OK;
    HL_NEED(a.sums = hl_alloc_array(m->env->mem, (size_t)threads * 2 * E, sizeof *a.sums));
    HL_TRY(turn(m, err, pool, &a));
    for (uint32_t c = 0; c < E; c++) {
        double off = 0, all = 0;
        for (uint32_t k = 0; k < threads; k++) { off += a.sums[(size_t)k * 2 * E + c]; all += a.sums[((size_t)k * 2 + 1) * E + c]; }
        if (all > 0) noise += off / all / E;
    }
    if (noise > NOISE_MOST) *dtype = HL_F16;
    hl_log_write(m->env->log, HLLM_LOG_INFO, "%s: %s as Q8_0: noise %u parts in a million%s", hl_gguf_path(m->gguf), t->name, (unsigned)(noise * 1e6), *dtype == HL_F16 ? ", so F16" : "");
done:
    hl_free(m->env->mem, a.sums);
    return rc;
}
