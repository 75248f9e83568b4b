/* weights.h: where a model's tensors come from: files, or a seed.
 *
 * A checkpoint folder has model.safetensors, or model.safetensors.index.json and its shards. Rows
 * are read as f32 whatever the file keeps. Every tensor of the files must be asked for: one that
 * nobody reads would silently change nothing, so attn_weights_check_used refuses it by name. */
#ifndef ATTN_WEIGHTS_H
#define ATTN_WEIGHTS_H

#include "engine/model/safetensors.h"

typedef struct attn_weights attn_weights;

/* Opens a folder's tensors; without any, and with `random_seed` not NULL, tensors are made from it:
 * matrices uniform in +-1/sqrt(columns), norms 1, biases uniform in +-0.1.
 * Errors: IO, FORMAT, NO_MEMORY. Owner: attn_weights_close. */
ATTN_MUST_CHECK attn_weights *attn_weights_open(const char *dir, const uint64_t *random_seed,
                                                attn_error *err);
/* The tensors in the bytes of one safetensors file, which must outlive the result. */
ATTN_MUST_CHECK attn_weights *attn_weights_parse(const void *data, size_t size, const char *label,
                                                 attn_error *err);
void attn_weights_close(attn_weights *weights); /* NULL allowed */

bool attn_weights_random(const attn_weights *weights);
/* The dtype of most of the files' values; F32 for random ones. */
attn_dtype attn_weights_dtype(const attn_weights *weights);
/* Whether a tensor of that name is there; random weights have all but biases and the like that
 * a file may leave out. */
bool attn_weights_has(const attn_weights *weights, const char *name);

typedef struct attn_weight {
    const attn_tensor *tensor; /* NULL: random */
    const char *name;
    size_t rows, cols; /* cols 0: a vector */
} attn_weight;

/* Finds a tensor and checks its dtype and its shape [rows, cols] ([rows] when cols is 0). `name` is
 * borrowed by *weight. Errors: FORMAT. */
ATTN_MUST_CHECK attn_status attn_weights_find(attn_weights *weights, const char *name, size_t rows,
                                              size_t cols, attn_weight *weight, attn_error *err);
/* Reads row `row` (a vector: the whole) into `values` [cols or rows]. Errors: FORMAT when a value
 * is not finite. */
ATTN_MUST_CHECK attn_status attn_weights_read(const attn_weights *weights,
                                              const attn_weight *weight, size_t row, float *values,
                                              attn_error *err);
/* Marks a tensor as known although nobody reads it. */
void attn_weights_ignore(attn_weights *weights, const char *name);
/* Refuses the first tensor that nobody asked for. */
ATTN_MUST_CHECK attn_status attn_weights_check_used(const attn_weights *weights, attn_error *err);

#endif
