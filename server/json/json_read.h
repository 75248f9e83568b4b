/* The one reader of request bodies: a table of fields in, their values or one error out.
 *
 * A body is one JSON object of known fields. Everything about its text is checked before anything
 * is built from it: RFC 8259 grammar, UTF-8, no NUL (escaped neither), no byte order mark, escapes
 * and surrogate pairs whole, nesting of at most 32, nothing but white space behind. Then: no unknown
 * fields, none twice (however spelled: "inp\u0075t" is "input"), none of a wrong type. null is a
 * wrong type everywhere.
 *
 * Numbers are read straight from the text, arrays of them into flat buffers that grow with what was
 * read, never with a count that a client states. Strings and booleans go to cJSON, which thus sees
 * at most one node for each field and each of the strings it may have, whatever the body.
 *
 * Thread: any; values belong to the caller. cJSON writes a global at each parse (the place of its
 * last error) that nobody reads. */
#ifndef SRV_JSON_READ_H
#define SRV_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Deepest nesting; the body itself is the first level. */
#define SRV_JSON_DEPTH_MAX 32

/* Largest integer: up to here every integer is also a double, so no JSON reader changes it. */
#define SRV_JSON_INTEGER_MAX (UINT64_C(1) << 53)

typedef enum {
    SRV_JSON_STRING,
    SRV_JSON_BOOL,
    SRV_JSON_INTEGER,    /* digits only: -1, 1.0 and 1e0 are not integers here */
    SRV_JSON_NUMBER,     /* any number that is finite as a float32 */
    SRV_JSON_FLOAT_ROW,  /* [f, f, ...] */
    SRV_JSON_FLOAT_ROWS, /* [[f, ...], [f, ...], ...], rows equally long and not empty */
    SRV_JSON_INTEGERS,   /* [i, i, ...] */
    SRV_JSON_STRINGS,    /* a string, or an array of them */
    SRV_JSON_OBJECT,     /* {...}: its text, to be read with a table of its own */
} srv_json_type;

typedef struct {
    const char *name; /* ASCII letters, digits and _ */
    srv_json_type type;
    bool required;
    /* Inclusive range: of an INTEGER, of a STRING's or OBJECT's length in bytes, of the number of elements of a
     * FLOAT_ROW or INTEGERS, of the rows of FLOAT_ROWS, of the strings of STRINGS. No meaning for
     * BOOL and NUMBER. */
    uint64_t min, max;
} srv_json_field;

typedef struct {
    bool present;
    union {
        struct {
            char *text; /* NUL terminated, UTF-8 */
            size_t len;
        } string; /* also of an OBJECT */
        bool boolean;
        uint64_t integer;
        double number;
        struct {
            float *values; /* [rows, cols]; a FLOAT_ROW has one row; NULL if there are none */
            size_t rows, cols;
        } floats;
        struct {
            uint64_t *values; /* NULL if there are none */
            size_t count;
        } integers;
        struct {
            char **texts; /* each as `text` above; NULL if there are none */
            size_t count;
        } strings;
    };
} srv_json_value;

typedef struct {
    const char *code;    /* "invalid_json", "invalid_request", or "internal": out of memory */
    const char *param;   /* the field's name from the table, or NULL */
    const char *message; /* fixed text, never input bytes */
    /* Where in the text that begins which `param` cannot name: an unknown field, the member in or
     * behind which the JSON is broken. SIZE_MAX: nothing such. */
    size_t offset;
} srv_json_error;

/* Reads text as an object of these n fields into values[n], in the same order.
 * Shapes: text[len] is 0 (text may be NULL when len is 0).
 * Owner: on success the caller owes srv_json_values_free; on failure values are all zero.
 * Errors: false; broken JSON anywhere in the body comes before what else is wrong with it, and of
 * that the first.
 * Cost: linear in len; memory in proportion to len. */
bool srv_json_read(const char *text, size_t len, const srv_json_field *fields, size_t n,
                   srv_json_value *values, srv_json_error *error);

/* Frees what srv_json_read made and zeroes the values. */
void srv_json_values_free(const srv_json_field *fields, size_t n, srv_json_value *values);

#endif
