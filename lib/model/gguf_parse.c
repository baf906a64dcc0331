/* gguf_parse.c: the header of one GGUF file, versions 2 and 3, little-endian, from bytes that nobody vouches for.
 *
 * The rule of this file: a number from the header is compared with what is left of the file (never the other way round: no sum
 * of two unchecked numbers) before it is used as a length, a count or an offset, and no block is allocated from a declared
 * length that the file does not have.  Sizes of tensors go through overflow-checked arithmetic.  Errors say file, key or tensor,
 * byte, value and limit.
 *
 * Beyond the format it refuses what no honest writer produces and what has broken others: two keys or tensors of one name, names
 * with control bytes, tensors that overlap, arrays of arrays, booleans that are neither 0 nor 1.
 *
 * Layout: "GGUF", u32 version, u64 tensors, u64 keys; keys: string name, u32 type, value; tensors: string name, u32 n_dims,
 * u64 dims[], u32 type, u64 offset; padding to the alignment; data.  A string is u64 length and bytes; an array u32 type,
 * u64 count, elements.
 */
#include "model/gguf_parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* The least that an entry takes: what a count is checked against before anything is allocated for it. */
enum { MIN_KEY = 8 + 1 + 4 + 1, MIN_TENSOR = 8 + 1 + 4 + 8 + 4 + 8, MIN_CHUNK = 8192, MAX_LOOK = 32, DEFAULT_ALIGNMENT = 32 };

typedef struct cursor {
    hl_mem *mem;
    hl_error *err;
    const char *path;
    const uint8_t *data;             /* [have] */
    uint64_t have, file_bytes, at;   /* at <= have <= file_bytes */
    uint64_t need;
    const char *kind;                /* what is being read, for messages: "key", "tensor", "the header" */
    const char *name;                /* NULL: not known yet */
    uint32_t index;
    uint32_t alignment;
} cursor;

static hl_status fail(const cursor *c, hl_status code, const char *fmt, ...) HL_PRINTF(3, 4);
static hl_status fail(const cursor *c, hl_status code, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    if (!c->err) return code;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (c->name) return hl_fail(c->err, code, "%s: %s %.100s (byte %" PRIu64 "): %s", c->path, c->kind, c->name, c->at, text);
    if (c->kind) return hl_fail(c->err, code, "%s: %s %" PRIu32 " (byte %" PRIu64 "): %s", c->path, c->kind, c->index, c->at, text);
    return hl_fail(c->err, code, "%s: header (byte %" PRIu64 "): %s", c->path, c->at, text);
}

/* n bytes from c->at on can be used.  HLLM_E_TRUNCATED without a text and with c->need set: the file has them, we do not yet. */
static hl_status want(cursor *c, uint64_t n, const char *what)
{
    uint64_t left = c->file_bytes - c->at;
    if (n > left)
        return fail(c, HLLM_E_TRUNCATED, "%s needs %" PRIu64 " bytes, but the file ends after %" PRIu64 " (at byte %" PRIu64 ")",
                    what, n, left, c->file_bytes);
    if (n > HL_GGUF_MAX_HEADER - c->at)
        return fail(c, HLLM_E_LIMIT, "%s needs %" PRIu64 " bytes; a header has at most %d", what, n, HL_GGUF_MAX_HEADER);
    if (n > c->have - c->at) {
        c->need = c->at + n;
        return HLLM_E_TRUNCATED;
    }
    return HLLM_OK;
}

static hl_status get_u32(cursor *c, const char *what, uint32_t *out)
{
    hl_status rc = want(c, sizeof *out, what);
    if (rc != HLLM_OK) return rc;
    memcpy(out, c->data + c->at, sizeof *out);
    c->at += sizeof *out;
    return HLLM_OK;
}

static hl_status get_u64(cursor *c, const char *what, uint64_t *out)
{
    hl_status rc = want(c, sizeof *out, what);
    if (rc != HLLM_OK) return rc;
    memcpy(out, c->data + c->at, sizeof *out);
    c->at += sizeof *out;
    return HLLM_OK;
}

/* ---- names and their index ---- */

typedef struct hl_gguf_chunk { struct hl_gguf_chunk *next; size_t used, cap; char text[]; } hl_gguf_chunk;

static char *name_copy(hl_mem *mem, hl_gguf_names *names, const uint8_t *s, size_t n)
{
    hl_gguf_chunk *k = names->chunks;
    if (!k || k->cap - k->used < n + 1) {
        size_t cap = HL_MAX(n + 1, (size_t)MIN_CHUNK);
        if (!(k = hl_alloc(mem, sizeof *k + cap))) return NULL;
        *k = (hl_gguf_chunk){ .next = names->chunks, .cap = cap };
        names->chunks = k;
    }
    char *copy = k->text + k->used;
    memcpy(copy, s, n);
    copy[n] = 0;
    k->used += n + 1;
    return copy;
}

void hl_gguf_names_free(hl_mem *mem, hl_gguf_names *names)
{
    while (names->chunks) {
        hl_gguf_chunk *next = names->chunks->next;
        hl_free(mem, names->chunks);
        names->chunks = next;
    }
}

void hl_gguf_names_join(hl_gguf_names *to, hl_gguf_names *from)
{
    hl_gguf_chunk **end = &to->chunks;
    while (*end) end = &(*end)->next;
    *end = from->chunks;
    from->chunks = NULL;
}

static const char *name_at(const void *structs, size_t stride, uint32_t i)
{
    const char *name;
    memcpy(&name, (const char *)structs + i * stride, sizeof name);
    return name;
}

/* The slot of the name, or the empty one where it would go. */
static uint32_t *slot_of(const hl_gguf_index *x, const void *structs, size_t stride, const char *name)
{
    uint64_t i = hl_hash(name, strlen(name), x->seed);
    for (;; i++) {
        uint32_t *slot = &x->slots[i & x->mask];
        if (!*slot || strcmp(name_at(structs, stride, *slot - 1), name) == 0) return slot;
    }
}

hl_status hl_gguf_index_new(hl_mem *mem, const void *structs, size_t stride, uint32_t n, hl_gguf_index *out, uint32_t *twin)
{
    hl_status rc = HLLM_OK;
    hl_gguf_index x = { 0 };
    size_t size = 8;
    *twin = 0;
    while (size < 2 * (size_t)n) size *= 2;            /* at most half full: a probe always ends at an empty slot */
    HL_NEED(x.slots = hl_alloc_array(mem, size, sizeof *x.slots));
    x.mask = (uint32_t)(size - 1);
    if (getrandom(&x.seed, sizeof x.seed, GRND_NONBLOCK) != sizeof x.seed) x.seed = hl_now_ns() ^ (uintptr_t)x.slots;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *slot = slot_of(&x, structs, stride, name_at(structs, stride, i));
        if (*slot) {
            *twin = i;
            rc = HLLM_E_FORMAT;
            goto done;
        }
        *slot = i + 1;
    }
    *out = x; x.slots = NULL;
done:
    hl_free(mem, x.slots);
    return rc;
}

void hl_gguf_index_free(hl_mem *mem, hl_gguf_index *index)
{
    hl_free(mem, index->slots);
    index->slots = NULL;
}

const void *hl_gguf_index_find(const hl_gguf_index *index, const void *structs, size_t stride, const char *name)
{
    uint32_t slot = *slot_of(index, structs, stride, name);
    return slot ? (const char *)structs + (slot - 1) * stride : NULL;
}

/* Reads a name of 1..max printable ASCII bytes. */
static hl_status get_name(cursor *c, hl_gguf_names *names, uint32_t max, const char **out)
{
    hl_status rc = HLLM_OK;
    uint64_t n = 0;
    HL_TRY(get_u64(c, "the name's length", &n));
    if (n > c->file_bytes - c->at) {                   /* first: a length that cannot be says more than a limit */
        rc = want(c, n, "the name");
        goto done;
    }
    if (n == 0 || n > max) {
        rc = fail(c, HLLM_E_FORMAT, "the name has %" PRIu64 " bytes; 1 to %" PRIu32 " are allowed", n, max);
        goto done;
    }
    HL_TRY(want(c, n, "the name"));
    const uint8_t *s = c->data + c->at;
    for (uint64_t i = 0; i < n; i++) {
        if (s[i] < 0x20 || s[i] > 0x7E) {
            rc = fail(c, HLLM_E_FORMAT, "byte %" PRIu64 " of the name is 0x%02x; only printable ASCII is allowed", i, s[i]);
            goto done;
        }
    }
    HL_NEED(*out = name_copy(c->mem, names, s, (size_t)n));
    c->at += n;
done:
    return rc;
}

/* ---- magic ---- */

/* What a file that is no GGUF looks like; NULL: no idea. */
static const char *looks_like(const uint8_t *s, uint64_t n)
{
    static const struct { const char *start; uint32_t bytes; const char *what; } known[] = {
        { "FUGG", 4, "a GGUF with its bytes reversed" },
        { "lmgg", 4, "an old GGML file" }, { "ggml", 4, "an old GGML file" },
        { "tjgg", 4, "an old GGJT file" }, { "ggjt", 4, "an old GGJT file" },
        { "fmgg", 4, "an old GGMF file" }, { "ggmf", 4, "an old GGMF file" },
        { "algg", 4, "an old GGLA adapter" }, { "ggla", 4, "an old GGLA adapter" },
        { "GGML", 4, "an old GGML file" }, { "GGJT", 4, "an old GGJT file" },
        { "PK\003\004", 4, "a zip archive (a PyTorch checkpoint is one)" },
        { "\177ELF", 4, "an ELF program" },
        { "version https://git-lfs", 23, "a Git LFS pointer: the model itself was not downloaded" },
        { "<!", 2, "an HTML page" }, { "<html", 5, "an HTML page" }, { "<HTML", 5, "an HTML page" },
        { "\037\213", 2, "a gzip archive" }, { "\x28\xb5\x2f\xfd", 4, "a zstd archive" }, { "{", 1, "JSON text" },
        { "\x80\x02", 2, "a Python pickle" }, { "\x80\x03", 2, "a Python pickle" }, { "\x80\x04", 2, "a Python pickle" },
        { "\x80\x05", 2, "a Python pickle" } };
    for (size_t i = 0; i < HL_COUNT(known); i++)
        if (n >= known[i].bytes && memcmp(s, known[i].start, known[i].bytes) == 0) return known[i].what;
    if (n >= 10 && s[8] == '{' && s[9] == '"') return "a safetensors file";
    return NULL;
}

/* PowerInfer's files are GGUF but for these four bytes. */
static hl_status get_magic(cursor *c, bool *powerinfer)
{
    static const char magic[4] = "GGUF";
    uint64_t n = HL_MIN(c->file_bytes, (uint64_t)sizeof magic), look = HL_MIN(c->file_bytes, (uint64_t)MAX_LOOK);
    if (c->file_bytes == 0) return hl_fail(c->err, HLLM_E_TRUNCATED, "%s: is empty", c->path);
    if (look > c->have) {                              /* what the file is must not depend on how much of it was read */
        c->need = look;
        return HLLM_E_TRUNCATED;
    }
    *powerinfer = n == sizeof magic && memcmp(c->data, "PWRI", sizeof magic) == 0;
    if (!*powerinfer && memcmp(c->data, magic, (size_t)n) != 0) {
        const char *what = looks_like(c->data, look);
        if (what) return hl_fail(c->err, HLLM_E_FORMAT, "%s: is not a GGUF file; it looks like %s", c->path, what);
        return hl_fail(c->err, HLLM_E_FORMAT, "%s: is not a GGUF file: it does not begin with GGUF", c->path);
    }
    hl_status rc = want(c, sizeof magic, "GGUF");
    if (rc == HLLM_OK) c->at += sizeof magic;
    return rc;
}

/* Magic, version and the two counts. */
static hl_status get_head(cursor *c, hl_gguf_header *h)
{
    hl_status rc = HLLM_OK;
    uint64_t n_tensors = 0, n_keys = 0;
    HL_TRY(get_magic(c, &h->powerinfer));
    HL_TRY(get_u32(c, "the version", &h->version));
    if (h->version != 2 && h->version != 3) {
        uint32_t turned = __builtin_bswap32(h->version);
        c->at -= 4;
        if (turned >= 1 && turned <= 3)
            rc = fail(c, HLLM_E_ENDIAN, "a big-endian file (version %" PRIu32 "); only little-endian ones can be read", turned);
        else
            rc = fail(c, HLLM_E_VERSION, "GGUF version %" PRIu32 "; versions 2 and 3 are known", h->version);
        goto done;
    }
    HL_TRY(get_u64(c, "the count of tensors", &n_tensors));
    if (n_tensors > HL_GGUF_MAX_TENSORS) {
        rc = fail(c, HLLM_E_LIMIT, "declares %" PRIu64 " tensors; the limit is %d", n_tensors, HL_GGUF_MAX_TENSORS);
        goto done;
    }
    HL_TRY(get_u64(c, "the count of keys", &n_keys));
    if (n_keys > HL_GGUF_MAX_KEYS) {
        rc = fail(c, HLLM_E_LIMIT, "declares %" PRIu64 " keys; the limit is %d", n_keys, HL_GGUF_MAX_KEYS);
        goto done;
    }
    uint64_t least = n_keys * MIN_KEY + n_tensors * MIN_TENSOR;        /* both are below 2^17 */
    if (least > c->file_bytes - c->at) {
        rc = fail(c, HLLM_E_TRUNCATED, "%" PRIu64 " keys and %" PRIu64 " tensors need %" PRIu64 " bytes or more, but the file ends after %" PRIu64,
                  n_keys, n_tensors, least, c->file_bytes - c->at);
        goto done;
    }
    h->n_keys = (uint32_t)n_keys;
    h->n_tensors = (uint32_t)n_tensors;
done:
    return rc;
}

/* ---- keys ---- */

/* Bytes of a number; 0 for strings, arrays and unknown types. */
static uint32_t number_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {
        [HLLM_VALUE_U8] = 1, [HLLM_VALUE_I8] = 1, [HLLM_VALUE_U16] = 2, [HLLM_VALUE_I16] = 2, [HLLM_VALUE_U32] = 4,
        [HLLM_VALUE_I32] = 4, [HLLM_VALUE_F32] = 4, [HLLM_VALUE_BOOL] = 1, [HLLM_VALUE_U64] = 8, [HLLM_VALUE_I64] = 8,
        [HLLM_VALUE_F64] = 8 };
    return type < HL_COUNT(bytes) ? bytes[type] : 0;
}

static hl_status get_numbers(cursor *c, hl_gguf_key *k)
{
    hl_status rc = HLLM_OK;
    uint32_t each = number_bytes(k->elem);
    if (k->n > (c->file_bytes - c->at) / each) {
        rc = fail(c, HLLM_E_TRUNCATED, "%" PRIu64 " values of %" PRIu32 " bytes, but the file ends after %" PRIu64 " bytes (at byte %" PRIu64 ")",
                  k->n, each, c->file_bytes - c->at, c->file_bytes);
        goto done;
    }
    HL_TRY(want(c, k->n * each, "the value"));
    k->data = c->data + c->at;
    if (k->elem == HLLM_VALUE_BOOL) {
        for (uint64_t i = 0; i < k->n; i++) {
            if (k->data[i] > 1) {
                rc = fail(c, HLLM_E_FORMAT, "boolean %" PRIu64 " has the value %u; 0 and 1 are allowed", i, k->data[i]);
                goto done;
            }
        }
    }
    c->at += k->n * each;
done:
    return rc;
}

static hl_status get_strings(cursor *c, hl_gguf_key *k)
{
    hl_status rc = HLLM_OK;
    uint64_t *str_at = NULL, start = c->at, n = 0;
    k->data = c->data + c->at;
    if (k->type != HLLM_VALUE_ARRAY) {
        HL_TRY(get_u64(c, "the string's length", &n));
        HL_TRY(want(c, n, "the string"));
        c->at += n;
        goto done;
    }
    if (k->n > (c->file_bytes - c->at) / 8) {
        rc = fail(c, HLLM_E_TRUNCATED, "%" PRIu64 " strings, but the file ends after %" PRIu64 " bytes (at byte %" PRIu64 ")",
                  k->n, c->file_bytes - c->at, c->file_bytes);
        goto done;
    }
    if (k->n > HL_GGUF_MAX_STRINGS) {
        rc = fail(c, HLLM_E_LIMIT, "%" PRIu64 " strings; the limit is %d", k->n, HL_GGUF_MAX_STRINGS);
        goto done;
    }
    HL_TRY(want(c, k->n * 8, "the strings"));
    HL_NEED(str_at = hl_alloc(c->mem, (size_t)(k->n + 1) * sizeof *str_at));
    for (uint64_t i = 0; i < k->n; i++) {
        str_at[i] = c->at - start;
        HL_TRY(get_u64(c, "a string's length", &n));
        HL_TRY(want(c, n, "a string of the array"));
        c->at += n;
    }
    str_at[k->n] = c->at - start;
    k->str_at = str_at; str_at = NULL;
done:
    hl_free(c->mem, str_at);
    return rc;
}

static hl_status check_alignment(cursor *c, const hl_gguf_key *k)
{
    uint32_t a;
    if (k->type != HLLM_VALUE_U32)
        return fail(c, HLLM_E_FORMAT, "has the type %s; UINT32 is needed", hl_gguf_type_name(k->type));
    memcpy(&a, k->data, sizeof a);
    if (a == 0 || (a & (a - 1)) || a > HL_GGUF_MAX_ALIGNMENT)
        return fail(c, HLLM_E_FORMAT, "is %" PRIu32 "; powers of two up to %d are allowed", a, HL_GGUF_MAX_ALIGNMENT);
    c->alignment = a;
    return HLLM_OK;
}

static hl_status get_key(cursor *c, hl_gguf_names *names, hl_gguf_key *k)
{
    hl_status rc = HLLM_OK;
    c->name = NULL;
    HL_TRY(get_name(c, names, HL_GGUF_MAX_KEY_NAME, &k->name));
    c->name = k->name;
    HL_TRY(get_u32(c, "the type", &k->type));
    k->elem = k->type;
    k->n = 1;
    if (k->type == HLLM_VALUE_ARRAY) {
        HL_TRY(get_u32(c, "the elements' type", &k->elem));
        HL_TRY(get_u64(c, "the count of elements", &k->n));
        if (k->elem == HLLM_VALUE_ARRAY) {
            rc = fail(c, HLLM_E_FORMAT, "is an array of arrays, which is not allowed");
            goto done;
        }
    }
    if (k->elem != HLLM_VALUE_STRING && !number_bytes(k->elem)) {
        rc = fail(c, HLLM_E_FORMAT, "has the value type %" PRIu32 "; types 0 to %d are known", k->elem, HLLM_VALUE_F64);
        goto done;
    }
    HL_TRY(k->elem == HLLM_VALUE_STRING ? get_strings(c, k) : get_numbers(c, k));
    if (strcmp(k->name, "general.alignment") == 0) HL_TRY(check_alignment(c, k));
done:
    return rc;
}

static hl_status get_keys(cursor *c, hl_gguf_header *h)
{
    hl_status rc = HLLM_OK;
    uint32_t twin;
    HL_NEED(h->keys = hl_alloc_array(c->mem, h->n_keys, sizeof *h->keys));
    c->kind = "key";
    for (c->index = 0; c->index < h->n_keys; c->index++) HL_TRY(get_key(c, &h->names, &h->keys[c->index]));
    rc = hl_gguf_index_new(c->mem, h->keys, sizeof *h->keys, h->n_keys, &h->key_index, &twin);
    if (rc == HLLM_E_FORMAT) {
        c->name = h->keys[twin].name;
        rc = fail(c, rc, "is there twice: a second time as key %" PRIu32, twin);
    }
done:
    return rc;
}

/* ---- tensors ---- */

/* Types of ggml that nothing here can compute with: their names, for the message, and their sizes where one is fixed. */
static const struct { uint8_t type, bytes; const char *name; } foreign[] = {
    { 4, 0, "Q4_2, removed" }, { 5, 0, "Q4_3, removed" }, { 9, 0, "Q8_1" }, { 15, 0, "Q8_K" }, { 16, 0, "IQ2_XXS" },
    { 17, 0, "IQ2_XS" }, { 18, 0, "IQ3_XXS" }, { 19, 0, "IQ1_S" }, { 21, 0, "IQ3_S" }, { 22, 0, "IQ2_S" }, { 24, 1, "I8" },
    { 25, 2, "I16" }, { 26, 4, "I32" }, { 27, 8, "I64" }, { 28, 8, "F64" }, { 29, 0, "IQ1_M" }, { 31, 0, "Q4_0_4_4, removed" },
    { 32, 0, "Q4_0_4_8, removed" }, { 33, 0, "Q4_0_8_8, removed" }, { 34, 0, "TQ1_0" }, { 35, 0, "TQ2_0" },
    { 36, 0, "IQ4_NL_4_4, removed" }, { 37, 0, "IQ4_NL_4_8, removed" }, { 38, 0, "IQ4_NL_8_8, removed" }, { 40, 0, "NVFP4" } };

static hl_status fail_type(const cursor *c, uint32_t type)
{
    char known[256];
    size_t n = 0;
    const char *name = "unknown";
    for (size_t i = 0; i < HL_COUNT(foreign); i++)
        if (foreign[i].type == type) name = foreign[i].name;
    known[0] = 0;
    for (uint32_t i = 0; i < HL_DTYPE_END; i++) {
        const hl_dtype_info *t = hl_dtype(i);
        if (t && n < sizeof known) n += (size_t)snprintf(known + n, sizeof known - n, " %s", t->name);
    }
    return fail(c, HLLM_E_UNSUPPORTED, "element type %" PRIu32 " (%s) is not supported; known are%s", type, name, known);
}

/* n and bytes from dims and dtype.  *padded_sum: of all tensors so far. */
static hl_status measure(const cursor *c, hl_gguf_tensor *t, uint64_t *padded_sum)
{
    uint32_t block = 1, block_bytes = 0;
    const hl_dtype_info *info = hl_dtype(t->dtype);
    for (size_t i = 0; i < HL_COUNT(foreign); i++)
        if (foreign[i].type == t->dtype) block_bytes = foreign[i].bytes;
    if (info) {
        block = info->block;
        block_bytes = info->bytes;
    }
    if (!block_bytes) return fail_type(c, t->dtype);
    t->n = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->dims[i] == 0 || t->dims[i] > INT64_MAX)
            return fail(c, HLLM_E_FORMAT, "dimension %" PRIu32 " is %" PRIu64 "; 1 to 2^63 - 1 are allowed", i, t->dims[i]);
        if (hl_mul_u64(t->n, t->dims[i], &t->n) != HLLM_OK || t->n > INT64_MAX)
            return fail(c, HLLM_E_FORMAT, "dimensions %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64 ": more than 2^63 - 1 elements",
                        t->dims[0], t->dims[1], t->dims[2], t->dims[3]);
    }
    if (t->dims[0] % block)
        return fail(c, HLLM_E_FORMAT, "rows have %" PRIu64 " elements, which is no multiple of the %" PRIu32 " in a block of %s",
                    t->dims[0], block, info->name);
    if (hl_mul_u64(t->n / block, block_bytes, &t->bytes) != HLLM_OK)
        return fail(c, HLLM_E_FORMAT, "%" PRIu64 " elements: their bytes do not fit in 64 bits", t->n);
    uint64_t padded;
    if (hl_add_u64(t->bytes, c->alignment - 1, &padded) != HLLM_OK || hl_add_u64(*padded_sum, padded, padded_sum) != HLLM_OK ||
        *padded_sum > INT64_MAX)
        return fail(c, HLLM_E_LIMIT, "%" PRIu64 " bytes: all tensors up to this one have more than 2^63 - 1", t->bytes);
    return HLLM_OK;
}

/* at is left relative to the data's beginning, which is not known yet. */
static hl_status get_tensor(cursor *c, hl_gguf_names *names, hl_gguf_tensor *t, uint64_t *padded_sum)
{
    hl_status rc = HLLM_OK;
    c->name = NULL;
    HL_TRY(get_name(c, names, HL_GGUF_MAX_NAME, &t->name));
    c->name = t->name;
    HL_TRY(get_u32(c, "the count of dimensions", &t->n_dims));
    if (t->n_dims == 0 || t->n_dims > HL_GGUF_MAX_DIMS) {
        rc = fail(c, HLLM_E_FORMAT, "has %" PRIu32 " dimensions; 1 to %d are allowed", t->n_dims, HL_GGUF_MAX_DIMS);
        goto done;
    }
    for (uint32_t i = 0; i < HL_GGUF_MAX_DIMS; i++) t->dims[i] = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) HL_TRY(get_u64(c, "a dimension", &t->dims[i]));
    HL_TRY(get_u32(c, "the element type", &t->dtype));
    HL_TRY(get_u64(c, "the offset", &t->at));
    HL_TRY(measure(c, t, padded_sum));
done:
    return rc;
}

static void sift(const hl_gguf_tensor *t, uint32_t *order, uint32_t i, uint32_t n)
{
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && t[order[child + 1]].at > t[order[child]].at) child++;
        if (t[order[i]].at >= t[order[child]].at) return;
        uint32_t swap = order[i];
        order[i] = order[child];
        order[child] = swap;
    }
}

/* Tensors must not share bytes.  Heap sort, since qsort may allocate behind the host's back. */
static hl_status check_overlap(cursor *c, const hl_gguf_header *h)
{
    hl_status rc = HLLM_OK;
    const hl_gguf_tensor *t = h->tensors;
    uint32_t *order = NULL, n = h->n_tensors;
    bool sorted = true;
    for (uint32_t i = 1; i < n && sorted; i++) sorted = t[i - 1].at <= t[i].at;
    HL_NEED(order = hl_alloc(c->mem, n * sizeof *order));
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    if (!sorted) {
        for (uint32_t i = n / 2; i-- > 0;) sift(t, order, i, n);
        for (uint32_t last = n; last-- > 1;) {
            uint32_t swap = order[0];
            order[0] = order[last];
            order[last] = swap;
            sift(t, order, 0, last);
        }
    }
    for (uint32_t i = 1; i < n; i++) {
        const hl_gguf_tensor *a = &t[order[i - 1]], *b = &t[order[i]];
        if (b->at - a->at >= a->bytes) continue;
        c->name = b->name;
        rc = fail(c, HLLM_E_FORMAT, "its data at %" PRIu64 " overlap those of %s at %" PRIu64 " (%" PRIu64 " bytes)", b->at, a->name,
                  a->at, a->bytes);
        goto done;
    }
done:
    hl_free(c->mem, order);
    return rc;
}

/* Makes the offsets absolute and checks them against the file. */
static hl_status place(cursor *c, hl_gguf_header *h, uint32_t flags)
{
    uint64_t data_at = hl_align_up(c->at, c->alignment);
    h->data_end = c->at;
    for (c->index = 0; c->index < h->n_tensors; c->index++) {
        hl_gguf_tensor *t = &h->tensors[c->index];
        uint64_t at, end;
        c->name = t->name;
        if (!hl_dtype(t->dtype)) return fail_type(c, t->dtype);
        if (t->at % c->alignment)
            return fail(c, HLLM_E_FORMAT, "offset %" PRIu64 " is no multiple of the alignment %" PRIu32, t->at, c->alignment);
        if (hl_add_u64(t->at, data_at, &at) != HLLM_OK || hl_add_u64(at, t->bytes, &end) != HLLM_OK)
            return fail(c, HLLM_E_FORMAT, "offset %" PRIu64 " and %" PRIu64 " bytes do not fit in 64 bits", t->at, t->bytes);
        t->at = at;
        if (end > c->file_bytes && !(flags & (HLLM_MODEL_VOCAB_ONLY | HLLM_MODEL_HEADER_ONLY)))
            return fail(c, HLLM_E_TRUNCATED, "its %" PRIu64 " bytes end at %" PRIu64 ", but the file ends at %" PRIu64, t->bytes, end,
                        c->file_bytes);
        h->data_end = HL_MAX(h->data_end, end);
    }
    return HLLM_OK;
}

static hl_status get_tensors(cursor *c, hl_gguf_header *h, uint32_t flags)
{
    hl_status rc = HLLM_OK;
    uint32_t twin;
    uint64_t padded_sum = 0;
    c->kind = "tensor";
    HL_NEED(h->tensors = hl_alloc_array(c->mem, h->n_tensors, sizeof *h->tensors));
    for (c->index = 0; c->index < h->n_tensors; c->index++)
        HL_TRY(get_tensor(c, &h->names, &h->tensors[c->index], &padded_sum));
    h->bytes = c->at;
    rc = hl_gguf_index_new(c->mem, h->tensors, sizeof *h->tensors, h->n_tensors, &h->tensor_index, &twin);
    if (rc == HLLM_E_FORMAT) {
        c->name = h->tensors[twin].name;
        rc = fail(c, rc, "is there twice: a second time as tensor %" PRIu32, twin);
    }
    HL_TRY(rc);
    HL_TRY(place(c, h, flags));
    if (!(flags & HLLM_MODEL_VOCAB_ONLY)) HL_TRY(check_overlap(c, h));
done:
    return rc;
}

/* ---- the whole ---- */

void hl_gguf_header_free(hl_mem *mem, hl_gguf_header *h)
{
    for (uint32_t i = 0; h->keys && i < h->n_keys; i++) hl_free(mem, (void *)(uintptr_t)h->keys[i].str_at);
    hl_free(mem, h->keys);
    hl_free(mem, h->tensors);
    hl_gguf_index_free(mem, &h->key_index);
    hl_gguf_index_free(mem, &h->tensor_index);
    hl_gguf_names_free(mem, &h->names);
    memset(h, 0, sizeof *h);
}

void hl_gguf_header_rebase(hl_gguf_header *h, const uint8_t *from, const uint8_t *to)
{
    for (uint32_t i = 0; i < h->n_keys; i++) h->keys[i].data = to + (h->keys[i].data - from);
}

hl_status hl_gguf_parse(hl_mem *mem, hl_error *err, const char *path, const uint8_t *data, size_t have, uint64_t file_bytes,
                        uint32_t flags, hl_gguf_header *out)
{
    hl_status rc = HLLM_OK;
    hl_gguf_header h = { 0 };
    cursor c = { .mem = mem, .err = err, .path = path, .data = data, .have = have, .file_bytes = file_bytes,
                 .alignment = DEFAULT_ALIGNMENT };
    memset(out, 0, sizeof *out);
    HL_TRY(get_head(&c, &h));
    HL_TRY(get_keys(&c, &h));
    HL_TRY(get_tensors(&c, &h, flags));
    *out = h;
    memset(&h, 0, sizeof h);
done:
    hl_gguf_header_free(mem, &h);
    if (rc != HLLM_OK) out->need = c.need;
    return rc;
}
