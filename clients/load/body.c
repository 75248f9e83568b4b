#include "clients/load/body.h"

#include <inttypes.h>
#include <string.h>

#include "clients/load/random.h"

#define U53 ((UINT64_C(1) << 53) - 1)

void load_body_open(load_text *t, const load_model *m, const load_options *o, const char *session,
                    uint64_t if_length, bool create)
{
    load_text_printf(t, "{\"session\":\"%s\",\"if_length\":%" PRIu64, session, if_length);
    if (create) {
        load_text_puts(t, ",\"model\":");
        load_text_json(t, m->name);
        load_text_puts(t, ",\"kv_dtype\":");
        load_text_json(t, o->kv_dtype);
        load_text_printf(t, ",\"ttl_s\":%" PRIu64, o->ttl_s);
        if (!m->is_language_model && m->input_bytes == 0)
            load_text_puts(t, ",\"keep_inputs\":false");
    }
    load_text_puts(t, m->is_language_model ? ",\"tokens\":[" : ",\"inputs\":[");
}

static void separate(load_text *t)
{
    if (t->data[t->len - 1] != '[')
        load_text_append(t, ",", 1);
}

uint32_t load_body_make_token(const load_model *m, uint64_t key, uint64_t index)
{
    return (uint32_t)(load_mix(key, index) % m->vocab_size);
}

void load_body_token(load_text *t, uint32_t token)
{
    separate(t);
    load_text_printf(t, "%" PRIu32, token);
}

/* A row of numbers v / 10000 with v from -9999 to 9999, four of them from each random word. */
static void make_row(load_text *t, const load_model *m, uint64_t key, uint64_t index)
{
    uint64_t word = 0, words = (m->hidden_size + 3) / 4;
    char *to = load_text_reserve(t, 8 * m->hidden_size + 2), *at = to;
    *at++ = '[';
    for (uint64_t i = 0; i < m->hidden_size; i++) {
        word = i % 4 == 0 ? load_mix(key, index * words + i / 4) : word >> 16;
        int v = (int)(((word & 0xffff) * 19999) >> 16) - 9999;
        if (i > 0)
            *at++ = ',';
        if (v < 0)
            *at++ = '-';
        v = v < 0 ? -v : v;
        *at++ = '0';
        *at++ = '.';
        *at++ = (char)('0' + v / 1000);
        *at++ = (char)('0' + v / 100 % 10);
        *at++ = (char)('0' + v / 10 % 10);
        *at++ = (char)('0' + v % 10);
    }
    *at++ = ']';
    load_text_commit(t, (size_t)(at - to));
}

void load_body_input(load_text *t, const load_model *m, uint64_t key, uint64_t index)
{
    if (m->is_language_model) {
        load_body_token(t, load_body_make_token(m, key, index));
    } else {
        separate(t);
        make_row(t, m, key, index);
    }
}

void load_body_row(load_text *t, const float *row, uint64_t hidden_size)
{
    separate(t);
    load_text_puts(t, "[");
    for (uint64_t i = 0; i < hidden_size; i++)
        load_text_printf(t, i ? ",%.9g" : "%.9g", (double)row[i]);
    load_text_puts(t, "]");
}

void load_body_close(load_text *t, const load_options *o, const char *output)
{
    if (output == NULL && o->has_output)
        output = o->output;
    load_text_puts(t, "]");
    if (output != NULL)
        load_text_printf(t, ",\"output\":\"%s\"", output);
    load_text_puts(t, "}");
}

void load_body_prefill(load_text *t, const load_model *m, const load_options *o,
                       const char *session, uint64_t if_length, uint64_t key, uint64_t n)
{
    load_body_open(t, m, o, session, if_length, if_length == 0);
    for (uint64_t i = 0; i < n; i++)
        load_body_input(t, m, key, i);
    load_body_close(t, o, NULL);
}

void load_body_decode(load_text *t, const load_model *m, const load_options *o, const char *session,
                      uint64_t if_length, uint64_t key, uint64_t steps)
{
    load_text_printf(
        t, "{\"session\":\"%s\",\"if_length\":%" PRIu64 ",\"steps\":%" PRIu64 ",\"stream\":true",
        session, if_length, steps);
    if (m->is_language_model) {
        load_text_puts(t, ",\"ignore_eos\":true");
        if (o->temperature > 0)
            load_text_printf(t, ",\"temperature\":%.9g,\"seed\":%" PRIu64, o->temperature,
                             key & U53);
    }
    load_text_puts(t, "}");
}
