#include "engine/sched/job.h"

#include "engine/model/tokenizer.h"
#include "engine/sched/look.h"
#include "engine/sched/scheduler.h"
#include "engine/sched/run_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define SEED_LIMIT ((uint64_t)1 << 53)

attn_request attn_request_init(attn_job_kind kind)
{
    return (attn_request){.kind = kind,
                          .if_length = UINT64_MAX,
                          .end_query = UINT64_MAX,
                          .end_key = UINT64_MAX,
                          .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f}};
}

bool attn_session_id_valid(const char *id)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";
    size_t len = strnlen(id, ATTN_ID_MAX + 1);
    return len >= 1 && len <= ATTN_ID_MAX && strspn(id, allowed) == len && strcmp(id, ".") != 0 &&
           strcmp(id, "..") != 0;
}

/* Forgets what admission made, so that the job can be admitted anew. */
static void drop_preparations(attn_job *job)
{
    free(job->tokens);
    attn_free(job->outputs);
    attn_free(job->logits);
    attn_free(job->stop_token_ids);
    attn_run_text_destroy(job->text);
    attn_trace_release(job->trace);
    job->trace = job->result.trace = NULL;
    job->tokens = job->stop_token_ids = NULL;
    job->outputs = job->logits = NULL;
    job->text = NULL;
    job->n_tokens = 0;
    job->prepared = false;
}

static void free_job(attn_job *job)
{
    drop_preparations(job);
    attn_free(job);
}

static void unreference(attn_job *job)
{
    if (--job->references == 0)
        free_job(job);
}

/* ---------------------------------------------------------------------------- admission */

static attn_status check_request(const attn_request *r, attn_error *err)
{
    if (r->session != NULL && !attn_session_id_valid(r->session))
        return attn_fail(err, ATTN_E_INVALID, "session",
                         "a session id is 1-64 characters of A-Z a-z 0-9 . _ : -");
    if (r->kind == ATTN_JOB_TENSOR && r->tensor >= ATTN_TENSOR_KINDS)
        return attn_fail(err, ATTN_E_TENSOR_NOT_FOUND, "name", "no tensor is called so");
    if (r->session == NULL && r->kind != ATTN_JOB_PREFILL)
        return attn_fail(err, ATTN_E_INVALID, "session", "the session is missing");
    if (r->kind == ATTN_JOB_DECODE && r->n_inputs == 0 && r->n_tokens == 0 && r->steps == 0)
        return attn_fail(err, ATTN_E_INVALID, "steps", "at least one step is needed");
    return ATTN_OK;
}

static attn_status check_sampling(const attn_sampling *s, attn_error *err)
{
    static const char range[] = "out of range";
    if (!(s->temperature >= 0.0f && s->temperature <= 100.0f))
        return attn_fail(err, ATTN_E_INVALID, "temperature", "%s: 0 to 100", range);
    if (!(s->top_p > 0.0f && s->top_p <= 1.0f))
        return attn_fail(err, ATTN_E_INVALID, "top_p", "%s: above 0, to 1", range);
    if (!(s->min_p >= 0.0f && s->min_p <= 1.0f))
        return attn_fail(err, ATTN_E_INVALID, "min_p", "%s: 0 to 1", range);
    if (!(s->repetition_penalty >= 0.01f && s->repetition_penalty <= 100.0f))
        return attn_fail(err, ATTN_E_INVALID, "repetition_penalty", "%s: 0.01 to 100", range);
    if (s->has_seed && s->seed >= SEED_LIMIT)
        return attn_fail(err, ATTN_E_INVALID, "seed", "%s: below 2^53", range);
    if (s->n_logprobs > ATTN_LOGPROBS_MAX)
        return attn_fail(err, ATTN_E_INVALID, "logprobs", "%s: 0 to 20", range);
    if (s->n_stop > ATTN_STOP_MAX)
        return attn_fail(err, ATTN_E_INVALID, "stop", "at most 16 texts");
    for (size_t i = 0; i < s->n_stop; i++) {
        size_t len = strlen(s->stop[i]);
        if (len == 0 || len > ATTN_STOP_BYTES_MAX)
            return attn_fail(err, ATTN_E_INVALID, "stop", "a text has 1 to %d bytes",
                             ATTN_STOP_BYTES_MAX);
    }
    return ATTN_OK;
}

attn_status attn_job_check_options(const attn_request *r, const attn_session *session,
                                   attn_error *err)
{
    if (r->model != NULL && strcmp(r->model, session->model->name) != 0)
        return attn_fail(err, ATTN_E_MODEL_MISMATCH, "model",
                         "the session belongs to another model");
    const char *param = NULL;
    if (r->has_keep_inputs && r->keep_inputs != session->keep_inputs)
        param = "keep_inputs";
    else if (r->has_ttl && r->ttl_s != session->ttl_s)
        param = "ttl_s";
    else if (r->has_kv_dtype && r->kv_dtype != session->kv_dtype)
        param = "kv_dtype";
    if (param != NULL)
        return attn_fail(err, ATTN_E_SESSION_EXISTS, param,
                         "the session exists and was created with another value");
    return ATTN_OK;
}

/* A decoder's ids: copied, or encoded from text; checked against the vocabulary. */
static attn_status take_tokens(attn_job *job, const attn_model *model, bool special,
                               attn_error *err)
{
    const attn_request *r = &job->request;
    if (r->text != NULL) {
        if (model->tokenizer == NULL)
            return attn_fail(err, ATTN_E_INVALID, "text", "the model has no tokenizer.json");
        attn_ids ids = {0};
        attn_status status = attn_tokenizer_encode(model->tokenizer, r->text, r->text_len, special,
                                                   special, &ids, err);
        if (status != ATTN_OK) {
            attn_ids_free(&ids);
            return status;
        }
        job->tokens = ids.data;
        job->n_tokens = ids.n;
        if (job->n_tokens == 0)
            return attn_fail(err, ATTN_E_INVALID, "text", "the text gives no token");
    } else if (r->n_tokens > 0) {
        job->tokens = malloc(r->n_tokens * sizeof *job->tokens);
        if (job->tokens == NULL)
            return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory for the tokens");
        memcpy(job->tokens, r->tokens, r->n_tokens * sizeof *job->tokens);
        job->n_tokens = r->n_tokens;
    }
    for (size_t i = 0; i < job->n_tokens; i++) {
        if (job->tokens[i] >= model->config.vocab_size) {
            attn_fail(err, ATTN_E_TOKEN_RANGE, r->text != NULL ? "text" : "tokens",
                      "a token id is outside the model's vocabulary");
            attn_error_detail(err, "index", i);
            attn_error_detail(err, "limit", model->config.vocab_size);
            return ATTN_E_TOKEN_RANGE;
        }
    }
    return ATTN_OK;
}

static attn_status take_rows(const attn_job *job, const attn_model *model, attn_error *err)
{
    const attn_request *r = &job->request;
    const char *param = r->text != NULL ? "text" : r->n_tokens > 0 ? "tokens" : NULL;
    if (param != NULL)
        return attn_fail(err, ATTN_E_INVALID, param, "this model takes rows (inputs)");
    if (r->logits)
        return attn_fail(err, ATTN_E_INVALID, "logits", "this model has no logits");
    if (r->n_inputs > 0 && r->input_size != model->config.hidden_size)
        return attn_fail(err, ATTN_E_INVALID, "inputs",
                         "a row of this model has %u values (its hidden_size)",
                         (unsigned)model->config.hidden_size);
    return ATTN_OK;
}

/* Takes the request's rows or tokens in, which will stand after `length` positions; again when a
 * text was taken in for another beginning. */
static attn_status take_inputs(attn_job *job, const attn_model *model, uint64_t length,
                               attn_error *err)
{
    const attn_request *r = &job->request;
    bool special = r->has_add_special ? r->add_special : length == 0;
    attn_status status;
    if (job->prepared && (r->text == NULL || job->special == special))
        return ATTN_OK;
    drop_preparations(job);
    if (!attn_config_is_decoder(&model->config))
        status = take_rows(job, model, err);
    else if (r->n_inputs > 0)
        status = attn_fail(err, ATTN_E_INVALID, "inputs", "this model takes tokens or text");
    else if (r->has_keep_inputs && !r->keep_inputs)
        status = attn_fail(err, ATTN_E_INVALID, "keep_inputs",
                           "a language model always keeps its token ids");
    else
        status = take_tokens(job, model, special, err);
    job->prepared = status == ATTN_OK;
    job->special = special;
    return status;
}

/* Takes the request's rows or tokens in and checks that they fit after `length` positions. */
static attn_status prepare(attn_job *job, const attn_model *model, uint64_t length, attn_error *err)
{
    const attn_request *r = &job->request;
    bool decoder = attn_config_is_decoder(&model->config);
    attn_status status = take_inputs(job, model, length, err);
    if (status != ATTN_OK)
        return status;
    job->n_positions = decoder ? job->n_tokens : r->n_inputs;
    const char *param = r->n_inputs > 0 ? "inputs" : r->text != NULL ? "text" : "tokens";
    if (job->n_positions == 0 && r->kind == ATTN_JOB_DECODE) {
        job->n_positions = r->steps;
        param = "steps";
    }
    if (r->kind == ATTN_JOB_PREFILL && job->n_positions == 0)
        return attn_fail(err, ATTN_E_INVALID, decoder ? "tokens" : "inputs",
                         "at least one position is needed");
    uint64_t limit = model->config.max_position_embeddings;
    if (r->kind != ATTN_JOB_VERIFY && (length > limit || job->n_positions > limit - length)) {
        attn_fail(err, ATTN_E_CONTEXT_LENGTH, param,
                  "the session would grow past the model's max_position_embeddings");
        attn_error_detail(err, "length", length);
        attn_error_detail(err, "requested", job->n_positions);
        attn_error_detail(err, "limit", limit);
        return ATTN_E_CONTEXT_LENGTH;
    }
    return ATTN_OK;
}

/* What a sampling run keeps of its request. */
static attn_status prepare_sampling(attn_job *job, attn_error *err)
{
    attn_sampling *s = &job->request.sampling;
    const attn_session *session = job->session;
    const attn_model *model = session->model;
    if (job->kind != ATTN_JOB_DECODE || !attn_config_is_decoder(&model->config))
        return ATTN_OK;
    if (s->n_stop > 0 && model->tokenizer == NULL)
        return attn_fail(err, ATTN_E_INVALID, "stop", "the model has no tokenizer.json");
    if (!s->has_seed) {
        if (getrandom(&s->seed, sizeof s->seed, GRND_NONBLOCK) < 0)
            s->seed = attn_now_ns();
        s->seed %= SEED_LIMIT;
    }
    if (s->n_logprobs > model->config.vocab_size)
        s->n_logprobs = model->config.vocab_size;
    job->result.seed = s->seed;
    job->stop_token_ids = attn_alloc(s->n_stop_token_ids, sizeof *job->stop_token_ids);
    if (job->stop_token_ids == NULL)
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory for a job");
    if (s->n_stop_token_ids > 0)
        memcpy(job->stop_token_ids, s->stop_token_ids, s->n_stop_token_ids * sizeof(uint32_t));
    if (model->tokenizer == NULL)
        return ATTN_OK;
    /* A character may lie across the end of the session so far: its beginning is in these. */
    uint64_t first = session->length > ATTN_TEXT_CONTEXT ? session->length - ATTN_TEXT_CONTEXT : 0;
    while (first > 0 &&
           attn_token_continues(model->tokenizer, *attn_session_input_token(session, first)))
        first--;
    job->text = attn_run_text_create(model->tokenizer, first == 0, s->stop,
                                     job->n_tokens > 0 ? 0 : s->n_stop);
    if (job->text == NULL)
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory for a job");
    for (uint64_t p = first; p < session->length; p++)
        attn_run_text_prime(job->text, *attn_session_input_token(session, p));
    return ATTN_OK;
}

/* The cache that a verify recomputes into: a session that stands in no table. */
static attn_status make_shadow(attn_job *job, attn_error *err)
{
    attn_engine *engine = job->engine;
    const attn_session *session = job->session;
    size_t m = 0;
    while (engine->models[m].model != session->model)
        m++;
    uint64_t record = attn_session_record_bytes(session->model);
    attn_status status = attn_arena_reserve(engine->arena, record, err);
    if (status != ATTN_OK)
        return status;
    attn_session *shadow = attn_session_new("", session->model, engine->arena,
                                            engine->models[m].pages[session->kv_dtype][false],
                                            session->kv_dtype, false, 0);
    if (shadow == NULL) {
        attn_arena_unreserve(engine->arena, record);
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory for a session");
    }
    status = attn_session_reserve(shadow, session->length, err);
    if (status != ATTN_OK)
        attn_session_free(shadow);
    else
        job->shadow = shadow;
    return status;
}

attn_status attn_job_check_trace_bytes(uint64_t bytes, const char *param, attn_error *err)
{
    if (bytes <= ATTN_TRACE_BYTES_MAX)
        return ATTN_OK;
    attn_fail(err, ATTN_E_TENSOR_TOO_LARGE, param, "this is too much to look at at once");
    attn_error_detail(err, "bytes", bytes);
    attn_error_detail(err, "limit", ATTN_TRACE_BYTES_MAX);
    return ATTN_E_TENSOR_TOO_LARGE;
}

/* Room for the output rows that the result will hold. */
static attn_status make_outputs(attn_job *job, attn_error *err)
{
    const attn_request *r = &job->request;
    size_t hidden = job->session->model->config.hidden_size;
    size_t n = r->kind != ATTN_JOB_PREFILL || r->output == ATTN_OUTPUT_NONE ? 0
               : r->output == ATTN_OUTPUT_LAST                              ? 1
                                               : (size_t)job->n_positions;
    size_t n_logits =
        r->kind == ATTN_JOB_PREFILL && r->logits ? job->session->model->config.vocab_size : 0;
    job->outputs = attn_alloc(n, hidden * sizeof *job->outputs);
    job->logits = attn_alloc(n_logits, sizeof *job->logits);
    if (job->outputs == NULL || job->logits == NULL)
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory for the output rows");
    job->result.n_outputs = n;
    job->result.output_size = hidden;
    job->result.outputs = job->outputs;
    job->result.n_logits = n_logits;
    job->result.logits = job->logits;
    return ATTN_OK;
}

/* Checks what a trace asks for; makes that of a prefill, whose size is known. */
static attn_status make_trace(attn_job *job, attn_error *err)
{
    const attn_request *r = &job->request;
    const attn_config *c = &job->session->model->config;
    if (!r->has_trace)
        return ATTN_OK;
    attn_status status = attn_trace_check_step(c, &r->trace, err);
    if (status != ATTN_OK)
        return status;
    attn_trace_choose(c, &r->trace, &job->heads);
    uint64_t n_keys = job->start_length + job->n_positions;
    uint64_t n_rows = job->kind == ATTN_JOB_PREFILL ? job->n_positions : 1;
    status = attn_job_check_trace_bytes(attn_trace_bytes(c, &r->trace, &job->heads, n_rows, n_keys),
                                        "trace", err);
    if (status != ATTN_OK || job->kind != ATTN_JOB_PREFILL)
        return status;
    job->trace =
        attn_trace_create(c, &r->trace, &job->heads, job->start_length, (size_t)n_rows, 0, n_keys);
    job->result.trace = job->trace;
    return job->trace != NULL ? ATTN_OK
                              : attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory for a trace");
}

attn_status attn_job_admit(attn_job *job, attn_error *err)
{
    const attn_request *r = &job->request;
    attn_session *session = job->session;
    uint64_t length = session->length;
    job->start_length = length;
    if (r->if_length != UINT64_MAX && r->if_length != length) {
        attn_fail(err, ATTN_E_LENGTH_MISMATCH, "if_length", "the session has another length");
        attn_error_detail(err, "length", length);
        return ATTN_E_LENGTH_MISMATCH;
    }
    attn_status status = prepare(job, session->model, length, err);
    if (status != ATTN_OK)
        return status;
    bool fed = r->n_inputs > 0 || job->n_tokens > 0;
    if (r->kind == ATTN_JOB_DECODE && !fed && length == 0)
        return attn_fail(err, ATTN_E_INVALID,
                         attn_config_is_decoder(&session->model->config) ? "tokens" : "input",
                         "the session is empty: something to feed is needed");
    bool replay = r->kind == ATTN_JOB_DECODE && !fed && !session->has_last_output;
    if (!session->keep_inputs && (replay || r->kind == ATTN_JOB_VERIFY))
        return attn_fail(err, ATTN_E_INPUTS_NOT_KEPT, NULL,
                         "the session does not keep its inputs (keep_inputs), which this needs");
    if (r->kind == ATTN_JOB_VERIFY) {
        job->n_positions = length;
        job->result.verify_bit_identical = true;
        return make_shadow(job, err);
    }
    status = attn_session_reserve(session, length + job->n_positions, err);
    if (status != ATTN_OK)
        return status;
    status = make_outputs(job, err);
    if (status == ATTN_OK)
        status = prepare_sampling(job, err);
    if (status == ATTN_OK)
        status = make_trace(job, err);
    if (status != ATTN_OK)
        attn_session_settle(session, length);
    return status;
}

/* Creates the job's session, holds it and admits the job. SESSION_EXISTS: someone else created it
 * meanwhile; the caller looks again. */
static attn_status create_session(attn_job *job, attn_error *err)
{
    attn_engine *engine = job->engine;
    const attn_request *r = &job->request;
    ptrdiff_t m = attn_model_find(engine, r->model);
    if (m < 0)
        return attn_fail(err, ATTN_E_MODEL_NOT_FOUND, "model", "no model has this name");
    attn_model *model = engine->models[m].model;
    /* Refuse what cannot be admitted before making anything. */
    attn_status status = prepare(job, model, 0, err);
    if (status == ATTN_OK && r->if_length != UINT64_MAX && r->if_length != 0) {
        status = attn_fail(err, ATTN_E_LENGTH_MISMATCH, "if_length", "the session does not exist");
        attn_error_detail(err, "length", 0);
    }
    uint64_t record = attn_session_record_bytes(model);
    if (status == ATTN_OK)
        status = attn_arena_reserve(engine->arena, record, err);
    if (status != ATTN_OK)
        return status;
    bool keep_inputs = r->has_keep_inputs ? r->keep_inputs : true;
    attn_dtype kv_dtype = r->has_kv_dtype ? r->kv_dtype : ATTN_F32;
    uint32_t ttl_s = r->has_ttl ? r->ttl_s : engine->options.ttl_s;
    attn_session *session = attn_session_new(job->id, model, engine->arena,
                                             engine->models[m].pages[kv_dtype][keep_inputs],
                                             kv_dtype, keep_inputs, ttl_s);
    if (session == NULL) {
        attn_arena_unreserve(engine->arena, record);
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory for a session");
    }
    job->session = session;
    status = attn_job_admit(job, err);
    if (status == ATTN_OK)
        status = attn_sessions_insert(engine->sessions, session, job, NULL, err);
    if (status != ATTN_OK) {
        job->session = NULL;
        attn_session_free(session);
        drop_preparations(job);
        return status;
    }
    job->created = true;
    engine->sessions_created++;
    engine->n_mortal += ttl_s > 0;
    return ATTN_OK;
}

/* Holds an existing session (referenced for the job) and admits the job, or lets it wait. */
static attn_status take_session(attn_job *job, attn_session *session, attn_hold *hold,
                                attn_error *err)
{
    attn_engine *engine = job->engine;
    *hold = ATTN_HOLD_TAKEN;
    attn_status status = attn_job_check_options(&job->request, session, err);
    if (status != ATTN_OK)
        return status;
    *hold = attn_sessions_hold(engine->sessions, session, job, false);
    if (*hold == ATTN_HOLD_BUSY) {
        if (job->request.wait_ms == 0)
            return attn_fail(err, ATTN_E_SESSION_BUSY, "session",
                             "the session is at work for another request");
        /* Now, not on the scheduler: the text may be long. Who is at work leaves it longer than 0,
         * most likely. */
        status = take_inputs(job, session->model, 1, err);
        if (status != ATTN_OK)
            return status;
        attn_sessions_wait(engine->sessions, session, 1);
        job->session = session;
        job->state = ATTN_JOB_WAITING;
        job->deadline_ns = job->submitted_ns + (uint64_t)job->request.wait_ms * 1000000u;
        return ATTN_OK;
    }
    if (*hold != ATTN_HOLD_TAKEN)
        return ATTN_E_SESSION_NOT_FOUND;
    job->session = session;
    status = attn_job_admit(job, err);
    if (status != ATTN_OK) {
        job->session = NULL;
        if (attn_sessions_release(engine->sessions, session, false, NULL))
            attn_scheduler_kick(engine->scheduler);
    }
    return status;
}

/* Names a session whose client left that to us. */
static void make_id(attn_job *job)
{
    snprintf(job->id, sizeof job->id, "s-%08llx-%llu", (unsigned long long)attn_unix_s(),
             (unsigned long long)++job->engine->next_id);
}

/* Finds or creates the session. Others may create and remove it meanwhile, hence the loop: each
 * turn some other request made progress. */
static attn_status attach_session(attn_job *job, attn_error *err)
{
    attn_engine *engine = job->engine;
    for (;;) {
        attn_session *session = attn_sessions_find(engine->sessions, job->id);
        if (session == NULL) {
            if (job->kind != ATTN_JOB_PREFILL)
                return attn_fail(err, ATTN_E_SESSION_NOT_FOUND, "session", "no such session");
            attn_status status = create_session(job, err);
            if (status != ATTN_E_SESSION_EXISTS)
                return status;
            continue;
        }
        if (job->request.session == NULL) { /* another client chose just this name */
            attn_sessions_unreference(engine->sessions, session);
            make_id(job);
            continue;
        }
        attn_hold hold;
        attn_status status = take_session(job, session, &hold, err);
        if (status == ATTN_OK)
            return ATTN_OK;
        attn_sessions_unreference(engine->sessions, session);
        if (hold == ATTN_HOLD_TAKEN || hold == ATTN_HOLD_BUSY)
            return status;
    }
}

attn_status attn_job_start_over(attn_job *job, attn_error *err)
{
    attn_sessions *table = job->engine->sessions;
    attn_session *session = job->session;
    /* The client's own text is gone since submission. */
    if (job->request.model != NULL)
        job->request.model = session->model->name;
    job->session = NULL;
    attn_sessions_wait(table, session, -1);
    attn_sessions_unreference(table, session);
    drop_preparations(job); /* the next may be of another model */
    job->state = ATTN_JOB_ACTIVE;
    return attach_session(job, err);
}

attn_status attn_engine_submit(attn_engine *engine, const attn_request *request,
                               const attn_sink *sink, attn_job **out, attn_error *err)
{
    if (engine->shutting_down)
        return attn_fail(err, ATTN_E_SHUTTING_DOWN, NULL, "the server is shutting down");
    attn_status status = check_request(request, err);
    if (status == ATTN_OK)
        status = check_sampling(&request->sampling, err);
    if (status != ATTN_OK)
        return status;
    if (engine->n_jobs++ >= engine->options.queue) {
        engine->n_jobs--;
        return attn_fail(err, ATTN_E_QUEUE_FULL, NULL,
                         "as many requests are at work or wait as --queue allows");
    }
    attn_job *job = attn_alloc(1, sizeof *job);
    if (job == NULL) {
        engine->n_jobs--;
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory for a job");
    }
    job->engine = engine;
    job->kind = request->kind;
    job->request = *request;
    if (job->kind == ATTN_JOB_VERIFY)
        job->request.wait_ms = 0; /* it needs the length at once */
    job->sink = *sink;
    job->references = 2;
    job->state = ATTN_JOB_ACTIVE;
    job->submitted_ns = attn_now_ns();
    if (request->session != NULL)
        memcpy(job->id, request->session, strlen(request->session) + 1);
    else
        make_id(job);
    status = job->kind == ATTN_JOB_TENSOR ? attn_look_attach(job, err) : attach_session(job, err);
    if (status != ATTN_OK) {
        engine->n_jobs--;
        free_job(job);
        return status;
    }
    engine->n_queued++;
    *out = job;
    attn_scheduler_add(engine->scheduler, job);
    return ATTN_OK;
}

/* ----------------------------------------------------------------------------------- end */

/* Unless it was deleted: then that gives it back. */
static void vanish(attn_sessions *table, attn_session *session)
{
    if (attn_sessions_vanish(table, session))
        attn_session_give_back(session);
}

/* Gives the session back at its committed length; one that this job made and left empty vanishes.
 * Returns true when other jobs wait for it. */
static bool release_session(attn_job *job, bool failed)
{
    attn_sessions *table = job->engine->sessions;
    attn_session *session = job->session;
    job->session = NULL;
    if (job->state == ATTN_JOB_WAITING) {
        attn_sessions_wait(table, session, -1);
        attn_sessions_info(table, session, &job->result.session);
        attn_sessions_unreference(table, session);
        return true; /* one waiter fewer: the next may be let in */
    }
    attn_session_settle(session, session->length);
    if (job->created && failed && session->length == 0)
        vanish(table, session);
    bool waiting = attn_sessions_release(table, session, true, &job->result.session);
    attn_sessions_unreference(table, session);
    return waiting;
}

bool attn_job_finish(attn_job *job, attn_reason reason, const attn_error *error)
{
    attn_engine *engine = job->engine;
    attn_session_free(job->shadow);
    job->shadow = NULL;
    if (job->looked != NULL)
        attn_look_release(job);
    bool waiting = job->session != NULL &&
                   release_session(job, reason != ATTN_REASON_LENGTH && reason != ATTN_REASON_STOP);
    uint64_t now = attn_now_ns();
    attn_result *result = &job->result;
    result->reason = reason;
    if (error != NULL)
        result->error = *error;
    if (reason != ATTN_REASON_LENGTH) { /* a part of a trace is none */
        attn_trace_release(job->trace);
        job->trace = result->trace = NULL;
    }
    if (job->kind == ATTN_JOB_PREFILL && reason == ATTN_REASON_LENGTH) {
        result->appended = job->n_positions;
        result->tokens = job->tokens;
        result->n_tokens = job->n_tokens;
    }
    if (job->kind == ATTN_JOB_DECODE) {
        result->steps = job->n_done;
        if (job->text != NULL)
            attn_run_text_rest(job->text, &result->text, &result->text_len);
    }
    uint64_t started = job->started ? job->started_ns : now;
    result->queue_ms = (double)(started - job->submitted_ns) / 1e6;
    result->compute_ms = (double)job->compute_ns / 1e6;
    if (job->started)
        engine->n_in_flight[job->kind]--;
    else
        engine->n_queued--;
    engine->n_jobs--;
    job->sink.done(job->sink.ctx);
    unreference(job);
    return waiting;
}

/* ------------------------------------------------------------------------- the host's side */

void attn_job_wake(attn_job *job)
{
    job->woken = true;
    if (job->parked)
        attn_scheduler_kick(job->engine->scheduler);
}

void attn_job_cancel(attn_job *job)
{
    job->cancelled = true;
    attn_scheduler_kick_cancelled(job->engine->scheduler);
}

const char *attn_job_session(const attn_job *job)
{
    return job->id;
}

const attn_result *attn_job_result(const attn_job *job)
{
    return &job->result;
}

void attn_job_release(attn_job *job)
{
    unreference(job);
}

const char *attn_reason_name(attn_reason reason)
{
    static const char *const names[] = {
        [ATTN_REASON_LENGTH] = "length",       [ATTN_REASON_STOP] = "stop",
        [ATTN_REASON_CANCELLED] = "cancelled", [ATTN_REASON_STALLED] = "stalled",
        [ATTN_REASON_SHUTDOWN] = "shutdown",   [ATTN_REASON_ERROR] = "error",
    };
    return names[reason];
}
