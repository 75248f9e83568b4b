#include "clients/load/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void load_report_about(const load_result *r, load_text *out)
{
    load_text_printf(out,
                     "%s, model %s (%s, weights %s), KV cache %s, kernels %s, %" PRIu64 " threads",
                     r->o->url, r->m->name, r->m->type, r->m->weights, r->o->kv_dtype,
                     r->m->kernels, r->m->threads);
}

void load_report_plan(const load_result *r, load_text *out)
{
    const load_options *o = r->o;
    if (o->rate > 0)
        load_text_printf(out, "open loop, %g sessions/s (%s)", o->rate, o->arrivals);
    else
        load_text_printf(out, "closed loop, %" PRIu64 " sessions at work", o->concurrency);
    load_text_puts(out, ", prompt ");
    load_range_text(out, o->prompt);
    load_text_puts(out, ", operations ");
    load_range_text(out, o->ops);
    load_text_puts(out, " of");
    for (size_t k = 0; k < LOAD_KINDS; k++) {
        if (o->weights[k] > 0)
            load_text_printf(out, " %s=%" PRIu64, load_kind_names[k], o->weights[k]);
    }
    load_text_puts(out, ", steps ");
    load_range_text(out, o->steps);
    load_text_puts(out, ", think ");
    load_range_text(out, o->think_ms);
    load_text_printf(out, " ms, seed %" PRIu64, o->seed);
}

size_t load_report_latencies(const load_result *r, load_latency list[LOAD_LATENCIES])
{
    static const char *const what[LOAD_KINDS] = {"a prefill, whole", "a decode, whole", "a fork",
                                                 "a truncate", "a delete"};
    const load_latency first[2] = {
        {"ttft", "a decode's request to its first step", &r->stats->ttft},
        {"step", "from a step to the next", &r->stats->step}};
    size_t n = 0;
    for (size_t i = 0; i < 2; i++) {
        if (first[i].histogram->count > 0)
            list[n++] = first[i];
    }
    for (size_t k = 0; k < LOAD_KINDS; k++) {
        if (r->stats->whole[k].count > 0)
            list[n++] = (load_latency){load_kind_names[k], what[k], &r->stats->whole[k]};
    }
    return n;
}

load_memory load_report_memory(const load_result *r)
{
    const load_point *p = load_monitor_last(r->monitor);
    load_memory m = {.formula = (double)(p->held.kv_bytes + p->held.inputs_bytes),
                     .reported = load_point_reported_bytes(r->monitor, p),
                     .charged = load_point_charged_bytes(r->monitor, p),
                     .process = load_point_process_bytes(r->monitor, p)};
    uint64_t first = load_monitor_first(r->monitor)->process_bytes;
    m.has_process = load_monitor_process_source(r->monitor) != NULL && first > 0;
    if (m.has_process)
        m.peak_process = (double)load_monitor_peak_process_bytes(r->monitor) - (double)first;
    if (m.has_process && m.reported > 0)
        m.overhead_percent = 100 * (m.process / m.reported - 1);
    return m;
}

/* -------------------------------------------------------------------------------------- table */

static void memory_row(load_text *out, const char *name, int64_t sessions, int64_t positions,
                       double kv, double inputs, double total, const char *note)
{
    char size[LOAD_SIZE_TEXT];
    load_text_printf(out, "%-22s", name);
    if (sessions >= 0)
        load_text_printf(out, "%10" PRId64 "%12" PRId64 "%16.0f%16.0f", sessions, positions, kv,
                         inputs);
    else
        load_text_printf(out, "%54s", "");
    load_text_printf(out, "%16.0f %11s%s%s\n", total, load_size_text(total, size),
                     *note ? "  " : "", note);
}

static void memory(const load_result *r, load_text *out)
{
    const load_point *p = load_monitor_last(r->monitor);
    const load_totals *now = &p->totals, *then = &load_monitor_first(r->monitor)->totals;
    load_memory m = load_report_memory(r);
    char note[80] = "";
    load_text_printf(out, "%-22s%10s%12s%16s%16s%16s\n", "memory, bytes", "sessions", "positions",
                     "kv", "inputs", "total");
    memory_row(out, "formula", (int64_t)p->held.sessions, (int64_t)p->held.positions,
               (double)p->held.kv_bytes, (double)p->held.inputs_bytes, m.formula, "");
    if (r->stats->forked > 0)
        snprintf(note, sizeof note, "forks share pages");
    memory_row(out, "reported", (int64_t)(now->sessions - then->sessions),
               (int64_t)(now->positions - then->positions),
               (double)now->kv_bytes - (double)then->kv_bytes,
               (double)now->inputs_bytes - (double)then->inputs_bytes, m.reported, note);
    memory_row(out, "charged to the budget", -1, 0, 0, 0, m.charged, "with tables and records");
    if (m.has_process) {
        size_t n = 0;
        if (m.reported > 0)
            n = (size_t)snprintf(note, sizeof note, "%+.1f %% of reported; ", m.overhead_percent);
        snprintf(note + n, sizeof note - n, "%s less idle",
                 load_monitor_process_source(r->monitor));
        memory_row(out, "process", -1, 0, 0, 0, m.process, note);
    }
}

static void latencies(const load_result *r, load_text *out)
{
    load_latency list[LOAD_LATENCIES];
    size_t n = load_report_latencies(r, list);
    load_text_printf(out, "\n%-12s%12s%12s%12s%12s%12s\n", "latency, ms", "count", "p50", "p90",
                     "p99", "max");
    for (size_t i = 0; i < n; i++) {
        const load_histogram *h = list[i].histogram;
        load_text_printf(out, "%-12s%12" PRIu64 "%12.3f%12.3f%12.3f%12.3f  %s\n", list[i].name,
                         h->count, load_histogram_quantile_ms(h, 0.5),
                         load_histogram_quantile_ms(h, 0.9), load_histogram_quantile_ms(h, 0.99),
                         (double)h->max_ns * 1e-6, list[i].what);
    }
}

static void refusals(const load_result *r, load_text *out)
{
    const load_stats *s = r->stats;
    load_text_puts(out, "refused     ");
    for (size_t i = 0; i < s->n_codes; i++)
        load_text_printf(out, "%s%s %" PRIu64, i ? ", " : "", s->refusals[i].code,
                         s->refusals[i].n);
    load_text_puts(out, s->n_codes ? "\n" : "none\n");
    load_text_puts(out, "errors      ");
    bool any = false;
    for (size_t f = 1; f < LOAD_FAILURES; f++) {
        if (s->failures[f] > 0)
            load_text_printf(out, "%s%s %" PRIu64, any ? ", " : "", load_failure_names[f],
                             s->failures[f]);
        any |= s->failures[f] > 0;
    }
    load_text_puts(out, any ? "\n" : "none\n");
}

static void verdicts(const load_result *r, load_text *out)
{
    const load_audit *a = &r->audit;
    const load_check *c = &r->check;
    if (!a->done)
        load_text_puts(out, "audit       the list of sessions could not be read\n");
    else if (load_audit_failed(a))
        load_text_printf(out,
                         "audit       WRONG: of %" PRIu64 " listed sessions %" PRIu64
                         " have another length, %" PRIu64 " other bytes (%s); %" PRIu64
                         " are missing\n",
                         a->listed, a->lengths, a->bytes, a->first, a->missing);
    else
        load_text_printf(out,
                         "audit       %" PRIu64
                         " sessions listed, each with the length and the bytes it should have\n",
                         a->listed);
    if (r->stats->lost > 0)
        load_text_printf(out, "audit       WRONG: %" PRIu64 " sessions vanished unasked\n",
                         r->stats->lost);
    load_text_printf(out,
                     "checked     %" PRIu64 " of %" PRIu64
                     " sampled sessions recomputed alone: bit-identical",
                     c->recomputed, c->sampled);
    if (c->verified > 0)
        load_text_printf(out, "; %" PRIu64 " verified by the server", c->verified);
    if (c->unchecked > 0)
        load_text_printf(out, "; %" PRIu64 " could not be recomputed (%s)", c->unchecked, c->why);
    load_text_puts(out, "\n");
    for (size_t i = 0; i < c->n_mismatches && i < LOAD_MISMATCHES; i++)
        load_text_printf(out, "MISMATCH    session %s: %s\n", c->mismatches[i].session,
                         c->mismatches[i].what);
}

void load_report_table(const load_result *r, load_text *out)
{
    const load_stats *s = r->stats;
    double t = r->elapsed_s > 0 ? r->elapsed_s : 1;
    uint64_t requests = 0;
    for (size_t k = 0; k < LOAD_KINDS; k++)
        requests += s->requests[k];
    load_report_about(r, out);
    load_text_puts(out, "\n");
    load_report_plan(r, out);
    load_text_puts(out, "\n\n");
    memory(r, out);
    latencies(r, out);
    load_text_printf(out,
                     "\nthroughput  %.1f steps/s, %.1f prefilled positions/s, %.1f requests/s, in "
                     "%.1f s%s\n",
                     (double)s->steps / t, (double)s->prefilled / t, (double)requests / t,
                     r->elapsed_s, r->interrupted ? " (interrupted)" : "");
    load_text_printf(out,
                     "sessions    %" PRIu64 " begun, %" PRIu64 " created, %" PRIu64
                     " forked, %" PRIu64 " deleted, %" PRIu64 " expired\n",
                     s->begun, s->created, s->forked, s->deleted, s->expired);
    refusals(r, out);
    verdicts(r, out);
    const load_totals *then = &load_monitor_first(r->monitor)->totals;
    if (r->deleted)
        load_text_printf(out,
                         "after       deleting all: %+" PRId64 " sessions, %+" PRId64
                         " bytes available against the beginning\n",
                         (int64_t)(r->after.sessions - then->sessions),
                         (int64_t)(r->after.available_bytes - then->available_bytes));
}
