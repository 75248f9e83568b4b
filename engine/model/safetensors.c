#include "engine/model/safetensors.h"

#include "engine/base/base.h"
#include "engine/model/checkpoint_json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_MAX (100u << 20)

struct attn_safetensors {
    char label[256];
    void *mapping;
    size_t mapping_size;
    attn_json *header;
    attn_tensor *tensors; /* in the order of their data */
    size_t n_tensors;
};

static const struct {
    const char *name;
    unsigned bytes;
} dtypes[] = {
    {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4},  {"I16", 2},
    {"I8", 1},  {"U8", 1},  {"U16", 2}, {"U32", 4},  {"U64", 8}, {"BOOL", 1},
};

static unsigned dtype_bytes(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, name) == 0)
            return dtypes[i].bytes;
    }
    return 0;
}

/* Fills one directory entry. `data` and `data_size` are the file's data section. */
static attn_status read_entry(const attn_json *node, const unsigned char *data, uint64_t data_size,
                              const char *label, attn_tensor *tensor, attn_error *err)
{
    tensor->name = attn_json_key(node);
    tensor->dtype = attn_json_string(attn_json_get(node, "dtype"));
    const attn_json *shape = attn_json_get(node, "shape");
    const attn_json *offsets = attn_json_get(node, "data_offsets");
    unsigned element = tensor->dtype == NULL ? 0 : dtype_bytes(tensor->dtype);
    if (element == 0 || !attn_json_is_array(shape) || !attn_json_is_array(offsets))
        return attn_fail(err, ATTN_E_FORMAT, NULL,
                         "%s: tensor %.80s: dtype, shape or data_offsets missing or unknown", label,
                         tensor->name);
    uint64_t n_bytes = element;
    for (const attn_json *dim = attn_json_first(shape); dim != NULL; dim = attn_json_next(dim)) {
        uint64_t size;
        if (tensor->n_dims == ATTN_TENSOR_DIMS || !attn_json_u64(dim, &size) ||
            __builtin_mul_overflow(n_bytes, size, &n_bytes))
            return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: tensor %.80s: impossible shape", label,
                             tensor->name);
        tensor->shape[tensor->n_dims++] = size;
    }
    const attn_json *first = attn_json_first(offsets), *second = attn_json_next(first);
    uint64_t begin, end;
    if (!attn_json_u64(first, &begin) || !attn_json_u64(second, &end) ||
        attn_json_next(second) != NULL || begin > end || end > data_size)
        return attn_fail(err, ATTN_E_FORMAT, NULL,
                         "%s: tensor %.80s: data_offsets lie outside the file", label,
                         tensor->name);
    if (end - begin != n_bytes)
        return attn_fail(err, ATTN_E_FORMAT, NULL,
                         "%s: tensor %.80s: shape and dtype need %llu bytes, data_offsets give "
                         "%llu",
                         label, tensor->name, (unsigned long long)n_bytes,
                         (unsigned long long)(end - begin));
    tensor->data = data + begin;
    tensor->n_bytes = n_bytes;
    return ATTN_OK;
}

static int compare_data(const void *a, const void *b)
{
    const attn_tensor *left = a, *right = b;
    if (left->data != right->data)
        return left->data < right->data ? -1 : 1;
    return (left->n_bytes > right->n_bytes) - (left->n_bytes < right->n_bytes);
}

static attn_status read_directory(attn_safetensors *file, const unsigned char *data,
                                  uint64_t data_size, attn_error *err)
{
    size_t n = 0;
    for (const attn_json *node = attn_json_first(file->header); node; node = attn_json_next(node))
        n++;
    file->tensors = attn_alloc(n, sizeof *file->tensors);
    if (file->tensors == NULL)
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "%s: out of memory", file->label);
    for (const attn_json *node = attn_json_first(file->header); node; node = attn_json_next(node)) {
        if (strcmp(attn_json_key(node), "__metadata__") == 0)
            continue;
        attn_status status =
            read_entry(node, data, data_size, file->label, &file->tensors[file->n_tensors], err);
        if (status != ATTN_OK)
            return status;
        file->n_tensors++;
    }
    qsort(file->tensors, file->n_tensors, sizeof *file->tensors, compare_data);
    const unsigned char *expected = data;
    for (size_t i = 0; i < file->n_tensors; i++) {
        if (file->tensors[i].data != expected)
            return attn_fail(err, ATTN_E_FORMAT, NULL,
                             "%s: tensor %.80s: its data overlaps another tensor's or leaves a gap",
                             file->label, file->tensors[i].name);
        expected += file->tensors[i].n_bytes;
    }
    if (expected != data + data_size)
        return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: bytes after the last tensor", file->label);
    return ATTN_OK;
}

attn_safetensors *attn_safetensors_parse(const void *data, size_t size, const char *label,
                                         attn_error *err)
{
    const unsigned char *bytes = data;
    uint64_t header_size = 0;
    attn_safetensors *file = attn_alloc(1, sizeof *file);
    if (file == NULL) {
        attn_fail(err, ATTN_E_NO_MEMORY, NULL, "%s: out of memory", label);
        return NULL;
    }
    size_t label_size = strnlen(label, sizeof file->label - 1);
    memcpy(file->label, label, label_size);
    for (size_t i = 0; size >= 8 && i < 8; i++)
        header_size |= (uint64_t)bytes[i] << (8 * i);
    if (size < 8 || header_size > HEADER_MAX || header_size > size - 8) {
        attn_fail(err, ATTN_E_FORMAT, NULL,
                  "%s: not a safetensors file: header length %llu in a file of %zu bytes", label,
                  (unsigned long long)header_size, size);
        goto fail;
    }
    const char *header = (const char *)bytes + 8;
    if (header_size == 0 || header[0] != '{') {
        attn_fail(err, ATTN_E_FORMAT, NULL, "%s: the header is not a JSON object", label);
        goto fail;
    }
    if (attn_json_parse(header, (size_t)header_size, label, &file->header, err) != ATTN_OK)
        goto fail;
    if (read_directory(file, bytes + 8 + header_size, size - 8 - header_size, err) != ATTN_OK)
        goto fail;
    return file;
fail:
    attn_safetensors_close(file);
    return NULL;
}

attn_safetensors *attn_safetensors_open(const char *path, attn_error *err)
{
    attn_safetensors *file = NULL;
    void *mapping = MAP_FAILED;
    struct stat info = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0) {
        attn_fail(err, ATTN_E_IO, NULL, "%s: %s", path, strerror(errno));
        goto out;
    }
    if (!S_ISREG(info.st_mode) || info.st_size < 8) {
        attn_fail(err, ATTN_E_FORMAT, NULL, "%s: not a safetensors file", path);
        goto out;
    }
    mapping = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapping == MAP_FAILED) {
        attn_fail(err, ATTN_E_IO, NULL, "%s: %s", path, strerror(errno));
        goto out;
    }
    file = attn_safetensors_parse(mapping, (size_t)info.st_size, path, err);
    if (file != NULL) {
        file->mapping = mapping;
        file->mapping_size = (size_t)info.st_size;
        mapping = MAP_FAILED;
    }
out:
    if (mapping != MAP_FAILED)
        munmap(mapping, (size_t)info.st_size);
    if (fd >= 0)
        close(fd);
    return file;
}

void attn_safetensors_close(attn_safetensors *file)
{
    if (file == NULL)
        return;
    attn_json_free(file->header);
    attn_free(file->tensors);
    if (file->mapping != NULL)
        munmap(file->mapping, file->mapping_size);
    attn_free(file);
}

const char *attn_safetensors_label(const attn_safetensors *file)
{
    return file->label;
}

size_t attn_safetensors_count(const attn_safetensors *file)
{
    return file->n_tensors;
}

const attn_tensor *attn_safetensors_at(const attn_safetensors *file, size_t index)
{
    return &file->tensors[index];
}

const attn_tensor *attn_safetensors_find(const attn_safetensors *file, const char *name)
{
    for (size_t i = 0; i < file->n_tensors; i++) {
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    }
    return NULL;
}
