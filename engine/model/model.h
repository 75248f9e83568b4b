/* model.h: a loaded model: its shape, its weights as the kernels read them, its tokenizer. */
#ifndef ATTN_MODEL_H
#define ATTN_MODEL_H

#include "engine/model/config.h"
#include "engine/model/linear.h"

/* SwiGLU: down(silu(gate x) * (up x)). */
typedef struct attn_mlp {
    attn_linear gate_up; /* outputs: gate, then up, intermediate_size each */
    attn_linear down;
} attn_mlp;

typedef struct attn_layer {
    attn_linear qkv;     /* outputs: q heads, then k heads, then v heads, head_dim each */
    attn_linear o;       /* heads * head_dim -> hidden_size */
    const float *q_norm; /* [head_dim], NULL without qk_norm */
    const float *k_norm;
    /* Decoders only. */
    const float *input_norm, *post_norm; /* [hidden_size] */
    attn_mlp mlp;                        /* dense */
    attn_linear router;                  /* or experts: hidden_size -> num_experts */
    attn_mlp *experts;                   /* [num_experts], then [n_shared_experts] */
} attn_layer;

typedef struct attn_tokenizer attn_tokenizer;

/* Immutable once loaded, except the two counts. */
typedef struct attn_model {
    char name[ATTN_MODEL_NAME_MAX + 1];
    attn_config config;
    bool built_in, random;
    attn_dtype weights_dtype;
    attn_layer *layers; /* [num_hidden_layers] */
    float *inv_freq;    /* [head_dim / 2] */
    double rope_factor; /* cos and sin are multiplied by it */
    float score_scale;  /* 1 / sqrt(head_dim) */
    /* Decoders only. */
    attn_linear embedding, head; /* vocab_size outputs; the same weights when tied */
    const float *final_norm;
    attn_tokenizer *tokenizer; /* NULL: the folder has none */

    uint64_t n_parameters;
    size_t weights_bytes;
    struct attn_block *blocks; /* the memory that all of these point into */
    _Atomic uint64_t n_sessions, n_positions;
} attn_model;

/* How to load weights. */
typedef struct attn_load_options {
    const uint64_t *random_seed; /* NULL: folders must have weights */
    bool has_dtype;              /* else each model keeps its files' dtype */
    attn_dtype dtype;
} attn_load_options;

/* Loads a folder: config.json, model.safetensors or its shards, tokenizer.json and
 * generation_config.json when there. Errors: IO, FORMAT, NO_MEMORY, INVALID.
 * Owner: attn_model_free. */
ATTN_MUST_CHECK attn_model *attn_model_load(const char *name, const char *dir,
                                            const attn_load_options *options, attn_error *err);
/* The models compiled into the program; the first is the default. Loading one. */
enum { ATTN_BUILTIN_STORIES, ATTN_BUILTIN_SEED, ATTN_BUILTINS };
const char *attn_builtin_name(size_t index);
ATTN_MUST_CHECK attn_model *attn_model_load_builtin(size_t index, const attn_load_options *options,
                                                    attn_error *err);
void attn_model_free(attn_model *model); /* NULL allowed */

/* Bytes of one position of a cache: 2 * layers * kv_heads * bytes of a head row. */
size_t attn_model_kv_bytes(const attn_model *model, attn_dtype kv_dtype);

#endif
