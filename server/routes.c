#include "server/routes.h"

#include <stdio.h>
#include <string.h>

#include "server/handlers.h"

#define JSON SRV_GIVES_JSON
#define TEXT SRV_GIVES_TEXT
#define STREAM (SRV_GIVES_JSON | SRV_GIVES_NDJSON | SRV_GIVES_SSE)
#define BODY SRV_ROUTE_BODY
#define SESSION SRV_ROUTE_SESSION
#define BLOCKS SRV_ROUTE_BLOCKS
#define ALWAYS SRV_ROUTE_ALWAYS
#define PAGED SRV_ROUTE_PAGED

static const srv_route routes[] = {
    {"GET", "/", srv_handle_index, ALWAYS, TEXT},
    {"POST", "/prefill", srv_handle_prefill, BODY, JSON},
    {"POST", "/decode", srv_handle_decode, BODY, STREAM},
    {"GET", "/sessions", srv_handle_session_list, PAGED | BLOCKS, JSON},
    {"GET", "/sessions/{id}", srv_handle_session_get, SESSION, JSON},
    {"DELETE", "/sessions/{id}", srv_handle_session_delete, SESSION | BLOCKS, 0},
    {"GET", "/sessions/{id}/tokens", srv_handle_session_tokens, SESSION | BLOCKS, JSON},
    {"POST", "/sessions/{id}/fork", srv_handle_session_fork, SESSION | BODY | BLOCKS, JSON},
    {"POST", "/sessions/{id}/truncate", srv_handle_session_truncate, SESSION | BODY | BLOCKS, JSON},
    {"POST", "/sessions/{id}/cancel", srv_handle_session_cancel, SESSION | BODY | BLOCKS, JSON},
    {"POST", "/sessions/{id}/verify", srv_handle_session_verify, SESSION | BODY, JSON},
    {"GET", "/sessions/{id}/snapshot", NULL, SESSION, 0},
    {"PUT", "/sessions/{id}/snapshot", NULL, SESSION | BODY, 0},
    {"GET", "/sessions/{id}/tensors/{name}", NULL, SESSION, 0},
    {"GET", "/watch", NULL, 0, 0},
    {"GET", "/models", srv_handle_model_list, 0, JSON},
    {"GET", "/models/{name}", srv_handle_model_get, 0, JSON},
    {"POST", "/tokenize", srv_handle_tokenize, BODY | BLOCKS, JSON},
    {"POST", "/detokenize", srv_handle_detokenize, BODY | BLOCKS, JSON},
    {"GET", "/health", srv_handle_health, ALWAYS, JSON},
    {"GET", "/ready", srv_handle_ready, ALWAYS, JSON},
    {"GET", "/metrics", srv_handle_metrics, ALWAYS, TEXT},
    {"GET", "/openapi.json", srv_handle_openapi, ALWAYS, JSON},
};

_Static_assert(sizeof(routes) / sizeof(routes[0]) <= SRV_ROUTES_MAX, "raise SRV_ROUTES_MAX");

size_t srv_route_count(void)
{
    return sizeof(routes) / sizeof(routes[0]);
}

const srv_route *srv_route_at(size_t index)
{
    return &routes[index];
}

size_t srv_route_index(const srv_route *route)
{
    return (size_t)(route - routes);
}

/* Matches a path with a template, whose {...} pieces stand for one non-empty piece each. *id is set
 * to the first of these. */
static bool matches(const char *template, const char *path, const char **id, size_t *id_len)
{
    *id = NULL;
    while (*template) {
        if (*template != '{') {
            if (*template ++ != *path++)
                return false;
            continue;
        }
        size_t n = strcspn(path, "/");
        if (n == 0)
            return false;
        if (!*id) {
            *id = path;
            *id_len = n;
        }
        path += n;
        template += strcspn(template, "}") + 1;
    }
    return *path == '\0';
}

static void add_allow(srv_match *m, const char *method)
{
    size_t n = strlen(m->allow);
    snprintf(m->allow + n, sizeof(m->allow) - n, "%s%s%s", n ? ", " : "", method,
             strcmp(method, "GET") ? "" : ", HEAD");
}

void srv_route_find(const char *method, const char *path, srv_match *m)
{
    memset(m, 0, sizeof(*m));
    const char *wanted = strcmp(method, "HEAD") ? method : "GET";
    for (size_t i = 0; i < srv_route_count(); i++) {
        const char *id;
        size_t id_len = 0;
        if (!matches(routes[i].template, path, &id, &id_len))
            continue;
        m->path_found = true;
        add_allow(m, routes[i].method);
        if (id && id_len <= ATTN_ID_MAX)
            memcpy(m->id, id, id_len);
        if (!strcmp(routes[i].method, wanted))
            m->route = &routes[i];
    }
    if (m->path_found)
        add_allow(m, "OPTIONS");
}
