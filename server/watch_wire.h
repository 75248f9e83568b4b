/* One event of /watch as bytes, in the three encodings: a line of JSON, an SSE event, or a frame (u32
 * little-endian length, then one safetensors blob whose __metadata__ holds the fields as strings).
 *
 * Thread: pure functions on the caller's buffers. */
#ifndef SRV_WATCH_WIRE_H
#define SRV_WATCH_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "server/buf.h"

typedef enum srv_watch_encoding {
    SRV_WATCH_NDJSON,
    SRV_WATCH_SSE,
    SRV_WATCH_FRAMES,
} srv_watch_encoding;

#define SRV_WATCH_FIELDS 16

typedef struct srv_watch_field {
    const char *name, *value; /* value NULL: it is in `digits` */
    size_t len;
    bool is_text; /* else JSON */
    char digits[24];
} srv_watch_field;

/* An event: its fields in order, and perhaps tensors. Values are borrowed. */
typedef struct srv_watch_message {
    size_t n;
    srv_watch_field fields[SRV_WATCH_FIELDS];
    const attn_trace *trace; /* NULL: no tensors */
    const attn_selection *show;
    bool u8;
} srv_watch_message;

/* Starts one over: {"event":...,"seq":...}. */
void srv_watch_begin(srv_watch_message *m, const char *event, uint64_t seq);
/* Each adds a field; at most SRV_WATCH_FIELDS. */
void srv_watch_text(srv_watch_message *m, const char *name, const char *text, size_t len);
void srv_watch_number(srv_watch_message *m, const char *name, uint64_t number);
void srv_watch_json(srv_watch_message *m, const char *name, const char *json, size_t len);

/* Appends it. `scratch` is overwritten. What does not fit marks the buffer as failed. */
void srv_watch_write(srv_buf *b, const srv_watch_message *m, srv_watch_encoding encoding,
                     srv_buf *scratch);

/* Bytes that the tensors of one event take in any encoding, given the bytes of their numbers. */
uint64_t srv_watch_tensors_bytes(uint64_t bytes, const attn_selection *show, uint32_t n_layers);

#endif
