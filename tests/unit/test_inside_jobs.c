/* Looking inside, the jobs: what becomes of looks when sessions and engines end, and beside other
 * work. */
#include "tests/unit/observer_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <string.h>

enum { KV_HEADS = 2, LAYERS = 3, HEAD_DIM = 20 };

static uint64_t shared_bytes(attn_engine *engine, const char *session)
{
    attn_session_info info;
    assert_int_equal(attn_session_get(engine, session, &info, NULL), ATTN_OK);
    return info.kv.shared_bytes;
}

/* What pending looks give: cancelled, their session deleted, truncated before and behind their end.
 * None of them holds anything of the budget, and the deleted session's pages go at once. */
static void test_pending_looks(void **state)
{
    (void)state;
    enum { PENDING = 7 };
    static observer o;
    attn_engine *engine = inside_open_chain();
    inside_inputs inputs = inside_long_inputs();
    attn_selection all = inside_everything(engine);
    attn_error err;
    observer_set(engine, &o);
    run a = inside_fed(engine, ATTN_JOB_PREFILL, "a", &inputs, 0, 101, &all);
    run b = inside_fed(engine, ATTN_JOB_PREFILL, "b", &inputs, 100, 101, &all);
    run_handle *clock = observer_freeze(engine, &o);
    uint64_t before = inside_account(engine);
    assert_int_equal(shared_bytes(engine, "b"), 0);

    attn_request request[] = {
        inside_look_request("a", ATTN_TENSOR_PATTERN, 2, 0, OPEN_END, 0, OPEN_END),
        inside_look_request("a", ATTN_TENSOR_ATTN_OUT, 2, 50, OPEN_END, 0, OPEN_END),
        inside_look_request("b", ATTN_TENSOR_Z, 1, 0, OPEN_END, 0, OPEN_END),
        inside_look_request("b", ATTN_TENSOR_KEY, 1, 0, OPEN_END, 5, OPEN_END),
        inside_look_request("b", ATTN_TENSOR_KEY, 1, 0, OPEN_END, 0, OPEN_END),
        inside_look_request("b", ATTN_TENSOR_Z, 1, 0, 20, 0, OPEN_END),
        inside_look_request("b", ATTN_TENSOR_KEY, 1, 0, OPEN_END, 0, 20),
    };
    static const attn_status expected[PENDING] = {ATTN_OK,
                                                  ATTN_E_SESSION_NOT_FOUND,
                                                  ATTN_E_LENGTH_MISMATCH,
                                                  ATTN_E_LENGTH_MISMATCH,
                                                  ATTN_OK,
                                                  ATTN_OK,
                                                  ATTN_OK};
    run result[PENDING];
    run_handle *handle[PENDING];
    for (size_t i = 0; i < PENDING; i++)
        handle[i] = run_start(engine, &request[i], &result[i]);
    attn_stats stats;
    attn_engine_stats(engine, &stats);
    assert_int_equal(stats.queue_depth, PENDING + 1); /* and the clock */
    assert_int_equal(inside_account(engine), before);
    assert_int_equal(shared_bytes(engine, "b"), 0);
    run_cancel(handle[0]);
    run_cancel(handle[4]);
    attn_session_info info;
    assert_int_equal(attn_session_get(engine, "a", &info, NULL), ATTN_OK);
    inside_delete(engine, "a");
    assert_true(inside_account(engine) <= before - info.kv.bytes - info.inputs_bytes);
    assert_int_equal(attn_session_truncate(engine, "b", 20, OPEN_END, NULL, &err), ATTN_OK);
    observer_thaw(engine, &o, clock);
    for (size_t i = 0; i < PENDING; i++) {
        run_wait(handle[i]);
        assert_int_equal(result[i].submitted, ATTN_OK);
        assert_int_equal(result[i].error.status, expected[i]);
        assert_int_equal(result[i].reason, i % 4 == 0               ? ATTN_REASON_CANCELLED
                                           : expected[i] == ATTN_OK ? ATTN_REASON_LENGTH
                                                                    : ATTN_REASON_ERROR);
        assert_int_equal(result[i].trace != NULL, result[i].reason == ATTN_REASON_LENGTH);
    }
    inside_assert_within(result[5].trace, b.trace);
    assert_memory_equal(result[6].trace->tensors[0].data,
                        inside_tensor(b.trace, ATTN_TENSOR_ROT_K, 1)->data,
                        20 * KV_HEADS * HEAD_DIM * sizeof(float));
    for (size_t i = 0; i < PENDING; i++)
        run_free(&result[i]);
    run_free(&a);
    run_free(&b);
    attn_engine_stats(engine, &stats);
    assert_int_equal(stats.queue_depth + stats.tensor_in_flight, 0);
    assert_int_equal(shared_bytes(engine, "b"), 0);
    inside_delete(engine, "b");
    inside_delete(engine, "clock");
    assert_int_equal(inside_account(engine), 0);
    observer_forget(&o);
    attn_engine_close(engine);
}

/* A trace outlives its job, session and engine; a pending look ends with the engine. */
static void test_shutdown(void **state)
{
    (void)state;
    static observer o;
    attn_engine *engine = inside_open_chain();
    observer_set(engine, &o);
    inside_prefill(engine, "a", 100);
    attn_trace *kept = inside_look(engine, "a", ATTN_TENSOR_PATTERN, 1, 0, OPEN_END, 0, OPEN_END);
    run_handle *clock = observer_freeze(engine, &o);
    attn_request request =
        inside_look_request("a", ATTN_TENSOR_PATTERN, 1, 0, OPEN_END, 0, OPEN_END);
    run result[4];
    run_handle *handle[4];
    for (size_t i = 0; i < 4; i++)
        handle[i] = run_start(engine, &request, &result[i]);
    attn_engine_shutdown(engine);
    run refused = run_job(engine, &request);
    assert_int_equal(refused.submitted, ATTN_E_SHUTTING_DOWN);
    observer_thaw(engine, &o, clock);
    for (size_t i = 0; i < 3; i++) {
        run_wait(handle[i]);
        assert_int_equal(result[i].reason, ATTN_REASON_SHUTDOWN);
        assert_null(result[i].trace);
    }
    observer_forget(&o);
    attn_engine_close(engine);
    run_wait(handle[3]); /* its job is readable after the engine's end */
    assert_int_equal(result[3].reason, ATTN_REASON_SHUTDOWN);
    assert_null(result[3].trace);
    inside_assert_causal(kept);
    assert_int_equal(kept->n_rows, 100);
    attn_trace_release(kept);
}

/* Close without shutdown, while looks are pending. */
static void test_close_with_looks_at_work(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        attn_engine *engine = inside_open_chain();
        inside_prefill(engine, "a", 200);
        attn_request request = inside_look_request("a", ATTN_TENSOR_Z, 2, 0, OPEN_END, 0, OPEN_END);
        run result[8];
        run_handle *handle[8];
        for (size_t i = 0; i < 8; i++)
            handle[i] = run_start(engine, &request, &result[i]);
        attn_engine_close(engine);
        for (size_t i = 0; i < 8; i++) {
            run_wait(handle[i]);
            assert_int_equal(result[i].submitted, ATTN_OK);
            if (result[i].reason == ATTN_REASON_LENGTH)
                assert_non_null(result[i].trace);
            else
                assert_int_equal(result[i].reason, ATTN_REASON_SHUTDOWN);
            assert_int_equal(result[i].trace != NULL, result[i].reason == ATTN_REASON_LENGTH);
            run_free(&result[i]);
        }
    }
}

/* A cancel at any moment leaves no part of a trace and nothing in the account. */
static void test_cancels_at_any_moment(void **state)
{
    (void)state;
    attn_engine *engine = inside_open_chain();
    inside_inputs inputs = inside_long_inputs();
    attn_selection all = inside_everything(engine);
    inside_prefill(engine, "a", 200);
    uint64_t account = inside_account(engine);
    size_t n_cancelled = 0;
    for (int round = 0; round < 24; round++) {
        attn_request look =
            inside_look_request("a", ATTN_TENSOR_SCORES, 2, 0, OPEN_END, 0, OPEN_END);
        attn_request fill = inside_feed(ATTN_JOB_PREFILL, "b", &inputs, 0, 150, &all);
        fill.trace.tensors &= ~(1u << ATTN_TENSOR_SCORES);
        run result[2];
        run_handle *handle[] = {run_start(engine, &look, &result[0]),
                                run_start(engine, &fill, &result[1])};
        inside_pause_us(round * 2000);
        for (size_t i = 0; i < 2; i++) {
            run_cancel(handle[i]);
            run_wait(handle[i]);
            assert_int_equal(result[i].submitted, ATTN_OK);
            assert_int_equal(result[i].trace != NULL, result[i].reason == ATTN_REASON_LENGTH);
            n_cancelled += result[i].reason == ATTN_REASON_CANCELLED;
            run_free(&result[i]);
        }
        if (result[1].reason == ATTN_REASON_LENGTH)
            inside_delete(engine, "b");
        assert_int_equal(inside_account(engine), account);
    }
    print_message("%zu of 48 were cancelled\n", n_cancelled);
    inside_delete(engine, "a");
    assert_int_equal(inside_account(engine), 0);
    attn_engine_close(engine);
}

/* -------------------------------------------------------------------------- side by side */

/* A job that waits for a busy session is not ended before its turn. */
static void test_waiting_beside_looks(void **state)
{
    (void)state;
    attn_engine *engine = inside_open_chain();
    inside_inputs inputs = inside_long_inputs();
    attn_selection some = {.tensors = 1u << ATTN_TENSOR_ROT_Q};
    inside_prefill(engine, "a", 30);
    attn_request decode = attn_request_init(ATTN_JOB_DECODE);
    decode.session = "a";
    decode.steps = 5;
    run steps, after;
    run_handle *held = run_start_held(engine, &decode, &steps, 0);
    attn_request fill = inside_feed(ATTN_JOB_PREFILL, "a", &inputs, 30, 7, &some);
    fill.wait_ms = 60000;
    run_handle *waiting = run_start(engine, &fill, &after);
    assert_int_equal(after.submitted, ATTN_OK);
    attn_trace *look = inside_look(engine, "a", ATTN_TENSOR_ROT_Q, 0, 0, OPEN_END, 0, OPEN_END);
    assert_int_equal(look->n_rows, 30); /* what is committed */
    attn_trace_release(look);
    run_resume(held);
    run_wait(held);
    run_wait(waiting);
    assert_int_equal(steps.n_outputs, 5);
    assert_int_equal(after.reason, ATTN_REASON_LENGTH);
    assert_int_equal(after.session.length, 42);
    assert_non_null(after.trace);
    assert_int_equal(after.trace->position, 35);
    look = inside_look(engine, "a", ATTN_TENSOR_ROT_Q, 1, 35, OPEN_END, 0, OPEN_END);
    inside_assert_within(look, after.trace);
    attn_trace_release(look);
    run_free(&steps);
    run_free(&after);
    attn_engine_close(engine);
}

/* Who works without pause until the other side has done its part. */
typedef struct worker {
    attn_engine *engine;
    const char *session;
    bool looks;
    _Atomic bool *over;
    const attn_trace *expected; /* what a look must see */
    _Atomic size_t n_done;
    pthread_t thread;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    attn_selection some = {.tensors = 1u << ATTN_TENSOR_PATTERN};
    while (!*w->over) {
        if (w->looks) {
            attn_request r =
                inside_look_request(w->session, ATTN_TENSOR_PATTERN, 2, 40, 60, 0, OPEN_END);
            run look = run_job(w->engine, &r);
            if (look.reason == ATTN_REASON_LENGTH && look.trace != NULL)
                w->n_done++;
            run_free(&look);
            continue;
        }
        attn_request d = attn_request_init(ATTN_JOB_DECODE);
        d.session = w->session;
        d.steps = 100;
        d.has_trace = w->n_done % 2 == 1;
        d.trace = some;
        run r = run_job(w->engine, &d);
        run_free(&r);
        w->n_done++;
        attn_status status =
            attn_session_truncate(w->engine, w->session, 100, OPEN_END, NULL, NULL);
        (void)status;
    }
    return NULL;
}

static void start_workers(worker *workers, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
}

/* Once each has done something. */
static void join_workers(worker *workers, size_t n, _Atomic bool *over)
{
    for (size_t i = 0; i < n; i++) {
        while (workers[i].n_done == 0)
            inside_pause_us(1000);
    }
    *over = true;
    for (size_t i = 0; i < n; i++)
        pthread_join(workers[i].thread, NULL);
}

/* Looks end beside decodes that never pause, and decodes beside such looks. */
static void test_nobody_starves(void **state)
{
    (void)state;
    attn_engine *engine = inside_open_chain();
    _Atomic bool over = false;
    inside_prefill(engine, "a", 100);
    inside_prefill(engine, "b", 100);
    inside_prefill(engine, "c", 100);
    attn_trace *expected = inside_look(engine, "a", ATTN_TENSOR_PATTERN, 2, 40, 60, 0, OPEN_END);
    worker decoders[] = {{.engine = engine, .session = "a", .over = &over},
                         {.engine = engine, .session = "b", .over = &over}};
    start_workers(decoders, 2);
    for (int i = 0; i < 10; i++) {
        attn_trace *look = inside_look(engine, "a", ATTN_TENSOR_PATTERN, 2, 40, 60, 0, OPEN_END);
        inside_assert_within(look, expected);
        attn_trace_release(look);
    }
    join_workers(decoders, 2, &over);
    over = false;
    worker lookers[] = {{.engine = engine, .session = "a", .looks = true, .over = &over},
                        {.engine = engine, .session = "b", .looks = true, .over = &over},
                        {.engine = engine, .session = "b", .looks = true, .over = &over}};
    start_workers(lookers, 3);
    run d = inside_steps(engine, "c", 300, NULL);
    run_free(&d);
    inside_pause_us(20000);
    join_workers(lookers, 3, &over);
    attn_trace_release(expected);
    inside_delete(engine, "a");
    inside_delete(engine, "b");
    inside_delete(engine, "c");
    assert_int_equal(inside_account(engine), 0);
    attn_engine_close(engine);
}

/* Sessions come and go, shrink, fork and are looked at and watched, all at once. */
static void *stir(void *arg)
{
    worker *w = arg;
    for (; !*w->over; w->n_done++) {
        attn_error err;
        attn_request r =
            w->n_done % 2 == 0
                ? inside_look_request("a", ATTN_TENSOR_SCORES, 1, 0, OPEN_END, 0, OPEN_END)
                : inside_look_request(w->session, ATTN_TENSOR_VALUE, 1, 0, OPEN_END, 0, OPEN_END);
        run looks[2];
        run_handle *first = run_start(w->engine, &r, &looks[0]);
        attn_status status =
            attn_session_fork(w->engine, "a", w->session, OPEN_END, OPEN_END, NULL, &err);
        r = inside_look_request(w->session, ATTN_TENSOR_Z, 2, 0, OPEN_END, 0, OPEN_END);
        run_handle *second = run_start(w->engine, &r, &looks[1]);
        if (status == ATTN_OK)
            status = attn_session_truncate(w->engine, w->session, 17, OPEN_END, NULL, &err);
        attn_engine_observe(w->engine, w->n_done % 3 == 0);
        if (w->n_done % 4 != 0)
            status = attn_session_delete(w->engine, w->session, &err);
        (void)status;
        run_wait(first);
        run_wait(second);
        run_free(&looks[0]);
        run_free(&looks[1]);
    }
    return NULL;
}

static void test_everything_at_once(void **state)
{
    (void)state;
    static observer o;
    attn_engine *engine = inside_open_chain();
    _Atomic bool over = false;
    observer_set(engine, &o);
    o.wanted = "a";
    o.selection = inside_everything(engine);
    inside_prefill(engine, "a", 50);
    worker workers[] = {{.engine = engine, .session = "b", .over = &over},
                        {.engine = engine, .session = "c", .over = &over},
                        {.engine = engine, .session = "d", .over = &over}};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, stir, &workers[i]), 0);
    for (int round = 0; round < 3; round++) {
        run d = inside_steps(engine, "a", 150, &o.selection);
        run_free(&d);
        attn_session_info info;
        attn_error err;
        assert_int_equal(attn_session_truncate(engine, "a", 50, OPEN_END, &info, &err), ATTN_OK);
    }
    join_workers(workers, 3, &over);
    attn_engine_observe(engine, false);
    for (size_t i = 0; i < 3; i++) {
        attn_error err;
        attn_status status = attn_session_delete(engine, workers[i].session, &err);
        assert_true(status == ATTN_OK || status == ATTN_E_SESSION_NOT_FOUND);
    }
    assert_int_equal(shared_bytes(engine, "a"), 0);
    assert_true(run_verify(engine, "a").bit_identical);
    inside_delete(engine, "a");
    assert_int_equal(inside_account(engine), 0);
    observer_forget(&o);
    attn_engine_close(engine);
}

/* Of a prefill far too long for its whole pattern, the last position's row. */
static void test_last_rows(void **state)
{
    (void)state;
    attn_engine *engine = inside_open_chain();
    inside_inputs inputs = inside_long_inputs();
    attn_stats stats;
    attn_selection last = {.tensors = 1u << ATTN_TENSOR_PATTERN | 1u << ATTN_TENSOR_Z,
                           .last_rows = 1u << ATTN_TENSOR_PATTERN | 1u << ATTN_TENSOR_Z};
    attn_engine_stats(engine, &stats);
    const uint64_t before = stats.trace_bytes;
    run r = inside_fed(engine, ATTN_JOB_PREFILL, "a", &inputs, 0, 1200, &last);
    attn_engine_stats(engine, &stats);
    assert_true(stats.trace_bytes > before);
    assert_int_equal(r.trace->n_tensors, 2 * LAYERS);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const attn_trace_tensor *pattern = inside_tensor(r.trace, ATTN_TENSOR_PATTERN, layer);
        const attn_trace_tensor *z = inside_tensor(r.trace, ATTN_TENSOR_Z, layer);
        assert_int_equal(pattern->shape[1], 1);
        assert_int_equal(pattern->shape[2], 1200);
        assert_int_equal(z->shape[0], 1);
        const attn_tensor_kind kinds[] = {ATTN_TENSOR_PATTERN, ATTN_TENSOR_Z};
        for (size_t i = 0; i < 2; i++) {
            const attn_trace_tensor *tensor = i == 0 ? pattern : z;
            attn_trace *row =
                inside_look(engine, "a", kinds[i], layer, 1199, OPEN_END, 0, OPEN_END);
            assert_memory_equal(tensor->data, row->tensors[0].data,
                                tensor->shape[0] * tensor->shape[1] * tensor->shape[2] *
                                    sizeof(float));
            attn_trace_release(row);
        }
    }
    run_free(&r);
    do { /* jobs end a moment after they have told it */
        inside_pause_us(100);
        attn_engine_stats(engine, &stats);
    } while (stats.trace_bytes != before);
    attn_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pending_looks),
        cmocka_unit_test(test_shutdown),
        cmocka_unit_test(test_close_with_looks_at_work),
        cmocka_unit_test(test_cancels_at_any_moment),
        cmocka_unit_test(test_waiting_beside_looks),
        cmocka_unit_test(test_nobody_starves),
        cmocka_unit_test(test_everything_at_once),
        cmocka_unit_test(test_last_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
