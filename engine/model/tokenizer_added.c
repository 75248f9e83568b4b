/* Of the tokens that begin at a place the longest counts, and the next is looked for behind it.
 * Their texts are sorted, so that the candidates at a place are a range that narrows with every
 * byte. */
#include "engine/model/tokenizer_added.h"

#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX 65536u
#define CONTENT_MAX 1024u

/* One text to look for. */
typedef struct needle {
    char *text;
    size_t len;
    const attn_added_token *token;
} needle;

typedef struct needle_set {
    needle *needles; /* sorted by text, then as in the file with special tokens
                      first */
    size_t n;
    size_t first[257]; /* where those begin that start with a byte */
} needle_set;

struct attn_added {
    attn_added_token *tokens;
    size_t n;
    needle_set sets[2]; /* by `normalized` */
    attn_pattern *word; /* one word character */
};

/* -------------------------------------------------------------------------------------- reading */

static attn_status read_token(const attn_reader *reader, const attn_json *node,
                              attn_added_token *token)
{
    const char *content;
    attn_status status = attn_read_keys(reader, node, "added_tokens",
                                        "id content single_word lstrip rstrip normalized special");
    if (status == ATTN_OK)
        status = attn_read_string(reader, node, "added_tokens", "content", &content);
    if (status != ATTN_OK)
        return status;
    if (*content == '\0' || strnlen(content, CONTENT_MAX + 1) > CONTENT_MAX)
        return attn_read_fail(reader, "added_tokens", "has an empty or very long token");
    token->content = strdup(content);
    if (token->content == NULL)
        return attn_read_no_memory(reader);
    status = attn_read_id(reader, attn_json_get(node, "id"), content, &token->id);
    const struct {
        const char *key;
        bool *value;
    } flags[] = {
        {"single_word", &token->single_word}, {"lstrip", &token->lstrip},
        {"rstrip", &token->rstrip},           {"normalized", &token->normalized},
        {"special", &token->special},
    };
    for (size_t i = 0; status == ATTN_OK && i < sizeof flags / sizeof flags[0]; i++)
        status = attn_read_bool(reader, node, "added_tokens", flags[i].key, flags[i].value);
    return status;
}

static attn_status read_tokens(const attn_reader *reader, const attn_json *list, attn_added *added)
{
    size_t n = 0;
    attn_status status = ATTN_OK;
    if (list == NULL || attn_json_is_null(list))
        return ATTN_OK;
    if (!attn_json_is_array(list))
        return attn_read_fail(reader, "added_tokens", "is not a list");
    for (const attn_json *each = attn_json_first(list); each; each = attn_json_next(each))
        n++;
    if (n > TOKENS_MAX)
        return attn_read_fail(reader, "added_tokens", "has too many tokens");
    added->tokens = attn_alloc(n, sizeof *added->tokens);
    if (added->tokens == NULL)
        return attn_read_no_memory(reader);
    for (const attn_json *each = attn_json_first(list); status == ATTN_OK && each != NULL;
         each = attn_json_next(each))
        status = read_token(reader, each, &added->tokens[added->n++]);
    return status;
}

static int compare_ids(const void *a, const void *b)
{
    const attn_added_token *left = *(const attn_added_token *const *)a,
                           *right = *(const attn_added_token *const *)b;
    return (left->id > right->id) - (left->id < right->id);
}

static int compare_contents(const void *a, const void *b)
{
    const attn_added_token *left = *(const attn_added_token *const *)a,
                           *right = *(const attn_added_token *const *)b;
    return strcmp(left->content, right->content);
}

/* An id means one token and a token has one id, the vocabulary included. */
static attn_status check_ids(const attn_reader *reader, const attn_added *added,
                             const attn_bpe *bpe)
{
    const attn_added_token **order = attn_alloc(added->n, sizeof *order);
    const attn_added_token *wrong = NULL;
    if (order == NULL)
        return attn_read_no_memory(reader);
    for (size_t i = 0; i < added->n; i++) {
        const attn_added_token *token = order[i] = &added->tokens[i];
        size_t len = strlen(token->content), there;
        uint32_t id = attn_bpe_find(bpe, token->content, len);
        if (id != token->id &&
            (id != ATTN_TOKEN_NONE || attn_bpe_token(bpe, token->id, &there) != NULL))
            wrong = token;
    }
    int (*const orders[])(const void *, const void *) = {compare_ids, compare_contents};
    for (size_t k = 0; k < 2; k++) {
        qsort(order, added->n, sizeof *order, orders[k]);
        for (size_t i = 1; i < added->n; i++) {
            if (orders[k](&order[i - 1], &order[i]) == 0)
                wrong = order[i];
        }
    }
    attn_free(order);
    if (wrong == NULL)
        return ATTN_OK;
    return attn_read_fail_name(reader, "added token", wrong->content,
                               "or its id stands for something else, too");
}

/* -------------------------------------------------------------------------------------- needles */

static int compare_needles(const void *a, const void *b)
{
    const needle *left = a, *right = b;
    int order = memcmp(left->text, right->text, left->len < right->len ? left->len : right->len);
    if (order != 0)
        return order;
    if (left->len != right->len)
        return left->len < right->len ? -1 : 1;
    if (left->token->special != right->token->special)
        return left->token->special ? -1 : 1;
    return (left->token > right->token) - (left->token < right->token);
}

static attn_status fill_needle(const attn_added_token *token, const attn_normalizer *normalizer,
                               attn_match *match, needle *to, attn_error *err)
{
    attn_text buffers[2] = {{0}, {0}};
    attn_status status = attn_text_append(&buffers[0], token->content, strlen(token->content))
                             ? ATTN_OK
                             : attn_no_memory(err);
    if (status == ATTN_OK && token->normalized)
        status = attn_normalizer_apply(normalizer, true, match, buffers, err);
    attn_text_free(&buffers[1]);
    *to = (needle){buffers[0].data, buffers[0].len, token};
    return status;
}

static attn_status build_set(const attn_reader *reader, const attn_added *added, bool normalized,
                             const attn_normalizer *normalizer, attn_match *match, needle_set *set)
{
    set->needles = attn_alloc(added->n, sizeof *set->needles);
    if (set->needles == NULL)
        return attn_read_no_memory(reader);
    for (size_t i = 0; i < added->n; i++) {
        const attn_added_token *token = &added->tokens[i];
        if (token->normalized != normalized)
            continue;
        needle *to = &set->needles[set->n++];
        attn_status status = fill_needle(token, normalizer, match, to, reader->err);
        if (status != ATTN_OK)
            return status;
        if (to->len == 0)
            return attn_read_fail(reader, "added_tokens", "has a token that normalizes to nothing");
    }
    qsort(set->needles, set->n, sizeof *set->needles, compare_needles);
    for (size_t byte = 0, i = 0; byte <= 256; byte++) {
        while (i < set->n && (unsigned char)set->needles[i].text[0] < byte)
            i++;
        set->first[byte] = i;
    }
    return ATTN_OK;
}

attn_added *attn_added_read(const attn_reader *reader, const attn_json *list, const attn_bpe *bpe,
                            const attn_normalizer *normalizer)
{
    attn_match *match = attn_match_create();
    attn_added *added = attn_alloc(1, sizeof *added);
    attn_status status;
    if (match == NULL || added == NULL)
        status = attn_read_no_memory(reader);
    else
        status = read_tokens(reader, list, added);
    if (status == ATTN_OK)
        status = check_ids(reader, added, bpe);
    for (int i = 0; status == ATTN_OK && i < 2; i++)
        status = build_set(reader, added, i == 1, normalizer, match, &added->sets[i]);
    if (status == ATTN_OK) {
        added->word = attn_pattern_regex(reader, "[\\w\\x{200c}\\x{200d}]", "added_tokens");
        if (added->word == NULL)
            status = reader->err->status;
    }
    attn_match_free(match);
    if (status != ATTN_OK) {
        attn_added_free(added);
        added = NULL;
    }
    return added;
}

void attn_added_free(attn_added *added)
{
    if (added == NULL)
        return;
    for (size_t i = 0; i < added->n; i++)
        free(added->tokens[i].content);
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < added->sets[k].n; i++)
            free(added->sets[k].needles[i].text);
        attn_free(added->sets[k].needles);
    }
    attn_free(added->tokens);
    attn_pattern_free(added->word);
    attn_free(added);
}

size_t attn_added_count(const attn_added *added)
{
    return added->n;
}

const attn_added_token *attn_added_at(const attn_added *added, size_t index)
{
    return &added->tokens[index];
}

/* ------------------------------------------------------------------------------------- matching */

/* First of needles[low, high), which agree in their first `depth` bytes and are longer, whose
 * next byte is at least `byte`. */
static size_t lower_bound(const needle_set *set, size_t low, size_t high, size_t depth,
                          unsigned byte)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((unsigned char)set->needles[middle].text[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest needle that begins at text[at], or NULL. */
static const needle *longest_at(const needle_set *set, const char *text, size_t len, size_t at)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t low = set->first[bytes[at]], high = set->first[bytes[at] + 1u];
    const needle *best = NULL;
    for (size_t depth = 1; low < high; depth++) {
        if (set->needles[low].len == depth)
            best = &set->needles[low];
        while (low < high && set->needles[low].len == depth)
            low++;
        if (at + depth == len)
            break;
        unsigned byte = bytes[at + depth];
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1);
    }
    return best;
}

/* Whether the character at text[at] belongs to words. */
static attn_status is_word_at(const attn_added_run *run, const char *text, size_t at, bool *is)
{
    size_t len;
    attn_matches walk;
    attn_utf8_decode(text + at, &len);
    attn_matches_start(&walk, run->added->word, run->match, text + at, len);
    return attn_matches_next(&walk, is, run->err);
}

static size_t char_before(const char *text, size_t at)
{
    do
        at--;
    while (((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

static attn_status touches_word(const attn_added_run *run, const char *text, size_t len,
                                size_t start, size_t end, bool *touches)
{
    attn_status status = ATTN_OK;
    *touches = false;
    if (start > 0)
        status = is_word_at(run, text, char_before(text, start), touches);
    if (status == ATTN_OK && !*touches && end < len)
        status = is_word_at(run, text, end, touches);
    return status;
}

static size_t strip_left(const char *text, size_t start, size_t stop_at)
{
    size_t len;
    while (start > stop_at) {
        size_t before = char_before(text, start);
        if (!attn_is_white_space(attn_utf8_decode(text + before, &len)))
            break;
        start = before;
    }
    return start;
}

static size_t strip_right(const char *text, size_t end, size_t len)
{
    size_t used;
    while (end < len && attn_is_white_space(attn_utf8_decode(text + end, &used)))
        end += used;
    return end;
}

attn_status attn_added_split(const attn_added_run *run, const char *text, size_t len, bool first)
{
    const needle_set *set = &run->added->sets[run->normalized];
    attn_status status = ATTN_OK;
    size_t covered = 0;
    for (size_t at = 0; set->n > 0 && at < len;) {
        const needle *found = longest_at(set, text, len, at);
        if (found == NULL) {
            at++;
            continue;
        }
        const attn_added_token *token = found->token;
        size_t start = at, end = at + found->len;
        bool touches = false;
        at = end;
        if (token->single_word)
            status = touches_word(run, text, len, start, end, &touches);
        if (status != ATTN_OK)
            return status;
        if (touches)
            continue;
        if (token->lstrip)
            start = strip_left(text, start, covered);
        if (token->rstrip)
            end = strip_right(text, end, len);
        if (covered < start)
            status =
                run->stretch(run->user, text + covered, start - covered, first && covered == 0);
        if (status == ATTN_OK)
            status = run->token(run->user, token->id);
        if (status != ATTN_OK)
            return status;
        covered = end;
    }
    return covered < len
               ? run->stretch(run->user, text + covered, len - covered, first && covered == 0)
               : ATTN_OK;
}
