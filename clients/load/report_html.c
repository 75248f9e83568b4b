#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/load/plot.h"
#include "clients/load/report.h"

static const char *const style =
    ":root{color-scheme:light dark;--page:#f6f6f4;--card:#fff;--ink:#1c1c1a;--soft:#5f5e5a;"
    "--line:#e2e1dc;--good:#0b7a4b;--bad:#c2261f;--c0:#2a6fce;--c1:#c4571a;--c2:#128a63;"
    "--c3:#7a4fc4}\n"
    "@media(prefers-color-scheme:dark){:root{--page:#141413;--card:#1e1e1c;--ink:#eeede9;"
    "--soft:#a8a7a0;--line:#363632;--good:#3fbf86;--bad:#ff7a70;--c0:#5b9df0;--c1:#ef8a4a;"
    "--c2:#35b98a;--c3:#a98bf0}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;padding:24px;background:var(--page);color:var(--ink);"
    "font:15px/1.5 system-ui,sans-serif}\n"
    "main{max-width:1320px;margin:0 auto}\n"
    "h1{font-size:22px;margin:0 0 4px}h2{font-size:17px;margin:28px 0 10px}\n"
    "p{margin:0;color:var(--soft)}\n"
    ".tiles{display:grid;grid-template-columns:repeat(5,1fr);gap:10px;margin-top:18px}\n"
    "@media(max-width:820px){.tiles{grid-template-columns:repeat(2,1fr)}}\n"
    ".tiles div{background:var(--card);border:1px solid var(--line);border-radius:8px;"
    "padding:10px 14px}\n"
    ".tiles b{display:block;font-size:21px;font-weight:600;font-variant-numeric:tabular-nums}\n"
    ".tiles span{font-size:13px;color:var(--soft)}\n"
    ".good{color:var(--good)}.bad{color:var(--bad)}\n"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,520px),1fr));"
    "gap:14px}\n"
    "pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:14px;"
    "overflow-x:auto;font-size:13px;line-height:1.45}\n";

/* A number of a point, for a curve. */
typedef double (*getter)(const load_monitor *m, const load_point *p);

static double seconds(const load_monitor *m, const load_point *p)
{
    (void)m;
    return p->t_s;
}

static double sessions(const load_monitor *m, const load_point *p)
{
    (void)m;
    return (double)p->held.sessions;
}

static double at_work(const load_monitor *m, const load_point *p)
{
    (void)m;
    return (double)p->held.at_work;
}

static double formula(const load_monitor *m, const load_point *p)
{
    (void)m;
    return (double)(p->held.kv_bytes + p->held.inputs_bytes);
}

static double per_second(uint64_t n, const load_point *p)
{
    return p->span_s > 0.05 ? (double)n / p->span_s : (double)NAN;
}

static double steps(const load_monitor *m, const load_point *p)
{
    (void)m;
    return per_second(p->steps, p);
}

static double prefilled(const load_monitor *m, const load_point *p)
{
    (void)m;
    return per_second(p->prefilled, p);
}

static double requests(const load_monitor *m, const load_point *p)
{
    (void)m;
    return per_second(p->requests, p);
}

static double refused(const load_monitor *m, const load_point *p)
{
    (void)m;
    return per_second(p->refused, p);
}

static double step_p50(const load_monitor *m, const load_point *p)
{
    (void)m;
    return p->steps > 0 ? p->step_p50_ms : (double)NAN;
}

static double step_p99(const load_monitor *m, const load_point *p)
{
    (void)m;
    return p->steps > 0 ? p->step_p99_ms : (double)NAN;
}

/* ---------------------------------------------------------------------------------------- plots */

/* Curves over the points, by name. */
typedef struct line {
    const char *name;
    getter y;
} line;

static double *values(const load_result *r, getter get)
{
    size_t n;
    const load_point *points = load_monitor_points(r->monitor, &n);
    double *v = load_alloc(n, sizeof *v);
    for (size_t i = 0; i < n; i++)
        v[i] = get(r->monitor, &points[i]);
    return v;
}

static void plot(const load_result *r, load_text *out, load_plot p, getter x, const line *lines,
                 size_t n_lines)
{
    size_t n;
    load_monitor_points(r->monitor, &n);
    double *xs = values(r, x), *ys[LOAD_CURVES] = {NULL};
    for (size_t k = 0; k < n_lines; k++) {
        ys[k] = values(r, lines[k].y);
        p.curves[p.n_curves++] = (load_curve){lines[k].name, xs, ys[k], n};
    }
    load_plot_svg(out, &p);
    free(xs);
    for (size_t k = 0; k < n_lines; k++)
        free(ys[k]);
}

static void memory_plots(const load_result *r, load_text *out)
{
    static const line memory[] = {{"formula", formula},
                                  {"reported", load_point_reported_bytes},
                                  {"process", load_point_process_bytes}};
    static const line counts[] = {{"in the server", sessions}, {"at work", at_work}};
    size_t n = load_report_memory(r).has_process ? 3 : 2;
    load_plot over_time = {
        .title = "Memory over time", .x_unit = LOAD_UNIT_SECONDS, .y_unit = LOAD_UNIT_BYTES};
    load_plot over_sessions = {
        .title = "Memory against sessions", .x_unit = LOAD_UNIT_COUNT, .y_unit = LOAD_UNIT_BYTES};
    load_plot held = {
        .title = "Sessions over time", .x_unit = LOAD_UNIT_SECONDS, .y_unit = LOAD_UNIT_COUNT};
    plot(r, out, over_time, seconds, memory, n);
    plot(r, out, over_sessions, sessions, memory, n);
    plot(r, out, held, seconds, counts, 2);
}

static void throughput_plots(const load_result *r, load_text *out)
{
    static const line decoded[] = {{"steps/s", steps}}, fed[] = {{"positions/s", prefilled}};
    static const line asked[] = {{"requests/s", requests}, {"refused/s", refused}};
    static const line times[] = {{"p50", step_p50}, {"p99", step_p99}};
    load_plot p = {.x_unit = LOAD_UNIT_SECONDS, .y_unit = LOAD_UNIT_COUNT};
    p.title = "Decode steps a second";
    plot(r, out, p, seconds, decoded, 1);
    p.title = "Prefilled positions a second";
    plot(r, out, p, seconds, fed, 1);
    p.title = "Requests a second";
    plot(r, out, p, seconds, asked, 2);
    p.title = "Time between steps";
    p.y_unit = LOAD_UNIT_MS;
    plot(r, out, p, seconds, times, 2);
}

/* The curve of all quantiles of a histogram. Owner: x and y. */
static load_curve quantiles(const load_latency *latency, double *x, double *y)
{
    const load_histogram *h = latency->histogram;
    load_curve curve = {latency->name, x, y, 0};
    uint64_t seen = 0;
    double last = -1;
    for (unsigned b = 0; b < LOAD_BUCKETS; b++) {
        seen += h->buckets[b];
        if (h->buckets[b] == 0)
            continue;
        double q = seen < h->count ? -log10(1 - (double)seen / (double)h->count)
                                   : log10((double)h->count) + 0.1;
        if (q - last < 0.005 && seen < h->count)
            continue;
        x[curve.n] = last = q;
        y[curve.n++] = load_histogram_bucket_ms(b);
    }
    return curve;
}

static void latency_plot(const load_result *r, load_text *out)
{
    load_latency list[LOAD_LATENCIES];
    size_t n = load_report_latencies(r, list);
    n = n < LOAD_CURVES ? n : LOAD_CURVES;
    double *room = load_alloc(2 * LOAD_CURVES * LOAD_BUCKETS, sizeof *room);
    load_plot p = {.title = "Latency by quantile",
                   .x_unit = LOAD_UNIT_QUANTILE,
                   .y_unit = LOAD_UNIT_MS,
                   .log_y = true,
                   .n_curves = n};
    for (size_t i = 0; i < n; i++)
        p.curves[i] =
            quantiles(&list[i], room + 2 * i * LOAD_BUCKETS, room + (2 * i + 1) * LOAD_BUCKETS);
    load_plot_svg(out, &p);
    free(room);
}

/* ----------------------------------------------------------------------------------------- page */

__attribute__((format(printf, 4, 5))) static void tile(load_text *out, const char *name,
                                                       const char *class, const char *format, ...)
{
    char text[64];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    load_text_printf(out, "<div><b class=\"%s\">", class);
    load_text_html(out, text);
    load_text_puts(out, "</b><span>");
    load_text_html(out, name);
    load_text_puts(out, "</span></div>\n");
}

static void tiles(const load_result *r, load_text *out)
{
    char size[LOAD_SIZE_TEXT];
    const load_point *p = load_monitor_last(r->monitor);
    const load_check *c = &r->check;
    load_memory m = load_report_memory(r);
    double t = r->elapsed_s > 0 ? r->elapsed_s : 1;
    bool exact = r->audit.done && !load_audit_failed(&r->audit) && r->stats->lost == 0;
    load_text_puts(out, "<div class=\"tiles\">\n");
    tile(out, "sessions in the server", "", "%" PRIu64, p->held.sessions);
    tile(out, "positions", "", "%" PRIu64, p->held.positions);
    tile(out, "reported", "", "%s", load_size_text(m.reported, size));
    if (m.has_process)
        tile(out, "process against reported", "", "%+.1f %%", m.overhead_percent);
    tile(out, "sessions with exact bytes", exact ? "good" : "bad", "%s", exact ? "all" : "not all");
    tile(out, "steps/s", "", "%.0f", (double)r->stats->steps / t);
    tile(out, "time to first step, p99", "", "%.3g ms",
         load_histogram_quantile_ms(&r->stats->ttft, 0.99));
    tile(out, "refused", "", "%" PRIu64, r->stats->refused);
    tile(out, "failed requests", load_stats_errors(r->stats) ? "bad" : "", "%" PRIu64,
         load_stats_errors(r->stats));
    tile(out, "recomputed, bit-identical", c->n_mismatches ? "bad" : "good",
         "%" PRIu64 " of %" PRIu64, c->recomputed, c->sampled);
    load_text_puts(out, "</div>\n");
}

void load_report_html(const load_result *r, load_text *out)
{
    load_text text = {0};
    load_text_puts(out, "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
                        "<meta name=\"viewport\" content=\"width=device-width\">\n"
                        "<title>attn-load</title>\n<style>\n");
    load_text_puts(out, style);
    load_text_puts(out, load_plot_style);
    load_text_puts(out, "</style>\n<main>\n<h1>attn-load</h1>\n<p>");
    load_report_about(r, &text);
    load_text_html(out, text.data);
    load_text_clear(&text);
    load_text_puts(out, "</p>\n<p>");
    load_report_plan(r, &text);
    load_text_html(out, text.data);
    load_text_clear(&text);
    load_text_puts(out, "</p>\n");
    tiles(r, out);
    load_text_puts(out, "<h2>Memory</h2>\n<div class=\"plots\">\n");
    memory_plots(r, out);
    load_text_puts(out, "</div>\n<h2>Latency and throughput</h2>\n<div class=\"plots\">\n");
    latency_plot(r, out);
    throughput_plots(r, out);
    load_text_puts(out, "</div>\n<h2>Numbers</h2>\n<pre>");
    load_report_table(r, &text);
    load_text_html(out, text.data);
    load_text_free(&text);
    load_text_puts(out, "</pre>\n</main>\n</html>\n");
}
