/* http_bench.c: requests a second of one-step decodes, against the same server on an engine that
 * does not compute (echo_engine.c). Both servers run in turn, several rounds, driven by one thread
 * over keep-alive connections, each with a session of its own.
 *
 * Usage: http_bench SERVER ECHO_SERVER [connections [seconds]] */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 5
#define MAX_CONNECTIONS 256
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

/* Sends one request; `prefill` makes the session, otherwise it takes one step. */
static void send_request(int fd, unsigned session, bool prefill)
{
    char body[512], text[1024];
    int len = prefill
                  ? snprintf(body, sizeof body,
                             "{\"session\":\"s%u\",\"model\":\"seed-attention\","
                             "\"inputs\":[" ROW "],\"output\":\"none\"}",
                             session)
                  : snprintf(body, sizeof body, "{\"session\":\"s%u\",\"input\":" ROW "}", session);
    int n = snprintf(text, sizeof text,
                     "POST /%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Content-Length: %d\r\n\r\n%s",
                     prefill ? "prefill" : "decode", len, body);
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

static double measure(const char *path, unsigned n, double seconds, bool echo)
{
    unsigned short port;
    int fds[MAX_CONNECTIONS], poll_fd = epoll_create1(0);
    pid_t pid = start(path, &port);
    bool ok = true;
    for (unsigned i = 0; i < n; i++) {
        fds[i] = connect_to(port);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fds[i], &event);
        if (!echo) {
            send_request(fds[i], i, true);
            if (!read_reply(fds[i], &ok) || !ok)
                die("prefill");
        }
        send_request(fds[i], i, false);
    }
    double begin = now(), end = begin + seconds;
    unsigned long replies = 0;
    while (now() < end) {
        struct epoll_event events[64];
        int ready = epoll_wait(poll_fd, events, 64, 1000);
        for (int k = 0; k < ready; k++) {
            if (!read_reply(fds[events[k].data.u32], &ok))
                continue;
            if (!ok)
                die("decode");
            replies++;
            send_request(fds[events[k].data.u32], events[k].data.u32, false);
        }
    }
    double rate = (double)replies / (now() - begin);
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
    close(poll_fd);
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
    return rate;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: http_bench SERVER ECHO_SERVER [connections [seconds]]\n");
        return 1;
    }
    unsigned n = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 16;
    double seconds = argc > 4 ? strtod(argv[4], NULL) : 1.0;
    if (n < 1 || n > MAX_CONNECTIONS)
        n = MAX_CONNECTIONS;
    double real[ROUNDS], echo[ROUNDS], ratio[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        real[i] = measure(argv[1], n, seconds, false);
        echo[i] = measure(argv[2], n, seconds, true);
        ratio[i] = real[i] / echo[i];
    }
    qsort(real, ROUNDS, sizeof real[0], compare);
    qsort(echo, ROUNDS, sizeof echo[0], compare);
    qsort(ratio, ROUNDS, sizeof ratio[0], compare);
    printf("one-step decode over HTTP, %u connections: %.0f requests/s, %.0f without computing, "
           "ratio %.2f [%.2f .. %.2f]\n",
           n, real[ROUNDS / 2], echo[ROUNDS / 2], ratio[ROUNDS / 2], ratio[0], ratio[ROUNDS - 1]);
    return 0;
}
