/* What of the inside of a step goes over the wire: selections in, tensors out.
 *
 * Tensors travel as a safetensors blob. Floats are F32, exactly; `hook_pattern` may be U8 instead,
 * round(255 * sqrt(p)), which keeps small weights visible.
 *
 * Thread: pure functions on the caller's buffer. */
#ifndef SRV_TENSORS_H
#define SRV_TENSORS_H

#include "engine/engine.h"
#include "server/blob.h"
#include "server/buf.h"
#include "server/json/json_read.h"

/* Numbers in the JSON form of one tensor. */
#define SRV_TENSOR_JSON_MAX 65536
/* The most keys of a top_k. */
#define SRV_TOP_K_MAX 256
/* The longest text of a request's trace. */
#define SRV_TRACE_TEXT_MAX 16384

/* What a client asked to see. */
typedef struct srv_trace {
    attn_selection show;    /* the tensors it gets; none: only top_k */
    attn_selection capture; /* what the engine is asked for */
    uint64_t top_k;         /* this many keys of each head, with their weights; 0: none */
    bool u8;
} srv_trace;

/* Reads "0-3,7" (numbers below ATTN_CHOICE_MAX, ranges ascending). False if it is none. */
bool srv_choice_parse(const char *list, attn_choice *choice);
/* Reads "hook_pattern,hook_z". False if one is no tensor's name, or is there twice. */
bool srv_tensor_names_parse(const char *list, uint32_t *tensors);
/* Reads "F32" or "U8". */
bool srv_tensor_dtype_parse(const char *dtype, bool *u8);

/* Reads the object of a request's `trace`. Errors: false; error->param names the field. */
bool srv_trace_read(const srv_json_value *value, srv_trace *trace, srv_json_error *error);

/* A line of a blob's __metadata__. */
typedef struct srv_metadata {
    const char *name, *value;
} srv_metadata;

/* Appends the blob of what `show` selects of the trace. Metadata: the lines given, and, of the axes that
 * its tensors have, `position`, `first_key`, `heads`, `kv_heads`; `quant.<name>`. */
void srv_tensors_write(srv_buf *b, const attn_trace *trace, const attn_selection *show, bool u8,
                       const srv_metadata *metadata, size_t n_metadata);
/* The parts of it, for a blob that has more than a trace. */
void srv_trace_put_metadata(srv_blob *blob, const attn_trace *trace, const attn_selection *show,
                            bool u8);
void srv_trace_put_entries(srv_blob *blob, const attn_trace *trace, const attn_selection *show,
                           bool u8);
void srv_trace_put_data(srv_buf *b, const attn_trace *trace, const attn_selection *show, bool u8);
/* Bytes of that blob, and a little more. */
uint64_t srv_tensors_bytes(const attn_trace *trace);

/* Appends ,"tensors":"<base64 of the blob>" and ,"top_k":[...], as asked: the inside of a step, or of
 * the last position of a prefill. */
void srv_wire_trace(srv_buf *b, const attn_trace *trace, const srv_trace *asked);
/* Appends [{"layer":...,"head":...,"keys":[...],"weights":[...]},...]: k keys of each head. */
void srv_wire_top_k(srv_buf *b, const attn_trace *trace, size_t k);
/* Bytes of text that this makes, at most. */
uint64_t srv_trace_text_bytes(const attn_trace *trace, const srv_trace *asked);

/* Appends [[...],...]: a tensor's numbers. -Infinity, behind the mask, is "-inf". */
void srv_wire_tensor(srv_buf *b, const attn_trace_tensor *tensor, bool u8);

/* Appends base64 of n bytes. */
void srv_base64(srv_buf *b, const void *bytes, size_t n);

#endif
