/* batch.c: one token of each of several sessions in one pass over the weights (continuous batching).
 *
 * Whoever waits in the engine's queue for one more token of an answer is taken along by the first: weights are read once for all of them.  A
 * session's bits do not depend on who came along, since no operator's result for one token depends on the others (backend.h).  The pass
 * runs in scratch of the engine, so that a session that is cancelled in it may be freed at once.
 * Runs on the engine's worker thread; allocates nothing after hl_batch_new.
 */
#include "run/session.h"

#include <string.h>

struct hl_batch {
    hl_scratch z;
    uint32_t logit_rows;
    void *device_block; size_t device_bytes;
    void *host_block;
    uint64_t reserved;
};

enum { LOGITS_AIM = 4 << 20, ALIGN = 64 };

static uint32_t rows_of(const hl_model *m) { return (uint32_t)HL_MIN(HL_MAX(LOGITS_AIM / (4ull * m->config.n_vocab), 1ull), (uint64_t)HL_BATCH); }

uint64_t hl_batch_bytes(const hl_model *m)
{
    const uint64_t rows = rows_of(m);
    return hl_scratch_fixed_bytes(m) + 4ull * HL_BATCH + HL_MAX((uint64_t)HL_BATCH, 2 * rows) * hl_scratch_token_bytes(m) + 4 * rows * m->config.n_vocab + 4ull * HL_BATCH * m->config.n_rot + 32 * ALIGN;
}

hl_status hl_batch_new(hllm_engine *e, hl_batch **out)
{
    hl_status rc = HLLM_OK;
    hl_batch *b = NULL;
    hl_carver c = { 0 };
    *out = NULL;
    HL_NEED(b = hl_alloc_zero(e->env->mem, sizeof *b));
    b->logit_rows = rows_of(e->model);
    hl_scratch_lay_out(&b->z, &c, e, HL_BATCH, b->logit_rows);
    b->device_bytes = c.at;
    HL_NEED(b->device_block = e->be->alloc(e->dev, b->device_bytes));
    c = (hl_carver){ b->device_block, 0 };
    hl_scratch_lay_out(&b->z, &c, e, HL_BATCH, b->logit_rows);
    HL_NEED(b->z.cos_sin_host = b->host_block = hl_alloc_array(e->env->mem, (size_t)HL_BATCH * (e->model->config.n_rot + 1), sizeof(float)));
    b->z.counts = (uint32_t *)(void *)(b->z.cos_sin_host + (size_t)HL_BATCH * e->model->config.n_rot);
    *out = b; b = NULL;
done:
    hl_batch_free(e, b);
    return rc;
}

void hl_batch_free(hllm_engine *e, hl_batch *b)
{
    if (!b) return;
    e->be->free(e->dev, b->device_block, b->device_bytes);
    hl_free(e->env->mem, b->host_block);
    hl_free(e->env->mem, b);
}

bool hl_batch_takes(const hllm_session *s)
{
    return s->job == HL_JOB_GENERATE && s->n_generated > 0 && s->n_tokens - s->n_kv == 1 && !atomic_load_explicit(&s->cancel, memory_order_relaxed);
}

/* Their logits, as many at a time as there is room for; each session gets its own. */
static hl_status heads(hllm_engine *e, hl_batch *b, hl_part *parts, uint32_t n)
{
    const size_t n_vocab = e->model->config.n_vocab;
    for (uint32_t row = 0; row < n; row += b->logit_rows) {
        const uint32_t n_rows = HL_MIN(b->logit_rows, n - row);
        const hl_status rc = hl_forward_head(e, &b->z, row, n_rows, &e->err);
        if (rc != HLLM_OK) return rc;
        for (uint32_t i = row; i < row + n_rows; i++) {
            hllm_session *s = parts[i].s;
            if (!s) continue;
            memcpy(s->z.logits, b->z.logits + (i - row) * n_vocab, n_vocab * sizeof(float));
            s->logits_pos = parts[i].pos0;
            s->n_logits = 1;
        }
    }
    return HLLM_OK;
}

void hl_batch_step(hllm_engine *e, hl_batch *b, hllm_session **sessions, uint32_t n)
{
    const size_t n_embd = e->model->config.n_embd;
    hl_part parts[HL_BATCH];
    hl_status each[HL_BATCH] = { HLLM_OK };
    if (n == 1) { hl_session_step(sessions[0]); return; }
    for (uint32_t i = 0; i < n; i++) parts[i] = hl_session_begin(sessions[i]);
    hl_status rc = hl_forward(e, &b->z, parts, n, &e->err);
    for (uint32_t i = 0; i < n && rc == HLLM_OK; i++) {
        hllm_session *s = parts[i].s;
        if (!s) continue;
        each[i] = hl_session_computed(s, &parts[i], b->z.hidden + i * n_embd);
        if (each[i] == HLLM_OK) memcpy(s->z.hidden, b->z.hidden + i * n_embd, n_embd * sizeof(float));
    }
    if (rc == HLLM_OK) rc = heads(e, b, parts, n);
    for (uint32_t i = 0; i < n; i++) {
        if (!parts[i].s) continue;
        if (rc != HLLM_OK && each[i] == HLLM_OK) each[i] = hl_fail(&parts[i].s->err, rc, "computing with other sessions failed");
        hl_session_stepped(parts[i].s, each[i]);
    }
}
