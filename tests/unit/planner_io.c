/* planner_io.c: hostile problems and plans: every one a clear error that names the place, no crash, nothing left behind. */
#include "plan_io.h"

#include <math.h>

#include "check.h"

static hl_mem *mem;
static hl_error err;

static const char *say(void)
{
    static char t[1100];
    hl_error_copy(&err, t, sizeof t);
    return t;
}

static const char neuron[] = "{\"kind\":\"neuron\",\"objective\":\"time\",\"gpu\":{\"bytes_per_s\":1e12,\"budget_bytes\":100000},\"cpu\":{\"bytes_per_s\":5e10,\"budget_bytes\":1e9},"
                             "\"sync_s\":1e-6,\"launch_s\":0,\"dense\":[{\"name\":\"head\",\"bytes\":5000,\"touches\":1}],"
                             "\"layers\":[{\"batch_neurons\":64,\"batch_bytes\":64000,\"last_batch_neurons\":5,\"freq\":[0.5,0.25]}]}";
static const char ring[] = "{\"kind\":\"layer\",\"n_layers\":4,\"layer_bytes\":1e8,\"kv_bytes_per_layer\":0,\"input_bytes\":1e6,\"n_vocab\":1000,\"output_bytes\":1e6,\"latency\":\"overlap\","
                           "\"devices\":[{\"name\":\"a\",\"os\":\"linux\",\"alpha_s\":0.01,\"beta_s\":0,\"disk_bytes_per_s\":1e9,\"ram_bytes\":1e8,\"vram_bytes\":0,\"cpu_buffer_bytes\":0,"
                           "\"gpu_buffer_bytes\":0},{\"os\":\"macos\",\"alpha_s\":0.01,\"beta_s\":0,\"disk_bytes_per_s\":1e9,\"ram_bytes\":1e8,\"vram_bytes\":0,\"cpu_buffer_bytes\":0,"
                           "\"gpu_buffer_bytes\":0}],\"links\":[[0,0.1],[0.1,null]]}";

/* The text with the first `from` replaced by `to`. */
static char *with(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    REQUIRE(at != NULL);
    char *s = malloc(strlen(text) + strlen(to) + 1);
    REQUIRE(s != NULL);
    memcpy(s, text, (size_t)(at - text));
    strcpy(s + (at - text), to);
    strcat(s, at + strlen(from));
    return s;
}

static void bad(const char *text, const char *from, const char *to, const char *want)
{
    char *s = with(text, from, to);
    hl_plan *plan = (hl_plan *)1;
    const hl_status rc = hl_plan_read_problem(mem, s, strlen(s), &plan, &err);
    CHECK_MSG(rc != HLLM_OK && plan == NULL && strstr(say(), want), "%s -> %s: %s %s, expected %s", from, to, hl_status_name(rc), rc ? say() : "", want);
    if (rc == HLLM_OK) hl_plan_free(plan);
    free(s);
}

static void hostile_problems(void)
{
    static const char *const neurons[][3] = {
        { "\"time\"", "\"speed\"", "objective: expected time|impact" }, { "\"objective\"", "\"objektive\"", "objektive: unknown key" },
        { "\"launch_s\":0", "\"launch_s\":0,\"launch_s\":0", "duplicate" }, { "1e12", "0", "gpu.bytes_per_s is 0" }, { "5e10", "-1", "cpu.bytes_per_s is -1" },
        { "5e10", "1e400", "overflow" }, { "5e10", "NaN", "line 1" }, { "5e10", "\"5\"", "cpu.bytes_per_s: expected a number" }, { "1e-6", "-1e-6", "sync_s is -1e-06" },
        { "100000", "-5", "gpu.budget_bytes is -5" }, { "100000", "1e17", "gpu.budget_bytes" }, { "1e9", "1e300", "cpu.budget_bytes" },
        { "\"batch_neurons\":64", "\"batch_neurons\":0", "layers[0].batch_neurons is 0" }, { "\"batch_neurons\":64", "\"batch_neurons\":1.5", "layers[0].batch_neurons: expected a whole" },
        { "\"batch_neurons\":64", "\"batch_neurons\":99999999999", "layers[0].batch_neurons: expected a whole" }, { "[0.5,0.25]", "[]", "layers[0].freq is empty" },
        { "0.25", "1.25", "layers[0].freq[1] is 1.25" }, { "0.25", "-0.1", "layers[0].freq[1] is -0.1" }, { "0.25", "null", "layers[0].freq[1]: expected a number" },
        { "\"last_batch_neurons\":5", "\"last_batch_neurons\":65", "last_batch_neurons is 65" }, { "\"last_batch_neurons\":5", "\"last_batch_neurons\":0", "last_batch_neurons is 0" },
        { "64000", "0", "batch_bytes is 0" }, { "64000", "9e15", "the sum of all bytes" }, { "64000", "1e16", "layers[0].batch_bytes" }, { "5000", "-1", "dense[0].bytes is -1" },
        { "\"touches\":1", "\"touches\":-1", "dense[0].touches is -1" }, { "\"touches\":1", "\"x\":1", "dense[0].x: unknown key" },
        { "\"sync_s\":1e-6,", "", "sync_s is missing" }, { "\"cpu\":{\"bytes_per_s\":5e10,\"budget_bytes\":1e9},", "", "cpu is missing" },
        { "\"gpu\":{\"bytes_per_s\":1e12,\"budget_bytes\":100000},", "", "gpu is missing" }, { "\"gpu\":{\"bytes_per_s\":1e12,\"budget_bytes\":100000}", "\"gpus\":[]", "with gpus" },
        { "\"gpu\":{\"bytes_per_s\":1e12,\"budget_bytes\":100000},", "\"gpu\":{},\"gpus\":[],", "only one of them" }, { "\"layers\":[{", "\"layers\":[[{", "line 1" },
        { "\"kind\":\"neuron\"", "\"kind\":\"neutron\"", "kind: expected neuron|layer" }, { "\"kind\":\"neuron\",", "", "kind is missing" }, { "\"launch_s\":0", "\"launch_s\":true", "launch_s: expected a number" },
        { "\"launch_s\":0", "\"launch_s\":99999999999999999999", "integer" }, { "\"head\"", "\"\\u0000\"", "" },
        { "\"launch_s\":0", "\"dense_on\":\"disk\"", "dense_on: expected" },
    };
    static const char *const rings[][3] = {
        { "\"n_layers\":4", "\"n_layers\":0", "n_layers is 0" }, { "\"n_layers\":4", "\"n_layers\":1000000", "the limit is 4096" }, { "\"n_layers\":4", "\"n_layers\":-4", "n_layers: expected a whole" },
        { "\"n_layers\":4", "\"n_layers\":4,\"k\":3", "k is 3: it does not divide n_layers, 4" }, { "1e8", "1e16", "layer_bytes" }, { "1e8", "9e15", "above 2^53" },
        { "\"n_vocab\":1000", "\"n_vocab\":0", "n_vocab is 0" }, { "overlap", "fast", "latency: expected serial|overlap" }, { "linux", "plan9", "devices[0].os: expected" },
        { "\"disk_bytes_per_s\":1e9", "\"disk_bytes_per_s\":0", "devices[0].disk_bytes_per_s is 0" }, { "\"alpha_s\":0.01", "\"alpha_s\":-0.01", "devices[0].alpha_s is -0.01" },
        { "\"alpha_s\":0.01", "\"alfa_s\":0.01", "devices[0].alfa_s: unknown key" }, { "\"ram_bytes\":1e8", "\"ram_bytes\":-1", "devices[0].ram_bytes is -1" }, { "[0.1,null]", "[0.1]", "links[1]: expected a list of 2" },
        { "[0.1,null]", "[-0.1,null]", "links[1][0]: expected seconds" }, { ",[0.1,null]", "", "links has 1 rows for 2 devices" }, { "\"latency\"", "\"method\":\"paper\",\"latency\"", "method: expected" },
        { "\"latency\"", "\"method\":\"halda\",\"master_priority\":0,\"latency\"", "master_priority" }, { "\"vram_bytes\":0,", "", "devices[0].vram_bytes is missing" },
    };
    for (uint32_t i = 0; i < HL_COUNT(neurons); i++) bad(neuron, neurons[i][0], neurons[i][1], neurons[i][2]);
    for (uint32_t i = 0; i < HL_COUNT(rings); i++) bad(ring, rings[i][0], rings[i][1], rings[i][2]);
    bad(ring, strstr(ring, "[{"), "[]}", "devices is empty");
}

/* Too many of something, made here. */
static void too_many(void)
{
    const size_t n = 1000000;
    const char one[] = "{\"batch_neurons\":1,\"batch_bytes\":1,\"freq\":[0]},";
    char *s = malloc(n * sizeof one + 1000);
    hl_plan *plan = NULL;
    REQUIRE(s != NULL);
    strcpy(s, "{\"kind\":\"neuron\",\"gpu\":{\"bytes_per_s\":1e12,\"budget_bytes\":1},\"cpu\":{\"bytes_per_s\":1e10,\"budget_bytes\":1},\"sync_s\":0,\"layers\":[");
    size_t at = strlen(s);
    for (size_t i = 0; i < n; i++) { memcpy(s + at, one, sizeof one - 1); at += sizeof one - 1; }
    memcpy(s + at - 1, "]}", 2);
    CHECK_MSG(hl_plan_read_problem(mem, s, at + 1, &plan, &err) == HLLM_E_LIMIT && strstr(say(), "layers has 1000000 entries, the limit is 10000"), "%s", say());
    memset(s, '[', 100000);
    CHECK(hl_plan_read_problem(mem, s, 100000, &plan, &err) == HLLM_E_FORMAT && !plan);
    free(s);
}

/* Structs that no JSON could hold. */
static void hostile_structs(void)
{
    const double values[] = { NAN, INFINITY, -INFINITY, -1, 1e300 };
    for (uint32_t i = 0; i < HL_COUNT(values) * 9; i++) {
        double freq[] = { 0.5 };
        hl_neuron_gpu gpu = { 1e12, 1e6, 1e-6 };
        hl_dense_item dense = { "x", 1, 1 };
        hl_neuron_layer layer = { 1, 64, 64, 64000, freq };
        hl_neuron_problem p = { .n_gpus = 1, .gpus = &gpu, .n_layers = 1, .layers = &layer, .n_dense = 1, .dense = &dense, .cpu_bytes_per_s = 1e10, .cpu_budget_bytes = 1e9 };
        double *const fields[] = { freq, &gpu.bytes_per_s, &gpu.budget_bytes, &gpu.sync_s, &dense.bytes, &dense.touches, &layer.batch_bytes, &p.cpu_bytes_per_s, &p.launch_s };
        CHECK(hl_neuron_problem_check(&p, &err) == HLLM_OK);
        *fields[i / HL_COUNT(values)] = values[i % HL_COUNT(values)];
        CHECK_MSG(hl_neuron_problem_check(&p, &err) == HLLM_E_ARG, "field %u = %g", (unsigned)(i / HL_COUNT(values)), values[i % HL_COUNT(values)]);
    }
    for (uint32_t i = 0; i < HL_COUNT(values) * 8; i++) {
        hl_ring_device d = { "d", HL_OS_LINUX, 0.1, 0, 0, 0, 1e9, 1e9, 0, 0, 0, 0 };
        hl_layer_problem p = { .n_layers = 2, .n_devices = 1, .n_vocab = 10, .layer_bytes = 1e6, .devices = &d };
        double *const fields[] = { &d.alpha_s, &d.hop_s, &d.disk_bytes_per_s, &d.ram_bytes, &d.vram_bytes, &p.layer_bytes, &p.input_bytes, &d.gpu_buffer_bytes };
        CHECK(hl_layer_problem_check(&p, &err) == HLLM_OK);
        *fields[i / HL_COUNT(values)] = values[i % HL_COUNT(values)];
        CHECK_MSG(hl_layer_problem_check(&p, &err) == HLLM_E_ARG, "field %u = %g", (unsigned)(i / HL_COUNT(values)), values[i % HL_COUNT(values)]);
    }
}

/* A plan file: cut anywhere, or with a byte changed, it is refused or verified; never taken as it says. */
static void hostile_plans(const char *problem)
{
    hl_plan *plan = NULL, *again = NULL;
    hl_out o = { .mem = mem };
    REQUIRE(hl_plan_read_problem(mem, problem, strlen(problem), &plan, &err) == HLLM_OK);
    const hl_status rc = plan->kind == HL_PLAN_NEURON ? hl_plan_neurons(mem, &plan->neuron, HL_SOLVER_BUILTIN, NULL, NULL, plan->neuron_plan, NULL, &err)
                                                      : hl_plan_layers(mem, &plan->ring, HL_SOLVER_BUILTIN, NULL, NULL, &plan->layer_plan, &err);
    REQUIRE(rc == HLLM_OK);
    plan->model = (hl_plan_model){ true, 0x0123456789abcdefu, 1234, 4096, "name" };
    REQUIRE(hl_plan_write(plan, false, &o, &err) == HLLM_OK);
    CHECK(hl_plan_read(mem, o.s, o.n, &again, &err) == HLLM_OK && again->model.hash == plan->model.hash && again->model.n_ctx == 4096 && strcmp(again->model.name, "name") == 0);
    hl_plan_free(again);
    for (size_t n = 0; n < o.n; n++) {
        again = (hl_plan *)1;
        const hl_status cut = hl_plan_read(mem, o.s, n, &again, &err);
        CHECK_MSG((cut == HLLM_E_TRUNCATED || cut == HLLM_E_FORMAT) && again == NULL, "cut to %zu bytes: %s", n, hl_status_name(cut));
    }
    for (size_t at = 0; at < o.n; at++) {
        static const char bytes[] = "0-9.\"{,\x80";
        for (uint32_t i = 0; i + 1 < sizeof bytes; i++) {
            const char was = o.s[at];
            o.s[at] = bytes[i];
            if (hl_plan_read(mem, o.s, o.n, &again, &err) == HLLM_OK) {
                const double x = again->kind == HL_PLAN_NEURON ? again->neuron_plan->objective : again->layer_plan.objective;
                CHECK(isfinite(x));
                hl_plan_free(again);
            }
            o.s[at] = was;
        }
    }
    static const char *const edits[][3] = { { "\"hllm_plan\":1", "\"hllm_plan\":2", "version 2" }, { "\"hllm_plan\":1", "\"plan\":1", "not a plan" }, { "0123456789abcdef", "0123456789abcdeg", "model.hash" } };
    for (uint32_t i = 0; i < HL_COUNT(edits); i++) {
        char *s = with(o.s, edits[i][0], edits[i][1]);
        CHECK_MSG(hl_plan_read(mem, s, strlen(s), &again, &err) != HLLM_OK && strstr(say(), edits[i][2]), "%s: %s", edits[i][1], say());
        free(s);
    }
    char *s = strstr(o.s, "\"objective\":0.");         /* another objective than the placement has */
    if (s) { s[14] = s[14] == '9' ? '8' : '9'; CHECK(hl_plan_read(mem, o.s, o.n, &again, &err) == HLLM_E_MISMATCH && strstr(say(), "says that its objective")); }
    hl_free(mem, o.s);
    hl_plan_free(plan);
}

int main(void)
{
    REQUIRE(hl_mem_new(NULL, &mem) == HLLM_OK);
    hl_error_init(&err);
    hostile_problems();
    too_many();
    hostile_structs();
    hostile_plans(neuron);
    hostile_plans(ring);
    hl_error_destroy(&err);
    CHECK(hl_mem_live_bytes(mem) == 0);
    hl_mem_free(mem);
    return check_done();
}
