#include "engine/compute/linear_run.h"

/* Panels of one item: two streams of weights. */
#define ITEM_PANELS 2
/* Rows of one item: with a block of weights they stay in the second-level cache; a multiple of every
 * variant's tile. */
#define CHUNK_ROWS 72

typedef struct call {
    const attn_kernels *kernels;
    const attn_linear *linear;
    size_t n, ld_in, n_chunks;
    const float *in;
    float *out;
} call;

/* Pool item: some panels of outputs for one chunk of rows. */
static void run_panels(void *ctx, size_t item, unsigned worker)
{
    (void)worker;
    const call *c = ctx;
    const attn_linear *linear = c->linear;
    size_t panel = item / c->n_chunks * ITEM_PANELS, first = item % c->n_chunks * CHUNK_ROWS;
    size_t m = c->n - first < CHUNK_ROWS ? c->n - first : CHUNK_ROWS;
    size_t out = panel * ATTN_PANEL, left = linear->n_out - out;
    c->kernels->matmul[linear->dtype](
        m, left < ITEM_PANELS * ATTN_PANEL ? left : ITEM_PANELS * ATTN_PANEL, linear->n_in,
        c->in + first * c->ld_in, c->ld_in, attn_linear_panel(linear, panel),
        c->out + first * linear->n_out + out, linear->n_out);
}

void attn_linear_run(attn_pool *pool, const attn_kernels *kernels, const attn_linear *linear,
                     size_t n, const float *in, size_t ld_in, float *out)
{
    call c = {kernels, linear, n, ld_in, (n + CHUNK_ROWS - 1) / CHUNK_ROWS, in, out};
    size_t groups = (attn_linear_panels(linear) + ITEM_PANELS - 1) / ITEM_PANELS;
    attn_pool_run(pool, run_panels, &c, groups * c.n_chunks,
                  (double)n * (double)linear->n_in * (double)linear->n_out);
}
