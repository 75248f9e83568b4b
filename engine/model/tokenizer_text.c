#include "engine/model/tokenizer_text.h"

#include <stdlib.h>
#include <string.h>

bool attn_grow(void **data, size_t *capacity, size_t n, size_t size)
{
    if (n <= *capacity)
        return true;
    size_t wanted = *capacity < 32 ? 64 : *capacity * 2, bytes;
    if (wanted < n)
        wanted = n;
    if (__builtin_mul_overflow(wanted, size, &bytes))
        return false;
    void *grown = realloc(*data, bytes);
    if (grown == NULL)
        return false;
    *data = grown;
    *capacity = wanted;
    return true;
}

bool attn_text_append(attn_text *text, const char *bytes, size_t len)
{
    if (len == 0)
        return true;
    void *data = text->data;
    if (len > SIZE_MAX - text->len || !attn_grow(&data, &text->capacity, text->len + len, 1))
        return false;
    text->data = data;
    memcpy(text->data + text->len, bytes, len);
    text->len += len;
    return true;
}

bool attn_text_append_char(attn_text *text, uint32_t code_point)
{
    char bytes[4];
    return attn_text_append(text, bytes, attn_utf8_encode(code_point, bytes));
}

void attn_text_free(attn_text *text)
{
    free(text->data);
    *text = (attn_text){0};
}

size_t attn_utf8_prefix(const char *bytes, size_t n)
{
    const unsigned char *p = (const unsigned char *)bytes;
    unsigned low = 0x80, high = 0xbf;
    size_t len;
    if (p[0] < 0x80)
        return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 0;
    if (p[0] < 0xe0)
        len = 2;
    else if (p[0] < 0xf0)
        len = 3;
    else
        len = 4;
    /* The second byte keeps out overlong forms, surrogates and what lies past U+10FFFF. */
    if (p[0] == 0xe0)
        low = 0xa0;
    else if (p[0] == 0xed)
        high = 0x9f;
    else if (p[0] == 0xf0)
        low = 0x90;
    else if (p[0] == 0xf4)
        high = 0x8f;
    for (size_t i = 1; i < n && i < len; i++, low = 0x80, high = 0xbf) {
        if (p[i] < low || p[i] > high)
            return 0;
    }
    return len;
}

bool attn_utf8_valid(const char *bytes, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t n = attn_utf8_prefix(bytes + i, len - i);
        if (n == 0 || n > len - i)
            return false;
        i += n;
    }
    return true;
}

uint32_t attn_utf8_decode(const char *bytes, size_t *len)
{
    static const unsigned char lead[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    const unsigned char *p = (const unsigned char *)bytes;
    size_t n = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    uint32_t code_point = p[0] & lead[n];
    for (size_t i = 1; i < n; i++)
        code_point = code_point << 6 | (p[i] & 0x3fu);
    *len = n;
    return code_point;
}

size_t attn_utf8_encode(uint32_t code_point, char out[4])
{
    static const unsigned char lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    size_t n = code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; code_point >>= 6)
        out[i] = (char)(0x80 | (code_point & 0x3f));
    out[0] = (char)(lead[n] | code_point);
    return n;
}

bool attn_is_white_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}
