/* options.h: what attn-load is asked to do: one table makes the flags and the help. */
#ifndef LOAD_OPTIONS_H
#define LOAD_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "clients/load/random.h"
#include "clients/load/text.h"

/* What is done to a session. The first five can be in the mix; the first is also how one begins. */
typedef enum load_kind {
    LOAD_PREFILL,
    LOAD_DECODE,
    LOAD_FORK,
    LOAD_TRUNCATE,
    LOAD_DELETE,
    LOAD_KINDS,
} load_kind;
extern const char *const load_kind_names[LOAD_KINDS];

/* Strings are borrowed from the command line. */
typedef struct load_options {
    const char *url, *model, *kv_dtype, *keep_inputs, *output, *arrivals, *id;
    const char *json, *csv, *html;
    uint64_t sessions; /* UINT64_MAX: no limit */
    uint64_t concurrency, connections, live, seed, check, pid, ttl_s;
    load_range prompt, steps, ops, think_ms; /* ops.low UINT64_MAX: as long as there is time */
    uint64_t weights[LOAD_KINDS];
    double rate, duration_s, timeout_s, temperature;
    bool has_sessions, has_output, has_temperature;
    bool keep, progress, quiet, self_test_mismatch, help;
} load_options;

/* Reads the command line. Errors: false, and `err` (one line) names the flag. */
bool load_options_parse(load_options *o, int argc, char **argv, char *err, size_t err_size);
/* The --help text. */
void load_options_help(load_text *out);
/* "64" or "16-256". */
void load_range_text(load_text *out, load_range range);

#endif
