/* The compute pool: every item of every region runs exactly once, before the region returns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <xmmintrin.h>

#include "engine/compute/kernels.h"
#include "engine/compute/pool.h"

/* Above what a region must cost to be shared out. */
#define COST 1e9
#define MAX_ITEMS 4096
#ifdef __SANITIZE_THREAD__
#define N_REGIONS 4000u
#else
#define N_REGIONS 30000u
#endif

/* Plain memory: that each item's write is seen after the region is the pool's promise. */
typedef struct region {
    uint32_t generation;
    uint32_t marks[MAX_ITEMS];  /* the generation in which the item last ran */
    uint32_t counts[MAX_ITEMS]; /* how often it ran in all */
    unsigned n_threads;
    _Atomic unsigned n_wrong;
    _Atomic uint64_t by_worker[16];
    _Atomic bool inside[16]; /* a number is one thread's at a time */
} region;

static void run_item(void *ctx, size_t item, unsigned worker)
{
    region *r = ctx;
    r->n_wrong += worker >= r->n_threads || atomic_exchange(&r->inside[worker], true);
    r->n_wrong += r->marks[item] == r->generation;
    r->marks[item] = r->generation;
    r->counts[item]++;
    r->by_worker[worker]++;
    r->inside[worker] = false;
}

/* An item that takes a while, each another while. */
static void run_uneven_item(void *ctx, size_t item, unsigned worker)
{
    volatile uint32_t spin = (uint32_t)(item * 2654435761u) >> 18;
    while (spin > 0)
        spin--;
    run_item(ctx, item, worker);
}

/* Runs one region of n items and checks it. */
static void check_region(attn_pool *pool, region *r, attn_pool_fn fn, size_t n, double cost)
{
    r->generation++;
    attn_pool_run(pool, fn, r, n, cost);
    size_t n_missed = 0;
    for (size_t i = 0; i < n; i++)
        n_missed += r->marks[i] != r->generation;
    n_missed += n < MAX_ITEMS && r->marks[n] == r->generation;
    assert_int_equal(n_missed, 0);
    assert_int_equal(r->n_wrong, 0);
}

static region *fresh_region(attn_pool *pool)
{
    static region r;
    memset(&r, 0, sizeof r);
    r.n_threads = attn_pool_threads(pool);
    return &r;
}

static void test_every_item_once(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 100, 1023, MAX_ITEMS};
    for (unsigned n_threads = 1; n_threads <= 8; n_threads++) {
        attn_pool *pool = attn_pool_create(n_threads);
        assert_non_null(pool);
        assert_int_equal(attn_pool_threads(pool), n_threads);
        region *r = fresh_region(pool);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            check_region(pool, r, run_item, sizes[s], COST);
            check_region(pool, r, run_uneven_item, sizes[s], COST);
            check_region(pool, r, run_item, sizes[s], 1); /* on the caller alone */
            check_region(pool, r, run_item, sizes[s], 0);
        }
        attn_pool_destroy(pool);
    }
}

/* One after the other without a pause: what a worker saw of a region never leaks into the next. */
static void test_back_to_back(void **state)
{
    (void)state;
    for (unsigned n_threads = 1; n_threads <= 8; n_threads = n_threads * 3 / 2 + 1) {
        attn_pool *pool = attn_pool_create(n_threads);
        region *r = fresh_region(pool);
        uint64_t expected = 0;
        for (unsigned i = 0; i < N_REGIONS; i++) {
            size_t n = i % 11;
            check_region(pool, r, i % 5 == 0 ? run_uneven_item : run_item, n, COST);
            expected += n;
        }
        uint64_t total = 0, counted = 0;
        for (size_t i = 0; i < 16; i++)
            total += r->by_worker[i];
        for (size_t i = 0; i < MAX_ITEMS; i++)
            counted += r->counts[i];
        assert_int_equal(total, expected);
        assert_int_equal(counted, expected);
        attn_pool_destroy(pool);
    }
}

/* An item that waits for another needs two threads at work at the same time. */
static void meet(void *ctx, size_t item, unsigned worker)
{
    (void)item;
    (void)worker;
    _Atomic unsigned *arrived = ctx;
    (*arrived)++;
    while (*arrived < 2) {
    }
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* Workers help, also after they have gone to sleep. */
static void test_workers_wake(void **state)
{
    (void)state;
    attn_pool *pool = attn_pool_create(2);
    for (int i = 0; i < 50; i++) {
        _Atomic unsigned arrived = 0;
        if (i % 2 == 0)
            sleep_ms(2); /* far longer than they spin */
        attn_pool_run(pool, meet, &arrived, 2, COST);
        assert_int_equal(arrived, 2);
    }
    attn_pool_destroy(pool);
}

static void test_small_regions_stay_with_the_caller(void **state)
{
    (void)state;
    attn_pool *pool = attn_pool_create(4);
    region *r = fresh_region(pool);
    for (int i = 0; i < 100; i++) {
        check_region(pool, r, run_item, 50, 10);
        check_region(pool, r, run_item, 1, COST);
    }
    assert_int_equal(r->by_worker[0], 100 * 51);
    attn_pool_destroy(pool);
}

static void check_mode(void *ctx, size_t item, unsigned worker)
{
    (void)item;
    _Atomic unsigned *n_right = ctx;
    /* Flush to zero, denormals are zero; flags aside. */
    if (worker == 0 || (_mm_getcsr() & 0xffc0u) == 0x9fc0u)
        (*n_right)++;
}

static void test_workers_flush_subnormals(void **state)
{
    (void)state;
    attn_pool *pool = attn_pool_create(8);
    _Atomic unsigned n_right = 0;
    for (int i = 0; i < 200; i++)
        attn_pool_run(pool, check_mode, &n_right, 64, COST);
    assert_int_equal(n_right, 200 * 64);
    attn_pool_destroy(pool);
}

static void test_destroy(void **state)
{
    (void)state;
    attn_pool_destroy(NULL);
    for (unsigned i = 0; i < 60; i++) {
        attn_pool *pool = attn_pool_create(1 + i % 8);
        region *r = fresh_region(pool);
        if (i % 3 > 0)
            check_region(pool, r, run_item, 20, COST);
        if (i % 4 == 0)
            sleep_ms(1); /* destroyed while asleep; else while they spin or start */
        attn_pool_destroy(pool);
    }
    /* At every moment of their start: none sleeps through its end. */
    for (unsigned i = 0; i < 1000; i++) {
        attn_pool *pool = attn_pool_create(4);
        assert_non_null(pool);
        for (volatile unsigned wait = i * 37 % 3000; wait > 0; wait--) {
        }
        attn_pool_destroy(pool);
    }
}

/* A pool is used from one thread at a time, not always from the same. */
static void *run_elsewhere(void *arg)
{
    attn_pool *pool = arg;
    region *r = fresh_region(pool);
    for (int i = 0; i < 300; i++) {
        r->generation++;
        attn_pool_run(pool, run_item, r, 13, COST);
    }
    return r;
}

static void test_callers_change(void **state)
{
    (void)state;
    attn_pool *pool = attn_pool_create(3);
    for (int i = 0; i < 10; i++) {
        pthread_t thread;
        void *result;
        assert_int_equal(pthread_create(&thread, NULL, run_elsewhere, pool), 0);
        pthread_join(thread, &result);
        region *r = result;
        assert_int_equal(r->n_wrong, 0);
        for (size_t item = 0; item < 13; item++)
            assert_int_equal(r->counts[item], 300);
    }
    attn_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_once),
        cmocka_unit_test(test_back_to_back),
        cmocka_unit_test(test_workers_wake),
        cmocka_unit_test(test_small_regions_stay_with_the_caller),
        cmocka_unit_test(test_workers_flush_subnormals),
        cmocka_unit_test(test_destroy),
        cmocka_unit_test(test_callers_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
