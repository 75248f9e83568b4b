/* What the JSON writer appends, to the byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/json/float_text.h"
#include "server/json/json_write.h"

static void assert_string(const char *s, size_t len, const char *expected)
{
    srv_buf b;
    srv_buf_init(&b, 1000);
    assert_true(srv_json_string(&b, s, len));
    assert_string_equal(b.data, expected);
    srv_buf_free(&b);
}

static void test_strings(void **state)
{
    (void)state;
    static const struct {
        const char *s, *expected;
    } cases[] = {
        {"", "\"\""},
        {"plain", "\"plain\""},
        {"a\"b\\c/d", "\"a\\\"b\\\\c/d\""},
        {"\n\r\t\b\f\x01\x1f\x7f", "\"\\n\\r\\t\\u0008\\u000c\\u0001\\u001f\x7f\""},
        {"\"", "\"\\\"\""},
        {"h\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\"h\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
        /* Not UTF-8: stray, cut short, overlong, surrogate, past the end. */
        {"\x80x", "\"\xef\xbf\xbdx\""},
        {"x\xc3", "\"x\xef\xbf\xbd\""},
        {"\xe2\x82", "\"\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xc0\xaf", "\"\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xf4\x90\x80\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xff\n\xfe", "\"\xef\xbf\xbd\\n\xef\xbf\xbd\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string(cases[i].s, strlen(cases[i].s), cases[i].expected);
    assert_string("a\0b", 3, "\"a\\u0000b\"");
    assert_string("abc", 2, "\"ab\"");
}

static void test_scalars(void **state)
{
    (void)state;
    srv_buf b;
    srv_buf_init(&b, 1000);
    srv_json_u64(&b, 0);
    srv_buf_puts(&b, " ");
    srv_json_u64(&b, UINT64_MAX);
    srv_buf_puts(&b, " ");
    srv_json_i64(&b, INT64_MIN);
    srv_buf_puts(&b, " ");
    srv_json_bool(&b, true);
    srv_buf_puts(&b, " ");
    srv_json_bool(&b, false);
    srv_buf_puts(&b, " ");
    srv_json_ms(&b, 0);
    srv_buf_puts(&b, " ");
    srv_json_ms(&b, 12.3456);
    srv_buf_puts(&b, " ");
    srv_json_ms(&b, 1e15);
    assert_false(b.failed);
    assert_string_equal(b.data,
                        "0 18446744073709551615 -9223372036854775808 true false 0.000 12.346 "
                        "1000000000000000.000");
    srv_buf_free(&b);
}

static void test_floats(void **state)
{
    (void)state;
    const float v[] = {1, -0.5f, 1e-9f, 0.1f, -0.0f, 3};
    srv_buf b;
    srv_buf_init(&b, 1000);
    assert_true(srv_json_floats(&b, v, 0));
    assert_true(srv_json_floats(&b, v, 1));
    assert_true(srv_json_floats(&b, v, 6));
    assert_true(srv_json_rows(&b, v, 2, 3));
    assert_true(srv_json_rows(&b, v, 0, 3));
    assert_true(srv_json_rows(&b, v, 3, 1));
    assert_true(srv_json_float(&b, -1.5e-9f));
    assert_string_equal(b.data, "[][1][1,-0.5,1e-9,0.1,-0,3][[1,-0.5,1e-9],[0.1,-0,3]][]"
                                "[[1],[-0.5],[1e-9]]-1.5e-9");
    srv_buf_free(&b);
}

static void test_ids(void **state)
{
    (void)state;
    const uint32_t v[] = {0, 7, 10, 1000000, UINT32_MAX};
    srv_buf b;
    srv_buf_init(&b, 1000);
    assert_true(srv_json_u32s(&b, NULL, 0));
    assert_true(srv_json_u32s(&b, v, 1));
    assert_true(srv_json_u32s(&b, v, 5));
    assert_string_equal(b.data, "[][0][0,7,10,1000000,4294967295]");
    srv_buf_free(&b);
}

/* Lists longer than what is formatted at once hold every value and every comma. */
static void test_long_lists(void **state)
{
    (void)state;
    for (size_t n = 60; n < 200; n++) {
        float v[200];
        for (size_t i = 0; i < n; i++)
            v[i] = (float)i / 7 - 10;
        srv_buf b;
        srv_buf_init(&b, 200 * SRV_FLOAT_TEXT_MAX);
        assert_true(srv_json_floats(&b, v, n));
        const char *p = b.data;
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(*p++, i == 0 ? '[' : ',');
            float back;
            srv_float_status status;
            p = srv_float_parse(p, b.data + b.len, &back, &status);
            assert_non_null(p);
            assert_true(back == v[i]);
        }
        assert_string_equal(p, "]");
        srv_buf_free(&b);
    }
}

static void test_what_is_not_finite_fails(void **state)
{
    (void)state;
    srv_buf b;
    srv_buf_init(&b, 10000);
    float v[100] = {0};
    v[99] = NAN;
    assert_false(srv_json_floats(&b, v, 100));
    assert_true(b.failed);
    srv_buf_clear(&b);
    assert_false(srv_json_rows(&b, v, 10, 10));
    assert_true(b.failed);
    srv_buf_clear(&b);
    assert_false(srv_json_ms(&b, (double)INFINITY));
    assert_true(b.failed);
    srv_buf_clear(&b);
    assert_false(srv_json_float(&b, -INFINITY));
    assert_true(b.failed);
    srv_buf_free(&b);
}

static void test_every_limit_is_kept(void **state)
{
    (void)state;
    const float v[] = {0.5f, 0.25f, 100};
    static const char expected[] =
        "\"a\\nb\\u0001\"[0.5,0.25,100]true-5[[0.5],[0.25]]1.500[7,42]0.5";
    const uint32_t ids[] = {7, 42};
    for (size_t limit = 0; limit < sizeof expected + 2; limit++) {
        srv_buf b;
        srv_buf_init(&b, limit);
        srv_json_string(&b, "a\nb\x01", 4);
        srv_json_floats(&b, v, 3);
        srv_json_bool(&b, true);
        srv_json_i64(&b, -5);
        srv_json_rows(&b, v, 2, 1);
        srv_json_ms(&b, 1.5);
        srv_json_u32s(&b, ids, 2);
        srv_json_float(&b, 0.5f);
        assert_int_equal(b.failed, limit < sizeof expected - 1);
        assert_true(b.len <= limit);
        if (b.data)
            assert_memory_equal(b.data, expected, b.len);
        srv_buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_floats),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_long_lists),
        cmocka_unit_test(test_what_is_not_finite_fails),
        cmocka_unit_test(test_every_limit_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
