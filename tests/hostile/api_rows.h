/* api_rows.h: one row of the hostile catalogue through the public interface: write the file, open it, look at everything that the
 * rule demands (hostile.h), and open a good one with the same runtime. */
#ifndef API_ROWS_H
#define API_ROWS_H

#include "hostile.h"

static counting row_count = COUNTING_INIT;
static hllm_runtime *row_rt;
static char row_path[1024], row_good[1024];
static int rows_hit[100];

static inline const char *row_text(void)
{
    static char text[2048];
    hllm_runtime_last_error(row_rt, text, sizeof text);
    return text;
}

static inline void row_drop_log(void)
{
    char line[1024];
    uint32_t level;
    size_t needed = 0;
    while (hllm_log_poll(row_rt, &level, line, sizeof line, &needed) == HLLM_OK && needed) { }
}

static inline hllm_status row_open(const char *path, uint32_t flags, hllm_model **out)
{
    hllm_model_options opt = { sizeof opt, flags, NULL };
    return hllm_model_open(row_rt, path, &opt, out);
}

static inline void row_still_works(void)
{
    hllm_model *m = NULL;
    hllm_status rc = row_open(row_good, 0, &m);
    CHECK_MSG(rc == HLLM_OK && m, "the good model: %s %s", hllm_status_name(rc), row_text());
    hllm_model_free(m);
}

/* Opens row_path.  want2: another code that is as right (else = want).  words: what the message has, '|' between them. */
static inline void row_expect_path(int row, const char *what, uint64_t file_bytes, uint32_t flags, hllm_status want, hllm_status want2,
                                   const char *words)
{
    hllm_model *m = (hllm_model *)(uintptr_t)1;
    row_drop_log();
    size_t live = row_count.live;
    long blocks = row_count.blocks;
    row_count.peak = live;
    rows_hit[row]++;
    double t = hostile_now();
    hllm_status rc = row_open(row_path, flags, &m);
    t = hostile_now() - t;
    CHECK_MSG(rc == want || rc == want2, "row %d, %s: got %s, want %s: %s", row, what, hllm_status_name(rc), hllm_status_name(want),
              rc == HLLM_OK ? "" : row_text());
    if (rc != HLLM_OK) {
        CHECK_MSG(m == NULL, "row %d, %s", row, what);
        CHECK_MSG(hostile_says(row_text(), words), "row %d, %s: '%s' lacks '%s'", row, what, row_text(), words);
        CHECK_MSG(strstr(row_text(), row_path) != NULL, "row %d, %s: '%s' does not name the file", row, what, row_text());
        CHECK_MSG(hostile_printable(row_text()), "row %d, %s: control bytes in the message", row, what);
    }
    CHECK_MSG(row_count.peak - live <= 4 * file_bytes + (16u << 20), "row %d, %s: %zu bytes of memory for a file of %" PRIu64, row, what,
              row_count.peak - live, file_bytes);
    CHECK_MSG(t <= hostile_seconds, "row %d, %s: %d ms", row, what, (int)(t * 1000));
    if (rc == HLLM_OK) hllm_model_free(m);
    CHECK_MSG(row_count.live == live && row_count.blocks == blocks, "row %d, %s: a leak of %zu bytes", row, what, row_count.live - live);
    row_still_works();
}

/* Writes f, frees it. */
static inline void row_expect2(int row, const char *what, gguf_file *f, hllm_status want, hllm_status want2, const char *words)
{
    gbuf b = gf_write(f, NULL);
    hostile_write(row_path, b.p, b.n, 0);
    row_expect_path(row, what, b.n, 0, want, want2, words);
    gb_free(&b);
    gf_free(f);
}

static inline void row_expect(int row, const char *what, gguf_file *f, hllm_status want, const char *words)
{
    row_expect2(row, what, f, want, want, words);
}

static inline void rows_begin(void)
{
    hllm_allocator hook = counting_hook(&row_count);
    hllm_runtime_options opt = { .struct_size = sizeof opt, .n_threads = 2, .allocator = &hook };
    gguf_file *f = gf_llama();
    gbuf b = gf_write(f, NULL);
    REQUIRE(hllm_runtime_create(&opt, &row_rt) == HLLM_OK && row_rt);
    hostile_dir_make();
    snprintf(row_path, sizeof row_path, "%s", hostile_path("x.gguf"));
    snprintf(row_good, sizeof row_good, "%s", hostile_path("good.gguf"));
    hostile_write(row_good, b.p, b.n, 0);
    gb_free(&b);
    gf_free(f);
    row_still_works();
    REQUIRE(check_failed == 0);                        /* without a good model nothing below means anything */
}

static inline int rows_end(const int *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) CHECK_MSG(rows_hit[rows[i]] > 0, "row %d was not tried", rows[i]);
    unlink(row_path);
    unlink(row_good);
    hostile_dir_remove();
    hllm_runtime_free(row_rt);
    CHECK(row_count.live == 0 && row_count.blocks == 0);
    return check_done();
}

#endif
