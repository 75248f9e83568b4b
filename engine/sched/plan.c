#include "engine/sched/scheduler_state.h"

#include <math.h>

/* A prefill, or a look, gets at least this many rows a turn: it ends also beside many decodes. */
#define MIN_CHUNK 12
/* So many decodes read the weights in hardly more time than one. */
#define MIN_DECODES 32
/* When nobody has decoded for so long, a chunk may cost as much as so many rows at the beginning of a
 * session: with more rows at once the weights are read less often. */
#define ALONE_NS 200000000u
#define ALONE_ROWS 64

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

static attn_batch_part *add_part(attn_scheduler *s, attn_job *job)
{
    attn_batch_part *part = &s->parts[s->n_parts++];
    *part = (attn_batch_part){.job = job, .first_row = s->n_rows};
    return part;
}

/* Whether a capture now takes no time of others, but for a burst that it may be in advance. */
static bool may_capture(const attn_scheduler *s)
{
    const attn_job_list *active = &s->lists[ATTN_JOB_ACTIVE];
    return active->first == active->last ||
           attn_capture_fits(s->captured_until_ns, (double)attn_now_ns(),
                             s->capture_ns + s->capture_cost / s->rate);
}

/* The observer's trace of a decode step, if it wants one. It is not asked for a deleted session, whose
 * steps are not told: it would take that for the next session of the name, which may be in the batch. */
static void make_watched(attn_scheduler *s, attn_batch_part *part, uint64_t position)
{
    const attn_session *session = part->job->session;
    const attn_config *c = &session->model->config;
    const attn_observer *observer = &s->engine->observer;
    attn_selection selection;
    if (!s->engine->observing || observer->wants == NULL ||
        attn_sessions_is_removed(s->engine->sessions, session) ||
        !observer->wants(observer->ctx, session->id, &selection) ||
        attn_trace_check_step(c, &selection, NULL) != ATTN_OK || !may_capture(s))
        return;
    attn_trace_heads heads;
    uint64_t begin = attn_now_ns();
    attn_trace_choose(c, &selection, &heads);
    part->watched = attn_trace_create(c, &selection, &heads, position, 1, 0, position + 1);
    s->capture_ns += (double)(attn_now_ns() - begin);
    if (part->watched != NULL)
        s->capture_cost += attn_trace_cost(part->watched, c->head_dim);
}

/* The traces of a decode step: for its own client, and for the observer. False when out of memory for
 * the former. */
static bool make_traces(attn_scheduler *s, attn_batch_part *part, uint64_t position)
{
    attn_job *job = part->job;
    make_watched(s, part, position);
    if (!job->request.has_trace)
        return true;
    part->trace = attn_trace_create(&job->session->model->config, &job->request.trace, &job->heads,
                                    position, 1, 0, position + 1);
    return part->trace != NULL;
}

/* A decode's next row: its own input, or what follows from the session's last output (itself, or the
 * token sampled from it); or, when that is not known (after a truncate), the replay of the last
 * position. */
static void add_decode(attn_scheduler *s, attn_job *job)
{
    attn_session *session = job->session;
    uint64_t length = session->length;
    attn_batch_part *part = add_part(s, job);
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
    attn_batch_part *part = add_part(s, job);
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

void attn_plan_look(attn_scheduler *s, attn_job *job, double budget)
{
    const attn_config *c = &job->view->model->config;
    uint64_t position = job->request.first_query + job->n_done;
    uint64_t left = job->n_positions - job->n_done;
    size_t n = MIN_CHUNK;
    while (n < ATTN_BATCH_ROWS && attn_forward_cost(c, position, n + 1) <= budget)
        n++;
    n = n < left ? n : (size_t)left;
    attn_batch_part *part = add_part(s, job);
    part->n_rows = n;
    add_kept(s,
             (attn_span){.session = job->view,
                         .position = position,
                         .n_rows = n,
                         .read_only = true,
                         .traces = {job->trace}},
             job->view);
}

/* Whether some job of `model` has chunks, and whether a decode of any model may be ready. */
static void find_work(const attn_scheduler *s, const attn_model *model, bool *chunks, bool *decodes)
{
    *chunks = *decodes = false;
    for (const attn_job *job = attn_sched_first(s, ATTN_JOB_ACTIVE);
         job != NULL && !(*chunks && *decodes); job = job->next) {
        *decodes |= job->kind == ATTN_JOB_DECODE;
        *chunks |= job->kind != ATTN_JOB_DECODE && job->session->model == model;
    }
}

void attn_plan_batch(attn_scheduler *s, const attn_model *model)
{
    bool chunks, decodes;
    double budget = s->rate * ATTN_BATCH_NS;
    find_work(s, model, &chunks, &decodes);
    if (!decodes && attn_now_ns() > s->last_decode_ns + ALONE_NS)
        budget = fmax(budget, attn_forward_cost(&model->config, 0, ALONE_ROWS));
    chunks = chunks && (!decodes || s->chunk_debt_ns <= 0);
    s->n_parts = s->n_spans = s->n_rows = 0;
    s->decode_cost = s->chunk_cost = s->capture_cost = s->capture_ns = 0;
    size_t most = chunks ? ATTN_BATCH_ROWS - MIN_CHUNK : ATTN_BATCH_ROWS;
    for (attn_job *job = attn_sched_first(s, ATTN_JOB_ACTIVE), *next; job != NULL; job = next) {
        next = job->next;
        const double weights =
            attn_forward_cost(&model->config, 0, s->n_rows < MIN_DECODES ? s->n_rows : MIN_DECODES);
        if (s->n_rows == most || s->decode_cost - weights > 2 * budget)
            break;
        if (job->kind != ATTN_JOB_DECODE || job->session->model != model || attn_sched_park(s, job))
            continue;
        if (attn_job_samples(job) && job->session->has_last_output && !job->has_next)
            continue; /* more jobs than logits had room for: its turn to sample comes next */
        s->decode_cost += attn_forward_cost(&model->config, job->session->length, 1);
        add_decode(s, job);
    }
    for (attn_job *job = attn_sched_first(s, ATTN_JOB_ACTIVE); chunks && job != NULL;
         job = job->next) {
        const double cost = s->decode_cost + s->chunk_cost;
        if (s->n_rows + MIN_CHUNK > ATTN_BATCH_ROWS || (cost > budget && s->chunk_cost > 0))
            break;
        if (job->kind != ATTN_JOB_DECODE && job->session->model == model)
            s->chunk_cost += add_chunk(s, job, budget > cost ? budget - cost : 0);
    }
}
