#include "engine/sched/look.h"

#include <string.h>

void attn_look_read_cache(attn_job *job, size_t n)
{
    const attn_request *r = &job->request;
    const attn_session *s = job->view;
    const size_t head_dim = s->model->config.head_dim;
    float rows[2][1024]; /* the most head_dim */
    for (size_t i = 0; i < n; i++) {
        uint64_t key = r->first_key + job->n_done + i;
        float *to = attn_trace_cache_row(job->trace, r->tensor, r->layer, key);
        for (size_t h = 0; h < job->heads.n_kv; h++) {
            attn_block_read(s->kv_dtype, head_dim,
                            attn_session_block(s, key, r->layer, job->heads.kv[h]),
                            key % ATTN_PAGE_POSITIONS, rows[0], rows[1]);
            memcpy(to + h * head_dim, rows[r->tensor == ATTN_TENSOR_VALUE], head_dim * sizeof *to);
        }
    }
}

/* Sets the ends of ranges that were left open, and checks all. */
static attn_status check_ranges(attn_request *r, uint64_t length, attn_error *err)
{
    const bool keys = attn_tensor_has_keys(r->tensor);
    const bool cache = keys && !attn_tensor_has_heads(r->tensor);
    if (cache && (r->first_query != 0 || r->end_query != UINT64_MAX))
        return attn_fail(err, ATTN_E_INVALID, "q", "a cache tensor has keys (k) only");
    if (!keys && (r->first_key != 0 || r->end_key != UINT64_MAX))
        return attn_fail(err, ATTN_E_INVALID, "k", "this tensor has no axis of keys");
    if (r->end_query == UINT64_MAX)
        r->end_query = length;
    if (r->end_key == UINT64_MAX)
        r->end_key = r->end_query;
    const char *param =
        !cache && (r->first_query >= r->end_query || r->end_query > length) ? "q"
        : keys && (r->first_key >= r->end_key || r->end_key > (cache ? length : r->end_query))
            ? "k"
            : NULL;
    if (param == NULL)
        return ATTN_OK;
    attn_fail(err, ATTN_E_INVALID, param,
              "a range begins before it ends, within the session, and keys end where queries do");
    attn_error_detail(err, "length", length);
    return ATTN_E_INVALID;
}

/* The heads of the tensor's own axis that the request chooses. */
static attn_status choose_heads(attn_job *job, const attn_config *c, attn_error *err)
{
    const attn_request *r = &job->request;
    const bool kv = attn_tensor_has_kv_heads(r->tensor);
    const uint32_t limit = kv ? c->num_key_value_heads : c->num_attention_heads;
    if (r->some_heads && !kv && !attn_tensor_has_heads(r->tensor))
        return attn_fail(err, ATTN_E_INVALID, "heads", "this tensor has no heads");
    attn_selection all = {.tensors = 1u << r->tensor, .some_layers = true};
    attn_choice_add(&all.layers, r->layer);
    attn_trace_choose(c, &all, &job->heads);
    if (!r->some_heads)
        return ATTN_OK;
    uint32_t *list = kv ? job->heads.kv : job->heads.query;
    size_t n = 0;
    for (uint32_t h = 0; h < ATTN_CHOICE_MAX; h++) {
        if (!attn_choice_has(&r->heads, h))
            continue;
        if (h >= limit) {
            attn_fail(err, ATTN_E_TENSOR_NOT_FOUND, "heads", "the tensor has not so many");
            attn_error_detail(err, "limit", limit);
            return ATTN_E_TENSOR_NOT_FOUND;
        }
        list[n++] = h;
    }
    *(kv ? &job->heads.n_kv : &job->heads.n) = n;
    return n > 0 ? ATTN_OK : attn_fail(err, ATTN_E_INVALID, "heads", "at least one is needed");
}

/* Everything of a TENSOR job but the replay. */
static attn_status prepare_look(attn_job *job, attn_error *err)
{
    attn_request *r = &job->request;
    attn_session *session = job->looked;
    const attn_config *c = &session->model->config;
    const bool cache = attn_look_is_of_cache(job);
    attn_status status = attn_job_check_options(r, session, err);
    attn_selection selection = {.tensors = 1u << r->tensor, .some_layers = true};
    if (status != ATTN_OK)
        return status;
    const uint32_t n_layers =
        c->num_hidden_layers < ATTN_CHOICE_MAX ? c->num_hidden_layers : ATTN_CHOICE_MAX;
    if (r->layer >= n_layers) {
        attn_fail(err, ATTN_E_TENSOR_NOT_FOUND, "name", "the model has not so many layers");
        attn_error_detail(err, "limit", n_layers);
        return ATTN_E_TENSOR_NOT_FOUND;
    }
    attn_choice_add(&selection.layers, r->layer);
    status = attn_trace_check(c, &selection, err);
    if (status == ATTN_E_TENSOR_NOT_FOUND)
        err->param = "name";
    if (status == ATTN_OK)
        status = choose_heads(job, c, err);
    attn_sessions_info(job->engine->sessions, session, &job->result.session);
    /* A session that is being deleted is shorter first. */
    if (status == ATTN_OK && session->given_back)
        status = attn_fail(err, ATTN_E_SESSION_NOT_FOUND, "session", "no such session");
    if (status == ATTN_OK)
        status = check_ranges(r, job->result.session.length, err);
    if (status == ATTN_OK && !cache && !session->keep_inputs)
        status = attn_fail(err, ATTN_E_INPUTS_NOT_KEPT, NULL,
                           "the session does not keep its inputs (keep_inputs), which this needs");
    uint64_t n_rows = r->end_query - r->first_query, n_keys = r->end_key - r->first_key;
    if (status == ATTN_OK)
        status = attn_job_check_trace_bytes(
            attn_trace_bytes(c, &selection, &job->heads, n_rows, n_keys), cache ? "k" : "q", err);
    if (status != ATTN_OK)
        return status;
    const uint64_t end = cache ? r->end_key : r->end_query;
    job->n_positions = cache ? n_keys : n_rows;
    job->view = attn_session_new_view(session, end);
    job->trace = attn_trace_create(c, &selection, &job->heads, r->first_query, (size_t)n_rows,
                                   r->first_key, n_keys);
    if (job->view == NULL || job->trace == NULL)
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory for a tensor");
    job->result.trace = job->trace;
    return attn_session_add_reader(session, &job->reader, end, err);
}

attn_status attn_look_attach(attn_job *job, attn_error *err)
{
    attn_engine *engine = job->engine;
    job->looked = attn_sessions_find(engine->sessions, job->id);
    if (job->looked == NULL)
        return attn_fail(err, ATTN_E_SESSION_NOT_FOUND, "session", "no such session");
    job->state = ATTN_JOB_ASIDE;
    attn_status status = prepare_look(job, err);
    if (status != ATTN_OK) {
        attn_free(job->view);
        attn_sessions_unreference(engine->sessions, job->looked);
    }
    return status;
}

void attn_look_release(attn_job *job)
{
    attn_session_remove_reader(job->looked, &job->reader);
    attn_sessions_unreference(job->engine->sessions, job->looked);
    attn_free(job->view);
    job->looked = job->view = NULL;
}
