#include "clients/load/sessions.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void load_sessions_init(load_sessions *s)
{
    *s = (load_sessions){.free = LOAD_NO_SLOT, .oldest = LOAD_NO_SLOT, .newest = LOAD_NO_SLOT};
}

void load_sessions_free(load_sessions *s)
{
    for (uint32_t i = 0; i < s->n_slots; i++)
        load_history_free(s->slots[i].history);
    free(s->slots);
    free(s->heap);
}

uint32_t load_sessions_take(load_sessions *s)
{
    uint32_t slot = s->free;
    if (slot != LOAD_NO_SLOT) {
        s->free = s->slots[slot].next;
    } else {
        if (s->n_slots == s->capacity) {
            s->capacity = s->capacity ? 2 * s->capacity : 64;
            s->slots = load_realloc(s->slots, s->capacity, sizeof *s->slots);
        }
        slot = s->n_slots++;
    }
    s->slots[slot] = (load_session){.state = LOAD_SESSION_BUSY};
    return slot;
}

void load_sessions_release(load_sessions *s, uint32_t slot, const load_model *m)
{
    load_session *session = &s->slots[slot];
    load_sessions_set_length(s, m, slot, 0);
    load_sessions_set_created(s, slot, false);
    load_sessions_set_unsure(s, slot, false);
    load_history_free(session->history);
    *session = (load_session){.state = LOAD_SESSION_FREE, .next = s->free};
    s->free = slot;
}

uint64_t load_sessions_next_number(load_sessions *s)
{
    return s->next_number++;
}

void load_sessions_set_length(load_sessions *s, const load_model *m, uint32_t slot, uint64_t length)
{
    load_session *session = &s->slots[slot];
    s->n_positions += length - session->length;
    s->n_pages += load_model_pages(m, length) - load_model_pages(m, session->length);
    session->length = length;
}

void load_sessions_set_created(load_sessions *s, uint32_t slot, bool created)
{
    load_session *session = &s->slots[slot];
    s->n_created += (uint64_t)created - (uint64_t)session->created;
    session->created = created;
}

void load_sessions_set_unsure(load_sessions *s, uint32_t slot, bool unsure)
{
    load_session *session = &s->slots[slot];
    s->n_unsure += (uint64_t)unsure - (uint64_t)session->unsure;
    session->unsure = unsure;
}

/* ------------------------------------------------------------------------------------ waiting */

void load_sessions_wait(load_sessions *s, uint32_t slot, uint64_t due_ns)
{
    if (s->n_timers == s->heap_capacity) {
        s->heap_capacity = s->heap_capacity ? 2 * s->heap_capacity : 64;
        s->heap = load_realloc(s->heap, s->heap_capacity, sizeof *s->heap);
    }
    uint32_t i = s->n_timers++;
    for (; i > 0 && s->heap[(i - 1) / 2].due_ns > due_ns; i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = (load_timer){due_ns, slot};
    s->slots[slot].state = LOAD_SESSION_WAITING;
}

uint32_t load_sessions_due(load_sessions *s, uint64_t now_ns, uint64_t *due_ns)
{
    *due_ns = s->n_timers > 0 ? s->heap[0].due_ns : UINT64_MAX;
    if (s->n_timers == 0 || *due_ns > now_ns)
        return LOAD_NO_SLOT;
    uint32_t slot = s->heap[0].slot, n = --s->n_timers, i = 0, child;
    load_timer last = s->heap[n];
    while ((child = 2 * i + 1) < n) {
        child += child + 1 < n && s->heap[child + 1].due_ns < s->heap[child].due_ns;
        if (s->heap[child].due_ns >= last.due_ns)
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    s->slots[slot].state = LOAD_SESSION_BUSY;
    return slot;
}

/* ------------------------------------------------------------------------------------ resting */

void load_sessions_rest(load_sessions *s, uint32_t slot, uint64_t now_ns)
{
    load_session *session = &s->slots[slot];
    session->state = LOAD_SESSION_RESTING;
    session->retired = true;
    session->since_ns = now_ns;
    session->next = LOAD_NO_SLOT;
    if (s->newest != LOAD_NO_SLOT)
        s->slots[s->newest].next = slot;
    else
        s->oldest = slot;
    s->newest = slot;
}

uint32_t load_sessions_pop_resting(load_sessions *s)
{
    uint32_t slot = s->oldest;
    if (slot == LOAD_NO_SLOT)
        return slot;
    s->oldest = s->slots[slot].next;
    if (s->oldest == LOAD_NO_SLOT)
        s->newest = LOAD_NO_SLOT;
    s->slots[slot].state = LOAD_SESSION_BUSY;
    return slot;
}

uint32_t load_sessions_pop_older(load_sessions *s, uint64_t now_ns, uint64_t idle_ns)
{
    if (s->oldest == LOAD_NO_SLOT || now_ns < s->slots[s->oldest].since_ns + idle_ns)
        return LOAD_NO_SLOT;
    return load_sessions_pop_resting(s);
}

/* ---------------------------------------------------------------------------------------- ids */

void load_session_id(const load_options *o, uint32_t slot, uint64_t number,
                     char id[LOAD_SESSION_ID])
{
    snprintf(id, LOAD_SESSION_ID, "%s.%" PRIu32 ".%" PRIu64, o->id, slot, number);
}

const load_session *load_sessions_find(const load_sessions *s, const load_options *o,
                                       const char *id)
{
    size_t n = strlen(o->id);
    char *end, again[LOAD_SESSION_ID];
    if (strncmp(id, o->id, n) != 0 || id[n] != '.')
        return NULL;
    unsigned long slot = strtoul(id + n + 1, &end, 10);
    if (*end != '.' || slot >= s->n_slots || s->slots[slot].state == LOAD_SESSION_FREE)
        return NULL;
    load_session_id(o, (uint32_t)slot, s->slots[slot].number, again);
    return strcmp(again, id) == 0 ? &s->slots[slot] : NULL;
}
