/* The ring of decode steps: what was pushed comes out, whole, in order; who waits is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "server/stream.h"

static attn_step row_step(uint64_t i, const float *row, size_t size)
{
    return (attn_step){
        .step = i, .position = i + 3, .length = i + 4, .output = row, .output_size = size};
}

static void test_rows(void **state)
{
    (void)state;
    srv_stream *s = srv_stream_create(3, (srv_stream_shape){.row_size = 5});
    float row[5];
    assert_null(srv_stream_front(s));
    for (uint64_t i = 0; i < 20; i++) {
        assert_true(srv_stream_ready(s));
        for (int k = 0; k < 5; k++)
            row[k] = (float)(10 * i) + (float)k;
        attn_step step = row_step(i, row, 5);
        srv_stream_push(s, &step);
        memset(row, 0, sizeof row);
        const attn_step *front = srv_stream_front(s);
        assert_int_equal(front->step, i);
        assert_int_equal(front->position, i + 3);
        assert_int_equal(front->length, i + 4);
        assert_int_equal(front->output_size, 5);
        assert_true(front->output[0] == (float)(10 * i));
        assert_true(front->output[4] == (float)(10 * i) + 4);
        assert_null(front->text);
        srv_stream_pop(s);
    }
    srv_stream_free(s);
}

/* A text of `len` bytes that its length tells. */
static const char *text_of(size_t len, char *buffer)
{
    for (size_t i = 0; i < len; i++)
        buffer[i] = (char)('a' + (len + i) % 26);
    return buffer;
}

/* Texts of every length around a slot's room, and far past it, with and without logprobs. */
static void test_tokens(void **state)
{
    (void)state;
    char buffer[3000], expected[3000];
    attn_logprob logprobs[ATTN_LOGPROBS_MAX] = {0};
    for (size_t n = 0; n <= ATTN_LOGPROBS_MAX; n += 4) {
        srv_stream *s = srv_stream_create(7, (srv_stream_shape){.n_logprobs = n});
        for (size_t len = 0; len < sizeof buffer; len += len < 100 ? 1 : 700) {
            for (size_t i = 0; i < n; i++) {
                logprobs[i] = (attn_logprob){.token = (uint32_t)(len + i), .logprob = -(float)i};
                snprintf(logprobs[i].text, sizeof logprobs[i].text, "t%zu", len + i);
            }
            attn_step step = {.step = len,
                              .token = (uint32_t)len,
                              .text = text_of(len, buffer),
                              .text_len = len,
                              .logprobs = n ? logprobs : NULL,
                              .n_logprobs = n};
            assert_true(srv_stream_ready(s));
            srv_stream_push(s, &step);
            memset(buffer, '!', sizeof buffer);
            memset(logprobs, 0xff, sizeof logprobs);
            const attn_step *front = srv_stream_front(s);
            assert_int_equal(front->token, len);
            assert_int_equal(front->text_len, len);
            assert_memory_equal(front->text, text_of(len, expected), len);
            assert_int_equal(front->n_logprobs, n);
            for (size_t i = 0; i < n; i++) {
                char text[16];
                snprintf(text, sizeof text, "t%zu", len + i);
                assert_int_equal(front->logprobs[i].token, len + i);
                assert_true(front->logprobs[i].logprob == -(float)i);
                assert_string_equal(front->logprobs[i].text, text);
            }
            srv_stream_pop(s);
        }
        assert_false(srv_stream_broken(s));
        srv_stream_free(s);
    }
}

static void test_no_text_is_not_an_empty_one(void **state)
{
    (void)state;
    srv_stream *s = srv_stream_create(2, (srv_stream_shape){0});
    srv_stream_push(s, &(attn_step){.token = 1});
    srv_stream_push(s, &(attn_step){.token = 2, .text = ""});
    assert_null(srv_stream_at(s, 0)->text);
    assert_non_null(srv_stream_at(s, 1)->text);
    srv_stream_free(s);
}

/* A collector holds all, and frees long texts that nobody took. */
static void test_collector(void **state)
{
    (void)state;
    char buffer[200];
    srv_stream *s = srv_stream_create(100, (srv_stream_shape){0});
    for (size_t i = 0; i < 100; i++)
        srv_stream_push(s, &(attn_step){.step = i, .text = text_of(i, buffer), .text_len = i});
    assert_int_equal(srv_stream_count(s), 100);
    for (size_t i = 0; i < 100; i++) {
        assert_int_equal(srv_stream_at(s, i)->step, i);
        assert_memory_equal(srv_stream_at(s, i)->text, text_of(i, buffer), i);
    }
    assert_null(srv_stream_at(s, 100));
    srv_stream_pop(s);
    assert_int_equal(srv_stream_at(s, 0)->step, 1);
    srv_stream_free(s);
}

static void test_both_sides_are_told(void **state)
{
    (void)state;
    attn_step step = {.token = 1, .text = "x", .text_len = 1};
    srv_stream *s = srv_stream_create(2, (srv_stream_shape){0});
    assert_false(srv_stream_push(s, &step)); /* nobody waits yet */
    assert_non_null(srv_stream_front(s));
    assert_false(srv_stream_pop(s));
    assert_null(srv_stream_front(s));
    assert_true(srv_stream_push(s, &step));
    assert_false(srv_stream_push(s, &step)); /* told once */
    assert_false(srv_stream_ready(s));
    assert_true(srv_stream_pop(s));
    assert_false(srv_stream_pop(s)); /* told once */
    assert_true(srv_stream_ready(s));
    srv_stream_free(s);
}

/* A step of another shape is never taken for one, and nothing follows it. */
static void test_broken(void **state)
{
    (void)state;
    static const float row[4];
    static const attn_logprob logprob;
    const attn_step rows = row_step(0, row, 4), narrow = row_step(0, row, 3);
    const attn_step token = {.token = 1}, wide = {.logprobs = &logprob, .n_logprobs = 1};
    static const struct {
        srv_stream_shape shape;
        int wrong;
    } cases[] = {{{.row_size = 4}, 1}, {{.row_size = 4}, 2}, {{.row_size = 0}, 0}, {{0}, 3}};
    const attn_step *steps[] = {&rows, &narrow, &token, &wide};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        srv_stream *s = srv_stream_create(8, cases[i].shape);
        const attn_step *right = cases[i].shape.row_size ? &rows : &token;
        assert_null(srv_stream_front(s));
        assert_true(srv_stream_push(s, right));
        srv_stream_push(s, steps[cases[i].wrong]);
        assert_true(srv_stream_broken(s));
        srv_stream_push(s, right);
        assert_int_equal(srv_stream_count(s), 1);
        srv_stream_free(s);
    }
    srv_stream_free(NULL);
}

static void test_sizes(void **state)
{
    (void)state;
    const size_t size_max = SIZE_MAX;
    assert_true(srv_stream_bytes(size_max, (srv_stream_shape){0}) == size_max);
    assert_true(srv_stream_bytes(1, (srv_stream_shape){.row_size = size_max}) == size_max);
    assert_true(srv_stream_bytes(1, (srv_stream_shape){.n_logprobs = size_max}) == size_max);
    assert_null(srv_stream_create(size_max, (srv_stream_shape){0}));
    for (size_t row = 0; row < 100000; row = 2 * row + 1) {
        srv_stream_shape shape = {.row_size = row};
        assert_true(srv_stream_slots(shape) >= SRV_STREAM_STEPS);
        assert_true(srv_stream_bytes(srv_stream_slots(shape), shape) <=
                    2 * SRV_STREAM_BYTES + SRV_STREAM_STEPS * row * sizeof(float));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_no_text_is_not_an_empty_one),
        cmocka_unit_test(test_collector),
        cmocka_unit_test(test_both_sides_are_told),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
