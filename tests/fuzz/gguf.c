/* Fuzz target: a GGUF container.  The input is opened as a file (a memory file, so that the whole road is taken), and what was
 * opened is used: every key read as every kind, every name looked up, every tensor read and dequantised.
 *
 * Besides crashes it finds: memory above 4 x file + 16 MiB, blocks not given back, and a parser that answers otherwise when it
 * gets the file in parts than when it gets it whole.
 *
 * The mutator knows the container's fields: half of its changes put a telling number into a length, count, type, dimension or
 * offset, or remove, double or swap whole entries, where byte mutations would not get past the first length. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/gguf_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t max) __attribute__((weak));

#define DEMAND(x) do { if (!(x)) __builtin_trap(); } while (0)

/* ---- the target ---- */

static volatile uint64_t sink;

static void use_key(const hl_gguf *g, const hl_gguf_key *k)
{
    int64_t x;
    double d;
    bool b;
    const char *s;
    size_t n;
    DEMAND(hl_gguf_find_key(g, k->name) == k);
    sink += (uint64_t)strlen(hl_gguf_type_name(k->type));
    for (uint64_t i = 0; i <= k->n; i++) {             /* one too many: refused */
        int kinds = (hl_gguf_int(k, i, &x) == HLLM_OK) + (hl_gguf_float(k, i, &d) == HLLM_OK) + (hl_gguf_bool(k, i, &b) == HLLM_OK);
        if (hl_gguf_string(k, i, &s, &n) == HLLM_OK) {
            kinds++;
            for (size_t j = 0; j < n; j++) sink += (unsigned char)s[j];
        }
        DEMAND(i < k->n ? kinds <= 1 : kinds == 0);
        sink += (uint64_t)x + (uint64_t)b;
    }
}

static void use_tensor(const hl_env *env, hl_error *err, const hl_gguf *g, const hl_gguf_tensor *t, uint32_t flags)
{
    static uint8_t raw[4096];
    static float values[4096];
    const hl_dtype_info *info = hl_dtype(t->dtype);
    uint64_t n = 1;
    DEMAND(hl_gguf_find_tensor(g, t->name) == t && info && t->n_dims >= 1 && t->n_dims <= 4 && t->shard == 0);
    for (int i = 0; i < 4; i++) n *= t->dims[i];
    DEMAND(n == t->n && n % info->block == 0 && t->bytes == n / info->block * info->bytes);
    if (flags & HLLM_MODEL_VOCAB_ONLY) return;
    DEMAND(t->bytes <= g->shards[0].bytes && t->at <= g->shards[0].bytes - t->bytes);
    uint64_t blocks = HL_MIN(t->n / info->block, HL_MIN(sizeof raw / info->bytes, HL_COUNT(values) / info->block));
    for (int end = 0; end < 2; end++) {                /* the first blocks and the last ones */
        uint64_t at = end ? t->at + t->bytes - blocks * info->bytes : t->at;
        DEMAND(hl_file_read(env, err, &g->shards[0], at, raw, (size_t)blocks * info->bytes) == HLLM_OK);
        hl_dequantize(t->dtype, raw, values, (size_t)blocks * info->block);
        sink += values[0] > 0;
    }
}

/* A part of the file: the same answer as from all of it, or that more is needed. */
static void in_parts(hl_mem *mem, const uint8_t *data, size_t n, uint32_t flags)
{
    hl_gguf_header h;
    hl_status want = hl_gguf_parse(mem, NULL, "x", data, n, n, flags, &h);
    hl_gguf_header_free(mem, &h);
    size_t have = n ? (size_t)data[n - 1] * n / 256 : 0;
    uint8_t *part = hl_alloc(mem, have);               /* a block of its own, so that reading beyond it shows */
    DEMAND(part != NULL);
    memcpy(part, data, have);
    hl_status rc = hl_gguf_parse(mem, NULL, "x", part, have, n, flags, &h);
    if (rc == HLLM_E_TRUNCATED && h.need > have) DEMAND(h.need <= n);
    else DEMAND(rc == want);
    hl_gguf_header_free(mem, &h);
    hl_free(mem, part);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int fd = -1;
    static hl_error err;
    hl_env env = { 0 };
    hl_gguf *g = NULL;
    uint32_t flags = n & 1 ? HLLM_MODEL_VOCAB_ONLY : 0;
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        hl_error_init(&err);
    }
    DEMAND(fd >= 0 && ftruncate(fd, (off_t)n) == 0 && pwrite(fd, data, n, 0) == (ssize_t)n);
    DEMAND(hl_mem_new(NULL, &env.mem) == HLLM_OK);
    hl_status rc = hl_gguf_open_fd(&env, &err, fd, 0, 0, flags, NULL, &g);
    DEMAND((rc == HLLM_OK) == (g != NULL));
    DEMAND(hl_mem_peak_bytes(env.mem) <= 4 * n + (16u << 20));
    if (g) {
        for (uint32_t i = 0; i < g->n_keys; i++) use_key(g, &g->keys[i]);
        for (uint32_t i = 0; i < g->n_tensors; i++) use_tensor(&env, &err, g, &g->tensors[i], flags);
        DEMAND(!hl_gguf_find_key(g, "no such key") && !hl_gguf_find_tensor(g, ""));
        hl_gguf_free(&env, g);
    } else {
        char text[64];
        DEMAND(hl_error_copy(&err, text, sizeof text) > 1);
    }
    in_parts(env.mem, data, n, flags);
    DEMAND(hl_mem_live_bytes(env.mem) == 0);
    hl_mem_free(env.mem);
    return 0;
}

/* ---- the mutator ---- */

enum { MAX_FIELDS = 512, MAX_ENTRIES = 256 };
typedef struct map {                 /* where things are, as far as the bytes make sense */
    const uint8_t *p;
    size_t n, at, n_fields, n_keys, n_tensors;
    struct { size_t at; uint8_t bytes; } field[MAX_FIELDS];
    struct { size_t at, end; } key[MAX_ENTRIES], tensor[MAX_ENTRIES];
} map;

static uint64_t field(map *m, uint8_t bytes)
{
    uint64_t x = 0;
    if (m->n - m->at < bytes) { m->at = m->n; return 0; }
    memcpy(&x, m->p + m->at, bytes);
    if (m->n_fields < MAX_FIELDS) {
        m->field[m->n_fields].at = m->at;
        m->field[m->n_fields++].bytes = bytes;
    }
    m->at += bytes;
    return x;
}

static void skip(map *m, uint64_t n) { m->at = n > m->n - m->at ? m->n : m->at + (size_t)n; }

static void make_map(map *m, const uint8_t *p, size_t n)
{
    static const uint8_t size[16] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    memset(m, 0, sizeof *m);
    m->p = p;
    m->n = n;
    skip(m, 4);
    field(m, 4);
    uint64_t tensors = field(m, 8), keys = field(m, 8);
    for (uint64_t i = 0; i < keys && m->at < n && m->n_keys < MAX_ENTRIES; i++) {
        size_t start = m->at;
        skip(m, field(m, 8));
        uint64_t type = field(m, 4), elem = type, count = 1;
        if (type == 9) {
            elem = field(m, 4);
            count = field(m, 8);
        }
        if (elem == 8) while (count-- && m->at < n) skip(m, field(m, 8));
        else if (type == 9) skip(m, size[elem & 15] && count < n ? count * size[elem & 15] : 0);
        else field(m, size[elem & 15]);
        m->key[m->n_keys].at = start;
        m->key[m->n_keys++].end = m->at;
    }
    for (uint64_t i = 0; i < tensors && m->at < n && m->n_tensors < MAX_ENTRIES; i++) {
        size_t start = m->at;
        skip(m, field(m, 8));
        uint64_t dims = field(m, 4);
        while (dims-- && m->at < n) field(m, 8);
        field(m, 4);
        field(m, 8);
        m->tensor[m->n_tensors].at = start;
        m->tensor[m->n_tensors++].end = m->at;
    }
}

static uint64_t next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static uint64_t telling(uint64_t *s, uint64_t old, uint64_t left)
{
    static const uint64_t few[] = { 0, 1, 2, 4, 5, 8, 13, 31, 32, 33, 63, 64, 255, 256, 65535, 65536, 65537, 1u << 22 };
    switch (next(s) % 8) {
    case 0: return few[next(s) % HL_COUNT(few)];
    case 1: return old + next(s) % 9 - 4;
    case 2: return 1ull << next(s) % 64;
    case 3: return (1ull << next(s) % 64) - 1;
    case 4: return left + next(s) % 3 - 1;
    case 5: return UINT64_MAX - next(s) % 64;
    case 6: return next(s) % 40;
    default: return (old ^ 1ull << next(s) % 64);
    }
}

/* Removes (kind 0), doubles (1) or swaps with its neighbour (2) one entry, and corrects the count. */
static size_t change_entry(map *m, uint8_t *data, size_t max, uint64_t *s)
{
    int tensors = next(s) & 1;
    size_t count = tensors ? m->n_tensors : m->n_keys, i, n = m->n;
    if (count == 0) return n;
    i = next(s) % count;
    size_t at = tensors ? m->tensor[i].at : m->key[i].at, end = tensors ? m->tensor[i].end : m->key[i].end, len = end - at;
    uint64_t declared;
    memcpy(&declared, data + (tensors ? 8 : 16), 8);
    switch (next(s) % 3) {
    case 0:
        memmove(data + at, data + end, n - end);
        n -= len;
        declared--;
        break;
    case 1:
        if (max - n < len) return n;
        memmove(data + end, data + at, n - at);
        n += len;
        declared++;
        break;
    default:
        if (i + 1 == count || len > 4096) return n;
        uint8_t copy[4096];
        size_t next_len = (tensors ? m->tensor[i + 1].end : m->key[i + 1].end) - end;
        memcpy(copy, data + at, len);
        memmove(data + at, data + end, next_len);
        memcpy(data + at + next_len, copy, len);
    }
    memcpy(data + (tensors ? 8 : 16), &declared, 8);
    return n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max, unsigned seed)
{
    static map m;
    uint64_t s = seed * 0x9E3779B97F4A7C15ull + 1;
    next(&s);
    if (n < 24 || next(&s) % 2) return LLVMFuzzerMutate(data, n, max);
    for (uint64_t times = 1 + next(&s) % 3; times && n >= 24; times--) {
        make_map(&m, data, n);
        if (next(&s) % 4 == 0) {
            n = change_entry(&m, data, max, &s);
        } else if (m.n_fields) {
            size_t i = next(&s) % m.n_fields, at = m.field[i].at, bytes = m.field[i].bytes;
            uint64_t old = 0, x;
            memcpy(&old, data + at, bytes);
            x = telling(&s, old, n - at - bytes);
            memcpy(data + at, &x, bytes);
        }
    }
    return n;
}
