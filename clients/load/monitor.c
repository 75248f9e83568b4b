#include "clients/load/monitor.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients/load/http_reply.h"

#define SECOND_NS UINT64_C(1000000000)
enum { MAX_POINTS = 2048 };

struct load_monitor {
    const load_options *o;
    load_http *http;
    load_workload *w;
    FILE *csv;
    const char *source;
    load_call call;
    bool calling, answered, interactive, ending;
    uint64_t begin_ns, next_ns, last_ns;
    uint64_t steps, prefilled, requests, refused, errors; /* counted up to the last point */
    load_point first, now;                                /* now: being filled */
    load_point *points;
    size_t n_points;
    uint64_t peak_process_bytes;
};

static const char *const csv_head =
    "t_s,sessions,at_work,positions,formula_kv_bytes,formula_inputs_bytes,reported_sessions,"
    "reported_positions,reported_kv_bytes,reported_inputs_bytes,charged_bytes,process_bytes,"
    "steps_per_s,prefill_positions_per_s,requests_per_s,refused,errors,step_p50_ms,step_p99_ms\n";

/* ------------------------------------------------------------------------------------ sources */

static bool read_totals(const char *json, load_totals *t)
{
    const char *totals = load_json_find(json, "totals");
    return totals != NULL && load_json_number(totals, "sessions", &t->sessions) &&
           load_json_number(totals, "positions", &t->positions) &&
           load_json_number(totals, "bytes", &t->kv_bytes) &&
           load_json_number(totals, "shared_bytes", &t->shared_bytes) &&
           load_json_number(totals, "inputs_bytes", &t->inputs_bytes) &&
           load_json_number(totals, "budget_bytes", &t->budget_bytes) &&
           load_json_number(totals, "available_bytes", &t->available_bytes);
}

bool load_totals_get(load_http *http, load_totals *totals)
{
    load_call call = {0};
    bool ok = load_http_ask(http, &call, "GET", "/sessions?limit=1") &&
              read_totals(call.reply.data, totals);
    load_call_free(&call);
    return ok;
}

/* RssAnon + VmSwap of a process; 0: it cannot be read. */
static uint64_t read_process(uint64_t pid)
{
    char path[64], line[256];
    unsigned long kib, sum = 0;
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/status", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "RssAnon: %lu kB", &kib) == 1 || sscanf(line, "VmSwap: %lu kB", &kib) == 1)
            sum += kib;
    }
    fclose(file);
    return (uint64_t)sum * 1024;
}

static uint64_t read_metric(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) == 0 && line[n] == ' ')
            return (uint64_t)strtod(line + n, NULL);
    }
    return 0;
}

/* ------------------------------------------------------------------------------------- points */

static void merge(load_point *into, const load_point *next)
{
    load_point p = *next;
    p.span_s += into->span_s;
    p.steps += into->steps;
    p.prefilled += into->prefilled;
    p.requests += into->requests;
    p.refused += into->refused;
    p.errors += into->errors;
    if (next->steps == 0)
        p.step_p50_ms = into->step_p50_ms;
    if (into->step_p99_ms > p.step_p99_ms)
        p.step_p99_ms = into->step_p99_ms;
    *into = p;
}

static void keep_point(load_monitor *m)
{
    if (m->ending && m->n_points > 1 && m->now.span_s < 0.5) {
        merge(&m->points[m->n_points - 1], &m->now);
        return;
    }
    if (m->n_points == MAX_POINTS) {
        for (size_t i = 0; i < MAX_POINTS / 2; i++) {
            m->points[i] = m->points[2 * i];
            merge(&m->points[i], &m->points[2 * i + 1]);
        }
        m->n_points = MAX_POINTS / 2;
    }
    m->points[m->n_points++] = m->now;
}

static uint64_t since(uint64_t total, uint64_t *before)
{
    uint64_t n = total - *before;
    *before = total;
    return n;
}

/* Fills in what the client counted since the point before. */
static void count(load_monitor *m, uint64_t now_ns)
{
    load_stats *s = load_workload_stats(m->w);
    load_point *p = &m->now;
    uint64_t requests = 0;
    for (size_t k = 0; k < LOAD_KINDS; k++)
        requests += s->requests[k];
    p->t_s = (double)(now_ns - m->begin_ns) * 1e-9;
    p->span_s = (double)(now_ns - m->last_ns) * 1e-9;
    p->held = load_workload_held(m->w);
    p->steps = since(s->steps, &m->steps);
    p->prefilled = since(s->prefilled, &m->prefilled);
    p->requests = since(requests, &m->requests);
    p->refused = since(s->refused, &m->refused);
    p->errors = since(load_stats_errors(s), &m->errors);
    p->step_p50_ms = load_histogram_quantile_ms(&s->step_second, 0.5);
    p->step_p99_ms = load_histogram_quantile_ms(&s->step_second, 0.99);
    load_histogram_clear(&s->step_second);
    m->last_ns = now_ns;
}

static double per_second(uint64_t n, const load_point *p)
{
    return p->span_s > 0 ? (double)n / p->span_s : 0;
}

static void write_csv(load_monitor *m, const load_point *p)
{
    const load_totals *t = &p->totals;
    fprintf(m->csv,
            "%.3f,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
            ",%" PRIu64 ",%" PRIu64 ",%.0f,%" PRIu64 ",%.1f,%.1f,%.1f,%" PRIu64 ",%" PRIu64
            ",%.4f,%.4f\n",
            p->t_s, p->held.sessions, p->held.at_work, p->held.positions, p->held.kv_bytes,
            p->held.inputs_bytes, t->sessions, t->positions, t->kv_bytes, t->inputs_bytes,
            load_point_charged_bytes(m, p), p->process_bytes, per_second(p->steps, p),
            per_second(p->prefilled, p), per_second(p->requests, p), p->refused, p->errors,
            p->step_p50_ms, p->step_p99_ms);
    fflush(m->csv);
}

static void show_progress(const load_monitor *m, const load_point *p)
{
    char bytes[LOAD_SIZE_TEXT];
    if (m->o->quiet || !(m->o->progress || m->interactive))
        return;
    fprintf(stderr,
            "%s%6.1f s  %" PRIu64 " sessions (%" PRIu64 " at work)  %" PRIu64
            " positions  %s reported  %.0f steps/s  %.0f prefill/s  p99 %.2f ms  refused %" PRIu64
            "  errors %" PRIu64 "%s",
            m->interactive ? "\r\033[K" : "", p->t_s, p->held.sessions, p->held.at_work,
            p->held.positions, load_size_text(load_point_reported_bytes(m, p), bytes),
            per_second(p->steps, p), per_second(p->prefilled, p), p->step_p99_ms, m->refused,
            m->errors, m->interactive ? "" : "\n");
    fflush(stderr);
}

/* The point has all its numbers. */
static void end_point(load_monitor *m)
{
    if (m->now.process_bytes > m->peak_process_bytes)
        m->peak_process_bytes = m->now.process_bytes;
    if (m->answered && m->begin_ns != 0) {
        keep_point(m);
        if (m->csv != NULL)
            write_csv(m, &m->now);
        show_progress(m, &m->now);
    }
    m->calling = false;
}

static void end_metrics(load_call *call)
{
    load_monitor *m = call->owner;
    if (call->failure == LOAD_FAIL_NONE && call->status == 200)
        m->now.process_bytes = read_metric(call->reply.data, "attnd_process_resident_memory_bytes");
    if (m->now.process_bytes > 0)
        m->source = "resident memory by /metrics";
    end_point(m);
}

static void end_totals(load_call *call)
{
    load_monitor *m = call->owner;
    m->answered = call->failure == LOAD_FAIL_NONE && call->status == 200 &&
                  read_totals(call->reply.data, &m->now.totals);
    if (m->begin_ns != 0)
        count(m, load_now_ns());
    if (m->o->pid == 0) {
        m->call.end = end_metrics;
        load_http_submit(m->http, &m->call, "GET", "/metrics");
        return;
    }
    m->now.process_bytes = read_process(m->o->pid);
    if (m->now.process_bytes > 0)
        m->source = "RssAnon + VmSwap";
    end_point(m);
}

static void begin_point(load_monitor *m)
{
    m->now = (load_point){0};
    m->calling = true;
    m->call.owner = m;
    m->call.end = end_totals;
    load_http_submit(m->http, &m->call, "GET", "/sessions?limit=1");
}

/* ------------------------------------------------------------------------------------- public */

load_monitor *load_monitor_new(const load_options *o, load_http *http, load_workload *w, char *err,
                               size_t err_size)
{
    load_monitor *m = load_alloc(1, sizeof *m);
    m->o = o;
    m->http = http;
    m->w = w;
    m->interactive = isatty(STDERR_FILENO) == 1;
    m->points = load_alloc(MAX_POINTS, sizeof *m->points);
    if (o->pid != 0 && read_process(o->pid) == 0) {
        snprintf(err, err_size, "--pid: no process %" PRIu64 " to read", o->pid);
        load_monitor_free(m);
        return NULL;
    }
    load_monitor_finish(m);
    if (!m->answered) {
        snprintf(err, err_size, "GET /sessions gives no totals");
        load_monitor_free(m);
        return NULL;
    }
    m->ending = false;
    m->first = m->now;
    m->begin_ns = m->last_ns = load_now_ns();
    m->next_ns = m->begin_ns + SECOND_NS;
    m->points[m->n_points++] = m->first;
    return m;
}

void load_monitor_free(load_monitor *m)
{
    load_call_free(&m->call);
    free(m->points);
    free(m);
}

void load_monitor_write_csv(load_monitor *m, FILE *csv)
{
    m->csv = csv;
    fputs(csv_head, csv);
    write_csv(m, &m->first);
}

uint64_t load_monitor_advance(load_monitor *m, uint64_t now_ns)
{
    if (now_ns >= m->next_ns) {
        m->next_ns += (now_ns - m->next_ns) / SECOND_NS * SECOND_NS + SECOND_NS;
        if (!m->calling)
            begin_point(m);
    }
    return m->next_ns;
}

void load_monitor_finish(load_monitor *m)
{
    while (m->calling)
        load_http_turn(m->http, UINT64_MAX);
    m->ending = true;
    begin_point(m);
    while (m->calling)
        load_http_turn(m->http, UINT64_MAX);
    if (m->begin_ns != 0 && m->interactive && !m->o->quiet)
        fputs("\n", stderr);
}

const load_point *load_monitor_first(const load_monitor *m)
{
    return &m->first;
}

const load_point *load_monitor_last(const load_monitor *m)
{
    return m->n_points > 0 ? &m->points[m->n_points - 1] : &m->first;
}

const load_point *load_monitor_points(const load_monitor *m, size_t *n)
{
    *n = m->n_points;
    return m->points;
}

uint64_t load_monitor_peak_process_bytes(const load_monitor *m)
{
    return m->peak_process_bytes;
}

const char *load_monitor_process_source(const load_monitor *m)
{
    return m->source;
}

double load_point_reported_bytes(const load_monitor *m, const load_point *p)
{
    const load_totals *now = &p->totals, *then = &m->first.totals;
    return (double)(now->kv_bytes + now->inputs_bytes) -
           (double)(then->kv_bytes + then->inputs_bytes);
}

double load_point_charged_bytes(const load_monitor *m, const load_point *p)
{
    return (double)m->first.totals.available_bytes - (double)p->totals.available_bytes;
}

double load_point_process_bytes(const load_monitor *m, const load_point *p)
{
    if (m->first.process_bytes == 0 || p->process_bytes == 0)
        return 0;
    return (double)p->process_bytes - (double)m->first.process_bytes;
}
