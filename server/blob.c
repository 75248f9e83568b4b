#include "server/blob.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/json/json_write.h"

srv_blob srv_blob_begin(srv_buf *b)
{
    srv_blob blob = {.b = b, .start = b->len};
    srv_buf_append(b, "\0\0\0\0\0\0\0\0", sizeof(uint64_t));
    srv_buf_puts(b, "{\"__metadata__\":{");
    return blob;
}

void srv_blob_text(srv_blob *blob, const char *name, const char *value, size_t len)
{
    srv_buf_printf(blob->b, "%s\"%s\":", blob->n_lines++ ? "," : "", name);
    srv_json_string(blob->b, value, len);
}

void srv_blob_number(srv_blob *blob, const char *name, uint64_t value)
{
    char text[24];
    int n = snprintf(text, sizeof(text), "%" PRIu64, value);
    srv_blob_text(blob, name, text, (size_t)n);
}

void srv_blob_tensor(srv_blob *blob, const char *name, const char *dtype, const uint64_t *shape,
                     unsigned n_dims, uint64_t bytes)
{
    srv_buf_printf(blob->b, "%s,\"%s\":{\"dtype\":\"%s\",\"shape\":[", blob->has_tensors ? "" : "}",
                   name, dtype);
    for (unsigned i = 0; i < n_dims; i++)
        srv_buf_printf(blob->b, "%s%" PRIu64, i ? "," : "", shape[i]);
    srv_buf_printf(blob->b, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", blob->offset,
                   blob->offset + bytes);
    blob->offset += bytes;
    blob->has_tensors = true;
}

void srv_blob_end_header(srv_blob *blob)
{
    srv_buf *b = blob->b;
    srv_buf_puts(b, blob->has_tensors ? "}" : "}}");
    while (!b->failed && (b->len - blob->start) % 8)
        srv_buf_puts(b, " ");
    const uint64_t n = b->len - blob->start - sizeof(n);
    for (size_t i = 0; !b->failed && i < sizeof(n); i++)
        b->data[blob->start + i] = (char)(n >> (8 * i) & 255);
}
