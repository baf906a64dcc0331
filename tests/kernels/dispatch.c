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
    uint8_t *base = test_alloc(64);
    static const uint32_t n[] = { 32, 256, 288, 4096 };
    for (uint32_t i = 0; i < HL_COUNT(n); i++) {
        size_t bytes = hl_q8_row_bytes(n[i]);
        CHECK(bytes % 64 == 0 && bytes >= (n[i] + 255) / 256 * sizeof(hl_q8_unit));
        CHECK((uintptr_t)hl_q8_row_at(base, n[i], 0) == (uintptr_t)base);
        CHECK((uintptr_t)hl_q8_row_at(base, n[i], 3) == (uintptr_t)base + 3 * bytes);
    }
    free(base);
}

int main(void)
{
    check_names();
    check_rows();
    for (int i = 0; hl_cpu_tables[i]; i++) if (hl_cpu_tables[i]->supported()) check_probes(hl_cpu_tables[i]);
    return check_done();
}
