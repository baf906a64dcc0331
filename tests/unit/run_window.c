/* run_window.c: layers with a sliding window keep only their window, and nobody can tell: the same bits as a session that keeps all.  What the
 * window has lost cannot be rewound to; the rest can. */
#include "../hostile/gguf_writer.h"
#include "run_common.h"

enum { EMBD = 32, HEADS = 2, HEAD = 16, FF = 64, LAYERS = 4, WINDOW = 16, CTX = 1024, N = 600, M = 32 };
static int32_t text[CTX];
static char dir[256], path[300], saved[300];

static void write_gemma(void)
{
    gguf_file *f = gf_new();
    gf_str(f, "general.architecture", "gemma3");
    gf_u32(f, "gemma3.block_count", LAYERS);
    gf_u32(f, "gemma3.context_length", CTX);
    gf_u32(f, "gemma3.embedding_length", EMBD);
    gf_u32(f, "gemma3.feed_forward_length", FF);
    gf_u32(f, "gemma3.attention.head_count", HEADS);
    gf_u32(f, "gemma3.attention.head_count_kv", 1);
    gf_u32(f, "gemma3.attention.key_length", HEAD);
    gf_u32(f, "gemma3.attention.value_length", HEAD);
    gf_u32(f, "gemma3.attention.sliding_window", WINDOW);
    gf_u32(f, "gemma3.attention.sliding_window_pattern", 2);
    gf_f32(f, "gemma3.rope.freq_base", 1e6f);
    gf_f32(f, "gemma3.attention.layer_norm_rms_epsilon", 1e-6f);
    gf_spm_vocab(f);
    gf_f32_tensor(f, "token_embd.weight", EMBD, GF_SPM_VOCAB, 0, 1);
    gf_f32_tensor(f, "output_norm.weight", EMBD, 0, 1, 0.1);
    for (int il = 0; il < LAYERS; il++) {
        static const struct { const char *name; uint64_t d0, d1; } t[] = {
            { "attn_norm", EMBD, 0 }, { "attn_q", EMBD, HEADS * HEAD }, { "attn_k", EMBD, HEAD }, { "attn_v", EMBD, HEAD }, { "attn_q_norm", HEAD, 0 }, { "attn_k_norm", HEAD, 0 },
            { "attn_output", HEADS * HEAD, EMBD }, { "post_attention_norm", EMBD, 0 }, { "ffn_norm", EMBD, 0 }, { "ffn_gate", EMBD, FF }, { "ffn_up", EMBD, FF },
            { "ffn_down", FF, EMBD }, { "post_ffw_norm", EMBD, 0 } };
        for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", il, t[i].name);
            gf_f32_tensor(f, name, t[i].d0, t[i].d1, t[i].d1 ? 0 : 1, t[i].d1 ? 0.4 : 0.2);
        }
    }
    gbuf b = gf_write(f, NULL);
    FILE *out = fopen(path, "wb");
    if (!out || fwrite(b.p, 1, b.n, out) != b.n || fclose(out) != 0) exit(1);
    gb_free(&b);
    gf_free(f);
}

static int same_logits(const setup *u, hllm_session *a, hllm_session *b, uint32_t pos)
{
    size_t bytes = u->n_vocab * sizeof(float);
    float *x = malloc(bytes), *y = malloc(bytes);
    OK_S(hllm_session_logits(a, pos, x, u->n_vocab), a);
    OK_S(hllm_session_logits(b, pos, y, u->n_vocab), b);
    int same = memcmp(x, y, bytes) == 0;
    free(x);
    free(y);
    return same;
}

static void run(const setup *u, uint32_t kv, uint32_t micro_batch)
{
    hllm_session *all = session_of(u, CTX, kv, CTX), *s = session_of(u, CTX, kv, micro_batch), *t = NULL;
    int32_t a[M], b[M];
    hllm_session_info i = { .struct_size = sizeof i }, j = { .struct_size = sizeof j };
    OK_S(hllm_session_get_info(s, &i), s);
    OK_S(hllm_session_get_info(all, &j), all);
    CHECK_MSG(i.kv_bytes < j.kv_bytes * 6 / 10, "%llu of %llu", (unsigned long long)i.kv_bytes, (unsigned long long)j.kv_bytes);
    for (uint32_t n = 0; n < N;) {
        uint32_t step = HLLM_KV_F32 == kv ? 50 : 33;
        if (step > N - n) step = N - n;
        OK_S(hllm_session_eval(s, text + n, step), s);
        OK_S(hllm_session_eval(all, text + n, step), all);
        n += step;
        CHECK_MSG(same_logits(u, s, all, n - 1), "kv %u, micro-batch %u, position %u", kv, micro_batch, n - 1);
    }
    CHECK(rewind_min_of(all) == 0);
    const uint32_t least = rewind_min_of(s);
    CHECK_MSG(least > 0 && least < N - 1, "%u", least);
    CHECK(hllm_session_rewind(s, least - 1) == HLLM_E_STATE && n_tokens_of(s) == N);
    char why[256], number[16];
    hllm_session_last_error(s, why, sizeof why);
    snprintf(number, sizeof number, "%u", least);
    CHECK_MSG(strstr(why, number), "%s", why);
    CHECK(hllm_session_rewind(s, 1) == HLLM_E_STATE);

    OK_S(hllm_session_fork(s, &t), s);                 /* the fork: at the limit, then something else, then back */
    OK_S(hllm_session_rewind(t, least), t);
    OK_S(hllm_session_rewind(all, least), all);
    OK_S(hllm_session_eval(t, text, 3), t);
    OK_S(hllm_session_rewind(t, least), t);
    OK_S(hllm_session_eval(t, text + least, N - least), t);
    OK_S(hllm_session_eval(all, text + least, N - least), all);
    CHECK_MSG(same_logits(u, t, all, N - 1), "kv %u, micro-batch %u", kv, micro_batch);
    greedy(t, NULL, 0, HLLM_GENERATE_APPEND, a, M);
    greedy(all, NULL, 0, HLLM_GENERATE_APPEND, b, M);
    CHECK(same_tokens(a, b, M));
    greedy(s, NULL, 0, HLLM_GENERATE_APPEND, a, M);    /* the original did not notice */
    CHECK(same_tokens(a, b, M));
    hllm_session_free(t);

    OK_S(hllm_session_rewind(s, N), s);                /* saved by one, restored by others with more and with less room */
    OK_S(hllm_session_rewind(all, N), all);
    static const uint32_t batches[] = { 4, 16, 200, CTX };
    for (int from = 0; from < 2; from++) {
        OK_S(hllm_session_save(from ? all : s, saved), s);
        for (int k = 0; k < 4; k++) {
            t = session_of(u, k == 2 ? 700 : CTX, kv, batches[k]);
            OK_S(hllm_session_load(t, saved), t);
            CHECK_MSG(rewind_min_of(t) <= N, "%u", rewind_min_of(t));
            if (from == 0) CHECK(rewind_min_of(t) >= least || batches[k] == 4);
            if (batches[k] < 200) {                    /* what did not fit is lost, and known to be */
                CHECK_MSG(rewind_min_of(t) > N - 200, "%u", rewind_min_of(t));
                CHECK(hllm_session_rewind(t, rewind_min_of(t) - 1) == HLLM_E_STATE);
            }
            greedy(t, text + N, 20, HLLM_GENERATE_APPEND, a, M);
            OK_S(hllm_session_rewind(all, N), all);
            greedy(all, text + N, 20, HLLM_GENERATE_APPEND, b, M);
            CHECK_MSG(same_tokens(a, b, M), "from %d, micro-batch %u", from, batches[k]);
            OK_S(hllm_session_rewind(all, N), all);
            hllm_session_free(t);
        }
    }
    unlink(saved);
    /* A prompt that shares a beginning which the windows have lost is computed from the start. */
    int32_t other[N];
    memcpy(other, text, sizeof other);
    other[100] = other[101] ^ 1;
    greedy(s, other, N - 10, 0, a, M);
    greedy(all, other, N - 10, 0, b, M);
    CHECK(same_tokens(a, b, M));
    OK_S(hllm_session_rewind(s, 0), s);
    CHECK(rewind_min_of(s) == 0);
    hllm_session_free(s);
    hllm_session_free(all);
}

int main(void)
{
    const char *where = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/window-XXXXXX", where && where[0] ? where : P_tmpdir);
    if (!mkdtemp(dir)) return 1;
    snprintf(path, sizeof path, "%s/gemma.gguf", dir);
    snprintf(saved, sizeof saved, "%s/saved", dir);
    write_gemma();
    setup u = setup_file(path, 2, NULL, NULL);
    uint64_t seed = 3;
    for (int i = 0; i < CTX; i++) text[i] = (int32_t)(3 + rnd(&seed) % (GF_SPM_VOCAB - 3));
    for (uint32_t kv = 0; kv < 3; kv++) {
        run(&u, kv, 8);
        run(&u, kv, 50);
        run(&u, kv, 1);
    }
    setup_free(&u);
    unlink(path);
    CHECK(rmdir(dir) == 0);
    return check_done();
}
