/* kernels_scalar.c: the reference: plain loops that read like the formulas (kernels.h).
 * fmaf is one rounding, in hardware where the processor has it and exact in libm where not. */
#include "engine/compute/kernels.h"

#include "engine/base/half.h"
#include "engine/cache/block.h"
#include "engine/model/linear.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Element `at` of a panel that is not q8. */
static inline float element(attn_dtype dtype, const void *panel, size_t at)
{
    if (dtype == ATTN_F32)
        return ((const float *)panel)[at];
    uint16_t bits = ((const uint16_t *)panel)[at];
    return dtype == ATTN_BF16 ? attn_bf16_value(bits) : attn_f16_value(bits);
}

static inline void matmul(attn_dtype dtype, size_t m, size_t n, size_t k, const float *x,
                          size_t ldx, const void *panels, float *y, size_t ldy)
{
    for (size_t r = 0; r < m; r++) {
        for (size_t c = 0; c < n; c++) {
            const void *panel = (const char *)panels + c / ATTN_PANEL * attn_panel_bytes(dtype, k);
            float sum = 0.0f;
            for (size_t i = 0; i < k; i++)
                sum = fmaf(x[r * ldx + i], element(dtype, panel, i * ATTN_PANEL + c % ATTN_PANEL),
                           sum);
            y[r * ldy + c] = sum;
        }
    }
}

static void scalar_matmul_f32(size_t m, size_t n, size_t k, const float *x, size_t ldx,
                              const void *panels, float *y, size_t ldy)
{
    matmul(ATTN_F32, m, n, k, x, ldx, panels, y, ldy);
}

static void scalar_matmul_bf16(size_t m, size_t n, size_t k, const float *x, size_t ldx,
                               const void *panels, float *y, size_t ldy)
{
    matmul(ATTN_BF16, m, n, k, x, ldx, panels, y, ldy);
}

static void scalar_matmul_f16(size_t m, size_t n, size_t k, const float *x, size_t ldx,
                              const void *panels, float *y, size_t ldy)
{
    matmul(ATTN_F16, m, n, k, x, ldx, panels, y, ldy);
}

static void scalar_matmul_q8(size_t m, size_t n, size_t k, const float *x, size_t ldx,
                             const void *panels, float *y, size_t ldy)
{
    for (size_t r = 0; r < m; r++) {
        for (size_t c = 0; c < n; c++) {
            const unsigned char *group =
                (const unsigned char *)panels + c / ATTN_PANEL * attn_panel_bytes(ATTN_Q8, k);
            float total = 0.0f;
            for (size_t first = 0; first < k; first += ATTN_Q8_GROUP) {
                size_t end = first + ATTN_Q8_GROUP < k ? first + ATTN_Q8_GROUP : k;
                const float *scales = (const float *)(const void *)group;
                const int8_t *values =
                    (const int8_t *)(group + ATTN_PANEL * sizeof *scales) + c % ATTN_PANEL;
                float sum = 0.0f;
                for (size_t i = first; i < end; i++)
                    sum = fmaf(x[r * ldx + i], (float)values[(i - first) * ATTN_PANEL], sum);
                total = fmaf(sum, scales[c % ATTN_PANEL], total);
                group += ATTN_PANEL * (sizeof *scales + (end - first));
            }
            y[r * ldy + c] = total;
        }
    }
}

static inline float cache_element(attn_dtype dtype, const void *array, size_t at)
{
    return dtype == ATTN_Q8 ? (float)((const int8_t *)array)[at] : element(dtype, array, at);
}

static inline void scores(attn_dtype dtype, size_t m, size_t head_dim, float scale, const float *q,
                          const void *const *keys, size_t n_pages, float *s, size_t lds)
{
    for (size_t r = 0; r < m; r++) {
        for (size_t p = 0; p < n_pages; p++) {
            for (size_t j = 0; j < ATTN_LANES; j++) {
                float sum = 0.0f;
                for (size_t i = 0; i < head_dim; i++)
                    sum = fmaf(q[r * head_dim + i],
                               cache_element(dtype, keys[p], i * ATTN_LANES + j), sum);
                if (dtype == ATTN_Q8)
                    sum *= attn_block_scales(head_dim, keys[p])[j];
                s[r * lds + p * ATTN_LANES + j] = sum * scale;
            }
        }
    }
}

static inline void mix(attn_dtype dtype, size_t m, size_t n, size_t head_dim, const float *p,
                       size_t ldp, const void *const *values, float *o)
{
    for (size_t r = 0; r < m; r++) {
        for (size_t j = 0; j < n; j++) {
            const void *v = values[j / ATTN_LANES];
            const size_t at = j % ATTN_LANES;
            float weight = p[r * ldp + j];
            if (dtype == ATTN_Q8)
                weight *= attn_block_scales(head_dim, v)[at];
            for (size_t c = 0; c < head_dim; c++)
                o[r * head_dim + c] =
                    fmaf(weight, cache_element(dtype, v, at * head_dim + c), o[r * head_dim + c]);
        }
    }
}

#define SCALAR_CACHE(suffix, dtype)                                                            \
    static void scalar_scores_##suffix(size_t m, size_t head_dim, float scale, const float *q, \
                                       const void *const *keys, const void *const *ahead,      \
                                       size_t n_pages, float *s, size_t lds)                   \
    {                                                                                          \
        (void)ahead;                                                                           \
        scores(dtype, m, head_dim, scale, q, keys, n_pages, s, lds);                           \
    }                                                                                          \
    static void scalar_mix_##suffix(size_t m, size_t n, size_t head_dim, const float *p,       \
                                    size_t ldp, const void *const *values,                     \
                                    const void *const *ahead, float *o)                        \
    {                                                                                          \
        (void)ahead;                                                                           \
        mix(dtype, m, n, head_dim, p, ldp, values, o);                                         \
    }
SCALAR_CACHE(f32, ATTN_F32)
SCALAR_CACHE(bf16, ATTN_BF16)
SCALAR_CACHE(f16, ATTN_F16)
SCALAR_CACHE(q8, ATTN_Q8)

/* exp(x) = 2^n * e^r with n = round(x * log2(e)) and r = x - n * ln(2), |r| <= 0.35, e^r by its
 * Taylor polynomial of degree 6. Relative error below 3e-7. Below ATTN_EXP_MIN the result is 0,
 * which keeps it out of the subnormal range. NaN gives NaN or 0; callers detect it elsewhere. */
float attn_exp(float x)
{
    if (!(x >= ATTN_EXP_MIN))
        return 0.0f;
    float shifted = fmaf(x, ATTN_EXP_LOG2E, ATTN_EXP_MAGIC);
    float n = shifted - ATTN_EXP_MAGIC;
    float r = fmaf(n, -ATTN_EXP_LN2_HIGH, x);
    r = fmaf(n, -ATTN_EXP_LN2_LOW, r);
    float e = ATTN_EXP_C6;
    e = fmaf(e, r, ATTN_EXP_C5);
    e = fmaf(e, r, ATTN_EXP_C4);
    e = fmaf(e, r, ATTN_EXP_C3);
    e = fmaf(e, r, ATTN_EXP_C2);
    e = fmaf(e, r, 1.0f);
    e = fmaf(e, r, 1.0f);
    /* The low bits of `shifted` hold n; adding them to the exponent field multiplies by 2^n. */
    uint32_t n_bits, e_bits;
    memcpy(&n_bits, &shifted, 4);
    memcpy(&e_bits, &e, 4);
    e_bits += n_bits << 23;
    memcpy(&e, &e_bits, 4);
    return e;
}

/* The one tree in which 16 lanes are summed. */
static float tree_sum(const float lanes[ATTN_LANES])
{
    float t[ATTN_LANES];
    memcpy(t, lanes, sizeof t);
    for (size_t width = ATTN_LANES / 2; width >= 1; width /= 2) {
        for (size_t i = 0; i < width; i++)
            t[i] += t[i + width];
    }
    return t[0];
}

static bool scalar_softmax(size_t n, float *s, float *max, float *sum)
{
    float largest = -INFINITY, probe = 0.0f;
    for (size_t i = 0; i < n; i++) {
        probe = fmaf(s[i], 0.0f, probe); /* turns NaN at the first infinity or NaN */
        largest = s[i] > largest ? s[i] : largest;
    }
    float lanes[ATTN_LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        s[i] = attn_exp(s[i] - largest);
        lanes[i % ATTN_LANES] += s[i];
    }
    *max = largest;
    *sum = tree_sum(lanes);
    return probe == 0.0f;
}

static void scalar_add(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void scalar_swiglu(size_t n, float *gate, const float *up)
{
    for (size_t i = 0; i < n; i++) {
        float e = attn_exp(-fabsf(gate[i]));
        float sigmoid = (gate[i] >= 0.0f ? 1.0f : e) / (1.0f + e);
        gate[i] = gate[i] * sigmoid * up[i];
    }
}

static void scalar_merge(size_t n, float a, float *o, float b, const float *p)
{
    for (size_t i = 0; i < n; i++)
        o[i] = fmaf(b, p[i], o[i] * a);
}

static void scalar_scale(size_t n, float a, float *o)
{
    for (size_t i = 0; i < n; i++)
        o[i] *= a;
}

static void scalar_rmsnorm(size_t n, float eps, const float *x, const float *weight, float *y)
{
    float lanes[ATTN_LANES] = {0};
    for (size_t i = 0; i < n; i++)
        lanes[i % ATTN_LANES] = fmaf(x[i], x[i], lanes[i % ATTN_LANES]);
    float inverse = 1.0f / sqrtf(tree_sum(lanes) / (float)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * inverse * weight[i];
}

static void scalar_rope(size_t half, float *x, const float *cos, const float *sin)
{
    for (size_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
    }
}

static bool scalar_finite(size_t n, const float *x)
{
    float probe = 0.0f;
    for (size_t i = 0; i < n; i++)
        probe = fmaf(x[i], 0.0f, probe);
    return probe == 0.0f;
}

const attn_kernels attn_kernels_scalar = {
    .name = "scalar",
    .matmul = {[ATTN_F32] = scalar_matmul_f32,
               [ATTN_BF16] = scalar_matmul_bf16,
               [ATTN_F16] = scalar_matmul_f16,
               [ATTN_Q8] = scalar_matmul_q8},
    .scores = {[ATTN_F32] = scalar_scores_f32,
               [ATTN_BF16] = scalar_scores_bf16,
               [ATTN_F16] = scalar_scores_f16,
               [ATTN_Q8] = scalar_scores_q8},
    .softmax = scalar_softmax,
    .mix = {[ATTN_F32] = scalar_mix_f32,
            [ATTN_BF16] = scalar_mix_bf16,
            [ATTN_F16] = scalar_mix_f16,
            [ATTN_Q8] = scalar_mix_q8},
    .add = scalar_add,
    .swiglu = scalar_swiglu,
    .merge = scalar_merge,
    .scale = scalar_scale,
    .rmsnorm = scalar_rmsnorm,
    .rope = scalar_rope,
    .finite = scalar_finite,
};
