#include "server/watch_ring.h"

#include <stdlib.h>
#include <string.h>

#define RECORDS 4096
#define WAITING 1024
#define WAITING_INDEX 2048
/* Tensors that the ring holds, and that one reader may leave in it. */
#define TRACE_BYTES ((uint64_t)64 << 20)
#define LAG_BYTES ((uint64_t)8 << 20)
/* A reader's step through the ring looks at this many records at most. */
#define STRIDE 256

bool srv_watch_ring_init(srv_watch_ring *ring, attn_engine *engine)
{
    memset(ring, 0, sizeof(*ring));
    ring->engine = engine;
    ring->records = calloc(RECORDS, sizeof(*ring->records));
    ring->waiting = calloc(WAITING, sizeof(*ring->waiting));
    ring->waiting_index = calloc(WAITING_INDEX, sizeof(*ring->waiting_index));
    return ring->records && ring->waiting && ring->waiting_index;
}

static srv_watch_record *record_at(srv_watch_ring *ring, uint64_t number)
{
    return &ring->records[number % RECORDS];
}

static uint64_t oldest(const srv_watch_ring *ring)
{
    return ring->head > RECORDS ? ring->head - RECORDS : 0;
}

static void drop_trace(srv_watch_ring *ring, srv_watch_record *r)
{
    if (!r->trace)
        return;
    ring->trace_bytes -= r->trace_bytes;
    attn_trace_release(r->trace);
    r->trace = NULL;
}

static void forget_until(srv_watch_ring *ring, uint64_t number)
{
    if (ring->traces_from < oldest(ring))
        ring->traces_from = oldest(ring);
    for (; ring->traces_from < number; ring->traces_from++)
        drop_trace(ring, record_at(ring, ring->traces_from));
}

static void empty_waiting(srv_watch_ring *ring)
{
    if (ring->n_waiting)
        memset(ring->waiting_index, 0, WAITING_INDEX * sizeof(*ring->waiting_index));
    ring->n_waiting = 0;
}

void srv_watch_ring_clear(srv_watch_ring *ring)
{
    forget_until(ring, ring->head);
    empty_waiting(ring);
}

void srv_watch_ring_free(srv_watch_ring *ring)
{
    if (ring->records)
        srv_watch_ring_clear(ring);
    free(ring->records);
    free(ring->waiting);
    free(ring->waiting_index);
}

/* ------------------------------------------------------------------------------- readers */

static srv_watch_chosen *find_chosen(srv_watch_ring *ring, const char *session)
{
    for (size_t i = 0; i < ring->n_chosen; i++) {
        if (ring->chosen[i].session && !strcmp(ring->chosen[i].session, session))
            return &ring->chosen[i];
    }
    return NULL;
}

static srv_watch_chosen *choose(srv_watch_ring *ring, const char *session, size_t model)
{
    srv_watch_chosen *c = find_chosen(ring, session);
    if (c)
        return c;
    size_t i = 0;
    while (i < ring->n_chosen && ring->chosen[i].session)
        i++;
    if (i == ring->n_chosen)
        ring->n_chosen++;
    attn_model_info info;
    attn_model_get(ring->engine, model, &info);
    ring->chosen[i] = (srv_watch_chosen){.session = session, .model = info.name};
    return &ring->chosen[i];
}

/* How many records were for the reader, ever. */
static uint64_t count_records(const srv_watch_ring *ring, const srv_watch_reader *reader)
{
    const srv_watch_chosen *c = reader->chosen;
    return ring->n_all + ring->n_others + (c ? c->n_chosen - c->n_others : 0);
}

void srv_watch_ring_add(srv_watch_ring *ring, srv_watch_reader *reader, size_t model)
{
    reader->chosen = reader->session[0] ? choose(ring, reader->session, model) : NULL;
    if (reader->chosen) {
        reader->next = reader->chosen->readers;
        reader->chosen->readers = reader;
        reader->chosen->n_readers++;
    }
    reader->fits = true;
    reader->cursor = ring->head;
    reader->n_seen = count_records(ring, reader);
    ring->readers[reader->slot] = reader;
}

static bool is_for(const srv_watch_record *r, const srv_watch_reader *reader)
{
    if (r->audience == SRV_WATCH_ALL || !reader->chosen)
        return r->audience != SRV_WATCH_CHOSEN;
    return !strcmp(r->session, reader->session) == (r->audience == SRV_WATCH_CHOSEN);
}

static bool has_slot(const uint64_t bits[], size_t slot)
{
    return bits[slot / 64] >> slot % 64 & 1;
}

static void set_slot(uint64_t bits[], size_t slot, bool on)
{
    const uint64_t bit = (uint64_t)1 << slot % 64;
    bits[slot / 64] = on ? bits[slot / 64] | bit : bits[slot / 64] & ~bit;
}

static bool has_tensors_for(const srv_watch_record *r, const srv_watch_reader *reader)
{
    return r->trace && has_slot(r->wanted, reader->slot);
}

/* Goes on at the oldest record there is. Returns how many of the reader's are gone. */
static uint64_t catch_up(srv_watch_ring *ring, srv_watch_reader *reader)
{
    uint64_t n_left = 0;
    reader->lag_bytes = 0;
    for (uint64_t i = oldest(ring); i < ring->head; i++) {
        const srv_watch_record *r = record_at(ring, i);
        n_left += is_for(r, reader);
        reader->lag_bytes += has_tensors_for(r, reader) ? r->trace_bytes : 0;
    }
    const uint64_t n_lost = count_records(ring, reader) - n_left - reader->n_seen;
    reader->n_seen += n_lost;
    reader->cursor = oldest(ring);
    return n_lost;
}

uint64_t srv_watch_ring_remove(srv_watch_ring *ring, srv_watch_reader *reader)
{
    const uint64_t n_lost = reader->cursor < oldest(ring) ? catch_up(ring, reader) : 0;
    srv_watch_chosen *c = reader->chosen;
    ring->readers[reader->slot] = NULL;
    if (!c)
        return n_lost;
    srv_watch_reader **link = &c->readers;
    while (*link != reader)
        link = &(*link)->next;
    *link = reader->next;
    set_slot(c->asked, reader->slot, false);
    set_slot(c->missed, reader->slot, false);
    /* The id is a reader's own text. */
    c->session = c->readers ? c->readers->session : NULL;
    c->n_readers--;
    reader->chosen = NULL;
    return n_lost;
}

static void add_choice(bool *some, attn_choice *to, bool from_some, const attn_choice *from)
{
    *some = *some && from_some;
    for (size_t i = 0; i < ATTN_CHOICE_MAX / 64; i++)
        to->bits[i] |= from->bits[i];
}

static void add_selection(attn_selection *to, const attn_selection *from)
{
    to->tensors |= from->tensors;
    add_choice(&to->some_layers, &to->layers, from->some_layers, &from->layers);
    add_choice(&to->some_heads, &to->heads, from->some_heads, &from->heads);
}

void srv_watch_ring_union(srv_watch_ring *ring, const char *session, attn_selection *selection)
{
    const srv_watch_chosen *c = find_chosen(ring, session);
    for (const srv_watch_reader *r = c ? c->readers : NULL; r; r = r->next) {
        if (r->show->tensors)
            add_selection(selection, r->show);
    }
}

/* ----------------------------------------------------------------------------- capturing */

static bool is_due(srv_watch_reader *r, uint64_t now)
{
    if (r->frame_ns) {
        if (now < r->due_ns)
            return false;
        /* Kept in step, unless it is too late for that. */
        r->due_ns = now - r->due_ns < r->frame_ns ? r->due_ns + r->frame_ns : now + r->frame_ns;
    }
    return true;
}

static void forget_asked(srv_watch_chosen *c)
{
    memset(c->asked, 0, sizeof(c->asked));
    memset(c->missed, 0, sizeof(c->missed));
}

bool srv_watch_ring_ask(srv_watch_ring *ring, const char *session, uint64_t now,
                        attn_selection *selection, uint64_t *n_lost)
{
    srv_watch_chosen *c = find_chosen(ring, session);
    bool any = false;
    if (!c)
        return false;
    /* Of a step that failed nothing came. */
    forget_asked(c);
    for (srv_watch_reader *r = c->readers; r; r = r->next) {
        if (!r->show->tensors || !r->fits || !is_due(r, now))
            continue;
        if (r->lag_bytes > LAG_BYTES) {
            ++*n_lost;
            set_slot(c->missed, r->slot, true);
            continue;
        }
        if (any)
            add_selection(selection, r->show);
        else
            *selection = *r->show;
        any = true;
        set_slot(c->asked, r->slot, true);
    }
    return any;
}

/* The session is a new one, perhaps of another model. */
static void check_readers(srv_watch_ring *ring, srv_watch_chosen *c, const char *model)
{
    ptrdiff_t index = attn_model_find(ring->engine, model);
    if (index < 0 || !strcmp(c->model, model))
        return;
    attn_model_info info;
    attn_model_get(ring->engine, (size_t)index, &info);
    c->model = info.name;
    for (srv_watch_reader *r = c->readers; r; r = r->next) {
        attn_error error;
        r->fits = r->show->tensors &&
                  attn_selection_check(ring->engine, (size_t)index, r->show, &error) == ATTN_OK &&
                  attn_selection_bytes(ring->engine, (size_t)index, r->show, 1,
                                       info.max_position_embeddings) <= ATTN_TRACE_BYTES_MAX;
    }
}

/* ------------------------------------------------------------------------------- records */

static void copy_id(char to[ATTN_ID_MAX + 1], const char *id)
{
    size_t n = id ? strnlen(id, ATTN_ID_MAX) : 0;
    if (n)
        memcpy(to, id, n);
    to[n] = '\0';
}

static void copy_text(srv_watch_record *r, const attn_event *e)
{
    size_t n = e->text ? e->text_len : 0;
    r->has_text = e->text;
    if (n > SRV_WATCH_TEXT) {
        n = SRV_WATCH_TEXT;
        while (n > 0 && ((unsigned char)e->text[n] & 0xc0) == 0x80)
            n--;
    }
    if (n)
        memcpy(r->text, e->text, n);
    r->text_len = (uint32_t)n;
}

/* All but the trace. */
static void fill(srv_watch_record *r, const attn_event *e)
{
    r->kind = e->kind;
    r->has_token = e->has_token;
    r->token = e->token;
    r->length = e->length;
    r->kv_bytes = e->kv_bytes;
    r->n_done = e->n_done;
    r->n_positions = e->n_positions;
    r->step = e->step;
    r->position = e->position;
    r->model = e->model;
    copy_id(r->session, e->session);
    copy_id(r->from, e->from);
    copy_text(r, e);
}

/* The next record of the ring, counted, with nothing of its own but its audience. */
static srv_watch_record *append(srv_watch_ring *ring, srv_watch_audience audience,
                                srv_watch_chosen *c)
{
    srv_watch_record *r = record_at(ring, ring->head);
    drop_trace(ring, r);
    ring->head++;
    r->audience = audience;
    r->n_merged = 0;
    ring->n_all += audience == SRV_WATCH_ALL;
    ring->n_others += audience == SRV_WATCH_OTHERS;
    if (c) {
        c->n_chosen += audience == SRV_WATCH_CHOSEN;
        c->n_others += audience == SRV_WATCH_OTHERS;
    }
    return r;
}

static uint64_t bytes_of(const attn_trace *t)
{
    uint64_t n = sizeof(*t);
    for (size_t i = 0; i < t->n_tensors; i++) {
        uint64_t bytes = sizeof(float);
        for (unsigned d = 0; d < t->tensors[i].n_dims; d++)
            bytes *= t->tensors[i].shape[d];
        n += sizeof(t->tensors[i]) + bytes;
    }
    return n;
}

static void keep_trace(srv_watch_ring *ring, srv_watch_record *r, srv_watch_chosen *c,
                       attn_trace *trace, uint64_t *n_lost)
{
    const uint64_t bytes = trace ? bytes_of(trace) : 0;
    const bool fits = trace && ring->trace_bytes + bytes <= TRACE_BYTES;
    for (srv_watch_reader *reader = c->readers; reader; reader = reader->next) {
        if (!has_slot(c->asked, reader->slot))
            continue;
        if (fits) {
            reader->lag_bytes += bytes;
        } else {
            ++*n_lost;
            set_slot(c->missed, reader->slot, true);
        }
    }
    if (fits) {
        r->trace = attn_trace_retain(trace);
        r->trace_bytes = bytes;
        ring->trace_bytes += bytes;
        memcpy(r->wanted, c->asked, sizeof(r->wanted));
    }
    memcpy(r->missed, c->missed, sizeof(r->missed));
    forget_asked(c);
}

/* ------------------------------------------------------------------------- steps that wait */

/* Where the index has, or would have, the session. */
static uint16_t *find_waiting(srv_watch_ring *ring, const char *session)
{
    uint32_t hash = 2166136261u;
    for (const char *p = session; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    uint16_t *entry = &ring->waiting_index[hash % WAITING_INDEX];
    while (*entry && strcmp(ring->waiting[*entry - 1].session, session)) {
        if (++entry == ring->waiting_index + WAITING_INDEX)
            entry = ring->waiting_index;
    }
    return entry;
}

static void flush_one(srv_watch_ring *ring, srv_watch_record *waiting)
{
    if (!waiting->n_merged)
        return;
    srv_watch_record *r = append(ring, SRV_WATCH_OTHERS, find_chosen(ring, waiting->session));
    *r = *waiting;
    waiting->n_merged = 0;
}

void srv_watch_ring_flush(srv_watch_ring *ring)
{
    for (size_t i = 0; i < ring->n_waiting; i++)
        flush_one(ring, &ring->waiting[i]);
    empty_waiting(ring);
}

static void flush_session(srv_watch_ring *ring, const char *session)
{
    uint16_t *entry = find_waiting(ring, session);
    if (*entry)
        flush_one(ring, &ring->waiting[*entry - 1]);
}

static void merge(srv_watch_ring *ring, const attn_event *event)
{
    uint16_t *entry = find_waiting(ring, event->session);
    if (!*entry && ring->n_waiting == WAITING) {
        srv_watch_ring_flush(ring);
        entry = find_waiting(ring, event->session);
    }
    if (!*entry) {
        *entry = (uint16_t)++ring->n_waiting;
        ring->waiting[*entry - 1].n_merged = 0;
    }
    srv_watch_record *r = &ring->waiting[*entry - 1];
    fill(r, event);
    r->audience = SRV_WATCH_OTHERS;
    r->n_merged++;
}

bool srv_watch_ring_put(srv_watch_ring *ring, const attn_event *event, size_t n_readers,
                        uint64_t *n_lost)
{
    srv_watch_chosen *c = find_chosen(ring, event->session);
    if (event->kind != ATTN_EVENT_STEP) {
        flush_session(ring, event->session);
        if (event->from)
            flush_session(ring, event->from);
        if (c && (event->kind == ATTN_EVENT_CREATED || event->kind == ATTN_EVENT_FORKED))
            check_readers(ring, c, event->model);
        fill(append(ring, SRV_WATCH_ALL, c), event);
        return true;
    }
    if (c) {
        srv_watch_record *r = append(ring, SRV_WATCH_CHOSEN, c);
        fill(r, event);
        keep_trace(ring, r, c, event->trace, n_lost);
    }
    if (n_readers > (c ? c->n_readers : 0))
        merge(ring, event);
    return c;
}

/* ------------------------------------------------------------------------------- reading */

void srv_watch_ring_forget(srv_watch_ring *ring)
{
    uint64_t first = ring->head;
    for (size_t i = 0; i < SRV_WATCH_READERS; i++) {
        if (ring->readers[i] && ring->readers[i]->cursor < first)
            first = ring->readers[i]->cursor;
    }
    forget_until(ring, first);
}

size_t srv_watch_ring_take(srv_watch_ring *ring, srv_watch_reader *reader,
                           srv_watch_record *records[], size_t max, uint64_t *n_lost, bool *more)
{
    size_t n = 0;
    *n_lost = reader->cursor < oldest(ring) ? catch_up(ring, reader) : 0;
    for (size_t i = 0; i < STRIDE && n < max && reader->cursor < ring->head; i++) {
        srv_watch_record *r = record_at(ring, reader->cursor++);
        if (!is_for(r, reader))
            continue;
        reader->n_seen++;
        ring->taken[n] = *r;
        records[n] = &ring->taken[n];
        records[n]->trace = NULL;
        records[n]->is_missed =
            r->audience == SRV_WATCH_CHOSEN && has_slot(r->missed, reader->slot);
        if (has_tensors_for(r, reader)) {
            records[n++]->trace = attn_trace_retain(r->trace);
            reader->lag_bytes -= r->trace_bytes;
            break;
        }
        n++;
    }
    *more = reader->cursor < ring->head;
    return n;
}
