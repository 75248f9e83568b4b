#include "clients/load/http_reply.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* More than any reply that is asked for. */
#define MAX_HEAD_BYTES 65536u
#define MAX_BODY_BYTES ((size_t)1 << 30)

void load_reply_begin(load_reply *r)
{
    load_text head = r->head;
    load_text_clear(&head);
    *r = (load_reply){.head = head};
}

void load_reply_free(load_reply *r)
{
    load_text_free(&r->head);
}

/* --------------------------------------------------------------------------------------- head */

static bool is_field(const char *line, const char *name, const char **value)
{
    size_t n = strlen(name);
    if (strncasecmp(line, name, n) != 0 || line[n] != ':')
        return false;
    *value = line + n + 1 + strspn(line + n + 1, " \t");
    return true;
}

/* Reads a number that stands alone on the rest of a line. */
static bool read_size(const char *text, int base, uint64_t *value)
{
    char *end;
    errno = 0;
    *value = strtoull(text, &end, base);
    return end != text && *text != '-' && *text != '+' && errno == 0 && strchr(" \t\r;", *end);
}

/* Reads the head, which ends with an empty line, and decides what follows. */
static bool read_head(load_reply *r, load_call *call)
{
    const char *head = r->head.data, *value;
    uint64_t status, length = UINT64_MAX, retry;
    bool chunked = false;
    if (strncmp(head, "HTTP/1.", 7) != 0 || head[8] != ' ' || !read_size(head + 9, 10, &status) ||
        status < 200 || status > 599)
        return false;
    r->keep_alive = head[7] == '1';
    call->status = (int)status;
    for (const char *line = strchr(head, '\n'); line[1] != '\r'; line = strchr(line + 1, '\n')) {
        if (is_field(line + 1, "Content-Length", &value)) {
            if (!read_size(value, 10, &length))
                return false;
        } else if (is_field(line + 1, "Transfer-Encoding", &value)) {
            chunked = strncasecmp(value, "chunked", 7) == 0;
        } else if (is_field(line + 1, "Connection", &value)) {
            if (strncasecmp(value, "close", 5) == 0)
                r->keep_alive = false;
        } else if (is_field(line + 1, "Retry-After", &value)) {
            if (read_size(value, 10, &retry))
                call->retry_after_s = (double)retry;
        }
    }
    if (status == 204)
        length = 0;
    if (!chunked && length == UINT64_MAX)
        r->keep_alive = false;
    r->phase = chunked ? LOAD_REPLY_CHUNK_SIZE : LOAD_REPLY_BODY;
    r->left = length;
    load_text_clear(&r->head);
    return true;
}

/* --------------------------------------------------------------------------------------- body */

/* Gives body bytes to the call: whole lines to `line`, or everything to `reply`. */
static bool deliver(load_call *call, const char *bytes, size_t n)
{
    load_text *t = &call->reply;
    if (n > MAX_BODY_BYTES - t->len)
        return false;
    size_t from = t->len, done = 0;
    load_text_append(t, bytes, n);
    if (call->line == NULL || call->status != 200)
        return true;
    char *end;
    while ((end = memchr(t->data + from, '\n', t->len - from)) != NULL) {
        *end = '\0';
        call->line(call, t->data + done, (size_t)(end - t->data) - done);
        done = from = (size_t)(end - t->data) + 1;
    }
    load_text_drop(t, done);
    return true;
}

/* Collects a line in r->head, its end included. Returns the bytes taken; *whole tells the end. */
static size_t take_line(load_reply *r, const char *bytes, size_t n, bool *whole)
{
    const char *end = memchr(bytes, '\n', n);
    *whole = end != NULL;
    if (end != NULL)
        n = (size_t)(end - bytes) + 1;
    load_text_append(&r->head, bytes, n);
    return n;
}

/* A line of the head or between chunks is complete. */
static load_reply_state end_line(load_reply *r, load_call *call)
{
    const char *line = r->head.data;
    size_t len = r->head.len;
    switch (r->phase) {
    case LOAD_REPLY_HEAD:
        if (len < 4 || memcmp(line + len - 4, "\r\n\r\n", 4) != 0)
            return LOAD_REPLY_MORE;
        if (!read_head(r, call))
            return LOAD_REPLY_BROKEN;
        return r->phase == LOAD_REPLY_BODY && r->left == 0 ? LOAD_REPLY_END : LOAD_REPLY_MORE;
    case LOAD_REPLY_CHUNK_SIZE:
        if (!read_size(line, 16, &r->left))
            return LOAD_REPLY_BROKEN;
        r->phase = r->left > 0 ? LOAD_REPLY_CHUNK : LOAD_REPLY_TRAILER;
        break;
    case LOAD_REPLY_CHUNK_END:
        if (len != 2)
            return LOAD_REPLY_BROKEN;
        r->phase = LOAD_REPLY_CHUNK_SIZE;
        break;
    case LOAD_REPLY_TRAILER:
        if (len == 2)
            return LOAD_REPLY_END;
        break;
    case LOAD_REPLY_BODY:
    case LOAD_REPLY_CHUNK:
        break;
    }
    load_text_clear(&r->head);
    return LOAD_REPLY_MORE;
}

load_reply_state load_reply_feed(load_reply *r, load_call *call, const char *bytes, size_t n)
{
    r->began = true;
    while (n > 0) {
        size_t took;
        load_reply_state state = LOAD_REPLY_MORE;
        if (r->phase == LOAD_REPLY_BODY || r->phase == LOAD_REPLY_CHUNK) {
            took = r->left < n ? (size_t)r->left : n;
            if (!deliver(call, bytes, took))
                return LOAD_REPLY_BROKEN;
            if (r->left != UINT64_MAX && (r->left -= took) == 0) {
                if (r->phase == LOAD_REPLY_BODY)
                    state = LOAD_REPLY_END;
                r->phase = LOAD_REPLY_CHUNK_END;
            }
        } else {
            bool whole;
            took = take_line(r, bytes, n, &whole);
            if (r->head.len > MAX_HEAD_BYTES)
                return LOAD_REPLY_BROKEN;
            if (whole)
                state = end_line(r, call);
        }
        bytes += took;
        n -= took;
        if (state == LOAD_REPLY_END && n > 0)
            return LOAD_REPLY_BROKEN; /* more than was asked for */
        if (state != LOAD_REPLY_MORE)
            return state;
    }
    return LOAD_REPLY_MORE;
}

load_reply_state load_reply_closed(const load_reply *r)
{
    bool whole = r->began && r->phase == LOAD_REPLY_BODY && r->left == UINT64_MAX;
    return whole ? LOAD_REPLY_END : LOAD_REPLY_BROKEN;
}

/* --------------------------------------------------------------------------------------- JSON */

const char *load_json_find(const char *json, const char *key)
{
    size_t n = strlen(key);
    for (const char *at = strstr(json, key); at != NULL; at = strstr(at + 1, key)) {
        if (at > json && at[-1] == '"' && at[n] == '"') {
            const char *after = at + n + 1 + strspn(at + n + 1, " \t\r\n");
            if (*after == ':')
                return after + 1 + strspn(after + 1, " \t\r\n");
        }
    }
    return NULL;
}

bool load_json_number(const char *json, const char *key, uint64_t *value)
{
    const char *at = load_json_find(json, key);
    if (at == NULL || *at < '0' || *at > '9')
        return false;
    errno = 0;
    *value = strtoull(at, NULL, 10);
    return errno == 0;
}

bool load_json_string(const char *json, const char *key, char *text, size_t size)
{
    const char *at = load_json_find(json, key);
    if (at == NULL || *at != '"')
        return false;
    size_t n = strcspn(at + 1, "\"\\");
    n = n < size ? n : size - 1;
    memcpy(text, at + 1, n);
    text[n] = '\0';
    return true;
}

int load_json_next(load_json_walk *w, float *value)
{
    for (;;) {
        w->at += strspn(w->at, " \t\r\n,");
        if (*w->at == '[') {
            w->depth++;
            w->at++;
        } else if (*w->at == ']' && w->depth > 0) {
            w->at++;
            if (--w->depth == 0)
                return 0;
        } else {
            char *end;
            *value = strtof(w->at, &end);
            if (end == w->at || w->depth == 0)
                return -1;
            w->at = end;
            return 1;
        }
    }
}
