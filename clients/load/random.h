/* random.h: numbers that depend on a seed alone: SplitMix64, as a stream and by index.
 *
 * Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
 */
#ifndef LOAD_RANDOM_H
#define LOAD_RANDOM_H

#include <stdint.h>

/* The index-th number of the stream of `key`. */
uint64_t load_mix(uint64_t key, uint64_t index);

typedef struct load_random {
    uint64_t state;
} load_random;

uint64_t load_random_next(load_random *r);
/* In [0, 1). */
double load_random_unit(load_random *r);

/* low to high, both included, all alike. */
typedef struct load_range {
    uint64_t low, high;
} load_range;
uint64_t load_random_in(load_random *r, load_range range);

/* FNV-1a over 32-bit words, for the bits of outputs in their order. Start: LOAD_HASH_START. */
#define LOAD_HASH_START 14695981039346656037u
uint64_t load_hash_word(uint64_t hash, uint32_t word);
uint64_t load_hash_float(uint64_t hash, float value);

#endif
