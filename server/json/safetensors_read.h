/* The other form of a request body: the same table of fields, as a safetensors blob.
 *
 * u64 little-endian length of the header | header, JSON, at most 1 MiB | data. Arrays of numbers may
 * be tensors named as their field: FLOAT_ROWS [rows, cols] and FLOAT_ROW [n] of F32, INTEGERS [n] of
 * I32, U32 or I64. Every field may be a string in `__metadata__`: a STRING is its own text, anything
 * else is the JSON text of its value. What srv_json_read refuses is refused here too, and so are
 * tensors that overlap, leave holes in the data or do not fit their shape.
 *
 * Thread: any; values belong to the caller. */
#ifndef SRV_SAFETENSORS_READ_H
#define SRV_SAFETENSORS_READ_H

#include "server/json/json_read.h"

/* The most fields of a table. */
#define SRV_SAFETENSORS_FIELDS_MAX 32

/* Reads bytes into values, as srv_json_read does.
 * Shapes: bytes[len], aligned anyhow; NULL when len is 0.
 * Owner: on success the caller owes srv_json_values_free; on failure values are all zero.
 * Errors: false. error->param names the field, `__metadata__`, or nothing.
 * Cost: one copy of the data; nothing is allocated that is larger than what arrived. */
bool srv_safetensors_read(const char *bytes, size_t len, const srv_json_field *fields, size_t n,
                          srv_json_value *values, srv_json_error *error);

#endif
