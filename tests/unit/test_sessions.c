/* The session table: who finds, holds and lists what, alone and from many threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>

#include "engine/cache/sessions.h"

#ifdef __SANITIZE_THREAD__
#define ROUNDS 4000
#else
#define ROUNDS 20000
#endif

typedef struct fixture {
    attn_arena *arena;
    attn_model *model;
    attn_page_class *pages;
    attn_sessions *table;
} fixture;

static fixture open_table(uint64_t max_sessions)
{
    fixture f;
    attn_error err = {0};
    const attn_load_options options = {0};
    f.arena = attn_arena_create(16u << 20, &err);
    f.model = attn_model_load_builtin(ATTN_BUILTIN_SEED, &options, &err);
    f.pages = attn_arena_add_class(f.arena, 2048, 1024, &err);
    f.table = attn_sessions_create(max_sessions, NULL, NULL);
    assert_true(f.arena && f.model && f.pages && f.table);
    return f;
}

static uint64_t allocated(const fixture *f)
{
    attn_arena_account account;
    attn_arena_account_get(f->arena, &account);
    assert_int_equal(account.reserved_bytes, 0);
    return account.allocated_bytes;
}

static void close_table(fixture *f)
{
    attn_sessions_destroy(f->table);
    assert_int_equal(allocated(f), 0);
    attn_model_free(f->model);
    attn_arena_destroy(f->arena);
}

/* A session that is in no table yet; NULL when the arena is full. */
static attn_session *make(fixture *f, const char *id, uint32_t ttl_s)
{
    if (attn_arena_reserve(f->arena, attn_session_record_bytes(f->model), NULL) != ATTN_OK)
        return NULL;
    attn_session *session =
        attn_session_new(id, f->model, f->arena, f->pages, ATTN_F32, true, ttl_s);
    assert_non_null(session);
    return session;
}

/* Puts an idle session in and returns it, which the table alone refers to. */
static attn_session *put(fixture *f, const char *id, uint32_t ttl_s)
{
    attn_session *session = make(f, id, ttl_s);
    attn_error err = {0};
    if (attn_sessions_insert(f->table, session, NULL, NULL, &err) != ATTN_OK)
        fail_msg("%s: %s", id, err.message);
    assert_false(attn_sessions_release(f->table, session, true, NULL));
    attn_sessions_unreference(f->table, session);
    return session;
}

static bool drop(fixture *f, const char *id)
{
    attn_session *session = attn_sessions_find(f->table, id);
    if (session == NULL)
        return false;
    bool ours = attn_sessions_remove(f->table, session);
    attn_sessions_unreference(f->table, session);
    return ours;
}

static bool present(fixture *f, const char *id)
{
    attn_session *session = attn_sessions_find(f->table, id);
    if (session != NULL)
        attn_sessions_unreference(f->table, session);
    return session != NULL;
}

static void test_references(void **state)
{
    (void)state;
    fixture f = open_table(10);
    assert_false(present(&f, "a"));
    attn_session *a = put(&f, "a", 0);
    assert_int_equal(attn_sessions_count(f.table), 1);
    assert_int_equal(f.model->n_sessions, 1);
    assert_ptr_equal(attn_sessions_find(f.table, "a"), a);
    assert_false(present(&f, "A"));
    assert_false(present(&f, "a1"));
    assert_false(present(&f, ""));

    /* A removed session lives as long as someone refers to it, and its name is free at once. */
    assert_true(attn_sessions_remove(f.table, a));
    assert_false(attn_sessions_remove(f.table, a));
    assert_int_equal(attn_sessions_count(f.table), 0);
    assert_int_equal(f.model->n_sessions, 0);
    assert_false(present(&f, "a"));
    attn_session *second = put(&f, "a", 0);
    assert_ptr_not_equal(second, a);
    assert_string_equal(a->id, "a");
    assert_int_equal(attn_sessions_hold(f.table, a, NULL, false), ATTN_HOLD_REMOVED);
    uint64_t both = allocated(&f);
    attn_sessions_unreference(f.table, a);
    assert_int_equal(allocated(&f), both / 2);
    assert_true(drop(&f, "a"));
    assert_int_equal(allocated(&f), 0);
    close_table(&f);
}

static void test_given_back_before_the_last_reference(void **state)
{
    (void)state;
    fixture f = open_table(10);
    attn_session *a = put(&f, "a", 0);
    assert_ptr_equal(attn_sessions_find(f.table, "a"), a);
    assert_int_equal(attn_sessions_hold(f.table, a, NULL, false), ATTN_HOLD_TAKEN);
    assert_int_equal(attn_session_reserve(a, 100, NULL), ATTN_OK);
    attn_session_take_pages(a, 50);
    attn_session_settle(a, 50);
    attn_sessions_release(f.table, a, true, NULL);
    assert_true(attn_sessions_remove(f.table, a));
    attn_session_give_back(a);
    assert_int_equal(allocated(&f), 0);
    assert_int_equal(f.model->n_positions, 0);
    attn_sessions_unreference(f.table, a);
    assert_int_equal(allocated(&f), 0);
    close_table(&f);
}

static void test_what_cannot_be_inserted(void **state)
{
    (void)state;
    fixture f = open_table(3);
    attn_error err = {0};
    put(&f, "a", 0);
    attn_session *again = make(&f, "a", 0);
    assert_int_equal(attn_sessions_insert(f.table, again, NULL, NULL, &err), ATTN_E_SESSION_EXISTS);
    assert_int_equal(attn_sessions_count(f.table), 1);
    put(&f, "b", 0);
    put(&f, "c", 0);
    attn_session *fourth = make(&f, "d", 0);
    assert_int_equal(attn_sessions_insert(f.table, fourth, NULL, NULL, &err),
                     ATTN_E_TOO_MANY_SESSIONS);
    assert_int_equal(err.status, ATTN_E_TOO_MANY_SESSIONS);
    assert_int_equal(attn_sessions_count(f.table), 3);
    assert_true(drop(&f, "b"));
    assert_int_equal(attn_sessions_insert(f.table, fourth, NULL, NULL, &err), ATTN_OK);
    attn_sessions_release(f.table, fourth, true, NULL);
    attn_sessions_unreference(f.table, fourth);
    attn_session_free(again);
    close_table(&f);

    f = open_table(0);
    again = make(&f, "a", 0);
    assert_int_equal(attn_sessions_insert(f.table, again, NULL, NULL, NULL),
                     ATTN_E_TOO_MANY_SESSIONS);
    attn_session_free(again);
    close_table(&f);
}

/* ------------------------------------------------------------------------------------- holding */

static struct attn_job *visited;
static int a_job;
#define A_JOB ((struct attn_job *)(void *)&a_job)

static void visit(struct attn_job *job)
{
    visited = job;
}

static void test_holding(void **state)
{
    (void)state;
    fixture f = open_table(10);
    attn_session_info info;
    attn_session *a = make(&f, "a", 7);
    assert_int_equal(attn_sessions_insert(f.table, a, A_JOB, NULL, NULL), ATTN_OK);
    attn_sessions_info(f.table, a, &info);
    assert_string_equal(info.id, "a");
    assert_string_equal(info.model, "seed-attention");
    assert_int_equal(info.state, ATTN_SESSION_QUEUED);
    assert_true(info.in_flight);
    assert_int_equal(info.ttl_s, 7);
    visited = NULL;
    uint64_t first = attn_sessions_visit_job(f.table, a, visit);
    assert_ptr_equal(visited, A_JOB);
    assert_int_equal(attn_sessions_hold(f.table, a, A_JOB, false), ATTN_HOLD_BUSY);
    attn_sessions_set_state(f.table, a, ATTN_SESSION_DECODE);
    attn_sessions_info(f.table, a, &info);
    assert_int_equal(info.state, ATTN_SESSION_DECODE);

    assert_false(attn_sessions_release(f.table, a, true, &info));
    assert_int_equal(info.state, ATTN_SESSION_IDLE);
    assert_false(info.in_flight);
    attn_sessions_wait_end(f.table, a, first); /* at once */
    visited = NULL;
    attn_sessions_visit_job(f.table, a, visit);
    assert_null(visited);

    /* For a verb there is no job to visit. */
    assert_int_equal(attn_sessions_hold(f.table, a, NULL, false), ATTN_HOLD_TAKEN);
    assert_int_not_equal(attn_sessions_visit_job(f.table, a, visit), first);
    assert_null(visited);

    /* Whoever waits comes before newcomers. */
    attn_sessions_wait(f.table, a, 1);
    attn_sessions_wait(f.table, a, 1);
    assert_int_equal(attn_sessions_hold(f.table, a, NULL, true), ATTN_HOLD_BUSY);
    assert_true(attn_sessions_release(f.table, a, false, NULL));
    assert_int_equal(attn_sessions_hold(f.table, a, NULL, false), ATTN_HOLD_BUSY);
    assert_int_equal(attn_sessions_hold(f.table, a, NULL, true), ATTN_HOLD_TAKEN);
    attn_sessions_wait(f.table, a, -1);
    assert_true(attn_sessions_release(f.table, a, false, NULL));
    attn_sessions_wait(f.table, a, -1);
    assert_int_equal(attn_sessions_hold(f.table, a, NULL, false), ATTN_HOLD_TAKEN);
    assert_false(attn_sessions_release(f.table, a, false, NULL));
    attn_sessions_unreference(f.table, a);
    close_table(&f);
}

typedef struct waiter {
    fixture *f;
    attn_session *session;
    uint64_t hold;
    _Atomic bool over;
} waiter;

static void *wait_main(void *arg)
{
    waiter *w = arg;
    attn_sessions_wait_end(w->f->table, w->session, w->hold);
    w->over = true;
    return NULL;
}

/* Waiting for one hold's end does not become waiting for the next one's. */
static void test_waiting_for_an_end(void **state)
{
    (void)state;
    fixture f = open_table(10);
    for (int i = 0; i < 200; i++) {
        attn_session *a = make(&f, "a", 0);
        assert_int_equal(attn_sessions_insert(f.table, a, A_JOB, NULL, NULL), ATTN_OK);
        waiter w = {.f = &f, .session = a, .hold = attn_sessions_visit_job(f.table, a, visit)};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, wait_main, &w), 0);
        assert_false(w.over);
        attn_sessions_wait(f.table, a, 1);
        attn_sessions_release(f.table, a, false, NULL);
        assert_int_equal(attn_sessions_hold(f.table, a, A_JOB, true), ATTN_HOLD_TAKEN);
        pthread_join(thread, NULL);
        attn_sessions_wait(f.table, a, -1);
        attn_sessions_release(f.table, a, false, NULL);
        attn_sessions_remove(f.table, a);
        attn_sessions_unreference(f.table, a);
    }
    close_table(&f);
}

/* ------------------------------------------------------------------------------------- listing */

#define N_LISTED 700

/* Lists everything in pages; returns the number of sessions, whose ids are in `ids`. */
static size_t list_all(fixture *f, size_t limit, char (*ids)[ATTN_ID_MAX + 1], size_t most)
{
    attn_session_info infos[64];
    const char *after = NULL;
    size_t n = 0;
    bool more = true;
    while (more) {
        size_t got = attn_sessions_list(f->table, after, limit, infos, &more);
        assert_true(got <= limit && n + got <= most);
        assert_true(got == limit || !more);
        for (size_t i = 0; i < got; i++)
            memcpy(ids[n++], infos[i].id, sizeof ids[0]);
        after = n > 0 ? ids[n - 1] : NULL;
    }
    return n;
}

static int compare_ids(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void test_list(void **state)
{
    (void)state;
    static char whole[N_LISTED][ATTN_ID_MAX + 1], part[N_LISTED][ATTN_ID_MAX + 1];
    static const size_t limits[] = {1, 2, 7, 63, 64};
    char id[32];
    bool more = true;
    fixture f = open_table(N_LISTED);
    assert_int_equal(attn_sessions_list(f.table, NULL, 10, NULL, &more), 0);
    assert_false(more);
    for (int i = 0; i < N_LISTED; i++) {
        snprintf(id, sizeof id, "s%d", i);
        put(&f, id, 0);
    }
    assert_int_equal(list_all(&f, 50, whole, N_LISTED), N_LISTED);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        assert_int_equal(list_all(&f, limits[i], part, N_LISTED), N_LISTED);
        assert_memory_equal(part, whole, sizeof whole);
    }
    /* From the middle on, whether that session is still there or not. */
    attn_session_info infos[64];
    for (int round = 0; round < 2; round++) {
        assert_int_equal(attn_sessions_list(f.table, whole[300], 64, infos, &more), 64);
        assert_true(more);
        for (int i = 0; i < 64; i++)
            assert_string_equal(infos[i].id, whole[301 + i]);
        if (round == 0)
            assert_true(drop(&f, whole[300]));
    }
    assert_int_equal(attn_sessions_list(f.table, "", 5, infos, &more), 5);
    assert_string_equal(infos[0].id, whole[0]);
    assert_int_equal(attn_sessions_list(f.table, whole[N_LISTED - 1], 5, infos, &more), 0);
    assert_false(more);
    assert_int_equal(attn_sessions_list(f.table, whole[N_LISTED - 6], 5, infos, &more), 5);
    assert_false(more);
    qsort(whole, N_LISTED, sizeof whole[0], compare_ids);
    for (int i = 1; i < N_LISTED; i++)
        assert_int_not_equal(strcmp(whole[i - 1], whole[i]), 0);
    close_table(&f);
}

/* Between two pages the table grows and shrinks; those that stay are listed once each, in order. */
static void test_list_while_the_table_grows(void **state)
{
    (void)state;
    static char before[50][ATTN_ID_MAX + 1];
    char id[32], last[ATTN_ID_MAX + 1] = "";
    attn_session_info infos[8];
    fixture f = open_table(100000);
    for (int i = 0; i < 50; i++) {
        snprintf(id, sizeof id, "stays-%d", i);
        put(&f, id, 0);
    }
    assert_int_equal(list_all(&f, 9, before, 50), 50);
    int made = 0, seen = 0;
    for (bool more = true; more;) {
        size_t n = attn_sessions_list(f.table, last, 8, infos, &more);
        for (size_t i = 0; i < n; i++) {
            if (strncmp(infos[i].id, "stays-", 6) == 0)
                assert_string_equal(infos[i].id, before[seen++]);
        }
        if (n > 0)
            memcpy(last, infos[n - 1].id, sizeof last);
        for (int k = 0; k < 60 && made < 5000; k++, made++) {
            snprintf(id, sizeof id, "new-%d", made);
            put(&f, id, 0);
            if (made % 3 == 0)
                assert_true(drop(&f, id));
        }
    }
    assert_int_equal(seen, 50);
    close_table(&f);
}

/* -------------------------------------------------------------------------------------- expiry */

static void age(fixture *f, const char *id, int64_t seconds)
{
    attn_session *session = attn_sessions_find(f->table, id);
    assert_non_null(session);
    session->last_used_s -= seconds;
    attn_sessions_unreference(f->table, session);
}

static void sweep(fixture *f)
{
    for (int i = 0; i < ATTN_SESSION_STRIPES; i++)
        attn_sessions_expire_some(f->table);
}

static void test_expiry(void **state)
{
    (void)state;
    static char ids[20][ATTN_ID_MAX + 1];
    fixture f = open_table(20);
    attn_session *busy = put(&f, "busy", 10), *waited = put(&f, "waited", 10);
    put(&f, "found", 10);
    put(&f, "swept", 10);
    put(&f, "young", 1000);
    put(&f, "immortal", 0);
    assert_int_equal(attn_sessions_hold(f.table, busy, NULL, false), ATTN_HOLD_TAKEN);
    attn_sessions_wait(f.table, waited, 1);
    static const char *const names[] = {"busy", "waited", "found", "swept", "young", "immortal"};
    sweep(&f);
    assert_int_equal(attn_sessions_count(f.table), 6);
    for (size_t i = 0; i < 6; i++)
        age(&f, names[i], 100);
    /* Not to be seen any more, although nobody has come to clear up. */
    assert_int_equal(list_all(&f, 10, ids, 20), 4);
    assert_false(present(&f, "found"));
    assert_int_equal(attn_sessions_expired(f.table), 1);
    assert_int_equal(attn_sessions_count(f.table), 5);
    sweep(&f);
    assert_int_equal(attn_sessions_expired(f.table), 2);
    assert_int_equal(attn_sessions_count(f.table), 4);
    assert_false(present(&f, "swept"));
    assert_true(present(&f, "busy") && present(&f, "waited"));
    assert_true(present(&f, "young") && present(&f, "immortal"));

    /* Its end is a use, unless it counts for nothing. */
    attn_sessions_wait(f.table, waited, -1);
    assert_false(present(&f, "waited"));
    attn_sessions_release(f.table, busy, true, NULL);
    assert_true(present(&f, "busy"));
    age(&f, "busy", 9);
    assert_int_equal(attn_sessions_hold(f.table, busy, NULL, false), ATTN_HOLD_TAKEN);
    busy->last_used_s -= 1;
    attn_sessions_release(f.table, busy, false, NULL);
    assert_false(present(&f, "busy"));
    assert_int_equal(attn_sessions_expired(f.table), 4);
    /* The name is free for another. */
    put(&f, "busy", 10);
    close_table(&f);
}

/* ------------------------------------------------------------------------------------- threads */

#define N_THREADS 4
#define N_IDS 40

typedef struct crowd {
    fixture f;
    _Atomic bool stop;
    _Atomic unsigned n_wrong, n_created, n_removed, n_held;
} crowd;

typedef struct member {
    crowd *c;
    unsigned number;
    pthread_t thread;
} member;

static void hold_for_a_while(crowd *c, attn_session *session, unsigned index)
{
    if (attn_sessions_hold(c->f.table, session, NULL, false) != ATTN_HOLD_TAKEN)
        return;
    /* Only its holder touches it, without any lock. */
    c->n_wrong += session->last_output[0] != 0.0f;
    session->last_output[0] = 1.0f;
    if (attn_session_reserve(session, 20, NULL) == ATTN_OK) {
        attn_session_take_pages(session, 20);
        *attn_session_page(session, 3) = (float)index;
        attn_session_settle(session, session->length + 5 <= 20 ? session->length + 5 : 0);
    }
    c->n_held++;
    session->last_output[0] = 0.0f;
    attn_sessions_release(c->f.table, session, true, NULL);
}

static void create(crowd *c, const char *id)
{
    attn_session *session = make(&c->f, id, 0);
    if (session == NULL)
        return;
    if (attn_sessions_insert(c->f.table, session, NULL, NULL, NULL) != ATTN_OK) {
        attn_session_free(session);
        return;
    }
    c->n_created++;
    attn_sessions_release(c->f.table, session, true, NULL);
    attn_sessions_unreference(c->f.table, session);
}

/* As delete does it: only who removes it, and once nobody holds it, gives its memory back. */
static void delete (crowd *c, attn_session *session)
{
    if (!attn_sessions_remove(c->f.table, session))
        return;
    c->n_removed++;
    uint64_t hold = attn_sessions_visit_job(c->f.table, session, visit);
    attn_sessions_wait_end(c->f.table, session, hold);
    attn_session_give_back(session);
}

static void *crowd_main(void *arg)
{
    member *m = arg;
    crowd *c = m->c;
    uint32_t random = m->number * 2654435761u + 1;
    for (unsigned round = 0; round < ROUNDS; round++) {
        random = random * 1664525u + 1013904223u;
        unsigned index = (random >> 8) % N_IDS, what = (random >> 20) % 4;
        char id[16];
        snprintf(id, sizeof id, "id%u", index);
        attn_session *session = attn_sessions_find(c->f.table, id);
        if (session == NULL) {
            create(c, id);
            continue;
        }
        c->n_wrong += strcmp(session->id, id) != 0;
        if (what == 0)
            delete (c, session);
        else
            hold_for_a_while(c, session, index);
        attn_sessions_unreference(c->f.table, session);
    }
    return NULL;
}

/* Lists all the time: sessions that stay are there, once each and always in the same order. */
static void *list_main(void *arg)
{
    member *m = arg;
    crowd *c = m->c;
    char first[20][ATTN_ID_MAX + 1];
    for (unsigned round = 0; !c->stop; round++) {
        attn_session_info infos[7];
        char last[ATTN_ID_MAX + 1] = "";
        size_t n_stay = 0;
        for (bool more = true; more;) {
            size_t n = attn_sessions_list(c->f.table, last, 7, infos, &more);
            for (size_t i = 0; i < n; i++) {
                if (strncmp(infos[i].id, "stays", 5) != 0)
                    continue;
                if (n_stay == 20)
                    c->n_wrong++;
                else if (round == 0)
                    memcpy(first[n_stay++], infos[i].id, sizeof first[0]);
                else
                    c->n_wrong += strcmp(first[n_stay++], infos[i].id) != 0;
            }
            if (n > 0)
                memcpy(last, infos[n - 1].id, sizeof last);
        }
        c->n_wrong += n_stay != 20;
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    static crowd c;
    char id[16];
    member members[N_THREADS], lister = {.c = &c};
    c.f = open_table(N_IDS + 20);
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof id, "stays%d", i);
        put(&c.f, id, 0);
    }
    uint64_t before = allocated(&c.f);
    assert_int_equal(pthread_create(&lister.thread, NULL, list_main, &lister), 0);
    for (unsigned i = 0; i < N_THREADS; i++) {
        members[i] = (member){.c = &c, .number = i + 1};
        assert_int_equal(pthread_create(&members[i].thread, NULL, crowd_main, &members[i]), 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++)
        pthread_join(members[i].thread, NULL);
    c.stop = true;
    pthread_join(lister.thread, NULL);
    printf("%u sessions created, %u removed, %u times held\n", c.n_created, c.n_removed, c.n_held);
    assert_int_equal(c.n_wrong, 0);
    assert_int_equal(c.n_created - c.n_removed, attn_sessions_count(c.f.table) - 20);
    for (int i = 0; i < N_IDS; i++) {
        snprintf(id, sizeof id, "id%d", i);
        drop(&c.f, id);
    }
    assert_int_equal(allocated(&c.f), before);
    close_table(&c.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_references),
        cmocka_unit_test(test_given_back_before_the_last_reference),
        cmocka_unit_test(test_what_cannot_be_inserted),
        cmocka_unit_test(test_holding),
        cmocka_unit_test(test_waiting_for_an_end),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_list_while_the_table_grows),
        cmocka_unit_test(test_expiry),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
