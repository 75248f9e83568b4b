#include "server/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "server/config.h"

/* A status outside this table counts as the last one, 500. */
static const unsigned statuses[] = {200, 201, 204, 400, 401, 403, 404, 405, 406, 408,
                                    409, 413, 415, 422, 429, 499, 501, 503, 507, 500};

/* Likewise for the wire's error codes. */
static const char *const error_codes[] = {
    "invalid_json",
    "invalid_request",
    "context_length_exceeded",
    "token_out_of_range",
    "unauthorized",
    "forbidden_host",
    "forbidden_origin",
    "session_not_found",
    "model_not_found",
    "not_found",
    "tensor_not_found",
    "method_not_allowed",
    "not_acceptable",
    "timeout",
    "body_too_large",
    "tensor_too_large",
    "unsupported_media_type",
    "session_busy",
    "session_exists",
    "length_mismatch",
    "model_mismatch",
    "snapshot_mismatch",
    "inputs_not_kept",
    "cancelled",
    "non_finite",
    "queue_full",
    "too_many_sessions",
    "not_supported",
    "starting",
    "shutting_down",
    "busy_memory",
    "kv_budget_exceeded",
    "storage_full",
    "internal",
};

static const char *const cancel_reasons[] = {
    [SRV_METRICS_CANCEL_ASKED] = "cancelled",
    [SRV_METRICS_CANCEL_CLIENT_GONE] = "client_gone",
    [SRV_METRICS_CANCEL_STALLED] = "stalled",
    [SRV_METRICS_CANCEL_SHUTDOWN] = "shutdown",
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum {
    N_STATUSES = COUNT(statuses),
    N_ERROR_CODES = COUNT(error_codes),
    N_CANCEL_REASONS = COUNT(cancel_reasons),
};

typedef _Atomic uint64_t counter;

/* One route template, of one or more methods. */
typedef struct route {
    const char *name;
    counter requests[N_STATUSES];
} route;

struct srv_metrics {
    counter rejected[N_ERROR_CODES];
    counter cancelled[N_CANCEL_REASONS];
    counter watchers;
    counter watch_dropped;
    attn_histogram request_seconds;
    size_t n_indexes;
    size_t *by_index; /* route index -> routes[]; the entry past the last is "none" */
    size_t n_routes;
    route routes[];
};

srv_metrics *srv_metrics_create(const char *const *routes, size_t n_routes)
{
    srv_metrics *m = calloc(1, sizeof(*m) + (n_routes + 1) * sizeof(m->routes[0]));
    size_t *by_index = calloc(n_routes + 1, sizeof(*by_index));
    if (!m || !by_index) {
        free(m);
        free(by_index);
        return NULL;
    }
    m->by_index = by_index;
    m->n_indexes = n_routes;
    m->request_seconds.least = 1e-5;
    for (size_t i = 0; i <= n_routes; i++) {
        const char *name = i < n_routes ? routes[i] : "none";
        size_t k = 0;
        while (k < m->n_routes && strcmp(m->routes[k].name, name) != 0)
            k++;
        if (k == m->n_routes)
            m->routes[m->n_routes++].name = name;
        by_index[i] = k;
    }
    return m;
}

void srv_metrics_destroy(srv_metrics *m)
{
    if (m)
        free(m->by_index);
    free(m);
}

/* --------------------------------------------------------------------------------- counting */

static void add(counter *c, uint64_t n)
{
    atomic_fetch_add_explicit(c, n, memory_order_relaxed);
}

static uint64_t get(const counter *c)
{
    return atomic_load_explicit(c, memory_order_relaxed);
}

void srv_metrics_request(srv_metrics *m, size_t index, unsigned status, double seconds)
{
    route *r = &m->routes[m->by_index[index < m->n_indexes ? index : m->n_indexes]];
    size_t i = 0;
    while (i < N_STATUSES - 1 && statuses[i] != status)
        i++;
    add(&r->requests[i], 1);
    attn_histogram_observe(&m->request_seconds, seconds);
}

void srv_metrics_cancelled(srv_metrics *m, srv_metrics_cancel reason)
{
    add(&m->cancelled[reason], 1);
}

void srv_metrics_rejected(srv_metrics *m, const char *code)
{
    size_t i = 0;
    while (i < N_ERROR_CODES - 1 && strcmp(error_codes[i], code) != 0)
        i++;
    add(&m->rejected[i], 1);
}

void srv_metrics_watchers(srv_metrics *m, int change)
{
    add(&m->watchers, (uint64_t)(int64_t)change);
}

void srv_metrics_watch_dropped(srv_metrics *m, uint64_t n)
{
    add(&m->watch_dropped, n);
}

/* -------------------------------------------------------------------------------- rendering */

static void head(srv_buf *out, const char *name, const char *type, const char *help)
{
    srv_buf_printf(out, "# HELP attnd_%s %s\n# TYPE attnd_%s %s\n", name, help, name, type);
}

static void value(srv_buf *out, const char *name, uint64_t v)
{
    srv_buf_printf(out, "attnd_%s %llu\n", name, (unsigned long long)v);
}

/* One sample with one label. Label values are names and templates without " \ or newline. */
static void labelled(srv_buf *out, const char *name, const char *label, const char *text,
                     uint64_t v)
{
    srv_buf_printf(out, "attnd_%s{%s=\"%s\"} %llu\n", name, label, text, (unsigned long long)v);
}

static void gauge(srv_buf *out, const char *name, const char *help, uint64_t v)
{
    head(out, name, "gauge", help);
    value(out, name, v);
}

static void count(srv_buf *out, const char *name, const char *help, uint64_t v)
{
    head(out, name, "counter", help);
    value(out, name, v);
}

/* The count is the sum of the buckets as read, so that it agrees with them under load. */
static void histogram(srv_buf *out, const char *name, const char *help, const attn_histogram *h)
{
    head(out, name, "histogram", help);
    uint64_t total = 0;
    double bound = h->least;
    for (size_t i = 0; i < ATTN_HISTOGRAM_BUCKETS; i++, bound *= 2) {
        total += get(&h->counts[i]);
        if (i < ATTN_HISTOGRAM_BUCKETS - 1)
            srv_buf_printf(out, "attnd_%s_bucket{le=\"%.9g\"} ", name, bound);
        else
            srv_buf_printf(out, "attnd_%s_bucket{le=\"+Inf\"} ", name);
        srv_buf_printf(out, "%llu\n", (unsigned long long)total);
    }
    srv_buf_printf(out, "attnd_%s_sum %.6f\nattnd_%s_count %llu\n", name,
                   (double)get(&h->sum_micro) / 1e6, name, (unsigned long long)total);
}

static void render_engine(attn_engine *engine, srv_buf *out)
{
    attn_totals totals;
    attn_engine_totals(engine, &totals);
    head(out, "kv_bytes", "gauge", "Bytes of KV pages; shared ones are part of the allocated.");
    labelled(out, "kv_bytes", "state", "allocated", totals.kv.bytes);
    labelled(out, "kv_bytes", "state", "shared", totals.kv.shared_bytes);
    labelled(out, "kv_bytes", "state", "reserved", totals.kv.reserved_bytes);
    gauge(out, "kv_budget_bytes", "Bytes all sessions together may use.", totals.budget_bytes);
    gauge(out, "inputs_bytes", "Bytes of kept inputs.", totals.inputs_bytes);

    head(out, "sessions", "gauge", "Sessions.");
    for (size_t i = 0; i < attn_model_count(engine); i++) {
        attn_model_info info;
        attn_model_get(engine, i, &info);
        labelled(out, "sessions", "model", info.name, info.n_sessions);
    }

    attn_stats stats;
    attn_engine_stats(engine, &stats);
    head(out, "requests_in_flight", "gauge", "Admitted requests that have not ended.");
    labelled(out, "requests_in_flight", "kind", "prefill", stats.prefill_in_flight);
    labelled(out, "requests_in_flight", "kind", "decode", stats.decode_in_flight);
    labelled(out, "requests_in_flight", "kind", "verify", stats.verify_in_flight);
    labelled(out, "requests_in_flight", "kind", "tensor", stats.tensor_in_flight);
    gauge(out, "queue_depth", "Admitted requests that have not started.", stats.queue_depth);
    gauge(out, "trace_bytes", "Tensors that requests and watchers look at.", stats.trace_bytes);
    count(out, "prefill_tokens_total", "Positions appended by prefill.", stats.prefill_tokens);
    count(out, "decode_steps_total", "Decode steps committed.", stats.decode_steps);
    histogram(out, "batch_size", "Rows computed in one batch.", stats.batch_size);
    histogram(out, "queue_seconds", "From admission to the first batch.", stats.queue_seconds);
    histogram(out, "ttft_seconds", "From admission to the first output.", stats.ttft_seconds);
    histogram(out, "step_seconds", "Between the decode steps of a request.", stats.step_seconds);
}

static void render_process(srv_buf *out)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        if (fscanf(file, "%*u %llu", &pages) != 1)
            pages = 0;
        fclose(file);
    }
    gauge(out, "process_resident_memory_bytes", "Resident memory.",
          pages * (uint64_t)sysconf(_SC_PAGESIZE));

    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    head(out, "process_cpu_seconds_total", "counter", "CPU time used, user and system.");
    srv_buf_printf(out, "attnd_process_cpu_seconds_total %.6f\n",
                   (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
}

void srv_metrics_render(const srv_metrics *m, attn_engine *engine, srv_buf *out)
{
    head(out, "build_info", "gauge", "What runs: always 1.");
    srv_buf_printf(out, "attnd_build_info{version=\"%s\",kernels=\"%s\",numerics=\"%d\"} 1\n",
                   SRV_VERSION, engine ? attn_engine_kernels(engine) : "", ATTN_NUMERICS);
    if (engine)
        render_engine(engine, out);

    head(out, "requests_total", "counter", "Requests answered, by route template and status.");
    for (size_t i = 0; i < m->n_routes; i++)
        for (size_t k = 0; k < N_STATUSES; k++)
            if (get(&m->routes[i].requests[k]))
                srv_buf_printf(out, "attnd_requests_total{route=\"%s\",code=\"%u\"} %llu\n",
                               m->routes[i].name, statuses[k],
                               (unsigned long long)get(&m->routes[i].requests[k]));
    head(out, "rejected_total", "counter", "Requests refused, by error code.");
    for (size_t i = 0; i < N_ERROR_CODES; i++)
        labelled(out, "rejected_total", "code", error_codes[i], get(&m->rejected[i]));
    head(out, "cancelled_total", "counter", "Requests ended early, by reason.");
    for (size_t i = 0; i < N_CANCEL_REASONS; i++)
        labelled(out, "cancelled_total", "reason", cancel_reasons[i], get(&m->cancelled[i]));
    histogram(out, "http_request_seconds", "From a request's first byte to its last.",
              &m->request_seconds);
    gauge(out, "watchers", "Clients of /watch.", get(&m->watchers));
    count(out, "watch_frames_dropped_total", "Frames that slow watchers lost.",
          get(&m->watch_dropped));
    render_process(out);
}
