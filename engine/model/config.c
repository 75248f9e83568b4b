#include "engine/model/config.h"

#include "engine/base/base.h"
#include "engine/model/checkpoint_json.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

/* What a missing field means, by family. 0: it must be there (or follows from others). */
typedef struct defaults {
    const char *model_type;
    uint64_t kv_heads, head_dim, positions;
    double rope_theta, rms_norm_eps;
    bool qk_norm, tied;
    int64_t bos, eos; /* -1: none */
    uint64_t experts, experts_per_tok, shared_experts, expert_size;
    bool norm_topk;
} defaults;

static const defaults families[] = {
    [ATTN_FAMILY_ATTENTION] = {.model_type = "attention",
                               .rope_theta = 1e4,
                               .rms_norm_eps = 1e-6,
                               .qk_norm = true,
                               .bos = -1,
                               .eos = -1},
    [ATTN_FAMILY_LLAMA] = {.model_type = "llama",
                           .positions = 2048,
                           .rope_theta = 1e4,
                           .rms_norm_eps = 1e-6,
                           .bos = 1,
                           .eos = 2},
    [ATTN_FAMILY_QWEN3] = {.model_type = "qwen3",
                           .kv_heads = 32,
                           .head_dim = 128,
                           .positions = 32768,
                           .rope_theta = 1e4,
                           .rms_norm_eps = 1e-6,
                           .qk_norm = true,
                           .bos = -1,
                           .eos = -1},
    [ATTN_FAMILY_QWEN3_MOE] = {.model_type = "qwen3_moe",
                               .kv_heads = 4,
                               .positions = 32768,
                               .rope_theta = 1e4,
                               .rms_norm_eps = 1e-6,
                               .qk_norm = true,
                               .bos = -1,
                               .eos = -1,
                               .experts = 128,
                               .experts_per_tok = 8,
                               .expert_size = 768},
    [ATTN_FAMILY_MINIMIND] = {.model_type = "minimind",
                              .kv_heads = 4,
                              .positions = 32768,
                              .rope_theta = 1e6,
                              .rms_norm_eps = 1e-6,
                              .qk_norm = true,
                              .tied = true,
                              .bos = 1,
                              .eos = 2,
                              .experts = 4,
                              .experts_per_tok = 1,
                              .norm_topk = true},
    [ATTN_FAMILY_MINIMIND2] = {.model_type = "minimind",
                               .kv_heads = 2,
                               .positions = 32768,
                               .rope_theta = 1e6,
                               .rms_norm_eps = 1e-5,
                               .tied = true,
                               .bos = 1,
                               .eos = 2,
                               .experts = 4,
                               .experts_per_tok = 2,
                               .shared_experts = 1,
                               .norm_topk = true},
};

/* Fields that describe training or the file and change nothing that is computed here. */
static const char *const ignored[] = {
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "aux_loss_alpha",
    "dropout",
    "dtype",
    "flash_attn",
    "initializer_range",
    "max_window_layers",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "return_dict",
    "router_aux_loss_coef",
    "seq_aux",
    "sliding_window",
    "torch_dtype",
    "transformers_version",
    "unk_token_id",
    "use_cache",
};

/* Fields that every family reads, and those that only decoders do. */
static const char *const known[] = {
    "head_dim",
    "hidden_size",
    "max_position_embeddings",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_theta",
};
static const char *const known_to_decoders[] = {
    "attention_bias",
    "bos_token_id",
    "decoder_sparse_step",
    "eos_token_id",
    "hidden_act",
    "inference_rope_scaling",
    "intermediate_size",
    "layer_types",
    "mlp_bias",
    "mlp_only_layers",
    "moe_intermediate_size",
    "n_routed_experts",
    "n_shared_experts",
    "norm_topk_prob",
    "num_experts",
    "num_experts_per_tok",
    "rope_parameters",
    "rope_scaling",
    "scoring_func",
    "tie_word_embeddings",
    "use_moe",
    "use_sliding_window",
    "vocab_size",
};

/* One reading of a file: the first error sticks, and what is read after it does not count. */
typedef struct reader {
    const attn_json *root;
    const char *label;
    attn_error *err;
    attn_status status;
} reader;

static void refuse(reader *r, const char *name, const char *why)
{
    if (r->status == ATTN_OK)
        r->status = attn_fail(r->err, ATTN_E_FORMAT, NULL, "%s: %s %s", r->label, name, why);
}

/* The member, or NULL when it is missing or null. */
static const attn_json *member(const attn_json *object, const char *name)
{
    const attn_json *node = attn_json_get(object, name);
    return attn_json_is_null(node) ? NULL : node;
}

static uint64_t integer(reader *r, const char *name, uint64_t min, uint64_t max, uint64_t fallback)
{
    const attn_json *node = member(r->root, name);
    uint64_t value = fallback;
    if (node == NULL && fallback == 0 && min > 0)
        refuse(r, name, "is missing");
    else if (node != NULL && !attn_json_u64(node, &value))
        refuse(r, name, "is not an integer");
    else if (value < min || value > max)
        refuse(r, name, "is out of range");
    return value;
}

static double number_in(reader *r, const attn_json *object, const char *name, double min,
                        double max, double fallback)
{
    const attn_json *node = member(object, name);
    double value = fallback;
    if (node == NULL && isnan(fallback))
        refuse(r, name, "is missing");
    else if (node != NULL && !attn_json_number(node, &value))
        refuse(r, name, "is not a number");
    else if (!(value >= min && value <= max))
        refuse(r, name, "is out of range");
    return value;
}

static bool boolean(reader *r, const char *name, bool fallback)
{
    const attn_json *node = member(r->root, name);
    bool value = fallback;
    if (node != NULL && !attn_json_bool(node, &value))
        refuse(r, name, "is not a boolean");
    return value;
}

static void must_be_string(reader *r, const char *name, const char *value)
{
    const attn_json *node = member(r->root, name);
    const char *text = attn_json_string(node);
    if (node != NULL && (text == NULL || strcmp(text, value) != 0))
        refuse(r, name, "has a value that is not supported");
}

static bool listed(const char *key, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(key, names[i]) == 0)
            return true;
    }
    return false;
}

#define LISTED(key, names) listed(key, names, sizeof names / sizeof names[0])

/* Refuses every member that is neither read nor harmless. */
static void check_known(reader *r, attn_family family)
{
    for (const attn_json *node = attn_json_first(r->root); node; node = attn_json_next(node)) {
        const char *key = attn_json_key(node);
        bool decoder = family != ATTN_FAMILY_ATTENTION;
        bool ok = LISTED(key, known) || LISTED(key, ignored) ||
                  (decoder && LISTED(key, known_to_decoders)) ||
                  (!decoder && strcmp(key, "qk_norm") == 0) || attn_json_is_null(node);
        /* An `attention` model may say that it has no biases. */
        bool flag = true;
        ok = ok || (strcmp(key, "attention_bias") == 0 && attn_json_bool(node, &flag) && !flag);
        if (!ok) {
            char name[64];
            attn_printable(key, name, sizeof name);
            refuse(r, name, "is not supported");
        }
    }
}

static attn_family read_family(reader *r)
{
    const char *type = attn_json_string(attn_json_get(r->root, "model_type"));
    for (size_t i = 0; type != NULL && i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(type, families[i].model_type) != 0)
            continue;
        bool second = i == ATTN_FAMILY_MINIMIND && attn_json_get(r->root, "n_routed_experts");
        return second ? ATTN_FAMILY_MINIMIND2 : (attn_family)i;
    }
    refuse(r, "model_type",
           "must be \"attention\", \"llama\", \"qwen3\", \"qwen3_moe\" or \"minimind\"");
    return ATTN_FAMILY_ATTENTION;
}

static void read_attention(reader *r, attn_config *c, const defaults *d)
{
    c->hidden_size = (uint32_t)integer(r, "hidden_size", 1, 65536, 0);
    c->num_hidden_layers = (uint32_t)integer(r, "num_hidden_layers", 1, 1024, 0);
    c->num_attention_heads = (uint32_t)integer(r, "num_attention_heads", 1, 1024, 0);
    if (r->status != ATTN_OK)
        return;
    uint64_t kv_heads = d->kv_heads ? d->kv_heads : c->num_attention_heads;
    c->num_key_value_heads = (uint32_t)integer(r, "num_key_value_heads", 1, 1024, kv_heads);
    uint64_t head_dim = d->head_dim;
    if (head_dim == 0 && c->hidden_size % c->num_attention_heads == 0)
        head_dim = c->hidden_size / c->num_attention_heads;
    c->head_dim = (uint32_t)integer(r, "head_dim", 2, 1024, head_dim);
    /* Positions stay exact in f32. */
    c->max_position_embeddings = integer(r, "max_position_embeddings", 1, 1u << 24, d->positions);
    c->rms_norm_eps = number_in(r, r->root, "rms_norm_eps", 0.0, 1.0, d->rms_norm_eps);
    c->qk_norm = c->family == ATTN_FAMILY_ATTENTION ? boolean(r, "qk_norm", true) : d->qk_norm;
    if (r->status == ATTN_OK && c->num_attention_heads % c->num_key_value_heads != 0)
        refuse(r, "num_attention_heads", "is not a multiple of num_key_value_heads");
    if (r->status == ATTN_OK && c->head_dim % 2 != 0)
        refuse(r, "head_dim", "must be even");
}

/* MiniMind scales by inference_rope_scaling, and says how only when it differs from this. */
static void read_minimind_rope(reader *r, attn_config *c, const attn_json *given)
{
    attn_rope_scaling *s = &c->rope;
    if (!boolean(r, "inference_rope_scaling", false))
        return;
    s->factor = number_in(r, given, "factor", 1.0, 1e6, 16);
    s->original = number_in(r, given, "original_max_position_embeddings", 1.0, 1e9, 2048);
    s->beta_fast = number_in(r, given, "beta_fast", 1e-3, 1e6, 32);
    s->beta_slow = number_in(r, given, "beta_slow", 1e-3, 1e6, 1);
    s->attention_factor = number_in(r, given, "attention_factor", 1e-3, 1e3, 1);
    s->pairs_end_half = true;
    if ((double)c->max_position_embeddings > s->original)
        s->type = ATTN_ROPE_YARN;
}

static void read_rope_type(reader *r, attn_config *c, const attn_json *given)
{
    static const char *const names[] = {[ATTN_ROPE_DEFAULT] = "default",
                                        [ATTN_ROPE_LINEAR] = "linear",
                                        [ATTN_ROPE_LLAMA3] = "llama3",
                                        [ATTN_ROPE_YARN] = "yarn"};
    static const char *const fields[] = {"rope_type",
                                         "type",
                                         "rope_theta",
                                         "factor",
                                         "original_max_position_embeddings",
                                         "low_freq_factor",
                                         "high_freq_factor",
                                         "beta_fast",
                                         "beta_slow",
                                         "attention_factor"};
    const attn_json *node = member(given, "rope_type");
    node = node != NULL ? node : member(given, "type");
    const char *type = node == NULL ? names[ATTN_ROPE_DEFAULT] : attn_json_string(node);
    size_t i = 0;
    while (type != NULL && i < 4 && strcmp(type, names[i]) != 0)
        i++;
    if (type == NULL || i == 4)
        refuse(r, "rope_scaling", "has a type that is not supported");
    for (const attn_json *f = attn_json_first(given); f != NULL; f = attn_json_next(f)) {
        if (!LISTED(attn_json_key(f), fields) && !attn_json_is_null(f))
            refuse(r, "rope_scaling", "has a field that is not supported");
    }
    c->rope.type = (attn_rope_type)(i % 4);
}

static void read_rope(reader *r, attn_config *c, const defaults *d)
{
    attn_rope_scaling *s = &c->rope;
    s->attention_factor = 1;
    const attn_json *given = member(r->root, "rope_scaling");
    given = given != NULL ? given : member(r->root, "rope_parameters");
    if (given != NULL && !attn_json_is_object(given)) {
        refuse(r, "rope_scaling", "is not an object");
        given = NULL;
    }
    double theta = number_in(r, r->root, "rope_theta", 1.0, 1e30, d->rope_theta);
    c->rope_theta = number_in(r, given, "rope_theta", 1.0, 1e30, theta);
    if (c->family == ATTN_FAMILY_MINIMIND || c->family == ATTN_FAMILY_MINIMIND2) {
        read_minimind_rope(r, c, given);
        return;
    }
    read_rope_type(r, c, given);
    if (s->type == ATTN_ROPE_DEFAULT)
        return;
    s->factor = number_in(r, given, "factor", 1.0, 1e6, NAN);
    s->original = number_in(r, given, "original_max_position_embeddings", 1.0, 1e9,
                            (double)c->max_position_embeddings);
    if (s->type == ATTN_ROPE_LLAMA3) {
        s->low_freq_factor = number_in(r, given, "low_freq_factor", 1e-6, 1e6, NAN);
        s->high_freq_factor = number_in(r, given, "high_freq_factor", 1e-6, 1e6, NAN);
        if (r->status == ATTN_OK && s->high_freq_factor <= s->low_freq_factor)
            refuse(r, "high_freq_factor", "must be above low_freq_factor");
    } else if (s->type == ATTN_ROPE_YARN) {
        s->beta_fast = number_in(r, given, "beta_fast", 1e-3, 1e6, 32);
        s->beta_slow = number_in(r, given, "beta_slow", 1e-3, 1e6, 1);
        /* 0: 0.1 ln(factor) + 1 (Peng et al. 2023, eq. 22). */
        s->attention_factor = number_in(r, given, "attention_factor", 0.0, 1e3, 0.0);
    }
}

static void add_eos(reader *r, attn_config *c, const attn_json *node)
{
    uint64_t id;
    if (!attn_json_u64(node, &id) || id > UINT32_MAX) {
        refuse(r, "eos_token_id", "is not a token id or a list of them");
        return;
    }
    for (size_t i = 0; i < c->n_eos; i++) {
        if (c->eos_token_ids[i] == id)
            return;
    }
    if (c->n_eos == ATTN_EOS_MAX)
        refuse(r, "eos_token_id", "names too many tokens");
    else
        c->eos_token_ids[c->n_eos++] = (uint32_t)id;
}

static void read_eos(reader *r, attn_config *c)
{
    const attn_json *node = member(r->root, "eos_token_id");
    if (attn_json_is_array(node)) {
        for (const attn_json *id = attn_json_first(node); id != NULL; id = attn_json_next(id))
            add_eos(r, c, id);
    } else if (node != NULL) {
        add_eos(r, c, node);
    }
}

static void read_special_tokens(reader *r, attn_config *c, const defaults *d)
{
    bool bos_given = attn_json_get(r->root, "bos_token_id") != NULL;
    const attn_json *bos = member(r->root, "bos_token_id");
    uint64_t id = d->bos >= 0 ? (uint64_t)d->bos : 0;
    if (bos != NULL && (!attn_json_u64(bos, &id) || id > UINT32_MAX))
        refuse(r, "bos_token_id", "is not a token id");
    c->has_bos = bos_given ? bos != NULL : d->bos >= 0;
    c->bos_token_id = (uint32_t)id;
    if (attn_json_get(r->root, "eos_token_id") == NULL && d->eos >= 0)
        c->eos_token_ids[c->n_eos++] = (uint32_t)d->eos;
    else
        read_eos(r, c);
}

static void read_experts(reader *r, attn_config *c, const defaults *d)
{
    bool second = c->family == ATTN_FAMILY_MINIMIND2;
    if (c->family != ATTN_FAMILY_QWEN3_MOE && !boolean(r, "use_moe", false))
        return;
    must_be_string(r, "scoring_func", "softmax");
    c->num_experts =
        (uint32_t)integer(r, second ? "n_routed_experts" : "num_experts", 1, 4096, d->experts);
    c->num_experts_per_tok =
        (uint32_t)integer(r, "num_experts_per_tok", 1, c->num_experts, d->experts_per_tok);
    if (second)
        c->n_shared_experts = (uint32_t)integer(r, "n_shared_experts", 0, 64, d->shared_experts);
    else
        c->intermediate_size =
            (uint32_t)integer(r, "moe_intermediate_size", 1, 1u << 20,
                              d->expert_size ? d->expert_size : c->intermediate_size);
    c->norm_topk_prob =
        boolean(r, "norm_topk_prob", d->norm_topk) && !(second && c->num_experts_per_tok == 1);
}

static uint64_t default_intermediate(const attn_config *c)
{
    if (c->family == ATTN_FAMILY_MINIMIND)
        return (uint64_t)ceil(c->hidden_size * PI / 64) * 64;
    if (c->family == ATTN_FAMILY_MINIMIND2)
        return ((uint64_t)(c->hidden_size * 8.0 / 3.0) + 63) / 64 * 64;
    return 0;
}

static void check_layer_types(reader *r)
{
    const attn_json *types = member(r->root, "layer_types");
    for (const attn_json *node = attn_json_first(types); node; node = attn_json_next(node)) {
        const char *type = attn_json_string(node);
        if (type == NULL || strcmp(type, "full_attention") != 0)
            refuse(r, "layer_types", "has layers that are not full_attention");
    }
}

static void read_decoder(reader *r, attn_config *c, const defaults *d)
{
    bool minimind = c->family == ATTN_FAMILY_MINIMIND || c->family == ATTN_FAMILY_MINIMIND2;
    uint64_t one;
    c->vocab_size = (uint32_t)integer(r, "vocab_size", 1, 1u << 24, 0);
    c->intermediate_size =
        (uint32_t)integer(r, "intermediate_size", 1, 1u << 20, default_intermediate(c));
    c->attention_bias = boolean(r, "attention_bias", false) && !minimind;
    c->tie_word_embeddings =
        boolean(r, "tie_word_embeddings", d->tied) || c->family == ATTN_FAMILY_MINIMIND2;
    must_be_string(r, "hidden_act", "silu");
    if (boolean(r, "mlp_bias", false))
        refuse(r, "mlp_bias", "is not supported");
    if (boolean(r, "use_sliding_window", false))
        refuse(r, "use_sliding_window", "is not supported");
    const attn_json *step = member(r->root, "decoder_sparse_step");
    if (step != NULL && (!attn_json_u64(step, &one) || one != 1))
        refuse(r, "decoder_sparse_step", "other than 1 is not supported");
    if (attn_json_first(member(r->root, "mlp_only_layers")) != NULL)
        refuse(r, "mlp_only_layers", "is not supported");
    check_layer_types(r);
    read_experts(r, c, d);
    read_special_tokens(r, c, d);
}

attn_status attn_config_parse(const char *text, size_t len, const char *label, attn_config *config,
                              attn_error *err)
{
    attn_json *root;
    attn_status status = attn_json_parse(text, len, label, &root, err);
    if (status != ATTN_OK)
        return status;
    reader r = {.root = root, .label = label, .err = err};
    *config = (attn_config){.family = read_family(&r)};
    const defaults *d = &families[config->family];
    memcpy(config->model_type, d->model_type, strlen(d->model_type));
    check_known(&r, config->family);
    read_attention(&r, config, d);
    read_rope(&r, config, d);
    if (attn_config_is_decoder(config))
        read_decoder(&r, config, d);
    attn_json_free(root);
    return r.status;
}

attn_status attn_config_parse_generation(const char *text, size_t len, const char *label,
                                         attn_config *config, attn_error *err)
{
    attn_json *root;
    attn_status status = attn_json_parse(text, len, label, &root, err);
    if (status != ATTN_OK)
        return status;
    reader r = {.root = root, .label = label, .err = err};
    if (member(root, "eos_token_id") != NULL) {
        config->n_eos = 0;
        read_eos(&r, config);
    }
    attn_json_free(root);
    return r.status;
}

size_t attn_config_qkv_size(const attn_config *c)
{
    return ((size_t)c->num_attention_heads + 2 * (size_t)c->num_key_value_heads) * c->head_dim;
}

size_t attn_config_input_bytes(const attn_config *c)
{
    return attn_config_is_decoder(c) ? sizeof(uint32_t) : c->hidden_size * sizeof(float);
}
