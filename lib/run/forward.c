/* forward.c: the transformer, top to bottom, for every family.
 *
 * What differs between families is data: hl_family (norm, activation, rotation, order of blocks) and which weights are there.  A layer's
 * kind chooses its function: attention + dense FFN today; mixture-of-experts and recurrent layers are further cases of run_layer.
 * A pass computes the tokens of one session, or one token of each of several (batch.c): only rotation, cache and attention know the difference.
 * Runs on the engine's worker thread; allocates nothing; looks at the sessions' cancel flags several times a layer.
 */
#include <math.h>

#include "run/session.h"

typedef struct pass {
    hllm_engine *e;
    const hl_backend_vt *be;
    hl_stream *st;
    const hl_model *m;
    const hl_family *f;
    const hl_config *c;
    const hl_scratch *z;
    hl_part *parts;
    uint32_t n_parts, n;                               /* n: tokens of all parts */
} pass;

/* A micro-batch of a wide model takes long in one layer: parts of it are left out as soon as the answer is not wanted any more.  What they leave
 * behind is never read: hl_forward looks once more before it says that all went well.  One of several sessions ends at once and its token is
 * computed no further than the operators that all share. */
static bool cancelled(const pass *p)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        hllm_session *s = p->parts[i].s;
        if (!s) continue;
        if (!atomic_load_explicit(&s->cancel, memory_order_relaxed)) { left++; continue; }
        if (p->n_parts == 1) return true;
        pthread_mutex_lock(&s->lock);
        hl_session_end_cancelled(s);
        pthread_mutex_unlock(&s->lock);
        p->parts[i].s = NULL;                          /* from now on it may be freed */
    }
    return left == 0;
}

/* The activation that matrices read: x as it is, or as 8-bit blocks. */
static hl_act make_act(const pass *p, const float *x, uint32_t width, bool fine)
{
    hl_act a = { x, p->be->act_bytes(p->e->dev, width) ? p->z->act : NULL, fine, width, p->n };
    p->be->quantize(p->st, &a);
    return a;
}

static void norm(const pass *p, float *y, const float *x, const float *w, const float *b)
{
    p->be->norm(p->st, p->f->norm, y, x, w, b, p->c->norm_eps, p->n, p->c->n_embd);
}

/* q, k, v of the normed input `in`, rotated, appended to the cache, attended over, projected: into z.xn2. */
static void attention(const pass *p, uint32_t il, const float *in)
{
    const hl_layer *l = &p->m->layers[il];
    const hl_layer_weights *w = &p->e->layers[il];
    const hl_scratch *z = p->z;
    const hl_config *c = p->c;
    const uint32_t dk = c->head_dim_k, dv = c->head_dim_v;
    const size_t nq = (size_t)l->n_heads * dk, nk = (size_t)l->n_heads_kv * dk, nv = (size_t)l->n_heads_kv * dv;
    const float *cos_sin = z->cos_sin[p->e->rope_of_layer[il]];
    hl_attention att[HL_BATCH];
    uint32_t n_att = 0;

    hl_act a = make_act(p, in, c->n_embd, false);
    const hl_product qkv[] = { { &w->q, w->q_b, z->q, nq }, { &w->k, w->k_b, z->k, nk }, { &w->v, w->v_b, z->v, nv } };
    p->be->matmul(p->st, &a, qkv, 3);
    if (w->q_norm) p->be->norm(p->st, p->f->norm, z->q, z->q, w->q_norm, NULL, c->norm_eps, p->n * l->n_heads, dk);
    if (w->k_norm) p->be->norm(p->st, p->f->norm, z->k, z->k, w->k_norm, NULL, c->norm_eps, p->n * l->n_heads_kv, dk);
    if (p->f->rope != HL_ROPE_NONE) {
        p->be->rope(p->st, z->q, nq, p->n, l->n_heads, dk, c->n_rot, p->f->rope, cos_sin);
        p->be->rope(p->st, z->k, nk, p->n, l->n_heads_kv, dk, c->n_rot, p->f->rope, cos_sin);
    }
    if (cancelled(p)) return;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        const hl_part *t = &p->parts[i];
        if (!t->s) continue;
        const hl_kv_layer *kv = &t->s->kv[il];
        p->be->kv_put(p->st, kv, z->k + t->row * nk, nk, z->v + t->row * nv, nv, t->pos0, t->n);
        att[n_att++] = (hl_attention){ .q = z->q + t->row * nq, .out = z->att + (size_t)t->row * l->n_heads * dv, .kv = kv, .n_heads = l->n_heads, .n_tok = t->n,
                                       .pos0 = t->pos0, .window = l->window, .scale = c->attention_scale, .softcap = c->attention_softcap };
    }
    p->be->attention(p->st, att, n_att);
    if (cancelled(p)) return;
    a = make_act(p, z->att, l->n_heads * dv, false);
    p->be->matmul(p->st, &a, &(hl_product){ &w->out, w->out_b, z->xn2, c->n_embd }, 1);
}

/* The FFN of the normed input `in`: into `out` [n][n_embd].  A neuron is a row of gate and up and a column of down. */
static void feed_forward(const pass *p, uint32_t il, const float *in, float *out)
{
    const hl_layer *l = &p->m->layers[il];
    const hl_layer_weights *w = &p->e->layers[il];
    const hl_scratch *z = p->z;
    if (cancelled(p)) return;
    if (w->by_neurons) { hl_ffn_by_neurons(p->e, z, p->parts, p->n_parts, p->n, il, in, out); return; }
    hl_act a = make_act(p, in, p->c->n_embd, false);
    const hl_product gate_up[] = { { &w->up, w->up_b, z->up, l->n_ff }, { &w->gate, w->gate_b, z->gate, l->n_ff } };
    p->be->matmul(p->st, &a, gate_up, p->f->gated ? 2 : 1);
    if (cancelled(p)) return;
    if (p->f->up_act) p->be->ffn_act(p->st, p->c->act, z->up, l->n_ff, z->up, NULL, l->n_ff, p->n, l->n_ff);
    p->be->ffn_act(p->st, p->c->act, z->up, l->n_ff, p->f->gated ? z->gate : z->up, p->f->gated ? z->up : NULL, l->n_ff, p->n, l->n_ff);
    if (p->e->probe.fn) p->e->probe.fn(p->e->probe.arg, il, in, p->f->gated ? z->gate : NULL, z->up, p->n);
    a = make_act(p, z->up, l->n_ff, false);
    p->be->matmul(p->st, &a, &(hl_product){ &w->down, w->down_b, out, p->c->n_embd }, 1);
}

/* x += attention(norm(x)); x += ffn(norm(x)); with the family's further norms. */
static void sequential_block(const pass *p, uint32_t il)
{
    const hl_layer_weights *w = &p->e->layers[il];
    const hl_scratch *z = p->z;
    const size_t all = (size_t)p->n * p->c->n_embd;
    norm(p, z->xn, z->x, w->attn_norm, w->attn_norm_b);
    attention(p, il, z->xn);
    if (w->attn_post_norm) norm(p, z->xn2, z->xn2, w->attn_post_norm, NULL);
    p->be->add(p->st, z->x, z->xn2, all);
    norm(p, z->xn, z->x, w->ffn_norm, w->ffn_norm_b);
    feed_forward(p, il, z->xn, z->xn2);
    if (w->ffn_post_norm) norm(p, z->xn2, z->xn2, w->ffn_post_norm, NULL);
    p->be->add(p->st, z->x, z->xn2, all);
}

/* x += attention(norm(x)) + ffn(norm(x)): both read the layer's input (Falcon); with two norms the attention has its own. */
static void parallel_block(const pass *p, uint32_t il)
{
    const hl_layer_weights *w = &p->e->layers[il];
    const hl_scratch *z = p->z;
    const size_t all = (size_t)p->n * p->c->n_embd;
    norm(p, z->xn, z->x, w->attn_norm, w->attn_norm_b);
    if (w->attn_norm_2) {
        norm(p, z->hidden, z->x, w->attn_norm_2, w->attn_norm_2_b);
        attention(p, il, z->hidden);
    } else attention(p, il, z->xn);
    feed_forward(p, il, z->xn, z->hidden);
    p->be->add(p->st, z->x, z->xn2, all);
    p->be->add(p->st, z->x, z->hidden, all);
}

static void run_layer(const pass *p, uint32_t il)
{
    switch (p->m->layers[il].kind) {
    case HL_BLOCK_ATTENTION: (p->f->parallel ? parallel_block : sequential_block)(p, il); return;
    default: HL_ASSERT(!"a block kind without a function");
    }
}

/* cos and sin of every token's position, times the kind's magnitude. */
static hl_status rope_tables(const pass *p)
{
    hl_status rc = HLLM_OK;
    const uint32_t half = p->c->n_rot / 2;
    for (uint32_t r = 0; r < p->e->n_ropes; r++) {
        float *t = p->z->cos_sin_host;
        for (uint32_t k = 0; k < p->n_parts; k++) {
            const hl_part *part = &p->parts[k];
            const hl_rope_set *set = &part->s->ropes[r];
            for (uint32_t i = 0; i < part->n; i++)
                for (uint32_t j = 0; j < half; j++) {
                    double a = set->angle[j] * (part->pos0 + i), sine, cosine;
                    sincos(a, &sine, &cosine);
                    *t++ = (float)cosine * set->magnitude;
                    *t++ = (float)sine * set->magnitude;
                }
        }
        HL_TRY(p->be->write(p->st, p->z->cos_sin[r], p->z->cos_sin_host, (size_t)p->n * p->c->n_rot * sizeof(float)));
    }
done:
    return rc;
}

/* Learned positions: their rows are added to the embeddings. */
static void add_positions(const pass *p)
{
    if (!p->e->positions.data) return;
    for (uint32_t k = 0; k < p->n_parts; k++)
        for (uint32_t i = 0; i < p->parts[k].n; i++) {
            const int32_t row = (int32_t)(p->parts[k].pos0 + i + p->f->pos_offset);
            p->be->embed(p->st, p->z->xn, &p->e->positions, &row, 1, 1.0f);
            p->be->add(p->st, p->z->x + (size_t)(p->parts[k].row + i) * p->c->n_embd, p->z->xn, p->c->n_embd);
        }
}

hl_status hl_forward(hllm_engine *e, const hl_scratch *z, hl_part *parts, uint32_t n_parts, hl_error *err)
{
    return hl_forward_layers(e, z, parts, n_parts, 0, e->model->config.n_layers, err);
}

hl_status hl_forward_layers(hllm_engine *e, const hl_scratch *z, hl_part *parts, uint32_t n_parts, uint32_t il0, uint32_t il1, hl_error *err)
{
    hl_status rc = HLLM_OK;
    const hl_model *m = e->model;
    pass p = { e, e->be, e->stream, m, m->family, &m->config, z, parts, n_parts, 0 };
    for (uint32_t i = 0; i < n_parts; i++) { parts[i].row = p.n; p.n += parts[i].n; }
    HL_TRY(rope_tables(&p));
    if (il0 == 0) {
        for (uint32_t i = 0; i < n_parts; i++)
            p.be->embed(p.st, z->x + (size_t)parts[i].row * m->config.n_embd, &e->embed, parts[i].tokens, parts[i].n, m->family->embed_scaled ? sqrtf((float)m->config.n_embd) : 1.0f);
        add_positions(&p);
    }
    for (uint32_t il = il0; il < il1; il++) {
        run_layer(&p, il);
        if (cancelled(&p)) { rc = HLLM_E_CANCELLED; goto done; }
    }
    if (il1 == m->config.n_layers) norm(&p, z->hidden, z->x, e->out_norm, e->out_norm_b);
    HL_TRY(p.be->sync(p.st, err));
done:
    return rc;
}

hl_status hl_forward_head(hllm_engine *e, const hl_scratch *z, uint32_t row, uint32_t n, hl_error *err)
{
    const hl_config *c = &e->model->config;
    const pass p = { e, e->be, e->stream, e->model, e->model->family, c, z, NULL, 0, n };
    /* Of all 8-bit inputs the head's costs the most accuracy (measured: a third of the whole loss on SmolLM2) and least to refine. */
    hl_act a = make_act(&p, z->hidden + (size_t)row * c->n_embd, c->n_embd, true);
    p.be->matmul(p.st, &a, &(hl_product){ &e->head, e->head_b, z->logits, c->n_vocab }, 1);
    if (c->final_softcap > 0) p.be->softcap(p.st, z->logits, (size_t)n * c->n_vocab, c->final_softcap);
    return p.be->sync(p.st, err);
}
