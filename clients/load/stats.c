#include "clients/load/stats.h"

#include <stdio.h>
#include <string.h>

void load_stats_refuse(load_stats *s, const char *code)
{
    size_t i = 0;
    while (i < s->n_codes && strcmp(s->refusals[i].code, code) != 0)
        i++;
    if (i == s->n_codes && i < LOAD_CODES) {
        snprintf(s->refusals[i].code, sizeof s->refusals[i].code, "%s", code);
        s->n_codes++;
    }
    s->refusals[i < LOAD_CODES ? i : LOAD_CODES - 1].n++;
    s->refused++;
    if (strcmp(code, "internal") == 0)
        s->internal_errors++;
}

uint64_t load_stats_errors(const load_stats *s)
{
    uint64_t n = s->internal_errors;
    for (size_t f = 0; f < LOAD_FAILURES; f++)
        n += s->failures[f];
    return n;
}
