/* A tokenizer.json and, behind a byte 0xff, a text for it: refused in one line, or a tokenizer that
 * encodes and decodes whatever it is given. */
#include "tests/fuzz/fuzz.h"

#include "engine/model/tokenizer.h"
#include "engine/model/tokenizer_decode.h"

#define TEXT_MAX 256
#define IDS_LOOKED_AT 512

static void check_token(const attn_tokenizer *tokenizer, uint32_t id)
{
    size_t len, piece_len;
    const char *token = attn_tokenizer_token(tokenizer, id, &len);
    const char *piece = attn_tokenizer_piece(tokenizer, id, &piece_len);
    ATTN_ASSERT((token == NULL) == (piece == NULL));
    if (token == NULL)
        return;
    ATTN_ASSERT(attn_utf8_valid(token, len));
    ATTN_ASSERT(attn_tokenizer_find(tokenizer, token, len) == id);
    ATTN_ASSERT(!attn_tokenizer_is_byte(tokenizer, id) || piece_len == 1);
}

/* Decoding at once gives UTF-8, and one by one the same but for broken runs of byte tokens. */
static void check_decode(const attn_tokenizer *tokenizer, const attn_ids *ids, bool skip_special)
{
    attn_error err = {0};
    attn_text whole = {0}, parts = {0};
    attn_detokenizer state;
    bool has_bytes = false;
    attn_detokenizer_init(&state, tokenizer, skip_special, true);
    attn_status status =
        attn_tokenizer_decode(tokenizer, ids->data, ids->n, skip_special, &whole, &err);
    ATTN_ASSERT(status == ATTN_OK);
    for (size_t i = 0; i < ids->n; i++) {
        size_t before = parts.len;
        has_bytes |= attn_tokenizer_is_byte(tokenizer, ids->data[i]);
        status = attn_detokenizer_push(&state, ids->data[i], &parts, &err);
        ATTN_ASSERT(status == ATTN_OK);
        ATTN_ASSERT(parts.len == before ||
                    attn_utf8_valid(parts.data + before, parts.len - before));
    }
    status = attn_detokenizer_flush(&state, &parts, &err);
    ATTN_ASSERT(status == ATTN_OK);
    ATTN_ASSERT(attn_utf8_valid(whole.data, whole.len));
    bool same = whole.len == parts.len &&
                (whole.len == 0 || memcmp(whole.data, parts.data, whole.len) == 0);
    ATTN_ASSERT(same || has_bytes);
    attn_text_free(&whole);
    attn_text_free(&parts);
}

static void check_text(const attn_tokenizer *tokenizer, const char *text, size_t len)
{
    for (int how = 0; how < 4; how++) {
        attn_error err = {0};
        attn_ids ids = {0};
        bool begins = how & 1, skip_special = how & 2;
        if (attn_tokenizer_encode(tokenizer, text, len, begins, begins, &ids, &err) != ATTN_OK) {
            fuzz_check_error(&err);
            ATTN_ASSERT(err.status == ATTN_E_INVALID && ids.n == 0);
        }
        for (size_t i = 0; i < ids.n; i++)
            ATTN_ASSERT(ids.data[i] < ATTN_TOKENIZER_IDS_MAX);
        check_decode(tokenizer, &ids, skip_special);
        attn_ids_free(&ids);
    }
}

static void check_tokenizer(const attn_tokenizer *tokenizer, const char *text, size_t len)
{
    static const char *const texts[] = {
        "",
        " ",
        "Hello,  world!\n\nIt's 1234 \xc3\xa9t\xc3\xa9s.\t",
        "e\xcc\x81\xcc\xa7 \xf0\x9f\x98\x80\xe2\x96\x81<s>\xea\xb0\x80\xe1\x84\x80\xe1\x85\xa1 "
        "</s>",
    };
    size_t n = attn_tokenizer_size(tokenizer);
    for (size_t id = 0; id < n && id < IDS_LOOKED_AT; id++)
        check_token(tokenizer, (uint32_t)id);
    check_token(tokenizer, (uint32_t)n - 1);
    check_token(tokenizer, (uint32_t)n);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        check_text(tokenizer, texts[i], strlen(texts[i]));
    check_text(tokenizer, text, len);

    attn_ids ids = {0};
    for (size_t i = 0; i < len; i++) {
        bool ok = attn_ids_append(&ids, (unsigned char)text[i]);
        ATTN_ASSERT(ok);
    }
    check_decode(tokenizer, &ids, false);
    attn_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *json = (const char *)data, *end = json + size;
    const char *mark = size > 0 ? memchr(json, 0xff, size) : NULL;
    const char *text = mark == NULL ? end : mark + 1;
    attn_error err = {0};
    size_t len = (size_t)(end - text);
    attn_tokenizer *tokenizer = attn_tokenizer_parse(
        json, (size_t)((mark == NULL ? end : mark) - json), "tokenizer.json", &err);
    if (tokenizer == NULL) {
        fuzz_check_error(&err);
        ATTN_ASSERT(err.status == ATTN_E_FORMAT);
        return 0;
    }
    check_tokenizer(tokenizer, text, len < TEXT_MAX ? len : TEXT_MAX);
    attn_tokenizer_close(tokenizer);
    return 0;
}
