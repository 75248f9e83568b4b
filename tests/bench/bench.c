/* bench.c: the engine's speed as ratios to what the machine can do, all measured in this run.
 *
 * Decode: bytes of weights and cache that a step reads, a second, over the read bandwidth (what fits
 * the caches may pass 1). Prefill, and steps of many sessions: multiply-adds a second over the FMA
 * peak. Times are medians. Nothing here is a test: the numbers depend on the machine and its
 * neighbours. Usage: bench [kernels [most threads]] */
#include "engine/base/base.h"
#include "engine/compute/forward.h"
#include "engine/model/philox.h"
#include "tests/bench/machine_limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONTEXT 16384
#define MAX_SESSIONS 64
#define DECODER_CONTEXT 256
#define MAX_SAMPLES 400

typedef struct setup {
    attn_pool *pool;
    attn_forward *forward;
    attn_model *model;
    attn_arena *arena;
    attn_page_class *pages;
    attn_session *sessions[MAX_SESSIONS]; /* each holds noise */
    size_t n_sessions;
    float *inputs;    /* [ATTN_BATCH_ROWS, hidden_size] */
    uint32_t *tokens; /* [ATTN_BATCH_ROWS] */
    float *logits;    /* [MAX_SESSIONS, vocab_size] */
    double bandwidth, peak;
} setup;

static void die(const char *what, const attn_error *err)
{
    fprintf(stderr, "bench: %s: %s\n", what, err->message);
    exit(1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void add_session(setup *s, uint64_t positions)
{
    attn_error err = {0};
    if (attn_arena_reserve(s->arena, attn_session_record_bytes(s->model), &err) != ATTN_OK)
        die("arena", &err);
    attn_session *session =
        attn_session_new("bench", s->model, s->arena, s->pages, ATTN_F32, false, 0);
    if (attn_session_reserve(session, positions, &err) != ATTN_OK)
        die("cache", &err);
    attn_session_take_pages(session, positions);
    size_t floats = attn_page_bytes(s->pages) / sizeof(float);
    for (uint64_t p = 0; p < session->n_pages; p++)
        attn_philox_uniform(p, "cache", 1.0f, 0, floats,
                            attn_page_data(s->pages, session->page_table[p]));
    s->sessions[s->n_sessions++] = session;
}

static setup set_up(const char *name, const char *dir, const attn_dtype *dtype, unsigned n_threads,
                    const char *kernels)
{
    attn_error err = {0};
    const uint64_t seed = 1;
    const attn_load_options load = {.random_seed = &seed,
                                    .has_dtype = dtype != NULL,
                                    .dtype = dtype != NULL ? *dtype : ATTN_F32};
    setup s = {.pool = attn_pool_create(n_threads)};
    s.bandwidth = limit_read_bandwidth(n_threads);
    s.peak = limit_fma_rate(n_threads, kernels);
    s.model = dir == NULL ? attn_model_load_builtin(0, &load, &err)
                          : attn_model_load(name, dir, &load, &err);
    if (s.model == NULL)
        die(name, &err);
    const attn_config *c = &s.model->config;
    s.forward = attn_forward_create(s.pool, attn_kernels_select(kernels), &s.model, 1);
    s.arena = attn_arena_create((uint64_t)2 << 30, &err);
    s.pages = attn_arena_add_class(
        s.arena, ATTN_PAGE_POSITIONS * attn_model_kv_bytes(s.model, ATTN_F32), 0, &err);
    s.inputs = attn_alloc((size_t)ATTN_BATCH_ROWS * c->hidden_size, sizeof *s.inputs);
    s.tokens = attn_alloc(ATTN_BATCH_ROWS, sizeof *s.tokens);
    s.logits = attn_alloc((size_t)MAX_SESSIONS * c->vocab_size, sizeof *s.logits);
    attn_philox_uniform(2, "inputs", 1.0f, 0, (size_t)ATTN_BATCH_ROWS * c->hidden_size, s.inputs);
    for (uint32_t i = 0; i < ATTN_BATCH_ROWS && c->vocab_size > 0; i++)
        s.tokens[i] = i * 31 % c->vocab_size;
    printf("\n%s, %s weights, %s, %u thread%s: reads %.1f GB/s, peak %.1f G multiply-adds/s\n",
           name, attn_dtype_name(s.model->weights_dtype), kernels, n_threads,
           n_threads == 1 ? "" : "s", s.bandwidth / 1e9, s.peak / 1e9);
    return s;
}

static void tear_down(setup *s)
{
    for (size_t i = 0; i < s->n_sessions; i++)
        attn_session_free(s->sessions[i]);
    attn_arena_destroy(s->arena);
    attn_forward_destroy(s->forward);
    attn_model_free(s->model);
    attn_pool_destroy(s->pool);
    attn_free(s->inputs);
    attn_free(s->tokens);
    attn_free(s->logits);
}

/* n_rows rows of the first session from `position` on. */
static void run_rows(setup *s, uint64_t position, size_t n_rows)
{
    static bool finite[ATTN_BATCH_ROWS];
    attn_span span = {.session = s->sessions[0],
                      .position = position,
                      .n_rows = n_rows,
                      .inputs = s->inputs,
                      .tokens = s->tokens};
    attn_forward_run(s->forward, s->model, &span, 1, s->model->config.num_hidden_layers, finite);
}

/* One step of the first n sessions, logits included. */
static void run_step(setup *s, uint64_t position, size_t n)
{
    static bool finite[ATTN_BATCH_ROWS];
    attn_span spans[MAX_SESSIONS];
    for (size_t i = 0; i < n; i++)
        spans[i] = (attn_span){.session = s->sessions[i],
                               .position = position,
                               .n_rows = 1,
                               .inputs = s->inputs,
                               .tokens = s->tokens + i};
    const float *hidden = attn_forward_run(s->forward, s->model, spans, n,
                                           s->model->config.num_hidden_layers, finite);
    if (attn_config_is_decoder(&s->model->config))
        attn_forward_logits(s->forward, s->model, hidden, n, s->logits);
}

/* Median seconds of a step of n sessions at `position`. */
static double time_step(setup *s, uint64_t position, size_t n)
{
    double samples[MAX_SAMPLES];
    size_t k = 0;
    for (double until = bench_now() + 0.4; k < 5 || (k < MAX_SAMPLES && bench_now() < until); k++) {
        double begin = bench_now();
        run_step(s, position, n);
        samples[k] = bench_now() - begin;
    }
    qsort(samples, k, sizeof samples[0], compare);
    return samples[k / 2];
}

/* Prefills `total` positions from an empty cache, in full batches. */
static void report_prefill(setup *s, uint64_t total)
{
    double best = 1e300, cost = 0;
    for (int round = 0; round < 3; round++) {
        double begin = bench_now();
        cost = 0;
        for (uint64_t done = 0; done < total; done += ATTN_BATCH_ROWS) {
            uint64_t left = total - done;
            size_t n = left < ATTN_BATCH_ROWS ? (size_t)left : ATTN_BATCH_ROWS;
            run_rows(s, done, n);
            cost += attn_forward_cost(&s->model->config, done, n);
        }
        double seconds = bench_now() - begin;
        best = seconds < best ? seconds : best;
    }
    printf("  prefill  prompt  %5llu  %9.1f us  %9.0f tokens/s  %.2f of the FMA peak\n",
           (unsigned long long)total, best * 1e6, (double)total / best, cost / best / s->peak);
}

static void report_step(setup *s, uint64_t context, size_t n)
{
    const attn_config *c = &s->model->config;
    double t = time_step(s, context - 1, n);
    double kv = (double)attn_model_kv_bytes(s->model, ATTN_F32) * (double)context * (double)n;
    double bytes = (double)s->model->weights_bytes + kv;
    double cost =
        (double)n * (attn_forward_cost(c, context, 1) + (double)c->vocab_size * c->hidden_size);
    printf("  decode   context %5llu  %2zu session%s  %9.1f us  %9.0f steps/s  %.2f of the read "
           "bandwidth, %.2f of the FMA peak\n",
           (unsigned long long)context, n, n == 1 ? " " : "s", t * 1e6, (double)n / t,
           bytes / t / s->bandwidth, cost / t / s->peak);
}

static void bench_layer(const char *name, const char *dir, unsigned n_threads, const char *kernels)
{
    static const uint64_t contexts[] = {128, 512, 2048, 4096, 16384}, prompts[] = {128, 512, 2048};
    setup s = set_up(name, dir, NULL, n_threads, kernels);
    add_session(&s, MAX_CONTEXT + ATTN_BATCH_ROWS);
    for (size_t i = 0; i < sizeof contexts / sizeof contexts[0]; i++)
        report_step(&s, contexts[i], 1);
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++)
        report_prefill(&s, prompts[i]);
    tear_down(&s);
}

/* A whole language model: MiniMind 3's shape, 64 M parameters, random weights. */
static void bench_decoder(attn_dtype dtype, unsigned n_threads, const char *kernels)
{
    static const size_t sessions[] = {1, 4, 16, 64};
    setup s = set_up("minimind3", "tests/bench/models/minimind3", &dtype, n_threads, kernels);
    while (s.n_sessions < MAX_SESSIONS)
        add_session(&s, DECODER_CONTEXT + ATTN_BATCH_ROWS);
    for (size_t i = 0; i < sizeof sessions / sizeof sessions[0]; i++)
        report_step(&s, DECODER_CONTEXT, sessions[i]);
    report_prefill(&s, DECODER_CONTEXT);
    tear_down(&s);
}

int main(int argc, char **argv)
{
    const char *kernels = attn_kernels_select(argc > 1 ? argv[1] : "auto")->name;
    unsigned most = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 2;
    attn_kernels_thread_init();
    for (unsigned threads = 1; threads <= most; threads *= 2) {
        bench_layer("seed-attention", NULL, threads, kernels);
        bench_layer("minimind-layer", "tests/reference/models/minimind-layer", threads, kernels);
    }
    for (int dtype = ATTN_F32; dtype < ATTN_DTYPES; dtype++)
        bench_decoder((attn_dtype)dtype, most, kernels);
    return 0;
}
