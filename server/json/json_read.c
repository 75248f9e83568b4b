#include "server/json/json_read.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "server/buf.h"
#include "server/json/float_text.h"
#include "server/json/utf8.h"

/* ---- grammar ----
 *
 * Each scan_ function takes the start of something and returns its end, or NULL if it is not well
 * formed. text[len] == 0 is the sentinel: no rule accepts a NUL, so none can run past the end. */

static const char *skip_space(const char *p)
{
    while (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')
        p++;
    return p;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The value of four hexadecimal digits, or -1. */
static int hex4(const char *p)
{
    int value = 0;
    for (int i = 0; i < 4; i++) {
        const char c = p[i];
        int digit;
        if (is_digit(c))
            digit = c - '0';
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            digit = (c | 0x20) - 'a' + 10;
        else
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* From behind the backslash. */
static const char *scan_escape(const char *p)
{
    if (*p != 'u')
        return *p && strchr("\"\\/bfnrt", *p) ? p + 1 : NULL;
    const int unit = hex4(p + 1);
    p += 5;
    if (unit <= 0 || (unit >= 0xdc00 && unit <= 0xdfff))
        return NULL;
    if (unit < 0xd800 || unit > 0xdbff)
        return p;
    if (p[0] != '\\' || p[1] != 'u')
        return NULL;
    const int low = hex4(p + 2);
    return low >= 0xdc00 && low <= 0xdfff ? p + 6 : NULL;
}

static const char *scan_string(const char *p, const char *end)
{
    for (p++; *p != '"';) {
        const unsigned char c = (unsigned char)*p;
        if (c == '\\') {
            p = scan_escape(p + 1);
            if (!p)
                return NULL;
        } else if (c < ' ') {
            return NULL;
        } else if (c < 0x80) {
            p++;
        } else {
            const size_t n = srv_utf8_length(p, end);
            if (n == 0)
                return NULL;
            p += n;
        }
    }
    return p + 1;
}

static const char *scan_digits(const char *p)
{
    while (is_digit(*p))
        p++;
    return p;
}

static const char *scan_number(const char *p, const char *end)
{
    float ignored;
    srv_float_status status;
    return srv_float_parse(p, end, &ignored, &status);
}

/* A string, number, true, false or null. */
static const char *scan_scalar(const char *p, const char *end)
{
    if (*p == '"')
        return scan_string(p, end);
    if (*p == '-' || is_digit(*p))
        return scan_number(p, end);
    if (strncmp(p, "true", 4) == 0 || strncmp(p, "null", 4) == 0)
        return p + 4;
    return strncmp(p, "false", 5) == 0 ? p + 5 : NULL;
}

/* From a member's name to its value. */
static const char *scan_name(const char *p, const char *end)
{
    p = *p == '"' ? scan_string(p, end) : NULL;
    p = p ? skip_space(p) : NULL;
    return p && *p == ':' ? skip_space(p + 1) : NULL;
}

/* Any value inside `depth` open arrays and objects. Which of these are objects is one bit each. */
static const char *scan_value(const char *p, const char *end, unsigned depth, bool *too_deep)
{
    const unsigned outside = depth;
    uint64_t objects = 0;
    for (;;) {
        /* At a value. */
        if (*p == '{' || *p == '[') {
            if (depth == SRV_JSON_DEPTH_MAX) {
                *too_deep = true;
                return NULL;
            }
            const bool object = *p == '{';
            objects = objects << 1 | object;
            depth++;
            p = skip_space(p + 1);
            if (*p != (object ? '}' : ']')) {
                p = object ? scan_name(p, end) : p;
                if (!p)
                    return NULL;
                continue;
            }
        } else {
            p = scan_scalar(p, end);
            if (!p)
                return NULL;
        }
        /* Behind a value, or at the bracket that closes an empty one. */
        for (;;) {
            if (depth == outside)
                return p;
            p = skip_space(p);
            const bool object = objects & 1;
            if (*p == ',') {
                p = skip_space(p + 1);
                p = object ? scan_name(p, end) : p;
                if (!p)
                    return NULL;
                break;
            }
            if (*p != (object ? '}' : ']'))
                return NULL;
            p++;
            depth--;
            objects >>= 1;
        }
    }
}

/* ---- values ---- */

static const char wrong_type[] = "the field has the wrong type";
static const char out_of_range[] = "the number is out of range";
static const char wrong_length[] = "the string is too short or too long";
static const char out_of_memory[] = "out of memory";

/* A read_ function takes the start of a field's value and returns its end, or NULL after setting
 * *problem. It may stop anywhere: whether the rest is JSON at all is found out afterwards. */

static const char *read_integer(const char *p, const char *end, uint64_t *out, const char **problem)
{
    const char *behind = scan_number(p, end);
    if (!behind || behind != scan_digits(p)) {
        *problem = behind ? "the number must be an integer, written in digits only" : wrong_type;
        return NULL;
    }
    /* 16 digits reach past 2^53 and cannot overflow. */
    uint64_t value = 0;
    for (const char *q = p; q < behind && q - p < 16; q++)
        value = value * 10 + (uint64_t)(*q - '0');
    if (behind - p > 16 || value > SRV_JSON_INTEGER_MAX) {
        *problem = out_of_range;
        return NULL;
    }
    *out = value;
    return behind;
}

static const char *read_float(const char *p, const char *end, float *out, const char **problem)
{
    srv_float_status status;
    p = srv_float_parse(p, end, out, &status);
    if (status == SRV_FLOAT_OK)
        return p;
    *problem = status == SRV_FLOAT_OVERFLOW ? "the number overflows float32" : wrong_type;
    return NULL;
}

static const char *read_number(const char *p, const char *end, double *out, const char **problem)
{
    float nearest;
    const char *behind = read_float(p, end, &nearest, problem);
    if (behind)
        *out = strtod(p, NULL);
    return behind;
}

/* Appends the elements of the array of numbers at p, `most` at most, as float or uint64_t. */
static const char *read_elements(const char *p, const char *end, srv_json_type type, uint64_t most,
                                 srv_buf *elements, size_t *count, const char **problem)
{
    *count = 0;
    if (*p != '[') {
        *problem = wrong_type;
        return NULL;
    }
    p = skip_space(p + 1);
    if (*p == ']')
        return p + 1;
    for (;; p = skip_space(p + 1)) {
        if (*count == most) {
            *problem = "the array has too many elements";
            return NULL;
        }
        float f;
        uint64_t u;
        const bool integers = type == SRV_JSON_INTEGERS;
        p = integers ? read_integer(p, end, &u, problem) : read_float(p, end, &f, problem);
        if (!p)
            return NULL;
        if (!(integers ? srv_buf_append(elements, &u, sizeof u)
                       : srv_buf_append(elements, &f, sizeof f))) {
            *problem = out_of_memory;
            return NULL;
        }
        ++*count;
        p = skip_space(p);
        if (*p == ']')
            return p + 1;
        if (*p != ',') {
            *problem = wrong_type;
            return NULL;
        }
    }
}

/* Appends the elements of the array of equally long rows at p, `most` rows at most. */
static const char *read_rows(const char *p, const char *end, uint64_t most, srv_buf *elements,
                             size_t *rows, size_t *cols, const char **problem)
{
    *rows = 0;
    *cols = 0;
    if (*p != '[') {
        *problem = wrong_type;
        return NULL;
    }
    for (p = skip_space(p + 1);; p = skip_space(p + 1)) {
        if (*rows == 0 && *p == ']') {
            *problem = "the array has no rows";
            return NULL;
        }
        if (*rows == most) {
            *problem = "the array has too many rows";
            return NULL;
        }
        size_t count;
        const char *row = p;
        p = read_elements(p, end, SRV_JSON_FLOAT_ROW, *rows ? *cols : SIZE_MAX, elements, &count,
                          problem);
        if (!p)
            return NULL;
        if (count == 0 || (*rows > 0 && count != *cols)) {
            *problem = "the rows must be equally long and not empty";
            return NULL;
        }
        *cols = count;
        if (++*rows == 1) /* the others' text is about as long */
            srv_buf_expect(elements, elements->len * ((size_t)(end - p) / (size_t)(p - row) + 2));
        p = skip_space(p);
        if (*p == ']')
            return p + 1;
        if (*p != ',') {
            *problem = wrong_type;
            return NULL;
        }
    }
}

/* Reads an array field. The ceiling of its buffer: an element takes two bytes of text or more. */
static const char *read_array(const char *p, const char *end, const srv_json_field *field,
                              srv_json_value *value, const char **problem)
{
    const size_t most_elements = (size_t)(end - p) / 2 + 1;
    srv_buf elements;
    srv_buf_init(&elements, most_elements * sizeof(uint64_t));
    size_t rows = 1, count = 0;
    if (field->type == SRV_JSON_FLOAT_ROWS)
        p = read_rows(p, end, field->max, &elements, &rows, &count, problem);
    else
        p = read_elements(p, end, field->type, field->max, &elements, &count, problem);
    if (p && (field->type == SRV_JSON_FLOAT_ROWS ? rows : count) < field->min) {
        *problem = "the array has too few elements";
        p = NULL;
    }
    if (!p) {
        srv_buf_free(&elements);
        return NULL;
    }
    if (field->type == SRV_JSON_INTEGERS) {
        value->integers.values = (void *)elements.data;
        value->integers.count = count;
    } else {
        value->floats.values = (void *)elements.data;
        value->floats.rows = rows;
        value->floats.cols = count;
    }
    return p;
}

/* ---- the body ---- */

typedef struct {
    const char *text, *end;
    const char *member; /* the one being read, or what stands behind the object; NULL: none yet */
    const srv_json_field *fields;
    size_t n_fields;
    srv_json_value *values;
    srv_buf scalars;       /* the object of strings and booleans for cJSON: {"name":value,... */
    srv_json_error *error; /* the first; error->code is NULL while there is none */
} reader;

static void fail(reader *r, const char *code, const char *param, const char *message)
{
    if (!r->error->code)
        *r->error = (srv_json_error){code, param, message, SIZE_MAX};
}

/* What is wrong with the member being read, which no field's name tells. */
static void fail_member(reader *r, const char *code, const char *message)
{
    fail(r, code, NULL, message);
    if (r->member)
        r->error->offset = (size_t)(r->member - r->text);
}

/* What is wrong with a field's value. */
static void fail_field(reader *r, const srv_json_field *field, const char *problem)
{
    if (problem == out_of_memory)
        fail(r, "internal", NULL, out_of_memory);
    else
        fail(r, "invalid_request", field->name, problem);
}

/* Compares the text of a checked name, between its quotes, with a field's. A field's name has no
 * character with a short escape, and its final NUL equals no character of the text. */
static bool is_name(const char *p, const char *name)
{
    while (*p != '"') {
        int c = (unsigned char)*p++;
        if (c == '\\') {
            if (*p != 'u')
                return false;
            c = hex4(p + 1);
            p += 5;
        }
        if (c != (unsigned char)*name++)
            return false;
    }
    return *name == '\0';
}

/* Hands the text of a field's value to cJSON. Returns its end. */
static const char *give_to_cjson(reader *r, const char *p, const char *behind,
                                 const srv_json_field *field, const char **problem)
{
    srv_buf_puts(&r->scalars, r->scalars.len ? ",\"" : "{\"");
    srv_buf_puts(&r->scalars, field->name);
    srv_buf_puts(&r->scalars, "\":");
    if (srv_buf_append(&r->scalars, p, (size_t)(behind - p)))
        return behind;
    *problem = out_of_memory;
    return NULL;
}

/* Checks the string or boolean at p and hands its text to cJSON. */
static const char *take_scalar(reader *r, const char *p, const srv_json_field *field,
                               const char **problem)
{
    const bool string = field->type == SRV_JSON_STRING;
    if (string ? *p != '"' : *p != 't' && *p != 'f') {
        *problem = wrong_type;
        return NULL;
    }
    const char *behind = scan_scalar(p, r->end);
    if (!behind)
        return NULL;
    /* An escape spends six bytes at most on one. */
    if (string && (uint64_t)(behind - p - 2) / 6 > field->max) {
        *problem = wrong_length;
        return NULL;
    }
    return give_to_cjson(r, p, behind, field, problem);
}

/* Checks the string or the array of strings at p and hands its text to cJSON. */
static const char *take_strings(reader *r, const char *p, const srv_json_field *field,
                                const char **problem)
{
    const char *begin = p;
    uint64_t count = 0;
    const bool array = *p == '[';
    p = array ? skip_space(p + 1) : p;
    bool more = !array || *p != ']';
    while (more) {
        if (count++ == field->max) {
            *problem = "the array has too many elements";
            return NULL;
        }
        p = *p == '"' ? scan_string(p, r->end) : NULL;
        if (!p)
            return NULL;
        if (!array)
            break;
        p = skip_space(p);
        more = *p == ',';
        p = more ? skip_space(p + 1) : p;
    }
    if (array && *p++ != ']')
        return NULL;
    if (count < field->min) {
        *problem = "the array has too few elements";
        return NULL;
    }
    return give_to_cjson(r, begin, p, field, problem);
}

/* Copies the text of the object at p. */
static const char *take_object(const reader *r, const char *p, const srv_json_field *field,
                               srv_json_value *value, const char **problem)
{
    bool too_deep = false;
    const char *behind = *p == '{' ? scan_value(p, r->end, 1, &too_deep) : NULL;
    if (!behind)
        return NULL;
    const size_t len = (size_t)(behind - p);
    if (len < field->min || len > field->max) {
        *problem = "the object is too long";
        return NULL;
    }
    value->string.text = malloc(len + 1);
    if (!value->string.text) {
        *problem = out_of_memory;
        return NULL;
    }
    memcpy(value->string.text, p, len);
    value->string.text[len] = '\0';
    value->string.len = len;
    return behind;
}

/* Reads the value at p of a field, all but what cJSON will read. */
static const char *read_value(reader *r, const char *p, const srv_json_field *field,
                              srv_json_value *value, const char **problem)
{
    switch (field->type) {
    case SRV_JSON_STRING:
    case SRV_JSON_BOOL:
        return take_scalar(r, p, field, problem);
    case SRV_JSON_STRINGS:
        return take_strings(r, p, field, problem);
    case SRV_JSON_OBJECT:
        return take_object(r, p, field, value, problem);
    case SRV_JSON_INTEGER:
        p = read_integer(p, r->end, &value->integer, problem);
        if (p && (value->integer < field->min || value->integer > field->max)) {
            *problem = out_of_range;
            return NULL;
        }
        return p;
    case SRV_JSON_NUMBER:
        return read_number(p, r->end, &value->number, problem);
    case SRV_JSON_FLOAT_ROW:
    case SRV_JSON_FLOAT_ROWS:
    case SRV_JSON_INTEGERS:
        return read_array(p, r->end, field, value, problem);
    }
    return NULL;
}

/* Reads the member, whose value is at p, into the field of its name. Returns NULL, perhaps after
 * fail(), if its value was not read. */
static const char *read_member(reader *r, const char *p)
{
    size_t i = 0;
    while (i < r->n_fields && !is_name(r->member + 1, r->fields[i].name))
        i++;
    if (i == r->n_fields) {
        fail_member(r, "invalid_request", "unknown field");
        return NULL;
    }
    if (r->values[i].present) {
        fail(r, "invalid_request", r->fields[i].name, "the field is given twice");
        return NULL;
    }
    const char *problem = wrong_type;
    p = read_value(r, p, &r->fields[i], &r->values[i], &problem);
    if (p)
        r->values[i].present = true;
    else
        fail_field(r, &r->fields[i], problem);
    return p;
}

/* Goes through the whole object, reading members until one of them is wrong, and then only checking
 * the grammar of the rest. Returns its end, or NULL. */
static const char *read_object(reader *r, const char *p, bool *too_deep)
{
    p = skip_space(p + 1);
    if (*p == '}')
        return p + 1;
    for (;;) {
        r->member = p;
        const char *value = scan_name(p, r->end);
        if (!value)
            return NULL;
        p = r->error->code ? NULL : read_member(r, value);
        if (!p)
            p = scan_value(value, r->end, 1, too_deep);
        if (!p)
            return NULL;
        p = skip_space(p);
        if (*p == '}')
            return p + 1;
        if (*p != ',')
            return NULL;
        p = skip_space(p + 1);
    }
}

/* Reads the text but for the values that cJSON reads. */
static void read_text(reader *r)
{
    bool too_deep = false;
    const char *p = skip_space(r->text);
    if (*p == '{') {
        p = read_object(r, p, &too_deep);
    } else {
        p = scan_value(p, r->end, 0, &too_deep);
        fail(r, "invalid_request", NULL, "the body must be a JSON object");
    }
    if (p) {
        r->member = skip_space(p);
        if (r->member == r->end)
            return;
    }
    /* Broken JSON comes before whatever else was found. */
    r->error->code = NULL;
    fail_member(r, "invalid_json",
                too_deep ? "the body is nested too deeply" : "the body is not valid JSON");
}

/* Takes a string out of cJSON's hands. */
static char *take_text(cJSON *item)
{
    char *text = item->valuestring;
    item->valuestring = NULL;
    return text;
}

/* Takes the strings of a string or an array of them. False when out of memory. */
static bool read_strings(cJSON *item, srv_json_value *value)
{
    const bool array = cJSON_IsArray(item);
    const int n = array ? cJSON_GetArraySize(item) : 1;
    if (n == 0)
        return true;
    value->strings.texts = calloc((size_t)n, sizeof *value->strings.texts);
    if (!value->strings.texts)
        return false;
    for (cJSON *one = array ? item->child : item; one; one = array ? one->next : NULL)
        value->strings.texts[value->strings.count++] = take_text(one);
    return true;
}

/* Reads strings and booleans from the object made for cJSON. */
static void read_scalars(reader *r)
{
    if (r->scalars.len == 0)
        return;
    if (!srv_buf_puts(&r->scalars, "}")) {
        fail(r, "internal", NULL, out_of_memory);
        return;
    }
    cJSON *object = cJSON_ParseWithLengthOpts(r->scalars.data, r->scalars.len + 1, NULL, true);
    if (!object) { /* the text is valid, so memory it is */
        fail(r, "internal", NULL, out_of_memory);
        return;
    }
    for (size_t i = 0; i < r->n_fields; i++) {
        const srv_json_field *field = &r->fields[i];
        srv_json_value *value = &r->values[i];
        cJSON *item = value->present ? cJSON_GetObjectItemCaseSensitive(object, field->name) : NULL;
        if (!item) /* read already */
            continue;
        if (field->type == SRV_JSON_BOOL) {
            value->boolean = cJSON_IsTrue(item);
            continue;
        }
        if (field->type == SRV_JSON_STRINGS) {
            if (!read_strings(item, value))
                fail(r, "internal", NULL, out_of_memory);
            continue;
        }
        value->string.text = take_text(item);
        value->string.len = strlen(value->string.text);
        if (value->string.len < field->min || value->string.len > field->max)
            fail(r, "invalid_request", field->name, wrong_length);
    }
    cJSON_Delete(object);
}

static void zero(srv_json_value *values, size_t n)
{
    if (n > 0)
        memset(values, 0, n * sizeof *values);
}

bool srv_json_read(const char *text, size_t len, const srv_json_field *fields, size_t n,
                   srv_json_value *values, srv_json_error *error)
{
    reader r = {.fields = fields, .n_fields = n, .values = values, .error = error};
    *error = (srv_json_error){.offset = SIZE_MAX};
    zero(values, n);
    srv_buf_init(&r.scalars, SIZE_MAX);
    if (len == 0) {
        fail(&r, "invalid_json", NULL, "the body is empty");
    } else {
        r.text = text;
        r.end = text + len;
        read_text(&r);
    }
    for (size_t i = 0; i < n; i++) {
        if (fields[i].required && !values[i].present)
            fail(&r, "invalid_request", fields[i].name, "the field is missing");
    }
    if (!error->code)
        read_scalars(&r);
    srv_buf_free(&r.scalars);
    if (error->code)
        srv_json_values_free(fields, n, values);
    return !error->code;
}

void srv_json_values_free(const srv_json_field *fields, size_t n, srv_json_value *values)
{
    for (size_t i = 0; i < n; i++) {
        switch (fields[i].type) {
        case SRV_JSON_STRING:
            cJSON_free(values[i].string.text);
            break;
        case SRV_JSON_OBJECT:
            free(values[i].string.text);
            break;
        case SRV_JSON_FLOAT_ROW:
        case SRV_JSON_FLOAT_ROWS:
            free(values[i].floats.values);
            break;
        case SRV_JSON_INTEGERS:
            free(values[i].integers.values);
            break;
        case SRV_JSON_STRINGS:
            for (size_t k = 0; k < values[i].strings.count; k++)
                cJSON_free(values[i].strings.texts[k]);
            free(values[i].strings.texts);
            break;
        case SRV_JSON_BOOL:
        case SRV_JSON_INTEGER:
        case SRV_JSON_NUMBER:
            break;
        }
    }
    zero(values, n);
}
