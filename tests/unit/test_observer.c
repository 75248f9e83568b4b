/* The observer: what it is told of sessions and steps, in which order, and what it is asked. */
#include "tests/unit/observer_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/engine_state.h"
#include "engine/sched/scheduler_state.h"

enum { HIDDEN = 96, KV_HEADS = 2, LAYERS = 3, HEAD_DIM = 20 };

static const recorded *next_event(const observer *o, size_t *at, attn_event_kind kind,
                                  const char *session, uint64_t length)
{
    assert_true(*at < o->n_events);
    const recorded *r = &o->events[(*at)++];
    if (r->kind != kind || strcmp(r->session, session) != 0 || r->length != length)
        fail_msg("event %zu: %s of %s, length %llu, instead of %s of %s, length %llu", *at - 1,
                 attn_event_kind_name(r->kind), r->session, (unsigned long long)r->length,
                 attn_event_kind_name(kind), session, (unsigned long long)length);
    /* 16 positions a page. */
    assert_true(r->kv_bytes >= r->length * 2 * LAYERS * KV_HEADS * HEAD_DIM * 4);
    return r;
}

static void test_events(void **state)
{
    (void)state;
    static observer o;
    attn_engine *engine = inside_open_chain();
    inside_inputs inputs = inside_long_inputs();
    attn_error err;
    attn_session_info info;
    observer_set(engine, &o);
    o.wanted = "a";
    o.selection = inside_everything(engine);
    /* Nothing is told, nor asked, while it is off. */
    inside_prefill(engine, "a", 20);
    run r = inside_steps(engine, "a", 3, NULL);
    run_free(&r);
    inside_delete(engine, "a");
    assert_int_equal(o.n_events + o.n_asked, 0);

    attn_engine_observe(engine, true);
    o.chunks = true;
    inside_prefill(engine, "a", 1000);
    attn_selection some = {.tensors = 1u << ATTN_TENSOR_PATTERN | 1u << ATTN_TENSOR_Z};
    r = inside_steps(engine, "a", 3, &some);
    assert_int_equal(attn_session_truncate(engine, "a", 500, OPEN_END, &info, &err), ATTN_OK);
    assert_int_equal(attn_session_fork(engine, "a", "f", 40, OPEN_END, &info, &err), ATTN_OK);
    inside_delete(engine, "f");
    attn_trace_release(
        inside_look(engine, "a", ATTN_TENSOR_Z, 0, 3, 4, 0, OPEN_END)); /* no event */
    inside_delete(engine, "a");

    size_t at = 0;
    next_event(&o, &at, ATTN_EVENT_CREATED, "a", 0);
    uint64_t n_done = 0;
    size_t n_chunks = 0;
    while (n_done < 1000) {
        const recorded *e = &o.events[at];
        next_event(&o, &at, ATTN_EVENT_PREFILL, "a", e->n_done < 1000 ? 0 : 1000);
        assert_true(e->n_done > n_done && e->n_positions == 1000);
        n_done = e->n_done;
        n_chunks++;
    }
    assert_int_equal(n_done, 1000);
    assert_true(n_chunks > 1); /* more than a batch's rows */
    for (uint64_t i = 0; i < 3; i++) {
        const recorded *e = next_event(&o, &at, ATTN_EVENT_STEP, "a", 1001 + i);
        assert_int_equal(e->step, i);
        assert_int_equal(e->position, 1000 + i);
        assert_false(e->has_token);
        inside_assert_within(r.traces[i], e->trace);
        assert_int_equal(e->trace->n_tensors,
                         3 * (size_t)__builtin_popcount(o.selection.tensors) - 2);
    }
    next_event(&o, &at, ATTN_EVENT_TRUNCATED, "a", 500);
    const recorded *forked = next_event(&o, &at, ATTN_EVENT_FORKED, "f", 40);
    assert_string_equal(forked->from, "a");
    assert_int_equal(forked->kv_bytes, info.kv.bytes);
    assert_int_equal(next_event(&o, &at, ATTN_EVENT_DELETED, "f", 0)->kv_bytes, 0);
    next_event(&o, &at, ATTN_EVENT_DELETED, "a", 0);
    assert_int_equal(at, o.n_events);
    assert_int_equal(o.n_asked, 3);
    /* What was retained outlives the session. */
    inside_assert_causal(o.events[at - 5].trace);
    run_free(&r);
    observer_forget(&o);

    /* A prefill that fails: its session comes and goes. */
    o.chunks = false;
    static float huge[20 * HIDDEN];
    memcpy(huge, inputs.rows, sizeof huge);
    for (size_t i = 17 * HIDDEN; i < 18 * HIDDEN; i++)
        huge[i] = 3e38f;
    r = run_prefill(engine, "bad", NULL, huge, 20, HIDDEN, ATTN_OUTPUT_NONE);
    assert_int_equal(r.error.status, ATTN_E_NON_FINITE);
    at = 0;
    next_event(&o, &at, ATTN_EVENT_CREATED, "bad", 0);
    next_event(&o, &at, ATTN_EVENT_DELETED, "bad", 0);
    assert_int_equal(at, o.n_events);

    /* Off again. */
    attn_engine_observe(engine, false);
    inside_prefill(engine, "a", 20);
    inside_delete(engine, "a");
    assert_int_equal(o.n_events, 2);
    observer_forget(&o);
    attn_engine_close(engine);
}

static void test_expiry_is_told(void **state)
{
    (void)state;
    static observer o;
    attn_engine *engine = inside_open_chain();
    inside_inputs inputs = inside_long_inputs();
    observer_set(engine, &o);
    attn_engine_observe(engine, true);
    attn_request request = inside_feed(ATTN_JOB_PREFILL, "mortal", &inputs, 0, 30, NULL);
    request.has_ttl = true;
    request.ttl_s = 1;
    run r = run_job(engine, &request);
    assert_int_equal(r.reason, ATTN_REASON_LENGTH);
    run_free(&r);
    pthread_mutex_lock(&o.mutex);
    while (o.n_events < 3)
        pthread_cond_wait(&o.cond, &o.mutex);
    pthread_mutex_unlock(&o.mutex);
    size_t at = 0;
    next_event(&o, &at, ATTN_EVENT_CREATED, "mortal", 0);
    next_event(&o, &at, ATTN_EVENT_PREFILL, "mortal", 30);
    assert_int_equal(next_event(&o, &at, ATTN_EVENT_EXPIRED, "mortal", 0)->kv_bytes, 0);
    attn_session_info info;
    assert_int_equal(attn_session_get(engine, "mortal", &info, NULL), ATTN_E_SESSION_NOT_FOUND);
    while (inside_account(engine) != 0) /* told first, then freed */
        inside_pause_us(1000);
    assert_int_equal(o.n_events, 3);
    observer_forget(&o);
    attn_engine_close(engine);
}

/* A deleted session's last steps are not told, nor asked for: in the next session's name they would
 * take what its steps are to be asked for. */
static void test_steps_of_a_deleted_session(void **state)
{
    (void)state;
    static observer o;
    attn_engine *engine = inside_open_chain();
    observer_set(engine, &o);
    inside_prefill(engine, "a", 20);
    inside_prefill(engine, "b", 20);
    attn_engine_observe(engine, true);
    attn_request r = attn_request_init(ATTN_JOB_DECODE);
    r.session = "a";
    r.steps = 3;
    run last, next;
    run_handle *held = run_start_held(engine, &r, &last, 0);
    attn_session *session = attn_sessions_find(engine->sessions, "a");
    assert_true(attn_sessions_remove(engine->sessions, session)); /* the job goes on for a moment */
    assert_int_equal(attn_session_fork(engine, "b", "a", OPEN_END, OPEN_END, NULL, NULL), ATTN_OK);
    run_resume(held);
    run_wait(held);
    assert_int_equal(last.n_outputs, 3);
    attn_sessions_unreference(engine->sessions, session);
    assert_int_equal(o.n_asked, 0);
    next = run_job(engine, &r);
    attn_engine_observe(engine, false);
    assert_int_equal(o.n_asked, 3);
    assert_int_equal(o.n_events, 1 + 1 + 3);
    run_free(&last);
    run_free(&next);
    observer_forget(&o);
    attn_engine_close(engine);
}

/* Beside others, captures get a quarter of the time, and may be ahead of that by the burst. Whatever
 * they take alone is not held against them for longer than the burst. */
static void test_time_for_captures(void **state)
{
    (void)state;
    static const double costs[] = {1e4, 3e6, 2.4e7};
    for (size_t i = 0; i < sizeof costs / sizeof costs[0]; i++) {
        const double cost = costs[i], step = 1e6;
        double now = 1e12, until = attn_capture_until(0, now, 5e10), spent = 0;
        const double begin = now, end = begin + 2e10;
        until =
            attn_capture_until(until, now, cost); /* of all that was alone the last one counts */
        assert_true(until <= now + ATTN_CAPTURE_BURST_NS + ATTN_CAPTURE_PART * cost);
        size_t n = 0;
        while (now < end) {
            now += step;
            if (!attn_capture_fits(until, now, cost))
                continue;
            until = attn_capture_until(until, now, 1.5 * cost); /* longer than planned */
            now += 1.5 * cost;
            spent += 1.5 * cost;
            n++;
            const double due = (now - begin + ATTN_CAPTURE_BURST_NS) / ATTN_CAPTURE_PART;
            assert_true(spent <= due + 1.5 * cost);
        }
        assert_true(n > 0);
        /* And they get it. */
        assert_true(spent >= fmin(0.9 * (end - begin) / ATTN_CAPTURE_PART,
                                  0.9 * (end - begin) * 1.5 * cost / (step + 1.5 * cost)));
    }
    /* What cannot fit into the burst is never captured beside others. */
    assert_false(attn_capture_fits(0, 1e12, 1.01 * ATTN_CAPTURE_BURST_NS / ATTN_CAPTURE_PART));
    assert_true(attn_capture_fits(0, 1e12, ATTN_CAPTURE_BURST_NS / ATTN_CAPTURE_PART));
}

/* An observer may want what cannot be: then the step has no trace. */
static void test_wants_what_cannot_be(void **state)
{
    (void)state;
    static observer o;
    attn_engine *engine = inside_open_chain();
    observer_set(engine, &o);
    o.wanted = "a";
    inside_prefill(engine, "a", 20);
    attn_engine_observe(engine, true);
    attn_selection wrong[] = {
        {.tensors = 0},
        {.tensors = 1u << ATTN_TENSOR_RESID_POST},
        {.tensors = 1u << ATTN_TENSOR_KEY},
        {.tensors = 1u << ATTN_TENSOR_Q | 1u << ATTN_TENSOR_VALUE},
        {.tensors = 1u << ATTN_TENSOR_Q, .some_layers = true},
        {.tensors = 1u << ATTN_TENSOR_Q, .some_heads = true},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        o.selection = wrong[i];
        run r = inside_steps(engine, "a", 1, NULL);
        run_free(&r);
    }
    attn_engine_observe(engine, false);
    run r = inside_steps(engine, "a", 1, NULL);
    run_free(&r);
    assert_int_equal(o.n_events, sizeof wrong / sizeof wrong[0]);
    for (size_t i = 0; i < o.n_events; i++)
        assert_null(o.events[i].trace);
    observer_forget(&o);
    attn_engine_close(engine);
}

static void test_tokens_are_told(void **state)
{
    (void)state;
    static observer o;
    attn_engine *engine = run_open((run_setup){.model = "qwen3-untied", .seed = 7});
    inside_inputs inputs = inside_inputs_of("lm-qwen3-untied");
    observer_set(engine, &o);
    attn_engine_observe(engine, true);
    run p = inside_fed(engine, ATTN_JOB_PREFILL, "a", &inputs, 0, 30, NULL);
    run d = inside_steps(engine, "a", 4, NULL);
    run fed = inside_fed(engine, ATTN_JOB_DECODE, "a", &inputs, 30, 2, NULL);
    attn_engine_observe(engine, false);
    assert_int_equal(o.n_events, 2 + 6);
    for (size_t i = 0; i < 6; i++) {
        const recorded *e = &o.events[2 + i];
        assert_int_equal(e->kind, ATTN_EVENT_STEP);
        assert_true(e->has_token);
        assert_int_equal(e->token, i < 4 ? d.tokens[i] : inputs.tokens[30 + i - 4]);
        assert_int_equal(e->length, 31 + i);
    }
    run_free(&p);
    run_free(&d);
    run_free(&fed);
    observer_forget(&o);
    attn_engine_close(engine);
}

/* ------------------------------------------------------------------------------ the order */

typedef struct worker {
    attn_engine *engine;
    const char *session;
    inside_inputs inputs;
    _Atomic bool *over;
    pthread_t thread;
} worker;

/* Deletes sessions until it is over, which others make again at once. */
static void *delete_all(void *arg)
{
    worker *w = arg;
    do {
        attn_status status = attn_session_delete(w->engine, w->session, NULL);
        (void)status;
    } while (!*w->over);
    return NULL;
}

static void *make_again(void *arg)
{
    worker *w = arg;
    for (int i = 0; i < 100; i++) {
        attn_request r = inside_feed(ATTN_JOB_PREFILL, w->session, &w->inputs, 0, 3, NULL);
        run made = run_job(w->engine, &r);
        run_free(&made);
        attn_session_info info;
        attn_status status =
            attn_session_fork(w->engine, "parent", w->session, 5, OPEN_END, &info, NULL);
        (void)status;
    }
    return NULL;
}

/* Of one id's sessions, one after the other, each comes, lives and goes in order. */
static void test_order_of_events(void **state)
{
    (void)state;
    static observer o;
    attn_engine *engine = inside_open_chain();
    _Atomic bool over = false;
    inside_inputs inputs = inside_long_inputs();
    inside_prefill(engine, "parent", 20);
    observer_set(engine, &o);
    o.chunks = true;
    attn_engine_observe(engine, true);
    worker workers[4];
    for (size_t i = 0; i < 4; i++) {
        workers[i] = (worker){.engine = engine, .session = "x", .over = &over, .inputs = inputs};
        assert_int_equal(
            pthread_create(&workers[i].thread, NULL, i < 2 ? delete_all : make_again, &workers[i]),
            0);
    }
    for (size_t i = 2; i < 4; i++)
        pthread_join(workers[i].thread, NULL);
    over = true;
    for (size_t i = 0; i < 2; i++)
        pthread_join(workers[i].thread, NULL);
    attn_engine_observe(engine, false);
    size_t n_sessions = 0;
    bool present = false;
    for (size_t i = 0; i < o.n_events; i++) {
        const attn_event_kind kind = o.events[i].kind;
        const bool comes = kind == ATTN_EVENT_CREATED || kind == ATTN_EVENT_FORKED;
        assert_string_equal(o.events[i].session, "x");
        assert_int_equal(present, !comes);
        present = kind != ATTN_EVENT_DELETED;
        n_sessions += comes;
    }
    assert_true(n_sessions > 1);
    observer_forget(&o);
    attn_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_expiry_is_told),
        cmocka_unit_test(test_wants_what_cannot_be),
        cmocka_unit_test(test_tokens_are_told),
        cmocka_unit_test(test_steps_of_a_deleted_session),
        cmocka_unit_test(test_time_for_captures),
        cmocka_unit_test(test_order_of_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
