/* echo_engine.c: stands in for the engine, to measure the server without computing.
 *
 * A decode of one row answers that row, from within attn_engine_submit: the server parses and prints
 * the same floats as it does otherwise, and nothing else happens. It has one model, of the seed's
 * shape, whose sessions all exist. Only what a one-step decode and the start and end of the server
 * touch is here in earnest. */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

struct attn_engine {
    attn_histogram histogram;
    unsigned n_threads;
};

struct attn_job {
    char id[ATTN_ID_MAX + 1];
    attn_result result;
};

attn_engine *attn_engine_open(const attn_options *options, attn_error *err)
{
    (void)err;
    attn_engine *engine = calloc(1, sizeof *engine);
    if (engine != NULL)
        engine->n_threads = options->n_threads;
    return engine;
}

void attn_engine_shutdown(attn_engine *engine)
{
    (void)engine;
}

void attn_engine_close(attn_engine *engine)
{
    free(engine);
}

const char *attn_dtype_name(attn_dtype dtype)
{
    return dtype == ATTN_F32 ? "f32" : "other";
}

size_t attn_model_count(const attn_engine *engine)
{
    (void)engine;
    return 1;
}

void attn_model_get(const attn_engine *engine, size_t index, attn_model_info *info)
{
    (void)engine;
    (void)index;
    *info = (attn_model_info){.name = "seed-attention",
                              .model_type = "attention",
                              .hidden_size = 16,
                              .max_position_embeddings = 32768};
}

ptrdiff_t attn_model_find(const attn_engine *engine, const char *name)
{
    (void)engine;
    (void)name;
    return 0;
}

const char *attn_engine_kernels(const attn_engine *engine)
{
    (void)engine;
    return "echo";
}

unsigned attn_engine_threads(const attn_engine *engine)
{
    return engine->n_threads;
}

const char *attn_session_state_name(attn_session_state state)
{
    (void)state;
    return "idle";
}

bool attn_session_id_valid(const char *id)
{
    return id[0] != '\0' && strlen(id) <= ATTN_ID_MAX;
}

static void fill_info(const char *id, attn_session_info *info)
{
    *info = (attn_session_info){.model = "seed-attention", .length = 1};
    memcpy(info->id, id, strlen(id) + 1);
}

attn_status attn_session_get(attn_engine *engine, const char *id, attn_session_info *info,
                             attn_error *err)
{
    (void)engine;
    (void)err;
    fill_info(id, info);
    return ATTN_OK;
}

attn_request attn_request_init(attn_job_kind kind)
{
    return (attn_request){.kind = kind, .if_length = UINT64_MAX};
}

const char *attn_reason_name(attn_reason reason)
{
    (void)reason;
    return "length";
}

attn_status attn_engine_submit(attn_engine *engine, const attn_request *request,
                               const attn_sink *sink, attn_job **out, attn_error *err)
{
    (void)engine;
    attn_job *job = calloc(1, sizeof *job);
    if (job == NULL || request->session == NULL) {
        free(job);
        err->status = ATTN_E_NO_MEMORY;
        return err->status;
    }
    fill_info(request->session, &job->result.session);
    memcpy(job->id, request->session, strlen(request->session) + 1);
    job->result.steps = request->n_inputs;
    *out = job;
    for (size_t i = 0; i < request->n_inputs && sink->step != NULL; i++) {
        attn_step step = {.step = i,
                          .length = i + 1,
                          .output_size = request->input_size,
                          .output = request->inputs + i * request->input_size};
        sink->step(sink->ctx, &step);
    }
    sink->done(sink->ctx);
    return ATTN_OK;
}

void attn_job_wake(attn_job *job)
{
    (void)job;
}

void attn_job_cancel(attn_job *job)
{
    (void)job;
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
    free(job);
}

void attn_histogram_observe(attn_histogram *histogram, double value)
{
    (void)value;
    atomic_fetch_add_explicit(&histogram->counts[0], 1, memory_order_relaxed);
}

void attn_engine_stats(const attn_engine *engine, attn_stats *stats)
{
    *stats = (attn_stats){.batch_size = &engine->histogram,
                          .queue_seconds = &engine->histogram,
                          .ttft_seconds = &engine->histogram,
                          .step_seconds = &engine->histogram};
}

void attn_engine_totals(attn_engine *engine, attn_totals *totals)
{
    (void)engine;
    *totals = (attn_totals){0};
}

void attn_engine_set_observer(attn_engine *engine, const attn_observer *observer)
{
    (void)engine, (void)observer;
}

void attn_engine_observe(attn_engine *engine, bool on)
{
    (void)engine, (void)on;
}

/* What no benchmark calls. */
static attn_status refuse(attn_error *err)
{
    *err = (attn_error){.status = ATTN_E_NOT_SUPPORTED, .message = "the echo engine has none"};
    return err->status;
}

size_t attn_session_list(attn_engine *engine, const char *after, size_t limit,
                         attn_session_info *infos, bool *more)
{
    (void)engine, (void)after, (void)limit, (void)infos;
    *more = false;
    return 0;
}

attn_status attn_session_delete(attn_engine *engine, const char *id, attn_error *err)
{
    (void)engine, (void)id;
    return refuse(err);
}

attn_status attn_session_truncate(attn_engine *engine, const char *id, uint64_t length,
                                  uint64_t if_length, attn_session_info *info, attn_error *err)
{
    (void)engine, (void)id, (void)length, (void)if_length, (void)info;
    return refuse(err);
}

attn_status attn_session_fork(attn_engine *engine, const char *id, const char *as, uint64_t at,
                              uint64_t if_length, attn_session_info *info, attn_error *err)
{
    (void)engine, (void)id, (void)as, (void)at, (void)if_length, (void)info;
    return refuse(err);
}

attn_status attn_session_cancel(attn_engine *engine, const char *id, attn_session_info *info,
                                attn_error *err)
{
    (void)engine, (void)id, (void)info;
    return refuse(err);
}

attn_status attn_session_inputs(attn_engine *engine, const char *id, uint64_t first, size_t n,
                                float *rows, attn_error *err)
{
    (void)engine, (void)id, (void)first, (void)n, (void)rows;
    return refuse(err);
}

attn_status attn_session_tokens(attn_engine *engine, const char *id, uint32_t **tokens, size_t *n,
                                char **text, size_t *text_len, attn_error *err)
{
    (void)engine, (void)id, (void)tokens, (void)n, (void)text, (void)text_len;
    return refuse(err);
}

attn_status attn_selection_check(const attn_engine *engine, size_t model,
                                 const attn_selection *selection, attn_error *err)
{
    (void)engine, (void)model, (void)selection;
    return refuse(err);
}

uint64_t attn_selection_bytes(const attn_engine *engine, size_t model,
                              const attn_selection *selection, uint64_t n_rows, uint64_t n_keys)
{
    (void)engine, (void)model, (void)selection, (void)n_rows, (void)n_keys;
    return 0;
}

const char *attn_event_kind_name(attn_event_kind kind)
{
    (void)kind;
    return "step";
}

attn_status attn_tokenize(attn_engine *engine, const char *model, const char *text, size_t len,
                          bool add_special, uint32_t **tokens, size_t *n, attn_error *err)
{
    (void)engine, (void)model, (void)text, (void)len, (void)add_special, (void)tokens, (void)n;
    return refuse(err);
}

attn_status attn_detokenize(attn_engine *engine, const char *model, const uint32_t *tokens,
                            size_t n, char **text, size_t *len, attn_error *err)
{
    (void)engine, (void)model, (void)tokens, (void)n, (void)text, (void)len;
    return refuse(err);
}

void attn_buffer_free(void *p)
{
    free(p);
}
