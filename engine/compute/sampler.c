#include "engine/compute/sampler.h"

#include "engine/base/base.h"
#include "engine/compute/rope.h"
#include "engine/model/philox.h"

#include <string.h>

struct attn_sampler {
    const attn_kernels *kernels;
    float *logits;  /* [vocab rounded up to 16] candidates' logits, then exp(logit - max) */
    uint32_t *ids;  /* [vocab] candidates, in id order */
    uint32_t *heap; /* [vocab] indices into the two above */
    bool *marks;    /* [vocab] */
};

attn_sampler *attn_sampler_create(const attn_kernels *kernels, size_t max_vocab)
{
    attn_sampler *s = attn_alloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    s->kernels = kernels;
    s->logits = attn_alloc(max_vocab + ATTN_LANES, sizeof *s->logits);
    s->ids = attn_alloc(max_vocab, sizeof *s->ids);
    s->heap = attn_alloc(max_vocab, sizeof *s->heap);
    s->marks = attn_alloc(max_vocab, sizeof *s->marks);
    if (!s->logits || !s->ids || !s->heap || !s->marks) {
        attn_sampler_destroy(s);
        return NULL;
    }
    return s;
}

void attn_sampler_destroy(attn_sampler *s)
{
    if (s == NULL)
        return;
    attn_free(s->logits);
    attn_free(s->ids);
    attn_free(s->heap);
    attn_free(s->marks);
    attn_free(s);
}

/* Divides the logits of the context's tokens, each once. */
static void penalize(attn_sampler *s, const attn_session *session, uint64_t length, float penalty)
{
    for (uint64_t p = 0; p < length; p++) {
        uint32_t id = *attn_session_input_token(session, p);
        if (s->marks[id])
            continue;
        s->marks[id] = true;
        s->logits[id] = s->logits[id] > 0.0f ? s->logits[id] / penalty : s->logits[id] * penalty;
    }
    for (uint64_t p = 0; p < length; p++)
        s->marks[*attn_session_input_token(session, p)] = false;
}

static uint32_t argmax(const float *logits, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return (uint32_t)best;
}

/* Whether candidate a comes before b: the larger value, the lower id (= index) of equals. */
static bool before(const attn_sampler *s, uint32_t a, uint32_t b)
{
    return s->logits[a] != s->logits[b] ? s->logits[a] > s->logits[b] : a < b;
}

/* Restores the heap below `at`: every parent comes before its children. */
static void sift_down(attn_sampler *s, size_t at, size_t n)
{
    for (;;) {
        size_t first = at, left = 2 * at + 1, right = left + 1;
        if (left < n && before(s, s->heap[left], s->heap[first]))
            first = left;
        if (right < n && before(s, s->heap[right], s->heap[first]))
            first = right;
        if (first == at)
            return;
        uint32_t moved = s->heap[at];
        s->heap[at] = s->heap[first];
        s->heap[first] = moved;
        at = first;
    }
}

/* Keeps the best candidates: at most `count` of them, and only until their values sum to `mass`.
 * Their order stays that of their ids. */
static size_t keep_best(attn_sampler *s, size_t n, size_t count, double mass)
{
    size_t left = n, kept = 0;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        s->heap[i] = (uint32_t)i;
    for (size_t i = n / 2; i-- > 0;)
        sift_down(s, i, n);
    for (size_t taken = 0; taken < count && left > 0 && sum < mass; taken++) {
        uint32_t best = s->heap[0];
        s->marks[best] = true;
        sum += (double)s->logits[best];
        s->heap[0] = s->heap[--left];
        sift_down(s, 0, left);
    }
    for (size_t i = 0; i < n; i++) {
        if (!s->marks[i])
            continue;
        s->marks[i] = false;
        s->logits[kept] = s->logits[i];
        s->ids[kept++] = s->ids[i];
    }
    return kept;
}

static size_t keep_above(attn_sampler *s, size_t n, float least)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (s->logits[i] >= least) {
            s->logits[kept] = s->logits[i];
            s->ids[kept++] = s->ids[i];
        }
    }
    return kept;
}

/* u in [0, 1) from the seed and the position alone. */
static double uniform(uint64_t seed, uint64_t position)
{
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0x706d6173u, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t words[4];
    attn_philox4x32(counter, key, words);
    uint64_t bits = (uint64_t)words[0] << 21 ^ words[1] >> 11;
    return (double)bits * 0x1p-53;
}

static uint32_t draw(const attn_sampler *s, size_t n, double u)
{
    double total = 0, sum = 0;
    for (size_t i = 0; i < n; i++)
        total += (double)s->logits[i];
    for (size_t i = 0; i < n; i++) {
        sum += (double)s->logits[i];
        if (sum > u * total)
            return s->ids[i];
    }
    return s->ids[n - 1];
}

/* Takes every token in as a candidate. Returns their number. */
static size_t take_in(attn_sampler *s, const attn_sampling *sampling, const attn_session *session,
                      const float *logits)
{
    size_t n = session->model->config.vocab_size;
    memcpy(s->logits, logits, n * sizeof *logits);
    if (sampling->repetition_penalty != 1.0f)
        penalize(s, session, session->length, sampling->repetition_penalty);
    return n;
}

uint32_t attn_sampler_choose(attn_sampler *s, const attn_sampling *sampling,
                             const attn_session *session, uint64_t position, const float *logits)
{
    size_t n = take_in(s, sampling, session, logits);
    if (sampling->temperature == 0.0f)
        return argmax(s->logits, n);
    for (size_t i = 0; i < n; i++) {
        s->logits[i] /= sampling->temperature;
        s->ids[i] = (uint32_t)i;
    }
    if (sampling->top_k > 0 && sampling->top_k < n)
        n = keep_best(s, n, sampling->top_k, __builtin_inf());
    float max, sum;
    /* Divided by a temperature so low that they overflow, only the best has a chance. */
    if (!s->kernels->softmax(n, s->logits, &max, &sum))
        return argmax(s->logits, take_in(s, sampling, session, logits));
    if (sampling->top_p < 1.0f)
        n = keep_best(s, n, n, (double)sampling->top_p * (double)sum);
    if (sampling->min_p > 0.0f)
        n = keep_above(s, n, sampling->min_p); /* the best one's value is exp(0) = 1 */
    return draw(s, n, uniform(sampling->seed, position));
}

void attn_sampler_logprobs(attn_sampler *s, const float *logits, size_t vocab, size_t n,
                           attn_logprob *best)
{
    size_t found = 0;
    for (size_t i = 0; i < vocab; i++) {
        size_t at = found;
        while (at > 0 && logits[i] > logits[best[at - 1].token])
            at--;
        if (at == n)
            continue;
        found += found < n;
        memmove(&best[at + 1], &best[at], (found - 1 - at) * sizeof *best);
        best[at].token = (uint32_t)i;
    }
    float max, sum;
    memcpy(s->logits, logits, vocab * sizeof *logits);
    s->kernels->softmax(vocab, s->logits, &max, &sum);
    double log_sum = attn_log((double)sum);
    for (size_t i = 0; i < found; i++)
        best[i].logprob = (float)((double)logits[best[i].token] - (double)max - log_sum);
}
