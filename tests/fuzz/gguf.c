/* Fuzz target: a GGUF container.  The input is opened as a file (a memory file, so that the whole road is taken), and what was
 * opened is used: every key read as every kind, every name looked up, every tensor read and dequantised.
 *
 * Besides crashes it finds: memory above 4 x file + 16 MiB, blocks not given back, and a parser that answers otherwise when it
 * gets the file in parts than when it gets it whole. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gguf_mutator.h"
#include "model/gguf_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define DEMAND(x) do { if (!(x)) __builtin_trap(); } while (0)

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
        DEMAND(!hl_gguf_find_key(g, "\1") && !hl_gguf_find_tensor(g, "\1"));      /* no file may have such a name */
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
