/* tokenizer_bpe.h: a vocabulary, and the byte pair encoding of one word with it. */
#ifndef ATTN_TOKENIZER_BPE_H
#define ATTN_TOKENIZER_BPE_H

#include "engine/model/tokenizer.h"
#include "engine/model/tokenizer_read.h"

typedef struct attn_bpe attn_bpe;

/* Reads the "model" of tokenizer.json. Owner: the caller, attn_bpe_free.
 * Errors: FORMAT, NO_MEMORY; NULL then. */
ATTN_MUST_CHECK attn_bpe *attn_bpe_read(const attn_reader *reader, const attn_json *node);
void attn_bpe_free(attn_bpe *bpe); /* NULL allowed */

/* Largest id + 1, the token of an id (NULL: none), the id of a token (ATTN_TOKEN_NONE: none). */
size_t attn_bpe_size(const attn_bpe *bpe);
const char *attn_bpe_token(const attn_bpe *bpe, uint32_t id, size_t *len);
uint32_t attn_bpe_find(const attn_bpe *bpe, const char *token, size_t len);

/* Room for the words of one thread. All zero is an empty one. */
typedef struct attn_bpe_scratch {
    struct attn_bpe_symbol *symbols;
    struct attn_bpe_merge *heap;
    size_t symbols_capacity, heap_capacity;
} attn_bpe_scratch;

void attn_bpe_scratch_free(attn_bpe_scratch *scratch);

/* Appends the ids of a word, which is valid UTF-8.
 * Errors: INVALID (longer than 8 * ATTN_TOKENIZER_TEXT_MAX; a character that the vocabulary
 * lacks where it names an unk_token that it lacks too), NO_MEMORY. Cost: n log n. */
ATTN_MUST_CHECK attn_status attn_bpe_encode(const attn_bpe *bpe, attn_bpe_scratch *scratch,
                                            const char *word, size_t len, attn_ids *ids,
                                            attn_error *err);

#endif
