/* scheduler_state.h: what the scheduler's own files share.
 *
 * scheduler.c owns the thread, the lists and the turns; plan.c chooses the rows of a batch; sample.c
 * chooses next tokens; commit.c turns computed rows into committed positions and results.
 * Thread: everything here runs on the scheduler's thread, but for what the mutex guards.
 */
#ifndef ATTN_SCHEDULER_STATE_H
#define ATTN_SCHEDULER_STATE_H

#include <math.h>

#include "engine/compute/sampler.h"
#include "engine/sched/job.h"
#include "engine/sched/scheduler.h"

/* A batch's intended duration: the longest that a decoding session waits for others' prefills. */
#define ATTN_BATCH_NS 8e6

typedef struct attn_job_list {
    attn_job *first, *last;
} attn_job_list;

/* One job's part of a batch. */
typedef struct attn_batch_part {
    attn_job *job;
    size_t first_row, n_rows;
    bool replay, untraced;       /* there was no memory for its trace */
    attn_trace *trace, *watched; /* of a decode step: what the job, what the observer asked for */
} attn_batch_part;

struct attn_scheduler {
    attn_engine *engine;
    pthread_t thread;
    attn_mutex mutex;
    attn_cond cond;
    /* Guarded by mutex. */
    attn_job *inbox_first, *inbox_last;
    bool kicked, cancelled, stop;
    bool asleep; /* the thread waits on `cond`, and nobody has woken it yet */

    attn_job_list lists[ATTN_JOB_STATES];
    uint64_t next_aside_ns; /* while others have work */
    size_t next_model;
    double rate; /* multiply-adds a nanosecond, measured */
    /* What chunks took of the time beyond what decodes beside them had; they wait while it is above
     * 0 and decodes are there. */
    double chunk_debt_ns;
    uint64_t last_decode_ns;
    double captured_until_ns; /* when what was captured will have been its part of the time */
    uint64_t next_expiry_ns;

    /* The batch. */
    attn_batch_part parts[ATTN_BATCH_ROWS];
    attn_span spans[ATTN_BATCH_ROWS];
    bool finite[ATTN_BATCH_ROWS];
    size_t n_parts, n_spans, n_rows;
    double decode_cost, chunk_cost, capture_cost; /* in multiply-adds */
    double capture_ns;                            /* that making traces for the observer took */
    float rows[4][1024]; /* head rows that a verify compares; 1024 is the most head_dim */

    /* For language models; NULL when there is none. */
    attn_sampler **samplers; /* one a compute thread */
    float *logits;           /* [n_sampled at most, vocab_size] */
    float *hidden;           /* [n_sampled at most, hidden_size] */
    size_t logits_floats;
    attn_job *sampled[ATTN_BATCH_ROWS];
    size_t n_sampled;
};

/* ------------------------------------------------------------------------------ scheduler.c */

static inline attn_job *attn_sched_first(const attn_scheduler *s, attn_job_state state)
{
    return s->lists[state].first;
}

/* Ends a job and forgets it. */
void attn_sched_finish(attn_scheduler *s, attn_job *job, attn_reason reason,
                       const attn_error *error);
void attn_sched_fail(attn_scheduler *s, attn_job *job, const attn_error *error);
/* Notes that a job is at work from `now` on, unless it was before. */
void attn_sched_start(attn_scheduler *s, attn_job *job, uint64_t now);
/* Parks an active job whose sink is not ready. */
bool attn_sched_park(attn_scheduler *s, attn_job *job);

/* ----------------------------------------------------------------------------------- plan.c */

/* While others have work, captures for the observer get this part of the time. */
#define ATTN_CAPTURE_PART 4
/* How far they may be ahead of it. */
#define ATTN_CAPTURE_BURST_NS 1e8

/* Whether captures that take `planned` keep to that; `until`: when what was captured will have been its
 * part of the time. */
static inline bool attn_capture_fits(double until, double now, double planned)
{
    return fmax(until, now) + ATTN_CAPTURE_PART * planned <= now + ATTN_CAPTURE_BURST_NS;
}

/* The next `until`, after captures that took `spent`. While alone they may be ahead as far as they like:
 * that is forgotten. */
static inline double attn_capture_until(double until, double now, double spent)
{
    return fmin(fmax(until, now), now + ATTN_CAPTURE_BURST_NS) + ATTN_CAPTURE_PART * spent;
}

/* Plans a batch of `model`: decodes first, then chunks in what they leave; while decodes are ready,
 * chunks get half of the time. The batch may be empty. */
void attn_plan_batch(attn_scheduler *s, const attn_model *model);
/* Plans the next rows of a look into a session, for about `budget` of cost. */
void attn_plan_look(attn_scheduler *s, attn_job *job, double budget);

/* --------------------------------------------------------------------------------- sample.c */

/* Scratch for the language models, if there are any. False when out of memory. */
bool attn_sample_create(attn_scheduler *s);
void attn_sample_destroy(attn_scheduler *s);
/* Chooses the next tokens of the model's sampling jobs that know their last hidden row. */
void attn_sample_next(attn_scheduler *s, const attn_model *model);

/* --------------------------------------------------------------------------------- commit.c */

/* Commits a part of a batch whose rows were computed, tells whoever listens, and ends the job after
 * its last position. outputs: [part->n_rows, hidden_size]. */
void attn_commit_part(attn_scheduler *s, const attn_batch_part *part, const float *outputs);
/* Ends a job whose step at `position` overflowed. */
void attn_commit_overflow(attn_scheduler *s, attn_job *job, uint64_t position);

#endif
