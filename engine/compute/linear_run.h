/* linear_run.h: a linear layer over many rows, split over the pool by panels and chunks of rows. */
#ifndef ATTN_LINEAR_RUN_H
#define ATTN_LINEAR_RUN_H

#include "engine/compute/pool.h"
#include "engine/model/linear.h"

/* out = in W^T, without the bias. Shapes: in [n, n_in] rows ld_in apart, out [n, n_out]. Must not
 * overlap. Thread: the pool's caller. */
void attn_linear_run(attn_pool *pool, const attn_kernels *kernels, const attn_linear *linear,
                     size_t n, const float *in, size_t ld_in, float *out);

#endif
