/* float32 text: the texts themselves, the way back, and the hard cases of rounding. strtof and
 * printf of glibc, exact for any text, are the reference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/json/float_text.h"

static uint64_t random_state = 1;

/* splitmix64 */
static uint64_t random_u64(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static float float_of(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static uint32_t bits_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static float random_finite(void)
{
    float v;
    do {
        v = float_of((uint32_t)random_u64());
    } while (!isfinite(v));
    return v;
}

/* text's value, after checking that all of it is one number. */
static float parse(const char *text)
{
    float v = 77;
    srv_float_status status;
    const char *end = text + strlen(text);
    if (srv_float_parse(text, end, &v, &status) != end || status != SRV_FLOAT_OK)
        fail_msg("not read as a number: %.200s", text);
    return v;
}

static void assert_parses_to(const char *text, float expected)
{
    const float v = parse(text);
    if (bits_of(v) != bits_of(expected))
        fail_msg("%.200s: %a instead of %a", text, (double)v, (double)expected);
}

static void assert_parses_as_strtof(const char *text)
{
    const float expected = strtof(text, NULL);
    float v;
    srv_float_status status;
    const char *end = text + strlen(text);
    assert_ptr_equal(srv_float_parse(text, end, &v, &status), end);
    if (isinf(expected))
        assert_int_equal(status, SRV_FLOAT_OVERFLOW);
    else
        assert_parses_to(text, expected);
}

static size_t format(char text[SRV_FLOAT_TEXT_MAX + 1], float v)
{
    const size_t len = srv_float_format(text, v);
    assert_in_range(len, 1, SRV_FLOAT_TEXT_MAX - 1);
    text[len] = '\0';
    return len;
}

static void assert_round_trip(float v)
{
    char text[SRV_FLOAT_TEXT_MAX + 1];
    format(text, v);
    if (bits_of(strtof(text, NULL)) != bits_of(v))
        fail_msg("%a is printed as %s", (double)v, text);
    assert_parses_to(text, v);
}

static void test_format_examples(void **state)
{
    (void)state;
    static const struct {
        float v;
        const char *text;
    } cases[] = {
        {0.0f, "0"},
        {-0.0f, "-0"},
        {1.0f, "1"},
        {-1.0f, "-1"},
        {0.1f, "0.1"},
        {0.3f, "0.3"},
        {1.5f, "1.5"},
        {100.0f, "100"},
        {123456.79f, "123456.79"},
        {1234567.9f, "1234567.9"},
        {8388607.5f, "8388607.5"},
        {16777216.0f, "16777216"},
        {33554432.0f, "33554432"},
        {123456790.0f, "123456790"},
        {999999940.0f, "999999940"},
        {1e9f, "1e9"},
        {1e10f, "1e10"},
        {-1.5e10f, "-1.5e10"},
        {0.01f, "0.01"},
        {0.0001f, "0.0001"},
        {-0.00012345679f, "-0.00012345679"},
        {0.00001f, "1e-5"},
        {0.000012345f, "1.2345e-5"},
        {FLT_MAX, "3.4028235e38"},
        {-FLT_MAX, "-3.4028235e38"},
        {FLT_MIN, "1.1754944e-38"},
        {FLT_TRUE_MIN, "1e-45"},
        {-1.17549435e-38f, "-1.1754944e-38"},
        {9.5e-43f, "9.5e-43"},
        {3.0517578e-05f, "3.0517578e-5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[SRV_FLOAT_TEXT_MAX + 1];
        format(text, cases[i].v);
        assert_string_equal(text, cases[i].text);
        assert_round_trip(cases[i].v);
    }
}

static void test_format_refuses_what_is_not_finite(void **state)
{
    (void)state;
    char text[3 * SRV_FLOAT_TEXT_MAX];
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(srv_float_format(text, bad[i]), 0);
        const float three[] = {1, 2, bad[i]};
        assert_int_equal(srv_floats_format(text, three, 3), 0);
        assert_int_equal(srv_floats_format(text, three, 2), 3);
    }
}

static void test_format_lists_within_the_promised_room(void **state)
{
    (void)state;
    assert_int_equal(srv_floats_format(NULL, NULL, 0), 0);
    for (size_t n = 1; n < 40; n++) {
        float v[40];
        for (size_t i = 0; i < n; i++)
            v[i] = i % 2 ? random_finite() : -1.1111111e-38f * (float)(i + 1);
        char *list = malloc(n * SRV_FLOAT_TEXT_MAX);
        const size_t len = srv_floats_format(list, v, n);
        const char *p = list;
        for (size_t i = 0; i < n; i++) {
            float back;
            srv_float_status status;
            p = srv_float_parse(p, list + len, &back, &status);
            assert_int_equal(status, SRV_FLOAT_OK);
            assert_int_equal(bits_of(back), bits_of(v[i]));
            if (i + 1 < n)
                assert_int_equal(*p++, ',');
        }
        assert_ptr_equal(p, list + len);
        free(list);
    }
}

static void test_round_trip_at_boundaries(void **state)
{
    (void)state;
    /* Every power of two and its neighbours, and both ends of the subnormals. */
    for (uint32_t exponent = 0; exponent < 255; exponent++) {
        for (int d = -3; d <= 3; d++) {
            const uint32_t bits = (exponent << 23) + (uint32_t)d;
            if (bits < 0x7f800000) {
                assert_round_trip(float_of(bits));
                assert_round_trip(-float_of(bits));
            }
        }
    }
    for (uint32_t bits = 0; bits < 5000; bits++)
        assert_round_trip(float_of(bits));
    /* Every power of ten and its neighbours. */
    for (int e = -45; e <= 38; e++) {
        char text[8];
        snprintf(text, sizeof text, "1e%d", e);
        const float v = strtof(text, NULL);
        assert_parses_to(text, v);
        for (int d = -3; d <= 3; d++) {
            const uint32_t bits = bits_of(v) + (uint32_t)d;
            if (bits < 0x7f800000)
                assert_round_trip(float_of(bits));
        }
    }
}

static void test_round_trip_at_random(void **state)
{
    (void)state;
    for (int i = 0; i < 5000000; i++)
        assert_round_trip(random_finite());
}

/* Significant digits of a number's text. */
static int count_significant(const char *text)
{
    int n = 0, zeros = 0;
    for (; *text && *text != 'e'; text++) {
        if (*text < '0' || *text > '9' || (n == 0 && *text == '0'))
            continue;
        zeros = *text == '0' ? zeros + 1 : 0;
        n++;
    }
    return n - zeros;
}

static void test_format_is_shortest_and_nearest(void **state)
{
    (void)state;
    for (int i = 0; i < 300000; i++) {
        const float v = i % 2 ? random_finite() : (float)(random_u64() >> 40) * 0x1p-20f + 0x1p-20f;
        char text[SRV_FLOAT_TEXT_MAX + 1], printed[32];
        format(text, v);
        int precision = 0;
        do {
            snprintf(printed, sizeof printed, "%.*e", precision++, (double)v);
        } while (bits_of(strtof(printed, NULL)) != bits_of(v));
        /* At powers of two a shorter text may lie on the wider side of v, where printf, which
         * takes the nearest of each length, does not find it. */
        const int n = count_significant(text);
        assert_true(n <= precision);
        if (n == precision && strtod(text, NULL) != strtod(printed, NULL))
            fail_msg("%a is printed as %s, nearer is %s", (double)v, text, printed);
    }
}

static void test_parse_grammar(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        float v;
    } good[] = {
        {"0", 0.0f},
        {"-0", -0.0f},
        {"-0.0e5", -0.0f},
        {"0e99999999999999999999", 0.0f},
        {"0.000e-1", 0.0f},
        {"1", 1.0f},
        {"-1.25", -1.25f},
        {"1E2", 100.0f},
        {"1e+2", 100.0f},
        {"1e-2", 0.01f},
        {"1e-00002", 0.01f},
        {"10.50e+01", 105.0f},
        {"0.1", 0.1f},
        {"1e-400", 0.0f},
        {"-1e-99999999999999999999999999", -0.0f},
        {"3.4028235e38", FLT_MAX},
        {"340282346638528859811704183484516925440", FLT_MAX},
        {"340282356779733661637539395458142568447", FLT_MAX}, /* below the midpoint to 2^128 */
        {"1.17549435e-38", FLT_MIN},
        {"1e-45", FLT_TRUE_MIN},
        {"7.006492321624085e-46", 0.0f}, /* below half of the smallest */
        {"7.006492321624086e-46", FLT_TRUE_MIN},
        {"12345678901234567890", 12345678901234567890.0f},
        {"123456789012345678901234567890", 123456789012345678901234567890.0f},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_parses_to(good[i].text, good[i].v);

    static const char *const bad[] = {
        "",    "-",    "+1",   ".5",    "-.5", "1.",   "1.e5", "-1.",  "01",       "00",
        "-01", "1e",   "1e+",  "1e-",   "e5",  "NaN",  "nan",  "inf",  "Infinity", "-Infinity",
        "--1", "1.-5", "1.e",  "1.5e+", " 1",  "\t1",  "0.",   "-0.",  "a",        "\"1\"",
        "[1]", "null", "true", "-e1",   ",",   "1.5e", "1e.5", "-inf",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        float v = 77;
        srv_float_status status;
        assert_null(srv_float_parse(bad[i], bad[i] + strlen(bad[i]), &v, &status));
        assert_int_equal(status, SRV_FLOAT_SYNTAX);
        assert_true(v == 77);
    }

    static const char *const too_large[] = {
        "1e39",
        "-1e39",
        "1e999",
        "1e99999999999999999999",
        "3.4028236e38",
        "340282356779733661637539395458142568448", /* the midpoint to 2^128 */
        "1000000000000000000000000000000000000000",
        "0.0000001e46",
    };
    for (size_t i = 0; i < sizeof too_large / sizeof *too_large; i++) {
        float v = 77;
        srv_float_status status;
        const char *end = too_large[i] + strlen(too_large[i]);
        assert_ptr_equal(srv_float_parse(too_large[i], end, &v, &status), end);
        assert_int_equal(status, SRV_FLOAT_OVERFLOW);
        assert_true(v == 77);
    }
}

static void test_parse_stops_at_the_end_of_the_number(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len;
    } cases[] = {
        {"1,2", 1}, {"1.5]", 3}, {"1e5 ", 3}, {"1.5.5", 3}, {"1e5e5", 3}, {"0x10", 1}, {"1f", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float v;
        srv_float_status status;
        const char *text = cases[i].text;
        assert_ptr_equal(srv_float_parse(text, text + strlen(text), &v, &status),
                         text + cases[i].len);
    }
}

static void test_parse_never_reads_past_end(void **state)
{
    (void)state;
    static const char text[] = "-12345.678901234567890123e-12";
    for (size_t len = 0; len < sizeof text; len++) {
        char *copy = malloc(len ? len : 1);
        memcpy(copy, text, len);
        float v;
        srv_float_status status;
        const char *end = srv_float_parse(copy, copy + len, &v, &status);
        assert_true(end == NULL || end == copy + len);
        free(copy);
    }
}

/* Reads the decimal of a point halfway between two float32, all of its digits, and texts just above
 * and just below it. `below` and `above` are the two. */
static void check_midpoint(float below, double midpoint, float above)
{
    char text[1400];
    const float nearest = (float)midpoint; /* one rounding, ties to even */
    snprintf(text, sizeof text, "%.120e", midpoint);
    assert_parses_to(text, nearest);
    char *e = strchr(text, 'e');
    char exponent[8];
    memcpy(exponent, e, strlen(e) + 1);

    /* Above: a digit 1 far behind the last. */
    for (int zeros = 0; zeros <= 1000; zeros += 500) {
        memset(e, '0', (size_t)zeros);
        snprintf(e + zeros, 16, "1%s", exponent);
        assert_parses_to(text, above);
    }

    /* Below: the last digit that is not zero one less, and nines behind it. */
    char *last = e - 1;
    while (*last == '0' || *last == '.')
        last--;
    --*last;
    for (char *p = last + 1; p < e; p++)
        *p = *p == '.' ? '.' : '9';
    for (int nines = 0; nines <= 1000; nines += 500) {
        memset(e, '9', (size_t)nines);
        snprintf(e + nines, 16, "%s", exponent);
        assert_parses_to(text, below);
    }

    /* The doubles around it, too close for an estimate, in as many digits as they need. */
    double near = midpoint;
    for (int i = 0; i < 6; i++)
        near = nextafter(near, 0);
    for (int i = -6; i <= 6; i++, near = nextafter(near, INFINITY)) {
        snprintf(text, sizeof text, "%.17g", near);
        assert_parses_as_strtof(text);
        snprintf(text, sizeof text, "%.18e", near);
        assert_parses_as_strtof(text);
    }
}

static void test_parse_midpoints(void **state)
{
    (void)state;
    for (int i = 0; i < 20000; i++) {
        uint32_t bits = (uint32_t)random_u64() & 0x7fffffff;
        if (i < 2000)
            bits = (uint32_t)i; /* the smallest subnormals */
        else if (i < 4000)
            bits = 0x00800000 - 1000 + (uint32_t)i; /* around FLT_MIN */
        else if (i < 4254)
            bits = (uint32_t)(i - 4000) << 23; /* powers of two */
        if (bits >= 0x7f7fffff)
            continue;
        const float below = float_of(bits), above = float_of(bits + 1);
        check_midpoint(below, ((double)below + (double)above) / 2, above);
    }
}

static void test_parse_random_decimals(void **state)
{
    (void)state;
    for (int i = 0; i < 1000000; i++) {
        char text[80];
        size_t n = 0;
        const size_t n_digits = 1 + random_u64() % (i % 4 ? 20 : 45);
        const size_t point = random_u64() % 24;
        for (size_t k = 0; k < n_digits; k++) {
            if (k == point && k > 0)
                text[n++] = '.';
            text[n++] = (char)('0' + random_u64() % 10);
            if (n == 1 && text[0] == '0' && n_digits > 1 && point != 1)
                text[0] = '1';
        }
        snprintf(text + n, sizeof text - n, "e%d", (int)(random_u64() % 100) - 60);
        assert_parses_as_strtof(text);
    }
}

/* prefix, then n times c, then suffix */
static char *repeat(const char *prefix, char c, size_t n, const char *suffix)
{
    char *text = malloc(strlen(prefix) + n + strlen(suffix) + 1);
    size_t len = strlen(prefix);
    memcpy(text, prefix, len);
    memset(text + len, c, n);
    memcpy(text + len + n, suffix, strlen(suffix) + 1);
    return text;
}

static void test_parse_very_long_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *prefix;
        char c;
        const char *suffix;
        float v;
    } cases[] = {
        {"0.", '0', "1e1000001", 1.0f},
        {"1", '0', "e-1000000", 1.0f},
        {"0.", '3', "", 1.0f / 3},
        {"0.", '9', "e-5", 1e-5f},
        {"16777217.", '0', "", 16777216.0f}, /* a midpoint, even below */
        {"16777217.", '0', "1", 16777218.0f},
        {"0.", '0', "", 0.0f},
        {"-0.", '0', "1", -0.0f},
        {"1e-", '9', "", 0.0f},
        {"1e", '0', "2", 100.0f},
        {"1.5", '0', "e+1", 15.0f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = repeat(cases[i].prefix, cases[i].c, 1000000, cases[i].suffix);
        assert_parses_to(text, cases[i].v);
        free(text);
    }
    char *text = repeat("1", '0', 1000000, "");
    float v;
    srv_float_status status;
    assert_non_null(srv_float_parse(text, text + strlen(text), &v, &status));
    assert_int_equal(status, SRV_FLOAT_OVERFLOW);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_format_examples),
        cmocka_unit_test(test_format_refuses_what_is_not_finite),
        cmocka_unit_test(test_format_lists_within_the_promised_room),
        cmocka_unit_test(test_round_trip_at_boundaries),
        cmocka_unit_test(test_round_trip_at_random),
        cmocka_unit_test(test_format_is_shortest_and_nearest),
        cmocka_unit_test(test_parse_grammar),
        cmocka_unit_test(test_parse_stops_at_the_end_of_the_number),
        cmocka_unit_test(test_parse_never_reads_past_end),
        cmocka_unit_test(test_parse_midpoints),
        cmocka_unit_test(test_parse_random_decimals),
        cmocka_unit_test(test_parse_very_long_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
