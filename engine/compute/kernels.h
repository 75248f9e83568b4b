/* kernels.h: the numeric primitives, one table per instruction set, chosen at run time.
 *
 * Every variant computes the same bits (laws L1, L2, L5). What makes that so:
 * - An output element is one fixed sequence of fused multiply-adds over the summed index, in
 *   increasing order, from +0 or from the value that stands there. Vector lanes run over outputs,
 *   never over the summed index.
 * - A reduction to one number runs in 16 virtual lanes (absolute index modulo 16), then in one
 *   tree: lanes i and i+8, then i+4, i+2, i+1.
 * - exp is one polynomial, written with the same operations everywhere (kernels_scalar.c).
 * - Division and square root are IEEE operations, no approximations; FTZ and DAZ are set on every
 *   compute thread (attn_kernels_thread_init).
 * kernels_scalar.c is the reference and reads like the formulas; kernels_simd.h is written once
 * for AVX2 and AVX-512. A new variant fills the table and adds itself to kernels.c.
 *
 * Thread: every function may run on many threads at once, on disjoint outputs.
 */
#ifndef ATTN_KERNELS_H
#define ATTN_KERNELS_H

#include "engine/engine.h"

#define ATTN_LANES 16      /* virtual lanes; also the positions of a KV page */
#define ATTN_PANEL 32      /* outputs in a packed weight panel */
#define ATTN_QUERY_ROWS 12 /* most query vectors in one call of scores and mix */
#define ATTN_MIX_KEYS 64   /* most positions in one call of mix */
#define ATTN_Q8_GROUP \
    64 /* inputs that share a scale in a q8 panel; the last group may be shorter */

typedef struct attn_kernels {
    const char *name;

    /* Panels of a linear layer: y[r][c] = sum over i of x[r][i] * panel[i][c], by the dtype of the
     * panels, whose elements are widened to f32 exactly.
     * Shapes: x [m, k] rows `ldx` apart, y [m, n] rows `ldy` apart. n / ATTN_PANEL panels stand one
     * behind the other, the last of which may be used in part: [k, ATTN_PANEL] for f32, bf16 and
     * f16. A q8 panel is, for each group of ATTN_Q8_GROUP inputs, 32 f32 scales and then
     * [inputs, ATTN_PANEL] int8; there each group's sum runs from +0 and y adds sum * scale, fused,
     * group after group. */
    void (*matmul[ATTN_DTYPES])(size_t m, size_t n, size_t k, const float *x, size_t ldx,
                                const void *panels, float *y, size_t ldy);

    /* Scaled scores of query vectors against whole pages of keys, by the cache's dtype:
     * s[r][16 p + j] = (sum over i of q[r][i] * K_p[i][j]) * scale; with q8 the sum is multiplied
     * by the key's scale first. Elements are widened to f32 exactly.
     * Shapes: q [m, head_dim] contiguous, m <= ATTN_QUERY_ROWS; keys: those of n_pages pages
     * (cache/block.h); s [m, 16 n_pages] rows `lds` apart. ahead: n_pages pointers to the keys or
     * values that are read next, which are fetched meanwhile where that is faster. */
    void (*scores[ATTN_DTYPES])(size_t m, size_t head_dim, float scale, const float *q,
                                const void *const *keys, const void *const *ahead, size_t n_pages,
                                float *s, size_t lds);

    /* Softmax of one row, unnormalised, in place: s[i] <- exp(s[i] - max), *max, *sum.
     * Shapes: s [n], n >= 1; whole vectors of 16 are read and written, so s has room for n rounded
     * up to 16. s[0] is a key whose absolute position is a multiple of 16.
     * Returns false when any s[i] was infinite or NaN. */
    bool (*softmax)(size_t n, float *s, float *max, float *sum);

    /* Adds weighted value rows: o[r][c] += sum over j of p[r][j] * V[j][c], j in order; with q8
     * p[r][j] is multiplied by the value's scale first.
     * Shapes: p [m, n] rows `ldp` apart, n <= ATTN_MIX_KEYS the first positions of the pages whose
     * values are given, o [m, head_dim] contiguous, m <= ATTN_QUERY_ROWS. ahead: as above. */
    void (*mix[ATTN_DTYPES])(size_t m, size_t n, size_t head_dim, const float *p, size_t ldp,
                             const void *const *values, const void *const *ahead, float *o);

    /* y[i] = y[i] + x[i]. */
    void (*add)(size_t n, const float *x, float *y);

    /* SwiGLU: gate[i] = gate[i] * sigmoid(gate[i]) * up[i], where sigmoid(g) is 1 / (1 + e) for
     * g >= 0 and e / (1 + e) below, e = exp(-|g|). */
    void (*swiglu)(size_t n, float *gate, const float *up);

    /* o[i] = o[i] * a + b * p[i], the second product fused. */
    void (*merge)(size_t n, float a, float *o, float b, const float *p);

    /* o[i] = o[i] * a. */
    void (*scale)(size_t n, float a, float *o);

    /* y[i] = x[i] * (1 / sqrt(mean of squares + eps)) * weight[i]; y may be x. */
    void (*rmsnorm)(size_t n, float eps, const float *x, const float *weight, float *y);

    /* Rotates pairs (i, i + half) of x by the angles whose cosines and sines are given:
     * x[i] = x[i] cos[i] - x[i+half] sin[i]; x[i+half] = x[i+half] cos[i] + x[i] sin[i]. */
    void (*rope)(size_t half, float *x, const float *cos, const float *sin);

    /* True when no element is infinite or NaN. */
    bool (*finite)(size_t n, const float *x);
} attn_kernels;

extern const attn_kernels attn_kernels_scalar, attn_kernels_avx2, attn_kernels_avx512;

/* The table with that name, or for "auto" the widest this processor runs. NULL: no such name, or
 * the processor lacks it. */
const attn_kernels *attn_kernels_select(const char *name);

/* exp(x) for x <= 0, the bits that softmax computes. */
float attn_exp(float x);

/* Sets the floating-point mode (flush subnormals to zero, read them as zero, round to nearest).
 * Each thread that computes calls it once. */
void attn_kernels_thread_init(void);

/* The constants of exp, shared by every variant (kernels_scalar.c has the formula). */
#define ATTN_EXP_MIN (-87.0f)
#define ATTN_EXP_LOG2E 1.44269504f
#define ATTN_EXP_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */
#define ATTN_EXP_LN2_HIGH 0.693145752f
#define ATTN_EXP_LN2_LOW 1.42860677e-6f
#define ATTN_EXP_C6 1.38888889e-3f
#define ATTN_EXP_C5 8.33333377e-3f
#define ATTN_EXP_C4 4.16666679e-2f
#define ATTN_EXP_C3 0.166666672f
#define ATTN_EXP_C2 0.5f

#endif
