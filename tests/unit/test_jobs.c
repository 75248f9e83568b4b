/* Jobs in flight: cancelled, deleted under, parked, waiting, stalled, shut down, many at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <xmmintrin.h>

#include "engine/model/philox.h"
#include "tests/unit/engine_run.h"

#define HIDDEN 16
#define N_ROWS 400
/* More than any test runs to the end. */
#define FOR_EVER 30000
#define MINUTE 60000

static float rows[N_ROWS * HIDDEN];

static int make_rows(void **state)
{
    (void)state;
    attn_philox_uniform(1, "rows", 1.0f, 0, N_ROWS * HIDDEN, rows);
    return 0;
}

static void append(attn_engine *engine, const char *id, size_t n)
{
    run r = run_prefill(engine, id, NULL, rows, n, HIDDEN, ATTN_OUTPUT_NONE);
    assert_int_equal(r.reason, ATTN_REASON_LENGTH);
    run_free(&r);
}

static attn_request steps(const char *id, uint64_t n, uint32_t wait_ms)
{
    attn_request r = attn_request_init(ATTN_JOB_DECODE);
    r.session = id;
    r.steps = n;
    r.wait_ms = wait_ms;
    return r;
}

static attn_session_info info_of(attn_engine *engine, const char *id)
{
    attn_session_info info;
    assert_int_equal(attn_session_get(engine, id, &info, NULL), ATTN_OK);
    return info;
}

static void wait_for_state(attn_engine *engine, const char *id, attn_session_state state)
{
    while (info_of(engine, id).state != state)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void check_unused(attn_engine *engine)
{
    attn_totals t;
    attn_engine_totals(engine, &t);
    assert_int_equal(t.sessions + t.positions, 0);
    assert_int_equal(t.allocated_bytes + t.reserved_bytes, 0);
}

/* The session has `length` positions, and its next 5 steps are those of a session made afresh from
 * the inputs it kept. */
static void check_usable(attn_engine *engine, const char *id, uint64_t length)
{
    float *inputs = malloc(length * HIDDEN * sizeof *inputs);
    attn_session_info info = info_of(engine, id);
    assert_int_equal(info.length, length);
    assert_int_equal(info.kv.n_pages, (length + 15) / 16);
    assert_int_equal(info.kv.reserved_bytes, 0);
    assert_false(info.in_flight);
    assert_int_equal(attn_session_inputs(engine, id, 0, length, inputs, NULL), ATTN_OK);
    run p = run_prefill(engine, "fresh", NULL, inputs, length, HIDDEN, ATTN_OUTPUT_NONE);
    run a = run_steps(engine, id, 5), b = run_steps(engine, "fresh", 5);
    assert_int_equal(a.steps, 5);
    assert_memory_equal(a.outputs, b.outputs, 5 * HIDDEN * sizeof(float));
    run_free(&p);
    run_free(&a);
    run_free(&b);
    assert_int_equal(attn_session_delete(engine, "fresh", NULL), ATTN_OK);
    free(inputs);
}

/* ------------------------------------------------------------------------------------- cancel */

static void test_cancel_while_decoding(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    attn_session_info info;
    for (int way = 0; way < 2; way++) {
        run d;
        append(engine, "a", 10);
        attn_request r = steps("a", FOR_EVER, 0);
        run_handle *h = run_start(engine, &r, &d);
        run_wait_steps(h, 20);
        assert_true(info_of(engine, "a").in_flight);
        if (way == 0) {
            run_cancel(h);
        } else {
            assert_int_equal(attn_session_cancel(engine, "a", &info, NULL), ATTN_OK);
            assert_int_equal(info.state, ATTN_SESSION_IDLE);
            assert_int_equal(info.kv.reserved_bytes, 0);
        }
        run_wait(h);
        assert_int_equal(d.reason, ATTN_REASON_CANCELLED);
        assert_true(d.steps >= 20 && d.steps < FOR_EVER && d.steps == d.n_outputs);
        assert_int_equal(d.session.length, 10 + d.steps);
        assert_false(d.session.in_flight);
        check_usable(engine, "a", 10 + d.steps);
        run_free(&d);
        assert_int_equal(attn_session_delete(engine, "a", NULL), ATTN_OK);
    }
    check_unused(engine);
    attn_engine_close(engine);
}

static void test_cancel_of_what_does_not_run(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    attn_session_info info;
    attn_error err;
    assert_int_equal(attn_session_cancel(engine, "a", &info, &err), ATTN_E_SESSION_NOT_FOUND);
    append(engine, "a", 10);
    assert_int_equal(attn_session_cancel(engine, "a", &info, &err), ATTN_OK);
    assert_int_equal(info.length, 10);
    /* A job that has ended already. */
    run d;
    attn_request r = steps("a", 1, 0);
    run_handle *h = run_start(engine, &r, &d);
    wait_for_state(engine, "a", ATTN_SESSION_IDLE);
    run_cancel(h);
    run_wait(h);
    assert_int_equal(d.reason, ATTN_REASON_LENGTH);
    run_free(&d);
    attn_engine_close(engine);
}

static void test_cancel_while_parked(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    append(engine, "a", 10);
    run d;
    attn_request r = steps("a", FOR_EVER, 0);
    run_handle *h = run_start_held(engine, &r, &d, 7);
    run_wait_steps(h, 7);
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    assert_int_equal(run_steps_taken(h), 7);
    run_cancel(h);
    run_wait(h);
    assert_int_equal(d.reason, ATTN_REASON_CANCELLED);
    assert_int_equal(d.steps, 7);
    check_usable(engine, "a", 17);
    run_free(&d);
    attn_engine_close(engine);
}

/* Parked time and again, a run gives what it gives without a pause. */
static void test_parking_changes_nothing(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    append(engine, "a", 10);
    append(engine, "b", 10);
    run d, whole = run_steps(engine, "b", 50);
    attn_request r = steps("a", 50, 0);
    run_handle *h = run_start_held(engine, &r, &d, 0);
    for (uint64_t at = 1; at < 50; at++) {
        run_resume_to(h, at);
        run_wait_steps(h, at);
    }
    run_resume(h);
    run_wait(h);
    assert_int_equal(d.reason, ATTN_REASON_LENGTH);
    assert_int_equal(d.n_outputs, 50);
    assert_memory_equal(d.outputs, whole.outputs, 50 * HIDDEN * sizeof(float));
    run_free(&d);
    run_free(&whole);
    attn_engine_close(engine);
}

static void test_cancelled_prefill(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){.model = "chain3", .n_threads = 1});
    static float wide[3000 * 96];
    attn_philox_uniform(4, "wide", 1.0f, 0, 3000 * 96, wide);
    attn_request r = attn_request_init(ATTN_JOB_PREFILL);
    r.inputs = wide;
    r.n_inputs = 3000;
    r.input_size = 96;
    r.session = "new";
    run p, old = run_prefill(engine, "old", NULL, wide, 20, 96, ATTN_OUTPUT_NONE);
    for (int i = 0; i < 4; i++) {
        /* One that makes its session: all or nothing. One that appends: as it was. */
        r.session = i % 2 ? "old" : "new";
        run_handle *h = run_start(engine, &r, &p);
        if (i >= 2)
            wait_for_state(engine, r.session, ATTN_SESSION_PREFILL);
        run_cancel(h);
        run_wait(h);
        assert_int_equal(p.reason, ATTN_REASON_CANCELLED);
        assert_int_equal(p.appended, 0);
        run_free(&p);
    }
    attn_session_info info;
    assert_int_equal(attn_session_get(engine, "new", &info, NULL), ATTN_E_SESSION_NOT_FOUND);
    assert_int_equal(info_of(engine, "old").length, 20);
    assert_int_equal(info_of(engine, "old").kv.n_pages, 2);
    run v = run_verify(engine, "old");
    assert_true(v.bit_identical);
    run_free(&v);
    run_free(&old);
    assert_int_equal(attn_session_delete(engine, "old", NULL), ATTN_OK);
    check_unused(engine);
    attn_engine_close(engine);
}

/* ------------------------------------------------------------------------------------- delete */

static void test_delete_under_a_job(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    for (int i = 0; i < 30; i++) {
        run d;
        attn_request r = steps("a", FOR_EVER, 0);
        append(engine, "a", 40);
        run_handle *h = i % 3 ? run_start(engine, &r, &d) : run_start_held(engine, &r, &d, 0);
        if (i % 3 == 1)
            run_wait_steps(h, 10);
        assert_int_equal(attn_session_delete(engine, "a", NULL), ATTN_OK);
        check_unused(engine); /* as soon as delete returns */
        run_wait(h);
        assert_int_equal(d.reason, ATTN_REASON_CANCELLED);
        attn_session_info info;
        assert_int_equal(attn_session_get(engine, "a", &info, NULL), ATTN_E_SESSION_NOT_FOUND);
        run_free(&d);
    }
    attn_engine_close(engine);
}

/* -------------------------------------------------------------------------------------- wait */

static void test_busy(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    attn_session_info info;
    attn_error err;
    run held;
    append(engine, "a", 10);
    attn_request r = steps("a", 5, 0);
    run_handle *h = run_start_held(engine, &r, &held, 0);
    run d = run_job(engine, &r);
    assert_int_equal(d.submitted, ATTN_E_SESSION_BUSY);
    r.kind = ATTN_JOB_VERIFY;
    r.wait_ms = MINUTE; /* a verify does not wait */
    d = run_job(engine, &r);
    assert_int_equal(d.submitted, ATTN_E_SESSION_BUSY);
    assert_int_equal(attn_session_truncate(engine, "a", 0, UINT64_MAX, &info, &err),
                     ATTN_E_SESSION_BUSY);
    float row[HIDDEN];
    assert_int_equal(attn_session_inputs(engine, "a", 0, 1, row, &err), ATTN_E_SESSION_BUSY);
    /* A wait that runs out. */
    r = steps("a", 1, 30);
    d = run_job(engine, &r);
    assert_int_equal(d.submitted, ATTN_OK);
    assert_int_equal(d.reason, ATTN_REASON_ERROR);
    assert_int_equal(d.error.status, ATTN_E_SESSION_BUSY);
    assert_int_equal(d.steps, 0);
    run_resume(h);
    run_wait(h);
    assert_int_equal(held.reason, ATTN_REASON_LENGTH);
    assert_int_equal(info_of(engine, "a").length, 15);
    run_free(&held);
    attn_engine_close(engine);
}

/* Those who wait are served in the order in which they came. */
static void test_waiting_in_order(void **state)
{
    (void)state;
    enum { WAITERS = 20 };
    attn_engine *engine = run_open((run_setup){0});
    run held, results[WAITERS];
    run_handle *waiters[WAITERS];
    append(engine, "a", 1);
    attn_request r = steps("a", 1, 0);
    run_handle *h = run_start_held(engine, &r, &held, 0);
    r = attn_request_init(ATTN_JOB_PREFILL);
    r.session = "a";
    r.inputs = rows;
    r.input_size = HIDDEN;
    r.wait_ms = MINUTE;
    for (size_t i = 0; i < WAITERS; i++) {
        r.n_inputs = i + 1;
        waiters[i] = run_start(engine, &r, &results[i]);
        assert_int_equal(results[i].submitted, ATTN_OK);
    }
    run_resume(h);
    run_wait(h);
    uint64_t length = 2;
    for (size_t i = 0; i < WAITERS; i++) {
        run_wait(waiters[i]);
        length += i + 1;
        assert_int_equal(results[i].reason, ATTN_REASON_LENGTH);
        assert_int_equal(results[i].session.length, length);
        run_free(&results[i]);
    }
    run_free(&held);
    check_usable(engine, "a", length);
    attn_engine_close(engine);
}

/* What a waiting job asks for is judged when its turn has come. */
static void test_admission_after_a_wait(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    run held, late, much;
    append(engine, "a", 10);
    attn_request r = steps("a", 5, 0);
    run_handle *h = run_start_held(engine, &r, &held, 0);
    r = steps("a", 1, MINUTE);
    r.if_length = 10;
    run_handle *l = run_start(engine, &r, &late);
    r = steps("a", 40000, MINUTE); /* more than the context holds */
    run_handle *m = run_start(engine, &r, &much);
    run_resume(h);
    run_wait(h);
    run_wait(l);
    run_wait(m);
    assert_int_equal(late.error.status, ATTN_E_LENGTH_MISMATCH);
    assert_int_equal(late.error.details[0].value, 15);
    assert_int_equal(much.error.status, ATTN_E_CONTEXT_LENGTH);
    check_usable(engine, "a", 15);
    run_free(&held);
    run_free(&late);
    run_free(&much);
    attn_engine_close(engine);
}

static void test_cancel_of_one_that_waits(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    run held, waiting;
    append(engine, "a", 10);
    attn_request r = steps("a", 5, 0);
    run_handle *h = run_start_held(engine, &r, &held, 0);
    r.wait_ms = MINUTE;
    run_handle *w = run_start(engine, &r, &waiting);
    run_cancel(w);
    run_wait(w);
    assert_int_equal(waiting.reason, ATTN_REASON_CANCELLED);
    assert_int_equal(info_of(engine, "a").length, 10);
    run_resume(h);
    run_wait(h);
    assert_int_equal(held.steps, 5);
    run_free(&held);
    run_free(&waiting);
    attn_engine_close(engine);
}

/* A cancel is of the job that runs; it does not wait for the next one to give the session up. */
static void test_cancel_lets_the_next_one_in(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    append(engine, "a", 10);
    for (int i = 0; i < 50; i++) {
        run held, next;
        attn_session_info info;
        attn_request r = steps("a", 5, MINUTE);
        run_handle *h = run_start_held(engine, &r, &held, 0);
        run_handle *n = run_start_held(engine, &r, &next, 0); /* stays when it is let in */
        assert_int_equal(attn_session_cancel(engine, "a", &info, NULL), ATTN_OK);
        run_wait(h);
        assert_int_equal(held.reason, ATTN_REASON_CANCELLED);
        run_cancel(n);
        run_wait(n);
        assert_int_equal(next.reason, ATTN_REASON_CANCELLED);
        run_free(&held);
        run_free(&next);
    }
    assert_int_equal(info_of(engine, "a").length, 10);
    attn_engine_close(engine);
}

static void test_delete_under_those_who_wait(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    for (int i = 0; i < 20; i++) {
        run held, waiting[3];
        run_handle *w[3];
        append(engine, "a", 30);
        attn_request r = steps("a", 5, 0);
        run_handle *h = run_start_held(engine, &r, &held, 0);
        r.wait_ms = MINUTE;
        for (int k = 0; k < 3; k++)
            w[k] = run_start(engine, &r, &waiting[k]);
        assert_int_equal(attn_session_delete(engine, "a", NULL), ATTN_OK);
        check_unused(engine);
        run_wait(h);
        assert_int_equal(held.reason, ATTN_REASON_CANCELLED);
        run_free(&held);
        for (int k = 0; k < 3; k++) {
            run_wait(w[k]);
            assert_int_equal(waiting[k].reason, ATTN_REASON_CANCELLED);
            assert_int_equal(waiting[k].steps, 0);
            run_free(&waiting[k]);
        }
    }
    attn_engine_close(engine);
}

/* The prefill that makes a session fails, or is cancelled. Who waits for the session begins anew: a
 * decode finds none, a prefill makes one, as it asks for it, and what comes next goes on with that. */
static void test_waiting_for_what_is_never_made(void **state)
{
    (void)state;
    enum { SIZE = 96, ROWS = 400 };
    attn_engine *engine = run_open((run_setup){.model = "chain3", .n_threads = 1});
    static float wide[ROWS * SIZE];
    attn_philox_uniform(4, "wide", 1.0f, 0, ROWS * SIZE, wide);
    for (size_t i = 0; i < SIZE; i++)
        wide[(ROWS - 1) * SIZE + i] = 3e38f;
    for (int i = 0; i < 4; i++) {
        run made, results[4];
        run_handle *waiting[4];
        char model[] = "chain3"; /* lives no longer than the submission */
        attn_request makes = attn_request_init(ATTN_JOB_PREFILL), decodes = steps("a", 2, MINUTE);
        makes.session = "a";
        makes.inputs = wide;
        makes.n_inputs = ROWS;
        makes.input_size = SIZE;
        makes.has_kv_dtype = true;
        makes.kv_dtype = ATTN_Q8;
        run_handle *first = run_start(engine, &makes, &made);
        makes.n_inputs = 20;
        makes.has_kv_dtype = false;
        makes.model = i < 2 ? model : NULL;
        makes.wait_ms = MINUTE;
        for (int k = 0; k < 4; k++)
            waiting[k] = run_start(engine, k % 2 == 0 ? &decodes : &makes, &results[k]);
        memset(model, 'x', sizeof model - 1);
        if (i % 2 != 0)
            run_cancel(first);
        run_wait(first);
        assert_int_not_equal(made.reason, ATTN_REASON_LENGTH);
        for (int k = 0; k < 4; k++) {
            run_wait(waiting[k]);
            assert_int_equal(results[k].error.status, k == 0 ? ATTN_E_SESSION_NOT_FOUND : ATTN_OK);
            assert_true(k == 0 || results[k].reason == ATTN_REASON_LENGTH);
        }
        assert_int_equal(info_of(engine, "a").kv.dtype, ATTN_F32);
        assert_int_equal(info_of(engine, "a").length, 42);
        run v = run_verify(engine, "a");
        assert_true(v.bit_identical);
        run_free(&v);
        run_free(&made);
        for (int k = 0; k < 4; k++)
            run_free(&results[k]);
        assert_int_equal(attn_session_delete(engine, "a", NULL), ATTN_OK);
        check_unused(engine);
    }
    attn_engine_close(engine);
}

/* ------------------------------------------------------------------------- limits and timeouts */

static void test_queue_full(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){.queue = 2});
    run a, b;
    append(engine, "a", 1);
    append(engine, "b", 1);
    append(engine, "c", 1);
    attn_request ra = steps("a", 1, 0), rb = steps("b", 1, 0), rc = steps("c", 1, 0);
    run_handle *ha = run_start_held(engine, &ra, &a, 0), *hb = run_start_held(engine, &rb, &b, 0);
    run c = run_job(engine, &rc);
    assert_int_equal(c.submitted, ATTN_E_QUEUE_FULL);
    attn_stats stats;
    attn_engine_stats(engine, &stats);
    assert_int_equal(stats.queue_depth, 2);
    run_resume(ha);
    run_wait(ha);
    c = run_job(engine, &rc);
    assert_int_equal(c.reason, ATTN_REASON_LENGTH);
    run_resume(hb);
    run_wait(hb);
    attn_engine_stats(engine, &stats);
    assert_int_equal(stats.queue_depth, 0);
    run_free(&a);
    run_free(&b);
    run_free(&c);
    attn_engine_close(engine);
}

static void test_stalled(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){.stall_timeout_ms = 40});
    append(engine, "a", 10);
    run d;
    attn_request r = steps("a", 100, 0);
    run_handle *h = run_start_held(engine, &r, &d, 3);
    run_wait(h);
    assert_int_equal(d.reason, ATTN_REASON_STALLED);
    assert_int_equal(d.error.status, ATTN_OK);
    assert_int_equal(d.steps, 3);
    check_usable(engine, "a", 13);
    run_free(&d);
    attn_engine_close(engine);
}

/* ---------------------------------------------------------------------------------- shutdown */

static void test_shutdown(void **state)
{
    (void)state;
    enum { JOBS = 6 };
    for (int round = 0; round < 2; round++) {
        attn_engine *engine = run_open((run_setup){0});
        run results[JOBS];
        run_handle *jobs[JOBS];
        char id[8];
        for (int i = 0; i < JOBS; i++) {
            snprintf(id, sizeof id, "s%d", i % 4);
            if (i < 4)
                append(engine, id, 300);
            attn_request r = steps(id, FOR_EVER, MINUTE); /* the last two wait */
            jobs[i] = i % 2 ? run_start(engine, &r, &results[i])
                            : run_start_held(engine, &r, &results[i], 0);
        }
        run_wait_steps(jobs[1], 5);
        if (round == 0) {
            attn_engine_shutdown(engine);
            attn_request r = steps("s0", 1, 0);
            run late = run_job(engine, &r);
            assert_int_equal(late.submitted, ATTN_E_SHUTTING_DOWN);
            attn_session_info info;
            assert_int_equal(
                attn_session_fork(engine, "s0", "x", UINT64_MAX, UINT64_MAX, &info, NULL),
                ATTN_E_SHUTTING_DOWN);
        } else {
            attn_engine_close(engine); /* results outlive it */
        }
        for (int i = 0; i < JOBS; i++) {
            run_wait(jobs[i]);
            assert_int_equal(results[i].reason, ATTN_REASON_SHUTDOWN);
            assert_int_equal(results[i].steps, results[i].n_outputs);
            run_free(&results[i]);
        }
        if (round == 0) {
            attn_engine_shutdown(engine);
            assert_int_equal(info_of(engine, "s1").state, ATTN_SESSION_IDLE);
            attn_engine_close(engine);
        }
    }
}

/* -------------------------------------------------------------------------------- the protocol */

typedef struct watcher {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    unsigned n_ready, n_steps, n_wrong, n_done;
    bool was_ready;
    uint64_t length;
    attn_job *to_cancel;
} watcher;

static bool watch_ready(void *ctx)
{
    watcher *w = ctx;
    pthread_mutex_lock(&w->mutex);
    w->n_wrong += w->n_done > 0;
    /* Every third time it must be asked again. */
    w->was_ready = w->n_ready++ % 3 != 2;
    bool ready = w->was_ready;
    pthread_mutex_unlock(&w->mutex);
    return ready;
}

static void watch_step(void *ctx, const attn_step *step)
{
    watcher *w = ctx;
    pthread_mutex_lock(&w->mutex);
    w->n_wrong += !w->was_ready || w->n_done > 0;
    w->n_wrong += step->step != w->n_steps || step->position != w->length;
    w->n_wrong += step->length != ++w->length || step->output_size != HIDDEN;
    w->n_wrong += (_mm_getcsr() & 0xffc0u) != 0x9fc0u; /* the mode that all computing is done in */
    w->n_steps++;
    if (w->to_cancel != NULL && w->n_steps == 3)
        attn_job_cancel(w->to_cancel); /* allowed from here */
    pthread_mutex_unlock(&w->mutex);
}

static void watch_done(void *ctx)
{
    watcher *w = ctx;
    pthread_mutex_lock(&w->mutex);
    w->n_done++;
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->mutex);
}

static void wait_until_done(watcher *w, attn_job *to_wake)
{
    pthread_mutex_lock(&w->mutex);
    while (w->n_done == 0) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec = (until.tv_nsec + 1000000) % 1000000000;
        until.tv_sec += until.tv_nsec < 1000000;
        pthread_cond_timedwait(&w->cond, &w->mutex, &until);
        pthread_mutex_unlock(&w->mutex);
        if (to_wake != NULL)
            attn_job_wake(to_wake);
        pthread_mutex_lock(&w->mutex);
    }
    pthread_mutex_unlock(&w->mutex);
}

static void test_sink(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    append(engine, "a", 10);
    for (int way = 0; way < 3; way++) {
        watcher w = {.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
        w.length = info_of(engine, "a").length;
        attn_sink sink = {.ctx = &w, .ready = watch_ready, .step = watch_step, .done = watch_done};
        if (way == 2)
            sink.ready = NULL, w.was_ready = true;
        attn_request r = steps("a", 20, 0);
        attn_job *job = NULL;
        pthread_mutex_lock(&w.mutex);
        assert_int_equal(attn_engine_submit(engine, &r, &sink, &job, NULL), ATTN_OK);
        assert_string_equal(attn_job_session(job), "a");
        w.to_cancel = way == 1 ? job : NULL;
        pthread_mutex_unlock(&w.mutex);
        wait_until_done(&w, job);
        const attn_result *result = attn_job_result(job);
        assert_int_equal(w.n_wrong, 0);
        assert_int_equal(w.n_done, 1);
        assert_int_equal(result->reason, way == 1 ? ATTN_REASON_CANCELLED : ATTN_REASON_LENGTH);
        assert_int_equal(result->steps, w.n_steps);
        assert_int_equal(w.n_steps, way == 1 ? 3 : 20);
        assert_true(result->queue_ms >= 0 && result->compute_ms >= 0);
        attn_job_wake(job); /* harmless now */
        attn_job_cancel(job);
        attn_job_release(job);
    }
    attn_engine_close(engine);
}

/* A host that gives its reference back at once still hears of everything. */
static void test_released_early(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    append(engine, "a", 10);
    watcher w = {.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    w.length = 10;
    w.was_ready = true;
    attn_sink sink = {.ctx = &w, .step = watch_step, .done = watch_done};
    attn_request r = steps("a", 200, 0);
    attn_job *job = NULL;
    assert_int_equal(attn_engine_submit(engine, &r, &sink, &job, NULL), ATTN_OK);
    attn_job_release(job);
    wait_until_done(&w, NULL);
    assert_int_equal(w.n_wrong, 0);
    assert_int_equal(w.n_steps, 200);
    check_usable(engine, "a", 210);
    attn_engine_close(engine);
}

/* ------------------------------------------------------------------------------------- a crowd */

#define N_THREADS 4
#define N_SESSIONS 6
#ifdef __SANITIZE_THREAD__
#define ROUNDS 150
#else
#define ROUNDS 600
#endif

typedef struct member {
    attn_engine *engine;
    uint32_t random;
    _Atomic unsigned *n_wrong;
    pthread_t thread;
} member;

static uint32_t draw(member *m, uint32_t n)
{
    m->random = m->random * 1664525u + 1013904223u;
    return (m->random >> 10) % n;
}

static bool expected(attn_status status)
{
    return status == ATTN_OK || status == ATTN_E_SESSION_BUSY || status == ATTN_E_SESSION_EXISTS ||
           status == ATTN_E_SESSION_NOT_FOUND || status == ATTN_E_KV_BUDGET ||
           status == ATTN_E_INVALID || status == ATTN_E_LENGTH_MISMATCH;
}

static attn_status run_something(member *m, const char *id)
{
    attn_request r = attn_request_init((attn_job_kind)draw(m, 3));
    r.session = id;
    r.wait_ms = draw(m, 2) ? 20 : 0;
    if (r.kind == ATTN_JOB_PREFILL || (r.kind == ATTN_JOB_DECODE && draw(m, 2))) {
        r.inputs = rows;
        r.n_inputs = 1 + draw(m, 60);
        r.input_size = HIDDEN;
    } else {
        r.steps = 1 + draw(m, 40);
    }
    run result;
    run_handle *h = run_start(m->engine, &r, &result);
    attn_status status = result.submitted;
    if (status == ATTN_OK && draw(m, 4) == 0)
        run_cancel(h);
    run_wait(h);
    if (result.submitted == ATTN_OK && result.reason == ATTN_REASON_ERROR)
        status = result.error.status;
    if (r.kind == ATTN_JOB_VERIFY && result.submitted == ATTN_OK &&
        result.reason == ATTN_REASON_LENGTH)
        *m->n_wrong += !result.bit_identical;
    run_free(&result);
    return status;
}

static void *crowd_main(void *arg)
{
    member *m = arg;
    for (int i = 0; i < ROUNDS; i++) {
        char id[8], other[8];
        attn_session_info info, infos[4];
        attn_totals t;
        attn_status status = ATTN_OK;
        bool more;
        snprintf(id, sizeof id, "s%u", draw(m, N_SESSIONS));
        snprintf(other, sizeof other, "s%u", draw(m, N_SESSIONS));
        switch (draw(m, 10)) {
        case 0:
            status = attn_session_delete(m->engine, id, NULL);
            break;
        case 1:
            status = attn_session_truncate(m->engine, id, draw(m, 30), UINT64_MAX, &info, NULL);
            break;
        case 2:
            status = attn_session_cancel(m->engine, id, &info, NULL);
            break;
        case 3:
            status = attn_session_fork(m->engine, id, other, UINT64_MAX, UINT64_MAX, &info, NULL);
            break;
        case 4:
            attn_session_list(m->engine, NULL, 4, infos, &more);
            attn_engine_totals(m->engine, &t);
            *m->n_wrong += t.allocated_bytes + t.reserved_bytes > t.budget_bytes;
            break;
        default:
            status = run_something(m, id);
            break;
        }
        *m->n_wrong += !expected(status);
    }
    return NULL;
}

static void test_crowd(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){.kv_memory_bytes = 300u << 10});
    member members[N_THREADS];
    _Atomic unsigned n_wrong = 0;
    for (unsigned i = 0; i < N_THREADS; i++) {
        members[i] = (member){.engine = engine, .random = i * 7919 + 1, .n_wrong = &n_wrong};
        assert_int_equal(pthread_create(&members[i].thread, NULL, crowd_main, &members[i]), 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++)
        pthread_join(members[i].thread, NULL);
    assert_int_equal(n_wrong, 0);
    for (int i = 0; i < N_SESSIONS; i++) {
        char id[8];
        snprintf(id, sizeof id, "s%d", i);
        run v = run_verify(engine, id);
        assert_true(v.submitted != ATTN_OK || v.bit_identical);
        (void)!attn_session_delete(engine, id, NULL);
    }
    check_unused(engine);
    attn_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancel_while_decoding),
        cmocka_unit_test(test_cancel_of_what_does_not_run),
        cmocka_unit_test(test_cancel_while_parked),
        cmocka_unit_test(test_parking_changes_nothing),
        cmocka_unit_test(test_cancelled_prefill),
        cmocka_unit_test(test_delete_under_a_job),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_waiting_in_order),
        cmocka_unit_test(test_admission_after_a_wait),
        cmocka_unit_test(test_cancel_of_one_that_waits),
        cmocka_unit_test(test_cancel_lets_the_next_one_in),
        cmocka_unit_test(test_delete_under_those_who_wait),
        cmocka_unit_test(test_waiting_for_what_is_never_made),
        cmocka_unit_test(test_queue_full),
        cmocka_unit_test(test_stalled),
        cmocka_unit_test(test_shutdown),
        cmocka_unit_test(test_sink),
        cmocka_unit_test(test_released_early),
        cmocka_unit_test(test_crowd),
    };
    return cmocka_run_group_tests(tests, make_rows, NULL);
}
