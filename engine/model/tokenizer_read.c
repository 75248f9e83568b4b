#include "engine/model/tokenizer_read.h"

#include "engine/model/tokenizer.h"

#include <string.h>

attn_status attn_read_fail(const attn_reader *reader, const char *what, const char *problem)
{
    return attn_fail(reader->err, ATTN_E_FORMAT, NULL, "%s: %.80s %s", reader->label, what,
                     problem);
}

attn_status attn_read_fail_name(const attn_reader *reader, const char *kind, const char *name,
                                const char *problem)
{
    char shown[64];
    attn_printable(name, shown, sizeof shown);
    return attn_fail(reader->err, ATTN_E_FORMAT, NULL, "%s: %s %s %s", reader->label, kind, shown,
                     problem);
}

attn_status attn_no_memory(attn_error *err)
{
    return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory");
}

attn_status attn_read_no_memory(const attn_reader *reader)
{
    return attn_fail(reader->err, ATTN_E_NO_MEMORY, NULL, "%s: out of memory", reader->label);
}

/* The place of `key` among the space-separated `keys`, or -1. */
static int key_index(const char *keys, const char *key)
{
    size_t len = strlen(key);
    for (int index = 0;; index++) {
        size_t n = strcspn(keys, " ");
        if (n == len && memcmp(keys, key, n) == 0)
            return index;
        if (keys[n] == '\0')
            return -1;
        keys += n + 1;
    }
}

attn_status attn_read_keys(const attn_reader *reader, const attn_json *object, const char *what,
                           const char *keys)
{
    uint32_t seen = 0;
    if (!attn_json_is_object(object))
        return attn_read_fail(reader, what, "is missing or not an object");
    for (const attn_json *child = attn_json_first(object); child; child = attn_json_next(child)) {
        int index = key_index(keys, attn_json_key(child));
        if (index < 0)
            return attn_read_fail_name(reader, what, attn_json_key(child), "is not supported");
        if (seen >> index & 1)
            return attn_read_fail_name(reader, what, attn_json_key(child), "is there twice");
        seen |= 1u << index;
    }
    return ATTN_OK;
}

attn_status attn_read_optional_bool(const attn_reader *reader, const attn_json *object,
                                    const char *what, const char *key, bool *value)
{
    const attn_json *node = attn_json_get(object, key);
    if (node != NULL && !attn_json_bool(node, value))
        return attn_read_fail_name(reader, what, key, "is not a boolean");
    return ATTN_OK;
}

attn_status attn_read_bool(const attn_reader *reader, const attn_json *object, const char *what,
                           const char *key, bool *value)
{
    if (attn_json_get(object, key) == NULL)
        return attn_read_fail_name(reader, what, key, "is missing");
    return attn_read_optional_bool(reader, object, what, key, value);
}

attn_status attn_read_string(const attn_reader *reader, const attn_json *object, const char *what,
                             const char *key, const char **value)
{
    *value = attn_json_string(attn_json_get(object, key));
    if (*value == NULL)
        return attn_read_fail_name(reader, what, key, "is missing or not a string");
    return ATTN_OK;
}

attn_status attn_read_id(const attn_reader *reader, const attn_json *number, const char *token,
                         uint32_t *id)
{
    uint64_t value;
    if (!attn_json_u64(number, &value) || value >= ATTN_TOKENIZER_IDS_MAX)
        return attn_read_fail_name(reader, "token", token,
                                   "has an id that is no integer or too large");
    *id = (uint32_t)value;
    return ATTN_OK;
}

attn_status attn_metaspace_read(const attn_reader *reader, const attn_json *node, const char *what,
                                attn_metaspace *metaspace)
{
    static const char *const names[] = {[ATTN_PREPEND_NEVER] = "never",
                                        [ATTN_PREPEND_FIRST] = "first",
                                        [ATTN_PREPEND_ALWAYS] = "always"};
    const char *mark, *name = NULL;
    bool add_prefix_space = true;
    size_t len;
    *metaspace = (attn_metaspace){.split = true};
    attn_status status = attn_read_keys(
        reader, node, what, "type replacement str_rep add_prefix_space prepend_scheme split");
    if (status == ATTN_OK)
        status = attn_read_string(reader, node, what, "replacement", &mark);
    if (status == ATTN_OK)
        status = attn_read_optional_bool(reader, node, what, "add_prefix_space", &add_prefix_space);
    if (status == ATTN_OK)
        status = attn_read_optional_bool(reader, node, what, "split", &metaspace->split);
    if (status == ATTN_OK && attn_json_get(node, "prepend_scheme") != NULL)
        status = attn_read_string(reader, node, what, "prepend_scheme", &name);
    if (status != ATTN_OK)
        return status;
    if (*mark == '\0' || (attn_utf8_decode(mark, &len), mark[len] != '\0'))
        return attn_read_fail(reader, what, "has a replacement that is not one character");
    memcpy(metaspace->mark, mark, len + 1);
    metaspace->mark_len = len;
    if (name == NULL)
        name = names[add_prefix_space ? ATTN_PREPEND_ALWAYS : ATTN_PREPEND_NEVER];
    for (int i = ATTN_PREPEND_NEVER; i <= ATTN_PREPEND_ALWAYS; i++) {
        /* add_prefix_space, the older way to say it, must not contradict. */
        if (strcmp(names[i], name) == 0 && (add_prefix_space || i == ATTN_PREPEND_NEVER)) {
            metaspace->prepend = (attn_prepend)i;
            return ATTN_OK;
        }
    }
    return attn_read_fail(reader, what, "has a prepend_scheme that is not supported");
}
