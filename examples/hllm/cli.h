/* cli.h: what the commands of `hllm` share.
 *
 * The program is written only against hybrid_llm.h.  Text for people goes to stdout, warnings, progress and errors to stderr.
 * Exit codes: 0 ok, 1 error (one line on stderr), 2 wrong usage (names the flag), 130 interrupted.
 * setlocale is never called: numbers are printed and read in the C locale.
 *
 * main.c      the table of commands                 args.c      flags -> cli_options
 * common.c    open, close, errors, input, signals   json.c      a JSON writer
 * generate.c  a running generation to stdout        the others  one command each
 */
#ifndef HLLM_CLI_H
#define HLLM_CLI_H

#include "hybrid_llm.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

enum { EXIT_OK = 0, EXIT_ERROR = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

/* ---- flags ---- */

enum {
    CMD_RUN = 1, CMD_CHAT = 2, CMD_TOKENIZE = 4, CMD_DETOKENIZE = 8, CMD_SCORE = 16, CMD_PERPLEXITY = 32, CMD_INSPECT = 64,
    CMD_BENCH = 128, CMD_DEVICES = 256, CMD_PLAN = 512, CMD_PREPARE = 1024
};

/* 0 is the default of every field, as in the library. */
typedef struct cli_options {
    uint32_t command;                                  /* CMD_... */
    const char *model;                                 /* -m, or the file of inspect */
    uint32_t threads, n_ctx;
    uint64_t seed, ram_bytes;
    uint32_t kv, act, load, mode;                      /* HLLM_KV_..., HLLM_ACT_..., HLLM_LOAD_..., HLLM_MODE_... */
    uint32_t ffn_act;                                  /* 1: relu, 2: relu2; 0: as the file or its family says */
    const char *isa;
    bool json, help;
    const char *prompt, *file;                         /* run, perplexity */
    int32_t n_predict;                                 /* -n: run, chat, bench */
    float temp, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty;
    int32_t top_k;
    bool greedy, ignore_eos, stats;
    uint32_t n_logprobs;
    hllm_logit_bias *bias; uint32_t n_bias;
    const char **stop; uint32_t n_stop;
    const char *save, *load_session;
    const char *system, *chat_template;                /* chat */
    bool no_thinking;
    bool no_special, parse_special;                    /* tokenize */
    uint32_t n_top, n_greedy;                          /* score */
    uint32_t n_prompt, reps, depth, sessions;          /* bench */
    bool remeasure;                                    /* devices */
    const char *profile;                               /* devices, plan */
    const char *problem, *plan_out, *svg, *backend_dir;                  /* plan */
    uint32_t objective, solver;                        /* HLLM_OBJECTIVE_..., HLLM_SOLVER_... */
    double time_limit, cpu_bandwidth;
    uint64_t cpu_bytes;
    const char *out;                                   /* prepare */
    bool no_predictors;
    double loss, skip;
    hllm_plan_gpu *gpus; uint32_t n_gpus;
} cli_options;

/* Reads argv after the command's name.  Returns 0, or EXIT_USAGE after naming the flag on stderr.  Free with cli_options_free. */
int cli_parse(cli_options *o, const char *command, int argc, char **argv);
void cli_options_free(cli_options *o);
int cli_usage(const cli_options *o, const char *fmt, ...);                   /* prints the line, returns EXIT_USAGE */
const char *cli_command_name(uint32_t command);

/* ---- one model, opened ---- */

typedef struct cli {
    const cli_options *o;
    hllm_runtime *rt;
    hllm_model *model;
    hllm_engine *engine;
    hllm_session *session;
    hllm_model_info info;                              /* after cli_open_model */
    hllm_session_info session_info;                    /* after cli_open_session */
    double load_s;                                     /* opening the file and loading the weights */
    const char *about;                                 /* a file whose text the runtime was given: its errors are about it */
} cli;

/* Each returns 0, or an exit code after one line on stderr.  cli_open_engine opens runtime and model too. */
int cli_open_runtime(cli *c, const cli_options *o);
int cli_open_model(cli *c, const cli_options *o, uint32_t flags);
int cli_open_engine(cli *c, const cli_options *o);
int cli_open_session(cli *c, uint32_t n_ctx);
/* The machine's profile at --profile, else in the user's cache folder; NULL model: no disk.  Free with hllm_profile_free. */
int cli_open_profile(cli *c, bool remeasure, const char *model, hllm_profile **out);
void cli_close(cli *c);
void cli_session_options(const cli_options *o, uint32_t n_ctx, hllm_session_options *s);
void cli_engine_options(const cli_options *o, hllm_engine_options *e);
void cli_warnings(cli *c);                             /* prints what is in the log */

enum { AT_RUNTIME, AT_MODEL, AT_ENGINE, AT_SESSION };
/* Prints the last error of that handle; returns EXIT_ERROR. */
int cli_fail(cli *c, int at, hllm_status rc);
/* An error that the program itself found. */
int cli_error(const cli_options *o, const char *fmt, ...);
/* The handle's error text in memory of its own (free it), made printable: one line, no control characters.  Never NULL. */
char *cli_error_text(const cli *c, int at);

/* ---- input ---- */

typedef struct cli_bytes { char *data; size_t n, cap; } cli_bytes;
void cli_append(cli_bytes *b, const void *data, size_t n);
/* path NULL: stdin. */
int cli_read_all(const cli_options *o, const char *path, cli_bytes *out);
/* The next text of NUL-separated input from *at on; false at the end.  A NUL at the very end begins no further text. */
bool cli_next_text(const cli_bytes *all, size_t *at, const char **text, size_t *n);
void *cli_alloc(size_t n, size_t size);                /* zeroed; ends the program when there is none */
int cli_tokenize(cli *c, const char *text, size_t n, uint32_t flags, int32_t **tokens, size_t *n_tokens);
int cli_detokenize(cli *c, const int32_t *tokens, size_t n, uint32_t flags, cli_bytes *out);     /* appends */
double cli_log_sum_exp(const float *logits, uint32_t n);
double cli_decode_tok_s(const hllm_run_stats *s);      /* of all tokens but the first */
double cli_seconds(void);                              /* monotonic */
uint64_t cli_status_bytes(const char *key);            /* a line of /proc/self/status, such as "VmHWM:"; 0: not known */

/* ---- interrupts ---- */

/* CATCH_NONE (at first): Ctrl-C ends the program with 130.  CATCH_FIRST: it sets cli_interrupted, and a second one ends the
 * program.  CATCH_ALL: it only sets cli_interrupted. */
enum { CATCH_NONE, CATCH_FIRST, CATCH_ALL };
extern volatile sig_atomic_t cli_interrupted;
void cli_install_interrupts(void);
void cli_catch_interrupts(int which);

/* ---- generation ---- */

typedef struct cli_answer {
    cli_bytes text;
    hllm_poll_result last;
    hllm_token_record *records; hllm_logit_bias *top; size_t n_records;       /* with --logprobs */
} cli_answer;
enum { ECHO_NONE, ECHO_TEXT, ECHO_JSON };
void cli_generate_options(const cli_options *o, hllm_generate_options *g);
/* Follows the generation that was started on c->session to its end.  Ctrl-C cancels it.  Returns 0, EXIT_ERROR or EXIT_INTERRUPTED. */
int cli_follow(cli *c, int echo, cli_answer *a);
void cli_answer_free(cli_answer *a);
const char *cli_finish_name(uint32_t finish);

/* ---- JSON on stdout ---- */

void json_open(char bracket);                          /* '{' or '[' */
void json_close(void);                                 /* of the innermost; after the outermost a newline, and stdout is flushed */
void json_close_all(void);                             /* an error came: what was begun ends here */
void json_key(const char *name);
void json_text(const char *s, size_t n);               /* invalid UTF-8 becomes U+FFFD */
void json_str(const char *s);
void json_int(int64_t v);
void json_uint(uint64_t v);
void json_num(double v, int decimals);                 /* not finite: null; decimals < 0: shortest with 9 digits */
void json_bool(bool v);
void json_null(void);
void json_key_str(const char *name, const char *s);
void json_key_uint(const char *name, uint64_t v);
void json_key_num(const char *name, double v, int decimals);
void json_ids(const char *name, const int32_t *ids, size_t n);               /* "name":[ids] */
/* The string of the `score` format: like JSON, but bytes from 0x80 on go out as they are. */
void json_print_raw(const char *s, size_t n);
/* What tokenize and score begin a text with: two lines, or with --json an object, still open. */
void json_print_tokens(bool json, const char *text, size_t n, const int32_t *tokens, size_t n_tokens);

/* ---- commands ---- */

int cmd_run(const cli_options *o);
int cmd_chat(const cli_options *o);
int cmd_tokenize(const cli_options *o);
int cmd_detokenize(const cli_options *o);
int cmd_score(const cli_options *o);
int cmd_perplexity(const cli_options *o);
int cmd_inspect(const cli_options *o);
int cmd_bench(const cli_options *o);
int cmd_devices(const cli_options *o);
int cmd_plan(const cli_options *o);
int cmd_prepare(const cli_options *o);
void cli_print_sparse(cli *c);                         /* the table per layer of a prepared file, or its JSON members; inspect shows it, too */
void cli_print_plan(const hllm_plan *p);               /* the table for people; inspect shows it, too */

#endif
