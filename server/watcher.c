#include "server/watcher.h"

#include <stdlib.h>

/* A watcher gets more when this much or less waits for its reader. */
#define ROOM_BYTES ((size_t)128 * 1024)
/* What one turn for a watcher adds at most, besides tensors. */
#define TURN_BYTES ((size_t)128 * 1024)
/* What all watchers together hold of --body-memory at most: the rest is for requests. */
#define MEMORY_MAX(body_memory_bytes) ((body_memory_bytes) / 4 * 3)

/* Counts what a watcher may come to hold. False when all watchers would hold too much. */
static bool take_memory(srv_exchange *x, _Atomic uint64_t *held, uint64_t n)
{
    const uint64_t limit = MEMORY_MAX(x->app->config->body_memory_bytes);
    const uint64_t before = atomic_fetch_add(held, n);
    if (n <= limit && before <= limit - n && srv_exchange_hold(x, n, false))
        return true;
    atomic_fetch_sub(held, n);
    return false;
}

srv_watcher *srv_watcher_create(srv_exchange *x, const srv_watch_choice *choice,
                                _Atomic uint64_t *all_held_bytes)
{
    attn_model_info info;
    attn_model_get(x->app->engine, choice->model, &info);
    uint64_t frame = 0;
    if (choice->show.tensors)
        frame = srv_watch_tensors_bytes(srv_watch_frame_bytes(x->app->engine, choice),
                                        &choice->show, info.num_hidden_layers);
    const uint64_t limit = ROOM_BYTES + TURN_BYTES + frame;
    /* One is being filled while the other is sent. */
    if (!take_memory(x, all_held_bytes, 2 * limit))
        return NULL;
    srv_watcher *w = calloc(1, sizeof(*w));
    if (!w || pthread_mutex_init(&w->mutex, NULL)) {
        free(w);
        atomic_fetch_sub(all_held_bytes, 2 * limit);
        return NULL;
    }
    w->hub = x->app->watch;
    w->x = x;
    w->choice = *choice;
    w->held_bytes = 2 * limit;
    w->all_held_bytes = all_held_bytes;
    w->hello_more = true;
    srv_buf_init(&w->out, (size_t)limit);
    srv_buf_init(&w->filling, (size_t)limit);
    return w;
}

void srv_watcher_free(srv_watcher *w)
{
    if (!w)
        return;
    atomic_fetch_sub(w->all_held_bytes, w->held_bytes);
    srv_buf_free(&w->out);
    srv_buf_free(&w->filling);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}

/* Moves the bytes and their memory; `to` has none. */
static void move(srv_buf *to, srv_buf *from)
{
    *to = *from;
    srv_buf_init(from, to->limit);
}

/* -------------------------------------------------------------------------- the hub's side */

void srv_watcher_take(srv_watcher *w)
{
    pthread_mutex_lock(&w->mutex);
    move(&w->filling, &w->out);
    pthread_mutex_unlock(&w->mutex);
}

bool srv_watcher_add(srv_watcher *w, const srv_watch_message *message, srv_buf *scratch)
{
    srv_buf *b = &w->filling;
    const size_t before = b->len;
    srv_watch_write(b, message, w->choice.encoding, scratch);
    if (!b->failed)
        return true;
    b->failed = false;
    b->len = before;
    if (b->data)
        b->data[before] = '\0';
    return false;
}

bool srv_watcher_has_room(const srv_watcher *w)
{
    return w->filling.len <= ROOM_BYTES;
}

void srv_watcher_show(srv_watcher *w, bool ended)
{
    pthread_mutex_lock(&w->mutex);
    move(&w->out, &w->filling);
    w->is_full = w->out.len > ROOM_BYTES;
    w->ended = ended;
    pthread_mutex_unlock(&w->mutex);
}

void srv_watcher_wake(srv_watcher *w)
{
    pthread_mutex_lock(&w->mutex);
    bool wake = w->is_awaited && (w->out.len || w->ended);
    w->is_awaited = w->is_awaited && !wake;
    pthread_mutex_unlock(&w->mutex);
    if (wake)
        srv_exchange_wake(w->x);
}

/* --------------------------------------------------------------------------- the reader's side */

srv_line srv_watcher_next(srv_exchange *x, srv_buf *line)
{
    srv_watcher *w = x->watcher;
    pthread_mutex_lock(&w->mutex);
    srv_line result = w->out.len ? SRV_LINE : w->ended ? SRV_LINE_END : SRV_LINE_WAIT;
    bool poke = false;
    if (result == SRV_LINE) {
        srv_buf empty = *line;
        empty.limit = w->out.limit;
        *line = w->out;
        w->out = empty;
        srv_buf_clear(&w->out);
        poke = w->is_full;
        w->is_full = false;
    }
    w->is_awaited = result == SRV_LINE_WAIT;
    pthread_mutex_unlock(&w->mutex);
    if (poke)
        srv_watch_poke(w->hub);
    return result;
}
