/* text.h: growing text, and memory that is always there.
 *
 * A load tester that is out of memory has nothing to report: it ends with one line.
 */
#ifndef LOAD_TEXT_H
#define LOAD_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* n * size zeroed bytes; p grown or shrunk to them (the new ones are not zeroed). Never NULL.
 * Owner: free(). */
void *load_alloc(size_t n, size_t size) __attribute__((returns_nonnull));
void *load_realloc(void *p, size_t n, size_t size) __attribute__((returns_nonnull));

/* All zero is an empty text. data[len] is a NUL once anything was appended. */
typedef struct load_text {
    char *data;
    size_t len, cap;
} load_text;

/* Makes room for n more bytes and returns where they go; load_text_commit then counts them. */
char *load_text_reserve(load_text *t, size_t n) __attribute__((returns_nonnull));
void load_text_commit(load_text *t, size_t n);

void load_text_append(load_text *t, const void *bytes, size_t n);
void load_text_puts(load_text *t, const char *text);
void load_text_printf(load_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends a JSON string, quotes included; or text for HTML. */
void load_text_json(load_text *t, const char *text);
void load_text_html(load_text *t, const char *text);

/* Removes the first n bytes. */
void load_text_drop(load_text *t, size_t n);
/* Empties the text; memory is kept unless there is much of it. */
void load_text_clear(load_text *t);
void load_text_free(load_text *t);

/* "12.3 MiB". */
#define LOAD_SIZE_TEXT 32
const char *load_size_text(double bytes, char text[LOAD_SIZE_TEXT]);

#endif
