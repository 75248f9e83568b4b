/* What a request's headers may say: framing, who is asked (Host), who asks (Origin), media types.
 *
 * Thread: pure functions over strings. */
#ifndef SRV_HEAD_H
#define SRV_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/config.h"

/* The most query parameters of a route. */
#define SRV_QUERY_MAX 6

/* The headers that matter. Strings are borrowed from the request; NULL when absent, the first when
 * repeated. */
typedef struct srv_head {
    bool http_1_0;
    bool bad_name;     /* a header name with white space or a control character */
    bool other_coding; /* a Transfer-Encoding that is not "chunked" */
    bool expects;      /* Expect: the client waits before it sends the body */
    unsigned n_lengths, n_codings, n_hosts;
    const char *content_length, *host, *origin, *content_type, *accept, *x_session,
        *accept_encoding, *if_none_match;
    /* The query's parameters, as many as any route takes, and one more. */
    unsigned n_params;
    struct {
        const char *name, *value;
    } params[SRV_QUERY_MAX + 1];
} srv_head;

/* Takes one header in; names compare without case. */
void srv_head_add(srv_head *head, const char *name, size_t name_len, const char *value,
                  size_t value_len);
/* Takes one query parameter in; value may be NULL. */
void srv_head_add_param(srv_head *head, const char *name, const char *value);

/* The status that a head with broken or ambiguous framing deserves: 400, 501, or 0 if it is sound.
 * A connection with such a request must not be used any further: two readers of it may disagree
 * about where the next request starts. */
unsigned srv_head_framing(const srv_head *head);

/* The body's length if one was stated, 0 if not (or chunked), UINT64_MAX if it is too large to be a
 * number. */
uint64_t srv_head_content_length(const srv_head *head);
bool srv_head_has_body(const srv_head *head);

/* Whether Host names this server: a loopback name, or one of --allowed-host (with that port if it
 * has one). HTTP/1.0 may leave it away. */
bool srv_head_host_allowed(const srv_head *head, const srv_config *config);

typedef enum srv_origin {
    SRV_ORIGIN_OWN,     /* none stated, or this server's own */
    SRV_ORIGIN_ALLOWED, /* one of --cors-origin */
    SRV_ORIGIN_FOREIGN,
} srv_origin;

/* `port`: the server's own. *allow: what Access-Control-Allow-Origin says if it is ALLOWED. */
srv_origin srv_head_origin(const srv_head *head, const srv_config *config, unsigned port,
                           const char **allow);

/* Whether the body is to be read as JSON: stated so, not stated, or curl's default form type. */
bool srv_head_is_json(const srv_head *head);
bool srv_head_is_safetensors(const srv_head *head);
/* Whether Accept-Encoding names gzip and does not refuse it. */
bool srv_head_takes_gzip(const srv_head *head);

/* Whether an Accept value lets through the type, given as "type", "subtype". NULL lets all. */
bool srv_accepts(const char *accept, const char *type, const char *subtype);
/* Whether it wants the type more than the usual one: by a higher quality, or by naming it while it
 * names the usual one no more than that. */
bool srv_prefers(const char *accept, const char *type, const char *subtype, const char *usual_type,
                 const char *usual_subtype);

#endif
