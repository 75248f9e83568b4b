/* Binding the one listening socket.
 *
 * Thread: the starting one. */
#ifndef SRV_LISTEN_H
#define SRV_LISTEN_H

#include <stddef.h>

/* Binds host and port (0: a free one); does not listen yet. Returns the descriptor, non-blocking
 * and closed on exec.
 * Errors: -1, and `err` is one line that names --host or --port. */
int srv_listen_bind(const char *host, unsigned port, char *err, size_t err_size);

/* The port that fd is bound to, and the address as a URL ("http://[::1]:8080"). */
unsigned srv_listen_name(int fd, char *url, size_t url_size);

#endif
