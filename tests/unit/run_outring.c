/* run_outring.c: bytes in random pieces come out as whole characters, U+FFFD for what is none, stop texts cut: as a plain reference that sees
 * the whole text at once.  Room: nothing is lost when the reader is slow. */
#include "run/outring.h"

#include "run_common.h"

static hl_mem *mem;
static int n_hits, n_runs;

/* Reference: by the table of well-formed sequences (Unicode 15, table 3-7), one U+FFFD for each maximal subpart. */
static size_t ref_clean(const uint8_t *s, size_t n, uint8_t *out)
{
    size_t m = 0;
    for (size_t i = 0; i < n;) {
        static const struct { uint8_t lo, hi, lo2, hi2, len; } rows[] = {
            { 0x00, 0x7f, 0, 0, 1 }, { 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 }, { 0xe1, 0xec, 0x80, 0xbf, 3 }, { 0xed, 0xed, 0x80, 0x9f, 3 },
            { 0xee, 0xef, 0x80, 0xbf, 3 }, { 0xf0, 0xf0, 0x90, 0xbf, 4 }, { 0xf1, 0xf3, 0x80, 0xbf, 4 }, { 0xf4, 0xf4, 0x80, 0x8f, 4 } };
        size_t good = 0, len = 0;
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            if (s[i] >= rows[r].lo && s[i] <= rows[r].hi) {
                len = rows[r].len;
                for (good = 1; good < len && i + good < n; good++) {
                    uint8_t lo = good == 1 ? rows[r].lo2 : 0x80, hi = good == 1 ? rows[r].hi2 : 0xbf;
                    if (s[i + good] < lo || s[i + good] > hi) break;
                }
            }
        if (len && good == len) { memcpy(out + m, s + i, len); m += len; i += len; continue; }
        memcpy(out + m, "\xef\xbf\xbd", 3);
        m += 3;
        i += good ? good : 1;
    }
    return m;
}

/* Where the text stops: the piece in which the first stop text becomes complete, and that stop text's beginning. */
static size_t ref_stop(const uint8_t *s, size_t n, const size_t *ends, size_t n_ends, const char *const *stops, uint32_t n_stops, int *hit)
{
    *hit = 0;
    for (size_t e = 0; e < n_ends; e++)
        for (size_t at = 0; at < ends[e]; at++)
            for (uint32_t i = 0; i < n_stops; i++) {
                size_t m = strlen(stops[i]);
                if (at + m <= ends[e] && memcmp(s + at, stops[i], m) == 0) { *hit = 1; return at; }
            }
    return n;
}

static void random_pieces(uint64_t seed, uint32_t n_stops)
{
    static const uint8_t alphabet[] = { 'a', 'b', 'a', 'b', ' ', 0, 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x98, 0x80, 0x80, 0xbf, 0xc0, 0xff, 0xf5, 0xed, 0xa0, 0xe0, 0xf4, 0x90 };
    static const char *const whole[] = { "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "ab", "aab", "x" };
    static const char *const all_stops[] = { "abba", "\xe2\x82\xac\xe2\x82\xac", "bab a", "a\xc3\xa9", "\xf0\x9f\x98\x80", "\x82\xac\xf0" };
    uint8_t text[600] = { 0 }, want[2000], got[2000];
    size_t n = 0, ends[600], n_ends = 0, m = 0, want_n;
    const char *stops[6];
    for (uint32_t i = 0; i < n_stops; i++) stops[i] = all_stops[(seed + i) % 6];
    const size_t len = rnd(&seed) % 200;
    while (n < len) {
        if (rnd(&seed) % 2) text[n++] = alphabet[rnd(&seed) % sizeof alphabet];
        else { const char *w = whole[rnd(&seed) % 6]; memcpy(text + n, w, strlen(w)); n += strlen(w); }
    }
    for (size_t at = 0; at < n;) { at += 1 + rnd(&seed) % (seed & 64 ? 1 : 7); ends[n_ends++] = at < n ? at : n; }
    int hit, ref_hit;
    size_t stop_at = ref_stop(text, n, ends, n_ends, stops, n_stops, &ref_hit);
    want_n = ref_clean(text, stop_at, want);

    hl_outring r;
    char buf[64];
    CHECK(hl_outring_init(mem, &r, 7) == HLLM_OK);
    CHECK(hl_outring_reserve(&r, stops, n_stops) == HLLM_OK);
    hl_outring_start(&r, stops, n_stops);
    hit = 0;
    for (size_t e = 0, at = 0; e < n_ends && !hit; at = ends[e++]) {
        hit = hl_outring_push(&r, (const char *)text + at, ends[e] - at);
        size_t took = hl_outring_take(&r, buf, 5 + rnd(&seed) % 40);
        CHECK(buf[took] == 0 && hl_utf8_valid(buf, took));
        memcpy(got + m, buf, took);
        m += took;
    }
    hl_outring_finish(&r);
    for (size_t took; (took = hl_outring_take(&r, buf, sizeof buf)) != 0; m += took) { CHECK(hl_utf8_valid(buf, took)); memcpy(got + m, buf, took); }
    CHECK_MSG(hit == ref_hit && m == want_n && memcmp(got, want, m) == 0, "seed %llu: %zu bytes, expected %zu; stop %d, expected %d", (unsigned long long)seed, m, want_n, hit, ref_hit);
    hl_outring_destroy(&r);
}

/* Stop texts that begin alike, repeat and contain each other, over two letters: against the reference, which knows no state. */
static void random_stops(uint64_t seed)
{
    enum { N = 1500 };
    static char own[HL_MAX_STOPS][HL_MAX_STOP_BYTES + 1];
    static uint8_t text[N], got[N + 1];                 /* the NUL */
    const char *stops[HL_MAX_STOPS];
    size_t ends[N], n_ends = 0, m = 0;
    const uint32_t n_stops = 1 + (uint32_t)(rnd(&seed) % HL_MAX_STOPS), period = 1 + (uint32_t)(rnd(&seed) % 9);
    uint8_t unit[9];
    for (uint32_t i = 0; i < period; i++) unit[i] = "ab"[rnd(&seed) % 2];
    for (size_t i = 0; i < N; i++) text[i] = rnd(&seed) % 40 ? unit[i % period] : "abc"[rnd(&seed) % 3];
    for (uint32_t i = 0; i < n_stops; i++) {           /* pieces of such a text, mostly spoilt at the end, some as long as may be */
        const size_t len = rnd(&seed) % 8 ? 8 + rnd(&seed) % 40 : 8 + rnd(&seed) % (HL_MAX_STOP_BYTES - 7), at = rnd(&seed) % period;
        for (size_t k = 0; k < len; k++) own[i][k] = (char)(rnd(&seed) % 200 ? unit[(at + k) % period] : "abc"[rnd(&seed) % 3]);
        if (rnd(&seed) % 64) own[i][len - 1] = rnd(&seed) % 8 ? 'd' : 'c';           /* no text has a d */
        own[i][len] = 0;
        stops[i] = own[i];
    }
    for (size_t at = 0; at < N;) { at += rnd(&seed) % (seed & 64 ? 3 : 60); ends[n_ends++] = at < N ? at : N; }      /* empty pieces, too */
    hl_outring r;
    CHECK(hl_outring_init(mem, &r, 64) == HLLM_OK && hl_outring_reserve(&r, stops, 1) == HLLM_OK && hl_outring_reserve(&r, stops, n_stops) == HLLM_OK);
    const uint64_t calls = hl_mem_calls(mem);
    for (uint32_t skip = 0; skip < n_stops; skip += 1 + n_stops / 2) {             /* again with fewer, from a ring that stopped in the middle */
        int hit = 0, ref_hit;
        const size_t want = ref_stop(text, N, ends, n_ends, stops + skip, n_stops - skip, &ref_hit);
        hl_outring_start(&r, stops + skip, n_stops - skip);
        m = 0;
        for (size_t e = 0, at = 0; e < n_ends && !hit; at = ends[e++]) hit = hl_outring_push(&r, (const char *)text + at, ends[e] - at);
        hl_outring_finish(&r);
        for (size_t took; (took = hl_outring_take(&r, (char *)got + m, sizeof got - m)) != 0;) m += took;
        CHECK_MSG(hit == ref_hit && m == want && memcmp(got, text, m) == 0, "seed %llu: %zu bytes, expected %zu; stop %d, expected %d", (unsigned long long)seed, m, want, hit, ref_hit);
        n_hits += hit;
        n_runs++;
    }
    CHECK(hl_mem_calls(mem) == calls);
    hl_outring_destroy(&r);
}

/* The worst that a vocabulary and 64 stop texts can do: a token of 1 MiB that is nearly all of them everywhere; and one that at every other
 * place has 64 ways to go on, none of them right. */
static void work(void)
{
    enum { N = 1 << 20 };
    static char own[HL_MAX_STOPS][HL_MAX_STOP_BYTES + 1], got[N + 1];
    const char *stops[HL_MAX_STOPS];
    char *piece = malloc(N);
    REQUIRE(piece != NULL);
    for (int wide = 0; wide < 2; wide++) {
        hl_outring r;
        for (int i = 0; i < HL_MAX_STOPS; i++) {
            memset(own[i], 'a', HL_MAX_STOP_BYTES);
            own[i][wide ? 1 : HL_MAX_STOP_BYTES - 1] = (char)(wide ? 128 + i : 'b');
            stops[i] = own[i];
        }
        for (size_t i = 0; i < N; i++) piece[i] = wide && i % 2 ? 'x' : 'a';
        CHECK(hl_outring_init(mem, &r, N) == HLLM_OK && hl_outring_reserve(&r, stops, HL_MAX_STOPS) == HLLM_OK);
        double s[2];
        for (int all = 0; all < 2; all++) {
            hl_outring_start(&r, stops, all ? HL_MAX_STOPS : 1);
            const clock_t start = clock();
            CHECK(!hl_outring_push(&r, piece, N));
            s[all] = (double)(clock() - start) / CLOCKS_PER_SEC;
        }
        CHECK_MSG(s[1] < 30 * s[0] + 0.01, "one: %.4f s, all: %.4f s", s[0], s[1]);      /* 0.010 and 0.011 s, 0.010 and 0.05 s; each by itself: 64 times */
        CHECK(r.n_hold == (wide ? 0 : HL_MAX_STOP_BYTES - 1));
        CHECK(hl_outring_push(&r, wide ? own[0] : "b", wide ? HL_MAX_STOP_BYTES : 1));
        size_t m = 0;
        for (size_t took; (took = hl_outring_take(&r, got + m, sizeof got - m)) != 0;) m += took;
        CHECK_MSG(m == (wide ? N : N - (HL_MAX_STOP_BYTES - 1)) && memcmp(got, piece, m) == 0, "%zu", m);
        hl_outring_destroy(&r);
    }
    free(piece);
}

/* All ways to cut one text in two and in three. */
static void all_splits(void)
{
    static const char text[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z\xe2\x82" "b\xf0\x9f\x98" "c\xed\xa0\x80" "d\xff" "\xc3";
    const size_t n = sizeof text - 1;
    uint8_t want[200];
    const size_t want_n = ref_clean((const uint8_t *)text, n, want);
    for (size_t i = 0; i <= n; i++)
        for (size_t j = i; j <= n; j++) {
            hl_outring r;
            char buf[200];
            CHECK(hl_outring_init(mem, &r, n) == HLLM_OK);
            hl_outring_start(&r, NULL, 0);
            hl_outring_push(&r, text, i);
            hl_outring_push(&r, text + i, j - i);
            hl_outring_push(&r, text + j, n - j);
            hl_outring_finish(&r);
            size_t m = hl_outring_take(&r, buf, sizeof buf);
            CHECK_MSG(m == want_n && memcmp(buf, want, m) == 0, "cut at %zu and %zu", i, j);
            hl_outring_destroy(&r);
        }
}

static void room(void)
{
    hl_outring r;
    static char got[1 << 20], want[1 << 20];
    size_t n = 0, m = 0;
    const char *stop = "aaaaaaaaaaaaaaab";
    uint64_t seed = 5;
    CHECK(hl_outring_init(mem, &r, 100) == HLLM_OK && hl_outring_reserve(&r, &stop, 1) == HLLM_OK);
    hl_outring_start(&r, &stop, 1);
    for (int waits = 0; n < 500000;) {
        char piece[100];
        size_t len = 1 + rnd(&seed) % 100;
        memset(piece, rnd(&seed) % 3 ? 'a' : 0xff, len);
        if (!hl_outring_has_room(&r, 100)) {           /* the host wakes up and takes a little */
            CHECK(r.n > 30000);
            for (int k = 0; k < 200; k++) m += hl_outring_take(&r, got + m, 200);
            CHECK(++waits < 10000);
            continue;
        }
        for (size_t i = 0; i < len; i++) { if (piece[i] == 'a') want[n++] = 'a'; else { memcpy(want + n, "\xef\xbf\xbd", 3); n += 3; } }
        CHECK(!hl_outring_push(&r, piece, len));
    }
    hl_outring_finish(&r);
    for (size_t took; (took = hl_outring_take(&r, got + m, 1000)) != 0;) m += took;
    CHECK_MSG(m == n && memcmp(got, want, n) == 0, "%zu of %zu", m, n);
    hl_outring_destroy(&r);
}

int main(void)
{
    REQUIRE(hl_mem_new(NULL, &mem) == HLLM_OK);
    for (uint64_t i = 1; i <= 20000; i++) random_pieces(i, (uint32_t)(i % 7));
    for (uint64_t i = 1; i <= 500; i++) random_stops(i);
    CHECK_MSG(n_runs > 900 && n_hits > n_runs / 4 && n_hits < n_runs / 10 * 9, "%d of %d runs were stopped", n_hits, n_runs);
    work();
    all_splits();
    room();
    CHECK(hl_mem_live_bytes(mem) == 0);
    hl_mem_free(mem);
    return check_done();
}
