/* plan.c: `hllm plan`: what goes where, and how fast that will be; for a model, of which only the header is read, or for a problem in JSON.
 *
 * A table for people; --json: the answer, one line; -o: the plan as a file; --svg: the picture.  Impossible: exit 1, and with --json the
 * error object carries bytes_needed and bytes_available.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const double gib = 1024.0 * 1024 * 1024;

/* ---- output ---- */

static char *text_of(hllm_status (*write)(const hllm_plan *, uint32_t, char *, size_t, size_t *), const hllm_plan *p, uint32_t flags, size_t *n)
{
    char *s = NULL;
    hllm_status rc = write(p, flags, NULL, 0, n);
    if (rc == HLLM_E_BUFFER) {
        const size_t cap = *n;
        s = cli_alloc(cap + 1, 1);
        rc = write(p, flags, s, cap, n);
    }
    if (rc == HLLM_OK) return s;
    free(s);
    return NULL;
}

static hllm_status draw(const hllm_plan *p, uint32_t flags, char *buf, size_t cap, size_t *n)
{
    (void)flags;
    return hllm_plan_draw(p, buf, cap, n);
}

static int write_file(const cli_options *o, const char *path, const char *s, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f) return cli_error(o, "%s: %s", path, strerror(errno));
    const size_t done = fwrite(s, 1, n, f);
    const int failed = ferror(f) ? errno : 0;
    if (fclose(f) != 0 || failed || done != n) return cli_error(o, "%s: %s", path, strerror(failed ? failed : errno));
    return 0;
}

static void print_layers(const hllm_plan *p, const hllm_plan_info *i)
{
    for (uint32_t from = 0, il = 0; il < i->n_layers; il++) {       /* runs of equal layers on one line */
        hllm_plan_layer a = { .struct_size = sizeof a }, b = { .struct_size = sizeof b };
        if (hllm_plan_get_layer(p, from, &a) != HLLM_OK) return;
        const bool last = il + 1 == i->n_layers || hllm_plan_get_layer(p, il + 1, &b) != HLLM_OK;
        if (!last && memcmp(&a, &b, sizeof a) == 0) continue;
        char which[48], where[64];
        if (from == il) snprintf(which, sizeof which, "%u", il);
        else snprintf(which, sizeof which, "%u-%u", from, il);
        if (i->kind == HLLM_PLAN_LAYER) {
            hllm_plan_device d = { .struct_size = sizeof d };
            hllm_plan_get_device(p, a.device, &d);
            printf("%-11s %s%s\n", which, d.name ? d.name : "", a.on_gpu ? ", on its GPU" : "");
        } else {
            if (a.gpu > 0) snprintf(where, sizeof where, " on GPU %d", a.gpu);
            else snprintf(where, sizeof where, "%s", a.gpu == 0 ? " on the GPU" : "");
            printf("%-11s %llu of %llu neurons%s\n", which, (unsigned long long)a.n_neurons_gpu, (unsigned long long)a.n_neurons, a.gpu < 0 ? " on the GPU" : where);
        }
        from = il + 1;
    }
}

void cli_print_plan(const hllm_plan *p)
{
    hllm_plan_info i = { .struct_size = sizeof i };
    if (hllm_plan_get_info(p, &i) != HLLM_OK) return;
    printf("predicted   %.6g s per token, %.4g tokens per second\n", i.seconds_per_token, i.seconds_per_token > 0 ? 1 / i.seconds_per_token : 0.0);
    if (i.objective_kind == HLLM_OBJECTIVE_IMPACT) printf("objective   %.8g activations on GPUs, bound %.8g", i.objective, i.bound);
    else printf("objective   %.8g s, bound %.8g", i.objective, i.bound);
    printf(", gap %.2g (%s, %.3g s)\n", i.gap, i.solver, i.solve_s);
    if (i.k) printf("rounds      %u per token\n", i.k);
    if (i.uniform) printf("statistics  none in the file: every neuron counts alike\n");
    if (i.n_ctx) printf("context     %u tokens\n", i.n_ctx);
    for (uint32_t m = 0; m < i.n_devices; m++) {
        hllm_plan_device d = { .struct_size = sizeof d };
        if (hllm_plan_get_device(p, m, &d) != HLLM_OK || (d.budget_bytes == 0 && d.bytes == 0)) continue;
        printf("%-11s %.3f of %.3f GiB, busy %.4g ms", d.name, (double)d.bytes / gib, (double)d.budget_bytes / gib, d.seconds * 1e3);
        if (i.kind == HLLM_PLAN_LAYER) printf(", %u layers, %u on its GPU", d.n_layers, d.n_layers_gpu);
        putchar('\n');
        for (uint32_t j = 0; j < d.n_parts; j++) {
            hllm_plan_part x = { .struct_size = sizeof x };
            if (hllm_plan_get_part(p, m, j, &x) == HLLM_OK) printf("  %-11s %10.3f MiB  %10.4g ms\n", x.kind, (double)x.bytes / 1048576, x.seconds * 1e3);
        }
    }
    printf("layers\n");
    print_layers(p, &i);
}

static int put_plan(const cli_options *o, const hllm_plan *p)
{
    size_t n;
    char *s;
    int code = 0;
    if (o->plan_out) {
        if (!(s = text_of(hllm_plan_write, p, 0, &n))) return cli_error(o, "the plan cannot be written: out of memory");
        code = write_file(o, o->plan_out, s, n);
        free(s);
    }
    if (!code && o->svg) {
        if (!(s = text_of(draw, p, 0, &n))) return cli_error(o, "the plan cannot be drawn: out of memory");
        code = write_file(o, o->svg, s, n);
        free(s);
    }
    if (code) return code;
    if (!o->json) { cli_print_plan(p); return 0; }
    if (!(s = text_of(hllm_plan_write, p, HLLM_PLAN_ANSWER, &n))) return cli_error(o, "the plan cannot be written: out of memory");
    fwrite(s, 1, n, stdout);
    putchar('\n');
    free(s);
    return 0;
}

/* ---- the command ---- */

static int failed(cli *c, int at, hllm_status rc, const hllm_plan_shortage *lack)
{
    if (rc != HLLM_E_NOMEM || lack->bytes_needed == 0) return cli_fail(c, at, rc);
    char *text = cli_error_text(c, at);
    cli_warnings(c);
    fflush(stdout);
    fprintf(stderr, "hllm plan: %s (%s)\n", text, hllm_status_name(rc));
    if (c->o->json) {
        json_open('{');
        json_key("error");
        json_open('{');
        json_key_str("code", hllm_status_name(rc));
        json_key_str("message", text);
        json_key_uint("bytes_needed", lack->bytes_needed);
        json_key_uint("bytes_available", lack->bytes_available);
        if (lack->n_ctx_fits) json_key_uint("n_ctx_fits", lack->n_ctx_fits);
        json_close();
        json_close();
    }
    free(text);
    return EXIT_ERROR;
}

/* Of this machine, when none is given: as its profile has it for the threads that compute. */
static int find_speed(cli *c, hllm_plan_options *opt)
{
    hllm_profile *p = NULL;
    hllm_profile_info i = { .struct_size = sizeof i };
    hllm_machine_info m = { .struct_size = sizeof m };
    if (opt->cpu_bytes_per_s > 0) return 0;
    const int code = cli_open_profile(c, false, NULL, &p);
    if (code) return code;
    if (hllm_profile_get_info(p, &i) == HLLM_OK && hllm_runtime_machine(c->rt, &m) == HLLM_OK)
        for (uint32_t j = 0; j < i.n_rates; j++) {
            hllm_profile_rate r = { .struct_size = sizeof r };
            if (hllm_profile_get_rate(p, j, &r) == HLLM_OK && r.n_threads == m.n_threads && strcmp(r.isa, m.isa) == 0) opt->cpu_bytes_per_s = r.read_bytes_per_s;
        }
    hllm_profile_free(p);
    return 0;
}

int cmd_plan(const cli_options *o)
{
    cli c;
    hllm_plan *plan = NULL;
    hllm_plan_shortage lack = { .struct_size = sizeof lack };
    hllm_plan_options opt = { .struct_size = sizeof opt, .objective = o->objective, .solver = o->solver, .time_limit_s = o->time_limit, .module_dir = o->backend_dir,
                              .shortage = &lack, .n_ctx = o->n_ctx, .kv = o->kv, .cpu_budget_bytes = o->cpu_bytes ? o->cpu_bytes : o->ram_bytes,
                              .cpu_bytes_per_s = o->cpu_bandwidth, .gpus = o->gpus, .n_gpus = o->n_gpus };
    int code;
    if (o->problem) {
        cli_bytes json;
        if ((code = cli_open_runtime(&c, o)) == 0 && (code = cli_read_all(o, strcmp(o->problem, "-") == 0 ? NULL : o->problem, &json)) == 0) {
            c.about = strcmp(o->problem, "-") == 0 ? "stdin" : o->problem;
            const hllm_status rc = hllm_plan_solve_problem(c.rt, json.data, json.n, &opt, &plan);
            free(json.data);
            if (rc != HLLM_OK) code = failed(&c, AT_RUNTIME, rc, &lack);
        }
    } else if ((code = cli_open_model(&c, o, HLLM_MODEL_HEADER_ONLY)) == 0 && (code = find_speed(&c, &opt)) == 0) {
        const hllm_status rc = hllm_plan_solve(c.model, &opt, &plan);
        if (rc != HLLM_OK) code = failed(&c, AT_MODEL, rc, &lack);
    }
    if (!code) code = put_plan(o, plan);
    hllm_plan_free(plan);
    cli_close(&c);
    return code;
}
