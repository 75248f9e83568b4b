/* The engine's boundary: what is admitted, what is refused and why, what sessions cost and keep. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <time.h>

#include "engine/model/philox.h"
#include "tests/unit/engine_run.h"

/* The seed model's row, and the sizes of its page. */
#define HIDDEN 16
#define PAGE_KV (16 * 2 * 2 * 8 * 4)
#define PAGE_INPUTS (16 * HIDDEN * 4)
#define N_ROWS 400

static float rows[N_ROWS * HIDDEN];

static int make_rows(void **state)
{
    (void)state;
    attn_philox_uniform(1, "rows", 1.0f, 0, N_ROWS * HIDDEN, rows);
    return 0;
}

static run prefill(attn_engine *engine, const char *id, size_t first, size_t n)
{
    return run_prefill(engine, id, NULL, rows + first * HIDDEN, n, HIDDEN, ATTN_OUTPUT_ALL);
}

static void append(attn_engine *engine, const char *id, size_t first, size_t n)
{
    run r = prefill(engine, id, first, n);
    assert_int_equal(r.submitted, ATTN_OK);
    assert_int_equal(r.reason, ATTN_REASON_LENGTH);
    run_free(&r);
}

static attn_request request(attn_job_kind kind, const char *id, size_t n_rows)
{
    attn_request r = attn_request_init(kind);
    r.session = id;
    r.inputs = n_rows > 0 ? rows : NULL;
    r.n_inputs = n_rows;
    r.input_size = HIDDEN;
    return r;
}

/* Submission refuses the request with that status, naming that field. */
static attn_error refused(attn_engine *engine, const attn_request *r, attn_status status,
                          const char *param)
{
    run result = run_job(engine, r);
    if (result.submitted != status)
        fail_msg("%d, not %d: %s", (int)result.submitted, (int)status, result.error.message);
    assert_int_equal(result.error.status, status);
    if (param == NULL)
        assert_null(result.error.param);
    else
        assert_string_equal(result.error.param, param);
    return result.error;
}

static void check_detail(const attn_error *err, unsigned i, const char *name, uint64_t value)
{
    assert_true(i < err->n_details);
    assert_string_equal(err->details[i].name, name);
    assert_int_equal(err->details[i].value, value);
}

static attn_session_info info_of(attn_engine *engine, const char *id)
{
    attn_session_info info;
    assert_int_equal(attn_session_get(engine, id, &info, NULL), ATTN_OK);
    return info;
}

static bool exists(attn_engine *engine, const char *id)
{
    attn_session_info info;
    attn_error err;
    attn_status status = attn_session_get(engine, id, &info, &err);
    assert_true(status == ATTN_OK || status == ATTN_E_SESSION_NOT_FOUND);
    return status == ATTN_OK;
}

static void check_unused(attn_engine *engine)
{
    attn_totals t;
    attn_engine_totals(engine, &t);
    assert_int_equal(t.sessions, 0);
    assert_int_equal(t.positions, 0);
    assert_int_equal(t.kv.bytes + t.kv.n_pages + t.inputs_bytes + t.table_bytes, 0);
    assert_int_equal(t.allocated_bytes, 0);
    assert_int_equal(t.reserved_bytes, 0);
    assert_int_equal(t.available_bytes, t.budget_bytes);
}

/* ------------------------------------------------------------------------------------- opening */

static attn_error cannot_open(attn_options options)
{
    attn_error err = {0};
    options.kernels = options.kernels ? options.kernels : "auto";
    options.kv_memory_bytes = 1u << 20;
    options.max_sessions = options.queue = 10;
    assert_null(attn_engine_open(&options, &err));
    assert_null(strchr(err.message, '\n'));
    assert_null(attn_engine_open(&options, NULL));
    return err;
}

static void test_what_cannot_be_opened(void **state)
{
    (void)state;
    attn_error err = cannot_open((attn_options){.n_threads = 0});
    assert_int_equal(err.status, ATTN_E_INVALID);
    assert_string_equal(err.param, "threads");
    err = cannot_open((attn_options){.n_threads = 1025});
    assert_string_equal(err.param, "threads");
    err = cannot_open((attn_options){.n_threads = 1, .kernels = "sse9"});
    assert_int_equal(err.status, ATTN_E_INVALID);
    assert_string_equal(err.param, "kernels");

    attn_model_source sources[2] = {{.dir = "/nowhere"}};
    attn_options options = {.n_threads = 1, .models = sources, .n_models = 1};
    err = cannot_open(options);
    assert_int_equal(err.status, ATTN_E_IO);
    assert_non_null(strstr(err.message, "/nowhere/config.json"));
    /* Weights are missing and no seed stands in for them. */
    sources[0].dir = MODELS "chain3";
    err = cannot_open(options);
    assert_int_equal(err.status, ATTN_E_IO);
    assert_non_null(strstr(err.message, "model.safetensors"));

    options.has_random_seed = true;
    static const char *const bad[] = {"",
                                      "a b",
                                      "a/b",
                                      "..",
                                      ".",
                                      "\xc3\xa9",
                                      "a\n",
                                      "12345678901234567890123456789012345678901234567890"
                                      "123456789012345"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        sources[0].name = bad[i];
        err = cannot_open(options);
        assert_int_equal(err.status, ATTN_E_INVALID);
        assert_string_equal(err.param, "models");
    }
    sources[0].name = "chain";
    options.default_model = "chain3";
    err = cannot_open(options);
    assert_int_equal(err.status, ATTN_E_INVALID);
    assert_string_equal(err.param, "default_model");
    options.default_model = NULL;
    options.n_models = 2;
    sources[0] = (attn_model_source){.dir = MODELS "chain3"};
    sources[1] = (attn_model_source){.dir = MODELS "mqa", .name = "chain3"};
    err = cannot_open(options);
    assert_int_equal(err.status, ATTN_E_INVALID);
    assert_non_null(strstr(err.message, "chain3"));
    attn_engine_close(NULL);
}

static void test_models(void **state)
{
    (void)state;
    const attn_model_source sources[] = {
        {.dir = MODELS "chain3///"}, {.dir = MODELS "mqa", .name = "other"}, {.dir = MODELS "mqa"}};
    attn_options options = {.models = sources,
                            .n_models = 3,
                            .has_random_seed = true,
                            .n_threads = 3,
                            .kv_memory_bytes = 1u << 20,
                            .max_sessions = 10,
                            .queue = 10,
                            .kernels = "scalar"};
    attn_engine *engine = attn_engine_open(&options, NULL);
    assert_non_null(engine);
    assert_string_equal(attn_engine_kernels(engine), "scalar");
    assert_int_equal(attn_engine_threads(engine), 3);
    static const char *const names[] = {"chain3", "other", "mqa", "stories", "seed-attention"};
    assert_int_equal(attn_model_count(engine), 5);
    for (int i = 0; i < 5; i++) {
        attn_model_info info;
        attn_model_get(engine, (size_t)i, &info);
        assert_string_equal(info.name, names[i]);
        assert_int_equal(attn_model_find(engine, names[i]), i);
        assert_int_equal(info.built_in, i >= 3);
        assert_int_equal(info.random_weights, i < 3);
    }
    assert_int_equal(attn_model_find(engine, NULL), 0);
    assert_int_equal(attn_model_find(engine, "chain"), -1);
    attn_model_info info;
    attn_model_get(engine, 4, &info);
    assert_string_equal(info.model_type, "attention");
    assert_int_equal(info.hidden_size, HIDDEN);
    assert_int_equal(info.num_attention_heads, 4);
    assert_int_equal(info.num_key_value_heads, 2);
    assert_int_equal(info.head_dim, 8);
    assert_int_equal(info.max_position_embeddings, 32768);
    assert_int_equal(info.kv_bytes_per_position[ATTN_F32], PAGE_KV / 16);
    assert_int_equal(info.input_bytes_per_position, PAGE_INPUTS / 16);
    assert_int_equal(info.n_parameters, 1552);
    assert_int_equal(info.weights_dtype, ATTN_F32);
    assert_false(info.is_language_model);
    attn_engine_close(engine);

    /* Another default model becomes the first; the others keep their order. */
    options.default_model = "mqa";
    engine = attn_engine_open(&options, NULL);
    static const char *const moved[] = {"mqa", "chain3", "other", "stories", "seed-attention"};
    for (int i = 0; i < 5; i++)
        assert_int_equal(attn_model_find(engine, moved[i]), i);
    attn_engine_close(engine);
    options.default_model = NULL;

    /* A model of a built-in one's name takes its place. */
    const attn_model_source instead = {.dir = MODELS "chain3", .name = "seed-attention"};
    options.models = &instead;
    options.n_models = 1;
    engine = attn_engine_open(&options, NULL);
    assert_int_equal(attn_model_count(engine), 2);
    attn_model_get(engine, 0, &info);
    assert_int_equal(info.hidden_size, 96);
    assert_false(info.built_in);
    attn_engine_close(engine);
}

static void test_session_ids(void **state)
{
    (void)state;
    static const char *const good[] = {
        "a", "A-Z", "0", "...", "a.b_c:d-e",
        "-", "_",   ":", ".a",  "1234567890123456789012345678901234567890123456789012345678901234"};
    static const char *const bad[] = {
        "",         ".",
        "..",       " ",
        "a ",       "a/b",
        "a\\b",     "a\tb",
        "a%",       "\x80",
        "\xc3\xa9", "a+b",
        "a~",       "12345678901234567890123456789012345678901234567890123456789012345"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(attn_session_id_valid(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(attn_session_id_valid(bad[i]));
}

/* ------------------------------------------------------------------------------------ sessions */

static void test_what_a_session_costs(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    attn_totals t;
    check_unused(engine);
    uint64_t length = 0, record = 0;
    for (size_t n = 1; length + n <= 200; n += 3) {
        run r = prefill(engine, "a", length, n);
        length += n;
        assert_int_equal(r.appended, n);
        assert_int_equal(r.session.length, length);
        attn_session_info info = info_of(engine, "a");
        uint64_t pages = (length + 15) / 16;
        assert_int_equal(info.length, length);
        assert_int_equal(info.kv.n_pages, pages);
        assert_int_equal(info.kv.bytes, pages * PAGE_KV);
        assert_int_equal(info.kv.reserved_bytes, 0);
        assert_int_equal(info.inputs_bytes, pages * PAGE_INPUTS);
        assert_int_equal(info.state, ATTN_SESSION_IDLE);
        assert_false(info.in_flight);
        assert_string_equal(info.model, "seed-attention");
        assert_memory_equal(&info, &r.session, sizeof info);
        attn_engine_totals(engine, &t);
        assert_int_equal(t.sessions, 1);
        assert_int_equal(t.positions, length);
        assert_int_equal(t.kv.bytes, info.kv.bytes);
        assert_int_equal(t.inputs_bytes, info.inputs_bytes);
        assert_int_equal(t.allocated_bytes, t.kv.bytes + t.inputs_bytes + t.table_bytes);
        assert_int_equal(t.reserved_bytes, 0);
        assert_int_equal(t.available_bytes, t.budget_bytes - t.allocated_bytes);
        /* The record, and 4 bytes a page. */
        record = record ? record : t.table_bytes - 4 * pages;
        assert_int_equal(t.table_bytes, record + 4 * pages);
        run_free(&r);
    }
    append(engine, "b", 0, 20);
    attn_engine_totals(engine, &t);
    assert_int_equal(t.sessions, 2);
    assert_int_equal(t.positions, length + 20);
    assert_int_equal(t.table_bytes, 2 * record + 4 * t.kv.n_pages);
    assert_int_equal(attn_session_delete(engine, "a", NULL), ATTN_OK);
    attn_engine_totals(engine, &t);
    assert_int_equal(t.allocated_bytes, record + 2 * (4 + PAGE_KV + PAGE_INPUTS));
    assert_int_equal(attn_session_delete(engine, "b", NULL), ATTN_OK);
    check_unused(engine);
    attn_error err;
    assert_int_equal(attn_session_delete(engine, "b", &err), ATTN_E_SESSION_NOT_FOUND);
    assert_string_equal(err.param, "session");
    attn_engine_close(engine);
}

static void test_output_choices(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    run all = prefill(engine, "all", 0, 37);
    run last = run_prefill(engine, "last", NULL, rows, 37, HIDDEN, ATTN_OUTPUT_LAST);
    run none = run_prefill(engine, "none", NULL, rows, 37, HIDDEN, ATTN_OUTPUT_NONE);
    assert_int_equal(all.n_outputs, 37);
    assert_int_equal(last.n_outputs, 1);
    assert_int_equal(last.output_size, HIDDEN);
    assert_memory_equal(last.outputs, all.outputs + 36 * HIDDEN, HIDDEN * sizeof(float));
    assert_int_equal(none.n_outputs, 0);
    run_free(&all);
    run_free(&last);
    run_free(&none);
    attn_engine_close(engine);
}

static void test_made_ids(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    char ids[50][ATTN_ID_MAX + 1];
    for (int i = 0; i < 50; i++) {
        run r = prefill(engine, NULL, 0, 1);
        assert_int_equal(r.reason, ATTN_REASON_LENGTH);
        assert_true(attn_session_id_valid(r.session.id));
        memcpy(ids[i], r.session.id, sizeof ids[i]);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(ids[i], ids[k]);
        append(engine, ids[i], 1, 1);
        assert_int_equal(info_of(engine, ids[i]).length, 2);
        run_free(&r);
    }
    attn_engine_close(engine);
}

static void test_kept_inputs(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    static float read[60 * HIDDEN];
    attn_error err;
    append(engine, "a", 0, 20);
    run d = run_decode(engine, "a", rows + 20 * HIDDEN, 10, HIDDEN);
    run s = run_steps(engine, "a", 10);
    assert_int_equal(s.n_outputs, 10);
    assert_int_equal(attn_session_inputs(engine, "a", 0, 40, read, &err), ATTN_OK);
    assert_memory_equal(read, rows, 30 * HIDDEN * sizeof(float));
    /* What was fed back in: each step's output is the next one's input. */
    assert_memory_equal(read + 30 * HIDDEN, d.outputs + 9 * HIDDEN, HIDDEN * sizeof(float));
    assert_memory_equal(read + 31 * HIDDEN, s.outputs, 9 * HIDDEN * sizeof(float));
    assert_int_equal(attn_session_inputs(engine, "a", 17, 3, read, &err), ATTN_OK);
    assert_memory_equal(read, rows + 17 * HIDDEN, 3 * HIDDEN * sizeof(float));
    assert_int_equal(attn_session_inputs(engine, "a", 40, 0, read, &err), ATTN_OK);
    assert_int_equal(attn_session_inputs(engine, "a", 40, 1, read, &err), ATTN_E_INVALID);
    assert_string_equal(err.param, "length");
    assert_int_equal(attn_session_inputs(engine, "a", 41, 0, read, &err), ATTN_E_INVALID);
    assert_int_equal(attn_session_inputs(engine, "a", UINT64_MAX, 2, read, &err), ATTN_E_INVALID);
    assert_int_equal(attn_session_inputs(engine, "x", 0, 1, read, &err), ATTN_E_SESSION_NOT_FOUND);
    run_free(&d);
    run_free(&s);
    attn_engine_close(engine);
}

static void test_inputs_that_are_not_kept(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    float row[HIDDEN];
    attn_session_info info;
    attn_error err;
    attn_request r = request(ATTN_JOB_PREFILL, "a", 30);
    r.has_keep_inputs = true;
    r.keep_inputs = false;
    run p = run_job(engine, &r);
    assert_int_equal(p.session.inputs_bytes, 0);
    assert_int_equal(p.session.kv.bytes, 2 * PAGE_KV);
    assert_int_equal(attn_session_inputs(engine, "a", 0, 1, row, &err), ATTN_E_INPUTS_NOT_KEPT);
    r = request(ATTN_JOB_VERIFY, "a", 0);
    refused(engine, &r, ATTN_E_INPUTS_NOT_KEPT, NULL);
    /* The last output is there, so that decode may go on; after a truncate it must be replayed. */
    run s = run_steps(engine, "a", 2);
    assert_int_equal(s.steps, 2);
    assert_int_equal(attn_session_truncate(engine, "a", 20, UINT64_MAX, &info, NULL), ATTN_OK);
    r = request(ATTN_JOB_DECODE, "a", 0);
    r.steps = 1;
    refused(engine, &r, ATTN_E_INPUTS_NOT_KEPT, NULL);
    run d = run_decode(engine, "a", rows + 20 * HIDDEN, 10, HIDDEN);
    assert_int_equal(d.reason, ATTN_REASON_LENGTH);
    /* A truncate to the present length forgets nothing. */
    assert_int_equal(attn_session_truncate(engine, "a", 30, 30, &info, NULL), ATTN_OK);
    run s2 = run_steps(engine, "a", 2);
    assert_memory_equal(s2.outputs, s.outputs, 2 * HIDDEN * sizeof(float));
    run_free(&p);
    run_free(&s);
    run_free(&d);
    run_free(&s2);
    assert_int_equal(attn_session_delete(engine, "a", NULL), ATTN_OK);
    check_unused(engine);
    attn_engine_close(engine);
}

/* Rewound to any length, a session goes on as it did then. */
static void test_truncate(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    attn_session_info info;
    attn_error err;
    run p = prefill(engine, "a", 0, 20), s = run_steps(engine, "a", 30);
    for (uint64_t length = 49; length >= 1; length--) {
        assert_int_equal(attn_session_truncate(engine, "a", length, length + 1, &info, &err),
                         ATTN_OK);
        assert_int_equal(info.length, length);
        assert_int_equal(info.kv.n_pages, (length + 15) / 16);
        /* One step there: the same bits again, whether it fed back a row or an output. */
        run again = length < 20 ? run_decode(engine, "a", rows + length * HIDDEN, 1, HIDDEN)
                                : run_steps(engine, "a", 1);
        assert_int_equal(again.reason, ATTN_REASON_LENGTH);
        const float *before =
            length < 20 ? p.outputs + length * HIDDEN : s.outputs + (length - 20) * HIDDEN;
        assert_memory_equal(again.outputs, before, HIDDEN * sizeof(float));
        run_free(&again);
        assert_int_equal(attn_session_truncate(engine, "a", length, UINT64_MAX, &info, &err),
                         ATTN_OK);
    }
    /* Feeding back after a truncate into the prefill: the replayed output is the prefill's. */
    append(engine, "a", 1, 9);
    run fed = run_steps(engine, "a", 1);
    append(engine, "b", 0, 10);
    run_free(&fed);
    fed = run_steps(engine, "b", 1);
    assert_int_equal(attn_session_truncate(engine, "a", 10, UINT64_MAX, &info, &err), ATTN_OK);
    run replayed = run_steps(engine, "a", 1);
    assert_memory_equal(replayed.outputs, fed.outputs, HIDDEN * sizeof(float));
    run v = run_verify(engine, "a");
    assert_true(v.bit_identical);

    assert_int_equal(attn_session_truncate(engine, "a", 12, UINT64_MAX, &info, &err),
                     ATTN_E_INVALID);
    assert_string_equal(err.param, "length");
    assert_int_equal(attn_session_truncate(engine, "a", 5, 12, &info, &err),
                     ATTN_E_LENGTH_MISMATCH);
    check_detail(&err, 0, "length", 11);
    assert_int_equal(attn_session_truncate(engine, "x", 0, UINT64_MAX, &info, &err),
                     ATTN_E_SESSION_NOT_FOUND);
    assert_int_equal(info_of(engine, "a").length, 11);
    /* To nothing: it then costs its record alone and needs something to feed. */
    assert_int_equal(attn_session_truncate(engine, "a", 0, 11, &info, &err), ATTN_OK);
    assert_int_equal(info.kv.bytes + info.inputs_bytes, 0);
    attn_request r = request(ATTN_JOB_DECODE, "a", 0);
    r.steps = 1;
    refused(engine, &r, ATTN_E_INVALID, "input");
    run d = run_decode(engine, "a", rows, 3, HIDDEN);
    assert_memory_equal(d.outputs, p.outputs, 3 * HIDDEN * sizeof(float));
    run_free(&d);
    run_free(&p);
    run_free(&s);
    run_free(&fed);
    run_free(&replayed);
    run_free(&v);
    attn_engine_close(engine);
}

/* ----------------------------------------------------------------------------------- refusals */

static void test_if_length(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    attn_request r = request(ATTN_JOB_PREFILL, "a", 5);
    r.if_length = 1;
    attn_error err = refused(engine, &r, ATTN_E_LENGTH_MISMATCH, "if_length");
    check_detail(&err, 0, "length", 0);
    assert_false(exists(engine, "a"));
    check_unused(engine);
    r.if_length = 0;
    run ok = run_job(engine, &r);
    assert_int_equal(ok.reason, ATTN_REASON_LENGTH);
    run_free(&ok);
    err = refused(engine, &r, ATTN_E_LENGTH_MISMATCH, "if_length"); /* a retry */
    check_detail(&err, 0, "length", 5);
    r = request(ATTN_JOB_DECODE, "a", 0);
    r.steps = 2;
    r.if_length = 4;
    err = refused(engine, &r, ATTN_E_LENGTH_MISMATCH, "if_length");
    check_detail(&err, 0, "length", 5);
    r.if_length = 5;
    ok = run_job(engine, &r);
    assert_int_equal(ok.steps, 2);
    run_free(&ok);
    assert_int_equal(info_of(engine, "a").length, 7);
    attn_engine_close(engine);
}

static void test_options_must_match(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){.model = "mqa", .ttl_s = 77});
    attn_request r = request(ATTN_JOB_PREFILL, "a", 2);
    r.model = "seed-attention";
    r.has_keep_inputs = r.keep_inputs = true;
    run ok = run_job(engine, &r);
    assert_int_equal(ok.reason, ATTN_REASON_LENGTH);
    assert_int_equal(ok.session.ttl_s, 77);
    run_free(&ok);
    r.has_ttl = true;
    r.ttl_s = 77;
    r.has_kv_dtype = true;
    ok = run_job(engine, &r); /* saying the same again is no difference */
    assert_int_equal(ok.session.length, 4);
    run_free(&ok);
    r.ttl_s = 78;
    refused(engine, &r, ATTN_E_SESSION_EXISTS, "ttl_s");
    r.has_ttl = false;
    r.keep_inputs = false;
    refused(engine, &r, ATTN_E_SESSION_EXISTS, "keep_inputs");
    r.keep_inputs = true;
    r.kv_dtype = ATTN_BF16;
    refused(engine, &r, ATTN_E_SESSION_EXISTS, "kv_dtype");
    r.kv_dtype = ATTN_F32;
    r.model = "mqa";
    refused(engine, &r, ATTN_E_MODEL_MISMATCH, "model");
    r.session = "b";
    r.model = "nobody";
    refused(engine, &r, ATTN_E_MODEL_NOT_FOUND, "model");
    r.model = NULL; /* the default: mqa, whose rows are longer */
    refused(engine, &r, ATTN_E_INVALID, "inputs");
    assert_false(exists(engine, "b"));
    assert_int_equal(info_of(engine, "a").length, 4);
    attn_engine_close(engine);
}

static void test_wrong_requests(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    attn_request r = request(ATTN_JOB_PREFILL, "a", 0);
    refused(engine, &r, ATTN_E_INVALID, "inputs");
    r = request(ATTN_JOB_PREFILL, "a b", 1);
    refused(engine, &r, ATTN_E_INVALID, "session");
    r = request(ATTN_JOB_PREFILL, "a", 1);
    r.input_size = HIDDEN - 1;
    refused(engine, &r, ATTN_E_INVALID, "inputs");
    r = request(ATTN_JOB_DECODE, NULL, 1);
    refused(engine, &r, ATTN_E_INVALID, "session");
    r = request(ATTN_JOB_VERIFY, NULL, 0);
    refused(engine, &r, ATTN_E_INVALID, "session");
    r = request(ATTN_JOB_DECODE, "a", 0);
    refused(engine, &r, ATTN_E_INVALID, "steps");
    r.steps = 1;
    refused(engine, &r, ATTN_E_SESSION_NOT_FOUND, "session");
    r = request(ATTN_JOB_VERIFY, "a", 0);
    refused(engine, &r, ATTN_E_SESSION_NOT_FOUND, "session");
    check_unused(engine);
    append(engine, "a", 0, 1);
    r = request(ATTN_JOB_DECODE, "a", 1);
    r.input_size = HIDDEN + 1;
    refused(engine, &r, ATTN_E_INVALID, "inputs");
    static const uint32_t token = 1;
    r = request(ATTN_JOB_PREFILL, "a", 0);
    r.tokens = &token;
    r.n_tokens = 1;
    refused(engine, &r, ATTN_E_INVALID, "tokens");
    r = request(ATTN_JOB_PREFILL, "a", 0);
    r.text = "x";
    r.text_len = 1;
    refused(engine, &r, ATTN_E_INVALID, "text");
    assert_int_equal(info_of(engine, "a").length, 1);
    attn_engine_close(engine);
}

static void test_verify(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    attn_session_info info;
    append(engine, "a", 0, 300);
    run s = run_steps(engine, "a", 50);
    attn_totals before, after;
    attn_engine_totals(engine, &before);
    run v = run_verify(engine, "a");
    assert_int_equal(v.reason, ATTN_REASON_LENGTH);
    assert_true(v.bit_identical && v.max_abs_diff == 0.0);
    attn_engine_totals(engine, &after);
    assert_memory_equal(&before, &after, sizeof before);
    /* After a truncate, and of nothing at all. */
    assert_int_equal(attn_session_truncate(engine, "a", 17, UINT64_MAX, &info, NULL), ATTN_OK);
    v = run_verify(engine, "a");
    assert_true(v.bit_identical);
    assert_int_equal(attn_session_truncate(engine, "a", 0, UINT64_MAX, &info, NULL), ATTN_OK);
    v = run_verify(engine, "a");
    assert_int_equal(v.reason, ATTN_REASON_LENGTH);
    assert_true(v.bit_identical && v.max_abs_diff == 0.0);
    run_free(&s);
    assert_int_equal(attn_session_delete(engine, "a", NULL), ATTN_OK);
    check_unused(engine);
    attn_engine_close(engine);
}

static void test_context_length(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){.model = "mha-nonorm"});
    const size_t hidden = 40, limit = 4096;
    float *long_rows = calloc(limit + 1, hidden * sizeof *long_rows);
    attn_philox_uniform(3, "rows", 1.0f, 0, (limit + 1) * hidden, long_rows);
    attn_request r = attn_request_init(ATTN_JOB_PREFILL);
    r.session = "a";
    r.inputs = long_rows;
    r.input_size = hidden;
    r.output = ATTN_OUTPUT_NONE;
    r.n_inputs = limit + 1;
    attn_error err = refused(engine, &r, ATTN_E_CONTEXT_LENGTH, "inputs");
    check_detail(&err, 0, "length", 0);
    check_detail(&err, 1, "requested", limit + 1);
    check_detail(&err, 2, "limit", limit);
    check_unused(engine);
    r.n_inputs = limit - 6;
    run p = run_job(engine, &r);
    assert_int_equal(p.session.length, limit - 6);
    r.kind = ATTN_JOB_DECODE;
    r.n_inputs = 7;
    err = refused(engine, &r, ATTN_E_CONTEXT_LENGTH, "inputs");
    check_detail(&err, 0, "length", limit - 6);
    r.n_inputs = 0;
    static const uint64_t too_many[] = {7, UINT64_MAX - 1, UINT64_MAX};
    for (size_t i = 0; i < 3; i++) {
        r.steps = too_many[i];
        err = refused(engine, &r, ATTN_E_CONTEXT_LENGTH, "steps");
        check_detail(&err, 1, "requested", too_many[i]);
    }
    r.steps = 6;
    run d = run_job(engine, &r);
    assert_int_equal(d.session.length, limit);
    r.steps = 1;
    refused(engine, &r, ATTN_E_CONTEXT_LENGTH, "steps");
    run_free(&d);
    run_free(&p);
    free(long_rows);
    attn_engine_close(engine);
}

static void test_budget(void **state)
{
    (void)state;
    attn_totals before, t;
    attn_engine *engine = run_open((run_setup){0});
    append(engine, "a", 0, 16);
    attn_engine_totals(engine, &t);
    attn_engine_close(engine);
    /* Room for 18 sessions of a page, and not for a page more. */
    const uint64_t budget = 18 * t.allocated_bytes + 500;
    engine = run_open((run_setup){.kv_memory_bytes = budget});
    attn_request r = request(ATTN_JOB_PREFILL, "a", 400);
    attn_error err = refused(engine, &r, ATTN_E_KV_BUDGET, NULL);
    check_detail(&err, 0, "needed", 25 * (PAGE_KV + PAGE_INPUTS + 4));
    assert_string_equal(err.details[1].name, "available");
    assert_true(err.details[1].value < budget && err.details[1].value > budget - 1024);
    assert_false(exists(engine, "a"));
    check_unused(engine);

    /* As many sessions as fit, and not one more; what is there stays as it is. */
    char id[16];
    int n = 0;
    for (;; n++) {
        snprintf(id, sizeof id, "s%d", n);
        r = request(ATTN_JOB_PREFILL, id, 16);
        run p = run_job(engine, &r);
        run_free(&p);
        if (p.submitted != ATTN_OK)
            break;
    }
    assert_int_equal(n, 18);
    assert_false(exists(engine, id));
    attn_engine_totals(engine, &before);
    assert_int_equal(before.sessions, n);
    r = request(ATTN_JOB_DECODE, "s0", 0);
    r.steps = 1;
    err = refused(engine, &r, ATTN_E_KV_BUDGET, NULL);
    check_detail(&err, 0, "needed", PAGE_KV + PAGE_INPUTS + 4);
    check_detail(&err, 1, "available", before.available_bytes);
    r = request(ATTN_JOB_VERIFY, "s0", 0);
    refused(engine, &r, ATTN_E_KV_BUDGET, NULL);
    attn_engine_totals(engine, &t);
    assert_memory_equal(&t, &before, sizeof t);
    for (int i = 0; i < n; i++) {
        snprintf(id, sizeof id, "s%d", i);
        assert_int_equal(attn_session_delete(engine, id, NULL), ATTN_OK);
    }
    check_unused(engine);

    /* Steps that were declared are reserved until the run ends, and what it did not use returns. */
    append(engine, "a", 0, 16);
    attn_engine_totals(engine, &before);
    run first;
    r = request(ATTN_JOB_DECODE, "a", 0);
    r.steps = 100;
    run_handle *h = run_start_held(engine, &r, &first, 0);
    attn_engine_totals(engine, &t);
    assert_int_equal(t.reserved_bytes, 7 * (PAGE_KV + PAGE_INPUTS));
    assert_int_equal(t.allocated_bytes, before.allocated_bytes + 7 * 4);
    assert_int_equal(info_of(engine, "a").kv.reserved_bytes, 7 * PAGE_KV);
    r = request(ATTN_JOB_PREFILL, "b", 300);
    refused(engine, &r, ATTN_E_KV_BUDGET, NULL);
    run_cancel(h);
    run_wait(h);
    assert_int_equal(first.reason, ATTN_REASON_CANCELLED);
    attn_engine_totals(engine, &t);
    assert_memory_equal(&t, &before, sizeof t);
    run_free(&first);
    attn_engine_close(engine);
}

static void test_too_many_sessions(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){.max_sessions = 2});
    append(engine, "a", 0, 1);
    append(engine, "b", 0, 1);
    attn_totals before, after;
    attn_engine_totals(engine, &before);
    attn_request r = request(ATTN_JOB_PREFILL, "c", 1);
    refused(engine, &r, ATTN_E_TOO_MANY_SESSIONS, NULL);
    attn_engine_totals(engine, &after);
    assert_memory_equal(&before, &after, sizeof before);
    append(engine, "a", 0, 1);
    assert_int_equal(attn_session_delete(engine, "a", NULL), ATTN_OK);
    append(engine, "c", 0, 1);
    attn_engine_close(engine);
}

/* ------------------------------------------------------------------------------------ overflow */

#define WIDE 40 /* mha-nonorm's row: nothing norms what is too large */

static void test_overflow(void **state)
{
    (void)state;
    static float wide[320 * WIDE], bad[320 * WIDE];
    attn_philox_uniform(2, "wide", 1.0f, 0, 320 * WIDE, wide);
    memcpy(bad, wide, sizeof bad);
    attn_engine *engine = run_open((run_setup){.model = "mha-nonorm"});
    run whole = run_prefill(engine, "good", NULL, wide, 320, WIDE, ATTN_OUTPUT_ALL);

    static const struct {
        size_t at; /* of 320 rows, past the first chunk */
        float value;
    } cases[] = {{0, 1e38f}, {1, -1e37f}, {300, 3e38f}, {319, 1e30f}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float *value = &bad[cases[i].at * WIDE + 7], before = *value;
        *value = cases[i].value;
        /* The session that the prefill made vanishes. */
        run r = run_prefill(engine, "bad", NULL, bad, 320, WIDE, ATTN_OUTPUT_ALL);
        assert_int_equal(r.reason, ATTN_REASON_ERROR);
        assert_int_equal(r.error.status, ATTN_E_NON_FINITE);
        check_detail(&r.error, 0, "position", cases[i].at);
        assert_int_equal(r.n_outputs, 0);
        assert_false(exists(engine, "bad"));
        *value = before;
        run_free(&r);
    }

    /* A session that was there stays as it was, and goes on with the same bits. */
    run p = run_prefill(engine, "a", NULL, wide, 100, WIDE, ATTN_OUTPUT_NONE);
    attn_session_info before = info_of(engine, "a");
    bad[250 * WIDE] = 1e38f;
    run r = run_prefill(engine, "a", NULL, bad + 100 * WIDE, 220, WIDE, ATTN_OUTPUT_NONE);
    assert_int_equal(r.error.status, ATTN_E_NON_FINITE);
    check_detail(&r.error, 0, "position", 250);
    attn_session_info after = info_of(engine, "a");
    after.last_used_s = before.last_used_s;
    assert_memory_equal(&before, &after, sizeof before);
    run s = run_steps(engine, "a", 1);
    attn_session_info info;
    assert_int_equal(attn_session_truncate(engine, "a", 100, UINT64_MAX, &info, NULL), ATTN_OK);

    /* A decode keeps the steps before the bad one. */
    bad[103 * WIDE] = 1e38f;
    run d = run_decode(engine, "a", bad + 100 * WIDE, 10, WIDE);
    assert_int_equal(d.reason, ATTN_REASON_ERROR);
    assert_int_equal(d.error.status, ATTN_E_NON_FINITE);
    check_detail(&d.error, 0, "position", 103);
    assert_int_equal(d.steps, 3);
    assert_int_equal(d.session.length, 103);
    assert_memory_equal(d.outputs, whole.outputs + 100 * WIDE, 3 * WIDE * sizeof(float));
    run again = run_decode(engine, "a", wide + 103 * WIDE, 10, WIDE);
    assert_memory_equal(again.outputs, whole.outputs + 103 * WIDE, 10 * WIDE * sizeof(float));
    run v = run_verify(engine, "a");
    assert_true(v.bit_identical);
    run_free(&whole);
    run_free(&p);
    run_free(&r);
    run_free(&s);
    run_free(&d);
    run_free(&again);
    assert_int_equal(attn_session_delete(engine, "a", NULL), ATTN_OK);
    assert_int_equal(attn_session_delete(engine, "good", NULL), ATTN_OK);
    check_unused(engine);
    attn_engine_close(engine);
}

/* ------------------------------------------------------------------------------------- expiry */

static void test_expiry(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){.ttl_s = 1});
    attn_request r = request(ATTN_JOB_PREFILL, "stays", 3);
    r.has_ttl = true;
    r.ttl_s = 0;
    run p = run_job(engine, &r);
    run_free(&p);
    append(engine, "goes", 0, 3);
    /* Nobody calls, and still it goes, and its memory with it. */
    attn_totals t;
    do {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        attn_engine_totals(engine, &t);
    } while (t.sessions > 1);
    assert_false(exists(engine, "goes"));
    assert_true(exists(engine, "stays"));
    attn_stats stats;
    attn_engine_stats(engine, &stats);
    assert_int_equal(stats.sessions_expired, 1);
    assert_int_equal(stats.sessions_created, 2);
    assert_int_equal(attn_session_delete(engine, "stays", NULL), ATTN_OK);
    check_unused(engine);
    attn_engine_close(engine);
}

/* ------------------------------------------------------------------------------------ numbers */

static uint64_t observations(const attn_histogram *h)
{
    uint64_t n = 0;
    for (size_t i = 0; i < ATTN_HISTOGRAM_BUCKETS; i++)
        n += h->counts[i];
    return n;
}

static void test_stats(void **state)
{
    (void)state;
    attn_engine *engine = run_open((run_setup){0});
    attn_stats s;
    append(engine, "a", 0, 100);
    append(engine, "b", 0, 1);
    run d = run_decode(engine, "a", rows, 7, HIDDEN);
    run e = run_steps(engine, "b", 5);
    attn_engine_stats(engine, &s);
    assert_int_equal(s.prefill_tokens, 101);
    assert_int_equal(s.decode_steps, 12);
    assert_int_equal(s.sessions_created, 2);
    assert_int_equal(s.queue_depth, 0);
    assert_int_equal(s.prefill_in_flight + s.decode_in_flight + s.verify_in_flight, 0);
    assert_true(s.batches >= 14);
    assert_int_equal(observations(s.batch_size), s.batches);
    assert_int_equal(s.batch_size->sum_micro, 113 * 1000000ull);
    assert_int_equal(observations(s.queue_seconds), 4);
    assert_int_equal(observations(s.ttft_seconds), 4);
    assert_int_equal(observations(s.step_seconds), 10);
    run_free(&d);
    run_free(&e);
    attn_engine_close(engine);
}

static void test_histogram(void **state)
{
    (void)state;
    static const struct {
        double value;
        size_t bucket;
    } cases[] = {{0, 0}, {0.5, 0},   {1, 0},     {1.001, 1},    {2, 1},        {2.001, 2},
                 {4, 2}, {1024, 10}, {1025, 11}, {4194304, 22}, {4194305, 23}, {1e12, 23}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_histogram h = {.least = 1};
        attn_histogram_observe(&h, cases[i].value);
        assert_int_equal(h.counts[cases[i].bucket], 1);
        assert_int_equal(observations(&h), 1);
        assert_int_equal(h.sum_micro, (uint64_t)(cases[i].value * 1e6));
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(attn_session_state_name(ATTN_SESSION_IDLE), "idle");
    assert_string_equal(attn_session_state_name(ATTN_SESSION_QUEUED), "queued");
    assert_string_equal(attn_session_state_name(ATTN_SESSION_PREFILL), "prefill");
    assert_string_equal(attn_session_state_name(ATTN_SESSION_DECODE), "decode");
    assert_string_equal(attn_session_state_name(ATTN_SESSION_VERIFY), "verify");
    assert_string_equal(attn_reason_name(ATTN_REASON_LENGTH), "length");
    assert_string_equal(attn_reason_name(ATTN_REASON_STOP), "stop");
    assert_string_equal(attn_reason_name(ATTN_REASON_CANCELLED), "cancelled");
    assert_string_equal(attn_reason_name(ATTN_REASON_STALLED), "stalled");
    assert_string_equal(attn_reason_name(ATTN_REASON_SHUTDOWN), "shutdown");
    assert_string_equal(attn_reason_name(ATTN_REASON_ERROR), "error");
    assert_string_equal(attn_dtype_name(ATTN_F32), "f32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_cannot_be_opened),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_session_ids),
        cmocka_unit_test(test_what_a_session_costs),
        cmocka_unit_test(test_output_choices),
        cmocka_unit_test(test_made_ids),
        cmocka_unit_test(test_kept_inputs),
        cmocka_unit_test(test_inputs_that_are_not_kept),
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_if_length),
        cmocka_unit_test(test_options_must_match),
        cmocka_unit_test(test_wrong_requests),
        cmocka_unit_test(test_verify),
        cmocka_unit_test(test_context_length),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_too_many_sessions),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_expiry),
        cmocka_unit_test(test_stats),
        cmocka_unit_test(test_histogram),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, make_rows, NULL);
}
