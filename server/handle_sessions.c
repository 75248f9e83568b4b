#include "server/handlers.h"

#include <stdlib.h>
#include <string.h>

#define LIMIT_DEFAULT 100
#define LIMIT_MAX 1000

static void reply_session(srv_exchange *x, const attn_session_info *info, unsigned status)
{
    srv_wire_session(&x->reply, info);
    srv_buf_puts(&x->reply, "\n");
    srv_reply_json(x, status);
}

static bool read_page(srv_exchange *x, size_t *limit, const char **after)
{
    const char *text = srv_query(x, "limit");
    *limit = LIMIT_DEFAULT;
    if (text) {
        size_t digits = strspn(text, "0123456789");
        *limit = digits && digits <= 4 && !text[digits] ? strtoul(text, NULL, 10) : 0;
    }
    if (*limit < 1 || *limit > LIMIT_MAX) {
        srv_fail_field(x, "limit", "limit is an integer from 1 to 1000");
        return false;
    }
    *after = srv_query(x, "after");
    if (*after && !attn_session_id_valid(*after)) {
        srv_fail_field(x, "after", "after is a session id");
        return false;
    }
    return true;
}

void srv_handle_session_list(srv_exchange *x)
{
    size_t limit;
    const char *after;
    if (!read_page(x, &limit, &after))
        return;
    attn_session_info *infos = calloc(limit, sizeof(*infos));
    if (!infos) {
        srv_fail_with(x, 503, "busy_memory", NULL, "out of memory");
        return;
    }
    bool more = false;
    size_t n = attn_session_list(x->app->engine, after, limit, infos, &more);
    attn_totals totals;
    attn_engine_totals(x->app->engine, &totals);
    srv_buf *b = &x->reply;
    srv_buf_puts(b, "{\"sessions\":[");
    for (size_t i = 0; i < n; i++) {
        if (i)
            srv_buf_puts(b, ",");
        srv_wire_session(b, &infos[i]);
    }
    srv_buf_puts(b, "],\"totals\":");
    srv_wire_totals(b, &totals);
    /* An id needs no escapes. */
    if (more && n)
        srv_buf_printf(b, ",\"next\":\"%s\"}\n", infos[n - 1].id);
    else
        srv_buf_puts(b, ",\"next\":null}\n");
    free(infos);
    srv_reply_json(x, 200);
}

void srv_handle_session_get(srv_exchange *x)
{
    attn_session_info info;
    attn_error error;
    if (attn_session_get(x->app->engine, x->id, &info, &error) != ATTN_OK)
        srv_fail_engine(x, &error);
    else
        reply_session(x, &info, 200);
}

void srv_handle_session_delete(srv_exchange *x)
{
    attn_error error;
    if (attn_session_delete(x->app->engine, x->id, &error) != ATTN_OK)
        srv_fail_engine(x, &error);
    else
        srv_reply(x, 204, NULL);
}

void srv_handle_session_fork(srv_exchange *x)
{
    enum { AS, AT, IF_LENGTH, COUNT };
    static const srv_json_field fields[COUNT] = {
        [AS] = {"as", SRV_JSON_STRING, true, 0, SIZE_MAX},
        [AT] = {"at", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
        [IF_LENGTH] = {"if_length", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
    };
    srv_json_value v[COUNT];
    if (!srv_read_body(x, fields, COUNT, v))
        return;
    uint64_t at = v[AT].present ? v[AT].integer : UINT64_MAX;
    uint64_t if_length = v[IF_LENGTH].present ? v[IF_LENGTH].integer : UINT64_MAX;
    attn_session_info info;
    attn_error error;
    if (attn_session_fork(x->app->engine, x->id, v[AS].string.text, at, if_length, &info, &error) !=
        ATTN_OK)
        srv_fail_engine(x, &error);
    else
        reply_session(x, &info, 201);
    srv_json_values_free(fields, COUNT, v);
}

void srv_handle_session_truncate(srv_exchange *x)
{
    enum { LENGTH, IF_LENGTH, COUNT };
    static const srv_json_field fields[COUNT] = {
        [LENGTH] = {"length", SRV_JSON_INTEGER, true, 0, SRV_JSON_INTEGER_MAX},
        [IF_LENGTH] = {"if_length", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
    };
    srv_json_value v[COUNT];
    if (!srv_read_body(x, fields, COUNT, v))
        return;
    uint64_t if_length = v[IF_LENGTH].present ? v[IF_LENGTH].integer : UINT64_MAX;
    attn_session_info info;
    attn_error error;
    if (attn_session_truncate(x->app->engine, x->id, v[LENGTH].integer, if_length, &info, &error) !=
        ATTN_OK)
        srv_fail_engine(x, &error);
    else
        reply_session(x, &info, 200);
    srv_json_values_free(fields, COUNT, v);
}

/* Takes a body that says nothing: none, or {}. */
static bool read_no_fields(srv_exchange *x)
{
    srv_json_value none;
    static const srv_json_field no_field = {.name = ""};
    return srv_read_body(x, &no_field, 0, &none);
}

void srv_handle_session_cancel(srv_exchange *x)
{
    attn_session_info info;
    attn_error error;
    if (!read_no_fields(x))
        return;
    if (attn_session_cancel(x->app->engine, x->id, &info, &error) != ATTN_OK)
        srv_fail_engine(x, &error);
    else
        reply_session(x, &info, 200);
}

static void finish_verify(srv_exchange *x)
{
    if (srv_exchange_fail_job(x))
        return;
    srv_wire_verify(&x->reply, srv_exchange_result(x));
    srv_buf_puts(&x->reply, "\n");
    srv_reply_json(x, 200);
}

void srv_handle_session_verify(srv_exchange *x)
{
    if (!read_no_fields(x))
        return;
    attn_request request = attn_request_init(ATTN_JOB_VERIFY);
    request.session = x->id;
    x->finish = finish_verify;
    srv_exchange_submit(x, &request);
}
