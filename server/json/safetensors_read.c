#include "server/json/safetensors_read.h"

#include <stdlib.h>
#include <string.h>

#include "server/buf.h"
#include "server/json/json_write.h"

#define HEADER_BYTES_MAX ((uint64_t)1 << 20)
/* The longest description of a tensor. */
#define ENTRY_BYTES_MAX 4096
#define PIECE_FLOATS 4096
#define FIELDS_MAX SRV_SAFETENSORS_FIELDS_MAX

/* A tensor as its header describes it. */
typedef struct tensor {
    size_t field;
    bool is_float, is_signed;
    size_t element_bytes;
    uint64_t rows, cols; /* of one axis: 1 row */
    uint64_t begin, end; /* in the data */
} tensor;

typedef struct reader {
    const srv_json_field *fields;
    size_t n_fields;
    srv_json_value *values;
    srv_json_error *error; /* the first; error->code is NULL while there is none */
    const char *data;
    uint64_t data_bytes;
    tensor tensors[FIELDS_MAX];
    size_t n_tensors;
} reader;

static const char out_of_memory[] = "out of memory";

static bool fail(reader *r, const char *code, const char *param, const char *message)
{
    if (!r->error->code)
        *r->error = (srv_json_error){code, param, message, SIZE_MAX};
    return false;
}

static bool fail_field(reader *r, size_t field, const char *message)
{
    return fail(r, "invalid_request", r->fields[field].name, message);
}

static bool fail_memory(reader *r)
{
    return fail(r, "internal", NULL, out_of_memory);
}

static bool is_tensor_type(srv_json_type type)
{
    return type == SRV_JSON_FLOAT_ROWS || type == SRV_JSON_FLOAT_ROW || type == SRV_JSON_INTEGERS;
}

/* ---- metadata ---- */

/* Reads a field's value from its text, as if it stood in a JSON body with no other field: whatever
 * else the text holds is an error. */
static bool read_text(reader *r, size_t i, const char *text, size_t len)
{
    srv_json_field field = r->fields[i];
    srv_json_error e;
    srv_buf b;
    srv_buf_init(&b, SIZE_MAX);
    srv_buf_printf(&b, "{\"%s\":", field.name);
    if (field.type == SRV_JSON_STRING)
        srv_json_string(&b, text, len);
    else
        srv_buf_append(&b, text, len);
    srv_buf_puts(&b, "}");
    field.required = false;
    bool ok = !b.failed && srv_json_read(b.data, b.len, &field, 1, &r->values[i], &e);
    if (b.failed || (!ok && !strcmp(e.code, "internal")))
        fail_memory(r);
    else if (!ok)
        fail_field(r, i, e.param ? e.message : "the text is no JSON value of the field's type");
    srv_buf_free(&b);
    return ok;
}

static bool read_metadata(reader *r, const srv_json_value *object)
{
    srv_json_field table[FIELDS_MAX];
    srv_json_value texts[FIELDS_MAX];
    for (size_t i = 0; i < r->n_fields; i++)
        table[i] = (srv_json_field){r->fields[i].name, SRV_JSON_STRING, false, 0, SIZE_MAX};
    if (!srv_json_read(object->string.text, object->string.len, table, r->n_fields, texts,
                       r->error))
        return false;
    bool ok = true;
    for (size_t i = 0; ok && i < r->n_fields; i++) {
        if (texts[i].present)
            ok = read_text(r, i, texts[i].string.text, texts[i].string.len);
    }
    srv_json_values_free(table, r->n_fields, texts);
    return ok;
}

/* ---- tensors ---- */

enum { DTYPE, SHAPE, OFFSETS, ENTRY_COUNT };

static const srv_json_field entry_fields[ENTRY_COUNT] = {
    [DTYPE] = {"dtype", SRV_JSON_STRING, true, 0, 8},
    [SHAPE] = {"shape", SRV_JSON_INTEGERS, true, 0, 8},
    [OFFSETS] = {"data_offsets", SRV_JSON_INTEGERS, true, 2, 2},
};

static bool read_dtype(reader *r, tensor *t, const char *dtype)
{
    t->is_float = r->fields[t->field].type != SRV_JSON_INTEGERS;
    t->element_bytes = 4;
    if (t->is_float)
        return !strcmp(dtype, "F32") || fail_field(r, t->field, "the tensor must be F32");
    t->is_signed = dtype[0] == 'I';
    t->element_bytes = !strcmp(dtype, "I64") ? 8 : 4;
    return t->element_bytes == 8 || !strcmp(dtype, "I32") || !strcmp(dtype, "U32") ||
           fail_field(r, t->field, "the tensor must be I32, U32 or I64");
}

static bool read_shape(reader *r, tensor *t, const srv_json_value *shape)
{
    const srv_json_field *field = &r->fields[t->field];
    const bool has_rows = field->type == SRV_JSON_FLOAT_ROWS;
    if (shape->integers.count != (has_rows ? 2 : 1))
        return fail_field(r, t->field,
                          has_rows ? "the tensor must have two axes, [rows, columns]"
                                   : "the tensor must have one axis");
    t->rows = has_rows ? shape->integers.values[0] : 1;
    t->cols = shape->integers.values[has_rows ? 1 : 0];
    if (has_rows && (t->rows == 0 || t->cols == 0))
        return fail_field(r, t->field, "the rows must be equally long and not empty");
    const uint64_t n = has_rows ? t->rows : t->cols;
    if (n < field->min || n > field->max)
        return fail_field(r, t->field, "the array has too few or too many elements");
    return true;
}

static bool check_place(reader *r, const tensor *t)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(t->rows, t->cols, &bytes) ||
        __builtin_mul_overflow(bytes, t->element_bytes, &bytes) || t->begin > t->end ||
        t->end > r->data_bytes || t->end - t->begin != bytes)
        return fail_field(r, t->field, "the tensor's offsets do not fit its shape or the body");
    return true;
}

/* Takes in what the header says of the tensor of a field. */
static bool read_entry(reader *r, size_t field, const srv_json_value *object)
{
    srv_json_value v[ENTRY_COUNT];
    srv_json_error e;
    if (r->values[field].present)
        return fail_field(r, field, "the field is given twice");
    if (!srv_json_read(object->string.text, object->string.len, entry_fields, ENTRY_COUNT, v, &e))
        return strcmp(e.code, "internal")
                   ? fail_field(r, field, "a tensor has a dtype, a shape and two data_offsets")
                   : fail_memory(r);
    tensor *t = &r->tensors[r->n_tensors++];
    *t = (tensor){.field = field,
                  .begin = v[OFFSETS].integers.values[0],
                  .end = v[OFFSETS].integers.values[1]};
    bool ok =
        read_dtype(r, t, v[DTYPE].string.text) && read_shape(r, t, &v[SHAPE]) && check_place(r, t);
    srv_json_values_free(entry_fields, ENTRY_COUNT, v);
    return ok;
}

/* Every byte of the data belongs to exactly one tensor. */
static bool check_data(reader *r)
{
    uint64_t at = 0;
    for (size_t i = 0; i < r->n_tensors; i++) {
        size_t first = i;
        for (size_t k = i + 1; k < r->n_tensors; k++) {
            const tensor *a = &r->tensors[k], *b = &r->tensors[first];
            if (a->begin < b->begin || (a->begin == b->begin && a->end < b->end))
                first = k;
        }
        const tensor t = r->tensors[first];
        r->tensors[first] = r->tensors[i];
        r->tensors[i] = t;
        if (t.begin != at)
            return fail_field(r, t.field, "the tensors overlap or leave a hole in the data");
        at = t.end;
    }
    return at == r->data_bytes ||
           fail(r, "invalid_request", NULL, "the data is longer than its tensors");
}

static bool are_finite(const float *v, size_t n)
{
    const uint32_t exponent = 0x7f800000;
    uint32_t bad = 0;
    size_t i = 0;
    /* Blocks of a fixed size, which the compiler makes vectors of. */
    for (; i + 16 <= n; i += 16) {
        uint32_t bits[16];
        memcpy(bits, v + i, sizeof(bits));
        for (size_t k = 0; k < 16; k++)
            bad |= (bits[k] & exponent) == exponent;
    }
    for (; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, v + i, sizeof(bits));
        bad |= (bits & exponent) == exponent;
    }
    return !bad;
}

static bool copy_floats(reader *r, const tensor *t)
{
    const size_t bytes = (size_t)(t->end - t->begin);
    srv_json_value *value = &r->values[t->field];
    float *values = bytes ? malloc(bytes) : NULL;
    if (bytes && !values)
        return fail_memory(r);
    value->present = true;
    value->floats.values = values;
    value->floats.rows = (size_t)t->rows;
    value->floats.cols = (size_t)t->cols;
    /* Looked at while they are in the cache. */
    const size_t n = bytes / sizeof(float);
    bool finite = true;
    for (size_t i = 0; i < n && finite; i += PIECE_FLOATS) {
        const size_t piece = n - i < PIECE_FLOATS ? n - i : PIECE_FLOATS;
        memcpy(values + i, r->data + t->begin + i * sizeof(float), piece * sizeof(float));
        finite = are_finite(values + i, piece);
    }
    return finite || fail_field(r, t->field, "a number is not finite");
}

/* An element as an unsigned integer; negative ones become too large. */
static uint64_t element_at(const reader *r, const tensor *t, size_t i)
{
    const char *p = r->data + t->begin + i * t->element_bytes;
    uint64_t wide;
    uint32_t narrow;
    if (t->element_bytes == 8) {
        memcpy(&wide, p, sizeof(wide));
        return wide;
    }
    memcpy(&narrow, p, sizeof(narrow));
    return t->is_signed && narrow >> 31 ? UINT64_MAX : narrow;
}

static bool copy_integers(reader *r, const tensor *t)
{
    srv_json_value *value = &r->values[t->field];
    const size_t n = (size_t)t->cols;
    uint64_t *values = n ? malloc(n * sizeof(*values)) : NULL;
    if (n && !values)
        return fail_memory(r);
    value->present = true;
    value->integers.values = values;
    value->integers.count = n;
    for (size_t i = 0; i < n; i++) {
        values[i] = element_at(r, t, i);
        if (values[i] > SRV_JSON_INTEGER_MAX)
            return fail_field(r, t->field, "the number is out of range");
    }
    return true;
}

/* ---- the body ---- */

static bool read_header(reader *r, const char *header, size_t len)
{
    srv_json_field table[FIELDS_MAX + 1] = {
        {"__metadata__", SRV_JSON_OBJECT, false, 0, HEADER_BYTES_MAX}};
    srv_json_value entries[FIELDS_MAX + 1];
    size_t field_of[FIELDS_MAX + 1] = {0}, n = 1;
    for (size_t i = 0; i < r->n_fields; i++) {
        if (!is_tensor_type(r->fields[i].type))
            continue;
        field_of[n] = i;
        table[n++] =
            (srv_json_field){r->fields[i].name, SRV_JSON_OBJECT, false, 0, ENTRY_BYTES_MAX};
    }
    if (!srv_json_read(header, len, table, n, entries, r->error)) {
        if (!strcmp(r->error->code, "invalid_json"))
            r->error->message = "the header is not valid JSON";
        else if (!r->error->param && strcmp(r->error->code, "internal"))
            r->error->message = "a tensor that this request does not take";
        return false;
    }
    bool ok = !entries[0].present || read_metadata(r, &entries[0]);
    for (size_t i = 1; ok && i < n; i++)
        ok = !entries[i].present || read_entry(r, field_of[i], &entries[i]);
    srv_json_values_free(table, n, entries);
    ok = ok && check_data(r);
    for (size_t i = 0; ok && i < r->n_tensors; i++) {
        const tensor *t = &r->tensors[i];
        ok = t->is_float ? copy_floats(r, t) : copy_integers(r, t);
    }
    return ok;
}

static bool read_body(reader *r, const char *bytes, size_t len)
{
    uint64_t n = 0;
    if (len < sizeof(n))
        return fail(r, "invalid_request", NULL, "the body is shorter than a safetensors header");
    for (size_t i = 0; i < sizeof(n); i++)
        n |= (uint64_t)(unsigned char)bytes[i] << (8 * i);
    if (n > len - sizeof(n) || n > HEADER_BYTES_MAX)
        return fail(r, "invalid_request", NULL, "the header is longer than the body or 1 MiB");
    if (n == 0 || bytes[sizeof(n)] != '{')
        return fail(r, "invalid_request", NULL, "the header is no JSON object");
    char *header = malloc((size_t)n + 1);
    if (!header)
        return fail_memory(r);
    memcpy(header, bytes + sizeof(n), (size_t)n);
    header[n] = '\0';
    r->data = bytes + sizeof(n) + n;
    r->data_bytes = len - sizeof(n) - n;
    bool ok = read_header(r, header, (size_t)n);
    free(header);
    return ok;
}

bool srv_safetensors_read(const char *bytes, size_t len, const srv_json_field *fields, size_t n,
                          srv_json_value *values, srv_json_error *error)
{
    reader r = {.fields = fields, .n_fields = n, .values = values, .error = error};
    *error = (srv_json_error){.offset = SIZE_MAX};
    memset(values, 0, n * sizeof(*values));
    if (n > FIELDS_MAX)
        return fail(&r, "internal", NULL, "too many fields");
    bool ok = read_body(&r, bytes, len);
    for (size_t i = 0; ok && i < n; i++) {
        if (fields[i].required && !values[i].present)
            ok = fail_field(&r, i, "the field is missing");
    }
    if (!ok) {
        error->offset = SIZE_MAX; /* one in a part of the header tells nothing */
        srv_json_values_free(fields, n, values);
    }
    return ok;
}
