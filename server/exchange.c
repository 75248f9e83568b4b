#include "server/exchange.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/watch.h"

/* Room for the JSON around the numbers and texts of a reply. */
#define REPLY_ENVELOPE_BYTES ((size_t)1 << 20)

void srv_exchange_init(srv_exchange *x, srv_app *app)
{
    memset(x, 0, sizeof(*x));
    x->app = app;
    atomic_init(&x->refs, 1);
    srv_buf_init(&x->body, (size_t)app->config->max_body_bytes);
    srv_buf_init(&x->reply, (size_t)app->config->max_body_bytes + REPLY_ENVELOPE_BYTES);
    srv_buf_init(&x->line, x->reply.limit);
    srv_buf_init(&x->prepared, x->reply.limit);
}

void srv_exchange_ref(srv_exchange *x)
{
    atomic_fetch_add_explicit(&x->refs, 1, memory_order_relaxed);
}

void srv_exchange_unref(srv_exchange *x)
{
    if (atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) != 1)
        return;
    attn_job *job = atomic_load(&x->job);
    if (job)
        attn_job_release(job);
    srv_stream_free(x->stream);
    srv_watcher_free(x->watcher);
    if (x->values)
        srv_json_values_free(x->fields, x->n_fields, x->values);
    free(x->values);
    free(x->trace);
    for (size_t i = 0; i < SRV_QUERY_MAX; i++)
        free(x->params[i]);
    srv_buf_free(&x->body);
    srv_buf_free(&x->reply);
    srv_buf_free(&x->line);
    srv_buf_free(&x->prepared);
    srv_exchange_drop(x, x->held_bytes);
    free(x);
}

/* --------------------------------------------------------------------------------- wakes */

void srv_exchange_wake(srv_exchange *x)
{
    if (atomic_exchange(&x->is_woken, true))
        return;
    srv_exchange_ref(x);
    /* Once the push succeeds the loop may take x and even free it: `app` is read before. */
    srv_app *app = x->app;
    srv_exchange *first = atomic_load_explicit(&app->woken, memory_order_relaxed);
    do
        x->next_woken = first;
    while (!atomic_compare_exchange_weak(&app->woken, &first, x));
    if (!atomic_load(&app->expects_wake) || !atomic_exchange(&app->expects_wake, false))
        return;
    uint64_t one = 1;
    if (write(app->wake_fd, &one, sizeof(one)) < 0) {
        /* Only when the counter is full, and then the loop wakes anyway. */
    }
}

bool srv_exchange_expect_wake(srv_app *app)
{
    /* Either a waker sees this, or we see what it pushed before. */
    atomic_store(&app->expects_wake, true);
    return atomic_load(&app->woken);
}

srv_exchange *srv_exchange_take_woken(srv_app *app)
{
    atomic_store_explicit(&app->expects_wake, false, memory_order_relaxed);
    return atomic_load_explicit(&app->woken, memory_order_relaxed)
               ? atomic_exchange(&app->woken, NULL)
               : NULL;
}

/* -------------------------------------------------------------------------------- memory */

bool srv_exchange_hold(srv_exchange *x, uint64_t n, bool force)
{
    uint64_t limit = x->app->config->body_memory_bytes;
    uint64_t before = atomic_fetch_add(&x->app->held_bytes, n);
    if (!force && (n > limit || before > limit - n)) {
        atomic_fetch_sub(&x->app->held_bytes, n);
        return false;
    }
    x->held_bytes += n;
    return true;
}

void srv_exchange_drop(srv_exchange *x, uint64_t n)
{
    x->held_bytes -= n;
    atomic_fetch_sub(&x->app->held_bytes, n);
}

void srv_exchange_expect(srv_exchange *x, uint64_t bytes)
{
    x->reply.limit = (size_t)bytes + REPLY_ENVELOPE_BYTES;
}

/* ------------------------------------------------------------------------------- replies */

void srv_reply(srv_exchange *x, unsigned status, const char *content_type)
{
    if (x->reply.failed) {
        srv_fail_with(x, 500, "internal", NULL, "the reply could not be made");
        return;
    }
    x->status = status;
    x->content_type = content_type;
}

void srv_reply_json(srv_exchange *x, unsigned status)
{
    srv_reply(x, status, "application/json");
}

void srv_fail(srv_exchange *x, const srv_error *error)
{
    srv_buf_clear(&x->reply);
    srv_buf_puts(&x->reply, "{\"error\":");
    srv_wire_error(&x->reply, error);
    srv_buf_puts(&x->reply, "}\n");
    x->status = error->status;
    x->content_type = "application/json";
    x->error_code = error->code;
    x->retry_after = error->status == 429 || error->status == 503 ||
                     (error->status == 409 && !strcmp(error->code, "session_busy"));
}

void srv_fail_with(srv_exchange *x, unsigned status, const char *code, const char *param,
                   const char *message)
{
    srv_fail(x, &(srv_error){.status = status, .code = code, .param = param, .message = message});
}

void srv_fail_engine(srv_exchange *x, const attn_error *error)
{
    srv_error e = srv_error_of_engine(error);
    /* The engine does not know by which field the positions came in. */
    const char *given = x->positions_param;
    bool rows = e.param && !strcmp(e.param, "inputs"), ids = e.param && !strcmp(e.param, "tokens");
    if (given && ((rows && !strncmp(given, "input", 5)) || (ids && !strncmp(given, "token", 5)) ||
                  (!e.param && error->status == ATTN_E_KV_BUDGET)))
        e.param = given;
    srv_fail(x, &e);
}

/* ------------------------------------------------------------------------------- running */

static void handle(srv_exchange *x)
{
    x->route->handle(x);
}

static void run_task(srv_task *task)
{
    srv_exchange *x = (srv_exchange *)(void *)((char *)task - offsetof(srv_exchange, task));
    if (!atomic_load(&x->gone))
        x->work(x);
    atomic_store(&x->working, false);
    srv_exchange_wake(x);
    srv_exchange_unref(x);
}

void srv_exchange_offload(srv_exchange *x, void (*work)(srv_exchange *))
{
    srv_exchange_ref(x);
    atomic_store(&x->working, true);
    x->work = work;
    x->task.run = run_task;
    srv_offload_post(x->app->offload, &x->task);
}

void srv_exchange_start(srv_exchange *x)
{
    if ((x->route->flags & SRV_ROUTE_BLOCKS) || x->body.len >= SRV_OFFLOAD_BYTES)
        srv_exchange_offload(x, handle);
    else
        handle(x);
}

void srv_exchange_go_on(srv_exchange *x, bool is_long, void (*work)(srv_exchange *x))
{
    if (is_long && !atomic_load(&x->working))
        srv_exchange_offload(x, work);
    else
        work(x);
}

/* ------------------------------------------------------------------------------- the job */

static bool on_ready(void *ctx)
{
    srv_exchange *x = ctx;
    return srv_stream_ready(x->stream);
}

static void on_step(void *ctx, const attn_step *step)
{
    srv_exchange *x = ctx;
    if (srv_stream_push(x->stream, step))
        srv_exchange_wake(x);
}

static void on_done(void *ctx)
{
    srv_exchange *x = ctx;
    atomic_store(&x->job_done, true);
    srv_exchange_wake(x);
    srv_exchange_unref(x);
}

bool srv_exchange_submit(srv_exchange *x, const attn_request *request)
{
    attn_sink sink = {
        .ctx = x,
        .ready = x->stream ? on_ready : NULL,
        .step = x->stream ? on_step : NULL,
        .done = on_done,
    };
    attn_job *job;
    attn_error error;
    srv_exchange_ref(x);
    if (attn_engine_submit(x->app->engine, request, &sink, &job, &error) != ATTN_OK) {
        srv_exchange_unref(x);
        srv_fail_engine(x, &error);
        return false;
    }
    /* Either this thread sees `gone`, or srv_exchange_abandon sees the job; or both, harmlessly. */
    atomic_store(&x->job, job);
    if (atomic_load(&x->gone))
        attn_job_cancel(job);
    return true;
}

const attn_result *srv_exchange_result(srv_exchange *x)
{
    return attn_job_result(atomic_load(&x->job));
}

bool srv_exchange_fail_job(srv_exchange *x)
{
    const attn_result *r = srv_exchange_result(x);
    switch (r->reason) {
    case ATTN_REASON_ERROR:
        srv_fail_engine(x, &r->error);
        return true;
    case ATTN_REASON_CANCELLED:
        srv_fail_with(x, 409, "cancelled", NULL, "the request was cancelled");
        return true;
    case ATTN_REASON_SHUTDOWN:
        srv_fail_with(x, 503, "shutting_down", NULL, "the server is shutting down");
        return true;
    case ATTN_REASON_LENGTH:
    case ATTN_REASON_STOP:
    case ATTN_REASON_STALLED:
        break;
    }
    return false;
}

/* The result, or NULL while there is none; also for who does not know whether there is a job. */
static const attn_result *result_if_done(srv_exchange *x)
{
    attn_job *job = atomic_load(&x->job);
    return job && atomic_load(&x->job_done) ? attn_job_result(job) : NULL;
}

bool srv_exchange_stalled(srv_exchange *x)
{
    const attn_result *r = result_if_done(x);
    return r && r->reason == ATTN_REASON_STALLED;
}

void srv_exchange_note_end(srv_exchange *x)
{
    const attn_result *r = result_if_done(x);
    if (!r || x->end_noted)
        return;
    x->end_noted = true;
    srv_metrics *m = x->app->metrics;
    switch (r->reason) {
    case ATTN_REASON_CANCELLED:
        srv_metrics_cancelled(m, atomic_load(&x->gone) ? SRV_METRICS_CANCEL_CLIENT_GONE
                                                       : SRV_METRICS_CANCEL_ASKED);
        break;
    case ATTN_REASON_STALLED:
        srv_metrics_cancelled(m, SRV_METRICS_CANCEL_STALLED);
        break;
    case ATTN_REASON_SHUTDOWN:
        srv_metrics_cancelled(m, SRV_METRICS_CANCEL_SHUTDOWN);
        break;
    case ATTN_REASON_LENGTH:
    case ATTN_REASON_STOP:
    case ATTN_REASON_ERROR:
        break;
    }
}

void srv_exchange_abandon(srv_exchange *x)
{
    atomic_store(&x->gone, true);
    attn_job *job = atomic_load(&x->job);
    if (job && !atomic_load(&x->job_done))
        attn_job_cancel(job);
    if (x->watcher)
        srv_watcher_leave(x->watcher);
}

/* Whether making the reply of a job that is done takes too long for the loop. */
static bool finish_is_long(srv_exchange *x)
{
    const attn_result *r = srv_exchange_result(x);
    if (r->trace)
        return true;
    if (!x->stream)
        return r->n_outputs * r->output_size + r->n_logits + r->n_tokens / 4 >= SRV_OFFLOAD_FLOATS;
    srv_stream_shape shape = srv_stream_shape_of(x->stream);
    /* A token and each of its neighbours take as long as so many floats. */
    size_t floats = shape.row_size ? shape.row_size : 8 + 6 * shape.n_logprobs;
    return srv_stream_count(x->stream) * floats >= SRV_OFFLOAD_FLOATS;
}

srv_next srv_exchange_advance(srv_exchange *x)
{
    if (atomic_load(&x->working))
        return SRV_NEXT_WAIT;
    if (x->status)
        return SRV_NEXT_REPLY;
    /* Read before the stream: the steps of a job that is done are all there. */
    bool done = atomic_load(&x->job_done);
    if (x->watcher || (x->next_line && srv_stream_front(x->stream)))
        return SRV_NEXT_STREAM;
    if (!done)
        return SRV_NEXT_WAIT;
    if (x->next_line)
        return srv_exchange_fail_job(x) ? SRV_NEXT_REPLY : SRV_NEXT_STREAM;
    if (finish_is_long(x)) {
        srv_exchange_offload(x, x->finish);
        return SRV_NEXT_WAIT;
    }
    x->finish(x);
    return SRV_NEXT_REPLY;
}

/* Makes the next line of a stream. False: none now, or none any more. */
static bool make_line(srv_exchange *x, bool keep_alive_due, bool *more)
{
    srv_buf_clear(&x->line);
    x->line_at = 0;
    switch (x->next_line(x, &x->line)) {
    case SRV_LINE:
        *more = !x->line.failed;
        return *more;
    case SRV_LINE_END:
        *more = false;
        return false;
    case SRV_LINE_WAIT:
        break;
    }
    *more = true;
    return keep_alive_due && srv_buf_puts(&x->line, ": keep-alive\n\n");
}

size_t srv_exchange_read(srv_exchange *x, char *to, size_t max, bool keep_alive_due, bool *more)
{
    size_t n = 0;
    *more = !x->line.failed; /* what there is of such a line is not sent */
    while (*more && n < max) {
        if (x->line_at == x->line.len && !make_line(x, keep_alive_due && n == 0, more))
            break;
        size_t left = x->line.len - x->line_at, now = left < max - n ? left : max - n;
        memcpy(to + n, x->line.data + x->line_at, now);
        n += now;
        x->line_at += now;
    }
    return n;
}
