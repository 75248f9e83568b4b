#include "tests/unit/checkpoint_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/model/builtin.h"

void checkpoint_check_error(const attn_error *err, attn_status status, const char *const *parts)
{
    if (err->status != status)
        fail_msg("status %d, not %d: %s", (int)err->status, (int)status, err->message);
    assert_true(strlen(err->message) > 0 && strlen(err->message) < sizeof err->message);
    for (const char *c = err->message; *c != '\0'; c++)
        assert_true((unsigned char)*c >= ' ' && *c != 0x7f);
    for (; *parts != NULL; parts++) {
        if (strstr(err->message, *parts) == NULL)
            fail_msg("\"%s\" does not name %s", err->message, *parts);
    }
}

size_t checkpoint_seed_size(void)
{
    return (size_t)(attn_seed_tensors_end - attn_seed_tensors);
}

size_t checkpoint_seed_header(void)
{
    uint64_t n;
    memcpy(&n, attn_seed_tensors, sizeof n);
    return (size_t)n;
}

char *checkpoint_copy_of(const void *bytes, size_t size)
{
    char *copy = malloc(size + (size == 0));
    assert_non_null(copy);
    memcpy(copy, bytes, size);
    return copy;
}

char *checkpoint_make_file(const char *header, size_t n_data, size_t *size)
{
    uint64_t n = strlen(header);
    *size = sizeof n + n + n_data;
    char *bytes = calloc(1, *size + 1);
    assert_non_null(bytes);
    memcpy(bytes, &n, sizeof n);
    memcpy(bytes + sizeof n, header, n);
    return bytes;
}
