/* Words of the pre-splitters against stored ones, which the `regex` Python package cut (tests/presplit_differential.py --write). */
#include "check.h"
#include "model/vocab.h"

static size_t ends[4096], n_ends, at;
static hl_status word(void *user, const hl_cell *cells, size_t n)
{
    (void)user; (void)cells;
    at += n;
    ends[n_ends++] = at;
    return n ? HLLM_OK : HLLM_E_INTERNAL;
}

/* The words of a text; a cell per code point. */
static size_t run(const char *name, const char *text, size_t n)
{
    static hl_cell cells[1 << 16];
    uint32_t flags;
    const hl_splitter *sp = hl_splitter_find(name, strlen(name), &flags);
    REQUIRE(sp);
    at = n_ends = 0;
    size_t n_cells = hl_cells_from_text(text, n, cells);
    CHECK(hl_presplit(sp, cells, n_cells, word, NULL) == HLLM_OK);
    CHECK(at == n_cells);
    return n_cells;
}

static void check_stored(const char *name)
{
    char path[128], text[4096];
    static char line[1 << 16];
    int lines = 0, words = 0;
    snprintf(path, sizeof path, "tests/data/presplit/%s.txt", name);
    FILE *f = fopen(test_path(path), "r");
    REQUIRE(f);
    while (fgets(line, sizeof line, f)) {
        size_t want[1024], n_want = 0, n = 0, n_cp = 0;
        for (char *s = line, *e; *s && *s != '\n'; s = e) {
            n += hl_utf8_encode((uint32_t)strtoul(s, &e, 16), text + n);
            REQUIRE(e > s);
            n_cp++;
            if (*e == '|' || *e == '\n') want[n_want++] = n_cp;
            if (*e) e++;
        }
        run(name, text, n);
        CHECK_MSG(n_ends == n_want && memcmp(ends, want, n_want * sizeof *want) == 0, "%s line %d", name, lines + 1);
        lines++;
        words += (int)n_want;
    }
    fclose(f);
    CHECK_MSG(lines >= 200 && words > 3 * lines, "%s: %d lines, %d words", name, lines, words);
}

static void check_words(const char *name, const char *text, const char *want)
{
    char got[256] = "";
    run(name, text, strlen(text));
    for (size_t i = 0, k = 0; i < n_ends; i++)
        for (size_t begin = i ? ends[i - 1] : 0; begin < ends[i]; begin++)
            snprintf(got + strlen(got), sizeof got - strlen(got), "%c%s", text[k++], begin + 1 == ends[i] && i + 1 < n_ends ? "|" : "");
    CHECK_MSG(strcmp(got, want) == 0, "%s: got %s, want %s", name, got, want);
}

int main(void)
{
    static const char *const names[] = {
        "default", "gpt-2", "llama-bpe", "qwen2", "qwen35", "smollm", "tekken", "gpt-4o", "deepseek-llm", "deepseek-coder", "deepseek-v3", "falcon"
    };
    static const char *const same[][2] = {
        { "llama3", "llama-bpe" }, { "smaug-bpe", "llama-bpe" }, { "starcoder", "smollm" }, { "refact", "smollm" }, { "command-r", "smollm" },
        { "deepseek-r1-qwen", "qwen2" }, { "stablelm2", "qwen2" }, { "llama4", "gpt-4o" }, { "phi-2", "gpt-2" }
    };
    char all[2048], small[8];
    uint32_t f;
    for (size_t i = 0; i < HL_COUNT(names); i++) check_stored(names[i]);
    for (size_t i = 0; i < HL_COUNT(same); i++)
        CHECK(hl_splitter_find(same[i][0], strlen(same[i][0]), &f) == hl_splitter_find(same[i][1], strlen(same[i][1]), &f) ||
              strcmp(same[i][0], "smaug-bpe") == 0);
    CHECK(!hl_splitter_find("llama", 5, &f) && !hl_splitter_find("", 0, &f) && !hl_splitter_find("gpt-2 phi-2", 11, &f) && !hl_splitter_find("gpt-", 4, &f));
    size_t n = hl_splitter_names(all, sizeof all);
    CHECK(n == strlen(all) && n < 900 && strstr(all, "default gpt-2") == all && strstr(all, " tekken ") && all[n - 1] != ' ');
    CHECK(hl_splitter_names(small, sizeof small) == n && strcmp(small, "default") == 0);

    check_words("gpt-2", "I'll  don't 'S", "I|'ll| | don|'t| '|S");
    check_words("llama-bpe", "I'LL 12345  x\n\n y!!\n", "I|'LL| |123|45| | x|\n\n| y|!!\n");
    check_words("qwen2", "a 12", "a| |1|2");
    check_words("tekken", "HTTPServer's", "HTTPServer|'s");
    check_words("gpt-4o", "HTTPServer's camelCase", "HTTPServer's| camel|Case");
    check_words("deepseek-llm", "a  b  ", "a| | b|  ");

    check_words("tekken", "!!/\n/a", "!!/\n/|a");
    check_words("qwen2", "!!/\n/a", "!!/\n|/a");
    check_words("falcon", "a `b", "a| |`|b");
    check_words("default", "a `b", "a| `|b");
    check_words("default", "a <b 12345", "a| |<|b| |123|45");
    /* Long s folds to s where case does not matter. */
    CHECK(run("llama-bpe", "a'\xc5\xbf" "b", 5) == 4 && n_ends == 3 && ends[0] == 1 && ends[1] == 3 && ends[2] == 4);
    CHECK(run("gpt-2", "a'\xc5\xbf" "b", 5) == 4 && n_ends == 3 && ends[0] == 1 && ends[1] == 2 && ends[2] == 4);

    /* Bytes that are no UTF-8 are one cell each and count as U+FFFD, a symbol. */
    CHECK(run("gpt-2", "a\xff\xe2\x82 b", 6) == 6 && n_ends == 3 && ends[0] == 1 && ends[1] == 4 && ends[2] == 6);
    CHECK(run("gpt-2", "", 0) == 0 && n_ends == 0);
    return check_done();
}
