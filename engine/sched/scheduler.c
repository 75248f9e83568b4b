/* DESIGN. The thread owns four lists: waiting (for a busy session), active, parked (sink not ready),
 * aside (looks into sessions, for the time that is left). Other threads only append to the inbox and
 * set flags, under one mutex. A turn: take the inbox, look at cancelled, waiting and parked jobs if
 * anything happened to them, run one batch, and perhaps a piece of a look. `done` and `step` callbacks
 * run on this thread. */
#include "engine/sched/scheduler_state.h"

#include "engine/sched/look.h"

#include <math.h>

/* While others have work, looking into sessions gets this part of the time. */
#define ASIDE_PART 10
/* A look at the cache copies about so many floats a turn. */
#define CACHE_FLOATS ((size_t)256 << 10)
/* How often a busy scheduler looks at waiting and parked jobs whose time may be up. */
#define LOOK_NS 10000000u

/* --------------------------------------------------------------------------------------- lists */

static void list_append(attn_job_list *list, attn_job *job)
{
    job->next = NULL;
    job->previous = list->last;
    if (list->last != NULL)
        list->last->next = job;
    else
        list->first = job;
    list->last = job;
}

static void list_remove(attn_job_list *list, attn_job *job)
{
    *(job->previous != NULL ? &job->previous->next : &list->first) = job->next;
    *(job->next != NULL ? &job->next->previous : &list->last) = job->previous;
}

static void move(attn_scheduler *s, attn_job *job, attn_job_state state)
{
    list_remove(&s->lists[job->state], job);
    job->state = state;
    list_append(&s->lists[state], job);
}

/* -------------------------------------------------------------------------- ending and waiting */

void attn_sched_finish(attn_scheduler *s, attn_job *job, attn_reason reason,
                       const attn_error *error)
{
    list_remove(&s->lists[job->state], job);
    if (attn_job_finish(job, reason, error)) {
        /* Looked at again before the next batch. */
        attn_mutex_lock(&s->mutex);
        s->kicked = true;
        attn_mutex_unlock(&s->mutex);
    }
}

void attn_sched_fail(attn_scheduler *s, attn_job *job, const attn_error *error)
{
    attn_sched_finish(s, job, ATTN_REASON_ERROR, error);
}

/* A waiting job whose session vanished. */
static void start_over(attn_scheduler *s, attn_job *job)
{
    attn_error err;
    list_remove(&s->lists[job->state], job);
    attn_status status = attn_job_start_over(job, &err);
    list_append(&s->lists[job->state], job);
    if (status != ATTN_OK)
        attn_sched_fail(s, job, &err);
}

/* Lets each waiting job in whose session has become free, in order of arrival; ends those whose
 * time is up, and as cancelled those whose session was deleted. */
static void retry_waiting(attn_scheduler *s)
{
    uint64_t now = attn_now_ns();
    for (attn_job *job = attn_sched_first(s, ATTN_JOB_WAITING), *next; job != NULL; job = next) {
        next = job->next;
        attn_error err;
        attn_hold hold = attn_sessions_hold(s->engine->sessions, job->session, job, true);
        if (hold == ATTN_HOLD_TAKEN) {
            attn_sessions_wait(s->engine->sessions, job->session, -1);
            move(s, job, ATTN_JOB_ACTIVE);
            if (attn_job_admit(job, &err) != ATTN_OK)
                attn_sched_fail(s, job, &err);
        } else if (hold == ATTN_HOLD_REMOVED) {
            attn_sched_finish(s, job, ATTN_REASON_CANCELLED, NULL);
        } else if (hold == ATTN_HOLD_VANISHED) {
            start_over(s, job);
        } else if (now >= job->deadline_ns) {
            attn_fail(&err, ATTN_E_SESSION_BUSY, "session",
                      "the session stayed at work for another request");
            attn_sched_fail(s, job, &err);
        }
    }
}

/* Takes woken jobs back; ends those that were parked for too long. */
static void retry_parked(attn_scheduler *s)
{
    uint64_t now = attn_now_ns();
    for (attn_job *job = attn_sched_first(s, ATTN_JOB_PARKED), *next; job != NULL; job = next) {
        next = job->next;
        if (job->woken) {
            job->parked = false;
            move(s, job, ATTN_JOB_ACTIVE);
        } else if (now >= job->deadline_ns) {
            attn_sched_finish(s, job, ATTN_REASON_STALLED, NULL);
        }
    }
}

/* Ends looks at positions that are no more. */
static void end_lost_looks(attn_scheduler *s)
{
    for (attn_job *job = attn_sched_first(s, ATTN_JOB_ASIDE), *next; job != NULL; job = next) {
        next = job->next;
        attn_error err;
        if (attn_session_check_reader(job->looked, &job->reader, &err) != ATTN_OK)
            attn_sched_fail(s, job, &err);
    }
}

bool attn_sched_park(attn_scheduler *s, attn_job *job)
{
    if (job->sink.ready == NULL || job->sink.ready(job->sink.ctx))
        return false;
    /* The sink may become ready between the question and the mark: ask again after it. */
    job->woken = false;
    job->parked = true;
    if (job->sink.ready(job->sink.ctx)) {
        job->parked = false;
        return false;
    }
    job->deadline_ns = attn_now_ns() + (uint64_t)s->engine->options.stall_timeout_ms * 1000000u;
    move(s, job, ATTN_JOB_PARKED);
    return true;
}

static void end_cancelled(attn_scheduler *s, bool all)
{
    for (int state = 0; state < ATTN_JOB_STATES; state++) {
        for (attn_job *job = s->lists[state].first, *next; job != NULL; job = next) {
            next = job->next;
            if (job->cancelled)
                attn_sched_finish(s, job, ATTN_REASON_CANCELLED, NULL);
            else if (all)
                attn_sched_finish(s, job, ATTN_REASON_SHUTDOWN, NULL);
        }
    }
}

/* --------------------------------------------------------------------------------------- turns */

void attn_sched_start(attn_scheduler *s, attn_job *job, uint64_t now)
{
    static const attn_session_state states[] = {
        [ATTN_JOB_PREFILL] = ATTN_SESSION_PREFILL,
        [ATTN_JOB_DECODE] = ATTN_SESSION_DECODE,
        [ATTN_JOB_VERIFY] = ATTN_SESSION_VERIFY,
    };
    if (job->started)
        return;
    job->started = true;
    job->started_ns = now;
    s->engine->n_queued--;
    s->engine->n_in_flight[job->kind]++;
    attn_histogram_observe(&s->engine->queue_seconds, (double)(now - job->submitted_ns) / 1e9);
    if (job->session != NULL)
        attn_sessions_set_state(s->engine->sessions, job->session, states[job->kind]);
}

/* Accounts for a batch's time: the chunks' part of it is their debt to decodes, whose part pays it.
 * What they owe is one chunk at most: while nobody decoded they kept nobody waiting. */
static void account(attn_scheduler *s, double now, double duration)
{
    const double cost = s->decode_cost + s->chunk_cost + s->capture_cost;
    const double chunks = duration * (s->chunk_cost / cost), decodes = duration - chunks;
    const double debt = s->chunk_debt_ns + chunks - decodes;
    s->chunk_debt_ns = fmax(0, chunks > 0 ? fmin(debt, chunks) : debt);
    s->rate += 0.2 * (cost / duration - s->rate);
    const double captures = s->capture_ns + duration * (s->capture_cost / cost);
    if (captures > 0)
        s->captured_until_ns = attn_capture_until(s->captured_until_ns, now, captures);
}

static void run_batch(attn_scheduler *s, const attn_model *model)
{
    uint64_t begin = attn_now_ns();
    for (size_t i = 0; i < s->n_parts; i++)
        attn_sched_start(s, s->parts[i].job, begin);
    const float *outputs = attn_forward_run(s->engine->forward, model, s->spans, s->n_spans,
                                            model->config.num_hidden_layers, s->finite);
    uint64_t duration = attn_now_ns() - begin;
    account(s, (double)begin, (double)duration + 1);
    if (s->decode_cost > 0)
        s->last_decode_ns = begin + duration;
    s->engine->batches++;
    attn_histogram_observe(&s->engine->batch_size, (double)s->n_rows);
    for (size_t i = 0; i < s->n_parts; i++) {
        const attn_batch_part *part = &s->parts[i];
        attn_job *job = part->job;
        job->compute_ns += duration;
        /* To the end of the list: whoever did not fit comes first next time. */
        move(s, job, ATTN_JOB_ACTIVE);
        attn_commit_part(s, part, outputs + part->first_row * model->config.hidden_size);
    }
}

/* The next rows, or keys of the cache, of a look that is reading. */
static void run_look(attn_scheduler *s, attn_job *job, bool alone)
{
    const attn_config *c = &job->view->model->config;
    if (attn_look_is_of_cache(job)) {
        uint64_t left = job->n_positions - job->n_done;
        size_t n = 1 + CACHE_FLOATS / ((size_t)c->num_key_value_heads * c->head_dim);
        n = n < left ? n : (size_t)left;
        attn_look_read_cache(job, n);
        job->n_done += n;
        return;
    }
    s->n_parts = s->n_spans = s->n_rows = 0;
    attn_plan_look(s, job, s->rate * (alone ? ATTN_BATCH_NS : ATTN_BATCH_NS / ASIDE_PART));
    attn_forward_run(s->engine->forward, job->view->model, s->spans, s->n_spans,
                     attn_trace_layers(job->trace), s->finite);
    job->n_done += s->parts[0].n_rows;
}

/* A piece of the first look into a session, a short one if others have work. */
static void run_aside(attn_scheduler *s)
{
    attn_job *job = attn_sched_first(s, ATTN_JOB_ASIDE);
    const bool alone = attn_sched_first(s, ATTN_JOB_ACTIVE) == NULL;
    uint64_t begin = attn_now_ns();
    attn_error err;
    if (job == NULL || (!alone && begin < s->next_aside_ns))
        return;
    if (attn_session_begin_reading(job->looked, &job->reader, job->view, &err) != ATTN_OK) {
        attn_sched_fail(s, job, &err);
        return;
    }
    attn_sched_start(s, job, begin);
    run_look(s, job, alone);
    attn_session_pause_reader(job->looked, &job->reader);
    uint64_t end = attn_now_ns();
    s->next_aside_ns = end + ASIDE_PART * (end - begin);
    job->compute_ns += end - begin;
    if (job->n_done == job->n_positions)
        attn_sched_finish(s, job, ATTN_REASON_LENGTH, NULL);
    else
        move(s, job, ATTN_JOB_ASIDE);
}

/* One batch of the next model that has ready rows. None has when every run that was sampled ended;
 * others may then be left that are still to be sampled. */
static void run_next(attn_scheduler *s)
{
    for (size_t i = 0; i < s->engine->n_models && attn_sched_first(s, ATTN_JOB_ACTIVE) != NULL;
         i++) {
        const attn_model *model = s->engine->models[s->next_model++ % s->engine->n_models].model;
        if (attn_config_is_decoder(&model->config))
            attn_sample_next(s, model);
        attn_plan_batch(s, model);
        if (s->n_parts > 0) {
            run_batch(s, model);
            return;
        }
    }
}

/* When the scheduler must look again although nobody calls. */
static uint64_t next_deadline(const attn_scheduler *s)
{
    uint64_t deadline = s->engine->n_mortal > 0 ? s->next_expiry_ns : UINT64_MAX;
    static const attn_job_state states[] = {ATTN_JOB_WAITING, ATTN_JOB_PARKED};
    for (size_t i = 0; i < 2; i++) {
        for (const attn_job *job = s->lists[states[i]].first; job != NULL; job = job->next)
            deadline = job->deadline_ns < deadline ? job->deadline_ns : deadline;
    }
    return deadline;
}

/* Every stripe of the table is looked at once a second. */
static void expire(attn_scheduler *s, uint64_t now)
{
    if (s->engine->n_mortal == 0 || now < s->next_expiry_ns)
        return;
    attn_sessions_expire_some(s->engine->sessions);
    s->next_expiry_ns = now + 1000000000u / ATTN_SESSION_STRIPES;
}

/* Takes the inbox and the flags; sleeps first when there is nothing to do. Returns false at the
 * end. */
static bool collect(attn_scheduler *s, bool idle, bool *kicked, bool *cancelled)
{
    uint64_t deadline = idle ? next_deadline(s) : 0;
    attn_mutex_lock(&s->mutex);
    while (idle && s->inbox_first == NULL && !s->kicked && !s->cancelled && !s->stop &&
           attn_now_ns() < deadline) {
        s->asleep = true;
        attn_cond_wait_until(&s->cond, &s->mutex, deadline);
    }
    s->asleep = false;
    attn_job *job = s->inbox_first;
    s->inbox_first = s->inbox_last = NULL;
    *kicked = s->kicked;
    *cancelled = s->cancelled;
    s->kicked = s->cancelled = false;
    bool stop = s->stop;
    attn_mutex_unlock(&s->mutex);
    for (attn_job *next; job != NULL; job = next) {
        next = job->next;
        list_append(&s->lists[job->state], job);
        if (job->cancelled)
            *cancelled = true;
        else if (job->state != ATTN_JOB_WAITING && job->n_positions == 0)
            /* Of an empty session. */
            attn_sched_finish(s, job, ATTN_REASON_LENGTH, NULL);
    }
    return !stop;
}

static void *scheduler_main(void *arg)
{
    attn_scheduler *s = arg;
    attn_kernels_thread_init();
    bool idle = true, kicked, cancelled, going = true;
    uint64_t next_look_ns = 0;
    while (going) {
        going = collect(s, idle, &kicked, &cancelled);
        bool all = !going || s->engine->shutting_down;
        if (cancelled || all)
            end_cancelled(s, all);
        uint64_t now = attn_now_ns();
        if (kicked || now >= next_look_ns) {
            retry_waiting(s);
            retry_parked(s);
            end_lost_looks(s);
            next_look_ns = now + LOOK_NS;
        }
        expire(s, now);
        run_next(s);
        run_aside(s);
        idle = attn_sched_first(s, ATTN_JOB_ACTIVE) == NULL &&
               attn_sched_first(s, ATTN_JOB_ASIDE) == NULL;
    }
    return NULL;
}

/* -------------------------------------------------------------------------------- from outside */

static void free_scheduler(attn_scheduler *s)
{
    attn_sample_destroy(s);
    attn_cond_destroy(&s->cond);
    attn_mutex_destroy(&s->mutex);
    attn_free(s);
}

attn_scheduler *attn_scheduler_create(attn_engine *engine)
{
    attn_scheduler *s = attn_alloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    s->engine = engine;
    s->rate = 5;
    attn_mutex_init(&s->mutex);
    attn_cond_init(&s->cond);
    if (!attn_sample_create(s) || pthread_create(&s->thread, NULL, scheduler_main, s) != 0) {
        free_scheduler(s);
        return NULL;
    }
    return s;
}

void attn_scheduler_destroy(attn_scheduler *s)
{
    if (s == NULL)
        return;
    attn_mutex_lock(&s->mutex);
    s->stop = true;
    attn_cond_broadcast(&s->cond);
    attn_mutex_unlock(&s->mutex);
    pthread_join(s->thread, NULL);
    free_scheduler(s);
}

/* Unlocks, and wakes the thread if it sleeps: once, and not before it can have the lock. */
static void unlock_and_wake(attn_scheduler *s)
{
    const bool wake = s->asleep;
    s->asleep = false;
    attn_mutex_unlock(&s->mutex);
    if (wake)
        attn_cond_broadcast(&s->cond);
}

void attn_scheduler_add(attn_scheduler *s, attn_job *job)
{
    attn_mutex_lock(&s->mutex);
    job->next = NULL;
    if (s->inbox_last != NULL)
        s->inbox_last->next = job;
    else
        s->inbox_first = job;
    s->inbox_last = job;
    /* A job may have begun to wait just as its session was released. */
    if (job->state == ATTN_JOB_WAITING)
        s->kicked = true;
    unlock_and_wake(s);
}

void attn_scheduler_kick(attn_scheduler *s)
{
    attn_mutex_lock(&s->mutex);
    s->kicked = true;
    unlock_and_wake(s);
}

void attn_scheduler_kick_cancelled(attn_scheduler *s)
{
    attn_mutex_lock(&s->mutex);
    s->cancelled = true;
    unlock_and_wake(s);
}
