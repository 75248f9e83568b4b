/* The wire's JSON objects, made from the engine's structs, and its errors.
 *
 * Thread: pure functions on the caller's buffer. What does not fit marks the buffer as failed. */
#ifndef SRV_WIRE_H
#define SRV_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "server/buf.h"
#include "server/config.h"
#include "server/stream.h"
#include "server/tensors.h"

#define SRV_ERROR_DETAILS ATTN_ERROR_DETAILS

/* One error of the contract. Strings are static or live as long as what they were taken from. */
typedef struct srv_error {
    unsigned status; /* HTTP's */
    const char *code, *message;
    const char *param; /* a name from the contract, or NULL */
    unsigned n_details;
    struct {
        const char *name;
        uint64_t value;
    } details[SRV_ERROR_DETAILS];
} srv_error;

/* The contract's status and code for an engine error. Owner: `message` is borrowed. */
srv_error srv_error_of_engine(const attn_error *error);

/* {"code":...,"message":...,"param":...,"details":{...}} */
void srv_wire_error(srv_buf *b, const srv_error *error);

/* {"queue_ms":...,"compute_ms":...} */
void srv_wire_timing(srv_buf *b, const attn_result *result);
/* [{"token":...,"text":...,"logprob":...},...] */
void srv_wire_logprobs(srv_buf *b, const attn_logprob *logprobs, size_t n, bool with_text);
/* The text of all steps, and what was still held back, as it is. */
void srv_wire_whole_text(srv_buf *b, const attn_result *result, srv_stream *steps);
/* {"dtype":...,"bytes":...,...}; without dtype for a sum over sessions. */
void srv_wire_kv(srv_buf *b, const attn_kv_info *kv, bool with_dtype);
/* A session: S of the contract. */
void srv_wire_session(srv_buf *b, const attn_session_info *info);
void srv_wire_totals(srv_buf *b, const attn_totals *totals);
/* `example` is a prefill that works. */
void srv_wire_model(srv_buf *b, const attn_engine *engine, size_t index, const srv_config *config);

/* The reply of a prefill; the rows it shows are what result->outputs holds. `with_text`: tokens have
 * texts. */
void srv_wire_prefill(srv_buf *b, const attn_result *result, bool with_output, bool with_text,
                      const srv_trace *trace);
/* {"step":...,"position":...,"length":...,"output":[...]}, or "token" and so on. `trace`: what of its
 * inside was asked for, or NULL. */
void srv_wire_step(srv_buf *b, const attn_step *step, const srv_trace *trace);
/* The last object of a stream: {"done":true,...}. `sampled`: it has a seed to tell. `lost`: steps
 * that were committed could not be kept for the reader. */
void srv_wire_done(srv_buf *b, const attn_result *result, bool sampled, bool lost);
/* A whole run: the same object with all its steps, the text of all, and a single step's output. */
void srv_wire_run(srv_buf *b, const attn_result *result, bool sampled, srv_stream *steps,
                  const srv_trace *trace);
void srv_wire_verify(srv_buf *b, const attn_result *result);

#endif
