/* The first look at a request: whether its head alone already decides the reply.
 *
 * Thread: the HTTP loop. */
#ifndef SRV_ADMIT_H
#define SRV_ADMIT_H

#include "server/exchange.h"
#include "server/head.h"

typedef enum srv_admission {
    SRV_ADMITTED, /* x->route is set; read the body, then run the handler */
    SRV_ANSWERED, /* a reply is set; what follows on the connection can be told apart */
    SRV_BROKEN,   /* a reply is set; the connection must be closed after it */
} srv_admission;

/* Checks framing, Host, Origin, route, method, query and media types, in that order, and fills x in.
 * Strings of x are copies. */
srv_admission srv_admit(srv_exchange *x, const srv_head *head, const char *method,
                        const char *path);

#endif
