#include "engine/compute/linear_run.h"

/* Rows of one item: with a panel they stay in the second-level cache; a multiple of every variant's
 * tile. */
#define CHUNK_ROWS 72

typedef struct call {
    const attn_kernels *kernels;
    const attn_linear *linear;
    size_t n, ld_in;
    const float *in;
    float *out;
} call;

/* Pool item: one panel of outputs for one chunk of rows. */
static void run_panel(void *ctx, size_t item, unsigned worker)
{
    (void)worker;
    const call *c = ctx;
    const attn_linear *linear = c->linear;
    size_t panels = attn_linear_panels(linear);
    size_t panel = item % panels, first = item / panels * CHUNK_ROWS;
    size_t m = c->n - first < CHUNK_ROWS ? c->n - first : CHUNK_ROWS;
    size_t out = panel * ATTN_PANEL;
    size_t n = linear->n_out - out < ATTN_PANEL ? linear->n_out - out : ATTN_PANEL;
    c->kernels->matmul[linear->dtype](m, n, linear->n_in, c->in + first * c->ld_in, c->ld_in,
                                      attn_linear_panel(linear, panel),
                                      c->out + first * linear->n_out + out, linear->n_out);
}

void attn_linear_run(attn_pool *pool, const attn_kernels *kernels, const attn_linear *linear,
                     size_t n, const float *in, size_t ld_in, float *out)
{
    call c = {kernels, linear, n, ld_in, in, out};
    size_t chunks = (n + CHUNK_ROWS - 1) / CHUNK_ROWS;
    attn_pool_run(pool, run_panel, &c, attn_linear_panels(linear) * chunks,
                  (double)n * (double)linear->n_in * (double)linear->n_out);
}
