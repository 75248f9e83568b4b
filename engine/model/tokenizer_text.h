/* tokenizer_text.h: UTF-8, growing text and growing arrays for the tokenizer. */
#ifndef ATTN_TOKENIZER_TEXT_H
#define ATTN_TOKENIZER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that grow as they are appended to; not NUL-terminated. All zero is an empty one. */
typedef struct attn_text {
    char *data;
    size_t len, capacity;
} attn_text;

/* Makes room for n elements of `size` bytes in *data, which is NULL or from here. False: no
 * memory, nothing changed. Owner: the caller, free(). */
bool attn_grow(void **data, size_t *capacity, size_t n, size_t size);

bool attn_text_append(attn_text *text, const char *bytes, size_t len); /* false: no memory */
bool attn_text_append_char(attn_text *text, uint32_t code_point);
void attn_text_free(attn_text *text); /* leaves an empty one */

/* The length of the character that bytes[0, n) are or begin; 0 when no character begins so. The
 * character is complete when the result is <= n. n >= 1. */
size_t attn_utf8_prefix(const char *bytes, size_t n);
bool attn_utf8_valid(const char *bytes, size_t len);
/* The character at `bytes`, which is valid UTF-8; *len is its length. */
uint32_t attn_utf8_decode(const char *bytes, size_t *len);
/* Writes a code point (no surrogate, <= 0x10ffff) and returns its length. */
size_t attn_utf8_encode(uint32_t code_point, char out[4]);

/* Unicode's White_Space. */
bool attn_is_white_space(uint32_t code_point);

#endif
