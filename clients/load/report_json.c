#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "clients/load/report.h"

/* Begins a field: a comma unless it is the first of its object. */
static void field(load_text *out, const char *name)
{
    char last = out->data[out->len - 1];
    if (last != '{' && last != '[')
        load_text_puts(out, ",");
    load_text_json(out, name);
    load_text_puts(out, ":");
}

static void integer(load_text *out, const char *name, uint64_t value)
{
    field(out, name);
    load_text_printf(out, "%" PRIu64, value);
}

static void real(load_text *out, const char *name, double value)
{
    field(out, name);
    load_text_printf(out, "%.6g", value);
}

/* A number of bytes, which may be negative. */
static void bytes(load_text *out, const char *name, double value)
{
    field(out, name);
    load_text_printf(out, "%.0f", value);
}

static void string(load_text *out, const char *name, const char *value)
{
    field(out, name);
    load_text_json(out, value);
}

static void boolean(load_text *out, const char *name, bool value)
{
    field(out, name);
    load_text_puts(out, value ? "true" : "false");
}

static void open(load_text *out, const char *name, const char *bracket)
{
    field(out, name);
    load_text_puts(out, bracket);
}

static void range(load_text *out, const char *name, load_range value)
{
    load_text text = {0};
    load_range_text(&text, value);
    string(out, name, text.data);
    load_text_free(&text);
}

static void options(const load_options *o, load_text *out)
{
    open(out, "options", "{");
    string(out, "loop", o->rate > 0 ? "open" : "closed");
    if (o->rate > 0) {
        real(out, "rate", o->rate);
        string(out, "arrivals", o->arrivals);
    } else {
        integer(out, "concurrency", o->concurrency);
    }
    range(out, "prompt", o->prompt);
    range(out, "steps", o->steps);
    range(out, "ops", o->ops);
    range(out, "think_ms", o->think_ms);
    open(out, "mix", "{");
    for (size_t k = 0; k < LOAD_KINDS; k++)
        integer(out, load_kind_names[k], o->weights[k]);
    load_text_puts(out, "}");
    real(out, "duration_s", o->duration_s);
    string(out, "keep_inputs", o->keep_inputs);
    integer(out, "ttl_s", o->ttl_s);
    real(out, "temperature", o->temperature);
    integer(out, "seed", o->seed);
    load_text_puts(out, "}");
}

static void model(const load_model *m, const load_options *o, load_text *out)
{
    open(out, "model", "{");
    string(out, "name", m->name);
    string(out, "model_type", m->type);
    string(out, "weights", m->weights);
    string(out, "kv_dtype", o->kv_dtype);
    string(out, "kernels", m->kernels);
    integer(out, "threads", m->threads);
    integer(out, "numerics", m->numerics);
    integer(out, "hidden_size", m->hidden_size);
    integer(out, "kv_bytes_per_position", m->kv_bytes);
    integer(out, "input_bytes_per_position", m->input_bytes);
    integer(out, "page_positions", m->page_positions);
    load_text_puts(out, "}");
}

static void counts(const load_result *r, load_text *out)
{
    const load_stats *s = r->stats;
    double t = r->elapsed_s > 0 ? r->elapsed_s : 1;
    open(out, "sessions", "{");
    integer(out, "begun", s->begun);
    integer(out, "created", s->created);
    integer(out, "forked", s->forked);
    integer(out, "deleted", s->deleted);
    integer(out, "expired", s->expired);
    integer(out, "lost", s->lost);
    load_text_puts(out, "}");
    open(out, "requests", "{");
    for (size_t k = 0; k < LOAD_KINDS; k++)
        integer(out, load_kind_names[k], s->requests[k]);
    load_text_puts(out, "}");
    open(out, "throughput", "{");
    integer(out, "steps", s->steps);
    integer(out, "prefilled", s->prefilled);
    real(out, "steps_per_s", (double)s->steps / t);
    real(out, "prefilled_per_s", (double)s->prefilled / t);
    load_text_puts(out, "}");
    open(out, "refused", "{");
    for (size_t i = 0; i < s->n_codes; i++)
        integer(out, s->refusals[i].code, s->refusals[i].n);
    load_text_puts(out, "}");
    open(out, "errors", "{");
    for (size_t f = 1; f < LOAD_FAILURES; f++)
        integer(out, load_failure_names[f], s->failures[f]);
    load_text_puts(out, "}");
}

static void memory(const load_result *r, load_text *out)
{
    const load_point *p = load_monitor_last(r->monitor);
    load_memory m = load_report_memory(r);
    open(out, "memory", "{");
    integer(out, "sessions", p->held.sessions);
    integer(out, "positions", p->held.positions);
    integer(out, "formula_kv_bytes", p->held.kv_bytes);
    integer(out, "formula_inputs_bytes", p->held.inputs_bytes);
    bytes(out, "formula_bytes", m.formula);
    bytes(out, "reported_bytes", m.reported);
    bytes(out, "charged_bytes", m.charged);
    integer(out, "budget_bytes", p->totals.budget_bytes);
    if (m.has_process) {
        bytes(out, "process_bytes", m.process);
        bytes(out, "peak_process_bytes", m.peak_process);
        integer(out, "idle_process_bytes", load_monitor_first(r->monitor)->process_bytes);
        real(out, "overhead_percent", m.overhead_percent);
        string(out, "process_source", load_monitor_process_source(r->monitor));
    }
    if (r->deleted) {
        const load_totals *then = &load_monitor_first(r->monitor)->totals;
        bytes(out, "sessions_left", (double)r->after.sessions - (double)then->sessions);
        bytes(out, "bytes_left", (double)then->available_bytes - (double)r->after.available_bytes);
    }
    load_text_puts(out, "}");
}

static void latencies(const load_result *r, load_text *out)
{
    static const double quantiles[] = {0.5, 0.9, 0.99, 0.999};
    static const char *const names[] = {"p50", "p90", "p99", "p999"};
    load_latency list[LOAD_LATENCIES];
    size_t n = load_report_latencies(r, list);
    open(out, "latency_ms", "{");
    for (size_t i = 0; i < n; i++) {
        const load_histogram *h = list[i].histogram;
        open(out, list[i].name, "{");
        integer(out, "count", h->count);
        real(out, "mean", load_histogram_mean_ms(h));
        for (size_t q = 0; q < 4; q++)
            real(out, names[q], load_histogram_quantile_ms(h, quantiles[q]));
        real(out, "max", (double)h->max_ns * 1e-6);
        load_text_puts(out, "}");
    }
    load_text_puts(out, "}");
}

static void verdicts(const load_result *r, load_text *out)
{
    const load_audit *a = &r->audit;
    const load_check *c = &r->check;
    open(out, "audit", "{");
    boolean(out, "ok", a->done && !load_audit_failed(a) && r->stats->lost == 0);
    integer(out, "listed", a->listed);
    integer(out, "other_lengths", a->lengths);
    integer(out, "other_bytes", a->bytes);
    integer(out, "missing", a->missing);
    integer(out, "shared_bytes", a->shared_bytes);
    load_text_puts(out, "}");
    open(out, "checks", "{");
    integer(out, "sampled", c->sampled);
    integer(out, "recomputed", c->recomputed);
    integer(out, "verified", c->verified);
    integer(out, "unchecked", c->unchecked);
    open(out, "mismatches", "[");
    for (size_t i = 0; i < c->n_mismatches && i < LOAD_MISMATCHES; i++) {
        load_text_puts(out, i ? ",{" : "{");
        string(out, "session", c->mismatches[i].session);
        string(out, "what", c->mismatches[i].what);
        load_text_puts(out, "}");
    }
    load_text_puts(out, "]}");
}

static void series(const load_result *r, load_text *out)
{
    size_t n;
    const load_point *points = load_monitor_points(r->monitor, &n);
    open(out, "series", "[");
    for (size_t i = 0; i < n; i++) {
        const load_point *p = &points[i];
        double span = p->span_s > 0 ? p->span_s : 1;
        load_text_puts(out, i ? ",\n{" : "\n{");
        real(out, "t_s", p->t_s);
        integer(out, "sessions", p->held.sessions);
        integer(out, "at_work", p->held.at_work);
        integer(out, "positions", p->held.positions);
        integer(out, "formula_bytes", p->held.kv_bytes + p->held.inputs_bytes);
        bytes(out, "reported_bytes", load_point_reported_bytes(r->monitor, p));
        bytes(out, "charged_bytes", load_point_charged_bytes(r->monitor, p));
        bytes(out, "process_bytes", load_point_process_bytes(r->monitor, p));
        real(out, "steps_per_s", (double)p->steps / span);
        real(out, "prefilled_per_s", (double)p->prefilled / span);
        real(out, "requests_per_s", (double)p->requests / span);
        integer(out, "refused", p->refused);
        integer(out, "errors", p->errors);
        real(out, "step_p50_ms", p->step_p50_ms);
        real(out, "step_p99_ms", p->step_p99_ms);
        load_text_puts(out, "}");
    }
    load_text_puts(out, "]");
}

void load_report_json(const load_result *r, load_text *out)
{
    load_text_puts(out, "{");
    string(out, "tool", "attn-load");
    string(out, "url", r->o->url);
    real(out, "elapsed_s", r->elapsed_s);
    boolean(out, "interrupted", r->interrupted);
    options(r->o, out);
    model(r->m, r->o, out);
    counts(r, out);
    memory(r, out);
    latencies(r, out);
    verdicts(r, out);
    series(r, out);
    load_text_puts(out, "}\n");
}
