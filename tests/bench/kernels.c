/* kernels.c: how fast each kernel table is, beside what the machine can do.  Usage: kernels [threads [isa [type]]]
 *                                                                              kernels once isa type rows     one decode, for counting: instructions.sh
 *
 * Decode reads 256 MiB of weights of one type once per token (GB/s); prefill multiplies 64 tokens by a matrix that fits in the cache
 * (GOPS, a multiplication and an addition are 2).  Each figure is the best of five, all threads busy, each with its own rows.
 * f32 sums (F32 and F16 weights, BF16 without BF16 dot products) have a ceiling of their own: VNNI's divided by 4, vpdpbf16ps has half of VNNI's.
 */
#include "cpu/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { COLS = 2048, PREFILL_TOK = 64, PREFILL_ROWS = 256, TRIES = 5, MAX_THREADS = 64 };

typedef struct work {
    const hl_cpu_kernels *k;
    uint32_t dtype, n_rows, n_tok, rounds;
    const uint8_t *w;
    size_t row_bytes, bytes;
    hl_q8_unit *units;                                 /* of tokens, and side by side for n_tok of them */
    void *act;
    bool packed;
    float *x, *y, *scratch;
    int what;                                          /* 0: matmul_q8, 1: matmul_f32, 2: probe_int8, 3: probe_read, 4: quantize, 5: attention, 6: matmul_half */
    hl_kv_layer kv;
    double done, begun, ended;                         /* seconds, by the thread itself */
} work;

static pthread_barrier_t barrier;
static volatile uint64_t sink;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *large(size_t bytes)
{
    void *p = mmap(NULL, bytes + (2u << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) { perror("mmap"); exit(1); }
    p = (void *)hl_align_up((size_t)(uintptr_t)p, 2u << 20);
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static void *run(void *arg)
{
    work *w = arg;
    pthread_barrier_wait(&barrier);
    w->begun = now();
    for (uint32_t i = 0; i < w->rounds; i++) {
        switch (w->what) {
        case 0: w->k->matmul_q8(w->dtype, w->packed, w->y, w->n_rows, w->w, w->row_bytes, w->n_rows, COLS, w->act, w->n_tok, w->scratch); break;
        case 1: w->k->matmul_f32(w->dtype, w->y, w->n_rows, w->w, w->row_bytes, w->n_rows, COLS, w->x, w->n_tok, w->scratch); break;
        case 2: w->done = w->k->probe_int8(20000000); break;
        case 3: sink += w->k->probe_read(w->w, w->bytes, w->n_tok); break;
        case 4: w->k->quantize(w->units, w->x, COLS); break;
        case 6: w->k->matmul_half(w->dtype, w->packed, false, w->y, w->n_rows, w->w, w->row_bytes, w->n_rows, COLS, w->x, w->n_tok, w->scratch); break;
        default: {
            const hl_attention a = { .q = w->x, .out = w->y, .kv = &w->kv, .n_heads = 1, .n_tok = w->n_tok, .pos0 = w->n_rows - w->n_tok, .scale = 0.125f };
            w->k->attention(&a, 0, 0, 1, 0, w->n_tok, w->scratch);
        }
        }
    }
    w->ended = now();
    return NULL;
}

/* seconds for all threads to finish their rounds */
static double measure(work *w, uint32_t n)
{
    double best = 1e300;
    for (int i = 0; i < TRIES; i++) {
        pthread_t id[MAX_THREADS];
        double begun = 1e300, ended = 0;
        pthread_barrier_init(&barrier, NULL, n);
        for (uint32_t t = 0; t < n; t++) pthread_create(&id[t], NULL, run, &w[t]);
        for (uint32_t t = 0; t < n; t++) {
            pthread_join(id[t], NULL);
            begun = w[t].begun < begun ? w[t].begun : begun;
            ended = w[t].ended > ended ? w[t].ended : ended;
        }
        if (ended - begun < best) best = ended - begun;
        pthread_barrier_destroy(&barrier);
    }
    return best;
}

static void set_all(work *w, uint32_t n, int what, uint32_t dtype, uint32_t n_rows, uint32_t n_tok, uint32_t rounds)
{
    for (uint32_t t = 0; t < n; t++) {
        w[t].what = what;
        w[t].dtype = dtype;
        w[t].row_bytes = hl_dtype_bytes(hl_dtype(dtype), COLS);
        w[t].n_rows = n_rows;
        w[t].n_tok = n_tok;
        w[t].rounds = rounds;
        if (what == 0) w[t].k->side_by_side(w[t].act, w[t].units, COLS, n_tok);
    }
}

static const uint32_t bench_types[] = { HL_Q4_0, HL_Q4_1, HL_Q5_0, HL_Q5_1, HL_Q8_0, HL_IQ4_NL, HL_MXFP4, HL_Q2_K, HL_Q3_K, HL_Q4_K, HL_Q5_K, HL_Q6_K,
                                        HL_IQ4_XS, HL_F32, HL_F16, HL_BF16 };

static void bench_table(const hl_cpu_kernels *k, work *w, uint32_t n, size_t bytes, const char *only)
{
    for (uint32_t t = 0; t < n; t++) {
        w[t].k = k;
        for (uint32_t it = 0; it < PREFILL_TOK; it++) k->quantize((hl_q8_unit *)(void *)((uint8_t *)w[t].units + it * hl_q8_row_bytes(COLS)), w[t].x + it * COLS, COLS);
    }
    set_all(w, n, 2, HL_F32, 0, 0, 1);
    double s = measure(w, n);
    printf("%-7s %uT  int8 peak %.0f GOPS; read", k->isa, n, w[0].done * n / s / 1e9);
    for (uint32_t streams = 1; streams <= 8; streams *= 2) {
        set_all(w, n, 3, HL_F32, 0, streams, 1);
        printf(" %u: %.1f", streams, (double)bytes * n / measure(w, n) / 1e9);
    }
    set_all(w, n, 4, HL_F32, 0, 0, 1000);
    printf(" GB/s; quantize %u: %.2f us\n", COLS, measure(w, n) * 1e3);
    for (size_t i = 0; i < HL_COUNT(bench_types); i++) {
        const hl_dtype_info *t = hl_dtype(bench_types[i]);
        size_t row_bytes = hl_dtype_bytes(t, COLS);
        int what = t->block > 1 ? 0 : bench_types[i] == HL_F32 ? 1 : 6;
        uint32_t n_rows = (uint32_t)(bytes / row_bytes / 4 / 32 * 32);
        if (only && strcmp(only, t->name) != 0) continue;
        set_all(w, n, what, bench_types[i], n_rows, 1, 1);
        for (uint32_t th = 0; th < n; th++) w[th].packed = false;
        double file = (double)row_bytes * n_rows * n / measure(w, n);
        for (uint32_t th = 0; th < n; th++) w[th].packed = what != 1 && k->group;       /* bytes at random are as good as packed ones */
        double decode = (double)row_bytes * n_rows * n / measure(w, n);
        set_all(w, n, what, bench_types[i], PREFILL_ROWS, PREFILL_TOK, 4);
        double prefill = 2.0 * COLS * PREFILL_ROWS * PREFILL_TOK * 4 * n / measure(w, n);
        double few[4];
        for (uint32_t f = 0; f < 4; f++) {
            const uint32_t n_tok = 2u << f, rounds = 40 / n_tok + 2;
            set_all(w, n, what, bench_types[i], PREFILL_ROWS, n_tok, rounds);
            few[f] = 2.0 * COLS * PREFILL_ROWS * n_tok * rounds * n / measure(w, n) / 1e9;
        }
        set_all(w, n, what, bench_types[i], PREFILL_ROWS, 1, 80);
        double cached = (double)row_bytes * PREFILL_ROWS * 80 * n / measure(w, n);
        printf("%-7s %-7s decode %5.1f GB/s (cached %5.1f, file's layout %5.1f)   prefill %6.1f GOPS (2, 4, 8, 16 tokens %.0f %.0f %.0f %.0f)\n", k->isa, t->name, decode / 1e9, cached / 1e9,
               file / 1e9, prefill / 1e9, few[0], few[1], few[2], few[3]);
        fflush(stdout);
    }
    for (uint32_t kind = 0; kind < 3; kind++) {
        static const uint32_t kv_types[] = { HL_F16, HL_F32, HL_Q8_0 };
        for (uint32_t t = 0; t < n; t++) {
            w[t].kv = (hl_kv_layer){ .k = (void *)(uintptr_t)w[t].w, .v = (void *)(uintptr_t)(w[t].w + (1 << 20)), .dtype = kv_types[kind], .n_slots = 1024, .n_heads = 1,
                                     .dim_k = 64, .dim_v = 64 };
        }
        for (uint32_t n_q = 1; n_q <= 48; n_q = n_q == 1 ? 4 : n_q * 12) {
            set_all(w, n, 5, HL_F32, 1024, n_q, 20);
            printf("%-7s attention %s, %u queries of 64 by 1024 positions: %.1f GFLOPS\n", k->isa, hl_dtype(kv_types[kind])->name, n_q,
                   4.0 * 64 * 1024 * 20 * n_q * n / measure(w, n) / 1e9);
        }
    }
}

/* One token by `rows` packed rows of one type, everything else the same for any number of rows. */
static int once(const hl_cpu_kernels *k, const char *type, uint32_t rows)
{
    work w = { .k = k, .n_rows = rows, .n_tok = 1, .rounds = 1, .packed = true, .dtype = HL_DTYPE_END };
    for (size_t i = 0; i < HL_COUNT(bench_types); i++) if (strcmp(type, hl_dtype(bench_types[i])->name) == 0) w.dtype = bench_types[i];
    if (!k || w.dtype == HL_DTYPE_END || rows > PREFILL_ROWS) return 2;
    w.what = hl_dtype(w.dtype)->block > 1 ? 0 : w.dtype == HL_F32 ? 1 : 6;
    w.row_bytes = hl_dtype_bytes(hl_dtype(w.dtype), COLS);
    w.w = large(PREFILL_ROWS * COLS * 4);              /* zeros */
    w.x = large(COLS * 4);
    w.y = large(PREFILL_ROWS * 4);
    w.act = large(hl_q8_row_bytes(COLS));
    w.scratch = large(1 << 22);
    k->quantize(w.act, w.x, COLS);
    pthread_barrier_init(&barrier, NULL, 1);
    run(&w);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "once") == 0) return once(hl_cpu_pick(argv[2]), argv[3], (uint32_t)atoi(argv[4]));
    uint32_t n = argc > 1 ? (uint32_t)atoi(argv[1]) : 1;
    size_t bytes = 256u << 20;
    static work w[MAX_THREADS];
    if (n < 1 || n > MAX_THREADS) return 2;
    for (uint32_t t = 0; t < n; t++) {
        uint8_t *data = large(bytes);
        /* Small numbers in every reading: halves and floats of 0x11.. are tiny, and speed depends on no value. */
        memset(data, 0x11, bytes);
        w[t].w = data;
        w[t].bytes = bytes;
        w[t].units = large(hl_q8_row_bytes(COLS) * PREFILL_TOK);
        w[t].act = large(hl_q8_row_bytes(COLS) * PREFILL_TOK);
        w[t].x = large(COLS * PREFILL_TOK * 4);
        w[t].y = large((bytes / 256 + PREFILL_ROWS * PREFILL_TOK) * 4);
        w[t].scratch = large(1 << 22);
        for (uint32_t i = 0; i < COLS * PREFILL_TOK; i++) w[t].x[i] = (float)((i * 2654435761u >> 8 & 0xFFFF) / 32768.0 - 1);
    }
    for (int i = 0; hl_cpu_tables[i]; i++) {
        const hl_cpu_kernels *k = hl_cpu_tables[i];
        if (!k->supported() || (argc > 2 && strcmp(argv[2], k->isa) != 0)) continue;
        bench_table(k, w, n, strcmp(k->isa, "scalar") == 0 ? bytes / 8 : bytes, argc > 3 ? argv[3] : NULL);
    }
    return 0;
}
