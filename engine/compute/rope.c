#include "engine/compute/rope.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

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

/* x = m 2^e, ln m = 2 artanh((m - 1) / (m + 1)) by its series. */
double attn_log(double x)
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

/* The pair, not an integer, that turns `rotations` times in the original context. */
static double pair_of(const attn_config *c, double rotations)
{
    double turns = c->rope.original / (rotations * 2.0 * PI);
    return c->head_dim * attn_log(turns) / (2.0 * attn_log(c->rope_theta));
}

/* How much of pair i is interpolated, 0 to 1. */
static double yarn_ramp(const attn_config *c, size_t i)
{
    double last = c->rope.pairs_end_half ? c->head_dim / 2 - 1 : c->head_dim - 1;
    double low = floor(pair_of(c, c->rope.beta_fast)), high = ceil(pair_of(c, c->rope.beta_slow));
    low = low > 0 ? low : 0;
    high = high < last ? high : last;
    double width = high - low > 0.001 ? high - low : 0.001;
    double ramp = ((double)i - low) / width;
    return ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
}

static double scaled_frequency(const attn_config *c, size_t i, double frequency)
{
    const attn_rope_scaling *s = &c->rope;
    switch (s->type) {
    case ATTN_ROPE_LINEAR:
        return frequency / s->factor;
    case ATTN_ROPE_LLAMA3: {
        double wavelength = 2.0 * PI / frequency;
        if (wavelength < s->original / s->high_freq_factor)
            return frequency;
        if (wavelength > s->original / s->low_freq_factor)
            return frequency / s->factor;
        double smooth = (s->original / wavelength - s->low_freq_factor) /
                        (s->high_freq_factor - s->low_freq_factor);
        return (1.0 - smooth) * frequency / s->factor + smooth * frequency;
    }
    case ATTN_ROPE_YARN: {
        double ramp = yarn_ramp(c, i);
        return frequency * (1.0 - ramp + ramp / s->factor);
    }
    default:
        return frequency;
    }
}

double attn_rope_frequencies(const attn_config *c, float *inv_freq)
{
    double log_theta = attn_log(c->rope_theta);
    for (size_t i = 0; i < c->head_dim / 2; i++) {
        double frequency = natural_exp(-(2.0 * (double)i / c->head_dim) * log_theta);
        inv_freq[i] = (float)scaled_frequency(c, i, frequency);
    }
    double factor = c->rope.attention_factor;
    if (c->rope.type == ATTN_ROPE_YARN && factor == 0)
        factor = 0.1 * attn_log(c->rope.factor) + 1.0;
    return factor;
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

void attn_rope_angles(uint64_t position, size_t half, const float *inv_freq, double factor,
                      float *cos, float *sin)
{
    for (size_t i = 0; i < half; i++) {
        double angle = (double)((float)position * inv_freq[i]);
        double n = round_to_integer(angle * 0.63661977236758138243);
        double r = ((angle - n * HALF_PI_1) - n * HALF_PI_2) - n * HALF_PI_3;
        double s = factor * sine(r), c = factor * cosine(r);
        switch ((int64_t)n & 3) {
        case 0:
            sin[i] = (float)s, cos[i] = (float)c;
            break;
        case 1:
            sin[i] = (float)c, cos[i] = (float)-s;
            break;
        case 2:
            sin[i] = (float)-s, cos[i] = (float)-c;
            break;
        default:
            sin[i] = (float)-c, cos[i] = (float)s;
            break;
        }
    }
}
