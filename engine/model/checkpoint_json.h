/* checkpoint_json.h: reads the JSON of checkpoint files (config.json, safetensors headers).
 *
 * The one place in the engine that knows cJSON. Nodes live until their root is freed. Every getter
 * allows NULL and then reports false or NULL, so that lookups chain. */
#ifndef ATTN_CHECKPOINT_JSON_H
#define ATTN_CHECKPOINT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

typedef struct cJSON attn_json;

/* Parses one JSON object that fills `text` but for white space. `label`: what the text is, for errors.
 * Owner: the caller, attn_json_free; *root is NULL on error. Errors: FORMAT when it is anything else,
 * has a NUL (escaped or not) or repeats a key of the top-level object; NO_MEMORY. */
ATTN_MUST_CHECK attn_status attn_json_parse(const char *text, size_t len, const char *label,
                                            attn_json **root, attn_error *err);
void attn_json_free(attn_json *root);

/* Members of an object or elements of an array, in file order. */
const attn_json *attn_json_first(const attn_json *node);
const attn_json *attn_json_next(const attn_json *node);
/* A member's key. */
const char *attn_json_key(const attn_json *node);
/* The member with exactly that key, or NULL. */
const attn_json *attn_json_get(const attn_json *object, const char *key);

bool attn_json_is_object(const attn_json *node);
bool attn_json_is_array(const attn_json *node);
bool attn_json_is_null(const attn_json *node);
const char *attn_json_string(const attn_json *node); /* NULL unless a string */
bool attn_json_bool(const attn_json *node, bool *value);
bool attn_json_number(const attn_json *node, double *value); /* finite */
bool attn_json_u64(const attn_json *node, uint64_t *value);  /* an integer 0 .. 2^53 */

#endif
