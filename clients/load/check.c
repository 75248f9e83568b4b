#include "clients/load/check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/load/body.h"
#include "clients/load/http_reply.h"
#include "clients/load/random.h"

/* Most numbers in one prefill and its reply: some 20 MB of text. Longer ones go in pieces, which
 * must not change a bit either. */
#define PIECE_FLOATS (UINT64_C(2) << 20)
/* Most text of one number, in a request or a reply; both are limited by --max-body. */
#define FLOAT_TEXT_BYTES 24

/* Where the input of a position came from. */
typedef struct source {
    uint64_t key, index;
    bool fed; /* a decode fed the output of the position before, or sampled `token` */
    uint32_t token;
} source;

/* One session that is being recomputed. */
typedef struct replay {
    load_check *c;
    const load_options *o;
    const load_model *m;
    load_http *http;
    const load_history *h;
    char alone[64], whole[64]; /* the fresh sessions */
    load_call call;
    uint64_t length, capacity;
    source *sources; /* [length] */
    float *outputs;  /* [length, hidden_size], of attention models */
    uint64_t hash;   /* of the decode under way */
    bool broken;
} replay;

__attribute__((format(printf, 3, 4))) static bool mismatch(load_check *c, const char *session,
                                                           const char *format, ...)
{
    if (c->n_mismatches < LOAD_MISMATCHES) {
        va_list args;
        va_start(args, format);
        snprintf(c->mismatches[c->n_mismatches].session, 72, "%s", session);
        vsnprintf(c->mismatches[c->n_mismatches].what, 120, format, args);
        va_end(args);
    }
    c->n_mismatches++;
    return false;
}

/* A request that must succeed for the check to go on. */
static bool ask(replay *r, const char *method, const char *path)
{
    if (load_http_ask(r->http, &r->call, method, path) && !r->broken)
        return true;
    char code[40] = "unexpected reply";
    if (r->call.failure != LOAD_FAIL_NONE)
        snprintf(code, sizeof code, "%s", load_failure_names[r->call.failure]);
    else if (r->call.reply.len > 0)
        load_json_string(r->call.reply.data, "code", code, sizeof code);
    if (r->c->unchecked++ == 0)
        snprintf(r->c->why, sizeof r->c->why, "%s", code);
    return false;
}

static float *row(replay *r, uint64_t position)
{
    return r->outputs + position * r->m->hidden_size;
}

/* How many rows go into one prefill. */
static uint64_t piece_rows(const load_model *m)
{
    uint64_t floats = PIECE_FLOATS, room = m->max_body_bytes / FLOAT_TEXT_BYTES;
    floats = room < floats ? room : floats;
    return floats > m->hidden_size ? floats / m->hidden_size : 1;
}

static void grow(replay *r, uint64_t length)
{
    if (length <= r->capacity)
        return;
    r->capacity = 2 * length;
    r->sources = load_realloc(r->sources, r->capacity, sizeof *r->sources);
    if (!r->m->is_language_model)
        r->outputs = load_realloc(r->outputs, r->capacity, r->m->hidden_size * sizeof(float));
}

/* Reads the rows of an "output" into rows; false: there are not exactly n. */
static bool read_rows(const replay *r, const char *json, float *rows, uint64_t n)
{
    load_json_walk walk = {.at = load_json_find(json, "output")};
    uint64_t i = 0, total = n * r->m->hidden_size;
    float value;
    int more = -1;
    while (walk.at != NULL && (more = load_json_next(&walk, &value)) > 0) {
        if (i < total)
            rows[i] = value;
        i++;
    }
    return more == 0 && i == total;
}

/* -------------------------------------------------------------------------- the same operations */

/* A prefill of rows: in pieces, all outputs kept. */
static bool replay_rows(replay *r, const load_op *op)
{
    uint64_t piece = piece_rows(r->m), begin = r->length;
    for (uint64_t i = 0; i < op->n; i += piece) {
        uint64_t n = op->n - i < piece ? op->n - i : piece;
        load_text_clear(&r->call.body);
        load_body_open(&r->call.body, r->m, r->o, r->alone, begin + i, begin + i == 0);
        for (uint64_t k = i; k < i + n; k++)
            load_body_input(&r->call.body, r->m, op->key, k);
        load_body_close(&r->call.body, r->o, "all");
        if (!ask(r, "POST", "/prefill"))
            return false;
        r->broken = !read_rows(r, r->call.reply.data, row(r, begin + i), n);
    }
    uint64_t shown = 0; /* the rows that the session answered with */
    if (r->m->asks_output)
        shown = r->o->has_output && strcmp(r->o->output, "all") == 0 ? op->n : 1;
    r->hash = LOAD_HASH_START;
    for (uint64_t i = 0; i < shown * r->m->hidden_size; i++)
        r->hash = load_hash_float(r->hash, row(r, begin + op->n - shown)[i]);
    return true;
}

static bool replay_tokens(replay *r, const load_op *op)
{
    load_text_clear(&r->call.body);
    load_body_prefill(&r->call.body, r->m, r->o, r->alone, r->length, op->key, op->n);
    if (!ask(r, "POST", "/prefill"))
        return false;
    r->hash = load_hash_prefill(r->m, r->call.reply.data);
    return true;
}

static void replay_step(load_call *call, char *line, size_t len)
{
    replay *r = (replay *)((char *)call - offsetof(replay, call));
    uint64_t token = 0;
    (void)len;
    if (load_json_find(line, "step") == NULL)
        return;
    if (!load_hash_step(r->m, line, &r->hash) || r->length >= r->capacity) {
        r->broken = true;
        return;
    }
    if (r->m->is_language_model)
        load_json_number(line, "token", &token);
    else
        r->broken |= !read_rows(r, line, row(r, r->length), 1);
    r->sources[r->length++] = (source){.fed = true, .token = (uint32_t)token};
}

static bool replay_decode(replay *r, const load_op *op)
{
    uint64_t length = r->length + op->n;
    if (op->n == 0)
        return true;
    load_text_clear(&r->call.body);
    load_body_decode(&r->call.body, r->m, r->o, r->alone, r->length, op->key, op->n);
    r->call.line = replay_step;
    r->hash = LOAD_HASH_START;
    bool ok = ask(r, "POST", "/decode");
    r->call.line = NULL;
    if (ok && r->length != length)
        r->broken = true;
    return ok;
}

/* Does one operation again and compares its answer. */
static bool replay_operation(replay *r, size_t i)
{
    const load_op *op = &r->h->ops[i];
    char path[128];
    uint64_t position = r->length;
    r->hash = LOAD_HASH_START;
    grow(r, r->length + op->n);
    switch (op->kind) {
    case LOAD_PREFILL:
        if (!(r->m->is_language_model ? replay_tokens(r, op) : replay_rows(r, op)))
            return false;
        for (uint64_t k = 0; k < op->n; k++)
            r->sources[r->length++] = (source){.key = op->key, .index = k};
        break;
    case LOAD_DECODE:
        if (!replay_decode(r, op))
            return false;
        break;
    case LOAD_FORK:
    case LOAD_TRUNCATE:
        load_text_clear(&r->call.body);
        load_text_printf(&r->call.body, "{\"length\":%" PRIu64 "}", op->n);
        snprintf(path, sizeof path, "/sessions/%s/truncate", r->alone);
        if (!ask(r, "POST", path))
            return false;
        r->length = op->n;
        return true;
    case LOAD_DELETE:
    case LOAD_KINDS:
        return true;
    }
    if (r->broken || r->hash == op->hash)
        return true;
    return mismatch(r->c, r->h->session,
                    "operation %zu (%s of %" PRIu64 " at position %" PRIu64
                    ") gives other bits when done again alone",
                    i, load_kind_names[op->kind], op->n, position);
}

/* ---------------------------------------------------------------------------- one whole prefill */

static void feed(replay *r, uint64_t position)
{
    const source *s = &r->sources[position];
    if (!s->fed)
        load_body_input(&r->call.body, r->m, s->key, s->index);
    else if (r->m->is_language_model)
        load_body_token(&r->call.body, s->token);
    else
        load_body_row(&r->call.body, row(r, position - 1), r->m->hidden_size);
}

static bool compare_rows(replay *r, uint64_t begin, uint64_t n, const float *rows)
{
    for (uint64_t i = 0; i < n; i++) {
        if (memcmp(rows + i * r->m->hidden_size, row(r, begin + i),
                   r->m->hidden_size * sizeof *rows) != 0)
            return mismatch(r->c, r->h->session,
                            "position %" PRIu64 " has other bits in one whole prefill", begin + i);
    }
    return true;
}

/* Rows: all outputs of the prefill against those of the operations. */
static bool whole_rows(replay *r)
{
    uint64_t hidden = r->m->hidden_size, piece = piece_rows(r->m);
    bool same = true;
    float *rows = load_alloc(piece < r->length ? piece : r->length, hidden * sizeof *rows);
    for (uint64_t i = 0; same && i < r->length; i += piece) {
        uint64_t n = r->length - i < piece ? r->length - i : piece;
        load_text_clear(&r->call.body);
        load_body_open(&r->call.body, r->m, r->o, r->whole, i, i == 0);
        for (uint64_t p = i; p < i + n; p++)
            feed(r, p);
        load_body_close(&r->call.body, r->o, "all");
        same = ask(r, "POST", "/prefill");
        if (same)
            r->broken = !read_rows(r, r->call.reply.data, rows, n);
        same = same && !r->broken && compare_rows(r, i, n, rows);
    }
    free(rows);
    return same;
}

/* Tokens: after a prefill of them all, one more token must find the same cache. */
static bool whole_tokens(replay *r)
{
    uint64_t hashes[2], first = r->length;
    if (r->m->max_positions != 0 && r->length >= r->m->max_positions)
        return true; /* no room for one more */
    for (int i = 0; i < 2; i++) {
        load_text_clear(&r->call.body);
        load_body_open(&r->call.body, r->m, r->o, i ? r->whole : r->alone, i ? 0 : first, i == 1);
        for (uint64_t p = 0; i == 1 && p < r->length; p++)
            feed(r, p);
        load_body_input(&r->call.body, r->m, r->h->priority, 0);
        load_body_close(&r->call.body, r->o, "last");
        if (!ask(r, "POST", "/prefill"))
            return false;
        hashes[i] = load_hash_prefill(r->m, r->call.reply.data);
    }
    if (hashes[0] == hashes[1])
        return true;
    return mismatch(r->c, r->h->session,
                    "one whole prefill of its %" PRIu64 " tokens makes other bits", r->length);
}

/* -------------------------------------------------------------------------------------- public */

static void drop(replay *r, const char *session)
{
    char path[128];
    load_text_clear(&r->call.body);
    snprintf(path, sizeof path, "/sessions/%s", session);
    load_http_ask(r->http, &r->call, "DELETE", path);
}

static void recompute(load_check *c, const load_options *o, const load_model *m, load_http *http,
                      const load_history *h)
{
    replay r = {.c = c, .o = o, .m = m, .http = http, .h = h};
    bool good = true;
    snprintf(r.alone, sizeof r.alone, "%s.alone", o->id);
    snprintf(r.whole, sizeof r.whole, "%s.whole", o->id);
    for (size_t i = 0; good && i < h->n_ops; i++)
        good = replay_operation(&r, i);
    if (good && r.length > 0)
        good = m->is_language_model ? whole_tokens(&r) : whole_rows(&r);
    if (good && r.broken && c->unchecked++ == 0)
        snprintf(c->why, sizeof c->why, "unexpected reply");
    if (good && !r.broken)
        c->recomputed++;
    drop(&r, r.alone);
    drop(&r, r.whole);
    load_call_free(&r.call);
    free(r.sources);
    free(r.outputs);
}

void load_check_verify(load_check *c, const load_model *m, load_http *http,
                       const load_samples *samples)
{
    for (size_t i = 0; i < samples->n && m->input_bytes > 0; i++) {
        load_call call = {0};
        char path[128];
        const char *session = samples->histories[i]->session;
        snprintf(path, sizeof path, "/sessions/%s/verify", session);
        if (load_http_ask(http, &call, "POST", path)) {
            const char *same = load_json_find(call.reply.data, "bit_identical");
            if (same != NULL && strncmp(same, "true", 4) == 0)
                c->verified++;
            else
                mismatch(c, session, "the server's own verify finds other bits");
        }
        load_call_free(&call);
    }
}

void load_check_recompute(load_check *c, const load_options *o, const load_model *m,
                          load_http *http, const load_samples *samples)
{
    c->sampled = samples->n;
    if (o->self_test_mismatch && samples->n > 0)
        samples->histories[0]->ops[0].hash ^= 1;
    for (size_t i = 0; i < samples->n; i++)
        recompute(c, o, m, http, samples->histories[i]);
}
