/* state.c: a session to and from a file, and a copy of a session.
 *
 * File, little-endian:  magic "HLLMSESS" | u32 version | u32 header bytes | header fields | u64 hash of all before |
 * a zstd frame (content checksum on) of: tokens, then per layer K and V rows of the positions held, head by head |
 * u64 hash of the frame's bytes, chained over pieces of IO_BYTES (a few bits of a frame's head may be wrong without zstd's objecting).
 * Saving: a new file that takes the old one's place when it is whole (base/newfile.c).
 * Loading reads the file twice: first all is unpacked and checked and nothing kept, then the rows go to their places.  No second copy of
 * the cache is ever needed; the session stays as it was unless the file changes between the two.
 * What saving and loading allocate (no plan counts it) is compared with what there is before they begin.
 */
#define ZSTD_STATIC_LINKING_ONLY                      /* for allocators of one's own */
#include "run/machine.h"
#include "run/session.h"

#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

/* WINDOW_LOG: KV rows hardly repeat, a longer window costs memory only.  SLACK: block heads and the allocator's rounding. */
enum { VERSION = 2, ZSTD_LEVEL = 1, WINDOW_LOG = 17, MAX_WINDOW_LOG = 23, IO_BYTES = 1 << 18, OUT_BYTES = 1 << 16, SLACK = 1 << 16 };

typedef struct state_header {
    char magic[8];
    uint32_t version, bytes;
    uint64_t model_hash;
    uint32_t kv_dtype, n_layers, n_tokens, n_kv;
    uint32_t held_from, n_embd;
    uint64_t payload_bytes;                            /* unpacked */
    uint32_t long_rope;                                /* K was turned with the rope factors for long contexts */
    uint32_t reserved;
    uint64_t hash;                                     /* of the fields above */
} state_header;
_Static_assert(sizeof(state_header) == 72, "file format");

static const char magic[8] = { 'H', 'L', 'L', 'M', 'S', 'E', 'S', 'S' };

static uint64_t header_hash(const state_header *h) { return hl_hash(h, offsetof(state_header, hash), 0x5e55104e); }

/* Where the chain over the frame's pieces starts: bound to this header. */
static uint64_t chain_start(const state_header *h) { return h->hash ^ 0xf7a3e; }

/* The lowest position of a layer's cache that is saved: windowed layers have lost what is before held_from. */
static uint32_t first_held(const hllm_session *s, uint32_t il, uint32_t held_from) { return s->engine->model->layers[il].window ? held_from : 0; }

static uint64_t payload_bytes(const hllm_session *s, uint32_t n_tokens, uint32_t n_kv, uint32_t held_from)
{
    uint64_t n = (uint64_t)n_tokens * sizeof(int32_t);
    for (uint32_t il = 0; il < s->engine->model->config.n_layers; il++) {
        const hl_kv_layer *kv = &s->kv[il];
        n += (uint64_t)(n_kv - first_held(s, il, held_from)) * kv->n_heads * (hl_kv_row_bytes(kv->dtype, kv->dim_k) + hl_kv_row_bytes(kv->dtype, kv->dim_v));
    }
    return n;
}

/* Visits all rows of one layer's K or V, in file order: fn makes the file's of the cache's, or with `put` the other way round. */
typedef hl_status row_fn(void *arg, void *row, size_t bytes);

static hl_status each_row(hllm_session *s, uint32_t il, bool is_v, uint32_t from, uint32_t to, bool put, row_fn *fn, void *arg)
{
    const hl_kv_layer *kv = &s->kv[il];
    const hl_backend_vt *be = s->engine->be;
    const size_t bytes = hl_kv_row_bytes(kv->dtype, is_v ? kv->dim_v : kv->dim_k);
    void *row = is_v ? s->z.att : s->z.q;              /* free between passes, and no narrower than the head's row */
    for (uint32_t h = 0; h < kv->n_heads; h++)
        for (uint32_t p = from; p < to; p++) {
            if (!put) be->kv_row(s->engine->stream, kv, is_v, h, p % kv->n_slots, row, false);
            hl_status rc = fn(arg, row, bytes);
            if (rc != HLLM_OK) return rc;
            if (put) be->kv_row(s->engine->stream, kv, is_v, h, p % kv->n_slots, row, true);
        }
    return HLLM_OK;
}

static hl_status each_payload(hllm_session *s, uint32_t n_kv, uint32_t held_from, bool put, row_fn *fn, void *arg)
{
    for (uint32_t il = 0; il < s->engine->model->config.n_layers; il++)
        for (int v = 0; v < 2; v++) {
            hl_status rc = each_row(s, il, v, first_held(s, il, held_from), n_kv, put, fn, arg);
            if (rc != HLLM_OK) return rc;
        }
    return HLLM_OK;
}

/* zstd through the host's allocator. */
static void *z_alloc(void *mem, size_t n) { return hl_alloc(mem, n); }
static void z_free(void *mem, void *p) { hl_free(mem, p); }

/* ---- save ---- */

typedef struct writer {
    hllm_session *s;
    const char *path;
    hl_newfile file;
    ZSTD_CCtx *z;
    char *in, *out; size_t n_in, n_out;
    uint64_t chain;
} writer;

static bool z_no_memory(size_t code) { return ZSTD_getErrorCode(code) == ZSTD_error_memory_allocation; }

static hl_status flush(writer *w)                      /* all pieces but the last have IO_BYTES */
{
    w->chain = hl_hash(w->out, w->n_out, w->chain);
    hl_status rc = hl_newfile_write(&w->file, w->out, w->n_out);
    w->n_out = 0;
    return rc;
}

static hl_status pack(writer *w, const void *data, size_t n, ZSTD_EndDirective how)
{
    ZSTD_inBuffer in = { data, n, 0 };
    for (;;) {
        ZSTD_outBuffer out = { w->out, IO_BYTES, w->n_out };
        size_t left = ZSTD_compressStream2(w->z, &out, &in, how);
        if (ZSTD_isError(left)) {
            if (z_no_memory(left)) return hl_fail(&w->s->err, HLLM_E_NOMEM, "%s: no memory to compress with", w->path);
            return hl_fail(&w->s->err, HLLM_E_INTERNAL, "%s: compression failed: %s", w->path, ZSTD_getErrorName(left));
        }
        const bool end = how == ZSTD_e_continue ? in.pos == in.size : left == 0;
        w->n_out = out.pos;
        if (w->n_out == IO_BYTES || (end && how == ZSTD_e_end)) {
            hl_status rc = flush(w);
            if (rc != HLLM_OK) return rc;
        }
        if (end) return HLLM_OK;
    }
}

static hl_status put_row(void *arg, void *row, size_t n)            /* gathers small rows */
{
    writer *w = arg;
    hl_status rc = HLLM_OK;
    if (w->n_in + n > IO_BYTES) { rc = pack(w, w->in, w->n_in, ZSTD_e_continue); w->n_in = 0; }
    if (rc != HLLM_OK || n > IO_BYTES) return rc != HLLM_OK ? rc : pack(w, row, n, ZSTD_e_continue);
    memcpy(w->in + w->n_in, row, n);
    w->n_in += n;
    return HLLM_OK;
}

/* What writing a file of such a payload allocates. */
static uint64_t save_bytes(uint64_t payload)
{
    ZSTD_compressionParameters p = ZSTD_getCParams(ZSTD_LEVEL, payload, 0);
    p.windowLog = WINDOW_LOG;
    return 2ull * IO_BYTES + ZSTD_estimateCStreamSize_usingCParams(p) + SLACK;
}

static hl_status write_file(writer *w)
{
    hl_status rc = HLLM_OK;
    hllm_session *s = w->s;
    hl_mem *mem = s->engine->env->mem;
    state_header h = { .version = VERSION, .bytes = sizeof h, .kv_dtype = s->kv_dtype,
                       .long_rope = hl_session_long_rope(s),
                       .n_layers = s->engine->model->config.n_layers, .n_tokens = s->n_tokens, .n_kv = s->n_kv, .held_from = HL_MIN(s->held_from, s->n_kv),
                       .n_embd = s->engine->model->config.n_embd };
    memcpy(h.magic, magic, sizeof magic);
    HL_TRY(hl_model_fingerprint(s->engine->model, &s->err, &h.model_hash));
    h.payload_bytes = payload_bytes(s, h.n_tokens, h.n_kv, h.held_from);
    h.hash = header_hash(&h);
    w->chain = chain_start(&h);
    HL_TRY(hl_machine_check(&s->err, w->path, "saving", save_bytes(h.payload_bytes)));
    HL_NEED(w->in = hl_alloc(mem, IO_BYTES));
    HL_NEED(w->out = hl_alloc(mem, IO_BYTES));
    HL_NEED(w->z = ZSTD_createCCtx_advanced((ZSTD_customMem){ z_alloc, z_free, mem }));
    ZSTD_CCtx_setParameter(w->z, ZSTD_c_compressionLevel, ZSTD_LEVEL);
    ZSTD_CCtx_setParameter(w->z, ZSTD_c_windowLog, WINDOW_LOG);
    ZSTD_CCtx_setParameter(w->z, ZSTD_c_checksumFlag, 1);
    ZSTD_CCtx_setPledgedSrcSize(w->z, h.payload_bytes);
    HL_TRY(hl_newfile_write(&w->file, &h, sizeof h));
    HL_TRY(put_row(w, s->tokens, (size_t)h.n_tokens * sizeof(int32_t)));
    HL_TRY(each_payload(s, h.n_kv, h.held_from, false, put_row, w));
    HL_TRY(pack(w, w->in, w->n_in, ZSTD_e_end));
    HL_TRY(hl_newfile_write(&w->file, &w->chain, sizeof w->chain));
    rc = hl_newfile_sync(&w->file);
done:
    ZSTD_freeCCtx(w->z);
    hl_free(mem, w->in);
    hl_free(mem, w->out);
    return rc;
}

hl_status hl_session_save(hllm_session *s, const char *path)
{
    hl_status rc = HLLM_OK;
    writer w = { .s = s, .path = path };
    HL_TRY(hl_newfile_open(s->engine->env, &s->err, path, &w.file));
    HL_TRY(write_file(&w));
    rc = hl_newfile_commit(&w.file);
done:
    hl_newfile_close(&w.file);
    return rc;
}

/* ---- load ---- */

static hl_status check_header(hllm_session *s, const hl_file *f, const state_header *h)
{
    hl_error *err = &s->err;
    const hl_model *m = s->engine->model;
    if (memcmp(h->magic, magic, sizeof magic) != 0) return hl_fail(err, HLLM_E_FORMAT, "%s: not a session file", f->path);
    if (h->version != VERSION || h->bytes != sizeof *h) return hl_fail(err, HLLM_E_VERSION, "%s: session file version %u, known is %u", f->path, h->version, (uint32_t)VERSION);
    if (h->hash != header_hash(h)) return hl_fail(err, HLLM_E_CORRUPT, "%s: the header's checksum is wrong", f->path);
    uint64_t model_hash;
    hl_status rc = hl_model_fingerprint(m, err, &model_hash);
    if (rc != HLLM_OK) return rc;
    if (h->model_hash != model_hash || h->n_layers != m->config.n_layers || h->n_embd != m->config.n_embd)
        return hl_fail(err, HLLM_E_MISMATCH, "%s: saved with another model than %s", f->path, hl_gguf_path(m->gguf));
    if (h->kv_dtype != s->kv_dtype)
        return hl_fail(err, HLLM_E_MISMATCH, "%s: its KV cache is %s, this session's is %s", f->path, hl_dtype(h->kv_dtype) ? hl_dtype(h->kv_dtype)->name : "?", hl_dtype(s->kv_dtype)->name);
    if (h->n_kv > h->n_tokens || h->held_from > h->n_kv) return hl_fail(err, HLLM_E_CORRUPT, "%s: its counts do not add up", f->path);
    if (h->n_tokens > s->sizes.n_ctx) return hl_fail(err, HLLM_E_CONTEXT_FULL, "%s: holds %u tokens, this session's context is %u", f->path, h->n_tokens, s->sizes.n_ctx);
    if (h->n_kv && h->long_rope != hl_session_long_rope(s))
        return hl_fail(err, HLLM_E_MISMATCH, "%s: saved with the rope factors of a %s context, this session's context of %u takes those of a %s one: the border is %u", f->path,
                       h->long_rope ? "long" : "short", s->sizes.n_ctx, h->long_rope ? "short" : "long", m->config.n_ctx_original);
    const uint32_t window = hl_session_window(s);      /* its next token looks back to n_kv - window + 1 */
    if (!window && h->held_from) return hl_fail(err, HLLM_E_CORRUPT, "%s: begins at position %u, but this model has no sliding windows", f->path, h->held_from);
    if (window && h->held_from && h->n_kv - h->held_from < window - 1) return hl_fail(err, HLLM_E_CORRUPT, "%s: holds positions %u to %u, a window of %u needs more", f->path, h->held_from, h->n_kv, window);
    if (h->payload_bytes != payload_bytes(s, h->n_tokens, h->n_kv, h->held_from)) return hl_fail(err, HLLM_E_CORRUPT, "%s: its length does not fit its counts", f->path);
    return HLLM_OK;
}

/* Reads the payload from front to back, as often as it is asked to. */
typedef struct reader {
    hllm_session *s;
    const hl_file *f;
    const state_header *h;
    ZSTD_DCtx *z;
    char *in, *out;
    ZSTD_inBuffer part;                                /* of in */
    size_t out_at, out_n;
    bool frame_ends, pending;                          /* pending: zstd may hold more than fitted in out */
    uint64_t at, end;                                  /* in the file: read so far; where the frame has to end */
    uint64_t unpacked, chain;
} reader;

static void reader_start(reader *r)
{
    ZSTD_DCtx_reset(r->z, ZSTD_reset_session_only);
    r->part = (ZSTD_inBuffer){ r->in, 0, 0 };
    r->out_at = r->out_n = 0;
    r->frame_ends = r->pending = false;
    r->at = sizeof *r->h;
    r->end = r->f->bytes - sizeof(uint64_t);
    r->unpacked = 0;
    r->chain = chain_start(r->h);
}

static void reader_free(reader *r)
{
    hl_mem *mem = r->s->engine->env->mem;
    ZSTD_freeDCtx(r->z);
    hl_free(mem, r->in);
    hl_free(mem, r->out);
}

static hl_status too_short(const reader *r)
{
    return hl_fail(&r->s->err, HLLM_E_TRUNCATED, "%s: ends too early, after %llu bytes", r->f->path, (unsigned long long)r->f->bytes);
}

/* All memory that loading takes, checked first: also that of a frame whose window is larger than we write. */
static hl_status reader_new(reader *r)
{
    hl_status rc = HLLM_OK;
    const hl_env *env = r->s->engine->env;
    hl_error *err = &r->s->err;
    char head[ZSTD_FRAMEHEADERSIZE_MAX];
    ZSTD_frameHeader info;
    const size_t n = (size_t)HL_MIN(r->f->bytes - sizeof(uint64_t) - sizeof *r->h, (uint64_t)sizeof head);
    HL_TRY(hl_file_read(env, err, r->f, sizeof *r->h, head, n));
    const size_t bad = ZSTD_getFrameHeader(&info, head, n);
    if (ZSTD_isError(bad)) { rc = hl_fail(err, HLLM_E_CORRUPT, "%s: damaged: %s", r->f->path, ZSTD_getErrorName(bad)); goto done; }
    if (bad) { rc = too_short(r); goto done; }
    if (info.windowSize > 1ull << MAX_WINDOW_LOG) {
        rc = hl_fail(err, HLLM_E_CORRUPT, "%s: damaged: its window has %llu bytes, the limit is %u", r->f->path, info.windowSize, 1u << MAX_WINDOW_LOG);
        goto done;
    }
    HL_TRY(hl_machine_check(err, r->f->path, "unpacking", ZSTD_estimateDStreamSize((size_t)info.windowSize) + IO_BYTES + OUT_BYTES + SLACK));
    HL_NEED(r->in = hl_alloc(env->mem, IO_BYTES));
    HL_NEED(r->out = hl_alloc(env->mem, OUT_BYTES));
    HL_NEED(r->z = ZSTD_createDCtx_advanced((ZSTD_customMem){ z_alloc, z_free, env->mem }));
    ZSTD_DCtx_setParameter(r->z, ZSTD_d_windowLogMax, MAX_WINDOW_LOG);
    reader_start(r);
done:
    return rc;
}

/* Makes out hold something, unless the frame ends. */
static hl_status refill(reader *r)
{
    hl_status rc = HLLM_OK;
    hl_error *err = &r->s->err;
    r->out_at = r->out_n = 0;
    while (!r->frame_ends && !r->out_n) {
        if (r->part.pos == r->part.size && !r->pending) {
            if (r->at == r->end) { rc = too_short(r); goto done; }
            r->part = (ZSTD_inBuffer){ r->in, (size_t)HL_MIN(r->end - r->at, (uint64_t)IO_BYTES), 0 };
            HL_TRY(hl_file_read(r->s->engine->env, err, r->f, r->at, r->in, r->part.size));
            r->chain = hl_hash(r->in, r->part.size, r->chain);
            r->at += r->part.size;
        }
        ZSTD_outBuffer out = { r->out, OUT_BYTES, 0 };
        const size_t left = ZSTD_decompressStream(r->z, &out, &r->part);
        if (ZSTD_isError(left) && z_no_memory(left)) { rc = hl_fail(err, HLLM_E_NOMEM, "%s: no memory to unpack it with", r->f->path); goto done; }
        if (ZSTD_isError(left)) { rc = hl_fail(err, HLLM_E_CORRUPT, "%s: damaged: %s", r->f->path, ZSTD_getErrorName(left)); goto done; }
        r->frame_ends = left == 0;
        r->pending = out.pos == OUT_BYTES;
        r->out_n = out.pos;
    }
done:
    return rc;
}

/* The payload's next n bytes; to NULL: passed over. */
static hl_status take(reader *r, void *to, uint64_t n)
{
    char *p = to;
    while (n) {
        if (r->out_at == r->out_n) {
            hl_status rc = refill(r);
            if (rc != HLLM_OK) return rc;
            if (!r->out_n)
                return hl_fail(&r->s->err, HLLM_E_CORRUPT, "%s: unpacks to %llu bytes where its header says %llu", r->f->path, (unsigned long long)r->unpacked,
                               (unsigned long long)r->h->payload_bytes);
        }
        const size_t now = (size_t)HL_MIN(n, (uint64_t)(r->out_n - r->out_at));
        if (p) { memcpy(p, r->out + r->out_at, now); p += now; }
        r->out_at += now;
        r->unpacked += now;
        n -= now;
    }
    return HLLM_OK;
}

static hl_status take_row(void *arg, void *row, size_t n) { return take(arg, row, n); }

/* Nothing may be left, and the checksum right. */
static hl_status take_end(reader *r)
{
    hl_status rc = HLLM_OK;
    hl_error *err = &r->s->err;
    uint64_t stored;
    if (r->out_at == r->out_n) HL_TRY(refill(r));
    const uint64_t behind = r->end - r->at + (r->part.size - r->part.pos);
    if (r->out_at != r->out_n) rc = hl_fail(err, HLLM_E_CORRUPT, "%s: holds more than its header says", r->f->path);
    else if (behind) rc = hl_fail(err, HLLM_E_CORRUPT, "%s: %llu bytes follow its end", r->f->path, (unsigned long long)behind);
    if (rc != HLLM_OK) goto done;
    HL_TRY(hl_file_read(r->s->engine->env, err, r->f, r->end, &stored, sizeof stored));
    if (stored != r->chain) rc = hl_fail(err, HLLM_E_CORRUPT, "%s: its checksum is wrong", r->f->path);
done:
    return rc;
}

/* All of the payload: checked and, with `place`, put into the session's arrays, which nobody may look at then (it counts as empty). */
static hl_status read_through(reader *r, bool place)
{
    hl_status rc = HLLM_OK;
    hllm_session *s = r->s;
    const uint32_t n_vocab = s->engine->model->config.n_vocab, n = r->h->n_tokens;
    int32_t some[256];
    for (uint32_t i = 0, k; i < n; i += k) {
        k = HL_MIN(n - i, (uint32_t)HL_COUNT(some));
        HL_TRY(take(r, some, k * sizeof *some));
        for (uint32_t j = 0; j < k; j++)
            if (some[j] < 0 || (uint32_t)some[j] >= n_vocab) {
                rc = hl_fail(&s->err, HLLM_E_CORRUPT, "%s: token %u is %d, the vocabulary has %u", r->f->path, i + j, some[j], n_vocab);
                goto done;
            }
        if (place) memcpy(s->tokens + i, some, k * sizeof *some);
    }
    if (place) HL_TRY(each_payload(s, r->h->n_kv, r->h->held_from, true, take_row, r));
    else HL_TRY(take(r, NULL, r->h->payload_bytes - (uint64_t)n * sizeof(int32_t)));
    rc = take_end(r);
done:
    return rc;
}

/* What a session holds; the KV rows are already in place.  lock held or session not shared yet. */
static void set_contents(hllm_session *s, uint32_t n_tokens, uint32_t n_kv, uint32_t held_from)
{
    s->n_tokens = n_tokens;
    s->n_kv = s->n_written = n_kv;
    s->held_from = held_from;
    if (s->sizes.n_slots_window && n_kv > s->sizes.n_slots_window) s->held_from = HL_MAX(held_from, n_kv - s->sizes.n_slots_window);
    s->n_hidden = s->n_logits = 0;
    s->run = HLLM_RUN_IDLE;                            /* what an earlier generation left is not of this conversation */
    s->finish = HLLM_FINISH_NONE;
    s->n_prompt = s->n_reused = s->n_generated = s->n_records = s->text_bytes = 0;
    hl_outring_start(&s->out, NULL, 0);
}

static void become(hllm_session *s, uint32_t n_tokens, uint32_t n_kv, uint32_t held_from)
{
    pthread_mutex_lock(&s->lock);
    set_contents(s, n_tokens, n_kv, held_from);
    pthread_mutex_unlock(&s->lock);
}

hl_status hl_session_load(hllm_session *s, const char *path)
{
    hl_status rc = HLLM_OK;
    const hl_env *env = s->engine->env;
    hl_file f = { 0 };
    state_header h;
    reader r = { .s = s, .f = &f, .h = &h };
    HL_TRY(hl_file_open(env, &s->err, path, &f));
    if (f.bytes < sizeof h + sizeof(uint64_t)) { rc = hl_fail(&s->err, HLLM_E_TRUNCATED, "%s: %llu bytes are too few for a session file", path, (unsigned long long)f.bytes); goto done; }
    HL_TRY(hl_file_read(env, &s->err, &f, 0, &h, sizeof h));
    HL_TRY(check_header(s, &f, &h));
    HL_TRY(reader_new(&r));
    HL_TRY(read_through(&r, false));                   /* until here the session is as it was */
    const uint64_t chain = r.chain;
    reader_start(&r);
    become(s, 0, 0, 0);
    rc = read_through(&r, true);
    if (rc == HLLM_OK && r.chain != chain) rc = hl_fail(&s->err, HLLM_E_CORRUPT, "%s: is another file than a moment ago", path);
    if (rc != HLLM_OK) {
        hl_error_settle(&s->err, rc);
        hl_fail_prefix(&s->err, rc, "the file changed while it was read, and the session is now empty");
        goto done;
    }
    become(s, h.n_tokens, h.n_kv, h.held_from);
done:
    reader_free(&r);
    hl_file_close(env, &f);
    return rc;
}

/* ---- fork ---- */

hl_status hl_session_fork(hllm_session *s, hllm_session **out)
{
    hllm_session *t = NULL;
    const hllm_session_options opt = { sizeof opt, s->sizes.n_ctx, s->kv_option, s->sizes.micro_batch, NULL };
    hl_status rc = hl_session_new(s->engine, &opt, &t);
    *out = NULL;
    if (rc != HLLM_OK) {
        char text[1024];
        hl_error_settle(&s->engine->err, rc);
        hl_error_copy(&s->engine->err, text, sizeof text);
        return hl_fail(&s->err, rc, "%s", text);
    }
    memcpy(t->tokens, s->tokens, (size_t)s->n_tokens * sizeof *t->tokens);
    for (uint32_t il = 0; il < s->engine->model->config.n_layers; il++) {
        const hl_kv_layer *a = &s->kv[il], *b = &t->kv[il];
        const size_t kb = hl_kv_row_bytes(a->dtype, a->dim_k), vb = hl_kv_row_bytes(a->dtype, a->dim_v);
        const uint32_t n = HL_MIN((uint32_t)hl_align_up(s->n_written, HL_KV_SLOTS), a->n_slots);     /* slots ever written, and whole vectors of them */
        for (uint32_t h = 0; h < a->n_heads; h++) {
            memcpy((char *)b->k + (size_t)h * b->n_slots * kb, (const char *)a->k + (size_t)h * a->n_slots * kb, n * kb);
            memcpy((char *)b->v + (size_t)h * b->n_slots * vb, (const char *)a->v + (size_t)h * a->n_slots * vb, n * vb);
        }
    }
    set_contents(t, s->n_tokens, s->n_kv, s->held_from);
    t->n_written = s->n_written;
    *out = t;
    return HLLM_OK;
}
