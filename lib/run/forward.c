/* forward.c: the transformer, top to bottom, for every family.
 *
 * What differs between families is data: hl_family (norm, activation, rotation, order of blocks) and which weights are there.  A layer's
 * kind chooses its function: attention + dense FFN today; mixture-of-experts and recurrent layers are further cases of run_layer.
 * Runs on the engine's worker thread; allocates nothing; looks at the session's cancel flag several times a layer.
 */
#include <math.h>

#include "run/session.h"

typedef struct pass {
    hllm_session *s;
    hllm_engine *e;
    const hl_backend_vt *be;
    hl_stream *st;
    const hl_model *m;
    const hl_family *f;
    const hl_config *c;
    uint32_t n, pos0;
} pass;

/* A micro-batch of a wide model takes long in one layer: parts of it are left out as soon as the answer is not wanted any more.  What they leave
 * behind is never read: hl_forward looks once more before it says that all went well. */
static bool cancelled(const pass *p) { return atomic_load_explicit(&p->s->cancel, memory_order_relaxed); }

/* The activation that matrices read: x as it is, or as 8-bit blocks. */
static hl_act make_act(const pass *p, const float *x, uint32_t width, bool fine)
{
    hl_act a = { x, p->be->act_bytes(p->e->dev, width) ? p->s->z.act : NULL, fine, width, p->n };
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
    hl_scratch *z = &p->s->z;
    const hl_config *c = p->c;
    const uint32_t dk = c->head_dim_k, dv = c->head_dim_v;
    const size_t nq = (size_t)l->n_heads * dk, nk = (size_t)l->n_heads_kv * dk, nv = (size_t)l->n_heads_kv * dv;
    const float *cos_sin = p->s->ropes[p->s->rope_of_layer[il]].cos_sin;

    hl_act a = make_act(p, in, c->n_embd, false);
    const hl_product qkv[] = { { &w->q, w->q_b, z->q, nq }, { &w->k, w->k_b, z->k, nk }, { &w->v, w->v_b, z->v, nv } };
    p->be->matmul(p->st, &a, qkv, 3);
    if (w->q_norm) p->be->norm(p->st, p->f->norm, z->q, z->q, w->q_norm, NULL, c->norm_eps, p->n * l->n_heads, dk);
    if (w->k_norm) p->be->norm(p->st, p->f->norm, z->k, z->k, w->k_norm, NULL, c->norm_eps, p->n * l->n_heads_kv, dk);
    p->be->rope(p->st, z->q, nq, p->n, l->n_heads, dk, c->n_rot, p->f->rope, cos_sin);
    p->be->rope(p->st, z->k, nk, p->n, l->n_heads_kv, dk, c->n_rot, p->f->rope, cos_sin);
    if (cancelled(p)) return;
    p->be->kv_put(p->st, &p->s->kv[il], z->k, nk, z->v, nv, p->pos0, p->n);
    p->be->attention(p->st, &(hl_attention){ .q = z->q, .out = z->att, .kv = &p->s->kv[il], .n_heads = l->n_heads, .n_tok = p->n, .pos0 = p->pos0,
                                             .window = l->window, .scale = c->attention_scale, .softcap = c->attention_softcap });
    if (cancelled(p)) return;
    a = make_act(p, z->att, l->n_heads * dv, false);
    p->be->matmul(p->st, &a, &(hl_product){ &w->out, w->out_b, z->xn2, c->n_embd }, 1);
}

/* The FFN of the normed input `in`: into `out` [n][n_embd].  A neuron is a row of gate and up and a column of down. */
static void feed_forward(const pass *p, uint32_t il, const float *in, float *out)
{
    const hl_layer *l = &p->m->layers[il];
    const hl_layer_weights *w = &p->e->layers[il];
    hl_scratch *z = &p->s->z;
    if (cancelled(p)) return;
    hl_act a = make_act(p, in, p->c->n_embd, false);
    const hl_product gate_up[] = { { &w->up, w->up_b, z->up, l->n_ff }, { &w->gate, w->gate_b, z->gate, l->n_ff } };
    p->be->matmul(p->st, &a, gate_up, p->f->gated ? 2 : 1);
    if (cancelled(p)) return;
    p->be->ffn_act(p->st, p->f->act, z->up, l->n_ff, p->f->gated ? z->gate : z->up, p->f->gated ? z->up : NULL, l->n_ff, p->n, l->n_ff);
    a = make_act(p, z->up, l->n_ff, false);
    p->be->matmul(p->st, &a, &(hl_product){ &w->down, w->down_b, out, p->c->n_embd }, 1);
}

/* x += attention(norm(x)); x += ffn(norm(x)); with the family's further norms. */
static void sequential_block(const pass *p, uint32_t il)
{
    const hl_layer_weights *w = &p->e->layers[il];
    hl_scratch *z = &p->s->z;
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
    hl_scratch *z = &p->s->z;
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

/* cos and sin of every position of this micro-batch, times the kind's magnitude. */
static hl_status rope_tables(const pass *p)
{
    hl_status rc = HLLM_OK;
    const uint32_t half = p->c->n_rot / 2;
    for (uint32_t r = 0; r < p->s->n_ropes; r++) {
        hl_rope_set *set = &p->s->ropes[r];
        float *t = p->s->z.cos_sin_host;
        for (uint32_t i = 0; i < p->n; i++)
            for (uint32_t j = 0; j < half; j++) {
                double a = set->angle[j] * (p->pos0 + i), sine, cosine;
                sincos(a, &sine, &cosine);
                *t++ = (float)cosine * set->magnitude;
                *t++ = (float)sine * set->magnitude;
            }
        HL_TRY(p->be->write(p->st, set->cos_sin, p->s->z.cos_sin_host, (size_t)p->n * p->c->n_rot * sizeof(float)));
    }
done:
    return rc;
}

hl_status hl_forward(hllm_session *s, const int32_t *tokens, uint32_t n, uint32_t pos0)
{
    hl_status rc = HLLM_OK;
    hllm_engine *e = s->engine;
    const hl_model *m = e->model;
    const pass p = { s, e, e->be, e->stream, m, m->family, &m->config, n, pos0 };
    HL_TRY(rope_tables(&p));
    p.be->embed(p.st, s->z.x, &e->embed, tokens, n, m->family->embed_scaled ? sqrtf((float)m->config.n_embd) : 1.0f);
    for (uint32_t il = 0; il < m->config.n_layers; il++) {
        run_layer(&p, il);
        if (cancelled(&p)) { rc = HLLM_E_CANCELLED; goto done; }
    }
    norm(&p, s->z.hidden, s->z.x, e->out_norm, e->out_norm_b);
    HL_TRY(p.be->sync(p.st, &s->err));
done:
    return rc;
}

void hl_forward_head(hllm_session *s, uint32_t row, uint32_t n)
{
    hllm_engine *e = s->engine;
    const hl_config *c = &e->model->config;
    const pass p = { s, e, e->be, e->stream, e->model, e->model->family, c, n, 0 };
    /* Of all 8-bit inputs the head's costs the most accuracy (measured: a third of the whole loss on SmolLM2) and least to refine. */
    hl_act a = make_act(&p, s->z.hidden + (size_t)row * c->n_embd, c->n_embd, true);
    p.be->matmul(p.st, &a, &(hl_product){ &e->head, e->head_b, s->z.logits, c->n_vocab }, 1);
    if (c->final_softcap > 0) p.be->softcap(p.st, s->z.logits, (size_t)n * c->n_vocab, c->final_softcap);
}
