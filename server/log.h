/* Leveled key=value lines on standard error, one write a line.
 *
 * Thread: any; lines of several threads do not mix. */
#ifndef SRV_LOG_H
#define SRV_LOG_H

#include <stdbool.h>

typedef enum { SRV_LOG_ERROR, SRV_LOG_WARN, SRV_LOG_INFO, SRV_LOG_DEBUG } srv_log_level;

/* Reads "error", "warn", "info" or "debug". Errors: false, *level untouched. */
bool srv_log_level_parse(const char *name, srv_log_level *level);

/* Lines above this level are dropped from now on. Starts at INFO. */
void srv_log_set_level(srv_log_level level);

/* Whether a line of that level would be written: for callers that compute what they log. */
bool srv_log_enabled(srv_log_level level);

/* Writes "<UTC time> <level> <event> <key=value ...>". `format` may be "". Longer lines than 1 KiB
 * are cut. errno is kept. */
void srv_log(srv_log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
