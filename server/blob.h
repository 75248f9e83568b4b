/* A safetensors blob in the making: u64 little-endian length of the header, the header (JSON), the
 * data. First its metadata, then its tensors, wider elements first, then their data in that order.
 *
 * Thread: pure functions on the caller's buffer. What does not fit marks the buffer as failed. */
#ifndef SRV_BLOB_H
#define SRV_BLOB_H

#include <stddef.h>
#include <stdint.h>

#include "server/buf.h"

typedef struct srv_blob {
    srv_buf *b;
    size_t start;    /* of the blob, in the buffer */
    size_t n_lines;  /* of metadata */
    uint64_t offset; /* where the next tensor's data begins */
    bool has_tensors;
} srv_blob;

/* Begins one at the end of the buffer, which the caller keeps. */
srv_blob srv_blob_begin(srv_buf *b);
/* A line of metadata. The text is the value's own, or the JSON text of what is no string. */
void srv_blob_text(srv_blob *blob, const char *name, const char *value, size_t len);
void srv_blob_number(srv_blob *blob, const char *name, uint64_t value);
/* A tensor of that many bytes. */
void srv_blob_tensor(srv_blob *blob, const char *name, const char *dtype, const uint64_t *shape,
                     unsigned n_dims, uint64_t bytes);
/* Ends the header: the caller appends the data to the buffer. */
void srv_blob_end_header(srv_blob *blob);

#endif
