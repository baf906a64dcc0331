/* api_plan.c: the contract of plans: arguments, errors and their texts, buffers, what a plan adds up to, and whether it fits. */
#include <math.h>

#include "run_common.h"

static setup u;

static const char *text_of(const void *h, int kind)    /* 0 runtime, 1 model, 2 plan */
{
    static char t[1024];
    if (kind == 0) hllm_runtime_last_error(h, t, sizeof t);
    else if (kind == 1) hllm_model_last_error(h, t, sizeof t);
    else hllm_plan_last_error(h, t, sizeof t);
    return t;
}

static hllm_plan_options options(const hllm_plan_gpu *gpus, uint32_t n)
{
    return (hllm_plan_options){ .struct_size = sizeof(hllm_plan_options), .solver = HLLM_SOLVER_BUILTIN, .cpu_budget_bytes = 1 << 30, .cpu_bytes_per_s = 5e10, .gpus = gpus, .n_gpus = n };
}

static void arguments(void)
{
    hllm_plan *p = (hllm_plan *)1;
    hllm_plan_options o = options(NULL, 0);
    CHECK(hllm_plan_solve(NULL, NULL, &p) == HLLM_E_ARG);
    CHECK(hllm_plan_solve(u.m, NULL, NULL) == HLLM_E_ARG);
    CHECK(hllm_plan_solve_problem(NULL, "{}", 2, NULL, &p) == HLLM_E_ARG && hllm_plan_read(NULL, "{}", 2, &p) == HLLM_E_ARG);
    CHECK(hllm_plan_solve_problem(u.rt, NULL, 5, NULL, &p) == HLLM_E_ARG && p == NULL);
    p = (hllm_plan *)1;
    o.struct_size = 8;
    CHECK(hllm_plan_solve(u.m, &o, &p) == HLLM_E_VERSION && p == NULL && strstr(text_of(u.m, 1), "struct_size"));
    o = options(NULL, 2);
    CHECK(hllm_plan_solve(u.m, &o, &p) == HLLM_E_ARG && strstr(text_of(u.m, 1), "gpus is NULL"));
    o = options(NULL, 0); o.solver = 9;
    CHECK(hllm_plan_solve(u.m, &o, &p) == HLLM_E_ARG && strstr(text_of(u.m, 1), "solver is 9"));
    o = options(NULL, 0); o.objective = 9;
    CHECK(hllm_plan_solve(u.m, &o, &p) == HLLM_E_ARG);
    o = options(NULL, 0); o.flags = 4;
    CHECK(hllm_plan_solve(u.m, &o, &p) == HLLM_E_ARG);
    o = options(NULL, 0); o.time_limit_s = NAN;
    CHECK(hllm_plan_solve(u.m, &o, &p) == HLLM_E_ARG);
    o = options(NULL, 0); o.cpu_bytes_per_s = -1;
    CHECK(hllm_plan_solve(u.m, &o, &p) == HLLM_E_ARG);
    hllm_plan_gpu g = { .struct_size = sizeof g, .budget_bytes = 1000, .bytes_per_s = NAN };
    o = options(&g, 1);
    CHECK(hllm_plan_solve(u.m, &o, &p) == HLLM_E_ARG && p == NULL && strstr(text_of(u.m, 1), "bytes_per_s"));
    o = options(NULL, 0); o.n_ctx = 1 << 30;
    CHECK(hllm_plan_solve(u.m, &o, &p) == HLLM_E_ARG && strstr(text_of(u.m, 1), "context"));
    o = options(NULL, 0); o.solver = HLLM_SOLVER_GLPK; o.module_dir = "/nonexistent";
    CHECK(hllm_plan_solve(u.m, &o, &p) == HLLM_E_NOT_FOUND && strstr(text_of(u.m, 1), "libhybridllm-glpk.so"));
    CHECK(hllm_plan_solve_problem(u.rt, "{\"kind\":1}", 10, NULL, &p) == HLLM_E_FORMAT && p == NULL && strstr(text_of(u.rt, 0), "kind"));
    CHECK(hllm_plan_read(u.rt, "{}", 2, &p) == HLLM_E_FORMAT && strstr(text_of(u.rt, 0), "not a plan"));
    CHECK(hllm_plan_check(NULL, NULL, 0) == HLLM_E_ARG && hllm_plan_get_info(NULL, NULL) == HLLM_E_ARG && hllm_plan_last_error(NULL, NULL, 0) == 0);
    hllm_plan_free(NULL);
}

/* Every tensor's bytes are on one device, once; every neuron is, too. */
static void adds_up(void)
{
    const hllm_plan_gpu gpus[2] = { { .struct_size = sizeof *gpus, .budget_bytes = 18 << 20, .bytes_per_s = 1e12 }, { .struct_size = sizeof *gpus, .budget_bytes = 14 << 20, .bytes_per_s = 8e11, .sync_s = 1e-6 } };
    for (uint32_t n = 0; n <= 2; n++)
        for (uint32_t objective = HLLM_OBJECTIVE_AUTO; objective <= HLLM_OBJECTIVE_IMPACT; objective++) {
            hllm_plan *p = NULL;
            hllm_plan_options o = options(gpus, n);
            hllm_plan_info i = { .struct_size = sizeof i };
            hllm_model_info mi = { .struct_size = sizeof mi };
            uint64_t weights = 0, all = 0, neurons = 0;
            o.objective = objective;
            OK_M(hllm_plan_solve(u.m, &o, &p), u.m);
            REQUIRE(hllm_plan_get_info(p, &i) == HLLM_OK && hllm_model_get_info(u.m, &mi) == HLLM_OK);
            CHECK(i.kind == HLLM_PLAN_NEURON && i.n_layers == mi.n_layers && i.n_devices == (n ? n : 1) + 1 && i.uniform == 1 && i.n_ctx == 512 && i.k == 0);
            CHECK(i.objective_kind == (objective == HLLM_OBJECTIVE_IMPACT ? HLLM_OBJECTIVE_IMPACT : HLLM_OBJECTIVE_TIME) && i.gap < 1e-6 && i.seconds_per_token > 0);
            for (uint32_t d = 0; d < i.n_devices; d++) {
                hllm_plan_device v = { .struct_size = sizeof v };
                uint64_t sum = 0;
                REQUIRE(hllm_plan_get_device(p, d, &v) == HLLM_OK && v.name);
                for (uint32_t j = 0; j < v.n_parts; j++) {
                    hllm_plan_part x = { .struct_size = sizeof x };
                    REQUIRE(hllm_plan_get_part(p, d, j, &x) == HLLM_OK && x.kind);
                    sum += x.bytes;
                    if (strcmp(x.kind, "kv") && strcmp(x.kind, "scratch")) weights += x.bytes;
                }
                CHECK_MSG(sum <= v.bytes && v.bytes - sum < 16 && v.bytes <= v.budget_bytes, "device %u: parts %llu, bytes %llu, budget %llu", d, (unsigned long long)sum,
                          (unsigned long long)v.bytes, (unsigned long long)v.budget_bytes);
                all += v.bytes;
            }
            CHECK_MSG(weights == mi.tensor_bytes, "%llu bytes of weights of %llu", (unsigned long long)weights, (unsigned long long)mi.tensor_bytes);
            CHECK(all > weights);
            for (uint32_t il = 0; il < i.n_layers; il++) {
                hllm_plan_layer l = { .struct_size = sizeof l };
                REQUIRE(hllm_plan_get_layer(p, il, &l) == HLLM_OK);
                CHECK(l.n_neurons == mi.n_ff && l.n_neurons_gpu <= l.n_neurons && (l.gpu < 0) == (l.n_neurons_gpu == 0) && l.gpu < (int32_t)n);
                neurons += l.n_neurons_gpu;
            }
            /* By the paper's count no split is worth 30 microseconds in so small a layer. */
            CHECK_MSG(n == 0 || (n == 1 && objective == HLLM_OBJECTIVE_IMPACT) ? neurons == 0 : neurons > 0, "%u GPUs, objective %u: %llu neurons", n, objective, (unsigned long long)neurons);
            CHECK(hllm_plan_check(p, u.m, 0) == HLLM_OK);
            if (n) CHECK(hllm_plan_check(p, u.m, HLLM_PLAN_CHECK_MACHINE) == HLLM_E_MISMATCH && strstr(text_of(p, 2), "there is none here"));
            else CHECK(hllm_plan_check(p, u.m, HLLM_PLAN_CHECK_MACHINE) == HLLM_OK);
            CHECK(hllm_plan_check(p, NULL, 8) == HLLM_E_ARG);
            hllm_plan_device v = { .struct_size = sizeof v };
            hllm_plan_layer l = { .struct_size = sizeof l };
            hllm_plan_part x = { .struct_size = sizeof x };
            CHECK(hllm_plan_get_device(p, i.n_devices, &v) == HLLM_E_ARG && hllm_plan_get_layer(p, i.n_layers, &l) == HLLM_E_ARG && hllm_plan_get_part(p, 0, 99, &x) == HLLM_E_ARG);
            hllm_plan_free(p);
        }
}

/* The buffer rule; a file that is read again; a model that is not the plan's; a machine that is too small. */
static void files(void)
{
    hllm_plan *p = NULL, *again = NULL;
    hllm_plan_options o = options(NULL, 0);
    hllm_plan_info a = { .struct_size = sizeof a }, b = { .struct_size = sizeof b };
    size_t n = 0, got = 0;
    OK_M(hllm_plan_solve(u.m, &o, &p), u.m);
    CHECK(hllm_plan_write(p, 0, NULL, 0, &n) == HLLM_E_BUFFER && n > 100);
    char *s = malloc(n + 1), *edited = malloc(n + 1);
    REQUIRE(s && edited);
    CHECK(hllm_plan_write(p, 0, s, n - 1, &got) == HLLM_E_BUFFER && got == n);
    CHECK(hllm_plan_write(p, 0, s, n, &got) == HLLM_OK && got == n);
    CHECK(hllm_plan_write(p, 2, s, n, &got) == HLLM_E_ARG && hllm_plan_write(p, 0, s, n, NULL) == HLLM_E_ARG && hllm_plan_write(p, 0, NULL, 4, &got) == HLLM_E_ARG);
    CHECK(hllm_plan_draw(p, NULL, 0, &got) == HLLM_E_BUFFER && got > 100);
    s[n] = 0;
    OK_RT(hllm_plan_read(u.rt, s, n, &again), u.rt);
    REQUIRE(hllm_plan_get_info(p, &a) == HLLM_OK && hllm_plan_get_info(again, &b) == HLLM_OK);
    CHECK(a.objective == b.objective && a.model_hash == b.model_hash && a.model_bytes == b.model_bytes && a.n_ctx == b.n_ctx && b.uniform == 1);
    CHECK(hllm_plan_check(again, u.m, HLLM_PLAN_CHECK_MACHINE) == HLLM_OK);
    hllm_plan_free(again);
    char *hash = strstr(s, "\"hash\":\"");
    REQUIRE(hash != NULL);
    memcpy(edited, s, n + 1);
    edited[hash - s + 8] = s[hash - s + 8] == '0' ? '1' : '0';
    OK_RT(hllm_plan_read(u.rt, edited, n, &again), u.rt);
    CHECK(hllm_plan_check(again, u.m, 0) == HLLM_E_MISMATCH && strstr(text_of(again, 2), "hash"));
    hllm_plan_free(again);
    char *bytes = strstr(s, "\"file_bytes\":");
    REQUIRE(bytes != NULL);
    memcpy(edited, s, n + 1);
    edited[bytes - s + 13] = s[bytes - s + 13] == '9' ? '8' : '9';
    OK_RT(hllm_plan_read(u.rt, edited, n, &again), u.rt);
    CHECK(hllm_plan_check(again, u.m, 0) == HLLM_E_MISMATCH && strstr(text_of(again, 2), "bytes, the plan was made for"));
    hllm_plan_free(again);
    /* More in memory than any machine has: the same plan with another scratch. */
    char *scratch = strstr(s, "\"scratch_bytes\":["), *bigger = malloc(n + 32);
    REQUIRE(scratch != NULL && bigger != NULL);
    const size_t head = (size_t)(scratch - s) + strlen("\"scratch_bytes\":[");
    snprintf(bigger, n + 32, "%.*s900000000000000%s", (int)head, s, s + head + strspn(s + head, "0123456789"));
    OK_RT(hllm_plan_read(u.rt, bigger, strlen(bigger), &again), u.rt);
    CHECK(hllm_plan_check(again, u.m, 0) == HLLM_OK);
    CHECK(hllm_plan_check(again, u.m, HLLM_PLAN_CHECK_MACHINE) == HLLM_E_NOMEM && strstr(text_of(again, 2), "900000") && strstr(text_of(again, 2), "are available"));
    hllm_plan_free(again);
    /* Without "model": a plan for a problem is no model's. */
    char *model = strstr(s, ",\"model\":");
    REQUIRE(model != NULL);
    snprintf(bigger, n + 32, "%.*s}", (int)(model - s), s);
    OK_RT(hllm_plan_read(u.rt, bigger, strlen(bigger), &again), u.rt);
    CHECK(hllm_plan_check(again, u.m, 0) == HLLM_E_MISMATCH && strstr(text_of(again, 2), "made for a problem"));
    hllm_plan_free(again);
    free(bigger);
    free(s);
    free(edited);
    hllm_plan_free(p);
}

/* Less than a session's scratch: impossible even where a GPU holds everything; the budget that is named is enough, a byte less is not. */
static void scratch_needs_room(void)
{
    const hllm_plan_gpu gpu = { .struct_size = sizeof gpu, .budget_bytes = 1 << 30, .bytes_per_s = 1e12 };
    hllm_plan *p = NULL;
    hllm_plan_shortage lack = { .struct_size = sizeof lack };
    hllm_plan_options o = options(&gpu, 1);
    o.cpu_budget_bytes = 1000;
    o.shortage = &lack;
    CHECK(hllm_plan_solve(u.m, &o, &p) == HLLM_E_NOMEM && p == NULL && strstr(text_of(u.m, 1), "budget of 1000"));
    REQUIRE(lack.bytes_needed > 0);
    o.cpu_budget_bytes += lack.bytes_needed - lack.bytes_available - 1;
    CHECK(hllm_plan_solve(u.m, &o, &p) == HLLM_E_NOMEM && p == NULL);
    o.cpu_budget_bytes++;
    OK_M(hllm_plan_solve(u.m, &o, &p), u.m);
    hllm_plan_free(p);
}

/* Impossible: the numbers, and a context that then really fits. */
static void impossible(void)
{
    hllm_plan *p = NULL;
    hllm_plan_shortage lack = { .struct_size = sizeof lack };
    hllm_plan_options o = options(NULL, 0);
    o.cpu_budget_bytes = 13 << 20;
    o.shortage = &lack;
    CHECK(hllm_plan_solve(u.m, &o, &p) == HLLM_E_NOMEM && p == NULL && strstr(text_of(u.m, 1), "impossible at a context of 512"));
    REQUIRE(lack.bytes_needed > 0 && lack.bytes_available == 0 && lack.n_ctx_fits > 0 && lack.n_ctx_fits < 512);
    const uint32_t fits = lack.n_ctx_fits;
    o.n_ctx = fits;
    OK_M(hllm_plan_solve(u.m, &o, &p), u.m);
    CHECK(lack.n_ctx_fits == 0 && lack.bytes_needed == 0);                  /* a success clears it */
    hllm_plan_free(p);
    o.n_ctx = fits + 1;
    CHECK(hllm_plan_solve(u.m, &o, &p) == HLLM_E_NOMEM);
    o.cpu_budget_bytes += lack.bytes_needed;           /* as much more as it says is enough, less is not */
    OK_M(hllm_plan_solve(u.m, &o, &p), u.m);
    hllm_plan_free(p);
    o.cpu_budget_bytes -= 4096;
    CHECK(hllm_plan_solve(u.m, &o, &p) == HLLM_E_NOMEM);
    hllm_plan_free(p);
}

/* A plan needs only the header; the same file complete is the plan's model. */
static void header_only(void)
{
    char name[] = "/tmp/hllm-plan-XXXXXX", buf[300000];
    FILE *f = fopen(test_path("models/tiny-relu2-q8_0.gguf"), "rb");
    const int fd = mkstemp(name);
    hllm_model *m = NULL;
    hllm_engine *e = NULL;
    hllm_plan *p = NULL;
    hllm_plan_options o = options(NULL, 0);
    REQUIRE(f && fd >= 0 && fread(buf, 1, sizeof buf, f) == sizeof buf && write(fd, buf, sizeof buf) == (ssize_t)sizeof buf);
    fclose(f);
    CHECK(hllm_model_open(u.rt, name, NULL, &m) == HLLM_E_TRUNCATED);
    OK_RT(hllm_model_open(u.rt, name, &(hllm_model_options){ .struct_size = sizeof(hllm_model_options), .flags = HLLM_MODEL_HEADER_ONLY }, &m), u.rt);
    OK_M(hllm_plan_solve(m, &o, &p), m);
    CHECK(hllm_plan_check(p, m, 0) == HLLM_OK);
    CHECK_MSG(hllm_plan_check(p, u.m, 0) == HLLM_OK, "%s", text_of(p, 2));
    CHECK(hllm_engine_create(m, NULL, &e) == HLLM_E_STATE && e == NULL && strstr(text_of(m, 1), "header only"));
    hllm_plan_free(p);
    hllm_model_free(m);
    close(fd);
    unlink(name);
}

int main(void)
{
    REQUIRE(hllm_runtime_create(&(hllm_runtime_options){ .struct_size = sizeof(hllm_runtime_options), .n_threads = 1 }, &u.rt) == HLLM_OK);
    OK_RT(hllm_model_open(u.rt, test_path("models/tiny-relu2-q8_0.gguf"), NULL, &u.m), u.rt);
    arguments();
    adds_up();
    files();
    scratch_needs_room();
    impossible();
    header_only();
    setup_free(&u);
    return check_done();
}
