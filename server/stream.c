#include "server/stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A step whose pointers lead to what was copied: into `data`, or to `long_text`. */
typedef struct slot {
    attn_step step;
    char *long_text; /* a text that `data` has no room for, else NULL */
    /* float [row_size], or attn_logprob [n_logprobs] and SRV_STREAM_TEXT bytes of text. */
    _Alignas(8) unsigned char data[];
} slot;

/* Invariants: popped <= pushed <= popped + n_slots; slot i of the run is slots[i % n_slots]. */
struct srv_stream {
    srv_stream_shape shape;
    size_t n_slots, slot_bytes;
    pthread_mutex_t mutex; /* guards what follows, but for the contents of slots */
    uint64_t pushed, popped;
    bool reader_waits; /* push must say so */
    bool pusher_waits; /* pop must say so */
    bool broken;
    _Alignas(slot) unsigned char slots[];
};

static size_t slot_bytes(srv_stream_shape shape)
{
    size_t align = _Alignof(slot);
    size_t data = shape.row_size ? shape.row_size * sizeof(float)
                                 : shape.n_logprobs * sizeof(attn_logprob) + SRV_STREAM_TEXT;
    return (sizeof(slot) + data + align - 1) / align * align;
}

static slot *slot_at(srv_stream *s, uint64_t i)
{
    return (slot *)(void *)(s->slots + (size_t)(i % s->n_slots) * s->slot_bytes);
}

/* Bytes of n_slots slots of so many bytes, and of the stream. */
static size_t all_bytes(size_t n_slots, srv_stream_shape shape, size_t trace_bytes)
{
    size_t bytes;
    if (shape.row_size > SIZE_MAX / 16 || shape.n_logprobs > ATTN_LOGPROBS_MAX ||
        trace_bytes > SIZE_MAX / 16 ||
        __builtin_mul_overflow(slot_bytes(shape) + trace_bytes, n_slots, &bytes) ||
        bytes > SIZE_MAX / 2)
        return SIZE_MAX;
    return bytes + sizeof(srv_stream);
}

size_t srv_stream_bytes(size_t n_slots, srv_stream_shape shape)
{
    return all_bytes(n_slots, shape, shape.trace_bytes);
}

size_t srv_stream_slots(srv_stream_shape shape)
{
    size_t n = SRV_STREAM_BYTES / (slot_bytes(shape) + shape.trace_bytes);
    return n > SRV_STREAM_STEPS ? n : SRV_STREAM_STEPS;
}

srv_stream *srv_stream_create(size_t n_slots, srv_stream_shape shape)
{
    size_t bytes = all_bytes(n_slots, shape, 0);
    /* Not calloc: a collector's pages are touched only as its steps come in. */
    srv_stream *s = bytes == SIZE_MAX ? NULL : malloc(bytes);
    if (!s)
        return NULL;
    *s = (srv_stream){
        .shape = shape,
        .n_slots = n_slots,
        .slot_bytes = slot_bytes(shape),
    };
    pthread_mutex_init(&s->mutex, NULL);
    return s;
}

static void empty_slot(slot *s)
{
    free(s->long_text);
    attn_trace_release(s->step.trace);
}

void srv_stream_free(srv_stream *s)
{
    if (!s)
        return;
    for (uint64_t i = s->popped; i < s->pushed; i++)
        empty_slot(slot_at(s, i));
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

/* Copies a step of the stream's shape. False when out of memory. */
static bool fill_plain(slot *to, const attn_step *step, srv_stream_shape shape)
{
    to->step = *step;
    to->long_text = NULL;
    if (shape.row_size) {
        to->step.output = memcpy(to->data, step->output, shape.row_size * sizeof(float));
        return true;
    }
    size_t logprobs_bytes = step->n_logprobs * sizeof(attn_logprob);
    if (logprobs_bytes)
        to->step.logprobs = memcpy(to->data, step->logprobs, logprobs_bytes);
    if (!step->text)
        return true;
    char *text = (char *)to->data + shape.n_logprobs * sizeof(attn_logprob);
    if (step->text_len > SRV_STREAM_TEXT)
        text = to->long_text = malloc(step->text_len);
    if (text)
        to->step.text = memcpy(text, step->text, step->text_len);
    return text;
}

/* Keeps the step's trace as well. */
static bool fill(slot *to, const attn_step *step, srv_stream_shape shape)
{
    bool ok = fill_plain(to, step, shape);
    if (ok && step->trace)
        attn_trace_retain(step->trace);
    return ok;
}

bool srv_stream_push(srv_stream *s, const attn_step *step)
{
    pthread_mutex_lock(&s->mutex);
    bool ok = !s->broken && step->output_size == s->shape.row_size &&
              step->n_logprobs <= s->shape.n_logprobs && s->pushed - s->popped < s->n_slots;
    uint64_t i = s->pushed;
    pthread_mutex_unlock(&s->mutex);
    ok = ok && fill(slot_at(s, i), step, s->shape);
    pthread_mutex_lock(&s->mutex);
    s->broken |= !ok;
    s->pushed += ok;
    bool waits = ok && s->reader_waits;
    s->reader_waits &= !waits;
    pthread_mutex_unlock(&s->mutex);
    return waits;
}

const attn_step *srv_stream_front(srv_stream *s)
{
    pthread_mutex_lock(&s->mutex);
    bool empty = s->pushed == s->popped;
    s->reader_waits = empty;
    uint64_t i = s->popped;
    pthread_mutex_unlock(&s->mutex);
    return empty ? NULL : &slot_at(s, i)->step;
}

bool srv_stream_pop(srv_stream *s)
{
    pthread_mutex_lock(&s->mutex);
    bool empty = s->pushed == s->popped;
    uint64_t i = s->popped;
    pthread_mutex_unlock(&s->mutex);
    if (!empty)
        empty_slot(slot_at(s, i));
    pthread_mutex_lock(&s->mutex);
    s->popped += !empty;
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

const attn_step *srv_stream_at(srv_stream *s, size_t i)
{
    pthread_mutex_lock(&s->mutex);
    uint64_t at = s->popped + i;
    bool held = at < s->pushed;
    pthread_mutex_unlock(&s->mutex);
    return held ? &slot_at(s, at)->step : NULL;
}

srv_stream_shape srv_stream_shape_of(const srv_stream *s)
{
    return s->shape;
}

bool srv_stream_broken(srv_stream *s)
{
    pthread_mutex_lock(&s->mutex);
    bool broken = s->broken;
    pthread_mutex_unlock(&s->mutex);
    return broken;
}
