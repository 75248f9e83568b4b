/* The settings of the server: command line over environment over defaults.
 *
 * One table in config.c makes the flags, the ATTND_* environment variables, --help and
 * --print-config. This is the only file of the product that reads the environment.
 *
 * Thread: called once, before any other thread starts; afterwards the struct is only read. */
#ifndef SRV_CONFIG_H
#define SRV_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

#define SRV_VERSION "0.1.0"

typedef struct srv_config_list {
    const char **items;
    size_t n;
} srv_config_list;

/* Every number lies within the range that --help's table gives it, so that narrowing it where it
 * is used loses nothing. */
typedef struct srv_config {
    attn_model_source *models; /* --model: name always set, all names different */
    size_t n_models;
    const char *default_model; /* NULL: the first one */
    bool has_random_seed;
    uint64_t random_seed;
    const char *weights; /* auto, or a dtype's name */
    const char *host;
    uint64_t port;            /* 0-65535; 0 takes a free one */
    uint64_t threads;         /* 1-1024 */
    uint64_t kv_memory_bytes; /* at least 1 */
    uint64_t max_sessions;    /* at least 1 */
    uint64_t queue;           /* 1-2^32-1 */
    uint64_t max_body_bytes;
    uint64_t body_memory_bytes;
    uint64_t max_connections; /* 1-2^20 */
    uint64_t stall_timeout_s; /* 1-86400 */
    uint64_t ttl_s;           /* 0-2^32-1; 0 = never */
    srv_config_list allowed_hosts;
    srv_config_list cors_origins;
    const char *kernels;   /* auto, scalar, avx2, avx512 */
    const char *log_level; /* error, warn, info, debug */
    const char *web_root;  /* the page's files are read from here; NULL: the built-in ones */

    /* What backs the above. */
    srv_config_list model_args;
    char **strings;
    size_t n_strings;
} srv_config;

typedef enum srv_config_result {
    SRV_CONFIG_RUN,     /* start the server */
    SRV_CONFIG_EXIT_OK, /* --help, --version or --print-config was answered on stdout */
    SRV_CONFIG_ERROR,   /* `err` holds one line that names the flag */
} srv_config_result;

/* Fills `c` from defaults, environment and `argv` (argv[0] is skipped).
 * Owner: the caller owes srv_config_free whatever the result; strings in `c` live until then. */
srv_config_result srv_config_parse(srv_config *c, int argc, char **argv, char *err,
                                   size_t err_size);

void srv_config_free(srv_config *c);

#endif
