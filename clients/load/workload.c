#include "clients/load/workload.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/load/body.h"
#include "clients/load/http_reply.h"
#include "clients/load/random.h"
#include "clients/load/sessions.h"

#define MS_NS 1000000u
/* After a refusal that does not say when to come back. */
#define REST_NS (100 * (uint64_t)MS_NS)
enum { DELETES_AT_ONCE = 32 };

struct load_workload {
    const load_options *o;
    const load_model *m;
    load_http *http;
    load_stats stats;
    load_samples samples;
    load_sessions sessions;
    load_random arrivals;
    uint64_t begin_ns, end_ns, next_arrival_ns;
    uint64_t n_weights;             /* sum */
    uint64_t n_at_work, n_deleting; /* sessions in their operations; deletions of others */
    bool stopping, cleaning;
};

/* A request of a session. */
typedef struct operation {
    load_call call;
    load_workload *w;
    uint32_t slot, fork; /* fork: the new session's slot */
    load_kind kind;
    uint64_t n, key; /* positions, steps, or the new length */
    uint64_t hash, steps, last_ns;
    bool done; /* a decode's done object came */
    char reason[40];
} operation;

static void end_operation(load_call *call);
static void decode_line(load_call *call, char *line, size_t len);

/* -------------------------------------------------------------------------------- beginnings */

static load_session *at(load_workload *w, uint32_t slot)
{
    return &w->sessions.slots[slot];
}

static void submit(load_workload *w, uint32_t slot, operation *op, uint64_t due_ns)
{
    static const char *const paths[] = {
        [LOAD_FORK] = "/fork", [LOAD_TRUNCATE] = "/truncate", [LOAD_DELETE] = ""};
    char path[128], id[LOAD_SESSION_ID];
    const char *method = op->kind == LOAD_DELETE ? "DELETE" : "POST";
    load_session *s = at(w, slot);
    s->state = LOAD_SESSION_BUSY;
    op->w = w;
    op->slot = slot;
    op->hash = LOAD_HASH_START;
    op->call.owner = op;
    op->call.end = end_operation;
    op->call.due_ns = op->last_ns = due_ns;
    load_session_id(w->o, slot, s->number, id);
    if (op->kind == LOAD_PREFILL)
        snprintf(path, sizeof path, "/prefill");
    else if (op->kind == LOAD_DECODE)
        snprintf(path, sizeof path, "/decode");
    else
        snprintf(path, sizeof path, "/sessions/%s%s", id, paths[op->kind]);
    w->stats.requests[op->kind] += !w->cleaning;
    load_http_submit(w->http, &op->call, method, path);
}

static void begin_operation(load_workload *w, uint32_t slot, load_kind kind, uint64_t n,
                            uint64_t due_ns)
{
    load_session *s = at(w, slot);
    operation *op = load_alloc(1, sizeof *op);
    char id[LOAD_SESSION_ID];
    load_session_id(w->o, slot, s->number, id);
    op->kind = kind;
    op->n = n;
    op->key = load_mix(s->key, ++s->n_operations);
    load_text *body = &op->call.body;
    switch (kind) {
    case LOAD_PREFILL:
        load_body_prefill(body, w->m, w->o, id, s->length, op->key, n);
        break;
    case LOAD_DECODE:
        load_body_decode(body, w->m, w->o, id, s->length, op->key, n);
        op->call.line = decode_line;
        break;
    case LOAD_FORK: {
        op->fork = load_sessions_take(&w->sessions);
        s = at(w, slot); /* slots may have moved */
        load_session *fork = at(w, op->fork);
        fork->number = load_sessions_next_number(&w->sessions);
        fork->key = load_mix(op->key, 0);
        fork->script = s->script;
        load_session_id(w->o, op->fork, fork->number, id);
        load_text_printf(body, "{\"as\":\"%s\",\"at\":%" PRIu64 ",\"if_length\":%" PRIu64 "}", id,
                         n, s->length);
        break;
    }
    case LOAD_TRUNCATE:
        load_text_printf(body, "{\"length\":%" PRIu64 ",\"if_length\":%" PRIu64 "}", n, s->length);
        break;
    case LOAD_DELETE:
    case LOAD_KINDS:
        break;
    }
    submit(w, slot, op, due_ns);
}

/* Begins a session, now or when its time comes. */
static void begin_session(load_workload *w, uint64_t due_ns)
{
    uint32_t slot = load_sessions_take(&w->sessions);
    load_session *s = at(w, slot);
    s->number = load_sessions_next_number(&w->sessions);
    s->key = load_mix(w->o->seed, w->stats.begun++);
    s->script = (load_random){load_mix(s->key, UINT64_MAX)};
    s->operations_left = load_random_in(&s->script, w->o->ops);
    w->n_at_work++;
    load_sessions_wait(&w->sessions, slot, due_ns);
}

/* Whether there are sessions left to begin. */
static bool more(const load_workload *w)
{
    return !w->stopping && w->stats.begun < w->o->sessions;
}

static load_kind draw_kind(load_workload *w, load_random *script)
{
    uint64_t ticket = load_random_next(script) % w->n_weights;
    unsigned kind = 0;
    while (ticket >= w->o->weights[kind])
        ticket -= w->o->weights[kind++];
    return (load_kind)kind;
}

static void finish(load_workload *w, uint32_t slot, uint64_t rest_ns);

/* A session's time has come: its first prefill, or its next operation. */
static void wake(load_workload *w, uint32_t slot, uint64_t due_ns)
{
    load_session *s = at(w, slot);
    uint64_t room = w->m->max_positions ? w->m->max_positions - s->length : UINT64_MAX, n = 0;
    load_kind kind = LOAD_PREFILL;
    if (s->created) {
        if (s->operations_left != UINT64_MAX)
            s->operations_left--;
        kind = draw_kind(w, &s->script);
    }
    switch (kind) {
    case LOAD_PREFILL:
    case LOAD_DECODE:
        n = load_random_in(&s->script, kind == LOAD_PREFILL ? w->o->prompt : w->o->steps);
        n = n < room ? n : room;
        if (n == 0) { /* it is as long as sessions get */
            finish(w, slot, 0);
            return;
        }
        break;
    case LOAD_FORK:
    case LOAD_TRUNCATE:
        n = load_random_in(&s->script, (load_range){1, s->length});
        break;
    case LOAD_DELETE:
    case LOAD_KINDS:
        break;
    }
    begin_operation(w, slot, kind, n, due_ns);
}

/* ---------------------------------------------------------------------------------------- ends */

/* Deletes resting sessions, oldest first, while there are too many. */
static void enforce_live(load_workload *w)
{
    uint32_t slot;
    while (!w->stopping && w->sessions.n_created - w->n_deleting > w->o->live &&
           (slot = load_sessions_pop_resting(&w->sessions)) != LOAD_NO_SLOT) {
        w->n_deleting++;
        begin_operation(w, slot, LOAD_DELETE, 0, load_now_ns());
    }
}

/* A session has done its operations; it rests in the server, if it is there, and the next one of a
 * closed loop begins. */
static void finish(load_workload *w, uint32_t slot, uint64_t rest_ns)
{
    load_session *s = at(w, slot);
    load_samples_offer(&w->samples, s->history);
    s->history = NULL;
    w->n_at_work--;
    if (s->created)
        load_sessions_rest(&w->sessions, slot, load_now_ns());
    else
        load_sessions_release(&w->sessions, slot, w->m);
    if (w->o->rate <= 0 && more(w))
        begin_session(w, load_now_ns() + rest_ns);
    enforce_live(w);
}

/* A session goes on after an operation. */
static void go_on(load_workload *w, uint32_t slot, uint64_t rest_ns)
{
    load_session *s = at(w, slot);
    uint64_t think_ns = load_random_in(&s->script, w->o->think_ms) * MS_NS;
    if (w->stopping || s->operations_left == 0)
        finish(w, slot, rest_ns);
    else
        load_sessions_wait(&w->sessions, slot,
                           load_now_ns() + (think_ns > rest_ns ? think_ns : rest_ns));
}

/* The server does not have it any more. */
static void vanish(load_workload *w, uint32_t slot)
{
    load_sessions_set_length(&w->sessions, w->m, slot, 0);
    load_sessions_set_created(&w->sessions, slot, false);
}

static void record(load_session *s, operation *op, uint64_t n)
{
    load_op kept = {.kind = op->kind, .n = n, .key = op->key, .hash = op->hash};
    if (s->history != NULL)
        load_history_add(s->history, kept);
}

/* The outcome is not known: the session is left alone and never counted on. */
static void give_up(load_workload *w, uint32_t slot)
{
    load_session *s = at(w, slot);
    load_history_free(s->history);
    s->history = NULL;
    load_sessions_set_length(&w->sessions, w->m, slot, 0);
    load_sessions_set_created(&w->sessions, slot, true);
    load_sessions_set_unsure(&w->sessions, slot, true);
}

/* A reply that does not fit the request. */
static bool misfit(operation *op)
{
    op->call.failure = LOAD_FAIL_PROTOCOL;
    return false;
}

/* ------------------------------------------------------------------------------------- replies */

/* One line of a decode's stream: a step, or the done object. */
static void decode_line(load_call *call, char *line, size_t len)
{
    operation *op = call->owner;
    load_workload *w = op->w;
    (void)len;
    if (load_json_find(line, "step") != NULL) {
        uint64_t now = call->arrived_ns, ns = now > op->last_ns ? now - op->last_ns : 0;
        op->last_ns = now;
        if (op->steps++ == 0) {
            load_histogram_add(&w->stats.ttft, ns);
        } else {
            load_histogram_add(&w->stats.step, ns);
            load_histogram_add(&w->stats.step_second, ns);
        }
        w->stats.steps++;
        if (at(w, op->slot)->history != NULL && !load_hash_step(w->m, line, &op->hash))
            misfit(op);
    } else if (load_json_string(line, "reason", op->reason, sizeof op->reason)) {
        op->done = true;
        if (strcmp(op->reason, "error") == 0)
            load_json_string(line, "code", op->reason, sizeof op->reason);
    }
}

/* Takes in a decode that was answered. False: the answer makes no sense. */
static bool decoded(load_workload *w, operation *op)
{
    load_session *s = at(w, op->slot);
    bool whole = strcmp(op->reason, "length") == 0;
    if (!op->done || (whole && op->steps != op->n))
        return misfit(op);
    if (!whole)
        load_stats_refuse(&w->stats, op->reason);
    load_sessions_set_length(&w->sessions, w->m, op->slot, s->length + op->steps);
    record(s, op, op->steps);
    return true;
}

static bool prefilled(load_workload *w, operation *op)
{
    load_session *s = at(w, op->slot);
    uint64_t length;
    if (!load_json_number(op->call.reply.data, "length", &length) || length != s->length + op->n)
        return misfit(op);
    if (!s->created) {
        char id[LOAD_SESSION_ID];
        uint64_t priority = load_mix(s->key, UINT64_MAX - 1);
        load_session_id(w->o, op->slot, s->number, id);
        load_sessions_set_created(&w->sessions, op->slot, true);
        if (load_samples_want(&w->samples, priority))
            s->history = load_history_new(priority, id);
        w->stats.created++;
    }
    w->stats.prefilled += op->n;
    load_sessions_set_length(&w->sessions, w->m, op->slot, length);
    if (s->history != NULL)
        op->hash = load_hash_prefill(w->m, op->call.reply.data);
    record(s, op, op->n);
    return true;
}

/* The fork takes over what the session would have done; returns its slot. */
static uint32_t forked(load_workload *w, operation *op)
{
    load_session *s = at(w, op->slot), *fork = at(w, op->fork);
    char id[LOAD_SESSION_ID];
    uint64_t priority = load_mix(fork->key, UINT64_MAX - 1);
    load_session_id(w->o, op->fork, fork->number, id);
    fork->operations_left = s->operations_left;
    fork->state = LOAD_SESSION_BUSY;
    load_sessions_set_created(&w->sessions, op->fork, true);
    load_sessions_set_length(&w->sessions, w->m, op->fork, op->n);
    if (s->history != NULL)
        fork->history = load_history_fork(s->history, priority, id);
    record(fork, op, op->n);
    w->stats.forked++;
    load_samples_offer(&w->samples, s->history);
    s->history = NULL;
    load_sessions_rest(&w->sessions, op->slot, load_now_ns());
    return op->fork;
}

/* Takes in an answer with a 2xx status. Returns the slot of the session that goes on. */
static uint32_t succeeded(load_workload *w, operation *op)
{
    uint64_t length;
    switch (op->kind) {
    case LOAD_PREFILL:
        prefilled(w, op);
        break;
    case LOAD_DECODE:
        decoded(w, op);
        break;
    case LOAD_FORK:
    case LOAD_TRUNCATE:
        if (!load_json_number(op->call.reply.data, "length", &length) || length != op->n) {
            misfit(op);
        } else if (op->kind == LOAD_FORK) {
            return forked(w, op);
        } else {
            load_sessions_set_length(&w->sessions, w->m, op->slot, op->n);
            record(at(w, op->slot), op, op->n);
        }
        break;
    case LOAD_DELETE:
        w->stats.deleted += !w->cleaning;
        vanish(w, op->slot);
        break;
    case LOAD_KINDS:
        break;
    }
    return op->slot;
}

/* Takes in a refusal; returns how long to rest. */
static uint64_t refused(load_workload *w, operation *op)
{
    load_session *s = at(w, op->slot);
    char code[40] = "unknown";
    if (op->call.reply.len > 0)
        load_json_string(op->call.reply.data, "code", code, sizeof code);
    if (!(w->cleaning && strcmp(code, "session_not_found") == 0))
        load_stats_refuse(&w->stats, code);
    if (strcmp(code, "session_not_found") == 0) {
        if (w->o->ttl_s > 0)
            w->stats.expired++;
        else if (!s->unsure && !op->call.retried)
            w->stats.lost++;
        vanish(w, op->slot);
    } else if (strcmp(code, "length_mismatch") == 0) {
        give_up(w, op->slot);
    }
    double rest_s = op->call.retry_after_s;
    return rest_s > 0 ? (uint64_t)(rest_s * 1e9) : REST_NS;
}

/* There is no fork; or there may be one, which is to be deleted in the end. */
static void unforked(load_workload *w, operation *op)
{
    if (op->call.failure == LOAD_FAIL_NONE) {
        load_sessions_release(&w->sessions, op->fork, w->m);
    } else {
        give_up(w, op->fork);
        load_sessions_rest(&w->sessions, op->fork, load_now_ns());
    }
}

static void end_operation(load_call *call)
{
    operation *op = call->owner;
    load_workload *w = op->w;
    uint64_t now = load_now_ns(), rest_ns = 0;
    uint32_t slot = op->slot;
    bool in_script = true;
    w->end_ns = now;
    if (at(w, slot)->retired) { /* a deletion that is no operation of the session */
        in_script = false;
        w->n_deleting--;
    }
    if (call->failure == LOAD_FAIL_NONE && call->status >= 200 && call->status < 300) {
        if (!w->cleaning)
            load_histogram_add(&w->stats.whole[op->kind],
                               now > call->due_ns ? now - call->due_ns : 0);
        slot = succeeded(w, op);
    } else if (call->failure == LOAD_FAIL_NONE) {
        rest_ns = refused(w, op);
    }
    if (op->kind == LOAD_FORK && slot == op->slot)
        unforked(w, op);
    if (call->failure != LOAD_FAIL_NONE) {
        w->stats.failures[call->failure]++;
        give_up(w, slot);
        rest_ns = REST_NS;
    }
    load_session *s = at(w, slot);
    if (in_script && s->created && !s->unsure)
        go_on(w, slot, rest_ns);
    else if (in_script)
        finish(w, slot, rest_ns);
    else
        load_sessions_release(&w->sessions, slot, w->m);
    load_call_free(call);
    free(op);
    enforce_live(w);
}

/* -------------------------------------------------------------------------------------- public */

load_workload *load_workload_new(const load_options *o, const load_model *m, load_http *http)
{
    load_workload *w = load_alloc(1, sizeof *w);
    w->o = o;
    w->m = m;
    w->http = http;
    w->arrivals = (load_random){load_mix(o->seed, UINT64_MAX - 2)};
    load_samples_init(&w->samples, (size_t)o->check);
    load_sessions_init(&w->sessions);
    for (size_t k = 0; k < LOAD_KINDS; k++)
        w->n_weights += o->weights[k];
    return w;
}

void load_workload_free(load_workload *w)
{
    load_sessions_free(&w->sessions);
    load_samples_free(&w->samples);
    free(w);
}

static uint64_t next_gap_ns(load_workload *w)
{
    double gap = 1 / w->o->rate;
    if (strcmp(w->o->arrivals, "poisson") == 0)
        gap *= -log(1 - load_random_unit(&w->arrivals));
    return (uint64_t)(gap * 1e9);
}

uint64_t load_workload_advance(load_workload *w, uint64_t now_ns)
{
    uint64_t due_ns;
    uint32_t slot;
    if (w->begin_ns == 0) {
        w->begin_ns = w->end_ns = w->next_arrival_ns = now_ns;
        for (uint64_t i = 0; w->o->rate <= 0 && i < w->o->concurrency && more(w); i++)
            begin_session(w, now_ns);
    }
    uint64_t over_ns =
        w->o->duration_s > 0 ? w->begin_ns + (uint64_t)(w->o->duration_s * 1e9) : UINT64_MAX;
    if (now_ns >= over_ns)
        load_workload_stop(w);
    if (w->o->ttl_s > 0) {
        /* The server looks for expired ones now and then; a second later they should be gone. */
        uint64_t idle_ns = (w->o->ttl_s + 1) * UINT64_C(1000000000);
        while ((slot = load_sessions_pop_older(&w->sessions, now_ns, idle_ns)) != LOAD_NO_SLOT) {
            w->stats.expired++;
            load_sessions_release(&w->sessions, slot, w->m);
        }
    }
    while (w->o->rate > 0 && more(w) && w->next_arrival_ns <= now_ns) {
        begin_session(w, w->next_arrival_ns);
        w->next_arrival_ns += next_gap_ns(w);
    }
    while ((slot = load_sessions_due(&w->sessions, now_ns, &due_ns)) != LOAD_NO_SLOT)
        wake(w, slot, due_ns);
    if (w->o->rate > 0 && more(w) && w->next_arrival_ns < due_ns)
        due_ns = w->next_arrival_ns;
    return w->stopping || due_ns < over_ns ? due_ns : over_ns;
}

void load_workload_stop(load_workload *w)
{
    uint64_t due_ns;
    uint32_t slot;
    w->stopping = true;
    while ((slot = load_sessions_due(&w->sessions, UINT64_MAX, &due_ns)) != LOAD_NO_SLOT) {
        w->stats.begun -= !at(w, slot)->created; /* it has not, after all */
        finish(w, slot, 0);
    }
}

bool load_workload_ended(const load_workload *w)
{
    return w->begin_ns != 0 && w->n_at_work == 0 && w->n_deleting == 0 && !more(w);
}

void load_workload_delete_all(load_workload *w)
{
    uint32_t slot;
    w->stopping = w->cleaning = true;
    for (;;) {
        while (w->n_deleting < DELETES_AT_ONCE &&
               (slot = load_sessions_pop_resting(&w->sessions)) != LOAD_NO_SLOT) {
            w->n_deleting++;
            begin_operation(w, slot, LOAD_DELETE, 0, load_now_ns());
        }
        if (w->n_deleting == 0)
            return;
        load_http_turn(w->http, UINT64_MAX);
    }
}

load_held load_workload_held(const load_workload *w)
{
    return (load_held){.sessions = w->sessions.n_created,
                       .unsure = w->sessions.n_unsure,
                       .at_work = w->n_at_work,
                       .positions = w->sessions.n_positions,
                       .kv_bytes = w->sessions.n_pages * load_model_page_kv(w->m),
                       .inputs_bytes = w->sessions.n_pages * load_model_page_inputs(w->m)};
}

load_stats *load_workload_stats(load_workload *w)
{
    return &w->stats;
}

load_samples *load_workload_samples(load_workload *w)
{
    return &w->samples;
}

uint64_t load_workload_begin_ns(const load_workload *w)
{
    return w->begin_ns;
}

uint64_t load_workload_end_ns(const load_workload *w)
{
    return w->end_ns;
}

load_expectation load_workload_expect(const load_workload *w, const char *session, uint64_t *length)
{
    const load_session *s = load_sessions_find(&w->sessions, w->o, session);
    if (s == NULL || !s->created)
        return LOAD_NOT_OURS;
    *length = s->length;
    return s->unsure ? LOAD_UNSURE : LOAD_KNOWN;
}
