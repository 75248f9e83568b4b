/* Files that no tokenizer can be made of: one line says what is wrong with them, and whatever is
 * done to a file, reading it and using it never crashes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/tokenizer_run.h"

/* A small file that is right, in parts that can be replaced. */
static const char *const base[][2] = {
    {"added_tokens", "[{\"id\":5,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":false,"
                     "\"rstrip\":false,\"normalized\":false,\"special\":true}]"},
    {"normalizer", "null"},
    {"pre_tokenizer", "null"},
    {"post_processor", "null"},
    {"decoder", "{\"type\":\"ByteLevel\"}"},
    {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"},
};

static attn_tokenizer *open_with(const char *key, const char *value, attn_error *err)
{
    attn_text json = {0};
    bool known = false;
    for (size_t i = 0; i <= sizeof base / sizeof base[0]; i++) {
        bool last = i == sizeof base / sizeof base[0], replaced;
        if (last && known)
            break;
        replaced = last || strcmp(base[i][0], key) == 0;
        known |= replaced;
        const char *parts[] = {i == 0 ? "{\"" : ",\"", last ? key : base[i][0],
                               "\":", replaced ? value : base[i][1]};
        for (size_t k = 0; k < 4; k++)
            assert_true(attn_text_append(&json, parts[k], strlen(parts[k])));
    }
    assert_true(attn_text_append(&json, "}", 1));
    attn_tokenizer *tokenizer = attn_tokenizer_parse(json.data, json.len, "file", err);
    attn_text_free(&json);
    return tokenizer;
}

static void check_one_line(const attn_error *err, const char *with)
{
    assert_int_equal(err->status, ATTN_E_FORMAT);
    assert_true(strlen(err->message) > 8);
    for (const char *c = err->message; *c != '\0'; c++)
        assert_true((unsigned char)*c >= ' ');
    if (strstr(err->message, with) == NULL)
        fail_msg("\"%s\" does not say %s", err->message, with);
}

#define SPLIT(regex)                                      \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define ADDED(id, content)                                                               \
    "{\"id\":" id ",\"content\":\"" content "\",\"single_word\":false,\"lstrip\":false," \
    "\"rstrip\":false,\"normalized\":false,\"special\":true}"
#define MODEL(vocab, merges) "{\"type\":\"BPE\",\"vocab\":{" vocab "},\"merges\":[" merges "]}"

static const struct {
    const char *key, *value, *says;
} refused[] = {
    {"truncation", "{\"max_length\":4}", "truncation"},
    {"padding", "{}", "padding"},
    {"version", "\"2.0\"", "version"},
    {"surprise", "1", "surprise"},
    {"normalizer", "{\"type\":\"NFKC\"}", "NFKC"},
    {"normalizer", "{\"type\":\"Lower\\ncase\"}", "Lower?case"},
    {"normalizer", "{\"type\":\"Prepend\"}", "prepend"},
    {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}",
     "empty"},
    {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"$1\"}", "$"},
    {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":7}", "list"},
    {"pre_tokenizer", "{\"type\":\"Whitespace\"}", "Whitespace"},
    {"pre_tokenizer", "{\"type\":\"ByteLevel\",\"add_prefix_space\":1}", "add_prefix_space"},
    {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"__\"}", "replacement"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{},\"behavior\":\"Isolated\","
     "\"invert\":false}",
     "pattern"},
    {"pre_tokenizer", SPLIT("("), "regular expression"},
    {"pre_tokenizer", SPLIT(""), "empty"},
    {"pre_tokenizer", SPLIT("a\\\\b"), "escape"},
    {"pre_tokenizer", SPLIT("(a)\\\\1"), "escape"},
    {"pre_tokenizer", SPLIT("[a[b]]"), "brackets"},
    {"pre_tokenizer", SPLIT("[a&&b]"), "&&"},
    {"pre_tokenizer", SPLIT("[a"), "closed"},
    {"pre_tokenizer", SPLIT("(*UTF)a"), "(*"},
    {"pre_tokenizer", SPLIT("(?i)a"), "group"},
    {"pre_tokenizer", SPLIT("a{2}+"), "}+"},
    {"pre_tokenizer", SPLIT("\\\\p{NoSuchScript}"), "regular expression"},
    {"post_processor", "{\"type\":\"BertProcessing\"}", "BertProcessing"},
    {"post_processor",
     "{\"type\":\"TemplateProcessing\",\"single\":[],\"pair\":[],"
     "\"special_tokens\":{}}",
     "without the text"},
    {"decoder", "null", "decoder"},
    {"decoder", "{\"type\":\"WordPiece\"}", "WordPiece"},
    {"decoder",
     "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Strip\",\"content\":\" \","
     "\"start\":1,\"stop\":0}]}",
     "Strip"},
    {"decoder",
     "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Strip\","
     "\"content\":\" \",\"start\":0,\"stop\":1}]}",
     "stop"},
    {"model", "null", "model"},
    {"model", "{\"type\":\"Unigram\",\"vocab\":[]}", "Unigram"},
    {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}", "dropout"},
    {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"x\"}",
     "end_of_word_suffix"},
    {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0}}", "merges"},
    {"model", MODEL("", ""), "vocab"},
    {"model", MODEL("\"a\":2147483648", ""), "token a"},
    {"model", MODEL("\"a\":4294967295", ""), "token a"},
    {"model", MODEL("\"a\":-1", ""), "token a"},
    {"model", MODEL("\"a\":0.5", ""), "token a"},
    {"model", MODEL("\"a\":0,\"a\":1", ""), "twice"},
    {"model", MODEL("\"a\":0,\"b\":0", ""), "twice"},
    {"model", MODEL("\"a\":0,\"\":1", "[\"a\",\"\"]"), "merge 0"},
    {"model", MODEL("\"a\":0,\"\":1", "\"a \""), "merge 0"},
    {"model", MODEL("\"a\":0", "\"a a\""), "merge 0"},
    {"model", MODEL("\"a\":0", "[\"a\"]"), "merge 0"},
    {"model", MODEL("\"a\":0", "7"), "merge 0"},
    {"model", MODEL("\"a\\u0000b\":0", ""), "NUL"},
    {"added_tokens", "{}", "added_tokens"},
    {"added_tokens", "[" ADDED("2147483648", "x") "]", "token x"},
    {"added_tokens", "[" ADDED("9", "a") "]", "added token a"},
    {"added_tokens", "[" ADDED("0", "x") "]", "added token x"},
    {"added_tokens", "[" ADDED("8", "x") "," ADDED("9", "x") "]", "added token x"},
    {"added_tokens", "[" ADDED("9", "x") "," ADDED("9", "y") "]", "added token"},
    {"added_tokens", "[" ADDED("9", "") "]", "empty"},
    {"added_tokens", "[{\"id\":9,\"content\":\"x\"}]", "single_word"},
};

static void test_files_that_are_refused(void **state)
{
    (void)state;
    attn_error err = {0};
    attn_tokenizer *right = open_with("version", "\"1.0\"", &err);
    assert_non_null(right);
    CHECK_IDS(right, "ab<s>b", false, true, 2, 5, 1);
    attn_tokenizer_close(right);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (open_with(refused[i].key, refused[i].value, &err) != NULL)
            fail_msg("accepted: %s: %s", refused[i].key, refused[i].value);
        check_one_line(&err, refused[i].says);
    }
    assert_null(open_with("model", "7", NULL)); /* no error wanted */
    assert_null(attn_tokenizer_open("no/such/file", &err));
    assert_int_equal(err.status, ATTN_E_IO);
    assert_null(attn_tokenizer_parse("{\"a\":\"\xff\"}", 10, "file", &err));
    check_one_line(&err, "UTF-8");
}

static void test_too_many_added_tokens(void **state)
{
    (void)state;
    attn_text list = {0};
    attn_error err = {0};
    for (unsigned i = 0; i < 70000; i++) {
        char one[200];
        int n = snprintf(one, sizeof one, "%c" ADDED("%u", "t%u"), i == 0 ? '[' : ',', i + 10, i);
        assert_true(attn_text_append(&list, one, (size_t)n));
    }
    assert_true(attn_text_append(&list, "]", 2));
    assert_null(open_with("added_tokens", list.data, &err));
    check_one_line(&err, "too many");
    attn_text_free(&list);
}

/* Expressions that would never end are stopped, with one line. */
static void test_expressions_that_explode(void **state)
{
    (void)state;
    static const char *const explosive[] = {SPLIT("(?:a+)+$"), SPLIT("(?:a|aa)+$"),
                                            SPLIT("(?:a|a)*[c-e]")};
    char text[2001];
    attn_error err = {0};
    memset(text, 'a', sizeof text);
    text[2000] = '!';
    for (size_t i = 0; i < sizeof explosive / sizeof explosive[0]; i++) {
        attn_tokenizer *tokenizer = open_with("pre_tokenizer", explosive[i], &err);
        assert_non_null(tokenizer);
        tokenizer_check_refused(tokenizer, text, sizeof text);
        CHECK_IDS(tokenizer, "ab", false, true, 2);
        attn_tokenizer_close(tokenizer);
    }
}

/* Whatever a damaged file still is, it works or is refused. */
static void try_damaged(const char *json, size_t len)
{
    static const char text[] = "the  cat\n<s> caf\xc3\xa9 123 <|begin|>\xe2\x96\x81";
    attn_error err = {0};
    char *exact = malloc(len + (len == 0)); /* so that reading past the end is seen */
    assert_non_null(exact);
    memcpy(exact, json, len);
    attn_tokenizer *tokenizer = attn_tokenizer_parse(exact, len, "file", &err);
    free(exact);
    if (tokenizer == NULL) {
        check_one_line(&err, "file");
        return;
    }
    attn_ids ids = {0};
    if (attn_tokenizer_encode(tokenizer, text, sizeof text - 1, true, true, &ids, &err) ==
        ATTN_OK) {
        attn_text back = tokenizer_decode(tokenizer, ids.data, ids.n, false);
        attn_text_free(&back);
    }
    attn_ids_free(&ids);
    attn_tokenizer_close(tokenizer);
}

static void damage(const char *path, size_t stride)
{
    size_t len;
    char *json = tokenizer_read_file(path, &len);
    for (size_t i = 0; i < len; i += stride) {
        try_damaged(json, i);
        char was = json[i];
        const char becomes[] = {(char)(was ^ 1), '"', (char)(was ^ 0x80)};
        for (size_t k = 0; k < sizeof becomes; k++) {
            json[i] = becomes[k];
            try_damaged(json, len);
        }
        json[i] = was;
    }
    attn_free(json);
}

static void test_damaged_files(void **state)
{
    (void)state;
    static const char *const names[] = {"llama3", "added", "llama2", "metaspace-first", "replace"};
    char path[4096];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, FIXTURES "features/%s.json", names[i]);
        damage(path, 11);
    }
    if (tokenizer_find_real("stories260K", path, sizeof path))
        damage(path, 97);
    if (tokenizer_find_real("minimind-tokenizer", path, sizeof path))
        damage(path, 60013);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_that_are_refused),
        cmocka_unit_test(test_too_many_added_tokens),
        cmocka_unit_test(test_expressions_that_explode),
        cmocka_unit_test(test_damaged_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
