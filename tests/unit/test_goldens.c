/* The mathematics: the examples of the attention tutorial, and random models, against PyTorch and
 * against float64. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "engine/compute/rope.h"
#include "engine/engine_state.h"
#include "tests/unit/engine_run.h"

/* How far from PyTorch's float32 a value may be. */
#define CLOSE 1e-5
#define HIDDEN 16
#define HEADS 4
#define KV_HEADS 2
#define HEAD_DIM 8

static const float *tensor(const attn_safetensors *file, const char *prefix, const char *name,
                           size_t *n)
{
    char full[96];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return golden_f32(file, full, n);
}

static void check_close(const float *values, const float *golden, size_t n, const char *what)
{
    double diff = max_diff(values, golden, n);
    if (!(diff <= CLOSE))
        fail_msg("%s: %g from PyTorch", what, diff);
}

static attn_model *seed_model(void)
{
    const attn_load_options options = {0};
    attn_error err = {0};
    attn_model *model = attn_model_load_builtin(ATTN_BUILTIN_SEED, &options, &err);
    if (model == NULL)
        fail_msg("%s", err.message);
    return model;
}

/* ------------------------------------------------------------------------ examples 1, 3 and 4 */

static void test_example1_projections(void **state)
{
    (void)state;
    size_t n, n_q, n_k, n_v;
    attn_model *model = seed_model();
    attn_safetensors *file = golden_open("example1");
    const float *inputs = golden_f32(file, "inputs", &n), *q = golden_f32(file, "q", &n_q);
    const float *k = golden_f32(file, "k", &n_k), *v = golden_f32(file, "v", &n_v);
    const size_t rows = n / HIDDEN, n_out = (HEADS + 2 * KV_HEADS) * HEAD_DIM;
    const attn_linear *qkv = &model->layers[0].qkv;
    assert_int_equal(rows, 10);
    assert_int_equal(qkv->n_out, n_out);
    float out[10 * 64];
    for (size_t p = 0; p < attn_linear_panels(qkv); p++)
        attn_kernels_scalar.matmul[ATTN_F32](rows, ATTN_PANEL, HIDDEN, inputs, HIDDEN,
                                             attn_linear_panel(qkv, p), out + p * ATTN_PANEL,
                                             n_out);
    for (size_t r = 0; r < rows; r++) {
        const float *row = out + r * n_out;
        check_close(row, q + r * HEADS * HEAD_DIM, HEADS * HEAD_DIM, "q");
        check_close(row + 32, k + r * KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, "k");
        check_close(row + 48, v + r * KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, "v");
    }
    attn_safetensors_close(file);
    attn_model_free(model);
}

static void test_example3_rope(void **state)
{
    (void)state;
    const size_t half = HEAD_DIM / 2;
    size_t n;
    attn_model *model = seed_model();
    attn_safetensors *file = golden_open("example3");
    const float *cosines = golden_f32(file, "cos", &n), *sines = golden_f32(file, "sin", &n);
    float c[3][4], s[3][4], rotated[3][2 * HEAD_DIM];
    for (size_t position = 0; position < n / half; position++) {
        float cs[4], sn[4];
        attn_rope_angles(position, half, model->inv_freq, model->rope_factor, cs, sn);
        check_close(cs, cosines + position * half, half, "cos");
        check_close(sn, sines + position * half, half, "sin");
        if (position < 3) {
            memcpy(c[position], cs, sizeof cs);
            memcpy(s[position], sn, sizeof sn);
        }
    }
    const float *raw = golden_f32(file, "k_raw", &n), *k = golden_f32(file, "k_rotated", &n);
    for (size_t r = 0; r < 4; r++) { /* positions 0 and 1, two heads each */
        float head[HEAD_DIM];
        memcpy(head, raw + r * HEAD_DIM, sizeof head);
        attn_kernels_scalar.rope(half, head, c[r / 2], s[r / 2]);
        check_close(head, k + r * HEAD_DIM, HEAD_DIM, "k_rotated");
    }
    const float *v = golden_f32(file, "v_test", &n), *v_rotated = golden_f32(file, "v_rotated", &n);
    const float *dots = golden_f32(file, "dots", &n);
    assert_int_equal(n, 2);
    for (size_t p = 0; p < 3; p++) {
        memcpy(rotated[p], v, sizeof rotated[p]);
        for (size_t h = 0; h < 2; h++)
            attn_kernels_scalar.rope(half, rotated[p] + h * HEAD_DIM, c[p], s[p]);
        check_close(rotated[p], v_rotated + p * 2 * HEAD_DIM, 2 * HEAD_DIM, "v_rotated");
    }
    for (size_t p = 0; p < 2; p++) {
        double dot = 0;
        for (size_t i = 0; i < 2 * HEAD_DIM; i++)
            dot += (double)rotated[p][i] * (double)rotated[p + 1][i];
        assert_true(fabs(dot - (double)dots[p]) <= CLOSE);
    }
    attn_safetensors_close(file);
    attn_model_free(model);
}

/* Equal scores: row i is 1 / (i + 1) up to column i; what is masked is skipped. */
static void test_example4_pattern(void **state)
{
    (void)state;
    size_t n;
    attn_safetensors *file = golden_open("example4");
    const float *scores = golden_f32(file, "attn_scores", &n);
    const float *pattern = golden_f32(file, "pattern", &n);
    assert_int_equal(n, HEADS * 5 * 5);
    for (size_t r = 0; r < HEADS * 5; r++) {
        float row[16] = {0}, max, sum;
        size_t n_keys = r % 5 + 1;
        memcpy(row, scores + r * 5, n_keys * sizeof *row);
        assert_true(attn_kernels_scalar.softmax(n_keys, row, &max, &sum));
        for (size_t i = 0; i < 5; i++) {
            float weight = i < n_keys ? row[i] / sum : 0.0f;
            assert_true(weight == pattern[r * 5 + i]);
        }
    }
    attn_safetensors_close(file);
}

/* ----------------------------------------------------------------------------- examples 5 to 7 */

/* The session's cache is PyTorch's: K after RoPE, and V. */
static void check_cache(attn_engine *engine, const char *id, const attn_safetensors *file,
                        const char *prefix, size_t batch, size_t length)
{
    size_t n;
    const float *keys = tensor(file, prefix, "past_key_values.0.key", &n);
    const float *vals = tensor(file, prefix, "past_key_values.0.value", &n);
    attn_session *session = attn_sessions_find(engine->sessions, id);
    assert_non_null(session);
    assert_int_equal(session->length, length);
    for (size_t p = 0; p < length; p++) {
        for (size_t h = 0; h < KV_HEADS; h++) {
            size_t at = ((batch * length + p) * KV_HEADS + h) * HEAD_DIM;
            float k[HEAD_DIM], v[HEAD_DIM];
            attn_block_read(ATTN_F32, HEAD_DIM, attn_session_block(session, p, 0, h), p % 16, k, v);
            check_close(k, keys + at, HEAD_DIM, "cached k");
            check_close(v, vals + at, HEAD_DIM, "cached v");
        }
    }
    attn_sessions_unreference(engine->sessions, session);
}

/* One call of one batch entry: a prefill if it brings several rows or the first ones, else a decode
 * step. Appends the output rows to `outputs`. */
static void check_call(attn_engine *engine, const char *id, const attn_safetensors *file,
                       const char *prefix, size_t batch, size_t n_batch, size_t *length,
                       float *outputs)
{
    size_t n;
    const float *inputs = tensor(file, prefix, "inputs", &n);
    const float *golden = tensor(file, prefix, "output", &n);
    const size_t rows = n / n_batch / HIDDEN, at = batch * rows * HIDDEN;
    run r = rows == 1 && *length > 0
                ? run_decode(engine, id, inputs + at, 1, HIDDEN)
                : run_prefill(engine, id, NULL, inputs + at, rows, HIDDEN, ATTN_OUTPUT_ALL);
    assert_int_equal(r.submitted, ATTN_OK);
    assert_int_equal(r.reason, ATTN_REASON_LENGTH);
    assert_int_equal(r.n_outputs, rows);
    check_close(r.outputs, golden + at, rows * HIDDEN, prefix);
    memcpy(outputs + *length * HIDDEN, r.outputs, rows * HIDDEN * sizeof *outputs);
    *length += rows;
    check_cache(engine, id, file, prefix, batch, *length);
    run_free(&r);
}

static void test_examples_5_to_7(void **state)
{
    (void)state;
    static const char *const kernels[] = {"scalar", "avx2", "avx512"};
    for (size_t k = 0; k < 3; k++) {
        if (attn_kernels_select(kernels[k]) == NULL) {
            printf("skip: %s: this processor lacks it\n", kernels[k]);
            continue;
        }
        attn_engine *engine = run_open((run_setup){.kernels = kernels[k]});
        float outputs[7 * HIDDEN], whole[7 * HIDDEN];
        char prefix[16];
        size_t length;

        attn_safetensors *file = golden_open("example5");
        for (size_t batch = 0; batch < 2; batch++) {
            length = 0;
            check_call(engine, batch ? "5b" : "5a", file, "call0.", batch, 2, &length, outputs);
            assert_int_equal(length, 6);
        }
        attn_safetensors_close(file);

        file = golden_open("example6");
        length = 0;
        for (int call = 0; call < 4; call++) {
            snprintf(prefix, sizeof prefix, "call%d.", call);
            check_call(engine, "6", file, prefix, 0, 1, &length, outputs);
        }
        assert_int_equal(length, 7);
        attn_safetensors_close(file);

        /* With and without a cache: not close, the same. */
        file = golden_open("example7");
        length = 0;
        check_call(engine, "7-whole", file, "whole.", 0, 1, &length, whole);
        length = 0;
        for (int call = 0; call < 4; call++) {
            snprintf(prefix, sizeof prefix, "call%d.", call);
            check_call(engine, "7", file, prefix, 0, 1, &length, outputs);
        }
        assert_int_equal(length, 7);
        assert_memory_equal(outputs, whole, sizeof whole);
        attn_safetensors_close(file);
        attn_engine_close(engine);
    }
}

/* ------------------------------------------------------------------------------- random models */

static const struct {
    const char *name;
    uint64_t seed;
    size_t hidden, rows, kept;
} models[] = {
    {"chain3", 42, 96, 210, 210},         {"mha-nonorm", 7, 40, 210, 210},
    {"mqa", 4294967301, 64, 210, 210},    {"many-heads", 9, 32, 210, 210},
    {"minimind-layer", 1234, 768, 40, 4},
};

static void test_random_models(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        size_t n, hidden = models[m].hidden;
        attn_safetensors *file = golden_open(models[m].name);
        const float *inputs = golden_f32(file, "inputs", &n);
        assert_int_equal(n, models[m].rows * hidden);
        const float *golden = golden_f32(file, "output", &n);
        assert_int_equal(n, models[m].kept * hidden);
        const attn_tensor *exact = attn_safetensors_find(file, "output64");
        assert_string_equal(exact->dtype, "F64");
        assert_int_equal((uintptr_t)exact->data % 8, 0);
        attn_engine *engine =
            run_open((run_setup){.model = models[m].name, .seed = models[m].seed});
        run r = run_prefill(engine, "a", models[m].name, inputs, models[m].rows, hidden,
                            ATTN_OUTPUT_ALL);
        assert_int_equal(r.reason, ATTN_REASON_LENGTH);
        assert_int_equal(r.n_outputs, models[m].rows);
        const float *last = r.outputs + (models[m].rows - models[m].kept) * hidden;
        double error = nmse(last, (const double *)(const void *)exact->data, n);
        double diff = max_diff(last, golden, n);
        printf("%s: NMSE %.1e to float64, at most %.1e from PyTorch\n", models[m].name, error,
               diff);
        assert_true(error <= 1e-10);
        assert_true(diff <= CLOSE);
        run_free(&r);
        attn_engine_close(engine);
        attn_safetensors_close(file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_example1_projections), cmocka_unit_test(test_example3_rope),
        cmocka_unit_test(test_example4_pattern),     cmocka_unit_test(test_examples_5_to_7),
        cmocka_unit_test(test_random_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
