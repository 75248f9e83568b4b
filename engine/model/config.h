/* config.h: a model's shape, read from config.json and refused early when it cannot be served.
 *
 * Field names and defaults are Hugging Face's. Families: `attention` (ours: a chain of attention
 * layers), and the decoders `llama`, `qwen3`, `qwen3_moe` and `minimind` (MiniMind 3, and MiniMind 2
 * by its n_routed_experts). */
#ifndef ATTN_CONFIG_H
#define ATTN_CONFIG_H

#include "engine/engine.h"

#define ATTN_EOS_MAX 16

typedef enum attn_family {
    ATTN_FAMILY_ATTENTION,
    ATTN_FAMILY_LLAMA,
    ATTN_FAMILY_QWEN3,
    ATTN_FAMILY_QWEN3_MOE,
    ATTN_FAMILY_MINIMIND,
    ATTN_FAMILY_MINIMIND2,
} attn_family;

typedef enum attn_rope_type {
    ATTN_ROPE_DEFAULT,
    ATTN_ROPE_LINEAR,
    ATTN_ROPE_LLAMA3,
    ATTN_ROPE_YARN,
} attn_rope_type;

/* How rotary frequencies are scaled for longer contexts (rope.h). */
typedef struct attn_rope_scaling {
    attn_rope_type type;
    double factor;
    double original;                          /* original_max_position_embeddings */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* yarn: cos and sin are multiplied by it */
    bool pairs_end_half;                      /* yarn: MiniMind's last pair is head_dim / 2 - 1 */
} attn_rope_scaling;

typedef struct attn_config {
    attn_family family;
    char model_type[24];
    uint32_t hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim;
    uint64_t max_position_embeddings;
    double rope_theta, rms_norm_eps;
    attn_rope_scaling rope;
    bool qk_norm;
    /* Decoders only; all zero in an `attention` model. */
    uint32_t vocab_size;
    uint32_t intermediate_size; /* of the MLP, or of one expert */
    bool attention_bias, tie_word_embeddings;
    uint32_t num_experts; /* 0: a dense MLP */
    uint32_t num_experts_per_tok, n_shared_experts;
    bool norm_topk_prob;
    bool has_bos;
    uint32_t bos_token_id;
    size_t n_eos;
    uint32_t eos_token_ids[ATTN_EOS_MAX];
} attn_config;

/* Reads `text`. `label` names the file in errors. A field that would change the result and is not
 * known is refused by name. Errors: FORMAT (one line naming the field). */
ATTN_MUST_CHECK attn_status attn_config_parse(const char *text, size_t len, const char *label,
                                              attn_config *config, attn_error *err);

/* Takes the eos ids of a generation_config.json, if it names any, instead. Errors: FORMAT. */
ATTN_MUST_CHECK attn_status attn_config_parse_generation(const char *text, size_t len,
                                                         const char *label, attn_config *config,
                                                         attn_error *err);

/* Token ids in, token ids out; else rows in, rows out. */
static inline bool attn_config_is_decoder(const attn_config *config)
{
    return config->family != ATTN_FAMILY_ATTENTION;
}

/* Outputs of the fused q, k, v projection: (heads + 2 kv_heads) * head_dim. */
size_t attn_config_qkv_size(const attn_config *config);
/* Bytes of one position's kept input: a row, or a token id. */
size_t attn_config_input_bytes(const attn_config *config);

#endif
