#include "server/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = {
    [SRV_LOG_ERROR] = "error",
    [SRV_LOG_WARN] = "warn",
    [SRV_LOG_INFO] = "info",
    [SRV_LOG_DEBUG] = "debug",
};

static _Atomic int max_level = SRV_LOG_INFO;

bool srv_log_level_parse(const char *name, srv_log_level *level)
{
    for (int i = SRV_LOG_ERROR; i <= SRV_LOG_DEBUG; i++) {
        if (!strcmp(name, level_names[i])) {
            *level = (srv_log_level)i;
            return true;
        }
    }
    return false;
}

void srv_log_set_level(srv_log_level level)
{
    atomic_store_explicit(&max_level, (int)level, memory_order_relaxed);
}

bool srv_log_enabled(srv_log_level level)
{
    return (int)level <= atomic_load_explicit(&max_level, memory_order_relaxed);
}

void srv_log(srv_log_level level, const char *event, const char *format, ...)
{
    if (!srv_log_enabled(level))
        return;
    int saved_errno = errno;
    char line[1024];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &utc);
    n += (size_t)snprintf(line + n, sizeof(line) - n, ".%03ldZ %s %.64s ", now.tv_nsec / 1000000,
                          level_names[level], event);
    va_list args;
    va_start(args, format);
    int more = vsnprintf(line + n, sizeof(line) - n, format, args);
    va_end(args);
    if (more > 0)
        n += (size_t)more;
    if (n > sizeof(line) - 1)
        n = sizeof(line) - 1;
    while (n && (line[n - 1] == ' ' || line[n - 1] == '\n'))
        n--;
    /* A line is a line, whatever a library's message holds. */
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)line[i] < ' ')
            line[i] = ' ';
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, n) < 0) {
        /* Nowhere left to say so. */
    }
    errno = saved_errno;
}
