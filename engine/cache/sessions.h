/* sessions.h: the session table: a hash table with striped locks, references and busy marks.
 *
 * A session is found by id and referenced; a reference keeps its memory alive. It is held busy by
 * one job or verb at a time (attn_sessions_hold); only the holder touches its cache. A removed
 * session can no longer be found; its memory goes when the last reference does.
 *
 * Order of listing: by hash, then id. Buckets are ranges of the hash, so growing the table does
 * not disturb it, and a page of the list costs one bucket lock at a time.
 *
 * Thread: any. Locks: one stripe at a time, never while memory is allocated or freed or another
 * lock is taken, but the listener's own.
 */
#ifndef ATTN_SESSIONS_H
#define ATTN_SESSIONS_H

#include "engine/cache/session.h"

typedef struct attn_sessions attn_sessions;

#define ATTN_SESSION_STRIPES 64

/* Is told what happens to sessions: that one came (CREATED, FORKED) or went (DELETED, EXPIRED), and
 * what attn_sessions_tell is called with, under the stripe's lock: so what is told of one id is in
 * order, also when a session follows another of its name. Must not call the table. */
typedef void (*attn_sessions_listener)(void *ctx, const attn_session *session, attn_event *event);

/* Owner: attn_sessions_destroy, which frees every session. NULL when out of memory. `listener`: NULL
 * allowed. */
attn_sessions *attn_sessions_create(uint64_t max_sessions, attn_sessions_listener listener,
                                    void *ctx);
void attn_sessions_destroy(attn_sessions *table);

/* The session with that id, referenced, or NULL. One whose time to live has passed is not found. */
attn_session *attn_sessions_find(attn_sessions *table, const char *id);
/* Gives a reference back; frees the session with the last one. */
void attn_sessions_unreference(attn_sessions *table, attn_session *session);

/* Publishes a new session, held by `job` in state QUEUED and referenced for it. `from`: the id of the
 * session it was forked from, or NULL.
 * Errors: SESSION_EXISTS (someone else was faster; the session stays the caller's),
 * TOO_MANY_SESSIONS. */
ATTN_MUST_CHECK attn_status attn_sessions_insert(attn_sessions *table, attn_session *session,
                                                 struct attn_job *job, const char *from,
                                                 attn_error *err);
/* Tells the listener of something that happened to the session, unless it has been removed. */
void attn_sessions_tell(attn_sessions *table, const attn_session *session, attn_event *event);
/* Makes the session unfindable. The caller has a reference. Returns false when it was removed
 * before. */
bool attn_sessions_remove(attn_sessions *table, attn_session *session);
/* The same, of a session that was never filled: who waits for it may make it. */
bool attn_sessions_vanish(attn_sessions *table, attn_session *session);

bool attn_sessions_is_removed(attn_sessions *table, const attn_session *session);

typedef enum attn_hold {
    ATTN_HOLD_TAKEN,
    ATTN_HOLD_BUSY,
    ATTN_HOLD_REMOVED,
    ATTN_HOLD_VANISHED
} attn_hold;

/* Makes a referenced session busy for `job` (NULL: for a verb). `waited`: the caller is one of its
 * n_waiting, who come before newcomers. On TAKEN the caller's reference is the holder's. */
attn_hold attn_sessions_hold(attn_sessions *table, attn_session *session, struct attn_job *job,
                             bool waited);
/* Counts a waiting job in or out. */
void attn_sessions_wait(attn_sessions *table, attn_session *session, int change);
/* Something that holds nobody off counts as use for the session's time to live. */
void attn_sessions_use(attn_sessions *table, attn_session *session);
/* Ends holding; the reference stays the caller's. `used`: it counts as use for its time to live.
 * *info (NULL: not wanted) is the session as it stands then, before others get at it. Returns true
 * when jobs wait for it. */
bool attn_sessions_release(attn_sessions *table, attn_session *session, bool used,
                           attn_session_info *info);
void attn_sessions_set_state(attn_sessions *table, attn_session *session, attn_session_state state);

/* Calls `visit` on the job that holds the session, if any, under the stripe's lock: the job cannot
 * end meanwhile. Returns the present hold's number. */
uint64_t attn_sessions_visit_job(attn_sessions *table, attn_session *session,
                                 void (*visit)(struct attn_job *job));
/* Blocks until that hold has ended; others may hold the session by then. */
void attn_sessions_wait_end(attn_sessions *table, attn_session *session, uint64_t hold);

void attn_sessions_info(attn_sessions *table, attn_session *session, attn_session_info *info);
size_t attn_sessions_list(attn_sessions *table, const char *after, size_t limit,
                          attn_session_info *infos, bool *more);
uint64_t attn_sessions_count(const attn_sessions *table);

/* Removes and frees the expired sessions of one stripe; the next call does the next stripe. */
void attn_sessions_expire_some(attn_sessions *table);
/* How many have expired so far. */
uint64_t attn_sessions_expired(const attn_sessions *table);
#endif
