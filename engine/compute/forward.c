#include "engine/compute/forward.h"

#include "engine/base/base.h"
#include "engine/compute/attention.h"
#include "engine/compute/rope.h"

#include <string.h>

/* Rows of one matmul item: with a panel they stay in the second-level cache; a multiple of every
 * variant's tile. */
#define CHUNK_ROWS 72
/* Rows of one item of the row-wise phases. */
#define GROUP_ROWS 8

typedef struct row {
    uint32_t span;
    uint64_t position;
} row;

struct attn_forward {
    attn_pool *pool;
    const attn_kernels *kernels;
    attn_attention *attention;
    float *x;         /* [rows, hidden_size] a layer's input, then its output */
    float *qkv;       /* [rows, qkv_size] */
    float *z;         /* [rows, heads * head_dim] */
    float *cos, *sin; /* [rows, head_dim / 2] */
    attn_queries queries[ATTN_BATCH_ROWS];
    row rows[ATTN_BATCH_ROWS];
    _Atomic bool overflow[ATTN_BATCH_ROWS];
    /* The call in progress. */
    const attn_model *model;
    const attn_span *spans;
    size_t n_rows, layer;
    const attn_linear *linear; /* the matmul phase in progress */
    const float *linear_in;
    float *linear_out;
};

attn_forward *attn_forward_create(attn_pool *pool, const attn_kernels *kernels,
                                  attn_model *const *models, size_t n_models)
{
    attn_forward *f = attn_alloc(1, sizeof *f);
    if (f == NULL)
        return NULL;
    size_t hidden = 0, qkv = 0, z = 0, half = 0;
    for (size_t i = 0; i < n_models; i++) {
        const attn_config *c = &models[i]->config;
        size_t q_size = (size_t)c->num_attention_heads * c->head_dim;
        hidden = c->hidden_size > hidden ? c->hidden_size : hidden;
        qkv = attn_config_qkv_size(c) > qkv ? attn_config_qkv_size(c) : qkv;
        z = q_size > z ? q_size : z;
        half = c->head_dim / 2 > half ? c->head_dim / 2 : half;
    }
    f->pool = pool;
    f->kernels = kernels;
    f->x = attn_alloc(ATTN_BATCH_ROWS, hidden * sizeof *f->x);
    f->qkv = attn_alloc(ATTN_BATCH_ROWS, qkv * sizeof *f->qkv);
    f->z = attn_alloc(ATTN_BATCH_ROWS, z * sizeof *f->z);
    f->cos = attn_alloc(ATTN_BATCH_ROWS, half * sizeof *f->cos);
    f->sin = attn_alloc(ATTN_BATCH_ROWS, half * sizeof *f->sin);
    f->attention = attn_attention_create(pool, kernels, models, n_models, ATTN_BATCH_ROWS);
    if (!f->x || !f->qkv || !f->z || !f->cos || !f->sin || !f->attention) {
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
    attn_free(f->x);
    attn_free(f->qkv);
    attn_free(f->z);
    attn_free(f->cos);
    attn_free(f->sin);
    attn_free(f);
}

/* Pool item: one panel of outputs for one chunk of rows. */
static void run_panel(void *ctx, size_t item, unsigned worker)
{
    (void)worker;
    const attn_forward *f = ctx;
    const attn_linear *linear = f->linear;
    size_t panels = attn_linear_panels(linear);
    size_t panel = item % panels, first = item / panels * CHUNK_ROWS;
    size_t m = f->n_rows - first < CHUNK_ROWS ? f->n_rows - first : CHUNK_ROWS;
    size_t out = panel * ATTN_PANEL;
    size_t n = linear->n_out - out < ATTN_PANEL ? linear->n_out - out : ATTN_PANEL;
    f->kernels->matmul(m, n, linear->n_in, f->linear_in + first * linear->n_in, linear->n_in,
                       linear->panels + panel * linear->n_in * ATTN_PANEL,
                       f->linear_out + first * linear->n_out + out, linear->n_out);
}

static void run_linear(attn_forward *f, const attn_linear *linear, const float *in, float *out)
{
    f->linear = linear;
    f->linear_in = in;
    f->linear_out = out;
    size_t chunks = (f->n_rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
    attn_pool_run(f->pool, run_panel, f, attn_linear_panels(linear) * chunks,
                  (double)f->n_rows * (double)linear->n_in * (double)linear->n_out);
}

/* QK-norm and RoPE of one row's q and k, in place in qkv; then its k and v go into the cache, as
 * they are read by attention from now on, this row's own included. */
static void place_row(const attn_forward *f, size_t r, bool *finite)
{
    const attn_config *c = &f->model->config;
    const attn_layer *layer = &f->model->layers[f->layer];
    const attn_span *span = &f->spans[f->rows[r].span];
    const size_t head_dim = c->head_dim, half = head_dim / 2;
    const size_t n_rotated = (size_t)c->num_attention_heads + c->num_key_value_heads;
    float *q = f->qkv + r * attn_config_qkv_size(c);
    float *k = q + c->num_attention_heads * head_dim, *v = k + c->num_key_value_heads * head_dim;
    for (size_t h = 0; h < n_rotated; h++) {
        float *head = q + h * head_dim;
        if (c->qk_norm)
            f->kernels->rmsnorm(head_dim, (float)c->rms_norm_eps, head,
                                h < c->num_attention_heads ? layer->q_norm : layer->k_norm, head);
        f->kernels->rope(half, head, f->cos + r * half, f->sin + r * half);
    }
    *finite = f->kernels->finite(2 * c->num_key_value_heads * head_dim, k);
    if (span->read_only)
        return;
    const size_t slot = f->rows[r].position % ATTN_PAGE_POSITIONS;
    float *page = attn_session_page(span->session, f->rows[r].position);
    for (size_t h = 0; h < c->num_key_value_heads; h++) {
        float *k_page = page + attn_page_block(c, f->layer, h);
        float *v_page = k_page + ATTN_PAGE_POSITIONS * head_dim;
        for (size_t i = 0; i < head_dim; i++)
            k_page[i * ATTN_PAGE_POSITIONS + slot] = k[h * head_dim + i];
        memcpy(v_page + slot * head_dim, v + h * head_dim, head_dim * sizeof *v);
    }
}

/* Pool item: a group of rows. */
static void place_rows(void *ctx, size_t item, unsigned worker)
{
    (void)worker;
    attn_forward *f = ctx;
    for (size_t r = item * GROUP_ROWS; r < (item + 1) * GROUP_ROWS && r < f->n_rows; r++) {
        bool finite;
        place_row(f, r, &finite);
        if (!finite)
            f->overflow[r] = true;
    }
}

/* Pool item: copies a group's inputs in and computes its angles. */
static void begin_rows(void *ctx, size_t item, unsigned worker)
{
    (void)worker;
    const attn_forward *f = ctx;
    const attn_config *c = &f->model->config;
    const size_t half = c->head_dim / 2, hidden = c->hidden_size;
    for (size_t r = item * GROUP_ROWS; r < (item + 1) * GROUP_ROWS && r < f->n_rows; r++) {
        const attn_span *span = &f->spans[f->rows[r].span];
        uint64_t position = f->rows[r].position;
        memcpy(f->x + r * hidden, span->inputs + (position - span->position) * hidden,
               hidden * sizeof *f->x);
        attn_rope_angles(position, half, f->model->inv_freq, f->cos + r * half, f->sin + r * half);
    }
}

/* Pool item: checks a group's outputs. */
static void check_rows(void *ctx, size_t item, unsigned worker)
{
    (void)worker;
    attn_forward *f = ctx;
    const size_t hidden = f->model->config.hidden_size;
    for (size_t r = item * GROUP_ROWS; r < (item + 1) * GROUP_ROWS && r < f->n_rows; r++) {
        if (!f->kernels->finite(hidden, f->x + r * hidden))
            f->overflow[r] = true;
    }
}

static void run_rows(attn_forward *f, attn_pool_fn fn, double cost_per_row)
{
    attn_pool_run(f->pool, fn, f, (f->n_rows + GROUP_ROWS - 1) / GROUP_ROWS,
                  cost_per_row * (double)f->n_rows);
}

/* Lists the batch's rows and describes its queries to attention. */
static void lay_out(attn_forward *f, const attn_span *spans, size_t n_spans)
{
    const attn_config *c = &f->model->config;
    const size_t qkv_size = attn_config_qkv_size(c);
    const size_t q_size = (size_t)c->num_attention_heads * c->head_dim;
    f->spans = spans;
    f->n_rows = 0;
    for (size_t i = 0; i < n_spans; i++) {
        ATTN_ASSERT(f->n_rows + spans[i].n_rows <= ATTN_BATCH_ROWS);
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
            f->rows[f->n_rows++] = (row){(uint32_t)i, spans[i].position + r};
        }
    }
}

const float *attn_forward_run(attn_forward *f, const attn_model *model, const attn_span *spans,
                              size_t n_spans, bool *finite)
{
    const attn_config *c = &model->config;
    f->model = model;
    lay_out(f, spans, n_spans);
    run_rows(f, begin_rows, 20.0 * c->head_dim + c->hidden_size);
    /* An `attention` model is a chain: each layer's output is the next one's input. */
    for (f->layer = 0; f->layer < c->num_hidden_layers; f->layer++) {
        const attn_layer *layer = &model->layers[f->layer];
        run_linear(f, &layer->qkv, f->x, f->qkv);
        run_rows(f, place_rows, 8.0 * (double)attn_config_qkv_size(c));
        attn_attention_run(f->attention, model, f->layer, f->queries, n_spans);
        run_linear(f, &layer->o, f->z, f->x);
    }
    run_rows(f, check_rows, c->hidden_size);
    for (size_t r = 0; r < f->n_rows; r++)
        finite[r] = !f->overflow[r];
    return f->x;
}

double attn_forward_cost(const attn_config *c, uint64_t position, size_t n_rows)
{
    double q_size = (double)c->num_attention_heads * c->head_dim;
    double linear = (double)c->hidden_size * ((double)attn_config_qkv_size(c) + q_size);
    double keys = (double)position + (double)(n_rows + 1) / 2;
    return (double)n_rows * c->num_hidden_layers * (linear + 2 * q_size * keys + 8 * q_size);
}
