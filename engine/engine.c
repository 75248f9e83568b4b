#include "engine/engine.h"

#include "engine/engine_state.h"
#include "engine/model/tokenizer.h"
#include "engine/sched/job.h"
#include "engine/sched/scheduler.h"

#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------- open and close */

static bool model_name_valid(const char *name)
{
    return attn_session_id_valid(name);
}

/* The folder's last component, without trailing slashes, into `name`. */
static bool folder_name(const char *dir, char name[ATTN_MODEL_NAME_MAX + 1])
{
    size_t end = strlen(dir);
    while (end > 0 && dir[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && dir[begin - 1] != '/')
        begin--;
    if (end - begin > ATTN_MODEL_NAME_MAX)
        return false;
    memcpy(name, dir + begin, end - begin);
    name[end - begin] = '\0';
    return true;
}

static attn_load_options load_options(const attn_options *options)
{
    return (attn_load_options){
        .random_seed = options->has_random_seed ? &options->random_seed : NULL,
        .has_dtype = options->has_weights_dtype,
        .dtype = options->weights_dtype,
    };
}

static attn_status load_sources(attn_engine *engine, const attn_options *options, attn_error *err)
{
    for (size_t i = 0; i < options->n_models; i++) {
        const attn_model_source *source = &options->models[i];
        char name[ATTN_MODEL_NAME_MAX + 1] = "";
        bool ok = source->name != NULL ? strlen(source->name) <= ATTN_MODEL_NAME_MAX
                                       : folder_name(source->dir, name);
        if (ok && source->name != NULL)
            memcpy(name, source->name, strlen(source->name) + 1);
        if (!ok || !model_name_valid(name))
            return attn_fail(err, ATTN_E_INVALID, "models",
                             "a model's name is 1-64 characters of A-Z a-z 0-9 . _ : - "
                             "(--model NAME=DIR gives one)");
        if (attn_model_find(engine, name) >= 0 && engine->n_models > 0)
            return attn_fail(err, ATTN_E_INVALID, "models", "two models are named %s", name);
        attn_load_options load = load_options(options);
        attn_model *model = attn_model_load(name, source->dir, &load, err);
        if (model == NULL)
            return err == NULL ? ATTN_E_FORMAT : err->status;
        engine->models[engine->n_models++].model = model;
    }
    return ATTN_OK;
}

/* The default model becomes model 0. */
static attn_status put_default_first(attn_engine *engine, const char *name, attn_error *err)
{
    ptrdiff_t index = attn_model_find(engine, name);
    if (index < 0)
        return attn_fail(err, ATTN_E_INVALID, "default_model", "no model has that name");
    attn_served_model chosen = engine->models[index];
    memmove(engine->models + 1, engine->models, (size_t)index * sizeof *engine->models);
    engine->models[0] = chosen;
    return ATTN_OK;
}

/* Named models come first, in their order, then the built-in ones that none of them replaces. */
static attn_status load_models(attn_engine *engine, const attn_options *options, attn_error *err)
{
    engine->models = attn_alloc(options->n_models + ATTN_BUILTINS, sizeof *engine->models);
    if (engine->models == NULL)
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory");
    attn_status status = load_sources(engine, options, err);
    for (size_t i = 0; status == ATTN_OK && i < ATTN_BUILTINS; i++) {
        if (engine->n_models > 0 && attn_model_find(engine, attn_builtin_name(i)) >= 0)
            continue;
        attn_load_options load = load_options(options);
        attn_model *model = attn_model_load_builtin(i, &load, err);
        if (model == NULL)
            return ATTN_E_FORMAT;
        engine->models[engine->n_models++].model = model;
    }
    if (status == ATTN_OK)
        status = put_default_first(engine, options->default_model, err);
    for (size_t i = 0; status == ATTN_OK && i < engine->n_models; i++) {
        attn_served_model *served = &engine->models[i];
        size_t inputs = ATTN_PAGE_POSITIONS * attn_config_input_bytes(&served->model->config);
        for (size_t k = 0; status == ATTN_OK && k < (size_t)ATTN_DTYPES * 2; k++) {
            size_t dtype = k / 2, keep = k % 2;
            size_t kv = ATTN_PAGE_POSITIONS * attn_model_kv_bytes(served->model, (attn_dtype)dtype);
            served->pages[dtype][keep] =
                attn_arena_add_class(engine->arena, kv, keep ? inputs : 0, err);
            status = served->pages[dtype][keep] == NULL ? ATTN_E_NO_MEMORY : ATTN_OK;
        }
    }
    return status;
}

/* The table's listener: passes events on to the observer, with what the session is after them. */
static void tell_observer(void *ctx, const attn_session *session, attn_event *event)
{
    const attn_engine *engine = ctx;
    if (!engine->observing)
        return;
    event->session = session->id;
    event->model = session->model->name;
    if (event->kind != ATTN_EVENT_DELETED && event->kind != ATTN_EVENT_EXPIRED) {
        event->length = session->length;
        event->kv_bytes = session->n_pages * attn_page_kv_bytes(session->pages);
    }
    engine->observer.event(engine->observer.ctx, event);
}

static attn_status start_compute(attn_engine *engine, attn_error *err)
{
    attn_model **models = attn_alloc(engine->n_models, sizeof(attn_model *));
    if (models == NULL)
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory");
    for (size_t i = 0; i < engine->n_models; i++)
        models[i] = engine->models[i].model;
    engine->sessions = attn_sessions_create(engine->options.max_sessions, tell_observer, engine);
    engine->pool = attn_pool_create(engine->options.n_threads);
    if (engine->pool != NULL)
        engine->forward =
            attn_forward_create(engine->pool, engine->kernels, models, engine->n_models);
    attn_free(models);
    if (engine->sessions != NULL && engine->forward != NULL)
        engine->scheduler = attn_scheduler_create(engine);
    if (engine->scheduler == NULL)
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "no memory or threads for the engine");
    return ATTN_OK;
}

attn_engine *attn_engine_open(const attn_options *options, attn_error *err)
{
    attn_engine *engine = attn_alloc(1, sizeof *engine);
    if (engine == NULL) {
        attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory");
        return NULL;
    }
    engine->options = *options;
    engine->batch_size.least = 1;
    engine->queue_seconds.least = 1e-5;
    engine->ttft_seconds.least = 1e-5;
    engine->step_seconds.least = 1e-5;
    engine->kernels = attn_kernels_select(options->kernels);
    attn_status status = ATTN_OK;
    if (engine->kernels == NULL)
        status = attn_fail(err, ATTN_E_INVALID, "kernels",
                           "there are no such kernels, or this processor cannot run them");
    else if (options->n_threads < 1 || options->n_threads > 1024)
        status = attn_fail(err, ATTN_E_INVALID, "threads", "from 1 to 1024 threads");
    if (status == ATTN_OK) {
        engine->arena = attn_arena_create(options->kv_memory_bytes, err);
        status = engine->arena == NULL ? ATTN_E_NO_MEMORY : ATTN_OK;
    }
    if (status == ATTN_OK)
        status = load_models(engine, options, err);
    if (status == ATTN_OK)
        status = start_compute(engine, err);
    if (status != ATTN_OK) {
        attn_engine_close(engine);
        return NULL;
    }
    return engine;
}

void attn_engine_shutdown(attn_engine *engine)
{
    engine->shutting_down = true;
    attn_scheduler_kick(engine->scheduler);
}

void attn_engine_close(attn_engine *engine)
{
    if (engine == NULL)
        return;
    engine->shutting_down = true;
    attn_scheduler_destroy(engine->scheduler);
    attn_sessions_destroy(engine->sessions);
    attn_forward_destroy(engine->forward);
    attn_pool_destroy(engine->pool);
    for (size_t i = 0; i < engine->n_models; i++)
        attn_model_free(engine->models[i].model);
    attn_free(engine->models);
    attn_arena_destroy(engine->arena);
    attn_free(engine);
}

/* ----------------------------------------------------------------------------------- models */

size_t attn_model_count(const attn_engine *engine)
{
    return engine->n_models;
}

void attn_model_get(const attn_engine *engine, size_t index, attn_model_info *info)
{
    const attn_served_model *served = &engine->models[index];
    const attn_model *model = served->model;
    const attn_config *c = &model->config;
    *info = (attn_model_info){
        .name = model->name,
        .model_type = c->model_type,
        .built_in = model->built_in,
        .random_weights = model->random,
        .hidden_size = c->hidden_size,
        .num_hidden_layers = c->num_hidden_layers,
        .num_attention_heads = c->num_attention_heads,
        .num_key_value_heads = c->num_key_value_heads,
        .head_dim = c->head_dim,
        .max_position_embeddings = c->max_position_embeddings,
        .rope_theta = c->rope_theta,
        .rms_norm_eps = c->rms_norm_eps,
        .qk_norm = c->qk_norm,
        .is_language_model = attn_config_is_decoder(c),
        .has_tokenizer = model->tokenizer != NULL,
        .vocab_size = c->vocab_size,
        .intermediate_size = c->intermediate_size,
        .num_experts = c->num_experts,
        .num_experts_per_tok = c->num_experts_per_tok,
        .attention_bias = c->attention_bias,
        .tie_word_embeddings = c->tie_word_embeddings,
        .weights_dtype = model->weights_dtype,
        .n_parameters = model->n_parameters,
        .weights_bytes = model->weights_bytes,
        .input_bytes_per_position = attn_config_input_bytes(c),
        .n_sessions = model->n_sessions,
    };
    for (int dtype = 0; dtype < ATTN_DTYPES; dtype++)
        info->kv_bytes_per_position[dtype] = attn_model_kv_bytes(model, (attn_dtype)dtype);
}

ptrdiff_t attn_model_find(const attn_engine *engine, const char *name)
{
    if (name == NULL)
        return 0;
    for (size_t i = 0; i < engine->n_models; i++) {
        if (strcmp(engine->models[i].model->name, name) == 0)
            return (ptrdiff_t)i;
    }
    return -1;
}

const char *attn_engine_kernels(const attn_engine *engine)
{
    return engine->kernels->name;
}

unsigned attn_engine_threads(const attn_engine *engine)
{
    return attn_pool_threads(engine->pool);
}

/* --------------------------------------------------------------------------------- sessions */

const char *attn_session_state_name(attn_session_state state)
{
    static const char *const names[] = {
        [ATTN_SESSION_IDLE] = "idle",       [ATTN_SESSION_QUEUED] = "queued",
        [ATTN_SESSION_PREFILL] = "prefill", [ATTN_SESSION_DECODE] = "decode",
        [ATTN_SESSION_VERIFY] = "verify",
    };
    return names[state];
}

static attn_session *find(attn_engine *engine, const char *id, attn_error *err)
{
    attn_session *session = attn_sessions_find(engine->sessions, id);
    if (session == NULL)
        attn_fail(err, ATTN_E_SESSION_NOT_FOUND, "session", "no such session");
    return session;
}

attn_status attn_session_get(attn_engine *engine, const char *id, attn_session_info *info,
                             attn_error *err)
{
    attn_session *session = find(engine, id, err);
    if (session == NULL)
        return ATTN_E_SESSION_NOT_FOUND;
    attn_sessions_info(engine->sessions, session, info);
    attn_sessions_unreference(engine->sessions, session);
    return ATTN_OK;
}

size_t attn_session_list(attn_engine *engine, const char *after, size_t limit,
                         attn_session_info *infos, bool *more)
{
    return attn_sessions_list(engine->sessions, after, limit, infos, more);
}

void attn_engine_totals(attn_engine *engine, attn_totals *totals)
{
    attn_arena_account account;
    attn_arena_account_get(engine->arena, &account);
    *totals = (attn_totals){
        .sessions = attn_sessions_count(engine->sessions),
        .kv = {.dtype = ATTN_F32,
               .bytes = account.kv_bytes,
               .shared_bytes = account.shared_kv_bytes,
               .reserved_bytes = account.reserved_bytes,
               .n_pages = account.n_pages},
        .inputs_bytes = account.inputs_bytes,
        .table_bytes = account.other_bytes,
        .budget_bytes = account.budget_bytes,
        .allocated_bytes = account.allocated_bytes,
        .reserved_bytes = account.reserved_bytes,
        .available_bytes = account.budget_bytes - account.allocated_bytes - account.reserved_bytes,
    };
    for (size_t i = 0; i < engine->n_models; i++)
        totals->positions += engine->models[i].model->n_positions;
}

/* Called under the stripe's lock, so only the mark; the scheduler is told after it. */
static void mark_cancelled(attn_job *job)
{
    job->cancelled = true;
}

/* Ends the session's running job and waits for its end. */
static void end_job(attn_engine *engine, attn_session *session)
{
    uint64_t hold = attn_sessions_visit_job(engine->sessions, session, mark_cancelled);
    attn_scheduler_kick_cancelled(engine->scheduler);
    attn_sessions_wait_end(engine->sessions, session, hold);
}

attn_status attn_session_delete(attn_engine *engine, const char *id, attn_error *err)
{
    attn_session *session = find(engine, id, err);
    if (session == NULL)
        return ATTN_E_SESSION_NOT_FOUND;
    bool ours = attn_sessions_remove(engine->sessions, session);
    if (ours) {
        end_job(engine, session);
        attn_session_give_back(session);
    }
    attn_sessions_unreference(engine->sessions, session);
    /* Jobs that waited for it, or looked into it, learn of its end. */
    attn_scheduler_kick(engine->scheduler);
    return ours ? ATTN_OK : attn_fail(err, ATTN_E_SESSION_NOT_FOUND, "session", "no such session");
}

/* Finds the session and holds it for a verb. */
static attn_session *hold(attn_engine *engine, const char *id, attn_error *err)
{
    attn_session *session = find(engine, id, err);
    if (session == NULL)
        return NULL;
    attn_hold result = attn_sessions_hold(engine->sessions, session, NULL, false);
    if (result == ATTN_HOLD_TAKEN)
        return session;
    attn_sessions_unreference(engine->sessions, session);
    if (result == ATTN_HOLD_BUSY)
        attn_fail(err, ATTN_E_SESSION_BUSY, "session",
                  "the session is at work for another request");
    else
        attn_fail(err, ATTN_E_SESSION_NOT_FOUND, "session", "no such session");
    return NULL;
}

static void release(attn_engine *engine, attn_session *session, attn_session_info *info)
{
    if (attn_sessions_release(engine->sessions, session, true, info))
        attn_scheduler_kick(engine->scheduler);
    attn_sessions_unreference(engine->sessions, session);
}

attn_status attn_session_truncate(attn_engine *engine, const char *id, uint64_t length,
                                  uint64_t if_length, attn_session_info *info, attn_error *err)
{
    attn_error local;
    err = err == NULL ? &local : err;
    attn_session *session = hold(engine, id, err);
    if (session == NULL)
        return err->status;
    attn_status status = ATTN_OK;
    if (if_length != UINT64_MAX && if_length != session->length) {
        status =
            attn_fail(err, ATTN_E_LENGTH_MISMATCH, "if_length", "the session has another length");
        attn_error_detail(err, "length", session->length);
    } else if (length > session->length) {
        status = attn_fail(err, ATTN_E_INVALID, "length", "longer than the session");
        attn_error_detail(err, "length", session->length);
    } else {
        attn_session_settle(session, length);
    }
    if (status == ATTN_OK)
        attn_engine_tell(engine, session, &(attn_event){.kind = ATTN_EVENT_TRUNCATED});
    release(engine, session, info);
    return status;
}

/* Makes the fork of a referenced session. */
static attn_status fork_session(attn_engine *engine, attn_session *session, const char *as,
                                uint64_t at, attn_session_info *info, attn_error *err)
{
    uint64_t record = attn_session_record_bytes(session->model);
    attn_status status = attn_arena_reserve(engine->arena, record, err);
    if (status != ATTN_OK)
        return status;
    attn_session *fork = attn_session_new(as, session->model, engine->arena, session->pages,
                                          session->kv_dtype, session->keep_inputs, session->ttl_s);
    if (fork == NULL) {
        attn_arena_unreserve(engine->arena, record);
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory for a session");
    }
    status = attn_session_share(session, at, fork, err);
    if (status == ATTN_OK)
        status = attn_sessions_insert(engine->sessions, fork, NULL, session->id, err);
    if (status != ATTN_OK) {
        attn_session_free(fork);
        if (status == ATTN_E_SESSION_EXISTS)
            err->param = "as";
        return status;
    }
    engine->sessions_created++;
    engine->n_mortal += fork->ttl_s > 0;
    release(engine, fork, info);
    return ATTN_OK;
}

attn_status attn_session_fork(attn_engine *engine, const char *id, const char *as, uint64_t at,
                              uint64_t if_length, attn_session_info *info, attn_error *err)
{
    attn_error local;
    err = err == NULL ? &local : err;
    if (engine->shutting_down)
        return attn_fail(err, ATTN_E_SHUTTING_DOWN, NULL, "the server is shutting down");
    if (!attn_session_id_valid(as))
        return attn_fail(err, ATTN_E_INVALID, "as",
                         "a session id is 1-64 characters of A-Z a-z 0-9 . _ : -");
    attn_session *session = find(engine, id, err);
    if (session == NULL)
        return ATTN_E_SESSION_NOT_FOUND;
    /* First: from now on it does not expire meanwhile. */
    attn_sessions_use(engine->sessions, session);
    uint64_t length = session->length;
    attn_status status;
    if (session->given_back) { /* so it has no length any more, which is not a length of 0 */
        status = attn_fail(err, ATTN_E_SESSION_NOT_FOUND, "session", "no such session");
    } else if (if_length != UINT64_MAX && if_length != length) {
        status =
            attn_fail(err, ATTN_E_LENGTH_MISMATCH, "if_length", "the session has another length");
        attn_error_detail(err, "length", length);
    } else if (at != UINT64_MAX && at > length) {
        status = attn_fail(err, ATTN_E_INVALID, "at", "longer than the session");
        attn_error_detail(err, "length", length);
    } else {
        status = fork_session(engine, session, as, at == UINT64_MAX ? length : at, info, err);
    }
    attn_sessions_unreference(engine->sessions, session);
    return status;
}

attn_status attn_session_cancel(attn_engine *engine, const char *id, attn_session_info *info,
                                attn_error *err)
{
    attn_session *session = find(engine, id, err);
    if (session == NULL)
        return ATTN_E_SESSION_NOT_FOUND;
    end_job(engine, session);
    attn_sessions_info(engine->sessions, session, info);
    attn_sessions_unreference(engine->sessions, session);
    return ATTN_OK;
}

attn_status attn_session_inputs(attn_engine *engine, const char *id, uint64_t first, size_t n,
                                float *rows, attn_error *err)
{
    attn_error local;
    err = err == NULL ? &local : err;
    attn_session *session = hold(engine, id, err);
    if (session == NULL)
        return err->status;
    attn_status status = ATTN_OK;
    size_t hidden = session->model->config.hidden_size;
    if (!session->keep_inputs || attn_config_is_decoder(&session->model->config))
        status = attn_fail(err, ATTN_E_INPUTS_NOT_KEPT, NULL, "the session keeps no input rows");
    else if (first > session->length || n > session->length - first)
        status = attn_fail(err, ATTN_E_INVALID, "length", "the range passes the session's length");
    for (size_t i = 0; status == ATTN_OK && i < n; i++)
        memcpy(rows + i * hidden, attn_session_input_row(session, first + i),
               hidden * sizeof *rows);
    release(engine, session, NULL);
    return status;
}

/* ----------------------------------------------------------------------------------- inside */

attn_status attn_selection_check(const attn_engine *engine, size_t model,
                                 const attn_selection *selection, attn_error *err)
{
    return attn_trace_check(&engine->models[model].model->config, selection, err);
}

uint64_t attn_selection_bytes(const attn_engine *engine, size_t model,
                              const attn_selection *selection, uint64_t n_rows, uint64_t n_keys)
{
    const attn_config *c = &engine->models[model].model->config;
    attn_trace_heads heads;
    attn_trace_choose(c, selection, &heads);
    return attn_trace_bytes(c, selection, &heads, n_rows, n_keys);
}

const char *attn_event_kind_name(attn_event_kind kind)
{
    static const char *const names[] = {
        [ATTN_EVENT_CREATED] = "created", [ATTN_EVENT_PREFILL] = "prefill",
        [ATTN_EVENT_STEP] = "step",       [ATTN_EVENT_TRUNCATED] = "truncated",
        [ATTN_EVENT_FORKED] = "forked",   [ATTN_EVENT_EXPIRED] = "expired",
        [ATTN_EVENT_DELETED] = "deleted",
    };
    return names[kind];
}

void attn_engine_set_observer(attn_engine *engine, const attn_observer *observer)
{
    engine->observer = *observer;
}

void attn_engine_observe(attn_engine *engine, bool on)
{
    engine->observing = on && engine->observer.event != NULL;
}

void attn_engine_tell(attn_engine *engine, const attn_session *session, attn_event *event)
{
    if (engine->observing)
        attn_sessions_tell(engine->sessions, session, event);
}

/* ------------------------------------------------------------------------------------- text */

static const attn_model *text_model(const attn_engine *engine, const char *name, attn_error *err)
{
    ptrdiff_t index = attn_model_find(engine, name);
    if (index < 0) {
        attn_fail(err, ATTN_E_MODEL_NOT_FOUND, "model", "no model has this name");
        return NULL;
    }
    const attn_model *model = engine->models[index].model;
    if (model->tokenizer == NULL) {
        attn_fail(err, ATTN_E_NOT_SUPPORTED, "model", "the model has no tokenizer");
        return NULL;
    }
    return model;
}

attn_status attn_tokenize(attn_engine *engine, const char *name, const char *text, size_t len,
                          bool add_special, uint32_t **tokens, size_t *n, attn_error *err)
{
    attn_error local;
    err = err == NULL ? &local : err;
    const attn_model *model = text_model(engine, name, err);
    if (model == NULL)
        return err->status;
    attn_ids ids = {0};
    attn_status status =
        attn_tokenizer_encode(model->tokenizer, text, len, add_special, add_special, &ids, err);
    if (status != ATTN_OK)
        attn_ids_free(&ids);
    *tokens = ids.data;
    *n = ids.n;
    return status;
}

static attn_status decode_text(const attn_model *model, const uint32_t *tokens, size_t n,
                               char **text, size_t *len, attn_error *err)
{
    attn_text out = {0};
    attn_status status = attn_tokenizer_decode(model->tokenizer, tokens, n, true, &out, err);
    if (status == ATTN_OK && !attn_text_append(&out, "", 1))
        status = attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory for the text");
    if (status != ATTN_OK) {
        attn_text_free(&out);
        return status;
    }
    *text = out.data;
    *len = out.len - 1;
    return ATTN_OK;
}

attn_status attn_detokenize(attn_engine *engine, const char *name, const uint32_t *tokens, size_t n,
                            char **text, size_t *len, attn_error *err)
{
    attn_error local;
    err = err == NULL ? &local : err;
    const attn_model *model = text_model(engine, name, err);
    if (model == NULL)
        return err->status;
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < model->config.vocab_size)
            continue;
        attn_fail(err, ATTN_E_TOKEN_RANGE, "tokens", "a token id is outside the vocabulary");
        attn_error_detail(err, "index", i);
        attn_error_detail(err, "limit", model->config.vocab_size);
        return ATTN_E_TOKEN_RANGE;
    }
    return decode_text(model, tokens, n, text, len, err);
}

void attn_buffer_free(void *p)
{
    free(p);
}

static attn_status copy_tokens(const attn_session *session, uint32_t **tokens, size_t *n,
                               char **text, size_t *text_len, attn_error *err)
{
    if (!attn_config_is_decoder(&session->model->config))
        return attn_fail(err, ATTN_E_NOT_SUPPORTED, "session",
                         "the session's model takes rows, not tokens");
    *n = session->length;
    *text = NULL;
    *text_len = 0;
    *tokens = malloc((*n + 1) * sizeof **tokens);
    if (*tokens == NULL)
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory for the tokens");
    for (size_t i = 0; i < *n; i++)
        (*tokens)[i] = *attn_session_input_token(session, i);
    attn_status status = ATTN_OK;
    if (session->model->tokenizer != NULL)
        status = decode_text(session->model, *tokens, *n, text, text_len, err);
    if (status != ATTN_OK)
        free(*tokens);
    return status;
}

attn_status attn_session_tokens(attn_engine *engine, const char *id, uint32_t **tokens, size_t *n,
                                char **text, size_t *text_len, attn_error *err)
{
    attn_error local;
    err = err == NULL ? &local : err;
    attn_session *session = hold(engine, id, err);
    if (session == NULL)
        return err->status;
    attn_status status = copy_tokens(session, tokens, n, text, text_len, err);
    release(engine, session, NULL);
    return status;
}

/* ---------------------------------------------------------------------------------- numbers */

void attn_histogram_observe(attn_histogram *histogram, double value)
{
    size_t bucket = 0;
    double bound = histogram->least;
    while (bucket < ATTN_HISTOGRAM_BUCKETS - 1 && value > bound) {
        bound *= 2;
        bucket++;
    }
    atomic_fetch_add_explicit(&histogram->counts[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum_micro, (uint64_t)(value * 1e6), memory_order_relaxed);
}

void attn_engine_stats(const attn_engine *engine, attn_stats *stats)
{
    *stats = (attn_stats){
        .prefill_tokens = engine->prefill_tokens,
        .decode_steps = engine->decode_steps,
        .batches = engine->batches,
        .queue_depth = engine->n_queued,
        .prefill_in_flight = engine->n_in_flight[ATTN_JOB_PREFILL],
        .decode_in_flight = engine->n_in_flight[ATTN_JOB_DECODE],
        .verify_in_flight = engine->n_in_flight[ATTN_JOB_VERIFY],
        .tensor_in_flight = engine->n_in_flight[ATTN_JOB_TENSOR],
        .sessions_created = engine->sessions_created,
        .sessions_expired = attn_sessions_expired(engine->sessions),
        .trace_bytes = attn_trace_all_bytes(),
        .batch_size = &engine->batch_size,
        .queue_seconds = &engine->queue_seconds,
        .ttft_seconds = &engine->ttft_seconds,
        .step_seconds = &engine->step_seconds,
    };
}
