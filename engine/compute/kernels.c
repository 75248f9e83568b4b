#include "engine/compute/kernels.h"

#include <string.h>
#include <xmmintrin.h>

static bool cpu_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

static bool cpu_has_avx512(void)
{
    return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

static bool cpu_has_sse2(void)
{
    return true;
}

/* Widest first, the order in which "auto" tries them. */
static const struct {
    const attn_kernels *kernels;
    bool (*supported)(void);
} variants[] = {
    {&attn_kernels_avx512, cpu_has_avx512},
    {&attn_kernels_avx2, cpu_has_avx2},
    {&attn_kernels_scalar, cpu_has_sse2},
};

const attn_kernels *attn_kernels_select(const char *name)
{
    bool automatic = strcmp(name, "auto") == 0;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        if ((automatic || strcmp(name, variants[i].kernels->name) == 0) && variants[i].supported())
            return variants[i].kernels;
    }
    return NULL;
}

void attn_kernels_thread_init(void)
{
    /* FTZ (bit 15), DAZ (bit 6), all exceptions masked (bits 7-12), round to nearest. */
    _mm_setcsr(0x9fc0);
}
