/* tokenizer_added.h: added tokens: found in text as a whole, before anything else is done to it. */
#ifndef ATTN_TOKENIZER_ADDED_H
#define ATTN_TOKENIZER_ADDED_H

#include "engine/model/tokenizer_bpe.h"
#include "engine/model/tokenizer_normalize.h"

typedef struct attn_added_token {
    char *content;
    uint32_t id;
    bool single_word;    /* only where no word character touches it */
    bool lstrip, rstrip; /* takes the white space on that side with it */
    bool normalized;     /* its normalized form is looked for in normalized text */
    bool special;
} attn_added_token;

typedef struct attn_added attn_added;

/* Reads the "added_tokens" of tokenizer.json; NULL or null for none.
 * Owner: the caller, attn_added_free. Errors: FORMAT, NO_MEMORY; NULL then. */
ATTN_MUST_CHECK attn_added *attn_added_read(const attn_reader *reader, const attn_json *list,
                                            const attn_bpe *bpe, const attn_normalizer *normalizer);
void attn_added_free(attn_added *added); /* NULL allowed */

size_t attn_added_count(const attn_added *added);
const attn_added_token *attn_added_at(const attn_added *added, size_t index);

/* Cuts text into stretches without added tokens, which go to `stretch`, and added tokens, which
 * go to `token`, in order. `normalized` says which of the two kinds of added tokens. */
typedef struct attn_added_run {
    const attn_added *added;
    bool normalized;
    attn_match *match;
    attn_status (*stretch)(void *user, const char *text, size_t len, bool first);
    attn_status (*token)(void *user, uint32_t id);
    void *user;
    attn_error *err;
} attn_added_run;

/* `first`: the text stands at the very start. Errors: those of the two functions. */
ATTN_MUST_CHECK attn_status attn_added_split(const attn_added_run *run, const char *text,
                                             size_t len, bool first);

#endif
