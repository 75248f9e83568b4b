/* The HTTP side: one thread that owns every connection.
 *
 * It runs its own epoll loop around libmicrohttpd, whose polling threads can stall when exactly 128
 * sockets are ready at once. In that loop there are: the library's epoll descriptor; an eventfd that
 * other threads write when an exchange has something for the loop; and, for each connection whose
 * request is being worked on, a watch for its peer going away. A peer that closes only its sending
 * side counts as gone.
 *
 * Only the loop calls the library. Other threads put exchanges on the wake list (exchange.h), and
 * the loop resumes their connections. The loop never waits for anything but epoll.
 *
 * Time limits of the loop's own: a head has 30 s, and so has a connection between requests; a body
 * has 30 s and a second more for every 64 KiB. */
#ifndef SRV_HTTP_H
#define SRV_HTTP_H

#include <stdbool.h>
#include <stddef.h>

#include "server/exchange.h"

typedef struct srv_http srv_http;

/* Binds --host and --port, and sets app->url, app->port and app->wake_fd. Nobody is served yet.
 * Errors: NULL, and `err` is one line that names the flag. */
srv_http *srv_http_open(srv_app *app, char *err, size_t err_size);

/* Listens and starts the loop. app's pointers must be set. Errors: false, and a line in `err`. */
bool srv_http_start(srv_http *http, char *err, size_t err_size);

/* Ends the service in order: no new connections; the engine is shut down, so that every run ends
 * and every stream gets its last line; those who do not take their reply within 3.5 s are cut off;
 * then the loop ends. Waits for that. Thread: the one that started it. */
void srv_http_stop(srv_http *http);

/* Frees all. After the offload threads and the engine have ended. NULL is allowed. */
void srv_http_close(srv_http *http);

#endif
