#include "engine/base/file.h"

#include "engine/base/base.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static attn_status read_open_file(FILE *file, const char *path, size_t max, char **text,
                                  size_t *len, attn_error *err)
{
    struct stat info;
    if (fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode))
        return attn_fail(err, ATTN_E_IO, NULL, "%s: not a regular file", path);
    if ((uint64_t)info.st_size > max)
        return attn_fail(err, ATTN_E_FORMAT, NULL, "%s: longer than %zu bytes", path, max);
    size_t size = (size_t)info.st_size;
    char *buffer = attn_alloc(size + 1, 1);
    if (buffer == NULL)
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "%s: out of memory", path);
    *len = fread(buffer, 1, size, file);
    if (ferror(file)) {
        attn_free(buffer);
        return attn_fail(err, ATTN_E_IO, NULL, "%s: cannot be read", path);
    }
    *text = buffer;
    return ATTN_OK;
}

attn_status attn_read_file(const char *path, size_t max, char **text, size_t *len, attn_error *err)
{
    *text = NULL;
    *len = 0;
    FILE *file = fopen(path, "rbe");
    if (file == NULL)
        return attn_fail(err, ATTN_E_IO, NULL, "%s: %s", path, strerror(errno));
    attn_status status = read_open_file(file, path, max, text, len, err);
    fclose(file);
    return status;
}
