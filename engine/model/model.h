/* model.h: a loaded model: its shape and its weights as the kernels read them. */
#ifndef ATTN_MODEL_H
#define ATTN_MODEL_H

#include "engine/compute/kernels.h"
#include "engine/model/config.h"

/* A linear layer without bias, y = W x, packed so that vector lanes are outputs.
 * Layout: panels[p][i][c] = W[32 p + c][i]; outputs past n_out are zero weights. */
typedef struct attn_linear {
    size_t n_in, n_out;
    const float *panels; /* [n_panels, n_in, ATTN_PANEL] f32, 64-byte aligned */
} attn_linear;

static inline size_t attn_linear_panels(const attn_linear *linear)
{
    return (linear->n_out + ATTN_PANEL - 1) / ATTN_PANEL;
}

typedef struct attn_layer {
    attn_linear qkv;     /* outputs: q heads, then k heads, then v heads, head_dim each */
    attn_linear o;       /* heads * head_dim -> hidden_size */
    const float *q_norm; /* [head_dim], NULL without qk_norm */
    const float *k_norm;
} attn_layer;

/* Immutable once loaded, except the two counts. */
typedef struct attn_model {
    char name[ATTN_MODEL_NAME_MAX + 1];
    attn_config config;
    bool built_in, random;
    attn_layer *layers; /* [num_hidden_layers] */
    float *inv_freq;    /* [head_dim / 2] */
    float score_scale;  /* 1 / sqrt(head_dim) */
    uint64_t n_parameters;
    void *weights; /* the one mapping that layers point into */
    size_t weights_bytes;
    _Atomic uint64_t n_sessions, n_positions;
} attn_model;

/* Loads a folder's config.json and model.safetensors; without the latter, and with `random_seed`
 * not NULL, fills the weights from it. Errors: IO, FORMAT, NO_MEMORY, INVALID.
 * Owner: attn_model_free. */
ATTN_MUST_CHECK attn_model *attn_model_load(const char *name, const char *dir,
                                            const uint64_t *random_seed, attn_error *err);
/* Number of models compiled into the program, and loading one. */
size_t attn_builtin_count(void);
const char *attn_builtin_name(size_t index);
ATTN_MUST_CHECK attn_model *attn_model_load_builtin(size_t index, attn_error *err);
void attn_model_free(attn_model *model); /* NULL allowed */

#endif
