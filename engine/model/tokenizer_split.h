/* tokenizer_split.h: cuts text into the words that BPE works on ("pre_tokenizer"). */
#ifndef ATTN_TOKENIZER_SPLIT_H
#define ATTN_TOKENIZER_SPLIT_H

#include "engine/model/tokenizer_pattern.h"

#define ATTN_SPLIT_STEPS 16

typedef struct attn_splitter attn_splitter;

/* Reads the "pre_tokenizer" of tokenizer.json; null gives one that cuts nothing. Owner: the
 * caller, attn_splitter_free. Errors: FORMAT, NO_MEMORY; NULL then. */
ATTN_MUST_CHECK attn_splitter *attn_splitter_read(const attn_reader *reader, const attn_json *node);
void attn_splitter_free(attn_splitter *splitter); /* NULL allowed */

/* One text being cut. Zero it, then fill the first block. */
typedef struct attn_split_run {
    const attn_splitter *splitter;
    attn_match *match;
    bool prefix; /* whether what stands at the start of the text gets its space
                  mark */
    attn_status (*word)(void *user, const char *word, size_t len, attn_error *err);
    void *user;
    attn_error *err;

    attn_text scratch[ATTN_SPLIT_STEPS][2]; /* rewritten text, two at each step */
} attn_split_run;

void attn_split_run_free(attn_split_run *run); /* its scratch */

/* Calls `word` with every word of `text`, in order. `first`: the text stands at the very start.
 * Errors: as attn_matches_next, and what `word` returns. */
ATTN_MUST_CHECK attn_status attn_split(attn_split_run *run, const char *text, size_t len,
                                       bool first);

/* The 256 characters that stand for bytes in byte-level tokens: the code point for a byte, and
 * the byte for a code point or -1. Source: GPT-2's bytes_to_unicode. */
uint32_t attn_byte_level_char(uint8_t byte);
int attn_byte_level_byte(uint32_t code_point);

#endif
