/* half.h: 16-bit floats, in integer arithmetic: the same bits whatever the thread's mode. */
#ifndef ATTN_HALF_H
#define ATTN_HALF_H

#include <stdint.h>

/* To nearest, ties to even; what is too large becomes infinity. */
uint16_t attn_to_bf16(float value);
uint16_t attn_to_f16(float value);
/* Exactly. */
float attn_bf16_value(uint16_t bits);
float attn_f16_value(uint16_t bits);

#endif
