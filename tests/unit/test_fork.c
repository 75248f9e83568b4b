/* Forks: pages are shared until they diverge, and neither side ever sees the other. */
#include "tests/unit/engine_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN 96
#define STEPS LESS(3000, 300)
#define N_FORKS LESS(40, 12)
#define LONG LESS(4096, 512)
#define ROW_BYTES (HIDDEN * sizeof(float))
#define PAGE_KV_BYTES (16u * 2 * 3 * 2 * 20 * 4)

static attn_engine *open_chain(unsigned n_threads)
{
    return run_open((run_setup){.model = "chain3", .seed = 42, .n_threads = n_threads});
}

static const float *rows(void)
{
    static attn_safetensors *file; /* kept open to the end */
    size_t n;
    if (file == NULL)
        file = golden_open("chain3");
    return golden_f32(file, "inputs", &n);
}

static void prefill(attn_engine *engine, const char *session, size_t first, size_t n)
{
    run r =
        run_prefill(engine, session, NULL, rows() + first * HIDDEN, n, HIDDEN, ATTN_OUTPUT_NONE);
    assert_int_equal(r.submitted, ATTN_OK);
    assert_int_equal(r.reason, ATTN_REASON_LENGTH);
}

static attn_session_info fork_at(attn_engine *engine, const char *id, const char *as, uint64_t at)
{
    attn_session_info info;
    attn_error err = {0};
    if (attn_session_fork(engine, id, as, at, UINT64_MAX, &info, &err) != ATTN_OK)
        fail_msg("fork: %s", err.message);
    return info;
}

static attn_session_info info_of(attn_engine *engine, const char *id)
{
    attn_session_info info;
    assert_int_equal(attn_session_get(engine, id, &info, NULL), ATTN_OK);
    return info;
}

/* The outputs of feeding rows [first, first + n) to a session. */
static float *fed(attn_engine *engine, const char *session, size_t first, size_t n)
{
    run d = run_decode(engine, session, rows() + first * HIDDEN, n, HIDDEN);
    assert_int_equal(d.reason, ATTN_REASON_LENGTH);
    assert_int_equal(d.n_outputs, n);
    return d.outputs;
}

static void test_pages_are_shared_and_counted_once(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(2);
    attn_totals before, after;
    prefill(engine, "a", 0, 100);
    attn_engine_totals(engine, &before);
    assert_int_equal(before.kv.bytes, 7 * PAGE_KV_BYTES);
    attn_session_info f = fork_at(engine, "a", "b", UINT64_MAX);
    assert_int_equal(f.length, 100);
    assert_int_equal(f.kv.n_pages, 7);
    assert_int_equal(f.kv.shared_bytes, 6 * PAGE_KV_BYTES);
    assert_int_equal(info_of(engine, "a").kv.shared_bytes, 6 * PAGE_KV_BYTES);
    attn_engine_totals(engine, &after);
    assert_int_equal(after.kv.bytes, 8 * PAGE_KV_BYTES); /* the page that is not full is copied */
    assert_int_equal(after.kv.shared_bytes, 6 * PAGE_KV_BYTES);
    assert_int_equal(after.positions, 200);
    fork_at(engine, "a", "short", 5); /* shares none, and hides none */
    assert_int_equal(info_of(engine, "a").kv.shared_bytes, 6 * PAGE_KV_BYTES);
    assert_int_equal(attn_session_delete(engine, "short", NULL), ATTN_OK);
    assert_int_equal(attn_session_delete(engine, "a", NULL), ATTN_OK);
    assert_int_equal(info_of(engine, "b").kv.shared_bytes, 0);
    attn_engine_totals(engine, &after);
    assert_int_equal(after.kv.bytes, 7 * PAGE_KV_BYTES);
    assert_int_equal(attn_session_delete(engine, "b", NULL), ATTN_OK);
    attn_engine_totals(engine, &after);
    assert_int_equal(after.allocated_bytes + after.reserved_bytes, 0);
    attn_engine_close(engine);
}

/* Parent and children go different ways; each equals a session that went its way alone. */
static void test_divergence_is_private(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(2);
    static const size_t points[] = {1, 15, 16, 17, 64, 79, 80};
    prefill(engine, "a", 0, 80);
    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
        char child[16], alone[16];
        snprintf(child, sizeof child, "child%zu", i);
        snprintf(alone, sizeof alone, "alone%zu", i);
        fork_at(engine, "a", child, points[i]);
        prefill(engine, alone, 0, points[i]);
        float *got = fed(engine, child, 100 + i, 40), *want = fed(engine, alone, 100 + i, 40);
        assert_memory_equal(got, want, 40 * ROW_BYTES);
        free(got);
        free(want);
        assert_true(run_verify(engine, child).bit_identical);
    }
    prefill(engine, "a2", 0, 80);
    float *got = fed(engine, "a", 90, 40), *want = fed(engine, "a2", 90, 40);
    assert_memory_equal(got, want, 40 * ROW_BYTES);
    free(got);
    free(want);
    assert_true(run_verify(engine, "a").bit_identical);
    attn_engine_close(engine);
}

/* Truncated into a shared page, both sides write over it: each on its own copy. */
static void test_truncate_into_a_shared_page(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(2);
    attn_session_info info;
    prefill(engine, "a", 0, 64);
    fork_at(engine, "a", "b", UINT64_MAX);
    assert_int_equal(attn_session_truncate(engine, "a", 37, UINT64_MAX, &info, NULL), ATTN_OK);
    assert_int_equal(attn_session_truncate(engine, "b", 42, UINT64_MAX, &info, NULL), ATTN_OK);
    prefill(engine, "a2", 0, 37);
    prefill(engine, "b2", 0, 42);
    float *a = fed(engine, "a", 100, 30), *a2 = fed(engine, "a2", 100, 30);
    float *b = fed(engine, "b", 140, 30), *b2 = fed(engine, "b2", 140, 30);
    assert_memory_equal(a, a2, 30 * ROW_BYTES);
    assert_memory_equal(b, b2, 30 * ROW_BYTES);
    assert_true(run_verify(engine, "a").bit_identical);
    assert_true(run_verify(engine, "b").bit_identical);
    free(a);
    free(a2);
    free(b);
    free(b2);
    attn_engine_close(engine);
}

/* The fork goes on from the last output, or replays the last position to find it. */
static void test_feedback_continues(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(1);
    prefill(engine, "a", 0, 50);
    fork_at(engine, "a", "b", UINT64_MAX);
    fork_at(engine, "a", "c", 33);
    prefill(engine, "c2", 0, 33);
    run a = run_steps(engine, "a", 20), b = run_steps(engine, "b", 20);
    run c = run_steps(engine, "c", 20), c2 = run_steps(engine, "c2", 20);
    assert_memory_equal(a.outputs, b.outputs, 20 * ROW_BYTES);
    assert_memory_equal(c.outputs, c2.outputs, 20 * ROW_BYTES);
    run_free(&a);
    run_free(&b);
    run_free(&c);
    run_free(&c2);
    attn_engine_close(engine);
}

static void test_fork_of_a_session_at_work(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(2);
    prefill(engine, "a", 0, 20);
    attn_request r = attn_request_init(ATTN_JOB_DECODE);
    run result;
    r.session = "a";
    r.steps = STEPS;
    run_handle *handle = run_start(engine, &r, &result);
    for (int i = 0; i < N_FORKS; i++) {
        char child[16];
        snprintf(child, sizeof child, "child%d", i);
        attn_session_info f = fork_at(engine, "a", child, UINT64_MAX);
        assert_true(f.length >= 20);
    }
    run_wait(handle);
    assert_int_equal(result.reason, ATTN_REASON_LENGTH);
    for (int i = 0; i < N_FORKS; i++) {
        char child[16];
        snprintf(child, sizeof child, "child%d", i);
        uint64_t length = info_of(engine, child).length;
        assert_true(run_verify(engine, child).bit_identical);
        if (length - 20 + 5 > result.n_outputs)
            continue;
        run c = run_steps(engine, child, 5);
        assert_memory_equal(c.outputs, result.outputs + (length - 20) * HIDDEN, 5 * ROW_BYTES);
        run_free(&c);
    }
    run_free(&result);
    attn_engine_close(engine);
}

typedef struct forker {
    attn_engine *engine;
    const char *child;
    _Atomic bool *over;
} forker;

static void *fork_and_delete(void *arg)
{
    const forker *f = arg;
    while (!*f->over) {
        attn_session_info info;
        attn_status status =
            attn_session_fork(f->engine, "a", f->child, UINT64_MAX, UINT64_MAX, &info, NULL);
        if (status == ATTN_OK)
            status = attn_session_delete(f->engine, f->child, NULL);
        (void)status;
    }
    return NULL;
}

typedef struct forkers {
    forker of[3];
    pthread_t threads[3];
    _Atomic bool over;
} forkers;

static void start_forkers(forkers *f, attn_engine *engine)
{
    static const char *const children[] = {"b", "c", "d"};
    f->over = false;
    for (int i = 0; i < 3; i++) {
        f->of[i] = (forker){engine, children[i], &f->over};
        assert_int_equal(pthread_create(&f->threads[i], NULL, fork_and_delete, &f->of[i]), 0);
    }
}

static void stop_forkers(forkers *f)
{
    f->over = true;
    for (int i = 0; i < 3; i++)
        pthread_join(f->threads[i], NULL);
}

/* The page that a fork copies is shared for that moment; the steps beside it must not mind. */
static void test_forks_beside_every_step(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(2);
    forkers beside;
    for (int round = 0; round < LESS(3, 1); round++) {
        prefill(engine, "a", 0, 1);
        start_forkers(&beside, engine);
        run r = run_steps(engine, "a", LESS(1000, 300));
        stop_forkers(&beside);
        assert_int_equal(r.reason, ATTN_REASON_LENGTH);
        run_free(&r);
        assert_int_equal(attn_session_delete(engine, "a", NULL), ATTN_OK);
    }
    attn_totals totals;
    attn_engine_totals(engine, &totals);
    assert_int_equal(totals.allocated_bytes + totals.reserved_bytes, 0);
    attn_engine_close(engine);
}

/* Forks keep nobody off, a session at rest neither: short runs and truncates between them go on, and
 * give what they give alone. */
static void test_forks_beside_short_runs(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(2);
    forkers beside;
    prefill(engine, "a", 0, 21);
    start_forkers(&beside, engine);
    bool all = true;
    for (int i = 0; all && i < LESS(400, 60); i++) {
        run r = run_steps(engine, "a", 2);
        all = r.submitted == ATTN_OK && r.reason == ATTN_REASON_LENGTH;
        run_free(&r);
        if (all && i % 2 != 0)
            all = attn_session_truncate(engine, "a", 19, UINT64_MAX, NULL, NULL) == ATTN_OK;
    }
    stop_forkers(&beside);
    assert_true(all);
    assert_true(run_verify(engine, "a").bit_identical);
    assert_int_equal(attn_session_delete(engine, "a", NULL), ATTN_OK);
    attn_totals totals;
    attn_engine_totals(engine, &totals);
    assert_int_equal(totals.allocated_bytes + totals.reserved_bytes, 0);
    attn_engine_close(engine);
}

/* A session that is deleted meanwhile is not found: it is not forked at length 0. */
static void test_fork_of_a_session_that_goes(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(1);
    attn_session_info info;
    _Atomic bool over = false;
    forker beside = {engine, "b", &over};
    pthread_t thread;
    prefill(engine, "a", 0, 20);
    assert_int_equal(pthread_create(&thread, NULL, fork_and_delete, &beside), 0);
    attn_status wrong = ATTN_OK;
    size_t n_forked = 0;
    const int tries = LESS(20000, 2000);
    for (int i = 0; i < tries || (n_forked == 0 && i < 100 * tries); i++) {
        const bool first = i % 2 == 0;
        attn_status status = attn_session_fork(engine, "b", "c", first ? UINT64_MAX : 20,
                                               i % 3 == 0 ? 20 : UINT64_MAX, &info, NULL);
        if (status == ATTN_OK) {
            n_forked++;
            wrong = info.length != 20 ? ATTN_E_INTERNAL : wrong;
            assert_int_equal(attn_session_delete(engine, "c", NULL), ATTN_OK);
        } else if (status != ATTN_E_SESSION_NOT_FOUND) {
            wrong = status;
        }
    }
    over = true;
    pthread_join(thread, NULL);
    assert_int_equal(wrong, ATTN_OK);
    assert_true(n_forked > 0);
    attn_engine_close(engine);
}

/* What a fork copies just now is nothing that a step must copy: it is not refused for that. */
static void test_forks_at_a_full_budget(void **state)
{
    (void)state;
    attn_totals full;
    attn_engine *engine = open_chain(1);
    prefill(engine, "a", 0, 21);
    fork_at(engine, "a", "b", UINT64_MAX);
    attn_engine_totals(engine, &full);
    attn_engine_close(engine);
    engine = run_open((run_setup){.model = "chain3",
                                  .seed = 42,
                                  .n_threads = 1,
                                  .kv_memory_bytes = full.allocated_bytes + PAGE_KV_BYTES / 2});
    _Atomic bool over = false;
    forker beside = {engine, "b", &over};
    pthread_t thread;
    prefill(engine, "a", 0, 21);
    assert_int_equal(pthread_create(&thread, NULL, fork_and_delete, &beside), 0);
    attn_status status = ATTN_OK;
    for (int i = 0; status == ATTN_OK && i < LESS(3000, 300); i++) {
        run r = run_steps(engine, "a", 1);
        status = r.submitted;
        run_free(&r);
        if (status == ATTN_OK)
            status = attn_session_truncate(engine, "a", 21, UINT64_MAX, NULL, NULL);
    }
    over = true;
    pthread_join(thread, NULL);
    assert_int_equal(status, ATTN_OK);
    attn_engine_close(engine);
}

static void test_a_thousand_forks_cost_their_tables(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(1);
    for (size_t i = 0; i < LONG; i += 128)
        prefill(engine, "a", i % 64, 128);
    attn_totals before, after;
    attn_engine_totals(engine, &before);
    for (int i = 0; i < 900; i++) {
        char child[16];
        snprintf(child, sizeof child, "child%d", i);
        fork_at(engine, "a", child, UINT64_MAX);
    }
    attn_engine_totals(engine, &after);
    assert_int_equal(after.kv.bytes, before.kv.bytes);
    uint64_t cost = after.allocated_bytes - before.allocated_bytes;
    print_message("900 forks of %d positions cost %.2f%% of copies\n", LONG,
                  100.0 * (double)cost / (900.0 * (double)before.allocated_bytes));
    assert_true((double)cost <= 0.02 * 900.0 * (double)before.allocated_bytes);
    attn_engine_close(engine);
}

static void test_what_cannot_be_forked(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(1);
    attn_session_info info;
    attn_error err;
    prefill(engine, "a", 0, 20);
    attn_totals before, after;
    attn_engine_totals(engine, &before);
    assert_int_equal(attn_session_fork(engine, "x", "b", 1, UINT64_MAX, &info, &err),
                     ATTN_E_SESSION_NOT_FOUND);
    assert_int_equal(attn_session_fork(engine, "a", "a", 1, UINT64_MAX, &info, &err),
                     ATTN_E_SESSION_EXISTS);
    assert_string_equal(err.param, "as");
    assert_int_equal(attn_session_fork(engine, "a", "b", 21, UINT64_MAX, &info, &err),
                     ATTN_E_INVALID);
    assert_string_equal(err.param, "at");
    assert_int_equal(attn_session_fork(engine, "a", "..", 1, UINT64_MAX, &info, &err),
                     ATTN_E_INVALID);
    assert_int_equal(attn_session_fork(engine, "a", "b", 1, 19, &info, &err),
                     ATTN_E_LENGTH_MISMATCH);
    attn_engine_totals(engine, &after);
    assert_int_equal(after.allocated_bytes, before.allocated_bytes);
    assert_int_equal(after.reserved_bytes, 0);
    assert_int_equal(fork_at(engine, "a", "empty", 0).length, 0);
    attn_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_are_shared_and_counted_once),
        cmocka_unit_test(test_divergence_is_private),
        cmocka_unit_test(test_truncate_into_a_shared_page),
        cmocka_unit_test(test_feedback_continues),
        cmocka_unit_test(test_fork_of_a_session_at_work),
        cmocka_unit_test(test_forks_beside_every_step),
        cmocka_unit_test(test_forks_beside_short_runs),
        cmocka_unit_test(test_fork_of_a_session_that_goes),
        cmocka_unit_test(test_forks_at_a_full_budget),
        cmocka_unit_test(test_a_thousand_forks_cost_their_tables),
        cmocka_unit_test(test_what_cannot_be_forked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
