/* DESIGN. The items of a region are dealt out in runs, one for each thread, because neighbours lie
 * side by side in memory: a thread takes its own run's items from the front, then others' from the
 * back. A run is one word: generation, next item, end. A region is published by writing fn and ctx
 * and then the runs, of a new generation. A thread takes an item by compare-and-swap, which fails
 * when the generation has passed, so what it read of an older region is never acted on. `n_done`
 * counts ended items; the caller returns when it reaches n_items, so fn and ctx stay valid for every
 * item taken. Idle workers spin for a short while, because in a step the next region comes within
 * microseconds, then sleep on a futex. */
#include "engine/compute/pool.h"

#include "engine/base/base.h"
#include "engine/compute/kernels.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Regions below this many multiply-adds run on the caller alone (about 5 microseconds). */
#define ALONE_COST 1e5
/* How long an idle worker watches for the next region before it sleeps. */
#define SPIN_NS 20000u

/* A run: generation, ITEM_BITS of the next item, ITEM_BITS of the end. */
#define ITEM_BITS 20
#define ITEM_MASK (((uint64_t)1 << ITEM_BITS) - 1)

struct attn_pool {
    _Alignas(64) _Atomic uint32_t n_done;
    _Alignas(64) _Atomic(attn_pool_fn) fn;
    _Atomic(void *) ctx;
    uint64_t generation;                /* the caller's */
    _Alignas(64) _Atomic uint32_t wake; /* futex: changes with every region that is published */
    _Atomic uint32_t n_asleep;
    _Atomic bool stop;
    unsigned n_threads, n_started; /* the caller included */
    struct worker {                /* number 0 is the caller */
        _Alignas(64) _Atomic uint64_t run;
        pthread_t thread;
        attn_pool *pool;
        unsigned number;
    } workers[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Takes an item of a run, from the front or from the back, and runs it. False: none is left. */
static bool take(attn_pool *pool, _Atomic uint64_t *run, bool front, unsigned number)
{
    uint64_t seen = atomic_load_explicit(run, memory_order_acquire);
    for (;;) {
        uint64_t next = seen >> ITEM_BITS & ITEM_MASK, end = seen & ITEM_MASK;
        if (next == end)
            return false;
        attn_pool_fn fn = pool->fn;
        void *ctx = pool->ctx;
        uint64_t rest = front ? seen + ((uint64_t)1 << ITEM_BITS) : seen - 1;
        if (!atomic_compare_exchange_weak_explicit(run, &seen, rest, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        fn(ctx, front ? next : end - 1, number);
        atomic_fetch_add_explicit(&pool->n_done, 1, memory_order_release);
        return true;
    }
}

/* Runs items until none is left to take. */
static void work(attn_pool *pool, unsigned number)
{
    for (unsigned i = 0; i < pool->n_threads; i++) {
        unsigned whose = (number + i) % pool->n_threads;
        while (take(pool, &pool->workers[whose].run, i == 0, number))
            ;
    }
}

static void *worker_main(void *arg)
{
    struct worker *self = arg;
    attn_pool *pool = self->pool;
    attn_kernels_thread_init();
    for (;;) {
        /* Before `stop`: whoever sets that changes `wake` afterwards, so nobody sleeps through it. */
        const uint32_t seen = pool->wake;
        if (pool->stop)
            return NULL;
        work(pool, self->number);
        uint64_t until = attn_now_ns() + SPIN_NS;
        while (pool->wake == seen && attn_now_ns() < until)
            _mm_pause();
        if (pool->wake != seen)
            continue;
        pool->n_asleep++;
        futex_wait(&pool->wake, seen);
        pool->n_asleep--;
    }
}

attn_pool *attn_pool_create(unsigned n_threads)
{
    attn_pool *pool = attn_alloc(1, sizeof *pool + n_threads * sizeof pool->workers[0]);
    if (pool == NULL)
        return NULL;
    pool->n_threads = n_threads;
    pool->n_started = 1;
    for (unsigned i = 1; i < n_threads; i++) {
        struct worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->number = i;
        if (pthread_create(&worker->thread, NULL, worker_main, worker) != 0) {
            attn_pool_destroy(pool);
            return NULL;
        }
        pool->n_started++;
    }
    return pool;
}

void attn_pool_destroy(attn_pool *pool)
{
    if (pool == NULL)
        return;
    pool->stop = true;
    pool->wake++;
    futex_wake_all(&pool->wake);
    for (unsigned i = 1; i < pool->n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    attn_free(pool);
}

unsigned attn_pool_threads(const attn_pool *pool)
{
    return pool->n_threads;
}

void attn_pool_run(attn_pool *pool, attn_pool_fn fn, void *ctx, size_t n_items, double cost)
{
    if (pool->n_threads == 1 || n_items == 1 || cost < ALONE_COST) {
        for (size_t i = 0; i < n_items; i++)
            fn(ctx, i, 0);
        return;
    }
    ATTN_ASSERT(n_items <= ITEM_MASK);
    if (n_items == 0)
        return;
    pool->generation++;
    pool->fn = fn;
    pool->ctx = ctx;
    pool->n_done = 0;
    for (unsigned i = 0; i < pool->n_threads; i++) {
        uint64_t next = n_items * i / pool->n_threads, end = n_items * (i + 1) / pool->n_threads;
        atomic_store_explicit(&pool->workers[i].run,
                              (pool->generation << ITEM_BITS | next) << ITEM_BITS | end,
                              memory_order_release);
    }
    pool->wake++;
    if (pool->n_asleep > 0)
        futex_wake_all(&pool->wake);
    work(pool, 0);
    while (atomic_load_explicit(&pool->n_done, memory_order_acquire) < n_items)
        _mm_pause();
}
