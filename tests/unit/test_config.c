/* Settings: precedence, every kind of value, what is refused, and the machine's limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/config.h"
#include "server/machine.h"

static char message[256];

/* Parses `args`, a NULL-terminated list without the program's name. */
static srv_config_result parse(srv_config *c, const char *const *args)
{
    char *argv[32] = {(char[]){"attnd"}};
    int argc = 1;
    for (; args[argc - 1]; argc++)
        argv[argc] = strdup(args[argc - 1]);
    message[0] = '\0';
    srv_config_result result = srv_config_parse(c, argc, argv, message, sizeof(message));
    for (int i = 1; i < argc; i++)
        free(argv[i]);
    return result;
}

#define PARSE(c, ...) parse(c, (const char *const[]){__VA_ARGS__, NULL})

/* The arguments must be refused with a message that starts with `flag`, on one line. */
#define REFUSED(flag, ...)                                                \
    do {                                                                  \
        srv_config refused;                                               \
        assert_int_equal(PARSE(&refused, __VA_ARGS__), SRV_CONFIG_ERROR); \
        assert_int_equal(strncmp(message, flag, strlen(flag)), 0);        \
        assert_null(strchr(message, '\n'));                               \
        srv_config_free(&refused);                                        \
    } while (0)

static void test_defaults(void **state)
{
    (void)state;
    srv_config c;
    assert_int_equal(PARSE(&c, NULL), SRV_CONFIG_RUN);
    assert_string_equal(c.host, "127.0.0.1");
    assert_int_equal(c.port, 8080);
    assert_in_range(c.threads, 1, 1024);
    assert_true(c.kv_memory_bytes > 0);
    assert_int_equal(c.max_sessions, 1000000);
    assert_int_equal(c.queue, 4096);
    assert_int_equal(c.max_body_bytes, 64 << 20);
    assert_int_equal(c.body_memory_bytes, 256 << 20);
    assert_int_equal(c.max_connections, 8192);
    assert_int_equal(c.stall_timeout_s, 60);
    assert_int_equal(c.ttl_s, 0);
    assert_string_equal(c.kernels, "auto");
    assert_string_equal(c.weights, "auto");
    assert_string_equal(c.log_level, "info");
    assert_false(c.has_random_seed);
    assert_int_equal(c.n_models + c.allowed_hosts.n + c.cors_origins.n, 0);
    srv_config_free(&c);
}

static void test_flags(void **state)
{
    (void)state;
    srv_config c;
    assert_int_equal(PARSE(&c, "--port=0", "--host", "::1", "--random", "18446744073709551615",
                           "--threads", "3", "--threads", "4", "--kernels", "avx512",
                           "--weights=q8", "--log-level=debug", "--cors-origin", "http://a,b",
                           "--cors-origin=*"),
                     SRV_CONFIG_RUN);
    assert_int_equal(c.port, 0);
    assert_string_equal(c.host, "::1");
    assert_true(c.has_random_seed);
    assert_true(c.random_seed == UINT64_MAX);
    assert_int_equal(c.threads, 4);
    assert_string_equal(c.kernels, "avx512");
    assert_string_equal(c.weights, "q8");
    assert_string_equal(c.log_level, "debug");
    assert_int_equal(c.cors_origins.n, 2);
    assert_string_equal(c.cors_origins.items[0], "http://a,b");
    assert_string_equal(c.cors_origins.items[1], "*");
    srv_config_free(&c);
}

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {
        {"4096", 4096},       {"3K", 3000},
        {"3M", 3000000},      {"3G", 3000000000},
        {"3KiB", 3072},       {"3MiB", 3 << 20},
        {"3GiB", 3ull << 30}, {"18446744073709551615", UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        srv_config c;
        assert_int_equal(PARSE(&c, "--kv-memory", cases[i].text), SRV_CONFIG_RUN);
        assert_true(c.kv_memory_bytes == cases[i].bytes);
        srv_config_free(&c);
    }
    static const char *const wrong[] = {"",
                                        "0",
                                        "-1",
                                        "+1",
                                        " 1",
                                        "1 ",
                                        "1KB",
                                        "1k",
                                        "1kib",
                                        "1T",
                                        "K",
                                        "1.5G",
                                        "0x10",
                                        "1Ki",
                                        "18446744073709551616",
                                        "17179869184GiB"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        REFUSED("--kv-memory:", "--kv-memory", wrong[i]);
}

static void test_refused(void **state)
{
    (void)state;
    REFUSED("--nonsense:", "--nonsense", "1");
    REFUSED("--nonsense:", "--nonsense=1");
    REFUSED("--:", "--");
    REFUSED("8080:", "8080");
    REFUSED("--port:", "--port");
    REFUSED("--port:", "--port", "65536");
    REFUSED("--port:", "--port", "-1");
    REFUSED("--port:", "--port=");
    REFUSED("--port:", "--port", "80x");
    REFUSED("--threads:", "--threads", "0");
    REFUSED("--threads:", "--threads", "1025");
    REFUSED("--queue:", "--queue", "4294967296");
    REFUSED("--random:", "--random", "18446744073709551616");
    REFUSED("--kernels:", "--kernels", "sse");
    REFUSED("--kernels:", "--kernels", "auto|scalar");
    REFUSED("--kernels:", "--kernels", "");
    REFUSED("--weights:", "--weights", "f64");
    REFUSED("--log-level:", "--log-level", "inf");
    REFUSED("--host:", "--host", "");
    REFUSED("--allowed-host:", "--allowed-host", "");
    REFUSED("--print-config", "--print-config=1");
}

static void test_environment(void **state)
{
    (void)state;
    setenv("ATTND_PORT", "9000", 1);
    setenv("ATTND_KV_MEMORY", "1GiB", 1);
    setenv("ATTND_ALLOWED_HOST", "a.example,b.example", 1);
    setenv("ATTND_CORS_ORIGIN", "http://a,http://b", 1);
    setenv("ATTND_HOST", "", 1);
    srv_config c;
    assert_int_equal(PARSE(&c, "--port", "9001", "--cors-origin", "http://c"), SRV_CONFIG_RUN);
    assert_int_equal(c.port, 9001);
    assert_true(c.kv_memory_bytes == 1 << 30);
    assert_int_equal(c.allowed_hosts.n, 2);
    assert_string_equal(c.allowed_hosts.items[0], "a.example");
    assert_string_equal(c.allowed_hosts.items[1], "b.example");
    assert_int_equal(c.cors_origins.n, 1);
    assert_string_equal(c.cors_origins.items[0], "http://c");
    assert_string_equal(c.host, "127.0.0.1");
    srv_config_free(&c);

    setenv("ATTND_ALLOWED_HOST", "a,,b", 1);
    REFUSED("--allowed-host (ATTND_ALLOWED_HOST):", "--port", "1");
    unsetenv("ATTND_ALLOWED_HOST");
    setenv("ATTND_PORT", "many", 1);
    REFUSED("--port (ATTND_PORT):", "--port", "1");
    unsetenv("ATTND_PORT");
    unsetenv("ATTND_KV_MEMORY");
    unsetenv("ATTND_CORS_ORIGIN");
    unsetenv("ATTND_HOST");
}

static void test_models(void **state)
{
    (void)state;
    srv_config c;
    assert_int_equal(
        PARSE(&c, "--model", "models/tiny/", "--model=b=/x/y", "--model", "./a=b/last"),
        SRV_CONFIG_RUN);
    assert_int_equal(c.n_models, 3);
    assert_null(c.default_model);
    assert_string_equal(c.models[0].name, "tiny");
    assert_string_equal(c.models[0].dir, "models/tiny/");
    assert_string_equal(c.models[1].name, "b");
    assert_string_equal(c.models[1].dir, "/x/y");
    assert_string_equal(c.models[2].name, "last");
    assert_string_equal(c.models[2].dir, "./a=b/last");
    srv_config_free(&c);

    assert_int_equal(PARSE(&c, "--default-model", "b"), SRV_CONFIG_RUN);
    assert_string_equal(c.default_model, "b");
    srv_config_free(&c);

    REFUSED("--default-model:", "--default-model", "");
    REFUSED("--model: the name tiny is given twice", "--model", "a/tiny", "--model", "tiny=b");
    REFUSED("--model:", "--model", "name=");
    REFUSED("--model:", "--model", "=dir");
    REFUSED("--model:", "--model", "/");
    REFUSED("--model:", "--model", "..");
    REFUSED("--model:", "--model", "");
    REFUSED("--model:", "--model", "two words=dir");
    REFUSED("--model:", "--model",
            "a2345678901234567890123456789012345678901234567890123456789012345=dir");
}

/* --help, --version and --print-config answer on stdout and want to end with success. */
static void test_answers(void **state)
{
    (void)state;
    int stdout_copy = dup(STDOUT_FILENO);
    assert_non_null(freopen("/dev/null", "w", stdout));
    srv_config c;
    assert_int_equal(PARSE(&c, "--nonsense", "--help"), SRV_CONFIG_EXIT_OK);
    srv_config_free(&c);
    assert_int_equal(PARSE(&c, "--version"), SRV_CONFIG_EXIT_OK);
    srv_config_free(&c);
    assert_int_equal(PARSE(&c, "--print-config", "--model", "a", "--model", "b"),
                     SRV_CONFIG_EXIT_OK);
    srv_config_free(&c);
    REFUSED("--port:", "--print-config", "--port", "x");
    fflush(stdout);
    dup2(stdout_copy, STDOUT_FILENO);
    close(stdout_copy);
}

/* ---------------------------------------------------------------------------- the machine */

static char root[] = "/tmp/attnd-test-config-XXXXXX";

static void write_file(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        assert_true(mkdir(full, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int remove_root(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command);
}

static void test_machine_limits(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(root));
    uint64_t cpus = srv_machine_cpus(root);
    uint64_t memory = srv_machine_memory_bytes(root);
    assert_true(cpus >= 1 && memory > 1 << 20);

    write_file("/proc/self/cgroup", "0::/a/b\n");
    write_file("/sys/fs/cgroup/a/b/memory.max", "max\n");
    write_file("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(srv_machine_cpus(root), cpus);
    assert_true(srv_machine_memory_bytes(root) == memory);
    write_file("/sys/fs/cgroup/a/memory.max", "1048576\n");
    write_file("/sys/fs/cgroup/a/cpu.max", "50000 100000\n");
    assert_int_equal(srv_machine_cpus(root), 1);
    assert_int_equal(srv_machine_memory_bytes(root), 1048576);

    write_file("/proc/self/cgroup", "4:memory:/x\n1:cpu,cpuacct:/x\n0::/\n");
    write_file("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n");
    write_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "524288\n");
    write_file("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
    write_file("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
    assert_int_equal(srv_machine_cpus(root), cpus);
    assert_int_equal(srv_machine_memory_bytes(root), 524288);
    write_file("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "100001\n");
    assert_int_equal(srv_machine_cpus(root), cpus < 2 ? cpus : 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_answers),
        cmocka_unit_test_teardown(test_machine_limits, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
