/* golden.h: reads files in the format of `hllm score`, and compares a model's own log-probabilities with them. */
#ifndef GOLDEN_H
#define GOLDEN_H

#include <locale.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hybrid_llm.h"

enum { GOLDEN_TOP = 128, GOLDEN_TEXTS = 64 };

typedef struct golden_pos { int32_t id[GOLDEN_TOP]; float logp[GOLDEN_TOP]; int n; } golden_pos;
typedef struct golden_text { int32_t *tokens; int n_tokens; golden_pos *pos; int32_t *greedy; int n_greedy; } golden_text;
typedef struct golden { golden_text t[GOLDEN_TEXTS]; int n; } golden;

static int golden_ints(const char *s, int32_t **out)
{
    int n = 0;
    *out = malloc((strlen(s) / 2 + 1) * sizeof **out);
    for (char *end; *s; s = end) {
        long v = strtol(s, &end, 10);
        if (end == s) break;
        (*out)[n++] = (int32_t)v;
    }
    return n;
}

/* 0: the file cannot be read.  Numbers are read with a decimal point whatever the locale. */
static int golden_read(const char *path, golden *g)
{
    FILE *f = fopen(path, "rb");
    memset(g, 0, sizeof *g);
    if (!f) return 0;
    locale_t point = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    char *line = NULL;
    size_t cap = 0;
    golden_text *t = NULL;
    while (getline(&line, &cap, f) > 0) {
        if (!strncmp(line, "text ", 5)) t = &g->t[g->n++];
        else if (!strncmp(line, "tokens", 6)) {
            t->n_tokens = golden_ints(line + 6, &t->tokens);
            t->pos = calloc((size_t)t->n_tokens + 1, sizeof *t->pos);
        } else if (!strncmp(line, "greedy ", 7)) t->n_greedy = golden_ints(line + 7, &t->greedy);
        else if (!strncmp(line, "pos ", 4)) {
            golden_pos *p = &t->pos[atoi(line + 4)];
            char *at = strstr(line, " top");
            for (at = at ? at + 4 : line + strlen(line); *at == ' ' && p->n < GOLDEN_TOP; p->n++) {
                p->id[p->n] = (int32_t)strtol(at, &at, 10);
                p->logp[p->n] = strtof_l(at + 1, &at, point);
            }
        }
    }
    free(line);
    freelocale(point);
    fclose(f);
    return g->n;
}

static void golden_free(golden *g)
{
    for (int i = 0; i < g->n; i++) { free(g->t[i].tokens); free(g->t[i].pos); free(g->t[i].greedy); }
}

typedef struct golden_sum { double kl, kl_max, flip; int n, agree; } golden_sum;

/* One position: KL(reference || ours) over the reference's tokens and one bucket for the rest, as tests/golden/README says. */
static void golden_compare(golden_sum *s, const golden_pos *ref, const float *logits, int n_vocab)
{
    double top = -INFINITY, sum = 0, kl = 0, pr = 0, po = 0;
    int best = 0;
    for (int j = 0; j < n_vocab; j++) if (logits[j] > top) { top = logits[j]; best = j; }
    for (int j = 0; j < n_vocab; j++) sum += exp(logits[j] - top);
    const double lse = top + log(sum);
    for (int k = 0; k < ref->n; k++) {
        double p = exp(ref->logp[k]), lo = logits[ref->id[k]] - lse;
        kl += p * (ref->logp[k] - lo);
        pr += p;
        po += exp(lo);
    }
    const double rr = fmax(1e-9, 1 - pr), ro = fmax(1e-9, 1 - po);
    kl += rr * log(rr / ro);
    s->kl += kl;
    s->kl_max = fmax(s->kl_max, kl);
    s->n++;
    if (best == ref->id[0]) s->agree++;
    else s->flip = fmax(s->flip, ref->logp[0] - ref->logp[1]);
}

#endif
