#include "engine/model/philox.h"

void attn_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static uint64_t fnv1a64(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

void attn_philox_uniform(uint64_t seed, const char *name, float bound, size_t first, size_t n,
                         float *values)
{
    uint64_t hash = fnv1a64(name);
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (size_t i = first; i < first + n;) {
        uint64_t block = i / 4;
        const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)hash,
                                     (uint32_t)(hash >> 32)};
        uint32_t words[4];
        attn_philox4x32(counter, key, words);
        for (; i / 4 == block && i < first + n; i++) {
            float u = (float)(words[i % 4] >> 8) * 0x1p-24f;
            values[i - first] = (2.0f * u - 1.0f) * bound;
        }
    }
}
