/* prepare.c: `hllm prepare IN.gguf OUT.gguf -f TEXT`: a file whose neurons can be skipped, and what was found, layer by layer.
 *
 * A thread of its own reads the progress handle and cancels on Ctrl-C.  The report is read back from the new file.
 */
#include "cli.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct watch { hllm_progress *progress; pthread_t thread; _Atomic bool done; bool bar; } watch;

static void *follow(void *arg)
{
    watch *w = arg;
    const double start = cli_seconds();
    bool said = false;
    for (int tick = 0; !atomic_load(&w->done); tick++) {
        uint64_t done = 0, total = 0;
        if (cli_interrupted) hllm_progress_cancel(w->progress);
        hllm_progress_read(w->progress, &done, &total);
        const double s = cli_seconds() - start, share = total ? (double)done / (double)total : 0;
        if (!said && s > 3 && share > 0.01) {
            fprintf(stderr, "about %.0f seconds in all\n", s / share);
            said = true;
        }
        if (w->bar && tick % 10 == 0 && total) fprintf(stderr, "\rpreparing %3.0f %%, about %.0f s left   ", 100 * (share > 1 ? 1 : share), share > 0.01 && share < 1 ? s / share - s : 0);
        nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
    }
    if (w->bar) fputs("\r                                        \r", stderr);
    return NULL;
}

static int prepare_file(cli *c, const cli_options *o, const cli_bytes *text)
{
    watch w = { .bar = isatty(STDERR_FILENO) };
    hllm_status rc = hllm_progress_create(c->rt, &w.progress);
    if (rc != HLLM_OK) return cli_fail(c, AT_RUNTIME, rc);
    const hllm_prepare_options p = { .struct_size = sizeof p, .flags = o->no_predictors ? HLLM_PREPARE_NO_PREDICTORS : 0, .text = text->data, .text_bytes = text->n,
                                     .progress = w.progress, .perplexity_loss = o->loss, .skip_share = o->skip };
    cli_catch_interrupts(CATCH_FIRST);
    const bool started = pthread_create(&w.thread, NULL, follow, &w) == 0;
    rc = hllm_prepare(c->model, o->out, &p);
    atomic_store(&w.done, true);
    if (started) pthread_join(w.thread, NULL);
    cli_catch_interrupts(CATCH_NONE);
    hllm_progress_free(w.progress);
    if (rc == HLLM_E_CANCELLED) { fprintf(stderr, "hllm prepare: stopped; %s was not written\n", o->out); return EXIT_INTERRUPTED; }
    return rc == HLLM_OK ? 0 : cli_fail(c, AT_MODEL, rc);
}

/* ---- the report ---- */

static void json_layers(cli *c)
{
    json_key("layers");
    json_open('[');
    for (uint32_t il = 0; il < c->info.n_layers; il++) {
        hllm_sparse_layer l = { .struct_size = sizeof l };
        if (hllm_model_get_sparse_layer(c->model, il, &l) != HLLM_OK) continue;
        json_open('{');
        json_key_uint("neurons", l.n_neurons);
        json_key_num("active", l.active, 5);
        json_key_num("hot80", l.hot80, 4);
        json_key_num("overlap", l.overlap, 4);
        json_key_uint("predictor_width", l.n_pred);
        json_key_num("predicted", l.predicted, 5);
        json_key_num("recall", l.recall, 5);
        json_key_num("energy_kept", l.energy_kept, 6);
        json_key_uint("bytes_dense", l.bytes_dense);
        json_key_uint("bytes_exact", l.bytes_exact);
        json_key_uint("bytes_predicted", l.bytes_predicted);
        json_key_uint("bytes_predictor", l.bytes_predictor);
        json_close();
    }
    json_close();
}

static void table_layers(cli *c, const hllm_sparse_info *s)
{
    double dense = 0, exact = 0, predicted = 0;
    printf("layer  neurons  active  hot 80%%  overlap   width  predicted  recall  energy    exact   with predictor\n");
    for (uint32_t il = 0; il < c->info.n_layers; il++) {
        hllm_sparse_layer l = { .struct_size = sizeof l };
        if (hllm_model_get_sparse_layer(c->model, il, &l) != HLLM_OK) continue;
        printf("%5u  %7u  %5.1f%%  %6.1f%%  %6.1f%%  ", il, l.n_neurons, 100 * l.active, 100 * l.hot80, 100 * l.overlap);
        if (!l.n_pred && s->n_thresholds) printf("     -  %8.1f%%       -       -", 100 * l.predicted);
        else if (l.n_pred) printf("%6u  %8.1f%%  %5.1f%%  %5.2f%%", l.n_pred, 100 * l.predicted, 100 * l.recall, 100 * l.energy_kept);
        else printf("     -          -       -       -");
        printf("  %5.1f%%  %5.1f%%\n", 100 * (double)l.bytes_exact / (double)l.bytes_dense, 100 * (double)l.bytes_predicted / (double)l.bytes_dense);
        dense += (double)l.bytes_dense;
        exact += (double)l.bytes_exact;
        predicted += (double)l.bytes_predicted;
    }
    printf("feed-forward bytes a token: dense %.0f, exact %.0f (%.1f %%)", dense, exact, 100 * exact / dense);
    if (s->n_predictors || s->n_thresholds) printf(", skipping %.0f (%.1f %%)", predicted, 100 * predicted / dense);
    printf("; counted over %llu tokens\n", (unsigned long long)s->n_tokens);
}

void cli_print_sparse(cli *c)
{
    hllm_sparse_info s = { .struct_size = sizeof s };
    if (hllm_model_get_sparse(c->model, &s) != HLLM_OK || !s.by_neurons) return;
    if (!c->o->json) {
        if (s.n_tokens) table_layers(c, &s);
        if (s.n_measured)
            printf("%s: loss %.5f after %.5f exact (%+.3f %% in perplexity), mean KL %.6f, on %llu other tokens\n", s.n_thresholds ? "thresholded" : "predicted", s.nll_predicted, s.nll_exact,
                   100 * (s.nll_predicted - s.nll_exact), s.kl_predicted, (unsigned long long)s.n_measured);
        return;
    }
    json_key("sparse");
    json_open('{');
    json_key_str("act", s.act);
    json_key("powerinfer");
    json_bool(s.powerinfer != 0);
    json_key_uint("predictors", s.n_predictors);
    json_key_uint("tokens", s.n_tokens);
    json_key_uint("measured_tokens", s.n_measured);
    json_key_num("nll_exact", s.nll_exact, 6);
    json_key_num("nll_predicted", s.nll_predicted, 6);
    json_key_num("kl_predicted", s.kl_predicted, 8);
    json_layers(c);
    json_close();
}

/* A line of cells for each layer, hottest neurons left; a cell's shade is their mean share of tokens. */
static int draw(cli *c, const cli_options *o)
{
    enum { CELLS = 128, W = 6, H = 18 };
    FILE *f = fopen(o->svg, "wb");
    if (!f) return cli_error(o, "%s: cannot be written", o->svg);
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%u\" font-family=\"sans-serif\" font-size=\"11\">\n", 60 + CELLS * W + 10, 40 + c->info.n_layers * H);
    fprintf(f, "<text x=\"60\" y=\"16\">share of tokens that make a neuron active; neurons from hot to cold</text>\n");
    for (uint32_t il = 0; il < c->info.n_layers; il++) {
        char name[64];
        uint32_t index = 0;
        hllm_sparse_layer l = { .struct_size = sizeof l };
        hllm_sparse_info s = { .struct_size = sizeof s };
        snprintf(name, sizeof name, "blk.%u.ffn_heat.weight", il);
        if (hllm_model_get_sparse(c->model, &s) != HLLM_OK || hllm_model_get_sparse_layer(c->model, il, &l) != HLLM_OK || hllm_model_find_tensor(c->model, name, &index) != HLLM_OK) continue;
        float *heat = cli_alloc(l.n_neurons, sizeof *heat);
        if (hllm_model_tensor_read(c->model, index, 0, heat, l.n_neurons) == HLLM_OK) {
            fprintf(f, "<text x=\"8\" y=\"%u\">layer %u</text>\n", 36 + il * H, il);
            for (uint32_t k = 0; k < CELLS; k++) {
                const uint32_t a = k * l.n_neurons / CELLS, b = (k + 1) * l.n_neurons / CELLS;
                double sum = 0;
                for (uint32_t i = a; i < b; i++) sum += (double)heat[i];
                const double share = b > a && s.n_tokens ? sum / ((double)(b - a) * (double)s.n_tokens) : 0;
                const int shade = (int)(255 * (1 - (share > 1 ? 1 : share)));
                fprintf(f, "<rect x=\"%u\" y=\"%u\" width=\"%d\" height=\"%d\" fill=\"rgb(255,%d,%d)\"/>\n", 60 + k * W, 24 + il * H, W, H - 2, shade, shade / 2);
            }
        }
        free(heat);
    }
    fputs("</svg>\n", f);
    return fclose(f) ? cli_error(o, "%s: cannot be written", o->svg) : 0;
}

int cmd_prepare(const cli_options *o)
{
    cli c;
    cli_bytes text;
    int code = cli_read_all(o, o->file, &text);
    if (code) return code;
    code = cli_open_model(&c, o, 0);
    if (!code) code = prepare_file(&c, o, &text);
    cli_close(&c);
    free(text.data);
    if (code) return code;
    cli_options made = *o;
    made.model = o->out;
    made.ffn_act = 0;
    code = cli_open_model(&c, &made, 0);
    if (!code && o->json) json_open('{');
    if (!code) cli_print_sparse(&c);
    if (!code && o->json) json_close();
    if (!code && o->svg) code = draw(&c, o);
    cli_close(&c);
    return code;
}
