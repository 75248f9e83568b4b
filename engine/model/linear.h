/* linear.h: a linear layer, packed so that vector lanes are outputs.
 *
 * Layout: panels of ATTN_PANEL outputs; panel p holds W[32 p + c][i] at [i][c] as f32, bf16 or f16;
 * a q8 panel is described at matmul in kernels.h. Outputs past n_out are zero weights. */
#ifndef ATTN_LINEAR_H
#define ATTN_LINEAR_H

#include "engine/compute/kernels.h"

typedef struct attn_linear {
    size_t n_in, n_out;
    attn_dtype dtype;
    const void *panels; /* 64-byte aligned */
    const float *bias;  /* [n_out], or NULL */
} attn_linear;

static inline size_t attn_linear_panels(const attn_linear *linear)
{
    return (linear->n_out + ATTN_PANEL - 1) / ATTN_PANEL;
}

/* Bytes of one panel of n_in inputs; a multiple of 32. */
size_t attn_panel_bytes(attn_dtype dtype, size_t n_in);
/* The panel of outputs 32 p .. */
static inline const void *attn_linear_panel(const attn_linear *linear, size_t p)
{
    return (const char *)linear->panels + p * attn_panel_bytes(linear->dtype, linear->n_in);
}

/* Writes the weights of output `out` into zeroed panels, rounded to nearest even (q8: scale = the
 * group's largest magnitude / 127). False when one is too large for the dtype. */
ATTN_MUST_CHECK bool attn_linear_pack(void *panels, attn_dtype dtype, size_t n_in, size_t out,
                                      const float *row);
/* The weights of output `out` as they count: [n_in] f32. */
void attn_linear_row(const attn_linear *linear, size_t out, float *row);

#endif
