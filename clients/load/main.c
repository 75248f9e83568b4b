/* main.c: attn-load from its options to its exit status. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "clients/load/audit.h"
#include "clients/load/check.h"
#include "clients/load/http.h"
#include "clients/load/model.h"
#include "clients/load/monitor.h"
#include "clients/load/options.h"
#include "clients/load/report.h"
#include "clients/load/workload.h"

enum { STATUS_OK = 0, STATUS_FAILED = 1, STATUS_WRONG = 2 };

static volatile sig_atomic_t interrupted;

/* The first signal ends the load, and the report follows; a second one ends the program. */
static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* Files that are written at the end are opened at the beginning. */
typedef struct files {
    FILE *json, *csv, *html;
} files;

static bool open_file(const char *path, FILE **file)
{
    if (path != NULL && (*file = fopen(path, "w")) == NULL) {
        fprintf(stderr, "attn-load: %s: %s\n", path, strerror(errno));
        return false;
    }
    return true;
}

static bool close_file(const char *path, FILE *file, load_text *text)
{
    if (file == NULL)
        return true;
    if (text != NULL && text->len > 0)
        fwrite(text->data, 1, text->len, file);
    bool bad = ferror(file) != 0;
    if (fclose(file) == 0 && !bad)
        return true;
    fprintf(stderr, "attn-load: %s: cannot be written\n", path);
    return false;
}

static void run_load(load_http *http, load_workload *w, load_monitor *monitor)
{
    while (!load_workload_ended(w)) {
        uint64_t now = load_now_ns();
        uint64_t due = load_workload_advance(w, now), tick = load_monitor_advance(monitor, now);
        if (load_workload_ended(w))
            break;
        load_http_turn(http, due < tick ? due : tick);
        if (interrupted == 1) {
            load_workload_stop(w);
            interrupted = 2;
        }
    }
    load_monitor_finish(monitor);
}

static int write_reports(const load_result *r, files *f)
{
    load_text text = {0};
    bool ok = true;
    load_report_table(r, &text);
    fwrite(text.data, 1, text.len, stdout);
    load_text_clear(&text);
    if (f->json != NULL)
        load_report_json(r, &text);
    ok = close_file(r->o->json, f->json, &text) && ok;
    load_text_clear(&text);
    if (f->html != NULL)
        load_report_html(r, &text);
    ok = close_file(r->o->html, f->html, &text) && ok;
    ok = close_file(r->o->csv, f->csv, NULL) && ok;
    load_text_free(&text);
    if (r->check.n_mismatches > 0 || load_audit_failed(&r->audit) || r->stats->lost > 0)
        return STATUS_WRONG;
    return ok && r->audit.done && load_stats_errors(r->stats) == 0 ? STATUS_OK : STATUS_FAILED;
}

/* Loads, measures, checks, reports. */
static int run(const load_options *o, const load_model *m, load_http *http, files *f)
{
    char err[256];
    load_workload *w = load_workload_new(o, m, http);
    load_monitor *monitor = load_monitor_new(o, http, w, err, sizeof err);
    if (monitor == NULL) {
        fprintf(stderr, "attn-load: %s\n", err);
        load_workload_free(w);
        return STATUS_FAILED;
    }
    if (f->csv != NULL)
        load_monitor_write_csv(monitor, f->csv);
    run_load(http, w, monitor);

    const load_samples *samples = load_workload_samples(w);
    load_result r = {.o = o, .m = m, .stats = load_workload_stats(w), .monitor = monitor};
    r.interrupted = interrupted != 0;
    r.elapsed_s = (double)(load_workload_end_ns(w) - load_workload_begin_ns(w)) * 1e-9;
    load_audit_run(&r.audit, o, m, http, w);
    load_check_verify(&r.check, m, http, samples);
    if (!o->keep) {
        load_workload_delete_all(w);
        r.deleted = load_totals_get(http, &r.after);
    }
    load_check_recompute(&r.check, o, m, http, samples);
    int status = write_reports(&r, f);
    load_monitor_free(monitor);
    load_workload_free(w);
    return status;
}

int main(int argc, char **argv)
{
    load_options o;
    load_model m;
    files f = {0};
    char err[256] = "";
    if (!load_options_parse(&o, argc, argv, err, sizeof err)) {
        fprintf(stderr, "attn-load: %s\n", err);
        return STATUS_FAILED;
    }
    if (o.help) {
        load_text text = {0};
        load_options_help(&text);
        fputs(text.data, stdout);
        load_text_free(&text);
        return STATUS_OK;
    }
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    catch_signals();
    load_http *http = load_http_open(o.url, (size_t)o.connections, o.timeout_s, err, sizeof err);
    int status = STATUS_FAILED;
    if (http == NULL || !load_model_get(&m, http, &o, err, sizeof err))
        fprintf(stderr, "attn-load: %s\n", err);
    else if (open_file(o.json, &f.json) && open_file(o.csv, &f.csv) && open_file(o.html, &f.html))
        status = run(&o, &m, http, &f);
    load_http_close(http);
    return status;
}
