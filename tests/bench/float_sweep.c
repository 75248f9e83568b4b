/* Formats float32 bit patterns, reads each text back, and counts those that come back different or
 * are longer than promised: all 2^32 patterns unless told otherwise.
 *
 * Usage: float_sweep [first [behind-last [threads]]]     (patterns as in strtoull: 0x7f800000) */
#include "server/json/float_text.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK ((uint64_t)1 << 24)
#define MAX_THREADS 64

static _Atomic uint64_t next_pattern;
static uint64_t last_pattern;
static _Atomic uint64_t n_finite, n_failures;

static bool survives(uint32_t bits)
{
    float v, back;
    memcpy(&v, &bits, sizeof v);
    char text[SRV_FLOAT_TEXT_MAX];
    const size_t len = srv_float_format(text, v);
    if (len == 0 || len >= SRV_FLOAT_TEXT_MAX)
        return false;
    srv_float_status status;
    return srv_float_parse(text, text + len, &back, &status) == text + len &&
           status == SRV_FLOAT_OK && memcmp(&back, &v, sizeof v) == 0;
}

static void *sweep(void *arg)
{
    (void)arg;
    for (;;) {
        const uint64_t first = atomic_fetch_add(&next_pattern, BLOCK);
        if (first >= last_pattern)
            return NULL;
        const uint64_t behind = last_pattern - first < BLOCK ? last_pattern : first + BLOCK;
        uint64_t finite = 0, failures = 0;
        for (uint64_t i = first; i < behind; i++) {
            const uint32_t bits = (uint32_t)i;
            if ((bits & 0x7f800000) == 0x7f800000)
                continue;
            finite++;
            if (survives(bits))
                continue;
            if (failures++ == 0)
                fprintf(stderr, "first failure of this block: 0x%08" PRIx32 "\n", bits);
        }
        atomic_fetch_add(&n_finite, finite);
        atomic_fetch_add(&n_failures, failures);
        if (first % (BLOCK * 16) == 0)
            fprintf(stderr, "0x%08" PRIx64 "\n", first);
    }
}

int main(int argc, char **argv)
{
    next_pattern = argc > 1 ? strtoull(argv[1], NULL, 0) : 0;
    last_pattern = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)1 << 32;
    const unsigned long wanted = argc > 3 ? strtoul(argv[3], NULL, 0) : 1;
    const size_t n_threads = wanted < 1 ? 1 : wanted > MAX_THREADS ? MAX_THREADS : wanted;

    pthread_t threads[MAX_THREADS];
    for (size_t i = 0; i < n_threads; i++) {
        if (pthread_create(&threads[i], NULL, sweep, NULL) != 0) {
            fprintf(stderr, "cannot start thread %zu\n", i);
            return 1;
        }
    }
    for (size_t i = 0; i < n_threads; i++)
        pthread_join(threads[i], NULL);
    printf("%" PRIu64 " finite patterns, %" PRIu64 " failures\n", n_finite, n_failures);
    return n_failures != 0;
}
