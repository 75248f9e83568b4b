#include "server/handlers.h"

#include <stdlib.h>
#include <string.h>

/* Text of one float in a reply, comma and brackets included: what a reply is refused by, before any
 * work is done. */
#define REPLY_BYTES_PER_FLOAT 16

#define WAIT_MS_MAX 3600000

/* ------------------------------------------------------------------------------ /prefill */

enum {
    P_SESSION,
    P_MODEL,
    P_INPUTS,
    P_OUTPUT,
    P_IF_LENGTH,
    P_WAIT_MS,
    P_KV_DTYPE,
    P_TTL_S,
    P_KEEP_INPUTS,
    P_FIELDS_OF_LANGUAGE_MODELS,
    P_TOKENS = P_FIELDS_OF_LANGUAGE_MODELS,
    P_TEXT,
    P_ADD_SPECIAL,
    P_LOGITS,
    P_COUNT
};

static const srv_json_field prefill_fields[P_COUNT] = {
    [P_SESSION] = {"session", SRV_JSON_STRING, false, 0, SIZE_MAX},
    [P_MODEL] = {"model", SRV_JSON_STRING, false, 0, SIZE_MAX},
    [P_INPUTS] = {"inputs", SRV_JSON_FLOAT_ROWS, false, 1, SIZE_MAX},
    [P_OUTPUT] = {"output", SRV_JSON_STRING, false, 0, SIZE_MAX},
    [P_IF_LENGTH] = {"if_length", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
    [P_WAIT_MS] = {"wait_ms", SRV_JSON_INTEGER, false, 0, WAIT_MS_MAX},
    [P_KV_DTYPE] = {"kv_dtype", SRV_JSON_STRING, false, 0, SIZE_MAX},
    [P_TTL_S] = {"ttl_s", SRV_JSON_INTEGER, false, 0, UINT32_MAX},
    [P_KEEP_INPUTS] = {"keep_inputs", SRV_JSON_BOOL, false, 0, 0},
    [P_TOKENS] = {"tokens", SRV_JSON_INTEGERS, false, 0, SIZE_MAX},
    [P_TEXT] = {"text", SRV_JSON_STRING, false, 0, SIZE_MAX},
    [P_ADD_SPECIAL] = {"add_special", SRV_JSON_BOOL, false, 0, 0},
    [P_LOGITS] = {"logits", SRV_JSON_BOOL, false, 0, 0},
};

static void fail_field(srv_exchange *x, const char *param, const char *message)
{
    srv_fail_with(x, 400, "invalid_request", param, message);
}

/* Fails x if a field stands there that only language models understand. */
static bool refuse_language_fields(srv_exchange *x, const srv_json_field *fields,
                                   const srv_json_value *values, size_t first, size_t n)
{
    for (size_t i = first; i < n; i++) {
        if (values[i].present) {
            fail_field(x, fields[i].name,
                       "only language models take this field; this model takes rows (`inputs`)");
            return false;
        }
    }
    return true;
}

/* Takes the rows out of their value. */
static void take_rows(srv_exchange *x, srv_json_value *value, attn_request *request)
{
    x->inputs = value->floats.values;
    request->inputs = x->inputs;
    request->n_inputs = value->floats.rows;
    request->input_size = value->floats.cols;
    value->floats.values = NULL;
    srv_exchange_hold(x, request->n_inputs * request->input_size * sizeof(float), true);
}

static bool check_session(srv_exchange *x, const srv_json_value *value)
{
    const char *session = value->present ? value->string.text : NULL;
    if (session && !attn_session_id_valid(session)) {
        fail_field(x, "session", "a session id is 1-64 of A-Z a-z 0-9 . _ : - and not . or ..");
        return false;
    }
    return srv_check_x_session(x, session);
}

static bool read_output(srv_exchange *x, const srv_json_value *value)
{
    static const char *const names[] = {
        [ATTN_OUTPUT_LAST] = "last",
        [ATTN_OUTPUT_ALL] = "all",
        [ATTN_OUTPUT_NONE] = "none",
    };
    if (!value->present)
        return true; /* zero is `last` */
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!strcmp(value->string.text, names[i])) {
            x->output = (attn_output)i;
            return true;
        }
    }
    fail_field(x, "output", "output is \"last\", \"all\" or \"none\"");
    return false;
}

static bool read_kv_dtype(srv_exchange *x, const srv_json_value *value, attn_request *request)
{
    static const char *const later[] = {"f16", "bf16", "q8"};
    if (!value->present)
        return true;
    request->has_kv_dtype = true;
    request->kv_dtype = ATTN_F32;
    if (!strcmp(value->string.text, attn_dtype_name(ATTN_F32)))
        return true;
    for (size_t i = 0; i < sizeof(later) / sizeof(later[0]); i++) {
        if (!strcmp(value->string.text, later[i])) {
            srv_fail_with(x, 501, "not_supported", "kv_dtype",
                          "only the cache dtype \"f32\" is built yet");
            return false;
        }
    }
    fail_field(x, "kv_dtype", "kv_dtype is \"f32\", \"f16\", \"bf16\" or \"q8\"");
    return false;
}

/* Fails x if the text of that many floats would be larger than the largest body. */
static bool check_reply_size(srv_exchange *x, const char *param, uint64_t rows, uint64_t row_size)
{
    uint64_t floats, bytes;
    if (__builtin_mul_overflow(rows, row_size, &floats) ||
        __builtin_mul_overflow(floats, (uint64_t)REPLY_BYTES_PER_FLOAT, &bytes))
        bytes = SRV_JSON_INTEGER_MAX;
    if (bytes <= x->app->config->max_body_bytes) {
        srv_exchange_expect(x, bytes, rows);
        return true;
    }
    srv_fail(x, &(srv_error){
                    .status = 413,
                    .code = "tensor_too_large",
                    .message = "the reply would be larger than --max-body",
                    .param = param,
                    .n_details = 1,
                    .details = {{"bytes", bytes}},
                });
    return false;
}

static void finish_prefill(srv_exchange *x)
{
    if (srv_exchange_fail_job(x))
        return;
    srv_wire_prefill(&x->reply, srv_exchange_result(x), x->output != ATTN_OUTPUT_NONE);
    srv_buf_puts(&x->reply, "\n");
    srv_reply_json(x, 200);
}

static bool build_prefill(srv_exchange *x, srv_json_value *v, attn_request *request)
{
    if (!check_session(x, &v[P_SESSION]) ||
        !refuse_language_fields(x, prefill_fields, v, P_FIELDS_OF_LANGUAGE_MODELS, P_COUNT) ||
        !read_output(x, &v[P_OUTPUT]) || !read_kv_dtype(x, &v[P_KV_DTYPE], request))
        return false;
    if (!v[P_INPUTS].present) {
        fail_field(x, "inputs", "a prefill takes rows of hidden_size numbers in `inputs`");
        return false;
    }
    x->rows_param = "inputs";
    request->session = v[P_SESSION].present ? v[P_SESSION].string.text : NULL;
    request->model = v[P_MODEL].present ? v[P_MODEL].string.text : NULL;
    take_rows(x, &v[P_INPUTS], request);
    if (x->output == ATTN_OUTPUT_ALL &&
        !check_reply_size(x, "output", request->n_inputs, request->input_size))
        return false;
    request->output = x->output;
    if (v[P_IF_LENGTH].present)
        request->if_length = v[P_IF_LENGTH].integer;
    if (v[P_WAIT_MS].present)
        request->wait_ms = (uint32_t)v[P_WAIT_MS].integer;
    request->has_ttl = v[P_TTL_S].present;
    if (request->has_ttl)
        request->ttl_s = (uint32_t)v[P_TTL_S].integer;
    request->has_keep_inputs = v[P_KEEP_INPUTS].present;
    if (request->has_keep_inputs)
        request->keep_inputs = v[P_KEEP_INPUTS].boolean;
    return true;
}

void srv_handle_prefill(srv_exchange *x)
{
    srv_json_value values[P_COUNT];
    if (!srv_read_body(x, prefill_fields, P_COUNT, values))
        return;
    attn_request request = attn_request_init(ATTN_JOB_PREFILL);
    x->finish = finish_prefill;
    if (build_prefill(x, values, &request))
        srv_exchange_submit(x, &request);
    srv_json_values_free(prefill_fields, P_COUNT, values);
}

/* ------------------------------------------------------------------------------- /decode */

enum {
    D_SESSION,
    D_MODEL,
    D_INPUT,
    D_INPUTS,
    D_STEPS,
    D_STREAM,
    D_IF_LENGTH,
    D_WAIT_MS,
    D_FIELDS_OF_LANGUAGE_MODELS,
    D_TOKEN = D_FIELDS_OF_LANGUAGE_MODELS,
    D_TOKENS,
    D_TEXT,
    D_LOGITS,
    D_TEMPERATURE,
    D_TOP_K,
    D_TOP_P,
    D_MIN_P,
    D_REPETITION_PENALTY,
    D_SEED,
    D_STOP,
    D_STOP_TOKEN_IDS,
    D_IGNORE_EOS,
    D_LOGPROBS,
    D_COUNT
};

static const srv_json_field decode_fields[D_COUNT] = {
    [D_SESSION] = {"session", SRV_JSON_STRING, true, 0, SIZE_MAX},
    [D_MODEL] = {"model", SRV_JSON_STRING, false, 0, SIZE_MAX},
    [D_INPUT] = {"input", SRV_JSON_FLOAT_ROW, false, 1, SIZE_MAX},
    [D_INPUTS] = {"inputs", SRV_JSON_FLOAT_ROWS, false, 1, SIZE_MAX},
    [D_STEPS] = {"steps", SRV_JSON_INTEGER, false, 1, SRV_JSON_INTEGER_MAX},
    [D_STREAM] = {"stream", SRV_JSON_BOOL, false, 0, 0},
    [D_IF_LENGTH] = {"if_length", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
    [D_WAIT_MS] = {"wait_ms", SRV_JSON_INTEGER, false, 0, WAIT_MS_MAX},
    [D_TOKEN] = {"token", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
    [D_TOKENS] = {"tokens", SRV_JSON_INTEGERS, false, 0, SIZE_MAX},
    [D_TEXT] = {"text", SRV_JSON_STRING, false, 0, SIZE_MAX},
    [D_LOGITS] = {"logits", SRV_JSON_BOOL, false, 0, 0},
    [D_TEMPERATURE] = {"temperature", SRV_JSON_NUMBER, false, 0, 0},
    [D_TOP_K] = {"top_k", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
    [D_TOP_P] = {"top_p", SRV_JSON_NUMBER, false, 0, 0},
    [D_MIN_P] = {"min_p", SRV_JSON_NUMBER, false, 0, 0},
    [D_REPETITION_PENALTY] = {"repetition_penalty", SRV_JSON_NUMBER, false, 0, 0},
    [D_SEED] = {"seed", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
    [D_STOP] = {"stop", SRV_JSON_STRING, false, 0, SIZE_MAX},
    [D_STOP_TOKEN_IDS] = {"stop_token_ids", SRV_JSON_INTEGERS, false, 0, SIZE_MAX},
    [D_IGNORE_EOS] = {"ignore_eos", SRV_JSON_BOOL, false, 0, 0},
    [D_LOGPROBS] = {"logprobs", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
};

static void finish_decode(srv_exchange *x)
{
    const attn_result *r = srv_exchange_result(x);
    if (r->steps == 0 && srv_exchange_fail_job(x))
        return;
    if (srv_stream_broken(x->stream)) {
        srv_fail_with(x, 500, "internal", NULL, "steps were lost");
        return;
    }
    srv_wire_done(&x->reply, r, x->stream);
    srv_buf_puts(&x->reply, "\n");
    srv_reply_json(x, 200);
}

/* The next line of a streamed run: a step, or at last the done object. */
static srv_line next_line(srv_exchange *x, srv_buf *line)
{
    if (x->line_done)
        return SRV_LINE_END;
    /* Read before the stream: the steps of a job that is done are all there. */
    bool done = atomic_load(&x->job_done);
    const srv_step *step = srv_stream_front(x->stream);
    if (!step && !done)
        return SRV_LINE_WAIT;
    if (x->wants_sse)
        srv_buf_puts(line, "data: ");
    if (step) {
        srv_wire_step(line, step, srv_stream_row_size(x->stream));
        if (srv_stream_pop(x->stream))
            attn_job_wake(atomic_load(&x->job));
    } else {
        srv_wire_done(line, srv_exchange_result(x), NULL);
        x->line_done = true;
    }
    srv_buf_puts(line, x->wants_sse ? "\n\n" : "\n");
    return SRV_LINE;
}

/* The width of a decode's rows: of its input, or of the session's model. Zero if x has failed. */
static size_t decode_row_size(srv_exchange *x, const attn_request *request)
{
    if (request->inputs)
        return request->input_size;
    attn_session_info session;
    attn_error error;
    if (attn_session_get(x->app->engine, request->session, &session, &error) != ATTN_OK) {
        srv_fail_engine(x, &error);
        return 0;
    }
    ptrdiff_t index = attn_model_find(x->app->engine, session.model);
    if (index < 0) {
        srv_fail_with(x, 500, "internal", NULL, "the session's model is gone");
        return 0;
    }
    attn_model_info model;
    attn_model_get(x->app->engine, (size_t)index, &model);
    return model.hidden_size;
}

/* Makes the stream that the steps go to: a ring that is read as it fills, or, for one reply, room
 * for all of them. */
static bool open_stream(srv_exchange *x, const attn_request *request, bool streamed)
{
    size_t row_size = decode_row_size(x, request);
    if (!row_size)
        return false;
    size_t n_slots = srv_stream_slots(row_size);
    if (!streamed) {
        uint64_t steps = request->inputs ? request->n_inputs : request->steps;
        if (!check_reply_size(x, x->rows_param, steps, row_size))
            return false;
        n_slots = (size_t)steps;
        if (!srv_exchange_hold(x, srv_stream_bytes(n_slots, row_size), false)) {
            srv_fail_with(x, 503, "busy_memory", NULL,
                          "the requests in flight hold all of --body-memory");
            return false;
        }
    }
    x->stream = srv_stream_create(n_slots, row_size);
    if (!x->stream)
        srv_fail_with(x, 503, "busy_memory", NULL, "out of memory");
    return x->stream;
}

static bool build_decode(srv_exchange *x, srv_json_value *v, attn_request *request)
{
    if (!check_session(x, &v[D_SESSION]) ||
        !refuse_language_fields(x, decode_fields, v, D_FIELDS_OF_LANGUAGE_MODELS, D_COUNT))
        return false;
    if (v[D_INPUT].present && v[D_INPUTS].present) {
        fail_field(x, "inputs", "a decode takes `input` or `inputs`, not both");
        return false;
    }
    if (v[D_STEPS].present && (v[D_INPUT].present || v[D_INPUTS].present)) {
        fail_field(x, "steps", "rows given as input are one step each: `steps` goes without them");
        return false;
    }
    request->session = v[D_SESSION].string.text;
    request->model = v[D_MODEL].present ? v[D_MODEL].string.text : NULL;
    if (request->model && attn_model_find(x->app->engine, request->model) < 0) {
        srv_fail_with(x, 404, "model_not_found", "model", "no model has that name");
        return false;
    }
    request->steps = v[D_STEPS].present ? v[D_STEPS].integer : 1;
    x->rows_param = "steps";
    for (size_t i = D_INPUT; i <= D_INPUTS; i++) {
        if (v[i].present) {
            take_rows(x, &v[i], request);
            x->rows_param = decode_fields[i].name;
        }
    }
    if (v[D_IF_LENGTH].present)
        request->if_length = v[D_IF_LENGTH].integer;
    if (v[D_WAIT_MS].present)
        request->wait_ms = (uint32_t)v[D_WAIT_MS].integer;
    return true;
}

void srv_handle_decode(srv_exchange *x)
{
    srv_json_value values[D_COUNT];
    if (!srv_read_body(x, decode_fields, D_COUNT, values))
        return;
    attn_request request = attn_request_init(ATTN_JOB_DECODE);
    bool streamed = values[D_STREAM].present && values[D_STREAM].boolean;
    x->finish = finish_decode;
    if (build_decode(x, values, &request) && open_stream(x, &request, streamed)) {
        /* Set before the job can wake anybody, but looked at only with a job or a reply there. */
        x->next_line = streamed ? next_line : NULL;
        srv_exchange_submit(x, &request);
    }
    srv_json_values_free(decode_fields, D_COUNT, values);
}
