/* The numeric primitives: every variant that this processor runs gives the scalar variant's bits,
 * for every shape, and touches nothing but its outputs.
 *
 * Each argument lies at the end of a fence, memory followed by a page that nobody may touch, so
 * reading or writing past it is a fault. The fences of outputs are compared whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <sys/mman.h>
#include <xmmintrin.h>

#include "engine/base/half.h"
#include "engine/cache/block.h"
#include "engine/compute/kernels.h"
#include "engine/model/linear.h"

/* The sanitizers see in every seventh size what there is to see. */
#ifdef __SANITIZE_ADDRESS__
#define STRIDE 7
#else
#define STRIDE 1
#endif

#define FENCE_FLOATS ((size_t)1 << 18)
#define GUARD_FLOATS 64
/* What stands where nothing may be written. */
#define GUARD 0x5a5a5a5au

/* Memory before a forbidden page. */
typedef struct fence {
    float *end;
} fence;

enum { X, W, Y, Y2, N_FENCES };
static fence fences[N_FENCES];

static const attn_kernels *variants[3];
static size_t n_variants;

static int make_fences(void **state)
{
    (void)state;
    attn_kernels_thread_init();
    for (size_t i = 0; i < N_FENCES; i++) {
        size_t bytes = FENCE_FLOATS * sizeof(float);
        char *map =
            mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED || mprotect(map + bytes, 4096, PROT_NONE) != 0)
            return -1;
        fences[i].end = (float *)(void *)(map + bytes);
    }
    static const char *const names[] = {"avx2", "avx512"};
    for (size_t i = 0; i < 2; i++) {
        const attn_kernels *kernels = attn_kernels_select(names[i]);
        if (kernels != NULL)
            variants[n_variants++] = kernels;
        else
            printf("skip: %s: this processor lacks it\n", names[i]);
    }
    return 0;
}

/* The last n floats of a fence, whose values are up to the caller. */
static float *last(size_t which, size_t n)
{
    assert_true(n + GUARD_FLOATS <= FENCE_FLOATS);
    return fences[which].end - n;
}

/* n outputs at the end of a fence, they and what lies before them marked as not written. */
static float *outputs(size_t which, size_t n)
{
    uint32_t guard = GUARD;
    float *p = last(which, n + GUARD_FLOATS);
    for (size_t i = 0; i < n + GUARD_FLOATS; i++)
        memcpy(&p[i], &guard, sizeof guard);
    return p + GUARD_FLOATS;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The same bits; any NaN is as good as another, since none is ever served. */
static bool same(float a, float b)
{
    return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b));
}

/* The n outputs in Y (scalar) and Y2 (variant), and the guards before them, are the same. */
static bool same_outputs(size_t n)
{
    const float *a = last(Y, n + GUARD_FLOATS), *b = last(Y2, n + GUARD_FLOATS);
    for (size_t i = 0; i < n + GUARD_FLOATS; i++) {
        if (!same(a[i], b[i]) || (i < GUARD_FLOATS && bits_of(b[i]) != GUARD))
            return false;
    }
    return true;
}

static uint64_t random_state = 1;

static uint32_t next_random(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static float uniform(void)
{
    return (float)(next_random() >> 8) * 0x1p-23f - 1.0f;
}

/* Kinds of values. */
enum { PLAIN, EQUAL, TINY, MIXED, HUGE_VALUES, N_KINDS };

static float value(int kind)
{
    static const float odd[] = {0.0f, -0.0f,  1e-40f, -1e-45f, 1.17549435e-38f,
                                1.0f, -3e18f, 2e-19f};
    switch (kind) {
    case EQUAL:
        return 0.7f;
    case TINY:
        return uniform() * 1e-20f;
    case MIXED:
        return next_random() % 2 ? uniform() : odd[next_random() % 8];
    case HUGE_VALUES:
        return uniform() * 3e38f;
    default:
        return uniform();
    }
}

static float *values(size_t which, size_t n, int kind)
{
    float *p = last(which, n);
    for (size_t i = 0; i < n; i++)
        p[i] = value(kind);
    return p;
}

/* ----------------------------------------------------------------------------------- matmul */

static size_t panels_of(size_t n)
{
    return (n + ATTN_PANEL - 1) / ATTN_PANEL;
}

/* Panels of one dtype, for n outputs, of `kind` of values packed as weights are. */
static const void *packed(attn_dtype dtype, size_t n, size_t k, int kind)
{
    static char panels[sizeof(float) * ATTN_PANEL * 5000];
    float row[5000];
    assert_true(panels_of(n) * attn_panel_bytes(dtype, k) <= sizeof panels);
    memset(panels, 0, panels_of(n) * attn_panel_bytes(dtype, k));
    for (size_t out = 0; out < panels_of(n) * ATTN_PANEL; out++) {
        for (size_t i = 0; i < k; i++) {
            /* Large values overflow 16 bits, which loading refuses. */
            float v = value(kind);
            row[i] = dtype != ATTN_F32 && !(fabsf(v) < 60000.0f) ? 1.0f : v;
        }
        assert_true(attn_linear_pack(panels, dtype, k, out, row));
    }
    return panels;
}

static void check_dtypes(size_t m, size_t n, size_t k, int kind)
{
    const float *x = values(X, m * k, kind);
    for (int d = ATTN_BF16; d < ATTN_DTYPES; d++) {
        const void *panel = packed((attn_dtype)d, n, k, kind);
        attn_kernels_scalar.matmul[d](m, n, k, x, k, panel, outputs(Y, m * n), n);
        for (size_t v = 0; v < n_variants; v++) {
            variants[v]->matmul[d](m, n, k, x, k, panel, outputs(Y2, m * n), n);
            if (!same_outputs(m * n))
                fail_msg("%s %s matmul m %zu n %zu k %zu kind %d", variants[v]->name,
                         attn_dtype_name((attn_dtype)d), m, n, k, kind);
        }
    }
}

static void test_matmul_of_other_dtypes(void **state)
{
    (void)state;
    for (size_t m = 1; m <= 14; m++) {
        for (size_t n = 1; n <= ATTN_PANEL; n += 3) {
            check_dtypes(m, n, 1 + (m * n) % 40, (int)((m + n) % N_KINDS));
            check_dtypes(m, n, 60 + (m * n) % 80, (int)((m + n) % N_KINDS));
        }
    }
    for (size_t m = 1; m <= 26; m += 1 + m / 4) {
        for (size_t n = 33; n <= 130; n += 16 + m % 3)
            check_dtypes(m, n, 60 + n, (int)((m + n) % N_KINDS));
    }
    check_dtypes(7, 32, 768, 0);
    check_dtypes(1, 32, 1001, 0);
}

/* Every 16-bit float is widened exactly, subnormals included. */
static void test_half_values(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        double mantissa = bits & 0x3ff, sign = bits & 0x8000 ? -1 : 1;
        int exponent = (int)(bits >> 10 & 31);
        if (exponent == 31)
            continue;
        double expected =
            exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
        assert_true((double)attn_f16_value((uint16_t)bits) == sign * expected);
    }
}

static void check_matmul(size_t m, size_t n, size_t k, int kind)
{
    /* Rows apart from each other and, by ldx's remainder, on every alignment. */
    size_t ldx = k + m % 3, ldy = n + k % 3;
    size_t n_x = (m - 1) * ldx + k, n_y = (m - 1) * ldy + n;
    const float *x = values(X, n_x, kind), *panel = values(W, panels_of(n) * k * ATTN_PANEL, kind);
    attn_kernels_scalar.matmul[ATTN_F32](m, n, k, x, ldx, panel, outputs(Y, n_y), ldy);
    for (size_t v = 0; v < n_variants; v++) {
        variants[v]->matmul[ATTN_F32](m, n, k, x, ldx, panel, outputs(Y2, n_y), ldy);
        if (!same_outputs(n_y))
            fail_msg("%s matmul m %zu n %zu k %zu kind %d", variants[v]->name, m, n, k, kind);
    }
}

static void test_matmul(void **state)
{
    (void)state;
    for (size_t m = 1; m <= 12; m++) {
        for (size_t n = 1; n <= ATTN_PANEL; n++) {
            for (size_t k = 0; k <= 40; k += STRIDE)
                check_matmul(m, n, k, (int)((m + n + k) % N_KINDS));
        }
    }
    for (size_t m = 1; m <= 80; m++) {
        for (size_t n = 1; n <= ATTN_PANEL; n += 5)
            check_matmul(m, n, 17, (int)(m % N_KINDS));
    }
    for (size_t m = 1; m <= 26; m += 1 + m / 4) {
        for (size_t n = 33; n <= 130; n += 8 + m % 3)
            check_matmul(m, n, 60 + n, (int)((m + n) % N_KINDS));
    }
    for (int kind = 0; kind < N_KINDS; kind++) {
        check_matmul(7, 32, 768, kind);
        check_matmul(13, 9, 3001, kind);
        check_matmul(1, 31, 4096, kind);
    }
}

/* The formula itself, with sums that are exact. */
static void test_matmul_small_integers(void **state)
{
    (void)state;
    const size_t m = 3, n = 5, k = 4;
    float x[12], panel[4 * ATTN_PANEL] = {0}, y[15];
    for (size_t i = 0; i < m * k; i++)
        x[i] = (float)i;
    for (size_t i = 0; i < k; i++) {
        for (size_t c = 0; c < n; c++)
            panel[i * ATTN_PANEL + c] = (float)(10 * i + c);
    }
    attn_kernels_scalar.matmul[ATTN_F32](m, n, k, x, k, panel, y, n);
    for (size_t r = 0; r < m; r++) {
        for (size_t c = 0; c < n; c++) {
            size_t sum = 0;
            for (size_t i = 0; i < k; i++)
                sum += (r * k + i) * (10 * i + c);
            assert_true(y[r * n + c] == (float)sum);
        }
    }
}

/* ------------------------------------------------------------------------------------ scores */

#define MAX_PAGES 32

/* Random head rows, kept as a cache block of the dtype. */
static void fill_block(attn_dtype dtype, size_t head_dim, attn_kv_block block, int kind)
{
    float k[1024], v[1024];
    for (size_t slot = 0; slot < ATTN_LANES; slot++) {
        for (size_t i = 0; i < head_dim; i++) {
            k[i] = value(kind);
            v[i] = value(kind);
            if (dtype != ATTN_F32) { /* what overflows 16 bits is not kept */
                k[i] = fabsf(k[i]) < 60000.0f ? k[i] : 1.0f;
                v[i] = fabsf(v[i]) < 60000.0f ? v[i] : -1.0f;
            }
        }
        assert_true(attn_block_write(dtype, head_dim, block, slot, k, v));
    }
}

/* Pages ahead that may only be fetched: reading them is a fault. */
static const void *const *forbidden(void)
{
    static const void *ahead[MAX_PAGES];
    for (size_t i = 0; i < MAX_PAGES; i++)
        ahead[i] = last(W, 0);
    return ahead;
}

static void check_scores(size_t m, size_t head_dim, size_t n_pages, int kind)
{
    static _Alignas(64) char memory[MAX_PAGES * ATTN_LANES * 136 * sizeof(float)];
    static _Alignas(64) char unread[ATTN_LANES * 136 * sizeof(float)];
    size_t lds = n_pages * ATTN_LANES + m % 2;
    size_t n_y = (m - 1) * lds + n_pages * ATTN_LANES;
    const float *q = values(X, m * head_dim, kind);
    float scale = 1.0f / sqrtf((float)head_dim);
    for (int d = 0; d < ATTN_DTYPES; d++) {
        const void *keys[MAX_PAGES];
        size_t bytes = attn_block_bytes((attn_dtype)d, head_dim);
        /* In no order. */
        for (size_t p = 0; p < n_pages; p++) {
            attn_kv_block block = {memory + (n_pages - 1 - p) * bytes, unread};
            fill_block((attn_dtype)d, head_dim, block, kind);
            keys[p] = block.keys;
        }
        attn_kernels_scalar.scores[d](m, head_dim, scale, q, keys, forbidden(), n_pages,
                                      outputs(Y, n_y), lds);
        for (size_t v = 0; v < n_variants; v++) {
            variants[v]->scores[d](m, head_dim, scale, q, keys, forbidden(), n_pages,
                                   outputs(Y2, n_y), lds);
            if (!same_outputs(n_y))
                fail_msg("%s %s scores m %zu head_dim %zu pages %zu kind %d", variants[v]->name,
                         attn_dtype_name((attn_dtype)d), m, head_dim, n_pages, kind);
        }
    }
}

static void test_scores(void **state)
{
    (void)state;
    for (size_t m = 1; m <= ATTN_QUERY_ROWS; m++) {
        for (size_t head_dim = 2; head_dim <= 130; head_dim += 2 * STRIDE) {
            for (size_t n_pages = 1; n_pages <= 5; n_pages++)
                check_scores(m, head_dim, n_pages, (int)((m + head_dim / 2 + n_pages) % N_KINDS));
        }
    }
    for (size_t n_pages = 6; n_pages <= MAX_PAGES; n_pages++) {
        check_scores(1, 20, n_pages, PLAIN);
        check_scores(5, 34, n_pages, MIXED);
        check_scores(12, 8, n_pages, PLAIN);
    }
}

/* ----------------------------------------------------------------------------------- softmax */

static size_t up_to_lanes(size_t n)
{
    return (n + ATTN_LANES - 1) / ATTN_LANES * ATTN_LANES;
}

/* Copies n scores into a fence whose last vector is filled up with what must not matter. */
static float *softmax_row(size_t which, const float *scores, size_t n)
{
    static const float rest[] = {3e38f, NAN, -INFINITY, INFINITY};
    float *s = outputs(which, up_to_lanes(n));
    memcpy(s, scores, n * sizeof *s);
    for (size_t i = n; i < up_to_lanes(n); i++)
        s[i] = rest[i % 4];
    return s;
}

/* Whether the row is finite, in every variant's opinion; and all variants agree on the rest. */
static bool check_softmax(const float *scores, size_t n)
{
    float max, sum, max2, sum2;
    const float *a = softmax_row(Y, scores, n);
    bool finite = attn_kernels_scalar.softmax(n, last(Y, up_to_lanes(n)), &max, &sum);
    for (size_t v = 0; v < n_variants; v++) {
        float *b = softmax_row(Y2, scores, n);
        if (variants[v]->softmax(n, b, &max2, &sum2) != finite)
            fail_msg("%s softmax n %zu: finite?", variants[v]->name, n);
        /* Of zeros, either is the largest: no result depends on the sign. */
        if (finite && (max != max2 || bits_of(sum) != bits_of(sum2)))
            fail_msg("%s softmax n %zu: max %a %a sum %a %a", variants[v]->name, n, (double)max,
                     (double)max2, (double)sum, (double)sum2);
        for (size_t i = 0; finite && i < n; i++) {
            if (bits_of(a[i]) != bits_of(b[i]))
                fail_msg("%s softmax n %zu: element %zu", variants[v]->name, n, i);
        }
        for (size_t i = 1; i <= GUARD_FLOATS; i++)
            assert_int_equal(bits_of(b[-(ptrdiff_t)i]), GUARD);
    }
    return finite;
}

static void test_softmax(void **state)
{
    (void)state;
    static const float spans[] = {1.0f, 30.0f, 200.0f, 1e-30f, 1e38f, 0.0f};
    float scores[530];
    for (size_t n = 1; n <= 530; n++) {
        for (size_t span = 0; span < sizeof spans / sizeof spans[0]; span++) {
            for (size_t i = 0; i < n; i++)
                scores[i] = uniform() * spans[span]; /* of span 0: zeros of either sign */
            assert_true(check_softmax(scores, n));
        }
        for (size_t i = 0; i < n; i++)
            scores[i] = value(MIXED);
        assert_true(check_softmax(scores, n));
    }
}

/* Against double: weights, maximum and sum. */
static void test_softmax_values(void **state)
{
    (void)state;
    float scores[100], *s = last(Y, 112), max, sum;
    double total = 0;
    for (size_t i = 0; i < 100; i++)
        s[i] = scores[i] = 20 * uniform();
    assert_true(attn_kernels_scalar.softmax(100, s, &max, &sum));
    for (size_t i = 0; i < 100; i++) {
        assert_true(scores[i] <= max);
        double weight = exp((double)scores[i] - (double)max);
        assert_true(fabs((double)s[i] - weight) <= 3e-6 * weight);
        total += weight;
    }
    assert_true(fabs((double)sum - total) < 1e-5 * total);
}

static void test_softmax_sees_what_is_not_finite(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    float scores[530];
    for (size_t n = 1; n <= 530; n += n < 70 ? 1 : 23) {
        for (size_t at = 0; at < n; at += STRIDE) {
            for (size_t b = 0; b < 3; b++) {
                for (size_t i = 0; i < n; i++)
                    scores[i] = uniform();
                scores[at] = bad[b];
                assert_false(check_softmax(scores, n));
                scores[n - 1 - at] = bad[next_random() % 3];
                assert_false(check_softmax(scores, n));
            }
        }
        for (size_t i = 0; i < n; i++)
            scores[i] = -INFINITY;
        assert_false(check_softmax(scores, n));
    }
}

/* --------------------------------------------------------------------------------------- exp */

static void test_exp_is_close(void **state)
{
    (void)state;
    double worst = 0;
    for (uint32_t bits = 0x80000000u; bits <= bits_of(ATTN_EXP_MIN); bits += 997 * STRIDE) {
        float x = float_of(bits);
        double expected = exp((double)x), error = fabs((double)attn_exp(x) - expected) / expected;
        worst = error > worst ? error : worst;
    }
    printf("largest relative error of attn_exp: %.3g\n", worst);
    assert_true(worst < 3e-7);
    assert_true(attn_exp(0.0f) == 1.0f && attn_exp(-0.0f) == 1.0f);
    assert_true(attn_exp(ATTN_EXP_MIN) > 0.0f);
    assert_true(attn_exp(nextafterf(ATTN_EXP_MIN, -INFINITY)) == 0.0f);
    assert_true(attn_exp(-1e30f) == 0.0f && attn_exp(-INFINITY) == 0.0f);
}

static void check_exp_row(const float x[ATTN_LANES])
{
    for (size_t v = 0; v <= n_variants; v++) {
        const attn_kernels *kernels = v < n_variants ? variants[v] : &attn_kernels_scalar;
        float s[ATTN_LANES], max, sum;
        memcpy(s, x, sizeof s);
        assert_true(kernels->softmax(ATTN_LANES, s, &max, &sum));
        for (size_t i = 0; i < ATTN_LANES; i++) {
            if (bits_of(s[i]) != bits_of(attn_exp(x[i])))
                fail_msg("%s: exp(%a)", kernels->name, (double)x[i]);
        }
    }
}

/* Rows with a 0 in front, which is then their largest and is subtracted from all. */
static void test_exp_is_that_of_softmax(void **state)
{
    (void)state;
    float x[ATTN_LANES] = {
        0,        ATTN_EXP_MIN, nextafterf(ATTN_EXP_MIN, 0), nextafterf(ATTN_EXP_MIN, -INFINITY),
        -FLT_MAX, -1e-40f};
    check_exp_row(x);
    for (uint32_t bits = 0x80000000u; bits <= bits_of(-100.0f);) {
        for (size_t i = 1; i < ATTN_LANES; i++, bits += 991 * STRIDE)
            x[i] = float_of(bits);
        check_exp_row(x);
    }
}

/* ------------------------------------------------------------------------------- row by row */

static void check_mix(size_t m, size_t n, size_t head_dim, int kind)
{
    static _Alignas(64) char unread[ATTN_LANES * 136 * sizeof(float)];
    size_t ldp = n + m % 5, n_o = m * head_dim, n_pages = (n + ATTN_LANES - 1) / ATTN_LANES;
    const float *p = values(X, (m - 1) * ldp + n, kind);
    float start[ATTN_QUERY_ROWS * 130];
    for (size_t i = 0; i < n_o; i++)
        start[i] = value(kind);
    for (int d = 0; d < ATTN_DTYPES; d++) {
        /* Fenced: nothing past the last page's values may be read. */
        size_t floats = attn_block_bytes((attn_dtype)d, head_dim) / sizeof(float);
        float *all = last(W, n_pages * floats);
        const void *values[ATTN_MIX_KEYS / ATTN_LANES];
        for (size_t i = 0; i < n_pages; i++) {
            attn_kv_block block = {unread, all + i * floats};
            fill_block((attn_dtype)d, head_dim, block, kind);
            values[i] = block.values;
        }
        float *o = outputs(Y, n_o);
        memcpy(o, start, n_o * sizeof *o);
        attn_kernels_scalar.mix[d](m, n, head_dim, p, ldp, values, forbidden(), o);
        for (size_t k = 0; k < n_variants; k++) {
            o = outputs(Y2, n_o);
            memcpy(o, start, n_o * sizeof *o);
            variants[k]->mix[d](m, n, head_dim, p, ldp, values, forbidden(), o);
            if (!same_outputs(n_o))
                fail_msg("%s %s mix m %zu n %zu head_dim %zu kind %d", variants[k]->name,
                         attn_dtype_name((attn_dtype)d), m, n, head_dim, kind);
        }
    }
}

static void test_mix(void **state)
{
    (void)state;
    for (size_t m = 1; m <= ATTN_QUERY_ROWS; m++) {
        for (size_t n = 1; n <= ATTN_MIX_KEYS; n += n < ATTN_LANES ? 1 : 9) {
            for (size_t head_dim = 2; head_dim <= 130; head_dim += 2 * STRIDE)
                check_mix(m, n, head_dim, (int)((m + n + head_dim / 2) % N_KINDS));
        }
    }
}

/* One of the primitives that change a vector in place. */
static void run_in_place(const attn_kernels *kernels, int what, size_t n, float eps, float a,
                         float b, const float *x, float *y)
{
    switch (what) {
    case 0:
        kernels->merge(n, a, y, b, x);
        break;
    case 1:
        kernels->scale(n, a, y);
        break;
    case 2:
        kernels->rmsnorm(n, eps, y, x, y);
        break;
    case 3:
        kernels->add(n, x, y);
        break;
    default:
        kernels->swiglu(n, y, x);
        break;
    }
}

static void check_vectors(size_t n, int kind)
{
    static const char *const names[] = {"merge", "scale", "rmsnorm", "add", "swiglu"};
    const float *x = values(X, n, kind), *w = values(W, n, kind);
    float a = value(kind), b = value(kind), eps = n % 2 ? 1e-6f : 0.0f;
    for (size_t v = 0; v < n_variants; v++) {
        for (int what = 0; what < 5; what++) {
            float *y = outputs(Y, n), *y2 = outputs(Y2, n);
            memcpy(y, x, n * sizeof *y);
            memcpy(y2, x, n * sizeof *y);
            run_in_place(&attn_kernels_scalar, what, n, eps, a, b, w, y);
            run_in_place(variants[v], what, n, eps, a, b, w, y2);
            if (!same_outputs(n))
                fail_msg("%s %s n %zu kind %d", variants[v]->name, names[what], n, kind);
        }
        attn_kernels_scalar.rmsnorm(n, eps, x, w, outputs(Y, n));
        variants[v]->rmsnorm(n, eps, x, w, outputs(Y2, n));
        if (!same_outputs(n))
            fail_msg("%s rmsnorm elsewhere n %zu kind %d", variants[v]->name, n, kind);
        assert_true(variants[v]->finite(n, x));
    }
    assert_true(attn_kernels_scalar.finite(n, x));
}

static void check_rope(size_t half, int kind)
{
    const float *cosines = values(X, half, kind), *sines = values(W, half, kind);
    float *y = outputs(Y, 2 * half), *y2 = outputs(Y2, 2 * half), x[260];
    for (size_t i = 0; i < 2 * half; i++)
        x[i] = y[i] = value(kind);
    attn_kernels_scalar.rope(half, y, cosines, sines);
    for (size_t v = 0; v < n_variants; v++) {
        memcpy(y2, x, 2 * half * sizeof *y2);
        variants[v]->rope(half, y2, cosines, sines);
        if (!same_outputs(2 * half))
            fail_msg("%s rope half %zu kind %d", variants[v]->name, half, kind);
    }
}

static void test_vectors(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_KINDS; kind++) {
        for (size_t n = 1; n <= 130; n++) {
            check_vectors(n, kind);
            check_rope(n, kind);
        }
        check_vectors(768, kind);
        check_vectors(4099, kind);
    }
}

static void test_rmsnorm_values(void **state)
{
    (void)state;
    float x[50], w[50], y[50];
    double squares = 0;
    for (size_t i = 0; i < 50; i++) {
        x[i] = 3 * uniform();
        w[i] = uniform();
        squares += (double)x[i] * (double)x[i];
    }
    attn_kernels_scalar.rmsnorm(50, 1e-3f, x, w, y);
    for (size_t i = 0; i < 50; i++) {
        double expected = (double)x[i] / sqrt(squares / 50 + 1e-3) * (double)w[i];
        assert_true(fabs((double)y[i] - expected) <= 1e-6 * fabs(expected));
    }
}

static void test_swiglu_values(void **state)
{
    (void)state;
    for (float g = -90.0f; g <= 90.0f; g += 0.37f) {
        float y = g, up = 0.75f;
        double expected = (double)g / (1 + exp(-(double)g)) * 0.75;
        attn_kernels_scalar.swiglu(1, &y, &up);
        assert_true(fabs((double)y - expected) <= 1e-6 * fabs(expected) + 2e-36);
    }
}

static void test_finite_sees_every_element(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t n = 1; n <= 70; n++) {
        for (size_t at = 0; at < n; at++) {
            for (size_t b = 0; b < 3; b++) {
                float *x = values(X, n, at % 2 ? PLAIN : HUGE_VALUES);
                x[at] = bad[b];
                assert_false(attn_kernels_scalar.finite(n, x));
                for (size_t v = 0; v < n_variants; v++)
                    assert_false(variants[v]->finite(n, x));
            }
        }
    }
}

/* ------------------------------------------------------------------------- choice and mode */

static void test_select(void **state)
{
    (void)state;
    assert_ptr_equal(attn_kernels_select("scalar"), &attn_kernels_scalar);
    assert_null(attn_kernels_select(""));
    assert_null(attn_kernels_select("avx"));
    assert_null(attn_kernels_select("AVX2"));
    assert_ptr_equal(attn_kernels_select("auto"),
                     n_variants > 0 ? variants[n_variants - 1] : &attn_kernels_scalar);
    for (size_t v = 0; v < n_variants; v++)
        assert_ptr_equal(attn_kernels_select(variants[v]->name), variants[v]);
}

/* Bit 0: a subnormal operand counts as zero; bit 1: a subnormal result becomes zero. */
static void *flushing(void *init)
{
    volatile float subnormal = 1e-40f, small = 1e-30f, big = 0x1p100f, tiny = 1e-10f;
    _mm_setcsr(0x1f80); /* how programs start; a thread inherits its maker's mode */
    if (init != NULL)
        attn_kernels_thread_init();
    uintptr_t mode = (uintptr_t)(subnormal * big == 0.0f) | (uintptr_t)(small * tiny == 0.0f) << 1;
    return (void *)mode;
}

static void test_thread_init_flushes_subnormals(void **state)
{
    (void)state;
    for (uintptr_t init = 0; init < 2; init++) {
        pthread_t thread;
        void *mode;
        assert_int_equal(pthread_create(&thread, NULL, flushing, (void *)init), 0);
        assert_int_equal(pthread_join(thread, &mode), 0);
        assert_int_equal((uintptr_t)mode, init ? 3 : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_select),
        cmocka_unit_test(test_thread_init_flushes_subnormals),
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_matmul_of_other_dtypes),
        cmocka_unit_test(test_half_values),
        cmocka_unit_test(test_matmul_small_integers),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_softmax_values),
        cmocka_unit_test(test_softmax_sees_what_is_not_finite),
        cmocka_unit_test(test_exp_is_close),
        cmocka_unit_test(test_exp_is_that_of_softmax),
        cmocka_unit_test(test_mix),
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_rmsnorm_values),
        cmocka_unit_test(test_swiglu_values),
        cmocka_unit_test(test_finite_sees_every_element),
    };
    return cmocka_run_group_tests(tests, make_fences, NULL);
}
