#include "engine/model/checkpoint_json.h"

#include "engine/base/base.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* cJSON keeps repeated keys and lets lookups see the first: a file that lies about itself. */
static bool keys_repeat(const cJSON *object)
{
    size_t n = (size_t)cJSON_GetArraySize(object), i = 0;
    char **keys = calloc(n + 1, sizeof *keys);
    if (keys == NULL)
        return true;
    for (const cJSON *child = object->child; child != NULL && i < n; child = child->next)
        keys[i++] = child->string;
    qsort(keys, i, sizeof *keys, compare_keys);
    bool repeat = false;
    for (size_t k = 1; k < i && !repeat; k++)
        repeat = strcmp(keys[k - 1], keys[k]) == 0;
    free(keys);
    return repeat;
}

/* A NUL, escaped ones included: cJSON's strings would silently end there. */
static bool has_nul(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\0')
            return true;
        if (text[i] != '\\')
            continue;
        i++; /* what is escaped, a backslash too, begins nothing */
        if (i + 4 < len && memcmp(text + i, "u0000", 5) == 0)
            return true;
    }
    return false;
}

/* NULL when it is not what it must be, or when out of memory; then errno is ENOMEM. */
static cJSON *parse(const char *text, size_t len)
{
    if (has_nul(text, len))
        return NULL;
    /* cJSON wants a terminating NUL inside the length to tell trailing bytes from the end. */
    char *copy = malloc(len + 1);
    if (copy == NULL)
        return NULL;
    memcpy(copy, text, len);
    copy[len] = '\0';
    cJSON *root = cJSON_ParseWithLengthOpts(copy, len + 1, NULL, 1);
    free(copy);
    if (root != NULL && (!cJSON_IsObject(root) || keys_repeat(root))) {
        cJSON_Delete(root);
        root = NULL;
    }
    return root;
}

attn_status attn_json_parse(const char *text, size_t len, const char *label, attn_json **root,
                            attn_error *err)
{
    errno = 0; /* cJSON says no more than that it failed */
    *root = parse(text, len);
    if (*root != NULL)
        return ATTN_OK;
    if (errno == ENOMEM)
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "%s: out of memory", label);
    return attn_fail(err, ATTN_E_FORMAT, NULL,
                     "%s: not a JSON object, or a field stands in it twice, or it has a NUL",
                     label);
}

void attn_json_free(attn_json *root)
{
    cJSON_Delete(root);
}

const attn_json *attn_json_first(const attn_json *node)
{
    return node == NULL ? NULL : node->child;
}

const attn_json *attn_json_next(const attn_json *node)
{
    return node == NULL ? NULL : node->next;
}

const char *attn_json_key(const attn_json *node)
{
    return node == NULL ? NULL : node->string;
}

const attn_json *attn_json_get(const attn_json *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

bool attn_json_is_object(const attn_json *node)
{
    return cJSON_IsObject(node);
}

bool attn_json_is_array(const attn_json *node)
{
    return cJSON_IsArray(node);
}

bool attn_json_is_null(const attn_json *node)
{
    return cJSON_IsNull(node);
}

const char *attn_json_string(const attn_json *node)
{
    return cJSON_IsString(node) ? node->valuestring : NULL;
}

bool attn_json_bool(const attn_json *node, bool *value)
{
    if (!cJSON_IsBool(node))
        return false;
    *value = cJSON_IsTrue(node);
    return true;
}

bool attn_json_number(const attn_json *node, double *value)
{
    if (!cJSON_IsNumber(node) || !isfinite(node->valuedouble))
        return false;
    *value = node->valuedouble;
    return true;
}

bool attn_json_u64(const attn_json *node, uint64_t *value)
{
    double number;
    if (!attn_json_number(node, &number) || number < 0 || number > 9007199254740992.0 ||
        number != floor(number))
        return false;
    *value = (uint64_t)number;
    return true;
}
