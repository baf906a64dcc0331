/* kern_x86.h: quantising activations, with 256-bit vectors: the same bits as kern_plain.h. */

static inline __m256i hadd_tree(const __m256i v[8])    /* sums over each v[i], in lane i */
{
    __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

static inline int32_t hsum_i32(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

/* 16 columns of x, scaled, to nearest even */
static inline __m256i scaled_i16(const float *x, __m256 inv)
{
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inv)), b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), inv));
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
}

/* Best step of the four, and its two sums.  The first of equals wins, as in the scalar table. */
static inline __attribute__((always_inline)) int best_step(__m256i t0, __m256i t1, int32_t *xq, int32_t *qq)
{
    __m256i v[2 * Q8_STEPS];
    int32_t sum[2 * Q8_STEPS];
    UNROLL for (int k = 0; k < Q8_STEPS; k++) {
        __m256i step = _mm256_set1_epi16((int16_t)(Q8_STEP_FIRST - Q8_STEP_BY * k)), q0 = _mm256_mulhrs_epi16(t0, step), q1 = _mm256_mulhrs_epi16(t1, step);
        v[k] = _mm256_add_epi32(_mm256_madd_epi16(t0, q0), _mm256_madd_epi16(t1, q1));
        v[Q8_STEPS + k] = _mm256_add_epi32(_mm256_madd_epi16(q0, q0), _mm256_madd_epi16(q1, q1));
    }
    __m256i both = hadd_tree(v);
    __m128 x = _mm_cvtepi32_ps(_mm256_castsi256_si128(both)), q = _mm_cvtepi32_ps(_mm256_extracti128_si256(both, 1)), s = _mm_div_ps(_mm_mul_ps(x, x), q), m;
    _mm256_storeu_si256((__m256i *)(void *)sum, both);
    m = _mm_max_ps(s, _mm_shuffle_ps(s, s, 0x4E));
    m = _mm_max_ps(m, _mm_shuffle_ps(m, m, 0xB1));
    int k = __builtin_ctz((unsigned)_mm_movemask_ps(_mm_cmpeq_ps(s, m)));
    *xq = sum[k];
    *qq = sum[Q8_STEPS + k];
    return Q8_STEP_FIRST - Q8_STEP_BY * k;
}

static inline __attribute__((always_inline)) float quantize_32(int8_t *to, const float *x, int32_t isum[2])
{
    const __m256i no_sign = _mm256_set1_epi32(0x7FFFFFFF), ones = _mm256_set1_epi16(1);
    __m256i m = _mm256_setzero_si256();
    for (int i = 0; i < 32; i += 8) m = _mm256_max_epu32(m, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), no_sign));
    __m128i n = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    n = _mm_max_epu32(n, _mm_shuffle_epi32(n, 0x4E));
    n = _mm_max_epu32(n, _mm_shuffle_epi32(n, 0xB1));
    uint32_t largest = (uint32_t)_mm_cvtsi128_si32(n);
    float amax = bits_f32(largest);
    if (largest >= 0x7F800000 || amax < Q8_SMALLEST) {
        memset(to, 0, 32);
        isum[0] = isum[1] = 0;
        return largest >= 0x7F800000 ? f32_nan() : 0;
    }
    __m256 inv = _mm256_set1_ps((float)Q8_T_MAX / amax);
    __m256i t0 = scaled_i16(x, inv), t1 = scaled_i16(x + 16, inv);
    int32_t xq, qq;
    __m256i step = _mm256_set1_epi16((int16_t)best_step(t0, t1, &xq, &qq));
    __m256i q0 = _mm256_mulhrs_epi16(t0, step), q1 = _mm256_mulhrs_epi16(t1, step);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute4x64_epi64(_mm256_packs_epi16(q0, q1), 0xD8));
    isum[0] = hsum_i32(_mm256_madd_epi16(q0, ones));
    isum[1] = hsum_i32(_mm256_madd_epi16(q1, ones));
    return (float)xq / (float)qq * (amax * (1.0f / (float)Q8_T_MAX));
}

/* 8 ordinary blocks: what quantize_32 does, in the order of its operations, with the scales' arithmetic for all of them at once. */
static inline void quantize_unit(hl_q8_unit *u, const float *x, __m256 amax)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256 inv = _mm256_div_ps(_mm256_set1_ps((float)Q8_T_MAX), amax);
    __m256i t[8][2], sum[8];
    float inverse[8];
    _mm256_storeu_ps(inverse, inv);
    for (int g = 0; g < 8; g++) {
        const __m256 k = _mm256_set1_ps(inverse[g]);
        __m256i v[8], t0 = scaled_i16(x + 32 * g, k), t1 = scaled_i16(x + 32 * g + 16, k);
        UNROLL for (int i = 0; i < Q8_STEPS; i++) {
            __m256i step = _mm256_set1_epi16((int16_t)(Q8_STEP_FIRST - Q8_STEP_BY * i)), q0 = _mm256_mulhrs_epi16(t0, step), q1 = _mm256_mulhrs_epi16(t1, step);
            v[i] = _mm256_add_epi32(_mm256_madd_epi16(t0, q0), _mm256_madd_epi16(t1, q1));
            v[Q8_STEPS + i] = _mm256_add_epi32(_mm256_madd_epi16(q0, q0), _mm256_madd_epi16(q1, q1));
        }
        t[g][0] = t0;
        t[g][1] = t1;
        sum[g] = hadd_tree(v);
    }
    __m256i best_x, best_q, best = _mm256_set1_epi32(Q8_STEP_FIRST);
    __m256 most = _mm256_setzero_ps();
    __m256i by_step[8], lo[4], hi[4];                  /* sum[block][step] to by_step[step][block] */
    UNROLL for (int i = 0; i < 4; i++) {
        lo[i] = _mm256_unpacklo_epi32(sum[2 * i], sum[2 * i + 1]);
        hi[i] = _mm256_unpackhi_epi32(sum[2 * i], sum[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 2; i++) {               /* 64-bit pairs, then 128-bit halves */
        __m256i a0 = _mm256_unpacklo_epi64(lo[2 * i], lo[2 * i + 1]), a1 = _mm256_unpackhi_epi64(lo[2 * i], lo[2 * i + 1]);
        __m256i a2 = _mm256_unpacklo_epi64(hi[2 * i], hi[2 * i + 1]), a3 = _mm256_unpackhi_epi64(hi[2 * i], hi[2 * i + 1]);
        by_step[i * 4] = a0; by_step[i * 4 + 1] = a1; by_step[i * 4 + 2] = a2; by_step[i * 4 + 3] = a3;
    }
    best_x = best_q = _mm256_setzero_si256();
    UNROLL for (int i = 0; i < Q8_STEPS; i++) {
        __m256i xs = _mm256_permute2x128_si256(by_step[i], by_step[4 + i], 0x20), qs = _mm256_permute2x128_si256(by_step[i], by_step[4 + i], 0x31);
        __m256 f = _mm256_cvtepi32_ps(xs), score = _mm256_div_ps(_mm256_mul_ps(f, f), _mm256_cvtepi32_ps(qs));
        __m256 better = _mm256_cmp_ps(score, most, _CMP_GT_OQ);
        most = _mm256_blendv_ps(most, score, better);
        best_x = _mm256_blendv_epi8(best_x, xs, _mm256_castps_si256(better));
        best_q = _mm256_blendv_epi8(best_q, qs, _mm256_castps_si256(better));
        best = _mm256_blendv_epi8(best, _mm256_set1_epi32(Q8_STEP_FIRST - Q8_STEP_BY * i), _mm256_castps_si256(better));
    }
    int32_t step[8];
    __m256i halves[8];
    _mm256_storeu_si256((__m256i *)(void *)step, best);
    for (int g = 0; g < 8; g++) {
        const __m256i k = _mm256_set1_epi16((int16_t)step[g]), q0 = _mm256_mulhrs_epi16(t[g][0], k), q1 = _mm256_mulhrs_epi16(t[g][1], k);
        _mm256_storeu_si256((__m256i *)(void *)(u->q + 32 * g), _mm256_permute4x64_epi64(_mm256_packs_epi16(q0, q1), 0xD8));
        halves[g] = _mm256_hadd_epi32(_mm256_madd_epi16(q0, ones), _mm256_madd_epi16(q1, ones));       /* in each 128-bit half: 2 of the first 16, 2 of the second */
    }
    /* lanes of a pair of blocks: [first, second] of the one, of the other; both 128-bit halves added */
    __m256i pair[4], first, second;
    UNROLL for (int i = 0; i < 4; i++) {
        __m256i h = _mm256_hadd_epi32(halves[2 * i], halves[2 * i + 1]);
        pair[i] = _mm256_add_epi32(h, _mm256_permute2x128_si256(h, h, 0x01));
    }
    __m256i a = _mm256_permute2x128_si256(pair[0], pair[2], 0x20), b = _mm256_permute2x128_si256(pair[1], pair[3], 0x20);
    first = _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88));
    second = _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xDD));
    const __m256 d = _mm256_mul_ps(_mm256_div_ps(_mm256_cvtepi32_ps(best_x), _mm256_cvtepi32_ps(best_q)), _mm256_mul_ps(amax, _mm256_set1_ps(1.0f / (float)Q8_T_MAX)));
    const __m256i part[3] = { first, second, _mm256_add_epi32(first, second) };
    _mm256_storeu_ps(u->d, d);
    UNROLL for (int i = 0; i < 3; i++) {
        _mm256_storeu_ps(u->sum[i], _mm256_mul_ps(d, _mm256_cvtepi32_ps(part[i])));
        _mm256_storeu_si256((__m256i *)(void *)u->comp[i], _mm256_slli_epi32(_mm256_sub_epi32(_mm256_setzero_si256(), part[i]), 7));
    }
}

/* The largest |x| of 8 blocks, as bits. */
static inline __m256i block_maxima(const float *x)
{
    const __m256i no_sign = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i m[8];
    for (int g = 0; g < 8; g++) {
        const __m256i *p = (const __m256i *)(const void *)(x + 32 * g);
        __m256i a = _mm256_max_epu32(_mm256_and_si256(_mm256_loadu_si256(p), no_sign), _mm256_and_si256(_mm256_loadu_si256(p + 1), no_sign));
        __m256i b = _mm256_max_epu32(_mm256_and_si256(_mm256_loadu_si256(p + 2), no_sign), _mm256_and_si256(_mm256_loadu_si256(p + 3), no_sign));
        m[g] = _mm256_max_epu32(a, b);
    }
    UNROLL for (int i = 0; i < 4; i++) m[i] = _mm256_max_epu32(_mm256_unpacklo_epi32(m[2 * i], m[2 * i + 1]), _mm256_unpackhi_epi32(m[2 * i], m[2 * i + 1]));
    UNROLL for (int i = 0; i < 2; i++) m[i] = _mm256_max_epu32(_mm256_unpacklo_epi64(m[2 * i], m[2 * i + 1]), _mm256_unpackhi_epi64(m[2 * i], m[2 * i + 1]));
    return _mm256_max_epu32(_mm256_permute2x128_si256(m[0], m[1], 0x20), _mm256_permute2x128_si256(m[0], m[1], 0x31));
}

static void quantize(hl_q8_unit *out, const float *restrict x, uint32_t n)
{
    for (uint32_t ib = 0; ib < (n + 255) / 256 * 8; ib++) {
        hl_q8_unit *u = out + ib / 8;
        uint32_t g = ib % 8;
        if (g == 0 && ib + 8 <= n / 32) {              /* all of them ordinary: neither zero nor infinite */
            const __m256i largest = block_maxima(x + (size_t)ib * 32);
            const __m256 amax = _mm256_castsi256_ps(largest);
            const __m256i finite = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7F800000), largest);
            if (_mm256_movemask_ps(_mm256_and_ps(_mm256_cmp_ps(amax, _mm256_set1_ps(Q8_SMALLEST), _CMP_GE_OQ), _mm256_castsi256_ps(finite))) == 0xFF) {
                quantize_unit(u, x + (size_t)ib * 32, amax);
                ib += 7;
                continue;
            }
        }
        int32_t isum[2] = { 0, 0 };
        int8_t *q = u->q + 32 * g;
        float d = 0;
        if (ib < n / 32) d = quantize_32(q, x + (size_t)ib * 32, isum);
        else memset(q, 0, 32);
        q8_block_sums(u, g, d, isum);
    }
    for (uint32_t iu = 0; iu < (n + 255) / 256; iu++) q8_unit_sums(out + iu);
}

/* Word j of 8 lanes' vectors of 8 words to the j-th place. */
static inline void transpose_8(uint8_t *to, size_t step, const uint8_t *lanes, size_t lane_bytes)
{
    __m256i a[8], b[8];
    UNROLL for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_si256((const __m256i *)(const void *)(lanes + (size_t)i * lane_bytes));
    UNROLL for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4) {
        a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        _mm256_storeu_si256((__m256i *)(void *)(to + (size_t)i * step), _mm256_permute2x128_si256(a[i], a[i + 4], 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(to + (size_t)(i + 4) * step), _mm256_permute2x128_si256(a[i], a[i + 4], 0x31));
    }
}

static void side_by_side(void *to, const hl_q8_unit *rows, uint32_t n, uint32_t n_tok)
{
    enum { WORD = 8 * 4, GROUP = HL_Q8_WORDS * WORD };
    const size_t row_bytes = hl_q8_row_bytes(n);
    for (uint32_t it = 0, width; it < n_tok; it += width) {
        uint8_t *block = (uint8_t *)to + it * row_bytes;
        const uint8_t *from = (const uint8_t *)rows + it * row_bytes;
        width = hl_q8_width(n_tok - it);
        if (width < 8) { q8_block_of((uint32_t *)(void *)block, from, row_bytes, (n + 255) / 256, width); continue; }
        for (uint32_t iu = 0; iu < (n + 255) / 256; iu++, from += sizeof(hl_q8_unit), block += 8 * GROUP) {
            for (uint32_t g = 0; g < 8; g++) transpose_8(block + g * GROUP, WORD, from + 32 * g, row_bytes);
            for (uint32_t k = 0; k < 8; k++) transpose_8(block + (8 + k) * WORD, GROUP, from + offsetof(hl_q8_unit, d) + 32 * k, row_bytes);
        }
    }
}
