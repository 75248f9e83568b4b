/* UTF-8: one strict check, for what is read and for what is written. */
#ifndef SRV_JSON_UTF8_H
#define SRV_JSON_UTF8_H

#include <stddef.h>

/* Bytes (1 ... 4) of the well-formed character at p, p < end; 0 if there is none: a stray or
 * missing continuation byte, an overlong form, a surrogate, or a value past U+10FFFF.
 * Source: the table of well-formed byte sequences, Unicode chapter 3 (table 3-7). */
size_t srv_utf8_length(const char *p, const char *end);

#endif
