/* job.h: a request at work, from admission to its result.
 *
 * A job is WAITING (for a busy session), then ACTIVE (its rows may go into batches), from time to
 * time PARKED (its sink is not ready), then ended. A TENSOR job is ASIDE: it runs in the time that
 * the others leave. After submission only the scheduler thread
 * touches it, except the atomic fields. It has two references, the host's and the scheduler's.
 */
#ifndef ATTN_JOB_H
#define ATTN_JOB_H

#include "engine/engine_state.h"

typedef enum attn_job_state {
    ATTN_JOB_WAITING,
    ATTN_JOB_ACTIVE,
    ATTN_JOB_PARKED,
    ATTN_JOB_ASIDE,
    ATTN_JOB_STATES
} attn_job_state;

struct attn_job {
    attn_engine *engine;
    attn_job_kind kind;
    attn_sink sink;
    _Atomic uint32_t references;
    char id[ATTN_ID_MAX + 1];
    attn_request request; /* borrowed until `done`; `session` and `model` only for submission */
    uint32_t *tokens;     /* a language model's ids: given, or encoded from text */
    size_t n_tokens;
    bool prepared; /* the rows or tokens are taken in */
    bool special;  /* and the text with what begins one */

    _Atomic bool cancelled, woken, parked;

    attn_session *session; /* held, or waited for; NULL once released, and of a TENSOR job */
    bool created;          /* this job made the session */
    attn_session *shadow;  /* VERIFY: the recomputed cache */
    attn_session *looked;  /* TENSOR: referenced, and read through the view */
    attn_session *view;
    attn_reader reader;
    attn_trace *trace;      /* PREFILL, TENSOR: the tensors asked for */
    attn_trace_heads heads; /* of a trace */
    uint64_t start_length;
    uint64_t n_positions; /* prefill rows, decode steps, positions to verify or to look at */
    uint64_t n_done;
    bool started;   /* in a batch at least once */
    float *outputs; /* PREFILL: kept output rows */
    float *logits;  /* PREFILL: kept logits */

    /* DECODE of a language model. */
    uint32_t *stop_token_ids;   /* copy */
    struct attn_run_text *text; /* NULL: its model has no tokenizer */
    bool has_next;              /* next_token was chosen for the present length */
    uint32_t next_token;
    attn_logprob logprobs[ATTN_LOGPROBS_MAX]; /* of next_token's step */

    attn_job_state state;
    struct attn_job *next, *previous; /* in the scheduler's list of its state */
    uint64_t submitted_ns, started_ns, last_step_ns, compute_ns;
    uint64_t deadline_ns; /* WAITING, PARKED: when to give up */

    attn_result result;
};

/* Whether the job samples its tokens, rather than being given them. */
static inline bool attn_job_samples(const struct attn_job *job)
{
    return job->kind == ATTN_JOB_DECODE && job->n_tokens == 0 && job->request.n_inputs == 0 &&
           attn_config_is_decoder(&job->session->model->config);
}

/* Admits a job whose session it holds: checks the request against the session's present length and
 * reserves what it may use. Any thread. On error the session is unchanged and still held. */
ATTN_MUST_CHECK attn_status attn_job_admit(struct attn_job *job, attn_error *err);

/* Begins anew with a job whose session vanished while it waited: it makes the session, or waits for
 * another who does. On error it has no session. Thread: the scheduler; the job is on no list. */
ATTN_MUST_CHECK attn_status attn_job_start_over(struct attn_job *job, attn_error *err);

/* What a request must have in common with a session that exists. Its fixed fields may be read without
 * holding it. Errors: MODEL_MISMATCH, SESSION_EXISTS. */
ATTN_MUST_CHECK attn_status attn_job_check_options(const attn_request *request,
                                                   const attn_session *session, attn_error *err);
/* Whether one request may look at so many bytes. Errors: TENSOR_TOO_LARGE. */
ATTN_MUST_CHECK attn_status attn_job_check_trace_bytes(uint64_t bytes, const char *param,
                                                       attn_error *err);

/* Releases what the job holds, fills its result and calls `done`; gives the scheduler's reference
 * back. Returns true when other jobs wait for the session. Thread: the scheduler. */
bool attn_job_finish(struct attn_job *job, attn_reason reason, const attn_error *error);

#endif
