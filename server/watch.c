#include "server/watch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/watch_ring.h"
#include "server/watch_say.h"
#include "server/watcher.h"

/* Merged steps and stats come at most this often; stats at least once a second. */
#define TICK_NS 100000000ull
#define SECOND_NS 1000000000ull
/* The thread looks at the ring at most this often, whatever happens. */
#define PASS_NS 10000000ull
#define HELLO_SESSIONS 250
/* All that the watchers of one session have captured at once, at most. */
#define UNION_BYTES_MAX ATTN_TRACE_BYTES_MAX
/* A temporary buffer that grew past this is not kept. */
#define SCRATCH_BYTES ((size_t)1 << 20)

struct srv_watch {
    srv_app *app;
    pthread_t thread;

    /* Guards the ring, the slots and what follows. */
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    srv_watch_ring ring;
    srv_watcher *slots[SRV_WATCHERS_MAX];
    size_t n_watchers;
    srv_watcher *serving; /* whom the thread works for without the mutex */
    bool stopping;
    bool asleep;                  /* the thread waits; whoever has news wakes it, once */
    bool news;                    /* something that is not to wait for the tick */
    bool poked;                   /* a reader made room, or somebody came or went */
    _Atomic uint32_t n_capturing; /* watchers with tensors */
    _Atomic uint64_t held_bytes;  /* by all watchers, of --body-memory */

    /* The thread's alone. */
    srv_watch_numbers numbers;
    attn_session_info *infos; /* [HELLO_SESSIONS] */
    srv_buf json, blob;
    srv_watch_message message;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

/* ------------------------------------------------------------------------ from the engine */

/* Under the mutex: something happened. True: signal the thread, once the mutex is released. */
static bool has_news(srv_watch *h)
{
    bool wake = h->asleep;
    h->news = true;
    h->asleep = false;
    return wake;
}

static void on_event(void *ctx, const attn_event *event)
{
    srv_watch *h = ctx;
    bool wake = false;
    pthread_mutex_lock(&h->mutex);
    if (h->n_watchers && !h->stopping) {
        uint64_t n_lost = 0;
        if (srv_watch_ring_put(&h->ring, event, h->n_watchers, &n_lost))
            wake = has_news(h);
        if (n_lost)
            srv_metrics_watch_dropped(h->app->metrics, n_lost);
    }
    pthread_mutex_unlock(&h->mutex);
    if (wake)
        pthread_cond_signal(&h->cond);
}

static bool on_wants(void *ctx, const char *session, attn_selection *selection)
{
    srv_watch *h = ctx;
    if (!atomic_load_explicit(&h->n_capturing, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&h->mutex);
    uint64_t n_lost = 0;
    bool wanted = srv_watch_ring_ask(&h->ring, session, now_ns(), selection, &n_lost);
    if (n_lost)
        srv_metrics_watch_dropped(h->app->metrics, n_lost);
    pthread_mutex_unlock(&h->mutex);
    return wanted;
}

/* -------------------------------------------------------------------------------- output */

/* Gives the message to the watcher. */
static void deliver(srv_watch *h, srv_watcher *w)
{
    if (srv_watcher_add(w, &h->message, &h->blob)) {
        w->seq++;
    } else {
        w->n_owed++;
        srv_metrics_watch_dropped(h->app->metrics, 1);
    }
}

static void deliver_gap(srv_watch *h, srv_watcher *w, uint64_t n)
{
    srv_watch_begin(&h->message, "gap", w->seq);
    srv_watch_number(&h->message, "dropped", n);
    deliver(h, w);
}

static void deliver_owed(srv_watch *h, srv_watcher *w)
{
    uint64_t n = w->n_owed;
    if (!n)
        return;
    w->n_owed = 0;
    deliver_gap(h, w, n);
    if (w->n_owed)
        w->n_owed = n;
}

static void deliver_record(srv_watch *h, srv_watcher *w, const srv_watch_record *r)
{
    deliver_owed(h, w);
    srv_watch_say_record(&h->message, w->seq, r);
    h->message.show = &w->choice.show;
    h->message.u8 = w->choice.u8;
    deliver(h, w);
}

/* The next sessions of all there are. */
static void deliver_hello(srv_watch *h, srv_watcher *w)
{
    size_t n =
        attn_session_list(h->app->engine, w->hello_after, HELLO_SESSIONS, h->infos, &w->hello_more);
    w->hello_more = w->hello_more && n;
    srv_watch_say_hello(&h->message, w->seq, h->app->engine, h->infos, n, w->hello_more, &h->json);
    if (n)
        memcpy(w->hello_after, h->infos[n - 1].id, sizeof(w->hello_after));
    deliver(h, w);
}

static void deliver_stats(srv_watch *h, srv_watcher *w, size_t n_watchers, uint64_t now)
{
    if (w->stats_version == h->numbers.version && now - w->stats_ns < SECOND_NS)
        return;
    deliver_owed(h, w);
    srv_watch_say_stats(&h->message, w->seq, &h->numbers, n_watchers, &h->json);
    deliver(h, w);
    w->stats_version = h->numbers.version;
    w->stats_ns = now;
}

/* -------------------------------------------------------------------------------- passes */

/* Delivers the next records. Returns false when there are none left. Under the hub's mutex, which it
 * releases while it encodes. */
static bool deliver_records(srv_watch *h, srv_watcher *w)
{
    srv_watch_record *records[SRV_WATCH_BATCH];
    uint64_t n_lost;
    bool more = true;
    size_t n = srv_watch_ring_take(&h->ring, &w->reader, records, SRV_WATCH_BATCH, &n_lost, &more);
    if (!n && !n_lost)
        return more;
    pthread_mutex_unlock(&h->mutex);
    if (n_lost) {
        srv_metrics_watch_dropped(h->app->metrics, n_lost);
        deliver_gap(h, w, n_lost);
    }
    for (size_t i = 0; i < n; i++) {
        deliver_record(h, w, records[i]);
        attn_trace_release(records[i]->trace);
    }
    pthread_mutex_lock(&h->mutex);
    return more;
}

/* Takes it off the hub's lists. Returns whether the caller is to drop the hub's reference. */
static bool remove_watcher(srv_watch *h, srv_watcher *w)
{
    if (w->left)
        return false;
    w->left = true;
    h->slots[w->reader.slot] = NULL;
    h->n_watchers--;
    srv_metrics_watch_dropped(h->app->metrics, srv_watch_ring_remove(&h->ring, &w->reader));
    if (w->choice.show.tensors)
        h->n_capturing--;
    srv_metrics_watchers(h->app->metrics, -1);
    if (!h->n_watchers) {
        attn_engine_observe(h->app->engine, false);
        srv_watch_ring_clear(&h->ring);
    }
    return h->serving != w;
}

/* Gives a watcher what there is for it. Under the hub's mutex, which it releases meanwhile. */
static void serve(srv_watch *h, srv_watcher *w, bool bye, uint64_t now)
{
    const size_t n_watchers = h->n_watchers;
    h->serving = w;
    srv_watcher_take(w);
    bool more = true;
    while (more && !w->left) {
        more = srv_watcher_has_room(w);
        if (more && w->hello_more) {
            pthread_mutex_unlock(&h->mutex);
            deliver_hello(h, w);
            pthread_mutex_lock(&h->mutex);
        } else if (more) {
            more = deliver_records(h, w);
        }
    }
    pthread_mutex_unlock(&h->mutex);
    if (!w->hello_more && srv_watcher_has_room(w))
        deliver_stats(h, w, n_watchers, now);
    if (bye) {
        deliver_owed(h, w);
        srv_watch_begin(&h->message, "bye", w->seq);
        srv_watch_text(&h->message, "reason", "shutdown", 8);
        deliver(h, w);
    }
    srv_watcher_show(w, bye);
    if (bye)
        srv_watcher_wake(w);
    pthread_mutex_lock(&h->mutex);
    h->serving = NULL;
    bool drop = w->left || (bye && remove_watcher(h, w));
    if (drop) {
        pthread_mutex_unlock(&h->mutex);
        srv_exchange_unref(w->x);
        pthread_mutex_lock(&h->mutex);
    }
}

static void wait_until(srv_watch *h, uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / SECOND_NS), .tv_nsec = (long)(ns % SECOND_NS)};
    pthread_cond_timedwait(&h->cond, &h->mutex, &t);
}

/* Waits until there is something to do. */
static void sleep_well(srv_watch *h, uint64_t last_pass, uint64_t *next_tick)
{
    while (!h->stopping && !h->n_watchers) {
        pthread_cond_wait(&h->cond, &h->mutex);
        h->poked = true;
        *next_tick = 0; /* what was counted is old */
    }
    while (!h->stopping && !h->poked && !h->news && now_ns() < *next_tick) {
        h->asleep = true;
        wait_until(h, *next_tick);
    }
    h->asleep = false;
    /* News come in crowds: who is awake is not woken for each. */
    const uint64_t next_pass = last_pass + PASS_NS;
    while (!h->stopping && !h->poked && now_ns() < next_pass)
        wait_until(h, next_pass);
    h->news = h->poked = false;
}

static void trim(srv_buf *b)
{
    if (b->cap > SCRATCH_BYTES)
        srv_buf_free(b);
}

static void *run(void *arg)
{
    srv_watch *h = arg;
    uint64_t last_pass = 0, next_tick = 0;
    pthread_mutex_lock(&h->mutex);
    for (bool stopping = false; !stopping;) {
        sleep_well(h, last_pass, &next_tick);
        stopping = h->stopping;
        last_pass = now_ns();
        if (last_pass >= next_tick) {
            next_tick = last_pass + TICK_NS;
            srv_watch_ring_flush(&h->ring);
            pthread_mutex_unlock(&h->mutex);
            srv_watch_numbers_take(&h->numbers, h->app->engine, last_pass);
            pthread_mutex_lock(&h->mutex);
        }
        for (size_t i = 0; i < SRV_WATCHERS_MAX; i++) {
            if (h->slots[i])
                serve(h, h->slots[i], stopping, last_pass);
        }
        /* All at once: the HTTP loop wakes once. */
        for (size_t i = 0; i < SRV_WATCHERS_MAX; i++) {
            if (h->slots[i])
                srv_watcher_wake(h->slots[i]);
        }
        srv_watch_ring_forget(&h->ring);
        trim(&h->blob);
    }
    pthread_mutex_unlock(&h->mutex);
    return NULL;
}

/* ------------------------------------------------------------------------------ watchers */

uint64_t srv_watch_frame_bytes(attn_engine *engine, const srv_watch_choice *choice)
{
    attn_model_info info;
    attn_model_get(engine, choice->model, &info);
    return attn_selection_bytes(engine, choice->model, &choice->show, 1,
                                info.max_position_embeddings);
}

void srv_watch_poke(srv_watch *h)
{
    pthread_mutex_lock(&h->mutex);
    h->poked = true;
    pthread_mutex_unlock(&h->mutex);
    pthread_cond_signal(&h->cond);
}

/* Whether what all watchers of the session want at once is too much to capture. */
static bool is_too_much(srv_watch *h, const srv_watch_choice *choice)
{
    srv_watch_choice all = *choice;
    if (!choice->show.tensors)
        return false;
    srv_watch_ring_union(&h->ring, choice->session, &all.show);
    return srv_watch_frame_bytes(h->app->engine, &all) > UNION_BYTES_MAX;
}

/* Under the mutex. Returns what stands against it, or NULL. */
static const char *add_watcher(srv_watch *h, srv_watcher *w)
{
    size_t slot = 0;
    while (slot < SRV_WATCHERS_MAX && h->slots[slot])
        slot++;
    if (slot == SRV_WATCHERS_MAX)
        return "there are as many watchers as can be";
    if (is_too_much(h, &w->choice))
        return "the watchers of this session ask for too many tensors already";
    w->reader = (srv_watch_reader){.slot = slot,
                                   .session = w->choice.session,
                                   .show = &w->choice.show,
                                   .frame_ns = w->choice.fps ? SECOND_NS / w->choice.fps : 0};
    srv_watch_ring_add(&h->ring, &w->reader, w->choice.model);
    srv_exchange_ref(w->x);
    h->slots[slot] = w;
    h->n_watchers++;
    if (w->choice.show.tensors)
        h->n_capturing++;
    h->poked = true;
    srv_metrics_watchers(h->app->metrics, 1);
    attn_engine_observe(h->app->engine, true);
    return NULL;
}

void srv_watcher_join(srv_exchange *x, const srv_watch_choice *choice)
{
    static const char *const types[] = {
        [SRV_WATCH_NDJSON] = "application/x-ndjson",
        [SRV_WATCH_SSE] = "text/event-stream",
        [SRV_WATCH_FRAMES] = "application/x-attnd-frames",
    };
    srv_watch *h = x->app->watch;
    x->watcher = srv_watcher_create(x, choice, &h->held_bytes);
    if (!x->watcher) {
        srv_fail_with(x, 503, "busy_memory", NULL,
                      "watchers and requests in flight hold what they may of --body-memory");
        return;
    }
    pthread_mutex_lock(&h->mutex);
    const bool stopping = h->stopping;
    const char *refusal = stopping ? NULL : add_watcher(h, x->watcher);
    if (stopping || refusal)
        x->watcher->left = true;
    pthread_mutex_unlock(&h->mutex);
    if (stopping) {
        srv_fail_with(x, 503, "shutting_down", NULL, "the server is shutting down");
        return;
    }
    if (refusal) {
        srv_fail_with(x, 429, "queue_full", NULL, refusal);
        return;
    }
    pthread_cond_signal(&h->cond);
    x->content_type = types[choice->encoding];
    x->next_line = srv_watcher_next;
}

void srv_watcher_leave(srv_watcher *w)
{
    srv_watch *h = w->hub;
    pthread_mutex_lock(&h->mutex);
    bool drop = remove_watcher(h, w);
    pthread_mutex_unlock(&h->mutex);
    if (drop)
        srv_exchange_unref(w->x);
}

/* ------------------------------------------------------------------------- start and stop */

srv_watch *srv_watch_start(srv_app *app)
{
    srv_watch *h = calloc(1, sizeof(*h));
    pthread_condattr_t attr;
    if (!h)
        return NULL;
    h->app = app;
    srv_buf_init(&h->json, SIZE_MAX);
    srv_buf_init(&h->blob, SIZE_MAX);
    h->infos = calloc(HELLO_SESSIONS, sizeof(*h->infos));
    pthread_mutex_init(&h->mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&h->cond, &attr);
    pthread_condattr_destroy(&attr);
    if (!h->infos || !srv_watch_ring_init(&h->ring, app->engine) ||
        pthread_create(&h->thread, NULL, run, h)) {
        srv_watch_free(h);
        return NULL;
    }
    attn_engine_set_observer(app->engine,
                             &(attn_observer){.ctx = h, .event = on_event, .wants = on_wants});
    return h;
}

void srv_watch_stop(srv_watch *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&h->mutex);
    h->stopping = true;
    pthread_mutex_unlock(&h->mutex);
    pthread_cond_signal(&h->cond);
}

void srv_watch_join(srv_watch *h)
{
    if (!h)
        return;
    srv_watch_stop(h);
    pthread_join(h->thread, NULL);
}

void srv_watch_free(srv_watch *h)
{
    if (!h)
        return;
    srv_watch_ring_free(&h->ring);
    srv_buf_free(&h->json);
    srv_buf_free(&h->blob);
    free(h->infos);
    pthread_cond_destroy(&h->cond);
    pthread_mutex_destroy(&h->mutex);
    free(h);
}
