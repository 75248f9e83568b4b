#include "clients/load/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a cleared text may keep. */
#define KEEP_BYTES 65536

static void *checked(void *p)
{
    if (p == NULL) {
        fputs("attn-load: out of memory\n", stderr);
        abort();
    }
    return p;
}

void *load_alloc(size_t n, size_t size)
{
    return checked(calloc(n ? n : 1, size));
}

void *load_realloc(void *p, size_t n, size_t size)
{
    return checked(reallocarray(p, n ? n : 1, size));
}

char *load_text_reserve(load_text *t, size_t n)
{
    if (n >= t->cap - t->len) {
        size_t cap = t->cap ? t->cap : 64;
        while (cap - t->len <= n)
            cap *= 2;
        t->data = load_realloc(t->data, cap, 1);
        t->cap = cap;
    }
    return t->data + t->len;
}

void load_text_commit(load_text *t, size_t n)
{
    t->len += n;
    t->data[t->len] = '\0';
}

void load_text_append(load_text *t, const void *bytes, size_t n)
{
    memcpy(load_text_reserve(t, n), bytes, n);
    load_text_commit(t, n);
}

void load_text_puts(load_text *t, const char *text)
{
    load_text_append(t, text, strlen(text));
}

void load_text_printf(load_text *t, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    if (n > 0) {
        char *to = load_text_reserve(t, (size_t)n + 1);
        vsnprintf(to, (size_t)n + 1, format, again);
        load_text_commit(t, (size_t)n);
    }
    va_end(again);
    va_end(args);
}

void load_text_json(load_text *t, const char *text)
{
    load_text_append(t, "\"", 1);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            load_text_printf(t, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            load_text_printf(t, "\\u%04x", (unsigned)(unsigned char)*text);
        else
            load_text_append(t, text, 1);
    }
    load_text_append(t, "\"", 1);
}

void load_text_html(load_text *t, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&':
            load_text_puts(t, "&amp;");
            break;
        case '<':
            load_text_puts(t, "&lt;");
            break;
        case '"':
            load_text_puts(t, "&quot;");
            break;
        default:
            load_text_append(t, text, 1);
        }
    }
}

void load_text_drop(load_text *t, size_t n)
{
    if (n > 0) {
        memmove(t->data, t->data + n, t->len - n);
        t->len -= n;
        t->data[t->len] = '\0';
    }
}

void load_text_clear(load_text *t)
{
    if (t->cap > KEEP_BYTES)
        load_text_free(t);
    t->len = 0;
}

void load_text_free(load_text *t)
{
    free(t->data);
    *t = (load_text){0};
}

const char *load_size_text(double bytes, char text[LOAD_SIZE_TEXT])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    while (fabs(bytes) >= 1024 && u < 4) {
        bytes /= 1024;
        u++;
    }
    snprintf(text, LOAD_SIZE_TEXT, u ? "%.1f %s" : "%.0f %s", bytes, units[u]);
    return text;
}
