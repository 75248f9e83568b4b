/* The web page: files of clients/web as they were when this was built, or of --web-root as they are.
 *
 * A file's name is lower-case letters, digits, `-` and `.`, and starts with a letter or a digit: no
 * name leads out of the folder. index.html is served at /, all of them under /web/.
 *
 * Thread: the HTTP loop. */
#ifndef SRV_WEB_H
#define SRV_WEB_H

#include <stdbool.h>
#include <stddef.h>

#include "server/exchange.h"

/* A file of --web-root may be so large. */
#define SRV_WEB_FILE_MAX ((size_t)1 << 20)

/* Sets the reply: that file, or that it has not changed; fails x with 404 if there is none. */
void srv_web_reply(srv_exchange *x, const char *name);

#endif
