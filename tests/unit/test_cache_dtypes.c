/* Cache dtypes: how far from f32 each may be, and the laws within each. */
#include "tests/unit/engine_run.h"

#include "engine/cache/block.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN 96
#define ROWS 210

static const float *rows(void)
{
    static attn_safetensors *file; /* kept open to the end */
    size_t n;
    if (file == NULL)
        file = golden_open("chain3");
    return golden_f32(file, "inputs", &n);
}

static attn_engine *open_chain(unsigned n_threads, const char *kernels)
{
    return run_open(
        (run_setup){.model = "chain3", .seed = 42, .n_threads = n_threads, .kernels = kernels});
}

/* Prefills rows [first, first + n) and appends their outputs to `outputs`. */
static void feed(attn_engine *engine, const char *session, attn_dtype dtype, size_t first, size_t n,
                 float *outputs)
{
    attn_request r = attn_request_init(ATTN_JOB_PREFILL);
    r.session = session;
    r.inputs = rows() + first * HIDDEN;
    r.n_inputs = n;
    r.input_size = HIDDEN;
    r.output = ATTN_OUTPUT_ALL;
    r.has_kv_dtype = true;
    r.kv_dtype = dtype;
    run result = run_job(engine, &r);
    assert_int_equal(result.submitted, ATTN_OK);
    assert_int_equal(result.reason, ATTN_REASON_LENGTH);
    memcpy(outputs + first * HIDDEN, result.outputs, n * HIDDEN * sizeof *outputs);
    run_free(&result);
}

/* NMSE against the float64 reference of the f32 cache: about 2^-22, 2^-16 and (1/254)^2 / 3. */
static void test_errors_are_bounded(void **state)
{
    (void)state;
    static const double bounds[ATTN_DTYPES] = {
        [ATTN_F32] = 1e-10, [ATTN_BF16] = 2e-5, [ATTN_F16] = 1e-6, [ATTN_Q8] = 2e-4};
    static float outputs[ROWS * HIDDEN];
    attn_engine *engine = open_chain(2, "auto");
    attn_safetensors *file = golden_open("chain3");
    const double *exact =
        (const double *)(const void *)attn_safetensors_find(file, "output64")->data;
    for (int d = 0; d < ATTN_DTYPES; d++) {
        feed(engine, attn_dtype_name((attn_dtype)d), (attn_dtype)d, 0, ROWS, outputs);
        double error = nmse(outputs, exact, ROWS * HIDDEN);
        print_message("%s: NMSE %.1e\n", attn_dtype_name((attn_dtype)d), error);
        assert_true(error <= bounds[d]);
    }
    attn_safetensors_close(file);
    attn_engine_close(engine);
}

static void test_bytes_are_what_the_formula_says(void **state)
{
    (void)state;
    static const size_t head_row[ATTN_DTYPES] = {
        [ATTN_F32] = 80, [ATTN_BF16] = 40, [ATTN_F16] = 40, [ATTN_Q8] = 24};
    static float outputs[ROWS * HIDDEN];
    attn_engine *engine = open_chain(1, "auto");
    attn_model_info model;
    attn_model_get(engine, 0, &model);
    for (int d = 0; d < ATTN_DTYPES; d++) {
        const char *name = attn_dtype_name((attn_dtype)d);
        attn_session_info info;
        feed(engine, name, (attn_dtype)d, 0, 33, outputs);
        assert_int_equal(attn_session_get(engine, name, &info, NULL), ATTN_OK);
        assert_int_equal(info.kv.dtype, d);
        assert_int_equal(info.kv.n_pages, 3);
        assert_int_equal(info.kv.bytes, 48 * 2 * 3 * 2 * head_row[d]);
        assert_int_equal(model.kv_bytes_per_position[d], 2 * 3 * 2 * head_row[d]);
    }
    attn_engine_close(engine);
}

static void test_laws_hold_within_a_dtype(void **state)
{
    (void)state;
    static const char *const kernels[] = {"scalar", "avx2", "avx512"};
    static float whole[ROWS * HIDDEN], parts[ROWS * HIDDEN];
    for (int d = 0; d < ATTN_DTYPES; d += LESS(1, ATTN_Q8)) {
        bool known = false;
        for (size_t v = 0; v < 3; v++) {
            if (attn_kernels_select(kernels[v]) == NULL) {
                print_message("skipped: this processor has no %s\n", kernels[v]);
                continue;
            }
            attn_engine *engine = open_chain((unsigned)v + 1, kernels[v]);
            float *target = known ? parts : whole;
            feed(engine, "whole", (attn_dtype)d, 0, ROWS, target);
            assert_memory_equal(target, whole, sizeof whole);
            known = true;
            for (size_t done = 0, n; done < ROWS; done += n) {
                n = 1 + done % 23 < ROWS - done ? 1 + done % 23 : ROWS - done;
                feed(engine, "parts", (attn_dtype)d, done, n, parts);
            }
            assert_memory_equal(parts, whole, sizeof whole);
            run check = run_verify(engine, "parts");
            assert_true(check.bit_identical);
            attn_engine_close(engine);
        }
    }
}

static void test_forks_and_truncates(void **state)
{
    (void)state;
    static float whole[ROWS * HIDDEN], after[ROWS * HIDDEN];
    attn_engine *engine = open_chain(2, "auto");
    for (int d = 0; d < ATTN_DTYPES; d++) {
        attn_session_info info;
        const char *name = attn_dtype_name((attn_dtype)d);
        feed(engine, name, (attn_dtype)d, 0, ROWS, whole);
        assert_int_equal(attn_session_fork(engine, name, "fork", 100, UINT64_MAX, &info, NULL),
                         ATTN_OK);
        assert_int_equal(info.kv.dtype, d);
        assert_int_equal(attn_session_truncate(engine, name, 90, UINT64_MAX, &info, NULL), ATTN_OK);
        feed(engine, "fork", (attn_dtype)d, 100, ROWS - 100, after);
        feed(engine, name, (attn_dtype)d, 90, ROWS - 90, after);
        assert_memory_equal(after + 90 * HIDDEN, whole + 90 * HIDDEN,
                            (ROWS - 90) * HIDDEN * sizeof *whole);
        assert_int_equal(attn_session_delete(engine, "fork", NULL), ATTN_OK);
    }
    attn_engine_close(engine);
}

static void test_another_dtype_is_another_session(void **state)
{
    (void)state;
    static float outputs[ROWS * HIDDEN];
    attn_engine *engine = open_chain(1, "auto");
    feed(engine, "a", ATTN_F16, 0, 10, outputs);
    attn_request r = attn_request_init(ATTN_JOB_PREFILL);
    r.session = "a";
    r.inputs = rows();
    r.n_inputs = 1;
    r.input_size = HIDDEN;
    r.has_kv_dtype = true;
    r.kv_dtype = ATTN_F32;
    run result = run_job(engine, &r);
    assert_int_equal(result.submitted, ATTN_E_SESSION_EXISTS);
    assert_string_equal(result.error.param, "kv_dtype");
    attn_engine_close(engine);
}

/* What 16 bits cannot hold is an overflow, not an infinity in the cache. */
static void test_block_refuses_what_overflows(void **state)
{
    (void)state;
    _Alignas(64) char keys[16 * 4 * 4], values[16 * 4 * 4];
    const attn_kv_block block = {keys, values};
    const float fine[] = {1, -2, 65504, 0}, large[] = {1, -2, 65520, 0};
    float k[4], v[4];
    assert_true(attn_block_write(ATTN_F16, 4, block, 3, fine, fine));
    attn_block_read(ATTN_F16, 4, block, 3, k, v);
    assert_memory_equal(k, fine, sizeof fine);
    assert_memory_equal(v, fine, sizeof fine);
    assert_false(attn_block_write(ATTN_F16, 4, block, 3, large, fine));
    assert_false(attn_block_write(ATTN_F16, 4, block, 3, fine, large));
    assert_true(attn_block_write(ATTN_BF16, 4, block, 3, large, large));
}

/* Keys and values have scales of their own, position by position. */
static void test_block_gives_back_what_it_keeps(void **state)
{
    (void)state;
    static const float error[ATTN_DTYPES] = {
        [ATTN_F32] = 0.0f, [ATTN_BF16] = 0x1p-8f, [ATTN_F16] = 0x1p-11f, [ATTN_Q8] = 0.5f / 127};
    for (int d = 0; d < ATTN_DTYPES; d++) {
        _Alignas(64) char keys[16 * 4 * 4], values[16 * 4 * 4];
        const attn_kv_block block = {keys, values};
        float k[16][4], v[16][4];
        for (size_t slot = 0; slot < 16; slot++) {
            for (size_t i = 0; i < 4; i++) {
                k[slot][i] = (float)(slot + 1) * (1.0f - 0.3f * (float)i);
                v[slot][i] = 0.01f / (float)(slot + 1) * (0.7f * (float)i - 1.1f);
            }
            assert_true(attn_block_write((attn_dtype)d, 4, block, slot, k[slot], v[slot]));
        }
        for (size_t slot = 0; slot < 16; slot++) {
            float read_k[4], read_v[4];
            attn_block_read((attn_dtype)d, 4, block, slot, read_k, read_v);
            for (size_t i = 0; i < 4; i++) {
                /* Relative to the element, with q8 to the row's largest. */
                float most_k = d == ATTN_Q8 ? k[slot][0] : k[slot][i];
                float most_v = d == ATTN_Q8 ? v[slot][0] : v[slot][i];
                assert_true(fabsf(read_k[i] - k[slot][i]) <= 1.0001f * error[d] * fabsf(most_k));
                assert_true(fabsf(read_v[i] - v[slot][i]) <= 1.0001f * error[d] * fabsf(most_v));
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors_are_bounded),
        cmocka_unit_test(test_bytes_are_what_the_formula_says),
        cmocka_unit_test(test_laws_hold_within_a_dtype),
        cmocka_unit_test(test_forks_and_truncates),
        cmocka_unit_test(test_another_dtype_is_another_session),
        cmocka_unit_test(test_block_refuses_what_overflows),
        cmocka_unit_test(test_block_gives_back_what_it_keeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
