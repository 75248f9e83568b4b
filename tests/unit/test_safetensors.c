/* Safetensors files: what is wrong with one is one line that names the file and the tensor, and never
 * a crash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/model/builtin.h"
#include "engine/model/safetensors.h"
#include "tests/unit/checkpoint_run.h"

static void refuse_header(const char *header, size_t n_data, const char *named)
{
    size_t size;
    attn_error err = {0};
    char *made = checkpoint_make_file(header, n_data, &size),
         *bytes = checkpoint_copy_of(made, size);
    attn_safetensors *file = attn_safetensors_parse(bytes, size, "the-file", &err);
    if (file != NULL)
        fail_msg("accepted: %s", header);
    CHECK_ERROR(err, ATTN_E_FORMAT, "the-file", named);
    assert_null(attn_safetensors_parse(bytes, size, "the-file", NULL));
    free(bytes);
    free(made);
}

static void accept_header(const char *header, size_t n_data, size_t n_tensors)
{
    size_t size;
    attn_error err = {0};
    char *bytes = checkpoint_make_file(header, n_data, &size);
    attn_safetensors *file = attn_safetensors_parse(bytes, size, "the-file", &err);
    if (file == NULL)
        fail_msg("%s", err.message);
    assert_int_equal(attn_safetensors_count(file), n_tensors);
    attn_safetensors_close(file);
    free(bytes);
}

static void test_seed_file(void **state)
{
    (void)state;
    attn_error err = {0};
    attn_safetensors *file =
        attn_safetensors_parse(attn_seed_tensors, checkpoint_seed_size(), "seed", &err);
    assert_non_null(file);
    assert_string_equal(attn_safetensors_label(file), "seed");
    assert_int_equal(attn_safetensors_count(file), 6);
    const attn_tensor *q = attn_safetensors_find(file, "model.layers.0.self_attn.q_proj.weight");
    assert_non_null(q);
    assert_string_equal(q->dtype, "F32");
    assert_int_equal(q->n_dims, 2);
    assert_int_equal(q->shape[0], 32);
    assert_int_equal(q->shape[1], 16);
    assert_int_equal(q->n_bytes, 32 * 16 * 4);
    assert_null(attn_safetensors_find(file, "model.layers.0.self_attn.q_proj.weigh"));
    assert_null(attn_safetensors_find(file, "__metadata__"));
    size_t total = 0;
    for (size_t i = 0; i < 6; i++)
        total += attn_safetensors_at(file, i)->n_bytes;
    assert_int_equal(total, checkpoint_seed_size() - 8 - checkpoint_seed_header());
    attn_safetensors_close(file);
}

static void test_every_truncation(void **state)
{
    (void)state;
    for (size_t size = 0; size < checkpoint_seed_size(); size++) {
        attn_error err = {0};
        char *bytes = checkpoint_copy_of(attn_seed_tensors, size);
        assert_null(attn_safetensors_parse(bytes, size, "the-file", &err));
        CHECK_ERROR(err, ATTN_E_FORMAT, "the-file");
        free(bytes);
    }
}

/* Every bit pattern next to a good header is refused or is a file that tiles its data. */
static void check_tiles(const attn_safetensors *file, const char *bytes, size_t size)
{
    uint64_t header, at = 0;
    memcpy(&header, bytes, sizeof header);
    for (size_t i = 0; i < attn_safetensors_count(file); i++) {
        const attn_tensor *t = attn_safetensors_at(file, i);
        assert_ptr_equal(t->data, bytes + 8 + header + at);
        at += t->n_bytes;
    }
    assert_int_equal(8 + header + at, size);
}

static void test_every_header_byte_flipped(void **state)
{
    (void)state;
    static const unsigned char masks[] = {0x01, 0x80, 0xff};
    size_t size = checkpoint_seed_size(), n_accepted = 0;
    char *bytes = checkpoint_copy_of(attn_seed_tensors, size);
    for (size_t at = 0; at < 8 + checkpoint_seed_header(); at++) {
        for (size_t m = 0; m < sizeof masks; m++) {
            attn_error err = {0};
            bytes[at] = (char)(bytes[at] ^ masks[m]);
            attn_safetensors *file = attn_safetensors_parse(bytes, size, "the-file", &err);
            if (file != NULL)
                check_tiles(file, bytes, size);
            else
                CHECK_ERROR(err, ATTN_E_FORMAT, "the-file");
            n_accepted += file != NULL;
            attn_safetensors_close(file);
            bytes[at] = (char)(bytes[at] ^ masks[m]);
        }
    }
    /* Names and metadata may be anything. */
    assert_true(n_accepted > 0 && n_accepted < sizeof masks * checkpoint_seed_header());
    free(bytes);
}

static void test_header_length(void **state)
{
    (void)state;
    const uint64_t lengths[] = {0,
                                1,
                                checkpoint_seed_header() - 1,
                                checkpoint_seed_header() + 1,
                                checkpoint_seed_size() - 8,
                                checkpoint_seed_size() - 7,
                                checkpoint_seed_size(),
                                (100u << 20) + 1,
                                UINT32_MAX,
                                (uint64_t)1 << 63,
                                UINT64_MAX - 7,
                                UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        attn_error err = {0};
        char *bytes = checkpoint_copy_of(attn_seed_tensors, checkpoint_seed_size());
        memcpy(bytes, &lengths[i], 8);
        assert_null(attn_safetensors_parse(bytes, checkpoint_seed_size(), "the-file", &err));
        CHECK_ERROR(err, ATTN_E_FORMAT, "the-file");
        free(bytes);
    }
}

#define T(name, rest) "\"" name "\":{\"dtype\":\"F32\"," rest "}"

static void test_offsets(void **state)
{
    (void)state;
    accept_header("{}", 0, 0);
    accept_header("{\"__metadata__\":{\"a\":\"b\"}}  ", 0, 0);
    accept_header("{" T("a", "\"shape\":[2],\"data_offsets\":[0,8]") "}", 8, 1);
    accept_header("{" T("a", "\"shape\":[],\"data_offsets\":[0,4]") "}", 4, 1);
    accept_header("{" T("b", "\"shape\":[2],\"data_offsets\":[4,12]") "," T(
                      "a", "\"shape\":[1],\"data_offsets\":[0,4]") "}",
                  12, 2);
    /* Empty tensors take no room, wherever they stand in the order. */
    accept_header("{" T("a", "\"shape\":[0,7],\"data_offsets\":[0,0]") "," T(
                      "b", "\"shape\":[1],\"data_offsets\":[0,4]") "," T("c",
                                                                         "\"shape\":[0],\"data_"
                                                                         "offsets\":[4,4]") "}",
                  4, 3);

    static const char *const bad[] = {
        T("tens", "\"shape\":[2],\"data_offsets\":[0,12]"), /* past the end */
        T("tens", "\"shape\":[2],\"data_offsets\":[8,16]"), /* past the end */
        T("tens", "\"shape\":[2],\"data_offsets\":[8,0]"),  /* backwards */
        T("tens", "\"shape\":[2],\"data_offsets\":[-8,0]"),
        T("tens", "\"shape\":[2],\"data_offsets\":[0.5,8.5]"),
        T("tens", "\"shape\":[2],\"data_offsets\":[0,18446744073709551624]"),
        T("tens", "\"shape\":[2],\"data_offsets\":[9007199254740992,9007199254741000]"),
        T("tens", "\"shape\":[2],\"data_offsets\":[0]"),
        T("tens", "\"shape\":[2],\"data_offsets\":[0,8,8]"),
        T("tens", "\"shape\":[2],\"data_offsets\":[]"),
        T("tens", "\"shape\":[2],\"data_offsets\":[\"0\",\"8\"]"),
        T("tens", "\"shape\":[2],\"data_offsets\":8"),
        T("tens", "\"shape\":[2],\"data_offsets\":null"),
        T("tens", "\"shape\":[2]"),
        T("tens", "\"data_offsets\":[0,8]"),
        T("tens", "\"shape\":[3],\"data_offsets\":[0,8]"), /* not its bytes */
        T("tens", "\"shape\":[1],\"data_offsets\":[0,8]"),
        T("tens", "\"shape\":[],\"data_offsets\":[0,8]"),
        T("tens", "\"shape\":2,\"data_offsets\":[0,8]"),
        T("tens", "\"shape\":[-2],\"data_offsets\":[0,8]"),
        T("tens", "\"shape\":[2.5],\"data_offsets\":[0,8]"),
        T("tens", "\"shape\":[null],\"data_offsets\":[0,8]"),
        T("tens", "\"shape\":[1,1,1,1,2],\"data_offsets\":[0,8]"), /* too many dimensions */
        T("tens", "\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]"), /* 2^66 bytes */
        T("tens", "\"shape\":[4611686018427387905],\"data_offsets\":[0,8]"),
        T("tens", "\"shape\":[4503599627370496,4096],\"data_offsets\":[0,0]"), /* 2^66: 0 */
        "\"tens\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}",
        "\"tens\":{\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]}",
        "\"tens\":{\"dtype\":\"\",\"shape\":[2],\"data_offsets\":[0,8]}",
        "\"tens\":{\"dtype\":32,\"shape\":[2],\"data_offsets\":[0,8]}",
        "\"tens\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,8]}",
        "\"tens\":{\"shape\":[2],\"data_offsets\":[0,8]}",
        "\"tens\":{}",
        "\"tens\":[]",
        "\"tens\":null",
        "\"tens\":8",
    };
    char header[256];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(header, sizeof header, "{%s}", bad[i]);
        refuse_header(header, 8, "tens");
    }
}

static void test_tiling(void **state)
{
    (void)state;
    /* A gap in front, between, and behind; overlaps, in part and whole. */
    refuse_header("{" T("tens", "\"shape\":[2],\"data_offsets\":[4,12]") "}", 12, "tens");
    refuse_header("{" T("a", "\"shape\":[1],\"data_offsets\":[0,4]") "," T(
                      "tens", "\"shape\":[1],\"data_offsets\":[8,12]") "}",
                  12, "tens");
    refuse_header("{" T("a", "\"shape\":[1],\"data_offsets\":[0,4]") "}", 12, "the-file");
    refuse_header("{}", 1, "the-file");
    refuse_header("{" T("a", "\"shape\":[2],\"data_offsets\":[0,8]") "," T(
                      "tens", "\"shape\":[2],\"data_offsets\":[4,12]") "}",
                  12, "tens");
    refuse_header("{" T("a", "\"shape\":[3],\"data_offsets\":[0,12]") "," T(
                      "b", "\"shape\":[3],\"data_offsets\":[0,12]") "}",
                  12, "the-file");
    refuse_header("{" T("a", "\"shape\":[3],\"data_offsets\":[0,12]") "," T(
                      "tens", "\"shape\":[1],\"data_offsets\":[4,8]") "}",
                  12, "tens");
}

static void test_header_text(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "[]",
        "null",
        "7",
        "\"a\"",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{} x",
        "{}{}",
        " {}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        "{\"__metadata__\":{},\"__metadata__\":{}}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refuse_header(bad[i], 0, "the-file");
    /* A NUL ends no header early. */
    attn_error err = {0};
    size_t size;
    char *bytes = checkpoint_make_file("{} ", 0, &size);
    bytes[size - 1] = '\0';
    assert_null(attn_safetensors_parse(bytes, size, "the-file", &err));
    CHECK_ERROR(err, ATTN_E_FORMAT, "the-file");
    free(bytes);
    /* Nor does deep nesting overrun the stack. */
    char *deep = malloc(200000);
    memset(deep, '[', 199999);
    memcpy(deep, "{\"a\":", 5);
    deep[199999] = '\0';
    refuse_header(deep, 0, "the-file");
    free(deep);
}

/* What stands in a message comes from a file, and files lie. */
static void test_messages_stay_on_one_line(void **state)
{
    (void)state;
    char header[1200], name[1001];
    refuse_header("{\"a\\nb\\r\\t\\u0007\\u007f\":{}}", 0, "the-file");
    refuse_header("{\"\\u00e9\\u2028\":{}}", 0, "the-file");
    refuse_header("{\"a\x01\x1b[31m\xff\":{}}", 0, "the-file");
    memset(name, 'n', 1000);
    name[1000] = '\0';
    snprintf(header, sizeof header, "{\"%s\":{}}", name);
    refuse_header(header, 0, "the-file");
}

static void test_many_tensors(void **state)
{
    (void)state;
    /* In reverse order of their data, and looked up by name. */
    const int n = 3000;
    char *header = malloc((size_t)n * 80), name[16];
    size_t len = 0, size;
    header[len++] = '{';
    for (int i = n - 1; i >= 0; i--)
        len += (size_t)snprintf(
            header + len, 80, "\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}%s",
            i, i, i + 1, i > 0 ? "," : "}");
    char *bytes = checkpoint_make_file(header, (size_t)n, &size);
    attn_safetensors *file = attn_safetensors_parse(bytes, size, "many", NULL);
    assert_non_null(file);
    for (int i = 0; i < n; i += 37) {
        snprintf(name, sizeof name, "t%d", i);
        const attn_tensor *t = attn_safetensors_find(file, name);
        assert_ptr_equal(t, attn_safetensors_at(file, (size_t)i));
        assert_ptr_equal(t->data, bytes + 8 + len + i);
    }
    attn_safetensors_close(file);
    free(bytes);
    free(header);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seed_file),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_every_header_byte_flipped),
        cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_tiling),
        cmocka_unit_test(test_header_text),
        cmocka_unit_test(test_messages_stay_on_one_line),
        cmocka_unit_test(test_many_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
