/* tokenizer_pattern.h: what Split and Replace look for: a fixed text, or a regular expression.
 *
 * Expressions are written for Oniguruma, as the Hugging Face library uses it, and run on PCRE2.
 * The part of the language that means the same in both, or can be rewritten so, is accepted;
 * anything else is refused when the file is read. */
#ifndef ATTN_TOKENIZER_PATTERN_H
#define ATTN_TOKENIZER_PATTERN_H

#include "engine/model/tokenizer_read.h"
#include "engine/model/tokenizer_text.h"

typedef struct attn_pattern attn_pattern;

/* Reads {"String": ...} or {"Regex": ...}. Owner: the caller, attn_pattern_free. Errors: FORMAT,
 * NO_MEMORY; NULL then. */
ATTN_MUST_CHECK attn_pattern *attn_pattern_read(const attn_reader *reader, const attn_json *node,
                                                const char *what);
/* From the text itself, not empty, that is looked for. */
ATTN_MUST_CHECK attn_pattern *attn_pattern_literal(const attn_reader *reader, const char *literal,
                                                   const char *what);
/* From the text of a regular expression. */
ATTN_MUST_CHECK attn_pattern *attn_pattern_regex(const attn_reader *reader, const char *regex,
                                                 const char *what);
void attn_pattern_free(attn_pattern *pattern); /* NULL allowed */
bool attn_pattern_is_regex(const attn_pattern *pattern);

/* Room for one match, for one thread at a time. Owner: attn_match_free. NULL: no memory. */
typedef struct pcre2_real_match_data_8 attn_match;
attn_match *attn_match_create(void);
void attn_match_free(attn_match *match);

/* A walk over the matches in a text, from left to right, none overlapping. An empty match right
 * behind another match is none. */
typedef struct attn_matches {
    const attn_pattern *pattern;
    attn_match *match;
    const char *text; /* valid UTF-8 */
    size_t len, from;
    size_t last_end;   /* SIZE_MAX before the first match */
    size_t start, end; /* the match found */
} attn_matches;

void attn_matches_start(attn_matches *walk, const attn_pattern *pattern, attn_match *match,
                        const char *text, size_t len);
/* Finds the next match; *found is false behind the last one. Errors: INVALID (the expression
 * takes too many steps on this text), NO_MEMORY. */
ATTN_MUST_CHECK attn_status attn_matches_next(attn_matches *walk, bool *found, attn_error *err);

/* What a text of `len` bytes may become when all is replaced: more than any sensible file asks for,
 * and little enough that replacing what was put in again and again ends. */
static inline size_t attn_replaced_max(size_t len)
{
    return 16 * len + 256;
}

/* Appends the text to *out with every match replaced. Errors: as attn_matches_next, INVALID also
 * when *out would be longer than `most`. */
ATTN_MUST_CHECK attn_status attn_pattern_replace(const attn_pattern *pattern, attn_match *match,
                                                 const char *text, size_t len, const char *content,
                                                 size_t most, attn_text *out, attn_error *err);

#endif
