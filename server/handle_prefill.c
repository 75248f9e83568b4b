#include "server/handlers.h"

#include <string.h>

#include "server/wire_blob.h"

/* Room for the text of a reply's output row besides its numbers. */
#define ROW_BYTES 128

enum {
    SESSION,
    MODEL,
    INPUTS,
    TOKENS,
    TEXT,
    ADD_SPECIAL,
    OUTPUT,
    LOGITS,
    IF_LENGTH,
    WAIT_MS,
    KV_DTYPE,
    TTL_S,
    KEEP_INPUTS,
    TRACE,
    COUNT
};

static const srv_json_field fields[COUNT] = {
    [SESSION] = {"session", SRV_JSON_STRING, false, 0, SIZE_MAX},
    [MODEL] = {"model", SRV_JSON_STRING, false, 0, SIZE_MAX},
    [INPUTS] = {"inputs", SRV_JSON_FLOAT_ROWS, false, 1, SIZE_MAX},
    [TOKENS] = {"tokens", SRV_JSON_INTEGERS, false, 1, SIZE_MAX},
    [TEXT] = {"text", SRV_JSON_STRING, false, 0, SIZE_MAX},
    [ADD_SPECIAL] = {"add_special", SRV_JSON_BOOL, false, 0, 0},
    [OUTPUT] = {"output", SRV_JSON_STRING, false, 0, SIZE_MAX},
    [LOGITS] = {"logits", SRV_JSON_BOOL, false, 0, 0},
    [IF_LENGTH] = {"if_length", SRV_JSON_INTEGER, false, 0, SRV_JSON_INTEGER_MAX},
    [WAIT_MS] = {"wait_ms", SRV_JSON_INTEGER, false, 0, SRV_WAIT_MS_MAX},
    [KV_DTYPE] = {"kv_dtype", SRV_JSON_STRING, false, 0, SIZE_MAX},
    [TTL_S] = {"ttl_s", SRV_JSON_INTEGER, false, 0, UINT32_MAX},
    [KEEP_INPUTS] = {"keep_inputs", SRV_JSON_BOOL, false, 0, 0},
    [TRACE] = {"trace", SRV_JSON_OBJECT, false, 0, SRV_TRACE_TEXT_MAX},
};

/* The model that the request is for. False if there is none: the engine says so better. */
static bool find_model(srv_exchange *x, const attn_request *request, attn_model_info *model)
{
    attn_session_info session;
    attn_error error;
    const char *name = request->model;
    if (request->session &&
        attn_session_get(x->app->engine, request->session, &session, &error) == ATTN_OK)
        name = session.model;
    ptrdiff_t index = attn_model_find(x->app->engine, name);
    if (index < 0)
        return false;
    attn_model_get(x->app->engine, (size_t)index, model);
    return true;
}

static bool read_output(srv_exchange *x, bool is_language_model)
{
    static const char *const names[] = {
        [ATTN_OUTPUT_LAST] = "last",
        [ATTN_OUTPUT_ALL] = "all",
        [ATTN_OUTPUT_NONE] = "none",
    };
    x->output = is_language_model ? ATTN_OUTPUT_NONE : ATTN_OUTPUT_LAST;
    if (!x->values[OUTPUT].present)
        return true;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!strcmp(x->values[OUTPUT].string.text, names[i])) {
            x->output = (attn_output)i;
            return true;
        }
    }
    srv_fail_field(x, "output", "output is \"last\", \"all\" or \"none\"");
    return false;
}

static bool read_kv_dtype(srv_exchange *x, const srv_json_value *value, attn_request *request)
{
    if (!value->present)
        return true;
    request->has_kv_dtype = true;
    for (int dtype = 0; dtype < ATTN_DTYPES; dtype++) {
        request->kv_dtype = (attn_dtype)dtype;
        if (!strcmp(value->string.text, attn_dtype_name(request->kv_dtype)))
            return true;
    }
    srv_fail_field(x, "kv_dtype", "kv_dtype is \"f32\", \"f16\", \"bf16\" or \"q8\"");
    return false;
}

/* Takes in what is to be appended. */
static bool read_positions(srv_exchange *x, attn_request *request)
{
    size_t given;
    srv_json_value *v = x->values;
    if (!srv_find_given(x, INPUTS, TEXT, "a prefill takes one of `inputs`, `tokens` and `text`",
                        &given))
        return false;
    if (v[ADD_SPECIAL].present && given != TEXT) {
        srv_fail_field(x, "add_special", "this field says how to take `text` in");
        return false;
    }
    x->positions_param = given <= TEXT ? fields[given].name : NULL;
    if (given == INPUTS)
        srv_take_rows(x, &v[INPUTS], request);
    if (given == TOKENS)
        srv_take_tokens(x, &v[TOKENS], request);
    if (given == TEXT) {
        request->text = v[TEXT].string.text;
        request->text_len = v[TEXT].string.len;
        srv_exchange_hold(x, request->text_len, true);
        request->has_add_special = v[ADD_SPECIAL].present;
        request->add_special = request->has_add_special && v[ADD_SPECIAL].boolean;
    }
    return true;
}

/* How many positions the request appends; a text's to within the few that its beginning makes. */
static uint64_t count_positions(srv_exchange *x, const attn_request *request, const char *model)
{
    uint32_t *tokens;
    size_t n = 0;
    attn_error error; /* whatever it is, the engine will find it again */
    if (!request->text)
        return request->n_inputs + request->n_tokens;
    if (attn_tokenize(x->app->engine, model, request->text, request->text_len, true, &tokens, &n,
                      &error) == ATTN_OK)
        attn_buffer_free(tokens);
    return n;
}

static bool check_size(srv_exchange *x, const attn_request *request, const attn_model_info *model)
{
    uint64_t rows =
        request->output == ATTN_OUTPUT_ALL ? count_positions(x, request, model->name) : 0;
    uint64_t floats = rows * model->hidden_size + (request->logits ? model->vocab_size : 0);
    return srv_check_reply_size(x, rows ? "output" : "logits", floats, srv_float_bytes(x));
}

/* How long the request's session is. */
static uint64_t session_length(srv_exchange *x, const char *session)
{
    attn_session_info info;
    attn_error error;
    return session && attn_session_get(x->app->engine, session, &info, &error) == ATTN_OK
               ? info.length
               : 0;
}

/* What of the inside is to be shown: the trace and its text are counted against --body-memory. */
static bool read_trace(srv_exchange *x, attn_request *request, const attn_model_info *model)
{
    const srv_json_value *value = &x->values[TRACE];
    if (!value->present)
        return true;
    uint64_t bytes, rows = count_positions(x, request, model->name);
    if (!srv_take_trace(x, value, model->name, rows, rows + session_length(x, request->session),
                        request, &bytes))
        return false;
    if (srv_exchange_hold(x, 3 * bytes, false))
        return true;
    srv_fail_with(x, 503, "busy_memory", NULL, "the requests in flight hold all of --body-memory");
    return false;
}

static void read_options(const srv_json_value *v, attn_request *request)
{
    if (v[IF_LENGTH].present)
        request->if_length = v[IF_LENGTH].integer;
    if (v[WAIT_MS].present)
        request->wait_ms = (uint32_t)v[WAIT_MS].integer;
    request->has_ttl = v[TTL_S].present;
    if (request->has_ttl)
        request->ttl_s = (uint32_t)v[TTL_S].integer;
    request->has_keep_inputs = v[KEEP_INPUTS].present;
    request->keep_inputs = request->has_keep_inputs && v[KEEP_INPUTS].boolean;
    request->logits = v[LOGITS].present && v[LOGITS].boolean;
}

static bool build(srv_exchange *x, attn_request *request)
{
    const srv_json_value *v = x->values;
    attn_model_info model = {0};
    if (!srv_check_session(x, &v[SESSION]))
        return false;
    request->session = v[SESSION].present ? v[SESSION].string.text : NULL;
    request->model = v[MODEL].present ? v[MODEL].string.text : NULL;
    bool found = find_model(x, request, &model);
    if (!read_positions(x, request) || !read_output(x, model.is_language_model) ||
        !read_kv_dtype(x, &v[KV_DTYPE], request))
        return false;
    request->output = x->output;
    read_options(v, request);
    return !found || (check_size(x, request, &model) && read_trace(x, request, &model));
}

static void finish(srv_exchange *x)
{
    if (srv_exchange_fail_job(x))
        return;
    const attn_result *r = srv_exchange_result(x);
    attn_model_info model = {0};
    ptrdiff_t index = attn_model_find(x->app->engine, r->session.model);
    if (index >= 0)
        attn_model_get(x->app->engine, (size_t)index, &model);
    srv_exchange_expect(x, (r->n_outputs * r->output_size + r->n_logits) * SRV_FLOAT_BYTES +
                               r->n_outputs * ROW_BYTES + r->n_tokens * SRV_ID_BYTES +
                               (r->trace ? srv_trace_text_bytes(r->trace, x->trace) : 0));
    if (x->wants_safetensors) {
        srv_blob_prefill(&x->reply, r, x->output != ATTN_OUTPUT_NONE, model.has_tokenizer,
                         x->trace);
        srv_reply(x, 200, "application/x-safetensors");
        return;
    }
    srv_wire_prefill(&x->reply, r, x->output != ATTN_OUTPUT_NONE, model.has_tokenizer, x->trace);
    srv_buf_puts(&x->reply, "\n");
    srv_reply_json(x, 200);
}

void srv_handle_prefill(srv_exchange *x)
{
    attn_request request = attn_request_init(ATTN_JOB_PREFILL);
    x->finish = finish;
    if (srv_read_kept_body(x, fields, COUNT) && build(x, &request))
        srv_exchange_submit(x, &request);
}
