/* Steps follow one another depth first: a step hands each of its pieces to the next as it finds
 * it, and the last one hands out words. The depth is the number of steps, whatever the text. */
#include "engine/model/tokenizer_split.h"

#include <string.h>

typedef enum step_kind { STEP_SPLIT, STEP_BYTE_LEVEL, STEP_METASPACE } step_kind;
typedef enum behavior {
    REMOVED,
    ISOLATED,
    MERGED_WITH_PREVIOUS,
    MERGED_WITH_NEXT,
    CONTIGUOUS
} behavior;

typedef struct step {
    step_kind kind;
    attn_pattern *pattern; /* NULL: one piece */
    behavior behavior;
    bool invert;          /* SPLIT: what the pattern matches is no delimiter, the rest is */
    attn_metaspace space; /* METASPACE, and BYTE_LEVEL's add_prefix_space */
} step;

struct attn_splitter {
    step steps[ATTN_SPLIT_STEPS];
    size_t n_steps;
};

/* ----------------------------------------------------------------------------------- byte level */

static bool stands_for_itself(uint32_t c)
{
    return (c >= '!' && c <= '~') || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff);
}

/* The other 68 bytes, in order, are U+0100 and on: 0-32, 127-160, 173. */
uint32_t attn_byte_level_char(uint8_t byte)
{
    if (stands_for_itself(byte))
        return byte;
    return 0x100u + (byte <= 0x20 ? byte : byte <= 0xa0 ? byte - 0x7fu + 33 : 67u);
}

int attn_byte_level_byte(uint32_t c)
{
    if (stands_for_itself(c))
        return (int)c;
    if (c < 0x100 || c > 0x143)
        return -1;
    uint32_t n = c - 0x100;
    return (int)(n < 33 ? n : n < 67 ? n - 33 + 0x7f : 0xad);
}

/* -------------------------------------------------------------------------------------- reading */

/* GPT-2's, which ByteLevel applies when use_regex is true. */
static const char byte_level_regex[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| "
                                       "?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static attn_status read_byte_level(const attn_reader *reader, const attn_json *node, step *to)
{
    static const char what[] = "pre_tokenizer ByteLevel";
    bool add_prefix_space = true, trim_offsets, use_regex = true;
    attn_status status =
        attn_read_keys(reader, node, what, "type add_prefix_space trim_offsets use_regex");
    if (status == ATTN_OK)
        status = attn_read_bool(reader, node, what, "add_prefix_space", &add_prefix_space);
    if (status == ATTN_OK)
        status = attn_read_optional_bool(reader, node, what, "trim_offsets", &trim_offsets);
    if (status == ATTN_OK)
        status = attn_read_optional_bool(reader, node, what, "use_regex", &use_regex);
    if (status != ATTN_OK)
        return status;
    to->kind = STEP_BYTE_LEVEL;
    to->behavior = ISOLATED;
    to->space = (attn_metaspace){
        .mark = " ",
        .mark_len = 1,
        .prepend = add_prefix_space ? ATTN_PREPEND_ALWAYS : ATTN_PREPEND_NEVER,
    };
    if (use_regex)
        to->pattern = attn_pattern_regex(reader, byte_level_regex, what);
    return use_regex && to->pattern == NULL ? reader->err->status : ATTN_OK;
}

static attn_status read_split(const attn_reader *reader, const attn_json *node, step *to)
{
    static const char what[] = "pre_tokenizer Split";
    static const char *const names[] = {
        [REMOVED] = "Removed",
        [ISOLATED] = "Isolated",
        [MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [MERGED_WITH_NEXT] = "MergedWithNext",
        [CONTIGUOUS] = "Contiguous",
    };
    const char *name;
    attn_status status = attn_read_keys(reader, node, what, "type pattern behavior invert");
    if (status == ATTN_OK)
        status = attn_read_bool(reader, node, what, "invert", &to->invert);
    if (status == ATTN_OK)
        status = attn_read_string(reader, node, what, "behavior", &name);
    if (status != ATTN_OK)
        return status;
    size_t i = 0;
    while (i < sizeof names / sizeof names[0] && strcmp(names[i], name) != 0)
        i++;
    if (i == sizeof names / sizeof names[0])
        return attn_read_fail(reader, what, "has a behavior that is not supported");
    to->kind = STEP_SPLIT;
    to->behavior = (behavior)i;
    to->pattern = attn_pattern_read(reader, attn_json_get(node, "pattern"), what);
    return to->pattern == NULL ? reader->err->status : ATTN_OK;
}

static attn_status read_digits(const attn_reader *reader, const attn_json *node, step *to)
{
    static const char what[] = "pre_tokenizer Digits";
    bool individual = false;
    attn_status status = attn_read_keys(reader, node, what, "type individual_digits");
    if (status == ATTN_OK)
        status = attn_read_optional_bool(reader, node, what, "individual_digits", &individual);
    if (status != ATTN_OK)
        return status;
    to->kind = STEP_SPLIT;
    to->behavior = individual ? ISOLATED : CONTIGUOUS;
    to->pattern = attn_pattern_regex(reader, "\\p{N}", what);
    return to->pattern == NULL ? reader->err->status : ATTN_OK;
}

static attn_status read_metaspace(const attn_reader *reader, const attn_json *node, step *to)
{
    static const char what[] = "pre_tokenizer Metaspace";
    attn_status status = attn_metaspace_read(reader, node, what, &to->space);
    if (status != ATTN_OK)
        return status;
    to->kind = STEP_METASPACE;
    to->behavior = MERGED_WITH_NEXT;
    if (to->space.split)
        to->pattern = attn_pattern_literal(reader, to->space.mark, what);
    return to->space.split && to->pattern == NULL ? reader->err->status : ATTN_OK;
}

static attn_status read_step(const attn_reader *reader, const attn_json *node, step *to)
{
    static const struct {
        const char *type;
        attn_status (*read)(const attn_reader *, const attn_json *, step *);
    } kinds[] = {
        {"ByteLevel", read_byte_level},
        {"Split", read_split},
        {"Digits", read_digits},
        {"Metaspace", read_metaspace},
    };
    const char *type;
    attn_status status = attn_read_string(reader, node, "pre_tokenizer", "type", &type);
    if (status != ATTN_OK)
        return status;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].type, type) == 0)
            return kinds[i].read(reader, node, to);
    }
    return attn_read_fail_name(reader, "pre_tokenizer", type, "is not supported");
}

/* One pre-tokenizer or a Sequence of such; Sequences do not nest. */
static attn_status read_steps(const attn_reader *reader, const attn_json *node,
                              attn_splitter *splitter)
{
    const char *type = attn_json_string(attn_json_get(node, "type"));
    if (type == NULL || strcmp(type, "Sequence") != 0) {
        splitter->n_steps = 1;
        return read_step(reader, node, &splitter->steps[0]);
    }
    const attn_json *list = attn_json_get(node, "pretokenizers");
    attn_status status =
        attn_read_keys(reader, node, "pre_tokenizer Sequence", "type pretokenizers");
    if (status == ATTN_OK && !attn_json_is_array(list))
        status = attn_read_fail(reader, "pre_tokenizer Sequence", "has no list");
    for (const attn_json *each = attn_json_first(list); status == ATTN_OK && each != NULL;
         each = attn_json_next(each)) {
        if (splitter->n_steps == ATTN_SPLIT_STEPS)
            return attn_read_fail(reader, "pre_tokenizer", "has too many steps");
        status = read_step(reader, each, &splitter->steps[splitter->n_steps++]);
    }
    return status;
}

attn_splitter *attn_splitter_read(const attn_reader *reader, const attn_json *node)
{
    attn_splitter *splitter = attn_alloc(1, sizeof *splitter);
    if (splitter == NULL) {
        attn_read_no_memory(reader);
        return NULL;
    }
    if (node != NULL && !attn_json_is_null(node) && read_steps(reader, node, splitter) != ATTN_OK) {
        attn_splitter_free(splitter);
        return NULL;
    }
    return splitter;
}

void attn_splitter_free(attn_splitter *splitter)
{
    if (splitter == NULL)
        return;
    for (size_t i = 0; i < splitter->n_steps; i++)
        attn_pattern_free(splitter->steps[i].pattern);
    attn_free(splitter);
}

/* -------------------------------------------------------------------------------------- cutting */

static attn_status run_step(attn_split_run *run, size_t index, const char *text, size_t len,
                            bool first);

/* A text on its way through one step. */
typedef struct cut {
    attn_split_run *run;
    size_t index;
    const step *step;
    const char *text;
    bool first;
    bool last_was_match;
    bool pending; /* text[start, end) waits for what comes next */
    size_t start, end;
} cut;

/* Writes bytes as the characters that stand for them. */
static bool to_byte_level(attn_text *to, const char *bytes, size_t len)
{
    void *data = to->data;
    if (!attn_grow(&data, &to->capacity, 2 * len, 1))
        return false;
    to->data = data;
    to->len = 0;
    for (size_t i = 0; i < len; i++)
        to->len += attn_utf8_encode(attn_byte_level_char((uint8_t)bytes[i]), to->data + to->len);
    return true;
}

static attn_status hand_on(const cut *c, size_t start, size_t end)
{
    const char *text = c->text + start;
    size_t len = end - start;
    if (len == 0)
        return ATTN_OK;
    if (c->step->kind == STEP_BYTE_LEVEL) {
        attn_text *bytes = &c->run->scratch[c->index][1];
        if (!to_byte_level(bytes, text, len))
            return attn_no_memory(c->run->err);
        text = bytes->data;
        len = bytes->len;
    }
    return run_step(c->run, c->index + 1, text, len, c->first && start == 0);
}

static attn_status hand_on_pending(cut *c)
{
    bool pending = c->pending;
    c->pending = false;
    return pending ? hand_on(c, c->start, c->end) : ATTN_OK;
}

/* Takes the next stretch of text: all of a match, or all between two matches. */
static attn_status take(cut *c, size_t start, size_t end, bool is_match)
{
    bool joins = false, waits = true;
    switch (c->step->behavior) {
    case REMOVED:
        return is_match ? ATTN_OK : hand_on(c, start, end);
    case ISOLATED:
        return hand_on(c, start, end);
    case CONTIGUOUS:
        joins = is_match == c->last_was_match;
        break;
    case MERGED_WITH_PREVIOUS:
        joins = is_match && !c->last_was_match;
        break;
    case MERGED_WITH_NEXT: /* only matches are ever pending */
        joins = !is_match;
        waits = is_match;
        break;
    }
    attn_status status = ATTN_OK;
    if (c->pending && joins)
        start = c->start;
    else
        status = hand_on_pending(c);
    c->last_was_match = is_match;
    c->pending = waits;
    c->start = start;
    c->end = end;
    return status == ATTN_OK && !waits ? hand_on(c, start, end) : status;
}

static attn_status cut_up(cut *c, size_t len)
{
    const step *s = c->step;
    attn_matches walk;
    size_t covered = 0;
    bool found;
    if (s->pattern == NULL)
        return hand_on(c, 0, len);
    attn_matches_start(&walk, s->pattern, c->run->match, c->text, len);
    for (;;) {
        attn_status status = attn_matches_next(&walk, &found, c->run->err);
        size_t end = found ? walk.start : len;
        if (status == ATTN_OK && end > covered)
            status = take(c, covered, end, s->invert);
        if (status == ATTN_OK && found)
            status = take(c, walk.start, walk.end, !s->invert);
        if (status != ATTN_OK)
            return status;
        if (!found)
            return hand_on_pending(c);
        covered = walk.end;
    }
}

/* Whether the text gets a mark before it, where the step says so and it has none. */
static bool wants_mark(const attn_split_run *run, const step *s, bool first)
{
    switch (s->space.prepend) {
    case ATTN_PREPEND_NEVER:
        return false;
    case ATTN_PREPEND_FIRST:
        return first && run->prefix;
    case ATTN_PREPEND_ALWAYS:
        return !first || run->prefix;
    }
    return false;
}

/* Writes the text with marks for spaces, and one before it when `mark_first`. */
static bool write_marked(attn_text *to, const step *s, const char *text, size_t len,
                         bool mark_first)
{
    const attn_metaspace *space = &s->space;
    bool starts_so = (len >= space->mark_len && memcmp(text, space->mark, space->mark_len) == 0) ||
                     text[0] == ' ';
    bool ok = true;
    to->len = 0;
    if (mark_first && !starts_so)
        ok = attn_text_append(to, space->mark, space->mark_len);
    for (size_t i = 0; ok && i < len;) {
        size_t end = i;
        while (end < len && text[end] != ' ')
            end++;
        ok = attn_text_append(to, text + i, end - i) &&
             (end == len || attn_text_append(to, space->mark, space->mark_len));
        i = end + 1;
    }
    return ok;
}

static attn_status run_step(attn_split_run *run, size_t index, const char *text, size_t len,
                            bool first)
{
    if (index == run->splitter->n_steps)
        return run->word(run->user, text, len, run->err);
    const step *s = &run->splitter->steps[index];
    bool mark_first = wants_mark(run, s, first);
    if (s->kind == STEP_METASPACE || mark_first) {
        attn_text *marked = &run->scratch[index][0];
        if (!write_marked(marked, s, text, len, mark_first))
            return attn_no_memory(run->err);
        text = marked->data;
        len = marked->len;
    }
    cut c = {.run = run, .index = index, .step = s, .text = text, .first = first};
    return cut_up(&c, len);
}

attn_status attn_split(attn_split_run *run, const char *text, size_t len, bool first)
{
    return len == 0 ? ATTN_OK : run_step(run, 0, text, len, first);
}

void attn_split_run_free(attn_split_run *run)
{
    for (size_t i = 0; i < ATTN_SPLIT_STEPS; i++) {
        attn_text_free(&run->scratch[i][0]);
        attn_text_free(&run->scratch[i][1]);
    }
}
