/* machine_limits.h: what this machine can do at most, measured beside what is held against it.
 *
 * A probe takes a few milliseconds and runs between the runs of the work, so that a machine that
 * others slow down slows both. */
#ifndef MACHINE_LIMITS_H
#define MACHINE_LIMITS_H

#include <stddef.h>

/* Units of work a second that n_threads reach: one probe. */
typedef double limit_probe(unsigned n_threads, const char *kernels);

/* Bytes read from memory too large for the caches, each thread in four streams, which is more than
 * one stream gets. */
limit_probe limit_read;
/* Float32 multiply-adds with the widest vectors of `kernels`. */
limit_probe limit_fma;

/* Work against a limit. Rates are units a second. */
typedef struct limit_result {
    double seconds;      /* a run, median */
    double best_seconds; /* a run, fastest */
    double ratio;        /* median of the rounds: rate of a run over the probes around it */
    double best_ratio;   /* fastest run over fastest probe */
    double limit;        /* median */
} limit_result;

/* Runs fn(ctx), `work` units, and the probe in turn for `seconds`, at least 7 rounds. */
limit_result limit_measure(limit_probe *probe, unsigned n_threads, const char *kernels,
                           double seconds, double work, void (*fn)(void *ctx), void *ctx);

double bench_now(void);

#endif
