#include "server/handlers.h"

#include <string.h>

bool srv_read_body(srv_exchange *x, const srv_json_field *fields, size_t n, srv_json_value *values)
{
    const char *text = x->body.len ? x->body.data : "{}";
    size_t len = x->body.len ? x->body.len : 2;
    srv_json_error e;
    bool ok = srv_json_read(text, len, fields, n, values, &e);
    srv_exchange_drop(x, x->body.len);
    srv_buf_free(&x->body);
    if (!ok)
        srv_fail_with(x, strcmp(e.code, "internal") ? 400 : 500, e.code, e.param, e.message);
    return ok;
}

bool srv_check_x_session(srv_exchange *x, const char *session)
{
    if (!x->x_session[0] || (session && !strcmp(x->x_session, session)))
        return true;
    srv_fail_with(x, 400, "invalid_request", "session",
                  "the X-Session header differs from the request's session");
    return false;
}
