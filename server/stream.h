/* A bounded ring of decode steps between the scheduler, which pushes, and one reader.
 *
 * It holds plain numbers and text; what is sent is made by the reader. Its slots are allocated at
 * creation. Only a text longer than a slot has room for, which a stop text held back may make of
 * several tokens, is allocated as it comes. A stream with room for all steps of its run is a
 * collector: nobody reads it until the run has ended.
 *
 * Thread: one pusher (ready, push) and one reader (front, pop, at) at a time. The mutex guards only
 * the indices; a slot belongs to the pusher until it is counted and to the reader until popped. */
#ifndef SRV_STREAM_H
#define SRV_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

/* A stream for a reader who keeps up or does not: at least this much, and at least these steps. */
#define SRV_STREAM_BYTES ((size_t)64 * 1024)
#define SRV_STREAM_STEPS 4
/* A token's text has this much room in its slot. */
#define SRV_STREAM_TEXT 40

/* What its steps bring. */
typedef struct srv_stream_shape {
    size_t row_size;    /* floats of a row; 0: tokens */
    size_t n_logprobs;  /* of a token, at most */
    size_t trace_bytes; /* of what a step's trace holds, at most; the slot has a reference to it */
} srv_stream_shape;

typedef struct srv_stream srv_stream;

/* Bytes that a stream of n_slots steps occupies, traces included; SIZE_MAX when that is no number. */
size_t srv_stream_bytes(size_t n_slots, srv_stream_shape shape);
/* How many slots a stream that is read while it is written has. */
size_t srv_stream_slots(srv_stream_shape shape);

/* Errors: NULL when out of memory. Cost: the memory of all slots, touched as they fill. */
srv_stream *srv_stream_create(size_t n_slots, srv_stream_shape shape);
/* Neither side may be using it. NULL is allowed. */
void srv_stream_free(srv_stream *stream);

/* Pusher: is there room for one more step? False asks the reader to say when there is. */
bool srv_stream_ready(srv_stream *stream);
/* Pusher: copies a step in. Only after ready said true (or into a collector). Returns true when the
 * reader waits for it. A step of another shape, or one that memory is out for, is dropped and marks
 * the stream broken. */
bool srv_stream_push(srv_stream *stream, const attn_step *step);

/* Reader: the oldest step, until it is dropped; or NULL: then the next push says that the reader
 * waits. */
const attn_step *srv_stream_front(srv_stream *stream);
/* Reader: drops the oldest step. Returns true when the pusher was told that there is no room. */
bool srv_stream_pop(srv_stream *stream);

/* Reader: how many steps it holds, and the i-th of them. */
size_t srv_stream_count(srv_stream *stream);
const attn_step *srv_stream_at(srv_stream *stream, size_t i);
srv_stream_shape srv_stream_shape_of(const srv_stream *stream);
bool srv_stream_broken(srv_stream *stream);

#endif
