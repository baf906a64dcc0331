/* gguf_mutator.h: libFuzzer's mutator for GGUF files, for all targets that take one.
 *
 * It knows the container's fields: half of its changes put a telling number into a length, count, type, dimension or offset, or
 * remove, double or swap whole entries, where byte mutations would not get past the first length. */
#ifndef GGUF_MUTATOR_H
#define GGUF_MUTATOR_H

#include <stdint.h>
#include <string.h>

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max, unsigned seed);
/* libFuzzer's own; absent when inputs are only replayed. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t max) __attribute__((weak));

enum { MAX_FIELDS = 512, MAX_ENTRIES = 256 };
typedef struct map {                 /* where things are, as far as the bytes make sense */
    const uint8_t *p;
    size_t n, at, n_fields, n_keys, n_tensors;
    struct { size_t at; uint8_t bytes; } field[MAX_FIELDS];
    struct { size_t at, end; } key[MAX_ENTRIES], tensor[MAX_ENTRIES];
} map;

static uint64_t field(map *m, uint8_t bytes)
{
    uint64_t x = 0;
    if (m->n - m->at < bytes) { m->at = m->n; return 0; }
    memcpy(&x, m->p + m->at, bytes);
    if (m->n_fields < MAX_FIELDS) {
        m->field[m->n_fields].at = m->at;
        m->field[m->n_fields++].bytes = bytes;
    }
    m->at += bytes;
    return x;
}

static void skip(map *m, uint64_t n) { m->at = n > m->n - m->at ? m->n : m->at + (size_t)n; }

static void make_map(map *m, const uint8_t *p, size_t n)
{
    static const uint8_t size[16] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    memset(m, 0, sizeof *m);
    m->p = p;
    m->n = n;
    skip(m, 4);
    field(m, 4);
    uint64_t tensors = field(m, 8), keys = field(m, 8);
    for (uint64_t i = 0; i < keys && m->at < n && m->n_keys < MAX_ENTRIES; i++) {
        size_t start = m->at;
        skip(m, field(m, 8));
        uint64_t type = field(m, 4), elem = type, count = 1;
        if (type == 9) {
            elem = field(m, 4);
            count = field(m, 8);
        }
        if (elem == 8) while (count-- && m->at < n) skip(m, field(m, 8));
        else if (type == 9) skip(m, size[elem & 15] && count < n ? count * size[elem & 15] : 0);
        else field(m, size[elem & 15]);
        m->key[m->n_keys].at = start;
        m->key[m->n_keys++].end = m->at;
    }
    for (uint64_t i = 0; i < tensors && m->at < n && m->n_tensors < MAX_ENTRIES; i++) {
        size_t start = m->at;
        skip(m, field(m, 8));
        uint64_t dims = field(m, 4);
        while (dims-- && m->at < n) field(m, 8);
        field(m, 4);
        field(m, 8);
        m->tensor[m->n_tensors].at = start;
        m->tensor[m->n_tensors++].end = m->at;
    }
}

static uint64_t next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static uint64_t telling(uint64_t *s, uint64_t old, uint64_t left)
{
    static const uint64_t few[] = { 0, 1, 2, 4, 5, 8, 13, 31, 32, 33, 63, 64, 255, 256, 65535, 65536, 65537, 1u << 22 };
    switch (next(s) % 8) {
    case 0: return few[next(s) % (sizeof few / sizeof few[0])];
    case 1: return old + next(s) % 9 - 4;
    case 2: return 1ull << next(s) % 64;
    case 3: return (1ull << next(s) % 64) - 1;
    case 4: return left + next(s) % 3 - 1;
    case 5: return UINT64_MAX - next(s) % 64;
    case 6: return next(s) % 40;
    default: return (old ^ 1ull << next(s) % 64);
    }
}

/* Removes (kind 0), doubles (1) or swaps with its neighbour (2) one entry, and corrects the count. */
static size_t change_entry(map *m, uint8_t *data, size_t max, uint64_t *s)
{
    int tensors = next(s) & 1;
    size_t count = tensors ? m->n_tensors : m->n_keys, i, n = m->n;
    if (count == 0) return n;
    i = next(s) % count;
    size_t at = tensors ? m->tensor[i].at : m->key[i].at, end = tensors ? m->tensor[i].end : m->key[i].end, len = end - at;
    uint64_t declared;
    memcpy(&declared, data + (tensors ? 8 : 16), 8);
    switch (next(s) % 3) {
    case 0:
        memmove(data + at, data + end, n - end);
        n -= len;
        declared--;
        break;
    case 1:
        if (max - n < len) return n;
        memmove(data + end, data + at, n - at);
        n += len;
        declared++;
        break;
    default:
        if (i + 1 == count || len > 4096) return n;
        uint8_t copy[4096];
        size_t next_len = (tensors ? m->tensor[i + 1].end : m->key[i + 1].end) - end;
        memcpy(copy, data + at, len);
        memmove(data + at, data + end, next_len);
        memcpy(data + at + next_len, copy, len);
    }
    memcpy(data + (tensors ? 8 : 16), &declared, 8);
    return n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max, unsigned seed)
{
    static map m;
    uint64_t s = seed * 0x9E3779B97F4A7C15ull + 1;
    next(&s);
    if (n < 24 || next(&s) % 2) return LLVMFuzzerMutate(data, n, max);
    for (uint64_t times = 1 + next(&s) % 3; times && n >= 24; times--) {
        make_map(&m, data, n);
        if (next(&s) % 4 == 0) {
            n = change_entry(&m, data, max, &s);
        } else if (m.n_fields) {
            size_t i = next(&s) % m.n_fields, at = m.field[i].at, bytes = m.field[i].bytes;
            uint64_t old = 0, x;
            memcpy(&old, data + at, bytes);
            x = telling(&s, old, n - at - bytes);
            memcpy(data + at, &x, bytes);
        }
    }
    return n;
}

#endif
