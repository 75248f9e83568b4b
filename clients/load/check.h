/* check.h: sampled sessions, recomputed alone: the same operations in a fresh session must give the
 * same answers, bit for bit, and so must one whole prefill of all that was fed in the end.
 */
#ifndef LOAD_CHECK_H
#define LOAD_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clients/load/history.h"
#include "clients/load/http.h"
#include "clients/load/model.h"
#include "clients/load/options.h"

enum { LOAD_MISMATCHES = 32 };

typedef struct load_check {
    uint64_t sampled, recomputed, verified; /* verified: by POST /sessions/{id}/verify */
    uint64_t unchecked;                     /* recomputing was refused or failed */
    char why[40];                           /* the first such reason */
    uint64_t n_mismatches;
    struct {
        char session[72], what[120];
    } mismatches[LOAD_MISMATCHES]; /* the first ones */
} load_check;

/* Has the server verify those sampled sessions that it still has. */
void load_check_verify(load_check *c, const load_model *m, load_http *http,
                       const load_samples *samples);
/* Recomputes the sampled sessions. */
void load_check_recompute(load_check *c, const load_options *o, const load_model *m,
                          load_http *http, const load_samples *samples);

#endif
