/* Language models against PyTorch: logits, greedy runs, and the laws on tokens. */
#include "tests/unit/engine_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    uint64_t seed;
} goldens[] = {
    {"llama-gqa", 42},        {"llama-bias", 2},    {"llama-rope-llama3", 3},
    {"llama-rope-linear", 4}, {"qwen3-tied", 5},    {"qwen3-untied", 7},
    {"qwen3-yarn", 9},        {"qwen3-moe", 10},    {"minimind-dense", 4294967307u},
    {"minimind-yarn", 13},    {"minimind-moe", 14}, {"minimind2-moe", 16},
};

static const uint32_t *golden_ids(const attn_safetensors *file, const char *tensor, size_t *n)
{
    const attn_tensor *t = attn_safetensors_find(file, tensor);
    assert_non_null(t);
    assert_string_equal(t->dtype, "I32");
    *n = (size_t)(t->n_bytes / 4);
    return (const uint32_t *)(const void *)t->data;
}

static run prefill_tokens(attn_engine *engine, const char *session, const uint32_t *tokens,
                          size_t n, bool logits)
{
    attn_request r = attn_request_init(ATTN_JOB_PREFILL);
    r.session = session;
    r.tokens = tokens;
    r.n_tokens = n;
    r.logits = logits;
    r.output = ATTN_OUTPUT_NONE;
    return run_job(engine, &r);
}

static attn_engine *open_golden(size_t index, unsigned n_threads, const char *kernels)
{
    return run_open((run_setup){.model = goldens[index].name,
                                .seed = goldens[index].seed,
                                .n_threads = n_threads,
                                .kernels = kernels});
}

static attn_safetensors *golden_of(size_t index)
{
    char name[64];
    snprintf(name, sizeof name, "lm-%s", goldens[index].name);
    return golden_open(name);
}

/* Appends up to each golden row in turn, so that the prompt also comes in chunks. */
static void check_logits(attn_engine *engine, const attn_safetensors *file, const char *label)
{
    size_t n, n_rows, n_logits;
    const uint32_t *tokens = golden_ids(file, "tokens", &n);
    const uint32_t *rows = golden_ids(file, "rows", &n_rows);
    const float *logits = golden_f32(file, "logits", &n_logits);
    const double *exact =
        (const double *)(const void *)attn_safetensors_find(file, "logits64")->data;
    const size_t vocab = n_logits / n_rows;
    double worst_nmse = 0, worst = 0;
    for (size_t i = 0, done = 0; i < n_rows; i++) {
        run r = prefill_tokens(engine, "golden", tokens + done, rows[i] + 1 - done, true);
        assert_int_equal(r.submitted, ATTN_OK);
        assert_int_equal(r.reason, ATTN_REASON_LENGTH);
        assert_int_equal(r.n_logits, vocab);
        worst = fmax(worst, max_diff(r.logits, logits + i * vocab, vocab));
        worst_nmse = fmax(worst_nmse, nmse(r.logits, exact + i * vocab, vocab));
        done = rows[i] + 1;
        run_free(&r);
    }
    print_message("%s: %zu rows, largest difference %.1e, NMSE %.1e\n", label, n_rows, worst,
                  worst_nmse);
    assert_true(worst <= 1e-4);
    assert_true(worst_nmse <= 1e-9);
}

static void test_logits_equal_pytorch(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        attn_engine *engine = open_golden(i, 2, "auto");
        attn_safetensors *file = golden_of(i);
        check_logits(engine, file, goldens[i].name);
        attn_safetensors_close(file);
        attn_engine_close(engine);
    }
}

static run decode_greedy(attn_engine *engine, const char *session, uint64_t steps)
{
    attn_request r = attn_request_init(ATTN_JOB_DECODE);
    r.session = session;
    r.steps = steps;
    r.sampling.ignore_eos = true;
    return run_job(engine, &r);
}

static void test_greedy_runs_equal_pytorch(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        attn_engine *engine = open_golden(i, 2, "auto");
        attn_safetensors *file = golden_of(i);
        size_t n, n_greedy;
        const uint32_t *prompt = golden_ids(file, "prompt", &n);
        const uint32_t *greedy = golden_ids(file, "greedy", &n_greedy);
        run p = prefill_tokens(engine, "a", prompt, n, false);
        assert_int_equal(p.reason, ATTN_REASON_LENGTH);
        assert_int_equal(p.next[0].token, greedy[0]);
        run d = decode_greedy(engine, "a", n_greedy);
        assert_int_equal(d.n_tokens, n_greedy);
        assert_memory_equal(d.tokens, greedy, n_greedy * sizeof *greedy);
        run v = run_verify(engine, "a");
        assert_true(v.bit_identical);
        run_free(&p);
        run_free(&d);
        attn_safetensors_close(file);
        attn_engine_close(engine);
    }
}

/* The sampled ids of one way to run 24 steps after a prompt. */
static void sampled(attn_engine *engine, const char *session, const uint32_t *prompt, size_t n,
                    size_t prompt_chunk, size_t step_chunk, uint32_t ids[24])
{
    for (size_t done = 0; done < n; done += prompt_chunk) {
        size_t now = n - done < prompt_chunk ? n - done : prompt_chunk;
        run p = prefill_tokens(engine, session, prompt + done, now, false);
        assert_int_equal(p.reason, ATTN_REASON_LENGTH);
    }
    for (size_t done = 0; done < 24; done += step_chunk) {
        attn_request r = attn_request_init(ATTN_JOB_DECODE);
        r.session = session;
        r.steps = step_chunk;
        r.sampling.temperature = 0.9f;
        r.sampling.top_k = 50;
        r.sampling.top_p = 0.95f;
        r.sampling.min_p = 0.01f;
        r.sampling.repetition_penalty = 1.1f;
        r.sampling.has_seed = true;
        r.sampling.seed = 7;
        r.sampling.ignore_eos = true;
        run d = run_job(engine, &r);
        assert_int_equal(d.reason, ATTN_REASON_LENGTH);
        memcpy(ids + done, d.tokens, step_chunk * sizeof *ids);
        run_free(&d);
    }
}

static void test_splitting_and_instruction_set_change_no_token(void **state)
{
    (void)state;
    static const char *const kernels[] = {"scalar", "avx2", "avx512"};
    static const size_t indices[] = {0, 5, 10}; /* llama, qwen3, minimind-moe */
    for (size_t k = 0; k < sizeof indices / sizeof indices[0]; k++) {
        attn_safetensors *file = golden_of(indices[k]);
        size_t n;
        uint32_t first[24], ids[24];
        const uint32_t *prompt = golden_ids(file, "tokens", &n);
        bool known = false;
        for (size_t v = 0; v < 3; v++) {
            if (attn_kernels_select(kernels[v]) == NULL) {
                print_message("skipped: this processor has no %s\n", kernels[v]);
                continue;
            }
            attn_engine *engine = open_golden(indices[k], (unsigned)v + 1, kernels[v]);
            sampled(engine, "whole", prompt, 40, 40, 24, ids);
            if (!known)
                memcpy(first, ids, sizeof ids);
            known = true;
            assert_memory_equal(ids, first, sizeof ids);
            sampled(engine, "parts", prompt, 40, 7, 3, ids);
            assert_memory_equal(ids, first, sizeof ids);
            attn_engine_close(engine);
        }
        attn_safetensors_close(file);
    }
}

static void test_truncate_replays_the_last_token(void **state)
{
    (void)state;
    attn_engine *engine = open_golden(4, 2, "auto");
    attn_safetensors *file = golden_of(4);
    size_t n;
    const uint32_t *tokens = golden_ids(file, "tokens", &n);
    run p = prefill_tokens(engine, "a", tokens, 50, false);
    run d = decode_greedy(engine, "a", 10);
    attn_error err;
    assert_int_equal(attn_session_truncate(engine, "a", 50, UINT64_MAX, NULL, &err), ATTN_OK);
    run again = decode_greedy(engine, "a", 10);
    assert_int_equal(again.n_tokens, 10);
    assert_memory_equal(again.tokens, d.tokens, 10 * sizeof *d.tokens);
    uint32_t *kept;
    char *text;
    size_t n_kept, text_len;
    assert_int_equal(attn_session_tokens(engine, "a", &kept, &n_kept, &text, &text_len, &err),
                     ATTN_OK);
    assert_int_equal(n_kept, 60);
    assert_memory_equal(kept, tokens, 50 * sizeof *kept);
    assert_memory_equal(kept + 50, d.tokens, 10 * sizeof *kept);
    attn_buffer_free(kept);
    attn_buffer_free(text);
    run_free(&p);
    run_free(&d);
    run_free(&again);
    attn_safetensors_close(file);
    attn_engine_close(engine);
}

/* More runs than one batch samples, which all end at their first token: nobody waits for ever. */
static void test_many_runs_end_at_once(void **state)
{
    (void)state;
    enum { RUNS = 700 };
    static run results[RUNS];
    static run_handle *handles[RUNS];
    attn_engine *engine = open_golden(0, 2, "auto");
    static const uint32_t prompt[] = {5, 6, 7};
    run p = prefill_tokens(engine, "a", prompt, 3, false);
    for (int i = 0; i < RUNS; i++) {
        char id[16];
        attn_session_info info;
        snprintf(id, sizeof id, "a%d", i);
        assert_int_equal(attn_session_fork(engine, "a", id, UINT64_MAX, UINT64_MAX, &info, NULL),
                         ATTN_OK);
        attn_request r = attn_request_init(ATTN_JOB_DECODE);
        r.session = id;
        r.steps = 1;
        r.sampling.stop_token_ids = &p.next[0].token;
        r.sampling.n_stop_token_ids = 1;
        handles[i] = run_start_held(engine, &r, &results[i], 0);
    }
    for (int i = 0; i < RUNS; i++)
        run_resume(handles[i]);
    for (int i = 0; i < RUNS; i++) {
        run_wait(handles[i]);
        assert_int_equal(results[i].reason, ATTN_REASON_STOP);
        run_free(&results[i]);
    }
    run_free(&p);
    attn_engine_close(engine);
}

/* So low that logits overflow when divided by it: only the best is left, as it is a little above. */
static void test_the_lowest_temperatures_are_greedy(void **state)
{
    (void)state;
    attn_engine *engine = open_golden(0, 1, "auto");
    static const uint32_t prompt[] = {5, 6, 7};
    static const float temperatures[] = {0.0f, 1e-6f, 1e-30f, 1.2e-38f, 1e-44f};
    static const uint32_t top_k[] = {0, 0, 0, 5, 5};
    run p = prefill_tokens(engine, "a", prompt, 3, false), first = {0};
    for (size_t i = 0; i < sizeof temperatures / sizeof *temperatures; i++) {
        attn_request r = attn_request_init(ATTN_JOB_DECODE);
        r.session = "a";
        r.steps = 20;
        r.sampling.temperature = temperatures[i];
        r.sampling.top_k = top_k[i];
        r.sampling.ignore_eos = true;
        run d = run_job(engine, &r);
        assert_int_equal(d.n_tokens, 20);
        if (i == 0)
            first = d;
        assert_memory_equal(d.tokens, first.tokens, 20 * sizeof *d.tokens);
        if (i > 0)
            run_free(&d);
        assert_int_equal(attn_session_truncate(engine, "a", 3, UINT64_MAX, NULL, NULL), ATTN_OK);
    }
    run_free(&first);
    run_free(&p);
    attn_engine_close(engine);
}

static void test_wrong_tokens_are_refused(void **state)
{
    (void)state;
    attn_engine *engine = open_golden(4, 1, "auto");
    const uint32_t out_of_range[] = {1, 100000};
    run r = prefill_tokens(engine, "a", out_of_range, 2, false);
    assert_int_equal(r.submitted, ATTN_E_TOKEN_RANGE);
    assert_string_equal(r.error.param, "tokens");
    assert_int_equal(r.error.details[0].value, 1);
    r = prefill_tokens(engine, "a", out_of_range, 0, false);
    assert_int_equal(r.submitted, ATTN_E_INVALID);
    const float row[64] = {0};
    r = run_prefill(engine, "a", "qwen3-tied", row, 1, 64, ATTN_OUTPUT_NONE);
    assert_int_equal(r.submitted, ATTN_E_INVALID);
    assert_string_equal(r.error.param, "inputs");
    attn_session_info info;
    assert_int_equal(attn_session_get(engine, "a", &info, NULL), ATTN_E_SESSION_NOT_FOUND);
    attn_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_equal_pytorch),
        cmocka_unit_test(test_greedy_runs_equal_pytorch),
        cmocka_unit_test(test_splitting_and_instruction_set_change_no_token),
        cmocka_unit_test(test_truncate_replays_the_last_token),
        cmocka_unit_test(test_many_runs_end_at_once),
        cmocka_unit_test(test_the_lowest_temperatures_are_greedy),
        cmocka_unit_test(test_wrong_tokens_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
