/* rope.h: rotary position embedding's frequencies and angles, the same bits on every machine.
 *
 * libm's pow, sin and cos differ between processors and versions, so these are our own double
 * computations from basic operations, rounded once to f32. The rotation itself is a kernel.
 * Source: Su et al. 2021 (RoFormer), eq. 15, with the half-split pairing (i, i + head_dim/2) of
 * the seed's precompute_freqs_cis and apply_rotary_pos_emb.
 */
#ifndef ATTN_ROPE_H
#define ATTN_ROPE_H

#include <stddef.h>
#include <stdint.h>

/* inv_freq[i] = theta ^ (-2i / head_dim), rounded to f32.
 * Shapes: inv_freq [head_dim / 2]. theta >= 1, head_dim even. */
void attn_rope_frequencies(size_t head_dim, double theta, float *inv_freq);

/* The cosines and sines of angle[i] = (float)position * inv_freq[i], the product in f32 as PyTorch
 * has it. Shapes: cos, sin [half]. Cost: about 20 ns an angle, no allocation: the angles of a
 * batch are computed with it, so that no table grows with the positions. */
void attn_rope_angles(uint64_t position, size_t half, const float *inv_freq, float *cos,
                      float *sin);

#endif
