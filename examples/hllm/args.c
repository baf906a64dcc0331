/* args.c: command-line flags into cli_options.
 *
 * One table says which flag belongs to which command, what its value is and where it goes.  A wrong flag, a missing or wrong value
 * and a value out of range end in EXIT_USAGE and one line that names the flag.  Both `--flag VALUE` and `--flag=VALUE` are read.
 */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { ALL = 2047, SAMPLING = CMD_RUN | CMD_CHAT };
enum { K_FLAG, K_PATH, K_TEXT, K_U32, K_I32, K_U64, K_FLOAT, K_WORD, K_BIAS, K_STOP, K_DOUBLE, K_GPU, K_LATER };

typedef struct flag {
    const char *name;
    uint32_t commands;
    int kind;
    size_t field;
    double lo, hi;                                     /* numbers: the range that makes sense at all; the library knows the real limits */
    const char *words;                                 /* K_WORD: the value is the index of the word */
} flag;

#define AT(f) offsetof(cli_options, f)
#define U32_MAX 4294967295.0
#define NUM_MAX 3.0e38
static const flag flags[] = {
    { "-m", ALL & ~(CMD_DEVICES | CMD_PREPARE), K_PATH, AT(model), 0, 0, NULL },
    { "-t", ALL, K_U32, AT(threads), 0, U32_MAX, NULL },
    { "-c", ALL, K_U32, AT(n_ctx), 0, U32_MAX, NULL },
    { "--seed", ALL, K_U64, AT(seed), 0, 0, NULL },
    { "--kv", ALL, K_WORD, AT(kv), 0, 0, "f16|f32|q8_0" },
    { "--act", ALL, K_WORD, AT(act), 0, 0, "q8|f32" },
    { "--load", ALL, K_WORD, AT(load), 0, 0, "auto|mmap|read" },
    { "--mode", ALL, K_WORD, AT(mode), 0, 0, "exact|predicted|thresholded|dense" },
    { "--ffn-act", ALL & ~CMD_DEVICES, K_WORD, AT(ffn_act), 0, 0, "file|relu|relu2" },
    { "--ram-bytes", ALL, K_U64, AT(ram_bytes), 0, 0, NULL },
    { "--isa", ALL, K_PATH, AT(isa), 0, 0, NULL },
    { "--json", ALL, K_FLAG, AT(json), 0, 0, NULL },
    { "--help", ALL, K_FLAG, AT(help), 0, 0, NULL },
    { "-h", ALL, K_FLAG, AT(help), 0, 0, NULL },
    { "-p", CMD_RUN, K_TEXT, AT(prompt), 0, 0, NULL },
    { "-p", CMD_BENCH, K_U32, AT(n_prompt), 0, U32_MAX, NULL },
    { "--no-predictors", CMD_PREPARE, K_FLAG, AT(no_predictors), 0, 0, NULL },
    { "--skip", CMD_PREPARE, K_DOUBLE, AT(skip), 0, 0.99, NULL },
    { "--loss", CMD_PREPARE, K_DOUBLE, AT(loss), 0, 1, NULL },
    { "-f", CMD_RUN | CMD_PERPLEXITY | CMD_PREPARE, K_PATH, AT(file), 0, 0, NULL },
    { "-n", CMD_RUN | CMD_CHAT, K_I32, AT(n_predict), -1, 2147483647, NULL },
    { "-n", CMD_BENCH, K_I32, AT(n_predict), 0, 2147483647, NULL },
    { "--temp", SAMPLING, K_FLOAT, AT(temp), 0, NUM_MAX, NULL },
    { "--top-k", SAMPLING, K_I32, AT(top_k), -1, 2147483647, NULL },
    { "--top-p", SAMPLING, K_FLOAT, AT(top_p), 0, 1, NULL },
    { "--min-p", SAMPLING, K_FLOAT, AT(min_p), 0, 1, NULL },
    { "--repeat-penalty", SAMPLING, K_FLOAT, AT(repeat_penalty), 0, NUM_MAX, NULL },
    { "--frequency-penalty", SAMPLING, K_FLOAT, AT(frequency_penalty), -NUM_MAX, NUM_MAX, NULL },
    { "--presence-penalty", SAMPLING, K_FLOAT, AT(presence_penalty), -NUM_MAX, NUM_MAX, NULL },
    { "--logit-bias", SAMPLING, K_BIAS, 0, 0, 0, NULL },
    { "--stop", SAMPLING, K_STOP, 0, 0, 0, NULL },
    { "--ignore-eos", SAMPLING, K_FLAG, AT(ignore_eos), 0, 0, NULL },
    { "--greedy", SAMPLING, K_FLAG, AT(greedy), 0, 0, NULL },
    { "--stats", SAMPLING, K_FLAG, AT(stats), 0, 0, NULL },
    { "--logprobs", CMD_RUN, K_U32, AT(n_logprobs), 0, 64, NULL },
    { "--save", CMD_RUN, K_PATH, AT(save), 0, 0, NULL },
    { "--load-session", CMD_RUN, K_PATH, AT(load_session), 0, 0, NULL },
    { "--system", CMD_CHAT, K_TEXT, AT(system), 0, 0, NULL },
    { "--chat-template", CMD_CHAT, K_PATH, AT(chat_template), 0, 0, NULL },
    { "--no-thinking", CMD_CHAT, K_FLAG, AT(no_thinking), 0, 0, NULL },
    { "--no-special", CMD_TOKENIZE, K_FLAG, AT(no_special), 0, 0, NULL },
    { "--parse-special", CMD_TOKENIZE | CMD_RUN, K_FLAG, AT(parse_special), 0, 0, NULL },
    { "--top", CMD_SCORE, K_U32, AT(n_top), 0, U32_MAX, NULL },
    { "--greedy", CMD_SCORE, K_U32, AT(n_greedy), 0, U32_MAX, NULL },
    { "-r", CMD_BENCH, K_U32, AT(reps), 0, 1000, NULL },
    { "--depth", CMD_BENCH, K_U32, AT(depth), 0, U32_MAX, NULL },
    { "--sessions", CMD_BENCH, K_U32, AT(sessions), 0, 256, NULL },
    { "--remeasure", CMD_DEVICES, K_FLAG, AT(remeasure), 0, 0, NULL },
    { "--problem", CMD_PLAN, K_PATH, AT(problem), 0, 0, NULL },
    { "-o", CMD_PLAN, K_PATH, AT(plan_out), 0, 0, NULL },
    { "--svg", CMD_PLAN | CMD_PREPARE, K_PATH, AT(svg), 0, 0, NULL },
    { "--objective", CMD_PLAN, K_WORD, AT(objective), 0, 0, "auto|time|impact" },
    { "--solver", CMD_PLAN, K_WORD, AT(solver), 0, 0, "auto|builtin|glpk" },
    { "--time-limit", CMD_PLAN, K_DOUBLE, AT(time_limit), 0, 1e6, NULL },
    { "--cpu-bytes", CMD_PLAN, K_U64, AT(cpu_bytes), 0, 0, NULL },
    { "--cpu-bandwidth", CMD_PLAN, K_DOUBLE, AT(cpu_bandwidth), 0, 1e18, NULL },
    { "--gpu-bytes", CMD_PLAN, K_GPU, offsetof(hllm_plan_gpu, budget_bytes), 0, 9e15, NULL },
    { "--gpu-bandwidth", CMD_PLAN, K_GPU, offsetof(hllm_plan_gpu, bytes_per_s), 1, 1e18, NULL },
    { "--sync", CMD_PLAN, K_GPU, offsetof(hllm_plan_gpu, sync_s), 0, 1e6, NULL },
    { "--backend-dir", CMD_PLAN, K_PATH, AT(backend_dir), 0, 0, NULL },
    { "--plan", ALL, K_LATER, 0, 0, 0, NULL },
    { "--backend-dir", ALL & ~CMD_PLAN, K_LATER, 0, 0, 0, NULL },
    { "--profile", CMD_DEVICES | CMD_PLAN, K_PATH, AT(profile), 0, 0, NULL },
    { "--profile", ALL & ~(CMD_DEVICES | CMD_PLAN), K_LATER, 0, 0, 0, NULL },
    { "--trace", ALL, K_LATER, 0, 0, 0, NULL },
    { "--ring", ALL, K_LATER, 0, 0, 0, NULL },
    { "--key", ALL, K_LATER, 0, 0, 0, NULL },
    { "--rounds", ALL, K_LATER, 0, 0, 0, NULL },
    { "--windows", ALL, K_LATER, 0, 0, 0, NULL },
    { "--ring-method", ALL, K_LATER, 0, 0, 0, NULL },
    { "--wire", ALL, K_LATER, 0, 0, 0, NULL },
    { "--no-prefetch", ALL, K_LATER, 0, 0, 0, NULL },
};

static const struct { const char *name; uint32_t command; } commands[] = {
    { "run", CMD_RUN }, { "chat", CMD_CHAT }, { "tokenize", CMD_TOKENIZE }, { "detokenize", CMD_DETOKENIZE },
    { "score", CMD_SCORE }, { "perplexity", CMD_PERPLEXITY }, { "inspect", CMD_INSPECT }, { "bench", CMD_BENCH },
    { "devices", CMD_DEVICES }, { "plan", CMD_PLAN }, { "prepare", CMD_PREPARE },
};

const char *cli_command_name(uint32_t command)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (commands[i].command == command) return commands[i].name;
    return "";
}

int cli_usage(const cli_options *o, const char *fmt, ...)
{
    const char *name = cli_command_name(o->command);
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "hllm %s: ", name);
    vfprintf(stderr, fmt, args);
    fprintf(stderr, " (see hllm %s --help)\n", name);
    va_end(args);
    return EXIT_USAGE;
}

/* The flag of this command whose name is arg[0..n). */
static const flag *find_flag(uint32_t command, const char *arg, size_t n)
{
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if ((flags[i].commands & command) && strlen(flags[i].name) == n && memcmp(flags[i].name, arg, n) == 0) return &flags[i];
    return NULL;
}

static bool digits_follow(const char *s, bool sign)
{
    if (sign && (*s == '-' || *s == '+')) s++;
    return *s >= '0' && *s <= '9';
}

static int parse_integer(const cli_options *o, const flag *f, const char *value, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    const long long v = digits_follow(value, true) ? strtoll(value, &end, 10) : 0;
    if (!end || *end) return cli_usage(o, "%s: '%s' is not a whole number", f->name, value);
    if (errno || (double)v < f->lo || (double)v > f->hi) return cli_usage(o, "%s: %s is not between %.0f and %.0f", f->name, value, f->lo, f->hi);
    *out = v;
    return 0;
}

static int parse_u64(const cli_options *o, const flag *f, const char *value, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    const unsigned long long v = digits_follow(value, false) ? strtoull(value, &end, 10) : 0;
    if (!end || *end) return cli_usage(o, "%s: '%s' is not a whole number", f->name, value);
    if (errno) return cli_usage(o, "%s: %s is above 18446744073709551615", f->name, value);
    *out = v;
    return 0;
}

static int parse_float(const cli_options *o, const flag *f, const char *value, float *out)
{
    char *end;
    const double v = strtod(value, &end);
    if (end == value || *end || !isfinite(v)) return cli_usage(o, "%s: '%s' is not a number", f->name, value);
    if (v < f->lo || v > f->hi) return cli_usage(o, "%s: %s is not between %g and %g", f->name, value, f->lo, f->hi);
    *out = (float)v;
    return 0;
}

static int parse_word(const cli_options *o, const flag *f, const char *value, uint32_t *out)
{
    uint32_t index = 0;
    for (const char *w = f->words; *w; index++) {
        const size_t n = strcspn(w, "|");
        if (strlen(value) == n && memcmp(w, value, n) == 0) {
            *out = index;
            return 0;
        }
        w += n + (w[n] == '|');
    }
    return cli_usage(o, "%s: '%s' is none of %s", f->name, value, f->words);
}

static int parse_bias(cli_options *o, const flag *f, const char *value)
{
    char *end = NULL;
    errno = 0;
    const long id = digits_follow(value, false) ? strtol(value, &end, 10) : 0;
    if (!end || *end != ':' || errno || id > 2147483647) return cli_usage(o, "%s: '%s' is not ID:BIAS", f->name, value);
    const char *number = end + 1;
    const double bias = strtod(number, &end);
    if (end == number || *end || isnan(bias)) return cli_usage(o, "%s: '%s' is not ID:BIAS", f->name, value);
    hllm_logit_bias *all = realloc(o->bias, (o->n_bias + 1) * sizeof *all);
    if (!all) return cli_error(o, "out of memory");
    o->bias = all;
    o->bias[o->n_bias++] = (hllm_logit_bias){ (int32_t)id, (float)bias };
    return 0;
}

static int parse_double(const cli_options *o, const flag *f, const char *value, double *out)
{
    char *end;
    const double v = strtod(value, &end);
    if (end == value || *end || !isfinite(v)) return cli_usage(o, "%s: '%s' is not a number", f->name, value);
    if (v < f->lo || v > f->hi) return cli_usage(o, "%s: %s is not between %g and %g", f->name, value, f->lo, f->hi);
    *out = v;
    return 0;
}

/* --gpu-bytes begins a GPU, the others belong to the last one. */
static int parse_gpu(cli_options *o, const flag *f, const char *value)
{
    double v = 0;
    const int rc = parse_double(o, f, value, &v);
    if (rc) return rc;
    if (f->field == offsetof(hllm_plan_gpu, budget_bytes)) {
        hllm_plan_gpu *all = realloc(o->gpus, (o->n_gpus + 1) * sizeof *all);
        if (!all) return cli_error(o, "out of memory");
        o->gpus = all;
        o->gpus[o->n_gpus++] = (hllm_plan_gpu){ .struct_size = sizeof *all, .budget_bytes = (uint64_t)v };
    } else if (o->n_gpus == 0) return cli_usage(o, "%s: --gpu-bytes comes before it", f->name);
    else *(double *)(void *)((char *)&o->gpus[o->n_gpus - 1] + f->field) = v;
    return 0;
}

static int parse_stop(cli_options *o, const char *value)
{
    const char **all = realloc(o->stop, (o->n_stop + 1) * sizeof *all);
    if (!all) return cli_error(o, "out of memory");
    o->stop = all;
    o->stop[o->n_stop++] = value;
    return 0;
}

static int set_value(cli_options *o, const flag *f, const char *value)
{
    void *field = (char *)o + f->field;
    int64_t v = 0;
    int rc = 0;
    switch (f->kind) {
    case K_PATH:
        if (!*value) return cli_usage(o, "%s: the value is empty", f->name);
        *(const char **)field = value;
        return 0;
    case K_TEXT:  *(const char **)field = value; return 0;
    case K_U32:   if ((rc = parse_integer(o, f, value, &v)) == 0) *(uint32_t *)field = (uint32_t)v; return rc;
    case K_I32:   if ((rc = parse_integer(o, f, value, &v)) == 0) *(int32_t *)field = (int32_t)v; return rc;
    case K_U64:   return parse_u64(o, f, value, field);
    case K_FLOAT: return parse_float(o, f, value, field);
    case K_WORD:  return parse_word(o, f, value, field);
    case K_BIAS:  return parse_bias(o, f, value);
    case K_DOUBLE: return parse_double(o, f, value, field);
    case K_GPU:   return parse_gpu(o, f, value);
    default:      return parse_stop(o, value);
    }
}

/* What must fit together, once all flags are read. */
static int check(const cli_options *o)
{
    const bool list = o->chat_template && strcmp(o->chat_template, "list") == 0;
    if (o->command == CMD_PLAN) {
        if (!o->model == !o->problem) return cli_usage(o, o->model ? "-m and --problem exclude each other" : "-m MODEL or --problem FILE is missing");
        if (o->problem && (o->n_gpus || o->cpu_bytes || o->cpu_bandwidth > 0)) return cli_usage(o, "the problem itself says what the machine has: no --gpu-... and --cpu-... with --problem");
        for (uint32_t g = 0; g < o->n_gpus; g++)
            if (o->gpus[g].bytes_per_s <= 0) return cli_usage(o, "--gpu-bandwidth is missing for the %s--gpu-bytes", o->n_gpus > 1 ? "one or other " : "");
        return 0;
    }
    if (o->command != CMD_DEVICES && !o->model && !list)
        return o->command == CMD_INSPECT ? cli_usage(o, "which file?") : cli_usage(o, "-m MODEL is missing");
    if (o->command == CMD_PREPARE && !o->out) return cli_usage(o, "which files? IN.gguf OUT.gguf");
    if ((o->command == CMD_PERPLEXITY || o->command == CMD_PREPARE) && !o->file) return cli_usage(o, "-f FILE is missing");
    if (o->prompt && o->file) return cli_usage(o, "-p and -f exclude each other");
    return 0;
}

int cli_parse(cli_options *o, const char *command, int argc, char **argv)
{
    int rc = 0;
    memset(o, 0, sizeof *o);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].name, command) == 0) o->command = commands[i].command;
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (arg[0] != '-' || !arg[1]) {
            if (o->command == CMD_PREPARE && o->model && !o->out) { o->out = arg; continue; }
            if ((o->command != CMD_INSPECT && o->command != CMD_PREPARE) || o->model) return cli_usage(o, "'%s' belongs to no flag", arg);
            o->model = arg;
            continue;
        }
        const size_t n = strncmp(arg, "--", 2) == 0 ? strcspn(arg, "=") : strlen(arg);
        const flag *f = find_flag(o->command, arg, n);
        if (!f) return cli_usage(o, "unknown flag %.*s", (int)n, arg);
        if (f->kind == K_LATER) return cli_usage(o, "%s comes with a later version", f->name);
        const char *value = arg[n] == '=' ? arg + n + 1 : NULL;
        if (f->kind == K_FLAG) {
            if (value) return cli_usage(o, "%s takes no value", f->name);
            *(bool *)((char *)o + f->field) = true;
            continue;
        }
        if (!value) {
            /* A flag where a value should be is a forgotten value, except where any text may stand. */
            const bool any_text = f->kind == K_TEXT || f->kind == K_STOP;
            if (i + 1 >= argc || (!any_text && find_flag(o->command, argv[i + 1], strlen(argv[i + 1]))))
                return cli_usage(o, "%s needs a value", f->name);
            value = argv[++i];
        }
        if ((rc = set_value(o, f, value)) != 0) return rc;
    }
    return o->help ? 0 : check(o);
}

void cli_options_free(cli_options *o)
{
    free(o->bias);
    free(o->stop);
    free(o->gpus);
}
