/* attention.h: causal grouped-query attention of query rows over paged keys and values.
 *
 * Query row at position p reads the keys 0 .. p of its session. Query head h reads KV head
 * h / (heads / kv_heads); the heads that share one are computed together, so its rows are read
 * once. Keys are cut into segments at fixed absolute positions; each segment gives a partial
 * softmax (maximum m, sum l, weighted values o), and partials are combined in position order:
 *     M' = max(M, m), a = exp(M - M'), b = exp(m - M'), L = a L + b l, O = a O + b o
 * and at the end z = O / L. So the bits do not depend on which rows and heads are computed
 * together nor on which thread computes which segment.
 * Source: Vaswani et al. 2017, eq. 1; Ainslie et al. 2023 (GQA); partial softmaxes: Milakov and
 * Gimelshein 2018. The seed's SimpleAttention.forward and repeat_kv.
 */
#ifndef ATTN_ATTENTION_H
#define ATTN_ATTENTION_H

#include "engine/cache/session.h"
#include "engine/compute/pool.h"

/* Keys in a segment; a multiple of 16. Part of the numerics: changing it changes bits. */
#define ATTN_SEGMENT 512

/* Query rows of one session, consecutive positions, whose K and V stand in the cache. */
typedef struct attn_queries {
    const attn_session *session;
    uint64_t position; /* of the first row */
    size_t n_rows;     /* 1 or more */
    const float *q;    /* [n_rows, heads, head_dim], rows `ldq` apart, after RoPE */
    size_t ldq;
    float *z; /* out: [n_rows, heads * head_dim], rows `ldz` apart */
    size_t ldz;
    _Atomic bool *overflow; /* [n_rows]: set where a score was not finite */
} attn_queries;

typedef struct attn_attention attn_attention;

/* Scratch for up to `max_rows` rows of all of the models at once. NULL when out of memory. */
attn_attention *attn_attention_create(attn_pool *pool, const attn_kernels *kernels,
                                      attn_model *const *models, size_t n_models, size_t max_rows);
void attn_attention_destroy(attn_attention *attention);

/* What one query vector (a head of a row at `position`, after RoPE) gives the keys
 * [first_key, first_key + n_keys), none of them behind it: their scores and, or, their weights
 * exp(s - M) / L. The same kernels as attn_attention_run, so the same bits of scores, M and L.
 * Shapes: q [head_dim]; scores, pattern [n_keys], NULL if not wanted. `worker`: the pool's thread.
 * Thread: within a pool item, while no attn_attention_run is in progress. */
void attn_attention_look(const attn_attention *attention, const attn_model *model, size_t layer,
                         const attn_session *session, uint64_t position, size_t head,
                         const float *q, uint64_t first_key, uint64_t n_keys, float *scores,
                         float *pattern, unsigned worker);

/* Attention of one layer for n groups of queries, all of `model`. Cost: no allocation. */
void attn_attention_run(attn_attention *attention, const attn_model *model, size_t layer,
                        const attn_queries *queries, size_t n);

#endif
