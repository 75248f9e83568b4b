/* The handlers of the routes. Each ends with a reply set or a job submitted (exchange.h).
 *
 * Thread: the HTTP loop, or an offload thread for routes that block and for large bodies. */
#ifndef SRV_HANDLERS_H
#define SRV_HANDLERS_H

#include "server/exchange.h"
#include "server/json/json_read.h"

/* Text of one float in a reply, comma and brackets included. */
#define SRV_FLOAT_BYTES 16
/* Text of one token id, comma included. */
#define SRV_ID_BYTES 11
/* The longest `wait_ms`. */
#define SRV_WAIT_MS_MAX 3600000

/* Reads x->body, JSON or safetensors, as an object of these fields; fails x if it is none. An absent body is an empty
 * object when no field is required. The body's memory is given back. */
bool srv_read_body(srv_exchange *x, const srv_json_field *fields, size_t n, srv_json_value *values);

/* The same for values that a job borrows: they become x->values. */
bool srv_read_kept_body(srv_exchange *x, const srv_json_field *fields, size_t n);

/* Fails x with invalid_request. */
void srv_fail_field(srv_exchange *x, const char *param, const char *message);

/* Checks a request's session against the X-Session header, if there is one; fails x. */
bool srv_check_x_session(srv_exchange *x, const char *session);
/* Checks the field `session`, and that header; fails x. */
bool srv_check_session(srv_exchange *x, const srv_json_value *value);

/* Finds which one of x->values[first, last] is given: its index, or last + 1 for none. Fails x with
 * `message` if two are, naming the second. */
bool srv_find_given(srv_exchange *x, size_t first, size_t last, const char *message, size_t *given);

/* Lets the request borrow the rows or the token ids of a value. */
void srv_take_rows(srv_exchange *x, const srv_json_value *value, attn_request *request);
void srv_take_tokens(srv_exchange *x, srv_json_value *value, attn_request *request);
/* A value's ids, narrowed in place; those past 32 bits become the largest, which is nobody's. */
const uint32_t *srv_narrow_ids(srv_json_value *value);
uint32_t srv_narrow(uint64_t value);

/* Reads a request's `trace`, if it is given, for a session of that model which has, or will have, up
 * to n_keys positions: sets x->trace and the request's selection. *bytes: of the tensors of n_rows
 * rows. Fails x. */
bool srv_take_trace(srv_exchange *x, const srv_json_value *value, const char *model,
                    uint64_t n_rows, uint64_t n_keys, attn_request *request, uint64_t *bytes);

/* Bytes of a float in the reply that x gets, unless that is streamed. */
uint64_t srv_float_bytes(const srv_exchange *x);
/* Fails x if a reply with so many times so many bytes would be larger than the largest body. */
bool srv_check_reply_size(srv_exchange *x, const char *param, uint64_t count, uint64_t bytes_each);

void srv_handle_prefill(srv_exchange *x);
void srv_handle_decode(srv_exchange *x);

/* The value of a query parameter of the route, or NULL if it is not given. */
const char *srv_query(const srv_exchange *x, const char *name);

void srv_handle_session_list(srv_exchange *x);
void srv_handle_session_get(srv_exchange *x);
void srv_handle_session_delete(srv_exchange *x);
void srv_handle_session_fork(srv_exchange *x);
void srv_handle_session_truncate(srv_exchange *x);
void srv_handle_session_cancel(srv_exchange *x);
void srv_handle_session_verify(srv_exchange *x);
void srv_handle_session_tokens(srv_exchange *x);
void srv_handle_tensor(srv_exchange *x);
void srv_handle_watch(srv_exchange *x);

void srv_handle_tokenize(srv_exchange *x);
void srv_handle_detokenize(srv_exchange *x);

void srv_handle_model_list(srv_exchange *x);
void srv_handle_model_get(srv_exchange *x);
void srv_handle_health(srv_exchange *x);
void srv_handle_ready(srv_exchange *x);
void srv_handle_metrics(srv_exchange *x);
void srv_handle_openapi(srv_exchange *x);
void srv_handle_index(srv_exchange *x);
void srv_handle_web(srv_exchange *x);

#endif
