#include "clients/load/histogram.h"

#include <math.h>
#include <string.h>

enum { PART_BITS = 7 }; /* LOAD_PARTS = 2^7; below that, nanoseconds stand for themselves */

static unsigned bucket_of(uint64_t ns)
{
    if (ns < LOAD_PARTS)
        return (unsigned)ns;
    unsigned top = 63 - (unsigned)__builtin_clzll(ns), shift = top - PART_BITS;
    uint64_t bucket = (uint64_t)LOAD_PARTS * (shift + 1) + ((ns >> shift) - LOAD_PARTS);
    return bucket < LOAD_BUCKETS ? (unsigned)bucket : LOAD_BUCKETS - 1;
}

double load_histogram_bucket_ms(unsigned bucket)
{
    if (bucket < LOAD_PARTS)
        return (double)bucket * 1e-6;
    unsigned shift = bucket / LOAD_PARTS - 1, part = bucket % LOAD_PARTS;
    return ldexp((double)(LOAD_PARTS + part) + (shift ? 0.5 : 0), (int)shift) * 1e-6;
}

void load_histogram_add(load_histogram *h, uint64_t ns)
{
    h->count++;
    h->sum_ns += ns;
    if (ns > h->max_ns)
        h->max_ns = ns;
    h->buckets[bucket_of(ns)]++;
}

void load_histogram_clear(load_histogram *h)
{
    memset(h, 0, sizeof *h);
}

double load_histogram_quantile_ms(const load_histogram *h, double q)
{
    if (h->count == 0)
        return 0;
    uint64_t rank = (uint64_t)ceil(q * (double)h->count), seen = 0;
    if (rank >= h->count)
        return (double)h->max_ns * 1e-6;
    if (rank == 0)
        rank = 1;
    unsigned b = 0;
    while (b < LOAD_BUCKETS - 1 && (seen += h->buckets[b]) < rank)
        b++;
    return fmin(load_histogram_bucket_ms(b), (double)h->max_ns * 1e-6);
}

double load_histogram_mean_ms(const load_histogram *h)
{
    return h->count ? (double)h->sum_ns * 1e-6 / (double)h->count : 0;
}
