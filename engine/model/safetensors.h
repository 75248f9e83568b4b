/* safetensors.h: read-only tensor files, their directory fully checked when opened.
 *
 * Format: u64 little-endian header length, a JSON object name -> {dtype, shape, data_offsets},
 * then the data. A file is refused unless its tensors tile the data exactly, without gap or
 * overlap, and each tensor's bytes are what its dtype and shape say. */
#ifndef ATTN_SAFETENSORS_H
#define ATTN_SAFETENSORS_H

#include "engine/engine.h"

#define ATTN_TENSOR_DIMS 4

typedef struct attn_tensor {
    const char *name;
    const char *dtype; /* "F32" ... as in the file */
    size_t n_dims;
    uint64_t shape[ATTN_TENSOR_DIMS];
    const unsigned char *data; /* unaligned, little-endian */
    uint64_t n_bytes;
} attn_tensor;

typedef struct attn_safetensors attn_safetensors;

/* Checks and opens the bytes of a file; they must outlive the result. `label` names the file in
 * errors and is copied. Errors: FORMAT, NO_MEMORY. Owner: attn_safetensors_close. */
ATTN_MUST_CHECK attn_safetensors *attn_safetensors_parse(const void *data, size_t size,
                                                         const char *label, attn_error *err);
/* The same for a file, mapped until it is closed. Errors: IO, FORMAT, NO_MEMORY. */
ATTN_MUST_CHECK attn_safetensors *attn_safetensors_open(const char *path, attn_error *err);
void attn_safetensors_close(attn_safetensors *file); /* NULL allowed */

const char *attn_safetensors_label(const attn_safetensors *file);
size_t attn_safetensors_count(const attn_safetensors *file);
const attn_tensor *attn_safetensors_at(const attn_safetensors *file, size_t index);
/* The tensor with that name, or NULL. */
const attn_tensor *attn_safetensors_find(const attn_safetensors *file, const char *name);

#endif
