/* What happened, for those who watch: a ring of records, and readers with a place in it.
 *
 * A record is for everybody (a session was created), for the readers of its session (a step), or for
 * all the others (the last of several steps of it). The latter wait, one a session, until
 * srv_watch_ring_flush or until something else happens to their session. Records that a reader did
 * not get to in time are overwritten; it learns how many of its own they were.
 *
 * Thread: the caller's mutex guards every call, but records that srv_watch_ring_take gave are the
 * taker's until its next call. */
#ifndef SRV_WATCH_RING_H
#define SRV_WATCH_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

#define SRV_WATCH_READERS 256
/* A step's text is cut here, at a character. */
#define SRV_WATCH_TEXT 256
#define SRV_WATCH_BATCH 16

typedef enum srv_watch_audience {
    SRV_WATCH_ALL,
    SRV_WATCH_CHOSEN, /* the readers of its session */
    SRV_WATCH_OTHERS, /* all but those */
} srv_watch_audience;

typedef struct srv_watch_record {
    attn_event_kind kind;
    srv_watch_audience audience;
    bool has_token, has_text;
    uint32_t token, text_len;
    uint64_t length, kv_bytes, n_done, n_positions, step, position;
    uint64_t n_merged; /* OTHERS: steps that it stands for */
    const char *model;
    attn_trace *trace;
    uint64_t trace_bytes;
    uint64_t wanted[SRV_WATCH_READERS / 64]; /* whose tensors the trace has */
    uint64_t missed[SRV_WATCH_READERS / 64]; /* whose tensors were due and are not there */
    bool is_missed;                          /* when taken: the taker's are not there */
    char session[ATTN_ID_MAX + 1], from[ATTN_ID_MAX + 1], text[SRV_WATCH_TEXT];
} srv_watch_record;

/* A session that readers chose. */
typedef struct srv_watch_chosen {
    const char *session; /* a reader's; NULL: free */
    size_t n_readers;
    struct srv_watch_reader *readers;
    const char *model;           /* that the readers were checked against */
    uint64_t n_chosen, n_others; /* records of each audience, ever */
    /* Of the step under way: who gets tensors, and who is too far behind for those that are due. */
    uint64_t asked[SRV_WATCH_READERS / 64], missed[SRV_WATCH_READERS / 64];
} srv_watch_chosen;

typedef struct srv_watch_reader {
    /* Set by the owner; the pointers live as long as the reader. */
    size_t slot;                /* its own, below SRV_WATCH_READERS */
    const char *session;        /* "": none chosen */
    const attn_selection *show; /* tensors 0: none */
    uint64_t frame_ns;          /* least time between its tensors */

    /* The ring's. */
    srv_watch_chosen *chosen;
    struct srv_watch_reader *next; /* of the same session */
    uint64_t cursor;               /* the next record's number */
    uint64_t n_seen;               /* how many of its records are behind it */
    uint64_t lag_bytes;            /* tensors in the ring that it has still to take */
    uint64_t due_ns;
    bool fits; /* the session's model has what it wants */
} srv_watch_reader;

typedef struct srv_watch_ring {
    attn_engine *engine;
    srv_watch_record *records; /* [RECORDS], by number modulo that */
    uint64_t head;             /* the next number */
    uint64_t traces_from;      /* records before it have no trace */
    uint64_t trace_bytes;
    uint64_t n_all, n_others; /* records of these audiences, ever */
    srv_watch_reader *readers[SRV_WATCH_READERS];
    srv_watch_chosen chosen[SRV_WATCH_READERS];
    size_t n_chosen;           /* slots of `chosen` that are or were in use */
    srv_watch_record *waiting; /* [WAITING] last steps, to be flushed */
    uint16_t *waiting_index;   /* hash -> 1 + index */
    size_t n_waiting;
    srv_watch_record taken[SRV_WATCH_BATCH];
} srv_watch_ring;

/* Errors: false; srv_watch_ring_free is owed all the same. */
bool srv_watch_ring_init(srv_watch_ring *ring, attn_engine *engine);
void srv_watch_ring_free(srv_watch_ring *ring);
/* Forgets all records. Only without readers. */
void srv_watch_ring_clear(srv_watch_ring *ring);

/* Adds a reader, who gets what happens from now on; `model`: its session's, an index. */
void srv_watch_ring_add(srv_watch_ring *ring, srv_watch_reader *reader, size_t model);
/* Returns how many records it lost at the end. */
uint64_t srv_watch_ring_remove(srv_watch_ring *ring, srv_watch_reader *reader);
/* Adds to a selection what the readers of the session want. */
void srv_watch_ring_union(srv_watch_ring *ring, const char *session, attn_selection *selection);

/* Takes an event in, for n_readers. True: readers are not to wait for it until the next flush.
 * *n_lost grows by frames whose tensors there was no room for. */
bool srv_watch_ring_put(srv_watch_ring *ring, const attn_event *event, size_t n_readers,
                        uint64_t *n_lost);
/* Whether tensors of the session's next step are wanted, and which. *n_lost grows by frames of
 * readers that are too far behind. */
bool srv_watch_ring_ask(srv_watch_ring *ring, const char *session, uint64_t now_ns,
                        attn_selection *selection, uint64_t *n_lost);

/* Makes records of the steps that wait. */
void srv_watch_ring_flush(srv_watch_ring *ring);
/* Lets go of the traces that all readers have passed. */
void srv_watch_ring_forget(srv_watch_ring *ring);

/* Takes the reader's next records, at most `max` (SRV_WATCH_BATCH) and not more than one with tensors;
 * the last may have a trace, which is the taker's. *n_lost: how many it lost before them. *more: there
 * may be others. Returns how many. */
size_t srv_watch_ring_take(srv_watch_ring *ring, srv_watch_reader *reader,
                           srv_watch_record *records[], size_t max, uint64_t *n_lost, bool *more);

#endif
