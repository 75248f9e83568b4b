/* observer_run.h: an observer that records what it is told, and can keep the scheduler still. */
#ifndef OBSERVER_RUN_H
#define OBSERVER_RUN_H

#include "tests/unit/inside_run.h"

#include <pthread.h>

typedef struct recorded {
    attn_event_kind kind;
    char session[16], from[16];
    uint64_t length, kv_bytes, n_done, n_positions, step, position;
    bool has_token;
    uint32_t token;
    attn_trace *trace;
} recorded;

enum { MOST_EVENTS = 4096 };

/* Large: static. */
typedef struct observer {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool freeze, frozen;
    bool chunks; /* keep the events of unfinished prefills too */
    recorded events[MOST_EVENTS];
    size_t n_events, n_asked;
    const char *wanted; /* the session whose steps are wanted */
    attn_selection selection;
} observer;

/* Makes *o the engine's observer, before the first request; it is not switched on. */
void observer_set(attn_engine *engine, observer *o);
/* Lets go of the events so far. */
void observer_forget(observer *o);

/* Keeps the scheduler's thread before a step of session "clock", which it makes: what is submitted
 * meanwhile stays pending. Switches the observer on, and thaw switches it off. One at a time. */
run_handle *observer_freeze(attn_engine *engine, observer *o);
void observer_thaw(attn_engine *engine, observer *o, run_handle *clock);

#endif
