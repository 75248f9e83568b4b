#include "server/handlers.h"

#include <string.h>

#include "server/json/json_write.h"
#include "server/web.h"

/* server/embed.S */
extern const char srv_openapi_json[], srv_openapi_json_end[];

void srv_handle_model_list(srv_exchange *x)
{
    const attn_engine *engine = x->app->engine;
    srv_buf *b = &x->reply;
    size_t n = attn_model_count(engine);
    srv_buf_puts(b, "{\"models\":[");
    for (size_t i = 0; i < n; i++) {
        if (i)
            srv_buf_puts(b, ",");
        srv_wire_model(b, engine, i, x->app->config);
    }
    attn_model_info first;
    attn_model_get(engine, 0, &first);
    srv_buf_puts(b, "],\"default\":");
    srv_json_string(b, first.name, strlen(first.name));
    srv_buf_puts(b, "}\n");
    srv_reply_json(x, 200);
}

void srv_handle_model_get(srv_exchange *x)
{
    ptrdiff_t index = attn_model_find(x->app->engine, x->id);
    if (index < 0) {
        srv_fail_with(x, 404, "model_not_found", NULL, "no model has that name");
        return;
    }
    srv_wire_model(&x->reply, x->app->engine, (size_t)index, x->app->config);
    srv_buf_puts(&x->reply, "\n");
    srv_reply_json(x, 200);
}

void srv_handle_health(srv_exchange *x)
{
    srv_buf_puts(&x->reply, "{\"status\":\"ok\"}\n");
    srv_reply_json(x, 200);
}

void srv_handle_ready(srv_exchange *x)
{
    if (atomic_load(&x->app->stopping))
        srv_fail_with(x, 503, "shutting_down", NULL, "the server is shutting down");
    else
        srv_handle_health(x);
}

void srv_handle_metrics(srv_exchange *x)
{
    srv_metrics_render(x->app->metrics, x->app->engine, &x->reply);
    srv_reply(x, 200, "text/plain; version=0.0.4");
}

void srv_handle_openapi(srv_exchange *x)
{
    srv_buf_append(&x->reply, srv_openapi_json, (size_t)(srv_openapi_json_end - srv_openapi_json));
    srv_reply_json(x, 200);
}

/* A prefill of the default model, as a line to copy. */
static void put_prefill_line(srv_buf *b, const char *url, const attn_model_info *model)
{
    /* Wider rows than this make no lines to copy. */
    const uint32_t width_max = 64;
    srv_buf_printf(b, "  curl -s %s/prefill -d '{\"session\":\"a\",", url);
    if (model->has_tokenizer) {
        srv_buf_puts(b, "\"text\":\"Once upon a time\"}'\n");
    } else if (model->is_language_model) {
        srv_buf_puts(b, "\"tokens\":[0]}'\n");
    } else if (model->hidden_size <= width_max) {
        srv_buf_puts(b, "\"inputs\":[[1");
        for (size_t i = 1; i < model->hidden_size; i++)
            srv_buf_puts(b, ",0");
        srv_buf_puts(b, "]]}'\n");
    } else {
        srv_buf_printf(b,
                       "\"inputs\":[[...]]}'\n"
                       "  (rows of %u numbers; %s/models has an example)\n",
                       model->hidden_size, url);
    }
}

static void put_models_line(srv_buf *b, const attn_engine *engine)
{
    size_t n = attn_model_count(engine);
    srv_buf_puts(b, "A session's first prefill may name its \"model\":");
    for (size_t i = 0; i < n; i++) {
        attn_model_info model;
        attn_model_get(engine, i, &model);
        srv_buf_printf(b, "%s %s", i ? "," : "", model.name);
    }
    srv_buf_puts(b, ".\nattnd --model DIR serves a folder as Hugging Face saves it.\n");
}

void srv_handle_web(srv_exchange *x)
{
    srv_web_reply(x, x->id);
}

/* The page for browsers, which ask for HTML; lines to copy for everybody else. */
void srv_handle_index(srv_exchange *x)
{
    if (x->wants_html) {
        srv_web_reply(x, "index.html");
        return;
    }
    const char *url = x->app->url;
    srv_buf *b = &x->reply;
    attn_model_info model;
    attn_model_get(x->app->engine, 0, &model);
    srv_buf_printf(b,
                   "attnd " SRV_VERSION
                   ": attention and decode over HTTP, one KV cache for each session.\n\n"
                   "The default model, %s, takes %s. Append some to a session, which is made if it "
                   "is new:\n",
                   model.name,
                   model.has_tokenizer       ? "text (\"text\") or token ids (\"tokens\")"
                   : model.is_language_model ? "token ids (\"tokens\")"
                                             : "rows (\"inputs\")");
    put_prefill_line(b, url, &model);
    srv_buf_printf(b,
                   "Decode, each step as soon as it is computed:\n"
                   "  curl -sN %s/decode -d '{\"session\":\"a\",\"steps\":%s,\"stream\":true}'\n"
                   "Look at sessions, rewind one, check one, free one:\n"
                   "  curl -s %s/sessions\n"
                   "  curl -s %s/sessions/a/truncate -d '{\"length\":1}'\n"
                   "  curl -s -X POST %s/sessions/a/verify\n"
                   "  curl -s -X DELETE %s/sessions/a\n",
                   url, model.is_language_model ? "64,\"temperature\":0.8" : "5", url, url, url,
                   url);
    put_models_line(b, x->app->engine);
    srv_buf_printf(b,
                   "Watch the caches grow: open %s in a browser.\n"
                   "The server: its models, its numbers, its whole interface:\n"
                   "  curl -s %s/models\n"
                   "  curl -s %s/metrics\n"
                   "  curl -s %s/openapi.json\n",
                   url, url, url, url);
    srv_reply(x, 200, "text/plain; charset=utf-8");
}
