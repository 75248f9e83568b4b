#include "server/handlers.h"

#include <string.h>

#include "server/wire_blob.h"

/* Text of a step without its row, of one of its logprobs: what a reply is refused by. Texts may make
 * them longer: each byte becomes six at most. */
#define STEP_BYTES 128
#define LOGPROB_BYTES 64
#define ESCAPE_BYTES 6

#define STOP_TOKEN_IDS_MAX 1024

enum {
    SESSION,
    MODEL,
    INPUT,
    INPUTS,
    TOKEN,
    TOKENS,
    STEPS,
    STREAM,
    IF_LENGTH,
    WAIT_MS,
    TEXT,
    LOGITS,
    FIRST_OF_SAMPLING,
    TEMPERATURE = FIRST_OF_SAMPLING,
    TOP_K,
    TOP_P,
    MIN_P,
    REPETITION_PENALTY,
    SEED,
    STOP,
    STOP_TOKEN_IDS,
    IGNORE_EOS,
    LOGPROBS,
    TRACE,
    COUNT
};

static const srv_json_field fields[COUNT] = {
    [SESSION] = {"session", SRV_JSON_STRING, true, 0, SIZE_MAX},
    [MODEL] = {"model", SRV_JSON_STRING, false, 0, SIZE_MAX},
    [INPUT] = {"input", SRV_JSON_FLOAT_ROW, false, 1, SIZE_MAX},
    [INPUTS] = {"inputs", SRV_JSON_FLOAT_ROWS, false, 1, SIZE_MAX},
    [TOKEN] = {"token", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
    [TOKENS] = {"tokens", SRV_JSON_INTEGERS, false, 1, SIZE_MAX},
    [STEPS] = {"steps", SRV_JSON_INTEGER, false, 1, SRV_JSON_INTEGER_MAX},
    [STREAM] = {"stream", SRV_JSON_BOOL, false, 0, 0},
    [IF_LENGTH] = {"if_length", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
    [WAIT_MS] = {"wait_ms", SRV_JSON_INTEGER, false, 0, SRV_WAIT_MS_MAX},
    [TEXT] = {"text", SRV_JSON_STRING, false, 0, SIZE_MAX},
    [LOGITS] = {"logits", SRV_JSON_BOOL, false, 0, 0},
    [TEMPERATURE] = {"temperature", SRV_JSON_NUMBER, false, 0, 0},
    [TOP_K] = {"top_k", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
    [TOP_P] = {"top_p", SRV_JSON_NUMBER, false, 0, 0},
    [MIN_P] = {"min_p", SRV_JSON_NUMBER, false, 0, 0},
    [REPETITION_PENALTY] = {"repetition_penalty", SRV_JSON_NUMBER, false, 0, 0},
    [SEED] = {"seed", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
    [STOP] = {"stop", SRV_JSON_STRINGS, false, 1, ATTN_STOP_MAX},
    [STOP_TOKEN_IDS] = {"stop_token_ids", SRV_JSON_INTEGERS, false, 0, STOP_TOKEN_IDS_MAX},
    [IGNORE_EOS] = {"ignore_eos", SRV_JSON_BOOL, false, 0, 0},
    [LOGPROBS] = {"logprobs", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
    [TRACE] = {"trace", SRV_JSON_OBJECT, false, 0, SRV_TRACE_TEXT_MAX},
};

/* ------------------------------------------------------------------------------ the reply */

/* The most that the texts of the run make of its reply, in its steps and once more in all, and the
 * traces. */
static uint64_t count_text_bytes(srv_exchange *x, const attn_result *r)
{
    uint64_t n = r->text_len, trace = 0;
    for (size_t i = 0; i < srv_stream_count(x->stream); i++) {
        const attn_step *step = srv_stream_at(x->stream, i);
        n += step->text_len;
        trace += step->trace ? srv_trace_text_bytes(step->trace, x->trace) : 0;
    }
    return n * 2 * ESCAPE_BYTES + trace;
}

static void finish(srv_exchange *x)
{
    const attn_result *r = srv_exchange_result(x);
    if (r->steps == 0 && srv_exchange_fail_job(x))
        return;
    if (srv_stream_broken(x->stream)) {
        srv_fail_with(x, 500, "internal", NULL, "steps were lost");
        return;
    }
    srv_stream_shape shape = srv_stream_shape_of(x->stream);
    uint64_t logprob_bytes = LOGPROB_BYTES + ESCAPE_BYTES * ATTN_TOKEN_TEXT_MAX;
    uint64_t step_bytes =
        STEP_BYTES + shape.row_size * SRV_FLOAT_BYTES + shape.n_logprobs * logprob_bytes;
    srv_exchange_expect(x, (srv_stream_count(x->stream) + 1) * step_bytes + count_text_bytes(x, r));
    if (x->wants_safetensors) {
        srv_blob_run(&x->reply, r, x->samples, x->stream, x->trace);
        srv_reply(x, 200, "application/x-safetensors");
        return;
    }
    srv_wire_run(&x->reply, r, x->samples, x->stream, x->trace);
    srv_buf_puts(&x->reply, "\n");
    srv_reply_json(x, 200);
}

/* A line's bytes of tensors that the loop makes itself; larger ones are made off it. */
#define LOOP_TRACE_BYTES ((size_t)16 * 1024)

static void put_step(srv_exchange *x, srv_buf *line, const attn_step *step)
{
    srv_buf_puts(line, x->wants_sse ? "data: " : "");
    srv_wire_step(line, step, x->trace);
    srv_buf_puts(line, x->wants_sse ? "\n\n" : "\n");
}

/* Off the loop: makes the line of the oldest step. */
static void prepare_line(srv_exchange *x)
{
    srv_buf_clear(&x->prepared);
    put_step(x, &x->prepared, srv_stream_front(x->stream));
}

/* Takes the oldest step's line, perhaps one that was prepared. False: it is being prepared. */
static bool take_step(srv_exchange *x, srv_buf *line, const attn_step *step)
{
    if (x->prepared.len || x->prepared.failed) {
        srv_buf swap = *line;
        *line = x->prepared;
        x->prepared = swap;
        srv_buf_clear(&x->prepared);
    } else if (step->trace && srv_tensors_bytes(step->trace) > LOOP_TRACE_BYTES) {
        srv_exchange_offload(x, prepare_line);
        return false;
    } else {
        put_step(x, line, step);
    }
    if (srv_stream_pop(x->stream))
        attn_job_wake(atomic_load(&x->job));
    return true;
}

/* The next line of a streamed run: a step, or at last the done object. */
static srv_line next_line(srv_exchange *x, srv_buf *line)
{
    if (x->line_done)
        return SRV_LINE_END;
    if (atomic_load(&x->working))
        return SRV_LINE_WAIT;
    /* Read before the stream: the steps of a job that is done are all there. */
    bool done = atomic_load(&x->job_done);
    const attn_step *step = srv_stream_front(x->stream);
    if (!step && !done)
        return SRV_LINE_WAIT;
    if (step)
        return take_step(x, line, step) ? SRV_LINE : SRV_LINE_WAIT;
    srv_buf_puts(line, x->wants_sse ? "data: " : "");
    srv_wire_done(line, srv_exchange_result(x), x->samples, srv_stream_broken(x->stream));
    srv_buf_puts(line, x->wants_sse ? "\n\n" : "\n");
    x->line_done = true;
    return SRV_LINE;
}

/* ---------------------------------------------------------------------------- the request */

/* The model of the request's session. Fails x if there is no such session. */
static bool find_model(srv_exchange *x, const attn_request *request, attn_model_info *model)
{
    attn_session_info session;
    attn_error error;
    if (request->model && attn_model_find(x->app->engine, request->model) < 0) {
        srv_fail_with(x, 404, "model_not_found", "model", "no model has that name");
        return false;
    }
    if (attn_session_get(x->app->engine, request->session, &session, &error) != ATTN_OK) {
        srv_fail_engine(x, &error);
        return false;
    }
    ptrdiff_t index = attn_model_find(x->app->engine, session.model);
    if (index < 0) {
        srv_fail_with(x, 500, "internal", NULL, "the session's model is gone");
        return false;
    }
    attn_model_get(x->app->engine, (size_t)index, model);
    return true;
}

/* Fails x if one of these fields is given. */
static bool refuse(srv_exchange *x, size_t first, size_t last, const char *message)
{
    for (size_t i = first; i <= last; i++) {
        if (x->values[i].present) {
            srv_fail_field(x, fields[i].name, message);
            return false;
        }
    }
    return true;
}

/* Takes in what is to be fed, and how many steps that makes. */
static bool read_positions(srv_exchange *x, attn_request *request)
{
    size_t given;
    srv_json_value *v = x->values;
    if (!srv_find_given(x, INPUT, STEPS,
                        "a decode takes one of `input`, `inputs`, `token`, `tokens` (one step "
                        "each) and `steps`",
                        &given) ||
        !refuse(x, TEXT, LOGITS, "/prefill takes this field"))
        return false;
    x->positions_param = given <= STEPS ? fields[given].name : "steps";
    request->steps = 1;
    if (given == INPUT || given == INPUTS) {
        srv_take_rows(x, &v[given], request);
        request->steps = request->n_inputs;
    } else if (given == TOKENS) {
        srv_take_tokens(x, &v[TOKENS], request);
        request->steps = request->n_tokens;
    } else if (given == TOKEN) {
        x->token = srv_narrow(v[TOKEN].integer);
        request->tokens = &x->token;
        request->n_tokens = 1;
    } else if (given == STEPS) {
        request->steps = v[STEPS].integer;
    }
    return true;
}

static void read_number(const srv_json_value *value, float *number)
{
    if (value->present)
        *number = (float)value->number;
}

static void read_sampling(srv_json_value *v, attn_sampling *s)
{
    read_number(&v[TEMPERATURE], &s->temperature);
    read_number(&v[TOP_P], &s->top_p);
    read_number(&v[MIN_P], &s->min_p);
    read_number(&v[REPETITION_PENALTY], &s->repetition_penalty);
    if (v[TOP_K].present)
        s->top_k = srv_narrow(v[TOP_K].integer);
    if (v[LOGPROBS].present)
        s->n_logprobs = srv_narrow(v[LOGPROBS].integer);
    s->has_seed = v[SEED].present;
    if (s->has_seed)
        s->seed = v[SEED].integer;
    s->ignore_eos = v[IGNORE_EOS].present && v[IGNORE_EOS].boolean;
    if (v[STOP].present) {
        s->stop = (const char *const *)v[STOP].strings.texts;
        s->n_stop = v[STOP].strings.count;
    }
    if (v[STOP_TOKEN_IDS].present) {
        s->stop_token_ids = srv_narrow_ids(&v[STOP_TOKEN_IDS]);
        s->n_stop_token_ids = v[STOP_TOKEN_IDS].integers.count;
    }
}

static bool build(srv_exchange *x, attn_request *request, attn_model_info *model)
{
    srv_json_value *v = x->values;
    if (!srv_check_session(x, &v[SESSION]) || !read_positions(x, request))
        return false;
    bool fed = request->n_inputs || request->n_tokens;
    if (fed && !refuse(x, FIRST_OF_SAMPLING, LOGPROBS,
                       "what is given is appended as it is: this field goes with `steps`"))
        return false;
    request->session = v[SESSION].string.text;
    request->model = v[MODEL].present ? v[MODEL].string.text : NULL;
    if (!find_model(x, request, model))
        return false;
    if (!model->is_language_model &&
        !refuse(x, FIRST_OF_SAMPLING, LOGPROBS,
                "only language models take this field; the session's model takes rows (`inputs`)"))
        return false;
    x->samples = model->is_language_model && !fed;
    read_sampling(v, &request->sampling);
    if (v[IF_LENGTH].present)
        request->if_length = v[IF_LENGTH].integer;
    if (v[WAIT_MS].present)
        request->wait_ms = (uint32_t)v[WAIT_MS].integer;
    return true;
}

/* What of each step's inside is to be shown. *bytes: of the largest step, the last. */
static bool read_trace(srv_exchange *x, attn_request *request, const attn_model_info *model,
                       uint64_t *bytes)
{
    const uint64_t limit = model->max_position_embeddings;
    uint64_t n_keys = limit;
    attn_session_info session;
    attn_error error;
    if (attn_session_get(x->app->engine, request->session, &session, &error) == ATTN_OK &&
        request->steps < limit && session.length + request->steps < limit)
        n_keys = session.length + request->steps;
    return srv_take_trace(x, &x->values[TRACE], model->name, 1, n_keys, request, bytes);
}

/* Makes the stream that the steps go to: a ring that is read as it fills, or, for one reply, room
 * for all of them. */
static bool open_stream(srv_exchange *x, const attn_request *request, const attn_model_info *model,
                        uint64_t trace_bytes, bool streamed)
{
    srv_stream_shape shape = {.row_size = model->hidden_size};
    if (model->is_language_model) {
        uint32_t n = request->sampling.n_logprobs;
        shape = (srv_stream_shape){.n_logprobs = n < ATTN_LOGPROBS_MAX ? n : ATTN_LOGPROBS_MAX};
    }
    shape.trace_bytes = (size_t)trace_bytes;
    size_t n_slots = srv_stream_slots(shape);
    if (!streamed) {
        uint64_t bytes = shape.row_size ? shape.row_size * srv_float_bytes(x)
                                        : STEP_BYTES + shape.n_logprobs * LOGPROB_BYTES;
        if (!srv_check_reply_size(x, x->positions_param, request->steps,
                                  bytes + shape.trace_bytes / 3 * 4))
            return false;
        n_slots = (size_t)request->steps;
    }
    if ((!streamed || shape.trace_bytes) &&
        !srv_exchange_hold(x, srv_stream_bytes(n_slots, shape), false)) {
        srv_fail_with(x, 503, "busy_memory", NULL,
                      "the requests in flight hold all of --body-memory");
        return false;
    }
    /* One step's line may be longer than any body. */
    x->line.limit = x->prepared.limit = x->line.limit + 2 * (size_t)trace_bytes;
    x->stream = srv_stream_create(n_slots, shape);
    if (!x->stream)
        srv_fail_with(x, 503, "busy_memory", NULL, "out of memory");
    return x->stream;
}

/* Whether the run can be told in the form that the client takes. */
static bool check_form(srv_exchange *x, const attn_request *request, bool streamed)
{
    if (streamed && x->takes_only_safetensors) {
        srv_fail_with(x, 406, "not_acceptable", NULL,
                      "a stream is application/x-ndjson or text/event-stream");
        return false;
    }
    if (!streamed && x->wants_safetensors && x->trace && request->steps > 1) {
        srv_fail_field(x, "trace", "a safetensors reply has room for the inside of one step");
        return false;
    }
    return true;
}

void srv_handle_decode(srv_exchange *x)
{
    attn_request request = attn_request_init(ATTN_JOB_DECODE);
    attn_model_info model;
    x->finish = finish;
    uint64_t trace_bytes;
    if (!srv_read_kept_body(x, fields, COUNT) || !build(x, &request, &model) ||
        !read_trace(x, &request, &model, &trace_bytes))
        return;
    bool streamed = x->values[STREAM].present && x->values[STREAM].boolean;
    if (!check_form(x, &request, streamed) ||
        !open_stream(x, &request, &model, trace_bytes, streamed))
        return;
    /* Set before the job can wake anybody, but looked at only with a job or a reply there. */
    x->next_line = streamed ? next_line : NULL;
    srv_exchange_submit(x, &request);
}
