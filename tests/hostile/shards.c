/* Hostile split sets, row 22 of the catalogue: each is refused with HLLM_E_MISMATCH and a message that names the shard; no path
 * comes from inside a file. */
#include "hostile.h"
#include "model/reader.h"

static counting count = COUNTING_INIT;
static hl_env env;
static hl_error err;
static char dir_path[1024];

/* The two shards of the set: which key or tensor differs is up to the test. */
static gguf_file *shard(int no, int declared_count)
{
    gguf_file *f = gf_new();
    gf_u16(f, "split.no", (uint16_t)no);
    gf_u16(f, "split.count", (uint16_t)declared_count);
    gf_i32(f, "split.tensors.count", 4);
    gf_f32_tensor(f, no ? "c" : "a", 3, 0, 0, 1);
    gf_f32_tensor(f, no ? "d" : "b", 4, 0, 0, 1);
    return f;
}

static const char *path_of(const char *name)
{
    static char path[1200];
    snprintf(path, sizeof path, "%s/%s", dir_path, name);
    return path;
}

static void put(const char *name, gguf_file *f)
{
    gbuf b = gf_write(f, NULL);
    hostile_write(path_of(name), b.p, b.n, 0);
    gb_free(&b);
    gf_free(f);
}

static void expect(const char *what, const char *name, hl_status want, const char *words)
{
    hl_gguf *g = (hl_gguf *)(uintptr_t)1;
    char text[1024];
    size_t live = count.live;
    count.peak = live;
    double t = hostile_now();
    hl_status rc = hl_gguf_open(&env, &err, path_of(name), 0, NULL, &g);
    t = hostile_now() - t;
    hl_error_copy(&err, text, sizeof text);
    CHECK_MSG(rc == want, "%s: got %s, want %s: %s", what, hl_status_name(rc), hl_status_name(want), text);
    if (rc == HLLM_OK) {
        CHECK_MSG(g->n_shards == 2 && g->n_tensors == 4, "%s", what);
        hl_gguf_free(&env, g);
    } else {
        CHECK_MSG(g == NULL && hostile_says(text, words), "%s: '%s' lacks '%s'", what, text, words);
    }
    CHECK_MSG(count.live == live && count.peak - live < 16u << 20 && t < hostile_seconds, "%s", what);
}

/* The two shards as they should be. */
static void put_good(void)
{
    put("m-00001-of-00002.gguf", shard(0, 2));
    put("m-00002-of-00002.gguf", shard(1, 2));
}
static const char first[] = "m-00001-of-00002.gguf", second[] = "m-00002-of-00002.gguf";

static void still_works(void)
{
    put_good();
    expect("a good set", first, HLLM_OK, NULL);
}

int main(void)
{
    static const struct { int no; int count; const char *what; } seconds[] = {
        { 0, 2, "the second says that it is the first" }, { 2, 2, "the second says that it is the third" },
        { 1, 3, "the second is of a set of three" }, { 1, 1, "the second is of a set of one" }, { 1, 65535, "the second: 65535" },
        { 65535, 2, "the second: number 65535" } };
    hllm_allocator hook = counting_hook(&count);
    REQUIRE(hl_mem_new(&hook, &env.mem) == HLLM_OK);
    hl_error_init(&err);
    hostile_dir_make();
    snprintf(dir_path, sizeof dir_path, "%s", hostile_dir);
    still_works();
    expect("opened by its second shard", second, HLLM_E_MISMATCH, "m-00002-of-00002.gguf|shard 2 of 2|-00001-of-00002.gguf");
    for (size_t i = 0; i < HL_COUNT(seconds); i++) {
        put(second, shard(seconds[i].no, seconds[i].count));
        expect(seconds[i].what, first, HLLM_E_MISMATCH, "m-00002-of-00002.gguf|split.no|split.count");
        still_works();
    }
    gguf_file *f = shard(1, 2);
    gf_remove(f, "split.no");
    put(second, f);
    expect("the second is no shard", first, HLLM_E_MISMATCH, "m-00002-of-00002.gguf|split.no");
    f = shard(1, 2);
    gf_str(f, "split.no", "1");
    put(second, f);
    expect("split.no is a string", first, HLLM_E_FORMAT, "m-00002-of-00002.gguf|split.no|STRING");
    unlink(path_of(second));
    expect("the second is missing", first, HLLM_E_MISMATCH, "m-00002-of-00002.gguf|missing");
    hostile_write(path_of(second), "<html>", 6, 0);
    expect("the second is a web page", first, HLLM_E_FORMAT, "m-00002-of-00002.gguf|HTML");
    hostile_write(path_of(second), "GGUF\3", 5, 0);
    expect("the second is cut", first, HLLM_E_TRUNCATED, "m-00002-of-00002.gguf");
    unlink(path_of(second));
    REQUIRE(mkfifo(path_of(second), 0600) == 0);
    expect("the second is a pipe", first, HLLM_E_IO, "m-00002-of-00002.gguf");
    unlink(path_of(second));
    still_works();

    f = shard(1, 2);
    gb_free(&f->tensors[1].name);
    gb_add(&f->tensors[1].name, "a", 1);
    put(second, f);
    expect("a tensor is in both", first, HLLM_E_MISMATCH, "m-00002-of-00002.gguf|tensor a");
    f = shard(1, 2);
    gf_remove_tensor(f, "d");
    put(second, f);
    expect("a tensor is missing", first, HLLM_E_MISMATCH, "split.tensors.count|4|3");
    still_works();

    static const int counts[] = { 3, 1025, 65535 };
    for (size_t i = 0; i < HL_COUNT(counts); i++) {
        put(first, shard(0, counts[i]));
        expect("the first's count is not its name's", first, HLLM_E_MISMATCH, "m-00001-of-00002.gguf|split.count");
    }
    put("m-00001-of-65535.gguf", shard(0, 65535));
    expect("65535 shards", "m-00001-of-65535.gguf", HLLM_E_MISMATCH, "65535|1024");
    unlink(path_of("m-00001-of-65535.gguf"));
    f = shard(0, 2);
    gb_u64(&gf_key(f, "split.count", GT_U64)->value, UINT64_MAX);
    put(first, f);
    expect("2^64 - 1 shards", first, HLLM_E_FORMAT, "split.count");
    f = shard(0, 2);
    gf_i32(f, "split.count", -2);
    put(first, f);
    expect("-2 shards", first, HLLM_E_MISMATCH, "split.count|-2");
    put_good();

    /* Names: nothing in a file makes a path, and a set's name must be one. */
    f = shard(0, 2);
    gf_str(f, "general.name", "../../etc/passwd");
    gf_str(f, "split.path", "../other-00002-of-00002.gguf");
    put(first, f);
    expect("paths inside the file", first, HLLM_OK, NULL);
    put("m.gguf", shard(0, 2));
    expect("a first shard of another name", "m.gguf", HLLM_E_MISMATCH, "m.gguf|-00001-of-00002.gguf");
    REQUIRE(mkdir(path_of("sub"), 0700) == 0);
    put("sub/m-00001-of-00002.gguf", shard(0, 2));     /* its second shard is in the directory above: not looked at */
    expect("a shard elsewhere", "sub/m-00001-of-00002.gguf", HLLM_E_MISMATCH, "sub/m-00002-of-00002.gguf|missing");
    expect("the caller's own ..", "sub/../m-00001-of-00002.gguf", HLLM_OK, NULL);
    int fd = open(path_of(first), O_RDONLY | O_CLOEXEC);
    hl_gguf *g = (hl_gguf *)(uintptr_t)1;
    char text[1024];
    CHECK(hl_gguf_open_fd(&env, &err, fd, 0, 0, 0, NULL, &g) == HLLM_E_MISMATCH && !g);
    hl_error_copy(&err, text, sizeof text);
    CHECK_MSG(hostile_says(text, "fd |shard 1 of 2|by its path"), "'%s'", text);
    close(fd);
    put("-00001-of-00002.gguf", shard(0, 2));          /* an empty name before the number is a name */
    put("-00002-of-00002.gguf", shard(1, 2));
    expect("no name", "-00001-of-00002.gguf", HLLM_OK, NULL);
    still_works();

    static const char *const all[] = { "sub/m-00001-of-00002.gguf", "m.gguf", "-00001-of-00002.gguf", "-00002-of-00002.gguf", first, second };
    for (size_t i = 0; i < HL_COUNT(all); i++) unlink(path_of(all[i]));
    rmdir(path_of("sub"));
    hostile_dir_remove();
    hl_error_destroy(&err);
    hl_mem_free(env.mem);
    CHECK(count.live == 0 && count.blocks == 0);
    return check_done();
}
