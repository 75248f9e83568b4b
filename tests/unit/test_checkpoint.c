/* Checkpoint folders and their config.json. Whatever is wrong with them is one line that names the file
 * and the tensor or field, and never a crash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/builtin.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"
#include "tests/unit/checkpoint_run.h"

/* ------------------------------------------------------------------------------------- config */

/* The fields of a complete config; a test leaves one out or gives it another value. */
static const struct {
    const char *name, *value;
    bool required;
} fields[] = {
    {"model_type", "\"attention\"", true},
    {"hidden_size", "16", true},
    {"num_attention_heads", "4", true},
    {"num_key_value_heads", "2", false},
    {"head_dim", "8", false},
    {"num_hidden_layers", "1", true},
    {"rope_theta", "10000.0", false},
    {"rms_norm_eps", "1e-06", false},
    {"max_position_embeddings", "32768", true},
    {"qk_norm", "true", false},
};

#define N_FIELDS (sizeof fields / sizeof fields[0])
/* The integer ones among them. */
static const size_t integers[] = {1, 2, 3, 4, 5, 8};

/* The config with field `changed` set to `value` (NULL: left out) and `extra` appended. */
static size_t make_config(char *text, size_t size, size_t changed, const char *value,
                          const char *extra)
{
    size_t len = (size_t)snprintf(text, size, "{");
    const char *comma = "";
    for (size_t i = 0; i < N_FIELDS; i++) {
        const char *v = i == changed ? value : fields[i].value;
        if (v == NULL)
            continue;
        len += (size_t)snprintf(text + len, size - len, "%s\"%s\": %s", comma, fields[i].name, v);
        comma = ", ";
    }
    return len + (size_t)snprintf(text + len, size - len, "%s}", extra);
}

static bool parse_config(const char *text, size_t len, attn_config *config, attn_error *err)
{
    char *copy = checkpoint_copy_of(text, len);
    *err = (attn_error){0};
    attn_status status = attn_config_parse(copy, len, "config.json", config, err);
    free(copy);
    if (status != ATTN_OK) {
        assert_int_equal(status, err->status);
        CHECK_ERROR(*err, ATTN_E_FORMAT, "config.json");
    }
    return status == ATTN_OK;
}

static bool with_field(size_t changed, const char *value, const char *extra, attn_config *config,
                       attn_error *err)
{
    char text[2048];
    size_t len = make_config(text, sizeof text, changed, value, extra);
    return parse_config(text, len, config, err);
}

static void refuse_field(size_t changed, const char *value)
{
    attn_config config;
    attn_error err;
    if (with_field(changed, value, "", &config, &err))
        fail_msg("accepted %s %s", fields[changed].name, value == NULL ? "(missing)" : value);
    CHECK_ERROR(err, ATTN_E_FORMAT, fields[changed].name);
}

static void test_config(void **state)
{
    (void)state;
    attn_config c;
    attn_error err;
    assert_true(with_field(N_FIELDS, NULL, "", &c, &err));
    assert_string_equal(c.model_type, "attention");
    assert_int_equal(c.hidden_size, 16);
    assert_int_equal(c.num_attention_heads, 4);
    assert_int_equal(c.num_key_value_heads, 2);
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.num_hidden_layers, 1);
    assert_int_equal(c.max_position_embeddings, 32768);
    assert_true(c.rope_theta == 10000.0 && c.rms_norm_eps == 1e-6 && c.qk_norm);
    assert_false(attn_config_is_decoder(&c));
    assert_int_equal(attn_config_qkv_size(&c), 64);
    assert_int_equal(attn_config_input_bytes(&c), 64);
}

static void test_config_defaults(void **state)
{
    (void)state;
    attn_config c;
    attn_error err;
    static const char minimal[] =
        "{\"model_type\":\"attention\",\"hidden_size\":24,\"num_attention_heads\":4,"
        "\"num_hidden_layers\":2,\"max_position_embeddings\":100}";
    assert_true(parse_config(minimal, strlen(minimal), &c, &err));
    assert_int_equal(c.num_key_value_heads, 4);
    assert_int_equal(c.head_dim, 6);
    assert_true(c.rope_theta == 1e4 && c.rms_norm_eps == 1e-6 && c.qk_norm);
}

static void test_config_fields(void **state)
{
    (void)state;
    static const char *const not_integers[] = {"\"16\"",
                                               "true",
                                               "1.5",
                                               "-1",
                                               "[]",
                                               "{}",
                                               "0",
                                               "1e300",
                                               "4294967296",
                                               "9007199254740993",
                                               "-9007199254740993"};
    attn_config c;
    attn_error err;
    for (size_t i = 0; i < N_FIELDS; i++) {
        if (fields[i].required)
            refuse_field(i, NULL);
        else
            assert_true(with_field(i, NULL, "", &c, &err) || strstr(err.message, "head_dim"));
    }
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) {
        for (size_t v = 0; v < sizeof not_integers / sizeof not_integers[0]; v++)
            refuse_field(integers[i], not_integers[v]);
    }
    refuse_field(4, "7");        /* head_dim is odd */
    refuse_field(4, "1026");     /* and too large */
    refuse_field(1, "65537");    /* hidden_size */
    refuse_field(5, "1025");     /* num_hidden_layers */
    refuse_field(8, "16777217"); /* positions are exact in float32 */
    assert_true(with_field(8, "16777216", "", &c, &err));
    /* The heads are shared out evenly. */
    assert_false(with_field(3, "3", "", &c, &err));
    CHECK_ERROR(err, ATTN_E_FORMAT, "num_attention_heads", "num_key_value_heads");
    assert_false(with_field(3, "8", "", &c, &err));
    /* Without head_dim, hidden_size is cut into heads. */
    static const char uneven[] =
        "{\"model_type\":\"attention\",\"hidden_size\":25,\"num_attention_heads\":4,"
        "\"num_hidden_layers\":2,\"max_position_embeddings\":100}";
    assert_false(parse_config(uneven, strlen(uneven), &c, &err));
    CHECK_ERROR(err, ATTN_E_FORMAT, "head_dim");
}

static void test_config_numbers_and_flags(void **state)
{
    (void)state;
    static const char *const bad_theta[] = {"0.5",   "0",     "-1",   "1e31",
                                            "1e999", "\"x\"", "true", "[]"};
    static const char *const bad_eps[] = {"-1e-9", "1.5", "1e999", "\"x\"", "false", "{}"};
    static const char *const bad_flag[] = {"1", "0", "\"true\"", "[]"};
    static const char *const bad_type[] = {"\"attentions\"", "\"\"",    "3", "null", "[]",
                                           "\"ATTENTION\"",  "\"gpt2\""};
    for (size_t i = 0; i < sizeof bad_theta / sizeof bad_theta[0]; i++)
        refuse_field(6, bad_theta[i]);
    for (size_t i = 0; i < sizeof bad_eps / sizeof bad_eps[0]; i++)
        refuse_field(7, bad_eps[i]);
    for (size_t i = 0; i < sizeof bad_flag / sizeof bad_flag[0]; i++)
        refuse_field(9, bad_flag[i]);
    for (size_t i = 0; i < sizeof bad_type / sizeof bad_type[0]; i++)
        refuse_field(0, bad_type[i]);
    attn_config c;
    attn_error err;
    assert_true(with_field(6, "1", "", &c, &err) && c.rope_theta == 1.0);
    assert_true(with_field(7, "0", "", &c, &err) && c.rms_norm_eps == 0.0);
    assert_true(with_field(9, "false", "", &c, &err) && !c.qk_norm);
}

/* A field that could change the result is refused unless it is known not to. */
static void test_config_unknown_fields(void **state)
{
    (void)state;
    static const struct {
        const char *extra, *named;
    } bad[] = {
        {",\"attention_bias\":true", "attention_bias"},
        {",\"attention_bias\":0", "attention_bias"},
        {",\"logit_scale\":2", "logit_scale"},
        {",\"Hidden_Size\":16", "Hidden_Size"},
        {",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", "rope_scaling"},
        {",\"vocab_size\":100", "vocab_size"},
        {",\"a\\nb\\u0001\":1", "a"},
    };
    attn_config c;
    attn_error err;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (with_field(N_FIELDS, NULL, bad[i].extra, &c, &err))
            fail_msg("accepted %s", bad[i].extra);
        CHECK_ERROR(err, ATTN_E_FORMAT, bad[i].named);
    }
    assert_true(with_field(N_FIELDS, NULL,
                           ",\"architectures\":[\"X\"],\"torch_dtype\":\"float32\","
                           "\"transformers_version\":\"4\",\"use_cache\":true,"
                           "\"rope_scaling\":null,\"attention_bias\":false",
                           &c, &err));
}

static void test_config_text(void **state)
{
    (void)state;
    static const char *const bad[] = {"",  " ", "null", "[]",
                                      "3", "{", "{}x",  "{\"hidden_size\":16,"};
    attn_config c;
    attn_error err;
    char text[2048];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(parse_config(bad[i], strlen(bad[i]), &c, &err));
    assert_false(with_field(N_FIELDS, NULL, ",\"hidden_size\":16", &c, &err)); /* twice */
    size_t len = make_config(text, sizeof text, N_FIELDS, NULL, "");
    for (size_t n = 0; n < len; n++)
        assert_false(parse_config(text, n, &c, &err));
    for (size_t at = 0; at < len; at++) {
        static const unsigned char masks[] = {0x01, 0x20, 0x80, 0xff};
        for (size_t m = 0; m < sizeof masks; m++) {
            text[at] = (char)(text[at] ^ masks[m]);
            (void)!parse_config(text, len, &c, &err);
            text[at] = (char)(text[at] ^ masks[m]);
        }
    }
}

/* -------------------------------------------------------------------------------- model folder */

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/attnd-test-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path_of("config.json"));
    unlink(path_of("model.safetensors"));
    return rmdir(folder);
}

static void write_file(const char *name, const void *bytes, size_t size)
{
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void write_config(size_t changed, const char *value)
{
    char text[2048];
    write_file("config.json", text, make_config(text, sizeof text, changed, value, ""));
}

/* The seed model's tensors, to be changed and written. */
typedef struct entry {
    char name[64], dtype[8], shape[32];
    size_t n_bytes;
    char *data;
} entry;

#define N_ENTRIES 6

static void read_entries(entry entries[N_ENTRIES])
{
    attn_safetensors *file =
        attn_safetensors_parse(attn_seed_tensors, checkpoint_seed_size(), "seed", NULL);
    for (size_t i = 0; i < N_ENTRIES; i++) {
        const attn_tensor *t = attn_safetensors_at(file, i);
        entry *e = &entries[i];
        snprintf(e->name, sizeof e->name, "%s", t->name);
        snprintf(e->dtype, sizeof e->dtype, "F32");
        if (t->n_dims == 2)
            snprintf(e->shape, sizeof e->shape, "[%d,%d]", (int)t->shape[0], (int)t->shape[1]);
        else
            snprintf(e->shape, sizeof e->shape, "[%d]", (int)t->shape[0]);
        e->n_bytes = (size_t)t->n_bytes;
        e->data = checkpoint_copy_of(t->data, e->n_bytes);
    }
    attn_safetensors_close(file);
}

static void free_entries(entry entries[N_ENTRIES])
{
    for (size_t i = 0; i < N_ENTRIES; i++)
        free(entries[i].data);
}

/* Writes model.safetensors with those entries whose name is not empty. */
static void write_weights(const entry *entries, size_t n)
{
    char header[4096] = "{", data[20000];
    size_t len = 1, at = 0, size;
    for (size_t i = 0; i < n; i++) {
        const entry *e = &entries[i];
        if (e->name[0] == '\0')
            continue;
        len +=
            (size_t)snprintf(header + len, sizeof header - len,
                             "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                             len > 1 ? "," : "", e->name, e->dtype, e->shape, at, at + e->n_bytes);
        memcpy(data + at, e->data, e->n_bytes);
        at += e->n_bytes;
    }
    snprintf(header + len, sizeof header - len, "}");
    char *bytes = checkpoint_make_file(header, at, &size);
    memcpy(bytes + size - at, data, at);
    write_file("model.safetensors", bytes, size);
    free(bytes);
}

static attn_model *load_folder(attn_error *err)
{
    const attn_load_options options = {0};
    *err = (attn_error){0};
    return attn_model_load("m", folder, &options, err);
}

/* The folder is refused, also to who wants no reason, with a message that names its file and
 * `named`. */
static void refuse_folder(attn_status status, const char *file, const char *named)
{
    attn_error err;
    attn_model *model = load_folder(&err);
    if (model != NULL)
        fail_msg("the folder was loaded, in spite of %s", named);
    CHECK_ERROR(err, status, path_of(file), named);
    assert_null(attn_model_load("m", folder, &(attn_load_options){0}, NULL));
}

static void test_folder_equals_the_built_in_model(void **state)
{
    (void)state;
    entry entries[N_ENTRIES];
    attn_error err;
    const attn_load_options options = {0};
    read_entries(entries);
    write_config(N_FIELDS, NULL);
    /* In another order, which is not the order of the layers. */
    entry swapped = entries[0];
    entries[0] = entries[5];
    entries[5] = swapped;
    write_weights(entries, N_ENTRIES);
    attn_model *model = load_folder(&err);
    if (model == NULL)
        fail_msg("%s", err.message);
    attn_model *seed = attn_model_load_builtin(ATTN_BUILTIN_SEED, &options, &err);
    assert_non_null(seed);
    assert_true(seed->built_in && !model->built_in && !model->random);
    assert_string_equal(model->name, "m");
    assert_string_equal(seed->name, "seed-attention");
    assert_int_equal(model->n_parameters, seed->n_parameters);
    assert_int_equal(model->n_parameters, (32 + 16 + 16 + 32) * 16 + 16);
    assert_int_equal(model->weights_bytes, seed->weights_bytes);
    const attn_layer *a = &model->layers[0], *b = &seed->layers[0];
    assert_memory_equal(a->qkv.panels, b->qkv.panels, 2 * 16 * ATTN_PANEL * sizeof(float));
    assert_memory_equal(a->o.panels, b->o.panels, 32 * ATTN_PANEL * sizeof(float));
    assert_memory_equal(a->q_norm, b->q_norm, 8 * sizeof(float));
    assert_memory_equal(a->k_norm, b->k_norm, 8 * sizeof(float));
    attn_model_free(model);
    attn_model_free(seed);
    free_entries(entries);
}

static void test_missing_and_extra_tensors(void **state)
{
    (void)state;
    static const char *const extra[] = {
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.00.self_attn.q_proj.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers..self_attn.q_proj.weight",
        "model.layers.99999999999999999999.self_attn.q_proj.weight",
        "lm_head.weight",
        "q_proj.weight",
        "x",
    };
    entry entries[N_ENTRIES + 1];
    read_entries(entries);
    write_config(N_FIELDS, NULL);
    for (size_t i = 0; i < N_ENTRIES; i++) {
        char name[64];
        memcpy(name, entries[i].name, sizeof name);
        entries[i].name[0] = '\0';
        write_weights(entries, N_ENTRIES);
        refuse_folder(ATTN_E_FORMAT, "model.safetensors", name);
        memcpy(entries[i].name, name, sizeof name);
    }
    for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++) {
        entries[N_ENTRIES] = entries[0];
        snprintf(entries[N_ENTRIES].name, sizeof entries[0].name, "%s", extra[i]);
        write_weights(entries, N_ENTRIES + 1);
        refuse_folder(ATTN_E_FORMAT, "model.safetensors", extra[i]);
    }
    /* Without QK-norm its weights are two tensors too many. */
    write_config(9, "false");
    write_weights(entries, N_ENTRIES);
    refuse_folder(ATTN_E_FORMAT, "model.safetensors", "_norm.weight");
    free_entries(entries);
}

static void test_values_that_are_not_finite(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    entry entries[N_ENTRIES];
    read_entries(entries);
    write_config(N_FIELDS, NULL);
    for (size_t i = 0; i < N_ENTRIES; i++) {
        for (size_t where = 0; where < 3; where++) {
            size_t n = entries[i].n_bytes / sizeof(float);
            char *at = entries[i].data + (where == 0 ? 0 : where == 1 ? n / 2 : n - 1) * 4;
            float before;
            memcpy(&before, at, sizeof before);
            memcpy(at, &bad[(i + where) % 3], sizeof before);
            write_weights(entries, N_ENTRIES);
            refuse_folder(ATTN_E_FORMAT, "model.safetensors", entries[i].name);
            memcpy(at, &before, sizeof before);
        }
    }
    free_entries(entries);
}

static void test_dtypes_and_shapes(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"I32", "U32"};
    static const char *const shapes[] = {"[16,32]", "[512]", "[8,64]", "[32,16,1]", "[1,32,16]"};
    entry entries[N_ENTRIES];
    read_entries(entries);
    write_config(N_FIELDS, NULL);
    for (size_t i = 0; i < N_ENTRIES; i++) {
        for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
            snprintf(entries[i].dtype, sizeof entries[i].dtype, "%s", dtypes[d]);
            write_weights(entries, N_ENTRIES);
            refuse_folder(ATTN_E_FORMAT, "model.safetensors", entries[i].name);
        }
        snprintf(entries[i].dtype, sizeof entries[i].dtype, "F32");
    }
    for (size_t i = 0; i < N_ENTRIES; i++) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0] && entries[i].n_bytes == 2048;
             s++) {
            entry before = entries[i];
            if (strcmp(shapes[s], entries[i].shape) == 0)
                continue;
            snprintf(entries[i].shape, sizeof entries[i].shape, "%s", shapes[s]);
            write_weights(entries, N_ENTRIES);
            refuse_folder(ATTN_E_FORMAT, "model.safetensors", entries[i].name);
            entries[i] = before;
        }
    }
    /* Shapes that config.json does not ask for. */
    write_weights(entries, N_ENTRIES);
    write_config(1, "18");
    refuse_folder(ATTN_E_FORMAT, "model.safetensors", "self_attn.");
    write_config(4, "10");
    refuse_folder(ATTN_E_FORMAT, "model.safetensors", "self_attn.");
    write_config(5, "2");
    refuse_folder(ATTN_E_FORMAT, "model.safetensors", "model.layers.1.");
    free_entries(entries);
}

static void test_broken_weight_files(void **state)
{
    (void)state;
    write_config(N_FIELDS, NULL);
    for (size_t size = 0; size < checkpoint_seed_size(); size += 97) {
        write_file("model.safetensors", attn_seed_tensors, size);
        refuse_folder(ATTN_E_FORMAT, "model.safetensors", folder);
    }
    char *bytes = checkpoint_copy_of(attn_seed_tensors, checkpoint_seed_size());
    for (size_t at = 8; at < 8 + checkpoint_seed_header(); at++) {
        attn_error err;
        bytes[at] = (char)(bytes[at] ^ 1);
        write_file("model.safetensors", bytes, checkpoint_seed_size());
        attn_model *model = load_folder(&err);
        /* Only the metadata may differ. */
        if (model != NULL)
            assert_true(at < 8 + strlen("{\"__metadata__\":{\"format\":\"pt\"}"));
        else
            CHECK_ERROR(err, ATTN_E_FORMAT, path_of("model.safetensors"));
        attn_model_free(model);
        bytes[at] = (char)(bytes[at] ^ 1);
    }
    free(bytes);
}

static void test_missing_files(void **state)
{
    (void)state;
    const uint64_t seed = 5;
    const attn_load_options no_seed = {0}, with_seed = {.random_seed = &seed};
    attn_error err = {0};
    assert_null(attn_model_load("m", "/nowhere/at/all", &no_seed, &err));
    CHECK_ERROR(err, ATTN_E_IO, "/nowhere/at/all/config.json");
    unlink(path_of("config.json"));
    unlink(path_of("model.safetensors"));
    refuse_folder(ATTN_E_IO, "config.json", folder);
    write_config(N_FIELDS, NULL);
    refuse_folder(ATTN_E_IO, "model.safetensors", folder);

    /* A seed takes the place of weights that are missing, not of weights that are broken. */
    attn_model *model = attn_model_load("m", folder, &with_seed, &err);
    assert_non_null(model);
    assert_true(model->random);
    attn_model_free(model);
    write_file("model.safetensors", "", 0);
    assert_null(attn_model_load("m", folder, &with_seed, &err));
    CHECK_ERROR(err, ATTN_E_FORMAT, path_of("model.safetensors"));

    /* Folders where files should be. */
    unlink(path_of("model.safetensors"));
    assert_int_equal(mkdir(path_of("model.safetensors"), 0700), 0);
    refuse_folder(ATTN_E_FORMAT, "model.safetensors", folder);
    assert_int_equal(rmdir(path_of("model.safetensors")), 0);
    unlink(path_of("config.json"));
    assert_int_equal(mkdir(path_of("config.json"), 0700), 0);
    refuse_folder(ATTN_E_IO, "config.json", folder);
    assert_int_equal(rmdir(path_of("config.json")), 0);

    char *big = calloc(1, (1u << 20) + 1);
    memset(big, ' ', (1u << 20) + 1);
    write_file("config.json", big, (1u << 20) + 1);
    refuse_folder(ATTN_E_FORMAT, "config.json", folder);
    memset(big, 'x', 5000);
    big[5000] = '\0';
    assert_null(attn_model_load("m", big, &no_seed, &err));
    CHECK_ERROR(err, ATTN_E_INVALID, "too long");
    free(big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_config_defaults),
        cmocka_unit_test(test_config_fields),
        cmocka_unit_test(test_config_numbers_and_flags),
        cmocka_unit_test(test_config_unknown_fields),
        cmocka_unit_test(test_config_text),
        cmocka_unit_test(test_folder_equals_the_built_in_model),
        cmocka_unit_test(test_missing_and_extra_tensors),
        cmocka_unit_test(test_values_that_are_not_finite),
        cmocka_unit_test(test_dtypes_and_shapes),
        cmocka_unit_test(test_broken_weight_files),
        cmocka_unit_test(test_missing_files),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
