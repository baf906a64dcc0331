/* planner_instances.c: every instance in tests/data/planner, against the answer that an independent exact method found:
 * the built-in solvers, GLPK where its module was built, and both together. */
#include <dirent.h>
#include <jansson.h>
#include <math.h>

#include "check.h"
#include "modules.h"
#include "plan_io.h"

static hl_mem *mem;
static hl_module glpk;                                 /* when it was built */

static double expected(const char *path)
{
    json_error_t e;
    json_t *v = json_load_file(path, 0, &e);
    REQUIRE(v != NULL);
    const double x = json_number_value(json_object_get(v, "objective"));
    json_decref(v);
    return x;
}

static char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    REQUIRE(f != NULL);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *s = malloc(*n + 1);
    REQUIRE(s && fread(s, 1, *n, f) == *n);
    s[*n] = 0;
    fclose(f);
    return s;
}

static hl_plan *solve(const char *text, size_t n, const char *name, uint32_t solver)
{
    hl_error err;
    hl_plan *plan = NULL;
    char t[1024] = "";
    const hl_plan_limits limits = { .deadline_ns = hl_now_ns() + 600000000000u };    /* on a slow or busy machine too */
    hl_error_init(&err);
    hl_status rc = hl_plan_read_problem(mem, text, n, &plan, &err);
    if (rc == HLLM_OK)
        rc = plan->kind == HL_PLAN_NEURON ? hl_plan_neurons(mem, &plan->neuron, solver, glpk.handle ? &glpk.planner : NULL, &limits, plan->neuron_plan, NULL, &err)
                                          : hl_plan_layers(mem, &plan->ring, solver, glpk.handle ? &glpk.planner : NULL, &limits, &plan->layer_plan, &err);
    hl_error_copy(&err, t, sizeof t);
    CHECK_MSG(rc == HLLM_OK, "%s: %s: %s", name, hl_status_name(rc), t);
    REQUIRE(rc == HLLM_OK);
    hl_error_destroy(&err);
    plan->solved = true;
    return plan;
}

/* A plan file that is written and read again is the same plan. */
static void round_trip(const hl_plan *plan, const char *name)
{
    hl_error err;
    hl_out o = { .mem = mem }, o2 = { .mem = mem };
    hl_plan *again = NULL;
    char t[1024] = "";
    hl_error_init(&err);
    REQUIRE(hl_plan_write(plan, false, &o, &err) == HLLM_OK);
    const hl_status rc = hl_plan_read(mem, o.s, o.n, &again, &err);
    hl_error_copy(&err, t, sizeof t);
    CHECK_MSG(rc == HLLM_OK, "%s: %s", name, t);
    if (rc == HLLM_OK) {
        if (plan->kind == HL_PLAN_NEURON) { again->neuron_plan->solver = plan->neuron_plan->solver; again->neuron_plan->solve_s = plan->neuron_plan->solve_s; }
        else { again->layer_plan.solver = plan->layer_plan.solver; again->layer_plan.solve_s = plan->layer_plan.solve_s; }
        CHECK(hl_plan_write(again, false, &o2, &err) == HLLM_OK && o.n == o2.n && memcmp(o.s, o2.s, o.n) == 0);
        hl_free(mem, o2.s);
    }
    hl_plan_free(again);
    hl_free(mem, o.s);
    hl_error_destroy(&err);
}

static void instance(const char *name)
{
    char path[512], base[256];
    size_t n;
    snprintf(base, sizeof base, "%.*s", (int)(strlen(name) - strlen(".problem.json")), name);
    snprintf(path, sizeof path, "tests/data/planner/%s", name);
    char *text = slurp(test_path(path), &n);
    snprintf(path, sizeof path, "tests/data/planner/%s.answer.json", base);
    const double want = expected(test_path(path));
    for (uint32_t solver = HL_SOLVER_AUTO; solver <= (glpk.handle ? HL_SOLVER_GLPK : HL_SOLVER_BUILTIN); solver++) {
        static const char *const names[] = { "auto", "builtin", "glpk" };
        hl_plan *plan = solve(text, n, base, solver);
        const bool neuron = plan->kind == HL_PLAN_NEURON, exact = solver != HL_SOLVER_GLPK;
        const double got = neuron ? plan->neuron_plan->objective : plan->layer_plan.objective, gap = neuron ? plan->neuron_plan->gap : plan->layer_plan.gap;
        CHECK_MSG(fabs(got - want) <= (exact ? 1e-6 : gap + 1e-6) * fabs(want), "%s, %s: %.9g, expected %.9g", base, names[solver], got, want);
        CHECK_MSG(gap <= (exact ? 1e-6 : 1e-3), "%s, %s: gap %g", base, names[solver], gap);
        printf("%-22s %-8s %.9g  gap %.1e  %.2f ms\n", base, names[solver], got, gap, 1e3 * (neuron ? plan->neuron_plan->solve_s : plan->layer_plan.solve_s));
        round_trip(plan, base);
        hl_plan_free(plan);
    }
    free(text);
}

int main(void)
{
    uint32_t n = 0;
    const char *build = getenv("HLLM_TEST_BUILD");
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/lib", build ? build : "build");
    hl_module_open_glpk(NULL, dir, &glpk);
    REQUIRE(hl_mem_new(NULL, &mem) == HLLM_OK);
    DIR *d = opendir(test_path("tests/data/planner"));
    REQUIRE(d != NULL);
    for (struct dirent *e; (e = readdir(d));) {
        const char *end = strstr(e->d_name, ".problem.json");
        if (!end || end[13]) continue;
        instance(e->d_name);
        n++;
    }
    closedir(d);
    hl_module_close(&glpk);
    CHECK_MSG(n >= 20, "%u instances", n);
    hl_mem_free(mem);
    return check_done();
}
