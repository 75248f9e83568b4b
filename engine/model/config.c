#include "engine/model/config.h"

#include "engine/base/base.h"
#include "engine/model/checkpoint_json.h"

#include <string.h>

/* Fields that describe a checkpoint without changing what it computes. */
static const char *const ignored[] = {"architectures", "torch_dtype",  "dtype",
                                      "transformers_version", "_name_or_path", "use_cache"};

/* The integer fields: where each goes, its bounds, and its default (0: none, it must be there). */
typedef struct integer_field {
    const char *name;
    uint64_t min, max, fallback;
    uint64_t value;
} integer_field;

enum { HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, POSITIONS, N_INTEGERS };

static attn_status read_integers(const attn_json *root, const char *label,
                                 integer_field fields[N_INTEGERS], attn_error *err)
{
    for (int i = 0; i < N_INTEGERS; i++) {
        integer_field *f = &fields[i];
        if (i == KV_HEADS)
            f->fallback = fields[HEADS].value;
        if (i == HEAD_DIM && fields[HIDDEN].value % fields[HEADS].value == 0)
            f->fallback = fields[HIDDEN].value / fields[HEADS].value;
        const attn_json *node = attn_json_get(root, f->name);
        f->value = f->fallback;
        if (node == NULL && f->fallback == 0)
            return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: %s is missing", label, f->name);
        if (node != NULL && !attn_json_u64(node, &f->value))
            return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: %s is not an integer", label, f->name);
        if (f->value < f->min || f->value > f->max)
            return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: %s must be from %llu to %llu", label,
                             f->name, (unsigned long long)f->min, (unsigned long long)f->max);
    }
    if (fields[HEADS].value % fields[KV_HEADS].value != 0)
        return attn_fail(err, ATTN_E_FORMAT, NULL,
                         "%s: num_attention_heads is not a multiple of num_key_value_heads", label);
    if (fields[HEAD_DIM].value % 2 != 0)
        return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: head_dim must be even", label);
    return ATTN_OK;
}

static attn_status read_number(const attn_json *root, const char *label, const char *name,
                               double min, double max, double *value, attn_error *err)
{
    const attn_json *node = attn_json_get(root, name);
    if (node == NULL)
        return ATTN_OK;
    if (!attn_json_number(node, value) || *value < min || *value > max)
        return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: %s must be a number from %g to %g", label,
                         name, min, max);
    return ATTN_OK;
}

/* Refuses every member that is neither read nor harmless. */
static attn_status check_known(const attn_json *root, const char *label,
                               const integer_field fields[N_INTEGERS], attn_error *err)
{
    static const char *const others[] = {"model_type", "rope_theta", "rms_norm_eps", "qk_norm"};
    for (const attn_json *node = attn_json_first(root); node; node = attn_json_next(node)) {
        const char *key = attn_json_key(node);
        bool known = false, flag;
        for (int i = 0; i < N_INTEGERS; i++)
            known = known || strcmp(key, fields[i].name) == 0;
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
            known = known || strcmp(key, others[i]) == 0;
        for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
            known = known || strcmp(key, ignored[i]) == 0;
        known = known || (strcmp(key, "rope_scaling") == 0 && attn_json_is_null(node));
        known = known || (strcmp(key, "attention_bias") == 0 && attn_json_bool(node, &flag) && !flag);
        if (!known)
            return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: field %.80s is not supported", label,
                             key);
    }
    return ATTN_OK;
}

static attn_status read_fields(const attn_json *root, const char *label, attn_config *config,
                               attn_error *err)
{
    const char *type = attn_json_string(attn_json_get(root, "model_type"));
    if (type == NULL || strcmp(type, "attention") != 0)
        return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: model_type must be \"attention\"", label);
    integer_field fields[N_INTEGERS] = {
        [HIDDEN] = {.name = "hidden_size", .min = 1, .max = 65536},
        [LAYERS] = {.name = "num_hidden_layers", .min = 1, .max = 1024},
        [HEADS] = {.name = "num_attention_heads", .min = 1, .max = 1024},
        [KV_HEADS] = {.name = "num_key_value_heads", .min = 1, .max = 1024},
        [HEAD_DIM] = {.name = "head_dim", .min = 2, .max = 1024},
        /* Positions stay exact in f32. */
        [POSITIONS] = {.name = "max_position_embeddings", .min = 1, .max = 1u << 24},
    };
    *config = (attn_config){.rope_theta = 1e4, .rms_norm_eps = 1e-6, .qk_norm = true};
    memcpy(config->model_type, type, strlen(type));
    attn_status status = read_integers(root, label, fields, err);
    if (status == ATTN_OK)
        status = read_number(root, label, "rope_theta", 1.0, 1e30, &config->rope_theta, err);
    if (status == ATTN_OK)
        status = read_number(root, label, "rms_norm_eps", 0.0, 1.0, &config->rms_norm_eps, err);
    const attn_json *qk_norm = attn_json_get(root, "qk_norm");
    if (status == ATTN_OK && qk_norm != NULL && !attn_json_bool(qk_norm, &config->qk_norm))
        status = attn_fail(err, ATTN_E_FORMAT, NULL, "%s: qk_norm is not a boolean", label);
    if (status == ATTN_OK)
        status = check_known(root, label, fields, err);
    config->hidden_size = (uint32_t)fields[HIDDEN].value;
    config->num_hidden_layers = (uint32_t)fields[LAYERS].value;
    config->num_attention_heads = (uint32_t)fields[HEADS].value;
    config->num_key_value_heads = (uint32_t)fields[KV_HEADS].value;
    config->head_dim = (uint32_t)fields[HEAD_DIM].value;
    config->max_position_embeddings = fields[POSITIONS].value;
    return status;
}

attn_status attn_config_parse(const char *text, size_t len, const char *label, attn_config *config,
                              attn_error *err)
{
    attn_json *root = attn_json_parse(text, len);
    if (root == NULL)
        return attn_fail(err, ATTN_E_FORMAT, NULL,
                         "%s: not a JSON object, or a field stands in it twice", label);
    attn_status status = read_fields(root, label, config, err);
    attn_json_free(root);
    return status;
}

size_t attn_config_qkv_size(const attn_config *c)
{
    return ((size_t)c->num_attention_heads + 2 * (size_t)c->num_key_value_heads) * c->head_dim;
}
