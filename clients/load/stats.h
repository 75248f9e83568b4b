/* stats.h: what a run counts. */
#ifndef LOAD_STATS_H
#define LOAD_STATS_H

#include <stddef.h>
#include <stdint.h>

#include "clients/load/histogram.h"
#include "clients/load/http.h"
#include "clients/load/options.h"

enum { LOAD_CODES = 48 };

typedef struct load_stats {
    /* Latencies are measured from the moment at which a request was due, so that a wait for a
     * connection counts. whole: a request; ttft: a decode's first step; step: between its steps. */
    load_histogram whole[LOAD_KINDS], ttft, step;
    load_histogram step_second; /* of the second under way */
    uint64_t requests[LOAD_KINDS];
    uint64_t steps, prefilled;                         /* positions, by kind */
    uint64_t begun, created, forked, deleted, expired; /* sessions */
    uint64_t lost;                                     /* sessions that vanished unasked */
    uint64_t failures[LOAD_FAILURES], internal_errors;
    struct {
        char code[40];
        uint64_t n;
    } refusals[LOAD_CODES];
    size_t n_codes;
    uint64_t refused; /* in all */
} load_stats;

/* Counts a refusal by its code. */
void load_stats_refuse(load_stats *s, const char *code);
/* Failed requests of all kinds, and 500s. */
uint64_t load_stats_errors(const load_stats *s);

#endif
