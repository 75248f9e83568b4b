/* bench_model.h: a model with random weights, and sessions full of noise, to measure on. */
#ifndef BENCH_MODEL_H
#define BENCH_MODEL_H

#include "engine/compute/attention.h"
#include "engine/compute/forward.h"

#define BENCH_SESSIONS 64

typedef struct bench_model {
    const char *kernels;
    unsigned n_threads;
    attn_pool *pool;
    attn_forward *forward;
    attn_attention *attention;
    attn_model *model;
    attn_dtype kv_dtype;
    attn_arena *arena;
    attn_page_class *pages;
    attn_session *sessions[BENCH_SESSIONS];
    size_t n_sessions;
    float *inputs;    /* [ATTN_BATCH_ROWS, hidden_size] */
    uint32_t *tokens; /* [ATTN_BATCH_ROWS] */
    float *logits;    /* [BENCH_SESSIONS, vocab_size] */
    float *wide;      /* [ATTN_BATCH_ROWS, the widest layer's outputs] */
} bench_model;

/* `dir` NULL: the built-in seed layer. Any failure ends the program. */
bench_model bench_model_open(const char *dir, attn_dtype weights, attn_dtype kv_dtype,
                             unsigned n_threads, const char *kernels);
void bench_model_close(bench_model *m);
/* Adds a session with room for so many positions, each holding noise. */
void bench_model_add_session(bench_model *m, uint64_t positions);

/* Prefills rows [position, position + n_rows) of the first session. */
void bench_model_prefill(bench_model *m, uint64_t position, size_t n_rows);
/* One step of the first n sessions at `position`, logits included. */
void bench_model_step(bench_model *m, uint64_t position, size_t n);
/* Only the linear layers of such a step, or only the attention of all its layers. */
void bench_model_linears(bench_model *m, size_t n_rows);
void bench_model_attention(bench_model *m, uint64_t position, size_t n_rows, size_t n_sessions);
/* Multiply-adds of n rows in the linear layers, without the head. */
double bench_model_linear_cost(const bench_model *m, size_t n_rows);

#endif
