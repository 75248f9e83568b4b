#include "clients/load/model.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t number(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) && item->valuedouble >= 0 ? (uint64_t)item->valuedouble : 0;
}

static void string(const cJSON *object, const char *key, char *text, size_t size)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    snprintf(text, size, "%s", cJSON_IsString(item) ? item->valuestring : "");
}

static const cJSON *find_model(const cJSON *list, const char *name)
{
    const cJSON *model, *fallback = cJSON_GetObjectItemCaseSensitive(list, "default");
    if (name == NULL && cJSON_IsString(fallback))
        name = fallback->valuestring;
    cJSON_ArrayForEach(model, cJSON_GetObjectItemCaseSensitive(list, "models"))
    {
        const cJSON *found = cJSON_GetObjectItemCaseSensitive(model, "name");
        if (name != NULL && cJSON_IsString(found) && strcmp(found->valuestring, name) == 0)
            return model;
    }
    return NULL;
}

static bool read_model(load_model *m, const cJSON *list, const load_options *o, char *err,
                       size_t err_size)
{
    const cJSON *model = find_model(list, o->model);
    if (model == NULL) {
        snprintf(err, err_size, "--model: the server has no %.100s",
                 o->model ? o->model : "default model");
        return false;
    }
    const cJSON *limits = cJSON_GetObjectItemCaseSensitive(model, "limits");
    string(model, "name", m->name, sizeof m->name);
    string(model, "model_type", m->type, sizeof m->type);
    string(model, "kernels", m->kernels, sizeof m->kernels);
    string(model, "torch_dtype", m->weights, sizeof m->weights);
    m->hidden_size = number(model, "hidden_size");
    m->vocab_size = number(model, "vocab_size");
    m->is_language_model = m->vocab_size > 0;
    m->asks_output = o->has_output ? strcmp(o->output, "none") != 0 : !m->is_language_model;
    m->n_layers = number(model, "num_hidden_layers");
    m->max_positions = number(model, "max_position_embeddings");
    m->numerics = number(model, "numerics");
    m->threads = number(model, "threads");
    m->page_positions = number(limits, "page_positions");
    m->max_body_bytes = number(limits, "max_body_bytes");
    m->kv_bytes =
        number(cJSON_GetObjectItemCaseSensitive(model, "kv_bytes_per_position"), o->kv_dtype);
    bool keeps = m->is_language_model || strcmp(o->keep_inputs, "yes") == 0;
    m->input_bytes = keeps ? number(model, "input_bytes_per_position") : 0;
    if (m->kv_bytes == 0)
        snprintf(err, err_size, "--kv-dtype: %s does not offer %.100s", m->name, o->kv_dtype);
    else if (m->hidden_size == 0 || m->page_positions == 0)
        snprintf(err, err_size, "the server does not tell the shape of %s", m->name);
    else
        return true;
    return false;
}

bool load_model_get(load_model *m, load_http *http, const load_options *o, char *err,
                    size_t err_size)
{
    load_call call = {0};
    bool ok = false;
    memset(m, 0, sizeof *m);
    if (!load_http_ask(http, &call, "GET", "/models")) {
        if (call.failure != LOAD_FAIL_NONE)
            snprintf(err, err_size, "--url %.100s: no answer (%s)", o->url,
                     load_failure_names[call.failure]);
        else
            snprintf(err, err_size, "--url %.100s: GET /models answers %d", o->url, call.status);
    } else {
        cJSON *list = cJSON_ParseWithLength(call.reply.data, call.reply.len);
        ok = read_model(m, list, o, err, err_size);
        cJSON_Delete(list);
    }
    load_call_free(&call);
    return ok;
}

uint64_t load_model_pages(const load_model *m, uint64_t length)
{
    return (length + m->page_positions - 1) / m->page_positions;
}

uint64_t load_model_page_kv(const load_model *m)
{
    return m->page_positions * m->kv_bytes;
}

uint64_t load_model_page_inputs(const load_model *m)
{
    return m->page_positions * m->input_bytes;
}
