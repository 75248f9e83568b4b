/* The arena: an account that is exact at every moment, pages that belong to their holder alone,
 * and memory that goes back to the system. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sys/mman.h>

#include "engine/cache/arena.h"

#define MIB ((size_t)1 << 20)
/* Some tests ask the system how much memory is resident; sanitizers keep more. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static attn_arena *new_arena(uint64_t budget)
{
    attn_error err = {0};
    attn_arena *arena = attn_arena_create(budget, &err);
    assert_non_null(arena);
    return arena;
}

static attn_page_class *new_class(attn_arena *arena, size_t kv_bytes, size_t inputs_bytes)
{
    attn_error err = {0};
    attn_page_class *pages = attn_arena_add_class(arena, kv_bytes, inputs_bytes, &err);
    assert_non_null(pages);
    return pages;
}

static attn_arena_account account_of(attn_arena *arena)
{
    attn_arena_account account;
    attn_arena_account_get(arena, &account);
    return account;
}

static void check_account(attn_arena *arena, uint64_t allocated, uint64_t reserved, uint64_t other,
                          uint64_t n_pages)
{
    attn_arena_account a = account_of(arena);
    assert_int_equal(a.allocated_bytes, allocated);
    assert_int_equal(a.reserved_bytes, reserved);
    assert_int_equal(a.other_bytes, other);
    assert_int_equal(a.n_pages, n_pages);
    assert_int_equal(a.kv_bytes + a.inputs_bytes + a.other_bytes, allocated);
}

static void reserve(attn_arena *arena, uint64_t bytes)
{
    assert_int_equal(attn_arena_reserve(arena, bytes, NULL), ATTN_OK);
}

static void test_account(void **state)
{
    (void)state;
    attn_arena *arena = new_arena(1 * MIB);
    attn_page_class *a = new_class(arena, 2048, 1024), *b = new_class(arena, 4096, 0);
    assert_int_equal(attn_page_bytes(a), 3072);
    assert_int_equal(attn_page_kv_bytes(a), 2048);
    assert_int_equal(attn_page_inputs_bytes(a), 1024);
    assert_int_equal(account_of(arena).budget_bytes, 1 * MIB);
    check_account(arena, 0, 0, 0, 0);
    reserve(arena, 10000);
    check_account(arena, 0, 10000, 0, 0);
    attn_arena_charge(arena, 1000);
    check_account(arena, 1000, 9000, 1000, 0);
    uint32_t ids[3];
    ids[0] = attn_page_take(a);
    check_account(arena, 4072, 5928, 1000, 1);
    ids[1] = attn_page_take(b);
    check_account(arena, 8168, 1832, 1000, 2);
    assert_int_equal(account_of(arena).kv_bytes, 2048 + 4096);
    assert_int_equal(account_of(arena).inputs_bytes, 1024);
    attn_arena_unreserve(arena, 1832);
    attn_page_drop(b, ids + 1, 1);
    check_account(arena, 4072, 0, 1000, 1);
    attn_arena_discharge(arena, 1000);
    attn_page_drop(a, ids, 1);
    check_account(arena, 0, 0, 0, 0);
    attn_page_drop(a, ids, 0);
    attn_arena_destroy(arena);
    attn_arena_destroy(NULL);
}

static void test_budget(void **state)
{
    (void)state;
    attn_arena *arena = new_arena(10000);
    attn_error err = {0};
    reserve(arena, 6000);
    attn_arena_charge(arena, 1000);
    assert_int_equal(attn_arena_reserve(arena, 4001, &err), ATTN_E_KV_BUDGET);
    assert_int_equal(err.status, ATTN_E_KV_BUDGET);
    assert_int_equal(err.n_details, 2);
    assert_string_equal(err.details[0].name, "needed");
    assert_int_equal(err.details[0].value, 4001);
    assert_string_equal(err.details[1].name, "available");
    assert_int_equal(err.details[1].value, 4000);
    check_account(arena, 1000, 5000, 1000, 0);
    /* Sums that would wrap are refused too. */
    assert_int_equal(attn_arena_reserve(arena, UINT64_MAX, &err), ATTN_E_KV_BUDGET);
    assert_int_equal(attn_arena_reserve(arena, UINT64_MAX - 5000, NULL), ATTN_E_KV_BUDGET);
    reserve(arena, 4000);
    assert_int_equal(attn_arena_reserve(arena, 1, &err), ATTN_E_KV_BUDGET);
    assert_int_equal(err.details[1].value, 0);
    reserve(arena, 0);
    attn_arena_unreserve(arena, 9000);
    attn_arena_discharge(arena, 1000);
    reserve(arena, 10000);
    attn_arena_unreserve(arena, 10000);
    check_account(arena, 0, 0, 0, 0);
    attn_arena_destroy(arena);
}

static void test_tiny_budgets(void **state)
{
    (void)state;
    for (uint64_t budget = 0; budget < 3; budget++) {
        attn_arena *arena = new_arena(budget);
        new_class(arena, 2048, 0);
        assert_int_equal(attn_arena_reserve(arena, 2048, NULL), ATTN_E_KV_BUDGET);
        reserve(arena, budget);
        attn_arena_destroy(arena);
    }
}

/* ------------------------------------------------------------------------------- page contents */

static void fill(attn_page_class *pages, uint32_t id, uint32_t mark)
{
    uint32_t *words = (uint32_t *)(void *)attn_page_data(pages, id);
    for (size_t i = 0; i < attn_page_bytes(pages) / 4; i++)
        words[i] = mark + (uint32_t)i;
}

static bool filled(attn_page_class *pages, uint32_t id, uint32_t mark)
{
    const uint32_t *words = (const uint32_t *)(void *)attn_page_data(pages, id);
    uint32_t wrong = 0;
    for (size_t i = 0; i < attn_page_bytes(pages) / 4; i++)
        wrong |= words[i] ^ (mark + (uint32_t)i);
    return wrong == 0;
}

/* Takes the whole budget as pages, gives back some, keeps others, takes again: what is held keeps
 * its contents. Reaches the last group, which is not whole, and both sides of it. */
static void check_contents(size_t page_bytes, size_t n_pages)
{
    attn_arena *arena = new_arena(page_bytes * n_pages);
    /* Neighbours in the address space, whose memory must not go with the last group. */
    size_t neighbour = 256 << 10;
    unsigned char *above =
        mmap(NULL, neighbour, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(above, 0x77, neighbour);
    attn_page_class *pages = new_class(arena, page_bytes, 0);
    attn_page_class *other = new_class(arena, 64, 0);
    uint32_t *ids = malloc(n_pages * sizeof *ids);
    for (int round = 0; round < (SANITIZED ? 1 : 2); round++) {
        reserve(arena, page_bytes * n_pages);
        for (size_t i = 0; i < n_pages; i++) {
            ids[i] = attn_page_take(pages);
            assert_int_equal((uintptr_t)attn_page_data(pages, ids[i]) % 64, 0);
            fill(pages, ids[i], (uint32_t)i * 7919);
        }
        assert_int_equal(attn_arena_reserve(arena, 1, NULL), ATTN_E_KV_BUDGET);
        /* Every third stays. */
        for (size_t i = 0; i < n_pages; i++) {
            if (i % 3 != (size_t)round)
                attn_page_drop(pages, &ids[i], 1);
        }
        for (size_t i = (size_t)round; i < n_pages; i += 3)
            assert_true(filled(pages, ids[i], (uint32_t)i * 7919));
        for (size_t i = (size_t)round; i < n_pages; i += 3)
            attn_page_drop(pages, &ids[i], 1);
        check_account(arena, 0, 0, 0, 0);
    }
    unsigned char wrong = 0;
    for (size_t i = 0; i < neighbour; i++)
        wrong |= above[i] ^ 0x77;
    assert_int_equal(wrong, 0);
    reserve(arena, 64);
    uint32_t id = attn_page_take(other);
    fill(other, id, 1);
    attn_page_drop(other, &id, 1);
    munmap(above, neighbour);
    free(ids);
    attn_arena_destroy(arena);
}

static void test_contents(void **state)
{
    (void)state;
    check_contents(3072, 4000); /* 21 to a group, the last group not whole */
    check_contents(2048, 32 * 150 + 1);
    check_contents(64, 200001); /* 1024 to a group */
    check_contents(40000, 250); /* a group by itself, below its size */
    check_contents(64 << 10, 151);
    check_contents((64 << 10) + 64, 151); /* not on system pages */
    check_contents(MIB + 4096, 20);
}

/* ---------------------------------------------------------------------------------- threads */

#define N_THREADS 4
#define N_HELD 40

typedef struct hammer {
    attn_arena *arena;
    attn_page_class *pages[2];
    _Atomic bool stop;
    _Atomic unsigned n_wrong;
    unsigned n_rounds;
} hammer;

typedef struct hand {
    hammer *h;
    unsigned number;
    pthread_t thread;
} hand;

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Takes and drops pages of two sizes, and bytes, at random, and checks what it holds. */
static void *hammer_main(void *arg)
{
    hand *self = arg;
    hammer *h = self->h;
    uint64_t random = self->number + 1;
    uint32_t ids[2][N_HELD], marks[2][N_HELD];
    size_t n[2] = {0, 0};
    for (unsigned round = 0; round < h->n_rounds; round++) {
        int c = (int)(next_random(&random) % 2);
        attn_page_class *pages = h->pages[c];
        uint32_t what = next_random(&random) % 5;
        if (what < 2 && n[c] < N_HELD) {
            if (attn_arena_reserve(h->arena, attn_page_bytes(pages), NULL) != ATTN_OK)
                continue;
            ids[c][n[c]] = attn_page_take(pages);
            marks[c][n[c]] = next_random(&random);
            fill(pages, ids[c][n[c]], marks[c][n[c]]);
            n[c]++;
        } else if (what < 4 && n[c] > 0) {
            size_t at = next_random(&random) % n[c];
            if (!filled(pages, ids[c][at], marks[c][at]))
                h->n_wrong++;
            attn_page_drop(pages, &ids[c][at], 1);
            n[c]--;
            ids[c][at] = ids[c][n[c]];
            marks[c][at] = marks[c][n[c]];
        } else {
            uint64_t bytes = next_random(&random) % 100000;
            if (attn_arena_reserve(h->arena, bytes, NULL) != ATTN_OK)
                continue;
            attn_arena_charge(h->arena, bytes / 2);
            attn_arena_unreserve(h->arena, bytes - bytes / 2);
            attn_arena_discharge(h->arena, bytes / 2);
        }
    }
    for (int c = 0; c < 2; c++) {
        for (size_t i = 0; i < n[c]; i++)
            h->n_wrong += !filled(h->pages[c], ids[c][i], marks[c][i]);
        attn_page_drop(h->pages[c], ids[c], n[c]);
    }
    return NULL;
}

/* The account adds up at every moment. */
static void *watch_main(void *arg)
{
    hammer *h = arg;
    while (!h->stop) {
        attn_arena_account a = account_of(h->arena);
        h->n_wrong += a.allocated_bytes + a.reserved_bytes > a.budget_bytes;
        h->n_wrong += a.kv_bytes + a.inputs_bytes + a.other_bytes != a.allocated_bytes;
    }
    return NULL;
}

static void check_threads(size_t small, size_t big, unsigned n_rounds)
{
    /* Room for about half of what all would like to hold. */
    attn_arena *arena = new_arena(N_THREADS * N_HELD / 2 * (small + big));
    hammer h = {.arena = arena, .n_rounds = n_rounds};
    h.pages[0] = new_class(arena, small, 0);
    h.pages[1] = new_class(arena, big - 1024, 1024);
    hand hands[N_THREADS];
    pthread_t watcher;
    assert_int_equal(pthread_create(&watcher, NULL, watch_main, &h), 0);
    for (unsigned i = 0; i < N_THREADS; i++) {
        hands[i] = (hand){.h = &h, .number = i};
        assert_int_equal(pthread_create(&hands[i].thread, NULL, hammer_main, &hands[i]), 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++)
        pthread_join(hands[i].thread, NULL);
    h.stop = true;
    pthread_join(watcher, NULL);
    assert_int_equal(h.n_wrong, 0);
    check_account(arena, 0, 0, 0, 0);
    attn_arena_destroy(arena);
}

static void test_threads(void **state)
{
    (void)state;
    const unsigned n = SANITIZED ? 1000 : 6000;
    check_threads(3072, 66 << 10, n);
    check_threads(40000, 300 << 10, n / 4);
    check_threads(64, 2048, n);
}

/* --------------------------------------------------------------------------- resident memory */

static size_t resident_bytes(void)
{
    char line[128];
    unsigned long kib = 0;
    FILE *status = fopen("/proc/self/status", "re");
    assert_non_null(status);
    while (fgets(line, sizeof line, status) != NULL) {
        if (sscanf(line, "RssAnon: %lu kB", &kib) == 1)
            break;
    }
    fclose(status);
    return kib * 1024;
}

static void check_resident(size_t page_bytes)
{
    const size_t n = 64 * MIB / page_bytes;
    attn_arena *arena = new_arena(80 * MIB);
    attn_page_class *pages = new_class(arena, page_bytes, 0);
    uint32_t *ids = malloc(n * sizeof *ids);
    memset(ids, 0, n * sizeof *ids);
    size_t before = resident_bytes();
    for (int round = 0; round < 2; round++) {
        reserve(arena, n * page_bytes);
        for (size_t i = 0; i < n; i++) {
            ids[i] = attn_page_take(pages);
            memset(attn_page_data(pages, ids[i]), 1, page_bytes);
        }
        assert_true(resident_bytes() > before + 56 * MIB);
        if (round == 0) {
            attn_page_drop(pages, ids, n);
        } else {
            /* In an order that empties every group last of all. */
            for (size_t start = 0; start < 7; start++) {
                for (size_t i = start; i < n; i += 7)
                    attn_page_drop(pages, &ids[i], 1);
            }
        }
        /* 4 MiB stay warm; the tables cost a few bytes a page. */
        size_t after = resident_bytes();
        printf("pages of %zu bytes: %.1f MiB stay of 64\n", page_bytes,
               ((double)after - (double)before) / (double)MIB);
        assert_true(after < before + 8 * MIB);
    }
    free(ids);
    attn_arena_destroy(arena);
}

static void test_memory_goes_back(void **state)
{
    (void)state;
    if (SANITIZED) {
        printf("skip: sanitizers change what is resident\n");
        return;
    }
    check_resident(2048);
    check_resident(3072);
    check_resident(40000);
    check_resident(64 << 10);
    check_resident(MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_account),      cmocka_unit_test(test_budget),
        cmocka_unit_test(test_tiny_budgets), cmocka_unit_test(test_contents),
        cmocka_unit_test(test_threads),      cmocka_unit_test(test_memory_goes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
