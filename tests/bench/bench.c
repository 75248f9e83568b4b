/* bench.c: the engine's speed as ratios to what the machine can do, all measured in this run.
 *
 * Decode: bytes of weights and cache that a step reads, a second, over the read bandwidth (what fits
 * the caches may pass 1). Prefill, and steps of many sessions: multiply-adds a second over the FMA
 * peak. Each limit is measured between the runs of what is held against it. A row gives the median
 * time of a run, the median of the ratios, and in brackets the fastest run over the fastest probe,
 * which is what an undisturbed machine gives. Nothing here is a test: the numbers depend on the
 * machine and its neighbours.
 *
 * Usage: bench [--kernels NAME] [--threads MOST] [--seconds A_ROW] [section...]
 * Sections: layer model batch prefill busy start idle; without any, all of them. */
#include "engine/base/base.h"
#include "tests/bench/bench_model.h"
#include "tests/bench/machine_limits.h"

#include <fcntl.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Caches of this many bytes lie far outside the last-level cache. */
#define CACHE_BYTES ((uint64_t)128 << 20)
#define MODEL_CONTEXT 256

static const char *kernels = "auto";
static unsigned most_threads = 2;
static double row_seconds = 0.8;

typedef struct run_args {
    bench_model *m;
    uint64_t position;
    size_t n;
} run_args;

static void run_step(void *ctx)
{
    run_args *a = ctx;
    bench_model_step(a->m, a->position, a->n);
}

static void run_linears(void *ctx)
{
    run_args *a = ctx;
    bench_model_linears(a->m, a->n);
}

static void run_attention(void *ctx)
{
    run_args *a = ctx;
    bench_model_attention(a->m, a->position, 1, a->n);
}

/* Prefills n positions in full batches. */
static void run_prefill(void *ctx)
{
    run_args *a = ctx;
    for (size_t done = 0; done < a->n; done += ATTN_BATCH_ROWS)
        bench_model_prefill(a->m, done,
                            a->n - done < ATTN_BATCH_ROWS ? a->n - done : ATTN_BATCH_ROWS);
}

static void run_prefill_attention(void *ctx)
{
    run_args *a = ctx;
    for (size_t done = 0; done < a->n; done += ATTN_BATCH_ROWS)
        bench_model_attention(a->m, done,
                              a->n - done < ATTN_BATCH_ROWS ? a->n - done : ATTN_BATCH_ROWS, 1);
}

static void report(const char *what, const limit_result *r, const char *limit)
{
    printf("  %-44s %10.1f us   %.2f of %s [%.2f]\n", what, r->seconds * 1e6, r->ratio, limit,
           r->best_ratio);
    fflush(stdout);
}

static limit_result against_reads(run_args *a, double bytes, void (*fn)(void *))
{
    return limit_measure(limit_read, a->m->n_threads, kernels, row_seconds, bytes, fn, a);
}

static limit_result against_fma(run_args *a, double cost, void (*fn)(void *))
{
    return limit_measure(limit_fma, a->m->n_threads, kernels, row_seconds, cost, fn, a);
}

/* How much faster the last of `r` (the most threads) is than the first (one). */
static void report_speedup(const limit_result *r)
{
    if (most_threads > 1)
        printf("  %-44s %10.2f x        [%.2f, limits %.2f]\n", "  threads against one",
               r[0].seconds / r[1].seconds, r[0].best_seconds / r[1].best_seconds,
               r[1].limit / r[0].limit);
}

/* ------------------------------------------------------------------------------------- layer */

typedef struct shape {
    const char *name, *dir;
} shape;
static const shape shapes[] = {
    {"minimind-layer", "tests/reference/models/minimind-layer"},
    {"qwen3-layer", "tests/bench/models/qwen3-layer"},
    {"seed-attention", NULL},
};

static void layer_rows(const shape *s, attn_dtype dtype)
{
    limit_result results[2];
    char what[80];
    for (unsigned threads = 1, i = 0; threads <= most_threads; threads *= 2, i = 1) {
        bench_model m = bench_model_open(s->dir, ATTN_F32, dtype, threads, kernels);
        uint64_t per_position = attn_model_kv_bytes(m.model, dtype);
        uint64_t context = s->dir == NULL ? 16384 : CACHE_BYTES / per_position;
        bench_model_add_session(&m, context);
        run_args a = {&m, context - 1, 1};
        double bytes = (double)m.model->weights_bytes + (double)(per_position * context);
        results[i] = against_reads(&a, bytes, run_step);
        snprintf(what, sizeof what, "%s %s cache, %llu positions, %uT", s->name,
                 attn_dtype_name(dtype), (unsigned long long)context, threads);
        report(what, &results[i], "reads");
        bench_model_close(&m);
    }
    report_speedup(results);
}

static void section_layer(void)
{
    printf(
        "\ndecode of one attention layer, one session, cache of 128 MiB (seed: 16k positions)\n");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int dtype = ATTN_F32; dtype < ATTN_DTYPES; dtype++)
            layer_rows(&shapes[i], (attn_dtype)dtype);
    }
    printf("the same by length, minimind-layer, f32: cost a position\n");
    bench_model m = bench_model_open(shapes[0].dir, ATTN_F32, ATTN_F32, most_threads, kernels);
    bench_model_add_session(&m, 131072);
    for (uint64_t context = 16384; context <= 131072; context *= 2) {
        run_args a = {&m, context - 1, 1};
        limit_result r = against_reads(&a, (double)context * 3072, run_step);
        printf("  %6llu positions %10.1f us   %.1f ns a position [%.1f]\n",
               (unsigned long long)context, r.seconds * 1e6, r.seconds * 1e9 / (double)context,
               r.best_seconds * 1e9 / (double)context);
    }
    bench_model_close(&m);
}

/* ------------------------------------------------------------------------------------- model */

static const char minimind3[] = "tests/bench/models/minimind3";

static void section_model(void)
{
    printf("\ndecode of MiniMind-3 (64 M parameters), one session, %d positions\n", MODEL_CONTEXT);
    for (int dtype = ATTN_F32; dtype < ATTN_DTYPES; dtype++) {
        limit_result results[2];
        char what[80];
        for (unsigned threads = 1, i = 0; threads <= most_threads; threads *= 2, i = 1) {
            bench_model m =
                bench_model_open(minimind3, (attn_dtype)dtype, ATTN_F32, threads, kernels);
            bench_model_add_session(&m, MODEL_CONTEXT);
            run_args a = {&m, MODEL_CONTEXT - 1, 1};
            double bytes = (double)m.model->weights_bytes +
                           (double)attn_model_kv_bytes(m.model, ATTN_F32) * MODEL_CONTEXT;
            results[i] = against_reads(&a, bytes, run_step);
            snprintf(what, sizeof what, "%s weights, %uT", attn_dtype_name((attn_dtype)dtype),
                     threads);
            report(what, &results[i], "reads");
            bench_model_close(&m);
        }
        report_speedup(results);
    }
}

/* ------------------------------------------------------------------------------------- batch */

static void section_batch(void)
{
    static const size_t sessions[] = {4, 16, 64};
    printf("\ndecode of MiniMind-3, many sessions, %d positions each\n", MODEL_CONTEXT);
    for (int dtype = ATTN_F32; dtype < ATTN_DTYPES; dtype++) {
        bench_model m =
            bench_model_open(minimind3, (attn_dtype)dtype, ATTN_F32, most_threads, kernels);
        const attn_config *c = &m.model->config;
        while (m.n_sessions < 64)
            bench_model_add_session(&m, MODEL_CONTEXT);
        for (size_t i = 0; i < sizeof sessions / sizeof sessions[0]; i++) {
            run_args a = {&m, MODEL_CONTEXT - 1, sessions[i]};
            double linear = bench_model_linear_cost(&m, a.n);
            double attention = (double)a.n * MODEL_CONTEXT * 2 * c->num_attention_heads *
                               c->head_dim * c->num_hidden_layers;
            double head = (double)a.n * c->vocab_size * c->hidden_size;
            char what[80];
            limit_result r = against_fma(&a, linear, run_linears);
            snprintf(what, sizeof what, "%s, %zu sessions, matmuls",
                     attn_dtype_name((attn_dtype)dtype), a.n);
            report(what, &r, "FMA peak");
            r = against_fma(&a, attention, run_attention);
            snprintf(what, sizeof what, "%s, %zu sessions, attention",
                     attn_dtype_name((attn_dtype)dtype), a.n);
            report(what, &r, "FMA peak");
            r = against_fma(&a, linear + attention + head, run_step);
            snprintf(what, sizeof what, "%s, %zu sessions, whole step",
                     attn_dtype_name((attn_dtype)dtype), a.n);
            report(what, &r, "FMA peak");
        }
        bench_model_close(&m);
    }
}

/* ----------------------------------------------------------------------------------- prefill */

static void prefill_rows(const shape *s, attn_dtype weights, size_t n)
{
    limit_result results[2];
    char what[80];
    for (unsigned threads = 1, i = 0; threads <= most_threads; threads *= 2, i = 1) {
        bench_model m = bench_model_open(s->dir, weights, ATTN_F32, threads, kernels);
        const attn_config *c = &m.model->config;
        bench_model_add_session(&m, n);
        run_args a = {&m, 0, n};
        double linear = bench_model_linear_cost(&m, n);
        double attention = (double)n * (double)(n + 1) / 2 * 2 * c->num_attention_heads *
                           c->head_dim * c->num_hidden_layers;
        results[i] = against_fma(&a, linear + attention, run_prefill);
        snprintf(what, sizeof what, "%s %s, %zu, %uT", s->name, attn_dtype_name(weights), n,
                 threads);
        report(what, &results[i], "FMA peak");
        limit_result r = against_fma(&a, attention, run_prefill_attention);
        report("  its attention", &r, "FMA peak");
        bench_model_close(&m);
    }
    report_speedup(results);
}

static void section_prefill(void)
{
    printf("\nprefill from an empty cache\n");
    static const shape whole = {"minimind3", minimind3};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (size_t n = 512; n <= 2048; n *= 4)
            prefill_rows(&shapes[i], ATTN_F32, n);
    }
    for (int dtype = ATTN_F32; dtype < ATTN_DTYPES; dtype++)
        prefill_rows(&whole, (attn_dtype)dtype, 512);
}

/* -------------------------------------------------------------------------------------- busy */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_step(run_args *a, double seconds)
{
    static double times[4000];
    size_t n = 0;
    for (double until = bench_now() + seconds; n < 4000 && (n < 9 || bench_now() < until); n++) {
        double begin = bench_now();
        run_step(a);
        times[n] = bench_now() - begin;
    }
    qsort(times, n, sizeof times[0], compare);
    return times[n / 2];
}

/* A child that keeps one processor busy. */
static pid_t start_spinning(void)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    sched_setaffinity(0, sizeof set, &set);
    for (;;)
        __asm__ volatile("");
}

static void section_busy(void)
{
    printf("\none processor taken by another process: median step against the undisturbed one\n");
    static const struct {
        const char *name, *dir;
        uint64_t context;
    } cases[] = {{"seed-attention", NULL, 16384},
                 {"minimind-layer", "tests/reference/models/minimind-layer", 4096},
                 {"minimind3", minimind3, MODEL_CONTEXT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench_model m = bench_model_open(cases[i].dir, ATTN_F32, ATTN_F32, most_threads, kernels);
        bench_model_add_session(&m, cases[i].context);
        run_args a = {&m, cases[i].context - 1, 1};
        median_step(&a, 0.2);
        double alone = median_step(&a, 1), disturbed;
        pid_t child = start_spinning();
        disturbed = median_step(&a, 2);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        printf("  %-44s %10.1f us   %.1f us, %.2f x\n", cases[i].name, alone * 1e6, disturbed * 1e6,
               disturbed / alone);
        bench_model_close(&m);
    }
}

/* ------------------------------------------------------------------------------------- start */

/* A checkpoint of MiniMind-3's shape in f32: 250 MB of small values. */
typedef struct checkpoint {
    FILE *header;
    size_t bytes;
} checkpoint;

static void add_tensor(checkpoint *c, const char *name, size_t rows, size_t cols)
{
    size_t bytes = rows * (cols > 0 ? cols : 1) * sizeof(float);
    fprintf(c->header, "%s\"%s.weight\":{\"dtype\":\"F32\",\"shape\":[%zu", c->bytes ? "," : "{",
            name, rows);
    if (cols > 0)
        fprintf(c->header, ",%zu", cols);
    fprintf(c->header, "],\"data_offsets\":[%zu,%zu]}", c->bytes, c->bytes + bytes);
    c->bytes += bytes;
}

static void write_checkpoint(const char *path, const attn_config *c)
{
    static const char *const kinds[] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",        "self_attn.o_proj",
        "self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj",           "mlp.up_proj",
        "mlp.down_proj",    "input_layernorm",  "post_attention_layernorm"};
    const size_t hidden = c->hidden_size, wide = c->intermediate_size, dim = c->head_dim,
                 q = c->num_attention_heads * dim, kv = c->num_key_value_heads * dim;
    const size_t shapes_of[][2] = {{q, hidden},    {kv, hidden}, {kv, hidden},   {hidden, q},
                                   {dim, 0},       {dim, 0},     {wide, hidden}, {wide, hidden},
                                   {hidden, wide}, {hidden, 0},  {hidden, 0}};
    char *text = NULL, name[128];
    size_t len = 0;
    checkpoint all = {.header = open_memstream(&text, &len)};
    add_tensor(&all, "model.embed_tokens", c->vocab_size, hidden);
    add_tensor(&all, "model.norm", hidden, 0);
    for (size_t l = 0; l < c->num_hidden_layers; l++) {
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
            snprintf(name, sizeof name, "model.layers.%zu.%s", l, kinds[i]);
            add_tensor(&all, name, shapes_of[i][0], shapes_of[i][1]);
        }
    }
    fprintf(all.header, "}");
    fclose(all.header);
    FILE *file = fopen(path, "wb");
    uint64_t size = len;
    float values[1024];
    for (size_t i = 0; i < 1024; i++)
        values[i] = (float)(i % 97) * 1e-3f - 0.05f;
    if (file == NULL || fwrite(&size, sizeof size, 1, file) != 1 ||
        fwrite(text, 1, len, file) != len)
        abort();
    for (size_t at = 0; at < all.bytes; at += sizeof values) {
        size_t n = all.bytes - at < sizeof values ? all.bytes - at : sizeof values;
        if (fwrite(values, 1, n, file) != n)
            abort();
    }
    fclose(file);
    free(text);
}

/* Seconds of one read() of the file into fresh memory. */
static double time_read(const char *path)
{
    double begin = bench_now();
    int fd = open(path, O_RDONLY);
    off_t size = lseek(fd, 0, SEEK_END);
    char *bytes =
        mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fd < 0 || bytes == MAP_FAILED)
        abort();
    for (off_t at = 0; at < size;) {
        ssize_t n = pread(fd, bytes + at, (size_t)(size - at), at);
        if (n <= 0)
            abort();
        at += n;
    }
    double seconds = bench_now() - begin;
    munmap(bytes, (size_t)size);
    close(fd);
    return seconds;
}

static double time_open(const char *dir, const attn_dtype *dtype)
{
    const attn_model_source source = {.name = "bench", .dir = dir};
    const attn_options options = {.models = &source,
                                  .n_models = 1,
                                  .n_threads = most_threads,
                                  .kv_memory_bytes = (uint64_t)1 << 30,
                                  .max_sessions = 1000,
                                  .queue = 100,
                                  .stall_timeout_ms = 1000,
                                  .kernels = kernels,
                                  .has_weights_dtype = dtype != NULL,
                                  .weights_dtype = dtype != NULL ? *dtype : ATTN_F32};
    attn_error err = {0};
    double begin = bench_now();
    attn_engine *engine = attn_engine_open(&options, &err);
    double seconds = bench_now() - begin;
    if (engine == NULL) {
        fprintf(stderr, "bench: %s\n", err.message);
        exit(1);
    }
    attn_engine_close(engine);
    return seconds;
}

static void section_start(void)
{
    char dir[] = "/tmp/attnd-bench-XXXXXX", path[128], from[128];
    char config[4096];
    bench_model m = bench_model_open(minimind3, ATTN_BF16, ATTN_F32, 1, kernels);
    if (mkdtemp(dir) == NULL)
        abort();
    snprintf(path, sizeof path, "%s/config.json", dir);
    snprintf(from, sizeof from, "%s/config.json", minimind3);
    FILE *in = fopen(from, "rb"), *out = fopen(path, "wb");
    size_t n = fread(config, 1, sizeof config, in);
    fwrite(config, 1, n, out);
    fclose(in);
    fclose(out);
    char file[128];
    snprintf(file, sizeof file, "%s/model.safetensors", dir);
    write_checkpoint(file, &m.model->config);
    bench_model_close(&m);
    printf("\nstart: engine with a 250 MB checkpoint ready, against read() of the file\n");
    for (int dtype = -1; dtype < ATTN_DTYPES; dtype++) {
        attn_dtype as = (attn_dtype)(dtype < 0 ? ATTN_F32 : dtype);
        double read = 1e9, opened = 1e9;
        for (int round = 0; round < 5; round++) {
            double seconds = time_read(file);
            read = seconds < read ? seconds : read;
            seconds = time_open(dir, dtype < 0 ? NULL : &as);
            opened = seconds < opened ? seconds : opened;
        }
        printf("  %-44s %10.1f ms   read %.1f ms, %.2f x\n",
               dtype < 0 ? "as it is (f32)" : attn_dtype_name(as), opened * 1e3, read * 1e3,
               opened / read);
    }
    unlink(file);
    unlink(path);
    rmdir(dir);
}

/* -------------------------------------------------------------------------------------- idle */

static void on_done(void *ctx)
{
    sem_post(ctx);
}

static void run_job(attn_engine *engine, const attn_request *request)
{
    sem_t done;
    attn_job *job;
    attn_error err = {0};
    sem_init(&done, 0, 0);
    const attn_sink sink = {.ctx = &done, .done = on_done};
    if (attn_engine_submit(engine, request, &sink, &job, &err) != ATTN_OK) {
        fprintf(stderr, "bench: %s\n", err.message);
        exit(1);
    }
    sem_wait(&done);
    attn_job_release(job);
    sem_destroy(&done);
}

static void section_idle(void)
{
    printf("\nsteps of one session of the seed layer beside idle ones\n");
    const attn_options options = {.default_model = "seed-attention",
                                  .n_threads = most_threads,
                                  .kv_memory_bytes = (uint64_t)2 << 30,
                                  .max_sessions = 100000,
                                  .queue = 100,
                                  .stall_timeout_ms = 1000,
                                  .kernels = kernels};
    attn_error err = {0};
    attn_engine *engine = attn_engine_open(&options, &err);
    if (engine == NULL)
        abort();
    static const size_t counts[] = {0, 1, 1000, 20000};
    float rows[16 * 16] = {0.5f, -0.25f};
    size_t n = 0;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (; n <= counts[i]; n++) {
            char id[32];
            snprintf(id, sizeof id, "s%zu", n);
            attn_request prefill = attn_request_init(ATTN_JOB_PREFILL);
            prefill.session = id;
            prefill.inputs = rows;
            prefill.n_inputs = 16;
            prefill.input_size = 16;
            run_job(engine, &prefill);
        }
        double best = 1e9, times[9];
        for (int round = 0; round < 9; round++) {
            attn_request decode = attn_request_init(ATTN_JOB_DECODE);
            decode.session = "s0";
            decode.steps = 2000;
            double begin = bench_now();
            run_job(engine, &decode);
            times[round] = bench_now() - begin;
            best = times[round] < best ? times[round] : best;
            attn_session_info info;
            if (attn_session_truncate(engine, "s0", 16, UINT64_MAX, &info, &err) != ATTN_OK)
                abort();
        }
        qsort(times, 9, sizeof times[0], compare);
        printf("  %6zu idle sessions %38.2f us a step [%.2f]\n", counts[i], times[4] / 2000 * 1e6,
               best / 2000 * 1e6);
    }
    attn_engine_close(engine);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } sections[] = {{"layer", section_layer}, {"model", section_model},
                    {"batch", section_batch}, {"prefill", section_prefill},
                    {"busy", section_busy},   {"start", section_start},
                    {"idle", section_idle}};
    const size_t n_sections = sizeof sections / sizeof sections[0];
    int at = 1;
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        if (strcmp(argv[at], "--kernels") == 0)
            kernels = argv[at + 1];
        else if (strcmp(argv[at], "--threads") == 0)
            most_threads = strcmp(argv[at + 1], "1") == 0 ? 1 : 2;
        else
            row_seconds = strtod(argv[at + 1], NULL);
    }
    kernels = attn_kernels_select(kernels)->name;
    attn_kernels_thread_init();
    printf("%s kernels; one thread reads %.1f GB/s, %.1f G multiply-adds/s; %u: %.1f, %.1f\n",
           kernels, limit_read(1, kernels) / 1e9, limit_fma(1, kernels) / 1e9, most_threads,
           limit_read(most_threads, kernels) / 1e9, limit_fma(most_threads, kernels) / 1e9);
    for (size_t i = 0; i < n_sections; i++) {
        bool wanted = at == argc;
        for (int k = at; k < argc; k++)
            wanted = wanted || strcmp(argv[k], sections[i].name) == 0;
        if (wanted)
            sections[i].run();
    }
    return 0;
}
