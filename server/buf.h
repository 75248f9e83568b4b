/* A growing byte buffer born with a ceiling: what a peer or a client may make the server hold.
 *
 * A buffer never holds more than `limit` bytes. The first append that does not fit, or that runs
 * out of memory, sets `failed` and changes nothing else; every later append fails too, so a caller
 * may append freely and look at `failed` once at the end.
 *
 * Once anything was appended, `data[len]` is a NUL byte that `len` does not count.
 *
 * Thread: no locks; one thread at a time per buffer. */
#ifndef SRV_BUF_H
#define SRV_BUF_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char *data; /* NULL until the first append; malloc's alignment */
    size_t len;
    size_t cap;   /* bytes allocated: len + 1 at least, once data is not NULL */
    size_t limit; /* most bytes `len` may reach */
    bool failed;  /* sticky: something did not fit */
} srv_buf;

/* Makes an empty buffer. Cost: allocates nothing yet. */
void srv_buf_init(srv_buf *b, size_t limit);

/* Frees the bytes and leaves an empty buffer with the same limit. A caller that wants to keep the
 * bytes copies `data` out, calls srv_buf_init again and owes a free(). */
void srv_buf_free(srv_buf *b);

/* Empties the buffer and its `failed` mark, but keeps the memory for the next use. */
void srv_buf_clear(srv_buf *b);

/* Appends n bytes, a string, formatted text.
 * Errors: false past the limit or out of memory; the contents stay as they were. */
bool srv_buf_append(srv_buf *b, const void *bytes, size_t n);
bool srv_buf_puts(srv_buf *b, const char *text);
bool srv_buf_printf(srv_buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Says that n bytes in all are to come: makes room for them at once, if there is memory, so that what
 * comes is not copied again and again. More than the limit is not expected.
 * Cost: memory that is not touched before something is put there. */
void srv_buf_expect(srv_buf *b, size_t n);

/* Makes room for n more bytes and returns where they go; srv_buf_commit then takes the first n
 * (no more than reserved) of them in.
 * Owner: the pointer lives until the next call on the buffer.
 * Errors: NULL past the limit or out of memory. */
char *srv_buf_reserve(srv_buf *b, size_t n);
void srv_buf_commit(srv_buf *b, size_t n);

#endif
