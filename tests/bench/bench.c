/* bench.c: the engine's speed as ratios to what the machine can do, all measured in this run.
 *
 * Decode: bytes of weights and cache that a step reads, a second, over the read bandwidth (small
 * contexts fit the caches and may pass 1). Prefill: multiply-adds a second over the FMA peak.
 * Times are medians. Nothing here is a test: the numbers depend on the machine and its neighbours.
 */
#include "engine/base/base.h"
#include "engine/compute/forward.h"
#include "engine/model/philox.h"
#include "tests/bench/machine_limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONTEXT 16384
#define MAX_SAMPLES 400

typedef struct setup {
    attn_pool *pool;
    attn_forward *forward;
    attn_model *model;
    attn_arena *arena;
    attn_session *session; /* MAX_CONTEXT positions of noise */
    float *inputs;         /* [ATTN_BATCH_ROWS, hidden_size] */
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

static void fill_cache(setup *s)
{
    attn_error err = {0};
    size_t floats = attn_page_bytes(s->session->pages) / sizeof(float);
    if (attn_session_reserve(s->session, MAX_CONTEXT + ATTN_BATCH_ROWS, &err) != ATTN_OK)
        die("cache", &err);
    attn_session_take_pages(s->session, MAX_CONTEXT + ATTN_BATCH_ROWS);
    for (uint64_t p = 0; p < s->session->n_pages; p++)
        attn_philox_uniform(p, "cache", 1.0f, 0, floats,
                            attn_page_data(s->session->pages, s->session->page_table[p]));
}

static setup set_up(const char *name, const char *dir, unsigned n_threads, const char *kernels)
{
    attn_error err = {0};
    const uint64_t seed = 1;
    const attn_load_options load = {.random_seed = &seed};
    setup s = {.pool = attn_pool_create(n_threads)};
    s.model = strcmp(name, "seed-attention") == 0 ? attn_model_load_builtin(0, &load, &err)
                                                  : attn_model_load(name, dir, &load, &err);
    if (s.model == NULL)
        die(name, &err);
    const attn_config *c = &s.model->config;
    s.forward = attn_forward_create(s.pool, attn_kernels_select(kernels), &s.model, 1);
    s.arena = attn_arena_create((uint64_t)1 << 30, &err);
    size_t kv_bytes = ATTN_PAGE_POSITIONS * attn_model_kv_bytes(s.model);
    attn_page_class *pages = attn_arena_add_class(s.arena, kv_bytes, 0, &err);
    if (attn_arena_reserve(s.arena, attn_session_record_bytes(s.model), &err) != ATTN_OK)
        die("arena", &err);
    s.session = attn_session_new("bench", s.model, s.arena, pages, false, 0);
    s.inputs = attn_alloc((size_t)ATTN_BATCH_ROWS * c->hidden_size, sizeof *s.inputs);
    attn_philox_uniform(2, "inputs", 1.0f, 0, (size_t)ATTN_BATCH_ROWS * c->hidden_size, s.inputs);
    fill_cache(&s);
    return s;
}

static void tear_down(setup *s)
{
    attn_session_free(s->session);
    attn_arena_destroy(s->arena);
    attn_forward_destroy(s->forward);
    attn_model_free(s->model);
    attn_pool_destroy(s->pool);
    attn_free(s->inputs);
}

/* Median seconds of one batch of n_rows rows from `position` on. */
static double time_rows(setup *s, uint64_t position, size_t n_rows)
{
    static bool finite[ATTN_BATCH_ROWS];
    double samples[MAX_SAMPLES];
    size_t n = 0;
    attn_span span = {
        .session = s->session, .position = position, .n_rows = n_rows, .inputs = s->inputs};
    for (double until = bench_now() + 0.4; n < 5 || (n < MAX_SAMPLES && bench_now() < until); n++) {
        double begin = bench_now();
        attn_forward_run(s->forward, s->model, &span, 1, finite);
        samples[n] = bench_now() - begin;
    }
    qsort(samples, n, sizeof samples[0], compare);
    return samples[n / 2];
}

/* Seconds to prefill `total` positions from an empty cache, in full batches. */
static double time_prefill(setup *s, uint64_t total)
{
    static bool finite[ATTN_BATCH_ROWS];
    double best = 1e300;
    for (int round = 0; round < 3; round++) {
        double begin = bench_now();
        for (uint64_t done = 0; done < total; done += ATTN_BATCH_ROWS) {
            uint64_t left = total - done;
            attn_span span = {.session = s->session,
                              .position = done,
                              .n_rows = left < ATTN_BATCH_ROWS ? (size_t)left : ATTN_BATCH_ROWS,
                              .inputs = s->inputs};
            attn_forward_run(s->forward, s->model, &span, 1, finite);
        }
        double seconds = bench_now() - begin;
        best = seconds < best ? seconds : best;
    }
    return best;
}

static void bench_model(const char *name, const char *dir, unsigned n_threads, const char *kernels)
{
    static const uint64_t contexts[] = {128, 512, 2048, 4096, 16384};
    static const uint64_t prompts[] = {128, 512, 2048};
    double bandwidth = limit_read_bandwidth(n_threads), peak = limit_fma_rate(n_threads, kernels);
    setup s = set_up(name, dir, n_threads, kernels);
    const attn_config *c = &s.model->config;
    double weights = (double)s.model->n_parameters * sizeof(float);
    double per_position = 2.0 * c->num_hidden_layers * c->num_key_value_heads * c->head_dim * 4;
    printf("\n%s, %s, %u thread%s: reads %.1f GB/s, peak %.1f G multiply-adds/s\n", name, kernels,
           n_threads, n_threads == 1 ? "" : "s", bandwidth / 1e9, peak / 1e9);
    for (size_t i = 0; i < sizeof contexts / sizeof contexts[0]; i++) {
        double t = time_rows(&s, contexts[i] - 1, 1);
        double bytes = weights + per_position * (double)contexts[i];
        printf("  decode   context %5llu  %9.1f us  %9.0f steps/s  %.2f of the read bandwidth\n",
               (unsigned long long)contexts[i], t * 1e6, 1 / t, bytes / t / bandwidth);
    }
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        double t = time_prefill(&s, prompts[i]), cost = 0;
        for (uint64_t done = 0; done < prompts[i]; done += ATTN_BATCH_ROWS) {
            uint64_t left = prompts[i] - done;
            cost +=
                attn_forward_cost(c, done, left < ATTN_BATCH_ROWS ? (size_t)left : ATTN_BATCH_ROWS);
        }
        printf("  prefill  prompt  %5llu  %9.1f us  %9.0f tokens/s %.2f of the FMA peak\n",
               (unsigned long long)prompts[i], t * 1e6, (double)prompts[i] / t, cost / t / peak);
    }
    tear_down(&s);
}

int main(int argc, char **argv)
{
    const char *kernels = attn_kernels_select(argc > 1 ? argv[1] : "auto")->name;
    unsigned most = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 2;
    attn_kernels_thread_init();
    for (unsigned threads = 1; threads <= most; threads *= 2) {
        bench_model("seed-attention", NULL, threads, kernels);
        bench_model("minimind-layer", "tests/reference/models/minimind-layer", threads, kernels);
    }
    return 0;
}
