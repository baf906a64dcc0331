/* api.h: what the files of the public functions share: checks of arguments, all of them texts in the error slot of the call's handle.
 */
#ifndef HL_API_H
#define HL_API_H

#include <string.h>

#include "run/runtime.h"

/* full = the caller's options, or defaults when in is NULL.  Both begin with struct_size; `bytes` is the size of ours. */
static inline hl_status take_options(hl_error *err, const char *name, const void *in, void *full, uint32_t bytes)
{
    uint32_t given = bytes;
    memset(full, 0, bytes);
    if (in) memcpy(&given, in, sizeof given);
    if (given < bytes) return hl_fail(err, HLLM_E_VERSION, "%s.struct_size is %u, expected %u (was it set?)", name, given, bytes);
    if (in) {
        const unsigned char *tail = (const unsigned char *)in;
        if (given > bytes + 4096) return hl_fail(err, HLLM_E_VERSION, "%s.struct_size is %u, this library knows %u", name, given, bytes);
        for (uint32_t i = bytes; i < given; i++)
            if (tail[i]) return hl_fail(err, HLLM_E_VERSION, "%s.struct_size is %u and byte %u is set: this library (%s) knows only %u", name, given, i, hllm_version(), bytes);
        memcpy(full, in, bytes);
    }
    memcpy(full, &bytes, sizeof bytes);
    return HLLM_OK;
}

/* Prepares an output struct: its size is checked, the rest cleared. */
static inline hl_status open_struct(hl_error *err, const char *name, void *out, uint32_t bytes)
{
    uint32_t given;
    if (!out) return hl_fail(err, HLLM_E_ARG, "%s is NULL", name);
    memcpy(&given, out, sizeof given);
    if (given < bytes || given > bytes + 4096) return hl_fail(err, HLLM_E_VERSION, "%s.struct_size is %u, expected %u (was it set?)", name, given, bytes);
    memset((char *)out + sizeof given, 0, given - sizeof given);
    return HLLM_OK;
}

static inline void give_struct(void *out, const void *full, uint32_t bytes)
{
    memcpy((char *)out + sizeof(uint32_t), (const char *)full + sizeof(uint32_t), bytes - sizeof(uint32_t));
}

static inline hl_status null_arg(hl_error *err, const char *name) { return hl_fail(err, HLLM_E_ARG, "%s is NULL", name); }

#define NEED_ARG(err, x) do { if (!(x)) return null_arg(err, #x); } while (0)

/* A name or path: UTF-8, not NULL. */
static inline hl_status check_name(hl_error *err, const char *what, const char *s)
{
    if (!s) return null_arg(err, what);
    const size_t n = strnlen(s, 65537);
    if (n > 65536) return hl_fail(err, HLLM_E_LIMIT, "%s is longer than 65536 bytes", what);
    if (!hl_utf8_valid(s, n)) return hl_fail(err, HLLM_E_ARG, "%s is not valid UTF-8", what);
    return HLLM_OK;
}

/* Text with a length: NULL only with 0. */
static inline hl_status check_text(hl_error *err, const char *what, const void *p, size_t n, size_t limit)
{
    if (!p && n) return hl_fail(err, HLLM_E_ARG, "%s is NULL but its length is %zu", what, n);
    if (n > limit) return hl_fail(err, HLLM_E_LIMIT, "%s has %zu bytes, the limit is %zu", what, n, limit);
    return HLLM_OK;
}

/* The one error that comes with a count: needed of what there is. */
static inline hl_status settle_buffer(hl_error *err, hl_status rc, size_t needed, size_t cap)
{
    if (rc == HLLM_E_BUFFER) return hl_fail(err, rc, "the buffer is too small: it has %zu, %zu are needed", cap, needed);
    return hl_error_settle(err, rc);
}

static inline hl_status check_flags(hl_error *err, uint32_t flags, uint32_t known)
{
    return flags & ~known ? hl_fail(err, HLLM_E_ARG, "flags is %#x: unknown bits %#x", flags, flags & ~known) : HLLM_OK;
}

enum { MAX_TEXT = 1 << 30 };

static inline hllm_model *mutable_model(const hllm_model *m) { return (hllm_model *)(uintptr_t)m; }    /* its error slot is mutable */

#endif
