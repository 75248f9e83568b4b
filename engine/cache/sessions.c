#include "engine/cache/sessions.h"

#include "engine/base/base.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* A stripe owns one 64th of the hash range and cuts it into 2^bits buckets by the next bits. */
typedef struct stripe {
    attn_mutex mutex;
    attn_cond idle; /* a session of this stripe was released */
    attn_session **buckets;
    unsigned bits;
    uint64_t n_sessions;
} stripe;

struct attn_sessions {
    stripe stripes[ATTN_SESSION_STRIPES];
    uint64_t max_sessions;
    _Atomic uint64_t n_sessions, n_expired;
    uint64_t hash_seed;
    _Atomic unsigned next_to_expire;
    attn_sessions_listener listener;
    void *ctx;
};

#define STRIPE_BITS 6
_Static_assert(ATTN_SESSION_STRIPES == 1 << STRIPE_BITS, "stripes are the top bits of the hash");

attn_sessions *attn_sessions_create(uint64_t max_sessions, attn_sessions_listener listener,
                                    void *ctx)
{
    attn_sessions *table = attn_alloc(1, sizeof *table);
    if (table == NULL)
        return NULL;
    table->max_sessions = max_sessions;
    table->listener = listener;
    table->ctx = ctx;
    /* Ids come from clients; a secret seed keeps them from choosing their bucket. */
    if (getrandom(&table->hash_seed, sizeof table->hash_seed, GRND_NONBLOCK) < 0)
        table->hash_seed = attn_now_ns();
    for (size_t i = 0; i < ATTN_SESSION_STRIPES; i++) {
        stripe *s = &table->stripes[i];
        attn_mutex_init(&s->mutex);
        attn_cond_init(&s->idle);
        s->buckets = calloc(1, sizeof(attn_session *));
        if (s->buckets == NULL) {
            attn_sessions_destroy(table);
            return NULL;
        }
    }
    return table;
}

void attn_sessions_destroy(attn_sessions *table)
{
    if (table == NULL)
        return;
    for (size_t i = 0; i < ATTN_SESSION_STRIPES; i++) {
        stripe *s = &table->stripes[i];
        for (size_t b = 0; s->buckets != NULL && b < (size_t)1 << s->bits; b++) {
            while (s->buckets[b] != NULL) {
                attn_session *session = s->buckets[b];
                s->buckets[b] = session->next;
                attn_session_free(session);
            }
        }
        free(s->buckets);
        attn_cond_destroy(&s->idle);
        attn_mutex_destroy(&s->mutex);
    }
    attn_free(table);
}

/* Two rounds of 64-bit multiply and fold over 8-byte words, keyed. */
static uint64_t hash_id(const attn_sessions *table, const char *id)
{
    uint64_t hash = table->hash_seed;
    size_t len = strlen(id);
    for (size_t at = 0; at < len; at += 8) {
        uint64_t word = 0;
        memcpy(&word, id + at, len - at < 8 ? len - at : 8);
        __uint128_t product = (__uint128_t)(hash ^ word) * 0x9E3779B97F4A7C15u;
        hash = (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    __uint128_t product = (__uint128_t)(hash ^ len) * 0xD6E8FEB86659FD93u;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static stripe *stripe_of(attn_sessions *table, uint64_t hash)
{
    return &table->stripes[hash >> (64 - STRIPE_BITS)];
}

static size_t bucket_of(const stripe *s, uint64_t hash)
{
    return s->bits == 0 ? 0 : (size_t)((hash << STRIPE_BITS) >> (64 - s->bits));
}

/* Listing order. */
static int compare(uint64_t hash, const char *id, const attn_session *session)
{
    if (hash != session->hash)
        return hash < session->hash ? -1 : 1;
    return strcmp(id, session->id);
}

static attn_session *lookup(stripe *s, uint64_t hash, const char *id)
{
    attn_session *session = s->buckets[bucket_of(s, hash)];
    while (session != NULL && compare(hash, id, session) != 0)
        session = session->next;
    return session;
}

/* Doubles the buckets when they hold two sessions each. Buckets stay sorted. Growing is optional:
 * without memory the chains get longer. */
static void grow(stripe *s)
{
    if (s->n_sessions < (uint64_t)2 << s->bits || s->bits >= 40)
        return;
    size_t n = (size_t)1 << s->bits;
    attn_session **buckets = calloc(2 * n, sizeof(attn_session *));
    if (buckets == NULL)
        return;
    s->bits++;
    for (size_t b = 0; b < n; b++) {
        attn_session **tails[2] = {&buckets[2 * b], &buckets[2 * b + 1]};
        for (attn_session *session = s->buckets[b], *next; session != NULL; session = next) {
            next = session->next;
            session->next = NULL;
            attn_session ***tail = &tails[bucket_of(s, session->hash) & 1];
            **tail = session;
            *tail = &session->next;
        }
    }
    free(s->buckets);
    s->buckets = buckets;
}

static void tell_locked(const attn_sessions *table, const attn_session *session, attn_event *event)
{
    if (table->listener != NULL)
        table->listener(table->ctx, session, event);
}

void attn_sessions_tell(attn_sessions *table, const attn_session *session, attn_event *event)
{
    stripe *s = stripe_of(table, session->hash);
    attn_mutex_lock(&s->mutex);
    if (!session->removed)
        tell_locked(table, session, event);
    attn_mutex_unlock(&s->mutex);
}

/* Takes the session out of its bucket. The table's reference stays to be given back. */
static void unlink_locked(attn_sessions *table, stripe *s, attn_session *session,
                          attn_event_kind why)
{
    attn_session **at = &s->buckets[bucket_of(s, session->hash)];
    while (*at != session)
        at = &(*at)->next;
    *at = session->next;
    session->removed = true;
    s->n_sessions--;
    table->n_sessions--;
    session->model->n_sessions--;
    tell_locked(table, session, &(attn_event){.kind = why});
}

static bool expired_locked(const attn_session *session)
{
    return session->ttl_s > 0 && !session->busy && session->n_waiting == 0 &&
           attn_unix_s() - session->last_used_s >= (int64_t)session->ttl_s;
}

/* The table's reference is the caller's then: for end_expired, without the lock. */
static void expire_locked(attn_sessions *table, stripe *s, attn_session *session)
{
    unlink_locked(table, s, session, ATTN_EVENT_EXPIRED);
    table->n_expired++;
}

static void end_expired(attn_sessions *table, attn_session *session)
{
    attn_session_give_back(session);
    attn_sessions_unreference(table, session);
}

attn_session *attn_sessions_find(attn_sessions *table, const char *id)
{
    uint64_t hash = hash_id(table, id);
    stripe *s = stripe_of(table, hash);
    attn_mutex_lock(&s->mutex);
    attn_session *session = lookup(s, hash, id);
    bool expired = session != NULL && expired_locked(session);
    if (expired)
        expire_locked(table, s, session);
    else if (session != NULL)
        session->references++;
    attn_mutex_unlock(&s->mutex);
    if (!expired)
        return session;
    end_expired(table, session);
    return NULL;
}

void attn_sessions_unreference(attn_sessions *table, attn_session *session)
{
    stripe *s = stripe_of(table, session->hash);
    attn_mutex_lock(&s->mutex);
    bool last = --session->references == 0;
    attn_mutex_unlock(&s->mutex);
    if (last)
        attn_session_free(session);
}

attn_status attn_sessions_insert(attn_sessions *table, attn_session *session, struct attn_job *job,
                                 const char *from, attn_error *err)
{
    session->hash = hash_id(table, session->id);
    stripe *s = stripe_of(table, session->hash);
    if (table->n_sessions++ >= table->max_sessions) {
        table->n_sessions--;
        return attn_fail(err, ATTN_E_TOO_MANY_SESSIONS, NULL,
                         "the server holds as many sessions as --max-sessions allows");
    }
    attn_mutex_lock(&s->mutex);
    if (lookup(s, session->hash, session->id) != NULL) {
        attn_mutex_unlock(&s->mutex);
        table->n_sessions--;
        return attn_fail(err, ATTN_E_SESSION_EXISTS, "session", "the session exists");
    }
    grow(s);
    attn_session **at = &s->buckets[bucket_of(s, session->hash)];
    while (*at != NULL && compare(session->hash, session->id, *at) > 0)
        at = &(*at)->next;
    session->next = *at;
    *at = session;
    session->references = 2;
    session->busy = true;
    session->n_holds = 1;
    session->job = job;
    session->state = ATTN_SESSION_QUEUED;
    s->n_sessions++;
    session->model->n_sessions++;
    tell_locked(
        table, session,
        &(attn_event){.kind = from != NULL ? ATTN_EVENT_FORKED : ATTN_EVENT_CREATED, .from = from});
    attn_mutex_unlock(&s->mutex);
    return ATTN_OK;
}

static bool remove_session(attn_sessions *table, attn_session *session, bool vanishes)
{
    stripe *s = stripe_of(table, session->hash);
    attn_mutex_lock(&s->mutex);
    bool present = !session->removed;
    if (present) {
        unlink_locked(table, s, session, ATTN_EVENT_DELETED);
        session->references--; /* never the last: the caller has one */
        session->vanished = vanishes;
    }
    attn_mutex_unlock(&s->mutex);
    return present;
}

bool attn_sessions_remove(attn_sessions *table, attn_session *session)
{
    return remove_session(table, session, false);
}

bool attn_sessions_vanish(attn_sessions *table, attn_session *session)
{
    return remove_session(table, session, true);
}

bool attn_sessions_is_removed(attn_sessions *table, const attn_session *session)
{
    stripe *s = stripe_of(table, session->hash);
    attn_mutex_lock(&s->mutex);
    bool removed = session->removed;
    attn_mutex_unlock(&s->mutex);
    return removed;
}

attn_hold attn_sessions_hold(attn_sessions *table, attn_session *session, struct attn_job *job,
                             bool waited)
{
    stripe *s = stripe_of(table, session->hash);
    attn_hold result = ATTN_HOLD_TAKEN;
    attn_mutex_lock(&s->mutex);
    if (session->removed) {
        result = session->vanished ? ATTN_HOLD_VANISHED : ATTN_HOLD_REMOVED;
    } else if (session->busy || (!waited && session->n_waiting > 0)) {
        result = ATTN_HOLD_BUSY;
    } else {
        session->busy = true;
        session->n_holds++;
        session->job = job;
        session->state = ATTN_SESSION_QUEUED;
    }
    attn_mutex_unlock(&s->mutex);
    return result;
}

void attn_sessions_wait(attn_sessions *table, attn_session *session, int change)
{
    stripe *s = stripe_of(table, session->hash);
    attn_mutex_lock(&s->mutex);
    session->n_waiting += (uint32_t)change;
    attn_mutex_unlock(&s->mutex);
}

static void info_locked(const attn_session *session, attn_session_info *info)
{
    *info = (attn_session_info){0};
    memcpy(info->id, session->id, sizeof info->id);
    info->model = session->model->name;
    info->length = session->length;
    info->state = session->state;
    info->kv.dtype = session->kv_dtype;
    info->kv.n_pages = session->n_pages;
    info->kv.bytes = info->kv.n_pages * attn_page_kv_bytes(session->pages);
    info->kv.reserved_bytes = session->reserved_pages * attn_page_kv_bytes(session->pages);
    info->inputs_bytes = info->kv.n_pages * attn_page_inputs_bytes(session->pages);
    info->created_s = session->created_s;
    info->last_used_s = session->last_used_s;
    info->ttl_s = session->ttl_s;
    info->in_flight = session->busy;
    info->kv.shared_bytes = session->forked; /* a mark: counted outside the lock */
}

static uint64_t shared_bytes(attn_session *session)
{
    return attn_session_shared_pages(session) * attn_page_kv_bytes(session->pages);
}

bool attn_sessions_release(attn_sessions *table, attn_session *session, bool used,
                           attn_session_info *info)
{
    stripe *s = stripe_of(table, session->hash);
    uint64_t shared = info == NULL ? 0 : shared_bytes(session);
    attn_mutex_lock(&s->mutex);
    session->busy = false;
    session->job = NULL;
    session->state = ATTN_SESSION_IDLE;
    if (used)
        session->last_used_s = attn_unix_s();
    bool waiting = session->n_waiting > 0;
    if (info != NULL) {
        info_locked(session, info);
        info->kv.shared_bytes = shared;
    }
    attn_cond_broadcast(&s->idle);
    attn_mutex_unlock(&s->mutex);
    return waiting;
}

void attn_sessions_use(attn_sessions *table, attn_session *session)
{
    stripe *s = stripe_of(table, session->hash);
    attn_mutex_lock(&s->mutex);
    session->last_used_s = attn_unix_s();
    attn_mutex_unlock(&s->mutex);
}

void attn_sessions_wait_end(attn_sessions *table, attn_session *session, uint64_t hold)
{
    stripe *s = stripe_of(table, session->hash);
    attn_mutex_lock(&s->mutex);
    while (session->busy && session->n_holds == hold)
        attn_cond_wait(&s->idle, &s->mutex);
    attn_mutex_unlock(&s->mutex);
}

void attn_sessions_set_state(attn_sessions *table, attn_session *session, attn_session_state state)
{
    stripe *s = stripe_of(table, session->hash);
    attn_mutex_lock(&s->mutex);
    session->state = state;
    attn_mutex_unlock(&s->mutex);
}

uint64_t attn_sessions_visit_job(attn_sessions *table, attn_session *session,
                                 void (*visit)(struct attn_job *job))
{
    stripe *s = stripe_of(table, session->hash);
    attn_mutex_lock(&s->mutex);
    if (session->job != NULL)
        visit(session->job);
    uint64_t hold = session->n_holds;
    attn_mutex_unlock(&s->mutex);
    return hold;
}

/* Counts the shared pages of sessions that may have some. */
static void count_shared(attn_sessions *table, attn_session_info *infos, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        attn_session *session =
            infos[i].kv.shared_bytes > 0 ? attn_sessions_find(table, infos[i].id) : NULL;
        infos[i].kv.shared_bytes = 0;
        if (session == NULL)
            continue;
        infos[i].kv.shared_bytes = shared_bytes(session);
        attn_sessions_unreference(table, session);
    }
}

void attn_sessions_info(attn_sessions *table, attn_session *session, attn_session_info *info)
{
    stripe *s = stripe_of(table, session->hash);
    attn_mutex_lock(&s->mutex);
    info_locked(session, info);
    attn_mutex_unlock(&s->mutex);
    info->kv.shared_bytes = shared_bytes(session);
}

size_t attn_sessions_list(attn_sessions *table, const char *after, size_t limit,
                          attn_session_info *infos, bool *more)
{
    bool from_start = after == NULL || after[0] == '\0';
    uint64_t hash = from_start ? 0 : hash_id(table, after);
    size_t n = 0;
    *more = false;
    /* `hash` moves along the range; within the first bucket, ids up to `after` are passed over. */
    for (;;) {
        stripe *s = stripe_of(table, hash);
        attn_mutex_lock(&s->mutex);
        size_t bucket = bucket_of(s, hash);
        for (const attn_session *session = s->buckets[bucket]; session; session = session->next) {
            if ((!from_start && compare(hash, after, session) >= 0) || expired_locked(session))
                continue;
            if (n == limit) {
                *more = true;
                break;
            }
            info_locked(session, &infos[n++]);
        }
        unsigned shift = 64 - STRIPE_BITS - s->bits;
        attn_mutex_unlock(&s->mutex);
        from_start = true;
        uint64_t next = ((hash >> shift) + 1) << shift;
        if (*more || next <= hash) {
            count_shared(table, infos, n);
            return n;
        }
        hash = next;
    }
}

uint64_t attn_sessions_count(const attn_sessions *table)
{
    return table->n_sessions;
}

uint64_t attn_sessions_expired(const attn_sessions *table)
{
    return table->n_expired;
}

void attn_sessions_expire_some(attn_sessions *table)
{
    stripe *s = &table->stripes[table->next_to_expire++ % ATTN_SESSION_STRIPES];
    attn_session *expired = NULL;
    attn_mutex_lock(&s->mutex);
    for (size_t b = 0; b < (size_t)1 << s->bits; b++) {
        for (attn_session *session = s->buckets[b], *next; session != NULL; session = next) {
            next = session->next;
            if (!expired_locked(session))
                continue;
            expire_locked(table, s, session);
            /* `next` is free to chain the removed ones. */
            session->next = expired;
            expired = session;
        }
    }
    attn_mutex_unlock(&s->mutex);
    while (expired != NULL) {
        attn_session *session = expired;
        expired = session->next;
        end_expired(table, session);
    }
}
