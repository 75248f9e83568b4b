#include "tests/unit/engine_run.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

attn_engine *run_open(run_setup setup)
{
    char dir[256];
    attn_model_source source = {.dir = dir};
    attn_error err = {0};
    if (setup.model != NULL)
        snprintf(dir, sizeof dir, MODELS "%s", setup.model);
    attn_options options = {
        .models = &source,
        .n_models = setup.model != NULL,
        .has_random_seed = setup.model != NULL,
        .random_seed = setup.seed,
        .n_threads = setup.n_threads ? setup.n_threads : 2,
        .kv_memory_bytes = setup.kv_memory_bytes ? setup.kv_memory_bytes : 256u << 20,
        .max_sessions = setup.max_sessions ? setup.max_sessions : 1000,
        .queue = setup.queue ? setup.queue : 1000,
        .stall_timeout_ms = 60000,
        .kernels = setup.kernels ? setup.kernels : "auto",
    };
    attn_engine *engine = attn_engine_open(&options, &err);
    if (engine == NULL)
        fail_msg("engine: %s", err.message);
    return engine;
}

struct run_handle {
    run *result;
    attn_job *job;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool done, decode;
    size_t capacity;
    uint64_t steps, hold_at;
};

static bool on_ready(void *ctx)
{
    run_handle *h = ctx;
    pthread_mutex_lock(&h->mutex);
    bool ready = h->steps < h->hold_at;
    pthread_mutex_unlock(&h->mutex);
    return ready;
}

static void on_step(void *ctx, const attn_step *step)
{
    run_handle *h = ctx;
    pthread_mutex_lock(&h->mutex);
    run *r = h->result;
    if (step->trace != NULL) {
        r->traces = realloc(r->traces, (r->n_traces + 1) * sizeof *r->traces);
        r->traces[r->n_traces++] = attn_trace_retain(step->trace);
    }
    if (step->output == NULL) {
        r->tokens = realloc(r->tokens, (r->n_tokens + 1) * sizeof *r->tokens);
        r->tokens[r->n_tokens++] = step->token;
        h->steps++;
        pthread_cond_broadcast(&h->cond);
        pthread_mutex_unlock(&h->mutex);
        return;
    }
    if (r->n_outputs == h->capacity) {
        h->capacity = h->capacity ? 2 * h->capacity : 16;
        r->outputs = realloc(r->outputs, h->capacity * step->output_size * sizeof(float));
    }
    memcpy(r->outputs + r->n_outputs++ * step->output_size, step->output,
           step->output_size * sizeof(float));
    r->output_size = step->output_size;
    h->steps++;
    pthread_cond_broadcast(&h->cond);
    pthread_mutex_unlock(&h->mutex);
}

static void on_done(void *ctx)
{
    run_handle *h = ctx;
    pthread_mutex_lock(&h->mutex);
    h->done = true;
    pthread_cond_broadcast(&h->cond);
    pthread_mutex_unlock(&h->mutex);
}

static run_handle *start(attn_engine *engine, const attn_request *request, run *result,
                         uint64_t hold_at)
{
    *result = (run){0};
    run_handle *h = calloc(1, sizeof *h);
    h->result = result;
    h->decode = request->kind == ATTN_JOB_DECODE;
    h->hold_at = hold_at;
    pthread_mutex_init(&h->mutex, NULL);
    pthread_cond_init(&h->cond, NULL);
    attn_sink sink = {.ctx = h, .ready = on_ready, .step = on_step, .done = on_done};
    result->submitted = attn_engine_submit(engine, request, &sink, &h->job, &result->error);
    if (result->submitted != ATTN_OK)
        h->done = true;
    return h;
}

run_handle *run_start(attn_engine *engine, const attn_request *request, run *result)
{
    return start(engine, request, result, UINT64_MAX);
}

run_handle *run_start_held(attn_engine *engine, const attn_request *request, run *result)
{
    return start(engine, request, result, 0);
}

void run_cancel(run_handle *h)
{
    attn_job_cancel(h->job);
}

void run_hold_at(run_handle *h, uint64_t steps)
{
    pthread_mutex_lock(&h->mutex);
    h->hold_at = steps;
    pthread_mutex_unlock(&h->mutex);
}

void run_resume(run_handle *h)
{
    run_hold_at(h, UINT64_MAX);
    attn_job_wake(h->job);
}

uint64_t run_steps_taken(run_handle *h)
{
    pthread_mutex_lock(&h->mutex);
    uint64_t steps = h->steps;
    pthread_mutex_unlock(&h->mutex);
    return steps;
}

void run_wait(run_handle *h)
{
    pthread_mutex_lock(&h->mutex);
    while (!h->done)
        pthread_cond_wait(&h->cond, &h->mutex);
    pthread_mutex_unlock(&h->mutex);
    run *r = h->result;
    if (r->submitted == ATTN_OK) {
        const attn_result *result = attn_job_result(h->job);
        r->reason = result->reason;
        r->session = result->session;
        r->error = result->error;
        r->max_abs_diff = result->verify_max_abs_diff;
        r->bit_identical = result->verify_bit_identical;
        if (!h->decode && result->n_outputs > 0 && result->reason == ATTN_REASON_LENGTH) {
            r->n_outputs = result->n_outputs;
            r->output_size = result->output_size;
            r->outputs = malloc(r->n_outputs * r->output_size * sizeof(float));
            memcpy(r->outputs, result->outputs, r->n_outputs * r->output_size * sizeof(float));
        }
        r->trace = result->trace != NULL ? attn_trace_retain(result->trace) : NULL;
        memcpy(r->next, result->next, sizeof r->next);
        if (result->n_logits > 0 && result->reason == ATTN_REASON_LENGTH) {
            r->n_logits = result->n_logits;
            r->logits = malloc(r->n_logits * sizeof(float));
            memcpy(r->logits, result->logits, r->n_logits * sizeof(float));
        }
        attn_job_release(h->job);
    }
    pthread_cond_destroy(&h->cond);
    pthread_mutex_destroy(&h->mutex);
    free(h);
}

run run_job(attn_engine *engine, const attn_request *request)
{
    run result;
    run_wait(run_start(engine, request, &result));
    return result;
}

run run_prefill(attn_engine *engine, const char *session, const char *model, const float *inputs,
                size_t n, size_t size, attn_output output)
{
    attn_request r = attn_request_init(ATTN_JOB_PREFILL);
    r.session = session;
    r.model = model;
    r.inputs = inputs;
    r.n_inputs = n;
    r.input_size = size;
    r.output = output;
    return run_job(engine, &r);
}

run run_decode(attn_engine *engine, const char *session, const float *inputs, size_t n, size_t size)
{
    attn_request r = attn_request_init(ATTN_JOB_DECODE);
    r.session = session;
    r.inputs = inputs;
    r.n_inputs = n;
    r.input_size = size;
    return run_job(engine, &r);
}

run run_steps(attn_engine *engine, const char *session, uint64_t steps)
{
    attn_request r = attn_request_init(ATTN_JOB_DECODE);
    r.session = session;
    r.steps = steps;
    return run_job(engine, &r);
}

run run_verify(attn_engine *engine, const char *session)
{
    attn_request r = attn_request_init(ATTN_JOB_VERIFY);
    r.session = session;
    return run_job(engine, &r);
}

void run_free(run *r)
{
    free(r->outputs);
    free(r->tokens);
    free(r->logits);
    attn_trace_release(r->trace);
    for (size_t i = 0; i < r->n_traces; i++)
        attn_trace_release(r->traces[i]);
    free(r->traces);
    r->outputs = r->logits = NULL;
    r->tokens = NULL;
    r->trace = NULL;
    r->traces = NULL;
    r->n_traces = 0;
}

attn_safetensors *golden_open(const char *name)
{
    char path[256];
    attn_error err = {0};
    snprintf(path, sizeof path, GOLDENS "%s.safetensors", name);
    attn_safetensors *file = attn_safetensors_open(path, &err);
    if (file == NULL)
        fail_msg("%s", err.message);
    return file;
}

const float *golden_f32(const attn_safetensors *file, const char *tensor, size_t *n)
{
    const attn_tensor *t = attn_safetensors_find(file, tensor);
    if (t == NULL || strcmp(t->dtype, "F32") != 0 || (uintptr_t)t->data % sizeof(float) != 0)
        fail_msg("golden tensor %s is missing or not aligned F32", tensor);
    *n = (size_t)(t->n_bytes / sizeof(float));
    return (const float *)(const void *)t->data;
}

double nmse(const float *values, const double *reference, size_t n)
{
    double error = 0, power = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)values[i] - reference[i];
        error += d * d;
        power += reference[i] * reference[i];
    }
    return error / power;
}

double max_diff(const float *a, const float *b, size_t n)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)a[i] - (double)b[i]));
    return largest;
}
