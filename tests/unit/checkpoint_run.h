/* checkpoint_run.h: checkpoint files in memory, and what is said of wrong ones. */
#ifndef CHECKPOINT_RUN_H
#define CHECKPOINT_RUN_H

#include "engine/engine.h"

#include <stddef.h>

/* The error is that status, on one line, and its message has all of the given texts. */
void checkpoint_check_error(const attn_error *err, attn_status status, const char *const *parts);

#define CHECK_ERROR(err, status, ...) \
    checkpoint_check_error(&(err), status, (const char *const[]){__VA_ARGS__, NULL})

/* Bytes of the seed's safetensors file, at attn_seed_tensors, and of the header in it. */
size_t checkpoint_seed_size(void);
size_t checkpoint_seed_header(void);

/* The bytes on the heap, exactly as many, so that reading past them is seen. */
char *checkpoint_copy_of(const void *bytes, size_t size);

/* A file of that header and `n_data` bytes of data. */
char *checkpoint_make_file(const char *header, size_t n_data, size_t *size);

#endif
