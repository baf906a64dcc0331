/* text.c: UTF-8, numbers for messages, hashing.  Nothing here looks at the locale. */
#include "base.h"

#include <stdio.h>
#include <string.h>

/* Table 3-7 of the Unicode Standard: the second byte's range depends on the first. */
size_t hl_utf8_decode(const char *text, size_t n, uint32_t *cp)
{
    const unsigned char *s = (const unsigned char *)text;
    unsigned char lo = 0x80, hi = 0xbf;
    size_t more;
    uint32_t c = s[0];
    *cp = UINT32_MAX;
    if (c < 0x80) { *cp = c; return 1; }
    if (c >= 0xc2 && c <= 0xdf) { more = 1; c &= 0x1f; }
    else if (c >= 0xe0 && c <= 0xef) {
        more = 2;
        if (c == 0xe0) lo = 0xa0;
        if (c == 0xed) hi = 0x9f;
        c &= 0x0f;
    } else if (c >= 0xf0 && c <= 0xf4) {
        more = 3;
        if (c == 0xf0) lo = 0x90;
        if (c == 0xf4) hi = 0x8f;
        c &= 0x07;
    } else return 1;
    for (size_t i = 1; i <= more; i++) {
        if (i >= n || s[i] < lo || s[i] > hi) return i;
        c = c << 6 | (s[i] & 0x3f);
        lo = 0x80; hi = 0xbf;
    }
    *cp = c;
    return more + 1;
}

size_t hl_utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) { out[0] = (char)cp; return 1; }
    if (cp < 0x800) { out[0] = (char)(0xc0 | cp >> 6); out[1] = (char)(0x80 | (cp & 0x3f)); return 2; }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12); out[1] = (char)(0x80 | (cp >> 6 & 0x3f)); out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18); out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f)); out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

bool hl_utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += hl_utf8_decode(s + i, n - i, &cp);
        if (cp == UINT32_MAX) return false;
    }
    return true;
}

size_t hl_utf8_tail(const char *s, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char)s[n - back];
        if ((c & 0xc0) == 0x80) continue;              /* a continuation byte: look further back for the first byte */
        size_t len = c >= 0xf5 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 1;
        uint32_t cp;
        if (len <= back) return 0;
        return hl_utf8_decode(s + n - back, back, &cp) == back ? back : 0;    /* all bytes so far fit: it may still become one */
    }
    return 0;
}

void hl_text_printable(char *dst, size_t cap, const char *src)
{
    static const char hex[] = "0123456789abcdef";
    size_t n = 0, left = strlen(src);
    while (left) {
        uint32_t cp;
        size_t len = hl_utf8_decode(src, left, &cp);
        const bool plain = cp != UINT32_MAX && cp >= 0x20 && (cp < 0x7f || cp > 0x9f);
        if (n + (plain ? len : 4 * len) >= cap) break;
        for (; len; len--, src++, left--) {
            unsigned char c = (unsigned char)*src;
            if (plain) { dst[n++] = *src; continue; }
            dst[n++] = '\\'; dst[n++] = 'x'; dst[n++] = hex[c >> 4]; dst[n++] = hex[c & 15];
        }
    }
    dst[n] = 0;
}

const char *hl_text_f64(double x, char buf[32])
{
    if (x != x) return strcpy(buf, "nan");
    if (x > 1.7976931348623157e308) return strcpy(buf, "inf");
    if (x < -1.7976931348623157e308) return strcpy(buf, "-inf");
    snprintf(buf, 32, "%.9g", x);
    for (char *c = buf; *c; c++)                       /* the locale's decimal point, whatever it is */
        if ((*c < '0' || *c > '9') && *c != '-' && *c != '+' && *c != 'e') {
            char *rest = c + 1;
            while (*rest && (*rest < '0' || *rest > '9') && *rest != 'e') rest++;
            *c = '.';
            memmove(c + 1, rest, strlen(rest) + 1);
            break;
        }
    return buf;
}

void hl_text_shorten(char *s, size_t n)
{
    const size_t len = strlen(s), front = n / 4;
    if (len <= n) return;
    memcpy(s + front, "...", 3);
    memmove(s + front + 3, s + len - (n - front - 3), n - front - 3 + 1);
}

/* Multiply-and-fold over 8-byte words (the idea of wyhash), seeded so that a file cannot aim at our tables. */
static uint64_t fold(uint64_t a, uint64_t b)
{
    __extension__ typedef unsigned __int128 u128;
    u128 p = (u128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

uint64_t hl_hash(const void *data, size_t n, uint64_t seed)
{
    const unsigned char *s = data;
    uint64_t h = seed ^ 0x9e3779b97f4a7c15ull ^ fold(n ^ 0xa0761d6478bd642full, seed | 1), w;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&w, s, 8);
        h = fold(h ^ w, 0xe7037ed1a0b428dbull ^ seed);
    }
    w = 0;
    if (n) memcpy(&w, s, n);
    h = fold(h ^ w ^ 0x8ebc6af09c88c6e3ull, 0x589965cc75374cc3ull ^ n);
    return fold(h, 0x1d8e4e27c47d124full ^ seed);
}
