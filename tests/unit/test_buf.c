/* The growing buffer: contents, ceiling, sticky failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/buf.h"

static void test_starts_empty_and_allocates_nothing(void **state)
{
    (void)state;
    srv_buf b;
    srv_buf_init(&b, 100);
    assert_null(b.data);
    assert_int_equal(b.len, 0);
    assert_false(b.failed);
    srv_buf_free(&b);
}

static void test_appends(void **state)
{
    (void)state;
    srv_buf b;
    srv_buf_init(&b, 1000);
    assert_true(srv_buf_append(&b, "a\0b", 3));
    assert_true(srv_buf_puts(&b, "cd"));
    assert_true(srv_buf_append(&b, NULL, 0));
    assert_true(srv_buf_printf(&b, "-%d-%s", 42, "x"));
    assert_int_equal(b.len, 10);
    assert_memory_equal(b.data, "a\0bcd-42-x", 11);
    srv_buf_free(&b);
    assert_null(b.data);
    assert_int_equal(b.limit, 1000);
}

static void test_grows_and_stays_terminated(void **state)
{
    (void)state;
    srv_buf b;
    srv_buf_init(&b, SIZE_MAX);
    for (int i = 0; i < 100000; i++) {
        const char c = (char)('a' + i % 26);
        assert_true(srv_buf_append(&b, &c, 1));
        assert_true(b.cap > b.len);
        assert_int_equal(b.data[b.len], 0);
    }
    for (int i = 0; i < 100000; i++)
        assert_int_equal(b.data[i], 'a' + i % 26);
    srv_buf_free(&b);
}

static void test_fills_to_its_limit_exactly(void **state)
{
    (void)state;
    static const size_t limits[] = {0, 1, 2, 255, 256, 257, 1000};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        srv_buf b;
        srv_buf_init(&b, limits[i]);
        for (size_t n = 0; n < limits[i]; n++)
            assert_true(srv_buf_append(&b, "x", 1));
        assert_true(srv_buf_append(&b, "", 0));
        assert_int_equal(b.len, limits[i]);
        assert_true(b.cap <= limits[i] + 1);
        assert_false(srv_buf_append(&b, "x", 1));
        assert_true(b.failed);
        assert_int_equal(b.len, limits[i]);
        srv_buf_free(&b);
    }
}

static void test_failure_is_sticky_until_cleared(void **state)
{
    (void)state;
    srv_buf b;
    srv_buf_init(&b, 4);
    assert_true(srv_buf_puts(&b, "ab"));
    assert_false(srv_buf_puts(&b, "cde"));
    assert_false(srv_buf_puts(&b, "c"));
    assert_false(srv_buf_printf(&b, "c"));
    assert_null(srv_buf_reserve(&b, 0));
    assert_string_equal(b.data, "ab");
    srv_buf_clear(&b);
    assert_string_equal(b.data, "");
    assert_true(srv_buf_printf(&b, "%s", "wxyz"));
    assert_string_equal(b.data, "wxyz");
    assert_false(srv_buf_printf(&b, "%d", 1));
    assert_string_equal(b.data, "wxyz");
    srv_buf_free(&b);
}

static void test_huge_requests_do_not_wrap(void **state)
{
    (void)state;
    srv_buf b;
    srv_buf_init(&b, SIZE_MAX);
    assert_true(srv_buf_puts(&b, "ab"));
    assert_null(srv_buf_reserve(&b, SIZE_MAX));
    srv_buf_clear(&b);
    assert_null(srv_buf_reserve(&b, SIZE_MAX - 2));
    assert_true(b.failed);
    srv_buf_free(&b);
}

static void test_expected(void **state)
{
    (void)state;
    srv_buf b;
    srv_buf_init(&b, 100000);
    srv_buf_expect(&b, 100001);
    assert_null(b.data);
    srv_buf_expect(&b, 100000);
    const char *data = b.data;
    assert_int_equal(b.len, 0);
    for (int i = 0; i < 1000; i++)
        assert_true(srv_buf_append(&b,
                                   "0123456789012345678901234567890123456789012345678901234567"
                                   "890123456789012345678901234567890123456789",
                                   100));
    assert_ptr_equal(b.data, data);
    assert_int_equal(b.len, 100000);
    assert_int_equal(b.data[b.len], 0);
    assert_false(srv_buf_append(&b, "x", 1));
    srv_buf_free(&b);
}

static void test_reserve_then_commit(void **state)
{
    (void)state;
    srv_buf b;
    srv_buf_init(&b, 1000);
    srv_buf_puts(&b, "12");
    char *to = srv_buf_reserve(&b, 700);
    assert_non_null(to);
    memset(to, '3', 700);
    assert_int_equal(b.len, 2);
    srv_buf_commit(&b, 2);
    assert_string_equal(b.data, "1233");
    assert_non_null(srv_buf_reserve(&b, 996));
    assert_null(srv_buf_reserve(&b, 997));
    srv_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_starts_empty_and_allocates_nothing),
        cmocka_unit_test(test_appends),
        cmocka_unit_test(test_grows_and_stays_terminated),
        cmocka_unit_test(test_fills_to_its_limit_exactly),
        cmocka_unit_test(test_failure_is_sticky_until_cleared),
        cmocka_unit_test(test_huge_requests_do_not_wrap),
        cmocka_unit_test(test_expected),
        cmocka_unit_test(test_reserve_then_commit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
