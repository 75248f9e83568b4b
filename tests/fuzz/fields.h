/* A request's fields, and what holds for their values and errors, for the targets that read them. */
#ifndef ATTN_FUZZ_FIELDS_H
#define ATTN_FUZZ_FIELDS_H

#include "tests/fuzz/fuzz.h"

#include "server/json/float_text.h"
#include "server/json/json_read.h"
#include "server/json/utf8.h"

#include <math.h>
#include <stdlib.h>

enum { SESSION, INPUT, INPUTS, TOKENS, STEPS, STREAM, TEMPERATURE, SEED, STOP, TRACE, COUNT };

static const srv_json_field fields[COUNT] = {
    [SESSION] = {"session", SRV_JSON_STRING, true, 0, 64},
    [INPUT] = {"input", SRV_JSON_FLOAT_ROW, false, 1, SIZE_MAX},
    [INPUTS] = {"inputs", SRV_JSON_FLOAT_ROWS, false, 1, 8},
    [TOKENS] = {"tokens", SRV_JSON_INTEGERS, false, 1, SIZE_MAX},
    [STEPS] = {"steps", SRV_JSON_INTEGER, false, 1, 1000},
    [STREAM] = {"stream", SRV_JSON_BOOL, false, 0, 0},
    [TEMPERATURE] = {"temperature", SRV_JSON_NUMBER, false, 0, 0},
    [SEED] = {"seed", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
    [STOP] = {"stop", SRV_JSON_STRINGS, false, 1, 4},
    [TRACE] = {"trace", SRV_JSON_OBJECT, false, 0, 64},
};

static void check_string(const char *text)
{
    const char *end = text + strlen(text);
    for (const char *p = text; p < end;) {
        size_t n = srv_utf8_length(p, end);
        ATTN_ASSERT(n > 0);
        p += n;
    }
}

/* Finite, and printed they are read back as the same bits. */
static void check_floats(const srv_json_value *value)
{
    for (size_t i = 0; i < value->floats.rows * value->floats.cols; i++) {
        char text[SRV_FLOAT_TEXT_MAX];
        float v = value->floats.values[i], again;
        srv_float_status status;
        size_t n = srv_float_format(text, v);
        ATTN_ASSERT(isfinite(v) && n > 0 && n <= SRV_FLOAT_TEXT_MAX);
        ATTN_ASSERT(srv_float_parse(text, text + n, &again, &status) == text + n);
        ATTN_ASSERT(status == SRV_FLOAT_OK && memcmp(&again, &v, sizeof v) == 0);
    }
}

static void check_value(const srv_json_field *field, const srv_json_value *value)
{
    uint64_t n = field->min; /* what `min` and `max` bound */
    if (!value->present) {
        ATTN_ASSERT(!field->required);
        return;
    }
    switch (field->type) {
    case SRV_JSON_STRING:
        n = value->string.len;
        ATTN_ASSERT(n == strlen(value->string.text));
        check_string(value->string.text);
        break;
    case SRV_JSON_OBJECT:
        n = value->string.len;
        ATTN_ASSERT(n >= 2 && n == strlen(value->string.text));
        ATTN_ASSERT(value->string.text[0] == '{' && value->string.text[n - 1] == '}');
        break;
    case SRV_JSON_INTEGER:
        n = value->integer;
        break;
    case SRV_JSON_NUMBER:
        ATTN_ASSERT(isfinite(value->number));
        break;
    case SRV_JSON_FLOAT_ROW:
    case SRV_JSON_FLOAT_ROWS:
        n = field->type == SRV_JSON_FLOAT_ROW ? value->floats.cols : value->floats.rows;
        check_floats(value);
        break;
    case SRV_JSON_INTEGERS:
        n = value->integers.count;
        for (size_t i = 0; i < n; i++)
            ATTN_ASSERT(value->integers.values[i] <= SRV_JSON_INTEGER_MAX);
        break;
    case SRV_JSON_STRINGS:
        n = value->strings.count;
        for (size_t i = 0; i < n; i++)
            check_string(value->strings.texts[i]);
        break;
    case SRV_JSON_BOOL:
        break;
    }
    ATTN_ASSERT(n >= field->min && n <= field->max);
}

static void check_error(const srv_json_error *error)
{
    ATTN_ASSERT(strcmp(error->code, "invalid_json") == 0 ||
                strcmp(error->code, "invalid_request") == 0);
    ATTN_ASSERT(error->message != NULL && strchr(error->message, '\n') == NULL);
    size_t i = 0;
    if (error->param == NULL || strcmp(error->param, "__metadata__") == 0)
        return;
    while (error->param != fields[i].name)
        ATTN_ASSERT(++i < COUNT);
}

/* Reads with one of the readers, and judges what it says. `text` is memory of its own. */
static void check_reader(bool (*read)(const char *, size_t, const srv_json_field *, size_t,
                                      srv_json_value *, srv_json_error *),
                         const char *text, size_t len)
{
    static const srv_json_value none[COUNT];
    srv_json_value values[COUNT];
    srv_json_error error;
    if (read(text, len, fields, COUNT, values, &error)) {
        ATTN_ASSERT(error.code == NULL && error.message == NULL);
        for (size_t i = 0; i < COUNT; i++)
            check_value(&fields[i], &values[i]);
        srv_json_values_free(fields, COUNT, values);
    } else {
        check_error(&error);
    }
    ATTN_ASSERT(memcmp(values, none, sizeof none) == 0);
}

#endif
