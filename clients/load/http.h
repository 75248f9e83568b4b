/* http.h: requests over a pool of keep-alive connections, in one thread, with one epoll.
 *
 * A call is one request and its reply. Whoever submits it owns it and must keep it until its `end`
 * is called, exactly once; `end` may free it and may submit others.
 */
#ifndef LOAD_HTTP_H
#define LOAD_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clients/load/text.h"

typedef enum load_failure {
    LOAD_FAIL_NONE,
    LOAD_FAIL_CONNECT,  /* no connection */
    LOAD_FAIL_CLOSED,   /* the server closed it before the reply's end */
    LOAD_FAIL_TIMEOUT,  /* nothing happened for too long */
    LOAD_FAIL_PROTOCOL, /* not HTTP, or not the reply that was asked for */
    LOAD_FAILURES,
} load_failure;
extern const char *const load_failure_names[LOAD_FAILURES];

typedef struct load_call load_call;
struct load_call {
    /* the caller's */
    load_text body; /* of the request */
    uint64_t due_ns;
    void *owner;
    void (*line)(load_call *call, char *line, size_t len); /* NULL: the reply is kept whole */
    void (*end)(load_call *call);

    /* the reply's */
    load_failure failure;
    int status;           /* 0: there was none */
    double retry_after_s; /* 0: not told */
    load_text reply;      /* its body, unless it went to `line` */
    uint64_t arrived_ns;  /* when its latest bytes came */

    /* the pool's */
    load_text head;
    bool retried;
    load_call *next;
};

typedef struct load_http load_http;

/* Takes http://HOST[:PORT]. Errors: NULL, and one line in `err`. */
load_http *load_http_open(const char *url, size_t max_connections, double timeout_s, char *err,
                          size_t err_size);
void load_http_close(load_http *h);

/* Sends a request as soon as there is a connection for it. Never calls `end` itself. */
void load_http_submit(load_http *h, load_call *call, const char *method, const char *path);
/* Handles what happens until `until_ns`, or one batch of it, whichever is first. */
void load_http_turn(load_http *h, uint64_t until_ns);
/* Submits a call and waits for its end; call->end is not used. True: a reply with a 2xx status. */
bool load_http_ask(load_http *h, load_call *call, const char *method, const char *path);
/* Frees the texts of a call. */
void load_call_free(load_call *call);

uint64_t load_now_ns(void);

#endif
