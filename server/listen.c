#include "server/listen.h"

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Returns -1 with the reason in errno. */
static int bind_address(const struct addrinfo *a)
{
    int on = 1;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0)
        return -1;
    /* A server that starts again need not wait for its old connections to be forgotten. */
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
        bind(fd, a->ai_addr, a->ai_addrlen)) {
        int reason = errno;
        close(fd);
        errno = reason;
        return -1;
    }
    return fd;
}

int srv_listen_bind(const char *host, unsigned port, char *err, size_t err_size)
{
    char service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    snprintf(service, sizeof(service), "%u", port);
    int rc = getaddrinfo(host, service, &hints, &found);
    if (rc) {
        snprintf(err, err_size, "--host %s: %s", host, gai_strerror(rc));
        return -1;
    }
    int fd = -1;
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next)
        fd = bind_address(a);
    if (fd < 0)
        snprintf(err, err_size, "%s: cannot bind %s port %u: %s",
                 errno == EADDRNOTAVAIL ? "--host" : "--port", host, port, strerror(errno));
    freeaddrinfo(found);
    return fd;
}

unsigned srv_listen_name(int fd, char *url, size_t url_size)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof(address);
    char host[NI_MAXHOST] = "?", service[NI_MAXSERV] = "0";
    if (!getsockname(fd, (struct sockaddr *)&address, &len))
        getnameinfo((struct sockaddr *)&address, len, host, sizeof(host), service, sizeof(service),
                    NI_NUMERICHOST | NI_NUMERICSERV);
    bool v6 = strchr(host, ':');
    snprintf(url, url_size, "http://%s%.100s%s:%s", v6 ? "[" : "", host, v6 ? "]" : "", service);
    return (unsigned)strtoul(service, NULL, 10);
}
