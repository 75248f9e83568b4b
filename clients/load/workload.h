/* workload.h: the sessions and what they do.
 *
 * A session is begun with a prefill, then does its operations one after another with pauses
 * between; then it stays in the server, at rest, until the end or until there are too many. What a
 * session does and is fed follows from the seed and its number alone. A fork goes on in place of
 * the session it was forked from.
 *
 * Closed loop: so many sessions are at work at once, each end begins the next. Open loop: sessions
 * begin when their time has come.
 */
#ifndef LOAD_WORKLOAD_H
#define LOAD_WORKLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clients/load/history.h"
#include "clients/load/http.h"
#include "clients/load/model.h"
#include "clients/load/options.h"
#include "clients/load/stats.h"

typedef struct load_workload load_workload;

/* What the client knows about the sessions it has in the server. */
typedef struct load_held {
    uint64_t sessions, at_work, positions;
    uint64_t
        unsure; /* of the sessions, those a request of which failed: nobody knows their length */
    uint64_t kv_bytes, inputs_bytes; /* by formula, each session for itself */
} load_held;

/* Borrows everything it is given. Owner: load_workload_free. */
load_workload *load_workload_new(const load_options *o, const load_model *m, load_http *http);
void load_workload_free(load_workload *w);

/* Begins what is due and returns when something will be due next. */
uint64_t load_workload_advance(load_workload *w, uint64_t now_ns);
/* Begins nothing any more. */
void load_workload_stop(load_workload *w);
/* Nothing is under way and nothing will be. */
bool load_workload_ended(const load_workload *w);
/* Deletes all sessions and waits for that. */
void load_workload_delete_all(load_workload *w);

load_held load_workload_held(const load_workload *w);
load_stats *load_workload_stats(load_workload *w);
load_samples *load_workload_samples(load_workload *w);
uint64_t load_workload_begin_ns(const load_workload *w);
uint64_t load_workload_end_ns(const load_workload *w); /* of the latest operation */

/* What a session of this id should be. */
typedef enum load_expectation {
    LOAD_NOT_OURS,
    LOAD_UNSURE, /* a request of it failed */
    LOAD_KNOWN,  /* *length is its length */
} load_expectation;
load_expectation load_workload_expect(const load_workload *w, const char *session,
                                      uint64_t *length);

#endif
