#include "server/admit.h"

#include <stdlib.h>
#include <string.h>

#include "server/handlers.h"
#include "server/routes.h"

static bool fail_request(srv_exchange *x, const char *param, const char *message)
{
    srv_fail_with(x, 400, "invalid_request", param, message);
    return false;
}

static bool check_caller(srv_exchange *x, const srv_head *head)
{
    if (!srv_head_host_allowed(head, x->app->config)) {
        srv_fail_with(x, 403, "forbidden_host", NULL,
                      "the Host header names neither a loopback address nor an --allowed-host");
        return false;
    }
    if (srv_head_origin(head, x->app->config, x->app->port, &x->allowed_origin) ==
        SRV_ORIGIN_FOREIGN) {
        srv_fail_with(x, 403, "forbidden_origin", NULL,
                      "the Origin header names neither this server nor a --cors-origin");
        return false;
    }
    return true;
}

static bool find_route(srv_exchange *x, const char *method, const char *path)
{
    srv_match match;
    srv_route_find(method, path, &match);
    if (!match.path_found) {
        srv_fail_with(x, 404, "not_found", NULL, "nothing is at this path; GET / lists what is");
        return false;
    }
    memcpy(x->id, match.id, sizeof(x->id));
    memcpy(x->name, match.name, sizeof(x->name));
    x->route = match.route;
    if (!strcmp(method, "OPTIONS")) {
        memcpy(x->allow, match.allow, sizeof(x->allow));
        x->preflight = true;
        srv_reply(x, 204, NULL);
        return false;
    }
    if (!match.route) {
        memcpy(x->allow, match.allow, sizeof(x->allow));
        srv_fail_with(x, 405, "method_not_allowed", NULL, "the path has no such method");
        return false;
    }
    if (!match.route->handle) {
        srv_fail_with(x, 501, "not_supported", NULL, "this part of the interface is not built yet");
        return false;
    }
    if (atomic_load(&x->app->stopping) && !(match.route->flags & SRV_ROUTE_ALWAYS)) {
        srv_fail_with(x, 503, "shutting_down", NULL, "the server is shutting down");
        return false;
    }
    return true;
}

static bool check_session(srv_exchange *x, const srv_head *head)
{
    if (head->x_session && (x->route->flags & (SRV_ROUTE_SESSION | SRV_ROUTE_BODY))) {
        size_t n = strlen(head->x_session);
        if (n == 0 || n >= sizeof(x->x_session))
            return fail_request(x, "session", "the X-Session header is no session id");
        memcpy(x->x_session, head->x_session, n + 1);
    }
    if (!(x->route->flags & SRV_ROUTE_SESSION))
        return true;
    if (!attn_session_id_valid(x->id)) {
        srv_fail_with(x, 404, "session_not_found", "session", "no session has that id");
        return false;
    }
    return srv_check_x_session(x, x->id);
}

static bool check_query(srv_exchange *x, const srv_head *head)
{
    for (unsigned i = 0; i < head->n_params; i++) {
        size_t k = 0;
        while (k < SRV_QUERY_MAX && x->route->params[k] &&
               strcmp(head->params[i].name, x->route->params[k]))
            k++;
        if (k == SRV_QUERY_MAX || !x->route->params[k])
            return fail_request(x, NULL, "an unknown query parameter");
        if (x->params[k])
            return fail_request(x, x->route->params[k], "a repeated query parameter");
        x->params[k] = strdup(head->params[i].value);
        if (!x->params[k]) {
            srv_fail_with(x, 503, "busy_memory", NULL, "out of memory");
            return false;
        }
    }
    return true;
}

static bool check_accept(srv_exchange *x, const srv_head *head)
{
    const unsigned gives = x->route->gives;
    const char *accept = head->accept;
    x->wants_sse = srv_prefers(accept, "text", "event-stream", "application", "x-ndjson");
    x->wants_safetensors =
        srv_prefers(accept, "application", "x-safetensors", "application", "json");
    x->wants_frames =
        srv_prefers(accept, "application", "x-attnd-frames", "application", "x-ndjson") &&
        srv_prefers(accept, "application", "x-attnd-frames", "text", "event-stream");
    x->wants_html = srv_prefers(accept, "text", "html", "text", "plain");
    x->takes_gzip = srv_head_takes_gzip(head);
    if (head->if_none_match && strlen(head->if_none_match) < sizeof(x->if_none_match))
        memcpy(x->if_none_match, head->if_none_match, strlen(head->if_none_match) + 1);
    if (!gives || ((gives & SRV_GIVES_JSON) && srv_accepts(accept, "application", "json")) ||
        ((gives & SRV_GIVES_NDJSON) && srv_accepts(accept, "application", "x-ndjson")) ||
        ((gives & SRV_GIVES_SSE) && srv_accepts(accept, "text", "event-stream")) ||
        ((gives & SRV_GIVES_FRAMES) && x->wants_frames) ||
        ((gives & SRV_GIVES_HTML) && x->wants_html) ||
        ((gives & SRV_GIVES_TEXT) && srv_accepts(accept, "text", "plain")))
        return true;
    x->takes_only_safetensors = (gives & SRV_GIVES_SAFETENSORS) && x->wants_safetensors;
    if (x->takes_only_safetensors)
        return true;
    srv_fail_with(x, 406, "not_acceptable", NULL,
                  "the Accept header excludes what this path gives");
    return false;
}

static bool check_body(srv_exchange *x, const srv_head *head)
{
    if (!srv_head_has_body(head))
        return true;
    if (!(x->route->flags & SRV_ROUTE_BODY))
        return fail_request(x, NULL, "this request takes no body");
    const bool takes_blob = x->route->flags & SRV_ROUTE_BLOB;
    x->is_blob = takes_blob && srv_head_is_safetensors(head);
    if (!x->is_blob && !srv_head_is_json(head)) {
        srv_fail_with(x, 415, "unsupported_media_type", NULL,
                      takes_blob
                          ? "request bodies are application/json or application/x-safetensors"
                          : "request bodies are application/json");
        return false;
    }
    uint64_t length = srv_head_content_length(head);
    if (length > x->app->config->max_body_bytes) {
        srv_fail_with(x, 413, "body_too_large", NULL, "the body is larger than --max-body");
        return false;
    }
    if (atomic_load(&x->app->held_bytes) + length > x->app->config->body_memory_bytes) {
        srv_fail_with(x, 503, "busy_memory", NULL,
                      "the requests in flight hold all of --body-memory");
        return false;
    }
    return true;
}

srv_admission srv_admit(srv_exchange *x, const srv_head *head, const char *method, const char *path)
{
    switch (srv_head_framing(head)) {
    case 0:
        break;
    case 501:
        srv_fail_with(x, 501, "not_supported", NULL, "the only transfer coding is chunked");
        return SRV_BROKEN;
    default:
        fail_request(x, NULL, "the request's headers are broken or ambiguous");
        return SRV_BROKEN;
    }
    bool ok = check_caller(x, head) && find_route(x, method, path) && check_session(x, head) &&
              check_query(x, head) && check_accept(x, head) && check_body(x, head);
    return ok ? SRV_ADMITTED : SRV_ANSWERED;
}
