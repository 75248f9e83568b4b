/* Attention by itself: scores that are not finite. */
#include "engine/compute/attention.h"

#include "engine/base/base.h"
#include "engine/compute/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#define ROWS 20

/* A score of -infinity weighs nothing and so leaves no trace in the output: the rows that read its
 * key are told all the same, and no others. */
static void test_a_negative_overflow_is_told(void **state)
{
    (void)state;
    attn_error err;
    attn_model model = {.config = {.hidden_size = 2,
                                   .num_hidden_layers = 1,
                                   .num_attention_heads = 1,
                                   .num_key_value_heads = 1,
                                   .head_dim = 2},
                        .score_scale = 1.0f};
    attn_model *models[] = {&model};
    attn_pool *pool = attn_pool_create(1);
    attn_arena *arena = attn_arena_create(1 << 20, &err);
    assert_true(pool != NULL && arena != NULL);
    const size_t page = ATTN_PAGE_POSITIONS * attn_model_kv_bytes(&model, ATTN_F32);
    attn_page_class *pages = attn_arena_add_class(arena, page, 0, &err);
    assert_non_null(pages);
    assert_int_equal(attn_arena_reserve(arena, attn_session_record_bytes(&model), &err), ATTN_OK);
    attn_session *session = attn_session_new("s", &model, arena, pages, ATTN_F32, false, 0);
    assert_non_null(session);
    assert_int_equal(attn_session_reserve(session, ROWS, &err), ATTN_OK);
    attn_session_take_pages(session, ROWS);
    for (size_t p = 0; p < ROWS; p++) {
        const float k[] = {p == 17 ? -1e30f : 0.0f, 1.0f}, v[] = {1.0f, 2.0f};
        assert_true(
            attn_block_write(ATTN_F32, 2, attn_session_block(session, p, 0, 0), p % 16, k, v));
    }
    static const char *const kernels[] = {"scalar", "auto"};
    for (size_t i = 0; i < 2; i++) {
        float q[ROWS][2], z[ROWS][2];
        _Atomic bool overflow[ROWS];
        for (size_t r = 0; r < ROWS; r++) {
            q[r][0] = 1e30f;
            q[r][1] = 1.0f;
            overflow[r] = false;
        }
        attn_attention *attention =
            attn_attention_create(pool, attn_kernels_select(kernels[i]), models, 1, ROWS);
        assert_non_null(attention);
        attn_queries queries = {.session = session,
                                .n_rows = ROWS,
                                .q = q[0],
                                .ldq = 2,
                                .z = z[0],
                                .ldz = 2,
                                .overflow = overflow};
        attn_attention_run(attention, &model, 0, &queries, 1);
        for (size_t r = 0; r < ROWS; r++) {
            assert_int_equal(overflow[r], r >= 17);
            assert_true(z[r][0] == 1.0f && z[r][1] == 2.0f);
        }
        attn_attention_destroy(attention);
    }
    attn_session_free(session);
    attn_arena_destroy(arena);
    attn_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_negative_overflow_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
