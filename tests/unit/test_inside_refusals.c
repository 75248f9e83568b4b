/* Looking inside, the refusals: names, and all that cannot be looked at. */
#include "tests/unit/inside_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { HEADS = 6, KV_HEADS = 2, LAYERS = 3, HEAD_DIM = 20 };

static attn_engine *open_chain(uint64_t kv_memory_bytes)
{
    return run_open((run_setup){
        .model = "chain3", .seed = 42, .n_threads = 2, .kv_memory_bytes = kv_memory_bytes});
}

static void prefill(attn_engine *engine, const char *session, size_t n)
{
    inside_inputs inputs = inside_long_inputs();
    run r = inside_fed(engine, ATTN_JOB_PREFILL, session, &inputs, 0, n, NULL);
    run_free(&r);
}

/* --------------------------------------------------------------------------------- names */

static void test_names(void **state)
{
    (void)state;
    char name[ATTN_TENSOR_NAME_MAX];
    attn_tensor_kind kind;
    uint32_t layer;
    for (int k = 0; k < ATTN_TENSOR_KINDS; k++) {
        attn_tensor_kind want = (attn_tensor_kind)k;
        const char *plain = attn_tensor_kind_name(want);
        assert_int_equal(attn_tensor_kind_find(plain, strlen(plain)), k);
        for (uint32_t l = 0; l < 1000000000; l = l * 10 + 1) {
            size_t n = attn_tensor_name(want, l, name);
            assert_int_equal(n, strlen(name));
            assert_true(attn_tensor_parse(name, &kind, &layer));
            assert_int_equal(kind, k);
            assert_int_equal(layer, want == ATTN_TENSOR_EMBED ? 0 : l);
        }
    }
    attn_tensor_name(ATTN_TENSOR_PATTERN, 3, name);
    assert_string_equal(name, "blocks.3.attn.hook_pattern");
    attn_tensor_name(ATTN_TENSOR_VALUE, 0, name);
    assert_string_equal(name, "past_key_values.0.value");
    static const char *const wrong[] = {"",
                                        "hook_q",
                                        "hook_pattern",
                                        "blocks.0.hook_q",
                                        "blocks.0.attn.hook_attn_out",
                                        "blocks.01.attn.hook_q",
                                        "blocks..attn.hook_q",
                                        "blocks.-1.attn.hook_q",
                                        "blocks.9999999999.attn.hook_q",
                                        "blocks.0.attn.hook_q ",
                                        "blocks.0.attn.hook_q2",
                                        "blocks.0.attn.",
                                        "blocks.0",
                                        "blocks.0.attn.hook_Q",
                                        "past_key_values.0.keys",
                                        "past_key_values.key",
                                        "hook_embed0",
                                        "blocks.0.hook_embed",
                                        "Blocks.0.attn.hook_q"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(attn_tensor_parse(wrong[i], &kind, &layer));
    assert_int_equal(attn_tensor_kind_find("hook_", 5), ATTN_TENSOR_KINDS);
    assert_int_equal(attn_tensor_kind_find("hook_q_normed", 6), ATTN_TENSOR_Q);
}

/* ------------------------------------------------------------------------------ refusals */

/* The request is refused like that, and nothing was allocated or reserved for it. */
static void refuse(attn_engine *engine, const attn_request *request, attn_status status,
                   const char *param, const char *detail, uint64_t value)
{
    uint64_t account = inside_account(engine);
    run r = run_job(engine, request);
    assert_int_equal(r.submitted, status);
    assert_int_equal(r.error.status, status);
    if (param != NULL)
        assert_string_equal(r.error.param, param);
    else
        assert_null(r.error.param);
    if (detail != NULL) {
        assert_true(r.error.n_details > 0);
        assert_string_equal(r.error.details[0].name, detail);
        assert_int_equal(r.error.details[0].value, value);
    }
    assert_int_equal(inside_account(engine), account);
    run_free(&r);
}

static void refuse_look(attn_engine *engine, const char *session, attn_tensor_kind kind,
                        uint32_t layer, const uint64_t range[4], attn_status status,
                        const char *param, const char *detail, uint64_t value)
{
    attn_request r =
        inside_look_request(session, kind, layer, range[0], range[1], range[2], range[3]);
    refuse(engine, &r, status, param, detail, value);
}

static const uint64_t open_range[] = {0, OPEN_END, 0, OPEN_END};

static void test_what_is_not_there(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(0);
    prefill(engine, "a", 40);
    const attn_status not_found = ATTN_E_TENSOR_NOT_FOUND;
    refuse_look(engine, "b", ATTN_TENSOR_Q, 0, open_range, ATTN_E_SESSION_NOT_FOUND, "session",
                NULL, 0);
    refuse_look(engine, NULL, ATTN_TENSOR_Q, 0, open_range, ATTN_E_INVALID, "session", NULL, 0);
    refuse_look(engine, "a/b", ATTN_TENSOR_Q, 0, open_range, ATTN_E_INVALID, "session", NULL, 0);
    static const uint32_t layers[] = {LAYERS, 99, 255, 256, 100000, UINT32_MAX};
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        refuse_look(engine, "a", ATTN_TENSOR_PATTERN, layers[i], open_range, not_found, "name",
                    "limit", LAYERS);
        attn_request r =
            inside_look_request("a", ATTN_TENSOR_KEY, layers[i], 0, OPEN_END, 0, OPEN_END);
        r.model = "seed-attention";
        refuse(engine, &r, ATTN_E_MODEL_MISMATCH, "model", NULL, 0);
    }
    refuse_look(engine, "a", ATTN_TENSOR_KINDS, 0, open_range, not_found, "name", NULL, 0);
    refuse_look(engine, "a", (attn_tensor_kind)31, 0, open_range, not_found, "name", NULL, 0);
    static const attn_tensor_kind of_decoders[] = {ATTN_TENSOR_RESID_MID, ATTN_TENSOR_MLP_OUT,
                                                   ATTN_TENSOR_RESID_POST};
    for (size_t i = 0; i < 3; i++)
        refuse_look(engine, "a", of_decoders[i], 0, open_range, not_found, "name", NULL, 0);
    attn_engine_close(engine);

    engine = run_open((run_setup){.model = "mha-nonorm", .seed = 7});
    inside_inputs inputs = inside_inputs_of("mha-nonorm");
    run r = inside_fed(engine, ATTN_JOB_PREFILL, "a", &inputs, 0, 20, NULL);
    run_free(&r);
    refuse_look(engine, "a", ATTN_TENSOR_Q_NORMED, 0, open_range, not_found, "name", NULL, 0);
    refuse_look(engine, "a", ATTN_TENSOR_K_NORMED, 1, open_range, not_found, "name", NULL, 0);
    attn_engine_close(engine);
}

static void test_wrong_ranges(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(0);
    prefill(engine, "a", 40);
    static const struct {
        attn_tensor_kind kind;
        uint64_t range[4];
        const char *param;
    } wrong[] = {
        {ATTN_TENSOR_Q, {10, 5, 0, OPEN_END}, "q"},
        {ATTN_TENSOR_Q, {5, 5, 0, OPEN_END}, "q"},
        {ATTN_TENSOR_Q, {0, 41, 0, OPEN_END}, "q"},
        {ATTN_TENSOR_Q, {40, OPEN_END, 0, OPEN_END}, "q"},
        {ATTN_TENSOR_Q, {UINT64_MAX - 1, OPEN_END, 0, OPEN_END}, "q"},
        {ATTN_TENSOR_Q, {0, 1, 0, 1}, "k"},
        {ATTN_TENSOR_RESID_PRE, {0, 1, 1, OPEN_END}, "k"},
        {ATTN_TENSOR_PATTERN, {0, 10, 7, 3}, "k"},
        {ATTN_TENSOR_PATTERN, {0, 10, 3, 3}, "k"},
        {ATTN_TENSOR_PATTERN, {0, 10, 10, OPEN_END}, "k"},
        {ATTN_TENSOR_PATTERN, {0, 10, 0, 11}, "k"},
        {ATTN_TENSOR_SCORES, {10, 0, 0, 5}, "q"},
        {ATTN_TENSOR_SCORES, {UINT64_MAX - 2, UINT64_MAX - 1, 0, 5}, "q"},
        {ATTN_TENSOR_KEY, {0, 5, 0, OPEN_END}, "q"},
        {ATTN_TENSOR_KEY, {1, OPEN_END, 0, OPEN_END}, "q"},
        {ATTN_TENSOR_VALUE, {0, OPEN_END, 5, 5}, "k"},
        {ATTN_TENSOR_VALUE, {0, OPEN_END, 9, 5}, "k"},
        {ATTN_TENSOR_VALUE, {0, OPEN_END, 0, 41}, "k"},
        {ATTN_TENSOR_VALUE, {0, OPEN_END, 40, OPEN_END}, "k"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        refuse_look(engine, "a", wrong[i].kind, 1, wrong[i].range, ATTN_E_INVALID, wrong[i].param,
                    NULL, 0);
    attn_error err;
    assert_int_equal(attn_session_truncate(engine, "a", 0, OPEN_END, NULL, &err), ATTN_OK);
    refuse_look(engine, "a", ATTN_TENSOR_Q, 0, open_range, ATTN_E_INVALID, "q", NULL, 0);
    refuse_look(engine, "a", ATTN_TENSOR_KEY, 0, open_range, ATTN_E_INVALID, "k", NULL, 0);
    attn_engine_close(engine);
}

static void test_wrong_heads(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(0);
    prefill(engine, "a", 40);
    static const struct {
        attn_tensor_kind kind;
        size_t head;
        attn_status status;
        uint64_t limit;
    } wrong[] = {
        {ATTN_TENSOR_Q, HEADS, ATTN_E_TENSOR_NOT_FOUND, HEADS},
        {ATTN_TENSOR_PATTERN, 255, ATTN_E_TENSOR_NOT_FOUND, HEADS},
        {ATTN_TENSOR_K, KV_HEADS, ATTN_E_TENSOR_NOT_FOUND, KV_HEADS},
        {ATTN_TENSOR_KEY, 5, ATTN_E_TENSOR_NOT_FOUND, KV_HEADS},
        {ATTN_TENSOR_ATTN_OUT, 0, ATTN_E_INVALID, 0},
        {ATTN_TENSOR_EMBED, 0, ATTN_E_INVALID, 0},
        {ATTN_TENSOR_Z, ATTN_CHOICE_MAX, ATTN_E_INVALID, 0}, /* none */
        {ATTN_TENSOR_VALUE, ATTN_CHOICE_MAX, ATTN_E_INVALID, 0},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        attn_request r = inside_look_request("a", wrong[i].kind, 0, 0, OPEN_END, 0, OPEN_END);
        r.some_heads = true;
        if (wrong[i].head < ATTN_CHOICE_MAX)
            attn_choice_add(&r.heads, wrong[i].head);
        refuse(engine, &r, wrong[i].status, "heads", wrong[i].limit > 0 ? "limit" : NULL,
               wrong[i].limit);
    }
    attn_engine_close(engine);
}

static void refuse_trace(attn_engine *engine, const attn_selection *selection, attn_status status,
                         const char *param, const char *detail, uint64_t value)
{
    inside_inputs inputs = inside_long_inputs();
    attn_session_info before, after, none;
    assert_int_equal(attn_session_get(engine, "a", &before, NULL), ATTN_OK);
    attn_request r = inside_feed(ATTN_JOB_PREFILL, "a", &inputs, 0, 10, selection);
    refuse(engine, &r, status, param, detail, value);
    r.session = "new";
    refuse(engine, &r, status, param, detail, value);
    r = inside_feed(ATTN_JOB_DECODE, "a", &inputs, 0, 10, selection);
    refuse(engine, &r, status, param, detail, value);
    assert_int_equal(attn_session_get(engine, "new", &none, NULL), ATTN_E_SESSION_NOT_FOUND);
    assert_int_equal(attn_session_get(engine, "a", &after, NULL), ATTN_OK);
    assert_int_equal(after.length, before.length);
    assert_false(after.in_flight);
}

static void test_wrong_traces(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(0);
    prefill(engine, "a", 40);
    const attn_selection all = inside_everything(engine);
    attn_selection s = {0};
    refuse_trace(engine, &s, ATTN_E_INVALID, "tensors", NULL, 0);
    s.tensors = 1u << ATTN_TENSOR_RESID_MID | 1u << ATTN_TENSOR_Q;
    refuse_trace(engine, &s, ATTN_E_TENSOR_NOT_FOUND, "tensors", NULL, 0);
    s.tensors = 1u << 31;
    refuse_trace(engine, &s, ATTN_E_TENSOR_NOT_FOUND, "tensors", NULL, 0);
    s.tensors = all.tensors | 1u << ATTN_TENSOR_KEY;
    refuse_trace(engine, &s, ATTN_E_INVALID, "tensors", NULL, 0);
    s.tensors = 1u << ATTN_TENSOR_VALUE;
    refuse_trace(engine, &s, ATTN_E_INVALID, "tensors", NULL, 0);
    s = all;
    s.some_layers = true;
    refuse_trace(engine, &s, ATTN_E_INVALID, "layers", NULL, 0);
    attn_choice_add(&s.layers, LAYERS);
    refuse_trace(engine, &s, ATTN_E_TENSOR_NOT_FOUND, "layers", "limit", LAYERS);
    s = all;
    s.some_heads = true;
    refuse_trace(engine, &s, ATTN_E_INVALID, "heads", NULL, 0);
    attn_choice_add(&s.heads, 0);
    attn_choice_add(&s.heads, 200);
    refuse_trace(engine, &s, ATTN_E_TENSOR_NOT_FOUND, "heads", "limit", HEADS);
    attn_engine_close(engine);
}

static void test_too_large(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(0);
    inside_inputs inputs = inside_long_inputs();
    prefill(engine, "a", INSIDE_LONG);
    const uint64_t whole = (uint64_t)HEADS * INSIDE_LONG * INSIDE_LONG * sizeof(float);
    refuse_look(engine, "a", ATTN_TENSOR_PATTERN, 0, open_range, ATTN_E_TENSOR_TOO_LARGE, "q",
                "bytes", whole);
    attn_selection s = {.tensors = 1u << ATTN_TENSOR_PATTERN};
    attn_request r = inside_feed(ATTN_JOB_PREFILL, "new", &inputs, 0, INSIDE_LONG, &s);
    refuse(engine, &r, ATTN_E_TENSOR_TOO_LARGE, "trace", "bytes", LAYERS * whole);
    attn_session_info info;
    assert_int_equal(attn_session_get(engine, "new", &info, NULL), ATTN_E_SESSION_NOT_FOUND);
    /* The whole of one head is not too large, nor a row of all. */
    r = inside_look_request("a", ATTN_TENSOR_PATTERN, 2, 0, OPEN_END, 0, OPEN_END);
    r.some_heads = true;
    attn_choice_add(&r.heads, 3);
    run look = run_job(engine, &r);
    assert_int_equal(look.reason, ATTN_REASON_LENGTH);
    inside_assert_causal(look.trace);
    attn_trace *row =
        inside_look(engine, "a", ATTN_TENSOR_PATTERN, 2, INSIDE_LONG - 1, INSIDE_LONG, 0, OPEN_END);
    inside_assert_same_row(row, look.trace, ATTN_TENSOR_PATTERN, 2, INSIDE_LONG - 1);
    attn_trace_release(row);
    run_free(&look);
    attn_engine_close(engine);
}

static void test_inputs_that_were_not_kept(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(0);
    inside_inputs inputs = inside_long_inputs();
    attn_selection all = inside_everything(engine);
    attn_request request = inside_feed(ATTN_JOB_PREFILL, "a", &inputs, 0, 40, &all);
    request.has_keep_inputs = true;
    run r = run_job(engine, &request);
    assert_int_equal(r.reason, ATTN_REASON_LENGTH);
    for (int kind = 0; kind < ATTN_TENSOR_KEY; kind++) {
        if ((all.tensors >> kind & 1) != 0)
            refuse_look(engine, "a", (attn_tensor_kind)kind, 0, open_range, ATTN_E_INPUTS_NOT_KEPT,
                        NULL, NULL, 0);
    }
    attn_trace *key = inside_look(engine, "a", ATTN_TENSOR_KEY, 1, 0, OPEN_END, 0, OPEN_END);
    assert_memory_equal(key->tensors[0].data, inside_tensor(r.trace, ATTN_TENSOR_ROT_K, 1)->data,
                        40 * KV_HEADS * HEAD_DIM * sizeof(float));
    attn_trace_release(key);
    attn_request head = inside_look_request("a", ATTN_TENSOR_VALUE, 2, 0, OPEN_END, 7, 9);
    head.some_heads = true;
    attn_choice_add(&head.heads, 1);
    run value = run_job(engine, &head);
    assert_int_equal(value.reason, ATTN_REASON_LENGTH);
    assert_int_equal(value.trace->tensors[0].shape[0], 2);
    assert_int_equal(value.trace->tensors[0].shape[1], 1);
    const float *v = inside_tensor(r.trace, ATTN_TENSOR_V, 2)->data;
    for (size_t i = 0; i < 2; i++)
        assert_memory_equal(value.trace->tensors[0].data + i * HEAD_DIM,
                            v + ((7 + i) * KV_HEADS + 1) * HEAD_DIM, HEAD_DIM * sizeof *v);
    run_free(&value);
    run_free(&r);
    attn_engine_close(engine);
}

/* A look costs nothing of the budget: there is no room for a session's record any more, and still
 * everything can be looked at. */
static void test_a_full_budget(void **state)
{
    (void)state;
    attn_engine *engine = open_chain(4u << 20);
    inside_inputs inputs = inside_long_inputs();
    prefill(engine, "a", 41);
    attn_totals totals;
    for (int i = 0;; i++) { /* until no page is left, but some bytes */
        char id[16];
        snprintf(id, sizeof id, "fill%d", i);
        attn_request r = inside_feed(ATTN_JOB_PREFILL, id, &inputs, 0, 1, NULL);
        run full = run_job(engine, &r);
        run_free(&full);
        if (full.submitted == ATTN_E_KV_BUDGET)
            break;
        assert_int_equal(full.submitted, ATTN_OK);
    }
    attn_engine_totals(engine, &totals);
    assert_int_equal(totals.reserved_bytes, 0);
    attn_request fork = inside_feed(ATTN_JOB_PREFILL, "a", &inputs, 0, 8, NULL);
    run refused = run_job(engine, &fork);
    assert_int_equal(refused.submitted, ATTN_E_KV_BUDGET);
    attn_trace *row = inside_look(engine, "a", ATTN_TENSOR_PATTERN, 0, 40, OPEN_END, 0, OPEN_END);
    inside_assert_causal(row);
    attn_trace_release(row);
    attn_trace *key = inside_look(engine, "a", ATTN_TENSOR_KEY, 0, 0, OPEN_END, 0, OPEN_END);
    assert_int_equal(key->n_keys, 41);
    attn_trace_release(key);
    attn_totals after;
    attn_engine_totals(engine, &after);
    assert_int_equal(after.allocated_bytes + after.reserved_bytes, totals.allocated_bytes);
    attn_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_what_is_not_there),
        cmocka_unit_test(test_wrong_ranges),
        cmocka_unit_test(test_wrong_heads),
        cmocka_unit_test(test_wrong_traces),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_inputs_that_were_not_kept),
        cmocka_unit_test(test_a_full_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
