/* sampler.h: from logits to a token, the same on every machine and whoever else is served.
 *
 * Order: repetition_penalty (on the ids of the context: positive logits are divided by it, negative
 * ones multiplied; Keskar et al. 2019), temperature, top_k, top_p (Holtzman et al. 2020), min_p
 * (a candidate stays when its probability is at least min_p times the best one's). Equal logits:
 * the lower id first. The draw runs over the remaining candidates in id order with
 * u = philox(seed, position), so no state exists. */
#ifndef ATTN_SAMPLER_H
#define ATTN_SAMPLER_H

#include "engine/cache/session.h"

typedef struct attn_sampler attn_sampler;

/* Scratch for one thread and vocabularies of up to max_vocab. NULL when out of memory. */
attn_sampler *attn_sampler_create(const attn_kernels *kernels, size_t max_vocab);
void attn_sampler_destroy(attn_sampler *sampler);

/* Chooses the token at `position` after the committed tokens of `session`.
 * Shapes: logits [vocab_size], unchanged. Cost: linear in vocab_size and length. */
uint32_t attn_sampler_choose(attn_sampler *sampler, const attn_sampling *sampling,
                             const attn_session *session, uint64_t position, const float *logits);

/* The n most probable tokens of the unmodified softmax, most probable first, without texts. */
void attn_sampler_logprobs(attn_sampler *sampler, const float *logits, size_t vocab, size_t n,
                           attn_logprob *best);

#endif
