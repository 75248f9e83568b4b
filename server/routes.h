/* The route table, and finding a route in it.
 *
 * Thread: constant data; any. */
#ifndef SRV_ROUTES_H
#define SRV_ROUTES_H

#include <stdbool.h>
#include <stddef.h>

#include "server/exchange.h"

#define SRV_ROUTES_MAX 64

/* At most SRV_ROUTES_MAX. */
size_t srv_route_count(void);
/* index < srv_route_count(). */
const srv_route *srv_route_at(size_t index);
size_t srv_route_index(const srv_route *route);

typedef struct srv_match {
    const srv_route *route; /* NULL: no such path, or not with that method */
    bool path_found;
    char allow[SRV_ALLOW_MAX];       /* "GET, HEAD, OPTIONS" of the path */
    char id[ATTN_ID_MAX + 1];        /* what stands for {id} or {name}; "" if it is too long */
    char name[ATTN_TENSOR_NAME_MAX]; /* what stands for a {name} behind that; likewise */
} srv_match;

/* Looks up a decoded path. */
void srv_route_find(const char *method, const char *path, srv_match *match);

#endif
