/* block.h: the keys and values of 16 positions of one layer and KV head, as a page stores them.
 *
 * Layout: keys [head_dim][16], values [16][head_dim], in f32, bf16, f16 or int8; q8's are followed by
 * the scales of the 16 rows, f32: a head row x is kept as round(x / scale) with scale = max |x| / 127.
 * Keys stand transposed, so that the lanes of a vector are the keys of a page; values stand in rows,
 * so that the lanes are its elements. Attention reads rows only as kept. */
#ifndef ATTN_BLOCK_H
#define ATTN_BLOCK_H

#include "engine/engine.h"

/* Bytes of an element, without q8's scales. */
static inline size_t attn_dtype_size(attn_dtype dtype)
{
    return dtype == ATTN_F32 ? 4 : dtype == ATTN_Q8 ? 1 : 2;
}

/* Bytes of one head row: what a position costs for K or V of one layer and KV head. */
static inline size_t attn_head_row_bytes(attn_dtype dtype, size_t head_dim)
{
    return head_dim * attn_dtype_size(dtype) + (dtype == ATTN_Q8 ? sizeof(float) : 0);
}

/* Where a block stands in its page. */
typedef struct attn_kv_block {
    void *keys, *values;
} attn_kv_block;

/* Bytes of a block's keys, and of its values. */
static inline size_t attn_block_bytes(attn_dtype dtype, size_t head_dim)
{
    return ATTN_PAGE_POSITIONS * attn_head_row_bytes(dtype, head_dim);
}

/* The scales of q8 keys or values. */
static inline const float *attn_block_scales(size_t head_dim, const void *rows)
{
    return (const float *)(const void *)((const char *)rows + ATTN_PAGE_POSITIONS * head_dim);
}

/* Keeps the head rows k and v [head_dim] f32 as position `slot` of the block. False when a value is
 * too large for the dtype; the position is then undefined. */
ATTN_MUST_CHECK bool attn_block_write(attn_dtype dtype, size_t head_dim, attn_kv_block block,
                                      size_t slot, const float *k, const float *v);
/* Reads a position back as attention reads it. */
void attn_block_read(attn_dtype dtype, size_t head_dim, attn_kv_block block, size_t slot, float *k,
                     float *v);
/* Copies the first n positions of a block. */
void attn_block_copy(attn_dtype dtype, size_t head_dim, attn_kv_block to, attn_kv_block from,
                     size_t n);

#endif
