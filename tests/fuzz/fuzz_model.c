/* A dtype (one byte), a config.json up to a NUL and the tensors behind it: refused in one line, or
 * a model that takes memory in proportion to its tensors. */
#include "engine/model/model.c"

#include "tests/fuzz/fuzz.h"

/* A panel of 32 outputs for one row of bf16, kept as f32, is 64 times as large. */
#define GROWTH_MAX 128

static attn_status load(attn_model *model, const uint8_t *data, size_t size, attn_error *err)
{
    const char *text = (const char *)data + 1, *end = (const char *)data + size;
    const char *nul = memchr(text, '\0', size - 1);
    const int dtype = data[0] % (ATTN_DTYPES + 1); /* the last: the file's */
    const attn_load_options options = {
        .has_dtype = dtype < ATTN_DTYPES,
        .dtype = dtype < ATTN_DTYPES ? (attn_dtype)dtype : ATTN_F32,
    };
    size_t len = (size_t)((nul == NULL ? end : nul) - text);
    attn_status status = attn_config_parse(text, len, "config.json", &model->config, err);
    if (status != ATTN_OK)
        return status;
    const char *tensors = nul == NULL ? end : nul + 1;
    attn_weights *weights =
        attn_weights_parse(tensors, (size_t)(end - tensors), "model.safetensors", err);
    if (weights == NULL)
        return err->status;
    status = load_weights(model, weights, &options, err);
    attn_weights_close(weights);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    attn_error err = {0};
    attn_model *model = size < 2 ? NULL : new_model("fuzzed", &err);
    if (model == NULL)
        return 0;
    if (load(model, data, size, &err) != ATTN_OK)
        fuzz_check_error(&err);
    ATTN_ASSERT(model->weights_bytes <= GROWTH_MAX * size);
    attn_model_free(model);
    return 0;
}
