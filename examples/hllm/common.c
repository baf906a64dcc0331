/* common.c: what every command does: open and close the handles, print errors and warnings, read input, catch Ctrl-C.
 *
 * A loading bar appears on a terminal when loading takes longer than a second: a thread of its own reads the hllm_progress
 * handle of the call that is under way.
 */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- errors and warnings ---- */

static size_t last_error(const cli *c, int at, char *buf, size_t cap)
{
    switch (at) {
    case AT_RUNTIME: return hllm_runtime_last_error(c->rt, buf, cap);
    case AT_MODEL:   return hllm_model_last_error(c->model, buf, cap);
    case AT_ENGINE:  return hllm_engine_last_error(c->engine, buf, cap);
    default:         return hllm_session_last_error(c->session, buf, cap);
    }
}

/* Texts may quote names out of a file: nothing there may move the cursor of a terminal or break the line. */
static void make_printable(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 32 || *s == 127) *s = ' ';
}

char *cli_error_text(const cli *c, int at)
{
    const char *about = at == AT_RUNTIME && c->about ? c->about : "";
    const size_t n = strlen(about), cap = last_error(c, at, NULL, 0) + n + 64;
    char *text = cli_alloc(cap, 1);
    snprintf(text, cap, "%s%s", about, n ? ": " : "");
    last_error(c, at, text + strlen(text), cap - strlen(text));
    make_printable(text);
    return text;
}

static void print_error(const cli_options *o, const char *code, const char *text)
{
    json_close_all();
    fflush(stdout);
    if (code) fprintf(stderr, "hllm %s: %s (%s)\n", cli_command_name(o->command), text, code);
    else fprintf(stderr, "hllm %s: %s\n", cli_command_name(o->command), text);
    if (!o->json) return;
    json_open('{');
    json_key("error");
    json_open('{');
    json_key_str("code", code ? code : "CLI");
    json_key_str("message", text);
    json_close();
    json_close();
}

int cli_fail(cli *c, int at, hllm_status rc)
{
    cli_warnings(c);
    char *text = cli_error_text(c, at);
    print_error(c->o, hllm_status_name(rc), text);
    free(text);
    return EXIT_ERROR;
}

int cli_error(const cli_options *o, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    make_printable(text);
    print_error(o, NULL, text);
    return EXIT_ERROR;
}

void cli_warnings(cli *c)
{
    char *line = NULL;
    size_t cap = 0;
    while (c->rt) {
        uint32_t level = 0;
        size_t needed = 0;
        const hllm_status rc = hllm_log_poll(c->rt, &level, line, cap, &needed);
        if (rc == HLLM_E_BUFFER && needed > cap) {
            free(line);
            line = cli_alloc(cap = needed, 1);
            continue;
        }
        if (rc != HLLM_OK || needed == 0) break;
        make_printable(line);
        if (level == HLLM_LOG_WARNING) fprintf(stderr, "hllm %s: warning: %s\n", cli_command_name(c->o->command), line);
    }
    free(line);
}

/* ---- interrupts ---- */

volatile sig_atomic_t cli_interrupted;
static volatile sig_atomic_t catching;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (catching == CATCH_NONE || (catching == CATCH_FIRST && cli_interrupted)) _exit(EXIT_INTERRUPTED);
    cli_interrupted = 1;
}

/* Without SA_RESTART, so that chat's reading of a line ends too. */
void cli_install_interrupts(void)
{
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_interrupt;
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
}

void cli_catch_interrupts(int which)
{
    cli_interrupted = 0;
    catching = which;
}

/* ---- the loading bar ---- */

typedef struct loading {
    hllm_progress *progress;
    pthread_t thread;
    bool started;
    _Atomic bool done;
} loading;

static void nap_ms(long ms)
{
    const struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
    nanosleep(&t, NULL);
}

static void *watch_loading(void *arg)
{
    loading *l = arg;
    bool printed = false;
    for (int ticks = 0; !atomic_load(&l->done); ticks++) {
        uint64_t done = 0, total = 0;
        if (ticks >= 20 && hllm_progress_read(l->progress, &done, &total) == HLLM_OK && total > 0) {
            fprintf(stderr, "\rloading %3.0f %%", 100.0 * (double)done / (double)total);
            printed = true;
        }
        nap_ms(50);
    }
    if (printed) fputs("\r             \r", stderr);
    return NULL;
}

static void loading_begin(loading *l, hllm_runtime *rt)
{
    memset(l, 0, sizeof *l);
    if (!isatty(STDERR_FILENO) || hllm_progress_create(rt, &l->progress) != HLLM_OK) return;
    l->started = pthread_create(&l->thread, NULL, watch_loading, l) == 0;
}

static void loading_end(loading *l)
{
    atomic_store(&l->done, true);
    if (l->started) pthread_join(l->thread, NULL);
    hllm_progress_free(l->progress);
}

/* ---- handles ---- */

int cli_open_runtime(cli *c, const cli_options *o)
{
    char text[1024] = "";
    hllm_runtime_options r = { .struct_size = sizeof r, .n_threads = o->threads, .isa = o->isa, .error_text = text, .error_capacity = sizeof text };
    memset(c, 0, sizeof *c);
    c->o = o;
    const hllm_status rc = hllm_runtime_create(&r, &c->rt);
    if (rc == HLLM_OK) return 0;
    make_printable(text);
    print_error(o, hllm_status_name(rc), text);
    return EXIT_ERROR;
}

static hllm_status open_file(cli *c, uint32_t flags)
{
    loading l;
    loading_begin(&l, c->rt);
    const uint32_t act = c->o->ffn_act == 1 ? HLLM_MODEL_FFN_RELU : c->o->ffn_act == 2 ? HLLM_MODEL_FFN_RELU2 : 0;
    hllm_model_options m = { .struct_size = sizeof m, .flags = flags | act, .progress = l.progress };
    const hllm_status rc = hllm_model_open(c->rt, c->o->model, &m, &c->model);
    loading_end(&l);
    return rc;
}

int cli_open_model(cli *c, const cli_options *o, uint32_t flags)
{
    const int code = cli_open_runtime(c, o);
    if (code) return code;
    const double start = cli_seconds();
    hllm_status rc = open_file(c, flags);
    if (rc != HLLM_OK) return cli_fail(c, AT_RUNTIME, rc);
    c->load_s = cli_seconds() - start;
    cli_warnings(c);
    c->info.struct_size = sizeof c->info;
    if ((rc = hllm_model_get_info(c->model, &c->info)) != HLLM_OK) return cli_fail(c, AT_MODEL, rc);
    return 0;
}

void cli_engine_options(const cli_options *o, hllm_engine_options *e)
{
    *e = (hllm_engine_options){ .struct_size = sizeof *e, .load = o->load, .act = o->act, .ram_bytes = o->ram_bytes, .mode = o->mode };
}

void cli_session_options(const cli_options *o, uint32_t n_ctx, hllm_session_options *s)
{
    *s = (hllm_session_options){ .struct_size = sizeof *s, .n_ctx = n_ctx, .kv = o->kv };
}

int cli_open_engine(cli *c, const cli_options *o)
{
    const int code = cli_open_model(c, o, 0);
    if (code) return code;
    const double start = cli_seconds();
    loading l;
    hllm_engine_options e;
    hllm_session_options s;
    cli_engine_options(o, &e);
    cli_session_options(o, o->n_ctx, &s);
    e.session = &s;                                    /* refuse before loading what cannot run after it */
    loading_begin(&l, c->rt);
    e.progress = l.progress;
    const hllm_status rc = hllm_engine_create(c->model, &e, &c->engine);
    loading_end(&l);
    if (rc != HLLM_OK) return cli_fail(c, AT_MODEL, rc);
    c->load_s += cli_seconds() - start;
    cli_warnings(c);
    return 0;
}

int cli_open_session(cli *c, uint32_t n_ctx)
{
    hllm_session_options s;
    loading l;
    cli_session_options(c->o, n_ctx, &s);
    loading_begin(&l, c->rt);
    s.progress = l.progress;
    hllm_status rc = hllm_session_create(c->engine, &s, &c->session);
    loading_end(&l);
    if (rc != HLLM_OK) return cli_fail(c, AT_ENGINE, rc);
    cli_warnings(c);
    c->session_info.struct_size = sizeof c->session_info;
    rc = hllm_session_get_info(c->session, &c->session_info);
    return rc == HLLM_OK ? 0 : cli_fail(c, AT_SESSION, rc);
}

/* $XDG_CACHE_HOME/hllm or ~/.cache/hllm, made when it is missing; NULL: there is no home, nothing is kept. */
static char *cache_file(const char *name)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const bool own = cache && *cache == '/';
    if (!own && (!home || *home != '/')) return NULL;
    const size_t cap = strlen(own ? cache : home) + strlen(name) + 32;
    char *path = cli_alloc(cap, 1);
    snprintf(path, cap, "%s%s", own ? cache : home, own ? "" : "/.cache");
    mkdir(path, 0777);
    snprintf(path + strlen(path), cap - strlen(path), "/hllm");
    mkdir(path, 0777);
    snprintf(path + strlen(path), cap - strlen(path), "/%s", name);
    return path;
}

int cli_open_profile(cli *c, bool remeasure, const char *model, hllm_profile **out)
{
    char *kept = c->o->profile ? NULL : cache_file("machine.json");
    const hllm_profile_options p = { .struct_size = sizeof p, .flags = remeasure ? HLLM_PROFILE_REMEASURE : 0, .path = c->o->profile ? c->o->profile : kept, .model_path = model };
    const hllm_status rc = hllm_profile_open(c->rt, &p, out);
    free(kept);
    cli_warnings(c);
    return rc == HLLM_OK ? 0 : cli_fail(c, AT_RUNTIME, rc);
}

void cli_close(cli *c)
{
    cli_warnings(c);
    hllm_session_free(c->session);
    hllm_engine_free(c->engine);
    hllm_model_free(c->model);
    hllm_runtime_free(c->rt);
}

/* ---- input ---- */

void *cli_alloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size ? size : 1);
    if (p) return p;
    fputs("hllm: out of memory\n", stderr);
    exit(EXIT_ERROR);
}

void cli_append(cli_bytes *b, const void *data, size_t n)
{
    if (b->n + n + 1 > b->cap) {
        const size_t cap = (b->n + n + 1) * 2;
        char *bigger = cli_alloc(cap, 1);
        if (b->n) memcpy(bigger, b->data, b->n);
        free(b->data);
        b->data = bigger;
        b->cap = cap;
    }
    if (n) memcpy(b->data + b->n, data, n);
    b->n += n;
    b->data[b->n] = 0;
}

enum { TEXT_MOST = 256 << 20 };                        /* a device like /dev/zero never ends */

int cli_read_all(const cli_options *o, const char *path, cli_bytes *out)
{
    char buf[65536];
    size_t n;
    FILE *f = path ? fopen(path, "rb") : stdin;
    memset(out, 0, sizeof *out);
    if (!f) return cli_error(o, "%s: %s", path, strerror(errno));
    cli_append(out, "", 0);
    while (out->n <= TEXT_MOST && (n = fread(buf, 1, sizeof buf, f)) > 0) cli_append(out, buf, n);
    const int failed = ferror(f) ? errno : 0;
    if (path) fclose(f);
    if (out->n > TEXT_MOST) return cli_error(o, "%s: longer than %u bytes, the limit for a text", path ? path : "stdin", (unsigned)TEXT_MOST);
    return failed ? cli_error(o, "%s: %s", path ? path : "stdin", strerror(failed)) : 0;
}

bool cli_next_text(const cli_bytes *all, size_t *at, const char **text, size_t *n)
{
    if (*at >= all->n) return false;
    const char *end = memchr(all->data + *at, 0, all->n - *at);
    *text = all->data + *at;
    *n = end ? (size_t)(end - *text) : all->n - *at;
    *at += *n + 1;
    return true;
}

int cli_tokenize(cli *c, const char *text, size_t n, uint32_t flags, int32_t **tokens, size_t *n_tokens)
{
    size_t cap = n + 8;                                /* nearly always enough: a token has at least a byte, besides BOS and EOS */
    *tokens = cli_alloc(cap, sizeof **tokens);
    hllm_status rc = hllm_tokenize(c->model, text, n, flags, *tokens, cap, n_tokens);
    if (rc == HLLM_E_BUFFER) {
        free(*tokens);
        cap = *n_tokens;
        *tokens = cli_alloc(cap, sizeof **tokens);
        rc = hllm_tokenize(c->model, text, n, flags, *tokens, cap, n_tokens);
    }
    return rc == HLLM_OK ? 0 : cli_fail(c, AT_MODEL, rc);
}

int cli_detokenize(cli *c, const int32_t *tokens, size_t n, uint32_t flags, cli_bytes *out)
{
    size_t bytes = 0, cap = 0;
    char *buf = NULL;
    hllm_status rc = hllm_detokenize(c->model, tokens, n, flags, NULL, 0, &bytes);
    if (rc == HLLM_E_BUFFER) {
        buf = cli_alloc(cap = bytes, 1);
        rc = hllm_detokenize(c->model, tokens, n, flags, buf, cap, &bytes);
    }
    if (rc == HLLM_OK) cli_append(out, buf, bytes);
    free(buf);
    return rc == HLLM_OK ? 0 : cli_fail(c, AT_MODEL, rc);
}

double cli_log_sum_exp(const float *logits, uint32_t n)
{
    double top = -INFINITY, sum = 0;
    for (uint32_t j = 0; j < n; j++) if (logits[j] > top) top = logits[j];
    for (uint32_t j = 0; j < n; j++) sum += exp((double)logits[j] - top);
    return top + log(sum);
}

double cli_decode_tok_s(const hllm_run_stats *s)
{
    return s->n_generated > 1 && s->decode_ns ? (s->n_generated - 1.0) * 1e9 / (double)s->decode_ns : 0;
}

double cli_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint64_t cli_status_bytes(const char *key)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) sscanf(line + strlen(key), "%llu", &kib);
    if (f) fclose(f);
    return (uint64_t)kib * 1024;
}
