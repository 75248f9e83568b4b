/* kernels_avx2.c: the AVX2 and FMA variant: v16 is a pair of 256-bit registers. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct v16 {
    __m256 low, high;
} v16;

#define INLINE static inline __attribute__((always_inline))

/* Of 16 registers: 12 sums, 2 for the right-hand side, 1 for the left. */
#define TILE_ROWS 6
#define FETCH_ROWS 4
#define TILE_MAX_VECTORS 4
#define TILE_VECTORS(rows) ((rows) == 1 ? 4 : (rows) <= 3 ? 2 : 1)

INLINE v16 v16_zero(void)
{
    return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

INLINE v16 v16_set1(float x)
{
    __m256 v = _mm256_set1_ps(x);
    return (v16){v, v};
}

INLINE v16 v16_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

INLINE void v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
}

/* 16 lanes of ones, then 16 of zeros: a mask of n leading lanes starts at 16 - n. */
static const int lane_mask[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};

INLINE __m256i low_mask(size_t n)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(lane_mask + 16 - n));
}

INLINE __m256i high_mask(size_t n)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(lane_mask + 24 - n));
}

INLINE v16 v16_load_n(const float *p, size_t n)
{
    if (n >= 16)
        return v16_load(p);
    __m256 low = _mm256_maskload_ps(p, low_mask(n));
    return (v16){low, n > 8 ? _mm256_maskload_ps(p + 8, high_mask(n)) : _mm256_setzero_ps()};
}

/* Not maskstore, which is microcoded and slow on some processors. */
INLINE void v16_store_n(float *p, v16 a, size_t n)
{
    if (n >= 16) {
        v16_store(p, a);
    } else if (n == 8) {
        _mm256_storeu_ps(p, a.low);
    } else {
        float lanes[16];
        v16_store(lanes, a);
        memcpy(p, lanes, n * sizeof *p);
    }
}

INLINE v16 v16_keep(v16 a)
{
    __asm__ volatile("" : "+x"(a.low), "+x"(a.high));
    return a;
}

INLINE v16 v16_add(v16 a, v16 b)
{
    return (v16){_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}

INLINE v16 v16_sub(v16 a, v16 b)
{
    return (v16){_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}

INLINE v16 v16_mul(v16 a, v16 b)
{
    return (v16){_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}

INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

INLINE v16 v16_div(v16 a, v16 b)
{
    return (v16){_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}

INLINE v16 v16_negative_abs(v16 a)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){_mm256_or_ps(a.low, sign), _mm256_or_ps(a.high, sign)};
}

/* The even elements, then the odd ones: the halves of 32-bit lanes are widened in place. */
INLINE v16 v16_load_bf16(const uint16_t *p)
{
    __m256i pairs = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i odd = _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u));
    return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)), _mm256_castsi256_ps(odd)};
}

INLINE __m256 middle_swapped(__m256 a)
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xd8));
}

INLINE v16 v16_bf16_order(v16 a)
{
    return (v16){middle_swapped(_mm256_shuffle_ps(a.low, a.high, 0x88)),
                 middle_swapped(_mm256_shuffle_ps(a.low, a.high, 0xdd))};
}

INLINE v16 v16_from_bf16_order(v16 a)
{
    __m256 first = _mm256_unpacklo_ps(a.low, a.high), second = _mm256_unpackhi_ps(a.low, a.high);
    return (v16){_mm256_permute2f128_ps(first, second, 0x20),
                 _mm256_permute2f128_ps(first, second, 0x31)};
}

INLINE v16 v16_load_f16(const uint16_t *p)
{
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)))};
}

INLINE __m256 widen_i8(const int8_t *p)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

INLINE v16 v16_load_i8(const int8_t *p)
{
    return (v16){widen_i8(p), widen_i8(p + 8)};
}

INLINE v16 v16_max(v16 a, v16 b)
{
    return (v16){_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}

INLINE v16 v16_first(v16 a, v16 b, size_t n)
{
    return (v16){_mm256_blendv_ps(b.low, a.low, _mm256_castsi256_ps(low_mask(n))),
                 _mm256_blendv_ps(b.high, a.high, _mm256_castsi256_ps(high_mask(n)))};
}

/* a where x >= least, else b (also where x is NaN). */
INLINE v16 v16_select_at_least(v16 x, v16 least, v16 a, v16 b)
{
    return (v16){
        _mm256_blendv_ps(b.low, a.low, _mm256_cmp_ps(x.low, least.low, _CMP_GE_OQ)),
        _mm256_blendv_ps(b.high, a.high, _mm256_cmp_ps(x.high, least.high, _CMP_GE_OQ)),
    };
}

INLINE __m256 exp2_scale(__m256 e, __m256 n)
{
    __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(e), exponent));
}

INLINE v16 v16_exp2_scale(v16 e, v16 n)
{
    return (v16){exp2_scale(e.low, n.low), exp2_scale(e.high, n.high)};
}

INLINE void v16_halves(v16 a, __m256 *low, __m256 *high)
{
    *low = a.low;
    *high = a.high;
}

#include "engine/compute/kernels_simd.h"

const attn_kernels attn_kernels_avx2 = SIMD_KERNELS("avx2");
