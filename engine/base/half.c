#include "engine/base/half.h"

#include <string.h>

uint16_t attn_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

uint16_t attn_to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu, half;
    if (magnitude >= 0x477ff000u) /* rounds past 65504 */
        return sign | 0x7c00u;
    if (magnitude >= 0x38800000u) {
        half = magnitude - 0x38000000u;
        half = (half + 0xfffu + (half >> 13 & 1)) >> 13;
    } else if (magnitude < 0x33000000u) {
        half = 0; /* at most half of the smallest subnormal */
    } else {
        /* Subnormal: a multiple of 2^-24. */
        uint32_t shift = 126 - (magnitude >> 23);
        uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
        half = (mantissa + (1u << (shift - 1)) - 1 + (mantissa >> shift & 1)) >> shift;
    }
    return (uint16_t)(sign | half);
}

float attn_bf16_value(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

float attn_f16_value(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, exponent = bits >> 10 & 31;
    uint32_t mantissa = bits & 0x3ffu, wide;
    if (exponent == 31) {
        wide = sign | 0x7f800000u | mantissa << 13;
    } else if (exponent != 0) {
        wide = sign | (exponent + 112) << 23 | mantissa << 13;
    } else if (mantissa == 0) {
        wide = sign;
    } else {
        /* A subnormal half is a normal float: shift its leading one into place. */
        uint32_t shift = (uint32_t)__builtin_clz(mantissa) - 21;
        wide = sign | (113 - shift) << 23 | (mantissa << shift & 0x3ffu) << 13;
    }
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
