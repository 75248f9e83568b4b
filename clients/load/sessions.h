/* sessions.h: the client's account of its sessions: slots, who waits until when, who rests.
 *
 * A session is WAITING (for its time, in the heap), BUSY (with a request), or RESTING (retired: its
 * operations are done; in a list, oldest first). Slots are used again; pointers to them are good
 * until the next load_sessions_take.
 */
#ifndef LOAD_SESSIONS_H
#define LOAD_SESSIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clients/load/history.h"
#include "clients/load/model.h"
#include "clients/load/options.h"
#include "clients/load/random.h"

#define LOAD_NO_SLOT UINT32_MAX
#define LOAD_SESSION_ID 72

typedef enum load_session_state {
    LOAD_SESSION_FREE,
    LOAD_SESSION_BUSY,
    LOAD_SESSION_WAITING,
    LOAD_SESSION_RESTING,
} load_session_state;

typedef struct load_session {
    load_session_state state;
    bool created;       /* the server has it, as far as we know */
    bool unsure;        /* a request of it failed: nobody knows its length */
    bool retired;       /* its operations are done */
    uint32_t next;      /* resting, or free */
    uint64_t number;    /* never used again */
    uint64_t key;       /* what it is fed follows from this */
    load_random script; /* what it does */
    uint64_t operations_left, n_operations;
    uint64_t length;
    uint64_t since_ns;     /* resting */
    load_history *history; /* NULL: it is not a candidate for a check */
} load_session;

typedef struct load_timer {
    uint64_t due_ns;
    uint32_t slot;
} load_timer;

typedef struct load_sessions {
    load_session *slots;
    uint32_t n_slots, capacity, free; /* free: first of a list */
    uint32_t oldest, newest;          /* resting */
    load_timer *heap;
    uint32_t n_timers, heap_capacity;
    uint64_t next_number;
    uint64_t n_created, n_unsure, n_positions, n_pages;
} load_sessions;

void load_sessions_init(load_sessions *s);
void load_sessions_free(load_sessions *s);

/* A free slot, all zero but BUSY. */
uint32_t load_sessions_take(load_sessions *s);
/* The slot is free again; its session no longer counts. */
void load_sessions_release(load_sessions *s, uint32_t slot, const load_model *m);
uint64_t load_sessions_next_number(load_sessions *s);

/* Keep the sums. */
void load_sessions_set_length(load_sessions *s, const load_model *m, uint32_t slot,
                              uint64_t length);
void load_sessions_set_created(load_sessions *s, uint32_t slot, bool created);
void load_sessions_set_unsure(load_sessions *s, uint32_t slot, bool unsure);

/* BUSY to WAITING; and back when it is due: a slot whose time has come, with that time in *due_ns,
 * or LOAD_NO_SLOT, with the next one's time (UINT64_MAX: there is none). */
void load_sessions_wait(load_sessions *s, uint32_t slot, uint64_t due_ns);
uint32_t load_sessions_due(load_sessions *s, uint64_t now_ns, uint64_t *due_ns);

/* BUSY to RESTING, and back: the oldest, or LOAD_NO_SLOT; only if it rests for `idle_ns`. */
void load_sessions_rest(load_sessions *s, uint32_t slot, uint64_t now_ns);
uint32_t load_sessions_pop_resting(load_sessions *s);
uint32_t load_sessions_pop_older(load_sessions *s, uint64_t now_ns, uint64_t idle_ns);

/* A session's id is PREFIX.slot.number; the session that has an id, or NULL. */
void load_session_id(const load_options *o, uint32_t slot, uint64_t number,
                     char id[LOAD_SESSION_ID]);
const load_session *load_sessions_find(const load_sessions *s, const load_options *o,
                                       const char *id);

#endif
