/* scheduler.h: the thread that owns every running job and batches their steps.
 *
 * Each turn it takes the ready steps of many sessions of one model as one ragged batch: one row
 * per decoding job, then chunks of prefills up to a cost that keeps a batch to a few milliseconds.
 * Page tables and committed lengths change only here, between batches.
 */
#ifndef ATTN_SCHEDULER_H
#define ATTN_SCHEDULER_H

#include "engine/engine_state.h"

typedef struct attn_scheduler attn_scheduler;

/* Starts the thread. NULL when it cannot. */
attn_scheduler *attn_scheduler_create(attn_engine *engine);
/* Ends every job with SHUTDOWN, stops the thread and frees the scheduler. */
void attn_scheduler_destroy(attn_scheduler *scheduler);

/* Hands an admitted or waiting job over. Any thread. */
void attn_scheduler_add(attn_scheduler *scheduler, attn_job *job);
/* Makes the scheduler look again at waiting and parked jobs and at shutdown; the second also at
 * cancelled ones. Any thread; a lock and a wake-up. */
void attn_scheduler_kick(attn_scheduler *scheduler);
void attn_scheduler_kick_cancelled(attn_scheduler *scheduler);

#endif
