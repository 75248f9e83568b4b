/* pool.h: persistent compute threads that run one parallel region at a time.
 *
 * A region is a number of independent items. The calling thread works on them too, and waits only
 * for items that a worker has begun, so a worker that the system has put aside delays nobody.
 * Each thread begins with a run of neighbouring items and helps others with theirs when it is done;
 * which thread runs which item is left to chance, and items must not depend on it.
 *
 * Thread: one caller at a time (the scheduler).
 */
#ifndef ATTN_POOL_H
#define ATTN_POOL_H

#include <stddef.h>
#include <stdint.h>

typedef struct attn_pool attn_pool;

/* `worker` is the thread's number, 0 (the caller) to n_threads - 1, for per-thread scratch. */
typedef void (*attn_pool_fn)(void *ctx, size_t item, unsigned worker);

/* A pool of n_threads threads, the caller included. NULL when threads cannot be made.
 * Owner: attn_pool_destroy. */
attn_pool *attn_pool_create(unsigned n_threads);
void attn_pool_destroy(attn_pool *pool);
unsigned attn_pool_threads(const attn_pool *pool);

/* Runs fn(ctx, item, worker) for items 0 .. n_items - 1 and returns when all have ended. `cost`
 * is the region's work in multiply-adds, roughly: a small one runs on the caller alone, because
 * waking others would take longer. Cost: no allocation. */
void attn_pool_run(attn_pool *pool, attn_pool_fn fn, void *ctx, size_t n_items, double cost);

#endif
