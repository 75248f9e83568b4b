/* histogram.h: how long things took: logarithmic buckets, each octave in 128 parts, so that a
 * quantile is within 0.4 % of the truth. Fixed memory, whatever is counted. */
#ifndef LOAD_HISTOGRAM_H
#define LOAD_HISTOGRAM_H

#include <stdint.h>

enum { LOAD_PARTS = 128, LOAD_OCTAVES = 34, LOAD_BUCKETS = LOAD_PARTS * LOAD_OCTAVES };

/* All zero is empty. Nanoseconds, up to 18 minutes; what is longer counts as that. */
typedef struct load_histogram {
    uint64_t count, sum_ns, max_ns;
    uint64_t buckets[LOAD_BUCKETS];
} load_histogram;

void load_histogram_add(load_histogram *h, uint64_t ns);
void load_histogram_clear(load_histogram *h);
/* The value that a part q (0 to 1) of all counted ones do not exceed; 0 when empty. */
double load_histogram_quantile_ms(const load_histogram *h, double q);
double load_histogram_mean_ms(const load_histogram *h);
/* The middle of a bucket. */
double load_histogram_bucket_ms(unsigned bucket);

#endif
