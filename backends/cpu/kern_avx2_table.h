/* kern_avx2_table.h: the second part of kern_avx2.h: kernels and table, once a product of bytes is known. */
#include "kern_packed.h"

static inline void pk_halves(uint8_t *a, uint8_t *b, vi v)
{
    const vi within = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    v = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, within), 0xD8);
    _mm_store_si128((__m128i *)(void *)a, _mm256_castsi256_si128(v));
    _mm_store_si128((__m128i *)(void *)b, _mm256_extracti128_si256(v, 1));
}

#define HALF_TILES(TARGET, name, ...) HALF_TILE(TARGET, name, 1, __VA_ARGS__) HALF_TILE(TARGET, name, 2, __VA_ARGS__) HALF_TILE(TARGET, name, 3, __VA_ARGS__)
#define HALF_TILE_NAMES(name) half_##name##_1, half_##name##_2, half_##name##_3

#include "kern_half.h"
#include "kern_x86.h"
#include "kern_sparse.h"

static inline __attribute__((always_inline)) uint64_t read_streams(const uint8_t *p, size_t each, const size_t n)
{
    __m256i acc[8][2], sum = zero();
    UNROLL for (size_t s = 0; s < n; s++) acc[s][0] = acc[s][1] = zero();
    for (size_t i = 0; i + 64 <= each; i += 64)
        UNROLL for (size_t s = 0; s < n; s++) {
            acc[s][0] = _mm256_add_epi64(acc[s][0], _mm256_loadu_si256((const __m256i *)(const void *)(p + s * each + i)));
            acc[s][1] = _mm256_add_epi64(acc[s][1], _mm256_loadu_si256((const __m256i *)(const void *)(p + s * each + i + 32)));
        }
    UNROLL for (size_t s = 0; s < n; s++) sum = _mm256_add_epi64(sum, _mm256_add_epi64(acc[s][0], acc[s][1]));
    uint64_t part[4];
    memcpy(part, &sum, sizeof part);
    return part[0] + part[1] + part[2] + part[3];
}

static uint64_t probe_read(const void *data, size_t bytes, uint32_t streams)
{
    size_t n = streams >= 8 ? 8 : streams >= 4 ? 4 : streams >= 2 ? 2 : 1, each = bytes / n / 64 * 64;
    if (n == 8) return read_streams(data, each, 8);
    if (n == 4) return read_streams(data, each, 4);
    return n == 2 ? read_streams(data, each, 2) : read_streams(data, each, 1);
}

const hl_cpu_kernels AVX2_TABLE = {
    .isa = AVX2_NAME, .supported = AVX2_SUPPORTED, .group = G, .pack = pack_any, .quantize = quantize, .side_by_side = side_by_side, .matmul_q8 = matmul_q8, .matmul_f32 = matmul_f32,
    .matmul_half = matmul_half, .matmul_scratch = scratch_floats, .axpy = axpy, .gather = gather, .rms_norm = rms_norm, .layer_norm = layer_norm, .ffn_act = ffn_act, .rope = rope,
    .softcap = softcap, .kv_store = kv_store, .attention = attention, .attention_scratch = attention_scratch,
    .probe_int8 = probe_int8, .probe_read = probe_read,
};
