/* run_text.h: the text of a decode, token by token, and the stop texts that end it.
 *
 * Text comes out in complete characters. What may be the beginning of a stop text is held back
 * until it is known not to be; what is still held at the run's end is owed to the client then. */
#ifndef ATTN_RUN_TEXT_H
#define ATTN_RUN_TEXT_H

#include "engine/model/tokenizer.h"

#define ATTN_STOP_BYTES_MAX 1024
/* Tokens before a run that may hold the beginning of its first character. */
#define ATTN_TEXT_CONTEXT 8

typedef struct attn_run_text attn_run_text;

/* Copies the stop texts. `at_start`: the first token it is given begins the session. NULL when out
 * of memory. */
attn_run_text *attn_run_text_create(const attn_tokenizer *tokenizer, bool at_start,
                                    const char *const *stop, size_t n_stop);
void attn_run_text_destroy(attn_run_text *text); /* NULL allowed */

/* Feeds a token that stands before the run. */
void attn_run_text_prime(attn_run_text *text, uint32_t token);
/* Whether the token would complete a stop text. If so, what precedes that becomes the rest. */
bool attn_run_text_stops(attn_run_text *text, uint32_t token);
/* Appends a token; *out [*len], valid until the next call, is what can be sent. `last`: of the run,
 * so nothing is held back for a stop text. */
void attn_run_text_take(attn_run_text *text, uint32_t token, bool last, const char **out,
                        size_t *len);
/* What is held back. */
void attn_run_text_rest(const attn_run_text *text, const char **out, size_t *len);

/* Whether the token's text depends on what stands before it: it is a byte of a run of bytes, which
 * is UTF-8 as a whole or not at all, or has no text. */
bool attn_token_continues(const attn_tokenizer *tokenizer, uint32_t token);

/* One token's own text, NUL-terminated and cut to `size`; bytes that are no character become
 * U+FFFD. `tokenizer` NULL: empty. */
void attn_token_text(const attn_tokenizer *tokenizer, uint32_t token, char *out, size_t size);

#endif
