#include "engine/compute/forward.h"

#include "engine/base/base.h"
#include "engine/compute/attention.h"
#include "engine/compute/experts.h"
#include "engine/compute/rope.h"

#include <string.h>

/* Rows of one item of the row-wise phases. */
#define GROUP_ROWS 8

typedef struct batch_row {
    uint32_t span;
    uint64_t position;
} batch_row;

struct attn_forward {
    attn_pool *pool;
    const attn_kernels *kernels;
    attn_attention *attention;
    attn_experts *experts;
    float *x;         /* [rows, hidden_size] the residual stream; in a chain, a layer's input */
    float *normed;    /* [rows, hidden_size] its norm, what a branch reads */
    float *branch;    /* [rows, hidden_size] what attention or the MLP adds to it */
    float *qkv;       /* [rows, qkv_size] */
    float *z;         /* [rows, heads * head_dim] */
    float *mlp;       /* [rows, 2 * intermediate_size] gate and up */
    float *cos, *sin; /* [rows, head_dim / 2] */
    attn_queries queries[ATTN_BATCH_ROWS];
    batch_row rows[ATTN_BATCH_ROWS];
    _Atomic bool overflow[ATTN_BATCH_ROWS];
    /* The call in progress. */
    const attn_model *model;
    const attn_span *spans;
    size_t n_rows, layer;
    bool traced;                 /* a span of it has a trace */
    const float *bias, *norm;    /* of the residual phase in progress */
    attn_tensor_kind added, sum; /* its names: the branch, and the stream after it */
};

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

attn_forward *attn_forward_create(attn_pool *pool, const attn_kernels *kernels,
                                  attn_model *const *models, size_t n_models)
{
    attn_forward *f = attn_alloc(1, sizeof *f);
    if (f == NULL)
        return NULL;
    size_t hidden = 0, qkv = 0, z = 0, half = 0, wide = 0;
    for (size_t i = 0; i < n_models; i++) {
        const attn_config *c = &models[i]->config;
        hidden = larger(hidden, c->hidden_size);
        qkv = larger(qkv, attn_config_qkv_size(c));
        z = larger(z, (size_t)c->num_attention_heads * c->head_dim);
        half = larger(half, c->head_dim / 2);
        wide = larger(wide, c->intermediate_size);
    }
    f->pool = pool;
    f->kernels = kernels;
    f->x = attn_alloc(ATTN_BATCH_ROWS, hidden * sizeof *f->x);
    f->normed = attn_alloc(ATTN_BATCH_ROWS, hidden * sizeof *f->normed);
    f->branch = attn_alloc(ATTN_BATCH_ROWS, hidden * sizeof *f->branch);
    f->qkv = attn_alloc(ATTN_BATCH_ROWS, qkv * sizeof *f->qkv);
    f->z = attn_alloc(ATTN_BATCH_ROWS, z * sizeof *f->z);
    f->mlp = attn_alloc(ATTN_BATCH_ROWS, 2 * wide * sizeof *f->mlp);
    f->cos = attn_alloc(ATTN_BATCH_ROWS, half * sizeof *f->cos);
    f->sin = attn_alloc(ATTN_BATCH_ROWS, half * sizeof *f->sin);
    f->attention = attn_attention_create(pool, kernels, models, n_models, ATTN_BATCH_ROWS);
    f->experts = attn_experts_create(pool, kernels, models, n_models, ATTN_BATCH_ROWS);
    if (!f->x || !f->normed || !f->branch || !f->qkv || !f->z || !f->mlp || !f->cos || !f->sin ||
        !f->attention || !f->experts) {
        attn_forward_destroy(f);
        return NULL;
    }
    return f;
}

void attn_forward_destroy(attn_forward *f)
{
    if (f == NULL)
        return;
    attn_attention_destroy(f->attention);
    attn_experts_destroy(f->experts);
    attn_free(f->x);
    attn_free(f->normed);
    attn_free(f->branch);
    attn_free(f->qkv);
    attn_free(f->z);
    attn_free(f->mlp);
    attn_free(f->cos);
    attn_free(f->sin);
    attn_free(f);
}

/* Leaves a row (or its heads) to the traces of its span. */
static void note(const attn_forward *f, size_t r, attn_tensor_kind kind, const float *row)
{
    const attn_span *span = &f->spans[f->rows[r].span];
    for (size_t i = 0; i < 2; i++) {
        if (span->traces[i] != NULL)
            attn_trace_row(span->traces[i], kind, f->layer, f->rows[r].position, row,
                           f->model->config.head_dim);
    }
}

/* The same for rows `ld` apart that stand outside a row-wise phase. */
static void note_rows(const attn_forward *f, attn_tensor_kind kind, const float *rows, size_t ld)
{
    for (size_t r = 0; f->traced && r < f->n_rows; r++)
        note(f, r, kind, rows + r * ld);
}

/* QK-norm and RoPE of one row's q and k, in place in qkv; then its k and v go into the cache, as
 * they are read by attention from now on, this row's own included. */
static bool place_row(const attn_forward *f, size_t r)
{
    const attn_config *c = &f->model->config;
    const attn_layer *layer = &f->model->layers[f->layer];
    const attn_span *span = &f->spans[f->rows[r].span];
    const size_t head_dim = c->head_dim, half = head_dim / 2;
    const size_t n_rotated = (size_t)c->num_attention_heads + c->num_key_value_heads;
    float *q = f->qkv + r * attn_config_qkv_size(c);
    float *k = q + c->num_attention_heads * head_dim, *v = k + c->num_key_value_heads * head_dim;
    if (layer->qkv.bias != NULL)
        f->kernels->add(layer->qkv.n_out, layer->qkv.bias, q);
    note(f, r, ATTN_TENSOR_Q, q);
    note(f, r, ATTN_TENSOR_K, k);
    note(f, r, ATTN_TENSOR_V, v);
    for (size_t h = 0; c->qk_norm && h < n_rotated; h++)
        f->kernels->rmsnorm(head_dim, (float)c->rms_norm_eps, q + h * head_dim,
                            h < c->num_attention_heads ? layer->q_norm : layer->k_norm,
                            q + h * head_dim);
    note(f, r, ATTN_TENSOR_Q_NORMED, q);
    note(f, r, ATTN_TENSOR_K_NORMED, k);
    for (size_t h = 0; h < n_rotated; h++)
        f->kernels->rope(half, q + h * head_dim, f->cos + r * half, f->sin + r * half);
    note(f, r, ATTN_TENSOR_ROT_Q, q);
    note(f, r, ATTN_TENSOR_ROT_K, k);
    bool finite = f->kernels->finite(2 * c->num_key_value_heads * head_dim, k);
    if (span->read_only)
        return finite;
    const size_t slot = f->rows[r].position % ATTN_PAGE_POSITIONS;
    for (size_t h = 0; h < c->num_key_value_heads; h++)
        finite &=
            attn_block_write(span->session->kv_dtype, head_dim,
                             attn_session_block(span->session, f->rows[r].position, f->layer, h),
                             slot, k + h * head_dim, v + h * head_dim);
    return finite;
}

static void place(attn_forward *f, size_t r)
{
    if (!place_row(f, r))
        f->overflow[r] = true;
}

/* Takes a row's input in and computes its angles. */
static void begin(attn_forward *f, size_t r)
{
    const attn_config *c = &f->model->config;
    const size_t half = c->head_dim / 2, hidden = c->hidden_size;
    const attn_span *span = &f->spans[f->rows[r].span];
    uint64_t position = f->rows[r].position, at = position - span->position;
    if (attn_config_is_decoder(c))
        attn_linear_row(&f->model->embedding, span->tokens[at], f->x + r * hidden);
    else
        memcpy(f->x + r * hidden, span->inputs + at * hidden, hidden * sizeof *f->x);
    attn_rope_angles(position, half, f->model->inv_freq, f->model->rope_factor, f->cos + r * half,
                     f->sin + r * half);
    note(f, r, ATTN_TENSOR_EMBED, f->x + r * hidden);
}

/* The first norm of a decoder. */
static void norm_row(attn_forward *f, size_t r)
{
    const attn_config *c = &f->model->config;
    f->kernels->rmsnorm(c->hidden_size, (float)c->rms_norm_eps, f->x + r * c->hidden_size, f->norm,
                        f->normed + r * c->hidden_size);
}

/* Adds a branch to the residual stream and norms it for the next one. */
static void add_branch(attn_forward *f, size_t r)
{
    const size_t hidden = f->model->config.hidden_size;
    if (f->bias != NULL)
        f->kernels->add(hidden, f->bias, f->branch + r * hidden);
    note(f, r, f->added, f->branch + r * hidden);
    f->kernels->add(hidden, f->branch + r * hidden, f->x + r * hidden);
    note(f, r, f->sum, f->x + r * hidden);
    norm_row(f, r);
}

static void activate(attn_forward *f, size_t r)
{
    const size_t wide = f->model->config.intermediate_size;
    float *gate = f->mlp + r * 2 * wide;
    f->kernels->swiglu(wide, gate, gate + wide);
}

static const float *outputs(const attn_forward *f)
{
    return attn_config_is_decoder(&f->model->config) ? f->normed : f->x;
}

static void check_row(attn_forward *f, size_t r)
{
    const size_t hidden = f->model->config.hidden_size;
    if (!f->kernels->finite(hidden, outputs(f) + r * hidden))
        f->overflow[r] = true;
}

/* A row-wise phase: what is done to each row, and the call it belongs to. */
typedef struct phase {
    attn_forward *forward;
    void (*row)(attn_forward *f, size_t r);
} phase;

static void run_group(void *ctx, size_t item, unsigned worker)
{
    (void)worker;
    const phase *p = ctx;
    size_t end = (item + 1) * GROUP_ROWS;
    for (size_t r = item * GROUP_ROWS; r < end && r < p->forward->n_rows; r++)
        p->row(p->forward, r);
}

static void run_rows(attn_forward *f, void (*row)(attn_forward *f, size_t r), double cost_per_row)
{
    phase p = {f, row};
    attn_pool_run(f->pool, run_group, &p, (f->n_rows + GROUP_ROWS - 1) / GROUP_ROWS,
                  cost_per_row * (double)f->n_rows);
}

static void run_linear(const attn_forward *f, const attn_linear *linear, const float *in,
                       size_t ld_in, float *out)
{
    attn_linear_run(f->pool, f->kernels, linear, f->n_rows, in, ld_in, out);
}

/* Lists the batch's rows and describes its queries to attention. */
static void lay_out(attn_forward *f, const attn_span *spans, size_t n_spans)
{
    const attn_config *c = &f->model->config;
    const size_t qkv_size = attn_config_qkv_size(c);
    const size_t q_size = (size_t)c->num_attention_heads * c->head_dim;
    f->spans = spans;
    f->n_rows = f->layer = 0;
    f->traced = false;
    for (size_t i = 0; i < n_spans; i++) {
        ATTN_ASSERT(f->n_rows + spans[i].n_rows <= ATTN_BATCH_ROWS);
        f->traced |= spans[i].traces[0] != NULL || spans[i].traces[1] != NULL;
        f->queries[i] = (attn_queries){
            .session = spans[i].session,
            .position = spans[i].position,
            .n_rows = spans[i].n_rows,
            .q = f->qkv + f->n_rows * qkv_size,
            .ldq = qkv_size,
            .z = f->z + f->n_rows * q_size,
            .ldz = q_size,
            .overflow = f->overflow + f->n_rows,
        };
        for (size_t r = 0; r < spans[i].n_rows; r++) {
            f->overflow[f->n_rows] = false;
            f->rows[f->n_rows++] = (batch_row){(uint32_t)i, spans[i].position + r};
        }
    }
}

/* A trace that wants this layer's scores or weights, and its span's first row. */
typedef struct look {
    const attn_forward *forward;
    const attn_span *span;
    attn_trace *trace;
    size_t first_row;
} look;

/* Pool item: a row and head of it. */
static void run_look(void *ctx, size_t item, unsigned worker)
{
    const look *l = ctx;
    const attn_forward *f = l->forward;
    const attn_config *c = &f->model->config;
    size_t row = item / l->trace->n_heads, h = item % l->trace->n_heads;
    uint64_t position = l->span->position + row;
    float *scores = attn_trace_keys(l->trace, ATTN_TENSOR_SCORES, f->layer, position, h);
    float *pattern = attn_trace_keys(l->trace, ATTN_TENSOR_PATTERN, f->layer, position, h);
    if ((scores == NULL && pattern == NULL) || position < l->trace->first_key)
        return;
    uint64_t n_keys = position + 1 - l->trace->first_key;
    n_keys = n_keys < l->trace->n_keys ? n_keys : l->trace->n_keys;
    const size_t head = l->trace->heads[h];
    const float *q = f->qkv + (l->first_row + row) * attn_config_qkv_size(c) + head * c->head_dim;
    attn_attention_look(f->attention, f->model, f->layer, l->span->session, position, head, q,
                        l->trace->first_key, n_keys, scores, pattern, worker);
}

/* Scores and weights of the present layer, for the traces that want them. */
static void look_at_keys(attn_forward *f, size_t n_spans)
{
    const attn_config *c = &f->model->config;
    for (size_t i = 0, first_row = 0; f->traced && i < n_spans; i++) {
        const attn_span *span = &f->spans[i];
        for (size_t t = 0; t < 2; t++) {
            look l = {f, span, span->traces[t], first_row};
            if (l.trace == NULL || (!attn_trace_has(l.trace, ATTN_TENSOR_SCORES, f->layer) &&
                                    !attn_trace_has(l.trace, ATTN_TENSOR_PATTERN, f->layer)))
                continue;
            size_t items = span->n_rows * l.trace->n_heads;
            double keys = (double)(span->position + span->n_rows);
            attn_pool_run(f->pool, run_look, &l, items,
                          (double)items * keys * (c->head_dim + 10.0));
        }
        first_row += span->n_rows;
    }
}

/* Attention of the present layer from `in` to `out`. */
static void run_attention(attn_forward *f, size_t n_spans, const float *in, float *out)
{
    const attn_config *c = &f->model->config;
    const attn_layer *layer = &f->model->layers[f->layer];
    run_linear(f, &layer->qkv, in, c->hidden_size, f->qkv);
    run_rows(f, place, 8.0 * (double)attn_config_qkv_size(c));
    attn_attention_run(f->attention, f->model, f->layer, f->queries, n_spans);
    look_at_keys(f, n_spans);
    note_rows(f, ATTN_TENSOR_Z, f->z, layer->o.n_in);
    run_linear(f, &layer->o, f->z, layer->o.n_in, out);
}

static void run_mlp(attn_forward *f)
{
    const attn_config *c = &f->model->config;
    const attn_layer *layer = &f->model->layers[f->layer];
    if (c->num_experts > 0) {
        attn_experts_run(f->experts, f->model, layer, f->n_rows, f->normed, f->branch);
        return;
    }
    run_linear(f, &layer->mlp.gate_up, f->normed, c->hidden_size, f->mlp);
    run_rows(f, activate, 16.0 * c->intermediate_size);
    run_linear(f, &layer->mlp.down, f->mlp, 2 * (size_t)c->intermediate_size, f->branch);
}

/* Pre-norm blocks around a residual stream. */
static void run_decoder(attn_forward *f, size_t n_spans, size_t n_layers)
{
    const attn_config *c = &f->model->config;
    const double cost = 8.0 * c->hidden_size;
    f->norm = f->model->layers[0].input_norm;
    run_rows(f, norm_row, cost);
    for (f->layer = 0; f->layer < n_layers; f->layer++) {
        const attn_layer *layer = &f->model->layers[f->layer];
        bool last = f->layer + 1 == c->num_hidden_layers;
        note_rows(f, ATTN_TENSOR_RESID_PRE, f->x, c->hidden_size);
        run_attention(f, n_spans, f->normed, f->branch);
        f->bias = layer->o.bias;
        f->norm = layer->post_norm;
        f->added = ATTN_TENSOR_ATTN_OUT;
        f->sum = ATTN_TENSOR_RESID_MID;
        run_rows(f, add_branch, cost);
        run_mlp(f);
        f->bias = NULL;
        f->added = ATTN_TENSOR_MLP_OUT;
        f->sum = ATTN_TENSOR_RESID_POST;
        f->norm = last ? f->model->final_norm : layer[1].input_norm;
        run_rows(f, add_branch, cost);
    }
}

const float *attn_forward_run(attn_forward *f, const attn_model *model, const attn_span *spans,
                              size_t n_spans, size_t n_layers, bool *finite)
{
    const attn_config *c = &model->config;
    f->model = model;
    lay_out(f, spans, n_spans);
    run_rows(f, begin, 20.0 * c->head_dim + c->hidden_size);
    if (attn_config_is_decoder(c)) {
        run_decoder(f, n_spans, n_layers);
    } else {
        /* A chain: each layer's output is the next one's input. */
        for (f->layer = 0; f->layer < n_layers; f->layer++) {
            note_rows(f, ATTN_TENSOR_RESID_PRE, f->x, c->hidden_size);
            run_attention(f, n_spans, f->x, f->x);
            note_rows(f, ATTN_TENSOR_ATTN_OUT, f->x, c->hidden_size);
        }
    }
    run_rows(f, check_row, c->hidden_size);
    for (size_t r = 0; r < f->n_rows; r++)
        finite[r] = !f->overflow[r];
    return outputs(f);
}

void attn_forward_logits(attn_forward *f, const attn_model *model, const float *hidden, size_t n,
                         float *logits)
{
    attn_linear_run(f->pool, f->kernels, &model->head, n, hidden, model->config.hidden_size,
                    logits);
}

double attn_forward_cost(const attn_config *c, uint64_t position, size_t n_rows)
{
    double q_size = (double)c->num_attention_heads * c->head_dim;
    double linear = (double)c->hidden_size * ((double)attn_config_qkv_size(c) + q_size);
    double mlps = c->num_experts > 0 ? c->num_experts_per_tok + c->n_shared_experts : 1;
    linear += 3.0 * mlps * c->hidden_size * c->intermediate_size;
    double keys = (double)position + (double)(n_rows + 1) / 2;
    return (double)n_rows * c->num_hidden_layers * (linear + 2 * q_size * keys + 8 * q_size);
}
