/* main.c: `hllm COMMAND ...`: the table of commands, their help (each fits a screen of 24 lines), and the exit code. */
#include "cli.h"

#include <string.h>

static const char usage[] =
    "hllm: runs language models bigger than the GPU, or bigger than the machine\n"
    "\n"
    "  hllm run -m MODEL -p TEXT      continue a text\n"
    "  hllm chat -m MODEL             talk with a model\n"
    "  hllm tokenize -m MODEL         texts to token ids\n"
    "  hllm detokenize -m MODEL       token ids to bytes\n"
    "  hllm score -m MODEL            log-probabilities of every token of a text\n"
    "  hllm perplexity -m MODEL -f F  how well a model predicts a file\n"
    "  hllm inspect FILE              what is in a GGUF file (or a plan), what it needs\n"
    "  hllm bench -m MODEL            speed, beside the limits of the machine\n"
    "  hllm devices                   this machine\n"
    "  hllm prepare IN OUT -f TEXT    make a file whose neurons can be skipped\n"
    "  hllm plan -m MODEL             what would go where, and how fast that would be\n"
    "\n"
    "MODEL is a GGUF file.  hllm COMMAND --help shows a command's flags.\n"
    "For every command, 0 always meaning the default:\n"
    "  -t THREADS (physical cores)  -c CONTEXT (the model's, at most 4096)  --seed S\n"
    "  --kv f16|f32|q8_0  --act q8|f32  --load mmap|read  --mode exact|predicted\n"
    "  --isa NAME  --ram-bytes N  --json\n"
    "Exit: 0 ok, 1 error, 2 wrong usage, 130 interrupted.  hllm --version\n";

#define COMMON "-t THREADS  -c CONTEXT  --kv f16|f32|q8_0  --act q8|f32  --load mmap|read\n--ram-bytes N  --isa NAME  --mode exact  --json\n"

static const char help_run[] =
    "hllm run -m MODEL [-p TEXT | -f FILE]   continues the text (or stdin), streaming\n"
    "\n"
    "-n N                  at most N tokens (to the end of the answer or the context)\n"
    "--greedy              the likeliest token each time, whatever the file asks for\n"
    "--temp T  --top-k K  --top-p P  --min-p P        sampling; 0: the file's default\n"
    "--repeat-penalty R  --frequency-penalty F  --presence-penalty P\n"
    "--logit-bias ID:B     adds B to a token's logit (repeatable)\n"
    "--seed S              the same seed repeats the run (0)\n"
    "--stop TEXT           ends the answer and is not part of it (repeatable)\n"
    "--ignore-eos          end tokens do not end it\n"
    "--parse-special       control tokens written in the text become those tokens\n"
    "--logprobs K          after the text: the log-probability of each token, best K\n"
    "--save FILE           writes the conversation to a file\n"
    "--load-session FILE   goes on from such a file; the text given follows it\n"
    "--stats               speeds, bytes per token, memory, active share on stderr\n"
    COMMON
    "Ctrl-C stops it (exit 130).\n";

static const char help_chat[] =
    "hllm chat -m MODEL   a conversation in the model's template; a line is a message\n"
    "\n"
    "--system TEXT         what the model is told before the conversation\n"
    "--chat-template NAME  for a model without a known template; NAME list shows them\n"
    "--no-thinking         ask for an answer without thinking, where the template can\n"
    "-n N                  at most N tokens an answer\n"
    "--greedy  --temp T  --top-k K  --top-p P  --min-p P  --seed S\n"
    "--repeat-penalty R  --frequency-penalty F  --presence-penalty P\n"
    "--logit-bias ID:B  --stop TEXT  --ignore-eos  --stats\n"
    COMMON
    "Ctrl-C stops the answer, not the program.  /exit or Ctrl-D ends the program.\n";

static const char help_tokenize[] =
    "hllm tokenize -m MODEL   NUL-separated texts on stdin; for each the lines\n"
    "                         text \"...\"   and   tokens ID ID ...\n"
    "\n"
    "--no-special          no BOS and EOS, even if the model asks for them\n"
    "--parse-special       control tokens written in the text become those tokens\n"
    "--json                {\"text\":...,\"tokens\":[...]}\n"
    "A file that holds only a vocabulary will do.\n";

static const char help_detokenize[] =
    "hllm detokenize -m MODEL   lines of ids on stdin; their exact bytes\n"
    "\n"
    "Two lines' bytes have a NUL between them.  A leading `tokens`, and lines that\n"
    "begin with `text ` are passed over: output of tokenize can be fed back.\n"
    "--json                {\"text\":...} per line\n"
    "A file that holds only a vocabulary will do.\n";

static const char help_score[] =
    "hllm score -m MODEL   NUL-separated texts on stdin; for each\n"
    "\n"
    "  text \"...\"\n"
    "  tokens ID ID ...\n"
    "  pos 0 next ID nll X top ID:LOGP ID:LOGP ...   natural logarithms\n"
    "  greedy ID ID ...\n"
    "  greedy_text \"...\"\n"
    "\n"
    "--top K               the K best of each position (10)\n"
    "--greedy N            N tokens by argmax after the text (0)\n"
    COMMON;

static const char help_perplexity[] =
    "hllm perplexity -m MODEL -f FILE   how well the model predicts the file\n"
    "\n"
    "-c N                  windows of N tokens (512), each beginning with BOS if the\n"
    "                      model adds one; a last short window is dropped\n"
    "The last line is {\"ppl\":...,\"nll\":...,\"tokens\":...,\"active_share\":...}.\n"
    COMMON;

static const char help_inspect[] =
    "hllm inspect FILE   family, sizes, types, template, whether it runs, memory\n"
    "\n"
    "-c N                  the memory at this context\n"
    "--json                with all keys of the file\n"
    COMMON;

static const char help_bench[] =
    "hllm bench -m MODEL   prefill and decode speed beside the machine's own limits\n"
    "\n"
    "-p N                  prompt tokens (512)\n"
    "-n N                  generated tokens (64)\n"
    "-r N                  rounds, of which the median counts (3)\n"
    "--depth N             tokens that are in the context before (0)\n"
    "--sessions S          S sessions generate at once; the speed is that of all (1)\n"
    COMMON;

static const char help_devices[] =
    "hllm devices   CPU, caches, instruction sets, memory, measured speeds\n"
    "\n"
    "--remeasure           measure again; else what was measured once is shown\n"
    "--profile FILE        where that is kept (hllm/machine.json in the cache folder)\n"
    "-t THREADS  --isa NAME  --json\n";

static const char help_plan[] =
    "hllm plan -m MODEL | --problem P.json   what goes where, how fast that will be\n"
    "\n"
    "--gpu-bytes N --gpu-bandwidth B [--sync S]   a GPU (again for each): its bytes,\n"
    "                      bytes per second, seconds per hand-over (3e-5)\n"
    "--cpu-bytes N  --cpu-bandwidth B   (available now; from the machine's profile)\n"
    "--objective time|impact    a token's time, or activations on GPUs (time)\n"
    "--solver auto|builtin|glpk GLPK where its module is found\n"
    "--time-limit S        after it the best plan so far, with its gap (10)\n"
    "--backend-dir DIR     where the GLPK module lies   --profile FILE\n"
    "-o PLAN.json          the plan as a file\n"
    "--svg FILE            the plan as a picture\n"
    "-c CONTEXT  --kv f16|f32|q8_0  --json\n"
    "Of the model only the header is read: the file may be incomplete.\n";

static const char help_prepare[] =
    "hllm prepare IN.gguf OUT.gguf -f TEXT   a file whose neurons can be skipped\n"
    "\n"
    "Counts which feed-forward neurons the text makes active, sorts them by that,\n"
    "turns the down matrices, and makes predictors of which will be active.  The new\n"
    "file runs in the modes exact and predicted, and says what was measured.\n"
    "\n"
    "-f FILE               a text like those that the model will be used for\n"
    "--no-predictors       statistics and the new order only\n"
    "--ffn-act relu|relu2  the activation, where the file does not say it is that\n"
    "--skip S              for models whose neurons are never zero: thresholds that\n"
    "                      leave out the share S of them; the loss is shown\n"
    "--loss X              what predicting may cost in perplexity (0.001)\n"
    "--svg FILE            how hot each layer's neurons are, as a picture\n"
    "-t THREADS  --isa NAME  --json\n"
    "Ctrl-C stops it; an old OUT.gguf stays until the new one is whole.\n";

static const struct {
    const char *name, *help;
    int (*run)(const cli_options *o);
} commands[] = {
    { "run", help_run, cmd_run }, { "chat", help_chat, cmd_chat }, { "tokenize", help_tokenize, cmd_tokenize },
    { "detokenize", help_detokenize, cmd_detokenize }, { "score", help_score, cmd_score },
    { "perplexity", help_perplexity, cmd_perplexity }, { "inspect", help_inspect, cmd_inspect },
    { "bench", help_bench, cmd_bench }, { "devices", help_devices, cmd_devices },
    { "plan", help_plan, cmd_plan }, { "prepare", help_prepare, cmd_prepare },
};
static const char *const later[] = { "ring" };

static int run_command(int argc, char **argv)
{
    cli_options o;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        int code = cli_parse(&o, argv[1], argc - 2, argv + 2);
        if (!code && o.help) fputs(commands[i].help, stdout);
        else if (!code) code = commands[i].run(&o);
        cli_options_free(&o);
        return code;
    }
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (strcmp(argv[1], later[i]) == 0) {
            fprintf(stderr, "hllm: %s is not in this version (%s); it comes with a later one\n", argv[1], hllm_version());
            return EXIT_USAGE;
        }
    fprintf(stderr, "hllm: unknown %s %s (hllm alone shows what there is)\n", argv[1][0] == '-' ? "flag" : "command", argv[1]);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    int code = EXIT_OK;
    cli_install_interrupts();
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) fputs(usage, stdout);
    else if (strcmp(argv[1], "--version") == 0) printf("hllm %s\n", hllm_version());
    else code = run_command(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == EXIT_OK) {
        fputs("hllm: stdout cannot be written\n", stderr);
        code = EXIT_ERROR;
    }
    return code;
}
