/* One request and its reply, as the handlers see it: no HTTP library, no sockets.
 *
 * Life: the HTTP loop fills the request in and runs the route's handler, itself or on an offload
 * thread. The handler either sets a reply (srv_reply, srv_fail) or submits an engine job. The loop
 * then asks srv_exchange_advance what to send, again after every wake, until there is something.
 *
 * Owners: the loop, the offload task while one runs, and the job's sink until `done` each hold a
 * reference; the exchange (with the job and the values that the job borrows) dies with the last.
 *
 * Thread: plain fields belong to whoever runs the handler: the loop, or the offload thread while
 * `working` is set. The job's callbacks touch only `stream`, `job_done` and the wake list. Fields
 * that two sides share are atomic. */
#ifndef SRV_EXCHANGE_H
#define SRV_EXCHANGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "server/buf.h"
#include "server/config.h"
#include "server/head.h"
#include "server/json/json_read.h"
#include "server/metrics.h"
#include "server/offload.h"
#include "server/stream.h"
#include "server/wire.h"

typedef struct srv_exchange srv_exchange;
typedef struct srv_watch srv_watch;
typedef struct srv_watcher srv_watcher;

/* Formatting this many floats, parsing this much of a body, or tokenizing this much text, is done
 * off the loop. */
#define SRV_OFFLOAD_FLOATS 4096
#define SRV_OFFLOAD_BYTES ((size_t)32 * 1024)
#define SRV_OFFLOAD_TEXT 2048

/* What all requests share. Created by main; the loop and the handlers only read the pointers. */
typedef struct srv_app {
    const srv_config *config;
    attn_engine *engine;
    srv_metrics *metrics;
    srv_offload *offload;
    srv_watch *watch;
    /* Exchanges that the loop has to look at, newest first, each with a reference. It does so in every
     * turn; wake_fd is written only when it is about to wait, or waits. */
    _Atomic(srv_exchange *) woken;
    atomic_bool expects_wake;
    int wake_fd;
    _Atomic uint64_t held_bytes; /* bodies and collected replies in flight: --body-memory */
    atomic_bool stopping;
    /* Where it listens, set before the loop starts: "http://127.0.0.1:8080". */
    char url[160];
    unsigned port;
} srv_app;

/* Media types a route can reply with. */
enum {
    SRV_GIVES_JSON = 1,
    SRV_GIVES_NDJSON = 2,
    SRV_GIVES_SSE = 4,
    SRV_GIVES_TEXT = 8,
    SRV_GIVES_SAFETENSORS = 16,
    SRV_GIVES_FRAMES = 32,
    SRV_GIVES_HTML = 64,
};

enum {
    SRV_ROUTE_BODY = 1,    /* takes a JSON body */
    SRV_ROUTE_SESSION = 2, /* {id} is a session's */
    SRV_ROUTE_BLOCKS = 4,  /* the handler may block: it runs on an offload thread */
    SRV_ROUTE_ALWAYS = 8,  /* answered also while the server shuts down */
    SRV_ROUTE_BLOB = 16,   /* the body may be safetensors */
};

typedef struct srv_route {
    const char *method;              /* GET answers HEAD too */
    const char *template;            /* "/sessions/{id}" */
    void (*handle)(srv_exchange *x); /* NULL: not built yet, 501 */
    unsigned flags;
    unsigned gives;                    /* 0: nothing that Accept could refuse */
    const char *params[SRV_QUERY_MAX]; /* the query parameters it takes */
} srv_route;

/* Room for the methods of a path: "GET, HEAD, DELETE, OPTIONS". */
#define SRV_ALLOW_MAX 48

typedef enum srv_line {
    SRV_LINE,      /* a line was made */
    SRV_LINE_WAIT, /* none now; a wake follows */
    SRV_LINE_END,  /* none any more */
} srv_line;

struct srv_exchange {
    srv_app *app;
    atomic_uint refs;

    /* The request. */
    const srv_route *route;
    char id[ATTN_ID_MAX + 1];        /* the {id} or {name} of the path */
    char name[ATTN_TENSOR_NAME_MAX]; /* the {name} behind an {id}, "" if it is too long */
    char x_session[ATTN_ID_MAX + 1]; /* the X-Session header, "" if absent */
    bool wants_sse;                  /* Accept prefers it to NDJSON */
    bool wants_safetensors;          /* Accept prefers it to JSON */
    bool wants_frames;               /* Accept prefers them to NDJSON and SSE */
    bool wants_html;                 /* Accept prefers it to plain text */
    bool takes_gzip;                 /* Accept-Encoding names gzip */
    char if_none_match[24];          /* that header, "" if absent or too long */
    bool takes_only_safetensors;     /* Accept lets nothing else of the route through */
    bool is_blob;                    /* the body is safetensors */
    char *params[SRV_QUERY_MAX];     /* values, as in route->params; NULL: not given */
    srv_buf body;
    uint64_t held_bytes; /* what it took of app->held_bytes */
    /* What was read of the body and a job borrows; NULL: nothing. */
    const srv_json_field *fields;
    srv_json_value *values;
    size_t n_fields;

    /* The reply, once status is not 0. */
    unsigned status;
    const char *content_type;
    srv_buf reply;
    const char *error_code; /* of an error reply */
    bool retry_after;
    char etag[24];              /* a file of the page: its ETag, "" otherwise */
    bool gzipped;               /* the reply is compressed */
    char allow[SRV_ALLOW_MAX];  /* the Allow header, "" for none */
    bool preflight;             /* the reply to an OPTIONS request */
    const char *allowed_origin; /* the Access-Control-Allow-Origin header, NULL for none */

    /* The job, if the handler submitted one. */
    _Atomic(attn_job *) job;
    atomic_bool job_done;
    atomic_bool gone;            /* the client went away: whoever submits must cancel */
    const char *positions_param; /* the field that says how many positions: "inputs", "steps" ... */
    uint32_t token;              /* decode: the only one given */
    bool u8;                     /* a tensor: as U8 */
    struct srv_trace *trace;     /* prefill, decode: what of its inside was asked for, or NULL */
    bool samples;                /* decode: the engine chooses the tokens */
    srv_stream *stream;          /* decode: where its steps go */
    attn_output output;          /* prefill: which rows the reply shows */
    void (*finish)(srv_exchange *x); /* makes the reply of a job that is done */
    srv_watcher *watcher;            /* /watch: its place in the hub */
    srv_line (*next_line)(srv_exchange *x, srv_buf *line); /* set: the reply is streamed */
    srv_buf line;     /* the line being read, from line_at on */
    srv_buf prepared; /* the next one, if it was made off the loop */
    size_t line_at;
    bool line_done; /* the done object was made */
    bool end_noted; /* its end was counted */

    atomic_bool working; /* an offload thread has it */
    srv_task task;
    void (*work)(srv_exchange *x);
    srv_exchange *next_woken;
    atomic_bool is_woken;
};

/* Makes *x, which lies at the start of a malloc'ed block that its last reference frees, an exchange
 * with one reference. The rest of the block is the caller's. */
void srv_exchange_init(srv_exchange *x, srv_app *app);
void srv_exchange_ref(srv_exchange *x);
/* Thread: any. */
void srv_exchange_unref(srv_exchange *x);

/* Makes the loop look at x soon. Thread: any that holds a reference. */
void srv_exchange_wake(srv_exchange *x);
/* The loop is about to wait: from now on a wake writes wake_fd, once. Returns whether the list has some
 * already: then it is not to wait. Loop only. */
bool srv_exchange_expect_wake(srv_app *app);
/* The loop does not wait any more. Takes the wake list, linked by next_woken, with its references.
 * Whoever walks it reads the next one and clears is_woken before it looks at an exchange: from then on
 * it can be woken again. Loop only. */
srv_exchange *srv_exchange_take_woken(srv_app *app);

/* Counts n bytes against --body-memory until srv_exchange_drop or the exchange's end. False when
 * they do not fit; nothing was counted then. `force`: counts them anyway. */
bool srv_exchange_hold(srv_exchange *x, uint64_t n, bool force);
void srv_exchange_drop(srv_exchange *x, uint64_t n);

/* Makes room for a reply of that many bytes besides what surrounds them. */
void srv_exchange_expect(srv_exchange *x, uint64_t bytes);

/* Sets the reply: what was written to x->reply, with that status and type. */
void srv_reply(srv_exchange *x, unsigned status, const char *content_type);
void srv_reply_json(srv_exchange *x, unsigned status);
/* Replaces whatever was written by an error. */
void srv_fail(srv_exchange *x, const srv_error *error);
void srv_fail_with(srv_exchange *x, unsigned status, const char *code, const char *param,
                   const char *message);
void srv_fail_engine(srv_exchange *x, const attn_error *error);

/* Runs `work` on an offload thread; a wake follows. Until then x is that thread's. Loop only. */
void srv_exchange_offload(srv_exchange *x, void (*work)(srv_exchange *x));

/* Runs x->route->handle: here, or on an offload thread if it may take long. Loop only. */
void srv_exchange_start(srv_exchange *x);

/* Runs `work`, which is the rest of the handler: here, or on an offload thread if it is long and
 * this is the loop. The caller does not touch x any more. */
void srv_exchange_go_on(srv_exchange *x, bool is_long, void (*work)(srv_exchange *x));

/* Submits the request with x as its sink (steps go to x->stream if that is set) and fails x if the
 * engine refuses it. */
bool srv_exchange_submit(srv_exchange *x, const attn_request *request);
/* The result, once job_done. */
const attn_result *srv_exchange_result(srv_exchange *x);
/* If the job ended without any result (an error, a cancel, the shutdown), sets the reply that says
 * so and returns true. */
bool srv_exchange_fail_job(srv_exchange *x);
/* Counts a job that has ended before its time, once. Loop only, after every wake. */
void srv_exchange_note_end(srv_exchange *x);
/* Whether its job was given up because of a reader that stalled. Loop only. */
bool srv_exchange_stalled(srv_exchange *x);
/* The client went away: its job ends soon. Loop only. */
void srv_exchange_abandon(srv_exchange *x);

typedef enum srv_next {
    SRV_NEXT_WAIT,   /* a wake follows */
    SRV_NEXT_REPLY,  /* x->status and x->reply */
    SRV_NEXT_STREAM, /* 200, then the lines of x->next_line */
} srv_next;

/* Reads a streamed reply on: copies up to max bytes of its lines to `to`, a keep-alive comment if
 * nothing else is there and one is due. Returns how many; when none, *more tells whether some will
 * come (a wake follows) or that was all. Loop only. */
size_t srv_exchange_read(srv_exchange *x, char *to, size_t max, bool keep_alive_due, bool *more);

/* What to do with x now. Loop only. */
srv_next srv_exchange_advance(srv_exchange *x);

#endif
