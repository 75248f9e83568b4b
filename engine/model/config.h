/* config.h: a model's shape, read from config.json and refused early when it cannot be served. */
#ifndef ATTN_CONFIG_H
#define ATTN_CONFIG_H

#include "engine/engine.h"

typedef struct attn_config {
    char model_type[24];
    uint32_t hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim;
    uint64_t max_position_embeddings;
    double rope_theta, rms_norm_eps;
    bool qk_norm;
} attn_config;

/* Reads `text`. `label` names the file in errors. Defaults: num_key_value_heads =
 * num_attention_heads, head_dim = hidden_size / num_attention_heads, rope_theta 1e4, rms_norm_eps
 * 1e-6, qk_norm true. A field that would change the result and is not known is refused by name.
 * Errors: FORMAT (one line naming the field). */
ATTN_MUST_CHECK attn_status attn_config_parse(const char *text, size_t len, const char *label,
                                              attn_config *config, attn_error *err);

/* Outputs of the fused q, k, v projection: (heads + 2 kv_heads) * head_dim. */
size_t attn_config_qkv_size(const attn_config *config);

#endif
