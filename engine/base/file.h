/* file.h: reading a small file whole. */
#ifndef ATTN_FILE_H
#define ATTN_FILE_H

#include "engine/engine.h"

/* Reads a file of at most `max` bytes; text[len] is a NUL. Errors: IO, FORMAT (longer), NO_MEMORY.
 * Owner of *text: the caller, attn_free. */
ATTN_MUST_CHECK attn_status attn_read_file(const char *path, size_t max, char **text, size_t *len,
                                           attn_error *err);

#endif
