#include "engine/compute/rope.h"

#include <string.h>

#define LN2_HIGH 6.93147180369123816490e-01 /* the upper 32 bits of ln 2 */
#define LN2_LOW 1.90821492927058770002e-10
/* pi/2 in three parts, the first two of 28 bits: their products with the quarter turns of 2^24
 * positions are exact. */
#define HALF_PI_1 1.57079632580280303955e+00
#define HALF_PI_2 9.92093573959351715530e-10
#define HALF_PI_3 5.72118872610983179676e-18
#define ROUND_MAGIC 6755399441055744.0 /* 1.5 * 2^52: adding it rounds to an integer */

static double round_to_integer(double x)
{
    /* volatile keeps the two operations apart from any algebra. */
    volatile double shifted = x + ROUND_MAGIC;
    return shifted - ROUND_MAGIC;
}

/* ln x for x >= 1: x = m 2^e, ln m = 2 artanh((m - 1) / (m + 1)) by its series. */
static double natural_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    int exponent = (int)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, 8);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    double s = (m - 1.0) / (m + 1.0), s2 = s * s, sum = 0.0;
    for (int k = 25; k >= 1; k -= 2)
        sum = sum * s2 + 1.0 / k;
    double e = exponent;
    return e * LN2_HIGH + (2.0 * s * sum + e * LN2_LOW);
}

/* e^x for -700 < x <= 0: e^x = 2^n e^r by the Taylor polynomial of degree 14. */
static double natural_exp(double x)
{
    double n = round_to_integer(x * 1.44269504088896338700);
    double r = (x - n * LN2_HIGH) - n * LN2_LOW, sum = 1.0;
    for (int k = 14; k >= 1; k--)
        sum = sum * r / k + 1.0;
    uint64_t bits = (uint64_t)((int64_t)n + 1023) << 52;
    double power;
    memcpy(&power, &bits, 8);
    return sum * power;
}

void attn_rope_frequencies(size_t head_dim, double theta, float *inv_freq)
{
    double log_theta = natural_log(theta);
    for (size_t i = 0; i < head_dim / 2; i++)
        inv_freq[i] = (float)natural_exp(-(2.0 * (double)i / (double)head_dim) * log_theta);
}

/* sin r and cos r for |r| <= pi/4, by their Taylor polynomials of degree 17 and 18. */
static double sine(double r)
{
    double r2 = r * r, s = 2.8114572543455206e-15;
    s = s * r2 - 7.6471637318198164e-13;
    s = s * r2 + 1.6059043836821613e-10;
    s = s * r2 - 2.5052108385441719e-08;
    s = s * r2 + 2.7557319223985893e-06;
    s = s * r2 - 1.9841269841269841e-04;
    s = s * r2 + 8.3333333333333332e-03;
    s = s * r2 - 1.6666666666666666e-01;
    return r + r * r2 * s;
}

static double cosine(double r)
{
    double r2 = r * r, c = -1.5619206968586225e-16;
    c = c * r2 + 4.7794773323873853e-14;
    c = c * r2 - 1.1470745597729725e-11;
    c = c * r2 + 2.0876756987868100e-09;
    c = c * r2 - 2.7557319223985888e-07;
    c = c * r2 + 2.4801587301587302e-05;
    c = c * r2 - 1.3888888888888889e-03;
    c = c * r2 + 4.1666666666666664e-02;
    return 1.0 - 0.5 * r2 + r2 * r2 * c;
}

void attn_rope_angles(uint64_t position, size_t half, const float *inv_freq, float *cos, float *sin)
{
    for (size_t i = 0; i < half; i++) {
        double angle = (double)((float)position * inv_freq[i]);
        double n = round_to_integer(angle * 0.63661977236758138243);
        double r = ((angle - n * HALF_PI_1) - n * HALF_PI_2) - n * HALF_PI_3;
        double s = sine(r), c = cosine(r);
        switch ((int64_t)n & 3) {
        case 0: sin[i] = (float)s, cos[i] = (float)c; break;
        case 1: sin[i] = (float)c, cos[i] = (float)-s; break;
        case 2: sin[i] = (float)-s, cos[i] = (float)-c; break;
        default: sin[i] = (float)-c, cos[i] = (float)s; break;
        }
    }
}
