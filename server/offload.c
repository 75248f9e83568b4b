#include "server/offload.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct srv_offload {
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t posted;
    srv_task *first, **last; /* *last is where the next one goes */
    bool stopping;
    unsigned n_threads;
    pthread_t threads[];
};

static void *work(void *arg)
{
    srv_offload *o = arg;
    pthread_mutex_lock(&o->mutex);
    for (;;) {
        while (!o->first && !o->stopping)
            pthread_cond_wait(&o->posted, &o->mutex);
        srv_task *task = o->first;
        if (!task)
            break;
        o->first = task->next;
        if (!o->first)
            o->last = &o->first;
        pthread_mutex_unlock(&o->mutex);
        task->run(task);
        pthread_mutex_lock(&o->mutex);
    }
    pthread_mutex_unlock(&o->mutex);
    return NULL;
}

srv_offload *srv_offload_start(unsigned n_threads)
{
    srv_offload *o = calloc(1, sizeof(*o) + n_threads * sizeof(o->threads[0]));
    if (!o)
        return NULL;
    pthread_mutex_init(&o->mutex, NULL);
    pthread_cond_init(&o->posted, NULL);
    o->last = &o->first;
    while (o->n_threads < n_threads) {
        if (pthread_create(&o->threads[o->n_threads], NULL, work, o)) {
            srv_offload_stop(o);
            return NULL;
        }
        o->n_threads++;
    }
    return o;
}

void srv_offload_post(srv_offload *o, srv_task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&o->mutex);
    *o->last = task;
    o->last = &task->next;
    pthread_cond_signal(&o->posted);
    pthread_mutex_unlock(&o->mutex);
}

void srv_offload_stop(srv_offload *o)
{
    if (!o)
        return;
    pthread_mutex_lock(&o->mutex);
    o->stopping = true;
    pthread_cond_broadcast(&o->posted);
    pthread_mutex_unlock(&o->mutex);
    for (unsigned i = 0; i < o->n_threads; i++)
        pthread_join(o->threads[i], NULL);
    pthread_cond_destroy(&o->posted);
    pthread_mutex_destroy(&o->mutex);
    free(o);
}
