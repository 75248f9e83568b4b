/* The laws on numbers: splitting, company, threads and instruction set change no bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "engine/model/philox.h"
#include "tests/unit/engine_run.h"

#define LONG_ROWS LESS(4000u, 1300u)
/* Contexts past two borders of attention's segments, at 512 and 1024 keys; or past one. */
#define MIDDLE_ROWS LESS(1100u, 560u)

static const char *const all_kernels[] = {"scalar", "avx2", "avx512"};

/* A model and the rows that it is fed. */
typedef struct subject {
    const char *model;
    uint64_t seed;
    size_t hidden, n_rows;
    float *rows;
} subject;

static subject subject_of(const char *model, uint64_t seed, size_t hidden, size_t n_rows)
{
    subject s = {model, seed, hidden, n_rows, malloc(n_rows * hidden * sizeof(float))};
    attn_philox_uniform(seed, "inputs", 1.0f, 0, n_rows * hidden, s.rows);
    return s;
}

static attn_engine *open_for(const subject *s, unsigned n_threads, const char *kernels)
{
    return run_open((run_setup){
        .model = s->model, .seed = s->seed, .n_threads = n_threads, .kernels = kernels});
}

/* Appends rows [first, first + n) by a prefill or by decode steps; their outputs go to
 * outputs[first ..]. */
static void feed(attn_engine *engine, const subject *s, const char *id, size_t first, size_t n,
                 bool decode, float *outputs)
{
    const float *rows = s->rows + first * s->hidden;
    run r = decode ? run_decode(engine, id, rows, n, s->hidden)
                   : run_prefill(engine, id, NULL, rows, n, s->hidden, ATTN_OUTPUT_ALL);
    if (r.submitted != ATTN_OK || r.reason != ATTN_REASON_LENGTH)
        fail_msg("rows %zu + %zu: %s", first, n, r.error.message);
    assert_int_equal(r.n_outputs, n);
    memcpy(outputs + first * s->hidden, r.outputs, n * s->hidden * sizeof(float));
    run_free(&r);
}

static float *whole(attn_engine *engine, const subject *s, const char *id, size_t n)
{
    float *outputs = calloc(n * s->hidden, sizeof *outputs);
    feed(engine, s, id, 0, n, false, outputs);
    return outputs;
}

/* Fails at the first row that is not the same, bit for bit. */
static void check_same(const subject *s, const float *a, const float *b, size_t first, size_t n,
                       const char *what)
{
    for (size_t r = first; r < first + n; r++) {
        if (memcmp(a + r * s->hidden, b + r * s->hidden, s->hidden * sizeof *a) != 0)
            fail_msg("%s, %s: row %zu is not the same", s->model, what, r);
    }
}

static void check_verified(attn_engine *engine, const char *id)
{
    run v = run_verify(engine, id);
    assert_int_equal(v.reason, ATTN_REASON_LENGTH);
    assert_true(v.bit_identical && v.max_abs_diff == 0.0);
    run_free(&v);
}

static uint32_t random_state;

static uint32_t draw(uint32_t n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

/* ----------------------------------------------------------------------------- L1: splitting */

/* Appends the first n rows in pieces of random sizes, by prefills and decodes. */
static void feed_in_pieces(attn_engine *engine, const subject *s, const char *id, size_t n,
                           uint32_t most, float *outputs)
{
    for (size_t done = 0; done < n;) {
        size_t piece = 1 + draw(most);
        piece = piece < n - done ? piece : n - done;
        feed(engine, s, id, done, piece, done > 0 && draw(2) == 0, outputs);
        done += piece;
    }
}

static void test_splitting_changes_nothing(void **state)
{
    (void)state;
    size_t n_values;
    attn_safetensors *file = golden_open("chain3");
    subject s = {"chain3", 42, 96, 210, NULL};
    s.rows = malloc(210 * 96 * sizeof(float));
    memcpy(s.rows, golden_f32(file, "inputs", &n_values), 210 * 96 * sizeof(float));
    assert_int_equal(n_values, 210 * 96);
    attn_engine *engine = open_for(&s, 2, "auto");
    float *expected = whole(engine, &s, "whole", 210), *outputs = calloc(210 * 96, sizeof(float));
    char id[16];
    random_state = 1;
    for (int i = 0; i < LESS(12, 3); i++) {
        snprintf(id, sizeof id, "pieces%d", i);
        feed_in_pieces(engine, &s, id, 210, i % 4 == 0 ? 3 : i % 4 == 1 ? 17 : 90, outputs);
        check_same(&s, expected, outputs, 0, 210, id);
    }
    check_verified(engine, "pieces0");
    /* One at a time, from the very first. */
    for (size_t r = 0; r < 210; r++)
        feed(engine, &s, "singly", r, 1, r > 0, outputs);
    check_same(&s, expected, outputs, 0, 210, "singly");
    attn_engine_close(engine);
    attn_safetensors_close(file);
    free(expected);
    free(outputs);
    free(s.rows);
}

/* Heads of one row that take several blocks, and several passes: 80 that share 5 KV heads. */
static void test_splitting_with_many_heads(void **state)
{
    (void)state;
    static const unsigned threads[] = {1, 2, 8};
    subject s = subject_of("many-heads", 9, 32, 600); /* past a segment's border */
    attn_engine *engine = open_for(&s, 1, "scalar");
    float *expected = whole(engine, &s, "whole", s.n_rows);
    attn_engine_close(engine);
    float *outputs = calloc(s.n_rows * s.hidden, sizeof *outputs);
    for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
        engine = open_for(&s, threads[t], "auto");
        for (size_t r = 0; r < s.n_rows; r++)
            feed(engine, &s, "singly", r, 1, r > 0, outputs);
        check_same(&s, expected, outputs, 0, s.n_rows, "singly");
        random_state = (uint32_t)t;
        feed_in_pieces(engine, &s, "pieces", s.n_rows, 5, outputs);
        check_same(&s, expected, outputs, 0, s.n_rows, "pieces");
        check_verified(engine, "singly");
        attn_engine_close(engine);
    }
    free(expected);
    free(outputs);
    free(s.rows);
}

/* Around the borders of attention's segments. */
static void test_splitting_at_segment_borders(void **state)
{
    (void)state;
    static const size_t cuts[][6] = {
        {511, 512, 513, 1023, 1024, 1025},
        {510, 514, 1022, 1026},
        {512, 1024},
        {511, 1023},
        {513, 1025},
        {1, 500, 1000},
    };
    subject s = subject_of("chain3", 42, 96, MIDDLE_ROWS);
    attn_engine *engine = open_for(&s, 2, "auto");
    float *expected = whole(engine, &s, "whole", MIDDLE_ROWS);
    float *outputs = calloc(MIDDLE_ROWS * s.hidden, sizeof *outputs);
    for (size_t i = 0; i < LESS(sizeof cuts / sizeof cuts[0], 3); i++) {
        char id[16];
        snprintf(id, sizeof id, "cut%zu", i);
        size_t done = 0;
        for (size_t c = 0; c < 6 && cuts[i][c] > 0 && cuts[i][c] < MIDDLE_ROWS; done = cuts[i][c++])
            feed(engine, &s, id, done, cuts[i][c] - done, done > 0 && cuts[i][c] - done < 4,
                 outputs);
        feed(engine, &s, id, done, MIDDLE_ROWS - done, false, outputs);
        check_same(&s, expected, outputs, 0, MIDDLE_ROWS, id);
    }
    /* Single steps across both borders, and back again after a truncate. */
    attn_session_info info;
    for (size_t border = 512; border < MIDDLE_ROWS; border += 512) {
        assert_int_equal(attn_session_truncate(engine, "cut0", border - 3, UINT64_MAX, &info, NULL),
                         ATTN_OK);
        for (size_t r = border - 3; r < border + 4; r++)
            feed(engine, &s, "cut0", r, 1, true, outputs);
        check_same(&s, expected, outputs, border - 3, 7, "after a truncate");
        feed(engine, &s, "cut0", border + 4, MIDDLE_ROWS - border - 4, false, outputs);
    }
    check_verified(engine, "cut0");
    attn_engine_close(engine);
    free(expected);
    free(outputs);
    free(s.rows);
}

/* decode(10) = decode(5) + decode(5) = feeding each output back by hand. */
static void test_splitting_a_run_of_steps(void **state)
{
    (void)state;
    subject s = subject_of("chain3", 42, 96, 505); /* the steps cross a segment's border */
    attn_engine *engine = open_for(&s, 2, "auto");
    float *a = whole(engine, &s, "a", 505), *b = whole(engine, &s, "b", 505);
    float *c = whole(engine, &s, "c", 505);
    const size_t row = s.hidden * sizeof(float);
    run ten = run_steps(engine, "a", 10);
    run five = run_steps(engine, "b", 5), more = run_steps(engine, "b", 5);
    assert_int_equal(ten.n_outputs, 10);
    assert_memory_equal(ten.outputs, five.outputs, 5 * row);
    assert_memory_equal(ten.outputs + 5 * s.hidden, more.outputs, 5 * row);
    const float *last = c + 504 * s.hidden;
    for (size_t i = 0; i < 10; i++) {
        run one = i % 2 ? run_decode(engine, "c", last, 1, s.hidden)
                        : run_prefill(engine, "c", NULL, last, 1, s.hidden, ATTN_OUTPUT_LAST);
        assert_memory_equal(one.outputs, ten.outputs + i * s.hidden, row);
        last = ten.outputs + i * s.hidden;
        run_free(&one);
    }
    check_verified(engine, "c");
    run_free(&ten);
    run_free(&five);
    run_free(&more);
    attn_engine_close(engine);
    free(a);
    free(b);
    free(c);
    free(s.rows);
}

/* ------------------------------------------------------------------------------- L2: company */

#define OTHERS LESS(64u, 12u)
#define STEPS LESS(120u, 40u)

/* Batches of more than one row so far. */
static uint64_t shared_batches(attn_engine *engine)
{
    attn_stats stats;
    attn_engine_stats(engine, &stats);
    return stats.batches - stats.batch_size->counts[0];
}

static void test_company_changes_nothing(void **state)
{
    (void)state;
    subject s = subject_of("chain3", 42, 96, 600);
    attn_engine *engine = open_for(&s, 2, "auto");
    float *expected = whole(engine, &s, "alone", 530), *outputs = calloc(600 * 96, sizeof(float));
    run alone = run_steps(engine, "alone", STEPS);
    attn_engine_close(engine);
    static const unsigned threads[] = {3, 1, 8};
    for (size_t t = 0; t < LESS(3, 1); t++) {
        static run results[OTHERS];
        run_handle *others[OTHERS];
        engine = open_for(&s, threads[t], "auto");
        feed(engine, &s, "target", 0, 530, false, outputs);
        /* Sessions of many lengths decode all the time, so no batch is the target's alone. */
        for (size_t i = 0; i < OTHERS; i++) {
            char id[16];
            snprintf(id, sizeof id, "other%zu", i);
            feed(engine, &s, id, 0, 1 + i * 9, false, outputs);
        }
        for (size_t i = 0; i < OTHERS; i++) {
            char id[16];
            snprintf(id, sizeof id, "other%zu", i);
            attn_request r = attn_request_init(ATTN_JOB_DECODE);
            r.session = id;
            r.steps = 2000;
            others[i] = run_start(engine, &r, &results[i]);
            assert_int_equal(results[i].submitted, ATTN_OK);
        }
        for (size_t i = 0; i < OTHERS; i++)
            run_wait_steps(others[i], 1);
        uint64_t before = shared_batches(engine);
        run together = run_steps(engine, "target", STEPS);
        /* Nothing but decodes ran, one row a session. */
        assert_true(shared_batches(engine) >= before + STEPS);
        assert_memory_equal(together.outputs, alone.outputs, STEPS * 96 * sizeof(float));
        for (size_t i = 0; i < OTHERS; i++)
            run_cancel(others[i]);
        for (size_t i = 0; i < OTHERS; i++) {
            run_wait(others[i]);
            run_free(&results[i]);
        }
        check_verified(engine, "target");
        check_verified(engine, "other7");
        run_free(&together);
        attn_engine_close(engine);
    }
    run_free(&alone);
    free(expected);
    free(outputs);
    free(s.rows);
}

/* Prefills, decodes and verifies of many sessions and two models, all at once: each session's rows
 * are what they are alone. */
static void test_mixed_company(void **state)
{
    (void)state;
    enum { SESSIONS = LESS(48, 8) };
    subject s = subject_of("chain3", 42, 96, 600), seed = subject_of(NULL, 5, 16, 300);
    float *expected, *small;
    attn_engine *engine = open_for(&s, 1, "auto");
    expected = whole(engine, &s, "whole", 600);
    attn_engine_close(engine);
    engine = run_open((run_setup){0});
    small = whole(engine, &seed, "whole", 300);
    attn_engine_close(engine);
    engine = open_for(&s, 4, "auto");
    static run results[SESSIONS];
    run_handle *jobs[SESSIONS];
    float *outputs = calloc(600 * 96, sizeof *outputs);
    char id[16];
    for (size_t i = 0; i < SESSIONS; i += 4) {
        snprintf(id, sizeof id, "s%zu", i); /* those that decode or are verified */
        feed(engine, &s, id, 0, 200 + i, false, outputs);
        snprintf(id, sizeof id, "s%zu", i + 1);
        feed(engine, &s, id, 0, 400, false, outputs);
    }
    for (size_t i = 0; i < SESSIONS; i++) {
        static const attn_job_kind kinds[] = {ATTN_JOB_DECODE, ATTN_JOB_VERIFY, ATTN_JOB_PREFILL,
                                              ATTN_JOB_PREFILL};
        attn_request r = attn_request_init(kinds[i % 4]);
        snprintf(id, sizeof id, "s%zu", i);
        r.session = id;
        r.output = ATTN_OUTPUT_ALL;
        const subject *of = i % 4 == 3 ? &seed : &s;
        r.model = r.kind == ATTN_JOB_PREFILL && i % 4 == 3 ? "seed-attention" : NULL;
        r.inputs = r.kind == ATTN_JOB_VERIFY   ? NULL
                   : r.kind == ATTN_JOB_DECODE ? s.rows + (200 + i) * 96
                                               : of->rows;
        r.n_inputs = r.kind == ATTN_JOB_VERIFY ? 0 : r.kind == ATTN_JOB_DECODE ? 80 : 150 + i;
        r.input_size = of->hidden;
        jobs[i] = run_start(engine, &r, &results[i]);
        assert_int_equal(results[i].submitted, ATTN_OK);
    }
    for (size_t i = 0; i < SESSIONS; i++) {
        run_wait(jobs[i]);
        run *r = &results[i];
        assert_int_equal(r->reason, ATTN_REASON_LENGTH);
        if (i % 4 == 0)
            assert_memory_equal(r->outputs, expected + (200 + i) * 96, 80 * 96 * sizeof(float));
        else if (i % 4 == 1)
            assert_true(r->bit_identical);
        else
            assert_memory_equal(r->outputs, i % 4 == 2 ? expected : small,
                                (150 + i) * (i % 4 == 2 ? 96 : 16) * sizeof(float));
        run_free(r);
    }
    attn_engine_close(engine);
    free(expected);
    free(small);
    free(outputs);
    free(s.rows);
    free(seed.rows);
}

/* ------------------------------------------------------------ L5, and threads on one session */

/* Few blocks and several threads: the segments of one step are spread over the threads, in rounds
 * when they are more than the slots. One thread never does that. */
static void test_spreading_changes_nothing(void **state)
{
    (void)state;
    static const unsigned threads[] = {16, 4, 2, 8};
    subject s = subject_of("mha-nonorm", 7, 40, LONG_ROWS + 40);
    attn_engine *engine = open_for(&s, 1, "auto");
    float *expected = whole(engine, &s, "a", LONG_ROWS + 40);
    attn_engine_close(engine);
    float *outputs = calloc((LONG_ROWS + 40) * s.hidden, sizeof *outputs);
    for (size_t t = 0; t < LESS(4, 2); t++) {
        engine = open_for(&s, threads[t], "auto");
        char what[32];
        snprintf(what, sizeof what, "%u threads", threads[t]);
        feed(engine, &s, "a", 0, LONG_ROWS - 200, false, outputs);
        /* Pieces of 1 to 72 rows make 5 to 30 blocks. */
        random_state = (uint32_t)t;
        for (size_t done = LONG_ROWS - 200; done < LONG_ROWS;) {
            static const size_t pieces[] = {1, 33, 12, 72, 5, 60};
            size_t piece = pieces[draw(6)];
            piece = piece < LONG_ROWS - done ? piece : LONG_ROWS - done;
            feed(engine, &s, "a", done, piece, piece == 1, outputs);
            done += piece;
        }
        feed(engine, &s, "a", LONG_ROWS, 40, true, outputs);
        check_same(&s, expected, outputs, 0, LONG_ROWS + 40, what);
        attn_engine_close(engine);
    }
    free(expected);
    free(outputs);
    free(s.rows);
}

static void test_the_instruction_set_changes_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        uint64_t seed;
        size_t hidden, n_rows;
    } models[] = {{"chain3", 42, 96, 530}, /* past a segment's border */
                  {"mha-nonorm", 7, 40, 150},
                  {"mqa", 4294967301, 64, 150},
                  {"minimind-layer", 1234, 768, 20}};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        subject s = subject_of(models[m].model, models[m].seed, models[m].hidden,
                               LESS(models[m].n_rows, models[m].n_rows / 4));
        const size_t n_steps = 15;
        float *expected = NULL;
        run steps = {0};
        for (size_t k = 0; k < 3; k++) {
            if (attn_kernels_select(all_kernels[k]) == NULL) {
                if (m == 0)
                    printf("skip: %s: this processor lacks it\n", all_kernels[k]);
                continue;
            }
            attn_engine *engine = open_for(&s, k == 0 ? 1 : 4, all_kernels[k]);
            float *outputs = whole(engine, &s, "a", s.n_rows);
            run r = run_steps(engine, "a", n_steps);
            if (k == 0) {
                expected = outputs;
                steps = r;
            } else {
                check_same(&s, expected, outputs, 0, s.n_rows, all_kernels[k]);
                assert_memory_equal(r.outputs, steps.outputs, n_steps * s.hidden * sizeof(float));
                free(outputs);
                run_free(&r);
            }
            attn_engine_close(engine);
        }
        free(expected);
        run_free(&steps);
        free(s.rows);
    }
}

/* ----------------------------------------------------------------------------- unusual inputs */

static const float odd[] = {0.0f, -0.0f, 1e-40f, -1e-45f, 1.1754944e-38f, 1e-30f, 1.0f, -1.0f};

/* What rows of unusual values may be made of, row by row. */
static void make_unusual(subject *s, float huge)
{
    for (size_t r = 0; r < s->n_rows; r++) {
        float *row = s->rows + r * s->hidden;
        for (size_t i = 0; i < s->hidden; i++) {
            switch (r % 7) {
            case 0:
                row[i] = -0.0f;
                break; /* equal scores */
            case 1:
                row[i] = odd[draw(8)];
                break;
            case 2:
                row[i] = 1e-40f * (float)draw(9);
                break;
            case 3:
                row[i] *= huge;
                break;
            case 4:
                row[i] = 0.25f;
                break; /* equal keys */
            case 5:
                row[i] = i == r % s->hidden ? 1.0f : 0.0f;
                break;
            default:
                break;
            }
        }
    }
}

static void test_unusual_inputs(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        uint64_t seed;
        size_t hidden;
        float huge; /* what does not overflow: without QK-norm scores grow with its square */
    } models[] = {
        {"chain3", 42, 96, 1e30f}, {"mqa", 4294967301, 64, 1e30f}, {"mha-nonorm", 7, 40, 1e8f}};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        const size_t n = LESS(560, 140);
        subject s = subject_of(models[m].model, models[m].seed, models[m].hidden, n);
        random_state = (uint32_t)m;
        make_unusual(&s, models[m].huge);
        attn_engine *engine = open_for(&s, 1, "scalar");
        float *expected = whole(engine, &s, "a", n);
        float *outputs = calloc(n * s.hidden, sizeof *outputs);
        attn_engine_close(engine);
        for (size_t i = 0; i < n * s.hidden; i++)
            assert_true(isfinite(expected[i]));
        for (size_t k = 1; k < 3; k++) {
            if (attn_kernels_select(all_kernels[k]) == NULL)
                continue;
            engine = open_for(&s, k == 1 ? 4 : 2, all_kernels[k]);
            feed_in_pieces(engine, &s, "a", n, 60, outputs);
            check_same(&s, expected, outputs, 0, n, all_kernels[k]);
            check_verified(engine, "a");
            attn_engine_close(engine);
        }
        free(expected);
        free(outputs);
        free(s.rows);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_splitting_changes_nothing),
        cmocka_unit_test(test_splitting_with_many_heads),
        cmocka_unit_test(test_splitting_at_segment_borders),
        cmocka_unit_test(test_splitting_a_run_of_steps),
        cmocka_unit_test(test_company_changes_nothing),
        cmocka_unit_test(test_mixed_company),
        cmocka_unit_test(test_spreading_changes_nothing),
        cmocka_unit_test(test_the_instruction_set_changes_nothing),
        cmocka_unit_test(test_unusual_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
