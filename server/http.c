#include "server/http.h"

#include <errno.h>
#include <malloc.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "server/admit.h"
#include "server/listen.h"
#include "server/log.h"
#include "server/reply.h"
#include "server/routes.h"
#include "server/watch.h"

#define HEAD_TIMEOUT_MS 30000
#define PEEK_MS 500
#define BODY_TIMEOUT_MS 30000
#define BODY_BYTES_PER_MS 64 /* how fast a body must come beyond that */
/* A refused body is read to its end if it is no longer than this, and the connection lives on. A
 * longer one is answered at once, and of the rest this much is read, lest a reset overtake the
 * answer. */
#define DRAIN_BYTES ((uint64_t)1 << 20)
#define LINGER_BYTES ((uint64_t)32 << 20)
#define KEEP_ALIVE_MS 5000
/* A client is watched for going away once it waits for longer than this: most wait less, and
 * watching costs as much as reading the request. */
#define WATCH_MS 10
/* A reader that stalled gets this long to fetch what is left for it. */
#define STALLED_GRACE_MS 5000
#define STOP_MS 3500
/* A watcher whose host does not answer. */
#define WATCHER_TIMEOUT_MS (15 * 60 * 1000)
/* How often at most libc is asked to return memory, and how much must have become unused to make
 * that worth while although requests are at work. */
#define TRIM_MS 5000
#define TRIM_BYTES ((size_t)64 << 20)
/* What the library may keep for a connection: its head, and the piece of the reply being sent. */
#define CONNECTION_BYTES ((size_t)32 * 1024)
/* Unsent bytes the kernel may hold for a connection: a reader that stalls is noticed soon. */
#define UNSENT_BYTES (128 * 1024)

/* One client's connection, from accept to close. */
struct peer {
    int fd;
    bool is_idle; /* in http->idle */
    bool peeked;  /* once, a while after it became idle */
    int64_t idle_since_ms;
    TAILQ_ENTRY(peer) idle;
};

/* One request; begins with the exchange, which frees it. The rest is the loop's alone. */
struct request {
    srv_exchange x;
    srv_http *http;
    struct MHD_Connection *connection; /* NULL once the library has let go of it */
    struct peer *peer;
    enum { READING, WORKING, SENDING } phase;
    bool suspended;
    bool watched;   /* its socket is in the epoll set */
    bool unwatched; /* in http->unwatched: it is not yet, but is to be */
    bool gone;      /* close the connection when it is resumed */
    bool is_head;
    bool streaming;
    bool lingering; /* answered while its body was coming in */
    bool keep_alive_due;
    unsigned moved_turn; /* the last one in which it got on */
    int64_t started_ms, last_sent_ms, close_at_ms, watch_at_ms;
    uint64_t announced, received, drained; /* bytes of the body */
    uint64_t expected;                     /* bytes that room was made for at once */
    TAILQ_ENTRY(request) live, to_watch;
};

TAILQ_HEAD(peers, peer);
TAILQ_HEAD(requests, request);

struct srv_http {
    srv_app *app;
    struct MHD_Daemon *daemon;
    int epoll_fd, listen_fd;
    pthread_t thread;
    struct peers idle;         /* without a request, longest first */
    struct requests live;      /* that the library holds */
    struct requests unwatched; /* that wait, longest first */
    uint64_t expected_bytes;   /* of all requests; at most --body-memory */
    unsigned n_turns;
    int64_t swept_ms, trimmed_ms;
    bool trim_due;       /* there were requests since */
    size_t least_unused; /* of the heap, at any look since it was trimmed */
};

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void set_option(int fd, int level, int option, int value)
{
    /* What the kernel does not know it does without. */
    (void)setsockopt(fd, level, option, &value, sizeof(value));
}

/* Whether the peer has closed its side and all it sent was read. The library does not notice a close
 * that came together with the last bytes. */
static bool has_closed(const struct peer *peer)
{
    char byte;
    return recv(peer->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* ---------------------------------------------------------------------------- suspending */

/* Watches soon for the peer going away while nothing is read from it. */
static void watch_soon(struct request *r)
{
    if (r->watched || r->unwatched)
        return;
    r->unwatched = true;
    r->watch_at_ms = now_ms() + WATCH_MS;
    TAILQ_INSERT_TAIL(&r->http->unwatched, r, to_watch);
}

static void unwatch(struct request *r)
{
    if (r->unwatched)
        TAILQ_REMOVE(&r->http->unwatched, r, to_watch);
    if (r->watched)
        epoll_ctl(r->http->epoll_fd, EPOLL_CTL_DEL, r->peer->fd, NULL);
    r->watched = r->unwatched = false;
}

/* Watches those who have waited for long enough. Returns in how many milliseconds the next one will
 * have, or max_ms. */
static int watch_some(srv_http *h, int max_ms)
{
    struct request *r = TAILQ_FIRST(&h->unwatched);
    for (const int64_t now = r ? now_ms() : 0; r; r = TAILQ_FIRST(&h->unwatched)) {
        struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = r};
        if (r->watch_at_ms > now)
            return (int)(r->watch_at_ms - now) < max_ms ? (int)(r->watch_at_ms - now) : max_ms;
        TAILQ_REMOVE(&h->unwatched, r, to_watch);
        r->unwatched = false;
        r->watched = !epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, r->peer->fd, &event);
    }
    return max_ms;
}

static void resume(struct request *r)
{
    if (!r->suspended)
        return;
    r->suspended = false;
    MHD_resume_connection(r->connection);
}

/* Nothing can be done for the request until it is woken: suspends it, but not in a turn in which it got
 * on. The library asks again in the next one, and short work is done by then: suspending and resuming
 * costs more than asking. */
static bool wait_for_wake(struct request *r)
{
    if (r->moved_turn == r->http->n_turns)
        return false;
    r->suspended = true;
    MHD_suspend_connection(r->connection);
    return true;
}

/* Ends a request whose client is gone, or is given up. */
static void cut_off(struct request *r)
{
    r->gone = true;
    srv_exchange_abandon(&r->x);
    shutdown(r->peer->fd, SHUT_RDWR);
    resume(r);
}

/* ------------------------------------------------------------------------------- replies */

static enum MHD_Result queue(struct request *r, struct MHD_Response *response)
{
    if (!response)
        return MHD_NO;
    srv_headers h = srv_reply_headers(&r->x, atomic_load(&r->x.app->stopping));
    enum MHD_Result queued = MHD_YES;
    for (unsigned i = 0; i < h.n && queued == MHD_YES; i++)
        queued = MHD_add_response_header(response, h.items[i].name, h.items[i].value);
    if (queued == MHD_YES) {
        r->phase = SENDING;
        queued = MHD_queue_response(r->connection, r->x.status, response);
    }
    MHD_destroy_response(response);
    return queued;
}

static enum MHD_Result queue_reply(struct request *r)
{
    srv_buf *b = &r->x.reply;
    struct MHD_Response *response;
    if (b->failed) /* no memory even for an error: the connection is closed */
        return MHD_NO;
    if (b->len == 0) {
        response = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    } else {
        /* The response frees the bytes. */
        response = MHD_create_response_from_buffer(b->len, b->data, MHD_RESPMEM_MUST_FREE);
        if (response)
            srv_buf_init(b, b->limit);
    }
    return queue(r, response);
}

/* Answers past the library, which refuses to while a body is still coming in. Nothing else has been
 * sent for this request. What still comes is read and forgotten; then the connection is closed. */
static void answer_raw(struct request *r)
{
    srv_buf text;
    srv_buf_init(&text, 8192);
    r->lingering = true;
    srv_reply_text(&r->x, MHD_get_reason_phrase_for(r->x.status), true, &text);
    if (!text.failed && !r->x.reply.failed &&
        send(r->peer->fd, text.data, text.len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        srv_log(SRV_LOG_DEBUG, "http", "raw answer: %s", strerror(errno));
    srv_buf_free(&text);
    shutdown(r->peer->fd, SHUT_WR);
}

/* ------------------------------------------------------------------------------- streams */

static ssize_t read_stream(void *cls, uint64_t pos, char *to, size_t max)
{
    (void)pos;
    struct request *r = cls;
    bool more;
    if (r->gone)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = srv_exchange_read(&r->x, to, max, r->keep_alive_due, &more);
    r->keep_alive_due = false;
    r->last_sent_ms = now_ms();
    if (n) {
        r->moved_turn = r->http->n_turns;
        return (ssize_t)n;
    }
    if (!more)
        return r->x.line.failed ? MHD_CONTENT_READER_END_WITH_ERROR
                                : MHD_CONTENT_READER_END_OF_STREAM;
    wait_for_wake(r);
    return 0;
}

static void release_stream(void *cls)
{
    struct request *r = cls;
    srv_exchange_unref(&r->x);
}

/* A watcher may read as slowly as it likes. */
static void be_patient(struct request *r)
{
    MHD_set_connection_option(r->connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    set_option(r->peer->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, WATCHER_TIMEOUT_MS);
}

/* What a streamed reply would begin with. The library would end even an unsent body with a chunk,
 * which is then taken for the next reply's beginning. */
static enum MHD_Result queue_head_of_stream(struct request *r)
{
    srv_exchange_abandon(&r->x);
    return queue(r, MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT));
}

static enum MHD_Result queue_stream(struct request *r)
{
    /* The block is used only by HTTP/1.0 clients; others get what the connection's memory holds. */
    const size_t block_bytes = 4096;
    r->x.status = 200;
    if (!r->x.content_type)
        r->x.content_type = r->x.wants_sse ? "text/event-stream" : "application/x-ndjson";
    if (r->is_head)
        return queue_head_of_stream(r);
    struct MHD_Response *response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, block_bytes, read_stream, r, release_stream);
    if (!response)
        return MHD_NO;
    srv_exchange_ref(&r->x);
    r->streaming = true;
    if (r->x.watcher)
        be_patient(r);
    return queue(r, response);
}

/* ------------------------------------------------------------------------------ requests */

static enum MHD_Result add_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                  size_t name_len, const char *value, size_t value_len)
{
    (void)kind;
    srv_head_add(cls, name, name_len, value, value_len);
    return MHD_YES;
}

static enum MHD_Result add_param(void *cls, enum MHD_ValueKind kind, const char *name,
                                 size_t name_len, const char *value, size_t value_len)
{
    (void)kind;
    (void)name_len;
    (void)value_len;
    srv_head_add_param(cls, name, value);
    return MHD_YES;
}

/* The first call of a request: its head is there. */
static enum MHD_Result begin(srv_http *h, struct MHD_Connection *connection, const char *path,
                             const char *method, const char *version, void **ctx)
{
    struct peer *peer =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    struct request *r = peer ? calloc(1, sizeof(*r)) : NULL;
    if (!r)
        return MHD_NO;
    srv_exchange_init(&r->x, h->app);
    r->http = h;
    r->connection = connection;
    r->peer = peer;
    r->started_ms = now_ms();
    r->is_head = !strcmp(method, "HEAD");
    TAILQ_INSERT_TAIL(&h->live, r, live);
    h->trim_due = true;
    if (peer->is_idle)
        TAILQ_REMOVE(&h->idle, peer, idle);
    peer->is_idle = false;
    *ctx = r;

    srv_head head = {.http_1_0 = !strcmp(version, MHD_HTTP_VERSION_1_0)};
    MHD_get_connection_values_n(connection, MHD_HEADER_KIND, add_header, &head);
    MHD_get_connection_values_n(connection, MHD_GET_ARGUMENT_KIND, add_param, &head);
    r->announced = srv_head_content_length(&head);
    srv_admission admission = srv_admit(&r->x, &head, method, path);
    if (admission == SRV_ADMITTED || !srv_head_has_body(&head))
        /* Without a body the reply waits for the second call: one queued now would close. */
        return admission == SRV_BROKEN ? queue_reply(r) : MHD_YES;
    if (admission == SRV_BROKEN || head.expects)
        return queue_reply(r);
    if (r->announced > DRAIN_BYTES)
        answer_raw(r);
    return MHD_YES;
}

static enum MHD_Result take_body(struct request *r, const char *data, size_t *size)
{
    srv_exchange *x = &r->x;
    size_t n = *size;
    *size = 0;
    if (!r->received && !x->status && r->announced > n &&
        r->http->expected_bytes + r->announced <= x->app->config->body_memory_bytes) {
        r->expected = r->announced;
        r->http->expected_bytes += r->expected;
        srv_buf_expect(&x->body, (size_t)r->expected);
    }
    r->received += n;
    if (!x->status) {
        if (r->received > x->app->config->max_body_bytes)
            srv_fail_with(x, 413, "body_too_large", NULL, "the body is larger than --max-body");
        else if (!srv_exchange_hold(x, n, false))
            srv_fail_with(x, 503, "busy_memory", NULL,
                          "the requests in flight hold all of --body-memory");
        else if (srv_buf_append(&x->body, data, n))
            return MHD_YES;
        else
            srv_fail_with(x, 503, "busy_memory", NULL, "out of memory");
        srv_exchange_drop(x, x->held_bytes);
        srv_buf_free(&x->body);
    }
    r->drained += n;
    if (r->drained > DRAIN_BYTES && !r->lingering)
        answer_raw(r);
    return r->drained > LINGER_BYTES ? MHD_NO : MHD_YES;
}

/* The whole request is there, and perhaps its reply: goes on as far as that goes. */
static enum MHD_Result proceed(struct request *r)
{
    if (r->gone || r->lingering)
        return MHD_NO;
    if (r->phase == READING) {
        r->phase = WORKING;
        r->moved_turn = r->http->n_turns;
        if (!r->x.status)
            srv_exchange_start(&r->x);
    }
    switch (srv_exchange_advance(&r->x)) {
    case SRV_NEXT_WAIT:
        if (wait_for_wake(r))
            watch_soon(r);
        return MHD_YES;
    case SRV_NEXT_REPLY:
        unwatch(r);
        return queue_reply(r);
    case SRV_NEXT_STREAM:
        if (!r->is_head)
            watch_soon(r);
        return queue_stream(r);
    }
    return MHD_NO;
}

/* What a request's context is before its first call if a NUL cut its URL short. */
static char cut_url;

/* Sees the request line as the library split it: "URL", NUL, "HTTP/1.1". */
static void *on_url(void *cls, const char *url, struct MHD_Connection *connection)
{
    (void)cls;
    (void)connection;
    return strncmp(url + strlen(url) + 1, "HTTP/", 5) ? &cut_url : NULL;
}

/* Decodes in place, but never to a NUL, which would cut the text short: to a byte that no name in
 * the contract contains. */
static size_t unescape(void *cls, struct MHD_Connection *connection, char *text)
{
    (void)cls;
    (void)connection;
    for (char *p = text; (p = strstr(p, "%00")); p += 3)
        p[2] = '1';
    return MHD_http_unescape(text);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *size, void **ctx)
{
    struct request *r = *ctx;
    if (*ctx == &cut_url)
        return MHD_NO;
    if (!r)
        return begin(cls, connection, path, method, version, ctx);
    if (*size)
        return take_body(r, data, size);
    return r->phase == SENDING ? MHD_YES : proceed(r);
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **ctx,
                         enum MHD_RequestTerminationCode code)
{
    srv_http *h = cls;
    struct request *r = *ctx;
    (void)connection;
    if (!r || *ctx == &cut_url)
        return;
    *ctx = NULL;
    unwatch(r);
    h->expected_bytes -= r->expected;
    bool unanswered = (r->phase != SENDING && !r->lingering) || r->gone;
    unsigned status = unanswered ? 499 : r->x.status;
    /* Harmless if its work is done. */
    srv_exchange_abandon(&r->x);
    if (r->close_at_ms || has_closed(r->peer))
        shutdown(r->peer->fd, SHUT_RDWR);
    int64_t now = now_ms();
    size_t route = r->x.route ? srv_route_index(r->x.route) : SRV_METRICS_NO_ROUTE;
    double seconds = (double)(now - r->started_ms) / 1000;
    srv_metrics_request(h->app->metrics, route, status, seconds);
    /* Of an unanswered one a thread may still be about to set it. */
    const char *code_of_answer = unanswered ? NULL : r->x.error_code;
    if (code_of_answer)
        srv_metrics_rejected(h->app->metrics, code_of_answer);
    srv_log(SRV_LOG_DEBUG, "request", "method=%s route=%s status=%u code=%s ms=%lld end=%d",
            r->x.route ? r->x.route->method : "-", r->x.route ? r->x.route->template : "-", status,
            code_of_answer ? code_of_answer : "-", (long long)(now - r->started_ms), (int)code);
    TAILQ_REMOVE(&h->live, r, live);
    TAILQ_INSERT_TAIL(&h->idle, r->peer, idle);
    r->peer->is_idle = true;
    r->peer->peeked = false;
    r->peer->idle_since_ms = now;
    r->connection = NULL;
    r->peer = NULL;
    srv_exchange_unref(&r->x);
}

/* --------------------------------------------------------------------------- connections */

/* How long a connection may stand still in the middle of something: longer than a stalled run may
 * wait, which is to end as stalled. */
static unsigned quiet_seconds(const srv_app *app)
{
    return (unsigned)app->config->stall_timeout_s + 30;
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **ctx,
                          enum MHD_ConnectionNotificationCode code)
{
    srv_http *h = cls;
    struct peer *peer = *ctx;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (peer && peer->is_idle)
            TAILQ_REMOVE(&h->idle, peer, idle);
        free(peer);
        *ctx = NULL;
        return;
    }
    peer = calloc(1, sizeof(*peer));
    if (!peer)
        return; /* its first request is refused */
    peer->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    peer->is_idle = true;
    peer->idle_since_ms = now_ms();
    TAILQ_INSERT_TAIL(&h->idle, peer, idle);
    *ctx = peer;
    /* A host that vanished is noticed by probes while nothing is sent, by time while it is. */
    set_option(peer->fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(peer->fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
    set_option(peer->fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set_option(peer->fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_option(peer->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)quiet_seconds(h->app) * 1000);
    set_option(peer->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES);
}

/* ------------------------------------------------------------------------------ the loop */

static void clear_wake_fd(srv_http *h)
{
    uint64_t count;
    if (read(h->app->wake_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
        srv_log(SRV_LOG_ERROR, "http", "eventfd: %s", strerror(errno));
}

static void serve_woken(srv_http *h)
{
    for (srv_exchange *x = srv_exchange_take_woken(h->app), *next; x; x = next) {
        next = x->next_woken;
        atomic_store(&x->is_woken, false);
        struct request *r = (struct request *)(void *)x;
        srv_exchange_note_end(x);
        if (r->streaming && !r->close_at_ms && srv_exchange_stalled(x))
            r->close_at_ms = now_ms() + STALLED_GRACE_MS;
        if (r->connection)
            resume(r);
        srv_exchange_unref(x);
    }
}

/* Ends what takes too long and keeps quiet streams alive. Once a second. */
static void sweep(srv_http *h, int64_t now)
{
    struct peer *peer, *next;
    for (peer = TAILQ_FIRST(&h->idle); peer; peer = next) {
        next = TAILQ_NEXT(peer, idle);
        bool late = now - peer->idle_since_ms > HEAD_TIMEOUT_MS;
        bool peek = !peer->peeked && now - peer->idle_since_ms > PEEK_MS;
        peer->peeked |= peek;
        if (!late && !(peek && has_closed(peer)))
            continue;
        TAILQ_REMOVE(&h->idle, peer, idle);
        peer->is_idle = false;
        shutdown(peer->fd, SHUT_RDWR);
    }
    struct request *r;
    TAILQ_FOREACH(r, &h->live, live)
    {
        if (r->phase == READING &&
            now - r->started_ms > BODY_TIMEOUT_MS + (int64_t)(r->received / BODY_BYTES_PER_MS)) {
            if (!r->x.status)
                srv_fail_with(&r->x, 408, "timeout", NULL, "the body took too long to arrive");
            if (!r->lingering)
                answer_raw(r);
            shutdown(r->peer->fd, SHUT_RDWR);
        } else if (r->phase == READING && has_closed(r->peer)) {
            shutdown(r->peer->fd, SHUT_RDWR);
        } else if (r->close_at_ms && now > r->close_at_ms && !r->gone) {
            cut_off(r);
        } else if (r->streaming && r->suspended && r->x.wants_sse &&
                   now - r->last_sent_ms >= KEEP_ALIVE_MS) {
            r->keep_alive_due = true;
            resume(r);
        }
    }
}

/* Once a crowd is gone, what it left free inside the heap goes back to the system: libc by itself
 * returns only what lies at the heap's end. */
static void trim(srv_http *h, int64_t now)
{
    if (!h->trim_due || now - h->trimmed_ms < TRIM_MS)
        return;
    h->trimmed_ms = now;
    h->trim_due = !TAILQ_EMPTY(&h->live);
    size_t unused = mallinfo2().fordblks; /* also what was returned before and not used since */
    if (unused < h->least_unused)
        h->least_unused = unused;
    if (h->trim_due && unused - h->least_unused < TRIM_BYTES)
        return;
    malloc_trim(0);
    h->least_unused = unused;
}

static void turn(srv_http *h, int max_ms)
{
    struct epoll_event events[64];
    MHD_UNSIGNED_LONG_LONG timeout;
    int ms = watch_some(h, max_ms);
    h->n_turns++;
    /* The library's inner epoll is edge triggered: what it says is due must be asked for. */
    if (MHD_get_timeout(h->daemon, &timeout) == MHD_YES && timeout < (unsigned)ms)
        ms = (int)timeout;
    if (ms && srv_exchange_expect_wake(h->app))
        ms = 0;
    int n = epoll_wait(h->epoll_fd, events, (int)(sizeof(events) / sizeof(events[0])), ms);
    /* Those who left come first: what is done afterwards may free their requests. */
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == &h->app->wake_fd)
            clear_wake_fd(h);
        else if (events[i].data.ptr != h)
            cut_off(events[i].data.ptr);
    }
    serve_woken(h);
    /* Twice: the first may free a place at the connection limit, the second then listens again. */
    MHD_run(h->daemon);
    MHD_run(h->daemon);
    int64_t now = now_ms();
    if (now - h->swept_ms >= 1000) {
        h->swept_ms = now;
        sweep(h, now);
        trim(h, now);
    }
}

/* The library must not be stopped with a suspended connection: it would abort. */
static void finish_all(srv_http *h)
{
    struct request *r;
    MHD_quiesce_daemon(h->daemon);
    close(h->listen_fd);
    h->listen_fd = -1;
    attn_engine_shutdown(h->app->engine);
    srv_watch_stop(h->app->watch);
    TAILQ_FOREACH(r, &h->live, live)
    {
        if (r->phase != READING)
            continue;
        if (!r->x.status)
            srv_fail_with(&r->x, 503, "shutting_down", NULL, "the server is shutting down");
        if (!r->lingering)
            answer_raw(r);
        shutdown(r->peer->fd, SHUT_RDWR);
    }
    int64_t deadline = now_ms() + STOP_MS;
    while (!TAILQ_EMPTY(&h->live) && now_ms() < deadline)
        turn(h, 50);
    TAILQ_FOREACH(r, &h->live, live)
    cut_off(r);
    /* Nobody suspends again: all that are left are gone. */
    while (!TAILQ_EMPTY(&h->live) && now_ms() < deadline + 500)
        turn(h, 10);
}

static void *run(void *arg)
{
    srv_http *h = arg;
    while (!atomic_load(&h->app->stopping))
        turn(h, 1000);
    finish_all(h);
    MHD_stop_daemon(h->daemon);
    h->daemon = NULL;
    return NULL;
}

/* ------------------------------------------------------------------------- start and stop */

srv_http *srv_http_open(srv_app *app, char *err, size_t err_size)
{
    srv_http *h = calloc(1, sizeof(*h));
    if (!h) {
        snprintf(err, err_size, "out of memory");
        return NULL;
    }
    h->app = app;
    h->epoll_fd = h->listen_fd = app->wake_fd = -1;
    TAILQ_INIT(&h->idle);
    TAILQ_INIT(&h->live);
    TAILQ_INIT(&h->unwatched);
    h->listen_fd = srv_listen_bind(app->config->host, (unsigned)app->config->port, err, err_size);
    if (h->listen_fd < 0)
        goto fail;
    app->port = srv_listen_name(h->listen_fd, app->url, sizeof(app->url));
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    app->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &app->wake_fd};
    if (h->epoll_fd < 0 || app->wake_fd < 0 ||
        epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, app->wake_fd, &event)) {
        snprintf(err, err_size, "cannot make an event loop: %s", strerror(errno));
        goto fail;
    }
    return h;
fail:
    srv_http_close(h);
    return NULL;
}

__attribute__((format(printf, 2, 0))) static void log_library(void *cls, const char *format,
                                                              va_list args)
{
    (void)cls;
    char text[512];
    vsnprintf(text, sizeof(text), format, args);
    srv_log(SRV_LOG_DEBUG, "libmicrohttpd", "%s", text);
}

bool srv_http_start(srv_http *h, char *err, size_t err_size)
{
    const srv_config *c = h->app->config;
    if (listen(h->listen_fd, SOMAXCONN)) {
        snprintf(err, err_size, "--port: cannot listen on %s: %s", h->app->url, strerror(errno));
        return false;
    }
    /* Not its strict mode: that answers a missing Host with two replies; srv_admit does better. */
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, h,
        MHD_OPTION_EXTERNAL_LOGGER, log_library, NULL, MHD_OPTION_URI_LOG_CALLBACK, on_url, NULL,
        MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_LISTEN_SOCKET, h->listen_fd,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
        h, MHD_OPTION_CONNECTION_LIMIT, (unsigned)c->max_connections, MHD_OPTION_CONNECTION_TIMEOUT,
        quiet_seconds(h->app), MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_BYTES,
        MHD_OPTION_END);
    if (!h->daemon) {
        snprintf(err, err_size, "cannot start the HTTP library");
        return false;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = h};
    int fd = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    if (epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, fd, &event) ||
        pthread_create(&h->thread, NULL, run, h)) {
        snprintf(err, err_size, "cannot start the HTTP loop");
        MHD_stop_daemon(h->daemon);
        h->daemon = NULL;
        return false;
    }
    return true;
}

void srv_http_stop(srv_http *h)
{
    uint64_t one = 1;
    atomic_store(&h->app->stopping, true);
    if (write(h->app->wake_fd, &one, sizeof(one)) < 0)
        srv_log(SRV_LOG_ERROR, "http", "eventfd: %s", strerror(errno));
    pthread_join(h->thread, NULL);
}

void srv_http_close(srv_http *h)
{
    if (!h)
        return;
    /* Exchanges that ended after the loop. */
    for (srv_exchange *x = srv_exchange_take_woken(h->app), *next; x; x = next) {
        next = x->next_woken;
        srv_exchange_unref(x);
    }
    if (h->listen_fd >= 0)
        close(h->listen_fd);
    if (h->epoll_fd >= 0)
        close(h->epoll_fd);
    if (h->app->wake_fd >= 0)
        close(h->app->wake_fd);
    free(h);
}
