/* Counters end up in valid Prometheus text, each series once, histograms cumulative. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <regex.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/metrics.h"

static const char *const routes[] = {"/prefill", "/sessions/{id}", "/sessions/{id}", "/decode"};

/* Renders into a string the caller frees. */
static char *render(const srv_metrics *m)
{
    srv_buf out;
    srv_buf_init(&out, 1 << 20);
    srv_metrics_render(m, NULL, &out);
    assert_false(out.failed);
    return out.data;
}

/* The value of a series, or -1 when it is not there. */
static double sample(const char *text, const char *series)
{
    size_t n = strlen(series);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, series, n) == 0 && line[n] == ' ')
            return strtod(line + n, NULL);
    }
    return -1;
}

static void test_text_format(void **state)
{
    (void)state;
    srv_metrics *m = srv_metrics_create(routes, 4);
    assert_non_null(m);
    srv_metrics_request(m, 0, 200, 0.25);
    char *text = render(m);
    regex_t comment, line_of;
    assert_int_equal(regcomp(&comment,
                             "^# (HELP attnd_[a-z_]+ .+|"
                             "TYPE attnd_[a-z_]+ (counter|gauge|histogram))$",
                             REG_EXTENDED | REG_NOSUB),
                     0);
    assert_int_equal(
        regcomp(&line_of,
                "^attnd_[a-z_]+([{][a-z]+=\"[^\"\\]*\"(,[a-z]+=\"[^\"\\]*\")*[}])? [0-9.e+]+$",
                REG_EXTENDED | REG_NOSUB),
        0);
    assert_true(text[strlen(text) - 1] == '\n');
    size_t n_lines = 0;
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save), n_lines++)
        if (regexec(line[0] == '#' ? &comment : &line_of, line, 0, NULL, 0) != 0)
            fail_msg("not a line of the format: %s", line);
    assert_true(n_lines > 60);
    regfree(&comment);
    regfree(&line_of);
    free(text);
    srv_metrics_destroy(m);
}

static void test_requests(void **state)
{
    (void)state;
    srv_metrics *m = srv_metrics_create(routes, 4);
    assert_non_null(m);
    srv_metrics_request(m, 0, 200, 0.001);
    srv_metrics_request(m, 1, 200, 0.001);
    srv_metrics_request(m, 2, 200, 0.001); /* the same template */
    srv_metrics_request(m, 3, 507, 0.001);
    srv_metrics_request(m, SRV_METRICS_NO_ROUTE, 404, 0.001);
    srv_metrics_request(m, 0, 299, 0.001); /* not in the contract */
    char *text = render(m);
    assert_true(sample(text, "attnd_requests_total{route=\"/prefill\",code=\"200\"}") == 1);
    assert_true(sample(text, "attnd_requests_total{route=\"/sessions/{id}\",code=\"200\"}") == 2);
    assert_true(sample(text, "attnd_requests_total{route=\"/decode\",code=\"507\"}") == 1);
    assert_true(sample(text, "attnd_requests_total{route=\"none\",code=\"404\"}") == 1);
    assert_true(sample(text, "attnd_requests_total{route=\"/prefill\",code=\"500\"}") == 1);
    assert_true(sample(text, "attnd_http_request_seconds_count") == 6);
    free(text);
    srv_metrics_destroy(m);
}

static void test_histogram(void **state)
{
    (void)state;
    srv_metrics *m = srv_metrics_create(routes, 4);
    assert_non_null(m);
    const double seconds[] = {0, 1e-5, 1.5e-5, 0.5, 1e9};
    for (size_t i = 0; i < 5; i++)
        srv_metrics_request(m, 0, 200, seconds[i]);
    char *text = render(m);
    const char *bucket = "attnd_http_request_seconds_bucket{le=\"";
    double last = 0;
    size_t n_buckets = 0;
    for (const char *at = strstr(text, bucket); at; at = strstr(at + 1, bucket), n_buckets++) {
        double count = strtod(strchr(at, ' '), NULL);
        assert_true(count >= last);
        last = count;
    }
    assert_int_equal(n_buckets, ATTN_HISTOGRAM_BUCKETS);
    assert_true(sample(text, "attnd_http_request_seconds_bucket{le=\"1e-05\"}") == 2);
    assert_true(sample(text, "attnd_http_request_seconds_bucket{le=\"2e-05\"}") == 3);
    assert_true(sample(text, "attnd_http_request_seconds_bucket{le=\"+Inf\"}") == 5);
    assert_true(sample(text, "attnd_http_request_seconds_count") == 5);
    free(text);
    srv_metrics_destroy(m);
}

static void test_counters(void **state)
{
    (void)state;
    srv_metrics *m = srv_metrics_create(routes, 4);
    assert_non_null(m);
    srv_metrics_rejected(m, "queue_full");
    srv_metrics_rejected(m, "kv_budget_exceeded");
    srv_metrics_rejected(m, "kv_budget_exceeded");
    srv_metrics_rejected(m, "no_such_code");
    srv_metrics_cancelled(m, SRV_METRICS_CANCEL_STALLED);
    srv_metrics_watchers(m, 1);
    srv_metrics_watchers(m, 1);
    srv_metrics_watchers(m, -1);
    srv_metrics_watch_dropped(m, 5);
    char *text = render(m);
    assert_true(sample(text, "attnd_rejected_total{code=\"queue_full\"}") == 1);
    assert_true(sample(text, "attnd_rejected_total{code=\"kv_budget_exceeded\"}") == 2);
    assert_true(sample(text, "attnd_rejected_total{code=\"internal\"}") == 1);
    assert_true(sample(text, "attnd_cancelled_total{reason=\"stalled\"}") == 1);
    assert_true(sample(text, "attnd_cancelled_total{reason=\"client_gone\"}") == 0);
    assert_true(sample(text, "attnd_watchers") == 1);
    assert_true(sample(text, "attnd_watch_frames_dropped_total") == 5);
    assert_true(sample(text, "attnd_process_resident_memory_bytes") > 1 << 18);
    free(text);
    srv_metrics_destroy(m);
}

enum { N_THREADS = 4, N_COUNTS = 10000 };

static void *count_many(void *metrics)
{
    for (int i = 0; i < N_COUNTS; i++)
        srv_metrics_request(metrics, (size_t)i % 4, 200, 1e-3);
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    srv_metrics *m = srv_metrics_create(routes, 4);
    assert_non_null(m);
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count_many, m), 0);
    free(render(m));
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    char *text = render(m);
    assert_true(sample(text, "attnd_http_request_seconds_count") == N_THREADS * N_COUNTS);
    assert_true(sample(text, "attnd_requests_total{route=\"/sessions/{id}\",code=\"200\"}") ==
                N_THREADS * N_COUNTS / 2.0);
    free(text);
    srv_metrics_destroy(m);
}

static void test_ceiling(void **state)
{
    (void)state;
    srv_metrics *m = srv_metrics_create(routes, 4);
    assert_non_null(m);
    srv_buf out;
    srv_buf_init(&out, 100);
    srv_metrics_render(m, NULL, &out);
    assert_true(out.failed);
    srv_buf_free(&out);
    srv_metrics_destroy(m);
    srv_metrics_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_format), cmocka_unit_test(test_requests),
        cmocka_unit_test(test_histogram),   cmocka_unit_test(test_counters),
        cmocka_unit_test(test_threads),     cmocka_unit_test(test_ceiling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
