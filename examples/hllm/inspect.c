/* inspect.c: `hllm inspect`: what is in a GGUF file, whether it runs here, and the memory that it needs; or what a plan says.
 *
 * A file that cannot run (an architecture or a quantisation that is not known, no tensors) is opened again for its metadata and
 * vocabulary, and the reason is shown.  --json gives every key too; of arrays above 16 elements only type and length.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TYPES = 64, MAX_ELEMENTS = 16 };

typedef struct type_count { char name[24]; uint64_t n_tensors, bytes; } type_count;

typedef struct report {
    cli c;
    bool runs;
    char *why_not;
    type_count types[MAX_TYPES]; uint32_t n_types;
    const char *template_name; hllm_status template_status;
    hllm_memory_need need; bool has_need;
    uint32_t n_ctx;
} report;

static const char *value_name(uint32_t type)
{
    static const char *const names[] = { "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64" };
    return type < sizeof names / sizeof *names ? names[type] : "unknown";
}

static void count_types(report *r)
{
    for (uint32_t i = 0; i < r->c.info.n_tensors; i++) {
        hllm_tensor_info t = { .struct_size = sizeof t };
        if (hllm_model_tensor(r->c.model, i, &t) != HLLM_OK) continue;
        const char *name = t.type_name ? t.type_name : "?";
        uint32_t k = 0;
        while (k < r->n_types && strncmp(r->types[k].name, name, sizeof r->types[k].name - 1) != 0) k++;
        if (k == MAX_TYPES) continue;
        if (k == r->n_types) snprintf(r->types[r->n_types++].name, sizeof r->types[k].name, "%s", name);
        r->types[k].n_tensors++;
        r->types[k].bytes += t.bytes;
    }
}

/* A string key, or "" without one. */
static void text_key(const report *r, const char *name, const char **text, size_t *n)
{
    uint32_t index = 0;
    *text = "";
    *n = 0;
    if (hllm_model_find_key(r->c.model, name, &index) != HLLM_OK) return;
    if (hllm_model_key_string(r->c.model, index, 0, text, n) != HLLM_OK) { *text = ""; *n = 0; }
}

/* Text from the file on a terminal: cut, and without control characters. */
static void put_text(const char *s, size_t n)
{
    for (size_t i = 0; i < n && i < 200; i++) putchar((unsigned char)s[i] < 32 || s[i] == 127 ? ' ' : s[i]);
}

static void print_value(const hllm_model *m, uint32_t key, const hllm_key_info *k, uint64_t element)
{
    int64_t i = 0;
    double f = 0;
    const char *s = NULL;
    size_t n = 0;
    if (k->element_type == HLLM_VALUE_STRING && hllm_model_key_string(m, key, element, &s, &n) == HLLM_OK) json_text(s, n);
    else if (k->element_type == HLLM_VALUE_BOOL && hllm_model_key_int(m, key, element, &i) == HLLM_OK) json_bool(i != 0);
    else if (hllm_model_key_int(m, key, element, &i) == HLLM_OK) json_int(i);
    else if (hllm_model_key_float(m, key, element, &f) == HLLM_OK) json_num(f, -1);
    else json_null();
}

static void print_keys(const report *r)
{
    json_key("keys");
    json_open('{');
    for (uint32_t key = 0; key < r->c.info.n_keys; key++) {
        hllm_key_info k = { .struct_size = sizeof k };
        if (hllm_model_key(r->c.model, key, &k) != HLLM_OK) continue;
        json_key(k.name);
        if (k.type != HLLM_VALUE_ARRAY) print_value(r->c.model, key, &k, 0);
        else if (k.n_elements > MAX_ELEMENTS || k.element_type == HLLM_VALUE_ARRAY) {
            json_open('{');
            json_key_str("array_of", value_name(k.element_type));
            json_key_uint("n", k.n_elements);
            json_close();
        } else {
            json_open('[');
            for (uint64_t e = 0; e < k.n_elements; e++) print_value(r->c.model, key, &k, e);
            json_close();
        }
    }
    json_close();
}

static void print_json(const report *r)
{
    const hllm_model_info *i = &r->c.info;
    json_open('{');
    json_key_str("file", r->c.o->model);
    json_key_uint("gguf_version", i->gguf_version);
    json_key_str("family", i->family);
    json_key_str("name", i->name);
    json_key("runs");
    json_bool(r->runs);
    if (!r->runs) json_key_str("why_not", r->why_not);
    json_key_uint("file_bytes", i->file_bytes);
    json_key_uint("tensor_bytes", i->tensor_bytes);
    json_key_uint("n_params", i->n_params);
    json_key_uint("n_layers", i->n_layers);
    json_key_uint("n_embd", i->n_embd);
    json_key_uint("n_ff", i->n_ff);
    json_key_uint("n_vocab", i->n_vocab);
    json_key_uint("n_heads", i->n_heads);
    json_key_uint("n_heads_kv", i->n_heads_kv);
    json_key_uint("head_dim_k", i->head_dim_k);
    json_key_uint("head_dim_v", i->head_dim_v);
    json_key_uint("n_ctx_train", i->n_ctx_train);
    json_key_uint("window", i->window);
    json_key_uint("n_tensors", i->n_tensors);
    json_key_uint("n_shards", i->n_shards);
    json_key("types");
    json_open('{');
    for (uint32_t k = 0; k < r->n_types; k++) {
        json_key(r->types[k].name);
        json_open('{');
        json_key_uint("tensors", r->types[k].n_tensors);
        json_key_uint("bytes", r->types[k].bytes);
        json_close();
    }
    json_close();
    json_key("chat_template");
    if (r->template_status == HLLM_OK) json_str(r->template_name);
    else json_str(r->template_status == HLLM_E_NOT_FOUND ? "none" : "not recognised");
    json_key("memory");
    if (!r->has_need) json_null();
    else {
        json_open('{');
        json_key_uint("n_ctx", r->n_ctx);
        json_key_uint("weights_bytes", r->need.weights_bytes);
        json_key_uint("kv_bytes", r->need.kv_bytes);
        json_key_uint("scratch_bytes", r->need.scratch_bytes);
        json_key_uint("total_bytes", r->need.total_bytes);
        json_key_uint("available_bytes", r->need.available_bytes);
        json_close();
    }
    cli_print_sparse((cli *)(uintptr_t)&r->c);
    print_keys(r);
    json_close();
}

static void print_table(const report *r)
{
    const hllm_model_info *i = &r->c.info;
    const double mib = 1024 * 1024;
    const char *model, *pre;
    size_t n_model, n_pre;
    text_key(r, "tokenizer.ggml.model", &model, &n_model);
    text_key(r, "tokenizer.ggml.pre", &pre, &n_pre);
    printf("file        %s, GGUF version %u, %u file%s, %.1f MiB\nname        ", r->c.o->model, i->gguf_version, i->n_shards, i->n_shards == 1 ? "" : "s",
           (double)i->file_bytes / mib);
    put_text(i->name ? i->name : "", i->name ? strlen(i->name) : 0);
    printf("\nfamily      ");
    put_text(i->family ? i->family : "", i->family ? strlen(i->family) : 0);
    printf(", %.1f million parameters\n", (double)i->n_params * 1e-6);
    const char *licence;
    size_t n_licence;
    text_key(r, "general.license", &licence, &n_licence);
    if (n_licence) { printf("licence     "); put_text(licence, n_licence); printf("\n"); }
    hllm_sparse_info sparse = { .struct_size = sizeof sparse };
    hllm_model_get_sparse(r->c.model, &sparse);
    printf("runs        %s%s\n", r->runs ? "yes, exact" : "no", r->runs && sparse.n_predictors ? " or predicted" : "");
    if (r->runs) printf("ffn         %s%s\n", sparse.act, sparse.by_neurons ? sparse.powerinfer ? ", by neurons (PowerInfer's file)" : ", by neurons (prepared)" : "");
    if (!r->runs) printf("why not     %s\n", r->why_not);
    if (i->n_layers) {                                 /* not of a file that was opened for its vocabulary */
        printf("sizes       %u layers, width %u, feed-forward %u, %u heads of %u on %u KV heads\n", i->n_layers, i->n_embd, i->n_ff, i->n_heads,
               i->head_dim_k, i->n_heads_kv);
        printf("context     %u tokens", i->n_ctx_train);
        if (i->window) printf(", sliding window of %u", i->window);
        putchar('\n');
    }
    printf("tokens      %u, ", i->n_vocab);
    put_text(model, n_model);
    if (n_pre && !(n_model == 5 && memcmp(model, "llama", 5) == 0)) {   /* SPM: some files name one, which means nothing */
        fputs(", splitter ", stdout);
        put_text(pre, n_pre);
    }
    printf("\ntemplate    %s\n", r->template_status == HLLM_OK ? r->template_name : r->template_status == HLLM_E_NOT_FOUND ? "none" : "not recognised");
    printf("tensors     %u, %.1f MiB", i->n_tensors, (double)i->tensor_bytes / mib);
    for (uint32_t k = 0; k < r->n_types; k++)
        printf("%s %s %llu (%.1f MiB)", k ? "," : ":", r->types[k].name, (unsigned long long)r->types[k].n_tensors, (double)r->types[k].bytes / mib);
    printf("\nkeys        %u (--json shows them)\n", i->n_keys);
    if (r->has_need)
        printf("memory      %.1f MiB at a context of %u: weights %.1f, KV %.1f, scratch %.1f; %.1f MiB available\n", (double)r->need.total_bytes / mib,
               r->n_ctx, (double)r->need.weights_bytes / mib, (double)r->need.kv_bytes / mib, (double)r->need.scratch_bytes / mib,
               (double)r->need.available_bytes / mib);
    cli_print_sparse((cli *)(uintptr_t)&r->c);
}

/* What an engine with one session would need; a context that the model cannot have is an error. */
static int find_memory(report *r)
{
    hllm_engine_options e;
    hllm_session_options s;
    cli_engine_options(r->c.o, &e);
    cli_session_options(r->c.o, r->c.o->n_ctx, &s);
    r->need.struct_size = sizeof r->need;
    const hllm_status rc = hllm_model_memory(r->c.model, &e, &s, &r->need);
    if (rc != HLLM_OK) return cli_fail(&r->c, AT_MODEL, rc);
    r->has_need = true;
    r->n_ctx = r->c.o->n_ctx ? r->c.o->n_ctx : r->c.info.n_ctx_train < 4096 ? r->c.info.n_ctx_train : 4096;
    return 0;
}

/* First as a model; then, if only running it is what fails, as metadata. */
static int open_either(report *r, const cli_options *o)
{
    int code = cli_open_runtime(&r->c, o);
    if (code) return code;
    hllm_model_options m = { .struct_size = sizeof m };
    const hllm_status first = hllm_model_open(r->c.rt, o->model, &m, &r->c.model);
    hllm_status rc = first;
    if (first != HLLM_OK) {
        r->why_not = cli_error_text(&r->c, AT_RUNTIME);
        m.flags = HLLM_MODEL_VOCAB_ONLY;
        rc = hllm_model_open(r->c.rt, o->model, &m, &r->c.model);
        if (rc != HLLM_OK) return cli_fail(&r->c, AT_RUNTIME, rc);
    }
    cli_warnings(&r->c);
    r->runs = first == HLLM_OK;
    r->c.info.struct_size = sizeof r->c.info;
    rc = hllm_model_get_info(r->c.model, &r->c.info);
    return rc == HLLM_OK ? 0 : cli_fail(&r->c, AT_MODEL, rc);
}

/* A plan begins as JSON does. */
static bool is_plan(const char *path)
{
    FILE *f = fopen(path, "rb");
    const int first = f ? getc(f) : EOF;
    if (f) fclose(f);
    return first == '{';
}

static int inspect_plan(const cli_options *o)
{
    cli c;
    cli_bytes text = { 0 };
    hllm_plan *p = NULL;
    size_t n = 0;
    int code = cli_open_runtime(&c, o);
    if (!code && (code = cli_read_all(o, o->model, &text)) == 0) {
        c.about = o->model;
        hllm_status rc = hllm_plan_read(c.rt, text.data, text.n, &p);
        if (rc != HLLM_OK) code = cli_fail(&c, AT_RUNTIME, rc);
        else if (!o->json) cli_print_plan(p);
        else if (hllm_plan_write(p, HLLM_PLAN_ANSWER, NULL, 0, &n) == HLLM_E_BUFFER) {
            char *s = cli_alloc(n, 1);
            if (hllm_plan_write(p, HLLM_PLAN_ANSWER, s, n, &n) == HLLM_OK) { fwrite(s, 1, n, stdout); putchar('\n'); }
            free(s);
        }
    }
    free(text.data);
    hllm_plan_free(p);
    cli_close(&c);
    return code;
}

int cmd_inspect(const cli_options *o)
{
    report r;
    if (is_plan(o->model)) return inspect_plan(o);
    memset(&r, 0, sizeof r);
    int code = open_either(&r, o);
    if (!code) {
        count_types(&r);
        r.template_status = hllm_chat_template(r.c.model, &r.template_name);
        if (r.runs) code = find_memory(&r);
    }
    if (!code && o->json) print_json(&r);
    else if (!code) print_table(&r);
    free(r.why_not);
    cli_close(&r.c);
    return code;
}
