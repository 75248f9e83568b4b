/* The tokenizer: ids and texts are those of the Hugging Face library (reference/tokenizer says how
 * they were made), and a stream of ids gives the text of all of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <pthread.h>

#include "tests/unit/tokenizer_run.h"

#define REPLACEMENT "\xef\xbf\xbd"

/* ------------------------------------------------------------------------------------ helpers */

static attn_tokenizer *open_feature(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, FIXTURES "features/%s.json", name);
    return tokenizer_open_file(path);
}

static attn_tokenizer *open_real(const char *folder)
{
    char path[4096];
    if (!tokenizer_find_real(folder, path, sizeof path))
        skip();
    return tokenizer_open_file(path);
}

/* The text of ids given one at a time; each piece of it is whole characters. */
static attn_text stream(const attn_tokenizer *tokenizer, const uint32_t *ids, size_t n, bool skip)
{
    attn_detokenizer state;
    attn_text text = {0};
    size_t before = 0;
    attn_detokenizer_init(&state, tokenizer, skip, true);
    for (size_t i = 0; i <= n; i++, before = text.len) {
        attn_status status = i < n ? attn_detokenizer_push(&state, ids[i], &text, NULL)
                                   : attn_detokenizer_flush(&state, &text, NULL);
        assert_int_equal(status, ATTN_OK);
        assert_true(attn_utf8_valid(text.data + before, text.len - before));
    }
    return text;
}

static void check_text(const attn_text *got, const char *want, size_t len, const char *where,
                       size_t line)
{
    if (got->len != len || (len > 0 && memcmp(got->data, want, len) != 0))
        fail_msg("%s:%zu: not \"%.*s\" but \"%.*s\"", where, line, (int)len, want, (int)got->len,
                 got->data == NULL ? "" : got->data);
}

static void check_stream(const attn_tokenizer *tokenizer, const uint32_t *ids, size_t n, bool skip,
                         const char *want, size_t len, const char *where, size_t line)
{
    attn_text text = stream(tokenizer, ids, n, skip);
    /* A run of byte tokens that is no UTF-8 is the one thing that may differ. */
    if (memmem(want, len, REPLACEMENT, 3) == NULL || strstr(where, "stories") == NULL)
        check_text(&text, want, len, where, line);
    attn_text_free(&text);
}

/* ----------------------------------------------------------------------------------- fixtures */

/* The next field of a fixture, up to `end` and past it; unescapes in place. */
static char *next_field(char **at, char end, size_t *len)
{
    char *field = *at, *out = field, *p = field;
    while (*p != end) {
        assert_true(*p != '\0' && *p != '\n');
        if (*p != '\\') {
            *out++ = *p++;
            continue;
        }
        p += 2;
        switch (p[-1]) {
        case 'n':
            *out++ = '\n';
            break;
        case 't':
            *out++ = '\t';
            break;
        case 'r':
            *out++ = '\r';
            break;
        case 'u':
            out += attn_utf8_encode((uint32_t)strtoul(p + 1, &p, 16), out);
            p++;
            break;
        default:
            *out++ = p[-1];
        }
    }
    *at = p + 1;
    *len = (size_t)(out - field);
    return field;
}

static attn_ids next_ids(char **at)
{
    attn_ids ids = {0};
    while (**at != '\t') {
        assert_true(attn_ids_append(&ids, (uint32_t)strtoul(*at, at, 10)));
        *at += **at == ' ';
    }
    ++*at;
    return ids;
}

/* Lines of ids and the text they give back, '=' for the text itself. The texts stand in a file of
 * their own (strings.txt), or first in each line when that is NULL. */
static void check_encoding(const attn_tokenizer *tokenizer, const char *path, const char *texts)
{
    size_t size, n = 0;
    char *lines = tokenizer_read_file(path, &size),
         *strings = texts ? tokenizer_read_file(texts, &size) : NULL;
    char *at = lines, *strings_at = strings;
    for (; *at != '\0'; n++) {
        size_t len, back_len;
        char *text = strings ? next_field(&strings_at, '\n', &len) : next_field(&at, '\t', &len);
        attn_ids want = next_ids(&at), got = tokenizer_encode(tokenizer, text, len, true, true);
        const char *back = next_field(&at, '\n', &back_len);
        if (got.n != want.n ||
            (want.n > 0 && memcmp(got.data, want.data, want.n * sizeof *want.data) != 0))
            fail_msg("%s:%zu: other ids for \"%.*s\"", path, n + 1, (int)len, text);
        if (back_len == 1 && *back == '=') {
            back = text;
            back_len = len;
        }
        attn_text decoded = tokenizer_decode(tokenizer, got.data, got.n, true);
        check_text(&decoded, back, back_len, path, n + 1);
        check_stream(tokenizer, got.data, got.n, true, back, back_len, path, n + 1);
        attn_text_free(&decoded);
        attn_ids_free(&want);
        attn_ids_free(&got);
    }
    assert_true(n > 20);
    attn_free(lines);
    attn_free(strings);
}

/* Lines of ids, their text, and their text without special tokens. */
static void check_decoding(const attn_tokenizer *tokenizer, const char *path)
{
    size_t size, n = 0;
    char *lines = tokenizer_read_file(path, &size), *at = lines;
    for (; *at != '\0'; n++) {
        attn_ids ids = next_ids(&at);
        size_t lens[2];
        const char *texts[2];
        texts[0] = next_field(&at, '\t', &lens[0]);
        texts[1] = next_field(&at, '\n', &lens[1]);
        if (lens[1] == 1 && *texts[1] == '=') {
            texts[1] = texts[0];
            lens[1] = lens[0];
        }
        for (int skip = 0; skip < 2; skip++) {
            attn_text text = tokenizer_decode(tokenizer, ids.data, ids.n, skip);
            check_text(&text, texts[skip], lens[skip], path, n + 1);
            check_stream(tokenizer, ids.data, ids.n, skip, texts[skip], lens[skip], path, n + 1);
            attn_text_free(&text);
        }
        attn_ids_free(&ids);
    }
    assert_true(n > 100);
    attn_free(lines);
}

static void check_real(const char *folder, const char *name)
{
    attn_tokenizer *tokenizer = open_real(folder);
    char path[256];
    snprintf(path, sizeof path, FIXTURES "%s.txt", name);
    check_encoding(tokenizer, path, FIXTURES "strings.txt");
    snprintf(path, sizeof path, FIXTURES "%s.decode.txt", name);
    check_decoding(tokenizer, path);
    attn_tokenizer_close(tokenizer);
}

static void test_stories260k(void **state)
{
    (void)state;
    check_real("stories260K", "stories260K");
}

static void test_minimind(void **state)
{
    (void)state;
    check_real("minimind-tokenizer", "minimind");
}

static void test_qwen3(void **state)
{
    (void)state;
    check_real("qwen3-tokenizer", "qwen3");
}

static void test_features(void **state)
{
    (void)state;
    DIR *folder = opendir(FIXTURES "features");
    size_t n = 0;
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[512];
        size_t stem = strlen(entry->d_name);
        if (stem < 6 || strcmp(entry->d_name + stem - 5, ".json") != 0)
            continue;
        snprintf(path, sizeof path, FIXTURES "features/%s", entry->d_name);
        attn_tokenizer *tokenizer = tokenizer_open_file(path);
        memcpy(path + strlen(path) - 5, ".txt", 5);
        check_encoding(tokenizer, path, NULL);
        attn_tokenizer_close(tokenizer);
        n++;
    }
    closedir(folder);
    assert_true(n > 30);
}

/* -------------------------------------------------------------------------------- by hand */

static void test_known_ids(void **state)
{
    (void)state;
    attn_tokenizer *tokenizer = open_real("stories260K");
    CHECK_IDS(tokenizer, "Once upon a time", true, true, 1, 403, 407, 261, 378);
    CHECK_IDS(tokenizer, "Once upon a time", false, true, 403, 407, 261, 378);
    CHECK_IDS(tokenizer, " upon a time", false, false, 407, 261, 378);
    CHECK_IDS(tokenizer, "", true, true, 1);
    assert_int_equal(attn_tokenizer_size(tokenizer), 512);
    attn_tokenizer_close(tokenizer);
}

/* A text encoded in two parts, the second of which does not begin it. */
static void test_prefix_is_for_the_start(void **state)
{
    (void)state;
    const char *const names[] = {"gpt2", "llama2", "metaspace-always", "metaspace-first"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        attn_tokenizer *tokenizer = open_feature(names[i]);
        attn_ids whole = tokenizer_encode(tokenizer, "the cat sat", 11, false, true);
        attn_ids parts = tokenizer_encode(tokenizer, "the cat", 7, false, true), rest;
        rest = tokenizer_encode(tokenizer, " sat", 4, false, false);
        for (size_t k = 0; k < rest.n; k++)
            assert_true(attn_ids_append(&parts, rest.data[k]));
        assert_int_equal(whole.n, parts.n);
        assert_memory_equal(whole.data, parts.data, whole.n * sizeof *whole.data);
        attn_ids_free(&rest);
        rest = tokenizer_encode(tokenizer, "the", 3, false, false);
        assert_int_not_equal(rest.data[0], whole.data[0]);
        attn_ids_free(&rest);
        attn_ids_free(&parts);
        attn_ids_free(&whole);
        attn_tokenizer_close(tokenizer);
    }
}

static uint32_t id_of(const attn_tokenizer *tokenizer, const char *token)
{
    uint32_t id = attn_tokenizer_find(tokenizer, token, strlen(token));
    assert_int_not_equal(id, ATTN_TOKEN_NONE);
    return id;
}

static void test_lookups(void **state)
{
    (void)state;
    attn_tokenizer *tokenizer = open_feature("gemma");
    size_t len;
    uint32_t bos = id_of(tokenizer, "<s>"), mark = id_of(tokenizer, "\xe2\x96\x81");
    assert_int_equal(bos, 1);
    assert_true(attn_tokenizer_is_special(tokenizer, bos));
    assert_false(attn_tokenizer_is_special(tokenizer, mark));
    assert_false(attn_tokenizer_is_special(tokenizer, UINT32_MAX));
    assert_memory_equal(attn_tokenizer_token(tokenizer, mark, &len), "\xe2\x96\x81", 3);
    assert_int_equal(len, 3);
    assert_memory_equal(attn_tokenizer_piece(tokenizer, mark, &len), " ", 1);
    assert_int_equal(len, 1);
    assert_memory_equal(attn_tokenizer_piece(tokenizer, id_of(tokenizer, "<0xE9>"), &len), "\xe9",
                        1);
    assert_int_equal(len, 1);
    assert_null(attn_tokenizer_token(tokenizer, (uint32_t)attn_tokenizer_size(tokenizer), &len));
    assert_null(attn_tokenizer_piece(tokenizer, UINT32_MAX, &len));
    assert_int_equal(attn_tokenizer_find(tokenizer, "no such token", 13), ATTN_TOKEN_NONE);
    attn_tokenizer_close(tokenizer);
}

static void push(attn_detokenizer *state, const char *token, const char *want)
{
    attn_text out = {0};
    uint32_t id = id_of(state->tokenizer, token);
    assert_int_equal(attn_detokenizer_push(state, id, &out, NULL), ATTN_OK);
    check_text(&out, want, strlen(want), token, 0);
    attn_text_free(&out);
}

static void flush(attn_detokenizer *state, const char *want)
{
    attn_text out = {0};
    assert_int_equal(attn_detokenizer_flush(state, &out, NULL), ATTN_OK);
    check_text(&out, want, strlen(want), "flush", 0);
    attn_text_free(&out);
}

static void test_a_stream_holds_characters_back(void **state)
{
    (void)state;
    attn_tokenizer *tokenizer = open_feature("llama2");
    attn_detokenizer d;
    attn_detokenizer_init(&d, tokenizer, true, true);
    push(&d, "<s>", "");
    push(&d, "\xe2\x96\x81", ""); /* only the first space of a text goes */
    push(&d, "\xe2\x96\x81", " ");
    push(&d, "<0xE4>", "");
    push(&d, "<0xBD>", "");
    push(&d, "<0xA0>", "\xe4\xbd\xa0");
    push(&d, "<0xF0>", "");
    push(&d, "<0x9F>", "");
    push(&d, "a", REPLACEMENT REPLACEMENT "a");
    push(&d, "<0xE4>", "");
    flush(&d, REPLACEMENT);
    flush(&d, "");
    attn_detokenizer_init(&d, tokenizer, false, false);
    push(&d, "\xe2\x96\x81", " ");
    push(&d, "</s>", "</s>");
    attn_tokenizer_close(tokenizer);

    tokenizer = open_feature("gpt2");
    attn_detokenizer_init(&d, tokenizer, true, true);
    push(&d, "\xc4\xa0", " ");     /* byte 20 */
    push(&d, "\xc3\xa4", "");      /* byte e4 */
    push(&d, "\xc2\xbd", "");      /* byte bd */
    push(&d, "<|endoftext|>", ""); /* as if it were not there */
    push(&d, "a", REPLACEMENT "a");
    push(&d, "\xc3\xa4", "");
    flush(&d, REPLACEMENT);
    attn_tokenizer_close(tokenizer);
}

/* ---------------------------------------------------------------------------- texts refused */

static void test_texts_that_are_refused(void **state)
{
    (void)state;
    attn_tokenizer *tokenizer = open_feature("gpt2");
    const char *const wrong[] = {"\x80",
                                 "a\xff",
                                 "\xc0\xaf",
                                 "\xe0\x9f\xbf",
                                 "\xed\xa0\x80",
                                 "\xf4\x90\x80\x80",
                                 "\xf8\x88\x80\x80",
                                 "\xe4\xbd",
                                 "\xc3"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        tokenizer_check_refused(tokenizer, wrong[i], strlen(wrong[i]));
    char *large = calloc(ATTN_TOKENIZER_TEXT_MAX + 1, 1);
    assert_non_null(large);
    tokenizer_check_refused(tokenizer, large, ATTN_TOKENIZER_TEXT_MAX + 1);
    free(large);
    attn_tokenizer_close(tokenizer);
}

/* Long stretches that nothing splits, or that an expression could try over and over. */
static void test_long_texts(void **state)
{
    (void)state;
    static const char *const units[] = {"a", "the", " ", "\n", "\xcc\x81\xcc\xa3", "<", ".", "A"};
    static const char *const names[] = {"llama2", "gpt2", "o200k", "added"};
    const size_t most = 1 << 20;
    char *text = malloc(most);
    assert_non_null(text);
    for (size_t k = 0; k < sizeof units / sizeof units[0]; k++) {
        size_t unit = strlen(units[k]), len = (k == 0 ? most : most / 8) / unit * unit;
        for (size_t i = 0; i < len; i++)
            text[i] = units[k][i % unit];
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            attn_tokenizer *tokenizer = open_feature(names[i]);
            attn_ids ids = tokenizer_encode(tokenizer, text, len, false, true);
            attn_text back = tokenizer_decode(tokenizer, ids.data, ids.n, false);
            assert_true(back.len > len / 2);
            attn_text_free(&back);
            attn_ids_free(&ids);
            attn_tokenizer_close(tokenizer);
        }
    }
    free(text);
}

/* -------------------------------------------------------------------------------- threads */

static void *encode_all(void *user)
{
    check_encoding(user, FIXTURES "features/added.txt", NULL);
    return NULL;
}

static void test_threads_share_one(void **state)
{
    (void)state;
    attn_tokenizer *tokenizer = open_feature("added");
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_all, tokenizer), 0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    attn_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stories260k),
        cmocka_unit_test(test_minimind),
        cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_features),
        cmocka_unit_test(test_known_ids),
        cmocka_unit_test(test_prefix_is_for_the_start),
        cmocka_unit_test(test_lookups),
        cmocka_unit_test(test_a_stream_holds_characters_back),
        cmocka_unit_test(test_texts_that_are_refused),
        cmocka_unit_test(test_long_texts),
        cmocka_unit_test(test_threads_share_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
