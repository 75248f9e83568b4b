#include "engine/sched/run_text.h"

#include "engine/base/base.h"
#include "engine/model/tokenizer_decode.h"

#include <string.h>

/* The texts never grow past what they are made with, so that a step that was computed cannot be lost
 * for want of memory: of a stop text something less than all is held, and a token adds so much at
 * most. */
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
    size_t bytes = 0, longest = 0;
    for (size_t i = 0; i < n_stop; i++) {
        size_t len = strlen(stop[i]);
        longest = len > longest ? len : longest;
        bytes += len + 1;
    }
    size_t room = longest + attn_detokenizer_most(tokenizer);
    attn_run_text *t = attn_alloc(1, sizeof *t + 3 * room + bytes);
    if (t == NULL)
        return NULL;
    attn_detokenizer_init(&t->state, tokenizer, true, at_start);
    char *at = (char *)(t + 1);
    attn_text *const texts[] = {&t->held, &t->candidate, &t->out};
    for (size_t i = 0; i < 3; i++, at += room)
        *texts[i] = (attn_text){.data = at, .capacity = room};
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
    attn_free(t);
}

static void copy(attn_text *text, const char *bytes, size_t len)
{
    text->len = 0;
    ATTN_ASSERT(len <= text->capacity && attn_text_append(text, bytes, len));
}

/* candidate = held + what the token adds in `state`. */
static void build_candidate(attn_run_text *t, attn_detokenizer *state, uint32_t token)
{
    copy(&t->candidate, t->held.data, t->held.len);
    ATTN_ASSERT(attn_detokenizer_push(state, token, &t->candidate, NULL) == ATTN_OK);
}

void attn_run_text_prime(attn_run_text *t, uint32_t token)
{
    build_candidate(t, &t->state, token);
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
    copy(&t->held, t->candidate.data, first);
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
    copy(&t->held, t->candidate.data + send, hold);
    copy(&t->out, t->candidate.data, send);
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
