/* http_reply.h: an HTTP/1.1 reply, read as its bytes arrive; and fields of JSON replies. */
#ifndef LOAD_HTTP_REPLY_H
#define LOAD_HTTP_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clients/load/http.h"

typedef enum load_reply_phase {
    LOAD_REPLY_HEAD,
    LOAD_REPLY_BODY,       /* `left` bytes of it, UINT64_MAX: until the connection ends */
    LOAD_REPLY_CHUNK_SIZE, /* its line */
    LOAD_REPLY_CHUNK,      /* `left` bytes of it */
    LOAD_REPLY_CHUNK_END,  /* the line end behind it */
    LOAD_REPLY_TRAILER,
} load_reply_phase;

typedef struct load_reply {
    load_reply_phase phase;
    load_text head; /* of the reply; later the line that is being read */
    uint64_t left;
    bool began, keep_alive;
} load_reply;

typedef enum load_reply_state {
    LOAD_REPLY_MORE,
    LOAD_REPLY_END,
    LOAD_REPLY_BROKEN
} load_reply_state;

void load_reply_begin(load_reply *r);
void load_reply_free(load_reply *r);
/* Takes bytes in: status and body go to the call. */
load_reply_state load_reply_feed(load_reply *r, load_call *call, const char *bytes, size_t n);
/* The connection has ended. */
load_reply_state load_reply_closed(const load_reply *r);

/* What follows "key": in a JSON text, or NULL. Quotes inside strings are escaped, so nothing but a
 * key can look like one; a key of several objects gives the first. */
const char *load_json_find(const char *json, const char *key);
/* A non-negative integer field; false: there is none. */
bool load_json_number(const char *json, const char *key, uint64_t *value);
/* A string field without escapes, cut at the text's size. */
bool load_json_string(const char *json, const char *key, char *text, size_t size);
/* Walks through the numbers of an array, nested or not: begin with `at` on its '['. */
typedef struct load_json_walk {
    const char *at;
    size_t depth;
} load_json_walk;
/* 1: there is a next one; 0: the array has ended; -1: this is no array of numbers. */
int load_json_next(load_json_walk *w, float *value);

#endif
