/* What the fuzzers have found (tests/fuzz/corpus), once more: each input in memory of exactly its
 * size, so that the address sanitizer sees a parser that reads past it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>

#include "engine/base/base.h"
#include "engine/base/file.h"

int fuzz_body(const uint8_t *data, size_t size);
int fuzz_config(const uint8_t *data, size_t size);
int fuzz_json(const uint8_t *data, size_t size);
int fuzz_model(const uint8_t *data, size_t size);
int fuzz_safetensors(const uint8_t *data, size_t size);
int fuzz_tokenizer(const uint8_t *data, size_t size);

typedef struct target {
    const char *name;
    int (*run)(const uint8_t *, size_t);
} target;

static void replay(const target *t, const char *path)
{
    char *text;
    size_t len;
    attn_error err;
    if (attn_read_file(path, SIZE_MAX - 1, &text, &len, &err) != ATTN_OK)
        fail_msg("%s", err.message);
    uint8_t *bytes = malloc(len + (len == 0));
    assert_non_null(bytes);
    memcpy(bytes, text, len);
    attn_free(text);
    t->run(bytes, len);
    free(bytes);
}

static void replay_all(void **state)
{
    const target *t = *state;
    char folder[64];
    size_t n = 0;
    snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", t->name);
    DIR *dir = opendir(folder);
    if (dir == NULL)
        fail_msg("%s is missing", folder);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[512];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        replay(t, path);
        n++;
    }
    closedir(dir);
    print_message("%zu inputs\n", n);
    assert_true(n > 0);
}

int main(void)
{
    static target targets[] = {
        {"body", fuzz_body},   {"config", fuzz_config},           {"json", fuzz_json},
        {"model", fuzz_model}, {"safetensors", fuzz_safetensors}, {"tokenizer", fuzz_tokenizer},
    };
    struct CMUnitTest tests[sizeof targets / sizeof targets[0]] = {{0}};
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++)
        tests[i] = (struct CMUnitTest){targets[i].name, replay_all, NULL, NULL, &targets[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
