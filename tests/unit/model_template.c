/* Chat templates: the stored texts are recognised (or not) as tests/data/templates/expected.txt says, and every stored conversation
 * renders as Jinja2 rendered it when the file was written.  Then what no file can say: no message becomes trusted text, changed
 * texts are not recognised, hostile ones neither, and memory may run out anywhere. */

#include "check.h"
#include "model/template_table.h"

static hl_env env;
static hl_error error;

typedef struct conversation { char name[32]; hllm_chat_message m[8]; size_t n; } conversation;
static conversation cases[32];
static size_t n_cases;

static char *read_all(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    char *text;
    long n;
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    n = ftell(f);
    rewind(f);
    text = malloc((size_t)n + 1);
    *bytes = fread(text, 1, (size_t)n, f);
    text[*bytes] = 0;
    fclose(f);
    return text;
}

/* In place; returns the new length. */
static size_t unescape(char *s)
{
    char *to = s;
    for (const char *p = s; *p; p++) {
        char hex[3] = { 0 };
        if (*p != '\\') { *to++ = *p; continue; }
        switch (*++p) {
        case 'n': *to++ = '\n'; break;
        case 'r': *to++ = '\r'; break;
        case 't': *to++ = '\t'; break;
        case 'x': hex[0] = p[1]; hex[1] = p[2]; *to++ = (char)strtol(hex, NULL, 16); p += 2; break;
        default:  *to++ = *p;
        }
    }
    *to = 0;
    return (size_t)(to - s);
}

static char *next_line(char **at)
{
    char *line = *at, *end;
    if (!*line) return NULL;
    end = strchr(line, '\n');
    *at = end ? end + 1 : line + strlen(line);
    if (end) *end = 0;
    return line;
}

static hllm_chat_message message(const char *role, const char *content, size_t bytes)
{
    return (hllm_chat_message){ .struct_size = sizeof(hllm_chat_message), .role = role, .content = content, .content_bytes = bytes };
}

static void load_cases(void)
{
    size_t bytes;
    char *text = read_all(test_path("tests/data/templates/conversations.txt"), &bytes), *line;
    REQUIRE(text != NULL);
    while ((line = next_line(&text))) {
        char *content = strchr(line, ' ');
        if (!*line || *line == '#') continue;
        REQUIRE(content != NULL);
        *content++ = 0;
        if (strcmp(line, "case") == 0) {
            REQUIRE(n_cases < HL_COUNT(cases));
            snprintf(cases[n_cases++].name, sizeof cases[0].name, "%s", content);
        } else {
            conversation *c = &cases[n_cases - 1];
            size_t n = unescape(content);
            REQUIRE(c->n < HL_COUNT(c->m));
            c->m[c->n++] = message(line, content, n);
        }
    }
}

static const conversation *find_case(const char *name)
{
    for (size_t i = 0; i < n_cases; i++) if (strcmp(cases[i].name, name) == 0) return &cases[i];
    return NULL;
}

static void hash_of(const char *s, size_t n, char out[20])
{
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)s[i]) * 0x100000001B3u;
    snprintf(out, 20, "%016llx", (unsigned long long)h);
}

static hl_status render(const hl_chat_template *t, const conversation *c, uint32_t flags, hl_chat_parts *out)
{
    return hl_chat_template_render(&env, &error, t, c->m, c->n, flags, "<BOS>", "<EOS>", out);
}

/* Every untrusted part must be a piece of what was said, and the parts must be the text. */
static void check_trust(const hl_chat_template *t, const conversation *c, const hl_chat_parts *p)
{
    size_t said_bytes = 1, at = 0;
    char *said;
    for (size_t i = 0; i < c->n; i++) said_bytes += c->m[i].content_bytes + 2;
    said = calloc(1, said_bytes);
    for (size_t i = 0; i < c->n; i++) {
        if (at && strcmp(c->m[i].role, "system") == 0) continue;
        memcpy(said + at, c->m[i].content, c->m[i].content_bytes);
        at += c->m[i].content_bytes;
    }
    said_bytes = at;
    at = 0;
    for (size_t i = 0; i < p->n; i++) {
        CHECK_MSG(p->parts[i].text == p->text + at && p->parts[i].bytes > 0, "%s %s part %zu", hl_chat_template_name(t), c->name, i);
        at += p->parts[i].bytes;
        if (!p->parts[i].trusted)
            CHECK_MSG(memmem(said, said_bytes, p->parts[i].text, p->parts[i].bytes) != NULL, "%s %s: %.*s", hl_chat_template_name(t),
                      c->name, (int)p->parts[i].bytes, p->parts[i].text);
    }
    CHECK(at == p->bytes);
    free(said);
}

static void check_case(const hl_chat_template *t, const conversation *c, char *hashes)
{
    static const uint32_t flags[] = { 0, HLLM_CHAT_NO_THINKING, HLLM_CHAT_NO_GENERATION_PROMPT,
                                      HLLM_CHAT_NO_GENERATION_PROMPT | HLLM_CHAT_NO_THINKING };
    char *word = strtok(hashes, " ");
    const char *before = NULL;
    for (size_t i = 0; i < HL_COUNT(flags); i++, word = strtok(NULL, " ")) {
        hl_chat_parts p = { .n = 99 };
        hl_status rc = render(t, c, flags[i], &p);
        char got[20] = "-";
        REQUIRE(word != NULL);
        if (strcmp(word, "=") != 0) before = word;
        if (rc == HLLM_OK) hash_of(p.text, p.bytes, got);
        else CHECK_MSG(rc == HLLM_E_ARG && !p.parts && p.n == 0, "%s %s", hl_chat_template_name(t), c->name);
        CHECK_MSG(before && strcmp(got, before) == 0, "%s, case %s, flags %u: got %s, expected %s: %.*s", hl_chat_template_name(t),
                  c->name, flags[i], got, before, (int)p.bytes, p.text ? p.text : "");
        if (rc == HLLM_OK && strcmp(c->name, "late-system") != 0) check_trust(t, c, &p);
        hl_chat_parts_free(&env, &p);
    }
}

static void check_stored(void)
{
    size_t bytes, n_templates = 0, n_compared = 0;
    char *text = read_all(test_path("tests/data/templates/expected.txt"), &bytes), *line;
    const hl_chat_template *t = NULL;
    REQUIRE(text != NULL);
    while ((line = next_line(&text))) {
        char *rest = strchr(line, ' ');
        const conversation *c;
        if (!*line || *line == '#') continue;
        REQUIRE(rest != NULL);
        *rest++ = 0;
        if (strcmp(line, "template") == 0) {
            char path[256], *row = strchr(rest, ' '), *source;
            *row++ = 0;
            snprintf(path, sizeof path, "tests/data/templates/%s", rest);
            source = read_all(test_path(path), &bytes);
            REQUIRE(source != NULL);
            t = hl_chat_template_detect(source, bytes);
            CHECK_MSG(strcmp(row, t ? hl_chat_template_name(t) : "-") == 0, "%s: taken for %s, is %s", rest,
                      t ? hl_chat_template_name(t) : "-", row);
            free(source);
            n_templates++;
            continue;
        }
        if (!t) continue;
        if (strcmp(line, "text") == 0) {               /* of the case turns, to be read when it differs */
            hl_chat_parts p;
            size_t n = unescape(rest);
            REQUIRE(render(t, find_case("turns"), 0, &p) == HLLM_OK);
            CHECK_MSG(p.bytes == n && memcmp(p.text, rest, n) == 0, "%s:\n%.*s\nexpected\n%s", hl_chat_template_name(t), (int)p.bytes,
                      p.text, rest);
            hl_chat_parts_free(&env, &p);
            continue;
        }
        c = find_case(line);
        REQUIRE(c != NULL);
        check_case(t, c, rest);
        n_compared++;
    }
    CHECK_MSG(n_templates >= 100 && n_compared >= 1000, "%zu %zu", n_templates, n_compared);
}

/* Nothing of a message is trusted in any row, whatever the message says. */
static void check_forgery(void)
{
    const conversation *c = find_case("forged");
    size_t rendered = 0;
    for (size_t i = 0; i < hl_chat_n_rows; i++) {
        conversation bare = *c;
        hl_chat_parts p, empty;
        size_t trusted = 0, template_words = 0;
        if (render(&hl_chat_rows[i], &bare, 0, &p) != HLLM_OK) {                     /* no system message in this one */
            memmove(bare.m, bare.m + 1, sizeof bare.m[0] * --bare.n);
            if (render(&hl_chat_rows[i], &bare, 0, &p) != HLLM_OK) continue;
        }
        check_trust(&hl_chat_rows[i], &bare, &p);
        /* As many trusted bytes as with harmless messages. */
        for (size_t k = 0; k < p.n; k++) if (p.parts[k].trusted) trusted += p.parts[k].bytes;
        for (size_t k = 0; k < bare.n; k++) bare.m[k] = message(bare.m[k].role, "x", 1);
        REQUIRE(render(&hl_chat_rows[i], &bare, 0, &empty) == HLLM_OK);
        for (size_t k = 0; k < empty.n; k++) if (empty.parts[k].trusted) template_words += empty.parts[k].bytes;
        CHECK_MSG(trusted == template_words, "%s: %zu trusted bytes, %zu expected", hl_chat_rows[i].name, trusted, template_words);
        hl_chat_parts_free(&env, &p);
        hl_chat_parts_free(&env, &empty);
        rendered++;
    }
    CHECK(rendered > hl_chat_n_rows * 9 / 10);
}

static void check_tables(void)
{
    char *names = strdup(hl_chat_template_names()), *word = strtok(names, " ");
    size_t n = 0;
    for (; word; word = strtok(NULL, " "), n++) {
        const hl_chat_template *t = hl_chat_template_find(word);
        CHECK_MSG(t != NULL, "%s", word);
        if (t) CHECK(strcmp(hl_chat_template_name(t), word) == 0);
    }
    CHECK(n == hl_chat_n_rows);
    for (size_t i = 0; i < hl_chat_n_rows; i++)
        CHECK_MSG(hl_chat_template_find(hl_chat_rows[i].name) == &hl_chat_rows[i], "%s twice", hl_chat_rows[i].name);
    for (size_t i = 0; i < hl_chat_n_known; i++) {
        CHECK_MSG(hl_chat_template_find(hl_chat_known_texts[i].row) != NULL, "%s", hl_chat_known_texts[i].row);
        CHECK(i == 0 || hl_chat_known_texts[i - 1].fingerprint < hl_chat_known_texts[i].fingerprint);
        /* Hash and length, both whole: neither alone, nor half of the hash. */
        const hl_chat_known *k = &hl_chat_known_texts[i];
        CHECK_MSG(hl_chat_known_find(k->fingerprint, k->bytes) == hl_chat_template_find(k->row), "%s", k->row);
        for (int bit = 0; bit < 64; bit++) {
            CHECK_MSG(!hl_chat_known_find(k->fingerprint ^ 1ull << bit, k->bytes), "%s, bit %d of the hash", k->row, bit);
            if (bit < 32) CHECK_MSG(!hl_chat_known_find(k->fingerprint, k->bytes ^ 1u << bit), "%s, bit %d of the length", k->row, bit);
        }
    }
    CHECK(!hl_chat_known_find(0, 0) && !hl_chat_known_find(UINT64_MAX, 0));
    CHECK(!hl_chat_template_find("no such template") && !hl_chat_template_find("") && !hl_chat_template_find(NULL));
    free(names);
}

static const char *detected(const char *jinja)
{
    const hl_chat_template *t = hl_chat_template_detect(jinja, strlen(jinja));
    return t ? hl_chat_template_name(t) : "-";
}

#define LOOP "{% for message in messages %}"
#define GEN "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define CHATML LOOP "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}" GEN

static void check_same_and_other(void)
{
    static const char *const same[] = {
        CHATML, CHATML "\n", CHATML "\r\n", CHATML "\n\n", /* one goes with the tag, one with the end */ "{# a comment #}" CHATML,
        "{%- for message in messages -%}\n  {{- \"<|im_start|>\" ~ message.role ~ \"\\n\" + message.content -}}\n<|im_end|>{{ '\n' }}\n"
            "{%- endfor -%}\n{%- if add_generation_prompt -%}\n    {{ '<|im_start|>' }}{{'assistant' }}\n{% endif -%}",
        LOOP "<|im_start|>{{ message['role'] }}\r\n{{ message['content'] }}{{ '<|im_end|>\\n' }}" GEN,
    };
    static const char *const other[] = {
        LOOP "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}" GEN,
        LOOP "{{'<|im_start|>' + message['role'] + '\\n' + message['content']|trim + '<|im_end|>' + '\\n'}}" GEN,
        LOOP "{{'<|im_start|>' + message['role'] + '\\n' + (message['content'] + '<|im_end|>' + '\\n')}}" GEN,
        LOOP "{{'<|im_start|>' + message['role'] + '\\n' - message['content'] + '<|im_end|>' + '\\n'}}" GEN,
        LOOP "{{'<|im_start|>' + message['role'] + '\\n' + + message['content'] + '<|im_end|>' + '\\n'}}" GEN,
        LOOP "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' if message['content']}}" GEN,
        LOOP "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{{ '' ~ x }}" GEN,
        LOOP "{{'<|im_start|>' + message['role'] + '\\\\n' + message['content'] + '<|im_end|>' + '\\n'}}" GEN,
        LOOP "{{'<|im_start|>' + message['role'] + '\\x0a' + message['content'] + '<|im_end|>' + '\\n'}}" GEN,
        "{% raw %}" CHATML "{% endraw %}", "{{ bos_token }}x" CHATML, CHATML "x", CHATML " ", CHATML "\n\n\n", CHATML "{{ x }}", CHATML "{%",
        CHATML "{{", CHATML "{#", CHATML "{{ 'x", CHATML "{{ 'x\\", CHATML "{{ }}", CHATML "{{ ) }}", CHATML "{{ (] }}", CHATML "{{ \001 }}",
        "", "x", "{", "{{", "{%", "{#", "{{}}", "{%%}", "{##}", "{#-#}", "{{-}}", "{% if", "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% include '/etc/passwd' %}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{% else %}{% endif %}{{",
        "{% for i in range(1000000000) %}x{% endfor %}",
    };
    for (size_t i = 0; i < HL_COUNT(same); i++) CHECK_MSG(strcmp(detected(same[i]), "chatml") == 0, "%s: %s", detected(same[i]), same[i]);
    for (size_t i = 0; i < HL_COUNT(other); i++) CHECK_MSG(strcmp(detected(other[i]), "-") == 0, "%s: %s", detected(other[i]), other[i]);
    /* Damaged: every prefix, and every byte changed to another, is another text. */
    for (size_t i = 0; i < strlen(CHATML); i++) {
        char changed[] = CHATML;
        CHECK_MSG(!hl_chat_template_detect(CHATML, i), "%zu bytes", i);
        changed[i] = '_';
        if (!strchr(" _", CHATML[i])) CHECK_MSG(strcmp(detected(changed), "-") == 0, "%s", changed);
        changed[i] = (char)0xFE;
        CHECK(strcmp(detected(changed), "-") == 0);
    }
}

static uint64_t print_of(const char *jinja)
{
    uint64_t print;
    uint32_t bytes;
    return hl_chat_fingerprint(jinja, strlen(jinja), &print, &bytes) ? print : 0;
}

/* What the canonical stream may not tell apart, and what it must: each pair renders alike or does not. */
static void check_fingerprints(void)
{
    static const char *const alike[][2] = {
        { "{{ a + b }}", "{{a}}{{ b }}" }, { "{{ a + 'x' }}y", "{{ a ~ \"xy\" }}" }, { "{{ a+b|trim }}", "{{ a }}{{ b | trim }}" },
        { "{{ m.role }}{{ m.content }}", "{{ m['role'] + m[\"content\"] }}" }, { "x {# c #}\n y", "x  y" }, { "x\r\ny\rz", "x\ny\nz" },
        { "a\n  {% if b %}\nc{% endif %}", "a\n{% if b %}c{% endif %}" }, { "a \n {{- b -}} \n c", "a{{b}}c" }, { "{{ '' }}a", "a" },
        { "{{ {'a': {}}['a'] }}", "{{ { 'a' : { } } [ 'a' ] }}" }, { "a{#- c -#}\n b", "ab" }, { "a {#-#}\n b", "a b" },
        { "a \xc2\xa0{{- b }}", "a{{b}}" }, { "{{ b -}}\xe2\x80\x83 a", "{{b}}a" },
    };
    static const char *const unlike[][2] = {
        { "{{ x if c else 'a' + 'b' }}", "{{ x if c else 'a' }}b" }, { "{{ a == 'x' + y }}", "{{ a == 'x' }}{{ y }}" },
        { "{{ a or 'b' + c }}", "{{ a or 'b' }}{{ c }}" }, { "{{ not 'b' + c }}", "{{ not 'b' }}{{ c }}" }, { "{{ a - 'b' + c }}", "{{ a - 'b' }}{{ c }}" },
        { "{{ (a + 'b') | trim }}", "{{ a }}b" }, { "{{ a['b' + c] }}", "{{ a['b'] }}{{ c }}" }, { "{{ 'b' | trim + c }}", "{{ c }}" },
        { "{{ 'b', 'c' + d }}", "{{ 'b', 'c' }}{{ d }}" }, { "{{ a is b + c }}", "{{ a is b }}{{ c }}" }, { "{{ a in b + c }}", "{{ a in b }}{{ c }}" },
        { "a {% if b %}c{% endif %}", "a{% if b %}c{% endif %}" }, { "a {{ b }}", "a{{ b }}" }, { "a\n\n", "a" }, { "{{ 'b' }}", "{{ b }}" },
        { "{% if b +%}\nc{% endif %}", "{% if b %}\nc{% endif %}" }, { "\n {%+ if b %}c{% endif %}", "\n {% if b %}c{% endif %}" },
        { "{{ m.roles }}", "{{ m['roles'] }}" }, { "{{ m.get('role') }}", "{{ m.role }}" }, { "{{ b }}\nc", "{{ b }}c" }, { "{{ ab }}", "{{ a b }}" },
        { "{% if a %}'x'{% endif %}", "{% if a %}{{ 'x' }}{% endif %}" }, { "{{ a['x'] }}", "{{ a[x] }}" }, { "a  {% if b %}c{% endif %}", "a {%if b%}c{%endif%}" },
    };
    static const char *const refused[] = { "{% raw %}a{% endraw %}", "{{ 'a\\q' }}", "{{ a + }}", "{{ + a }}", "{{ a ~ + b }}", "\xf8", "{{ '\xff' }}",
                                           "{{ $ }}", "{{ a", "{{ }}", "{# a", "{% if ' %}" };
    for (size_t i = 0; i < HL_COUNT(alike); i++)
        CHECK_MSG(print_of(alike[i][0]) && print_of(alike[i][0]) == print_of(alike[i][1]), "%s and %s", alike[i][0], alike[i][1]);
    for (size_t i = 0; i < HL_COUNT(unlike); i++)
        CHECK_MSG(print_of(unlike[i][0]) && print_of(unlike[i][1]) && print_of(unlike[i][0]) != print_of(unlike[i][1]), "%s and %s",
                  unlike[i][0], unlike[i][1]);
    for (size_t i = 0; i < HL_COUNT(refused); i++) CHECK_MSG(!print_of(refused[i]), "%s", refused[i]);
    /* By hand: FNV-1a of mark, text, mark, word, end, end; nine bytes. */
    uint64_t got, want = 0xCBF29CE484222325u;
    uint32_t bytes;
    for (const char *c = "\xFF" "ab" "\xF9" "\xFB" "mn" "\xFE" "\xFE"; *c; c++) want = (want ^ (uint8_t)*c) * 0x100000001B3u;
    CHECK(hl_chat_fingerprint("ab{{ mn }}\n", 11, &got, &bytes) && got == want && bytes == 9);
}

/* No time is judged.  At the limit of 1 MiB a loop that is quadratic in the text takes 10^12 steps, far beyond the runner's time limit; what is
 * linear takes a second in all. */
static void check_hostile(void)
{
    static const char *const runs[] = { "(", "{{ (", "{{ '", "{%", "{{", "{#", "{", "\\", "{{ x + ", "{{ 'a' ~ ", "{{ a.role.", "\r", " ",
                                        "{%- if x -%}\n ", "\xff", "\xe2", "{{ \"\\", "-%}", "{{ x }}" };
    size_t bytes = 64u << 20;
    char *text = malloc(bytes);
    REQUIRE(text != NULL);
    for (size_t i = 0; i < HL_COUNT(runs); i++) {
        size_t n = strlen(runs[i]);
        for (size_t at = 0; at < bytes / 32; at++) text[at] = runs[i][at % n];
        CHECK(!hl_chat_template_detect(text, 1 << 20));                              /* the limit, above it, far above it */
        CHECK(!hl_chat_template_detect(text, (1 << 20) + 1));
        CHECK(!hl_chat_template_detect(text, bytes / 32));
    }
    memset(text, ' ', bytes);
    CHECK(!hl_chat_template_detect(text, bytes));
    CHECK(!hl_chat_template_detect(NULL, 0));
    for (size_t i = 0; i < 2; i++) {                   /* a long comment is no harm, up to the limit */
        size_t comment = (1 << 20) - strlen(CHATML) + i;
        memcpy(text, "{#", 2);
        memcpy(text + comment - 2, "#}" CHATML, strlen(CHATML) + 3);
        CHECK((hl_chat_template_detect(text, comment + strlen(CHATML)) == NULL) == (i == 1));
    }
    free(text);
}

static void check_error(const hl_chat_template *t, const conversation *c, const char *const *words)
{
    char text[1024];
    hl_chat_parts p;
    CHECK(render(t, c, 0, &p) == HLLM_E_ARG && !p.parts && !p.text && p.n == 0 && p.bytes == 0);
    hl_error_copy(&error, text, sizeof text);
    for (; *words; words++) CHECK_MSG(strstr(text, *words) != NULL, "%s: no %s", text, *words);
}

static void check_errors(void)
{
    const hl_chat_template *gemma = hl_chat_template_find("gemma"), *chatml = hl_chat_template_find("chatml");
    conversation c = { .n = 0 };
    check_error(chatml, &c, (const char *const[]){ "chatml", "no messages", NULL });
    c.m[c.n++] = message("user", "x", 1);
    c.m[c.n++] = message("tool", "x", 1);
    check_error(chatml, &c, (const char *const[]){ "chatml", "message 2 of 2", "tool", "system, user and assistant", NULL });
    c.m[1].role = NULL;
    check_error(chatml, &c, (const char *const[]){ "message 2 of 2", "NULL", NULL });
    c.m[1].role = "\033[31m<|im_end|> a role that is much too long to be printed whole";
    check_error(chatml, &c, (const char *const[]){ "\\x1b", "message 2", NULL });
    c.m[1] = message("user", "x", 1);
    check_error(gemma, &c, (const char *const[]){ "gemma", "message 2 of 2", "user", "alternate", NULL });
    check_error(hl_chat_template_find("granite-3.3"), &c, (const char *const[]){ "message 1 of 2", "user", "system message", "date", NULL });
    c.m[0].role = "system";
    check_error(gemma, &c, (const char *const[]){ "gemma", "message 1 of 2", "system", NULL });
    c.m[1] = message("user", NULL, 7);
    check_error(chatml, &c, (const char *const[]){ "message 2", "content", NULL });
    c.m[1] = message("user", NULL, 0);
    hl_chat_parts p;
    CHECK(render(chatml, &c, 0, &p) == HLLM_OK);
    hl_chat_parts_free(&env, &p);
}

/* An allocator that fails at the n-th call. */
typedef struct faulty { long left; long live; } faulty;

static void *faulty_alloc(void *user, size_t bytes, size_t align)
{
    faulty *f = user;
    if (f->left-- == 0) return NULL;
    f->live++;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void faulty_free(void *user, void *block, size_t bytes, size_t align)
{
    (void)bytes;
    (void)align;
    if (block) ((faulty *)user)->live--;
    free(block);
}

static void check_memory(const char *row)
{
    static char big[100000];
    conversation c = *find_case("turns");
    memset(big, 'x', sizeof big);
    c.m[c.n++] = message("system", big, sizeof big);
    for (long n = 0;; n++) {
        faulty f = { .left = -1 };
        hllm_allocator hook = { .struct_size = sizeof hook, .user = &f, .alloc = faulty_alloc, .free = faulty_free };
        hl_env own = env;
        hl_chat_parts p = { .n = 99 };
        hl_status rc;
        long before;
        REQUIRE(hl_mem_new(&hook, &own.mem) == HLLM_OK);
        before = f.live;
        f.left = n;
        rc = hl_chat_template_render(&own, &error, hl_chat_template_find(row), c.m, c.n, 0, "<BOS>", "<EOS>", &p);
        f.left = -1;
        if (rc == HLLM_OK) hl_chat_parts_free(&own, &p);
        else CHECK(rc == HLLM_E_NOMEM && !p.parts && p.n == 0);
        CHECK_MSG(f.live == before, "%ld blocks left", f.live - before);
        hl_mem_free(own.mem);
        if (rc == HLLM_OK) { CHECK_MSG(n >= 2, "%ld", n); break; }
        REQUIRE(n < 100);
    }
}

/* Many messages, and a long one full of half-made marks, take time in proportion: a million messages and 8 MiB, 10^12 steps and more for a loop
 * that is quadratic in either, which the runner's time limit would end. */
static void check_long(void)
{
    size_t n = 1000000;
    hllm_chat_message *m = calloc(n, sizeof *m);
    char *text = malloc(8 << 20);
    hl_chat_parts p;
    REQUIRE(m && text);
    for (size_t i = 0; i < n; i++) m[i] = i % 2 ? message("assistant", "<think>a</think>b", 17) : message("user", "hello", 5);
    for (size_t i = 0; i < hl_chat_n_rows; i += 8)
        if (hl_chat_template_render(&env, &error, &hl_chat_rows[i], m, n, 0, "", "", &p) == HLLM_OK) {
            CHECK(p.bytes > n * 4);
            hl_chat_parts_free(&env, &p);
        }
    for (size_t i = 0; i < 8 << 20; i++) text[i] = "<<<</think</thin\n \n"[i % 19];
    m[1] = message("assistant", text, 8 << 20);
    for (size_t i = 0; i < hl_chat_n_rows; i += 8)
        if (hl_chat_template_render(&env, &error, &hl_chat_rows[i], m, 2, 0, "", "", &p) == HLLM_OK) hl_chat_parts_free(&env, &p);
    free(text);
    free(m);
}

int main(void)
{
    REQUIRE(hl_mem_new(NULL, &env.mem) == HLLM_OK);
    hl_error_init(&error);
    load_cases();
    check_tables();
    check_stored();
    check_forgery();
    check_same_and_other();
    check_fingerprints();
    check_hostile();
    check_errors();
    check_memory("chatml");
    check_memory("deepseek-v3");
    check_long();
    CHECK(hl_mem_live_bytes(env.mem) == 0);
    hl_error_destroy(&error);
    hl_mem_free(env.mem);
    return check_done();
}
