/* The same as safetensors, at a place that is aligned to nothing. */
#include "tests/fuzz/fields.h"

#include "server/json/safetensors_read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *bytes = malloc(size + 1);
    ATTN_ASSERT(bytes != NULL);
    if (size > 0)
        memcpy(bytes + 1, data, size);
    check_reader(srv_safetensors_read, bytes + 1, size);
    free(bytes);
    return 0;
}
