/* kernels_simd.h: the vector kernels, written once over v16, a vector of the 16 virtual lanes.
 *
 * Included by kernels_avx2.c and kernels_avx512.c after they define, for their instruction set:
 *   v16, v16_zero, v16_set1, v16_load, v16_store, v16_load_n and v16_store_n (the first n lanes;
 *   the others read as 0), v16_add, v16_mul, v16_sub, v16_fma, v16_max (a > b ? a : b),
 *   v16_first (lanes < n of a, the others of b), v16_select_at_least (a where x >= least, else b),
 *   v16_exp2_scale (adds the integer in the low bits of n to the exponent of e), v16_halves (the
 *   lanes 0-7 and 8-15), v16_load_bf16, v16_load_f16 and v16_load_i8 (16 elements, widened),
 *   v16_div, v16_negative_abs;
 *   TILE_ROWS: most rows of one register tile; TILE_VECTORS(rows): v16 columns for that many rows.
 */
#include "engine/cache/block.h"
#include "engine/compute/kernels.h"

#include <stdint.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* The first n of 16 elements, the first of them number `at`; nothing past them is read. */
ALWAYS_INLINE v16 load_right_n(const attn_dtype dtype, const void *w, size_t at, size_t n)
{
    if (dtype == ATTN_F32)
        return v16_load_n((const float *)w + at, n);
    const size_t size = dtype == ATTN_Q8 ? 1 : 2;
    uint16_t elements[16] = {0};
    __builtin_memcpy(elements, (const char *)w + at * size, n * size);
    return dtype == ATTN_BF16  ? v16_load_bf16(elements)
           : dtype == ATTN_F16 ? v16_load_f16(elements)
                               : v16_load_i8((const int8_t *)elements);
}

/* 16 elements of a right-hand matrix, the first of them number `at`. */
ALWAYS_INLINE v16 load_right(const attn_dtype dtype, const void *w, size_t at)
{
    switch (dtype) {
    case ATTN_BF16:
        return v16_load_bf16((const uint16_t *)w + at);
    case ATTN_F16:
        return v16_load_f16((const uint16_t *)w + at);
    case ATTN_Q8:
        return v16_load_i8((const int8_t *)w + at);
    default:
        return v16_load((const float *)w + at);
    }
}

/* A register tile: R rows by NV vectors of outputs. w[v] points to the tile's v-th column block of
 * the right-hand matrix, whose rows are ldw elements apart. Every output runs over i in order.
 * `tail`: of the last vector only tail_n lanes may be read. */
ALWAYS_INLINE void tile(const int R, const int NV, const attn_dtype dtype, const bool tail,
                        size_t tail_n, size_t k, const float *x, size_t ldx, const void *const *w,
                        size_t ldw, v16 acc[][TILE_MAX_VECTORS])
{
    for (size_t i = 0; i < k; i++) {
        v16 right[TILE_MAX_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++)
            right[v] = tail && v == NV - 1 ? load_right_n(dtype, w[v], i * ldw, tail_n)
                                           : load_right(dtype, w[v], i * ldw);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            v16 left = v16_set1(x[(size_t)r * ldx + i]);
#pragma GCC unroll 8
            for (int v = 0; v < NV; v++)
                acc[r][v] = v16_fma(left, right[v], acc[r][v]);
        }
    }
}

typedef struct tile_call {
    size_t k;
    const float *x;
    size_t ldx;
    const void *w[TILE_MAX_VECTORS];
    size_t ldw;
    float *y; /* vector v of row r goes to y + r * ldy + 16 v */
    size_t ldy;
    size_t tail_n; /* lanes of the last vector that are outputs */
    float scale;
} tile_call;

typedef enum tile_mode { TILE_SET, TILE_SCALE, TILE_ADD } tile_mode;

/* Computes one tile and stores it: y = sum, y = sum * scale, or y += sum (in sequence). `narrow`:
 * the right-hand rows end at tail_n, so nothing past it may be read. */
ALWAYS_INLINE void run_tile(const int R, const int NV, const attn_dtype dtype, const tile_mode mode,
                            const bool tail, const bool narrow, const tile_call *t)
{
    v16 acc[TILE_ROWS][TILE_MAX_VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) {
            const float *y = t->y + (size_t)r * t->ldy + 16 * (size_t)v;
            if (mode != TILE_ADD)
                acc[r][v] = v16_zero();
            else
                acc[r][v] = tail && v == NV - 1 ? v16_load_n(y, t->tail_n) : v16_load(y);
        }
    }
    tile(R, NV, dtype, tail && narrow, t->tail_n, t->k, t->x, t->ldx, t->w, t->ldw, acc);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) {
            float *y = t->y + (size_t)r * t->ldy + 16 * (size_t)v;
            v16 result = mode == TILE_SCALE ? v16_mul(acc[r][v], v16_set1(t->scale)) : acc[r][v];
            if (tail && v == NV - 1)
                v16_store_n(y, result, t->tail_n);
            else
                v16_store(y, result);
        }
    }
}

/* Calls RUN(R) with a constant R for each number of rows that tile_rows gives. */
#if TILE_ROWS == 12
#define FOR_ROWS(rows, RUN) \
    switch (rows) {         \
    case 1:                 \
        RUN(1);             \
        break;              \
    case 2:                 \
        RUN(2);             \
        break;              \
    case 3:                 \
        RUN(3);             \
        break;              \
    case 4:                 \
        RUN(4);             \
        break;              \
    case 6:                 \
        RUN(6);             \
        break;              \
    case 8:                 \
        RUN(8);             \
        break;              \
    default:                \
        RUN(12);            \
        break;              \
    }
#else
#define FOR_ROWS(rows, RUN) \
    switch (rows) {         \
    case 1:                 \
        RUN(1);             \
        break;              \
    case 2:                 \
        RUN(2);             \
        break;              \
    case 3:                 \
        RUN(3);             \
        break;              \
    case 4:                 \
        RUN(4);             \
        break;              \
    default:                \
        RUN(6);             \
        break;              \
    }
#endif

/* The rows of the next tile when m are left. */
static size_t tile_rows(size_t m)
{
    return m >= TILE_ROWS ? TILE_ROWS : m >= 8 ? 8 : m >= 6 ? 6 : m >= 4 ? 4 : m;
}

/* Columns [0, n) of R rows, in tiles as wide as the registers allow. `t` has x, ldx, k, ldw, ldy;
 * the column block at c starts with element c of the right-hand matrix `w`. */
ALWAYS_INLINE void run_columns(const int R, const attn_dtype dtype, const tile_mode mode,
                               const bool narrow, tile_call *t, const void *w, size_t n, float *y)
{
    const int NV = TILE_VECTORS(R);
    const size_t size = attn_dtype_size(dtype);
    size_t c = 0;
    for (; c + 16 * (size_t)NV <= n; c += 16 * (size_t)NV) {
        for (int v = 0; v < NV; v++)
            t->w[v] = (const char *)w + (c + 16 * (size_t)v) * size;
        t->y = y + c;
        run_tile(R, NV, dtype, mode, false, narrow, t);
    }
    for (; c < n; c += 16) {
        t->w[0] = (const char *)w + c * size;
        t->y = y + c;
        t->tail_n = n - c < 16 ? n - c : 16;
        run_tile(R, 1, dtype, mode, true, narrow, t);
    }
}

#define SIMD_MATMUL(name, dtype)                                                                  \
    static void name(size_t m, size_t n, size_t k, const float *x, size_t ldx, const void *panel, \
                     float *y, size_t ldy)                                                        \
    {                                                                                             \
        tile_call t = {.k = k, .ldx = ldx, .ldw = ATTN_PANEL, .ldy = ldy};                        \
        for (size_t r = 0, rows; r < m; r += rows) {                                              \
            rows = tile_rows(m - r);                                                              \
            t.x = x + r * ldx;                                                                    \
            FOR_ROWS(rows, RUN_##dtype)                                                           \
        }                                                                                         \
    }
#define RUN_ATTN_F32(R) run_columns(R, ATTN_F32, TILE_SET, false, &t, panel, n, y + r * ldy)
#define RUN_ATTN_BF16(R) run_columns(R, ATTN_BF16, TILE_SET, false, &t, panel, n, y + r * ldy)
#define RUN_ATTN_F16(R) run_columns(R, ATTN_F16, TILE_SET, false, &t, panel, n, y + r * ldy)
SIMD_MATMUL(simd_matmul_f32, ATTN_F32)
SIMD_MATMUL(simd_matmul_bf16, ATTN_BF16)
SIMD_MATMUL(simd_matmul_f16, ATTN_F16)

/* 16 columns of R rows from a q8 panel, column block `c` first. */
ALWAYS_INLINE void run_q8(const int R, size_t k, const float *x, size_t ldx, const void *panel,
                          size_t c, size_t n, float *y, size_t ldy)
{
    v16 total[TILE_ROWS], sum[TILE_ROWS][TILE_MAX_VECTORS];
    const char *group = panel;
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
        total[r] = v16_zero();
    for (size_t first = 0; first < k; first += ATTN_Q8_GROUP) {
        size_t inputs = k - first < ATTN_Q8_GROUP ? k - first : ATTN_Q8_GROUP;
        const float *scales = (const float *)(const void *)group;
        const void *values = group + ATTN_PANEL * sizeof *scales + c;
#pragma GCC unroll 12
        for (int r = 0; r < R; r++)
            sum[r][0] = v16_zero();
        tile(R, 1, ATTN_Q8, false, 16, inputs, x + first, ldx, &values, ATTN_PANEL, sum);
        v16 scale = v16_load(scales + c);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++)
            total[r] = v16_fma(sum[r][0], scale, total[r]);
        group += ATTN_PANEL * (sizeof *scales + inputs);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
        v16_store_n(y + (size_t)r * ldy, total[r], n);
}

static void simd_matmul_q8(size_t m, size_t n, size_t k, const float *x, size_t ldx,
                           const void *panel, float *y, size_t ldy)
{
    /* A sum and a total for each row: half as many rows fit the registers. */
    for (size_t r = 0, rows; r < m; r += rows) {
        rows = m - r < TILE_ROWS / 2 ? tile_rows(m - r) : TILE_ROWS / 2;
        for (size_t c = 0; c < n; c += 16) {
            size_t columns = n - c < 16 ? n - c : 16;
#define RUN(R) run_q8(R, k, x + r * ldx, ldx, panel, c, columns, y + r * ldy + c, ldy)
            FOR_ROWS(rows, RUN)
#undef RUN
        }
    }
}

/* Multiplies the sums of 16 keys by their scales (q8). */
ALWAYS_INLINE void scale_keys(const int R, size_t head_dim, const void *block, float scale,
                              float *s, size_t lds)
{
    v16 key_scales = v16_load(attn_block_scales(head_dim, block));
    for (int r = 0; r < R; r++) {
        v16 sum = v16_mul(v16_load(s + (size_t)r * lds), key_scales);
        v16_store(s + (size_t)r * lds, v16_mul(sum, v16_set1(scale)));
    }
}

ALWAYS_INLINE void run_pages(const int R, const attn_dtype dtype, tile_call *t,
                             const void *const *blocks, size_t n_pages, float *s)
{
    const tile_mode mode = dtype == ATTN_Q8 ? TILE_SET : TILE_SCALE;
    const int NV = TILE_VECTORS(R);
    size_t p = 0;
    for (; p + (size_t)NV <= n_pages; p += (size_t)NV) {
        for (int v = 0; v < NV; v++)
            t->w[v] = blocks[p + (size_t)v];
        t->y = s + 16 * p;
        run_tile(R, NV, dtype, mode, false, false, t);
    }
    for (; p < n_pages; p++) {
        t->w[0] = blocks[p];
        t->y = s + 16 * p;
        run_tile(R, 1, dtype, mode, false, false, t);
    }
    for (p = 0; dtype == ATTN_Q8 && p < n_pages; p++)
        scale_keys(R, t->k, blocks[p], t->scale, s + 16 * p, t->ldy);
}

#define SIMD_SCORES(name, dtype)                                                               \
    static void name(size_t m, size_t head_dim, float scale, const float *q,                   \
                     const void *const *blocks, size_t n_pages, float *s, size_t lds)          \
    {                                                                                          \
        tile_call t = {.k = head_dim, .ldx = head_dim, .ldw = 16, .ldy = lds, .scale = scale}; \
        for (size_t r = 0, rows; r < m; r += rows) {                                           \
            rows = tile_rows(m - r);                                                           \
            t.x = q + r * head_dim;                                                            \
            FOR_ROWS(rows, RUN_SCORES_##dtype)                                                 \
        }                                                                                      \
    }
#define RUN_SCORES_ATTN_F32(R) run_pages(R, ATTN_F32, &t, blocks, n_pages, s + r * lds)
#define RUN_SCORES_ATTN_BF16(R) run_pages(R, ATTN_BF16, &t, blocks, n_pages, s + r * lds)
#define RUN_SCORES_ATTN_F16(R) run_pages(R, ATTN_F16, &t, blocks, n_pages, s + r * lds)
#define RUN_SCORES_ATTN_Q8(R) run_pages(R, ATTN_Q8, &t, blocks, n_pages, s + r * lds)
SIMD_SCORES(simd_scores_f32, ATTN_F32)
SIMD_SCORES(simd_scores_bf16, ATTN_BF16)
SIMD_SCORES(simd_scores_f16, ATTN_F16)
SIMD_SCORES(simd_scores_q8, ATTN_Q8)

#define SIMD_MIX(name, dtype)                                                              \
    static void name(size_t m, size_t n, size_t head_dim, const float *p, size_t ldp,      \
                     const void *block, float *o)                                          \
    {                                                                                      \
        const void *v = attn_block_v(dtype, head_dim, block);                              \
        float weights[ATTN_QUERY_ROWS * 16];                                               \
        if (dtype == ATTN_Q8) {                                                            \
            scale_weights(m, n, p, ldp, attn_block_scales(head_dim, block) + 16, weights); \
            p = weights;                                                                   \
            ldp = 16;                                                                      \
        }                                                                                  \
        tile_call t = {.k = n, .ldx = ldp, .ldw = head_dim, .ldy = head_dim};              \
        for (size_t r = 0, rows; r < m; r += rows) {                                       \
            rows = tile_rows(m - r);                                                       \
            t.x = p + r * ldp;                                                             \
            FOR_ROWS(rows, RUN_MIX_##dtype)                                                \
        }                                                                                  \
    }
#define RUN_MIX(R, dtype) run_columns(R, dtype, TILE_ADD, true, &t, v, head_dim, o + r * head_dim)
#define RUN_MIX_ATTN_F32(R) RUN_MIX(R, ATTN_F32)
#define RUN_MIX_ATTN_BF16(R) RUN_MIX(R, ATTN_BF16)
#define RUN_MIX_ATTN_F16(R) RUN_MIX(R, ATTN_F16)
#define RUN_MIX_ATTN_Q8(R) RUN_MIX(R, ATTN_Q8)

/* Multiplies weights by the scales of their values (q8). */
static void scale_weights(size_t m, size_t n, const float *p, size_t ldp, const float *scales,
                          float *weights)
{
    for (size_t r = 0; r < m; r++) {
        for (size_t j = 0; j < n; j++)
            weights[r * 16 + j] = p[r * ldp + j] * scales[j];
    }
}

SIMD_MIX(simd_mix_f32, ATTN_F32)
SIMD_MIX(simd_mix_bf16, ATTN_BF16)
SIMD_MIX(simd_mix_f16, ATTN_F16)
SIMD_MIX(simd_mix_q8, ATTN_Q8)

/* attn_exp on 16 lanes: the same operations in the same order. */
ALWAYS_INLINE v16 v16_exp(v16 x)
{
    v16 shifted = v16_fma(x, v16_set1(ATTN_EXP_LOG2E), v16_set1(ATTN_EXP_MAGIC));
    v16 n = v16_sub(shifted, v16_set1(ATTN_EXP_MAGIC));
    v16 r = v16_fma(n, v16_set1(-ATTN_EXP_LN2_HIGH), x);
    r = v16_fma(n, v16_set1(-ATTN_EXP_LN2_LOW), r);
    v16 e = v16_set1(ATTN_EXP_C6);
    e = v16_fma(e, r, v16_set1(ATTN_EXP_C5));
    e = v16_fma(e, r, v16_set1(ATTN_EXP_C4));
    e = v16_fma(e, r, v16_set1(ATTN_EXP_C3));
    e = v16_fma(e, r, v16_set1(ATTN_EXP_C2));
    e = v16_fma(e, r, v16_set1(1.0f));
    e = v16_fma(e, r, v16_set1(1.0f));
    return v16_select_at_least(x, v16_set1(ATTN_EXP_MIN), v16_exp2_scale(e, shifted), v16_zero());
}

/* The fixed tree: i + (i+8), then 4, 2, 1. */
ALWAYS_INLINE float v16_sum(v16 x)
{
    __m256 low, high;
    v16_halves(x, &low, &high);
    __m256 eight = _mm256_add_ps(low, high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

ALWAYS_INLINE float v16_largest(v16 x)
{
    __m256 low, high;
    v16_halves(x, &low, &high);
    __m256 eight = _mm256_max_ps(low, high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

static bool simd_softmax(size_t n, float *s, float *max, float *sum)
{
    const v16 lowest = v16_set1(-__builtin_inff());
    size_t whole = n & ~(size_t)15, rest = n - whole;
    v16 largest = lowest, probe = v16_zero();
    for (size_t i = 0; i < whole; i += 16) {
        v16 x = v16_load(s + i);
        probe = v16_fma(x, v16_zero(), probe);
        largest = v16_max(x, largest);
    }
    if (rest > 0) {
        v16 x = v16_load(s + whole);
        probe = v16_fma(v16_first(x, v16_zero(), rest), v16_zero(), probe);
        largest = v16_max(v16_first(x, lowest, rest), largest);
    }
    float top = v16_largest(largest);
    v16 shift = v16_set1(top), lanes = v16_zero();
    for (size_t i = 0; i < whole; i += 16) {
        v16 e = v16_exp(v16_sub(v16_load(s + i), shift));
        lanes = v16_add(lanes, e);
        v16_store(s + i, e);
    }
    if (rest > 0) {
        v16 e = v16_exp(v16_sub(v16_load(s + whole), shift));
        e = v16_first(e, v16_zero(), rest);
        lanes = v16_add(lanes, e);
        v16_store(s + whole, e);
    }
    *max = top;
    *sum = v16_sum(lanes);
    return v16_sum(probe) == 0.0f;
}

static void simd_add(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i += 16) {
        size_t lanes = n - i < 16 ? n - i : 16;
        v16_store_n(y + i, v16_add(v16_load_n(y + i, lanes), v16_load_n(x + i, lanes)), lanes);
    }
}

static void simd_swiglu(size_t n, float *gate, const float *up)
{
    for (size_t i = 0; i < n; i += 16) {
        size_t lanes = n - i < 16 ? n - i : 16;
        v16 g = v16_load_n(gate + i, lanes), one = v16_set1(1.0f);
        v16 e = v16_exp(v16_negative_abs(g));
        v16 sigmoid = v16_div(v16_select_at_least(g, v16_zero(), one, e), v16_add(one, e));
        v16 y = v16_mul(v16_mul(g, sigmoid), v16_load_n(up + i, lanes));
        v16_store_n(gate + i, y, lanes);
    }
}

static void simd_merge(size_t n, float a, float *o, float b, const float *p)
{
    for (size_t i = 0; i < n; i += 16) {
        size_t lanes = n - i < 16 ? n - i : 16;
        v16 scaled = v16_mul(v16_load_n(o + i, lanes), v16_set1(a));
        v16_store_n(o + i, v16_fma(v16_set1(b), v16_load_n(p + i, lanes), scaled), lanes);
    }
}

static void simd_scale(size_t n, float a, float *o)
{
    for (size_t i = 0; i < n; i += 16) {
        size_t lanes = n - i < 16 ? n - i : 16;
        v16_store_n(o + i, v16_mul(v16_load_n(o + i, lanes), v16_set1(a)), lanes);
    }
}

static void simd_rmsnorm(size_t n, float eps, const float *x, const float *weight, float *y)
{
    v16 squares = v16_zero();
    for (size_t i = 0; i < n; i += 16) {
        v16 a = v16_load_n(x + i, n - i < 16 ? n - i : 16);
        squares = v16_fma(a, a, squares);
    }
    float mean = v16_sum(squares) / (float)n;
    float inverse = 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
    for (size_t i = 0; i < n; i += 16) {
        size_t lanes = n - i < 16 ? n - i : 16;
        v16 a = v16_mul(v16_load_n(x + i, lanes), v16_set1(inverse));
        v16_store_n(y + i, v16_mul(a, v16_load_n(weight + i, lanes)), lanes);
    }
}

static void simd_rope(size_t half, float *x, const float *cos, const float *sin)
{
    for (size_t i = 0; i < half; i += 16) {
        size_t lanes = half - i < 16 ? half - i : 16;
        v16 a = v16_load_n(x + i, lanes), b = v16_load_n(x + half + i, lanes);
        v16 c = v16_load_n(cos + i, lanes), s = v16_load_n(sin + i, lanes);
        v16_store_n(x + i, v16_sub(v16_mul(a, c), v16_mul(b, s)), lanes);
        v16_store_n(x + half + i, v16_add(v16_mul(b, c), v16_mul(a, s)), lanes);
    }
}

static bool simd_finite(size_t n, const float *x)
{
    v16 probe = v16_zero();
    for (size_t i = 0; i < n; i += 16)
        probe = v16_fma(v16_load_n(x + i, n - i < 16 ? n - i : 16), v16_zero(), probe);
    return v16_sum(probe) == 0.0f;
}

#define SIMD_KERNELS(isa)                                                                       \
    {                                                                                           \
        .name = isa,                                                                            \
        .matmul = {[ATTN_F32] = simd_matmul_f32,                                                \
                   [ATTN_BF16] = simd_matmul_bf16,                                              \
                   [ATTN_F16] = simd_matmul_f16,                                                \
                   [ATTN_Q8] = simd_matmul_q8},                                                 \
        .scores = {[ATTN_F32] = simd_scores_f32,                                                \
                   [ATTN_BF16] = simd_scores_bf16,                                              \
                   [ATTN_F16] = simd_scores_f16,                                                \
                   [ATTN_Q8] = simd_scores_q8},                                                 \
        .mix = {[ATTN_F32] = simd_mix_f32,                                                      \
                [ATTN_BF16] = simd_mix_bf16,                                                    \
                [ATTN_F16] = simd_mix_f16,                                                      \
                [ATTN_Q8] = simd_mix_q8},                                                       \
        .softmax = simd_softmax, .add = simd_add, .swiglu = simd_swiglu, .merge = simd_merge,   \
        .scale = simd_scale, .rmsnorm = simd_rmsnorm, .rope = simd_rope, .finite = simd_finite, \
    }
