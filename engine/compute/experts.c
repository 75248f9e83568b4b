#include "engine/compute/experts.h"

#include "engine/base/base.h"

#include <string.h>

struct attn_experts {
    attn_pool *pool;
    const attn_kernels *kernels;
    float *logits;      /* [rows, num_experts] the router's */
    float *scores;      /* [num_experts, rounded up to 16] one row's probabilities */
    uint32_t *ids;      /* [rows, experts per token] chosen, ascending */
    float *weights;     /* [rows, experts per token] */
    uint32_t *rows;     /* [rows] that chose the expert at work */
    float *row_weights; /* [rows] and what they weigh it with */
    float *in;          /* [rows, hidden_size] gathered */
    float *mid;         /* [rows, 2 * intermediate_size] */
    float *expert_out;  /* [rows, hidden_size] */
};

static size_t score_stride(const attn_config *c)
{
    return ((size_t)c->num_experts + ATTN_LANES - 1) / ATTN_LANES * ATTN_LANES;
}

attn_experts *attn_experts_create(attn_pool *pool, const attn_kernels *kernels,
                                  attn_model *const *models, size_t n_models, size_t max_rows)
{
    attn_experts *e = attn_alloc(1, sizeof *e);
    if (e == NULL)
        return NULL;
    size_t hidden = 0, wide = 0, scores = 0, chosen = 0;
    for (size_t i = 0; i < n_models; i++) {
        const attn_config *c = &models[i]->config;
        if (c->num_experts == 0)
            continue;
        hidden = c->hidden_size > hidden ? c->hidden_size : hidden;
        wide = c->intermediate_size > wide ? c->intermediate_size : wide;
        scores = score_stride(c) > scores ? score_stride(c) : scores;
        chosen = c->num_experts_per_tok > chosen ? c->num_experts_per_tok : chosen;
    }
    e->pool = pool;
    e->kernels = kernels;
    e->logits = attn_alloc(max_rows, scores * sizeof *e->logits);
    e->scores = attn_alloc(scores, sizeof *e->scores);
    e->row_weights = attn_alloc(max_rows, sizeof *e->row_weights);
    e->ids = attn_alloc(max_rows, chosen * sizeof *e->ids);
    e->weights = attn_alloc(max_rows, chosen * sizeof *e->weights);
    e->rows = attn_alloc(max_rows, sizeof *e->rows);
    e->in = attn_alloc(max_rows, hidden * sizeof *e->in);
    e->mid = attn_alloc(max_rows, 2 * wide * sizeof *e->mid);
    e->expert_out = attn_alloc(max_rows, hidden * sizeof *e->expert_out);
    if (!e->logits || !e->scores || !e->row_weights || !e->ids || !e->weights || !e->rows ||
        !e->in || !e->mid || !e->expert_out) {
        attn_experts_destroy(e);
        return NULL;
    }
    return e;
}

void attn_experts_destroy(attn_experts *e)
{
    if (e == NULL)
        return;
    attn_free(e->logits);
    attn_free(e->scores);
    attn_free(e->row_weights);
    attn_free(e->ids);
    attn_free(e->weights);
    attn_free(e->rows);
    attn_free(e->in);
    attn_free(e->mid);
    attn_free(e->expert_out);
    attn_free(e);
}

/* Chooses a row's experts from its logits. */
static void choose(const attn_experts *e, const attn_config *c, float *scores, uint32_t *ids,
                   float *weights)
{
    float max, sum, chosen_sum = 0.0f;
    e->kernels->softmax(c->num_experts, scores, &max, &sum);
    for (size_t i = 0; i < c->num_experts; i++)
        scores[i] /= sum;
    for (size_t k = 0; k < c->num_experts_per_tok; k++) {
        size_t best = c->num_experts;
        for (size_t i = 0; i < c->num_experts; i++) {
            bool taken = false;
            for (size_t j = 0; j < k; j++)
                taken = taken || ids[j] == i;
            if (!taken && (best == c->num_experts || scores[i] > scores[best]))
                best = i;
        }
        ids[k] = (uint32_t)best;
    }
    /* Ascending ids: the order in which their outputs are summed. */
    for (size_t k = 1; k < c->num_experts_per_tok; k++) {
        for (size_t j = k; j > 0 && ids[j - 1] > ids[j]; j--) {
            uint32_t id = ids[j];
            ids[j] = ids[j - 1];
            ids[j - 1] = id;
        }
    }
    for (size_t k = 0; k < c->num_experts_per_tok; k++)
        chosen_sum += scores[ids[k]];
    for (size_t k = 0; k < c->num_experts_per_tok; k++)
        weights[k] = c->norm_topk_prob ? scores[ids[k]] / chosen_sum : scores[ids[k]];
}

static void run_mlp(const attn_experts *e, const attn_mlp *mlp, size_t n, const float *in,
                    size_t wide)
{
    attn_linear_run(e->pool, e->kernels, &mlp->gate_up, n, in, mlp->gate_up.n_in, e->mid);
    for (size_t r = 0; r < n; r++)
        e->kernels->swiglu(wide, e->mid + r * 2 * wide, e->mid + r * 2 * wide + wide);
    attn_linear_run(e->pool, e->kernels, &mlp->down, n, e->mid, 2 * wide, e->expert_out);
}

/* One expert for the rows that chose it. */
static void run_expert(attn_experts *e, const attn_config *c, const attn_mlp *mlp, uint32_t id,
                       size_t n, const float *x, float *out)
{
    const size_t hidden = c->hidden_size, per_row = c->num_experts_per_tok;
    size_t n_chosen = 0;
    for (size_t r = 0; r < n; r++) {
        for (size_t k = 0; k < per_row; k++) {
            if (e->ids[r * per_row + k] != id)
                continue;
            memcpy(e->in + n_chosen * hidden, x + r * hidden, hidden * sizeof *x);
            e->row_weights[n_chosen] = e->weights[r * per_row + k];
            e->rows[n_chosen++] = (uint32_t)r;
        }
    }
    if (n_chosen == 0)
        return;
    run_mlp(e, mlp, n_chosen, e->in, c->intermediate_size);
    for (size_t i = 0; i < n_chosen; i++)
        e->kernels->merge(hidden, 1.0f, out + e->rows[i] * hidden, e->row_weights[i],
                          e->expert_out + i * hidden);
}

void attn_experts_run(attn_experts *e, const attn_model *model, const attn_layer *layer, size_t n,
                      const float *x, float *out)
{
    const attn_config *c = &model->config;
    const size_t hidden = c->hidden_size, per_row = c->num_experts_per_tok;
    attn_linear_run(e->pool, e->kernels, &layer->router, n, x, hidden, e->logits);
    for (size_t r = 0; r < n; r++) {
        memcpy(e->scores, e->logits + r * c->num_experts, c->num_experts * sizeof *e->scores);
        choose(e, c, e->scores, e->ids + r * per_row, e->weights + r * per_row);
    }
    memset(out, 0, n * hidden * sizeof *out);
    for (uint32_t id = 0; id < c->num_experts; id++)
        run_expert(e, c, &layer->experts[id], id, n, x, out);
    for (size_t s = 0; s < c->n_shared_experts; s++) {
        run_mlp(e, &layer->experts[c->num_experts + s], n, x, c->intermediate_size);
        e->kernels->add(n * hidden, e->expert_out, out);
    }
}
