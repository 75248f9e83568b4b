/* monitor.h: once a second, what the server reports and what its process takes, beside what the
 * client knows: points in time. Their number is bounded: when there are too many, pairs are merged.
 */
#ifndef LOAD_MONITOR_H
#define LOAD_MONITOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "clients/load/workload.h"

/* GET /sessions' totals. */
typedef struct load_totals {
    uint64_t sessions, positions, kv_bytes, shared_bytes, inputs_bytes;
    uint64_t budget_bytes, available_bytes;
} load_totals;

typedef struct load_point {
    double t_s, span_s; /* when, and the time since the point before */
    load_held held;
    load_totals totals;
    uint64_t process_bytes;                               /* as read; 0: unknown */
    uint64_t steps, prefilled, requests, refused, errors; /* since the point before */
    double step_p50_ms, step_p99_ms;
} load_point;

typedef struct load_monitor load_monitor;

/* Reads how things are before anything is done. Errors: NULL, and one line in `err`. */
load_monitor *load_monitor_new(const load_options *o, load_http *http, load_workload *w, char *err,
                               size_t err_size);
void load_monitor_free(load_monitor *m);
/* Writes each point there as a line of CSV. */
void load_monitor_write_csv(load_monitor *m, FILE *csv);

/* Takes a point when it is time; returns when it will be. */
uint64_t load_monitor_advance(load_monitor *m, uint64_t now_ns);
/* Takes a last point, now. */
void load_monitor_finish(load_monitor *m);

/* Before the first and after the last request. All points, these two included. */
const load_point *load_monitor_first(const load_monitor *m);
const load_point *load_monitor_last(const load_monitor *m);
const load_point *load_monitor_points(const load_monitor *m, size_t *n);
uint64_t load_monitor_peak_process_bytes(const load_monitor *m);
/* Where process_bytes come from, or NULL when they are unknown. */
const char *load_monitor_process_source(const load_monitor *m);

/* Bytes of the client's sessions that the server reports; that it charges to its budget; and that
 * its process grew by: each less what there was before. */
double load_point_reported_bytes(const load_monitor *m, const load_point *p);
double load_point_charged_bytes(const load_monitor *m, const load_point *p);
double load_point_process_bytes(const load_monitor *m, const load_point *p);

/* The totals as they are now. False: no answer. */
bool load_totals_get(load_http *http, load_totals *totals);

#endif
