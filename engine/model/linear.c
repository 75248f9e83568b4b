#include "engine/model/linear.h"

#include "engine/base/half.h"

#include <math.h>
#include <string.h>

const char *attn_dtype_name(attn_dtype dtype)
{
    static const char *const names[ATTN_DTYPES] = {
        [ATTN_F32] = "f32", [ATTN_BF16] = "bf16", [ATTN_F16] = "f16", [ATTN_Q8] = "q8"};
    return names[dtype];
}

size_t attn_panel_bytes(attn_dtype dtype, size_t n_in)
{
    if (dtype == ATTN_Q8)
        return (n_in + ATTN_Q8_GROUP - 1) / ATTN_Q8_GROUP * ATTN_PANEL * sizeof(float) +
               n_in * ATTN_PANEL;
    return n_in * ATTN_PANEL * (dtype == ATTN_F32 ? 4 : 2);
}

static void pack_q8(char *panel, size_t n_in, size_t c, const float *row)
{
    for (size_t first = 0; first < n_in; first += ATTN_Q8_GROUP) {
        size_t inputs = n_in - first < ATTN_Q8_GROUP ? n_in - first : ATTN_Q8_GROUP;
        float largest = 0.0f;
        for (size_t i = 0; i < inputs; i++)
            largest = fabsf(row[first + i]) > largest ? fabsf(row[first + i]) : largest;
        float scale = largest / 127.0f;
        memcpy(panel + c * sizeof scale, &scale, sizeof scale);
        int8_t *values = (int8_t *)(panel + ATTN_PANEL * sizeof scale);
        for (size_t i = 0; i < inputs && scale > 0.0f; i++)
            values[i * ATTN_PANEL + c] = (int8_t)lrintf(row[first + i] / scale);
        panel += ATTN_PANEL * (sizeof scale + inputs);
    }
}

bool attn_linear_pack(void *panels, attn_dtype dtype, size_t n_in, size_t out, const float *row)
{
    char *panel = (char *)panels + out / ATTN_PANEL * attn_panel_bytes(dtype, n_in);
    size_t c = out % ATTN_PANEL;
    bool fits = true;
    switch (dtype) {
    case ATTN_F32:
        for (size_t i = 0; i < n_in; i++)
            ((float *)(void *)panel)[i * ATTN_PANEL + c] = row[i];
        break;
    case ATTN_BF16:
        for (size_t i = 0; i < n_in; i++) {
            uint16_t bits = attn_to_bf16(row[i]);
            fits = fits && (bits & 0x7f80u) != 0x7f80u;
            ((uint16_t *)(void *)panel)[i * ATTN_PANEL + c] = bits;
        }
        break;
    case ATTN_F16:
        for (size_t i = 0; i < n_in; i++) {
            uint16_t bits = attn_to_f16(row[i]);
            fits = fits && (bits & 0x7c00u) != 0x7c00u;
            ((uint16_t *)(void *)panel)[i * ATTN_PANEL + c] = bits;
        }
        break;
    default:
        pack_q8(panel, n_in, c, row);
        break;
    }
    return fits;
}

static void row_q8(const char *panel, size_t n_in, size_t c, float *row)
{
    for (size_t first = 0; first < n_in; first += ATTN_Q8_GROUP) {
        size_t inputs = n_in - first < ATTN_Q8_GROUP ? n_in - first : ATTN_Q8_GROUP;
        float scale;
        memcpy(&scale, panel + c * sizeof scale, sizeof scale);
        const int8_t *values = (const int8_t *)(panel + ATTN_PANEL * sizeof scale);
        for (size_t i = 0; i < inputs; i++)
            row[first + i] = (float)values[i * ATTN_PANEL + c] * scale;
        panel += ATTN_PANEL * (sizeof scale + inputs);
    }
}

void attn_linear_row(const attn_linear *linear, size_t out, float *row)
{
    const void *panel = attn_linear_panel(linear, out / ATTN_PANEL);
    size_t c = out % ATTN_PANEL;
    for (size_t i = 0; i < linear->n_in && linear->dtype != ATTN_Q8; i++) {
        size_t at = i * ATTN_PANEL + c;
        row[i] = linear->dtype == ATTN_F32    ? ((const float *)panel)[at]
                 : linear->dtype == ATTN_BF16 ? attn_bf16_value(((const uint16_t *)panel)[at])
                                              : attn_f16_value(((const uint16_t *)panel)[at]);
    }
    if (linear->dtype == ATTN_Q8)
        row_q8(panel, linear->n_in, c, row);
}
