/* profile.h: what this machine was measured to do, kept in a file. */
#ifndef HL_PROFILE_H
#define HL_PROFILE_H

#include "run/runtime.h"

enum { HL_PROFILE_MAX_RATES = 64, HL_PROFILE_MAX_DISKS = 16 };

typedef struct hl_profile_rate { char isa[24]; uint32_t n_threads; double read, gather, int8_ops; } hl_profile_rate;
typedef struct hl_profile_disk { uint64_t device; double bytes_per_s; } hl_profile_disk;

struct hllm_profile {
    hl_error err;
    hllm_runtime *rt;
    bool from_file;
    uint32_t n_rates, n_disks;
    hl_profile_rate rates[HL_PROFILE_MAX_RATES];
    hl_profile_disk disks[HL_PROFILE_MAX_DISKS];
    double sync_s, disk_bytes_per_s;
};

/* path NULL: measured, kept nowhere.  model_path NULL: no disk.  A file that is for another machine or version, or no profile, is replaced. */
hl_status hl_profile_open(hllm_runtime *rt, const char *path, const char *model_path, bool remeasure, hllm_profile **out);
void hl_profile_free(hllm_profile *p);

#endif
