#include "clients/load/options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const load_kind_names[LOAD_KINDS] = {"prefill", "decode", "fork", "truncate", "delete"};

typedef enum value_type {
    TYPE_NUMBER,
    TYPE_REAL,
    TYPE_RANGE,  /* N or A-B; "inf" when max allows it */
    TYPE_MIX,    /* kind=weight, comma-separated */
    TYPE_TEXT,   /* not empty */
    TYPE_CHOICE, /* one of `value`'s words */
    TYPE_FLAG,   /* no value */
} value_type;

/* One option. `fallback` is the default as a user would write it; NULL: none, or computed. */
typedef struct option {
    const char *name, *value;
    value_type type;
    size_t offset;
    uint64_t min, max;
    const char *fallback;
    size_t has_offset; /* a bool that tells whether it was given; 0: none */
    const char *help;
} option;

#define AT(field) offsetof(load_options, field)
#define U32 UINT32_MAX
#define U53 9007199254740991u
#define U64 UINT64_MAX

static const option options[] = {
    {"url", "URL", TYPE_TEXT, AT(url), 0, 0, "http://127.0.0.1:8080", 0, "the server"},
    {"model", "NAME", TYPE_TEXT, AT(model), 0, 0, NULL, 0, "default: the server's default"},
    {"kv-dtype", "NAME", TYPE_TEXT, AT(kv_dtype), 0, 0, "f32", 0, "how K and V are stored"},
    {"keep-inputs", "yes|no", TYPE_CHOICE, AT(keep_inputs), 0, 0, "yes", 0,
     "no: the server forgets input rows"},
    {"ttl", "SECONDS", TYPE_NUMBER, AT(ttl_s), 0, U32, "0", 0, "idle sessions expire; 0: never"},
    {"sessions", "N", TYPE_NUMBER, AT(sessions), 1, 1000000000, NULL, AT(has_sessions),
     "sessions to begin (default: 100, or no limit with --duration)"},
    {"duration", "SECONDS", TYPE_REAL, AT(duration_s), 0, 1000000, "0", 0,
     "begin nothing after this; 0: no limit"},
    {"concurrency", "N", TYPE_NUMBER, AT(concurrency), 1, 1000000, "8", 0,
     "closed loop: sessions at work at once"},
    {"think", "MS|A-B", TYPE_RANGE, AT(think_ms), 0, U32, "0", 0,
     "pause of a session between its operations"},
    {"rate", "R", TYPE_REAL, AT(rate), 0, 1000000, "0", 0,
     "open loop: sessions begun a second, however busy the server is"},
    {"arrivals", "poisson|even", TYPE_CHOICE, AT(arrivals), 0, 0, "poisson", 0,
     "how an open loop's sessions arrive"},
    {"prompt", "N|A-B", TYPE_RANGE, AT(prompt), 1, U32, "64", 0, "positions of a prefill"},
    {"steps", "N|A-B", TYPE_RANGE, AT(steps), 1, U32, "32", 0, "steps of a decode"},
    {"ops", "N|A-B|inf", TYPE_RANGE, AT(ops), 0, U64, "1", 0,
     "operations of a session after its first prefill; inf: until --duration"},
    {"mix", "KIND=W,...", TYPE_MIX, AT(weights), 0, U32, "decode=1", 0,
     "weights of prefill, decode, fork, truncate, delete"},
    {"live", "N", TYPE_NUMBER, AT(live), 0, U32, NULL, 0,
     "above it the oldest finished session is deleted (default: no limit)"},
    {"output", "last|all|none", TYPE_CHOICE, AT(output), 0, 0, NULL, AT(has_output),
     "output rows that a prefill asks for (default: the server's)"},
    {"temperature", "T", TYPE_REAL, AT(temperature), 0, 100, "0", AT(has_temperature),
     "of a language model's draws, with a fixed seed; 0: greedy"},
    {"seed", "N", TYPE_NUMBER, AT(seed), 0, U64, "1", 0, "decides what sessions do and are fed"},
    {"check", "N", TYPE_NUMBER, AT(check), 0, 1000000, "5", 0,
     "sessions to recompute alone afterwards, bit for bit"},
    {"keep", NULL, TYPE_FLAG, AT(keep), 0, 0, NULL, 0, "leave the sessions in the server"},
    {"connections", "N", TYPE_NUMBER, AT(connections), 1, 60000, "1000", 0,
     "most connections; further requests wait, and the wait counts"},
    {"timeout", "SECONDS", TYPE_REAL, AT(timeout_s), 0, 1000000, "60", 0,
     "a request that is silent for so long has failed"},
    {"id", "PREFIX", TYPE_TEXT, AT(id), 0, 0, NULL, 0, "of session ids (default: load-PID)"},
    {"pid", "PID", TYPE_NUMBER, AT(pid), 1, U32, NULL, 0,
     "a local server's process, to read its memory"},
    {"progress", NULL, TYPE_FLAG, AT(progress), 0, 0, NULL, 0,
     "a line a second on stderr even if that is no terminal"},
    {"quiet", NULL, TYPE_FLAG, AT(quiet), 0, 0, NULL, 0, "no progress line"},
    {"json", "FILE", TYPE_TEXT, AT(json), 0, 0, NULL, 0, "write all results"},
    {"csv", "FILE", TYPE_TEXT, AT(csv), 0, 0, NULL, 0, "write a line of numbers a second"},
    {"html", "FILE", TYPE_TEXT, AT(html), 0, 0, NULL, 0, "write a page with plots"},
    {"self-test-mismatch", NULL, TYPE_FLAG, AT(self_test_mismatch), 0, 0, NULL, 0,
     "spoil one expected answer: the check must find it"},
    {"help", NULL, TYPE_FLAG, AT(help), 0, 0, NULL, 0, "show this"},
};

enum { N_OPTIONS = sizeof options / sizeof options[0] };

/* ------------------------------------------------------------------------------------ values */

static bool read_number(const char *text, uint64_t *value, const char **end)
{
    if (*text < '0' || *text > '9')
        return false;
    char *stop;
    errno = 0;
    *value = strtoull(text, &stop, 10);
    *end = stop;
    return errno == 0;
}

static bool read_range(const char *text, const option *o, load_range *range)
{
    if (o->max == U64 && strcmp(text, "inf") == 0) {
        *range = (load_range){U64, U64};
        return true;
    }
    const char *end;
    if (!read_number(text, &range->low, &end))
        return false;
    range->high = range->low;
    if (*end == '-' && !read_number(end + 1, &range->high, &end))
        return false;
    return *end == '\0' && range->low >= o->min && range->high <= o->max &&
           range->low <= range->high;
}

static bool read_real(const char *text, const option *o, double *value)
{
    char *end;
    errno = 0;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && errno == 0 && isfinite(*value) &&
           *value >= (double)o->min && *value <= (double)o->max;
}

static bool read_mix(const char *text, uint64_t weights[LOAD_KINDS])
{
    uint64_t sum = 0;
    memset(weights, 0, LOAD_KINDS * sizeof *weights);
    for (;;) {
        size_t n = strcspn(text, "="), k = 0;
        while (k < LOAD_KINDS &&
               (strlen(load_kind_names[k]) != n || strncmp(load_kind_names[k], text, n) != 0))
            k++;
        if (k == LOAD_KINDS || text[n] != '=' || !read_number(text + n + 1, &weights[k], &text) ||
            weights[k] > U32)
            return false;
        sum += weights[k];
        if (*text == '\0')
            return sum > 0;
        if (*text++ != ',')
            return false;
    }
}

static bool is_choice(const char *text, const char *choices)
{
    size_t n = strlen(text);
    for (const char *c = choices; n > 0 && c != NULL; c = strchr(c, '|')) {
        c += *c == '|';
        if (strcspn(c, "|") == n && strncmp(c, text, n) == 0)
            return true;
    }
    return false;
}

/* Stores a value; false: it is not one of this option. */
static bool store(load_options *all, const option *o, const char *text)
{
    void *at = (char *)all + o->offset;
    const char *end;
    uint64_t number;
    switch (o->type) {
    case TYPE_FLAG:
        *(bool *)at = true;
        return true;
    case TYPE_NUMBER:
        if (!read_number(text, &number, &end) || *end != '\0' || number < o->min || number > o->max)
            return false;
        *(uint64_t *)at = number;
        return true;
    case TYPE_REAL:
        return read_real(text, o, at);
    case TYPE_RANGE:
        return read_range(text, o, at);
    case TYPE_MIX:
        return read_mix(text, at);
    case TYPE_CHOICE:
        if (!is_choice(text, o->value))
            return false;
        break;
    case TYPE_TEXT:
        if (*text == '\0')
            return false;
        break;
    }
    *(const char **)at = text;
    return true;
}

/* ----------------------------------------------------------------------------------- parsing */

__attribute__((format(printf, 3, 4))) static bool fail(char *err, size_t size, const char *format,
                                                       ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(err, size, format, args);
    va_end(args);
    return false;
}

static const option *find_option(const char *name, size_t n)
{
    for (size_t i = 0; i < N_OPTIONS; i++) {
        if (strlen(options[i].name) == n && strncmp(options[i].name, name, n) == 0)
            return &options[i];
    }
    return NULL;
}

/* What the options say together. */
static bool settle(load_options *o, char *err, size_t err_size)
{
    if (!o->has_sessions)
        o->sessions = o->duration_s > 0 ? U64 : 100;
    if (o->ops.low == U64 && o->duration_s <= 0)
        return fail(err, err_size, "--ops inf needs --duration");
    if (o->id == NULL) {
        static char made[32];
        snprintf(made, sizeof made, "load-%ld", (long)getpid());
        o->id = made;
    }
    /* A session id has 64 bytes; two dots and two numbers follow the prefix. */
    size_t n = strspn(o->id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:-");
    if (o->id[n] != '\0' || n > 32)
        return fail(err, err_size, "--id takes up to 32 of A-Z a-z 0-9 _ : -");
    return true;
}

bool load_options_parse(load_options *o, int argc, char **argv, char *err, size_t err_size)
{
    memset(o, 0, sizeof *o);
    o->live = U64;
    for (size_t i = 0; i < N_OPTIONS; i++) {
        if (options[i].fallback != NULL && !store(o, &options[i], options[i].fallback))
            return fail(err, err_size, "--%s: the default is wrong", options[i].name);
    }
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (strncmp(name, "--", 2) != 0)
            return fail(err, err_size, "%.100s is not an option; see --help", name);
        name += 2;
        size_t n = strcspn(name, "=");
        const option *found = find_option(name, n);
        if (found == NULL)
            return fail(err, err_size, "--%.100s is not an option; see --help", name);
        const char *value = name[n] == '=' ? name + n + 1 : NULL;
        if (found->type == TYPE_FLAG && value != NULL)
            return fail(err, err_size, "--%s takes no value", found->name);
        if (found->type != TYPE_FLAG && value == NULL && (value = argv[++i]) == NULL)
            return fail(err, err_size, "--%s needs a value: %s", found->name, found->value);
        if (!store(o, found, value))
            return fail(err, err_size, "--%s does not take %.100s: it wants %s", found->name, value,
                        found->value);
        if (found->has_offset != 0)
            *(bool *)((char *)o + found->has_offset) = true;
    }
    return settle(o, err, err_size);
}

void load_options_help(load_text *out)
{
    load_text_puts(out, "attn-load: load, measure and check an attnd server\n\n"
                        "Usage: attn-load [--option value | --option=value]...\n\n");
    for (size_t i = 0; i < N_OPTIONS; i++) {
        const option *o = &options[i];
        char left[64];
        snprintf(left, sizeof left, "--%s %s", o->name, o->value ? o->value : "");
        load_text_printf(out, "  %-28s %s", left, o->help);
        if (o->fallback != NULL)
            load_text_printf(out, " (%s)", o->fallback);
        load_text_puts(out, "\n");
    }
    load_text_puts(
        out,
        "\nA length or a pause is one number or a range A-B, drawn evenly. Exit status: 0; 1 for\n"
        "wrong usage, no connection or failed requests; 2 when answers or bytes are wrong.\n");
}

void load_range_text(load_text *out, load_range range)
{
    if (range.low == U64)
        load_text_puts(out, "unlimited");
    else if (range.low == range.high)
        load_text_printf(out, "%llu", (unsigned long long)range.low);
    else
        load_text_printf(out, "%llu-%llu", (unsigned long long)range.low,
                         (unsigned long long)range.high);
}
