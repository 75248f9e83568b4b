#include <stdlib.h>
#include <string.h>

#include "server/handlers.h"
#include "server/tensors.h"
#include "server/watch.h"

#define FPS_DEFAULT 30

static bool read_fps(const char *text, uint32_t *fps)
{
    *fps = FPS_DEFAULT;
    if (!text)
        return true;
    size_t digits = strspn(text, "0123456789");
    if (digits < 1 || digits > 4 || text[digits])
        return false;
    *fps = (uint32_t)strtoul(text, NULL, 10);
    return *fps <= SRV_WATCH_FPS_MAX;
}

/* Fails x if one of these parameters is given. */
static bool refuse(srv_exchange *x, size_t first, const char *message)
{
    for (size_t i = first; i < SRV_QUERY_MAX && x->route->params[i]; i++) {
        if (x->params[i]) {
            srv_fail_field(x, x->route->params[i], message);
            return false;
        }
    }
    return true;
}

static bool read_tensors(srv_exchange *x, srv_watch_choice *choice)
{
    const char *layers = srv_query(x, "layers"), *heads = srv_query(x, "heads"),
               *dtype = srv_query(x, "dtype"), *tensors = srv_query(x, "tensors");
    attn_selection *show = &choice->show;
    show->some_layers = layers;
    show->some_heads = heads;
    if (!srv_tensor_names_parse(tensors, &show->tensors))
        srv_fail_field(x, "tensors", "tensors are names, each once, as hook_pattern,hook_rot_q");
    else if (layers && !srv_choice_parse(layers, &show->layers))
        srv_fail_field(x, "layers", "layers are numbers and ranges, as 0-3,7");
    else if (heads && !srv_choice_parse(heads, &show->heads))
        srv_fail_field(x, "heads", "heads are numbers and ranges, as 0-3,7");
    else if (dtype && !srv_tensor_dtype_parse(dtype, &choice->u8))
        srv_fail_field(x, "dtype", "dtype is F32 or U8");
    else if (!read_fps(srv_query(x, "fps"), &choice->fps))
        srv_fail_field(x, "fps", "fps is an integer from 0 (every step) to 1000");
    return !x->status;
}

#define CACHE_TENSORS (1u << ATTN_TENSOR_KEY | 1u << ATTN_TENSOR_VALUE)

/* Whether the session's model has all that, and a step of it is not too large. */
static bool check_tensors(srv_exchange *x, const srv_watch_choice *choice)
{
    attn_error error;
    if (choice->show.tensors & CACHE_TENSORS) {
        srv_fail_field(x, "tensors", "a step has no cache tensors: look at them in the session");
        return false;
    }
    if (attn_selection_check(x->app->engine, choice->model, &choice->show, &error) != ATTN_OK) {
        srv_fail_engine(x, &error);
        return false;
    }
    uint64_t bytes = srv_watch_frame_bytes(x->app->engine, choice);
    if (bytes <= ATTN_TRACE_BYTES_MAX)
        return true;
    srv_fail(x, &(srv_error){
                    .status = 413,
                    .code = "tensor_too_large",
                    .message = "one step's tensors may become this large: choose fewer",
                    .param = "tensors",
                    .n_details = 2,
                    .details = {{"bytes", bytes}, {"limit", ATTN_TRACE_BYTES_MAX}},
                });
    return false;
}

static bool read_choice(srv_exchange *x, srv_watch_choice *choice)
{
    enum { SESSION, REST };
    const char *session = x->params[SESSION];
    if (!session)
        return refuse(x, REST, "this goes with a session");
    attn_session_info info;
    attn_error error;
    if (!attn_session_id_valid(session)) {
        srv_fail_with(x, 404, "session_not_found", "session", "no session has that id");
        return false;
    }
    if (attn_session_get(x->app->engine, session, &info, &error) != ATTN_OK) {
        srv_fail_engine(x, &error);
        return false;
    }
    memcpy(choice->session, info.id, sizeof(choice->session));
    ptrdiff_t model = attn_model_find(x->app->engine, info.model);
    choice->model = model < 0 ? 0 : (size_t)model;
    if (!srv_query(x, "tensors"))
        return refuse(x, REST, "this goes with tensors");
    return read_tensors(x, choice) && check_tensors(x, choice);
}

void srv_handle_watch(srv_exchange *x)
{
    srv_watch_choice choice = {.encoding = x->wants_frames ? SRV_WATCH_FRAMES
                                           : x->wants_sse  ? SRV_WATCH_SSE
                                                           : SRV_WATCH_NDJSON};
    /* Keep-alive comments are for that encoding only. */
    x->wants_sse = choice.encoding == SRV_WATCH_SSE;
    if (read_choice(x, &choice))
        srv_watcher_join(x, &choice);
}
