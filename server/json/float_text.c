#include "server/json/float_text.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "digits are stored eight at a time");

/* ---- format: float32 to shortest decimal ---- */

#define POW10_MIN (-31)

/* 10^e for e = -31 ... 45, scaled to 64 bits and rounded up: tests/reference/pow10_table.py. */
static const uint64_t pow10_u64[] = {
    0x81ceb32c4b43fcf5, 0xa2425ff75e14fc32, 0xcad2f7f5359a3b3f, 0xfd87b5f28300ca0e,
    0x9e74d1b791e07e49, 0xc612062576589ddb, 0xf79687aed3eec552, 0x9abe14cd44753b53,
    0xc16d9a0095928a28, 0xf1c90080baf72cb2, 0x971da05074da7bef, 0xbce5086492111aeb,
    0xec1e4a7db69561a6, 0x9392ee8e921d5d08, 0xb877aa3236a4b44a, 0xe69594bec44de15c,
    0x901d7cf73ab0acda, 0xb424dc35095cd810, 0xe12e13424bb40e14, 0x8cbccc096f5088cc,
    0xafebff0bcb24aaff, 0xdbe6fecebdedd5bf, 0x89705f4136b4a598, 0xabcc77118461cefd,
    0xd6bf94d5e57a42bd, 0x8637bd05af6c69b6, 0xa7c5ac471b478424, 0xd1b71758e219652c,
    0x83126e978d4fdf3c, 0xa3d70a3d70a3d70b, 0xcccccccccccccccd, 0x8000000000000000,
    0xa000000000000000, 0xc800000000000000, 0xfa00000000000000, 0x9c40000000000000,
    0xc350000000000000, 0xf424000000000000, 0x9896800000000000, 0xbebc200000000000,
    0xee6b280000000000, 0x9502f90000000000, 0xba43b74000000000, 0xe8d4a51000000000,
    0x9184e72a00000000, 0xb5e620f480000000, 0xe35fa931a0000000, 0x8e1bc9bf04000000,
    0xb1a2bc2ec5000000, 0xde0b6b3a76400000, 0x8ac7230489e80000, 0xad78ebc5ac620000,
    0xd8d726b7177a8000, 0x878678326eac9000, 0xa968163f0a57b400, 0xd3c21bcecceda100,
    0x84595161401484a0, 0xa56fa5b99019a5c8, 0xcecb8f27f4200f3a, 0x813f3978f8940985,
    0xa18f07d736b90be6, 0xc9f2c9cd04674edf, 0xfc6f7c4045812297, 0x9dc5ada82b70b59e,
    0xc5371912364ce306, 0xf684df56c3e01bc7, 0x9a130b963a6c115d, 0xc097ce7bc90715b4,
    0xf0bdc21abb48db21, 0x96769950b50d88f5, 0xbc143fa4e250eb32, 0xeb194f8e1ae525fe,
    0x92efd1b8d0cf37bf, 0xb7abc627050305ae, 0xe596b7b0c643c71a, 0x8f7e32ce7bea5c70,
    0xb35dbf821ae4f38c,
};

__extension__ typedef unsigned __int128 u128;

/* digits * 10^exponent */
typedef struct {
    uint32_t digits;
    int exponent;
} decimal;

/* floor(log10(2^e)), floor(log10(3/4 * 2^e)) and floor(log2(10^e)), exact for float32's range */
static int floor_log10_pow2(int e)
{
    return (e * 1262611) >> 22;
}

static int floor_log10_three_quarters_pow2(int e)
{
    return (e * 1262611 - 524031) >> 22;
}

static int floor_log2_pow10(int e)
{
    return (e * 1741647) >> 19;
}

/* The high part of g * c with its lowest bit set when anything was cut off ("round to odd"): enough
 * to compare products with one another as if they were exact. */
static uint32_t multiply_round_to_odd(uint64_t g, uint32_t c)
{
    const u128 product = (u128)g * c;
    const uint32_t high = (uint32_t)(product >> 64);
    const uint32_t middle = (uint32_t)((uint64_t)product >> 32);
    return high | (middle > 1);
}

/* Shortest decimal within the interval that rounds to the positive float32 of these bits. */
static decimal shortest_decimal(uint32_t bits)
{
    const uint32_t fraction = bits & 0x7fffff;
    const uint32_t biased = bits >> 23;
    const uint32_t c = biased ? fraction | 0x800000 : fraction; /* the value is c * 2^q */
    const int q = biased ? (int)biased - 150 : -149;

    /* Ties round to even, so the interval's ends belong to it when c is even. Below a power of two
     * the neighbour is only half as far away. */
    const uint32_t odd = c & 1;
    const bool closer_below = fraction == 0 && biased > 1;
    const int k = closer_below ? floor_log10_three_quarters_pow2(q) : floor_log10_pow2(q);
    const int h = q + floor_log2_pow10(-k) + 1;
    const uint64_t g = pow10_u64[-k - POW10_MIN];

    /* The value and its interval in units of 10^k / 4. */
    const uint32_t low = multiply_round_to_odd(g, (4 * c - 2 + closer_below) << h) + odd;
    const uint32_t value = multiply_round_to_odd(g, (4 * c) << h);
    const uint32_t high = multiply_round_to_odd(g, (4 * c + 2) << h) - odd;

    /* At most one multiple of 10^(k+1) lies inside; if one does it is the shortest. */
    const uint32_t s = value / 4;
    if (s >= 10) {
        const uint32_t tens = s / 10;
        const bool below = low <= 40 * tens;
        const bool above = 40 * tens + 40 <= high;
        if (below != above)
            return (decimal){tens + above, k + 1};
    }
    /* Else one of the two nearest multiples of 10^k; if both are inside, the nearer. */
    const bool below = low <= 4 * s;
    const bool above = 4 * s + 4 <= high;
    if (below != above)
        return (decimal){s + above, k};
    const uint32_t middle = 4 * s + 2;
    const bool up = value > middle || (value == middle && (s & 1));
    return (decimal){s + up, k};
}

/* x < 10^8 as eight digits 0 ... 9, one a byte, the first in the lowest byte. Each step splits
 * every lane in two by a division written as a multiplication. */
static uint64_t split_eight_digits(uint32_t x)
{
    uint64_t v = x / 10000 | (uint64_t)(x % 10000) << 32;
    const uint64_t hundreds = ((v * 10486) >> 20) & 0x0000007f0000007f;
    v = hundreds | (v - 100 * hundreds) << 16;
    const uint64_t tens = ((v * 103) >> 10) & 0x000f000f000f000f;
    return tens | (v - 10 * tens) << 8;
}

static const uint32_t pow10_u32[] = {1,      10,      100,      1000,      10000,
                                     100000, 1000000, 10000000, 100000000, 1000000000};

static int count_digits(uint32_t x)
{
    const int estimate = ((32 - __builtin_clz(x)) * 1233) >> 12; /* floor(bits * log10(2)) */
    return estimate + (x >= pow10_u32[estimate]);
}

size_t srv_float_format(char *dst, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    char *p = dst;
    *p = '-';
    p += bits >> 31;
    bits &= 0x7fffffff;
    if (bits >= 0x7f800000)
        return 0;
    if (bits == 0) {
        *p++ = '0';
        return (size_t)(p - dst);
    }

    /* Nine digits, padded with zeros at the right; the first n of them count, and the decimal
     * point belongs behind the first `point` of them. */
    const decimal d = shortest_decimal(bits);
    const int n_decimal = count_digits(d.digits);
    const uint32_t nine = d.digits * pow10_u32[9 - n_decimal];
    const uint64_t eight = split_eight_digits(nine % 100000000);
    const size_t n = eight ? 9 - (size_t)__builtin_clzll(eight) / 8 : 1;
    const int point = n_decimal + d.exponent;
    const char first = (char)('0' + nine / 100000000);
    const uint64_t rest = eight | 0x3030303030303030; /* '0' in every byte */

    if (point > 0 && point <= 9 && n <= (size_t)point) {
        *p = first;
        memcpy(p + 1, &rest, 8);
        return (size_t)(p - dst) + (size_t)point;
    }
    if (point > 0 && point <= 7) { /* from 2^23 on there are no fractions */
        const uint64_t head = rest << 8 | (unsigned char)first;
        const uint64_t whole = (UINT64_C(1) << 8 * point) - 1;
        const uint64_t text = (head & whole) | (uint64_t)'.' << 8 * point | (head & ~whole) << 8;
        memcpy(p, &text, 8);
        memcpy(p + 8, (const char *)&rest + 6, 2);
        return (size_t)(p - dst) + n + 1;
    }
    if (point <= 0 && point > -4) {
        memcpy(p, "0.000000", 8);
        p += 2 - point;
        *p = first;
        memcpy(p + 1, &rest, 8);
        return (size_t)(p - dst) + n;
    }
    p[0] = first;
    p[1] = '.';
    memcpy(p + 2, &rest, 8);
    p += n > 1 ? n + 1 : 1;
    int exponent = point - 1;
    *p++ = 'e';
    if (exponent < 0) {
        *p++ = '-';
        exponent = -exponent;
    }
    if (exponent >= 10)
        *p++ = (char)('0' + exponent / 10);
    *p++ = (char)('0' + exponent % 10);
    return (size_t)(p - dst);
}

size_t srv_floats_format(char *dst, const float *v, size_t n)
{
    char *p = dst;
    for (size_t i = 0; i < n; i++) {
        const size_t len = srv_float_format(p, v[i]);
        if (len == 0)
            return 0;
        p += len;
        *p++ = ',';
    }
    return n ? (size_t)(p - dst) - 1 : 0;
}

/* ---- parse: decimal to nearest float32 ---- */

/* With a significand in 1 ... 10^19, smaller exponents give less than half of the smallest
 * subnormal, and larger ones more than the largest float32. */
#define ESTIMATE_MIN (-65)
#define ESTIMATE_MAX 38

static const double pow10_f64[] = {
    1e-65, 1e-64, 1e-63, 1e-62, 1e-61, 1e-60, 1e-59, 1e-58, 1e-57, 1e-56, 1e-55, 1e-54, 1e-53,
    1e-52, 1e-51, 1e-50, 1e-49, 1e-48, 1e-47, 1e-46, 1e-45, 1e-44, 1e-43, 1e-42, 1e-41, 1e-40,
    1e-39, 1e-38, 1e-37, 1e-36, 1e-35, 1e-34, 1e-33, 1e-32, 1e-31, 1e-30, 1e-29, 1e-28, 1e-27,
    1e-26, 1e-25, 1e-24, 1e-23, 1e-22, 1e-21, 1e-20, 1e-19, 1e-18, 1e-17, 1e-16, 1e-15, 1e-14,
    1e-13, 1e-12, 1e-11, 1e-10, 1e-9,  1e-8,  1e-7,  1e-6,  1e-5,  1e-4,  1e-3,  1e-2,  1e-1,
    1e0,   1e1,   1e2,   1e3,   1e4,   1e5,   1e6,   1e7,   1e8,   1e9,   1e10,  1e11,  1e12,
    1e13,  1e14,  1e15,  1e16,  1e17,  1e18,  1e19,  1e20,  1e21,  1e22,  1e23,  1e24,  1e25,
    1e26,  1e27,  1e28,  1e29,  1e30,  1e31,  1e32,  1e33,  1e34,  1e35,  1e36,  1e37,  1e38,
};

/* Most significant digits a u64 holds whatever they are. */
#define U64_DIGITS 19

/* No point halfway between two float32 has more significant digits than 113, so digits behind these
 * matter only by being zero or not. */
#define EXACT_DIGITS 120

/* A number's text, checked: [first, last) are its digits with perhaps a point among them. */
typedef struct {
    const char *first, *last;
    bool negative;
    int64_t exponent; /* behind the e, or 0 */
} number_text;

static bool is_digit(char c)
{
    return (unsigned char)(c - '0') < 10;
}

/* Rounds by strtof, correct for any text, from a copy of bounded length: "DDD...De-EE", where a
 * last digit 1 stands for whatever non-zero digits were left out. */
static float round_exactly(const number_text *t)
{
    char copy[EXACT_DIGITS + 24];
    size_t n = 0;
    int64_t point = t->exponent; /* 10^point times 0.D1D2D3... */
    bool fraction = false, sticky = false;
    for (const char *p = t->first; p < t->last; p++) {
        if (*p == '.') {
            fraction = true;
            continue;
        }
        const bool leading_zero = n == 0 && *p == '0';
        if (!fraction && !leading_zero)
            point++;
        if (fraction && leading_zero)
            point--;
        if (leading_zero)
            continue;
        if (n < EXACT_DIGITS)
            copy[n++] = *p;
        else
            sticky |= *p != '0';
    }
    if (n == 0 || point < -50)
        return t->negative ? -0.0f : 0.0f;
    if (point > 50)
        return t->negative ? -INFINITY : INFINITY;
    if (sticky)
        copy[n++] = '1';
    snprintf(copy + n, sizeof copy - n, "e%d", (int)point - (int)n);
    const float v = strtof(copy, NULL);
    return t->negative ? -v : v;
}

/* True when an estimate this close to a point halfway between two float32 may lie on either side
 * of it, or when float32 is subnormal there and those points lie elsewhere. The estimate's three
 * roundings are off by less than 4 units in its last place. */
static bool is_undecided(double estimate)
{
    uint64_t bits;
    memcpy(&bits, &estimate, sizeof bits);
    const uint64_t below_float = bits & 0x1fffffff; /* the 29 bits that float32 lacks */
    return below_float - (0x10000000 - 4) <= 8 || estimate < (double)FLT_MIN;
}

static float round_number(const number_text *t, uint64_t significand, int64_t exponent)
{
    if (significand == 0 || exponent < ESTIMATE_MIN)
        return t->negative ? -0.0f : 0.0f;
    if (exponent > ESTIMATE_MAX)
        return t->negative ? -INFINITY : INFINITY;
    const double estimate = (double)significand * pow10_f64[exponent - ESTIMATE_MIN];
    if (is_undecided(estimate))
        return round_exactly(t);
    return (float)(t->negative ? -estimate : estimate);
}

/* How many of the digits are leading zeros. */
static ptrdiff_t count_leading_zeros(const number_text *t)
{
    ptrdiff_t n = 0;
    for (const char *p = t->first; p < t->last && (*p == '0' || *p == '.'); p++)
        n += *p == '0';
    return n;
}

const char *srv_float_parse(const char *p, const char *end, float *out, srv_float_status *status)
{
    *status = SRV_FLOAT_SYNTAX;
    number_text t = {.negative = p < end && *p == '-'};
    p += t.negative;

    uint64_t significand = 0; /* wraps past 19 digits, and is not used then */
    t.first = p;
    for (; p < end && is_digit(*p); p++)
        significand = significand * 10 + (uint64_t)(*p - '0');
    ptrdiff_t n_digits = p - t.first;
    if (n_digits == 0 || (n_digits > 1 && *t.first == '0'))
        return NULL;

    ptrdiff_t n_fraction = 0;
    if (p < end && *p == '.') {
        const char *fraction = ++p;
        for (; p < end && is_digit(*p); p++)
            significand = significand * 10 + (uint64_t)(*p - '0');
        n_fraction = p - fraction;
        if (n_fraction == 0)
            return NULL;
        n_digits += n_fraction;
    }
    t.last = p;

    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        const bool negative = p < end && *p == '-';
        if (p < end && (*p == '-' || *p == '+'))
            p++;
        if (p == end || !is_digit(*p))
            return NULL;
        for (; p < end && is_digit(*p); p++) {
            if (t.exponent < INT64_MAX / 100)
                t.exponent = t.exponent * 10 + (*p - '0');
        }
        if (negative)
            t.exponent = -t.exponent;
    }

    float v;
    if (n_digits <= U64_DIGITS || n_digits - count_leading_zeros(&t) <= U64_DIGITS)
        v = round_number(&t, significand, t.exponent - n_fraction);
    else
        v = round_exactly(&t);
    *status = isfinite(v) ? SRV_FLOAT_OK : SRV_FLOAT_OVERFLOW;
    if (isfinite(v))
        *out = v;
    return p;
}
