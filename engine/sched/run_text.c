#include "engine/sched/run_text.h"

#include "engine/base/base.h"
#include "engine/model/tokenizer_decode.h"

#include <string.h>

struct attn_run_text {
    attn_detokenizer state;
    attn_text held;      /* complete characters that may begin a stop text */
    attn_text candidate; /* scratch: what is held and what a token adds */
    attn_text out;
    size_t n_stop;
    size_t stop_len[ATTN_STOP_MAX];
    char *stop[ATTN_STOP_MAX]; /* into one block */
};

attn_run_text *attn_run_text_create(const attn_tokenizer *tokenizer, bool at_start,
                                    const char *const *stop, size_t n_stop)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n_stop; i++)
        bytes += strlen(stop[i]) + 1;
    attn_run_text *t = attn_alloc(1, sizeof *t + bytes);
    if (t == NULL)
        return NULL;
    attn_detokenizer_init(&t->state, tokenizer, true, at_start);
    char *at = (char *)(t + 1);
    t->n_stop = n_stop;
    for (size_t i = 0; i < n_stop; i++) {
        t->stop[i] = at;
        t->stop_len[i] = strlen(stop[i]);
        memcpy(at, stop[i], t->stop_len[i] + 1);
        at += t->stop_len[i] + 1;
    }
    return t;
}

void attn_run_text_destroy(attn_run_text *t)
{
    if (t == NULL)
        return;
    attn_text_free(&t->held);
    attn_text_free(&t->candidate);
    attn_text_free(&t->out);
    attn_free(t);
}

void attn_run_text_prime(attn_run_text *t, uint32_t token)
{
    t->candidate.len = 0;
    if (attn_detokenizer_push(&t->state, token, &t->candidate, NULL) != ATTN_OK)
        t->candidate.len = 0;
}

/* candidate = held + what the token adds in `state`. Without memory the token adds nothing. */
static void build_candidate(attn_run_text *t, attn_detokenizer *state, uint32_t token)
{
    t->candidate.len = 0;
    if (!attn_text_append(&t->candidate, t->held.data, t->held.len) ||
        attn_detokenizer_push(state, token, &t->candidate, NULL) != ATTN_OK)
        return;
}

bool attn_run_text_stops(attn_run_text *t, uint32_t token)
{
    attn_detokenizer state = t->state;
    if (t->n_stop == 0)
        return false;
    build_candidate(t, &state, token);
    size_t first = SIZE_MAX;
    for (size_t i = 0; i < t->n_stop; i++) {
        const char *match = memmem(t->candidate.data, t->candidate.len, t->stop[i], t->stop_len[i]);
        if (match != NULL && (size_t)(match - t->candidate.data) < first)
            first = (size_t)(match - t->candidate.data);
    }
    if (first == SIZE_MAX)
        return false;
    t->held.len = 0;
    if (!attn_text_append(&t->held, t->candidate.data, first))
        t->held.len = 0;
    return true;
}

/* The longest end of the text that begins a stop text. */
static size_t held_length(const attn_run_text *t, const attn_text *text)
{
    size_t most = 0;
    for (size_t i = 0; i < t->n_stop; i++) {
        size_t n = t->stop_len[i] - 1 < text->len ? t->stop_len[i] - 1 : text->len;
        while (n > most && memcmp(text->data + text->len - n, t->stop[i], n) != 0)
            n--;
        most = n > most ? n : most;
    }
    return most;
}

void attn_run_text_take(attn_run_text *t, uint32_t token, bool last, const char **out, size_t *len)
{
    build_candidate(t, &t->state, token);
    size_t hold = last ? 0 : held_length(t, &t->candidate), send = t->candidate.len - hold;
    t->held.len = t->out.len = 0;
    /* Both have held as much before, or more, but for their first time. */
    if (!attn_text_append(&t->held, t->candidate.data + send, hold) ||
        !attn_text_append(&t->out, t->candidate.data, send))
        t->held.len = t->out.len = 0;
    *out = t->out.len > 0 ? t->out.data : "";
    *len = t->out.len;
}

void attn_run_text_rest(const attn_run_text *t, const char **out, size_t *len)
{
    *out = t->held.len > 0 ? t->held.data : "";
    *len = t->held.len;
}

bool attn_token_continues(const attn_tokenizer *tokenizer, uint32_t token)
{
    size_t len;
    return attn_tokenizer_is_byte(tokenizer, token) ||
           attn_tokenizer_is_special(tokenizer, token) ||
           attn_tokenizer_token(tokenizer, token, &len) == NULL;
}

void attn_token_text(const attn_tokenizer *tokenizer, uint32_t token, char *out, size_t size)
{
    static const char replacement[] = "\xef\xbf\xbd";
    size_t len = 0, n = 0;
    const char *piece = tokenizer == NULL ? NULL : attn_tokenizer_piece(tokenizer, token, &len);
    for (size_t at = 0; piece != NULL && at < len;) {
        size_t character = attn_utf8_prefix(piece + at, len - at);
        bool whole = character > 0 && character <= len - at;
        const char *from = whole ? piece + at : replacement;
        size_t bytes = whole ? character : sizeof replacement - 1;
        if (n + bytes + 1 > size)
            break;
        memcpy(out + n, from, bytes);
        n += bytes;
        at += whole ? character : 1;
    }
    out[n] = '\0';
}
