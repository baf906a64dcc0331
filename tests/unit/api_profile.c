/* api_profile.c: the machine's profile: measured once, read the next time, measured again when the file is another machine's, damaged, or
 * it is asked for; what is in it makes sense. */
#include <math.h>
#include <stdbool.h>

#include "run_common.h"

static hllm_runtime *rt;
static char path[64];

static hllm_profile *open_profile(uint32_t flags, const char *model)
{
    hllm_profile *p = NULL;
    const hllm_profile_options o = { .struct_size = sizeof o, .flags = flags, .path = path, .model_path = model };
    OK_RT(hllm_profile_open(rt, &o, &p), rt);
    return p;
}

static hllm_profile_info info_of(const hllm_profile *p)
{
    hllm_profile_info i = { .struct_size = sizeof i };
    REQUIRE(hllm_profile_get_info(p, &i) == HLLM_OK);
    return i;
}

static char *slurp(size_t *n)
{
    static char buf[1 << 16];
    FILE *f = fopen(path, "rb");
    REQUIRE(f != NULL);
    *n = fread(buf, 1, sizeof buf - 1, f);
    buf[*n] = 0;
    fclose(f);
    return buf;
}

static void put(const char *s, size_t n)
{
    FILE *f = fopen(path, "wb");
    REQUIRE(f && fwrite(s, 1, n, f) == n && fclose(f) == 0);
}

int main(void)
{
    hllm_profile *p = NULL;
    REQUIRE(hllm_runtime_create(&(hllm_runtime_options){ .struct_size = sizeof(hllm_runtime_options), .n_threads = 2 }, &rt) == HLLM_OK);
    snprintf(path, sizeof path, "/tmp/hllm-profile-%ld.json", (long)getpid());
    CHECK(hllm_profile_open(NULL, NULL, &p) == HLLM_E_ARG && hllm_profile_open(rt, NULL, NULL) == HLLM_E_ARG);
    CHECK(hllm_profile_open(rt, &(hllm_profile_options){ .struct_size = sizeof(hllm_profile_options), .flags = 8 }, &p) == HLLM_E_ARG && p == NULL);
    const char *model = test_path("models/tiny-relu2-q8_0.gguf");
    p = open_profile(0, model);
    hllm_profile_info i = info_of(p), again;
    CHECK(i.from_file == 0 && i.n_rates >= 2 && i.n_gpus == 0 && i.sync_s > 0 && i.sync_s < 1 && i.memory_available_bytes > 0 && i.disk_bytes_per_s >= 0);
    bool two = false;
    for (uint32_t j = 0; j < i.n_rates; j++) {
        hllm_profile_rate r = { .struct_size = sizeof r };
        REQUIRE(hllm_profile_get_rate(p, j, &r) == HLLM_OK);
        CHECK_MSG(r.read_bytes_per_s > 1e6 && r.gather_bytes_per_s > 1e5 && r.int8_ops_per_s > 1e5 && r.n_threads >= 1 && r.n_threads <= 2, "%s, %u threads: %g %g %g", r.isa, r.n_threads,
                  r.read_bytes_per_s, r.gather_bytes_per_s, r.int8_ops_per_s);
        two |= r.n_threads == 2;
    }
    CHECK(two);
    hllm_profile_rate r = { .struct_size = sizeof r };
    CHECK(hllm_profile_get_rate(p, i.n_rates, &r) == HLLM_E_ARG && hllm_profile_get_rate(NULL, 0, &r) == HLLM_E_ARG && hllm_profile_get_info(p, NULL) == HLLM_E_ARG);
    hllm_profile_free(p);
    /* The second time nothing is measured. */
    const double t0 = now_s();
    p = open_profile(0, model);
    again = info_of(p);
    CHECK(again.from_file == 1 && again.n_rates == i.n_rates && again.sync_s == i.sync_s);
    if (i.disk_bytes_per_s > 0) CHECK(again.disk_bytes_per_s == i.disk_bytes_per_s);
    CHECK_MSG(now_s() - t0 < 0.5 || i.disk_bytes_per_s == 0, "%g s", now_s() - t0);
    hllm_profile_free(p);
    /* Of another machine, damaged, cut, of a later version, or because it is asked for: measured again. */
    size_t n;
    char *s = slurp(&n);
    char *edited = malloc(n + 1);
    REQUIRE(edited && strstr(s, "2 threads"));
    memcpy(edited, s, n + 1);
    strstr(edited, "2 threads")[0] = '9';
    put(edited, n);
    p = open_profile(0, NULL);
    CHECK(info_of(p).from_file == 0);
    hllm_profile_free(p);
    memcpy(edited, s, n + 1);
    strstr(edited, "\"sync_s\": ")[10] = '-';
    put(edited, n);
    p = open_profile(0, NULL);
    CHECK(info_of(p).from_file == 0);
    hllm_profile_free(p);
    uint32_t level;
    size_t need;
    char line[512];
    while (hllm_log_poll(rt, &level, line, sizeof line, &need) == HLLM_OK && need > 0) { }
    put(s, n / 2);
    p = open_profile(0, NULL);
    CHECK(info_of(p).from_file == 0);
    hllm_profile_free(p);
    CHECK(hllm_log_poll(rt, &level, line, sizeof line, &need) == HLLM_OK && need > 0 && strncmp(line, path, strlen(path)) == 0 && strstr(line, "measured again"));
    p = open_profile(HLLM_PROFILE_REMEASURE, NULL);
    CHECK(info_of(p).from_file == 0 && info_of(p).disk_bytes_per_s == 0);
    hllm_profile_free(p);
    p = open_profile(0, NULL);
    CHECK(info_of(p).from_file == 1);
    hllm_profile_free(p);
    /* A place that cannot be written to is no error; a model that is not there is one. */
    unlink(path);
    snprintf(path, sizeof path, "/nonexistent/profile.json");
    p = open_profile(0, NULL);
    hllm_profile_free(p);
    CHECK(hllm_log_poll(rt, &level, line, sizeof line, &need) == HLLM_OK && need > 0 && strstr(line, "cannot be written"));
    CHECK(hllm_profile_open(rt, &(hllm_profile_options){ .struct_size = sizeof(hllm_profile_options), .model_path = "/nonexistent" }, &p) == HLLM_E_NOT_FOUND && p == NULL);
    free(edited);
    hllm_runtime_free(rt);
    return check_done();
}
