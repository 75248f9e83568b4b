/* tokenizer_decode.h: what the "decoder" of tokenizer.json makes of tokens. */
#ifndef ATTN_TOKENIZER_DECODE_H
#define ATTN_TOKENIZER_DECODE_H

#include "engine/model/tokenizer_added.h"

typedef enum attn_decoder_kind {
    ATTN_DECODER_BYTE_LEVEL, /* characters that stand for bytes */
    ATTN_DECODER_METASPACE,
    ATTN_DECODER_STEPS /* Replace, ByteFallback, Fuse, Strip */
} attn_decoder_kind;

#define ATTN_DECODER_REPLACES 8

typedef struct attn_decoder {
    attn_decoder_kind kind;
    attn_metaspace space;             /* METASPACE */
    bool byte_fallback;               /* STEPS: tokens <0x00> ... are bytes */
    uint32_t strip_char, strip_count; /* STEPS: so many of these at the start of the text go */
    struct {
        attn_pattern *pattern;
        char *content;
    } replaces[ATTN_DECODER_REPLACES]; /* STEPS */
    size_t n_replaces;
} attn_decoder;

/* Reads the decoder, which must be there. Errors: FORMAT, NO_MEMORY; free it all the same. */
ATTN_MUST_CHECK attn_status attn_decoder_read(const attn_reader *reader, const attn_json *node,
                                              attn_decoder *decoder);
void attn_decoder_free(attn_decoder *decoder);

/* Appends what a token stands for inside a text. *is_byte: it is one byte of a ByteFallback run.
 * Errors: INVALID, NO_MEMORY. */
ATTN_MUST_CHECK attn_status attn_decoder_piece(const attn_decoder *decoder, attn_match *match,
                                               const char *token, size_t len, attn_text *out,
                                               bool *is_byte, attn_error *err);

/* For the detokenizer: the decoder of a tokenizer, the length of its longest token or piece, and
 * whether a token is a byte of a run. */
const attn_decoder *attn_tokenizer_decoder(const attn_tokenizer *tokenizer);
size_t attn_tokenizer_longest(const attn_tokenizer *tokenizer);
bool attn_tokenizer_is_byte(const attn_tokenizer *tokenizer, uint32_t id);

#endif
