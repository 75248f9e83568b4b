/* tokenizer.h: text to token ids and back, as Hugging Face's tokenizer.json describes it.
 *
 * Read: model BPE (byte_fallback, fuse_unk, unk_token, ignore_merges); normalizers NFC, Prepend,
 * Replace, Sequence; pre_tokenizers ByteLevel, Split, Digits, Metaspace, Sequence; decoders
 * ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, Sequence; post_processors ByteLevel,
 * TemplateProcessing, Sequence; added tokens with all their flags. Everything else is refused by
 * name when the file is read. Ids and text are those of the Hugging Face tokenizers library, but
 * for characters newer than the Unicode version that PCRE2 (letters, digits) or utf8proc (NFC)
 * knows: those are split or composed as unassigned ones are.
 *
 * Thread: a tokenizer does not change once read; any number of threads may use it at once. */
#ifndef ATTN_TOKENIZER_H
#define ATTN_TOKENIZER_H

#include "engine/engine.h"
#include "engine/model/tokenizer_text.h"

#define ATTN_TOKEN_NONE UINT32_MAX
/* Every id is below this. */
#define ATTN_TOKENIZER_IDS_MAX (1u << 20)
/* The longest text that is encoded, in bytes. */
#define ATTN_TOKENIZER_TEXT_MAX (4u << 20)

typedef struct attn_tokenizer attn_tokenizer;

/* Token ids that grow as they are appended to. All zero is an empty one. */
typedef struct attn_ids {
    uint32_t *data;
    size_t n, capacity;
} attn_ids;

bool attn_ids_append(attn_ids *ids, uint32_t id); /* false: no memory */
void attn_ids_free(attn_ids *ids);                /* leaves an empty one */

/* Reads the text of a tokenizer.json, which is not needed afterwards. `label` names it in
 * errors. Owner: the caller, attn_tokenizer_close. Errors: FORMAT (one line), NO_MEMORY. */
ATTN_MUST_CHECK attn_tokenizer *attn_tokenizer_parse(const char *json, size_t len,
                                                     const char *label, attn_error *err);
/* The same for a file. Errors: IO, FORMAT, NO_MEMORY. */
ATTN_MUST_CHECK attn_tokenizer *attn_tokenizer_open(const char *path, attn_error *err);
void attn_tokenizer_close(attn_tokenizer *tokenizer); /* NULL allowed */

/* Appends the ids of text[0, len) to *ids. `add_special`: put what the post_processor adds (BOS,
 * EOS) around them. `prefix`: the text begins here, so that a tokenizer that marks the first
 * word with a space does so; false when the text continues another. Owner: *ids stays the
 * caller's. Errors: INVALID (`param` "text": not UTF-8, longer than ATTN_TOKENIZER_TEXT_MAX, a
 * character that the vocabulary lacks, one that the split patterns need too many steps for, or one
 * that grows too much when normalized), NO_MEMORY; *ids then has the ids it had. Cost: n log n in
 * the text; about 50 bytes of scratch a byte of its longest word. */
ATTN_MUST_CHECK attn_status attn_tokenizer_encode(const attn_tokenizer *tokenizer, const char *text,
                                                  size_t len, bool add_special, bool prefix,
                                                  attn_ids *ids, attn_error *err);

/* Largest id + 1. Ids below it may still be without a token. */
size_t attn_tokenizer_size(const attn_tokenizer *tokenizer);
/* A token as the file writes it, or NULL when there is none with that id. */
const char *attn_tokenizer_token(const attn_tokenizer *tokenizer, uint32_t id, size_t *len);
/* The bytes of text that a token stands for inside a text, or NULL. May be a part of a
 * character. */
const char *attn_tokenizer_piece(const attn_tokenizer *tokenizer, uint32_t id, size_t *len);
/* The id of the token that the file writes so, added tokens first, or ATTN_TOKEN_NONE. */
uint32_t attn_tokenizer_find(const attn_tokenizer *tokenizer, const char *token, size_t len);
/* Whether an id is an added token marked special. */
bool attn_tokenizer_is_special(const attn_tokenizer *tokenizer, uint32_t id);

/* Appends the text of ids to *out. Ids without a token stand for nothing. `skip_special` leaves
 * out special tokens. Bytes that are no UTF-8 become U+FFFD as in the Hugging Face library.
 * Errors: NO_MEMORY. */
ATTN_MUST_CHECK attn_status attn_tokenizer_decode(const attn_tokenizer *tokenizer,
                                                  const uint32_t *ids, size_t n, bool skip_special,
                                                  attn_text *out, attn_error *err);

/* Turns ids into text one at a time, whole characters only: what could still become a character
 * is held back. The texts of all calls together are what attn_tokenizer_decode gives, with one
 * exception: when a run of byte tokens turns out not to be UTF-8, characters of that run which
 * were complete before have been given out already. Plain data; copy it to save a state. */
typedef struct attn_detokenizer {
    const attn_tokenizer *tokenizer;
    bool skip_special;
    bool first;      /* no token of the text seen yet */
    bool run_broken; /* the run of byte tokens is no UTF-8 */
    uint8_t n_held;
    char held[4];        /* the begin of a character */
    uint32_t strip_left; /* characters that may still be stripped from the start */
} attn_detokenizer;

/* `at_start`: the first id begins the text, so that its leading space mark may be dropped. */
void attn_detokenizer_init(attn_detokenizer *state, const attn_tokenizer *tokenizer,
                           bool skip_special, bool at_start);
/* Appends what the id completes to *out. Errors: NO_MEMORY. */
ATTN_MUST_CHECK attn_status attn_detokenizer_push(attn_detokenizer *state, uint32_t id,
                                                  attn_text *out, attn_error *err);
/* Most bytes that one push appends. */
size_t attn_detokenizer_most(const attn_tokenizer *tokenizer);
/* Ends the text: what is held back becomes U+FFFD. Errors: NO_MEMORY. */
ATTN_MUST_CHECK attn_status attn_detokenizer_flush(attn_detokenizer *state, attn_text *out,
                                                   attn_error *err);

#endif
