/* The hub of /watch: what happens in the engine goes to whoever watches.
 *
 * The engine's callbacks append small records to one ring. The hub's own thread reads the ring for
 * each watcher, encodes what that one asked for, and puts it where the HTTP loop fetches it. All is
 * bounded: the ring in records and in bytes of tensors, a watcher's output in bytes. A watcher whose
 * next record was overwritten gets one `gap` and goes on at the oldest one; one that falls behind
 * with its tensors is not asked for when they are captured. So a watcher slows nobody down.
 *
 * Steps of the session that a watcher chose reach it one by one; those of others merged, the last of
 * a session ten times a second. Without watchers the engine is told to say nothing.
 *
 * Thread: see each function. The engine's callbacks take the hub's mutex for a moment. */
#ifndef SRV_WATCH_H
#define SRV_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "server/exchange.h"
#include "server/watch_ring.h"
#include "server/watch_wire.h"

/* The most watchers. */
#define SRV_WATCHERS_MAX SRV_WATCH_READERS
/* The most frames a second. */
#define SRV_WATCH_FPS_MAX 1000

/* What a watcher asked for. */
typedef struct srv_watch_choice {
    srv_watch_encoding encoding;
    char session[ATTN_ID_MAX + 1]; /* "": none */
    size_t model;                  /* the session's, an index */
    attn_selection show;           /* tensors 0: none */
    bool u8;
    uint32_t fps; /* 0: each step's tensors */
} srv_watch_choice;

/* Starts the hub and names it to the engine. Before the first request. Errors: NULL. */
srv_watch *srv_watch_start(srv_app *app);
/* Says goodbye to all watchers; no more come. Thread: any. NULL is allowed. */
void srv_watch_stop(srv_watch *hub);
/* Ends the hub's thread, after the HTTP loop has ended. NULL is allowed. */
void srv_watch_join(srv_watch *hub);
/* Frees it, after the engine. NULL is allowed. */
void srv_watch_free(srv_watch *hub);

/* A watcher's reader made room. Thread: the HTTP loop. */
void srv_watch_poke(srv_watch *hub);

/* Makes x a watcher: sets x->watcher, x->next_line and its type. Fails x. Thread: who runs x's
 * handler. */
void srv_watcher_join(srv_exchange *x, const srv_watch_choice *choice);
/* Ends it: nothing is made for it any more. Harmless after its end. Thread: the HTTP loop. */
void srv_watcher_leave(srv_watcher *watcher);
/* Thread: whoever drops the exchange's last reference. NULL is allowed. */
void srv_watcher_free(srv_watcher *watcher);

/* Bytes of one frame of a choice, at the longest the session can become. */
uint64_t srv_watch_frame_bytes(attn_engine *engine, const srv_watch_choice *choice);

#endif
