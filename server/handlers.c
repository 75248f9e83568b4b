#include "server/handlers.h"

#include <stdlib.h>
#include <string.h>

#include "server/json/safetensors_read.h"

bool srv_read_body(srv_exchange *x, const srv_json_field *fields, size_t n, srv_json_value *values)
{
    const char *text = x->body.len ? x->body.data : "{}";
    size_t len = x->body.len ? x->body.len : 2;
    srv_json_error e;
    bool ok = x->is_blob ? srv_safetensors_read(x->body.data, x->body.len, fields, n, values, &e)
                         : srv_json_read(text, len, fields, n, values, &e);
    srv_exchange_drop(x, x->body.len);
    srv_buf_free(&x->body);
    if (!ok)
        srv_fail_with(x, strcmp(e.code, "internal") ? 400 : 500, e.code, e.param, e.message);
    return ok;
}

bool srv_read_kept_body(srv_exchange *x, const srv_json_field *fields, size_t n)
{
    srv_json_value *values = calloc(n, sizeof(*values));
    if (!values) {
        srv_fail_with(x, 503, "busy_memory", NULL, "out of memory");
        return false;
    }
    bool ok = srv_read_body(x, fields, n, values);
    x->fields = fields;
    x->n_fields = n;
    x->values = values;
    return ok;
}

const char *srv_query(const srv_exchange *x, const char *name)
{
    for (size_t i = 0; i < SRV_QUERY_MAX && x->route->params[i]; i++)
        if (!strcmp(x->route->params[i], name))
            return x->params[i];
    return NULL;
}

void srv_fail_field(srv_exchange *x, const char *param, const char *message)
{
    srv_fail_with(x, 400, "invalid_request", param, message);
}

bool srv_check_x_session(srv_exchange *x, const char *session)
{
    if (!x->x_session[0] || (session && !strcmp(x->x_session, session)))
        return true;
    srv_fail_with(x, 400, "invalid_request", "session",
                  "the X-Session header differs from the request's session");
    return false;
}

bool srv_check_session(srv_exchange *x, const srv_json_value *value)
{
    const char *session = value->present ? value->string.text : NULL;
    if (session && !attn_session_id_valid(session)) {
        srv_fail_field(x, "session", "a session id is 1-64 of A-Z a-z 0-9 . _ : - and not . or ..");
        return false;
    }
    return srv_check_x_session(x, session);
}

bool srv_find_given(srv_exchange *x, size_t first, size_t last, const char *message, size_t *given)
{
    *given = last + 1;
    for (size_t i = first; i <= last; i++) {
        if (!x->values[i].present)
            continue;
        if (*given <= last) {
            srv_fail_field(x, x->fields[i].name, message);
            return false;
        }
        *given = i;
    }
    return true;
}

/* The rows and ids stay as long as x does. */

void srv_take_rows(srv_exchange *x, const srv_json_value *value, attn_request *request)
{
    request->inputs = value->floats.values;
    request->n_inputs = value->floats.rows;
    request->input_size = value->floats.cols;
    srv_exchange_hold(x, request->n_inputs * request->input_size * sizeof(float), true);
}

void srv_take_tokens(srv_exchange *x, srv_json_value *value, attn_request *request)
{
    srv_exchange_hold(x, value->integers.count * sizeof(uint64_t), true);
    request->tokens = srv_narrow_ids(value);
    request->n_tokens = value->integers.count;
}

bool srv_take_trace(srv_exchange *x, const srv_json_value *value, const char *model,
                    uint64_t n_rows, uint64_t n_keys, attn_request *request, uint64_t *bytes)
{
    srv_json_error e;
    attn_error error;
    *bytes = 0;
    if (!value->present)
        return true;
    x->trace = calloc(1, sizeof(*x->trace));
    if (!x->trace) {
        srv_fail_with(x, 503, "busy_memory", NULL, "out of memory");
        return false;
    }
    if (!srv_trace_read(value, x->trace, &e)) {
        srv_fail_with(x, strcmp(e.code, "internal") ? 400 : 500, e.code, e.param, e.message);
        return false;
    }
    request->has_trace = true;
    request->trace = x->trace->capture;
    ptrdiff_t index = attn_model_find(x->app->engine, model);
    if (index < 0)
        return true; /* the engine says so better */
    if (attn_selection_check(x->app->engine, (size_t)index, &request->trace, &error) != ATTN_OK) {
        srv_fail_engine(x, &error);
        return false;
    }
    *bytes = attn_selection_bytes(x->app->engine, (size_t)index, &request->trace, n_rows, n_keys);
    if (*bytes > ATTN_TRACE_BYTES_MAX) {
        srv_fail(x, &(srv_error){
                        .status = 413,
                        .code = "tensor_too_large",
                        .message = "this is too much to look at at once",
                        .param = "trace",
                        .n_details = 2,
                        .details = {{"bytes", *bytes}, {"limit", ATTN_TRACE_BYTES_MAX}},
                    });
        return false;
    }
    return true;
}

uint32_t srv_narrow(uint64_t value)
{
    return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

const uint32_t *srv_narrow_ids(srv_json_value *value)
{
    char *bytes = (char *)value->integers.values;
    for (size_t i = 0; i < value->integers.count; i++) {
        uint64_t wide;
        memcpy(&wide, bytes + i * sizeof(wide), sizeof(wide));
        uint32_t id = srv_narrow(wide);
        memcpy(bytes + i * sizeof(id), &id, sizeof(id));
    }
    return (const uint32_t *)(const void *)bytes;
}

uint64_t srv_float_bytes(const srv_exchange *x)
{
    return x->wants_safetensors ? sizeof(float) : SRV_FLOAT_BYTES;
}

bool srv_check_reply_size(srv_exchange *x, const char *param, uint64_t count, uint64_t bytes_each)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(count, bytes_each, &bytes) || bytes > SRV_JSON_INTEGER_MAX)
        bytes = SRV_JSON_INTEGER_MAX;
    if (bytes <= x->app->config->max_body_bytes)
        return true;
    srv_fail(x, &(srv_error){
                    .status = 413,
                    .code = "tensor_too_large",
                    .message = "the reply would be larger than --max-body",
                    .param = param,
                    .n_details = 1,
                    .details = {{"bytes", bytes}},
                });
    return false;
}
