#include "server/routes.h"

#include <stdio.h>
#include <string.h>

#include "server/handlers.h"

#define JSON SRV_GIVES_JSON
#define TEXT SRV_GIVES_TEXT
#define PAGE (SRV_GIVES_TEXT | SRV_GIVES_HTML)
#define SAFETENSORS SRV_GIVES_SAFETENSORS
#define STREAM (SRV_GIVES_JSON | SRV_GIVES_NDJSON | SRV_GIVES_SSE)
#define BODY SRV_ROUTE_BODY
#define BLOB SRV_ROUTE_BLOB
#define SESSION SRV_ROUTE_SESSION
#define BLOCKS SRV_ROUTE_BLOCKS
#define ALWAYS SRV_ROUTE_ALWAYS

static const srv_route routes[] = {
    {"GET", "/", srv_handle_index, ALWAYS, PAGE, {NULL}},
    {"GET", "/web/{name}", srv_handle_web, ALWAYS, 0, {NULL}},
    {"POST", "/prefill", srv_handle_prefill, BODY | BLOB, JSON | SAFETENSORS, {NULL}},
    {"POST", "/decode", srv_handle_decode, BODY | BLOB, STREAM | SAFETENSORS, {NULL}},
    {"GET", "/sessions", srv_handle_session_list, BLOCKS, JSON, {"limit", "after"}},
    {"GET", "/sessions/{id}", srv_handle_session_get, SESSION, JSON, {NULL}},
    {"DELETE", "/sessions/{id}", srv_handle_session_delete, SESSION | BLOCKS, 0, {NULL}},
    {"GET", "/sessions/{id}/tokens", srv_handle_session_tokens, SESSION | BLOCKS, JSON, {NULL}},
    {"POST", "/sessions/{id}/fork", srv_handle_session_fork, SESSION | BODY | BLOCKS, JSON, {NULL}},
    {"POST",
     "/sessions/{id}/truncate",
     srv_handle_session_truncate,
     SESSION | BODY | BLOCKS,
     JSON,
     {NULL}},
    {"POST",
     "/sessions/{id}/cancel",
     srv_handle_session_cancel,
     SESSION | BODY | BLOCKS,
     JSON,
     {NULL}},
    {"POST", "/sessions/{id}/verify", srv_handle_session_verify, SESSION | BODY, JSON, {NULL}},
    {"GET", "/sessions/{id}/snapshot", NULL, SESSION, 0, {NULL}},
    {"PUT", "/sessions/{id}/snapshot", NULL, SESSION | BODY, 0, {NULL}},
    {"GET",
     "/sessions/{id}/tensors/{name}",
     srv_handle_tensor,
     SESSION | BLOCKS,
     JSON | SAFETENSORS,
     {"q", "k", "heads", "dtype"}},
    {"GET",
     "/watch",
     srv_handle_watch,
     0,
     SRV_GIVES_NDJSON | SRV_GIVES_SSE | SRV_GIVES_FRAMES,
     {"session", "layers", "heads", "tensors", "dtype", "fps"}},
    {"GET", "/models", srv_handle_model_list, 0, JSON, {NULL}},
    {"GET", "/models/{name}", srv_handle_model_get, 0, JSON, {NULL}},
    {"POST", "/tokenize", srv_handle_tokenize, BODY | BLOCKS, JSON, {NULL}},
    {"POST", "/detokenize", srv_handle_detokenize, BODY | BLOCKS, JSON, {NULL}},
    {"GET", "/health", srv_handle_health, ALWAYS, JSON, {NULL}},
    {"GET", "/ready", srv_handle_ready, ALWAYS, JSON, {NULL}},
    {"GET", "/metrics", srv_handle_metrics, ALWAYS, TEXT, {NULL}},
    {"GET", "/openapi.json", srv_handle_openapi, ALWAYS, JSON, {NULL}},
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

/* What stands for a {...} of a template. */
typedef struct piece {
    const char *text;
    size_t len;
} piece;

/* Matches a path with a template, whose {...} pieces stand for one non-empty piece each. */
static bool matches(const char *template, const char *path, piece pieces[2])
{
    size_t n_pieces = 0;
    memset(pieces, 0, 2 * sizeof(*pieces));
    while (*template) {
        if (*template != '{') {
            if (*template ++ != *path++)
                return false;
            continue;
        }
        size_t n = strcspn(path, "/");
        if (n == 0)
            return false;
        pieces[n_pieces++] = (piece){path, n};
        path += n;
        template += strcspn(template, "}") + 1;
    }
    return *path == '\0';
}

/* Copies a piece that fits into `size` bytes. */
static void take_piece(char *to, size_t size, piece from)
{
    if (from.text && from.len < size)
        memcpy(to, from.text, from.len);
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
        piece pieces[2];
        if (!matches(routes[i].template, path, pieces))
            continue;
        m->path_found = true;
        add_allow(m, routes[i].method);
        take_piece(m->id, sizeof(m->id), pieces[0]);
        take_piece(m->name, sizeof(m->name), pieces[1]);
        if (!strcmp(routes[i].method, wanted))
            m->route = &routes[i];
    }
    if (m->path_found)
        add_allow(m, "OPTIONS");
}
