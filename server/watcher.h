/* One watcher: what it asked for, and what waits for its reader.
 *
 * The hub's thread fills a buffer of its own and then shows it to the reader, so neither waits while
 * the other copies. What both hold is bounded and counted against --body-memory.
 *
 * Thread: see each function. */
#ifndef SRV_WATCHER_H
#define SRV_WATCHER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/watch.h"

struct srv_watcher {
    srv_watch *hub;
    srv_exchange *x; /* the hub holds a reference until it has left */
    srv_watch_choice choice;
    srv_watch_reader reader;
    uint64_t held_bytes;
    _Atomic uint64_t *all_held_bytes; /* by all watchers */

    /* The hub's thread alone. */
    uint64_t seq;
    bool hello_more; /* sessions are left to list */
    char hello_after[ATTN_ID_MAX + 1];
    uint64_t n_owed; /* events that memory was out for: a gap is due */
    uint64_t stats_version, stats_ns;
    srv_buf filling; /* between srv_watcher_take and srv_watcher_show */
    bool left;       /* under the hub's mutex */

    /* What waits for the reader; nothing while the hub's thread fills it. */
    pthread_mutex_t mutex;
    srv_buf out;
    bool is_full;    /* the hub waits for room */
    bool is_awaited; /* the reader waits for more */
    bool ended;
};

/* Counts what it may come to hold, in *all_held_bytes too. NULL when there is no memory for it. */
srv_watcher *srv_watcher_create(srv_exchange *x, const srv_watch_choice *choice,
                                _Atomic uint64_t *all_held_bytes);

/* The hub's thread: takes what waits, to add to it; adds a message, or changes nothing and returns
 * false when it does not fit; whether there is room for more; shows it to the reader, who is woken by
 * srv_watcher_wake if he waits. `ended`: that was all. */
void srv_watcher_take(srv_watcher *w);
bool srv_watcher_add(srv_watcher *w, const srv_watch_message *message, srv_buf *scratch);
bool srv_watcher_has_room(const srv_watcher *w);
void srv_watcher_show(srv_watcher *w, bool ended);
void srv_watcher_wake(srv_watcher *w);

/* The HTTP loop: the next piece of the stream, see srv_exchange. */
srv_line srv_watcher_next(srv_exchange *x, srv_buf *line);

#endif
