/* The request reader: what it takes, what it refuses and how it says so, and that no body harms
 * it. Every body lies in memory of exactly its size, for the address sanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/json/json_read.h"

enum { NAME, FLAG, COUNT, HEAT, ROW, ROWS, IDS, STOP, N_FIELDS };

static const srv_json_field fields[N_FIELDS] = {
    [NAME] = {"name", SRV_JSON_STRING, false, 1, 8},
    [FLAG] = {"flag", SRV_JSON_BOOL, false, 0, 0},
    [COUNT] = {"count", SRV_JSON_INTEGER, false, 1, SRV_JSON_INTEGER_MAX},
    [HEAT] = {"heat", SRV_JSON_NUMBER, false, 0, 0},
    [ROW] = {"input", SRV_JSON_FLOAT_ROW, false, 0, 5},
    [ROWS] = {"inputs", SRV_JSON_FLOAT_ROWS, false, 1, 4},
    [IDS] = {"ids", SRV_JSON_INTEGERS, false, 1, 4},
    [STOP] = {"stop", SRV_JSON_STRINGS, false, 1, 3},
};

typedef struct {
    srv_json_value values[N_FIELDS];
    srv_json_error error;
} result;

static bool read_bytes(const char *text, size_t len, const srv_json_field *table, size_t n,
                       srv_json_value *values, srv_json_error *error)
{
    char *copy = malloc(len + 1);
    memcpy(copy, text, len);
    copy[len] = '\0';
    const bool ok = srv_json_read(copy, len, table, n, values, error);
    free(copy);
    assert_int_equal(ok, error->code == NULL);
    assert_int_equal(ok, error->message == NULL);
    return ok;
}

static bool read_body(const char *text, result *r)
{
    return read_bytes(text, strlen(text), fields, N_FIELDS, r->values, &r->error);
}

static void release(result *r)
{
    srv_json_values_free(fields, N_FIELDS, r->values);
}

static void read_good(const char *text, result *r)
{
    if (!read_body(text, r))
        fail_msg("%s: %s (%s)", text, r->error.message, r->error.param ? r->error.param : "null");
}

static void assert_refused_bytes(const char *text, size_t len, const char *code, const char *param)
{
    result r;
    memset(&r, 0x55, sizeof r);
    if (read_bytes(text, len, fields, N_FIELDS, r.values, &r.error))
        fail_msg("accepted: %s", text);
    if (strcmp(r.error.code, code) != 0)
        fail_msg("%s: %s, not %s", text, r.error.code, code);
    if ((param == NULL) != (r.error.param == NULL) || (param && strcmp(r.error.param, param) != 0))
        fail_msg("%s: param %s", text, r.error.param ? r.error.param : "null");
    const srv_json_value zero[N_FIELDS] = {0};
    assert_memory_equal(r.values, zero, sizeof zero);
    assert_true(r.error.offset == SIZE_MAX || (r.error.param == NULL && r.error.offset <= len));
}

static void assert_refused(const char *text, const char *code, const char *param)
{
    assert_refused_bytes(text, strlen(text), code, param);
}

static const char whole_body[] =
    " {\"name\" : \"a\\u00e9\\n\\ud83d\\ude00\", \"flag\":true,\"count\":12,\r\n\"heat\":-0.5e1,"
    "\"input\":[1, -2.5,3e-3 ],\t\"inputs\":[[1,2],[3,4.25]], \"ids\":[0,7,9007199254740992],"
    "\"stop\":[ \"\" ,\"a\\n\", \"\\u00e9]\"]} \n";

static void test_every_type(void **state)
{
    (void)state;
    result r;
    read_good(whole_body, &r);
    for (int i = 0; i < N_FIELDS; i++)
        assert_true(r.values[i].present);
    assert_string_equal(r.values[NAME].string.text, "a\xc3\xa9\n\xf0\x9f\x98\x80");
    assert_int_equal(r.values[NAME].string.len, 8);
    assert_true(r.values[FLAG].boolean);
    assert_int_equal(r.values[COUNT].integer, 12);
    assert_true(r.values[HEAT].number == -5);
    assert_int_equal(r.values[ROW].floats.rows, 1);
    assert_int_equal(r.values[ROW].floats.cols, 3);
    const float row[] = {1, -2.5f, 3e-3f};
    assert_memory_equal(r.values[ROW].floats.values, row, sizeof row);
    assert_int_equal(r.values[ROWS].floats.rows, 2);
    assert_int_equal(r.values[ROWS].floats.cols, 2);
    const float rows[] = {1, 2, 3, 4.25f};
    assert_memory_equal(r.values[ROWS].floats.values, rows, sizeof rows);
    assert_int_equal(r.values[IDS].integers.count, 3);
    const uint64_t ids[] = {0, 7, SRV_JSON_INTEGER_MAX};
    assert_memory_equal(r.values[IDS].integers.values, ids, sizeof ids);
    assert_int_equal(r.values[STOP].strings.count, 3);
    assert_string_equal(r.values[STOP].strings.texts[0], "");
    assert_string_equal(r.values[STOP].strings.texts[1], "a\n");
    assert_string_equal(r.values[STOP].strings.texts[2], "\xc3\xa9]");
    release(&r);
    const srv_json_value zero[N_FIELDS] = {0};
    assert_memory_equal(r.values, zero, sizeof zero);
}

static void test_good_bodies(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int field; /* the only one present, or -1 */
    } cases[] = {
        {"{}", -1},
        {" \t\r\n{ \t\r\n} \t\r\n", -1},
        {"{\"input\":[]}", ROW},
        {"{ \"input\" : [ ] }", ROW},
        {"{\"input\":[1,2,3,4,5]}", ROW},
        {"{\"inputs\":[[1]]}", ROWS},
        {"{\"inputs\": [ [ 1 , 2 ] , [ 3 , 4 ] ] }", ROWS},
        {"{\"inputs\":[[1],[2],[3],[4]]}", ROWS},
        {"{\"inp\\u0075t\":[1]}", ROW},
        {"{\"\\u0069\\u006e\\u0070\\u0075\\u0074\\u0073\":[[1]]}", ROWS},
        {"{\"\\u006Eame\":\"x\"}", NAME},
        {"{\"name\":\"input\"}", NAME},
        {"{\"name\":\"\\\"[1,2]\"}", NAME},
        {"{\"name\":\"\\\\\"}", NAME},
        {"{\"name\":\"}]\"}", NAME},
        {"{\"name\":\"\\u0041\\u0042\\u0043\\u0044\\u0045\\u0046\\u0047\\u0048\"}", NAME},
        {"{\"name\":\"\x7f\"}", NAME},
        {"{\"flag\":false}", FLAG},
        {"{\"count\":9007199254740992}", COUNT},
        {"{\"heat\":0}", HEAT},
        {"{\"heat\":3.4028235e38}", HEAT},
        {"{\"ids\":[0]}", IDS},
        {"{\"stop\":\"\"}", STOP},
        {"{\"stop\":\"[\\\"\"}", STOP},
        {"{\"stop\":[\"x\"]}", STOP},
        {"{\"stop\" : [ \"x\" , \"y\",\"z\" ] }", STOP},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        result r;
        read_good(cases[i].text, &r);
        for (int f = 0; f < N_FIELDS; f++)
            assert_int_equal(r.values[f].present, f == cases[i].field);
        release(&r);
    }
}

static void test_broken_json(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "",
        " ",
        "\n",
        "{",
        "}",
        "[",
        "{]",
        "{}}",
        "{} x",
        "{}{}",
        "{},",
        "{,}",
        "{\"flag\":true,}",
        "{\"flag\":true,,\"count\":1}",
        "{\"flag\":true \"count\":1}",
        "{\"flag\" true}",
        "{\"flag\":}",
        "{\"flag\"}",
        "{flag:true}",
        "{'flag':true}",
        "{\"flag\":tru}",
        "{\"flag\":True}",
        "{\"flag\":truefalse}",
        "{\"flag\":nul}",
        "{\"flag\":true/**/}",
        "{\"flag\":true}//",
        "\xef\xbb\xbf{}",
        "{\"flag\":\xc2\xa0true}",
        "{\"flag\":\x0btrue}",
        "{\"heat\":NaN}",
        "{\"heat\":Infinity}",
        "{\"heat\":-Infinity}",
        "{\"heat\":+1}",
        "{\"heat\":.5}",
        "{\"heat\":1.}",
        "{\"heat\":1e}",
        "{\"heat\":0x10}",
        "{\"heat\":-}",
        "{\"count\":01}",
        "{\"count\":1 2}",
        "{\"count\":-01}",
        "{\"input\":[1,]}",
        "{\"input\":[,1]}",
        "{\"input\":[1 2]}",
        "{\"input\":[1}",
        "{\"input\":[1",
        "{\"input\":[1]",
        "{\"input\":[01]}",
        "{\"input\":[1.]}",
        "{\"input\":[NaN]}",
        "{\"input\":[-Infinity]}",
        "{\"inputs\":[[1],]}",
        "{\"inputs\":[[1]}",
        "{\"inputs\":[[1]]]}",
        "{\"inputs\":[[1]}]",
        "{\"ids\":[1,]}",
        "{\"ids\":[00]}",
        "{\"stop\":[\"x\",]}",
        "{\"stop\":[,\"x\"]}",
        "{\"stop\":[\"x\" \"y\"]}",
        "{\"stop\":[\"x\"}",
        "{\"stop\":[\"x]}",
        "{\"stop\":[\"\\u0000\"]}",
        "{\"stop\":[\"\xff\"]}",
        /* strings */
        "{\"name\":\"a}",
        "{\"name\":\"a\\\"}",
        "{\"name\":\"\n\"}",
        "{\"name\":\"\t\"}",
        "{\"name\":\"\x01\"}",
        "{\"name\":\"\\x41\"}",
        "{\"name\":\"\\u\"}",
        "{\"name\":\"\\u12\"}",
        "{\"name\":\"\\u12g4\"}",
        "{\"name\":\"\\u0000\"}",
        "{\"name\":\"\\ud800\"}",
        "{\"name\":\"\\ud800x\"}",
        "{\"name\":\"\\ud800\\n\"}",
        "{\"name\":\"\\ud800\\ud800\"}",
        "{\"name\":\"\\ud800\\u0041\"}",
        "{\"name\":\"\\udc00\"}",
        "{\"name\":\"\\udc00\\ud800\"}",
        "{\"name\":\"\\U0041\"}",
        "{\"\\u0000\":1}",
        "{\"\\ud800\":1}",
        /* UTF-8 */
        "{\"name\":\"\x80\"}",
        "{\"name\":\"\xc3\"}",
        "{\"name\":\"\xc3\x28\"}",
        "{\"name\":\"\xc0\xaf\"}",
        "{\"name\":\"\xc1\xbf\"}",
        "{\"name\":\"\xe0\x9f\xbf\"}",
        "{\"name\":\"\xe2\x82\"}",
        "{\"name\":\"\xed\xa0\x80\"}",
        "{\"name\":\"\xf0\x8f\xbf\xbf\"}",
        "{\"name\":\"\xf4\x90\x80\x80\"}",
        "{\"name\":\"\xf5\x80\x80\x80\"}",
        "{\"name\":\"\xff\"}",
        "{\"\xff\":1}",
        /* Broken JSON comes before another fault, wherever that stands. */
        "{\"unknown\":1,\"flag\":tru}",
        "{\"flag\":null,",
        "{\"unknown\":[1,{\"a\":[}]}",
        "{\"unknown\":{\"a\" 1}}",
        "{\"unknown\":{1:1}}",
        "[1,2",
        "[1 2]",
        "tru",
        "1 2",
        "\"a",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(cases[i], "invalid_json", NULL);

    static const char nul_behind[] = "{}\0";
    static const char nul_within[] = "{\0\"flag\":true}";
    static const char nul_in_string[] = "{\"name\":\"a\0b\"}";
    static const char nul_in_array[] = "{\"input\":[1\0,2]}";
    assert_refused_bytes(nul_behind, sizeof nul_behind - 1, "invalid_json", NULL);
    assert_refused_bytes(nul_within, sizeof nul_within - 1, "invalid_json", NULL);
    assert_refused_bytes(nul_in_string, sizeof nul_in_string - 1, "invalid_json", NULL);
    assert_refused_bytes(nul_in_array, sizeof nul_in_array - 1, "invalid_json", NULL);
    assert_refused_bytes("\0", 1, "invalid_json", NULL);
}

static void test_wrong_requests(void **state)
{
    (void)state;
    static const struct {
        const char *text, *param;
    } cases[] = {
        /* not an object */
        {"[]", NULL},
        {"[{\"flag\":true}]", NULL},
        {"1", NULL},
        {"\"flag\"", NULL},
        {"true", NULL},
        {"null", NULL},
        /* unknown fields */
        {"{\"unknown\":1}", NULL},
        {"{\"\":1}", NULL},
        {"{\"Name\":\"x\"}", NULL},
        {"{\"nam\":\"x\"}", NULL},
        {"{\"names\":\"x\"}", NULL},
        {"{\"inpu\":[1]}", NULL},
        {"{\"inputss\":[[1]]}", NULL},
        {"{\"input \":[1]}", NULL},
        {"{\"name\\n\":\"x\"}", NULL},
        {"{\"n\\u00e1me\":\"x\"}", NULL},
        {"{\"n\\u0161me\":\"x\"}", NULL},
        {"{\"unknown\":{\"input\":[1]}}", NULL},
        {"{\"unknown\":[{\"a\":[[],{}]},null,1.5,\"x\"],\"flag\":1}", NULL},
        /* the first fault is the one told */
        {"{\"flag\":1,\"unknown\":1}", "flag"},
        {"{\"count\":\"1\",\"flag\":1}", "count"},
        /* twice */
        {"{\"flag\":true,\"flag\":true}", "flag"},
        {"{\"input\":[1],\"input\":[1]}", "input"},
        {"{\"input\":[1],\"inp\\u0075t\":[1]}", "input"},
        {"{\"inp\\u0075t\":[1],\"input\":[1]}", "input"},
        {"{\"n\\u0061me\":\"x\",\"\\u006eame\":\"x\"}", "name"},
        {"{\"inputs\":[[1]],\"inputs\":1}", "inputs"},
        /* null */
        {"{\"name\":null}", "name"},
        {"{\"flag\":null}", "flag"},
        {"{\"count\":null}", "count"},
        {"{\"heat\":null}", "heat"},
        {"{\"input\":null}", "input"},
        {"{\"inputs\":null}", "inputs"},
        {"{\"ids\":null}", "ids"},
        {"{\"input\":[null]}", "input"},
        {"{\"inputs\":[null]}", "inputs"},
        {"{\"inputs\":[[null]]}", "inputs"},
        {"{\"ids\":[1,null]}", "ids"},
        {"{\"stop\":null}", "stop"},
        {"{\"stop\":[\"x\",null]}", "stop"},
        /* other wrong types */
        {"{\"name\":1}", "name"},
        {"{\"name\":[\"x\"]}", "name"},
        {"{\"name\":true}", "name"},
        {"{\"flag\":0}", "flag"},
        {"{\"flag\":\"true\"}", "flag"},
        {"{\"flag\":[]}", "flag"},
        {"{\"count\":\"1\"}", "count"},
        {"{\"count\":true}", "count"},
        {"{\"count\":[1]}", "count"},
        {"{\"heat\":\"1\"}", "heat"},
        {"{\"heat\":{}}", "heat"},
        {"{\"input\":1}", "input"},
        {"{\"input\":\"1\"}", "input"},
        {"{\"input\":{}}", "input"},
        {"{\"input\":[\"1\"]}", "input"},
        {"{\"input\":[true]}", "input"},
        {"{\"input\":[[1]]}", "input"},
        {"{\"input\":[1,{}]}", "input"},
        {"{\"ids\":1}", "ids"},
        {"{\"ids\":[[1]]}", "ids"},
        {"{\"ids\":[\"1\"]}", "ids"},
        {"{\"stop\":1}", "stop"},
        {"{\"stop\":true}", "stop"},
        {"{\"stop\":{\"0\":\"x\"}}", "stop"},
        {"{\"stop\":[1]}", "stop"},
        {"{\"stop\":[\"x\",[\"y\"]]}", "stop"},
        {"{\"stop\":[[\"y\"]]}", "stop"},
        {"{\"stop\":\"x\",\"stop\":\"x\"}", "stop"},
        /* lengths of strings */
        {"{\"name\":\"\"}", "name"},
        {"{\"name\":\"123456789\"}", "name"},
        {"{\"name\":\"1234567\xc3\xa9\"}", "name"},
        {"{\"name\":\"a string longer than any escaping of eight bytes can be, by far\"}", "name"},
        /* integers */
        {"{\"count\":0}", "count"},
        {"{\"count\":-1}", "count"},
        {"{\"count\":-0}", "count"},
        {"{\"count\":1.0}", "count"},
        {"{\"count\":1.5}", "count"},
        {"{\"count\":1e0}", "count"},
        {"{\"count\":1E2}", "count"},
        {"{\"count\":9007199254740993}", "count"},
        {"{\"count\":18446744073709551617}", "count"},
        {"{\"count\":1e999}", "count"},
        {"{\"ids\":[-1]}", "ids"},
        {"{\"ids\":[1.5]}", "ids"},
        {"{\"ids\":[1,1e1]}", "ids"},
        {"{\"ids\":[9007199254740993]}", "ids"},
        {"{\"ids\":[99999999999999999999999999]}", "ids"},
        /* numbers past float32 */
        {"{\"heat\":1e39}", "heat"},
        {"{\"heat\":-1e999}", "heat"},
        {"{\"input\":[1e39]}", "input"},
        {"{\"input\":[1,-1e999]}", "input"},
        {"{\"inputs\":[[1,3.4028236e38]]}", "inputs"},
        /* shapes */
        {"{\"input\":[1,2,3,4,5,6]}", "input"},
        {"{\"ids\":[]}", "ids"},
        {"{\"ids\":[1,2,3,4,5]}", "ids"},
        {"{\"stop\":[]}", "stop"},
        {"{\"stop\":[ ]}", "stop"},
        {"{\"stop\":[\"\",\"\",\"\",\"\"]}", "stop"},
        {"{\"inputs\":[]}", "inputs"},
        {"{\"inputs\":[ ]}", "inputs"},
        {"{\"inputs\":[[]]}", "inputs"},
        {"{\"inputs\":[[1],[]]}", "inputs"},
        {"{\"inputs\":[[],[1]]}", "inputs"},
        {"{\"inputs\":[[1,2],[3]]}", "inputs"},
        {"{\"inputs\":[[1],[2,3]]}", "inputs"},
        {"{\"inputs\":[1,2]}", "inputs"},
        {"{\"inputs\":[[1],2]}", "inputs"},
        {"{\"inputs\":[[[1]]]}", "inputs"},
        {"{\"inputs\":[[1,[2]]]}", "inputs"},
        {"{\"inputs\":[{}]}", "inputs"},
        {"{\"inputs\":[\"1\"]}", "inputs"},
        {"{\"inputs\":[[1],[2],[3],[4],[5]]}", "inputs"},
        {"{\"inputs\":{\"0\":[1]}}", "inputs"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(cases[i].text, "invalid_request", cases[i].param);
}

/* What no field's name can say is told by its place, whatever the client's name for it is. */
static void test_offsets(void **state)
{
    (void)state;
    static const struct {
        const char *text, *at; /* the offset is that of the first `at` */
    } cases[] = {
        {"{\"unknown\":1}", "\"unknown"},
        {" { \"flag\" : true , \"unknown\" : 1 }", "\"unknown"},
        {"{\"flag\":true,\"\":1}", "\"\""},
        {"{\"x\":1,\"y\":1}", "\"x"},
        {"{\"x\":{\"y\":1}}", "\"x"},
        {"{\"a\\\"b\\\\\":1}", "\"a"},
        {"{\"flag\":true,\"</script>\\u001b[2J\":1}", "\"<"},
        /* broken: in the member, behind it, behind the object */
        {"{\"flag\":true,\"a\x01\":1}", "\"a"},
        {"{\"flag\":true,\"a\xff\":1}", "\"a"},
        {"{\"flag\":true,\"a\xc3\":1}", "\"a"},
        {"{\"flag\":true,\"a\\ud800\":1}", "\"a"},
        {"{\"flag\":true,\"heat\":NaN}", "\"heat"},
        {"{\"flag\":true,\"heat\":1,}", "}"},
        {"{\"flag\":true,heat:1}", "heat"},
        {"{\"flag\":true \"heat\":1}", "\"flag"},
        {"{\"x\":1,\"inputs\":[[1],[1}", "\"inputs"},
        {"{\"flag\":true} ,", ","},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        result r;
        const char *text = cases[i].text;
        assert_false(read_body(text, &r));
        assert_null(r.error.param);
        if (r.error.offset != (size_t)(strstr(text, cases[i].at) - text))
            fail_msg("%s: offset %zu", text, r.error.offset);
    }
    /* A name of a megabyte costs no more than its reading. */
    const size_t long_name = 1 << 20;
    char *text = malloc(long_name + 32);
    static const char head[] = "{\"flag\":true,\"";
    memset(text, 'x', sizeof head - 1 + long_name);
    memcpy(text, head, sizeof head - 1);
    memcpy(text + sizeof head - 1 + long_name, "\":1}", 5);
    result r;
    assert_false(read_body(text, &r));
    assert_string_equal(r.error.message, "unknown field");
    assert_int_equal(r.error.offset, sizeof head - 2);
    free(text);
    /* Who is named, or is nowhere, has no place. */
    static const char *const nowhere[] = {"[1]", "[1", "", "{\"flag\":1}",
                                          "{\"flag\":true,\"flag\":true}"};
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        assert_false(read_body(nowhere[i], &r));
        assert_int_equal(r.error.offset, SIZE_MAX);
    }
}

static void test_required_fields(void **state)
{
    (void)state;
    static const srv_json_field table[] = {
        {"a", SRV_JSON_STRING, true, 0, 9},
        {"ab", SRV_JSON_INTEGERS, true, 0, 9},
        {"abc", SRV_JSON_BOOL, false, 0, 0},
    };
    static const struct {
        const char *text, *missing;
    } cases[] = {
        {"{}", "a"},
        {"{\"a\":\"\"}", "ab"},
        {"{\"ab\":[],\"abc\":true}", "a"},
        {"{\"ab\":[],\"a\":\"\"}", NULL},
        {"{\"abc\":true,\"ab\":[1],\"a\":\"x\"}", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        srv_json_value values[3];
        srv_json_error error;
        const char *text = cases[i].text;
        const bool ok = read_bytes(text, strlen(text), table, 3, values, &error);
        assert_int_equal(ok, cases[i].missing == NULL);
        if (ok)
            srv_json_values_free(table, 3, values);
        else
            assert_string_equal(error.param, cases[i].missing);
    }
    /* No fields at all, and no text at all. */
    srv_json_error error;
    assert_true(srv_json_read("{}", 2, NULL, 0, NULL, &error));
    assert_false(srv_json_read("{\"a\":1}", 7, NULL, 0, NULL, &error));
    assert_false(srv_json_read(NULL, 0, NULL, 0, NULL, &error));
    assert_string_equal(error.code, "invalid_json");
}

static void test_numbers_are_the_text_s_own(void **state)
{
    (void)state;
    result r;
    read_good("{\"heat\":0.1,\"count\":9007199254740991,\"input\":[0.1,16777217,-0]}", &r);
    assert_true(r.values[HEAT].number == 0.1);
    assert_true(r.values[COUNT].integer == UINT64_C(9007199254740991));
    assert_true(r.values[ROW].floats.values[0] == 0.1f);
    assert_true(r.values[ROW].floats.values[1] == 16777216.0f);
    assert_true(signbit(r.values[ROW].floats.values[2]));
    release(&r);
    /* A number longer than cJSON's 63 characters. */
    read_good("{\"heat\":1.00000000000000000000000000000000000000000000000000000000000000000000000"
              "00000000000000001e2,\"flag\":true}",
              &r);
    assert_true(r.values[HEAT].number == 100);
    assert_true(r.values[FLAG].boolean);
    release(&r);
}

/* open and close, each n times, around the middle, behind a prefix and before a suffix */
static char *nest(const char *prefix, char open, size_t n, const char *middle, char close,
                  const char *suffix)
{
    const size_t before = strlen(prefix), within = strlen(middle);
    char *text = malloc(before + within + strlen(suffix) + 2 * n + 1);
    memcpy(text, prefix, before);
    memset(text + before, open, n);
    memcpy(text + before + n, middle, within);
    memset(text + before + n + within, close, n);
    memcpy(text + before + 2 * n + within, suffix, strlen(suffix) + 1);
    return text;
}

static void test_nesting(void **state)
{
    (void)state;
    static const size_t depths[] = {1, 10, 30, 31, 32, 33, 34, 100, 1000, 10000, 1000000};
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        const size_t n = depths[i];
        char *text = nest("", '[', n, "", ']', "");
        assert_refused(text, n <= 32 ? "invalid_request" : "invalid_json", NULL);
        text[n] = '\0'; /* never closed */
        assert_refused(text, "invalid_json", NULL);
        free(text);
        text = nest("{\"unknown\":", '[', n, "", ']', "}");
        assert_refused(text, n <= 31 ? "invalid_request" : "invalid_json", NULL);
        free(text);
        text = nest("{\"inputs\":", '[', n, "1", ']', "}");
        if (n != 2)
            assert_refused(text, n <= 31 ? "invalid_request" : "invalid_json",
                           n <= 31 ? "inputs" : NULL);
        free(text);
    }
    /* Objects, and both in turn. */
    for (int levels = 1; levels <= 33; levels++) {
        char text[1000] = "";
        size_t len = 0;
        for (int i = 0; i < levels; i++)
            len += (size_t)snprintf(text + len, sizeof text - len, "%s", i % 2 ? "[" : "{\"a\":");
        len += (size_t)snprintf(text + len, sizeof text - len, "1");
        for (int i = levels - 1; i >= 0; i--)
            len += (size_t)snprintf(text + len, sizeof text - len, "%s", i % 2 ? "]" : "}");
        assert_refused(text, levels <= 32 ? "invalid_request" : "invalid_json", NULL);
        text[len - 1] = text[len - 1] == '}' ? ']' : '}';
        assert_refused(text, "invalid_json", NULL);
    }
}

static void test_large_arrays(void **state)
{
    (void)state;
    static const srv_json_field table[] = {
        {"rows", SRV_JSON_FLOAT_ROWS, false, 1, 1000000},
        {"ids", SRV_JSON_INTEGERS, false, 1, 1000000},
    };
    const size_t n = 100000, room = n * 40;
    char *text = malloc(room);
    size_t len = (size_t)snprintf(text, room, "{\"rows\":[");
    for (size_t i = 0; i < n; i++)
        len += (size_t)snprintf(text + len, room - len, "%s[%zu,%zu.5]", i ? "," : "", i, i);
    len += (size_t)snprintf(text + len, room - len, "],\"ids\":[");
    for (size_t i = 0; i < n; i++)
        len += (size_t)snprintf(text + len, room - len, "%s%zu", i ? "," : "", i);
    len += (size_t)snprintf(text + len, room - len, "]}");
    srv_json_value values[2];
    srv_json_error error;
    assert_true(read_bytes(text, len, table, 2, values, &error));
    free(text);
    assert_int_equal(values[0].floats.rows, n);
    assert_int_equal(values[0].floats.cols, 2);
    assert_int_equal(values[1].integers.count, n);
    for (size_t i = 0; i < n; i++) {
        assert_true(values[0].floats.values[2 * i] == (float)i);
        assert_true(values[0].floats.values[2 * i + 1] == (float)i + 0.5f);
        assert_true(values[1].integers.values[i] == i);
    }
    srv_json_values_free(table, 2, values);
}

/* A body cut anywhere is broken JSON, but for the white space behind it. */
static void test_every_truncation(void **state)
{
    (void)state;
    size_t whole = sizeof whole_body - 1;
    while (whole_body[whole - 1] != '}')
        whole--;
    for (size_t len = 0; len < whole; len++)
        assert_refused_bytes(whole_body, len, "invalid_json", NULL);
}

/* Every byte of a body replaced by every other byte: an answer, and nothing leaked or overrun. */
static void test_every_byte_changed(void **state)
{
    (void)state;
    char text[sizeof whole_body];
    memcpy(text, whole_body, sizeof text);
    int n_good = 0;
    for (size_t i = 0; i < sizeof whole_body - 1; i++) {
        for (int byte = 0; byte < 256; byte++) {
            text[i] = (char)byte;
            result r;
            if (read_bytes(text, sizeof text - 1, fields, N_FIELDS, r.values, &r.error)) {
                n_good++;
                release(&r);
            }
        }
        text[i] = whole_body[i];
    }
    assert_true(n_good > (int)sizeof whole_body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type),
        cmocka_unit_test(test_good_bodies),
        cmocka_unit_test(test_broken_json),
        cmocka_unit_test(test_wrong_requests),
        cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_required_fields),
        cmocka_unit_test(test_numbers_are_the_text_s_own),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_large_arrays),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_every_byte_changed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
