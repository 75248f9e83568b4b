/* kernels_avx512.c: the AVX-512 variant: v16 is one 512-bit register. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

typedef __m512 v16;

#define INLINE static inline __attribute__((always_inline))

/* Of 32 registers: up to 24 sums, the right-hand side, the left. */
#define TILE_ROWS 12
#define FETCH_ROWS 8
#define TILE_MAX_VECTORS 4
#define TILE_VECTORS(rows) ((rows) <= 6 ? 4 : 2)

INLINE v16 v16_zero(void)
{
    return _mm512_setzero_ps();
}

INLINE v16 v16_set1(float x)
{
    return _mm512_set1_ps(x);
}

INLINE v16 v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

INLINE void v16_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}

INLINE __mmask16 lane_mask(size_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1u);
}

INLINE v16 v16_load_n(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(lane_mask(n), p);
}

INLINE void v16_store_n(float *p, v16 a, size_t n)
{
    _mm512_mask_storeu_ps(p, lane_mask(n), a);
}

INLINE v16 v16_keep(v16 a)
{
    __asm__ volatile("" : "+v"(a));
    return a;
}

INLINE v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}

INLINE v16 v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}

INLINE v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}

INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}

INLINE v16 v16_negative_abs(v16 a)
{
    return _mm512_or_ps(a, _mm512_set1_ps(-0.0f));
}

INLINE v16 v16_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

INLINE v16 v16_bf16_order(v16 a)
{
    return a;
}

INLINE v16 v16_from_bf16_order(v16 a)
{
    return a;
}

INLINE v16 v16_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

INLINE v16 v16_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

INLINE v16 v16_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}

INLINE v16 v16_first(v16 a, v16 b, size_t n)
{
    return _mm512_mask_blend_ps(lane_mask(n), b, a);
}

/* a where x >= least, else b (also where x is NaN). */
INLINE v16 v16_select_at_least(v16 x, v16 least, v16 a, v16 b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, least, _CMP_GE_OQ), b, a);
}

INLINE v16 v16_exp2_scale(v16 e, v16 n)
{
    __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(n), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(e), exponent));
}

INLINE void v16_halves(v16 a, __m256 *low, __m256 *high)
{
    *low = _mm512_castps512_ps256(a);
    *high = _mm512_extractf32x8_ps(a, 1);
}

#include "engine/compute/kernels_simd.h"

const attn_kernels attn_kernels_avx512 = SIMD_KERNELS("avx512");
