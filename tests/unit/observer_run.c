#include "tests/unit/observer_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static void on_event(void *ctx, const attn_event *event)
{
    observer *o = ctx;
    pthread_mutex_lock(&o->mutex);
    bool chunk = event->kind == ATTN_EVENT_PREFILL && event->n_done < event->n_positions;
    if (o->n_events < MOST_EVENTS && (o->chunks || !chunk)) {
        recorded *r = &o->events[o->n_events++];
        *r = (recorded){.kind = event->kind,
                        .length = event->length,
                        .kv_bytes = event->kv_bytes,
                        .n_done = event->n_done,
                        .n_positions = event->n_positions,
                        .step = event->step,
                        .position = event->position,
                        .has_token = event->has_token,
                        .token = event->token};
        snprintf(r->session, sizeof r->session, "%s", event->session);
        if (event->from != NULL)
            snprintf(r->from, sizeof r->from, "%s", event->from);
        if (event->trace != NULL)
            r->trace = attn_trace_retain(event->trace);
    }
    pthread_cond_broadcast(&o->cond);
    pthread_mutex_unlock(&o->mutex);
}

static bool on_wants(void *ctx, const char *session, attn_selection *selection)
{
    observer *o = ctx;
    pthread_mutex_lock(&o->mutex);
    o->n_asked++;
    if (o->freeze && strcmp(session, "clock") == 0) {
        o->frozen = true;
        pthread_cond_broadcast(&o->cond);
        while (o->freeze)
            pthread_cond_wait(&o->cond, &o->mutex);
        o->frozen = false;
    }
    bool wanted = o->wanted != NULL && strcmp(session, o->wanted) == 0;
    *selection = o->selection;
    pthread_mutex_unlock(&o->mutex);
    return wanted;
}

void observer_set(attn_engine *engine, observer *o)
{
    memset(o, 0, sizeof *o);
    pthread_mutex_init(&o->mutex, NULL);
    pthread_cond_init(&o->cond, NULL);
    attn_engine_set_observer(engine, &(attn_observer){o, on_event, on_wants});
}

void observer_forget(observer *o)
{
    pthread_mutex_lock(&o->mutex);
    for (size_t i = 0; i < o->n_events; i++)
        attn_trace_release(o->events[i].trace);
    o->n_events = 0;
    pthread_mutex_unlock(&o->mutex);
}

static run clock_result;

run_handle *observer_freeze(attn_engine *engine, observer *o)
{
    inside_prefill(engine, "clock", 1);
    attn_engine_observe(engine, true);
    o->freeze = true;
    attn_request r = attn_request_init(ATTN_JOB_DECODE);
    r.session = "clock";
    r.steps = 1;
    run_handle *handle = run_start(engine, &r, &clock_result);
    pthread_mutex_lock(&o->mutex);
    while (!o->frozen)
        pthread_cond_wait(&o->cond, &o->mutex);
    pthread_mutex_unlock(&o->mutex);
    return handle;
}

void observer_thaw(attn_engine *engine, observer *o, run_handle *handle)
{
    attn_engine_observe(engine, false);
    pthread_mutex_lock(&o->mutex);
    o->freeze = false;
    pthread_cond_broadcast(&o->cond);
    pthread_mutex_unlock(&o->mutex);
    run_wait(handle);
    run_free(&clock_result);
}
