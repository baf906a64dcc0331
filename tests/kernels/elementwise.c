/* Norms, activation functions, soft cap and rope of every table, against double; over all exponents where a function is computed. */
#include "oracle.h"

static const uint32_t sizes[] = { 1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 576, 2048 };

static void check_norms(const hl_cpu_kernels *k)
{
    enum { MAX = 2048 };
    static float x[MAX], y[MAX], w[MAX], b[MAX];
    for (uint32_t is = 0; is < HL_COUNT(sizes); is++) {
        uint32_t n = sizes[is];
        for (int kind = 0; kind < INPUT_KINDS; kind++) {
            for (int with = 0; with < 4; with++) {
                float eps = kind == INPUT_SUBNORMAL ? 0 : 1e-5f;
                double mean = 0, square = 0, variance = 0;
                fill_input(x, n, kind);
                fill_input(w, n, INPUT_NORMAL);
                fill_input(b, n, INPUT_NORMAL);
                for (uint32_t i = 0; i < n; i++) { mean += x[i]; square += (double)x[i] * x[i]; }
                mean /= n;
                for (uint32_t i = 0; i < n; i++) variance += (x[i] - mean) * (x[i] - mean);
                memcpy(y, x, n * 4);
                if (kind == INPUT_SUBNORMAL && square == 0) continue;
                k->rms_norm(y, y, with & 1 ? w : NULL, eps, n);
                for (uint32_t i = 0; i < n; i++) {
                    double want = x[i] / sqrt(square / n + eps) * (with & 1 ? w[i] : 1);
                    CHECK_MSG(near(y[i], want, 1.01 * ulp(want)), "%s rms %u, input %d: %a, not %a", k->isa, n, kind, (double)y[i], want);
                }
                if (variance / n < 1e-3 * square / n && eps == 0) continue;                /* nothing left to norm */
                k->layer_norm(y, x, with & 1 ? w : NULL, with & 2 ? b : NULL, eps, n);
                for (uint32_t i = 0; i < n; i++) {
                    double scale = 1 / sqrt(variance / n + eps), v = (x[i] - mean) * scale * (with & 1 ? w[i] : 1), want = v + (with & 2 ? b[i] : 0);
                    double rounding = n * 0x1p-52 * (fabs(mean) + fabs(x[i])) * scale * fabs(with & 1 ? w[i] : 1);
                    CHECK_MSG(near(y[i], want, 1.01 * ulp(want) + rounding), "%s layer %u, input %d: %a, not %a", k->isa, n, kind, (double)y[i], want);
                }
            }
        }
    }
}

static double silu(double x) { return x < -1e5 ? -0.0 : x / (1 + exp(-x)); }
static double gelu(double x) { return x < -1e5 ? -0.0 : x / (1 + exp(-2 * 0.7978845608028654 * (x + 0.044715 * x * x * x))); }

/* GELU's argument of exp is rounded three times; its error is multiplied by its size. */
static double gelu_bound(double x)
{
    double u2 = 2 * 0.7978845608028654 * (x + 0.044715 * x * x * x), s = 1 / (1 + exp(u2));
    return 2.5 * ulp(gelu(x)) + fabs(gelu(x)) * (fabs(u2) > 300 ? 0 : fabs(u2) * s * 2 * 0x1p-23);
}

static bool silu_ok(float got, float x) { return near(got, silu(x), 2.5 * ulp(silu(x))); }
static bool tanh_ok(float got, float x) { return near(got, tanh(x), 2.0 * ulp(tanh(x))); }

static void check_functions(const hl_cpu_kernels *k)
{
    enum { N = 256 };
    float x[N], y[N], one, up[N];
    double worst[3] = { 0 };
    for (uint64_t bits = 0; bits < 1ull << 32; bits += (uint64_t)N * 10007) {
        for (uint32_t i = 0; i < N; i++) {
            uint32_t b = (uint32_t)(bits + i * 10007ull);
            memcpy(&x[i], &b, 4);
            up[i] = random_normal();
        }
        k->ffn_act(HL_FFN_SILU, y, x, NULL, N);
        for (uint32_t i = 0; i < N; i++) {
            CHECK_MSG(silu_ok(y[i], x[i]), "%s silu(%a) = %a", k->isa, (double)x[i], (double)y[i]);
            if (isfinite(x[i])) worst[0] = fmax(worst[0], fabs(y[i] - silu(x[i])) / ulp(silu(x[i])));
        }
        uint32_t alone = random_below(N);
        k->ffn_act(HL_FFN_SILU, &one, x + alone, up + alone, 1);
        k->ffn_act(HL_FFN_SILU, y, x, up, N - bits % 3);
        CHECK_MSG(alone >= N - bits % 3 || same_bits(one, y[alone]) || isnan(one), "%s: a place changes bits", k->isa);
        k->ffn_act(HL_FFN_GELU, y, x, NULL, N);
        for (uint32_t i = 0; i < N; i++) {
            CHECK_MSG(near(y[i], gelu(x[i]), gelu_bound(x[i])), "%s gelu(%a) = %a, not %a", k->isa, (double)x[i], (double)y[i], gelu(x[i]));
        }
        k->ffn_act(HL_FFN_RELU, y, x, NULL, N);
        for (uint32_t i = 0; i < N; i++) CHECK(isnan(x[i]) ? isnan(y[i]) : y[i] == (x[i] > 0 ? x[i] : 0));
        k->ffn_act(HL_FFN_RELU2, y, x, up, N);
        for (uint32_t i = 0; i < N; i++) {
            float r = x[i] > 0 ? x[i] : 0;
            CHECK(isnan(x[i]) ? isnan(y[i]) : same_bits(y[i], r * r * up[i]) || isnan(y[i]) == isnan(r * r * up[i]));
        }
        memcpy(y, x, sizeof y);
        k->softcap(y, N, 1);
        for (uint32_t i = 0; i < N; i++) {
            CHECK_MSG(tanh_ok(y[i], x[i]), "%s tanh(%a) = %a", k->isa, (double)x[i], (double)y[i]);
            if (isfinite(x[i])) worst[1] = fmax(worst[1], fabs(y[i] - tanh(x[i])) / ulp(tanh(x[i])));
        }
        memcpy(y, x, sizeof y);
        k->softcap(y, N - bits % 5, 30);
        for (uint32_t i = 0; i < N - bits % 5; i++) {
            /* the quotient may be subnormal: half of its unit, times 30 */
            double want = 30 * tanh((double)x[i] / 30);
            CHECK_MSG(near(y[i], want, 4 * ulp(want) + 15 * 0x1p-149), "%s softcap(%a) = %a", k->isa, (double)x[i], (double)y[i]);
        }
    }
    /* The steep parts once more, densely. */
    for (float from = -110; from < 110; from += 0.25f) {
        for (uint32_t i = 0; i < N; i++) x[i] = from + (float)i * (0.25f / N);
        k->ffn_act(HL_FFN_SILU, y, x, NULL, N);
        for (uint32_t i = 0; i < N; i++) {
            CHECK_MSG(silu_ok(y[i], x[i]), "%s silu(%a) = %a", k->isa, (double)x[i], (double)y[i]);
            worst[0] = fmax(worst[0], fabs(y[i] - silu(x[i])) / ulp(silu(x[i])));
        }
        for (uint32_t i = 0; i < N; i++) y[i] = x[i] / 10;
        k->softcap(y, N, 1);
        for (uint32_t i = 0; i < N; i++) {
            CHECK_MSG(tanh_ok(y[i], x[i] / 10), "%s tanh(%a) = %a", k->isa, (double)(x[i] / 10), (double)y[i]);
            worst[1] = fmax(worst[1], fabs(y[i] - tanh(x[i] / 10)) / ulp(tanh(x[i] / 10)));
        }
    }
    CHECK_MSG(!silu_ok((float)silu(1.5) + 3 * 0x1p-23f, 1.5f) && !tanh_ok((float)tanh(0.3f) + 3 * 0x1p-25f, 0.3f), "control");
    printf("%s: silu %.2f ulp, tanh %.2f ulp at worst\n", k->isa, worst[0], worst[1]);
}

static void check_rope(const hl_cpu_kernels *k)
{
    static const uint32_t dims[][2] = { { 64, 64 }, { 80, 32 }, { 40, 40 }, { 128, 128 }, { 6, 2 }, { 256, 128 } };
    for (uint32_t id = 0; id < HL_COUNT(dims); id++) {
        uint32_t head_dim = dims[id][0], n_rot = dims[id][1], n_heads = 3, half = n_rot / 2;
        float x[3 * 256], y[3 * 256], cs[256];
        for (uint32_t kind = HL_ROPE_PAIRS; kind <= HL_ROPE_HALVES; kind++) {
            fill_input(x, n_heads * head_dim, INPUT_NORMAL);
            for (uint32_t i = 0; i < half; i++) { cs[2 * i] = (float)cos(i * 1.7); cs[2 * i + 1] = (float)sin(i * 1.7); }
            memcpy(y, x, sizeof y);
            k->rope(y, n_heads, head_dim, n_rot, kind, cs);
            for (uint32_t ih = 0; ih < n_heads; ih++) {
                const float *xh = x + ih * head_dim, *yh = y + ih * head_dim;
                for (uint32_t i = 0; i < half; i++) {
                    uint32_t a = kind == HL_ROPE_PAIRS ? 2 * i : i, b = kind == HL_ROPE_PAIRS ? 2 * i + 1 : i + half;
                    double c = cs[2 * i], s = cs[2 * i + 1], bound = 3 * 0x1p-24 * (fabs((double)xh[a]) + fabs((double)xh[b]));
                    CHECK_MSG(near(yh[a], xh[a] * c - xh[b] * s, bound) && near(yh[b], xh[a] * s + xh[b] * c, bound), "%s rope %u/%u kind %u", k->isa, n_rot, head_dim, kind);
                }
                for (uint32_t i = n_rot; i < head_dim; i++) CHECK(yh[i] == xh[i]);
            }
        }
    }
}

static void check_table(const hl_cpu_kernels *k)
{
    check_norms(k);
    check_functions(k);
    check_rope(k);
}

int main(int argc, char **argv) { return run_tables(argc, argv, check_table); }
