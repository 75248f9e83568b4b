/* A few threads for work that would hold up the HTTP loop: large bodies to parse, large replies to
 * format, engine calls that may block.
 *
 * Tasks are intrusive: posting allocates nothing and cannot fail, and the queue is as long as there
 * are objects to post, each of which is queued once at most. The connection limit bounds it.
 *
 * Thread: post from any; a task runs on one of the threads, and nothing touches it here after `run`
 * was called, so `run` may free it. */
#ifndef SRV_OFFLOAD_H
#define SRV_OFFLOAD_H

typedef struct srv_task {
    struct srv_task *next;
    void (*run)(struct srv_task *task);
} srv_task;

typedef struct srv_offload srv_offload;

/* Errors: NULL when the system refuses memory or threads. */
srv_offload *srv_offload_start(unsigned n_threads);

/* Owner: the task must stay until its `run` was called. */
void srv_offload_post(srv_offload *offload, srv_task *task);

/* Runs what is queued, then ends the threads and frees. NULL is allowed. No post may follow. */
void srv_offload_stop(srv_offload *offload);

#endif
