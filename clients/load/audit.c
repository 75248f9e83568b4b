#include "clients/load/audit.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

static uint64_t number(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) ? (uint64_t)item->valuedouble : UINT64_MAX;
}

/* Returns whether it is one that had to be listed. */
static bool compare(load_audit *a, const load_model *m, const load_workload *w,
                    const cJSON *session)
{
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(session, "session");
    const cJSON *kv = cJSON_GetObjectItemCaseSensitive(session, "kv");
    uint64_t expected = 0, length = number(session, "length");
    if (!cJSON_IsString(id))
        return false;
    load_expectation known = load_workload_expect(w, id->valuestring, &expected);
    if (known == LOAD_NOT_OURS)
        return false;
    uint64_t pages = load_model_pages(m, length);
    bool same_length = known == LOAD_UNSURE || length == expected;
    bool same_bytes = number(kv, "bytes") == pages * load_model_page_kv(m) &&
                      number(session, "inputs_bytes") == pages * load_model_page_inputs(m);
    a->listed++;
    a->lengths += !same_length;
    a->bytes += !same_bytes;
    a->shared_bytes += number(kv, "shared_bytes");
    if ((!same_length || !same_bytes) && a->first[0] == '\0')
        snprintf(a->first, sizeof a->first, "%s", id->valuestring);
    return known == LOAD_KNOWN;
}

void load_audit_run(load_audit *a, const load_options *o, const load_model *m, load_http *http,
                    const load_workload *w)
{
    char path[160] = "/sessions?limit=1000";
    bool more = true;
    uint64_t found = 0;
    *a = (load_audit){0};
    while (more) {
        load_call call = {0};
        bool ok = load_http_ask(http, &call, "GET", path);
        cJSON *page = ok ? cJSON_ParseWithLength(call.reply.data, call.reply.len) : NULL;
        const cJSON *session, *next = cJSON_GetObjectItemCaseSensitive(page, "next");
        cJSON_ArrayForEach(session, cJSON_GetObjectItemCaseSensitive(page, "sessions")) found +=
            compare(a, m, w, session);
        more = cJSON_IsString(next);
        a->done = page != NULL;
        if (more)
            snprintf(path, sizeof path, "/sessions?limit=1000&after=%s", next->valuestring);
        cJSON_Delete(page);
        load_call_free(&call);
    }
    load_held held = load_workload_held(w);
    if (a->done && o->ttl_s == 0)
        a->missing = held.sessions - held.unsure - found;
}

bool load_audit_failed(const load_audit *a)
{
    return a->lengths > 0 || a->bytes > 0 || a->missing > 0;
}
