/* A config.json, or what stands before a NUL, and a generation_config.json behind it: refused in
 * one line, or a shape that the rest of the engine can rely on. */
#include "tests/fuzz/fuzz.h"

#include "engine/compute/rope.h"

#include <math.h>

static void check_config(const attn_config *c)
{
    ATTN_ASSERT(strlen(c->model_type) > 0 && c->hidden_size > 0 && c->num_hidden_layers > 0);
    ATTN_ASSERT(c->num_key_value_heads > 0);
    ATTN_ASSERT(c->num_attention_heads % c->num_key_value_heads == 0);
    ATTN_ASSERT(c->head_dim >= 2 && c->head_dim <= 1024 && c->head_dim % 2 == 0);
    ATTN_ASSERT(c->max_position_embeddings > 0 && c->rms_norm_eps >= 0);
    ATTN_ASSERT(c->n_eos <= ATTN_EOS_MAX && c->num_experts_per_tok <= c->num_experts);
    ATTN_ASSERT(!attn_config_is_decoder(c) || (c->vocab_size > 0 && c->intermediate_size > 0));
    ATTN_ASSERT(attn_config_qkv_size(c) >= 3 * (size_t)c->head_dim);
    ATTN_ASSERT(attn_config_input_bytes(c) > 0);

    float inv_freq[512], cos[512], sin[512];
    size_t half = c->head_dim / 2;
    double factor = attn_rope_frequencies(c, inv_freq);
    attn_rope_angles(c->max_position_embeddings, half, inv_freq, factor, cos, sin);
    for (size_t i = 0; i < half; i++)
        ATTN_ASSERT(isfinite(inv_freq[i]) && isfinite(cos[i]) && isfinite(sin[i]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const char *nul = size > 0 ? memchr(text, '\0', size) : NULL;
    attn_config config;
    attn_error err = {0};
    size_t len = nul == NULL ? size : (size_t)(nul - text);
    if (attn_config_parse(text, len, "config.json", &config, &err) != ATTN_OK) {
        fuzz_check_error(&err);
        return 0;
    }
    check_config(&config);
    if (nul == NULL)
        return 0;
    attn_status status = attn_config_parse_generation(nul + 1, size - len - 1,
                                                      "generation_config.json", &config, &err);
    if (status != ATTN_OK)
        fuzz_check_error(&err);
    ATTN_ASSERT(config.n_eos <= ATTN_EOS_MAX);
    return 0;
}
