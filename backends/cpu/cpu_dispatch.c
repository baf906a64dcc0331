/* cpu_dispatch.c: which kernel tables this build has, which of them this CPU and operating system can run, and the layout of the
 * quantised activations that they share.
 *
 * x86-64, best first: avx512bf16 (avx512 and BF16 dot products), avx512 (with VNNI), avxvnni (256 bits: CPUs without AVX-512), avx2, scalar.
 * arm64: i8mm (dotprod and smmla), dotprod, neon, scalar.  The first that the CPU supports is taken; any other that it supports can be asked for by name.
 * Built with the baseline flags of the architecture, since it runs before anything is known of the CPU; the tables' `supported`
 * entries are the checks below for the same reason.  No state but the list of names; any thread.
 */
#include "cpu/kernels.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

const hl_cpu_kernels *const hl_cpu_tables[] = { &hl_kern_avx512_bf16, &hl_kern_avx512, &hl_kern_avxvnni, &hl_kern_avx2, &hl_kern_scalar, NULL };

/* Registers that the operating system saves: XCR0. */
static uint32_t saved_registers(void)
{
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0;                     /* OSXSAVE */
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return a;
}

int hl_cpu_has_avx2(void)
{
    uint32_t a, b, c, d;
    if ((saved_registers() & 0x06) != 0x06) return 0;                                    /* XMM, YMM */
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    if (!(c >> 12 & 1) || !(c >> 28 & 1) || !(c >> 29 & 1)) return 0;                    /* FMA, AVX, F16C */
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 5 & 1);                      /* AVX2 */
}

int hl_cpu_has_avxvnni(void)
{
    uint32_t a, b, c, d;
    return hl_cpu_has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

int hl_cpu_has_avx512(void)
{
    uint32_t a, b, c, d;
    if (!hl_cpu_has_avx2() || (saved_registers() & 0xE6) != 0xE6) return 0;              /* and opmask, ZMM */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    return (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1) && (c >> 11 & 1);   /* F, DQ, BW, VL, VNNI */
}

int hl_cpu_has_avx512_bf16(void)
{
    uint32_t a, b, c, d;
    return hl_cpu_has_avx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

const hl_cpu_kernels *const hl_cpu_tables[] = { &hl_kern_neon_i8mm, &hl_kern_neon_dotprod, &hl_kern_neon, &hl_kern_scalar, NULL };

int hl_cpu_has_neon(void) { return 1; }                /* part of the architecture */
int hl_cpu_has_dotprod(void) { return (getauxval(AT_HWCAP) >> 20 & 1) != 0; }            /* HWCAP_ASIMDDP */
int hl_cpu_has_i8mm(void) { return hl_cpu_has_dotprod() && (getauxval(AT_HWCAP2) >> 13 & 1) != 0; }     /* HWCAP2_I8MM */
#else
const hl_cpu_kernels *const hl_cpu_tables[] = { &hl_kern_scalar, NULL };
#endif

const hl_cpu_kernels *hl_cpu_pick(const char *isa)
{
    for (size_t i = 0; hl_cpu_tables[i]; i++)
        if ((!isa || strcmp(isa, hl_cpu_tables[i]->isa) == 0) && hl_cpu_tables[i]->supported()) return hl_cpu_tables[i];
    return NULL;
}

const char *hl_cpu_isa_pick(const char *isa)
{
    const hl_cpu_kernels *k = hl_cpu_pick(isa);
    return k ? k->isa : NULL;
}

static char isa_list[64];                              /* written once, before anyone reads it */

static void list_make(void)
{
    for (size_t i = 0; hl_cpu_tables[i]; i++) {
        if (!hl_cpu_tables[i]->supported()) continue;
        if (isa_list[0]) strcat(isa_list, " ");
        strcat(isa_list, hl_cpu_tables[i]->isa);
    }
}

const char *hl_cpu_isa_list(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, list_make);
    return isa_list;
}

/* ---- quantised rows ---- */

size_t hl_q8_row_bytes(uint32_t n) { return hl_align_up(((size_t)n + 255) / 256 * sizeof(hl_q8_unit), 64); }

