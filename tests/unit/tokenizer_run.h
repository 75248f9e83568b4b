/* tokenizer_run.h: what the tests of the tokenizer share. A failure fails the test. */
#ifndef TESTS_TOKENIZER_RUN_H
#define TESTS_TOKENIZER_RUN_H

#include "engine/base/base.h"
#include "engine/model/tokenizer.h"

#define FIXTURES "tests/reference/tokenizer/fixtures/"

/* A file, NUL-terminated. Owner: attn_free. */
char *tokenizer_read_file(const char *path, size_t *len);
attn_tokenizer *tokenizer_open_file(const char *path);
/* The path of a real model's tokenizer, or false, saying so. */
bool tokenizer_find_real(const char *folder, char *path, size_t size);

attn_ids tokenizer_encode(const attn_tokenizer *tokenizer, const char *text, size_t len,
                          bool add_special, bool prefix);
attn_text tokenizer_decode(const attn_tokenizer *tokenizer, const uint32_t *ids, size_t n,
                           bool skip);
void tokenizer_check_ids(const attn_tokenizer *tokenizer, const char *text, bool add_special,
                         bool prefix, size_t n, const uint32_t *want);
/* The text is refused as INVALID, and ids that were there before stay. */
void tokenizer_check_refused(const attn_tokenizer *tokenizer, const char *text, size_t len);

#define CHECK_IDS(tokenizer, text, add_special, prefix, ...)                \
    tokenizer_check_ids(tokenizer, text, add_special, prefix,               \
                        sizeof(uint32_t[]){__VA_ARGS__} / sizeof(uint32_t), \
                        (uint32_t[]){__VA_ARGS__})

#endif
