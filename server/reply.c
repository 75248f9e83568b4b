#include "server/reply.h"

static void add(srv_headers *h, const char *name, const char *value)
{
    if (value && value[0] && h->n < SRV_HEADERS_MAX) {
        h->items[h->n].name = name;
        h->items[h->n++].value = value;
    }
}

/* The page is asked for anew each time, and sent anew only when it has changed. What it may load is
 * this server's alone. */
static void add_caching(srv_headers *h, const srv_exchange *x)
{
    if (!x->etag[0]) {
        add(h, "Cache-Control", "no-store");
        return;
    }
    add(h, "Cache-Control", "no-cache");
    add(h, "ETag", x->etag);
    add(h, "Content-Encoding", x->gzipped && x->status == 200 ? "gzip" : NULL);
    add(h, "Vary", "Accept, Accept-Encoding");
    add(h, "Content-Security-Policy",
        "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'");
    add(h, "Referrer-Policy", "no-referrer");
}

srv_headers srv_reply_headers(const srv_exchange *x, bool close)
{
    srv_headers h = {0};
    add(&h, "Content-Type", x->content_type);
    add_caching(&h, x);
    add(&h, "X-Content-Type-Options", "nosniff");
    /* A proxy is not to collect a stream's lines. */
    add(&h, "X-Accel-Buffering", x->next_line ? "no" : NULL);
    add(&h, "Retry-After", x->retry_after ? "1" : NULL);
    add(&h, "Allow", x->allow);
    add(&h, "Connection", close ? "close" : NULL);
    if (!x->allowed_origin)
        return h;
    add(&h, "Access-Control-Allow-Origin", x->allowed_origin);
    add(&h, "Access-Control-Expose-Headers", "Retry-After");
    add(&h, "Vary", "Origin");
    if (x->preflight) {
        add(&h, "Access-Control-Allow-Methods", x->allow);
        add(&h, "Access-Control-Allow-Headers", "Accept, Content-Type, X-Session");
        add(&h, "Access-Control-Max-Age", "600");
    }
    return h;
}

void srv_reply_text(const srv_exchange *x, const char *reason, bool close, srv_buf *b)
{
    srv_headers h = srv_reply_headers(x, close);
    srv_buf_printf(b, "HTTP/1.1 %u %s\r\nContent-Length: %zu\r\n", x->status, reason, x->reply.len);
    for (unsigned i = 0; i < h.n; i++)
        srv_buf_printf(b, "%s: %s\r\n", h.items[i].name, h.items[i].value);
    srv_buf_puts(b, "\r\n");
    srv_buf_append(b, x->reply.data, x->reply.len);
}
