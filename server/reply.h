/* The headers of a reply, and a whole reply as text.
 *
 * Thread: whoever may read the exchange; the HTTP loop. */
#ifndef SRV_REPLY_H
#define SRV_REPLY_H

#include <stdbool.h>

#include "server/exchange.h"

#define SRV_HEADERS_MAX 16

typedef struct srv_headers {
    unsigned n;
    struct {
        const char *name, *value; /* borrowed from the exchange, or static */
    } items[SRV_HEADERS_MAX];
} srv_headers;

/* All headers of x's reply but those that say how long it is.
 * close: the connection ends with it. */
srv_headers srv_reply_headers(const srv_exchange *x, bool close);

/* Appends the whole reply as it goes over the wire. reason: the words for x->status. */
void srv_reply_text(const srv_exchange *x, const char *reason, bool close, srv_buf *b);

#endif
