/* The handlers of the routes. Each ends with a reply set or a job submitted (exchange.h).
 *
 * Thread: the HTTP loop, or an offload thread for routes that block and for large bodies. */
#ifndef SRV_HANDLERS_H
#define SRV_HANDLERS_H

#include "server/exchange.h"
#include "server/json/json_read.h"

/* Reads x->body as an object of these fields; fails x if it is none. An absent body is an empty
 * object when no field is required. The body's memory is given back. */
bool srv_read_body(srv_exchange *x, const srv_json_field *fields, size_t n, srv_json_value *values);

/* Checks a request's session against the X-Session header, if there is one; fails x. */
bool srv_check_x_session(srv_exchange *x, const char *session);

void srv_handle_prefill(srv_exchange *x);
void srv_handle_decode(srv_exchange *x);

void srv_handle_session_list(srv_exchange *x);
void srv_handle_session_get(srv_exchange *x);
void srv_handle_session_delete(srv_exchange *x);
void srv_handle_session_truncate(srv_exchange *x);
void srv_handle_session_cancel(srv_exchange *x);
void srv_handle_session_verify(srv_exchange *x);

void srv_handle_model_list(srv_exchange *x);
void srv_handle_model_get(srv_exchange *x);
void srv_handle_health(srv_exchange *x);
void srv_handle_ready(srv_exchange *x);
void srv_handle_metrics(srv_exchange *x);
void srv_handle_openapi(srv_exchange *x);
void srv_handle_index(srv_exchange *x);

#endif
