/* kernels_simd.h: the vector kernels, written once over v16, a vector of the 16 virtual lanes.
 *
 * Included by kernels_avx2.c and kernels_avx512.c after they define, for their instruction set:
 *   v16, v16_zero, v16_set1, v16_load, v16_store, v16_load_n and v16_store_n (the first n lanes;
 *   the others read as 0), v16_add, v16_mul, v16_sub, v16_fma, v16_max (a > b ? a : b),
 *   v16_first (lanes < n of a, the others of b), v16_select_at_least (a where x >= least, else b),
 *   v16_exp2_scale (adds the integer in the low bits of n to the exponent of e), v16_halves (the
 *   lanes 0-7 and 8-15), v16_load_bf16, v16_load_f16 and v16_load_i8 (16 elements, widened; those
 *   of bf16 in an order of their own, which v16_bf16_order gives and v16_from_bf16_order undoes),
 *   v16_div, v16_negative_abs, v16_keep (a, which stands in registers);
 *   TILE_ROWS: most rows of one register tile; TILE_VECTORS(rows): v16 columns for that many rows;
 *   FETCH_ROWS: from so many rows on a tile computes longer than its weights take to be fetched.
 */
#include "engine/cache/block.h"
#include "engine/compute/kernels.h"
#include "engine/model/linear.h"

#include <stdint.h>

/* Bytes between what few rows use of a panel and what they fetch. */
#define FETCH_AHEAD 1024
/* Inputs of a block of a panel: half of a first-level cache when they are f32. */
#define BLOCK_INPUTS 128

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* 16 elements of a right-hand matrix, the first of them number `at`, in the dtype's order. */
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

typedef struct tile_call {
    size_t k;
    const float *x; /* row r's values at x + r * ldx */
    size_t ldx;
    const void *w[TILE_MAX_VECTORS]; /* vector v's columns; rows ldw elements apart */
    size_t ldw;
    float *y; /* vector v of row r goes to y + r * ldy + 16 v */
    size_t ldy;
    /* What is fetched meanwhile: from ahead[v] + i * ahead_step a line at input i. */
    const char *ahead[TILE_MAX_VECTORS];
    size_t ahead_step;
} tile_call;

/* A register tile: R rows by NV vectors of outputs. Every output runs over k in order. At each input
 * that is a multiple of `fetch` (0: at none) lines are fetched. */
ALWAYS_INLINE void tile(const int R, const int NV, const attn_dtype dtype, const size_t fetch,
                        const tile_call *t, v16 acc[][TILE_MAX_VECTORS])
{
    const size_t k = t->k, ldx = t->ldx, ldw = t->ldw;
    const float *x = t->x;
    for (size_t i = 0; i < k; i++) {
        if (fetch != 0 && i % fetch == 0) {
#pragma GCC unroll 8
            for (int v = 0; v < NV; v++)
                __builtin_prefetch(t->ahead[v] + i * t->ahead_step, 0, 3);
        }
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) {
            v16 right = load_right(dtype, t->w[v], i * ldw);
            const float *left = x + i;
            /* Loaded once, not by each row's multiply-add. */
            if (R > 1 && dtype == ATTN_F32)
                right = v16_keep(right);
            /* Kept for all vectors, three rows' values would push a sum out of the registers. */
            if (R == 3)
                __asm__ volatile("" : "+r"(left));
#pragma GCC unroll 12
            for (int r = 0; r < R; r++)
                acc[r][v] = v16_fma(v16_set1(left[(size_t)r * ldx]), right, acc[r][v]);
        }
    }
}

ALWAYS_INLINE void load_tile(const int R, const int NV, const attn_dtype dtype, const tile_call *t,
                             v16 acc[][TILE_MAX_VECTORS])
{
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) {
            v16 sums = v16_load(t->y + (size_t)r * t->ldy + 16 * (size_t)v);
            acc[r][v] = dtype == ATTN_BF16 ? v16_bf16_order(sums) : sums;
        }
    }
}

ALWAYS_INLINE void zero_tile(const int R, const int NV, v16 acc[][TILE_MAX_VECTORS])
{
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++)
            acc[r][v] = v16_zero();
    }
}

ALWAYS_INLINE void store_tile(const int R, const int NV, const attn_dtype dtype, const tile_call *t,
                              v16 acc[][TILE_MAX_VECTORS])
{
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) {
            v16 sums = dtype == ATTN_BF16 ? v16_from_bf16_order(acc[r][v]) : acc[r][v];
            v16_store(t->y + (size_t)r * t->ldy + 16 * (size_t)v, sums);
        }
    }
}

/* Copies the first n columns of rows; outputs that do not fill a vector are computed in a buffer. */
static void copy_columns(size_t rows, size_t n, const float *from, size_t ld_from, float *to,
                         size_t ld_to)
{
    for (size_t r = 0; r < rows; r++)
        __builtin_memcpy(to + r * ld_to, from + r * ld_from, n * sizeof *to);
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

/* A tile's sums over a block of inputs: `first`: y = sum; else y goes on. A block of q8 is a group
 * of inputs with scales: y = sum * scale, or y += sum * scale, fused. */
ALWAYS_INLINE void run_sums(const int R, const int NV, const attn_dtype dtype, bool first,
                            const tile_call *t, const float *const *scales)
{
    v16 acc[TILE_ROWS][TILE_MAX_VECTORS];
    if (first || dtype == ATTN_Q8)
        zero_tile(R, NV, acc);
    else
        load_tile(R, NV, dtype, t, acc);
    tile(R, NV, dtype, R >= FETCH_ROWS || dtype != ATTN_F32 ? 1 : 0, t, acc);
#pragma GCC unroll 8
    for (int v = 0; dtype == ATTN_Q8 && v < NV; v++) {
        v16 scale = v16_load(scales[v]);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            const float *y = t->y + (size_t)r * t->ldy + 16 * (size_t)v;
            acc[r][v] = v16_fma(acc[r][v], scale, first ? v16_zero() : v16_load(y));
        }
    }
    store_tile(R, NV, dtype, t, acc);
}

/* Bytes from one block of `inputs` inputs of a panel to the next. */
ALWAYS_INLINE size_t block_bytes(const attn_dtype dtype, size_t inputs)
{
    return ATTN_PANEL * (inputs * attn_dtype_size(dtype) + (dtype == ATTN_Q8 ? sizeof(float) : 0));
}

/* Outputs [0, n) of R rows for one block of inputs, whose weights begin at `block` in the first of
 * the panels. What is fetched begins at `ahead`; NULL: a little ahead of what is used. */
ALWAYS_INLINE void run_block(const int R, const attn_dtype dtype, bool first, tile_call *t,
                             const char *block, size_t panel_bytes, size_t n, const char *ahead,
                             float *y)
{
    const int NV = TILE_VECTORS(R);
    const size_t width = 16 * (size_t)NV, ldy = t->ldy;
    for (size_t c = 0, columns; c < n; c += columns) {
        float partial[TILE_ROWS * 16];
        const float *scales[TILE_MAX_VECTORS];
        const int n_vectors = c + width <= n ? NV : 1;
        columns = n - c < 16 ? n - c : 16 * (size_t)n_vectors;
        for (int v = 0; v < n_vectors; v++) {
            size_t at = c + 16 * (size_t)v;
            const char *from = block + at / ATTN_PANEL * panel_bytes;
            at %= ATTN_PANEL;
            scales[v] = (const float *)(const void *)from + at;
            t->w[v] = from + block_bytes(dtype, 0) + at * attn_dtype_size(dtype);
            t->ahead[v] = ahead != NULL ? ahead : (const char *)t->w[v] + FETCH_AHEAD;
            ahead = ahead != NULL ? ahead + t->k * t->ahead_step : NULL;
        }
        t->y = y + c;
        if (columns < 16) {
            copy_columns((size_t)R, columns, t->y, ldy, partial, 16);
            t->y = partial;
            t->ldy = 16;
        }
        if (n_vectors == NV)
            run_sums(R, NV, dtype, first, t, scales);
        else
            run_sums(R, 1, dtype, first, t, scales);
        if (columns < 16) {
            copy_columns((size_t)R, columns, partial, 16, y + c, ldy);
            t->ldy = ldy;
        }
    }
}

/* Weights stream from memory once: a block of inputs of one panel stays in the first-level cache for
 * all tiles, while the next one is fetched. The sums of a block go on in y. Few rows make one tile,
 * which needs no blocks but for q8's groups. */
ALWAYS_INLINE void run_matmul(const attn_dtype dtype, size_t m, size_t n, size_t k, const float *x,
                              size_t ldx, const void *panels, float *y, size_t ldy)
{
    const size_t panel_bytes = attn_panel_bytes(dtype, k);
    const size_t strip = m == 1 ? 2 * ATTN_PANEL : ATTN_PANEL;
    const size_t most = dtype == ATTN_Q8 ? ATTN_Q8_GROUP : m < FETCH_ROWS ? k : BLOCK_INPUTS;
    for (size_t c = 0; c < n; c += strip) {
        const size_t columns = n - c < strip ? n - c : strip;
        const char *block = (const char *)panels + c / ATTN_PANEL * panel_bytes;
        size_t i = 0;
        do {
            const size_t inputs = k - i < most ? k - i : most, bytes = block_bytes(dtype, inputs);
            tile_call t = {.k = inputs, .ldx = ldx, .ldw = ATTN_PANEL, .ldy = ldy};
            t.ahead_step = ATTN_PANEL * attn_dtype_size(dtype);
            if (m >= FETCH_ROWS) /* each row's share of the next block, over the tiles of a row */
                t.ahead_step = t.ahead_step * TILE_ROWS / 2 / m;
            for (size_t r = 0, rows; r < m; r += rows) {
                rows = tile_rows(m - r);
                t.x = x + r * ldx + i;
                const char *ahead = m < FETCH_ROWS ? NULL : block + bytes + r * bytes / m;
#define RUN(R) run_block(R, dtype, i == 0, &t, block, panel_bytes, columns, ahead, y + r * ldy + c)
                FOR_ROWS(rows, RUN)
#undef RUN
            }
            block += bytes;
            i += inputs;
        } while (i < k);
    }
}

#define SIMD_MATMUL(name, dtype)                                                                   \
    static void name(size_t m, size_t n, size_t k, const float *x, size_t ldx, const void *panels, \
                     float *y, size_t ldy)                                                         \
    {                                                                                              \
        run_matmul(dtype, m, n, k, x, ldx, panels, y, ldy);                                        \
    }
SIMD_MATMUL(simd_matmul_f32, ATTN_F32)
SIMD_MATMUL(simd_matmul_bf16, ATTN_BF16)
SIMD_MATMUL(simd_matmul_f16, ATTN_F16)
SIMD_MATMUL(simd_matmul_q8, ATTN_Q8)

/* Few vectors are computed about as fast as memory comes, so of what is read next a line is fetched
 * every four inputs: all of q8, of wider dtypes the beginning. More would find no room and be dropped;
 * the rest is read just before it is computed (attention.c). */
#define AHEAD_INPUTS 4
#define AHEAD_STEP (64 / AHEAD_INPUTS)
#define AHEAD_FETCH(R) ((R) > 4 ? 0 : AHEAD_INPUTS)

/* Scores of R query vectors with NV pages. */
ALWAYS_INLINE void run_pages(const int R, const int NV, const attn_dtype dtype, float scale,
                             const tile_call *t)
{
    v16 acc[TILE_ROWS][TILE_MAX_VECTORS];
    const v16 factor = v16_set1(scale);
    zero_tile(R, NV, acc);
    tile(R, NV, dtype, AHEAD_FETCH(R), t, acc);
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) {
        v16 key_scales = factor;
        if (dtype == ATTN_Q8)
            key_scales = v16_load(attn_block_scales(t->k, t->w[v]));
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            if (dtype == ATTN_Q8)
                acc[r][v] = v16_mul(acc[r][v], key_scales);
            acc[r][v] = v16_mul(acc[r][v], factor);
        }
    }
    store_tile(R, NV, dtype, t, acc);
}

ALWAYS_INLINE void run_scores(const int R, const attn_dtype dtype, float scale, tile_call *t,
                              const void *const *keys, const void *const *ahead, size_t n_pages,
                              float *s)
{
    const int NV = TILE_VECTORS(R);
    for (size_t p = 0, n; p < n_pages; p += n) {
        n = p + (size_t)NV <= n_pages ? (size_t)NV : 1;
        for (size_t v = 0; v < n; v++) {
            t->w[v] = keys[p + v];
            t->ahead[v] = ahead[p + v];
        }
        t->y = s + 16 * p;
        if (n == (size_t)NV)
            run_pages(R, NV, dtype, scale, t);
        else
            run_pages(R, 1, dtype, scale, t);
    }
}

#define SIMD_SCORES(name, dtype)                                                                  \
    static void name(size_t m, size_t head_dim, float scale, const float *q,                      \
                     const void *const *keys, const void *const *ahead, size_t n_pages, float *s, \
                     size_t lds)                                                                  \
    {                                                                                             \
        tile_call t = {                                                                           \
            .k = head_dim, .ldx = head_dim, .ldw = 16, .ldy = lds, .ahead_step = AHEAD_STEP};     \
        for (size_t r = 0, rows; r < m; r += rows) {                                              \
            rows = tile_rows(m - r);                                                              \
            t.x = q + r * head_dim;                                                               \
            FOR_ROWS(rows, RUN_SCORES_##dtype)                                                    \
        }                                                                                         \
    }
#define RUN_SCORES_ATTN_F32(R) run_scores(R, ATTN_F32, scale, &t, keys, ahead, n_pages, s + r * lds)
#define RUN_SCORES_ATTN_BF16(R) \
    run_scores(R, ATTN_BF16, scale, &t, keys, ahead, n_pages, s + r * lds)
#define RUN_SCORES_ATTN_F16(R) run_scores(R, ATTN_F16, scale, &t, keys, ahead, n_pages, s + r * lds)
#define RUN_SCORES_ATTN_Q8(R) run_scores(R, ATTN_Q8, scale, &t, keys, ahead, n_pages, s + r * lds)
SIMD_SCORES(simd_scores_f32, ATTN_F32)
SIMD_SCORES(simd_scores_bf16, ATTN_BF16)
SIMD_SCORES(simd_scores_f16, ATTN_F16)
SIMD_SCORES(simd_scores_q8, ATTN_Q8)

/* Multiplies weights by the scales of their values (q8). */
static void scale_weights(size_t m, size_t n, const float *p, size_t ldp, const float *scales,
                          float *weights, size_t ldw)
{
    for (size_t r = 0; r < m; r++) {
        for (size_t j = 0; j < n; j++)
            weights[r * ldw + j] = p[r * ldp + j] * scales[j];
    }
}

/* NV vectors of R rows of o, from `column` on, over n keys in pages one after another. */
ALWAYS_INLINE void mix_tile(const int R, const int NV, const attn_dtype dtype, tile_call *t,
                            size_t n, size_t column, const void *const *values,
                            const void *const *ahead)
{
    v16 acc[TILE_ROWS][TILE_MAX_VECTORS];
    const float *x = t->x;
    load_tile(R, NV, dtype, t, acc);
    for (size_t key = 0; key < n; key += 16) {
        t->k = n - key < 16 ? n - key : 16;
        t->x = x + key;
        for (int v = 0; v < NV; v++) {
            size_t at = (column + 16 * (size_t)v) * attn_dtype_size(dtype);
            t->w[v] = (const char *)values[key / 16] + at;
            t->ahead[v] = (const char *)ahead[key / 16] + (column + 16 * (size_t)v) * t->ahead_step;
        }
        tile(R, NV, dtype, AHEAD_FETCH(R), t, acc);
    }
    t->x = x;
    store_tile(R, NV, dtype, t, acc);
}

/* Rows of a page's values of which 16 elements can be read from `column` on without leaving the
 * block: what follows a row's end counts for nothing. */
ALWAYS_INLINE size_t readable_rows(size_t head_dim, size_t column)
{
    return (16 * head_dim - column - 16) / head_dim + 1;
}

/* The columns of R rows of o from `column` on, fewer than a vector; the values of a page's last rows
 * are copied to where a whole vector can be read. */
ALWAYS_INLINE void mix_tail(const int R, const attn_dtype dtype, tile_call *t, size_t n,
                            size_t column, const void *const *values, float *o)
{
    const size_t head_dim = t->ldw, size = attn_dtype_size(dtype), columns = head_dim - column;
    const size_t readable = readable_rows(head_dim, column);
    const float *x = t->x;
    float sums[TILE_ROWS * 16] = {0};
    _Alignas(64) char last[16 * 16 * sizeof(float)];
    v16 acc[TILE_ROWS][TILE_MAX_VECTORS];
    __builtin_memset(last, 0, (16 - readable) * 16 * size);
    copy_columns((size_t)R, columns, o + column, head_dim, sums, 16);
    t->y = sums;
    t->ldy = 16;
    load_tile(R, 1, dtype, t, acc);
    for (size_t key = 0; key < n; key += 16) {
        const size_t rows = n - key < 16 ? n - key : 16;
        const size_t direct = rows < readable ? rows : readable;
        const char *from = (const char *)values[key / 16] + column * size;
        t->x = x + key;
        t->w[0] = from;
        t->k = direct;
        tile(R, 1, dtype, 0, t, acc);
        if (direct == rows)
            continue;
        for (size_t row = direct; row < rows; row++)
            __builtin_memcpy(last + (row - direct) * 16 * size, from + row * head_dim * size,
                             columns * size);
        t->x += direct;
        t->w[0] = last;
        t->ldw = 16;
        t->k = rows - direct;
        tile(R, 1, dtype, 0, t, acc);
        t->ldw = head_dim;
    }
    store_tile(R, 1, dtype, t, acc);
    copy_columns((size_t)R, columns, sums, 16, o + column, head_dim);
    t->x = x;
    t->ldy = head_dim;
}

ALWAYS_INLINE void run_mix(const int R, const attn_dtype dtype, tile_call *t, size_t n,
                           size_t head_dim, const void *const *values, const void *const *ahead,
                           float *o)
{
    const int NV = TILE_VECTORS(R);
    for (size_t c = 0, columns; c + 16 <= head_dim; c += columns) {
        columns = c + 16 * (size_t)NV <= head_dim ? 16 * (size_t)NV : 16;
        t->y = o + c;
        if (columns == 16 * (size_t)NV)
            mix_tile(R, NV, dtype, t, n, c, values, ahead);
        else
            mix_tile(R, 1, dtype, t, n, c, values, ahead);
    }
    if (head_dim % 16 != 0)
        mix_tail(R, dtype, t, n, head_dim & ~(size_t)15, values, o);
}

#define SIMD_MIX(name, dtype)                                                                   \
    static void name(size_t m, size_t n, size_t head_dim, const float *p, size_t ldp,           \
                     const void *const *values, const void *const *ahead, float *o)             \
    {                                                                                           \
        float weights[ATTN_QUERY_ROWS * ATTN_MIX_KEYS];                                         \
        for (size_t key = 0; dtype == ATTN_Q8 && key < n; key += 16)                            \
            scale_weights(m, n - key < 16 ? n - key : 16, p + key, ldp,                         \
                          attn_block_scales(head_dim, values[key / 16]), weights + key,         \
                          ATTN_MIX_KEYS);                                                       \
        tile_call t = {.ldx = ldp, .ldw = head_dim, .ldy = head_dim, .ahead_step = AHEAD_STEP}; \
        if (dtype == ATTN_Q8) {                                                                 \
            p = weights;                                                                        \
            t.ldx = ATTN_MIX_KEYS;                                                              \
        }                                                                                       \
        for (size_t r = 0, rows; r < m; r += rows) {                                            \
            rows = tile_rows(m - r);                                                            \
            t.x = p + r * t.ldx;                                                                \
            FOR_ROWS(rows, RUN_MIX_##dtype)                                                     \
        }                                                                                       \
    }
#define RUN_MIX(R, dtype) run_mix(R, dtype, &t, n, head_dim, values, ahead, o + r * head_dim)
#define RUN_MIX_ATTN_F32(R) RUN_MIX(R, ATTN_F32)
#define RUN_MIX_ATTN_BF16(R) RUN_MIX(R, ATTN_BF16)
#define RUN_MIX_ATTN_F16(R) RUN_MIX(R, ATTN_F16)
#define RUN_MIX_ATTN_Q8(R) RUN_MIX(R, ATTN_Q8)
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
