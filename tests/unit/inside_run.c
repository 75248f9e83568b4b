#include "tests/unit/inside_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include <time.h>

inside_inputs inside_inputs_of(const char *name)
{
    static attn_safetensors *files[16]; /* kept open to the end */
    static const char *names[16];
    size_t i = 0;
    while (names[i] != NULL && strcmp(names[i], name) != 0)
        i++;
    if (names[i] == NULL) {
        assert_true(i < 15);
        names[i] = name;
        files[i] = golden_open(name);
    }
    const attn_tensor *tokens = attn_safetensors_find(files[i], "tokens");
    if (tokens != NULL)
        return (inside_inputs){.tokens = (const uint32_t *)(const void *)tokens->data,
                               .n = (size_t)tokens->shape[0]};
    const attn_tensor *rows = attn_safetensors_find(files[i], "inputs");
    size_t n;
    return (inside_inputs){.rows = golden_f32(files[i], "inputs", &n),
                           .size = (size_t)rows->shape[rows->n_dims - 1],
                           .n = n / (size_t)rows->shape[rows->n_dims - 1]};
}

inside_inputs inside_long_inputs(void)
{
    static float rows[INSIDE_LONG * 96];
    const inside_inputs some = inside_inputs_of("chain3");
    assert_int_equal(some.size, 96);
    for (size_t i = 0; i < INSIDE_LONG; i++)
        memcpy(rows + i * some.size, some.rows + i % some.n * some.size, some.size * sizeof *rows);
    return (inside_inputs){.rows = rows, .size = some.size, .n = INSIDE_LONG};
}

attn_engine *inside_open_chain(void)
{
    return run_open((run_setup){.model = "chain3", .seed = 42, .n_threads = 2});
}

void inside_prefill(attn_engine *engine, const char *session, size_t n)
{
    inside_inputs inputs = inside_long_inputs();
    run r = inside_fed(engine, ATTN_JOB_PREFILL, session, &inputs, 0, n, NULL);
    run_free(&r);
}

void inside_delete(attn_engine *engine, const char *session)
{
    attn_error err;
    assert_int_equal(attn_session_delete(engine, session, &err), ATTN_OK);
}

void inside_pause_us(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

attn_request inside_feed(attn_job_kind kind, const char *session, const inside_inputs *inputs,
                         size_t first, size_t n, const attn_selection *trace)
{
    attn_request r = attn_request_init(kind);
    assert_true(first + n <= inputs->n);
    r.session = session;
    r.output = ATTN_OUTPUT_ALL;
    if (inputs->rows != NULL) {
        r.inputs = inputs->rows + first * inputs->size;
        r.n_inputs = n;
        r.input_size = inputs->size;
    } else {
        r.tokens = inputs->tokens + first;
        r.n_tokens = n;
    }
    if (trace != NULL) {
        r.has_trace = true;
        r.trace = *trace;
    }
    return r;
}

static run to_its_end(attn_engine *engine, const attn_request *request)
{
    run r = run_job(engine, request);
    if (r.submitted != ATTN_OK || r.reason != ATTN_REASON_LENGTH)
        fail_msg("%s: %s", request->session, r.error.message);
    return r;
}

run inside_fed(attn_engine *engine, attn_job_kind kind, const char *session,
               const inside_inputs *inputs, size_t first, size_t n, const attn_selection *trace)
{
    attn_request r = inside_feed(kind, session, inputs, first, n, trace);
    return to_its_end(engine, &r);
}

run inside_steps(attn_engine *engine, const char *session, uint64_t steps,
                 const attn_selection *trace)
{
    attn_request r = attn_request_init(ATTN_JOB_DECODE);
    r.session = session;
    r.steps = steps;
    r.sampling.ignore_eos = true;
    if (trace != NULL) {
        r.has_trace = true;
        r.trace = *trace;
    }
    return to_its_end(engine, &r);
}

attn_selection inside_everything(const attn_engine *engine)
{
    attn_selection all = {0};
    for (int kind = 0; kind < ATTN_TENSOR_KEY; kind++) {
        attn_selection one = {.tensors = 1u << kind};
        if (attn_selection_check(engine, 0, &one, NULL) == ATTN_OK)
            all.tensors |= one.tensors;
    }
    return all;
}

attn_request inside_look_request(const char *session, attn_tensor_kind kind, uint32_t layer,
                                 uint64_t q, uint64_t q_end, uint64_t k, uint64_t k_end)
{
    attn_request r = attn_request_init(ATTN_JOB_TENSOR);
    r.session = session;
    r.tensor = kind;
    r.layer = layer;
    r.first_query = q;
    r.end_query = q_end;
    r.first_key = k;
    r.end_key = k_end;
    return r;
}

attn_trace *inside_look(attn_engine *engine, const char *session, attn_tensor_kind kind,
                        uint32_t layer, uint64_t q, uint64_t q_end, uint64_t k, uint64_t k_end)
{
    attn_request request = inside_look_request(session, kind, layer, q, q_end, k, k_end);
    run r = to_its_end(engine, &request);
    assert_non_null(r.trace);
    assert_int_equal(r.trace->n_tensors, 1);
    assert_int_equal(r.trace->tensors[0].kind, kind);
    assert_int_equal(r.trace->tensors[0].layer, layer);
    return r.trace;
}

const attn_trace_tensor *inside_tensor(const attn_trace *trace, attn_tensor_kind kind,
                                       uint32_t layer)
{
    assert_non_null(trace);
    for (size_t i = 0; i < trace->n_tensors; i++) {
        if (trace->tensors[i].kind == kind && trace->tensors[i].layer == layer)
            return &trace->tensors[i];
    }
    fail_msg("the trace has no %s of layer %u", attn_tensor_kind_name(kind), layer);
    return NULL;
}

const float *inside_row(const attn_trace *trace, attn_tensor_kind kind, uint32_t layer,
                        uint64_t position, size_t *n)
{
    const attn_trace_tensor *t = inside_tensor(trace, kind, layer);
    assert_false(attn_tensor_has_keys(kind));
    assert_true(position >= trace->position && position - trace->position < trace->n_rows);
    assert_int_equal(t->shape[0], trace->n_rows);
    *n = (size_t)(t->shape[1] * (t->n_dims == 3 ? t->shape[2] : 1));
    return t->data + (position - trace->position) * *n;
}

const float *inside_keys(const attn_trace *trace, attn_tensor_kind kind, uint32_t layer,
                         uint64_t position, uint32_t head)
{
    const attn_trace_tensor *t = inside_tensor(trace, kind, layer);
    assert_true(position >= trace->position && position - trace->position < trace->n_rows);
    assert_true(t->n_dims == 3 && t->shape[0] == trace->n_heads && t->shape[1] == trace->n_rows &&
                t->shape[2] == trace->n_keys);
    size_t h = 0;
    while (h < trace->n_heads && trace->heads[h] != head)
        h++;
    assert_true(h < trace->n_heads);
    return t->data + (h * trace->n_rows + (position - trace->position)) * trace->n_keys;
}

static void assert_same(const float *a, const float *b, size_t n, attn_tensor_kind kind,
                        uint32_t layer, uint64_t position)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("%s of layer %u, position %llu: element %zu is %a and %a",
                     attn_tensor_kind_name(kind), layer, (unsigned long long)position, i,
                     (double)a[i], (double)b[i]);
    }
}

static void assert_same_keys(const attn_trace *a, const attn_trace *b, attn_tensor_kind kind,
                             uint32_t layer, uint64_t position, uint32_t head)
{
    uint64_t first = a->first_key > b->first_key ? a->first_key : b->first_key;
    uint64_t end_a = a->first_key + a->n_keys, end_b = b->first_key + b->n_keys;
    uint64_t end = end_a < end_b ? end_a : end_b;
    assert_true(first < end);
    assert_same(inside_keys(a, kind, layer, position, head) + (first - a->first_key),
                inside_keys(b, kind, layer, position, head) + (first - b->first_key),
                (size_t)(end - first), kind, layer, position);
}

void inside_assert_same_row(const attn_trace *a, const attn_trace *b, attn_tensor_kind kind,
                            uint32_t layer, uint64_t position)
{
    if (attn_tensor_has_keys(kind)) {
        for (size_t i = 0; i < a->n_heads; i++) {
            for (size_t j = 0; j < b->n_heads; j++) {
                if (a->heads[i] == b->heads[j])
                    assert_same_keys(a, b, kind, layer, position, a->heads[i]);
            }
        }
        return;
    }
    size_t n_a, n_b;
    const float *row_a = inside_row(a, kind, layer, position, &n_a);
    const float *row_b = inside_row(b, kind, layer, position, &n_b);
    if (!attn_tensor_has_heads(kind) && !attn_tensor_has_kv_heads(kind)) {
        assert_int_equal(n_a, n_b);
        assert_same(row_a, row_b, n_a, kind, layer, position);
        return;
    }
    bool kv = attn_tensor_has_kv_heads(kind);
    size_t heads_a = kv ? a->n_kv_heads : a->n_heads, heads_b = kv ? b->n_kv_heads : b->n_heads;
    const uint32_t *list_a = kv ? a->kv_heads : a->heads, *list_b = kv ? b->kv_heads : b->heads;
    size_t head_dim = n_a / heads_a;
    assert_int_equal(head_dim, n_b / heads_b);
    for (size_t i = 0; i < heads_a; i++) {
        for (size_t j = 0; j < heads_b; j++) {
            if (list_a[i] == list_b[j])
                assert_same(row_a + i * head_dim, row_b + j * head_dim, head_dim, kind, layer,
                            position);
        }
    }
}

void inside_assert_within(const attn_trace *a, const attn_trace *b)
{
    for (size_t i = 0; i < a->n_tensors; i++) {
        for (size_t r = 0; r < a->n_rows; r++)
            inside_assert_same_row(a, b, a->tensors[i].kind, a->tensors[i].layer, a->position + r);
    }
}

static void assert_row_causal(const attn_trace *t, attn_tensor_kind kind, uint64_t position,
                              const float *row)
{
    const float hidden = kind == ATTN_TENSOR_SCORES ? -INFINITY : 0.0f;
    double sum = 0;
    for (uint64_t k = 0; k < t->n_keys; k++) {
        if (t->first_key + k > position)
            assert_memory_equal(&row[k], &hidden, sizeof hidden);
        else if (kind == ATTN_TENSOR_SCORES)
            assert_true(isfinite(row[k]));
        else
            assert_true(row[k] >= 0.0f && row[k] <= 1.0f);
        sum += (double)row[k];
    }
    if (kind == ATTN_TENSOR_PATTERN && t->first_key == 0 && t->n_keys > position &&
        !(fabs(sum - 1) <= 1e-6))
        fail_msg("the weights of position %llu sum to 1 %+.1e", (unsigned long long)position,
                 sum - 1);
}

void inside_assert_causal(const attn_trace *t)
{
    for (size_t i = 0; i < t->n_tensors; i++) {
        attn_tensor_kind kind = t->tensors[i].kind;
        if (kind != ATTN_TENSOR_SCORES && kind != ATTN_TENSOR_PATTERN)
            continue;
        for (size_t h = 0; h < t->n_heads; h++) {
            for (size_t r = 0; r < t->n_rows; r++)
                assert_row_causal(
                    t, kind, t->position + r,
                    inside_keys(t, kind, t->tensors[i].layer, t->position + r, t->heads[h]));
        }
    }
}

void inside_book_add(inside_book *b, attn_trace *trace)
{
    assert_true(b->n < sizeof b->traces / sizeof b->traces[0]);
    b->traces[b->n++] = attn_trace_retain(trace);
}

void inside_book_take(inside_book *b, run *r)
{
    if (r->trace != NULL)
        inside_book_add(b, r->trace);
    for (size_t i = 0; i < r->n_traces; i++)
        inside_book_add(b, r->traces[i]);
    run_free(r);
}

attn_trace *inside_book_at(const inside_book *b, uint64_t position)
{
    size_t i = 0;
    while (i < b->n && (position < b->traces[i]->position ||
                        position - b->traces[i]->position >= b->traces[i]->n_rows))
        i++;
    assert_true(i < b->n);
    return b->traces[i];
}

void inside_book_free(inside_book *b)
{
    for (size_t i = 0; i < b->n; i++)
        attn_trace_release(b->traces[i]);
    b->n = 0;
}

void inside_assert_same_books(const inside_book *a, const inside_book *b)
{
    for (size_t i = 0; i < a->n; i++) {
        const attn_trace *t = a->traces[i];
        for (size_t j = 0; j < t->n_tensors; j++) {
            for (uint64_t p = t->position; p < t->position + t->n_rows; p++)
                inside_assert_same_row(t, inside_book_at(b, p), t->tensors[j].kind,
                                       t->tensors[j].layer, p);
        }
    }
}

void inside_assert_looks_like(attn_engine *engine, const char *session, const inside_book *b,
                              uint64_t first, uint64_t end)
{
    const attn_trace *any = inside_book_at(b, first);
    for (size_t i = 0; i < any->n_tensors; i++) {
        attn_tensor_kind kind = any->tensors[i].kind;
        uint32_t layer = any->tensors[i].layer;
        attn_trace *look = inside_look(engine, session, kind, layer, first, end, 0, OPEN_END);
        assert_int_equal(look->position, first);
        assert_int_equal(look->n_rows, end - first);
        inside_assert_causal(look);
        for (uint64_t p = first; p < end; p++)
            inside_assert_same_row(look, inside_book_at(b, p), kind, layer, p);
        attn_trace_release(look);
    }
}

uint64_t inside_account(attn_engine *engine)
{
    attn_totals totals;
    attn_engine_totals(engine, &totals);
    return totals.allocated_bytes + totals.reserved_bytes;
}
