#include "engine/model/tokenizer_decode.h"

#include "engine/model/tokenizer_split.h"

#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------------- reading */

static attn_status read_byte_level(const attn_reader *reader, const attn_json *node,
                                   attn_decoder *decoder)
{
    decoder->kind = ATTN_DECODER_BYTE_LEVEL; /* whose options are for encoding */
    return attn_read_keys(reader, node, "decoder ByteLevel",
                          "type add_prefix_space trim_offsets use_regex");
}

static attn_status read_metaspace(const attn_reader *reader, const attn_json *node,
                                  attn_decoder *decoder)
{
    decoder->kind = ATTN_DECODER_METASPACE;
    return attn_metaspace_read(reader, node, "decoder Metaspace", &decoder->space);
}

static attn_status read_replace(const attn_reader *reader, const attn_json *node,
                                attn_decoder *decoder)
{
    static const char what[] = "decoder Replace";
    const char *content;
    attn_status status = attn_read_keys(reader, node, what, "type pattern content");
    if (status == ATTN_OK)
        status = attn_read_string(reader, node, what, "content", &content);
    if (status != ATTN_OK)
        return status;
    if (decoder->n_replaces == ATTN_DECODER_REPLACES)
        return attn_read_fail(reader, "decoder", "has too many steps");
    size_t n = decoder->n_replaces++;
    decoder->replaces[n].pattern = attn_pattern_read(reader, attn_json_get(node, "pattern"), what);
    if (decoder->replaces[n].pattern == NULL)
        return reader->err->status;
    if (attn_pattern_is_regex(decoder->replaces[n].pattern) && strchr(content, '$') != NULL)
        return attn_read_fail(reader, what, "has a $ that is not supported");
    decoder->replaces[n].content = strdup(content);
    return decoder->replaces[n].content == NULL ? attn_read_no_memory(reader) : ATTN_OK;
}

static attn_status read_byte_fallback(const attn_reader *reader, const attn_json *node,
                                      attn_decoder *decoder)
{
    decoder->byte_fallback = true;
    return attn_read_keys(reader, node, "decoder ByteFallback", "type");
}

static attn_status read_fuse(const attn_reader *reader, const attn_json *node,
                             attn_decoder *decoder)
{
    (void)decoder;
    return attn_read_keys(reader, node, "decoder Fuse", "type");
}

static attn_status read_strip(const attn_reader *reader, const attn_json *node,
                              attn_decoder *decoder)
{
    static const char what[] = "decoder Strip";
    const char *content;
    uint64_t start, stop;
    size_t len;
    attn_status status = attn_read_keys(reader, node, what, "type content start stop");
    if (status == ATTN_OK)
        status = attn_read_string(reader, node, what, "content", &content);
    if (status != ATTN_OK)
        return status;
    if (*content == '\0' ||
        (decoder->strip_char = attn_utf8_decode(content, &len), content[len] != '\0'))
        return attn_read_fail(reader, what, "has a content that is not one character");
    if (!attn_json_u64(attn_json_get(node, "start"), &start) || start > UINT16_MAX ||
        !attn_json_u64(attn_json_get(node, "stop"), &stop) || stop != 0)
        return attn_read_fail(reader, what, "has a start or stop that is not supported");
    decoder->strip_count = (uint32_t)start;
    return ATTN_OK;
}

/* Steps in the one order that makes sense, so that all but Strip can be done token by token:
 * Replace..., ByteFallback, Fuse, Strip. */
static attn_status read_steps(const attn_reader *reader, const attn_json *list,
                              attn_decoder *decoder)
{
    static const struct {
        const char *type;
        attn_status (*read)(const attn_reader *, const attn_json *, attn_decoder *);
        bool repeats;
    } kinds[] = {
        {"Replace", read_replace, true},
        {"ByteFallback", read_byte_fallback, false},
        {"Fuse", read_fuse, false},
        {"Strip", read_strip, false},
    };
    enum { N_KINDS = sizeof kinds / sizeof kinds[0], FUSE = 2, STRIP = 3 };
    size_t next = 0;
    bool fused = false;
    for (const attn_json *each = attn_json_first(list); each; each = attn_json_next(each)) {
        const char *type;
        attn_status status = attn_read_string(reader, each, "decoder", "type", &type);
        if (status != ATTN_OK)
            return status;
        size_t i = next;
        while (i < N_KINDS && strcmp(kinds[i].type, type) != 0)
            i++;
        if (i == N_KINDS || (i == STRIP && !fused))
            return attn_read_fail_name(reader, "decoder", type,
                                       "is not supported, or not in its place of a Sequence");
        next = kinds[i].repeats ? i : i + 1;
        fused |= i == FUSE;
        status = kinds[i].read(reader, each, decoder);
        if (status != ATTN_OK)
            return status;
    }
    return ATTN_OK;
}

attn_status attn_decoder_read(const attn_reader *reader, const attn_json *node,
                              attn_decoder *decoder)
{
    const char *type;
    *decoder = (attn_decoder){.kind = ATTN_DECODER_STEPS};
    attn_status status = attn_read_string(reader, node, "decoder", "type", &type);
    if (status != ATTN_OK)
        return status;
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(reader, node, decoder);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(reader, node, decoder);
    if (strcmp(type, "Sequence") != 0)
        return attn_read_fail_name(reader, "decoder", type, "is not supported");
    status = attn_read_keys(reader, node, "decoder Sequence", "type decoders");
    if (status == ATTN_OK && !attn_json_is_array(attn_json_get(node, "decoders")))
        status = attn_read_fail(reader, "decoder Sequence", "has no list");
    return status == ATTN_OK ? read_steps(reader, attn_json_get(node, "decoders"), decoder)
                             : status;
}

void attn_decoder_free(attn_decoder *decoder)
{
    for (size_t i = 0; i < decoder->n_replaces; i++) {
        attn_pattern_free(decoder->replaces[i].pattern);
        free(decoder->replaces[i].content);
    }
    decoder->n_replaces = 0;
}

/* --------------------------------------------------------------------------------------- pieces */

/* A token with a character that stands for no byte is taken as it is. */
static attn_status byte_level_piece(const char *token, size_t len, attn_text *out, attn_error *err)
{
    size_t before = out->len, used;
    for (size_t i = 0; i < len; i += used) {
        int byte = attn_byte_level_byte(attn_utf8_decode(token + i, &used));
        char as_char = (char)byte;
        if (byte < 0) {
            out->len = before;
            return attn_text_append(out, token, len) ? ATTN_OK : attn_no_memory(err);
        }
        if (!attn_text_append(out, &as_char, 1))
            return attn_no_memory(err);
    }
    return ATTN_OK;
}

static attn_status metaspace_piece(const attn_metaspace *space, const char *token, size_t len,
                                   attn_text *out, attn_error *err)
{
    for (size_t i = 0, used; i < len; i += used) {
        attn_utf8_decode(token + i, &used);
        bool is_mark = used == space->mark_len && memcmp(token + i, space->mark, used) == 0;
        if (!attn_text_append(out, is_mark ? " " : token + i, is_mark ? 1 : used))
            return attn_no_memory(err);
    }
    return ATTN_OK;
}

static int hex_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static attn_status steps_piece(const attn_decoder *decoder, attn_match *match, const char *token,
                               size_t len, attn_text *out, bool *is_byte, attn_error *err)
{
    attn_text buffers[2] = {{0}, {0}};
    attn_status status = attn_text_append(&buffers[0], token, len) ? ATTN_OK : attn_no_memory(err);
    for (size_t i = 0; status == ATTN_OK && i < decoder->n_replaces; i++) {
        attn_text from = buffers[0];
        buffers[1].len = 0;
        status = attn_pattern_replace(decoder->replaces[i].pattern, match, from.data, from.len,
                                      decoder->replaces[i].content, attn_replaced_max(len),
                                      &buffers[1], err);
        buffers[0] = buffers[1];
        buffers[1] = from;
    }
    const char *piece = buffers[0].data;
    size_t n = buffers[0].len;
    if (status == ATTN_OK && decoder->byte_fallback && n == 6 && memcmp(piece, "<0x", 3) == 0 &&
        hex_value(piece[3]) >= 0 && hex_value(piece[4]) >= 0 && piece[5] == '>') {
        char byte = (char)(hex_value(piece[3]) << 4 | hex_value(piece[4]));
        *is_byte = true;
        status = attn_text_append(out, &byte, 1) ? ATTN_OK : attn_no_memory(err);
    } else if (status == ATTN_OK) {
        status = attn_text_append(out, piece, n) ? ATTN_OK : attn_no_memory(err);
    }
    attn_text_free(&buffers[0]);
    attn_text_free(&buffers[1]);
    return status;
}

attn_status attn_decoder_piece(const attn_decoder *decoder, attn_match *match, const char *token,
                               size_t len, attn_text *out, bool *is_byte, attn_error *err)
{
    *is_byte = false;
    switch (decoder->kind) {
    case ATTN_DECODER_BYTE_LEVEL:
        return byte_level_piece(token, len, out, err);
    case ATTN_DECODER_METASPACE:
        return metaspace_piece(&decoder->space, token, len, out, err);
    case ATTN_DECODER_STEPS:
        break;
    }
    return steps_piece(decoder, match, token, len, out, is_byte, err);
}
