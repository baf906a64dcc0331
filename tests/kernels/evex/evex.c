/* evex.c: the AVX-VNNI table in the encoding of AVX-512, for CPUs that have the same operation only so (see kern_avxvnni.c). */
#define AVXVNNI_EVEX
#include "../../../backends/cpu/kern_avxvnni.c"
