/* Looking inside, the numbers: every tensor against PyTorch, and against the step it belongs to. */
#include "tests/unit/inside_run.h"

#include "engine/cache/block.h"
#include "engine/model/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE 1e-5

/* ------------------------------------------------------------------------------- PyTorch */

/* A golden tensor: rows [first_row, first_row + n_rows), of scores and weights with `n_keys`. */
typedef struct golden {
    const char *name;
    attn_tensor_kind kind;
    uint32_t layer;
    const float *data;
    size_t n_floats;
    uint64_t first_row, n_rows, n_keys;
} golden;

static double worst;

static void assert_close(const golden *g, float value, float expected)
{
    if (isinf(expected)) {
        assert_true(value == expected);
        return;
    }
    double diff = fabs((double)value - (double)expected);
    worst = fmax(worst, diff);
    if (!(diff <= TOLERANCE))
        fail_msg("%s: %.9g instead of %.9g", g->name, (double)value, (double)expected);
}

/* The golden's row of that position against the trace's. */
static void assert_row_close(const golden *g, const attn_trace *t, uint64_t position)
{
    uint64_t row = position - g->first_row;
    if (!attn_tensor_has_keys(g->kind)) {
        size_t n;
        const float *values = inside_row(t, g->kind, g->layer, position, &n);
        assert_int_equal(n * g->n_rows, g->n_floats);
        for (size_t i = 0; i < n; i++)
            assert_close(g, values[i], g->data[row * n + i]);
        return;
    }
    assert_int_equal(t->n_heads * g->n_rows * g->n_keys, g->n_floats);
    for (size_t h = 0; h < t->n_heads; h++) {
        const float *values = inside_keys(t, g->kind, g->layer, position, t->heads[h]);
        const float *expected = g->data + (h * g->n_rows + row) * g->n_keys;
        assert_true(t->first_key == 0 && t->n_keys > position && t->n_keys <= g->n_keys);
        for (size_t k = 0; k < t->n_keys; k++)
            assert_close(g, values[k], expected[k]);
    }
}

/* A cache tensor of the session, keys [first_row, first_row + n_rows), against the golden. */
static void assert_cache_close(const golden *g, attn_engine *engine, const char *session)
{
    attn_trace *t = inside_look(engine, session, g->kind, g->layer, 0, OPEN_END, g->first_row,
                                g->first_row + g->n_rows);
    const attn_trace_tensor *tensor = &t->tensors[0];
    assert_int_equal(tensor->shape[0] * tensor->shape[1] * tensor->shape[2], g->n_floats);
    for (size_t i = 0; i < g->n_floats; i++)
        assert_close(g, tensor->data[i], g->data[i]);
    attn_trace_release(t);
}

/* A golden tensor by its name behind `prefix`. False: it is none of a trace. */
static bool read_golden(const attn_tensor *t, const char *prefix, golden *g)
{
    size_t len = strlen(prefix);
    if (strncmp(t->name, prefix, len) != 0 ||
        !attn_tensor_parse(t->name + len, &g->kind, &g->layer))
        return false;
    assert_string_equal(t->dtype, "F32");
    g->name = t->name;
    g->data = (const float *)(const void *)t->data;
    g->n_floats = (size_t)(t->n_bytes / sizeof(float));
    return true;
}

/* Query heads of a group read the same K and V: scores and z made anew from the cache's rows. */
static void assert_groups_share(attn_engine *engine, const char *session, const attn_trace *t,
                                uint32_t layer, uint64_t position)
{
    attn_model_info m;
    attn_model_get(engine, 0, &m);
    const uint32_t d = m.head_dim, group = m.num_attention_heads / m.num_key_value_heads;
    attn_trace *keys =
        inside_look(engine, session, ATTN_TENSOR_KEY, layer, 0, OPEN_END, 0, position + 1);
    attn_trace *values =
        inside_look(engine, session, ATTN_TENSOR_VALUE, layer, 0, OPEN_END, 0, position + 1);
    size_t n;
    const float *q = inside_row(t, ATTN_TENSOR_ROT_Q, layer, position, &n);
    const float *z = inside_row(t, ATTN_TENSOR_Z, layer, position, &n);
    for (uint32_t h = 0; h < m.num_attention_heads; h++) {
        const float *scores = inside_keys(t, ATTN_TENSOR_SCORES, layer, position, h);
        const float *pattern = inside_keys(t, ATTN_TENSOR_PATTERN, layer, position, h);
        double mixed[64] = {0};
        for (uint64_t k = 0; k <= position; k++) {
            size_t row = ((size_t)k * m.num_key_value_heads + h / group) * d;
            double dot = 0;
            for (uint32_t i = 0; i < d; i++) {
                dot += (double)q[h * d + i] * (double)keys->tensors[0].data[row + i];
                mixed[i] += (double)pattern[k] * (double)values->tensors[0].data[row + i];
            }
            assert_true(fabs(dot / sqrt(d) - (double)scores[k]) <= TOLERANCE);
        }
        for (uint32_t i = 0; i < d; i++)
            assert_true(fabs(mixed[i] - (double)z[h * d + i]) <= TOLERANCE);
    }
    attn_trace_release(keys);
    attn_trace_release(values);
}

/* The tutorial's calls: a prefill, then steps of one row; or, with `all_prefills`, prefills only. */
static void check_example(const char *name, bool all_prefills)
{
    attn_engine *engine = run_open((run_setup){0});
    attn_safetensors *file = golden_open(name);
    attn_selection all = inside_everything(engine);
    inside_book b = {0};
    size_t n_compared = 0;
    uint64_t length = 0;
    for (unsigned call = 0; call < 4; call++) {
        char prefix[16], inputs_name[24];
        size_t n;
        snprintf(prefix, sizeof prefix, "call%u.", call);
        snprintf(inputs_name, sizeof inputs_name, "call%u.inputs", call);
        inside_inputs inputs = {.rows = golden_f32(file, inputs_name, &n), .size = 16};
        inputs.n = n / inputs.size;
        run r = inside_fed(engine, call == 0 || all_prefills ? ATTN_JOB_PREFILL : ATTN_JOB_DECODE,
                           "a", &inputs, 0, inputs.n, &all);
        inside_book_take(&b, &r);
        for (size_t i = 0; i < attn_safetensors_count(file); i++) {
            golden g = {.first_row = length, .n_rows = inputs.n, .n_keys = length + inputs.n};
            if (!read_golden(attn_safetensors_at(file, i), prefix, &g))
                continue;
            n_compared++;
            if (g.kind == ATTN_TENSOR_KEY || g.kind == ATTN_TENSOR_VALUE) {
                g.first_row = 0;
                g.n_rows = g.n_keys;
                assert_cache_close(&g, engine, "a");
                continue;
            }
            for (uint64_t p = length; p < length + inputs.n; p++)
                assert_row_close(&g, inside_book_at(&b, p), p);
        }
        length += inputs.n;
    }
    assert_int_equal(n_compared, 4 * 13);
    for (size_t i = 0; i < b.n; i++)
        inside_assert_causal(b.traces[i]);
    inside_assert_looks_like(engine, "a", &b, 0, length);
    for (uint64_t p = 0; p < length; p++)
        assert_groups_share(engine, "a", inside_book_at(&b, p), 0, p);
    inside_book_free(&b);
    attn_safetensors_close(file);
    attn_engine_close(engine);
}

static void test_the_examples_equal_pytorch(void **state)
{
    (void)state;
    worst = 0;
    check_example("example6", false);
    check_example("example6", true);
    check_example("example7", false);
    check_example("example7", true);
    print_message("largest difference %.1e\n", worst);
}

/* Models with goldens/trace-*, and the goldens that have their inputs. */
static const struct {
    const char *model, *inputs, *trace;
    uint64_t seed;
} models[] = {
    {"chain3", "chain3", "trace-chain3", 42},
    {"mha-nonorm", "mha-nonorm", "trace-mha-nonorm", 7},
    {"mqa", "mqa", "trace-mqa", 4294967301u},
    {"minimind-layer", "minimind-layer", "trace-minimind-layer", 1234},
    {"minimind-dense", "lm-minimind-dense", "trace-lm-minimind-dense", 4294967307u},
    {"llama-bias", "lm-llama-bias", "trace-lm-llama-bias", 2},
    {"qwen3-untied", "lm-qwen3-untied", "trace-lm-qwen3-untied", 7},
};
#define N_MODELS (sizeof models / sizeof models[0])

static attn_engine *open_model(size_t i, unsigned n_threads, const char *kernels)
{
    return run_open((run_setup){.model = models[i].model,
                                .seed = models[i].seed,
                                .n_threads = n_threads,
                                .kernels = kernels});
}

/* Every kind that the model has must be in the golden, but the inputs of a chain's layers, which are
 * other tensors' values. */
static size_t expected_tensors(const attn_engine *engine)
{
    attn_model_info m;
    attn_model_get(engine, 0, &m);
    size_t a_layer = (size_t)11 + (m.qk_norm ? 2 : 0) + (m.is_language_model ? 4 : 0);
    return m.num_hidden_layers * a_layer + (m.is_language_model ? 1 : 0);
}

/* Positions 0 to 16 as a prefill, 17 as a step, both by trace and later by looks. */
static void check_model(size_t i)
{
    enum { LENGTH = 18, FIRST = 15 };
    attn_engine *engine = open_model(i, 2, "auto");
    attn_safetensors *file = golden_open(models[i].trace);
    inside_inputs inputs = inside_inputs_of(models[i].inputs);
    attn_selection all = inside_everything(engine);
    inside_book b = {0};
    size_t n_compared = 0;
    run r = inside_fed(engine, ATTN_JOB_PREFILL, "a", &inputs, 0, LENGTH - 1, &all);
    inside_book_take(&b, &r);
    r = inside_fed(engine, ATTN_JOB_DECODE, "a", &inputs, LENGTH - 1, 1, &all);
    inside_book_take(&b, &r);
    for (size_t t = 0; t < attn_safetensors_count(file); t++) {
        golden g = {.first_row = FIRST, .n_rows = LENGTH - FIRST, .n_keys = LENGTH};
        assert_true(read_golden(attn_safetensors_at(file, t), "", &g));
        n_compared++;
        if (g.kind == ATTN_TENSOR_KEY || g.kind == ATTN_TENSOR_VALUE) {
            assert_cache_close(&g, engine, "a");
            continue;
        }
        for (uint64_t p = FIRST; p < LENGTH; p++)
            assert_row_close(&g, inside_book_at(&b, p), p);
        attn_trace *look = inside_look(engine, "a", g.kind, g.layer, FIRST, OPEN_END, 0, OPEN_END);
        for (uint64_t p = FIRST; p < LENGTH; p++)
            assert_row_close(&g, look, p);
        attn_trace_release(look);
    }
    assert_int_equal(n_compared, expected_tensors(engine));
    inside_assert_looks_like(engine, "a", &b, 0, LENGTH);
    for (size_t t = 0; t < b.n; t++)
        inside_assert_causal(b.traces[t]);
    if (i == 0)
        assert_groups_share(engine, "a", inside_book_at(&b, LENGTH - 1), 2, LENGTH - 1);
    inside_book_free(&b);
    attn_safetensors_close(file);
    attn_engine_close(engine);
}

static void test_models_equal_pytorch(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        worst = 0;
        check_model(i);
        print_message("%s: largest difference %.1e\n", models[i].model, worst);
    }
}

/* ------------------------------------------------------------------ what feeds the output */

/* A linear layer with the reference kernels. */
static void apply(const attn_linear *linear, const float *x, float *y)
{
    for (size_t p = 0; p < attn_linear_panels(linear); p++) {
        size_t n = linear->n_out - p * ATTN_PANEL;
        attn_kernels_scalar.matmul[linear->dtype](1, n < ATTN_PANEL ? n : ATTN_PANEL, linear->n_in,
                                                  x, linear->n_in, attn_linear_panel(linear, p),
                                                  y + p * ATTN_PANEL, linear->n_out);
    }
    if (linear->bias != NULL)
        attn_kernels_scalar.add(linear->n_out, linear->bias, y);
}

#define MOST_WIDTH 2048

static void assert_row_is(const attn_trace *t, attn_tensor_kind kind, uint32_t layer, uint64_t p,
                          const float *expected)
{
    size_t n;
    const float *row = inside_row(t, kind, layer, p, &n);
    if (memcmp(row, expected, n * sizeof *row) != 0)
        fail_msg("%s of layer %u, position %llu does not follow from the tensors before it",
                 attn_tensor_kind_name(kind), layer, (unsigned long long)p);
}

static const float *row_of(const attn_trace *t, attn_tensor_kind kind, uint32_t layer, uint64_t p)
{
    size_t n;
    return inside_row(t, kind, layer, p, &n);
}

/* Each tensor of a layer's row from the ones before it, by the same kernels: the same bits. */
static void check_layer(const attn_model *model, const attn_trace *t, uint32_t l, uint64_t p)
{
    static float x[MOST_WIDTH], y[MOST_WIDTH];
    const attn_config *c = &model->config;
    const attn_kernels *k = &attn_kernels_scalar;
    const attn_layer *layer = &model->layers[l];
    const bool decoder = attn_config_is_decoder(c);
    const float eps = (float)c->rms_norm_eps;
    const size_t d = c->head_dim, n_q = c->num_attention_heads * d,
                 n_kv = c->num_key_value_heads * d;
    memcpy(x, row_of(t, ATTN_TENSOR_RESID_PRE, l, p), c->hidden_size * sizeof *x);
    if (decoder)
        k->rmsnorm(c->hidden_size, eps, x, layer->input_norm, x);
    apply(&layer->qkv, x, y);
    assert_row_is(t, ATTN_TENSOR_Q, l, p, y);
    assert_row_is(t, ATTN_TENSOR_K, l, p, y + n_q);
    assert_row_is(t, ATTN_TENSOR_V, l, p, y + n_q + n_kv);
    for (size_t h = 0; c->qk_norm && h < (n_q + n_kv) / d; h++)
        k->rmsnorm(d, eps, y + h * d, h * d < n_q ? layer->q_norm : layer->k_norm, y + h * d);
    if (c->qk_norm) {
        assert_row_is(t, ATTN_TENSOR_Q_NORMED, l, p, y);
        assert_row_is(t, ATTN_TENSOR_K_NORMED, l, p, y + n_q);
    }
    apply(&layer->o, row_of(t, ATTN_TENSOR_Z, l, p), y);
    assert_row_is(t, ATTN_TENSOR_ATTN_OUT, l, p, y);
    if (!decoder)
        return;
    k->add(c->hidden_size, row_of(t, ATTN_TENSOR_RESID_PRE, l, p), y);
    assert_row_is(t, ATTN_TENSOR_RESID_MID, l, p, y);
    k->rmsnorm(c->hidden_size, eps, y, layer->post_norm, x);
    apply(&layer->mlp.gate_up, x, y);
    k->swiglu(c->intermediate_size, y, y + c->intermediate_size);
    apply(&layer->mlp.down, y, x);
    assert_row_is(t, ATTN_TENSOR_MLP_OUT, l, p, x);
    k->add(c->hidden_size, row_of(t, ATTN_TENSOR_RESID_MID, l, p), x);
    assert_row_is(t, ATTN_TENSOR_RESID_POST, l, p, x);
}

/* The first layer reads the input, each other one what the one before it left. */
static void check_row(const attn_model *model, const attn_trace *t, uint64_t p)
{
    const bool decoder = attn_config_is_decoder(&model->config);
    assert_row_is(t, ATTN_TENSOR_RESID_PRE, 0, p, row_of(t, ATTN_TENSOR_EMBED, 0, p));
    for (uint32_t l = 0; l < model->config.num_hidden_layers; l++) {
        check_layer(model, t, l, p);
        if (l > 0)
            assert_row_is(
                t, ATTN_TENSOR_RESID_PRE, l, p,
                row_of(t, decoder ? ATTN_TENSOR_RESID_POST : ATTN_TENSOR_ATTN_OUT, l - 1, p));
    }
}

static void check_logits(const attn_model *model, const attn_trace *t, uint64_t p,
                         const float *logits, uint32_t next)
{
    static float hidden[MOST_WIDTH], again[MOST_WIDTH];
    const attn_config *c = &model->config;
    attn_kernels_scalar.rmsnorm(c->hidden_size, (float)c->rms_norm_eps,
                                row_of(t, ATTN_TENSOR_RESID_POST, c->num_hidden_layers - 1, p),
                                model->final_norm, hidden);
    apply(&model->head, hidden, again);
    assert_memory_equal(logits, again, c->vocab_size * sizeof *again);
    for (uint32_t i = 0; i < c->vocab_size; i++)
        assert_true(again[i] < again[next] || i >= next);
}

static void check_feeds(size_t i)
{
    enum { PROMPT = 21 };
    attn_engine *engine = open_model(i, 2, "auto");
    inside_inputs inputs = inside_inputs_of(models[i].inputs);
    attn_selection all = inside_everything(engine);
    char dir[64];
    attn_error err = {0};
    snprintf(dir, sizeof dir, MODELS "%s", models[i].model);
    attn_model *model = attn_model_load(models[i].model, dir,
                                        &(attn_load_options){.random_seed = &models[i].seed}, &err);
    assert_non_null(model);
    const uint32_t last = model->config.num_hidden_layers - 1;
    const bool decoder = attn_config_is_decoder(&model->config);
    attn_request request = inside_feed(ATTN_JOB_PREFILL, "a", &inputs, 0, PROMPT, &all);
    request.logits = decoder;
    run p = run_job(engine, &request), d = inside_steps(engine, "a", 5, &all);
    assert_int_equal(p.reason, ATTN_REASON_LENGTH);
    for (uint64_t r = 0; r < PROMPT; r++)
        check_row(model, p.trace, r);
    for (uint64_t r = 0; r < d.n_traces; r++)
        check_row(model, d.traces[r], PROMPT + r);
    assert_int_equal(d.n_traces, 5);
    if (decoder) {
        check_logits(model, p.trace, PROMPT - 1, p.logits, p.next[0].token);
        assert_int_equal(d.tokens[0], p.next[0].token);
    } else {
        size_t size = inputs.size;
        for (uint64_t r = 0; r < PROMPT; r++)
            assert_row_is(p.trace, ATTN_TENSOR_ATTN_OUT, last, r, p.outputs + r * size);
        for (uint64_t r = 0; r < 5; r++)
            assert_row_is(d.traces[r], ATTN_TENSOR_ATTN_OUT, last, PROMPT + r,
                          d.outputs + r * size);
    }
    run_free(&p);
    run_free(&d);
    attn_model_free(model);
    attn_engine_close(engine);
}

static void test_each_tensor_feeds_the_next(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++)
        check_feeds(i);
}

/* K after RoPE and V, put into a cache of that dtype and read back, are the cache's tensors. */
static void test_the_cache_has_the_rotated_keys(void **state)
{
    (void)state;
    enum { N = 37, LAYERS = 3, KV_HEADS = 2, DIM = 20 };
    attn_engine *engine = open_model(0, 2, "auto");
    inside_inputs inputs = inside_inputs_of("chain3");
    attn_selection all = inside_everything(engine);
    for (int dtype = 0; dtype < ATTN_DTYPES; dtype++) {
        const char *name = attn_dtype_name((attn_dtype)dtype);
        attn_request request = inside_feed(ATTN_JOB_PREFILL, name, &inputs, 0, N, &all);
        request.has_kv_dtype = true;
        request.kv_dtype = (attn_dtype)dtype;
        run r = run_job(engine, &request);
        assert_int_equal(r.reason, ATTN_REASON_LENGTH);
        for (uint32_t l = 0; l < LAYERS; l++) {
            attn_trace *keys = inside_look(engine, name, ATTN_TENSOR_KEY, l, 0, OPEN_END, 0, N);
            attn_trace *values = inside_look(engine, name, ATTN_TENSOR_VALUE, l, 0, OPEN_END, 0, N);
            assert_int_equal(keys->tensors[0].shape[0], N);
            for (uint64_t p = 0; p < N; p++) {
                for (size_t h = 0; h < KV_HEADS; h++) {
                    _Alignas(64) char kept_keys[16 * DIM * 4], kept_values[16 * DIM * 4];
                    const attn_kv_block block = {kept_keys, kept_values};
                    float k[DIM], v[DIM];
                    size_t at = (p * KV_HEADS + h) * DIM;
                    assert_true(attn_block_write((attn_dtype)dtype, DIM, block, p % 16,
                                                 row_of(r.trace, ATTN_TENSOR_ROT_K, l, p) + h * DIM,
                                                 row_of(r.trace, ATTN_TENSOR_V, l, p) + h * DIM));
                    attn_block_read((attn_dtype)dtype, DIM, block, p % 16, k, v);
                    assert_memory_equal(keys->tensors[0].data + at, k, sizeof k);
                    assert_memory_equal(values->tensors[0].data + at, v, sizeof v);
                }
            }
            if (dtype == ATTN_F32)
                assert_memory_equal(keys->tensors[0].data,
                                    inside_tensor(r.trace, ATTN_TENSOR_ROT_K, l)->data,
                                    N * KV_HEADS * DIM * sizeof(float));
            attn_trace_release(keys);
            attn_trace_release(values);
        }
        run_free(&r);
    }
    attn_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_examples_equal_pytorch),
        cmocka_unit_test(test_models_equal_pytorch),
        cmocka_unit_test(test_each_tensor_feeds_the_next),
        cmocka_unit_test(test_the_cache_has_the_rotated_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
