#include "clients/load/random.h"

#include <string.h>

#define GOLDEN 0x9e3779b97f4a7c15u

static uint64_t finish(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t load_mix(uint64_t key, uint64_t index)
{
    return finish(key + GOLDEN * (index + 1));
}

uint64_t load_random_next(load_random *r)
{
    return finish(r->state += GOLDEN);
}

double load_random_unit(load_random *r)
{
    return (double)(load_random_next(r) >> 11) * 0x1p-53;
}

uint64_t load_random_in(load_random *r, load_range range)
{
    uint64_t n = range.high - range.low, word = load_random_next(r);
    return n == UINT64_MAX ? word : range.low + word % (n + 1);
}

uint64_t load_hash_word(uint64_t hash, uint32_t word)
{
    return (hash ^ word) * 1099511628211u;
}

uint64_t load_hash_float(uint64_t hash, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return load_hash_word(hash, bits);
}
