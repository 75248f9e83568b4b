#include "tests/bench/bench_model.h"

#include "engine/base/base.h"
#include "engine/compute/linear_run.h"
#include "engine/model/philox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what, const attn_error *err)
{
    fprintf(stderr, "bench: %s: %s\n", what, err->message);
    exit(1);
}

bench_model bench_model_open(const char *dir, attn_dtype weights, attn_dtype kv_dtype,
                             unsigned n_threads, const char *kernels)
{
    attn_error err = {0};
    const uint64_t seed = 1;
    const attn_load_options load = {.random_seed = &seed, .has_dtype = true, .dtype = weights};
    bench_model m = {.kernels = kernels, .n_threads = n_threads, .kv_dtype = kv_dtype};
    m.model = dir == NULL ? attn_model_load_builtin(ATTN_BUILTIN_SEED, &load, &err)
                          : attn_model_load("bench", dir, &load, &err);
    if (m.model == NULL)
        die(dir, &err);
    const attn_config *c = &m.model->config;
    m.pool = attn_pool_create(n_threads);
    m.forward = attn_forward_create(m.pool, attn_kernels_select(kernels), &m.model, 1);
    m.attention =
        attn_attention_create(m.pool, attn_kernels_select(kernels), &m.model, 1, ATTN_BATCH_ROWS);
    m.arena = attn_arena_create((uint64_t)3 << 30, &err);
    m.pages = attn_arena_add_class(
        m.arena, ATTN_PAGE_POSITIONS * attn_model_kv_bytes(m.model, kv_dtype), 0, &err);
    size_t wide = attn_config_qkv_size(c) + 2 * (size_t)c->intermediate_size + c->vocab_size;
    m.inputs = attn_alloc((size_t)ATTN_BATCH_ROWS * (c->hidden_size + c->intermediate_size +
                                                     c->num_attention_heads * c->head_dim),
                          sizeof *m.inputs);
    m.tokens = attn_alloc(ATTN_BATCH_ROWS, sizeof *m.tokens);
    m.logits = attn_alloc((size_t)BENCH_SESSIONS * c->vocab_size, sizeof *m.logits);
    m.wide = attn_alloc(ATTN_BATCH_ROWS * wide, sizeof *m.wide);
    attn_philox_uniform(2, "inputs", 1.0f, 0, (size_t)ATTN_BATCH_ROWS * c->hidden_size, m.inputs);
    for (uint32_t i = 0; i < ATTN_BATCH_ROWS && c->vocab_size > 0; i++)
        m.tokens[i] = i * 31 % c->vocab_size;
    return m;
}

void bench_model_close(bench_model *m)
{
    for (size_t i = 0; i < m->n_sessions; i++)
        attn_session_free(m->sessions[i]);
    attn_arena_destroy(m->arena);
    attn_attention_destroy(m->attention);
    attn_forward_destroy(m->forward);
    attn_model_free(m->model);
    attn_pool_destroy(m->pool);
    attn_free(m->inputs);
    attn_free(m->tokens);
    attn_free(m->logits);
    attn_free(m->wide);
}

/* Fills a page with keys and values. */
static void fill_page(bench_model *m, attn_session *session, float *rows)
{
    const attn_config *c = &m->model->config;
    for (size_t l = 0; l < c->num_hidden_layers; l++) {
        for (size_t h = 0; h < c->num_key_value_heads; h++) {
            for (size_t slot = 0; slot < ATTN_PAGE_POSITIONS; slot++) {
                const float *k = rows + (l + h + slot) % 32 * c->head_dim;
                if (!attn_block_write(m->kv_dtype, c->head_dim,
                                      attn_session_block(session, 0, l, h), slot, k,
                                      k + c->head_dim))
                    abort();
            }
        }
    }
}

void bench_model_add_session(bench_model *m, uint64_t positions)
{
    attn_error err = {0};
    if (attn_arena_reserve(m->arena, attn_session_record_bytes(m->model), &err) != ATTN_OK)
        die("arena", &err);
    attn_session *session =
        attn_session_new("bench", m->model, m->arena, m->pages, m->kv_dtype, false, 0);
    if (attn_session_reserve(session, positions, &err) != ATTN_OK)
        die("cache", &err);
    attn_session_take_pages(session, positions);
    size_t head_dim = m->model->config.head_dim;
    float *rows = attn_alloc(33 * head_dim, sizeof *rows);
    attn_philox_uniform(3, "cache", 1.0f, 0, 33 * head_dim, rows);
    fill_page(m, session, rows);
    attn_free(rows);
    for (uint64_t p = 1; p < session->n_pages; p++)
        memcpy(attn_page_data(m->pages, session->page_table[p]),
               attn_page_data(m->pages, session->page_table[0]), attn_page_bytes(m->pages));
    m->sessions[m->n_sessions++] = session;
}

void bench_model_prefill(bench_model *m, uint64_t position, size_t n_rows)
{
    static bool finite[ATTN_BATCH_ROWS];
    attn_span span = {.session = m->sessions[0],
                      .position = position,
                      .n_rows = n_rows,
                      .inputs = m->inputs,
                      .tokens = m->tokens};
    attn_forward_run(m->forward, m->model, &span, 1, m->model->config.num_hidden_layers, finite);
}

void bench_model_step(bench_model *m, uint64_t position, size_t n)
{
    static bool finite[ATTN_BATCH_ROWS];
    attn_span spans[BENCH_SESSIONS];
    for (size_t i = 0; i < n; i++)
        spans[i] = (attn_span){.session = m->sessions[i],
                               .position = position,
                               .n_rows = 1,
                               .inputs = m->inputs,
                               .tokens = m->tokens + i};
    const float *hidden = attn_forward_run(m->forward, m->model, spans, n,
                                           m->model->config.num_hidden_layers, finite);
    if (attn_config_is_decoder(&m->model->config))
        attn_forward_logits(m->forward, m->model, hidden, n, m->logits);
}

void bench_model_linears(bench_model *m, size_t n)
{
    const attn_config *c = &m->model->config;
    const attn_kernels *kernels = attn_kernels_select(m->kernels);
    const size_t z = c->num_attention_heads * c->head_dim;
    for (size_t l = 0; l < c->num_hidden_layers; l++) {
        const attn_layer *layer = &m->model->layers[l];
        attn_linear_run(m->pool, kernels, &layer->qkv, n, m->inputs, c->hidden_size, m->wide);
        attn_linear_run(m->pool, kernels, &layer->o, n, m->inputs, z, m->wide);
        if (!attn_config_is_decoder(c))
            continue;
        attn_linear_run(m->pool, kernels, &layer->mlp.gate_up, n, m->inputs, c->hidden_size,
                        m->wide);
        attn_linear_run(m->pool, kernels, &layer->mlp.down, n, m->inputs, c->intermediate_size,
                        m->wide);
    }
}

double bench_model_linear_cost(const bench_model *m, size_t n)
{
    const attn_config *c = &m->model->config;
    double per_layer = (double)c->hidden_size * (double)attn_config_qkv_size(c);
    per_layer += (double)c->hidden_size * c->num_attention_heads * c->head_dim;
    per_layer += 3.0 * c->hidden_size * c->intermediate_size;
    return per_layer * c->num_hidden_layers * (double)n;
}

void bench_model_attention(bench_model *m, uint64_t position, size_t n_rows, size_t n_sessions)
{
    static _Atomic bool overflow[ATTN_BATCH_ROWS];
    static attn_queries queries[ATTN_BATCH_ROWS];
    const attn_config *c = &m->model->config;
    const size_t z = c->num_attention_heads * c->head_dim;
    for (size_t i = 0; i < n_sessions; i++)
        queries[i] = (attn_queries){.session = m->sessions[i],
                                    .position = position,
                                    .n_rows = n_rows,
                                    .q = m->inputs,
                                    .ldq = z,
                                    .z = m->wide,
                                    .ldz = z,
                                    .overflow = overflow};
    for (size_t l = 0; l < c->num_hidden_layers; l++)
        attn_attention_run(m->attention, m->model, l, queries, n_sessions);
}
