/* presplit_words.c: the pre-splitters for tests/presplit_differential.py, which compiles this with lib/model/presplit.c.
 * `presplit_words categories` prints the general category number and White_Space of every code point, one line each;
 * `presplit_words NAME` reads lines of hexadecimal code points and prints where the words end, counted in code points. */
#include "model/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t at;
static hl_status word(void *user, const hl_cell *cells, size_t n)
{
    (void)user; (void)cells;
    at += n;
    printf(" %zu", at);
    return HLLM_OK;
}

int main(int argc, char **argv)
{
    static char line[1 << 20], text[1 << 20];
    static hl_cell cells[1 << 20];
    uint32_t flags;
    if (argc != 2) return 2;
    if (strcmp(argv[1], "categories") == 0) {
        for (uint32_t cp = 0; cp < 0x110000; cp++) {
            bool surrogate = cp >= 0xd800 && cp < 0xe000;
            size_t n = surrogate ? 0 : hl_cells_from_text(text, hl_utf8_encode(cp, text), cells);
            printf("%u %d\n", n ? cells[0] >> HL_CELL_CAT_SHIFT & 31 : 28, n && cells[0] & HL_CELL_SPACE);
        }
        return 0;
    }
    const hl_splitter *sp = hl_splitter_find(argv[1], strlen(argv[1]), &flags);
    if (!sp) return 2;
    while (fgets(line, sizeof line, stdin)) {
        size_t n = 0;
        for (char *s = line, *e; n + 4 < sizeof text; s = e) {
            unsigned long cp = strtoul(s, &e, 16);
            if (e == s) break;
            n += hl_utf8_encode((uint32_t)cp, text + n);
        }
        at = 0;
        if (hl_presplit(sp, cells, hl_cells_from_text(text, n, cells), word, NULL) != HLLM_OK) return 1;
        printf("\n");
    }
    return 0;
}
