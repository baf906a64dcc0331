/* bench.c: `hllm bench`: speed beside the machine's own limits, probed in the same run.
 *
 * Order: load; one cold round (its first token is timed, and the peak memory is read after it, before the probes take theirs);
 * probe; -r rounds, of which the median counts; probe again, the better of the two is the ceiling.
 * Prefill: -p tokens computed at --depth.  Its operations: 2 for every weight of the layers' matrices; embedding, head and
 * attention are not counted.  Decode: -n tokens in each of --sessions at once, one token as the prompt; wall time.  Its bytes: the
 * KV of one session and its part of the weights, which up to PASS sessions read together.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

enum { DEFAULT_PROMPT = 512, DEFAULT_TOKENS = 64, DEFAULT_REPS = 3, PASS = 16 };

typedef struct bench {
    cli c;
    hllm_session **sessions; uint32_t n_sessions;
    uint32_t n_prompt, n_tokens, depth;
    int32_t *tokens;                                   /* [max(n_prompt, depth, 1)] */
    double first_token_s;
    double prefill_s, decode_s;                        /* medians */
    uint64_t peak_rss_bytes;
    double read_bytes_per_s, int8_ops_per_s;
    hllm_run_stats stats;
} bench;

static int fail(bench *b, hllm_session *s, hllm_status rc)
{
    b->c.session = s;
    return cli_fail(&b->c, AT_SESSION, rc);
}

/* Ordinary tokens, always the same ones. */
static void choose_tokens(bench *b, uint32_t n)
{
    uint64_t state = 1;
    b->tokens = cli_alloc(n, sizeof *b->tokens);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t tries = 0; tries < 100; tries++) {
            hllm_token_info t = { .struct_size = sizeof t };
            state = state * 6364136223846793005u + 1442695040888963407u;
            b->tokens[i] = (int32_t)((state >> 33) % b->c.info.n_vocab);
            if (hllm_model_token(b->c.model, b->tokens[i], &t) == HLLM_OK && t.type == HLLM_TOKEN_NORMAL) break;
        }
}

/* Back to depth; a sliding window may no longer hold what is needed there, then everything is computed again. */
static int to_depth(bench *b, hllm_session *s)
{
    hllm_session_info info = { .struct_size = sizeof info };
    hllm_status rc = hllm_session_get_info(s, &info);
    if (rc == HLLM_OK && info.n_tokens >= b->depth && hllm_session_rewind(s, b->depth) == HLLM_OK) return 0;
    if (rc == HLLM_OK) rc = hllm_session_rewind(s, 0);
    if (rc == HLLM_OK && b->depth) rc = hllm_session_eval(s, b->tokens, b->depth);
    return rc == HLLM_OK ? 0 : fail(b, s, rc);
}

/* cold: the logits are read too, as a first token needs them. */
static int prefill(bench *b, bool cold, double *seconds)
{
    hllm_session *s = b->sessions[0];
    const int code = to_depth(b, s);
    if (code) return code;
    const double start = cli_seconds();
    hllm_status rc = hllm_session_eval(s, b->tokens, b->n_prompt);
    if (rc == HLLM_OK && cold) {
        float *logits = cli_alloc(b->c.info.n_vocab, sizeof *logits);
        rc = hllm_session_logits(s, b->depth + b->n_prompt - 1, logits, b->c.info.n_vocab);
        free(logits);
    }
    *seconds = cli_seconds() - start;
    return rc == HLLM_OK ? 0 : fail(b, s, rc);
}

/* Takes what there is and throws it away until every session is done. */
static int drain_all(bench *b)
{
    char buf[4096];
    for (uint32_t i = 0; i < b->n_sessions;) {
        hllm_poll_result p = { .struct_size = sizeof p };
        for (uint32_t j = i + 1; j < b->n_sessions; j++)
            hllm_generate_poll(b->sessions[j], 0, buf, sizeof buf, &(hllm_poll_result){ .struct_size = sizeof p });
        const hllm_status rc = hllm_generate_poll(b->sessions[i], b->n_sessions > 1 ? 20 : -1, buf, sizeof buf, &p);
        if (rc != HLLM_OK) return fail(b, b->sessions[i], rc);
        if (p.finish == HLLM_FINISH_ERROR) return fail(b, b->sessions[i], p.error);
        if (p.run == HLLM_RUN_DONE) i++;
    }
    return 0;
}

static int decode(bench *b, double *seconds)
{
    hllm_generate_options g = { .struct_size = sizeof g, .max_tokens = b->n_tokens,
                                .flags = HLLM_GENERATE_GREEDY | HLLM_GENERATE_IGNORE_EOS | HLLM_GENERATE_APPEND };
    int code = 0;
    for (uint32_t i = 0; i < b->n_sessions && !code; i++) code = to_depth(b, b->sessions[i]);
    if (code) return code;
    const double start = cli_seconds();
    for (uint32_t i = 0; i < b->n_sessions; i++) {
        const hllm_status rc = hllm_generate_start_tokens(b->sessions[i], b->tokens, 1, &g);
        if (rc != HLLM_OK) return fail(b, b->sessions[i], rc);
    }
    code = drain_all(b);
    *seconds = cli_seconds() - start;
    if (code) return code;
    b->stats = (hllm_run_stats){ .struct_size = sizeof b->stats };
    const hllm_status rc = hllm_session_stats(b->sessions[0], &b->stats);
    if (rc != HLLM_OK) return fail(b, b->sessions[0], rc);
    if (b->stats.n_generated != b->n_tokens)
        return cli_error(b->c.o, "only %u of %u tokens were generated: is the context of %u full?", b->stats.n_generated, b->n_tokens, b->c.session_info.n_ctx);
    return 0;
}

static int probe(bench *b)
{
    hllm_machine_speed v = { .struct_size = sizeof v };
    const hllm_status rc = hllm_runtime_measure(b->c.rt, &v);
    if (rc != HLLM_OK) return cli_fail(&b->c, AT_RUNTIME, rc);
    if (v.read_bytes_per_s > b->read_bytes_per_s) b->read_bytes_per_s = v.read_bytes_per_s;
    if (v.int8_ops_per_s > b->int8_ops_per_s) b->int8_ops_per_s = v.int8_ops_per_s;
    return 0;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

static int measure(bench *b)
{
    const uint32_t reps = b->c.o->reps ? b->c.o->reps : DEFAULT_REPS;
    double *p = cli_alloc(reps, sizeof *p), *d = cli_alloc(reps, sizeof *d), ignored = 0;
    int code = prefill(b, true, &b->first_token_s);
    if (!code) code = decode(b, &ignored);
    b->peak_rss_bytes = cli_status_bytes("VmHWM:");
    if (!code) code = probe(b);
    for (uint32_t i = 0; i < reps && !code; i++) {
        code = prefill(b, false, &p[i]);
        if (!code) code = decode(b, &d[i]);
    }
    if (!code) code = probe(b);
    if (!code) {
        b->prefill_s = median(p, reps);
        b->decode_s = median(d, reps);
    }
    free(p);
    free(d);
    return code;
}

/* Elements of the layers' matrices: what every prompt token is multiplied with. */
static double layer_weights(const bench *b)
{
    double n = 0;
    for (uint32_t i = 0; i < b->c.info.n_tensors; i++) {
        hllm_tensor_info t = { .struct_size = sizeof t };
        if (hllm_model_tensor(b->c.model, i, &t) == HLLM_OK && t.n_dims == 2 && strncmp(t.name, "blk.", 4) == 0)
            n += (double)t.dims[0] * (double)t.dims[1];
    }
    return n;
}

static int print_results(bench *b)
{
    hllm_machine_info m = { .struct_size = sizeof m };
    const hllm_status rc = hllm_runtime_machine(b->c.rt, &m);
    if (rc != HLLM_OK) return cli_fail(&b->c, AT_RUNTIME, rc);
    const double read_gb_s = b->read_bytes_per_s * 1e-9, ceiling_gops = b->int8_ops_per_s * 1e-9;
    const double decode_tok_s = (double)b->n_tokens * b->n_sessions / b->decode_s;
    const double weights = (double)b->stats.decode_weight_bytes, kv = (double)b->stats.decode_bytes_per_token - weights;
    const double token_bytes = weights / (b->n_sessions < PASS ? b->n_sessions : PASS) + kv, decode_gb_s = token_bytes * decode_tok_s * 1e-9;
    const double prefill_tok_s = b->n_prompt / b->prefill_s;
    const double prefill_gops = 2 * layer_weights(b) * prefill_tok_s * 1e-9;
    if (b->c.o->json) {
        json_open('{');
        json_key_num("read_ceiling_gb_s", read_gb_s, 3);
        json_key_num("decode_tok_s", decode_tok_s, 3);
        json_key_uint("decode_bytes_per_token", (uint64_t)token_bytes);
        json_key_num("decode_gb_s", decode_gb_s, 3);
        json_key_num("decode_share", decode_gb_s / read_gb_s, 4);
        json_key_num("prefill_tok_s", prefill_tok_s, 3);
        json_key_num("prefill_gops", prefill_gops, 3);
        json_key_num("compute_ceiling_gops", ceiling_gops, 3);
        json_key_num("prefill_share", prefill_gops / ceiling_gops, 4);
        json_key_num("load_s", b->c.load_s, 4);
        json_key_num("first_token_ms", b->first_token_s * 1e3, 3);
        json_key_uint("peak_rss_bytes", b->peak_rss_bytes);
        json_key_str("isa", m.isa);
        json_key_str("mode", b->stats.mode);
        json_key_num("active_share", b->stats.active_share, 4);
        json_key_uint("threads", m.n_threads);
        json_key_uint("sessions", b->n_sessions);
        json_key_uint("n_prompt", b->n_prompt);
        json_key_uint("n_tokens", b->n_tokens);
        json_key_uint("depth", b->depth);
        json_close();
        return 0;
    }
    printf("model     %s, %.1f MiB; %s, active share %.3f\n", b->c.info.family, (double)b->c.info.file_bytes / (1024 * 1024),
           b->stats.mode, b->stats.active_share);
    printf("machine   %s kernels, %u threads; reads %.2f GB/s, 8-bit dots %.1f Gop/s\n", m.isa, m.n_threads, read_gb_s, ceiling_gops);
    printf("load      %.3f s, then the first token of %u after %.1f ms; peak memory %.1f MiB\n", b->c.load_s, b->n_prompt, b->first_token_s * 1e3,
           (double)b->peak_rss_bytes / (1024 * 1024));
    printf("prefill   %.1f tok/s (%u at depth %u), %.1f Gop/s, %.1f %% of the compute ceiling\n", prefill_tok_s, b->n_prompt, b->depth, prefill_gops,
           100 * prefill_gops / ceiling_gops);
    printf("decode    %.2f tok/s (%u at depth %u, %u session%s), %.2f GB/s, %.1f %% of the read ceiling\n", decode_tok_s, b->n_tokens, b->depth,
           b->n_sessions, b->n_sessions == 1 ? "" : "s", decode_gb_s, 100 * decode_gb_s / read_gb_s);
    return 0;
}

/* Room for the depth and the longer of the two measurements, unless -c says. */
static int open_sessions(bench *b)
{
    const cli_options *o = b->c.o;
    const uint32_t limit = b->c.info.n_ctx_train;
    uint64_t need = (uint64_t)b->depth + (b->n_prompt > b->n_tokens ? b->n_prompt : b->n_tokens + 1u);
    if (!o->n_prompt && limit > b->depth + b->n_tokens && need > limit) {       /* the default prompt may be shortened */
        b->n_prompt = limit - b->depth;
        need = limit;
    }
    if (need > UINT32_MAX) return cli_usage(o, "--depth: %u is too deep", b->depth);
    hllm_session_options s;
    cli_session_options(o, o->n_ctx ? o->n_ctx : (uint32_t)need, &s);
    b->sessions = cli_alloc(b->n_sessions, sizeof *b->sessions);
    for (uint32_t i = 0; i < b->n_sessions; i++) {
        const hllm_status rc = hllm_session_create(b->c.engine, &s, &b->sessions[i]);
        if (rc != HLLM_OK) return cli_fail(&b->c, AT_ENGINE, rc);
    }
    b->c.session_info.struct_size = sizeof b->c.session_info;
    const hllm_status rc = hllm_session_get_info(b->sessions[0], &b->c.session_info);
    return rc == HLLM_OK ? 0 : fail(b, b->sessions[0], rc);
}

int cmd_bench(const cli_options *o)
{
    bench b;
    memset(&b, 0, sizeof b);
    b.n_prompt = o->n_prompt ? o->n_prompt : DEFAULT_PROMPT;
    b.n_tokens = o->n_predict ? (uint32_t)o->n_predict : DEFAULT_TOKENS;
    b.n_sessions = o->sessions ? o->sessions : 1;
    b.depth = o->depth;
    int code = cli_open_engine(&b.c, o);
    if (!code) code = open_sessions(&b);
    if (!code) choose_tokens(&b, b.n_prompt > b.depth ? b.n_prompt : b.depth);
    if (!code) code = measure(&b);
    if (!code) code = print_results(&b);
    for (uint32_t i = 0; b.sessions && i < b.n_sessions; i++) hllm_session_free(b.sessions[i]);
    b.c.session = NULL;                                /* it was one of them, for its error text */
    cli_close(&b.c);
    free(b.sessions);
    free(b.tokens);
    return code;
}
