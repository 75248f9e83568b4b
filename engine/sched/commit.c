#include "engine/sched/scheduler_state.h"

#include "engine/model/tokenizer.h"
#include "engine/sched/run_text.h"

#include <math.h>
#include <string.h>

void attn_commit_overflow(attn_scheduler *s, attn_job *job, uint64_t position)
{
    attn_error err;
    attn_fail(&err, ATTN_E_NON_FINITE, job->request.n_inputs > 0 ? "inputs" : NULL,
              "the step overflowed float32 and was not committed");
    attn_error_detail(&err, "position", position);
    attn_sched_fail(s, job, &err);
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

static void observe_first_output(attn_job *job, uint64_t now)
{
    attn_histogram_observe(&job->engine->ttft_seconds, (double)(now - job->submitted_ns) / 1e9);
}

static void commit_decode(attn_scheduler *s, const attn_batch_part *part, const float *output)
{
    attn_job *job = part->job;
    attn_session *session = job->session;
    uint64_t position = session->length, now = attn_now_ns();
    if (!s->finite[part->first_row]) {
        attn_commit_overflow(s, job, part->replay ? position - 1 : position);
        return;
    }
    if (part->untraced) {
        attn_error err;
        attn_fail(&err, ATTN_E_NO_MEMORY, NULL, "out of memory for a trace");
        attn_sched_fail(s, job, &err);
        return;
    }
    if (part->replay) {
        attn_session_commit_output(session, position, output);
        return;
    }
    bool fed = job->request.n_inputs > 0 || job->n_tokens > 0;
    const void *input = fed                     ? job_input(job, job->n_done)
                        : attn_job_samples(job) ? (const void *)&job->next_token
                                                : session->last_output;
    uint32_t token = job->n_tokens > 0 ? job->tokens[job->n_done] : job->next_token;
    keep_input(session, position, input);
    job->has_next = false;
    attn_session_commit_output(session, position + 1, output);
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
        attn_sched_finish(s, job, ATTN_REASON_LENGTH, NULL);
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

static void commit_prefill(attn_scheduler *s, const attn_batch_part *part, const float *outputs)
{
    attn_job *job = part->job;
    attn_session *session = job->session;
    const size_t hidden = session->model->config.hidden_size;
    for (size_t r = 0; r < part->n_rows; r++) {
        if (!s->finite[part->first_row + r]) {
            attn_commit_overflow(s, job, job->start_length + job->n_done + r);
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
        attn_commit_overflow(s, job, job->start_length + job->n_positions - 1);
        return;
    }
    attn_session_commit_output(session, job->start_length + job->n_positions, last);
    tell_prefill(s, job);
    observe_first_output(job, attn_now_ns());
    attn_sched_finish(s, job, ATTN_REASON_LENGTH, NULL);
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

static void compare_blocks(attn_scheduler *s, attn_result *result, size_t head_dim, attn_kv_block a,
                           attn_kv_block b, attn_dtype dtype, size_t slot)
{
    float *k[2] = {s->rows[0], s->rows[1]}, *v[2] = {s->rows[2], s->rows[3]};
    attn_block_read(dtype, head_dim, a, slot, k[0], v[0]);
    attn_block_read(dtype, head_dim, b, slot, k[1], v[1]);
    compare(result, k[0], k[1], head_dim);
    compare(result, v[0], v[1], head_dim);
}

/* Compares the recomputed K, V and last output with the session's. */
static void commit_verify(attn_scheduler *s, const attn_batch_part *part, const float *outputs)
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
    attn_sched_finish(s, job, ATTN_REASON_LENGTH, NULL);
}

void attn_commit_part(attn_scheduler *s, const attn_batch_part *part, const float *outputs)
{
    if (part->job->kind == ATTN_JOB_DECODE)
        commit_decode(s, part, outputs);
    else if (part->job->kind == ATTN_JOB_PREFILL)
        commit_prefill(s, part, outputs);
    else
        commit_verify(s, part, outputs);
    attn_trace_release(part->trace);
    attn_trace_release(part->watched);
}
