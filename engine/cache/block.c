#include "engine/cache/block.h"

#include "engine/base/half.h"

#include <math.h>
#include <string.h>

/* Rounds to the dtype (not q8), at element `at`. */
static bool put(attn_dtype dtype, void *array, size_t at, float value)
{
    uint16_t bits;
    switch (dtype) {
    case ATTN_BF16:
        bits = attn_to_bf16(value);
        ((uint16_t *)array)[at] = bits;
        return (bits & 0x7f80u) != 0x7f80u;
    case ATTN_F16:
        bits = attn_to_f16(value);
        ((uint16_t *)array)[at] = bits;
        return (bits & 0x7c00u) != 0x7c00u;
    default:
        ((float *)array)[at] = value;
        return true;
    }
}

static float get(attn_dtype dtype, const void *array, size_t at, float scale)
{
    switch (dtype) {
    case ATTN_BF16:
        return attn_bf16_value(((const uint16_t *)array)[at]);
    case ATTN_F16:
        return attn_f16_value(((const uint16_t *)array)[at]);
    case ATTN_Q8:
        return (float)((const int8_t *)array)[at] * scale;
    default:
        return ((const float *)array)[at];
    }
}

/* Keeps one head row as int8 and returns its scale. */
static float put_q8(int8_t *array, size_t first, size_t stride, const float *row, size_t n)
{
    float largest = 0.0f;
    for (size_t i = 0; i < n; i++)
        largest = fabsf(row[i]) > largest ? fabsf(row[i]) : largest;
    float scale = largest / 127.0f;
    for (size_t i = 0; i < n; i++)
        array[first + i * stride] = scale > 0.0f ? (int8_t)lrintf(row[i] / scale) : 0;
    return scale;
}

static float *scales_of(size_t head_dim, void *rows)
{
    return (float *)(void *)((char *)rows + ATTN_PAGE_POSITIONS * head_dim);
}

bool attn_block_write(attn_dtype dtype, size_t head_dim, attn_kv_block block, size_t slot,
                      const float *k, const float *v)
{
    bool fits = true;
    if (dtype == ATTN_Q8) {
        scales_of(head_dim, block.keys)[slot] =
            put_q8(block.keys, slot, ATTN_PAGE_POSITIONS, k, head_dim);
        scales_of(head_dim, block.values)[slot] =
            put_q8(block.values, slot * head_dim, 1, v, head_dim);
        return true;
    }
    for (size_t i = 0; i < head_dim; i++) {
        fits &= put(dtype, block.keys, i * ATTN_PAGE_POSITIONS + slot, k[i]);
        fits &= put(dtype, block.values, slot * head_dim + i, v[i]);
    }
    return fits;
}

void attn_block_read(attn_dtype dtype, size_t head_dim, attn_kv_block block, size_t slot, float *k,
                     float *v)
{
    float k_scale = 1.0f, v_scale = 1.0f;
    if (dtype == ATTN_Q8) {
        k_scale = attn_block_scales(head_dim, block.keys)[slot];
        v_scale = attn_block_scales(head_dim, block.values)[slot];
    }
    for (size_t i = 0; i < head_dim; i++) {
        k[i] = get(dtype, block.keys, i * ATTN_PAGE_POSITIONS + slot, k_scale);
        v[i] = get(dtype, block.values, slot * head_dim + i, v_scale);
    }
}

void attn_block_copy(attn_dtype dtype, size_t head_dim, attn_kv_block to, attn_kv_block from,
                     size_t n)
{
    const size_t size = attn_dtype_size(dtype), line = ATTN_PAGE_POSITIONS * size;
    for (size_t i = 0; i < head_dim; i++)
        memcpy((char *)to.keys + i * line, (const char *)from.keys + i * line, n * size);
    memcpy(to.values, from.values, n * head_dim * size);
    if (dtype == ATTN_Q8) {
        memcpy(scales_of(head_dim, to.keys), attn_block_scales(head_dim, from.keys),
               n * sizeof(float));
        memcpy(scales_of(head_dim, to.values), attn_block_scales(head_dim, from.values),
               n * sizeof(float));
    }
}
