#include "engine/compute/attention.h"

#include "engine/base/base.h"

#include <math.h>
#include <string.h>

#define SEGMENT_PAGES (ATTN_SEGMENT / ATTN_PAGE_POSITIONS)
/* Pages in one call of scores or mix. */
#define STEP_PAGES (ATTN_MIX_KEYS / ATTN_PAGE_POSITIONS)
/* Partials kept at once when the segments of few passes are spread over the threads, at least. */
#define MIN_SLOTS 64
/* Most query vectors of a pass of several blocks. */
#define PASS_VECTORS 64

/* Heads that share a KV head. For some rows they make up to ATTN_QUERY_ROWS query vectors, which are
 * computed together: vector r is row r / n_heads, head r % n_heads. */
typedef struct block {
    uint32_t kv_head, first_head, n_heads;
} block;

/* Rows of one session whose blocks go through its pages together: so a decode step reads a layer's
 * keys, and then its values, as they stand in a page. */
typedef struct pass {
    uint32_t queries; /* index */
    uint32_t first_row, n_rows;
    uint32_t first_block, n_blocks;
} pass;

/* A partial softmax of a pass's vectors over some keys. sum 0: no key yet. */
typedef struct partial {
    float *max, *sum; /* [max_vectors] */
    float *o;         /* [max_vectors, head_dim] */
} partial;

/* One thread's scratch. */
typedef struct scratch {
    float *q;      /* [max_vectors, head_dim] */
    float *scores; /* [max_vectors, ATTN_SEGMENT] */
} scratch;

struct attn_attention {
    attn_pool *pool;
    const attn_kernels *kernels;
    size_t max_vectors, max_head_dim; /* of a pass */
    block *blocks;                    /* a model's, and one behind them */
    pass *passes;
    size_t max_passes;
    scratch *scratches; /* [threads] */
    /* Memory that stays untouched until it is used: a partial for each of n_slots segments, for the
     * totals of n_slots passes, and for each thread's total and segment. */
    float *partials;
    size_t partial_floats, n_slots;
    /* The call in progress. */
    const attn_model *model;
    size_t layer;
    const attn_queries *queries;
    size_t n_blocks, n_passes;
    size_t first_segment, n_segments; /* the round of a spread call */
};

static size_t group_of(const attn_config *c)
{
    return c->num_attention_heads / c->num_key_value_heads;
}

static size_t heads_per_block(const attn_config *c)
{
    return group_of(c) < ATTN_QUERY_ROWS ? group_of(c) : ATTN_QUERY_ROWS;
}

static size_t blocks_per_kv_head(const attn_config *c)
{
    return (group_of(c) + heads_per_block(c) - 1) / heads_per_block(c);
}

static size_t partials_bytes(const attn_attention *a)
{
    return 2 * (a->n_slots + attn_pool_threads(a->pool)) * a->partial_floats * sizeof *a->partials;
}

static partial partial_at(const attn_attention *a, size_t index)
{
    float *o = a->partials + index * a->partial_floats;
    float *max = o + a->max_vectors * a->max_head_dim;
    return (partial){.max = max, .sum = max + a->max_vectors, .o = o};
}

static partial pass_total(const attn_attention *a, size_t pass_index)
{
    return partial_at(a, a->n_slots + pass_index);
}

static partial thread_partial(const attn_attention *a, unsigned worker, size_t which)
{
    return partial_at(a, 2 * (a->n_slots + worker) + which);
}

attn_attention *attn_attention_create(attn_pool *pool, const attn_kernels *kernels,
                                      attn_model *const *models, size_t n_models, size_t max_rows)
{
    attn_attention *a = attn_alloc(1, sizeof *a);
    if (a == NULL)
        return NULL;
    a->pool = pool;
    a->kernels = kernels;
    size_t threads = attn_pool_threads(pool), max_blocks = 0;
    a->max_vectors = ATTN_QUERY_ROWS;
    for (size_t i = 0; i < n_models; i++) {
        const attn_config *c = &models[i]->config;
        size_t n = c->num_key_value_heads * blocks_per_kv_head(c);
        max_blocks = n > max_blocks ? n : max_blocks;
        n *= heads_per_block(c);
        n = n < PASS_VECTORS ? n : PASS_VECTORS;
        a->max_vectors = n > a->max_vectors ? n : a->max_vectors;
        a->max_head_dim = c->head_dim > a->max_head_dim ? c->head_dim : a->max_head_dim;
    }
    a->n_slots = 8 * threads > MIN_SLOTS ? 8 * threads : MIN_SLOTS;
    a->max_passes = max_rows * max_blocks; /* at worst every row is another session's */
    a->blocks = attn_alloc(max_blocks + 1, sizeof *a->blocks);
    a->passes = attn_alloc(a->max_passes, sizeof *a->passes);
    a->scratches = attn_alloc(threads, sizeof *a->scratches);
    a->partial_floats = (a->max_vectors * (a->max_head_dim + 2) + 15) & ~(size_t)15;
    a->partials = attn_map(partials_bytes(a), false);
    bool ok = a->blocks && a->passes && a->scratches && a->partials;
    for (size_t i = 0; ok && i < threads; i++) {
        scratch *s = &a->scratches[i];
        s->q = attn_alloc(a->max_vectors * a->max_head_dim, sizeof *s->q);
        s->scores = attn_alloc(a->max_vectors * ATTN_SEGMENT, sizeof *s->scores);
        ok = s->q != NULL && s->scores != NULL;
    }
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
    }
    attn_unmap(a->partials, partials_bytes(a));
    attn_free(a->blocks);
    attn_free(a->passes);
    attn_free(a->scratches);
    attn_free(a);
}

static const block *pass_block(const attn_attention *a, const pass *p, size_t index)
{
    return &a->blocks[p->first_block + index];
}

/* Vectors of a pass before those of its block `index`; of index n_blocks: all. */
static size_t vectors_before(const attn_attention *a, const pass *p, size_t index)
{
    return (pass_block(a, p, index)->first_head - pass_block(a, p, 0)->first_head) * p->n_rows;
}

/* The keys that a pass's last row reads. */
static uint64_t pass_keys(const attn_attention *a, const pass *p)
{
    return a->queries[p->queries].position + p->first_row + p->n_rows;
}

static size_t segments_of(uint64_t keys)
{
    return (size_t)((keys + ATTN_SEGMENT - 1) / ATTN_SEGMENT);
}

/* The keys of the segment from `first_key` on that the pass's row reads. */
static size_t row_keys(const attn_queries *q, const pass *p, size_t row, uint64_t first_key)
{
    uint64_t end = q->position + p->first_row + row + 1;
    uint64_t n = end > first_key ? end - first_key : 0;
    return n < ATTN_SEGMENT ? (size_t)n : ATTN_SEGMENT;
}

/* Reads through what stands at some pages, side by side: several streams of plain reads are how
 * memory comes fastest. */
static void read_pages(const void *const *at, size_t n, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) {
        for (size_t p = 0; p < n; p++)
            (void)*((const volatile char *)at[p] + i);
    }
}

/* A walk of a pass through a segment: all its blocks' keys of the first STEP_PAGES pages, of the next
 * ones, and so on; then the values in the same order. */
typedef struct walk {
    const attn_attention *a;
    const pass *pass;
    const attn_session *session;
    void *pages[SEGMENT_PAGES + STEP_PAGES]; /* the segment's; what the next one begins with */
    size_t n_pages;
    bool values;
    size_t first_page, block;
    const void *at[2][STEP_PAGES]; /* what is read now and next */
} walk;

/* Sets what is read in the walk's present place; past its end: the next segment's first keys. */
static void set_next(walk *w)
{
    char *page = w->pages[0];
    const attn_kv_block first = attn_session_page_block(
        w->session, page, w->a->layer, pass_block(w->a, w->pass, w->block)->kv_head);
    const ptrdiff_t offset = (char *)(w->values ? first.values : first.keys) - page;
    for (size_t i = 0; i < STEP_PAGES; i++)
        w->at[1][i] = (char *)w->pages[w->first_page + i] + offset;
}

/* Goes on: what was next is now. */
static void go_on(walk *w)
{
    memcpy(w->at[0], w->at[1], sizeof w->at[0]);
    if (++w->block == w->pass->n_blocks) {
        w->block = 0;
        w->first_page += STEP_PAGES;
        if (w->first_page >= w->n_pages) {
            w->first_page = w->values ? w->n_pages : 0;
            w->values = !w->values;
        }
    }
    set_next(w);
}

static void begin_walk(walk *w, const attn_attention *a, const pass *p, uint64_t first_key,
                       size_t n_keys)
{
    *w = (walk){.a = a, .pass = p, .session = a->queries[p->queries].session};
    w->n_pages = (n_keys + ATTN_PAGE_POSITIONS - 1) / ATTN_PAGE_POSITIONS;
    for (size_t i = 0; i < w->n_pages + STEP_PAGES; i++) {
        uint64_t key = first_key + i * ATTN_PAGE_POSITIONS;
        w->pages[i] = key < pass_keys(a, p) ? attn_session_page(w->session, key) : w->pages[0];
    }
    set_next(w);
    go_on(w);
}

/* The pass's query vectors, block by block. */
static void gather_queries(const attn_attention *a, const pass *p, float *to)
{
    const attn_queries *q = &a->queries[p->queries];
    const size_t head_dim = a->model->config.head_dim;
    for (size_t i = 0; i < p->n_blocks; i++) {
        const block *b = pass_block(a, p, i);
        for (size_t row = 0; row < p->n_rows; row++, to += b->n_heads * head_dim)
            memcpy(to, q->q + (p->first_row + row) * q->ldq + b->first_head * head_dim,
                   b->n_heads * head_dim * sizeof *to);
    }
}

/* Scores of all keys of the pages of a segment. */
static void score_segment(walk *w, size_t read_bytes, const scratch *s)
{
    const attn_attention *a = w->a;
    const pass *p = w->pass;
    const size_t head_dim = a->model->config.head_dim;
    for (size_t page = 0, n; page < w->n_pages; page += n) {
        n = w->n_pages - page < STEP_PAGES ? w->n_pages - page : STEP_PAGES;
        for (size_t i = 0; i < p->n_blocks; i++, go_on(w)) {
            const size_t vector = vectors_before(a, p, i), m = vectors_before(a, p, i + 1) - vector;
            read_pages(w->at[0], n, read_bytes);
            a->kernels->scores[w->session->kv_dtype](
                m, head_dim, a->model->score_scale, s->q + vector * head_dim, w->at[0], w->at[1], n,
                s->scores + vector * ATTN_SEGMENT + page * ATTN_PAGE_POSITIONS, ATTN_SEGMENT);
        }
    }
}

/* A softmax of each vector over the keys that its row reads. */
static void weigh_segment(const attn_attention *a, const pass *p, uint64_t first_key, float *scores,
                          const partial *out)
{
    const attn_queries *q = &a->queries[p->queries];
    for (size_t i = 0, vector = 0; i < p->n_blocks; i++) {
        const size_t n_heads = pass_block(a, p, i)->n_heads;
        for (size_t r = 0; r < p->n_rows * n_heads; r++, vector++) {
            const size_t row = r / n_heads, n = row_keys(q, p, row, first_key);
            out->sum[vector] = 0.0f;
            if (n > 0 && !a->kernels->softmax(n, scores + vector * ATTN_SEGMENT, &out->max[vector],
                                              &out->sum[vector]))
                q->overflow[p->first_row + row] = true;
        }
    }
}

/* Adds one block's weighted values of the keys [first, end) of a segment, those of the walk's present
 * pages: keys that every row reads for all vectors at once, then the others row by row. */
static void mix_pages(const walk *w, size_t n_heads, uint64_t first_key, size_t first, size_t end,
                      const float *weights, float *o)
{
    const attn_queries *q = &w->a->queries[w->pass->queries];
    const size_t head_dim = w->a->model->config.head_dim, n_rows = w->pass->n_rows;
    const attn_dtype dtype = w->session->kv_dtype;
    size_t common = row_keys(q, w->pass, 0, first_key);
    if (n_rows > 1)
        common -= common % ATTN_PAGE_POSITIONS;
    common = common < end ? common : end;
    if (common > first)
        w->a->kernels->mix[dtype](n_rows * n_heads, common - first, head_dim, weights + first,
                                  ATTN_SEGMENT, w->at[0], w->at[1], o);
    const size_t from = common > first ? common : first;
    const size_t page = (from - first) / ATTN_PAGE_POSITIONS;
    for (size_t row = 0; from < end && row < n_rows; row++) {
        const size_t n = row_keys(q, w->pass, row, first_key), r = row * n_heads;
        if (n > from)
            w->a->kernels->mix[dtype](n_heads, (n < end ? n : end) - from, head_dim,
                                      weights + r * ATTN_SEGMENT + from, ATTN_SEGMENT,
                                      w->at[0] + page, w->at[1] + page, o + r * head_dim);
    }
}

static void mix_segment(walk *w, size_t read_bytes, uint64_t first_key, size_t n_keys,
                        const float *weights, float *o)
{
    const attn_attention *a = w->a;
    const pass *p = w->pass;
    const size_t head_dim = a->model->config.head_dim;
    memset(o, 0, vectors_before(a, p, p->n_blocks) * head_dim * sizeof *o);
    for (size_t key = 0, n; key < n_keys; key += n) {
        n = n_keys - key < ATTN_MIX_KEYS ? n_keys - key : ATTN_MIX_KEYS;
        for (size_t i = 0; i < p->n_blocks; i++, go_on(w)) {
            const size_t vector = vectors_before(a, p, i);
            read_pages(w->at[0], (n + ATTN_PAGE_POSITIONS - 1) / ATTN_PAGE_POSITIONS, read_bytes);
            mix_pages(w, pass_block(a, p, i)->n_heads, first_key, key, key + n,
                      weights + vector * ATTN_SEGMENT, o + vector * head_dim);
        }
    }
}

/* The partial softmax of a pass over one segment. */
static void run_segment(const attn_attention *a, const pass *p, size_t segment, scratch *s,
                        const partial *out)
{
    const attn_queries *q = &a->queries[p->queries];
    const attn_dtype dtype = q->session->kv_dtype;
    const uint64_t first_key = (uint64_t)segment * ATTN_SEGMENT;
    const size_t n_keys = row_keys(q, p, p->n_rows - 1, first_key);
    /* What no other pass reads comes from memory. q8 is computed about as slowly as it comes. */
    const size_t read_bytes = q->n_rows == p->n_rows && dtype != ATTN_Q8
                                  ? attn_block_bytes(dtype, a->model->config.head_dim)
                                  : 0;
    walk w;
    begin_walk(&w, a, p, first_key, n_keys);
    gather_queries(a, p, s->q);
    score_segment(&w, read_bytes, s);
    weigh_segment(a, p, first_key, s->scores, out);
    mix_segment(&w, read_bytes, first_key, n_keys, s->scores, out->o);
}

/* Combines the next segment's partial into the total, vector by vector. */
static void merge(const attn_attention *a, const pass *p, const partial *total, const partial *next)
{
    const size_t head_dim = a->model->config.head_dim;
    for (size_t r = 0; r < vectors_before(a, p, p->n_blocks); r++) {
        if (next->sum[r] == 0.0f)
            continue;
        float *o = total->o + r * head_dim;
        const float *n = next->o + r * head_dim;
        if (total->sum[r] == 0.0f) {
            total->max[r] = next->max[r];
            total->sum[r] = next->sum[r];
            memcpy(o, n, head_dim * sizeof *o);
            continue;
        }
        float max = total->max[r] > next->max[r] ? total->max[r] : next->max[r];
        float scale_total = attn_exp(total->max[r] - max),
              scale_next = attn_exp(next->max[r] - max);
        total->max[r] = max;
        total->sum[r] = fmaf(scale_next, next->sum[r], total->sum[r] * scale_total);
        a->kernels->merge(head_dim, scale_total, o, scale_next, n);
    }
}

/* z = O / L into the output rows. */
static void finish(const attn_attention *a, const pass *p, const partial *total)
{
    const attn_queries *q = &a->queries[p->queries];
    const size_t head_dim = a->model->config.head_dim;
    for (size_t i = 0, vector = 0; i < p->n_blocks; i++) {
        const block *b = pass_block(a, p, i);
        for (size_t r = 0; r < p->n_rows * b->n_heads; r++, vector++) {
            const size_t row = p->first_row + r / b->n_heads, head = b->first_head + r % b->n_heads;
            float *o = total->o + vector * head_dim;
            a->kernels->scale(head_dim, 1.0f / total->sum[vector], o);
            memcpy(q->z + row * q->ldz + head * head_dim, o, head_dim * sizeof *o);
        }
    }
}

/* Pool item: a whole pass, segment after segment. */
static void run_pass(void *ctx, size_t item, unsigned worker)
{
    const attn_attention *a = ctx;
    const pass *p = &a->passes[item];
    scratch *s = &a->scratches[worker];
    size_t n_segments = segments_of(pass_keys(a, p));
    const partial total = thread_partial(a, worker, 0), next = thread_partial(a, worker, 1);
    run_segment(a, p, 0, s, &total);
    for (size_t segment = 1; segment < n_segments; segment++) {
        run_segment(a, p, segment, s, &next);
        merge(a, p, &total, &next);
    }
    finish(a, p, &total);
}

/* Pool item: one segment of one pass into its slot. */
static void run_slot(void *ctx, size_t item, unsigned worker)
{
    const attn_attention *a = ctx;
    const pass *p = &a->passes[item / a->n_segments];
    const size_t segment = a->first_segment + item % a->n_segments;
    const partial slot = partial_at(a, item);
    if (segment < segments_of(pass_keys(a, p)))
        run_segment(a, p, segment, &a->scratches[worker], &slot);
}

/* Few passes, long contexts: segments are the items, in rounds that fit the slots. */
static void run_spread(attn_attention *a, size_t most_segments, double cost)
{
    ATTN_ASSERT(a->n_passes <= a->n_slots);
    for (size_t i = 0; i < a->n_passes; i++)
        memset(pass_total(a, i).sum, 0, a->max_vectors * sizeof(float));
    size_t per_round = a->n_slots / a->n_passes;
    for (a->first_segment = 0; a->first_segment < most_segments; a->first_segment += per_round) {
        size_t left = most_segments - a->first_segment;
        a->n_segments = left < per_round ? left : per_round;
        attn_pool_run(a->pool, run_slot, a, a->n_passes * a->n_segments, cost);
        for (size_t i = 0; i < a->n_passes * a->n_segments; i++) {
            const pass *p = &a->passes[i / a->n_segments];
            const partial total = pass_total(a, i / a->n_segments), slot = partial_at(a, i);
            if (a->first_segment + i % a->n_segments < segments_of(pass_keys(a, p)))
                merge(a, p, &total, &slot);
        }
    }
    for (size_t i = 0; i < a->n_passes; i++) {
        const partial total = pass_total(a, i);
        finish(a, &a->passes[i], &total);
    }
}

/* Rows of a session whose vectors make one block. */
static size_t rows_per_block(const attn_attention *a)
{
    return ATTN_QUERY_ROWS / heads_per_block(&a->model->config);
}

static void set_blocks(attn_attention *a)
{
    const attn_config *c = &a->model->config;
    const uint32_t group = (uint32_t)group_of(c), most = (uint32_t)heads_per_block(c);
    a->n_blocks = 0;
    for (uint32_t head = 0, n; head < c->num_attention_heads; head += n) {
        const uint32_t left = group - head % group;
        n = left < most ? left : most;
        a->blocks[a->n_blocks++] = (block){head / group, head, n};
    }
    a->blocks[a->n_blocks] = (block){.first_head = c->num_attention_heads};
}

/* Blocks of a pass, for about `pieces` passes of each row if there are as many blocks. Many rows
 * read the cache again and again: their passes are of one block, which stays in the processor's. */
static size_t pass_width(const attn_attention *a, const attn_queries *q, size_t pieces)
{
    if (q->n_rows > rows_per_block(a))
        return 1;
    const size_t most = a->max_vectors / (q->n_rows * heads_per_block(&a->model->config));
    const size_t width = (a->n_blocks + pieces - 1) / pieces;
    return width < most ? width : most;
}

static void add_passes(attn_attention *a, uint32_t index, size_t width)
{
    const attn_queries *q = &a->queries[index];
    const size_t rows = rows_per_block(a);
    for (size_t b = 0; b < a->n_blocks; b += width) {
        const size_t n = a->n_blocks - b < width ? a->n_blocks - b : width;
        for (size_t row = 0; row < q->n_rows; row += rows) {
            ATTN_ASSERT(a->n_passes < a->max_passes);
            a->passes[a->n_passes++] = (pass){
                .queries = index,
                .first_row = (uint32_t)row,
                .n_rows = (uint32_t)(q->n_rows - row < rows ? q->n_rows - row : rows),
                .first_block = (uint32_t)b,
                .n_blocks = (uint32_t)n,
            };
        }
    }
}

static double cost_of(const attn_config *c, const attn_queries *q)
{
    return (double)q->n_rows * (double)(q->position + q->n_rows) * 2 * c->head_dim *
           c->num_attention_heads;
}

void attn_attention_run(attn_attention *a, const attn_model *model, size_t layer,
                        const attn_queries *queries, size_t n)
{
    const attn_config *c = &model->config;
    const size_t threads = attn_pool_threads(a->pool), items = threads > 1 ? 4 * threads : 1;
    a->model = model;
    a->layer = layer;
    a->queries = queries;
    set_blocks(a);
    a->n_passes = 0;
    size_t most_segments = 0, n_passes = 0;
    double cost = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t segments = segments_of(queries[i].position + queries[i].n_rows);
        most_segments = segments > most_segments ? segments : most_segments;
        const size_t width = pass_width(a, &queries[i], 1), rows = rows_per_block(a);
        n_passes += (a->n_blocks + width - 1) / width * ((queries[i].n_rows + rows - 1) / rows);
        cost += cost_of(c, &queries[i]);
    }
    const bool spread = threads > 1 && n_passes < 2 * threads && most_segments > 1;
    for (size_t i = 0; i < n; i++) {
        /* A session's share of so many items that no thread waits long for another. */
        double share = (double)items * cost_of(c, &queries[i]) / cost;
        if (spread)
            share /= (double)segments_of(queries[i].position + queries[i].n_rows);
        add_passes(a, (uint32_t)i, pass_width(a, &queries[i], (size_t)ceil(share)));
    }
    if (spread)
        run_spread(a, most_segments, cost);
    else
        attn_pool_run(a->pool, run_pass, a, a->n_passes, cost);
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
                                           kv_head)
                            .keys;
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
