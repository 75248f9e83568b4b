/* audit.h: every session of the client as GET /sessions lists it, against what it should be. */
#ifndef LOAD_AUDIT_H
#define LOAD_AUDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "clients/load/http.h"
#include "clients/load/model.h"
#include "clients/load/workload.h"

typedef struct load_audit {
    bool done;        /* the list could be read to its end */
    uint64_t listed;  /* sessions of the client */
    uint64_t lengths; /* of these, with another length than the client knows */
    uint64_t bytes;   /* with other bytes than the formula for their length */
    uint64_t missing; /* not listed, and not told to expire */
    uint64_t shared_bytes;
    char first[96]; /* the first session that is wrong */
} load_audit;

void load_audit_run(load_audit *a, const load_options *o, const load_model *m, load_http *http,
                    const load_workload *w);
/* Whether something is wrong. */
bool load_audit_failed(const load_audit *a);

#endif
