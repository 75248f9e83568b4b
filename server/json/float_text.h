/* float32 to JSON number and back, bit for bit.
 *
 * Thread: pure functions, any thread. Parsing rounds in hardware, so it wants the default floating
 * point environment (a thread that flushes subnormals would flush the result); formatting uses
 * integers only. The program never calls setlocale, so "." is the decimal point throughout. */
#ifndef SRV_JSON_FLOAT_TEXT_H
#define SRV_JSON_FLOAT_TEXT_H

#include <stddef.h>

/* Room for one number and the comma after it: "-1.17549435e-38,". */
#define SRV_FLOAT_TEXT_MAX 16

typedef enum {
    SRV_FLOAT_OK,
    SRV_FLOAT_SYNTAX,   /* not a JSON number */
    SRV_FLOAT_OVERFLOW, /* a JSON number that rounds to infinity */
} srv_float_status;

/* Writes the shortest decimal that reads back as the same float32 (of several, the one nearest
 * to v) as a JSON number without NUL; 0.0001 <= |v| < 1e9 without an exponent; -0 as "-0".
 * Shapes: dst has SRV_FLOAT_TEXT_MAX bytes, and all of them may be written.
 * Errors: returns the length, or 0 when v is not finite.
 * Source: Giulietti, "The Schubfach way to render doubles", 2020. */
size_t srv_float_format(char *dst, float v);

/* Writes v[0],v[1],...,v[n-1] without brackets.
 * Shapes: dst has n * SRV_FLOAT_TEXT_MAX bytes.
 * Errors: returns the length, or 0 when n is 0 or a value is not finite. */
size_t srv_floats_format(char *dst, const float *v, size_t n);

/* Reads one JSON number (RFC 8259 grammar, nothing around it) and rounds it once to the nearest
 * float32, ties to even. What follows the number is the caller's to judge.
 * Errors: returns the end of the number, of one that overflows too, or NULL where there is none;
 * *out is set when *status is SRV_FLOAT_OK only.
 * Cost: linear in the text, constant memory, whatever its number of digits.
 * Source: Clinger, "How to read floating point numbers accurately", 1990 (an estimate with a known
 * error bound, and an exact method where the bound does not decide). */
const char *srv_float_parse(const char *p, const char *end, float *out, srv_float_status *status);

#endif
