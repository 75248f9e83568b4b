/* report.h: what came out of a run, as a table, as JSON and as a page. */
#ifndef LOAD_REPORT_H
#define LOAD_REPORT_H

#include "clients/load/audit.h"
#include "clients/load/check.h"
#include "clients/load/model.h"
#include "clients/load/monitor.h"
#include "clients/load/options.h"
#include "clients/load/text.h"
#include "clients/load/workload.h"

typedef struct load_result {
    const load_options *o;
    const load_model *m;
    const load_stats *stats;
    const load_monitor *monitor;
    load_audit audit;
    load_check check;
    double elapsed_s; /* from the first request to the last answer */
    bool deleted;     /* the sessions were deleted, and then the totals were: */
    load_totals after;
    bool interrupted;
} load_result;

/* The same numbers in three forms. */
void load_report_table(const load_result *r, load_text *out);
void load_report_json(const load_result *r, load_text *out);
void load_report_html(const load_result *r, load_text *out);

/* What the forms share: one line on the server and one on the load. */
void load_report_about(const load_result *r, load_text *out);
void load_report_plan(const load_result *r, load_text *out);

/* The latencies that are reported, those that were measured. */
typedef struct load_latency {
    const char *name, *what;
    const load_histogram *histogram;
} load_latency;
enum { LOAD_LATENCIES = LOAD_KINDS + 2 };
size_t load_report_latencies(const load_result *r, load_latency list[LOAD_LATENCIES]);

/* Bytes of the client's sessions. overhead: what the process took beyond the reported, in percent;
 * has_process: it is known. */
typedef struct load_memory {
    double formula, reported, charged, process, peak_process, overhead_percent;
    bool has_process;
} load_memory;
load_memory load_report_memory(const load_result *r);

#endif
