/* What /watch says: messages made of records, of the sessions there are, and of the engine's numbers.
 *
 * Thread: no locks of its own; JSON that a message borrows lies in the caller's buffer. */
#ifndef SRV_WATCH_SAY_H
#define SRV_WATCH_SAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "server/watch_ring.h"
#include "server/watch_wire.h"

/* Ticks that the rate of steps is taken over. */
#define SRV_WATCH_TICKS 10

typedef struct srv_watch_numbers {
    attn_totals totals;
    attn_stats stats;
    uint64_t version; /* another one when something has changed */
    uint64_t steps_per_s;
    uint64_t last_steps[SRV_WATCH_TICKS], last_ns[SRV_WATCH_TICKS];
    size_t n_ticks;
} srv_watch_numbers;

/* The message borrows the record and its trace; `show` and `u8` are the caller's to set. */
void srv_watch_say_record(srv_watch_message *m, uint64_t seq, const srv_watch_record *record);

/* The next n sessions; the first message of a watcher also says what else there is. */
void srv_watch_say_hello(srv_watch_message *m, uint64_t seq, attn_engine *engine,
                         const attn_session_info *sessions, size_t n, bool more, srv_buf *json);

/* Reads the engine's numbers, as of now; called once a tick. */
void srv_watch_numbers_take(srv_watch_numbers *numbers, attn_engine *engine, uint64_t now_ns);
void srv_watch_say_stats(srv_watch_message *m, uint64_t seq, const srv_watch_numbers *numbers,
                         size_t n_watchers, srv_buf *json);

#endif
