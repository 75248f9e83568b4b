/* The replies of /prefill and /decode as safetensors: numbers are tensors, the other fields of the
 * JSON reply are strings in `__metadata__`, JSON text if they are no strings there.
 *
 * Thread: pure functions on the caller's buffer. What does not fit marks the buffer as failed. */
#ifndef SRV_WIRE_BLOB_H
#define SRV_WIRE_BLOB_H

#include <stdbool.h>

#include "engine/engine.h"
#include "server/buf.h"
#include "server/stream.h"
#include "server/tensors.h"

/* Tensors `output` [rows, hidden_size], `logits`, `tokens`, and those that were traced. */
void srv_blob_prefill(srv_buf *b, const attn_result *result, bool with_output, bool with_text,
                      const srv_trace *trace);

/* Tensors `output` [steps, hidden_size] or `tokens` [steps], and those of the only step's trace. */
void srv_blob_run(srv_buf *b, const attn_result *result, bool sampled, srv_stream *steps,
                  const srv_trace *trace);

#endif
