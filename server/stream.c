#include "server/stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Invariants: popped <= pushed <= popped + n_slots; slot i of the run is slots[i % n_slots]. */
struct srv_stream {
    size_t row_size, n_slots, slot_bytes;
    pthread_mutex_t mutex; /* guards what follows, but for the contents of slots */
    uint64_t pushed, popped;
    bool reader_waits; /* push must say so */
    bool pusher_waits; /* pop must say so */
    bool broken;
    _Alignas(srv_step) unsigned char slots[];
};

static size_t slot_bytes(size_t row_size)
{
    size_t align = _Alignof(srv_step);
    return (sizeof(srv_step) + row_size * sizeof(float) + align - 1) / align * align;
}

static srv_step *slot(srv_stream *s, uint64_t i)
{
    return (srv_step *)(void *)(s->slots + (size_t)(i % s->n_slots) * s->slot_bytes);
}

size_t srv_stream_bytes(size_t n_slots, size_t row_size)
{
    size_t bytes;
    if (row_size > SIZE_MAX / 16 || __builtin_mul_overflow(slot_bytes(row_size), n_slots, &bytes) ||
        bytes > SIZE_MAX / 2)
        return SIZE_MAX;
    return bytes + sizeof(srv_stream);
}

size_t srv_stream_slots(size_t row_size)
{
    size_t n = SRV_STREAM_BYTES / slot_bytes(row_size);
    return n > SRV_STREAM_ROWS ? n : SRV_STREAM_ROWS;
}

srv_stream *srv_stream_create(size_t n_slots, size_t row_size)
{
    size_t bytes = srv_stream_bytes(n_slots, row_size);
    /* Not calloc: a collector's pages are touched only as its steps come in. */
    srv_stream *s = bytes == SIZE_MAX ? NULL : malloc(bytes);
    if (!s)
        return NULL;
    *s = (srv_stream){
        .row_size = row_size,
        .n_slots = n_slots,
        .slot_bytes = slot_bytes(row_size),
    };
    pthread_mutex_init(&s->mutex, NULL);
    return s;
}

void srv_stream_free(srv_stream *s)
{
    if (!s)
        return;
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

bool srv_stream_ready(srv_stream *s)
{
    pthread_mutex_lock(&s->mutex);
    bool room = s->pushed - s->popped < s->n_slots;
    s->pusher_waits = !room;
    pthread_mutex_unlock(&s->mutex);
    return room;
}

bool srv_stream_push(srv_stream *s, const attn_step *step)
{
    pthread_mutex_lock(&s->mutex);
    bool fits = step->output_size == s->row_size && s->pushed - s->popped < s->n_slots;
    s->broken |= !fits;
    uint64_t i = s->pushed;
    pthread_mutex_unlock(&s->mutex);
    if (!fits)
        return false;
    srv_step *to = slot(s, i);
    to->step = step->step;
    to->position = step->position;
    to->length = step->length;
    memcpy(to->output, step->output, s->row_size * sizeof(float));
    pthread_mutex_lock(&s->mutex);
    s->pushed++;
    bool waits = s->reader_waits;
    s->reader_waits = false;
    pthread_mutex_unlock(&s->mutex);
    return waits;
}

const srv_step *srv_stream_front(srv_stream *s)
{
    pthread_mutex_lock(&s->mutex);
    bool empty = s->pushed == s->popped;
    s->reader_waits = empty;
    uint64_t i = s->popped;
    pthread_mutex_unlock(&s->mutex);
    return empty ? NULL : slot(s, i);
}

bool srv_stream_pop(srv_stream *s)
{
    pthread_mutex_lock(&s->mutex);
    if (s->popped < s->pushed)
        s->popped++;
    bool waits = s->pusher_waits;
    s->pusher_waits = false;
    pthread_mutex_unlock(&s->mutex);
    return waits;
}

size_t srv_stream_count(srv_stream *s)
{
    pthread_mutex_lock(&s->mutex);
    size_t n = (size_t)(s->pushed - s->popped);
    pthread_mutex_unlock(&s->mutex);
    return n;
}

const srv_step *srv_stream_at(srv_stream *s, size_t i)
{
    pthread_mutex_lock(&s->mutex);
    uint64_t at = s->popped + i;
    bool held = at < s->pushed;
    pthread_mutex_unlock(&s->mutex);
    return held ? slot(s, at) : NULL;
}

size_t srv_stream_row_size(const srv_stream *s)
{
    return s->row_size;
}

bool srv_stream_broken(srv_stream *s)
{
    pthread_mutex_lock(&s->mutex);
    bool broken = s->broken;
    pthread_mutex_unlock(&s->mutex);
    return broken;
}
