/* engine.c: loads weights (mapped, or read in parallel into one block) and runs the worker thread.
 *
 * Memory is checked before anything is read: what is needed against the budget, the machine and its cgroup.  A fused tensor of the file (qkv,
 * gate and up) becomes views here.
 */
#include "run/engine.h"

#include <string.h>

#include "run/machine.h"
#include "run/session.h"

enum { CHUNK = 4 << 20, ALIGN = 64 };
/* Upper bounds of what an engine takes besides its weights and scratch: for each layer (tables, padding), in all; and, of address space,
 * what the allocator maps to align a large block. */
enum { EXTRA_LAYER = 8 << 10, EXTRA = 128 << 10, EXTRA_ADDRESS = 2 << 20 };

/* One matrix to be placed: rows [row0, row0 + n_rows) of a tensor. */
typedef struct piece {
    const hl_gguf_tensor *t;
    bool by_rows, ffn;                                 /* read one by one; a matrix of an FFN */
    uint32_t row0, n_rows, group;                      /* group: rows that the layout keeps together */
    hl_weight *dst;
    size_t at;                                         /* in the block */
} piece;

typedef struct loader {
    hllm_engine *e;
    hl_error *err;
    hl_progress *progress;
    piece *pieces; uint32_t n_pieces;
    struct chunk { uint32_t piece, row0, n_rows; } *chunks;
    uint32_t n_chunks, first_chunk;                    /* first_chunk: of the running job */
    uint64_t bytes;                                    /* of all pieces in the file */
    uint8_t *staging; size_t staging_each;             /* one per thread, for devices with layouts or memory of their own; NULL: read in place */
    _Atomic hl_status failed;
} loader;

static void add_piece(loader *l, const hl_gguf_tensor *t, uint64_t row0, uint64_t n_rows, hl_weight *dst)
{
    if (t) l->pieces[l->n_pieces++] = (piece){ t, false, false, (uint32_t)row0, (uint32_t)n_rows, 1, dst, 0 };
}

/* An FFN with a row for each neuron in every matrix.  What is read whole lies as the device likes it. */
static void list_ffn_rows(loader *l, const hl_layer *c, hl_layer_weights *w)
{
    const hllm_engine *e = l->e;
    const uint32_t n0 = l->n_pieces;
    const bool predicts = e->mode == HLLM_MODE_PREDICTED && c->n_pred, gated = e->model->family->gated;
    w->by_neurons = true;
    add_piece(l, c->t[HL_FFN_GATE], 0, c->n_ff, &w->gate);
    add_piece(l, c->t[HL_FFN_UP], 0, c->n_ff, &w->up);
    add_piece(l, c->t[HL_FFN_DOWN_T], 0, c->n_ff, &w->down);
    for (uint32_t i = n0; i < l->n_pieces; i++) {
        const hl_weight *d = l->pieces[i].dst;
        const bool first = d == (gated ? &w->gate : &w->up);
        l->pieces[i].by_rows = d == &w->down || (first ? predicts : e->mode != HLLM_MODE_DENSE);
    }
    if (!predicts) return;
    add_piece(l, c->t[HL_PRED_1], 0, c->n_pred, &w->pred_1);
    add_piece(l, c->t[HL_PRED_2], 0, c->n_ff, &w->pred_2);
}

static void list_layer(loader *l, const hl_layer *c, hl_layer_weights *w)
{
    const hl_model *m = l->e->model;
    const uint64_t nq = hl_model_dim(m, c, HL_D_Q), nk = hl_model_dim(m, c, HL_D_K), nv = hl_model_dim(m, c, HL_D_V);
    if (c->t[HL_ATTN_QKV]) {
        add_piece(l, c->t[HL_ATTN_QKV], 0, nq, &w->q);
        add_piece(l, c->t[HL_ATTN_QKV], nq, nk, &w->k);
        add_piece(l, c->t[HL_ATTN_QKV], nq + nk, nv, &w->v);
    } else {
        add_piece(l, c->t[HL_ATTN_Q], 0, nq, &w->q);
        add_piece(l, c->t[HL_ATTN_K], 0, nk, &w->k);
        add_piece(l, c->t[HL_ATTN_V], 0, nv, &w->v);
    }
    add_piece(l, c->t[HL_ATTN_OUT], 0, m->config.n_embd, &w->out);
    const uint32_t n0 = l->n_pieces;
    if (c->t[HL_FFN_DOWN_T]) list_ffn_rows(l, c, w);
    else if (m->family->fused_up) {
        add_piece(l, c->t[HL_FFN_UP], 0, c->n_ff, &w->gate);
        add_piece(l, c->t[HL_FFN_UP], c->n_ff, c->n_ff, &w->up);
    } else {
        add_piece(l, c->t[HL_FFN_GATE], 0, c->n_ff, &w->gate);
        add_piece(l, c->t[HL_FFN_UP], 0, c->n_ff, &w->up);
    }
    if (c->t[HL_FFN_DOWN]) add_piece(l, c->t[HL_FFN_DOWN], 0, m->config.n_embd, &w->down);
    for (uint32_t i = n0; i < l->n_pieces; i++) l->pieces[i].ffn = true;
}

/* All matrices, in the order of the file's layers; sizes and layouts from the device. */
static hl_status list_pieces(loader *l)
{
    hl_status rc = HLLM_OK;
    hllm_engine *e = l->e;
    const hl_model *m = e->model;
    size_t total = 0;
    HL_NEED(l->pieces = hl_alloc_array(e->env->mem, (size_t)m->config.n_layers * 10 + 3, sizeof *l->pieces));
    add_piece(l, m->t[HL_EMBED], 0, m->config.n_vocab, &e->embed);
    add_piece(l, m->t[HL_POSITIONS], 0, m->config.n_pos, &e->positions);
    for (uint32_t il = 0; il < m->config.n_layers; il++) list_layer(l, &m->layers[il], &e->layers[il]);
    if (m->t[HL_HEAD] != m->t[HL_EMBED]) add_piece(l, m->t[HL_HEAD], 0, m->config.n_vocab, &e->head);
    for (uint32_t i = 0; i < l->n_pieces; i++) {
        piece *p = &l->pieces[i];
        uint32_t cols = (uint32_t)p->t->dims[0], layout;
        size_t bytes;
        if (p->by_rows) { layout = HL_LAYOUT_FILE; bytes = e->be->weight_rows(e->dev, p->t->dtype, p->n_rows, cols); }
        else e->be->weight_layout(e->dev, p->t->dtype, p->n_rows, cols, &layout, &bytes, &p->group);
        *p->dst = (hl_weight){ p->t->dtype, layout, p->n_rows, cols, hl_dtype_bytes(hl_dtype(p->t->dtype), cols), NULL };
        p->at = total;
        HL_TRY(hl_add_size(total, hl_align_up(bytes, ALIGN), &total));
        l->bytes += (uint64_t)p->n_rows * p->dst->row_bytes;
        if (p->dst == &e->positions || (p->dst == &e->embed && m->t[HL_HEAD] != m->t[HL_EMBED])) continue;
        e->decode_weight_bytes += bytes;
        if (p->ffn) e->decode_ffn_bytes += bytes;
    }
    e->matrices_bytes = total;
done:
    return rc;
}

static hl_status map_all(loader *l)
{
    hl_status rc = HLLM_OK;
    hllm_engine *e = l->e;
    const hl_gguf *g = e->model->gguf;
    HL_NEED(e->maps = hl_alloc_array(e->env->mem, g->n_shards, sizeof *e->maps));
    for (uint32_t i = 0; i < g->n_shards; i++)
        HL_TRY(hl_file_map(e->env, l->err, &g->shards[i], &e->maps[i].data, &e->maps[i].base, &e->maps[i].bytes));
    for (uint32_t i = 0; i < l->n_pieces; i++) {
        piece *p = &l->pieces[i];
        p->dst->layout = HL_LAYOUT_FILE;               /* a mapped file is used as it lies */
        p->dst->data = e->maps[p->t->shard].data + p->t->at + (size_t)p->row0 * p->dst->row_bytes;
    }
    rc = hl_progress_step(l->progress, l->bytes);
done:
    return rc;
}

static void read_chunk(void *v, uint32_t task, uint32_t thread)
{
    loader *l = v;
    const struct chunk *c = &l->chunks[l->first_chunk + task];
    const piece *p = &l->pieces[c->piece];
    hllm_engine *e = l->e;
    if (atomic_load_explicit(&l->failed, memory_order_relaxed) != HLLM_OK) return;
    const size_t bytes = (size_t)c->n_rows * p->dst->row_bytes;
    const bool in_place = p->dst->layout == HL_LAYOUT_FILE && e->be->host_memory;
    uint8_t *to = in_place ? (uint8_t *)e->matrices + p->at + (size_t)c->row0 * p->dst->row_bytes : l->staging + thread * l->staging_each;
    hl_status rc = hl_file_read(e->env, l->err, &e->model->gguf->shards[p->t->shard], p->t->at + (uint64_t)(p->row0 + c->row0) * p->dst->row_bytes, to, bytes);
    if (rc == HLLM_OK && !in_place) e->be->weight_pack(e->dev, p->dst, c->row0, c->n_rows, to);
    if (rc == HLLM_OK) rc = hl_progress_step(l->progress, bytes);
    hl_status none = HLLM_OK;
    if (rc != HLLM_OK) atomic_compare_exchange_strong(&l->failed, &none, rc);
}

/* Rows read at once: whole groups of the layout. */
static uint32_t chunk_rows(const piece *p)
{
    const size_t group_bytes = p->dst->row_bytes * p->group;
    return (uint32_t)HL_MAX(CHUNK / group_bytes, (size_t)1) * p->group;
}

static hl_status read_all(loader *l)
{
    hl_status rc = HLLM_OK;
    hllm_engine *e = l->e;
    size_t n = 0;
    if (!(e->matrices = e->be->alloc(e->dev, e->matrices_bytes))) {
        rc = hl_fail(l->err, HLLM_E_NOMEM, "%s: %zu bytes for the weights cannot be had", hl_gguf_path(e->model->gguf), e->matrices_bytes);
        goto done;
    }
    for (uint32_t i = 0; i < l->n_pieces; i++) {
        const piece *p = &l->pieces[i];
        n += p->n_rows / chunk_rows(p) + 1;
        if (p->dst->layout != HL_LAYOUT_FILE || !e->be->host_memory) l->staging_each = HL_MAX(l->staging_each, chunk_rows(p) * p->dst->row_bytes);
    }
    if (l->staging_each) HL_NEED(l->staging = hl_alloc_array(e->env->mem, hl_pool_threads(e->handle->rt->pool), l->staging_each));
    HL_NEED(l->chunks = hl_alloc_array(e->env->mem, n, sizeof *l->chunks));
    for (uint32_t i = 0; i < l->n_pieces; i++) {
        piece *p = &l->pieces[i];
        const uint32_t per = chunk_rows(p);
        p->dst->data = (uint8_t *)e->matrices + p->at;
        for (uint32_t r = 0; r < p->n_rows; r += per) l->chunks[l->n_chunks++] = (struct chunk){ i, r, HL_MIN(per, p->n_rows - r) };
    }
    /* In small jobs: sessions of other models share the threads and get their turns in between. */
    hl_pool *pool = e->handle->rt->pool;
    const uint32_t per_job = 2 * hl_pool_threads(pool);
    for (; l->first_chunk < l->n_chunks && atomic_load(&l->failed) == HLLM_OK; l->first_chunk += per_job)
        hl_pool_run(pool, read_chunk, l, HL_MIN(per_job, l->n_chunks - l->first_chunk));
    rc = atomic_load(&l->failed);
done:
    return rc;
}

/* ---- vectors: norms and biases, as f32 in one block ---- */

typedef struct vec { const hl_gguf_tensor *t; uint64_t first, n; const float **dst; } vec;

static uint32_t list_vectors(hllm_engine *e, vec *v)   /* v NULL: only counts */
{
    const hl_model *m = e->model;
    uint32_t n = 0;
#define VEC(tensor, from, count, where) do { if (tensor) { if (v) v[n] = (vec){ tensor, from, count, &(where) }; n++; } } while (0)
    for (uint32_t il = 0; il < m->config.n_layers; il++) {
        const hl_layer *c = &m->layers[il];
        hl_layer_weights *w = &e->layers[il];
        const uint64_t nq = hl_model_dim(m, c, HL_D_Q), nk = hl_model_dim(m, c, HL_D_K), nv = hl_model_dim(m, c, HL_D_V);
#define WHOLE(role, where) VEC(c->t[role], 0, c->t[role]->n, w->where)
        WHOLE(HL_ATTN_NORM, attn_norm); WHOLE(HL_ATTN_NORM_B, attn_norm_b); WHOLE(HL_ATTN_NORM_2, attn_norm_2); WHOLE(HL_ATTN_NORM_2_B, attn_norm_2_b);
        WHOLE(HL_ATTN_Q_B, q_b); WHOLE(HL_ATTN_K_B, k_b); WHOLE(HL_ATTN_V_B, v_b); WHOLE(HL_ATTN_Q_NORM, q_norm); WHOLE(HL_ATTN_K_NORM, k_norm);
        WHOLE(HL_ATTN_OUT_B, out_b); WHOLE(HL_ATTN_POST_NORM, attn_post_norm); WHOLE(HL_FFN_NORM, ffn_norm); WHOLE(HL_FFN_NORM_B, ffn_norm_b);
        WHOLE(HL_FFN_GATE_B, gate_b); WHOLE(HL_FFN_DOWN_B, down_b); WHOLE(HL_FFN_POST_NORM, ffn_post_norm); WHOLE(HL_PRED_B, pred_b); WHOLE(HL_FFN_CUT, cuts);
        if (m->family->fused_up) { VEC(c->t[HL_FFN_UP_B], 0, c->n_ff, w->gate_b); VEC(c->t[HL_FFN_UP_B], c->n_ff, c->n_ff, w->up_b); }
        else WHOLE(HL_FFN_UP_B, up_b);
        VEC(c->t[HL_ATTN_QKV_B], 0, nq, w->q_b); VEC(c->t[HL_ATTN_QKV_B], nq, nk, w->k_b); VEC(c->t[HL_ATTN_QKV_B], nq + nk, nv, w->v_b);
#undef WHOLE
    }
    VEC(m->t[HL_OUT_NORM], 0, m->t[HL_OUT_NORM]->n, e->out_norm);
    VEC(m->t[HL_OUT_NORM_B], 0, m->t[HL_OUT_NORM_B]->n, e->out_norm_b);
    VEC(m->t[HL_HEAD_B], 0, m->t[HL_HEAD_B]->n, e->head_b);
#undef VEC
    return n;
}

static hl_status load_vectors(loader *l)
{
    hl_status rc = HLLM_OK;
    hllm_engine *e = l->e;
    vec *v = NULL;
    float *host = NULL;
    size_t total = 0, largest = 0;
    const uint32_t n = list_vectors(e, NULL);
    HL_NEED(v = hl_alloc_array(e->env->mem, n, sizeof *v));
    list_vectors(e, v);
    for (uint32_t i = 0; i < n; i++) { total += hl_align_up(v[i].n, 16); largest = HL_MAX(largest, v[i].n); }
    e->vectors_bytes = total * sizeof(float);
    HL_NEED(e->vectors = e->be->alloc(e->dev, e->vectors_bytes));
    HL_NEED(host = hl_alloc_array(e->env->mem, largest, sizeof *host));
    size_t at = 0;
    for (uint32_t i = 0; i < n; at += hl_align_up(v[i].n, 16), i++) {
        HL_TRY(hl_model_read_f32(e->model, l->err, v[i].t, v[i].first, host, v[i].n));
        HL_TRY(e->be->write(e->stream, e->vectors + at, host, v[i].n * sizeof(float)));
        *v[i].dst = e->vectors + at;
    }
    rc = e->be->sync(e->stream, l->err);
done:
    hl_free(e->env->mem, host);
    hl_free(e->env->mem, v);
    return rc;
}

/* Refused where the file has not what the mode needs; what it would not change is exact. */
static hl_status choose_mode(hllm_engine *e, uint32_t mode, hl_error *err)
{
    const hl_model *m = e->model;
    const hl_sparse *s = &m->sparse;
    const char *path = hl_gguf_path(m->gguf);
    if (mode == HLLM_MODE_PREDICTED && !s->n_predictors)
        return hl_fail(err, HLLM_E_UNSUPPORTED, "%s: has no predictors for the mode predicted; hllm prepare makes a file that has", path);
    if (mode == HLLM_MODE_THRESHOLDED && !s->n_cuts) return hl_fail(err, HLLM_E_UNSUPPORTED, "%s: has no thresholds for the mode thresholded; hllm prepare --skip makes a file that has", path);
    e->mode = mode == HLLM_MODE_EXACT && s->rows && !hl_act_is_relu(m->config.act) ? HLLM_MODE_DENSE : mode;
    return HLLM_OK;
}

/* ---- memory ---- */

uint64_t hl_engine_weight_bytes(const hl_model *m) { return m->tensor_bytes; }

uint64_t hl_engine_extra_bytes(const hllm_model *m)
{
    return hl_batch_bytes(m->model) + (uint64_t)hl_pool_threads(m->rt->pool) * hl_scratch_thread_bytes(m->model) + (uint64_t)m->model->config.n_layers * EXTRA_LAYER + EXTRA;
}

hl_status hl_engine_reserve(hllm_engine *e, hl_error *err, uint64_t need, const char *what)
{
    uint64_t total, available;
    hl_machine_memory(&total, &available);
    uint64_t used = atomic_load(&e->reserved_bytes), have;
    const char *why;
    do {                                               /* a refused need must not stand in another thread's way for a moment */
        why = NULL;
        have = available;
        if (need > available) why = "the machine (or its cgroup or ulimit) has";
        if (e->ram_bytes && (used > e->ram_bytes || need > e->ram_bytes - used)) {
            why = "the budget ram_bytes leaves";
            have = used > e->ram_bytes ? 0 : e->ram_bytes - used;
        }
        if (why) return hl_fail(err, HLLM_E_NOMEM, "%s: %s need %llu bytes, %s %llu", hl_gguf_path(e->model->gguf), what, (unsigned long long)need, why, (unsigned long long)have);
    } while (!atomic_compare_exchange_weak(&e->reserved_bytes, &used, used + need));
    return HLLM_OK;
}

void hl_engine_release(hllm_engine *e, uint64_t bytes) { atomic_fetch_sub(&e->reserved_bytes, bytes); }

/* auto: read when the weights (and the session that the caller means to make) fit, else map.  Refused before anything is read. */
static hl_status choose_load(hllm_engine *e, const hllm_engine_options *opt, hl_error *err)
{
    uint64_t total, available, session = 0;
    hl_session_sizes sizes;
    hl_machine_memory(&total, &available);
    if (e->ram_bytes) available = HL_MIN(available, e->ram_bytes);
    if (opt->session) {
        hl_status rc = hl_session_sizes_for(e->model, opt->session, err, &sizes);
        if (rc != HLLM_OK) return rc;
        session = sizes.kv_bytes + sizes.scratch_bytes;
    }
    const uint64_t weights = hl_engine_weight_bytes(e->model) + hl_engine_extra_bytes(e->handle);
    e->load = opt->load;
    if (e->load == HLLM_LOAD_AUTO) e->load = weights + session < available - available / 8 ? HLLM_LOAD_READ : HLLM_LOAD_MMAP;
    const uint64_t stays = e->load == HLLM_LOAD_READ ? weights : 0;
    hl_status rc = hl_engine_reserve(e, err, stays + session, !session ? "the weights" : stays ? "weights, KV cache and scratch" : "KV cache and scratch");
    if (rc == HLLM_OK) hl_engine_release(e, session);  /* the session reserves for itself */
    return rc;
}

/* What loading and then the named session really take (vectors of 16 bits become twice as long), with what no budget counts: staging, the worker's stack, address space of a mapped file.
 * After list_pieces and before anything is read: a session that is refused must not have waited for the weights. */
static hl_status check_loading(const loader *l, const hllm_engine_options *opt)
{
    hl_status rc = HLLM_OK;
    hllm_engine *e = l->e;
    const hl_gguf *g = e->model->gguf;
    const char *what = opt->session ? "loading, with the KV cache and scratch of its session," : "loading";
    uint64_t session = 0, staging = 0, mapped = 0;
    size_t stack = 0;
    pthread_attr_t attr;
    hl_session_sizes sizes;
    if (opt->session) {
        HL_TRY(hl_session_sizes_for(e->model, opt->session, l->err, &sizes));
        session = sizes.kv_bytes + sizes.scratch_bytes;
    }
    if (e->load == HLLM_LOAD_READ) {
        for (uint32_t i = 0; i < l->n_pieces; i++) {
            const piece *p = &l->pieces[i];
            if (p->dst->layout != HL_LAYOUT_FILE || !e->be->host_memory) staging = HL_MAX(staging, (uint64_t)chunk_rows(p) * p->dst->row_bytes);
        }
        staging *= hl_pool_threads(e->handle->rt->pool);
    } else for (uint32_t i = 0; i < g->n_shards; i++) mapped += g->shards[i].bytes;
    const uint64_t all = hl_engine_weight_bytes(e->model), vectors = all - HL_MIN(all, l->bytes);
    uint64_t need = (e->load == HLLM_LOAD_READ ? e->matrices_bytes : 0) + 2 * vectors + hl_engine_extra_bytes(e->handle) + HL_MAX(staging, session);
    need += need / 256;                                /* page tables and other uses of the system's */
    HL_TRY(hl_machine_check(l->err, hl_gguf_path(g), what, need));
    if (pthread_attr_init(&attr) == 0) {
        pthread_attr_getstacksize(&attr, &stack);
        pthread_attr_destroy(&attr);
    }
    need += stack + EXTRA_ADDRESS;
    for (int data = 1; data >= 0; data--) {
        const uint64_t room = hl_machine_address_bytes(data);
        if (!data) need += mapped;
        if (need <= room) continue;
        rc = hl_fail(l->err, HLLM_E_NOMEM, "%s: %s needs %llu bytes of address space, the limit (ulimit -%c) leaves %llu", hl_gguf_path(g), what,
                     (unsigned long long)need, data ? 'd' : 'v', (unsigned long long)room);
        goto done;
    }
done:
    return rc;
}

/* ---- worker ---- */

/* Takes the next session, and with it those behind it that want one more token too.  e->lock held. */
static uint32_t take_sessions(hllm_engine *e, hllm_session **out)
{
    uint32_t n = 0;
    hllm_session *kept = NULL;                         /* the last one that stays */
    for (hllm_session *s = e->first, *next; s && n < HL_BATCH; s = next) {
        next = s->next;
        if (n && !(hl_batch_takes(out[0]) && hl_batch_takes(s))) { kept = s; continue; }
        if (kept) kept->next = next;
        else e->first = next;
        if (e->last == s) e->last = kept;
        s->next = NULL;
        out[n++] = s;
    }
    return n;
}

static void *worker_main(void *v)
{
    hllm_engine *e = v;
    pthread_mutex_lock(&e->lock);
    for (;;) {
        hllm_session *sessions[HL_BATCH];
        while (!e->first && !e->stop) pthread_cond_wait(&e->wake, &e->lock);
        if (!e->first) break;                          /* stop: sessions are gone by then, they hold references */
        const uint32_t n = take_sessions(e, sessions);
        pthread_mutex_unlock(&e->lock);
        hl_batch_step(e, e->batch, sessions, n);       /* they queue themselves again when there is more */
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

void hl_engine_queue(hllm_engine *e, hllm_session *s)
{
    pthread_mutex_lock(&e->lock);
    s->next = NULL;
    if (e->last) e->last->next = s;
    else e->first = s;
    e->last = s;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

bool hl_engine_unqueue(hllm_engine *e, hllm_session *s)
{
    bool found = false;
    pthread_mutex_lock(&e->lock);
    hllm_session *before = NULL;
    for (hllm_session *at = e->first; at && !found; at = at->next) {
        if (at != s) { before = at; continue; }
        if (before) before->next = s->next;
        else e->first = s->next;
        if (e->last == s) e->last = before;
        found = true;
    }
    pthread_mutex_unlock(&e->lock);
    return found;
}

/* ---- life ---- */

/* Layers that rotate alike share a table: one kind, or two when windowed layers have a base of their own. */
static hl_status find_ropes(hllm_engine *e)
{
    const hl_model *m = e->model;
    const hl_layer *kind[HL_ROPES];
    for (uint32_t il = 0; il < m->config.n_layers; il++) {
        const hl_layer *l = &m->layers[il];
        uint32_t r = 0;
        while (r < e->n_ropes && (kind[r]->rope_base != l->rope_base || kind[r]->rope_scale != l->rope_scale)) r++;
        if (r == HL_ROPES) return HLLM_E_INTERNAL;
        if (r == e->n_ropes) kind[e->n_ropes++] = l;
        e->rope_of_layer[il] = (uint8_t)r;
    }
    return HLLM_OK;
}

static hl_status read_vocab_facts(hllm_engine *e)
{
    const hl_vocab *v = e->model->vocab;
    const uint32_t n = hl_vocab_size(v);
    for (uint32_t i = 0; i < n; i++) {
        hl_token t = hl_vocab_token(v, (int32_t)i);
        e->max_piece = HL_MAX(e->max_piece, (size_t)HL_MAX(t.piece_bytes, t.text_bytes));
        e->n_end_ids += t.ends_generation;
    }
    e->end_ids = hl_alloc_array(e->env->mem, e->n_end_ids, sizeof *e->end_ids);
    if (!e->end_ids) return HLLM_E_NOMEM;
    for (uint32_t i = 0, k = 0; i < n; i++)
        if (hl_vocab_token(v, (int32_t)i).ends_generation) e->end_ids[k++] = (int32_t)i;
    return HLLM_OK;
}

hl_status hl_engine_new(hllm_model *m, const hllm_engine_options *opt, hllm_engine **out)
{
    hl_status rc = HLLM_OK;
    hllm_engine *e = NULL;
    loader l = { .err = &m->err, .progress = opt->progress ? &opt->progress->p : NULL };
    const hl_env *env = &m->rt->env;
    *out = NULL;
    if (!m->model->family) return hl_fail(&m->err, HLLM_E_STATE, "%s: the model was opened for its vocabulary only", hl_gguf_path(m->model->gguf));
    if (m->flags & HLLM_MODEL_HEADER_ONLY) return hl_fail(&m->err, HLLM_E_STATE, "%s: the model was opened for its header only", hl_gguf_path(m->model->gguf));
    HL_NEED(e = hl_alloc_zero(env->mem, sizeof *e));
    hl_error_init(&e->err);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    atomic_store(&e->refs, 1);
    hl_model_ref(m);
    e->handle = m;
    e->model = m->model;
    e->env = env;
    e->be = &hl_cpu_backend;
    e->act_f32 = opt->act == HLLM_ACT_F32;
    e->ram_bytes = opt->ram_bytes;
    l.e = e;
    HL_TRY(choose_mode(e, opt->mode, l.err));
    HL_TRY(choose_load(e, opt, l.err));
    HL_NEED(e->layers = hl_alloc_array(env->mem, e->model->config.n_layers, sizeof *e->layers));
    HL_NEED(e->rope_of_layer = hl_alloc_array(env->mem, e->model->config.n_layers, 1));
    HL_TRY(find_ropes(e));
    HL_TRY(e->be->open(env, l.err, &(hl_device_options){ m->rt->pool, m->rt->isa, e->act_f32, e->model->config.head_dim_k, e->model->config.head_dim_v }, &e->dev));
    HL_TRY(list_pieces(&l));
    HL_TRY(check_loading(&l, opt));
    HL_TRY(e->be->stream_new(e->dev, l.err, &e->stream));
    if (l.progress) atomic_fetch_add(&l.progress->total, l.bytes);   /* the handle may have watched the opening before */
    HL_TRY(hl_progress_step(l.progress, 0));
    HL_TRY(load_vectors(&l));
    HL_TRY(e->load == HLLM_LOAD_MMAP ? map_all(&l) : read_all(&l));
    if (e->model->t[HL_HEAD] == e->model->t[HL_EMBED]) e->head = e->embed;
    HL_TRY(read_vocab_facts(e));
    HL_TRY(hl_batch_new(e, &e->batch));
    HL_TRY(hl_thread_start(l.err, &e->worker, worker_main, e));
    e->worker_runs = true;
    *out = e; e = NULL;
done:
    hl_free(env->mem, l.staging);
    hl_free(env->mem, l.chunks);
    hl_free(env->mem, l.pieces);
    hl_engine_unref(e);
    return rc;
}

void hl_engine_ref(hllm_engine *e) { atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed); }

void hl_engine_unref(hllm_engine *e)
{
    if (!e || atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) != 1) return;
    hllm_model *m = e->handle;
    hl_mem *mem = e->env->mem;
    if (e->worker_runs) {
        pthread_mutex_lock(&e->lock);
        e->stop = true;
        pthread_cond_signal(&e->wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->worker, NULL);
    }
    if (e->stream) e->be->stream_free(e->stream);
    hl_batch_free(e, e->batch);
    if (e->dev) {
        e->be->free(e->dev, e->matrices, e->matrices_bytes);
        e->be->free(e->dev, e->vectors, e->vectors_bytes);
        e->be->close(e->dev);
    }
    for (uint32_t i = 0; e->maps && i < e->model->gguf->n_shards; i++) hl_file_unmap(e->maps[i].base, e->maps[i].bytes);
    hl_free(mem, e->maps);
    hl_free(mem, e->layers);
    hl_free(mem, e->rope_of_layer);
    hl_free(mem, e->end_ids);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    hl_error_destroy(&e->err);
    hl_free(mem, e);
    hl_model_unref(m);
}
