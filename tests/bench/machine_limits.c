#include "tests/bench/machine_limits.h"

#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SCAN_BYTES ((size_t)512 << 20)
#define MAX_THREADS 64
#define FMA_LOOPS 20000000ul

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
    __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                      _mm256_setzero_si256()};
    for (size_t i = 0; i < n; i += 128) {
        for (size_t k = 0; k < 4; k++)
            sum[k] = _mm256_or_si256(
                sum[k], _mm256_load_si256((const __m256i *)(const void *)(p + i + 32 * k)));
    }
    sum[0] = _mm256_or_si256(_mm256_or_si256(sum[0], sum[1]), _mm256_or_si256(sum[2], sum[3]));
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

double limit_read_bandwidth(unsigned n_threads)
{
    static unsigned char *bytes;
    if (bytes == NULL) {
        bytes = mmap(NULL, SCAN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (bytes == MAP_FAILED)
            abort();
        madvise(bytes, SCAN_BYTES, MADV_HUGEPAGE);
        memset(bytes, 1, SCAN_BYTES);
    }
    double best = 0;
    for (int round = 0; round < 5; round++) {
        part parts[MAX_THREADS] = {0};
        for (unsigned i = 0; i < n_threads; i++) {
            parts[i].n_bytes = SCAN_BYTES / n_threads / 128 * 128;
            parts[i].bytes = bytes + i * parts[i].n_bytes;
        }
        double rate = run(parts, n_threads, scan_part);
        best = rate > best ? rate : best;
    }
    return best;
}

double limit_fma_rate(unsigned n_threads, const char *kernels)
{
    double best = 0;
    for (int round = 0; round < 3; round++) {
        part parts[MAX_THREADS] = {0};
        for (unsigned i = 0; i < n_threads; i++)
            parts[i].kernels = kernels;
        double rate = run(parts, n_threads, fma_part);
        best = rate > best ? rate : best;
    }
    return best;
}
