/* DESIGN. The thread owns four lists: waiting (for a busy session), active, parked (sink not ready),
 * aside (looks into sessions, for the time that is left). Other threads only append to the inbox and
 * set flags, under one mutex. A turn: take the inbox, look at cancelled, waiting and parked jobs if
 * anything happened to them, run one batch, and perhaps a piece of a look. `done` and `step` callbacks
 * run on this thread. */
#include "engine/sched/scheduler.h"

#include "engine/compute/sampler.h"
#include "engine/model/tokenizer.h"
#include "engine/sched/job.h"
#include "engine/sched/run_text.h"

#include <math.h>
#include <string.h>

/* A batch's intended duration: the longest that a decoding session waits for others' prefills. */
#define BATCH_NS 8e6
/* A prefill, or a look, gets at least this many rows a turn: it ends also beside many decodes. */
#define MIN_CHUNK 16
/* Logits are computed for as many jobs at once as this many floats hold. */
#define LOGITS_FLOATS ((size_t)4 << 20)
/* While others have work, looking into sessions gets this part of the time. */
#define ASIDE_PART 10
/* How often a busy scheduler looks at waiting and parked jobs whose time may be up. */
#define LOOK_NS 10000000u

typedef struct job_list {
    attn_job *first, *last;
} job_list;

/* One job's part of a batch. */
typedef struct batch_part {
    attn_job *job;
    size_t first_row, n_rows;
    bool replay, untraced;       /* there was no memory for its trace */
    attn_trace *trace, *watched; /* of a decode step: what the job, what the observer asked for */
} batch_part;

struct attn_scheduler {
    attn_engine *engine;
    pthread_t thread;
    attn_mutex mutex;
    attn_cond cond;
    /* Guarded by mutex. */
    attn_job *inbox_first, *inbox_last;
    bool kicked, cancelled, stop;

    /* The thread's own. */
    job_list lists[ATTN_JOB_STATES];
    uint64_t next_aside_ns; /* while others have work */
    size_t next_model;
    double rate; /* multiply-adds a nanosecond, measured */
    uint64_t next_expiry_ns;
    batch_part parts[ATTN_BATCH_ROWS];
    attn_span spans[ATTN_BATCH_ROWS];
    bool finite[ATTN_BATCH_ROWS];
    size_t n_parts, n_spans, n_rows;
    float rows[4][1024]; /* head rows that a verify compares; 1024 is the most head_dim */

    /* For language models; NULL when there is none. */
    attn_sampler **samplers; /* one a compute thread */
    float *logits;           /* [n_sampled at most, vocab_size] */
    float *hidden;           /* [n_sampled at most, hidden_size] */
    size_t logits_floats;
    attn_job *sampled[ATTN_BATCH_ROWS];
    size_t n_sampled;
};

/* --------------------------------------------------------------------------------- lists */

static void list_append(job_list *list, attn_job *job)
{
    job->next = NULL;
    job->previous = list->last;
    if (list->last != NULL)
        list->last->next = job;
    else
        list->first = job;
    list->last = job;
}

static void list_remove(job_list *list, attn_job *job)
{
    *(job->previous != NULL ? &job->previous->next : &list->first) = job->next;
    *(job->next != NULL ? &job->next->previous : &list->last) = job->previous;
}

static attn_job *first_of(const attn_scheduler *s, attn_job_state state)
{
    return s->lists[state].first;
}

static void move(attn_scheduler *s, attn_job *job, attn_job_state state)
{
    list_remove(&s->lists[job->state], job);
    job->state = state;
    list_append(&s->lists[state], job);
}

/* ----------------------------------------------------------------------- ending and waiting */

static void finish(attn_scheduler *s, attn_job *job, attn_reason reason, const attn_error *error)
{
    list_remove(&s->lists[job->state], job);
    if (attn_job_finish(job, reason, error)) {
        /* Looked at again before the next batch. */
        attn_mutex_lock(&s->mutex);
        s->kicked = true;
        attn_mutex_unlock(&s->mutex);
    }
}

static void fail(attn_scheduler *s, attn_job *job, const attn_error *error)
{
    finish(s, job, ATTN_REASON_ERROR, error);
}

/* Lets each waiting job in whose session has become free, in order of arrival; ends those whose
 * time is up, and as cancelled those whose session was deleted. */
static void retry_waiting(attn_scheduler *s)
{
    uint64_t now = attn_now_ns();
    for (attn_job *job = first_of(s, ATTN_JOB_WAITING), *next; job != NULL; job = next) {
        next = job->next;
        attn_error err;
        attn_hold hold = attn_sessions_hold(s->engine->sessions, job->session, job, true);
        if (hold == ATTN_HOLD_TAKEN) {
            attn_sessions_wait(s->engine->sessions, job->session, -1);
            move(s, job, ATTN_JOB_ACTIVE);
            if (attn_job_admit(job, &err) != ATTN_OK)
                fail(s, job, &err);
        } else if (hold == ATTN_HOLD_REMOVED) {
            finish(s, job, ATTN_REASON_CANCELLED, NULL);
        } else if (now >= job->deadline_ns) {
            attn_fail(&err, ATTN_E_SESSION_BUSY, "session",
                      "the session stayed at work for another request");
            fail(s, job, &err);
        }
    }
}

/* Takes woken jobs back; ends those that were parked for too long. */
static void retry_parked(attn_scheduler *s)
{
    uint64_t now = attn_now_ns();
    for (attn_job *job = first_of(s, ATTN_JOB_PARKED), *next; job != NULL; job = next) {
        next = job->next;
        if (job->woken) {
            job->parked = false;
            move(s, job, ATTN_JOB_ACTIVE);
        } else if (now >= job->deadline_ns) {
            finish(s, job, ATTN_REASON_STALLED, NULL);
        }
    }
}

/* Parks an active job whose sink is not ready. */
static bool park(attn_scheduler *s, attn_job *job)
{
    if (job->sink.ready == NULL || job->sink.ready(job->sink.ctx))
        return false;
    /* The sink may become ready between the question and the mark: ask again after it. */
    job->woken = false;
    job->parked = true;
    if (job->sink.ready(job->sink.ctx)) {
        job->parked = false;
        return false;
    }
    job->deadline_ns = attn_now_ns() + (uint64_t)s->engine->options.stall_timeout_ms * 1000000u;
    move(s, job, ATTN_JOB_PARKED);
    return true;
}

static void end_cancelled(attn_scheduler *s, bool all)
{
    for (int state = 0; state < ATTN_JOB_STATES; state++) {
        for (attn_job *job = s->lists[state].first, *next; job != NULL; job = next) {
            next = job->next;
            if (job->cancelled)
                finish(s, job, ATTN_REASON_CANCELLED, NULL);
            else if (all)
                finish(s, job, ATTN_REASON_SHUTDOWN, NULL);
        }
    }
}

/* ------------------------------------------------------------------------------- batching */

static void set_kept_inputs(attn_span *span, const attn_session *session, uint64_t position)
{
    span->inputs = attn_session_input_row(session, position);
    span->tokens = attn_session_input_token(session, position);
}

static void add_span(attn_scheduler *s, attn_span span)
{
    s->spans[s->n_spans++] = span;
    s->n_rows += span.n_rows;
}

static batch_part *add_part(attn_scheduler *s, attn_job *job)
{
    batch_part *part = &s->parts[s->n_parts++];
    *part = (batch_part){.job = job, .first_row = s->n_rows};
    return part;
}

/* The traces of a decode step: for its own client, and for the observer. False when out of memory for
 * the former. */
static bool make_traces(attn_scheduler *s, batch_part *part, uint64_t position)
{
    attn_job *job = part->job;
    const attn_config *c = &job->session->model->config;
    attn_engine *engine = s->engine;
    attn_selection selection;
    if (job->request.has_trace)
        part->trace =
            attn_trace_create(c, &job->request.trace, &job->heads, position, 1, 0, position + 1);
    if (engine->observing && engine->observer.wants != NULL &&
        engine->observer.wants(engine->observer.ctx, job->session->id, &selection) &&
        attn_trace_check_step(c, &selection, NULL) == ATTN_OK) {
        attn_trace_heads heads;
        attn_trace_choose(c, &selection, &heads);
        part->watched = attn_trace_create(c, &selection, &heads, position, 1, 0, position + 1);
    }
    return !job->request.has_trace || part->trace != NULL;
}

/* A decode's next row: its own input, or what follows from the session's last output (itself, or the
 * token sampled from it); or, when that is not known (after a truncate), the replay of the last
 * position. */
static void add_decode(attn_scheduler *s, attn_job *job)
{
    attn_session *session = job->session;
    uint64_t length = session->length;
    batch_part *part = add_part(s, job);
    part->n_rows = 1;
    attn_span span = {.session = session, .position = length, .n_rows = 1};
    if (job->request.n_inputs > 0) {
        span.inputs = job->request.inputs + job->n_done * job->request.input_size;
    } else if (job->n_tokens > 0) {
        span.tokens = job->tokens + job->n_done;
    } else if (session->has_last_output) {
        span.inputs = session->last_output;
        span.tokens = &job->next_token;
    } else {
        part->replay = span.read_only = true;
        span.position = length - 1;
        set_kept_inputs(&span, session, length - 1);
    }
    if (!part->replay) {
        attn_session_take_pages(session, length + 1);
        part->untraced = !make_traces(s, part, length);
        span.traces[0] = part->trace;
        span.traces[1] = part->watched;
    }
    add_span(s, span);
}

/* Adds a span whose inputs are the ones that `session` keeps, in pieces: they are contiguous within
 * a page only. */
static void add_kept(attn_scheduler *s, attn_span span, const attn_session *session)
{
    size_t left = span.n_rows;
    while (left > 0) {
        size_t in_page = ATTN_PAGE_POSITIONS - span.position % ATTN_PAGE_POSITIONS;
        span.n_rows = in_page < left ? in_page : left;
        set_kept_inputs(&span, session, span.position);
        add_span(s, span);
        span.position += span.n_rows;
        left -= span.n_rows;
    }
}

/* The next rows of a prefill or verify, as many as cost allows. Returns their cost. */
static double add_chunk(attn_scheduler *s, attn_job *job, double budget)
{
    const attn_config *c = &job->session->model->config;
    attn_session *target = job->kind == ATTN_JOB_VERIFY ? job->shadow : job->session;
    uint64_t base = job->kind == ATTN_JOB_VERIFY ? 0 : job->start_length;
    uint64_t position = base + job->n_done, left = job->n_positions - job->n_done;
    size_t room = ATTN_BATCH_ROWS - s->n_rows, n = MIN_CHUNK;
    while (n < room && attn_forward_cost(c, position, n + MIN_CHUNK) <= budget)
        n += MIN_CHUNK;
    n = n < room ? n : room;
    n = n < left ? n : (size_t)left;
    attn_session_take_pages(target, position + n);
    batch_part *part = add_part(s, job);
    part->n_rows = n;
    if (job->kind == ATTN_JOB_PREFILL) {
        attn_span span = {
            .session = target, .position = position, .n_rows = n, .traces = {job->trace}};
        if (job->n_tokens > 0)
            span.tokens = job->tokens + job->n_done;
        else
            span.inputs = job->request.inputs + job->n_done * job->request.input_size;
        add_span(s, span);
    } else {
        add_kept(s, (attn_span){.session = target, .position = position, .n_rows = n},
                 job->session);
    }
    return attn_forward_cost(c, position, n);
}

/* The next rows of a look into a session. */
static double add_look(attn_scheduler *s, attn_job *job, double budget)
{
    const attn_config *c = &job->shadow->model->config;
    uint64_t position = job->request.first_query + job->n_done;
    uint64_t left = job->n_positions - job->n_done;
    size_t n = MIN_CHUNK;
    while (n < ATTN_BATCH_ROWS && attn_forward_cost(c, position, n + 1) <= budget)
        n++;
    n = n < left ? n : (size_t)left;
    batch_part *part = add_part(s, job);
    part->n_rows = n;
    add_kept(s,
             (attn_span){.session = job->shadow,
                         .position = position,
                         .n_rows = n,
                         .read_only = true,
                         .traces = {job->trace}},
             job->shadow);
    return attn_forward_cost(c, position, n);
}

/* Plans a batch of `model`: decodes first, then chunks in what they leave. */
static double plan(attn_scheduler *s, const attn_model *model)
{
    double cost = 0, budget = s->rate * BATCH_NS;
    bool chunks = false;
    s->n_parts = s->n_spans = s->n_rows = 0;
    for (const attn_job *job = first_of(s, ATTN_JOB_ACTIVE); job != NULL && !chunks;
         job = job->next)
        chunks = job->session->model == model && job->kind != ATTN_JOB_DECODE;
    size_t most = chunks ? ATTN_BATCH_ROWS - MIN_CHUNK : ATTN_BATCH_ROWS;
    for (attn_job *job = first_of(s, ATTN_JOB_ACTIVE), *next; job != NULL; job = next) {
        next = job->next;
        if (s->n_rows == most || cost > 2 * budget)
            break;
        if (job->kind != ATTN_JOB_DECODE || job->session->model != model || park(s, job))
            continue;
        if (attn_job_samples(job) && job->session->has_last_output && !job->has_next)
            continue; /* more jobs than logits had room for: its turn to sample comes next */
        cost += attn_forward_cost(&model->config, job->session->length, 1);
        add_decode(s, job);
    }
    size_t n_decodes = s->n_parts;
    for (attn_job *job = first_of(s, ATTN_JOB_ACTIVE); chunks && job != NULL; job = job->next) {
        if (s->n_rows + MIN_CHUNK > ATTN_BATCH_ROWS || (cost > budget && s->n_parts > n_decodes))
            break;
        if (job->kind != ATTN_JOB_DECODE && job->session->model == model)
            cost += add_chunk(s, job, budget > cost ? budget - cost : 0);
    }
    return cost;
}

/* -------------------------------------------------------------------------------- commit */

static void fail_overflow(attn_scheduler *s, attn_job *job, uint64_t position)
{
    attn_error err;
    attn_fail(&err, ATTN_E_NON_FINITE, job->request.n_inputs > 0 ? "inputs" : NULL,
              "the step overflowed float32 and was not committed");
    attn_error_detail(&err, "position", position);
    fail(s, job, &err);
}

/* Keeps the input of a position: a row or a token id. */
static void keep_input(attn_session *session, uint64_t position, const void *input)
{
    if (session->keep_inputs)
        memcpy(attn_session_input(session, position), input,
               attn_config_input_bytes(&session->model->config));
}

/* Input `index` of those that a job brought. */
static const void *job_input(const attn_job *job, uint64_t index)
{
    return job->n_tokens > 0 ? (const void *)(job->tokens + index)
                             : job->request.inputs + index * job->request.input_size;
}

static void set_last_output(attn_session *session, const float *row)
{
    memcpy(session->last_output, row, session->model->config.hidden_size * sizeof *row);
    session->has_last_output = true;
}

static void observe_first_output(attn_job *job, uint64_t now)
{
    attn_histogram_observe(&job->engine->ttft_seconds, (double)(now - job->submitted_ns) / 1e9);
}

static void commit_decode(attn_scheduler *s, const batch_part *part, const float *output)
{
    attn_job *job = part->job;
    attn_session *session = job->session;
    uint64_t position = session->length, now = attn_now_ns();
    if (!s->finite[part->first_row]) {
        fail_overflow(s, job, part->replay ? position - 1 : position);
        return;
    }
    if (part->untraced) {
        attn_error err;
        attn_fail(&err, ATTN_E_NO_MEMORY, NULL, "out of memory for a trace");
        fail(s, job, &err);
        return;
    }
    if (part->replay) {
        set_last_output(session, output);
        return;
    }
    bool fed = job->request.n_inputs > 0 || job->n_tokens > 0;
    const void *input = fed                     ? job_input(job, job->n_done)
                        : attn_job_samples(job) ? (const void *)&job->next_token
                                                : session->last_output;
    uint32_t token = job->n_tokens > 0 ? job->tokens[job->n_done] : job->next_token;
    keep_input(session, position, input);
    set_last_output(session, output);
    job->has_next = false;
    attn_session_commit(session, position + 1);
    job->engine->decode_steps++;
    if (job->n_done == 0)
        observe_first_output(job, now);
    else
        attn_histogram_observe(&job->engine->step_seconds, (double)(now - job->last_step_ns) / 1e9);
    job->last_step_ns = now;
    attn_step step = {
        .step = job->n_done++, .position = position, .length = position + 1, .trace = part->trace};
    if (attn_config_is_decoder(&session->model->config)) {
        step.token = token;
        step.logprobs = job->logprobs;
        step.n_logprobs = fed ? 0 : job->request.sampling.n_logprobs;
        if (job->text != NULL)
            attn_run_text_take(job->text, token, job->n_done == job->n_positions, &step.text,
                               &step.text_len);
    } else {
        step.output = output;
        step.output_size = session->model->config.hidden_size;
    }
    if (job->sink.step != NULL)
        job->sink.step(job->sink.ctx, &step);
    attn_engine_tell(s->engine, session,
                     &(attn_event){.kind = ATTN_EVENT_STEP,
                                   .step = step.step,
                                   .position = position,
                                   .has_token = attn_config_is_decoder(&session->model->config),
                                   .token = token,
                                   .text = step.text,
                                   .text_len = step.text_len,
                                   .trace = part->watched});
    if (job->n_done == job->n_positions)
        finish(s, job, ATTN_REASON_LENGTH, NULL);
}

/* Fills a prefill's `next` and logits from its last hidden row. False when they overflowed. */
static bool predict(attn_scheduler *s, attn_job *job, const float *hidden)
{
    const attn_model *model = job->session->model;
    const size_t vocab = model->config.vocab_size;
    attn_forward_logits(s->engine->forward, model, hidden, 1, s->logits);
    if (!s->engine->kernels->finite(vocab, s->logits))
        return false;
    if (job->result.n_logits > 0)
        memcpy(job->logits, s->logits, vocab * sizeof *s->logits);
    job->result.n_next = ATTN_NEXT < vocab ? ATTN_NEXT : vocab;
    attn_sampler_logprobs(s->samplers[0], s->logits, vocab, job->result.n_next, job->result.next);
    for (size_t i = 0; i < job->result.n_next; i++)
        attn_token_text(model->tokenizer, job->result.next[i].token, job->result.next[i].text,
                        ATTN_TOKEN_TEXT_MAX);
    return true;
}

static void tell_prefill(attn_scheduler *s, const attn_job *job)
{
    attn_engine_tell(s->engine, job->session,
                     &(attn_event){.kind = ATTN_EVENT_PREFILL,
                                   .n_done = job->n_done,
                                   .n_positions = job->n_positions});
}

static void commit_prefill(attn_scheduler *s, const batch_part *part, const float *outputs)
{
    attn_job *job = part->job;
    attn_session *session = job->session;
    const size_t hidden = session->model->config.hidden_size;
    for (size_t r = 0; r < part->n_rows; r++) {
        if (!s->finite[part->first_row + r]) {
            fail_overflow(s, job, job->start_length + job->n_done + r);
            return;
        }
        keep_input(session, job->start_length + job->n_done + r, job_input(job, job->n_done + r));
    }
    if (job->request.output == ATTN_OUTPUT_ALL)
        memcpy(job->outputs + job->n_done * hidden, outputs, part->n_rows * hidden * sizeof(float));
    job->n_done += part->n_rows;
    job->engine->prefill_tokens += part->n_rows;
    if (job->n_done < job->n_positions) {
        tell_prefill(s, job);
        return;
    }
    const float *last = outputs + (part->n_rows - 1) * hidden;
    if (job->request.output == ATTN_OUTPUT_LAST)
        memcpy(job->outputs, last, hidden * sizeof(float));
    if (job->n_tokens > 0 && !predict(s, job, last)) {
        fail_overflow(s, job, job->start_length + job->n_positions - 1);
        return;
    }
    set_last_output(session, last);
    attn_session_commit(session, job->start_length + job->n_positions);
    tell_prefill(s, job);
    observe_first_output(job, attn_now_ns());
    finish(s, job, ATTN_REASON_LENGTH, NULL);
}

static void compare(attn_result *result, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float left = a[i], right = b[i];
        if (memcmp(&left, &right, sizeof left) != 0)
            result->verify_bit_identical = false;
        double diff = fabs((double)left - (double)right);
        if (diff > result->verify_max_abs_diff)
            result->verify_max_abs_diff = diff;
    }
}

static void compare_blocks(attn_scheduler *s, attn_result *result, size_t head_dim, const void *a,
                           const void *b, attn_dtype dtype, size_t slot)
{
    float *k[2] = {s->rows[0], s->rows[1]}, *v[2] = {s->rows[2], s->rows[3]};
    attn_block_read(dtype, head_dim, a, slot, k[0], v[0]);
    attn_block_read(dtype, head_dim, b, slot, k[1], v[1]);
    compare(result, k[0], k[1], head_dim);
    compare(result, v[0], v[1], head_dim);
}

/* Compares the recomputed K, V and last output with the session's. */
static void commit_verify(attn_scheduler *s, const batch_part *part, const float *outputs)
{
    attn_job *job = part->job;
    const attn_session *session = job->session, *shadow = job->shadow;
    const attn_config *c = &session->model->config;
    for (size_t r = 0; r < part->n_rows; r++) {
        uint64_t position = job->n_done + r, slot = position % ATTN_PAGE_POSITIONS;
        for (size_t l = 0; l < c->num_hidden_layers; l++) {
            for (size_t h = 0; h < c->num_key_value_heads; h++)
                compare_blocks(s, &job->result, c->head_dim,
                               attn_session_block(session, position, l, h),
                               attn_session_block(shadow, position, l, h), session->kv_dtype, slot);
        }
    }
    job->n_done += part->n_rows;
    if (job->n_done < job->n_positions)
        return;
    if (session->has_last_output)
        compare(&job->result, session->last_output, outputs + (part->n_rows - 1) * c->hidden_size,
                c->hidden_size);
    finish(s, job, ATTN_REASON_LENGTH, NULL);
}

/* ----------------------------------------------------------------------------------- loop */

static void mark_started(attn_scheduler *s, attn_job *const *jobs, size_t n, uint64_t now)
{
    static const attn_session_state states[] = {
        [ATTN_JOB_PREFILL] = ATTN_SESSION_PREFILL,
        [ATTN_JOB_DECODE] = ATTN_SESSION_DECODE,
        [ATTN_JOB_VERIFY] = ATTN_SESSION_VERIFY,
    };
    for (size_t i = 0; i < n; i++) {
        attn_job *job = jobs[i];
        if (job->started)
            continue;
        job->started = true;
        job->started_ns = now;
        s->engine->n_queued--;
        s->engine->n_in_flight[job->kind]++;
        attn_histogram_observe(&s->engine->queue_seconds, (double)(now - job->submitted_ns) / 1e9);
        if (job->session != NULL)
            attn_sessions_set_state(s->engine->sessions, job->session, states[job->kind]);
    }
}

static void run_batch(attn_scheduler *s, const attn_model *model, double cost)
{
    uint64_t begin = attn_now_ns();
    for (size_t i = 0; i < s->n_parts; i++)
        mark_started(s, &s->parts[i].job, 1, begin);
    const float *outputs = attn_forward_run(s->engine->forward, model, s->spans, s->n_spans,
                                            model->config.num_hidden_layers, s->finite);
    uint64_t duration = attn_now_ns() - begin;
    double rate = cost / (double)(duration + 1);
    s->rate += 0.2 * (rate - s->rate);
    s->engine->batches++;
    attn_histogram_observe(&s->engine->batch_size, (double)s->n_rows);
    for (size_t i = 0; i < s->n_parts; i++) {
        const batch_part *part = &s->parts[i];
        attn_job *job = part->job;
        job->compute_ns += duration;
        /* To the end of the list: whoever did not fit comes first next time. */
        move(s, job, ATTN_JOB_ACTIVE);
        const float *rows = outputs + part->first_row * model->config.hidden_size;
        if (job->kind == ATTN_JOB_DECODE) {
            commit_decode(s, part, rows);
            attn_trace_release(part->trace);
            attn_trace_release(part->watched);
        } else if (job->kind == ATTN_JOB_PREFILL)
            commit_prefill(s, part, rows);
        else
            commit_verify(s, part, rows);
    }
}

/* A piece of the first look into a session, a short one if others have work. */
static void run_aside(attn_scheduler *s)
{
    attn_job *job = first_of(s, ATTN_JOB_ASIDE);
    const bool alone = first_of(s, ATTN_JOB_ACTIVE) == NULL;
    uint64_t begin = attn_now_ns();
    if (job == NULL || (!alone && begin < s->next_aside_ns))
        return;
    s->n_parts = s->n_spans = s->n_rows = 0;
    add_look(s, job, s->rate * (alone ? BATCH_NS : BATCH_NS / ASIDE_PART));
    mark_started(s, &job, 1, begin);
    attn_forward_run(s->engine->forward, job->shadow->model, s->spans, s->n_spans,
                     attn_trace_layers(job->trace), s->finite);
    uint64_t end = attn_now_ns();
    s->next_aside_ns = end + ASIDE_PART * (end - begin);
    job->compute_ns += end - begin;
    job->n_done += s->parts[0].n_rows;
    if (job->n_done == job->n_positions)
        finish(s, job, ATTN_REASON_LENGTH, NULL);
    else
        move(s, job, ATTN_JOB_ASIDE);
}

/* ------------------------------------------------------------------------------- sampling */

/* Pool item: chooses one job's next token. */
static void sample(void *ctx, size_t item, unsigned worker)
{
    attn_scheduler *s = ctx;
    attn_job *job = s->sampled[item];
    const attn_session *session = job->session;
    const size_t vocab = session->model->config.vocab_size;
    const float *logits = s->logits + item * vocab;
    s->finite[item] = s->engine->kernels->finite(vocab, logits);
    if (!s->finite[item])
        return;
    const attn_sampling *sampling = &job->request.sampling;
    job->next_token =
        attn_sampler_choose(s->samplers[worker], sampling, session, session->length, logits);
    if (sampling->n_logprobs == 0)
        return;
    attn_sampler_logprobs(s->samplers[worker], logits, vocab, sampling->n_logprobs, job->logprobs);
    for (size_t i = 0; i < sampling->n_logprobs; i++)
        attn_token_text(session->model->tokenizer, job->logprobs[i].token, job->logprobs[i].text,
                        ATTN_TOKEN_TEXT_MAX);
}

/* Whether the chosen token ends the run; it is then not appended. */
static bool ends_run(const attn_job *job)
{
    const attn_config *c = &job->session->model->config;
    const attn_sampling *sampling = &job->request.sampling;
    for (size_t i = 0; i < c->n_eos && !sampling->ignore_eos; i++) {
        if (c->eos_token_ids[i] == job->next_token)
            return true;
    }
    for (size_t i = 0; i < sampling->n_stop_token_ids; i++) {
        if (job->stop_token_ids[i] == job->next_token)
            return true;
    }
    return job->text != NULL && attn_run_text_stops(job->text, job->next_token);
}

/* Chooses the next tokens of the model's sampling jobs that know their last hidden row. */
static void sample_next(attn_scheduler *s, const attn_model *model)
{
    const size_t vocab = model->config.vocab_size, hidden = model->config.hidden_size;
    size_t most = s->logits_floats / vocab;
    most = most < ATTN_BATCH_ROWS ? most : ATTN_BATCH_ROWS;
    s->n_sampled = 0;
    for (attn_job *job = first_of(s, ATTN_JOB_ACTIVE), *next; job != NULL && s->n_sampled < most;
         job = next) {
        next = job->next;
        if (job->session->model != model || !attn_job_samples(job) || job->has_next ||
            !job->session->has_last_output || park(s, job))
            continue;
        memcpy(s->hidden + s->n_sampled * hidden, job->session->last_output,
               hidden * sizeof *s->hidden);
        s->sampled[s->n_sampled++] = job;
    }
    if (s->n_sampled == 0)
        return;
    uint64_t begin = attn_now_ns();
    mark_started(s, s->sampled, s->n_sampled, begin);
    attn_forward_logits(s->engine->forward, model, s->hidden, s->n_sampled, s->logits);
    attn_pool_run(s->engine->pool, sample, s, s->n_sampled, 10.0 * (double)(s->n_sampled * vocab));
    uint64_t duration = attn_now_ns() - begin;
    for (size_t i = 0; i < s->n_sampled; i++) {
        attn_job *job = s->sampled[i];
        job->compute_ns += duration;
        job->has_next = true;
        if (!s->finite[i])
            fail_overflow(s, job, job->session->length);
        else if (ends_run(job))
            finish(s, job, ATTN_REASON_STOP, NULL);
    }
}

/* One batch of the next model that has ready rows. None has when every run that was sampled ended;
 * others may then be left that are still to be sampled. */
static void run_next(attn_scheduler *s)
{
    for (size_t i = 0; i < s->engine->n_models && first_of(s, ATTN_JOB_ACTIVE) != NULL; i++) {
        const attn_model *model = s->engine->models[s->next_model++ % s->engine->n_models].model;
        if (attn_config_is_decoder(&model->config))
            sample_next(s, model);
        double cost = plan(s, model);
        if (s->n_parts > 0) {
            run_batch(s, model, cost);
            return;
        }
    }
}

/* When the scheduler must look again although nobody calls. */
static uint64_t next_deadline(const attn_scheduler *s)
{
    uint64_t deadline = s->engine->n_mortal > 0 ? s->next_expiry_ns : UINT64_MAX;
    static const attn_job_state states[] = {ATTN_JOB_WAITING, ATTN_JOB_PARKED};
    for (size_t i = 0; i < 2; i++) {
        for (const attn_job *job = s->lists[states[i]].first; job != NULL; job = job->next)
            deadline = job->deadline_ns < deadline ? job->deadline_ns : deadline;
    }
    return deadline;
}

/* Every stripe of the table is looked at once a second. */
static void expire(attn_scheduler *s, uint64_t now)
{
    if (s->engine->n_mortal == 0 || now < s->next_expiry_ns)
        return;
    attn_sessions_expire_some(s->engine->sessions);
    s->next_expiry_ns = now + 1000000000u / ATTN_SESSION_STRIPES;
}

/* Takes the inbox and the flags; sleeps first when there is nothing to do. Returns false at the
 * end. */
static bool collect(attn_scheduler *s, bool idle, bool *kicked, bool *cancelled)
{
    uint64_t deadline = idle ? next_deadline(s) : 0;
    attn_mutex_lock(&s->mutex);
    while (idle && s->inbox_first == NULL && !s->kicked && !s->cancelled && !s->stop &&
           attn_now_ns() < deadline)
        attn_cond_wait_until(&s->cond, &s->mutex, deadline);
    attn_job *job = s->inbox_first;
    s->inbox_first = s->inbox_last = NULL;
    *kicked = s->kicked;
    *cancelled = s->cancelled;
    s->kicked = s->cancelled = false;
    bool stop = s->stop;
    attn_mutex_unlock(&s->mutex);
    for (attn_job *next; job != NULL; job = next) {
        next = job->next;
        list_append(&s->lists[job->state], job);
        if (job->cancelled)
            *cancelled = true;
        else if (job->state != ATTN_JOB_WAITING && job->n_positions == 0)
            /* Of an empty session, or of the cache alone. */
            finish(s, job, ATTN_REASON_LENGTH, NULL);
    }
    return !stop;
}

static void *scheduler_main(void *arg)
{
    attn_scheduler *s = arg;
    attn_kernels_thread_init();
    bool idle = true, kicked, cancelled, going = true;
    uint64_t next_look_ns = 0;
    while (going) {
        going = collect(s, idle, &kicked, &cancelled);
        bool all = !going || s->engine->shutting_down;
        if (cancelled || all)
            end_cancelled(s, all);
        uint64_t now = attn_now_ns();
        if (kicked || now >= next_look_ns) {
            retry_waiting(s);
            retry_parked(s);
            next_look_ns = now + LOOK_NS;
        }
        expire(s, now);
        run_next(s);
        run_aside(s);
        idle = first_of(s, ATTN_JOB_ACTIVE) == NULL && first_of(s, ATTN_JOB_ASIDE) == NULL;
    }
    return NULL;
}

static void free_scheduler(attn_scheduler *s)
{
    for (size_t i = 0; s->samplers != NULL && i < attn_pool_threads(s->engine->pool); i++)
        attn_sampler_destroy(s->samplers[i]);
    attn_free(s->samplers);
    attn_free(s->logits);
    attn_free(s->hidden);
    attn_cond_destroy(&s->cond);
    attn_mutex_destroy(&s->mutex);
    attn_free(s);
}

/* Scratch for the language models, if there are any. False when out of memory. */
static bool create_samplers(attn_scheduler *s)
{
    const attn_engine *engine = s->engine;
    size_t vocab = 0, hidden = 0, threads = attn_pool_threads(engine->pool);
    for (size_t i = 0; i < engine->n_models; i++) {
        const attn_config *c = &engine->models[i].model->config;
        if (!attn_config_is_decoder(c))
            continue;
        vocab = c->vocab_size > vocab ? c->vocab_size : vocab;
        hidden = c->hidden_size > hidden ? c->hidden_size : hidden;
    }
    if (vocab == 0)
        return true;
    s->logits_floats = vocab > LOGITS_FLOATS ? vocab : LOGITS_FLOATS;
    s->logits = attn_alloc(s->logits_floats, sizeof *s->logits);
    s->hidden = attn_alloc(ATTN_BATCH_ROWS, hidden * sizeof *s->hidden);
    s->samplers = attn_alloc(threads, sizeof(attn_sampler *));
    bool ok = s->logits && s->hidden && s->samplers;
    for (size_t i = 0; ok && i < threads; i++) {
        s->samplers[i] = attn_sampler_create(engine->kernels, vocab);
        ok = s->samplers[i] != NULL;
    }
    return ok;
}

attn_scheduler *attn_scheduler_create(attn_engine *engine)
{
    attn_scheduler *s = attn_alloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    s->engine = engine;
    s->rate = 5;
    attn_mutex_init(&s->mutex);
    attn_cond_init(&s->cond);
    if (!create_samplers(s) || pthread_create(&s->thread, NULL, scheduler_main, s) != 0) {
        free_scheduler(s);
        return NULL;
    }
    return s;
}

void attn_scheduler_destroy(attn_scheduler *s)
{
    if (s == NULL)
        return;
    attn_mutex_lock(&s->mutex);
    s->stop = true;
    attn_cond_broadcast(&s->cond);
    attn_mutex_unlock(&s->mutex);
    pthread_join(s->thread, NULL);
    free_scheduler(s);
}

void attn_scheduler_add(attn_scheduler *s, attn_job *job)
{
    attn_mutex_lock(&s->mutex);
    job->next = NULL;
    if (s->inbox_last != NULL)
        s->inbox_last->next = job;
    else
        s->inbox_first = job;
    s->inbox_last = job;
    /* A job may have begun to wait just as its session was released. */
    if (job->state == ATTN_JOB_WAITING)
        s->kicked = true;
    attn_cond_broadcast(&s->cond);
    attn_mutex_unlock(&s->mutex);
}

void attn_scheduler_kick(attn_scheduler *s)
{
    attn_mutex_lock(&s->mutex);
    s->kicked = true;
    attn_cond_broadcast(&s->cond);
    attn_mutex_unlock(&s->mutex);
}

void attn_scheduler_kick_cancelled(attn_scheduler *s)
{
    attn_mutex_lock(&s->mutex);
    s->cancelled = true;
    attn_cond_broadcast(&s->cond);
    attn_mutex_unlock(&s->mutex);
}
