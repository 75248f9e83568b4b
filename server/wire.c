#include "server/wire.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/json/json_write.h"

static const struct {
    unsigned status;
    const char *code;
} engine_errors[] = {
    [ATTN_E_INVALID] = {400, "invalid_request"},
    [ATTN_E_CONTEXT_LENGTH] = {400, "context_length_exceeded"},
    [ATTN_E_TOKEN_RANGE] = {400, "token_out_of_range"},
    [ATTN_E_SESSION_NOT_FOUND] = {404, "session_not_found"},
    [ATTN_E_MODEL_NOT_FOUND] = {404, "model_not_found"},
    [ATTN_E_SESSION_BUSY] = {409, "session_busy"},
    [ATTN_E_SESSION_EXISTS] = {409, "session_exists"},
    [ATTN_E_LENGTH_MISMATCH] = {409, "length_mismatch"},
    [ATTN_E_MODEL_MISMATCH] = {409, "model_mismatch"},
    [ATTN_E_INPUTS_NOT_KEPT] = {409, "inputs_not_kept"},
    [ATTN_E_CANCELLED] = {409, "cancelled"},
    [ATTN_E_NON_FINITE] = {422, "non_finite"},
    [ATTN_E_QUEUE_FULL] = {429, "queue_full"},
    [ATTN_E_TOO_MANY_SESSIONS] = {429, "too_many_sessions"},
    [ATTN_E_KV_BUDGET] = {507, "kv_budget_exceeded"},
    [ATTN_E_SHUTTING_DOWN] = {503, "shutting_down"},
    [ATTN_E_NOT_SUPPORTED] = {501, "not_supported"},
    [ATTN_E_TENSOR_NOT_FOUND] = {404, "tensor_not_found"},
    [ATTN_E_TENSOR_TOO_LARGE] = {413, "tensor_too_large"},
    [ATTN_E_NO_MEMORY] = {503, "busy_memory"},
};

srv_error srv_error_of_engine(const attn_error *error)
{
    srv_error e = {.status = 500, .code = "internal", .message = error->message};
    size_t status = (size_t)error->status;
    if (status < sizeof(engine_errors) / sizeof(engine_errors[0]) && engine_errors[status].code) {
        e.status = engine_errors[status].status;
        e.code = engine_errors[status].code;
    }
    e.param = error->param;
    e.n_details = error->n_details;
    for (unsigned i = 0; i < error->n_details; i++) {
        e.details[i].name = error->details[i].name;
        e.details[i].value = error->details[i].value;
    }
    return e;
}

static void put_string(srv_buf *b, const char *s)
{
    srv_json_string(b, s, strlen(s));
}

/* The shortest of the usual three precisions that reads back to the same double. */
static void put_double(srv_buf *b, double v)
{
    char text[40];
    if (!isfinite(v)) {
        b->failed = true;
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    srv_buf_puts(b, text);
}

void srv_wire_error(srv_buf *b, const srv_error *e)
{
    srv_buf_printf(b, "{\"code\":\"%s\",\"message\":", e->code);
    put_string(b, e->message);
    srv_buf_puts(b, ",\"param\":");
    if (e->param)
        put_string(b, e->param);
    else
        srv_buf_puts(b, "null");
    if (e->n_details) {
        srv_buf_puts(b, ",\"details\":{");
        for (unsigned i = 0; i < e->n_details; i++)
            srv_buf_printf(b, "%s\"%s\":%" PRIu64, i ? "," : "", e->details[i].name,
                           e->details[i].value);
        srv_buf_puts(b, "}");
    }
    srv_buf_puts(b, "}");
}

void srv_wire_kv(srv_buf *b, const attn_kv_info *kv, bool with_dtype)
{
    srv_buf_puts(b, "{");
    if (with_dtype)
        srv_buf_printf(b, "\"dtype\":\"%s\",", attn_dtype_name(kv->dtype));
    srv_buf_printf(b,
                   "\"bytes\":%" PRIu64 ",\"shared_bytes\":%" PRIu64 ",\"reserved_bytes\":%" PRIu64
                   ",\"pages\":%" PRIu64 "}",
                   kv->bytes, kv->shared_bytes, kv->reserved_bytes, kv->n_pages);
}

void srv_wire_session(srv_buf *b, const attn_session_info *info)
{
    srv_buf_puts(b, "{\"session\":");
    put_string(b, info->id);
    srv_buf_puts(b, ",\"model\":");
    put_string(b, info->model);
    srv_buf_printf(b, ",\"length\":%" PRIu64 ",\"state\":\"%s\",\"kv\":", info->length,
                   attn_session_state_name(info->state));
    srv_wire_kv(b, &info->kv, true);
    srv_buf_printf(b,
                   ",\"inputs_bytes\":%" PRIu64 ",\"created\":%" PRId64 ",\"last_used\":%" PRId64
                   ",\"ttl_s\":%" PRIu32 ",\"in_flight\":%s}",
                   info->inputs_bytes, info->created_s, info->last_used_s, info->ttl_s,
                   info->in_flight ? "true" : "false");
}

void srv_wire_totals(srv_buf *b, const attn_totals *t)
{
    srv_buf_printf(b, "{\"sessions\":%" PRIu64 ",\"positions\":%" PRIu64 ",\"kv\":", t->sessions,
                   t->positions);
    srv_wire_kv(b, &t->kv, false);
    srv_buf_printf(b,
                   ",\"inputs_bytes\":%" PRIu64 ",\"budget_bytes\":%" PRIu64
                   ",\"available_bytes\":%" PRIu64 "}",
                   t->inputs_bytes, t->budget_bytes, t->available_bytes);
}

/* What config.json calls a dtype. */
static const char *torch_dtype(attn_dtype dtype)
{
    static const char *const names[ATTN_DTYPES] = {
        [ATTN_F32] = "float32",
        [ATTN_BF16] = "bfloat16",
        [ATTN_F16] = "float16",
        [ATTN_Q8] = "q8",
    };
    return names[dtype];
}

/* What only language models have. */
static void put_language_fields(srv_buf *b, const attn_model_info *m)
{
    srv_buf_printf(b,
                   ",\"vocab_size\":%" PRIu32 ",\"intermediate_size\":%" PRIu32
                   ",\"attention_bias\":%s,\"tie_word_embeddings\":%s,\"tokenizer\":%s",
                   m->vocab_size, m->intermediate_size, m->attention_bias ? "true" : "false",
                   m->tie_word_embeddings ? "true" : "false", m->has_tokenizer ? "true" : "false");
    if (m->num_experts)
        srv_buf_printf(b, ",\"num_experts\":%" PRIu32 ",\"num_experts_per_tok\":%" PRIu32,
                       m->num_experts, m->num_experts_per_tok);
}

static void put_example(srv_buf *b, const attn_model_info *m)
{
    srv_buf_puts(b, ",\"example\":{\"model\":");
    put_string(b, m->name);
    if (m->has_tokenizer) {
        srv_buf_puts(b, ",\"text\":\"Once upon a time\"}");
    } else if (m->is_language_model) {
        srv_buf_puts(b, ",\"tokens\":[0]}");
    } else {
        srv_buf_puts(b, ",\"inputs\":[[1");
        for (uint32_t i = 1; i < m->hidden_size; i++)
            srv_buf_puts(b, ",0");
        srv_buf_puts(b, "]]}");
    }
}

static const char *tensor_axes(attn_tensor_kind kind)
{
    if (attn_tensor_has_keys(kind))
        return attn_tensor_has_heads(kind) ? "\"heads\",\"queries\",\"keys\""
                                           : "\"keys\",\"kv_heads\",\"head_dim\"";
    if (attn_tensor_has_heads(kind))
        return "\"queries\",\"heads\",\"head_dim\"";
    return attn_tensor_has_kv_heads(kind) ? "\"queries\",\"kv_heads\",\"head_dim\""
                                          : "\"queries\",\"hidden_size\"";
}

/* What of its inside can be looked at: the names with {l} for the layer, and the axes. */
static void put_tensors(srv_buf *b, const attn_engine *engine, size_t index)
{
    const char *comma = "";
    srv_buf_puts(b, ",\"tensors\":[");
    for (int kind = 0; kind < ATTN_TENSOR_KINDS; kind++) {
        const attn_selection one = {.tensors = 1u << kind};
        char name[ATTN_TENSOR_NAME_MAX];
        attn_error error;
        if (attn_selection_check(engine, index, &one, &error) != ATTN_OK)
            continue;
        attn_tensor_name((attn_tensor_kind)kind, 0, name);
        const int before = (int)strcspn(name, "0");
        srv_buf_printf(b, "%s{\"name\":\"%.*s", comma, before, name);
        if (name[before])
            srv_buf_printf(b, "{l}%s", name + before + 1);
        srv_buf_printf(b, "\",\"axes\":[%s]}", tensor_axes((attn_tensor_kind)kind));
        comma = ",";
    }
    srv_buf_puts(b, "]");
}

void srv_wire_model(srv_buf *b, const attn_engine *engine, size_t index, const srv_config *config)
{
    attn_model_info m;
    attn_model_get(engine, index, &m);
    srv_buf_puts(b, "{\"name\":");
    put_string(b, m.name);
    srv_buf_printf(b,
                   ",\"model_type\":\"%s\",\"built_in\":%s,\"random_weights\":%s"
                   ",\"hidden_size\":%" PRIu32 ",\"num_hidden_layers\":%" PRIu32
                   ",\"num_attention_heads\":%" PRIu32 ",\"num_key_value_heads\":%" PRIu32
                   ",\"head_dim\":%" PRIu32 ",\"max_position_embeddings\":%" PRIu64
                   ",\"rope_theta\":",
                   m.model_type, m.built_in ? "true" : "false", m.random_weights ? "true" : "false",
                   m.hidden_size, m.num_hidden_layers, m.num_attention_heads, m.num_key_value_heads,
                   m.head_dim, m.max_position_embeddings);
    put_double(b, m.rope_theta);
    srv_buf_puts(b, ",\"rms_norm_eps\":");
    put_double(b, m.rms_norm_eps);
    srv_buf_printf(b,
                   ",\"qk_norm\":%s,\"torch_dtype\":\"%s\",\"parameters\":%" PRIu64
                   ",\"weights_bytes\":%" PRIu64 ",\"kv_bytes_per_position\":",
                   m.qk_norm ? "true" : "false", torch_dtype(m.weights_dtype), m.n_parameters,
                   m.weights_bytes);
    for (int dtype = 0; dtype < ATTN_DTYPES; dtype++)
        srv_buf_printf(b, "%s\"%s\":%" PRIu64, dtype ? "," : "{",
                       attn_dtype_name((attn_dtype)dtype), m.kv_bytes_per_position[dtype]);
    srv_buf_printf(b, "},\"input_bytes_per_position\":%" PRIu64 ",\"sessions\":%" PRIu64,
                   m.input_bytes_per_position, m.n_sessions);
    if (m.is_language_model)
        put_language_fields(b, &m);
    srv_buf_printf(b,
                   ",\"numerics\":%d,\"kernels\":\"%s\",\"threads\":%u"
                   ",\"limits\":{\"page_positions\":%d,\"max_body_bytes\":%" PRIu64
                   ",\"max_sessions\":%" PRIu64 ",\"queue\":%" PRIu64 "}",
                   ATTN_NUMERICS, attn_engine_kernels(engine), attn_engine_threads(engine),
                   ATTN_PAGE_POSITIONS, config->max_body_bytes, config->max_sessions,
                   config->queue);
    put_tensors(b, engine, index);
    put_example(b, &m);
    srv_buf_puts(b, "}");
}

void srv_wire_timing(srv_buf *b, const attn_result *r)
{
    srv_buf_puts(b, "{\"queue_ms\":");
    srv_json_ms(b, r->queue_ms);
    srv_buf_puts(b, ",\"compute_ms\":");
    srv_json_ms(b, r->compute_ms);
    srv_buf_puts(b, "}");
}

void srv_wire_logprobs(srv_buf *b, const attn_logprob *logprobs, size_t n, bool with_text)
{
    for (size_t i = 0; i < n; i++) {
        srv_buf_printf(b, "%s{\"token\":%" PRIu32, i ? "," : "[", logprobs[i].token);
        if (with_text) {
            srv_buf_puts(b, ",\"text\":");
            put_string(b, logprobs[i].text);
        }
        srv_buf_puts(b, ",\"logprob\":");
        srv_json_float(b, logprobs[i].logprob);
        srv_buf_puts(b, "}");
    }
    srv_buf_puts(b, n ? "]" : "[]");
}

/* What a language model adds to the reply of a prefill. */
static void put_prediction(srv_buf *b, const attn_result *r, bool with_text)
{
    srv_buf_puts(b, ",\"tokens\":");
    srv_json_u32s(b, r->tokens, r->n_tokens);
    srv_buf_puts(b, ",\"next\":");
    srv_wire_logprobs(b, r->next, r->n_next, with_text);
    if (r->n_logits) {
        srv_buf_puts(b, ",\"logits\":");
        srv_json_floats(b, r->logits, r->n_logits);
    }
}

void srv_wire_prefill(srv_buf *b, const attn_result *r, bool with_output, bool with_text,
                      const srv_trace *trace)
{
    srv_buf_puts(b, "{\"session\":");
    put_string(b, r->session.id);
    srv_buf_puts(b, ",\"model\":");
    put_string(b, r->session.model);
    srv_buf_printf(b, ",\"length\":%" PRIu64 ",\"appended\":%" PRIu64, r->session.length,
                   r->appended);
    if (with_output) {
        srv_buf_puts(b, ",\"output\":");
        srv_json_rows(b, r->outputs, r->n_outputs, r->output_size);
    }
    if (r->n_next)
        put_prediction(b, r, with_text);
    if (r->trace)
        srv_wire_trace(b, r->trace, trace);
    srv_buf_puts(b, ",\"kv\":");
    srv_wire_kv(b, &r->session.kv, true);
    srv_buf_puts(b, ",\"timing\":");
    srv_wire_timing(b, r);
    srv_buf_puts(b, "}");
}

/* What a step brought: its row, or its token. */
static void put_output(srv_buf *b, const attn_step *step)
{
    if (step->output) {
        srv_buf_puts(b, ",\"output\":");
        srv_json_floats(b, step->output, step->output_size);
    } else {
        srv_buf_printf(b, ",\"token\":%" PRIu32, step->token);
    }
}

void srv_wire_step(srv_buf *b, const attn_step *step, const srv_trace *trace)
{
    srv_buf_printf(b, "{\"step\":%" PRIu64 ",\"position\":%" PRIu64 ",\"length\":%" PRIu64,
                   step->step, step->position, step->length);
    put_output(b, step);
    if (step->text) {
        srv_buf_puts(b, ",\"text\":");
        srv_json_string(b, step->text, step->text_len);
    }
    if (step->n_logprobs) {
        srv_buf_puts(b, ",\"logprobs\":");
        srv_wire_logprobs(b, step->logprobs, step->n_logprobs, step->text);
    }
    if (step->trace)
        srv_wire_trace(b, step->trace, trace);
    srv_buf_puts(b, "}");
}

/* What every done object has, without the brace that closes it. */
static void put_done(srv_buf *b, const attn_result *r, bool sampled, const srv_error *error)
{
    srv_buf_puts(b, "{\"done\":true,\"session\":");
    put_string(b, r->session.id);
    srv_buf_printf(b, ",\"reason\":\"%s\",\"length\":%" PRIu64 ",\"steps\":%" PRIu64,
                   attn_reason_name(error ? ATTN_REASON_ERROR : r->reason), r->session.length,
                   r->steps);
    if (sampled)
        srv_buf_printf(b, ",\"seed\":%" PRIu64, r->seed);
    srv_buf_puts(b, ",\"timing\":");
    srv_wire_timing(b, r);
    if (error) {
        srv_buf_puts(b, ",\"error\":");
        srv_wire_error(b, error);
    }
}

static const srv_error lost_steps = {
    .status = 500,
    .code = "internal",
    .message = "steps were lost",
};

void srv_wire_done(srv_buf *b, const attn_result *r, bool sampled, bool lost)
{
    srv_error error = lost ? lost_steps : srv_error_of_engine(&r->error);
    put_done(b, r, sampled, lost || r->reason == ATTN_REASON_ERROR ? &error : NULL);
    if (r->text_len) {
        srv_buf_puts(b, ",\"text\":");
        srv_json_string(b, r->text, r->text_len);
    }
    srv_buf_puts(b, "}");
}

void srv_wire_whole_text(srv_buf *b, const attn_result *r, srv_stream *steps)
{
    for (size_t i = 0; i < srv_stream_count(steps); i++) {
        const attn_step *step = srv_stream_at(steps, i);
        srv_buf_append(b, step->text, step->text_len);
    }
    srv_buf_append(b, r->text, r->text_len);
}

static void put_whole_text(srv_buf *b, const attn_result *r, srv_stream *steps)
{
    srv_buf text;
    srv_buf_init(&text, SIZE_MAX);
    srv_wire_whole_text(&text, r, steps);
    srv_buf_puts(b, ",\"text\":");
    srv_json_string(b, text.data, text.len);
    b->failed |= text.failed;
    srv_buf_free(&text);
}

void srv_wire_run(srv_buf *b, const attn_result *r, bool sampled, srv_stream *steps,
                  const srv_trace *trace)
{
    srv_error error = srv_error_of_engine(&r->error);
    size_t n = srv_stream_count(steps);
    put_done(b, r, sampled, r->reason == ATTN_REASON_ERROR ? &error : NULL);
    srv_buf_puts(b, ",\"events\":[");
    for (size_t i = 0; i < n; i++) {
        if (i)
            srv_buf_puts(b, ",");
        srv_wire_step(b, srv_stream_at(steps, i), trace);
    }
    srv_buf_puts(b, "]");
    if (n == 1)
        put_output(b, srv_stream_at(steps, 0));
    if (r->text)
        put_whole_text(b, r, steps);
    srv_buf_puts(b, "}");
}

void srv_wire_verify(srv_buf *b, const attn_result *r)
{
    srv_buf_printf(b, "{\"length\":%" PRIu64 ",\"max_abs_diff\":", r->session.length);
    put_double(b, r->verify_max_abs_diff);
    srv_buf_printf(b, ",\"bit_identical\":%s}", r->verify_bit_identical ? "true" : "false");
}
