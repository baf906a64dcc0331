/* set.c: loaded in front of a test program (LD_PRELOAD), it sets the environment's locale before main, as many hosts do: without it a
 * C program stays in the C locale and running tests under de_DE proves nothing. */
#include <locale.h>

__attribute__((constructor)) static void set_locale(void) { setlocale(LC_ALL, ""); }
