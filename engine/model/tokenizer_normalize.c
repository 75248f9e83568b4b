#include "engine/model/tokenizer_normalize.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define STEPS_MAX 16

typedef enum step_kind { STEP_NFC, STEP_PREPEND, STEP_REPLACE } step_kind;

typedef struct step {
    step_kind kind;
    attn_pattern *pattern; /* REPLACE */
    char *content;         /* PREPEND, REPLACE */
} step;

struct attn_normalizer {
    step steps[STEPS_MAX];
    size_t n_steps;
};

/* -------------------------------------------------------------------------------------- reading */

static attn_status read_step(const attn_reader *reader, const attn_json *node, const char *type,
                             step *to)
{
    const char *content = NULL, *keys = "type";
    attn_status status;
    if (strcmp(type, "NFC") == 0) {
        to->kind = STEP_NFC;
    } else if (strcmp(type, "Prepend") == 0) {
        to->kind = STEP_PREPEND;
        keys = "type prepend";
    } else if (strcmp(type, "Replace") == 0) {
        to->kind = STEP_REPLACE;
        keys = "type pattern content";
    } else {
        return attn_read_fail_name(reader, "normalizer", type, "is not supported");
    }
    status = attn_read_keys(reader, node, "normalizer", keys);
    if (status != ATTN_OK || to->kind == STEP_NFC)
        return status;
    status = attn_read_string(reader, node, "normalizer",
                              to->kind == STEP_PREPEND ? "prepend" : "content", &content);
    if (status != ATTN_OK)
        return status;
    to->content = strdup(content);
    if (to->content == NULL)
        return attn_read_no_memory(reader);
    if (to->kind == STEP_PREPEND)
        return ATTN_OK;
    to->pattern = attn_pattern_read(reader, attn_json_get(node, "pattern"), "normalizer Replace");
    if (to->pattern == NULL)
        return reader->err->status;
    if (attn_pattern_is_regex(to->pattern) && strchr(content, '$') != NULL)
        return attn_read_fail(reader, "normalizer Replace", "has a $ that is not supported");
    return ATTN_OK;
}

/* One normalizer or a Sequence of such; Sequences do not nest. */
static attn_status read_steps(const attn_reader *reader, const attn_json *node,
                              attn_normalizer *normalizer)
{
    const char *type;
    const attn_json *list = NULL, *each = node;
    attn_status status = attn_read_string(reader, node, "normalizer", "type", &type);
    if (status == ATTN_OK && strcmp(type, "Sequence") == 0) {
        status = attn_read_keys(reader, node, "normalizer Sequence", "type normalizers");
        list = attn_json_get(node, "normalizers");
        if (status == ATTN_OK && !attn_json_is_array(list))
            status = attn_read_fail(reader, "normalizer Sequence", "has no list");
        each = attn_json_first(list);
    }
    while (status == ATTN_OK && each != NULL) {
        status = attn_read_string(reader, each, "normalizer", "type", &type);
        if (status == ATTN_OK && normalizer->n_steps == STEPS_MAX)
            status = attn_read_fail(reader, "normalizer", "has too many steps");
        if (status == ATTN_OK)
            status = read_step(reader, each, type, &normalizer->steps[normalizer->n_steps++]);
        each = list == NULL ? NULL : attn_json_next(each);
    }
    return status;
}

attn_normalizer *attn_normalizer_read(const attn_reader *reader, const attn_json *node)
{
    attn_normalizer *normalizer = attn_alloc(1, sizeof *normalizer);
    if (normalizer == NULL) {
        attn_read_no_memory(reader);
        return NULL;
    }
    if (node != NULL && !attn_json_is_null(node) &&
        read_steps(reader, node, normalizer) != ATTN_OK) {
        attn_normalizer_free(normalizer);
        return NULL;
    }
    return normalizer;
}

void attn_normalizer_free(attn_normalizer *normalizer)
{
    if (normalizer == NULL)
        return;
    for (size_t i = 0; i < normalizer->n_steps; i++) {
        attn_pattern_free(normalizer->steps[i].pattern);
        free(normalizer->steps[i].content);
    }
    attn_free(normalizer);
}

bool attn_normalizer_is_identity(const attn_normalizer *normalizer)
{
    return normalizer->n_steps == 0;
}

/* ------------------------------------------------------------------------------------------ NFC */

/* Nothing below U+0300 composes with anything or moves. */
static bool is_nfc_at_sight(const attn_text *text)
{
    for (size_t i = 0; i < text->len; i++) {
        if ((unsigned char)text->data[i] >= 0xcc)
            return false;
    }
    return true;
}

static utf8proc_propval_t combining_class(utf8proc_int32_t c)
{
    return utf8proc_get_property(c)->combining_class;
}

/* Puts marks[0, n) in the order of their combining classes, equal ones as they stood. A text may
 * consist of marks alone, so this counts; utf8proc's own exchange of neighbours is quadratic. */
static void sort_marks(utf8proc_int32_t *marks, size_t n, utf8proc_int32_t *scratch)
{
    size_t place[257] = {0};
    for (size_t i = 0; i < n; i++)
        place[combining_class(marks[i]) + 1]++;
    for (size_t class = 1; class <= 256; class ++)
        place[class] += place[class - 1];
    for (size_t i = 0; i < n; i++)
        scratch[place[combining_class(marks[i])]++] = marks[i];
    memcpy(marks, scratch, n * sizeof *marks);
}

static void sort_all_marks(utf8proc_int32_t *chars, size_t n, utf8proc_int32_t *scratch)
{
    for (size_t i = 0; i < n;) {
        size_t end = i;
        bool sorted = true;
        while (end < n && combining_class(chars[end]) != 0) {
            sorted &= end == i || combining_class(chars[end - 1]) <= combining_class(chars[end]);
            end++;
        }
        if (!sorted)
            sort_marks(chars + i, end - i, scratch);
        i = end == i ? i + 1 : end;
    }
}

/* The canonical decomposition of text, appended to chars[0, room) or, when NULL, only counted. */
static size_t decompose(const attn_text *text, utf8proc_int32_t *chars, size_t room)
{
    size_t n = 0, used;
    for (size_t i = 0; i < text->len; i += used) {
        utf8proc_int32_t c = (utf8proc_int32_t)attn_utf8_decode(text->data + i, &used);
        utf8proc_ssize_t got =
            utf8proc_decompose_char(c, chars == NULL ? NULL : chars + n,
                                    (utf8proc_ssize_t)(room - n), UTF8PROC_DECOMPOSE, NULL);
        ATTN_ASSERT(got > 0 && (chars == NULL || (size_t)got <= room - n));
        n += (size_t)got;
        if (chars == NULL)
            room = n;
    }
    return n;
}

static attn_status to_nfc(const attn_text *from, attn_text *to, attn_error *err)
{
    if (is_nfc_at_sight(from))
        return attn_text_append(to, from->data, from->len) ? ATTN_OK : attn_no_memory(err);
    size_t n = decompose(from, NULL, 0);
    utf8proc_int32_t *chars = calloc(n, 2 * sizeof *chars);
    if (chars == NULL)
        return attn_no_memory(err);
    decompose(from, chars, n);
    sort_all_marks(chars, n, chars + n);
    utf8proc_ssize_t composed =
        utf8proc_normalize_utf32(chars, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    ATTN_ASSERT(composed >= 0 && (size_t)composed <= n);
    bool ok = true;
    for (size_t i = 0; ok && i < (size_t)composed; i++)
        ok = attn_text_append_char(to, (uint32_t)chars[i]);
    free(chars);
    return ok ? ATTN_OK : attn_no_memory(err);
}

/* ------------------------------------------------------------------------------------- applying */

static attn_status apply_step(const step *s, bool prepend, size_t most, attn_match *match,
                              const attn_text *from, attn_text *to, attn_error *err)
{
    switch (s->kind) {
    case STEP_NFC:
        return to_nfc(from, to, err);
    case STEP_PREPEND:
        if ((prepend && from->len > 0 && !attn_text_append(to, s->content, strlen(s->content))) ||
            !attn_text_append(to, from->data, from->len))
            return attn_no_memory(err);
        return ATTN_OK;
    case STEP_REPLACE:
        return attn_pattern_replace(s->pattern, match, from->data, from->len, s->content, most, to,
                                    err);
    }
    return ATTN_OK;
}

attn_status attn_normalizer_apply(const attn_normalizer *normalizer, bool prepend,
                                  attn_match *match, attn_text buffers[2], attn_error *err)
{
    const size_t most = attn_replaced_max(buffers[0].len);
    for (size_t i = 0; i < normalizer->n_steps; i++) {
        buffers[1].len = 0;
        attn_status status =
            apply_step(&normalizer->steps[i], prepend, most, match, &buffers[0], &buffers[1], err);
        if (status != ATTN_OK)
            return status;
        attn_text swapped = buffers[0];
        buffers[0] = buffers[1];
        buffers[1] = swapped;
    }
    return ATTN_OK;
}
