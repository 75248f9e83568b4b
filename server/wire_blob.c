#include "server/wire_blob.h"

#include <string.h>

#include "server/blob.h"
#include "server/wire.h"

static void put_string(srv_blob *blob, const char *name, const char *value)
{
    srv_blob_text(blob, name, value, strlen(value));
}

/* Takes the text out of `json` as the value of a line. */
static void put_json(srv_blob *blob, const char *name, srv_buf *json)
{
    srv_blob_text(blob, name, json->len ? json->data : "", json->len);
    blob->b->failed |= json->failed;
    srv_buf_clear(json);
}

static void put_ids(srv_blob *blob, uint64_t n)
{
    srv_blob_tensor(blob, "tokens", "I32", &n, 1, n * sizeof(uint32_t));
}

static void put_rows(srv_blob *blob, uint64_t rows, uint64_t cols)
{
    const uint64_t shape[] = {rows, cols};
    srv_blob_tensor(blob, "output", "F32", shape, 2, rows * cols * sizeof(float));
}

/* What a trace adds to the metadata. */
static void put_trace(srv_blob *blob, const attn_trace *trace, const srv_trace *asked,
                      srv_buf *json)
{
    srv_trace_put_metadata(blob, trace, &asked->show, asked->u8);
    if (!asked->top_k)
        return;
    srv_wire_top_k(json, trace, (size_t)asked->top_k);
    put_json(blob, "top_k", json);
}

void srv_blob_prefill(srv_buf *b, const attn_result *r, bool with_output, bool with_text,
                      const srv_trace *trace)
{
    const uint64_t n_logits = r->n_logits;
    srv_buf json;
    srv_buf_init(&json, SIZE_MAX);
    srv_blob blob = srv_blob_begin(b);
    put_string(&blob, "session", r->session.id);
    put_string(&blob, "model", r->session.model);
    srv_blob_number(&blob, "length", r->session.length);
    srv_blob_number(&blob, "appended", r->appended);
    if (r->n_next) {
        srv_wire_logprobs(&json, r->next, r->n_next, with_text);
        put_json(&blob, "next", &json);
    }
    if (r->trace)
        put_trace(&blob, r->trace, trace, &json);
    srv_wire_kv(&json, &r->session.kv, true);
    put_json(&blob, "kv", &json);
    srv_wire_timing(&json, r);
    put_json(&blob, "timing", &json);
    srv_buf_free(&json);

    if (with_output)
        put_rows(&blob, r->n_outputs, r->output_size);
    if (r->n_next)
        put_ids(&blob, r->n_tokens);
    if (n_logits)
        srv_blob_tensor(&blob, "logits", "F32", &n_logits, 1, n_logits * sizeof(float));
    if (r->trace)
        srv_trace_put_entries(&blob, r->trace, &trace->show, trace->u8);
    srv_blob_end_header(&blob);

    if (with_output)
        srv_buf_append(b, r->outputs, r->n_outputs * r->output_size * sizeof(float));
    if (r->n_next)
        srv_buf_append(b, r->tokens, r->n_tokens * sizeof(*r->tokens));
    if (n_logits)
        srv_buf_append(b, r->logits, r->n_logits * sizeof(float));
    if (r->trace)
        srv_trace_put_data(b, r->trace, &trace->show, trace->u8);
}

/* The done object, as lines. */
static void put_done(srv_blob *blob, const attn_result *r, bool sampled, srv_buf *json)
{
    put_string(blob, "done", "true");
    put_string(blob, "session", r->session.id);
    put_string(blob, "reason", attn_reason_name(r->reason));
    srv_blob_number(blob, "length", r->session.length);
    srv_blob_number(blob, "steps", r->steps);
    if (sampled)
        srv_blob_number(blob, "seed", r->seed);
    srv_wire_timing(json, r);
    put_json(blob, "timing", json);
    if (r->reason == ATTN_REASON_ERROR) {
        srv_error error = srv_error_of_engine(&r->error);
        srv_wire_error(json, &error);
        put_json(blob, "error", json);
    }
}

/* What the steps say besides their numbers. */
static void put_texts(srv_blob *blob, const attn_result *r, srv_stream *steps, srv_buf *json)
{
    const size_t n = srv_stream_count(steps);
    if (r->text) {
        srv_wire_whole_text(json, r, steps);
        put_json(blob, "text", json);
    }
    if (n == 0 || srv_stream_at(steps, 0)->n_logprobs == 0)
        return;
    for (size_t i = 0; i < n; i++) {
        const attn_step *step = srv_stream_at(steps, i);
        srv_buf_puts(json, i ? "," : "[");
        srv_wire_logprobs(json, step->logprobs, step->n_logprobs, step->text);
    }
    srv_buf_puts(json, "]");
    put_json(blob, "logprobs", json);
}

void srv_blob_run(srv_buf *b, const attn_result *r, bool sampled, srv_stream *steps,
                  const srv_trace *trace)
{
    const size_t n = srv_stream_count(steps);
    const attn_trace *inside = n == 1 ? srv_stream_at(steps, 0)->trace : NULL;
    const size_t row_size = srv_stream_shape_of(steps).row_size;
    srv_buf json;
    srv_buf_init(&json, SIZE_MAX);
    srv_blob blob = srv_blob_begin(b);
    put_done(&blob, r, sampled, &json);
    put_texts(&blob, r, steps, &json);
    if (inside)
        put_trace(&blob, inside, trace, &json);
    srv_buf_free(&json);

    if (row_size)
        put_rows(&blob, n, row_size);
    else
        put_ids(&blob, n);
    if (inside)
        srv_trace_put_entries(&blob, inside, &trace->show, trace->u8);
    srv_blob_end_header(&blob);

    for (size_t i = 0; i < n; i++) {
        const attn_step *step = srv_stream_at(steps, i);
        if (row_size)
            srv_buf_append(b, step->output, row_size * sizeof(float));
        else
            srv_buf_append(b, &step->token, sizeof(step->token));
    }
    if (inside)
        srv_trace_put_data(b, inside, &trace->show, trace->u8);
}
