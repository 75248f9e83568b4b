/* What the server counts, and everything countable as Prometheus text.
 *
 * Counters are C11 atomics in fixed tables, so counting never locks, allocates or fails. Rendering
 * reads them and the engine's counters as they stand; it never waits for the engine's work.
 *
 * Thread: any, at any time between create and destroy. */
#ifndef SRV_METRICS_H
#define SRV_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "server/buf.h"

typedef struct srv_metrics srv_metrics;

/* The route index of a request that no route took. */
#define SRV_METRICS_NO_ROUTE SIZE_MAX

/* Why a run ended before its time. */
typedef enum srv_metrics_cancel {
    SRV_METRICS_CANCEL_ASKED,       /* by a cancel or delete request */
    SRV_METRICS_CANCEL_CLIENT_GONE, /* its client hung up */
    SRV_METRICS_CANCEL_STALLED,     /* its client read too slowly */
    SRV_METRICS_CANCEL_SHUTDOWN,
} srv_metrics_cancel;

/* Makes the counters. `routes` names the template of each route index ("/sessions/{id}"); indexes
 * with the same template (other methods) share their counters.
 * Owner: the strings must outlive the metrics. Errors: NULL when memory is out. */
srv_metrics *srv_metrics_create(const char *const *routes, size_t n_routes);
void srv_metrics_destroy(srv_metrics *m); /* NULL is allowed */

/* A request was answered to its end: `route` is its index or SRV_METRICS_NO_ROUTE, `status` the
 * HTTP status (499: the client left first), `seconds` from its first byte to its last. */
void srv_metrics_request(srv_metrics *m, size_t route, unsigned status, double seconds);

/* A running prefill, decode or verify was ended early. */
void srv_metrics_cancelled(srv_metrics *m, srv_metrics_cancel reason);

/* A request was answered with this error code of the wire ("queue_full"). Unknown codes count as
 * "internal". */
void srv_metrics_rejected(srv_metrics *m, const char *code);

/* A watcher came (+1) or left (-1); a watcher lost `n` frames. */
void srv_metrics_watchers(srv_metrics *m, int change);
void srv_metrics_watch_dropped(srv_metrics *m, uint64_t n);

/* Appends all metrics as Prometheus text (format 0.0.4). `engine` NULL (still starting): only what
 * the server counts itself. What does not fit sets out->failed. */
void srv_metrics_render(const srv_metrics *m, attn_engine *engine, srv_buf *out);

#endif
