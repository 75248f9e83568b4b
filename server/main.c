/* attnd: settings, engine, HTTP; then wait for a signal and end in order. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/engine.h"
#include "server/config.h"
#include "server/exchange.h"
#include "server/http.h"
#include "server/log.h"
#include "server/routes.h"
#include "server/watch.h"

#define OFFLOAD_THREADS 2

/* A connection needs a descriptor: as many as the system allows. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit))
        srv_log(SRV_LOG_WARN, "start", "RLIMIT_NOFILE: %s", strerror(errno));
}

static void set_weights_dtype(attn_options *options, const char *name)
{
    for (int i = 0; i < ATTN_DTYPES; i++) {
        if (strcmp(name, attn_dtype_name((attn_dtype)i)))
            continue;
        options->has_weights_dtype = true;
        options->weights_dtype = (attn_dtype)i;
    }
}

static attn_engine *open_engine(const srv_config *c, char *err, size_t err_size)
{
    attn_options options = {
        .models = c->models,
        .n_models = c->n_models,
        .has_random_seed = c->has_random_seed,
        .random_seed = c->random_seed,
        .n_threads = (unsigned)c->threads,
        .kv_memory_bytes = c->kv_memory_bytes,
        .max_sessions = c->max_sessions,
        .queue = (uint32_t)c->queue,
        .ttl_s = (uint32_t)c->ttl_s,
        .stall_timeout_ms = (uint32_t)c->stall_timeout_s * 1000,
        .kernels = c->kernels,
    };
    set_weights_dtype(&options, c->weights);
    attn_error error;
    attn_engine *engine = attn_engine_open(&options, &error);
    if (engine)
        return engine;
    /* A file's error names the file; a setting's is to name the flag. */
    const char *flag = error.status != ATTN_E_INVALID || !error.param ? NULL
                       : !strcmp(error.param, "models")               ? "model"
                                                                      : error.param;
    snprintf(err, err_size, "%s%s%s%s", flag ? "--" : "", flag ? flag : "", flag ? ": " : "",
             error.message);
    return NULL;
}

static srv_metrics *create_metrics(void)
{
    size_t n = srv_route_count();
    /* Kept to the end: the metrics borrow it. */
    static const char *templates[SRV_ROUTES_MAX];
    for (size_t i = 0; i < n; i++)
        templates[i] = srv_route_at(i)->template;
    return srv_metrics_create(templates, n);
}

static void end_at_once(int signo)
{
    _exit(128 + signo);
}

/* From now on a signal ends the process as it is: the orderly end has begun and may be held up. */
static void end_at_next_signal(const sigset_t *signals)
{
    struct sigaction action = {.sa_handler = end_at_once};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    pthread_sigmask(SIG_UNBLOCK, signals, NULL);
}

static void close_all(srv_app *app, srv_http *http)
{
    srv_offload_stop(app->offload);
    srv_watch_join(app->watch);
    attn_engine_close(app->engine);
    srv_watch_free(app->watch);
    srv_http_close(http);
    srv_metrics_destroy(app->metrics);
}

/* Returns the exit status; on failure `err` is one line. */
static int serve(const srv_config *config, char *err, size_t err_size)
{
    static srv_app app;
    app.config = config;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL); /* in every thread: main takes them */
    signal(SIGPIPE, SIG_IGN);
    raise_descriptor_limit();

    srv_http *http = srv_http_open(&app, err, err_size);
    if (!http)
        return 1;
    app.engine = open_engine(config, err, err_size);
    if (!app.engine) {
        close_all(&app, http);
        return 1;
    }
    app.metrics = create_metrics();
    app.offload = srv_offload_start(OFFLOAD_THREADS);
    app.watch = srv_watch_start(&app);
    bool ready = app.metrics && app.offload && app.watch;
    if (!ready || !srv_http_start(http, err, err_size)) {
        if (!ready)
            snprintf(err, err_size, "out of memory or threads");
        close_all(&app, http);
        return 1;
    }
    printf("attnd listening on %s\n", app.url);
    fflush(stdout);
    srv_log(SRV_LOG_INFO, "start", "url=%s version=%s kernels=%s threads=%u kv_memory_bytes=%llu",
            app.url, SRV_VERSION, attn_engine_kernels(app.engine), attn_engine_threads(app.engine),
            (unsigned long long)config->kv_memory_bytes);

    int signo = 0;
    sigwait(&signals, &signo);
    srv_log(SRV_LOG_INFO, "stop", "signal=%d", signo);
    end_at_next_signal(&signals);
    srv_http_stop(http);
    close_all(&app, http);
    srv_log(SRV_LOG_INFO, "stopped", " ");
    return 0;
}

int main(int argc, char **argv)
{
    srv_config config;
    char err[1024] = "";
    int status = 1;
    srv_config_result result = srv_config_parse(&config, argc, argv, err, sizeof(err));
    if (result == SRV_CONFIG_EXIT_OK) {
        status = 0;
    } else if (result == SRV_CONFIG_RUN) {
        srv_log_level level;
        if (srv_log_level_parse(config.log_level, &level))
            srv_log_set_level(level);
        status = serve(&config, err, sizeof(err));
    }
    if (err[0])
        fprintf(stderr, "attnd: %s\n", err);
    srv_config_free(&config);
    return status;
}
