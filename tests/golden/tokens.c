/* tokens.c: token ids and texts against llama.cpp's (tests/golden/tokens): the shipped model always, the real models and the
 * vocabulary files when tests/get_models.sh and tests/get_vocabs.sh have fetched them (build/models, build/vocab).
 *
 * For every vocabulary: all texts with and without special parsing, the .inp/.out pairs that come with it, and that detokenizing
 * gives the text back.  HLLM_REQUIRE_VOCABS=1: a missing file is a failure.
 */
#include "../unit/check.h"
#include "model/tokenizer.h"

static hl_env env = { .io = &hl_io_posix };
static hl_error err;

static char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *s = NULL;
    *n = 0;
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    long len = ftell(f);
    rewind(f);
    s = malloc((size_t)len + 1);
    *n = fread(s, 1, (size_t)len, f);
    s[*n] = 0;
    fclose(f);
    return s;
}

/* Numbers of a line; moves *at behind it. */
static size_t read_ids(char **at, int32_t *ids, size_t cap)
{
    size_t n = 0;
    char *s = *at;
    while (*s && *s != '\n') {
        char *e;
        long x = strtol(s, &e, 10);
        if (e == s) { s++; continue; }
        if (n < cap) ids[n++] = (int32_t)x;
        s = e;
    }
    *at = *s ? s + 1 : s;
    return n;
}

static void check_text(const hl_vocab *v, const char *name, const char *text, size_t bytes, uint32_t flags, const int32_t *want, size_t n_want)
{
    static int32_t got[1 << 16];
    static char back[1 << 16];
    hl_text_part part = { text, bytes, false };
    size_t n, len;
    hl_status rc = hl_vocab_tokenize(&env, &err, v, &part, 1, flags, got, 1 << 16, &n);
    CHECK_MSG(rc == HLLM_OK, "%s: status %d", name, rc);
    bool same = n == n_want && memcmp(got, want, n * sizeof *got) == 0;
    if (!same) {
        fprintf(stderr, "%s flags %u text \"%.*s\"\n  want", name, flags, (int)bytes, text);
        for (size_t i = 0; i < n_want; i++) fprintf(stderr, " %d", want[i]);
        fprintf(stderr, "\n  got ");
        for (size_t i = 0; i < n; i++) fprintf(stderr, " %d", got[i]);
        fprintf(stderr, "\n");
    }
    CHECK_MSG(same, "%s", name);
    if (flags & HLLM_TOKENIZE_PARSE_SPECIAL) return;     /* special tokens may swallow white space */
    CHECK(hl_vocab_detokenize(&err, v, got, n, 0, back, sizeof back, &len) == HLLM_OK);
    CHECK_MSG(len == bytes && memcmp(back, text, bytes) == 0, "%s: \"%.*s\" came back as \"%.*s\"", name, (int)bytes, text, (int)len, back);
}

static void check_golden(const hl_vocab *v, const char *name, bool parse)
{
    char path[256];
    size_t n_texts, n_gold, n_lines = 0;
    int32_t want[4096];
    snprintf(path, sizeof path, "tests/golden/tokens/%s.tokens%s.txt", name, parse ? ".parse-special" : "");
    char *gold = slurp(test_path(path), &n_gold), *texts = slurp(test_path("tests/golden/tokens/texts.bin"), &n_texts);
    REQUIRE(gold && texts);
    char *at = gold, *text = texts;
    while (at < gold + n_gold) {
        at = strchr(at, '\n') + 1;               /* the text in JSON: for people */
        REQUIRE(strncmp(at, "tokens", 6) == 0);
        at += 6;
        size_t n = read_ids(&at, want, 4096), bytes = strlen(text);
        check_text(v, name, text, bytes, parse ? HLLM_TOKENIZE_PARSE_SPECIAL : 0, want, n);
        text += bytes + 1;
        n_lines++;
    }
    CHECK_MSG(n_lines == 48 && text == texts + n_texts + 1, "%zu texts", n_lines);
    free(gold);
    free(texts);
}

/* Texts separated by a line, and one line of ids for each. */
static void check_pairs(const hl_vocab *v, const char *name, const char *file)
{
    static const char sep[] = "\n__ggml_vocab_test__\n";
    char path[512];
    size_t n_inp, n_out, pairs = 0;
    int32_t want[8192];
    snprintf(path, sizeof path, "%s.inp", file);
    char *inp = slurp(path, &n_inp);
    snprintf(path, sizeof path, "%s.out", file);
    char *out = slurp(path, &n_out);
    CHECK_MSG(inp && out, "%s: .inp or .out is missing", name);
    if (inp && out) {
        char *at = out;
        for (char *text = inp; text;) {
            char *end = strstr(text, sep);
            size_t bytes = end ? (size_t)(end - text) : strlen(text);
            size_t n = read_ids(&at, want, 8192);
            check_text(v, name, text, bytes, HLLM_TOKENIZE_NO_SPECIAL, want, n);
            text = end ? end + sizeof sep - 1 : NULL;
            pairs++;
        }
        CHECK_MSG(pairs > 40 && *at == 0, "%s: %zu pairs", name, pairs);
    }
    free(inp);
    free(out);
}

/* Every byte, alone and after a letter, comes back; in vocabularies that lack some bytes those become U+FFFD or nothing. */
static void check_bytes(const hl_vocab *v, const char *name)
{
    static const struct { const char *name; int n; } lacking[] = {   /* byte values without a normal token in the file */
        { "falcon", 28 }, { "deepseek-llm", 13 }, { "deepseek-coder", 13 }, { "starcoder", 14 }, { "refact", 14 }, { "smollm2", 21 }
    };
    int lost = 0, expected = 0;
    for (size_t i = 0; i < HL_COUNT(lacking); i++) if (strcmp(name, lacking[i].name) == 0) expected = lacking[i].n;
    for (int b = 0; b < 256; b++) {
        char text[2] = { 'a', (char)b }, back[16];
        hl_text_part part = { text, 2, false };
        int32_t ids[16];
        size_t n, len;
        CHECK(hl_vocab_tokenize(&env, &err, v, &part, 1, 0, ids, 16, &n) == HLLM_OK);
        CHECK(hl_vocab_detokenize(&err, v, ids, n, 0, back, sizeof back, &len) == HLLM_OK);
        if (len == 2 && memcmp(back, text, 2) == 0) continue;
        lost++;
        CHECK_MSG((len == 1 && b < 0x80) || (len == 4 && memcmp(back, "a\xef\xbf\xbd", 4) == 0), "%s byte %02x", name, (unsigned)b);
    }
    CHECK_MSG(lost == expected, "%s lost %d bytes", name, lost);
}

/* 0: the file is not there */
static int check_vocabulary(const char *name, const char *relative, bool pairs)
{
    hl_gguf *g;
    hl_vocab *v;
    char file[512];
    snprintf(file, sizeof file, "%s", test_path(relative));
    FILE *f = fopen(file, "rb");
    if (!f) return 0;
    fclose(f);
    hl_status rc = hl_gguf_open(&env, &err, file, HLLM_MODEL_VOCAB_ONLY, NULL, &g);
    CHECK_MSG(rc == HLLM_OK, "%s", err.text);
    if (rc != HLLM_OK) return 1;
    uint64_t before = hl_mem_live_bytes(env.mem), t0 = hl_now_ns();
    rc = hl_vocab_new(&env, &err, g, &v);
    CHECK_MSG(rc == HLLM_OK, "%s", err.text);
    if (rc == HLLM_OK) {
        int failed = check_failed;
        fprintf(stderr, "%s: %u tokens, loaded in %u ms, %u KiB", name, hl_vocab_size(v), (unsigned)((hl_now_ns() - t0) / 1000000),
                (unsigned)((hl_mem_live_bytes(env.mem) - before) / 1024));
        check_golden(v, name, false);
        check_golden(v, name, true);
        check_bytes(v, name);
        if (pairs) check_pairs(v, name, file);
        fprintf(stderr, failed == check_failed ? ", equal\n" : ", NOT equal\n");
        hl_vocab_free(&env, v);
    }
    hl_gguf_free(&env, g);
    CHECK(hl_mem_live_bytes(env.mem) + 0 <= before);
    return 1;
}

int main(void)
{
    static const char *const vocabs[] = {
        "llama-bpe", "qwen2", "qwen35", "falcon", "deepseek-llm", "deepseek-coder", "starcoder", "gpt-2", "phi-3", "llama-spm",
        "command-r", "refact"
    };
    const char *require = getenv("HLLM_REQUIRE_VOCABS");
    char path[128];
    int missing = 0;
    REQUIRE(hl_mem_new(NULL, &env.mem) == HLLM_OK && hl_log_new(env.mem, &env.log) == HLLM_OK);
    hl_error_init(&err);
    CHECK_MSG(check_vocabulary("tiny", "models/tiny-relu2-q8_0.gguf", false), "the shipped model is missing");
    missing += !check_vocabulary("smollm2", "build/models/smollm2-135m-instruct-q4_1.gguf", false);
    missing += !check_vocabulary("gemma3", "build/models/gemma-3-270m-q4_k_m.gguf", false);
    for (size_t i = 0; i < HL_COUNT(vocabs); i++) {
        snprintf(path, sizeof path, "build/vocab/ggml-vocab-%s.gguf", vocabs[i]);
        missing += !check_vocabulary(vocabs[i], path, true);
    }
    if (missing) fprintf(stderr, "%d files were not there: tests/get_models.sh and tests/get_vocabs.sh fetch them\n", missing);
    if (require && *require == '1') CHECK_MSG(!missing, "HLLM_REQUIRE_VOCABS=1");
    hl_log_free(env.mem, env.log);
    CHECK(hl_mem_live_bytes(env.mem) <= 64);
    hl_mem_free(env.mem);
    return check_done();
}
