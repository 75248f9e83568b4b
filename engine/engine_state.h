/* engine_state.h: what the engine's own files share: its parts and its counters. */
#ifndef ATTN_ENGINE_STATE_H
#define ATTN_ENGINE_STATE_H

#include "engine/base/base.h"
#include "engine/cache/sessions.h"
#include "engine/compute/forward.h"

struct attn_scheduler;

/* A served model and the page classes of its sessions, by cache dtype and "inputs kept". */
typedef struct attn_served_model {
    attn_model *model;
    attn_page_class *pages[ATTN_DTYPES][2];
} attn_served_model;

struct attn_engine {
    attn_options options; /* its pointers are dead after open */
    const attn_kernels *kernels;
    attn_served_model *models;
    size_t n_models;
    attn_arena *arena;
    attn_sessions *sessions;
    attn_pool *pool;
    attn_forward *forward;
    struct attn_scheduler *scheduler;
    _Atomic bool shutting_down;
    attn_observer observer; /* set before the first request */
    _Atomic bool observing;
    _Atomic uint64_t next_id; /* for sessions that get their id from the engine */

    _Atomic uint32_t n_jobs;   /* unfinished */
    _Atomic uint64_t n_mortal; /* sessions ever created with a time to live */
    _Atomic uint64_t n_queued, n_in_flight[ATTN_JOB_KINDS];
    _Atomic uint64_t prefill_tokens, decode_steps, batches, sessions_created;
    attn_histogram batch_size, queue_seconds, ttft_seconds, step_seconds;
};

/* Tells the observer, if it listens, of something that happened to a session, unless that has been
 * removed meanwhile. Any thread; no lock of the engine may be held. */
void attn_engine_tell(attn_engine *engine, const attn_session *session, attn_event *event);

#endif
