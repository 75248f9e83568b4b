/* arena.h: all memory that grows with sessions or positions, under one budget.
 *
 * The arena hands out KV pages (16 positions of every layer, and their input rows when a session
 * keeps them) and keeps the account of everything else a session costs (tables, records). Bytes
 * are first reserved, which may be refused, and then become allocated, which may not:
 *     available = budget - allocated - reserved
 *
 * Invariants: a page is held by as many page tables as its reference count says; a page whose
 * count is 0 is on its class's free list; allocated + reserved <= budget at every moment.
 * Memory of free pages goes back to the system, but for a few MiB kept warm.
 *
 * Thread: every function may run on any thread; one mutex, held for a few hundred nanoseconds.
 */
#ifndef ATTN_ARENA_H
#define ATTN_ARENA_H

#include "engine/engine.h"

typedef struct attn_arena attn_arena;
/* Pages of one size: one per (model, cache dtype, inputs kept or not). */
typedef struct attn_page_class attn_page_class;

/* Errors: NO_MEMORY. Owner: attn_arena_destroy. */
ATTN_MUST_CHECK attn_arena *attn_arena_create(uint64_t budget_bytes, attn_error *err);
void attn_arena_destroy(attn_arena *arena);

/* Adds a class of pages of kv_bytes + inputs_bytes (both multiples of 64). The class lives as long
 * as the arena. Cost: address space for the whole budget, no memory. Errors: NO_MEMORY. Thread:
 * only before other threads use the arena. */
ATTN_MUST_CHECK attn_page_class *attn_arena_add_class(attn_arena *arena, size_t kv_bytes,
                                                      size_t inputs_bytes, attn_error *err);
size_t attn_page_bytes(const attn_page_class *pages);
size_t attn_page_kv_bytes(const attn_page_class *pages);
size_t attn_page_inputs_bytes(const attn_page_class *pages);

/* Reserves bytes, all or nothing. Errors: KV_BUDGET (details needed, available). */
ATTN_MUST_CHECK attn_status attn_arena_reserve(attn_arena *arena, uint64_t bytes, attn_error *err);
void attn_arena_unreserve(attn_arena *arena, uint64_t bytes);
/* Turns reserved bytes into allocated ones that are not pages, and back into available ones. */
void attn_arena_charge(attn_arena *arena, uint64_t bytes);
void attn_arena_discharge(attn_arena *arena, uint64_t bytes);

/* Takes a page with reference count 1 out of the caller's reservation; cannot fail. Its contents
 * are undefined. */
uint32_t attn_page_take(attn_page_class *pages);
/* Adds a reference to a page that someone holds, and goes on holding during the call. Takes no
 * lock. */
void attn_page_share(attn_page_class *pages, uint32_t id);
/* Whether others hold the page too. */
bool attn_page_is_shared(const attn_page_class *pages, uint32_t id);
/* Drops one reference to each of n pages; those that nobody holds are free again. */
void attn_page_drop(attn_page_class *pages, const uint32_t *ids, size_t n);
/* The page's bytes: kv_bytes of cache, then inputs_bytes of input rows. 64-byte aligned. */
float *attn_page_data(const attn_page_class *pages, uint32_t id);

typedef struct attn_arena_account {
    uint64_t budget_bytes, allocated_bytes, reserved_bytes;
    uint64_t kv_bytes, inputs_bytes, n_pages; /* of allocated pages, each once */
    uint64_t shared_kv_bytes;                 /* of these, of pages that several hold */
    uint64_t other_bytes;                     /* charged */
} attn_arena_account;
void attn_arena_account_get(attn_arena *arena, attn_arena_account *account);

#endif
