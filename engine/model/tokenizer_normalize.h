/* tokenizer_normalize.h: what is done to text before it is split: NFC, Prepend, Replace. */
#ifndef ATTN_TOKENIZER_NORMALIZE_H
#define ATTN_TOKENIZER_NORMALIZE_H

#include "engine/model/tokenizer_pattern.h"

typedef struct attn_normalizer attn_normalizer;

/* Reads the "normalizer" of tokenizer.json; null gives one that changes nothing. Owner: the
 * caller, attn_normalizer_free. Errors: FORMAT, NO_MEMORY; NULL then. */
ATTN_MUST_CHECK attn_normalizer *attn_normalizer_read(const attn_reader *reader,
                                                      const attn_json *node);
void attn_normalizer_free(attn_normalizer *normalizer); /* NULL allowed */

/* Whether text stays what it is. */
bool attn_normalizer_is_identity(const attn_normalizer *normalizer);

/* Replaces the text in `buffers[0]`; buffers[1] is scratch. `prepend`: whether Prepend does so.
 * Errors: as attn_pattern_replace. */
ATTN_MUST_CHECK attn_status attn_normalizer_apply(const attn_normalizer *normalizer, bool prepend,
                                                  attn_match *match, attn_text buffers[2],
                                                  attn_error *err);

#endif
