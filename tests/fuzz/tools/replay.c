/* Runs a fuzz target on the files named, and on all files of the directories named, without libFuzzer: for compilers that lack it,
 * and for finds that must stay fixed. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int n_run;

static void run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    size_t n = 0, cap = 1 << 16, got;
    uint8_t *data = malloc(cap);
    if (!f || !data) { fprintf(stderr, "cannot read %s\n", path); exit(1); }
    while ((got = fread(data + n, 1, cap - n, f)) > 0) {
        n += got;
        if (n == cap && !(data = realloc(data, cap *= 2))) exit(1);
    }
    fclose(f);
    uint8_t *exact = malloc(n ? n : 1);                /* so that reading beyond the end shows */
    if (!exact) exit(1);
    memcpy(exact, data, n);
    LLVMFuzzerTestOneInput(exact, n);
    n_run++;
    free(exact);
    free(data);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        if (!d) { run_file(argv[i]); continue; }
        for (struct dirent *e; (e = readdir(d));) {
            char path[4096];
            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            run_file(path);
        }
        closedir(d);
    }
    printf("%d inputs\n", n_run);
    return n_run == 0;
}
