#include "clients/load/http.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "clients/load/http_reply.h"

const char *const load_failure_names[LOAD_FAILURES] = {"none", "connect", "closed", "timeout",
                                                       "protocol"};

enum { EVENTS = 64, READ_BYTES = 65536 };
#define TIMER UINT32_MAX /* the epoll data of the timer; others are connection numbers */
#define SECOND_NS 1000000000u

typedef struct connection {
    int fd; /* -1: closed */
    bool connecting, reused, writing;
    uint32_t next_idle; /* in the list of idle ones */
    bool idle;
    load_call *call;
    size_t sent; /* bytes of head and body */
    uint64_t active_ns;
    load_reply reply;
} connection;

struct load_http {
    struct sockaddr_storage address;
    socklen_t address_len;
    char host[300]; /* as the Host header has it */
    int epoll_fd, timer_fd;
    uint64_t timeout_ns, armed_ns, scanned_ns;
    connection *connections;
    uint32_t n_connections, max_connections;
    uint32_t *closed, n_closed; /* numbers of closed ones */
    uint32_t idle;              /* first idle one, the latest used; UINT32_MAX: none */
    load_call *queue, **queue_end;
    load_call *failed, **failed_end; /* calls that could not even connect */
};

uint64_t load_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

/* --------------------------------------------------------------------------------------- open */

/* Splits http://HOST[:PORT][/] into host, without brackets, and port. */
static bool split_url(const char *url, char *host, size_t host_size, char *port, size_t port_size)
{
    if (strncmp(url, "http://", 7) != 0)
        return false;
    const char *begin = url + 7, *end = begin + strcspn(begin, "/"), *colon;
    if (end[0] == '/' && end[1] != '\0')
        return false;
    if (*begin == '[') {
        const char *close = memchr(begin, ']', (size_t)(end - begin));
        if (close == NULL)
            return false;
        begin++;
        colon = close + 1;
        snprintf(host, host_size, "%.*s", (int)(close - begin), begin);
    } else {
        colon = memchr(begin, ':', (size_t)(end - begin));
        colon = colon ? colon : end;
        snprintf(host, host_size, "%.*s", (int)(colon - begin), begin);
    }
    if (colon != end && (*colon != ':' || colon + 1 == end))
        return false;
    snprintf(port, port_size, "%.*s", colon == end ? 2 : (int)(end - colon - 1),
             colon == end ? "80" : colon + 1);
    return *host != '\0';
}

load_http *load_http_open(const char *url, size_t max_connections, double timeout_s, char *err,
                          size_t err_size)
{
    char host[256], port[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    if (!split_url(url, host, sizeof host, port, sizeof port)) {
        snprintf(err, err_size, "--url takes http://HOST:PORT, not %.100s", url);
        return NULL;
    }
    int code = getaddrinfo(host, port, &hints, &found);
    if (code != 0) {
        snprintf(err, err_size, "--url %.100s: %s", url, gai_strerror(code));
        return NULL;
    }
    load_http *h = load_alloc(1, sizeof *h);
    memcpy(&h->address, found->ai_addr, found->ai_addrlen);
    h->address_len = found->ai_addrlen;
    freeaddrinfo(found);
    snprintf(h->host, sizeof h->host, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    h->max_connections = (uint32_t)max_connections;
    h->connections = load_alloc(max_connections, sizeof *h->connections);
    h->closed = load_alloc(max_connections, sizeof *h->closed);
    h->timeout_ns = timeout_s > 0 ? (uint64_t)(timeout_s * 1e9) : UINT64_MAX;
    h->idle = UINT32_MAX;
    h->queue_end = &h->queue;
    h->failed_end = &h->failed;
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    h->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = TIMER};
    if (h->epoll_fd < 0 || h->timer_fd < 0 ||
        epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, h->timer_fd, &event) != 0) {
        snprintf(err, err_size, "epoll: %s", strerror(errno));
        load_http_close(h);
        return NULL;
    }
    return h;
}

void load_http_close(load_http *h)
{
    if (h == NULL)
        return;
    for (uint32_t i = 0; i < h->n_connections; i++) {
        if (h->connections[i].fd >= 0)
            close(h->connections[i].fd);
        load_reply_free(&h->connections[i].reply);
    }
    if (h->epoll_fd >= 0)
        close(h->epoll_fd);
    if (h->timer_fd >= 0)
        close(h->timer_fd);
    free(h->connections);
    free(h->closed);
    free(h);
}

void load_call_free(load_call *call)
{
    load_text_free(&call->body);
    load_text_free(&call->reply);
    load_text_free(&call->head);
}

/* -------------------------------------------------------------------------------- connections */

static void want_write(load_http *h, connection *c, bool write)
{
    if (c->writing == write)
        return;
    c->writing = write;
    struct epoll_event event = {.events = write ? EPOLLIN | EPOLLOUT : EPOLLIN,
                                .data.u32 = (uint32_t)(c - h->connections)};
    epoll_ctl(h->epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

static void close_connection(load_http *h, connection *c)
{
    uint32_t number = (uint32_t)(c - h->connections);
    if (c->idle) {
        uint32_t *link = &h->idle;
        while (*link != number)
            link = &h->connections[*link].next_idle;
        *link = c->next_idle;
        c->idle = false;
    }
    close(c->fd);
    c->fd = -1;
    h->closed[h->n_closed++] = number;
}

/* A connection that is on its way, or NULL with errno. */
static connection *new_connection(load_http *h)
{
    int on = 1, fd = socket(h->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return NULL;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    uint32_t number = h->n_closed ? h->closed[h->n_closed - 1] : h->n_connections;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.u32 = number};
    bool going =
        connect(fd, (struct sockaddr *)&h->address, h->address_len) == 0 || errno == EINPROGRESS;
    if (!going || epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        close(fd);
        return NULL;
    }
    if (h->n_closed)
        h->n_closed--;
    else
        h->n_connections++;
    connection *c = &h->connections[number];
    load_text line = c->reply.head;
    *c = (connection){.fd = fd, .connecting = true, .writing = true, .reply.head = line};
    return c;
}

static void push(load_call ***end, load_call *call)
{
    call->next = NULL;
    **end = call;
    *end = &call->next;
}

static load_call *pop(load_call **first, load_call ***end)
{
    load_call *call = *first;
    *first = call->next;
    if (*first == NULL)
        *end = first;
    return call;
}

static void begin_call(connection *c, load_call *call)
{
    c->call = call;
    c->sent = 0;
    c->active_ns = load_now_ns();
    load_reply_begin(&c->reply);
    load_text_clear(&call->reply);
    call->status = 0;
    call->failure = LOAD_FAIL_NONE;
    call->retry_after_s = 0;
}

/* Sends what the socket takes. False: the connection is broken. */
static bool send_some(load_http *h, connection *c)
{
    load_call *call = c->call;
    size_t total = call->head.len + call->body.len;
    while (c->sent < total) {
        struct iovec parts[2];
        size_t n = 0;
        if (c->sent < call->head.len)
            parts[n++] = (struct iovec){call->head.data + c->sent, call->head.len - c->sent};
        size_t from = c->sent > call->head.len ? c->sent - call->head.len : 0;
        if (call->body.len > from)
            parts[n++] = (struct iovec){call->body.data + from, call->body.len - from};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = n};
        ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        if (sent < 0)
            break;
        c->sent += (size_t)sent;
        c->active_ns = load_now_ns();
    }
    want_write(h, c, c->sent < total);
    return true;
}

/* Gives a call a connection, or a place in the queue. */
static void place(load_http *h, load_call *call)
{
    connection *c = NULL;
    if (h->idle != UINT32_MAX && !call->retried) {
        c = &h->connections[h->idle];
        h->idle = c->next_idle;
        c->idle = false;
        c->reused = true;
        begin_call(c, call);
        send_some(h, c); /* a failure shows when the reply is read */
    } else if (h->n_closed > 0 || h->n_connections < h->max_connections) {
        c = new_connection(h);
        if (c != NULL) {
            begin_call(c, call);
        } else if (h->n_connections > h->n_closed && (errno == EMFILE || errno == ENFILE)) {
            push(&h->queue_end, call); /* one of the open ones will take it */
        } else {
            call->failure = LOAD_FAIL_CONNECT;
            push(&h->failed_end, call);
        }
    } else {
        push(&h->queue_end, call);
    }
}

void load_http_submit(load_http *h, load_call *call, const char *method, const char *path)
{
    load_text_clear(&call->head);
    load_text_printf(&call->head, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, path, h->host);
    if (call->body.len > 0)
        load_text_printf(&call->head, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                         call->body.len);
    else if (strcmp(method, "POST") == 0)
        load_text_puts(&call->head, "Content-Length: 0\r\n");
    load_text_puts(&call->head, "\r\n");
    call->retried = false;
    call->failure = LOAD_FAIL_NONE;
    call->status = 0;
    place(h, call);
}

/* Ends the call of a connection, which is kept for the next one or closed. */
static void end_call(load_http *h, connection *c, load_failure failure)
{
    load_call *call = c->call;
    bool unanswered = !c->reply.began && c->reused && failure == LOAD_FAIL_CLOSED;
    c->call = NULL;
    if (failure != LOAD_FAIL_NONE || !c->reply.keep_alive ||
        c->sent < call->head.len + call->body.len) {
        close_connection(h, c);
    } else {
        c->idle = true;
        c->next_idle = h->idle;
        h->idle = (uint32_t)(c - h->connections);
        want_write(h, c, false);
    }
    if (unanswered && !call->retried) {
        /* The server closed an idle connection just then. Requests name the length that they
         * expect (if_length), so that asking again cannot apply one twice. */
        call->retried = true;
        place(h, call);
        return;
    }
    call->failure = failure;
    if (h->queue != NULL)
        place(h, pop(&h->queue, &h->queue_end));
    call->end(call);
}

/* ------------------------------------------------------------------------------------ the loop */

static void read_some(load_http *h, connection *c)
{
    static char bytes[READ_BYTES];
    ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (c->call == NULL) { /* idle, and closed by the server */
        close_connection(h, c);
        return;
    }
    c->active_ns = c->call->arrived_ns = load_now_ns();
    load_reply_state state = n > 0 ? load_reply_feed(&c->reply, c->call, bytes, (size_t)n)
                                   : load_reply_closed(&c->reply);
    if (state == LOAD_REPLY_END)
        end_call(h, c, LOAD_FAIL_NONE);
    else if (state == LOAD_REPLY_BROKEN)
        end_call(h, c, n > 0 ? LOAD_FAIL_PROTOCOL : LOAD_FAIL_CLOSED);
}

static void handle(load_http *h, connection *c, uint32_t events)
{
    if (c->fd < 0)
        return;
    if (c->connecting && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))) {
        int error = 0;
        socklen_t size = sizeof error;
        if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
            end_call(h, c, LOAD_FAIL_CONNECT);
            return;
        }
        c->connecting = false;
    }
    if (c->call != NULL && c->writing && (events & EPOLLOUT))
        send_some(h, c); /* if it fails: the server may have answered and closed; read that */
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP))
        read_some(h, c);
}

static void fail_silent_ones(load_http *h, uint64_t now)
{
    for (uint32_t i = 0; i < h->n_connections; i++) {
        connection *c = &h->connections[i];
        if (c->fd >= 0 && c->call != NULL && now - c->active_ns > h->timeout_ns)
            end_call(h, c, c->connecting ? LOAD_FAIL_CONNECT : LOAD_FAIL_TIMEOUT);
    }
}

void load_http_turn(load_http *h, uint64_t until_ns)
{
    struct epoll_event events[EVENTS];
    uint64_t now = load_now_ns();
    if (until_ns > now + SECOND_NS)
        until_ns = now + SECOND_NS; /* for the timeouts, and for a missed signal */
    bool wait = h->failed == NULL && until_ns > now;
    if (wait && until_ns != h->armed_ns) {
        struct itimerspec spec = {.it_value = {.tv_sec = (time_t)(until_ns / SECOND_NS),
                                               .tv_nsec = (long)(until_ns % SECOND_NS)}};
        timerfd_settime(h->timer_fd, TFD_TIMER_ABSTIME, &spec, NULL);
        h->armed_ns = until_ns;
    }
    int n = epoll_wait(h->epoll_fd, events, EVENTS, wait ? -1 : 0);
    for (int i = 0; i < n; i++) {
        if (events[i].data.u32 == TIMER) {
            uint64_t count;
            if (read(h->timer_fd, &count, sizeof count) > 0)
                h->armed_ns = 0;
        } else {
            handle(h, &h->connections[events[i].data.u32], events[i].events);
        }
    }
    while (h->failed != NULL) {
        load_call *call = pop(&h->failed, &h->failed_end);
        call->end(call);
    }
    now = load_now_ns();
    if (now - h->scanned_ns > SECOND_NS / 2) {
        h->scanned_ns = now;
        fail_silent_ones(h, now);
    }
}

static void end_ask(load_call *call)
{
    *(bool *)call->owner = true;
}

bool load_http_ask(load_http *h, load_call *call, const char *method, const char *path)
{
    bool ended = false;
    call->owner = &ended;
    call->end = end_ask;
    load_http_submit(h, call, method, path);
    while (!ended)
        load_http_turn(h, UINT64_MAX);
    call->owner = NULL;
    return call->failure == LOAD_FAIL_NONE && call->status >= 200 && call->status < 300;
}
