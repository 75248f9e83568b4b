/* philox4x32-10: the published vectors; the tensors drawn from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/model/philox.h"
#include "tests/unit/engine_run.h"

/* Source: the known answers (kat_vectors) published with Random123. */
static void test_published_vectors(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        uint32_t out[4];
        attn_philox4x32(vectors[i].counter, vectors[i].key, out);
        assert_memory_equal(out, vectors[i].out, sizeof out);
    }
}

/* Element 5 of "inputs" under a seed wider than 32 bits, put together by hand. */
static void test_counter_and_key(void **state)
{
    (void)state;
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *c = "inputs"; *c != '\0'; c++)
        hash = (hash ^ (uint64_t)*c) * 0x100000001b3u;
    const uint32_t counter[4] = {1, 0, (uint32_t)hash, (uint32_t)(hash >> 32)}, key[2] = {5, 1};
    uint32_t words[4];
    attn_philox4x32(counter, key, words);
    float values[6];
    attn_philox_uniform(4294967301u, "inputs", 1.0f, 0, 6, values);
    assert_true(values[5] == (float)(words[1] >> 8) * 0x1p-23f - 1.0f);
}

/* The Python twin wrote the golden inputs. */
static void test_golden_inputs(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t seed;
    } goldens[] = {
        {"chain3", 42}, {"mha-nonorm", 7}, {"mqa", 4294967301}, {"minimind-layer", 1234}};
    for (size_t g = 0; g < sizeof goldens / sizeof goldens[0]; g++) {
        static float values[64 * 1024];
        size_t n;
        attn_safetensors *file = golden_open(goldens[g].name);
        const float *inputs = golden_f32(file, "inputs", &n);
        assert_true(n <= sizeof values / sizeof values[0]);
        attn_philox_uniform(goldens[g].seed, "inputs", 1.0f, 0, n, values);
        assert_memory_equal(values, inputs, n * sizeof *values);
        attn_safetensors_close(file);
    }
}

/* A value depends on seed, name, bound and index alone, not on which are drawn with it. */
static void test_parts(void **state)
{
    (void)state;
    float all[40], some[40];
    attn_philox_uniform(9, "w", 0.25f, 0, 40, all);
    for (size_t first = 0; first < 40; first++) {
        for (size_t n = 0; n <= 40 - first; n++) {
            memset(some, 0, sizeof some);
            attn_philox_uniform(9, "w", 0.25f, first, n, some);
            assert_memory_equal(some, all + first, n * sizeof *all);
            for (size_t i = n; i < 40; i++)
                assert_true(some[i] == 0.0f);
        }
    }
}

static void test_seed_name_and_bound(void **state)
{
    (void)state;
    static float a[100000], b[100000];
    double sum = 0;
    attn_philox_uniform(1, "a", 1.0f, 0, 100000, a);
    for (size_t i = 0; i < 100000; i++) {
        assert_true(a[i] >= -1.0f && a[i] < 1.0f);
        sum += (double)a[i];
    }
    assert_true(sum > -1000 && sum < 1000); /* 5 standard deviations are 913 */
    attn_philox_uniform(1, "a", 0.5f, 0, 100000, b);
    for (size_t i = 0; i < 100000; i++)
        assert_true(b[i] == a[i] * 0.5f);
    attn_philox_uniform(2, "a", 1.0f, 0, 100000, b);
    assert_memory_not_equal(a, b, 16);
    attn_philox_uniform(1 + (1ull << 32), "a", 1.0f, 0, 100000, b);
    assert_memory_not_equal(a, b, 16);
    attn_philox_uniform(1, "b", 1.0f, 0, 100000, b);
    assert_memory_not_equal(a, b, 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_vectors),   cmocka_unit_test(test_counter_and_key),
        cmocka_unit_test(test_golden_inputs),       cmocka_unit_test(test_parts),
        cmocka_unit_test(test_seed_name_and_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
