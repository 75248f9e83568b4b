#include "server/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAP 256

void srv_buf_init(srv_buf *b, size_t limit)
{
    /* Half of the address space keeps every sum and doubling below free of overflow. */
    *b = (srv_buf){.limit = limit < SIZE_MAX / 2 ? limit : SIZE_MAX / 2 - 1};
}

void srv_buf_free(srv_buf *b)
{
    free(b->data);
    srv_buf_init(b, b->limit);
}

void srv_buf_clear(srv_buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = '\0';
}

static bool set_cap(srv_buf *b, size_t cap)
{
    char *data = realloc(b->data, cap);
    if (!data)
        return false;
    b->data = data;
    b->cap = cap;
    return true;
}

static bool grow(srv_buf *b, size_t need)
{
    size_t cap = b->cap ? b->cap * 2 : FIRST_CAP;
    if (cap < need)
        cap = need;
    return set_cap(b, cap < b->limit + 1 ? cap : b->limit + 1);
}

void srv_buf_expect(srv_buf *b, size_t n)
{
    if (!b->failed && n <= b->limit && n >= b->cap)
        set_cap(b, n + 1);
}

char *srv_buf_reserve(srv_buf *b, size_t n)
{
    if (b->failed)
        return NULL;
    if (n > b->limit - b->len || (b->cap - b->len <= n && !grow(b, b->len + n + 1))) {
        b->failed = true;
        return NULL;
    }
    return b->data + b->len;
}

void srv_buf_commit(srv_buf *b, size_t n)
{
    b->len += n;
    b->data[b->len] = '\0';
}

bool srv_buf_append(srv_buf *b, const void *bytes, size_t n)
{
    char *to = srv_buf_reserve(b, n);
    if (!to)
        return false;
    if (n)
        memcpy(to, bytes, n);
    srv_buf_commit(b, n);
    return true;
}

bool srv_buf_puts(srv_buf *b, const char *text)
{
    return srv_buf_append(b, text, strlen(text));
}

bool srv_buf_printf(srv_buf *b, const char *format, ...)
{
    /* Printed where it goes, if there is room already. */
    const size_t room = b->failed ? 0 : b->cap - b->len;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(room ? b->data + b->len : NULL, room, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < room && (size_t)n <= b->limit - b->len) {
        b->len += (size_t)n;
        return true;
    }
    if (room)
        b->data[b->len] = '\0';
    char *to = n < 0 ? NULL : srv_buf_reserve(b, (size_t)n);
    if (!to) {
        b->failed = true;
        return false;
    }
    va_start(args, format);
    vsnprintf(to, (size_t)n + 1, format, args);
    va_end(args);
    b->len += (size_t)n;
    return true;
}
