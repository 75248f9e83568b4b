/* The bytes of a tensor file: refused in one line, or a directory that tiles its data. */
#include "tests/fuzz/fuzz.h"

#include "engine/model/safetensors.h"

static void check_tensor(const attn_safetensors *file, size_t index, const uint8_t **at)
{
    const attn_tensor *tensor = attn_safetensors_at(file, index);
    ATTN_ASSERT(tensor->data == *at && tensor->n_dims <= ATTN_TENSOR_DIMS);
    ATTN_ASSERT(attn_safetensors_find(file, tensor->name) == tensor);
    *at += tensor->n_bytes;
    uint64_t n = 1;
    for (size_t i = 0; i < tensor->n_dims; i++)
        n *= tensor->shape[i];
    ATTN_ASSERT(n == 0 ? tensor->n_bytes == 0 : tensor->n_bytes % n == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    attn_error err = {0};
    attn_safetensors *file = attn_safetensors_parse(data, size, "the-file", &err);
    if (file == NULL) {
        fuzz_check_error(&err);
        return 0;
    }
    size_t n = attn_safetensors_count(file);
    const uint8_t *at = n > 0 ? attn_safetensors_at(file, 0)->data : data + size;
    ATTN_ASSERT(at > data && at <= data + size);
    for (size_t i = 0; i < n; i++)
        check_tensor(file, i, &at);
    ATTN_ASSERT(at == data + size);
    attn_safetensors_close(file);
    return 0;
}
