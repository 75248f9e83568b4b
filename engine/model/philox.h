/* philox.h: counter-based random numbers for weights made from a seed.
 * Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", Philox4x32-10. */
#ifndef ATTN_PHILOX_H
#define ATTN_PHILOX_H

#include <stddef.h>
#include <stdint.h>

/* The four words at `counter` under `key`. */
void attn_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Elements first .. first + n - 1 of a tensor: (2 u - 1) * bound, u = the upper 24 bits of word i /
 * 2^24, where word i is lane i % 4 of block i / 4 with key = seed and counter = (block, FNV-1a 64 of
 * `name`). So a tensor's values depend on seed, name and index alone. */
void attn_philox_uniform(uint64_t seed, const char *name, float bound, size_t first, size_t n,
                         float *values);

#endif
