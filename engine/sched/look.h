/* look.h: TENSOR jobs: looks at committed positions, which hold nobody off and cost no budget.
 *
 * A look reads in place, through a view of the session's page table, in the time that the others leave;
 * how readers and those who make a session shorter get along is in session.h. */
#ifndef ATTN_LOOK_H
#define ATTN_LOOK_H

#include "engine/sched/job.h"

/* Finds the session and lets the job in as a reader of it. Any thread. On error the job holds nothing. */
ATTN_MUST_CHECK attn_status attn_look_attach(attn_job *job, attn_error *err);
/* Ends that. Thread: the scheduler, while it is not reading. */
void attn_look_release(attn_job *job);

/* Whether the job looks at a tensor of the cache, which needs no computing. */
static inline bool attn_look_is_of_cache(const attn_job *job)
{
    return job->request.tensor == ATTN_TENSOR_KEY || job->request.tensor == ATTN_TENSOR_VALUE;
}

/* Reads the next n keys of such a look. Thread: the scheduler, while it is reading. */
void attn_look_read_cache(attn_job *job, size_t n);

#endif
