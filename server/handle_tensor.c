#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/handlers.h"
#include "server/json/json_write.h"
#include "server/tensors.h"

/* Text of a number in the JSON form, comma and brackets included. */
#define NUMBER_BYTES 18

/* Reads "a:b", "a:" or ":b". */
static bool read_range(const char *text, uint64_t *first, uint64_t *end)
{
    size_t digits = strspn(text, "0123456789");
    if (digits > 15 || text[digits] != ':')
        return false;
    const char *rest = text + digits + 1;
    size_t more = strspn(rest, "0123456789");
    if (more > 15 || rest[more] || digits + more == 0)
        return false;
    if (digits)
        *first = strtoull(text, NULL, 10);
    if (more)
        *end = strtoull(rest, NULL, 10);
    return true;
}

static bool read_ranges(srv_exchange *x, attn_request *r)
{
    const char *q = srv_query(x, "q"), *k = srv_query(x, "k");
    if (q && !read_range(q, &r->first_query, &r->end_query)) {
        srv_fail_field(x, "q", "a range of positions is a:b, a: or :b, b not included");
        return false;
    }
    if (k && !read_range(k, &r->first_key, &r->end_key)) {
        srv_fail_field(x, "k", "a range of keys is a:b, a: or :b, b not included");
        return false;
    }
    return true;
}

static bool read_query(srv_exchange *x, attn_request *r)
{
    if (!attn_tensor_parse(x->name, &r->tensor, &r->layer)) {
        srv_fail_with(x, 404, "tensor_not_found", "name", "no tensor has that name");
        return false;
    }
    if (!read_ranges(x, r))
        return false;
    const char *heads = srv_query(x, "heads"), *dtype = srv_query(x, "dtype");
    r->some_heads = heads;
    if (heads && !srv_choice_parse(heads, &r->heads)) {
        srv_fail_field(x, "heads", "heads are numbers and ranges, as 0-3,7");
        return false;
    }
    if (dtype && !srv_tensor_dtype_parse(dtype, &x->u8)) {
        srv_fail_field(x, "dtype", "dtype is F32 or U8");
        return false;
    }
    if (x->u8 && r->tensor != ATTN_TENSOR_PATTERN) {
        srv_fail_field(x, "dtype", "only hook_pattern comes as U8");
        return false;
    }
    return true;
}

/* Bytes of the heads that were asked for, given those of all. */
static uint64_t bytes_of_heads(const attn_request *r, const attn_model_info *model, uint64_t bytes)
{
    const uint32_t n_heads = attn_tensor_has_heads(r->tensor)      ? model->num_attention_heads
                             : attn_tensor_has_kv_heads(r->tensor) ? model->num_key_value_heads
                                                                   : 0;
    uint32_t n = 0;
    if (!r->some_heads || !n_heads)
        return bytes;
    for (uint32_t i = 0; i < n_heads; i++)
        n += attn_choice_has(&r->heads, i);
    return bytes / n_heads * n;
}

/* Bytes of the tensor; 0 of one that the session or its model does not have. */
static uint64_t count_bytes(srv_exchange *x, const attn_request *r)
{
    attn_session_info session;
    attn_model_info model;
    attn_error error; /* whatever it is, the engine will find it again */
    if (attn_session_get(x->app->engine, x->id, &session, &error) != ATTN_OK)
        return 0;
    const ptrdiff_t index = attn_model_find(x->app->engine, session.model);
    if (index < 0)
        return 0;
    attn_model_get(x->app->engine, (size_t)index, &model);
    attn_selection selection = {.tensors = 1u << r->tensor, .some_layers = true};
    if (r->layer < ATTN_CHOICE_MAX)
        attn_choice_add(&selection.layers, r->layer);
    if (attn_selection_check(x->app->engine, (size_t)index, &selection, &error) != ATTN_OK)
        return 0;
    uint64_t end_query = r->end_query < session.length ? r->end_query : session.length;
    uint64_t end_key = r->end_key < end_query ? r->end_key : end_query;
    uint64_t rows = end_query > r->first_query ? end_query - r->first_query : 0;
    uint64_t keys = end_key > r->first_key ? end_key - r->first_key : 0;
    return bytes_of_heads(
        r, &model, attn_selection_bytes(x->app->engine, (size_t)index, &selection, rows, keys));
}

/* Fails x if so many numbers are too many for JSON. */
static bool check_json(srv_exchange *x, uint64_t n)
{
    if (x->wants_safetensors || n <= SRV_TENSOR_JSON_MAX)
        return true;
    srv_fail(x, &(srv_error){
                    .status = 413,
                    .code = "tensor_too_large",
                    .message = "too many numbers for JSON: ask for a smaller range, or for "
                               "application/x-safetensors",
                    .n_details = 1,
                    .details = {{"bytes", n * sizeof(float)}},
                });
    return false;
}

static void put_indices(srv_buf *b, const char *name, const uint32_t *v, size_t n)
{
    srv_buf_printf(b, ",\"%s\":", name);
    srv_json_u32s(b, v, n);
}

/* {"session":...,"name":...,"dtype":...,"shape":[...],...,"data":[...]} */
static void finish_json(srv_exchange *x, const attn_result *r)
{
    const attn_trace *t = r->trace;
    const attn_trace_tensor *tensor = &t->tensors[0];
    const uint64_t n = tensor->shape[0] * tensor->shape[1] * tensor->shape[2];
    /* The session may have become longer since the request came. */
    if (!check_json(x, n))
        return;
    srv_buf *b = &x->reply;
    srv_exchange_expect(x, n * NUMBER_BYTES);
    srv_buf_printf(b,
                   "{\"session\":\"%s\",\"model\":\"%s\",\"length\":%" PRIu64
                   ",\"name\":\"%s\",\"dtype\":\"%s\",\"shape\":[",
                   r->session.id, r->session.model, r->session.length, x->name,
                   x->u8 ? "U8" : "F32");
    for (unsigned d = 0; d < tensor->n_dims; d++)
        srv_buf_printf(b, "%s%" PRIu64, d ? "," : "", tensor->shape[d]);
    srv_buf_puts(b, "]");
    if (!attn_tensor_has_keys(tensor->kind) || attn_tensor_has_heads(tensor->kind))
        srv_buf_printf(b, ",\"q\":[%" PRIu64 ",%" PRIu64 "]", t->position, t->position + t->n_rows);
    if (attn_tensor_has_keys(tensor->kind))
        srv_buf_printf(b, ",\"k\":[%" PRIu64 ",%" PRIu64 "]", t->first_key,
                       t->first_key + t->n_keys);
    if (attn_tensor_has_heads(tensor->kind))
        put_indices(b, "heads", t->heads, t->n_heads);
    if (attn_tensor_has_kv_heads(tensor->kind))
        put_indices(b, "heads", t->kv_heads, t->n_kv_heads);
    srv_buf_puts(b, ",\"data\":");
    srv_wire_tensor(b, tensor, x->u8);
    srv_buf_puts(b, "}\n");
    srv_reply_json(x, 200);
}

static void finish(srv_exchange *x)
{
    if (srv_exchange_fail_job(x))
        return;
    const attn_result *r = srv_exchange_result(x);
    if (!x->wants_safetensors) {
        finish_json(x, r);
        return;
    }
    char length[24];
    snprintf(length, sizeof(length), "%" PRIu64, r->session.length);
    const srv_metadata metadata[] = {
        {"session", r->session.id}, {"model", r->session.model}, {"length", length}};
    const attn_selection all = {.tensors = UINT32_MAX};
    srv_exchange_expect(x, srv_tensors_bytes(r->trace));
    srv_tensors_write(&x->reply, r->trace, &all, x->u8, metadata,
                      sizeof(metadata) / sizeof(metadata[0]));
    srv_reply(x, 200, "application/x-safetensors");
}

void srv_handle_tensor(srv_exchange *x)
{
    attn_request request = attn_request_init(ATTN_JOB_TENSOR);
    request.session = x->id;
    x->finish = finish;
    if (!read_query(x, &request))
        return;
    uint64_t bytes = count_bytes(x, &request);
    /* What is too large in any form, the engine refuses. */
    if (bytes <= ATTN_TRACE_BYTES_MAX && !check_json(x, bytes / sizeof(float)))
        return;
    bytes = bytes < ATTN_TRACE_BYTES_MAX ? bytes : ATTN_TRACE_BYTES_MAX;
    /* The tensor and its reply. */
    if (!srv_exchange_hold(x, 2 * bytes, false)) {
        srv_fail_with(x, 503, "busy_memory", NULL,
                      "the requests in flight hold all of --body-memory");
        return;
    }
    srv_exchange_submit(x, &request);
}
