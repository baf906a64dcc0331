// header_cxx17.cpp: the public header alone, first, as strict C++17 (built with -Wpedantic -Werror), and every function linked.
#include "hybrid_llm.h"
#include "hybrid_llm.h"

#include <cstdio>
#include <cstring>
#include <type_traits>

#include "header_functions.h"

static_assert(std::is_standard_layout<hllm_generate_options>::value && std::is_trivial<hllm_generate_options>::value, "plain data");
static_assert(std::is_same<hllm_status, int32_t>::value, "a status is an int32_t");

#define NAME(f) { #f, reinterpret_cast<void (*)()>(f) },

int main()
{
    static const struct { const char *name; void (*address)(); } all[] = { HEADER_FUNCTIONS(NAME) };
    for (const auto &f : all)
        if (!f.address) { std::fprintf(stderr, "%s is NULL\n", f.name); return 1; }
    hllm_runtime *rt = nullptr;
    hllm_runtime_options opt = {};
    opt.struct_size = sizeof opt;
    opt.n_threads = 1;
    if (hllm_runtime_create(&opt, &rt) != HLLM_OK || !rt) return 1;
    hllm_runtime_free(rt);
    return std::strcmp(hllm_status_name(HLLM_E_ARG), "HLLM_E_ARG") != 0;
}
