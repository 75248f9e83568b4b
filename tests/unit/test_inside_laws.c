/* Looking inside, the laws: looking changes nothing, and what is seen does not depend on when, beside
 * whom, with how many threads and by which instruction set it is looked at. */
#include "tests/unit/inside_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Sanitized, two dtypes and two kinds of engine will do. */
#define NEXT_DTYPE LESS(1, ATTN_Q8)

static const struct {
    const char *model, *inputs;
    uint64_t seed;
} models[] = {
    {"chain3", "chain3", 42},
    {"minimind-dense", "lm-minimind-dense", 4294967307u},
    {"qwen3-untied", "lm-qwen3-untied", 7},
};

static attn_engine *open_model(size_t i, unsigned n_threads, const char *kernels)
{
    return run_open((run_setup){.model = models[i].model,
                                .seed = models[i].seed,
                                .n_threads = n_threads,
                                .kernels = kernels});
}

/* --------------------------------------------------------------- looking changes nothing */

/* Wants everything of one session, and keeps what it gets. */
typedef struct watcher {
    attn_selection selection;
    const char *session;
    pthread_mutex_t mutex;
    inside_book seen;
} watcher;

static bool watcher_wants(void *ctx, const char *session, attn_selection *selection)
{
    const watcher *w = ctx;
    *selection = w->selection;
    return strcmp(session, w->session) == 0;
}

static void watcher_event(void *ctx, const attn_event *event)
{
    watcher *w = ctx;
    pthread_mutex_lock(&w->mutex);
    if (event->trace != NULL)
        inside_book_add(&w->seen, event->trace);
    pthread_mutex_unlock(&w->mutex);
}

enum { LAW_PROMPT = 24, LAW_STEPS = 10 };

/* What a session gave: its output rows, or its tokens and logits. */
typedef struct law_result {
    float rows[(LAW_PROMPT + LAW_STEPS) * 96], logits[400];
    uint32_t tokens[LAW_STEPS];
    inside_book book;
} law_result;

/* A prefill in chunks of `chunk`, then steps. */
static void law_run(attn_engine *engine, const char *session, attn_dtype dtype,
                    const inside_inputs *inputs, size_t chunk, const attn_selection *trace,
                    law_result *out)
{
    memset(out, 0, sizeof *out);
    for (size_t done = 0, n; done < LAW_PROMPT; done += n) {
        n = LAW_PROMPT - done < chunk ? LAW_PROMPT - done : chunk;
        attn_request r = inside_feed(ATTN_JOB_PREFILL, session, inputs, done, n, trace);
        r.has_kv_dtype = true;
        r.kv_dtype = dtype;
        r.logits = inputs->tokens != NULL;
        run p = run_job(engine, &r);
        assert_int_equal(p.reason, ATTN_REASON_LENGTH);
        if (p.logits != NULL)
            memcpy(out->logits, p.logits, p.n_logits * sizeof *p.logits);
        else
            memcpy(out->rows + done * inputs->size, p.outputs, n * inputs->size * sizeof(float));
        inside_book_take(&out->book, &p);
    }
    run d = inside_steps(engine, session, LAW_STEPS, trace);
    if (d.tokens != NULL)
        memcpy(out->tokens, d.tokens, sizeof out->tokens);
    else
        memcpy(out->rows + LAW_PROMPT * inputs->size, d.outputs,
               LAW_STEPS * inputs->size * sizeof(float));
    inside_book_take(&out->book, &d);
}

/* Compares with the first result of all, or becomes it. */
static void law_compare(law_result *first, bool *known, law_result *r)
{
    if (!*known) {
        *first = *r;
        *known = true;
        return;
    }
    assert_memory_equal(r->rows, first->rows, sizeof r->rows);
    assert_memory_equal(r->logits, first->logits, sizeof r->logits);
    assert_memory_equal(r->tokens, first->tokens, sizeof r->tokens);
    inside_assert_same_books(&r->book, &first->book);
    inside_book_free(&r->book);
}

/* The law's sessions on one engine: plain, traced, observed; beside others at work. */
static void law_sessions(attn_engine *engine, attn_dtype dtype, const inside_inputs *inputs,
                         law_result *first, bool *known)
{
    enum { OTHERS = 3 };
    static law_result r;
    attn_selection all = inside_everything(engine);
    watcher w = {.selection = all, .session = "seen", .mutex = PTHREAD_MUTEX_INITIALIZER};
    run others[OTHERS];
    run_handle *handles[OTHERS];
    attn_engine_set_observer(engine, &(attn_observer){&w, watcher_event, watcher_wants});
    law_run(engine, "traced", dtype, inputs, LAW_PROMPT, &all, &r);
    law_compare(first, known, &r);
    law_run(engine, "plain", dtype, inputs, LAW_PROMPT, NULL, &r);
    law_compare(first, known, &r);
    attn_engine_observe(engine, true);
    law_run(engine, "seen", dtype, inputs, 7, NULL, &r);
    law_compare(first, known, &r);
    assert_int_equal(w.seen.n, LAW_STEPS);
    inside_assert_same_books(&w.seen, &first->book);
    inside_book_free(&w.seen);
    attn_error err;
    assert_int_equal(attn_session_delete(engine, "seen", &err), ATTN_OK);
    for (int i = 0; i < OTHERS; i++) {
        char id[16];
        snprintf(id, sizeof id, "other%d", i);
        run p = inside_fed(engine, ATTN_JOB_PREFILL, id, inputs, 60, 10 + (size_t)i, NULL);
        run_free(&p);
        attn_request d = attn_request_init(ATTN_JOB_DECODE);
        d.session = id;
        d.steps = 200;
        d.sampling.ignore_eos = true;
        d.has_trace = i == 1;
        d.trace = all;
        handles[i] = run_start(engine, &d, &others[i]);
    }
    law_run(engine, "seen", dtype, inputs, 23, &all, &r);
    for (int i = 0; i < OTHERS; i++) {
        run_cancel(handles[i]);
        run_wait(handles[i]);
        run_free(&others[i]);
    }
    law_compare(first, known, &r);
    attn_engine_observe(engine, false);
    inside_assert_same_books(&w.seen, &first->book);
    inside_book_free(&w.seen);
    inside_assert_looks_like(engine, "plain", &first->book, 0, LAW_PROMPT + LAW_STEPS);
}

static void check_law(size_t model, attn_dtype dtype)
{
    static law_result first;
    bool known = false;
    inside_inputs inputs = inside_inputs_of(models[model].inputs);
    static const struct {
        unsigned n_threads;
        const char *kernels;
    } configs[] = {{1, "scalar"}, {4, "auto"}, {4, "scalar"}, {1, "auto"}};
    for (size_t i = 0; i < (model == 0 && NEXT_DTYPE == 1 ? 4 : 2); i++) {
        attn_engine *engine = open_model(model, configs[i].n_threads, configs[i].kernels);
        law_sessions(engine, dtype, &inputs, &first, &known);
        attn_engine_close(engine);
    }
    inside_book_free(&first.book);
}

static void test_looking_changes_nothing(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < ATTN_DTYPES; dtype += NEXT_DTYPE)
        check_law(0, (attn_dtype)dtype);
    check_law(1, ATTN_F32);
    check_law(2, ATTN_Q8);
}

/* -------------------------------------------------------------------------- long contexts */

/* Scores and weights of the position, or all of its tensors, against its own step's trace. */
static void assert_reads_back(attn_engine *engine, const char *session, const attn_trace *step,
                              bool all)
{
    for (size_t i = 0; i < step->n_tensors; i++) {
        attn_tensor_kind kind = step->tensors[i].kind;
        if (!all && !attn_tensor_has_keys(kind))
            continue;
        attn_trace *look = inside_look(engine, session, kind, step->tensors[i].layer,
                                       step->position, step->position + 1, 0, OPEN_END);
        inside_assert_within(look, step);
        attn_trace_release(look);
    }
}

static void check_reading_back(attn_dtype dtype)
{
    enum { AT = 700 };
    attn_engine *engine = open_model(0, 2, "auto");
    inside_inputs inputs = inside_long_inputs();
    attn_selection all = inside_everything(engine);
    attn_error err;
    attn_request request = inside_feed(ATTN_JOB_PREFILL, "a", &inputs, 0, AT, NULL);
    request.has_kv_dtype = true;
    request.kv_dtype = dtype;
    request.output = ATTN_OUTPUT_NONE;
    run p = run_job(engine, &request);
    assert_int_equal(p.reason, ATTN_REASON_LENGTH);
    run step = inside_fed(engine, ATTN_JOB_DECODE, "a", &inputs, AT, 1, &all);
    assert_int_equal(step.n_traces, 1);
    inside_assert_causal(step.traces[0]);
    assert_reads_back(engine, "a", step.traces[0], true);
    run more = inside_steps(engine, "a", LESS(1000, 250), NULL);
    run_free(&more);
    assert_reads_back(engine, "a", step.traces[0], false);
    assert_int_equal(attn_session_fork(engine, "a", "fork", OPEN_END, OPEN_END, NULL, &err),
                     ATTN_OK);
    assert_int_equal(attn_session_truncate(engine, "a", 905, OPEN_END, NULL, &err), ATTN_OK);
    assert_reads_back(engine, "a", step.traces[0], false);
    /* Other inputs from there on, and looks while they are computed. */
    run beside;
    request = inside_feed(ATTN_JOB_DECODE, "a", &inputs, 0, LESS(390, 100), NULL);
    run_handle *handle = run_start(engine, &request, &beside);
    assert_reads_back(engine, "a", step.traces[0], false);
    assert_reads_back(engine, "fork", step.traces[0], false);
    run_wait(handle);
    assert_int_equal(beside.reason, ATTN_REASON_LENGTH);
    run_free(&beside);
    assert_int_equal(attn_session_truncate(engine, "a", AT + 1, OPEN_END, NULL, &err), ATTN_OK);
    assert_int_equal(attn_session_delete(engine, "fork", &err), ATTN_OK);
    assert_reads_back(engine, "a", step.traces[0], true);
    run_free(&step);
    assert_int_equal(attn_session_delete(engine, "a", &err), ATTN_OK);
    assert_int_equal(inside_account(engine), 0);
    attn_engine_close(engine);
}

static void test_a_row_is_read_back_much_later(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < ATTN_DTYPES; dtype += NEXT_DTYPE)
        check_reading_back((attn_dtype)dtype);
}

/* Parts of a long session: ranges of keys and queries, heads and layers, against the whole. */
static void test_parts_of_a_long_context(void **state)
{
    (void)state;
    static const uint64_t queries[][2] = {{0, 3}, {510, 514}, {1000, 1010}, {1290, INSIDE_LONG}};
    static const uint64_t keys[][2] = {{0, 1},      {0, 512},     {500, 530},  {511, 512},
                                       {512, 1024}, {1003, 1008}, {1024, 1290}};
    attn_engine *engine = open_model(0, 2, "auto");
    inside_inputs inputs = inside_long_inputs();
    attn_selection some = inside_everything(engine);
    some.some_layers = some.some_heads = true;
    attn_choice_add(&some.layers, 2);
    attn_choice_add(&some.heads, 4);
    some.tensors &= ~(1u << ATTN_TENSOR_SCORES); /* else it is too large */
    run whole = inside_fed(engine, ATTN_JOB_PREFILL, "a", &inputs, 0, INSIDE_LONG, &some);
    assert_int_equal(whole.trace->n_heads, 1);
    assert_int_equal(whole.trace->n_kv_heads, 1);
    assert_int_equal(whole.trace->kv_heads[0], 1);
    inside_assert_causal(whole.trace);
    for (size_t i = 0; i < sizeof queries / sizeof queries[0]; i++) {
        for (size_t t = 0; t < whole.trace->n_tensors; t++) {
            attn_tensor_kind kind = whole.trace->tensors[t].kind;
            uint32_t layer = whole.trace->tensors[t].layer;
            assert_true(layer == 2 || kind == ATTN_TENSOR_EMBED);
            attn_trace *look =
                inside_look(engine, "a", kind, layer, queries[i][0], queries[i][1], 0, OPEN_END);
            for (uint64_t p = queries[i][0]; p < queries[i][1]; p++)
                inside_assert_same_row(look, whole.trace, kind, layer, p);
            attn_trace_release(look);
        }
        for (size_t j = 0; j < sizeof keys / sizeof keys[0]; j++) {
            if (keys[j][1] > queries[i][1])
                continue;
            for (int heads = 0; heads < 2; heads++) {
                attn_request r = inside_look_request("a", ATTN_TENSOR_PATTERN, 2, queries[i][0],
                                                     queries[i][1], keys[j][0], keys[j][1]);
                r.some_heads = heads == 1;
                attn_choice_add(&r.heads, 1);
                attn_choice_add(&r.heads, 4);
                run look = run_job(engine, &r);
                assert_int_equal(look.reason, ATTN_REASON_LENGTH);
                assert_int_equal(look.trace->n_heads, heads == 1 ? 2 : 6);
                assert_int_equal(look.trace->first_key, keys[j][0]);
                assert_int_equal(look.trace->n_keys, keys[j][1] - keys[j][0]);
                inside_assert_causal(look.trace);
                for (uint64_t p = queries[i][0]; p < queries[i][1]; p++)
                    inside_assert_same_row(look.trace, whole.trace, ATTN_TENSOR_PATTERN, 2, p);
                run_free(&look);
            }
        }
    }
    run_free(&whole);
    attn_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_looking_changes_nothing),
        cmocka_unit_test(test_a_row_is_read_back_much_later),
        cmocka_unit_test(test_parts_of_a_long_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
