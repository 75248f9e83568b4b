#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "tests/unit/tokenizer_run.h"

#define FILE_MAX ((size_t)64 << 20)

char *tokenizer_read_file(const char *path, size_t *len)
{
    char *text;
    attn_error err;
    if (attn_read_file(path, FILE_MAX, &text, len, &err) != ATTN_OK)
        fail_msg("%s", err.message);
    return text;
}

attn_tokenizer *tokenizer_open_file(const char *path)
{
    attn_error err;
    attn_tokenizer *tokenizer = attn_tokenizer_open(path, &err);
    if (tokenizer == NULL)
        fail_msg("%s", err.message);
    return tokenizer;
}

/* The path of a real model's tokenizer, or false, saying so. */
bool tokenizer_find_real(const char *folder, char *path, size_t size)
{
    const char *one =
        strcmp(folder, "qwen3-tokenizer") == 0 ? getenv("ATTND_TEST_QWEN3_TOKENIZER") : NULL;
    const char *models = getenv("ATTND_TEST_MODELS");
    if (one != NULL)
        snprintf(path, size, "%s", one);
    else if (models != NULL)
        snprintf(path, size, "%s/%s/tokenizer.json", models, folder);
    FILE *file = one == NULL && models == NULL ? NULL : fopen(path, "rb");
    if (file == NULL) {
        print_message("no %s to be had (ATTND_TEST_MODELS)\n", folder);
        return false;
    }
    fclose(file);
    return true;
}

attn_ids tokenizer_encode(const attn_tokenizer *tokenizer, const char *text, size_t len,
                          bool add_special, bool prefix)
{
    attn_ids ids = {0};
    attn_error err;
    if (attn_tokenizer_encode(tokenizer, text, len, add_special, prefix, &ids, &err) != ATTN_OK)
        fail_msg("%s", err.message);
    return ids;
}

void tokenizer_check_ids(const attn_tokenizer *tokenizer, const char *text, bool add_special,
                         bool prefix, size_t n, const uint32_t *want)
{
    attn_ids ids = tokenizer_encode(tokenizer, text, strlen(text), add_special, prefix);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.data, want, n * sizeof *want);
    attn_ids_free(&ids);
}

attn_text tokenizer_decode(const attn_tokenizer *tokenizer, const uint32_t *ids, size_t n,
                           bool skip)
{
    attn_text text = {0};
    assert_int_equal(attn_tokenizer_decode(tokenizer, ids, n, skip, &text, NULL), ATTN_OK);
    return text;
}

void tokenizer_check_refused(const attn_tokenizer *tokenizer, const char *text, size_t len)
{
    attn_error err = {0};
    attn_ids ids = {0};
    assert_true(attn_ids_append(&ids, 7));
    assert_int_equal(attn_tokenizer_encode(tokenizer, text, len, true, true, &ids, &err),
                     ATTN_E_INVALID);
    assert_string_equal(err.param, "text");
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.data[0], 7);
    attn_ids_free(&ids);
}
