/* tokenizer_read.h: reads the fields of tokenizer.json; what is wrong or unknown is refused by
 * name.
 *
 * In every function `what` names the object in errors ("model", "pre_tokenizer ByteLevel").
 * Errors: FORMAT. */
#ifndef ATTN_TOKENIZER_READ_H
#define ATTN_TOKENIZER_READ_H

#include "engine/base/base.h"
#include "engine/model/checkpoint_json.h"

typedef struct attn_reader {
    const char *label; /* names the file in errors */
    attn_error *err;
} attn_reader;

/* Fails with "<label>: <what> <problem>". */
attn_status attn_read_fail(const attn_reader *reader, const char *what, const char *problem);
/* The same with "<label>: <kind> <name> <problem>"; `name` comes from the file. */
attn_status attn_read_fail_name(const attn_reader *reader, const char *kind, const char *name,
                                const char *problem);
attn_status attn_read_no_memory(const attn_reader *reader);
/* NO_MEMORY outside reading. */
attn_status attn_no_memory(attn_error *err);

/* Refuses what is not an object, a key that is not one of the space-separated `keys`, and a
 * repeated key. */
ATTN_MUST_CHECK attn_status attn_read_keys(const attn_reader *reader, const attn_json *object,
                                           const char *what, const char *keys);
/* A boolean that must be there. */
ATTN_MUST_CHECK attn_status attn_read_bool(const attn_reader *reader, const attn_json *object,
                                           const char *what, const char *key, bool *value);
/* The same, or *value as it was when the key is absent. */
ATTN_MUST_CHECK attn_status attn_read_optional_bool(const attn_reader *reader,
                                                    const attn_json *object, const char *what,
                                                    const char *key, bool *value);
/* A string that must be there; lives as long as the object. */
ATTN_MUST_CHECK attn_status attn_read_string(const attn_reader *reader, const attn_json *object,
                                             const char *what, const char *key, const char **value);
/* A token id below ATTN_TOKENIZER_IDS_MAX. */
ATTN_MUST_CHECK attn_status attn_read_id(const attn_reader *reader, const attn_json *number,
                                         const char *token, uint32_t *id);

/* How a tokenizer marks spaces, and where it adds a mark before a text. */
typedef enum attn_prepend {
    ATTN_PREPEND_NEVER,
    ATTN_PREPEND_FIRST, /* only at the very start */
    ATTN_PREPEND_ALWAYS /* before every stretch between added tokens, too */
} attn_prepend;

typedef struct attn_metaspace {
    char mark[5]; /* one character, NUL-terminated */
    size_t mark_len;
    attn_prepend prepend;
    bool split; /* cut before every mark */
} attn_metaspace;

/* Reads a Metaspace, which is a pre-tokenizer and a decoder. */
ATTN_MUST_CHECK attn_status attn_metaspace_read(const attn_reader *reader, const attn_json *node,
                                                const char *what, attn_metaspace *metaspace);

#endif
