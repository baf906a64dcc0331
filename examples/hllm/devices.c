/* devices.c: `hllm devices`: what this machine is and what was measured on it: once, and again with --remeasure (the machine's profile). */
#include "cli.h"

#include <string.h>

int cmd_devices(const cli_options *o)
{
    cli c;
    hllm_machine_info m = { .struct_size = sizeof m };
    hllm_profile *p = NULL;
    hllm_profile_info i = { .struct_size = sizeof i };
    hllm_profile_rate v = { .struct_size = sizeof v }, r = { .struct_size = sizeof r };
    const double gib = 1024.0 * 1024 * 1024, kib = 1024;
    int code = cli_open_runtime(&c, o);
    if (code) return code;
    hllm_status rc = hllm_runtime_machine(c.rt, &m);
    if (rc != HLLM_OK) code = cli_fail(&c, AT_RUNTIME, rc);
    if (!code) code = cli_open_profile(&c, o->remeasure, NULL, &p);
    if (!code) {
        hllm_profile_get_info(p, &i);
        for (uint32_t j = 0; j < i.n_rates; j++)       /* of the threads and kernels that compute */
            if (hllm_profile_get_rate(p, j, &r) == HLLM_OK && r.n_threads == m.n_threads && strcmp(r.isa, m.isa) == 0) v = r;
    }
    if (code) { }
    else if (o->json) {
        json_open('{');
        json_key_str("cpu", m.cpu);
        json_key_str("isa", m.isa);
        json_key_str("isa_known", m.isa_known);
        json_key_uint("cores", m.n_cores);
        json_key_uint("cpus", m.n_cpus);
        json_key_uint("threads", m.n_threads);
        json_key_uint("l1d_bytes", m.l1d_bytes);
        json_key_uint("l2_bytes", m.l2_bytes);
        json_key_uint("l3_bytes", m.l3_bytes);
        json_key_uint("memory_bytes", m.memory_bytes);
        json_key_uint("memory_available_bytes", m.memory_available_bytes);
        json_key_num("read_gb_s", v.read_bytes_per_s * 1e-9, 3);
        json_key_num("int8_gops", v.int8_ops_per_s * 1e-9, 3);
        json_key_num("gather_gb_s", v.gather_bytes_per_s * 1e-9, 3);
        json_key_num("sync_us", i.sync_s * 1e6, 3);
        json_key("rates");
        json_open('[');
        for (uint32_t j = 0; j < i.n_rates; j++) {
            if (hllm_profile_get_rate(p, j, &r) != HLLM_OK) continue;
            json_open('{');
            json_key_str("isa", r.isa);
            json_key_uint("threads", r.n_threads);
            json_key_num("read_gb_s", r.read_bytes_per_s * 1e-9, 3);
            json_key_num("gather_gb_s", r.gather_bytes_per_s * 1e-9, 3);
            json_key_num("int8_gops", r.int8_ops_per_s * 1e-9, 3);
            json_close();
        }
        json_close();
        json_key("gpus");
        json_open('[');
        json_close();
        json_close();
    } else {
        printf("cpu           %s\n", m.cpu ? m.cpu : "");
        printf("cores         %u (%u logical), %u compute threads\n", m.n_cores, m.n_cpus, m.n_threads);
        printf("kernels       %s (this CPU can: %s)\n", m.isa, m.isa_known);
        printf("caches        L1 %.0f KiB, L2 %.0f KiB, L3 %.0f KiB\n", (double)m.l1d_bytes / kib, (double)m.l2_bytes / kib, (double)m.l3_bytes / kib);
        printf("memory        %.2f GiB, %.2f GiB available\n", (double)m.memory_bytes / gib, (double)m.memory_available_bytes / gib);
        printf("reads         %.2f GB/s in order, %.2f GB/s of rows in random order (measured%s)\n", v.read_bytes_per_s * 1e-9, v.gather_bytes_per_s * 1e-9,
               i.from_file ? " before" : "");
        printf("8-bit dots    %.1f Gop/s\n", v.int8_ops_per_s * 1e-9);
        printf("hand-over     %.2f us between compute threads\n", i.sync_s * 1e6);
        printf("GPUs          none: this version computes on the CPU\n");
    }
    hllm_profile_free(p);
    cli_close(&c);
    return code;
}
