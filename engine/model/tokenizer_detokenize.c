/* Ids to text: incrementally (attn_detokenizer) and at once (attn_tokenizer_decode). */
#include "engine/model/tokenizer.h"
#include "engine/model/tokenizer_decode.h"

#include <string.h>

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* Whole characters, less what is stripped from the start of the text. */
static bool emit(attn_detokenizer *state, const char *text, size_t len, attn_text *out)
{
    const attn_decoder *decoder = attn_tokenizer_decoder(state->tokenizer);
    size_t used;
    for (; state->strip_left > 0 && len > 0; text += used, len -= used, state->strip_left--) {
        if (attn_utf8_decode(text, &used) != decoder->strip_char) {
            state->strip_left = 0;
            break;
        }
    }
    return attn_text_append(out, text, len);
}

static bool emit_replacements(attn_detokenizer *state, size_t n, attn_text *out)
{
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++)
        ok = emit(state, replacement, sizeof replacement - 1, out);
    return ok;
}

/* Bytes of a byte-level token. Of bytes that are no UTF-8, each longest begin of a character, or
 * else each byte, becomes one U+FFFD. */
static bool push_bytes(attn_detokenizer *state, const char *bytes, size_t len, attn_text *out)
{
    bool ok = true;
    for (size_t i = 0; ok && i < len;) {
        state->held[state->n_held++] = bytes[i];
        size_t need = attn_utf8_prefix(state->held, state->n_held);
        if (need == 0) {
            /* A byte that broke a character off is looked at once more. */
            i += state->n_held == 1;
            state->n_held = 0;
            ok = emit_replacements(state, 1, out);
            continue;
        }
        i++;
        if (need == state->n_held) {
            ok = emit(state, state->held, need, out);
            state->n_held = 0;
        }
    }
    return ok;
}

/* A byte of a ByteFallback run: the run is UTF-8 as a whole, or each of its bytes is a U+FFFD. */
static bool push_run_byte(attn_detokenizer *state, char byte, attn_text *out)
{
    state->held[state->n_held++] = byte;
    size_t n = state->n_held, need = attn_utf8_prefix(state->held, n);
    if (need > n && !state->run_broken)
        return true;
    state->n_held = 0;
    if (need == n && !state->run_broken)
        return emit(state, state->held, n, out);
    state->run_broken = true;
    return emit_replacements(state, n, out);
}

/* Ends what is held back. */
static bool release(attn_detokenizer *state, attn_text *out)
{
    bool bytes = attn_tokenizer_decoder(state->tokenizer)->kind == ATTN_DECODER_BYTE_LEVEL;
    size_t n = bytes && state->n_held > 0 ? 1 : state->n_held;
    state->n_held = 0;
    state->run_broken = false;
    return emit_replacements(state, n, out);
}

/* The first token of a text loses its marks. */
static bool push_first_metaspace(const attn_detokenizer *state, uint32_t id, attn_text *out)
{
    const attn_metaspace *space = &attn_tokenizer_decoder(state->tokenizer)->space;
    size_t len = 0, used;
    const char *token = attn_tokenizer_token(state->tokenizer, id, &len);
    bool ok = true;
    for (size_t i = 0; ok && i < len; i += used) {
        attn_utf8_decode(token + i, &used);
        if (used != space->mark_len || memcmp(token + i, space->mark, used) != 0)
            ok = attn_text_append(out, token + i, used);
    }
    return ok;
}

/* Whether an id stands for text at all. */
static bool is_read(const attn_detokenizer *state, uint32_t id)
{
    size_t len;
    return attn_tokenizer_token(state->tokenizer, id, &len) != NULL &&
           !(state->skip_special && attn_tokenizer_is_special(state->tokenizer, id));
}

void attn_detokenizer_init(attn_detokenizer *state, const attn_tokenizer *tokenizer,
                           bool skip_special, bool at_start)
{
    *state = (attn_detokenizer){
        .tokenizer = tokenizer,
        .skip_special = skip_special,
        .first = at_start,
        .strip_left = at_start ? attn_tokenizer_decoder(tokenizer)->strip_count : 0,
    };
}

attn_status attn_detokenizer_push(attn_detokenizer *state, uint32_t id, attn_text *out,
                                  attn_error *err)
{
    const attn_decoder *decoder = attn_tokenizer_decoder(state->tokenizer);
    size_t len = 0;
    const char *piece = attn_tokenizer_piece(state->tokenizer, id, &len);
    bool first = state->first, ok = false;
    if (!is_read(state, id))
        return ATTN_OK;
    state->first = false;
    switch (decoder->kind) {
    case ATTN_DECODER_BYTE_LEVEL:
        ok = push_bytes(state, piece, len, out);
        break;
    case ATTN_DECODER_METASPACE:
        ok = first && decoder->space.prepend != ATTN_PREPEND_NEVER
                 ? push_first_metaspace(state, id, out)
                 : attn_text_append(out, piece, len);
        break;
    case ATTN_DECODER_STEPS:
        ok = attn_tokenizer_is_byte(state->tokenizer, id)
                 ? push_run_byte(state, piece[0], out)
                 : release(state, out) && emit(state, piece, len, out);
        break;
    }
    return ok ? ATTN_OK : attn_no_memory(err);
}

size_t attn_detokenizer_most(const attn_tokenizer *tokenizer)
{
    /* Each byte of the token, and each of those held before it, may become a U+FFFD. */
    const size_t held = sizeof((attn_detokenizer *)NULL)->held;
    return (attn_tokenizer_longest(tokenizer) + held) * (sizeof replacement - 1);
}

attn_status attn_detokenizer_flush(attn_detokenizer *state, attn_text *out, attn_error *err)
{
    return release(state, out) ? ATTN_OK : attn_no_memory(err);
}

/* A run of byte tokens has ended: if it is no UTF-8, none of it stays, not even whole
 * characters. */
static bool end_run(attn_detokenizer *state, size_t start, size_t n, attn_text *out)
{
    bool broken = state->run_broken || state->n_held > 0, ok = release(state, out);
    if (!broken)
        return ok;
    out->len = start;
    return ok && emit_replacements(state, n, out);
}

attn_status attn_tokenizer_decode(const attn_tokenizer *tokenizer, const uint32_t *ids, size_t n,
                                  bool skip_special, attn_text *out, attn_error *err)
{
    attn_detokenizer state;
    size_t before = out->len, run_start = before, run_n = 0;
    attn_status status = ATTN_OK;
    attn_detokenizer_init(&state, tokenizer, skip_special, true);
    for (size_t i = 0; status == ATTN_OK && i < n; i++) {
        if (!is_read(&state, ids[i]))
            continue;
        if (attn_tokenizer_is_byte(tokenizer, ids[i])) {
            run_start = run_n == 0 ? out->len : run_start;
            run_n++;
        } else if (run_n > 0) {
            status = end_run(&state, run_start, run_n, out) ? ATTN_OK : attn_no_memory(err);
            run_n = 0;
        }
        if (status == ATTN_OK)
            status = attn_detokenizer_push(&state, ids[i], out, err);
    }
    if (status == ATTN_OK && run_n > 0)
        status = end_run(&state, run_start, run_n, out) ? ATTN_OK : attn_no_memory(err);
    if (status == ATTN_OK)
        status = attn_detokenizer_flush(&state, out, err);
    if (status != ATTN_OK)
        out->len = before;
    return status;
}
