#include "engine/compute/attention.h"

#include "engine/base/base.h"

#include <math.h>
#include <string.h>

#define SEGMENT_PAGES (ATTN_SEGMENT / ATTN_PAGE_POSITIONS)
/* Partials kept at once when the segments of few blocks are spread over the threads. */
#define MIN_SLOTS 64
/* Pages in one call of scores or mix. */
#define STEP_PAGES (ATTN_MIX_KEYS / ATTN_PAGE_POSITIONS)
/* A block of this few vectors waits for memory rather than for arithmetic. */
#define READ_VECTORS 4
/* Pages that are read side by side. */
#define READ_STREAMS 8

/* Up to ATTN_QUERY_ROWS query vectors that read one KV head: some rows times some heads. */
typedef struct block {
    uint32_t queries; /* index */
    uint32_t first_row, n_rows;
    uint32_t kv_head, first_head, n_heads;
} block;

/* A partial softmax of a block's vectors over some keys. Vector r is row r / n_heads, head
 * r % n_heads of the block. sum[r] 0: no key yet. */
typedef struct partial {
    float max[ATTN_QUERY_ROWS], sum[ATTN_QUERY_ROWS];
    float *o; /* [ATTN_QUERY_ROWS, head_dim] */
} partial;

/* One thread's scratch. */
typedef struct scratch {
    float *q;      /* [ATTN_QUERY_ROWS, head_dim] */
    float *scores; /* [ATTN_QUERY_ROWS, ATTN_SEGMENT] */
    partial total, segment;
} scratch;

struct attn_attention {
    attn_pool *pool;
    const attn_kernels *kernels;
    block *blocks;
    size_t max_blocks, n_blocks;
    scratch *scratches; /* [threads] */
    partial *slots;     /* [n_slots] one segment's partial */
    partial *totals;    /* [n_slots] one block's total */
    size_t n_slots;
    /* The call in progress. */
    const attn_model *model;
    size_t layer;
    const attn_queries *queries;
    size_t first_segment, n_segments; /* the round of a spread call */
};

static size_t heads_per_block(const attn_config *c)
{
    size_t group = c->num_attention_heads / c->num_key_value_heads;
    return group < ATTN_QUERY_ROWS ? group : ATTN_QUERY_ROWS;
}

/* Blocks that n_rows rows of one session make at most. */
static size_t blocks_for(const attn_config *c, size_t n_rows)
{
    size_t group = c->num_attention_heads / c->num_key_value_heads, heads = heads_per_block(c);
    size_t rows = ATTN_QUERY_ROWS / heads;
    return c->num_key_value_heads * ((group + heads - 1) / heads) * ((n_rows + rows - 1) / rows);
}

static bool partial_init(partial *p, size_t max_head_dim)
{
    p->o = attn_alloc(ATTN_QUERY_ROWS * max_head_dim, sizeof *p->o);
    return p->o != NULL;
}

attn_attention *attn_attention_create(attn_pool *pool, const attn_kernels *kernels,
                                      attn_model *const *models, size_t n_models, size_t max_rows)
{
    attn_attention *a = attn_alloc(1, sizeof *a);
    if (a == NULL)
        return NULL;
    a->pool = pool;
    a->kernels = kernels;
    size_t threads = attn_pool_threads(pool), head_dim = 0;
    for (size_t i = 0; i < n_models; i++) {
        const attn_config *c = &models[i]->config;
        size_t n = max_rows * blocks_for(c, 1); /* worst case: every row another session's */
        a->max_blocks = n > a->max_blocks ? n : a->max_blocks;
        head_dim = c->head_dim > head_dim ? c->head_dim : head_dim;
    }
    a->n_slots = 4 * threads > MIN_SLOTS ? 4 * threads : MIN_SLOTS;
    a->blocks = attn_alloc(a->max_blocks, sizeof *a->blocks);
    a->scratches = attn_alloc(threads, sizeof *a->scratches);
    a->slots = attn_alloc(a->n_slots, sizeof *a->slots);
    a->totals = attn_alloc(a->n_slots, sizeof *a->totals);
    bool ok = a->blocks && a->scratches && a->slots && a->totals;
    for (size_t i = 0; ok && i < threads; i++) {
        scratch *s = &a->scratches[i];
        s->q = attn_alloc(ATTN_QUERY_ROWS * head_dim, sizeof *s->q);
        s->scores = attn_alloc((size_t)ATTN_QUERY_ROWS * ATTN_SEGMENT, sizeof *s->scores);
        ok = partial_init(&s->total, head_dim) && partial_init(&s->segment, head_dim) && s->q &&
             s->scores;
    }
    for (size_t i = 0; ok && i < a->n_slots; i++)
        ok = partial_init(&a->slots[i], head_dim) && partial_init(&a->totals[i], head_dim);
    if (!ok) {
        attn_attention_destroy(a);
        return NULL;
    }
    return a;
}

void attn_attention_destroy(attn_attention *a)
{
    if (a == NULL)
        return;
    for (size_t i = 0; a->scratches != NULL && i < attn_pool_threads(a->pool); i++) {
        attn_free(a->scratches[i].q);
        attn_free(a->scratches[i].scores);
        attn_free(a->scratches[i].total.o);
        attn_free(a->scratches[i].segment.o);
    }
    for (size_t i = 0; i < a->n_slots; i++) {
        if (a->slots != NULL)
            attn_free(a->slots[i].o);
        if (a->totals != NULL)
            attn_free(a->totals[i].o);
    }
    attn_free(a->blocks);
    attn_free(a->scratches);
    attn_free(a->slots);
    attn_free(a->totals);
    attn_free(a);
}

/* The keys that a block's last row reads. */
static uint64_t block_keys(const attn_attention *a, const block *b)
{
    return a->queries[b->queries].position + b->first_row + b->n_rows;
}

static size_t block_segments(const attn_attention *a, const block *b)
{
    return (size_t)((block_keys(a, b) + ATTN_SEGMENT - 1) / ATTN_SEGMENT);
}

/* The keys of the segment from `first_key` on that the block's row reads. */
static size_t row_keys(const attn_queries *q, const block *b, size_t row, uint64_t first_key)
{
    uint64_t end = q->position + b->first_row + row + 1;
    uint64_t n = end > first_key ? end - first_key : 0;
    return n < ATTN_SEGMENT ? (size_t)n : ATTN_SEGMENT;
}

/* Reads through some blocks, side by side: f32 is computed several times as fast as memory comes, and
 * several streams of plain reads are how it comes fastest. */
static void read_blocks(const void *const *blocks, size_t n, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64) {
        for (size_t i = 0; i < n; i++)
            (void)*((const volatile char *)blocks[i] + at);
    }
}

/* Adds the segment's weighted values: whole pages that every row reads for all vectors at once,
 * then the last pages row by row, since each row ends at another key. */
static void mix_segment(const attn_attention *a, const attn_queries *q, const block *b,
                        uint64_t first_key, const void *const *kv, const void *const *ahead,
                        const float *weights, float *o)
{
    const size_t head_dim = a->model->config.head_dim, m = (size_t)b->n_rows * b->n_heads;
    const attn_dtype dtype = q->session->kv_dtype;
    const size_t common = row_keys(q, b, 0, first_key) / ATTN_PAGE_POSITIONS;
    for (size_t p = 0, n; p < common; p += n) {
        n = common - p < STEP_PAGES ? common - p : STEP_PAGES;
        a->kernels->mix[dtype](m, n * ATTN_PAGE_POSITIONS, head_dim,
                               weights + p * ATTN_PAGE_POSITIONS, ATTN_SEGMENT, kv + p, ahead + p,
                               o);
    }
    for (size_t row = 0; row < b->n_rows; row++) {
        size_t n = row_keys(q, b, row, first_key), r = row * b->n_heads, count;
        for (size_t key = common * ATTN_PAGE_POSITIONS; key < n; key += count) {
            count = n - key < ATTN_MIX_KEYS ? n - key : ATTN_MIX_KEYS;
            a->kernels->mix[dtype](b->n_heads, count, head_dim, weights + r * ATTN_SEGMENT + key,
                                   ATTN_SEGMENT, kv + key / ATTN_PAGE_POSITIONS,
                                   ahead + key / ATTN_PAGE_POSITIONS, o + r * head_dim);
        }
    }
}

/* The partial softmax of a block over one segment. */
static void run_segment(const attn_attention *a, const block *b, size_t segment, scratch *s,
                        partial *out)
{
    const attn_config *c = &a->model->config;
    const attn_queries *q = &a->queries[b->queries];
    const size_t head_dim = c->head_dim, m = (size_t)b->n_rows * b->n_heads;
    const uint64_t first_key = (uint64_t)segment * ATTN_SEGMENT;
    const size_t n_keys = row_keys(q, b, b->n_rows - 1, first_key);
    const size_t n_pages = (n_keys + ATTN_PAGE_POSITIONS - 1) / ATTN_PAGE_POSITIONS;
    const attn_dtype dtype = q->session->kv_dtype;
    /* The blocks, which begin with their keys; behind them what is read after these: their values,
     * and what the next segment begins with. */
    const void *kv[2 * SEGMENT_PAGES + STEP_PAGES];
    for (size_t p = 0; p < n_pages; p++) {
        kv[p] = attn_session_block(q->session, first_key + p * ATTN_PAGE_POSITIONS, a->layer,
                                   b->kv_head);
        kv[n_pages + p] = attn_block_v(dtype, head_dim, kv[p]);
    }
    for (size_t p = 0; p < STEP_PAGES; p++) {
        const uint64_t key = first_key + ATTN_SEGMENT + p * ATTN_PAGE_POSITIONS;
        kv[2 * n_pages + p] = key < block_keys(a, b)
                                  ? attn_session_block(q->session, key, a->layer, b->kv_head)
                                  : kv[0];
    }
    for (size_t row = 0; row < b->n_rows; row++)
        memcpy(s->q + row * b->n_heads * head_dim,
               q->q + (b->first_row + row) * q->ldq + b->first_head * head_dim,
               b->n_heads * head_dim * sizeof *s->q);
    for (size_t p = 0, n; p < n_pages; p += n) {
        if (dtype == ATTN_F32 && m <= READ_VECTORS && p % READ_STREAMS == 0)
            read_blocks(kv + p, n_pages - p < READ_STREAMS ? n_pages - p : READ_STREAMS,
                        attn_block_bytes(dtype, head_dim));
        n = n_pages - p < STEP_PAGES ? n_pages - p : STEP_PAGES;
        a->kernels->scores[dtype](m, head_dim, a->model->score_scale, s->q, kv + p,
                                  kv + p + STEP_PAGES, n, s->scores + p * ATTN_PAGE_POSITIONS,
                                  ATTN_SEGMENT);
    }
    for (size_t r = 0; r < m; r++) {
        size_t row = r / b->n_heads, n = row_keys(q, b, row, first_key);
        out->sum[r] = 0.0f;
        if (n > 0 &&
            !a->kernels->softmax(n, s->scores + r * ATTN_SEGMENT, &out->max[r], &out->sum[r]))
            q->overflow[b->first_row + row] = true;
    }
    memset(out->o, 0, m * head_dim * sizeof *out->o);
    mix_segment(a, q, b, first_key, kv, kv + n_pages + STEP_PAGES, s->scores, out->o);
}

/* Combines the next segment's partial into the total, vector by vector. */
static void merge(const attn_attention *a, size_t m, partial *total, const partial *next)
{
    const size_t head_dim = a->model->config.head_dim;
    for (size_t r = 0; r < m; r++) {
        if (next->sum[r] == 0.0f)
            continue;
        float *o = total->o + r * head_dim;
        const float *p = next->o + r * head_dim;
        if (total->sum[r] == 0.0f) {
            total->max[r] = next->max[r];
            total->sum[r] = next->sum[r];
            memcpy(o, p, head_dim * sizeof *o);
            continue;
        }
        float max = total->max[r] > next->max[r] ? total->max[r] : next->max[r];
        float scale_total = attn_exp(total->max[r] - max),
              scale_next = attn_exp(next->max[r] - max);
        total->max[r] = max;
        total->sum[r] = fmaf(scale_next, next->sum[r], total->sum[r] * scale_total);
        a->kernels->merge(head_dim, scale_total, o, scale_next, p);
    }
}

/* z = O / L into the output rows. */
static void finish(const attn_attention *a, const block *b, partial *total)
{
    const attn_queries *q = &a->queries[b->queries];
    const size_t head_dim = a->model->config.head_dim;
    for (size_t row = 0; row < b->n_rows; row++) {
        float *o = total->o + row * b->n_heads * head_dim;
        for (size_t h = 0; h < b->n_heads; h++)
            a->kernels->scale(head_dim, 1.0f / total->sum[row * b->n_heads + h], o + h * head_dim);
        memcpy(q->z + (b->first_row + row) * q->ldz + b->first_head * head_dim, o,
               b->n_heads * head_dim * sizeof *o);
    }
}

/* Pool item: a whole block, segment after segment. */
static void run_block(void *ctx, size_t item, unsigned worker)
{
    const attn_attention *a = ctx;
    const block *b = &a->blocks[item];
    scratch *s = &a->scratches[worker];
    size_t m = (size_t)b->n_rows * b->n_heads, n_segments = block_segments(a, b);
    run_segment(a, b, 0, s, &s->total);
    for (size_t segment = 1; segment < n_segments; segment++) {
        run_segment(a, b, segment, s, &s->segment);
        merge(a, m, &s->total, &s->segment);
    }
    finish(a, b, &s->total);
}

/* Pool item: one segment of one block into its slot. */
static void run_slot(void *ctx, size_t item, unsigned worker)
{
    const attn_attention *a = ctx;
    const block *b = &a->blocks[item / a->n_segments];
    size_t segment = a->first_segment + item % a->n_segments;
    if (segment < block_segments(a, b))
        run_segment(a, b, segment, &a->scratches[worker], &a->slots[item]);
}

/* Few blocks, long contexts: segments are the items, in rounds that fit the slots. */
static void run_spread(attn_attention *a, size_t most_segments, double cost)
{
    for (size_t i = 0; i < a->n_blocks; i++)
        memset(a->totals[i].sum, 0, sizeof a->totals[i].sum);
    size_t per_round = a->n_slots / a->n_blocks;
    for (a->first_segment = 0; a->first_segment < most_segments; a->first_segment += per_round) {
        size_t left = most_segments - a->first_segment;
        a->n_segments = left < per_round ? left : per_round;
        attn_pool_run(a->pool, run_slot, a, a->n_blocks * a->n_segments, cost);
        for (size_t i = 0; i < a->n_blocks * a->n_segments; i++) {
            const block *b = &a->blocks[i / a->n_segments];
            if (a->first_segment + i % a->n_segments < block_segments(a, b))
                merge(a, (size_t)b->n_rows * b->n_heads, &a->totals[i / a->n_segments],
                      &a->slots[i]);
        }
    }
    for (size_t i = 0; i < a->n_blocks; i++)
        finish(a, &a->blocks[i], &a->totals[i]);
}

static void add_blocks(attn_attention *a, uint32_t index)
{
    const attn_config *c = &a->model->config;
    const attn_queries *q = &a->queries[index];
    const uint32_t group = c->num_attention_heads / c->num_key_value_heads;
    const uint32_t heads = (uint32_t)heads_per_block(c), rows = ATTN_QUERY_ROWS / heads;
    for (uint32_t head = 0; head < c->num_attention_heads;) {
        uint32_t kv_head = head / group, left = (kv_head + 1) * group - head;
        uint32_t n_heads = left < heads ? left : heads;
        for (uint32_t row = 0; row < q->n_rows; row += rows) {
            uint32_t n_rows = q->n_rows - row < rows ? (uint32_t)q->n_rows - row : rows;
            ATTN_ASSERT(a->n_blocks < a->max_blocks);
            a->blocks[a->n_blocks++] = (block){index, row, n_rows, kv_head, head, n_heads};
        }
        head += n_heads;
    }
}

void attn_attention_run(attn_attention *a, const attn_model *model, size_t layer,
                        const attn_queries *queries, size_t n)
{
    a->model = model;
    a->layer = layer;
    a->queries = queries;
    a->n_blocks = 0;
    size_t most_segments = 0;
    double cost = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t keys = queries[i].position + queries[i].n_rows;
        size_t segments = (size_t)((keys + ATTN_SEGMENT - 1) / ATTN_SEGMENT);
        add_blocks(a, (uint32_t)i);
        most_segments = segments > most_segments ? segments : most_segments;
        cost += (double)queries[i].n_rows * (double)keys * 2 * model->config.head_dim *
                model->config.num_attention_heads;
    }
    size_t threads = attn_pool_threads(a->pool);
    if (threads > 1 && a->n_blocks < 2 * threads && most_segments > 1)
        run_spread(a, most_segments, cost);
    else
        attn_pool_run(a->pool, run_block, a, a->n_blocks, cost);
}

/* Copies what of keys [at, at + n) stands in [first, first + wanted) to its place in `to`. */
static void copy_range(float *to, uint64_t first, uint64_t wanted, const float *from, uint64_t at,
                       size_t n)
{
    uint64_t begin = at > first ? at : first;
    uint64_t end = at + n < first + wanted ? at + n : first + wanted;
    if (to != NULL && begin < end)
        memcpy(to + (begin - first), from + (begin - at), (end - begin) * sizeof *to);
}

/* Multiplies what stands there of keys [at, at + n). */
static void scale_range(const attn_kernels *kernels, float *to, uint64_t first, uint64_t wanted,
                        uint64_t at, uint64_t n, float by)
{
    uint64_t begin = at > first ? at : first;
    uint64_t end = at + n < first + wanted ? at + n : first + wanted;
    if (to != NULL && begin < end && by != 1.0f)
        kernels->scale((size_t)(end - begin), by, to + (begin - first));
}

void attn_attention_look(const attn_attention *a, const attn_model *model, size_t layer,
                         const attn_session *session, uint64_t position, size_t head,
                         const float *q, uint64_t first_key, uint64_t n_keys, float *scores,
                         float *pattern, unsigned worker)
{
    const attn_config *c = &model->config;
    const size_t kv_head = head / (c->num_attention_heads / c->num_key_value_heads);
    float *s = a->scratches[worker].scores;
    float max = 0.0f, sum = 0.0f;
    for (uint64_t first = 0; first <= position; first += ATTN_SEGMENT) {
        uint64_t left = position + 1 - first;
        size_t n = left < ATTN_SEGMENT ? (size_t)left : ATTN_SEGMENT;
        const void *kv[STEP_PAGES];
        for (size_t p = 0, n_pages; p * ATTN_PAGE_POSITIONS < n; p += n_pages) {
            size_t pages = (n + ATTN_PAGE_POSITIONS - 1) / ATTN_PAGE_POSITIONS - p;
            n_pages = pages < STEP_PAGES ? pages : STEP_PAGES;
            for (size_t i = 0; i < n_pages; i++)
                kv[i] = attn_session_block(session, first + (p + i) * ATTN_PAGE_POSITIONS, layer,
                                           kv_head);
            a->kernels->scores[session->kv_dtype](1, c->head_dim, model->score_scale, q, kv, kv,
                                                  n_pages, s + p * ATTN_PAGE_POSITIONS,
                                                  ATTN_SEGMENT);
        }
        copy_range(scores, first_key, n_keys, s, first, n);
        float next_max, next_sum;
        a->kernels->softmax(n, s, &next_max, &next_sum);
        copy_range(pattern, first_key, n_keys, s, first, n);
        if (sum == 0.0f) {
            max = next_max;
            sum = next_sum;
            continue;
        }
        float both = max > next_max ? max : next_max;
        float scale_total = attn_exp(max - both), scale_next = attn_exp(next_max - both);
        max = both;
        sum = fmaf(scale_next, next_sum, sum * scale_total);
        scale_range(a->kernels, pattern, first_key, n_keys, 0, first, scale_total);
        scale_range(a->kernels, pattern, first_key, n_keys, first, n, scale_next);
    }
    scale_range(a->kernels, pattern, first_key, n_keys, 0, position + 1, 1.0f / sum);
}
