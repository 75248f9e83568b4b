/* experts.h: a mixture of experts: a router chooses a few MLPs for each row.
 *
 *     p = softmax(router x), over all experts; the num_experts_per_tok largest are chosen, the lower
 *     id of equals first; out = sum over the chosen, in id order, of w_e mlp_e(x), each product
 *     fused; w = p, or p / sum of the chosen p (norm_topk_prob); shared experts are added after.
 * Rows that chose the same expert are computed together, which changes no bit of them.
 * Source: Shazeer et al. 2017; MiniMind's and Qwen3's sparse blocks. */
#ifndef ATTN_EXPERTS_H
#define ATTN_EXPERTS_H

#include "engine/compute/linear_run.h"
#include "engine/model/model.h"

typedef struct attn_experts attn_experts;

/* Scratch for `max_rows` rows of any of the models. NULL when out of memory. */
attn_experts *attn_experts_create(attn_pool *pool, const attn_kernels *kernels,
                                  attn_model *const *models, size_t n_models, size_t max_rows);
void attn_experts_destroy(attn_experts *experts);

/* Shapes: x, out [n, hidden_size]. Thread: the pool's caller. Cost: no allocation. */
void attn_experts_run(attn_experts *experts, const attn_model *model, const attn_layer *layer,
                      size_t n, const float *x, float *out);

#endif
