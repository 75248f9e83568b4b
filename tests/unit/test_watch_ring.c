/* The ring of /watch: who gets which record; what a reader loses it is told, exactly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "server/watch_ring.h"
#include "tests/unit/engine_run.h"

#define MODEL "seed-attention"
/* A trace of this many positions of that model's four heads has 1 MiB of weights. */
#define ROWS 256
#define LAG_MIB 8

typedef struct fixture {
    attn_engine *engine;
    srv_watch_ring ring;
    run traced;
    uint64_t n_lost;
} fixture;

static const attn_selection pattern = {.tensors = 1u << ATTN_TENSOR_PATTERN};

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->engine = run_open((run_setup){.n_threads = 1, .kernels = "auto"});
    float *rows = calloc(ROWS * 16, sizeof *rows);
    for (size_t i = 0; i < ROWS * 16; i++)
        rows[i] = (float)(i % 7) - 3;
    attn_request request = attn_request_init(ATTN_JOB_PREFILL);
    request.session = "traced";
    request.model = MODEL;
    request.inputs = rows;
    request.n_inputs = ROWS;
    request.input_size = 16;
    request.has_trace = true;
    request.trace = pattern;
    f->traced = run_job(f->engine, &request);
    free(rows);
    assert_int_equal(f->traced.submitted, ATTN_OK);
    assert_non_null(f->traced.trace);
    assert_true(srv_watch_ring_init(&f->ring, f->engine));
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    srv_watch_ring_free(&f->ring);
    run_free(&f->traced);
    attn_engine_close(f->engine);
    free(f);
    return 0;
}

/* A reader of that session, "" for none, from now on. */
static void add(fixture *f, srv_watch_reader *reader, size_t slot, const char *session,
                const attn_selection *show)
{
    static const attn_selection nothing;
    *reader = (srv_watch_reader){.slot = slot, .session = session, .show = show ? show : &nothing};
    srv_watch_ring_add(&f->ring, reader, (size_t)attn_model_find(f->engine, MODEL));
}

static bool put(fixture *f, attn_event_kind kind, const char *session, uint64_t step,
                attn_trace *trace)
{
    size_t n_readers = 0;
    for (size_t i = 0; i < SRV_WATCH_READERS; i++)
        n_readers += f->ring.readers[i] != NULL;
    return srv_watch_ring_put(&f->ring,
                              &(attn_event){.kind = kind,
                                            .session = session,
                                            .model = MODEL,
                                            .step = step,
                                            .length = step + 1,
                                            .trace = trace},
                              n_readers, &f->n_lost);
}

static bool ask(fixture *f, const char *session, uint64_t now_ns)
{
    attn_selection selection;
    return srv_watch_ring_ask(&f->ring, session, now_ns, &selection, &f->n_lost);
}

typedef struct taken {
    size_t n, n_traces, n_missed;
    uint64_t n_lost, n_steps, last_step;
} taken;

/* All that there is for a reader. */
static taken take_all(fixture *f, srv_watch_reader *reader)
{
    taken t = {0};
    bool more = true;
    while (more) {
        srv_watch_record *records[SRV_WATCH_BATCH];
        uint64_t n_lost;
        size_t n = srv_watch_ring_take(&f->ring, reader, records, SRV_WATCH_BATCH, &n_lost, &more);
        t.n += n;
        t.n_lost += n_lost;
        for (size_t i = 0; i < n; i++) {
            const srv_watch_record *r = records[i];
            t.n_steps += r->kind == ATTN_EVENT_STEP ? r->n_merged ? r->n_merged : 1 : 0;
            t.last_step = r->step;
            t.n_missed += r->is_missed;
            t.n_traces += r->trace != NULL;
            assert_false(r->trace && r->is_missed);
            attn_trace_release(r->trace);
        }
    }
    return t;
}

static void test_audiences(void **state)
{
    fixture *f = *state;
    srv_watch_reader chosen, all;
    add(f, &chosen, 3, "a", NULL);
    add(f, &all, 200, "", NULL);
    put(f, ATTN_EVENT_CREATED, "a", 0, NULL);
    for (uint64_t i = 0; i < 5; i++)
        assert_true(put(f, ATTN_EVENT_STEP, "a", i, NULL));
    for (uint64_t i = 0; i < 7; i++)
        assert_false(put(f, ATTN_EVENT_STEP, "b", i, NULL));
    taken t = take_all(f, &chosen);
    assert_int_equal(t.n, 6);
    assert_int_equal(t.last_step, 4);
    t = take_all(f, &all);
    assert_int_equal(t.n, 1); /* steps wait for the flush */
    srv_watch_ring_flush(&f->ring);
    t = take_all(f, &all);
    assert_int_equal(t.n, 2);
    assert_int_equal(t.n_steps, 12);
    t = take_all(f, &chosen);
    assert_int_equal(t.n, 1);
    assert_int_equal(t.n_steps, 7);
    /* What else happens to a session comes behind its steps. */
    put(f, ATTN_EVENT_STEP, "b", 7, NULL);
    put(f, ATTN_EVENT_DELETED, "b", 0, NULL);
    t = take_all(f, &all);
    assert_int_equal(t.n, 2);
    assert_int_equal(t.n_steps, 1);
    assert_int_equal(t.n_lost, 0);
    srv_watch_ring_remove(&f->ring, &chosen);
    srv_watch_ring_remove(&f->ring, &all);
}

static void test_overwritten(void **state)
{
    fixture *f = *state;
    srv_watch_reader slow, quick, leaving;
    add(f, &slow, 0, "a", NULL);
    add(f, &quick, 1, "a", NULL);
    put(f, ATTN_EVENT_CREATED, "b", 0, NULL);
    add(f, &leaving, 2, "a", NULL);
    taken all = {0};
    for (uint64_t i = 0; i < 10000; i++) {
        put(f, ATTN_EVENT_STEP, "a", i, NULL);
        put(f, ATTN_EVENT_STEP, "b", i, NULL);
        if (i % 100 == 99) {
            srv_watch_ring_flush(&f->ring);
            taken t = take_all(f, &quick);
            all.n += t.n;
            all.n_lost += t.n_lost;
        }
    }
    assert_int_equal(all.n, 1 + 10000 + 100);
    assert_int_equal(all.n_lost, 0);
    taken t = take_all(f, &slow);
    assert_true(t.n_lost > 0);
    assert_int_equal(t.n + t.n_lost, 1 + 10000 + 100);
    assert_int_equal(take_all(f, &slow).n, 0);
    /* Who leaves learns what it lost, not what it left. */
    assert_int_equal(srv_watch_ring_remove(&f->ring, &leaving), t.n_lost - 1);
    assert_int_equal(srv_watch_ring_remove(&f->ring, &slow), 0);
    srv_watch_ring_remove(&f->ring, &quick);
}

/* Who does not take its tensors is not asked for more of them; each step says what is missing. */
static void test_lag(void **state)
{
    fixture *f = *state;
    srv_watch_reader slow, quick, without;
    add(f, &slow, 63, "a", &pattern);
    add(f, &quick, 64, "a", &pattern);
    add(f, &without, 65, "a", NULL);
    size_t n_quick = 0;
    for (uint64_t i = 0; i < 20; i++) {
        assert_true(ask(f, "a", i));
        put(f, ATTN_EVENT_STEP, "a", i, f->traced.trace);
        taken t = take_all(f, &quick);
        n_quick += t.n_traces;
        assert_int_equal(t.n_missed, 0);
        srv_watch_ring_forget(&f->ring);
    }
    assert_int_equal(n_quick, 20);
    taken t = take_all(f, &slow);
    assert_int_equal(t.n, 20);
    assert_int_equal(t.n_traces, LAG_MIB);
    assert_int_equal(t.n_missed, 20 - LAG_MIB);
    assert_int_equal(f->n_lost, 20 - LAG_MIB);
    t = take_all(f, &without);
    assert_int_equal(t.n, 20);
    assert_int_equal(t.n_traces + t.n_missed, 0);
    srv_watch_ring_forget(&f->ring);
    assert_int_equal(f->ring.trace_bytes, 0);
    /* It has caught up. */
    assert_true(ask(f, "a", 20));
    put(f, ATTN_EVENT_STEP, "a", 20, f->traced.trace);
    assert_int_equal(take_all(f, &slow).n_traces, 1);
    srv_watch_ring_remove(&f->ring, &slow);
    srv_watch_ring_remove(&f->ring, &quick);
    srv_watch_ring_remove(&f->ring, &without);
}

/* The engine had no memory for what it was asked for. */
static void test_no_trace(void **state)
{
    fixture *f = *state;
    srv_watch_reader reader;
    add(f, &reader, 7, "a", &pattern);
    assert_true(ask(f, "a", 0));
    put(f, ATTN_EVENT_STEP, "a", 0, NULL);
    assert_int_equal(f->n_lost, 1);
    /* A step that failed is none, and of one that nobody was asked about nothing is missing. */
    assert_true(ask(f, "a", 1));
    assert_true(ask(f, "a", 2));
    put(f, ATTN_EVENT_STEP, "a", 1, f->traced.trace);
    put(f, ATTN_EVENT_STEP, "a", 2, NULL);
    taken t = take_all(f, &reader);
    assert_int_equal(t.n, 3);
    assert_int_equal(t.n_missed, 1);
    assert_int_equal(t.n_traces, 1);
    assert_int_equal(f->n_lost, 1);
    srv_watch_ring_remove(&f->ring, &reader);
}

/* Frames that are not due are not missing. */
static void test_frames(void **state)
{
    fixture *f = *state;
    srv_watch_reader reader;
    add(f, &reader, 9, "a", &pattern);
    reader.frame_ns = 10;
    size_t n = 0;
    for (uint64_t now = 100; now < 200; now++) {
        const bool wanted = ask(f, "a", now);
        n += wanted;
        put(f, ATTN_EVENT_STEP, "a", now, wanted ? f->traced.trace : NULL);
        taken t = take_all(f, &reader);
        assert_int_equal(t.n_traces, wanted);
        assert_int_equal(t.n_missed, 0);
    }
    assert_int_equal(n, 10);
    assert_int_equal(f->n_lost, 0);
    srv_watch_ring_remove(&f->ring, &reader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_audiences, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_overwritten, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_lag, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_trace, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_frames, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
