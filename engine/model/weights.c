#include "engine/model/weights.h"

#include "engine/base/base.h"
#include "engine/base/file.h"
#include "engine/base/half.h"
#include "engine/model/checkpoint_json.h"
#include "engine/model/philox.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_SHARDS 1024
#define INDEX_MAX ((size_t)64 << 20)
#define PATH_SIZE 4096
/* Random biases are uniform in +- this. */
#define RANDOM_BIAS 0.1f

struct attn_weights {
    uint64_t seed;
    size_t n_files; /* 0: random */
    attn_safetensors *files[MAX_SHARDS];
    bool *used[MAX_SHARDS]; /* by tensor index */
};

static attn_status add_file(attn_weights *w, attn_safetensors *file, attn_error *err)
{
    if (file == NULL)
        return err == NULL ? ATTN_E_FORMAT : err->status;
    w->used[w->n_files] = attn_alloc(attn_safetensors_count(file), sizeof(bool));
    w->files[w->n_files++] = file;
    return w->used[w->n_files - 1] != NULL
               ? ATTN_OK
               : attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory");
}

/* Opens the shards that an index names, each once, and checks that they hold what it says. */
static attn_status open_shards(attn_weights *w, const char *dir, const char *index_path,
                               const attn_json *map, attn_error *err)
{
    const char *names[MAX_SHARDS];
    for (const attn_json *node = attn_json_first(map); node != NULL; node = attn_json_next(node)) {
        const char *file = attn_json_string(node);
        if (file == NULL || file[0] == '\0' || strchr(file, '/') != NULL)
            return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: weight_map names no plain file",
                             index_path);
        size_t i = 0;
        while (i < w->n_files && strcmp(names[i], file) != 0)
            i++;
        if (i == MAX_SHARDS)
            return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: more than %d files", index_path,
                             MAX_SHARDS);
        if (i == w->n_files) {
            char path[PATH_SIZE];
            if (snprintf(path, sizeof path, "%s/%s", dir, file) >= PATH_SIZE)
                return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: a file's name is too long",
                                 index_path);
            names[i] = file;
            attn_status status = add_file(w, attn_safetensors_open(path, err), err);
            if (status != ATTN_OK)
                return status;
        }
        if (attn_safetensors_find(w->files[i], attn_json_key(node)) == NULL)
            return attn_fail(err, ATTN_E_FORMAT, NULL,
                             "%s: tensor %.80s is missing, though the index places it there",
                             attn_safetensors_label(w->files[i]), attn_json_key(node));
    }
    return w->n_files > 0
               ? ATTN_OK
               : attn_fail(err, ATTN_E_FORMAT, NULL, "%s: weight_map is empty", index_path);
}

static attn_status open_index(attn_weights *w, const char *dir, const char *path, attn_error *err)
{
    char *text;
    size_t len;
    attn_status status = attn_read_file(path, INDEX_MAX, &text, &len, err);
    if (status != ATTN_OK)
        return status;
    attn_json *root;
    status = attn_json_parse(text, len, path, &root, err);
    const attn_json *map = attn_json_get(root, "weight_map");
    if (status == ATTN_OK && !attn_json_is_object(map))
        status = attn_fail(err, ATTN_E_FORMAT, NULL, "%s: no weight_map object", path);
    else if (status == ATTN_OK)
        status = open_shards(w, dir, path, map, err);
    attn_json_free(root);
    attn_free(text);
    return status;
}

attn_weights *attn_weights_open(const char *dir, const uint64_t *random_seed, attn_error *err)
{
    char single[PATH_SIZE], index[PATH_SIZE];
    if (snprintf(single, sizeof single, "%s/model.safetensors", dir) >= PATH_SIZE ||
        snprintf(index, sizeof index, "%s/model.safetensors.index.json", dir) >= PATH_SIZE) {
        attn_fail(err, ATTN_E_INVALID, "models", "a model folder's name is too long");
        return NULL;
    }
    attn_weights *w = attn_alloc(1, sizeof *w);
    if (w == NULL) {
        attn_fail(err, ATTN_E_NO_MEMORY, NULL, "%s: out of memory", dir);
        return NULL;
    }
    attn_status status = ATTN_OK;
    bool has_single = access(single, F_OK) == 0, has_index = access(index, F_OK) == 0;
    if (!has_single && has_index)
        status = open_index(w, dir, index, err);
    else if (has_single || random_seed == NULL)
        status = add_file(w, attn_safetensors_open(single, err), err);
    else
        w->seed = *random_seed;
    if (status != ATTN_OK) {
        attn_weights_close(w);
        return NULL;
    }
    return w;
}

attn_weights *attn_weights_parse(const void *data, size_t size, const char *label, attn_error *err)
{
    attn_weights *w = attn_alloc(1, sizeof *w);
    if (w == NULL) {
        attn_fail(err, ATTN_E_NO_MEMORY, NULL, "%s: out of memory", label);
        return NULL;
    }
    if (add_file(w, attn_safetensors_parse(data, size, label, err), err) != ATTN_OK) {
        attn_weights_close(w);
        return NULL;
    }
    return w;
}

void attn_weights_close(attn_weights *w)
{
    if (w == NULL)
        return;
    for (size_t i = 0; i < w->n_files; i++) {
        attn_safetensors_close(w->files[i]);
        attn_free(w->used[i]);
    }
    attn_free(w);
}

bool attn_weights_random(const attn_weights *w)
{
    return w->n_files == 0;
}

static bool dtype_of(const attn_tensor *tensor, attn_dtype *dtype)
{
    static const char *const names[] = {
        [ATTN_F32] = "F32", [ATTN_BF16] = "BF16", [ATTN_F16] = "F16"};
    for (int i = ATTN_F32; i <= ATTN_F16; i++) {
        if (strcmp(tensor->dtype, names[i]) == 0) {
            *dtype = (attn_dtype)i;
            return true;
        }
    }
    return false;
}

attn_dtype attn_weights_dtype(const attn_weights *w)
{
    uint64_t bytes[ATTN_DTYPES] = {0};
    for (size_t f = 0; f < w->n_files; f++) {
        for (size_t i = 0; i < attn_safetensors_count(w->files[f]); i++) {
            const attn_tensor *tensor = attn_safetensors_at(w->files[f], i);
            attn_dtype dtype;
            if (dtype_of(tensor, &dtype))
                bytes[dtype] += tensor->n_bytes;
        }
    }
    attn_dtype most = ATTN_F32;
    for (int i = ATTN_F32; i <= ATTN_F16; i++)
        most = bytes[i] > bytes[most] ? (attn_dtype)i : most;
    return most;
}

/* The tensor with that name and its mark. */
static const attn_tensor *find(const attn_weights *w, const char *name, bool **used)
{
    for (size_t f = 0; f < w->n_files; f++) {
        const attn_tensor *tensor = attn_safetensors_find(w->files[f], name);
        if (tensor != NULL) {
            *used = &w->used[f][tensor - attn_safetensors_at(w->files[f], 0)];
            return tensor;
        }
    }
    return NULL;
}

bool attn_weights_has(const attn_weights *w, const char *name)
{
    bool *used;
    return find(w, name, &used) != NULL;
}

static const char *label(const attn_weights *w)
{
    return w->n_files == 1 ? attn_safetensors_label(w->files[0]) : "the model's files";
}

attn_status attn_weights_find(attn_weights *w, const char *name, size_t rows, size_t cols,
                              attn_weight *weight, attn_error *err)
{
    bool *used;
    attn_dtype dtype;
    *weight = (attn_weight){.name = name, .rows = rows, .cols = cols};
    if (w->n_files == 0)
        return ATTN_OK;
    const attn_tensor *t = weight->tensor = find(w, name, &used);
    if (t == NULL)
        return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: tensor %s is missing", label(w), name);
    if (!dtype_of(t, &dtype))
        return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: tensor %s: dtype %s is not supported",
                         label(w), name, t->dtype);
    if (cols == 0 && (t->n_dims != 1 || t->shape[0] != rows))
        return attn_fail(err, ATTN_E_FORMAT, NULL,
                         "%s: tensor %s: config.json asks for shape [%zu]", label(w), name, rows);
    if (cols != 0 && (t->n_dims != 2 || t->shape[0] != rows || t->shape[1] != cols))
        return attn_fail(err, ATTN_E_FORMAT, NULL,
                         "%s: tensor %s: config.json asks for shape [%zu, %zu]", label(w), name,
                         rows, cols);
    *used = true;
    return ATTN_OK;
}

static void read_random(uint64_t seed, const attn_weight *weight, size_t row, float *values)
{
    static const char bias[] = ".bias";
    size_t len = strlen(weight->name);
    if (weight->cols > 0) {
        attn_philox_uniform(seed, weight->name, (float)(1.0 / sqrt((double)weight->cols)),
                            row * weight->cols, weight->cols, values);
    } else if (len >= sizeof bias && strcmp(weight->name + len - sizeof bias + 1, bias) == 0) {
        attn_philox_uniform(seed, weight->name, RANDOM_BIAS, 0, weight->rows, values);
    } else {
        for (size_t i = 0; i < weight->rows; i++)
            values[i] = 1.0f;
    }
}

attn_status attn_weights_read(const attn_weights *w, const attn_weight *weight, size_t row,
                              float *values, attn_error *err)
{
    if (weight->tensor == NULL) {
        read_random(w->seed, weight, row, values);
        return ATTN_OK;
    }
    size_t n = weight->cols > 0 ? weight->cols : weight->rows;
    attn_dtype dtype = ATTN_F32;
    dtype_of(weight->tensor, &dtype);
    size_t size = dtype == ATTN_F32 ? 4 : 2;
    const unsigned char *data = weight->tensor->data + row * n * size;
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        if (dtype == ATTN_F32) {
            memcpy(&values[i], data + 4 * i, 4);
        } else {
            uint16_t bits;
            memcpy(&bits, data + 2 * i, 2);
            values[i] = dtype == ATTN_BF16 ? attn_bf16_value(bits) : attn_f16_value(bits);
        }
        finite = finite && isfinite(values[i]);
    }
    return finite
               ? ATTN_OK
               : attn_fail(err, ATTN_E_FORMAT, NULL, "%s: tensor %s has a value that is not finite",
                           label(w), weight->name);
}

void attn_weights_ignore(attn_weights *w, const char *name)
{
    bool *used;
    if (find(w, name, &used) != NULL)
        *used = true;
}

attn_status attn_weights_check_used(const attn_weights *w, attn_error *err)
{
    for (size_t f = 0; f < w->n_files; f++) {
        for (size_t i = 0; i < attn_safetensors_count(w->files[f]); i++) {
            if (!w->used[f][i])
                return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: tensor %.80s is not supported",
                                 attn_safetensors_label(w->files[f]),
                                 attn_safetensors_at(w->files[f], i)->name);
        }
    }
    return ATTN_OK;
}
