/* Choice of a table by name and by CPU, the list for `devices`, and the probes that measure the machine. */
#include "oracle.h"
#include "backend.h"

static bool in_list(const char *list, const char *isa)
{
    size_t n = strlen(isa);
    for (const char *at = list; (at = strstr(at, isa)); at++)
        if ((at == list || at[-1] == ' ') && (at[n] == 0 || at[n] == ' ')) return true;
    return false;
}

static void check_names(void)
{
    const char *list = hl_cpu_isa_list();
    size_t named = 0;
    REQUIRE(list);
    for (int i = 0; hl_cpu_tables[i]; i++) {
        const hl_cpu_kernels *k = hl_cpu_tables[i];
        bool has = k->supported();
        CHECK_MSG(in_list(list, k->isa) == has, "%s in \"%s\"", k->isa, list);
        CHECK(hl_cpu_pick(k->isa) == (has ? k : NULL));
        CHECK(hl_cpu_isa_pick(k->isa) == (has ? k->isa : NULL));
        if (has) named += strlen(k->isa) + 1;
    }
    CHECK_MSG(named == strlen(list) + 1, "\"%s\" names more", list);
    CHECK(strncmp(list, hl_cpu_pick(NULL)->isa, strlen(hl_cpu_pick(NULL)->isa)) == 0);      /* best first */
    CHECK(in_list(list, "scalar"));
    CHECK(!hl_cpu_pick("") && !hl_cpu_pick("avx") && !hl_cpu_pick("AVX2") && !hl_cpu_pick("scalar ") && !hl_cpu_isa_pick("sse9"));
}

/* What the kernel says of the CPU, in its words.  Under an emulator that shows another CPU's words: nothing to compare with. */
static void check_supported(void)
{
    static const char *const needs[][8] = {
        { "avx2", "avx2", "fma", "f16c" }, { "avxvnni", "avx2", "fma", "f16c", "avx_vnni" },
        { "avx512", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni" },
        { "avx512bf16", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16" },
        { "neon", "asimd" }, { "dotprod", "asimddp" }, { "i8mm", "i8mm" },
    };
#if defined(__x86_64__)
    const char *title = "flags";
#else
    const char *title = "Features";
#endif
    char line[8192];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, title, strlen(title)) != 0) continue;
        line[strcspn(line, "\n")] = 0;
        for (int i = 0; hl_cpu_tables[i]; i++)
            for (size_t n = 0; n < HL_COUNT(needs); n++) {
                bool has = true;
                if (strcmp(needs[n][0], hl_cpu_tables[i]->isa) != 0) continue;
                for (int k = 1; k < 8 && needs[n][k]; k++) has = has && in_list(line, needs[n][k]);
                CHECK_MSG((hl_cpu_tables[i]->supported() != 0) == has, "%s: the kernel says %d", needs[n][0], has);
            }
        break;
    }
    if (f) fclose(f);
}

static void check_probes(const hl_cpu_kernels *k)
{
    enum { N = 4096 };
    uint64_t *data = test_alloc(N * 8), sum = 0;
    for (uint32_t i = 0; i < N; i++) sum += data[i] = random_u64();
    for (uint32_t streams = 1; streams <= 8; streams *= 2) CHECK_MSG(k->probe_read(data, N * 8, streams) == sum, "%s: %u streams", k->isa, streams);
    data[N - 1]++;
    CHECK(k->probe_read(data, N * 8, 4) != sum);
    uint64_t n = 1000;
    double one = k->probe_int8(n), two = k->probe_int8(2 * n);
    CHECK(one >= 64.0 * (double)n && two == 2 * one);
    CHECK(k->probe_int8(0) == 0);
    CHECK(k->matmul_scratch(32) >= 32 * 1 && k->attention_scratch(1, 64) > 0);
    free(data);
}

static void check_rows(void)
{
    static const uint32_t n[] = { 32, 256, 288, 4096 };
    for (uint32_t i = 0; i < HL_COUNT(n); i++) {
        size_t bytes = hl_q8_row_bytes(n[i]);
        CHECK(bytes % 64 == 0 && bytes >= (n[i] + 255) / 256 * sizeof(hl_q8_unit));
    }
}

/* Every word of every token, where the comment in kernels.h says. */
static void check_side_by_side(const hl_cpu_kernels *k)
{
    enum { N = 288, TOKS = 23, UNITS = 2 };            /* blocks of 8, 8, 4, 2, 1 */
    static const uint32_t first[] = { 0, 8, 16, 20, 22, 23 };
    const size_t row = hl_q8_row_bytes(N);
    uint8_t *rows = test_alloc(row * TOKS), *to = test_alloc(row * TOKS);
    for (size_t i = 0; i < row * TOKS; i++) rows[i] = (uint8_t)random_below(256);
    memset(to, 0xA5, row * TOKS);
    k->side_by_side(to, (const hl_q8_unit *)(const void *)rows, N, TOKS);
    for (uint32_t b = 0; b < 5; b++) {
        const uint32_t width = first[b + 1] - first[b];
        CHECK(hl_q8_width(TOKS - first[b]) == width);
        for (uint32_t lane = 0; lane < width; lane++)
            for (uint32_t ib = 0; ib < 8 * UNITS; ib++) {
                const hl_q8_unit *u = (const hl_q8_unit *)(const void *)(rows + (first[b] + lane) * row) + ib / 8;
                const uint32_t g = ib % 8;
                const void *want[HL_Q8_WORDS] = { u->q + 32 * g, u->q + 32 * g + 4, u->q + 32 * g + 8, u->q + 32 * g + 12, u->q + 32 * g + 16, u->q + 32 * g + 20, u->q + 32 * g + 24,
                                                  u->q + 32 * g + 28, &u->d[g], &u->sum[0][g], &u->sum[1][g], &u->sum[2][g], &u->comp[0][g], &u->comp[1][g], &u->comp[2][g],
                                                  g < 4 ? (const void *)&u->sum16[2 * g] : g == 4 ? &u->step16 : &u->reserved[g - 5] };
                for (uint32_t w = 0; w < HL_Q8_WORDS; w++)
                    CHECK_MSG(memcmp(to + first[b] * row + ((size_t)(ib * HL_Q8_WORDS + w) * width + lane) * 4, want[w], 4) == 0, "%s: token %u, block %u, word %u", k->isa, first[b] + lane, ib, w);
            }
    }
    free(rows);
    free(to);
}

int main(void)
{
    check_names();
    check_supported();
    check_rows();
    for (int i = 0; hl_cpu_tables[i]; i++) {
        if (!hl_cpu_tables[i]->supported()) continue;
        check_probes(hl_cpu_tables[i]);
        check_side_by_side(hl_cpu_tables[i]);
    }
    return check_done();
}
