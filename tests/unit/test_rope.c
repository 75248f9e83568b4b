/* RoPE: frequencies and angles against long double, the half-split layout by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "engine/compute/kernels.h"
#include "engine/compute/rope.h"

/* Distance in float32 values between two of them. */
static uint32_t ulps(float a, float b)
{
    int32_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    x = x < 0 ? INT32_MIN - x : x;
    y = y < 0 ? INT32_MIN - y : y;
    return x > y ? (uint32_t)(x - y) : (uint32_t)(y - x);
}

/* How many values were compared, and how many are not the nearest float32. */
typedef struct tally {
    size_t n, n_off;
} tally;

static void compare(tally *t, float value, long double exact, const char *what, double at)
{
    uint32_t distance = ulps(value, (float)exact);
    t->n++;
    t->n_off += distance > 0;
    if (distance > 1)
        fail_msg("%s at %.17g: %.9g, not %.9Lg (%u apart)", what, at, (double)value, exact,
                 (unsigned)distance);
}

/* Double arithmetic rounded once to float32 misses the nearest value about once in 2^28 times. */
static void few_are_off(const tally *t)
{
    printf("%zu of %zu values are not the nearest\n", t->n_off, t->n);
    assert_true(t->n_off <= 2);
}

/* Without scaling. */
static void frequencies(size_t head_dim, double theta, float *inv_freq)
{
    attn_config config = {
        .head_dim = (uint32_t)head_dim, .rope_theta = theta, .rope = {.attention_factor = 1}};
    assert_true(attn_rope_frequencies(&config, inv_freq) == 1.0);
}

static void test_frequencies(void **state)
{
    (void)state;
    static const double thetas[] = {1.0, 1.5, 2.0, 1e3, 1e4, 5e5, 1e6, 1e7, 123456.789, 1e30};
    float inv_freq[512];
    tally t = {0};
    for (size_t d = 0; d < sizeof thetas / sizeof thetas[0]; d++) {
        for (size_t head_dim = 2; head_dim <= 1024; head_dim += head_dim < 260 ? 2 : 382) {
            frequencies(head_dim, thetas[d], inv_freq);
            assert_true(inv_freq[0] == 1.0f);
            for (size_t i = 0; i < head_dim / 2; i++) {
                long double exponent = -2.0L * (long double)i / (long double)head_dim;
                compare(&t, inv_freq[i], powl(thetas[d], exponent), "frequency", thetas[d]);
            }
        }
    }
    few_are_off(&t);
}

static void check_angles(tally *t, uint64_t position, size_t half, const float *inv_freq)
{
    float cosines[512], sines[512];
    attn_rope_angles(position, half, inv_freq, 1.0, cosines, sines);
    for (size_t i = 0; i < half; i++) {
        volatile float angle = (float)position * inv_freq[i]; /* rounded to float32 */
        compare(t, cosines[i], cosl((long double)angle), "cosine", (double)angle);
        compare(t, sines[i], sinl((long double)angle), "sine", (double)angle);
    }
}

static void test_angles(void **state)
{
    (void)state;
    static const double thetas[] = {1.0, 1e4, 1e6};
    float inv_freq[64];
    tally t = {0};
    for (size_t d = 0; d < sizeof thetas / sizeof thetas[0]; d++) {
        frequencies(96, thetas[d], inv_freq);
        for (uint64_t position = 0; position < 3000; position++)
            check_angles(&t, position, 48, inv_freq);
        for (uint64_t position = 3000; position < 1u << 24; position += 9973)
            check_angles(&t, position, 48, inv_freq);
    }
    for (unsigned k = 0; k <= 24; k++) {
        check_angles(&t, (1u << k) - 1, 48, inv_freq);
        check_angles(&t, 1u << k, 48, inv_freq);
    }
    few_are_off(&t);
}

/* Integers next to multiples of pi/2, where the reduced angle is smallest: numerators of its
 * continued fraction and of its multiples, and the neighbours of many others. */
static void test_angles_near_quarter_turns(void **state)
{
    (void)state;
    static const uint32_t hard[] = {11,      22,      33,      44,      355,    710,
                                    1065,    103993,  104348,  208341,  312689, 833719,
                                    1146408, 4272943, 5419351, 10838702};
    const float one = 1.0f;
    tally t = {0};
    for (size_t i = 0; i < sizeof hard / sizeof hard[0]; i++) {
        for (uint32_t half = 1; half <= 2; half++)
            check_angles(&t, hard[i] / half, 1, &one);
    }
    for (uint64_t n = 1; n < 10680000; n += 173)
        check_angles(&t, (uint64_t)llroundl((long double)n * 1.57079632679489661923L), 1, &one);
    few_are_off(&t);
}

static void test_same_position_same_bits(void **state)
{
    (void)state;
    float inv_freq[48], all[2][48], some[2][48];
    frequencies(96, 1e6, inv_freq);
    attn_rope_angles(12345, 48, inv_freq, 1.0, all[0], all[1]);
    for (size_t i = 0; i < 48; i++) {
        attn_rope_angles(12345, 1, inv_freq + i, 1.0, some[0] + i, some[1] + i);
        attn_rope_angles(54321, 1, inv_freq + i, 1.0, &some[0][47], &some[1][47]);
    }
    attn_rope_angles(12345, 1, inv_freq + 47, 1.0, some[0] + 47, some[1] + 47);
    assert_memory_equal(all, some, sizeof all);
}

/* Element i is paired with element i + half, not with its neighbour. */
static void test_layout_by_hand(void **state)
{
    (void)state;
    static const float cosines[] = {0.0f, 1.0f, 0.5f}, sines[] = {1.0f, 0.0f, 2.0f};
    float x[] = {1, 2, 3, 10, 20, 30};
    /* a cos - b sin: 0 - 10, 2 - 0, 1.5 - 60; b cos + a sin: 0 + 1, 20 + 0, 15 + 6 */
    static const float expected[] = {-10.0f, 2.0f, -58.5f, 1.0f, 20.0f, 21.0f};
    attn_kernels_scalar.rope(3, x, cosines, sines);
    assert_memory_equal(x, expected, sizeof x);
}

/* Position 1, head_dim 4, theta 100: frequencies 1 and 0.1. */
static void test_rotation_by_hand(void **state)
{
    (void)state;
    float inv_freq[2], cosines[2], sines[2], x[] = {1, 0, 0, 1};
    frequencies(4, 100.0, inv_freq);
    assert_true(inv_freq[0] == 1.0f && inv_freq[1] == 0.1f);
    attn_rope_angles(1, 2, inv_freq, 1.0, cosines, sines);
    attn_kernels_scalar.rope(2, x, cosines, sines);
    /* cos 1, -sin 0.1, sin 1, cos 0.1 */
    static const float expected[] = {0.540302306f, -0.0998334166f, 0.841470985f, 0.995004165f};
    for (size_t i = 0; i < 4; i++)
        assert_true(ulps(x[i], expected[i]) <= 1);
    attn_rope_angles(0, 2, inv_freq, 1.0, cosines, sines);
    assert_true(cosines[0] == 1.0f && cosines[1] == 1.0f && sines[0] == 0.0f && sines[1] == 0.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_angles),
        cmocka_unit_test(test_angles_near_quarter_turns),
        cmocka_unit_test(test_same_position_same_bits),
        cmocka_unit_test(test_layout_by_hand),
        cmocka_unit_test(test_rotation_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
