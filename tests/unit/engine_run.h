/* engine_run.h: what engine tests share: golden files, and running jobs to their end. */
#ifndef ENGINE_RUN_H
#define ENGINE_RUN_H

#include "engine/compute/kernels.h"
#include "engine/engine.h"
#include "engine/model/safetensors.h"

/* Sanitized builds compute slowly, and the sanitizers see as much in less. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define LESS(unsanitized, sanitized) (sanitized)
#else
#define LESS(unsanitized, sanitized) (unsanitized)
#endif

#define GOLDENS "tests/reference/goldens/"
#define MODELS "tests/reference/models/"

/* An engine with the given model folder (NULL: the built-in models alone), small and strict. */
typedef struct run_setup {
    const char *model; /* a folder name under MODELS, also the model's name */
    uint64_t seed;
    unsigned n_threads;
    const char *kernels;
    uint64_t kv_memory_bytes;
    uint64_t max_sessions;
    uint32_t queue;
    uint32_t ttl_s, stall_timeout_ms;
} run_setup;
attn_engine *run_open(run_setup setup);

/* A decode's committed output rows, gathered; or nothing but its end. */
typedef struct run {
    attn_status submitted; /* what submission said */
    attn_error error;      /* of submission, or of the job */
    attn_reason reason;
    attn_session_info session;
    uint64_t appended, steps;
    float *outputs; /* [n_outputs, output_size]; prefill: as asked; decode: every step */
    size_t n_outputs, output_size;
    uint32_t *tokens; /* decode of a language model: every step's */
    size_t n_tokens;
    float *logits; /* prefill: as asked */
    size_t n_logits;
    attn_logprob next[ATTN_NEXT];
    attn_trace *trace;   /* prefill, tensor: what was asked for */
    attn_trace **traces; /* decode: every step's */
    size_t n_traces;
    double max_abs_diff;
    bool bit_identical;
} run;

/* Submits and waits for the end. run_free the result. */
run run_job(attn_engine *engine, const attn_request *request);
run run_prefill(attn_engine *engine, const char *session, const char *model, const float *inputs,
                size_t n, size_t size, attn_output output);
run run_decode(attn_engine *engine, const char *session, const float *inputs, size_t n,
               size_t size);
run run_steps(attn_engine *engine, const char *session, uint64_t steps);
run run_verify(attn_engine *engine, const char *session);
void run_free(run *r);

/* A job in flight, for tests that overlap several. Heap object; wait ends and frees it. */
typedef struct run_handle run_handle;
run_handle *run_start(attn_engine *engine, const attn_request *request, run *result);
/* The same, its sink not ready once `steps` steps have been taken, until run_resume. */
run_handle *run_start_held(attn_engine *engine, const attn_request *request, run *result,
                           uint64_t steps);
void run_cancel(run_handle *handle);
/* Goes on until so many steps have been taken in all. */
void run_resume_to(run_handle *handle, uint64_t steps);
void run_resume(run_handle *handle);
uint64_t run_steps_taken(run_handle *handle);
/* Blocks until so many steps have been taken. */
void run_wait_steps(run_handle *handle, uint64_t steps);
void run_wait(run_handle *handle);

/* Golden files: a tensor's f32 values and size. */
attn_safetensors *golden_open(const char *name);
const float *golden_f32(const attn_safetensors *file, const char *tensor, size_t *n);

/* Normalised mean square error, and the largest difference. */
double nmse(const float *values, const double *reference, size_t n);
double max_diff(const float *a, const float *b, size_t n);

#endif
