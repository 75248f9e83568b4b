/* history.h: what was done to a session and what it answered, in few bytes: inputs as the key they
 * are made from, outputs as a hash. And the sessions that are checked: of all that had a history,
 * those with the lowest priorities, which are random numbers of the seed.
 */
#ifndef LOAD_HISTORY_H
#define LOAD_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clients/load/model.h"
#include "clients/load/options.h"

/* One operation that changed the session. n: positions of a prefill, committed steps of a decode,
 * the new length of a truncate or fork. hash: of the answer of a prefill or decode. */
typedef struct load_op {
    load_kind kind;
    uint64_t n, key, hash;
} load_op;

typedef struct load_history {
    uint64_t priority;
    char session[72];
    load_op *ops;
    size_t n_ops, capacity;
    uint64_t positions; /* computed in all; ops past a limit are not kept */
    bool ended;
} load_history;

load_history *load_history_new(uint64_t priority, const char *session);
/* A copy that goes on under another name. */
load_history *load_history_fork(const load_history *h, uint64_t priority, const char *session);
void load_history_free(load_history *h); /* NULL is allowed */
void load_history_add(load_history *h, load_op op);

/* Adds the bits of an answer to a hash: of one output row or several, of a token, of a prefill's
 * reply. The texts are JSON; floats count as float32 bits. */
uint64_t load_hash_rows(uint64_t hash, const float *rows, size_t n);
uint64_t load_hash_prefill(const load_model *m, const char *reply);
/* A step's line; false: it is none. */
bool load_hash_step(const load_model *m, const char *line, uint64_t *hash);

/* The chosen histories, in no order. */
typedef struct load_samples {
    load_history **histories;
    size_t n, max;
} load_samples;

void load_samples_init(load_samples *s, size_t max);
void load_samples_free(load_samples *s);
/* Whether a history of this priority could be chosen. */
bool load_samples_want(const load_samples *s, uint64_t priority);
/* Takes a history over; NULL is allowed. */
void load_samples_offer(load_samples *s, load_history *h);

#endif
