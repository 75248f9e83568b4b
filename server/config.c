#include "server/config.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/machine.h"

typedef enum value_type {
    TYPE_NUMBER,
    TYPE_SIZE,   /* bytes, with a unit */
    TYPE_SEED,   /* random_seed: a number that may be absent (has_random_seed) */
    TYPE_TEXT,   /* not empty */
    TYPE_CHOICE, /* one of `value`'s words */
    TYPE_LIST,   /* texts; commas separate them in the environment */
} value_type;

/* One setting. `fallback` is the default as a user would write it; NULL: none, or computed. */
typedef struct setting {
    const char *name; /* without the dashes */
    const char *value;
    value_type type;
    size_t offset;
    uint64_t min, max;
    const char *fallback;
    const char *help;
} setting;

#define AT(field) offsetof(srv_config, field)
#define U32 UINT32_MAX
#define U64 UINT64_MAX

static const setting settings[] = {
    {"model", "[NAME=]DIR", TYPE_LIST, AT(model_args), 0, 0, NULL,
     "serve the model in this folder; repeatable"},
    {"default-model", "NAME", TYPE_TEXT, AT(default_model), 0, 0, NULL,
     "for requests that name none (default: the first --model, else stories)"},
    {"random", "SEED", TYPE_SEED, AT(random_seed), 0, U64, NULL,
     "random weights for models whose folder has none"},
    {"weights", "auto|f32|bf16|f16|q8", TYPE_CHOICE, AT(weights), 0, 0, "auto",
     "keep weights in memory so; auto: as their files do"},
    {"host", "ADDRESS", TYPE_TEXT, AT(host), 0, 0, "127.0.0.1", "address to listen on"},
    {"port", "PORT", TYPE_NUMBER, AT(port), 0, 65535, "8080", "0 takes a free port"},
    {"threads", "N", TYPE_NUMBER, AT(threads), 1, 1024, NULL,
     "compute threads (default: the CPUs allowed)"},
    {"kv-memory", "SIZE", TYPE_SIZE, AT(kv_memory_bytes), 1, U64, NULL,
     "budget of all sessions (default: half of the memory allowed)"},
    {"max-sessions", "N", TYPE_NUMBER, AT(max_sessions), 1, U64, "1000000", "most sessions"},
    {"queue", "N", TYPE_NUMBER, AT(queue), 1, U32, "4096", "most unfinished jobs"},
    {"max-body", "SIZE", TYPE_SIZE, AT(max_body_bytes), 1, U64, "64MiB", "largest request body"},
    {"body-memory", "SIZE", TYPE_SIZE, AT(body_memory_bytes), 1, U64, "256MiB",
     "all request bodies at once"},
    {"max-connections", "N", TYPE_NUMBER, AT(max_connections), 1, 1 << 20, "8192",
     "most open connections"},
    {"stall-timeout", "SECONDS", TYPE_NUMBER, AT(stall_timeout_s), 1, 86400, "60",
     "a stream that is not read for so long ends"},
    {"ttl", "SECONDS", TYPE_NUMBER, AT(ttl_s), 0, U32, "0",
     "idle sessions are removed after this; 0 = never"},
    {"allowed-host", "HOST", TYPE_LIST, AT(allowed_hosts), 0, 0, NULL,
     "Host header to accept besides loopback names; repeatable"},
    {"cors-origin", "ORIGIN", TYPE_LIST, AT(cors_origins), 0, 0, NULL,
     "Origin header to accept; repeatable"},
    {"kernels", "auto|scalar|avx2|avx512", TYPE_CHOICE, AT(kernels), 0, 0, "auto",
     "instruction set; the results are the same"},
    {"log-level", "error|warn|info|debug", TYPE_CHOICE, AT(log_level), 0, 0, "info",
     "least important lines to log"},
    {"web-root", "DIR", TYPE_TEXT, AT(web_root), 0, 0, NULL,
     "serve the web page from this folder instead of the built-in one"},
};

enum { N_SETTINGS = sizeof(settings) / sizeof(settings[0]), NAME_BYTES = 64 };

typedef enum source { FROM_DEFAULT, FROM_ENVIRONMENT, FROM_FLAG } source;

typedef struct parser {
    srv_config *c;
    source sources[N_SETTINGS];
    char *err;
    size_t err_size;
} parser;

__attribute__((format(printf, 2, 3))) static bool fail(parser *p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(p->err, p->err_size, format, args);
    va_end(args);
    return false;
}

/* --------------------------------------------------------------------------------- storage */

/* Keeps a copy of n bytes until srv_config_free; NULL when memory is out. */
static char *keep(srv_config *c, const char *text, size_t n)
{
    char **strings = realloc(c->strings, (c->n_strings + 1) * sizeof(*strings));
    if (!strings)
        return NULL;
    c->strings = strings;
    char *copy = strndup(text, n);
    if (copy)
        c->strings[c->n_strings++] = copy;
    return copy;
}

static bool list_add(srv_config *c, srv_config_list *list, const char *text, size_t n)
{
    const char **items = realloc(list->items, (list->n + 1) * sizeof(*items));
    if (!items)
        return false;
    list->items = items;
    list->items[list->n] = keep(c, text, n);
    return list->items[list->n] && ++list->n;
}

void srv_config_free(srv_config *c)
{
    for (size_t i = 0; i < c->n_strings; i++)
        free(c->strings[i]);
    free(c->strings);
    free(c->model_args.items);
    free(c->allowed_hosts.items);
    free(c->cors_origins.items);
    free(c->models);
    *c = (srv_config){0};
}

/* --------------------------------------------------------------------------------- values */

static uint64_t *number_field(srv_config *c, const setting *s)
{
    return (uint64_t *)(void *)((char *)c + s->offset);
}

static const char **text_field(srv_config *c, const setting *s)
{
    return (const char **)(void *)((char *)c + s->offset);
}

static srv_config_list *list_field(srv_config *c, const setting *s)
{
    return (srv_config_list *)(void *)((char *)c + s->offset);
}

/* Reads digits only: no sign, no space, no overflow. `*end` is left after them. */
static bool read_digits(const char *text, uint64_t *value, char **end)
{
    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    *value = strtoull(text, end, 10);
    return errno == 0;
}

static bool read_number(const char *text, uint64_t *value)
{
    char *end;
    return read_digits(text, value, &end) && *end == '\0';
}

static bool read_size(const char *text, uint64_t *bytes)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } units[] = {
        {"", 1},           {"K", 1000},       {"M", 1000000},    {"G", 1000000000},
        {"KiB", 1u << 10}, {"MiB", 1u << 20}, {"GiB", 1u << 30},
    };
    char *end;
    if (!read_digits(text, bytes, &end))
        return false;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (strcmp(end, units[i].name) == 0)
            return !__builtin_mul_overflow(*bytes, units[i].bytes, bytes);
    return false;
}

/* Is `word` one of the |-separated `words`? */
static bool is_choice(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = words; n && at; at = strchr(at, '|')) {
        at += *at == '|';
        size_t length = strcspn(at, "|");
        if (length == n && memcmp(at, word, n) == 0)
            return true;
    }
    return false;
}

/* The setting's environment variable: ATTND_KV_MEMORY. */
static void variable_name(const setting *s, char out[NAME_BYTES])
{
    snprintf(out, NAME_BYTES, "ATTND_%s", s->name);
    for (char *at = out; *at; at++)
        *at = *at == '-' ? '_' : (char)toupper((unsigned char)*at);
}

static bool set_list(parser *p, const setting *s, const char *text, source from, const char *where)
{
    srv_config_list *list = list_field(p->c, s);
    for (const char *at = text; at;) {
        size_t n = from == FROM_ENVIRONMENT ? strcspn(at, ",") : strlen(at);
        if (n == 0)
            return fail(p, "%s: an empty value", where);
        if (!list_add(p->c, list, at, n))
            return fail(p, "%s: out of memory", where);
        at = at[n] ? at + n + 1 : NULL;
    }
    return true;
}

/* Sets one setting. A list adds to what the same source said and replaces what weaker ones did. */
static bool set(parser *p, const setting *s, const char *text, source from)
{
    size_t index = (size_t)(s - settings);
    char variable[NAME_BYTES], where[2 * NAME_BYTES]; /* "--port" or "--port (ATTND_PORT)" */
    variable_name(s, variable);
    snprintf(where, sizeof(where), from == FROM_ENVIRONMENT ? "--%s (%s)" : "--%s", s->name,
             variable);
    if (s->type == TYPE_LIST && p->sources[index] != from)
        list_field(p->c, s)->n = 0;
    p->sources[index] = from;

    switch (s->type) {
    case TYPE_LIST:
        return set_list(p, s, text, from, where);
    case TYPE_CHOICE:
        if (!is_choice(s->value, text))
            return fail(p, "%s: must be one of %s", where, s->value);
        break;
    case TYPE_TEXT:
        if (text[0] == '\0')
            return fail(p, "%s: an empty value", where);
        break;
    case TYPE_SEED:
    case TYPE_NUMBER:
    case TYPE_SIZE: {
        uint64_t value;
        if (s->type == TYPE_SIZE && !read_size(text, &value))
            return fail(p, "%s: must be a number of bytes, like 4096, 64MiB, 2G", where);
        if (s->type != TYPE_SIZE && !read_number(text, &value))
            return fail(p, "%s: must be a whole number", where);
        if (value < s->min || value > s->max)
            return fail(p, "%s: must be from %llu to %llu", where, (unsigned long long)s->min,
                        (unsigned long long)s->max);
        *number_field(p->c, s) = value;
        if (s->type == TYPE_SEED)
            p->c->has_random_seed = true;
        return true;
    }
    }
    *text_field(p->c, s) = keep(p->c, text, strlen(text));
    return *text_field(p->c, s) ? true : fail(p, "%s: out of memory", where);
}

/* --------------------------------------------------------------------------------- sources */

static bool read_defaults(parser *p)
{
    p->c->threads = srv_machine_cpus("");
    if (p->c->threads > 1024)
        p->c->threads = 1024;
    p->c->kv_memory_bytes = srv_machine_memory_bytes("") / 2;
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (settings[i].fallback && !set(p, &settings[i], settings[i].fallback, FROM_DEFAULT))
            return false;
    return true;
}

/* A variable that is set but empty counts as absent, as compose files write it. */
static bool read_environment(parser *p)
{
    for (size_t i = 0; i < N_SETTINGS; i++) {
        char variable[NAME_BYTES];
        variable_name(&settings[i], variable);
        const char *text = getenv(variable);
        if (text && text[0] && !set(p, &settings[i], text, FROM_ENVIRONMENT))
            return false;
    }
    return true;
}

static const setting *find_setting(const char *name, size_t n)
{
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (strlen(settings[i].name) == n && memcmp(settings[i].name, name, n) == 0)
            return &settings[i];
    return NULL;
}

/* Reads --flag value and --flag=value. `*print` is set by --print-config. */
static bool read_flags(parser *p, int argc, char **argv, bool *print)
{
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (strcmp(arg, "--print-config") == 0) {
            *print = true;
            continue;
        }
        if (strncmp(arg, "--", 2) != 0)
            return fail(p, "%.100s: not a flag; see --help", arg);
        size_t n = strcspn(arg + 2, "=");
        const setting *s = find_setting(arg + 2, n);
        if (!s)
            return fail(p, "--%.*s: no such flag; see --help", (int)(n < 100 ? n : 100), arg + 2);
        const char *value = arg[2 + n] == '=' ? arg + 3 + n : argv[++i];
        if (!value)
            return fail(p, "--%s: a value must follow", s->name);
        if (!set(p, s, value, FROM_FLAG))
            return false;
    }
    return true;
}

/* --------------------------------------------------------------------------------- models */

/* Splits [NAME=]DIR. What stands before a = is a name unless it holds a slash; without one the
 * folder's last component is the name. */
static bool read_model(parser *p, const char *arg)
{
    const char *equals = strchr(arg, '=');
    if (equals && memchr(arg, '/', (size_t)(equals - arg)))
        equals = NULL;
    const char *dir = equals ? equals + 1 : arg;
    const char *name = arg;
    size_t n = equals ? (size_t)(equals - arg) : strlen(arg);
    if (!equals) {
        while (n > 1 && arg[n - 1] == '/')
            n--;
        size_t start = n;
        while (start > 0 && arg[start - 1] != '/')
            start--;
        name = arg + start;
        n -= start;
    }
    if (dir[0] == '\0')
        return fail(p, "--model: no folder after the name");
    const char *kept = keep(p->c, name, n);
    if (!kept)
        return fail(p, "--model: out of memory");
    if (!attn_session_id_valid(kept)) /* names and ids stand in the same places of a URL */
        return fail(p, "--model: a name is 1-%d of A-Z a-z 0-9 . _ : - (NAME=DIR gives one)",
                    ATTN_MODEL_NAME_MAX);
    for (size_t i = 0; i < p->c->n_models; i++)
        if (strcmp(p->c->models[i].name, kept) == 0)
            return fail(p, "--model: the name %s is given twice", kept);
    p->c->models[p->c->n_models++] = (attn_model_source){.name = kept, .dir = dir};
    return true;
}

static bool read_models(parser *p)
{
    const srv_config_list *args = &p->c->model_args;
    if (args->n == 0)
        return true;
    p->c->models = calloc(args->n, sizeof(*p->c->models));
    if (!p->c->models)
        return fail(p, "--model: out of memory");
    for (size_t i = 0; i < args->n; i++)
        if (!read_model(p, args->items[i]))
            return false;
    return true;
}

/* --------------------------------------------------------------------------------- answers */

static void print_help(void)
{
    puts(
        "attnd: an attention and decode server\n\nUsage: attnd [--flag value | --flag=value]...\n");
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const setting *s = &settings[i];
        char flag[80];
        snprintf(flag, sizeof(flag), "--%s %s", s->name, s->value);
        printf("  %-38s%s", flag, s->help);
        if (s->fallback)
            printf(" (%s)", s->fallback);
        putchar('\n');
    }
    puts("  --print-config                        show every setting and where it came from\n"
         "  --version, --help\n\n"
         "Every flag is an environment variable too: --kv-memory is ATTND_KV_MEMORY; repeatable\n"
         "ones are separated by commas. A flag wins over the variable, which wins over the\n"
         "default. SIZE: bytes, or with K, M, G (powers of 1000) or KiB, MiB, GiB (of 1024).");
}

static void print_config(const parser *p)
{
    static const char *const from[] = {"default", "environment", "flag"};
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const setting *s = &settings[i];
        printf("%s = ", s->name);
        switch (s->type) {
        case TYPE_LIST: {
            const srv_config_list *list = list_field(p->c, s);
            for (size_t k = 0; k < list->n; k++)
                printf("%s%s", k ? "," : "", list->items[k]);
            break;
        }
        case TYPE_SEED:
            if (!p->c->has_random_seed)
                break;
            /* fallthrough */
        case TYPE_NUMBER:
        case TYPE_SIZE:
            printf("%llu", (unsigned long long)*number_field(p->c, s));
            break;
        case TYPE_TEXT:
        case TYPE_CHOICE:
            if (*text_field(p->c, s))
                printf("%s", *text_field(p->c, s));
            break;
        }
        printf(" (%s)\n", from[p->sources[i]]);
    }
}

srv_config_result srv_config_parse(srv_config *c, int argc, char **argv, char *err, size_t err_size)
{
    *c = (srv_config){0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help();
            return SRV_CONFIG_EXIT_OK;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("attnd %s (numerics %d)\n", SRV_VERSION, ATTN_NUMERICS);
            return SRV_CONFIG_EXIT_OK;
        }
    }
    parser p = {.c = c, .err = err, .err_size = err_size};
    bool print = false;
    if (!read_defaults(&p) || !read_environment(&p) || !read_flags(&p, argc, argv, &print) ||
        !read_models(&p))
        return SRV_CONFIG_ERROR;
    if (print) {
        print_config(&p);
        return SRV_CONFIG_EXIT_OK;
    }
    return SRV_CONFIG_RUN;
}
