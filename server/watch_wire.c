#include "server/watch_wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/blob.h"
#include "server/json/json_write.h"
#include "server/tensors.h"

static srv_watch_field *add(srv_watch_message *m, const char *name)
{
    srv_watch_field *field = &m->fields[m->n < SRV_WATCH_FIELDS ? m->n++ : m->n - 1];
    *field = (srv_watch_field){.name = name};
    return field;
}

void srv_watch_text(srv_watch_message *m, const char *name, const char *text, size_t len)
{
    srv_watch_field *field = add(m, name);
    field->value = text;
    field->len = len;
    field->is_text = true;
}

void srv_watch_number(srv_watch_message *m, const char *name, uint64_t number)
{
    srv_watch_field *field = add(m, name);
    field->len = (size_t)snprintf(field->digits, sizeof(field->digits), "%" PRIu64, number);
}

void srv_watch_json(srv_watch_message *m, const char *name, const char *json, size_t len)
{
    srv_watch_field *field = add(m, name);
    field->value = json;
    field->len = len;
}

void srv_watch_begin(srv_watch_message *m, const char *event, uint64_t seq)
{
    m->n = 0;
    m->trace = NULL;
    srv_watch_text(m, "event", event, strlen(event));
    srv_watch_number(m, "seq", seq);
}

static const char *value_of(const srv_watch_field *field)
{
    return field->value ? field->value : field->digits;
}

static void put_json(srv_buf *b, const srv_watch_message *m, srv_buf *scratch)
{
    for (size_t i = 0; i < m->n; i++) {
        const srv_watch_field *field = &m->fields[i];
        srv_buf_printf(b, "%s\"%s\":", i ? "," : "{", field->name);
        if (field->is_text)
            srv_json_string(b, value_of(field), field->len);
        else
            srv_buf_append(b, value_of(field), field->len);
    }
    if (m->trace) {
        srv_buf_clear(scratch);
        srv_tensors_write(scratch, m->trace, m->show, m->u8, NULL, 0);
        srv_buf_puts(b, ",\"tensors\":\"");
        if (!scratch->failed)
            srv_base64(b, scratch->data, scratch->len);
        b->failed |= scratch->failed;
        srv_buf_puts(b, "\"");
    }
    srv_buf_puts(b, "}");
}

static void put_blob(srv_buf *b, const srv_watch_message *m)
{
    srv_blob blob = srv_blob_begin(b);
    for (size_t i = 0; i < m->n; i++) {
        const srv_watch_field *field = &m->fields[i];
        /* A trace says it, too. */
        if (!m->trace || strcmp(field->name, "position"))
            srv_blob_text(&blob, field->name, value_of(field), field->len);
    }
    if (m->trace) {
        srv_trace_put_metadata(&blob, m->trace, m->show, m->u8);
        srv_trace_put_entries(&blob, m->trace, m->show, m->u8);
    }
    srv_blob_end_header(&blob);
    if (m->trace)
        srv_trace_put_data(b, m->trace, m->show, m->u8);
}

static void put_frame(srv_buf *b, const srv_watch_message *m)
{
    const size_t start = b->len;
    srv_buf_append(b, "\0\0\0\0", 4);
    put_blob(b, m);
    const uint64_t n = b->len - start - 4;
    for (size_t i = 0; !b->failed && i < 4; i++)
        b->data[start + i] = (char)(n >> (8 * i) & 255);
}

void srv_watch_write(srv_buf *b, const srv_watch_message *m, srv_watch_encoding encoding,
                     srv_buf *scratch)
{
    switch (encoding) {
    case SRV_WATCH_NDJSON:
        put_json(b, m, scratch);
        srv_buf_puts(b, "\n");
        break;
    case SRV_WATCH_SSE:
        srv_buf_puts(b, "data: ");
        put_json(b, m, scratch);
        srv_buf_puts(b, "\n\n");
        break;
    case SRV_WATCH_FRAMES:
        put_frame(b, m);
        break;
    }
}

/* A tensor's entry in a blob's header and its line of metadata; what else a header has. */
#define ENTRY_BYTES 320
#define HEADER_BYTES 4096

uint64_t srv_watch_tensors_bytes(uint64_t bytes, const attn_selection *show, uint32_t n_layers)
{
    uint64_t n_tensors = (uint64_t)__builtin_popcount(show->tensors) * n_layers;
    return (bytes + n_tensors * ENTRY_BYTES + HEADER_BYTES) / 3 * 4 + 4;
}
