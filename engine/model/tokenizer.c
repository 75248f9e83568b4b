/* A text goes: added tokens out -> normalized -> normalized added tokens out -> split into words
 * -> BPE. Each stage hands its pieces to the next as it finds them. */
#include "engine/model/tokenizer.h"

#include "engine/base/file.h"
#include "engine/model/tokenizer_decode.h"
#include "engine/model/tokenizer_split.h"

#include <stdlib.h>
#include <string.h>

#define FILE_MAX ((size_t)256 << 20)
#define TEMPLATE_IDS 16

typedef struct token_info {
    const char *token; /* NULL: no token has this id */
    uint32_t token_len, piece_len;
    size_t piece_at; /* in `pieces` */
    bool special, is_byte;
} token_info;

struct attn_tokenizer {
    attn_bpe *bpe;
    attn_normalizer *normalizer;
    attn_splitter *splitter;
    attn_added *added;
    attn_decoder decoder;
    uint32_t before[TEMPLATE_IDS], after[TEMPLATE_IDS]; /* what add_special puts around a text */
    size_t n_before, n_after;
    token_info *tokens;
    size_t n_tokens, longest; /* longest: of the tokens and pieces */
    attn_text pieces;
};

bool attn_ids_append(attn_ids *ids, uint32_t id)
{
    void *data = ids->data;
    if (!attn_grow(&data, &ids->capacity, ids->n + 1, sizeof *ids->data))
        return false;
    ids->data = data;
    ids->data[ids->n++] = id;
    return true;
}

void attn_ids_free(attn_ids *ids)
{
    free(ids->data);
    *ids = (attn_ids){0};
}

/* ------------------------------------------------------------------------------- post_processor */

/* Appends the ids of one special token of a template. */
static attn_status read_template_token(const attn_reader *reader, const attn_json *specials,
                                       const attn_json *node, uint32_t *ids, size_t *n)
{
    static const char what[] = "post_processor TemplateProcessing";
    const char *name = attn_json_string(attn_json_get(node, "id"));
    const attn_json *list =
        name == NULL ? NULL : attn_json_get(attn_json_get(specials, name), "ids");
    if (!attn_json_is_array(list))
        return attn_read_fail(reader, what, "uses a special token that it does not define");
    for (const attn_json *each = attn_json_first(list); each; each = attn_json_next(each)) {
        if (*n == TEMPLATE_IDS)
            return attn_read_fail(reader, what, "has too many tokens");
        attn_status status = attn_read_id(reader, each, name, &ids[(*n)++]);
        if (status != ATTN_OK)
            return status;
    }
    return ATTN_OK;
}

static attn_status read_template(const attn_reader *reader, const attn_json *node,
                                 attn_tokenizer *tokenizer)
{
    static const char what[] = "post_processor TemplateProcessing";
    const attn_json *single = attn_json_get(node, "single"),
                    *specials = attn_json_get(node, "special_tokens");
    bool text_seen = false;
    /* "pair" joins two texts, which is never asked for. */
    attn_status status = attn_read_keys(reader, node, what, "type single pair special_tokens");
    if (status == ATTN_OK && (!attn_json_is_array(single) || !attn_json_is_object(specials)))
        status = attn_read_fail(reader, what, "has no single or no special_tokens");
    for (const attn_json *each = attn_json_first(single); status == ATTN_OK && each != NULL;
         each = attn_json_next(each)) {
        const attn_json *text = attn_json_get(each, "Sequence");
        const char *name = attn_json_string(attn_json_get(text, "id"));
        if (text == NULL) {
            status = read_template_token(reader, specials, attn_json_get(each, "SpecialToken"),
                                         text_seen ? tokenizer->after : tokenizer->before,
                                         text_seen ? &tokenizer->n_after : &tokenizer->n_before);
        } else if (text_seen || name == NULL || strcmp(name, "A") != 0) {
            return attn_read_fail(reader, what, "has a single that is not one text");
        } else {
            text_seen = true;
        }
    }
    if (status == ATTN_OK && !text_seen)
        status = attn_read_fail(reader, what, "has a single without the text");
    return status;
}

static attn_status read_processor(const attn_reader *reader, const attn_json *node,
                                  attn_tokenizer *tokenizer, bool *has_template)
{
    const char *type;
    attn_status status = attn_read_string(reader, node, "post_processor", "type", &type);
    if (status != ATTN_OK)
        return status;
    if (strcmp(type, "ByteLevel") == 0) /* changes offsets, not ids */
        return attn_read_keys(reader, node, "post_processor ByteLevel",
                              "type add_prefix_space trim_offsets use_regex");
    if (strcmp(type, "TemplateProcessing") != 0)
        return attn_read_fail_name(reader, "post_processor", type, "is not supported");
    if (*has_template)
        return attn_read_fail(reader, "post_processor", "has more than one TemplateProcessing");
    *has_template = true;
    return read_template(reader, node, tokenizer);
}

static attn_status read_processors(const attn_reader *reader, const attn_json *node,
                                   attn_tokenizer *tokenizer)
{
    const char *type = attn_json_string(attn_json_get(node, "type"));
    bool has_template = false;
    if (node == NULL || attn_json_is_null(node))
        return ATTN_OK;
    if (type == NULL || strcmp(type, "Sequence") != 0)
        return read_processor(reader, node, tokenizer, &has_template);
    const attn_json *list = attn_json_get(node, "processors");
    attn_status status = attn_read_keys(reader, node, "post_processor Sequence", "type processors");
    if (status == ATTN_OK && !attn_json_is_array(list))
        status = attn_read_fail(reader, "post_processor Sequence", "has no list");
    for (const attn_json *each = attn_json_first(list); status == ATTN_OK && each != NULL;
         each = attn_json_next(each))
        status = read_processor(reader, each, tokenizer, &has_template);
    return status;
}

/* -------------------------------------------------------------------------------------- reading */

static attn_status fill_piece(attn_tokenizer *tokenizer, attn_match *match, token_info *info,
                              attn_error *err)
{
    info->piece_at = tokenizer->pieces.len;
    attn_status status =
        attn_decoder_piece(&tokenizer->decoder, match, info->token, info->token_len,
                           &tokenizer->pieces, &info->is_byte, err);
    size_t len = tokenizer->pieces.len - info->piece_at;
    if (status == ATTN_OK && len > UINT32_MAX)
        status = attn_no_memory(err);
    info->piece_len = (uint32_t)len;
    return status;
}

/* Lists every token by id, with the text it stands for. */
static attn_status fill_tokens(const attn_reader *reader, attn_tokenizer *tokenizer)
{
    tokenizer->n_tokens = attn_bpe_size(tokenizer->bpe);
    for (size_t i = 0; i < attn_added_count(tokenizer->added); i++) {
        size_t end = attn_added_at(tokenizer->added, i)->id + (size_t)1;
        tokenizer->n_tokens = end > tokenizer->n_tokens ? end : tokenizer->n_tokens;
    }
    tokenizer->tokens = attn_alloc(tokenizer->n_tokens, sizeof *tokenizer->tokens);
    attn_match *match = attn_match_create();
    attn_status status =
        tokenizer->tokens == NULL || match == NULL ? attn_read_no_memory(reader) : ATTN_OK;
    for (uint32_t id = 0; status == ATTN_OK && id < attn_bpe_size(tokenizer->bpe); id++) {
        size_t len = 0;
        tokenizer->tokens[id].token = attn_bpe_token(tokenizer->bpe, id, &len);
        tokenizer->tokens[id].token_len = (uint32_t)len;
    }
    for (size_t i = 0; status == ATTN_OK && i < attn_added_count(tokenizer->added); i++) {
        const attn_added_token *added = attn_added_at(tokenizer->added, i);
        tokenizer->tokens[added->id] = (token_info){.token = added->content,
                                                    .token_len = (uint32_t)strlen(added->content),
                                                    .special = added->special};
    }
    for (size_t id = 0; status == ATTN_OK && id < tokenizer->n_tokens; id++) {
        token_info *info = &tokenizer->tokens[id];
        if (info->token != NULL)
            status = fill_piece(tokenizer, match, info, reader->err);
        size_t len = info->token_len > info->piece_len ? info->token_len : info->piece_len;
        tokenizer->longest = len > tokenizer->longest ? len : tokenizer->longest;
    }
    attn_match_free(match);
    return status;
}

static attn_status check_top(const attn_reader *reader, const attn_json *root)
{
    static const char *const refused[] = {"truncation", "padding"};
    const char *version = attn_json_string(attn_json_get(root, "version"));
    attn_status status = attn_read_keys(reader, root, "the file",
                                        "version truncation padding added_tokens normalizer "
                                        "pre_tokenizer post_processor decoder model");
    if (status == ATTN_OK && attn_json_get(root, "version") != NULL &&
        (version == NULL || strcmp(version, "1.0") != 0))
        status = attn_read_fail(reader, "version", "is not 1.0");
    for (size_t i = 0; status == ATTN_OK && i < sizeof refused / sizeof refused[0]; i++) {
        const attn_json *node = attn_json_get(root, refused[i]);
        if (node != NULL && !attn_json_is_null(node))
            status = attn_read_fail(reader, refused[i], "is not supported");
    }
    return status;
}

static attn_status read_all(const attn_reader *reader, const attn_json *root,
                            attn_tokenizer *tokenizer)
{
    attn_status status = check_top(reader, root);
    if (status != ATTN_OK)
        return status;
    /* A constructor that gives NULL has filled the error. */
    if ((tokenizer->bpe = attn_bpe_read(reader, attn_json_get(root, "model"))) == NULL ||
        (tokenizer->normalizer = attn_normalizer_read(reader, attn_json_get(root, "normalizer"))) ==
            NULL ||
        (tokenizer->splitter = attn_splitter_read(reader, attn_json_get(root, "pre_tokenizer"))) ==
            NULL ||
        (tokenizer->added = attn_added_read(reader, attn_json_get(root, "added_tokens"),
                                            tokenizer->bpe, tokenizer->normalizer)) == NULL)
        return reader->err->status;
    status = read_processors(reader, attn_json_get(root, "post_processor"), tokenizer);
    if (status == ATTN_OK)
        status = attn_decoder_read(reader, attn_json_get(root, "decoder"), &tokenizer->decoder);
    return status == ATTN_OK ? fill_tokens(reader, tokenizer) : status;
}

attn_tokenizer *attn_tokenizer_parse(const char *json, size_t len, const char *label,
                                     attn_error *err)
{
    attn_error unwanted;
    attn_reader reader = {.label = label, .err = err == NULL ? &unwanted : err};
    attn_tokenizer *tokenizer = attn_alloc(1, sizeof *tokenizer);
    attn_json *root = NULL;
    attn_status status;
    if (tokenizer == NULL)
        status = attn_read_no_memory(&reader);
    else if (!attn_utf8_valid(json, len))
        status = attn_read_fail(&reader, "the file", "is not UTF-8");
    else
        status = attn_json_parse(json, len, label, &root, reader.err);
    if (status == ATTN_OK)
        status = read_all(&reader, root, tokenizer);
    attn_json_free(root);
    if (status == ATTN_E_INVALID) /* the text at fault is one of the file's tokens */
        status = attn_read_fail(&reader, "a token", "is more than the patterns can work on");
    if (status != ATTN_OK) {
        attn_tokenizer_close(tokenizer);
        tokenizer = NULL;
    }
    return tokenizer;
}

attn_tokenizer *attn_tokenizer_open(const char *path, attn_error *err)
{
    char *text;
    size_t len;
    if (attn_read_file(path, FILE_MAX, &text, &len, err) != ATTN_OK)
        return NULL;
    attn_tokenizer *tokenizer = attn_tokenizer_parse(text, len, path, err);
    attn_free(text);
    return tokenizer;
}

void attn_tokenizer_close(attn_tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    attn_added_free(tokenizer->added);
    attn_splitter_free(tokenizer->splitter);
    attn_normalizer_free(tokenizer->normalizer);
    attn_bpe_free(tokenizer->bpe);
    attn_decoder_free(&tokenizer->decoder);
    attn_free(tokenizer->tokens);
    attn_text_free(&tokenizer->pieces);
    attn_free(tokenizer);
}

/* --------------------------------------------------------------------------------------- lookup */

size_t attn_tokenizer_size(const attn_tokenizer *tokenizer)
{
    return tokenizer->n_tokens;
}

static const token_info *find_info(const attn_tokenizer *tokenizer, uint32_t id)
{
    static const token_info none;
    return id < tokenizer->n_tokens ? &tokenizer->tokens[id] : &none;
}

const char *attn_tokenizer_token(const attn_tokenizer *tokenizer, uint32_t id, size_t *len)
{
    const token_info *info = find_info(tokenizer, id);
    *len = info->token_len;
    return info->token;
}

const char *attn_tokenizer_piece(const attn_tokenizer *tokenizer, uint32_t id, size_t *len)
{
    const token_info *info = find_info(tokenizer, id);
    *len = info->piece_len;
    if (info->token == NULL)
        return NULL;
    return info->piece_len == 0 ? "" : tokenizer->pieces.data + info->piece_at;
}

uint32_t attn_tokenizer_find(const attn_tokenizer *tokenizer, const char *token, size_t len)
{
    for (size_t i = 0; i < attn_added_count(tokenizer->added); i++) {
        const attn_added_token *added = attn_added_at(tokenizer->added, i);
        if (strlen(added->content) == len && memcmp(added->content, token, len) == 0)
            return added->id;
    }
    return attn_bpe_find(tokenizer->bpe, token, len);
}

bool attn_tokenizer_is_special(const attn_tokenizer *tokenizer, uint32_t id)
{
    return find_info(tokenizer, id)->special;
}

bool attn_tokenizer_is_byte(const attn_tokenizer *tokenizer, uint32_t id)
{
    return find_info(tokenizer, id)->is_byte;
}

const attn_decoder *attn_tokenizer_decoder(const attn_tokenizer *tokenizer)
{
    return &tokenizer->decoder;
}

size_t attn_tokenizer_longest(const attn_tokenizer *tokenizer)
{
    return tokenizer->longest;
}

/* ------------------------------------------------------------------------------------- encoding */

typedef struct encoder {
    const attn_tokenizer *tokenizer;
    attn_ids *ids;
    attn_error *err;
    bool prefix;
    attn_match *match;
    attn_text normal[2];
    attn_split_run split;
    attn_bpe_scratch bpe;
} encoder;

static attn_status take_token(void *user, uint32_t id)
{
    encoder *e = user;
    return attn_ids_append(e->ids, id) ? ATTN_OK : attn_no_memory(e->err);
}

static attn_status take_word(void *user, const char *word, size_t len, attn_error *err)
{
    encoder *e = user;
    return attn_bpe_encode(e->tokenizer->bpe, &e->bpe, word, len, e->ids, err);
}

static attn_status take_normalized(void *user, const char *text, size_t len, bool first)
{
    encoder *e = user;
    return attn_split(&e->split, text, len, first);
}

static attn_added_run added_run(encoder *e, bool normalized)
{
    return (attn_added_run){
        .added = e->tokenizer->added,
        .normalized = normalized,
        .match = e->match,
        .token = take_token,
        .user = e,
        .err = e->err,
    };
}

static attn_status take_raw(void *user, const char *text, size_t len, bool first)
{
    encoder *e = user;
    attn_added_run run = added_run(e, true);
    run.stretch = take_normalized;
    if (!attn_normalizer_is_identity(e->tokenizer->normalizer)) {
        e->normal[0].len = 0;
        if (!attn_text_append(&e->normal[0], text, len))
            return attn_no_memory(e->err);
        attn_status status = attn_normalizer_apply(e->tokenizer->normalizer, !first || e->prefix,
                                                   e->match, e->normal, e->err);
        if (status != ATTN_OK)
            return status;
        text = e->normal[0].data;
        len = e->normal[0].len;
    }
    return attn_added_split(&run, text, len, first);
}

static attn_status encode_text(encoder *e, const char *text, size_t len)
{
    e->match = attn_match_create();
    if (e->match == NULL)
        return attn_no_memory(e->err);
    e->split = (attn_split_run){
        .splitter = e->tokenizer->splitter,
        .match = e->match,
        .prefix = e->prefix,
        .word = take_word,
        .user = e,
        .err = e->err,
    };
    attn_added_run run = added_run(e, false);
    run.stretch = take_raw;
    attn_status status = attn_added_split(&run, text, len, true);
    attn_split_run_free(&e->split);
    attn_bpe_scratch_free(&e->bpe);
    attn_text_free(&e->normal[0]);
    attn_text_free(&e->normal[1]);
    attn_match_free(e->match);
    return status;
}

static attn_status append_all(encoder *e, const uint32_t *ids, size_t n)
{
    attn_status status = ATTN_OK;
    for (size_t i = 0; status == ATTN_OK && i < n; i++)
        status = take_token(e, ids[i]);
    return status;
}

attn_status attn_tokenizer_encode(const attn_tokenizer *tokenizer, const char *text, size_t len,
                                  bool add_special, bool prefix, attn_ids *ids, attn_error *err)
{
    encoder e = {.tokenizer = tokenizer, .ids = ids, .err = err, .prefix = prefix};
    size_t before = ids->n;
    attn_status status = ATTN_OK;
    if (len > ATTN_TOKENIZER_TEXT_MAX)
        return attn_fail(err, ATTN_E_INVALID, "text", "the text is longer than %u bytes",
                         ATTN_TOKENIZER_TEXT_MAX);
    if (!attn_utf8_valid(text, len))
        return attn_fail(err, ATTN_E_INVALID, "text", "the text is not UTF-8");
    if (add_special)
        status = append_all(&e, tokenizer->before, tokenizer->n_before);
    if (status == ATTN_OK)
        status = encode_text(&e, text, len);
    if (status == ATTN_OK && add_special)
        status = append_all(&e, tokenizer->after, tokenizer->n_after);
    if (status != ATTN_OK)
        ids->n = before;
    return status;
}
