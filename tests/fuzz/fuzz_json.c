/* The body of a request: refused by code and field, or values within their bounds. */
#include "tests/fuzz/fields.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    ATTN_ASSERT(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    check_reader(srv_json_read, text, size);
    free(text);
    return 0;
}
