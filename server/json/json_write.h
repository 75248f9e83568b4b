/* Appends JSON values to a buffer. Commas, names and brackets around them are the caller's text.
 *
 * Errors: each returns false, and the buffer is marked as failed, when it does not fit its limit
 * or when a number is not finite: what was appended never holds NaN or Infinity. */
#ifndef SRV_JSON_WRITE_H
#define SRV_JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/buf.h"

/* "..." with the escapes JSON needs. Bytes that are not UTF-8 become U+FFFD, one each, so that the
 * result is JSON whatever s holds. */
bool srv_json_string(srv_buf *b, const char *s, size_t len);

/* [v0,v1,...], each the shortest text that reads back to the same float32. */
bool srv_json_floats(srv_buf *b, const float *v, size_t n);

/* One number as above. */
bool srv_json_float(srv_buf *b, float v);

/* [v0,v1,...] of integers. */
bool srv_json_u32s(srv_buf *b, const uint32_t *v, size_t n);

/* [[...],[...]]. Shapes: v is [rows, cols]. */
bool srv_json_rows(srv_buf *b, const float *v, size_t rows, size_t cols);

bool srv_json_u64(srv_buf *b, uint64_t v);
bool srv_json_i64(srv_buf *b, int64_t v);
bool srv_json_bool(srv_buf *b, bool v);

/* Milliseconds with three decimals. */
bool srv_json_ms(srv_buf *b, double ms);

#endif
