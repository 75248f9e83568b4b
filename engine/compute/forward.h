/* forward.h: one step of a model over a ragged batch: rows of many sessions at once.
 *
 * Weights are read once for all rows; attention runs per session against its own pages. Every
 * row's output bits depend on its session's earlier positions alone (laws L1, L2).
 */
#ifndef ATTN_FORWARD_H
#define ATTN_FORWARD_H

#include "engine/cache/session.h"
#include "engine/compute/pool.h"
#include "engine/compute/trace.h"

/* Most rows in one batch. */
#define ATTN_BATCH_ROWS 288

/* Consecutive positions of one session. The pages that hold them are taken; positions before
 * `position` are committed or belong to an earlier row of the span. */
typedef struct attn_span {
    attn_session *session;
    uint64_t position; /* of the first row */
    size_t n_rows;
    const float *inputs;    /* `attention` models: [n_rows, hidden_size] f32 */
    const uint32_t *tokens; /* decoders: [n_rows] ids below vocab_size */
    bool read_only;         /* replay: K and V of the position stand in the cache already */
    attn_trace *traces[2];  /* what is to be copied out of the rows; NULL: nothing */
} attn_span;

typedef struct attn_forward attn_forward;

/* Scratch for batches of any of the models. NULL when out of memory. Owner: destroy. */
attn_forward *attn_forward_create(attn_pool *pool, const attn_kernels *kernels,
                                  attn_model *const *models, size_t n_models);
void attn_forward_destroy(attn_forward *forward);

/* Computes the spans' rows (ATTN_BATCH_ROWS at most, all of `model`, no session twice), writes
 * their K and V into the pages, and leaves the output rows (decoders: the final hidden rows, after
 * the last norm), in span order, in the returned scratch: [rows, hidden_size] f32, valid until the
 * next call. finite[row] tells whether nothing in the row overflowed; a row after a bad one of its
 * span is undefined. `n_layers`: compute so many layers only, for traces; fewer than all leave the
 * outputs undefined.
 * Thread: the scheduler, in the mode of attn_kernels_thread_init. Cost: no allocation. */
const float *attn_forward_run(attn_forward *forward, const attn_model *model,
                              const attn_span *spans, size_t n_spans, size_t n_layers,
                              bool *finite);

/* A decoder's logits behind n final hidden rows (ATTN_BATCH_ROWS at most).
 * Shapes: hidden [n, hidden_size], logits [n, vocab_size]. Thread and cost as attn_forward_run. */
void attn_forward_logits(attn_forward *forward, const attn_model *model, const float *hidden,
                         size_t n, float *logits);

/* The work of `n_rows` rows from `position` on, in multiply-adds, for planning batches. */
double attn_forward_cost(const attn_config *config, uint64_t position, size_t n_rows);

#endif
