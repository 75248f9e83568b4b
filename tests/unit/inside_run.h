/* inside_run.h: what the tests of looking inside share: inputs, tensor jobs, comparisons. */
#ifndef INSIDE_RUN_H
#define INSIDE_RUN_H

#include "tests/unit/engine_run.h"

#define OPEN_END UINT64_MAX

/* What a session is fed: rows, or a language model's tokens. */
typedef struct inside_inputs {
    const float *rows;
    size_t size;
    const uint32_t *tokens;
    size_t n;
} inside_inputs;

/* The inputs of goldens/<name>, which is kept open to the end. */
inside_inputs inside_inputs_of(const char *name);

/* chain3's over and over: INSIDE_LONG rows. */
#define INSIDE_LONG 1300
inside_inputs inside_long_inputs(void);

/* An engine with chain3; a session of the first n of these rows; its end; a pause. */
attn_engine *inside_open_chain(void);
void inside_prefill(attn_engine *engine, const char *session, size_t n);
void inside_delete(attn_engine *engine, const char *session);
void inside_pause_us(long us);

/* Inputs [first, first + n) as a prefill, which keeps all outputs, or as a decode's steps. `trace`:
 * NULL for none. */
attn_request inside_feed(attn_job_kind kind, const char *session, const inside_inputs *inputs,
                         size_t first, size_t n, const attn_selection *trace);
/* The same, run to its end, which is LENGTH. */
run inside_fed(attn_engine *engine, attn_job_kind kind, const char *session,
               const inside_inputs *inputs, size_t first, size_t n, const attn_selection *trace);
/* A decode of its own outputs. */
run inside_steps(attn_engine *engine, const char *session, uint64_t steps,
                 const attn_selection *trace);

/* All that a trace of the engine's first model may have; the same of some layers and heads. */
attn_selection inside_everything(const attn_engine *engine);

/* A look at queries [q, q_end) and keys [k, k_end). */
attn_request inside_look_request(const char *session, attn_tensor_kind kind, uint32_t layer,
                                 uint64_t q, uint64_t q_end, uint64_t k, uint64_t k_end);
/* Its trace, of one tensor. attn_trace_release. */
attn_trace *inside_look(attn_engine *engine, const char *session, attn_tensor_kind kind,
                        uint32_t layer, uint64_t q, uint64_t q_end, uint64_t k, uint64_t k_end);

/* The trace's tensor, which it must have. */
const attn_trace_tensor *inside_tensor(const attn_trace *trace, attn_tensor_kind kind,
                                       uint32_t layer);
/* A row of a tensor without keys: [shape[1] (, shape[2])]. *n: its floats. */
const float *inside_row(const attn_trace *trace, attn_tensor_kind kind, uint32_t layer,
                        uint64_t position, size_t *n);
/* A head's row of scores or weights: [n_keys]. `head`: the model's. */
const float *inside_keys(const attn_trace *trace, attn_tensor_kind kind, uint32_t layer,
                         uint64_t position, uint32_t head);

/* Fails unless both have the same bits at that position, in the heads and keys that both have. */
void inside_assert_same_row(const attn_trace *a, const attn_trace *b, attn_tensor_kind kind,
                            uint32_t layer, uint64_t position);
/* The same for every tensor and position of `a`, which `b` must all have. */
void inside_assert_within(const attn_trace *a, const attn_trace *b);

/* What every trace must be: keys after a row's own exactly -inf and 0, weights that sum to 1. */
void inside_assert_causal(const attn_trace *trace);

/* All traces of a session so far: of its prefills, and of each step. */
typedef struct inside_book {
    attn_trace *traces[64];
    size_t n;
} inside_book;

void inside_book_add(inside_book *book, attn_trace *trace);
/* Adds the traces of a run, and frees the run. */
void inside_book_take(inside_book *book, run *r);
/* The trace that has the position. */
attn_trace *inside_book_at(const inside_book *book, uint64_t position);
void inside_book_free(inside_book *book);
/* Fails unless every row of one has the bits of the other. */
void inside_assert_same_books(const inside_book *a, const inside_book *b);
/* Looks at every tensor of positions [first, end) and compares with what the steps left. */
void inside_assert_looks_like(attn_engine *engine, const char *session, const inside_book *book,
                              uint64_t first, uint64_t end);

/* The engine's account: what is allocated and reserved. */
uint64_t inside_account(attn_engine *engine);

#endif
