/* trace.h: the tensors inside a forward pass, copied out row by row as they are computed.
 *
 * A trace is made before the pass with room for the rows it will get; spans (forward.h) carry it
 * along, and each row-wise phase leaves its row. Nothing is computed differently because of it:
 * scores and weights, which attention keeps in no memory, are computed once more by the same
 * kernels (attn_attention_look).
 *
 * Thread: rows of one trace may be written by many threads at once; after the pass it is immutable.
 */
#ifndef ATTN_TRACE_H
#define ATTN_TRACE_H

#include "engine/engine.h"
#include "engine/model/config.h"

/* Which heads a trace has. */
typedef struct attn_trace_heads {
    size_t n, n_kv;
    uint32_t query[ATTN_CHOICE_MAX], kv[ATTN_CHOICE_MAX];
} attn_trace_heads;

/* Whether a model of that shape has all of the selection. Errors: TENSOR_NOT_FOUND. */
ATTN_MUST_CHECK attn_status attn_trace_check(const attn_config *config,
                                             const attn_selection *selection, attn_error *err);

/* The same for what a step leaves behind. Errors: INVALID ("tensors") for those of the cache. */
ATTN_MUST_CHECK attn_status attn_trace_check_step(const attn_config *config,
                                                  const attn_selection *selection, attn_error *err);

/* The query heads of a selection, and the KV heads that they read. */
void attn_trace_choose(const attn_config *config, const attn_selection *selection,
                       attn_trace_heads *heads);

/* Bytes of a trace's tensors, of n_rows rows that look at n_keys keys. SIZE_MAX: no number. */
uint64_t attn_trace_bytes(const attn_config *config, const attn_selection *selection,
                          const attn_trace_heads *heads, uint64_t n_rows, uint64_t n_keys);

/* A trace of the rows from `position` on, with one reference. What masks hide is filled in.
 * NULL: out of memory, or past ATTN_TRACES_BYTES_MAX. Cost: the memory of the tensors. */
ATTN_MUST_CHECK attn_trace *attn_trace_create(const attn_config *config,
                                              const attn_selection *selection,
                                              const attn_trace_heads *heads, uint64_t position,
                                              size_t n_rows, uint64_t first_key, uint64_t n_keys);

/* Bytes of all traces that there are. */
uint64_t attn_trace_all_bytes(void);
/* What filling it in costs, in multiply-adds. */
double attn_trace_cost(const attn_trace *trace, size_t head_dim);

/* Whether the trace has that tensor. */
bool attn_trace_has(const attn_trace *trace, attn_tensor_kind kind, size_t layer);
/* Layers that must be computed for it. */
size_t attn_trace_layers(const attn_trace *trace);

/* Leaves the row of a position: all of the model's heads (or the whole row); the trace keeps the
 * chosen ones. Does nothing if the trace lacks the tensor or the position. */
void attn_trace_row(attn_trace *trace, attn_tensor_kind kind, size_t layer, uint64_t position,
                    const float *row, size_t head_dim);
/* The memory of a head's row of scores or pattern: [n_keys]. NULL: the trace lacks it. `head`: index
 * into trace->heads. */
float *attn_trace_keys(attn_trace *trace, attn_tensor_kind kind, size_t layer, uint64_t position,
                       size_t head);
/* The memory of a cache tensor's key: [n_kv_heads, head_dim], to be written by whoever made it. */
float *attn_trace_cache_row(attn_trace *trace, attn_tensor_kind kind, size_t layer, uint64_t key);

#endif
