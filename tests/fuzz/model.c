/* Fuzz target: what a GGUF file means.  The input is opened as a model, whole or for its vocabulary only; what opened is used: every
 * token asked for, texts tokenised and written back, rotations computed, vectors read.
 *
 * Besides crashes it finds: tokens outside the vocabulary, texts that do not come back, memory above 4 x file + 16 MiB, blocks not
 * given back. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gguf_mutator.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define DEMAND(x) do { if (!(x)) __builtin_trap(); } while (0)
enum { MAX_OUT = 4096 };

static volatile uint64_t sink;

static void use_text(const hl_env *env, hl_error *err, const hl_vocab *v, const char *text, size_t bytes, uint32_t flags)
{
    static int32_t ids[MAX_OUT];
    static char back[1 << 16];
    size_t n = 0, n_back = 0;
    hl_text_part part = { text, bytes, false };
    hl_status rc = hl_vocab_tokenize(env, err, v, &part, 1, flags, ids, MAX_OUT, &n);
    if (rc != HLLM_OK) return;
    DEMAND(n <= MAX_OUT);
    for (size_t i = 0; i < n; i++) DEMAND(ids[i] >= 0 && (uint32_t)ids[i] < hl_vocab_size(v));
    rc = hl_vocab_detokenize(err, v, ids, n, HLLM_DETOKENIZE_SPECIAL, back, sizeof back, &n_back);
    DEMAND(rc == HLLM_OK || rc == HLLM_E_BUFFER);
    if (rc == HLLM_OK) DEMAND(n_back <= sizeof back);
    sink += n_back;
}

static void use_vocab(const hl_env *env, hl_error *err, const hl_vocab *v, const uint8_t *data, size_t n)
{
    static const char plain[] = "Hello world, abba 123  \n\xe2\x96\x81 \xf0\x9f\x98\x80 \xff\xfe <s></s> don't";
    for (uint32_t i = 0; i < hl_vocab_size(v); i++) {
        hl_token t = hl_vocab_token(v, (int32_t)i);
        for (uint32_t k = 0; k < t.text_bytes; k++) sink += (unsigned char)t.text[k];
        for (uint32_t k = 0; k < t.piece_bytes; k++) sink += (unsigned char)t.piece[k];
        DEMAND(t.type >= HLLM_TOKEN_NORMAL && t.type <= HLLM_TOKEN_BYTE);
    }
    for (uint32_t kind = HLLM_SPECIAL_BOS; kind <= HLLM_SPECIAL_PAD; kind++) {
        int32_t id = hl_vocab_special(v, kind);
        DEMAND(id >= -1 && (id < 0 || (uint32_t)id < hl_vocab_size(v)));
    }
    use_text(env, err, v, plain, sizeof plain - 1, 0);
    use_text(env, err, v, plain, sizeof plain - 1, HLLM_TOKENIZE_PARSE_SPECIAL);
    use_text(env, err, v, (const char *)data + n / 2, HL_MIN(n / 2, (size_t)200), HLLM_TOKENIZE_PARSE_SPECIAL);
    use_text(env, err, v, "", 0, 0);
}

static void use_model(hl_error *err, const hl_model *m)
{
    static double angle[4096];
    static float values[1024], magnitude;
    DEMAND(m->config.n_layers >= 1 && m->config.n_rot % 2 == 0 && m->config.n_rot / 2 <= HL_COUNT(angle));
    for (uint32_t il = 0; il < m->config.n_layers; il++) {
        DEMAND(m->layers[il].n_heads_kv && m->layers[il].n_heads % m->layers[il].n_heads_kv == 0);
        for (int far = 0; far < 2; far++) hl_model_rope(m, err, &m->layers[il], far, angle, &magnitude);
    }
    for (uint32_t i = 0; i < m->gguf->n_tensors; i++) {
        const hl_gguf_tensor *t = &m->gguf->tensors[i];
        uint32_t block = hl_dtype(t->dtype)->block;
        size_t n = (size_t)HL_MIN(t->n, (uint64_t)HL_COUNT(values)) / block * block;
        DEMAND(hl_model_read_f32(m, err, t, t->n - n, values, n) == HLLM_OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int fd = -1;
    static hl_error err;
    hl_env env = { 0 };
    hl_gguf *g = NULL;
    hl_model *m = NULL;
    uint32_t flags = n & 1 ? HLLM_MODEL_VOCAB_ONLY : 0;
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        hl_error_init(&err);
    }
    DEMAND(fd >= 0 && ftruncate(fd, (off_t)n) == 0 && pwrite(fd, data, n, 0) == (ssize_t)n);
    DEMAND(hl_mem_new(NULL, &env.mem) == HLLM_OK);
    DEMAND(hl_log_new(env.mem, &env.log) == HLLM_OK);
    if (hl_gguf_open_fd(&env, &err, fd, 0, 0, flags, NULL, &g) == HLLM_OK) {
        hl_status rc = hl_model_new(&env, &err, g, flags, NULL, &m);
        DEMAND((rc == HLLM_OK) == (m != NULL));
        DEMAND(hl_mem_peak_bytes(env.mem) <= 4 * n + (16u << 20));
        if (m) {
            use_vocab(&env, &err, m->vocab, data, n);
            if (!flags) use_model(&err, m);
            hl_model_free(m);
        }
    }
    hl_log_free(env.mem, env.log);
    DEMAND(hl_mem_live_bytes(env.mem) == 0);
    hl_mem_free(env.mem);
    return 0;
}
