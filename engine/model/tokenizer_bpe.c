/* Invariants: every token string lies in `bytes`, NUL-terminated, found by `places[id]`; `slots`
 * is an open hash table of ids by string, `merges` one of pairs of ids, each at most half full.
 * A merge's result is longer than either part, so merging ends. */
#include "engine/model/tokenizer_bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_PLACE UINT32_MAX
#define NO_SYMBOL UINT32_MAX
#define WORD_MAX (8u * ATTN_TOKENIZER_TEXT_MAX)
#define DIRECT_CHARS 0x180 /* code points whose tokens are found without hashing */

typedef struct place {
    uint32_t at, len; /* at NO_PLACE: no token has this id */
} place;

typedef struct merge_rule {
    uint32_t left, right;
    uint32_t rank, result; /* result ATTN_TOKEN_NONE: an empty slot */
} merge_rule;

struct attn_bpe {
    char *bytes;
    size_t bytes_len;
    place *places;
    size_t n_ids;
    uint32_t *slots;
    size_t slots_mask;
    merge_rule *merges;
    size_t merges_mask;
    uint32_t chars[DIRECT_CHARS];
    uint32_t byte_tokens[256]; /* <0x00> ... */
    uint32_t unk;
    bool has_unk, fuse_unk, byte_fallback, ignore_merges;
};

/* --------------------------------------------------------------------------------------- tables */

static size_t hash_bytes(const char *bytes, size_t len)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    return (size_t)(hash ^ hash >> 32);
}

static size_t hash_pair(uint32_t left, uint32_t right)
{
    uint64_t hash = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash ^ hash >> 32);
}

/* At least 2n, a power of two. */
static size_t table_size(size_t n)
{
    size_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size;
}

/* The slot that has the token, or the empty one where it belongs. */
static uint32_t *slot_of(const attn_bpe *bpe, const char *token, size_t len)
{
    size_t i = hash_bytes(token, len);
    for (;; i++) {
        uint32_t *slot = &bpe->slots[i & bpe->slots_mask];
        if (*slot == ATTN_TOKEN_NONE)
            return slot;
        const place *p = &bpe->places[*slot];
        if (p->len == len && memcmp(bpe->bytes + p->at, token, len) == 0)
            return slot;
    }
}

static merge_rule *rule_slot(const attn_bpe *bpe, uint32_t left, uint32_t right)
{
    size_t i = hash_pair(left, right);
    for (;; i++) {
        merge_rule *rule = &bpe->merges[i & bpe->merges_mask];
        if (rule->result == ATTN_TOKEN_NONE || (rule->left == left && rule->right == right))
            return rule;
    }
}

/* The rule for a pair, or NULL. */
static const merge_rule *find_rule(const attn_bpe *bpe, uint32_t left, uint32_t right)
{
    const merge_rule *rule = rule_slot(bpe, left, right);
    return rule->result == ATTN_TOKEN_NONE ? NULL : rule;
}

size_t attn_bpe_size(const attn_bpe *bpe)
{
    return bpe->n_ids;
}

const char *attn_bpe_token(const attn_bpe *bpe, uint32_t id, size_t *len)
{
    if (id >= bpe->n_ids || bpe->places[id].at == NO_PLACE)
        return NULL;
    *len = bpe->places[id].len;
    return bpe->bytes + bpe->places[id].at;
}

uint32_t attn_bpe_find(const attn_bpe *bpe, const char *token, size_t len)
{
    return *slot_of(bpe, token, len);
}

/* -------------------------------------------------------------------------------------- reading */

static attn_status allocate_vocab(const attn_reader *reader, const attn_json *vocab, attn_bpe *bpe)
{
    size_t n = 0, bytes = 0;
    if (!attn_json_is_object(vocab))
        return attn_read_fail(reader, "model", "has no vocab object");
    for (const attn_json *each = attn_json_first(vocab); each; each = attn_json_next(each), n++) {
        uint32_t id;
        attn_status status = attn_read_id(reader, each, attn_json_key(each), &id);
        if (status != ATTN_OK)
            return status;
        if (id >= bpe->n_ids)
            bpe->n_ids = id + 1;
        bytes += strlen(attn_json_key(each)) + 1;
    }
    if (n == 0 || bytes >= NO_PLACE)
        return attn_read_fail(reader, "model", "has an empty or oversized vocab");
    bpe->bytes = malloc(bytes);
    bpe->places = calloc(bpe->n_ids, sizeof *bpe->places);
    bpe->slots_mask = table_size(n) - 1;
    bpe->slots = malloc((bpe->slots_mask + 1) * sizeof *bpe->slots);
    if (bpe->bytes == NULL || bpe->places == NULL || bpe->slots == NULL)
        return attn_read_no_memory(reader);
    memset(bpe->slots, 0xff, (bpe->slots_mask + 1) * sizeof *bpe->slots);
    for (size_t i = 0; i < bpe->n_ids; i++)
        bpe->places[i].at = NO_PLACE;
    return ATTN_OK;
}

static attn_status read_vocab(const attn_reader *reader, const attn_json *vocab, attn_bpe *bpe)
{
    attn_status status = allocate_vocab(reader, vocab, bpe);
    if (status != ATTN_OK)
        return status;
    for (const attn_json *each = attn_json_first(vocab); each; each = attn_json_next(each)) {
        const char *token = attn_json_key(each);
        size_t len = strlen(token);
        uint32_t id = 0, *slot = slot_of(bpe, token, len);
        status = attn_read_id(reader, each, token, &id);
        if (status != ATTN_OK)
            return status;
        if (*slot != ATTN_TOKEN_NONE || bpe->places[id].at != NO_PLACE)
            return attn_read_fail_name(reader, "token", token, "or its id is in the vocab twice");
        bpe->places[id] = (place){(uint32_t)bpe->bytes_len, (uint32_t)len};
        memcpy(bpe->bytes + bpe->bytes_len, token, len + 1);
        bpe->bytes_len += len + 1;
        *slot = id;
    }
    for (uint32_t c = 0; c < DIRECT_CHARS; c++) {
        char bytes[4];
        bpe->chars[c] = attn_bpe_find(bpe, bytes, attn_utf8_encode(c, bytes));
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[8];
        int len = snprintf(name, sizeof name, "<0x%02X>", byte);
        bpe->byte_tokens[byte] = attn_bpe_find(bpe, name, (size_t)len);
    }
    return ATTN_OK;
}

/* The two parts of a merge: "a b", or ["a", "b"]. */
static bool merge_parts(const attn_json *node, const char *parts[2], size_t lens[2])
{
    const char *pair = attn_json_string(node);
    if (pair != NULL) {
        const char *space = strchr(pair, ' ');
        if (space == NULL || strchr(space + 1, ' ') != NULL)
            return false;
        parts[0] = pair;
        lens[0] = (size_t)(space - pair);
        parts[1] = space + 1;
        lens[1] = strlen(parts[1]);
        return lens[0] > 0 && lens[1] > 0;
    }
    if (!attn_json_is_array(node))
        return false;
    const attn_json *first = attn_json_first(node), *second = attn_json_next(first);
    for (int i = 0; i < 2; i++) {
        parts[i] = attn_json_string(i == 0 ? first : second);
        if (parts[i] == NULL)
            return false;
        lens[i] = strlen(parts[i]);
    }
    return lens[0] > 0 && lens[1] > 0 && attn_json_next(second) == NULL;
}

static attn_status read_merge(const attn_reader *reader, const attn_json *node, size_t rank,
                              attn_text *joined, attn_bpe *bpe)
{
    const char *parts[2];
    size_t lens[2];
    uint32_t ids[2];
    if (!merge_parts(node, parts, lens))
        return attn_fail(reader->err, ATTN_E_FORMAT, NULL, "%s: merge %zu is not a pair of tokens",
                         reader->label, rank);
    joined->len = 0;
    for (int i = 0; i < 2; i++) {
        ids[i] = attn_bpe_find(bpe, parts[i], lens[i]);
        if (!attn_text_append(joined, parts[i], lens[i]))
            return attn_read_no_memory(reader);
    }
    uint32_t result = attn_bpe_find(bpe, joined->data, joined->len);
    if (ids[0] == ATTN_TOKEN_NONE || ids[1] == ATTN_TOKEN_NONE || result == ATTN_TOKEN_NONE)
        return attn_fail(reader->err, ATTN_E_FORMAT, NULL,
                         "%s: merge %zu: a part or the whole is not in the vocab", reader->label,
                         rank);
    /* Of a repeated pair the last one counts. */
    *rule_slot(bpe, ids[0], ids[1]) = (merge_rule){ids[0], ids[1], (uint32_t)rank, result};
    return ATTN_OK;
}

static attn_status read_merges(const attn_reader *reader, const attn_json *list, attn_bpe *bpe)
{
    size_t n = 0;
    attn_text joined = {0};
    attn_status status = ATTN_OK;
    if (!attn_json_is_array(list))
        return attn_read_fail(reader, "model", "has no merges list");
    for (const attn_json *each = attn_json_first(list); each; each = attn_json_next(each))
        n++;
    if (n >= UINT32_MAX)
        return attn_read_fail(reader, "model", "has too many merges");
    bpe->merges_mask = table_size(n) - 1;
    bpe->merges = malloc((bpe->merges_mask + 1) * sizeof *bpe->merges);
    if (bpe->merges == NULL)
        return attn_read_no_memory(reader);
    memset(bpe->merges, 0xff, (bpe->merges_mask + 1) * sizeof *bpe->merges);
    n = 0;
    for (const attn_json *each = attn_json_first(list); status == ATTN_OK && each != NULL;
         each = attn_json_next(each))
        status = read_merge(reader, each, n++, &joined, bpe);
    attn_text_free(&joined);
    return status;
}

/* null, absent, "" and 0 change nothing; anything else is not supported. */
static attn_status refuse_field(const attn_reader *reader, const attn_json *model, const char *key)
{
    const attn_json *node = attn_json_get(model, key);
    const char *string = attn_json_string(node);
    double number;
    if (node == NULL || attn_json_is_null(node) || (string != NULL && *string == '\0') ||
        (attn_json_number(node, &number) && number == 0))
        return ATTN_OK;
    return attn_read_fail_name(reader, "model", key, "is not supported");
}

static attn_status read_model(const attn_reader *reader, const attn_json *model, attn_bpe *bpe)
{
    static const char *const refused[] = {"dropout", "continuing_subword_prefix",
                                          "end_of_word_suffix"};
    /* The type first: what is not BPE has other fields. It is absent in old files. */
    const char *type = "BPE";
    attn_status status = ATTN_OK;
    if (attn_json_get(model, "type") != NULL)
        status = attn_read_string(reader, model, "model", "type", &type);
    if (status == ATTN_OK && strcmp(type, "BPE") != 0)
        status = attn_read_fail_name(reader, "model", type, "is not supported");
    if (status == ATTN_OK)
        status = attn_read_keys(reader, model, "model",
                                "type dropout unk_token continuing_subword_prefix "
                                "end_of_word_suffix fuse_unk byte_fallback ignore_merges vocab "
                                "merges");
    for (size_t i = 0; status == ATTN_OK && i < sizeof refused / sizeof refused[0]; i++)
        status = refuse_field(reader, model, refused[i]);
    if (status == ATTN_OK)
        status = attn_read_optional_bool(reader, model, "model", "fuse_unk", &bpe->fuse_unk);
    if (status == ATTN_OK)
        status =
            attn_read_optional_bool(reader, model, "model", "byte_fallback", &bpe->byte_fallback);
    if (status == ATTN_OK)
        status =
            attn_read_optional_bool(reader, model, "model", "ignore_merges", &bpe->ignore_merges);
    if (status == ATTN_OK)
        status = read_vocab(reader, attn_json_get(model, "vocab"), bpe);
    if (status == ATTN_OK)
        status = read_merges(reader, attn_json_get(model, "merges"), bpe);
    const attn_json *unk_node = attn_json_get(model, "unk_token");
    if (status != ATTN_OK || unk_node == NULL || attn_json_is_null(unk_node))
        return status;
    const char *unk;
    status = attn_read_string(reader, model, "model", "unk_token", &unk);
    if (status == ATTN_OK) {
        bpe->has_unk = true;
        bpe->unk = attn_bpe_find(bpe, unk, strlen(unk));
    }
    return status;
}

attn_bpe *attn_bpe_read(const attn_reader *reader, const attn_json *node)
{
    attn_bpe *bpe = attn_alloc(1, sizeof *bpe);
    if (bpe == NULL) {
        attn_read_no_memory(reader);
        return NULL;
    }
    if (read_model(reader, node, bpe) != ATTN_OK) {
        attn_bpe_free(bpe);
        return NULL;
    }
    return bpe;
}

void attn_bpe_free(attn_bpe *bpe)
{
    if (bpe == NULL)
        return;
    free(bpe->bytes);
    free(bpe->places);
    free(bpe->slots);
    free(bpe->merges);
    attn_free(bpe);
}

/* ------------------------------------------------------------------------------------- encoding */

typedef struct attn_bpe_symbol {
    uint32_t id, prev, next; /* neighbours; id ATTN_TOKEN_NONE: merged into the one before */
} symbol;

/* A merge that was possible when it was queued: symbol `at` with its next. */
typedef struct attn_bpe_merge {
    uint32_t rank, at, result;
} merge;

typedef struct word {
    const attn_bpe *bpe;
    attn_bpe_scratch *scratch;
    size_t n_symbols, n_heap;
} word;

void attn_bpe_scratch_free(attn_bpe_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->heap);
    *scratch = (attn_bpe_scratch){0};
}

static bool add_symbol(word *w, uint32_t id)
{
    attn_bpe_scratch *s = w->scratch;
    void *data = s->symbols;
    if (!attn_grow(&data, &s->symbols_capacity, w->n_symbols + 1, sizeof *s->symbols))
        return false;
    s->symbols = data;
    uint32_t n = (uint32_t)w->n_symbols++;
    s->symbols[n] = (symbol){id, n == 0 ? NO_SYMBOL : n - 1, NO_SYMBOL};
    if (n > 0)
        s->symbols[n - 1].next = n;
    return true;
}

/* Lowest rank first, then leftmost. */
static bool before(const merge *a, const merge *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

/* Queues the merge of symbol `at` with its next, if there is a rule for it. */
static bool queue_merge(word *w, uint32_t at)
{
    attn_bpe_scratch *s = w->scratch;
    const symbol *left = &s->symbols[at];
    const merge_rule *rule = find_rule(w->bpe, left->id, s->symbols[left->next].id);
    if (rule == NULL)
        return true;
    void *data = s->heap;
    if (!attn_grow(&data, &s->heap_capacity, w->n_heap + 1, sizeof *s->heap))
        return false;
    s->heap = data;
    merge added = {rule->rank, at, rule->result};
    size_t i = w->n_heap++;
    for (; i > 0 && before(&added, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = added;
    return true;
}

static merge take_first(word *w)
{
    merge *heap = w->scratch->heap;
    merge first = heap[0], last = heap[--w->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < w->n_heap; i = child) {
        if (child + 1 < w->n_heap && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &last))
            break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return first;
}

static bool merge_all(word *w)
{
    symbol *symbols = w->scratch->symbols;
    for (uint32_t i = 0; i + 1 < w->n_symbols; i++) {
        if (!queue_merge(w, i))
            return false;
    }
    while (w->n_heap > 0) {
        merge m = take_first(w);
        symbol *left = &symbols[m.at];
        if (left->id == ATTN_TOKEN_NONE || left->next == NO_SYMBOL)
            continue;
        symbol *right = &symbols[left->next];
        const merge_rule *rule = find_rule(w->bpe, left->id, right->id);
        /* One of the two has changed since; what it is now was queued when it changed. */
        if (rule == NULL || rule->result != m.result)
            continue;
        left->id = m.result;
        left->next = right->next;
        right->id = ATTN_TOKEN_NONE;
        if (left->next != NO_SYMBOL)
            symbols[left->next].prev = m.at;
        if ((left->prev != NO_SYMBOL && !queue_merge(w, left->prev)) ||
            (left->next != NO_SYMBOL && !queue_merge(w, m.at)))
            return false;
    }
    return true;
}

/* The tokens <0xNN> of a character that has none itself; false when one of them is missing. */
static bool byte_ids(const attn_bpe *bpe, const char *bytes, size_t len, uint32_t ids[4])
{
    for (size_t i = 0; i < len; i++) {
        ids[i] = bpe->byte_tokens[(unsigned char)bytes[i]];
        if (!bpe->byte_fallback || ids[i] == ATTN_TOKEN_NONE)
            return false;
    }
    return true;
}

/* Fills the word's symbols, one or more a character. An unknown token waits in *unk until a
 * known one follows, so that fuse_unk can make several one; bytes do not count as known. */
static attn_status add_symbols(word *w, const char *text, size_t len, attn_error *err)
{
    const attn_bpe *bpe = w->bpe;
    uint32_t ids[4];
    bool unk_waits = false, ok = true;
    for (size_t i = 0, used; ok && i < len; i += used) {
        uint32_t c = attn_utf8_decode(text + i, &used);
        uint32_t id = c < DIRECT_CHARS ? bpe->chars[c] : attn_bpe_find(bpe, text + i, used);
        if (id != ATTN_TOKEN_NONE) {
            ok = (!unk_waits || add_symbol(w, bpe->unk)) && add_symbol(w, id);
            unk_waits = false;
        } else if (byte_ids(bpe, text + i, used, ids)) {
            for (size_t k = 0; ok && k < used; k++)
                ok = add_symbol(w, ids[k]);
        } else if (bpe->has_unk) {
            if (bpe->unk == ATTN_TOKEN_NONE)
                return attn_fail(err, ATTN_E_INVALID, "text",
                                 "a character is not in the tokenizer's vocabulary");
            if (unk_waits && !bpe->fuse_unk)
                ok = add_symbol(w, bpe->unk);
            unk_waits = true;
        }
    }
    if (ok && unk_waits)
        ok = add_symbol(w, bpe->unk);
    return ok ? ATTN_OK : attn_no_memory(err);
}

attn_status attn_bpe_encode(const attn_bpe *bpe, attn_bpe_scratch *scratch, const char *text,
                            size_t len, attn_ids *ids, attn_error *err)
{
    word w = {.bpe = bpe, .scratch = scratch};
    if (len > WORD_MAX)
        return attn_fail(err, ATTN_E_INVALID, "text", "the text is too long once normalized");
    uint32_t whole = bpe->ignore_merges ? attn_bpe_find(bpe, text, len) : ATTN_TOKEN_NONE;
    if (whole != ATTN_TOKEN_NONE)
        return attn_ids_append(ids, whole) ? ATTN_OK : attn_no_memory(err);
    attn_status status = add_symbols(&w, text, len, err);
    if (status != ATTN_OK)
        return status;
    if (!merge_all(&w))
        return attn_no_memory(err);
    for (uint32_t i = w.n_symbols > 0 ? 0 : NO_SYMBOL; i != NO_SYMBOL;
         i = scratch->symbols[i].next) {
        if (!attn_ids_append(ids, scratch->symbols[i].id))
            return attn_no_memory(err);
    }
    return ATTN_OK;
}
