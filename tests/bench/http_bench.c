/* http_bench.c: requests a second of one-step decodes, against the same server on an engine that
 * does not compute (echo_engine.c). Both servers run at once and are driven in turn, in many short
 * rounds, by one thread over keep-alive connections, each with a session of its own. Then how fast
 * the latter takes in the rows of a long prefill, as JSON and as safetensors.
 *
 * Usage: http_bench SERVER ECHO_SERVER [connections [seconds]] */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 11
#define MAX_CONNECTIONS 256
#define BODY_ROWS 512
#define BODY_COLUMNS 768
#define BODY_FLOATS ((size_t)BODY_ROWS * BODY_COLUMNS)
#define BODIES 40
#define ROW                                                                                   \
    "[0.12345678,-0.98765432,1.5,0.333333343,-2.25,0.000123456,7.125,-0.5,0.75,1.1920929e-7," \
    "-3.14159274,2.71828175,0.1,-0.2,0.3,-0.4]"

static void die(const char *what)
{
    fprintf(stderr, "http_bench: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Starts a server on a free port and reads the port from its first line. */
static pid_t start(const char *path, unsigned short *port)
{
    int out[2];
    char line[256] = "";
    if (pipe(out) != 0)
        die("pipe");
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0) {
        dup2(out[1], STDOUT_FILENO);
        close(out[0]);
        close(out[1]);
        execl(path, path, "--port", "0", "--log-level", "error", (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    FILE *file = fdopen(out[0], "r");
    if (file == NULL || fgets(line, sizeof line, file) == NULL || strrchr(line, ':') == NULL)
        die(path);
    fclose(file);
    *port = (unsigned short)strtoul(strrchr(line, ':') + 1, NULL, 10);
    return pid;
}

static int connect_to(unsigned short port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

enum request { CREATE, STEP, REWIND };

/* Sends one request of a session, which has one position when it is created and when it is rewound. */
static void send_request(int fd, unsigned session, enum request kind)
{
    char body[512], path[64] = "decode", text[1024];
    int len = 0;
    switch (kind) {
    case CREATE:
        snprintf(path, sizeof path, "prefill");
        len = snprintf(body, sizeof body,
                       "{\"session\":\"s%u\",\"model\":\"seed-attention\",\"inputs\":[" ROW
                       "],\"output\":\"none\"}",
                       session);
        break;
    case STEP:
        len = snprintf(body, sizeof body, "{\"session\":\"s%u\",\"input\":" ROW "}", session);
        break;
    case REWIND:
        snprintf(path, sizeof path, "sessions/s%u/truncate", session);
        len = snprintf(body, sizeof body, "{\"length\":1}");
        break;
    }
    int n = snprintf(text, sizeof text,
                     "POST /%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Content-Length: %d\r\n\r\n%s",
                     path, len, body);
    if (send(fd, text, (size_t)n, MSG_NOSIGNAL) != n)
        die("send");
}

/* Replies are short and come whole, or nearly: reads until the object's end. False: not yet. */
static bool read_reply(int fd, bool *ok)
{
    char text[8192];
    ssize_t n = recv(fd, text, sizeof text - 1, 0);
    if (n <= 0)
        die("recv");
    text[n] = '\0';
    *ok = strncmp(text, "HTTP/1.1 200", 12) == 0;
    return n > 2 && text[n - 1] == '\n' && text[n - 2] == '}';
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct server {
    pid_t pid;
    unsigned short port;
    int poll_fd;
    int fds[MAX_CONNECTIONS];
} server;

/* Starts a server and opens n connections, each with a session, unless all sessions exist. */
static server start_with(const char *path, unsigned n, bool makes_sessions)
{
    server s = {.poll_fd = epoll_create1(0)};
    bool ok;
    s.pid = start(path, &s.port);
    for (unsigned i = 0; i < n; i++) {
        s.fds[i] = connect_to(s.port);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        epoll_ctl(s.poll_fd, EPOLL_CTL_ADD, s.fds[i], &event);
        if (!makes_sessions)
            continue;
        send_request(s.fds[i], i, CREATE);
        if (!read_reply(s.fds[i], &ok) || !ok)
            die("prefill");
    }
    return s;
}

static void stop(server *s, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        close(s->fds[i]);
    close(s->poll_fd);
    kill(s->pid, SIGTERM);
    waitpid(s->pid, NULL, 0);
}

/* One-step decodes a second, over n connections at once. */
static double measure(server *s, unsigned n, double seconds)
{
    double begin = now(), end = begin + seconds, last = begin;
    unsigned long replies = 0;
    unsigned open = n;
    for (unsigned i = 0; i < n; i++)
        send_request(s->fds[i], i, STEP);
    while (open > 0) {
        struct epoll_event events[64];
        int ready = epoll_wait(s->poll_fd, events, 64, 1000);
        for (int k = 0; k < ready; k++) {
            unsigned i = events[k].data.u32;
            bool ok;
            if (!read_reply(s->fds[i], &ok))
                continue;
            if (!ok)
                die("decode");
            replies++;
            last = now();
            if (last < end)
                send_request(s->fds[i], i, STEP);
            else
                open--;
        }
    }
    return (double)replies / (last - begin);
}

static void rewind_all(server *s, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        bool ok;
        send_request(s->fds[i], i, REWIND);
        if (!read_reply(s->fds[i], &ok) || !ok)
            die("truncate");
    }
}

/* ----------------------------------------------------------------------------- long bodies */

static float normal(void)
{
    static uint64_t state = 1;
    float sum = 0;
    for (int i = 0; i < 12; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(state >> 40) / (float)(1 << 24);
    }
    return sum - 6;
}

/* A request of BODY_ROWS rows. The caller's. */
static char *make_prefill(bool blob, size_t *len)
{
    size_t room = 1024 + BODY_FLOATS * 16, n = 0;
    char *body = malloc(room), *text = malloc(room + 1024);
    if (body == NULL || text == NULL)
        die("malloc");
    if (blob) {
        n = 8 + (size_t)snprintf(body + 8, room - 8,
                                 "{\"__metadata__\":{\"session\":\"long\",\"output\":\"none\"},"
                                 "\"inputs\":{\"dtype\":\"F32\",\"shape\":[%d,%d],"
                                 "\"data_offsets\":[0,%zu]}}",
                                 BODY_ROWS, BODY_COLUMNS, BODY_FLOATS * sizeof(float));
        uint64_t header = n - 8;
        memcpy(body, &header, sizeof header);
        for (size_t i = 0; i < BODY_FLOATS; i++, n += sizeof(float)) {
            float value = normal();
            memcpy(body + n, &value, sizeof value);
        }
    } else {
        n = (size_t)snprintf(body, room, "{\"session\":\"long\",\"output\":\"none\",\"inputs\":");
        for (size_t i = 0; i < BODY_FLOATS; i++)
            n += (size_t)snprintf(body + n, room - n, "%s%.9g",
                                  i == 0                  ? "[["
                                  : i % BODY_COLUMNS == 0 ? "],["
                                                          : ",",
                                  (double)normal());
        n += (size_t)snprintf(body + n, room - n, "]]}");
    }
    *len = (size_t)snprintf(text, room + 1024,
                            "POST /prefill HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                            "application/%s\r\nContent-Length: %zu\r\n\r\n",
                            blob ? "x-safetensors" : "json", n);
    memcpy(text + *len, body, n);
    *len += n;
    free(body);
    return text;
}

/* MB/s of the median request. */
static double measure_bodies(unsigned short port, bool blob)
{
    size_t len;
    char *text = make_prefill(blob, &len);
    double seconds[BODIES];
    int fd = connect_to(port);
    for (int i = 0; i < BODIES; i++) {
        bool ok = false;
        double begin = now();
        for (size_t sent = 0; sent < len;) {
            ssize_t n = send(fd, text + sent, len - sent, MSG_NOSIGNAL);
            if (n < 0)
                die("send");
            sent += (size_t)n;
        }
        if (!read_reply(fd, &ok) || !ok)
            die("prefill");
        seconds[i] = now() - begin;
    }
    close(fd);
    free(text);
    qsort(seconds, BODIES, sizeof seconds[0], compare);
    return (double)len / seconds[BODIES / 2] / 1e6;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: http_bench SERVER ECHO_SERVER [connections [seconds]]\n");
        return 1;
    }
    unsigned n = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 64;
    double seconds = argc > 4 ? strtod(argv[4], NULL) : 0.4;
    if (n < 1 || n > MAX_CONNECTIONS)
        n = MAX_CONNECTIONS;
    double real[ROUNDS], echo[ROUNDS], ratio[ROUNDS];
    server computing = start_with(argv[1], n, true), echoing = start_with(argv[2], n, false);
    measure(&computing, n, seconds);
    measure(&echoing, n, seconds);
    for (int i = 0; i < ROUNDS; i++) {
        rewind_all(&computing, n);
        real[i] = measure(&computing, n, seconds);
        echo[i] = measure(&echoing, n, seconds);
        ratio[i] = real[i] / echo[i];
    }
    qsort(real, ROUNDS, sizeof real[0], compare);
    qsort(echo, ROUNDS, sizeof echo[0], compare);
    qsort(ratio, ROUNDS, sizeof ratio[0], compare);
    printf("one-step decode over HTTP, %u connections: %.0f requests/s, %.0f without computing, "
           "ratio %.2f [%.2f .. %.2f]\n",
           n, real[ROUNDS / 2], echo[ROUNDS / 2], ratio[ROUNDS / 2], ratio[ROUNDS / 4],
           ratio[ROUNDS - 1 - ROUNDS / 4]);
    printf("prefill of %d x %d floats over HTTP, without computing: JSON %.0f MB/s, safetensors "
           "%.0f MB/s\n",
           BODY_ROWS, BODY_COLUMNS, measure_bodies(echoing.port, false),
           measure_bodies(echoing.port, true));
    stop(&computing, n);
    stop(&echoing, n);
    return 0;
}
