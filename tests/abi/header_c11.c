/* header_c11.c: the public header alone, first, as strict C11 (built with -Wpedantic -Werror), and every function linked. */
#include "hybrid_llm.h"
#include "hybrid_llm.h"                                /* twice is once */

#include "check.h"
#include "header_functions.h"

#define NAME(f) { #f, (void (*)(void))f },

int main(void)
{
    static const struct { const char *name; void (*address)(void); } all[] = { HEADER_FUNCTIONS(NAME) };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) CHECK_MSG(all[i].address != NULL, "%s", all[i].name);
    CHECK(strcmp(hllm_status_name(HLLM_OK), "HLLM_OK") == 0);
    CHECK(strcmp(hllm_status_name(1234), "HLLM_E_?") == 0);
    return check_done();
}
