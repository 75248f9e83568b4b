#include "server/json/json_write.h"

#include <inttypes.h>
#include <math.h>

#include "server/json/float_text.h"
#include "server/json/utf8.h"

/* Floats formatted between two appends: enough that appending costs nothing beside formatting. */
#define FLOATS_AT_ONCE 64

static bool append_escaped(srv_buf *b, char c)
{
    switch (c) {
    case '"':
        return srv_buf_puts(b, "\\\"");
    case '\\':
        return srv_buf_puts(b, "\\\\");
    case '\n':
        return srv_buf_puts(b, "\\n");
    case '\r':
        return srv_buf_puts(b, "\\r");
    case '\t':
        return srv_buf_puts(b, "\\t");
    default:
        return srv_buf_printf(b, "\\u%04x", (unsigned)(unsigned char)c);
    }
}

bool srv_json_string(srv_buf *b, const char *s, size_t len)
{
    const char *end = s + len;
    const char *plain = s; /* start of what needs no change and is not appended yet */
    srv_buf_append(b, "\"", 1);
    for (const char *p = s; p < end;) {
        const size_t n = srv_utf8_length(p, end);
        if (n > 0 && (unsigned char)*p >= ' ' && *p != '"' && *p != '\\') {
            p += n;
            continue;
        }
        srv_buf_append(b, plain, (size_t)(p - plain));
        if (n == 0)
            srv_buf_puts(b, "\xef\xbf\xbd");
        else
            append_escaped(b, *p);
        plain = ++p;
    }
    srv_buf_append(b, plain, (size_t)(end - plain));
    return srv_buf_append(b, "\"", 1);
}

bool srv_json_floats(srv_buf *b, const float *v, size_t n)
{
    char text[FLOATS_AT_ONCE * SRV_FLOAT_TEXT_MAX];
    srv_buf_append(b, "[", 1);
    for (size_t i = 0; i < n; i += FLOATS_AT_ONCE) {
        const size_t now = n - i < FLOATS_AT_ONCE ? n - i : FLOATS_AT_ONCE;
        size_t len = srv_floats_format(text, v + i, now);
        if (len == 0) {
            b->failed = true;
            return false;
        }
        if (i + now < n)
            text[len++] = ',';
        if (!srv_buf_append(b, text, len))
            return false;
    }
    return srv_buf_append(b, "]", 1);
}

bool srv_json_float(srv_buf *b, float v)
{
    char text[SRV_FLOAT_TEXT_MAX];
    const size_t len = srv_float_format(text, v);
    b->failed |= len == 0;
    return srv_buf_append(b, text, len);
}

bool srv_json_u32s(srv_buf *b, const uint32_t *v, size_t n)
{
    srv_buf_append(b, "[", 1);
    for (size_t i = 0; i < n; i++) {
        char text[16], *p = text + sizeof text;
        uint32_t rest = v[i];
        do
            *--p = (char)('0' + rest % 10);
        while (rest /= 10);
        if (i > 0)
            *--p = ',';
        if (!srv_buf_append(b, p, (size_t)(text + sizeof text - p)))
            return false;
    }
    return srv_buf_append(b, "]", 1);
}

bool srv_json_rows(srv_buf *b, const float *v, size_t rows, size_t cols)
{
    srv_buf_append(b, "[", 1);
    for (size_t i = 0; i < rows; i++) {
        if (i > 0)
            srv_buf_append(b, ",", 1);
        if (!srv_json_floats(b, v + i * cols, cols))
            return false;
    }
    return srv_buf_append(b, "]", 1);
}

bool srv_json_u64(srv_buf *b, uint64_t v)
{
    return srv_buf_printf(b, "%" PRIu64, v);
}

bool srv_json_i64(srv_buf *b, int64_t v)
{
    return srv_buf_printf(b, "%" PRId64, v);
}

bool srv_json_bool(srv_buf *b, bool v)
{
    return srv_buf_puts(b, v ? "true" : "false");
}

bool srv_json_ms(srv_buf *b, double ms)
{
    if (!isfinite(ms)) {
        b->failed = true;
        return false;
    }
    if (ms < 0 || ms > 1e12)
        return srv_buf_printf(b, "%.3f", ms);
    const uint64_t us = (uint64_t)(ms * 1e3 + 0.5);
    return srv_buf_printf(b, "%" PRIu64 ".%03u", us / 1000, (unsigned)(us % 1000));
}
