#include "clients/load/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/load/http_reply.h"

/* What is kept of a long history: enough to check, little to compute. */
#define MAX_OPS 1024
#define MAX_POSITIONS 8192

load_history *load_history_new(uint64_t priority, const char *session)
{
    load_history *h = load_alloc(1, sizeof *h);
    h->priority = priority;
    snprintf(h->session, sizeof h->session, "%s", session);
    return h;
}

load_history *load_history_fork(const load_history *h, uint64_t priority, const char *session)
{
    load_history *fork = load_history_new(priority, session);
    fork->ops = load_alloc(h->n_ops, sizeof *fork->ops);
    memcpy(fork->ops, h->ops, h->n_ops * sizeof *fork->ops);
    fork->n_ops = fork->capacity = h->n_ops;
    fork->positions = h->positions;
    fork->ended = h->ended;
    return fork;
}

void load_history_free(load_history *h)
{
    if (h != NULL) {
        free(h->ops);
        free(h);
    }
}

void load_history_add(load_history *h, load_op op)
{
    uint64_t positions = op.kind == LOAD_PREFILL || op.kind == LOAD_DECODE ? op.n : 0;
    if (h->n_ops > 0 && (h->n_ops >= MAX_OPS || h->positions + positions > MAX_POSITIONS))
        h->ended = true;
    if (h->ended)
        return;
    if (h->n_ops == h->capacity) {
        h->capacity = h->capacity ? 2 * h->capacity : 4;
        h->ops = load_realloc(h->ops, h->capacity, sizeof *h->ops);
    }
    h->ops[h->n_ops++] = op;
    h->positions += positions;
}

/* ------------------------------------------------------------------------------------- hashing */

uint64_t load_hash_rows(uint64_t hash, const float *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = load_hash_float(hash, rows[i]);
    return hash;
}

static bool hash_array(const char *json, uint64_t *hash)
{
    load_json_walk walk = {.at = json};
    float value;
    int more;
    while ((more = load_json_next(&walk, &value)) > 0)
        *hash = load_hash_float(*hash, value);
    return more == 0;
}

uint64_t load_hash_prefill(const load_model *m, const char *reply)
{
    uint64_t hash = LOAD_HASH_START, token;
    const char *output = load_json_find(reply, "output");
    if (output != NULL)
        hash_array(output, &hash);
    if (m->is_language_model) { /* the probable next tokens */
        const char *at = load_json_find(reply, "next"), *logprob;
        while (at != NULL && load_json_number(at, "token", &token) &&
               (logprob = load_json_find(at, "logprob")) != NULL) {
            hash = load_hash_word(hash, (uint32_t)token);
            hash = load_hash_float(hash, strtof(logprob, NULL));
            at = logprob;
        }
    }
    return hash;
}

bool load_hash_step(const load_model *m, const char *line, uint64_t *hash)
{
    if (m->is_language_model) {
        uint64_t token;
        if (!load_json_number(line, "token", &token))
            return false;
        *hash = load_hash_word(*hash, (uint32_t)token);
        return true;
    }
    const char *output = load_json_find(line, "output");
    return output != NULL && hash_array(output, hash);
}

/* ------------------------------------------------------------------------------------- samples */

void load_samples_init(load_samples *s, size_t max)
{
    *s = (load_samples){.histories = load_alloc(max, sizeof *s->histories), .max = max};
}

void load_samples_free(load_samples *s)
{
    for (size_t i = 0; i < s->n; i++)
        load_history_free(s->histories[i]);
    free(s->histories);
}

/* Which of the chosen ones has the highest priority. */
static size_t last_of(const load_samples *s)
{
    size_t last = 0;
    for (size_t i = 1; i < s->n; i++) {
        if (s->histories[i]->priority > s->histories[last]->priority)
            last = i;
    }
    return last;
}

bool load_samples_want(const load_samples *s, uint64_t priority)
{
    if (s->n < s->max)
        return true;
    return s->max > 0 && priority < s->histories[last_of(s)]->priority;
}

void load_samples_offer(load_samples *s, load_history *h)
{
    if (h == NULL)
        return;
    if (h->n_ops == 0 || !load_samples_want(s, h->priority)) {
        load_history_free(h);
    } else if (s->n < s->max) {
        s->histories[s->n++] = h;
    } else {
        size_t last = last_of(s);
        load_history_free(s->histories[last]);
        s->histories[last] = h;
    }
}
