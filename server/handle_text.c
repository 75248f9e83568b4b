#include "server/handlers.h"

#include <string.h>

#include "server/json/json_write.h"

/* The most ids of one /detokenize: some tokens' texts are much longer than their ids'. */
#define DETOKENIZE_MAX (1 << 20)
/* A byte of text becomes at most this many. */
#define ESCAPE_BYTES 6

/* The default is what a prefill does at the beginning of a session. */
static bool add_special(const srv_json_value *value)
{
    return !value->present || value->boolean;
}

void srv_handle_tokenize(srv_exchange *x)
{
    enum { MODEL, TEXT, ADD_SPECIAL, COUNT };
    static const srv_json_field fields[COUNT] = {
        [MODEL] = {"model", SRV_JSON_STRING, false, 0, SIZE_MAX},
        [TEXT] = {"text", SRV_JSON_STRING, true, 0, SIZE_MAX},
        [ADD_SPECIAL] = {"add_special", SRV_JSON_BOOL, false, 0, 0},
    };
    srv_json_value v[COUNT];
    uint32_t *tokens;
    size_t n;
    attn_error error;
    if (!srv_read_body(x, fields, COUNT, v))
        return;
    if (attn_tokenize(x->app->engine, v[MODEL].present ? v[MODEL].string.text : NULL,
                      v[TEXT].string.text, v[TEXT].string.len, add_special(&v[ADD_SPECIAL]),
                      &tokens, &n, &error) == ATTN_OK) {
        srv_exchange_expect(x, n * SRV_ID_BYTES);
        srv_buf_puts(&x->reply, "{\"tokens\":");
        srv_json_u32s(&x->reply, tokens, n);
        srv_buf_puts(&x->reply, "}\n");
        attn_buffer_free(tokens);
        srv_reply_json(x, 200);
    } else {
        srv_fail_engine(x, &error);
    }
    srv_json_values_free(fields, COUNT, v);
}

void srv_handle_detokenize(srv_exchange *x)
{
    enum { MODEL, TOKENS, COUNT };
    static const srv_json_field fields[COUNT] = {
        [MODEL] = {"model", SRV_JSON_STRING, false, 0, SIZE_MAX},
        [TOKENS] = {"tokens", SRV_JSON_INTEGERS, true, 0, DETOKENIZE_MAX},
    };
    srv_json_value v[COUNT];
    char *text;
    size_t len;
    attn_error error;
    if (!srv_read_body(x, fields, COUNT, v))
        return;
    if (attn_detokenize(x->app->engine, v[MODEL].present ? v[MODEL].string.text : NULL,
                        srv_narrow_ids(&v[TOKENS]), v[TOKENS].integers.count, &text, &len,
                        &error) == ATTN_OK) {
        srv_exchange_expect(x, len * ESCAPE_BYTES);
        srv_buf_puts(&x->reply, "{\"text\":");
        srv_json_string(&x->reply, text, len);
        srv_buf_puts(&x->reply, "}\n");
        attn_buffer_free(text);
        srv_reply_json(x, 200);
    } else {
        srv_fail_engine(x, &error);
    }
    srv_json_values_free(fields, COUNT, v);
}

void srv_handle_session_tokens(srv_exchange *x)
{
    uint32_t *tokens;
    size_t n, len;
    char *text;
    attn_error error;
    if (attn_session_tokens(x->app->engine, x->id, &tokens, &n, &text, &len, &error) != ATTN_OK) {
        srv_fail_engine(x, &error);
        return;
    }
    srv_exchange_expect(x, n * SRV_ID_BYTES + len * ESCAPE_BYTES);
    srv_buf_puts(&x->reply, "{\"length\":");
    srv_json_u64(&x->reply, n);
    srv_buf_puts(&x->reply, ",\"tokens\":");
    srv_json_u32s(&x->reply, tokens, n);
    if (text) {
        srv_buf_puts(&x->reply, ",\"text\":");
        srv_json_string(&x->reply, text, len);
    }
    srv_buf_puts(&x->reply, "}\n");
    attn_buffer_free(tokens);
    attn_buffer_free(text);
    srv_reply_json(x, 200);
}
