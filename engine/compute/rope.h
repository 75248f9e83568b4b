/* rope.h: rotary position embedding's frequencies and angles, the same bits on every machine.
 *
 * libm's pow, sin and cos differ between processors and versions, so these are our own double
 * computations from basic operations, rounded once to f32. The rotation itself is a kernel.
 * Source: Su et al. 2021 (RoFormer), eq. 15, with the half-split pairing (i, i + head_dim/2) of
 * the seed's precompute_freqs_cis and apply_rotary_pos_emb.
 */
#ifndef ATTN_ROPE_H
#define ATTN_ROPE_H

#include "engine/model/config.h"

/* inv_freq[i] = theta ^ (-2i / head_dim), scaled as the config says, then rounded to f32.
 * linear: divided by factor. llama3: waves shorter than original / high_freq_factor stay, longer
 * than original / low_freq_factor are divided by factor, those between are blended. yarn: the blend
 * goes by the pair's index between the pairs that turn beta_fast and beta_slow times in the
 * original context (Peng et al. 2023, section 3.2).
 * Shapes: inv_freq [head_dim / 2]. Returns what cos and sin are multiplied by. */
double attn_rope_frequencies(const attn_config *config, float *inv_freq);

/* The cosines and sines of angle[i] = (float)position * inv_freq[i], the product in f32 as PyTorch
 * has it, times `factor`. Shapes: cos, sin [half]. Cost: about 20 ns an
 * angle, no allocation: the angles of a batch are computed with it, so that no table grows with the
 * positions. */
void attn_rope_angles(uint64_t position, size_t half, const float *inv_freq, double factor,
                      float *cos, float *sin);

/* ln x for x > 0 and normal: the same bits on every machine. */
double attn_log(double x);

#endif
