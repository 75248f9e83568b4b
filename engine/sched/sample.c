#include "engine/sched/scheduler_state.h"

#include "engine/model/tokenizer.h"
#include "engine/sched/run_text.h"

#include <string.h>

/* Logits are computed for as many jobs at once as this many floats hold. */
#define LOGITS_FLOATS ((size_t)4 << 20)

bool attn_sample_create(attn_scheduler *s)
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

void attn_sample_destroy(attn_scheduler *s)
{
    for (size_t i = 0; s->samplers != NULL && i < attn_pool_threads(s->engine->pool); i++)
        attn_sampler_destroy(s->samplers[i]);
    attn_free(s->samplers);
    attn_free(s->logits);
    attn_free(s->hidden);
}

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

void attn_sample_next(attn_scheduler *s, const attn_model *model)
{
    const size_t vocab = model->config.vocab_size, hidden = model->config.hidden_size;
    size_t most = s->logits_floats / vocab;
    most = most < ATTN_BATCH_ROWS ? most : ATTN_BATCH_ROWS;
    s->n_sampled = 0;
    for (attn_job *job = attn_sched_first(s, ATTN_JOB_ACTIVE), *next;
         job != NULL && s->n_sampled < most; job = next) {
        next = job->next;
        if (job->session->model != model || !attn_job_samples(job) || job->has_next ||
            !job->session->has_last_output || attn_sched_park(s, job))
            continue;
        memcpy(s->hidden + s->n_sampled * hidden, job->session->last_output,
               hidden * sizeof *s->hidden);
        s->sampled[s->n_sampled++] = job;
    }
    if (s->n_sampled == 0)
        return;
    uint64_t begin = attn_now_ns();
    for (size_t i = 0; i < s->n_sampled; i++)
        attn_sched_start(s, s->sampled[i], begin);
    attn_forward_logits(s->engine->forward, model, s->hidden, s->n_sampled, s->logits);
    attn_pool_run(s->engine->pool, sample, s, s->n_sampled, 10.0 * (double)(s->n_sampled * vocab));
    uint64_t duration = attn_now_ns() - begin;
    for (size_t i = 0; i < s->n_sampled; i++) {
        attn_job *job = s->sampled[i];
        job->compute_ns += duration;
        job->has_next = true;
        if (!s->finite[i])
            attn_commit_overflow(s, job, job->session->length);
        else if (ends_run(job))
            attn_sched_finish(s, job, ATTN_REASON_STOP, NULL);
    }
}
