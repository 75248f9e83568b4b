#include "engine/model/model.h"

#include "engine/base/base.h"
#include "engine/compute/rope.h"
#include "engine/model/builtin.h"
#include "engine/model/philox.h"
#include "engine/model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG_MAX (1u << 20)

/* Where weights come from: a file, or a seed. */
typedef struct weight_source {
    const attn_safetensors *file; /* NULL: random */
    uint64_t seed;
    size_t n_used; /* tensors of the file that were asked for */
} weight_source;

/* Reads tensor `name` of [rows, cols] (cols 0: of [rows]) into `values`, checked to be finite. */
static attn_status read_tensor(weight_source *source, const char *name, size_t rows, size_t cols,
                               float *values, attn_error *err)
{
    size_t n = cols == 0 ? rows : rows * cols;
    if (source->file == NULL) {
        if (cols == 0) {
            for (size_t i = 0; i < n; i++)
                values[i] = 1.0f;
        } else {
            attn_philox_uniform(source->seed, name, (float)(1.0 / sqrt((double)cols)), n, values);
        }
        return ATTN_OK;
    }
    const char *label = attn_safetensors_label(source->file);
    const attn_tensor *tensor = attn_safetensors_find(source->file, name);
    if (tensor == NULL)
        return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: tensor %s is missing", label, name);
    if (strcmp(tensor->dtype, "F32") != 0)
        return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: tensor %s: dtype %s is not supported",
                         label, name, tensor->dtype);
    if (tensor->n_dims != (cols == 0 ? 1u : 2u) || tensor->shape[0] != rows ||
        (cols != 0 && tensor->shape[1] != cols))
        return cols == 0
                   ? attn_fail(err, ATTN_E_FORMAT, NULL,
                               "%s: tensor %s: config.json asks for shape [%zu]", label, name, rows)
                   : attn_fail(err, ATTN_E_FORMAT, NULL,
                               "%s: tensor %s: config.json asks for shape [%zu, %zu]", label, name,
                               rows, cols);
    memcpy(values, tensor->data, n * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(values[i]))
            return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: tensor %s has a value that is not finite",
                             label, name);
    }
    source->n_used++;
    return ATTN_OK;
}

/* Copies W [rows, n_in] into outputs [first, first + rows) of a packed layer. */
static void pack_rows(const float *w, size_t rows, size_t n_in, size_t first, float *panels)
{
    for (size_t r = 0; r < rows; r++) {
        size_t out = first + r;
        float *column = panels + out / ATTN_PANEL * n_in * ATTN_PANEL + out % ATTN_PANEL;
        for (size_t i = 0; i < n_in; i++)
            column[i * ATTN_PANEL] = w[r * n_in + i];
    }
}

/* Size of a packed layer in floats. */
static size_t panel_floats(size_t n_in, size_t n_out)
{
    return (n_out + ATTN_PANEL - 1) / ATTN_PANEL * ATTN_PANEL * n_in;
}

static size_t padded_head(const attn_config *c)
{
    return ((size_t)c->head_dim + ATTN_LANES - 1) / ATTN_LANES * ATTN_LANES;
}

static attn_status load_layer(attn_model *model, size_t l, weight_source *source, float **cursor,
                              float *staging, attn_error *err)
{
    const attn_config *c = &model->config;
    const size_t q_size = (size_t)c->num_attention_heads * c->head_dim;
    const size_t kv_size = (size_t)c->num_key_value_heads * c->head_dim;
    attn_layer *layer = &model->layers[l];
    float *qkv = *cursor;
    float *o = qkv + panel_floats(c->hidden_size, q_size + 2 * kv_size);
    float *norms = o + panel_floats(q_size, c->hidden_size);
    *cursor = norms + 2 * padded_head(c);
    layer->qkv = (attn_linear){c->hidden_size, q_size + 2 * kv_size, qkv};
    layer->o = (attn_linear){q_size, c->hidden_size, o};
    const struct {
        const char *name;
        size_t rows, cols;
        float *panels;
        size_t first; /* output of the packed layer */
    } parts[] = {
        {"q_proj", q_size, c->hidden_size, qkv, 0},
        {"k_proj", kv_size, c->hidden_size, qkv, q_size},
        {"v_proj", kv_size, c->hidden_size, qkv, q_size + kv_size},
        {"o_proj", c->hidden_size, q_size, o, 0},
    };
    char name[96];
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(name, sizeof name, "model.layers.%zu.self_attn.%s.weight", l, parts[i].name);
        attn_status status =
            read_tensor(source, name, parts[i].rows, parts[i].cols, staging, err);
        if (status != ATTN_OK)
            return status;
        pack_rows(staging, parts[i].rows, parts[i].cols, parts[i].first, parts[i].panels);
        model->n_parameters += (uint64_t)parts[i].rows * parts[i].cols;
    }
    if (!c->qk_norm)
        return ATTN_OK;
    layer->q_norm = norms;
    layer->k_norm = norms + padded_head(c);
    for (size_t i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "model.layers.%zu.self_attn.%c_norm.weight", l, "qk"[i]);
        attn_status status =
            read_tensor(source, name, c->head_dim, 0, norms + i * padded_head(c), err);
        if (status != ATTN_OK)
            return status;
        model->n_parameters += c->head_dim;
    }
    return ATTN_OK;
}

/* A tensor that no layer asked for would change nothing: the file is not what config.json says. */
static attn_status refuse_extra(const attn_model *model, const weight_source *source,
                                attn_error *err)
{
    if (source->file == NULL || source->n_used == attn_safetensors_count(source->file))
        return ATTN_OK;
    for (size_t i = 0; i < attn_safetensors_count(source->file); i++) {
        const char *name = attn_safetensors_at(source->file, i)->name, *layer_end;
        static const char prefix[] = "model.layers.";
        unsigned layer = 0;
        bool known = strncmp(name, prefix, sizeof prefix - 1) == 0;
        layer_end = name + sizeof prefix - 1;
        for (; known && *layer_end >= '0' && *layer_end <= '9' && layer < 100000; layer_end++)
            layer = layer * 10 + (unsigned)(*layer_end - '0');
        static const char *const suffixes[] = {
            ".self_attn.q_proj.weight", ".self_attn.k_proj.weight", ".self_attn.v_proj.weight",
            ".self_attn.o_proj.weight", ".self_attn.q_norm.weight", ".self_attn.k_norm.weight"};
        size_t n_suffixes = model->config.qk_norm ? 6 : 4, s = 0;
        while (known && s < n_suffixes && strcmp(layer_end, suffixes[s]) != 0)
            s++;
        if (!known || s == n_suffixes || layer >= model->config.num_hidden_layers)
            return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: tensor %.80s is not supported",
                             attn_safetensors_label(source->file), name);
    }
    return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: more tensors than config.json needs",
                     attn_safetensors_label(source->file));
}

static attn_status load_weights(attn_model *model, weight_source *source, attn_error *err)
{
    const attn_config *c = &model->config;
    const size_t q_size = (size_t)c->num_attention_heads * c->head_dim;
    const size_t qkv_size = attn_config_qkv_size(c);
    size_t per_layer = panel_floats(c->hidden_size, qkv_size) +
                       panel_floats(q_size, c->hidden_size) + 2 * padded_head(c);
    size_t n_floats;
    if (!attn_mul(per_layer, c->num_hidden_layers, &n_floats) ||
        !attn_mul(n_floats, sizeof(float), &model->weights_bytes))
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "model %s: too large", model->name);
    model->weights = attn_map(model->weights_bytes, true);
    model->layers = attn_alloc(c->num_hidden_layers, sizeof *model->layers);
    model->inv_freq = attn_alloc(padded_head(c), sizeof *model->inv_freq);
    float *staging = attn_alloc((qkv_size > q_size ? qkv_size : q_size), c->hidden_size *
                                                                             sizeof *staging);
    attn_status status = ATTN_OK;
    if (!model->weights || !model->layers || !model->inv_freq || !staging)
        status = attn_fail(err, ATTN_E_NO_MEMORY, NULL, "model %s: out of memory", model->name);
    float *cursor = model->weights;
    for (size_t l = 0; status == ATTN_OK && l < c->num_hidden_layers; l++)
        status = load_layer(model, l, source, &cursor, staging, err);
    attn_free(staging);
    if (status == ATTN_OK)
        status = refuse_extra(model, source, err);
    if (status == ATTN_OK) {
        attn_rope_frequencies(c->head_dim, c->rope_theta, model->inv_freq);
        model->score_scale = (float)(1.0 / sqrt((double)c->head_dim));
    }
    return status;
}

/* Builds a model from its config text and its tensors (NULL: random from `seed`). */
static attn_model *build(const char *name, const char *config, size_t config_len,
                         const char *config_label, const attn_safetensors *file, uint64_t seed,
                         attn_error *err)
{
    attn_model *model = attn_alloc(1, sizeof *model);
    if (model == NULL) {
        attn_fail(err, ATTN_E_NO_MEMORY, NULL, "model %s: out of memory", name);
        return NULL;
    }
    memcpy(model->name, name, strlen(name) + 1);
    model->random = file == NULL;
    weight_source source = {.file = file, .seed = seed};
    attn_status status = attn_config_parse(config, config_len, config_label, &model->config, err);
    if (status == ATTN_OK)
        status = load_weights(model, &source, err);
    if (status != ATTN_OK) {
        attn_model_free(model);
        return NULL;
    }
    return model;
}

/* Reads a small file whole. Owner of *text: the caller. */
static attn_status read_file(const char *path, size_t max, char **text, size_t *len,
                             attn_error *err)
{
    attn_status status = ATTN_OK;
    FILE *file = fopen(path, "rbe");
    *text = NULL;
    *len = 0;
    if (file == NULL)
        return attn_fail(err, ATTN_E_IO, NULL, "%s: %s", path, strerror(errno));
    char *buffer = attn_alloc(max + 1, 1);
    if (buffer == NULL) {
        status = attn_fail(err, ATTN_E_NO_MEMORY, NULL, "%s: out of memory", path);
    } else {
        *len = fread(buffer, 1, max + 1, file);
        if (ferror(file))
            status = attn_fail(err, ATTN_E_IO, NULL, "%s: cannot be read", path);
        else if (*len > max)
            status = attn_fail(err, ATTN_E_FORMAT, NULL, "%s: longer than %zu bytes", path, max);
    }
    fclose(file);
    if (status != ATTN_OK) {
        attn_free(buffer);
        return status;
    }
    *text = buffer;
    return ATTN_OK;
}

attn_model *attn_model_load(const char *name, const char *dir, const uint64_t *random_seed,
                            attn_error *err)
{
    char config_path[4096], weights_path[4096], *config;
    size_t config_len;
    int n = snprintf(config_path, sizeof config_path, "%s/config.json", dir);
    int k = snprintf(weights_path, sizeof weights_path, "%s/model.safetensors", dir);
    if (n < 0 || (size_t)n >= sizeof config_path || k < 0 || (size_t)k >= sizeof weights_path) {
        attn_fail(err, ATTN_E_INVALID, "models", "model %s: the folder's name is too long", name);
        return NULL;
    }
    if (read_file(config_path, CONFIG_MAX, &config, &config_len, err) != ATTN_OK)
        return NULL;
    attn_model *model = NULL;
    attn_safetensors *file = NULL;
    bool random = random_seed != NULL && access(weights_path, F_OK) != 0;
    if (!random)
        file = attn_safetensors_open(weights_path, err);
    if (random || file != NULL)
        model = build(name, config, config_len, config_path, file, random ? *random_seed : 0, err);
    attn_safetensors_close(file);
    attn_free(config);
    return model;
}

size_t attn_builtin_count(void)
{
    return sizeof attn_builtin_models / sizeof attn_builtin_models[0];
}

const char *attn_builtin_name(size_t index)
{
    return attn_builtin_models[index].name;
}

attn_model *attn_model_load_builtin(size_t index, attn_error *err)
{
    const attn_builtin *b = &attn_builtin_models[index];
    attn_safetensors *file =
        attn_safetensors_parse(b->tensors, (size_t)(b->tensors_end - b->tensors), b->name, err);
    if (file == NULL)
        return NULL;
    attn_model *model = build(b->name, b->config, (size_t)(b->config_end - b->config), b->name,
                              file, 0, err);
    attn_safetensors_close(file);
    if (model != NULL)
        model->built_in = true;
    return model;
}

void attn_model_free(attn_model *model)
{
    if (model == NULL)
        return;
    attn_unmap(model->weights, model->weights_bytes);
    attn_free(model->layers);
    attn_free(model->inv_freq);
    attn_free(model);
}
