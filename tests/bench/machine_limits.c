#include "tests/bench/machine_limits.h"

#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* The whole is far larger than the last-level cache; a probe reads one slice, the next one the next. */
#define SCAN_BYTES ((size_t)512 << 20)
#define SLICE_BYTES ((size_t)64 << 20)
#define STREAMS 4
#define MAX_ROUNDS 400
#define MIN_ROUNDS 7
#define MAX_THREADS 64
#define FMA_LOOPS 3000000ul

typedef struct part {
    pthread_t thread;
    pthread_barrier_t *barrier;
    const unsigned char *bytes;
    size_t n_bytes;
    const char *kernels;
    double begin, end, work;
    uint64_t sink;
} part;

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

__attribute__((target("avx2"))) static uint64_t scan(const unsigned char *p, size_t n)
{
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    const size_t stream = n / STREAMS;
    for (size_t i = 0; i < stream; i += 64) {
        for (size_t k = 0; k < STREAMS; k++) {
            const __m256i *line = (const __m256i *)(const void *)(p + k * stream + i);
            sum[0] = _mm256_or_si256(sum[0], _mm256_load_si256(line));
            sum[1] = _mm256_or_si256(sum[1], _mm256_load_si256(line + 1));
        }
    }
    sum[0] = _mm256_or_si256(sum[0], sum[1]);
    uint64_t words[4];
    memcpy(words, &sum[0], sizeof words);
    return words[0] | words[1] | words[2] | words[3];
}

static void *scan_part(void *arg)
{
    part *p = arg;
    pthread_barrier_wait(p->barrier);
    p->begin = bench_now();
    p->sink = scan(p->bytes, p->n_bytes);
    p->end = bench_now();
    p->work = (double)p->n_bytes;
    return NULL;
}

#define FMA_TEN(op, width)                                                                        \
    op " %%" width "14,%%" width "15,%%" width "0\n\t" op " %%" width "14,%%" width "15,%%" width \
       "1\n\t" op " %%" width "14,%%" width "15,%%" width "2\n\t" op " %%" width "14,%%" width    \
       "15,%%" width "3\n\t" op " %%" width "14,%%" width "15,%%" width "4\n\t" op " %%" width    \
       "14,%%" width "15,%%" width "5\n\t" op " %%" width "14,%%" width "15,%%" width "6\n\t" op  \
       " %%" width "14,%%" width "15,%%" width "7\n\t" op " %%" width "14,%%" width "15,%%" width \
       "8\n\t" op " %%" width "14,%%" width "15,%%" width "9\n\t"
#define CLOBBERS \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm14", "xmm15"

/* Ten independent chains: more than latency times issue width asks for. */
static void *fma_part(void *arg)
{
    part *p = arg;
    double lanes = 8;
    pthread_barrier_wait(p->barrier);
    p->begin = bench_now();
    if (strcmp(p->kernels, "avx512") == 0) {
        lanes = 16;
        for (unsigned long i = 0; i < FMA_LOOPS; i++)
            __asm__ volatile(FMA_TEN("vfmadd231ps", "zmm")::: CLOBBERS);
    } else {
        for (unsigned long i = 0; i < FMA_LOOPS; i++)
            __asm__ volatile(FMA_TEN("vfmadd231ps", "ymm")::: CLOBBERS);
    }
    p->end = bench_now();
    p->work = 10 * lanes * (double)FMA_LOOPS;
    return NULL;
}

static double run(part *parts, unsigned n, void *(*fn)(void *))
{
    pthread_barrier_t barrier;
    double begin = 1e300, end = 0, work = 0;
    pthread_barrier_init(&barrier, NULL, n);
    for (unsigned i = 0; i < n; i++) {
        parts[i].barrier = &barrier;
        pthread_create(&parts[i].thread, NULL, fn, &parts[i]);
    }
    for (unsigned i = 0; i < n; i++) {
        pthread_join(parts[i].thread, NULL);
        begin = parts[i].begin < begin ? parts[i].begin : begin;
        end = parts[i].end > end ? parts[i].end : end;
        work += parts[i].work;
    }
    pthread_barrier_destroy(&barrier);
    return work / (end - begin);
}

double limit_read(unsigned n_threads, const char *kernels)
{
    static unsigned char *bytes;
    static size_t next;
    (void)kernels;
    if (bytes == NULL) {
        bytes = mmap(NULL, SCAN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (bytes == MAP_FAILED)
            abort();
        madvise(bytes, SCAN_BYTES, MADV_HUGEPAGE);
        memset(bytes, 1, SCAN_BYTES);
    }
    part parts[MAX_THREADS] = {0};
    for (unsigned i = 0; i < n_threads; i++) {
        parts[i].n_bytes = SLICE_BYTES / n_threads / (64 * STREAMS) * (64 * STREAMS);
        parts[i].bytes = bytes + next + i * parts[i].n_bytes;
    }
    next = (next + SLICE_BYTES) % SCAN_BYTES;
    return run(parts, n_threads, scan_part);
}

double limit_fma(unsigned n_threads, const char *kernels)
{
    part parts[MAX_THREADS] = {0};
    for (unsigned i = 0; i < n_threads; i++)
        parts[i].kernels = kernels;
    return run(parts, n_threads, fma_part);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare);
    return values[n / 2];
}

limit_result limit_measure(limit_probe *probe, unsigned n_threads, const char *kernels,
                           double seconds, double work, void (*fn)(void *ctx), void *ctx)
{
    double times[MAX_ROUNDS], limits[MAX_ROUNDS], ratios[MAX_ROUNDS], fastest = 0;
    size_t n = 0;
    fn(ctx);
    double before = probe(n_threads, kernels);
    for (double until = bench_now() + seconds;
         n < MIN_ROUNDS || (n < MAX_ROUNDS && bench_now() < until); n++) {
        fn(ctx); /* brings back what the probe drove out of the caches, where that fits */
        double begin = bench_now();
        fn(ctx);
        times[n] = bench_now() - begin;
        double after = probe(n_threads, kernels);
        limits[n] = before > after ? before : after;
        ratios[n] = work / times[n] / limits[n];
        fastest = after > fastest ? after : fastest;
        before = after;
    }
    limit_result r = {
        .seconds = median(times, n), .ratio = median(ratios, n), .limit = median(limits, n)};
    r.best_seconds = times[0];
    r.best_ratio = work / times[0] / fastest;
    return r;
}
