/* The GGUF reader on good files: every value type, lookups, offsets inside bundles, long headers, split sets; and what a failing
 * allocator, a failing disk and a cancel do at every point.  Files are written by tests/hostile/gguf_writer.h.
 * Hostile containers: tests/hostile/container.c. */
#include <sys/mman.h>

#include "../hostile/hostile.h"
#include "model/gguf_parse.h"

static counting count = COUNTING_INIT;
static hl_env env;
static hl_error err;

static const char *text_of(void)
{
    static char text[1024];
    hl_error_copy(&err, text, sizeof text);
    return text;
}

static int memory_file(const void *bytes, size_t n)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    NEED(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    return fd;
}

/* Opens what f writes and frees f. */
static hl_gguf *open_file(gguf_file *f, uint32_t flags)
{
    hl_gguf *g = NULL;
    gbuf b = gf_write(f, NULL);
    int fd = memory_file(b.p, b.n);
    hl_status rc = hl_gguf_open_fd(&env, &err, fd, 0, 0, flags, NULL, &g);
    CHECK_MSG(rc == HLLM_OK && g, "%s", text_of());
    close(fd);
    gb_free(&b);
    gf_free(f);
    if (!g) exit(1);
    return g;
}

static void value_types(void)
{
    static const struct { const char *name; uint32_t type; uint64_t bits; int bytes; hl_status rc; int64_t want; } ints[] = {
        { "u8", GT_U8, 0xFE, 1, 0, 254 }, { "i8", GT_I8, 0xFE, 1, 0, -2 }, { "u16", GT_U16, 0xFFFE, 2, 0, 65534 },
        { "i16", GT_I16, 0xFFFE, 2, 0, -2 }, { "u32", GT_U32, 0xFFFFFFFE, 4, 0, 4294967294 }, { "i32", GT_I32, 0xFFFFFFFE, 4, 0, -2 },
        { "u64", GT_U64, INT64_MAX, 8, 0, INT64_MAX }, { "u64 big", GT_U64, 1ull << 63, 8, HLLM_E_MISMATCH, 0 },
        { "i64", GT_I64, UINT64_MAX - 1, 8, 0, -2 }, { "bool", GT_BOOL, 1, 1, HLLM_E_MISMATCH, 0 },
        { "f32", GT_F32, 0x3FC00000, 4, HLLM_E_MISMATCH, 0 }, { "f64", GT_F64, 0xC000000000000000, 8, HLLM_E_MISMATCH, 0 } };
    gguf_file *f = gf_new();
    for (size_t i = 0; i < HL_COUNT(ints); i++) gb_add(&gf_key(f, ints[i].name, ints[i].type)->value, &ints[i].bits, (size_t)ints[i].bytes);
    gf_str(f, "text", "t\xc3\xa4xt");
    gf_str(f, "no text", "");
    gbuf *a = gf_array(f, "words", GT_STRING, 3);
    gb_str(a, "one", 3);
    gb_str(a, "", 0);
    gb_str(a, "a\0b", 3);
    a = gf_array(f, "shorts", GT_I16, 3);
    for (int i = -1; i < 2; i++) gb_u16(a, (uint16_t)(i * 300));
    gb_add(gf_array(f, "flags", GT_BOOL, 2), "\1\0", 2);
    gf_array(f, "nothing", GT_STRING, 0);
    gf_array(f, "no numbers", GT_F64, 0);
    hl_gguf *g = open_file(f, 0);
    CHECK(g->version == 3 && g->n_keys == HL_COUNT(ints) + 7 && g->n_tensors == 0 && g->n_shards == 1);
    CHECK(strncmp(hl_gguf_path(g), "fd ", 3) == 0);
    int64_t x;
    double d;
    bool b;
    const char *s;
    size_t n;
    for (size_t i = 0; i < HL_COUNT(ints); i++) {
        const hl_gguf_key *k = hl_gguf_find_key(g, ints[i].name);
        NEED(k && k->type == ints[i].type && k->elem == k->type && k->n == 1 && k == &g->keys[i]);
        CHECK_MSG(hl_gguf_int(k, 0, &x) == ints[i].rc && x == ints[i].want, "%s", ints[i].name);
        CHECK((hl_gguf_float(k, 0, &d) == HLLM_OK) == (ints[i].name[0] == 'f'));
        CHECK((hl_gguf_bool(k, 0, &b) == HLLM_OK) == (ints[i].name[0] == 'b'));
        CHECK(hl_gguf_string(k, 0, &s, &n) == HLLM_E_MISMATCH && !s && !n);
    }
    CHECK(hl_gguf_float(hl_gguf_find_key(g, "f32"), 0, &d) == HLLM_OK && d == 1.5);
    CHECK(hl_gguf_float(hl_gguf_find_key(g, "f64"), 0, &d) == HLLM_OK && d == -2);
    CHECK(hl_gguf_bool(hl_gguf_find_key(g, "bool"), 0, &b) == HLLM_OK && b);
    CHECK(hl_gguf_string(hl_gguf_find_key(g, "text"), 0, &s, &n) == HLLM_OK && n == 5 && memcmp(s, "t\xc3\xa4xt", 5) == 0);
    CHECK(hl_gguf_string(hl_gguf_find_key(g, "no text"), 0, &s, &n) == HLLM_OK && n == 0 && s);
    const hl_gguf_key *k = hl_gguf_find_key(g, "words");
    NEED(k && k->type == HLLM_VALUE_ARRAY && k->elem == HLLM_VALUE_STRING && k->n == 3);
    CHECK(k->str_at[0] == 0 && k->str_at[1] == 11 && k->str_at[2] == 19 && k->str_at[3] == 30);
    CHECK(hl_gguf_string(k, 0, &s, &n) == HLLM_OK && n == 3 && memcmp(s, "one", 3) == 0);
    CHECK(hl_gguf_string(k, 1, &s, &n) == HLLM_OK && n == 0);
    CHECK(hl_gguf_string(k, 2, &s, &n) == HLLM_OK && n == 3 && memcmp(s, "a\0b", 3) == 0);
    CHECK(hl_gguf_string(k, 3, &s, &n) == HLLM_E_MISMATCH && hl_gguf_int(k, 0, &x) == HLLM_E_MISMATCH);
    k = hl_gguf_find_key(g, "shorts");
    CHECK(k && k->n == 3 && hl_gguf_int(k, 0, &x) == HLLM_OK && x == -300 && hl_gguf_int(k, 2, &x) == HLLM_OK && x == 300);
    CHECK(hl_gguf_int(k, 3, &x) == HLLM_E_MISMATCH);
    k = hl_gguf_find_key(g, "flags");
    CHECK(k && hl_gguf_bool(k, 0, &b) == HLLM_OK && b && hl_gguf_bool(k, 1, &b) == HLLM_OK && !b);
    CHECK(k && hl_gguf_bool(k, 2, &b) == HLLM_E_MISMATCH);
    k = hl_gguf_find_key(g, "nothing");
    CHECK(k && k->n == 0 && k->elem == HLLM_VALUE_STRING && hl_gguf_string(k, 0, &s, &n) == HLLM_E_MISMATCH);
    CHECK(!hl_gguf_find_key(g, "absent") && !hl_gguf_find_key(g, "") && !hl_gguf_find_tensor(g, "u8"));
    hl_gguf_free(&env, g);
    CHECK(strcmp(hl_gguf_type_name(HLLM_VALUE_U32), "UINT32") == 0 && strcmp(hl_gguf_type_name(HLLM_VALUE_F64), "FLOAT64") == 0);
    CHECK(strcmp(hl_gguf_type_name(13), "?") == 0);
}

static gguf_file *with_tensors(void)
{
    gguf_file *f = gf_new();
    f->align = 64;
    gf_u32(f, "general.alignment", 64);
    gf_f32_tensor(f, "first", 5, 0, 0, 1);
    gf_f32_tensor(f, "second", 4, 3, 0, 1);
    gtensor *t = gf_tensor_raw(f, "blocks", 6, HL_Q4_K, 3, 512, 3);
    t->dims[2] = 2;
    for (int i = 0; i < 512 * 6 / 256 * 144; i++) gb_u8(&t->data, (uint8_t)(i * 7));
    return f;
}

static void tensors(void)
{
    static const char around[100] = { 'x' };
    gguf_file *f = with_tensors();
    size_t data_at;
    gbuf b = gf_write(f, &data_at), bundle = { 0 };
    gb_add(&bundle, around, 77);                       /* the file as an asset at an odd place of a bundle */
    gb_add(&bundle, b.p, b.n);
    gb_add(&bundle, around, 100);
    int fd = memory_file(bundle.p, bundle.n);
    hl_gguf *g = NULL;
    CHECK_MSG(hl_gguf_open_fd(&env, &err, fd, 77, b.n, 0, NULL, &g) == HLLM_OK, "%s", text_of());
    close(fd);                                         /* the reader has its own */
    NEED(g && g->n_tensors == 3);
    CHECK(g->file_bytes == b.n && g->shards[0].base == 77 && g->shards[0].bytes == b.n);
    const hl_gguf_tensor *t = hl_gguf_find_tensor(g, "first");
    CHECK(t && t == &g->tensors[0] && t->n_dims == 1 && t->dims[0] == 5 && t->dims[1] == 1 && t->n == 5 && t->bytes == 20 && t->at == data_at);
    t = hl_gguf_find_tensor(g, "second");
    CHECK(t && t->n_dims == 2 && t->dims[0] == 4 && t->dims[1] == 3 && t->dims[3] == 1 && t->n == 12 && t->at == data_at + 64);
    t = hl_gguf_find_tensor(g, "blocks");
    NEED(t && t->dtype == HL_Q4_K && t->n == 3072 && t->bytes == 12 * 144 && t->at == data_at + 128 && t->shard == 0);
    uint8_t *data = malloc((size_t)t->bytes);
    NEED(data && hl_file_read(&env, &err, &g->shards[0], t->at, data, (size_t)t->bytes) == HLLM_OK);
    CHECK(memcmp(data, f->tensors[2].data.p, (size_t)t->bytes) == 0);
    free(data);
    hl_gguf_free(&env, g);
    g = (hl_gguf *)(uintptr_t)1;                       /* one byte short of the last tensor's end */
    fd = memory_file(bundle.p, bundle.n);
    CHECK(hl_gguf_open_fd(&env, &err, fd, 77, b.n - 1, 0, NULL, &g) == HLLM_E_TRUNCATED && !g && strstr(text_of(), "blocks"));
    g = NULL;                                          /* without data: a vocabulary */
    CHECK(hl_gguf_open_fd(&env, &err, fd, 77, data_at, HLLM_MODEL_VOCAB_ONLY, NULL, &g) == HLLM_OK && g && g->n_tensors == 3);
    hl_gguf_free(&env, g);
    close(fd);
    CHECK(hl_gguf_open_fd(&env, &err, -1, 0, 0, 0, NULL, &g) == HLLM_E_ARG && !g);
    gb_free(&b);
    gb_free(&bundle);
    gf_free(f);
}

/* A header much longer than what is read at first, with many keys. */
static void long_header(void)
{
    enum { WORDS = 50000, NUMBERS = 100000 };
    for (int tail = 0; tail < 2; tail++) {
        gguf_file *f = gf_new();
        gbuf *a = gf_array(f, "words", GT_STRING, WORDS);
        char word[32];
        for (int i = 0; i < WORDS; i++) gb_str(a, word, (size_t)snprintf(word, sizeof word, "word %d", i));
        size_t header = a->n + NUMBERS * 4;
        a = gf_array(f, "numbers", GT_U32, NUMBERS);
        for (uint32_t i = 0; i < NUMBERS; i++) gb_u32(a, i * 3);
        gf_str(f, "last", "here");
        if (tail) gf_f32_tensor(f, "t", 1 << 20, 0, 0, 1);         /* then more is read than the header has: it is given back */
        hl_gguf *g = open_file(f, 0);
        const hl_gguf_key *k = hl_gguf_find_key(g, "words");
        const char *s;
        size_t n, bad = 0;
        int64_t x;
        for (int i = 0; k && i < WORDS; i++) {
            size_t len = (size_t)snprintf(word, sizeof word, "word %d", i);
            bad += hl_gguf_string(k, (uint64_t)i, &s, &n) != HLLM_OK || n != len || memcmp(s, word, n) != 0;
        }
        k = hl_gguf_find_key(g, "numbers");
        for (int i = 0; k && i < NUMBERS; i++) bad += hl_gguf_int(k, (uint64_t)i, &x) != HLLM_OK || x != i * 3;
        CHECK(k && bad == 0);
        k = hl_gguf_find_key(g, "last");
        CHECK(k && hl_gguf_string(k, 0, &s, &n) == HLLM_OK && n == 4 && memcmp(s, "here", 4) == 0);
        CHECK_MSG(count.live < header + WORDS * 8 + (1u << 17), "%zu bytes stay of a header of %zu", count.live, header);
        hl_gguf_free(&env, g);
    }
}

static uint64_t hash_of(gguf_file *f)
{
    hl_gguf *g = open_file(f, 0);
    uint64_t hash = g->header_hash;
    hl_gguf_free(&env, g);
    return hash;
}

static void header_hash(void)
{
    uint64_t hash = hash_of(with_tensors());
    CHECK(hash == hash_of(with_tensors()));
    gguf_file *f = with_tensors();
    f->tensors[2].data.p[5] ^= 1;                      /* only headers and sizes count */
    CHECK(hash == hash_of(f));
    f = with_tensors();
    gb_u8(&f->tensors[2].data, 0);
    CHECK(hash != hash_of(f));
    f = with_tensors();
    gf_u32(f, "more", 1);
    CHECK(hash != hash_of(f));
}

/* The parser with only a part of the file: it asks for more, never says anything else. */
static void in_parts(void)
{
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\n";
    gguf_file *f = with_tensors();
    gbuf files[2] = { gf_write(f, NULL), { 0 } };
    gb_add(&files[1], pointer, sizeof pointer);
    gf_free(f);
    for (int i = 0; i < 2; i++) {
        hl_gguf_header h;
        size_t have = 0, asked = 0;
        for (;;) {
            uint8_t *part = malloc(have + 1);          /* its own block: reading beyond it shows under a sanitizer */
            NEED(part != NULL);
            memcpy(part, files[i].p, have);
            hl_status rc = hl_gguf_parse(env.mem, &err, "x", part, have, files[i].n, 0, &h);
            bool more = rc == HLLM_E_TRUNCATED && h.need > have;
            size_t need = (size_t)h.need;
            if (!more) CHECK_MSG(rc == (i ? HLLM_E_FORMAT : HLLM_OK), "have %zu: %s", have, hl_status_name(rc));
            if (rc == HLLM_OK) CHECK(h.n_tensors == 3 && h.bytes <= have && h.data_end == files[i].n);
            hl_gguf_header_free(env.mem, &h);
            free(part);
            if (!more) break;
            CHECK(need <= files[i].n);
            for (size_t k = have; k < need; k++) {     /* every smaller part asks too */
                uint8_t *less = malloc(k + 1);
                NEED(less != NULL);
                memcpy(less, files[i].p, k);
                CHECK(hl_gguf_parse(env.mem, &err, "x", less, k, files[i].n, 0, &h) == HLLM_E_TRUNCATED && h.need > k);
                free(less);
            }
            have = need;
            asked++;
        }
        CHECK(asked >= (i ? 1u : 10u));
        if (i) CHECK(strstr(text_of(), "LFS") != NULL);
        gb_free(&files[i]);
    }
}

/* ---- split sets ---- */

static gguf_file *shard(int no, int count_of)
{
    gguf_file *f = gf_new();
    char name[16];
    gf_u16(f, "split.no", (uint16_t)no);
    gf_u16(f, "split.count", (uint16_t)count_of);
    gf_i32(f, "split.tensors.count", 2 * count_of);
    if (no == 0) gf_str(f, "general.name", "in shards");
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "t%d.%d", no, i);
        gf_f32_tensor(f, name, (uint64_t)(3 + no), 0, 0, 1);
    }
    return f;
}

static void shard_path(char path[1100], int no, int count_of)
{
    snprintf(path, 1100, "%s/set-%05d-of-%05d.gguf", hostile_dir, no + 1, count_of);
}

/* Writes f as that shard and frees it. */
static void write_shard(gguf_file *f, int no, int count_of)
{
    char path[1100];
    gbuf b = gf_write(f, NULL);
    shard_path(path, no, count_of);
    hostile_write(path, b.p, b.n, 0);
    gb_free(&b);
    gf_free(f);
}

static void split_set(void)
{
    char path[1100];
    hl_gguf *g = NULL;
    for (int i = 0; i < 3; i++) write_shard(shard(i, 3), i, 3);
    shard_path(path, 0, 3);
    CHECK_MSG(hl_gguf_open(&env, &err, path, 0, NULL, &g) == HLLM_OK, "%s", text_of());
    NEED(g && g->n_shards == 3 && g->n_tensors == 6 && g->n_keys == 4);
    CHECK(strcmp(hl_gguf_path(g), path) == 0 && strstr(g->shards[2].path, "set-00003-of-00003.gguf"));
    CHECK(g->file_bytes == g->shards[0].bytes + g->shards[1].bytes + g->shards[2].bytes);
    for (uint32_t i = 0; i < 6; i++) {
        char name[16];
        float values[5], want;
        snprintf(name, sizeof name, "t%u.%u", i / 2, i % 2);
        const hl_gguf_tensor *t = hl_gguf_find_tensor(g, name);
        NEED(t && t == &g->tensors[i] && t->shard == i / 2 && t->n == 3 + i / 2);
        CHECK(hl_file_read(&env, &err, &g->shards[t->shard], t->at, values, (size_t)t->bytes) == HLLM_OK);
        gguf_file *f = shard((int)i / 2, 3);
        memcpy(&want, f->tensors[i % 2].data.p + t->bytes - 4, 4);
        CHECK(memcmp(&values[t->n - 1], &want, 4) == 0);
        gf_free(f);
    }
    CHECK(!hl_gguf_find_tensor(g, "t3.0"));
    uint64_t hash = g->header_hash;
    hl_gguf_free(&env, g);
    gguf_file *f = shard(2, 3);
    gf_u32(f, "more", 1);
    write_shard(f, 2, 3);
    NEED(hl_gguf_open(&env, &err, path, 0, NULL, &g) == HLLM_OK);
    CHECK(g->header_hash != hash);                     /* a change in any shard shows */
    hl_gguf_free(&env, g);
    NEED(hl_gguf_open(&env, &err, path, HLLM_MODEL_VOCAB_ONLY, NULL, &g) == HLLM_OK);
    CHECK(g->n_shards == 1 && g->n_tensors == 2);
    hl_gguf_free(&env, g);
}

/* ---- faults ---- */

/* The set on disk, opened with the n-th allocation failing, for every n. */
static void failing_memory(void)
{
    char path[1100];
    long n = 0;
    shard_path(path, 0, 3);
    size_t live = count.live;
    for (;; n++) {
        hl_gguf *g = (hl_gguf *)(uintptr_t)1;
        count.calls = 0;
        count.fail_at = n;
        hl_status rc = hl_gguf_open(&env, &err, path, 0, NULL, &g);
        count.fail_at = -1;
        if (rc == HLLM_OK) {
            hl_gguf_free(&env, g);
            break;
        }
        CHECK_MSG(rc == HLLM_E_NOMEM && !g && count.live == live, "allocation %ld: %s", n, hl_status_name(rc));
    }
    CHECK_MSG(n > 20 && count.live == live, "%ld", n);
}

/* The same with reads that fail, end early or are interrupted. */
typedef struct bad_disk { int calls, fail_at, how; } bad_disk;
static int64_t bad_pread(void *user, int fd, void *buf, size_t n, uint64_t at)
{
    bad_disk *d = user;
    if (d->calls++ == d->fail_at) {
        if (d->how == 0) { errno = EIO; return -1; }
        if (d->how == 1) return 0;
        if (d->how == 2) { errno = EINTR; return -1; }
        n = n > 1 ? n / 2 : n;
    }
    return pread(fd, buf, n, (off_t)at);
}
static int bad_open(void *user, const char *path, int flags, int mode)
{
    bad_disk *d = user;
    if (d->calls++ == d->fail_at && d->how == 0) { errno = EMFILE; return -1; }
    return open(path, flags, mode);
}

static void failing_disk(void)
{
    char path[1100];
    shard_path(path, 0, 3);
    size_t live = count.live;
    for (int how = 0; how < 4; how++) {
        int n = 0;
        for (;; n++) {
            bad_disk disk = { 0, n, how };
            hl_io io = hl_io_posix;
            io.user = &disk;
            io.pread = bad_pread;
            io.open = bad_open;
            hl_env with = { .mem = env.mem, .log = env.log, .io = &io };
            hl_gguf *g = (hl_gguf *)(uintptr_t)1;
            hl_status rc = hl_gguf_open(&with, &err, path, 0, NULL, &g);
            int done = disk.calls <= n;
            if (rc == HLLM_OK) {
                CHECK(how != 0 || done);               /* "ends early" is met by reads only */
                hl_gguf_free(&with, g);
            } else {
                CHECK_MSG(!g && (rc == HLLM_E_IO || rc == HLLM_E_TRUNCATED) && how < 2, "call %d: %s", n, hl_status_name(rc));
                CHECK(strstr(text_of(), "set-0000") != NULL);
            }
            CHECK(count.live == live);
            if (done) break;
        }
        CHECK_MSG(n >= 6, "%d", n);
    }
}

static void progress(void)
{
    char path[1100];
    hl_gguf *g = NULL;
    hl_progress p = { 0 };
    shard_path(path, 0, 3);
    CHECK(hl_gguf_open(&env, &err, path, 0, &p, &g) == HLLM_OK && g);
    CHECK(p.done == p.total && p.done == g->file_bytes);           /* these files are small: read whole */
    hl_gguf_free(&env, g);
    p.cancelled = 1;
    size_t live = count.live;
    CHECK(hl_gguf_open(&env, &err, path, 0, &p, &g) == HLLM_E_CANCELLED && !g && count.live == live);
}

/* Nearly as many keys and tensors as a file may have, read and found. */
static void many(void)
{
    enum { N = 60000 };
    gbuf b = { 0 };
    char name[32];
    gb_add(&b, "GGUF", 4);
    gb_u32(&b, 3);
    gb_u64(&b, N);
    gb_u64(&b, N);
    for (int i = 0; i < N; i++) {
        gb_str(&b, name, (size_t)snprintf(name, sizeof name, "key.%d", i));
        gb_u32(&b, GT_I32);
        gb_u32(&b, (uint32_t)-i);
    }
    for (int i = 0; i < N; i++) {                      /* offsets fall: they must be sorted */
        gb_str(&b, name, (size_t)snprintf(name, sizeof name, "tensor.%d", i));
        gb_u32(&b, 1);
        gb_u64(&b, 8);
        gb_u32(&b, 0);
        gb_u64(&b, (uint64_t)(N - 1 - i) * 32);
    }
    while (b.n % 32) gb_u8(&b, 0);
    size_t data_at = b.n;
    for (int i = 0; i < N * 8; i++) gb_f32(&b, 0);
    int fd = memory_file(b.p, b.n);
    hl_gguf *g = NULL;
    hl_progress p = { 0 };
    CHECK_MSG(hl_gguf_open_fd(&env, &err, fd, 0, 0, 0, &p, &g) == HLLM_OK, "%s", text_of());
    CHECK_MSG(p.done == p.total && p.done >= data_at && p.done <= b.n, "%" PRIu64 " of %" PRIu64, (uint64_t)p.done, (uint64_t)p.total);      /* read in several steps */
    close(fd);
    NEED(g != NULL);
    size_t bad = 0;
    for (int i = 0; i < N; i++) {
        int64_t x;
        snprintf(name, sizeof name, "key.%d", i);
        const hl_gguf_key *k = hl_gguf_find_key(g, name);
        bad += !k || hl_gguf_int(k, 0, &x) != HLLM_OK || x != -i;
        snprintf(name, sizeof name, "tensor.%d", i);
        const hl_gguf_tensor *x_t = hl_gguf_find_tensor(g, name);
        bad += !x_t || x_t->at != data_at + (uint64_t)(N - 1 - i) * 32;
    }
    CHECK(bad == 0);
    hl_gguf_free(&env, g);
    gb_free(&b);
}

int main(void)
{
    hllm_allocator hook = counting_hook(&count);
    REQUIRE(hl_mem_new(&hook, &env.mem) == HLLM_OK);
    hl_error_init(&err);
    hostile_dir_make();
    value_types();
    tensors();
    long_header();
    header_hash();
    in_parts();
    split_set();
    failing_memory();
    failing_disk();
    progress();
    many();
    for (int i = 0; i < 3; i++) {
        char path[1100];
        shard_path(path, i, 3);
        unlink(path);
    }
    hostile_dir_remove();
    hl_gguf_free(&env, NULL);
    hl_error_destroy(&err);
    hl_mem_free(env.mem);
    CHECK(count.live == 0 && count.blocks == 0);
    return check_done();
}
