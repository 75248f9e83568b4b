#include "server/watch_say.h"

#include <inttypes.h>
#include <string.h>

#include "server/json/json_write.h"
#include "server/wire.h"

#define SECOND_NS 1000000000ull

void srv_watch_say_record(srv_watch_message *m, uint64_t seq, const srv_watch_record *r)
{
    srv_watch_begin(m, attn_event_kind_name(r->kind), seq);
    srv_watch_text(m, "session", r->session, strlen(r->session));
    srv_watch_text(m, "model", r->model, strlen(r->model));
    srv_watch_number(m, "length", r->length);
    srv_watch_number(m, "kv_bytes", r->kv_bytes);
    if (r->kind == ATTN_EVENT_PREFILL) {
        srv_watch_number(m, "processed", r->n_done);
        srv_watch_number(m, "total", r->n_positions);
    } else if (r->kind == ATTN_EVENT_FORKED) {
        srv_watch_text(m, "from", r->from, strlen(r->from));
    } else if (r->kind == ATTN_EVENT_STEP) {
        srv_watch_number(m, "step", r->step);
        srv_watch_number(m, "position", r->position);
        if (r->has_token)
            srv_watch_number(m, "token", r->token);
        if (r->has_text)
            srv_watch_text(m, "text", r->text, r->text_len);
        if (r->n_merged > 1)
            srv_watch_number(m, "merged", r->n_merged);
        if (r->is_missed)
            srv_watch_number(m, "dropped", 1);
        m->trace = r->trace;
    }
}

/* --------------------------------------------------------------------------------- hello */

static void put_sessions(srv_buf *b, const attn_session_info *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        /* An id needs no escapes. */
        srv_buf_printf(b, "%s{\"session\":\"%s\",\"model\":", i ? "," : "[", s[i].id);
        srv_json_string(b, s[i].model, strlen(s[i].model));
        srv_buf_printf(b, ",\"length\":%" PRIu64 ",\"kv_bytes\":%" PRIu64 ",\"state\":\"%s\"}",
                       s[i].length, s[i].kv.bytes, attn_session_state_name(s[i].state));
    }
    srv_buf_puts(b, n ? "]" : "[]");
}

static void put_models(srv_buf *b, const attn_engine *engine)
{
    for (size_t i = 0; i < attn_model_count(engine); i++) {
        attn_model_info info;
        attn_model_get(engine, i, &info);
        srv_buf_puts(b, i ? "," : "[");
        srv_json_string(b, info.name, strlen(info.name));
    }
    srv_buf_puts(b, "]");
}

/* A field of what lies in b between the two. */
static void add_json(srv_watch_message *m, const char *name, const srv_buf *b, size_t from,
                     size_t to)
{
    if (b->failed)
        srv_watch_json(m, name, "null", 4);
    else
        srv_watch_json(m, name, b->data + from, to - from);
}

void srv_watch_say_hello(srv_watch_message *m, uint64_t seq, attn_engine *engine,
                         const attn_session_info *sessions, size_t n, bool more, srv_buf *b)
{
    srv_buf_clear(b);
    put_sessions(b, sessions, n);
    const size_t sessions_end = b->len;
    size_t totals_end = 0;
    if (seq == 0) {
        attn_totals totals;
        attn_engine_totals(engine, &totals);
        srv_wire_totals(b, &totals);
        totals_end = b->len;
        put_models(b, engine);
    }
    srv_watch_begin(m, "hello", seq);
    add_json(m, "sessions", b, 0, sessions_end);
    if (seq == 0) {
        add_json(m, "totals", b, sessions_end, totals_end);
        add_json(m, "models", b, totals_end, b->len);
    }
    srv_watch_json(m, "more", more ? "true" : "false", more ? 4 : 5);
}

/* --------------------------------------------------------------------------------- stats */

static bool same_numbers(const srv_watch_numbers *n, const attn_totals *t, const attn_stats *s)
{
    return n->stats.decode_steps == s->decode_steps &&
           n->stats.prefill_tokens == s->prefill_tokens && n->stats.queue_depth == s->queue_depth &&
           n->stats.prefill_in_flight == s->prefill_in_flight &&
           n->stats.decode_in_flight == s->decode_in_flight &&
           n->stats.verify_in_flight == s->verify_in_flight &&
           n->stats.tensor_in_flight == s->tensor_in_flight && n->totals.sessions == t->sessions &&
           n->totals.positions == t->positions && n->totals.allocated_bytes == t->allocated_bytes &&
           n->totals.reserved_bytes == t->reserved_bytes;
}

void srv_watch_numbers_take(srv_watch_numbers *n, attn_engine *engine, uint64_t now)
{
    attn_totals totals;
    attn_stats stats;
    attn_engine_totals(engine, &totals);
    attn_engine_stats(engine, &stats);
    n->version += !same_numbers(n, &totals, &stats);
    n->totals = totals;
    n->stats = stats;
    /* After a while without watchers there is no rate yet. */
    const size_t at = n->n_ticks++ % SRV_WATCH_TICKS;
    const uint64_t then = n->last_ns[at];
    n->steps_per_s = 0;
    if (then && now > then && now - then < 3 * SECOND_NS)
        n->steps_per_s = (stats.decode_steps - n->last_steps[at]) * SECOND_NS / (now - then);
    n->last_ns[at] = now;
    n->last_steps[at] = stats.decode_steps;
}

void srv_watch_say_stats(srv_watch_message *m, uint64_t seq, const srv_watch_numbers *n,
                         size_t n_watchers, srv_buf *b)
{
    srv_buf_clear(b);
    srv_wire_totals(b, &n->totals);
    const size_t totals_end = b->len;
    srv_buf_printf(b,
                   "{\"prefill\":%" PRIu64 ",\"decode\":%" PRIu64 ",\"verify\":%" PRIu64
                   ",\"tensor\":%" PRIu64 "}",
                   n->stats.prefill_in_flight, n->stats.decode_in_flight, n->stats.verify_in_flight,
                   n->stats.tensor_in_flight);
    srv_watch_begin(m, "stats", seq);
    add_json(m, "totals", b, 0, totals_end);
    add_json(m, "in_flight", b, totals_end, b->len);
    srv_watch_number(m, "queue_depth", n->stats.queue_depth);
    srv_watch_number(m, "decode_steps", n->stats.decode_steps);
    srv_watch_number(m, "prefill_tokens", n->stats.prefill_tokens);
    srv_watch_number(m, "steps_per_s", n->steps_per_s);
    srv_watch_number(m, "watchers", n_watchers);
}
