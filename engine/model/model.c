#include "engine/model/model.h"

#include "engine/base/base.h"
#include "engine/base/file.h"
#include "engine/cache/block.h"
#include "engine/compute/rope.h"
#include "engine/model/builtin.h"
#include "engine/model/tokenizer.h"
#include "engine/model/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_MAX ((size_t)1 << 20)
#define PATH_SIZE 4096
#define NAME_SIZE 128
/* Weights from this size on get their own huge pages. */
#define MAPPED_BYTES ((size_t)1 << 20)

struct attn_block {
    struct attn_block *next;
    void *data;
    size_t bytes;
};

/* One model being loaded; the first error sticks, and what is loaded after it does not count. */
typedef struct loader {
    attn_model *model;
    attn_weights *weights;
    attn_dtype dtype;
    float *row; /* one row of the widest matrix */
    attn_error *err;
    attn_status status;
} loader;

static void *new_block(loader *l, size_t bytes)
{
    if (l->status != ATTN_OK)
        return NULL;
    struct attn_block *block = attn_alloc(1, sizeof *block);
    void *data = NULL;
    if (block != NULL)
        data = bytes < MAPPED_BYTES ? attn_alloc(bytes, 1) : attn_map(bytes, true);
    if (data == NULL) {
        attn_free(block);
        l->status =
            attn_fail(l->err, ATTN_E_NO_MEMORY, NULL, "model %s: out of memory", l->model->name);
        return NULL;
    }
    *block = (struct attn_block){l->model->blocks, data, bytes};
    l->model->blocks = block;
    l->model->weights_bytes += bytes;
    return data;
}

static void load_vector(loader *l, const char *name, size_t n, float *values)
{
    attn_weight weight;
    if (l->status == ATTN_OK)
        l->status = attn_weights_find(l->weights, name, n, 0, &weight, l->err);
    if (l->status == ATTN_OK)
        l->status = attn_weights_read(l->weights, &weight, 0, values, l->err);
    l->model->n_parameters += n;
}

static const float *load_norm(loader *l, const char *name, size_t n)
{
    float *values = new_block(l, n * sizeof *values);
    if (values != NULL)
        load_vector(l, name, n, values);
    return values;
}

/* Packs a matrix [rows, n_in] into outputs first .. of panels. */
static void pack(loader *l, const attn_weight *weight, const attn_linear *linear, void *panels,
                 size_t first)
{
    for (size_t r = 0; r < weight->rows && l->status == ATTN_OK; r++) {
        l->status = attn_weights_read(l->weights, weight, r, l->row, l->err);
        if (l->status == ATTN_OK &&
            !attn_linear_pack(panels, linear->dtype, linear->n_in, first + r, l->row))
            l->status = attn_fail(l->err, ATTN_E_FORMAT, NULL,
                                  "model %s: tensor %s has a value too large for %s weights",
                                  l->model->name, weight->name, attn_dtype_name(linear->dtype));
    }
    l->model->n_parameters += (uint64_t)weight->rows * linear->n_in;
}

/* Up to three matrices, one under another, as one layer. Names are complete but for ".weight" and
 * ".bias"; biases are read when `has_bias`. */
static attn_linear load_linear(loader *l, attn_dtype dtype, size_t n_in, bool has_bias, size_t n,
                               const char *const *names, const size_t *rows)
{
    attn_linear linear = {.n_in = n_in, .dtype = dtype};
    char matrix[3][NAME_SIZE];
    attn_weight weights[3];
    /* Found before memory is taken for them: a config.json can ask for any amount. */
    for (size_t i = 0; i < n; i++) {
        snprintf(matrix[i], NAME_SIZE, "%s.weight", names[i]);
        if (l->status == ATTN_OK)
            l->status =
                attn_weights_find(l->weights, matrix[i], rows[i], n_in, &weights[i], l->err);
        linear.n_out += rows[i];
    }
    void *panels = new_block(l, attn_linear_panels(&linear) * attn_panel_bytes(dtype, n_in));
    float *bias = has_bias ? new_block(l, linear.n_out * sizeof *bias) : NULL;
    linear.panels = panels;
    linear.bias = bias;
    size_t first = 0;
    for (size_t i = 0; i < n && l->status == ATTN_OK; i++) {
        char name[NAME_SIZE];
        pack(l, &weights[i], &linear, panels, first);
        snprintf(name, sizeof name, "%s.bias", names[i]);
        if (has_bias)
            load_vector(l, name, rows[i], bias + first);
        first += rows[i];
    }
    return linear;
}

/* Names under a prefix that ends in a dot. */
typedef struct names {
    char text[3][NAME_SIZE];
} names;

static names join(const char *prefix, const char *a, const char *b, const char *c)
{
    names n;
    const char *const parts[] = {a, b, c};
    for (size_t i = 0; i < 3; i++)
        snprintf(n.text[i], sizeof n.text[i], "%s%s", prefix, parts[i]);
    return n;
}

static attn_mlp load_mlp(loader *l, const char *prefix)
{
    const attn_config *c = &l->model->config;
    const size_t wide = c->intermediate_size, both[] = {wide, wide}, hidden[] = {c->hidden_size};
    names in = join(prefix, "gate_proj", "up_proj", ""), out = join(prefix, "down_proj", "", "");
    attn_mlp mlp;
    const char *const in_list[] = {in.text[0], in.text[1]}, *const out_list[] = {out.text[0]};
    mlp.gate_up = load_linear(l, l->dtype, c->hidden_size, false, 2, in_list, both);
    mlp.down = load_linear(l, l->dtype, wide, false, 1, out_list, hidden);
    return mlp;
}

static void load_experts(loader *l, attn_layer *layer, const char *block)
{
    const attn_config *c = &l->model->config;
    char prefix[NAME_SIZE];
    const char *const router[] = {prefix};
    const size_t n_experts = c->num_experts, all = n_experts + c->n_shared_experts;
    snprintf(prefix, sizeof prefix, "%smlp.gate", block);
    /* f32 always: it is small, and a rounded router would choose other experts. */
    layer->router = load_linear(l, ATTN_F32, c->hidden_size, false, 1, router, &n_experts);
    layer->experts = new_block(l, all * sizeof *layer->experts);
    for (size_t e = 0; e < all && l->status == ATTN_OK; e++) {
        if (e < n_experts)
            snprintf(prefix, sizeof prefix, "%smlp.experts.%zu.", block, e);
        else
            snprintf(prefix, sizeof prefix, "%smlp.shared_experts.%zu.", block, e - n_experts);
        layer->experts[e] = load_mlp(l, prefix);
    }
}

static void load_attention(loader *l, attn_layer *layer, const char *prefix)
{
    const attn_config *c = &l->model->config;
    const size_t q_size = (size_t)c->num_attention_heads * c->head_dim;
    const size_t kv_size = (size_t)c->num_key_value_heads * c->head_dim;
    const size_t qkv_rows[] = {q_size, kv_size, kv_size}, o_rows[] = {c->hidden_size};
    names qkv = join(prefix, "q_proj", "k_proj", "v_proj"), o = join(prefix, "o_proj", "", "");
    const char *const qkv_list[] = {qkv.text[0], qkv.text[1], qkv.text[2]};
    const char *const o_list[] = {o.text[0]};
    layer->qkv = load_linear(l, l->dtype, c->hidden_size, c->attention_bias, 3, qkv_list, qkv_rows);
    layer->o = load_linear(l, l->dtype, q_size, c->attention_bias, 1, o_list, o_rows);
    if (c->qk_norm) {
        names norms = join(prefix, "q_norm.weight", "k_norm.weight", "");
        layer->q_norm = load_norm(l, norms.text[0], c->head_dim);
        layer->k_norm = load_norm(l, norms.text[1], c->head_dim);
    }
    /* Older checkpoints keep RoPE's frequencies beside the weights; ours come from the config. */
    names buffer = join(prefix, "rotary_emb.inv_freq", "", "");
    attn_weights_ignore(l->weights, buffer.text[0]);
}

static void load_layer(loader *l, size_t index)
{
    const attn_config *c = &l->model->config;
    attn_layer *layer = &l->model->layers[index];
    char block[NAME_SIZE / 2], prefix[NAME_SIZE];
    snprintf(block, sizeof block, "model.layers.%zu.", index);
    snprintf(prefix, sizeof prefix, "%sself_attn.", block);
    load_attention(l, layer, prefix);
    if (!attn_config_is_decoder(c))
        return;
    names norms = join(block, "input_layernorm.weight", "post_attention_layernorm.weight", "mlp.");
    layer->input_norm = load_norm(l, norms.text[0], c->hidden_size);
    layer->post_norm = load_norm(l, norms.text[1], c->hidden_size);
    if (c->num_experts > 0)
        load_experts(l, layer, block);
    else
        layer->mlp = load_mlp(l, norms.text[2]);
}

/* Refuses a tied model's own lm_head unless it is the embedding again. */
static void check_tied_head(loader *l)
{
    static const char head[] = "lm_head.weight", embedding[] = "model.embed_tokens.weight";
    const attn_config *c = &l->model->config;
    attn_weight a, b;
    if (l->status != ATTN_OK || !attn_weights_has(l->weights, head))
        return;
    l->status = attn_weights_find(l->weights, head, c->vocab_size, c->hidden_size, &a, l->err);
    if (l->status == ATTN_OK)
        l->status =
            attn_weights_find(l->weights, embedding, c->vocab_size, c->hidden_size, &b, l->err);
    if (l->status == ATTN_OK && (strcmp(a.tensor->dtype, b.tensor->dtype) != 0 ||
                                 memcmp(a.tensor->data, b.tensor->data, a.tensor->n_bytes) != 0))
        l->status = attn_fail(l->err, ATTN_E_FORMAT, NULL,
                              "model %s: tie_word_embeddings is set, but %s is not %s",
                              l->model->name, head, embedding);
}

static void load_ends(loader *l)
{
    attn_model *model = l->model;
    const attn_config *c = &model->config;
    const size_t vocab = c->vocab_size;
    static const char *const embedding[] = {"model.embed_tokens"}, *const head[] = {"lm_head"};
    model->embedding = load_linear(l, l->dtype, c->hidden_size, false, 1, embedding, &vocab);
    model->final_norm = load_norm(l, "model.norm.weight", c->hidden_size);
    if (c->tie_word_embeddings) {
        check_tied_head(l);
        model->head = model->embedding;
    } else {
        model->head = load_linear(l, l->dtype, c->hidden_size, false, 1, head, &vocab);
    }
}

static size_t widest_row(const attn_config *c)
{
    size_t q_size = (size_t)c->num_attention_heads * c->head_dim, widest = c->hidden_size;
    widest = q_size > widest ? q_size : widest;
    return c->intermediate_size > widest ? c->intermediate_size : widest;
}

static void load_all(loader *l)
{
    attn_model *model = l->model;
    const attn_config *c = &model->config;
    l->row = attn_alloc(widest_row(c), sizeof *l->row);
    model->layers = attn_alloc(c->num_hidden_layers, sizeof *model->layers);
    model->inv_freq = attn_alloc(c->head_dim, sizeof *model->inv_freq);
    if (!l->row || !model->layers || !model->inv_freq)
        l->status =
            attn_fail(l->err, ATTN_E_NO_MEMORY, NULL, "model %s: out of memory", model->name);
    for (size_t i = 0; i < c->num_hidden_layers && l->status == ATTN_OK; i++)
        load_layer(l, i);
    if (attn_config_is_decoder(c))
        load_ends(l);
    if (l->status == ATTN_OK)
        l->status = attn_weights_check_used(l->weights, l->err);
    if (l->status == ATTN_OK) {
        model->rope_factor = attn_rope_frequencies(c, model->inv_freq);
        model->score_scale = (float)(1.0 / sqrt((double)c->head_dim));
    }
    attn_free(l->row);
}

/* Loads the weights of a model whose config is read. */
static attn_status load_weights(attn_model *model, attn_weights *weights,
                                const attn_load_options *options, attn_error *err)
{
    loader l = {.model = model, .weights = weights, .err = err};
    l.dtype = options->has_dtype ? options->dtype : attn_weights_dtype(weights);
    model->weights_dtype = l.dtype;
    model->random = attn_weights_random(weights);
    load_all(&l);
    return l.status;
}

static attn_model *new_model(const char *name, attn_error *err)
{
    attn_model *model = attn_alloc(1, sizeof *model);
    if (model == NULL)
        attn_fail(err, ATTN_E_NO_MEMORY, NULL, "model %s: out of memory", name);
    else
        memcpy(model->name, name, strlen(name) + 1);
    return model;
}

/* Reads config.json and, when there, generation_config.json. */
static attn_status read_configs(attn_model *model, const char *dir, attn_error *err)
{
    char path[PATH_SIZE], *text;
    size_t len;
    if (snprintf(path, sizeof path, "%s/generation_config.json", dir) >= PATH_SIZE)
        return attn_fail(err, ATTN_E_INVALID, "models", "a model folder's name is too long");
    bool has_generation = access(path, F_OK) == 0;
    snprintf(path, sizeof path, "%s/config.json", dir);
    attn_status status = attn_read_file(path, CONFIG_MAX, &text, &len, err);
    if (status == ATTN_OK)
        status = attn_config_parse(text, len, path, &model->config, err);
    attn_free(text);
    if (status != ATTN_OK || !has_generation || !attn_config_is_decoder(&model->config))
        return status;
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    status = attn_read_file(path, CONFIG_MAX, &text, &len, err);
    if (status == ATTN_OK)
        status = attn_config_parse_generation(text, len, path, &model->config, err);
    attn_free(text);
    return status;
}

/* Gives the model its tokenizer, just read from `label`; NULL when that failed with *err. */
static attn_status set_tokenizer(attn_model *model, attn_tokenizer *tokenizer, const char *label,
                                 attn_error *err)
{
    model->tokenizer = tokenizer;
    if (tokenizer == NULL)
        return err->status;
    if (attn_tokenizer_size(tokenizer) > model->config.vocab_size)
        return attn_fail(err, ATTN_E_FORMAT, NULL,
                         "%s: it has ids up to %zu, past config.json's vocab_size", label,
                         attn_tokenizer_size(tokenizer) - 1);
    return ATTN_OK;
}

/* A decoder's tokenizer.json, when there. */
static attn_status read_tokenizer(attn_model *model, const char *dir, attn_error *err)
{
    char path[PATH_SIZE];
    if (snprintf(path, sizeof path, "%s/tokenizer.json", dir) >= PATH_SIZE)
        return attn_fail(err, ATTN_E_INVALID, "models", "a model folder's name is too long");
    if (!attn_config_is_decoder(&model->config) || access(path, F_OK) != 0)
        return ATTN_OK;
    attn_error local;
    err = err == NULL ? &local : err;
    return set_tokenizer(model, attn_tokenizer_open(path, err), path, err);
}

attn_model *attn_model_load(const char *name, const char *dir, const attn_load_options *options,
                            attn_error *err)
{
    attn_model *model = new_model(name, err);
    if (model == NULL)
        return NULL;
    attn_weights *weights = NULL;
    attn_status status = read_configs(model, dir, err);
    if (status == ATTN_OK)
        status = read_tokenizer(model, dir, err);
    if (status == ATTN_OK) {
        weights = attn_weights_open(dir, options->random_seed, err);
        status = weights == NULL ? ATTN_E_FORMAT : load_weights(model, weights, options, err);
    }
    attn_weights_close(weights);
    if (status != ATTN_OK) {
        attn_model_free(model);
        return NULL;
    }
    return model;
}

const char *attn_builtin_name(size_t index)
{
    return attn_builtin_models[index].name;
}

attn_model *attn_model_load_builtin(size_t index, const attn_load_options *options, attn_error *err)
{
    const attn_builtin *b = &attn_builtin_models[index];
    attn_error local;
    err = err == NULL ? &local : err;
    attn_model *model = new_model(b->name, err);
    if (model == NULL)
        return NULL;
    model->built_in = true;
    attn_weights *weights = NULL;
    attn_status status = attn_config_parse(b->config, (size_t)(b->config_end - b->config), b->name,
                                           &model->config, err);
    if (status == ATTN_OK && b->tokenizer != NULL) {
        size_t len = (size_t)(b->tokenizer_end - b->tokenizer);
        status = set_tokenizer(model, attn_tokenizer_parse(b->tokenizer, len, b->name, err),
                               b->name, err);
    }
    if (status == ATTN_OK) {
        weights =
            attn_weights_parse(b->tensors, (size_t)(b->tensors_end - b->tensors), b->name, err);
        status = weights == NULL ? ATTN_E_FORMAT : load_weights(model, weights, options, err);
    }
    attn_weights_close(weights);
    if (status != ATTN_OK) {
        attn_model_free(model);
        return NULL;
    }
    return model;
}

void attn_model_free(attn_model *model)
{
    if (model == NULL)
        return;
    while (model->blocks != NULL) {
        struct attn_block *block = model->blocks;
        model->blocks = block->next;
        if (block->bytes < MAPPED_BYTES)
            attn_free(block->data);
        else
            attn_unmap(block->data, block->bytes);
        attn_free(block);
    }
    attn_tokenizer_close(model->tokenizer);
    attn_free(model->layers);
    attn_free(model->inv_freq);
    attn_free(model);
}

size_t attn_model_kv_bytes(const attn_model *model, attn_dtype kv_dtype)
{
    const attn_config *c = &model->config;
    return (size_t)2 * c->num_hidden_layers * c->num_key_value_heads *
           attn_head_row_bytes(kv_dtype, c->head_dim);
}
