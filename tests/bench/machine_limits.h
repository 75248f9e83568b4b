/* machine_limits.h: what this machine can do at most, measured in the same run as the benchmark. */
#ifndef MACHINE_LIMITS_H
#define MACHINE_LIMITS_H

/* Bytes a second that n_threads read from memory too large for the caches. */
double limit_read_bandwidth(unsigned n_threads);
/* Float32 multiply-adds a second that n_threads reach with the widest vectors of `kernels`. */
double limit_fma_rate(unsigned n_threads, const char *kernels);
double bench_now(void);

#endif
